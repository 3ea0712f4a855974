//! TLS 1.3 over a link that loses packets: axum behind `TlsListener`, and a client that sends its ClientHello
//! with the SYN. The request itself is never on a SYN, so this is safe for every request.
//!
//! `cargo run -p brisk-runtime --example rustls`

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::routing::post;
use axum::serve::Listener;
use brisk_runtime::memory::{self, LinkSpec};
use brisk_runtime::{Endpoint, FastOpenConnect, TcpListener, TcpSocket, TcpStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// Body of the request, which the server echoes.
const BODY: &[u8] = &[b'x'; 30_000];

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let (client_tls, server_tls) = configs()?;
    let (client, server) = memory::network(&LinkSpec::parse("--rtt 100ms --loss 1%")?, 1)?;
    let mut socket = TcpSocket::new(&server);
    socket.bind("10.0.0.2:443".parse()?);
    socket.fast_open(16);
    // Otherwise Nagle's algorithm delays the response until the client has acknowledged the session tickets.
    socket.set_nodelay(true);
    let listener = TlsListener::new(socket.listen(128)?, server_tls);
    let app = Router::new().route("/echo", post(|body: String| async { body }));
    tokio::spawn(axum::serve(listener, app).into_future());
    for _ in 0..3 {
        let began = Instant::now();
        let len = echo(&client, client_tls.clone()).await?;
        println!("{len} bytes after {} ms", began.elapsed().as_millis());
    }
    Ok(())
}

/// Sends a request, and returns the length of the response.
async fn echo(client: &Endpoint, tls: TlsConnector) -> Result<usize, Box<dyn Error>> {
    let mut socket = TcpSocket::new(client);
    // The SYN waits for the first write and carries the ClientHello.
    socket.set_fast_open_connect(Some(FastOpenConnect { defer: true, ..FastOpenConnect::default() }));
    // Otherwise Nagle's algorithm delays the request until the server has acknowledged the TLS handshake.
    socket.set_nodelay(true);
    let stream = socket.connect("10.0.0.2:443".parse()?).await?;
    let mut stream = tls.connect("server.example".try_into()?, stream).await?;
    let head = format!(
        "POST /echo HTTP/1.1\r\nHost: server.example\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        BODY.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(BODY).await?;
    stream.flush().await?;
    let mut response = Vec::new();
    stream.read_to_end(&mut response).await?;
    if !response.ends_with(BODY) {
        return Err("not the echo of the request".into());
    }
    Ok(response.len())
}

/// A listener that runs TLS handshakes in parallel and returns connections in the order in which they are
/// ready.
struct TlsListener {
    listener: TcpListener,
    tls: TlsAcceptor,
    handshakes: JoinSet<io::Result<(TlsStream<TcpStream>, SocketAddr)>>,
}

impl TlsListener {
    fn new(listener: TcpListener, tls: TlsAcceptor) -> TlsListener {
        TlsListener { listener, tls, handshakes: JoinSet::new() }
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            tokio::select! {
                (stream, peer) = Listener::accept(&mut self.listener) => {
                    let tls = self.tls.clone();
                    self.handshakes.spawn(async move { Ok((tls.accept(stream).await?, peer)) });
                }
                Some(ended) = self.handshakes.join_next(), if !self.handshakes.is_empty() => match ended {
                    Ok(Ok(accepted)) => return accepted,
                    Ok(Err(error)) => eprintln!("TLS: {error}"),
                    Err(panicked) => eprintln!("TLS: {panicked}"),
                },
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.listener.local_addr())
    }
}

/// Creates a certificate for `server.example`; returns a client that trusts it, and the server.
fn configs() -> Result<(TlsConnector, TlsAcceptor), Box<dyn Error>> {
    let own = rcgen::generate_simple_self_signed(["server.example".to_owned()])?;
    let key = PrivateKeyDer::try_from(own.signing_key.serialize_der())?;
    let mut known = RootCertStore::empty();
    known.add(own.cert.der().clone())?;
    let client = ClientConfig::builder().with_root_certificates(known).with_no_client_auth();
    let server =
        ServerConfig::builder().with_no_client_auth().with_single_cert(vec![own.cert.der().clone()], key)?;
    Ok((Arc::new(client).into(), Arc::new(server).into()))
}

//! The gateway pair over QUIC: carries each TCP connection of a client over a stream of one QUIC connection.
//!
//! ```text
//! quic_pair backend --listen ADDR --to ADDR --certificate FILE
//! quic_pair frontend --listen ADDR --peer ADDR --certificate FILE [--cipher aes128|chacha20]
//! ```
//!
//! The backend writes its certificate to FILE, from which the frontend reads it. Clients must send first,
//! because a stream exists for the backend only when data has arrived on it. Like a gateway, each side has a
//! thread for each core and asks the kernel for 4 MiB of buffer for its UDP socket. The environment variable
//! `TOKIO_WORKER_THREADS` sets another number of threads.
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::BytesMut;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::rustls::crypto::{CryptoProvider, ring};
use quinn::rustls::{self, RootCertStore};
use quinn::{Endpoint, EndpointConfig, RecvStream, SendStream, TokioRuntime, TransportConfig, VarInt};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Name in the certificate.
const NAME: &str = "backend";
/// Flow control of a stream and of the connection, bytes: what the receive buffer of the other side can hold.
const WINDOW: u32 = 4 << 20;
/// Size of one read from a socket or a stream, bytes.
const PIECE: usize = 1 << 16;

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let find = |name: &str| {
        arguments.iter().position(|argument| argument == name).and_then(|at| arguments.get(at + 1))
    };
    let value = |name: &str| find(name).ok_or(format!("{name} is missing"));
    let (listen, certificate) = (value("--listen")?.parse()?, value("--certificate")?);
    match arguments.first().map(String::as_str) {
        Some("backend") => backend(listen, value("--to")?.parse()?, certificate).await,
        Some("frontend") => {
            let suite = match find("--cipher").map_or("aes128", String::as_str) {
                "aes128" => ring::cipher_suite::TLS13_AES_128_GCM_SHA256,
                "chacha20" => ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
                other => return Err(format!("unknown cipher: {other}").into()),
            };
            let tls = client_tls(certificate, suite)?;
            frontend(listen, value("--peer")?.parse()?, tls).await
        }
        _ => Err("usage: quic_pair backend|frontend ...".into()),
    }
}

/// Connects each stream of each QUIC connection to the origin.
async fn backend(listen: SocketAddr, to: SocketAddr, certificate: &str) -> Result<()> {
    let signed = rcgen::generate_simple_self_signed([NAME.to_owned()])?;
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(signed.signing_key.serialize_der());
    let tls = rustls::ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![signed.cert.der().clone()], key.into())?;
    let mut server = quinn::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls)?));
    server.transport_config(transport());
    let endpoint = endpoint(listen, Some(server))?;
    std::fs::write(certificate, signed.cert.der())?;
    while let Some(incoming) = endpoint.accept().await {
        tokio::spawn(async move {
            let Ok(connection) = incoming.await else { return };
            while let Ok((send, receive)) = connection.accept_bi().await {
                tokio::spawn(async move {
                    // Without an origin both halves are dropped, which ends the stream.
                    if let Ok(tcp) = TcpStream::connect(to).await {
                        carry(tcp, send, receive).await;
                    }
                });
            }
        });
    }
    Ok(())
}

/// Opens a stream for each TCP connection.
async fn frontend(listen: SocketAddr, peer: SocketAddr, tls: QuicClientConfig) -> Result<()> {
    let mut client = quinn::ClientConfig::new(Arc::new(tls));
    client.transport_config(transport());
    let any = SocketAddr::new(if peer.is_ipv4() { [0; 4].into() } else { [0; 16].into() }, 0);
    let connection = endpoint(any, None)?.connect_with(client, peer, NAME)?.await?;
    let listener = TcpListener::bind(listen).await?;
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (tcp, connection) = (accepted?.0, connection.clone());
                tokio::spawn(async move {
                    if let Ok((send, receive)) = connection.open_bi().await {
                        carry(tcp, send, receive).await;
                    }
                });
            }
            error = connection.closed() => return Err(error.into()),
        }
    }
}

/// Copies both ways until both have ended. An error of one direction ends that direction.
async fn carry(tcp: TcpStream, send: SendStream, receive: RecvStream) {
    let _ = tcp.set_nodelay(true);
    let (reader, writer) = tcp.into_split();
    let _ = tokio::join!(to_quic(reader, send), to_tcp(receive, writer));
}

async fn to_quic(mut tcp: OwnedReadHalf, mut stream: SendStream) -> io::Result<()> {
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(PIECE);
        match tcp.read_buf(&mut buffer).await {
            // The stream ends when it is dropped.
            Ok(0) => return Ok(()),
            // The stream takes the bytes without a copy.
            Ok(_) => stream.write_chunk(buffer.split().freeze()).await?,
            Err(error) => {
                let _ = stream.reset(VarInt::from_u32(0));
                return Err(error);
            }
        }
    }
}

async fn to_tcp(mut stream: RecvStream, mut tcp: OwnedWriteHalf) -> io::Result<()> {
    // Several packets leave in one call of the kernel.
    let mut buffer = vec![0; PIECE];
    while let Some(read) = stream.read(&mut buffer).await? {
        tcp.write_all(&buffer[..read]).await?;
    }
    tcp.shutdown().await
}

/// A client's TLS with only this cipher for data. QUIC requires AES-128-GCM for its first packets.
fn client_tls(certificate: &str, suite: rustls::SupportedCipherSuite) -> Result<QuicClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(std::fs::read(certificate)?.into())?;
    let provider = CryptoProvider { cipher_suites: vec![suite], ..ring::default_provider() };
    let tls = rustls::ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let initial = ring::cipher_suite::TLS13_AES_128_GCM_SHA256.tls13().and_then(|suite| suite.quic_suite());
    Ok(QuicClientConfig::with_initial(Arc::new(tls), initial.ok_or("no cipher for the first packets")?)?)
}

fn transport() -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(10_000_u32.into())
        .stream_receive_window(WINDOW.into())
        .send_window(WINDOW.into())
        .keep_alive_interval(Some(std::time::Duration::from_secs(5)));
    Arc::new(transport)
}

fn endpoint(listen: SocketAddr, server: Option<quinn::ServerConfig>) -> io::Result<Endpoint> {
    let socket = Socket::new(Domain::for_address(listen), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_recv_buffer_size(4 << 20)?;
    socket.set_send_buffer_size(4 << 20)?;
    socket.bind(&listen.into())?;
    Endpoint::new(EndpointConfig::default(), server, socket.into(), Arc::new(TokioRuntime))
}

//! An HTTP client that sends its request with the SYN: from the second connection on, the response arrives
//! after one round trip instead of two.
//!
//! `cargo run -p brisk-runtime --example hyper_client`

use std::error::Error;
use std::io;
use std::net::{IpAddr, SocketAddr};

use axum::Router;
use axum::routing::get;
use brisk_runtime::memory::{self, LinkSpec};
use brisk_runtime::{Endpoint, FastOpenConnect, TcpSocket, TcpStream};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::time::Instant;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let (client, server) = memory::network(&LinkSpec::parse("--rtt 100ms")?, 1)?;
    serve(&server)?;
    let connector = tower::service_fn(move |uri| Box::pin(connect(client.clone(), uri)));
    // Each request has its own connection, to show the cost of a connection.
    let client: Client<_, Empty<Bytes>> =
        Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector);
    for _ in 0..3 {
        let began = Instant::now();
        let response = client.get("http://10.0.0.2/".parse()?).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        println!("{status}, {} bytes after {} ms", body.len(), began.elapsed().as_millis());
    }
    Ok(())
}

/// Opens the connection for a request that may be repeated: the network can deliver data of a SYN twice. A
/// client for other requests uses [`Endpoint::connect`] here.
async fn connect(endpoint: Endpoint, uri: axum::http::Uri) -> io::Result<TokioIo<TcpStream>> {
    // A program that connects by name resolves it here.
    let host: IpAddr = uri.host().and_then(|host| host.parse().ok()).ok_or(io::ErrorKind::InvalidInput)?;
    let address = SocketAddr::new(host, uri.port_u16().unwrap_or(80));
    let mut socket = TcpSocket::new(&endpoint);
    // The SYN waits for the first write: hyper connects first and writes the request then.
    socket.set_fast_open_connect(Some(FastOpenConnect { defer: true, ..FastOpenConnect::default() }));
    socket.connect(address).await.map(TokioIo::new)
}

/// Starts a server that takes data with the SYN.
fn serve(endpoint: &Endpoint) -> io::Result<()> {
    let mut socket = TcpSocket::new(endpoint);
    socket.bind(SocketAddr::from(([10, 0, 0, 2], 80)));
    socket.fast_open(16);
    let app = Router::new().route("/", get(|| async { "welcome" }));
    tokio::spawn(axum::serve(socket.listen(128)?, app).into_future());
    Ok(())
}

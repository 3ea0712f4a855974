//! A server of axum on an endpoint, over a link that loses packets. It shuts down gracefully: it answers the
//! request in progress, and closes the endpoint once its connections are closed.
//!
//! `cargo run -p brisk-runtime --example axum_server`

use std::error::Error;
use std::time::Duration;

use axum::Router;
use axum::extract::Path;
use axum::routing::get;
use brisk_runtime::TcpListener;
use brisk_runtime::memory::{self, LinkSpec};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let link = LinkSpec::parse("--rtt 40ms --rate 20mbit --loss 2%")?;
    let (client, server) = memory::network(&link, 1)?;
    let app = Router::new()
        .route("/bytes/{count}", get(|Path(count): Path<u16>| async move { "x".repeat(count.into()) }));
    let listener = TcpListener::bind(&server, "10.0.0.2:80".parse()?)?;
    let address = listener.local_addr();
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = axum::serve(listener, app).with_graceful_shutdown(async move { drop(stopped.await) });
    let serving = tokio::spawn(serving.into_future());

    let mut stream = client.connect(address).await?;
    stream.write_all(b"GET /bytes/30000 HTTP/1.1\r\nHost: server\r\n\r\n").await?;
    let mut first = [0; 15];
    stream.read_exact(&mut first).await?;
    drop(stop);
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await?;
    println!("{}, {} bytes", String::from_utf8_lossy(&first), first.len() + rest.len());
    serving.await??;
    drop(stream);
    let aborted = server.close(Duration::from_secs(10)).await;
    println!("the server has ended, {aborted} connections were aborted");
    Ok(())
}

//! Two TCP hosts in one process, joined by an emulated link that delays and loses packets: no privileges, no
//! kernel TCP.
//!
//! `cargo run -p brisk-runtime --example two_endpoints`

use brisk_runtime::TcpListener;
use brisk_runtime::memory::{self, LinkSpec};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let link = LinkSpec::parse("--rtt 40ms --rate 20mbit --loss 2%")?;
    let (client, server) = memory::network(&link, 1)?;
    let listener = TcpListener::bind(&server, "10.0.0.2:80".parse()?)?;
    let address = listener.local_addr();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 5];
            if stream.read_exact(&mut request).await.is_ok() {
                let _ = stream.write_all(&[b'x'; 30_000]).await;
            }
        }
    });
    let mut stream = client.connect(address).await?;
    stream.write_all(b"hello").await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let stats = stream.stats().ok_or("no statistics")?;
    let rtt = stats.srtt.unwrap_or_default().as_secs_f64() * 1e3;
    println!(
        "{} bytes received, {} packets in, round trip {rtt:.1} ms",
        answer.len(),
        stats.counters.segments_in
    );
    Ok(())
}

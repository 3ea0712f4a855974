//! A response between two endpoints of brisk's runtime.
use brisk_runtime::TcpListener;
use brisk_runtime::memory::{self, LinkSpec};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (client, server) = memory::network(&LinkSpec::default(), 1)?;
    let listener = TcpListener::bind(&server, "10.0.0.2:80".parse()?)?;
    let (stream, accepted) = tokio::join!(client.connect(listener.local_addr()), listener.accept());
    accepted?.0.write_all(&[1; 5000]).await?;
    stream?.read_exact(&mut [0; 5000]).await?;
    Ok(())
}

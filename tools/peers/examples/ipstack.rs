//! ipstack over a stream of packets. It only listens, because it cannot connect.
use ipstack::{IpStack, IpStackConfig, IpStackStream};
use tokio::io::AsyncWriteExt;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (device, _packets) = tokio::io::duplex(1500);
    let mut stack = IpStack::new(IpStackConfig::default(), device);
    let accepting = async {
        while let Ok(IpStackStream::Tcp(mut stream)) = stack.accept().await {
            stream.write_all(&[1; 5000]).await?;
        }
        std::io::Result::Ok(())
    };
    tokio::select! { end = accepting => Ok(end?), () = tokio::task::yield_now() => Ok(()) }
}

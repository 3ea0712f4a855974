//! lwIP over a stream and sink of packets. It only listens, because the binding cannot connect.
use futures::StreamExt;
use tokio::io::AsyncWriteExt;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut stack, mut listener, _) = lwip::NetStack::new()?;
    let accepting = async {
        while let Some((mut stream, ..)) = listener.next().await {
            stream.write_all(&[1; 5000]).await?;
        }
        std::io::Result::Ok(())
    };
    tokio::select! { end = accepting => Ok(end?), _ = stack.next() => Ok(()), () = tokio::task::yield_now() => Ok(()) }
}

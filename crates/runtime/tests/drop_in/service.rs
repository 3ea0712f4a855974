// Included with `TcpListener` and `TcpStream` of tokio::net, and with those of brisk-runtime.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

/// Serves connections one after the other: sends each line back in capitals. `!` at the beginning ends the
/// service.
pub(crate) async fn serve(listener: TcpListener) -> io::Result<SocketAddr> {
    loop {
        let (stream, peer) = listener.accept().await?;
        let mut first = [0];
        if stream.peek(&mut first).await? == 1 && first == *b"!" {
            return Ok(peer);
        }
        let (reading, mut writing) = stream.into_split();
        let mut reading = BufReader::new(reading);
        let mut line = String::new();
        while reading.read_line(&mut line).await? > 0 {
            writing.write_all(line.to_uppercase().as_bytes()).await?;
            line.clear();
        }
        let mut stream = reading.into_inner().reunite(writing).expect("halves of one stream");
        stream.shutdown().await?;
    }
}

/// Sends a text, and returns the response.
pub(crate) async fn ask(mut stream: TcpStream, text: &str) -> io::Result<String> {
    let (mut reading, mut writing) = stream.split();
    let mut response = String::new();
    let sending = async {
        writing.write_all(text.as_bytes()).await?;
        writing.shutdown().await
    };
    tokio::try_join!(sending, reading.read_to_string(&mut response))?;
    Ok(response)
}

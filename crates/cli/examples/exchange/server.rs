//! The server: answers a request with the requested number of bytes.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::signal::unix::{SignalKind, signal};

use brisk_lab::either_tcp::{EitherTcp, Stream};

/// A request: the lengths of the response and of the request in bytes, the side that closes, and padding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) bytes: u64,
    pub(crate) len: u32,
    pub(crate) server_closes: bool,
}

impl Request {
    /// Length of a request without padding.
    const HEAD: u32 = 13;

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut text = Vec::with_capacity(self.len as usize);
        text.extend(self.bytes.to_be_bytes());
        text.extend(self.len.to_be_bytes());
        text.push(self.server_closes.into());
        text.resize(self.len as usize, b'.');
        text
    }

    async fn read(stream: &mut Stream) -> io::Result<Request> {
        let (bytes, len) = (stream.read_u64().await?, stream.read_u32().await?);
        let server_closes = stream.read_u8().await? != 0;
        let filling = len.saturating_sub(Request::HEAD).into();
        if tokio::io::copy(&mut stream.take(filling), &mut tokio::io::sink()).await? < filling {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Request { bytes, len, server_closes })
    }
}

/// Serves until SIGTERM, then prints the counters of our stack.
pub(crate) async fn serve(tcp: &EitherTcp, local: SocketAddr, queue: u16) -> io::Result<()> {
    let listener = tcp.listen(local, queue)?;
    let mut end = signal(SignalKind::terminate())?;
    println!("ready");
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = end.recv() => {
                if let EitherTcp::Ours { endpoint, .. } = tcp {
                    println!("{:#?}", endpoint.stats());
                }
                return Ok(());
            }
        };
        match accepted {
            Ok(stream) => drop(tokio::spawn(converse(stream))),
            // The kernel reports the failure of one connection at its listener.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Serves the requests of one connection until the client closes it or requests that the server closes it.
async fn converse(mut stream: Stream) {
    static PIECE: [u8; 1 << 16] = [b'x'; 1 << 16];
    // The client sees and counts every failure.
    while let Ok(request) = Request::read(&mut stream).await {
        let mut left = request.bytes;
        while left > 0 {
            let piece = left.min(PIECE.len() as u64);
            if stream.write_all(&PIECE[..piece as usize]).await.is_err() {
                return;
            }
            left -= piece;
        }
        if request.server_closes {
            let _ = stream.shutdown().await;
            let _ = stream.read(&mut [0; 16]).await;
            return;
        }
    }
}

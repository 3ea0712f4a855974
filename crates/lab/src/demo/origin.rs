//! The origin of the demonstration: a minimal web server on the kernel's TCP.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const LONGEST_REQUEST: usize = 8192;
const BODY: [u8; 4096] = [b'.'; 4096];

/// Server that answers `GET /N` with N bytes and closes.
#[derive(Debug)]
pub(super) struct Origin {
    listener: TcpListener,
}

impl Origin {
    pub(super) async fn bind() -> io::Result<Origin> {
        Ok(Origin { listener: TcpListener::bind("127.0.0.1:0").await? })
    }

    pub(super) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves without end.
    pub(super) async fn run(self) {
        loop {
            match self.listener.accept().await {
                // Errors of a client's connection need no handling.
                Ok((stream, _)) => drop(tokio::spawn(answer(stream))),
                // No descriptor is free at the moment.
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(10)).await,
            }
        }
    }
}

async fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        if stream.read_buf(&mut request).await? == 0 || request.len() > LONGEST_REQUEST {
            return Ok(());
        }
    }
    let Some(len) = requested(&request) else {
        return stream
            .write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            .await;
    };
    let mut response = response_head(len).into_bytes();
    let mut left = len;
    while left > 0 || !response.is_empty() {
        let body = left.min(BODY.len() as u64) as usize;
        response.extend_from_slice(&BODY[..body]);
        left -= body as u64;
        stream.write_all(&response).await?;
        response.clear();
    }
    stream.shutdown().await
}

/// Returns the part of a response before its body of `len` bytes.
pub(super) fn response_head(len: u64) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n")
}

/// Returns N if the request is `GET /N HTTP/1.1`.
fn requested(request: &[u8]) -> Option<u64> {
    let rest = request.strip_prefix(b"GET /")?;
    let end = rest.iter().position(|byte| *byte == b' ')?;
    std::str::from_utf8(&rest[..end]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn origin_sends_the_requested_number_of_bytes() {
        let origin = Origin::bind().await.unwrap();
        let address = origin.local_addr().unwrap();
        tokio::spawn(origin.run());
        for (path, len) in [("0", 0), ("1", 1), ("4096", 4096), ("100000", 100_000)] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(format!("GET /{path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
            let mut response = Vec::new();
            stream.read_to_end(&mut response).await.unwrap();
            let body = response.windows(4).position(|end| end == b"\r\n\r\n").unwrap() + 4;
            assert_eq!((body, response.len() - body), (response_head(len as u64).len(), len), "{path}");
        }
        assert_eq!((requested(b"GET /x HTTP/1.1"), requested(b"POST /1 ")), (None, None));
    }
}

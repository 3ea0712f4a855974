//! HTTP for the measurements in real time: a minimal web server on the kernel's TCP, and the reading of its
//! responses.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const LONGEST_HEAD: usize = 8192;
/// Content of bodies.
static CHUNK: [u8; 16_384] = [b'.'; 16_384];

/// Answers each `GET /N` with N bytes, without end. A connection closes after the response to a request with
/// `Connection: close`.
pub(crate) async fn serve(listener: TcpListener) {
    loop {
        match listener.accept().await {
            // Errors of a client's connection need no handling.
            Ok((stream, _)) => drop(tokio::spawn(converse(stream))),
            // No descriptor is free at the moment.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn converse(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut received = Vec::new();
    loop {
        let Some(end) = head_end(&received) else {
            if stream.read_buf(&mut received).await? == 0 || received.len() > LONGEST_HEAD {
                return Ok(());
            }
            continue;
        };
        let head = String::from_utf8_lossy(&received[..end]).into_owned();
        received.drain(..end);
        let requested = head.strip_prefix("GET /").and_then(|rest| rest.split(' ').next()?.parse().ok());
        let mut left = requested.unwrap_or(0);
        let mut response = response_head(left).into_bytes();
        while left > 0 || !response.is_empty() {
            let body = left.min(CHUNK.len() as u64) as usize;
            response.extend_from_slice(&CHUNK[..body]);
            left -= body as u64;
            stream.write_all(&response).await?;
            response.clear();
        }
        if head.contains("\r\nConnection: close\r\n") {
            return stream.shutdown().await;
        }
    }
}

/// Returns the part of a response before its body of `len` bytes.
pub(crate) fn response_head(len: u64) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n")
}

/// Reads a response to its end, or until `may_continue` returns false; it gets the number of bytes of the
/// body so far. Returns the lengths of the head and the body.
///
/// # Errors
/// Those of reading; the first line of a response other than 200.
pub(crate) async fn read_response(
    mut stream: impl AsyncRead + Unpin,
    may_continue: impl Fn(u64) -> bool,
) -> io::Result<(u64, u64)> {
    let (mut received, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    let end = loop {
        match stream.read(&mut buffer).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            len => received.extend_from_slice(&buffer[..len]),
        }
        if let Some(end) = head_end(&received) {
            break end;
        }
    };
    if !received.starts_with(b"HTTP/1.1 200") {
        let line = received.split(|byte| *byte == b'\r').next().unwrap_or_default();
        return Err(io::Error::other(String::from_utf8_lossy(line).into_owned()));
    }
    let mut body = (received.len() - end) as u64;
    while may_continue(body) {
        match stream.read(&mut buffer).await? {
            0 => break,
            len => body += len as u64,
        }
    }
    Ok((end as u64, body))
}

fn head_end(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|end| end == b"\r\n\r\n").map(|at| at + 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_connection_serves_requests_until_the_last_one_says_so() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        tokio::spawn(serve(listener));
        for (path, len) in [("0", 0), ("1", 1), ("16384", 16_384), ("x", 0)] {
            stream.write_all(format!("GET /{path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
            let read = read_response(&mut stream, |body| body < len).await.unwrap();
            assert_eq!(read, (response_head(len).len() as u64, len), "{path}");
        }
        stream.write_all(b"GET /100000 HTTP/1.1\r\nConnection: close\r\n\r\n").await.unwrap();
        assert_eq!(read_response(&mut stream, |_| true).await.unwrap().1, 100_000);
    }

    #[tokio::test]
    async fn response_that_is_cut_or_refused_is_an_error() {
        let of = |bytes: &'static [u8]| read_response(bytes, |_| true);
        assert_eq!(of(b"HTTP/1.1 200 OK\r\n").await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let refused = of(b"HTTP/1.1 502 Bad Gateway\r\nX: y\r\n\r\n").await.unwrap_err();
        assert_eq!(refused.to_string(), "HTTP/1.1 502 Bad Gateway");
    }
}

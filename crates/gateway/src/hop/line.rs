//! A connection over brisk's TCP or the kernel's.
//!
//! The hop uses brisk's TCP, or the kernel's if the path carries nothing else. Clients of an edge, and of a
//! frontend with a device for clients, use brisk's TCP; clients of other frontends and origins use the
//! kernel's.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use brisk_runtime::ConnStats;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, tcp};

use crate::io::{Sink, Source, failed, reset};

/// Payload bytes of a segment if the real size is unknown.
const USUAL_SEGMENT: usize = 1400;

/// A connection: of the hop before its first message, of a client or of an origin.
#[derive(Debug)]
pub enum Line {
    /// Over brisk's TCP.
    Brisk(brisk_runtime::TcpStream),
    /// Over the kernel's TCP.
    Kernel(TcpStream),
}

impl Line {
    /// Returns the counters of the connection; `None` over the kernel's TCP.
    pub fn stats(&self) -> Option<ConnStats> {
        match self {
            Line::Brisk(stream) => stream.stats(),
            Line::Kernel(_) => None,
        }
    }

    /// Returns the local address.
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Line::Brisk(stream) => Ok(stream.local_addr()),
            Line::Kernel(stream) => stream.local_addr(),
        }
    }

    /// Returns the kernel's socket; `None` over brisk's TCP.
    pub(crate) fn socket(&self) -> Option<&TcpStream> {
        match self {
            Line::Brisk(_) => None,
            Line::Kernel(stream) => Some(stream),
        }
    }

    /// Returns the addresses of both ends; `None` over the kernel's TCP.
    pub(crate) fn ends(&self) -> Option<(IpAddr, IpAddr)> {
        match self {
            Line::Brisk(stream) => Some((stream.local_addr().ip(), stream.peer_addr().ip())),
            Line::Kernel(_) => None,
        }
    }

    /// Returns the payload bytes of a segment.
    pub(crate) fn segment(&self) -> usize {
        self.stats().map_or(USUAL_SEGMENT, |stats| stats.mss as usize)
    }

    /// Waits until the connection fails.
    pub(crate) async fn failed(&self) -> io::Error {
        match self {
            Line::Brisk(stream) => stream.failed().await,
            Line::Kernel(stream) => failed(stream).await,
        }
    }

    /// Makes dropping the line reset the connection.
    pub(crate) fn reset(&self) {
        match self {
            Line::Brisk(stream) => stream.set_linger(Some(Duration::ZERO)),
            Line::Kernel(stream) => reset(stream),
        }
    }

    pub(crate) fn split(&mut self) -> (LineRead<'_>, LineWrite<'_>) {
        match self {
            Line::Brisk(stream) => {
                let (read, write) = stream.split();
                (LineRead::Brisk(read), LineWrite::Brisk(write))
            }
            Line::Kernel(stream) => {
                let (read, write) = stream.split();
                (LineRead::Kernel(read), LineWrite::Kernel(write))
            }
        }
    }
}

/// The reading half.
pub(crate) enum LineRead<'a> {
    Brisk(brisk_runtime::ReadHalf<'a>),
    Kernel(tcp::ReadHalf<'a>),
}

/// The writing half.
pub(crate) enum LineWrite<'a> {
    Brisk(brisk_runtime::WriteHalf<'a>),
    Kernel(tcp::WriteHalf<'a>),
}

impl Source for LineRead<'_> {
    async fn failed(&self) -> io::Error {
        match self {
            LineRead::Brisk(read) => read.failed().await,
            LineRead::Kernel(read) => failed(read.as_ref()).await,
        }
    }

    fn socket(&self) -> Option<&TcpStream> {
        match self {
            LineRead::Brisk(_) => None,
            LineRead::Kernel(read) => Source::socket(read),
        }
    }
}

impl Sink for LineWrite<'_> {
    fn poll_write_last(&mut self, cx: &mut Context<'_>, last: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            LineWrite::Brisk(write) => Pin::new(write).poll_write(cx, last),
            LineWrite::Kernel(write) => write.poll_write_last(cx, last),
        }
    }

    fn socket(&self) -> Option<&TcpStream> {
        match self {
            LineWrite::Brisk(_) => None,
            LineWrite::Kernel(write) => Sink::socket(write),
        }
    }
}

impl AsyncRead for Line {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Line::Brisk(stream) => Pin::new(stream).poll_read(cx, buffer),
            Line::Kernel(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Line {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Line::Brisk(stream) => Pin::new(stream).poll_write(cx, data),
            Line::Kernel(stream) => Pin::new(stream).poll_write(cx, data),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Line::Brisk(stream) => Pin::new(stream).poll_flush(cx),
            Line::Kernel(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Line::Brisk(stream) => Pin::new(stream).poll_shutdown(cx),
            Line::Kernel(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

impl AsyncRead for LineRead<'_> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            LineRead::Brisk(read) => Pin::new(read).poll_read(cx, buffer),
            LineRead::Kernel(read) => Pin::new(read).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for LineWrite<'_> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            LineWrite::Brisk(write) => Pin::new(write).poll_write(cx, data),
            LineWrite::Kernel(write) => Pin::new(write).poll_write(cx, data),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            LineWrite::Brisk(write) => Pin::new(write).poll_flush(cx),
            LineWrite::Kernel(write) => Pin::new(write).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            LineWrite::Brisk(write) => Pin::new(write).poll_shutdown(cx),
            LineWrite::Kernel(write) => Pin::new(write).poll_shutdown(cx),
        }
    }
}

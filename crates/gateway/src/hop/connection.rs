//! A connection over brisk's TCP or the kernel's.
//!
//! The hop uses brisk's TCP, or the kernel's if the path carries nothing else. Clients of an edge, and of a
//! frontend with a device for clients, use brisk's TCP, unless the device leaves them to the kernel. All
//! other clients, and the origins, use the kernel's.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use brisk_packet_io::sockopt;
use brisk_runtime::ConnStats;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, tcp};

use crate::io::{Sink, Source, failed, reset};

/// Payload bytes of a segment if the real size is unknown.
const USUAL_SEGMENT: usize = 1400;
/// Interval between two checks whether all bytes are acknowledged.
pub(crate) const ACK_CHECK: Duration = Duration::from_millis(10);

/// A connection: of the hop before its first message, of a client or of an origin.
#[derive(Debug)]
pub enum Connection {
    /// Over brisk's TCP.
    Brisk(brisk_runtime::TcpStream),
    /// Over the kernel's TCP.
    Kernel(TcpStream),
}

impl Connection {
    /// Returns the counters of the connection; `None` over the kernel's TCP.
    pub fn stats(&self) -> Option<ConnStats> {
        match self {
            Connection::Brisk(stream) => stream.stats(),
            Connection::Kernel(_) => None,
        }
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Connection::Brisk(stream) => Ok(stream.local_addr()),
            Connection::Kernel(stream) => stream.local_addr(),
        }
    }

    /// Returns the kernel's socket; `None` over brisk's TCP.
    pub(crate) fn socket(&self) -> Option<&TcpStream> {
        match self {
            Connection::Brisk(_) => None,
            Connection::Kernel(stream) => Some(stream),
        }
    }

    /// Returns the addresses of both ends; `None` over the kernel's TCP.
    pub(crate) fn ends(&self) -> Option<(IpAddr, IpAddr)> {
        match self {
            Connection::Brisk(stream) => Some((stream.local_addr().ip(), stream.peer_addr().ip())),
            Connection::Kernel(_) => None,
        }
    }

    /// Returns the payload bytes of a segment.
    pub(crate) fn segment(&self) -> usize {
        self.stats().map_or(USUAL_SEGMENT, |stats| stats.mss as usize)
    }

    /// Waits until the connection fails.
    pub(crate) async fn failed(&self) -> io::Error {
        match self {
            Connection::Brisk(stream) => stream.failed().await,
            Connection::Kernel(stream) => failed(stream).await,
        }
    }

    /// Waits until the peer has acknowledged all written bytes, or the connection has failed.
    pub(crate) async fn acknowledged(&self) {
        let acknowledged = async {
            while self.unacknowledged() > 0 {
                tokio::time::sleep(ACK_CHECK).await;
            }
        };
        tokio::select! {
            biased;
            () = acknowledged => {}
            _ = self.failed() => {}
        }
    }

    /// Returns the number of written bytes that the peer has not acknowledged.
    pub(crate) fn unacknowledged(&self) -> usize {
        match self {
            Connection::Brisk(stream) => stream.stats().map_or(0, |stats| stats.send_queue),
            Connection::Kernel(stream) => sockopt::unacknowledged(stream.as_fd()).unwrap_or(0),
        }
    }

    /// Makes dropping the connection reset it.
    pub(crate) fn reset(&self) {
        match self {
            Connection::Brisk(stream) => stream.set_linger(Some(Duration::ZERO)),
            Connection::Kernel(stream) => reset(stream),
        }
    }

    pub(crate) fn split(&mut self) -> (ConnectionRead<'_>, ConnectionWrite<'_>) {
        match self {
            Connection::Brisk(stream) => {
                let (read, write) = stream.split();
                (ConnectionRead::Brisk(read), ConnectionWrite::Brisk(write))
            }
            Connection::Kernel(stream) => {
                let (read, write) = stream.split();
                (ConnectionRead::Kernel(read), ConnectionWrite::Kernel(write))
            }
        }
    }
}

pub(crate) enum ConnectionRead<'a> {
    Brisk(brisk_runtime::ReadHalf<'a>),
    Kernel(tcp::ReadHalf<'a>),
}

pub(crate) enum ConnectionWrite<'a> {
    Brisk(brisk_runtime::WriteHalf<'a>),
    Kernel(tcp::WriteHalf<'a>),
}

impl Source for ConnectionRead<'_> {
    async fn failed(&self) -> io::Error {
        match self {
            ConnectionRead::Brisk(read) => read.failed().await,
            ConnectionRead::Kernel(read) => failed(read.as_ref()).await,
        }
    }

    fn socket(&self) -> Option<&TcpStream> {
        match self {
            ConnectionRead::Brisk(_) => None,
            ConnectionRead::Kernel(read) => Source::socket(read),
        }
    }
}

impl Sink for ConnectionWrite<'_> {
    fn poll_write_last(&mut self, cx: &mut Context<'_>, last: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            ConnectionWrite::Brisk(write) => Pin::new(write).poll_write(cx, last),
            ConnectionWrite::Kernel(write) => write.poll_write_last(cx, last),
        }
    }

    fn socket(&self) -> Option<&TcpStream> {
        match self {
            ConnectionWrite::Brisk(_) => None,
            ConnectionWrite::Kernel(write) => Sink::socket(write),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Connection::Brisk(stream) => Pin::new(stream).poll_read(cx, buffer),
            Connection::Kernel(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Connection::Brisk(stream) => Pin::new(stream).poll_write(cx, data),
            Connection::Kernel(stream) => Pin::new(stream).poll_write(cx, data),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Connection::Brisk(stream) => Pin::new(stream).poll_flush(cx),
            Connection::Kernel(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Connection::Brisk(stream) => Pin::new(stream).poll_shutdown(cx),
            Connection::Kernel(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

impl AsyncRead for ConnectionRead<'_> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ConnectionRead::Brisk(read) => Pin::new(read).poll_read(cx, buffer),
            ConnectionRead::Kernel(read) => Pin::new(read).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for ConnectionWrite<'_> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            ConnectionWrite::Brisk(write) => Pin::new(write).poll_write(cx, data),
            ConnectionWrite::Kernel(write) => Pin::new(write).poll_write(cx, data),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ConnectionWrite::Brisk(write) => Pin::new(write).poll_flush(cx),
            ConnectionWrite::Kernel(write) => Pin::new(write).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ConnectionWrite::Brisk(write) => Pin::new(write).poll_shutdown(cx),
            ConnectionWrite::Kernel(write) => Pin::new(write).poll_shutdown(cx),
        }
    }
}

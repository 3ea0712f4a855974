//! The two halves of a relayed connection, over the kernel's TCP or brisk's, and the relay's buffer.

use std::cell::RefCell;
use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::net::SendFlags;
use tokio::io::{AsyncRead, AsyncWrite, Interest};
use tokio::net::{TcpStream, tcp};

/// Bytes of one read.
pub(crate) const CHUNK: usize = 16 << 10;

/// Disables Nagle's algorithm on a kernel socket, and enables keepalive, so that a peer that has vanished
/// does not keep its slot for ever. An accepted socket inherits both from its listener.
pub(crate) fn prepare(socket: &impl AsFd) {
    let socket = socket2::SockRef::from(socket);
    let alive = socket2::TcpKeepalive::new()
        .with_time(Duration::from_secs(60))
        .with_interval(Duration::from_secs(15));
    // Without these options the socket is only slower or lives longer.
    let _ = socket.set_tcp_nodelay(true);
    let _ = socket.set_tcp_keepalive(&alive.with_retries(4));
}

/// Makes dropping the socket reset the connection.
pub(crate) fn reset(socket: &TcpStream) {
    // It fails only if the connection has ended already.
    let _ = socket.set_zero_linger();
}

/// Waits until the connection fails.
pub(crate) async fn failed(socket: &TcpStream) -> io::Error {
    let ready = socket.ready(Interest::ERROR).await;
    // The kernel reports the error once: a concurrent write may have received it.
    let error = ready.and_then(|_| socket.take_error()).unwrap_or_else(Some);
    error.unwrap_or_else(|| io::ErrorKind::ConnectionReset.into())
}

/// The reading half of a connection, whose failure can be awaited without a read.
pub(crate) trait Source: AsyncRead + Unpin {
    /// Waits until the connection fails.
    fn failed(&self) -> impl Future<Output = io::Error> + Send;

    /// Returns the kernel's socket; `None` over brisk's TCP.
    fn socket(&self) -> Option<&TcpStream> {
        None
    }
}

impl Source for tcp::ReadHalf<'_> {
    async fn failed(&self) -> io::Error {
        failed(self.as_ref()).await
    }

    fn socket(&self) -> Option<&TcpStream> {
        Some(self.as_ref())
    }
}

/// The writing half of a connection, which can send the FIN together with the last bytes.
pub(crate) trait Sink: AsyncWrite + Unpin {
    /// Like `poll_write`, for the last bytes before a shutdown. They may wait for it.
    fn poll_write_last(&mut self, cx: &mut Context<'_>, last: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(self).poll_write(cx, last)
    }

    /// Returns the kernel's socket; `None` over brisk's TCP. If all received data was read, dropping the
    /// socket sends a FIN like a shutdown.
    fn socket(&self) -> Option<&TcpStream> {
        None
    }
}

impl Sink for tcp::WriteHalf<'_> {
    /// Sends the last bytes and the FIN together. Otherwise the kernel sends the FIN in a packet of its own,
    /// which costs as much as one with data.
    fn poll_write_last(&mut self, cx: &mut Context<'_>, last: &[u8]) -> Poll<io::Result<usize>> {
        let socket: &TcpStream = (*self).as_ref();
        let send = || Ok(rustix::net::send(socket, last, SendFlags::MORE | SendFlags::NOSIGNAL)?);
        loop {
            ready!(socket.poll_write_ready(cx))?;
            match socket.try_io(Interest::WRITABLE, send) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => return Poll::Ready(sent),
            }
        }
    }

    fn socket(&self) -> Option<&TcpStream> {
        Some(self.as_ref())
    }
}

thread_local! {
    /// A buffer for the bytes between a read and the write right after it, so that connections need no
    /// buffers of their own.
    static CHUNK_BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; CHUNK]);
}

/// Calls `use_it` with a buffer of [`CHUNK`] bytes with arbitrary content.
pub(crate) fn with_chunk<T>(use_it: impl FnOnce(&mut [u8]) -> T) -> T {
    CHUNK_BUFFER.with_borrow_mut(|chunk| use_it(chunk))
}

//! [`TcpStream`]: a connection, with the names and meanings of `tokio::net::TcpStream`.

pub(crate) mod split;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use brisk_tcp::config::KeepaliveConfig;
use brisk_tcp::connection::ConnStats;
use bytes::Bytes;

use crate::connection::{Connection, reads_and_writes};
use split::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, WriteHalf};

/// A TCP connection between a local and a remote end.
///
/// [`Endpoint::connect`](crate::Endpoint::connect), [`TcpSocket::connect`](crate::TcpSocket::connect) and
/// [`TcpListener::accept`](crate::TcpListener::accept) create it. Reading and writing go through
/// [`AsyncRead`](tokio::io::AsyncRead) and [`AsyncWrite`](tokio::io::AsyncWrite). Dropping it closes the
/// connection gracefully: the stack still delivers the written data. If received data was not read, dropping
/// it resets the connection, as RFC 9293 section 3.6.1 requires.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use brisk_runtime::memory::{self, LinkSpec};
/// # let (client, server) = memory::network(&LinkSpec::default(), 1)?;
/// # use brisk_runtime::TcpListener;
/// # let listener = TcpListener::bind(&server, "10.0.0.2:80".parse()?)?;
/// # let (stream, accepted) = tokio::join!(client.connect(listener.local_addr()), listener.accept());
/// # let (mut stream, (peer, _)) = (stream?, accepted?);
/// use brisk_runtime::KeepaliveConfig;
/// use bytes::Bytes;
/// use std::time::Duration;
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// stream.set_nodelay(true);
/// stream.set_keepalive(Some(KeepaliveConfig::default()));
/// stream.set_user_timeout(Some(Duration::from_secs(30)));
/// stream.write_all(b"hello").await?;
///
/// let mut first = [0];
/// assert_eq!(peer.peek(&mut first).await?, 1);
/// assert_eq!(peer.read_bytes(100).await?, "hello");
/// peer.write_all_bytes(Bytes::from_static(b"welcome")).await?;
/// let mut response = [0; 7];
/// stream.read_exact(&mut response).await?;
///
/// println!("{} -> {}: {:?}", stream.local_addr(), stream.peer_addr(), stream.stats());
/// // Dropping the stream would close it in order. Both of these reset it:
/// stream.set_linger(Some(Duration::ZERO));
/// stream.abort();
/// assert_eq!(peer.failed().await.kind(), std::io::ErrorKind::ConnectionReset);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TcpStream {
    connection: Arc<Connection>,
}

impl TcpStream {
    pub(crate) fn new(connection: Connection) -> TcpStream {
        TcpStream { connection: Arc::new(connection) }
    }

    pub(crate) fn from_halves(connection: Arc<Connection>) -> TcpStream {
        TcpStream { connection }
    }

    /// Waits for the handshake of a connection that [`connect_with_data`](crate::Endpoint::connect_with_data)
    /// opened.
    ///
    /// # Errors
    /// Those of [`Endpoint::connect`](crate::Endpoint::connect) that come from the other side.
    pub async fn connected(&self) -> io::Result<()> {
        self.connection.connected().await
    }

    /// Waits until the connection fails, for instance by a reset or a timeout. Never resolves if both sides
    /// close normally. Use it in tasks that neither read nor write, because reading and writing return the
    /// failure.
    pub async fn failed(&self) -> io::Error {
        self.connection.failed().await
    }

    /// Returns the address and port of this end.
    pub fn local_addr(&self) -> SocketAddr {
        self.connection.local_addr()
    }

    /// Returns the address and port of the other end.
    pub fn peer_addr(&self) -> SocketAddr {
        self.connection.remote_addr()
    }

    /// Copies received bytes into `buffer` without removing them. Waits for at least one; 0 means the end of
    /// the stream.
    ///
    /// # Errors
    /// Those of reading.
    pub async fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.connection.peek(buffer).await
    }

    /// Like [`peek`](TcpStream::peek), for use in a `poll` function.
    pub fn poll_peek(&self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        self.connection.poll_peek(cx, buffer)
    }

    /// Removes and returns at most `max` received bytes. Waits for at least one; an empty result means the
    /// end of the stream, or that `max` is 0. Returns one contiguous piece, possibly less than has arrived.
    /// Long pieces are not copied from the buffer into which the device read them; short ones are.
    ///
    /// The result keeps its whole buffer allocated: some 64 kB, and after losses up to the connection's
    /// receive buffer. [`max_buffer_bytes`](crate::StackConfig::max_buffer_bytes) does not limit this memory.
    /// Use it for bytes that the program soon forwards or drops.
    ///
    /// # Errors
    /// Those of reading.
    pub async fn read_bytes(&self, max: usize) -> io::Result<Bytes> {
        self.connection.read_bytes(max).await
    }

    /// Like [`read_bytes`](TcpStream::read_bytes), for use in a `poll` function.
    pub fn poll_read_bytes(&self, cx: &mut Context<'_>, max: usize) -> Poll<io::Result<Bytes>> {
        self.connection.poll_read_bytes(cx, max)
    }

    /// Sends bytes from the front of `bytes`, and removes them from it. Waits for space for at least one
    /// byte; returns the number of bytes. If these are 4 kB or more, they are sent from the buffer of `bytes`
    /// without a copy, and are released when the peer has acknowledged them.
    ///
    /// Such bytes count towards the send buffer and
    /// [`max_buffer_bytes`](crate::StackConfig::max_buffer_bytes). A slice of a longer buffer keeps the whole
    /// buffer allocated until the peer has acknowledged the slice. If the future is dropped, the bytes that
    /// are no longer in `bytes` have been queued for sending.
    ///
    /// # Errors
    /// Those of writing.
    pub async fn write_bytes(&self, bytes: &mut Bytes) -> io::Result<usize> {
        self.connection.write_bytes(bytes).await
    }

    /// Like [`write_bytes`](TcpStream::write_bytes), for use in a `poll` function.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use brisk_runtime::memory::{self, LinkSpec};
    /// # let (client, server) = memory::network(&LinkSpec::default(), 1)?;
    /// # use brisk_runtime::TcpListener;
    /// # let listener = TcpListener::bind(&server, "10.0.0.2:80".parse()?)?;
    /// # let (stream, accepted) = tokio::join!(client.connect(listener.local_addr()), listener.accept());
    /// # let (stream, (peer, _)) = (stream?, accepted?);
    /// use bytes::Bytes;
    /// use std::future::poll_fn;
    ///
    /// let mut bytes = Bytes::from_static(b"hello");
    /// let written = poll_fn(|cx| stream.poll_write_bytes(cx, &mut bytes)).await?;
    /// assert_eq!((written, bytes.len()), (5, 0));
    ///
    /// let mut first = [0];
    /// poll_fn(|cx| peer.poll_peek(cx, &mut first)).await?;
    /// assert_eq!(poll_fn(|cx| peer.poll_read_bytes(cx, 100)).await?, "hello");
    /// # Ok(())
    /// # }
    /// ```
    pub fn poll_write_bytes(&self, cx: &mut Context<'_>, bytes: &mut Bytes) -> Poll<io::Result<usize>> {
        self.connection.poll_write_bytes(cx, bytes)
    }

    /// Sends all of `bytes`, like [`write_bytes`](TcpStream::write_bytes). If the future is dropped before it
    /// is ready, the number of queued bytes is unknown.
    ///
    /// # Errors
    /// Those of writing.
    pub async fn write_all_bytes(&self, bytes: Bytes) -> io::Result<()> {
        self.connection.write_all_bytes(bytes).await
    }

    /// Switches Nagle's algorithm off (`true`) or on.
    pub fn set_nodelay(&self, nodelay: bool) {
        self.connection.set_nodelay(nodelay);
    }

    /// Sets the effect of dropping the stream. `Some(0 s)` resets the connection and discards unsent data.
    /// `None` and any other time close it gracefully, without waiting.
    pub fn set_linger(&self, linger: Option<Duration>) {
        self.connection.set_reset_on_drop(linger == Some(Duration::ZERO));
    }

    /// Sets, changes or (`None`) switches off keepalive.
    pub fn set_keepalive(&self, keepalive: Option<KeepaliveConfig>) {
        self.connection.set_keepalive(keepalive);
    }

    /// Sets the longest time that data may stay unacknowledged before the connection fails (RFC 5482). With
    /// `None` the connection fails after a number of retransmissions.
    pub fn set_user_timeout(&self, timeout: Option<Duration>) {
        self.connection.set_user_timeout(timeout);
    }

    /// Resets the connection now. Later reads and writes fail.
    pub fn abort(&self) {
        self.connection.abort();
    }

    /// Returns statistics of the connection: round-trip time, window, counters. `None` once the stack has
    /// forgotten it.
    pub fn stats(&self) -> Option<ConnStats> {
        self.connection.stats()
    }

    pub(crate) fn waits_for_first_write(&self) -> bool {
        self.connection.waits_for_first_write()
    }

    /// Returns the time from the SYN to the start of a hedging second connection. `None` if none is needed:
    /// this connection has no request on its SYN, or the path has already passed a response.
    pub(crate) fn hedge_wait(&self) -> Option<Duration> {
        self.connection.hedge_wait()
    }

    /// Records that the hedging second connection was answered first.
    pub(crate) fn report_hedge_won(&self) {
        self.connection.report_hedge_won();
    }

    pub(crate) fn poll_connected(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.connection.poll_connected(cx)
    }

    /// Returns a second handle, to observe the connection while another task owns the stream.
    pub fn handle(&self) -> StreamHandle {
        StreamHandle { connection: self.connection.clone() }
    }

    /// Splits into halves that borrow the stream.
    pub fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        (ReadHalf::new(&self.connection), WriteHalf::new(&self.connection))
    }

    /// Splits into halves that different tasks can own. Dropping the write half closes for writing.
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        (OwnedReadHalf::new(self.connection.clone()), OwnedWriteHalf::new(self.connection))
    }
}

/// A second handle to the connection of a [`TcpStream`]. The connection is closed when all its handles are
/// dropped; while a `StreamHandle` exists, dropping the stream does not close it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use brisk_runtime::memory::{self, LinkSpec};
/// # let (client, server) = memory::network(&LinkSpec::default(), 1)?;
/// # use brisk_runtime::TcpListener;
/// # let address = "10.0.0.2:80".parse()?;
/// # let listener = TcpListener::bind(&server, address)?;
/// use brisk_runtime::{ConnectConfig, StreamHandle};
/// use tokio::io::AsyncReadExt;
///
/// let (mut stream, _) = client.connect_with_data(address, b"hello", &ConnectConfig::default())?;
/// let handle: StreamHandle = stream.handle();
/// let reading = tokio::spawn(async move { stream.read_to_end(&mut Vec::new()).await });
/// handle.connected().await?;
/// println!("round-trip time {:?}", handle.stats().map(|stats| stats.srtt));
/// handle.shutdown()?;
/// let (peer, _) = listener.accept().await?;
/// # assert_eq!(peer.read_bytes(10).await?, "hello");
/// drop(peer);
/// handle.closed().await;
/// assert_eq!(reading.await??, 0);
/// handle.abort(); // The connection has ended already, so this has no effect.
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct StreamHandle {
    connection: Arc<Connection>,
}

impl StreamHandle {
    /// See [`TcpStream::stats`].
    pub fn stats(&self) -> Option<ConnStats> {
        self.connection.stats()
    }

    /// See [`TcpStream::connected`].
    ///
    /// # Errors
    /// Those of [`TcpStream::connected`].
    pub async fn connected(&self) -> io::Result<()> {
        self.connection.connected().await
    }

    /// Closes for writing; the stream can still be read.
    ///
    /// # Errors
    /// If the connection was reset or lost.
    pub fn shutdown(&self) -> io::Result<()> {
        self.connection.shutdown()
    }

    /// See [`TcpStream::abort`].
    pub fn abort(&self) {
        self.connection.abort();
    }

    /// Waits until the connection has ended: it has failed, or both sides have closed and all data is
    /// acknowledged.
    pub async fn closed(&self) {
        self.connection.ended().await;
    }
}

reads_and_writes!(read TcpStream, connection);
reads_and_writes!(write TcpStream, connection);

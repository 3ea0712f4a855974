//! The two halves of a [`TcpStream`], borrowed or owned, as in `tokio::net::tcp`.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use brisk_tcp::connection::ConnStats;
use bytes::Bytes;

use super::TcpStream;
use crate::connection::{Connection, reads_and_writes};

/// The reading half of a borrowed stream.
#[derive(Debug)]
pub struct ReadHalf<'a>(&'a Arc<Connection>);

/// The writing half of a borrowed stream.
#[derive(Debug)]
pub struct WriteHalf<'a>(&'a Arc<Connection>);

/// The reading half of a stream that was split. The connection closes when both halves are dropped.
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
/// use brisk_runtime::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, WriteHalf};
/// use bytes::Bytes;
///
/// let (mut reader, mut writer): (OwnedReadHalf, OwnedWriteHalf) = stream.into_split();
/// let writing = tokio::spawn(async move {
///     writer.write_bytes(&mut Bytes::from_static(b"hel")).await?;
///     writer.write_all_bytes(Bytes::from_static(b"lo")).await?;
///     std::io::Result::Ok(writer)
/// });
/// peer.write_all_bytes(Bytes::from_static(b"welcome")).await?;
/// let mut first = [0];
/// assert_eq!(reader.peek(&mut first).await?, 1);
/// assert_eq!(reader.read_bytes(100).await?, "welcome");
///
/// // The halves are a stream again. Halves of different streams give a `ReuniteError`.
/// let mut stream = reader.reunite(writing.await??)?;
/// let (_reader, _writer): (ReadHalf<'_>, WriteHalf<'_>) = stream.split();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct OwnedReadHalf {
    connection: Arc<Connection>,
}

/// The writing half of a stream that was split. Dropping it closes the connection for writing.
#[derive(Debug)]
pub struct OwnedWriteHalf {
    connection: Arc<Connection>,
    shutdown_on_drop: bool,
}

/// Error of [`OwnedReadHalf::reunite`]: the two halves, which it contains, belong to different streams.
#[derive(Debug)]
pub struct ReuniteError(pub OwnedReadHalf, pub OwnedWriteHalf);

impl fmt::Display for ReuniteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the two halves belong to different streams")
    }
}

impl std::error::Error for ReuniteError {}

impl<'a> ReadHalf<'a> {
    pub(crate) fn new(connection: &'a Arc<Connection>) -> Self {
        ReadHalf(connection)
    }

    /// See [`TcpStream::failed`].
    pub async fn failed(&self) -> io::Error {
        self.0.failed().await
    }
}

impl<'a> WriteHalf<'a> {
    pub(crate) fn new(connection: &'a Arc<Connection>) -> Self {
        WriteHalf(connection)
    }
}

impl OwnedReadHalf {
    pub(crate) fn new(connection: Arc<Connection>) -> Self {
        OwnedReadHalf { connection }
    }

    /// Joins the two halves of a stream.
    ///
    /// # Errors
    /// Fails if `other` belongs to another stream; the error contains both halves.
    pub fn reunite(self, mut other: OwnedWriteHalf) -> Result<TcpStream, ReuniteError> {
        if !Arc::ptr_eq(&self.connection, &other.connection) {
            return Err(ReuniteError(self, other));
        }
        other.shutdown_on_drop = false;
        Ok(TcpStream::from_halves(self.connection))
    }

    /// See [`TcpStream::failed`].
    pub async fn failed(&self) -> io::Error {
        self.connection.failed().await
    }

    /// See [`TcpStream::peek`].
    ///
    /// # Errors
    /// Those of reading.
    pub async fn peek(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.connection.peek(buffer).await
    }

    /// See [`TcpStream::read_bytes`].
    ///
    /// # Errors
    /// Those of reading.
    pub async fn read_bytes(&mut self, max: usize) -> io::Result<Bytes> {
        self.connection.read_bytes(max).await
    }

    /// See [`TcpStream::local_addr`].
    pub fn local_addr(&self) -> SocketAddr {
        self.connection.local_addr()
    }

    /// See [`TcpStream::peer_addr`].
    pub fn peer_addr(&self) -> SocketAddr {
        self.connection.remote_addr()
    }

    /// See [`TcpStream::stats`].
    pub fn stats(&self) -> Option<ConnStats> {
        self.connection.stats()
    }
}

impl OwnedWriteHalf {
    pub(crate) fn new(connection: Arc<Connection>) -> Self {
        OwnedWriteHalf { connection, shutdown_on_drop: true }
    }

    /// Drops the half without closing for writing: the stream then stays open until the read half is dropped
    /// too.
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
    /// let (reader, writer) = stream.into_split();
    /// writer.forget();
    /// peer.abort();
    /// assert_eq!(reader.failed().await.kind(), std::io::ErrorKind::ConnectionReset);
    /// # Ok(())
    /// # }
    /// ```
    pub fn forget(mut self) {
        self.shutdown_on_drop = false;
    }

    /// See [`TcpStream::write_bytes`].
    ///
    /// # Errors
    /// Those of writing.
    pub async fn write_bytes(&mut self, bytes: &mut Bytes) -> io::Result<usize> {
        self.connection.write_bytes(bytes).await
    }

    /// See [`TcpStream::write_all_bytes`].
    ///
    /// # Errors
    /// Those of writing.
    pub async fn write_all_bytes(&mut self, bytes: Bytes) -> io::Result<()> {
        self.connection.write_all_bytes(bytes).await
    }

    /// See [`TcpStream::abort`].
    pub fn abort(&self) {
        self.connection.abort();
    }

    /// See [`TcpStream::local_addr`].
    pub fn local_addr(&self) -> SocketAddr {
        self.connection.local_addr()
    }

    /// See [`TcpStream::peer_addr`].
    pub fn peer_addr(&self) -> SocketAddr {
        self.connection.remote_addr()
    }

    /// See [`TcpStream::stats`].
    pub fn stats(&self) -> Option<ConnStats> {
        self.connection.stats()
    }
}

impl Drop for OwnedWriteHalf {
    fn drop(&mut self) {
        if self.shutdown_on_drop {
            // A connection that has ended needs no FIN.
            let _ = self.connection.shutdown();
        }
    }
}

reads_and_writes!(read ReadHalf<'_>, 0);
reads_and_writes!(read OwnedReadHalf, connection);
reads_and_writes!(write WriteHalf<'_>, 0);
reads_and_writes!(write OwnedWriteHalf, connection);

//! The two TCPs behind one face.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use brisk_runtime::{ConnStats, ConnectConfig, Endpoint, FastOpenConnect, TcpListener, TcpSocket};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};

/// `MSG_FASTOPEN` of `sendto(2)`: connect, with the data on the SYN if there is a cookie.
const MSG_FASTOPEN: i32 = 0x2000_0000;
/// Linux's answer to it without a cookie: connecting, and the data was not taken.
const EINPROGRESS: i32 = 115;
/// Connections that wait to be accepted.
const BACKLOG: usize = 4096;

/// Whose TCP.
#[derive(Debug)]
pub(crate) enum Side {
    Kernel { fast_open: bool },
    Ours { endpoint: Endpoint, fast_open: bool },
}

/// A connection of either.
#[derive(Debug)]
pub(crate) enum Stream {
    Kernel(tokio::net::TcpStream),
    Ours(brisk_runtime::TcpStream),
    Hedged(brisk_runtime::HedgedStream),
}

/// A listener of either.
#[derive(Debug)]
pub(crate) enum Listener {
    Kernel(tokio::net::TcpListener),
    Ours(TcpListener),
}

impl Side {
    pub(crate) fn listen(&self, local: SocketAddr, queue: u16) -> io::Result<Listener> {
        match self {
            Side::Kernel { .. } => {
                let socket = Socket::new(Domain::for_address(local), Type::STREAM, Some(Protocol::TCP))?;
                socket.set_reuse_address(true)?;
                socket.set_nonblocking(true)?;
                socket.bind(&SockAddr::from(local))?;
                socket.listen(BACKLOG as i32)?;
                Ok(Listener::Kernel(tokio::net::TcpListener::from_std(socket.into())?))
            }
            Side::Ours { endpoint, fast_open } => {
                let mut socket = TcpSocket::new(endpoint);
                socket.bind(local);
                socket.set_nodelay(true);
                if *fast_open {
                    socket.fast_open(queue);
                }
                socket.listen(BACKLOG).map(Listener::Ours)
            }
        }
    }

    /// Connects and sends `request` as early as may be. With Fast Open the connection need not stand when this returns.
    pub(crate) async fn ask(&self, to: SocketAddr, request: &[u8]) -> io::Result<Stream> {
        match self {
            Side::Kernel { fast_open: true } => fast_open_by_kernel(to, request).await,
            Side::Ours { endpoint, fast_open: true } => {
                let mut tcp = endpoint.tcp_config().clone();
                tcp.nodelay = true;
                let fast_open = Some(FastOpenConnect::insured());
                let config = ConnectConfig { tcp, fast_open, ..ConnectConfig::default() };
                endpoint.connect_hedged(to, request, &config).map(Stream::Hedged)
            }
            Side::Kernel { fast_open: false } | Side::Ours { fast_open: false, .. } => {
                let mut stream = self.connect(to).await?;
                stream.write_all(request).await?;
                Ok(stream)
            }
        }
    }

    /// Connects without data, whatever is said of Fast Open.
    pub(crate) async fn connect(&self, to: SocketAddr) -> io::Result<Stream> {
        let stream = match self {
            Side::Kernel { .. } => Stream::Kernel(tokio::net::TcpStream::connect(to).await?),
            Side::Ours { endpoint, .. } => Stream::Ours(endpoint.connect(to).await?),
        };
        stream.set_nodelay()?;
        Ok(stream)
    }
}

/// What `curl --tcp-fastopen` does.
async fn fast_open_by_kernel(to: SocketAddr, request: &[u8]) -> io::Result<Stream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    let taken = match socket.send_to_with_flags(request, &SockAddr::from(to), MSG_FASTOPEN) {
        Ok(taken) => taken,
        Err(error) if error.raw_os_error() == Some(EINPROGRESS) => 0,
        Err(error) => return Err(error),
    };
    let mut stream = tokio::net::TcpStream::from_std(socket.into())?;
    if taken < request.len() {
        stream.writable().await?;
        stream.write_all(&request[taken..]).await?;
    }
    Ok(Stream::Kernel(stream))
}

impl Listener {
    pub(crate) async fn accept(&self) -> io::Result<Stream> {
        match self {
            Listener::Kernel(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok(Stream::Kernel(stream))
            }
            Listener::Ours(listener) => Ok(Stream::Ours(listener.accept().await?.0)),
        }
    }
}

impl Stream {
    fn set_nodelay(&self) -> io::Result<()> {
        match self {
            Stream::Kernel(stream) => stream.set_nodelay(true),
            Stream::Ours(stream) => {
                stream.set_nodelay(true);
                Ok(())
            }
            // Its configuration says so.
            Stream::Hedged(_) => Ok(()),
        }
    }

    /// What our TCP says about the connection; the kernel is not asked.
    pub(crate) fn stats(&self) -> Option<ConnStats> {
        match self {
            Stream::Kernel(_) => None,
            Stream::Ours(stream) => stream.stats(),
            Stream::Hedged(stream) => stream.stats(),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Kernel(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Ours(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Hedged(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Kernel(stream) => Pin::new(stream).poll_write(cx, buf),
            Stream::Ours(stream) => Pin::new(stream).poll_write(cx, buf),
            Stream::Hedged(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Kernel(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Ours(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Hedged(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Kernel(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Ours(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Hedged(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

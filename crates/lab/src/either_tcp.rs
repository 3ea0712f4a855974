//! One interface to the kernel's TCP and to brisk's, so that measurements of both differ only in the TCP.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use brisk_runtime::{ConnStats, ConnectConfig, Endpoint, FastOpenConnect, FastOpenListen, TcpListener};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpSocket;

/// `MSG_FASTOPEN` of `sendto(2)`: connect, with the data on the SYN if there is a cookie.
const MSG_FASTOPEN: i32 = 0x2000_0000;
/// Linux's error if there is no cookie: the SYN was sent without the data.
const EINPROGRESS: i32 = 115;
/// Maximum number of connections that wait to be accepted.
const BACKLOG: usize = 4096;

/// The TCP to use.
#[derive(Debug)]
pub enum EitherTcp {
    /// The kernel's TCP, in the namespace of the calling thread.
    Kernel {
        /// True to send requests on the SYN.
        fast_open: bool,
        /// Congestion control of the sockets; `None`: that of the route or the system.
        congestion: Option<&'static str>,
    },
    /// A stack of brisk.
    Ours {
        /// The stack.
        endpoint: Endpoint,
        /// True to send requests on the SYN, and to accept them.
        fast_open: bool,
    },
}

/// A connection of either TCP.
#[derive(Debug)]
pub enum Stream {
    /// A connection of the kernel.
    Kernel(tokio::net::TcpStream),
    /// A connection of brisk.
    Ours(brisk_runtime::TcpStream),
    /// A connection of brisk with a request over Fast Open, which is repeated on a second connection if
    /// necessary.
    Hedged(brisk_runtime::HedgedStream),
}

/// A listener of either TCP.
#[derive(Debug)]
pub enum Listener {
    /// A listener of the kernel.
    Kernel(tokio::net::TcpListener),
    /// A listener of brisk.
    Ours(TcpListener),
}

impl EitherTcp {
    /// Listens. With Fast Open, brisk's TCP accepts at most `queue` unacknowledged connections. For the
    /// kernel, a sysctl enables Fast Open.
    ///
    /// # Errors
    /// Those of `bind` and `listen`.
    pub fn listen(&self, local: SocketAddr, queue: u16) -> io::Result<Listener> {
        match self {
            EitherTcp::Kernel { congestion, .. } => {
                let socket = kernel_socket(local, *congestion)?;
                socket.set_reuse_address(true)?;
                socket.bind(&SockAddr::from(local))?;
                socket.listen(BACKLOG as i32)?;
                Ok(Listener::Kernel(tokio::net::TcpListener::from_std(socket.into())?))
            }
            EitherTcp::Ours { endpoint, fast_open } => {
                let mut socket = brisk_runtime::TcpSocket::new(endpoint);
                socket.bind(local);
                socket.set_nodelay(true);
                if *fast_open {
                    // The kernel has one limit for all clients and none per client.
                    let queue = FastOpenListen {
                        max_pending: queue,
                        max_per_ip: queue.max(1),
                        ..brisk_sim::fast_open::listening(endpoint.tcp_config())
                    };
                    socket.set_fast_open_listen(Some(queue));
                }
                socket.listen(BACKLOG).map(Listener::Ours)
            }
        }
    }

    /// Connects and sends `request` as early as possible. With Fast Open the handshake may still be in
    /// progress when this returns.
    pub async fn ask(&self, to: SocketAddr, request: &[u8]) -> io::Result<Stream> {
        match self {
            EitherTcp::Kernel { fast_open: true, congestion } => {
                fast_open_by_kernel(to, request, *congestion).await
            }
            EitherTcp::Ours { endpoint, fast_open: true } => {
                let mut tcp = endpoint.tcp_config().clone();
                tcp.nodelay = true;
                let fast_open = Some(FastOpenConnect::insured());
                let config = ConnectConfig { tcp, fast_open, ..ConnectConfig::default() };
                endpoint.connect_hedged(to, request, &config).map(Stream::Hedged)
            }
            EitherTcp::Kernel { fast_open: false, .. } | EitherTcp::Ours { fast_open: false, .. } => {
                let mut stream = self.connect(to).await?;
                stream.write_all(request).await?;
                Ok(stream)
            }
        }
    }

    /// Connects without data, even if Fast Open is enabled.
    ///
    /// # Errors
    /// Those of `connect`.
    pub async fn connect(&self, to: SocketAddr) -> io::Result<Stream> {
        let stream = match self {
            EitherTcp::Kernel { congestion, .. } => {
                let socket = TcpSocket::from_std_stream(kernel_socket(to, *congestion)?.into());
                Stream::Kernel(socket.connect(to).await?)
            }
            EitherTcp::Ours { endpoint, .. } => Stream::Ours(endpoint.connect(to).await?),
        };
        stream.set_nodelay()?;
        Ok(stream)
    }
}

/// Returns a non-blocking socket of the kernel for the family of `address`.
fn kernel_socket(address: SocketAddr, congestion: Option<&'static str>) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    if let Some(name) = congestion {
        let refused =
            |error| io::Error::other(format!("the kernel refuses the congestion control {name}: {error}"));
        socket.set_tcp_congestion(name.as_bytes()).map_err(refused)?;
    }
    Ok(socket)
}

/// Connects like `curl --tcp-fastopen`.
async fn fast_open_by_kernel(
    to: SocketAddr,
    request: &[u8],
    congestion: Option<&'static str>,
) -> io::Result<Stream> {
    let socket = kernel_socket(to, congestion)?;
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
    /// Returns one listener for each stack of brisk, to be used on the core of that stack.
    pub fn split(self) -> Vec<Listener> {
        match self {
            Listener::Kernel(_) => vec![self],
            Listener::Ours(listener) => listener.split().into_iter().map(Listener::Ours).collect(),
        }
    }

    /// Returns the listening address.
    ///
    /// # Errors
    /// Those of `getsockname`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Listener::Kernel(listener) => listener.local_addr(),
            Listener::Ours(listener) => Ok(listener.local_addr()),
        }
    }

    /// Accepts the next connection.
    ///
    /// # Errors
    /// Those of `accept`.
    pub async fn accept(&self) -> io::Result<Stream> {
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
            // `ask` has switched Nagle's algorithm off in the configuration of the connection.
            Stream::Hedged(_) => Ok(()),
        }
    }

    /// Returns the counters of our TCP for the connection; `None` for the kernel's.
    pub fn stats(&self) -> Option<ConnStats> {
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

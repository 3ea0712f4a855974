//! [`TcpSocket`]: a connection or listener in the making, as `tokio::net::TcpSocket`.

use std::io;
use std::net::SocketAddr;

use brisk_tcp::config::{KeepaliveConfig, SynCookies};
use brisk_tcp::{ConnectConfig, ListenConfig, TcpConfig};

use crate::endpoint::Endpoint;
use crate::listener::TcpListener;
use crate::stream::TcpStream;

/// Settings for one connection or listener before it is opened.
///
/// ```no_run
/// # async fn example(endpoint: brisk_runtime::Endpoint) -> std::io::Result<()> {
/// let mut socket = brisk_runtime::TcpSocket::new(&endpoint);
/// socket.set_nodelay(true);
/// let stream = socket.connect("10.7.0.1:80".parse().unwrap()).await?;
/// # drop(stream); Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct TcpSocket {
    endpoint: Endpoint,
    tcp: TcpConfig,
    local: Option<SocketAddr>,
    syn_cookies: SynCookies,
}

impl TcpSocket {
    /// A socket with the endpoint's settings.
    pub fn new(endpoint: &Endpoint) -> TcpSocket {
        TcpSocket {
            tcp: endpoint.tcp_config().clone(),
            endpoint: endpoint.clone(),
            local: None,
            syn_cookies: SynCookies::default(),
        }
    }

    /// Chooses the local address and port. Port 0 leaves the port to the stack.
    pub fn bind(&mut self, local: SocketAddr) {
        self.local = Some(local);
    }

    /// Every setting of the connection, to be changed in place.
    pub fn tcp_mut(&mut self) -> &mut TcpConfig {
        &mut self.tcp
    }

    /// Switches Nagle's algorithm off (`true`) or on.
    pub fn set_nodelay(&mut self, nodelay: bool) {
        self.tcp.nodelay = nodelay;
    }

    /// Sets, changes or (`None`) ends keepalive.
    pub fn set_keepalive(&mut self, keepalive: Option<KeepaliveConfig>) {
        self.tcp.keepalive = keepalive;
    }

    /// When a listener answers with SYN cookies.
    pub fn set_syn_cookies(&mut self, when: SynCookies) {
        self.syn_cookies = when;
    }

    /// Fixes the size of the send buffer in bytes: switches its autotuning off.
    pub fn set_send_buffer_size(&mut self, bytes: usize) {
        self.tcp.send_buffer.initial = bytes;
        self.tcp.send_buffer.max = bytes;
    }

    /// Fixes the size of the receive buffer in bytes: switches its autotuning off.
    pub fn set_recv_buffer_size(&mut self, bytes: usize) {
        self.tcp.receive_buffer.initial = bytes;
        self.tcp.receive_buffer.max = bytes;
    }

    /// Opens a connection to `remote` and waits for the handshake.
    ///
    /// # Errors
    /// As [`Endpoint::connect`].
    pub async fn connect(self, remote: SocketAddr) -> io::Result<TcpStream> {
        let config = ConnectConfig { tcp: self.tcp, local: self.local, fast_open: None };
        self.endpoint.connect_with(remote, &config).await
    }

    /// Listens on the bound address; at most `backlog` connections wait to be accepted.
    ///
    /// # Errors
    /// As [`TcpListener::bind_with`]; `InvalidInput` if no address was bound.
    pub fn listen(self, backlog: usize) -> io::Result<TcpListener> {
        let Some(local) = self.local else {
            let text = "a socket needs an address to listen on: call bind first";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        };
        let defaults = ListenConfig::default();
        let config = ListenConfig { tcp: self.tcp, backlog, syn_cookies: self.syn_cookies, ..defaults };
        TcpListener::bind_with(&self.endpoint, local, config)
    }
}

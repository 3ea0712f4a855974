//! [`TcpSocket`]: settings of a connection or listener before it is opened, as `tokio::net::TcpSocket`.

use std::io;
use std::net::SocketAddr;

use brisk_tcp::config::{KeepaliveConfig, SynCookies};
use brisk_tcp::fast_open::{FastOpenConnect, FastOpenListen};
use brisk_tcp::{ConnectConfig, ListenConfig, TcpConfig};

use crate::endpoint::Endpoint;
use crate::listener::TcpListener;
use crate::stream::TcpStream;

/// Settings for one connection or listener before it is opened.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use brisk_runtime::memory::{self, LinkSpec};
/// # let (client, server) = memory::network(&LinkSpec::default(), 1)?;
/// use brisk_runtime::{FastOpenConnect, FastOpenListen, KeepaliveConfig, SynCookies, TcpSocket};
///
/// let mut socket = TcpSocket::new(&server);
/// socket.bind("10.0.0.2:80".parse()?);
/// socket.set_syn_cookies(SynCookies::Always);
/// socket.set_fast_open_listen(Some(FastOpenListen { max_pending: 16, ..FastOpenListen::default() }));
/// let listener = socket.listen(1024)?;
///
/// let mut socket = TcpSocket::new(&client);
/// socket.set_nodelay(true);
/// socket.set_keepalive(Some(KeepaliveConfig::default()));
/// socket.set_send_buffer_size(64 << 10);
/// socket.set_recv_buffer_size(64 << 10);
/// socket.set_fast_open_connect(Some(FastOpenConnect::default()));
/// socket.tcp_mut().hop_limit = 32;
/// let stream = socket.connect(listener.local_addr()).await?;
/// # drop(stream);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct TcpSocket {
    endpoint: Endpoint,
    tcp: TcpConfig,
    local: Option<SocketAddr>,
    syn_cookies: SynCookies,
    fast_open_connect: Option<FastOpenConnect>,
    fast_open_listen: Option<FastOpenListen>,
}

impl TcpSocket {
    /// Creates a socket with the endpoint's settings.
    pub fn new(endpoint: &Endpoint) -> TcpSocket {
        TcpSocket {
            tcp: endpoint.tcp_config().clone(),
            endpoint: endpoint.clone(),
            local: None,
            syn_cookies: SynCookies::default(),
            fast_open_connect: None,
            fast_open_listen: None,
        }
    }

    /// Sets the local address and port. With port 0 the stack chooses the port.
    pub fn bind(&mut self, local: SocketAddr) {
        self.local = Some(local);
    }

    /// Returns all settings of the connection, to be changed in place.
    pub fn tcp_mut(&mut self) -> &mut TcpConfig {
        &mut self.tcp
    }

    /// Switches Nagle's algorithm off (`true`) or on.
    pub fn set_nodelay(&mut self, nodelay: bool) {
        self.tcp.nodelay = nodelay;
    }

    /// Sets, changes or (`None`) switches off keepalive.
    pub fn set_keepalive(&mut self, keepalive: Option<KeepaliveConfig>) {
        self.tcp.keepalive = keepalive;
    }

    /// Sets when a listener answers with SYN cookies.
    pub fn set_syn_cookies(&mut self, when: SynCookies) {
        self.syn_cookies = when;
    }

    /// Lets the listener accept data with the SYN. At most `queue` such connections wait for the client's
    /// acknowledgement (Linux: `TCP_FASTOPEN`); 0 switches Fast Open off. The application can receive the
    /// same data **more than once**, each time on another connection: use it only for requests that may be
    /// repeated.
    pub fn fast_open(&mut self, queue: u16) {
        let config = FastOpenListen { max_pending: queue, ..FastOpenListen::default() };
        self.fast_open_listen = Some(config).filter(|_| queue > 0);
    }

    /// Like [`fast_open`](TcpSocket::fast_open), with every setting.
    pub fn set_fast_open_listen(&mut self, config: Option<FastOpenListen>) {
        self.fast_open_listen = config;
    }

    /// Lets [`connect_with_data`](TcpSocket::connect_with_data), or the first write after `connect` with
    /// [`defer`](FastOpenConnect::defer), send data with the SYN. The server's application can receive it
    /// **more than once**: use it only for requests that may be repeated.
    pub fn set_fast_open_connect(&mut self, config: Option<FastOpenConnect>) {
        self.fast_open_connect = config;
    }

    /// Sets a fixed size of the send buffer, bytes, and switches its autotuning off.
    pub fn set_send_buffer_size(&mut self, bytes: usize) {
        self.tcp.send_buffer.initial = bytes;
        self.tcp.send_buffer.max = bytes;
    }

    /// Sets a fixed size of the receive buffer, bytes, and switches its autotuning off.
    pub fn set_recv_buffer_size(&mut self, bytes: usize) {
        self.tcp.receive_buffer.initial = bytes;
        self.tcp.receive_buffer.max = bytes;
    }

    /// Opens a connection to `remote` and waits for the handshake, unless the SYN waits for the first write
    /// ([`Endpoint::connect_with`]).
    ///
    /// # Errors
    /// Those of [`Endpoint::connect`].
    pub async fn connect(self, remote: SocketAddr) -> io::Result<TcpStream> {
        let (endpoint, config) = self.into_connect();
        endpoint.connect_with(remote, &config).await
    }

    /// Opens a connection to `remote` with `data`, without waiting for the handshake; returns how many bytes
    /// were queued. With Fast Open ([`set_fast_open_connect`](TcpSocket::set_fast_open_connect)) and a cookie
    /// of the server, `data` leaves with the SYN and can reach the application **more than once**.
    ///
    /// # Errors
    /// Those of [`Endpoint::connect_with_data`].
    pub fn connect_with_data(self, remote: SocketAddr, data: &[u8]) -> io::Result<(TcpStream, usize)> {
        let (endpoint, config) = self.into_connect();
        endpoint.connect_with_data(remote, data, &config)
    }

    fn into_connect(self) -> (Endpoint, ConnectConfig) {
        let TcpSocket { endpoint, tcp, local, fast_open_connect: fast_open, .. } = self;
        (endpoint, ConnectConfig { tcp, local, fast_open, ..ConnectConfig::default() })
    }

    /// Listens on the bound address; at most `backlog` connections wait to be accepted.
    ///
    /// # Errors
    /// Those of [`TcpListener::bind_with`]; `InvalidInput` if no address was bound.
    pub fn listen(self, backlog: usize) -> io::Result<TcpListener> {
        let Some(local) = self.local else {
            let text = "a socket needs an address to listen on: call bind first";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        };
        let defaults = ListenConfig::default();
        let TcpSocket { endpoint, tcp, syn_cookies, fast_open_listen: fast_open, .. } = self;
        let config = ListenConfig { tcp, backlog, syn_cookies, fast_open, ..defaults };
        TcpListener::bind_with(&endpoint, local, config)
    }
}

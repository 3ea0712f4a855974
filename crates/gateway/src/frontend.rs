//! The frontend: near the users. Accepts ordinary TCP and carries it over the hop to the backend.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use brisk_runtime::{ConnectConfig, Endpoint, FastOpenConnect, TcpConfig};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;

use crate::access::{Access, Role};
use crate::log::Log;
use crate::relay::{End, carry, failed, reset, within};
use crate::service::{BACKLOG, ServiceConfig, Summary, accept_failed, hop_tcp, prepare, serve_until};

/// Bytes that may be gathered before the hop is opened.
const FIRST_BYTES: usize = 16 << 10;
/// Pause after a failed accept (usually: out of descriptors), so that it is not tried in a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What a frontend needs to know.
#[derive(Clone, Debug)]
pub struct FrontendConfig {
    /// Where clients connect. Port 0 lets the kernel choose.
    pub listen: SocketAddr,
    /// The backend, as the hop's stack addresses it.
    pub peer: SocketAddr,
    /// The hop's connections. Default: [`hop_tcp`].
    pub tcp: TcpConfig,
    /// Opens the hop's connections with Fast Open: the client's first bytes travel with the SYN once the backend has given a
    /// cookie. Both ends of the hop are ours, and the backend recognises a repeated SYN ([`crate::BackendConfig`]). Default on.
    pub fast_open: Option<FastOpenConnect>,
    /// How long to wait for the client's first bytes, which then ride along with the opening of the hop. A protocol in
    /// which the server speaks first is delayed by this. Default 5 ms.
    pub first_bytes_wait: Duration,
    /// Limits and reports.
    pub service: ServiceConfig,
}

impl FrontendConfig {
    /// The defaults, between `listen` and `peer`.
    pub fn new(listen: SocketAddr, peer: SocketAddr) -> FrontendConfig {
        FrontendConfig {
            listen,
            peer,
            tcp: hop_tcp(),
            fast_open: Some(FastOpenConnect::default()),
            first_bytes_wait: Duration::from_millis(5),
            service: ServiceConfig::default(),
        }
    }
}

/// A frontend that listens.
#[derive(Debug)]
pub struct Frontend {
    config: FrontendConfig,
    endpoint: Endpoint,
    listener: TcpListener,
}

impl Frontend {
    /// Binds the listener; the hop's connections will be made by `endpoint`.
    ///
    /// # Errors
    /// If the address cannot be listened on; the text names it.
    pub async fn bind(config: FrontendConfig, endpoint: Endpoint) -> io::Result<Frontend> {
        let listener = listen(config.listen).map_err(|error| {
            let (listen, remedy) = (config.listen, remedy(error.kind()));
            io::Error::new(error.kind(), format!("cannot listen on {listen}: {error}; {remedy}"))
        })?;
        Ok(Frontend { config, endpoint, listener })
    }

    /// The address and port that clients connect to.
    ///
    /// # Errors
    /// If the kernel does not tell.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `shutdown` resolves, then drains.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Summary {
        let Frontend { config, endpoint, listener } = self;
        let config = Arc::new(config);
        serve_until(shutdown, config.service.clone(), async move || {
            let (client, peer) = accept(&listener, &config.service.log).await;
            let (config, endpoint) = (config.clone(), endpoint.clone());
            Some(move |signal| serve(config, endpoint, client, peer, signal))
        })
        .await
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG.into())
}

async fn accept(listener: &TcpListener, log: &Log) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) => accept_failed(log, &error),
        }
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}

/// What to do about an address that cannot be listened on.
fn remedy(why: io::ErrorKind) -> &'static str {
    match why {
        io::ErrorKind::AddrInUse => "another program has this port; choose another",
        io::ErrorKind::AddrNotAvailable => {
            "the address is not one of this host; `ip address` shows those that are"
        }
        io::ErrorKind::PermissionDenied => {
            "ports below 1024 need root or CAP_NET_BIND_SERVICE; choose a higher one"
        }
        _ => "choose another address or port",
    }
}

async fn serve(
    config: Arc<FrontendConfig>,
    endpoint: Endpoint,
    mut client: TcpStream,
    peer: SocketAddr,
    signal: watch::Receiver<bool>,
) -> Access {
    let started = Instant::now();
    let mut access = Access::begin(Role::Frontend, peer);
    access.end = match open_hop(&config, &endpoint, &mut client, &signal).await {
        Ok(Opened { hop, sent, rest }) => {
            access.bytes_up = sent as u64;
            carry(client, &rest, hop, &signal, &mut access).await
        }
        Err(end) => {
            reset(&client);
            end
        }
    };
    access.duration = started.elapsed();
    access
}

/// A connection to the backend, with those of the client's first bytes that are not on their way yet.
struct Opened {
    hop: brisk_runtime::TcpStream,
    sent: usize,
    rest: Vec<u8>,
}

async fn open_hop(
    config: &FrontendConfig,
    endpoint: &Endpoint,
    client: &mut TcpStream,
    signal: &watch::Receiver<bool>,
) -> Result<Opened, End> {
    prepare(client);
    let mut rest = first_bytes(client, config.first_bytes_wait)
        .await
        .map_err(|error| End::ClientFailed(error.to_string()))?;
    let connect =
        ConnectConfig { tcp: config.tcp.clone(), fast_open: config.fast_open, ..ConnectConfig::default() };
    let (hop, sent) = endpoint
        .connect_with_data(config.peer, &rest, &connect)
        .map_err(|error| End::HopUnreachable(error.to_string()))?;
    rest.drain(..sent.min(rest.len()));
    tokio::select! {
        opened = within(config.service.connect_timeout, signal, End::HopUnreachable, hop.connected()) => opened?,
        error = failed(client) => {
            hop.set_linger(Some(Duration::ZERO));
            return Err(End::ClientFailed(error.to_string()));
        }
    }
    Ok(Opened { hop, sent, rest })
}

/// What the client says within `wait`; nothing if it says nothing.
async fn first_bytes(client: &mut TcpStream, wait: Duration) -> io::Result<Vec<u8>> {
    if wait.is_zero() {
        return Ok(Vec::new());
    }
    // Room for all of them: a read into an empty vector takes 64 bytes, and a SYN would leave with those.
    let mut first = Vec::with_capacity(FIRST_BYTES);
    let mut client = client.take(FIRST_BYTES as u64);
    match tokio::time::timeout(wait, client.read_buf(&mut first)).await {
        Ok(read) => read.map(|_| first),
        Err(_) => Ok(first),
    }
}

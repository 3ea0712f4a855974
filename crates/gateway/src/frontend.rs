//! The frontend: near the users. Accepts ordinary TCP and carries it over the hop to the backend.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::{Duration, Instant};

use brisk_runtime::{ConnectConfig, Endpoint, TcpConfig};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::access::{Access, Role};
use crate::log::{Level, Log, Value};
use crate::relay::{End, Side, Stopped, relay, within};
use crate::service::{Connections, ServiceConfig, Summary, hop_tcp, prepare};

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
        let listener = TcpListener::bind(config.listen).await.map_err(|error| {
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
        let mut shutdown = pin!(shutdown);
        let mut connections = Connections::new(self.config.service.clone());
        loop {
            let next = async {
                let slot = connections.slot().await;
                (slot, self.listener.accept().await)
            };
            let (slot, accepted) = tokio::select! {
                () = &mut shutdown => break,
                next = next => next,
            };
            match accepted {
                Ok((client, peer)) => {
                    let (config, endpoint) = (self.config.clone(), self.endpoint.clone());
                    connections.spawn(slot, |cut| serve(config, endpoint, client, peer, cut));
                }
                Err(error) => {
                    accept_failed(&self.config.service.log, &error);
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        drop(self.listener);
        connections.drain().await
    }
}

pub(crate) fn accept_failed(log: &Log, error: &io::Error) {
    log.line(Level::Error, "accept", &[("reason", Value::Text(error.to_string()))]);
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
    config: FrontendConfig,
    endpoint: Endpoint,
    mut client: TcpStream,
    peer: SocketAddr,
    signal: watch::Receiver<bool>,
) -> Access {
    let started = Instant::now();
    let mut access = Access::begin(Role::Frontend, peer);
    access.end = match open_hop(&config, &endpoint, &mut client, &signal).await {
        Ok(opened) => carry(client, opened, &signal, &mut access).await,
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
    let connect = ConnectConfig { tcp: config.tcp.clone(), ..ConnectConfig::default() };
    let (hop, sent) = endpoint
        .connect_with_data(config.peer, &rest, &connect)
        .map_err(|error| End::HopUnreachable(error.to_string()))?;
    rest.drain(..sent.min(rest.len()));
    within(config.service.connect_timeout, signal, End::HopUnreachable, hop.connected()).await?;
    Ok(Opened { hop, sent, rest })
}

/// What the client says within `wait`; nothing if it says nothing.
async fn first_bytes(client: &mut TcpStream, wait: Duration) -> io::Result<Vec<u8>> {
    let mut first = Vec::new();
    if wait.is_zero() {
        return Ok(first);
    }
    let mut client = client.take(FIRST_BYTES as u64);
    match tokio::time::timeout(wait, client.read_buf(&mut first)).await {
        Ok(read) => read.map(|_| first),
        Err(_) => Ok(first),
    }
}

/// Copies both ways and closes both connections as they ended.
async fn carry(
    mut client: TcpStream,
    opened: Opened,
    signal: &watch::Receiver<bool>,
    access: &mut Access,
) -> End {
    let Opened { mut hop, sent, rest } = opened;
    let relayed = relay(&mut client, &rest, &mut hop, signal).await;
    access.bytes_up = sent as u64 + relayed.from_kernel;
    access.bytes_down = relayed.from_hop;
    access.hop = hop.stats();
    let end = match relayed.stopped {
        Stopped::Ended => return End::Closed,
        Stopped::Failed(Side::Kernel, error) => End::ClientFailed(error.to_string()),
        Stopped::Failed(Side::Hop, error) => End::HopFailed(error.to_string()),
        Stopped::Cut => End::Drained,
    };
    hop.set_linger(Some(Duration::ZERO));
    reset(&client);
    end
}

/// Dropping the socket will reset the connection.
pub(crate) fn reset(socket: &TcpStream) {
    // It fails only if the connection is gone already.
    let _ = socket.set_zero_linger();
}

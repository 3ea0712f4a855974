//! The backend: near the origin. Accepts connections from the frontend over the hop and opens ordinary TCP to the origin.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::{Duration, Instant};

use brisk_runtime::attach::Attached;
use brisk_runtime::{Endpoint, ListenConfig, TcpConfig, TcpListener};
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::access::{Access, Role};
use crate::frontend::{accept_failed, reset};
use crate::relay::{End, Side, Stopped, relay, within};
use crate::service::{Connections, ServiceConfig, Summary, hop_tcp, prepare};

/// What a backend needs to know.
#[derive(Clone, Debug)]
pub struct BackendConfig {
    /// Address and port on the hop's stack that frontends connect to.
    pub listen: SocketAddr,
    /// The origin, `HOST:PORT`. A name is looked up for each connection, so that a change of its address is followed.
    pub origin: String,
    /// The hop's connections. Default: [`hop_tcp`].
    pub tcp: TcpConfig,
    /// The device of the hop, if frontends are to be named in reports as they are known outside the stack.
    pub attached: Option<Attached>,
    /// Limits and reports.
    pub service: ServiceConfig,
}

impl BackendConfig {
    /// The defaults, between `listen` and `origin`.
    pub fn new(listen: SocketAddr, origin: impl Into<String>) -> BackendConfig {
        BackendConfig {
            listen,
            origin: origin.into(),
            tcp: hop_tcp(),
            attached: None,
            service: ServiceConfig::default(),
        }
    }
}

/// A backend that listens.
#[derive(Debug)]
pub struct Backend {
    config: BackendConfig,
    listener: TcpListener,
}

impl Backend {
    /// Listens on the stack of `endpoint`.
    ///
    /// # Errors
    /// If the address is not the endpoint's or the port is taken.
    pub fn bind(config: BackendConfig, endpoint: &Endpoint) -> io::Result<Backend> {
        let listen = ListenConfig { tcp: config.tcp.clone(), ..ListenConfig::default() };
        let listener = TcpListener::bind_with(endpoint, config.listen, listen)?;
        Ok(Backend { config, listener })
    }

    /// Address and port on the hop's stack.
    pub fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    /// Serves until `shutdown` resolves or the hop's device fails, then drains.
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
                Ok((hop, peer)) => {
                    let config = self.config.clone();
                    let peer = config.attached.as_ref().map_or(peer, |attached| attached.peer(peer));
                    connections.spawn(slot, |signal| serve(config, hop, peer, signal));
                }
                Err(error) => {
                    accept_failed(&self.config.service.log, &error);
                    break;
                }
            }
        }
        drop(self.listener);
        connections.drain().await
    }
}

async fn serve(
    config: BackendConfig,
    hop: brisk_runtime::TcpStream,
    peer: SocketAddr,
    signal: watch::Receiver<bool>,
) -> Access {
    let started = Instant::now();
    let mut access = Access::begin(Role::Backend, peer);
    let connecting = TcpStream::connect(config.origin.as_str());
    let limit = config.service.connect_timeout;
    access.end = match within(limit, &signal, End::OriginUnreachable, connecting).await {
        Ok(origin) => carry(hop, origin, &signal, &mut access).await,
        Err(end) => {
            hop.set_linger(Some(Duration::ZERO));
            access.hop = hop.stats();
            end
        }
    };
    access.duration = started.elapsed();
    access
}

/// Copies both ways and closes both connections as they ended.
async fn carry(
    mut hop: brisk_runtime::TcpStream,
    mut origin: TcpStream,
    signal: &watch::Receiver<bool>,
    access: &mut Access,
) -> End {
    prepare(&origin);
    let relayed = relay(&mut origin, &[], &mut hop, signal).await;
    access.bytes_up = relayed.from_hop;
    access.bytes_down = relayed.from_kernel;
    access.hop = hop.stats();
    let end = match relayed.stopped {
        Stopped::Ended => return End::Closed,
        Stopped::Failed(Side::Kernel, error) => End::OriginFailed(error.to_string()),
        Stopped::Failed(Side::Hop, error) => End::HopFailed(error.to_string()),
        Stopped::Cut => End::Drained,
    };
    hop.set_linger(Some(Duration::ZERO));
    reset(&origin);
    end
}

//! The backend: near the origin. Accepts connections from the frontend over the hop and opens ordinary TCP to the origin.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use brisk_runtime::attach::Attached;
use brisk_runtime::{Endpoint, FastOpenListen, ListenConfig, TcpConfig, TcpListener};
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::access::{Access, Role};
use crate::relay::{End, carry, within};
use crate::service::{BACKLOG, ServiceConfig, Summary, accept_failed, hop_tcp, prepare, serve_until};

/// Connections of the hop that data of their SYN opened and that are not acknowledged yet. A frontend is one client.
const PENDING: u16 = 4096;

/// What a backend needs to know.
#[derive(Clone, Debug)]
pub struct BackendConfig {
    /// Address and port on the hop's stack that frontends connect to.
    pub listen: SocketAddr,
    /// The origin, `HOST:PORT`. A name is looked up for each connection, so that a change of its address is followed.
    pub origin: String,
    /// The hop's connections. Default: [`hop_tcp`].
    pub tcp: TcpConfig,
    /// Takes the first bytes of a connection with its SYN. A SYN that the network repeats is recognised while its
    /// connection lives and for a minute after; one that comes later reaches the origin again. Default on, with room for
    /// 4096 connections that are not acknowledged yet, also from one frontend.
    pub fast_open: Option<FastOpenListen>,
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
            fast_open: Some(FastOpenListen {
                max_pending: PENDING,
                max_per_ip: PENDING,
                ..FastOpenListen::default()
            }),
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
        let (tcp, fast_open) = (config.tcp.clone(), config.fast_open.clone());
        let listen = ListenConfig { tcp, fast_open, backlog: BACKLOG.into(), ..ListenConfig::default() };
        let listener = TcpListener::bind_with(endpoint, config.listen, listen)?;
        Ok(Backend { config, listener })
    }

    /// Address and port on the hop's stack.
    pub fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    /// Serves until `shutdown` resolves or the hop's device fails, then drains.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Summary {
        let Backend { config, listener } = self;
        let config = Arc::new(config);
        serve_until(shutdown, config.service.clone(), async move || match listener.accept().await {
            Ok((hop, peer)) => {
                let config = config.clone();
                let peer = config.attached.as_ref().map_or(peer, |attached| attached.peer(peer));
                Some(move |signal| serve(config, hop, peer, signal))
            }
            Err(error) => {
                accept_failed(&config.service.log, &error);
                None
            }
        })
        .await
    }
}

async fn serve(
    config: Arc<BackendConfig>,
    hop: brisk_runtime::TcpStream,
    peer: SocketAddr,
    signal: watch::Receiver<bool>,
) -> Access {
    let started = Instant::now();
    let mut access = Access::begin(Role::Backend, peer);
    access.end = match open_origin(&config, &hop, &signal).await {
        Ok(origin) => carry(origin, &[], hop, &signal, &mut access).await,
        Err(end) => {
            hop.set_linger(Some(Duration::ZERO));
            access.hop = hop.stats();
            end
        }
    };
    access.duration = started.elapsed();
    access
}

async fn open_origin(
    config: &BackendConfig,
    hop: &brisk_runtime::TcpStream,
    signal: &watch::Receiver<bool>,
) -> Result<TcpStream, End> {
    let connecting = TcpStream::connect(config.origin.as_str());
    let limit = config.service.connect_timeout;
    let origin = tokio::select! {
        opened = within(limit, signal, End::OriginUnreachable, connecting) => opened?,
        error = hop.failed() => return Err(End::HopFailed(error.to_string())),
    };
    prepare(&origin);
    Ok(origin)
}

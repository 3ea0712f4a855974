//! Brisk's TCP towards unmodified clients: the client side of an edge, and of a frontend with a device for
//! clients.

use std::time::Duration;

use brisk_runtime::fast_open::ReplayWindow;
use brisk_runtime::{FastOpenListen, ListenConfig, TcpConfig};
use brisk_tcp::config::KeepaliveConfig;

use crate::service::{BACKLOG, ORPHAN_RETRIES};

/// Limit of unacknowledged connections that data on a SYN has opened.
const PENDING: u16 = 1024;

/// Settings of brisk's TCP towards clients.
#[derive(Clone, Debug)]
pub struct ClientSide {
    /// Settings of the clients' connections. Default: [`client_tcp`].
    pub tcp: TcpConfig,
    /// Accepts a client's first bytes with its SYN. A repeated SYN is recognised while its connection exists
    /// and for two minutes after. Default on, with at most 1024 unacknowledged connections.
    pub fast_open: Option<FastOpenListen>,
}

impl Default for ClientSide {
    fn default() -> ClientSide {
        ClientSide {
            tcp: client_tcp(TcpConfig::default()),
            fast_open: Some(FastOpenListen {
                max_pending: PENDING,
                replay_window: Some(ReplayWindow::default()),
                ..FastOpenListen::default()
            }),
        }
    }
}

impl ClientSide {
    pub(crate) fn listen(&self) -> ListenConfig {
        let ClientSide { tcp, fast_open } = self.clone();
        ListenConfig { tcp, fast_open, backlog: BACKLOG.into(), ..ListenConfig::default() }
    }
}

/// Returns the settings of clients' connections with the mechanisms of `tcp`.
///
/// Nagle's algorithm is off, because the gateway forwards data at once. Keepalive, once a minute, closes
/// connections whose client has vanished. Once the gateway has released a connection, its client cannot keep
/// it open by a window that stays closed.
pub fn client_tcp(tcp: TcpConfig) -> TcpConfig {
    let alive =
        KeepaliveConfig { idle: Duration::from_secs(60), interval: Duration::from_secs(15), count: 4 };
    TcpConfig { nodelay: true, keepalive: Some(alive), orphan_retries: Some(ORPHAN_RETRIES), ..tcp }
}

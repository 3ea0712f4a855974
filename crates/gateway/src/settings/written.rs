//! Tables of settings as texts, for the log.

use std::fmt::{Display, Formatter, Result};

use super::kinds::Kind;
use super::{FrontendLimitSettings, ListenerSettings, PeerSettings, RouteSettings};
use crate::proxy::ProxyVersion;

impl Display for PeerSettings {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let PeerSettings { peer, priority, weight } = self;
        write!(f, "{peer} (priority {priority}, weight {weight})")
    }
}

impl Display for FrontendLimitSettings {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let FrontendLimitSettings { label, max_connections, max_rate } = self;
        let connections = max_connections.map(|max| format!("max_connections {max}"));
        let rate = max_rate.map(|max| format!("max_rate {max}"));
        let limits: Vec<String> = connections.into_iter().chain(rate).collect();
        match limits.is_empty() {
            true => write!(f, "{label} (no limit)"),
            false => write!(f, "{label} ({})", limits.join(", ")),
        }
    }
}

impl Display for ListenerSettings {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let ListenerSettings { listen, origin, routes, direct, send_proxy } = self;
        write!(f, "{listen}")?;
        if let Some(origin) = origin {
            write!(f, " to {origin}")?;
        }
        for RouteSettings { sni, origin, direct, send_proxy: _ } in routes {
            write!(f, "; {sni} to {origin}")?;
            if let Some(direct) = direct {
                write!(f, " (direct {direct})")?;
            }
        }
        if let Some(direct) = direct {
            write!(f, " (direct {direct})")?;
        }
        if let Some(version) = send_proxy {
            write!(f, " (send_proxy {})", ProxyVersion::written(version))?;
        }
        Ok(())
    }
}

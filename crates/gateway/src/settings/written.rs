//! Values of settings as an operator writes them, for the log.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use super::{Fallback, FrontendLimitSettings, ListenerSettings, PeerSettings, RouteSettings};
use crate::allow::Allow;
use crate::network::Network;
use crate::origins::Origins;
use crate::proxy::ProxyVersion;

/// A value that can be part of a log line.
pub(super) trait Written {
    /// Returns the value as in a configuration, without quotes.
    fn written(&self) -> String;
}

macro_rules! as_displayed {
    ($($type:ty),*) => {
        $(impl Written for $type {
            fn written(&self) -> String {
                self.to_string()
            }
        })*
    };
}

as_displayed!(bool, u8, u16, u32, String, IpAddr, SocketAddr, Network, Allow, Origins);

impl Written for PathBuf {
    fn written(&self) -> String {
        self.display().to_string()
    }
}

impl Written for Duration {
    fn written(&self) -> String {
        humantime::format_duration(*self).to_string()
    }
}

impl Written for Fallback {
    fn written(&self) -> String {
        match self {
            Fallback::None => "none".to_owned(),
            Fallback::Direct => "direct".to_owned(),
        }
    }
}

impl Written for ProxyVersion {
    fn written(&self) -> String {
        match self {
            ProxyVersion::V1 => "v1".to_owned(),
            ProxyVersion::V2 => "v2".to_owned(),
        }
    }
}

impl Written for PeerSettings {
    fn written(&self) -> String {
        let PeerSettings { peer, priority, weight } = self;
        format!("{peer} (priority {priority}, weight {weight})")
    }
}

impl Written for FrontendLimitSettings {
    fn written(&self) -> String {
        let FrontendLimitSettings { label, max_connections, max_rate } = self;
        let connections = max_connections.map(|most| format!("max_connections {most}"));
        let rate = max_rate.map(|most| format!("max_rate {most}"));
        let limits: Vec<String> = connections.into_iter().chain(rate).collect();
        match limits.is_empty() {
            true => format!("{label} (no limit)"),
            false => format!("{label} ({})", limits.join(", ")),
        }
    }
}

impl Written for ListenerSettings {
    fn written(&self) -> String {
        let ListenerSettings { listen, origin, routes, direct, send_proxy } = self;
        let mut text = listen.to_string();
        if let Some(origin) = origin {
            text += &format!(" to {origin}");
        }
        for RouteSettings { sni, origin, direct, send_proxy: _ } in routes {
            text += &format!("; {sni} to {origin}");
            if let Some(direct) = direct {
                text += &format!(" (direct {direct})");
            }
        }
        if let Some(direct) = direct {
            text += &format!(" (direct {direct})");
        }
        if let Some(version) = send_proxy {
            text += &format!(" (send_proxy {})", version.written());
        }
        text
    }
}

impl<T: Written> Written for Vec<T> {
    fn written(&self) -> String {
        self.iter().map(Written::written).collect::<Vec<_>>().join(", ")
    }
}

impl<T: Written> Written for Option<T> {
    fn written(&self) -> String {
        self.as_ref().map_or_else(|| "default".to_owned(), Written::written)
    }
}

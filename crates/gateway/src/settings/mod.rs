//! The configuration of a gateway as an operator writes it: a TOML file, flags, or both.
//!
//! Every key is optional here; starting a side checks that it has the keys it needs. Flags are settings too,
//! and [`Settings::over`] gives them precedence over those of a file. `docs/operating/settings.md` lists
//! every key with unit, default and range.
//!
//! | file | content |
//! |---|---|
//! | [`mod@self`] | the keys |
//! | `file` | reading a file, with errors in one line |
//! | `explain` | errors of the parser in an operator's words |
//! | `ignored` | settings without effect |
//! | `places` | the line of each key |
//! | `values` | addresses, times and rules as texts |
//! | `written` | values as texts, for the log |

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use crate::allow::Allow;
use crate::listen::Listen;
use crate::network::Network;
use crate::origins::{OriginName, Origins};
use crate::proxy::ProxyVersion;
use crate::routes::ServerName;
use crate::throttle::BitRate;

mod explain;
mod file;
mod ignored;
mod places;
mod values;
mod written;

pub use crate::origins::name_and_port;
pub use file::SettingsError;
pub use ignored::Ignored;
pub use places::Places;
pub use values::listen_address;
use written::Written;

/// The whole configuration.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The side near the users.
    pub frontend: FrontendSettings,
    /// The backends of a frontend.
    #[serde(rename = "backends")]
    pub peers: Vec<PeerSettings>,
    /// Listening addresses of a frontend or an edge in addition to its `listen`.
    #[serde(rename = "listener")]
    pub listeners: Vec<ListenerSettings>,
    /// The side near the origin.
    pub backend: BackendSettings,
    /// The side near the origin without another gateway.
    pub edge: EdgeSettings,
    /// Limits that a backend sets for frontends with their own keys.
    pub frontends: Vec<FrontendLimitSettings>,
    /// The hop between them.
    pub hop: HopSettings,
    /// Limits of either side.
    pub limits: LimitSettings,
    /// The admin listener.
    pub admin: AdminSettings,
}

/// `[frontend]`.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FrontendSettings {
    /// Listening address.
    #[serde(deserialize_with = "values::listen")]
    pub listen: Option<SocketAddr>,
    /// Device for brisk's TCP towards the clients: `packet:IFACE`, `xdp:IFACE` or `tun:NAME`; default the
    /// kernel's TCP.
    pub client_device: Option<String>,
    /// Addresses of the stack on a `tun:` device for clients.
    pub client_addr: Option<Vec<String>>,
    /// The mechanisms towards the clients on that device, a list separated by commas.
    pub client_mechanisms: Option<String>,
    /// Time to wait for a client's first bytes while it is unknown which side sends first; 0 to 1 s, default
    /// 5 ms.
    #[serde(deserialize_with = "values::duration")]
    pub first_bytes_wait: Option<Duration>,
    /// Longest such time if clients are known to send first; 0 (the same as `first_bytes_wait`) to 10 s,
    /// default 2 s.
    #[serde(deserialize_with = "values::duration")]
    pub first_bytes_limit: Option<Duration>,
    /// Proxies whose PROXY header is trusted.
    #[serde(deserialize_with = "values::list")]
    pub proxy_from: Option<Vec<Network>>,
    /// SOCKS5 on the listener; default no.
    pub socks5: Option<bool>,
    /// An HTTP proxy on the listener (CONNECT, and requests for `http://` addresses); default no.
    pub connect: Option<bool>,
    /// File with the users of both; by default every client is served.
    pub users_file: Option<PathBuf>,
    /// Accept clients that a firewall rule redirected here; default no.
    pub transparent: Option<bool>,
    /// Check whether the backends are up; default yes.
    pub watch: Option<bool>,
    /// Fallback while no backend is up; default none.
    pub fallback: Option<Fallback>,
    /// The origin as this side reaches it, for `fallback = "direct"`.
    #[serde(deserialize_with = "values::host_and_port")]
    pub origin: Option<String>,
    /// The PROXY header for the direct connection.
    #[serde(deserialize_with = "values::proxy_version")]
    pub send_proxy: Option<ProxyVersion>,
}

/// `[[listener]]`.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListenerSettings {
    /// Listening address with a port or a range of ports.
    pub listen: Listen,
    /// The name of the origin at the backends; default their own, or none if there are routes.
    #[serde(default)]
    pub origin: Option<OriginName>,
    /// Origins of TLS clients by server name.
    #[serde(default, rename = "route")]
    pub routes: Vec<RouteSettings>,
    /// Address of that origin from this side, used while no backend is up; default none.
    #[serde(default, deserialize_with = "values::host_and_port")]
    pub direct: Option<String>,
    /// The PROXY header for the direct connection.
    #[serde(default, deserialize_with = "values::proxy_version")]
    pub send_proxy: Option<ProxyVersion>,
}

/// `[[listener.route]]`.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteSettings {
    /// The name of the server, or `*.DOMAIN`.
    pub sni: ServerName,
    /// The name of the origin at the backends.
    pub origin: OriginName,
    /// Address of that origin from this side, used while no backend is up; default none.
    #[serde(default, deserialize_with = "values::host_and_port")]
    pub direct: Option<String>,
    /// The PROXY header for the direct connection.
    #[serde(default, deserialize_with = "values::proxy_version")]
    pub send_proxy: Option<ProxyVersion>,
}

/// Behaviour of a frontend while no backend is up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fallback {
    /// Try the backends although they are down.
    None,
    /// Connect to the origin over the kernel's TCP.
    Direct,
}

/// `[[backends]]`.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerSettings {
    /// `HOST:PORT`.
    #[serde(deserialize_with = "values::required_host_and_port")]
    pub peer: String,
    /// The lowest number among the backends that are up is used; default 0.
    #[serde(default)]
    pub priority: u8,
    /// Share among equals, 1 to 1000; default 1.
    #[serde(default = "values::one")]
    pub weight: u16,
}

/// `[backend]`.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BackendSettings {
    /// Listening address for frontends.
    #[serde(deserialize_with = "values::listen")]
    pub listen: Option<SocketAddr>,
    /// The origin.
    #[serde(deserialize_with = "values::host_and_port")]
    pub to: Option<String>,
    /// Origins that frontends may request by name.
    pub origins: Option<Origins>,
    /// Other origins that frontends may request by address.
    #[serde(deserialize_with = "values::list")]
    pub allow: Option<Vec<Allow>>,
    /// Connect to the origin from the client's address; default no.
    pub as_client: Option<bool>,
    /// The PROXY header for the origin.
    #[serde(deserialize_with = "values::proxy_version")]
    pub send_proxy: Option<ProxyVersion>,
    /// Longest age of a first message at its arrival; 1 s to 1 h, default 10 s.
    #[serde(deserialize_with = "values::duration")]
    pub replay_tolerance: Option<Duration>,
}

/// `[edge]`.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EdgeSettings {
    /// Listening address for clients.
    #[serde(deserialize_with = "values::listen")]
    pub listen: Option<SocketAddr>,
    /// The origin.
    #[serde(deserialize_with = "values::host_and_port")]
    pub to: Option<String>,
    /// Origins of `[[listener]]` and its routes by name.
    pub origins: Option<Origins>,
    /// The PROXY header for the origin.
    #[serde(deserialize_with = "values::proxy_version")]
    pub send_proxy: Option<ProxyVersion>,
}

/// `[[frontends]]`.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FrontendLimitSettings {
    /// The label of its public key in `hop.peer_keys`.
    pub label: String,
    /// Limit of simultaneous connections; default none.
    pub max_connections: Option<NonZeroU32>,
    /// Limit of payload in each direction, as `50mbit`; default none.
    #[serde(default, deserialize_with = "values::rate")]
    pub max_rate: Option<BitRate>,
}

/// `[hop]`.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HopSettings {
    /// File with the key.
    pub key_file: Option<PathBuf>,
    /// File with the public keys of the other side, if the key is a pair.
    pub peer_keys: Option<PathBuf>,
    /// Run without a key.
    pub plain: Option<bool>,
    /// Lifetime of an ephemeral key pair under a shared key; 0 (for one connection) to 1 min, default 10 s.
    #[serde(deserialize_with = "values::duration")]
    pub ephemeral_lifetime: Option<Duration>,
    /// Device of the hop: `packet:IFACE`, `xdp:IFACE`, `tun:NAME`, `udp:ADDR:PORT`; default TCP in UDP.
    pub device: Option<String>,
    /// Addresses of the stack on a `tun:` device.
    pub addr: Option<Vec<String>>,
    /// The kernel's side of a `tun:` device.
    pub gateway: Option<IpAddr>,
    /// Largest IP packet, bytes; 576 to 65535.
    pub mtu: Option<u16>,
    /// The mechanisms, a list separated by commas; default `all`.
    pub mechanisms: Option<String>,
    /// Upper limit of the redundancy that the planner adds, as `25%`, 0 (none) to 200 %; default 25 %.
    pub max_overhead: Option<String>,
    /// The interface for brisk's TCP without UDP, on paths that carry no UDP; default none.
    pub packet: Option<String>,
    /// Also use the kernel's TCP, on paths that carry nothing else; default yes for TCP in UDP.
    pub kernel_tcp: Option<bool>,
}

/// `[limits]`.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitSettings {
    /// Limit of simultaneous connections; 1 or more, default 10 000.
    pub max_connections: Option<u32>,
    /// Cores that serve connections, each with a thread and a stack; 1 to 64, default all that the process
    /// may use.
    #[serde(deserialize_with = "values::threads")]
    pub threads: Option<u8>,
    /// Time limit for open connections after the signal to stop; default 30 s.
    #[serde(deserialize_with = "values::duration")]
    pub drain_timeout: Option<Duration>,
    /// Time limit for opening the next connection; default 10 s.
    #[serde(deserialize_with = "values::duration")]
    pub connect_timeout: Option<Duration>,
    /// Time limit for the bytes before the payload; 100 ms to 60 s, default 5 s.
    #[serde(deserialize_with = "values::duration")]
    pub header_timeout: Option<Duration>,
    /// Time limit for the first byte of either end; 0: none; default 1 min.
    #[serde(deserialize_with = "values::duration")]
    pub first_byte_timeout: Option<Duration>,
    /// Longest inactivity of both ends after that; 0: no limit; default 1 h.
    #[serde(deserialize_with = "values::duration")]
    pub idle_timeout: Option<Duration>,
    /// Longest inactivity of one end after the other has finished; 0: no limit; default 5 min.
    #[serde(deserialize_with = "values::duration")]
    pub half_closed_timeout: Option<Duration>,
}

/// `[admin]`.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdminSettings {
    /// Listening address of `/metrics`, `/healthz`, `/readyz` and `/status`; default none.
    #[serde(deserialize_with = "values::listen")]
    pub listen: Option<SocketAddr>,
    /// File with the token that requests must contain; required unless `listen` is loopback.
    pub token_file: Option<PathBuf>,
}

/// Implements, for a struct with these fields, precedence over another one and the comparison of two.
macro_rules! lay {
    ($type:ident { $($field:ident),* $(,)? }) => {
        impl $type {
            fn over(self, under: $type) -> $type {
                // Naming each field ensures that a new one is not forgotten.
                let $type { $($field),* } = self;
                $type { $($field: $field.or(under.$field)),* }
            }

            /// Returns the keys in which they differ, with both values.
            fn changed(&self, before: &$type, section: &str) -> Vec<Change> {
                let mut changes = Vec::new();
                $(if self.$field != before.$field {
                    let key = format!("{section}.{}", stringify!($field));
                    changes.push(Change::of(key, &before.$field, &self.$field));
                })*
                changes
            }
        }
    };
}

lay!(FrontendSettings {
    listen,
    client_device,
    client_addr,
    client_mechanisms,
    first_bytes_wait,
    first_bytes_limit,
    proxy_from,
    socks5,
    connect,
    users_file,
    transparent,
    watch,
    fallback,
    origin,
    send_proxy,
});
lay!(BackendSettings { listen, to, origins, allow, as_client, send_proxy, replay_tolerance });
lay!(EdgeSettings { listen, to, origins, send_proxy });
lay!(HopSettings {
    key_file,
    peer_keys,
    plain,
    ephemeral_lifetime,
    device,
    addr,
    gateway,
    mtu,
    mechanisms,
    max_overhead,
    packet,
    kernel_tcp
});
lay!(LimitSettings {
    max_connections,
    threads,
    drain_timeout,
    connect_timeout,
    header_timeout,
    first_byte_timeout,
    idle_timeout,
    half_closed_timeout,
});
lay!(AdminSettings { listen, token_file });

impl HopSettings {
    /// Returns the files with keys.
    pub fn key_files(&self) -> Vec<PathBuf> {
        self.key_file.iter().chain(&self.peer_keys).cloned().collect()
    }
}

impl Settings {
    /// Returns these settings, and those of `under` for absent keys.
    #[must_use]
    pub fn over(self, under: Settings) -> Settings {
        let Settings { frontend, peers, listeners, backend, edge, frontends, hop, limits, admin } = self;
        Settings {
            frontend: frontend.over(under.frontend),
            listeners: if listeners.is_empty() { under.listeners } else { listeners },
            peers: if peers.is_empty() { under.peers } else { peers },
            backend: backend.over(under.backend),
            edge: edge.over(under.edge),
            frontends: if frontends.is_empty() { under.frontends } else { frontends },
            hop: hop.over(under.hop),
            limits: limits.over(under.limits),
            admin: admin.over(under.admin),
        }
    }

    /// Returns the keys in which these differ from `before`, as `SECTION.KEY`; `backends` for all backends,
    /// `listener` for all listeners, `frontends` for all limits of frontends.
    pub fn changed(&self, before: &Settings) -> Vec<Change> {
        let Settings { frontend, peers, listeners, backend, edge, frontends, hop, limits, admin } = self;
        let mut changes = frontend.changed(&before.frontend, "frontend");
        if *peers != before.peers {
            changes.push(Change::of("backends".to_owned(), &before.peers, peers));
        }
        if *listeners != before.listeners {
            changes.push(Change::of("listener".to_owned(), &before.listeners, listeners));
        }
        changes.extend(backend.changed(&before.backend, "backend"));
        changes.extend(edge.changed(&before.edge, "edge"));
        if *frontends != before.frontends {
            changes.push(Change::of("frontends".to_owned(), &before.frontends, frontends));
        }
        changes.extend(hop.changed(&before.hop, "hop"));
        changes.extend(limits.changed(&before.limits, "limits"));
        changes.extend(admin.changed(&before.admin, "admin"));
        changes
    }
}

/// A key whose value has changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// `SECTION.KEY`.
    pub key: String,
    /// The value before.
    pub before: String,
    /// The value now.
    pub after: String,
}

impl Change {
    fn of(key: String, before: &impl Written, after: &impl Written) -> Change {
        Change { key, before: before.written(), after: after.written() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlay_wins_and_leaves_other_settings() {
        let file: Settings = toml::from_str("[limits]\nmax_connections = 5\ndrain_timeout = '1s'").unwrap();
        let limits = LimitSettings { max_connections: Some(7), ..LimitSettings::default() };
        let both = Settings { limits, ..Settings::default() }.over(file);
        assert_eq!(both.limits.max_connections, Some(7));
        assert_eq!(both.limits.drain_timeout, Some(Duration::from_secs(1)));
    }

    #[test]
    fn changes_are_named_by_section_and_key() {
        let read = |text: &str| toml::from_str::<Settings>(text).unwrap();
        let before = read("[frontend]\nlisten = ':1'\n[hop]\nplain = true\n[[backends]]\npeer = 'a:1'\n");
        let after =
            read("[frontend]\nlisten = ':2'\n[hop]\nplain = true\nmtu = 1400\n[admin]\nlisten = ':3'\n");
        let changes = after.changed(&before);
        let told = |change: &Change| format!("{}: {} -> {}", change.key, change.before, change.after);
        let expected = [
            "frontend.listen: [::]:1 -> [::]:2",
            "backends: a:1 (priority 0, weight 1) -> ",
            "hop.mtu: default -> 1400",
            "admin.listen: default -> [::]:3",
        ];
        assert_eq!(changes.iter().map(told).collect::<Vec<_>>(), expected);
        assert_eq!(after.changed(&after), []);
    }
}

//! The configuration of a gateway as an operator writes it: a TOML file, flags, or both.
//!
//! Every key is optional here; a side checks at its start that it has the keys that it needs. Flags are
//! settings too, and take precedence over the file ([`Settings::over`]). `docs/operating/settings.md` lists
//! every key with unit, default and range.
//!
//! | file | content |
//! |---|---|
//! | [`mod@self`] | the sections |
//! | `keys` | the declaration of each key |
//! | `key` | the properties of a key |
//! | `kinds` | kinds of values |
//! | `file` | reading a file, with errors in one line |
//! | `explain` | errors of the parser in an operator's words |
//! | `ignored` | settings without effect |
//! | `places` | the line of each key |
//! | `written` | tables as texts, for the log |

use std::num::NonZeroU32;
use std::path::PathBuf;

use serde::Deserialize;

use crate::listen::Listen;
use crate::origins::OriginName;
use crate::proxy::ProxyVersion;
use crate::routes::ServerName;
use crate::throttle::BitRate;
use crate::timeouts::Timeouts;

mod explain;
mod file;
mod ignored;
mod key;
mod keys;
mod kinds;
mod places;
mod written;

pub use crate::origins::check_host_port;
pub use file::SettingsError;
pub use ignored::Ignored;
pub use key::Key;
use keys::ALL;
pub use keys::{
    AdminSettings, BackendSettings, CLIENT_MECHANISMS, EdgeSettings, FrontendSettings, HopSettings,
    LimitSettings, all as all_keys,
};
pub use kinds::{listen_address, parse_duration};
pub use places::Places;

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
    /// The hop between frontend and backend; on an edge the connection to the clients.
    pub hop: HopSettings,
    /// Limits of this side.
    pub limits: LimitSettings,
    /// The admin listener.
    pub admin: AdminSettings,
}

/// `[[listener]]`.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListenerSettings {
    /// Listening address with a port or a range of ports.
    pub listen: Listen,
    /// The name of the origin at the backends. Default: the backend's own origin; with routes, clients
    /// without a route are refused.
    #[serde(default)]
    pub origin: Option<OriginName>,
    /// Origins of TLS clients by server name.
    #[serde(default, rename = "route")]
    pub routes: Vec<RouteSettings>,
    /// Address of that origin from this side, used while no backend is up; default none.
    #[serde(default, deserialize_with = "kinds::some::<_, kinds::HostPort>")]
    pub direct: Option<String>,
    /// The PROXY header for the direct connection.
    #[serde(default, deserialize_with = "kinds::some::<_, ProxyVersion>")]
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
    #[serde(default, deserialize_with = "kinds::some::<_, kinds::HostPort>")]
    pub direct: Option<String>,
    /// The PROXY header for the direct connection.
    #[serde(default, deserialize_with = "kinds::some::<_, ProxyVersion>")]
    pub send_proxy: Option<ProxyVersion>,
}

/// Behaviour of a frontend while no backend is up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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
    #[serde(deserialize_with = "<kinds::HostPort as kinds::Kind>::read")]
    pub peer: String,
    /// Requests go to the backends with the lowest number among those that are up; default 0.
    #[serde(default)]
    pub priority: u8,
    /// Share of the connections among backends of the same priority, 1 to 1000; default 1.
    #[serde(default = "kinds::one")]
    pub weight: u16,
}

/// `[[frontends]]`.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FrontendLimitSettings {
    /// The label of the frontend's public key in `hop.peer_keys`.
    pub label: String,
    /// Limit of simultaneous connections; default none.
    pub max_connections: Option<NonZeroU32>,
    /// Limit of payload in each direction, as `50mbit`; default none.
    #[serde(default, deserialize_with = "kinds::some::<_, BitRate>")]
    pub max_rate: Option<BitRate>,
}

impl HopSettings {
    /// Returns the files with keys.
    pub fn key_files(&self) -> Vec<PathBuf> {
        self.key_file.iter().chain(&self.peer_keys).cloned().collect()
    }
}

impl Settings {
    /// Returns these settings, completed by those of `under`.
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

    /// Returns the keys in which these settings differ from `before`, as `SECTION.KEY`; `backends` for all
    /// backends, `listener` for all listeners, `frontends` for all limits of frontends.
    pub fn changed(&self, before: &Settings) -> Vec<Change> {
        let of_sections = ALL.iter().copied().flatten().filter_map(|key| {
            let written = |settings| (key.written)(settings);
            (written(self) != written(before)).then(|| Change {
                key: key.path(),
                before: written(before).unwrap_or_else(|| "default".to_owned()),
                after: written(self).unwrap_or_else(|| "default".to_owned()),
            })
        });
        let mut changes: Vec<Change> = of_sections.collect();
        let mut of_table = |key: &str, before: Vec<String>, after: Vec<String>| {
            if before != after {
                changes.push(Change {
                    key: key.to_owned(),
                    before: before.join(", "),
                    after: after.join(", "),
                });
            }
        };
        let peers = |of: &Settings| of.peers.iter().map(ToString::to_string).collect();
        of_table("backends", peers(before), peers(self));
        let listeners = |of: &Settings| of.listeners.iter().map(ToString::to_string).collect();
        of_table("listener", listeners(before), listeners(self));
        let frontends = |of: &Settings| of.frontends.iter().map(ToString::to_string).collect();
        of_table("frontends", frontends(before), frontends(self));
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

impl LimitSettings {
    pub(crate) fn timeouts(&self) -> Timeouts {
        Timeouts {
            header: self.header_timeout(),
            first_byte: self.first_byte_timeout(),
            idle: self.idle_timeout(),
            half_closed: self.half_closed_timeout(),
        }
    }
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        LimitSettings::default().timeouts()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
        let text = |change: &Change| format!("{}: {} -> {}", change.key, change.before, change.after);
        let expected = [
            "frontend.listen: [::]:1 -> [::]:2",
            "hop.mtu: default -> 1400",
            "admin.listen: default -> [::]:3",
            "backends: a:1 (priority 0, weight 1) -> ",
        ];
        assert_eq!(changes.iter().map(text).collect::<Vec<_>>(), expected);
        assert_eq!(after.changed(&after), []);
    }
}

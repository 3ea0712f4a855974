//! The gateway pair: ordinary TCP to clients and origin, brisk's TCP on the hop between the gateways.
//!
//! ```text
//! client --kernel TCP--> Frontend ==brisk TCP, the long or lossy hop==> Backend --kernel TCP--> origin
//! ```
//!
//! | module | content |
//! |---|---|
//! | [`frontend`] | [`Frontend`]: accepts clients, opens the hop with their first bytes |
//! | [`backend`] | [`Backend`]: accepts connections of the hop, connects to the origin |
//! | [`edge`] | [`Edge`]: accepts clients over brisk's TCP, connects to the origin, without another gateway |
//! | [`clients`] | brisk's TCP towards unmodified clients, of an edge or of a frontend's client device |
//! | [`hop`] | the protocol between frontend and backend: key, messages, records |
//! | [`upstream`] | the backends of a frontend: the choice among them, and their health |
//! | `warm` | connections to a backend that are open before they are needed |
//! | `transport` | transports of the hop to a backend: brisk's TCP with or without UDP, or the kernel's TCP |
//! | `outgoing` | the kernel's TCP to an origin |
//! | [`entrance`] | identity of a client and the origin it requests: PROXY, SOCKS5, CONNECT, redirection |
//! | [`users`] | users that may log in at a frontend as a proxy |
//! | [`first_bytes`] | which side sends first, and the wait for a client's first bytes |
//! | [`proxy`] | the PROXY protocol |
//! | [`allow`], [`network`] | permitted origins; trusted networks |
//! | [`listen`], [`listeners`] | addresses and ports where clients connect |
//! | [`routes`], [`client_hello`] | origins by the server name of TLS |
//! | [`origins`] | origins with names |
//! | [`relay`] | copies bytes, half closes and resets in both directions |
//! | `throttle` | a rate limit that connections share |
//! | `exchanges`, `traffic` | durations and bytes of requests on the path to a backend |
//! | [`timeouts`] | limits on the idle time of a connection |
//! | [`service`] | parts common to all sides: limits, draining |
//! | [`settings`] | the configuration as an operator writes it |
//! | [`metrics`], [`history`] | counters |
//! | `frontends`, `sums` | a backend's counters of each frontend, and their sums |
//! | `unproven` | connections to a backend whose peers have not yet proven that they hold the key |
//! | `process` | metrics of the process |
//! | [`admin`], [`status`] | the admin listener and its status object |
//! | [`access`] | the record of one connection |
//! | `exempt` | clients of an edge whose path fails with brisk's TCP |
//! | `roaming` | frontends whose address changes while they have connections |
//! | `logins` | failed logins of clients |
//! | [`peer`] | reports about a peer and the path to it |
//! | [`doctor`] | examination of the path to a backend |
//! | [`log`] | log lines |
//!
//! Any TCP payload passes. The hop is encrypted and authenticated, unless it is configured as plain
//! ([`hop::Hop`]). Both sides hold the same keys, or each side has its own pair of keys.
#![forbid(unsafe_code)]

pub mod access;
pub mod admin;
pub mod allow;
pub mod backend;
pub mod client_hello;
pub mod clients;
pub mod doctor;
pub mod edge;
mod end;
pub mod entrance;
mod exchanges;
mod exempt;
pub mod first_bytes;
pub mod frontend;
mod frontends;
pub mod history;
pub mod hop;
mod io;
pub mod listen;
pub mod listeners;
pub mod log;
mod logins;
pub mod metrics;
pub mod network;
pub mod origins;
mod outgoing;
pub mod peer;
mod process;
pub mod proxy;
pub mod relay;
mod roaming;
pub mod routes;
pub mod service;
pub mod settings;
pub mod status;
mod sums;
mod throttle;
pub mod timeouts;
mod traffic;
mod transport;
mod unproven;
pub mod upstream;
pub mod users;
mod warm;

pub use access::{Access, ClientTcp, Role};
pub use admin::{Admin, Shown};
pub use allow::Allow;
pub use backend::{Backend, BackendConfig, BackendControl};
pub use clients::ClientSide;
pub use edge::{Edge, EdgeConfig, EdgeControl};
pub use end::End;
pub use entrance::Entrance;
pub use first_bytes::FirstSender;
pub use frontend::{Frontend, FrontendConfig, FrontendControl, OpenListener};
pub use frontends::FrontendLimits;
pub use hop::{Hop, HopKey, KeyRing};
pub use listen::Listen;
pub use listeners::Listener;
pub use log::{Log, LogFormat};
pub use logins::FailedLogins;
pub use metrics::{MechanismState, Metrics};
pub use network::Network;
pub use origins::{NamedOrigin, OriginName, Origins};
pub use outgoing::Direct;
pub use peer::{PathReport, Redundancy};
pub use proxy::ProxyVersion;
pub use routes::{Route, ServerName};
pub use service::{ServiceConfig, Summary};
pub use settings::Settings;
pub use status::{Facts, Status};
pub use throttle::BitRate;
pub use timeouts::{Timeout, Timeouts};
pub use transport::Transport;
pub use upstream::{BackendSpec, Health, Upstreams};
pub use users::Users;

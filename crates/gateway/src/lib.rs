//! The gateway pair: ordinary TCP on both outsides, brisk's TCP on the hop between.
//!
//! ```text
//! client --kernel TCP--> Frontend ==brisk TCP, the long or lossy hop==> Backend --kernel TCP--> origin
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | [`frontend`] | [`Frontend`]: accepts clients, opens the hop with their first bytes |
//! | [`backend`] | [`Backend`]: accepts the hop, connects to the origin |
//! | [`edge`] | [`Edge`]: accepts clients over our TCP, connects to the origin, without another gateway |
//! | [`hop`] | what is said between them: key, messages, records |
//! | [`upstream`] | the backends of a frontend: which one is asked, which are alive |
//! | `warm` | connections to a backend that are open before they are needed |
//! | `transport` | what carries the hop to a backend: our TCP in UDP or by itself, or the kernel's |
//! | `outgoing` | the kernel's TCP to an origin |
//! | [`entrance`] | who a client is and where it wants to go: PROXY, SOCKS5, CONNECT, redirected |
//! | [`users`] | who may use a frontend as a proxy |
//! | [`first_bytes`] | who speaks first, and how long a client's first bytes are waited for |
//! | [`proxy`] | the PROXY protocol |
//! | [`allow`], [`network`] | who may ask for which origin, who is trusted |
//! | [`listen`], [`listeners`] | where clients connect |
//! | [`routes`], [`client_hello`] | origins by the name of a TLS server |
//! | [`origins`] | origins with names |
//! | [`relay`] | copying both ways; half closes and resets are carried through |
//! | `throttle` | a rate that connections share |
//! | `exchanges`, `traffic` | how long requests take, and what they cost, on the path to a backend |
//! | [`timeouts`] | how long a connection may do nothing |
//! | [`service`] | what both sides share: limits, draining |
//! | [`settings`] | the configuration as an operator writes it |
//! | [`metrics`], [`history`] | what is counted |
//! | `frontends`, `sums` | what a backend counts of each frontend, and in sum |
//! | `process` | metrics of the process |
//! | [`admin`], [`status`] | where it can be looked at |
//! | [`access`] | the record of one connection |
//! | [`peer`] | reports about a peer and the path to it |
//! | [`doctor`] | what the path to a backend is like |
//! | [`log`] | log lines |
//!
//! Any TCP payload passes. The hop is encrypted and authenticated by a key that both sides hold.
#![forbid(unsafe_code)]

pub mod access;
pub mod admin;
pub mod allow;
pub mod backend;
pub mod client_hello;
pub mod doctor;
pub mod edge;
mod end;
pub mod entrance;
mod exchanges;
pub mod first_bytes;
pub mod frontend;
mod frontends;
pub mod history;
pub mod hop;
mod io;
pub mod listen;
pub mod listeners;
pub mod log;
pub mod metrics;
pub mod network;
pub mod origins;
mod outgoing;
pub mod peer;
mod process;
pub mod proxy;
pub mod relay;
pub mod routes;
pub mod service;
pub mod settings;
pub mod status;
mod sums;
mod throttle;
pub mod timeouts;
mod traffic;
mod transport;
pub mod upstream;
pub mod users;
mod warm;

pub use access::{Access, Role};
pub use admin::{Admin, Shown};
pub use allow::Allow;
pub use backend::{Backend, BackendConfig, BackendControl};
pub use edge::{Edge, EdgeConfig, EdgeControl};
pub use end::End;
pub use entrance::Entrance;
pub use first_bytes::Speaker;
pub use frontend::{Frontend, FrontendConfig, FrontendControl, OpenListener};
pub use frontends::FrontendLimits;
pub use hop::{Hop, HopKey, KeyRing};
pub use listen::Listen;
pub use listeners::Listener;
pub use log::{Log, LogFormat};
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
pub use transport::Way;
pub use upstream::{BackendSpec, Health, Upstreams};
pub use users::Users;

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
//! | [`relay`] | copying both ways; half closes and resets are carried through |
//! | [`service`] | what both sides share: limits, draining |
//! | [`access`] | the record of one connection |
//! | [`exposure`] | loopback only, until the hop is encrypted |
//! | [`log`] | log lines |
//!
//! Any TCP payload passes. The hop is neither encrypted nor authenticated yet.
#![forbid(unsafe_code)]

pub mod access;
pub mod backend;
pub mod exposure;
pub mod frontend;
pub mod log;
pub mod relay;
pub mod service;

pub use access::{Access, Role};
pub use backend::{Backend, BackendConfig};
pub use frontend::{Frontend, FrontendConfig};
pub use log::{Log, LogFormat};
pub use relay::End;
pub use service::{ServiceConfig, Summary};

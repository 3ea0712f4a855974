//! The sender: written data, sent data and its state, and the time to send again.
//!
//! Each file is one part with its own state and, if it has one, its own deadline. No part knows the others;
//! the connection passes values from one to the next (see [`crate::outcome`]).

pub(crate) mod budget;
pub(crate) mod bytes;
pub(crate) mod delivery;
pub(crate) mod mtu;
pub(crate) mod pacer;
pub(crate) mod push;
pub(crate) mod queue;
pub(crate) mod rack;
pub(crate) mod rate;
pub(crate) mod recovery;
#[cfg(feature = "historical")]
pub(crate) mod rfc6675;
pub(crate) mod rto;
pub(crate) mod rtt;
pub(crate) mod scoreboard;
pub(crate) mod window;

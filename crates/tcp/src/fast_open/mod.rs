//! TCP Fast Open: a request that rides on the SYN (TCP Fast Open, CoNEXT 2011; RFC 7413).
//!
//! ```text
//! client                                server            the first time
//!   | SYN + "a cookie, please"            |
//!   |------------------------------------>|
//!   |             SYN-ACK + cookie        |
//!   |<------------------------------------|               the client remembers it
//!   | ACK + request                       |
//!   |------------------------------------>|
//!
//!   | SYN + cookie + request              |               from then on
//!   |------------------------------------>| the cookie is good: the request goes to the application
//!   |             SYN-ACK                 |
//!   |<------------------------------------|
//!   |             response                | before the client has acknowledged anything
//!   |<------------------------------------|
//! ```
//!
//! Every failure ends in the ordinary handshake with the request behind it: nothing that would have connected
//! without Fast Open fails because of it. The price: a request may be delivered **more than once**, which is
//! why both ends must ask for it.
//!
//! | file | what it decides |
//! |---|---|
//! | [`cookie`] | whether a cookie is good: keys, their rotation, the codes |
//! | `one_time` | the same for cookies that open one connection each |
//! | [`server`] | which SYNs open a connection at once, and how many may |
//! | [`hold`] | which SYN is an old duplicate after its connection has closed |
//! | [`replay`] | which SYN brings data that was taken before |
//! | [`client`] | what the first SYN carries, and what is learnt from the answer |
//! | [`outcome`] | what the answer means |
//! | `switches` | what the host allows, in Linux's bits |
//! | `persist` | the cache as text that survives a restart |
//!
//! The parts know no connections (`server` uses `cookie`, `one_time` and `replay`; `client` uses `outcome`);
//! what the connection does with their verdicts is in `connection/fast_open/`, what the stack does in
//! `stack/fast_open.rs`.

pub mod client;
pub mod cookie;
pub mod hold;
pub(crate) mod one_time;
pub mod outcome;
pub(crate) mod persist;
pub mod replay;
pub mod server;
mod switches;

pub use crate::stored::ImportError;
pub use client::{ClientMemory, FastOpenConnect};
pub use cookie::{CookieDst, CookieKey, CookieMac, KeyError, KeySource, MasterSecret};
pub use hold::LastAckHold;
pub use outcome::{BlackHoleSign, FastOpenOutcome, OffReason, SynAckClass};
pub use replay::{FirstData, ReplayMemory, ReplayVerdict, ReplayWindow};
pub use server::{FastOpenListen, ServerLimits};
pub use switches::FastOpenSwitches;

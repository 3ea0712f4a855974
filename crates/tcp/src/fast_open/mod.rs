//! TCP Fast Open: a SYN that carries a request (TCP Fast Open, CoNEXT 2011; RFC 7413).
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
//! Every failure ends in the ordinary handshake followed by the request: no connection fails because of Fast
//! Open. But a request may be delivered **more than once**, so both ends must enable it.
//!
//! | file | decision |
//! |---|---|
//! | `cookie` | the validity of a cookie: keys, their rotation, the codes |
//! | `one_time` | the same for cookies that open one connection each |
//! | `server` | the SYNs that open a connection at once, and their number |
//! | `last_ack` | old duplicates of a SYN after its connection has closed |
//! | `replay` | SYNs whose data was accepted before |
//! | `client` | the content of the first SYN, and the conclusions from the answer |
//! | `outcome` | the meaning of the answer |
//! | `persist` | the cache as text that survives a restart |
//!
//! These parts know no connections. `server` uses `cookie`, `one_time` and `replay`; `client` uses `outcome`.
//! `connection/fast_open/` and `stack/fast_open.rs` act on their decisions.

pub(crate) mod client;
pub(crate) mod cookie;
pub(crate) mod last_ack;
#[cfg_attr(not(feature = "one-time-cookies"), path = "no_one_time.rs")]
pub(crate) mod one_time;
pub(crate) mod outcome;
pub(crate) mod persist;
pub(crate) mod replay;
pub(crate) mod server;

pub use client::{ClientCookie, FastOpenConnect};
#[cfg(feature = "derived-keys")]
pub use cookie::MasterSecret;
pub use cookie::{CookieKey, KeyError, KeySource};
pub use last_ack::LastAckHold;
pub(crate) use outcome::BlackHoleSign;
pub use outcome::{FastOpenOutcome, OffReason, SynAckClass};
pub use replay::{FirstData, ReplayMemory, ReplayVerdict, ReplayWindow};
pub use server::{EarlyResponse, FastOpenListen};

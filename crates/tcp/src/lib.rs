//! The TCP of brisk: sans-IO, deterministic, no clock, no operating system.
//!
//! A [`Stack`] holds the connections and listeners of one set of addresses. A driver passes arriving packets
//! and the time. It takes outgoing packets, events, and the time of the next call. The simulator does so in
//! virtual time, the runtime in real time. The same calls with the same times and the same [`Seed`] always
//! give the same packets.
//!
//! | module | content |
//! |---|---|
//! | [`stack`] | the public API: connections, listeners, demultiplexing, SYN cookies, TIME-WAIT, limits |
//! | [`config`] | all settings, with unit, range and default |
//! | [`error`], [`event`] | errors, each with the side that caused it; events |
//! | [`connection`] | one connection: its states and the calls between its parts |
//! | `send`, `receive` | the parts: scoreboard, RACK, PRR, timers; reassembly, SACK, acknowledgements, window |
//! | [`congestion`] | CUBIC with HyStart++, Reno, BBR, a fixed window, or one that the application supplies |
//! | [`path`] | memory of a path from one connection to the next |
//! | [`mechanism`] | parity (Corrective), copies (Proactive), their negotiation, the planner of both |
//!
//! [`wire`] defines the packet formats; signatures in this crate use its types.
//!
//! Types that the crate returns (events, errors, outcomes, statistics) are `#[non_exhaustive]`. Literals of
//! configuration end with `..Default::default()`. So a minor version can extend both. Enums with a complete
//! set of values ([`State`](connection::State), [`Fault`](error::Fault)) are exhaustive.
//!
//! Two stacks, a request and a response:
//!
//! ```
//! use brisk_tcp::stack::Rx;
//! use brisk_tcp::time::{Duration, Instant};
//! use brisk_tcp::{ConnectConfig, ListenConfig, Stack, StackConfig};
//!
//! let at = |address: &str| StackConfig { addresses: vec![address.parse().unwrap()], ..StackConfig::default() };
//! let mut client = Stack::new(at("10.0.0.1"), 1)?;
//! let mut server = Stack::new(at("10.0.0.2"), 2)?;
//! let remote = "10.0.0.2:80".parse().unwrap();
//! let mut now = Instant::ZERO;
//!
//! // Passes packets until neither side has anything to send; each takes ten milliseconds.
//! let mut exchange = |client: &mut Stack, server: &mut Stack| {
//!     let mut packet = Vec::new();
//!     loop {
//!         let mut moved = false;
//!         while client.poll_transmit(now, &mut packet).is_some() {
//!             server.on_packet(&packet, Rx::default(), now + Duration::from_millis(10));
//!             moved = true;
//!         }
//!         now += Duration::from_millis(10);
//!         while server.poll_transmit(now, &mut packet).is_some() {
//!             client.on_packet(&packet, Rx::default(), now + Duration::from_millis(10));
//!             moved = true;
//!         }
//!         now += Duration::from_millis(10);
//!         if !moved {
//!             return now;
//!         }
//!     }
//! };
//!
//! let listener = server.listen(remote, ListenConfig::default())?;
//! let (request, _) = client.connect_with_data(remote, b"ping", &ConnectConfig::default(), Instant::ZERO)?;
//! let now = exchange(&mut client, &mut server);
//!
//! let (response, _) = server.accept(listener).expect("the handshake is complete");
//! let mut buffer = [0; 16];
//! assert_eq!(server.read(response, &mut buffer, now), Ok(4));
//! server.write(response, b"pong", now)?;
//! let now = exchange(&mut client, &mut server);
//!
//! assert_eq!(client.read(request, &mut buffer, now), Ok(4));
//! assert_eq!(&buffer[..4], b"pong");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![no_std]
#![forbid(unsafe_code)]
// Without the feature `internals`, some public items are unreachable or unused, because only tests and
// benchmarks of other crates call them.
#![cfg_attr(not(feature = "internals"), allow(dead_code, unreachable_pub))]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub(crate) mod auto_tuning;
pub mod config;
pub mod congestion;
mod conn_id;
pub mod connection;
pub mod error;
pub mod event;
mod evidence;
pub mod fast_open;
mod four_tuple;
mod keys;
pub(crate) mod lru;
pub mod mechanism;
pub(crate) mod on_demand;
pub(crate) mod outcome;
pub mod path;
pub(crate) mod receive;
pub(crate) mod send;
pub(crate) mod seq_ranges;
pub mod stack;
mod stored;
pub mod time;

pub use brisk_wire as wire;
pub use bytes::Bytes;

pub use config::{ConnectConfig, ListenConfig, StackConfig, TcpConfig};
pub use event::{Event, Lifecycle, LifecycleEvent};
pub use keys::Seed;
pub use stack::{ConnId, ListenerId, Stack};

/// Parts that tests, fuzz targets and benchmarks call without a connection. Any release may change them.
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod internals {
    pub use crate::outcome::Arrived;
    pub use crate::seq_ranges::SeqRanges;

    pub mod code {
        pub use crate::mechanism::corrective::code::*;
    }

    pub mod decoder {
        pub use crate::mechanism::corrective::decoder::*;
    }

    pub mod plan {
        pub use crate::mechanism::plan::*;
    }
}

//! Paths for packets: delay, rate, queue, loss, reordering, duplication, MTU, middleboxes.
//!
//! A [`Link`] joins two sides: A, where the client is, and B, where the server is; `up` goes from A to B,
//! `down` from B to A. Its elements have no clock: the driver hands in `now` and asks for the next departure,
//! in virtual time (the simulator) or in real time (the emulator) alike. Elements are generic over a
//! [`Parcel`], a packet with a length; only [`middlebox`] reads headers. All chance comes from generators
//! that are derived from one seed and the element's name ([`seeds`]), so a run can be repeated and an element
//! switched on without shifting another's draws.
//!
//! | module | what |
//! |---|---|
//! | [`spec`] | the description of a link, and its text on the command line and in plans |
//! | [`units`] | durations, sizes, rates and ratios as text |
//! | [`direction`] | one direction: the elements in their order |
//! | [`queue`], [`rate`] | the buffer and the bottleneck behind it |
//! | [`loss`] | which packets are lost |
//! | [`delay`] | propagation, jitter, reordering, duplication |
//! | [`middlebox`] | devices that drop, strip and rewrite |
//! | [`counters`] | what happened |
//! | [`seeds`] | one generator per element |
//!
//! ```
//! use brisk_link::{Link, LinkSpec, Offered};
//! use brisk_wire::Instant;
//!
//! let spec = LinkSpec::parse("--rtt 100ms --rate 12mbit --loss down:list:2")?;
//! let mut link: Link<Vec<u8>> = Link::new(&spec, 1);
//! assert_eq!(link.down.offer(vec![0; 1500], Instant::ZERO), Offered::Queued);
//! assert_eq!(link.down.offer(vec![0; 1500], Instant::ZERO), Offered::DroppedLoss);
//!
//! // One millisecond to serialise and fifty to travel.
//! let due = link.down.next_departure().unwrap();
//! assert_eq!(due, Instant::from_millis(51));
//! assert!(link.down.poll(due).is_some());
//! # Ok::<(), brisk_link::SpecError>(())
//! ```

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod counters;
pub mod delay;
pub mod direction;
mod draws;
mod error;
mod link;
pub mod loss;
pub mod middlebox;
mod parcel;
pub mod queue;
pub mod rate;
pub mod seeds;
pub mod spec;
pub mod units;
mod way;

pub use counters::Counters;
pub use direction::{Direction, Offered};
pub use error::{SpecError, suggest};
pub use link::Link;
pub use loss::{LossModel, LossSpec};
pub use middlebox::MiddleboxSpec;
pub use parcel::Parcel;
pub use queue::Depth;
pub use rate::RateSpec;
pub use spec::{DirectionSpec, KEYS, LinkSpec, Mtu, Reorder};
pub use units::{Rate, Ratio};
pub use way::Way;

/// The examples of the page that a registry shows.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

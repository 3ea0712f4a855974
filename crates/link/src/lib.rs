//! Paths for packets: delay, rate, queue, loss, reordering, duplication, MTU, middleboxes.
//!
//! A [`Link`] joins two sides: A has the client, B the server. `up` goes from A to B, `down` from B to A. Its
//! elements have no clock: the driver passes `now` and asks for the next departure, in virtual time (the
//! simulator) or in real time (the emulator). Elements are generic over a [`LinkPacket`], a packet with a
//! length; only [`middlebox`] reads headers. All randomness comes from generators derived from one seed and
//! the element's name ([`seeds`]). So a run can be repeated, and switching one element on does not shift
//! another's draws.
//!
//! | module | content |
//! |---|---|
//! | [`spec`] | the description of a link, and its text on the command line and in plans |
//! | [`units`] | durations, sizes, rates and ratios as text |
//! | [`direction`] | one direction: the elements in their order |
//! | [`queue`], [`rate`] | the buffer and the bottleneck behind it |
//! | [`loss`] | loss models |
//! | [`delay`] | propagation, jitter, reordering, duplication |
//! | [`middlebox`] | devices that drop, remove and rewrite |
//! | [`counters`] | counters of packets and drops |
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
mod packet;
pub mod queue;
pub mod rate;
pub mod seeds;
pub mod spec;
pub mod units;
mod up_down;

pub use counters::Counters;
pub use direction::{LinkDirection, Offered};
pub use error::{SpecError, suggest};
pub use link::Link;
pub use loss::LossSpec;
pub use middlebox::MiddleboxSpec;
pub use packet::LinkPacket;
pub use queue::Depth;
pub use rate::RateSpec;
pub use spec::{DirectionSpec, KEYS, LinkSpec, Mtu, Reorder};
pub use units::{Rate, Ratio};
pub use up_down::Direction;

/// Compiles the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

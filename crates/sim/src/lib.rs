//! Discrete-event simulation: brisk stacks, applications and links on one virtual clock.
//!
//! A [`World`] is a path with hosts at its two sides. A host is a [`brisk_tcp::Stack`] with [`application`]s;
//! the path is one [`brisk_link::Link`] or a chain of them. Time jumps from event to event, so a minute of an
//! idle link costs nothing. Every run with the same seed gives the same packets at the same microseconds.
//!
//! | module | content |
//! |---|---|
//! | [`world`] | the path, the hosts and the event loop |
//! | [`application`] | programs on a host: request and response, bulk, pages |
//! | [`mod@transaction`] | one short transfer and its cost: the unit of every comparison |
//! | [`page`] | a page of many objects, loaded as a browser does |
//! | [`neighbours`] | plain bulk flows and flows under test on one link |
//! | [`trace`] | events and their reasons, as JSON lines |
//! | [`pcapng`] | the packets at a point of the path, as a packet capture |
//!
//! ```
//! use brisk_link::LinkSpec;
//! use brisk_sim::transaction::{TransactionSpec, transaction};
//!
//! let link = LinkSpec::parse("--rtt 200ms").unwrap();
//! let result = transaction(&TransactionSpec::new(&link, 5_000), 1).unwrap();
//! // One round trip for the handshake, one for request and response.
//! assert_eq!(result.completion.unwrap().as_millis(), 400);
//! ```

#![forbid(unsafe_code)]

mod addresses;
pub mod application;
mod arena;
mod by_connection;
mod content;
pub mod fast_open;
pub mod host;
pub mod neighbours;
pub mod page;
pub mod pcapng;
mod schedule;
pub mod seeds;
mod side;
pub mod trace;
pub mod transaction;
pub mod world;

pub use application::Application;
pub use application::view::HostView;
pub use host::{AppId, HostId};
pub use transaction::{TransactionResult, TransactionSpec, transaction};
pub use world::{Point, Side, World};

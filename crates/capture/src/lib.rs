//! Reads from a packet capture which TCP connections asked for how much, the round-trip time of their paths,
//! and the runs of packets that were lost.
//!
//! | module | content |
//! |---|---|
//! | [`reader`] | pcap and pcapng, block by block: memory does not grow with the file |
//! | [`segment`] | what of a packet matters here; headers suffice, payload may be cut off |
//! | [`train`] | packets of one direction in the order of sending, some of which turned out to be lost |
//! | [`direction`] | one direction of a connection: what was sent again, what never reached the capture point |
//! | [`connection`] | a connection: handshake, round-trip time, exchanges |
//! | [`analysis`] | all connections of a capture together |
//!
//! A loss is seen in one of two ways. *Beyond* the capture point: a segment that was seen is sent again, and
//! no DSACK says that it had arrived (RFC 2883). *Before* it: sequence numbers, or the IP identification
//! where the sender counts its packets with it (RFC 6864 lets it; Linux does), leave a gap that is filled
//! late.

#![forbid(unsafe_code)]

pub mod analysis;
pub mod connection;
pub mod direction;
pub mod reader;
pub mod segment;
pub mod train;

pub use analysis::{Analysis, Side, analyse};
pub use connection::Exchange;
pub use reader::CaptureError;
pub use train::Losses;

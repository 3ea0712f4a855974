//! Reads a packet capture: the exchanges of its TCP connections, their sizes, the round-trip times of the
//! paths, and the runs of lost packets.
//!
//! | module | content |
//! |---|---|
//! | [`reader`] | pcap and pcapng, block by block: memory does not grow with the file |
//! | [`segment`] | the fields of a packet that the analysis uses; headers suffice, payload may be cut off |
//! | [`train`] | packets of one direction in the order of sending, each marked as lost or not |
//! | [`direction`] | one direction of a connection: retransmissions, and losses before the capture point |
//! | [`connection`] | a connection: handshake, round-trip time, exchanges |
//! | [`analysis`] | all connections of a capture together |
//!
//! The capture shows a loss in one of two ways. *Beyond* the capture point: a captured segment is sent again,
//! and no DSACK reports it as a duplicate (RFC 2883). *Before* the capture point: a gap in the sequence
//! numbers is filled late, or the IP identifications have a gap. The latter needs a sender that increments
//! them by one per packet (RFC 6864 permits this; Linux does it).

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

//! The receiving half of a connection: turns arrivals into a stream, acknowledgements and a window.
//!
//! It has six parts that share no state; the connection passes values from one to the next:
//!
//! 1. [`timestamps`] checks the timestamp (PAWS) and keeps the value to echo;
//! 2. [`window`] decides which segments are acceptable, and which window is announced;
//! 3. [`assembler`] returns the data that the segment adds, as an [`assembler::Arrival`];
//! 4. [`queue`] stores the bytes until the application reads them;
//! 5. [`sack`] turns arrivals into the SACK blocks of the next acknowledgement;
//! 6. [`ack`] decides when that acknowledgement leaves.

pub(crate) mod ack;
pub(crate) mod assembler;
mod packets;
pub(crate) mod queue;
pub(crate) mod sack;
pub(crate) mod timestamps;
pub(crate) mod window;

pub(crate) use ack::{AckPolicy, Owed, Received};
pub(crate) use assembler::{Arrival, ArrivalKind, Assembler};
pub(crate) use queue::{FIRST_STORAGE, RecvQueue};
pub(crate) use sack::SackReporter;
pub(crate) use timestamps::{Paws, Timestamps, older};
pub(crate) use window::RecvWindow;

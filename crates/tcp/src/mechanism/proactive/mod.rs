//! Proactive: every segment leaves twice where that is affordable (*Reducing Web Latency: the Virtue of
//! Gentle Aggression*, section 6).
//!
//! The second instance is marked, by a reserved bit of the TCP header or by a flag of the option, and
//! leaves directly behind the first. The receiver takes whichever comes first and drops the other without
//! an acknowledgement, so that copies cause no duplicate acknowledgements. [`copies`] decides what is
//! copied and when, [`brake`] stops it on a path that loses too much, [`filter`] stands in front of the
//! receiver. A loss that a copy masked is reported and answered like any other (`R_SUCC`, `R_ACK`).
//!
//! Where it departs from the paper: the receiver keeps a ledger of what copies delivered instead of
//! asking how the previous packet with the same sequence number was marked. By the paper's words a
//! retransmission that follows a lost acknowledgement is dropped without an answer.

pub(crate) mod brake;
pub(crate) mod copies;
pub(crate) mod filter;

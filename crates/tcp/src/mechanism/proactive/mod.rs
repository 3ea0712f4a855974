//! Proactive: segments leave twice, as far as this is affordable (*Gentle Aggression* section 6).
//!
//! The second instance leaves after the first, by default directly. A reserved bit of the TCP header or a
//! flag of the option marks it. The receiver accepts the instance that arrives first and drops the other
//! without an acknowledgement, so copies cause no duplicate acknowledgements. [`copies`] decides which
//! segments are copied and when. [`brake`] stops this on a path that loses too much. [`filter`] removes
//! second instances before the receiver processes them. A loss that a copy repaired is reported and answered
//! like any other (`R_SUCC`, `R_ACK`).
//!
//! One difference from the paper: the receiver records the ranges that copies delivered. The paper's receiver
//! remembers if the previous packet with the same sequence number was marked. So it silently drops a
//! retransmission that follows a lost acknowledgement.

pub(crate) mod brake;
pub(crate) mod copies;
pub(crate) mod filter;

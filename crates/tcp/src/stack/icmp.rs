//! ICMP errors (RFC 9293 section 3.9.2.2, RFC 5927).
//!
//! An error quotes the packet that it is about. The quoted ends must be those of a connection, and the
//! connection must have the quoted sequence number outstanding; an attacker who cannot see the traffic cannot
//! forge that. The meaning of the error then depends on the state, and is the connection's to decide.

use brisk_wire::IcmpError;

use super::Stack;
use super::demux::Target;
use super::stats::Refusal;
use crate::four_tuple::FourTuple;
use crate::time::Instant;

impl Stack {
    pub(super) fn on_icmp(&mut self, error: &IcmpError, now: Instant) -> Result<(), Refusal> {
        let tuple = FourTuple { local: error.src, remote: error.dst };
        let id = match self.owners().of(&tuple) {
            Some(Target::Connection(slot)) => self.slots.key_at(slot),
            Some(Target::HalfOpen(place)) => self.unfold(place, now),
            Some(Target::TimeWait(_)) | None => None,
        };
        let id = id.ok_or(Refusal::IcmpNoConnection)?;
        self.lend(id, now);
        let slot = self.slots.at_mut(id).ok_or(Refusal::IcmpStale)?;
        slot.half_open = None;
        let (believed, aftermath) =
            slot.connection.act(now, |connection| connection.on_icmp(error.kind, error.seq, now));
        self.after(id, aftermath, now);
        if !believed {
            return Err(Refusal::IcmpStale);
        }
        self.stats.icmp_believed += 1;
        Ok(())
    }
}

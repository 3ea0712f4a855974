//! ICMP errors about a connection (RFC 5927, RFC 1191, RFC 8201, RFC 9293 section 3.9.2.2).

use brisk_wire::{IcmpKind, SeqNum};

use crate::connection::Connection;
use crate::connection::state::State;
use crate::error::CloseReason;
use crate::time::Instant;

impl Connection {
    /// An ICMP error quotes a segment of ours that began at `seq`. RFC 5927 section 4.1: a sequence number
    /// that is not outstanding means that the error is forged or stale. A packet that is too big may also be
    /// parity, which lies left of the window and may be longer than the data that it covers.
    ///
    /// Returns true if the quote was believed.
    pub(crate) fn on_icmp(&mut self, kind: IcmpKind, seq: SeqNum, now: Instant) -> bool {
        let (una, nxt) = (self.tx.scoreboard.una(), self.tx.scoreboard.nxt());
        let is_parity = matches!(kind, IcmpKind::PacketTooBig { .. }) && self.sent_parity_at(seq, now);
        if (seq.lt(una) || seq.ge(nxt)) && !is_parity {
            return false;
        }
        match kind {
            IcmpKind::PacketTooBig { mtu } => {
                let shrunk = self.tx.mtu.on_icmp(mtu, now);
                if self.opens_fast() && self.state == State::SynSent {
                    // Only the SYN itself can have been too large.
                    if seq == una {
                        self.on_syn_too_big();
                    }
                } else if shrunk {
                    self.shrink_segments();
                }
            }
            IcmpKind::PortUnreachable | IcmpKind::ProtocolUnreachable => {
                self.on_hard_error(CloseReason::Refused)
            }
            IcmpKind::NetUnreachable => self.on_unreachable(CloseReason::NetworkUnreachable),
            IcmpKind::HostUnreachable | IcmpKind::AdminProhibited => {
                self.on_unreachable(CloseReason::Unreachable);
            }
            IcmpKind::TimeExceeded => self.soft_error = Some(CloseReason::Unreachable),
            IcmpKind::ParameterProblem | IcmpKind::SourceQuench => {}
        }
        true
    }

    fn on_unreachable(&mut self, reason: CloseReason) {
        self.soft_error = Some(reason);
        self.on_hard_error(reason);
    }

    /// RFC 5927 section 5.2 and RFC 5461: a hard error ends a connection that is being opened; one
    /// that is open treats it as soft and leaves the verdict to its timers.
    fn on_hard_error(&mut self, reason: CloseReason) {
        if matches!(self.state, State::SynSent | State::SynReceived) {
            self.outbox.clear();
            self.end(reason);
        }
    }

    /// Returns why the peer was not heard again: the soft error that was reported since it was heard last, or
    /// else `timeout` (RFC 1122 section 4.2.3.9).
    pub(crate) fn reason_of_silence(&self, timeout: CloseReason) -> CloseReason {
        self.soft_error.unwrap_or(timeout)
    }
}

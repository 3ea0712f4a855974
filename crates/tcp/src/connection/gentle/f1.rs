//! Corrective's profile F1: parity at the sequence numbers of the data, as in the paper, for the laboratory.
//!
//! Parity has the sequence number of the data that it covers, so a parity segment whose option a device
//! removed looks like data. Therefore every segment has the option, and an end discards a segment that has
//! payload but no option. Then both ends switch F1 off. The end that discarded the segment accepts payload
//! again when the peer's timestamp echo shows that the peer knows that F1 is off.

use brisk_wire::Flags;

use crate::connection::gentle::{Gentle, Parts, SegmentVerdict};
use crate::mechanism::GentleOff;
use crate::outcome::Arrived;
use crate::receive::timestamps::older;
use crate::time::Instant;

/// State of F1 after its end: payload is held off until the peer knows of the end.
#[derive(Clone, Copy, Debug)]
pub(in crate::connection) struct F1Hold {
    /// Payload is accepted only if it echoes this timestamp or a later one.
    since: u32,
    /// Time of the last notification of the peer.
    notified: Instant,
}

impl Gentle {
    /// Checks a segment that arrived in F1: either the peer uses the option, or a device removes it.
    pub(crate) fn check_f1(
        &mut self,
        segment: &Arrived<'_>,
        parts: &mut Parts<'_>,
        now: Instant,
    ) -> SegmentVerdict {
        let counts = !segment.flags.intersects(Flags::SYN | Flags::RST);
        if counts && self.is_held(segment) {
            parts.counters.gentle_dropped += 1;
            return self.answer_held(segment, parts, now);
        }
        if !self.is_f1() || !counts {
            return SegmentVerdict::Process;
        }
        if segment.options.gentle.is_some() {
            if let Some(active) = self.active() {
                active.confirmed = true;
            }
            return SegmentVerdict::Process;
        }
        self.leave_f1(parts, now);
        if segment.is_empty() {
            return SegmentVerdict::Process;
        }
        // The segment may be parity: it is ignored, including its acknowledgement.
        parts.counters.gentle_dropped += 1;
        SegmentVerdict::Drop
    }

    /// True if the peer does not know of the fall-back yet, so that its payload is held off.
    fn is_held(&self, segment: &Arrived<'_>) -> bool {
        let Some(F1Hold { since, .. }) = self.f1_hold else { return false };
        let echo = segment.options.timestamps.map(|stamps| stamps.echo);
        !segment.is_empty() && echo.is_none_or(|echo| older(echo, since))
    }

    /// Records the timestamp of a segment that is held off, and answers it at a limited rate. The echo shows
    /// the peer that this end has switched F1 off. Data at RCV.NXT is discarded, and acknowledgements without
    /// data have later sequence numbers. So if only accepted segments updated the timestamp, two ends with
    /// data outstanding would wait for each other's echo for ever.
    fn answer_held(&mut self, segment: &Arrived<'_>, parts: &mut Parts<'_>, now: Instant) -> SegmentVerdict {
        let within = parts.rx.window.acceptable(parts.rx.rcv_nxt(), segment.seq, segment.len());
        let valid = within && parts.is_believable(segment, now);
        if let Some(stamps) = segment.options.timestamps.filter(|_| valid) {
            let last_ack = parts.rx.ack.last_ack_sent();
            parts.rx.timestamps.on_accepted(segment.seq, stamps.value, last_ack, now);
        }
        let interval = parts.config.challenge_interval;
        let Some(F1Hold { notified, .. }) = &mut self.f1_hold else { return SegmentVerdict::Drop };
        // The peer may have missed the acknowledgement that notified it.
        if now.saturating_since(*notified) < interval {
            return SegmentVerdict::Drop;
        }
        *notified = now;
        SegmentVerdict::Answer
    }

    /// Switches F1 off after the option was removed from a segment.
    fn leave_f1(&mut self, parts: &mut Parts<'_>, now: Instant) {
        // Makes all later timestamps larger than those sent with the option.
        parts.rx.timestamps.advance();
        self.f1_hold = Some(F1Hold { since: parts.rx.timestamps.value(now), notified: now });
        self.stop(GentleOff::Stripped, parts);
        parts.rx.ack.force();
        // The peer discards data that left without the option before it switched F1 off. The data is sent
        // again, which is no sign of congestion.
        if parts.tx.scoreboard.mark_all_lost() > 0 {
            parts.tx.recovery.on_too_big(parts.tx.scoreboard.nxt());
        }
    }
}

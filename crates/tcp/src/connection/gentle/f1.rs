//! What Corrective does in profile F1 and nowhere else: the paper's placement, for the laboratory.
//!
//! Parity stands where the data stands that it covers, so that a segment whose option was removed on the
//! way cannot be told from data by its place. Therefore the option is on every segment, a segment with
//! payload and without it is discarded, both ends switch off then, and the one that found out takes
//! payload again only from a peer that has seen it switch off: everything that left before carries an
//! older echo.

use brisk_wire::{Flags, Gentle};

use crate::connection::Connection;
use crate::connection::arrive::Verdict;
use crate::mechanism::{GentleOff, Profile};
use crate::outcome::Arrived;
use crate::receive::timestamps::older;
use crate::time::Instant;

/// F1 after its end.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub(in crate::connection) struct Quarantine {
    /// Payload counts only if it echoes this timestamp or a later one.
    since: u32,
    /// When the peer was last told.
    told: Instant,
}

impl Connection {
    /// The profile that was agreed on is F1.
    pub(crate) fn is_f1(&self) -> bool {
        self.gentle.agreed().is_some_and(|agreed| agreed.profile == Profile::F1)
    }

    /// In F1 every segment has the option, if only to show that nobody removes it.
    pub(crate) fn idle_option(&self) -> Option<Gentle> {
        self.is_f1().then_some(Gentle::Short { flags: 0 })
    }

    /// A segment arrived in F1: the peer speaks the option, or somebody removes it.
    pub(crate) fn check_f1(&mut self, segment: &Arrived<'_>, now: Instant) -> Verdict {
        let counts = !segment.flags.intersects(Flags::SYN | Flags::RST);
        if counts && self.is_quarantined(segment) {
            self.counters.gentle_dropped += 1;
            self.answer_quarantined(segment, now);
            return Verdict::Done;
        }
        if !self.is_f1() || !counts {
            return Verdict::Continue;
        }
        if segment.options.gentle.is_some() {
            if let Some(active) = self.gentle.active() {
                active.confirmed = true;
            }
            return Verdict::Continue;
        }
        self.leave_f1(now);
        if segment.is_empty() {
            return Verdict::Continue;
        }
        // It may be parity: nothing of it counts, not even its acknowledgement.
        self.counters.gentle_dropped += 1;
        Verdict::Done
    }

    /// After the fall-back only a peer that has heard of it is believed.
    fn is_quarantined(&self, segment: &Arrived<'_>) -> bool {
        let Some(Quarantine { since, .. }) = self.gentle.quarantine else { return false };
        let echo = segment.options.timestamps.map(|stamps| stamps.echo);
        !segment.is_empty() && echo.is_none_or(|echo| older(echo, since))
    }

    /// Of a segment in quarantine the timestamp counts: its echo tells the peer that this end has switched
    /// off. Were that left to what is accepted, two ends with data outstanding would wait for each other's
    /// echo for ever: what begins at RCV.NXT is discarded, and bare acknowledgements lie behind it.
    fn answer_quarantined(&mut self, segment: &Arrived<'_>, now: Instant) {
        let within = self.rx.window.acceptable(self.rx.rcv_nxt(), segment.seq, segment.len());
        let valid = within && self.is_believable(segment, now);
        if let Some(stamps) = segment.options.timestamps.filter(|_| valid) {
            let last_ack = self.rx.ack.last_ack_sent();
            self.rx.timestamps.on_accepted(segment.seq, stamps.value, last_ack, now);
        }
        let interval = self.config.challenge_interval;
        let Some(Quarantine { told, .. }) = &mut self.gentle.quarantine else { return };
        // Who still has not heard did not get the acknowledgement that told it.
        if now.saturating_since(*told) >= interval {
            *told = now;
            self.answer_at_once();
        }
    }

    /// The option was removed from a segment: neither end uses it any more.
    fn leave_f1(&mut self, now: Instant) {
        // Timestamps without the option are larger than any that left with it.
        self.rx.timestamps.advance();
        self.gentle.quarantine = Some(Quarantine { since: self.rx.timestamps.value(now), told: now });
        self.stop_gentle(GentleOff::Stripped);
        self.rx.ack.force();
        // The peer discards what left without the option before it fell back itself: it is sent again, which
        // is no sign of congestion.
        if self.tx.scoreboard.mark_all_lost() > 0 {
            self.tx.recovery.on_too_big(self.tx.scoreboard.nxt());
        }
    }
}

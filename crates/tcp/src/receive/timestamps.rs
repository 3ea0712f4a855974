//! Timestamps (RFC 7323): our clock, TS.Recent, PAWS, and the round-trip time of an echo.
//!
//! The clock ticks in milliseconds from a random offset per connection (RFC 7323 section 5.4 and
//! section 7.1), so that it tells nobody how long the host has been up. All comparisons are modulo 2^32.

use brisk_wire::{SeqNum, Timestamps as Option8};

use crate::time::{Duration, Instant};

/// TS.Recent is outdated after this idle time (RFC 7323 section 5.5): a 1 ms clock turns its sign
/// bit over in 24.8 days.
const RECENT_LIFETIME: Duration = Duration::from_secs(24 * 24 * 3600);

/// One tick of the timestamp clock.
const TICK: Duration = Duration::from_millis(1);

/// What PAWS says of a segment (RFC 7323 section 5.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Paws {
    /// Not older than TS.Recent, or nothing valid to compare with.
    Accept,
    /// An old duplicate: acknowledge and drop (R1). Does not apply to RST.
    Old,
}

/// See the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Timestamps {
    offset: u32,
    /// TS.Recent and when it was taken.
    recent: Option<(u32, Instant)>,
}

impl Timestamps {
    /// A clock that starts `offset` ticks off the driver's.
    pub(crate) fn new(offset: u32) -> Self {
        Timestamps { offset, recent: None }
    }

    /// The offset, for whoever goes on in our place (TIME-WAIT).
    pub(crate) fn offset(&self) -> u32 {
        self.offset
    }

    /// TSval at `now`.
    pub(crate) fn value(&self, now: Instant) -> u32 {
        ((now.as_micros() / TICK.as_micros() as u64) as u32).wrapping_add(self.offset)
    }

    /// TS.Recent, 0 before the first segment: the TSecr to send.
    pub(crate) fn echo(&self) -> u32 {
        self.recent.map_or(0, |(value, _)| value)
    }

    /// TS.Recent, if a timestamp was ever taken.
    pub(crate) fn recent(&self) -> Option<u32> {
        self.recent.map(|(value, _)| value)
    }

    /// The option for a segment that leaves at `now`.
    pub(crate) fn option(&self, now: Instant) -> Option8 {
        Option8 { value: self.value(now), echo: self.echo() }
    }

    /// R1 of RFC 7323 section 5.3: is TSval `value` older than TS.Recent, and TS.Recent not itself
    /// outdated?
    pub(crate) fn paws(&self, value: u32, now: Instant) -> Paws {
        match self.recent {
            Some((recent, at)) if older(value, recent) && now.saturating_since(at) <= RECENT_LIFETIME => {
                Paws::Old
            }
            Some(_) | None => Paws::Accept,
        }
    }

    /// The timestamp of the SYN: taken unconditionally.
    pub(crate) fn on_syn(&mut self, value: u32, now: Instant) {
        self.recent = Some((value, now));
    }

    /// R3 of RFC 7323 section 5.3 (and section 4.3): after a segment was accepted, its TSval becomes
    /// TS.Recent if the segment spans the left edge of what was acknowledged last, so that an echo
    /// measures a delayed acknowledgement from the first segment it covers. Returns whether it did.
    pub(crate) fn on_accepted(
        &mut self,
        seq: SeqNum,
        value: u32,
        last_ack_sent: SeqNum,
        now: Instant,
    ) -> bool {
        let newer = self.paws(value, now) == Paws::Accept;
        let take = newer && seq.le(last_ack_sent);
        if take {
            self.recent = Some((value, now));
        }
        take
    }

    /// The round-trip time that an echoed TSecr measures, in whole ticks and at least one; `None` if
    /// it is not an echo of a timestamp sent since `oldest`.
    pub(crate) fn rtt(&self, echo: u32, oldest: Instant, now: Instant) -> Option<Duration> {
        let ticks = self.value(now).wrapping_sub(echo);
        let age = self.value(now).wrapping_sub(self.value(oldest));
        (ticks <= age).then(|| TICK * ticks.max(1))
    }
}

/// True if timestamp `a` is older than `b`, modulo 2^32.
pub(crate) fn older(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

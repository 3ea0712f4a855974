//! Timestamps (RFC 7323): the local clock, TS.Recent, PAWS, and the round-trip time of an echo.
//!
//! The clock ticks in milliseconds from a random offset per connection (RFC 7323 section 5.4 and section
//! 7.1), so that it does not reveal the host's uptime. All comparisons are modulo 2^32.

use brisk_wire::{SeqNum, Timestamps as Option8};

use crate::time::{Duration, Instant, Micros, TIMESTAMP_TICK};

/// Idle time after which TS.Recent is outdated (RFC 7323 section 5.5), because the sign bit of a 1 ms clock
/// changes every 24.8 days.
const RECENT_LIFETIME: Duration = Duration::from_secs(24 * 24 * 3600);

/// Result of PAWS for a segment (RFC 7323 section 5.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Paws {
    /// Not older than TS.Recent, or nothing valid to compare with.
    Accept,
    /// An old duplicate: acknowledge and drop (R1). Does not apply to RST.
    Old,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Timestamps {
    offset: u32,
    /// TS.Recent with the time of its update.
    recent: Option<(u32, Instant)>,
}

impl Timestamps {
    /// Returns a clock that is `offset` ticks ahead of the driver's.
    pub(crate) fn new(offset: u32) -> Self {
        Timestamps { offset, recent: None }
    }

    /// Returns TSval at `now`.
    pub(crate) fn value(&self, now: Instant) -> u32 {
        ((now.as_micros() / u64::from(TIMESTAMP_TICK.0)) as u32).wrapping_add(self.offset)
    }

    /// Returns the TSecr to send: TS.Recent, 0 before the first segment.
    pub(crate) fn echo(&self) -> u32 {
        self.recent.map_or(0, |(value, _)| value)
    }

    /// Returns TS.Recent if there was a timestamp.
    pub(crate) fn recent(&self) -> Option<u32> {
        self.recent.map(|(value, _)| value)
    }

    /// Returns the option for a segment that leaves at `now`.
    pub(crate) fn option(&self, now: Instant) -> Option8 {
        Option8 { value: self.value(now), echo: self.echo() }
    }

    /// Advances the clock by one tick, so that later segments have a larger TSval than all earlier ones.
    #[cfg(feature = "historical")]
    pub(crate) fn advance(&mut self) {
        self.offset = self.offset.wrapping_add(1);
    }

    /// Applies R1 of RFC 7323 section 5.3: compares TSval `value` with TS.Recent. An outdated TS.Recent
    /// accepts any value.
    pub(crate) fn paws(&self, value: u32, now: Instant) -> Paws {
        match self.recent {
            Some((recent, at)) if older(value, recent) && now.saturating_since(at) <= RECENT_LIFETIME => {
                Paws::Old
            }
            Some(_) | None => Paws::Accept,
        }
    }

    /// Stores the timestamp of the SYN unconditionally.
    pub(crate) fn on_syn(&mut self, value: u32, now: Instant) {
        self.recent = Some((value, now));
    }

    /// Applies R3 of RFC 7323 section 5.3 (and section 4.3): the TSval of an accepted segment becomes
    /// TS.Recent if the segment begins at or below Last.ACK.sent. So the echo in a delayed acknowledgement is
    /// that of the first segment that it covers. Returns whether TS.Recent was set.
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

    /// Returns the round-trip time that an echoed TSecr measures, in whole ticks and at least one; `None` if
    /// it is not an echo of a timestamp sent since `oldest`.
    pub(crate) fn rtt(&self, echo: u32, oldest: Instant, now: Instant) -> Option<Micros> {
        let ticks = self.value(now).wrapping_sub(echo);
        let age = self.value(now).wrapping_sub(self.value(oldest));
        (ticks <= age).then(|| TIMESTAMP_TICK * ticks.max(1))
    }
}

/// True if timestamp `a` is older than `b`, modulo 2^32.
pub(crate) fn older(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Duration;

    const START: Instant = Instant::from_millis(1_000);

    fn after(millis: u64) -> Instant {
        START + Duration::from_millis(millis)
    }

    /// Returns a connection whose TS.Recent is 1000, stored at `START`.
    fn after_first() -> Timestamps {
        let mut timestamps = Timestamps::new(77);
        timestamps.on_syn(1000, START);
        timestamps
    }

    #[test]
    fn the_clock_ticks_in_milliseconds_from_its_offset() {
        let timestamps = Timestamps::new(u32::MAX);
        assert_eq!(timestamps.value(Instant::ZERO), u32::MAX);
        assert_eq!(timestamps.value(Instant::from_micros(999)), u32::MAX);
        assert_eq!(timestamps.value(Instant::from_micros(1_000)), 0, "modulo 2^32");
    }

    /// RFC 7323 section 3.2: before anything was received, TSecr is zero.
    #[test]
    fn the_first_option_echoes_nothing() {
        assert_eq!(Timestamps::new(5).option(START), Option8 { value: 1005, echo: 0 });
        assert_eq!(Timestamps::new(5).recent(), None);
        assert_eq!(after_first().option(START), Option8 { value: 1077, echo: 1000 });
    }

    /// RFC 7323 section 5.3, R1: "If there is a Timestamps option in the arriving segment, SEG.TSval <
    /// TS.Recent, TS.Recent is valid (see later discussion), and if the RST bit is not set, then treat
    /// the arriving segment as not acceptable".
    #[test]
    fn a_segment_older_than_ts_recent_is_an_old_duplicate() {
        let timestamps = after_first();
        assert_eq!(timestamps.paws(999, after(10)), Paws::Old);
        assert_eq!(timestamps.paws(1000, after(10)), Paws::Accept);
        assert_eq!(timestamps.paws(1001, after(10)), Paws::Accept);
        assert_eq!(timestamps.paws(1000u32.wrapping_add(1 << 31), after(10)), Paws::Old, "half the circle");
        assert_eq!(Timestamps::new(0).paws(5, START), Paws::Accept, "nothing to compare with");
    }

    /// RFC 7323 section 5.5: "after 24 days of idle time, TS.Recent is invalid".
    #[test]
    fn ts_recent_is_outdated_after_24_days() {
        let mut timestamps = after_first();
        let day = 24 * 3600 * 1000;
        assert_eq!(timestamps.paws(999, after(24 * day)), Paws::Old);
        assert_eq!(timestamps.paws(999, after(24 * day + 1)), Paws::Accept);
        assert!(timestamps.on_accepted(SeqNum(1), 999, SeqNum(1), after(25 * day)));
        assert_eq!(timestamps.echo(), 999);
    }

    /// RFC 7323 section 4.3: "If: SEG.TSval >= TS.Recent and SEG.SEQ <= Last.ACK.sent then SEG.TSval is
    /// copied to TS.Recent".
    #[test]
    fn only_a_segment_at_the_acknowledged_edge_is_echoed() {
        let mut timestamps = after_first();
        let last_ack_sent = SeqNum(500);
        assert!(timestamps.on_accepted(SeqNum(500), 1010, last_ack_sent, after(10)));
        assert!(!timestamps.on_accepted(SeqNum(600), 1020, last_ack_sent, after(20)), "delayed ACK");
        assert_eq!(timestamps.echo(), 1010, "the first of the segments that one ACK covers");
        assert!(timestamps.on_accepted(SeqNum(400), 1030, last_ack_sent, after(30)), "a filled hole");
        assert!(!timestamps.on_accepted(SeqNum(400), 1029, last_ack_sent, after(30)), "an old duplicate");
        assert_eq!(timestamps.echo(), 1030);
    }

    #[test]
    fn an_echo_measures_the_round_trip() {
        let timestamps = Timestamps::new(u32::MAX - 1_020);
        let sent = timestamps.value(after(10));
        assert_eq!(timestamps.rtt(sent, START, after(60)), Some(Micros::from_millis(50)), "over the wrap");
        assert_eq!(timestamps.rtt(sent, START, after(10)), Some(TIMESTAMP_TICK), "never zero");
    }

    #[test]
    fn echo_of_a_timestamp_never_sent_is_no_sample() {
        let timestamps = Timestamps::new(0);
        assert_eq!(timestamps.rtt(timestamps.value(after(61)), START, after(60)), None, "from the future");
        assert_eq!(timestamps.rtt(timestamps.value(START) - 1, START, after(60)), None, "from before");
        assert!(timestamps.rtt(timestamps.value(START), START, after(60)).is_some());
    }
}

//! Distinguishes a pause from a queue when the round-trip time rises abruptly.
//!
//! A process that gets no processor time, or a path that stands still, delays acknowledgements. They then
//! arrive in quick succession, whereas a bottleneck spaces them. A pause says nothing about queues, so its
//! round-trip times must not count as a sign of one.

use crate::evidence::shows_queue;
use crate::path::at_rate;
use crate::time::{Duration, Instant, Micros};

/// Minimum time between the first and the last acknowledgement, or between the departures of their segments.
/// A shorter time does not show how the acknowledgements are spaced.
const DURATION_MIN: Micros = Micros::from_micros(200);

/// A round-trip sample, and what is known when it arrives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) rtt: Duration,
    /// The sample before it, if there is one.
    pub(super) latest: Option<Duration>,
    /// Minimum round-trip time of the path.
    pub(super) least: Duration,
    /// Time when the newest acknowledged segment left.
    pub(super) sent_at: Instant,
    /// Bytes acknowledged.
    pub(super) bytes: u32,
    /// Rate of the path in bytes per second, if the path has limited the rate of a flight.
    pub(super) rate: Option<u64>,
}

/// An abrupt rise of the round-trip time, and the acknowledgements since then. It ends when the round-trip
/// time is short again, or when a segment that left after the rise is acknowledged: the pause was over when
/// that segment left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Rise {
    /// Arrival of the first acknowledgement.
    at: Instant,
    /// Time when the newest segment that it acknowledges left.
    sent_at: Instant,
    /// Bytes acknowledged after the first acknowledgement.
    bytes: u32,
}

impl Rise {
    /// True if a sample may show a queue; false if a pause has lengthened it, or if it is too early to tell.
    /// Begins or ends the rise in `rise`.
    pub(super) fn may_show_queue(rise: &mut Option<Rise>, sample: &Sample, now: Instant) -> bool {
        let Sample { rtt, latest, least, sent_at, bytes, rate } = *sample;
        if !shows_queue(rtt, least) || rise.is_some_and(|rise| sent_at >= rise.at) {
            *rise = None;
            return true;
        }
        let Some(rise) = rise else {
            let before = latest.unwrap_or(least);
            // The rise is not abrupt: the sample before was long too, which shows a standing queue or jitter,
            // or it was nearly as long as this one.
            if shows_queue(before, least) || !shows_queue(rtt, before) {
                return true;
            }
            *rise = Some(Rise { at: now, sent_at, bytes: 0 });
            return false;
        };
        rise.bytes = rise.bytes.saturating_add(bytes);
        let arrived = Micros::between(rise.at, now);
        let left = Micros::between(rise.sent_at, sent_at);
        let carried = rate.map_or(Duration::ZERO, |rate| at_rate(rise.bytes.into(), rate));
        let due = left.max(carried.into());
        arrived.max(due) >= DURATION_MIN && arrived.0 >= due.0 / 2
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    const MSS: u32 = 1432;
    /// The path carries a segment in 0.6 ms.
    const SPACING: u64 = 600;
    const LEAST: Duration = Duration::from_millis(20);

    /// Returns which samples may show a queue. Their segments left one by one at the rate of the path.
    /// `arrival` gets the time, in us, at which an acknowledgement would arrive without a queue or a pause.
    /// It returns the time at which the acknowledgement arrives.
    fn counted(segments: u64, rate: Option<u64>, arrival: impl Fn(u64) -> u64) -> Vec<bool> {
        let (mut rise, mut latest) = (None, None);
        let counts = |n: u64| {
            let sent_at = Instant::from_micros(n * SPACING);
            let now = Instant::from_micros(arrival(n * SPACING + 20_000));
            let rtt = now.saturating_since(sent_at);
            let sample = Sample { rtt, latest, least: LEAST, sent_at, bytes: MSS, rate };
            latest = Some(rtt);
            Rise::may_show_queue(&mut rise, &sample, now)
        };
        (0..segments).map(counts).collect()
    }

    fn count(counted: &[bool]) -> usize {
        counted.iter().filter(|counts| **counts).count()
    }

    #[test]
    fn samples_after_a_pause_do_not_count() {
        // Nothing arrives from 25 to 85 ms.
        let paused = |at| if (25_000..85_000).contains(&at) { 85_000 } else { at };
        // Acknowledgements due from 81 ms on are at most 4 ms late: too little for a queue.
        let delayed = |n: u64| (25_000..81_000).contains(&(n * SPACING + 20_000));
        let expected: Vec<bool> = (0..200).map(|n| !delayed(n)).collect();
        assert_eq!(counted(200, None, paused), expected);
    }

    #[test]
    fn queue_that_appears_abruptly_shows_from_the_second_sample_on() {
        let queued = |at| if at >= 30_000 { at + 30_000 } else { at };
        assert_eq!(count(&counted(200, None, queued)), 199);
    }

    /// A receiver or a network that hands acknowledgements on in batches.
    #[test]
    fn queue_shows_although_acknowledgements_arrive_in_batches() {
        for batch in [2_000, 6_000, 10_000] {
            let queued = |at: u64| (if at >= 30_000 { at + 30_000 } else { at }).next_multiple_of(batch);
            let seen = count(&counted(400, None, queued));
            assert!(seen >= 360, "{batch}: {seen}");
        }
    }

    /// The path has become faster than remembered, so its acknowledgements seem to be close together.
    #[test]
    fn remembered_rate_that_is_too_low_hides_a_queue_for_one_flight_only() {
        let queued = |at| if at >= 30_000 { at + 30_000 } else { at };
        let seen = count(&counted(400, Some(u64::from(MSS) * 1_000_000 / (4 * SPACING)), queued));
        assert!(seen >= 300, "{seen}");
    }

    /// Ten segments leave at once; only the rate of the path tells how far apart their acknowledgements are.
    #[test]
    fn burst_needs_the_rate_of_the_path() {
        let last_counts = |rate, apart: u64| {
            let (mut rise, mut counts) = (None, true);
            for n in 0..10 {
                let now = Instant::from_micros(80_000 + n * apart);
                let rtt = now.saturating_since(Instant::ZERO);
                let sample =
                    Sample { rtt, latest: None, least: LEAST, sent_at: Instant::ZERO, bytes: MSS, rate };
                counts = Rise::may_show_queue(&mut rise, &sample, now);
            }
            counts
        };
        let rate = Some(u64::from(MSS) * 1_000_000 / SPACING);
        assert_eq!([last_counts(rate, 30), last_counts(rate, SPACING)], [false, true]);
        // Without the rate, the acknowledgements count as soon as they span `DURATION_MIN`.
        assert_eq!(
            [last_counts(None, 10), last_counts(None, 30), last_counts(None, SPACING)],
            [false, true, true]
        );
    }
}

//! Distinguishes a pause from a queue when the round-trip time rises abruptly.
//!
//! A process that gets no processor time, or a path that stands still, delays acknowledgements. They then
//! arrive in quick succession, whereas a bottleneck spaces them. A pause says nothing about queues, so its
//! round-trip times must not count as a sign of one.

use crate::evidence::shows_queue;
use crate::path::at_rate;
use crate::time::{Duration, Instant, Micros};

/// Minimum duration of the acknowledgements or of their segments that shows how the former are spaced.
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

/// What a round-trip sample says about queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Meaning {
    /// It shows whether there is a queue.
    Clear,
    /// It is too early to tell whether a pause or a queue lengthened it.
    Undecided,
    /// A pause lengthened it.
    Pause,
}

/// An abrupt rise of the round-trip time, and the acknowledgements since then. It ends when the round-trip
/// time is short again, or a segment is acknowledged that left after the rise: no pause before delayed it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Rise {
    /// Arrival of the first acknowledgement, and the time when its newest segment left.
    at: Instant,
    sent_at: Instant,
    /// Bytes acknowledged after the first acknowledgement.
    bytes: u32,
    /// Increase of the round-trip time.
    pub(super) by: Duration,
}

impl Rise {
    /// Classifies a sample, and begins or ends the rise in `rise`.
    pub(super) fn classify(rise: &mut Option<Rise>, sample: &Sample, now: Instant) -> Meaning {
        let Sample { rtt, latest, least, sent_at, bytes, rate } = *sample;
        if !shows_queue(rtt, least) || rise.is_some_and(|rise| sent_at >= rise.at) {
            *rise = None;
            return Meaning::Clear;
        }
        let Some(rise) = rise else {
            let before = latest.unwrap_or(least);
            // A round-trip time that was long before shows a queue that stands, or jitter.
            if shows_queue(before, least) || !shows_queue(rtt, before) {
                return Meaning::Clear;
            }
            *rise = Some(Rise { at: now, sent_at, bytes: 0, by: rtt.saturating_sub(before) });
            return Meaning::Undecided;
        };
        rise.bytes = rise.bytes.saturating_add(bytes);
        let arrived = Micros::between(rise.at, now);
        let left = Micros::between(rise.sent_at, sent_at);
        let carried = rate.map_or(Duration::ZERO, |rate| at_rate(rise.bytes.into(), rate));
        let due = left.max(carried.into());
        match arrived.max(due) >= DURATION_MIN {
            false => Meaning::Undecided,
            true if arrived.0 < due.0 / 2 => Meaning::Pause,
            true => Meaning::Clear,
        }
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

    /// Returns the meanings of samples whose segments left one by one at the rate of the path. `arrival`
    /// maps the time, in us, at which an acknowledgement would arrive without queue and pause.
    fn meanings(segments: u64, rate: Option<u64>, arrival: impl Fn(u64) -> u64) -> Vec<Meaning> {
        let (mut rise, mut latest) = (None, None);
        let of = |n: u64| {
            let sent_at = Instant::from_micros(n * SPACING);
            let now = Instant::from_micros(arrival(n * SPACING + 20_000));
            let rtt = now.saturating_since(sent_at);
            let sample = Sample { rtt, latest, least: LEAST, sent_at, bytes: MSS, rate };
            latest = Some(rtt);
            Rise::classify(&mut rise, &sample, now)
        };
        (0..segments).map(of).collect()
    }

    fn clear(meanings: &[Meaning]) -> usize {
        meanings.iter().filter(|meaning| **meaning == Meaning::Clear).count()
    }

    #[test]
    fn samples_after_a_pause_do_not_count() {
        // Nothing arrives from 25 to 85 ms.
        let paused = |at| if (25_000..85_000).contains(&at) { 85_000 } else { at };
        let seen = meanings(200, None, paused);
        let delayed: Vec<_> =
            (0..200).filter(|n| (25_000..81_000).contains(&(n * SPACING + 20_000))).collect();
        let (first, rest) = delayed.split_first().unwrap();
        assert_eq!(seen[*first as usize], Meaning::Undecided);
        assert!(rest.iter().all(|n| seen[*n as usize] == Meaning::Pause), "{seen:?}");
        assert_eq!(clear(&seen), 200 - delayed.len());
    }

    #[test]
    fn queue_that_appears_abruptly_shows_from_the_second_sample_on() {
        let queued = |at| if at >= 30_000 { at + 30_000 } else { at };
        assert_eq!(clear(&meanings(200, None, queued)), 199);
    }

    /// A receiver or a network that hands acknowledgements on in batches.
    #[test]
    fn queue_shows_although_acknowledgements_arrive_in_batches() {
        for batch in [2_000, 6_000, 10_000] {
            let queued = |at: u64| (if at >= 30_000 { at + 30_000 } else { at }).next_multiple_of(batch);
            let seen = meanings(400, None, queued);
            assert!(clear(&seen) >= 360, "{batch}: {}", clear(&seen));
        }
    }

    /// The path has become faster than remembered, so its acknowledgements seem to be close together.
    #[test]
    fn remembered_rate_that_is_too_low_hides_a_queue_for_one_flight_only() {
        let queued = |at| if at >= 30_000 { at + 30_000 } else { at };
        let seen = meanings(400, Some(u64::from(MSS) * 1_000_000 / (4 * SPACING)), queued);
        assert!(clear(&seen) >= 300, "{}", clear(&seen));
    }

    /// Ten segments leave at once; only the rate of the path tells how far apart their acknowledgements are.
    #[test]
    fn burst_needs_the_rate_of_the_path() {
        let of = |rate, apart: u64| {
            let (mut rise, mut meaning) = (None, Meaning::Clear);
            for n in 0..10 {
                let now = Instant::from_micros(80_000 + n * apart);
                let rtt = now.saturating_since(Instant::ZERO);
                let sample =
                    Sample { rtt, latest: None, least: LEAST, sent_at: Instant::ZERO, bytes: MSS, rate };
                meaning = Rise::classify(&mut rise, &sample, now);
            }
            meaning
        };
        let rate = Some(u64::from(MSS) * 1_000_000 / SPACING);
        assert_eq!([of(rate, 10), of(rate, SPACING)], [Meaning::Pause, Meaning::Clear]);
        assert_eq!([of(None, 10), of(None, SPACING)], [Meaning::Undecided, Meaning::Clear]);
    }
}

//! Detects a standing queue on the path. Parity that joins such a queue delays the data of all flows in it,
//! and mostly protects against drops by that queue.
//!
//! The measure is the smallest sample of a whole round trip. The queue that a burst itself causes drains
//! within a round trip, so some segment finds no queue. But every segment finds a standing queue (the idea of
//! CoDel, RFC 8289 section 3.2, with the round trip as the interval).

use brisk_wire::SeqNum;

use crate::time::{Instant, Micros};

/// Minimum round-trip times of the last round trips.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct QueueWatch {
    /// Minimum of the last complete round.
    last: Option<Micros>,
    /// Minimum of the current round.
    current: Option<Micros>,
    /// SND.NXT when the round began. An acknowledgement above it begins the next round.
    round_end: Option<SeqNum>,
    sampled_at: Option<Instant>,
}

impl QueueWatch {
    /// Takes a sample; `una` and `nxt` are the values after its acknowledgement.
    pub(crate) fn on_sample(&mut self, rtt: Micros, una: SeqNum, nxt: SeqNum, now: Instant) {
        self.sampled_at = Some(now);
        if self.round_end.is_none_or(|end| una.gt(end)) {
            self.last = self.current.take();
            self.round_end = Some(nxt);
        }
        self.current = Some(self.current.map_or(rtt, |min| min.min(rtt)));
    }

    /// Returns the minimum since the last complete round began. `None` if a round trip had no sample, because
    /// an idle path shows nothing.
    pub(crate) fn min_rtt(&self, srtt: Micros, now: Instant) -> Option<Micros> {
        self.sampled_at.filter(|at| Micros::between(*at, now) <= srtt)?;
        self.last.into_iter().chain(self.current).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SRTT: Micros = Micros::from_millis(60);

    fn ms(millis: u64) -> Micros {
        Micros::from_millis(millis)
    }

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    #[test]
    fn a_burst_that_fills_the_queue_is_no_standing_queue() {
        let mut watch = QueueWatch::default();
        assert_eq!(watch.min_rtt(SRTT, at(0)), None);
        // The handshake, then a flight of three: the first finds no queue, the others wait behind it.
        watch.on_sample(ms(40), SeqNum(1), SeqNum(1), at(40));
        for (una, rtt) in [(1001, 40), (2001, 60), (3001, 80)] {
            watch.on_sample(ms(rtt), SeqNum(una), SeqNum(3001), at(100 + rtt));
            assert_eq!(watch.min_rtt(SRTT, at(100 + rtt)), Some(ms(40)));
        }
    }

    #[test]
    fn round_of_slow_samples_shows_a_queue_silence_does_not() {
        let mut watch = QueueWatch::default();
        watch.on_sample(ms(40), SeqNum(1), SeqNum(1), at(40));
        // Always three segments in flight.
        for una in 1..10 {
            watch.on_sample(
                ms(70),
                SeqNum(1000 * una),
                SeqNum(1000 * una + 3000),
                at(100 + 20 * u64::from(una)),
            );
        }
        assert_eq!(watch.min_rtt(SRTT, at(300)), Some(ms(70)));
        assert_eq!(watch.min_rtt(SRTT, at(280 + 61)), None);
        // The queue is gone, as one segment shows.
        watch.on_sample(ms(41), SeqNum(10_000), SeqNum(13_000), at(310));
        assert_eq!(watch.min_rtt(SRTT, at(310)), Some(ms(41)));
    }
}

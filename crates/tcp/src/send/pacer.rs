//! Pacing: spreads transmissions over the round trip instead of sending bursts.
//!
//! A bucket fills at `percent * cwnd / srtt`, or at the rate that a congestion controller sets. Its size, the
//! *quantum*, is the data of one wake-up. It is about a millisecond of data as in Linux, so that
//! super-segments stay large at high rates. While data waits, the bucket holds a second quantum. So a late
//! wake-up does not lower the rate, if it is late by at most the time of a quantum. The first ten segments of
//! a connection are not paced, because an initial window should leave at once.

use alloc::boxed::Box;

use crate::config::PacingConfig;
use crate::time::{Duration, Instant, Micros};

/// Largest quantum, bytes.
const MAX_QUANTUM: u64 = 64 << 10;
/// Number of unpaced segments at the start of a connection.
const UNPACED_SEGMENTS: u32 = 10;
/// Rates in percent of cwnd/srtt (Linux: the same).
const SLOW_START_PERCENT: u128 = 200;
const CONGESTION_AVOIDANCE_PERCENT: u128 = 120;
/// A byte in the unit of the bucket, microseconds times bytes per second. This unit saves a division.
const BYTE: i64 = 1_000_000;

/// Pacing of one connection.
#[derive(Clone, Debug)]
pub(crate) struct Pacer {
    /// Number of segments that left since the start, or since [`Pacer::restart`] or [`Pacer::spread`] set it.
    segments: u32,
    mss: u32,
    /// Present while something paces: a configuration, a controller with a rate, or the spread of a window.
    bucket: Option<Box<Bucket>>,
}

/// The rate, and the bytes that may leave at once.
#[derive(Clone, Debug)]
struct Bucket {
    config: Option<PacingConfig>,
    /// Bytes per second; `None` while the round-trip time is unknown.
    rate: Option<u64>,
    /// Content; a byte is [`BYTE`] units. Negative after a transmission that could not wait.
    level: i64,
    at: Instant,
    /// True while data waits for the bucket to fill.
    is_awaited: bool,
    /// The spread: a remembered window is paced over a remembered round trip.
    spread: Option<Spread>,
    /// Time before which only the unpaced segments of a spread leave.
    from: Instant,
    /// Rate of the spread, bytes per second: the rate of the path.
    spread_rate: u64,
    /// True if a congestion controller sets the rate. Pacing then continues after a spread.
    is_named: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Spread {
    /// For this duration from the first paced segment on.
    Over(Micros),
    /// Until this time.
    Until(Instant),
}

impl Pacer {
    /// Returns a pacer; `None` switches it off.
    pub(crate) fn new(config: Option<PacingConfig>) -> Self {
        let bucket = config.map(|config| Box::new(Bucket { config: Some(config), ..Bucket::new() }));
        Pacer { segments: 0, mss: 536, bucket }
    }

    /// Changes or ends pacing. Until the next [`update`](Pacer::update) the current rate stays, within the
    /// new maximum.
    pub(crate) fn set_config(&mut self, config: Option<PacingConfig>) {
        if config.is_none() && self.bucket.is_none() {
            return;
        }
        let bucket = self.bucket_mut();
        bucket.config = config;
        bucket.rate = bucket.rate.filter(|_| config.is_some()).map(|rate| bucket.bounded(rate));
    }

    fn bucket_mut(&mut self) -> &mut Bucket {
        self.bucket.get_or_insert_with(|| Box::new(Bucket::new()))
    }

    #[inline]
    pub(crate) fn is_configured(&self) -> bool {
        self.bucket.as_ref().is_some_and(|bucket| bucket.config.is_some())
    }

    /// Sets the rate from the window, bytes, and the smoothed round-trip time.
    pub(crate) fn update(
        &mut self,
        cwnd: u32,
        srtt: Option<Micros>,
        in_slow_start: bool,
        mss: u32,
        now: Instant,
    ) {
        let config = self.bucket.as_ref().and_then(|bucket| bucket.config);
        let (Some(_), Some(srtt)) = (config, srtt) else { return };
        let percent = if in_slow_start { SLOW_START_PERCENT } else { CONGESTION_AVOIDANCE_PERCENT };
        let per_round = u128::from(cwnd.max(mss)) * percent * 10_000;
        let rate = per_round / u128::from(srtt.0.max(1));
        self.replace_rate(u64::try_from(rate).unwrap_or(u64::MAX), mss, now);
    }

    /// Sets the rate of a congestion controller, bytes per second, limited by the configuration. During a
    /// spread the remembered rate of the path is the lower bound, because a controller that has measured only
    /// the handshake knows less.
    pub(crate) fn set_rate(&mut self, rate: u64, mss: u32, now: Instant) {
        let spread = self.bucket.as_ref().filter(|bucket| bucket.is_spreading(now));
        let min = spread.map_or(0, |bucket| bucket.spread_rate);
        self.replace_rate(rate.max(min), mss, now).is_named = true;
    }

    /// True while a remembered window is spread.
    pub(crate) fn is_spread(&self, now: Instant) -> bool {
        self.bucket.as_ref().is_some_and(|bucket| bucket.is_spreading(now))
    }

    fn replace_rate(&mut self, rate: u64, mss: u32, now: Instant) -> &mut Bucket {
        let mss_before = core::mem::replace(&mut self.mss, mss.max(1));
        let bucket = self.bucket_mut();
        let first = bucket.rate.is_none();
        bucket.refill(mss_before, now);
        bucket.rate = Some(bucket.bounded(rate));
        if first {
            bucket.level = bucket.quantum(mss.max(1)) * BYTE;
        }
        bucket
    }

    /// Begins a spread. The bytes in `at_once` may leave at once. Later data leaves from `from` on, at `rate`
    /// bytes per second during the round trip `rtt`, which begins with the next segment.
    pub(crate) fn spread(
        &mut self,
        rate: u64,
        rtt: Micros,
        mss: u32,
        at_once: u32,
        from: Instant,
        now: Instant,
    ) {
        let mss_before = core::mem::replace(&mut self.mss, mss.max(1));
        self.segments = UNPACED_SEGMENTS.saturating_sub(at_once / self.mss);
        let bucket = self.bucket_mut();
        bucket.refill(mss_before, now);
        bucket.spread_rate = rate.clamp(1, 1 << 40);
        bucket.rate = Some(bucket.spread_rate);
        bucket.level = bucket.quantum(mss.max(1)) * BYTE;
        bucket.spread = Some(if from > now { Spread::Until(from + rtt) } else { Spread::Over(rtt) });
        bucket.from = from;
    }

    /// Ends the spread: the round trip is over, or the window is no longer trusted.
    pub(crate) fn end_spread(&mut self) {
        let is_over = |bucket: &mut Box<Bucket>| {
            bucket.from = Instant::ZERO;
            bucket.spread.take().is_some() && bucket.only_spreads()
        };
        self.bucket.take_if(is_over);
    }

    /// Leaves the next ten segments unpaced, unless a spread is in progress.
    pub(crate) fn restart(&mut self) {
        if self.bucket.as_ref().is_none_or(|bucket| bucket.spread.is_none()) {
            self.segments = 0;
        }
    }

    /// Sets the largest payload of a segment; the bucket must hold at least one.
    pub(crate) fn set_mss(&mut self, mss: u32) {
        self.mss = mss.max(1);
    }

    /// Returns the current rate, bytes per second; `None` without pacing.
    pub(crate) fn rate(&self) -> Option<u64> {
        self.bucket.as_ref()?.rate
    }

    /// Returns the bytes that may leave now; `u32::MAX` without pacing.
    pub(crate) fn budget(&self, now: Instant) -> u32 {
        let Some(bucket) = &self.bucket else { return u32::MAX };
        let spread_over = bucket.only_spreads() && bucket.spread.is_some() && !bucket.is_spreading(now);
        if bucket.rate.is_none() || spread_over {
            return u32::MAX;
        }
        match UNPACED_SEGMENTS.saturating_sub(self.segments) {
            0 if now < bucket.from => 0,
            0 => u32::try_from(bucket.level_at(self.mss, now).max(0) / BYTE).unwrap_or(u32::MAX),
            // Only the first segments of a longer burst are unpaced.
            unpaced => unpaced * self.mss,
        }
    }

    /// Records whether data waits for the bucket to fill.
    pub(crate) fn set_awaited(&mut self, awaited: bool) {
        if let Some(bucket) = &mut self.bucket {
            bucket.is_awaited = awaited;
        }
    }

    /// Records that no data waits to be sent, so that silence earns no second quantum.
    #[inline]
    pub(crate) fn end_wait(&mut self) {
        if let Some(bucket) = &mut self.bucket {
            bucket.is_awaited = false;
            bucket.level = bucket.level.min(bucket.quantum(self.mss) * BYTE);
        }
    }

    /// Records that `bytes` left, of any origin.
    pub(crate) fn on_sent(&mut self, bytes: u32, now: Instant) {
        let unpaced = self.segments < UNPACED_SEGMENTS;
        self.segments = self.segments.saturating_add(bytes.div_ceil(self.mss.max(1)));
        let Some(bucket) = &mut self.bucket else { return };
        if let Some(Spread::Over(rtt)) = bucket.spread {
            bucket.spread = Some(Spread::Until(now + rtt));
        }
        if unpaced || bucket.rate.is_none() {
            return;
        }
        bucket.refill(self.mss, now);
        // This limit of the negative level keeps a burst of probes from silencing the connection for long.
        let floor = -2 * bucket.quantum(self.mss) * BYTE;
        bucket.level = (bucket.level - i64::from(bytes) * BYTE).max(floor);
        bucket.is_awaited = false;
    }

    /// Returns the time when a quantum may leave; `None` if a segment may leave now, or if nothing is paced.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let bucket = self.bucket.as_ref().filter(|_| self.segments >= UNPACED_SEGMENTS)?;
        let rate = bucket.rate?;
        if bucket.from > bucket.at {
            return Some(bucket.from);
        }
        if bucket.level >= i64::from(self.mss) * BYTE {
            return None;
        }
        let missing = (bucket.quantum(self.mss) * BYTE - bucket.level).max(0) as u64;
        Some(bucket.at + Duration::from_micros(missing.div_ceil(rate)))
    }

    /// Returns the quantum: the bytes that may leave in one wake-up.
    pub(crate) fn quantum_bytes(&self) -> u32 {
        let quantum = self.bucket.as_ref().map_or(2 * i64::from(self.mss), |bucket| bucket.quantum(self.mss));
        u32::try_from(quantum).unwrap_or(u32::MAX)
    }
}

impl Bucket {
    fn new() -> Self {
        Bucket {
            config: None,
            rate: None,
            level: 0,
            at: Instant::ZERO,
            is_awaited: false,
            spread: None,
            from: Instant::ZERO,
            spread_rate: 0,
            is_named: false,
        }
    }

    /// True while a remembered window is spread.
    fn is_spreading(&self, now: Instant) -> bool {
        match self.spread {
            Some(Spread::Over(_)) => true,
            Some(Spread::Until(until)) => now < until,
            None => false,
        }
    }

    /// True if there is no pacing except a spread.
    fn only_spreads(&self) -> bool {
        self.config.is_none() && !self.is_named
    }

    fn bounded(&self, rate: u64) -> u64 {
        let max = self.config.and_then(|config| config.max_rate).unwrap_or(u64::MAX);
        rate.min(max).clamp(1, 1 << 40)
    }

    /// Returns the size of the bucket, bytes: a millisecond of data, at least two segments, at most 64 KB.
    fn quantum(&self, mss: u32) -> i64 {
        let millisecond = self.rate.unwrap_or(0) / 1000;
        let min = 2 * u64::from(mss);
        millisecond.clamp(min, MAX_QUANTUM.max(min)) as i64
    }

    fn level_at(&self, mss: u32, now: Instant) -> i64 {
        let elapsed = i64::from(Micros::between(self.at, now).0);
        let filled = elapsed.saturating_mul(self.rate.unwrap_or(0) as i64);
        let quanta = if self.is_awaited { 2 } else { 1 };
        let quantum = self.quantum(mss) * BYTE;
        // A late wake-up may send its data in several parts, so the bucket keeps what it already holds.
        self.level.saturating_add(filled).min(quanta * quantum).max(self.level.min(2 * quantum))
    }

    fn refill(&mut self, mss: u32, now: Instant) {
        self.level = self.level_at(mss, now);
        self.at = self.at.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 1000;
    const RTT: Micros = Micros::from_millis(100);

    fn us(micros: u64) -> Instant {
        Instant::from_micros(micros)
    }

    /// Returns a pacer past its first ten segments at `rate` bytes per second, with a full bucket at time 0.
    fn pacer(rate: u64) -> Pacer {
        let mut pacer = Pacer::new(Some(PacingConfig::default()));
        pacer.on_sent(10 * MSS * 2, us(0));
        pacer.replace_rate(rate, MSS, us(0));
        pacer
    }

    #[test]
    fn without_a_configuration_or_a_round_trip_nothing_is_paced() {
        let mut off = Pacer::new(None);
        off.update(100_000, Some(RTT), true, MSS, us(0));
        off.on_sent(1 << 30, us(0));
        assert_eq!((off.budget(us(0)), off.next_timeout(), off.rate()), (u32::MAX, None, None));
        let mut early = Pacer::new(Some(PacingConfig::default()));
        early.update(100_000, None, true, MSS, us(0));
        early.on_sent(1 << 20, us(0));
        assert_eq!((early.budget(us(0)), early.next_timeout()), (u32::MAX, None));
    }

    #[test]
    fn the_rate_is_a_percentage_of_the_window_per_round_trip() {
        let mut pacer = pacer(1);
        pacer.update(100_000, Some(RTT), false, MSS, us(0));
        assert_eq!(pacer.rate(), Some(1_200_000));
        pacer.update(100_000, Some(RTT), true, MSS, us(0));
        assert_eq!(pacer.rate(), Some(2_000_000));
    }

    #[test]
    fn an_initial_window_leaves_at_once() {
        let mut pacer = Pacer::new(Some(PacingConfig::default()));
        pacer.update(10 * MSS, Some(RTT), true, MSS, us(0));
        for left in (1..=10).rev() {
            assert_eq!(pacer.budget(us(0)), left * MSS, "of a run of many segments, these");
            pacer.on_sent(MSS, us(0));
        }
        assert_eq!(pacer.budget(us(0)), 2 * MSS, "from here on a quantum at a time");
    }

    #[test]
    fn a_remembered_window_is_paced_within_one_round_trip() {
        let mut pacer = Pacer::new(None);
        pacer.spread(1_000_000, RTT, MSS, 10 * MSS, us(0), us(0));
        pacer.on_sent(10 * MSS, us(0));
        assert_eq!(pacer.budget(us(0)), 2 * MSS, "an initial window leaves at once");
        pacer.on_sent(2 * MSS, us(0));
        assert_eq!((pacer.budget(us(0)), pacer.next_timeout()), (0, Some(us(2000))));
        assert_eq!(pacer.budget(us(2000)), 2 * MSS);
        assert_eq!(pacer.budget(us(100_000)), u32::MAX, "after it acknowledgements set the pace");
        pacer.end_spread();
        assert_eq!((pacer.budget(us(4000)), pacer.next_timeout(), pacer.rate()), (u32::MAX, None, None));
    }

    #[test]
    fn a_spread_may_begin_later() {
        let mut pacer = Pacer::new(None);
        pacer.spread(1_000_000, RTT, MSS, 0, us(50_000), us(0));
        assert_eq!((pacer.budget(us(49_999)), pacer.next_timeout()), (0, Some(us(50_000))));
        pacer.set_rate(200_000, MSS, us(20_000));
        assert_eq!((pacer.budget(us(20_000)), pacer.next_timeout()), (0, Some(us(50_000))));
        assert_eq!(pacer.budget(us(50_000)), 2 * MSS);
        pacer.on_sent(2 * MSS, us(50_000));
        assert_eq!((pacer.budget(us(50_000)), pacer.next_timeout()), (0, Some(us(52_000))));
        assert!(pacer.is_spread(us(149_999)) && !pacer.is_spread(us(150_000)));
        pacer.spread(1_000_000, RTT, MSS, 0, us(300_000), us(200_000));
        pacer.end_spread();
        assert_eq!(pacer.budget(us(200_000)), 2 * MSS, "a start that is no longer trusted does not wait");
    }

    #[test]
    fn rate_of_a_controller_outlasts_the_spread_of_a_remembered_window() {
        let mut pacer = Pacer::new(None);
        pacer.spread(1_000_000, RTT, MSS, 10 * MSS, us(0), us(0));
        pacer.on_sent(10 * MSS, us(0));
        pacer.restart();
        assert_eq!(
            pacer.budget(us(0)),
            2 * MSS,
            "a start out of idle leaves no more at once than its spread says"
        );
        pacer.on_sent(2 * MSS, us(0));
        pacer.set_rate(1_000_000, MSS, us(1000));
        assert_eq!(pacer.budget(us(100_000)), 2 * MSS, "a quantum, and not the window");
        pacer.end_spread();
        assert_eq!((pacer.budget(us(100_000)), pacer.rate()), (2 * MSS, Some(1_000_000)));
    }

    #[test]
    fn a_controller_that_knows_less_does_not_slow_the_spread() {
        let mut pacer = Pacer::new(None);
        pacer.spread(1_000_000, RTT, MSS, 4 * MSS, us(0), us(0));
        pacer.set_rate(200_000, MSS, us(0));
        assert_eq!(pacer.rate(), Some(1_000_000));
        pacer.on_sent(MSS, us(0));
        pacer.set_rate(2_000_000, MSS, us(50_000));
        assert_eq!(pacer.rate(), Some(2_000_000), "it may be faster");
        pacer.set_rate(200_000, MSS, us(50_000));
        assert_eq!(pacer.rate(), Some(1_000_000));
        pacer.set_rate(200_000, MSS, us(100_000));
        assert_eq!(pacer.rate(), Some(200_000), "after a round trip it knows more");
    }

    #[test]
    fn a_spent_quantum_comes_back_at_the_rate() {
        // 1 MB/s: two segments of 1000 bytes take 2 ms.
        let mut pacer = pacer(1_000_000);
        assert_eq!(pacer.budget(us(0)), 2000);
        pacer.on_sent(1000, us(0));
        assert_eq!((pacer.budget(us(0)), pacer.next_timeout()), (1000, None));
        pacer.on_sent(1000, us(0));
        assert_eq!((pacer.budget(us(0)), pacer.next_timeout()), (0, Some(us(2000))));
        assert_eq!(pacer.budget(us(1500)), 1500);
        assert_eq!(pacer.budget(us(2000)), 2000);
        assert_eq!(pacer.budget(us(1_000_000)), 2000, "silence earns no burst");
        pacer.set_awaited(true);
        assert_eq!(pacer.budget(us(3000)), 3000, "a late wake-up loses nothing");
        assert_eq!(pacer.budget(us(1_000_000)), 4000, "a later one finds two quanta");
        pacer.on_sent(1000, us(1_000_000));
        assert_eq!(pacer.budget(us(1_000_000)), 3000, "also in parts");
        pacer.set_awaited(true);
        pacer.end_wait();
        assert_eq!(pacer.budget(us(1_000_000)), 2000, "only the second quantum expires");
        assert_eq!(pacer.budget(us(2_000_000)), 2000, "silence earns no second quantum");
    }

    #[test]
    fn quantum_is_a_millisecond_of_data_within_2_segments_and_64_kb() {
        assert_eq!(pacer(100_000).budget(us(0)), 2000);
        assert_eq!(pacer(10_000_000).budget(us(0)), 10_000);
        assert_eq!(pacer(1_000_000_000).budget(us(0)), 65_536);
    }

    #[test]
    fn unpaced_bytes_are_paid_back() {
        let mut pacer = pacer(1_000_000);
        pacer.on_sent(5000, us(0));
        assert_eq!((pacer.budget(us(0)), pacer.next_timeout()), (0, Some(us(5000))));
        pacer.on_sent(u32::MAX, us(0));
        assert_eq!(pacer.next_timeout(), Some(us(6000)), "debt is bounded");
    }

    #[test]
    fn at_its_timeout_the_pacer_has_a_quantum_at_any_rate() {
        // One segment in 60 s: the bucket takes two minutes to fill.
        let mut pacer = pacer(10_000);
        pacer.update(MSS, Some(Micros::from_millis(72_000)), false, MSS, us(0));
        pacer.on_sent(2 * MSS, us(0));
        let due = pacer.next_timeout().expect("the bucket is empty");
        assert!(due > us(100_000_000), "{due:?}");
        assert_eq!(pacer.budget(due), 2 * MSS);
    }

    #[test]
    fn the_bucket_holds_a_segment_of_whatever_size_segments_are_now() {
        let mut pacer = pacer(100_000);
        pacer.on_sent(2 * MSS, us(0));
        pacer.set_mss(5 * MSS);
        let due = pacer.next_timeout().expect("a larger segment must wait");
        assert!(pacer.budget(due) >= 5 * MSS);
    }

    #[test]
    fn over_time_the_rate_leaves_also_with_timers_that_are_late() {
        for late in [0, 300, 900] {
            let mut pacer = pacer(12_000_000);
            let (mut now, mut total) = (us(0), 0u64);
            while now < us(1_000_000) {
                while pacer.budget(now) >= MSS {
                    pacer.on_sent(MSS, now);
                    total += u64::from(MSS);
                }
                pacer.set_awaited(true);
                now = pacer.next_timeout().map_or(now + Micros(1), |due| due + Micros(late));
            }
            assert!((11_900_000..12_100_000).contains(&total), "{total} of 12 MB/s, {late} us late");
        }
    }
}

//! Serialisation: the time when a packet's last bit has left the bottleneck.
//!
//! A packet waits until earlier packets have left. Then it takes its length divided by the rate. All values
//! are integers in nanoseconds, and the remainder is carried over to the next packet, so a busy link is exact
//! over any length of time.
//!
//! A rate may also follow a recording in the format of the mahimahi tool set (Netravali et al., USENIX ATC
//! 2015). It has one line per opportunity to deliver 1,500 bytes, with its time in milliseconds. The
//! recording repeats from its beginning.

use crate::error::SpecError;
use crate::units::Rate;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

/// The rate of the bottleneck, in the grammar of `--rate`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RateSpec {
    /// `20mbit`.
    Constant(Rate),
    /// `20mbit,5mbit@10s`: rates, each with its start time since the beginning of the link, the first at
    /// zero; sorted.
    Steps(Arc<[(Duration, Rate)]>),
    /// `trace:FILE`: opportunities to deliver, from a recording.
    Trace {
        /// Path of the recording.
        path: Arc<str>,
        /// The times of the opportunities in milliseconds, once they are loaded.
        opportunities: Option<Arc<[u64]>>,
    },
}

/// Bytes that one opportunity of a trace delivers.
const OPPORTUNITY_BYTES: usize = 1500;
const NANOS_PER_MILLI: u64 = 1_000_000;

/// The bottleneck, which assigns departure times in the order of arrival.
#[derive(Debug)]
pub(crate) enum Serialiser {
    Constant(Constant),
    Steps(Steps),
    Trace(Trace),
}

impl Serialiser {
    /// Starts idle at `began` nanoseconds. Returns `None` (no limit) if a trace is not loaded or unusable.
    pub(crate) fn new(spec: &RateSpec, began: u64) -> Option<Self> {
        match spec {
            RateSpec::Constant(rate) => Some(Serialiser::Constant(Constant {
                rate: rate.bits_per_second(),
                free: began,
                remainder: 0,
            })),
            RateSpec::Steps(steps) => {
                let (_, first) = steps.first()?;
                Some(Serialiser::Steps(Steps {
                    now: Constant { rate: first.bits_per_second(), free: began, remainder: 0 },
                    steps: steps.clone(),
                    began,
                    next: 1,
                }))
            }
            RateSpec::Trace { path: _, opportunities } => {
                let times = opportunities.clone()?;
                let period = times.last()?.checked_mul(NANOS_PER_MILLI).filter(|period| *period > 0)?;
                let left = OPPORTUNITY_BYTES;
                Some(Serialiser::Trace(Trace { times, period, began, cycle: 0, index: 0, left }))
            }
        }
    }

    /// Returns the time when the last bit of a packet that arrives at `now` (nanoseconds) has left.
    pub(crate) fn departure(&mut self, now: u64, len: usize) -> u64 {
        match self {
            Serialiser::Constant(constant) => constant.departure(now, len),
            Serialiser::Steps(steps) => steps.departure(now, len),
            Serialiser::Trace(trace) => trace.departure(now, len),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Constant {
    rate: u64,
    /// Time when the last packet has left, whole nanoseconds.
    free: u64,
    /// Fraction of a nanosecond to add to `free`, in units of 1/rate nanoseconds.
    remainder: u64,
}

impl Constant {
    fn departure(&mut self, now: u64, len: usize) -> u64 {
        if now > self.free {
            self.free = now;
            self.remainder = 0;
        }
        self.finish(work_of(len))
    }

    /// Adds `work` after the packets on the line; returns the time when it is done.
    fn finish(&mut self, work: u128) -> u64 {
        let work = work + u128::from(self.remainder);
        let nanos = u64::try_from(work / u128::from(self.rate)).unwrap_or(u64::MAX);
        self.remainder = (work % u128::from(self.rate)) as u64;
        self.free = self.free.saturating_add(nanos);
        // Rounds up: the last bit has left only after the last fraction of a nanosecond.
        self.free.saturating_add(u64::from(self.remainder > 0))
    }
}

/// Returns the work of a packet in bit·ns/s; divided by the rate in bit/s it is a time in ns.
fn work_of(len: usize) -> u128 {
    u128::from(len as u64) * 8 * 1_000_000_000
}

/// A rate that changes at given times, even during a packet.
#[derive(Debug)]
pub(crate) struct Steps {
    /// The line at the current rate.
    now: Constant,
    steps: Arc<[(Duration, Rate)]>,
    began: u64,
    /// Index of the next step.
    next: usize,
}

impl Steps {
    fn departure(&mut self, now: u64, len: usize) -> u64 {
        if now > self.now.free {
            self.now.free = now;
            self.now.remainder = 0;
        }
        let mut work = work_of(len);
        while let Some((after, rate)) = self.steps.get(self.next) {
            let step = self.began.saturating_add(u64::try_from(after.as_nanos()).unwrap_or(u64::MAX));
            let done = u128::from(self.now.rate) * u128::from(step.saturating_sub(self.now.free));
            let wanted = work + u128::from(self.now.remainder);
            if done > wanted {
                break;
            }
            // The rest of the packet is serialised at the next rate.
            work = wanted - done;
            self.now = Constant { rate: rate.bits_per_second(), free: self.now.free.max(step), remainder: 0 };
            self.next += 1;
        }
        self.now.finish(work)
    }
}

#[derive(Debug)]
pub(crate) struct Trace {
    times: Arc<[u64]>,
    /// Period after which the opportunities repeat, in nanoseconds.
    period: u64,
    began: u64,
    /// The next opportunity with capacity left: repetition of the trace, index in it, bytes left.
    cycle: u64,
    index: usize,
    left: usize,
}

impl Trace {
    fn departure(&mut self, now: u64, len: usize) -> u64 {
        if self.time() < now {
            self.seek(now);
        }
        let mut wanted = len;
        while wanted > self.left {
            wanted -= self.left;
            self.advance();
        }
        self.left -= wanted;
        self.time()
    }

    fn time(&self) -> u64 {
        let within = self.times.get(self.index).copied().unwrap_or(0) * NANOS_PER_MILLI;
        self.began.saturating_add(self.cycle.saturating_mul(self.period)).saturating_add(within)
    }

    fn advance(&mut self) {
        self.left = OPPORTUNITY_BYTES;
        self.index += 1;
        if self.index >= self.times.len() {
            self.index = 0;
            self.cycle += 1;
        }
    }

    /// Moves to the first opportunity at or after `now`; unused earlier opportunities are lost.
    fn seek(&mut self, now: u64) {
        let since = now.saturating_sub(self.began);
        self.cycle = since / self.period;
        let within = since % self.period;
        self.index = self.times.partition_point(|ms| ms * NANOS_PER_MILLI < within);
        self.left = OPPORTUNITY_BYTES;
        // The last opportunity of a repetition is at its very end, so `within < period` always finds one.
        debug_assert!(self.index < self.times.len());
    }
}

/// Parses a mahimahi trace: whole milliseconds, not decreasing, the last above zero.
///
/// # Errors
/// Names the wrong line and the reason.
pub fn parse_rate_trace(path: &str, text: &str) -> Result<Arc<[u64]>, SpecError> {
    let mut times: Vec<u64> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |problem: &str, remedy: &str| {
            let place = format!("trace:{path}");
            SpecError::new(&place, format!("line {}: {problem}", index + 1), remedy)
        };
        let Ok(ms) = line.parse::<u64>() else {
            return Err(wrong("not a whole number", "write one time in milliseconds per line"));
        };
        if ms > u64::MAX / NANOS_PER_MILLI / 2 {
            return Err(wrong("the time is too large", "times are in milliseconds"));
        }
        if times.last().is_some_and(|last| *last > ms) {
            return Err(wrong("earlier than the previous line", "sort the lines"));
        }
        times.push(ms);
    }
    match times.last() {
        Some(last) if *last > 0 => Ok(times.into()),
        Some(_) | None => {
            let place = format!("trace:{path}");
            Err(SpecError::new(
                &place,
                "no delivery opportunity after time 0",
                "use a trace with at least one",
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use proptest::prelude::*;

    fn constant(bits: u64) -> Serialiser {
        Serialiser::new(&RateSpec::Constant(Rate::from_bits_per_second(bits)), 0).unwrap()
    }

    fn trace(text: &str) -> Serialiser {
        let opportunities = Some(parse_rate_trace("t", text).unwrap());
        Serialiser::new(&RateSpec::Trace { path: "t".into(), opportunities }, 0).unwrap()
    }

    #[test]
    fn a_packet_takes_its_length_over_the_rate() {
        let mut link = constant(12_000_000);
        assert_eq!(link.departure(0, 1500), 1_000_000);
        assert_eq!(link.departure(500_000, 1500), 2_000_000);
        assert_eq!(link.departure(5_000_000, 750), 5_500_000);
    }

    #[test]
    fn busy_link_is_exact_after_many_packets() {
        // After 700,000 packets not one nanosecond may be missing.
        let mut link = constant(7_000_000);
        let last = (0..700_000).map(|_| link.departure(0, 1000)).last();
        assert_eq!(last, Some(700_000 * 1000 * 8 * 1000 / 7));
    }

    fn steps(list: &[(u64, u64)]) -> Serialiser {
        let steps: Vec<(Duration, Rate)> = list
            .iter()
            .map(|(ms, bits)| (Duration::from_millis(*ms), Rate::from_bits_per_second(*bits)))
            .collect();
        Serialiser::new(&RateSpec::Steps(steps.into()), 0).unwrap()
    }

    #[test]
    fn a_step_takes_effect_in_the_middle_of_a_packet() {
        let mut link = steps(&[(0, 12_000_000), (10, 3_000_000), (20, 12_000_000)]);
        assert_eq!(link.departure(0, 1500), 1_000_000);
        // Half of the packet leaves in the last half millisecond of the fast rate, the other half at a
        // quarter of that rate.
        assert_eq!(link.departure(9_500_000, 1500), 12_000_000);
        assert_eq!(link.departure(9_500_000, 1500), 16_000_000);
        assert_eq!(link.departure(9_500_000, 1500), 20_000_000);
        assert_eq!(link.departure(9_500_000, 1500), 21_000_000);
        assert_eq!(link.departure(50_000_000, 1500), 51_000_000);
        let mut link = steps(&[(0, 12_000_000), (10, 3_000_000), (20, 6_000_000)]);
        assert_eq!(link.departure(30_000_000, 1500), 32_000_000, "steps take effect on an idle link");
    }

    #[test]
    fn a_trace_delivers_1500_bytes_at_each_opportunity() {
        let mut link = trace("1\n2\n2\n10\n");
        let departures: Vec<u64> = (0..6).map(|_| link.departure(0, 1500) / NANOS_PER_MILLI).collect();
        assert_eq!(departures, [1, 2, 2, 10, 11, 12]);
    }

    #[test]
    fn small_packets_share_an_opportunity_and_large_ones_take_several() {
        let mut link = trace("1\n2\n3\n4\n");
        let departures: Vec<u64> =
            [500, 500, 500, 1, 3000].map(|len| link.departure(0, len) / NANOS_PER_MILLI).to_vec();
        assert_eq!(departures, [1, 1, 1, 2, 4]);
    }

    #[test]
    fn unused_opportunities_are_lost() {
        let mut link = trace("1\n2\n3\n4\n");
        assert_eq!(link.departure(2_500_000, 40), 3_000_000);
        assert_eq!(link.departure(3_500_000, 1500), 4_000_000);
        assert_eq!(link.departure(4_001_000, 40), 5_000_000);
        assert_eq!(link.departure(1_000_000_500_000, 40), 1_000_001_000_000);
    }

    #[test]
    fn error_in_a_trace_names_the_line() {
        let error = |text| parse_rate_trace("a.txt", text).unwrap_err().to_string();
        assert_eq!(
            error("1\nx\n"),
            "'trace:a.txt': line 2: not a whole number; write one time in milliseconds per line"
        );
        assert_eq!(error("3\n2\n"), "'trace:a.txt': line 2: earlier than the previous line; sort the lines");
        assert!(parse_rate_trace("a", "0\n0\n").is_err() && parse_rate_trace("a", "").is_err());
    }

    proptest! {
        #[test]
        fn departures_never_go_back_and_never_exceed_the_rate(
            bits in 1_000u64..10_000_000_000,
            packets in prop::collection::vec((0u64..2_000_000, 1usize..9000), 1..200),
        ) {
            let mut link = constant(bits);
            let (mut now, mut last, mut busy_since, mut busy_bits) = (0, 0, 0, 0u128);
            for (gap, len) in packets {
                now += gap;
                if now > last { busy_since = now; busy_bits = 0; }
                busy_bits += len as u128 * 8;
                let departure = link.departure(now, len);
                prop_assert!(departure >= last && departure >= now);
                let ideal = busy_bits * 1_000_000_000 / u128::from(bits);
                let taken = u128::from(departure - busy_since);
                prop_assert!(taken >= ideal && taken <= ideal + 2, "taken {taken}, ideal {ideal}");
                last = departure;
            }
        }
    }
}

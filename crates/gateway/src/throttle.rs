//! A rate limit that connections share: after each chunk, a connection waits for the time that the chunk
//! takes at this rate.
//!
//! Waiting connections are served in the order of their arrival, one chunk each, so that they share the rate
//! equally.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Duration of the burst that is permitted after a time without traffic.
const BURST: Duration = Duration::from_millis(100);

/// Bits per second, at least 8.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BitRate(u64);

impl BitRate {
    /// Returns bytes per second.
    pub(crate) fn bytes(self) -> u64 {
        self.0 / 8
    }
}

const UNITS: [(&str, u64); 4] = [("gbit", 1_000_000_000), ("mbit", 1_000_000), ("kbit", 1_000), ("bit", 1)];

impl FromStr for BitRate {
    type Err = String;

    /// Parses `50mbit`, `1.5gbit`, `256kbit`: decimal multiples, in any case.
    fn from_str(text: &str) -> Result<BitRate, String> {
        let lower = text.to_ascii_lowercase();
        let unit = UNITS.iter().find_map(|(unit, bits)| Some((lower.strip_suffix(unit)?, *bits)));
        let bits = unit.and_then(|(number, bits)| Some(number.parse::<f64>().ok()? * bits as f64));
        match bits {
            Some(bits) if (8.0..1e15).contains(&bits) => Ok(BitRate(bits.round() as u64)),
            _ => Err("write a rate in bits per second, for instance \"50mbit\"".to_owned()),
        }
    }
}

impl fmt::Display for BitRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, bits) = UNITS.into_iter().find(|(_, bits)| self.0 >= *bits).unwrap_or(("bit", 1));
        write!(f, "{}{unit}", self.0 as f64 / bits as f64)
    }
}

/// The rate limit of one direction.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    /// Bytes per second; 0 means no limit.
    rate: AtomicU64,
    /// Time until which the forwarded bytes have used up the rate.
    paid: Mutex<Option<Instant>>,
}

impl Throttle {
    /// Changes the limit, for open connections too.
    pub(crate) fn set(&self, rate: Option<BitRate>) {
        self.rate.store(rate.map_or(0, BitRate::bytes), Ordering::Relaxed);
    }

    /// Counts forwarded bytes; returns the time to wait.
    pub(crate) fn charge(&self, bytes: u64, now: Instant) -> Duration {
        let rate = self.rate.load(Ordering::Relaxed);
        if rate == 0 {
            return Duration::ZERO;
        }
        let mut paid = self.paid.lock().unwrap_or_else(PoisonError::into_inner);
        let earliest = now.checked_sub(BURST).unwrap_or(now);
        let begin = paid.map_or(earliest, |paid| paid.max(earliest));
        let until = begin + Duration::from_secs_f64(bytes as f64 / rate as f64);
        *paid = Some(until);
        until.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_bits_per_second_with_a_unit() {
        let written = |text: &str| text.parse::<BitRate>().map(|rate| (rate.bytes(), rate.to_string()));
        assert_eq!(written("50mbit"), Ok((6_250_000, "50mbit".to_owned())));
        assert_eq!(written("1.5Gbit"), Ok((187_500_000, "1.5gbit".to_owned())));
        assert_eq!(written("8bit"), Ok((1, "8bit".to_owned())));
        for bad in ["50", "50mb", "mbit", "0mbit", "-1mbit", "NaNmbit", "infmbit", "1e9gbit", ""] {
            assert!(written(bad).is_err_and(|why| why.contains("50mbit")), "{bad}");
        }
    }

    #[test]
    fn a_second_carries_the_rate_and_one_burst_with_chunks_of_any_size() {
        for chunk in [1_000, 16_384] {
            let (throttle, begin) = (Throttle::default(), Instant::now());
            throttle.set("8mbit".parse().ok());
            let (mut now, mut carried) = (begin, 0);
            while now < begin + Duration::from_secs(1) {
                carried += chunk;
                now += throttle.charge(chunk, now);
            }
            assert!((1_100_000..1_100_000 + 2 * chunk).contains(&carried), "{carried}");
        }
    }

    #[test]
    fn without_a_limit_nothing_waits() {
        let (throttle, now) = (Throttle::default(), Instant::now());
        assert_eq!(throttle.charge(u64::MAX, now), Duration::ZERO);
        throttle.set("8bit".parse().ok());
        assert!(throttle.charge(10, now) > Duration::from_secs(9));
        throttle.set(None);
        assert_eq!(throttle.charge(10, now), Duration::ZERO);
    }
}

//! The memory of paths as text that survives a restart.
//!
//! ```text
//! brisk-paths 1 1764000000
//! path 192.0.2.1 198.51.100.9 100000 4000 99000 540000 - - - 16384 163 163 1460 - - - 0 carried 28960 540000 1193334 1
//! end 1 9f0a6c1de2b47533
//! ```
//!
//! After the two addresses follow:
//! - srtt, rttvar and min_rtt in microseconds with their remaining lifetime;
//! - three words of older releases that are skipped;
//! - segments sent, lost, and runs of losses, in 1024ths;
//! - MSS of the peer; lower and upper limit of the MTU with their remaining lifetime;
//! - failed handshakes; a doubtful time of the last handshake, if any, in microseconds with its lifetime;
//! - after the word `carried`: the bytes of a flight with their remaining lifetime, the rate of the path in
//!   bytes per second (0 if unknown), and 1 if the path has limited the rate.

use alloc::format;
use alloc::string::String;

use super::{Aging, DecayingLosses, Ends, LossCount, NarrowPath, Path, PathMemory, PathRtt, Volume};
use crate::congestion::sample::Train;
use crate::stored::{Clock, ImportError, Kind, Stored, Words, left, or_dash};
use crate::time::{Duration, Instant};

const KIND: Kind = Kind { name: "brisk-paths", version: "1" };

impl PathMemory {
    /// Writes the memory. `unix`: seconds since 1970, if known.
    pub(crate) fn export(&self, unix: Option<u64>, now: Instant) -> String {
        KIND.write(unix, |records| {
            for (Ends { local, remote }, path) in self.paths.iter() {
                let Path { rtt, doubtful_rtt, volume, losses, mss, mtu, handshake_failures, .. } = path;
                let rtt = rtt.filter(|rtt| rtt.until > now).map_or_else(no_rtt, |rtt| write_rtt(&rtt, now));
                let LossCount { sent, lost, runs } = losses.decayed(now, super::LOSS_HALF_LIFE).count;
                let mtu = mtu.map_or_else(none, |mtu| {
                    format!("{} {} {}", mtu.fact.low, mtu.fact.high, left(Some(mtu.until), now))
                });
                let mss = or_dash(*mss);
                let doubtful = doubtful_rtt.filter(|rtt| rtt.until > now).map_or_else(String::new, |rtt| {
                    format!(" {} {}", rtt.fact.as_micros(), left(Some(rtt.until), now))
                });
                let carried = if volume.carried > 0 && volume.until > now {
                    let (rate, limited) = volume.rate().map_or((0, 0), |rate| (rate.rate, u8::from(rate.is_limited)));
                    format!(" carried {} {} {rate} {limited}", volume.carried, left(Some(volume.until), now))
                } else {
                    String::new()
                };
                records.push(&format!(
                    "path {local} {remote} {rtt} {} {sent} {lost} {runs} {mss} {mtu} {handshake_failures}{doubtful}{carried}",
                    none()
                ));
            }
        })
    }

    /// Adds the facts that [`PathMemory::export`] wrote, except for paths that are already known.
    pub(crate) fn import(&mut self, text: &str, unix: Option<u64>, now: Instant) -> Result<(), ImportError> {
        let stored = KIND.read(text)?;
        let clock = stored.clock(unix, now);
        // Parsed twice, so that an invalid line does not change the memory.
        self.emptied().read_lines(&stored, &clock, now)?;
        self.read_lines(&stored, &clock, now)
    }

    fn read_lines(&mut self, stored: &Stored<'_>, clock: &Clock, now: Instant) -> Result<(), ImportError> {
        stored.each(|words| match words.next() {
            Some("path") => {
                let ends = Ends { local: words.read()?, remote: words.read()? };
                let path = read_path(words, clock, now)?;
                // This process's own facts are newer.
                if self.paths.peek(&ends).is_none() {
                    self.paths.touch_or_insert(ends, || path);
                }
                Some(())
            }
            Some(_) | None => None,
        })
    }
}

fn read_path(words: &mut Words<'_>, clock: &Clock, now: Instant) -> Option<Path> {
    let mut micros = || words.read().map(Duration::from_micros);
    let rtt = PathRtt { srtt: micros()?, rttvar: micros()?, min_rtt: micros()? };
    let rtt = words.read_time(clock)?.map(|until| Aging { fact: rtt, until });
    // The minimum over all connections is not stored; it starts again from that of the last connection.
    let min_rtt = rtt.map(|Aging { fact, until }| Aging { fact: fact.min_rtt, until });
    // Skips the congestion window of older releases, which shows only the effect of the last loss.
    for _ in 0..3 {
        words.next()?;
    }
    let count = LossCount { sent: words.read()?, lost: words.read()?, runs: words.read()? };
    let mss = words.read_or_dash()?;
    let (low, high): (Option<u16>, Option<u16>) = (words.read_or_dash()?, words.read_or_dash()?);
    let mtu = words.read_time(clock)?.zip(low.zip(high));
    let mtu = mtu.map(|(until, (low, high))| Aging { fact: NarrowPath { low, high }, until });
    let losses = DecayingLosses { count, halved: now };
    let handshake_failures = words.read()?;
    let (mut doubtful_rtt, mut volume) = (None, Volume::default());
    while let Some(word) = words.next() {
        if word == "carried" {
            let carried = words.read()?;
            let until = words.read_time(clock)?;
            let (rate, limited): (u64, u8) = (words.read()?, words.read()?);
            if let Some(until) = until {
                let train = (rate > 0).then_some(Train { rate, is_limited: limited == 1 });
                volume = Volume::stored(carried, until, train);
            }
        } else {
            let fact = Duration::from_micros(word.parse().ok()?);
            doubtful_rtt = words.read_time(clock)?.map(|until| Aging { fact, until });
        }
    }
    Some(Path { rtt, doubtful_rtt, min_rtt, volume, losses, mss, mtu, large: None, handshake_failures })
}

fn write_rtt(rtt: &Aging<PathRtt>, now: Instant) -> String {
    let PathRtt { srtt, rttvar, min_rtt } = rtt.fact;
    let left = left(Some(rtt.until), now);
    format!("{} {} {} {left}", srtt.as_micros(), rttvar.as_micros(), min_rtt.as_micros())
}

fn no_rtt() -> String {
    "0 0 0 -".into()
}

fn none() -> String {
    "- - -".into()
}

#[cfg(test)]
mod tests {
    use super::super::{FlightReport, HandshakeResult, MtuReport, PathFacts, PathReport};
    use super::*;
    use crate::evidence::LossTimes;
    use crate::four_tuple::KeyedHash;
    use core::net::IpAddr;

    fn at(seconds: u64) -> Instant {
        Instant::from_millis(1000 * seconds)
    }

    fn memory() -> PathMemory {
        PathMemory::new(1024, KeyedHash::new(&1.into()))
    }

    fn ends(last: u8) -> Ends {
        Ends { local: IpAddr::from([192, 0, 2, 1]), remote: IpAddr::from([198, 51, 100, last]) }
    }

    /// Returns a memory with one path of which everything is known, and one with a failure only.
    fn full() -> PathMemory {
        let ms = Duration::from_millis;
        let mut memory = memory();
        let report = PathReport {
            rtt: Some((PathRtt { srtt: ms(100), rttvar: ms(4), min_rtt: ms(99) }, 9)),
            doubtful_rtt: None,
            flight: Some(FlightReport {
                began: at(0),
                sent_until: at(0),
                bytes: 58_400,
                segments: 40,
                sent: 40,
                lost: 0,
                lost_beyond: 0,
                standard: (14_600, 10),
                min_rtt: ms(99),
                waited: ms(0),
                waited_at_loss: ms(0),
                times: LossTimes::default(),
                has_vanished: false,
                train: Some(Train { rate: 1_000_000, is_limited: true }),
                granted: 0,
            }),
            losses: LossCount { sent: 1000, lost: 10, runs: 5 },
            mss: Some(1400),
            saw_queue: false,
            mtu: MtuReport::Narrow(NarrowPath { low: 1064, high: 1400 }),
            handshake: Some(HandshakeResult::Completed),
        };
        memory.on_report(ends(1), &report, at(0));
        let failed = PathReport { handshake: Some(HandshakeResult::Failed), ..PathReport::default() };
        memory.on_report(ends(2), &failed, at(0));
        let doubtful = PathReport { doubtful_rtt: Some(ms(300)), ..PathReport::default() };
        memory.on_report(ends(3), &PathReport { doubtful_rtt: None, ..report }, at(0));
        memory.on_report(ends(3), &doubtful, at(0));
        memory
    }

    #[test]
    fn memory_survives_a_restart_and_ages_meanwhile() {
        let before = full();
        let text = before.export(Some(1000), at(60));
        let mut later = memory();
        later.import(&text, Some(1060), at(5)).expect("as written");
        for last in [1, 2, 3] {
            assert_eq!(later.facts(&ends(last), at(5)), before.facts(&ends(last), at(120)));
        }
        let old = later.facts(&ends(1), at(5 + 480));
        assert_eq!((old.rtt, old.volume, old.mtu, old.mss), (None, None, None, Some(1400)));
    }

    #[test]
    fn facts_of_this_process_replace_stored_ones() {
        let mut here = memory();
        here.on_report(ends(1), &PathReport { mss: Some(500), ..PathReport::default() }, at(0));
        here.import(&full().export(None, at(0)), None, at(1)).expect("as written");
        assert_eq!(here.facts(&ends(1), at(1)), PathFacts { mss: Some(500), ..PathFacts::default() });
        assert_eq!(here.facts(&ends(2), at(1)).handshake_failures, 1);
    }

    #[test]
    fn a_line_that_cannot_be_read_is_named_and_nothing_is_taken() {
        let good = full().export(None, at(0));
        let record = good.lines().nth(1).expect("a record");
        let text = KIND.write(None, |records| {
            records.push(record);
            records.push(&format!("{record} more"));
        });
        let mut memory = memory();
        assert_eq!(memory.import(&text, None, at(0)), Err(ImportError::Line(3)));
        assert_eq!(memory.iter(at(0)).count(), 0);
    }
}

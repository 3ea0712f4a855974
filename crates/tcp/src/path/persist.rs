//! The memory of paths as text, to survive a restart.
//!
//! ```text
//! brisk-paths 1 1764000000
//! path 192.0.2.1 198.51.100.9 100000 4000 99000 540000 58400 29200 540000 16384 163 163 1460 - - - 0
//! end 1 9f0a6c1de2b47533
//! ```
//!
//! Behind the two addresses: srtt, rttvar and min_rtt in microseconds and how long they are believed;
//! window and threshold in bytes and how long; segments sent, lost and runs of losses in 1024ths; MSS of the
//! peer; least and largest MTU and how long; handshakes that failed; if the last handshake's time is in doubt, that
//! time in microseconds and how long it is believed.

use alloc::format;
use alloc::string::String;

use super::{Aging, Ends, LossCount, Losses, NarrowPath, Path, PathMemory, PathRtt, PathWindow, Starts};
use crate::stored::{Clock, ImportError, Kind, Stored, Words, left, or_dash};
use crate::time::{Duration, Instant};

const KIND: Kind = Kind { name: "brisk-paths", version: "1" };

impl PathMemory {
    /// Writes the memory. `unix`: seconds since 1970, if known.
    pub(crate) fn export(&self, unix: Option<u64>, now: Instant) -> String {
        let half_life = self.config.loss_half_life;
        KIND.write(unix, |records| {
            for (Ends { local, remote }, path) in self.paths.iter() {
                let Path { rtt, doubtful_rtt, window, losses, mss, mtu, handshake_failures, .. } = path;
                let rtt = rtt.filter(|rtt| rtt.until > now).map_or_else(no_rtt, |rtt| write_rtt(&rtt, now));
                let window = window.map_or_else(none, |window| {
                    let PathWindow { cwnd, ssthresh } = window.fact;
                    format!("{cwnd} {} {}", or_dash(ssthresh), left(Some(window.until), now))
                });
                let LossCount { sent, lost, runs } = losses.decayed(now, half_life).count;
                let mtu = mtu.map_or_else(none, |mtu| {
                    format!("{} {} {}", mtu.fact.low, mtu.fact.high, left(Some(mtu.until), now))
                });
                let mss = or_dash(*mss);
                let doubtful = doubtful_rtt.filter(|rtt| rtt.until > now).map_or_else(String::new, |rtt| {
                    format!(" {} {}", rtt.fact.as_micros(), left(Some(rtt.until), now))
                });
                records.push(&format!(
                    "path {local} {remote} {rtt} {window} {sent} {lost} {runs} {mss} {mtu} {handshake_failures}{doubtful}"
                ));
            }
        })
    }

    /// Adds what [`PathMemory::export`] wrote, as far as it is not known better here.
    pub(crate) fn import(&mut self, text: &str, unix: Option<u64>, now: Instant) -> Result<(), ImportError> {
        let stored = KIND.read(text)?;
        let clock = stored.clock(unix, now);
        // Read twice, so that a line that cannot be read leaves the memory as it was.
        self.emptied().read_lines(&stored, &clock, now)?;
        self.read_lines(&stored, &clock, now)
    }

    fn read_lines(&mut self, stored: &Stored<'_>, clock: &Clock, now: Instant) -> Result<(), ImportError> {
        stored.each(|words| match words.next() {
            Some("path") => {
                let ends = Ends { local: words.read()?, remote: words.read()? };
                let path = read_path(words, clock, now)?;
                // What this process has learnt itself is fresher.
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
    // The least of all connections is learnt anew, from that of the last one on.
    let least_rtt = rtt.map(|Aging { fact, until }| Aging { fact: fact.min_rtt, until });
    let (cwnd, ssthresh): (Option<u32>, _) = (words.read_or_dash()?, words.read_or_dash()?);
    let window = words.read_time(clock)?.zip(cwnd);
    let window = window.map(|(until, cwnd)| Aging { fact: PathWindow { cwnd, ssthresh }, until });
    let count = LossCount { sent: words.read()?, lost: words.read()?, runs: words.read()? };
    let mss = words.read_or_dash()?;
    let (low, high): (Option<u16>, Option<u16>) = (words.read_or_dash()?, words.read_or_dash()?);
    let mtu = words.read_time(clock)?.zip(low.zip(high));
    let mtu = mtu.map(|(until, (low, high))| Aging { fact: NarrowPath { low, high }, until });
    let losses = Losses { count, halved: now };
    let handshake_failures = words.read()?;
    let doubtful_rtt = match words.next() {
        Some(micros) => {
            let fact = Duration::from_micros(micros.parse().ok()?);
            words.read_time(clock)?.map(|until| Aging { fact, until })
        }
        None => None,
    };
    Some(Path {
        rtt,
        doubtful_rtt,
        least_rtt,
        window,
        losses,
        mss,
        mtu,
        handshake_failures,
        starts: Starts::default(),
    })
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
    use super::super::{HandshakeResult, MtuReport, PathFacts, PathMemoryConfig, PathReport, WindowReport};
    use super::*;
    use crate::four_tuple::KeyedHash;
    use core::net::IpAddr;

    fn at(seconds: u64) -> Instant {
        Instant::from_millis(1000 * seconds)
    }

    fn memory() -> PathMemory {
        PathMemory::new(PathMemoryConfig::default(), KeyedHash::new(1))
    }

    fn ends(last: u8) -> Ends {
        Ends { local: IpAddr::from([192, 0, 2, 1]), remote: IpAddr::from([198, 51, 100, last]) }
    }

    /// One path of which everything is known, one of which nothing is but a failure.
    fn full() -> PathMemory {
        let ms = Duration::from_millis;
        let mut memory = memory();
        let report = PathReport {
            rtt: Some((PathRtt { srtt: ms(100), rttvar: ms(4), min_rtt: ms(99) }, 9)),
            doubtful_rtt: None,
            window: Some(WindowReport { cwnd: 58_400, ssthresh: Some(29_200) }),
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
    fn what_was_learnt_survives_a_restart_and_time_goes_on_meanwhile() {
        let before = full();
        let text = before.export(Some(1000), at(60));
        let mut later = memory();
        later.import(&text, Some(1060), at(5)).expect("as written");
        for last in [1, 2, 3] {
            assert_eq!(later.facts(&ends(last), at(5)), before.facts(&ends(last), at(120)));
        }
        let old = later.facts(&ends(1), at(5 + 480));
        assert_eq!((old.rtt, old.window, old.mtu, old.mss), (None, None, None, Some(1400)));
    }

    #[test]
    fn what_is_known_here_goes_before_what_is_stored() {
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

//! Memory of a path from one connection to the next (RFC 9040, temporal sharing).
//!
//! A path is a pair of addresses. Its connections report their measurements when they open, every
//! `REPORT_INTERVAL` while they are busy, and at their end. The memory merges the reports and lets them age.
//! A new connection receives the [`PathFacts`] as a value. The memory itself only grants windows;
//! `path_start` and `handshake_timers` of [`crate::TcpConfig`] decide how a connection uses the facts.
//!
//! Only this module has facts of the *path*: round-trip time, window, loss, and segment size.
//! `fast_open::client` has the facts of a *server* about Fast Open (cookies, refusals).
//!
//! | fact | how it is merged | lifetime |
//! |---|---|---|
//! | round-trip time | a longer one at once, a shorter one by an eighth (as in Linux) | `RTT_LIFETIME` |
//! | duration of a handshake in doubt | the last, until one is certain | `RTT_LIFETIME` |
//! | minimum round-trip time | the minimum | `RTT_LIFETIME` since it was measured |
//! | round-trip time of a full queue | from its losses (`LossTimes`) | sums halved beyond 2048 samples |
//! | volume of a flight, its rate | see `path/volume.rs` | `WINDOW_LIFETIME`; half the volume after 30 s |
//! | loss, burst length | counts that decay, without what a queue lost | halved per `LOSS_HALF_LIFE` |
//! | MTU | as path-MTU discovery left it | ten minutes (RFC 8201 section 4) |
//! | MSS of the peer | the last | until the path is evicted |
//! | handshakes that failed in a row | counted | until one completes, or the path is evicted |

use core::hash::{Hash, Hasher};
use core::net::IpAddr;

use crate::evidence::LossHistory;
use crate::four_tuple::{KeyedHash, hash_addresses};
use crate::lru::Lru;
use crate::time::{Duration, Instant, Micros};

mod persist;
mod volume;

pub use volume::PathVolume;
use volume::Volume;
pub(crate) use volume::{FlightReport, Granted, StartRequest, at_rate};

/// Interval at which a busy connection reports its measurements.
pub(crate) const REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// Lifetime of a round-trip time.
const RTT_LIFETIME: Duration = Duration::from_secs(600);
/// Lifetime of the volume of a flight. After 30 s the volume counts half.
const WINDOW_LIFETIME: Duration = Duration::from_secs(600);
/// Lifetime of a reduced MTU (RFC 8201 section 4 recommends ten minutes).
const MTU_LIFETIME: Duration = Duration::from_secs(600);
const LOSS_HALF_LIFE: Duration = Duration::from_secs(600);
/// Interval at which a connection and its stack report that large packets arrive.
pub(crate) const LARGE_PACKET_INTERVAL: Duration = Duration::from_millis(50);
/// Limit of segments in the loss estimate. Above it all counts are halved.
const LOSS_SEGMENTS: u64 = 1 << 14;
/// Units of the counts per segment, so that a single loss does not vanish when the counts are halved.
const FRACTION: u64 = 1 << 10;

/// Current facts of a path; unknown or outdated ones are absent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PathFacts {
    /// Round-trip time.
    pub rtt: Option<PathRtt>,
    /// Duration of the last handshake, if its timer fired before the answer arrived: then it may not be one
    /// round trip. The next certain duration replaces it.
    pub doubtful_rtt: Option<Duration>,
    /// Minimum over all connections: the path without a queue.
    pub min_rtt: Option<Duration>,
    /// True if other hosts kept a queue during one of the latest four flights, at most 30 s ago.
    pub is_queued: bool,
    /// Round-trip time from which on a loss counts as caused by a queue, if losses have shown it.
    pub queued_from: Option<Duration>,
    /// Volume and rate of a start above the standard window.
    pub volume: Option<PathVolume>,
    /// Loss of this host's segments.
    pub loss: Option<PathLoss>,
    /// MSS that the peer announced last, bytes.
    pub mss: Option<u16>,
    /// MTU of the path, if it is below the device's.
    pub mtu: Option<NarrowPath>,
    /// Active opens in a row without an answer.
    pub handshake_failures: u8,
}

impl PathFacts {
    /// Returns the minimum round-trip time of the path and of a connection that measured `own`.
    pub(crate) fn min_with(&self, own: Option<Micros>) -> Option<Duration> {
        own.map(Duration::from).into_iter().chain(self.min_rtt).min()
    }

    /// Returns the round-trip time for timers of a handshake; `None` without a certain time. A longer
    /// doubtful time replaces the certain one until the next certain time, as a timeout after back-off stays
    /// until the next sample (RFC 6298 section 5). Otherwise, on a path that became longer, the timer would
    /// fire too early each time. Every measurement would be doubtful, and the timer would never grow.
    pub fn handshake_rtt(&self) -> Option<Duration> {
        handshake_rtt(self.rtt, self.doubtful_rtt)
    }
}

fn handshake_rtt(rtt: Option<PathRtt>, doubtful: Option<Duration>) -> Option<Duration> {
    rtt.map(|rtt| doubtful.map_or(rtt.srtt, |doubtful| doubtful.max(rtt.srtt)))
}

/// Round-trip time of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PathRtt {
    /// Smoothed round-trip time.
    pub srtt: Duration,
    /// Variation of the round-trip time.
    pub rttvar: Duration,
    /// Minimum of the last connection.
    pub min_rtt: Duration,
}

/// Loss of this host's segments on a path, without losses of an overflowing queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PathLoss {
    /// Segments in the estimate, with less weight for older ones.
    pub segments: u32,
    /// Lost segments per million.
    pub per_million: u32,
    /// Mean length of a run of losses, segments times 1000; 0 without a loss.
    pub burst_milli: u32,
}

impl From<PathLoss> for LossHistory {
    fn from(PathLoss { segments, per_million, burst_milli }: PathLoss) -> LossHistory {
        let lost = u64::from(segments) * u64::from(per_million) / 1_000_000;
        LossHistory { segments: segments.into(), lost, runs: lost * 1000 / u64::from(burst_milli.max(1000)) }
    }
}

/// Result of path-MTU discovery, bytes of IP packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct NarrowPath {
    /// Packets of this size pass.
    pub low: u16,
    /// Largest size that is not known to fail. It is unknown whether sizes between `low` and `high` pass.
    pub high: u16,
}

/// An arrived packet that is larger than any packet sent while a black hole is suspected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LargePacket {
    /// Bytes of IP packet.
    pub(crate) size: u16,
    /// Time when it left.
    pub(crate) sent_at: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ends {
    pub(crate) local: IpAddr,
    pub(crate) remote: IpAddr,
}

/// Hashes as few words as possible.
impl Hash for Ends {
    fn hash<H: Hasher>(&self, state: &mut H) {
        hash_addresses(self.local, self.remote, state);
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct PathReport {
    /// Estimate of the connection, and the number of its samples.
    pub(crate) rtt: Option<(PathRtt, u32)>,
    /// Duration of the handshake, if doubtful.
    pub(crate) doubtful_rtt: Option<Duration>,
    pub(crate) flight: Option<FlightReport>,
    /// Segments sent since the connection's last report, and losses among them, without losses of a queue.
    pub(crate) losses: LossCount,
    /// The peer's MSS option.
    pub(crate) mss: Option<u16>,
    /// Result of path-MTU discovery.
    pub(crate) mtu: MtuReport,
    /// True if no round trip was as short as that of the path without a queue.
    pub(crate) saw_queue: bool,
    /// The handshake just ended.
    pub(crate) handshake: Option<HandshakeResult>,
}

/// Segments sent and lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct LossCount {
    pub(crate) sent: u64,
    pub(crate) lost: u64,
    /// Runs of lost segments that followed each other.
    pub(crate) runs: u64,
}

/// Result of a connection's path-MTU discovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum MtuReport {
    /// Nothing indicates whether large packets pass.
    #[default]
    Silent,
    /// Large packets do not pass.
    Narrow(NarrowPath),
    /// Large packets pass on a path that seemed narrow.
    Open,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HandshakeResult {
    Completed,
    /// There was no answer.
    Failed,
}

/// A fact with the end of its lifetime.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Aging<T> {
    fact: T,
    until: Instant,
}

impl<T: Copy> Aging<T> {
    fn at(aging: Option<Aging<T>>, now: Instant) -> Option<T> {
        aging.filter(|aging| aging.until > now).map(|aging| aging.fact)
    }
}

impl Aging<NarrowPath> {
    /// Returns the report, corrected by the arrival of `packet`; `None` if the packet refutes it. `lifetime`:
    /// that of the report.
    fn revised(mut self, packet: LargePacket, lifetime: Duration) -> Option<Aging<NarrowPath>> {
        let was_reported_later = packet.sent_at + lifetime < self.until;
        if was_reported_later {
            return Some(self);
        }
        self.fact.low = self.fact.low.max(packet.size);
        (self.fact.low <= self.fact.high).then_some(self)
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Path {
    rtt: Option<Aging<PathRtt>>,
    doubtful_rtt: Option<Aging<Duration>>,
    min_rtt: Option<Aging<Duration>>,
    volume: Volume,
    losses: DecayingLosses,
    mss: Option<u16>,
    mtu: Option<Aging<NarrowPath>>,
    large: Option<LargePacket>,
    handshake_failures: u8,
}

/// Counts that decay, in [`FRACTION`]s of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct DecayingLosses {
    count: LossCount,
    /// Time of the last halving.
    halved: Instant,
}

#[derive(Debug)]
pub(crate) struct PathMemory {
    entries: usize,
    hash: KeyedHash,
    paths: Lru<Ends, Path, KeyedHash>,
}

impl PathMemory {
    /// Returns a memory of at most `entries` paths.
    pub(crate) fn new(entries: usize, hash: KeyedHash) -> Self {
        PathMemory { entries, paths: Lru::new(entries, hash.clone()), hash }
    }

    /// Resets to the state after [`PathMemory::new`], and keeps the storage.
    pub(crate) fn renew(&mut self, by: usize, with: KeyedHash) {
        let PathMemory { entries, hash, paths } = self;
        paths.renew(by, with.clone());
        (*entries, *hash) = (by, with);
    }

    fn emptied(&self) -> Self {
        PathMemory::new(self.entries, self.hash.clone())
    }

    /// Returns the facts of a path; all are absent for a path without reports.
    pub(crate) fn facts(&self, ends: &Ends, now: Instant) -> PathFacts {
        self.paths.peek(ends).map_or_else(PathFacts::default, |path| path.facts(now))
    }

    /// Returns [`PathFacts::handshake_rtt`] without computing the other facts.
    pub(crate) fn handshake_rtt(&self, ends: &Ends, now: Instant) -> Option<Duration> {
        let path = self.paths.peek(ends)?;
        handshake_rtt(Aging::at(path.rtt, now), Aging::at(path.doubtful_rtt, now))
    }

    /// Iterates over all paths, the least recently used first.
    pub(crate) fn iter(&self, now: Instant) -> impl Iterator<Item = (Ends, PathFacts)> {
        self.paths.iter().map(move |(ends, path)| (*ends, path.facts(now)))
    }

    /// Merges a connection's report.
    #[inline]
    pub(crate) fn on_report(&mut self, ends: Ends, report: &PathReport, now: Instant) {
        let paths = &mut self.paths;
        let Some((_, path)) = paths.touch_or_insert(ends, Path::default) else { return };
        if let Some(fact) = report.doubtful_rtt {
            path.doubtful_rtt = Some(Aging { fact, until: now + RTT_LIFETIME });
        }
        if let Some((rtt, samples)) = report.rtt {
            path.on_rtt(rtt, samples, now, RTT_LIFETIME);
            path.doubtful_rtt = None;
        }
        if let Some(flight) = &report.flight {
            let history = path.losses.history(now, LOSS_HALF_LIFE);
            let knew = path.volume.queued_from().is_some();
            path.volume.on_flight(flight, &history, WINDOW_LIFETIME, now);
            if !knew && path.volume.queued_from().is_some() {
                // Losses of the queue counted as random before.
                path.losses = DecayingLosses::default();
            }
        }
        if report.saw_queue {
            path.volume.on_queue();
        }
        path.losses.add(report.losses, now, LOSS_HALF_LIFE);
        path.mss = report.mss.or(path.mss);
        match report.mtu {
            MtuReport::Silent => {}
            MtuReport::Narrow(fact) => path.mtu = Some(Aging { fact, until: now + MTU_LIFETIME }),
            MtuReport::Open => path.mtu = None,
        }
        path.handshake_failures = match report.handshake {
            Some(HandshakeResult::Failed) => path.handshake_failures.saturating_add(1),
            Some(HandshakeResult::Completed) => 0,
            None => path.handshake_failures,
        };
    }

    /// Records that a large packet arrived, and returns true, if it left at least [`LARGE_PACKET_INTERVAL`]
    /// after the last recorded one. A smaller MTU that was reported before the packet left is corrected.
    pub(crate) fn on_large_packet(&mut self, ends: Ends, packet: LargePacket) -> bool {
        let paths = &mut self.paths;
        let Some((_, path)) = paths.touch_or_insert(ends, Path::default) else { return false };
        let is_new = path.large.is_none_or(|last| last.sent_at + LARGE_PACKET_INTERVAL <= packet.sent_at);
        if is_new {
            path.large = Some(packet);
            path.mtu = path.mtu.and_then(|mtu| mtu.revised(packet, MTU_LIFETIME));
        }
        is_new
    }

    /// Returns the newest large packet that is known to have arrived.
    pub(crate) fn large_packet(&self, ends: &Ends) -> Option<LargePacket> {
        self.paths.peek(ends)?.large
    }

    /// Grants a connection the window that its path carries, if possible; see [`Volume::grant`]. If a host
    /// has several stacks, each grants separately.
    pub(crate) fn grant(&mut self, ends: &Ends, request: &StartRequest, now: Instant) -> Option<Granted> {
        let path = self.paths.touch(ends)?;
        path.volume.grant(request, now)
    }

    /// Forgets every path. Called when the network changes.
    pub(crate) fn flush(&mut self) {
        self.paths.retain(|_, _| false);
    }
}

impl Path {
    fn facts(&self, now: Instant) -> PathFacts {
        PathFacts {
            rtt: Aging::at(self.rtt, now),
            doubtful_rtt: Aging::at(self.doubtful_rtt, now),
            min_rtt: Aging::at(self.min_rtt, now),
            is_queued: self.volume.was_queued_at(now),
            queued_from: self.volume.queued_from(),
            volume: self.volume.start(Aging::at(self.min_rtt, now), WINDOW_LIFETIME, now),
            loss: self.losses.estimate(now, LOSS_HALF_LIFE),
            mss: self.mss,
            mtu: Aging::at(self.mtu, now),
            handshake_failures: self.handshake_failures,
        }
    }

    /// Merges a round-trip time; RFC 9040 section 5 leaves open how. A longer one is adopted at once, because
    /// timers that are too short cost packets; a shorter one slowly.
    fn on_rtt(&mut self, new: PathRtt, samples: u32, now: Instant, lifetime: Duration) {
        let rtt = match Aging::at(self.rtt, now) {
            None => new,
            Some(old) => {
                let srtt = if new.srtt >= old.srtt { new.srtt } else { old.srtt - (old.srtt - new.srtt) / 8 };
                // One sample does not show the variation; RFC 6298 then assumes half of the sample.
                let error = old.srtt.abs_diff(new.srtt);
                let folded = old.rttvar - old.rttvar / 4 + error / 4;
                let rttvar = if samples > 1 { new.rttvar.max(error / 2) } else { folded };
                PathRtt { srtt, rttvar, min_rtt: new.min_rtt }
            }
        };
        let until = now + lifetime;
        self.rtt = Some(Aging { fact: rtt, until });
        // A longer time does not extend the lifetime of the stored minimum. So if the path became longer, the
        // longer time is adopted when the stored one expires.
        if Aging::at(self.min_rtt, now).is_none_or(|min| new.min_rtt <= min) {
            self.min_rtt = Some(Aging { fact: new.min_rtt, until });
        }
    }
}

impl DecayingLosses {
    fn add(&mut self, new: LossCount, now: Instant, half_life: Duration) {
        *self = self.decayed(now, half_life);
        if new.sent == 0 && new.lost == 0 {
            return;
        }
        if self.count.sent == 0 {
            self.halved = now;
        }
        let LossCount { sent, lost, runs } = &mut self.count;
        *sent = sent.saturating_add(new.sent.saturating_mul(FRACTION));
        // A loss can be reported later than the transmission of its segment, so `lost` may exceed `sent`.
        *lost = lost.saturating_add(new.lost.saturating_mul(FRACTION)).min(*sent);
        *runs = runs.saturating_add(new.runs.saturating_mul(FRACTION)).min(*lost);
        while self.count.sent > LOSS_SEGMENTS * FRACTION {
            self.count = self.count.shifted(1);
        }
    }

    fn decayed(self, now: Instant, half_life: Duration) -> DecayingLosses {
        let passed = now.saturating_since(self.halved);
        // Avoids a division, which would cost more than the rest of a report.
        if passed < half_life {
            return self;
        }
        let half_life = half_life.as_micros().max(1);
        let times = (passed.as_micros() / half_life).min(63) as u32;
        let passed = Duration::from_micros((half_life as u64).saturating_mul(u64::from(times)));
        let halved = if times == 63 { now } else { self.halved + passed };
        DecayingLosses { count: self.count.shifted(times), halved }
    }

    fn history(&self, now: Instant, half_life: Duration) -> LossHistory {
        let LossCount { sent, lost, runs } = self.decayed(now, half_life).count;
        LossHistory { segments: sent / FRACTION, lost: lost / FRACTION, runs: runs / FRACTION }
    }

    fn estimate(&self, now: Instant, half_life: Duration) -> Option<PathLoss> {
        let LossCount { sent, lost, runs } = self.decayed(now, half_life).count;
        if sent == 0 {
            return None;
        }
        let ratio = |part: u64, of: u64, scale: u64| {
            u32::try_from(part.saturating_mul(scale).checked_div(of).unwrap_or(0)).unwrap_or(u32::MAX)
        };
        Some(PathLoss {
            segments: u32::try_from(sent / FRACTION).unwrap_or(u32::MAX),
            per_million: ratio(lost, sent, 1_000_000),
            burst_milli: ratio(lost, runs, 1000),
        })
    }
}

impl LossCount {
    fn shifted(self, times: u32) -> LossCount {
        LossCount { sent: self.sent >> times, lost: self.lost >> times, runs: self.runs >> times }
    }

    pub(crate) fn since(self, before: LossCount) -> LossCount {
        LossCount {
            sent: self.sent.saturating_sub(before.sent),
            lost: self.lost.saturating_sub(before.lost),
            runs: self.runs.saturating_sub(before.runs),
        }
    }

    pub(crate) fn without(self, others: LossCount) -> LossCount {
        self.since(LossCount { sent: 0, ..others })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::LossTimes;
    use alloc::vec::Vec;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn at(seconds: u64) -> Instant {
        Instant::from_millis(1000 * seconds)
    }

    fn ends(last: u8) -> Ends {
        Ends { local: IpAddr::from([192, 0, 2, 1]), remote: IpAddr::from([198, 51, 100, last]) }
    }

    fn memory(entries: usize) -> PathMemory {
        PathMemory::new(entries, KeyedHash::new(&1.into()))
    }

    fn rtt(srtt: u64, rttvar: u64) -> PathRtt {
        PathRtt { srtt: ms(srtt), rttvar: ms(rttvar), min_rtt: ms(srtt) }
    }

    fn measured(srtt: u64, rttvar: u64, samples: u32) -> PathReport {
        PathReport { rtt: Some((rtt(srtt, rttvar), samples)), ..PathReport::default() }
    }

    fn lost(sent: u64, lost: u64, runs: u64) -> PathReport {
        PathReport { losses: LossCount { sent, lost, runs }, ..PathReport::default() }
    }

    /// Returns the facts at second `now` after these reports, one per second from 0.
    fn after(reports: &[PathReport], now: u64) -> PathFacts {
        let mut memory = memory(10);
        for (second, report) in (0..).zip(reports) {
            memory.on_report(ends(9), report, at(second));
        }
        memory.facts(&ends(9), at(now))
    }

    #[test]
    fn path_belongs_to_two_addresses_and_the_least_recent_is_evicted() {
        let mut memory = memory(2);
        for last in [1, 2, 1, 3] {
            memory.on_report(ends(last), &measured(u64::from(last) * 10, 5, 1), at(0));
        }
        let known = |last| memory.facts(&ends(last), at(1)).rtt.map(|rtt| rtt.srtt);
        assert_eq!((known(1), known(2), known(3)), (Some(ms(10)), None, Some(ms(30))));
        let elsewhere = Ends { local: IpAddr::from([10, 0, 0, 1]), ..ends(1) };
        assert_eq!(memory.facts(&elsewhere, at(1)), PathFacts::default());
        memory.flush();
        assert_eq!(memory.iter(at(1)).count(), 0);
    }

    #[test]
    fn large_arrived_packet_revises_a_smaller_mtu_reported_earlier() {
        let narrow = MtuReport::Narrow(NarrowPath { low: 1064, high: 1400 });
        let after = |size, sent_at| {
            let mut memory = memory(1);
            memory.on_report(ends(1), &PathReport { mtu: narrow, ..PathReport::default() }, at(10));
            memory.on_large_packet(ends(1), LargePacket { size, sent_at });
            memory.facts(&ends(1), at(11)).mtu.map(|mtu| (mtu.low, mtu.high))
        };
        assert_eq!(after(1500, at(9)), Some((1064, 1400)), "it left earlier");
        assert_eq!(after(1200, at(10)), Some((1200, 1400)), "larger ones may not pass");
        assert_eq!(after(1400, at(10)), Some((1400, 1400)), "larger ones do not pass");
        assert_eq!(after(1401, at(10)), None, "the report is refuted");
    }

    #[test]
    fn large_packets_are_recorded_at_intervals() {
        let mut memory = memory(1);
        let mut record = |millis| {
            let sent_at = Instant::from_millis(millis);
            memory.on_large_packet(ends(1), LargePacket { size: 1500, sent_at })
        };
        assert_eq!([100, 149, 150, 120].map(&mut record), [true, false, true, false]);
        let newest = memory.large_packet(&ends(1)).map(|packet| packet.sent_at);
        assert_eq!(newest, Some(Instant::from_millis(150)));
    }

    #[test]
    fn without_entries_nothing_is_remembered() {
        let mut memory = memory(0);
        memory.on_report(ends(1), &measured(100, 5, 1), at(0));
        assert_eq!(memory.facts(&ends(1), at(0)), PathFacts::default());
    }

    #[test]
    fn doubtful_handshake_time_is_used_until_a_certain_one_arrives() {
        let doubtful = PathReport { doubtful_rtt: Some(ms(250)), ..PathReport::default() };
        let facts = after(&[measured(100, 10, 9), doubtful], 2);
        assert_eq!((facts.rtt.map(|rtt| rtt.srtt), facts.handshake_rtt()), (Some(ms(100)), Some(ms(250))));
        assert_eq!(after(&[measured(300, 10, 9), doubtful], 2).handshake_rtt(), Some(ms(300)));
        assert_eq!(
            after(&[doubtful], 2).handshake_rtt(),
            None,
            "a timer that knows nothing stays at a second"
        );
        assert_eq!(
            after(&[measured(100, 10, 9), doubtful, measured(120, 10, 1)], 3).handshake_rtt(),
            Some(ms(120))
        );
    }

    #[test]
    fn longer_round_trip_is_adopted_at_once_shorter_one_slowly() {
        assert_eq!(
            after(&[measured(100, 10, 9), measured(180, 20, 9)], 2).rtt.map(|rtt| rtt.srtt),
            Some(ms(180))
        );
        let shorter = after(&[measured(180, 10, 9), measured(100, 20, 9)], 2).rtt;
        assert_eq!(shorter.map(|rtt| (rtt.srtt, rtt.rttvar)), Some((ms(170), ms(40))));
    }

    #[test]
    fn minimum_round_trip_is_over_all_connections_until_it_expires() {
        let min = |reports: &[PathReport], now| after(reports, now).min_rtt;
        let queue = [measured(50, 5, 9), measured(120, 5, 9), measured(90, 5, 9)];
        assert_eq!((min(&queue, 599), min(&queue, 600)), (Some(ms(50)), None));
        assert_eq!(after(&queue, 9).rtt.map(|rtt| rtt.min_rtt), Some(ms(90)), "of the last connection");
        let again = [measured(50, 5, 9), measured(120, 5, 9), measured(50, 5, 9)];
        assert_eq!(min(&again, 601), Some(ms(50)), "it was seen again");
        let shorter = [measured(50, 5, 9), measured(40, 5, 9)];
        assert_eq!(min(&shorter, 2), Some(ms(40)));
    }

    #[test]
    fn single_sample_does_not_replace_a_known_variation() {
        // RFC 6298 2.2 takes half of the first sample; RFC 9040 table 3 shares RTTVAR between connections.
        let known = after(&[measured(100, 4, 50), measured(100, 50, 1)], 2).rtt;
        assert_eq!(known, Some(PathRtt { rttvar: ms(3), ..rtt(100, 0) }));
    }

    #[test]
    fn outdated_facts_are_absent() {
        let believed = |now| after(&[measured(100, 4, 9)], now).rtt.is_some();
        assert!(believed(599) && !believed(600));
    }

    #[test]
    fn losses_are_counted_per_segment_and_per_run() {
        let loss = after(&[lost(300, 6, 2), lost(100, 2, 2)], 2).loss;
        assert_eq!(loss, Some(PathLoss { segments: 400, per_million: 20_000, burst_milli: 2000 }));
        let none = after(&[lost(100, 0, 0)], 2).loss;
        assert_eq!(none, Some(PathLoss { segments: 100, per_million: 0, burst_milli: 0 }));
        assert_eq!(after(&[lost(0, 0, 0)], 2).loss, None);
    }

    #[test]
    fn losses_that_counted_as_random_are_forgotten_once_a_queue_explains_them() {
        let flight = |second| {
            let mut times = LossTimes::default();
            (0..20).for_each(|wait| times.on_rtt(Micros::from_millis(80 + wait)));
            times.on_loss(Micros::from_millis(99));
            let flight =
                FlightReport { bytes: 30_000, segments: 20, sent: 20, lost: 1, times, ..Default::default() };
            PathReport { flight: Some(FlightReport { began: at(second), ..flight }), ..lost(20, 1, 1) }
        };
        let reports: Vec<PathReport> = (0..20).map(flight).collect();
        let before = after(&reports[..7], 7);
        assert_eq!((before.queued_from, before.loss.map(|loss| loss.per_million)), (None, Some(50_000)));
        let now = after(&reports[..8], 8);
        let segments = now.loss.map(|loss| loss.segments);
        assert_eq!((now.queued_from.map(|from| from.as_millis()), segments), (Some(94), Some(20)));
        let later = after(&reports, 20);
        assert_eq!(later.loss.map(|loss| loss.segments), Some(260), "they are forgotten once");
    }

    #[test]
    fn loss_reported_after_its_segment_counts() {
        let loss = after(&[lost(22, 0, 0), lost(0, 2, 1)], 2).loss;
        assert_eq!(loss, Some(PathLoss { segments: 22, per_million: 90_909, burst_milli: 2000 }));
        assert_eq!(
            after(&[lost(0, 5, 5), lost(2, 9, 9)], 2).loss.map(|loss| loss.per_million),
            Some(1_000_000)
        );
    }

    #[test]
    fn old_losses_count_less_than_new_ones() {
        let mut memory = memory(1);
        memory.on_report(ends(9), &lost(1000, 100, 100), at(0));
        memory.on_report(ends(9), &lost(500, 0, 0), at(600));
        let per_million = |now| memory.facts(&ends(9), at(now)).loss.map(|loss| loss.per_million);
        assert_eq!(per_million(600), Some(50_000), "half of 1000 with half of 100, and 500 without any");
        assert_eq!(per_million(1300), Some(50_000), "both age alike");
        assert_eq!(per_million(1_000_000_000), None);
    }

    #[test]
    fn loss_estimate_adapts_after_any_number_of_segments() {
        let mut memory = memory(1);
        memory.on_report(ends(9), &lost(1_000_000, 100_000, 100_000), at(0));
        memory.on_report(ends(9), &lost(1_000_000, 0, 0), at(1));
        let loss = memory.facts(&ends(9), at(2)).loss.expect("a million segments");
        assert!(loss.per_million < 2_000 && loss.segments <= 1 << 14, "{loss:?}");
    }

    #[test]
    fn a_narrow_path_is_tried_again_after_ten_minutes_or_when_it_proves_wide() {
        let narrow = PathReport {
            mtu: MtuReport::Narrow(NarrowPath { low: 1064, high: 1500 }),
            ..PathReport::default()
        };
        let open = PathReport { mtu: MtuReport::Open, ..PathReport::default() };
        assert_eq!(after(&[narrow], 599).mtu, Some(NarrowPath { low: 1064, high: 1500 }));
        assert_eq!(after(&[narrow], 600).mtu, None);
        assert_eq!(after(&[narrow, open], 2).mtu, None);
        assert_eq!(
            after(&[narrow, PathReport::default()], 2).mtu,
            Some(NarrowPath { low: 1064, high: 1500 })
        );
    }

    #[test]
    fn failures_are_counted_until_a_handshake_succeeds() {
        let of = |handshake| PathReport { handshake: Some(handshake), ..PathReport::default() };
        let failed = of(HandshakeResult::Failed);
        assert_eq!(after(&[failed, failed], 2).handshake_failures, 2);
        assert_eq!(after(&[failed, failed, of(HandshakeResult::Completed)], 3).handshake_failures, 0);
    }
}

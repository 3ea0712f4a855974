//! Path MTU discovery: by ICMP (RFC 1191, RFC 8201) and by probing (RFC 4821). A probe is a larger segment of
//! the application's own data. Probing also finds paths that drop large packets silently.

use alloc::boxed::Box;

use brisk_wire::SeqNum;

use crate::config::MtuProbing;
use crate::outcome::{AckOutcome, Delivered};
use crate::path::{LARGE_PACKET_INTERVAL, LargePacket, MtuReport, NarrowPath};
use crate::seq_ranges::SeqRange;
use crate::time::{Duration, Instant};

/// Payload per segment with which probing begins once large packets seem to vanish (Linux: tcp_base_mss).
#[cfg(test)]
const BASE_MSS: u16 = 1024;
/// Minimum payload that a device must permit (Linux: tcp_mtu_probe_floor).
const FLOOR_MSS: u32 = 48;
/// Number of timeouts in a row of full-sized segments that suggest a black hole (Linux: tcp_retries1). Two
/// would be frequent on a path that loses a tenth of the packets.
const BLACK_HOLE_TIMEOUTS: u32 = 3;
/// A search ends when its limits are closer than this, bytes.
const THRESHOLD: u32 = 8;
/// Time after which a finished search tries larger sizes again (RFC 4821 section 7). A router's report
/// expires after the same time (RFC 1191 section 6.3 and RFC 8201 section 4 recommend ten minutes).
const RAISE_AFTER: Duration = Duration::from_secs(600);
/// Minimum window for a probe, segments (Linux).
const PROBE_CWND: u32 = 11;
/// Number of segments that directly follow a probe, so that its loss is detected without a timeout.
const SEGMENTS_AFTER_PROBE: u32 = 4;
/// The arrival of a large packet clears the size of packets that left at most this much later. Connections
/// report such arrivals twice in this time.
const CLEARS_FOR: Duration = Duration::from_millis(100);

/// The largest packet that a path carries, as far as known.
#[derive(Clone, Debug)]
pub(crate) struct PathMtu {
    probing: MtuProbing,
    /// Payload at the beginning of a search.
    base_mss: u16,
    /// IP and TCP header without options, bytes.
    headers: u32,
    min: u32,
    /// Limit of the device.
    device: u32,
    /// Limit of device and peer.
    local: u32,
    /// Current size, bytes of IP packet.
    mtu: u32,
    search: Option<Box<MtuSearch>>,
    timeouts: u32,
    /// True if the path seems to carry less than the device: a router reported it, large packets vanished, or
    /// an earlier connection found it.
    narrow: bool,
    /// Time at which the cause of the low MTU (a report, or an earlier connection's result) expires.
    stale_at: Option<Instant>,
    /// A segment larger than the base has arrived since the last timeout.
    large_arrived: bool,
    /// True if the stack must decide whether the size is suspected. Only the stack knows what other
    /// connections of the path have delivered.
    is_in_doubt: bool,
    /// The newest large packet of any connection of the path that is known to have arrived.
    arrived: Option<LargePacket>,
    /// A large packet of this connection that has arrived and is not reported to the path yet, and the time
    /// of the next report.
    report: Option<LargePacket>,
    report_due: Instant,
}

/// Packetization-layer search (RFC 4821 section 7).
#[derive(Clone, Debug)]
struct MtuSearch {
    /// Largest size known to get through.
    low: u32,
    /// Largest size not known to fail.
    high: u32,
    probe: Option<SentProbe>,
    /// True if `high` was in use before and is tried first, because its failure is only a suspicion.
    retest: bool,
    since: Instant,
}

#[derive(Clone, Copy, Debug)]
struct SentProbe {
    size: u32,
    range: SeqRange,
}

/// The next step of a search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NextProbe {
    /// No probe may leave now.
    Wait,
    /// The search is finished, and old enough to try larger sizes again.
    SearchAgain,
    /// A probe with this payload may leave, bytes.
    Payload(u32),
}

impl PathMtu {
    /// Creates the state before the first packet, from the MTU of the device, bytes of IP packet.
    pub(crate) fn new(local: u16, v6: bool, probing: MtuProbing, base_mss: u16) -> Self {
        let headers = if v6 { 60 } else { 40 };
        let min = if v6 { 1280 } else { 576 };
        let local = u32::from(local).max(headers + FLOOR_MSS);
        let mut path = PathMtu {
            probing,
            base_mss,
            headers,
            min,
            device: local,
            local,
            mtu: local,
            search: None,
            timeouts: 0,
            narrow: false,
            stale_at: None,
            large_arrived: false,
            is_in_doubt: false,
            arrived: None,
            report: None,
            report_due: Instant::ZERO,
        };
        if probing == MtuProbing::Always {
            path.begin_search(Instant::ZERO);
        }
        path
    }

    /// Uses the result of an earlier connection over the path. A search continues from it. Returns true if
    /// the MTU shrank.
    pub(crate) fn continue_from(&mut self, known: NarrowPath, now: Instant) -> bool {
        let high = u32::from(known.high).min(self.local);
        let low = u32::from(known.low).max(self.min).min(high);
        if low >= self.local {
            return false;
        }
        self.narrow = true;
        if self.probing != MtuProbing::Off {
            let retest = self.probing == MtuProbing::Early && high == self.local;
            self.search = Some(Box::new(MtuSearch { low, high, probe: None, retest, since: now }));
        }
        self.stale_at = Some(now + RAISE_AFTER);
        self.lower(low)
    }

    /// Returns the report on the path for later connections.
    pub(crate) fn report(&self) -> MtuReport {
        match (self.narrow, &self.search) {
            (false, _) => MtuReport::Silent,
            (true, _) if self.mtu + THRESHOLD > self.local => MtuReport::Open,
            (true, search) => {
                let high = search.as_ref().map_or(self.mtu, |search| search.high.max(self.mtu));
                let [low, high] = [self.mtu, high].map(|mtu| mtu.min(u32::from(u16::MAX)) as u16);
                MtuReport::Narrow(NarrowPath { low, high })
            }
        }
    }

    /// Returns the MTU in use, bytes of IP packet.
    #[cfg(test)]
    fn mtu(&self) -> u32 {
        self.mtu
    }

    /// Returns the known limit of the path, without the peer's limit, bytes of IP packet.
    pub(crate) fn path(&self) -> u32 {
        if self.narrow { self.mtu } else { self.device }
    }

    /// Returns the payload of a full-sized segment with `options` bytes of options.
    pub(crate) fn mss(&self, options: u32) -> u32 {
        self.payload(self.mtu, options)
    }

    /// Returns the payload of a segment without options that the device permits, regardless of the path.
    pub(crate) fn device_mss(&self) -> u32 {
        self.payload(self.local, 0)
    }

    /// Limits segments to the peer's `mss` bytes, including options. Nothing larger is sent or tried (RFC
    /// 9293 section 3.7.1, MUST-16).
    pub(crate) fn cap(&mut self, mss: u32) {
        self.local = self.local.min(self.headers + mss);
        if let Some(search) = &mut self.search {
            search.high = search.high.min(self.local);
            search.low = search.low.min(self.local);
        }
        self.mtu = self.mtu.min(self.local);
    }

    /// Limits packets to the device's new `mtu`. Returns true if the MTU shrank.
    pub(crate) fn limit(&mut self, mtu: u16) -> bool {
        let (mtu, before) = (u32::from(mtu), self.mtu);
        self.device = self.device.min(mtu);
        self.cap(mtu.saturating_sub(self.headers).max(FLOOR_MSS));
        if let Some(search) = &mut self.search
            && search.probe.is_some_and(|probe| probe.size > mtu)
        {
            search.probe = None;
        }
        self.mtu < before
    }

    /// Returns the size of the packet with this payload, bytes.
    pub(crate) fn packet(&self, payload: u32, options: u32) -> u16 {
        u16::try_from(payload + options + self.headers).unwrap_or(u16::MAX)
    }

    /// Returns the payload of a packet of `mtu` bytes.
    pub(crate) fn payload(&self, mtu: u32, options: u32) -> u32 {
        mtu.saturating_sub(self.headers + options).max(1)
    }

    /// Processes a router's report that packets above `mtu` do not pass. The caller has checked that the
    /// report quotes a segment in flight. Returns true if the MTU shrank. Values below the minimum of the
    /// family count as that minimum, because only an attack or a fault reports them.
    pub(crate) fn on_icmp(&mut self, mtu: u32, now: Instant) -> bool {
        let mtu = mtu.max(self.min.min(self.local));
        if let Some(search) = &mut self.search
            && mtu < search.high
        {
            search.high = mtu;
            search.low = search.low.min(mtu);
            if search.probe.is_some_and(|probe| probe.size > mtu) {
                search.probe = None;
            }
        }
        let shrank = self.lower(mtu);
        self.narrow |= shrank;
        if shrank {
            self.stale_at = Some(now + RAISE_AFTER);
        }
        shrank
    }

    /// True if the report or the earlier result that lowered the MTU has expired.
    #[inline]
    pub(crate) fn is_stale(&self, now: Instant) -> bool {
        self.stale_at.is_some_and(|at| at <= now)
    }

    /// Raises the MTU to the limit of device and peer when the cause of the low MTU has expired. A router
    /// repeats its report if necessary. Returns true if the MTU has grown.
    pub(crate) fn raise_stale(&mut self) -> bool {
        self.stale_at = None;
        // A search in progress raises the MTU by its probes instead.
        let grows = self.search.is_none() && self.mtu < self.local;
        if grows {
            (self.mtu, self.narrow) = (self.local, false);
        }
        grows
    }

    /// Records that the retransmission timer fired; `full_sized`: the segment at SND.UNA, if it is
    /// full-sized. Returns true if the MTU shrank because large packets seem to vanish (RFC 4821 section 7.7;
    /// RFC 2923).
    pub(crate) fn on_timeout(&mut self, full_sized: Option<LargePacket>, now: Instant) -> bool {
        // The data of the probe is sent again in smaller segments in any case.
        self.abandon_probe();
        self.large_arrived = false;
        let Some(lost) = full_sized.filter(|_| self.probing != MtuProbing::Off) else {
            return false;
        };
        if self.is_cleared(lost) {
            self.timeouts = 0;
            return false;
        }
        self.timeouts += 1;
        if self.timeouts < BLACK_HOLE_TIMEOUTS {
            return false;
        }
        self.timeouts = 0;
        match &mut self.search {
            None => {
                self.begin_search(now);
                self.narrow = true;
                true
            }
            Some(search) => {
                // Every path carries the minimum of its family, so a loss below it has another cause. Ever
                // smaller segments would only starve a path with many losses.
                let payload = (search.low.saturating_sub(self.headers) / 2).min(u32::from(self.base_mss));
                search.low = (payload + self.headers).max(self.min).min(search.low);
                search.probe = None;
                let low = search.low;
                self.lower(low)
            }
        }
    }

    /// Records that SND.UNA advanced, so packets of the current size arrive. If a suspicion reduced the size,
    /// this confirms that the path is narrow.
    pub(crate) fn on_progress(&mut self) {
        self.timeouts = 0;
        self.narrow |= self.search.as_ref().is_some_and(|search| search.retest);
    }

    /// True if one flight without an answer suffices to suspect the size of its segments.
    pub(crate) fn may_suspect(&self) -> bool {
        self.probing == MtuProbing::Early
            && self.search.is_none()
            && !self.large_arrived
            && self.base() < self.mtu
    }

    /// Records the newest large packet of any connection of the path that has arrived.
    pub(crate) fn on_arrival(&mut self, packet: Option<LargePacket>) {
        self.arrived = packet.or(self.arrived);
    }

    /// True if a packet at least as large as the lost one has arrived, and left at about the same time or
    /// later. Then the path carries the size, and a full queue dropped the lost packet.
    pub(crate) fn is_cleared(&self, lost: LargePacket) -> bool {
        self.arrived
            .is_some_and(|arrived| arrived.size >= lost.size && arrived.sent_at + CLEARS_FOR >= lost.sent_at)
    }

    /// True if connections search for a smaller size without a report of a router.
    pub(crate) fn is_probing(&self) -> bool {
        self.probing != MtuProbing::Off
    }

    /// Requests the stack's decision about the size.
    pub(crate) fn doubt(&mut self) {
        self.is_in_doubt = true;
    }

    /// True if there is a report for the memory of the path, or the stack must decide about the size.
    #[inline]
    pub(crate) fn asks_path(&self) -> bool {
        self.report.is_some() || self.is_in_doubt
    }

    /// Takes the report about the arrival of a large packet.
    pub(crate) fn take_report(&mut self) -> Option<LargePacket> {
        self.report.take()
    }

    /// Returns and ends the request for the stack's decision.
    pub(crate) fn take_doubt(&mut self) -> bool {
        core::mem::take(&mut self.is_in_doubt)
    }

    /// Begins a suspicion: large segments seem to vanish, so smaller ones are sent until the current size has
    /// been tried again.
    pub(crate) fn suspect(&mut self, now: Instant) {
        self.begin_search(now);
        self.timeouts = 0;
        if let Some(search) = &mut self.search {
            search.retest = true;
        }
    }

    /// Processes the delivery of segments with `options` bytes of options. `full`: payload of a full-sized
    /// segment. The arrival of [large](PathMtu::is_large) segments is reported to the path, and may end a
    /// suspicion. Returns true if the MTU has grown because a suspicion ends.
    #[inline]
    pub(crate) fn on_delivered(&mut self, ack: &AckOutcome, full: u32, options: u32) -> bool {
        let awaits_large = self.probing == MtuProbing::Early && (!self.large_arrived || self.is_suspicion());
        let is_due = self.is_probing() && self.report_due <= ack.at;
        if !is_due && !awaits_large {
            return false;
        }
        let is_large = |segment: &&Delivered| self.is_large(segment.range.len(), options);
        let large_arrived = awaits_large && ack.delivered.iter().any(|segment| is_large(&segment));
        if is_due {
            // The acknowledgement of a retransmitted segment may be that of the original.
            let is_full = |segment: &&Delivered| {
                !segment.retransmitted && segment.range.len() >= full && is_large(segment)
            };
            if let Some(last) = ack.delivered.iter().rfind(is_full) {
                let size = self.packet(last.range.len(), options);
                self.report = Some(LargePacket { size, sent_at: last.sent_at });
                self.report_due = ack.at + LARGE_PACKET_INTERVAL;
            }
        }
        large_arrived && self.on_large_arrived()
    }

    /// True if a segment with `payload` bytes is larger than those sent while a black hole is suspected.
    pub(crate) fn is_large(&self, payload: u32, options: u32) -> bool {
        payload > self.base_payload(options)
    }

    /// Returns the payload of the segments that are sent while a black hole is suspected. `options`: their
    /// bytes of options.
    pub(crate) fn base_payload(&self, options: u32) -> u32 {
        self.payload(self.base(), options)
    }

    /// Records that a large segment arrived. Returns true if the MTU has grown because the suspicion ends.
    fn on_large_arrived(&mut self) -> bool {
        self.large_arrived = true;
        let Some(search) = self.search.take_if(|search| search.retest && search.low < search.high) else {
            return false;
        };
        self.mtu = search.high;
        true
    }

    /// Returns the payload of a segment of the suspected size, if that size should be tried now. `options`:
    /// bytes of its options.
    pub(crate) fn retest(&self, options: u32) -> Option<u32> {
        let search = self.search.as_ref().filter(|search| search.retest && search.probe.is_none())?;
        Some(self.payload(search.high, options))
    }

    fn is_suspicion(&self) -> bool {
        self.search.as_ref().is_some_and(|search| search.retest)
    }

    /// True if a search is in progress or finished.
    #[inline]
    pub(crate) fn is_searching(&self) -> bool {
        self.search.is_some()
    }

    /// Returns the probe that may be sent now, with `options` bytes of options. A search must be in progress,
    /// and no probe in flight. Window and unsent data, both bytes, must permit enough data after the probe.
    /// The caller permits probes only while nothing is being recovered.
    pub(crate) fn next_probe(&self, cwnd: u32, unsent: u32, options: u32, now: Instant) -> NextProbe {
        let mss = self.mss(options);
        let Some(search) = &self.search else { return NextProbe::Wait };
        if search.probe.is_some() || cwnd / mss < PROBE_CWND {
            return NextProbe::Wait;
        }
        if search.high.saturating_sub(search.low) < THRESHOLD {
            let again = now.saturating_since(search.since) >= RAISE_AFTER;
            return if again { NextProbe::SearchAgain } else { NextProbe::Wait };
        }
        let size = match search.retest {
            true => search.high,
            false => search.low + (search.high - search.low).div_ceil(2),
        };
        let payload = size.saturating_sub(self.headers + options);
        let needed = payload.saturating_add(SEGMENTS_AFTER_PROBE.saturating_mul(mss));
        let permitted = payload > mss && unsent >= needed && cwnd >= needed;
        if permitted { NextProbe::Payload(payload) } else { NextProbe::Wait }
    }

    /// Restarts a finished search for larger sizes.
    pub(crate) fn search_again(&mut self, now: Instant) {
        if let Some(search) = &mut self.search {
            search.high = self.local;
            search.since = now;
        }
    }

    /// Records that a probe left; `options` as in [`PathMtu::next_probe`].
    pub(crate) fn on_probe_sent(&mut self, range: SeqRange, options: u32) {
        let size = range.len().saturating_add(self.headers + options);
        if let Some(search) = &mut self.search {
            search.probe = Some(SentProbe { size, range });
        }
    }

    pub(crate) fn probe_in_flight(&self) -> Option<SeqRange> {
        self.search.as_ref()?.probe.map(|probe| probe.range)
    }

    /// Processes an advance of SND.UNA to `una`. Returns true if it acknowledges the probe and the MTU grows.
    pub(crate) fn on_acked(&mut self, una: SeqNum) -> bool {
        match self.probe_in_flight() {
            Some(range) if una.ge(range.end) => self.on_probe_acked(),
            Some(_) | None => false,
        }
    }

    /// Records that the probe arrived. Returns true if the MTU has grown.
    pub(crate) fn on_probe_acked(&mut self) -> bool {
        let Some(search) = &mut self.search else {
            return false;
        };
        let Some(probe) = search.probe.take() else {
            return false;
        };
        let size = match search.retest && probe.size + THRESHOLD > search.high {
            // A probe that repeats whole lost segments may be a few bytes shorter than the suspected size.
            true => search.high,
            false => probe.size.min(search.high),
        };
        search.low = search.low.max(size);
        search.retest = false;
        let grown = search.low > self.mtu;
        self.mtu = self.mtu.max(search.low);
        grown
    }

    /// Records that the probe was lost and nothing else. This is no sign of congestion (RFC 4821 section
    /// 7.6.2), so the caller does not change the window.
    pub(crate) fn on_probe_lost(&mut self, now: Instant) {
        if let Some(search) = &mut self.search
            && let Some(probe) = search.probe.take()
        {
            search.high = search.high.min(probe.size.saturating_sub(1)).max(search.low);
            search.retest = false;
            search.since = now;
        }
    }

    /// Ends the probe without a result, because nothing shows whether it arrived (RFC 4821 sections 7.6.3,
    /// 7.6.4).
    pub(crate) fn abandon_probe(&mut self) {
        if let Some(search) = &mut self.search {
            search.probe = None;
        }
    }

    /// Returns the packet size, bytes, that is used once large packets seem to vanish: every path should
    /// carry it.
    fn base(&self) -> u32 {
        (u32::from(self.base_mss) + self.headers).max(self.min).min(self.mtu)
    }

    fn begin_search(&mut self, now: Instant) {
        let base = self.base();
        self.search =
            Some(Box::new(MtuSearch { low: base, high: self.mtu, probe: None, retest: false, since: now }));
        self.mtu = base;
    }

    fn lower(&mut self, mtu: u32) -> bool {
        let lowered = mtu < self.mtu;
        self.mtu = self.mtu.min(mtu);
        lowered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: u32 = 12;

    #[test]
    fn size_reported_by_a_router_is_retried_after_ten_minutes() {
        let mut path = PathMtu::new(1500, false, MtuProbing::OnBlackHole, BASE_MSS);
        assert!(path.on_icmp(1400, at(0)) && !path.is_stale(at(599)));
        assert!(path.on_icmp(1300, at(599)) && !path.is_stale(at(600)), "it was said again");
        assert!(
            path.is_stale(at(1199))
                && path.raise_stale()
                && path.mtu() == 1500
                && path.report() == MtuReport::Silent
        );
        assert!(path.on_icmp(1300, at(1200)) && path.mtu() == 1300);
    }

    fn lost(second: u64) -> Option<LargePacket> {
        Some(LargePacket { size: 1500, sent_at: at(second) })
    }

    fn at(seconds: u64) -> Instant {
        Instant::from_millis(seconds * 1000)
    }

    fn probe(path: &mut PathMtu, now: Instant) -> Option<u32> {
        let size = match path.next_probe(1_000_000, 1_000_000, OPTIONS, now) {
            NextProbe::Payload(size) => size,
            NextProbe::SearchAgain => {
                path.search_again(now);
                return None;
            }
            NextProbe::Wait => return None,
        };
        path.on_probe_sent(SeqRange::with_len(SeqNum(1000), size), OPTIONS);
        Some(size)
    }

    #[test]
    fn the_payload_is_what_headers_and_options_leave() {
        assert_eq!(PathMtu::new(1500, false, MtuProbing::Off, BASE_MSS).mss(0), 1460);
        assert_eq!(PathMtu::new(1500, false, MtuProbing::Off, BASE_MSS).mss(OPTIONS), 1448);
        assert_eq!(PathMtu::new(1500, true, MtuProbing::Off, BASE_MSS).mss(OPTIONS), 1428);
    }

    #[test]
    fn a_router_lowers_the_mtu_and_never_raises_it() {
        let mut path = PathMtu::new(1500, false, MtuProbing::Off, BASE_MSS);
        assert!(path.on_icmp(1400, at(0)));
        assert!(!path.on_icmp(1400, at(0)) && !path.on_icmp(1450, at(0)) && !path.on_icmp(9000, at(0)));
        assert_eq!(path.mtu(), 1400);
    }

    #[test]
    fn sizes_below_the_minimum_of_the_family_are_not_believed() {
        // RFC 8201 section 4: "A node MUST NOT reduce its estimate of the Path MTU below the IPv6
        // minimum link MTU in response to a Packet Too Big message."
        let mut path = PathMtu::new(1500, true, MtuProbing::Off, BASE_MSS);
        path.on_icmp(68, at(0));
        assert_eq!(path.mtu(), 1280);
        let mut path = PathMtu::new(1500, false, MtuProbing::Off, BASE_MSS);
        path.on_icmp(0, at(0));
        assert_eq!(path.mtu(), 576);
    }

    #[test]
    fn three_timeouts_of_full_sized_segments_suggest_a_black_hole() {
        let mut path = PathMtu::new(1500, false, MtuProbing::OnBlackHole, BASE_MSS);
        assert!(!path.on_timeout(lost(1), at(1)) && !path.on_timeout(None, at(1)));
        assert!(!path.on_timeout(lost(2), at(2)) && path.on_timeout(lost(3), at(3)));
        assert_eq!(path.mss(0), 1024);
        assert!(!path.on_timeout(lost(4), at(4)) && !path.on_timeout(lost(5), at(5)));
        assert!(path.on_timeout(lost(6), at(6)), "still nothing gets through");
        assert_eq!(path.mss(0), 536);
        assert!((7..100).all(|second| !path.on_timeout(lost(second), at(second))));
        assert_eq!(path.mss(0), 536, "every IPv4 path takes 576 bytes");
    }

    #[test]
    fn timeouts_count_only_while_no_large_packet_of_others_arrives() {
        let mut path = PathMtu::new(1500, false, MtuProbing::OnBlackHole, BASE_MSS);
        let arrived = |size, second| Some(LargePacket { size, sent_at: at(second) });
        for second in 1..10 {
            path.on_arrival(arrived(1500, second));
            assert!(!path.on_timeout(lost(second), at(second + 1)));
        }
        assert!(!path.on_timeout(lost(10), at(11)) && !path.on_timeout(lost(11), at(12)));
        path.on_arrival(arrived(1400, 12));
        assert!(path.on_timeout(lost(12), at(13)), "a smaller one proves nothing");
    }

    #[test]
    fn known_path_size_replaces_the_search() {
        let mut first = PathMtu::new(1500, false, MtuProbing::OnBlackHole, BASE_MSS);
        assert_eq!(first.report(), MtuReport::Silent);
        (1..=3).for_each(|second| {
            first.on_timeout(lost(second), at(second));
        });
        let found = NarrowPath { low: 1064, high: 1500 };
        assert_eq!(first.report(), MtuReport::Narrow(found));
        let mut second = PathMtu::new(1500, false, MtuProbing::OnBlackHole, BASE_MSS);
        assert!(second.continue_from(found, at(9)));
        assert_eq!(second.mss(0), 1024);
        let size = probe(&mut second, at(9)).expect("the search goes on");
        assert!(second.on_acked(SeqNum(1000) + size));
        assert_eq!(second.report(), MtuReport::Narrow(NarrowPath { low: 1282, high: 1500 }));
        while let Some(size) = probe(&mut second, at(9)) {
            second.on_acked(SeqNum(1000) + size);
        }
        assert_eq!(second.report(), MtuReport::Open, "everything passes again");
    }

    #[test]
    fn size_reported_by_a_router_is_used_by_the_next_connection() {
        let mut first = PathMtu::new(1500, false, MtuProbing::Off, BASE_MSS);
        first.on_icmp(1400, at(0));
        let found = NarrowPath { low: 1400, high: 1400 };
        assert_eq!(first.report(), MtuReport::Narrow(found));
        let mut second = PathMtu::new(1500, false, MtuProbing::Off, BASE_MSS);
        assert!(second.continue_from(found, at(9)));
        assert_eq!((second.mtu(), second.device_mss()), (1400, 1460), "announced is what the device takes");
        let mut small = PathMtu::new(1300, false, MtuProbing::Off, BASE_MSS);
        assert!(!small.continue_from(found, at(9)));
    }

    #[test]
    fn a_black_hole_does_not_lower_ipv6_below_its_minimum() {
        let mut path = PathMtu::new(1500, true, MtuProbing::OnBlackHole, BASE_MSS);
        for second in 0..100 {
            path.on_timeout(lost(second), at(second));
        }
        assert_eq!(path.mtu(), 1280);
    }

    #[test]
    fn probes_are_no_larger_than_what_the_peer_takes() {
        let mut path = PathMtu::new(9000, false, MtuProbing::Always, BASE_MSS);
        path.cap(1400);
        let mut largest = 0;
        while let Some(size) = probe(&mut path, at(1)) {
            largest = largest.max(size + OPTIONS);
            assert!(path.on_probe_acked());
        }
        assert!((1392..=1400).contains(&largest), "{largest}");
        assert_eq!(probe(&mut path, at(700)), None, "nor when the search begins again");
        assert_eq!(path.device_mss(), 1400);
    }

    #[test]
    fn progress_between_timeouts_speaks_against_a_black_hole() {
        let mut path = PathMtu::new(1500, false, MtuProbing::OnBlackHole, BASE_MSS);
        for second in 0..10 {
            assert!(!path.on_timeout(lost(second), at(second)));
            path.on_progress();
        }
        let mut off = PathMtu::new(1500, false, MtuProbing::Off, BASE_MSS);
        assert!((0..10).all(|second| !off.on_timeout(lost(second), at(second))));
    }

    #[test]
    fn probes_find_the_largest_size_that_passes() {
        // RFC 4821 section 7.3: search between search_low and search_high.
        let mut path = PathMtu::new(9000, false, MtuProbing::Always, BASE_MSS);
        let passes = 4321;
        let mut probes = 0;
        while let Some(size) = probe(&mut path, at(1)) {
            probes += 1;
            if size + OPTIONS + 40 <= passes {
                assert!(path.on_acked(SeqNum(1000) + size));
            } else {
                path.on_probe_lost(at(1));
            }
        }
        assert!((passes - THRESHOLD..=passes).contains(&path.mtu()), "{}", path.mtu());
        assert!(probes < 15, "{probes} probes");
        assert_eq!(probe(&mut path, at(500)), None);
        probe(&mut path, at(602));
        assert!(probe(&mut path, at(602)).is_some(), "after ten minutes larger sizes are tried again");
    }

    #[test]
    fn one_probe_is_in_flight_at_a_time_and_only_with_enough_behind_it() {
        let mut path = PathMtu::new(1500, false, MtuProbing::Always, BASE_MSS);
        assert_eq!(
            path.next_probe(10 * 1012, 1_000_000, OPTIONS, at(0)),
            NextProbe::Wait,
            "window too small"
        );
        assert_eq!(path.next_probe(1_000_000, 3000, OPTIONS, at(0)), NextProbe::Wait, "nothing to follow it");
        assert!(probe(&mut path, at(0)).is_some());
        assert!(path.probe_in_flight().is_some());
        assert_eq!(probe(&mut path, at(0)), None);
        assert!(!path.on_acked(SeqNum(1500)), "part of it is not the whole");
    }

    #[test]
    fn router_report_ends_the_search_above_its_size() {
        let mut path = PathMtu::new(9000, false, MtuProbing::Always, BASE_MSS);
        assert!(probe(&mut path, at(0)).is_some());
        path.on_icmp(1400, at(0));
        assert_eq!(path.probe_in_flight(), None, "the probe cannot have passed");
        while let Some(size) = probe(&mut path, at(1)) {
            assert!(size + OPTIONS + 40 <= 1400);
            path.on_acked(SeqNum(1000) + size);
        }
        assert!((1400 - THRESHOLD..=1400).contains(&path.mtu()));
    }
}

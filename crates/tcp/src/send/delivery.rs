//! Delivery rate (draft-ietf-ccwg-bbr section 4.1): the rate at which the path delivers. It is measured from
//! the sending of a segment to its acknowledgement, over the data delivered in that time.
//!
//! Snapshots are in the order of the transmission's time and, at equal times, of its end. So a binary search
//! for this pair finds the snapshot of a record's last transmission. A super-segment is one transmission.

use alloc::collections::VecDeque;

use brisk_wire::SeqNum;

use crate::congestion::sample::{DeliverySample, LostPacket, RateSample};
use crate::outcome::{AckOutcome, Delivered, Origin, Sent};
use crate::seq_ranges::SeqRange;
use crate::time::{Instant, Micros, TIMESTAMP_TICK};

/// The counters of a connection, or of all connections that share a path, with the draft's names.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeliveryRate {
    delivered: u64,
    delivered_at: Instant,
    /// Time when the last acknowledged transmission left.
    first_sent_at: Instant,
    lost: u64,
    /// Value of `delivered` up to which the application limits the rate; 0: no limit by the application.
    app_limited: u64,
    redundancy: Redundancy,
    /// Part of `delivered`: parity and copies.
    redundancy_delivered: u64,
}

/// The counters at each transmission of a connection that may be outstanding.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshots(VecDeque<Snapshot>);

/// The counters at the time of a transmission.
#[derive(Clone, Copy, Debug)]
struct Snapshot {
    sent_at: Instant,
    end: SeqNum,
    delivered: u64,
    delivered_at: Instant,
    first_sent_at: Instant,
    lost: u64,
    tx_in_flight: u32,
    app_limited: bool,
}

/// Parity and copies in flight, in the order of sending.
#[derive(Clone, Debug, Default)]
struct Redundancy {
    sent: VecDeque<Redundant>,
    bytes: u32,
}

#[derive(Clone, Copy, Debug)]
struct Redundant {
    sent_at: Instant,
    expires: Instant,
    bytes: u32,
}

impl Redundancy {
    fn pop_before(&mut self, at: Instant) -> Option<Redundant> {
        let redundant = self.sent.pop_front_if(|redundant| redundant.sent_at < at)?;
        self.bytes -= redundant.bytes;
        Some(redundant)
    }

    /// Removes redundancy that must have arrived or been lost by now.
    fn expire(&mut self, now: Instant) {
        while let Some(redundant) = self.sent.pop_front_if(|redundant| redundant.expires <= now) {
            self.bytes -= redundant.bytes;
        }
    }
}

impl DeliveryRate {
    /// True if the application limits the bytes in flight.
    pub(crate) fn is_app_limited(&self) -> bool {
        self.app_limited != 0
    }

    /// Marks the rate as limited by the application. Call it when all waiting data has been sent and the
    /// window exceeds the `pipe` bytes in flight.
    pub(crate) fn mark_app_limited(&mut self, pipe: u32) {
        self.app_limited = (self.delivered + u64::from(pipe)).max(1);
    }

    /// Records a transmission of data. `pipe`: bytes in flight before it. `from_idle`: no other data is
    /// unacknowledged.
    pub(crate) fn on_sent(&mut self, snapshots: &mut Snapshots, sent: &Sent, pipe: u32, from_idle: bool) {
        self.redundancy.expire(sent.at);
        if from_idle {
            (self.first_sent_at, self.delivered_at) = (sent.at, sent.at);
        }
        snapshots.0.push_back(Snapshot {
            sent_at: sent.at,
            end: sent.range.end,
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_sent_at: self.first_sent_at,
            lost: self.lost,
            tx_in_flight: pipe.saturating_add(sent.range.len()),
            app_limited: self.is_app_limited(),
        });
    }

    /// Counts the data delivered by an acknowledgement, and the `repeated` bytes that arrived a second time.
    /// Call it before losses are counted and before [`DeliveryRate::sample`].
    pub(crate) fn count(&mut self, ack: &AckOutcome, repeated: u32) {
        if ack.delivered_bytes > 0 {
            self.delivered += u64::from(ack.delivered_bytes);
            self.delivered_at = ack.at;
        }
        self.delivered += u64::from(repeated);
    }

    /// Records that parity or a copy leaves. It occupies the path, but no acknowledgement covers it. So it
    /// counts as in flight at most until `expires`.
    pub(crate) fn on_redundancy(&mut self, bytes: u32, now: Instant, expires: Instant) {
        self.redundancy.expire(now);
        self.redundancy.bytes += bytes;
        self.redundancy.sent.push_back(Redundant { sent_at: now, expires, bytes });
    }

    /// Returns the estimated bytes of parity and copies in flight.
    pub(crate) fn redundancy_in_flight(&self) -> u32 {
        self.redundancy.bytes
    }

    /// Returns the bytes of redundancy that count as delivered since the connection began.
    pub(crate) fn redundancy_delivered(&self) -> u64 {
        self.redundancy_delivered
    }

    /// Records that redundancy has repaired `range`, which was last sent at `sent_at`. The acknowledgement
    /// has counted the range as delivered. In fact the range was lost, and the redundancy crossed the path
    /// instead. Returns the record of the lost transmission.
    pub(crate) fn on_repaired(
        &mut self,
        snapshots: &Snapshots,
        range: SeqRange,
        sent_at: Instant,
        now: Instant,
    ) -> Option<LostPacket> {
        let at = self.redundancy.sent.iter().position(|redundant| redundant.sent_at >= sent_at);
        if let Some(redundant) = at.and_then(|at| self.redundancy.sent.remove(at)) {
            self.redundancy.bytes -= redundant.bytes;
            self.delivered = self.delivered.saturating_sub(range.len().into()) + u64::from(redundant.bytes);
        }
        self.on_lost(snapshots, range, sent_at, now)
    }

    /// Counts a loss of `range`, which was last sent at `sent_at`. Returns the record of its transmission.
    pub(crate) fn on_lost(
        &mut self,
        snapshots: &Snapshots,
        range: SeqRange,
        sent_at: Instant,
        now: Instant,
    ) -> Option<LostPacket> {
        self.lost += u64::from(range.len());
        let snapshot = *snapshots.get(sent_at, range.end)?;
        Some(LostPacket {
            now,
            range,
            tx_in_flight: snapshot.tx_in_flight,
            lost: self.lost - snapshot.lost,
            prior_delivered: snapshot.delivered,
            delivered: self.delivered,
            app_limited: snapshot.app_limited,
            is_queued: false,
        })
    }

    /// Returns the counters after an acknowledgement and its losses, with the rate of the newest delivered
    /// transmission. `oldest`: time when the first outstanding segment was first sent; `None` if nothing is
    /// outstanding.
    pub(crate) fn sample(
        &mut self,
        snapshots: &mut Snapshots,
        ack: &AckOutcome,
        min_rtt: Option<Micros>,
        oldest: Option<Instant>,
    ) -> DeliverySample {
        let found = ack
            .delivered
            .iter()
            .rev()
            // The acknowledgement of a repair does not show when the segment arrived.
            .filter(|segment| !ack.repaired && !was_delivered_before(segment, ack))
            .find_map(|segment| Some((segment, *snapshots.get(segment.sent_at, segment.range.end)?)));
        let rate = found.map(|(newest, snapshot)| {
            self.first_sent_at = newest.sent_at;
            let send_elapsed = Micros::between(snapshot.first_sent_at, newest.sent_at);
            // Data is not delivered faster than it is sent, even if acknowledgements that arrive together
            // suggest it.
            let interval = send_elapsed.max(Micros::between(snapshot.delivered_at, ack.at));
            let delivered = self.delivered - snapshot.delivered;
            let is_measure =
                interval.0 > 0 && min_rtt.is_none_or(|min_rtt| interval >= min_rtt) && !ack.reneged;
            let per_second = || (u128::from(delivered) * 1_000_000).div_ceil(u128::from(interval.0));
            RateSample {
                prior_delivered: snapshot.delivered,
                delivered,
                lost: self.lost - snapshot.lost,
                tx_in_flight: snapshot.tx_in_flight,
                app_limited: snapshot.app_limited,
                is_probe: newest.origin == Origin::TailLossProbe && newest.retransmitted,
                rtt: (!newest.retransmitted).then(|| Micros::between(newest.sent_at, ack.at)),
                rate: is_measure.then(|| u64::try_from(per_second()).unwrap_or(u64::MAX)),
            }
        });
        if let Some((newest, snapshot)) = found {
            // Redundancy that left before the newest delivered data is no longer in flight. It counts as
            // delivered, less the share of data that was lost.
            let lost = self.lost - snapshot.lost;
            let all = lost + (self.delivered - snapshot.delivered);
            while let Some(redundant) = self.redundancy.pop_before(newest.sent_at) {
                let bytes = u64::from(redundant.bytes);
                let delivered = bytes - bytes * lost / all.max(1);
                self.delivered += delivered;
                self.redundancy_delivered += delivered;
            }
        }
        self.redundancy.expire(ack.at);
        if self.delivered > self.app_limited {
            self.app_limited = 0;
        }
        match oldest {
            None => snapshots.0.clear(),
            Some(oldest) => while snapshots.0.pop_front_if(|snapshot| snapshot.sent_at < oldest).is_some() {},
        }
        DeliverySample { delivered: self.delivered, lost: self.lost, rate }
    }
}

impl Snapshots {
    fn get(&self, sent_at: Instant, end: SeqNum) -> Option<&Snapshot> {
        let before = |snapshot: &Snapshot| {
            snapshot.sent_at < sent_at || (snapshot.sent_at == sent_at && snapshot.end.lt(end))
        };
        let index = self.0.partition_point(before);
        self.0.get(index).filter(|snapshot| snapshot.sent_at == sent_at)
    }
}

/// True if the echoed timestamp shows that an earlier transmission of the segment arrived.
fn was_delivered_before(segment: &Delivered, ack: &AckOutcome) -> bool {
    let age = Micros::between(segment.sent_at, ack.at);
    segment.retransmitted && ack.echoed_rtt.is_some_and(|echoed| echoed > age + TIMESTAMP_TICK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::send::scoreboard::{AckInfo, Scoreboard};
    use brisk_wire::{SackBlock, SackBlocks};

    /// A sender of segments of 1000 bytes; times are in milliseconds.
    struct Flow {
        board: Scoreboard,
        rate: DeliveryRate,
        snapshots: Snapshots,
        min_rtt: Option<Micros>,
    }

    fn info(now: Instant, echoed: Option<u64>) -> AckInfo {
        AckInfo {
            now,
            ece: false,
            window_changed: false,
            len: 0,
            max_snd_wnd: 1 << 20,
            ts_echo_rtt: echoed.map(Micros::from_millis),
        }
    }

    impl Flow {
        fn new() -> Flow {
            Flow {
                board: Scoreboard::new(SeqNum(0), true),
                rate: DeliveryRate::default(),
                snapshots: Snapshots::default(),
                min_rtt: None,
            }
        }

        fn send(&mut self, at: u64, from: u32, segments: u32, origin: Origin) {
            let sent = Sent {
                range: SeqRange::with_len(SeqNum(from), segments * 1000),
                segment_size: 1000,
                origin,
                syn: false,
                fin: false,
                at: Instant::from_millis(at),
            };
            self.rate.on_sent(&mut self.snapshots, &sent, self.board.pipe(), self.board.is_empty());
            self.board.on_sent(&sent);
        }

        fn send_new(&mut self, at: u64) {
            self.send(at, self.board.nxt().0, 1, Origin::New);
        }

        /// Acknowledges everything below `to` cumulatively.
        fn ack(&mut self, at: u64, to: u32, echoed: Option<u64>) -> DeliverySample {
            let now = Instant::from_millis(at);
            let outcome = self.board.on_ack(SeqNum(to), &SackBlocks::default(), info(now, echoed));
            self.rate.count(&outcome, 0);
            let oldest = self.board.head().map(|head| head.first_sent_at);
            self.rate.sample(&mut self.snapshots, &outcome, self.min_rtt, oldest)
        }

        fn rate(&mut self, at: u64, to: u32) -> Option<u64> {
            self.ack(at, to, None).rate.expect("timing").rate
        }

        /// Returns a flight of four segments at 0, 10, 20, 30.
        fn of_four() -> Flow {
            let mut flow = Flow::new();
            [0, 10, 20, 30].into_iter().for_each(|at| flow.send_new(at));
            flow
        }
    }

    #[test]
    fn first_flight_is_measured_from_its_start() {
        let mut flow = Flow::of_four();
        for (at, to, rate) in
            [(100, 1000, 10_000), (110, 2000, 18_182), (120, 3000, 25_000), (130, 4000, 30_770)]
        {
            let sample = flow.ack(at, to, None).rate.expect("timing");
            assert_eq!((sample.rate, sample.prior_delivered), (Some(rate), 0));
            assert_eq!(flow.rate.first_sent_at, Instant::from_millis(at - 100));
        }
        assert!(flow.snapshots.0.is_empty());
    }

    /// Two connections share the counters. Nothing is outstanding only if both have nothing outstanding.
    #[test]
    fn flight_of_two_members_is_measured_from_its_common_start() {
        let (mut a, mut b) = (Flow::new(), Flow::new());
        a.send_new(0);
        core::mem::swap(&mut a.rate, &mut b.rate);
        let sent = Sent {
            range: SeqRange::with_len(SeqNum(0), 1000),
            segment_size: 1000,
            origin: Origin::New,
            syn: false,
            fin: false,
            at: Instant::from_millis(5),
        };
        b.rate.on_sent(&mut b.snapshots, &sent, 1000, false);
        b.board.on_sent(&sent);
        core::mem::swap(&mut a.rate, &mut b.rate);
        assert_eq!(a.rate(40, 1000), Some(25_000));
        core::mem::swap(&mut a.rate, &mut b.rate);
        assert_eq!(b.rate(45, 1000), Some(44_445));
    }

    #[test]
    fn later_segments_are_measured_from_the_acknowledgement_before_them() {
        let mut flow = Flow::of_four();
        flow.rate(100, 1000);
        flow.send_new(100);
        [(110, 2000), (120, 3000), (130, 4000)].into_iter().for_each(|(at, to)| {
            flow.rate(at, to);
        });
        let sample = flow.ack(200, 5000, None).rate.expect("timing");
        assert_eq!((sample.prior_delivered, sample.delivered, sample.rate), (1000, 4000, Some(40_000)));
        assert_eq!((sample.tx_in_flight, sample.rtt), (4000, Some(Micros::from_millis(100))));
    }

    #[test]
    fn compressed_acks_do_not_raise_the_rate_above_the_sending_rate() {
        let mut flow = Flow::new();
        (0..7).for_each(|segment| flow.send_new(segment * 25));
        assert_eq!(flow.rate(170, 4000), Some(23_530));
        flow.send_new(175);
        assert_eq!(flow.rate(190, 8000), Some(40_000));
    }

    #[test]
    fn lost_acknowledgements_leave_one_sample() {
        assert_eq!(Flow::of_four().rate(130, 4000), Some(30_770));
    }

    #[test]
    fn interval_below_the_minimum_round_trip_is_no_measure() {
        let mut flow = Flow::new();
        flow.min_rtt = Some(Micros::from_millis(100));
        flow.send_new(0);
        flow.send_new(0);
        flow.send(100, 0, 1, Origin::Retransmit);
        // Without timestamps the late original seems to be its retransmission.
        assert_eq!(flow.rate(110, 1000), Some(9_091), "from the start of the flight");
        flow.send(120, 1000, 1, Origin::Retransmit);
        let sample = flow.ack(130, 2000, None);
        assert_eq!(sample.rate.expect("timing").rate, None);
        assert_eq!((sample.delivered, flow.rate.delivered_at), (2000, Instant::from_millis(130)));
    }

    #[test]
    fn late_original_gives_no_timing_where_timestamps_tell_it_apart() {
        let mut flow = Flow::new();
        flow.send_new(0);
        flow.send(100, 0, 1, Origin::Retransmit);
        let sample = flow.ack(110, 1000, Some(110));
        assert_eq!((sample.delivered, sample.rate), (1000, None));
    }

    #[test]
    fn pause_of_the_application_marks_what_is_sent_until_it_has_left_the_path() {
        let mut flow = Flow::new();
        (0..14).for_each(|_| flow.send_new(0));
        flow.rate(100, 10_000);
        flow.rate.mark_app_limited(flow.board.pipe());
        assert_eq!(flow.rate.app_limited, 14_000);
        flow.send_new(110);
        flow.rate(120, 14_000);
        assert!(flow.rate.is_app_limited());
        let sample = flow.ack(210, 15_000, None).rate.expect("timing");
        assert!(sample.app_limited && !flow.rate.is_app_limited());
    }

    #[test]
    fn repaired_segment_is_lost_and_its_parity_delivered() {
        let mut flow = Flow::new();
        let at = Instant::from_millis;
        (0..10).for_each(|segment| flow.send_new(segment));
        flow.rate.on_redundancy(1000, at(10), at(80));
        assert_eq!(flow.rate.redundancy_in_flight(), 1000);
        let mut acked = |now, to, sack: Option<(u32, u32)>, repaired| {
            let mut blocks = SackBlocks::default();
            blocks.extend(sack.map(|(from, to)| SackBlock { start: SeqNum(from), end: SeqNum(to) }));
            let mut outcome = flow.board.on_ack(SeqNum(to), &blocks, info(at(now), None));
            outcome.repaired = repaired;
            flow.rate.count(&outcome, 0);
            if repaired {
                let lost = SeqRange::with_len(SeqNum(2000), 1000);
                let lost = flow.rate.on_repaired(&flow.snapshots, lost, at(2), at(now)).expect("known");
                assert_eq!((lost.tx_in_flight, lost.lost), (3000, 1000));
            }
            let oldest = flow.board.head().map(|head| head.first_sent_at);
            flow.rate.sample(&mut flow.snapshots, &outcome, None, oldest)
        };
        acked(51, 2000, None, false);
        let sample = acked(59, 2000, Some((3000, 10_000)), false);
        assert_eq!((sample.delivered, sample.rate.and_then(|rate| rate.rate)), (9000, Some(152_543)));
        let sample = acked(60, 10_000, None, true);
        assert_eq!((sample.delivered, sample.lost, sample.rate), (10_000, 1000, None));
        assert_eq!(flow.rate.redundancy_in_flight(), 0);
    }

    #[test]
    fn redundancy_before_data_arrives_in_proportion_or_expires() {
        let mut flow = Flow::new();
        let at = Instant::from_millis;
        (0..2).for_each(|_| flow.send_new(0));
        flow.rate.on_redundancy(1000, at(1), at(130));
        flow.send_new(2);
        flow.rate.on_redundancy(1000, at(3), at(130));
        flow.rate(100, 2000);
        assert_eq!(flow.rate.redundancy_in_flight(), 2000);
        assert_eq!(flow.rate(102, 3000), Some(29_412), "what arrives with this one enters the next sample");
        assert_eq!((flow.rate.delivered, flow.rate.redundancy_in_flight()), (4000, 1000));
        flow.send_new(140);
        flow.rate(240, 4000);
        assert_eq!((flow.rate.delivered, flow.rate.redundancy_in_flight()), (5000, 0), "after a pause");
        flow.rate.on_redundancy(700, at(250), at(300));
        flow.send_new(310);
        flow.rate.on_redundancy(100, at(320), at(400));
        assert_eq!(flow.rate.redundancy_in_flight(), 100);
    }

    #[test]
    fn segments_of_a_run_share_a_snapshot_and_losses_find_theirs() {
        let mut flow = Flow::new();
        flow.send(0, 0, 3, Origin::New);
        flow.send(0, 3000, 2, Origin::New);
        let now = Instant::from_millis(100);
        let second = SeqRange::with_len(SeqNum(1000), 1000);
        let lost = flow.rate.on_lost(&flow.snapshots, second, Instant::from_millis(0), now).expect("known");
        assert_eq!((lost.tx_in_flight, lost.lost), (3000, 1000));
        let last = SeqRange::with_len(SeqNum(4000), 1000);
        let lost = flow.rate.on_lost(&flow.snapshots, last, Instant::from_millis(0), now).expect("known");
        assert_eq!((lost.tx_in_flight, lost.lost), (5000, 2000));
    }
}

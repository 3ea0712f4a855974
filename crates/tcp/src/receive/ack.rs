//! The times of acknowledgements: delayed acknowledgements as in Linux.
//!
//! RFC 9293 section 3.8.6.3 and RFC 5681 section 4.2 allow a delay of half a second. They ask for an
//! acknowledgement of at least every second full-sized segment, and an immediate one of anything out of
//! order. Within these rules, the delay adapts:
//!
//! - **quick mode**: the first acknowledgements of a connection are not delayed, so that the window of a
//!   sender in slow start grows. The same applies after a long gap or a duplicate;
//! - **ato**: the delay follows the time between arrivals. It is between 40 ms and the limits that the
//!   configuration, the round-trip time and the retransmission timeout set;
//! - **interactive** ("ping-pong"): once the application has responded within the delay, acknowledgements
//!   wait for the response that carries them, even in quick mode.
//!
//! An acknowledgement is owed until [`AckPolicy::on_ack_sent`]. So a driver that processes a batch of
//! arrivals before it polls for packets sends one acknowledgement for all of them. That is cheap, and right
//! for bulk data. It is wrong while a connection is young or data is missing: if the only acknowledgement of
//! a flight is lost, the sender waits for its probe. [`AckPolicy::is_urgent`] shows when the driver should
//! poll first.

use brisk_wire::SeqNum;

use super::assembler::{Arrival, ArrivalKind};
use crate::time::{Duration, Instant, Micros};

/// Minimum and initial value of the adaptive delay.
const ATO_MIN: Duration = Duration::from_millis(40);

/// Maximum of the adaptive delay of an interactive connection or after a push.
const ATO_MAX_INTERACTIVE: Duration = Duration::from_millis(200);

/// Maximum of the adaptive delay: RFC 9293 section 3.8.6.3, "MUST be less than 0.5 seconds".
const ATO_MAX: Duration = Duration::from_millis(500);

/// Maximum number of undelayed acknowledgements per entry into quick mode.
const QUICK_MAX: u32 = 16;

/// Number of undelayed acknowledgements after the sender's window has become small.
const QUICK_FOR_SLOW_SENDER: u32 = 2;

/// Time that the acknowledgement of a FIN waits for the program's own FIN, while no data has shown how fast
/// programs respond here. In Linux this is a tick of the clock, 1 to 10 ms.
const FIN_WAIT: Duration = Duration::from_millis(1);

/// Maximum number of packets of a batch that one acknowledgement covers. A super-segment is one packet.
const BATCH_MAX: u32 = 4;

/// Packets of a batch with at least this length, bytes, need no additional acknowledgement. Super-segments of
/// this length arrive so fast that a round of a driver takes some 50 us. The acknowledgement at the end of
/// the round also announces the window that reads have opened.
const LONG_PACKET: u32 = 32 << 10;

/// Maximum number of bytes of such packets that one acknowledgement covers.
const BATCH_BYTES: u32 = 512 << 10;

/// The default MSS (RFC 9293 section 3.7.1): segments of this size or more show the peer's segment size.
const MSS_DEFAULT: u32 = 536;

/// Minimum plausible segment size.
const MSS_MIN: u32 = 88;

/// State of the owed acknowledgement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owed {
    /// No acknowledgement is owed.
    Nothing,
    /// An acknowledgement is owed by this time. Any segment that leaves before carries it.
    At(Instant),
    /// An acknowledgement must leave at the next opportunity.
    Now,
}

/// Facts about a segment that the policy needs in addition to its [`Arrival`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Received {
    /// Payload bytes of each wire segment: a super-segment counts as its segments.
    pub(crate) segment_size: u32,
    /// True if the segment has a FIN and this end has sent none yet. The program will respond with its own
    /// FIN, and perhaps with data.
    pub(crate) half_closes: bool,
    /// True if PSH was set.
    pub(crate) push: bool,
    /// RCV.NXT after the segment.
    pub(crate) rcv_nxt: SeqNum,
    /// The receive window, bytes.
    pub(crate) rcv_wnd: u32,
    /// Smoothed round-trip time of this end's data, if there is a sample. It limits the delay.
    pub(crate) srtt: Option<Micros>,
    /// This end's retransmission timeout. After a longer gap the peer may be in slow start again.
    pub(crate) rto: Micros,
}

#[derive(Clone, Debug)]
pub(crate) struct AckPolicy {
    delack_max: Duration,
    /// MSS that this end announced, bytes.
    advertised_mss: u32,
    /// Estimate of the payload of the peer's full-sized segments.
    rcv_mss: u32,
    /// Size of the last segment that was smaller than `rcv_mss` but may still be full-sized.
    smaller: Option<u32>,
    /// The adaptive delay; `None` before the first data.
    ato: Option<Duration>,
    /// Undelayed acknowledgements left.
    quick: u32,
    /// True if the owed acknowledgement is for data; only such acknowledgements use up quick mode.
    answers_data: bool,
    interactive: bool,
    /// Segments that end a write of the peer, since the last acknowledgement; the count stops at two.
    pushed: u8,
    last_data_at: Instant,
    /// RCV.NXT in the last segment that left.
    last_ack_sent: SeqNum,
    /// Packets with data since that segment.
    unanswered: u32,
    owed: Owed,
}

impl AckPolicy {
    /// Returns a policy with a delay of at most `delack_max`, for a connection that offered segments of
    /// `advertised_mss` bytes and a window of `rcv_wnd` bytes.
    pub(crate) fn new(delack_max: Duration, advertised_mss: u32, rcv_wnd: u32) -> Self {
        AckPolicy {
            delack_max,
            advertised_mss,
            rcv_mss: advertised_mss.min(rcv_wnd / 2).clamp(MSS_MIN, MSS_DEFAULT),
            smaller: None,
            ato: None,
            quick: 0,
            answers_data: false,
            interactive: false,
            pushed: 0,
            last_data_at: Instant::ZERO,
            last_ack_sent: SeqNum::default(),
            unanswered: 0,
            owed: Owed::Nothing,
        }
    }

    /// Starts once the peer's ISN is known. Everything below `rcv_nxt` counts as acknowledged.
    pub(crate) fn start(&mut self, rcv_nxt: SeqNum) {
        self.last_ack_sent = rcv_nxt;
    }

    /// Returns the adaptive delay; `None` before the first data.
    pub(crate) fn delay(&self) -> Option<Duration> {
        self.ato
    }

    /// Returns the estimate of the payload of the peer's full-sized segments, bytes.
    pub(crate) fn rcv_mss(&self) -> u32 {
        self.rcv_mss
    }

    pub(crate) fn set_delack_max(&mut self, longest: Duration) {
        self.delack_max = longest;
    }

    /// Limits the estimate to the peer's MSS from the handshake until larger segments are seen (Linux:
    /// tcp_initialize_rcv_mss).
    pub(crate) fn on_peer_mss(&mut self, mss: u32) {
        self.rcv_mss = self.rcv_mss.min(mss.max(MSS_MIN));
    }

    /// Returns RCV.NXT in the last segment that left: Last.ACK.sent of RFC 7323.
    pub(crate) fn last_ack_sent(&self) -> SeqNum {
        self.last_ack_sent
    }

    pub(crate) fn owed(&self) -> Owed {
        self.owed
    }

    /// True if an acknowledgement must leave now, with or without data.
    #[inline]
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        match self.owed {
            Owed::Nothing => false,
            Owed::Now => true,
            Owed::At(due) => due <= now,
        }
    }

    /// True if the owed acknowledgement should leave before the next packet of a batch is processed. RFC 5681
    /// section 4.2 asks for an acknowledgement of "at least every second full-sized segment". A batch may
    /// have fewer, as with Linux's receive offload. Exceptions are a sender in slow start, and missing data:
    /// each duplicate acknowledgement then reports another segment. `rcv_nxt` is RCV.NXT.
    pub(crate) fn is_urgent(&self, rcv_nxt: SeqNum) -> bool {
        let unacknowledged = rcv_nxt.since(self.last_ack_sent);
        let are_long = unacknowledged / LONG_PACKET >= self.unanswered && unacknowledged < BATCH_BYTES;
        let is_due = self.in_quick_mode() || self.unanswered >= BATCH_MAX && !are_long;
        self.reports_gap(rcv_nxt) || (self.owed == Owed::Now && is_due)
    }

    /// True if the owed acknowledgement repeats the last acknowledgement, because data is missing.
    pub(crate) fn reports_gap(&self, rcv_nxt: SeqNum) -> bool {
        self.owed == Owed::Now && rcv_nxt == self.last_ack_sent && self.unanswered > 0
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        match self.owed {
            Owed::At(deadline) => Some(deadline),
            Owed::Nothing | Owed::Now => None,
        }
    }

    /// Processes a segment with data or FIN after the assembler.
    pub(crate) fn on_data(&mut self, arrival: &Arrival, segment: &Received, now: Instant) {
        if arrival.kind == ArrivalKind::Empty {
            return;
        }
        self.unanswered += 1;
        self.answers_data = true;
        // Data above a hole is treated alike, whether or not it has arrived before.
        if arrival.is_above_hole() {
            self.measure_rcv_mss(segment);
            return self.force();
        }
        if arrival.kind == ArrivalKind::Duplicate {
            self.enter_quick_mode(QUICK_MAX, segment.rcv_wnd);
            return self.force();
        }
        if arrival.advanced > 0 {
            self.measure_rcv_mss(segment);
            self.adapt(segment, now);
        }
        // RFC 5681 section 4.2: "a TCP receiver SHOULD send an immediate ACK when it receives a data segment
        // that fills in all or part of a gap in the sequence space". A duplicate part must be reported (RFC
        // 2883). The acknowledgement of the second FIN leaves at once, because nothing follows. That of the
        // first FIN waits for the program's response, as in Linux.
        let last_fin = arrival.fin_reached && !segment.half_closes;
        let at_once = arrival.kind == ArrivalKind::FillsHole || arrival.duplicate.is_some() || last_fin;
        if arrival.fin_reached && segment.half_closes {
            self.interactive = true;
            if self.ato.is_none() {
                return self.delay_by(FIN_WAIT.min(self.delack_max), now);
            }
        }
        // RFC 5681 section 4.2: "an ACK SHOULD be generated for at least every second full-sized segment".
        // The sequence number of a FIN does not count as a second one.
        let unacknowledged =
            segment.rcv_nxt.since(self.last_ack_sent).saturating_sub(u32::from(arrival.fin_reached));
        let second_segment = unacknowledged > self.rcv_mss;
        if at_once || second_segment || self.in_quick_mode() {
            self.force();
        } else {
            self.delay_by(self.wait(segment.srtt), now);
        }
    }

    /// Processes data of a SYN, which does not show how the peer sends (Linux: the same).
    pub(crate) fn on_syn_data(&mut self) {
        self.ato = None;
    }

    /// Makes an acknowledgement leave at the next opportunity.
    pub(crate) fn force(&mut self) {
        self.owed = Owed::Now;
    }

    /// Delays the acknowledgement for a write that the program is about to make.
    pub(crate) fn wait_for_write(&mut self, now: Instant) {
        self.delay_by(self.delack_max, now);
    }

    /// Processes a segment with old data only. The next acknowledgements are not delayed, because the sender
    /// may be repairing losses.
    pub(crate) fn on_old_data(&mut self, rcv_wnd: u32) {
        self.enter_quick_mode(QUICK_MAX, rcv_wnd);
    }

    /// Reacts to a segment that shows that the sender's window has become small.
    pub(crate) fn on_slow_sender(&mut self, rcv_wnd: u32) {
        self.enter_quick_mode(QUICK_FOR_SLOW_SENDER, rcv_wnd);
        self.force();
    }

    /// Makes the next `count` acknowledgements undelayed.
    fn enter_quick_mode(&mut self, count: u32, rcv_wnd: u32) {
        self.raise_quick(count, rcv_wnd);
        self.interactive = false;
        self.ato = Some(ATO_MIN);
    }

    /// Records that data left: a response within the delay makes the connection interactive.
    pub(crate) fn on_data_sent(&mut self, now: Instant) {
        if self.ato.is_some_and(|ato| now.saturating_since(self.last_data_at) < ato) {
            self.interactive = true;
        }
    }

    /// Records that a segment left that acknowledges `rcv_nxt`.
    pub(crate) fn on_ack_sent(&mut self, rcv_nxt: SeqNum) {
        if self.answers_data && self.quick > 0 {
            self.quick -= 1;
            if self.quick == 0 {
                self.ato = Some(ATO_MIN);
            }
        }
        self.answers_data = false;
        self.last_ack_sent = rcv_nxt;
        self.pushed = 0;
        self.unanswered = 0;
        self.owed = Owed::Nothing;
    }

    /// Records a read of `count` bytes; `emptied`: nothing is left to read. The acknowledgement leaves if it
    /// covers more than a full-sized segment. It also leaves if everything is read and the peer has ended two
    /// writes. On a connection that is not interactive one write suffices.
    pub(crate) fn on_read(&mut self, count: usize, emptied: bool, rcv_nxt: SeqNum) {
        if self.owed == Owed::Nothing {
            return;
        }
        let one_way = self.pushed > 1 || (self.pushed > 0 && !self.interactive);
        if rcv_nxt.since(self.last_ack_sent) > self.rcv_mss || (count > 0 && emptied && one_way) {
            self.force();
        }
    }

    /// Makes a due acknowledgement leave now, and adapts the delay because it waited in vain. `rto` is this
    /// end's retransmission timeout.
    pub(crate) fn on_timeout(&mut self, rto: Micros, now: Instant) {
        if self.next_timeout().is_none_or(|deadline| deadline > now) {
            return;
        }
        if self.interactive {
            self.interactive = false;
            self.ato = Some(ATO_MIN);
        } else {
            self.ato = self.ato.map(|ato| (ato * 2).min(rto.into()));
        }
        self.force();
    }

    fn in_quick_mode(&self) -> bool {
        self.quick > 0 && !self.interactive
    }

    fn raise_quick(&mut self, max: u32, rcv_wnd: u32) {
        // Half a window of segments, because the sender's window has grown after these.
        let count = (rcv_wnd / (2 * self.rcv_mss)).max(2).min(max);
        self.quick = self.quick.max(count);
    }

    /// Updates the estimate of the peer's segment size. It is the largest size seen, or a smaller one that
    /// was seen twice in a row.
    fn measure_rcv_mss(&mut self, segment: &Received) {
        let size = segment.segment_size;
        let smaller = self.smaller.take();
        if size >= self.rcv_mss {
            self.rcv_mss = size.min(self.advertised_mss).max(MSS_MIN);
            if segment.push {
                self.pushed = self.pushed.max(1);
            }
            return;
        }
        if size >= MSS_DEFAULT || (size >= MSS_MIN && !segment.push) {
            self.smaller = Some(size);
            if smaller == Some(size) {
                self.rcv_mss = size;
                return;
            }
        }
        self.pushed = (self.pushed + 1).min(2);
    }

    /// Adapts the delay to the time between arrivals.
    fn adapt(&mut self, segment: &Received, now: Instant) {
        let gap = now.saturating_since(self.last_data_at);
        self.last_data_at = now;
        let Some(ato) = self.ato else {
            self.raise_quick(QUICK_MAX, segment.rcv_wnd);
            self.ato = Some(ATO_MIN);
            return;
        };
        if gap <= ATO_MIN / 2 {
            self.ato = Some(ato / 2 + ATO_MIN / 2);
        } else if gap < ato {
            self.ato = Some((ato / 2 + gap).min(segment.rto.into()));
        } else if Micros::from(gap) > segment.rto {
            self.raise_quick(QUICK_MAX, segment.rcv_wnd);
        }
    }

    fn delay_by(&mut self, wait: Duration, now: Instant) {
        match self.owed {
            Owed::Now => {}
            // The acknowledgement would leave soon anyway; now it covers this segment too.
            Owed::At(deadline) if deadline <= now + wait / 4 => self.force(),
            Owed::At(deadline) => self.owed = Owed::At(deadline.min(now + wait)),
            Owed::Nothing if wait.is_zero() => self.force(),
            Owed::Nothing => self.owed = Owed::At(now + wait),
        }
    }

    fn wait(&self, srtt: Option<Micros>) -> Duration {
        let ato = self.ato.unwrap_or(ATO_MIN);
        let max = if self.interactive || self.pushed > 0 { ATO_MAX_INTERACTIVE } else { ATO_MAX };
        let max = srtt.map_or(max, |srtt| Duration::from(srtt).max(ATO_MIN).min(max));
        ato.min(max).min(self.delack_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seq_ranges::SeqRange;

    const MSS: u32 = 1000;
    const WND: u32 = 64_000;
    const RTO: Micros = Micros::from_millis(250);

    fn ms(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    /// A receiver with its policy; arrivals are in order by default.
    struct Receiver {
        policy: AckPolicy,
        rcv_nxt: SeqNum,
        srtt: Option<Micros>,
    }

    impl Receiver {
        fn with_delack_max(millis: u64) -> Self {
            let mut policy = AckPolicy::new(Duration::from_millis(millis), MSS, WND);
            policy.start(SeqNum(1));
            Receiver { policy, rcv_nxt: SeqNum(1), srtt: None }
        }

        /// Returns a receiver after quick mode, with everything acknowledged, the last of it at `ms(0)`.
        fn after_quick_mode(delack_max: u64) -> Self {
            let mut receiver = Receiver::with_delack_max(delack_max);
            for _ in 0..QUICK_MAX {
                receiver.data(MSS, ms(0));
                receiver.ack();
            }
            assert_eq!(receiver.data(100, ms(0)), Owed::At(ms(delack_max.min(40))), "quick mode is over");
            receiver.ack();
            receiver
        }

        fn arrive(&mut self, kind: ArrivalKind, len: u32, push: bool, now: Instant) -> Owed {
            let advanced = match kind {
                ArrivalKind::InOrder | ArrivalKind::FillsHole => len,
                ArrivalKind::Empty | ArrivalKind::OutOfOrder | ArrivalKind::Duplicate => 0,
            };
            self.rcv_nxt += advanced;
            let nothing = SeqRange::new(self.rcv_nxt, self.rcv_nxt);
            let arrival =
                Arrival { kind, advanced, store: nothing, duplicate: None, block: None, fin_reached: false };
            self.policy.on_data(&arrival, &self.segment(len.min(MSS), push), now);
            self.policy.owed()
        }

        fn segment(&self, segment_size: u32, push: bool) -> Received {
            Received {
                segment_size,
                half_closes: false,
                push,
                rcv_nxt: self.rcv_nxt,
                rcv_wnd: WND,
                srtt: self.srtt,
                rto: RTO,
            }
        }

        /// Receives `len` bytes in order, in segments of at most `MSS`; a shorter one ends a write.
        fn data(&mut self, len: u32, now: Instant) -> Owed {
            self.arrive(ArrivalKind::InOrder, len, len < MSS, now)
        }

        fn ack(&mut self) {
            self.policy.on_ack_sent(self.rcv_nxt);
        }
    }

    #[test]
    fn the_first_sixteen_acknowledgements_are_not_delayed() {
        let mut receiver = Receiver::with_delack_max(40);
        for i in 0..16 {
            assert_eq!(receiver.data(MSS, ms(i)), Owed::Now, "segment {i}");
            receiver.ack();
        }
        assert_eq!(receiver.data(MSS, ms(16)), Owed::At(ms(56)));
    }

    #[test]
    fn quick_mode_lasts_for_half_a_window_of_segments() {
        let mut policy = AckPolicy::new(Duration::from_millis(40), MSS, 10_000);
        let mut count = 0;
        let mut rcv_nxt = SeqNum(0);
        loop {
            rcv_nxt += MSS;
            let nothing = SeqRange::new(rcv_nxt, rcv_nxt);
            let arrival = Arrival {
                kind: ArrivalKind::InOrder,
                advanced: MSS,
                store: nothing,
                duplicate: None,
                block: None,
                fin_reached: false,
            };
            let segment = Received {
                segment_size: MSS,
                half_closes: false,
                push: false,
                rcv_nxt,
                rcv_wnd: 10_000,
                srtt: None,
                rto: RTO,
            };
            policy.on_data(&arrival, &segment, ms(0));
            if policy.owed() != Owed::Now {
                break;
            }
            policy.on_ack_sent(rcv_nxt);
            count += 1;
        }
        assert_eq!(count, 5);
    }

    #[test]
    fn new_connection_acknowledges_every_packet() {
        let mut receiver = Receiver::with_delack_max(40);
        assert!(!receiver.policy.is_urgent(receiver.rcv_nxt), "nothing is owed");
        receiver.data(MSS, ms(0));
        assert!(receiver.policy.is_urgent(receiver.rcv_nxt));
        receiver.ack();
        assert!(!receiver.policy.is_urgent(receiver.rcv_nxt));
    }

    #[test]
    fn old_connection_acknowledges_every_fourth_packet_of_a_batch() {
        let mut receiver = Receiver::after_quick_mode(40);
        for packet in 1..=4 {
            receiver.data(MSS, ms(10));
            assert_eq!(receiver.policy.is_urgent(receiver.rcv_nxt), packet == 4, "packet {packet}");
        }
    }

    #[test]
    fn a_batch_of_long_packets_may_be_larger() {
        let mut receiver = Receiver::after_quick_mode(40);
        for packet in 1..=13 {
            receiver.arrive(ArrivalKind::InOrder, 40_000, false, ms(10));
            // Fourteen of them would be more than half a megabyte.
            assert!(!receiver.policy.is_urgent(receiver.rcv_nxt), "packet {packet}");
        }
        receiver.arrive(ArrivalKind::InOrder, 40_000, false, ms(10));
        assert!(receiver.policy.is_urgent(receiver.rcv_nxt));
        receiver.ack();
        for len in [40_000, MSS, MSS, MSS] {
            receiver.arrive(ArrivalKind::InOrder, len, false, ms(10));
        }
        assert!(receiver.policy.is_urgent(receiver.rcv_nxt), "most are short");
    }

    #[test]
    fn data_behind_a_hole_is_acknowledged_at_once() {
        // RFC 5681 section 4.2: "Out-of-order data segments SHOULD be acknowledged immediately, in order to
        // accelerate loss recovery."
        let mut receiver = Receiver::after_quick_mode(40);
        receiver.arrive(ArrivalKind::OutOfOrder, MSS, false, ms(10));
        assert!(receiver.policy.is_urgent(receiver.rcv_nxt));
    }

    /// RFC 9293 section 3.8.6.3: "in a stream of full-sized segments, there SHOULD be an ACK for at
    /// least every second segment".
    #[test]
    fn every_second_full_sized_segment_is_acknowledged_at_once() {
        let mut receiver = Receiver::after_quick_mode(40);
        assert_eq!(receiver.data(MSS, ms(10)), Owed::At(ms(50)));
        assert_eq!(receiver.data(MSS, ms(11)), Owed::Now);
        receiver.ack();
        assert_eq!(receiver.policy.owed(), Owed::Nothing);
        assert_eq!(receiver.data(MSS, ms(12)), Owed::At(ms(52)));
    }

    #[test]
    fn a_super_segment_counts_as_its_segments() {
        let mut receiver = Receiver::after_quick_mode(40);
        assert_eq!(receiver.data(2 * MSS, ms(10)), Owed::Now);
        assert_eq!(receiver.policy.rcv_mss(), MSS);
    }

    #[test]
    fn an_acknowledgement_that_is_owed_now_stays_owed_until_it_is_sent() {
        let mut receiver = Receiver::after_quick_mode(40);
        receiver.data(2 * MSS, ms(10));
        assert_eq!(receiver.data(10, ms(11)), Owed::Now);
        assert_eq!(receiver.policy.next_timeout(), None);
        receiver.ack();
        assert_eq!(receiver.policy.owed(), Owed::Nothing);
    }

    /// RFC 5681 section 4.2: "Out-of-order data segments SHOULD be acknowledged immediately".
    #[test]
    fn out_of_order_data_is_acknowledged_at_once() {
        for kind in [ArrivalKind::OutOfOrder, ArrivalKind::FillsHole, ArrivalKind::Duplicate] {
            let mut receiver = Receiver::after_quick_mode(40);
            assert_eq!(receiver.arrive(kind, 100, false, ms(10)), Owed::Now, "{kind:?}");
        }
        let mut receiver = Receiver::after_quick_mode(40);
        assert_eq!(receiver.arrive(ArrivalKind::Empty, 0, false, ms(10)), Owed::Nothing);
    }

    #[test]
    fn only_answers_to_data_use_up_quick_mode() {
        let mut receiver = Receiver::with_delack_max(40);
        receiver.data(MSS, ms(0));
        receiver.ack();
        for _ in 0..20 {
            receiver.policy.force();
            receiver.ack();
        }
        for i in 1..16 {
            assert_eq!(receiver.data(MSS, ms(i)), Owed::Now, "segment {i}");
            receiver.ack();
        }
        assert_eq!(receiver.data(MSS, ms(16)), Owed::At(ms(56)));
    }

    #[test]
    fn repeated_data_above_a_hole_does_not_restore_quick_mode() {
        let mut receiver = Receiver::after_quick_mode(40);
        let waits = SeqRange::with_len(receiver.rcv_nxt + MSS, 1200);
        let again = Arrival {
            kind: ArrivalKind::Duplicate,
            advanced: 0,
            store: SeqRange::with_len(receiver.rcv_nxt, 0),
            duplicate: Some(waits),
            block: Some(waits),
            fin_reached: false,
        };
        receiver.policy.on_data(&again, &receiver.segment(700, false), ms(10));
        assert_eq!(receiver.policy.owed(), Owed::Now);
        receiver.ack();
        assert_eq!(receiver.data(100, ms(60)), Owed::At(ms(100)));
        receiver.ack();
        let segment = receiver.segment(700, false);
        receiver.policy.on_data(&again, &segment, ms(61));
        receiver.policy.on_data(&again, &segment, ms(61));
        assert_eq!(receiver.policy.rcv_mss(), 700, "they tell of the peer's segments all the same");
    }

    #[test]
    fn a_duplicate_part_and_a_fin_are_acknowledged_at_once() {
        let plain = |receiver: &Receiver| Arrival {
            kind: ArrivalKind::InOrder,
            advanced: 100,
            store: SeqRange::with_len(receiver.rcv_nxt, 100),
            duplicate: None,
            block: None,
            fin_reached: false,
        };
        let mut receiver = Receiver::after_quick_mode(40);
        let duplicate = Some(SeqRange::new(receiver.rcv_nxt - 50, receiver.rcv_nxt));
        let segment = receiver.segment(150, true);
        receiver.policy.on_data(&Arrival { duplicate, ..plain(&receiver) }, &segment, ms(10));
        assert_eq!(receiver.policy.owed(), Owed::Now);

        let mut receiver = Receiver::after_quick_mode(40);
        let fin = Arrival { fin_reached: true, advanced: 0, ..plain(&receiver) };
        receiver.policy.on_data(&fin, &receiver.segment(0, false), ms(10));
        assert_eq!(receiver.policy.owed(), Owed::Now);
    }

    #[test]
    fn ack_of_the_first_fin_waits_for_the_response() {
        let mut receiver = Receiver::after_quick_mode(40);
        let nothing = SeqRange::with_len(receiver.rcv_nxt, 0);
        let fin = Arrival {
            kind: ArrivalKind::InOrder,
            advanced: 0,
            store: nothing,
            duplicate: None,
            block: None,
            fin_reached: true,
        };
        let segment = Received { half_closes: true, ..receiver.segment(0, false) };
        receiver.policy.on_data(&fin, &segment, ms(10));
        assert_eq!(receiver.policy.owed(), Owed::At(ms(50)));

        let mut receiver = Receiver::after_quick_mode(40);
        receiver.policy.on_syn_data();
        receiver.policy.on_data(&fin, &segment, ms(10));
        assert_eq!(receiver.policy.owed(), Owed::At(ms(11)), "nothing is known of how long programs take");

        let mut receiver = Receiver::with_delack_max(0);
        receiver.policy.on_data(&fin, &segment, ms(10));
        assert_eq!(receiver.policy.owed(), Owed::Now, "nothing is ever delayed");
    }

    /// RFC 9293 section 3.8.6.3: "the delay MUST be less than 0.5 seconds".
    #[test]
    fn a_delayed_acknowledgement_falls_due_at_its_deadline() {
        let mut receiver = Receiver::after_quick_mode(40);
        receiver.data(100, ms(10));
        receiver.policy.on_timeout(RTO, ms(49));
        assert_eq!(receiver.policy.owed(), Owed::At(ms(50)));
        assert_eq!(receiver.policy.next_timeout(), Some(ms(50)));
        receiver.policy.on_timeout(RTO, ms(50));
        assert_eq!(receiver.policy.owed(), Owed::Now);
    }

    #[test]
    fn delay_never_exceeds_the_configured_maximum() {
        let mut receiver = Receiver::after_quick_mode(10);
        assert_eq!(receiver.data(100, ms(10)), Owed::At(ms(20)));
        let mut receiver = Receiver::with_delack_max(0);
        receiver.policy.on_data_sent(ms(0));
        assert_eq!(receiver.data(100, ms(1)), Owed::Now);
    }

    #[test]
    fn a_deadline_is_not_put_off_by_further_data() {
        let mut receiver = Receiver::after_quick_mode(40);
        receiver.data(100, ms(10));
        assert_eq!(receiver.data(100, ms(30)), Owed::At(ms(50)));
        assert_eq!(receiver.data(100, ms(41)), Owed::Now, "about to leave anyway: it covers this one too");
    }

    #[test]
    fn the_delay_follows_the_time_between_arrivals() {
        let mut receiver = Receiver::after_quick_mode(500);
        // A delayed acknowledgement without a response doubles the delay.
        receiver.data(100, ms(10));
        receiver.policy.on_timeout(RTO, ms(50));
        receiver.ack();
        // 35 ms after the previous arrival: ato = 80/2 + 35.
        assert_eq!(receiver.data(100, ms(45)), Owed::At(ms(45 + 75)));
        receiver.ack();
        // Arrivals without a gap reduce it towards 40 ms: 75/2 + 20.
        let due = Instant::from_micros(46_000 + 57_500);
        assert_eq!(receiver.data(100, ms(46)), Owed::At(due));
        receiver.ack();
        receiver.srtt = Some(Micros::from_millis(3));
        assert_eq!(receiver.data(100, ms(47)), Owed::At(ms(47 + 40)), "no longer than a round trip or 40 ms");
    }

    #[test]
    fn a_long_gap_brings_quick_mode_back() {
        let mut receiver = Receiver::after_quick_mode(40);
        assert_eq!(receiver.data(MSS, ms(250)), Owed::At(ms(290)));
        receiver.ack();
        assert_eq!(receiver.data(MSS, ms(501)), Owed::Now, "longer than the retransmission timeout");
    }

    #[test]
    fn an_answer_within_the_delay_ends_quick_mode() {
        let mut receiver = Receiver::with_delack_max(40);
        assert_eq!(receiver.data(100, ms(0)), Owed::Now);
        receiver.policy.on_data_sent(ms(5));
        receiver.ack();
        assert_eq!(receiver.data(100, ms(20)), Owed::At(ms(60)), "the answer will carry it");
        receiver.policy.on_timeout(RTO, ms(60));
        receiver.ack();
        assert_eq!(receiver.data(100, ms(70)), Owed::Now, "no answer came: quick mode again");
    }

    #[test]
    fn data_long_after_the_last_arrival_is_no_answer() {
        let mut receiver = Receiver::with_delack_max(40);
        receiver.data(100, ms(0));
        receiver.ack();
        receiver.policy.on_data_sent(ms(40));
        assert_eq!(receiver.data(100, ms(50)), Owed::Now);
    }

    #[test]
    fn a_duplicate_brings_quick_mode_back_even_to_an_interactive_connection() {
        let mut receiver = Receiver::with_delack_max(40);
        receiver.data(100, ms(0));
        receiver.policy.on_data_sent(ms(5));
        receiver.ack();
        receiver.arrive(ArrivalKind::Duplicate, 100, false, ms(6));
        receiver.ack();
        assert_eq!(receiver.data(100, ms(7)), Owed::Now);
    }

    #[test]
    fn reading_everything_after_a_push_sends_the_acknowledgement() {
        let mut receiver = Receiver::after_quick_mode(40);
        receiver.arrive(ArrivalKind::InOrder, 100, true, ms(10));
        receiver.policy.on_read(50, false, receiver.rcv_nxt);
        assert_eq!(receiver.policy.owed(), Owed::At(ms(50)), "something is left to read");
        receiver.policy.on_read(50, true, receiver.rcv_nxt);
        assert_eq!(receiver.policy.owed(), Owed::Now);
        receiver.ack();
        receiver.policy.on_read(0, true, receiver.rcv_nxt);
        assert_eq!(receiver.policy.owed(), Owed::Nothing, "nothing is owed");
    }

    #[test]
    fn an_interactive_reader_waits_for_its_own_answer() {
        let mut receiver = Receiver::after_quick_mode(40);
        receiver.policy.on_data_sent(ms(1));
        receiver.arrive(ArrivalKind::InOrder, 100, true, ms(10));
        receiver.policy.on_read(100, true, receiver.rcv_nxt);
        assert_eq!(receiver.policy.owed(), Owed::At(ms(50)));
        receiver.arrive(ArrivalKind::InOrder, 100, true, ms(11));
        receiver.policy.on_read(100, true, receiver.rcv_nxt);
        assert_eq!(receiver.policy.owed(), Owed::Now, "two writes without an answer");
    }

    #[test]
    fn the_size_of_a_peer_with_small_segments_is_learned_too() {
        let mut receiver = Receiver::with_delack_max(40);
        for size in [536, 300, 300] {
            receiver.arrive(ArrivalKind::InOrder, size, false, ms(0));
        }
        assert_eq!(receiver.policy.rcv_mss(), 300, "twice the same and not the end of a write");
    }

    #[test]
    fn segment_size_follows_the_largest_and_repeated_smaller_ones() {
        let mut receiver = Receiver::with_delack_max(40);
        assert_eq!(receiver.policy.rcv_mss(), 536);
        receiver.data(MSS, ms(0));
        assert_eq!(receiver.policy.rcv_mss(), MSS);
        receiver.data(600, ms(0));
        assert_eq!(receiver.policy.rcv_mss(), MSS, "once may be the end of a write");
        receiver.data(600, ms(0));
        assert_eq!(receiver.policy.rcv_mss(), 600, "twice is the path");
        receiver.arrive(ArrivalKind::InOrder, 200, true, ms(0));
        receiver.arrive(ArrivalKind::InOrder, 200, true, ms(0));
        assert_eq!(receiver.policy.rcv_mss(), 600, "small and pushed is the end of a write");
    }
}

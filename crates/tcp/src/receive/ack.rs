//! When an acknowledgement leaves: delayed acknowledgements as Linux sends them.
//!
//! RFC 9293 section 3.8.6.3 and RFC 5681 section 4.2 allow half a second and ask for an
//! acknowledgement for at least every second full-sized segment, and at once for anything out of
//! order. Within that, the delay adapts:
//!
//! - **quick mode**: the first acknowledgements of a connection (and those after a long gap or a
//!   duplicate) are not delayed, so that a sender in slow start gets its clock;
//! - **ato**: the delay follows the time between arrivals, never below 40 ms;
//! - **interactive** ("ping-pong"): once the application answers within the delay, acknowledgements
//!   wait for the answer to carry them, quick mode or not.
//!
//! What is owed stays owed until [`AckPolicy::on_ack_sent`]: a driver that drains a batch of arrivals
//! before it asks sends one acknowledgement for all of them.

use brisk_wire::SeqNum;

use super::assembler::{Arrival, ArrivalKind};
use crate::time::{Duration, Instant};

/// Least delay that the adaptation chooses, and where it starts.
const ATO_MIN: Duration = Duration::from_millis(40);

/// Most the adaptation chooses for an interactive connection or after a push.
const ATO_MAX_INTERACTIVE: Duration = Duration::from_millis(200);

/// Most the adaptation chooses at all: RFC 9293 section 3.8.6.3, "MUST be less than 0.5 seconds".
const ATO_MAX: Duration = Duration::from_millis(500);

/// Most acknowledgements that one entry into quick mode sends undelayed.
const QUICK_MAX: u32 = 16;

/// The default MSS (RFC 9293 section 3.7.1): segments from here on tell of the peer's segment size.
const MSS_DEFAULT: u32 = 536;

/// Least segment size that is believed.
const MSS_MIN: u32 = 88;

/// Whether, and by when, an acknowledgement must leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owed {
    /// None is owed.
    Nothing,
    /// One is owed by then; any segment that leaves before carries it.
    At(Instant),
    /// One must leave at the next opportunity.
    Now,
}

/// What the policy needs to know of a segment beside its [`Arrival`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Received {
    /// Payload bytes of each wire segment: a super-segment counts as its segments.
    pub(crate) segment_size: u32,
    /// PSH was set.
    pub(crate) push: bool,
    /// RCV.NXT after the segment.
    pub(crate) rcv_nxt: SeqNum,
    /// The receive window, bytes.
    pub(crate) rcv_wnd: u32,
    /// Smoothed round-trip time of our own data, if there is a sample: bounds the delay.
    pub(crate) srtt: Option<Duration>,
    /// Our retransmission timeout: a longer gap means that the peer starts anew.
    pub(crate) rto: Duration,
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub(crate) struct AckPolicy {
    delack_max: Duration,
    /// Largest payload that we told the peer to send.
    advertised_mss: u32,
    /// Estimate of the payload of the peer's full-sized segments.
    rcv_mss: u32,
    /// Size of the last segment that was smaller than `rcv_mss` but may be full-sized all the same.
    smaller: Option<u32>,
    /// The adaptive delay; `None` before the first data.
    ato: Option<Duration>,
    /// Acknowledgements left to send undelayed.
    quick: u32,
    interactive: bool,
    /// Segments since the last acknowledgement that end a write of the peer; counted up to two.
    pushed: u8,
    last_data_at: Instant,
    /// RCV.NXT in the last segment that left.
    last_ack_sent: SeqNum,
    owed: Owed,
}

impl AckPolicy {
    /// A policy that never delays longer than `delack_max`, for a connection that offered segments
    /// of `advertised_mss` bytes and a window of `rcv_wnd` bytes.
    pub(crate) fn new(delack_max: Duration, advertised_mss: u32, rcv_wnd: u32) -> Self {
        AckPolicy {
            delack_max,
            advertised_mss,
            rcv_mss: advertised_mss.min(rcv_wnd / 2).min(MSS_DEFAULT).max(MSS_MIN),
            smaller: None,
            ato: None,
            quick: 0,
            interactive: false,
            pushed: 0,
            last_data_at: Instant::ZERO,
            last_ack_sent: SeqNum::default(),
            owed: Owed::Nothing,
        }
    }

    /// The peer's ISN is known; everything below `rcv_nxt` counts as acknowledged.
    pub(crate) fn start(&mut self, rcv_nxt: SeqNum) {
        self.last_ack_sent = rcv_nxt;
    }

    /// Estimate of the payload of the peer's full-sized segments, bytes.
    pub(crate) fn rcv_mss(&self) -> u32 {
        self.rcv_mss
    }

    /// RCV.NXT in the last segment that left: Last.ACK.sent of RFC 7323.
    pub(crate) fn last_ack_sent(&self) -> SeqNum {
        self.last_ack_sent
    }

    /// What is owed.
    pub(crate) fn owed(&self) -> Owed {
        self.owed
    }

    /// When a delayed acknowledgement falls due.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        match self.owed {
            Owed::At(deadline) => Some(deadline),
            Owed::Nothing | Owed::Now => None,
        }
    }

    /// A segment with data or FIN arrived and the assembler judged it.
    pub(crate) fn on_data(&mut self, arrival: &Arrival, segment: &Received, now: Instant) {
        match arrival.kind {
            ArrivalKind::Empty => return,
            ArrivalKind::OutOfOrder => return self.force(),
            ArrivalKind::Duplicate => {
                self.quicken(QUICK_MAX, segment.rcv_wnd);
                return self.force();
            }
            ArrivalKind::InOrder | ArrivalKind::FillsHole => {}
        }
        if arrival.advanced > 0 {
            self.measure_rcv_mss(segment);
            self.adapt(segment, now);
        }
        // RFC 5681 section 4.2: "a TCP receiver SHOULD send an immediate ACK when it receives a data
        // segment that fills in all or part of a gap in the sequence space". A duplicate part is to
        // be reported (RFC 2883), and a FIN has nothing to wait for.
        let at_once =
            arrival.kind == ArrivalKind::FillsHole || arrival.duplicate.is_some() || arrival.fin_reached;
        // RFC 5681 section 4.2: "an ACK SHOULD be generated for at least every second full-sized
        // segment".
        let second_segment = segment.rcv_nxt.since(self.last_ack_sent) > self.rcv_mss;
        if at_once || second_segment || self.in_quick_mode() {
            self.force();
        } else {
            self.delay(segment.srtt, now);
        }
    }

    /// An acknowledgement must leave at the next opportunity, whatever the reason.
    pub(crate) fn force(&mut self) {
        self.owed = Owed::Now;
    }

    /// The next `count` acknowledgements are not delayed (congestion experienced, duplicates).
    pub(crate) fn quicken(&mut self, count: u32, rcv_wnd: u32) {
        self.raise_quick(count, rcv_wnd);
        self.interactive = false;
        self.ato = Some(ATO_MIN);
    }

    /// Data left: an answer within the delay makes the connection interactive.
    pub(crate) fn on_data_sent(&mut self, now: Instant) {
        if self.ato.is_some_and(|ato| now.saturating_since(self.last_data_at) < ato) {
            self.interactive = true;
        }
    }

    /// A segment left that acknowledges `rcv_nxt`.
    pub(crate) fn on_ack_sent(&mut self, rcv_nxt: SeqNum) {
        if self.owed != Owed::Nothing && self.quick > 0 {
            self.quick -= 1;
            if self.quick == 0 {
                self.ato = Some(ATO_MIN);
            }
        }
        self.last_ack_sent = rcv_nxt;
        self.pushed = 0;
        self.owed = Owed::Nothing;
    }

    /// The application read `count` bytes and left nothing behind if `emptied`: an acknowledgement
    /// that was waiting for an answer in vain may go.
    pub(crate) fn on_read(&mut self, count: usize, emptied: bool, rcv_nxt: SeqNum) {
        if self.owed == Owed::Nothing {
            return;
        }
        let one_way = self.pushed > 1 || (self.pushed > 0 && !self.interactive);
        if rcv_nxt.since(self.last_ack_sent) > self.rcv_mss || (count > 0 && emptied && one_way) {
            self.force();
        }
    }

    /// Time has passed: a delayed acknowledgement that is due becomes one for now, and the delay
    /// learns that it waited in vain. `rto` is our retransmission timeout.
    pub(crate) fn on_timeout(&mut self, rto: Duration, now: Instant) {
        if self.next_timeout().is_none_or(|deadline| deadline > now) {
            return;
        }
        if self.interactive {
            self.interactive = false;
            self.ato = Some(ATO_MIN);
        } else {
            self.ato = self.ato.map(|ato| (ato * 2).min(rto));
        }
        self.force();
    }

    fn in_quick_mode(&self) -> bool {
        self.quick > 0 && !self.interactive
    }

    fn raise_quick(&mut self, most: u32, rcv_wnd: u32) {
        // Half a window of segments: by then the sender's window has grown.
        let count = (rcv_wnd / (2 * self.rcv_mss)).max(2).min(most);
        self.quick = self.quick.max(count);
    }

    /// The peer's segment size: the largest seen, or a smaller one that came twice in a row.
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

    /// The delay follows the time between arrivals.
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
            self.ato = Some((ato / 2 + gap).min(segment.rto));
        } else if gap > segment.rto {
            self.raise_quick(QUICK_MAX, segment.rcv_wnd);
        }
    }

    fn delay(&mut self, srtt: Option<Duration>, now: Instant) {
        let wait = self.wait(srtt);
        match self.owed {
            Owed::Now => {}
            // About to leave anyway: let it cover this segment too.
            Owed::At(deadline) if deadline <= now + wait / 4 => self.force(),
            Owed::At(deadline) => self.owed = Owed::At(deadline.min(now + wait)),
            Owed::Nothing if wait.is_zero() => self.force(),
            Owed::Nothing => self.owed = Owed::At(now + wait),
        }
    }

    fn wait(&self, srtt: Option<Duration>) -> Duration {
        let ato = self.ato.unwrap_or(ATO_MIN);
        let most = if self.interactive || self.pushed > 0 { ATO_MAX_INTERACTIVE } else { ATO_MAX };
        let most = srtt.map_or(most, |srtt| srtt.max(ATO_MIN).min(most));
        ato.min(most).min(self.delack_max)
    }
}

//! The sending half: the parts from [`crate::send`] and [`crate::congestion`], and a few fields outside these
//! parts.
//!
//! A connection may be a member of its path. The stack then lends it the path's [`RateControl`] during each
//! call. Each member keeps its own loss detection, retransmission and timers. The window, the pacing rate,
//! the delivery rate and the response to losses belong to the path (`stack/controllers.rs`).

use alloc::boxed::Box;
use alloc::vec::Vec;

use brisk_wire::SeqNum;

use crate::auto_tuning::{self, SendSizing};
use crate::config::{LossDetection, PacingConfig, PrrBound, TcpConfig};
use crate::congestion::Controller;
use crate::congestion::sample::{ControllerStart, LostPacket};
use crate::connection::Host;
use crate::outcome::{AckOutcome, CongestionState, Delivered, Dsack, LossCause, UndoCause};
use crate::send::budget::Budget;
use crate::send::delivery::Snapshots;
use crate::send::mtu::{NextProbe, PathMtu};
use crate::send::pacer::Pacer;
use crate::send::push::{BurstPush, Pace};
use crate::send::queue::SendQueue;
use crate::send::rack::Rack;
#[cfg(feature = "historical")]
use crate::send::rack::RackVerdict;
use crate::send::rate::RateControl;
use crate::send::recovery::Recovery;
#[cfg(feature = "historical")]
use crate::send::rfc6675::{Rfc6675, Situation};
use crate::send::rto::Rto;
use crate::send::rtt::RttEstimator;
use crate::send::scoreboard::{Record, Scoreboard};
use crate::send::window::SendWindow;
use crate::seq_ranges::SeqRange;
use crate::time::{Instant, Micros};

/// Largest congestion window, in segments, at which new data leaves after each acknowledgement of a batch.
const CLOCKED_WINDOW: u32 = 64;

/// Minimum time for which a cork holds a partial segment; a longer retransmission timeout replaces it (Linux:
/// TCP_CORK, which uses the timer of window probes).
const CORK_MIN: Micros = Micros::from_millis(200);

/// Minimum for the MSS of a peer: room for all options and 8 bytes of data (Linux: tcp_min_snd_mss). Without
/// it a peer could make the sender build a packet and a record for almost every byte.
const MIN_MSS: u32 = 48;

/// A timestamp option with the two NOPs that align it (RFC 7323 appendix A).
const TIMESTAMP_OPTION_LEN: u32 = 12;

/// Number of timeouts in a row that do not double the timeout of a thin stream (Linux:
/// `TCP_THIN_LINEAR_TIMEOUTS`).
const LINEAR_TIMEOUTS: u32 = 6;
/// Pacing rate without a limit.
const UNPACED: u64 = u64::MAX;

/// Maximum number of bytes of a short transfer.
pub(crate) const SHORT_TRANSFER: u32 = 128 << 10;

/// The parts of the sender, and its state on one connection.
#[derive(Debug)]
pub(crate) struct Sender {
    pub(crate) queue: SendQueue,
    pub(crate) scoreboard: Scoreboard,
    pub(crate) rtt: RttEstimator,
    pub(crate) rto: Rto,
    pub(crate) rack: Rack,
    /// Maximum delay of the peer's acknowledgements, if it is known.
    pub(crate) ack_delay: Option<Micros>,
    /// Detects losses in place of RACK if so configured.
    #[cfg(feature = "historical")]
    pub(crate) rfc6675: Option<Box<Rfc6675>>,
    pub(crate) recovery: Recovery,
    pub(crate) window: SendWindow,
    pub(crate) rate: RateControl,
    pub(crate) sharing: Sharing,
    /// True if the congestion window or pacing holds the next segment back.
    pub(crate) send_limited: bool,
    /// Delivery counters at the time of each transmission, if the controller uses the delivery rate.
    pub(crate) snapshots: Option<Box<Snapshots>>,
    pub(crate) mtu: PathMtu,
    /// Minimum of the peer's MSS option and the configured limit: payload plus options, bytes.
    largest_segment: u32,
    /// MSS to announce in a SYN.
    announced: u16,
    /// Options on every data segment, bytes.
    pub(crate) option_len: u32,
    pub(crate) nagle: Nagle,
    pub(crate) usage: WindowUsage,
    /// Retransmission timeouts since the last progress.
    pub(crate) timeouts_in_row: u32,
    /// Start of the user timeout: the time at which SND.UNA last advanced. If nothing was outstanding then,
    /// it is the time at which data was next sent or held back by the peer's window. `None` if nothing waits.
    pub(crate) waiting_since: Option<Instant>,
    /// Time at which the last data segment left.
    pub(crate) last_sent: Instant,
    /// True if the last reduction is a timeout of this member alone, to which the controller has not
    /// responded.
    pub(crate) timed_out_alone: bool,
    /// First byte of the current transfer. A transfer begins after a round trip without transmissions.
    pub(crate) transfer_start: SeqNum,
    /// Time and end of the last transmission on the scoreboard.
    stamped: (Instant, SeqNum),
    /// True if the application waits for free space because a write was refused.
    pub(crate) writer_waits: bool,
    /// The current burst, if bursts end with PSH.
    pub(crate) burst_push: BurstPush,
    /// True if pacing holds the next segment back.
    pub(crate) paced: bool,
    /// Round-trip time from which a loss is attributed to a full queue; `None` if the path has shown no full
    /// queue.
    pub(crate) queued_from: Option<Micros>,
    /// IP bytes of copies and parity that the plan still permits; `None` without a planner.
    redundancy_left: Option<u32>,
    /// True if our FIN was sent twice.
    pub(crate) fin_copied: bool,
    /// Bytes left free in every data segment, because a parity segment of the same size has a longer option.
    pub(crate) option_reserve: u32,
    /// Size of the send queue on a short path.
    sizing: SendSizing,
}

/// Relation of a connection to the shared control of its path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sharing {
    /// The connection has its own controller.
    Off,
    /// The connection has its own controller. It becomes a member when its transfer becomes long, or at the
    /// start of a transfer while another one of the path is long. `asks`: the stack has yet to check for the
    /// latter.
    Apart { asks: bool },
    /// The connection is a member: the stack lends it the controller of the path.
    Member,
}

/// State of a member for the control of its path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct MemberState {
    /// Bytes in flight.
    pub(crate) pipe: u32,
    /// True if it has unacknowledged data.
    pub(crate) is_outstanding: bool,
    /// True during a reduction, except after a timeout of this member alone.
    pub(crate) is_recovering: bool,
    /// True if it has a full segment of new data within the peer's window, or lost data to retransmit.
    pub(crate) wants: bool,
}

/// Reasons to hold back a partial segment: Nagle's algorithm in Minshall's form, and the cork.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Nagle {
    /// Nagle's algorithm is off.
    pub(crate) nodelay: bool,
    /// Only full segments leave.
    pub(crate) cork: bool,
    /// Only full segments leave until an acknowledgement arrives.
    pub(crate) more: bool,
    /// End of the time for which a corked partial segment is held.
    pub(crate) cork_until: Option<Instant>,
    /// True if the partial segment leaves now despite Nagle and cork: the cork's time is over, the persist
    /// timer fired, or Nagle's algorithm was switched off.
    pub(crate) overridden: bool,
    /// End of the last partial segment sent.
    pub(crate) small_end: Option<SeqNum>,
}

impl Nagle {
    /// True if a partial segment that empties the queue may leave now.
    ///
    /// RFC 9293 section 3.7.4 (Nagle): "if there is unacknowledged data [...] the sending TCP endpoint
    /// buffers all user data"; Minshall's form, which Linux uses, waits only for an unacknowledged *partial*
    /// segment. A cork holds a partial segment until the cork's time is over.
    pub(crate) fn allows_partial(&self, una: SeqNum, fin: bool, now: Instant) -> bool {
        if fin || self.overridden {
            return true;
        }
        if self.cork || self.more {
            return self.cork_until.is_some_and(|until| until <= now);
        }
        self.nodelay || self.small_end.is_none_or(|end| end.le(una))
    }

    /// Holds partial segments back (`true`), or leaves them to Nagle's algorithm.
    pub(crate) fn set_cork(&mut self, cork: bool) {
        self.cork = cork;
        self.cork_until = None;
    }

    /// Holds a partial segment back because more data is about to be written (Linux: MSG_MORE). An
    /// acknowledgement releases it, and so does the end of the cork's time.
    pub(crate) fn set_more(&mut self, more: bool) {
        self.more = more;
        self.cork_until = None;
    }

    /// True if a cork holds partial segments back.
    pub(crate) fn is_corked(&self) -> bool {
        self.cork || self.more
    }

    /// Starts the time of the cork, a retransmission timeout (`rto`), unless it is running.
    pub(crate) fn start_cork(&mut self, rto: Micros, now: Instant) {
        self.cork_until.get_or_insert(now + rto.max(CORK_MIN));
    }

    /// True if a partial segment that empties the queue must wait. Ignores whether a cork's time is over.
    fn defers_partial(&self, una: SeqNum, fin: bool) -> bool {
        let waits =
            self.cork || self.more || (!self.nodelay && self.small_end.is_some_and(|end| end.gt(una)));
        waits && !fin && !self.overridden
    }

    /// Ends `more`: the peer has answered, whether or not it acknowledged new data.
    pub(crate) fn on_ack(&mut self) {
        if core::mem::take(&mut self.more) && !self.cork {
            self.cork_until = None;
        }
    }

    pub(crate) fn on_sent(&mut self, end: SeqNum, partial: bool) {
        self.overridden = false;
        self.cork_until = None;
        if partial {
            self.small_end = Some(end);
        }
    }
}

/// State that shows whether the congestion window limited the sender (RFC 7661, in Linux's variant).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WindowUsage {
    limited: bool,
    max_outstanding: u32,
    measured_to: SeqNum,
    /// SND.NXT at the end of the last burst.
    burst_end: SeqNum,
    /// Time of the last acknowledgement that could grow the window.
    grown_at: Instant,
}

impl WindowUsage {
    /// Records the end of a burst, even one in which nothing left. `limited`: the congestion window has no
    /// room for another segment, and data was sent or waits. The window then counts as the limit until all
    /// data that is now outstanding is acknowledged. While the window is not the limit, a larger burst raises
    /// the maximum of outstanding data (Linux: tcp_cwnd_validate).
    pub(crate) fn on_burst(&mut self, una: SeqNum, nxt: SeqNum, limited: bool) {
        let sent = nxt != self.burst_end;
        self.burst_end = nxt;
        if !sent && !limited {
            return;
        }
        let outstanding = nxt.since(una);
        let more = !self.limited && outstanding > self.max_outstanding;
        if limited || more || self.measured_to.le(una) {
            (self.limited, self.max_outstanding, self.measured_to) = (limited, outstanding, nxt);
        }
    }

    /// Records an acknowledgement that could grow the window.
    pub(crate) fn on_growth(&mut self, now: Instant) {
        self.grown_at = now;
    }

    pub(crate) fn grown_at(&self) -> Instant {
        self.grown_at
    }

    pub(crate) fn burst_end(&self) -> SeqNum {
        self.burst_end
    }

    /// True if the window may grow: it was the limit, or in slow start more than half of it was used.
    pub(crate) fn is_limited(&self, cwnd: u32, slow_start: bool) -> bool {
        self.limited || (slow_start && cwnd < self.max_outstanding.saturating_mul(2))
    }
}

/// A reduction that was undone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Undone {
    pub(crate) why: UndoCause,
    /// True if the slow-start threshold has its earlier value again.
    pub(crate) is_raised: bool,
}

impl Sender {
    #[inline(always)]
    pub(crate) fn new(config: &TcpConfig, iss: SeqNum, host: Host, v6: bool, now: Instant) -> Self {
        let mtu = PathMtu::new(host.mtu, v6, config.mtu_probing, config.base_mss);
        let largest = config.max_segment.map_or(u32::MAX, u32::from);
        let mss = mtu.mss(0).min(largest);
        let announced = mtu.device_mss().min(largest).min(u32::from(u16::MAX)) as u16;
        let initial = initial_window(config.initial_window, mss);
        let mut queue = SendQueue::new(config.send_buffer);
        queue.set_start(iss + 1);
        let prr = match &config.loss_detection {
            LossDetection::Rack => PrrBound::Rfc9937,
            #[cfg(feature = "historical")]
            LossDetection::Rfc6675(counting) => counting.prr,
        };
        #[cfg(feature = "historical")]
        let rfc6675 = match &config.loss_detection {
            LossDetection::Rack => None,
            LossDetection::Rfc6675(counting) => Some(Box::new(Rfc6675::new(counting, config.dup_thresh))),
        };
        let start = ControllerStart {
            now,
            mss,
            initial_window: initial,
            paced: config.pacing.is_some(),
            seed: iss.0.into(),
        };
        let congestion = Controller::new(&config.congestion, prr, &start);
        let rate = RateControl::new(congestion, Pacer::new(config.pacing));
        let mut scoreboard = Scoreboard::new(iss, false);
        let snapshots = rate.delivery.is_some().then(|| {
            scoreboard.log_losses();
            Box::default()
        });
        Sender {
            queue,
            scoreboard,
            rtt: RttEstimator::new(&config.rto, host.granularity),
            rto: Rto::new(&config.rto),
            rack: Rack::new(host.granularity, config.dup_thresh),
            ack_delay: None,
            recovery: Recovery::new(iss),
            #[cfg(feature = "historical")]
            rfc6675,
            window: SendWindow::new(),
            rate,
            sharing: if config.share_path { Sharing::Apart { asks: true } } else { Sharing::Off },
            send_limited: false,
            snapshots,
            mtu,
            largest_segment: largest,
            announced,
            option_len: 0,
            nagle: Nagle { nodelay: config.nodelay, ..Nagle::default() },
            usage: WindowUsage {
                limited: false,
                max_outstanding: 0,
                measured_to: iss,
                burst_end: iss,
                grown_at: now,
            },
            timeouts_in_row: 0,
            waiting_since: None,
            last_sent: now,
            timed_out_alone: false,
            transfer_start: iss,
            stamped: (now, iss),
            writer_waits: false,
            burst_push: BurstPush::default(),
            paced: false,
            queued_from: None,
            // No redundancy may leave before the first plan.
            redundancy_left: config.mechanisms.planner.map(|_| 0),
            fin_copied: false,
            option_reserve: 0,
            sizing: SendSizing::default(),
        }
    }

    /// Grows the send queue after `acked` bytes were delivered. Its size follows the data that can be in
    /// flight, or, on a short path, the data that was in flight.
    #[inline]
    pub(crate) fn grow_queue(&mut self, acked: u32, now: Instant) {
        let window = self.rate.congestion.cwnd().min(self.window.max_snd_wnd());
        let short = self.rtt.min_rtt().filter(|min| auto_tuning::is_short(*min)).zip(self.rtt.srtt());
        let limit = self.queue.limit();
        let max = short.map_or(usize::MAX, |(min, srtt)| self.sizing.on_acked(acked, srtt, min, limit, now));
        self.queue.grow(window, max);
    }

    /// Returns the time at which a transmission that ends at `end` counts as sent. RACK orders transmissions
    /// with equal times by their sequence numbers (RFC 8985 section 6.1). A retransmission that leaves after
    /// new data in the same instant therefore gets a time one microsecond later.
    #[inline]
    pub(crate) fn stamp(&mut self, end: SeqNum, now: Instant) -> Instant {
        let (last, last_end) = self.stamped;
        let at = if now > last {
            now
        } else if end.gt(last_end) {
            last
        } else {
            last + Micros(1)
        };
        self.stamped = (at, end);
        at
    }

    /// Returns the MSS to announce in a SYN: the device's limit without options (RFC 6691). The peer's
    /// announcement does not limit what we can receive (RFC 9293 section 3.7.1).
    pub(crate) fn advertised_mss(&self) -> u16 {
        self.announced
    }

    /// Takes over the peer's MSS and the use of timestamps from the handshake.
    pub(crate) fn on_handshake(&mut self, peer_mss: u16, timestamps: bool) {
        self.largest_segment = self.largest_segment.min(u32::from(peer_mss).max(MIN_MSS));
        self.mtu.cap(self.largest_segment);
        self.option_len = if timestamps { TIMESTAMP_OPTION_LEN } else { 0 };
    }

    /// Returns the largest payload of a segment without SACK blocks.
    #[inline]
    pub(crate) fn mss(&self) -> u32 {
        self.mtu.mss(self.option_len).min(self.largest_segment.saturating_sub(self.option_len)).max(1)
    }

    /// Returns the payload of a full-sized segment of data or parity. Data leaves room for the option of
    /// parity, so that both have the same size.
    pub(crate) fn full_payload(&self) -> u32 {
        self.mss().saturating_sub(self.option_reserve)
    }

    #[inline]
    pub(crate) fn unsent(&self) -> u32 {
        let nxt = self.scoreboard.nxt();
        let end = self.queue.end();
        if nxt.lt(end) { end.since(nxt.max(self.queue.start())) } else { 0 }
    }

    /// Switches Nagle's algorithm off (`true`) or on. Switching it off releases the queued data, corked or
    /// not (Linux: the same).
    pub(crate) fn set_nodelay(&mut self, nodelay: bool) {
        self.nagle.nodelay = nodelay;
        self.nagle.overridden |= nodelay && self.unsent() > 0;
    }

    /// Switches pacing on or off.
    pub(crate) fn set_pacing(&mut self, pacing: Option<PacingConfig>) {
        // A member does not change the pacing of the others.
        if self.sharing != Sharing::Member {
            self.rate.pacer.set_config(pacing);
        }
    }

    /// Returns the bytes of data that are in flight or unsent.
    pub(crate) fn offered(&self) -> u32 {
        self.scoreboard.pipe().saturating_add(self.unsent())
    }

    /// Records whether data waits for the pacer or, in a member, for the member's turn.
    pub(crate) fn set_paced(&mut self, paced: bool) {
        self.paced = paced;
        if self.rate.others.is_none() {
            self.rate.pacer.set_awaited(paced);
        }
    }

    /// True if the data that an acknowledgement permits should leave before the next acknowledgement of a
    /// batch is processed. This holds during a reduction, and while data waits and the window is small.
    ///
    /// PRR does not count data that was permitted earlier in the batch but not sent. If the last
    /// acknowledgement shows a loss and the window is small, only the retransmission would leave for a round
    /// trip. RFC 9937 section 6.2 likewise assumes that data leaves after each acknowledgement. A large
    /// window uses large super-segments instead.
    #[inline]
    pub(crate) fn is_urgent(&self) -> bool {
        let is_small = || self.rate.congestion.cwnd() <= CLOCKED_WINDOW * self.mss();
        self.recovery.lowers_window() || (self.unsent() > 0 && is_small())
    }

    /// True if a FIN is queued and was never sent.
    #[inline]
    pub(crate) fn fin_unsent(&self) -> bool {
        self.queue.fin_queued() && self.scoreboard.nxt().le(self.queue.end())
    }

    pub(crate) fn is_fin_in(&self, range: SeqRange) -> bool {
        self.queue.fin_queued() && range.end.gt(self.queue.end())
    }

    pub(crate) fn fin_acked(&self) -> bool {
        self.queue.fin_queued() && self.scoreboard.una().gt(self.queue.end())
    }

    /// Marks data in flight for retransmission if it was certainly dropped. Such a drop is no sign of
    /// congestion. Returns true if there is such data.
    pub(crate) fn resend_dropped(&mut self, is_dropped: impl Fn(&Record) -> bool) -> bool {
        let in_flight = self.scoreboard.in_flight();
        let dropped: Vec<SeqRange> =
            in_flight.filter(|record| is_dropped(record)).map(|record| record.range).collect();
        if dropped.is_empty() {
            return false;
        }
        for range in dropped {
            self.scoreboard.mark_lost(range);
        }
        self.recovery.on_too_big(self.scoreboard.nxt());
        true
    }

    /// Frees the bytes before `una`, which the peer has acknowledged; returns their number.
    pub(crate) fn release_acked(&mut self, una: SeqNum) -> u64 {
        let before = self.queue.len();
        self.queue.advance(una);
        (before - self.queue.len()) as u64
    }

    #[inline]
    pub(crate) fn budget(&self, now: Instant) -> Budget {
        // A SYN in flight uses a sequence number but no window (RFC 6928: the initial window is data).
        let syn = u32::from(self.scoreboard.head().is_some_and(|head| head.syn));
        Budget {
            cwnd: self.rate.window(),
            pipe: self.scoreboard.pipe().saturating_sub(syn),
            others: self.rate.others_pipe(),
            redundancy_in_flight: self.redundancy_in_flight(),
            peer: self.usable_window(),
            paced: self.rate.paced(self.mss(), now),
            redundancy: self.redundancy_left(),
            mss: self.mss(),
        }
    }

    /// Returns the bytes of new data that the peer's window permits.
    #[inline]
    pub(crate) fn usable_window(&self) -> u32 {
        self.window.usable(self.scoreboard.una(), self.scoreboard.nxt())
    }

    /// Limits copies and parity of data to the `bytes` IP bytes of the plan that begins.
    pub(crate) fn limit_redundancy_to_plan(&mut self, bytes: u32) {
        self.redundancy_left = Some(bytes);
    }

    /// Returns the IP bytes that copies and parity of data may still use; `u32::MAX` without a limit.
    pub(crate) fn redundancy_left(&self) -> u32 {
        self.redundancy_left.unwrap_or(u32::MAX)
    }

    /// Deducts the IP bytes of a copy of data, or of a parity segment, from those of the plan.
    pub(crate) fn spend_redundancy(&mut self, bytes: u32) {
        if let Some(left) = &mut self.redundancy_left {
            *left = left.saturating_sub(bytes);
        }
    }

    /// Returns the bytes in flight on the path: the data (RFC 6675 pipe) of all members, and redundancy if
    /// the controller uses the delivery rate.
    #[inline]
    pub(crate) fn in_flight(&self) -> u32 {
        self.rate.pipe_with(self.scoreboard.pipe()).saturating_add(self.redundancy_in_flight())
    }

    /// Returns the bytes of redundancy in flight; 0 if the controller does not use the delivery rate.
    #[inline]
    pub(crate) fn redundancy_in_flight(&self) -> u32 {
        self.rate.delivery.as_ref().map_or(0, |delivery| delivery.redundancy_in_flight())
    }

    /// Counts the payload of a copy of data, or of a parity segment, as in flight. Does nothing if the
    /// controller does not use the delivery rate.
    pub(crate) fn on_redundancy(&mut self, len: u32, now: Instant) {
        if let Some(delivery) = &mut self.rate.delivery {
            // Redundancy counts as in flight for a round trip and RACK's reordering window.
            let srtt = self.rtt.srtt().unwrap_or(self.rtt.rto_base());
            delivery.on_redundancy(len, now, now + srtt + srtt / 4);
        }
    }

    /// True if the congestion window limits the sender.
    pub(crate) fn is_cwnd_limited(&self) -> bool {
        self.usage.is_limited(self.rate.congestion.cwnd(), self.rate.congestion.in_slow_start())
    }

    /// Starts a transfer at `start` if nothing was sent for a round trip. Must be called when a segment
    /// leaves with nothing in flight.
    pub(crate) fn detect_transfer_start(&mut self, start: SeqNum, now: Instant) {
        if self.rtt.srtt().is_some_and(|srtt| self.last_sent + srtt < now) {
            self.transfer_start = start;
            if let Sharing::Apart { asks } = &mut self.sharing {
                *asks = true;
            }
        }
    }

    /// Returns the time at which pacing permits the next segment; `None` if pacing does not hold it back.
    pub(crate) fn pacing_timeout(&self) -> Option<Instant> {
        // The timer of the path serves its members.
        let is_own = self.paced && self.sharing != Sharing::Member;
        if is_own { self.rate.pacer.next_timeout() } else { None }
    }

    /// Returns the payload of a path-MTU probe that may leave now; none leaves during recovery.
    pub(crate) fn next_mtu_probe(&self, now: Instant) -> NextProbe {
        if self.recovery.state() != CongestionState::Open {
            return NextProbe::Wait;
        }
        let (cwnd, unsent) = (self.rate.congestion.cwnd(), self.unsent());
        self.mtu.next_probe(cwnd, unsent, self.option_len, now)
    }

    /// Returns the current retransmission timeout, including the backoff.
    pub(crate) fn timeout(&self) -> Micros {
        self.rto.current(self.rtt.rto_base())
    }

    /// Sets the pacer to the controller's rate, if the controller has one. While acknowledgements clock the
    /// start, the pacer has no limit.
    pub(crate) fn follow_rate(&mut self, now: Instant) {
        if let Some(rate) = self.rate.congestion.pacing_rate() {
            let rate = if self.is_clocked_by_acks(now) { UNPACED } else { rate };
            self.rate.pacer.set_rate(rate, self.mss(), now);
        }
    }

    /// True if acknowledgements, not the pacer, clock the start of this flow, because the path loses segments
    /// to a full queue. Such a queue mostly drops packets of the burst that fills it. A paced start of the
    /// same size would make it drop packets of other flows.
    fn is_clocked_by_acks(&self, now: Instant) -> bool {
        self.queued_from.is_some()
            && !self.rate.congestion.knows_path()
            && !self.rate.pacer.is_spread(now)
            && self.scoreboard.pipe() > 0
    }

    /// Sets the pacer from the window and the round-trip time, unless the controller sets a rate.
    pub(crate) fn update_pacing(&mut self, now: Instant) {
        if !self.rate.pacer.is_configured() || self.rate.congestion.pacing_rate().is_some() {
            return;
        }
        let (cwnd, slow_start) = (self.rate.congestion.cwnd(), self.rate.congestion.in_slow_start());
        let mss = self.mss();
        self.rate.pacer.update(cwnd, self.rtt.srtt(), slow_start, mss, now);
    }

    /// Marks later data as limited by the application if the congestion window has room, but the application
    /// or the peer's window provides less than a full segment. Must be called before data is queued, before
    /// an acknowledgement is processed, and before a timer that may send.
    #[inline]
    pub(crate) fn check_app_limited(&mut self) {
        if self.rate.delivery.is_none()
            || self.unsent().min(self.usable_window()) >= self.mss()
            || self.scoreboard.has_lost()
        {
            return;
        }
        if self.rate.others.is_some_and(|others| others.wants) {
            return;
        }
        let pipe = self.in_flight();
        if let Some(delivery) = self.rate.delivery.as_mut().filter(|_| pipe < self.rate.congestion.cwnd()) {
            delivery.mark_app_limited(pipe);
        }
    }

    /// True if the path drops segments at a full queue, and the last round trip was as long as with a full
    /// queue.
    pub(crate) fn is_queue_full(&self) -> bool {
        self.rtt.latest().zip(self.queued_from).is_some_and(|(rtt, from)| rtt >= from)
    }

    /// Reports newly marked losses to the controller, in the order of sending.
    pub(crate) fn pass_losses(&mut self, now: Instant) {
        let is_queued = self.is_queue_full();
        let (Some(delivery), Some(snapshots)) = (&mut self.rate.delivery, &self.snapshots) else { return };
        let mut lost = self.scoreboard.take_lost_log();
        if let Some(others) = &mut self.rate.others {
            others.has_lost |= !lost.is_empty();
        }
        let una = self.scoreboard.una();
        lost.sort_unstable_by_key(|(range, sent_at)| (*sent_at, range.start.since(una)));
        lost.dedup_by(|(next, next_at), (range, at)| {
            // Consecutive segments of one transmission are one loss.
            let joins = next_at == at && range.end == next.start;
            if joins {
                range.end = next.end;
            }
            joins
        });
        for (range, sent_at) in lost {
            if let Some(lost) = delivery.on_lost(snapshots, range, sent_at, now) {
                self.rate.congestion.on_lost(&LostPacket { is_queued, ..lost });
            }
        }
    }

    /// Reports to the controller the losses that redundancy repaired. The lost originals are the newly
    /// acknowledged segments below `reported`, the highest sequence number that SACK had reported before. If
    /// there are none, the first newly acknowledged segment counts as lost.
    pub(crate) fn pass_repairs(&mut self, ack: &AckOutcome, reported: Option<SeqNum>, now: Instant) {
        let (mss, is_queued) = (self.mss(), self.is_queue_full());
        let (Some(delivery), Some(snapshots)) = (&mut self.rate.delivery, &self.snapshots) else { return };
        let covered = || ack.delivered.iter().filter(|one| one.range.end.le(ack.ack) && !one.retransmitted);
        let is_hole = |one: &&Delivered| reported.is_some_and(|reported| one.range.end.le(reported));
        let unknown = if covered().any(|one| is_hole(&one)) { None } else { covered().next() };
        for one in covered().filter(is_hole).chain(unknown) {
            let range = SeqRange::with_len(one.range.start, one.range.len().min(mss));
            if let Some(others) = &mut self.rate.others {
                others.has_lost = true;
            }
            if let Some(lost) = delivery.on_repaired(snapshots, range, one.sent_at, now) {
                self.rate.congestion.on_lost(&LostPacket { is_queued, ..lost });
            }
        }
    }

    /// True if RACK detects losses; false if counts of SACKed segments do (RFC 6675).
    pub(crate) fn uses_rack(&self) -> bool {
        #[cfg(feature = "historical")]
        if self.rfc6675.is_some() {
            return false;
        }
        true
    }

    /// Detects losses without SACK. Duplicate acknowledgement number `dup_thresh` declares the first segment
    /// lost (RFC 5681 section 3.2). Each partial acknowledgement in recovery declares the next one lost (RFC
    /// 6582 section 3.2). Returns the bytes newly marked as lost and the rule that applied.
    pub(crate) fn detect_by_duplicates(
        &mut self,
        ack: &AckOutcome,
        dup_thresh: u32,
    ) -> Option<(u32, LossCause)> {
        let partial = self.recovery.state() == CongestionState::Recovery
            && ack.advanced > 0
            && self.scoreboard.una().lt(self.recovery.recovery_point());
        let third = self.recovery.may_fast_retransmit() && self.scoreboard.dupacks() >= dup_thresh;
        let cause = match (partial, third) {
            (true, _) => LossCause::PartialAck,
            (false, true) => LossCause::DupAcks,
            (false, false) => return None,
        };
        Some((self.scoreboard.mark_head_lost(self.mss()), cause))
    }

    /// Detects losses by duplicate counting, if so configured.
    #[cfg(feature = "historical")]
    pub(crate) fn count_losses(
        &mut self,
        ack: &AckOutcome,
        has_sack: bool,
        in_recovery: bool,
        now: Instant,
    ) -> Option<(RackVerdict, LossCause)> {
        let may_send_new = self.rfc6675.is_some() && self.may_send_new(&self.budget(now));
        let counting = self.rfc6675.as_mut().filter(|_| has_sack)?;
        Some(counting.on_ack(ack, &self.scoreboard, &Situation { in_recovery, may_send_new }))
    }

    /// Undoes a reduction that an acknowledgement shows to be spurious (RFC 3522, 3708, 4015, 5682).
    #[inline]
    pub(crate) fn undo_spurious(&mut self, ack: &AckOutcome, has_sack: bool, now: Instant) -> Option<Undone> {
        self.recovery.resume_retransmissions();
        let scoreboard = &self.scoreboard;
        if ack.reneged {
            // Either this acknowledgement is old, or the receiver has discarded data. Nothing is
            // retransmitted until the next acknowledgement or the timer shows which (Linux:
            // tcp_check_sack_reneging).
            self.recovery.suspend_retransmissions();
        } else if has_sack && self.recovery.shows_overtaken_segment(ack) {
            // The highest SACK shows how far the segment was overtaken (Linux: tcp_try_undo_partial).
            let highest = scoreboard.highest_sacked().unwrap_or(scoreboard.una());
            self.rack.on_overtaken(highest.since(ack.una_before));
            // Other retransmitted data may be merely late too, so nothing more is retransmitted.
            self.recovery.suspend_retransmissions();
        }
        let repairs_in_flight = || scoreboard.resent().next().is_some();
        let why = self.recovery.spurious(ack, repairs_in_flight)?;
        if self.recovery.shows_reordering() {
            self.rack.on_spurious_recovery();
            #[cfg(feature = "historical")]
            self.rfc6675.iter_mut().for_each(|counting| counting.on_spurious_recovery());
        }
        if self.recovery.state() == CongestionState::Loss {
            self.timeouts_in_row = 0;
        }
        self.scoreboard.unmark_lost();
        self.recovery.undo();
        let threshold = |rate: &RateControl| rate.congestion.ssthresh().unwrap_or(u32::MAX);
        let reduced = threshold(&self.rate);
        if !self.timed_out_alone {
            self.rate.on_spurious(now);
        }
        Some(Undone { why, is_raised: threshold(&self.rate) > reduced })
    }

    /// Returns the time at which suspected segments are declared lost.
    pub(crate) fn reordering_timeout(&self) -> Option<Instant> {
        #[cfg(feature = "historical")]
        if self.rfc6675.is_some() {
            return None;
        }
        self.rack.next_timeout()
    }

    /// True if a segment arrived after one that was sent later.
    pub(crate) fn reordering_seen(&self) -> bool {
        #[cfg(feature = "historical")]
        if let Some(counting) = &self.rfc6675 {
            return counting.reordering_seen();
        }
        self.rack.reordering_seen()
    }

    /// True if there is new data and the windows permit its next segment.
    #[cfg(feature = "historical")]
    pub(crate) fn may_send_new(&self, budget: &Budget) -> bool {
        let next = self.unsent().min(budget.mss);
        next > 0 && next <= budget.unpaced()
    }

    /// Records the end of a burst. `limited`: the congestion window or pacing ended it.
    #[inline]
    pub(crate) fn end_burst(&mut self, limited: bool) {
        // If the controller sets a rate, pacing is the limit most of the time, not the window.
        let limited = limited && !(self.paced && self.rate.congestion.pacing_rate().is_some());
        let board = &self.scoreboard;
        let (una, nxt, pipe) = (board.una(), board.nxt(), self.rate.pipe_with(board.pipe()));
        let had_data = nxt != self.usage.burst_end() || self.unsent() > 0 || self.fin_unsent();
        let full = had_data && pipe.saturating_add(self.mss()) > self.rate.congestion.cwnd();
        self.usage.on_burst(una, nxt, limited || full);
    }

    /// Returns the burst extended by `range`, which is new data.
    #[inline]
    pub(crate) fn burst_with(&self, range: SeqRange, budget: &Budget) -> BurstPush {
        let end = self.queue.end();
        let left = if range.end.lt(end) { end.since(range.end) } else { 0 };
        let pace = Pace {
            cwnd: budget.cwnd,
            slow_start: budget.cwnd < self.rate.congestion.ssthresh().unwrap_or(u32::MAX) / 2,
            pipe: budget.pipe.saturating_add(range.len()),
            mss: budget.mss,
            srtt: self.rtt.srtt(),
            min_rtt: self.rtt.min_rtt(),
        };
        let is_held =
            left < budget.mss && self.nagle.defers_partial(self.scoreboard.una(), self.queue.fin_queued());
        self.burst_push.with_segment(&pace, left > 0 && !is_held && budget.has_room_after(range.len(), left))
    }

    /// Resets the count of retries if the peer has answered a retransmission of data beyond its window. RFC
    /// 9293 section 3.8.6: the sender "SHOULD NOT time out the connection if data beyond the right window
    /// edge is not acknowledged".
    pub(crate) fn count_answer_beyond_window(&mut self, now: Instant) {
        if self.timeouts_in_row == 0 {
            return;
        }
        let window = self.window.snd_wnd();
        if self.scoreboard.head().is_some_and(|head| window < head.range.len()) {
            self.timeouts_in_row = 0;
            self.waiting_since = Some(now);
            // The segment has reached the peer, so its size is not a problem for the path.
            self.mtu.on_progress();
        }
    }

    /// Returns the number of segments that a DSACK reports.
    pub(crate) fn segments_of(&self, dsack: &Dsack) -> u32 {
        dsack.range.len().div_ceil(self.mss())
    }

    /// Doubles the timeout (RFC 6298 5.5), except at the first timeouts of a thin stream.
    pub(crate) fn back_off(&mut self, thin_stream: bool) {
        let linear = thin_stream && self.timeouts_in_row <= LINEAR_TIMEOUTS;
        if linear && self.is_thin() {
            self.rto.on_expire_linear();
        } else {
            self.rto.on_expire();
        }
    }

    /// True if the stream is thin: fewer than four segments are outstanding and no data is unsent (RFC 7765
    /// section 4).
    pub(crate) fn is_thin(&self) -> bool {
        self.scoreboard.segments() < 4 && self.unsent() == 0
    }

    /// Frees the memory that an idle sender does not need.
    pub(crate) fn release_memory(&mut self) {
        self.queue.release_memory();
        self.scoreboard.release_memory();
        self.rack.release_memory();
    }

    /// Stops all timers: nothing more will be sent.
    pub(crate) fn stop(&mut self) {
        self.rto.disarm();
        self.rack.disarm();
        self.window.disarm_persist();
        self.paced = false;
        self.send_limited = false;
        self.nagle.cork_until = None;
    }
}

/// Methods for a member of a shared path.
impl Sender {
    /// Swaps the member's rate control with the path's; a second call swaps them back.
    #[inline]
    pub(crate) fn exchange_rate(&mut self, rate: &mut RateControl) {
        core::mem::swap(&mut self.rate, rate);
    }

    /// True while this sender has the rate control of its path.
    #[inline]
    pub(crate) fn is_lent(&self) -> bool {
        self.rate.others.is_some()
    }

    /// Returns the state that the path aggregates over its members.
    #[inline]
    pub(crate) fn member_state(&self) -> MemberState {
        MemberState {
            pipe: self.scoreboard.pipe(),
            is_outstanding: !self.scoreboard.is_empty(),
            is_recovering: self.recovery.reducing() && !self.timed_out_alone,
            wants: self.unsent().min(self.usable_window()) >= self.mss() || self.scoreboard.has_lost(),
        }
    }

    /// True if the window or the pacer of the path holds a segment back.
    pub(crate) fn is_send_limited(&self) -> bool {
        self.send_limited || self.paced
    }

    /// True if the sender may request the window remembered for its path. A member needs the permission of
    /// its path.
    pub(crate) fn may_jump(&self) -> bool {
        self.rate.others.is_none_or(|others| others.may_jump)
    }

    /// True if there is neither new nor lost data to send.
    pub(crate) fn has_sent_all(&self) -> bool {
        self.unsent() == 0 && !self.scoreboard.has_lost()
    }

    /// Returns the smoothed round-trip time, its variation and the minimum.
    pub(crate) fn round_trip(&self) -> Option<(Micros, Micros, Micros)> {
        let rtt = &self.rtt;
        Some((rtt.srtt()?, rtt.rttvar()?, rtt.min_rtt()?))
    }

    /// Returns the bytes sent in the current transfer.
    pub(crate) fn transfer_len(&self) -> u32 {
        self.scoreboard.nxt().since(self.transfer_start)
    }

    /// Keeps the connection's own controller while the transfer is short.
    pub(crate) fn keep_own_controller(&mut self) {
        self.sharing = Sharing::Apart { asks: false };
    }

    /// Keeps the connection's own controller for good.
    pub(crate) fn decline_sharing(&mut self) {
        self.sharing = Sharing::Off;
    }
}

/// Returns the initial window. RFC 6928: `min(10*MSS, max(2*MSS, 14600))` for ten segments. Other numbers of
/// segments scale it in proportion.
pub(crate) fn initial_window(segments: u32, mss: u32) -> u32 {
    (segments * mss).min((2 * mss).max(segments * 1460))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::MtuProbing;
    use crate::time::Duration;

    const RTO: Micros = Micros::from_millis(200);

    #[test]
    fn initial_window_is_ten_segments_within_the_byte_limit() {
        assert_eq!(initial_window(10, 1460), 14_600);
        assert_eq!(initial_window(10, 536), 5_360);
        assert_eq!(initial_window(10, 9_000), 18_000);
    }

    #[test]
    fn a_peer_that_names_a_tiny_mss_does_not_get_a_segment_for_every_byte() {
        let (config, host) =
            (TcpConfig::default(), Host { mtu: 1500, granularity: Duration::ZERO, accepts_parity: true });
        let mss = |peer, timestamps| {
            let mut sender = Sender::new(&config, SeqNum(0), host, false, Instant::ZERO);
            sender.on_handshake(peer, timestamps);
            sender.mss()
        };
        assert_eq!((mss(1, false), mss(1, true)), (48, 36));
        assert_eq!((mss(49, false), mss(536, false)), (49, 536));
    }

    #[test]
    fn mtu_search_does_not_reduce_the_announced_mss() {
        let config = TcpConfig { mtu_probing: MtuProbing::Always, ..TcpConfig::default() };
        let host = Host { mtu: 1500, granularity: Duration::ZERO, accepts_parity: true };
        let sender = Sender::new(&config, SeqNum(0), host, false, Instant::ZERO);
        assert_eq!((sender.advertised_mss(), sender.mss()), (1460, 1024));
    }

    #[test]
    fn a_small_window_is_urgent_only_while_data_waits() {
        let host = Host { mtu: 1500, granularity: Duration::ZERO, accepts_parity: true };
        let mut sender = Sender::new(&TcpConfig::default(), SeqNum(0), host, false, Instant::ZERO);
        assert!(!sender.is_urgent(), "nothing is written");
        sender.queue.write(b"waits");
        assert!(sender.is_urgent());
        sender.rate.congestion.start(1_000_000);
        assert!(!sender.is_urgent(), "a large window sends in large pieces");
    }

    #[test]
    fn nagle_waits_for_an_unacknowledged_partial_segment_only() {
        let mut nagle = Nagle::default();
        assert!(nagle.allows_partial(SeqNum(1), false, Instant::ZERO));
        nagle.on_sent(SeqNum(101), true);
        assert!(!nagle.allows_partial(SeqNum(1), false, Instant::ZERO));
        assert!(nagle.allows_partial(SeqNum(1), true, Instant::ZERO), "a FIN goes at once");
        assert!(nagle.allows_partial(SeqNum(101), false, Instant::ZERO));
    }

    #[test]
    fn a_cork_ends_after_200_ms() {
        let mut nagle = Nagle { cork: true, nodelay: true, ..Nagle::default() };
        assert!(!nagle.allows_partial(SeqNum(1), false, Instant::ZERO));
        nagle.start_cork(RTO, Instant::ZERO);
        nagle.start_cork(RTO, Instant::from_millis(100));
        assert!(!nagle.allows_partial(SeqNum(1), false, Instant::from_millis(199)));
        assert!(nagle.allows_partial(SeqNum(1), false, Instant::from_millis(200)));
    }

    fn usage() -> WindowUsage {
        let zero = SeqNum(0);
        WindowUsage {
            limited: false,
            max_outstanding: 0,
            measured_to: zero,
            burst_end: zero,
            grown_at: Instant::ZERO,
        }
    }

    #[test]
    fn window_is_limiting_if_it_ended_a_burst_or_half_was_in_flight() {
        let mut usage = usage();
        usage.on_burst(SeqNum(0), SeqNum(3000), false);
        assert!(!usage.is_limited(10_000, true));
        assert!(usage.is_limited(5_000, true));
        assert!(!usage.is_limited(5_000, false));
        usage.on_burst(SeqNum(0), SeqNum(5000), true);
        assert!(usage.is_limited(5_000, false));
    }

    #[test]
    fn largest_flight_counts_until_the_window_is_sent_again() {
        let at = |n: u32| SeqNum(n);
        let mut usage = usage();
        usage.on_burst(at(0), at(10_000), false);
        usage.on_burst(at(7_000), at(12_000), false);
        assert!(usage.is_limited(15_000, true), "a smaller burst in the same round does not replace it");
        assert!(!usage.is_limited(20_000, true), "half of the window was not used");
        assert!(!usage.is_limited(15_000, false), "outside slow start that is not enough");
        usage.on_burst(at(7_000), at(13_000), true);
        assert!(usage.is_limited(100_000, false), "the window itself was the limit");
        usage.on_burst(at(13_000), at(14_000), false);
        assert!(!usage.is_limited(15_000, true), "that round is over");
    }

    /// Linux calls tcp_cwnd_validate if data is waiting or was sent.
    #[test]
    fn a_limiting_window_remains_the_limit_while_idle() {
        let at = |n: u32| SeqNum(n);
        let mut usage = usage();
        usage.on_burst(at(0), at(10_000), true);
        usage.on_burst(at(1_000), at(11_000), false);
        usage.on_burst(at(10_000), at(11_000), false);
        assert!(usage.is_limited(100_000, false), "an acknowledgement without new data ends no round");
        usage.on_burst(at(10_000), at(12_000), false);
        assert!(!usage.is_limited(100_000, false));
    }
}

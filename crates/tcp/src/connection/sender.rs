//! The sending half: the parts that [`crate::send`] and [`crate::congestion`] provide, and the few
//! facts that belong to none of them.
//!
//! A connection may be a member of its path: the stack lends it the [`RateControl`] of the path for a call.
//! Each member keeps its own loss detection, retransmission and timers. The window, the rate, the delivery
//! rate and the response to losses are those of the path (`stack/controllers.rs`).

use alloc::boxed::Box;

use brisk_wire::SeqNum;

use crate::config::{LossDetection, PrrBound, TcpConfig};
use crate::congestion::Controller;
use crate::congestion::sample::{ControllerStart, LostPacket};
use crate::connection::{Connection, Host};
use crate::outcome::{AckOutcome, CongestionState, Delivered, Dsack, LossCause};
use crate::send::budget::{Budget, Charges};
use crate::send::delivery::Snapshots;
use crate::send::mtu::{NextProbe, PathMtu};
use crate::send::pacer::Pacer;
use crate::send::push::{BurstPush, Pace};
use crate::send::queue::SendQueue;
use crate::send::rack::{Rack, RackVerdict};
use crate::send::rate::RateControl;
use crate::send::recovery::Recovery;
#[cfg(feature = "historical")]
use crate::send::rfc6675::Rfc6675;
use crate::send::rto::Rto;
use crate::send::rtt::RttEstimator;
use crate::send::scoreboard::Scoreboard;
use crate::send::window::SendWindow;
use crate::seq_ranges::SeqRange;
use crate::short_path::{self, SendSizing};
use crate::time::{Instant, Micros};

/// Segments of congestion window up to which each acknowledgement of a batch is answered on its own.
const CLOCKED_WINDOW: u32 = 64;

/// A corked partial segment is held for a retransmission timeout, and at least this long (Linux: TCP_CORK, by
/// the timer of its window probes).
const CORK_MIN: Micros = Micros::from_millis(200);

/// Least MSS of a peer that is believed (Linux: tcp_min_snd_mss): all options and 8 bytes of data fit.
/// A peer that names one byte would have a record and a packet made for every byte of the buffer.
const MIN_MSS: u32 = 48;

/// A timestamp option with the two NOPs that align it (RFC 7323 appendix A).
const TIMESTAMP_OPTION_LEN: u32 = 12;

/// SYNs or SYN-ACKs that timed out from which on a connection does not join its path.
const MAX_HANDSHAKE_TIMEOUTS: u32 = 2;
/// A rate for a flow that no pacer holds back.
const UNPACED: u64 = u64::MAX;

/// Bytes of a short transfer, at most.
pub(crate) const SHORT_TRANSFER: u32 = 128 << 10;

/// The parts of the sender and what ties them to one connection.
#[derive(Debug)]
pub(crate) struct Sender {
    pub(crate) queue: SendQueue,
    pub(crate) scoreboard: Scoreboard,
    pub(crate) rtt: RttEstimator,
    pub(crate) rto: Rto,
    pub(crate) rack: Rack,
    /// Detects losses in place of RACK, if so configured.
    #[cfg(feature = "historical")]
    pub(crate) rfc6675: Option<Box<Rfc6675>>,
    pub(crate) recovery: Recovery,
    pub(crate) window: SendWindow,
    pub(crate) rate: RateControl,
    pub(crate) sharing: Sharing,
    /// The window holds the next segment back.
    pub(crate) held: bool,
    /// The counters of the delivery rate at each transmission, if the controller asks for a rate.
    pub(crate) snapshots: Option<Box<Snapshots>>,
    pub(crate) mtu: PathMtu,
    /// The peer's MSS option and the configured limit: payload plus options, bytes.
    largest_segment: u32,
    /// The MSS to announce in a SYN.
    announced: u16,
    /// Options on every data segment, bytes.
    option_len: u32,
    pub(crate) hold: Hold,
    pub(crate) usage: WindowUsage,
    /// Retransmission timeouts since the last progress.
    pub(crate) timeouts_in_row: u32,
    /// When the oldest unacknowledged data was first sent; the user timeout counts from here.
    pub(crate) waiting_since: Option<Instant>,
    /// When the last data segment left.
    pub(crate) last_sent: Instant,
    /// The first byte that left after nothing was in flight for a round trip.
    pub(crate) transfer_start: SeqNum,
    /// Time and end of the last transmission on the scoreboard.
    stamped: (Instant, SeqNum),
    /// A write was refused: the application wants to hear when there is room.
    pub(crate) writer_waits: bool,
    /// Where bursts end that shall carry PSH.
    pub(crate) burst_push: BurstPush,
    /// Pacing is what holds the next segment back.
    pub(crate) paced: bool,
    /// The round-trip time from which on a loss is one of a full queue, if the path has shown it.
    pub(crate) queued_from: Option<Micros>,
    /// Bytes of copies and parity that may still be spent; `None`: there is no limit.
    redundancy_left: Option<u32>,
    /// Our FIN left twice.
    pub(crate) fin_copied: bool,
    /// Bytes of copies in flight that count against the congestion window where new data is concerned.
    pub(crate) charged: u32,
    /// Which redundancy obeys the congestion window.
    pub(crate) charges: Charges,
    /// Payload of every data segment that is given up so that a parity segment with its longer option
    /// fits the same packet, bytes.
    pub(crate) reserved: u32,
    /// How large the queue may be on a short path.
    sizing: SendSizing,
}

/// The part of a connection in the control of its path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sharing {
    /// None: it has its own controller.
    Off,
    /// It has its own controller, and becomes a member when its transfer is long, or when a long one of
    /// another member is under way: `asks` the stack about that.
    Apart { asks: bool },
    /// It is a member: the stack lends it the controller of the path.
    Member,
}

/// The state of a member that its path counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct MemberState {
    /// Bytes in flight.
    pub(crate) pipe: u32,
    /// It has unacknowledged data.
    pub(crate) is_outstanding: bool,
    /// It repairs a loss.
    pub(crate) is_recovering: bool,
    /// It has a full segment to send, or to repair.
    pub(crate) wants: bool,
}

/// Reasons to hold back a partial segment: Nagle's algorithm in Minshall's form, and the cork.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Hold {
    /// Nagle is off.
    pub(crate) nodelay: bool,
    /// Only full segments.
    pub(crate) cork: bool,
    /// Only full segments until an acknowledgement arrives.
    pub(crate) more: bool,
    /// Until when a corked partial segment is held.
    pub(crate) cork_until: Option<Instant>,
    /// Send the partial segment now whatever holds it (cork expired, persist timer fired).
    pub(crate) overridden: bool,
    /// End of the last partial segment sent.
    pub(crate) small_end: Option<SeqNum>,
}

impl Hold {
    /// May a partial segment that empties the queue leave now?
    ///
    /// RFC 9293 section 3.7.4 (Nagle): "if there is unacknowledged data [...] the sending TCP
    /// endpoint buffers all user data"; Minshall's form, which Linux uses, waits only for an
    /// unacknowledged *partial* segment. A cork holds it until its time is over.
    pub(crate) fn permits_partial(&self, una: SeqNum, fin: bool, now: Instant) -> bool {
        if fin || self.overridden {
            return true;
        }
        if self.cork || self.more {
            return self.cork_until.is_some_and(|until| until <= now);
        }
        self.nodelay || self.small_end.is_none_or(|end| end.le(una))
    }

    /// True if a cork holds partial segments back.
    pub(crate) fn is_corked(&self) -> bool {
        self.cork || self.more
    }

    /// The cork holds a partial segment back: for a retransmission timeout (`rto`) from now on, if its time
    /// has not begun.
    pub(crate) fn start_cork(&mut self, rto: Micros, now: Instant) {
        self.cork_until.get_or_insert(now + rto.max(CORK_MIN));
    }

    /// True if a partial segment that empties the queue has to wait, unless the time of a cork is over.
    fn holds_partial(&self, una: SeqNum, fin: bool) -> bool {
        let waits =
            self.cork || self.more || (!self.nodelay && self.small_end.is_some_and(|end| end.gt(una)));
        waits && !fin && !self.overridden
    }

    /// The peer has answered, whether or not with something new: what waited for more waits no longer.
    pub(crate) fn on_ack(&mut self) {
        if core::mem::take(&mut self.more) && !self.cork {
            self.cork_until = None;
        }
    }

    /// A data segment left.
    pub(crate) fn on_sent(&mut self, end: SeqNum, partial: bool) {
        self.overridden = false;
        self.cork_until = None;
        if partial {
            self.small_end = Some(end);
        }
    }
}

/// Whether the congestion window was what limited the sender (RFC 7661, and Linux's reading of it).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WindowUsage {
    limited: bool,
    max_outstanding: u32,
    measured_to: SeqNum,
    /// SND.NXT when the last burst ended.
    burst_end: SeqNum,
    /// When an acknowledgement last could grow the window.
    grown_at: Instant,
}

impl WindowUsage {
    /// A transmission burst ended; nothing may have left. `limited`: the congestion window has no room for a
    /// segment, and data was or is waiting. Until what was outstanding then is acknowledged, the window
    /// counts as the limit; a burst that another limit ended changes nothing but the most that was
    /// outstanding (Linux: tcp_cwnd_validate).
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

    /// An acknowledgement could grow the window.
    pub(crate) fn on_growth(&mut self, now: Instant) {
        self.grown_at = now;
    }

    /// When an acknowledgement last could grow the window.
    pub(crate) fn grown_at(&self) -> Instant {
        self.grown_at
    }

    /// SND.NXT when the last burst ended.
    pub(crate) fn burst_end(&self) -> SeqNum {
        self.burst_end
    }

    /// Whether the window may grow: it was the limit, or in slow start more than half of it was used.
    pub(crate) fn is_limited(&self, cwnd: u32, slow_start: bool) -> bool {
        self.limited || (slow_start && cwnd < self.max_outstanding.saturating_mul(2))
    }
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
            recovery: Recovery::new(iss, config.frto),
            #[cfg(feature = "historical")]
            rfc6675,
            window: SendWindow::new(),
            rate,
            sharing: if config.share_path { Sharing::Apart { asks: true } } else { Sharing::Off },
            held: false,
            snapshots,
            mtu,
            largest_segment: largest,
            announced,
            option_len: 0,
            hold: Hold { nodelay: config.nodelay, ..Hold::default() },
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
            transfer_start: iss,
            stamped: (now, iss),
            writer_waits: false,
            burst_push: BurstPush::default(),
            paced: false,
            queued_from: None,
            redundancy_left: config.redundancy_percent.map(|_| 0),
            fin_copied: false,
            charged: 0,
            charges: Charges {
                copies: config.mechanisms.proactive.is_some_and(|proactive| proactive.charge_cwnd),
                parity: config.mechanisms.corrective.is_some_and(|corrective| corrective.charge_cwnd),
            },
            reserved: 0,
            sizing: SendSizing::default(),
        }
    }

    /// `acked` bytes were delivered: the queue follows what can be in flight, and on a short path what was.
    pub(crate) fn grow_queue(&mut self, acked: u32, now: Instant) {
        let window = self.rate.congestion.cwnd().min(self.window.max_snd_wnd());
        let short = self.rtt.min_rtt().filter(|least| short_path::is_short(*least)).zip(self.rtt.srtt());
        let limit = self.queue.limit();
        let most =
            short.map_or(usize::MAX, |(least, srtt)| self.sizing.on_acked(acked, srtt, least, limit, now));
        self.queue.grow(window, most);
    }

    /// When a transmission that ends at `end` counts as sent. RACK judges transmissions of one instant
    /// by their sequence numbers (RFC 8985 section 6.1), which holds only if they left in that order: a
    /// retransmission that follows new data within the instant is a microsecond younger.
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

    /// The handshake told the peer's MSS and whether every segment carries timestamps.
    pub(crate) fn on_handshake(&mut self, peer_mss: u16, timestamps: bool) {
        self.largest_segment = self.largest_segment.min(u32::from(peer_mss).max(MIN_MSS));
        self.mtu.cap(self.largest_segment);
        self.option_len = if timestamps { TIMESTAMP_OPTION_LEN } else { 0 };
    }

    /// Largest payload of a segment without SACK blocks.
    #[inline]
    pub(crate) fn mss(&self) -> u32 {
        self.mtu.mss(self.option_len).min(self.largest_segment.saturating_sub(self.option_len)).max(1)
    }

    /// Largest payload of a parity segment.
    pub(crate) fn parity_limit(&self) -> u32 {
        self.mss().saturating_sub(self.reserved)
    }

    /// Bytes of options on every segment.
    pub(crate) fn option_len(&self) -> u32 {
        self.option_len
    }

    /// Bytes written and never sent.
    pub(crate) fn unsent(&self) -> u32 {
        let nxt = self.scoreboard.nxt();
        let end = self.queue.end();
        if nxt.lt(end) { end.since(nxt.max(self.queue.start())) } else { 0 }
    }

    /// True if what an acknowledgement lets go should leave before the next one of a batch is taken in:
    /// during a reduction, and while the window is small.
    ///
    /// If the batch ends with the sign of a loss, what the acknowledgements before it had let go would be
    /// lost to PRR, and with a small window that is a round trip in which nothing is sent but the
    /// retransmission. RFC 9937 section 6.2, too, counts what was sent between two acknowledgements. A large
    /// window sends in large pieces instead.
    #[inline]
    pub(crate) fn is_urgent(&self) -> bool {
        let is_small = || self.rate.congestion.cwnd() <= CLOCKED_WINDOW * self.mss();
        self.recovery.lowers_window() || (self.unsent() > 0 && is_small())
    }

    /// True if a FIN is queued and was never sent.
    pub(crate) fn fin_unsent(&self) -> bool {
        self.queue.fin_queued() && self.scoreboard.nxt().le(self.queue.end())
    }

    /// True if the range has our FIN in it.
    pub(crate) fn is_fin_in(&self, range: SeqRange) -> bool {
        self.queue.fin_queued() && range.end.gt(self.queue.end())
    }

    /// True once our FIN is acknowledged.
    pub(crate) fn fin_acked(&self) -> bool {
        self.queue.fin_queued() && self.scoreboard.una().gt(self.queue.end())
    }

    /// Returns the limits of transmissions now.
    #[inline]
    pub(crate) fn budget(&self, now: Instant) -> Budget {
        // A SYN in flight takes a sequence number and no window (RFC 6928: the initial window is data).
        let syn = u32::from(self.scoreboard.head().is_some_and(|head| head.syn));
        Budget {
            cwnd: self.rate.window(),
            pipe: self.scoreboard.pipe().saturating_sub(syn),
            others: self.rate.others_pipe(),
            charged: self.charged + self.redundancy_in_flight(),
            peer: self.usable_window(),
            paced: self.rate.paced(self.mss(), now),
            redundancy: self.redundancy_left(),
            mss: self.mss(),
            charges: self.charges,
        }
    }

    /// Bytes beyond what was sent that the peer's window takes.
    pub(crate) fn usable_window(&self) -> u32 {
        self.window.usable(self.scoreboard.una(), self.scoreboard.nxt())
    }

    /// Copies and parity may take this much until further notice.
    pub(crate) fn allow_redundancy(&mut self, bytes: u32) {
        self.redundancy_left = Some(bytes);
    }

    /// Bytes of copies and parity that may still be spent.
    pub(crate) fn redundancy_left(&self) -> u32 {
        self.redundancy_left.unwrap_or(u32::MAX)
    }

    /// The allowance of copies and parity grows with what is sent for the first time.
    pub(crate) fn earn_redundancy(&mut self, len: u32, percent: Option<u32>) {
        if let (Some(left), Some(percent)) = (&mut self.redundancy_left, percent) {
            let earned = u64::from(len) * u64::from(percent) / 100;
            *left = left.saturating_add(u32::try_from(earned).unwrap_or(u32::MAX));
        }
    }

    /// Bytes in flight: of data (RFC 6675 pipe) and, for a controller that asks for the delivery rate, of
    /// redundancy.
    #[inline]
    pub(crate) fn in_flight(&self) -> u32 {
        self.rate.pipe_with(self.scoreboard.pipe()).saturating_add(self.redundancy_in_flight())
    }

    /// Bytes of redundancy in flight, if the controller asks for the delivery rate.
    #[inline]
    pub(crate) fn redundancy_in_flight(&self) -> u32 {
        self.rate.delivery.as_ref().map_or(0, |delivery| delivery.redundancy_in_flight())
    }

    /// A copy of data, or a parity segment, left.
    pub(crate) fn on_redundancy(&mut self, len: u32, now: Instant) {
        if let Some(delivery) = &mut self.rate.delivery {
            // A round trip, and as much as RACK waits for what was overtaken.
            let srtt = self.rtt.srtt().unwrap_or(self.rtt.rto_base());
            delivery.on_redundancy(len, now, now + srtt + srtt / 4);
        }
        self.spend_redundancy(len);
    }

    /// So much of the allowance of redundancy is spent.
    pub(crate) fn spend_redundancy(&mut self, len: u32) {
        if let Some(left) = &mut self.redundancy_left {
            *left = left.saturating_sub(len);
        }
    }

    /// True if the congestion window limits the sender.
    pub(crate) fn is_cwnd_limited(&self) -> bool {
        self.usage.is_limited(self.rate.congestion.cwnd(), self.rate.congestion.in_slow_start())
    }

    /// A segment that starts at `start` leaves while nothing is in flight: after a round trip of silence it
    /// begins a transfer.
    pub(crate) fn note_transfer_start(&mut self, start: SeqNum, now: Instant) {
        if self.rtt.srtt().is_some_and(|srtt| self.last_sent + srtt < now) {
            self.transfer_start = start;
            if let Sharing::Apart { asks } = &mut self.sharing {
                *asks = true;
            }
        }
    }

    /// When pacing lets the next segment go, if it is pacing that holds it.
    pub(crate) fn pacing_timeout(&self) -> Option<Instant> {
        // Members are woken by the timer of their path.
        let is_own = self.paced && self.sharing != Sharing::Member;
        if is_own { self.rate.pacer.next_timeout() } else { None }
    }

    /// Payload size of a path-MTU probe that may be sent now: only while nothing is being repaired.
    pub(crate) fn next_mtu_probe(&self, now: Instant) -> NextProbe {
        if self.recovery.state() != CongestionState::Open {
            return NextProbe::Wait;
        }
        let (cwnd, unsent) = (self.rate.congestion.cwnd(), self.unsent());
        self.mtu.next_probe(cwnd, unsent, self.option_len, now)
    }

    /// A path-MTU probe left.
    pub(crate) fn on_mtu_probe_sent(&mut self, range: SeqRange) {
        self.mtu.on_probe_sent(range, self.option_len);
    }

    /// The retransmission timeout in force, backed off as it is.
    pub(crate) fn timeout(&self) -> Micros {
        self.rto.current(self.rtt.rto_base())
    }

    /// Tells the pacer the rate that the controller names, if it names one.
    pub(crate) fn follow_rate(&mut self, now: Instant) {
        if let Some(rate) = self.rate.congestion.pacing_rate() {
            let rate = if self.is_clocked_by_acks(now) { UNPACED } else { rate };
            self.rate.pacer.set_rate(rate, self.mss(), now);
        }
    }

    /// True if acknowledgements clock the start of this flow, and no pacer: on a path that loses segments to
    /// a full queue. A queue drops what arrives while it is full. Of a burst most are packets of the burst
    /// itself; of a paced start of the same size, they are packets of other flows.
    fn is_clocked_by_acks(&self, now: Instant) -> bool {
        self.queued_from.is_some()
            && !self.rate.congestion.knows_path()
            && !self.rate.pacer.is_spread(now)
            && self.scoreboard.pipe() > 0
    }

    /// Tells the pacer what the window and the round-trip time are now, unless the controller names a rate.
    pub(crate) fn update_pacing(&mut self, now: Instant) {
        if !self.rate.pacer.is_configured() || self.rate.congestion.pacing_rate().is_some() {
            return;
        }
        let (cwnd, slow_start) = (self.rate.congestion.cwnd(), self.rate.congestion.in_slow_start());
        let mss = self.mss();
        self.rate.pacer.update(cwnd, self.rtt.srtt(), slow_start, mss, now);
    }

    /// Marks what follows as limited by the application, if everything that waits has been sent and the
    /// window would take more. Call it before data is queued, before an acknowledgement, and before a timer
    /// that may send.
    #[inline]
    pub(crate) fn check_app_limited(&mut self) {
        if self.rate.delivery.is_none() || self.unsent() >= self.mss() || self.scoreboard.has_lost() {
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

    /// True if the path loses segments to a full queue, and the last round trip was as long as with one.
    pub(crate) fn is_queue_full(&self) -> bool {
        self.rtt.latest().zip(self.queued_from).is_some_and(|(rtt, from)| rtt >= from)
    }

    /// Reports to the controller what has been marked lost, in the order of sending.
    pub(crate) fn report_losses(&mut self, now: Instant) {
        let is_queued = self.is_queue_full();
        let (Some(delivery), Some(snapshots)) = (&mut self.rate.delivery, &self.snapshots) else { return };
        let mut lost = self.scoreboard.take_lost_log();
        let una = self.scoreboard.una();
        lost.sort_unstable_by_key(|(range, sent_at)| (*sent_at, range.start.since(una)));
        lost.dedup_by(|(next, next_at), (range, at)| {
            // Segments of a run, which share a transmission, are one loss.
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

    /// Reports to the controller that the originals are lost of what redundancy has repaired: the holes below
    /// what SACK had `reported` before, or one segment if none was known.
    pub(crate) fn report_repairs(&mut self, ack: &AckOutcome, reported: Option<SeqNum>, now: Instant) {
        let (mss, is_queued) = (self.mss(), self.is_queue_full());
        let (Some(delivery), Some(snapshots)) = (&mut self.rate.delivery, &self.snapshots) else { return };
        let covered = || ack.delivered.iter().filter(|one| one.range.end.le(ack.ack) && !one.retransmitted);
        let is_hole = |one: &&Delivered| reported.is_some_and(|reported| one.range.end.le(reported));
        let unknown = if covered().any(|one| is_hole(&one)) { None } else { covered().next() };
        for one in covered().filter(is_hole).chain(unknown) {
            let range = SeqRange::with_len(one.range.start, one.range.len().min(mss));
            if let Some(lost) = delivery.on_repaired(snapshots, range, one.sent_at, now) {
                self.rate.congestion.on_lost(&LostPacket { is_queued, ..lost });
            }
        }
    }

    /// True if RACK detects losses, not counting.
    pub(crate) fn uses_rack(&self) -> bool {
        #[cfg(feature = "historical")]
        if self.rfc6675.is_some() {
            return false;
        }
        true
    }

    /// When loss detection looks again at what it only suspects.
    pub(crate) fn reordering_timeout(&self) -> Option<Instant> {
        #[cfg(feature = "historical")]
        if let Some(counting) = &self.rfc6675 {
            return counting.next_timeout();
        }
        self.rack.next_timeout()
    }

    /// Returns the segments whose reordering window has passed by `now`, and what declares them lost.
    pub(crate) fn lost_at_reordering_timeout(&mut self, now: Instant) -> (RackVerdict, LossCause) {
        #[cfg(feature = "historical")]
        if let Some(counting) = &mut self.rfc6675 {
            return counting.on_timeout(&self.scoreboard);
        }
        (self.rack.on_timeout(&self.scoreboard, now), LossCause::Rack)
    }

    /// Stops the reordering timer.
    pub(crate) fn disarm_reordering(&mut self) {
        self.rack.disarm();
        #[cfg(feature = "historical")]
        if let Some(counting) = &mut self.rfc6675 {
            counting.disarm();
        }
    }

    /// True once a segment arrived after one that was sent later.
    pub(crate) fn reordering_seen(&self) -> bool {
        #[cfg(feature = "historical")]
        if let Some(counting) = &self.rfc6675 {
            return counting.reordering_seen();
        }
        self.rack.reordering_seen()
    }

    /// True if the windows take the next segment of new data, and there is one.
    pub(crate) fn may_send_new(&self, budget: &Budget) -> bool {
        let next = self.unsent().min(budget.mss);
        next > 0 && next <= budget.unpaced()
    }

    /// A burst has ended. `limited`: the congestion window or pacing ended it.
    pub(crate) fn end_burst(&mut self, limited: bool) {
        // Where the controller names a rate, that is what holds data back most of the time.
        let limited = limited && !(self.paced && self.rate.congestion.pacing_rate().is_some());
        let board = &self.scoreboard;
        let (una, nxt, pipe) = (board.una(), board.nxt(), self.rate.pipe_with(board.pipe()));
        let had_data = nxt != self.usage.burst_end() || self.unsent() > 0 || self.fin_unsent();
        let full = had_data && pipe.saturating_add(self.mss()) > self.rate.congestion.cwnd();
        self.usage.on_burst(una, nxt, limited || full);
    }

    /// The burst of which the transmission of `range`, which is new, is the last so far.
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
            left < budget.mss && self.hold.holds_partial(self.scoreboard.una(), self.queue.fin_queued());
        self.burst_push.with_segment(&pace, left > 0 && !is_held && budget.takes_behind(range.len(), left))
    }

    /// Starts the count of retries again if the peer has answered a retransmission of data beyond its window.
    /// RFC 9293 section 3.8.6: the sender "SHOULD NOT time out the connection if data beyond the right window
    /// edge is not acknowledged".
    pub(crate) fn count_answer_beyond_window(&mut self, now: Instant) {
        if self.timeouts_in_row == 0 {
            return;
        }
        let window = self.window.snd_wnd();
        if self.scoreboard.head().is_some_and(|head| window < head.range.len()) {
            self.timeouts_in_row = 0;
            self.waiting_since = Some(now);
            // The segment has reached the peer: its size is no reason to suspect the path.
            self.mtu.on_progress();
        }
    }

    /// Segments that a report of a duplicate speaks of.
    pub(crate) fn segments_of(&self, dsack: &Dsack) -> u32 {
        dsack.range.len().div_ceil(self.mss())
    }

    /// Fewer than four segments outstanding and nothing to follow (RFC 7765 section 4).
    pub(crate) fn is_thin(&self) -> bool {
        self.scoreboard.segments() < 4 && self.unsent() == 0
    }

    /// True if large segments have left `least` times, none of those outstanding has arrived, and the path
    /// has not let any through: none of this connection before, and none of others since then.
    pub(crate) fn suspects_size(&self, least: u32) -> bool {
        if !self.mtu.may_suspect() {
            return false;
        }
        let options = self.option_len;
        let (mut unanswered, mut newest) = (0_u32, Instant::ZERO);
        for record in self.scoreboard.records().filter(|r| self.mtu.is_large(r.payload(), options)) {
            if record.sacked {
                return false;
            }
            unanswered = unanswered.saturating_add(record.transmissions);
            newest = newest.max(record.sent_at);
        }
        unanswered >= least && !self.mtu.is_cleared(newest)
    }

    /// Frees what an idle sender does not need.
    pub(crate) fn release_memory(&mut self) {
        self.queue.release_memory();
        self.scoreboard.release_memory();
        self.rack.release_memory();
    }

    /// Nothing will be sent any more.
    pub(crate) fn stop(&mut self) {
        self.rto.disarm();
        self.disarm_reordering();
        self.window.disarm_persist();
        self.paced = false;
        self.held = false;
        self.hold.cork_until = None;
    }
}

/// A sender as a member of its path.
impl Sender {
    /// Puts the value of the path in place of its own, or takes it out again.
    #[inline]
    pub(crate) fn exchange_rate(&mut self, rate: &mut RateControl) {
        core::mem::swap(&mut self.rate, rate);
    }

    /// True while it has the value of its path.
    #[inline]
    pub(crate) fn is_lent(&self) -> bool {
        self.rate.others.is_some()
    }

    /// The values that the path counts of it.
    #[inline]
    pub(crate) fn member_state(&self) -> MemberState {
        let is_recovering = match self.recovery.state() {
            CongestionState::Open | CongestionState::Disorder => false,
            CongestionState::Cwr | CongestionState::Recovery | CongestionState::Loss => true,
        };
        MemberState {
            pipe: self.scoreboard.pipe(),
            is_outstanding: !self.scoreboard.is_empty(),
            is_recovering,
            wants: self.unsent() >= self.mss() || self.scoreboard.has_lost(),
        }
    }

    /// True if the window or the pacer of the path holds back what it would send.
    pub(crate) fn is_held(&self) -> bool {
        self.held || self.paced
    }

    /// True if it may ask for the window that is remembered of its path: it is alone on a path that nobody
    /// knows better.
    pub(crate) fn may_jump(&self) -> bool {
        self.rate.others.is_none_or(|others| others.may_jump)
    }

    /// True if it has nothing to send for the first time or again.
    pub(crate) fn has_sent_all(&self) -> bool {
        self.unsent() == 0 && !self.scoreboard.has_lost()
    }

    /// Smoothed round-trip time, its variation and the minimum.
    pub(crate) fn round_trip(&self) -> Option<(Micros, Micros, Micros)> {
        let rtt = &self.rtt;
        Some((rtt.srtt()?, rtt.rttvar()?, rtt.min_rtt()?))
    }

    /// Bytes that it has sent since nothing was in flight for a round trip.
    pub(crate) fn transfer_len(&self) -> u32 {
        self.scoreboard.nxt().since(self.transfer_start)
    }

    /// True if its transfer is no longer a short one.
    pub(crate) fn is_long(&self) -> bool {
        self.transfer_len() > SHORT_TRANSFER
    }

    /// It keeps its own controller while its transfer is short.
    pub(crate) fn stay_apart(&mut self) {
        self.sharing = Sharing::Apart { asks: false };
    }

    /// It keeps its own controller.
    pub(crate) fn decline_sharing(&mut self) {
        self.sharing = Sharing::Off;
    }
}

/// A connection as a member of its path.
impl Connection {
    /// Its sender, for the control of its path.
    #[inline]
    pub(crate) fn sender(&self) -> &Sender {
        &self.tx
    }

    /// Its sender, for the control of its path.
    #[inline]
    pub(crate) fn sender_mut(&mut self) -> &mut Sender {
        &mut self.tx
    }

    /// True if its handshake speaks against the path that others know: it was lost twice.
    pub(crate) fn stays_alone(&self) -> bool {
        self.handshake.syn.timeouts >= MAX_HANDSHAKE_TIMEOUTS
    }

    /// True if the stack must say whether it becomes a member.
    #[inline]
    pub(crate) fn asks_to_join(&self) -> bool {
        match self.tx.sharing {
            Sharing::Off | Sharing::Member => false,
            Sharing::Apart { asks } => (asks || self.tx.is_long()) && self.handshake.established.is_some(),
        }
    }

    /// It becomes a member. Returns its own value, which becomes that of a path without one.
    pub(crate) fn join(&mut self, is_first: bool) -> RateControl {
        self.tx.sharing = Sharing::Member;
        self.end_trust();
        if !is_first && let Some(snapshots) = &mut self.tx.snapshots {
            // They hold counters of the value that goes.
            **snapshots = Default::default();
        }
        core::mem::replace(&mut self.tx.rate, RateControl::placeholder())
    }

    /// A value for a path of which nothing is known any more.
    pub(crate) fn fresh_rate(&self, now: Instant) -> RateControl {
        let start = ControllerStart {
            now,
            mss: self.tx.mss(),
            initial_window: self.unasked_window(),
            paced: self.config.pacing.is_some(),
            seed: self.handshake.iss.0.into(),
        };
        let congestion = Controller::new(&self.config.congestion, PrrBound::Rfc9937, &start);
        RateControl::new(congestion, Pacer::new(self.config.pacing))
    }
}

/// RFC 6928: `min(10*MSS, max(2*MSS, 14600))` for ten segments, the same shape for others.
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
            (TcpConfig::default(), Host { mtu: 1500, granularity: Duration::ZERO, repairs: true });
        let mss = |peer, timestamps| {
            let mut sender = Sender::new(&config, SeqNum(0), host, false, Instant::ZERO);
            sender.on_handshake(peer, timestamps);
            sender.mss()
        };
        assert_eq!((mss(1, false), mss(1, true)), (48, 36));
        assert_eq!((mss(49, false), mss(536, false)), (49, 536));
    }

    #[test]
    fn a_search_for_the_mtu_does_not_make_less_be_announced() {
        let config = TcpConfig { mtu_probing: MtuProbing::Always, ..TcpConfig::default() };
        let host = Host { mtu: 1500, granularity: Duration::ZERO, repairs: true };
        let sender = Sender::new(&config, SeqNum(0), host, false, Instant::ZERO);
        assert_eq!((sender.advertised_mss(), sender.mss()), (1460, 1024));
    }

    #[test]
    fn a_small_window_is_pressing_only_while_something_waits_for_it() {
        let host = Host { mtu: 1500, granularity: Duration::ZERO, repairs: true };
        let mut sender = Sender::new(&TcpConfig::default(), SeqNum(0), host, false, Instant::ZERO);
        assert!(!sender.is_urgent(), "nothing is written");
        sender.queue.write(b"waits");
        assert!(sender.is_urgent());
        sender.rate.congestion.start(1_000_000, None);
        assert!(!sender.is_urgent(), "a large window sends in large pieces");
    }

    #[test]
    fn nagle_waits_for_an_unacknowledged_partial_segment_only() {
        let mut hold = Hold::default();
        assert!(hold.permits_partial(SeqNum(1), false, Instant::ZERO));
        hold.on_sent(SeqNum(101), true);
        assert!(!hold.permits_partial(SeqNum(1), false, Instant::ZERO));
        assert!(hold.permits_partial(SeqNum(1), true, Instant::ZERO), "a FIN goes at once");
        assert!(hold.permits_partial(SeqNum(101), false, Instant::ZERO));
    }

    #[test]
    fn a_cork_is_drawn_after_200_ms() {
        let mut hold = Hold { cork: true, nodelay: true, ..Hold::default() };
        assert!(!hold.permits_partial(SeqNum(1), false, Instant::ZERO));
        hold.start_cork(RTO, Instant::ZERO);
        hold.start_cork(RTO, Instant::from_millis(100));
        assert!(!hold.permits_partial(SeqNum(1), false, Instant::from_millis(199)));
        assert!(hold.permits_partial(SeqNum(1), false, Instant::from_millis(200)));
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
    fn the_window_counts_as_used_when_it_ended_a_burst_or_half_of_it_flew() {
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

    /// Linux: tcp_cwnd_validate runs where data is waiting, or left.
    #[test]
    fn a_window_that_was_the_limit_remains_it_while_nothing_is_sent() {
        let at = |n: u32| SeqNum(n);
        let mut usage = usage();
        usage.on_burst(at(0), at(10_000), true);
        usage.on_burst(at(1_000), at(11_000), false);
        usage.on_burst(at(10_000), at(11_000), false);
        assert!(usage.is_limited(100_000, false), "an acknowledgement without new data ends no round");
        usage.on_burst(at(10_000), at(12_000), false);
        assert!(!usage.is_limited(100_000, false));
    }

    #[test]
    fn new_data_earns_its_percentage_of_redundancy() {
        let host = Host { mtu: 1500, granularity: Duration::ZERO, repairs: true };
        let mut sender = Sender::new(&TcpConfig::default(), SeqNum(0), host, false, Instant::ZERO);
        sender.earn_redundancy(1_000, Some(25));
        assert_eq!(sender.redundancy_left(), u32::MAX, "nothing limits it yet");
        sender.allow_redundancy(100);
        sender.earn_redundancy(1_000, Some(25));
        sender.earn_redundancy(1_000, None);
        assert_eq!(sender.redundancy_left(), 350);
        sender.spend_redundancy(300);
        sender.spend_redundancy(300);
        assert_eq!(sender.redundancy_left(), 0);
    }
}

//! Opening a connection: SYN-SENT and SYN-RECEIVED (RFC 9293 sections 3.5 and 3.10.7.3). [`Handshake`] owns
//! the initial sequence numbers of both ends, the negotiated options, and the state of our SYN or SYN-ACK.
//! [`crate::connection::fast_open`] processes the part of a SYN-ACK that concerns Fast Open.

use alloc::boxed::Box;
use alloc::sync::Arc;

use brisk_wire::{Flags, Options, SeqNum, Timestamps as TimestampOption};

use crate::config::{EcnMode, TcpConfig};
use crate::congestion::sample::RtoEvent;
use crate::connection::ecn::EcnState;
use crate::connection::gentle::plain_copy::PlainCopy;
use crate::connection::reactive::ProbeTimer;
use crate::connection::state::{Input, State};
use crate::connection::timer::Keepalive;
use crate::connection::{Connection, Env, Events, Host, Secrets, SynAnswer};
use crate::error::CloseReason;
use crate::fast_open::FastOpenConnect;
use crate::fast_open::client::{OpenAttempt, fills_syn};
use crate::four_tuple::FourTuple;
use crate::outcome::Arrived;
use crate::send::rto::Rto;
use crate::send::rtt::RttEstimator;
use crate::time::{Duration, Instant, Micros, TIMESTAMP_TICK};

/// MSS that RFC 9293 section 3.7.1 assumes when the peer names none: 536 for IPv4, 1220 for IPv6.
const DEFAULT_MSS: [u16; 2] = [536, 1220];

/// Limit of early retransmissions of a SYN or SYN-ACK on a known path
/// ([`crate::config::TcpConfig::handshake_timers`]).
const EARLY_RETRIES: u32 = 3;
/// Minimum wait of the early timer.
const MIN_EARLY_WAIT: Duration = Duration::from_millis(50);

/// Number of timeouts of a SYN or SYN-ACK from which a connection does not become a member of its path.
const MAX_TIMEOUTS: u32 = 2;

/// State of the handshake, and its results.
#[derive(Debug)]
pub(crate) struct Handshake {
    pub(crate) iss: SeqNum,
    /// The peer's initial sequence number, once its SYN has arrived.
    pub(crate) irs: SeqNum,
    /// True for an active open.
    pub(crate) active: bool,
    pub(crate) opened: Instant,
    pub(crate) established: Option<Instant>,
    pub(crate) peer_mss: Option<u16>,
    pub(crate) agreed: Negotiated,
    /// Our SYN or SYN-ACK.
    pub(crate) syn: OwnSyn,
}

/// Result of the negotiation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Negotiated {
    /// Timestamps are on every segment.
    pub(crate) timestamps: bool,
    /// SACK is used in both directions.
    pub(crate) sack: bool,
    /// Both ends scale their windows.
    pub(crate) window_scaling: bool,
}

/// Our SYN or SYN-ACK.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct OwnSyn {
    /// True if it must be sent (again).
    pub(crate) due: bool,
    /// Number of times it was sent, including answers to repeated SYNs.
    pub(crate) sent: u32,
    /// Number of its timeouts; the limit of retries counts these.
    pub(crate) timeouts: u32,
    /// Number of timeouts of the early timer.
    early: u32,
    /// Timeout of the early timer; `None` if the path's round-trip time is unknown, the timer is off, or it
    /// has ended.
    pub(crate) early_wait: Option<Duration>,
    /// Time at which it last left.
    pub(crate) last_sent: Option<Instant>,
    pub(crate) copy: PlainCopy,
    /// Number of SYN-ACK timeouts after which an ACK without data may complete the handshake; 0 if none was
    /// deferred.
    deferred: u8,
}

impl OwnSyn {
    /// Makes the segment due on a new path, where the timeouts of the earlier path do not count.
    pub(super) fn begin_again(&mut self) {
        (self.due, self.early_wait) = (true, None);
        self.timeouts = self.timeouts.min(self.deferred.into());
    }
}

/// Action after the timer of a SYN or SYN-ACK has fired.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SynTimeout {
    /// Give up: it was sent often enough.
    GiveUp,
    /// Send it again, by the early timer.
    Early,
    /// Wait for the peer, which has acknowledged it.
    Deferred,
    /// Send it again.
    Again,
}

/// Parameters of the SYN that a SYN cookie returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SynCookieParams {
    /// MSS of the peer, rounded down to what the cookie can express.
    pub(crate) mss: u16,
    /// Window scale of the peer, if it offered one.
    pub(crate) window_scale: Option<u8>,
    /// The peer permits SACK.
    pub(crate) sack: bool,
    /// The peer uses timestamps.
    pub(crate) timestamps: bool,
    /// Both ends agreed on ECN.
    pub(crate) ecn: bool,
}

impl Negotiated {
    /// Returns the features that our SYN offers.
    fn offered(config: &TcpConfig) -> Self {
        Negotiated { timestamps: config.timestamps, sack: config.sack, window_scaling: config.window_scaling }
    }

    /// Returns the features that both ends use if the peer's SYN or SYN-ACK has these options.
    fn with(self, peer: &Options) -> Self {
        Negotiated {
            timestamps: self.timestamps && peer.timestamps.is_some(),
            sack: self.sack && peer.sack_permitted,
            window_scaling: self.window_scaling && peer.window_scale.is_some(),
        }
    }
}

impl Handshake {
    pub(crate) fn new(config: &TcpConfig, iss: SeqNum, now: Instant) -> Self {
        let copy = config.handshake_copies.map_or(PlainCopy::Off, |copies| PlainCopy::After(copies.gap));
        Handshake {
            iss,
            irs: SeqNum(0),
            active: false,
            opened: now,
            established: None,
            peer_mss: None,
            agreed: Negotiated::default(),
            syn: OwnSyn { copy, ..OwnSyn::default() },
        }
    }

    #[inline]
    pub(crate) fn is_complete(&self) -> bool {
        self.established.is_some()
    }

    fn on_peer_syn(&mut self, syn: &Arrived<'_>, config: &TcpConfig) {
        self.irs = syn.seq;
        self.agreed = Negotiated::offered(config).with(syn.options);
        self.peer_mss = syn.options.mss.filter(|&mss| mss > 0);
    }

    /// Records that our SYN or SYN-ACK left. Returns true if it was a repetition.
    pub(crate) fn on_syn_sent(&mut self, now: Instant) -> bool {
        let again = self.syn.sent > 0;
        self.syn.due = false;
        self.syn.sent += 1;
        self.syn.last_sent = Some(now);
        again
    }

    /// Processes a timeout of our SYN or SYN-ACK, with at most `retries` retransmissions. The early timer
    /// applies if `early` is true.
    fn on_timeout(&mut self, retries: u32, early: bool) -> SynTimeout {
        let syn = &mut self.syn;
        if syn.timeouts >= retries.max(syn.deferred.into()) {
            return SynTimeout::GiveUp;
        }
        if early && syn.early_wait.is_some() {
            syn.due = true;
            return SynTimeout::Early;
        }
        syn.timeouts += 1;
        if syn.timeouts < syn.deferred.into() {
            return SynTimeout::Deferred;
        }
        syn.copy.cancel();
        syn.due = true;
        SynTimeout::Again
    }

    /// Backs off the early timer. Its timeout doubles like any other (RFC 6298 section 5.5), but does not
    /// count as a retry. The early timer ends when the ordinary schedule would fire sooner, or after the last
    /// of the early retries.
    fn back_off_early(&mut self, rto: &mut Rto, rtt: &RttEstimator) {
        self.syn.early += 1;
        rto.on_expire();
        let is_long = rto.current(self.timer_base(rtt)) >= rtt.rto_base();
        if self.syn.early >= EARLY_RETRIES || is_long {
            self.syn.early_wait = None;
            rto.reset_backoff();
        }
    }

    /// Returns the time since our last SYN or SYN-ACK left, rounded up to the granularity of an echoed
    /// timestamp.
    pub(crate) fn since_last_syn(&self, now: Instant) -> Micros {
        self.syn.last_sent.map_or(Micros::ZERO, |at| Micros::between(at, now) + TIMESTAMP_TICK)
    }

    /// True if our SYN-ACK was repeated after `sent_at`. The client may have lacked a SYN-ACK until then, and
    /// cannot acknowledge data without one.
    pub(super) fn repeated_syn_ack_since(&self, sent_at: Instant) -> bool {
        !self.active && self.syn.sent > 1 && self.syn.last_sent.is_some_and(|syn_ack| sent_at < syn_ack)
    }

    /// True for a repetition of the SYN-ACK that was answered before.
    pub(crate) fn is_syn_ack_again(&self, segment: &Arrived<'_>) -> bool {
        segment.flags.contains(Flags::SYN | Flags::ACK) && segment.seq == self.irs
    }

    /// Returns the timeout before backoff: the early timer's, while it applies.
    #[inline]
    pub(super) fn timer_base(&self, rtt: &RttEstimator) -> Micros {
        self.syn.early_wait.map_or(rtt.rto_base(), Micros::from)
    }

    /// Returns the number of our SYNs or SYN-ACKs that were not answered in time.
    pub(crate) fn unanswered(&self) -> u32 {
        self.syn.timeouts + self.syn.early
    }

    /// True if the handshake timed out so often that the connection must not become a member of its path.
    pub(crate) fn doubts_path(&self) -> bool {
        self.syn.timeouts >= MAX_TIMEOUTS
    }
}

/// Beginning.
impl Connection {
    /// Starts an active open: the SYN is due at once.
    pub(crate) fn connect(
        tuple: FourTuple,
        config: &Arc<TcpConfig>,
        secrets: Secrets,
        host: Host,
        now: Instant,
    ) -> Box<Self> {
        let mut connection = Connection::new(tuple, config, secrets, host, now);
        connection.enter(State::SynSent);
        connection.handshake.active = true;
        connection.handshake.syn.due = true;
        connection
    }

    /// Starts a passive open: `syn` arrived at a listener; the SYN-ACK is due at once.
    pub(crate) fn accept(
        tuple: FourTuple,
        config: &Arc<TcpConfig>,
        secrets: Secrets,
        host: Host,
        syn: &Arrived<'_>,
        now: Instant,
    ) -> Box<Self> {
        let mut connection = Connection::new(tuple, config, secrets, host, now);
        connection.enter(State::SynReceived);
        connection.ecn = EcnState::new(config.ecn != EcnMode::Off);
        connection.ecn.on_syn(syn.flags);
        connection.learn_peer(syn, now);
        connection.handshake.syn.due = true;
        connection.counters.segments_in += 1;
        connection
    }

    /// Creates a connection from a SYN cookie: `ack` completes the handshake.
    pub(crate) fn from_syn_cookie(
        tuple: FourTuple,
        config: &Arc<TcpConfig>,
        secrets: Secrets,
        host: Host,
        ack: &Arrived<'_>,
        cookie: SynCookieParams,
        now: Instant,
        env: &mut Env<'_>,
    ) -> Box<Self> {
        let mut connection = Connection::new(tuple, config, secrets, host, now);
        connection.enter(State::SynReceived);
        let syn_options = Options {
            mss: Some(cookie.mss),
            window_scale: cookie.window_scale,
            sack_permitted: cookie.sack,
            timestamps: if cookie.timestamps { ack.options.timestamps } else { None },
            ..Options::default()
        };
        let syn_flags = if cookie.ecn { Flags::SYN | Flags::ECE | Flags::CWR } else { Flags::SYN };
        let syn = Arrived { seq: ack.seq - 1, flags: syn_flags, options: &syn_options, payload: &[], ..*ack };
        connection.ecn = EcnState::new(config.ecn != EcnMode::Off);
        connection.ecn.on_syn(syn_flags);
        connection.learn_peer(&syn, now);
        // The stack sent the SYN-ACK; the scoreboard must record that it is outstanding.
        connection.account_syn(now);
        // The stack handles the events when it inserts the connection.
        connection.events = connection.on_segment(ack, now, env).events;
        connection
    }

    /// Starts an active open with Fast Open. Must be called before any segment is sent.
    pub(crate) fn open_fast(&mut self, attempt: OpenAttempt, connect: FastOpenConnect) {
        self.handshake.syn.due = !connect.defer;
        let insurance = PlainCopy::of(&attempt, &connect);
        if self.config.handshake_copies.is_none() || (self.gentle.plans() && insurance != PlainCopy::Off) {
            self.handshake.syn.copy = insurance;
        }
        self.fast_open.start_client(attempt, connect, self.handshake.iss);
    }

    /// Sends a deferred SYN: at the first write or at a close.
    pub(crate) fn send_deferred_syn(&mut self) {
        if self.fast_open.release_syn() {
            self.handshake.syn.due = true;
        }
    }

    /// Starts a passive open with Fast Open after the stack's decision about the SYN. Takes the SYN's data if
    /// the decision accepts it.
    pub(crate) fn start_fast_open_server(&mut self, answer: SynAnswer, syn: &Arrived<'_>, now: Instant) {
        let accepted = answer.accepted;
        self.fast_open.start_server(answer, syn.seq + 1);
        if accepted {
            // Our data may leave before the peer announces another window.
            self.tx.window.count_offer();
        }
        if accepted && !syn.payload.is_empty() {
            let flags = syn.flags.without(Flags::SYN | Flags::ECE | Flags::CWR);
            self.take_payload(&Arrived { seq: syn.seq + 1, flags, ..*syn }, now);
            self.rx.ack.on_syn_data();
            self.fast_open.syn_data_taken = true;
            let first_end = self.rx.rcv_nxt();
            if let Some(server) = self.fast_open.server_mut() {
                server.on_syn_data(first_end);
            }
        }
    }

    /// Returns the options of our SYN, or of our SYN-ACK, which has only options that the peer's SYN offered.
    pub(crate) fn syn_options(&self, now: Instant) -> Options {
        let answers = self.state == State::SynReceived;
        let offered = if answers { self.handshake.agreed } else { Negotiated::offered(&self.config) };
        // Fast Open: a scaled window in addition to the 16 bits of the SYN. The peer sends the response to
        // our data before it receives another segment of ours. The SYN-ACK answers with the same option: the
        // rest of a long request need not wait for an acknowledgement.
        let early_window = self.rx.window.early_shift().filter(|_| {
            let client = self.fast_open.client();
            let opens = client.is_some_and(|client| client.connect.early_window)
                && self.config.path_start
                && !self.fast_open.syn_data(self.handshake.iss, &self.tx).is_empty();
            opens || answers && self.rx.window.is_early()
        });
        Options {
            mss: Some(self.tx.advertised_mss()),
            sack_permitted: offered.sack,
            timestamps: offered.timestamps.then(|| self.rx.timestamps.option(now)),
            window_scale: offered.window_scaling.then(|| self.rx.window.offered_scale()),
            early_window,
            ..Options::default()
        }
    }

    /// Returns the options of the next SYN or SYN-ACK, without the option of Corrective and Proactive.
    pub(crate) fn syn_options_with_fast_open(&self, now: Instant) -> Options {
        Options { fast_open: self.fast_open.syn_option(self.handshake.syn.sent), ..self.syn_options(now) }
    }
}

/// The peer's SYN or SYN-ACK, and the end of the handshake.
impl Connection {
    /// Takes over the peer's parameters from its SYN or SYN-ACK.
    pub(crate) fn learn_peer(&mut self, syn: &Arrived<'_>, now: Instant) {
        self.handshake.on_peer_syn(syn, &self.config);
        let agreed = self.handshake.agreed;
        let takes_early_window = self.state == State::SynReceived && self.config.path_start;
        let early_window = syn.options.early_window.filter(|_| takes_early_window);
        // Only a request that fills its SYN goes on after it.
        let is_full = self.handshake.peer_mss.is_some_and(|mss| fills_syn(syn.payload.len(), mss));
        if let Some(shift) = self.rx.window.early_shift().filter(|_| early_window.is_some() && is_full) {
            self.rx.window.announce_early(shift);
        }
        self.rx.start(syn.seq, now);
        let shift = syn.options.window_scale.filter(|_| agreed.window_scaling).unwrap_or(0);
        self.tx.window.start(syn.seq, self.handshake.iss, syn.window);
        self.tx.window.set_scale(shift);
        // Fast Open: a window larger than the 16 bits of the SYN can express.
        if let Some(shift) = early_window {
            self.tx.window.widen(shift, 0);
        }
        if agreed.window_scaling {
            self.rx.window.agree_scaling();
        }
        self.tx.scoreboard.set_sack(agreed.sack);
        self.tx.recovery.set_sack(agreed.sack);
        if let Some(TimestampOption { value, .. }) = syn.options.timestamps.filter(|_| agreed.timestamps) {
            self.rx.timestamps.on_syn(value, now);
        }
        let default = DEFAULT_MSS[usize::from(self.tuple.is_ipv6())];
        self.tx.on_handshake(self.handshake.peer_mss.unwrap_or(default), agreed.timestamps);
        self.with_gentle(|gentle, parts| gentle.on_syn(syn, parts));
        self.adopt_mss();
        self.rx.ack.on_peer_mss(self.tx.mss());
        self.path.start_window(&self.config, &mut self.tx);
    }

    /// Sets the first flight to one segment if our SYN or SYN-ACK was retransmitted more than once. RFC 5681
    /// section 3.1: "if the SYN or SYN/ACK is lost, the initial window [...] MUST be one segment"; RFC 6928
    /// section 2 recommends to "refrain from resetting the initial window to 1 segment, unless there have
    /// been more than one SYN or SYN/ACK retransmissions or true loss detection has been made". If the answer
    /// echoes an earlier SYN, the timer was too short and nothing was lost.
    pub(crate) fn reduce_initial_window(&mut self, segment: &Arrived<'_>, now: Instant) {
        // The plain SYN after one with data does not count, because it is a response to middleboxes. Early
        // retries do not count, because they are guesses.
        let repeated = self.handshake.syn.timeouts.saturating_sub(self.fast_open.syns_before_plain());
        let since = self.handshake.since_last_syn(now);
        if repeated < 2 || self.echo_rtt(segment, now).is_some_and(|echoed| echoed > since) {
            return;
        }
        self.path.end_trust(&mut self.tx);
        let window = self.tx.mss().min(self.tx.rate.congestion.cwnd());
        self.tx.rate.congestion.start(window);
    }

    /// Passes the new segment size to the parts that depend on it.
    pub(crate) fn adopt_mss(&mut self) {
        let mss = self.tx.mss();
        self.tx.rate.congestion.set_mss(mss);
        self.tx.rate.pacer.set_mss(mss);
        self.counters.observe(crate::connection::observation::Observation::MssChanged { mss });
    }

    pub(super) fn on_syn_ack(&mut self, segment: &Arrived<'_>, now: Instant) {
        self.ecn.on_syn_ack(segment.flags);
        self.learn_peer(segment, now);
        if self.tx.writer_waits {
            self.rx.ack.wait_for_write(now);
        } else {
            self.rx.ack.force();
        }
        self.fast_open.rewind_syn_data(segment.ack, self.handshake.iss, &mut self.tx.scoreboard);
        self.acknowledge(segment, now);
        if let Some(shift) = segment.options.early_window.filter(|_| self.rx.window.is_early()) {
            self.tx.window.widen(shift, segment.ack.since(self.handshake.iss + 1));
            self.tx.window.count_offer();
        }
        // A SYN-ACK may echo a SYN before the last, so the measured time may include a timer.
        let since = self.handshake.since_last_syn(now);
        self.path.rtt_in_doubt = self.tx.rtt.latest().is_some_and(|rtt| rtt > since);
        self.path.suspect_longer(since.into());
        let echoed = self.echo_rtt(segment, now);
        if self.fast_open.classify_syn_ack(segment, echoed, &self.handshake, &self.config, now) {
            // The SYN and its accepted data are one segment, which the scoreboard stores as two.
            self.counters.delivered_segments = self.counters.delivered_segments.saturating_sub(1);
        }
        self.reduce_initial_window(segment, now);
        self.establish(now);
        // Data or a FIN on the SYN-ACK is accepted like any other.
        if !segment.payload.is_empty() || segment.flags.contains(Flags::FIN) {
            let rest = Arrived { seq: segment.seq + 1, flags: segment.flags.without(Flags::SYN), ..*segment };
            self.take_payload(&rest, now);
        }
    }

    /// True if the SYN-ACK echoes one of our timestamps (RFC 7323) or zero, or if one side uses no
    /// timestamps. Some SYN proxies and stacks echo zero (Linux accepts it too).
    pub(super) fn echoes_our_timestamp(&self, segment: &Arrived<'_>, now: Instant) -> bool {
        let Some(timestamps) = segment.options.timestamps.filter(|_| self.config.timestamps) else {
            return true;
        };
        timestamps.echo == 0 || self.rx.timestamps.rtt(timestamps.echo, self.handshake.opened, now).is_some()
    }

    /// True if an ACK without data must not complete a passive open yet: the timer of the SYN-ACK has fired
    /// less than `timeouts` times.
    pub(crate) fn defers_handshake(&mut self, segment: &Arrived<'_>, timeouts: u8) -> bool {
        let completes =
            segment.is_empty() && segment.ack == self.tx.scoreboard.nxt() && segment.seq == self.rx.rcv_nxt();
        let defers = completes && self.handshake.syn.timeouts < u32::from(timeouts);
        if defers {
            self.handshake.syn.deferred = timeouts;
        }
        defers
    }

    pub(crate) fn establish(&mut self, now: Instant) {
        // A close that was asked for during the handshake takes effect now.
        let closing = self.tx.queue.fin_queued();
        self.enter(self.state.after(Input::SynAcked));
        if closing {
            self.enter(self.state.after(Input::Close));
        }
        self.handshake.established = Some(now);
        self.handshake.syn.due = false;
        self.handshake.syn.early_wait = None;
        self.handshake.syn.copy.cancel();
        if self.handshake.agreed.sack {
            self.reactive = ProbeTimer::new(&self.config.mechanisms.reactive);
        }
        // RFC 6298 section 5.7: "If the timer expires awaiting the ACK of a SYN segment and the TCP
        // implementation is using an RTO less than 3 seconds, the RTO MUST be re-initialized to 3
        // seconds when data transmission begins".
        let before_standard = self.fast_open.syns_before_plain() + self.handshake.syn.early;
        if self.handshake.syn.sent > 1 + before_standard && self.tx.rtt.srtt().is_none() {
            self.tx.rtt.set_initial_rto(Micros::from_millis(3000));
        }
        if self.tx.rtt.srtt().is_none() {
            self.tx.rtt.trust_prior();
        }
        self.tx.rto.reset_backoff();
        self.tx.timeouts_in_row = 0;
        self.outbox.reset_interval();
        self.keepalive = self.config.keepalive.map(|config| Box::new(Keepalive::new(config, now)));
        if !self.fast_open.is_opened_by_syn() {
            self.events.insert(Events::CONNECTED | Events::WRITABLE);
        }
    }
}

/// The timer of our SYN or SYN-ACK.
impl Connection {
    /// Processes a timeout in SYN-SENT or SYN-RECEIVED, as in RFC 6298 section 5.4 to 5.7.
    pub(super) fn on_handshake_timeout(&mut self, now: Instant) {
        let opens = self.state == State::SynSent;
        let retries = if opens { self.config.syn_retries } else { self.config.synack_retries };
        match self.handshake.on_timeout(retries, !self.fast_open.opens_fast()) {
            SynTimeout::GiveUp => self.give_up(CloseReason::HandshakeTimeout),
            SynTimeout::Early => {
                self.reduce_for_lost_syn_ack(now);
                self.handshake.back_off_early(&mut self.tx.rto, &self.tx.rtt);
            }
            SynTimeout::Deferred => {
                // Nothing is sent now: the last deferred timeout sends a SYN-ACK, and the peer's ACK of it
                // completes the handshake.
                self.tx.rto.on_expire();
                self.tx.rto.arm(now, self.tx.rtt.rto_base());
            }
            SynTimeout::Again => {
                self.counters.handshake_timeouts += 1;
                let Handshake { syn, .. } = &mut self.handshake;
                if self.fast_open.fall_back_to_plain_syn(syn, &mut self.tx.rto) {
                    return;
                }
                self.reduce_for_lost_syn_ack(now);
                let linear = opens && self.handshake.syn.timeouts <= self.config.syn_linear_retries;
                if linear { self.tx.rto.on_expire_linear() } else { self.tx.rto.on_expire() }
            }
        }
    }

    /// Reduces the window for a timeout of the SYN-ACK, as after a retransmission timeout, because data that
    /// followed it may be lost too. There is no reduction if a later SYN-ACK has answered a repeated SYN,
    /// because that SYN-ACK may still be acknowledged.
    pub(crate) fn reduce_for_lost_syn_ack(&mut self, now: Instant) {
        // Compares whole microseconds, in which timers fire.
        let wait = self.handshake.timer_base(&self.tx.rtt);
        if self.handshake.syn.last_sent.is_some_and(|at| Micros::between(at, now) < wait) {
            return;
        }
        if self.fast_open.on_syn_ack_timeout() {
            // No data is known to be still in flight.
            self.tx.rate.congestion.on_rto(&RtoEvent { now, pipe: 0, first: true, max_ssthresh: None });
            self.counters.reductions += 1;
        }
    }

    /// Extends a handshake timer if other connections of the path have since measured a longer round-trip
    /// time (`srtt`) than the timer is based on. Connections that open together queue behind each other, and
    /// all but the first would otherwise time out.
    pub(crate) fn on_longer_path(&mut self, srtt: Duration) {
        let early = self.handshake.syn.early_wait.zip(early_wait(&self.config, srtt, &self.tx.rtt));
        let longer = early.map(|(known, now)| now.saturating_sub(known));
        self.handshake.syn.early_wait = early.map(|(known, now)| known.max(now));
        let longer = match self.fast_open.client_mut() {
            Some(client) if client.is_fast() => client.on_longer_path(srtt),
            Some(_) | None => longer,
        };
        self.tx.rto.postpone(self.tx.rto.current(longer.unwrap_or_default().into()).into());
    }
}

/// Returns the early timer of the handshake, if the configuration asks for one.
pub(super) fn early_wait(config: &TcpConfig, srtt: Duration, rtt: &RttEstimator) -> Option<Duration> {
    let wait = srtt.saturating_mul(3) / 2;
    let wait = wait.max(MIN_EARLY_WAIT).min(rtt.rto_base().into());
    config.handshake_timers.then_some(wait)
}

/// Returns the minimum time between two answers to a repeated SYN or SYN-ACK. It is shorter if the timers
/// of both ends may follow the known path.
pub(super) fn repeat_interval(config: &TcpConfig) -> Duration {
    let interval = config.challenge_interval;
    if config.handshake_timers { interval.min(MIN_EARLY_WAIT) } else { interval }
}

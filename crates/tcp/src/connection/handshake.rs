//! Opening a connection: SYN-SENT and SYN-RECEIVED (RFC 9293 sections 3.5 and 3.10.7.3), and what is
//! agreed there.

use alloc::boxed::Box;
use alloc::sync::Arc;

use brisk_wire::{Flags, Options, Timestamps as TimestampOption};

use crate::config::{EcnMode, TcpConfig};
use crate::connection::control::{AnswerInterval, Events};
use crate::connection::ecn::EcnState;
use crate::connection::keepalive::Keepalive;
use crate::connection::reactive::ProbeTimer;
use crate::connection::sender::HandshakeTimer;
use crate::connection::state::{Input, State};
use crate::connection::{Connection, Env, Host, Place, Secrets};
use crate::four_tuple::FourTuple;
use crate::outcome::Arrived;
use crate::time::{Duration, Instant, Micros};

/// The fastest tick of a timestamp clock: closer times cannot be told apart by an echo.
const TIMESTAMP_TICK: Duration = Duration::from_millis(1);
/// MSS that RFC 9293 section 3.7.1 assumes when the peer names none: 536 for IPv4, 1220 for IPv6.
const DEFAULT_MSS: [u16; 2] = [536, 1220];

/// What both ends agreed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Negotiated {
    /// Timestamps are on every segment.
    pub(crate) timestamps: bool,
    /// SACK is used in both directions.
    pub(crate) sack: bool,
    /// Both ends scale their windows.
    pub(crate) window_scaling: bool,
}

/// What a SYN cookie brings back of the SYN that was not kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CookieParams {
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

impl Connection {
    /// A segment without data that would complete the handshake of a passive open does not: the SYN-ACK's timer has fired
    /// less than `timeouts` times.
    pub(crate) fn defers_handshake(&mut self, segment: &Arrived<'_>, timeouts: u8) -> bool {
        let completes =
            segment.is_empty() && segment.ack == self.tx.scoreboard.nxt() && segment.seq == self.rx.rcv_nxt();
        let defers = completes && self.tx.handshake.timeouts < u32::from(timeouts);
        if defers {
            self.tx.handshake.deferred = timeouts;
        }
        defers
    }

    /// An active open: the SYN is due at once.
    pub(crate) fn connect(
        place: Place,
        tuple: FourTuple,
        config: &Arc<TcpConfig>,
        secrets: Secrets,
        host: Host,
        now: Instant,
    ) -> Box<Self> {
        let mut connection = Connection::new(place, tuple, config, secrets, host, now);
        connection.enter(State::SynSent);
        connection.is_active = true;
        connection.tx.handshake.due = true;
        connection
    }

    /// A passive open: `syn` arrived at a listener; the SYN-ACK is due at once.
    pub(crate) fn accept(
        place: Place,
        tuple: FourTuple,
        config: &Arc<TcpConfig>,
        secrets: Secrets,
        host: Host,
        syn: &Arrived<'_>,
        now: Instant,
    ) -> Box<Self> {
        let mut connection = Connection::new(place, tuple, config, secrets, host, now);
        connection.enter(State::SynReceived);
        connection.ecn = EcnState::new(config.ecn != EcnMode::Off);
        connection.ecn.on_syn(syn.flags);
        connection.learn_peer(syn, now);
        connection.tx.handshake.due = true;
        connection.counters.segments_in += 1;
        connection
    }

    /// A passive open whose SYN was answered by a cookie: `ack` completes the handshake.
    pub(crate) fn from_cookie(
        tuple: FourTuple,
        config: &Arc<TcpConfig>,
        secrets: Secrets,
        host: Host,
        ack: &Arrived<'_>,
        cookie: CookieParams,
        now: Instant,
        env: &mut Env<'_>,
    ) -> Box<Self> {
        let mut connection = Connection::new(Place::default(), tuple, config, secrets, host, now);
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
        // The SYN-ACK was sent by the stack; the scoreboard must know that it is outstanding.
        connection.account_syn(now);
        // The stack hears of the events when it takes the connection in.
        connection.events = connection.on_segment(ack, now, env).events;
        connection
    }

    /// Takes over what a SYN or SYN-ACK says of its sender.
    pub(crate) fn learn_peer(&mut self, syn: &Arrived<'_>, now: Instant) {
        let options = syn.options;
        self.rx.start(syn.seq, now);
        self.irs = syn.seq;
        self.negotiated = Negotiated {
            timestamps: self.config.timestamps && options.timestamps.is_some(),
            sack: self.config.sack && options.sack_permitted,
            window_scaling: self.config.window_scaling && options.window_scale.is_some(),
        };
        let shift = options.window_scale.filter(|_| self.negotiated.window_scaling).unwrap_or(0);
        self.tx.window.start(syn.seq, self.secrets.iss, syn.window);
        self.tx.window.set_scale(shift);
        if self.negotiated.window_scaling {
            self.rx.window.agree_scaling();
        }
        self.tx.scoreboard.set_sack(self.negotiated.sack);
        self.tx.recovery.set_sack(self.negotiated.sack);
        if let Some(TimestampOption { value, .. }) = options.timestamps.filter(|_| self.negotiated.timestamps)
        {
            self.rx.timestamps.on_syn(value, now);
        }
        let default = DEFAULT_MSS[usize::from(self.tuple.remote.is_ipv6())];
        self.peer_mss = options.mss.filter(|&mss| mss > 0);
        self.tx.on_handshake(self.peer_mss.unwrap_or(default), self.negotiated.timestamps);
        self.with_gentle(|gentle, parts| gentle.on_syn(syn, parts));
        self.adopt_mss();
        self.rx.ack.on_peer_mss(self.tx.mss());
        self.start_window();
    }

    /// Tells the parts that depend on it how large a segment is now.
    pub(crate) fn adopt_mss(&mut self) {
        let mss = self.tx.mss();
        self.tx.rate.congestion.set_mss(mss);
        self.tx.rate.pacer.set_mss(mss);
        self.probe(crate::event::Probe::MssChanged { mss });
    }

    /// The peer answered our SYN.
    pub(super) fn on_syn_ack(&mut self, segment: &Arrived<'_>, now: Instant) {
        self.ecn.on_syn_ack(segment.flags);
        self.learn_peer(segment, now);
        if self.tx.writer_waits {
            self.rx.ack.wait_for_write(now);
        } else {
            self.rx.ack.force();
        }
        self.rewind_syn_data(segment.ack);
        self.acknowledge(segment, now);
        self.doubt_handshake_rtt(now);
        self.judge_syn_ack(segment, now);
        self.judge_handshake_losses(segment, now);
        self.establish(now);
        // Data or a FIN on the SYN-ACK is accepted like any other.
        if !segment.payload.is_empty() || segment.flags.contains(Flags::FIN) {
            let rest = Arrived { seq: segment.seq + 1, flags: segment.flags.without(Flags::SYN), ..*segment };
            self.take_payload(&rest, now);
        }
    }

    /// A SYN-ACK that was lost and sent again echoes the first SYN, so that the measured time has the timer
    /// of the second in it.
    fn doubt_handshake_rtt(&mut self, now: Instant) {
        let HandshakeTimer { sent, last_sent, .. } = self.tx.handshake;
        let since = last_sent.map_or(Duration::ZERO, |at| now.saturating_since(at) + TIMESTAMP_TICK);
        self.handshake_rtt_in_doubt =
            sent > 1 && self.tx.rtt.srtt().is_some_and(|srtt| Duration::from(srtt) > since);
        self.suspect_longer_path(since);
    }

    /// RFC 7323: timestamps that we offered and that come back must be ones that we sent. Some SYN proxies
    /// and stacks echo nothing: their SYN-ACK has zero in place of an echo (Linux accepts it too).
    pub(super) fn echoes_our_timestamp(&self, segment: &Arrived<'_>, now: Instant) -> bool {
        let Some(timestamps) = segment.options.timestamps.filter(|_| self.config.timestamps) else {
            return true;
        };
        timestamps.echo == 0 || self.rx.timestamps.rtt(timestamps.echo, self.opened, now).is_some()
    }

    /// The handshake is complete.
    pub(crate) fn establish(&mut self, now: Instant) {
        // A close that was asked for during the handshake takes effect now.
        let closing = self.tx.queue.fin_queued();
        self.enter(self.state.after(Input::SynAcked));
        if closing {
            self.enter(self.state.after(Input::Close));
        }
        self.established = Some(now);
        self.tx.handshake.due = false;
        if self.negotiated.sack {
            self.reactive = ProbeTimer::new(&self.config.mechanisms.reactive);
        }
        // RFC 6298 section 5.7: "If the timer expires awaiting the ACK of a SYN segment and the TCP
        // implementation is using an RTO less than 3 seconds, the RTO MUST be re-initialized to 3
        // seconds when data transmission begins".
        let before_standard = self.syns_before_plain() + self.tx.handshake.early;
        if self.tx.handshake.sent > 1 + before_standard && self.tx.rtt.srtt().is_none() {
            self.tx.rtt.set_initial_rto(Micros::from_millis(3000));
        }
        self.trust_known_rtt();
        self.tx.rto.reset_backoff();
        self.tx.timeouts_in_row = 0;
        self.answers = AnswerInterval::default();
        self.keepalive = self.config.keepalive.map(|config| Box::new(Keepalive::new(config, now)));
        if !self.is_opened_by_syn() {
            self.events.insert(Events::CONNECTED | Events::WRITABLE);
        }
    }

    /// The options of our SYN, or of our SYN-ACK: there only what the peer's SYN offered too.
    pub(crate) fn syn_options(&self, now: Instant) -> Options {
        let offered = if self.state == State::SynReceived {
            self.negotiated
        } else {
            Negotiated {
                timestamps: self.config.timestamps,
                sack: self.config.sack,
                window_scaling: self.config.window_scaling,
            }
        };
        Options {
            mss: Some(self.tx.advertised_mss()),
            sack_permitted: offered.sack,
            timestamps: offered.timestamps.then(|| self.rx.timestamps.option(now)),
            window_scale: offered.window_scaling.then(|| self.rx.window.offered_scale()),
            ..Options::default()
        }
    }

    /// The options of the SYN or SYN-ACK that leaves next, but for that of Corrective and Proactive.
    pub(crate) fn syn_options_with_cookie(&self, now: Instant) -> Options {
        Options { fast_open: self.syn_fast_open_option(), ..self.syn_options(now) }
    }
}

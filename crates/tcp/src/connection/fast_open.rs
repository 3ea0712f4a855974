//! Fast Open on one connection: what its SYN or SYN-ACK carries, and what follows from the answer
//! (RFC 7413 section 4.2). What is decided about cookies and limits is in [`crate::fast_open`].
//!
//! The data of a SYN lies in the send queue like any other. If the SYN-ACK does not acknowledge it, it was
//! never sent as far as anybody else is concerned: the scoreboard is wound back, and it leaves with the
//! acknowledgement, as new data and without any reaction of congestion control.

use alloc::boxed::Box;
use alloc::vec::Vec;

use arrayvec::ArrayVec;
use brisk_wire::{Ecn, FastOpen, Flags, Options, SeqNum};

use crate::congestion::sample::RtoEvent;
use crate::connection::decision::Choice;
use crate::connection::gentle::plain_copy::PlainCopy;
use crate::connection::{Connection, Env, State};
use crate::error::CloseReason;
use crate::fast_open::client::{Mode, Plan, Report};
use crate::fast_open::outcome::SynSent;
use crate::fast_open::{BlackHoleSign, FastOpenConnect, FastOpenOutcome, OffReason, SynAckClass};
use crate::outcome::Arrived;
use crate::seq_ranges::SeqRange;
use crate::time::{Duration, Instant, Micros};

mod one_time;

use one_time::{ONE_TIME_REQUESTS, OneTime};

/// Bytes of a SYN that are kept for options.
const OPTION_SPACE: u32 = 40;
/// Timeout of a SYN whose round-trip time is not known (RFC 6298 section 2.1).
const SYN_TIMEOUT: Duration = Duration::from_secs(1);
/// Segments that may be kept before the SYN-ACK is there, and their bytes: an initial window.
const MAX_EARLY: usize = 16;
pub(crate) const MAX_EARLY_BYTES: usize = 14_600;
/// The option of a parity segment.
const PARITY_OPTION: u32 = 16;
/// Least time between a SYN with data and the connection that insures it: on a short path half a round trip is less
/// than any server takes to answer.
const HEDGE_MIN: Duration = Duration::from_millis(50);
/// Repeated SYN-ACKs, and nothing else, that tell a black hole: a server that follows RFC 6298 has sent them 3 s after
/// the first. And those that end the connection: 15 s. One whose [early timers](crate::config::HandshakeTimers) know the
/// path sends as many in 1.5 s, which a few lost packets explain: there the time has to pass as well.
const REPEATED_SYN_ACKS_TELL: Repeats = Repeats { count: 2, within: Duration::from_millis(2500) };
const REPEATED_SYN_ACKS_END: Repeats = Repeats { count: 4, within: Duration::from_millis(12_500) };

/// So many repetitions, the last of them not before this time since the first SYN-ACK.
#[derive(Clone, Copy, Debug)]
struct Repeats {
    count: u8,
    within: Duration,
}

impl Repeats {
    fn are_seen(self, count: u8, since: Duration) -> bool {
        count >= self.count && since >= self.within
    }
}
/// The fastest tick of a timestamp clock: closer times cannot be told apart by an echo.
pub(super) const TIMESTAMP_TICK: Duration = Duration::from_millis(1);

/// Fast Open on a connection; absent unless somebody asked for it.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) enum Role {
    /// We sent the SYN.
    Client(Opening),
    /// The SYN came to a listener.
    Server(Serving),
}

/// The client's side.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Opening {
    pub(super) plan: Plan,
    pub(super) connect: FastOpenConnect,
    /// Segments that left behind the SYN.
    pub(super) followed: u8,
    /// A reset was the first answer.
    pub(super) reset: bool,
    /// The SYN waits for the first write.
    deferred: bool,
    /// Bytes of data of the first SYN.
    data: u32,
    /// A plain SYN follows, or has followed, the first.
    plain: bool,
    /// The plain SYN followed because the first was too large, which is no failure.
    too_big: bool,
    #[serde(skip)]
    early: Vec<Early>,
    early_bytes: usize,
    class: Option<SynAckClass>,
    /// SND.UNA when the connection opened.
    una: SeqNum,
    /// SYN-ACKs after the first.
    repeated_syn_acks: u8,
    /// A FIN arrived out of order.
    fin_early: bool,
    /// It was reported that the path works, or that it does not.
    judged: bool,
    requests_left: u8,
    reports: ArrayVec<Report, 4>,
}

/// A segment that arrived before the SYN-ACK.
#[derive(Debug)]
struct Early {
    seq: SeqNum,
    ack: SeqNum,
    flags: Flags,
    window: u16,
    options: Options,
    payload: Vec<u8>,
    ecn: Ecn,
    segment_size: usize,
}

/// What the stack decided about a SYN.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Serve {
    /// The SYN opens the connection.
    pub(crate) accepted: bool,
    /// What the application is told.
    pub(crate) outcome: FastOpenOutcome,
    /// The option of the SYN-ACK.
    pub(crate) option: Option<FastOpen>,
    /// Send nothing but the SYN-ACK until it is acknowledged.
    pub(crate) hold_response: bool,
    /// IP bytes that may be sent until then; `None`: the windows decide.
    pub(crate) allowance: Option<usize>,
    /// The client may ask for a one-time cookie.
    pub(crate) one_time: bool,
    /// Bytes that may follow the SYN before the handshake is complete.
    pub(crate) after_syn: u32,
}

/// The server's side.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Serving {
    serve: Serve,
    /// The timer of the SYN-ACK has lowered the congestion window.
    reduced: bool,
    one_time: OneTime,
    /// Bytes that may still follow the SYN.
    pub(super) after_syn_left: u32,
    /// The end of what the first SYN brought.
    pub(super) first_end: SeqNum,
    /// Further SYNs brought more, of which nothing is said yet.
    pub(super) in_parts: bool,
}

/// Setting up.
impl Connection {
    /// An active open with Fast Open: before anything was sent.
    pub(crate) fn open_fast(&mut self, plan: Plan, connect: FastOpenConnect) {
        self.fast_open_outcome = FastOpenOutcome::Pending;
        self.tx.handshake.due = !connect.defer;
        let insurance = PlainCopy::of(&plan, &connect);
        if self.config.handshake_copies.is_none() || (self.plans() && insurance != PlainCopy::Off) {
            self.tx.handshake.copy = insurance;
        }
        self.fast_open = Some(Box::new(Role::Client(Opening {
            plan,
            connect,
            reset: false,
            followed: 0,
            repeated_syn_acks: 0,
            deferred: connect.defer,
            data: 0,
            plain: false,
            too_big: false,
            early: Vec::new(),
            early_bytes: 0,
            class: None,
            una: self.secrets.iss,
            fin_early: false,
            judged: false,
            requests_left: if connect.one_time { ONE_TIME_REQUESTS } else { 0 },
            reports: ArrayVec::new(),
        })));
    }

    /// An active open that was to use Fast Open and cannot.
    pub(crate) fn open_without_fast(&mut self, reason: OffReason) {
        self.fast_open_outcome = FastOpenOutcome::Off(reason);
    }

    /// A passive open whose SYN asked for Fast Open and gets an ordinary handshake.
    pub(crate) fn refuse_fast_open(&mut self, outcome: FastOpenOutcome) {
        self.fast_open_outcome = outcome;
    }

    /// The first write, or a close, releases a SYN that waited for it.
    pub(crate) fn send_deferred_syn(&mut self) {
        if let Some(Role::Client(opening)) = self.fast_open.as_deref_mut()
            && core::mem::take(&mut opening.deferred)
        {
            self.tx.handshake.due = true;
        }
    }

    /// A passive open of which the stack has judged the SYN: takes its data if it opens the connection.
    pub(crate) fn serve_fast_open(&mut self, serve: Serve, syn: &Arrived<'_>, now: Instant) {
        self.fast_open_outcome = serve.outcome;
        self.fast_open = Some(Box::new(Role::Server(Serving {
            serve,
            reduced: false,
            one_time: OneTime::Idle,
            after_syn_left: serve.after_syn,
            first_end: syn.seq + 1,
            in_parts: false,
        })));
        if serve.accepted {
            // Data may flow before any other window is heard of.
            self.tx.window.count_offer();
        }
        if serve.accepted && !syn.payload.is_empty() {
            let flags = syn.flags.without(Flags::SYN | Flags::ECE | Flags::CWR);
            self.take_payload(&Arrived { seq: syn.seq + 1, flags, ..*syn }, now);
            self.rx.ack.on_syn_data();
            self.syn_data_taken = true;
            let first_end = self.rx.rcv_nxt();
            if let Some(Role::Server(serving)) = self.fast_open.as_deref_mut() {
                serving.first_end = first_end;
            }
        }
    }
}

/// The client before the SYN-ACK.
impl Connection {
    /// The range of data that the SYN carries which leaves next; empty without Fast Open.
    pub(crate) fn syn_data(&self) -> SeqRange {
        let start = self.secrets.iss + 1;
        let len = match self.fast_open.as_deref() {
            Some(Role::Client(opening)) if self.state == State::SynSent && !opening.plain => {
                match opening.plan.mode {
                    Mode::Data | Mode::DataNoCookie => {
                        self.tx.queue.end().since(start).min(self.syn_payload_limit(&opening.plan))
                    }
                    Mode::Request | Mode::CookieOnly => 0,
                }
            }
            Some(Role::Client(_) | Role::Server(_)) | None => 0,
        };
        SeqRange::with_len(start, len)
    }

    /// Bytes that a SYN which waits for the first write would carry; `None` if it would carry none.
    pub(crate) fn deferred_syn_room(&self) -> Option<u32> {
        match self.fast_open.as_deref() {
            Some(Role::Client(opening)) if opening.deferred => match opening.plan.mode {
                Mode::Data | Mode::DataNoCookie => Some(self.syn_payload_limit(&opening.plan)),
                Mode::Request | Mode::CookieOnly => None,
            },
            Some(Role::Client(_) | Role::Server(_)) | None => None,
        }
    }

    /// Payload bytes of a SYN, or of a segment that follows it at once.
    pub(super) fn syn_payload_limit(&self, plan: &Plan) -> u32 {
        let of_path = self.tx.mtu.payload(self.tx.mtu.path(), 0);
        let mss = of_path.min(self.tx.advertised_mss().into());
        mss.saturating_sub(OPTION_SPACE).min(plan.data_limit.into())
    }

    /// The Fast Open option of the SYN or SYN-ACK that leaves next: only the first has one.
    pub(crate) fn syn_fast_open_option(&self) -> Option<FastOpen> {
        match self.fast_open.as_deref()? {
            Role::Client(opening) => {
                opening.plan.option.filter(|_| self.state == State::SynSent && !opening.plain)
            }
            Role::Server(serving) => serving.serve.option.filter(|_| self.tx.handshake.sent == 0),
        }
    }

    /// The Fast Open option of the SYN-ACK, whether that has left or not.
    pub(crate) fn served_option(&self) -> Option<FastOpen> {
        match self.fast_open.as_deref()? {
            Role::Client(_) => None,
            Role::Server(serving) => serving.serve.option,
        }
    }

    /// The SYN left with this many bytes of data; answers after how long a plain one follows.
    pub(crate) fn on_syn_sent(&mut self, data: u32) -> Option<Duration> {
        let Some(Role::Client(opening)) = self.fast_open.as_deref_mut() else { return None };
        if opening.plain || self.state != State::SynSent {
            return None;
        }
        opening.data = data;
        Some(opening.wait())
    }

    /// The path is longer than it was when the SYN left; answers by how much longer it may wait for its answer.
    pub(crate) fn on_longer_syn_path(&mut self, srtt: Duration) -> Option<Duration> {
        let Some(Role::Client(opening)) = self.fast_open.as_deref_mut() else { return None };
        if opening.plain
            || self.state != State::SynSent
            || opening.plan.srtt.is_none_or(|known| srtt <= known)
        {
            return None;
        }
        let before = opening.wait();
        opening.plan.srtt = Some(srtt);
        Some(opening.wait().saturating_sub(before))
    }

    /// The first SYN was not answered in time: a plain one follows, and the ordinary schedule begins with
    /// it. False if there is nothing to fall back from.
    pub(crate) fn fall_back_to_plain_syn(&mut self) -> bool {
        let Some(Role::Client(opening)) = self.fast_open.as_deref_mut() else { return false };
        if opening.plain || self.state != State::SynSent {
            return false;
        }
        opening.plain = true;
        self.tx.handshake.copy.cancel();
        opening.early = Vec::new();
        self.tx.rto.disarm();
        self.tx.handshake.due = true;
        true
    }

    /// ICMP says that the first SYN was too large for the path: a plain one follows at once.
    pub(crate) fn on_syn_too_big(&mut self) {
        if self.fall_back_to_plain_syn()
            && let Some(Role::Client(opening)) = self.fast_open.as_deref_mut()
        {
            opening.too_big = true;
        }
    }

    /// True while the SYN that is out is one of Fast Open.
    pub(crate) fn opens_fast(&self) -> bool {
        matches!(self.fast_open.as_deref(), Some(Role::Client(opening)) if !opening.plain)
    }

    /// How many SYNs left before the ordinary schedule began.
    pub(crate) fn syns_before_plain(&self) -> u32 {
        match self.fast_open.as_deref() {
            Some(Role::Client(_)) => 1,
            Some(Role::Server(_)) | None => 0,
        }
    }

    /// Segments wait for the SYN-ACK.
    pub(crate) fn holds_early(&self) -> bool {
        matches!(self.fast_open.as_deref(), Some(Role::Client(opening)) if !opening.early.is_empty())
    }

    /// A segment without SYN arrived before the SYN-ACK: an answer to the data of our SYN that overtook it.
    pub(crate) fn hold_early(&mut self, segment: &Arrived<'_>) {
        let Some(Role::Client(opening)) = self.fast_open.as_deref_mut() else { return };
        let parity = segment.options.gentle.is_some_and(|option| option.is_encoded());
        let held = opening.connect.hold_early && opening.data > 0 && !opening.plain && !parity;
        let bytes = opening.early_bytes + segment.payload.len();
        if !held || opening.early.len() >= MAX_EARLY || bytes > MAX_EARLY_BYTES {
            return;
        }
        opening.early_bytes = bytes;
        opening.early.push(Early {
            seq: segment.seq,
            ack: segment.ack,
            flags: segment.flags,
            window: segment.window,
            options: segment.options.clone(),
            payload: segment.payload.to_vec(),
            ecn: segment.ecn,
            segment_size: segment.segment_size,
        });
    }

    /// The SYN-ACK is there: what arrived before it is processed by the ordinary rules.
    pub(crate) fn take_early(&mut self, now: Instant, env: &mut Env<'_>) {
        let early = match self.fast_open.as_deref_mut() {
            Some(Role::Client(opening)) if self.state != State::SynSent => {
                core::mem::take(&mut opening.early)
            }
            Some(Role::Client(_) | Role::Server(_)) | None => return,
        };
        for Early { seq, ack, flags, window, options, payload, ecn, segment_size } in &early {
            let segment = Arrived {
                seq: *seq,
                ack: *ack,
                flags: *flags,
                window: *window,
                urgent: 0,
                options,
                payload,
                ecn: *ecn,
                segment_size: *segment_size,
            };
            if self.state != State::Closed {
                self.on_segment_after_syn(&segment, now, env);
            }
        }
    }
}

/// The client at the SYN-ACK and after it.
impl Connection {
    /// Our SYN is acknowledged up to `ack`, which lies within what it carried: data beyond is as if it had
    /// never been sent.
    pub(crate) fn rewind_syn_data(&mut self, ack: SeqNum) {
        if let Some(Role::Client(opening)) = self.fast_open.as_deref()
            && opening.data > 0
            && self.tx.scoreboard.una() == self.secrets.iss
        {
            // What followed a SYN whose data was taken is in flight like any other.
            let taken = ack.since(self.secrets.iss + 1) >= opening.data;
            if taken && opening.followed > 0 {
                return;
            }
            self.tx.scoreboard.rewind(ack);
        }
    }

    /// True if the first SYN carried all of `range`, and it was not taken.
    pub(crate) fn was_on_syn(&self, range: SeqRange) -> bool {
        match self.fast_open.as_deref() {
            Some(Role::Client(opening)) => {
                self.counters.payload_bytes_acked < u64::from(opening.data)
                    && range.end.le(self.secrets.iss + 1 + opening.data)
            }
            Some(Role::Server(_)) | None => false,
        }
    }

    /// Both ends opened the connection at once: no listener has agreed to anything.
    pub(crate) fn on_simultaneous_fast_open(&mut self) {
        if let Some(Role::Client(opening)) = self.fast_open.as_deref_mut() {
            opening.plain = true;
            opening.early = Vec::new();
            opening.requests_left = 0;
            opening.class = Some(SynAckClass::NoData);
            self.fast_open_outcome = FastOpenOutcome::Off(OffReason::Simultaneous);
        }
    }

    /// Judges the SYN-ACK, once its acknowledgement has been processed.
    pub(crate) fn judge_syn_ack(&mut self, segment: &Arrived<'_>, now: Instant) {
        let acked = segment.ack.since(self.secrets.iss + 1);
        let by_copy = self.answers_plain_copy(segment, now);
        let Some(Role::Client(opening)) = self.fast_open.as_deref_mut() else { return };
        let sent = SynSent {
            request: opening.plan.mode == Mode::Request,
            data: opening.data,
            plain: by_copy || opening.plain && !opening.too_big,
        };
        let option = segment.options.fast_open;
        let class = SynAckClass::of(&sent, acked, option.as_ref());
        opening.class = Some(class);
        opening.una = segment.ack;
        // The SYN and what was taken of its data are one segment, which the scoreboard keeps as two.
        let as_one = u64::from(opening.data > 0 && acked > 0);
        self.counters.delivered_segments = self.counters.delivered_segments.saturating_sub(as_one);
        self.fast_open_outcome = match (class, opening.plan.mode) {
            (SynAckClass::NoData, Mode::CookieOnly) => FastOpenOutcome::Off(OffReason::Suspended),
            _ => class.outcome(),
        };
        // A SYN-ACK that echoes no timestamp of ours could be forged by a host that does not see our packets.
        let echoes_nothing = segment.options.timestamps.is_some_and(|timestamps| timestamps.echo == 0);
        let cookie = option.filter(|_| opening.plan.option.is_some() && !echoes_nothing);
        let refusals = opening.plan.refusals;
        opening.report(Report::SynAck { class, cookie, refusals });
    }

    /// The connection ends: a SYN that got no answer, or a path that broke.
    pub(crate) fn judge_end(&mut self, reason: CloseReason) {
        let only_fin = self.counters.out_of_order == 1 && self.counters.payload_bytes_received == 0;
        let Some(Role::Client(opening)) = self.fast_open.as_deref_mut() else { return };
        let by_us = matches!(reason, CloseReason::Aborted | CloseReason::ListenerClosed);
        match opening.class {
            None if !by_us && self.tx.handshake.sent > 0 => {
                self.fast_open_outcome = FastOpenOutcome::SynLost;
                opening.report(Report::Failed(opening.plan.mode));
            }
            Some(_) if opening.data > 0 && opening.fin_early && only_fin => {
                self.note_black_hole(BlackHoleSign::FinOnly);
            }
            None | Some(_) => {}
        }
    }

    /// The peer, or somebody in its name, resets the connection.
    pub(crate) fn judge_reset(&mut self, now: Instant) {
        let times = self.established.zip(self.tx.rtt.srtt());
        let young = times.is_some_and(|(since, srtt)| Micros::between(since, now) <= srtt);
        if young
            && self.counters.payload_bytes_received == 0
            && self.syn_ack_class() == Some(SynAckClass::Accepted)
        {
            self.note_black_hole(BlackHoleSign::EarlyReset);
        }
    }

    /// A retransmission timeout: the second in a row without any progress since the connection opened
    /// tells a black hole.
    pub(crate) fn judge_timeout(&mut self) {
        let Some(Role::Client(opening)) = self.fast_open.as_deref() else { return };
        let stuck = opening.una == self.tx.scoreboard.una() && self.tx.timeouts_in_row == 2;
        if stuck && opening.data > 0 && opening.class.is_some() {
            self.note_black_hole(BlackHoleSign::Timeouts);
        }
    }

    /// The server sends its SYN-ACK again: our acknowledgement did not arrive. When that happens several
    /// times over seconds and nothing else was ever heard, the path passes SYNs and nothing behind them. The request is
    /// acknowledged, so no timer of ours would ever notice.
    pub(crate) fn judge_repeated_syn_ack(&mut self, now: Instant) {
        let since = self.established.map_or(Duration::ZERO, |at| now.saturating_since(at));
        let heard = self.counters.payload_bytes_received > 0 || self.rx.assembler.is_complete();
        let Some(Role::Client(opening)) = self.fast_open.as_deref_mut() else { return };
        if heard || opening.class != Some(SynAckClass::Accepted) {
            return;
        }
        opening.repeated_syn_acks = opening.repeated_syn_acks.saturating_add(1);
        let answers_to_parts = if opening.connect.in_parts() { opening.followed } else { 0 };
        // A peer that is asked by two SYNs answers twice, and may send each answer twice as we do.
        let copies = u8::from(self.config.handshake_copies.is_some());
        let answers_to_copy = u8::from(self.tx.handshake.copy.has_left()) + copies + answers_to_parts;
        let count = opening.repeated_syn_acks.saturating_sub(answers_to_copy);
        if REPEATED_SYN_ACKS_TELL.are_seen(count, since) {
            self.note_black_hole(BlackHoleSign::RepeatedSynAck);
        }
        if REPEATED_SYN_ACKS_END.are_seen(count, since) {
            self.give_up(CloseReason::TimedOut);
        }
    }

    /// How long after the SYN a second, plain connection for the same request should follow, as insurance against
    /// a path that takes the data and then nothing more; `None` if there is nothing to insure: the SYN brings no
    /// data, this path has brought answers behind such SYNs before, or the data was not taken.
    pub(crate) fn hedge_wait(&self) -> Option<Duration> {
        let Some(Role::Client(opening)) = self.fast_open.as_deref() else { return None };
        let carries = matches!(opening.plan.mode, Mode::Data | Mode::DataNoCookie);
        let unanswered = matches!(opening.class, None | Some(SynAckClass::Accepted));
        (carries && unanswered && !opening.judged && !opening.plan.proven)
            .then(|| PlainCopy::half_of(opening.plan.srtt).max(HEDGE_MIN))
    }

    /// The request of this SYN was answered on another connection, which began later: either the answer here was
    /// lost, or the path passes nothing behind such a SYN.
    pub(crate) fn judge_outrun(&mut self) {
        if self.counters.payload_bytes_received == 0 && self.syn_ack_class() == Some(SynAckClass::Accepted) {
            self.note_black_hole(BlackHoleSign::Outrun);
        }
    }

    fn note_black_hole(&mut self, sign: BlackHoleSign) {
        if let Some(Role::Client(opening)) = self.fast_open.as_deref_mut()
            && !core::mem::replace(&mut opening.judged, true)
        {
            opening.report(Report::BlackHole(sign));
            self.fast_open_outcome = FastOpenOutcome::Blackholed;
        }
    }

    /// Data or a FIN arrived after the SYN-ACK.
    pub(crate) fn judge_arrival(&mut self, advanced: bool, fin_out_of_order: bool) {
        let Some(Role::Client(opening)) = self.fast_open.as_deref_mut() else { return };
        opening.fin_early |= fin_out_of_order;
        if advanced && opening.class == Some(SynAckClass::Accepted) && !opening.judged {
            opening.judged = true;
            opening.report(Report::Works);
        }
    }

    /// What the cache has still to hear.
    pub(crate) fn take_fast_open_reports(&mut self) -> ArrayVec<Report, 4> {
        match self.fast_open.as_deref_mut() {
            Some(Role::Client(opening)) => core::mem::take(&mut opening.reports),
            Some(Role::Server(_)) | None => ArrayVec::new(),
        }
    }

    /// Bytes of data that the first SYN carried on a path that has proven to take them.
    pub(crate) fn proven_syn_data(&self) -> Option<u32> {
        match self.fast_open.as_deref() {
            Some(Role::Client(opening)) if !opening.plan.untried && !opening.plain => Some(opening.data),
            Some(Role::Client(_) | Role::Server(_)) | None => None,
        }
    }

    /// The data that left with the SYN or behind it and that the peer did not take with the SYN: an open connection sends
    /// it again.
    pub(crate) fn refused_syn_data(&self) -> SeqRange {
        let start = self.secrets.iss + 1;
        match self.fast_open.as_deref() {
            Some(Role::Client(opening))
                if self.established.is_some() && opening.una.lt(start + opening.data) =>
            {
                let end = start + opening.data + self.counters.data_after_syn as u32;
                SeqRange::new(opening.una.max(start), end)
            }
            Some(Role::Client(_) | Role::Server(_)) | None => SeqRange::default(),
        }
    }

    /// What the first SYN was to carry, once it has left.
    pub(crate) fn fast_open_syn(&self) -> Option<(Mode, u32)> {
        match self.fast_open.as_deref() {
            Some(Role::Client(opening)) if self.tx.handshake.sent > 0 => {
                Some((opening.plan.mode, opening.data))
            }
            Some(Role::Client(_) | Role::Server(_)) | None => None,
        }
    }

    /// What the first SYN-ACK showed.
    pub(crate) fn syn_ack_class(&self) -> Option<SynAckClass> {
        match self.fast_open.as_deref() {
            Some(Role::Client(opening)) => opening.class,
            Some(Role::Server(_)) | None => None,
        }
    }
}

impl Opening {
    /// How long the first SYN waits for its answer before a plain one follows.
    fn wait(&self) -> Duration {
        let percent = u32::from(self.connect.syn_rto_percent.clamp(100, 300));
        let wait = self.plan.srtt.map(|srtt| srtt.saturating_mul(percent) / 100);
        wait.map_or(SYN_TIMEOUT, |wait| wait.max(self.connect.syn_rto_floor).min(SYN_TIMEOUT))
    }

    /// The SYN that is out carries data.
    pub(super) fn carries_data(&self) -> bool {
        self.data > 0 && !self.plain
    }

    /// A connection has no more to tell than fits; what does not is dropped.
    fn report(&mut self, report: Report) {
        let _ = self.reports.try_push(report);
    }
}

/// The server.
impl Connection {
    /// True if the SYN opened the connection: it belongs to the application already.
    pub(crate) fn is_opened_by_syn(&self) -> bool {
        matches!(self.fast_open.as_deref(), Some(Role::Server(serving)) if serving.serve.accepted)
    }

    /// True if data may leave from SYN-RECEIVED.
    pub(crate) fn sends_early(&self) -> bool {
        match self.fast_open.as_deref() {
            Some(Role::Server(Serving { serve, .. })) => serve.accepted && !serve.hold_response,
            Some(Role::Client(_)) | None => false,
        }
    }

    /// What may leave from SYN-RECEIVED beside the SYN-ACK: new data within the windows and the allowance.
    pub(crate) fn choose_early(&mut self, now: Instant, env: &Env<'_>) -> Option<Choice> {
        let allowance = match self.fast_open.as_deref() {
            Some(Role::Server(Serving { serve, .. })) if serve.accepted && !serve.hold_response => {
                serve.allowance
            }
            Some(Role::Client(_) | Role::Server(_)) | None => return None,
        };
        if let Some(allowance) = allowance {
            // Segments are not cut to fit.
            let next = self.tx.unsent().min(self.payload_limit()) as usize;
            if self.header_len() + next > allowance {
                return None;
            }
        }
        let parity = self.parity_limit() + self.header_len() as u32 + PARITY_OPTION;
        let affordable = allowance.is_none_or(|allowance| parity as usize <= allowance);
        let first = if affordable { self.choose_parity(now) } else { None };
        first
            .or_else(|| self.choose_copy(now))
            .or_else(|| self.choose_new(now, env))
            .or_else(|| if affordable { self.choose_parity_behind_burst(now) } else { None })
            .or_else(|| self.choose_ack(now))
    }

    /// True while every byte counts: segments leave one by one.
    pub(crate) fn has_allowance(&self) -> bool {
        let allowance = match self.fast_open.as_deref() {
            Some(Role::Server(serving)) => serving.serve.allowance,
            Some(Role::Client(_)) | None => None,
        };
        allowance.is_some() && self.state == State::SynReceived
    }

    /// So many IP bytes left.
    pub(crate) fn spend_allowance(&mut self, bytes: usize) {
        if let Some(Role::Server(serving)) = self.fast_open.as_deref_mut()
            && let Some(allowance) = &mut serving.serve.allowance
        {
            *allowance = allowance.saturating_sub(bytes);
        }
    }

    /// The timer of the SYN-ACK fired. Data that followed it may be lost too: the congestion state is that
    /// after a retransmission timeout. Not if a repeated SYN was answered meanwhile: what became of that answer is not
    /// known yet.
    pub(crate) fn reduce_for_lost_syn_ack(&mut self, now: Instant) {
        // A timer fires at the whole microsecond in which it is due.
        let wait = Micros::from(self.timer_base());
        if self.tx.handshake.last_sent.is_some_and(|at| Micros::between(at, now) < wait) {
            return;
        }
        if let Some(Role::Server(serving)) = self.fast_open.as_deref_mut()
            && serving.serve.accepted
            && !core::mem::replace(&mut serving.reduced, true)
        {
            // Nothing of it is known to be still in flight.
            self.tx.congestion.on_rto(&RtoEvent { now, pipe: 0, first: true, max_ssthresh: None });
            self.counters.reductions += 1;
        }
    }

    /// Our SYN-ACK is about to be acknowledged. If that answers a retransmission of it, the client was in
    /// SYN-SENT when the data before it arrived, and dropped it: it is sent again at once, which is no sign
    /// of congestion. If the original was answered, its timeout was a mistake. Which of them was answered the echoed
    /// timestamp tells: there may be several, since a repeated SYN is answered whatever the timer does.
    pub(crate) fn judge_syn_ack_delivery(&mut self, segment: &Arrived<'_>, now: Instant) {
        let Some(Role::Server(serving)) = self.fast_open.as_deref() else { return };
        let (accepted, reduced) = (serving.serve.accepted, serving.reduced);
        let Some(syn_ack) = self.tx.scoreboard.head().copied().filter(|head| head.syn) else { return };
        if !accepted || self.tx.handshake.sent < 2 {
            return;
        }
        let since_last = now.saturating_since(syn_ack.sent_at);
        let echoed = self.echo_rtt(segment, now).map(Duration::from);
        // Both ends of the time are rounded to the ticks of the clock.
        let since = echoed.map_or(since_last, |echoed| echoed + TIMESTAMP_TICK * 2);
        let board = &mut self.tx.scoreboard;
        let dropped: Vec<SeqRange> = board
            .in_flight()
            .filter(|record| !record.syn && now.saturating_since(record.sent_at) > since)
            .filter(|record| record.range.start.ge(segment.ack))
            .map(|record| record.range)
            .collect();
        if !dropped.is_empty() {
            dropped.into_iter().for_each(|range| {
                board.mark_lost(range);
            });
            self.tx.recovery.on_too_big(self.tx.scoreboard.nxt());
        } else if reduced && echoed.is_some_and(|echoed| echoed > since_last + TIMESTAMP_TICK) {
            self.tx.congestion.on_spurious(now);
            self.counters.undos += 1;
        }
    }
}

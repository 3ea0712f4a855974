//! The client of Fast Open on one connection (RFC 7413 section 4.2): the content of its SYN, the evaluation
//! of the SYN-ACK, and signs of a black hole after the SYN.

use alloc::vec::Vec;

use arrayvec::ArrayVec;
use brisk_wire::{Cookie, Ecn, FastOpen, Flags, Options, SeqNum};

use crate::fast_open::client::{FastOpenReport, Mode, OpenAttempt};
use crate::fast_open::outcome::SynSent;
use crate::fast_open::{
    BlackHoleSign, ClientCookie, FastOpenConnect, FastOpenOutcome, OffReason, SynAckClass,
};
use crate::outcome::Arrived;
use crate::seq_ranges::SeqRange;
use crate::time::Duration;

use crate::connection::gentle::plain_copy::PlainCopy;
use crate::connection::sender::Sender;

/// Timeout of a SYN without a known round-trip time (RFC 6298 section 2.1).
const SYN_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum bytes of options in a SYN.
const OPTION_SPACE: u32 = 40;
/// Number of segments that request a one-time cookie.
const ONE_TIME_REQUESTS: u8 = 5;
/// Minimum time after a SYN with data until a second, plain connection follows (see `hedge_wait`). On a short
/// path the usual wait, half a round trip, is less than the response time of any server.
const HEDGE_MIN: Duration = Duration::from_millis(50);
/// Repeated SYN-ACKs from a server that sends nothing else show a black hole (`TELL`), and later end the
/// connection (`END`). A server that follows RFC 6298 has sent two after 3 s and four after 15 s. A server
/// with [early timers](crate::TcpConfig::handshake_timers) sends as many in 1.5 s if a few packets are lost,
/// so a minimum time is required as well.
const REPEATED_SYN_ACKS_TELL: Repeats = Repeats { count: 2, within: Duration::from_millis(2500) };
const REPEATED_SYN_ACKS_END: Repeats = Repeats { count: 4, within: Duration::from_millis(12_500) };

/// A number of repeated SYN-ACKs, and the minimum time from the first SYN-ACK to the last of them.
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

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) attempt: OpenAttempt,
    pub(crate) connect: FastOpenConnect,
    /// Number of segments that left after the SYN.
    pub(crate) followed: u8,
    /// True if a reset answered the SYN.
    pub(crate) reset: bool,
    /// True if the SYN waits for the first write.
    deferred: bool,
    /// Bytes of data of the first SYN.
    data: u32,
    /// True if the first SYN is replaced by a plain one, without data and option.
    plain: bool,
    /// True if the first SYN was replaced because it was too large, which is not a failure of Fast Open.
    too_big: bool,
    early: Vec<Early>,
    early_bytes: usize,
    class: Option<SynAckClass>,
    /// SND.UNA when the connection opened.
    una: SeqNum,
    /// SYN-ACKs after the first.
    repeated_syn_acks: u8,
    /// True if a FIN arrived out of order.
    fin_early: bool,
    /// True if a verdict on the path was reported.
    has_verdict: bool,
    requests_left: u8,
    reports: ArrayVec<FastOpenReport, 4>,
}

/// A segment that arrived before the SYN-ACK.
#[derive(Debug)]
pub(crate) struct Early {
    seq: SeqNum,
    ack: SeqNum,
    flags: Flags,
    window: u16,
    options: Options,
    payload: Vec<u8>,
    ecn: Ecn,
    segment_size: usize,
}

impl Early {
    fn of(segment: &Arrived<'_>) -> Self {
        Early {
            seq: segment.seq,
            ack: segment.ack,
            flags: segment.flags,
            window: segment.window,
            options: segment.options.clone(),
            payload: segment.payload.to_vec(),
            ecn: segment.ecn,
            segment_size: segment.segment_size,
        }
    }

    pub(crate) fn timestamp(&self) -> Option<u32> {
        self.options.timestamps.map(|timestamps| timestamps.value)
    }

    /// Removes the timestamp, because PAWS (RFC 7323 section 5) would drop a segment that left before the
    /// SYN-ACK was sent again.
    pub(crate) fn remove_timestamp(&mut self) {
        self.options.timestamps = None;
    }

    pub(crate) fn arrived(&self) -> Arrived<'_> {
        Arrived {
            seq: self.seq,
            ack: self.ack,
            flags: self.flags,
            window: self.window,
            urgent: 0,
            options: &self.options,
            payload: &self.payload,
            ecn: self.ecn,
            segment_size: self.segment_size,
        }
    }
}

/// Facts about a repeated SYN-ACK.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RepeatedSynAck {
    /// Time since the first SYN-ACK, which opened the connection.
    pub(super) since: Duration,
    /// Number of repeated SYN-ACKs to expect without any loss: one if this end sent its SYN twice, and one if
    /// the peer may send each SYN-ACK twice (`plain_copy.rs`).
    pub(super) explained: u8,
}

/// Conclusions from a repeated SYN-ACK.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SynAckVerdict {
    /// True if the path drops all segments after the SYN.
    pub(super) black_hole: bool,
    /// True if the connection must be given up.
    pub(super) give_up: bool,
}

/// Until the SYN-ACK.
impl Client {
    pub(crate) fn new(attempt: OpenAttempt, connect: FastOpenConnect, iss: SeqNum) -> Self {
        Client {
            attempt,
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
            una: iss,
            fin_early: false,
            has_verdict: false,
            requests_left: if connect.cookie == ClientCookie::OneTime { ONE_TIME_REQUESTS } else { 0 },
            reports: ArrayVec::new(),
        }
    }

    /// Releases a SYN that waited for the first write; false if it did not wait.
    pub(crate) fn release(&mut self) -> bool {
        core::mem::take(&mut self.deferred)
    }

    pub(crate) fn is_deferred(&self) -> bool {
        self.deferred
    }

    /// True if the first SYN takes data.
    pub(crate) fn takes_data(&self) -> bool {
        match self.attempt.mode {
            Mode::Data | Mode::DataNoCookie => true,
            Mode::Request | Mode::CookieOnly => false,
        }
    }

    pub(crate) fn is_fast(&self) -> bool {
        !self.plain
    }

    /// Returns the maximum payload of a SYN, or of a segment that directly follows it.
    pub(crate) fn syn_payload_limit(&self, tx: &Sender) -> u32 {
        let mss = tx.mtu.payload(tx.mtu.path(), 0).min(tx.advertised_mss().into());
        mss.saturating_sub(OPTION_SPACE).min(self.attempt.data_limit.into())
    }

    pub(crate) fn syn_option(&self) -> Option<FastOpen> {
        self.attempt.option.filter(|_| !self.plain)
    }

    /// True if the SYN in flight carries data.
    pub(crate) fn carries_data(&self) -> bool {
        self.data > 0 && !self.plain
    }

    pub(crate) fn data(&self) -> u32 {
        self.data
    }

    pub(crate) fn proven_data(&self) -> Option<u32> {
        (!self.attempt.untried && !self.plain).then_some(self.data)
    }

    /// Returns the time that the first SYN waits for its answer before a plain one follows.
    fn wait(&self) -> Duration {
        let wait = self.attempt.srtt.map(|srtt| srtt.saturating_mul(3) / 2);
        wait.map_or(SYN_TIMEOUT, |wait| wait.max(self.connect.syn_rto_floor).min(SYN_TIMEOUT))
    }

    /// Records a SYN with this many bytes of data; returns the delay until a plain one follows, if one does.
    pub(crate) fn on_syn_sent(&mut self, data: u32) -> Option<Duration> {
        if self.plain {
            return None;
        }
        self.data = data;
        Some(self.wait())
    }

    /// Adapts to a path that is longer than it was when the SYN left; returns the additional time to wait for
    /// the answer.
    pub(crate) fn on_longer_path(&mut self, srtt: Duration) -> Option<Duration> {
        if self.plain || self.attempt.srtt.is_none_or(|known| srtt <= known) {
            return None;
        }
        let before = self.wait();
        self.attempt.srtt = Some(srtt);
        Some(self.wait().saturating_sub(before))
    }

    /// Falls back to a plain SYN because the first was not answered in time. Returns false if there is no
    /// Fast Open to fall back from.
    pub(crate) fn fall_back(&mut self) -> bool {
        if self.plain {
            return false;
        }
        self.plain = true;
        true
    }

    /// Records that the first SYN was too large for the path, so that a plain one follows.
    pub(crate) fn on_too_big(&mut self) {
        self.too_big = true;
    }

    pub(crate) fn on_simultaneous_open(&mut self) -> FastOpenOutcome {
        self.plain = true;
        self.take_early();
        self.requests_left = 0;
        self.class = Some(SynAckClass::NoData);
        FastOpenOutcome::Off(OffReason::Simultaneous)
    }

    pub(crate) fn has_early(&self) -> bool {
        !self.early.is_empty()
    }

    /// Keeps a segment that has overtaken the SYN-ACK, if all kept segments take at most `limit` bytes of
    /// memory. Returns true if it was kept.
    pub(crate) fn queue_early(&mut self, segment: &Arrived<'_>, limit: usize) -> bool {
        let bytes = self.early_bytes + segment.payload.len() + size_of::<Early>();
        let keeps = self.connect.hold_early && self.data > 0 && !segment.is_empty() && bytes <= limit;
        if keeps {
            self.early_bytes = bytes;
            self.early.push(Early::of(segment));
        }
        keeps
    }

    pub(crate) fn early_bytes(&self) -> usize {
        self.early_bytes
    }

    pub(crate) fn take_early(&mut self) -> Vec<Early> {
        self.early_bytes = 0;
        core::mem::take(&mut self.early)
    }
}

/// The SYN-ACK, and what follows it.
impl Client {
    /// True if data beyond the `acked` bytes that the SYN-ACK acknowledges counts as never sent. False if the
    /// SYN-ACK acknowledges all data of the SYN and more segments followed, because these remain in flight.
    pub(crate) fn rewinds(&self, acked: u32) -> bool {
        self.data > 0 && !(acked >= self.data && self.followed > 0)
    }

    /// Processes a SYN-ACK that acknowledges `acked` bytes of data. `by_copy`: it answers the second SYN, the
    /// [`PlainCopy`] without data.
    pub(crate) fn record_syn_ack(
        &mut self,
        segment: &Arrived<'_>,
        acked: u32,
        by_copy: bool,
    ) -> FastOpenOutcome {
        let sent = SynSent {
            request: self.attempt.mode == Mode::Request,
            data: self.data,
            plain: by_copy || self.plain && !self.too_big,
        };
        let option = segment.options.fast_open;
        let class = SynAckClass::of(&sent, acked, option.as_ref());
        self.class = Some(class);
        self.una = segment.ack;
        // A host that does not see our packets can forge a SYN-ACK, but not the echo of our timestamp.
        let echoes_nothing = segment.options.timestamps.is_some_and(|timestamps| timestamps.echo == 0);
        let cookie = option.filter(|_| self.attempt.option.is_some() && !echoes_nothing);
        self.report(FastOpenReport::SynAck { class, cookie, known: self.attempt.known });
        match (class, self.attempt.mode) {
            (SynAckClass::NoData, Mode::CookieOnly) => FastOpenOutcome::Off(OffReason::Suspended),
            _ => class.outcome(),
        }
    }

    pub(crate) fn class(&self) -> Option<SynAckClass> {
        self.class
    }

    /// True if the first SYN carried all of `range`, and the peer did not accept all data of this SYN.
    /// `first`: sequence number of the first byte; `acked`: number of bytes acknowledged so far.
    pub(crate) fn was_on_syn(&self, range: SeqRange, first: SeqNum, acked: u64) -> bool {
        acked < u64::from(self.data) && range.end.le(first + self.data)
    }

    /// Returns the part of the SYN's data, and of the `followed` bytes after it, that the peer did not accept
    /// with the SYN. `first` is the sequence number of the first byte.
    pub(crate) fn refused_data(&self, first: SeqNum, followed: u32) -> SeqRange {
        let end = first + self.data;
        if self.una.lt(end) {
            SeqRange::new(self.una.max(first), end + followed)
        } else {
            SeqRange::default()
        }
    }

    /// Returns the outcome of a SYN that was never answered.
    pub(crate) fn on_syn_lost(&mut self) -> FastOpenOutcome {
        self.report(FastOpenReport::Failed(self.attempt.mode));
        FastOpenOutcome::SynLost
    }

    /// True if a FIN out of order arrived behind data that the SYN carried.
    pub(crate) fn saw_early_fin(&self) -> bool {
        self.data > 0 && self.fin_early
    }

    /// True if a second timeout in a row shows a black hole: nothing was acknowledged since the connection
    /// opened.
    pub(crate) fn is_stuck_at(&self, una: SeqNum) -> bool {
        self.una == una && self.data > 0 && self.class.is_some()
    }

    /// Processes a repeated SYN-ACK from a server of which nothing else was ever received.
    pub(crate) fn on_repeated_syn_ack(&mut self, again: RepeatedSynAck) -> SynAckVerdict {
        if self.class != Some(SynAckClass::Accepted) {
            return SynAckVerdict::default();
        }
        self.repeated_syn_acks = self.repeated_syn_acks.saturating_add(1);
        let answers_to_parts = if self.connect.in_parts() { self.followed } else { 0 };
        let count = self.repeated_syn_acks.saturating_sub(again.explained + answers_to_parts);
        SynAckVerdict {
            black_hole: REPEATED_SYN_ACKS_TELL.are_seen(count, again.since),
            give_up: REPEATED_SYN_ACKS_END.are_seen(count, again.since),
        }
    }

    /// Returns the time after the SYN at which a second, plain connection for the same request should follow.
    /// It guards against a path that accepts the data and then drops everything. `None` without this risk:
    /// the SYN has no data, the data was not accepted, or the path has passed responses to such SYNs before.
    pub(crate) fn hedge_wait(&self) -> Option<Duration> {
        let unanswered = matches!(self.class, None | Some(SynAckClass::Accepted));
        (self.takes_data() && unanswered && !self.has_verdict && !self.attempt.proven)
            .then(|| PlainCopy::half_of(self.attempt.srtt).max(HEDGE_MIN))
    }

    /// Processes a path that drops all segments after the SYN; returns `None` if a verdict was reported
    /// before.
    pub(crate) fn on_black_hole(&mut self, sign: BlackHoleSign) -> Option<FastOpenOutcome> {
        if core::mem::replace(&mut self.has_verdict, true) {
            return None;
        }
        self.report(FastOpenReport::BlackHole(sign));
        Some(FastOpenOutcome::Blackholed)
    }

    pub(crate) fn on_arrival(&mut self, advanced: bool, fin_out_of_order: bool) {
        self.fin_early |= fin_out_of_order;
        if advanced && self.class == Some(SynAckClass::Accepted) && !self.has_verdict {
            self.has_verdict = true;
            self.report(FastOpenReport::Works);
        }
    }

    pub(crate) fn has_report(&self) -> bool {
        !self.reports.is_empty()
    }

    pub(crate) fn take_reports(&mut self) -> ArrayVec<FastOpenReport, 4> {
        core::mem::take(&mut self.reports)
    }

    /// Queues a report. The queue has space for all reports of a connection, so none is dropped.
    fn report(&mut self, report: FastOpenReport) {
        let _ = self.reports.try_push(report);
    }
}

/// One-time cookies, which travel outside the handshake.
impl Client {
    /// True if the next segments request a one-time cookie.
    pub(crate) fn requests_cookie(&self) -> bool {
        self.requests_left > 0
    }

    pub(crate) fn on_request_sent(&mut self) {
        self.requests_left = self.requests_left.saturating_sub(1);
    }

    pub(crate) fn on_one_time_cookie(&mut self, cookie: Cookie) {
        if core::mem::take(&mut self.requests_left) > 0 {
            self.report(FastOpenReport::OneTime(cookie));
        }
    }
}

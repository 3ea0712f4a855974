//! Fast Open on one connection: the content of its SYN or SYN-ACK, and the effects of the answer (RFC 7413
//! section 4.2). Decisions about cookies and limits are in [`crate::fast_open`].
//!
//! The data of a SYN is in the send queue like any other data. If the SYN-ACK does not acknowledge it, it
//! counts as never sent: the scoreboard is reset, and the data leaves with the acknowledgement, as new data
//! and without a response of congestion control.

use alloc::boxed::Box;
use alloc::vec::Vec;

use arrayvec::ArrayVec;
use brisk_wire::{Cookie, FastOpen, Flags, SeqNum};

use crate::congestion::sample::RtoEvent;
use crate::connection::gentle::plain_copy::PlainCopy;
use crate::connection::path::STANDARD_WINDOW;
use crate::connection::sender::initial_window;
use crate::connection::{Connection, Env, State};
use crate::error::CloseReason;
use crate::fast_open::client::{FastOpenReport, Mode, OpenAttempt};
use crate::fast_open::{BlackHoleSign, FastOpenConnect, FastOpenOutcome, OffReason, SynAckClass};
use crate::outcome::Arrived;
use crate::seq_ranges::SeqRange;
use crate::time::{Duration, Instant, Micros, TIMESTAMP_TICK};

mod after_syn;
mod client;
mod server;

pub(crate) use client::MAX_EARLY_BYTES;
pub(crate) use server::SynAnswer;

use client::{Client, RepeatedSynAck};
use server::Server;

/// Maximum bytes of options in a SYN.
const OPTION_SPACE: u32 = 40;
/// Bytes of the option of a parity segment.
const PARITY_OPTION: u32 = 16;

/// The role of a connection in Fast Open; absent unless Fast Open was requested.
#[derive(Debug)]
pub(crate) enum Role {
    /// We sent the SYN.
    Client(Client),
    /// A listener received the SYN.
    Server(Server),
}

/// Transmissions in SYN-RECEIVED that the amplification limit of a listener permits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EarlyBudget {
    Nothing,
    /// The next segment.
    Segment,
    /// The next segment, or parity.
    Parity,
}

/// Access to the state of the two roles.
impl Connection {
    #[inline]
    pub(super) fn fast_client(&self) -> Option<&Client> {
        match self.fast_open.as_deref()? {
            Role::Client(client) => Some(client),
            Role::Server(_) => None,
        }
    }

    #[inline]
    pub(super) fn fast_client_mut(&mut self) -> Option<&mut Client> {
        match self.fast_open.as_deref_mut()? {
            Role::Client(client) => Some(client),
            Role::Server(_) => None,
        }
    }

    #[inline]
    pub(super) fn fast_server(&self) -> Option<&Server> {
        match self.fast_open.as_deref()? {
            Role::Server(server) => Some(server),
            Role::Client(_) => None,
        }
    }

    #[inline]
    pub(super) fn fast_server_mut(&mut self) -> Option<&mut Server> {
        match self.fast_open.as_deref_mut()? {
            Role::Server(server) => Some(server),
            Role::Client(_) => None,
        }
    }
}

/// Start of a connection.
impl Connection {
    /// Starts an active open with Fast Open. Must be called before any segment is sent.
    pub(crate) fn open_fast(&mut self, attempt: OpenAttempt, connect: FastOpenConnect) {
        self.fast_open_outcome = FastOpenOutcome::Pending;
        self.handshake.syn.due = !connect.defer;
        let insurance = PlainCopy::of(&attempt, &connect);
        if self.config.handshake_copies.is_none() || (self.gentle.plans() && insurance != PlainCopy::Off) {
            self.handshake.syn.copy = insurance;
        }
        self.fast_open = Some(Box::new(Role::Client(Client::new(attempt, connect, self.handshake.iss))));
    }

    /// Records the reason why an active open cannot use Fast Open.
    pub(crate) fn open_without_fast(&mut self, reason: OffReason) {
        self.fast_open_outcome = FastOpenOutcome::Off(reason);
    }

    /// Records that a passive open answers a Fast Open SYN with an ordinary handshake.
    pub(crate) fn refuse_fast_open(&mut self, outcome: FastOpenOutcome) {
        self.fast_open_outcome = outcome;
    }

    /// Sends a deferred SYN: at the first write or at a close.
    pub(crate) fn send_deferred_syn(&mut self) {
        if self.fast_client_mut().is_some_and(Client::release) {
            self.handshake.syn.due = true;
        }
    }

    /// Starts a passive open after the stack's decision about the SYN; takes its data if it opens the
    /// connection.
    pub(crate) fn start_fast_open_server(&mut self, answer: SynAnswer, syn: &Arrived<'_>, now: Instant) {
        self.fast_open_outcome = answer.outcome;
        self.fast_open = Some(Box::new(Role::Server(Server::new(answer, syn.seq + 1))));
        if answer.accepted {
            // Data may be sent before another window is announced.
            self.tx.window.count_offer();
        }
        if answer.accepted && !syn.payload.is_empty() {
            let flags = syn.flags.without(Flags::SYN | Flags::ECE | Flags::CWR);
            self.take_payload(&Arrived { seq: syn.seq + 1, flags, ..*syn }, now);
            self.rx.ack.on_syn_data();
            self.syn_data_taken = true;
            let first_end = self.rx.rcv_nxt();
            if let Some(server) = self.fast_server_mut() {
                server.on_syn_data(first_end);
            }
        }
    }
}

/// The client before the SYN-ACK.
impl Connection {
    /// Returns the range of data in the next SYN; empty without Fast Open.
    pub(crate) fn syn_data(&self) -> SeqRange {
        let start = self.handshake.iss + 1;
        let client = self.fast_client().filter(|client| client.is_fast() && client.takes_data());
        let len = client.filter(|_| self.state == State::SynSent).map_or(0, |client| {
            self.tx.queue.end().since(start).min(self.syn_payload_limit(&client.attempt))
        });
        SeqRange::with_len(start, len)
    }

    /// Returns the bytes that a deferred SYN would carry; `None` if it would carry none.
    pub(crate) fn deferred_syn_capacity(&self) -> Option<u32> {
        let client = self.fast_client().filter(|client| client.is_deferred() && client.takes_data())?;
        Some(self.syn_payload_limit(&client.attempt))
    }

    /// Returns the maximum payload of a SYN, or of a segment that directly follows it.
    pub(super) fn syn_payload_limit(&self, attempt: &OpenAttempt) -> u32 {
        let of_path = self.tx.mtu.payload(self.tx.mtu.path(), 0);
        let mss = of_path.min(self.tx.advertised_mss().into());
        mss.saturating_sub(OPTION_SPACE).min(attempt.data_limit.into())
    }

    /// Returns the shift of a scaled window that the SYN announces in addition to its 16 bits, for the
    /// response to its data, which the peer sends before it receives another segment of ours.
    pub(crate) fn offered_early_window(&self) -> Option<u8> {
        let client = self.fast_client()?;
        let offers = client.connect.early_window && self.config.path_start.is_some();
        self.rx.window.early_shift().filter(|_| offers && !self.syn_data().is_empty())
    }

    /// Returns the Fast Open option of the next SYN or SYN-ACK: only the first has one.
    pub(crate) fn syn_fast_open_option(&self) -> Option<FastOpen> {
        match self.fast_open.as_deref()? {
            Role::Client(client) => client.syn_option().filter(|_| self.state == State::SynSent),
            Role::Server(server) => server.option().filter(|_| self.handshake.syn.sent == 0),
        }
    }

    /// Returns the Fast Open option of the SYN-ACK, sent or not.
    pub(crate) fn served_option(&self) -> Option<FastOpen> {
        self.fast_server().and_then(Server::option)
    }

    /// Records a SYN with this many bytes of data; returns the delay until a plain one follows.
    pub(crate) fn on_syn_sent(&mut self, data: u32) -> Option<Duration> {
        let opens = self.state == State::SynSent;
        self.fast_client_mut().filter(|_| opens)?.on_syn_sent(data)
    }

    /// Adapts to a path that is longer than it was when the SYN left; returns the additional time to wait for
    /// the answer.
    pub(crate) fn on_longer_syn_path(&mut self, srtt: Duration) -> Option<Duration> {
        let opens = self.state == State::SynSent;
        self.fast_client_mut().filter(|_| opens)?.on_longer_path(srtt)
    }

    /// Falls back to a plain SYN because the first was not answered in time; the ordinary schedule begins
    /// with it. Returns false if there is no Fast Open to fall back from.
    pub(crate) fn fall_back_to_plain_syn(&mut self) -> bool {
        let opens = self.state == State::SynSent;
        if !self.fast_client_mut().filter(|_| opens).is_some_and(Client::fall_back) {
            return false;
        }
        self.handshake.syn.copy.cancel();
        self.tx.rto.disarm();
        self.handshake.syn.due = true;
        true
    }

    /// Sends a plain SYN at once after ICMP reported that the first was too large for the path.
    pub(crate) fn on_syn_too_big(&mut self) {
        if self.fall_back_to_plain_syn()
            && let Some(client) = self.fast_client_mut()
        {
            client.on_too_big();
        }
    }

    /// True while the SYN in flight is one of Fast Open.
    pub(crate) fn opens_fast(&self) -> bool {
        self.fast_client().is_some_and(Client::is_fast)
    }

    /// Returns the number of SYNs that left before the ordinary schedule began.
    pub(crate) fn syns_before_plain(&self) -> u32 {
        u32::from(self.fast_client().is_some())
    }

    /// True if segments wait for the SYN-ACK.
    pub(crate) fn has_early(&self) -> bool {
        self.fast_client().is_some_and(Client::has_early)
    }

    /// Keeps a segment without SYN that arrived before the SYN-ACK: a response to the data of our SYN that
    /// overtook it.
    pub(crate) fn queue_early(&mut self, segment: &Arrived<'_>) {
        if let Some(client) = self.fast_client_mut() {
            client.queue_early(segment);
        }
    }

    /// Processes the segments that arrived before the SYN-ACK, by the ordinary rules.
    pub(crate) fn take_early(&mut self, now: Instant, env: &mut Env<'_>) {
        let answered = self.state != State::SynSent;
        let Some(client) = self.fast_client_mut().filter(|_| answered) else { return };
        for early in client.take_early() {
            if self.state != State::Closed {
                self.on_segment_after_syn(&early.arrived(), now, env);
            }
        }
    }
}

/// The client at the SYN-ACK and after it.
impl Connection {
    /// Processes an acknowledgement of our SYN up to `ack`, within its data: the data beyond counts as never
    /// sent.
    pub(crate) fn rewind_syn_data(&mut self, ack: SeqNum) {
        let acked = ack.since(self.handshake.iss + 1);
        let rewinds = self.fast_client().is_some_and(|client| client.rewinds(acked));
        if rewinds && self.tx.scoreboard.una() == self.handshake.iss {
            self.tx.scoreboard.rewind(ack);
        }
    }

    /// True if the first SYN carried all of `range`, and the peer did not accept it.
    pub(crate) fn was_on_syn(&self, range: SeqRange) -> bool {
        let (first, acked) = (self.handshake.iss + 1, self.counters.payload_bytes_acked);
        self.fast_client().is_some_and(|client| client.was_on_syn(range, first, acked))
    }

    /// Processes a simultaneous open: no listener has agreed to anything.
    pub(crate) fn on_simultaneous_fast_open(&mut self) {
        if let Some(client) = self.fast_client_mut() {
            self.fast_open_outcome = client.on_simultaneous_open();
        }
    }

    /// Evaluates the SYN-ACK after its acknowledgement has been processed.
    pub(crate) fn on_syn_ack_acked(&mut self, segment: &Arrived<'_>, now: Instant) {
        let acked = segment.ack.since(self.handshake.iss + 1);
        let by_copy = self.answers_plain_copy(segment, now);
        let Some(client) = self.fast_client_mut() else { return };
        let outcome = client.on_syn_ack(segment, acked, by_copy);
        // The SYN and its accepted data are one segment, which the scoreboard stores as two.
        let as_one = u64::from(client.data() > 0 && acked > 0);
        self.counters.delivered_segments = self.counters.delivered_segments.saturating_sub(as_one);
        self.fast_open_outcome = outcome;
    }

    /// Evaluates the end of the connection: a SYN without an answer, or a path that broke.
    pub(crate) fn learn_from_end(&mut self, reason: CloseReason) {
        let only_fin = self.rx.assembler.holds_only_fin() && self.counters.payload_bytes_received == 0;
        let by_us = matches!(reason, CloseReason::Aborted | CloseReason::ListenerClosed);
        let lost = !by_us && self.handshake.syn.sent > 0;
        let Some(client) = self.fast_client_mut() else { return };
        match client.class() {
            None if lost => self.fast_open_outcome = client.on_syn_lost(),
            Some(_) if client.saw_early_fin() && only_fin => self.record_black_hole(BlackHoleSign::FinOnly),
            None | Some(_) => {}
        }
    }

    /// Evaluates a reset, from the peer or from a device in its name.
    pub(crate) fn detect_reset_by_path(&mut self, now: Instant) {
        let times = self.handshake.established.zip(self.tx.rtt.srtt());
        let young = times.is_some_and(|(since, srtt)| Micros::between(since, now) <= srtt);
        if young
            && self.counters.payload_bytes_received == 0
            && self.syn_ack_class() == Some(SynAckClass::Accepted)
        {
            self.record_black_hole(BlackHoleSign::EarlyReset);
        }
    }

    /// Evaluates a retransmission timeout: the second in a row without progress since the connection opened
    /// shows a black hole.
    pub(crate) fn detect_black_hole_by_timeout(&mut self) {
        let una = self.tx.scoreboard.una();
        let stuck = self.fast_client().is_some_and(|client| client.is_stuck_at(una));
        if stuck && self.tx.timeouts_in_row == 2 {
            self.record_black_hole(BlackHoleSign::Timeouts);
        }
    }

    /// Evaluates a repeated SYN-ACK: our acknowledgement did not arrive. Several over some seconds, without
    /// any other segment, show that the path passes SYNs but no later segments. The request is acknowledged,
    /// so none of our timers would detect it.
    pub(crate) fn detect_black_hole_by_syn_ack(&mut self, now: Instant) {
        let since = self.handshake.established.map_or(Duration::ZERO, |at| now.saturating_since(at));
        let heard = self.counters.payload_bytes_received > 0 || self.rx.assembler.is_complete();
        if heard {
            return;
        }
        // A peer that receives two SYNs answers twice, and may send each SYN-ACK twice as we do.
        let copies = u8::from(self.config.handshake_copies.is_some());
        let explained = u8::from(self.handshake.syn.copy.has_left()) + copies;
        let Some(client) = self.fast_client_mut() else { return };
        let verdict = client.on_repeated_syn_ack(RepeatedSynAck { since, explained });
        if verdict.black_hole {
            self.record_black_hole(BlackHoleSign::RepeatedSynAck);
        }
        if verdict.give_up {
            self.give_up(CloseReason::TimedOut);
        }
    }

    /// Returns the time after the SYN at which a second, plain connection for the same request should follow;
    /// `None` if there is no need for one.
    pub(crate) fn hedge_wait(&self) -> Option<Duration> {
        self.fast_client()?.hedge_wait()
    }

    /// Records that the request was answered on another connection, which began later: either the response
    /// here was lost, or the path passes no segments after such a SYN.
    pub(crate) fn detect_black_hole_by_outrun(&mut self) {
        if self.counters.payload_bytes_received == 0 && self.syn_ack_class() == Some(SynAckClass::Accepted) {
            self.record_black_hole(BlackHoleSign::Outrun);
        }
    }

    fn record_black_hole(&mut self, sign: BlackHoleSign) {
        if let Some(outcome) = self.fast_client_mut().and_then(|client| client.on_black_hole(sign)) {
            self.fast_open_outcome = outcome;
        }
    }

    /// Records that data or a FIN arrived after the SYN-ACK.
    pub(crate) fn on_data_after_syn_ack(&mut self, advanced: bool, fin_out_of_order: bool) {
        if let Some(client) = self.fast_client_mut() {
            client.on_arrival(advanced, fin_out_of_order);
        }
    }

    /// Takes the reports that the cache has not received yet.
    pub(crate) fn take_fast_open_reports(&mut self) -> ArrayVec<FastOpenReport, 4> {
        self.fast_client_mut().map(Client::take_reports).unwrap_or_default()
    }

    /// Returns the bytes of data of the first SYN if the path is known to pass such data.
    pub(crate) fn proven_syn_data(&self) -> Option<u32> {
        self.fast_client()?.proven_data()
    }

    /// Returns the part of the data of the SYN, and of the segments after it, that the peer did not accept
    /// with the SYN; empty until the handshake is complete.
    pub(crate) fn refused_syn_data(&self) -> SeqRange {
        let client = self.fast_client().filter(|_| self.handshake.established.is_some());
        let (first, followed) = (self.handshake.iss + 1, self.counters.data_after_syn as u32);
        client.map_or(SeqRange::default(), |client| client.refused_data(first, followed))
    }

    /// Returns the mode and the data length of the first SYN, once it has left.
    pub(crate) fn fast_open_syn(&self) -> Option<(Mode, u32)> {
        let client = self.fast_client().filter(|_| self.handshake.syn.sent > 0)?;
        Some((client.attempt.mode, client.data()))
    }

    /// Returns the class of the first SYN-ACK.
    pub(crate) fn syn_ack_class(&self) -> Option<SynAckClass> {
        self.fast_client()?.class()
    }
}

/// The server.
impl Connection {
    /// True if the SYN opened the connection: it belongs to the application already.
    pub(crate) fn is_opened_by_syn(&self) -> bool {
        self.fast_server().is_some_and(Server::is_accepted)
    }

    /// True if data may leave from SYN-RECEIVED.
    pub(crate) fn sends_early(&self) -> bool {
        self.fast_server().is_some_and(Server::sends_early)
    }

    /// True if the application answers only authenticated requests.
    pub(crate) fn is_authenticated(&self) -> bool {
        self.fast_server().is_some_and(Server::is_authenticated)
    }

    /// Returns the bytes of data that may still leave before the handshake's ACK: a source that has proven
    /// its address with a cookie alone gets no more than any connection may begin with. `None` if the windows
    /// alone decide.
    #[inline]
    pub(crate) fn unproven_budget(&self) -> Option<u32> {
        if self.state != State::SynReceived || self.is_authenticated() {
            return None;
        }
        let sent = self.tx.scoreboard.nxt().since(self.handshake.iss + 1);
        Some(initial_window(STANDARD_WINDOW, self.tx.mss()).saturating_sub(sent))
    }

    /// Returns what may leave from SYN-RECEIVED in addition to the SYN-ACK within the amplification limit.
    pub(crate) fn affords_early(&self) -> EarlyBudget {
        let Some(server) = self.fast_server().filter(|server| server.sends_early()) else {
            return EarlyBudget::Nothing;
        };
        let Some(allowance) = server.allowance() else { return EarlyBudget::Parity };
        // Segments are not cut to fit the limit.
        let next = self.tx.unsent().min(self.payload_limit()) as usize;
        let parity = (self.tx.full_payload() + PARITY_OPTION) as usize;
        if self.header_len() + next > allowance {
            EarlyBudget::Nothing
        } else if self.header_len() + parity > allowance {
            EarlyBudget::Segment
        } else {
            EarlyBudget::Parity
        }
    }

    /// True while the amplification limit is in force: segments leave one by one.
    pub(crate) fn is_amplification_limited(&self) -> bool {
        self.state == State::SynReceived
            && self.fast_server().is_some_and(|server| server.allowance().is_some())
    }

    /// Counts sent IP bytes against the amplification limit.
    pub(crate) fn count_amplification(&mut self, bytes: usize) {
        if let Some(server) = self.fast_server_mut() {
            server.spend(bytes);
        }
    }

    /// Reduces the window for a timeout of the SYN-ACK, as after a retransmission timeout, because data that
    /// followed it may be lost too. There is no reduction if a repeated SYN was answered since: that SYN-ACK
    /// may still be acknowledged.
    pub(crate) fn reduce_for_lost_syn_ack(&mut self, now: Instant) {
        // Timers fire at the whole microsecond in which they are due.
        let wait = Micros::from(self.timer_base());
        if self.handshake.syn.last_sent.is_some_and(|at| Micros::between(at, now) < wait) {
            return;
        }
        if self.fast_server_mut().is_some_and(Server::on_syn_ack_timeout) {
            // No data is known to be still in flight.
            self.tx.rate.congestion.on_rto(&RtoEvent { now, pipe: 0, first: true, max_ssthresh: None });
            self.counters.reductions += 1;
        }
    }

    /// Evaluates the acknowledgement of our SYN-ACK. If it answers a retransmission, the client was in
    /// SYN-SENT when earlier data arrived and dropped it: the data is sent again at once, which is no sign of
    /// congestion. If it answers the original, the timeout was spurious. The echoed timestamp shows which one
    /// was answered: there may be several, since a repeated SYN is answered independently of the timer.
    pub(crate) fn detect_lost_syn_ack_data(&mut self, segment: &Arrived<'_>, now: Instant) {
        let Some(server) = self.fast_server() else { return };
        let (accepted, reduced) = (server.is_accepted(), server.has_reduced());
        let Some(syn_ack) = self.tx.scoreboard.head().copied().filter(|head| head.syn) else { return };
        if !accepted || self.handshake.syn.sent < 2 {
            return;
        }
        let since_last = Micros::between(syn_ack.sent_at, now);
        let echoed = self.echo_rtt(segment, now);
        // Both ends of the interval are rounded to timestamp ticks.
        let since = echoed.map_or(since_last, |echoed| echoed + TIMESTAMP_TICK * 2);
        let board = &mut self.tx.scoreboard;
        let dropped: Vec<SeqRange> = board
            .in_flight()
            .filter(|record| !record.syn && Micros::between(record.sent_at, now) > since)
            .filter(|record| record.range.start.ge(segment.ack))
            .map(|record| record.range)
            .collect();
        if !dropped.is_empty() {
            dropped.into_iter().for_each(|range| {
                board.mark_lost(range);
            });
            self.tx.recovery.on_too_big(self.tx.scoreboard.nxt());
        } else if reduced && echoed.is_some_and(|echoed| echoed > since_last + TIMESTAMP_TICK) {
            self.tx.rate.on_spurious(now);
            self.counters.undos += 1;
        }
    }
}

/// One-time cookies, which travel outside the handshake ([`crate::fast_open::one_time`]).
impl Connection {
    /// Processes the option on a segment outside the handshake.
    pub(crate) fn on_fast_open_option(&mut self, option: FastOpen) {
        if option.cookie.is_empty() {
            if self.fast_server_mut().is_some_and(|server| server.on_cookie_request()) {
                self.rx.ack.force();
            }
        } else if let Some(client) = self.fast_client_mut().filter(|client| client.requests_left > 0) {
            client.requests_left = 0;
            client.report(FastOpenReport::OneTime(option.cookie));
        }
    }

    /// True if the client waits for a one-time cookie.
    pub(crate) fn wants_one_time_cookie(&self) -> bool {
        self.fast_server().is_some_and(|server| server.wants_cookie())
    }

    /// Hands a one-time cookie to the client, with the next segments.
    pub(crate) fn give_one_time_cookie(&mut self, cookie: Cookie) {
        if let Some(server) = self.fast_server_mut() {
            server.give_cookie(cookie);
        }
    }

    /// Returns the Fast Open option of the next segment outside the handshake.
    pub(crate) fn fast_open_option(&self) -> Option<FastOpen> {
        let asks = self.fast_client().is_some_and(|client| client.requests_left > 0);
        let cookie = || self.fast_server().and_then(|server| server.cookie()).map(FastOpen::with_cookie);
        if asks { Some(FastOpen::REQUEST) } else { cookie() }
    }

    /// Records that a segment outside the handshake left with this option.
    pub(crate) fn on_fast_open_option_sent(&mut self) {
        if let Some(client) = self.fast_client_mut() {
            client.requests_left = client.requests_left.saturating_sub(1);
        } else if let Some(server) = self.fast_server_mut() {
            server.on_cookie_sent();
        }
    }

    /// Returns the bytes of this option in the next segment.
    pub(crate) fn fast_open_option_len(&self) -> u32 {
        match self.fast_open_option() {
            Some(option) if option.cookie.is_empty() => 4,
            Some(_) => 20,
            None => 0,
        }
    }
}

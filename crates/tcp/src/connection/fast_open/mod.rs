//! Fast Open on one connection: the content of its SYN or SYN-ACK, and the effects of the answer (RFC 7413
//! section 4.2). Decisions about cookies and limits are in [`crate::fast_open`].
//!
//! The data of a SYN is in the send queue like any other data. Data that the SYN-ACK does not acknowledge
//! counts as never sent. The scoreboard is rewound to SEG.ACK, and the data leaves with the acknowledgement
//! as new data, without a response of congestion control.

use alloc::boxed::Box;

use arrayvec::ArrayVec;
use brisk_wire::{Cookie, FastOpen, SeqNum};

use crate::config::TcpConfig;
use crate::connection::arrive::COPIES_MEET;
use crate::connection::gentle::plain_copy::PlainCopy;
use crate::connection::handshake::{Handshake, OwnSyn};
use crate::connection::path::STANDARD_WINDOW;
use crate::connection::sender::{Sender, initial_window};
use crate::fast_open::client::{FastOpenReport, Mode, OpenAttempt};
use crate::fast_open::{BlackHoleSign, FastOpenConnect, FastOpenOutcome, OffReason, SynAckClass};
use crate::outcome::{Arrived, PARITY_OPTION};
use crate::send::rto::Rto;
use crate::send::scoreboard::Scoreboard;
use crate::seq_ranges::SeqRange;
use crate::time::{Duration, Instant, Micros};

mod after_syn;
mod client;
mod server;

pub(crate) use server::{MAX_AFTER_SYN, SynAnswer};

use client::{Client, RepeatedSynAck};
use server::Server;

#[derive(Debug)]
pub(crate) struct FastOpenState {
    /// `None` unless Fast Open was requested.
    role: Option<Box<Role>>,
    /// The outcome so far, for the application.
    pub(crate) outcome: FastOpenOutcome,
    /// True if data of the peer's SYN was delivered: a copy of the SYN would be a replay.
    pub(crate) syn_data_taken: bool,
}

/// The role of a connection in Fast Open.
#[derive(Debug)]
enum Role {
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

impl FastOpenState {
    pub(super) fn new() -> Self {
        FastOpenState {
            role: None,
            outcome: FastOpenOutcome::Off(OffReason::NotAsked),
            syn_data_taken: false,
        }
    }

    pub(super) fn start_client(&mut self, attempt: OpenAttempt, connect: FastOpenConnect, iss: SeqNum) {
        self.outcome = FastOpenOutcome::Pending;
        self.role = Some(Box::new(Role::Client(Client::new(attempt, connect, iss))));
    }

    /// Starts a passive open. `first` is the sequence number of the first byte after the SYN.
    pub(super) fn start_server(&mut self, answer: SynAnswer, first: SeqNum) {
        self.outcome = answer.outcome;
        self.role = Some(Box::new(Role::Server(Server::new(answer, first))));
    }

    #[inline]
    pub(super) fn client(&self) -> Option<&Client> {
        match self.role.as_deref()? {
            Role::Client(client) => Some(client),
            Role::Server(_) => None,
        }
    }

    #[inline]
    pub(super) fn client_mut(&mut self) -> Option<&mut Client> {
        match self.role.as_deref_mut()? {
            Role::Client(client) => Some(client),
            Role::Server(_) => None,
        }
    }

    #[inline]
    pub(super) fn server(&self) -> Option<&Server> {
        match self.role.as_deref()? {
            Role::Server(server) => Some(server),
            Role::Client(_) => None,
        }
    }

    #[inline]
    pub(super) fn server_mut(&mut self) -> Option<&mut Server> {
        match self.role.as_deref_mut()? {
            Role::Server(server) => Some(server),
            Role::Client(_) => None,
        }
    }
}

/// Both roles: the options, and the acknowledgement number.
impl FastOpenState {
    /// Returns the option of the next SYN or SYN-ACK; `sent` of them have left before. Only the first SYN-ACK
    /// has the option. A plain SYN has none.
    pub(super) fn syn_option(&self, sent: u32) -> Option<FastOpen> {
        match self.role.as_deref()? {
            Role::Client(client) => client.syn_option(),
            Role::Server(server) => server.option().filter(|_| sent == 0),
        }
    }

    /// Returns the option of the next segment outside the handshake. It transfers a one-time cookie
    /// ([`crate::fast_open::one_time`]).
    #[inline]
    pub(super) fn option(&self) -> Option<FastOpen> {
        match self.role.as_deref()? {
            Role::Client(client) => client.requests_cookie().then_some(FastOpen::REQUEST),
            Role::Server(server) => server.cookie().map(FastOpen::with_cookie),
        }
    }

    /// Returns the length of this option in the next segment, bytes.
    pub(super) fn option_len(&self) -> u32 {
        match self.option() {
            Some(option) if option.cookie.is_empty() => 4,
            Some(_) => 20,
            None => 0,
        }
    }

    /// Records that a segment outside the handshake left with this option.
    pub(super) fn on_option_sent(&mut self) {
        match self.role.as_deref_mut() {
            Some(Role::Client(client)) => client.on_request_sent(),
            Some(Role::Server(server)) => server.on_cookie_sent(),
            None => {}
        }
    }

    /// Processes the option on a segment outside the handshake. Returns true if it is a client's request for
    /// a cookie and is granted.
    pub(super) fn on_option(&mut self, option: FastOpen) -> bool {
        match self.role.as_deref_mut() {
            Some(Role::Client(client)) if !option.cookie.is_empty() => {
                client.on_one_time_cookie(option.cookie);
                false
            }
            Some(Role::Server(server)) if option.cookie.is_empty() => server.on_cookie_request(),
            Some(Role::Client(_) | Role::Server(_)) | None => false,
        }
    }

    /// Returns the acknowledgement number, if RCV.NXT is `rcv_nxt`. If the SYN came in parts, only the first
    /// part is acknowledged at first.
    #[inline]
    pub(super) fn acknowledged(&self, rcv_nxt: SeqNum) -> SeqNum {
        self.server().and_then(Server::acknowledged).unwrap_or(rcv_nxt)
    }
}

/// The client.
impl FastOpenState {
    /// True while the SYN in flight uses Fast Open.
    pub(crate) fn opens_fast(&self) -> bool {
        self.client().is_some_and(Client::is_fast)
    }

    /// Returns the number of SYNs that left before the ordinary schedule began.
    pub(super) fn syns_before_plain(&self) -> u32 {
        u32::from(self.client().is_some())
    }

    /// Returns the range of data in the next SYN, which has the sequence number `iss`; empty without Fast
    /// Open.
    pub(super) fn syn_data(&self, iss: SeqNum, tx: &Sender) -> SeqRange {
        let client = self.client().filter(|client| client.is_fast() && client.takes_data());
        let len = client.map_or(0, |client| tx.queue.end().since(iss + 1).min(client.syn_payload_limit(tx)));
        SeqRange::with_len(iss + 1, len)
    }

    /// Lets a deferred SYN leave. Returns true if it is due now.
    pub(super) fn release_syn(&mut self) -> bool {
        self.client_mut().is_some_and(Client::release)
    }

    /// Returns the bytes that a deferred SYN would carry; `None` if it would carry none.
    pub(super) fn deferred_syn_capacity(&self, tx: &Sender) -> Option<u32> {
        let client = self.client().filter(|client| client.is_deferred() && client.takes_data())?;
        Some(client.syn_payload_limit(tx))
    }

    /// Returns the bytes of data on a copy of the SYN, which then also has the cookie. `None` unless the
    /// configuration permits data and the path has passed data on a SYN.
    pub(super) fn copied_syn_data(&self, config: &TcpConfig) -> Option<u32> {
        let permitted = config.handshake_copies.is_some_and(|copies| copies.with_data);
        self.client().filter(|_| permitted)?.proven_data()
    }

    /// True if the copy of the SYN guards against devices that drop SYNs with data.
    pub(super) fn insures_syn_data(&self) -> bool {
        let client = self.client();
        client.is_some_and(|client| PlainCopy::of(&client.attempt, &client.connect) != PlainCopy::Off)
    }

    /// Returns the mode and the data length of the first SYN.
    pub(crate) fn first_syn(&self) -> Option<(Mode, u32)> {
        self.client().map(|client| (client.attempt.mode, client.data()))
    }

    /// Processes an acknowledgement of our SYN up to `ack`. Data of the SYN beyond `ack` counts as never
    /// sent. `iss` is the sequence number of the SYN.
    pub(super) fn rewind_syn_data(&self, ack: SeqNum, iss: SeqNum, scoreboard: &mut Scoreboard) {
        let rewinds = self.client().is_some_and(|client| client.rewinds(ack.since(iss + 1)));
        if rewinds && scoreboard.una() == iss {
            scoreboard.rewind(ack);
        }
    }

    /// Falls back to a plain SYN because the first was not answered in time. The ordinary schedule begins
    /// with the plain one. Returns false if there is no Fast Open to fall back from.
    pub(super) fn fall_back_to_plain_syn(&mut self, syn: &mut OwnSyn, rto: &mut Rto) -> bool {
        if !self.client_mut().is_some_and(Client::fall_back) {
            return false;
        }
        syn.copy.cancel();
        rto.disarm();
        syn.due = true;
        true
    }

    /// Sends a plain SYN at once after ICMP reported that the first was too large for the path.
    pub(super) fn on_syn_too_big(&mut self, syn: &mut OwnSyn, rto: &mut Rto) {
        if self.fall_back_to_plain_syn(syn, rto)
            && let Some(client) = self.client_mut()
        {
            client.on_too_big();
        }
    }

    /// Keeps a segment that has overtaken the SYN-ACK, if all kept segments take at most `limit` bytes. Such
    /// a segment answers the data of the SYN, so the SYN-ACK is lost or reordered. Therefore a SYN leaves
    /// again after the reordering window of RACK, a quarter of the round-trip time (RFC 8985 section 6.2),
    /// and the server repeats the SYN-ACK. The wait is at least [`COPIES_MEET`], because the server takes an
    /// earlier SYN for a copy.
    ///
    /// `since`: time since the SYN left.
    pub(super) fn queue_early(
        &mut self,
        segment: &Arrived<'_>,
        limit: usize,
        since: Micros,
        rto: &mut Rto,
        now: Instant,
    ) {
        let Some(client) = self.client_mut() else { return };
        if client.queue_early(segment, limit) && client.is_fast() {
            let at = now + (since / 4).max(COPIES_MEET.into());
            rto.fire_at(rto.deadline().map_or(at, |deadline| deadline.min(at)));
        }
    }

    /// Processes a reset that answers the SYN. Some devices refuse data on a SYN this way, so the first reset
    /// only sends the plain copy, unless the copy has left. Returns true if the connection goes on; false for
    /// a later reset, and without a copy to wait for.
    pub(super) fn defers_reset(&mut self, copy: &mut PlainCopy) -> bool {
        let Some(client) = self.client_mut() else { return false };
        match *copy {
            PlainCopy::Off => return false,
            PlainCopy::After(_) | PlainCopy::At(_) => *copy = PlainCopy::Due,
            PlainCopy::Due | PlainCopy::Left(_) => {}
        }
        !core::mem::replace(&mut client.reset, true)
    }

    /// Evaluates the SYN-ACK after its acknowledgement has been processed. `echoed`: the round-trip time by
    /// the SYN-ACK's timestamp. Returns true if the SYN-ACK acknowledges data of the SYN.
    pub(super) fn classify_syn_ack(
        &mut self,
        segment: &Arrived<'_>,
        echoed: Option<Micros>,
        handshake: &Handshake,
        config: &TcpConfig,
        now: Instant,
    ) -> bool {
        let acked = segment.ack.since(handshake.iss + 1);
        let repeats_data = self.copied_syn_data(config).is_some_and(|data| data > 0);
        let Some(client) = self.client_mut() else { return false };
        let Handshake { syn, opened, .. } = handshake;
        let by_copy = !repeats_data && syn.copy.is_answered(echoed, client.attempt.srtt, *opened, now);
        let outcome = client.record_syn_ack(segment, acked, by_copy);
        let takes_data = client.data() > 0 && acked > 0;
        self.outcome = outcome;
        takes_data
    }

    /// Evaluates a repeated SYN-ACK, which shows that our acknowledgement did not arrive. Several of them
    /// over some seconds, without any other segment, show that the path passes SYNs but no later segments.
    /// None of our timers would detect this, because the request is acknowledged. Returns true if the
    /// connection must be given up.
    pub(super) fn on_repeated_syn_ack(
        &mut self,
        handshake: &Handshake,
        config: &TcpConfig,
        now: Instant,
    ) -> bool {
        let since = handshake.established.map_or(Duration::ZERO, |at| now.saturating_since(at));
        // A peer that receives two SYNs answers twice, and may send each SYN-ACK twice as we do.
        let copies = u8::from(config.handshake_copies.is_some());
        let explained = u8::from(handshake.syn.copy.has_left()) + copies;
        let Some(client) = self.client_mut() else { return false };
        let verdict = client.on_repeated_syn_ack(RepeatedSynAck { since, explained });
        if verdict.black_hole {
            self.on_black_hole(BlackHoleSign::RepeatedSynAck);
        }
        verdict.give_up
    }

    /// Processes a simultaneous open: no listener has agreed to anything.
    pub(super) fn on_simultaneous_open(&mut self) {
        if let Some(client) = self.client_mut() {
            self.outcome = client.on_simultaneous_open();
        }
    }

    /// Evaluates the end of the connection. `lost`: an unanswered SYN counts as lost. `only_fin`: nothing but
    /// a FIN out of order has arrived.
    pub(super) fn on_end(&mut self, lost: bool, only_fin: bool) {
        let Some(client) = self.client_mut() else { return };
        client.take_early();
        match client.class() {
            None if lost => self.outcome = client.on_syn_lost(),
            Some(_) if client.saw_early_fin() && only_fin => self.on_black_hole(BlackHoleSign::FinOnly),
            None | Some(_) => {}
        }
    }

    /// Evaluates a reset from the peer, or from a device in its name. `young`: it came within a round trip of
    /// the SYN-ACK. `has_received`: data came before it.
    pub(super) fn on_reset(&mut self, young: bool, has_received: bool) {
        if young && !has_received && self.syn_ack_class() == Some(SynAckClass::Accepted) {
            self.on_black_hole(BlackHoleSign::EarlyReset);
        }
    }

    /// Evaluates the `in_row`th retransmission timeout in a row; `una` is the first unacknowledged byte. The
    /// second timeout without progress since the connection opened shows a black hole.
    pub(super) fn on_timeout(&mut self, una: SeqNum, in_row: u32) {
        if in_row == 2 && self.client().is_some_and(|client| client.is_stuck_at(una)) {
            self.on_black_hole(BlackHoleSign::Timeouts);
        }
    }

    /// Processes the fact that the request was answered on another connection, which began later. If no data
    /// has arrived here (`has_received` is false), the response was lost or the path is a black hole after
    /// such a SYN.
    pub(crate) fn on_hedge_won(&mut self, has_received: bool) {
        if !has_received && self.syn_ack_class() == Some(SynAckClass::Accepted) {
            self.on_black_hole(BlackHoleSign::HedgeWon);
        }
    }

    fn on_black_hole(&mut self, sign: BlackHoleSign) {
        if let Some(outcome) = self.client_mut().and_then(|client| client.on_black_hole(sign)) {
            self.outcome = outcome;
        }
    }

    /// Records that data or a FIN arrived after the SYN-ACK.
    #[inline]
    pub(super) fn on_arrival(&mut self, advanced: bool, fin_out_of_order: bool) {
        if let Some(client) = self.client_mut() {
            client.on_arrival(advanced, fin_out_of_order);
        }
    }

    /// True if the cache has not received every report, or the client waits for a one-time cookie.
    #[inline]
    pub(super) fn has_report(&self) -> bool {
        match self.role.as_deref() {
            None => false,
            Some(Role::Client(client)) => client.has_report(),
            Some(Role::Server(server)) => server.wants_cookie(),
        }
    }

    pub(crate) fn take_reports(&mut self) -> ArrayVec<FastOpenReport, 4> {
        self.client_mut().map(Client::take_reports).unwrap_or_default()
    }

    /// Returns the time after the SYN at which a second, plain connection for the same request should follow;
    /// `None` if there is no need for one.
    pub(crate) fn hedge_wait(&self) -> Option<Duration> {
        self.client()?.hedge_wait()
    }

    pub(super) fn syn_ack_class(&self) -> Option<SynAckClass> {
        self.client()?.class()
    }
}

/// The server.
impl FastOpenState {
    /// Processes a timeout of the SYN-ACK. Returns true if data that followed the SYN-ACK may be lost.
    pub(super) fn on_syn_ack_timeout(&mut self) -> bool {
        self.server_mut().is_some_and(Server::on_syn_ack_timeout)
    }

    /// True if the SYN opened the connection: it belongs to the application already.
    pub(crate) fn is_opened_by_syn(&self) -> bool {
        self.server().is_some_and(Server::is_accepted)
    }

    /// True if data may leave from SYN-RECEIVED.
    pub(super) fn sends_early(&self) -> bool {
        self.server().is_some_and(Server::sends_early)
    }

    /// True if the application answers only authenticated requests.
    pub(crate) fn is_authenticated(&self) -> bool {
        self.server().is_some_and(Server::is_authenticated)
    }

    /// True if there is an amplification limit until the handshake is complete. Segments then leave one by
    /// one.
    pub(super) fn limits_amplification(&self) -> bool {
        self.server().is_some_and(|server| server.allowance().is_some())
    }

    /// Returns the bytes of data that may leave before the handshake's ACK; `None` if the windows alone
    /// decide. `sent`: bytes that have left. A client whose address only a cookie proves gets no more than
    /// any connection may begin with.
    pub(super) fn unproven_budget(&self, sent: u32, mss: u32) -> Option<u32> {
        let unproven = !self.is_authenticated();
        unproven.then(|| initial_window(STANDARD_WINDOW, mss).saturating_sub(sent))
    }

    /// Returns which segments the amplification limit permits in SYN-RECEIVED after the SYN-ACK. The next one
    /// has at most `limit` bytes of payload and `headers` bytes of headers.
    pub(super) fn affords_early(&self, tx: &Sender, limit: u32, headers: usize) -> EarlyBudget {
        let Some(server) = self.server().filter(|server| server.sends_early()) else {
            return EarlyBudget::Nothing;
        };
        let Some(allowance) = server.allowance() else { return EarlyBudget::Parity };
        // Segments are not cut to fit the limit.
        let next = tx.unsent().min(limit) as usize;
        let parity = (tx.full_payload() + PARITY_OPTION) as usize;
        if headers + next > allowance {
            EarlyBudget::Nothing
        } else if headers + parity > allowance {
            EarlyBudget::Segment
        } else {
            EarlyBudget::Parity
        }
    }

    /// Counts sent IP bytes against the amplification limit.
    #[inline]
    pub(super) fn count_sent(&mut self, bytes: usize) {
        if let Some(server) = self.server_mut() {
            server.spend(bytes);
        }
    }

    /// True if the client waits for a one-time cookie.
    #[inline]
    pub(crate) fn wants_one_time_cookie(&self) -> bool {
        self.server().is_some_and(Server::wants_cookie)
    }

    /// Hands a one-time cookie to the client, with the next segments.
    pub(crate) fn give_one_time_cookie(&mut self, cookie: Cookie) {
        if let Some(server) = self.server_mut() {
            server.give_cookie(cookie);
        }
    }
}

//! A connection. This module only connects its parts.
//!
//! Each step of a segment's life has a file with methods of `Connection`. `handshake` opens the connection,
//! and `syn_report` reports how its SYN was answered. `arrive` processes an arriving segment (the steps of
//! RFC 9293 section 3.10.7), and `acknowledge` its acknowledgement. `transmit` selects a leaving segment,
//! `segment` writes it, and `account` accounts for it. `timer` handles deadlines, `path` exchanges facts with
//! the memory of paths, `application` has the calls of the program, and `stats` the snapshots.
//!
//! The other files are parts of a connection. Each part owns its state. These parts and those in `send` and
//! `receive` (queue, scoreboard, RACK, assembler, ...) take values and return values.
//!
//! Every call that may change a connection returns an `Aftermath`: the work that it leaves to the stack.
//!
//! With Fast Open a SYN may carry data, and data may be sent from SYN-RECEIVED. So sender and receiver exist
//! in every state.

use alloc::boxed::Box;
use alloc::sync::Arc;

use brisk_wire::SeqNum;

use crate::config::{EcnMode, TcpConfig};
use crate::connection::observation::Observation;
use crate::error::CloseReason;
use crate::four_tuple::{CompactTuple, FourTuple};
use crate::receive::Owed;
use crate::time::{Duration, Instant};

mod account;
mod acknowledge;
mod application;
mod arrive;
mod decision;
mod ecn;
mod fast_open;
mod gentle;
mod handshake;
pub(crate) mod observation;
mod outbox;
mod path;
mod path_mtu;
mod reactive;
mod receiver;
mod segment;
mod sender;
mod state;
mod stats;
mod syn_report;
mod timer;
mod transmit;
mod urgent_pointer;

#[cfg(test)]
mod tests;

pub use state::State;
pub(crate) use stats::LiveStats;
pub use stats::{ConnInfo, ConnStats, Counters, ParityCounters};

pub(crate) use fast_open::{MAX_AFTER_SYN, SynAnswer};
pub(crate) use gentle::planner::ReservationChange;
pub(crate) use gentle::proactive::is_marked;
pub(crate) use handshake::SynCookieParams;
pub(crate) use segment::MAX_PIECES;
pub(crate) use sender::{MemberState, SHORT_TRANSFER};

use ecn::EcnState;
use fast_open::FastOpenState;
use gentle::{Gentle, Parts};
use handshake::Handshake;
use outbox::Outbox;
use path::OnPath;
use reactive::ProbeTimer;
use receiver::Receiver;
use sender::Sender;
use syn_report::SynReport;
use timer::Keepalive;
use urgent_pointer::UrgentPointer;

/// Random values that the stack draws for a connection so that nobody else can guess them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Secrets {
    /// Initial send sequence number (RFC 6528).
    pub(crate) iss: SeqNum,
    /// Offset of the timestamp clock (RFC 7323 section 5.4).
    pub(crate) ts_offset: u32,
}

/// Properties of the host that a connection needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Host {
    /// Largest IP packet that the device takes, bytes.
    pub(crate) mtu: u16,
    /// Clock granularity of the driver: G of RFC 6298.
    pub(crate) granularity: Duration,
    /// True if there is memory for repairs by parity.
    pub(crate) accepts_parity: bool,
}

/// Interface of a connection to the stack around it.
pub(crate) struct Env<'a> {
    /// The host-wide limit on challenge ACKs (RFC 5961 section 7): true if one may be sent.
    pub(crate) challenge: &'a mut dyn FnMut(Instant) -> bool,
    /// Largest super-segment the device takes, payload bytes; 0: single segments only.
    pub(crate) super_segment: u32,
    /// The device can send each segment of a super-segment twice.
    pub(crate) sends_twice: bool,
    /// True if only the pseudo-header sum is written: the device completes the checksum.
    pub(crate) partial_checksum: bool,
    /// True if the payload of a super-segment may stay in the send queue.
    pub(crate) payload_in_place: bool,
}

/// A set of events for the application.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Events(u8);

impl Events {
    pub(crate) const CONNECTED: Events = Events(1);
    pub(crate) const READABLE: Events = Events(2);
    /// A write that was refused is possible again.
    pub(crate) const WRITABLE: Events = Events(4);
    pub(crate) const CLOSED: Events = Events(8);

    pub(crate) fn insert(&mut self, other: Events) {
        self.0 |= other.0;
    }

    pub(crate) fn contains(self, other: Events) -> bool {
        self.0 & other.0 == other.0
    }
}

impl core::ops::BitOr for Events {
    type Output = Events;

    fn bitor(self, other: Events) -> Events {
        Events(self.0 | other.0)
    }
}

/// How soon the next packet of a connection must leave.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Urgency {
    /// The connection has nothing to send.
    Idle,
    /// The connection may have a packet, which waits for its turn.
    Normal,
    /// The connection has a packet that must leave before the next segment is processed: each segment of a
    /// batch is answered on its own.
    BeforeNextRx,
    /// The connection has a packet that must leave before the application runs and before the next segment is
    /// processed.
    BeforeApp,
}

/// Work that a call on a connection leaves to the stack; usually only a poll for a packet. It is the only way
/// by which the events of the connection reach the stack.
#[must_use]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Aftermath {
    /// How soon its next packet must leave.
    pub(crate) urgency: Urgency,
    /// Events for the application.
    pub(crate) events: Events,
    /// Bytes that its buffers hold.
    pub(crate) memory: usize,
    /// Of these, bytes that are kept for repairs.
    pub(crate) repair_memory: usize,
    /// True if one of its buffers has empty storage.
    pub(crate) has_drained_storage: bool,
    /// True if its handshake may have shown how the path treats the option of Corrective and Proactive.
    pub(crate) has_gentle_report: bool,
    /// True if it may have a report about its path.
    pub(crate) has_path_report: bool,
    /// True if Fast Open has a report for the cache, or its client waits for a one-time cookie.
    pub(crate) has_fast_open_report: bool,
    /// True if it may become a member of its path.
    pub(crate) asks_to_join: bool,
    /// True if it will send and receive nothing more.
    pub(crate) is_over: bool,
}

impl Aftermath {
    /// True if the connection needs more from the stack than a poll, and the counting of its memory and the
    /// keeping of its storage.
    #[inline]
    pub(crate) fn asks(&self) -> bool {
        self.has_gentle_report
            | self.has_path_report
            | self.has_fast_open_report
            | self.asks_to_join
            | self.is_over
            | (self.events != Events::default())
    }
}

/// State of a connection in TIME-WAIT: enough to answer old duplicates and to decide about a SYN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TimeWaitState {
    pub(crate) snd_nxt: SeqNum,
    pub(crate) rcv_nxt: SeqNum,
    /// The window field last sent.
    pub(crate) window: u16,
    /// TS.Recent, if timestamps are in use.
    pub(crate) ts_recent: Option<u32>,
    /// Offset of our timestamp clock.
    pub(crate) ts_offset: u32,
    /// True if the peer may send copies of its segments; a copy is not answered.
    pub(crate) copies: bool,
}

#[derive(Debug)]
pub(crate) struct Connection {
    tuple: CompactTuple,
    pub(crate) config: Arc<TcpConfig>,
    /// Offset of the timestamp clock at the beginning.
    ts_offset: u32,
    state: State,
    pub(crate) handshake: Handshake,
    pub(crate) syn_report: SynReport,
    pub(crate) path: OnPath,
    pub(crate) tx: Sender,
    pub(crate) rx: Receiver,
    ecn: EcnState,
    pub(crate) urgent: UrgentPointer,
    pub(crate) fast_open: FastOpenState,
    /// Corrective and Proactive, if the handshake agrees on them, and the planner.
    pub(crate) gentle: Gentle,
    keepalive: Option<Box<Keepalive>>,
    pub(crate) user_timeout: Option<Duration>,
    fin_wait_2_until: Option<Instant>,
    /// The tail loss probe timer; set once the handshake is complete, if both ends use SACK.
    reactive: Option<ProbeTimer>,
    outbox: Outbox,
    events: Events,
    closed: Option<CloseReason>,
    /// ICMP error reported since the last acknowledgement arrived.
    soft_error: Option<CloseReason>,
    released: bool,
    pub(crate) counters: LiveStats,
}

impl Connection {
    fn new(
        tuple: FourTuple,
        config: &Arc<TcpConfig>,
        secrets: Secrets,
        host: Host,
        now: Instant,
    ) -> Box<Self> {
        let tx = Sender::new(config, secrets.iss, host, tuple.remote.is_ipv6(), now);
        let rx = Receiver::new(config, secrets.ts_offset, u32::from(tx.advertised_mss()));
        Box::new(Connection {
            tuple: tuple.into(),
            config: Arc::clone(config),
            ts_offset: secrets.ts_offset,
            state: State::Closed,
            handshake: Handshake::new(config, secrets.iss, now),
            syn_report: SynReport::default(),
            path: OnPath::default(),
            tx,
            rx,
            ecn: EcnState::new(config.ecn == EcnMode::On),
            urgent: UrgentPointer::new(config.urgent),
            fast_open: FastOpenState::new(),
            gentle: Gentle::new(config, host.accepts_parity),
            keepalive: None,
            user_timeout: config.user_timeout,
            fin_wait_2_until: None,
            reactive: None,
            outbox: Outbox::default(),
            events: Events::default(),
            closed: None,
            soft_error: None,
            released: false,
            counters: LiveStats::default(),
        })
    }

    pub(crate) fn tuple(&self) -> FourTuple {
        (&self.tuple).into()
    }

    pub(crate) fn state(&self) -> State {
        self.state
    }

    /// Returns the reason why the connection ended, once it has.
    pub(crate) fn close_reason(&self) -> Option<CloseReason> {
        self.closed
    }

    /// True once nothing will be sent or received. The slot may be freed when the application has released
    /// it.
    pub(crate) fn is_done(&self) -> bool {
        match self.state {
            State::Closed => self.outbox.is_empty(),
            State::TimeWait => self.outbox.is_empty() && self.rx.ack.owed() == Owed::Nothing,
            State::SynSent
            | State::SynReceived
            | State::Established
            | State::FinWait1
            | State::FinWait2
            | State::CloseWait
            | State::Closing
            | State::LastAck => false,
        }
    }

    /// Returns the state for TIME-WAIT; `None` in every other state.
    pub(crate) fn time_wait(&self) -> Option<TimeWaitState> {
        (self.state == State::TimeWait).then(|| self.numbers())
    }

    fn numbers(&self) -> TimeWaitState {
        TimeWaitState {
            snd_nxt: self.tx.scoreboard.nxt(),
            rcv_nxt: self.rx.rcv_nxt(),
            window: (self.rx.rcv_wnd() >> self.rx.window.shift()).min(u32::from(u16::MAX)) as u16,
            ts_recent: self.rx.timestamps.recent().filter(|_| self.handshake.agreed.timestamps),
            ts_offset: self.ts_offset,
            copies: self.gentle.proactive().is_some(),
        }
    }

    /// Returns the state to keep after LAST-ACK: the peer's initial sequence number, the final numbers, and
    /// whether data of the peer's SYN was delivered.
    pub(crate) fn closed_last(&self) -> Option<(SeqNum, TimeWaitState, bool)> {
        let finished = self.state == State::Closed && self.closed == Some(CloseReason::Finished);
        (finished && self.rx.assembler.is_complete())
            .then(|| (self.handshake.irs, self.numbers(), self.fast_open.syn_data_taken))
    }

    /// True if there are events that no [`Aftermath`] has handed over yet.
    pub(crate) fn has_events(&self) -> bool {
        self.events != Events::default()
    }

    /// Returns the bytes allocated by both buffers, and by segments that arrived before the SYN-ACK.
    pub(crate) fn memory(&self) -> usize {
        let early = self.fast_open.client().map_or(0, |client| client.early_bytes());
        self.tx.queue.allocated() + self.rx.queue.memory() + early
    }

    /// True if nothing but a SYN-ACK is in flight, and nothing waits to be sent or read.
    pub(crate) fn is_idle(&self) -> bool {
        // A half-open connection may wait a minute for the answer to its SYN-ACK.
        let waits = match self.state {
            State::SynSent => false,
            State::SynReceived => self.fast_open.client().is_none_or(|client| !client.has_early()),
            _ => self.tx.scoreboard.is_empty(),
        };
        waits && self.tx.queue.is_empty() && self.rx.queue.readable() == 0 && !self.has_events()
    }

    /// True if the connection is idle and unobserved, and has neither storage of received data nor a
    /// mechanism that needs state (Corrective, Proactive).
    pub(crate) fn is_bare(&self) -> bool {
        let has_mechanisms = self.gentle.active.is_some();
        self.is_idle() && self.rx.queue.memory() == 0 && !has_mechanisms && !self.counters.is_observed()
    }

    /// Frees memory that only traffic needs: empty lists, and parts that have their initial value. The
    /// behaviour does not change.
    pub(crate) fn release_memory(&mut self) {
        self.counters.release_memory();
        self.outbox.release_memory();
        self.path.release_memory();
        if let Some(unmarked) = &mut self.gentle.unmarked {
            unmarked.release_memory();
        }
        self.tx.release_memory();
        self.rx.release_memory();
    }

    fn enter(&mut self, state: State) {
        if self.state != state {
            self.state = state;
            self.counters.observe(Observation::State(state));
        }
    }

    /// Ends the connection: only the outbox is still sent.
    fn end(&mut self, reason: CloseReason) {
        if self.closed.is_none() {
            let only_fin = self.rx.assembler.holds_only_fin() && self.counters.payload_bytes_received == 0;
            let by_us = matches!(reason, CloseReason::Aborted | CloseReason::ListenerClosed);
            self.fast_open.on_end(!by_us && self.handshake.syn.sent > 0, only_fin);
            self.closed = Some(reason);
            self.events.insert(Events::CLOSED | Events::READABLE | Events::WRITABLE);
        }
        if self.state != State::TimeWait {
            self.enter(State::Closed);
        }
        self.tx.stop();
        self.handshake.syn.due = false;
        self.handshake.syn.copy.cancel();
        self.keepalive = None;
        self.fin_wait_2_until = None;
    }
}

/// The work that a call leaves to the stack.
impl Connection {
    /// Calls `act`; returns its result and the work left to the stack.
    #[inline]
    pub(crate) fn act<R>(&mut self, now: Instant, act: impl FnOnce(&mut Connection) -> R) -> (R, Aftermath) {
        let result = act(self);
        (result, self.aftermath(Urgency::Normal, now))
    }

    /// Calls a method of Corrective and Proactive with the parts that it uses.
    #[inline]
    pub(crate) fn with_gentle<R>(&mut self, call: impl FnOnce(&mut Gentle, &mut Parts<'_>) -> R) -> R {
        let mut parts = Parts {
            tx: &mut self.tx,
            rx: &mut self.rx,
            path: &mut self.path,
            counters: &mut self.counters,
            config: &self.config,
            handshake: &self.handshake,
            state: self.state,
        };
        call(&mut self.gentle, &mut parts)
    }

    /// Returns the work left to the stack, including the events.
    #[inline(always)]
    pub(crate) fn aftermath(&mut self, urgency: Urgency, now: Instant) -> Aftermath {
        debug_assert!(self.closed.is_some() || !self.is_done(), "it is over and nobody says why");
        Aftermath {
            urgency,
            events: core::mem::take(&mut self.events),
            memory: self.memory(),
            repair_memory: self.gentle.repair_memory(&self.rx),
            has_drained_storage: self.rx.queue.is_drained() || self.tx.queue.is_drained(),
            has_gentle_report: self.owes_syn_report(),
            has_path_report: self.path.owes_report(&self.handshake, &self.tx, self.closed.is_some(), now)
                || self.path.owes_flight_report()
                || self.tx.mtu.asks_path(),
            has_fast_open_report: self.fast_open.has_report(),
            asks_to_join: self.path.asks_to_join(&self.tx) && self.handshake.is_complete(),
            is_over: self.closed.is_some() && self.is_done(),
        }
    }

    /// Returns how soon the response to arrived segments must leave.
    #[inline]
    pub(crate) fn urgency(&self) -> Urgency {
        let (sender_waits, rcv_nxt) = (self.tx.is_urgent(), self.rx.rcv_nxt());
        if sender_waits || self.state == State::SynReceived || self.rx.ack.reports_gap(rcv_nxt) {
            Urgency::BeforeApp
        } else if self.rx.ack.is_urgent(rcv_nxt) {
            Urgency::BeforeNextRx
        } else {
            Urgency::Normal
        }
    }

    /// Returns the work left to the stack after a poll; `sent`: the poll produced a packet.
    #[inline]
    pub(crate) fn after_poll(&mut self, sent: bool, now: Instant) -> Aftermath {
        let is_idle = !sent || self.turns(now).is_empty();
        if sent && is_idle {
            self.become_idle(now);
        }
        let urgency = if is_idle { Urgency::Idle } else { Urgency::Normal };
        self.aftermath(urgency, now)
    }
}

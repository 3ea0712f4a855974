//! The slots of connections: occupied, retired, freed.

use alloc::boxed::Box;

use super::Stack;
use super::challenge::AnswerLimit;
use super::demux::{self, Target};
use super::half_open::record::HalfOpen;
use super::stats::StackStats;
use crate::config::{StackConfig, TcpConfig};
use crate::conn_id::{ConnId, ListenerId};
use crate::connection::{Connection, Env, Events, MemberState, Urgency};
use crate::fast_open::client::ServerKey;
use crate::fast_open::server::Ticket;
use crate::four_tuple::{CompactTuple, FourTuple};
use crate::time::Instant;

/// The owner of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ownership {
    /// A listener, during the handshake.
    HalfOpen(ListenerId),
    /// A listener; the connection waits for `accept`.
    Queued(ListenerId),
    /// The application.
    Owned,
    /// No owner: the connection ends by itself.
    Released,
}

/// A connection and the stack's state of it.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) tuple: CompactTuple,
    pub(crate) connection: Box<Connection>,
    pub(crate) phase: Ownership,
    /// Events that wait for its owner.
    pub(crate) deferred: Events,
    pub(crate) hop_limit: u8,
    pub(crate) dscp: u8,
    /// Bytes of its buffers that the stack has counted.
    pub(super) memory: usize,
    /// Of these, bytes kept for repairs.
    pub(super) repair_memory: usize,
    /// Urgency of the packets that it may have to send.
    pub(super) urgency: Urgency,
    /// True if its deadline may have moved since it was entered into the table of deadlines.
    pub(super) deadline_moved: bool,
    /// True if it will be examined for [idle memory](super::memory): it was idle at the last event.
    pub(super) is_idle: bool,
    /// Time at which it was last found with nothing to send.
    pub(super) touched: Instant,
    /// True if packets of its four-tuple reach it.
    reachable: bool,
    /// True if a write was refused because the memory of the stack is used up.
    pub(super) waits_for_memory: bool,
    /// Key of its reports in the client's memory, if it was opened with Fast Open.
    pub(crate) server_key: Option<Box<ServerKey>>,
    /// The place in the limits of Fast Open of a connection that its SYN opened, until the handshake ends.
    pub(crate) ticket: Option<Box<Ticket>>,
    /// Set if it is a member of its path.
    pub(super) member: Option<Box<Member>>,
    /// Changes of its life that were reported.
    pub(super) reported: ReportedLifecycle,
    /// The record from which it can be rebuilt, while it has only answered a SYN.
    pub(super) half_open: Option<Box<HalfOpen>>,
}

/// Changes of a connection's life that were reported to observers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct ReportedLifecycle {
    pub(super) established: bool,
    pub(super) end: bool,
}

/// State of a member of a path.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) path: u32,
    pub(super) state: MemberState,
    /// Bytes sent since it last had nothing to send for a round trip.
    pub(super) attained: u64,
    /// Number that orders the members by the beginning of their transfers.
    pub(super) began: u64,
    /// Total of bytes sent.
    pub(super) sent: u64,
    /// True if it has a long transfer under way.
    pub(super) is_long: bool,
    /// Time since which it has nothing to send.
    pub(super) idle_since: Option<Instant>,
    /// Number of its entry in a queue; 0: it does not wait.
    pub(super) ticket: u64,
    pub(super) rank: usize,
}

/// Calls `f` with the interface of a connection to the stack.
#[inline]
pub(crate) fn with_env<R>(
    config: &StackConfig,
    challenges: &mut AnswerLimit,
    stats: &mut StackStats,
    f: impl FnOnce(&mut Env<'_>) -> R,
) -> R {
    let mut challenge = |now| {
        let allowed = challenges.allows(now);
        stats.challenge_acks_sent += u64::from(allowed);
        stats.challenge_acks_suppressed += u64::from(!allowed);
        allowed
    };
    f(&mut Env {
        challenge: &mut challenge,
        super_segment: config.max_super_segment,
        sends_twice: config.sends_twice,
        partial_checksum: config.max_super_segment > 0,
        payload_in_place: false,
    })
}

impl Stack {
    /// Returns the four-tuples of all connections, including half-open ones, without TIME-WAIT.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let stack = brisk_tcp::Stack::new(brisk_tcp::StackConfig::default(), 1)?;
    /// assert_eq!(stack.flows().count(), 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn flows(&self) -> impl Iterator<Item = FourTuple> {
        let reachable = self.slots.iter::<ConnId>().filter(|(_, slot)| slot.reachable);
        reachable.map(|(_, slot)| FourTuple::from(&slot.tuple)).chain(self.half_open.flows())
    }

    /// Inserts a new connection. The caller has made space, and no other owner uses its four-tuple.
    pub(super) fn insert(
        &mut self,
        mut connection: Box<Connection>,
        tcp: &TcpConfig,
        phase: Ownership,
        now: Instant,
    ) -> ConnId {
        if self.config.observe {
            connection.counters.record_observations();
        }
        let tuple = connection.tuple();
        let id = self.insert_slot(connection, tcp, phase, now);
        self.demux.point(&tuple, None, Target::Connection(id.index));
        self.take_aftermath(id, now);
        id
    }

    /// Puts a connection into a slot. The caller has made space, and processes the connection's aftermath.
    pub(super) fn insert_slot(
        &mut self,
        connection: Box<Connection>,
        tcp: &TcpConfig,
        phase: Ownership,
        now: Instant,
    ) -> ConnId {
        let tuple = connection.tuple();
        self.slots.insert(Slot {
            tuple: tuple.into(),
            connection,
            hop_limit: tcp.hop_limit,
            dscp: tcp.dscp,
            phase,
            deferred: Events::default(),
            memory: 0,
            repair_memory: 0,
            urgency: Urgency::Idle,
            deadline_moved: false,
            is_idle: false,
            touched: now,
            reachable: true,
            waits_for_memory: false,
            server_key: None,
            ticket: None,
            member: None,
            reported: ReportedLifecycle::default(),
            half_open: None,
        })
    }

    /// Makes space for one more connection by ending the TIME-WAIT that expires first, if necessary. Returns
    /// false if the stack is full of connections.
    pub(super) fn evict_if_full(&mut self) -> bool {
        let max = self.config.max_connections.min(demux::MAX_ENTRIES);
        while self.count() >= max {
            if !self.evict_time_wait() {
                return false;
            }
        }
        true
    }

    fn count(&self) -> usize {
        self.slots.len() + self.half_open.len() + self.time_wait.len()
    }

    fn evict_time_wait(&mut self) -> bool {
        let Some((index, entry)) = self.time_wait.evict() else { return false };
        self.demux.remove(&entry.tuple(), Target::TimeWait(index));
        self.stats.time_waits_evicted += 1;
        true
    }

    /// Ends a TIME-WAIT because a new connection takes its four-tuple.
    pub(super) fn end_time_wait(&mut self, index: u32) {
        if let Some(entry) = self.time_wait.remove(index) {
            self.demux.remove(&entry.tuple(), Target::TimeWait(index));
        }
    }

    /// Retires a connection that has ended. Its four-tuple goes to TIME-WAIT or is free, and its slot is free
    /// as soon as the application has released it.
    pub(super) fn retire(&mut self, id: ConnId, now: Instant) {
        self.deadlines.set(id.index, None);
        self.leave_path(id, now);
        let Some(slot) = self.slots.at_mut(id) else { return };
        // The connection is not polled again.
        self.allowances.update_reservation(&mut slot.connection, now);
        let tuple = FourTuple::from(&slot.tuple);
        let remains = slot.connection.time_wait();
        let (hop_limit, dscp, phase) = (slot.hop_limit, slot.dscp, slot.phase);
        let here = Target::Connection(id.index);
        if core::mem::take(&mut slot.reachable) {
            match remains {
                Some(numbers) => {
                    let index = self.time_wait.insert(tuple, numbers, hop_limit, dscp, now);
                    self.demux.point(&tuple, Some(here), Target::TimeWait(index));
                    self.stats.time_waits += 1;
                }
                None => {
                    self.demux.remove(&tuple, here);
                    self.fast_open.remember_closed(slot, now);
                }
            }
        }
        if phase == Ownership::Released {
            self.free(id);
        }
        while self.count() > self.config.max_connections && self.evict_time_wait() {}
    }

    pub(super) fn free(&mut self, id: ConnId) {
        let gone: Option<Slot> = self.slots.remove(id);
        self.memory.remove(gone.as_ref());
        self.memory.wake_waiters(&mut self.slots, &mut self.events);
    }
}

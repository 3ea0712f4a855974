//! After a connection was touched: what follows for the rest of the stack.
//!
//! Whatever happened to a connection (a segment, a call, a timer, a transmission), the same things
//! follow, in one place: its memory is counted, its events are passed on, it is put on the list of those
//! that may have something to send, and if it is over it makes way, to TIME-WAIT or to nothing. Its
//! deadline is noted when it leaves the list, having nothing more to send: nearly every segment moves a
//! timer, and a driver asks for the next deadline only once the list is empty.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use super::Stack;
use super::challenge::AnswerLimit;
use super::demux::{self, Target};
use super::half_open::HalfOpen;
use super::parking::Seat;
use super::spares::Spares;
use super::stats::StackStats;
use crate::config::{StackConfig, TcpConfig};
use crate::conn_id::{ConnId, ListenerId};
use crate::connection::{Connection, Env, Events};
use crate::event::{Event, Probe};
use crate::fast_open::client::Asker;
use crate::fast_open::server::Ticket;
use crate::four_tuple::{CompactTuple, FourTuple};
use crate::time::Instant;

/// Room that lists of connections keep when they are empty; more is given back.
const LISTED: usize = 1024;
/// Probes that may wait for the observer.
const PROBE_CAPACITY: usize = 65_536;

/// Whose a connection is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// A listener's, in the middle of the handshake.
    HalfOpen(ListenerId),
    /// A listener's, waiting for `accept`.
    Queued(ListenerId),
    /// The application's.
    Owned,
    /// Nobody's: it finishes by itself.
    Released,
}

/// Whether a connection is on the list of those that may have something to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Listing {
    Off,
    /// It was touched since its deadline was noted.
    Touched,
    /// Its deadline is noted.
    Noted,
}

/// A connection and what the stack knows of it.
#[derive(Debug)]
pub(crate) struct Slot {
    /// Its ends.
    pub(crate) tuple: CompactTuple,
    pub(crate) connection: Seat,
    pub(crate) phase: Phase,
    /// What its owner is to hear once there is one.
    pub(crate) held: Events,
    pub(crate) hop_limit: u8,
    pub(crate) dscp: u8,
    /// Bytes of its buffers that the stack has counted.
    memory: usize,
    /// Of these, bytes kept for repairs.
    pub(super) repair_memory: usize,
    /// Whether it is on the list of those that may have something to send.
    listing: Listing,
    /// It should send before the next packet for it is taken in.
    pub(super) pressed: bool,
    /// It is among those that should send before anybody else has a turn.
    hurried: bool,
    /// It waits to be looked at again: it had nothing to do when it was touched last.
    pub(super) is_idle: bool,
    /// When it was last found with nothing to send.
    pub(super) touched: Instant,
    /// Packets of its four-tuple reach it.
    reachable: bool,
    /// A write was refused because the memory of the stack is used up.
    waits_for_memory: bool,
    /// It was opened with Fast Open, and the client's memory hears of it.
    pub(crate) asker: Option<Box<Asker>>,
    /// Its SYN opened it, and is not acknowledged yet.
    pub(crate) ticket: Option<Box<Ticket>>,
    /// It has done nothing yet but answer a SYN: what it could be made from again.
    pub(super) half_open: Option<Box<HalfOpen>>,
}

/// What follows from what has happened to a connection; mostly nothing.
#[derive(Clone, Copy, Debug, Default)]
struct Follows {
    /// A buffer has storage with nothing in it.
    storage: bool,
    events: bool,
    /// There are [`News`].
    news: bool,
}

impl Follows {
    fn is_any(self) -> bool {
        self.storage | self.events | self.news
    }
}

/// What there is to do about a connection that was touched, beside its buffers and its events; mostly nothing.
#[derive(Clone, Copy, Debug, Default)]
struct News {
    repair_memory: bool,
    fast_open: bool,
    gentle: bool,
    path: bool,
    over: bool,
}

impl Slot {
    /// It is on the list of those that may have something to send.
    pub(super) fn is_listed(&self) -> bool {
        self.listing != Listing::Off
    }

    /// It was taken from that list.
    pub(super) fn unlist(&mut self) {
        self.listing = Listing::Off;
    }

    /// Puts it on that list; its deadline may have moved.
    #[inline]
    fn list(&mut self, id: ConnId, to_transmit: &mut VecDeque<ConnId>) {
        if !self.is_listed() {
            to_transmit.push_back(id);
        }
        self.listing = Listing::Touched;
    }

    /// Counts its buffers anew among those of all connections, bytes.
    #[inline]
    fn count_memory(&mut self, all: &mut usize) {
        let held = self.connection.awake().map_or(0, Connection::memory);
        if held != self.memory {
            *all = all.saturating_sub(self.memory).saturating_add(held);
            self.memory = held;
        }
    }

    /// What it has read empty, and what was acknowledged, is kept for the next one.
    fn give_storage(&mut self, spares: &mut Spares) {
        let (received, sent) = self.connection.wake().take_drained_storage();
        spares.put(received);
        spares.put_sent(sent);
    }

    /// What follows for the rest of the stack from what has happened to the connection; what its buffers hold is counted.
    #[inline(always)]
    fn follows(&mut self, now: Instant, all: &mut usize) -> Follows {
        // Nearly every segment fills or empties a buffer.
        self.count_memory(all);
        let Some(connection) = self.connection.awake() else { return Follows::default() };
        Follows {
            storage: connection.has_drained_storage(),
            events: connection.has_events(),
            news: self.has_news(now),
        }
    }

    /// True if a line of [`Slot::news`] is yes.
    #[inline]
    fn has_news(&self, now: Instant) -> bool {
        let Some(connection) = self.connection.awake() else { return false };
        debug_assert!(
            connection.close_reason().is_some() || !connection.is_done(),
            "it is over and nobody says why"
        );
        self.asker.is_some()
            || self.ticket.is_some()
            || self.repair_memory != connection.repair_memory()
            || connection.has_news(now)
    }

    fn news(&self, now: Instant) -> News {
        // Who was touched is awake.
        let Some(connection) = self.connection.awake() else { return News::default() };
        News {
            repair_memory: self.repair_memory != connection.repair_memory(),
            fast_open: self.asker.is_some() || self.ticket.is_some() || connection.wants_one_time_cookie(),
            gentle: connection.may_have_gentle_news(),
            path: connection.owes_path_report(now),
            over: connection.close_reason().is_some(),
        }
    }
}

/// Calls `f` with what a connection may ask of the stack.
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
        option_profile: &config.option_profile,
    })
}

impl Stack {
    /// Takes in a new connection. The caller has made room, and nothing else is to be reached by its four-tuple.
    pub(super) fn insert(
        &mut self,
        mut connection: Box<Connection>,
        tcp: &TcpConfig,
        phase: Phase,
        now: Instant,
    ) -> ConnId {
        if self.config.observe {
            connection.observe();
        }
        let tuple = connection.tuple();
        let id = self.seat(connection, tcp, phase, now);
        self.demux.point(&tuple, None, Target::Connection(id.index));
        self.settle(id, now);
        id
    }

    /// Gives a connection a slot. What leads to it, and what follows, is the caller's.
    pub(super) fn seat(
        &mut self,
        connection: Box<Connection>,
        tcp: &TcpConfig,
        phase: Phase,
        now: Instant,
    ) -> ConnId {
        let tuple = connection.tuple();
        self.slots.insert(Slot {
            tuple: tuple.into(),
            connection: Seat::Awake(connection),
            hop_limit: tcp.hop_limit,
            dscp: tcp.dscp,
            phase,
            held: Events::default(),
            memory: 0,
            repair_memory: 0,
            listing: Listing::Off,
            pressed: false,
            hurried: false,
            is_idle: false,
            touched: now,
            reachable: true,
            waits_for_memory: false,
            asker: None,
            ticket: None,
            half_open: None,
        })
    }

    /// Makes room for one more connection: a TIME-WAIT that has least left to wait goes first. False if
    /// the stack is full of connections.
    pub(super) fn make_room(&mut self) -> bool {
        let most = self.config.max_connections.min(demux::MAX_ENTRIES);
        while self.held() >= most {
            if !self.evict_time_wait() {
                return false;
            }
        }
        true
    }

    /// Connections of any kind that are kept.
    fn held(&self) -> usize {
        self.slots.len() + self.half_open.len() + self.time_wait.len()
    }

    fn evict_time_wait(&mut self) -> bool {
        let Some((place, entry)) = self.time_wait.evict() else { return false };
        self.demux.remove(&entry.tuple(), Target::TimeWait(place));
        self.stats.time_waits_evicted += 1;
        true
    }

    /// Ends a TIME-WAIT because a new connection takes its four-tuple.
    pub(super) fn end_time_wait(&mut self, place: u32) {
        if let Some(entry) = self.time_wait.remove(place) {
            self.demux.remove(&entry.tuple(), Target::TimeWait(place));
        }
    }

    /// Lets `f` act on a connection, with what it may ask of the stack, and does what follows. It is no longer one that has only
    /// answered a SYN.
    pub(super) fn drive<R>(
        &mut self,
        id: ConnId,
        now: Instant,
        f: impl FnOnce(&mut Connection, &mut Env<'_>) -> R,
    ) -> Option<R> {
        let slot = self.slots.at_mut(id)?;
        slot.half_open = None;
        let result = with_env(&self.config, &mut self.challenges, &mut self.stats, |env| {
            f(slot.connection.wake(), env)
        });
        self.settle(id, now);
        Some(result)
    }

    /// A connection was touched: passes on what follows, and looks whether it has something to send.
    pub(super) fn settle(&mut self, id: ConnId, now: Instant) {
        let is_watched = self.is_watched(now);
        let Some(slot) = self.slots.at_mut(id) else { return };
        let follows = slot.follows(now, &mut self.memory);
        if !follows.is_any() && !is_watched {
            return slot.list(id, &mut self.to_transmit);
        }
        self.pass_on(id, follows, now);
        if let Some(slot) = self.slots.at_mut(id) {
            slot.list(id, &mut self.to_transmit);
        }
    }

    /// As [`Stack::settle`], for a connection that has just sent something: mostly there is nothing more.
    #[inline]
    pub(super) fn settle_sent(&mut self, id: ConnId, now: Instant) {
        self.clock = self.clock.max(now);
        let Some(slot) = self.slots.at_mut(id) else { return };
        debug_assert!(!slot.connection.awake().is_some_and(Connection::has_events), "sending is no event");
        // What leaves stays in its buffer, and tells no application anything.
        if slot.has_news(now) || self.config.observe {
            self.follow_up(id, now);
        }
        let Some(slot) = self.slots.at_mut(id) else { return };
        if slot.is_listed() || !slot.connection.wake().rests(now) {
            return slot.list(id, &mut self.to_transmit);
        }
        self.rest(id, now);
    }

    /// As [`Stack::settle`], for a connection that has just said that it has nothing to send.
    pub(super) fn settle_quietly(&mut self, id: ConnId, now: Instant) {
        self.follow_up(id, now);
        self.rest(id, now);
    }

    fn follow_up(&mut self, id: ConnId, now: Instant) {
        let is_watched = self.is_watched(now);
        let Some(slot) = self.slots.at_mut(id) else { return };
        let follows = slot.follows(now, &mut self.memory);
        if follows.is_any() || is_watched {
            self.pass_on(id, follows, now);
        }
    }

    /// A connection was touched. True if somebody waits for what becomes of any, beside its owner.
    #[inline]
    fn is_watched(&mut self, now: Instant) -> bool {
        self.clock = self.clock.max(now);
        self.config.observe || !self.memory_waiters.is_empty()
    }

    /// A connection that was settled has nothing to send: its deadline is noted.
    pub(super) fn rest(&mut self, id: ConnId, now: Instant) {
        let Some(slot) = self.slots.at_mut(id) else { return };
        // Who was asked is awake.
        let Some(connection) = slot.connection.awake().filter(|connection| !connection.is_done()) else {
            return;
        };
        self.deadlines.set(id.index, connection.next_timeout());
        if slot.half_open.is_some() {
            return self.keep_warm(id);
        }
        let Some(after) = self.config.park_after else { return };
        slot.touched = now;
        if !slot.is_idle && connection.may_park() {
            slot.is_idle = true;
            self.note_idle(id, after, now);
        }
    }

    /// Does what there is to do about a connection.
    #[inline(never)]
    fn pass_on(&mut self, id: ConnId, follows: Follows, now: Instant) {
        if follows.storage
            && let Some(slot) = self.slots.at_mut(id)
        {
            slot.give_storage(&mut self.spares);
            slot.count_memory(&mut self.memory);
        }
        if !self.memory_waiters.is_empty() {
            self.wake_memory_waiters();
        }
        if self.config.observe {
            self.take_probes(id, now);
        }
        if follows.events {
            self.take_events(id);
        }
        if follows.news {
            self.pass_on_news(id, now);
        }
    }

    fn pass_on_news(&mut self, id: ConnId, now: Instant) {
        let Some(slot) = self.slots.at(id) else { return };
        let news = slot.news(now);
        if news.repair_memory {
            self.count_repair_memory(id, now);
        }
        if news.fast_open {
            self.settle_fast_open(id, now);
        }
        if news.gentle {
            self.settle_gentle(id, now);
        }
        if news.path {
            self.settle_path(id, now);
        }
        if news.over && self.slots.at(id).is_some_and(|slot| slot.connection.look().is_done()) {
            self.retire(id, now);
        }
    }

    /// The deadlines of those on the list that may have moved since they were noted.
    pub(super) fn deadlines_to_note(&self) -> impl Iterator<Item = Option<Instant>> {
        let listed = self.to_transmit.iter().filter_map(|id| self.slots.at(*id));
        listed
            .filter(|slot| slot.listing == Listing::Touched && !slot.connection.look().is_done())
            .map(|slot| slot.connection.look().next_timeout())
    }

    /// Notes the deadlines that may have moved, so that [`Stack::next_timeout`] need not look at each of them again: for a driver that
    /// lets connections wait which have something to send.
    pub fn note_deadlines(&mut self) {
        for id in &self.to_transmit {
            let Some(slot) = self.slots.at_mut(*id).filter(|slot| slot.listing == Listing::Touched) else {
                continue;
            };
            slot.listing = Listing::Noted;
            if !slot.connection.look().is_done() {
                self.deadlines.set(id.index, slot.connection.look().next_timeout());
            }
        }
    }

    /// True if nobody is on a list of those that may have something to send.
    #[inline]
    pub(super) fn nobody_is_listed(&self) -> bool {
        self.to_transmit.is_empty() && self.hurried.is_empty()
    }

    /// The next connection that may have something to send, or repeat, taken from the list of those.
    pub(super) fn next_to_transmit(&mut self, now: Instant) -> Option<ConnId> {
        loop {
            let id = self.to_transmit.pop_front();
            if id.is_some() {
                return id;
            }
            if !self.fire_half_open(now) {
                return None;
            }
        }
    }

    /// What a connection has to send should not wait. It is on the list of those that may have something.
    pub(super) fn hurry(&mut self, id: ConnId) {
        if let Some(slot) = self.slots.at_mut(id)
            && !slot.hurried
        {
            slot.hurried = true;
            self.hurried.push_back(id);
        }
    }

    /// The first of those that should not wait; it stays the first.
    pub(super) fn next_hurried(&mut self, now: Instant) -> Option<ConnId> {
        while self.hurried.is_empty() {
            if !self.fire_half_open(now) {
                return None;
            }
        }
        self.hurried.front().copied()
    }

    /// The first of those that should not wait has nothing more to send.
    pub(super) fn end_hurry_of_first(&mut self) {
        if let Some(slot) = self.hurried.pop_front().and_then(|id| self.slots.at_mut(id)) {
            slot.hurried = false;
        }
    }

    /// Nobody has anything to send.
    pub(super) fn end_hurry(&mut self) {
        while !self.hurried.is_empty() {
            self.end_hurry_of_first();
        }
        // A flood of SYNs is over.
        if self.hurried.capacity() > LISTED {
            self.hurried.shrink_to(LISTED);
        }
    }

    /// Counts the buffers of a connection that was touched, or parked.
    pub(super) fn count_memory(&mut self, id: ConnId) {
        let Some(slot) = self.slots.at_mut(id) else { return };
        slot.count_memory(&mut self.memory);
        self.wake_memory_waiters();
    }

    /// A write found the memory used up: the writer hears when there is some again.
    pub(super) fn wait_for_memory(&mut self, id: ConnId) {
        if let Some(slot) = self.slots.at_mut(id)
            && !slot.waits_for_memory
        {
            slot.waits_for_memory = true;
            self.memory_waiters.push(id);
        }
    }

    fn wake_memory_waiters(&mut self) {
        if self.memory_waiters.is_empty() || self.memory_left_to_writes() == 0 {
            return;
        }
        for id in core::mem::take(&mut self.memory_waiters) {
            if let Some(slot) = self.slots.at_mut(id) {
                slot.waits_for_memory = false;
                self.events.push(Event::Writable(id));
            }
        }
    }

    /// Bytes that buffers may still take.
    pub(super) fn memory_left(&self) -> usize {
        self.config.max_buffer_bytes.saturating_sub(self.memory)
    }

    /// Bytes that writes may still take: a quarter of the memory is left to what arrives, for two stacks
    /// that are full of what they send each other could neither deliver any of it.
    pub(super) fn memory_left_to_writes(&self) -> usize {
        let most = self.config.max_buffer_bytes;
        (most - most / 4).saturating_sub(self.memory)
    }

    fn take_probes(&mut self, id: ConnId, now: Instant) {
        let Some(slot) = self.slots.at_mut(id) else { return };
        for probe in slot.connection.wake().take_probes() {
            self.note_probe(id, now, probe);
        }
    }

    fn note_probe(&mut self, id: ConnId, now: Instant, probe: Probe) {
        if self.probes.len() < PROBE_CAPACITY {
            self.probes.push_back((id, now, probe));
        } else {
            self.stats.probes_dropped += 1;
        }
    }

    fn take_events(&mut self, id: ConnId) {
        let Some(slot) = self.slots.at_mut(id) else { return };
        let events = slot.connection.wake().take_events();
        if slot.phase != Phase::Owned {
            slot.held.insert(events);
        }
        match slot.phase {
            Phase::Owned => {
                let reason = slot.connection.wake().close_reason();
                if events.contains(Events::CONNECTED) {
                    self.events.push(Event::Connected(id));
                }
                self.tell(id, events);
                if let Some(reason) = reason.filter(|_| events.contains(Events::CLOSED)) {
                    self.events.push(Event::Closed(id, reason));
                }
            }
            Phase::HalfOpen(listener) if events.contains(Events::CONNECTED) => {
                slot.phase = Phase::Queued(listener);
                slot.half_open = None;
                if let Some(at) = self.listeners.at_mut(listener) {
                    at.on_established(id);
                }
                self.stats.handshakes_completed += 1;
                self.events.push(Event::Incoming(listener));
            }
            Phase::HalfOpen(listener) if events.contains(Events::CLOSED) => {
                slot.phase = Phase::Released;
                if let Some(at) = self.listeners.at_mut(listener) {
                    at.on_half_open_gone();
                }
                self.stats.handshakes_failed += 1;
            }
            // Who accepts it is told then what there is to do.
            Phase::HalfOpen(_) | Phase::Queued(_) | Phase::Released => {}
        }
    }

    /// Tells the owner of a connection that there is something to read or room to write.
    pub(super) fn tell(&mut self, id: ConnId, events: Events) {
        if events.contains(Events::READABLE) {
            self.events.push(Event::Readable(id));
        }
        if events.contains(Events::WRITABLE) {
            self.events.push(Event::Writable(id));
        }
    }

    /// A connection is over: its four-tuple goes to TIME-WAIT or is free, its slot is free as soon as
    /// the application has let go.
    fn retire(&mut self, id: ConnId, now: Instant) {
        self.deadlines.set(id.index, None);
        let Some(slot) = self.slots.at_mut(id) else { return };
        let tuple = FourTuple::from(&slot.tuple);
        let remains = slot.connection.wake().time_wait();
        let (hop_limit, dscp, phase) = (slot.hop_limit, slot.dscp, slot.phase);
        let here = Target::Connection(id.index);
        if core::mem::take(&mut slot.reachable) {
            match remains {
                Some(numbers) => {
                    let place = self.time_wait.insert(tuple, numbers, hop_limit, dscp, now);
                    self.demux.point(&tuple, Some(here), Target::TimeWait(place));
                    self.stats.time_waits += 1;
                }
                None => {
                    self.demux.remove(&tuple, here);
                    self.hold_closed(id, now);
                }
            }
        }
        if phase == Phase::Released {
            self.free(id);
        }
        while self.held() > self.config.max_connections && self.evict_time_wait() {}
    }

    /// Takes a connection out of its slot.
    pub(super) fn free(&mut self, id: ConnId) {
        let gone: Option<Slot> = self.slots.remove(id);
        let (memory, repair_memory) = gone.map_or((0, 0), |gone| {
            self.spares.put_place(gone.connection);
            (gone.memory, gone.repair_memory)
        });
        self.memory = self.memory.saturating_sub(memory);
        self.release_repair_memory(repair_memory);
        self.wake_memory_waiters();
    }
}

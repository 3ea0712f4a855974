//! One controller for each path. Connections between the same two addresses are its *members*: they share a
//! window, a pacer, a measurement of the delivery rate, and the response to losses
//! ([`TcpConfig::share_path`](crate::config::TcpConfig::share_path)).
//!
//! A connection joins when its transfer becomes long, or at the start of a transfer while a member has a long
//! one. All members together get the share of one flow. With only short transfers this would be too little on
//! a path with other traffic, so they start from the memory of the path instead.
//!
//! The stack lends a member the [`RateControl`] of its path for each call ([`Stack::lend`]) and takes it back
//! afterwards, in [`Stack::apply_aftermath`]. The loan includes the number of bytes that other members have
//! in flight; its return updates the path.
//!
//! A member that the window or the pacer holds back waits in a queue of the path. When the window permits,
//! one of them gets a *grant* of about a millisecond of data. The *level* of a member depends on the bytes
//! that it has sent since it was last idle. The two lower levels go before the two upper ones. Within either
//! pair, retransmissions go first, then the new data of the lower level. One grant in eight goes instead to
//! the longest-waiting member of the later queues. Members of the highest level take turns. Those of the
//! other levels go in the order in which their transfers began: if equal transfers took turns, all would end
//! at the same time, and the path would be idle until the next requests arrive.
//!
//! The controller's measurements are used for ten seconds after the last delivery. Then the path starts
//! again, like a new connection.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::net::IpAddr;

use super::Stack;
use super::deadlines::Deadlines;
use super::slot::{Member, Slot};
use crate::conn_id::{ConnId, Slots};
use crate::connection::{ConnStats, Connection, MemberState, SHORT_TRANSFER, Urgency};
use crate::outcome::CongestionState;
use crate::send::rate::{Others, RateControl};
use crate::time::{Instant, Micros};

/// A member that has sent this many bytes since it was last idle belongs to the next level.
const LEVELS: [u64; 3] = [64 << 10, 256 << 10, 1 << 20];
/// Number of queues of waiting members. The two lower levels have three: one for retransmissions of both, and
/// one for new data of each. The two upper levels have three more.
const RANKS: usize = 6;
/// One grant in this number goes to the longest-waiting member of the queues after the first one in use.
const FLOOR: u8 = 8;
/// Time after the last delivery for which the controller's measurements are used, and time after the last
/// member for which they are kept.
const LIFETIME: Micros = Micros::from_millis(10_000);
/// Time after the last delivery for which short-term limits are used; four round trips if that is longer.
const SHORT_TERM: Micros = Micros::from_millis(1_000);
/// Assumed round trip of a path without a measurement.
const UNKNOWN_RTT: Micros = Micros::from_millis(100);
/// Number of segments that a new member may send regardless of the others while the path is unknown.
const OWN_SEGMENTS: u32 = 4;
/// Number of successive grants without a transmission after which the path pauses.
const MAX_FRUITLESS: u32 = 4;

/// A member that waits for a grant.
#[derive(Clone, Copy, Debug)]
struct Waiter {
    id: ConnId,
    ticket: u64,
    /// The waiting members of a queue are sorted by this number.
    order: u64,
    since: Instant,
}

/// A member with a grant.
#[derive(Clone, Copy, Debug)]
struct Grant {
    id: ConnId,
    /// Bytes that remain of the grant.
    left: u32,
    /// True if one segment may exceed the window.
    is_exempt: bool,
    is_used: bool,
}

/// The controller of a path, and the members that wait for it.
#[derive(Debug)]
struct PathController {
    ends: (IpAddr, IpAddr),
    rate: RateControl,
    members: u32,
    /// Bytes in flight of all members.
    pipe: u64,
    /// Bytes in flight of connections that have ended, and the time at which they will have left the path.
    departed: VecDeque<(Instant, u32)>,
    departed_bytes: u64,
    outstanding: u32,
    /// Members whose transfers are long.
    long: u32,
    recovering: u32,
    wanting: u32,
    /// The member whose losses alone began the current or last recovery of the path: only this member may
    /// undo the response. `None` if several members had losses in it, or if later losses began no recovery.
    loser: Option<ConnId>,
    newest_delivered: Instant,
    delivered_at: Instant,
    mark_answered: Option<Instant>,
    srtt: Micros,
    min_rtt: Option<Micros>,
    mss: u32,
    queues: [VecDeque<Waiter>; RANKS],
    waiting: u32,
    tickets: u64,
    grant: Option<Grant>,
    turn: u8,
    fruitless: u32,
    /// No grant is made before this time.
    paused_until: Option<Instant>,
    exempted_at: Option<Instant>,
    /// Time at which the controller is removed, if it has no members.
    ends_at: Option<Instant>,
}

/// The state of a path whose connections share a controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SharedPath {
    /// Connections.
    pub members: u32,
    /// Connections that wait for the window or the pacer.
    pub waiting: u32,
    /// Bytes in flight of all of them.
    pub in_flight: u64,
    /// Part of `in_flight`: bytes of connections that have ended.
    pub departed: u64,
    /// Part of `in_flight`: bytes of parity and copies, which the window does not limit.
    pub redundancy: u64,
    /// Congestion window, bytes.
    pub cwnd: u32,
    /// Bytes per second.
    pub pacing_rate: Option<u64>,
    /// True if the controller has measured the capacity of the path.
    pub is_known: bool,
}

#[derive(Debug, Default)]
pub(super) struct Controllers {
    paths: Vec<Option<Box<PathController>>>,
    free: Vec<u32>,
    by_ends: BTreeMap<(IpAddr, IpAddr), u32>,
    /// Paths without members, in the order in which they lost the last one.
    empty: VecDeque<(Instant, u32)>,
    deadlines: Deadlines,
}

fn level(attained: u64) -> usize {
    LEVELS.iter().filter(|limit| attained >= **limit).count()
}

fn rank(attained: u64, retransmits: bool) -> usize {
    let level = level(attained);
    let upper = level / 2 * 3;
    if retransmits { upper } else { upper + 1 + level % 2 }
}

impl PathController {
    fn new(ends: (IpAddr, IpAddr), rate: RateControl, now: Instant) -> Self {
        PathController {
            ends,
            rate,
            members: 0,
            pipe: 0,
            departed: VecDeque::new(),
            departed_bytes: 0,
            outstanding: 0,
            long: 0,
            recovering: 0,
            wanting: 0,
            loser: None,
            newest_delivered: Instant::ZERO,
            delivered_at: now,
            mark_answered: None,
            srtt: UNKNOWN_RTT,
            min_rtt: None,
            mss: 536,
            queues: Default::default(),
            waiting: 0,
            tickets: 0,
            grant: None,
            turn: 0,
            fruitless: 0,
            paused_until: None,
            exempted_at: None,
            ends_at: None,
        }
    }

    fn redundancy(&self) -> u64 {
        self.rate.delivery.as_ref().map_or(0, |delivery| delivery.redundancy_in_flight()).into()
    }

    fn in_flight(&self) -> u64 {
        self.pipe + self.departed_bytes + self.redundancy()
    }

    fn release_departed(&mut self, now: Instant) {
        while let Some((_, bytes)) = self.departed.pop_front_if(|(at, _)| *at <= now) {
            self.departed_bytes -= u64::from(bytes);
        }
    }

    /// Replaces the state of member `id` in the totals. The recovery of the path ends here with that of its
    /// last member. A member cannot end it itself if it is aborted, or must not undo its reduction alone.
    fn count(&mut self, id: ConnId, was: &MemberState, is: &MemberState) {
        let was_recovering = self.recovering > 0;
        if is.is_recovering && !was.is_recovering {
            // Kept after the recovery, because a DSACK may come later.
            self.loser = Some(id).filter(|_| !was_recovering || self.loser == Some(id));
        }
        let step = |total: &mut u32, was: bool, is: bool| {
            *total = total.saturating_add(u32::from(is)).saturating_sub(u32::from(was));
        };
        self.pipe = (self.pipe + u64::from(is.pipe)).saturating_sub(u64::from(was.pipe));
        step(&mut self.outstanding, was.is_outstanding, is.is_outstanding);
        step(&mut self.recovering, was.is_recovering, is.is_recovering);
        step(&mut self.wanting, was.wants, is.wants);
        if was_recovering && self.recovering == 0 {
            self.rate.congestion.on_recovery_exit(CongestionState::Recovery);
        }
    }

    /// True if no data of a member is in flight.
    fn is_empty(&self) -> bool {
        self.outstanding == 0 && self.departed_bytes == 0
    }

    fn count_long(&mut self, member: &mut Member) {
        let is_long = member.state.is_outstanding && member.attained > u64::from(SHORT_TRANSFER);
        self.long = (self.long + u32::from(is_long)).saturating_sub(u32::from(member.is_long));
        member.is_long = is_long;
    }

    /// Returns the facts about the others that `member` needs.
    fn others(&self, id: ConnId, member: &Member, now: Instant) -> Others {
        let state = &member.state;
        // Without redundancy in flight: the lent rate control counts it.
        let pipe = (self.pipe + self.departed_bytes).saturating_sub(u64::from(state.pipe));
        let others_wait = self.waiting > u32::from(member.ticket != 0);
        let grant = match &self.grant {
            Some(grant) if grant.id == id => grant.left,
            Some(_) => 0,
            None if others_wait || self.paused_until.is_some_and(|until| until > now) => 0,
            None => u32::MAX,
        };
        let is_exempt = self.grant.is_some_and(|grant| grant.id == id && grant.is_exempt);
        let is_known = self.rate.congestion.knows_path();
        let own = u64::from(OWN_SEGMENTS * self.mss);
        Others {
            pipe: u32::try_from(pipe).unwrap_or(u32::MAX),
            is_outstanding: self.outstanding > u32::from(state.is_outstanding) || self.departed_bytes > 0,
            is_recovering: self.recovering > u32::from(state.is_recovering),
            wants: self.wanting > u32::from(state.wants),
            may_undo: self.loser == Some(id) && self.recovering <= u32::from(state.is_recovering),
            may_answer_mark: self.mark_answered.is_none_or(|at| at + self.srtt <= now),
            may_jump: !is_known && pipe == 0,
            grant,
            floor: if is_exempt {
                state.pipe.saturating_add(self.mss)
            } else if !is_known && member.sent < own {
                (own - member.sent) as u32 + state.pipe
            } else {
                0
            },
            newest_delivered: self.newest_delivered,
            sent: 0,
            has_delivered: false,
            has_lost: false,
            has_answered_mark: false,
        }
    }

    /// Queues member `id`, which waits for the window or the pacer.
    fn enqueue(&mut self, id: ConnId, member: &mut Member, retransmits: bool, now: Instant) {
        let rank = rank(member.attained, retransmits);
        if member.ticket != 0 && member.rank == rank {
            return;
        }
        self.waiting += u32::from(member.ticket == 0);
        self.tickets += 1;
        (member.ticket, member.rank) = (self.tickets, rank);
        let takes_turns = level(member.attained) == LEVELS.len();
        let order = if takes_turns { self.tickets } else { member.began };
        let queue = &mut self.queues[rank];
        let at = queue.partition_point(|waiter| waiter.order <= order);
        queue.insert(at, Waiter { id, ticket: self.tickets, order, since: now });
    }

    fn dequeue(&mut self, member: &mut Member) {
        if member.ticket != 0 {
            member.ticket = 0;
            self.waiting = self.waiting.saturating_sub(1);
        }
    }

    /// Removes stale entries from the front of each queue, and all of them from long queues.
    fn remove_stale(&mut self, slots: &Slots<Slot>) {
        let waits = |waiter: &Waiter| {
            let member = slots.at(waiter.id).and_then(|slot| slot.member.as_ref());
            member.is_some_and(|member| member.ticket == waiter.ticket)
        };
        let limit = 2 * self.waiting as usize + 32;
        for queue in &mut self.queues {
            while queue.pop_front_if(|front| !waits(front)).is_some() {}
            if queue.len() > limit {
                queue.retain(waits);
            }
        }
    }

    /// Makes the next grant, if the window permits. Returns the member.
    fn grant_next(&mut self, slots: &Slots<Slot>, now: Instant) -> Option<ConnId> {
        if self.grant.is_none() && self.waiting == 0 {
            self.rate.pacer.set_awaited(false);
        }
        if self.grant.is_some() || self.waiting == 0 || self.paused_until.is_some_and(|until| until > now) {
            return None;
        }
        self.paused_until = None;
        if self.rate.pacer.budget(now) < self.mss {
            self.rate.pacer.set_awaited(true);
            return None;
        }
        self.remove_stale(slots);
        let in_flight = self.in_flight();
        let is_full = in_flight > 0
            && u64::from(self.rate.congestion.cwnd()) < in_flight.saturating_add(u64::from(self.mss));
        if is_full {
            self.rate.pacer.set_awaited(false);
        }
        let front = if is_full { self.exempt(slots, now)? } else { self.choose()? };
        self.grant = Some(Grant {
            id: front.id,
            left: if is_full { self.mss } else { self.rate.pacer.quantum_bytes() },
            is_exempt: is_full,
            is_used: false,
        });
        Some(front.id)
    }

    /// Returns the next member to be granted.
    fn choose(&mut self) -> Option<Waiter> {
        let lowest = self.queues.iter().position(|queue| !queue.is_empty())?;
        self.turn = (self.turn + 1) % FLOOR;
        let longest =
            self.queues[lowest + 1..].iter().filter_map(VecDeque::front).min_by_key(|front| front.since);
        let first = self.queues[lowest].front();
        longest.filter(|_| self.turn == 0).or(first).copied()
    }

    /// Returns a member that may exceed the window by a segment: a member with nothing in flight that has
    /// waited for a round trip. At most one member is exempt in a quarter of a round trip, and all exemptions
    /// together exceed the window by at most a quantum.
    fn exempt(&mut self, slots: &Slots<Slot>, now: Instant) -> Option<Waiter> {
        if !self.takes_exempt() {
            return None;
        }
        let front = *self.idle_front(slots)?;
        let may = front.since + self.srtt <= now
            && self.exempted_at.is_none_or(|at| at + Micros(self.srtt.0 / 4) <= now);
        may.then(|| self.exempted_at = Some(now));
        may.then_some(front)
    }

    /// True if one more segment would exceed the window by at most a quantum.
    fn takes_exempt(&self) -> bool {
        let limit = u64::from(self.rate.congestion.cwnd()) + u64::from(self.rate.pacer.quantum_bytes());
        self.pipe + self.departed_bytes + u64::from(self.mss) <= limit
    }

    /// Returns the longest-waiting member with nothing in flight, of those at the front of a queue.
    fn idle_front(&self, slots: &Slots<Slot>) -> Option<&Waiter> {
        let is_idle = |front: &&Waiter| {
            let member = slots.at(front.id).and_then(|slot| slot.member.as_ref());
            member.is_some_and(|member| member.state.pipe == 0)
        };
        self.queues.iter().filter_map(VecDeque::front).filter(is_idle).min_by_key(|front| front.since)
    }

    fn next_timeout(&self, slots: &Slots<Slot>, now: Instant) -> Option<Instant> {
        let waits = self.waiting > 0 && self.grant.is_none();
        let release = waits.then(|| {
            if self.paused_until.is_some_and(|until| until > now) {
                return self.paused_until;
            }
            if self.rate.pacer.budget(now) < self.mss {
                return self.rate.pacer.next_timeout();
            }
            let front = self.idle_front(slots).filter(|_| self.takes_exempt())?;
            let exempt = self.exempted_at.map_or(front.since, |at| at + Micros(self.srtt.0 / 4));
            Some(exempt.max(front.since + self.srtt))
        });
        // No grant is possible now: never return the same instant again.
        let release = release.flatten().map(|at| if at <= now { now + Micros::from_millis(1) } else { at });
        let departed = self.departed.front().map(|(at, _)| *at);
        [release, departed, self.ends_at].into_iter().fold(None, Instant::earlier)
    }
}

impl Controllers {
    pub(super) fn clear(&mut self) {
        *self = Controllers::default();
    }

    fn path(&mut self, index: u32) -> Option<&mut PathController> {
        self.paths.get_mut(index as usize)?.as_deref_mut()
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.deadlines.next()
    }

    pub(super) fn rate(&self, member: &Member) -> Option<&RateControl> {
        Some(&self.paths.get(member.path as usize)?.as_ref()?.rate)
    }

    /// Returns the statistics of a connection, with the window of the path that it shares.
    #[inline]
    pub(super) fn stats_of(&self, slot: &Slot) -> ConnStats {
        let mut stats = slot.connection.stats();
        if let Some(rate) = slot.member.as_ref().and_then(|member| self.rate(member)) {
            (stats.cwnd, stats.congestion) = (rate.congestion.cwnd(), rate.congestion.name());
        }
        stats
    }

    /// Lends a member the rate control of its path.
    pub(super) fn lend(&mut self, id: ConnId, member: &Member, connection: &mut Connection, now: Instant) {
        let Some(path) = self.path(member.path) else { return };
        if path.rate.others.is_some() || connection.tx.is_lent() {
            return;
        }
        path.release_departed(now);
        let silence = Micros::between(path.delivered_at, now);
        if path.is_empty() {
            if silence > LIFETIME {
                path.rate = connection.path.fresh_rate(
                    &connection.config,
                    connection.handshake.iss,
                    &connection.tx,
                    now,
                );
                path.delivered_at = now;
                connection.path.reopen_start(&connection.config, &mut connection.tx);
            } else if silence > SHORT_TERM.max(Micros(4 * path.srtt.0)) {
                path.rate.congestion.forget_short_term();
            }
        }
        path.rate.others = Some(path.others(id, member, now));
        // A member with a smaller path MTU has shorter segments, so its quantum may be smaller too.
        path.rate.pacer.set_mss(connection.tx.mss());
        connection.tx.exchange_rate(&mut path.rate);
    }

    /// Takes the rate control back after a call in which the member neither sent nor received.
    pub(super) fn take_back_unchanged(&mut self, member: &Member, connection: &mut Connection) {
        if let Some(path) = self.path(member.path) {
            connection.tx.exchange_rate(&mut path.rate);
            path.rate.others = None;
        }
    }

    /// Takes the rate control back, and updates the path. `was_polled`: the member was polled for a packet
    /// and has nothing more to send, or may not send.
    fn take_back(
        &mut self,
        id: ConnId,
        member: &mut Member,
        connection: &mut Connection,
        was_polled: bool,
        now: Instant,
    ) {
        let Some(path) = self.path(member.path) else { return };
        connection.tx.exchange_rate(&mut path.rate);
        let Some(others) = path.rate.others.take() else { return };
        let is = connection.tx.member_state();
        path.count(id, &member.state, &is);
        if others.has_lost && !is.is_recovering {
            // These losses may have ended a probe, but no recovery shows whether they were mistakes.
            path.loser = None;
        }
        member.state = is;
        path.mss = connection.tx.mss();
        if others.has_delivered {
            path.newest_delivered = others.newest_delivered;
            path.delivered_at = now;
            if let Some((srtt, _, min_rtt)) = connection.tx.round_trip() {
                path.srtt = srtt;
                path.min_rtt = Some(path.min_rtt.map_or(min_rtt, |min| min.min(min_rtt)));
            }
            path.paused_until = None;
        }
        if others.has_answered_mark {
            path.mark_answered = Some(now);
        }
        if others.sent > 0 {
            member.attained += u64::from(others.sent);
            member.sent += u64::from(others.sent);
            path.fruitless = 0;
            if let Some(grant) = path.grant.as_mut().filter(|grant| grant.id == id) {
                grant.left = grant.left.saturating_sub(others.sent);
                grant.is_used = true;
                if grant.left == 0 {
                    path.grant = None;
                    // The member queues again for its next grant.
                    path.dequeue(member);
                }
            }
        }
        let has_sent_all = connection.tx.has_sent_all();
        if !has_sent_all && member.idle_since.take().is_some_and(|since| since + path.srtt <= now) {
            path.tickets += 1;
            (member.attained, member.began) = (0, path.tickets);
        } else if has_sent_all {
            member.idle_since.get_or_insert(now);
        }
        path.count_long(member);
        if !was_polled {
            return;
        }
        if let Some(grant) = path.grant.take_if(|grant| grant.id == id) {
            path.dequeue(member);
            if !grant.is_used && connection.tx.is_send_limited() {
                path.fruitless += 1;
                if path.fruitless >= MAX_FRUITLESS {
                    path.fruitless = 0;
                    path.paused_until = Some(now + Micros(path.srtt.0 / 8).max(Micros::from_millis(1)));
                }
            }
        }
        if connection.tx.is_send_limited() {
            path.enqueue(id, member, connection.tx.scoreboard.has_lost(), now);
        } else {
            path.dequeue(member);
        }
    }

    /// Makes a connection a member of its path if its transfer, or a member's, is long. A connection stays
    /// alone if its handshake or its round-trip time indicates another path.
    pub(super) fn join(
        &mut self,
        id: ConnId,
        connection: &mut Connection,
        now: Instant,
    ) -> Option<Box<Member>> {
        let tuple = connection.tuple();
        let ends = (tuple.local.ip(), tuple.remote.ip());
        let round_trip = connection.tx.round_trip();
        if connection.handshake.doubts_path() {
            connection.tx.decline_sharing();
            return None;
        }
        let index = self.by_ends.get(&ends).copied();
        let has_long = index.and_then(|index| self.path(index)).is_some_and(|path| path.long > 0);
        if !has_long && !connection.path.is_long(&connection.tx) {
            connection.tx.keep_own_controller();
            return None;
        }
        let index = match index {
            Some(index) => {
                let path = self.path(index)?;
                let known = path.min_rtt.zip(round_trip);
                if known.is_some_and(|(min, (_, _, own))| {
                    own < Micros(min.0 / 2) || own > path.srtt.max(min) * 10
                }) {
                    connection.tx.decline_sharing();
                    return None;
                }
                path.release_departed(now);
                let window = connection.tx.rate.congestion.cwnd();
                if path.is_empty() && path.waiting == 0 && window >= path.rate.congestion.cwnd() {
                    // The start of this connection has just measured the path. The window of the path is
                    // older, and losses of application-limited transfers may have lowered it.
                    path.rate = connection.path.join(&mut connection.tx, true);
                    path.srtt = round_trip.map_or(path.srtt, |(srtt, ..)| srtt);
                    path.delivered_at = now;
                    (path.paused_until, path.mark_answered) = (None, None);
                    path.loser = Some(id);
                } else {
                    connection.path.join(&mut connection.tx, false);
                    if path.rate.congestion.knows_path() {
                        connection.path.start_as_unknown();
                    }
                }
                index
            }
            None => {
                let mut path = PathController::new(ends, connection.path.join(&mut connection.tx, true), now);
                path.srtt = round_trip.map_or(UNKNOWN_RTT, |(srtt, ..)| srtt);
                path.min_rtt = round_trip.map(|(.., min)| min);
                path.loser = Some(id);
                let path = Some(Box::new(path));
                let index = match self.free.pop() {
                    Some(index) => {
                        self.paths[index as usize] = path;
                        index
                    }
                    None => {
                        self.paths.push(path);
                        self.paths.len() as u32 - 1
                    }
                };
                self.by_ends.insert(ends, index);
                index
            }
        };
        let path = self.path(index)?;
        path.members += 1;
        path.ends_at = None;
        path.mss = connection.tx.mss();
        let state = connection.tx.member_state();
        let loser = path.loser.filter(|_| !state.is_recovering || path.loser == Some(id));
        path.count(id, &MemberState::default(), &state);
        // The losses of a joining member were reported to its own controller.
        path.loser = loser;
        let sent = connection.tx.transfer_len().into();
        path.tickets += 1;
        let mut member = Member {
            path: index,
            state,
            attained: sent,
            began: path.tickets,
            sent,
            is_long: false,
            idle_since: None,
            ticket: 0,
            rank: 0,
        };
        path.count_long(&mut member);
        Some(Box::new(member))
    }

    /// Removes a member that has ended. Its bytes in flight count until they have left the path.
    fn leave(
        &mut self,
        id: ConnId,
        member: &mut Member,
        connection: &Connection,
        max_empty: usize,
        now: Instant,
    ) {
        let index = member.path;
        let Some(path) = self.path(index) else { return };
        path.count(id, &member.state, &MemberState::default());
        path.long = path.long.saturating_sub(u32::from(member.is_long));
        if member.state.pipe > 0 {
            let wait =
                connection.tx.round_trip().map_or(path.srtt * 3, |(srtt, rttvar, _)| srtt + rttvar * 4);
            let last = path.departed.back().map_or(now, |(at, _)| *at);
            path.departed.push_back(((now + wait).max(last), member.state.pipe));
            path.departed_bytes += u64::from(member.state.pipe);
        }
        path.dequeue(member);
        path.grant.take_if(|grant| grant.id == id);
        if path.loser == Some(id) {
            path.loser = None;
        }
        path.members -= 1;
        if path.members == 0 {
            let at = now + LIFETIME;
            path.ends_at = Some(at);
            self.empty.push_back((at, index));
            self.bound_empty(max_empty);
        }
    }

    /// Drops paths without members beyond `max_empty`, the oldest first.
    fn bound_empty(&mut self, max_empty: usize) {
        while self.empty.len() > max_empty {
            let Some((at, index)) = self.empty.pop_front() else { return };
            if self.path(index).is_some_and(|path| path.ends_at == Some(at)) {
                self.remove(index);
            }
        }
    }

    fn remove(&mut self, index: u32) {
        if let Some(path) = self.paths.get_mut(index as usize).and_then(Option::take) {
            self.by_ends.remove(&path.ends);
            self.free.push(index);
            self.deadlines.set(index, None);
        }
    }

    /// Gives the next waiting member of a path a grant, and updates the path's deadline.
    fn serve(&mut self, index: u32, slots: &Slots<Slot>, now: Instant) -> Option<ConnId> {
        let Controllers { paths, deadlines, .. } = self;
        let path = paths.get_mut(index as usize)?.as_deref_mut()?;
        let next = path.grant_next(slots, now);
        deadlines.set(index, path.next_timeout(slots, now));
        next
    }

    fn state(&self, ends: (IpAddr, IpAddr)) -> Option<SharedPath> {
        let index = *self.by_ends.get(&ends)?;
        let path = self.paths.get(index as usize)?.as_ref()?;
        Some(SharedPath {
            members: path.members,
            waiting: path.waiting,
            in_flight: path.in_flight(),
            departed: path.departed_bytes,
            redundancy: path.redundancy(),
            cwnd: path.rate.congestion.cwnd(),
            pacing_rate: path.rate.pacer.rate(),
            is_known: path.rate.congestion.knows_path(),
        })
    }
}

impl Stack {
    /// Returns the state that the connections between these addresses share; `None` if no connection has
    /// shared it in the last ten seconds.
    pub fn shared_path(&self, local: IpAddr, remote: IpAddr) -> Option<SharedPath> {
        self.controllers.state((local, remote))
    }

    /// Lends a connection the controller of its path, if it is a member. [`Stack::apply_aftermath`] takes it
    /// back.
    #[inline]
    pub(super) fn lend(&mut self, id: ConnId, now: Instant) {
        if let Some(slot) = self.slots.at_mut(id)
            && let Some(member) = &slot.member
        {
            self.controllers.lend(id, member, &mut slot.connection, now);
        }
    }

    /// Takes the controller of a path back from a connection. `urgency`: when the connection will be polled
    /// next.
    pub(super) fn take_back(&mut self, id: ConnId, urgency: Urgency, now: Instant) {
        let Some(slot) = self.slots.at_mut(id) else { return };
        let Some(member) = &mut slot.member else { return };
        let connection = &mut slot.connection;
        if connection.tx.is_lent() {
            self.controllers.take_back(id, member, connection, urgency == Urgency::Idle, now);
        }
        let path = member.path;
        self.serve_path(path, now);
    }

    fn serve_path(&mut self, path: u32, now: Instant) {
        if let Some(next) = self.controllers.serve(path, &self.slots, now)
            && let Some(slot) = self.slots.at_mut(next)
        {
            self.ready.raise(next, slot, Urgency::BeforeApp);
        }
    }

    pub(super) fn leave_path(&mut self, id: ConnId, now: Instant) {
        let Some(slot) = self.slots.at_mut(id) else { return };
        let Some(mut member) = slot.member.take() else { return };
        let connection = &mut slot.connection;
        if connection.tx.is_lent() {
            self.controllers.take_back(id, &mut member, connection, false, now);
        }
        let path = member.path;
        self.controllers.leave(id, &mut member, connection, self.config.path_entries, now);
        self.serve_path(path, now);
    }

    pub(super) fn serve_paths(&mut self, now: Instant) {
        while let Some(index) = self.controllers.deadlines.pop_due(now) {
            let Some(path) = self.controllers.path(index) else { continue };
            path.release_departed(now);
            if path.members == 0 && path.ends_at.is_some_and(|at| at <= now) {
                self.controllers.remove(index);
                continue;
            }
            self.serve_path(index, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::sample::{CongestionCause, CongestionEvent, ControllerStart};
    use crate::congestion::{CongestionAlgorithm, Controller, PrrBound};
    use crate::send::pacer::Pacer;

    /// A member loses data with a window of 100,000 bytes and is aborted. Another member repairs a later loss
    /// when the window is 50,000 bytes.
    #[test]
    fn a_recovery_ends_with_its_last_member() {
        let now = Instant::ZERO;
        let start = ControllerStart { now, mss: 1448, initial_window: 14_480, paced: false, seed: 7 };
        let congestion = Controller::new(&CongestionAlgorithm::Bbr, PrrBound::Rfc9937, &start);
        let ends = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let mut path = PathController::new(ends, RateControl::new(congestion, Pacer::new(None)), now);
        let (open, recovering) =
            (MemberState::default(), MemberState { is_recovering: true, ..MemberState::default() });
        let id = ConnId { index: 0, generation: 0 };
        for window in [100_000, 50_000] {
            path.rate.congestion.start(window);
            path.rate.congestion.on_congestion(&CongestionEvent {
                now,
                cause: CongestionCause::Loss,
                undelivered_before: 0,
                delivered_while_held: 0,
                max_ssthresh: None,
            });
            path.count(id, &open, &recovering);
            path.count(id, &recovering, &open);
        }
        path.rate.congestion.on_recovery_exit(CongestionState::Recovery);
        assert_eq!(path.rate.congestion.cwnd(), 50_000, "not the window before the earlier losses");
    }
}

//! Half-open connections in a few bytes (Linux has a request socket for this).
//!
//! Three facts determine a connection that has only answered a SYN: the SYN, its time of arrival, and the
//! times at which the answer left. So the newest half-open connections are kept as whole connections
//! ([`StackConfig::warm_half_open`](crate::config::StackConfig)), and the others as a record of these facts.
//! When an event concerns a record, the connection is rebuilt by the calls that created it, with the same
//! times. Its packets are the same as if it had been kept whole.
//!
//! After a segment that does not complete the handshake, or a genuine ICMP error, the connection remains
//! whole. A connection also remains whole if it uses Corrective or Proactive, if its planner expects losses,
//! or if data of its SYN was accepted.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use record::HalfOpen;

use super::Stack;
use super::deadlines::Deadlines;
use super::demux::Target;
use super::slab::Slab;
use super::slot::{Ownership, Slot};
use crate::conn_id::{ConnId, ListenerId};
use crate::connection::{Connection, Urgency};
use crate::four_tuple::FourTuple;
use crate::time::Instant;

pub(in crate::stack) mod record;

/// The records of half-open connections, and the whole connections that may become records. The listeners
/// bound their number.
#[derive(Debug)]
pub(crate) struct HalfOpenTable {
    entries: Slab<HalfOpen>,
    deadlines: Deadlines,
    /// Timers up to this time fire when packets are polled next.
    due: Instant,
    /// Whole connections that have answered and wait. Some may have left this state.
    warm: VecDeque<ConnId>,
}

impl Default for HalfOpenTable {
    fn default() -> Self {
        HalfOpenTable {
            entries: Slab::default(),
            deadlines: Deadlines::default(),
            due: Instant::ZERO,
            warm: VecDeque::new(),
        }
    }
}

impl HalfOpenTable {
    /// Resets the table to its initial state, and keeps its storage.
    pub(super) fn clear(&mut self) {
        let HalfOpenTable { entries, deadlines, due, warm } = self;
        entries.clear();
        deadlines.clear();
        *due = Instant::ZERO;
        warm.clear();
    }

    /// Permits timers up to `now` to fire.
    pub(super) fn on_timeout(&mut self, now: Instant) {
        self.due = self.due.max(now);
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn entry(&self, index: u32) -> Option<&HalfOpen> {
        self.entries.get(index)
    }

    /// True if no timer is due.
    #[inline]
    pub(super) fn is_idle(&self, now: Instant) -> bool {
        self.deadlines.next().is_none_or(|at| at > self.due.min(now))
    }

    /// Returns the next timeout that is not due. [`Stack::poll_transmit`] processes the timeouts that are
    /// due.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.deadlines.next().filter(|at| *at > self.due)
    }

    /// Returns the four-tuples of all records.
    pub(super) fn flows(&self) -> impl Iterator<Item = FourTuple> {
        self.entries.iter().map(|(_, entry)| entry.tuple())
    }

    fn of(&self, listener: ListenerId) -> Vec<u32> {
        let all = self.entries.iter();
        all.filter(|(_, entry)| entry.listener() == listener.index).map(|(index, _)| index).collect()
    }
}

/// Updates of a whole half-open connection.
impl Slot {
    /// Records that the connection sent a segment.
    pub(super) fn record_sent(&mut self, now: Instant) {
        self.half_open.take_if(|half_open| half_open.sent(now).is_none());
    }

    pub(super) fn record_timeout(&mut self, now: Instant) {
        self.half_open.take_if(|half_open| half_open.timed_out(now).is_none());
    }
}

/// From a connection to a record.
impl Stack {
    /// Keeps a waiting half-open connection whole. The connection that has waited longest becomes a record.
    pub(super) fn keep_warm(&mut self, id: ConnId) {
        self.half_open.warm.push_back(id);
        while self.half_open.warm.len() > self.config.warm_half_open {
            let Some(oldest) = self.half_open.warm.pop_front() else { return };
            self.compact(oldest);
        }
    }

    /// Replaces a half-open connection by its record, if possible.
    fn compact(&mut self, id: ConnId) {
        let Some(slot) = self.slots.at_mut(id) else { return };
        let connection = &slot.connection;
        let waits = matches!(slot.phase, Ownership::HalfOpen(_)) && slot.urgency == Urgency::Idle;
        if !waits || !connection.is_bare() || connection.gentle.has_planned() {
            return;
        }
        let (deadline, known) = (connection.next_timeout(), connection.path.known);
        let Some(mut half_open) = slot.half_open.take_if(|half_open| half_open.has_answered()) else {
            return;
        };
        half_open.set_known(known);
        debug_assert!(self.is_restored_equal(id, &half_open), "{half_open:?}");
        let tuple = half_open.tuple();
        self.deadlines.set(id.index, None);
        self.free(id);
        let index = self.half_open.entries.insert(*half_open);
        self.half_open.deadlines.set(index, deadline);
        self.demux.point(&tuple, Some(Target::Connection(id.index)), Target::HalfOpen(index));
    }
}

/// From a record to a connection.
impl Stack {
    /// True if the rebuilt connection equals the existing one.
    fn is_restored_equal(&self, id: ConnId, half_open: &HalfOpen) -> bool {
        let slot = self.slots.at(id);
        self.restored(half_open).zip(slot).is_some_and(|(again, slot)| {
            alloc::format!("{again:?}") == alloc::format!("{:?}", slot.connection)
        })
    }

    /// Rebuilds the connection at `index`, for an event that concerns it.
    pub(super) fn restore_half_open(&mut self, index: u32, now: Instant) -> Option<ConnId> {
        self.half_open.deadlines.set(index, None);
        let half_open = self.half_open.entries.remove(index)?;
        let tuple = half_open.tuple();
        let connection = self.restored(&half_open);
        let listener: Option<ListenerId> = self.listeners.key_at(half_open.listener());
        let (Some(connection), Some(listener)) = (connection, listener) else {
            self.demux.remove(&tuple, Target::HalfOpen(index));
            return None;
        };
        let deadline = connection.next_timeout();
        let tcp = Arc::clone(&connection.config);
        let id = self.insert_slot(connection, &tcp, Ownership::HalfOpen(listener), now);
        self.deadlines.set(id.index, deadline);
        self.demux.point(&tuple, Some(Target::HalfOpen(index)), Target::Connection(id.index));
        if let Some(slot) = self.slots.at_mut(id) {
            slot.half_open = Some(Box::new(half_open));
        }
        Some(id)
    }

    /// Rebuilds the connections of a listener.
    pub(super) fn restore_all(&mut self, listener: ListenerId, now: Instant) {
        for index in self.half_open.of(listener) {
            self.restore_half_open(index, now);
        }
    }

    /// Fires the next due timer. Timers fire one at a time, and only when nothing else is to be sent, so few
    /// connections are whole at once.
    pub(super) fn fire_half_open(&mut self, now: Instant) -> bool {
        let due = self.half_open.due.min(now);
        let Some(index) = self.half_open.deadlines.pop_due(due) else { return false };
        if let Some(id) = self.restore_half_open(index, due) {
            self.on_conn_timeout(id, due);
        }
        true
    }

    /// Returns the connection rebuilt from `half_open`, with its history repeated.
    fn restored(&self, half_open: &HalfOpen) -> Option<Box<Connection>> {
        let id: ListenerId = self.listeners.key_at(half_open.listener())?;
        let listener = self.listeners.at(id)?;
        let options = half_open.options();
        let syn = half_open.syn(&options);
        let mut connection = half_open.create(&syn, listener.tcp(), self.host());
        if let Some((verdict, at)) = half_open.verdict().zip(listener.fast_open.as_deref()) {
            at.answer(&mut connection, verdict, &syn, half_open.wire_len(), half_open.opened());
        }
        half_open.replay(&mut connection, &self.config);
        Some(connection)
    }
}

#[cfg(test)]
mod tests {
    use core::net::SocketAddr;

    use brisk_wire::IcmpKind;

    use super::*;
    use crate::config::{ConnectConfig, ListenConfig, StackConfig};
    use crate::stack::Rx;
    use crate::stack::stats::Refusal;

    const NOW: Instant = Instant::from_millis(1);
    /// Offset of the sequence number in a packet with a bare IPv4 header.
    const SEQ_AT: usize = 24;

    fn stack(last: u8, warm_half_open: usize) -> Stack {
        let addresses = [[10, 0, 0, last].into()].into();
        Stack::new(StackConfig { addresses, warm_half_open, ..StackConfig::default() }, 1).expect("valid")
    }

    /// Opens a connection up to the SYN-ACK, and returns that.
    fn open_half(client: &mut Stack, server: &mut Stack, at: SocketAddr) -> Vec<u8> {
        let (mut syn, mut syn_ack) = (Vec::new(), Vec::new());
        client.connect(at, &ConnectConfig::default(), NOW).expect("a port is free");
        client.poll_transmit(NOW, &mut syn).expect("a SYN");
        server.on_packet(&syn, Rx::default(), NOW);
        server.poll_transmit(NOW, &mut syn_ack).expect("a SYN-ACK");
        assert!(server.poll_transmit(NOW, &mut syn).is_none());
        syn_ack
    }

    #[test]
    fn only_an_icmp_error_about_the_syn_ack_makes_a_record_whole() {
        let at: SocketAddr = ([10, 0, 0, 2], 80).into();
        // The first connection is a record at once, or only after the second one has been opened.
        for warm in [0, 1] {
            let (mut client, mut server) = (stack(1, 4), stack(2, warm));
            server.listen(at, ListenConfig::default()).expect("the port is free");
            let quoted = open_half(&mut client, &mut server, at);
            let kind = IcmpKind::PacketTooBig { mtu: 1300 };
            let mut icmp = Vec::new();
            for changed in [1, 0x80] {
                let mut forged = quoted.clone();
                forged[SEQ_AT] ^= changed;
                brisk_wire::emit_icmp([10, 0, 0, 9].into(), &forged, kind, &mut icmp);
                server.on_packet(&icmp, Rx::default(), NOW);
            }
            assert_eq!(server.stats().refused(Refusal::IcmpStale), 2);
            open_half(&mut client, &mut server, at);
            assert_eq!((server.half_open.len(), server.half_open()), (2 - warm, 2));
            brisk_wire::emit_icmp([10, 0, 0, 9].into(), &quoted, kind, &mut icmp);
            server.on_packet(&icmp, Rx::default(), NOW);
            assert_eq!((server.half_open.len(), server.stats().icmp_believed), (1 - warm, 1));
        }
    }
}

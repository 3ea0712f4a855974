//! What stateful boxes remember of connections, for both directions.
//!
//! The two directions of a link may live in different threads, so the table is made of atomics; each word has one
//! writer. It has room for a fixed number of connections and forgets none; one that finds no room passes unjudged.

use super::Verdict;
use super::header::{Tcp, read_u32};
use super::translate::flow_bytes;
use crate::direction::Way;
use crate::seeds::keyed;
use crate::spec::DirectionSpec;
use alloc::boxed::Box;
use alloc::sync::Arc;
use brisk_wire::{Flags, SeqNum, four_tuple};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Connections in the table.
const ROOM: usize = 4096;
/// How far from its place a connection is looked for.
const PROBES: usize = 32;

/// The connections that the boxes of one link have seen.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    slots: Box<[Slot]>,
}

#[derive(Debug, Default)]
struct Slot {
    /// Hash of the connection; zero is free.
    key: AtomicU64,
    /// What is known, as bits.
    known: AtomicU32,
    /// Sequence number of the client's SYN.
    isn: AtomicU32,
    /// By way: highest sequence number delivered.
    end: [AtomicU32; 2],
    /// By way: highest acknowledgement delivered.
    acked: [AtomicU32; 2],
}

const SEEN: u32 = 1;
const SYN_DATA: u32 = 2;
const END: [u32; 2] = [4, 8];
const ACKED: [u32; 2] = [16, 32];

fn index(way: Way) -> usize {
    match way {
        Way::Down => 0,
        Way::Up => 1,
    }
}

fn opposite(way: Way) -> usize {
    1 - index(way)
}

impl Flows {
    /// A table if one of the boxes needs it, else an empty one.
    pub(crate) fn wanted_by(directions: &[&DirectionSpec]) -> Arc<Flows> {
        let mut boxes = directions.iter().flat_map(|direction| &direction.middleboxes);
        let room = if boxes.any(|middlebox| middlebox.remembers_flows()) { ROOM } else { 0 };
        Arc::new(Flows { slots: (0..room).map(|_| Slot::default()).collect() })
    }

    /// The black hole: SYNs pass, what follows one with data does not (or what follows any).
    pub(super) fn drop_after_handshake(&self, ip: &[u8], tcp: Tcp, all: bool) -> Verdict {
        let flags = tcp.flags(ip);
        let Some(slot) = self.slot(ip) else { return Verdict::Pass };
        if flags.contains(Flags::SYN) {
            if !flags.contains(Flags::ACK) {
                slot.begin(tcp.seq(ip));
                if tcp.payload_len() > 0 {
                    slot.known.fetch_or(SYN_DATA, Relaxed);
                }
            }
            return Verdict::Pass;
        }
        let swallowed = all || slot.known.load(Relaxed) & SYN_DATA != 0;
        if swallowed { Verdict::Drop } else { Verdict::Pass }
    }

    /// The firewall at this direction's entrance: it has seen what the opposite direction delivered, and drops
    /// acknowledgements (and SACK blocks) of more.
    pub(super) fn drop_unseen_ack(&self, ip: &[u8], tcp: Tcp, way: Way) -> Verdict {
        let Some(slot) = self.slot(ip).filter(|_| tcp.flags(ip).contains(Flags::ACK)) else {
            return Verdict::Pass;
        };
        let other = opposite(way);
        if slot.known.load(Relaxed) & END[other] == 0 {
            return Verdict::Pass;
        }
        let seen = SeqNum(slot.end[other].load(Relaxed));
        let unseen = SeqNum(tcp.ack(ip)).gt(seen) || sack_ends(ip, tcp).any(|end| SeqNum(end).gt(seen));
        if unseen { Verdict::Drop } else { Verdict::Pass }
    }

    /// The firewall at this direction's entrance drops data that the other side has acknowledged through it.
    pub(super) fn drop_old(&self, ip: &[u8], tcp: Tcp, way: Way) -> Verdict {
        let Some(slot) = self.slot(ip).filter(|_| tcp.payload_len() > 0) else { return Verdict::Pass };
        let other = opposite(way);
        let known = slot.known.load(Relaxed) & ACKED[other] != 0;
        let old = known && SeqNum(tcp.seq_end(ip)).le(SeqNum(slot.acked[other].load(Relaxed)));
        if old { Verdict::Drop } else { Verdict::Pass }
    }

    /// Notes a packet that arrived at the end of `way`.
    pub(super) fn delivered(&self, ip: &[u8], tcp: Tcp, way: Way) {
        let Some(slot) = self.slot(ip) else { return };
        let flags = tcp.flags(ip);
        if flags.contains(Flags::SYN) && !flags.contains(Flags::ACK) {
            slot.begin(tcp.seq(ip));
        }
        let at = index(way);
        slot.raise(&slot.end[at], END[at], tcp.seq_end(ip));
        if flags.contains(Flags::ACK) {
            slot.raise(&slot.acked[at], ACKED[at], tcp.ack(ip));
        }
    }

    /// The connection's place, taken on first sight.
    fn slot(&self, ip: &[u8]) -> Option<&Slot> {
        if self.slots.is_empty() {
            return None;
        }
        let (src, dst) = four_tuple(ip)?;
        let (low, high) = if src <= dst { (src, dst) } else { (dst, src) };
        let key = keyed(0, "flow", &flow_bytes(low, high)) | 1;
        let start = (key >> 1) as usize % self.slots.len();
        for slot in self.slots.iter().cycle().skip(start).take(PROBES) {
            match slot.key.compare_exchange(0, key, Relaxed, Relaxed) {
                Ok(_) => return Some(slot),
                Err(taken) if taken == key => return Some(slot),
                Err(_) => {}
            }
        }
        None
    }
}

impl Slot {
    /// A SYN: forgets what an earlier connection on the same ports left; a repeated SYN forgets nothing.
    fn begin(&self, isn: u32) {
        let known = self.known.load(Relaxed);
        if known & SEEN == 0 || self.isn.load(Relaxed) != isn {
            self.isn.store(isn, Relaxed);
            self.known.store(SEEN, Relaxed);
        }
    }

    /// The later of what is known and `value`.
    fn raise(&self, word: &AtomicU32, bit: u32, value: u32) {
        let fresh = self.known.fetch_or(bit, Relaxed) & bit == 0;
        if fresh || SeqNum(value).gt(SeqNum(word.load(Relaxed))) {
            word.store(value, Relaxed);
        }
    }
}

/// The right edges of the SACK blocks.
fn sack_ends(ip: &[u8], tcp: Tcp) -> impl Iterator<Item = u32> {
    const SACK: u8 = 5;
    let option = tcp.options(ip).find(|option| option.kind == SACK);
    let (start, blocks) = option.map_or((0, 0), |option| (option.start, (option.len - 2) / 8));
    (0..blocks).map(move |block| read_u32(ip, start + 2 + block * 8 + 4))
}

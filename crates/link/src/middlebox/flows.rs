//! Per-connection state of stateful boxes, for both directions.
//!
//! The two directions of a link may run in different threads, so the table consists of atomics, and each word
//! has one writer. The table has slots for a fixed number of connections and never frees one. A connection
//! without a slot passes unchecked.

use super::Verdict;
use super::header::{Tcp, read_u32};
use super::translate::flow_bytes;
use crate::seeds::keyed;
use crate::spec::DirectionSpec;
use crate::up_down::Direction;
use alloc::boxed::Box;
use alloc::sync::Arc;
use brisk_wire::{Flags, SeqNum, four_tuple};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

const MAX_FLOWS: usize = 4096;
/// Maximum number of slots that are searched for a connection.
const PROBES: usize = 32;

/// The connections that the boxes of one link have seen.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    slots: Box<[Slot]>,
}

#[derive(Debug, Default)]
struct Slot {
    /// Hash of the connection; zero if the slot is free.
    key: AtomicU64,
    /// The known facts, as bits.
    known: AtomicU32,
    /// Sequence number of the client's SYN.
    isn: AtomicU32,
    /// By direction: highest delivered sequence number.
    end: [AtomicU32; 2],
    /// Sequence number of the server's SYN behind a proxy.
    server_isn: AtomicU32,
    /// By direction: highest delivered acknowledgement.
    acked: [AtomicU32; 2],
}

const SYN_SEEN: u32 = 1;
const SYN_DATA: u32 = 2;
const END: [u32; 2] = [4, 8];
const ACKED: [u32; 2] = [16, 32];
const SERVER_ISN: u32 = 64;

fn index(direction: Direction) -> usize {
    match direction {
        Direction::Down => 0,
        Direction::Up => 1,
    }
}

fn opposite(direction: Direction) -> usize {
    1 - index(direction)
}

impl Flows {
    /// Returns a table if one of the boxes needs it.
    pub(crate) fn wanted_by(directions: &[&DirectionSpec]) -> Option<Arc<Flows>> {
        let mut boxes = directions.iter().flat_map(|direction| &direction.middleboxes);
        let wanted = boxes.any(|middlebox| middlebox.remembers_flows());
        wanted.then(|| Arc::new(Flows { slots: (0..MAX_FLOWS).map(|_| Slot::default()).collect() }))
    }

    /// Passes SYNs, and drops all packets after a SYN with data (with `all`: after any SYN): a black hole.
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

    /// Processes a SYN of the client: clears the state of an earlier connection.
    pub(super) fn begin(&self, ip: &[u8], isn: u32) {
        if let Some(slot) = self.slot(ip) {
            slot.begin(isn);
        }
    }

    /// Returns the sequence number of the server's SYN, if it has answered.
    pub(super) fn server_isn(&self, ip: &[u8]) -> Option<u32> {
        let slot = self.slot(ip)?;
        (slot.known.load(Relaxed) & SERVER_ISN != 0).then(|| slot.server_isn.load(Relaxed))
    }

    pub(super) fn set_server_isn(&self, ip: &[u8], isn: u32) {
        if let Some(slot) = self.slot(ip) {
            slot.server_isn.store(isn, Relaxed);
            slot.known.fetch_or(SERVER_ISN, Relaxed);
        }
    }

    /// Drops acknowledgements and SACK blocks of data that the firewall at this direction's entrance has not
    /// seen. The firewall sees the packets that the opposite direction delivers.
    pub(super) fn drop_unseen_ack(&self, ip: &[u8], tcp: Tcp, direction: Direction) -> Verdict {
        let Some(slot) = self.slot(ip).filter(|_| tcp.flags(ip).contains(Flags::ACK)) else {
            return Verdict::Pass;
        };
        let other = opposite(direction);
        if slot.known.load(Relaxed) & END[other] == 0 {
            return Verdict::Pass;
        }
        let seen = SeqNum(slot.end[other].load(Relaxed));
        let unseen = SeqNum(tcp.ack(ip)).gt(seen) || sack_ends(ip, tcp).any(|end| SeqNum(end).gt(seen));
        if unseen { Verdict::Drop } else { Verdict::Pass }
    }

    /// Drops data that the other side has acknowledged through the firewall at this direction's entrance.
    pub(super) fn drop_old(&self, ip: &[u8], tcp: Tcp, direction: Direction) -> Verdict {
        let Some(slot) = self.slot(ip).filter(|_| tcp.payload_len() > 0) else { return Verdict::Pass };
        let other = opposite(direction);
        let known = slot.known.load(Relaxed) & ACKED[other] != 0;
        let old = known && SeqNum(tcp.seq_end(ip)).le(SeqNum(slot.acked[other].load(Relaxed)));
        if old { Verdict::Drop } else { Verdict::Pass }
    }

    /// Records a packet that arrived at the end of `direction`.
    pub(super) fn delivered(&self, ip: &[u8], tcp: Tcp, direction: Direction) {
        let Some(slot) = self.slot(ip) else { return };
        let flags = tcp.flags(ip);
        if flags.contains(Flags::SYN) && !flags.contains(Flags::ACK) {
            slot.begin(tcp.seq(ip));
        }
        let at = index(direction);
        slot.raise(&slot.end[at], END[at], tcp.seq_end(ip));
        if flags.contains(Flags::ACK) {
            slot.raise(&slot.acked[at], ACKED[at], tcp.ack(ip));
        }
    }

    /// Returns the connection's slot; takes a free slot for a new connection.
    fn slot(&self, ip: &[u8]) -> Option<&Slot> {
        if self.slots.is_empty() {
            return None;
        }
        let (src, dst) = four_tuple(ip)?;
        let (low, high) = if src <= dst { (src, dst) } else { (dst, src) };
        let key = keyed(0, "flow", &flow_bytes(low, high)) | 1;
        let start = (key >> 1) as usize % self.slots.len();
        for probe in 0..PROBES {
            let slot = self.slots.get((start + probe) % self.slots.len())?;
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
    /// Processes a SYN: clears the state of an earlier connection on the same ports. A repeated SYN clears
    /// nothing.
    fn begin(&self, isn: u32) {
        let known = self.known.load(Relaxed);
        if known & SYN_SEEN == 0 || self.isn.load(Relaxed) != isn {
            self.isn.store(isn, Relaxed);
            self.known.store(SYN_SEEN, Relaxed);
        }
    }

    fn raise(&self, word: &AtomicU32, bit: u32, value: u32) {
        let fresh = self.known.fetch_or(bit, Relaxed) & bit == 0;
        if fresh || SeqNum(value).gt(SeqNum(word.load(Relaxed))) {
            word.store(value, Relaxed);
        }
    }
}

/// Returns the right edges of the SACK blocks.
fn sack_ends(ip: &[u8], tcp: Tcp) -> impl Iterator<Item = u32> {
    const SACK: u8 = 5;
    let option = tcp.options(ip).find(|option| option.kind == SACK);
    let (start, blocks) = option.map_or((0, 0), |option| (option.start, (option.len - 2) / 8));
    (0..blocks).map(move |block| read_u32(ip, start + 2 + block * 8 + 4))
}

#[cfg(test)]
mod tests {
    use super::super::sample::{Sample, link};
    use crate::{Link, Offered};
    use alloc::vec;
    use alloc::vec::Vec;
    use brisk_wire::{ArrayVec, Flags, Instant, Options, SackBlock, SeqNum};

    const DROPPED: Offered = Offered::DroppedMiddlebox { reply: None };

    fn offer_up(link: &mut Link<Vec<u8>>, sample: &Sample) -> Offered {
        link.up.offer(sample.bytes(), Instant::ZERO)
    }

    #[test]
    fn black_hole_drops_both_directions_after_data_on_a_syn() {
        let mut link = link("--middlebox drop-after-handshake");
        let syn = Sample { payload: vec![1; 80], ..Sample::syn() };
        assert_eq!(syn.travel(&mut link.up).len(), 1);
        assert_eq!(syn.answered().travel(&mut link.down).len(), 1);
        assert_eq!(offer_up(&mut link, &Sample::data()), DROPPED);
        assert_eq!(link.down.offer(Sample::data().answered().bytes(), Instant::ZERO), DROPPED);
        // The repeated SYN without data belongs to the same connection; a SYN with another number begins a
        // new connection.
        offer_up(&mut link, &Sample::syn());
        assert_eq!(offer_up(&mut link, &Sample::data()), DROPPED);
        offer_up(&mut link, &Sample { seq: 77, ..Sample::syn() });
        assert_eq!(offer_up(&mut link, &Sample::data()), Offered::Queued);
    }

    #[test]
    fn black_hole_passes_plain_connections_unless_set_to_all() {
        let mut spared = link("--middlebox drop-after-handshake");
        offer_up(&mut spared, &Sample::syn());
        assert_eq!(offer_up(&mut spared, &Sample::data()), Offered::Queued);
        let mut swallowed = link("--middlebox drop-after-handshake:all");
        assert_eq!(offer_up(&mut swallowed, &Sample::syn()), Offered::Queued);
        assert_eq!(offer_up(&mut swallowed, &Sample::data()), DROPPED);
    }

    /// The server sends data; the third segment is lost before it reaches the client's firewall.
    #[test]
    fn acknowledgement_of_unseen_data_is_dropped() {
        let mut link = link("--middlebox drop-unseen-ack --loss down:list:4");
        let syn = Sample::syn();
        syn.travel(&mut link.up);
        syn.answered().travel(&mut link.down);
        let from_server = |seq| Sample { src: syn.dst, dst: syn.src, seq, ack: 1001, ..Sample::data() };
        for seq in [5001, 5501, 6001] {
            from_server(seq).travel(&mut link.down);
        }
        let ack = |ack| Sample { ack, payload: Vec::new(), ..Sample::data() };
        assert_eq!(offer_up(&mut link, &ack(6001)), Offered::Queued);
        assert_eq!(
            offer_up(&mut link, &ack(6501)),
            DROPPED,
            "the receiver repaired the data, and the firewall has not seen it"
        );
        let block = SackBlock { start: SeqNum(6001), end: SeqNum(6501) };
        let options = Options { sack: ArrayVec::from_iter([block]), ..Options::default() };
        assert_eq!(offer_up(&mut link, &Sample { options, ..ack(6001) }), DROPPED);
        // A bare acknowledgement with the sequence number after the data shows its end to the firewall.
        let tail_ack = Sample { payload: Vec::new(), ..from_server(6501) };
        tail_ack.travel(&mut link.down);
        assert_eq!(offer_up(&mut link, &ack(6501)), Offered::Queued);
    }

    #[test]
    fn data_left_of_the_window_is_dropped() {
        let mut link = link("--middlebox drop-old");
        let syn = Sample::syn();
        syn.travel(&mut link.up);
        assert_eq!(Sample::data().travel(&mut link.up).len(), 1);
        assert_eq!(Sample::data().travel(&mut link.up).len(), 1, "not acknowledged yet");
        Sample::data().answered().travel(&mut link.down);
        assert_eq!(offer_up(&mut link, &Sample::data()), DROPPED);
        assert_eq!(offer_up(&mut link, &Sample { seq: 1002, ..Sample::data() }), Offered::Queued);
        assert_eq!(offer_up(&mut link, &Sample { payload: Vec::new(), ..Sample::data() }), Offered::Queued);
    }

    #[test]
    fn sequence_numbers_wrap() {
        let mut link = link("--middlebox drop-old+drop-unseen-ack");
        let syn = Sample { seq: u32::MAX - 200, ..Sample::syn() };
        syn.travel(&mut link.up);
        let data = Sample { seq: u32::MAX - 199, ..Sample::data() };
        data.travel(&mut link.up);
        let ack = Sample { flags: Flags::ACK, ..data.answered() };
        assert_eq!(ack.travel(&mut link.down).len(), 1);
        assert_eq!(offer_up(&mut link, &data), DROPPED);
    }
}

//! Boxes that translate addresses and sequence numbers.
//!
//! Both directions must translate in the same way. They need no shared state, because the translation is a
//! function of the link's seed and the connection.

use super::Verdict;
use super::header::{Tcp, read_u32, update_checksums, write_u32};
use crate::seeds::keyed;
use crate::up_down::Direction;
use brisk_wire::{Flags, four_tuple};
use core::net::{IpAddr, SocketAddr};

/// Returns a direction of a connection as bytes, for hashing.
pub(super) fn flow_bytes(src: SocketAddr, dst: SocketAddr) -> [u8; 36] {
    let mut bytes = [0; 36];
    let (addresses, ports) = bytes.split_at_mut(32);
    let (source, destination) = addresses.split_at_mut(16);
    source.copy_from_slice(&octets(src.ip()));
    destination.copy_from_slice(&octets(dst.ip()));
    ports[..2].copy_from_slice(&src.port().to_be_bytes());
    ports[2..].copy_from_slice(&dst.port().to_be_bytes());
    bytes
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Adds an offset to the sequence numbers of each half-connection, and subtracts it from the other half's
/// acknowledgements. Firewalls that randomise initial sequence numbers do this; older ones do not shift SACK
/// blocks.
pub(super) fn rewrite_seq(ip: &mut [u8], tcp: Tcp, sack: bool, seed: u64) -> Verdict {
    let Some((src, dst)) = four_tuple(ip) else { return Verdict::Pass };
    let ours = keyed(seed, "rewrite-seq", &flow_bytes(src, dst)) as u32;
    let theirs = keyed(seed, "rewrite-seq", &flow_bytes(dst, src)) as u32;
    tcp.set_seq(ip, tcp.seq(ip).wrapping_add(ours));
    if tcp.flags(ip).contains(Flags::ACK) {
        tcp.set_ack(ip, tcp.ack(ip).wrapping_sub(theirs));
        if sack {
            shift_sack(ip, tcp, theirs);
        }
    }
    update_checksums(ip);
    Verdict::Pass
}

fn shift_sack(ip: &mut [u8], tcp: Tcp, by: u32) {
    const SACK: u8 = 5;
    let Some(option) = tcp.options(ip).find(|option| option.kind == SACK) else { return };
    for edge in (option.start + 2..).step_by(4).take((option.len - 2) / 4) {
        write_u32(ip, edge, read_u32(ip, edge).wrapping_sub(by));
    }
}

/// Changes the client's address of each connection: one byte is XORed with a value that depends on the
/// client's port. The port does not change, so answers can be translated back.
pub(super) fn nat(ip: &mut [u8], direction: Direction, seed: u64) -> Verdict {
    let Some((src, dst)) = four_tuple(ip) else { return Verdict::Pass };
    let (client, at) = match direction {
        Direction::Up => (src, if src.is_ipv4() { 12 } else { 8 }),
        Direction::Down => (dst, if dst.is_ipv4() { 16 } else { 24 }),
    };
    // The third octet of four, or the last byte of a /64 prefix.
    let at = at + if client.is_ipv4() { 2 } else { 7 };
    let difference = 1 + (keyed(seed, "nat", &client.port().to_be_bytes()) % 255) as u8;
    if let Some(byte) = ip.get_mut(at) {
        *byte ^= difference;
    }
    update_checksums(ip);
    Verdict::Pass
}

#[cfg(test)]
mod tests {
    use super::super::sample::{Sample, link};
    use brisk_wire::{ArrayVec, Flags, Options, SackBlock, SeqNum};

    #[test]
    fn a_translated_connection_looks_consistent_from_both_sides() {
        for syn in [Sample::syn(), Sample::syn().over_v6()] {
            let mut link = link("--middlebox rewrite-seq");
            let seen = syn.travel(&mut link.up).remove(0);
            assert_ne!(seen.seq, syn.seq);
            let back = seen.answered().travel(&mut link.down).remove(0);
            assert_eq!(back.ack, syn.seq + 1);
            assert_ne!(back.seq, 5000, "the server's half has its own offset");
            let data = Sample { seq: syn.seq + 1, ack: back.seq + 1, flags: Flags::ACK, ..syn.clone() };
            let seen_data = data.travel(&mut link.up).remove(0);
            assert_eq!((seen_data.seq, seen_data.ack), (seen.seq + 1, 5001));
        }
    }

    #[test]
    fn sack_blocks_are_translated_unless_disabled() {
        let block = SackBlock { start: SeqNum(6001), end: SeqNum(7001) };
        let sack = ArrayVec::from_iter([block]);
        let ack = Sample { options: Options { sack, ..Options::default() }, ..Sample::data() };
        let moved = ack.travel_up("--middlebox rewrite-seq").remove(0);
        assert_eq!(moved.options.sack[0].start.0.wrapping_sub(moved.ack), 1000);
        assert_eq!(moved.options.sack[0].end.0.wrapping_sub(moved.ack), 2000);
        assert_eq!(ack.travel_up("--middlebox rewrite-seq:nosack").remove(0).options.sack[0], block);
    }

    #[test]
    fn each_connection_gets_its_own_address_and_answers_come_back() {
        for v6 in [false, true] {
            let mut link = link("--middlebox nat");
            let mut addresses = alloc::collections::BTreeSet::new();
            for port in 40_000..40_020 {
                let mut syn = Sample::syn();
                syn.src.set_port(port);
                let syn = if v6 { syn.over_v6() } else { syn };
                let seen = syn.travel(&mut link.up).remove(0);
                assert!(seen.src.ip() != syn.src.ip() && seen.src.port() == port && seen.dst == syn.dst);
                addresses.insert(seen.src.ip());
                assert_eq!(seen.answered().travel(&mut link.down).remove(0).dst, syn.src);
            }
            assert!(addresses.len() > 10, "{addresses:?}");
        }
    }
}

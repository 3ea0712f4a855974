//! A box that joins adjacent segments, as offloads and accelerators on a path do.

use super::Passed;
use super::header::{Tcp, update_checksums, write_length};
use crate::packet::LinkPacket;
use alloc::vec::Vec;
use brisk_wire::{Flags, Instant, four_tuple};
use core::time::Duration;

/// How long a segment waits for its successor.
const MAX_WAIT: Duration = Duration::from_micros(500);
/// Largest joined packet in bytes, if the box has no size. The MTU of the link limits it too.
const MAX_PACKET: u16 = 9000;

/// A box that holds one data segment until its successor arrives or the time is over.
#[derive(Debug)]
pub(super) struct Coalesce<P> {
    largest: usize,
    held: Option<(P, Instant)>,
}

/// Relation of an arriving segment to the held one.
enum Relation {
    /// Segment of another connection, or no segment is held.
    Stranger,
    /// Segment in the same direction of the same connection that cannot be joined.
    Sibling,
    /// Segment whose bytes follow directly and whose other fields are equal.
    Successor,
}

impl<P: LinkPacket> Coalesce<P> {
    pub(super) fn new(size: Option<u16>, mtu: Option<u16>) -> Self {
        let largest = size.unwrap_or(MAX_PACKET).min(mtu.unwrap_or(u16::MAX));
        Coalesce { largest: usize::from(largest), held: None }
    }

    pub(super) fn pass(&mut self, packet: P, now: Instant, onward: &mut Vec<P>) -> Passed {
        match self.relation(&packet) {
            Relation::Successor => {
                if let (Some((held, _)), Some(next)) = (&mut self.held, packet.bytes()) {
                    join(held, next);
                }
                return Passed::Joined;
            }
            Relation::Sibling => onward.extend(self.release()),
            Relation::Stranger => {}
        }
        // An acknowledgement without data has no successor. A segment of another connection leaves the held
        // segment where it is.
        if self.held.is_none() && is_data(&packet) {
            self.held = Some((packet, now + MAX_WAIT));
        } else {
            onward.push(packet);
        }
        Passed::Onward
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.held.as_ref().map(|(_, deadline)| *deadline)
    }

    pub(super) fn release(&mut self) -> Option<P> {
        self.held.take().map(|(packet, _)| packet)
    }

    fn relation(&self, packet: &P) -> Relation {
        let held = self.held.as_ref().and_then(|(held, _)| held.bytes());
        let (Some(held), Some(next)) = (held, packet.bytes()) else { return Relation::Stranger };
        let (Some(first), Some(second)) = (Tcp::of(held), Tcp::of(next)) else { return Relation::Stranger };
        if four_tuple(held) != four_tuple(next) {
            return Relation::Stranger;
        }
        let follows = first.seq_end(held) == second.seq(next)
            && is_data(packet)
            && first.option_bytes(held) == second.option_bytes(next)
            && first.flags(held).0 & !Flags::PSH.0 == second.flags(next).0 & !Flags::PSH.0
            && held.len() + second.payload_len() <= self.largest;
        if follows { Relation::Successor } else { Relation::Sibling }
    }
}

/// True for a segment that has payload and none of SYN, FIN, RST and URG.
fn is_data<P: LinkPacket>(packet: &P) -> bool {
    let Some((ip, tcp)) = packet.bytes().and_then(|ip| Tcp::of(ip).map(|tcp| (ip, tcp))) else {
        return false;
    };
    let control = Flags::SYN.0 | Flags::FIN.0 | Flags::RST.0 | Flags::URG.0;
    tcp.payload_len() > 0 && tcp.ends(ip) && tcp.flags(ip).0 & control == 0
}

/// Appends the payload of `next` and copies the newer fields of its header.
fn join<P: LinkPacket>(held: &mut P, next: &[u8]) {
    let (Some(ip), Some(newer)) = (held.bytes_mut(), Tcp::of(next)) else { return };
    let Some(tcp) = Tcp::of(ip) else { return };
    tcp.set_ack(ip, newer.ack(next));
    tcp.set_window(ip, newer.window(next));
    let flags = Flags(tcp.flags(ip).0 | newer.flags(next).0);
    tcp.set_flags(ip, flags);
    ip.extend_from_slice(newer.payload(next));
    write_length(ip);
    update_checksums(ip);
}

#[cfg(test)]
mod tests {
    use super::super::sample::{Sample, link};
    use alloc::vec;
    use alloc::vec::Vec;
    use brisk_wire::{Flags, Instant, Options};

    fn burst(count: u32) -> Vec<Sample> {
        (0..count).map(|i| Sample { seq: 1001 + 500 * i, ..Sample::data() }).collect()
    }

    /// Returns the delivered packets with their times, if each packet is offered `gap` microseconds after the
    /// previous one.
    fn travel(text: &str, packets: &[Sample], gap: u64) -> Vec<(u64, Sample)> {
        let mut up = link(text).up;
        for (i, packet) in packets.iter().enumerate() {
            up.offer(packet.bytes(), Instant::from_micros(i as u64 * gap));
        }
        let mut out = Vec::new();
        while let Some(next) = up.next_departure() {
            while let Some((due, packet)) = up.poll(next) {
                out.push((due.as_micros(), Sample::read(&packet)));
            }
        }
        assert!(up.counters().balanced() && up.counters().in_flight == 0);
        out
    }

    #[test]
    fn adjacent_segments_become_one_that_leaves_after_the_hold() {
        let mut packets = burst(3);
        packets[2].flags = Flags::ACK | Flags::PSH;
        packets[2].ack = 5002;
        let out = travel("--middlebox coalesce", &packets, 100);
        let whole =
            Sample { payload: vec![b'a'; 1500], ack: 5002, flags: Flags::ACK | Flags::PSH, ..Sample::data() };
        assert_eq!(out, [(500, whole)]);
    }

    #[test]
    fn the_size_is_bounded_by_the_box_and_the_mtu() {
        for text in ["--middlebox coalesce:1100", "--middlebox coalesce --mtu 1100"] {
            let lens: Vec<usize> =
                travel(text, &burst(5), 0).iter().map(|(_, out)| out.payload.len()).collect();
            assert_eq!(lens, [1000, 1000, 500]);
        }
    }

    #[test]
    fn different_or_late_segments_are_not_joined() {
        assert_eq!(travel("--middlebox coalesce", &burst(3), 501).len(), 3);
        let mut packets = burst(2);
        packets[1].options = Options::default();
        assert_eq!(travel("--middlebox coalesce", &packets, 0).len(), 2);
        let hole = [Sample::data(), Sample { seq: 2001, ..Sample::data() }];
        assert_eq!(travel("--middlebox coalesce", &hole, 0).len(), 2);
    }

    #[test]
    fn padding_does_not_count_as_payload() {
        let mut up = link("--middlebox coalesce").up;
        let mut padded = Sample::data().bytes();
        padded.extend([0; 6]);
        up.offer(padded, Instant::ZERO);
        up.offer(burst(2)[1].bytes(), Instant::ZERO);
        assert_eq!(up.counters().coalesced, 0);
    }

    #[test]
    fn held_segment_is_overtaken_only_by_other_connections() {
        let mut stranger = Sample::data();
        stranger.src.set_port(40_001);
        let ack = Sample { seq: 1501, payload: Vec::new(), ..Sample::data() };
        let out = travel("--middlebox coalesce", &[Sample::data(), stranger.clone(), ack.clone()], 0);
        let order: Vec<Sample> = out.into_iter().map(|(_, sample)| sample).collect();
        assert_eq!(order, [stranger, Sample::data(), ack]);
    }
}

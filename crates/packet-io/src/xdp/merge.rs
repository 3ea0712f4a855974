//! Merges runs of segments into super-packets, like GRO in the kernel, which XDP bypasses.
//!
//! The cost of bulk data in many short frames depends on the number of frames, not of bytes. So consecutive
//! segments of a connection are merged if their checksums are right and their headers differ only in the
//! fields that must differ. [`brisk_wire::split`] would cut the super-packet into the same segments again.

use brisk_device::{ChecksumState, MAX_SUPER, RxMeta};
use bytes::Bytes;

use brisk_wire::checksum::Sum;

use crate::buffers::Buffers;
use crate::headers::{Headers, PSH};

/// Minimum payload of a segment that is merged, bytes. Shorter segments, such as requests, stay alone.
const MIN_PAYLOAD: usize = 512;
/// ACK, the one flag that all segments of a run have; the last one may also have PSH.
const ACK: u8 = 0x10;
/// Ranges of an IPv4 and an IPv6 header that must be equal: all except length, identification and checksum.
const SAME_V4: [std::ops::Range<usize>; 3] = [0..2, 6..10, 12..20];
const SAME_V6: [std::ops::Range<usize>; 2] = [0..4, 6..40];
/// Ranges of a TCP header that must be equal: all except sequence number, flags and checksum, which are
/// checked separately.
const SAME_TCP: [std::ops::Range<usize>; 3] = [0..4, 8..13, 14..16];

/// A run that may be continued.
#[derive(Debug)]
pub(super) struct Merge {
    buffers: Buffers,
    /// Headers of the first segment; `None` if there is no run.
    headers: Option<Headers>,
    /// Bytes in the buffer.
    len: usize,
    /// Payload bytes of each segment.
    size: usize,
    segments: usize,
}

/// Callback that takes a packet, its buffer if the callback may keep it, and its metadata.
type Emit<'a> = dyn FnMut(&[u8], Option<&Bytes>, RxMeta) + 'a;

/// Result of adding a segment to a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Added {
    No,
    /// Added; more segments may follow.
    Open,
    /// Added as the last segment.
    Last,
}

impl Merge {
    pub(super) fn new() -> Merge {
        Merge { buffers: Buffers::of(MAX_SUPER), headers: None, len: 0, size: 0, segments: 0 }
    }

    /// Adds a packet to the run, or passes it to `emit` if it cannot be merged. If it does not continue the
    /// run, the run is passed first. Returns the number of packets that were passed.
    pub(super) fn offer(&mut self, packet: &[u8], checksum: ChecksumState, emit: &mut Emit<'_>) -> usize {
        let Some(headers) = mergeable(packet, checksum) else {
            let before = self.flush(emit);
            emit(packet, None, RxMeta { checksum, segment_size: None });
            return before + 1;
        };
        match self.add(packet, headers) {
            Added::Open => 0,
            Added::Last => self.flush(emit),
            Added::No => {
                let before = self.flush(emit);
                if headers.flags(packet) & PSH != 0 {
                    // No later segment can be merged with it.
                    emit(packet, None, RxMeta { checksum, segment_size: None });
                    return before + 1;
                }
                self.begin(packet, headers);
                before
            }
        }
    }

    /// Passes the run to `emit`. Returns the number of packets that were passed: one or none.
    pub(super) fn flush(&mut self, emit: &mut Emit<'_>) -> usize {
        let Some(headers) = self.headers.take() else { return 0 };
        finish_lengths(self.buffers.current().get_mut(..self.len).unwrap_or_default(), headers);
        let segment_size = u16::try_from(self.size).ok().filter(|_| self.segments > 1);
        let meta = RxMeta { checksum: ChecksumState::Trusted, segment_size };
        self.buffers.hand_over(0..self.len, |packet, shared| emit(packet, shared, meta));
        1
    }

    fn begin(&mut self, packet: &[u8], headers: Headers) {
        let Some(room) = self.buffers.current().get_mut(..packet.len()) else { return };
        room.copy_from_slice(packet);
        self.headers = Some(headers);
        self.len = packet.len();
        self.size = packet.len() - headers.total();
        self.segments = 1;
    }

    fn add(&mut self, packet: &[u8], headers: Headers) -> Added {
        let Some(payload) = packet.get(headers.total()..) else { return Added::No };
        let (len, size) = (self.len, self.size);
        let held = self.buffers.current();
        let fits = self.headers == Some(headers) && payload.len() <= size && len + payload.len() <= MAX_SUPER;
        if !fits || !continues(held.get(..len).unwrap_or_default(), packet, headers) {
            return Added::No;
        }
        let Some(room) = held.get_mut(len..len + payload.len()) else { return Added::No };
        room.copy_from_slice(payload);
        let pushed = headers.flags(packet) & PSH;
        if let Some(flags) = held.get_mut(headers.ip_len + FLAGS) {
            *flags |= pushed;
        }
        self.len += payload.len();
        self.segments += 1;
        let is_last = pushed != 0 || payload.len() < size || self.len + size > MAX_SUPER;
        if is_last { Added::Last } else { Added::Open }
    }
}

/// Offset of the flags in a TCP header.
const FLAGS: usize = 13;

/// Returns the headers of a segment that may be part of a run: it has data, no unusual field and a correct
/// checksum.
fn mergeable(packet: &[u8], checksum: ChecksumState) -> Option<Headers> {
    let headers = Headers::of(packet)?;
    let tcp = packet.get(headers.ip_len..)?;
    let length = match headers.v6 {
        false => usize::from(u16::from_be_bytes([*packet.get(2)?, *packet.get(3)?])),
        true => 40 + usize::from(u16::from_be_bytes([*packet.get(4)?, *packet.get(5)?])),
    };
    let is_plain = packet.len() >= headers.total() + MIN_PAYLOAD
        && packet.len() == length
        && (headers.v6 || headers.ip_len == 20)
        // No reserved bit is set, and no other flag.
        && tcp.get(12)? & 0x0F == 0
        && headers.flags(packet) & !PSH == ACK;
    let is_right = || {
        checksum == ChecksumState::Trusted
            || u32::from(headers.pseudo_sum(packet)) + u32::from(Sum::of(tcp).fold()) == 0xFFFF
    };
    let ip_is_right = || headers.v6 || Sum::of(packet.get(..20).unwrap_or_default()).fold() == 0xFFFF;
    (is_plain && ip_is_right() && is_right()).then_some(headers)
}

/// True if `packet` is the next segment of the run in `held`.
fn continues(held: &[u8], packet: &[u8], headers: Headers) -> bool {
    let same = |at: usize, range: &std::ops::Range<usize>| {
        let range = at + range.start..at + range.end;
        held.get(range.clone()) == packet.get(range)
    };
    let ip = if headers.v6 {
        SAME_V6.iter().all(|part| same(0, part))
    } else {
        SAME_V4.iter().all(|part| same(0, part))
    };
    let tcp = headers.ip_len;
    let sequence = |packet: &[u8]| packet.get(tcp + 4..)?.first_chunk().copied().map(u32::from_be_bytes);
    let gone = held.len().saturating_sub(headers.total()) as u32;
    ip && SAME_TCP.iter().all(|part| same(tcp, part))
        && same(tcp, &(18..headers.tcp_len))
        && sequence(held).map(|first| first.wrapping_add(gone)) == sequence(packet)
}

/// Writes the length of the packet into the IP header.
fn finish_lengths(packet: &mut [u8], headers: Headers) {
    let len = packet.len();
    let (at, value) = if headers.v6 { (4, len - 40) } else { (2, len) };
    if let Some(field) = packet.get_mut(at..at + 2) {
        field.copy_from_slice(&(value as u16).to_be_bytes());
    }
    if let Some(header) = packet.get_mut(..20).filter(|_| !headers.v6) {
        header[10..12].fill(0);
        let sum = Sum::of(header).finish();
        header[10..12].copy_from_slice(&sum.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Tcp, pattern};
    use brisk_wire::ChecksumFill;

    type Seen = Vec<(Vec<u8>, RxMeta)>;

    fn merged(packets: &[Vec<u8>]) -> Seen {
        let (mut merge, mut seen) = (Merge::new(), Seen::new());
        let mut emit = |packet: &[u8], _: Option<&Bytes>, meta| seen.push((packet.to_vec(), meta));
        let mut count = 0;
        for packet in packets {
            count += merge.offer(packet, ChecksumState::Verify, &mut emit);
        }
        count += merge.flush(&mut emit);
        assert_eq!(count, seen.len());
        seen
    }

    fn run(template: &Tcp, lengths: &[usize]) -> Vec<Vec<u8>> {
        let (mut seq, mut packets) = (u32::MAX - 1000, Vec::new());
        for (n, len) in lengths.iter().enumerate() {
            let flags = if n + 1 == lengths.len() { 0x18 } else { 0x10 };
            let tcp =
                Tcp { seq, flags, options: vec![1, 1, 8, 10, 0, 0, 0, 7, 0, 0, 0, 9], ..template.clone() };
            packets.push(Tcp { payload: pattern(*len), ..tcp }.packet());
            seq = seq.wrapping_add(*len as u32);
        }
        packets
    }

    #[test]
    fn a_run_becomes_one_packet_that_can_be_cut_into_the_same_segments() {
        for template in [Tcp::v4(), Tcp::v6()] {
            let packets = run(&template, &[1448, 1448, 1448, 900]);
            let seen = merged(&packets);
            let [(packet, meta)] = seen.as_slice() else { panic!("{} packets", seen.len()) };
            assert_eq!(*meta, RxMeta { checksum: ChecksumState::Trusted, segment_size: Some(1448) });
            let mut cut = Vec::new();
            brisk_wire::split(packet, 1448, ChecksumFill::Full, &mut |segment| cut.push(segment.to_vec()));
            // The IPv4 identification is a counter, and means nothing here.
            for (n, packet) in cut.iter_mut().enumerate().filter(|_| template.src.is_ipv4()) {
                packet[4..6].copy_from_slice(&packets[n][4..6]);
                packet[10..12].copy_from_slice(&packets[n][10..12]);
            }
            assert_eq!(cut, packets);
        }
    }

    #[test]
    fn a_packet_grows_to_64_kb_and_no_further() {
        for template in [Tcp::v4(), Tcp::v6()] {
            let seen = merged(&run(&template, &[1448; 100]));
            let lengths: Vec<_> = seen.iter().map(|(packet, _)| Tcp::parse(packet).payload.len()).collect();
            assert_eq!(lengths, [45 * 1448, 45 * 1448, 10 * 1448]);
            assert!(
                seen.iter()
                    .all(|(packet, _)| brisk_wire::parse(packet, brisk_wire::ChecksumCheck::Trust).is_ok())
            );
        }
    }

    #[test]
    fn segments_with_other_differences_are_not_merged() {
        for template in [Tcp::v4(), Tcp::v6()] {
            let same = |change: &dyn Fn(&mut Tcp)| {
                let first = Tcp { payload: pattern(1000), ..template.clone() };
                let mut second = Tcp { seq: first.seq + 1000, ..first.clone() };
                change(&mut second);
                merged(&[first.packet(), second.packet()]).len() == 1
            };
            assert!(same(&|_| {}));
            let changes: [&dyn Fn(&mut Tcp); 12] = [
                &|tcp| tcp.seq += 1,
                &|tcp| tcp.seq -= 1000,
                &|tcp| tcp.ack += 1,
                &|tcp| tcp.window -= 1,
                &|tcp| tcp.ports.0 += 1,
                &|tcp| tcp.ports.1 += 1,
                &|tcp| tcp.ecn = 3,
                &|tcp| tcp.reserved = 2,
                &|tcp| tcp.flags |= 0x01,
                &|tcp| tcp.flags |= 0x80,
                &|tcp| tcp.options = vec![1; 4],
                &|tcp| tcp.payload.push(0),
            ];
            for (n, change) in changes.into_iter().enumerate() {
                assert!(!same(change), "change {n}");
            }
        }
    }

    #[test]
    fn damaged_and_short_segments_pass_alone_and_in_order() {
        let mut packets = run(&Tcp::v4(), &[1000; 5]);
        let last = packets[2].len() - 1;
        packets[2][last] ^= 1;
        let seen = merged(&packets);
        let expected = [
            (Some(1000), ChecksumState::Trusted),
            (None, ChecksumState::Verify),
            (Some(1000), ChecksumState::Trusted),
        ];
        let got: Vec<_> = seen.iter().map(|(_, meta)| (meta.segment_size, meta.checksum)).collect();
        assert_eq!(got, expected);
        assert_eq!(seen[1].0, packets[2]);
        let mut header = run(&Tcp::v4(), &[1000; 2]);
        header[1][8] -= 1;
        assert_eq!(merged(&header).len(), 2, "the header's checksum is wrong");
        assert_eq!(merged(&run(&Tcp::v4(), &[100; 3])).len(), 3);
        assert!(
            merged(&[vec![], vec![0x45; 19], vec![0x60; 60], vec![0xFF; 2000]])
                .iter()
                .all(|(_, meta)| { meta.segment_size.is_none() && meta.checksum == ChecksumState::Verify })
        );
    }

    #[test]
    fn damaged_packets_neither_panic_nor_grow() {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut random = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below as u64) as usize
        };
        for round in 0..3000 {
            let template = if round % 2 == 0 { Tcp::v4() } else { Tcp::v6() };
            let mut packets = run(&template, &[600, 600, 600]);
            let (mut merge, mut seen) = (Merge::new(), 0);
            for packet in &mut packets {
                let at = random(90.min(packet.len()));
                packet[at] = random(256) as u8;
                packet.truncate(packet.len() - random(2) * random(600));
                // The checksum is trusted, so that damaged packets reach the merge.
                merge.offer(packet, ChecksumState::Trusted, &mut |packet, _, _| seen += packet.len());
            }
            merge.flush(&mut |packet, _, _| seen += packet.len());
            assert!(seen <= packets.concat().len());
        }
    }
}

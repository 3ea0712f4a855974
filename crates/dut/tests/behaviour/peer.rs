//! The peer: the test builds its segments and sends them on an Ethernet.

use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use brisk_packet_io::ethernet::EthernetDevice;
use brisk_packet_io::{Device, TxMeta};
use brisk_wire::{
    ChecksumCheck, ChecksumFill, Flags, IpMeta, Packet, SeqNum, TcpHeader, emit, fill_checksums, parse,
};

pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const RST: u8 = 4;
pub(crate) const PSH: u8 = 8;
pub(crate) const ACK: u8 = 16;

/// The peer's initial sequence number.
pub(crate) const ISN: u32 = 7_000_000;
/// Maximum time for an immediate answer: the machine may be busy.
pub(crate) const SOON: Duration = Duration::from_secs(20);
/// How long the test waits to check that a segment does not arrive.
pub(crate) const A_WHILE: Duration = Duration::from_millis(150);
/// MSS 1460 as the only option: no SACK, time stamps or scaling.
pub(crate) const MSS_1460: &[u8] = &[2, 4, 5, 180];

#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) flags: u8,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) window: u16,
    pub(crate) options: Vec<u8>,
    pub(crate) payload: Vec<u8>,
    /// When the test read the segment.
    pub(crate) at: Instant,
}

impl Segment {
    pub(crate) fn option(&self, kind: u8) -> Option<Vec<u8>> {
        let mut rest = self.options.as_slice();
        while let [found, tail @ ..] = rest {
            if *found < 2 {
                rest = tail;
                continue;
            }
            let len = usize::from(tail[0]);
            if *found == kind {
                return Some(rest[2..len].to_vec());
            }
            rest = &rest[len..];
        }
        None
    }

    pub(crate) fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }

    pub(crate) fn is_bare_ack(&self) -> bool {
        self.flags == ACK && self.payload.is_empty()
    }

    fn end(&self) -> u32 {
        let controls = u32::from(self.has(SYN)) + u32::from(self.has(FIN));
        self.seq.wrapping_add(self.payload.len() as u32 + controls)
    }

    fn bytes(&self) -> Vec<u8> {
        let header = TcpHeader {
            src_port: self.from.port(),
            dst_port: self.to.port(),
            seq: SeqNum(self.seq),
            ack: SeqNum(if self.has(ACK) { self.ack } else { 0 }),
            flags: Flags(self.flags.into()),
            window: self.window,
            ..TcpHeader::default()
        };
        let ip = IpMeta::new(self.from.ip(), self.to.ip());
        let mut bytes = Vec::new();
        assert_eq!(self.options.len() % 4, 0);
        emit(&ip, &header, &[&self.options, &self.payload], ChecksumFill::Full, &mut bytes).unwrap();
        bytes[ip.header_len() + 12] += ((self.options.len() / 4) as u8) << 4;
        fill_checksums(&mut bytes);
        bytes
    }

    fn read(packet: &[u8]) -> Option<Segment> {
        let Ok(Packet::Tcp(segment)) = parse(packet, ChecksumCheck::Verify) else { return None };
        let options_at = segment.ip.header_len() + 20;
        Some(Segment {
            from: SocketAddr::new(segment.ip.src, segment.tcp.src_port),
            to: SocketAddr::new(segment.ip.dst, segment.tcp.dst_port),
            flags: segment.tcp.flags.0 as u8,
            seq: segment.tcp.seq.0,
            ack: segment.tcp.ack.0,
            window: segment.tcp.window,
            options: packet[options_at..packet.len() - segment.payload.len()].to_vec(),
            payload: segment.payload.to_vec(),
            at: Instant::now(),
        })
    }
}

/// A host that sends only the segments of the test, and answers ARP and neighbour discovery.
pub(crate) struct Peer {
    pub(crate) device: EthernetDevice,
}

/// The peer's end of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub(crate) own: SocketAddr,
    pub(crate) other: SocketAddr,
    /// The peer's next sequence number.
    pub(crate) seq: u32,
    /// The next expected sequence number of the device under test.
    pub(crate) ack: u32,
    /// The initial sequence number of the device under test.
    pub(crate) isn: u32,
    pub(crate) window: u16,
}

impl End {
    pub(crate) fn new(own: SocketAddr, other: SocketAddr) -> End {
        End { own, other, seq: ISN, ack: 0, isn: 0, window: 65_535 }
    }

    /// Returns a segment with the current numbers.
    pub(crate) fn segment(&self, flags: u8, payload: &[u8]) -> Segment {
        Segment {
            from: self.own,
            to: self.other,
            flags,
            seq: self.seq,
            ack: self.ack,
            window: self.window,
            options: Vec::new(),
            payload: payload.to_vec(),
            at: Instant::now(),
        }
    }

    /// Learns the numbers of the device under test from its SYN or SYN-ACK.
    pub(crate) fn learn(&mut self, syn: &Segment) {
        (self.isn, self.ack) = (syn.seq, syn.seq.wrapping_add(1));
    }

    /// Acknowledges everything up to the end of `segment`.
    pub(crate) fn take(&mut self, segment: &Segment) {
        self.ack = segment.end();
    }

    /// Returns the offset of `segment` in the stream of the device under test.
    pub(crate) fn offset(&self, segment: &Segment) -> u32 {
        segment.seq.wrapping_sub(self.isn).wrapping_sub(1)
    }
}

impl Peer {
    pub(crate) fn put(&mut self, segment: &Segment) {
        self.packet(&segment.bytes());
    }

    pub(crate) fn packet(&mut self, bytes: &[u8]) {
        self.device.send(bytes, TxMeta::default()).unwrap();
    }

    /// Sends a segment of `end` and advances its sequence number.
    pub(crate) fn say(&mut self, end: &mut End, flags: u8, payload: &[u8]) {
        let segment = end.segment(flags, payload);
        self.put(&segment);
        end.seq = segment.end();
    }

    /// Returns the next segment, or `None` after `within`.
    pub(crate) async fn next(&mut self, within: Duration) -> Option<Segment> {
        let until = tokio::time::Instant::now() + within;
        loop {
            let mut found = None;
            let take = &mut |packet: &[u8], _| found = Segment::read(packet);
            self.device.receive(1, take).unwrap();
            if found.is_some() {
                return found;
            }
            let ready = poll_fn(|cx| self.device.poll_readable(cx));
            tokio::time::timeout_at(until, ready).await.ok()?.unwrap();
        }
    }

    /// Returns the next segment that `wanted` accepts. Skips other segments, and lists them if no such
    /// segment arrives.
    pub(crate) async fn expect(&mut self, what: &str, wanted: impl Fn(&Segment) -> bool) -> Segment {
        let mut others = Vec::new();
        while let Some(segment) = self.next(SOON).await {
            if wanted(&segment) {
                return segment;
            }
            others.push(segment);
        }
        panic!("{what} never came, but these: {others:#?}");
    }

    /// Checks that no such segment arrives for a while.
    pub(crate) async fn silent(&mut self, what: &str, unwanted: impl Fn(&Segment) -> bool) {
        let until = Instant::now() + A_WHILE;
        while let Some(segment) = self.next(until.saturating_duration_since(Instant::now())).await {
            assert!(!unwanted(&segment), "{what}: {segment:?}");
        }
    }

    /// Opens a connection to a listener. Returns the SYN-ACK as well.
    pub(crate) async fn open(
        &mut self,
        own: SocketAddr,
        listener: SocketAddr,
        options: &[u8],
    ) -> (End, Segment) {
        let mut end = End::new(own, listener);
        let mut syn = end.segment(SYN, &[]);
        syn.options = options.to_vec();
        self.put(&syn);
        end.seq = end.seq.wrapping_add(1);
        let answer = self.expect("the SYN-ACK", |segment| segment.has(SYN | ACK) && segment.to == own).await;
        assert_eq!(answer.ack, end.seq);
        end.learn(&answer);
        self.put(&end.segment(ACK, &[]));
        (end, answer)
    }

    /// Receives the SYN of an active open of the device under test to `own`.
    pub(crate) async fn called(&mut self, own: SocketAddr) -> (End, Segment) {
        let syn = self.expect("the SYN", |segment| segment.flags == SYN && segment.to == own).await;
        let mut end = End::new(own, syn.from);
        end.learn(&syn);
        (end, syn)
    }

    pub(crate) fn answer(&mut self, end: &mut End, options: &[u8]) {
        let mut segment = end.segment(SYN | ACK, &[]);
        segment.options = options.to_vec();
        self.put(&segment);
        end.seq = end.seq.wrapping_add(1);
    }

    pub(crate) fn icmp(&mut self, kind: u8, code: u8, about: &Segment) {
        let quoted = about.bytes();
        let (IpAddr::V4(from), IpAddr::V4(to)) = (about.to.ip(), about.from.ip()) else {
            panic!("ICMP of IPv4 only")
        };
        let mut message = vec![kind, code, 0, 0, 0, 0, 0, 0];
        message.extend(&quoted[..28]);
        let sum = checksum(&message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        let total = (20 + message.len()) as u16;
        let mut packet = vec![0x45, 0, (total >> 8) as u8, total as u8, 0, 0, 0x40, 0, 64, 1, 0, 0];
        packet.extend(from.octets());
        packet.extend(to.octets());
        let sum = checksum(&packet);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet.extend(message);
        self.packet(&packet);
    }
}

fn checksum(bytes: &[u8]) -> u16 {
    let words =
        bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)])));
    let mut sum: u32 = words.sum();
    while sum > 0xFFFF {
        sum = (sum >> 16) + (sum & 0xFFFF);
    }
    !(sum as u16)
}

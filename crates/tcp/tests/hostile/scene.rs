//! One stack and an attacker who may send it any segment.

use std::net::{IpAddr, SocketAddr};

use brisk_tcp::connection::ConnStats;
use brisk_tcp::stack::Rx;
use brisk_tcp::time::{Duration, Instant};
use brisk_tcp::{ConnId, ListenConfig, ListenerId, Stack, StackConfig};
use brisk_wire::{
    ChecksumCheck, ChecksumFill, Flags, IcmpKind, IpMeta, Packet, SeqNum, TcpHeader, emit, emit_icmp,
    fill_checksums, parse,
};

/// A stack with a listener on port 80, and an attacker.
pub(crate) struct Scene {
    pub(crate) stack: Stack,
    pub(crate) listener: ListenerId,
    pub(crate) now: Instant,
    /// Segments that the stack sent: header and payload length.
    pub(crate) sent: Vec<(TcpHeader, usize)>,
    /// TSval of the last segment that the stack sent with timestamps.
    pub(crate) last_timestamp: u32,
}

/// A segment of the attacker.
#[derive(Clone, Copy, Default)]
pub(crate) struct Attack<'a> {
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: Flags,
    pub(crate) options: &'a [u8],
    pub(crate) payload: &'a [u8],
    pub(crate) window: Option<u16>,
    pub(crate) urgent: u16,
}

pub(crate) const SERVER: [u8; 4] = [192, 0, 2, 1];
pub(crate) const PEER: [u8; 4] = [198, 51, 100, 7];
pub(crate) const ISN: u32 = 1_000_000;

pub(crate) fn peer(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::from(PEER), port)
}

impl Scene {
    pub(crate) fn new(change: impl FnOnce(&mut StackConfig, &mut ListenConfig)) -> Scene {
        let mut config = StackConfig { addresses: vec![IpAddr::from(SERVER)], ..StackConfig::default() };
        let mut listen = ListenConfig::default();
        change(&mut config, &mut listen);
        let mut stack = Stack::new(config, 7).unwrap();
        let listener = stack.listen(SocketAddr::new(IpAddr::from(SERVER), 80), listen).unwrap();
        Scene { stack, listener, now: Instant::from_millis(1_000_000), sent: Vec::new(), last_timestamp: 0 }
    }

    pub(crate) fn packet(from: SocketAddr, attack: &Attack<'_>) -> Vec<u8> {
        Scene::packet_to(SocketAddr::new(IpAddr::from(SERVER), 80), from, attack)
    }

    fn packet_to(to: SocketAddr, from: SocketAddr, attack: &Attack<'_>) -> Vec<u8> {
        let header = TcpHeader {
            src_port: from.port(),
            dst_port: to.port(),
            seq: SeqNum(attack.seq),
            ack: SeqNum(attack.ack),
            flags: attack.flags,
            window: attack.window.unwrap_or(60_000),
            urgent: attack.urgent,
            ..TcpHeader::default()
        };
        let ip = IpMeta::new(from.ip(), to.ip());
        let mut bytes = Vec::new();
        emit(&ip, &header, &[attack.options, attack.payload], ChecksumFill::Full, &mut bytes).unwrap();
        bytes[ip.header_len() + 12] += ((attack.options.len() / 4) as u8) << 4;
        fill_checksums(&mut bytes);
        bytes
    }

    pub(crate) fn arrive(&mut self, from: SocketAddr, attack: Attack<'_>) {
        self.stack.on_packet(&Scene::packet(from, &attack), Rx::default(), self.now);
        self.drain();
    }

    /// Sends a segment from port 443 of the peer to `local`, where the stack has opened a connection.
    pub(crate) fn answer(&mut self, local: SocketAddr, attack: Attack<'_>) {
        let packet = Scene::packet_to(local, peer(443), &attack);
        self.stack.on_packet(&packet, Rx::default(), self.now);
        self.drain();
    }

    pub(crate) fn drain(&mut self) {
        let mut packet = Vec::new();
        while self.stack.poll_transmit(self.now, &mut packet).is_some() {
            if let Ok(Packet::Tcp(segment)) = parse(&packet, ChecksumCheck::Trust) {
                if let Some(timestamps) = segment.tcp.options.timestamps {
                    self.last_timestamp = timestamps.value;
                }
                self.sent.push((segment.tcp, segment.payload.len()));
            }
        }
        while self.stack.poll_event().is_some() {}
    }

    pub(crate) fn pass(&mut self, span: Duration) {
        let end = self.now + span;
        while let Some(next) = self.stack.next_timeout().filter(|next| *next <= end) {
            self.now = self.now.max(next);
            self.stack.on_timeout(self.now);
            self.drain();
        }
        self.now = end;
    }

    /// Performs a handshake with `options`; returns the connection and the stack's initial sequence number.
    pub(crate) fn open(&mut self, from: SocketAddr, options: &[u8]) -> (ConnId, u32) {
        self.open_with(from, options, &[])
    }

    /// Like [`Scene::open`], with options in the acknowledgement too.
    pub(crate) fn open_with(&mut self, from: SocketAddr, options: &[u8], later: &[u8]) -> (ConnId, u32) {
        self.arrive(from, Attack { seq: ISN, flags: Flags::SYN, options, ..Attack::default() });
        let isn = self.sent.last().expect("a SYN-ACK").0.seq.0;
        self.now += Duration::from_millis(100);
        let ack =
            Attack { seq: ISN + 1, ack: isn + 1, flags: Flags::ACK, options: later, ..Attack::default() };
        self.arrive(from, ack);
        let (id, _) = self.stack.accept(self.listener).expect("a connection");
        self.sent.clear();
        (id, isn)
    }

    /// Returns the sequence number after the highest that the stack has sent.
    pub(crate) fn sent_to(&self, isn: u32) -> u32 {
        self.sent
            .iter()
            .map(|(tcp, len)| tcp.seq.0.wrapping_add(*len as u32))
            .fold(isn + 1, |most, end| if (end.wrapping_sub(most) as i32) > 0 { end } else { most })
    }

    /// Sends an ICMP error of a router. It quotes a segment from port 80 to `port` at `seq`.
    pub(crate) fn icmp(&mut self, kind: IcmpKind, src_port: u16, port: u16, seq: u32) {
        let quoted = TcpHeader {
            src_port,
            dst_port: port,
            seq: SeqNum(seq),
            flags: Flags::ACK,
            ..TcpHeader::default()
        };
        let (mut offending, mut packet) = (Vec::new(), Vec::new());
        let ip = IpMeta::new(IpAddr::from(SERVER), IpAddr::from(PEER));
        emit(&ip, &quoted, &[&[0; 100]], ChecksumFill::Full, &mut offending).unwrap();
        emit_icmp(IpAddr::from([203, 0, 113, 1]), &offending, kind, &mut packet);
        self.stack.on_packet(&packet, Rx::default(), self.now);
        self.drain();
    }

    pub(crate) fn stats(&self, id: ConnId) -> ConnStats {
        self.stack.conn_stats(id).expect("a connection")
    }

    pub(crate) fn write(&mut self, id: ConnId, len: usize) {
        let _ = self.stack.write(id, &vec![7; len], self.now);
        self.drain();
    }

    pub(crate) fn payload_sent(&self) -> u64 {
        self.sent.iter().map(|(_, len)| *len as u64).sum()
    }
}

pub(crate) fn ack(ack: u32) -> Attack<'static> {
    Attack { seq: ISN + 1, ack, flags: Flags::ACK, ..Attack::default() }
}

pub(crate) const MSS_1000: [u8; 4] = [2, 4, 3, 232];
/// The options MSS 1000, SACK permitted, and padding.
pub(crate) const WITH_SACK: [u8; 8] = [2, 4, 3, 232, 4, 2, 1, 1];

/// Returns the timestamp option, padded, as Linux writes it.
pub(crate) fn timestamps(value: u32, echo: u32) -> [u8; 12] {
    let mut option = [1, 1, 8, 10, 0, 0, 0, 0, 0, 0, 0, 0];
    option[4..8].copy_from_slice(&value.to_be_bytes());
    option[8..].copy_from_slice(&echo.to_be_bytes());
    option
}

/// Returns one SACK block, padded.
pub(crate) fn sack(start: u32, end: u32) -> [u8; 12] {
    let mut option = [1, 1, 5, 10, 0, 0, 0, 0, 0, 0, 0, 0];
    option[4..8].copy_from_slice(&start.to_be_bytes());
    option[8..].copy_from_slice(&end.to_be_bytes());
    option
}

/// Returns the packet as a fragment with a valid header checksum. `field`: flags and fragment offset.
pub(crate) fn fragment(mut packet: Vec<u8>, field: u16) -> Vec<u8> {
    packet[6..8].copy_from_slice(&field.to_be_bytes());
    packet[10..12].fill(0);
    let sum: u32 = packet[..20].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    packet[10..12].copy_from_slice(&(!folded as u16).to_be_bytes());
    packet
}

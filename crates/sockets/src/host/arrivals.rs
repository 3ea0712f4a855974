//! Data that sockets take directly from arriving packets, without the stack: ECN counts and ICMP errors.

use std::net::SocketAddr;

use brisk_tcp::ConnId;
use brisk_wire::{ChecksumCheck, Ecn, Flags, Packet, Segment, parse};

use super::Host;
use crate::errno::Errno;

/// Local and remote end of a connection.
type Ends = (SocketAddr, SocketAddr);

/// A segment that arrived with an ECN codepoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mark {
    id: ConnId,
    ecn: Ecn,
    payload: usize,
    /// Number of segments that the connection had refused earlier.
    refused: u64,
}

impl Host {
    /// Returns the ECN codepoint of a packet and its size. The caller adds them to the counts of the
    /// connection if the stack accepts the segment.
    pub(crate) fn mark(&mut self, packet: &[u8]) -> Option<Mark> {
        let Ok(Packet::Tcp(segment)) = parse(packet, ChecksumCheck::Verify) else { return None };
        let (ecn, payload) = (segment.ip.ecn, segment.payload.len());
        if ecn == Ecn::NotEct || segment.tcp.flags.contains(Flags::SYN) {
            return None;
        }
        let id = self.conn_of(ends(&segment))?;
        Some(Mark { id, ecn, payload, refused: self.refused(id) })
    }

    /// Adds the counts, after the stack has processed the packet.
    pub(crate) fn count_mark(&mut self, mark: Mark) {
        if self.refused(mark.id) == mark.refused
            && let Some(socket) = self.of_conn(mark.id)
        {
            socket.usage.count_mark(mark.ecn, mark.payload);
        }
    }

    /// Returns the number of segments of a connection that were outside its window, or too old.
    fn refused(&mut self, id: ConnId) -> u64 {
        let stats = self.stack().ok().and_then(|stack| stack.conn_stats(id));
        stats.map_or(0, |stats| stats.counters.out_of_window + stats.counters.paws)
    }

    /// Records an ICMP error that does not end its connection, so that SO_ERROR returns it.
    pub(crate) fn on_soft_error(&mut self, packet: &[u8], errno: Errno) {
        let Ok(Packet::Icmp(error)) = parse(packet, ChecksumCheck::Verify) else { return };
        let hit = self.conn_of((error.src, error.dst)).and_then(|id| self.of_conn(id));
        if let Some(socket) = hit.filter(|socket| socket.connected && !socket.over) {
            socket.soft_error = Some(errno);
        }
    }

    fn conn_of(&mut self, ends: Ends) -> Option<ConnId> {
        let known: Vec<ConnId> = self.sockets().filter_map(|socket| socket.conn()).collect();
        let stack = self.stack().ok()?;
        known.into_iter().find(|id| stack.local_addr(*id).zip(stack.remote_addr(*id)) == Some(ends))
    }
}

fn ends(segment: &Segment<'_>) -> Ends {
    let (ip, tcp) = (&segment.ip, &segment.tcp);
    (SocketAddr::new(ip.dst, tcp.dst_port), SocketAddr::new(ip.src, tcp.src_port))
}

/// True if the packet is a SYN but not a SYN-ACK.
pub(crate) fn is_syn(packet: &[u8]) -> bool {
    let Ok(Packet::Tcp(segment)) = parse(packet, ChecksumCheck::Verify) else { return false };
    segment.tcp.flags.contains(Flags::SYN) && !segment.tcp.flags.contains(Flags::ACK)
}

/// Returns the offset of the ICMP message in a packet.
fn icmp_at(packet: &[u8]) -> Option<usize> {
    match packet.first()? >> 4 {
        4 if *packet.get(9)? == 1 => Some(usize::from(packet.first()? & 15) * 4),
        6 if *packet.get(6)? == 58 => Some(40),
        _ => None,
    }
}

/// Returns Linux's error number for an ICMP error.
pub(crate) fn icmp_errno(packet: &[u8]) -> Option<i32> {
    let at = icmp_at(packet)?;
    match (packet.first()? >> 4, *packet.get(at)?, *packet.get(at + 1)?) {
        (4, 3, 0 | 6) | (6, 1, 0) => Some(libc::ENETUNREACH),
        (4, 3, 2) => Some(libc::ENOPROTOOPT),
        (4, 3, 3) | (6, 1, 4) => Some(libc::ECONNREFUSED),
        (4, 3, 9 | 11) => Some(libc::ENETUNREACH),
        (4, 3, 7) => Some(libc::EHOSTDOWN),
        (4, 3, 8) => Some(libc::ENONET),
        (6, 1, 1 | 5 | 6) => Some(libc::EACCES),
        (4, 3, 5) => Some(libc::EOPNOTSUPP),
        (4, 3, 4) => None,
        (4, 3, _) | (6, 1, _) => Some(libc::EHOSTUNREACH),
        (4, 12, _) | (6, 4, _) => Some(libc::EPROTO),
        (4 | 6, 11, _) | (6, 3, _) => Some(libc::EHOSTUNREACH),
        _ => None,
    }
}

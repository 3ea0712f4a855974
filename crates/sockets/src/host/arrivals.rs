//! Data that sockets take directly from arriving packets, independently of the stack: the smallest hop limit
//! (`IP_MINTTL`), the SYN of a connection (`TCP_SAVE_SYN`), and ICMP errors.

use std::collections::VecDeque;
use std::net::SocketAddr;

use brisk_tcp::ConnId;
use brisk_tcp::connection::State;
use brisk_wire::{ChecksumCheck, Ecn, Flags, IcmpKind, Packet, Segment, parse};

use super::Host;
use crate::errno::Errno;
use crate::error_queue::{ExtendedError, Quoted};
use crate::socket::{Role, Socket, plain};

/// Maximum number of SYNs that are kept for connections that were not accepted.
const MAX_SYNS: usize = 4096;
/// `SO_EE_ORIGIN_ICMP` and `SO_EE_ORIGIN_ICMP6` of linux/errqueue.h.
const ORIGIN_ICMP: u8 = 2;
const ORIGIN_ICMP6: u8 = 3;

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

/// The SYNs of connections that were not accepted yet, oldest first.
#[derive(Debug, Default)]
pub(crate) struct SavedSyns(VecDeque<(Ends, Vec<u8>)>);

impl SavedSyns {
    fn put(&mut self, ends: Ends, syn: Vec<u8>) {
        self.0.retain(|(known, _)| *known != ends);
        if self.0.len() == MAX_SYNS {
            self.0.pop_front();
        }
        self.0.push_back((ends, syn));
    }

    /// Removes and returns the SYN of the connection between these ends.
    pub(crate) fn take(&mut self, ends: Ends) -> Option<Vec<u8>> {
        let at = self.0.iter().position(|(known, _)| *known == ends)?;
        self.0.remove(at).map(|(_, syn)| syn)
    }
}

impl Host {
    /// True if the packet's hop limit is below the program's minimum (`IP_MINTTL`). Such packets are dropped
    /// silently.
    pub(crate) fn is_below_min_ttl(&mut self, packet: &[u8]) -> bool {
        if self.sockets().all(|socket| socket.options.min_ttl == 0) {
            return false;
        }
        let Ok(Packet::Tcp(segment)) = parse(packet, ChecksumCheck::Trust) else { return false };
        let hops = segment.ip.hop_limit;
        self.addressee(ends(&segment)).is_some_and(|socket| hops < socket.options.min_ttl)
    }

    /// Stores the headers of a SYN for a listener with `TCP_SAVE_SYN`.
    pub(crate) fn save_syn(&mut self, packet: &[u8]) {
        if self.sockets().all(|socket| !socket.options.save_syn) {
            return;
        }
        let Ok(Packet::Tcp(segment)) = parse(packet, ChecksumCheck::Verify) else { return };
        let ends = ends(&segment);
        let is_syn = segment.tcp.flags.contains(Flags::SYN) && !segment.tcp.flags.contains(Flags::ACK);
        let wants =
            |socket: &mut Socket| matches!(socket.role, Role::Listening(_)) && socket.options.save_syn;
        if is_syn && self.addressee(ends).is_some_and(wants) {
            let headers = packet.len() - segment.payload.len();
            self.syns.put(ends, packet[..headers].to_vec());
        }
    }

    /// Returns the ECN counts of a packet, which are added to its connection if the stack accepts the
    /// segment.
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

    /// Queues an ICMP error about a SYN, with or without IP_RECVERR.
    pub(crate) fn queue_icmp(&mut self, packet: &[u8], errno: Option<Errno>) {
        let (Some(errno), Ok(Packet::Icmp(error))) = (errno, parse(packet, ChecksumCheck::Verify)) else {
            return;
        };
        let Some(([kind, code], segment)) = icmp_parts(packet) else { return };
        let Some(id) = self.conn_of((error.src, error.dst)) else { return };
        if self.stack().map_or(None, |stack| stack.state(id)) != Some(State::SynSent) {
            return;
        }
        let info = if let IcmpKind::PacketTooBig { mtu } = error.kind { mtu } else { 0 };
        let origin = if error.from.is_ipv4() { ORIGIN_ICMP } else { ORIGIN_ICMP6 };
        let reported = ExtendedError { errno: errno.0 as u32, origin, kind, code, info, data: 0 };
        let quoted = Quoted { offender: error.from, destination: error.dst, segment: segment.to_vec() };
        if let Some(socket) = self.of_conn(id) {
            socket.errors.on_icmp(reported, quoted);
        }
    }

    /// Records an ICMP error that ends no connection for SO_ERROR. With IP_RECVERR it is treated like any
    /// other error.
    pub(crate) fn on_soft_error(&mut self, packet: &[u8], errno: Errno) {
        let Ok(Packet::Icmp(error)) = parse(packet, ChecksumCheck::Verify) else { return };
        let hit = self.conn_of((error.src, error.dst)).and_then(|id| self.of_conn(id));
        if let Some(socket) = hit.filter(|socket| socket.connected && !socket.over) {
            match socket.asks_for_errors() {
                true => socket.error = Some(errno),
                false => socket.soft_error = Some(errno),
            }
        }
    }

    fn conn_of(&mut self, ends: Ends) -> Option<ConnId> {
        let known: Vec<ConnId> = self.sockets().filter_map(|socket| socket.conn()).collect();
        let stack = self.stack().ok()?;
        known.into_iter().find(|id| stack.local_addr(*id).zip(stack.remote_addr(*id)) == Some(ends))
    }

    /// Returns the socket of a segment between these ends: the connection's socket, or else the listener.
    fn addressee(&mut self, ends: Ends) -> Option<&mut Socket> {
        if let Some(id) = self.conn_of(ends) {
            return self.of_conn(id);
        }
        let listens = |socket: &&mut Socket| {
            let local = socket.local.map(plain);
            let here = local.is_some_and(|at| at.ip().is_unspecified() || at.ip() == ends.0.ip());
            matches!(socket.role, Role::Listening(_))
                && here
                && local.map(|at| at.port()) == Some(ends.0.port())
        };
        self.sockets().find(listens)
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

/// Returns type and code of an ICMP error, and the quoted bytes after the IP header.
fn icmp_parts(packet: &[u8]) -> Option<([u8; 2], &[u8])> {
    let message = packet.get(icmp_at(packet)?..)?;
    let inner = message.get(8..)?;
    let header = match inner.first()? >> 4 {
        4 => usize::from(inner.first()? & 15) * 4,
        _ => 40,
    };
    Some(([*message.first()?, *message.get(1)?], inner.get(header..)?))
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

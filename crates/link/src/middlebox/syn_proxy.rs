//! A SYN proxy, as load balancers and firewalls (Linux: `SYNPROXY`) put before servers. It answers every SYN
//! itself, with a sequence number of its own and a window of zero. It contacts the server only when the
//! client's acknowledgement has shown that the client is real. It discards data and options of the SYN.
//!
//! After that it shifts the sequence numbers of the server's half. Nothing else needs translation, because
//! the proxy offers no option but the MSS. The client's first data completes the handshake with the server,
//! so a protocol in which the server sends first does not work.

use super::flows::Flows;
use super::header::{Tcp, update_checksums};
use crate::seeds::keyed;
use crate::up_down::Direction;
use alloc::vec::Vec;
use brisk_wire::{ChecksumFill, Flags, IpMeta, Options, SeqNum, TcpHeader, emit, four_tuple};

/// The MSS that the proxy offers to clients.
const MSS: u16 = 1460;

/// Edits the packet, or replaces it by the answer in the name of the server.
pub(super) fn pass(
    ip: &mut Vec<u8>,
    tcp: Tcp,
    direction: Direction,
    seed: u64,
    flows: &Flows,
) -> Option<Vec<u8>> {
    let (src, dst) = four_tuple(ip)?;
    let (client, server) = match direction {
        Direction::Up => (src, dst),
        Direction::Down => (dst, src),
    };
    let ours = keyed(seed, "synproxy", &super::translate::flow_bytes(client, server)) as u32;
    let flags = tcp.flags(ip);
    let (syn, ack) = (flags.contains(Flags::SYN), flags.contains(Flags::ACK));
    match (direction, flows.server_isn(ip)) {
        (Direction::Up, _) if syn && !ack => {
            flows.begin(ip, tcp.seq(ip));
            let answer = Bare { seq: ours, ack: tcp.seq(ip).wrapping_add(1), window: 0 };
            return answer.packet(ip, Flags::SYN | Flags::ACK, true);
        }
        (Direction::Up, None) if ack && tcp.ack(ip) == ours.wrapping_add(1) => {
            let syn = Bare { seq: tcp.seq(ip).wrapping_sub(1), ack: 0, window: tcp.window(ip) };
            if let Some(packet) = syn.packet(ip, Flags::SYN, false) {
                *ip = packet;
            }
        }
        (Direction::Up, Some(theirs)) => {
            let ack = tcp.ack(ip).wrapping_sub(ours).wrapping_add(theirs);
            tcp.set_ack(ip, ack);
            update_checksums(ip);
        }
        // The proxy's own SYN-ACK on its way to the client.
        (Direction::Down, _) if syn && ack && tcp.seq(ip) == ours => {}
        (Direction::Down, _) if syn && ack => {
            flows.set_server_isn(ip, tcp.seq(ip));
            let opened = Bare { seq: ours.wrapping_add(1), ack: tcp.ack(ip), window: tcp.window(ip) };
            if let Some(packet) = opened.packet(ip, Flags::ACK, false) {
                *ip = packet;
            }
        }
        (Direction::Down, Some(theirs)) => {
            let seq = tcp.seq(ip).wrapping_sub(theirs).wrapping_add(ours);
            tcp.set_seq(ip, seq);
            update_checksums(ip);
        }
        (Direction::Up | Direction::Down, None) => {}
    }
    None
}

struct Bare {
    seq: u32,
    ack: u32,
    window: u16,
}

impl Bare {
    /// Builds the packet between the ends of `like`, or back to its source.
    fn packet(self, like: &[u8], flags: Flags, back: bool) -> Option<Vec<u8>> {
        let (src, dst) = four_tuple(like)?;
        let (src, dst) = if back { (dst, src) } else { (src, dst) };
        let mss = flags.contains(Flags::SYN).then_some(MSS);
        let header = TcpHeader {
            src_port: src.port(),
            dst_port: dst.port(),
            seq: SeqNum(self.seq),
            ack: SeqNum(self.ack),
            flags,
            window: self.window,
            urgent: 0,
            options: Options { mss, ..Options::default() },
        };
        let mut out = Vec::new();
        emit(&IpMeta::new(src.ip(), dst.ip()), &header, &[], ChecksumFill::Full, &mut out).ok()?;
        Some(out)
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::{Sample, link};
    use crate::Offered;
    use alloc::vec;
    use brisk_wire::{Flags, Instant, Options};

    #[test]
    fn syn_proxy_opens_to_the_client_first_and_then_to_the_server() {
        for syn in [Sample::syn(), Sample::syn().over_v6()] {
            let mut link = link("--middlebox synproxy");
            let with_data = Sample { payload: vec![1; 80], ..syn.clone() };
            let Offered::DroppedMiddlebox { reply: Some(reply) } =
                link.up.offer(with_data.bytes(), Instant::ZERO)
            else {
                panic!("the SYN passed the proxy")
            };
            let answer = Sample::read(&reply);
            assert_eq!(
                (answer.flags, answer.ack),
                (Flags::SYN | Flags::ACK, syn.seq + 1),
                "without the data"
            );
            assert_eq!((answer.src, answer.options.mss), (syn.dst, Some(1460)));

            let bare = Options::default();
            let ack = Sample {
                seq: syn.seq + 1,
                ack: answer.seq.wrapping_add(1),
                flags: Flags::ACK,
                options: bare,
                ..syn.clone()
            };
            let seen = ack.travel(&mut link.up).remove(0);
            assert_eq!(
                (seen.flags, seen.seq),
                (Flags::SYN, syn.seq),
                "the proxy opens a connection to the server"
            );

            let opened = seen.answered().travel(&mut link.down).remove(0);
            assert_eq!((opened.flags, opened.seq, opened.ack), (Flags::ACK, ack.ack, syn.seq + 1));
            let data = Sample { payload: vec![2; 100], ..ack.clone() };
            let seen = data.travel(&mut link.up).remove(0);
            assert_eq!((seen.seq, seen.ack), (syn.seq + 1, 5001));
            let answer = Sample { seq: 5001, options: Options::default(), ..seen.answered() };
            let back = answer.travel(&mut link.down).remove(0);
            assert_eq!((back.seq, back.ack), (ack.ack, syn.seq + 101));
        }
    }
}

//! Target: BBR, alone and as the controller that connections share, with a peer that acknowledges anything.
//!
//! The peer completes each handshake. Then it acknowledges any part of the sent data, selectively and
//! cumulatively, early, late, twice and not at all, with echoes of any of its times, with marks, and with
//! windows of any size. After each step the pacing rate is within its bounds, and no window is larger than
//! the initial ones plus the acknowledged data. At the end the peer is honest: then all data leaves in a time
//! that the round trips and timeouts so far explain.

use std::net::{IpAddr, SocketAddr};

use brisk_tcp::ConnId;
use brisk_tcp::config::{CongestionAlgorithm, ConnectConfig, EcnMode, MtuProbing, StackConfig, TcpConfig};
use brisk_tcp::connection::State;
use brisk_tcp::stack::Rx;
use brisk_wire::{
    ChecksumFill, Duration, Flags, Instant, IpMeta, SackBlock, Segment, SeqNum, TcpHeader, Timestamps, emit,
};

use crate::decisions::Decisions;
use crate::watched::Watched;

const MAX_STEPS: usize = 600;
const MAX_CONNECTIONS: usize = 6;
const LARGEST_BUFFER: usize = 262_144;
const MSS: u16 = 1460;
/// Maximum segment on a path that drops larger packets.
const NARROW: u32 = 536 - 40;
/// Maximum rate of a pacer, bytes per second.
const LARGEST_RATE: u64 = 1 << 40;
/// Sum of all windows before an acknowledgement: the initial or a remembered one of each connection.
const TRUST: u64 = 64 * 1460 * MAX_CONNECTIONS as u64;
/// Maximum number of round trips, and waits for timers, for the rest of the data at an honest peer.
const PATIENCE: u32 = 5000;
/// Round trip of the honest peer.
const RTT: Duration = Duration::from_millis(10);

const LOCAL: [u8; 4] = [10, 0, 0, 1];
const REMOTE: [u8; 4] = [10, 0, 0, 2];

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let mut decisions = Decisions::new(bytes);
    let mut scene = Scene::new(&mut decisions);
    for _ in 0..MAX_STEPS {
        if decisions.is_over() {
            break;
        }
        scene.step(&mut decisions);
        scene.check();
    }
    scene.end();
}

/// A connection from its peer's view.
struct Peer {
    id: ConnId,
    port: u16,
    /// Sequence numbers of the stack: acknowledged, and sent. `None` before the SYN.
    una: Option<SeqNum>,
    nxt: SeqNum,
    syn: SeqNum,
    /// Timestamps of the stack that the peer has seen: the first, and the last.
    times: [Option<u32>; 2],
    is_answered: bool,
    is_over: bool,
}

struct Scene {
    host: Watched,
    tcp: TcpConfig,
    peers: Vec<Peer>,
    acknowledged: u64,
    ports: u16,
}

fn address(bytes: [u8; 4]) -> IpAddr {
    bytes.into()
}

impl Scene {
    fn new(decisions: &mut Decisions<'_>) -> Scene {
        let choice = decisions.byte();
        let on = |bit: u8| choice >> bit & 1 == 0;
        let mut tcp = TcpConfig {
            congestion: CongestionAlgorithm::Bbr,
            share_path: on(0),
            sack: on(1),
            timestamps: on(2),
            ecn: if on(3) { EcnMode::On } else { EcnMode::Passive },
            mtu_probing: if on(4) { MtuProbing::Off } else { MtuProbing::Always },
            ..TcpConfig::default()
        };
        tcp.send_buffer.max = LARGEST_BUFFER;
        let config = StackConfig {
            addresses: vec![address(LOCAL)],
            max_super_segment: if on(5) { 0 } else { 65_000 },
            ..StackConfig::default()
        };
        let host = Watched::new(config, 1, LARGEST_BUFFER, Instant::from_millis(1000));
        let mut scene = Scene { host, tcp, peers: Vec::new(), acknowledged: 0, ports: 1 };
        for _ in 0..=choice >> 6 {
            scene.connect();
        }
        scene
    }

    fn step(&mut self, decisions: &mut Decisions<'_>) {
        let index = decisions.below(MAX_CONNECTIONS).min(self.peers.len().saturating_sub(1));
        match decisions.below(16) {
            0 => self.connect(),
            1 => self.write(index, 65_536),
            2 => self.write(index, usize::from(decisions.short())),
            3 if decisions.one_in(4) => self.leave(index, decisions),
            3 => self.write(index, LARGEST_BUFFER),
            4..=6 => self.acknowledge(index, decisions),
            7..=9 => self.acknowledge_selectively(index, decisions),
            10 => (0..self.peers.len()).for_each(|index| self.acknowledge_all(index)),
            11..=13 => self.pass(Duration::from_micros(u64::from(decisions.byte()) * 300)),
            14 => self.pass(Duration::from_millis(u64::from(decisions.byte()) * 8)),
            _ => self.pass(Duration::from_secs(decisions.pick(&[1, 3, 11, 61]))),
        }
    }

    fn connect(&mut self) {
        if self.peers.iter().filter(|peer| !peer.is_over).count() == MAX_CONNECTIONS {
            return;
        }
        let connect = ConnectConfig { tcp: self.tcp.clone(), ..ConnectConfig::default() };
        let (to, now) = (SocketAddr::new(address(REMOTE), 1000 + self.ports), self.host.now);
        self.ports += 1;
        if let Ok(id) = self.host.stack.connect(to, &connect, now) {
            self.peers.retain(|peer| !peer.is_over);
            self.peers.push(Peer {
                id,
                port: to.port(),
                una: None,
                nxt: SeqNum(0),
                syn: SeqNum(0),
                times: [None; 2],
                is_answered: false,
                is_over: false,
            });
            self.answer_handshakes();
        }
    }

    /// Takes the packets that leave, and answers SYNs.
    fn answer_handshakes(&mut self) {
        self.drain();
        for index in 0..self.peers.len() {
            let peer = &self.peers[index];
            if !peer.is_answered && peer.una.is_some() {
                self.peers[index].is_answered = true;
                self.send(index, Flags::SYN | Flags::ACK | Flags::ECE, &[], u16::MAX, 1);
            }
        }
        self.drain();
    }

    fn drain(&mut self) {
        let Scene { host, peers, .. } = self;
        host.drain(&mut |_, segment| note(peers, segment));
        host.events();
    }

    fn pass(&mut self, span: Duration) {
        let Scene { host, peers, .. } = self;
        host.pass(span, &mut |_, segment| note(peers, segment));
        host.events();
    }

    fn write(&mut self, index: usize, len: usize) {
        static DATA: [u8; LARGEST_BUFFER] = [0xa5; LARGEST_BUFFER];
        if let Some(peer) = self.peers.get(index) {
            let _ = self.host.stack.write(peer.id, &DATA[..len], self.host.now);
        }
        self.drain();
    }

    /// Aborts or releases the connection at one end.
    fn leave(&mut self, index: usize, decisions: &mut Decisions<'_>) {
        let Some(peer) = self.peers.get_mut(index) else { return };
        let (id, now) = (peer.id, self.host.now);
        match decisions.below(3) {
            0 => self.host.stack.abort(id, now),
            1 => self.send(index, Flags::RST | Flags::ACK, &[], 0, 0),
            _ => {
                let _ = self.host.stack.shutdown(id, now);
                return self.drain();
            }
        }
        self.peers[index].is_over = true;
        self.host.stack.release(id, now);
        self.drain();
    }

    /// Sends a cumulative acknowledgement of a part, with a window of any size.
    fn acknowledge(&mut self, index: usize, decisions: &mut Decisions<'_>) {
        let choice = decisions.byte();
        let Some(peer) = self.peers.get_mut(index) else { return };
        let Some(una) = peer.una else { return };
        let share = u64::from(decisions.byte()) + 1;
        let advance = (u64::from(peer.nxt.since(una)) * share / 256) as u32;
        self.acknowledged += u64::from(advance);
        peer.una = Some(una + advance);
        let window = [u16::MAX, u16::MAX, 200, 1, 0, u16::MAX, 30_000, 2][usize::from(choice & 7)];
        let flags = if choice >> 3 & 3 == 3 { Flags::ACK | Flags::ECE } else { Flags::ACK };
        self.send(index, flags, &[], window, choice >> 5);
        self.drain();
    }

    /// Sends up to three blocks of outstanding data, or of data that was acknowledged before.
    fn acknowledge_selectively(&mut self, index: usize, decisions: &mut Decisions<'_>) {
        let choice = decisions.byte();
        let Some(peer) = self.peers.get(index) else { return };
        let Some(una) = peer.una else { return };
        let outstanding = peer.nxt.since(una);
        let mut blocks = Vec::new();
        if choice & 3 == 3 {
            let start = una - una.since(peer.syn + 1).min(1448 * (1 + u32::from(choice >> 5)));
            blocks.push((start, una.min(start + 1448)));
        }
        for _ in 0..=choice >> 2 & 1 {
            let at = u64::from(outstanding) * u64::from(decisions.byte()) / 256;
            let start = una + at as u32 / 1448 * 1448;
            let end = start + 1448 * (1 + u32::from(decisions.byte() & 31));
            blocks.push((start, end.min(peer.nxt)));
        }
        blocks.retain(|(start, end)| start.lt(*end));
        self.acknowledged += blocks.iter().map(|(start, end)| u64::from(end.since(*start))).sum::<u64>();
        self.send(index, Flags::ACK, &blocks, u16::MAX, choice >> 6);
        self.drain();
    }

    fn acknowledge_all(&mut self, index: usize) {
        let peer = &mut self.peers[index];
        let Some(una) = peer.una else { return };
        self.acknowledged += u64::from(peer.nxt.since(una));
        peer.una = Some(peer.nxt);
        self.send(index, Flags::ACK, &[], u16::MAX, 1);
        self.drain();
    }

    /// Sends a segment of the peer. `time`: 0 echoes the stack's first time, 1 the last, others an earlier
    /// time.
    fn send(&mut self, index: usize, flags: Flags, blocks: &[(SeqNum, SeqNum)], window: u16, time: u8) {
        let peer = &self.peers[index];
        let is_syn = flags.contains(Flags::SYN);
        let mut tcp = TcpHeader {
            src_port: peer.port,
            dst_port: self.host.stack.local_addr(peer.id).map_or(0, |local| local.port()),
            seq: SeqNum(if is_syn { 999 } else { 1000 }),
            ack: peer.una.map_or(SeqNum(0), |una| if is_syn { peer.syn + 1 } else { una }),
            flags,
            window,
            ..TcpHeader::default()
        };
        if is_syn {
            tcp.options.mss = Some(MSS);
            tcp.options.window_scale = Some(7);
            tcp.options.sack_permitted = self.tcp.sack;
        }
        let [first, last] = peer.times;
        let echo =
            if time == 0 { first } else { last.map(|last| last.wrapping_sub(u32::from(time - 1) * 3)) };
        tcp.options.timestamps =
            echo.filter(|_| self.tcp.timestamps).map(|echo| Timestamps { value: 1, echo });
        if self.tcp.sack {
            for &(start, end) in blocks {
                let _ = tcp.options.sack.try_push(SackBlock { start, end });
            }
        }
        let mut packet = Vec::new();
        let ip = IpMeta::new(address(REMOTE), address(LOCAL));
        emit(&ip, &tcp, &[], ChecksumFill::Full, &mut packet).expect("a small packet");
        self.host.receive(&packet, Rx::default());
        self.host.events();
    }

    /// Checks the bounds of windows and pacing rates.
    fn check(&mut self) {
        let max = TRUST + self.acknowledged;
        for peer in &self.peers {
            let stack = &self.host.stack;
            let (Some(stats), Some(info)) = (stack.conn_stats(peer.id), stack.conn_info(peer.id)) else {
                continue;
            };
            if stats.state != State::Established {
                continue;
            }
            assert!(u64::from(stats.cwnd) <= max, "a window of {} bytes, {max} at most", stats.cwnd);
            // The smallest segment of a member whose path has proved to be narrow.
            assert!(stats.cwnd >= stats.mss.min(NARROW), "a window of {} bytes", stats.cwnd);
            assert!(info.pacing_rate.is_none_or(|rate| (1..=LARGEST_RATE).contains(&rate)), "{info:?}");
        }
        if let Some(path) = self.host.stack.shared_path(address(LOCAL), address(REMOTE)) {
            assert!(path.members as usize <= MAX_CONNECTIONS + 1, "{path:?}");
            assert!(path.waiting <= path.members, "{path:?}");
        }
    }

    /// The peer acknowledges everything a round trip after it was sent: all data leaves, and no state is
    /// left.
    fn end(mut self) {
        self.answer_handshakes();
        for turn in 0.. {
            for index in 0..self.peers.len() {
                self.acknowledge_all(index);
            }
            self.check();
            let stack = &self.host.stack;
            let queued = |peer: &Peer| stack.conn_stats(peer.id).map_or(0, |stats| stats.send_queue);
            let left: Vec<usize> = self.peers.iter().map(queued).filter(|left| *left > 0).collect();
            if left.is_empty() {
                break;
            }
            assert!(turn < PATIENCE, "{left:?} bytes do not leave, {:?}", self.rates());
            let is_outstanding = self.peers.iter().any(|peer| peer.una.is_some_and(|una| una != peer.nxt));
            let wait = match self.host.stack.next_timeout() {
                Some(at) if !is_outstanding => at.saturating_since(self.host.now).max(RTT),
                Some(_) | None => RTT,
            };
            self.pass(wait);
        }
        let now = self.host.now;
        self.peers.drain(..).for_each(|peer| {
            self.host.stack.abort(peer.id, now);
            self.host.stack.release(peer.id, now);
        });
        self.drain();
        self.pass(Duration::from_secs(3600));
        assert_eq!(self.host.stack.shared_path(address(LOCAL), address(REMOTE)), None);
        assert_eq!((self.host.stack.connections(), self.host.stack.next_timeout()), (0, None));
    }

    fn rates(&self) -> Vec<(u32, Option<u64>, Option<Duration>)> {
        let stack = &self.host.stack;
        let facts = |peer: &Peer| {
            let (stats, info) = (stack.conn_stats(peer.id)?, stack.conn_info(peer.id)?);
            Some((stats.cwnd, info.pacing_rate, stats.srtt))
        };
        self.peers.iter().filter_map(facts).collect()
    }
}

/// Records a segment of the stack at its peer.
fn note(peers: &mut [Peer], segment: &Segment<'_>) {
    let Some(peer) = peers.iter_mut().find(|peer| peer.port == segment.tcp.dst_port) else { return };
    let TcpHeader { seq, flags, ref options, .. } = segment.tcp;
    if flags.contains(Flags::SYN) {
        (peer.syn, peer.una, peer.nxt) = (seq, Some(seq + 1), segment.end());
    } else if peer.una.is_some() && !flags.contains(Flags::RST) {
        peer.nxt = peer.nxt.max(segment.end());
    }
    if let Some(time) = options.timestamps.map(|timestamps| timestamps.value) {
        peer.times = [peer.times[0].or(Some(time)), Some(time)];
    }
}

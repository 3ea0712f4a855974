//! What somebody who sees the traffic knows of one connection: enough to forge the peer.

use std::net::SocketAddr;

use brisk_wire::{FastOpen, Flags, Segment, SeqNum, TcpHeader};

/// Bytes of a packet that are kept for quotation in an ICMP error.
const QUOTED: usize = 128;

/// One four-tuple, as seen from the path.
#[derive(Clone, Debug)]
pub struct Flow {
    /// The end of the stack under test.
    pub local: SocketAddr,
    /// The peer that is forged.
    pub remote: SocketAddr,
    /// The initial sequence number that the forged peer uses.
    pub irs: SeqNum,
    /// What the stack expects next, as it said last.
    pub rcv_nxt: SeqNum,
    /// The window that the stack offered last, as on the wire.
    pub rcv_wnd: u16,
    /// The highest sequence number that the stack has used.
    pub snd_nxt: SeqNum,
    /// What was last acknowledged to the stack.
    pub snd_una: SeqNum,
    /// Whether the stack has sent anything.
    pub seen: bool,
    /// The stack has acknowledged something.
    pub acknowledged: bool,
    /// The last timestamp of the stack.
    pub ts_value: Option<u32>,
    /// The clock of the forged peer.
    pub ts_own: u32,
    /// The last Fast Open option of the stack: a cookie that it gave or took.
    pub fast_open: Option<FastOpen>,
    /// The beginning of the last packet of the stack.
    pub last: Vec<u8>,
}

impl Flow {
    /// A flow of which nothing was seen yet.
    pub fn new(local: SocketAddr, remote: SocketAddr, irs: u32) -> Self {
        Flow {
            local,
            remote,
            irs: SeqNum(irs),
            rcv_nxt: SeqNum(irs) + 1,
            rcv_wnd: 0,
            snd_nxt: SeqNum(0),
            snd_una: SeqNum(0),
            seen: false,
            acknowledged: false,
            ts_value: None,
            ts_own: 1,
            fast_open: None,
            last: Vec::new(),
        }
    }

    /// Whether a segment of the stack belongs here.
    pub fn owns(&self, segment: &Segment<'_>) -> bool {
        let local = SocketAddr::new(segment.ip.src, segment.tcp.src_port);
        let remote = SocketAddr::new(segment.ip.dst, segment.tcp.dst_port);
        (local, remote) == (self.local, self.remote)
    }

    /// The stack sent a segment.
    pub fn on_sent(&mut self, packet: &[u8], segment: &Segment<'_>) {
        let TcpHeader { seq, ack, flags, window, ref options, .. } = segment.tcp;
        if flags.contains(Flags::RST) {
            return;
        }
        if !self.seen || flags.contains(Flags::SYN) {
            (self.snd_una, self.snd_nxt) = (seq, segment.end());
        }
        self.seen = true;
        self.snd_nxt = self.snd_nxt.max(segment.end());
        if flags.contains(Flags::ACK) {
            self.rcv_nxt = ack;
            self.acknowledged = true;
        }
        self.rcv_wnd = window;
        self.fast_open = options.fast_open.or(self.fast_open);
        self.ts_value = options.timestamps.map(|timestamps| timestamps.value);
        // What was forged may have moved the stack's idea of the peer's clock: keep up with it.
        if let Some(echo) = options.timestamps.map(|timestamps| timestamps.echo)
            && (echo.wrapping_sub(self.ts_own) as i32) > 0
        {
            self.ts_own = echo;
        }
        self.last.clear();
        self.last.extend(packet.iter().take(QUOTED));
    }

    /// The header of the segment that an honest peer would send next.
    pub fn next(&self) -> TcpHeader {
        let mut tcp = TcpHeader {
            src_port: self.remote.port(),
            dst_port: self.local.port(),
            seq: self.rcv_nxt,
            ack: self.snd_nxt,
            flags: Flags::ACK,
            window: 4000,
            ..TcpHeader::default()
        };
        tcp.options.timestamps =
            self.ts_value.map(|echo| brisk_wire::Timestamps { value: self.ts_own, echo });
        tcp
    }
}

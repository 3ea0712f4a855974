//! The knowledge of an observer of the traffic about one connection, which suffices to forge the peer.

use std::net::SocketAddr;

use brisk_wire::{FastOpen, Flags, Segment, SeqNum, TcpHeader};

/// Number of bytes of a packet that are kept for quotation in an ICMP error.
const QUOTED: usize = 128;

/// One four-tuple, observed on the path.
#[derive(Clone, Debug)]
pub struct Flow {
    /// Address of the stack under test.
    pub local: SocketAddr,
    /// Address of the forged peer.
    pub remote: SocketAddr,
    /// Initial sequence number of the forged peer.
    pub irs: SeqNum,
    /// The next sequence number that the stack expects, from its last segment.
    pub rcv_nxt: SeqNum,
    /// The last window field of the stack.
    pub rcv_wnd: u16,
    /// Highest sequence number that the stack has used.
    pub snd_nxt: SeqNum,
    /// Last acknowledgement number sent to the stack.
    pub snd_una: SeqNum,
    /// True if the stack has sent a segment.
    pub seen: bool,
    /// True if the stack has acknowledged something.
    pub acknowledged: bool,
    /// The last timestamp of the stack.
    pub ts_value: Option<u32>,
    /// The clock of the forged peer.
    pub ts_own: u32,
    /// The last Fast Open option of the stack: a cookie that it issued or accepted.
    pub fast_open: Option<FastOpen>,
    /// The beginning of the last packet of the stack.
    pub last: Vec<u8>,
}

impl Flow {
    /// Returns a flow without an observed segment.
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

    /// True if a segment of the stack belongs to this flow.
    pub fn owns(&self, segment: &Segment<'_>) -> bool {
        let local = SocketAddr::new(segment.ip.src, segment.tcp.src_port);
        let remote = SocketAddr::new(segment.ip.dst, segment.tcp.dst_port);
        (local, remote) == (self.local, self.remote)
    }

    /// Records a segment of the stack.
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
        // Forged segments may have advanced the stack's view of the peer's clock: follow it.
        if let Some(echo) = options.timestamps.map(|timestamps| timestamps.echo)
            && (echo.wrapping_sub(self.ts_own) as i32) > 0
        {
            self.ts_own = echo;
        }
        self.last.clear();
        self.last.extend(packet.iter().take(QUOTED));
    }

    /// Returns the header of the next segment of an honest peer.
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

//! The two targets of a script: brisk's stack in virtual time, or the kernel in real time.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use brisk_wire::{ChecksumCheck, IpMeta, Packet, TcpHeader, parse, tcp_offset};

use super::request::{Slot, System};

#[derive(Clone, Debug)]
pub(super) struct Sent {
    /// Microseconds since the start of the script.
    pub(super) at: i64,
    pub(super) ip: IpMeta,
    pub(super) tcp: TcpHeader,
    /// The option area in wire format.
    pub(super) options: Vec<u8>,
    pub(super) payload: Vec<u8>,
}

impl Sent {
    /// Parses a packet; the error describes a packet other than a TCP segment.
    pub(super) fn read(at: i64, packet: &[u8]) -> Result<Sent, String> {
        let parsed = parse(packet, ChecksumCheck::Verify);
        let Ok(Packet::Tcp(segment)) = parsed else { return Err(format!("{parsed:?}")) };
        let options = option_area(packet).unwrap_or_default().to_vec();
        let (ip, tcp, payload) = (segment.ip, segment.tcp, segment.payload.to_vec());
        Ok(Sent { at, ip, tcp, options, payload })
    }

    /// Returns the sender's address and port.
    pub(super) fn local(&self) -> SocketAddr {
        SocketAddr::new(self.ip.src, self.tcp.src_port)
    }

    /// Returns the peer's address and port.
    pub(super) fn remote(&self) -> SocketAddr {
        SocketAddr::new(self.ip.dst, self.tcp.dst_port)
    }
}

/// Returns the bytes between the fixed TCP header and the payload.
fn option_area(packet: &[u8]) -> Option<&[u8]> {
    let tcp = packet.get(tcp_offset(packet)?..)?;
    let header_len = usize::from(tcp.get(12)? >> 4) * 4;
    tcp.get(20..header_len)
}

/// A TCP with a clock. Times are microseconds since the start of the script.
pub(super) trait Backend {
    fn system(&self) -> Arc<dyn System>;

    fn now(&self) -> i64;

    /// Returns the microseconds since 1970 at the start of the script.
    fn start_of_day(&self) -> u64;

    /// Runs the next event before `to` (with `inclusive`, also an event at `to`); returns false if there is
    /// none.
    fn step(&mut self, to: i64, inclusive: bool) -> Result<bool, String>;

    /// Moves the clock to `to`; there must be no event before it.
    fn reach(&mut self, to: i64);

    /// Changes a Linux setting during the script.
    fn set(&mut self, name: &str, value: &str) -> Result<(), String>;

    fn arrive(&mut self, packet: &[u8]) -> Result<(), String>;

    /// Waits until the call of `slot` has returned or blocks. `may_sleep` is true if the script permits it to
    /// block.
    fn await_call(&mut self, slot: &Slot, may_sleep: bool) -> Result<(), String>;

    /// Returns the queue of sent packets that were not compared yet.
    fn sent(&mut self) -> &mut VecDeque<Sent>;

    /// Returns the value of a name in an assertion about a socket; `None` if there is no such name.
    fn value(&self, name: &str, fd: Option<i32>) -> Option<i128>;

    /// True if assertions with unknown names are skipped: the kernel lacks our stack's counters.
    fn passes_over_unknown(&self) -> bool {
        false
    }

    /// Returns the permitted lateness of a timer of this length, microseconds.
    fn lateness(&self, _span: i64) -> i64 {
        0
    }

    /// True if a burst may end with PSH although the script lists none. Linux sets PSH at the end of each
    /// packet for a device with segmentation offload.
    fn pushes_bursts(&self) -> bool {
        false
    }
}

//! The two targets of a script: our stack in virtual time, or the kernel in real time.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use brisk_wire::{ChecksumCheck, IpMeta, OptionProfile, Packet, TcpHeader, parse_with, tcp_offset};

use super::request::{Slot, System};

/// A segment that was sent.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    /// Microseconds since the start of the script.
    pub(super) at: i64,
    pub(super) ip: IpMeta,
    pub(super) tcp: TcpHeader,
    /// The option area as on the wire.
    pub(super) options: Vec<u8>,
    pub(super) payload: Vec<u8>,
}

impl Sent {
    /// Reads a packet; the error says what it is instead of a TCP segment.
    pub(super) fn read(at: i64, packet: &[u8], profile: &OptionProfile) -> Result<Sent, String> {
        let parsed = parse_with(packet, ChecksumCheck::Verify, profile);
        let Ok(Packet::Tcp(segment)) = parsed else { return Err(format!("{parsed:?}")) };
        let options = option_area(packet).unwrap_or_default().to_vec();
        let (ip, tcp, payload) = (segment.ip, segment.tcp, segment.payload.to_vec());
        Ok(Sent { at, ip, tcp, options, payload })
    }

    /// The sender's end of the connection.
    pub(super) fn local(&self) -> SocketAddr {
        SocketAddr::new(self.ip.src, self.tcp.src_port)
    }

    /// The peer's end.
    pub(super) fn remote(&self) -> SocketAddr {
        SocketAddr::new(self.ip.dst, self.tcp.dst_port)
    }
}

/// The bytes between the fixed TCP header and the payload.
fn option_area(packet: &[u8]) -> Option<&[u8]> {
    let tcp = packet.get(tcp_offset(packet)?..)?;
    let header_len = usize::from(tcp.get(12)? >> 4) * 4;
    tcp.get(20..header_len)
}

/// A TCP with a clock. Times are microseconds since the start of the script.
pub(super) trait Backend {
    /// Its sockets.
    fn system(&self) -> Arc<dyn System>;

    /// Now.
    fn now(&self) -> i64;

    /// Microseconds since 1970 at the start of the script.
    fn start_of_day(&self) -> u64;

    /// Runs the next event before `to`, or at it with `inclusive`; false if there is none.
    fn step(&mut self, to: i64, inclusive: bool) -> Result<bool, String>;

    /// Moves the clock to `to`; no event lies before it.
    fn reach(&mut self, to: i64);

    /// Changes a setting of Linux while the script plays.
    fn set(&mut self, name: &str, value: &str) -> Result<(), String>;

    /// A packet arrives.
    fn arrive(&mut self, packet: &[u8]) -> Result<(), String>;

    /// Waits until the call whose answer comes into `slot` has returned or sleeps. `may_sleep`: the script
    /// lets it last.
    fn await_call(&mut self, slot: &Slot, may_sleep: bool) -> Result<(), String>;

    /// The packets that were sent and that nobody has looked at.
    fn sent(&mut self) -> &mut VecDeque<Sent>;

    /// The value of a name in an assertion about a socket; `None` if there is no such name.
    fn value(&self, name: &str, fd: Option<i32>) -> Option<i128>;

    /// True if assertions with unknown names are skipped: the kernel has no figures of our stack.
    fn passes_over_unknown(&self) -> bool {
        false
    }

    /// Returns the permitted lateness of a timer of this length, microseconds.
    fn lateness(&self, _span: i64) -> i64 {
        0
    }

    /// True if a burst may end with PSH where the script has none: Linux pushes at the end of each packet
    /// that it hands to a device with segmentation offload.
    fn pushes_bursts(&self) -> bool {
        false
    }
}

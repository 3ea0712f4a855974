//! The stack: every connection of one set of addresses, without a clock and without I/O.
//!
//! A driver (the runtime, the simulator, a script) does the same thing everywhere: it hands in what
//! arrived ([`Stack::on_packet`]), calls for the application ([`Stack::write`], [`Stack::read`], ...),
//! drains [`Stack::poll_transmit`] and [`Stack::poll_event`] until both answer `None`, and sleeps until
//! [`Stack::next_timeout`]. Four kinds of methods: commands, `on_*` (something happened), `poll_*`
//! (drain until `None`) and questions.

use alloc::vec::Vec;
use core::net::SocketAddr;

use brisk_wire::ChecksumCheck;

use crate::config::{ConnectConfig, KeepaliveConfig, ListenConfig, StackConfig};
use crate::connection::{ConnStats, State};
use crate::error::{ConfigError, ConnectError, ListenError, ReadError, WriteError};
use crate::event::{Event, Probe};
use crate::outcome::Origin;
use crate::time::{Duration, Instant};

mod conn_id;
mod demux;
mod stats;

pub use conn_id::{ConnId, ListenerId};
pub use demux::FourTuple;
pub use stats::StackStats;

/// What the device knows of a packet that it hands in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rx {
    /// Whether the checksums are still to be verified.
    pub checksum: ChecksumCheck,
    /// Payload bytes of each wire segment if the device coalesced several into this packet.
    pub segment_size: Option<u16>,
}

impl Default for Rx {
    /// One packet as it was on the wire, unverified.
    fn default() -> Self {
        Rx { checksum: ChecksumCheck::Verify, segment_size: None }
    }
}

/// What [`Stack::poll_transmit`] put into the buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transmit {
    /// Bytes of the IP packet.
    pub len: usize,
    /// Set if the packet is a super-packet: payload bytes of each wire segment to cut it into.
    pub segment_size: Option<u16>,
    /// True if the TCP checksum field holds only the sum of the pseudo header and the device (or
    /// [`brisk_wire::split`]) completes it.
    pub partial_checksum: bool,
    /// The connection that sent it; `None` for answers of the stack itself (resets, SYN cookies,
    /// TIME-WAIT).
    pub conn: Option<ConnId>,
    /// Why it was sent.
    pub origin: Origin,
}

/// All connections and listeners of one set of addresses.
#[derive(Debug)]
pub struct Stack {
    config: StackConfig,
    stats: StackStats,
}

impl Stack {
    /// A stack without connections. All chance (sequence numbers, ports, timestamp offsets, cookies)
    /// is derived from `seed`: hand in real entropy in production, a fixed seed in a test.
    ///
    /// # Errors
    /// The first value of `config` that is out of its range.
    pub fn new(config: StackConfig, seed: u64) -> Result<Stack, ConfigError> {
        config.validate()?;
        let _ = seed;
        Ok(Stack { config, stats: StackStats::default() })
    }

    /// Starts an active open to `remote`. [`Event::Connected`] or [`Event::Closed`] follows.
    ///
    /// # Errors
    /// Why there can be no such connection now; nothing was sent.
    pub fn connect(
        &mut self,
        remote: SocketAddr,
        config: &ConnectConfig,
        now: Instant,
    ) -> Result<ConnId, ConnectError> {
        self.connect_with_data(remote, &[], config, now).map(|(id, _)| id)
    }

    /// Starts an active open with `data` queued behind the SYN. Answers how many bytes were taken.
    ///
    /// # Errors
    /// As [`Stack::connect`].
    pub fn connect_with_data(
        &mut self,
        remote: SocketAddr,
        data: &[u8],
        config: &ConnectConfig,
        now: Instant,
    ) -> Result<(ConnId, usize), ConnectError> {
        let _ = (data, config, now);
        Err(ConnectError::TooMany(self.config.max_connections.min(remote.port().into())))
    }

    /// Opens a listener. Port 0 lets the stack choose one; an unspecified address listens on every
    /// address of its family.
    ///
    /// # Errors
    /// Why there can be no such listener.
    pub fn listen(&mut self, local: SocketAddr, config: ListenConfig) -> Result<ListenerId, ListenError> {
        let _ = config;
        Err(ListenError::InUse(local))
    }

    /// Closes a listener. Connections that were not accepted are reset.
    pub fn close_listener(&mut self, listener: ListenerId, now: Instant) {
        let _ = (listener, now);
    }

    /// The address and port of a listener.
    pub fn listener_addr(&self, listener: ListenerId) -> Option<SocketAddr> {
        let _ = listener;
        None
    }

    /// Takes the oldest connection that waits at the listener, with the address of its peer.
    pub fn accept(&mut self, listener: ListenerId) -> Option<(ConnId, SocketAddr)> {
        let _ = listener;
        None
    }

    /// Puts bytes into the send buffer; answers how many fitted.
    ///
    /// # Errors
    /// [`WriteError::WouldBlock`] if none fitted; an [`Event::Writable`] follows.
    pub fn write(&mut self, id: ConnId, data: &[u8], now: Instant) -> Result<usize, WriteError> {
        let _ = (id, data, now);
        Err(WriteError::NoConnection)
    }

    /// Takes received bytes; 0 is the end of the stream.
    ///
    /// # Errors
    /// [`ReadError::WouldBlock`] if there is nothing yet; an [`Event::Readable`] follows.
    pub fn read(&mut self, id: ConnId, buffer: &mut [u8], now: Instant) -> Result<usize, ReadError> {
        let _ = (id, buffer, now);
        Err(ReadError::NoConnection)
    }

    /// Copies received bytes without taking them; 0 is the end of the stream.
    ///
    /// # Errors
    /// As [`Stack::read`].
    pub fn peek(&mut self, id: ConnId, buffer: &mut [u8]) -> Result<usize, ReadError> {
        let _ = (id, buffer);
        Err(ReadError::NoConnection)
    }

    /// Puts bytes into the send buffer, the last of them urgent (RFC 9293 section 3.8.5).
    ///
    /// # Errors
    /// As [`Stack::write`].
    pub fn write_urgent(&mut self, id: ConnId, data: &[u8], now: Instant) -> Result<usize, WriteError> {
        let _ = (id, data, now);
        Err(WriteError::NoConnection)
    }

    /// Takes the urgent byte that left the stream ([`crate::config::UrgentPolicy::OutOfBand`]).
    ///
    /// # Errors
    /// [`ReadError::WouldBlock`] if there is none.
    pub fn read_urgent(&mut self, id: ConnId) -> Result<u8, ReadError> {
        let _ = id;
        Err(ReadError::NoConnection)
    }

    /// Closes for writing: a FIN follows what is queued. Reading goes on (half close).
    ///
    /// # Errors
    /// If the connection is over or the handle names none.
    pub fn shutdown(&mut self, id: ConnId, now: Instant) -> Result<(), WriteError> {
        let _ = (id, now);
        Err(WriteError::NoConnection)
    }

    /// Ends the connection at once with a reset. The handle stays valid until [`Stack::release`].
    pub fn abort(&mut self, id: ConnId, now: Instant) {
        let _ = (id, now);
    }

    /// The application lets go. Unread data turns into a reset (RFC 9293 section 3.6.1); otherwise a
    /// FIN follows what is queued and the connection lives on by itself until it is done. The handle
    /// is invalid afterwards.
    pub fn release(&mut self, id: ConnId, now: Instant) {
        let _ = (id, now);
    }

    /// Switches Nagle's algorithm off (`true`) or on.
    pub fn set_nodelay(&mut self, id: ConnId, nodelay: bool) {
        let _ = (id, nodelay);
    }

    /// Holds back segments that are not full (`true`), or lets them go.
    pub fn set_cork(&mut self, id: ConnId, cork: bool) {
        let _ = (id, cork);
    }

    /// Changes or ends keepalive.
    pub fn set_keepalive(&mut self, id: ConnId, keepalive: Option<KeepaliveConfig>) {
        let _ = (id, keepalive);
    }

    /// Changes or removes the user timeout.
    pub fn set_user_timeout(&mut self, id: ConnId, timeout: Option<Duration>) {
        let _ = (id, timeout);
    }

    /// The local end of a connection.
    pub fn local_addr(&self, id: ConnId) -> Option<SocketAddr> {
        let _ = id;
        None
    }

    /// The remote end of a connection.
    pub fn remote_addr(&self, id: ConnId) -> Option<SocketAddr> {
        let _ = id;
        None
    }

    /// The RFC 9293 state of a connection; `None` if the handle names none.
    pub fn state(&self, id: ConnId) -> Option<State> {
        let _ = id;
        None
    }

    /// What is known of one connection.
    pub fn conn_stats(&self, id: ConnId) -> Option<ConnStats> {
        let _ = id;
        None
    }

    /// Bytes that [`Stack::read`] would return now.
    pub fn readable(&self, id: ConnId) -> usize {
        let _ = id;
        0
    }

    /// Bytes that [`Stack::write`] would take now.
    pub fn writable(&self, id: ConnId) -> usize {
        let _ = id;
        0
    }

    /// Takes one IP packet from the device. What is refused is counted by reason in [`StackStats`].
    pub fn on_packet(&mut self, packet: &[u8], rx: Rx, now: Instant) {
        let _ = (packet, rx, now);
    }

    /// Puts the next IP packet to send into `out`, which is cleared first; `None` if there is none.
    pub fn poll_transmit(&mut self, now: Instant, out: &mut Vec<u8>) -> Option<Transmit> {
        let _ = now;
        out.clear();
        None
    }

    /// The next thing that an application waits for.
    pub fn poll_event(&mut self) -> Option<Event> {
        None
    }

    /// The next observation, if [`StackConfig::observe`] is set.
    pub fn poll_probe(&mut self) -> Option<(ConnId, Instant, Probe)> {
        None
    }

    /// When [`Stack::on_timeout`] is to be called next.
    pub fn next_timeout(&self) -> Option<Instant> {
        None
    }

    /// Runs every timer that is due.
    pub fn on_timeout(&mut self, now: Instant) {
        let _ = now;
    }

    /// Counters over all connections.
    pub fn stats(&self) -> &StackStats {
        &self.stats
    }

    /// Connections that exist now, half-open ones and TIME-WAIT included.
    pub fn connections(&self) -> usize {
        0
    }

    /// Bytes that the send and receive buffers of all connections hold now.
    pub fn memory(&self) -> usize {
        0
    }
}

//! The stack: every connection of one set of addresses, without a clock and without I/O.
//!
//! Every driver (the runtime, the simulator, a script) works in the same way. It passes arrived packets to
//! [`Stack::on_packet`], and makes calls for the application ([`Stack::write`], [`Stack::read`], ...). It
//! drains [`Stack::poll_transmit`] and [`Stack::poll_event`] until both return `None`, and sleeps until
//! [`Stack::next_timeout`]. There are four kinds of methods: commands, `on_*` (an event), `poll_*` (drain
//! until `None`) and queries.
//!
//! | file | content |
//! |---|---|
//! | `drive` | calls of the driver: packets in and out, events, timers |
//! | `arrive` | an arriving packet: owned by a connection, a TIME-WAIT, a listener or none; ICMP errors |
//! | `demux` | the table of four-tuples |
//! | `open`, `ports`, `isn` | active opens: address, port (RFC 6056), sequence number (RFC 6528) |
//! | `listener`, `syn_cookie` | passive opens: half-open, accept queue, cookies (RFC 4987) |
//! | `after` | processing after a call has changed a connection |
//! | `ready` | connections that may have something to send, and their urgency |
//! | `slot` | connections: inserted, retired and freed |
//! | `memory` | bounds on the memory of all connections together, and its release |
//! | `spares` | storage of emptied buffers, used again for other connections |
//! | `fast_open`, `path` | the memories of the stack: cookies, keys and limits; facts of paths |
//! | `controllers` | the controller that connections between the same two addresses share |
//! | `half_open` | half-open connections in a few bytes |
//! | `time_wait` | TIME-WAIT in a few bytes (RFC 6191, RFC 1337) |
//! | `reset`, `challenge`, `answers` | answers of the stack itself, and their limits (RFC 5961) |
//! | `deadlines` | the next deadlines |
//! | `events`, `stats` | events for the application, reports for an observer; counters |
//! | `application`, `conn_mut` | reads and writes of the application; options of an open connection |
//! | `moves` | peers whose address changes while they have connections |
//! | `renew` | a new stack in the storage of an old one |
//! | `shard` | the part of one stack among several of the same host |
//! | `slab` | storage of half-open connections and TIME-WAITs |

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::SocketAddr;

use brisk_wire::ChecksumCheck;
use bytes::Bytes;

use crate::config::{ConnectConfig, StackConfig, TcpConfig};
use crate::connection::{ConnInfo, ConnStats, Host, State};
use crate::error::{ConfigError, ConnectError, ImportError, WriteError};
use crate::mechanism::memory::GentleMemory;
use crate::outcome::Origin;
use crate::path::PathMemory;
use crate::seq_ranges::SeqRange;
use crate::time::{Duration, Instant};

mod after;
mod allowance;
mod answers;
mod application;
mod arrive;
mod challenge;
mod conn_mut;
mod controllers;
mod deadlines;
mod demux;
mod drive;
mod events;
mod fast_open;
mod half_open;
mod isn;
mod lifecycle;
mod listener;
mod memory;
mod moves;
mod open;
mod path;
mod ports;
mod ready;
mod renew;
mod request;
mod reset;
mod shard;
mod slab;
mod slot;
mod spares;
mod stats;
mod syn_cookie;
mod time_wait;

pub use crate::conn_id::{ConnId, ListenerId};
pub use crate::four_tuple::FourTuple;
pub use conn_mut::ConnMut;
pub use controllers::SharedPath;
pub use request::Request;
pub use shard::SharedFact;
pub use stats::{FastOpenStats, Refusal, StackStats};

use crate::conn_id::{Slots, first_generation};
use crate::four_tuple::KeyedHash;
use crate::keys::{Purpose, Seed};
use allowance::Allowances;
use answers::Answers;
use challenge::AnswerLimit;
use controllers::Controllers;
use deadlines::Deadlines;
use demux::Demux;
use events::{EventQueue, Reports};
use fast_open::FastOpen;
use half_open::HalfOpenTable;
use isn::SecretSource;
use listener::Listener;
use memory::Memory;
use moves::Moves;
use ports::Ports;
use ready::Ready;
use request::Requests;
use shard::Shard;
use slot::{Ownership, Slot};
use syn_cookie::SynCookieIssuer;
use time_wait::TimeWaitTable;

/// The device's information about a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rx {
    /// Treatment of the TCP checksum.
    pub checksum: ChecksumCheck,
    /// Payload bytes of each wire segment if the device coalesced several into this packet.
    pub segment_size: Option<u16>,
    /// Makes literals end with `..`, so that releases can add fields.
    #[doc(hidden)]
    pub non_exhaustive: (),
}

impl Default for Rx {
    /// Returns the values for one packet as it was on the wire, unverified.
    fn default() -> Self {
        Rx { checksum: ChecksumCheck::Verify, segment_size: None, non_exhaustive: () }
    }
}

/// Result of [`Stack::poll_transmit`] in addition to the packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transmit {
    /// Bytes of the IP packet.
    pub len: usize,
    /// Payload bytes of each wire segment into which a super-packet must be cut; `None` for other packets.
    pub segment_size: Option<u16>,
    /// True if each segment of the super-packet must be sent twice in a row, the second time marked with
    /// [`Flags::R4`](brisk_wire::Flags::R4) ([`brisk_wire::split_twice`]). Only with
    /// [`sends_twice`](crate::config::StackConfig::sends_twice).
    pub twice: bool,
    /// True if the TCP checksum field holds only the sum of the pseudo header, which the device (or
    /// [`brisk_wire::split`]) completes.
    pub partial_checksum: bool,
    /// The connection that sent it; `None` for answers of the stack itself (resets, SYN cookies,
    /// TIME-WAIT).
    pub conn: Option<ConnId>,
    /// Reason of the transmission.
    pub origin: Origin,
    /// Payload that stayed in the send queue ([`Stack::poll_transmit_in_place`]).
    in_place: Option<SeqRange>,
}

/// All connections and listeners of one set of addresses.
#[derive(Debug)]
pub struct Stack {
    config: StackConfig,
    stats: StackStats,
    /// Latest time that the stack received from its driver.
    clock: Instant,
    /// Connections, also those that the application has released.
    slots: Slots<Slot>,
    listeners: Slots<Listener>,
    /// Listeners by their address.
    listening: BTreeMap<SocketAddr, ListenerId>,
    /// SYNs that wait for the program's decision, if it forwards connections.
    requests: Option<Box<Requests>>,
    half_open: HalfOpenTable,
    time_wait: TimeWaitTable,
    /// Four-tuples of connections and TIME-WAITs.
    demux: Demux,
    deadlines: Deadlines,
    /// Connections that may have something to send.
    ready: Ready,
    answers: Answers,
    /// Packets that connections had to send before they processed their next segment.
    early: VecDeque<(Vec<u8>, Transmit)>,
    events: EventQueue,
    reports: Reports,
    memory: Memory,
    /// The packet that is being processed, if its buffer may be kept.
    lent: Option<Bytes>,
    /// The configuration of the last active open.
    latest_tcp: Option<Arc<TcpConfig>>,
    secrets: SecretSource,
    ports: Ports,
    cookies: SynCookieIssuer,
    challenges: AnswerLimit,
    resets: AnswerLimit,
    allowances: Allowances,
    fast_open: FastOpen,
    paths: PathMemory,
    gentle_memory: GentleMemory,
    /// The controllers that connections between the same addresses share.
    controllers: Controllers,
    shard: Shard,
    moves: Moves,
}

/// Creation.
impl Stack {
    /// Returns a stack without connections. All random values (sequence numbers, ports, timestamp offsets,
    /// cookies) are derived from `seed`: 32 bytes of real entropy in production, a number in a test.
    ///
    /// # Errors
    /// The first value of `config` that is out of its range.
    pub fn new(config: StackConfig, seed: impl Into<Seed>) -> Result<Stack, ConfigError> {
        Stack::seeded(config, &seed.into())
    }

    fn seeded(config: StackConfig, seed: &Seed) -> Result<Stack, ConfigError> {
        config.validate()?;
        let hash = KeyedHash::new(seed);
        let first = first_generation(&hash);
        let challenge_limit = config.challenge_acks_per_second;
        Ok(Stack {
            stats: StackStats::default(),
            clock: Instant::ZERO,
            slots: Slots::new(first),
            listeners: Slots::new(first),
            listening: BTreeMap::new(),
            requests: None,
            half_open: HalfOpenTable::default(),
            time_wait: TimeWaitTable::new(config.msl),
            demux: Demux::new(hash.clone()),
            deadlines: Deadlines::default(),
            ready: Ready::default(),
            answers: Answers::default(),
            early: VecDeque::new(),
            events: EventQueue::default(),
            fast_open: FastOpen::new(&config, seed, hash.clone()),
            gentle_memory: GentleMemory::new(config.path_entries, hash.clone()),
            paths: PathMemory::new(config.path_entries, hash),
            reports: Reports::default(),
            memory: Memory::new(&config),
            lent: None,
            latest_tcp: None,
            secrets: SecretSource::new(seed),
            ports: Ports::new(&config.ephemeral_ports, seed),
            cookies: SynCookieIssuer::new(seed),
            challenges: AnswerLimit::new(challenge_limit, seed, Purpose::ChallengeLimit),
            resets: AnswerLimit::new(reset::RESETS_PER_SECOND, seed, Purpose::ResetLimit),
            allowances: Allowances::default(),
            controllers: Controllers::default(),
            shard: Shard::default(),
            moves: Moves::default(),
            config,
        })
    }
}

/// Commands: opening and accepting.
impl Stack {
    /// Starts an active open to `remote`. [`Event::Connected`](crate::Event::Connected) or
    /// [`Event::Closed`](crate::Event::Closed) follows.
    ///
    /// # Errors
    /// The reason why the connection is not possible now; nothing was sent.
    pub fn connect(
        &mut self,
        remote: SocketAddr,
        config: &ConnectConfig,
        now: Instant,
    ) -> Result<ConnId, ConnectError> {
        self.open(remote, &[], config, now).map(|(id, _)| id)
    }

    /// Starts an active open, and queues `data` to leave with the SYN or after the handshake. Returns the
    /// number of queued bytes.
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
        self.open(remote, data, config, now)
    }

    /// Returns the address and port of a listener.
    pub fn listener_addr(&self, listener: ListenerId) -> Option<SocketAddr> {
        self.listeners.at(listener).map(|at| at.addr)
    }
}

/// Commands: one connection.
impl Stack {
    /// Closes for writing: a FIN follows the queued data. Reading remains possible (half close).
    ///
    /// # Errors
    /// If the connection has ended, or there is none with this handle.
    pub fn shutdown(&mut self, id: ConnId, now: Instant) -> Result<(), WriteError> {
        self.act(id, now, |connection| connection.shutdown(now)).ok_or(WriteError::NoConnection)?
    }

    /// Ends reading after the data that has already arrived. Data that arrives after our FIN is answered by a
    /// reset, as in Linux after shutdown(SHUT_RDWR).
    pub fn shutdown_reading(&mut self, id: ConnId) {
        if let Some(slot) = self.owned_mut(id) {
            slot.connection.rx.refuses = true;
        }
    }

    /// Ends a record with the last byte written: later data does not share a segment with it, even in a
    /// retransmission (Linux: MSG_EOR).
    pub fn end_record(&mut self, id: ConnId) {
        if let Some(slot) = self.owned_mut(id) {
            slot.connection.tx.queue.end_record();
        }
    }

    /// Ends the connection at once with a reset. The handle stays valid until [`Stack::release`].
    pub fn abort(&mut self, id: ConnId, now: Instant) {
        self.act(id, now, |connection| connection.abort());
    }

    /// Releases the connection from the application. Unread data causes a reset (RFC 9293 section 3.6.1);
    /// otherwise a FIN follows the queued data and the stack keeps the connection until it has ended. The
    /// handle is invalid afterwards.
    pub fn release(&mut self, id: ConnId, now: Instant) {
        if let Some(slot) = self.owned_mut(id) {
            slot.phase = Ownership::Released;
            self.lend(id, now);
            let Some(slot) = self.slots.at_mut(id) else { return };
            let ((), aftermath) = slot.connection.act(now, |connection| connection.release(now));
            self.apply_aftermath(id, aftermath, now);
        }
    }

    /// Returns the options of a connection; `None` if the application has no connection with this handle.
    ///
    /// ```
    /// # use brisk_tcp::{ConnectConfig, Stack, StackConfig, time::Instant};
    /// # let config = StackConfig { addresses: vec!["10.0.0.1".parse()?], ..StackConfig::default() };
    /// # let mut stack = Stack::new(config, 1)?;
    /// let id = stack.connect("10.0.0.2:80".parse()?, &ConnectConfig::default(), Instant::ZERO)?;
    /// let mut conn = stack.conn_mut(id).expect("the connection is ours");
    /// conn.set_nodelay(true);
    /// conn.set_dscp(46);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn conn_mut(&mut self, id: ConnId) -> Option<ConnMut<'_>> {
        ConnMut::of(self, id)
    }

    /// Sends a SYN that waits for the first write ([`crate::fast_open::FastOpenConnect::defer`]).
    pub fn send_deferred_syn(&mut self, id: ConnId, now: Instant) {
        self.act(id, now, |connection| connection.send_deferred_syn());
    }
}

/// Commands: Fast Open.
impl Stack {
    /// Sets the time of day: `secs` since 1970 at `now`. Only derived keys
    /// ([`KeySource`](crate::fast_open::KeySource)) and a stored cache need it. Between two calls the stack
    /// extrapolates it.
    pub fn set_unix_time(&mut self, secs: u64, now: Instant) {
        self.fast_open.set_unix_time(secs, now);
    }

    /// Discards the client's knowledge of servers, for one partition or for all. Must be called when the
    /// network changes, because a cookie lets a server recognise a returning client.
    pub fn flush_fast_open_cache(&mut self, partition: Option<u64>) {
        self.fast_open.flush(partition);
    }

    /// Returns the client's memory as text for a file. It holds cookies: keep it secret.
    pub fn export_fast_open_cache(&self, now: Instant) -> alloc::string::String {
        self.fast_open.export(now)
    }

    /// Adds the output of [`Stack::export_fast_open_cache`], except where the stack has newer knowledge.
    ///
    /// # Errors
    /// The error in the text; nothing was added then.
    pub fn import_fast_open_cache(&mut self, text: &str, now: Instant) -> Result<(), ImportError> {
        self.fast_open.import(text, now)
    }
}

/// Queries.
impl Stack {
    /// Returns the local end of a connection.
    pub fn local_addr(&self, id: ConnId) -> Option<SocketAddr> {
        self.owned(id).map(|slot| slot.connection.tuple().local)
    }

    /// Returns the remote end of a connection.
    pub fn remote_addr(&self, id: ConnId) -> Option<SocketAddr> {
        self.owned(id).map(|slot| slot.connection.tuple().remote)
    }

    /// Returns the number of connections that count against the Fast Open limit of this listener: not
    /// acknowledged yet, or reset a short time ago.
    pub fn fast_open_pending(&mut self, listener: ListenerId, now: Instant) -> usize {
        self.fast_open.pending(listener, now)
    }

    /// Returns the RFC 9293 state of a connection; `None` if there is none with this handle. Until the handle
    /// is released, the state stays TIME-WAIT even after the end of that period.
    pub fn state(&self, id: ConnId) -> Option<State> {
        self.owned(id).map(|slot| slot.connection.state())
    }

    /// Returns the statistics of one connection.
    #[inline]
    pub fn conn_stats(&self, id: ConnId) -> Option<ConnStats> {
        self.owned(id).map(|slot| self.controllers.stats_of(slot))
    }

    /// Returns the time after the SYN of a Fast Open connection at which a second, plain connection for the
    /// same request should start; `None` if none is needed. The reason for the second connection: some paths
    /// accept data on a SYN and then pass nothing more. Keep the connection that is answered first. If it is
    /// the second one, call [`Stack::report_hedge_won`] and abort the first.
    pub fn hedge_wait(&self, id: ConnId) -> Option<Duration> {
        self.owned(id)?.connection.fast_open.hedge_wait()
    }

    /// Records that the request of this connection was answered on another connection, which began later.
    /// After the second time in a row its destination counts as a black hole for Fast Open.
    pub fn report_hedge_won(&mut self, id: ConnId, now: Instant) {
        self.act(id, now, |connection| {
            connection.fast_open.on_hedge_won(connection.counters.payload_bytes_received > 0)
        });
    }

    /// Returns the details of one connection, for a diagnosis.
    pub fn conn_info(&self, id: ConnId) -> Option<ConnInfo> {
        let slot = self.owned(id)?;
        let mut info = slot.connection.info();
        if let Some(rate) = slot.member.as_ref().and_then(|member| self.controllers.rate(member)) {
            info.pacing_rate = rate.pacer.rate();
        }
        Some(info)
    }

    /// Returns the bytes that [`Stack::write`] would accept now.
    pub fn writable(&self, id: ConnId) -> usize {
        self.owned(id).map_or(0, |slot| slot.connection.writable().min(self.memory.left_to_writes()))
    }

    /// Returns the counters over all connections.
    pub fn stats(&self) -> &StackStats {
        &self.stats
    }

    /// Returns the configuration of the stack.
    pub fn config(&self) -> &StackConfig {
        &self.config
    }

    /// Returns the number of connections, including half-open ones and TIME-WAIT.
    pub fn connections(&self) -> usize {
        self.demux.len()
    }

    /// Returns the number of half-open connections: incomplete handshakes of listeners.
    pub fn half_open(&self) -> usize {
        self.listeners.iter::<ListenerId>().map(|(_, listener)| listener.half_open()).sum()
    }

    /// Returns the number of connections that only wait in TIME-WAIT.
    pub fn time_waits(&self) -> usize {
        self.time_wait.len()
    }

    /// Returns the bytes that all connections keep for repairs; part of [`Stack::memory`].
    pub fn repair_memory(&self) -> usize {
        self.memory.used_for_repairs()
    }

    /// Returns the bytes held by the send and receive buffers of all connections.
    pub fn memory(&self) -> usize {
        self.memory.used()
    }

    /// Returns the connection if the application owns this handle.
    fn owned(&self, id: ConnId) -> Option<&Slot> {
        self.slots.at(id).filter(|slot| slot.phase == Ownership::Owned)
    }

    fn owned_mut(&mut self, id: ConnId) -> Option<&mut Slot> {
        self.slots.at_mut(id).filter(|slot| slot.phase == Ownership::Owned)
    }

    /// Returns the properties of the host for a connection.
    fn host(&self) -> Host {
        Host {
            mtu: self.config.mtu,
            granularity: self.config.granularity,
            accepts_parity: self.memory.accepts_parity(),
        }
    }

    fn partial_checksum(&self) -> bool {
        self.config.max_super_segment > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_can_move_to_another_thread() {
        fn is_send<T: Send>() {}
        is_send::<Stack>();
    }

    #[test]
    fn a_configuration_out_of_range_is_refused() {
        let error = Stack::new(StackConfig { mtu: 100, ..StackConfig::default() }, 1).expect_err("refused");
        assert_eq!(error.key, "mtu");
    }
}

//! One short transfer and its cost: the unit of every comparison.
//!
//! A client opens a connection, sends a request and reads the response. The completion time runs from
//! `connect` (on an established connection, from the write of the request) to the last byte of the response
//! at the client. All random numbers derive from one seed. The link has generators of its own, so that two
//! configurations of the stacks have the same losses.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::Duration;

use brisk_link::{LinkSpec, MiddleboxSpec};
use brisk_tcp::connection::Counters;
use brisk_tcp::error::ConfigError;
use brisk_tcp::fast_open::FastOpenConnect;
use brisk_tcp::{ConnectConfig, ListenConfig, StackConfig, TcpConfig};
use brisk_wire::Instant;
use serde::Serialize;
use thiserror::Error;

use crate::addresses::{CLIENT, PORT, SERVER};
use crate::application::client::Failed;
use crate::application::{Client, ClientPlan, Connections, Exchange, Server};
use crate::fast_open::{self, PriorKnowledge};
use crate::host::{AppId, HostId};
use crate::world::{Arena, Point, Side, World};

/// A transaction to be simulated.
#[derive(Clone, Debug)]
pub struct TransactionSpec<'a> {
    /// The path.
    pub link: &'a LinkSpec,
    /// Bytes of the request; default 100, minimum 16.
    pub request: u32,
    /// Bytes of the response.
    pub response: u64,
    /// Think time of the server; default 0.
    pub think: Duration,
    /// True to begin on an open connection that has been idle for a second.
    pub established: bool,
    /// Number of earlier transactions like this one on the open connection, one after the other. Their losses
    /// affect its window and its timeout. Counters of the connections include them; times, bytes and dropped
    /// packets do not. Default 0; needs `established`.
    pub earlier: u32,
    /// The client's TCP.
    pub client: TcpConfig,
    /// The server's TCP.
    pub server: TcpConfig,
    /// State of both ends after earlier connections; default `None`: no earlier connection.
    pub known: Option<&'a PriorKnowledge>,
    /// True if both ends use Fast Open; a client without a cookie requests one. Default false.
    pub fast_open: bool,
    /// Maximum duration; default 600 s of virtual time.
    pub limit: Duration,
}

impl<'a> TransactionSpec<'a> {
    /// Returns a transaction with a response of `response` bytes on a fresh connection, both ends with the
    /// default TCP.
    pub fn new(link: &'a LinkSpec, response: u64) -> Self {
        TransactionSpec {
            link,
            request: 100,
            response,
            think: Duration::ZERO,
            established: false,
            earlier: 0,
            client: TcpConfig::default(),
            server: TcpConfig::default(),
            known: None,
            fast_open: false,
            limit: Duration::from_secs(600),
        }
    }
}

/// The outcome of a transaction. Times and counters of the connections are those at the completion; bytes
/// on the wire include the closing of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct TransactionResult {
    /// Time from the beginning to the last byte of the response; `None` if it did not arrive.
    pub completion: Option<Duration>,
    /// Time from the beginning to the first byte of the response.
    pub first_byte: Option<Duration>,
    /// Retransmitted segments of both ends, SYN and SYN-ACK included.
    pub retransmits: u64,
    /// Retransmission timeouts of both ends, those of the handshake included.
    pub timeouts: u64,
    /// Timeouts of SYN and SYN-ACK.
    pub handshake_timeouts: u64,
    /// Fast recoveries of both ends.
    pub recoveries: u64,
    /// Undone window reductions of both ends.
    pub undos: u64,
    /// Losses of both ends that a probe repaired before loss detection saw them. The window was reduced for
    /// them.
    pub masked_losses: u64,
    /// Data segments and acknowledgements sent, of both ends.
    pub segments: u64,
    /// Tail loss probes of both ends.
    pub probes: u64,
    /// Losses repaired by a probe.
    pub repaired_by_probe: u64,
    /// Losses repaired by parity.
    pub repaired_by_parity: u64,
    /// Losses repaired by a copy.
    pub repaired_by_copy: u64,
    /// IP bytes that the client sent, lost ones included.
    pub wire_bytes_up: u64,
    /// IP bytes that the server sent, lost ones included.
    pub wire_bytes_down: u64,
    /// Bytes of request and response; 0 if the transaction did not complete.
    pub payload_bytes: u64,
    /// Packets dropped before the completion.
    pub dropped: u64,
    /// The server's retransmission timeout at the end, back-off included.
    pub rto: Option<Duration>,
    /// The server's smoothed round-trip time at the end.
    pub srtt: Option<Duration>,
    /// Bytes that other flows on the link received in the same time ([`crate::neighbours`]).
    pub neighbour_bytes: u64,
    /// Lost packets of a burst as a bit mask, with the first packet in the lowest bit; 0 without a burst.
    pub lost_at: u64,
}

/// Why a transaction could not be simulated.
#[derive(Debug, Error)]
pub enum TransactionError {
    /// The configuration of a stack is out of range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A byte arrived that was not sent: a bug of the stack.
    #[error(
        "the response of seed {seed} arrived with wrong bytes: this is a defect, please report it with the seed"
    )]
    Corrupted {
        /// The seed of the transaction.
        seed: u64,
    },
    /// The trace or the capture could not be written.
    #[error("cannot write the trace or the capture: {0}")]
    Record(#[from] io::Error),
}

/// Destinations of the records of a transaction.
#[derive(Default)]
pub struct Records {
    /// A capture of both ends in pcapng.
    pub capture: Option<Box<dyn Write>>,
    /// The event trace in JSON lines.
    pub trace: Option<Box<dyn Write>>,
}

impl std::fmt::Debug for Records {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Records { capture, trace } = self;
        f.debug_struct("Records")
            .field("capture", &capture.is_some())
            .field("trace", &trace.is_some())
            .finish()
    }
}

/// Simulates one transaction.
///
/// # Errors
/// See [`TransactionError`]; a transaction that fails on the path is a result, not an error.
pub fn transaction(spec: &TransactionSpec<'_>, seed: u64) -> Result<TransactionResult, TransactionError> {
    transaction_in(spec, seed, &mut Arena::default())
}

/// Simulates one transaction with buffers of an arena.
///
/// # Errors
/// Those of [`transaction`].
pub fn transaction_in(
    spec: &TransactionSpec<'_>,
    seed: u64,
    arena: &mut Arena,
) -> Result<TransactionResult, TransactionError> {
    run(spec, seed, arena, Records::default())
}

/// Simulates one transaction, and records packets at both ends and events inside the stacks.
///
/// # Errors
/// Those of [`transaction`].
pub fn transaction_recorded(
    spec: &TransactionSpec<'_>,
    seed: u64,
    records: Records,
) -> Result<TransactionResult, TransactionError> {
    run(spec, seed, &mut Arena::default(), records)
}

pub(crate) fn run(
    spec: &TransactionSpec<'_>,
    seed: u64,
    arena: &mut Arena,
    records: Records,
) -> Result<TransactionResult, TransactionError> {
    let mut fixture = Fixture::new(spec, seed, std::mem::take(arena), records)?;
    let result = fixture.play(spec, seed)?;
    fixture.world.finish_records()?;
    *arena = fixture.world.into_arena();
    Ok(result)
}

/// The world of a transaction: one client and one server.
struct Fixture {
    world: World,
    server_host: HostId,
    server: AppId,
    client: AppId,
}

impl Fixture {
    fn new(
        spec: &TransactionSpec<'_>,
        seed: u64,
        arena: Arena,
        records: Records,
    ) -> Result<Fixture, TransactionError> {
        let mut world = World::in_arena(std::slice::from_ref(spec.link), seed, arena);
        if let Some(to) = records.trace {
            world.trace_to(to);
        }
        if let Some(to) = records.capture {
            world.tap(&[Point::Hosts(Side::A), Point::Hosts(Side::B)], to)?;
        }
        let client_host = world.add_host(Side::A, "client", &[CLIENT], StackConfig::default())?;
        let server_stack = StackConfig { fast_open: fast_open::keys(), ..StackConfig::default() };
        let server_host = world.add_host(Side::B, "server", &[SERVER], server_stack)?;
        if let Some(prior_knowledge) = spec.known {
            prior_knowledge.recall(world.stack_mut(client_host));
            prior_knowledge.recall_at_server(world.stack_mut(server_host));
        }
        let address = SocketAddr::new(SERVER, PORT);
        let listen = ListenConfig {
            tcp: spec.server.clone(),
            fast_open: spec.fast_open.then(|| fast_open::listening(&spec.server)),
            ..ListenConfig::default()
        };
        let server = world.add_app(server_host, Instant::ZERO, Server::new(address, listen));
        let plan = ClientPlan {
            server: address,
            connect: ConnectConfig {
                tcp: spec.client.clone(),
                fast_open: spec.fast_open.then(FastOpenConnect::insured),
                ..ConnectConfig::default()
            },
            connections: match spec.established {
                true => Connections::Established(Duration::from_secs(1)),
                false => Connections::Fresh,
            },
            greeting: 0,
            exchanges: vec![
                Exchange {
                    request: spec.request,
                    think: spec.think,
                    ..Exchange::of(spec.response)
                };
                1 + spec.earlier as usize
            ],
        };
        // Both begin at time zero, the server first.
        let client = world.add_app(client_host, Instant::ZERO, Client::new(plan));
        Ok(Fixture { world, server_host, server, client })
    }

    fn play(&mut self, spec: &TransactionSpec<'_>, seed: u64) -> Result<TransactionResult, TransactionError> {
        let Fixture { world, server_host, server, client } = self;
        let (client, server, server_host) = (*client, *server, *server_host);
        let limit = Instant::ZERO + spec.limit;
        let earlier = spec.earlier as usize;
        let begun =
            |world: &World| world.app::<Client>(client).is_some_and(|app| app.outcomes().len() > earlier);
        world.run_while(limit, begun);
        let before = EarlierCounts {
            dropped: world.dropped(),
            up: world.bytes_sent_by(Side::A),
            down: world.bytes_sent_by(Side::B),
        };
        // On a fresh connection the link has already processed the SYN when the exchange becomes visible.
        let before = if spec.established { before } else { EarlierCounts::default() };
        let over = |world: &World| world.app::<Client>(client).is_some_and(|app| app.is_over());
        world.run_while(limit, over);
        let mut result =
            TransactionResult { dropped: world.dropped() - before.dropped, ..TransactionResult::default() };
        if let Some(outcome) = world.app::<Client>(client).and_then(|app| app.outcomes().get(earlier)) {
            if outcome.failed == Some(Failed::Corrupted) && !rewrites_payload(spec.link) {
                return Err(TransactionError::Corrupted { seed });
            }
            result.completion = outcome.finished.map(|at| at - outcome.started);
            result.payload_bytes = outcome.finished.map_or(0, |_| u64::from(spec.request) + spec.response);
            result.first_byte = outcome.first_byte.map(|at| at - outcome.started);
            outcome.stats.iter().for_each(|stats| result.add(&stats.counters));
        }
        for id in world.app::<Server>(server).iter().flat_map(|app| app.connections()) {
            if let Some(stats) = world.stack(server_host).conn_stats(id) {
                result.add(&stats.counters);
                (result.rto, result.srtt) = (Some(stats.rto), stats.srtt);
            }
        }
        // The connection is closed once the server's FIN is acknowledged.
        world.run_while(limit, |world| world.stack(server_host).connections() == 0);
        result.wire_bytes_up = world.bytes_sent_by(Side::A) - before.up;
        result.wire_bytes_down = world.bytes_sent_by(Side::B) - before.down;
        Ok(result)
    }
}

/// True if a middlebox on the link rewrites payload and corrects the checksum, so that wrong bytes are
/// expected.
fn rewrites_payload(link: &LinkSpec) -> bool {
    let mut boxes = link.down.middleboxes.iter().chain(&link.up.middleboxes);
    boxes.any(|middlebox| matches!(middlebox, MiddleboxSpec::RewritePayload { .. }))
}

#[derive(Clone, Copy, Default)]
struct EarlierCounts {
    dropped: u64,
    up: u64,
    down: u64,
}

impl TransactionResult {
    pub(crate) fn add(&mut self, counters: &Counters) {
        self.retransmits += counters.retransmits + counters.handshake_retransmits;
        self.timeouts += counters.timeouts + counters.handshake_timeouts;
        self.handshake_timeouts += counters.handshake_timeouts;
        self.recoveries += counters.recoveries;
        self.undos += counters.undos;
        self.masked_losses += counters.masked_losses;
        self.segments += counters.segments_out;
        self.probes += counters.probes;
        self.repaired_by_probe += counters.repaired_by_probe;
        self.repaired_by_parity += counters.repaired_by_parity;
        self.repaired_by_copy += counters.repaired_by_copy;
    }
}

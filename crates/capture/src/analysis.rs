//! Analysis of all connections of a capture.
//!
//! Three limits bound the memory. At `MAX_CONNECTIONS` open connections, or `MAX_OPEN` stored packets, the
//! connections that have been idle longest are closed. At `MAX_KEPT` exchanges, every second one is dropped.

use std::collections::HashMap;
use std::io::Read;
use std::net::{IpAddr, SocketAddr};

use serde::Serialize;

use crate::connection::{Connection, Exchange, Parts};
use crate::reader::{CaptureError, read};
use crate::segment::{Kind, Segment, parse};
use crate::train::Losses;

const MAX_CONNECTIONS: usize = 65_536;
/// Maximum number of packets, over all connections, that may still become lost or delivered.
const MAX_OPEN: usize = 2_000_000;
/// Maximum number of exchanges, and of round-trip times, that are kept.
const MAX_KEPT: usize = 100_000;
/// Maximum number of sources whose IP identifications are watched.
const MAX_SOURCES: usize = 65_536;
/// If a part of the path has less than this share of the round-trip time, the capture was made at that end.
const AT_THE_END: f64 = 0.15;

/// Where the capture was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// At the clients.
    Client,
    /// At the servers.
    Server,
    /// Between the clients and the servers.
    Between,
    /// Unknown: the capture has no complete handshake without a repeated SYN or SYN-ACK.
    Unknown,
}

/// The result of reading a capture.
#[derive(Clone, Debug, Serialize)]
pub struct Analysis {
    /// Packets in the file.
    pub packets: u64,
    /// TCP segments in the file.
    pub segments: u64,
    /// TCP segments whose header is cut off or damaged.
    pub unreadable: u64,
    /// Segments that another interface captured first.
    pub repeated: u64,
    /// Reason why the reader stopped before the end of the file.
    pub stopped: Option<String>,
    /// Connections.
    pub connections: u64,
    /// Connections whose SYN is in the capture.
    pub opened: u64,
    /// Connections of `opened` with a SYN or SYN-ACK that was sent more than once.
    pub opened_with_repeats: u64,
    /// Connections of `opened` whose SYN carried data.
    pub opened_with_data: u64,
    /// Where the capture was made.
    pub side: Side,
    /// Round-trip times of connections, ns, ascending.
    #[serde(skip)]
    pub round_trips: Vec<u64>,
    /// Losses from the servers to the clients.
    pub down: Losses,
    /// Losses from the clients to the servers.
    pub up: Losses,
    /// True if the IP identifications show the losses before the capture point, including losses at the end
    /// of a burst and lost acknowledgements.
    pub by_identification: bool,
    /// Bytes that were acknowledged but are not in the capture.
    pub unseen_bytes: u64,
    /// Number of exchanges.
    pub exchanges_seen: u64,
    /// The exchanges that are kept: all, or every second, every fourth, and so on.
    #[serde(skip)]
    pub exchanges: Vec<Exchange>,
    /// Payload of the largest segment.
    pub segment_size: u32,
}

/// Reads a capture. Packets behind damage or truncation are omitted and reported in [`Analysis::stopped`].
///
/// # Errors
/// [`CaptureError`] if the file cannot be read or has no TCP segment.
pub fn analyse(input: impl Read + Send) -> Result<Analysis, CaptureError> {
    let mut table = Table::default();
    let reading = read(input, &mut |frame| match parse(&frame) {
        Kind::Tcp(segment) => table.take(&segment, frame.interface),
        Kind::Unreadable => table.unreadable += 1,
        Kind::Other => {}
    })?;
    match (reading.packets, table.segments) {
        (0, _) => Err(CaptureError::Empty),
        (packets, 0) => Err(CaptureError::NoTcp { packets }),
        (packets, _) => {
            let mut analysis = table.finish();
            analysis.packets = packets;
            analysis.stopped = reading.stopped;
            Ok(analysis)
        }
    }
}

type Ends = (SocketAddr, SocketAddr);

struct Open {
    connection: Connection,
    client: SocketAddr,
    interface: u32,
}

/// Every `stride`-th of the added values.
#[derive(Default)]
struct Kept<T> {
    kept: Vec<T>,
    seen: u64,
    stride: u64,
}

impl<T> Kept<T> {
    fn push(&mut self, value: T) {
        let stride = self.stride.max(1);
        if self.seen.is_multiple_of(stride) {
            self.kept.push(value);
        }
        self.seen += 1;
        if self.kept.len() >= MAX_KEPT {
            let mut index = 0;
            self.kept.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.stride = stride * 2;
        }
    }
}

/// Counters that show whether a host numbers the packets of all its connections with one counter.
#[derive(Default)]
struct Numbering {
    last: Option<(Ends, u16)>,
    changes: u64,
    in_a_row: u64,
}

impl Numbering {
    fn is_shared(&self) -> bool {
        self.changes >= 4 && self.in_a_row * 4 > self.changes
    }
}

#[derive(Default)]
struct Table {
    open: HashMap<Ends, Open>,
    numbering: HashMap<IpAddr, Numbering>,
    open_packets: usize,
    segments: u64,
    unreadable: u64,
    repeated: u64,
    sums: Sums,
}

/// Sums over closed connections.
#[derive(Default)]
struct Sums {
    connections: u64,
    opened: u64,
    with_repeats: u64,
    with_data: u64,
    beyond: [Losses; 2],
    before: [Losses; 2],
    by_identification: u64,
    by_sequence: u64,
    unseen: u64,
    segment_size: u32,
    round_trips: Kept<u64>,
    parts: Kept<Parts>,
    exchanges: Kept<Exchange>,
}

impl Table {
    fn take(&mut self, segment: &Segment, interface: u32) {
        self.segments += 1;
        let ends = match segment.source <= segment.destination {
            true => (segment.source, segment.destination),
            false => (segment.destination, segment.source),
        };
        self.watch_numbering(segment, ends);
        let over = |open: &Open| open.interface == interface && open.connection.is_replaced_by(segment);
        if self.open.get(&ends).is_some_and(over) {
            self.close(ends);
        }
        if !self.open.contains_key(&ends) {
            self.make_room();
            let open = Open { connection: Connection::default(), client: client_of(segment), interface };
            self.open.insert(ends, open);
        }
        let Some(open) = self.open.get_mut(&ends) else { return };
        if open.interface != interface {
            self.repeated += 1;
            return;
        }
        let before: usize = open.connection.directions.iter().map(|direction| direction.open()).sum();
        let finished = open.connection.take(segment, segment.source == open.client);
        let after: usize = open.connection.directions.iter().map(|direction| direction.open()).sum();
        self.open_packets = self.open_packets + after - before;
        finished.into_iter().for_each(|exchange| self.sums.exchanges.push(exchange));
    }

    fn watch_numbering(&mut self, segment: &Segment, ends: Ends) {
        let Some(id) = segment.ip_id.filter(|_| !segment.syn && !segment.rst) else { return };
        let source = segment.source.ip();
        if self.numbering.len() >= MAX_SOURCES && !self.numbering.contains_key(&source) {
            return;
        }
        let numbering = self.numbering.entry(source).or_default();
        if let Some((_, last)) = numbering.last.filter(|(other, _)| *other != ends) {
            numbering.changes += 1;
            numbering.in_a_row += u64::from((1..=16).contains(&id.wrapping_sub(last)));
        }
        numbering.last = Some((ends, id));
    }

    /// If a limit is reached, closes the half of the connections that has been idle longest.
    fn make_room(&mut self) {
        if self.open.len() < MAX_CONNECTIONS && self.open_packets < MAX_OPEN {
            return;
        }
        let mut times: Vec<u64> = self.open.values().map(|open| open.connection.last).collect();
        let middle = times.len() / 2;
        let (_, median, _) = times.select_nth_unstable(middle);
        let median = *median;
        let silent: Vec<Ends> = self
            .open
            .iter()
            .filter(|(_, open)| open.connection.last <= median)
            .map(|(ends, _)| *ends)
            .collect();
        silent.into_iter().for_each(|ends| self.close(ends));
    }

    fn close(&mut self, ends: Ends) {
        let Some(Open { mut connection, client, .. }) = self.open.remove(&ends) else { return };
        let sums = &mut self.sums;
        sums.connections += 1;
        sums.opened += u64::from(connection.handshake.syn.is_some());
        sums.with_repeats += u64::from(connection.handshake.repeated > 0);
        sums.with_data += u64::from(connection.handshake.with_data);
        connection.round_trip().into_iter().for_each(|time| sums.round_trips.push(time));
        connection.handshake.parts().into_iter().for_each(|parts| sums.parts.push(parts));
        connection.last_exchange().into_iter().for_each(|exchange| sums.exchanges.push(exchange));
        let server = if ends.0 == client { ends.1 } else { ends.0 };
        for (way, (direction, source)) in connection.directions.into_iter().zip([client, server]).enumerate()
        {
            self.open_packets = self.open_packets.saturating_sub(direction.open());
            sums.unseen += direction.unseen;
            sums.segment_size = sums.segment_size.max(direction.segment_size);
            let shared = self.numbering.get(&source.ip()).is_some_and(Numbering::is_shared);
            let seen = direction.finish(shared);
            sums.beyond[way].add(&seen.beyond);
            sums.before[way].add(&seen.before);
            let packets = seen.before.packets;
            *(if seen.by_identification { &mut sums.by_identification } else { &mut sums.by_sequence }) +=
                packets;
        }
    }

    fn finish(mut self) -> Analysis {
        let mut open: Vec<Ends> = self.open.keys().copied().collect();
        // The sort makes the order the same in every run.
        open.sort();
        open.into_iter().for_each(|ends| self.close(ends));
        let sums = self.sums;
        let side = side(&sums.parts.kept);
        let mut round_trips = sums.round_trips.kept;
        round_trips.sort_unstable();
        Analysis {
            packets: 0,
            segments: self.segments,
            unreadable: self.unreadable,
            repeated: self.repeated,
            stopped: None,
            connections: sums.connections,
            opened: sums.opened,
            opened_with_repeats: sums.with_repeats,
            opened_with_data: sums.with_data,
            side,
            round_trips,
            down: path(&sums.before[1], &sums.beyond[1], side == Side::Server, side == Side::Client),
            up: path(&sums.before[0], &sums.beyond[0], side == Side::Client, side == Side::Server),
            by_identification: sums.by_identification > sums.by_sequence,
            unseen_bytes: sums.unseen,
            exchanges_seen: sums.exchanges.seen,
            exchanges: sums.exchanges.kept,
            segment_size: sums.segment_size,
        }
    }
}

/// Returns the end that opened the connection; without a SYN, the end with the higher port.
fn client_of(segment: &Segment) -> SocketAddr {
    match (segment.syn, segment.ack) {
        (true, None) => segment.source,
        (true, Some(_)) => segment.destination,
        _ if segment.source.port() >= segment.destination.port() => segment.source,
        _ => segment.destination,
    }
}

/// Returns the losses of one direction. A capture at the sender normally shows no loss before the capture
/// point, and a capture at the receiver none beyond it. If it shows such losses, both parts count.
fn path(before: &Losses, beyond: &Losses, at_sender: bool, at_receiver: bool) -> Losses {
    match (at_sender && before.lost == 0, at_receiver && beyond.lost == 0) {
        (true, _) => *beyond,
        (_, true) => *before,
        _ => before.then(beyond),
    }
}

fn side(parts: &[Parts]) -> Side {
    let median = |of: fn(&Parts) -> u64| {
        let mut times: Vec<u64> = parts.iter().map(of).collect();
        times.sort_unstable();
        times.get(times.len() / 2).copied()
    };
    let (Some(client), Some(server)) = (median(|parts| parts.client), median(|parts| parts.server)) else {
        return Side::Unknown;
    };
    match client as f64 / (client + server).max(1) as f64 {
        share if share < AT_THE_END => Side::Client,
        share if share > 1.0 - AT_THE_END => Side::Server,
        _ => Side::Between,
    }
}

impl Analysis {
    /// Returns a quantile of the connections' round-trip times, ns.
    pub fn round_trip(&self, quantile: f64) -> Option<u64> {
        let last = self.round_trips.len().checked_sub(1)?;
        self.round_trips.get((last as f64 * quantile.clamp(0.0, 1.0)).round() as usize).copied()
    }
}

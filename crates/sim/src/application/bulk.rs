//! Bulk transfer: one side writes as much as it can, the other reads everything.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use brisk_tcp::config::{ConnectConfig, ListenConfig};
use brisk_tcp::connection::ConnStats;
use brisk_tcp::error::{CloseReason, ConnectError, ListenError, ReadError, WriteError};
use brisk_tcp::{ConnId, Event};
use brisk_wire::Instant;

use super::Application;
use super::view::HostView;
use crate::content;

/// The amount of data that a [`BulkSender`] sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Amount {
    /// A number of bytes.
    Bytes(u64),
    /// As much as possible until this time.
    Until(Instant),
}

/// Application that connects, writes the given amount, and closes.
#[derive(Debug)]
pub struct BulkSender {
    remote: SocketAddr,
    config: ConnectConfig,
    amount: Amount,
    connection: Option<ConnId>,
    sent: u64,
    over: bool,
    failed: Option<ConnectError>,
    closed: Option<(Instant, CloseReason)>,
    stats: Option<ConnStats>,
}

impl BulkSender {
    /// Returns a sender that has not started.
    pub fn new(remote: SocketAddr, config: ConnectConfig, amount: Amount) -> BulkSender {
        BulkSender {
            remote,
            config,
            amount,
            connection: None,
            sent: 0,
            over: false,
            failed: None,
            closed: None,
            stats: None,
        }
    }

    /// Returns the bytes written so far.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Returns the connection while it is open.
    pub fn connection(&self) -> Option<ConnId> {
        self.connection
    }

    /// Returns when and why the connection ended.
    pub fn closed(&self) -> Option<(Instant, CloseReason)> {
        self.closed
    }

    /// Returns why there is no connection, if opening it failed.
    pub fn failed(&self) -> Option<ConnectError> {
        self.failed
    }

    /// Returns the statistics of the connection at its end.
    pub fn stats(&self) -> Option<&ConnStats> {
        self.stats.as_ref()
    }

    fn left(&self, now: Instant) -> u64 {
        match self.amount {
            Amount::Bytes(amount) => amount - self.sent,
            Amount::Until(end) if now < end => u64::MAX,
            Amount::Until(_) => 0,
        }
    }

    fn write(&mut self, host: &mut HostView<'_>) {
        let Some(id) = self.connection.filter(|_| !self.over) else { return };
        loop {
            let left = self.left(host.now);
            if left == 0 {
                self.over = true;
                // This fails only if the connection has ended, which an event reports.
                let _ = host.stack.shutdown(id, host.now);
                return;
            }
            match host.stack.write(id, content::from(self.sent, left), host.now) {
                Ok(taken) => self.sent += taken as u64,
                Err(WriteError::WouldBlock | WriteError::NoConnection) => return,
                Err(WriteError::AfterClose | WriteError::Closed(_)) => return,
            }
        }
    }

    /// Reads the peer's end of stream, so that the connection can close.
    fn read(&mut self, host: &mut HostView<'_>) {
        if let Some(id) = self.connection {
            while host.read(id).is_ok_and(|bytes| !bytes.is_empty()) {}
        }
    }
}

impl Application for BulkSender {
    fn start(&mut self, host: &mut HostView<'_>) {
        match host.connect(self.remote, &[], &self.config) {
            Ok((id, _)) => {
                self.connection = Some(id);
                self.write(host);
            }
            Err(error) => self.failed = Some(error),
        }
    }

    fn on_event(&mut self, event: Event, host: &mut HostView<'_>) {
        match event {
            Event::Connected(_) | Event::Writable(_) => self.write(host),
            Event::Readable(_) => self.read(host),
            Event::Closed(id, reason) => {
                self.stats = host.stack.conn_stats(id);
                self.closed = Some((host.now, reason));
                self.connection = None;
                host.release(id);
            }
            _ => {}
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        match self.amount {
            Amount::Until(end) if !self.over && self.connection.is_some() => Some(end),
            Amount::Until(_) | Amount::Bytes(_) => None,
        }
    }

    fn on_wake(&mut self, host: &mut HostView<'_>) {
        self.write(host);
    }

    fn is_done(&self) -> bool {
        self.closed.is_some() || self.failed.is_some()
    }
}

/// Data of one connection of a [`Sink`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flow {
    /// Bytes read.
    pub received: u64,
    /// True if a byte differs from the sent byte.
    pub corrupted: bool,
    /// When the end of the stream was read.
    pub ended: Option<Instant>,
}

/// Application that accepts connections and reads all their data.
#[derive(Debug)]
pub struct Sink {
    local: SocketAddr,
    config: ListenConfig,
    refused: Option<ListenError>,
    open: BTreeMap<ConnId, usize>,
    flows: Vec<Flow>,
}

impl Sink {
    /// Returns a sink that listens at `local`.
    pub fn new(local: SocketAddr, config: ListenConfig) -> Sink {
        Sink { local, config, refused: None, open: BTreeMap::new(), flows: Vec::new() }
    }

    /// Returns the received data of each connection, in the order of acceptance.
    pub fn flows(&self) -> &[Flow] {
        &self.flows
    }

    /// Returns why the listener could not be opened, if it failed.
    pub fn refused(&self) -> Option<ListenError> {
        self.refused
    }

    fn read(&mut self, id: ConnId, host: &mut HostView<'_>) {
        let Some(flow) = self.open.get(&id).and_then(|index| self.flows.get_mut(*index)) else { return };
        loop {
            let now = host.now;
            match host.read(id) {
                Ok([]) => {
                    flow.ended = Some(now);
                    break;
                }
                Ok(bytes) => {
                    flow.corrupted |= !content::matches(flow.received, bytes);
                    flow.received += bytes.len() as u64;
                }
                Err(ReadError::WouldBlock) => return,
                Err(ReadError::NoConnection | ReadError::Closed(_)) => break,
            }
        }
        self.open.remove(&id);
        host.release(id);
    }
}

impl Application for Sink {
    fn start(&mut self, host: &mut HostView<'_>) {
        self.refused = host.listen(self.local, self.config.clone()).err();
    }

    fn on_event(&mut self, event: Event, host: &mut HostView<'_>) {
        match event {
            Event::Incoming(listener) => {
                while let Some((id, _)) = host.accept(listener) {
                    self.open.insert(id, self.flows.len());
                    self.flows.push(Flow { received: 0, corrupted: false, ended: None });
                    self.read(id, host);
                }
            }
            Event::Readable(id) | Event::Closed(id, _) => self.read(id, host),
            _ => {}
        }
    }

    fn is_done(&self) -> bool {
        true
    }
}

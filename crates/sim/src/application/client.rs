//! A client that makes exchanges one after the other, on one connection or each on a fresh one.

use std::net::SocketAddr;
use std::time::Duration;

use brisk_tcp::config::ConnectConfig;
use brisk_tcp::connection::ConnStats;
use brisk_tcp::error::{CloseReason, ConnectError, ReadError, WriteError};
use brisk_tcp::{ConnId, Event};
use brisk_wire::Instant;

use super::Application;
use super::exchange::Exchange;
use super::view::HostView;
use crate::content;

/// Connections that the exchanges of a client use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Connections {
    /// A fresh one for each exchange; the time of an exchange includes `connect`.
    Fresh,
    /// One for all exchanges; the time of the first exchange includes `connect`.
    Kept,
    /// One for all exchanges, opened in advance. The first exchange begins this long after the handshake.
    Established(Duration),
}

/// The exchanges of a client and their configuration.
#[derive(Clone, Debug)]
pub struct ClientPlan {
    /// The server's address.
    pub server: SocketAddr,
    /// Configuration of the connections.
    pub connect: ConnectConfig,
    /// Connections that the exchanges use.
    pub connections: Connections,
    /// Bytes that the server sends first on every connection; the client waits for them.
    pub greeting: u64,
    /// The exchanges, in order.
    pub exchanges: Vec<Exchange>,
}

/// The outcome of one exchange.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// When `connect` was called, or when the request was written if the connection was open.
    pub started: Instant,
    /// When the first byte of the response was read.
    pub first_byte: Option<Instant>,
    /// When the last byte of the response was read; `None` if it was not read.
    pub finished: Option<Instant>,
    /// Why the exchange failed, if it did.
    pub failed: Option<Failed>,
    /// Statistics of the connection at the end of the exchange.
    pub stats: Option<ConnStats>,
}

/// Why an exchange failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failed {
    /// The connection could not be opened.
    Connect(ConnectError),
    /// The connection ended before the response was complete.
    Closed(CloseReason),
    /// The server closed before the response was complete.
    EndOfStream,
    /// A byte arrived that the server had not sent.
    Corrupted,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ClientPhase {
    /// Pausing before the next exchange, which begins at this time.
    Pausing(Instant),
    /// In the handshake, with [`Connections::Established`].
    Opening,
    /// Waiting for the bytes that the server sends first.
    Greeted { received: u64 },
    /// Sending the request or receiving the response.
    Asking { received: u64 },
    /// Finished.
    Done,
}

/// The client of a [`ClientPlan`].
#[derive(Debug)]
pub struct Client {
    plan: ClientPlan,
    phase: ClientPhase,
    next: usize,
    connection: Option<ConnId>,
    request: Vec<u8>,
    written: usize,
    outcomes: Vec<Outcome>,
}

impl Client {
    /// Returns a client that has not started.
    pub fn new(plan: ClientPlan) -> Client {
        let outcomes = Vec::with_capacity(plan.exchanges.len());
        Client {
            plan,
            phase: ClientPhase::Pausing(Instant::ZERO),
            next: 0,
            connection: None,
            request: Vec::new(),
            written: 0,
            outcomes,
        }
    }

    /// Returns the outcomes of the exchanges that began, in order; the last one may be in progress.
    pub fn outcomes(&self) -> &[Outcome] {
        &self.outcomes
    }

    /// True once every exchange is complete or has failed.
    pub fn is_over(&self) -> bool {
        self.phase == ClientPhase::Done
    }

    /// Returns the connection in use.
    pub fn connection(&self) -> Option<ConnId> {
        self.connection
    }

    /// Proceeds to the next exchange, without delay if it has no pause.
    fn proceed(&mut self, host: &mut HostView<'_>) {
        let Some(exchange) = self.plan.exchanges.get(self.next).copied() else {
            self.phase = ClientPhase::Done;
            self.release(host);
            return;
        };
        if exchange.pause > Duration::ZERO {
            self.phase = ClientPhase::Pausing(host.now + exchange.pause);
        } else {
            self.begin(host);
        }
    }

    fn begin(&mut self, host: &mut HostView<'_>) {
        let Some(exchange) = self.plan.exchanges.get(self.next) else { return };
        exchange.encode(&mut self.request);
        self.written = 0;
        self.outcomes.push(Outcome {
            started: host.now,
            first_byte: None,
            finished: None,
            failed: None,
            stats: None,
        });
        if self.connection.is_some() {
            self.phase = ClientPhase::Asking { received: 0 };
            self.write(host);
            return;
        }
        let early = if self.plan.greeting > 0 { &[] } else { &self.request[..] };
        match host.connect(self.plan.server, early, &self.plan.connect) {
            Ok((id, taken)) => {
                self.connection = Some(id);
                self.written = taken;
                self.phase = match self.plan.greeting {
                    0 => ClientPhase::Asking { received: 0 },
                    _ => ClientPhase::Greeted { received: 0 },
                };
            }
            Err(error) => self.fail(Failed::Connect(error), host),
        }
    }

    fn open(&mut self, host: &mut HostView<'_>) {
        match host.connect(self.plan.server, &[], &self.plan.connect) {
            Ok((id, _)) => {
                self.connection = Some(id);
                self.phase = ClientPhase::Opening;
            }
            Err(error) => self.fail(Failed::Connect(error), host),
        }
    }

    /// Writes the remaining bytes of the request during an exchange.
    fn write(&mut self, host: &mut HostView<'_>) {
        let (Some(id), ClientPhase::Asking { .. }) = (self.connection, self.phase) else { return };
        while self.written < self.request.len() {
            match host.stack.write(id, &self.request[self.written..], host.now) {
                Ok(taken) => self.written += taken,
                // An event of the connection reports its end.
                Err(WriteError::WouldBlock | WriteError::NoConnection) => return,
                Err(WriteError::AfterClose | WriteError::Closed(_)) => return,
            }
        }
    }

    fn read(&mut self, host: &mut HostView<'_>) {
        while let Some(id) = self.connection
            && matches!(self.phase, ClientPhase::Greeted { .. } | ClientPhase::Asking { .. })
        {
            let (len, intact) = match host.read(id) {
                Ok([]) => return self.fail(Failed::EndOfStream, host),
                Ok(bytes) => (bytes.len() as u64, content::matches(self.offset(), bytes)),
                Err(ReadError::WouldBlock | ReadError::NoConnection) => return,
                Err(ReadError::Closed(reason)) => return self.fail(Failed::Closed(reason), host),
            };
            match intact {
                true => self.received(len, host),
                false => self.fail(Failed::Corrupted, host),
            }
        }
    }

    fn offset(&self) -> u64 {
        match self.phase {
            ClientPhase::Greeted { received } | ClientPhase::Asking { received } => received,
            ClientPhase::Pausing(_) | ClientPhase::Opening | ClientPhase::Done => 0,
        }
    }

    fn received(&mut self, len: u64, host: &mut HostView<'_>) {
        match self.phase {
            ClientPhase::Greeted { received } if received + len < self.plan.greeting => {
                self.phase = ClientPhase::Greeted { received: received + len };
            }
            ClientPhase::Greeted { .. } => {
                self.phase = ClientPhase::Asking { received: 0 };
                self.write(host);
            }
            ClientPhase::Asking { received } => {
                let received = received + len;
                self.phase = ClientPhase::Asking { received };
                if let Some(outcome) = self.outcomes.last_mut() {
                    outcome.first_byte.get_or_insert(host.now);
                }
                if self.plan.exchanges.get(self.next).is_some_and(|exchange| received >= exchange.response) {
                    self.complete(host);
                }
            }
            ClientPhase::Pausing(_) | ClientPhase::Opening | ClientPhase::Done => {}
        }
    }

    fn complete(&mut self, host: &mut HostView<'_>) {
        let stats = self.connection.and_then(|id| host.stack.conn_stats(id));
        if let Some(outcome) = self.outcomes.last_mut() {
            outcome.finished = Some(host.now);
            outcome.stats = stats;
            let took = host.now - outcome.started;
            host.note(|| format!("exchange complete after {} us", took.as_micros()));
        }
        self.next += 1;
        if self.plan.connections == Connections::Fresh {
            self.release(host);
        }
        self.proceed(host);
    }

    /// Records the failure of the current exchange and proceeds to the next.
    fn fail(&mut self, why: Failed, host: &mut HostView<'_>) {
        host.note(|| format!("exchange failed: {why:?}"));
        let stats = self.connection.and_then(|id| host.stack.conn_stats(id));
        match self.outcomes.last_mut() {
            Some(outcome) if outcome.finished.is_none() && outcome.failed.is_none() => {
                outcome.failed = Some(why);
                outcome.stats = stats;
            }
            _ => self.outcomes.push(Outcome {
                started: host.now,
                first_byte: None,
                finished: None,
                failed: Some(why),
                stats,
            }),
        }
        self.next += 1;
        self.release(host);
        self.proceed(host);
    }

    fn release(&mut self, host: &mut HostView<'_>) {
        if let Some(id) = self.connection.take() {
            host.release(id);
        }
    }
}

impl Application for Client {
    fn start(&mut self, host: &mut HostView<'_>) {
        match self.plan.connections {
            Connections::Established(_) => self.open(host),
            Connections::Fresh | Connections::Kept => self.proceed(host),
        }
    }

    fn on_event(&mut self, event: Event, host: &mut HostView<'_>) {
        match event {
            Event::Connected(_) => {
                if let (ClientPhase::Opening, Connections::Established(settle)) =
                    (self.phase, self.plan.connections)
                {
                    self.phase = ClientPhase::Pausing(host.now + settle);
                } else {
                    self.write(host);
                }
            }
            Event::Readable(_) => self.read(host),
            Event::Writable(_) => self.write(host),
            Event::Closed(id, reason) if self.connection == Some(id) => {
                // Bytes that arrived before the end can still be read.
                self.read(host);
                if self.connection == Some(id) {
                    match self.phase {
                        ClientPhase::Pausing(_) => self.release(host),
                        ClientPhase::Opening | ClientPhase::Greeted { .. } | ClientPhase::Asking { .. } => {
                            self.fail(Failed::Closed(reason), host);
                        }
                        ClientPhase::Done => self.release(host),
                    }
                }
            }
            _ => {}
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        match self.phase {
            ClientPhase::Pausing(until) => Some(until),
            ClientPhase::Opening
            | ClientPhase::Greeted { .. }
            | ClientPhase::Asking { .. }
            | ClientPhase::Done => None,
        }
    }

    fn on_wake(&mut self, host: &mut HostView<'_>) {
        self.begin(host);
    }

    fn is_done(&self) -> bool {
        self.is_over()
    }
}

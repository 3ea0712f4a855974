//! A server: reads requests, waits for the think time, writes responses. It can also send first.

use std::net::SocketAddr;

use brisk_tcp::config::ListenConfig;
use brisk_tcp::error::{ListenError, ReadError, WriteError};
use brisk_tcp::{ConnId, Event, ListenerId};
use brisk_wire::Instant;

use super::Application;
use super::exchange::{Exchange, HEADER};
use super::view::HostView;
use crate::by_connection::ByConnection;
use crate::content;

/// A server that sends the response that each request asks for (see [`Exchange`]), on any number of
/// connections.
#[derive(Debug)]
pub struct Server {
    local: SocketAddr,
    config: ListenConfig,
    greeting: u64,
    listener: Option<ListenerId>,
    refused: Option<ListenError>,
    connections: ByConnection<Serving>,
    received: u64,
    sent: u64,
    corrupted: bool,
}

impl Server {
    /// Returns a server that listens at `local`.
    pub fn new(local: SocketAddr, config: ListenConfig) -> Server {
        Server {
            local,
            config,
            greeting: 0,
            listener: None,
            refused: None,
            connections: ByConnection::default(),
            received: 0,
            sent: 0,
            corrupted: false,
        }
    }

    /// Makes the server send `bytes` first on every new connection, as SMTP and SSH servers do.
    pub fn sends_first(mut self, bytes: u64) -> Server {
        self.greeting = bytes;
        self
    }

    /// Returns the open connections.
    pub fn connections(&self) -> impl Iterator<Item = ConnId> {
        self.connections.iter().map(|(id, _)| id)
    }

    /// Returns the bytes received on all connections.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Returns the bytes written on all connections.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// True if a byte arrived that no client had sent.
    pub fn corrupted(&self) -> bool {
        self.corrupted
    }

    /// Returns why the listener could not be opened, if it failed.
    pub fn refused(&self) -> Option<ListenError> {
        self.refused
    }

    fn accept(&mut self, listener: ListenerId, host: &mut HostView<'_>) {
        while let Some((id, remote)) = host.accept(listener) {
            host.note(|| format!("accepted {remote}"));
            let phase = match self.greeting {
                0 => ServerPhase::Reading,
                length => ServerPhase::Writing { offset: 0, length },
            };
            self.connections.insert(id, Serving { phase, ..Serving::default() });
            self.advance(id, host);
        }
    }

    /// Makes all progress that is possible now on a connection.
    fn advance(&mut self, id: ConnId, host: &mut HostView<'_>) {
        let Some(serving) = self.connections.get_mut(id) else { return };
        loop {
            let progress = match serving.phase {
                ServerPhase::Reading => serving.read(id, host, &mut self.received, &mut self.corrupted),
                ServerPhase::Thinking { until, response } if until <= host.now => {
                    serving.phase = ServerPhase::Writing { offset: 0, length: response };
                    Progress::On
                }
                ServerPhase::Thinking { .. } => Progress::Waits,
                ServerPhase::Writing { .. } => serving.write(id, host, &mut self.sent),
            };
            match progress {
                Progress::On => {}
                Progress::Waits => return,
                Progress::Over => {
                    self.connections.remove(id);
                    host.release(id);
                    return;
                }
            }
        }
    }
}

impl Application for Server {
    fn start(&mut self, host: &mut HostView<'_>) {
        match host.listen(self.local, self.config.clone()) {
            Ok(listener) => self.listener = Some(listener),
            Err(error) => self.refused = Some(error),
        }
    }

    fn on_event(&mut self, event: Event, host: &mut HostView<'_>) {
        match event {
            Event::Incoming(listener) => self.accept(listener, host),
            Event::Connected(id) | Event::Readable(id) | Event::Writable(id) => self.advance(id, host),
            Event::Closed(id, _) => {
                self.connections.remove(id);
                host.release(id);
            }
            _ => {}
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        self.connections.iter().filter_map(|(_, serving)| serving.wakes()).min()
    }

    fn on_wake(&mut self, host: &mut HostView<'_>) {
        let due = |serving: &Serving| serving.wakes().is_some_and(|at| at <= host.now);
        let ready: Vec<ConnId> =
            self.connections.iter().filter(|(_, serving)| due(serving)).map(|(id, _)| id).collect();
        for id in ready {
            self.advance(id, host);
        }
    }

    fn is_done(&self) -> bool {
        true
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Progress {
    On,
    Waits,
    Over,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum ServerPhase {
    #[default]
    Reading,
    Thinking {
        until: Instant,
        response: u64,
    },
    Writing {
        offset: u64,
        length: u64,
    },
}

#[derive(Debug, Default)]
struct Serving {
    phase: ServerPhase,
    /// Received bytes of the current request's header.
    header: [u8; HEADER],
    arrived: usize,
    /// Bytes received after the end of the current request.
    ahead: Vec<u8>,
}

impl Serving {
    fn wakes(&self) -> Option<Instant> {
        match self.phase {
            ServerPhase::Thinking { until, .. } => Some(until),
            ServerPhase::Reading | ServerPhase::Writing { .. } => None,
        }
    }

    fn read(
        &mut self,
        id: ConnId,
        host: &mut HostView<'_>,
        received: &mut u64,
        corrupted: &mut bool,
    ) -> Progress {
        let now = host.now;
        let ahead = std::mem::take(&mut self.ahead);
        let bytes = if ahead.is_empty() {
            match host.read(id) {
                Ok([]) => return Progress::Over,
                Ok(bytes) => {
                    *received += bytes.len() as u64;
                    bytes
                }
                Err(ReadError::WouldBlock) => return Progress::Waits,
                Err(ReadError::NoConnection | ReadError::Closed(_)) => return Progress::Over,
            }
        } else {
            &ahead
        };
        self.take(bytes, now, corrupted);
        Progress::On
    }

    /// Adds bytes to the current request; when it is complete, the think time begins.
    fn take(&mut self, bytes: &[u8], now: Instant, corrupted: &mut bool) {
        let missing = HEADER.saturating_sub(self.arrived).min(bytes.len());
        let (head, body) = bytes.split_at(missing);
        if missing > 0 {
            self.header[self.arrived..self.arrived + missing].copy_from_slice(head);
            self.arrived += missing;
        }
        if self.arrived < HEADER {
            return;
        }
        let asked = Exchange::decode(&self.header);
        let missing = (asked.request as usize - self.arrived).min(body.len());
        let (body, ahead) = body.split_at(missing);
        *corrupted |= !content::matches(self.arrived as u64, body);
        self.arrived += missing;
        if self.arrived == asked.request as usize {
            self.arrived = 0;
            self.ahead = ahead.to_vec();
            self.phase = ServerPhase::Thinking { until: now + asked.think, response: asked.response };
        }
    }

    fn write(&mut self, id: ConnId, host: &mut HostView<'_>, sent: &mut u64) -> Progress {
        let ServerPhase::Writing { offset, length } = &mut self.phase else { return Progress::On };
        while offset < length {
            match host.stack.write(id, content::from(*offset, *length - *offset), host.now) {
                Ok(taken) => {
                    *offset += taken as u64;
                    *sent += taken as u64;
                }
                Err(WriteError::WouldBlock) => return Progress::Waits,
                Err(WriteError::NoConnection | WriteError::AfterClose | WriteError::Closed(_)) => {
                    return Progress::Over;
                }
            }
        }
        self.phase = ServerPhase::Reading;
        Progress::On
    }
}

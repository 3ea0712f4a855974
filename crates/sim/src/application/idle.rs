//! A connection that is opened and stays idle, as in a connection pool.

use std::net::SocketAddr;

use brisk_tcp::config::ConnectConfig;
use brisk_tcp::error::{CloseReason, ConnectError};
use brisk_tcp::{ConnId, Event};
use brisk_wire::Instant;

use super::Application;
use super::view::HostView;

/// Application that connects, stays idle until the given time, and closes.
#[derive(Debug)]
pub struct Idle {
    remote: SocketAddr,
    config: ConnectConfig,
    until: Instant,
    connection: Option<ConnId>,
    connected: Option<Instant>,
    failed: Option<ConnectError>,
    ended_early: Option<CloseReason>,
    over: bool,
}

impl Idle {
    /// Returns an application that holds a connection to `remote` until `until`.
    pub fn new(remote: SocketAddr, config: ConnectConfig, until: Instant) -> Idle {
        Idle {
            remote,
            config,
            until,
            connection: None,
            connected: None,
            failed: None,
            ended_early: None,
            over: false,
        }
    }

    /// Returns when the handshake was complete.
    pub fn connected(&self) -> Option<Instant> {
        self.connected
    }

    /// Returns why there is no connection, if opening it failed.
    pub fn failed(&self) -> Option<ConnectError> {
        self.failed
    }

    /// Returns why the connection ended early, if it did.
    pub fn ended_early(&self) -> Option<CloseReason> {
        self.ended_early
    }

    fn release(&mut self, host: &mut HostView<'_>) {
        self.over = true;
        if let Some(id) = self.connection.take() {
            host.release(id);
        }
    }
}

impl Application for Idle {
    fn start(&mut self, host: &mut HostView<'_>) {
        match host.connect(self.remote, &[], &self.config) {
            Ok((id, _)) => self.connection = Some(id),
            Err(error) => {
                self.failed = Some(error);
                self.over = true;
            }
        }
    }

    fn on_event(&mut self, event: Event, host: &mut HostView<'_>) {
        match event {
            Event::Connected(_) => self.connected = Some(host.now),
            Event::Closed(_, reason) => {
                self.ended_early = Some(reason);
                self.release(host);
            }
            _ => {}
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        (!self.over).then_some(self.until)
    }

    fn on_wake(&mut self, host: &mut HostView<'_>) {
        self.release(host);
    }

    fn is_done(&self) -> bool {
        self.over
    }
}

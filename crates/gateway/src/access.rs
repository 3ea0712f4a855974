//! The access record: one connection through the gateway, logged when it closes.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use brisk_packet_io::sockopt::TcpInfo;
use brisk_runtime::ConnStats;

use crate::end::End;
use crate::first_bytes::FirstSender;
use crate::hop::connection::Connection;
use crate::hop::opening::plain;
use crate::log::{Level, Log, Value};
use crate::peer::Redundancy;

/// The side of the hop that wrote the record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Near the users.
    Frontend,
    /// Near the origin.
    Backend,
    /// Near the origin, without another gateway. "Hop" then means the connection to the client.
    Edge,
}

impl Role {
    /// Returns the word for logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Role::Frontend => "frontend",
            Role::Backend => "backend",
            Role::Edge => "edge",
        }
    }

    /// Returns the end for a failure of the connection that is not the hop: the client's connection at a
    /// frontend, otherwise the origin's.
    pub(crate) fn outside_failed(self, error: &io::Error) -> End {
        match self {
            Role::Frontend => End::ClientFailed(error.to_string()),
            Role::Backend | Role::Edge => End::OriginFailed(error.to_string()),
        }
    }

    /// Returns the end for a failure of the hop (at an edge: of the connection to the client).
    pub(crate) fn hop_failed(self, reason: String) -> End {
        match self {
            Role::Frontend | Role::Backend => End::HopFailed(reason),
            Role::Edge => End::ClientFailed(reason),
        }
    }
}

/// One connection, from accept to close.
#[derive(Clone, Debug)]
pub struct Access {
    /// The side of this record.
    pub role: Role,
    /// Peer of the accepted connection: the client at a frontend or an edge, the frontend at a backend.
    pub peer: SocketAddr,
    /// The client, if its address is not `peer`. A backend takes it from the frontend's report, a frontend
    /// from a trusted proxy.
    pub client: Option<SocketAddr>,
    /// The user that the client has logged in as.
    pub user: Option<Arc<str>>,
    /// The label of the frontend's key, at a backend whose frontends have their own keys.
    pub frontend: Option<Arc<str>>,
    /// The listener that accepted the client, at a frontend or an edge with several.
    pub listener: Option<Arc<str>>,
    /// The backend that serves the connection, or `direct:HOST:PORT`; `None` at a backend, and before the
    /// choice.
    pub route: Option<String>,
    /// The name of the requested origin; `None` if it is the backend's own, or was requested by address.
    pub origin: Option<String>,
    /// True if the client has closed its sending direction.
    pub client_ended: bool,
    /// Side that sent first; `None` if neither has sent anything.
    pub sent_first: Option<FirstSender>,
    /// Time for which a frontend waited in vain for the client's first bytes. `None` if they arrived in time,
    /// and at a backend.
    pub waited: Option<Duration>,
    /// Payload bytes from the client towards the origin.
    pub bytes_up: u64,
    /// Payload bytes from the origin towards the client.
    pub bytes_down: u64,
    /// Statistics of the hop's connection (at an edge, of the client's) at its end; `None` if there was none.
    pub hop: Option<ConnStats>,
    /// Statistics of the client's connection at its end, at a frontend that serves clients over brisk's TCP.
    pub outside: Option<ConnStats>,
    /// Time of the accept.
    pub began: Instant,
    /// Time from the accept until the first bytes of the answer were forwarded; `None` if there was no
    /// answer.
    pub first_byte: Option<Duration>,
    /// Time from the accept to the close.
    pub duration: Duration,
    /// The TCP that served the client, at an edge.
    pub tcp: Option<ClientTcp>,
    /// Reason why the connection ended.
    pub end: End,
}

/// The TCP that serves a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClientTcp {
    /// Brisk's.
    Brisk,
    /// The kernel's, with the statistics of the connection at its end.
    Kernel(TcpInfo),
}

impl ClientTcp {
    /// Returns the word for logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            ClientTcp::Brisk => "brisk",
            ClientTcp::Kernel(_) => "kernel",
        }
    }
}

/// Returns the number of retransmissions of a connection, including those of its handshake.
pub(crate) fn retransmits(of: &ConnStats) -> u64 {
    of.counters.retransmits + of.counters.handshake_retransmits
}

impl Access {
    /// Returns the statistics of the client's connection, if it used brisk's TCP.
    pub(crate) fn of_client(&self) -> Option<&ConnStats> {
        match self.role {
            Role::Frontend => self.outside.as_ref(),
            Role::Edge => self.hop.as_ref(),
            Role::Backend => None,
        }
    }

    /// Stores the statistics of the hop's connection (at an edge, of the client's) at its end.
    pub(crate) fn end_hop(&mut self, connection: &Connection) {
        self.hop = connection.stats();
        if let Some(ClientTcp::Kernel(stats)) = &mut self.tcp {
            *stats =
                connection.socket().and_then(|socket| TcpInfo::of(socket.as_fd()).ok()).unwrap_or_default();
        }
    }

    /// Returns the record of a connection that has just been accepted.
    pub(crate) fn begin(role: Role, peer: SocketAddr) -> Access {
        Access {
            role,
            peer: plain(peer),
            client: None,
            user: None,
            frontend: None,
            listener: None,
            route: None,
            origin: None,
            client_ended: false,
            sent_first: None,
            waited: None,
            bytes_up: 0,
            bytes_down: 0,
            hop: None,
            outside: None,
            began: Instant::now(),
            first_byte: None,
            duration: Duration::ZERO,
            tcp: None,
            end: End::Closed,
        }
    }

    pub(crate) fn write(&self, log: &Log) {
        if !log.takes(self.level()) {
            return;
        }
        let mut fields = vec![
            ("role", Value::Text(self.role.name().into())),
            ("peer", Value::Text(self.peer.to_string())),
        ];
        if let Some(tcp) = self.tcp {
            fields.push(("tcp", Value::Text(tcp.name().into())));
        }
        if let Some(client) = self.client {
            fields.push(("client", Value::Text(client.to_string())));
        }
        if let Some(user) = &self.user {
            fields.push(("user", Value::Text(user.to_string())));
        }
        if let Some(frontend) = &self.frontend {
            fields.push(("frontend", Value::Text(frontend.to_string())));
        }
        if let Some(listener) = &self.listener {
            fields.push(("listener", Value::Text(listener.to_string())));
        }
        if let Some(route) = &self.route {
            fields.push(("route", Value::Text(route.clone())));
        }
        if let Some(origin) = &self.origin {
            fields.push(("origin", Value::Text(origin.clone())));
        }
        fields.push(("sent_first", Value::Text(self.sent_first.map_or("nobody", FirstSender::name).into())));
        if let Some(waited) = self.waited {
            fields.push(("waited_ms", Value::Millis(millis(waited))));
        }
        fields.extend([
            ("bytes_up", Value::Count(self.bytes_up)),
            ("bytes_down", Value::Count(self.bytes_down)),
        ]);
        if let Some(hop) = &self.hop {
            if let Some(rtt) = hop.srtt {
                fields.push(("rtt_ms", Value::Millis(millis(rtt))));
            }
            fields.push(("wire_bytes_out", Value::Count(hop.counters.wire_bytes_out)));
            fields.push(("wire_bytes_in", Value::Count(hop.counters.wire_bytes_in)));
            fields.push(("retransmits", Value::Count(retransmits(hop))));
            fields.push(("timeouts", Value::Count(hop.counters.timeouts)));
            fields.push(("fast_open", Value::Text(hop.fast_open.name().into())));
            fields.push(("redundancy", Value::Text(Redundancy::of(hop.gentle).name().into())));
        }
        if let Some(ClientTcp::Kernel(stats)) = self.tcp {
            if let Some(rtt) = stats.srtt {
                fields.push(("rtt_ms", Value::Millis(millis(rtt))));
            }
            fields.push(("retransmits", Value::Count(stats.retransmits)));
        }
        if let Some(client) = &self.outside {
            if let Some(rtt) = client.srtt {
                fields.push(("client_rtt_ms", Value::Millis(millis(rtt))));
            }
            fields.push(("client_retransmits", Value::Count(retransmits(client))));
            fields.push(("client_fast_open", Value::Text(client.fast_open.name().into())));
        }
        if let Some(first_byte) = self.first_byte {
            fields.push(("first_byte_ms", Value::Millis(millis(first_byte))));
        }
        fields.push(("duration_ms", Value::Millis(millis(self.duration))));
        fields.push(("reason", Value::Text(self.end.to_string())));
        log.line(self.level(), "access", &fields);
    }

    fn level(&self) -> Level {
        match self.end {
            End::Closed | End::ClientFailed(_) | End::Drained | End::TimedOut(_) => Level::Info,
            End::OriginFailed(_) | End::HopFailed(_) | End::Limited(_) | End::Unauthorized(_) => {
                Level::Warning
            }
            End::OriginUnreachable(_) | End::HopUnreachable(_) => Level::Error,
        }
    }
}

pub(crate) fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::log::LogFormat;

    #[derive(Clone, Default)]
    struct AccessLines(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for AccessLines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_line_has_client_bytes_duration_and_reason() {
        let lines = AccessLines::default();
        let access = Access {
            role: Role::Backend,
            peer: "192.0.2.1:5000".parse().unwrap(),
            client: None,
            user: None,
            frontend: Some("edge Rome".into()),
            listener: None,
            route: None,
            origin: None,
            client_ended: false,
            sent_first: Some(FirstSender::Client),
            waited: Some(Duration::from_millis(5)),
            bytes_up: 100,
            bytes_down: 30_000,
            hop: None,
            outside: None,
            began: Instant::now(),
            first_byte: Some(Duration::from_millis(110)),
            duration: Duration::from_millis(120),
            tcp: None,
            end: End::HopUnreachable("connection refused by the peer".into()),
        };
        access.write(&Log::to(lines.clone(), LogFormat::Text, Level::Info));
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let words = "level=error event=access role=backend peer=192.0.2.1:5000 frontend=\"edge Rome\" sent_first=client waited_ms=5.000 \
                     bytes_up=100 bytes_down=30000 first_byte_ms=110.000 duration_ms=120.000 reason=\"peer gateway unreachable: connection refused by the peer\"\n";
        assert!(text.ends_with(words), "{text}");
    }
}

//! A socket: the settings of its program, its connection, and the values that it records over time.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use crate::settings::Settings;
use brisk_tcp::config::KeepaliveConfig;
use brisk_tcp::{ConnId, ListenConfig, ListenerId, Stack, TcpConfig};
use brisk_wire::Instant;

use crate::errno::Errno;
use crate::error_queue::ErrorQueue;
use crate::usage::Usage;

mod close;
mod open;
mod read;
mod write;

pub(crate) use close::Closing;
pub(crate) use open::MAX_WAITING;
pub use read::{Control, Received};
pub(crate) use write::Sending;

/// Default maximum of SO_SNDBUF and SO_RCVBUF, bytes (Linux since 6.17).
const MAX_BUFFER: usize = 4 << 20;

/// The family of the socket, which determines how the program sees addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Family {
    V4,
    V6,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// No connection and no listener.
    Fresh,
    /// A listener: on one address, or on all addresses of both families.
    Listening(Vec<ListenerId>),
    /// A connection, which may have ended.
    Connection(ConnId),
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) family: Family,
    pub(crate) role: Role,
    /// Configuration of the socket's connection, or of the connections of its listener.
    pub(crate) tcp: TcpConfig,
    /// The system's settings, which `tcp` has unless an option replaced them.
    system: TcpConfig,
    /// The local address, once bound.
    pub(crate) local: Option<SocketAddr>,
    /// True if bind() determined the address, false if the connection did.
    bound: bool,
    pub(crate) nonblocking: bool,
    /// True if the handshake is complete, or if data may already flow.
    pub(crate) connected: bool,
    /// True if connect() returned during the handshake; the next call returns the result of the handshake.
    connecting: bool,
    /// True if the SYN waits for the first write.
    pub(crate) deferred: bool,
    pub(crate) read_shut: bool,
    pub(crate) write_shut: bool,
    pub(crate) over: bool,
    /// The pending error, which is returned once.
    pub(crate) error: Option<Errno>,
    /// Connections that wait for accept(), counted from the stack's events.
    pub(crate) waiting: u32,
    backlog: usize,
    /// The configuration with which the listeners of this socket were opened.
    listens_with: Option<ListenConfig>,
    pub(crate) options: SocketOptions,
    /// Bytes that the program has written and the stack has accepted.
    pub(crate) written: u64,
    /// Number of calls of shutdown() that closed a direction.
    shutdowns: u64,
    /// FD_CLOEXEC: stored without effect.
    pub(crate) closes_on_exec: bool,
    /// True if the socket opened its connection actively.
    active: bool,
    /// Error number of an ICMP error that did not end the connection; SO_ERROR returns it once (Linux:
    /// sk_err_soft).
    pub(crate) soft_error: Option<Errno>,
    pub(crate) usage: Usage,
    pub(crate) errors: ErrorQueue,
    /// Stream offsets up to which data was sent and acknowledged, in 64 bits.
    sent: u64,
    pub(crate) acknowledged: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct SocketOptions {
    pub(crate) keepalive: KeepaliveConfig,
    pub(crate) linger: Option<Duration>,
    /// TCP_FASTOPEN of a listener.
    pub(crate) fast_open_queue: Option<u16>,
    pub(crate) fast_open_connect: bool,
    pub(crate) fast_open_no_cookie: bool,
    pub(crate) fast_open_keys: Option<brisk_tcp::fast_open::KeySource>,
    pub(crate) cork: bool,
    pub(crate) notsent_lowat: Option<u32>,
    pub(crate) inq: bool,
    pub(crate) zerocopy: bool,
    pub(crate) v6_only: bool,
    pub(crate) receive_timeout: Option<Duration>,
    /// The system's receive buffer, bytes.
    pub(crate) system_receive_buffer: usize,
    /// True if the program has set SO_RCVBUF.
    pub(crate) receive_buffer_set: bool,
    /// Maximum of SO_SNDBUF and SO_RCVBUF, bytes (Linux: `wmem_max` and `rmem_max` of net.core).
    pub(crate) max_send_buffer: usize,
    pub(crate) max_receive_buffer: usize,
    /// TCP_DEFER_ACCEPT as a number of retransmissions of the SYN-ACK.
    pub(crate) defer_accept: u8,
    /// True if a write before the end of the handshake is queued (RFC 9293); false if it blocks (Linux).
    pub(crate) queues_in_handshake: bool,
    /// Values that getsockopt() returns as they were set: level, name, bytes.
    pub(crate) kept: Vec<(i32, i32, Vec<u8>)>,
}

impl Socket {
    pub(crate) fn new(family: Family, settings: &Settings) -> Socket {
        let options = SocketOptions {
            keepalive: settings.tcp.keepalive.unwrap_or(settings.keepalive),
            linger: None,
            fast_open_queue: None,
            fast_open_connect: false,
            fast_open_no_cookie: false,
            fast_open_keys: None,
            cork: false,
            notsent_lowat: (settings.notsent_lowat != u32::MAX).then_some(settings.notsent_lowat),
            inq: false,
            zerocopy: false,
            v6_only: false,
            receive_timeout: None,
            system_receive_buffer: settings.tcp.receive_buffer.initial,
            receive_buffer_set: false,
            max_send_buffer: MAX_BUFFER,
            max_receive_buffer: MAX_BUFFER,
            defer_accept: 0,
            queues_in_handshake: !settings.like_linux,
            kept: Vec::new(),
        };
        Socket::fresh(family, settings.tcp.clone(), options)
    }

    fn fresh(family: Family, tcp: TcpConfig, options: SocketOptions) -> Socket {
        Socket {
            family,
            role: Role::Fresh,
            system: tcp.clone(),
            tcp,
            local: None,
            bound: false,
            nonblocking: false,
            connected: false,
            connecting: false,
            deferred: false,
            read_shut: false,
            write_shut: false,
            over: false,
            error: None,
            waiting: 0,
            backlog: 0,
            listens_with: None,
            options,
            written: 0,
            shutdowns: 0,
            closes_on_exec: false,
            active: false,
            soft_error: None,
            usage: Usage::default(),
            errors: ErrorQueue::default(),
            sent: 0,
            acknowledged: 0,
        }
    }

    /// Returns the socket of a connection that this listener accepted; it inherits the options.
    pub(crate) fn accepted(&mut self, id: ConnId) -> Socket {
        self.waiting = self.waiting.saturating_sub(1);
        Socket {
            role: Role::Connection(id),
            connected: true,
            system: self.system.clone(),
            ..Socket::fresh(self.family, self.tcp.clone(), self.options.clone())
        }
    }

    /// Adopts the settings that Linux reads at each use, unless an option of this socket replaced them. The
    /// other settings are fixed by socket().
    pub(crate) fn follow_settings(&mut self, settings: &Settings) {
        macro_rules! follow {
            ($($($part:ident).+),*) => {$(
                if self.tcp.$($part).+ == self.system.$($part).+ {
                    self.tcp.$($part).+ = settings.tcp.$($part).+.clone();
                }
                self.system.$($part).+ = settings.tcp.$($part).+.clone();
            )*};
        }
        follow!(timestamps, sack, window_scaling, ecn, slow_start_after_idle, hop_limit);
        follow!(syn_retries, syn_linear_retries, synack_retries, retries, orphan_retries);
        follow!(loss_detection, mechanisms.reactive, thin_stream, challenge_interval);
        follow!(base_mss, mtu_probing, window.may_shrink, fin_wait_2_timeout);
    }

    pub(crate) fn conn(&self) -> Option<ConnId> {
        match self.role {
            Role::Connection(id) => Some(id),
            Role::Fresh | Role::Listening(_) => None,
        }
    }

    /// Returns the local address as the program sees it.
    pub(crate) fn own_address(&self, stack: &Stack) -> SocketAddr {
        let any = match self.family {
            Family::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            Family::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let connected = self.conn().and_then(|id| stack.local_addr(id));
        self.as_seen(connected.or(self.local).unwrap_or(SocketAddr::new(any, 0)))
    }

    /// Returns and clears the pending error.
    pub(crate) fn take_error(&mut self) -> Result<(), Errno> {
        self.error.take().map_or(Ok(()), Err)
    }

    /// Returns an address as the program sees it: an IPv6 socket sees mapped IPv4 addresses.
    pub(crate) fn as_seen(&self, addr: SocketAddr) -> SocketAddr {
        match (self.family, addr.ip()) {
            (Family::V6, IpAddr::V4(ip)) => SocketAddr::new(IpAddr::V6(ip.to_ipv6_mapped()), addr.port()),
            (Family::V4 | Family::V6, _) => addr,
        }
    }

    /// Updates the socket's record of its connection.
    pub(crate) fn update(&mut self, stack: &Stack, data: bool, now: Instant, time_of_day: Duration) {
        let Some(id) = self.conn() else { return };
        let (Some(stats), Some(info)) = (stack.conn_stats(id), stack.conn_info(id)) else { return };
        self.usage.update(&stats, &info, data, now);
        self.sent = advanced(self.sent, info.nxt_offset);
        self.acknowledged = advanced(self.acknowledged, info.una_offset);
        self.errors.on_progress(self.sent, self.acknowledged, time_of_day);
    }

    /// Returns the number of entries of the error queue and of closed directions so far. If it grows, EPOLLET
    /// reports again every watched event that is ready.
    pub(crate) fn changes(&self) -> u64 {
        self.errors.count() + self.shutdowns + u64::from(self.usage.peer_closed())
    }

    /// True if the socket opened its connection actively.
    pub(crate) fn opens_actively(&self) -> bool {
        self.active
    }

    /// Detaches the connection. The socket becomes fresh, but keeps its options and an unreported error.
    pub(crate) fn become_fresh(&mut self) {
        *self = Socket {
            local: self.local.filter(|_| self.bound),
            bound: self.bound,
            nonblocking: self.nonblocking,
            error: self.error,
            system: self.system.clone(),
            ..Socket::fresh(self.family, self.tcp.clone(), self.options.clone())
        };
    }
}

/// Extends the 32-bit offset `low` to 64 bits; the result is at least `from`. `low` is behind `from` if the
/// data of a SYN was not accepted.
fn advanced(from: u64, low: u32) -> u64 {
    let ahead = low.wrapping_sub(from as u32);
    if ahead < 1 << 31 { from + u64::from(ahead) } else { from }
}

/// Returns an address without the mapping of IPv4 into IPv6.
pub(crate) fn plain(addr: SocketAddr) -> SocketAddr {
    match addr.ip() {
        IpAddr::V6(ip) => ip.to_ipv4_mapped().map_or(addr, |ip| SocketAddr::new(IpAddr::V4(ip), addr.port())),
        IpAddr::V4(_) => addr,
    }
}

/// True for `::`, on which an IPv6 socket also accepts IPv4.
fn is_any_v6(addr: SocketAddr) -> bool {
    addr.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED)
}

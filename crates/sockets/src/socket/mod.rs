//! A socket: the settings that a program makes, the connection behind it, and the notes that are taken while
//! the clock runs.

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

/// Highest SO_SNDBUF and SO_RCVBUF by default, bytes (Linux since 6.17).
const MAX_BUFFER: usize = 4 << 20;

/// The family that the program asked for: it decides how addresses look to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Family {
    V4,
    V6,
}

/// The role of a socket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// Nothing yet.
    Fresh,
    /// It listens: on one address, or on all of both families.
    Listening(Vec<ListenerId>),
    /// It has a connection, or had one.
    Connection(ConnId),
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) family: Family,
    pub(crate) role: Role,
    /// Configuration of its connection, or of the connections of its listener.
    pub(crate) tcp: TcpConfig,
    /// The settings of the system that are in `tcp` where no option replaced them.
    system: TcpConfig,
    /// Where it is bound.
    pub(crate) local: Option<SocketAddr>,
    /// bind() named the address; otherwise the connection did.
    bound: bool,
    pub(crate) nonblocking: bool,
    /// The handshake is complete, or data may flow already.
    pub(crate) connected: bool,
    /// connect() answered that it goes on in the background; the next call tells the end.
    connecting: bool,
    /// The SYN waits for the first write.
    pub(crate) deferred: bool,
    pub(crate) read_shut: bool,
    pub(crate) write_shut: bool,
    /// The connection has ended.
    pub(crate) over: bool,
    /// The error that is told once.
    pub(crate) error: Option<Errno>,
    /// Connections that wait for accept(), as far as events tell.
    pub(crate) waiting: u32,
    backlog: usize,
    /// The settings that its listeners were opened with.
    listens_with: Option<ListenConfig>,
    pub(crate) options: SocketOptions,
    /// Bytes that the program has written, and the stack has taken.
    pub(crate) written: u64,
    /// How often shutdown() closed a direction.
    shutdowns: u64,
    /// FD_CLOEXEC: kept, nothing is executed here.
    pub(crate) closes_on_exec: bool,
    /// It opened its connection itself.
    active: bool,
    /// Error number of an ICMP error on a connection that goes on: SO_ERROR returns it once (Linux:
    /// sk_err_soft).
    pub(crate) soft_error: Option<Errno>,
    /// The SYN that opened its connection, if the listener kept it and nobody has asked for it.
    pub(crate) saved_syn: Option<Vec<u8>>,
    pub(crate) usage: Usage,
    pub(crate) errors: ErrorQueue,
    /// Stream offsets that were sent and acknowledged, beyond 32 bits.
    sent: u64,
    pub(crate) acknowledged: u64,
}

/// Options that are more than a value to give back.
#[derive(Clone, Debug)]
pub(crate) struct SocketOptions {
    pub(crate) keepalive: KeepaliveConfig,
    /// SO_LINGER.
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
    pub(crate) send_timeout: Option<Duration>,
    pub(crate) receive_low_water: usize,
    /// Size of the receive buffer that the system gives, bytes.
    pub(crate) system_receive_buffer: usize,
    /// SO_RCVBUF was set.
    pub(crate) receive_buffer_set: bool,
    /// Most that SO_SNDBUF and SO_RCVBUF may ask for, bytes (Linux: `wmem_max` and `rmem_max` of net.core).
    pub(crate) max_send_buffer: usize,
    pub(crate) max_receive_buffer: usize,
    /// IP_MINTTL: what has come further is not taken; 0: everything is.
    pub(crate) min_ttl: u8,
    /// TCP_DEFER_ACCEPT, in retransmissions of the SYN-ACK.
    pub(crate) defer_accept: u8,
    /// A write before the handshake is complete is queued and does not block: RFC 9293, not Linux.
    pub(crate) queues_in_handshake: bool,
    /// TCP_SAVE_SYN.
    pub(crate) save_syn: bool,
    /// Everything else that was set, as bytes: level, name, value.
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
            send_timeout: None,
            receive_low_water: 1,
            system_receive_buffer: settings.tcp.receive_buffer.initial,
            receive_buffer_set: false,
            max_send_buffer: MAX_BUFFER,
            max_receive_buffer: MAX_BUFFER,
            min_ttl: 0,
            defer_accept: 0,
            queues_in_handshake: !settings.like_linux,
            save_syn: false,
            kept: Vec::new(),
        };
        Socket::fresh(family, settings.tcp.clone(), options)
    }

    /// A socket with which nothing was done.
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
            saved_syn: None,
            usage: Usage::default(),
            errors: ErrorQueue::default(),
            sent: 0,
            acknowledged: 0,
        }
    }

    /// The socket of a connection that this listener accepted: it inherits the options.
    pub(crate) fn accepted(&mut self, id: ConnId) -> Socket {
        self.waiting = self.waiting.saturating_sub(1);
        Socket {
            role: Role::Connection(id),
            connected: true,
            system: self.system.clone(),
            ..Socket::fresh(self.family, self.tcp.clone(), self.options.clone())
        }
    }

    /// Takes over the settings that Linux reads when it uses them, where no option of this socket has
    /// replaced them. The others hold from socket() on.
    pub(crate) fn follow_settings(&mut self, settings: &Settings) {
        macro_rules! follow {
            ($($($part:ident).+),*) => {$(
                if self.tcp.$($part).+ == self.system.$($part).+ {
                    self.tcp.$($part).+ = settings.tcp.$($part).+.clone();
                }
                self.system.$($part).+ = settings.tcp.$($part).+.clone();
            )*};
        }
        follow!(timestamps, sack, dsack, window_scaling, ecn, slow_start_after_idle, hop_limit);
        follow!(syn_retries, syn_linear_retries, synack_retries, retries, orphan_retries);
        follow!(frto, loss_detection, mechanisms.reactive, thin_stream, challenge_interval);
        follow!(base_mss, mtu_probing, window.may_shrink, fin_wait_2_timeout);
    }

    pub(crate) fn conn(&self) -> Option<ConnId> {
        match self.role {
            Role::Connection(id) => Some(id),
            Role::Fresh | Role::Listening(_) => None,
        }
    }

    /// Its own address, as its program sees it.
    pub(crate) fn own_address(&self, stack: &Stack) -> SocketAddr {
        let any = match self.family {
            Family::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            Family::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let connected = self.conn().and_then(|id| stack.local_addr(id));
        self.as_seen(connected.or(self.local).unwrap_or(SocketAddr::new(any, 0)))
    }

    /// The error that is told once.
    pub(crate) fn take_error(&mut self) -> Result<(), Errno> {
        self.error.take().map_or(Ok(()), Err)
    }

    /// An address as this socket's program sees it: an IPv6 socket sees IPv4 mapped.
    pub(crate) fn as_seen(&self, addr: SocketAddr) -> SocketAddr {
        match (self.family, addr.ip()) {
            (Family::V6, IpAddr::V4(ip)) => SocketAddr::new(IpAddr::V6(ip.to_ipv6_mapped()), addr.port()),
            (Family::V4 | Family::V6, _) => addr,
        }
    }

    /// Brings what is noted of the connection up to date.
    pub(crate) fn update(&mut self, stack: &Stack, data: bool, now: Instant, time_of_day: Duration) {
        let Some(id) = self.conn() else { return };
        let (Some(stats), Some(info)) = (stack.conn_stats(id), stack.conn_info(id)) else { return };
        self.usage.on_look(&stats, &info, data, now);
        self.sent = advanced(self.sent, info.nxt_offset);
        self.acknowledged = advanced(self.acknowledged, info.una_offset);
        self.errors.on_progress(self.sent, self.acknowledged, time_of_day);
    }

    /// IP_RECVERR, or its like in IPv6, is set.
    pub(crate) fn asks_for_errors(&self) -> bool {
        let asks = [(libc::SOL_IP, libc::IP_RECVERR), (libc::SOL_IPV6, libc::IPV6_RECVERR)];
        let set = |value: &[u8]| value.iter().any(|byte| *byte != 0);
        self.options.kept.iter().any(|(level, name, value)| asks.contains(&(*level, *name)) && set(value))
    }

    /// Counts the changes that every watcher of the socket is notified of.
    pub(crate) fn changes(&self) -> u64 {
        self.errors.count() + self.shutdowns + u64::from(self.usage.peer_closed())
    }

    /// True if it opened its connection itself.
    pub(crate) fn opens_actively(&self) -> bool {
        self.active
    }

    /// The socket has no connection any more and may be used again: what was set stays, an error that was not
    /// told waits.
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

/// The stream offset whose low half is `low`, at or after `from`; one behind it (the data of a SYN that was
/// not taken) changes nothing.
fn advanced(from: u64, low: u32) -> u64 {
    let ahead = low.wrapping_sub(from as u32);
    if ahead < 1 << 31 { from + u64::from(ahead) } else { from }
}

/// The address without the mapping that IPv6 sockets put on IPv4.
pub(crate) fn plain(addr: SocketAddr) -> SocketAddr {
    match addr.ip() {
        IpAddr::V6(ip) => ip.to_ipv4_mapped().map_or(addr, |ip| SocketAddr::new(IpAddr::V4(ip), addr.port())),
        IpAddr::V4(_) => addr,
    }
}

/// True for `::`, on which an IPv6 socket takes IPv4 too.
fn is_any_v6(addr: SocketAddr) -> bool {
    addr.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED)
}

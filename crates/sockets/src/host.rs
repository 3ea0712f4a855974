//! The host: the stack, its clock, the packets that left it, and the descriptors.

mod arrivals;

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::settings::Settings;
use brisk_tcp::connection::ConnStats;
use brisk_tcp::error::CloseReason;
use brisk_tcp::stack::{Rx, StackStats};
use brisk_tcp::{ConnId, Event, ListenerId, Stack};
use brisk_wire::{ChecksumFill, Instant, Packet, parse, split};

use crate::epoll::Epoll;
use crate::errno::{Answer, Errno, of_close};
use crate::flags::SoFlags;
use crate::socket::{Family, Role, Socket};
use crate::sysctl;
use crate::tcp_info;

/// First descriptor of this library; kernels use smaller numbers.
pub const FIRST_FD: i32 = 1 << 24;
/// Initial time of the clock.
pub(crate) const START: Instant = Instant::from_millis(1_000_000);
/// Time of day at clock time zero, seconds since 1970.
const EPOCH_SECS: u64 = 1_700_000_000;
/// Ephemeral ports (Linux: `ip_local_port_range`).
const PORTS: RangeInclusive<u16> = 32_768..=60_999;
/// A full-sized segment over IPv4, and the smallest result of [`window_of`], bytes.
const SEGMENT: usize = 1460;
const MIN_WINDOW: usize = 2 * SEGMENT;
/// Number of packets at one instant above which the stack is considered to send without end.
const MAX_AT_ONCE: u32 = 100_000;

/// The object behind a descriptor.
#[derive(Debug)]
pub(crate) enum Descriptor {
    Socket(Box<Socket>),
    Epoll(Epoll),
}

/// Origin of the settings of a host.
#[derive(Debug)]
enum Source {
    /// The network namespace and the flags; read again at each [`Host::refresh`].
    Namespace(SoFlags),
    /// The caller of [`Host::given`].
    Given,
}

/// The host: the stack, its clock, the packets that left it, and the descriptors.
#[derive(Debug)]
pub struct Host {
    source: Source,
    /// Start of the search for a free port.
    next_port: u16,
    /// The settings of the namespace and `--so_flags` at the last [`Host::refresh`].
    pub(crate) settings: Settings,
    /// SO_RCVBUF of a socket whose program has not set it. The window is a part of it.
    system_receive_buffer: usize,
    pub(crate) stack: Option<Stack>,
    pub(crate) now: Instant,
    /// Sent packets, each with its time.
    out: VecDeque<(Instant, Vec<u8>)>,
    table: BTreeMap<i32, Descriptor>,
    /// Connections of descriptors that were closed and are not yet reused.
    closed: BTreeMap<i32, ConnId>,
    /// Error number of the last ICMP error. The stack reports only that a host is unreachable; Linux reports
    /// the reason.
    unreachable: Option<Errno>,
    /// Error number of the packet that is being processed, if it is an ICMP error.
    refused: Option<Errno>,
    /// True if the packet that is being processed has payload.
    data_arrives: bool,
    /// True if the stack sends without end at one instant.
    runs_away: bool,
}

/// Construction, and time.
impl Host {
    pub(crate) fn new(flags: SoFlags) -> Host {
        Host::with(Source::Namespace(flags), Settings::default())
    }

    /// Returns a host with fixed `settings`, which include its addresses.
    pub(crate) fn given(settings: Settings) -> Host {
        Host::with(Source::Given, settings)
    }

    fn with(source: Source, settings: Settings) -> Host {
        Host {
            source,
            next_port: *PORTS.start(),
            settings,
            system_receive_buffer: 0,
            stack: None,
            now: START,
            out: VecDeque::new(),
            table: BTreeMap::new(),
            closed: BTreeMap::new(),
            unreachable: None,
            refused: None,
            data_arrives: false,
            runs_away: false,
        }
    }

    /// Returns the time of day, microseconds since 1970.
    pub(crate) fn time_of_day(&self, at: Instant) -> u64 {
        EPOCH_SECS * 1_000_000 + at.as_micros()
    }

    /// Returns the time of the stack's next timer.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.stack.as_ref().and_then(Stack::next_timeout)
    }

    /// Moves the clock to `to` and runs the timers that are due.
    pub(crate) fn reach(&mut self, to: Instant) {
        self.now = self.now.max(to);
        let now = self.now;
        if let Some(stack) = &mut self.stack
            && stack.next_timeout().is_some_and(|due| due <= now)
        {
            stack.on_timeout(now);
            self.drain();
        }
    }

    /// Reads the settings of the network namespace again. The first call creates the stack.
    pub(crate) fn refresh(&mut self) -> Answer<()> {
        match &self.source {
            Source::Given => self.system_receive_buffer = self.settings.tcp.receive_buffer.initial,
            Source::Namespace(flags) => {
                (self.settings, self.system_receive_buffer) = of_namespace(flags)?;
            }
        }
        match &mut self.stack {
            None => self.stack = Some(self.make_stack()?),
            Some(stack) => {
                if let Some(keys) = self.settings.stack.fast_open.keys.clone() {
                    stack.set_fast_open_keys(keys);
                }
            }
        }
        Ok(())
    }

    /// Changes a Linux setting.
    ///
    /// # Errors
    /// The error in the value.
    pub fn sysctl(&mut self, name: &str, value: &str) -> Result<(), String> {
        self.settings.sysctl(name, value)
    }

    fn make_stack(&self) -> Answer<Stack> {
        let mut config = self.settings.stack.clone();
        if let Source::Namespace(flags) = &self.source {
            // As on a device that captures everything, every address is local. Connections are opened from
            // the first address in the list.
            config.any_address = true;
            config.addresses = flags.local_ip.into_iter().collect();
            config.addresses.push(IpAddr::from([192, 168, 0, 1]));
            config.addresses.push(IpAddr::from([0xfd3d, 0xa0b, 0x17d6, 0, 0, 0, 0, 1]));
        }
        Stack::new(config, self.settings.seed).map_err(|_| Errno(libc::EINVAL))
    }

    /// Returns the stack; `EBADF` before the first socket.
    pub(crate) fn stack(&mut self) -> Answer<&mut Stack> {
        self.stack.as_mut().ok_or(Errno(libc::EBADF))
    }
}

/// Packets.
impl Host {
    /// Processes an arriving packet.
    pub fn arrive(&mut self, packet: &[u8], rx: Rx) -> Answer<()> {
        if arrivals::is_syn(packet) {
            self.renew_listeners()?;
        }
        let mark = self.mark(packet);
        let reported = arrivals::icmp_errno(packet).map(Errno);
        self.unreachable = reported.or(self.unreachable);
        self.refused = reported;
        self.data_arrives = payload_len(packet) > 0;
        let now = self.now;
        let stack = self.stack()?;
        let believed = stack.stats().icmp_believed;
        stack.on_packet(packet, rx, now);
        if let Some(errno) = reported.filter(|_| stack.stats().icmp_believed > believed) {
            self.on_soft_error(packet, errno);
        }
        if let Some(mark) = mark {
            self.count_mark(mark);
        }
        self.drain();
        (self.refused, self.data_arrives) = (None, false);
        Ok(())
    }

    /// Gives listeners the current settings of the system, which Linux uses for each SYN.
    fn renew_listeners(&mut self) -> Answer<()> {
        // The first socket creates the stack.
        if self.table.is_empty() {
            return Ok(());
        }
        self.refresh()?;
        let (now, settings) = (self.now, &self.settings);
        let Some(stack) = &mut self.stack else { return Ok(()) };
        for descriptor in self.table.values_mut() {
            if let Descriptor::Socket(socket) = descriptor {
                socket.renew_listeners(stack, settings, now);
            }
        }
        Ok(())
    }

    /// Returns the next sent packet, with its time.
    pub(crate) fn next_packet(&mut self) -> Option<(Instant, Vec<u8>)> {
        self.out.pop_front()
    }

    pub(crate) fn has_packet(&self) -> bool {
        !self.out.is_empty()
    }

    /// Takes all packets and events from the stack and updates the sockets.
    pub(crate) fn drain(&mut self) {
        let mut packet = Vec::new();
        for _ in 0..MAX_AT_ONCE {
            let Some(stack) = &mut self.stack else { return };
            match stack.poll_transmit(self.now, &mut packet) {
                Some(transmit) => {
                    let at = self.now;
                    let payload = payload_len(&packet);
                    if let Some(socket) = transmit.conn.and_then(|id| self.of_conn(id)) {
                        socket.usage.on_sent(payload);
                    }
                    match transmit.segment_size {
                        None if !transmit.partial_checksum => self.out.push_back((at, packet.clone())),
                        // This host cuts super-segments itself.
                        size => split(&packet, size.unwrap_or(u16::MAX), ChecksumFill::Full, &mut |piece| {
                            self.out.push_back((at, piece.to_vec()));
                        }),
                    }
                }
                None => {
                    self.take_events();
                    return self.update_sockets();
                }
            }
        }
        self.runs_away = true;
    }

    /// True if the stack sent without end at one instant (a bug of the stack).
    pub(crate) fn sends_without_end(&self) -> bool {
        self.runs_away
    }

    /// True if the stack sent without end at one instant, or if a timer is still due after the timers were
    /// served (a bug of the stack).
    pub(crate) fn runs_away(&self) -> bool {
        self.runs_away || self.next_timeout().is_some_and(|due| due <= self.now)
    }

    /// Returns statistics and the `struct tcp_info` of a socket's connection. It works after the program has
    /// closed the socket, as long as the stack has the connection.
    pub fn connection(&mut self, fd: i32) -> Option<(ConnStats, Vec<u8>)> {
        let now = self.now;
        let stack = self.stack.as_ref()?;
        let mut orphan = Socket::new(Family::V4, &self.settings);
        let socket = match self.table.get_mut(&fd) {
            Some(Descriptor::Socket(socket)) => socket,
            Some(Descriptor::Epoll(_)) => return None,
            None => {
                orphan.role = Role::Connection(*self.closed.get(&fd)?);
                &mut orphan
            }
        };
        let stats = stack.conn_stats(socket.conn()?)?;
        Some((stats, tcp_info::bytes(socket, stack, now)))
    }

    /// Returns the counters of the stack; `None` before the first socket.
    pub fn stack_stats(&self) -> Option<&StackStats> {
        self.stack.as_ref().map(Stack::stats)
    }

    fn take_events(&mut self) {
        while let Some(event) = self.stack.as_mut().and_then(Stack::poll_event) {
            let (unreachable, refused) = (self.unreachable, self.refused);
            match event {
                Event::Connected(id) => self.on_conn(id, |socket| socket.connected = true),
                Event::Closed(id, reason) => self.on_conn(id, |socket| {
                    let closing = socket.usage.waits_for_close();
                    let errno = match reason {
                        // Linux: every reset that ends an active open.
                        CloseReason::Reset if !socket.connected => Some(Errno(libc::ECONNREFUSED)),
                        _ => of_close(reason, closing),
                    };
                    let reported = |known: Errno| match known.0 {
                        libc::EHOSTUNREACH => unreachable.unwrap_or(known),
                        libc::ECONNREFUSED => refused.unwrap_or(known),
                        _ => known,
                    };
                    socket.over = true;
                    socket.errors.on_end();
                    socket.error = errno.map(reported);
                }),
                Event::Incoming(listener) => {
                    if let Some(socket) = self.of_listener(listener) {
                        socket.waiting += 1;
                    }
                }
                _ => {}
            }
        }
    }

    /// Updates the sockets' records of their connections.
    fn update_sockets(&mut self) {
        let now = self.now;
        let stamp = Duration::from_micros(self.time_of_day(now));
        let Some(stack) = &self.stack else { return };
        for descriptor in self.table.values_mut() {
            if let Descriptor::Socket(socket) = descriptor {
                socket.update(stack, self.data_arrives, now, stamp);
            }
        }
    }
}

/// Descriptors.
impl Host {
    /// Assigns the lowest free descriptor.
    pub(crate) fn add(&mut self, descriptor: Descriptor) -> i32 {
        let mut fd = FIRST_FD;
        while self.table.contains_key(&fd) {
            fd += 1;
        }
        self.closed.remove(&fd);
        self.table.insert(fd, descriptor);
        fd
    }

    pub(crate) fn remove(&mut self, fd: i32) -> Answer<Descriptor> {
        let gone = self.table.remove(&fd).ok_or(Errno(libc::EBADF))?;
        for other in self.table.values_mut() {
            if let Descriptor::Epoll(epoll) = other {
                epoll.forget(fd);
            }
        }
        if let Descriptor::Socket(socket) = &gone
            && let Some(id) = socket.conn()
        {
            self.closed.insert(fd, id);
        }
        Ok(gone)
    }

    /// True if the descriptor is open and belongs to this host.
    pub(crate) fn knows(&self, fd: i32) -> bool {
        self.table.contains_key(&fd)
    }

    pub(crate) fn socket(&mut self, fd: i32) -> Answer<&mut Socket> {
        match self.table.get_mut(&fd) {
            Some(Descriptor::Socket(socket)) => Ok(socket),
            Some(Descriptor::Epoll(_)) => Err(Errno(libc::ENOTSOCK)),
            None => Err(Errno(libc::EBADF)),
        }
    }

    pub(crate) fn parts(&mut self, fd: i32) -> Answer<(&mut Socket, &mut Stack, &Settings)> {
        let stack = self.stack.as_mut().ok_or(Errno(libc::EBADF))?;
        match self.table.get_mut(&fd) {
            Some(Descriptor::Socket(socket)) => Ok((socket, stack, &self.settings)),
            Some(Descriptor::Epoll(_)) => Err(Errno(libc::ENOTSOCK)),
            None => Err(Errno(libc::EBADF)),
        }
    }

    /// Returns a socket, the stack and the settings after the socket has taken over the current settings of
    /// the system.
    pub(crate) fn parts_now(&mut self, fd: i32) -> Answer<(&mut Socket, &mut Stack, &Settings)> {
        self.socket(fd)?;
        self.refresh()?;
        let (socket, stack, settings) = self.parts(fd)?;
        socket.follow_settings(settings);
        Ok((socket, stack, settings))
    }

    pub(crate) fn epoll(&mut self, fd: i32) -> Answer<&mut Epoll> {
        match self.table.get_mut(&fd) {
            Some(Descriptor::Epoll(epoll)) => Ok(epoll),
            Some(Descriptor::Socket(_)) => Err(Errno(libc::EINVAL)),
            None => Err(Errno(libc::EBADF)),
        }
    }

    /// Binds a socket. Port 0 selects a port that no other socket has.
    pub(crate) fn bind(&mut self, fd: i32, addr: SocketAddr) -> Answer<()> {
        let port = if addr.port() == 0 { self.free_port()? } else { addr.port() };
        self.socket(fd)?.bind(SocketAddr::new(addr.ip(), port))
    }

    fn free_port(&mut self) -> Answer<u16> {
        let taken: Vec<u16> = self.sockets().filter_map(|socket| Some(socket.local?.port())).collect();
        let from = self.next_port;
        let free = (from..=*PORTS.end()).chain(*PORTS.start()..from).find(|port| !taken.contains(port));
        let free = free.ok_or(Errno(libc::EADDRINUSE))?;
        self.next_port = if free == *PORTS.end() { *PORTS.start() } else { free + 1 };
        Ok(free)
    }

    pub(crate) fn add_accepted(&mut self, of: i32, id: ConnId) -> Answer<i32> {
        let accepted = self.socket(of)?.accepted(id);
        Ok(self.add(Descriptor::Socket(Box::new(accepted))))
    }

    pub(crate) fn of_conn(&mut self, id: ConnId) -> Option<&mut Socket> {
        self.sockets().find(|socket| socket.role == Role::Connection(id))
    }

    fn of_listener(&mut self, listener: ListenerId) -> Option<&mut Socket> {
        self.sockets().find(|socket| matches!(&socket.role, Role::Listening(ids) if ids.contains(&listener)))
    }

    pub(crate) fn sockets(&mut self) -> impl Iterator<Item = &mut Socket> {
        self.table.values_mut().filter_map(|descriptor| match descriptor {
            Descriptor::Socket(socket) => Some(&mut **socket),
            Descriptor::Epoll(_) => None,
        })
    }

    fn on_conn(&mut self, id: ConnId, change: impl FnOnce(&mut Socket)) {
        if let Some(socket) = self.of_conn(id) {
            change(socket);
        }
    }

    pub(crate) fn new_socket(&mut self, family: Family, nonblocking: bool) -> Answer<i32> {
        self.refresh()?;
        let mut socket = Socket::new(family, &self.settings);
        socket.nonblocking = nonblocking;
        socket.options.system_receive_buffer = self.system_receive_buffer;
        if let Source::Namespace(SoFlags { sysctl_dir: Some(dir), .. }) = &self.source {
            let limit = |name| sysctl::of_core(dir, name);
            let options = &mut socket.options;
            options.max_send_buffer = limit("wmem_max").unwrap_or(options.max_send_buffer);
            options.max_receive_buffer = limit("rmem_max").unwrap_or(options.max_receive_buffer);
        }
        Ok(self.add(Descriptor::Socket(Box::new(socket))))
    }
}

/// Returns the settings of the network namespace with the flags, and the system's receive buffer.
fn of_namespace(flags: &SoFlags) -> Answer<(Settings, usize)> {
    let mut settings = Settings { like_linux: true, ..Settings::default() };
    settings.tcp.push_bursts = true;
    if let Some(dir) = &flags.sysctl_dir {
        sysctl::read(dir, &mut settings);
    }
    let of_system = settings.tcp.receive_buffer.initial;
    if flags.sysctl_dir.is_some() {
        settings.tcp.receive_buffer.initial = window_of(of_system);
    }
    let before = settings.tcp.receive_buffer;
    flags.apply(&mut settings).map_err(|_| Errno(libc::EINVAL))?;
    let now = settings.tcp.receive_buffer;
    let of_system = if now == before { of_system } else { now.initial };
    Ok((settings, of_system))
}

/// Returns the window that Linux derives from a receive buffer before it knows how much memory segments take:
/// half of the buffer less a segment.
fn window_of(buffer: usize) -> usize {
    (buffer / 2).saturating_sub(SEGMENT).max(MIN_WINDOW)
}

fn payload_len(packet: &[u8]) -> usize {
    match parse(packet, brisk_wire::ChecksumCheck::Trust) {
        Ok(Packet::Tcp(segment)) => segment.payload.len(),
        Ok(_) | Err(_) => 0,
    }
}

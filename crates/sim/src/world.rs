//! The path, the hosts at its two sides, and the event loop.
//!
//! The path is a chain of links: side A with the clients, then link 0, 1, …, then side B. A packet from a
//! host crosses the whole chain and reaches the host of the other side that has its destination address. The
//! clock jumps from event to event.

use std::any::Any;
use std::io::{self, Write};
use std::net::IpAddr;

use brisk_link::seeds::Name;
use brisk_link::{Counters, Direction, Link, LinkDirection, LinkSpec};
use brisk_tcp::error::ConfigError;
use brisk_tcp::stack::Rx;
use brisk_tcp::{Stack, StackConfig};
use brisk_wire::Instant;

use crate::application::Application;
pub use crate::arena::Arena;
use crate::arena::{Address, Lists};
use crate::host::{AppId, Host, HostId};
use crate::pcapng::{Heading, InterfaceId, PcapngWriter};
use crate::schedule::{Schedule, Source};
use crate::seeds::derive;
pub use crate::side::Side;
use crate::trace::Trace;

/// A place on the path where packets can be captured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Point {
    /// At the hosts of a side.
    Hosts(Side),
    /// After the link of this number, seen from side A.
    Behind(usize),
}

const DIRECTIONS: usize = 2;

#[derive(Clone, Copy, Debug)]
enum WakeTarget {
    Host(usize),
    Direction(usize, Direction),
}

/// A simulation.
#[derive(Debug)]
pub struct World {
    seed: u64,
    hosts: Vec<Host>,
    /// Addresses, sorted, each with the index of its host.
    by_address: Vec<(Address, usize)>,
    path: Path,
    arena: Arena,
    unrouted: u64,
}

/// The network between the hosts, and the times of events.
#[derive(Debug)]
struct Path {
    now: Instant,
    links: Vec<Link<Vec<u8>>>,
    /// The sources are, link by link, the direction A to B and then B to A; the hosts follow.
    schedule: Schedule,
    captures: Vec<Capture>,
    trace: Option<Trace>,
}

impl World {
    /// Returns a world with one link; all random numbers derive from `seed`.
    pub fn new(link: &LinkSpec, seed: u64) -> World {
        World::chain(std::slice::from_ref(link), seed)
    }

    /// Returns a world whose path is a chain of links, from side A to side B. An empty chain is one
    /// transparent link.
    pub fn chain(links: &[LinkSpec], seed: u64) -> World {
        World::in_arena(links, seed, Arena::default())
    }

    /// Returns a world like [`World::chain`] in the memory of an earlier world.
    pub fn in_arena(links: &[LinkSpec], seed: u64, mut arena: Arena) -> World {
        let transparent = [LinkSpec::default()];
        let links = if links.is_empty() { &transparent } else { links };
        let seeded = |(index, spec)| (spec, derive(seed, Name::new("link ").numbered(index as u64)));
        let Lists { hosts, by_address, links, mut schedule } =
            arena.prepare(links.iter().enumerate().map(seeded));
        (0..links.len() * DIRECTIONS).for_each(|_| _ = schedule.add());
        let path = Path { now: Instant::ZERO, links, schedule, captures: Vec::new(), trace: None };
        World { seed, hosts, by_address, path, arena, unrouted: 0 }
    }

    /// Writes events as JSON lines (see [`crate::trace`]) from now on. Hosts that are added later report
    /// events of their connections too.
    pub fn trace_to(&mut self, to: Box<dyn Write>) {
        self.path.trace = Some(Trace::new(to));
        for host in &mut self.hosts {
            host.notes = Some(Vec::new());
        }
    }

    /// Captures packets at the given points from now on. Each point has an interface, named `client`,
    /// `server` or `behind link N`. Between links, packets from A to B are outbound.
    ///
    /// # Errors
    /// Errors of the writer at the head of the capture.
    pub fn tap(&mut self, points: &[Point], to: Box<dyn Write>) -> io::Result<()> {
        let mut writer = PcapngWriter::new(to)?;
        let mut interfaces = Vec::new();
        for point in points {
            let interface = match point {
                Point::Hosts(Side::A) => writer.interface("client")?,
                Point::Hosts(Side::B) => writer.interface("server")?,
                Point::Behind(link) => writer.interface(&format!("behind link {link}"))?,
            };
            interfaces.push((*point, interface));
        }
        self.path.captures.push(Capture { writer, interfaces, failed: None });
        Ok(())
    }

    /// Ends traces and captures.
    ///
    /// # Errors
    /// The first error of their writers.
    pub fn finish_records(&mut self) -> io::Result<()> {
        for mut capture in self.path.captures.drain(..) {
            capture.failed.map_or(Ok(()), Err)?;
            capture.writer.flush()?;
        }
        self.path.trace.take().map_or(Ok(()), Trace::finish)
    }

    /// Adds a host with these addresses at one side. The random numbers of its stack derive from the world's
    /// seed and the host's name.
    ///
    /// # Errors
    /// The first value of `config` that is out of range.
    pub fn add_host(
        &mut self,
        side: Side,
        name: &str,
        addresses: &[IpAddr],
        mut config: StackConfig,
    ) -> Result<HostId, ConfigError> {
        config.addresses = addresses.to_vec();
        config.observe |= self.path.trace.is_some();
        let seed = derive(self.seed, Name::new("stack ").with(name));
        let mut host = self.arena.host(name, side, config, seed)?;
        host.notes = self.path.trace.is_some().then(Vec::new);
        let index = self.hosts.len();
        for address in addresses {
            let address = number_of(*address);
            match self.place_of(address) {
                Ok(place) => self.by_address[place].1 = index,
                Err(place) => self.by_address.insert(place, (address, index)),
            }
        }
        self.hosts.push(host);
        self.path.schedule.add();
        Ok(HostId(index))
    }

    /// Starts an application on a host at `starts`.
    #[inline]
    pub fn add_app(&mut self, host: HostId, starts: Instant, app: impl Application) -> AppId {
        let index = self.hosts[host.0].add_app(starts, Box::new(app));
        self.path.rearm_host(host.0, &self.hosts[host.0]);
        AppId { host: host.0, index }
    }

    /// Returns the virtual time.
    pub fn now(&self) -> Instant {
        self.path.now
    }

    /// Returns an application, if it is of this type.
    pub fn app<T: Application>(&self, id: AppId) -> Option<&T> {
        let app: &dyn Any = self.hosts.get(id.host)?.app(id.index)?;
        app.downcast_ref()
    }

    /// Returns the stack of a host.
    pub fn stack(&self, host: HostId) -> &Stack {
        &self.hosts[host.0].stack
    }

    /// Returns the stack of a host, to prepare it before the run.
    pub(crate) fn stack_mut(&mut self, host: HostId) -> &mut Stack {
        &mut self.hosts[host.0].stack
    }

    /// Returns the counters of one direction of a link; `None` beyond the end of the chain.
    pub fn counters(&self, link: usize, direction: Direction) -> Option<Counters> {
        let link = self.path.links.get(link)?;
        Some(match direction {
            Direction::Up => link.up.counters(),
            Direction::Down => link.down.counters(),
        })
    }

    /// Returns the number of packets dropped on all links, in both directions, for any reason.
    pub fn dropped(&self) -> u64 {
        self.path.links.iter().map(|link| link.up.counters().dropped() + link.down.counters().dropped()).sum()
    }

    /// Returns the IP bytes that the hosts of one side have sent, including lost packets.
    pub fn bytes_sent_by(&self, side: Side) -> u64 {
        let counters = match side {
            Side::A => self.path.links.first().map(|link| link.up.counters()),
            Side::B => self.path.links.last().map(|link| link.down.counters()),
        };
        counters.map_or(0, |counters| counters.offered_bytes)
    }

    /// Returns the number of packets whose destination no host has.
    pub fn unrouted(&self) -> u64 {
        self.unrouted
    }

    /// True once every application has started and is done.
    pub fn apps_done(&self) -> bool {
        self.hosts.iter().all(Host::apps_done)
    }

    /// Stops a host until `until`, like a busy processor or a suspended machine: its packets and timers wait.
    pub fn pause_host(&mut self, host: HostId, until: Instant) {
        let HostId(index) = host;
        self.hosts[index].paused_until = until;
        self.path.rearm_host(index, &self.hosts[index]);
    }

    /// Advances to the next event and handles it. Returns `None`, without moving the clock, if there is none
    /// before or at `limit`.
    pub fn step(&mut self, limit: Instant) -> Option<Instant> {
        let (at, source) = self.path.schedule.pop(limit)?;
        self.path.now = at;
        match self.path.woken(source) {
            WakeTarget::Host(index) => {
                let host = &mut self.hosts[index];
                for packet in std::mem::take(&mut host.waiting) {
                    host.stack.on_packet(&packet, Rx::default(), at);
                    self.arena.recycle(packet);
                }
                host.wake(at, &mut self.arena.scratch);
                self.post_process(index);
            }
            WakeTarget::Direction(link, direction) => self.depart(link, direction),
        }
        Some(at)
    }

    /// Runs until `end`; the clock then shows `end`.
    pub fn run_until(&mut self, end: Instant) {
        while self.step(end).is_some() {}
        self.path.now = end;
    }

    /// Runs until `done` returns true, no event is left, or `limit` is reached. Returns true if `done` did.
    pub fn run_while(&mut self, limit: Instant, mut done: impl FnMut(&World) -> bool) -> bool {
        while !done(self) {
            if self.step(limit).is_none() {
                return false;
            }
        }
        true
    }

    /// Ends the world and keeps its memory for the next one.
    pub fn into_arena(self) -> Arena {
        let World { hosts, by_address, path: Path { links, schedule, .. }, mut arena, .. } = self;
        arena.keep(Lists { hosts, by_address, links, schedule });
        arena
    }

    /// Forwards packets that are due at the end of one direction of a link.
    fn depart(&mut self, link: usize, direction: Direction) {
        let (next, point, heading) = match direction {
            Direction::Up => (link + 1, Point::Behind(link), Heading::Out),
            Direction::Down => (link.wrapping_sub(1), Point::Behind(link.wrapping_sub(1)), Heading::In),
        };
        while let Some((_, packet)) = direction_of(&mut self.path.links[link], direction).poll(self.path.now)
        {
            if next < self.path.links.len() {
                self.path.capture(point, heading, &packet);
                self.path.offer(next, direction, packet);
            } else {
                self.deliver(packet, direction);
            }
        }
        self.path.rearm_direction(link, direction);
    }

    /// Delivers a packet to its host after it has crossed the path.
    fn deliver(&mut self, packet: Vec<u8>, direction: Direction) {
        let side = match direction {
            Direction::Up => Side::B,
            Direction::Down => Side::A,
        };
        self.path.capture(Point::Hosts(side), Heading::In, &packet);
        let place = destination(&packet).and_then(|address| self.place_of(address).ok());
        let index = place.map(|place| self.by_address[place].1);
        let host = index.and_then(|index| self.hosts.get_mut(index)).filter(|host| host.side == side);
        match (index, host) {
            (Some(index), Some(host)) if host.paused_until > self.path.now || !host.waiting.is_empty() => {
                host.waiting.push(packet);
                let host = &self.hosts[index];
                self.path.rearm_host(index, host);
            }
            (Some(index), Some(host)) => {
                host.stack.on_packet(&packet, Rx::default(), self.path.now);
                self.arena.recycle(packet);
                self.post_process(index);
            }
            _ => {
                self.unrouted += 1;
                self.arena.recycle(packet);
            }
        }
    }

    /// Returns the index of the address in the sorted list, or the index at which to insert it.
    fn place_of(&self, address: Address) -> Result<usize, usize> {
        self.by_address.binary_search_by_key(&address, |(of, _)| *of)
    }

    /// Processes events and packets of a host until none is left at this instant.
    fn post_process(&mut self, index: usize) {
        let World { hosts, path, arena, .. } = self;
        let host = &mut hosts[index];
        let mut event = host.stack.poll_event();
        loop {
            if let Some(event) = event {
                host.deliver_events(event, path.now, &mut arena.scratch);
            }
            transmit(host, path, arena);
            event = host.stack.poll_event();
            if event.is_none() {
                break;
            }
        }
        if let Some(trace) = &mut path.trace {
            trace.host(path.now, host);
        }
        path.rearm_host(index, host);
    }
}

/// Sends all packets of a host onto the path.
fn transmit(host: &mut Host, path: &mut Path, arena: &mut Arena) {
    while let Some(transmit) = host.stack.poll_transmit(path.now, arena.blank()) {
        let mut packet = arena.packet();
        match transmit.segment_size {
            None => {
                if transmit.partial_checksum {
                    brisk_wire::fill_checksums(&mut packet);
                }
                path.send(host.side, packet);
            }
            Some(segment_size) => {
                let mut parts = Vec::new();
                let fill = brisk_wire::ChecksumFill::Full;
                brisk_wire::split(&packet, segment_size, fill, &mut |part| parts.push(part.to_vec()));
                arena.recycle(packet);
                for part in parts {
                    path.send(host.side, part);
                }
            }
        }
    }
}

impl Path {
    /// Returns the host or the link direction of a source.
    fn woken(&self, source: Source) -> WakeTarget {
        match source.checked_sub(self.source_of_host(0)) {
            Some(host) => WakeTarget::Host(host),
            None => {
                let direction =
                    if source.is_multiple_of(DIRECTIONS) { Direction::Up } else { Direction::Down };
                WakeTarget::Direction(source / DIRECTIONS, direction)
            }
        }
    }

    fn source_of_host(&self, host: usize) -> Source {
        self.links.len() * DIRECTIONS + host
    }

    fn source_of_direction(link: usize, direction: Direction) -> Source {
        link * DIRECTIONS + usize::from(direction == Direction::Down)
    }

    #[inline]
    fn send(&mut self, side: Side, packet: Vec<u8>) {
        self.capture(Point::Hosts(side), Heading::Out, &packet);
        let first = match side {
            Side::A => 0,
            Side::B => self.links.len() - 1,
        };
        self.offer(first, side.away(), packet);
    }

    /// Passes a packet to one direction of a link; answers of the link return in the other direction.
    fn offer(&mut self, link: usize, direction: Direction, packet: Vec<u8>) {
        let traced = self.trace.as_ref().map(|_| packet.len());
        let offered = direction_of(&mut self.links[link], direction).offer(packet, self.now);
        if let (Some(trace), Some(len)) = (&mut self.trace, traced) {
            trace.offered(self.now, link, direction, len, &offered);
        }
        if let Some(answer) = offered.answer() {
            let back = match direction {
                Direction::Up => Direction::Down,
                Direction::Down => Direction::Up,
            };
            direction_of(&mut self.links[link], back).offer(answer, self.now);
            self.rearm_direction(link, back);
        }
        self.rearm_direction(link, direction);
    }

    fn rearm_host(&mut self, index: usize, host: &Host) {
        // Overdue events happen now, because the clock does not go back.
        let due = host.next_wake().map(|due| due.max(self.now));
        self.schedule.arm(self.source_of_host(index), due);
    }

    #[inline]
    fn rearm_direction(&mut self, link: usize, direction: Direction) {
        let due =
            direction_of(&mut self.links[link], direction).next_departure().map(|due| due.max(self.now));
        self.schedule.arm(Path::source_of_direction(link, direction), due);
    }

    #[inline]
    fn capture(&mut self, at: Point, heading: Heading, packet: &[u8]) {
        if !self.captures.is_empty() {
            write_down(&mut self.captures, at, heading, self.now, packet);
        }
    }
}

#[derive(Debug)]
struct Capture {
    writer: PcapngWriter<Box<dyn Write>>,
    interfaces: Vec<(Point, InterfaceId)>,
    failed: Option<io::Error>,
}

fn write_down(captures: &mut [Capture], at: Point, heading: Heading, now: Instant, packet: &[u8]) {
    for capture in captures {
        for (_, interface) in capture.interfaces.iter().filter(|(point, _)| *point == at) {
            if capture.failed.is_none() {
                capture.failed = capture.writer.packet(*interface, heading, now, packet).err();
            }
        }
    }
}

fn direction_of(link: &mut Link<Vec<u8>>, direction: Direction) -> &mut LinkDirection<Vec<u8>> {
    match direction {
        Direction::Up => &mut link.up,
        Direction::Down => &mut link.down,
    }
}

fn number_of(address: IpAddr) -> Address {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().into(),
        IpAddr::V6(address) => address.into(),
    }
}

fn destination(packet: &[u8]) -> Option<Address> {
    match packet.first()? >> 4 {
        4 => Some(number_of(<[u8; 4]>::try_from(packet.get(16..20)?).ok()?.into())),
        6 => Some(number_of(<[u8; 16]>::try_from(packet.get(24..40)?).ok()?.into())),
        _ => None,
    }
}

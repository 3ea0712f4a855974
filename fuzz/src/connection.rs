//! Target: one stack, an application that does anything, and an attacker who sees the traffic.
//!
//! The first bytes configure the stack. The rest is a sequence of calls, times and forged segments.
//! [`Watched`] checks the invariants after each of them. At the end everything is released and no peer
//! answers any more: then no connection and no memory may be left.

use std::net::{IpAddr, SocketAddr};

use brisk_tcp::{ConnId, ListenerId};
use brisk_wire::{Duration, Instant, Segment};
use bytes::Bytes;

use crate::configs;
use crate::decisions::Decisions;
use crate::flow::Flow;
use crate::forge;
use crate::watched::Watched;

/// Maximum number of steps of one run.
const MAX_STEPS: usize = 600;
/// Maximum number of flows of the attacker.
const MAX_FLOWS: usize = 12;
/// Maximum number of listeners and connections of the application.
const MAX_HANDLES: usize = 12;
/// The largest buffer of [`configs::tcp`].
const LARGEST_BUFFER: usize = 262_144;

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let mut decisions = Decisions::new(bytes);
    let mut world = World::new(&mut decisions);
    for _ in 0..MAX_STEPS {
        if decisions.is_over() {
            break;
        }
        world.step(&mut decisions);
        world.post_process();
    }
    world.end();
}

struct World {
    host: Watched,
    flows: Vec<Flow>,
    connections: Vec<ConnId>,
    listeners: Vec<ListenerId>,
    packet: Vec<u8>,
}

/// Returns the stack's address of each family.
fn local(v6: bool) -> IpAddr {
    if v6 { [0xfd; 16].into() } else { [10, 0, 0, 1].into() }
}

/// Returns the address of another host.
fn remote(v6: bool, host: u8) -> IpAddr {
    if v6 { [0x20 | host & 1; 16].into() } else { [10, 0, 1, host].into() }
}

/// Records a packet of the stack for the attacker.
fn note(flows: &mut Vec<Flow>, packet: &[u8], segment: &Segment<'_>) {
    // A cookie belongs to an address and is valid for every connection from it.
    for flow in flows.iter_mut().filter(|flow| flow.remote.ip() == segment.ip.dst) {
        flow.fast_open = segment.tcp.options.fast_open.or(flow.fast_open);
    }
    if let Some(flow) = flows.iter_mut().find(|flow| flow.owns(segment)) {
        return flow.on_sent(packet, segment);
    }
    let local = SocketAddr::new(segment.ip.src, segment.tcp.src_port);
    let remote = SocketAddr::new(segment.ip.dst, segment.tcp.dst_port);
    let mut flow = Flow::new(local, remote, 0xffff_ff00);
    flow.on_sent(packet, segment);
    if flows.len() == MAX_FLOWS {
        flows.remove(0);
    }
    flows.push(flow);
}

impl World {
    fn new(decisions: &mut Decisions<'_>) -> World {
        let config = configs::stack(decisions, vec![local(false), local(true)]);
        let now = Instant::from_millis(u64::from(decisions.byte()) * 1_000_000);
        World {
            host: Watched::new(config, 1, LARGEST_BUFFER, now),
            flows: Vec::new(),
            connections: Vec::new(),
            listeners: Vec::new(),
            packet: Vec::new(),
        }
    }

    fn step(&mut self, decisions: &mut Decisions<'_>) {
        match decisions.below(24) {
            0 => self.connect(decisions),
            1 => self.listen(decisions),
            2 => self.accept(),
            3 => self.write(decisions),
            4 => self.read(decisions),
            5 => self.close(decisions),
            6 => self.adjust(decisions),
            7 => self.pass(Duration::from_millis(u64::from(decisions.byte()))),
            8 => self.pass(Duration::from_millis(decisions.pick(&[1000, 10_000, 61_000, 3_600_000]))),
            9 if decisions.one_in(8) => self.pass(Duration::from_secs(86_400 * 25)),
            10 => self.new_flow(decisions),
            _ => self.forge(decisions),
        }
    }

    /// Transmits packets and drains events, as a driver does after every step.
    fn post_process(&mut self) {
        let World { host, flows, .. } = self;
        host.drain(&mut |packet, segment| note(flows, packet, segment));
        host.events();
    }

    fn pass(&mut self, span: Duration) {
        let World { host, flows, .. } = self;
        host.pass(span, &mut |packet, segment| note(flows, packet, segment));
    }

    fn connect(&mut self, decisions: &mut Decisions<'_>) {
        let config = configs::connect(decisions);
        let choice = decisions.byte();
        let to = SocketAddr::new(remote(choice & 1 == 1, choice >> 4), decisions.pick(&[80, 81, 0]));
        let (data, now) = (decisions.bytes(usize::from(choice >> 2 & 3) * 20), self.host.now);
        if self.connections.len() == MAX_HANDLES {
            return;
        }
        if let Ok((id, taken)) = self.host.stack.connect_with_data(to, data, &config, now) {
            assert!(taken <= data.len());
            self.connections.push(id);
        }
    }

    fn listen(&mut self, decisions: &mut Decisions<'_>) {
        let config = configs::listen(decisions);
        let at = SocketAddr::new(local(decisions.one_in(4)), decisions.pick(&[80, 81, 0]));
        if self.listeners.len() == MAX_HANDLES {
            let closed = self.listeners.remove(0);
            self.host.stack.close_listener(closed, self.host.now);
        }
        self.listeners.extend(self.host.stack.listen(at, config));
    }

    fn accept(&mut self) {
        for &listener in &self.listeners {
            while self.connections.len() < MAX_HANDLES
                && let Some((id, remote)) = self.host.stack.accept(listener)
            {
                assert_eq!(self.host.stack.remote_addr(id), Some(remote));
                self.connections.push(id);
            }
        }
    }

    /// Returns the index of a handle; the last ones are chosen first.
    fn handle(&self, decisions: &mut Decisions<'_>) -> Option<usize> {
        let choice = decisions.below(MAX_HANDLES);
        self.connections.len().checked_sub(1 + choice % self.connections.len().max(1))
    }

    fn write(&mut self, decisions: &mut Decisions<'_>) {
        static DATA: [u8; 65_536] = [0xa5; 65_536];
        let Some(index) = self.handle(decisions) else { return };
        let (id, now, stack) = (self.connections[index], self.host.now, &mut self.host.stack);
        let len = usize::from(decisions.short());
        let (writable, data) = (stack.writable(id), &DATA[..len]);
        let urgent = decisions.one_in(8);
        // Data of an odd length is passed with ownership.
        let written = match (urgent, len % 2) {
            (true, _) => stack.write_urgent(id, data, now),
            (false, 0) => stack.write(id, data, now),
            (false, _) => stack.write_bytes(id, &mut Bytes::from_static(data), now),
        };
        if let Ok(written) = written {
            assert_eq!(written, len.min(writable), "a write takes what there is room for");
        }
    }

    fn read(&mut self, decisions: &mut Decisions<'_>) {
        let Some(index) = self.handle(decisions) else { return };
        let (id, now, stack) = (self.connections[index], self.host.now, &mut self.host.stack);
        let mut buffer = [0; 4096];
        if decisions.one_in(4) {
            let _ = stack.read_urgent(id);
        }
        let len = usize::from(decisions.short()) % (buffer.len() + 1);
        let peeked = stack.peek(id, &mut buffer[..len]);
        let read = stack.read(id, &mut buffer[..len], now);
        assert_eq!(peeked, read, "reading answers what peeking answered");
        while decisions.one_in(2) && matches!(stack.read(id, &mut buffer, now), Ok(1..)) {}
    }

    fn close(&mut self, decisions: &mut Decisions<'_>) {
        let Some(index) = self.handle(decisions) else { return };
        let (id, now, stack) = (self.connections[index], self.host.now, &mut self.host.stack);
        match decisions.below(8) {
            0..=3 => {
                let _ = stack.shutdown(id, now);
            }
            4 => stack.abort(id, now),
            5 if !self.listeners.is_empty() => {
                let listener = self.listeners.remove(index % self.listeners.len());
                stack.close_listener(listener, now);
                assert_eq!(stack.listener_addr(listener), None);
            }
            _ => {
                stack.release(id, now);
                assert_eq!(stack.state(id), None, "a released handle names nothing");
                self.connections.remove(index);
            }
        }
    }

    fn adjust(&mut self, decisions: &mut Decisions<'_>) {
        let Some(index) = self.handle(decisions) else { return };
        let (id, stack) = (self.connections[index], &mut self.host.stack);
        let conn = stack.conn_mut(id);
        match decisions.below(4) {
            0 => {
                let nodelay = decisions.one_in(2);
                if let Some(mut conn) = conn {
                    conn.set_nodelay(nodelay);
                }
            }
            1 => {
                let cork = decisions.one_in(2);
                if let Some(mut conn) = conn {
                    conn.set_cork(cork);
                }
            }
            2 => {
                let keepalive = configs::keepalive(decisions);
                if let Some(mut conn) = conn {
                    conn.set_keepalive(keepalive);
                }
            }
            _ => {
                let seconds = decisions.pick(&[None, Some(0), Some(1), Some(600)]);
                if let Some(mut conn) = conn {
                    conn.set_user_timeout(seconds.map(Duration::from_secs));
                }
            }
        }
    }

    /// Adds a flow of the attacker.
    fn new_flow(&mut self, decisions: &mut Decisions<'_>) {
        let choice = decisions.byte();
        let v6 = choice & 1 == 1;
        let to = SocketAddr::new(local(v6), decisions.pick(&[80, 81, 4000]));
        let from = SocketAddr::new(remote(v6, choice >> 4), decisions.pick(&[5000, 5001, 80, 0]));
        let irs = decisions.pick(&[1000, 0xffff_fff0, 0x7fff_ffff]);
        if self.flows.len() < MAX_FLOWS {
            let known = self.flows.iter().rev().find(|flow| flow.remote.ip() == from.ip());
            let fast_open = known.and_then(|flow| flow.fast_open);
            self.flows.push(Flow { fast_open, ..Flow::new(to, from, irs) });
        }
    }

    fn forge(&mut self, decisions: &mut Decisions<'_>) {
        let choice = decisions.below(MAX_FLOWS);
        let Some(index) = self.flows.len().checked_sub(1 + choice % self.flows.len().max(1)) else { return };
        let rx = forge::packet(decisions, &mut self.flows[index], &mut self.packet);
        self.host.receive(&self.packet, rx);
    }

    /// Releases everything, without any answer: a day later no state is left.
    fn end(mut self) {
        let now = self.host.now;
        for &listener in &self.listeners {
            self.host.stack.close_listener(listener, now);
        }
        for &id in &self.connections {
            self.host.stack.release(id, now);
        }
        self.post_process();
        self.pass(Duration::from_secs(86_400));
        self.post_process();
        let left = (self.host.stack.connections(), self.host.stack.memory(), self.host.stack.next_timeout());
        assert_eq!(left, (0, 0, None), "connections, bytes and timers are left");
    }
}

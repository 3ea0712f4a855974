//! Memory of idle connections: `cargo bench -p brisk-tcp --bench idle_connections [-- COUNT]`.
//!
//! Two stacks in one process open COUNT connections (default 10,000) to each other, send a request and
//! a response over each, read them, and fall idle. What the process then holds more than before is
//! divided by the number of ends. Nothing here is timed; the figure is resident memory as the kernel
//! counts it, so allocator overhead is part of it.

use std::collections::VecDeque;
use std::net::SocketAddr;

use brisk_tcp::error::ReadError;
use brisk_tcp::stack::Rx;
use brisk_tcp::time::{Duration, Instant};
use brisk_tcp::{ConnId, ConnectConfig, Event, ListenConfig, ListenerId, Stack, StackConfig};

const SERVER: &str = "10.0.0.2:80";

struct Pair {
    client: Stack,
    server: Stack,
    now: Instant,
}

fn stack(address: &str, connections: usize, seed: u64) -> Stack {
    let config = StackConfig {
        addresses: vec![address.parse().expect("an address")],
        max_connections: connections * 2 + 16,
        ephemeral_ports: 1024..=65535,
        ..StackConfig::default()
    };
    Stack::new(config, seed).expect("the configuration is valid")
}

impl Pair {
    /// Passes packets until neither has anything to send.
    fn exchange(&mut self) {
        let mut packet = Vec::new();
        loop {
            let mut moved = false;
            while self.client.poll_transmit(self.now, &mut packet).is_some() {
                self.server.on_packet(&packet, Rx::default(), self.now);
                moved = true;
            }
            while self.server.poll_transmit(self.now, &mut packet).is_some() {
                self.client.on_packet(&packet, Rx::default(), self.now);
                moved = true;
            }
            if !moved {
                return;
            }
        }
    }

    fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(next) = [self.client.next_timeout(), self.server.next_timeout()]
            .into_iter()
            .flatten()
            .min()
            .filter(|at| *at <= until)
        {
            self.now = self.now.max(next);
            self.client.on_timeout(self.now);
            self.server.on_timeout(self.now);
            self.exchange();
        }
        self.now = until;
    }
}

/// Opens one connection and carries a request of 100 bytes and a response of 5,000 over it.
fn transaction(pair: &mut Pair, listener: ListenerId, remote: SocketAddr) -> (ConnId, ConnId) {
    let now = pair.now;
    let (client, _) = pair
        .client
        .connect_with_data(remote, &[1; 100], &ConnectConfig::default(), now)
        .expect("a port is free");
    pair.exchange();
    let (server, _) = pair.server.accept(listener).expect("the handshake completed");
    drain(&mut pair.server, server, now);
    pair.server.write(server, &[2; 5_000], now).expect("the buffer is empty");
    pair.exchange();
    drain(&mut pair.client, client, now);
    pair.exchange();
    (client, server)
}

fn drain(stack: &mut Stack, id: ConnId, now: Instant) {
    let mut buffer = [0; 8_192];
    loop {
        match stack.read(id, &mut buffer, now) {
            Ok(n) if n > 0 => {}
            Ok(_) | Err(ReadError::WouldBlock) => return,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Resident memory of this process, bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: usize = statm.split(' ').nth(1).and_then(|field| field.parse().ok()).expect("a number");
    pages * 4096
}

fn main() {
    let count = std::env::args().filter_map(|arg| arg.parse().ok()).next().unwrap_or(10_000);
    let mut pair =
        Pair { client: stack("10.0.0.1", count, 1), server: stack("10.0.0.2", count, 2), now: Instant::ZERO };
    let remote: SocketAddr = SERVER.parse().expect("an address");
    let listener = pair.server.listen(remote, ListenConfig::default()).expect("the port is free");
    let before = resident();
    let mut open: VecDeque<(ConnId, ConnId)> = VecDeque::with_capacity(count);
    for _ in 0..count {
        open.push_back(transaction(&mut pair, listener, remote));
        while let Some(event) = pair.client.poll_event().or_else(|| pair.server.poll_event()) {
            assert!(!matches!(event, Event::Closed(..)), "a connection ended: {event:?}");
        }
        pair.pass(Duration::from_millis(1));
    }
    pair.pass(Duration::from_secs(10));
    assert_eq!((pair.client.connections(), pair.server.connections()), (count, count));
    let held = resident().saturating_sub(before);
    println!("idle connections: {count} (both ends in this process)");
    println!("resident memory per end: {} bytes", held / (2 * count));
    println!("of that in buffers: {} bytes", (pair.client.memory() + pair.server.memory()) / (2 * count));
}

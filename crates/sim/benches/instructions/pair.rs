//! Two stacks on a wire without delay.

use std::net::SocketAddr;

use brisk_tcp::error::ReadError;
use brisk_tcp::event::Origin;
use brisk_tcp::fast_open::{CookieKey, FastOpenConnect, FastOpenListen, KeySource};
use brisk_tcp::stack::Rx;
use brisk_tcp::time::{Duration, Instant};
use brisk_tcp::{ConnId, ConnectConfig, ListenConfig, ListenerId, Stack, StackConfig, TcpConfig};

use crate::cases::SEGMENT;

/// The listener's address.
const SERVER: &str = "10.0.0.2:80";

/// A client, a listening server, and the wire between them.
pub(crate) struct Pair {
    pub(crate) client: Stack,
    pub(crate) server: Stack,
    pub(crate) now: Instant,
    listener: ListenerId,
    connect: ConnectConfig,
    /// If set, server packets whose number is a multiple of this are lost.
    loses_each: Option<u64>,
    sent: u64,
    packet: Vec<u8>,
    buffer: Vec<u8>,
}

fn stack(address: &str, seed: u64, keys: Option<KeySource>) -> Stack {
    let mut config = StackConfig {
        addresses: vec![address.parse().expect("an address")],
        max_connections: 300_000,
        ephemeral_ports: 1024..=65535,
        ..StackConfig::default()
    };
    config.fast_open.keys = keys;
    Stack::new(config, seed).expect("the configuration is valid")
}

impl Pair {
    /// Returns a pair in which both ends use `tcp`, and Fast Open if requested.
    pub(crate) fn new(tcp: &TcpConfig, fast_open: bool) -> Pair {
        Pair::of(tcp, tcp, fast_open)
    }

    pub(crate) fn of(client: &TcpConfig, server: &TcpConfig, fast_open: bool) -> Pair {
        let keys = fast_open.then(|| KeySource::Fixed { primary: CookieKey::new([7; 16]), backup: None });
        let listen = ListenConfig {
            tcp: server.clone(),
            backlog: 1024,
            fast_open: fast_open.then(FastOpenListen::default),
            ..ListenConfig::default()
        };
        let connect = ConnectConfig {
            tcp: client.clone(),
            fast_open: fast_open.then(FastOpenConnect::default),
            ..ConnectConfig::default()
        };
        let mut server = stack("10.0.0.2", 2, keys);
        let remote: SocketAddr = SERVER.parse().expect("an address");
        Pair {
            client: stack("10.0.0.1", 1, None),
            listener: server.listen(remote, listen).expect("the port is free"),
            server,
            now: Instant::ZERO,
            connect,
            loses_each: None,
            sent: 0,
            packet: Vec::new(),
            buffer: vec![0; 65_536],
        }
    }

    /// Loses every server packet whose number is a multiple of `packets` from now on.
    pub(crate) fn losing_each(mut self, packets: u64) -> Pair {
        self.loses_each = Some(packets);
        self
    }

    /// Passes packets until neither end has anything to send.
    pub(crate) fn exchange(&mut self) {
        loop {
            let mut moved = false;
            while self.client.poll_transmit(self.now, &mut self.packet).is_some() {
                self.server.on_packet(&self.packet, Rx::default(), self.now);
                moved = true;
            }
            while self.server.poll_transmit(self.now, &mut self.packet).is_some() {
                self.sent += 1;
                if self.loses_each.is_none_or(|each| !self.sent.is_multiple_of(each)) {
                    self.client.on_packet(&self.packet, Rx::default(), self.now);
                }
                moved = true;
            }
            while self.client.poll_event().or_else(|| self.server.poll_event()).is_some() {}
            if !moved {
                return;
            }
        }
    }

    /// Discards the packets that the server sends and returns their number.
    pub(crate) fn send(&mut self) -> usize {
        self.send_to(&mut |_, _| ())
    }

    /// Returns the packets that the server sends, each with its origin.
    pub(crate) fn sent(&mut self) -> Vec<(Origin, Vec<u8>)> {
        let mut sent = Vec::new();
        self.send_to(&mut |origin, packet| sent.push((origin, packet.to_vec())));
        sent
    }

    fn send_to(&mut self, wire: &mut dyn FnMut(Origin, &[u8])) -> usize {
        let mut count = 0;
        while let Some(transmit) = self.server.poll_transmit(self.now, &mut self.packet) {
            wire(transmit.origin, &self.packet);
            count += 1;
        }
        while self.server.poll_event().is_some() {}
        count
    }

    /// Returns the server's packets for `segments` segments of data.
    pub(crate) fn flight(&mut self, server: ConnId, segments: usize) -> Vec<(Origin, Vec<u8>)> {
        let data = vec![3; segments * SEGMENT];
        assert_eq!(self.server.write(server, &data, self.now), Ok(data.len()));
        self.sent()
    }

    /// Passes a packet to the client and discards its answers. Returns the number of answers.
    pub(crate) fn arrive(&mut self, packet: &[u8]) -> usize {
        self.arrive_and_answer(packet, &mut |_| ())
    }

    /// Returns the client's answers to these packets.
    pub(crate) fn answers<'a>(&mut self, packets: impl Iterator<Item = &'a [u8]>) -> Vec<Vec<u8>> {
        let mut answers = Vec::new();
        for packet in packets {
            self.arrive_and_answer(packet, &mut |answer| answers.push(answer.to_vec()));
        }
        answers
    }

    fn arrive_and_answer(&mut self, packet: &[u8], wire: &mut dyn FnMut(&[u8])) -> usize {
        self.client.on_packet(packet, Rx::default(), self.now);
        let mut count = 0;
        while self.client.poll_transmit(self.now, &mut self.packet).is_some() {
            wire(&self.packet);
            count += 1;
        }
        while self.client.poll_event().is_some() {}
        count
    }

    /// Advances the clock by `time` and serves the timers that are due.
    pub(crate) fn pass(&mut self, time: Duration) {
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

    /// Opens a connection; the SYN carries `request` if Fast Open is on.
    pub(crate) fn open(&mut self, request: &[u8]) -> (ConnId, ConnId) {
        let remote: SocketAddr = SERVER.parse().expect("an address");
        let opened = self.client.connect_with_data(remote, request, &self.connect, self.now);
        let (client, _) = opened.expect("a port is free");
        self.exchange();
        let (server, _) = self.server.accept(self.listener).expect("the handshake completed");
        (client, server)
    }

    /// Opens a connection whose handshake takes `round_trip`.
    pub(crate) fn open_over(&mut self, round_trip: Duration) -> (ConnId, ConnId) {
        let remote: SocketAddr = SERVER.parse().expect("an address");
        let client = self.client.connect(remote, &self.connect, self.now).expect("a port is free");
        while self.client.poll_transmit(self.now, &mut self.packet).is_some() {
            self.server.on_packet(&self.packet, Rx::default(), self.now);
        }
        let answers = self.sent();
        self.now += round_trip;
        for (_, answer) in answers {
            self.client.on_packet(&answer, Rx::default(), self.now);
        }
        self.exchange();
        let (server, _) = self.server.accept(self.listener).expect("the handshake completed");
        (client, server)
    }

    /// Makes one request and one response on a connection, which the server closes first.
    pub(crate) fn transaction(&mut self, response: &[u8]) {
        let (client, server) = self.open(&[1; 100]);
        assert_eq!(self.drain_server(server), 100);
        self.server.write(server, response, self.now).expect("the buffer is empty");
        self.server.shutdown(server, self.now).expect("it is open");
        self.exchange();
        assert_eq!(self.drain_client(client), response.len());
        self.client.shutdown(client, self.now).expect("it is open");
        self.client.release(client, self.now);
        self.exchange();
        self.server.release(server, self.now);
    }

    pub(crate) fn carry(&mut self, client: ConnId, server: ConnId, bytes: usize) {
        let chunk = [3; 65_536];
        let (mut unwritten, mut unread) = (bytes, bytes);
        while unread > 0 {
            let max = unwritten.min(chunk.len());
            if let Ok(written) = self.server.write(server, &chunk[..max], self.now) {
                unwritten -= written;
            }
            self.exchange();
            unread -= self.drain_client(client);
            self.exchange();
            self.pass(Duration::from_millis(1));
        }
    }

    pub(crate) fn drain_client(&mut self, id: ConnId) -> usize {
        drain(&mut self.client, id, &mut self.buffer, self.now)
    }

    pub(crate) fn drain_server(&mut self, id: ConnId) -> usize {
        drain(&mut self.server, id, &mut self.buffer, self.now)
    }
}

fn drain(stack: &mut Stack, id: ConnId, buffer: &mut [u8], now: Instant) -> usize {
    let mut read = 0;
    loop {
        match stack.read(id, buffer, now) {
            Ok(n) if n > 0 => read += n,
            Ok(_) | Err(ReadError::WouldBlock) => return read,
            Err(error) => panic!("{error}"),
        }
    }
}

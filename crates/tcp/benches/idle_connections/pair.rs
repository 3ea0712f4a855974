//! Two stacks in one process, and a wire without delay.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use brisk_tcp::config::SynCookies;
use brisk_tcp::error::ReadError;
use brisk_tcp::stack::Rx;
use brisk_tcp::time::{Duration, Instant};
use brisk_tcp::{ConnId, ConnectConfig, ListenConfig, ListenerId, Stack, StackConfig};

/// Number of connections to one address of the server. It is below the number of ports.
const PER_ADDRESS: u32 = 50_000;

/// Both ends.
pub(crate) struct Pair {
    pub(crate) client: Stack,
    pub(crate) server: Stack,
    pub(crate) listener: ListenerId,
    pub(crate) now: Instant,
    connect: ConnectConfig,
    opened: u32,
    packet: Vec<u8>,
    buffer: Vec<u8>,
}

fn stack(addresses: Vec<IpAddr>, any_address: bool, seed: u64) -> Stack {
    let config = StackConfig {
        addresses,
        any_address,
        max_connections: usize::MAX,
        max_buffer_bytes: usize::MAX,
        ephemeral_ports: 1024..=65535,
        ..StackConfig::default()
    };
    Stack::new(config, seed).expect("the configuration is valid")
}

impl Pair {
    /// Returns a client, and a server that listens on port 80 of every address.
    pub(crate) fn new() -> Pair {
        Pair::with(ListenConfig::default(), ConnectConfig::default())
    }

    /// Like [`Pair::new`], with the given settings.
    pub(crate) fn with(listen: ListenConfig, connect: ConnectConfig) -> Pair {
        let mut server = stack(Vec::new(), true, 2);
        let listen = ListenConfig { max_half_open: usize::MAX, syn_cookies: SynCookies::Off, ..listen };
        let everywhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 80));
        Pair {
            client: stack(vec![Ipv4Addr::new(10, 0, 0, 1).into()], false, 1),
            listener: server.listen(everywhere, listen).expect("the port is free"),
            server,
            now: Instant::ZERO,
            connect,
            opened: 0,
            packet: Vec::new(),
            buffer: vec![0; 8_192],
        }
    }

    /// Passes packets until neither stack has anything to send.
    pub(crate) fn exchange(&mut self) {
        loop {
            let mut moved = false;
            while self.client.poll_transmit(self.now, &mut self.packet).is_some() {
                self.server.on_packet(&self.packet, Rx::default(), self.now);
                moved = true;
            }
            while self.server.poll_transmit(self.now, &mut self.packet).is_some() {
                self.client.on_packet(&self.packet, Rx::default(), self.now);
                moved = true;
            }
            while self.client.poll_event().or_else(|| self.server.poll_event()).is_some() {}
            if !moved {
                return;
            }
        }
    }

    /// Lets time pass, with every timer that falls due.
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

    /// Opens a connection that sends `request` after the SYN.
    pub(crate) fn open(&mut self, request: &[u8]) -> (ConnId, ConnId) {
        let address = Ipv4Addr::from_bits(Ipv4Addr::new(10, 1, 0, 0).to_bits() + self.opened / PER_ADDRESS);
        self.opened += 1;
        let opened = self.client.connect_with_data((address, 80).into(), request, &self.connect, self.now);
        let (client, _) = opened.expect("a port is free");
        self.exchange();
        let (server, _) = self.server.accept(self.listener).expect("the handshake completed");
        (client, server)
    }

    /// Opens a connection and carries a request of 100 bytes and a response of 5,000 over it.
    pub(crate) fn transaction(&mut self) -> (ConnId, ConnId) {
        let (client, server) = self.open(&[1; 100]);
        self.drain_server(server);
        self.server.write(server, &[2; 5_000], self.now).expect("the buffer is empty");
        self.exchange();
        self.drain_client(client);
        self.exchange();
        (client, server)
    }

    /// Reads all that the client has received; returns the number of bytes.
    pub(crate) fn drain_client(&mut self, id: ConnId) -> usize {
        drain(&mut self.client, id, &mut self.buffer, self.now)
    }

    /// Reads all that the server has received; returns the number of bytes.
    pub(crate) fn drain_server(&mut self, id: ConnId) -> usize {
        drain(&mut self.server, id, &mut self.buffer, self.now)
    }

    /// Ends a connection. The server closes first and is in TIME-WAIT afterwards.
    pub(crate) fn close(&mut self, client: ConnId, server: ConnId) {
        self.server.release(server, self.now);
        self.exchange();
        self.client.release(client, self.now);
        self.exchange();
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

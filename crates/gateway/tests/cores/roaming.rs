//! A gateway pair of two cores each, with a NAT between frontend and backend that moves its mapping to
//! another port.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use brisk_gateway::{
    Backend, BackendConfig, Frontend, FrontendConfig, Hop, HopKey, KeyRing, Log, ServiceConfig,
};
use brisk_runtime::Cores;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::watch;
use tokio::time::timeout;

use super::host;

/// Connections that are open when the NAT moves.
const OPEN: usize = 24;
/// Time limit of each step, sufficient on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

async fn socket() -> Arc<UdpSocket> {
    Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap())
}

/// Sends a datagram after `delay`.
fn forward(socket: &Arc<UdpSocket>, datagram: &[u8], to: SocketAddr, delay: Duration) {
    let (socket, datagram) = (Arc::clone(socket), datagram.to_vec());
    tokio::spawn(async move {
        tokio::time::sleep(delay).await;
        let _ = socket.send_to(&datagram, to).await;
    });
}

/// Returns an address that forwards datagrams between a client and `to`. With each change of `moves` it sends
/// to `to` from another port, and closes the old one. Each datagram takes the first delay before the first
/// change, and the second one after it.
async fn nat(to: SocketAddr, mut moves: watch::Receiver<u32>, delays: [Duration; 2]) -> SocketAddr {
    let inside = socket().await;
    let address = inside.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut client, mut now) = (None, delays[0]);
        loop {
            let outside = socket().await;
            let (mut up, mut down) = (vec![0; 65_536], vec![0; 65_536]);
            loop {
                tokio::select! {
                    received = inside.recv_from(&mut up) => {
                        let Ok((len, from)) = received else { continue };
                        client = Some(from);
                        forward(&outside, &up[..len], to, now);
                    }
                    received = outside.recv_from(&mut down) => {
                        if let (Ok((len, _)), Some(client)) = (received, client) {
                            forward(&inside, &down[..len], client, now);
                        }
                    }
                    moved = moves.changed() => match moved {
                        Ok(()) => {
                            now = delays[1];
                            break;
                        }
                        Err(_) => return,
                    }
                }
            }
        }
    });
    address
}

/// Sends the bytes of every connection back, and counts the connections.
async fn mirror(listener: TcpListener, served: Arc<AtomicUsize>) -> io::Result<()> {
    loop {
        let (mut stream, _) = listener.accept().await?;
        served.fetch_add(1, Ordering::Relaxed);
        tokio::spawn(async move {
            let (mut read, mut write) = stream.split();
            tokio::io::copy(&mut read, &mut write).await?;
            write.shutdown().await
        });
    }
}

async fn echo(client: &mut TcpStream, len: usize) -> io::Result<()> {
    let (mut read, mut write) = client.split();
    let sent: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
    let mut received = vec![0; len];
    tokio::try_join!(write.write_all(&sent), read.read_exact(&mut received))?;
    assert!(received == sent);
    Ok(())
}

/// A pair with a NAT between its sides.
struct Pair {
    _cores: Cores,
    /// Where clients connect.
    address: SocketAddr,
    moves: watch::Sender<u32>,
    /// Number of connections to the origin.
    served: Arc<AtomicUsize>,
}

impl Pair {
    /// Starts a pair. A datagram takes the first delay before a move of the NAT, and the second one after it.
    async fn start(delays: [Duration; 2]) -> Pair {
        let cores = Cores::start(NonZeroUsize::new(2).unwrap()).unwrap();
        let service =
            ServiceConfig { log: Log::silent(), cores: cores.handles().to_vec(), ..ServiceConfig::default() };
        let hop = || Hop::Sealed(KeyRing::of(HopKey::new([7; 32])));
        let loopback: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let origin = TcpListener::bind(loopback).await.unwrap();
        let origin_at = origin.local_addr().unwrap().to_string();
        let count = Arc::<AtomicUsize>::default();
        tokio::spawn(mirror(origin, count.clone()));

        let ((far, served), (near, attached)) = (host(&cores), host(&cores));
        let inside = SocketAddr::new("::".parse().unwrap(), served.service_port(1));
        let usual = BackendConfig::new(inside, origin_at, hop());
        let config = BackendConfig { service: service.clone(), attached: Some(served.clone()), ..usual };
        let backend = Backend::bind(config, &far).unwrap();
        let (moves, moved) = watch::channel(0);
        let through = nat(served.outside(backend.local_addr()), moved, delays).await;
        let to = attached.destination(through).unwrap();
        let config = FrontendConfig { service, watch: true, ..FrontendConfig::new(loopback, to, hop()) };
        let frontend = Frontend::bind(config, near).await.unwrap();
        let address = frontend.local_addr().unwrap();
        tokio::spawn(backend.run(std::future::pending()));
        tokio::spawn(frontend.run(std::future::pending()));
        // The watch registers after its first answer.
        tokio::time::sleep(Duration::from_secs(1) + 20 * delays[0]).await;
        Pair { _cores: cores, address, moves, served: count }
    }

    /// Opens connections, and exchanges a few bytes over each.
    async fn open(&self) -> Vec<TcpStream> {
        let mut clients = Vec::new();
        for _ in 0..OPEN {
            let mut client = TcpStream::connect(self.address).await.unwrap();
            timeout(LIMIT, echo(&mut client, 100)).await.expect("in time").unwrap();
            clients.push(client);
        }
        clients
    }
}

/// Exchanges 20 kB over each connection, and checks that none is lost.
async fn check_survival(clients: &mut [TcpStream], what: &str) {
    let outcomes = clients.iter_mut().map(|client| timeout(LIMIT, echo(client, 20_000)));
    let mut lost = futures_all(outcomes).await;
    lost.retain(|outcome| !matches!(outcome, Ok(Ok(()))));
    assert!(lost.is_empty(), "of {} connections, {what}: {lost:?}", clients.len());
}

#[tokio::test]
async fn connections_in_flight_survive_a_nat_that_moves_twice() {
    let pair = Pair::start([Duration::ZERO; 2]).await;
    let mut clients = Vec::new();
    for turn in 1..=2 {
        clients.extend(pair.open().await);
        pair.moves.send_replace(turn);
        check_survival(&mut clients, &format!("move {turn}")).await;
    }
}

/// The NAT moves while the requests are on their way to the backend. The answers are lost with the old port.
#[tokio::test]
async fn connections_that_open_during_a_move_are_served_once() {
    const DELAY: Duration = Duration::from_millis(150);
    let pair = Pair::start([DELAY; 2]).await;
    let mut clients = pair.open().await;
    let before = pair.served.load(Ordering::Relaxed);
    let opening = async || {
        let mut client = TcpStream::connect(pair.address).await?;
        echo(&mut client, 100).await.map(|()| client)
    };
    let opened = futures_all((0..OPEN).map(|_| timeout(LIMIT, opening())));
    let moving = async {
        tokio::time::sleep(DELAY / 2).await;
        pair.moves.send_replace(1);
        tokio::time::sleep(DELAY).await;
        assert_eq!(pair.served.load(Ordering::Relaxed), before + OPEN, "the requests are on the SYNs");
    };
    let (opened, ()) = tokio::join!(opened, moving);
    let opened = opened.into_iter().map(|opened| opened.expect("in time").expect("not lost"));
    clients.extend(opened);
    assert_eq!(pair.served.load(Ordering::Relaxed), before + OPEN, "no request is delivered twice");
    check_survival(&mut clients, "new connections").await;
}

/// While other connections are answered, the backend counts as up, and the time limit of the registration
/// does not grow.
#[tokio::test]
async fn connections_in_flight_survive_a_move_to_a_slow_path_under_load() {
    let pair = Pair::start([Duration::ZERO, Duration::from_millis(700)]).await;
    let mut clients = pair.open().await;
    let address = pair.address;
    let load = tokio::spawn(async move {
        loop {
            tokio::spawn(async move { echo(&mut TcpStream::connect(address).await?, 100).await });
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    pair.moves.send_replace(1);
    check_survival(&mut clients, "slow path").await;
    load.abort();
}

/// Waits for all futures concurrently; returns their results in order.
async fn futures_all<T>(futures: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut futures: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|cx| {
        for (future, done) in futures.iter_mut().filter(|(_, done)| done.is_none()) {
            if let std::task::Poll::Ready(value) = future.as_mut().poll(cx) {
                *done = Some(value);
            }
        }
        match futures.iter().all(|(_, done)| done.is_some()) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    futures.into_iter().filter_map(|(_, done)| done).collect()
}

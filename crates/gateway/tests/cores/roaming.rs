//! A gateway pair of two cores each, with a NAT between frontend and backend that moves its mapping to
//! another port.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
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

async fn socket() -> UdpSocket {
    UdpSocket::bind("127.0.0.1:0").await.unwrap()
}

/// Returns an address that forwards datagrams between a client and `to`. With each change of `moves` it sends
/// to `to` from another port, and closes the old one.
async fn nat(to: SocketAddr, mut moves: watch::Receiver<u32>) -> SocketAddr {
    let inside = Arc::new(socket().await);
    let address = inside.local_addr().unwrap();
    tokio::spawn(async move {
        let mut client = None;
        loop {
            let outside = socket().await;
            let (mut up, mut down) = (vec![0; 65_536], vec![0; 65_536]);
            loop {
                tokio::select! {
                    received = inside.recv_from(&mut up) => {
                        let Ok((len, from)) = received else { continue };
                        client = Some(from);
                        let _ = outside.send_to(&up[..len], to).await;
                    }
                    received = outside.recv_from(&mut down) => {
                        if let (Ok((len, _)), Some(client)) = (received, client) {
                            let _ = inside.send_to(&down[..len], client).await;
                        }
                    }
                    moved = moves.changed() => match moved {
                        Ok(()) => break,
                        Err(_) => return,
                    }
                }
            }
        }
    });
    address
}

/// Sends the bytes of every connection back.
async fn mirror(listener: TcpListener) -> io::Result<()> {
    loop {
        let (mut stream, _) = listener.accept().await?;
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

#[tokio::test]
async fn connections_in_flight_survive_a_nat_that_moves_twice() {
    let cores = Cores::start(NonZeroUsize::new(2).unwrap()).unwrap();
    let service =
        ServiceConfig { log: Log::silent(), cores: cores.handles().to_vec(), ..ServiceConfig::default() };
    let hop = || Hop::Sealed(KeyRing::of(HopKey::new([7; 32])));
    let loopback: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let origin = TcpListener::bind(loopback).await.unwrap();
    let origin_at = origin.local_addr().unwrap().to_string();
    tokio::spawn(mirror(origin));

    let ((far, served), (near, attached)) = (host(&cores), host(&cores));
    let inside = SocketAddr::new("::".parse().unwrap(), served.service_port(1));
    let usual = BackendConfig::new(inside, origin_at, hop());
    let config = BackendConfig { service: service.clone(), attached: Some(served.clone()), ..usual };
    let backend = Backend::bind(config, &far).unwrap();
    let (moves, moved) = watch::channel(0);
    let through = nat(served.outside(backend.local_addr()), moved).await;
    let to = attached.destination(through).unwrap();
    let config = FrontendConfig { service, watch: true, ..FrontendConfig::new(loopback, to, hop()) };
    let frontend = Frontend::bind(config, near).await.unwrap();
    let client_side = frontend.local_addr().unwrap();
    tokio::spawn(backend.run(std::future::pending()));
    tokio::spawn(frontend.run(std::future::pending()));

    let mut clients = Vec::new();
    // The watch registers after its first answer.
    tokio::time::sleep(Duration::from_secs(1)).await;
    for turn in 1..=2 {
        for _ in 0..OPEN {
            let mut client = TcpStream::connect(client_side).await.unwrap();
            timeout(LIMIT, echo(&mut client, 100)).await.expect("in time").unwrap();
            clients.push(client);
        }
        moves.send_replace(turn);
        let outcomes = clients.iter_mut().map(|client| timeout(LIMIT, echo(client, 20_000)));
        let mut lost = futures_all(outcomes).await;
        lost.retain(|outcome| !matches!(outcome, Ok(Ok(()))));
        assert!(lost.is_empty(), "of {} connections, move {turn}: {lost:?}", clients.len());
    }
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

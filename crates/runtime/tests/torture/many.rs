//! Ten thousand connections at the same time.

use brisk_runtime::{Endpoint, TcpListener, TcpSocket, TcpStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::heap;
use super::{Duration, LIMIT, assert_nothing_left, builders, server_address};

const CONNECTIONS: usize = 10_000;
/// Limit of the heap memory of both ends of an idle connection, with the streams, bytes.
const BYTES_PER_CONNECTION: usize = 7_000;

/// Opens the connections. Returns both ends of all of them, the client's first, in any order.
async fn open(a: &Endpoint, listener: &TcpListener) -> (Vec<TcpStream>, Vec<TcpStream>) {
    let connecting = async {
        let mut tasks = JoinSet::new();
        for _ in 0..CONNECTIONS {
            let a = a.clone();
            tasks.spawn(async move { a.connect(server_address()).await.unwrap() });
        }
        tasks.join_all().await
    };
    let accepting = async {
        let mut accepted = Vec::new();
        while accepted.len() < CONNECTIONS {
            accepted.push(listener.accept().await.unwrap().0);
        }
        accepted
    };
    timeout(LIMIT, async { tokio::join!(connecting, accepting) }).await.expect("all open")
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_connections_are_open_at_once_and_each_echoes() {
    let before = heap::live();
    let (a, b) = builders("--rtt 10ms");
    let (a, b) = (a.build().unwrap(), b.build().unwrap());
    let mut socket = TcpSocket::new(&b);
    socket.bind(server_address());
    let listener = socket.listen(CONNECTIONS).unwrap();
    let (clients, servers) = open(&a, &listener).await;
    assert_eq!((a.connections(), b.connections()), (CONNECTIONS, CONNECTIONS));
    // Idle connections free the parts that only active ones need.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let held = (heap::live() - before) as usize / CONNECTIONS;
    assert!(held < BYTES_PER_CONNECTION, "{held} bytes per connection");

    let mut tasks = JoinSet::new();
    for mut server in servers {
        tasks.spawn(async move {
            let mut request = [0; 4];
            server.read_exact(&mut request).await.unwrap();
            server.write_all(&request).await.unwrap();
            assert_eq!(server.read(&mut request).await.unwrap(), 0);
        });
    }
    for (n, mut client) in clients.into_iter().enumerate() {
        tasks.spawn(async move {
            let request = (n as u32).to_be_bytes();
            client.write_all(&request).await.unwrap();
            let mut response = [0; 4];
            client.read_exact(&mut response).await.unwrap();
            assert_eq!(response, request);
        });
    }
    timeout(LIMIT, tasks.join_all()).await.expect("all echo");
    assert_nothing_left(&[&a, &b]).await;
}

//! Endpoints on real devices: UDP on loopback, a TUN in a network namespace against the kernel's TCP, and
//! devices that push back or break.
#![cfg(target_os = "linux")]

mod watched;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use brisk_device::memory::{MemoryDevice, MemoryOptions};
use brisk_device::{Device, TxMeta};
use brisk_packet_io::netns::Namespace;
use brisk_packet_io::privileges;
use brisk_packet_io::tun::{TunDevice, TunOptions};
use brisk_runtime::attach::{AttachConfig, UDP_SERVICE_PORT};
use brisk_runtime::{Endpoint, TcpListener, TcpStream};
use brisk_tcp::config::{CopyScope, ProactiveConfig, TcpConfig};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use watched::{Watched, builder};

fn endpoint(device: impl Device + 'static, address: &str) -> Endpoint {
    builder(device, address).build().unwrap()
}

const LEN: usize = 10_000_000;

fn pattern(len: usize, salt: u32) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(salt) >> 24) as u8).collect()
}

/// Sends `out` and receives to the end, at the same time.
async fn exchange(stream: impl AsyncRead + AsyncWrite, out: &[u8]) -> Vec<u8> {
    let (mut read, mut write) = tokio::io::split(stream);
    let mut received = Vec::new();
    let writing = async {
        write.write_all(out).await.unwrap();
        write.shutdown().await.unwrap();
    };
    let ((), read) = tokio::join!(writing, read.read_to_end(&mut received));
    read.unwrap();
    received
}

async fn pair(a: &Endpoint, b: &Endpoint) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(b, "10.0.0.2:0".parse().unwrap()).unwrap();
    let (client, accepted) = tokio::join!(a.connect(listener.local_addr()), listener.accept());
    (client.unwrap(), accepted.unwrap().0)
}

#[tokio::test]
async fn tcp_in_udp_carries_ten_megabytes_both_ways() {
    let config = || AttachConfig::new("udp:127.0.0.1:0".parse().unwrap());
    let (server, served) = config().open().unwrap();
    let (client, attached) = config().open().unwrap();
    let (server, client) = (server.build().unwrap(), client.build().unwrap());
    let any = format!("[::]:{UDP_SERVICE_PORT}").parse().unwrap();
    let listener = TcpListener::bind(&server, any).unwrap();
    let outside = served.outside(listener.local_addr());
    let destination = attached.destination(outside).unwrap();
    let (stream, accepted) = tokio::join!(client.connect(destination), listener.accept());
    let (accepted, peer) = accepted.unwrap();
    assert_eq!(served.peer(peer), attached.outside(peer));
    let (up, down) = (pattern(LEN, 1), pattern(LEN, 2));
    let (at_client, at_server) = tokio::join!(exchange(stream.unwrap(), &up), exchange(accepted, &down));
    assert!(at_server == up && at_client == down);
}

/// Every segment is sent twice. The data arrives complete, and no mechanism stops the copies.
#[tokio::test]
async fn tcp_in_udp_sends_every_segment_twice() {
    let mut tcp = TcpConfig::default();
    tcp.mechanisms.proactive =
        Some(ProactiveConfig { scope: CopyScope::All, loss_cap: 100, ..ProactiveConfig::DEFAULT });
    let config = || AttachConfig::new("udp:127.0.0.1:0".parse().unwrap());
    let (server, served) = config().open().unwrap();
    let (client, attached) = config().open().unwrap();
    let (server, client) = (server.tcp(tcp.clone()).build().unwrap(), client.tcp(tcp).build().unwrap());
    let any = format!("[::]:{UDP_SERVICE_PORT}").parse().unwrap();
    let listener = TcpListener::bind(&server, any).unwrap();
    let destination = attached.destination(served.outside(listener.local_addr())).unwrap();
    let (stream, accepted) = tokio::join!(client.connect(destination), listener.accept());
    let (mut stream, (mut accepted, _)) = (stream.unwrap(), accepted.unwrap());
    let up = pattern(LEN, 1);
    let mut received = vec![0; LEN];
    let (written, read) = tokio::join!(stream.write_all(&up), accepted.read_exact(&mut received));
    written.unwrap();
    read.unwrap();
    assert!(received == up);
    let (sender, receiver) = (stream.handle().stats().unwrap(), accepted.handle().stats().unwrap());
    let (sender, receiver) = (sender.counters, receiver.counters);
    assert_eq!(
        sender.copies_sent + sender.retransmits + sender.probes,
        sender.data_segments_out,
        "{sender:?}"
    );
    assert_eq!(receiver.payload_bytes_received, LEN as u64);
    let packets = client.device_counters().sent;
    assert!(packets < sender.copies_sent / 2, "{packets} packets for {} segments twice", sender.copies_sent);
}

#[tokio::test]
async fn unused_endpoint_closes_its_device_despite_a_time_wait() {
    let config = || AttachConfig::new("udp:127.0.0.1:0".parse().unwrap());
    let (server, served) = config().open().unwrap();
    let (client, attached) = config().open().unwrap();
    let (server, client) = (server.build().unwrap(), client.build().unwrap());
    let any = format!("[::]:{UDP_SERVICE_PORT}").parse().unwrap();
    let listener = TcpListener::bind(&server, any).unwrap();
    let destination = attached.destination(served.outside(listener.local_addr())).unwrap();
    let (stream, accepted) = tokio::join!(client.connect(destination), listener.accept());
    let (mut stream, (mut accepted, _)) = (stream.unwrap(), accepted.unwrap());
    stream.shutdown().await.unwrap();
    assert_eq!(accepted.read(&mut [0]).await.unwrap(), 0);
    drop(accepted);
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
    drop(stream);
    let soon = Duration::from_secs(5);
    tokio::time::timeout(soon, client.wait_idle()).await.expect("a TIME-WAIT is not waited for");
    assert_eq!(client.connections(), 1, "the connection is not in TIME-WAIT");
    drop(client);
    let again = AttachConfig::new(format!("udp:{}", attached.outside(destination)).parse().unwrap());
    let freed = async {
        while again.open().is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(soon, freed).await.expect("the UDP port is free again");
}

#[tokio::test]
async fn device_that_pushes_back_loses_no_packet() {
    for offload in [true, false] {
        let options = MemoryOptions { queue_bytes: 4_000, offload, ..MemoryOptions::default() };
        let (a, b) = MemoryDevice::pair_with(options);
        let (a, b) = (endpoint(a, "10.0.0.1"), endpoint(b, "10.0.0.2"));
        let (client, server) = pair(&a, &b).await;
        let handle = client.handle();
        let (up, down) = (pattern(2_000_000, 3), pattern(2_000_000, 4));
        let (at_client, at_server) = tokio::join!(exchange(client, &up), exchange(server, &down));
        assert!(at_server == up && at_client == down);
        let retransmits = handle.stats().map(|stats| stats.counters.retransmits);
        assert_eq!(retransmits.unwrap_or(0), 0, "a packet that waited counts as lost");
    }
}

/// On one thread the runtime polls spawned tasks, such as the driver, many times before it returns to its
/// main task. The driver waits for a reader that it has woken, so received data does not fill the window.
#[tokio::test]
async fn a_reader_gets_its_turn_before_the_window_is_full() {
    let (a, b) = MemoryDevice::pair_with(MemoryOptions { queue_bytes: 1 << 20, ..MemoryOptions::default() });
    let (a, b) = (endpoint(a, "10.0.0.1"), endpoint(b, "10.0.0.2"));
    let (mut client, mut server) = pair(&a, &b).await;
    let all = 4 * LEN;
    tokio::spawn(async move { client.write_all(&vec![7; all]).await });
    let (mut buffer, mut received, mut most) = (vec![0; all], 0, 0);
    while received < all {
        let count = server.read(&mut buffer).await.unwrap();
        (received, most) = (received + count, most.max(count));
    }
    assert!(most < 2 << 20, "{most} bytes were waiting");
}

/// One packet answers a request, because the acknowledgement waits for the server. The clock is paused, so it
/// stands still while a task can run: otherwise the server's turn, which is limited in time, could end on a
/// busy machine before the server answers.
#[tokio::test(start_paused = true)]
async fn an_acknowledgement_leaves_with_the_answer() {
    let (a, b) = MemoryDevice::pair_with(MemoryOptions::default());
    let (a, b) = (endpoint(a, "10.0.0.1"), endpoint(b, "10.0.0.2"));
    let (mut client, mut server) = pair(&a, &b).await;
    let before = b.stats().packets_out;
    let (requests, mut buffer) = (20, [0; 100]);
    let serve = async {
        for _ in 0..requests {
            server.read_exact(&mut buffer).await.unwrap();
            server.write_all(&[2; 5_000]).await.unwrap();
        }
    };
    let ask = async {
        for _ in 0..requests {
            client.write_all(&[1; 100]).await.unwrap();
            client.read_exact(&mut [0; 5_000]).await.unwrap();
        }
    };
    tokio::join!(serve, ask);
    assert_eq!(b.stats().packets_out - before, requests, "a super-packet each");
}

/// A reader that is woken but does not read delays no other task.
#[tokio::test(start_paused = true)]
async fn unread_data_is_acknowledged_soon() {
    let (a, b) = MemoryDevice::pair_with(MemoryOptions::default());
    let (a, b) = (endpoint(a, "10.0.0.1"), endpoint(b, "10.0.0.2"));
    let (mut client, mut server) = pair(&a, &b).await;
    let told = std::future::poll_fn(|cx| server.poll_peek(cx, &mut [0]));
    let (written, told) = tokio::join!(client.write_all(&[1; 100]), told);
    written.unwrap();
    told.unwrap();
    let began = tokio::time::Instant::now();
    while client.stats().unwrap().counters.payload_bytes_acked < 100 {
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(began.elapsed() < Duration::from_millis(10), "it waits for a delayed acknowledgement");
    }
    assert_eq!(server.read(&mut [0; 200]).await.unwrap(), 100);
}

#[tokio::test]
async fn driver_without_a_reader_sleeps() {
    let (a, b) = MemoryDevice::pair_with(MemoryOptions { queue_bytes: 1 << 20, ..MemoryOptions::default() });
    let looks = Arc::<AtomicU32>::default();
    let (_fail, failed) = tokio::sync::watch::channel(false);
    let b = endpoint(failing(b, failed, looks.clone()), "10.0.0.2");
    let a = endpoint(a, "10.0.0.1");
    let (mut client, mut server) = pair(&a, &b).await;
    tokio::spawn(async move { client.write_all(&vec![7; 4 * LEN]).await });
    // The window has grown by the time the reader stops.
    server.read_exact(&mut vec![0; 2 * LEN]).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let before = looks.load(Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(300)).await;
    let looked = looks.load(Ordering::Relaxed) - before;
    assert!(looked < 1000, "{looked} polls of a device without packets");
    drop(server);
}

/// A waker that wakes the task of another waker.
struct Forward(Waker);

impl std::task::Wake for Forward {
    fn wake(self: Arc<Self>) {
        self.0.wake_by_ref();
    }
}

/// Two wakers of the main task of a runtime with one thread may look different. A list of waiters that
/// distinguished them would fill up with the main task, which then would wake itself at each poll.
#[tokio::test]
async fn waiting_main_task_sleeps() {
    let (_, b) = MemoryDevice::pair();
    let b = endpoint(b, "10.0.0.2");
    let listener = TcpListener::bind(&b, "10.0.0.2:0".parse().unwrap()).unwrap();
    let mut polls = 0;
    let mut accept = std::pin::pin!(listener.accept());
    let mut ticks = tokio::time::interval(Duration::from_millis(1));
    let until = tokio::time::Instant::now() + Duration::from_millis(300);
    std::future::poll_fn(|cx| {
        polls += 1;
        let looks_different = Waker::from(Arc::new(Forward(cx.waker().clone())));
        let polled = accept.as_mut().poll(&mut Context::from_waker(&looks_different));
        assert!(polled.is_pending(), "no peer connects");
        while ticks.poll_tick(cx).is_ready() {}
        if tokio::time::Instant::now() < until { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    assert!(polls < 1000, "{polls} polls in 300 ms");
}

/// Returns `device`, which fails when `fail` is set; `looks` counts how often the driver receives from it.
fn failing(device: MemoryDevice, fail: tokio::sync::watch::Receiver<bool>, looks: Arc<AtomicU32>) -> Watched {
    let on_look = move || {
        looks.fetch_add(1, Ordering::Relaxed);
        if *fail.borrow() { Err(io::Error::new(io::ErrorKind::NetworkDown, "unplugged")) } else { Ok(()) }
    };
    Watched { inner: device, on_look: Box::new(on_look), on_send: Box::new(|_| {}) }
}

#[tokio::test]
async fn failed_device_is_an_error_for_every_waiting_task() {
    let (fail, failed) = tokio::sync::watch::channel(false);
    let (a, b) = MemoryDevice::pair();
    let a = endpoint(failing(a, failed, Arc::default()), "10.0.0.1");
    let b = endpoint(b, "10.0.0.2");
    let (mut client, mut server) = pair(&a, &b).await;
    let listener = TcpListener::bind(&a, "10.0.0.1:80".parse().unwrap()).unwrap();
    let reading = tokio::spawn(async move { client.read_u8().await });
    let accepting = tokio::spawn(async move { listener.accept().await.map(drop) });
    tokio::task::yield_now().await;
    fail.send_replace(true);
    // The driver notices when it next calls the device.
    server.write_all(b"x").await.unwrap();
    let limit = Duration::from_secs(10);
    let error = tokio::time::timeout(limit, reading).await.unwrap().unwrap().unwrap_err();
    assert_eq!((error.kind(), error.to_string().contains("unplugged")), (io::ErrorKind::NetworkDown, true));
    let error = tokio::time::timeout(limit, accepting).await.unwrap().unwrap().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NetworkDown);
    let error = a.connect("10.0.0.2:1".parse().unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NetworkDown);
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_costs_nothing() {
    let (_never, fail) = tokio::sync::watch::channel(false);
    let looks = Arc::<AtomicU32>::default();
    let (a, b) = MemoryDevice::pair();
    let a = endpoint(failing(a, fail, looks.clone()), "10.0.0.1");
    let b = endpoint(b, "10.0.0.2");
    let (mut client, mut server) = pair(&a, &b).await;
    client.write_all(b"once").await.unwrap();
    server.read_exact(&mut [0; 4]).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = looks.load(Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(600)).await;
    let idle = looks.load(Ordering::Relaxed) - before;
    assert!(idle <= 2, "the driver ran {idle} times in ten minutes of silence");
}

#[tokio::test]
async fn device_is_closed_when_the_last_handle_is_dropped() {
    let (a, mut b) = MemoryDevice::pair();
    let endpoint = endpoint(a, "10.0.0.1");
    drop(endpoint.clone());
    tokio::task::yield_now().await;
    b.send(&[0; 40], TxMeta::default()).unwrap();
    assert_eq!(b.counters().send_refused, 0, "one handle is left");
    drop(endpoint);
    let closed = async {
        while b.counters().send_refused == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
            b.send(&[0; 40], TxMeta::default()).unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(10), closed).await.expect("the cable is cut");
}

/// Returns a TUN in a separate namespace, where the kernel is `10.0.0.1` and the stack `10.0.0.2`. `None`,
/// with the reason printed, if this user may not create one.
fn tun(offload: bool) -> Option<(Namespace, TunDevice)> {
    if !(privileges::has_net_admin() && privileges::has_sys_admin()) {
        println!("skipped: a TUN in a network namespace needs CAP_NET_ADMIN and CAP_SYS_ADMIN");
        return None;
    }
    if !std::path::Path::new("/dev/net/tun").exists() {
        println!("skipped: there is no /dev/net/tun");
        return None;
    }
    let namespace = Namespace::anonymous().unwrap();
    let options = TunOptions { offload, ..TunOptions::default() };
    let mut device = TunDevice::open_in("brisk0", &namespace, options).unwrap();
    device.configure("10.0.0.1".parse().unwrap(), 24, 1500).unwrap();
    device.configure("fd00::1".parse().unwrap(), 64, 1500).unwrap();
    Some((namespace, device))
}

fn kernel_listener(namespace: &Namespace, address: &str) -> tokio::net::TcpListener {
    let listener = namespace.run(|| std::net::TcpListener::bind(address)).unwrap().unwrap();
    listener.set_nonblocking(true).unwrap();
    tokio::net::TcpListener::from_std(listener).unwrap()
}

/// Opens a connection of the kernel from inside the namespace. Blocks, so it needs its own thread.
async fn kernel_connect(namespace: &Namespace, address: &str) -> tokio::net::TcpStream {
    let (namespace, address) = (namespace.clone(), address.to_owned());
    let connect = move || namespace.run(|| std::net::TcpStream::connect(address.as_str())).unwrap().unwrap();
    let stream = tokio::task::spawn_blocking(connect).await.unwrap();
    stream.set_nonblocking(true).unwrap();
    tokio::net::TcpStream::from_std(stream).unwrap()
}

async fn against_the_kernel(offload: bool) {
    let Some((namespace, device)) = tun(offload) else { return };
    let stack = Endpoint::builder(Box::new(device))
        .address("10.0.0.2".parse().unwrap())
        .address("fd00::2".parse().unwrap())
        .build()
        .unwrap();
    let (up, down) = (pattern(LEN, 5), pattern(LEN, 6));
    for (kernel, own, own_any) in
        [("10.0.0.1:81", "10.0.0.2:80", "0.0.0.0:80"), ("[fd00::1]:81", "[fd00::2]:80", "[::]:80")]
    {
        let listener = TcpListener::bind(&stack, own_any.parse().unwrap()).unwrap();
        let (client, accepted) = tokio::join!(kernel_connect(&namespace, own), listener.accept());
        let (server, _) = accepted.unwrap();
        let (at_client, at_server) = tokio::join!(exchange(client, &up), exchange(server, &down));
        assert!(at_server == up && at_client == down, "the kernel connects to {own}");

        let listener = kernel_listener(&namespace, kernel);
        let (client, accepted) = tokio::join!(stack.connect(kernel.parse().unwrap()), listener.accept());
        let (server, _) = accepted.unwrap();
        let (at_client, at_server) = tokio::join!(exchange(client.unwrap(), &up), exchange(server, &down));
        assert!(at_server == up && at_client == down, "the stack connects to {kernel}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_megabytes_go_both_ways_between_stack_and_kernel() {
    against_the_kernel(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_megabytes_go_both_ways_to_the_kernel_without_offload() {
    against_the_kernel(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_megabytes_from_the_kernel_are_read_without_a_copy() {
    let Some((namespace, device)) = tun(true) else { return };
    let stack = endpoint(device, "10.0.0.2");
    let listener = TcpListener::bind(&stack, "10.0.0.2:80".parse().unwrap()).unwrap();
    let (mut client, accepted) = tokio::join!(kernel_connect(&namespace, "10.0.0.2:80"), listener.accept());
    let (server, _) = accepted.unwrap();
    let data = pattern(LEN, 7);
    let writing = async {
        client.write_all(&data).await.unwrap();
        client.shutdown().await.unwrap();
    };
    let reading = async {
        let (mut received, mut pieces) = (Vec::new(), 0);
        loop {
            let bytes = server.read_bytes(usize::MAX).await.unwrap();
            if bytes.is_empty() {
                return (received, pieces);
            }
            pieces += 1;
            received.extend_from_slice(&bytes);
        }
    };
    let ((), (received, pieces)) = tokio::join!(writing, reading);
    assert!(received == data);
    assert!(pieces < LEN / 8_000, "{pieces} pieces");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_kernel_sees_resets_and_refusals() {
    let Some((namespace, device)) = tun(true) else { return };
    let stack = endpoint(device, "10.0.0.2");
    let listener = TcpListener::bind(&stack, "10.0.0.2:80".parse().unwrap()).unwrap();
    let (mut client, accepted) = tokio::join!(kernel_connect(&namespace, "10.0.0.2:80"), listener.accept());
    accepted.unwrap().0.abort();
    assert_eq!(client.read_u8().await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    let refused = namespace.run(|| std::net::TcpStream::connect("10.0.0.2:81")).unwrap().unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    let refused = stack.connect("10.0.0.1:82".parse().unwrap()).await.unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
}

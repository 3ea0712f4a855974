//! Endpoints with several stacks: each on its own queue of the same device, which delivers packets to the
//! wrong queue.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use brisk_device::{Capabilities, ChecksumState, Device, RxMeta, TxMeta};
use brisk_runtime::endpoint::Builder;
use brisk_runtime::fast_open::ReplayWindow;
use brisk_runtime::{
    CloseReason, ConnectConfig, Cores, Endpoint, FastOpenConnect, FastOpenListen, FastOpenOutcome, Forwarder,
    Lifecycle, LifecycleEvent, ListenConfig, TcpListener, TcpSocket, TcpStream,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::timeout;

const CLIENT: &str = "10.0.0.1";
const SERVER: &str = "10.0.0.2";
const TWO: NonZeroUsize = NonZeroUsize::new(2).unwrap();
/// Longer than any of these tests takes, even at idle priority on a busy machine.
const LIMIT: Duration = Duration::from_secs(900);

#[derive(Default)]
struct Waiting {
    packets: VecDeque<(Vec<u8>, RxMeta)>,
    reader: Option<Waker>,
    broken: bool,
    /// All packets received so far, if a test needs them.
    seen: Option<Vec<(Vec<u8>, RxMeta)>>,
}

type Inbox = Arc<Mutex<Waiting>>;

/// One queue of a device. It sends packets to the queues of the other side in turn, regardless of their
/// contents.
struct Queue {
    own: Inbox,
    others: Vec<Inbox>,
    next: Arc<AtomicUsize>,
}

/// Returns the queues of two connected devices, and the inboxes of the second.
fn cable(queues: [usize; 2]) -> ([Vec<Queue>; 2], Vec<Inbox>) {
    let inboxes = queues.map(|count| (0..count).map(|_| Inbox::default()).collect::<Vec<_>>());
    let side = |own: usize| {
        let next = Arc::new(AtomicUsize::new(0));
        let queue = |inbox: &Inbox| Queue {
            own: inbox.clone(),
            others: inboxes[1 - own].clone(),
            next: next.clone(),
        };
        inboxes[own].iter().map(queue).collect()
    };
    ([side(0), side(1)], inboxes[1].clone())
}

fn bring(inbox: &Inbox, packet: Vec<u8>, meta: RxMeta) {
    let mut inbox = lock(inbox);
    if let Some(seen) = &mut inbox.seen {
        seen.push((packet.clone(), meta));
    }
    inbox.packets.push_back((packet, meta));
    let reader = inbox.reader.take();
    drop(inbox);
    reader.into_iter().for_each(Waker::wake);
}

fn lock(inbox: &Inbox) -> MutexGuard<'_, Waiting> {
    inbox.lock().unwrap()
}

/// Makes this queue return an error from now on.
fn break_queue(inbox: &Inbox) {
    lock(inbox).broken = true;
    let reader = lock(inbox).reader.take();
    reader.into_iter().for_each(Waker::wake);
}

impl Device for Queue {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut own = lock(&self.own);
        if own.broken {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::NotFound, "the cable was unplugged")));
        }
        if !own.packets.is_empty() {
            return Poll::Ready(Ok(()));
        }
        own.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    fn receive(&mut self, budget: usize, sink: &mut dyn FnMut(&[u8], RxMeta)) -> io::Result<usize> {
        for count in 0..budget {
            let Some((packet, meta)) = lock(&self.own).packets.pop_front() else { return Ok(count) };
            sink(&packet, meta);
        }
        Ok(budget)
    }

    fn send(&mut self, packet: &[u8], tx: TxMeta) -> io::Result<()> {
        let checksum = if tx.partial_checksum { ChecksumState::Trusted } else { ChecksumState::Verify };
        let meta = RxMeta { checksum, segment_size: tx.segment_size };
        let to = self.next.fetch_add(1, Ordering::Relaxed) % self.others.len();
        bring(&self.others[to], packet.to_vec(), meta);
        Ok(())
    }

    fn poll_writable(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn mtu(&self) -> usize {
        1500
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { tso: true, ..Capabilities::NONE }
    }
}

fn builder(queues: Vec<Queue>, address: &str, seed: u64) -> Builder {
    let mut queues = queues.into_iter().map(|queue| Box::new(queue) as Box<dyn Device>);
    let first = Endpoint::builder(queues.next().unwrap()).address(address.parse().unwrap()).seed(seed);
    queues.fold(first, Builder::queue)
}

/// Returns a client and a server with `stacks` stacks on these cores, and the inboxes of the server.
fn hosts(stacks: [usize; 2], cores: &Cores) -> (Endpoint, Endpoint, Vec<Inbox>) {
    let ([client, server], inboxes) = cable(stacks);
    let client = builder(client, CLIENT, 1).cores(cores).build().unwrap();
    let server = builder(server, SERVER, 2).cores(cores).build().unwrap();
    assert_eq!([client.stacks(), server.stacks()], stacks);
    (client, server, inboxes)
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Sends the data of each connection back, until both ends have closed.
async fn echo(listener: TcpListener) {
    let mut connections = JoinSet::new();
    while let Ok((mut stream, _)) = listener.accept().await {
        connections.spawn(async move {
            let mut all = Vec::new();
            stream.read_to_end(&mut all).await?;
            stream.write_all(&all).await?;
            stream.shutdown().await
        });
    }
}

async fn ask(mut stream: TcpStream, what: &[u8]) -> io::Result<Vec<u8>> {
    stream.write_all(what).await?;
    stream.shutdown().await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(answer)
}

fn pattern(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(salt) >> 24) as u8).collect()
}

#[tokio::test]
async fn every_byte_arrives_through_any_queue() {
    let cores = Cores::start(TWO).unwrap();
    let (client, server, _) = hosts([2, 2], &cores);
    let listener = TcpListener::bind(&server, at("10.0.0.2:80")).unwrap();
    tokio::spawn(echo(listener));
    let mut asking = JoinSet::new();
    for salt in 0..16 {
        let client = client.clone();
        asking.spawn(async move {
            let sent = pattern(300_000, salt);
            let stream = client.connect(at("10.0.0.2:80")).await.unwrap();
            assert!(ask(stream, &sent).await.unwrap() == sent);
        });
    }
    timeout(LIMIT, asking.join_all()).await.unwrap();
    // Counters may be a tenth of a second old.
    tokio::time::sleep(Duration::from_millis(500)).await;
    for host in [&client, &server] {
        let counters = host.device_counters();
        assert!(counters.handed_over > 0, "{counters:?}");
        assert_eq!(counters.hand_over_dropped, 0);
    }
    assert_eq!((client.stats().active_opens, server.stats().handshakes_completed), (16, 16));
}

#[tokio::test]
async fn chosen_port_belongs_to_the_stack_that_gets_its_answers() {
    let cores = Cores::start(NonZeroUsize::MIN).unwrap();
    let (client, server, _) = hosts([2, 2], &cores);
    tokio::spawn(echo(TcpListener::bind(&server, at("10.0.0.2:80")).unwrap()));
    for port in 50_000..50_020 {
        for local in [format!("10.0.0.1:{port}"), format!("0.0.0.0:{}", port + 1000)] {
            let mut socket = TcpSocket::new(&client);
            socket.bind(at(&local));
            let stream = timeout(LIMIT, socket.connect(at("10.0.0.2:80"))).await.unwrap().unwrap();
            assert_eq!(stream.local_addr().port(), at(&local).port());
            assert_eq!(timeout(LIMIT, ask(stream, b"hello")).await.unwrap().unwrap(), b"hello");
        }
    }
}

#[tokio::test]
async fn ten_thousand_connections_are_open_on_two_stacks() {
    const COUNT: usize = 10_000;
    let cores = Cores::start(TWO).unwrap();
    let (client, server, _) = hosts([1, 2], &cores);
    let listener = TcpListener::bind(&server, at("10.0.0.2:80")).unwrap();
    let accepted: Vec<_> = [(); 2].map(|()| Arc::new(AtomicUsize::new(0))).into();
    for ((listener, core), accepted) in listener.split().into_iter().zip(cores.handles()).zip(&accepted) {
        let accepted = accepted.clone();
        core.spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                accepted.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(async move {
                    while let Ok(byte) = stream.read_u8().await {
                        stream.write_u8(byte).await?;
                    }
                    io::Result::Ok(())
                });
            }
        });
    }
    let mut asking = JoinSet::new();
    for _ in 0..100 {
        let client = client.clone();
        asking.spawn(async move {
            let mut streams = Vec::new();
            for n in 0..COUNT / 100 {
                let mut stream = client.connect(at("10.0.0.2:80")).await.unwrap();
                stream.write_u8(n as u8).await.unwrap();
                assert_eq!(stream.read_u8().await.unwrap(), n as u8);
                streams.push(stream);
            }
            streams
        });
    }
    let streams = timeout(LIMIT, asking.join_all()).await.unwrap();
    assert_eq!(streams.iter().flatten().count(), COUNT);
    assert_eq!((client.connections(), server.connections()), (COUNT, COUNT));
    let accepted: Vec<_> = accepted.iter().map(|accepted| accepted.load(Ordering::Relaxed)).collect();
    assert_eq!(accepted.iter().sum::<usize>(), COUNT);
    assert!(accepted.iter().all(|&count| count > COUNT * 4 / 10), "{accepted:?}");
}

#[tokio::test]
async fn one_listener_accepts_from_every_stack_in_turn() {
    let cores = Cores::start(NonZeroUsize::MIN).unwrap();
    let (client, server, _) = hosts([1, 2], &cores);
    let listener = TcpListener::bind(&server, at("10.0.0.2:0")).unwrap();
    let to = listener.local_addr();
    let mut connecting = JoinSet::new();
    for _ in 0..100 {
        let client = client.clone();
        connecting.spawn(async move { client.connect(to).await.unwrap() });
    }
    let mut accepted = Vec::new();
    while accepted.len() < 100 {
        accepted.push(timeout(LIMIT, listener.accept()).await.unwrap().unwrap());
    }
    assert_eq!(timeout(LIMIT, connecting.join_all()).await.unwrap().len(), 100);
    assert!(TcpListener::bind(&server, to).is_err(), "the port is taken in every stack");
    drop(listener);
    assert!(TcpListener::bind(&server, to).is_ok());
}

#[tokio::test]
async fn stacks_share_knowledge_of_a_server() {
    let cores = Cores::start(TWO).unwrap();
    let (client, server, _) = hosts([2, 2], &cores);
    let mut socket = TcpSocket::new(&server);
    socket.bind(at("10.0.0.2:80"));
    socket.fast_open(256);
    tokio::spawn(echo(socket.listen(100).unwrap()));
    let config = ConnectConfig {
        fast_open: Some(FastOpenConnect { defer: false, ..FastOpenConnect::default() }),
        ..ConnectConfig::default()
    };
    let open = async |client: &Endpoint| {
        let (mut stream, taken) = client.connect_with_data(at("10.0.0.2:80"), b"hello", &config).unwrap();
        assert_eq!(taken, 5);
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        timeout(LIMIT, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
        assert_eq!(answer, b"hello");
        stream.stats().unwrap().fast_open
    };
    assert_ne!(open(&client).await, FastOpenOutcome::Used);
    // Connections come from either core, and go to either stack of the server.
    for n in 0..20 {
        let (client, config) = (client.clone(), config.clone());
        let opening = async move {
            let (mut stream, _) = client.connect_with_data(at("10.0.0.2:80"), b"hello", &config).unwrap();
            stream.shutdown().await.unwrap();
            stream.read_to_end(&mut Vec::new()).await.unwrap();
            stream.stats().unwrap().fast_open
        };
        let outcome = timeout(LIMIT, cores.handles()[n % 2].spawn(opening)).await.unwrap().unwrap();
        assert_eq!(outcome, FastOpenOutcome::Used, "{n}");
    }
    assert_eq!((server.stats().fast_open.served, server.stats().fast_open.cookie_invalid), (20, 0));
    assert!(client.path("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()).rtt.is_some());
    assert!(client.export_fast_open_cache().contains("10.0.0.2"));
}

/// Positions of the source port and the flags in an IPv4 packet with a TCP segment.
const SOURCE_PORT: std::ops::Range<usize> = 20..22;
const FLAGS: usize = 33;
const SYN: u8 = 2;

#[tokio::test]
async fn copy_of_a_syn_is_recognised_by_every_stack() {
    let cores = Cores::start(TWO).unwrap();
    let (client, server, inboxes) = hosts([1, 2], &cores);
    let replay_window = Some(ReplayWindow::default());
    let fast_open = Some(FastOpenListen { replay_window, ..FastOpenListen::default() });
    let config = ListenConfig { fast_open, ..ListenConfig::default() };
    tokio::spawn(echo(TcpListener::bind_with(&server, at("10.0.0.2:80"), config).unwrap()));
    let config = ConnectConfig {
        fast_open: Some(FastOpenConnect { defer: false, ..FastOpenConnect::default() }),
        ..ConnectConfig::default()
    };
    for _ in 0..2 {
        inboxes.iter().for_each(|inbox| lock(inbox).seen = Some(Vec::new()));
        let (mut stream, _) = client.connect_with_data(at("10.0.0.2:80"), b"hello", &config).unwrap();
        stream.shutdown().await.unwrap();
        timeout(LIMIT, stream.read_to_end(&mut Vec::new())).await.unwrap().unwrap();
    }
    let seen: Vec<_> = inboxes.iter().flat_map(|inbox| lock(inbox).seen.take().unwrap()).collect();
    let (syn, meta) = seen.into_iter().find(|(packet, _)| packet[FLAGS] & SYN != 0).unwrap();
    assert!(syn.ends_with(b"hello"));
    let meta = RxMeta { checksum: ChecksumState::Trusted, ..meta };
    for port in 1..=20_u16 {
        let mut copy = syn.clone();
        copy[SOURCE_PORT].copy_from_slice(&port.to_be_bytes());
        bring(&inboxes[usize::from(port) % 2], copy, meta);
    }
    let blocked = async {
        while server.stats().fast_open.replay_blocked < 20 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(30), blocked).await.expect("a copy is not recognised");
    assert_eq!(server.stats().fast_open.served, 1);
}

#[tokio::test]
async fn loss_of_one_queue_is_reported_to_every_waiting_task() {
    let cores = Cores::start(TWO).unwrap();
    let (client, server, inboxes) = hosts([1, 2], &cores);
    let listener = TcpListener::bind(&server, at("10.0.0.2:80")).unwrap();
    let mut accepted = Vec::new();
    for _ in 0..16 {
        let (stream, incoming) = tokio::join!(client.connect(at("10.0.0.2:80")), listener.accept());
        accepted.push((stream.unwrap(), incoming.unwrap().0));
    }
    let waiting = tokio::spawn(async move { listener.accept().await.map(drop) });
    tokio::task::yield_now().await;
    break_queue(&inboxes[1]);
    let error = timeout(LIMIT, waiting).await.unwrap().unwrap().unwrap_err();
    assert!(error.to_string().contains("the cable was unplugged"), "{error}");
    // Every stack reports the error: otherwise half of the connections would wait without end.
    for (_, mut stream) in accepted {
        let error = timeout(LIMIT, stream.read_u8()).await.unwrap().unwrap_err();
        assert!(error.to_string().contains("the cable was unplugged"), "{error}");
    }
    assert!(TcpListener::bind(&server, at("10.0.0.2:81")).is_err());
    timeout(LIMIT, server.wait_idle()).await.unwrap();
}

/// All datagrams of a peer arrive at one socket, because the kernel keeps a flow on one socket and there is
/// only one flow.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn tcp_in_udp_between_two_hosts_with_two_stacks_each() {
    use brisk_runtime::DeviceSpec;
    use brisk_runtime::attach::{AttachConfig, Attached, Queues};

    for bind in ["udp:127.0.0.1:0", "udp:[::1]:0", "udp:[::]:0"] {
        let cores = Cores::start(TWO).unwrap();
        let open = |bind: &str| {
            let queues = Queues::Exactly(2);
            let (builder, attached) =
                AttachConfig { queues, ..AttachConfig::new(bind.parse().unwrap()) }.open().unwrap();
            (builder.cores(&cores).build().unwrap(), attached)
        };
        let ((server, served), (client, attached)) = (open(bind), open(bind));
        let local = at(&format!("[::]:{}", served.service_port(80)));
        let listener = TcpListener::bind(&server, local).unwrap();
        let mut outside = served.outside(listener.local_addr());
        if outside.ip().is_unspecified() {
            outside.set_ip("127.0.0.1".parse().unwrap());
        }
        tokio::spawn(echo(listener));
        let to = attached.destination(outside).unwrap();
        let exchanges = async || {
            let mut asking = JoinSet::new();
            for salt in 0..16 {
                let client = client.clone();
                asking.spawn(async move {
                    let sent = pattern(100_000, salt);
                    let stream = client.connect(to).await.unwrap();
                    assert!(ask(stream, &sent).await.unwrap() == sent);
                });
            }
            timeout(LIMIT, asking.join_all()).await.unwrap();
        };
        exchanges().await;
        // The counters are updated from time to time. The client opens all connections on this thread's core,
        // so possibly no packet arrives on a wrong queue there.
        while server.device_counters().handed_over == 0 {
            tokio::time::sleep(Duration::from_millis(150)).await;
            exchanges().await;
        }
        let Attached::Udp { local } = served else { panic!("{served:?}") };
        let error = AttachConfig::new(DeviceSpec::Udp { bind: local }).open().map(drop).unwrap_err();
        assert!(error.to_string().contains("in use"), "{error}");
    }
}

#[tokio::test]
async fn one_forwarder_serves_all_stacks_and_closing_ends_all_of_them() {
    let cores = Cores::start(TWO).unwrap();
    let ([client, server], _) = cable([1, 2]);
    let client = builder(client, CLIENT, 1).build().unwrap();
    let server = builder(server, SERVER, 2).any_address().cores(&cores).build().unwrap();
    let forwarder = Forwarder::bind(&server, 64).unwrap();
    assert_eq!(Forwarder::bind(&server, 64).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    let mut connecting = JoinSet::new();
    for port in 1..=40 {
        let client = client.clone();
        connecting.spawn(async move { client.connect(SocketAddr::new([203, 0, 113, 9].into(), port)).await });
    }
    let mut accepted = Vec::new();
    while accepted.len() < 40 {
        let request = timeout(LIMIT, forwarder.request()).await.unwrap().unwrap();
        accepted.push(timeout(LIMIT, request.accept()).await.unwrap().unwrap());
    }
    let mut streams: Vec<_> = timeout(LIMIT, connecting.join_all()).await.unwrap();
    let waiting = tokio::spawn(async move { forwarder.request().await.map(drop) });
    tokio::task::yield_now().await;
    assert_eq!(timeout(LIMIT, server.close(Duration::from_millis(50))).await.unwrap(), 40);
    assert!(timeout(LIMIT, waiting).await.unwrap().unwrap().is_err());
    for stream in &mut streams {
        let read = timeout(LIMIT, stream.as_mut().unwrap().read(&mut [0])).await.unwrap();
        assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    }
    for mut stream in accepted {
        let error = timeout(LIMIT, stream.read_u8()).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
    }
    timeout(LIMIT, client.wait_idle()).await.unwrap();
}

#[tokio::test]
async fn limits_are_divided_among_the_stacks() {
    let ([client, server], _) = cable([1, 2]);
    let client = builder(client, CLIENT, 1).build().unwrap();
    let server = builder(server, SERVER, 2).stack(|stack| stack.max_connections = 20).build().unwrap();
    let _listener = TcpListener::bind(&server, at("10.0.0.2:80")).unwrap();
    let mut connecting = JoinSet::new();
    for _ in 0..60 {
        let client = client.clone();
        connecting.spawn(async move { client.connect(at("10.0.0.2:80")).await });
    }
    let mut streams = Vec::new();
    while streams.len() < 20 {
        streams.push(timeout(LIMIT, connecting.join_next()).await.unwrap().unwrap().unwrap().unwrap());
    }
    assert_eq!(server.connections(), 20);
}

#[tokio::test]
async fn changes_of_a_connection_reach_the_observer_in_order_from_each_stack() {
    let cores = Cores::start(TWO).unwrap();
    let ([client, server], _) = cable([1, 2]);
    let client = builder(client, CLIENT, 1).build().unwrap();
    let heard = Arc::new(Mutex::new(HashMap::<SocketAddr, Vec<Lifecycle>>::new()));
    let threads = Arc::new(Mutex::new(HashSet::new()));
    let observer = {
        let (heard, threads) = (heard.clone(), threads.clone());
        move |event: &LifecycleEvent| {
            threads.lock().unwrap().insert(std::thread::current().id());
            heard.lock().unwrap().entry(event.ends.remote).or_default().push(event.change);
        }
    };
    let server = builder(server, SERVER, 2).observe(observer).cores(&cores).build().unwrap();
    let listener = TcpListener::bind(&server, at("10.0.0.2:80")).unwrap();
    for _ in 0..100 {
        let (stream, accepted) = tokio::join!(client.connect(at("10.0.0.2:80")), listener.accept());
        drop((stream.unwrap(), accepted.unwrap()));
    }
    timeout(LIMIT, async { tokio::join!(client.wait_idle(), server.wait_idle()) }).await.unwrap();
    // The driver that was idle last may be about to call the observer.
    while heard.lock().unwrap().values().map(Vec::len).sum::<usize>() < 200 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let heard = heard.lock().unwrap();
    let life = [Lifecycle::Established, Lifecycle::Closed(CloseReason::Finished)];
    assert!(heard.len() == 100 && heard.values().all(|changes| *changes == life), "{heard:?}");
    assert_eq!(threads.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn one_time_cookies_need_a_single_stack() {
    let ([_, server], _) = cable([1, 2]);
    let server = builder(server, SERVER, 2).build().unwrap();
    let mut socket = TcpSocket::new(&server);
    socket.bind(at("10.0.0.2:80"));
    socket.set_fast_open_listen(Some(brisk_runtime::FastOpenListen { one_time: true, ..Default::default() }));
    let error = socket.listen(8).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
}

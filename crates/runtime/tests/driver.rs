//! Order in which the driver transmits, and its counters.

mod watched;

use std::io;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use brisk_device::memory::MemoryDevice;
use brisk_device::{Capabilities, Device, Gathered, RxMeta, TxMeta};
use brisk_runtime::{Endpoint, TcpListener};
use brisk_wire::{ChecksumCheck, Flags, Packet, parse};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;
use watched::{Watched, builder};

fn endpoint(device: impl Device + 'static, address: &str) -> Endpoint {
    builder(device, address).build().unwrap()
}

/// Kind of a packet on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sent {
    SynAck,
    Ack,
    Data,
}

impl Sent {
    fn of(packet: &[u8]) -> Sent {
        match parse(packet, ChecksumCheck::Trust) {
            Ok(Packet::Tcp(syn)) if syn.tcp.flags.contains(Flags::SYN) => Sent::SynAck,
            Ok(Packet::Tcp(ack)) if ack.payload.is_empty() => Sent::Ack,
            Ok(Packet::Tcp(_)) => Sent::Data,
            other => panic!("not TCP: {other:?}"),
        }
    }
}

/// Wraps `device`; returns it with a log of the packets that it sends.
fn tapped(device: MemoryDevice) -> (Watched, Arc<Mutex<Vec<Sent>>>) {
    let sent = Arc::<Mutex<Vec<Sent>>>::default();
    let noted = sent.clone();
    let on_send = Box::new(move |packet: &[u8]| noted.lock().unwrap().push(Sent::of(packet)));
    (Watched { inner: device, on_look: Box::new(|| Ok(())), on_send }, sent)
}

/// Sends a request on an open connection, together with the SYN of a second connection. Returns the packets
/// with which the server answers. Its program takes `thinking` before it writes the response.
async fn answers(thinking: Duration) -> Vec<Sent> {
    let (near, far) = MemoryDevice::pair();
    let (far, sent) = tapped(far);
    let (client, server) = (endpoint(near, "10.0.0.1"), endpoint(far, "10.0.0.2"));
    let listener = TcpListener::bind(&server, "10.0.0.2:80".parse().unwrap()).unwrap();
    let (asking, accepted) = tokio::join!(client.connect(listener.local_addr()), listener.accept());
    let (mut asking, (mut answering, _)) = (asking.unwrap(), accepted.unwrap());
    let program = async move {
        let mut request = [0; 7];
        answering.read_exact(&mut request).await.unwrap();
        tokio::time::sleep(thinking).await;
        answering.write_all(b"response").await.unwrap();
        answering
    };
    let program = tokio::spawn(program);
    tokio::time::sleep(Duration::from_secs(1)).await;
    sent.lock().unwrap().clear();
    // Both leave in one round of the client's driver.
    let (written, second) = tokio::join!(asking.write_all(b"request"), client.connect(listener.local_addr()));
    written.unwrap();
    let _open = second.unwrap();
    let mut response = [0; 8];
    asking.read_exact(&mut response).await.unwrap();
    drop(program.await.unwrap());
    sent.lock().unwrap().clone()
}

/// A device with `gather` that leaves every third packet of a batch unsent.
struct Choosy {
    inner: MemoryDevice,
    offered: usize,
}

impl Device for Choosy {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner.poll_readable(cx)
    }

    fn receive(&mut self, budget: usize, sink: &mut dyn FnMut(&[u8], RxMeta)) -> io::Result<usize> {
        self.inner.receive(budget, sink)
    }

    fn send(&mut self, packet: &[u8], tx: TxMeta) -> io::Result<()> {
        self.inner.send(packet, tx)
    }

    fn send_batch(&mut self, packets: &mut [Gathered<'_>]) -> io::Result<()> {
        for packet in packets {
            self.offered += 1;
            if !self.offered.is_multiple_of(3) {
                let [first, second] = packet.payload;
                self.inner.send(&[packet.headers, first, second].concat(), packet.tx)?;
                packet.taken = true;
            }
        }
        Ok(())
    }

    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner.poll_writable(cx)
    }

    fn mtu(&self) -> usize {
        self.inner.mtu()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { gather: true, ..self.inner.capabilities() }
    }
}

#[tokio::test(start_paused = true)]
async fn packets_that_send_batch_left_are_sent_later() {
    let (near, far) = MemoryDevice::pair();
    let (client, server) =
        (endpoint(near, "10.0.0.1"), endpoint(Choosy { inner: far, offered: 0 }, "10.0.0.2"));
    let listener = TcpListener::bind(&server, "10.0.0.2:80".parse().unwrap()).unwrap();
    let (reading, accepted) = tokio::join!(client.connect(listener.local_addr()), listener.accept());
    let (mut reading, (mut writing, _)) = (reading.unwrap(), accepted.unwrap());
    let content: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    let expected = content.clone();
    let writer = tokio::spawn(async move {
        writing.write_all(&content).await.unwrap();
        writing.shutdown().await.unwrap();
        writing
    });
    let mut read = Vec::new();
    reading.read_to_end(&mut read).await.unwrap();
    assert!(read == expected);
    drop(writer.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn syn_ack_is_not_delayed_but_the_ack_of_a_request_is() {
    let sent = answers(Duration::ZERO).await;
    assert_eq!(sent[..2], [Sent::SynAck, Sent::Data], "{sent:?}");
}

#[tokio::test(start_paused = true)]
async fn ack_is_sent_without_data_if_the_reader_takes_too_long() {
    let sent = answers(Duration::from_millis(30)).await;
    assert_eq!(sent[..3], [Sent::SynAck, Sent::Ack, Sent::Data], "{sent:?}");
}

/// The timer for the end of the readers' turn would wake the driver a millisecond after each delivery.
#[tokio::test(start_paused = true)]
async fn a_reader_that_acts_at_once_costs_no_wake_up() {
    let (near, inner) = MemoryDevice::pair();
    let looks = Arc::<Mutex<Vec<Instant>>>::default();
    let noted = looks.clone();
    let on_look = Box::new(move || {
        noted.lock().unwrap().push(Instant::now());
        Ok(())
    });
    let far = Watched { inner, on_look, on_send: Box::new(|_| ()) };
    let (client, server) = (endpoint(near, "10.0.0.1"), endpoint(far, "10.0.0.2"));
    let listener = TcpListener::bind(&server, "10.0.0.2:80".parse().unwrap()).unwrap();
    let (asking, accepted) = tokio::join!(client.connect(listener.local_addr()), listener.accept());
    let (mut asking, (mut answering, _)) = (asking.unwrap(), accepted.unwrap());
    let program = tokio::spawn(async move {
        let mut request = [0; 7];
        answering.read_exact(&mut request).await.unwrap();
        answering.write_all(b"response").await.unwrap();
        answering
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    looks.lock().unwrap().clear();
    let begin = Instant::now();
    asking.write_all(b"request").await.unwrap();
    asking.read_exact(&mut [0; 8]).await.unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    let looks = looks.lock().unwrap().clone();
    assert!(!looks.is_empty() && looks.iter().all(|look| *look == begin), "{begin:?}: {looks:?}");
    drop(program.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn device_counters_are_current_when_the_connection_is_idle() {
    let (near, far) = MemoryDevice::pair();
    let (far, sent) = tapped(far);
    let (client, server) = (endpoint(near, "10.0.0.1"), endpoint(far, "10.0.0.2"));
    let listener = TcpListener::bind(&server, "10.0.0.2:80".parse().unwrap()).unwrap();
    let (asking, accepted) = tokio::join!(client.connect(listener.local_addr()), listener.accept());
    let (_asking, _accepted) = (asking.unwrap(), accepted.unwrap());
    tokio::time::sleep(Duration::from_millis(150)).await;
    let counted = server.device_counters();
    assert_eq!((counted.sent, counted.received), (sent.lock().unwrap().len() as u64, 2), "SYN-ACK; SYN, ACK");
    assert!(counted.sent > 0);
}

#[tokio::test]
async fn busy_readers_do_not_delay_a_sender() {
    let (near, far) = MemoryDevice::pair();
    let (client, server) = (endpoint(near, "10.0.0.1"), endpoint(far, "10.0.0.2"));
    let listener = TcpListener::bind(&server, "10.0.0.2:80".parse().unwrap()).unwrap();
    let open = || async {
        let (asking, accepted) = tokio::join!(client.connect(listener.local_addr()), listener.accept());
        (asking.unwrap(), accepted.unwrap().0)
    };
    let (mut asking, mut answering) = open().await;
    for _ in 0..64 {
        let (mut asking, mut reading) = open().await;
        asking.set_nodelay(true);
        tokio::spawn(async move {
            while asking.write_all(&[1; 100]).await.is_ok() {
                tokio::task::yield_now().await;
            }
        });
        tokio::spawn(async move { while reading.read(&mut [0; 1000]).await.is_ok() {} });
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    for _ in 0..20 {
        answering.write_all(b"event").await.unwrap();
        let mut event = [0; 5];
        let heard = tokio::time::timeout(Duration::from_secs(2), asking.read_exact(&mut event)).await;
        heard.expect("the event is not sent").unwrap();
    }
}

/// A device that calls `on_packet` for each packet while it receives.
struct Talkative {
    inner: MemoryDevice,
    on_packet: Box<dyn FnMut() + Send>,
}

impl Device for Talkative {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner.poll_readable(cx)
    }

    fn receive(&mut self, budget: usize, sink: &mut dyn FnMut(&[u8], RxMeta)) -> io::Result<usize> {
        let on_packet = &mut self.on_packet;
        self.inner.receive(budget, &mut |packet, meta| {
            on_packet();
            sink(packet, meta);
        })
    }

    fn send(&mut self, packet: &[u8], tx: TxMeta) -> io::Result<()> {
        self.inner.send(packet, tx)
    }

    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner.poll_writable(cx)
    }

    fn mtu(&self) -> usize {
        self.inner.mtu()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
}

#[tokio::test]
async fn device_may_use_its_own_endpoint_while_it_receives() {
    let (near, far) = MemoryDevice::pair();
    let own: Arc<Mutex<Option<Endpoint>>> = Arc::default();
    let (known, listener) = (own.clone(), Arc::new(Mutex::new(None)));
    let bound = listener.clone();
    // The device binds a listener at the destination of the SYN that it carries, as a tunnel may. It does so
    // in its own thread, so that the test fails, and does not block, if the endpoint is locked.
    let on_packet = move || {
        let Some(endpoint) = known.lock().unwrap().take() else { return };
        let (done, waits) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let listener = TcpListener::bind(&endpoint, "10.0.0.2:80".parse().unwrap()).unwrap();
            done.send((endpoint, listener))
        });
        let heard = waits.recv_timeout(Duration::from_secs(10));
        *bound.lock().unwrap() = Some(heard.expect("the endpoint is locked while its device receives"));
    };
    let server = endpoint(Talkative { inner: far, on_packet: Box::new(on_packet) }, "10.0.0.2");
    *own.lock().unwrap() = Some(server);
    let client = endpoint(near, "10.0.0.1");
    let connecting = client.connect("10.0.0.2:80".parse().unwrap());
    tokio::time::timeout(Duration::from_secs(10), connecting).await.unwrap().unwrap();
    assert!(listener.lock().unwrap().is_some());
}

#[tokio::test]
async fn panic_of_a_device_is_reported_as_such() {
    let (near, far) = MemoryDevice::pair();
    let on_packet = Box::new(|| panic!("a device panics"));
    let (client, server) =
        (endpoint(near, "10.0.0.1"), endpoint(Talkative { inner: far, on_packet }, "10.0.0.2"));
    let listener = TcpListener::bind(&server, "10.0.0.2:80".parse().unwrap()).unwrap();
    tokio::spawn(async move { client.connect("10.0.0.2:80".parse().unwrap()).await });
    let error = tokio::time::timeout(Duration::from_secs(10), listener.accept()).await.unwrap().unwrap_err();
    assert_eq!(error.to_string(), "the device panicked");
}

async fn talks_to_itself(device: impl Device + 'static, address: &str) {
    let host = endpoint(device, address);
    let listener = TcpListener::bind(&host, format!("{address}:80").parse().unwrap()).unwrap();
    let (asking, accepted) = tokio::join!(host.connect(listener.local_addr()), listener.accept());
    let (mut asking, (mut answering, _)) = (asking.unwrap(), accepted.unwrap());
    let content: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    let expected = content.clone();
    tokio::spawn(async move {
        asking.write_all(&content).await.unwrap();
        asking.shutdown().await.unwrap();
        asking
    });
    let mut read = Vec::new();
    answering.read_to_end(&mut read).await.unwrap();
    assert!(read == expected);
    let refused = host.connect(format!("{address}:81").parse().unwrap()).await.unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn endpoint_that_connects_to_its_own_address_reaches_itself() {
    let sends_nothing = |device| Watched {
        inner: device,
        on_look: Box::new(|| Ok(())),
        on_send: Box::new(|_| panic!("a packet to itself reached the device")),
    };
    talks_to_itself(sends_nothing(MemoryDevice::pair().0), "10.0.0.1").await;
    talks_to_itself(Choosy { inner: MemoryDevice::pair().0, offered: 0 }, "10.0.0.1").await;
}

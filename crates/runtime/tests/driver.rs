//! What the driver sends, and in which order, where readers have their turn first.

use std::io;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use brisk_packet_io::memory::MemoryDevice;
use brisk_packet_io::{Capabilities, Device, RxMeta, TxMeta};
use brisk_runtime::{Endpoint, TcpListener};
use brisk_wire::{ChecksumCheck, Flags, Packet, parse};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A device that notes what is sent.
struct Tapped {
    inner: MemoryDevice,
    sent: Arc<Mutex<Vec<Sent>>>,
}

/// What a packet is to whoever looks at the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sent {
    SynAck,
    Ack,
    Data,
}

impl Device for Tapped {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner.poll_readable(cx)
    }

    fn receive(&mut self, budget: usize, sink: &mut dyn FnMut(&[u8], RxMeta)) -> io::Result<usize> {
        self.inner.receive(budget, sink)
    }

    fn send(&mut self, packet: &[u8], tx: TxMeta) -> io::Result<()> {
        let Ok(Packet::Tcp(segment)) = parse(packet, ChecksumCheck::Trust) else { panic!("not TCP") };
        self.sent.lock().unwrap().push(match segment {
            syn if syn.tcp.flags.contains(Flags::SYN) => Sent::SynAck,
            ack if ack.payload.is_empty() => Sent::Ack,
            _ => Sent::Data,
        });
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

fn endpoint(device: impl Device + 'static, address: &str) -> Endpoint {
    Endpoint::builder(Box::new(device)).address(address.parse().unwrap()).build().unwrap()
}

/// What a server sends of a request on an open connection that arrives together with the SYN of another, if its program takes
/// `thinking` before it answers.
async fn answers(thinking: Duration) -> Vec<Sent> {
    let (near, far) = MemoryDevice::pair();
    let sent = Arc::<Mutex<Vec<Sent>>>::default();
    let client = endpoint(near, "10.0.0.1");
    let server = endpoint(Tapped { inner: far, sent: sent.clone() }, "10.0.0.2");
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

#[tokio::test(start_paused = true)]
async fn a_syn_is_answered_at_once_and_takes_no_acknowledgement_along_that_can_leave_with_the_response() {
    let sent = answers(Duration::ZERO).await;
    assert_eq!(sent[..2], [Sent::SynAck, Sent::Data], "{sent:?}");
}

#[tokio::test(start_paused = true)]
async fn who_thinks_for_longer_than_its_turn_is_not_waited_for() {
    let sent = answers(Duration::from_millis(30)).await;
    assert_eq!(sent[..3], [Sent::SynAck, Sent::Ack, Sent::Data], "{sent:?}");
}

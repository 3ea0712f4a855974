//! The same server on each stack.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use brisk_device::{Device, TxMeta};
use brisk_packet_io::tun::{TunDevice, TunOptions};
use brisk_runtime::memory::ADDRESSES;
use brisk_runtime::{CongestionAlgorithm, Endpoint, TcpConfig, TcpSocket};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{DeviceCapabilities, Medium};
use smoltcp::socket::tcp::{CongestionControl, Socket, SocketBuffer};
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::task::JoinSet;

/// Address of the server.
pub const SERVER: SocketAddr = SocketAddr::new(ADDRESSES[1][0], 80);
const MTU: usize = 1500;
const BACKLOG: usize = 1024;

/// Length of the request: the number of bytes to send, 64 bits.
const REQUEST: usize = 8;

/// Starts the server of a stack on `device`, for at most `connections` at a time. Stacks without buffers that
/// grow get `buffer` bytes for each direction of a connection.
///
/// # Errors
/// A stack without a server, or a refusal of the system.
pub fn serve(
    stack: &str,
    device: Box<dyn Device>,
    connections: usize,
    buffer: usize,
) -> io::Result<JoinSet<()>> {
    let mut tasks = JoinSet::new();
    match stack {
        "brisk" => brisk(device, CongestionAlgorithm::default(), &mut tasks)?,
        "brisk-bbr" => brisk(device, CongestionAlgorithm::Bbr, &mut tasks)?,
        "kernel" => kernel(device, b"cubic", &mut tasks)?,
        "kernel-bbr" => kernel(device, b"bbr", &mut tasks)?,
        "smoltcp" => drop(tasks.spawn(smoltcp(device, connections, buffer))),
        "ipstack" => ipstack(device, &mut tasks),
        #[cfg(feature = "lwip")]
        "lwip" => lwip(device, &mut tasks)?,
        _ => return Err(io::Error::other(format!("no server on {stack}"))),
    }
    Ok(tasks)
}

async fn talk(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    let mut request = [0; REQUEST];
    stream.read_exact(&mut request).await?;
    let mut left = u64::from_be_bytes(request);
    let mut buffer = vec![0; 64 << 10];
    while left > 0 {
        let piece = left.min(buffer.len() as u64);
        stream.write_all(&buffer[..piece as usize]).await?;
        left -= piece;
    }
    stream.flush().await?;
    while stream.read(&mut buffer).await? > 0 {}
    stream.shutdown().await
}

/// Serves a connection; a failed one ends without a message, like those that the client abandons.
fn spawn_talk(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
    tokio::spawn(talk(stream));
}

fn brisk(
    device: Box<dyn Device>,
    congestion: CongestionAlgorithm,
    tasks: &mut JoinSet<()>,
) -> io::Result<()> {
    let tcp = TcpConfig { congestion, ..TcpConfig::default() };
    let endpoint = Endpoint::builder(device).address(SERVER.ip()).tcp(tcp).build()?;
    let mut socket = TcpSocket::new(&endpoint);
    socket.bind(SERVER);
    let listener = socket.listen(BACKLOG)?;
    tasks.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            stream.set_nodelay(true);
            spawn_talk(stream);
        }
    });
    Ok(())
}

/// Joins a TUN device to the other device by a task that copies packets.
fn kernel(mut device: Box<dyn Device>, congestion: &'static [u8], tasks: &mut JoinSet<()>) -> io::Result<()> {
    let options = TunOptions { offload: false, ..TunOptions::default() };
    let mut tun = TunDevice::open("peers0", options).map_err(io::Error::other)?;
    tun.configure(SERVER.ip(), 24, MTU as u32).map_err(io::Error::other)?;
    let socket = tokio::net::TcpSocket::new_v4()?;
    socket.bind(SERVER)?;
    let listener = socket.listen(BACKLOG as u32)?;
    tasks.spawn(async move {
        loop {
            poll_fn(|cx| match (device.poll_readable(cx), tun.poll_readable(cx)) {
                (Poll::Pending, Poll::Pending) => Poll::Pending,
                _ => Poll::Ready(()),
            })
            .await;
            // A packet for which a queue has no room is lost, as on a network.
            let _ = device.receive(64, &mut |packet, _| drop(tun.send(packet, TxMeta::default())));
            let _ = tun.receive(64, &mut |packet, _| drop(device.send(packet, TxMeta::default())));
        }
    });
    tasks.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let set = socket2::SockRef::from(&stream).set_tcp_congestion(congestion);
            set.and_then(|()| stream.set_nodelay(true)).expect("the kernel's options");
            spawn_talk(stream);
        }
    });
    Ok(())
}

fn ipstack(device: Box<dyn Device>, tasks: &mut JoinSet<()>) {
    let mut config = ipstack::IpStackConfig::default();
    config.mtu_unchecked(MTU as u16);
    let mut stack = ipstack::IpStack::new(config, PacketStream(device));
    tasks.spawn(async move {
        while let Ok(stream) = stack.accept().await {
            if let ipstack::IpStackStream::Tcp(stream) = stream {
                spawn_talk(stream);
            }
        }
    });
}

/// A device as a stream: a read returns one packet, and a write sends one.
struct PacketStream(Box<dyn Device>);

impl AsyncRead for PacketStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            std::task::ready!(self.0.poll_readable(cx))?;
            if self.0.receive(1, &mut |packet, _| buffer.put_slice(packet))? > 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl AsyncWrite for PacketStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, packet: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            match self.0.send(packet, TxMeta::default()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    std::task::ready!(self.0.poll_writable(cx))?;
                }
                sent => return Poll::Ready(sent.map(|()| packet.len())),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(feature = "lwip")]
fn lwip(mut device: Box<dyn Device>, tasks: &mut JoinSet<()>) -> io::Result<()> {
    use futures::{SinkExt, StreamExt};
    let (stack, mut listener, _) = lwip::NetStack::new().map_err(io::Error::other)?;
    let (mut to_stack, mut from_stack) = stack.split();
    tasks.spawn(async move {
        loop {
            tokio::select! {
                _ = poll_fn(|cx| device.poll_readable(cx)) => {
                    let mut packets = Vec::new();
                    let _ = device.receive(64, &mut |packet, _| packets.push(packet.to_vec()));
                    for packet in packets {
                        let _ = to_stack.send(packet).await;
                    }
                }
                Some(Ok(packet)) = from_stack.next() => drop(device.send(&packet, TxMeta::default())),
            }
        }
    });
    tasks.spawn(async move {
        while let Some((stream, ..)) = listener.next().await {
            spawn_talk(stream);
        }
    });
    Ok(())
}

/// One task polls smoltcp and all its conversations. A socket listens again when its connection has ended.
async fn smoltcp(device: Box<dyn Device>, connections: usize, buffer: usize) {
    let mut carrier = Carrier { device, arrived: VecDeque::new() };
    let began = std::time::Instant::now();
    let now = || Instant::from_micros(began.elapsed().as_micros() as i64);
    let mut interface = Interface::new(Config::new(HardwareAddress::Ip), &mut carrier, now());
    interface.update_ip_addrs(|addresses| {
        addresses.push(IpCidr::new(IpAddress::v4(10, 0, 0, 2), 24)).expect("room for one address");
    });
    let mut set = SocketSet::new(Vec::new());
    let mut conversations: Vec<_> =
        (0..connections).map(|_| Conversation { handle: set.add(socket(buffer)), left: None }).collect();
    let mut bytes = vec![0; 64 << 10];
    loop {
        // The first time, this makes the sockets listen.
        for conversation in &mut conversations {
            conversation.go_on(set.get_mut(conversation.handle), &mut bytes);
        }
        interface.poll(now(), &mut carrier, &mut set);
        for conversation in &mut conversations {
            conversation.go_on(set.get_mut(conversation.handle), &mut bytes);
        }
        interface.poll(now(), &mut carrier, &mut set);
        let delay = interface.poll_delay(now(), &set).map_or(Duration::from_secs(1), Into::into);
        tokio::select! {
            _ = poll_fn(|cx| carrier.device.poll_readable(cx)) => {}
            () = tokio::time::sleep(delay), if !delay.is_zero() => {}
            () = tokio::task::yield_now(), if delay.is_zero() => {}
        }
    }
}

fn socket(buffer: usize) -> Socket<'static> {
    let buffer = || SocketBuffer::new(vec![0; buffer]);
    let mut socket = Socket::new(buffer(), buffer());
    socket.set_nagle_enabled(false);
    socket.set_congestion_control(CongestionControl::Cubic);
    socket
}

struct Conversation {
    handle: SocketHandle,
    /// Bytes that are left to send after the request.
    left: Option<u64>,
}

impl Conversation {
    fn go_on(&mut self, socket: &mut Socket<'_>, bytes: &mut [u8]) {
        if !socket.is_open() {
            self.left = None;
            socket.listen(SERVER.port()).expect("a port");
            return;
        }
        if self.left.is_none() && socket.recv_queue() >= REQUEST {
            let mut request = [0; REQUEST];
            let _ = socket.recv_slice(&mut request);
            self.left = Some(u64::from_be_bytes(request));
        }
        let Some(left) = &mut self.left else { return };
        while *left > 0 && socket.can_send() {
            let piece = (*left).min(bytes.len() as u64) as usize;
            *left -= socket.send_slice(&bytes[..piece]).unwrap_or(0) as u64;
        }
        if !socket.may_recv() {
            socket.close();
        }
    }
}

/// A device for smoltcp.
struct Carrier {
    device: Box<dyn Device>,
    arrived: VecDeque<Vec<u8>>,
}

impl smoltcp::phy::Device for Carrier {
    type RxToken<'a> = Arrived;
    type TxToken<'a> = Leaving<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Arrived, Leaving<'_>)> {
        if self.arrived.is_empty() {
            let _ = self.device.receive(64, &mut |packet, _| self.arrived.push_back(packet.to_vec()));
        }
        Some((Arrived(self.arrived.pop_front()?), Leaving(&mut *self.device)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Leaving<'_>> {
        Some(Leaving(&mut *self.device))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = MTU;
        capabilities
    }
}

struct Arrived(Vec<u8>);

impl smoltcp::phy::RxToken for Arrived {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(&self.0)
    }
}

struct Leaving<'a>(&'a mut dyn Device);

impl smoltcp::phy::TxToken for Leaving<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, fill: F) -> R {
        let mut packet = vec![0; len];
        let result = fill(&mut packet);
        // A full queue loses the packet, and TCP retransmits it.
        let _ = self.0.send(&packet, TxMeta::default());
        result
    }
}

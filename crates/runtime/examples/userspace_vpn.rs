//! The server of a tunnel, without privileges ("tun2socks"): each UDP datagram carries one IP packet. The
//! server terminates the TCP connections inside, and forwards them over connections of the kernel.
//!
//! `cargo run -p brisk-runtime --example userspace_vpn -- 127.0.0.1:5555`
//!
//! It encrypts nothing, and the sender of the latest datagram is its only client, so it is no replacement for
//! a real tunnel. It carries IPv4 and IPv6, and drops protocols other than TCP.

use std::error::Error;
use std::io;
use std::time::Duration;

use brisk_runtime::channel::{ChannelDevice, ChannelOptions};
use brisk_runtime::{ConnectRequest, Endpoint, Forwarder};
use bytes::Bytes;
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::mpsc::{Receiver, Sender};

/// Maximum length of a packet inside the tunnel, bytes: with the headers of IP and UDP it fits into 1500.
const MTU: usize = 1400;
/// Maximum number of connections whose destination has not answered yet.
const MAX_PENDING: usize = 1024;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let bind = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:5555".to_owned());
    let socket = UdpSocket::bind(&bind).await?;
    println!("waiting for packets on {}", socket.local_addr()?);
    let (device, to_stack, from_stack) =
        ChannelDevice::new(ChannelOptions { mtu: MTU, ..ChannelOptions::default() });
    let endpoint = Endpoint::builder(Box::new(device)).any_address().build()?;
    tokio::try_join!(carry(&socket, to_stack, from_stack), forward(&endpoint))?;
    Ok(())
}

/// Carries packets between the tunnel and the stack.
async fn carry(
    socket: &UdpSocket,
    to_stack: Sender<Bytes>,
    mut from_stack: Receiver<Bytes>,
) -> io::Result<()> {
    let (mut peer, mut buffer) = (None, [0; MTU]);
    loop {
        tokio::select! {
            received = socket.recv_from(&mut buffer) => {
                let (len, from) = received?;
                peer = Some(from);
                // If the queue is full, the packet is lost, as on every network; TCP sends it again.
                let _ = to_stack.try_send(Bytes::copy_from_slice(&buffer[..len]));
            }
            Some(packet) = from_stack.recv() => if let Some(peer) = peer {
                socket.send_to(&packet, peer).await?;
            }
        }
    }
}

/// Serves every connection from the tunnel.
pub async fn forward(endpoint: &Endpoint) -> io::Result<()> {
    let forwarder = Forwarder::bind(endpoint, MAX_PENDING)?;
    loop {
        let request = forwarder.request().await?;
        tokio::spawn(async move {
            let destination = request.destination();
            if let Err(error) = serve(request).await {
                eprintln!("{destination}: {error}");
            }
        });
    }
}

/// Connects to the destination before it answers the peer, so that the peer gets the destination's refusal.
async fn serve(request: ConnectRequest) -> io::Result<()> {
    let mut outside = match TcpStream::connect(request.destination()).await {
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            request.ignore();
            return Err(error);
        }
        // Dropping the request refuses it.
        outside => outside?,
    };
    let mut inside = request.accept().await?;
    let copied = tokio::io::copy_bidirectional(&mut inside, &mut outside).await;
    if copied.is_err() {
        // Dropping a stream ends it in good order, and its reader takes a part for the whole. So reset both.
        inside.set_linger(Some(Duration::ZERO));
        outside.set_zero_linger()?;
    }
    copied.map(drop)
}

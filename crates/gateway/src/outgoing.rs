//! Connects over the kernel's TCP to an origin, or to a backend whose path carries nothing else.
//!
//! The side that closes first keeps the port in TIME-WAIT for a minute; towards an origin this is the
//! gateway. If many ports are in TIME-WAIT, the kernel tries one after the other to find a free one, which
//! takes much processor time. So each attempt offers the kernel only a few ports: those that have been unused
//! for the longest time.
//!
//! The acknowledgement of the handshake carries the first bytes for the origin, which saves a packet. (RFC
//! 9293, 3.10.7.3, permits data in the answer to a SYN-ACK.) The bytes leave at once if the handshake
//! completes at once, as within a host.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::time::Duration;

use brisk_packet_io::sockopt;
use rustix::io::Errno;
use rustix::net::SendFlags;
use socket2::{Domain, Socket, Type};
use tokio::net::{TcpStream, ToSocketAddrs, lookup_host};

use crate::proxy::ProxyVersion;

/// Number of ports that one attempt offers. Long-lived connections hold some of them.
const WINDOW: u32 = 32;
/// Number of attempts before the kernel may use the whole range.
const ATTEMPTS: u32 = 3;
/// Pause before the next address is tried, while the earlier ones have not answered.
const NEXT_ADDRESS: Duration = Duration::from_millis(250);
/// Number of addresses that may be tried at the same time. The oldest attempt is given up for another one.
const CONCURRENT: usize = 4;
/// Linux's default range.
const USUAL: RangeInclusive<u16> = 32_768..=60_999;

/// The ports of this host for outgoing connections, in the order of their use.
#[derive(Debug)]
struct Ports {
    range: RangeInclusive<u16>,
    next: AtomicU32,
}

static PORTS: LazyLock<Ports> = LazyLock::new(|| {
    let range_of_kernel = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok();
    Ports::new(range_of_kernel.as_deref().and_then(range).unwrap_or(USUAL), std::process::id())
});

/// Parses `FIRST LAST`.
fn range(text: &str) -> Option<RangeInclusive<u16>> {
    let mut words = text.split_whitespace().map(|word| word.parse().ok());
    let range = words.next()??..=words.next()??;
    (*range.start() > 0 && !range.is_empty()).then_some(range)
}

impl Ports {
    /// Creates the ports of `range`, with a start that depends on `seed`.
    fn new(range: RangeInclusive<u16>, seed: u32) -> Ports {
        // Two processes on one host should start at different positions.
        Ports { range, next: AtomicU32::new(seed.wrapping_mul(0x9e37_79b1)) }
    }

    /// Returns the next few ports.
    fn window(&self) -> RangeInclusive<u16> {
        let (first, last) = (u32::from(*self.range.start()), u32::from(*self.range.end()));
        let count = last - first + 1;
        let begin = first + self.next.fetch_add(1, Ordering::Relaxed) % count;
        let end = (begin + WINDOW - 1).min(last);
        // The first and the last port lie in the range, whose ends have 16 bits.
        begin as u16..=end as u16
    }

    /// Skips ports, because all ports of a window were in use.
    fn skip(&self) {
        self.next.fetch_add(WINDOW, Ordering::Relaxed);
    }
}

/// A destination that is reached without a backend.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Direct {
    /// `HOST:PORT`.
    pub origin: String,
    /// The PROXY header that the origin expects.
    pub send_proxy: Option<ProxyVersion>,
}

/// Connects to the first address of `target` that answers.
///
/// # Errors
/// Those of the address that failed last. If all ports are in TIME-WAIT, the text names the remedy.
pub(crate) async fn connect(target: impl ToSocketAddrs) -> io::Result<TcpStream> {
    connect_sending(target, b"").await.map(|(stream, _)| stream)
}

/// Like [`connect`], with the bytes `first`; also returns how many of them were sent.
async fn connect_sending(target: impl ToSocketAddrs, first: &[u8]) -> io::Result<(TcpStream, usize)> {
    let none = io::Error::new(io::ErrorKind::InvalidInput, "the name has no address");
    first_of(lookup_host(target).await?, |address| connect_to(address, first)).await.unwrap_or(Err(none))
}

/// Like [`connect`], but from the address of `client` if there is one, and from its port unless that is in
/// use. Sends the bytes `first`; also returns how many of them were sent.
///
/// # Errors
/// Those of the address that failed last. Also fails without CAP_NET_RAW or CAP_NET_ADMIN, and if the address
/// families of client and origin differ.
pub(crate) async fn connect_as(
    client: Option<SocketAddr>,
    target: impl ToSocketAddrs,
    first: &[u8],
) -> io::Result<(TcpStream, usize)> {
    let Some(client) = client else { return connect_sending(target, first).await };
    let other = || {
        let text = format!("the origin has no address of the client's address family, {}", client.ip());
        io::Error::new(io::ErrorKind::AddrNotAvailable, text)
    };
    let of_family = lookup_host(target).await?.filter(|address| address.is_ipv4() == client.is_ipv4());
    let attempt = async |address| {
        let from = |client| async move { open(foreign(address, client)?, address, first).await };
        match from(client).await {
            // The client's port is in use towards this address.
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
                from(SocketAddr::new(client.ip(), 0)).await
            }
            other => other,
        }
    };
    first_of(of_family, attempt).await.unwrap_or_else(|| Err(other()))
}

/// Runs `attempt` for one address after the other. Returns the first success, or else the last error; `None`
/// if there is no address. The next attempt begins when one has failed, or after a pause: an address that
/// does not answer must not keep the others waiting (RFC 8305, section 5).
///
/// No two attempts may send bytes. So an attempt that has sent bytes must succeed in the same poll; its
/// success drops the other attempts.
async fn first_of<T, F: Future<Output = io::Result<T>>>(
    addresses: impl Iterator<Item = SocketAddr>,
    attempt: impl Fn(SocketAddr) -> F,
) -> Option<io::Result<T>> {
    let (mut addresses, mut attempts, mut failed) = (addresses.peekable(), VecDeque::new(), None);
    loop {
        match addresses.next() {
            Some(address) => attempts.push_back(Box::pin(attempt(address))),
            None if attempts.is_empty() => return failed.map(Err),
            None => {}
        }
        if attempts.len() > CONCURRENT {
            attempts.pop_front();
        }
        let any = poll_fn(|cx| {
            for (n, attempt) in attempts.iter_mut().enumerate() {
                if let Poll::Ready(result) = attempt.as_mut().poll(cx) {
                    attempts.remove(n);
                    return Poll::Ready(result);
                }
            }
            Poll::Pending
        });
        let ended = match addresses.peek() {
            Some(_) => tokio::time::timeout(NEXT_ADDRESS, any).await.ok(),
            None => Some(any.await),
        };
        match ended {
            Some(Ok(connected)) => return Some(Ok(connected)),
            Some(Err(error)) => failed = Some(error),
            None => {}
        }
    }
}

/// Returns a socket towards `address` that is bound to the client's address.
fn foreign(address: SocketAddr, client: SocketAddr) -> io::Result<Socket> {
    let socket = transparent(address)?;
    socket.set_reuse_address(true)?;
    match socket.bind(&client.into()) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            socket.bind(&SocketAddr::new(client.ip(), 0).into()).map(|()| socket)
        }
        other => other.map(|()| socket),
    }
}

/// Checks whether [`connect_as`] may use the address of a client.
///
/// # Errors
/// Fails without CAP_NET_RAW or CAP_NET_ADMIN; the text names them.
pub(crate) fn may_connect_as() -> io::Result<()> {
    transparent(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))).map(drop)
}

/// Returns a socket towards `address` that may have any local address.
fn transparent(address: SocketAddr) -> io::Result<Socket> {
    let socket = socket(address)?;
    sockopt::allow_foreign_address(socket.as_fd(), address.is_ipv6()).map_err(|error| {
        let text = format!(
            "cannot connect from the client's address: {error}; it needs CAP_NET_RAW or CAP_NET_ADMIN"
        );
        io::Error::new(error.kind(), text)
    })?;
    Ok(socket)
}

async fn connect_to(address: SocketAddr, first: &[u8]) -> io::Result<(TcpStream, usize)> {
    for _ in 0..ATTEMPTS {
        let socket = socket(address)?;
        if sockopt::use_local_ports(socket.as_fd(), PORTS.window()).is_err() {
            // The kernel is older than 6.3.
            break;
        }
        match open(socket, address, first).await {
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => PORTS.skip(),
            other => return other,
        }
    }
    open(socket(address)?, address, first).await.map_err(|error| match error.kind() {
        io::ErrorKind::AddrNotAvailable => io::Error::new(
            io::ErrorKind::AddrNotAvailable,
            format!(
                "no free port towards {address}: more connections per minute than ports; run: sysctl net.ipv4.tcp_tw_reuse=1"
            ),
        ),
        _ => error,
    })
}

/// Connects `socket`, and sends as many of the bytes `first` as it accepts at once; also returns how many.
async fn open(socket: Socket, address: SocketAddr, first: &[u8]) -> io::Result<(TcpStream, usize)> {
    if !first.is_empty() {
        // Without this option the acknowledgement is a packet of its own.
        let _ = socket.set_tcp_quickack(false);
    }
    match socket.connect(&address.into()) {
        Err(error) if error.raw_os_error() != Some(Errno::INPROGRESS.raw_os_error()) => return Err(error),
        _ => {}
    }
    let stream = TcpStream::from_std(socket.into())?;
    // An attempt that has sent bytes succeeds at once.
    if let Some(sent) = send(&stream, first)? {
        return Ok((stream, sent));
    }
    stream.writable().await?;
    stream.take_error()?.map_or(Ok(()), Err)?;
    let sent = send(&stream, first)?;
    Ok((stream, sent.unwrap_or(0)))
}

/// Sends as many bytes as the socket accepts; `None` if there are none, or if it accepts none.
fn send(stream: &TcpStream, bytes: &[u8]) -> io::Result<Option<usize>> {
    if bytes.is_empty() {
        return Ok(None);
    }
    match rustix::net::send(stream, bytes, SendFlags::NOSIGNAL) {
        Err(Errno::AGAIN) => Ok(None),
        sent => Ok(Some(sent?)),
    }
}

fn socket(address: SocketAddr) -> io::Result<Socket> {
    Socket::new(Domain::for_address(address), Type::STREAM.nonblocking().cloexec(), None)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[test]
    fn the_range_is_read_as_linux_writes_it() {
        assert_eq!(range("32768\t60999\n"), Some(32_768..=60_999));
        for text in ["", "1", "9 8", "0 5", "a b", "1 70000"] {
            assert_eq!(range(text), None, "{text}");
        }
    }

    #[test]
    fn windows_go_through_the_whole_range_and_stay_in_it() {
        let ports = Ports::new(100..=299, 7);
        let begins: std::collections::HashSet<u16> = (0..200)
            .map(|_| {
                let window = ports.window();
                assert!(*window.start() >= 100 && *window.end() <= 299 && !window.is_empty());
                *window.start()
            })
            .collect();
        assert_eq!(begins.len(), 200);
    }

    #[test]
    fn connection_without_a_free_port_tries_others() {
        let ports = Ports::new(1000..=60_999, 0);
        let before = *ports.window().start();
        ports.skip();
        assert_eq!(u32::from(*ports.window().start()), u32::from(before) + WINDOW + 1);
    }

    #[tokio::test]
    async fn connections_get_ports_of_the_next_window_and_bad_names_an_error() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stream = connect(address).await.unwrap();
        let (accepted, peer) = listener.accept().await.unwrap();
        assert_eq!(stream.local_addr().unwrap(), peer);
        assert!(PORTS.range.contains(&peer.port()));
        drop((stream, accepted, listener));
        let refused = connect_sending(address, b"to nobody").await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(connect(address).await.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        assert!(connect("no name").await.is_err());
    }

    #[tokio::test]
    async fn client_whose_port_is_in_use_towards_the_origin_gets_another_port() {
        if may_connect_as().is_err() {
            return println!("skipped: it needs CAP_NET_RAW or CAP_NET_ADMIN");
        }
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        // Reserves a port that nobody else takes meanwhile.
        let reserved = socket(address).unwrap();
        reserved.set_reuse_address(true).unwrap();
        reserved.bind(&SocketAddr::from(([127, 0, 0, 9], 0)).into()).unwrap();
        let client = reserved.local_addr().unwrap().as_socket().unwrap();
        let (first, _) = connect_as(Some(client), address, b"").await.unwrap();
        assert_eq!(first.local_addr().unwrap(), client);
        let (second, _) = connect_as(Some(client), address, b"").await.unwrap();
        let second = second.local_addr().unwrap();
        assert_eq!(second.ip(), client.ip());
        assert_ne!(second.port(), client.port());
    }

    /// Returns an address that answers no SYN, and the sockets that fill the queue of its listener.
    fn silent() -> (SocketAddr, Vec<Socket>) {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        listener.listen(0).unwrap();
        let address = listener.local_addr().unwrap().as_socket().unwrap();
        let mut sockets = vec![listener];
        for _ in 0..4 {
            let waiting = socket(address).unwrap();
            let _ = waiting.connect(&address.into());
            sockets.push(waiting);
        }
        (address, sockets)
    }

    #[tokio::test]
    async fn address_that_does_not_answer_keeps_no_other_address_waiting() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let good = listener.local_addr().unwrap();
        let (bad, _sockets) = silent();
        let refused = silent().0;
        for addresses in [&[bad, good][..], &[bad, refused, bad, bad, bad, good]] {
            let connecting = connect_as(None, addresses, b"once");
            let connected = tokio::time::timeout(Duration::from_secs(20), connecting).await;
            let (stream, _) = connected.expect("an address answers").unwrap();
            assert_eq!(stream.peer_addr().unwrap(), good);
        }
    }

    #[tokio::test]
    async fn first_bytes_arrive_once_however_many_are_sent_at_once() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        for size in [1, 5000, 8 << 20] {
            let first: Vec<u8> = (0..size).map(|n| (n % 251) as u8).collect();
            let sending = async {
                let (mut stream, sent) = connect_as(None, address, &first).await.unwrap();
                stream.write_all(&first[sent..]).await.unwrap();
            };
            let receiving = async {
                let mut received = Vec::new();
                listener.accept().await.unwrap().0.read_to_end(&mut received).await.unwrap();
                received
            };
            let ((), received) = tokio::join!(sending, receiving);
            assert!(received == first, "{size}");
        }
    }
}

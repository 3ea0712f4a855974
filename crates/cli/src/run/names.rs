//! Looks up names for a command in a namespace of its own: sends each question to the host's resolver.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::sync::Semaphore;

/// Simultaneous questions; further ones wait in the socket's buffer.
const MAX: usize = 64;
/// Time limit for the resolver; the client has repeated its question by then.
const TIME_LIMIT: Duration = Duration::from_secs(5);
/// Longest question and answer, bytes: the size of a UDP datagram.
const MAX_MESSAGE: usize = 65_535;
/// The file with the host's resolvers.
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Returns a future that relays questions and answers, and never ends.
///
/// # Errors
/// If the socket cannot be used.
pub(super) fn relay(inside: std::net::UdpSocket) -> io::Result<impl Future<Output = ()> + Send> {
    inside.set_nonblocking(true)?;
    let inside = Arc::new(UdpSocket::from_std(inside)?);
    let resolver = resolver(&std::fs::read_to_string(RESOLV_CONF).unwrap_or_default());
    Ok(async move {
        let places = Arc::new(Semaphore::new(MAX));
        let mut question = vec![0; MAX_MESSAGE];
        loop {
            // The semaphore is never closed.
            let Ok(place) = places.clone().acquire_owned().await else { return };
            let Ok((length, asker)) = inside.recv_from(&mut question).await else { continue };
            let (question, inside) = (question[..length].to_vec(), inside.clone());
            tokio::spawn(async move {
                // If there is no answer, the client asks again or gives up.
                if let Ok(Ok(answer)) = tokio::time::timeout(TIME_LIMIT, ask(resolver, &question)).await {
                    let _ = inside.send_to(&answer, asker).await;
                }
                drop(place);
            });
        }
    })
}

async fn ask(resolver: SocketAddr, question: &[u8]) -> io::Result<Vec<u8>> {
    let own: SocketAddr = match resolver {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(own).await?;
    socket.connect(resolver).await?;
    socket.send(question).await?;
    let mut answer = vec![0; MAX_MESSAGE];
    let length = socket.recv(&mut answer).await?;
    answer.truncate(length);
    Ok(answer)
}

/// Returns the first resolver in the file whose address has no zone; the host itself if there is none
/// (resolv.conf(5)).
fn resolver(text: &str) -> SocketAddr {
    let named = |line: &str| {
        let mut words = line.split_whitespace();
        let address = words.next().filter(|word| *word == "nameserver").and_then(|_| words.next());
        address.and_then(|address| address.parse::<IpAddr>().ok())
    };
    let address = text.lines().find_map(named).unwrap_or(Ipv4Addr::LOCALHOST.into());
    SocketAddr::new(address, 53)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_nameserver_is_used_or_the_host_without_one() {
        let at = |text: &str| resolver(text).to_string();
        assert_eq!(at("# x\nsearch a\nnameserver 192.0.2.53\nnameserver 192.0.2.54\n"), "192.0.2.53:53");
        assert_eq!(at("nameserver fd00::1\n"), "[fd00::1]:53");
        assert_eq!(at("nameserver fe80::1%eth0\noptions x\n"), "127.0.0.1:53");
        assert_eq!(at(""), "127.0.0.1:53");
    }
}

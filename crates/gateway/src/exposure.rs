//! The rule that keeps an open gateway off the network by accident.
//!
//! The hop is neither encrypted nor authenticated yet, so whoever reaches it reaches the origin. Until it is, both sides
//! listen on and connect to loopback addresses only, unless the operator says that he knows.

use std::net::{IpAddr, SocketAddr};

/// An address that is open to others, and what to do about it, in one line.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{action} {address} is refused: the hop is neither encrypted nor authenticated; use a loopback address, or \
     --insecure on a network you trust"
)]
pub struct Exposed {
    action: &'static str,
    address: SocketAddr,
}

/// Checks an address to listen on.
///
/// # Errors
/// If others than this host could reach it.
pub fn check_listen(address: SocketAddr) -> Result<(), Exposed> {
    check("listening on", address)
}

/// Checks the address of a peer.
///
/// # Errors
/// If the way there leaves this host.
pub fn check_peer(address: SocketAddr) -> Result<(), Exposed> {
    check("connecting to", address)
}

fn check(action: &'static str, address: SocketAddr) -> Result<(), Exposed> {
    let ip = match address.ip() {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4),
        v4 @ IpAddr::V4(_) => v4,
    };
    if ip.is_loopback() { Ok(()) } else { Err(Exposed { action, address }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_of_either_family_passes() {
        for address in ["127.0.0.1:80", "127.8.0.1:80", "[::1]:80", "[::ffff:127.0.0.1]:80"] {
            assert_eq!(check_listen(address.parse().unwrap()), Ok(()), "{address}");
            assert_eq!(check_peer(address.parse().unwrap()), Ok(()), "{address}");
        }
    }

    #[test]
    fn everything_else_is_refused_with_the_remedy_in_one_line() {
        for address in ["0.0.0.0:80", "[::]:80", "10.0.0.1:80", "[fd00::1]:80", "[::ffff:10.0.0.1]:80"] {
            let error = check_listen(address.parse().unwrap()).unwrap_err().to_string();
            assert!(error.contains("--insecure") && !error.contains('\n'), "{error}");
        }
    }
}

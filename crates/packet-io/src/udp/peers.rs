//! Inner addresses: the stack's names of peers, which UDP identifies by address *and* port.
//!
//! Two peers behind one NAT have the same address and different ports. So each outer socket address gets its
//! own inner IPv6 address, in a prefix of unique local addresses (RFC 4193) that never appears on a wire:
//!
//! ```text
//! fd62:7269:736b::1                      the stack itself
//! fd62:7269:736b:4:PPPP:0:AABB:CCDD      peer AA.BB.CC.DD (hexadecimal), UDP port PPPP
//! fd62:7269:736b:6:HHHH:HHHH:HHHH:HHHH   peer with an IPv6 address: SipHash-2-4 of address, port and scope
//! ```
//!
//! The mapping is a pure function, the same in every process and on every host. For IPv4 it can be inverted.
//! For IPv6, tables of limited size store it ([`outer_address`]). Because of NAT a peer may know other
//! addresses for itself; this does not matter, because datagrams contain no addresses. Fast Open cookies are
//! bound to the inner address, and so to the outer address and port.
//!
//! A peer that moves to another outer address keeps its inner address while connections use it
//! (`Peers::redirect`). Another peer at the old outer address gets a different inner address. It has the IPv6
//! form, and its hash includes the number of peers that have left.

use std::collections::HashMap;
use std::hash::Hasher;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::{LazyLock, Mutex, PoisonError};

use siphasher::sip::SipHasher24;

/// The first three groups of every inner address.
const PREFIX: [u16; 3] = [0xFD62, 0x7269, 0x736B];
/// The fourth group.
const FROM_V4: u16 = 4;
const FROM_V6: u16 = 6;

/// The inner address of the stack itself, on every UDP device.
pub const LOCAL_INNER: Ipv6Addr = Ipv6Addr::new(0xFD62, 0x7269, 0x736B, 0, 0, 0, 0, 1);

/// Minimum number of peers that a table stores.
const PEERS: usize = 65_536;

/// Maximum number of inner addresses of peers that have moved.
const MAX_REDIRECTS: usize = 16_384;
/// Maximum number of peers that have left an outer address and still have connections.
const MAX_MOVED_AWAY: u64 = 15;

/// IPv6 peers that this process has named with [`inner_address`] before any datagram arrived from them.
static NAMED: LazyLock<Mutex<Recent<SocketAddr>>> = LazyLock::new(|| Mutex::new(Recent::new(PEERS)));
/// Peers with hashed inner addresses from which a device of this process has received datagrams.
/// Separate from [`NAMED`], because anybody who forges source addresses can fill this table.
static HEARD: LazyLock<Mutex<Recent<SocketAddr>>> = LazyLock::new(|| Mutex::new(Recent::new(PEERS)));

/// Returns the address of the peer at `outer` in the stack: `connect` to this address reaches the peer.
///
/// Every [`UdpDevice`](super::UdpDevice) of this process can convert the result back to `outer`.
///
/// ```
/// use brisk_packet_io::udp::inner_address;
/// let inner = inner_address("192.0.2.1:7413".parse().unwrap());
/// assert_eq!(inner.to_string(), "fd62:7269:736b:4:1cf5:0:c000:201");
/// ```
pub fn inner_address(outer: SocketAddr) -> IpAddr {
    let outer = canonical(outer);
    let inner = inner_of(outer);
    if outer.is_ipv6() {
        NAMED.lock().unwrap_or_else(PoisonError::into_inner).insert(inner, outer);
    }
    inner.into()
}

/// Returns the outer address to which this inner address belongs: the inverse of [`inner_address`]. A
/// peer that has moved keeps its inner address, so the result is the outer address at which the peer
/// began.
///
/// `None` if `inner` is no inner address, or names an IPv6 peer that is not in the tables of this process.
/// They contain the peers that the process has recently named or received datagrams from.
///
/// ```
/// use brisk_packet_io::udp::{inner_address, outer_address};
/// for outer in ["192.0.2.1:7413", "[2001:db8::1]:7413"] {
///     let outer = outer.parse()?;
///     assert_eq!(outer_address(inner_address(outer)), Some(outer));
/// }
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
pub fn outer_address(inner: IpAddr) -> Option<SocketAddr> {
    let IpAddr::V6(inner) = inner else { return None };
    let stored = |table: &Mutex<Recent<SocketAddr>>| {
        table.lock().unwrap_or_else(PoisonError::into_inner).find(inner).copied()
    };
    outer_of(inner).or_else(|| stored(&NAMED)).or_else(|| stored(&HEARD))
}

/// Returns mapped IPv4 addresses as IPv4 addresses, and removes the flow label.
pub(super) fn canonical(outer: SocketAddr) -> SocketAddr {
    match outer {
        SocketAddr::V4(_) => outer,
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(v4) => SocketAddr::from((v4, v6.port())),
            None => SocketAddrV6::new(*v6.ip(), v6.port(), 0, v6.scope_id()).into(),
        },
    }
}

/// Returns the inner address of `outer`, which must be canonical.
fn inner_of(outer: SocketAddr) -> Ipv6Addr {
    let [a, b, c] = PREFIX;
    match outer {
        SocketAddr::V4(v4) => {
            let [o0, o1, o2, o3] = v4.ip().octets();
            let (high, low) = (u16::from_be_bytes([o0, o1]), u16::from_be_bytes([o2, o3]));
            Ipv6Addr::new(a, b, c, FROM_V4, v4.port(), 0, high, low)
        }
        SocketAddr::V6(v6) => hashed(v6, 1),
    }
}

/// Returns the inner address of the peer at `outer` after `moved` other peers have left that address.
fn inner_after(outer: SocketAddr, moved: u64) -> Ipv6Addr {
    match (outer, moved) {
        (_, 0) => inner_of(outer),
        (SocketAddr::V4(v4), _) => {
            hashed(SocketAddrV6::new(v4.ip().to_ipv6_mapped(), v4.port(), 0, 0), 1 + moved)
        }
        (SocketAddr::V6(v6), _) => hashed(v6, 1 + moved),
    }
}

fn hashed(v6: SocketAddrV6, number: u64) -> Ipv6Addr {
    let [a, b, c] = PREFIX;
    // The key is not secret: it only separates this use of the hash from others.
    let mut hasher = SipHasher24::new_with_keys(u64::from_be_bytes(*b"briskudp"), number);
    hasher.write(&v6.ip().octets());
    hasher.write(&v6.port().to_be_bytes());
    hasher.write(&v6.scope_id().to_be_bytes());
    let hash = hasher.finish().to_be_bytes();
    let group = |i: usize| u16::from_be_bytes([hash[i], hash[i + 1]]);
    Ipv6Addr::new(a, b, c, FROM_V6, group(0), group(2), group(4), group(6))
}

/// Inverts [`inner_of`] if possible.
fn outer_of(inner: Ipv6Addr) -> Option<SocketAddr> {
    let [a, b, c, kind, port, zero, high, low] = inner.segments();
    if [a, b, c] != PREFIX || kind != FROM_V4 || zero != 0 {
        return None;
    }
    let ([o0, o1], [o2, o3]) = (high.to_be_bytes(), low.to_be_bytes());
    Some(SocketAddr::from((Ipv4Addr::new(o0, o1, o2, o3), port)))
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Route {
    /// Canonical outer address.
    pub(super) outer: SocketAddr,
    /// Local address to which the peer last wrote, if the socket is not bound to one.
    pub(super) from: Option<IpAddr>,
}

/// The peers from which one device has received datagrams.
#[derive(Debug)]
pub(super) struct Peers {
    routes: Recent<Route>,
    /// Inner addresses of peers that have moved, each with the peer's present inner address.
    moved: HashMap<Ipv6Addr, Ipv6Addr>,
}

impl Peers {
    pub(super) fn new() -> Peers {
        Peers { routes: Recent::new(PEERS), moved: HashMap::new() }
    }

    /// Returns the inner address of the peer that is at `outer` now; `None` if more than [`MAX_MOVED_AWAY`]
    /// peers have left it.
    pub(super) fn name(&self, outer: SocketAddr) -> Option<Ipv6Addr> {
        if self.moved.is_empty() {
            return Some(inner_of(outer));
        }
        let mut names = (0..=MAX_MOVED_AWAY).map(|moved| inner_after(outer, moved));
        names.find(|name| !self.moved.contains_key(name))
    }

    /// Records a peer from which a datagram has arrived, and returns its inner address. `None` after a hash
    /// collision of IPv6 peers: another live peer has the same inner address, and keeps it.
    pub(super) fn learn(&mut self, route: Route) -> Option<Ipv6Addr> {
        let inner = self.name(route.outer)?;
        match self.routes.find(inner) {
            Some(known) if known.outer != route.outer => return None,
            Some(known) => *known = route,
            None => {
                self.routes.insert(inner, route);
                if outer_of(inner).is_none() {
                    HEARD.lock().unwrap_or_else(PoisonError::into_inner).insert(inner, route.outer);
                }
            }
        }
        Some(inner)
    }

    /// Returns the route to the peer with this inner address; `None` if it is unknown or was dropped.
    pub(super) fn route(&mut self, inner: Ipv6Addr) -> Option<Route> {
        let inner = self.moved.get(&inner).copied().unwrap_or(inner);
        if let Some(route) = self.routes.find(inner) {
            return Some(*route);
        }
        let route = Route { outer: outer_address(inner.into())?, from: None };
        self.routes.insert(inner, route);
        Some(route)
    }

    /// Lets the kernel choose the local address towards this peer again.
    pub(super) fn forget_source(&mut self, outer: SocketAddr) {
        if let Some(route) = self.name(outer).and_then(|name| self.routes.find(name)) {
            route.from = None;
        }
    }

    /// Records that the peer with the inner address `from` is now at `to`.
    pub(super) fn redirect(&mut self, from: Ipv6Addr, to: Ipv6Addr) {
        if from == to || self.moved.len() >= MAX_REDIRECTS {
            return;
        }
        self.moved.remove(&to);
        self.moved.values_mut().filter(|at| **at == from).for_each(|at| *at = to);
        self.moved.insert(from, to);
    }

    /// Ends the redirection of the inner address `from`, which may name another peer again.
    pub(super) fn forget_redirect(&mut self, from: Ipv6Addr) {
        self.moved.remove(&from);
    }
}

/// A map of limited size. When its younger half is full, it drops the older half; entries that are used move
/// to the younger half.
#[derive(Debug)]
struct Recent<T> {
    younger: HashMap<Ipv6Addr, T>,
    older: HashMap<Ipv6Addr, T>,
    half: usize,
}

impl<T> Recent<T> {
    /// Returns a map that keeps at least the last `keep` entries and at most twice as many.
    fn new(keep: usize) -> Recent<T> {
        Recent { younger: HashMap::new(), older: HashMap::new(), half: keep.max(1) }
    }

    fn find(&mut self, key: Ipv6Addr) -> Option<&mut T> {
        if !self.younger.contains_key(&key) {
            let value = self.older.remove(&key)?;
            self.insert(key, value);
        }
        self.younger.get_mut(&key)
    }

    fn insert(&mut self, key: Ipv6Addr, value: T) {
        if self.younger.len() >= self.half {
            self.older = std::mem::take(&mut self.younger);
        }
        self.younger.insert(key, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v6(inner: IpAddr) -> Ipv6Addr {
        match inner {
            IpAddr::V6(inner) => inner,
            IpAddr::V4(inner) => panic!("{inner}"),
        }
    }

    #[test]
    fn an_ipv4_peer_is_found_again_without_a_table() {
        let outer: SocketAddr = "203.0.113.9:65535".parse().unwrap();
        let inner = v6(inner_address(outer));
        assert_eq!(outer_of(inner), Some(outer));
        assert_eq!(Peers::new().route(inner), Some(Route { outer, from: None }));
        assert_eq!(inner_address("[::ffff:203.0.113.9]:65535".parse().unwrap()), IpAddr::V6(inner));
    }

    #[test]
    fn peers_behind_one_address_differ_by_port() {
        for address in ["192.0.2.1", "[2001:db8::1]"] {
            let [a, b] = [1, 2].map(|port| inner_address(format!("{address}:{port}").parse().unwrap()));
            assert_ne!(a, b);
        }
    }

    #[test]
    fn named_ipv6_peer_is_found_by_every_device() {
        let outer: SocketAddr = "[2001:db8::7]:7413".parse().unwrap();
        let inner = v6(inner_address(outer));
        assert_eq!(Peers::new().route(inner).map(|route| route.outer), Some(outer));
    }

    #[test]
    fn ipv6_peer_that_wrote_to_one_queue_is_found_by_the_others() {
        let outer = canonical("[2001:db8::8]:1".parse().unwrap());
        let from = Some("2001:db8::1".parse().unwrap());
        let (mut peers, inner) = (Peers::new(), inner_of(outer));
        assert_eq!(peers.route(inner), None);
        assert_eq!(peers.learn(Route { outer, from }), Some(inner));
        assert_eq!(peers.route(inner), Some(Route { outer, from }));
        assert_eq!(Peers::new().route(inner), Some(Route { outer, from: None }));
        peers.forget_source(outer);
        assert_eq!(peers.route(inner), Some(Route { outer, from: None }));
    }

    #[test]
    fn a_colliding_peer_does_not_take_over_an_address() {
        let mut peers = Peers::new();
        let first: SocketAddr = "[2001:db8::9]:1".parse().unwrap();
        let second: SocketAddr = "[2001:db8::9]:2".parse().unwrap();
        peers.routes.insert(inner_of(second), Route { outer: first, from: None });
        assert_eq!(peers.learn(Route { outer: second, from: None }), None);
    }

    #[test]
    fn moved_peer_keeps_its_inner_address_and_another_peer_gets_a_new_one() {
        for address in ["192.0.2.1", "[2001:db8::1]"] {
            let [first, second, third] =
                [1, 2, 3].map(|port| canonical(format!("{address}:{port}").parse().unwrap()));
            let mut peers = Peers::new();
            let route = |outer| Route { outer, from: None };
            let [before, after] = [first, second].map(|outer| peers.learn(route(outer)).unwrap());
            peers.redirect(before, after);
            assert_eq!(peers.route(before), Some(route(second)));
            // Another peer, or the same peer again, at the old address.
            let other = peers.learn(route(first)).unwrap();
            assert!(other != before && other != after);
            assert_eq!(peers.route(other), Some(route(first)));
            let last = peers.learn(route(third)).unwrap();
            peers.redirect(after, last);
            assert_eq!([before, after].map(|name| peers.route(name)), [Some(route(third)); 2]);
            peers.forget_redirect(before);
            assert_eq!(peers.learn(route(first)), Some(before));
        }
    }

    #[test]
    fn redirects_are_bounded() {
        let mut peers = Peers::new();
        for n in 0..2 * MAX_REDIRECTS as u128 {
            peers.redirect(Ipv6Addr::from(n), LOCAL_INNER);
        }
        assert_eq!(peers.moved.len(), MAX_REDIRECTS);
    }

    #[test]
    fn table_drops_the_peer_that_was_idle_longest() {
        let mut recent = Recent::new(2);
        let key = |i: u16| Ipv6Addr::from([i; 8]);
        for i in 0..4 {
            recent.insert(key(i), i);
            // An entry in use is kept.
            assert_eq!(recent.find(key(0)), Some(&mut 0));
        }
        assert_eq!(recent.find(key(1)), None);
        assert!(recent.find(key(3)).is_some());
        assert!(recent.younger.len() + recent.older.len() <= 4);
    }

    #[test]
    fn addresses_outside_the_prefix_have_no_route() {
        for inner in ["::1", "fd62:7269:736b::1", "fd62:7269:736b:4:1:1:1:1", "2001:db8::1"] {
            assert_eq!(Peers::new().route(inner.parse().unwrap()), None);
        }
    }
}

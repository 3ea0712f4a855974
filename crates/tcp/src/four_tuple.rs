//! The two ends of a connection: as a value, in the compact form of tables, and as a keyed hash.

use alloc::boxed::Box;
use core::hash::{BuildHasher, Hash, Hasher};
use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use siphasher::sip::SipHasher13;

use crate::keys::{Chance, Key, Purpose, Seed};

/// The two ends of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct FourTuple {
    /// Our end.
    pub local: SocketAddr,
    /// The peer's end.
    pub remote: SocketAddr,
}

/// An IPv4 four-tuple in two words: addresses and ports.
pub(crate) type V4 = (u64, u32);

impl FourTuple {
    /// Returns the four-tuple of these ends in canonical form, so that equal ends compare equal. It has no
    /// flow label and no scope, and IPv4-mapped addresses are IPv4.
    pub fn new(local: SocketAddr, remote: SocketAddr) -> Self {
        FourTuple { local: canonical(local), remote: canonical(remote) }
    }

    /// Returns the addresses and the ports of both ends, ours first, if they are IPv4.
    #[inline]
    pub(crate) fn v4(&self) -> Option<V4> {
        let (SocketAddr::V4(local), SocketAddr::V4(remote)) = (self.local, self.remote) else { return None };
        let addresses = u64::from(local.ip().to_bits()) << 32 | u64::from(remote.ip().to_bits());
        Some((addresses, self.ports()))
    }

    /// Returns the bytes of an IPv4 four-tuple to hash. One piece, because hashing word by word costs more.
    pub(crate) fn v4_bytes(&self) -> Option<[u8; 12]> {
        self.v4().map(bytes)
    }

    /// Returns both ports in a word, ours first.
    fn ports(&self) -> u32 {
        u32::from(self.local.port()) << 16 | u32::from(self.remote.port())
    }

    /// True if both ends are equal.
    pub(crate) fn is_loop(&self) -> bool {
        self.local.port() == self.remote.port() && self.local == self.remote
    }
}

/// Returns the bytes of an IPv4 four-tuple that are hashed.
fn bytes((addresses, ports): V4) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&addresses.to_le_bytes());
    bytes[8..].copy_from_slice(&ports.to_le_bytes());
    bytes
}

/// Hashes as few words as possible.
impl Hash for FourTuple {
    fn hash<H: Hasher>(&self, state: &mut H) {
        hash_addresses(self.local.ip(), self.remote.ip(), state);
        state.write_u32(self.ports());
    }
}

/// Hashes two addresses of the same family; the ends of a connection have such addresses.
pub(crate) fn hash_addresses<H: Hasher>(local: IpAddr, remote: IpAddr, state: &mut H) {
    match (local, remote) {
        (IpAddr::V4(local), IpAddr::V4(remote)) => {
            state.write_u64(u64::from(local.to_bits()) << 32 | u64::from(remote.to_bits()));
        }
        (local, remote) => {
            for ip in [local, remote] {
                let bits = match ip {
                    IpAddr::V4(ip) => u128::from(ip.to_bits()),
                    IpAddr::V6(ip) => ip.to_bits(),
                };
                state.write_u64((bits >> 64) as u64);
                state.write_u64(bits as u64);
            }
        }
    }
}

/// Returns the address without flow label and scope, with IPv4-mapped addresses as IPv4.
pub(crate) fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

/// True for an address that a single host can have.
pub(crate) fn is_unicast(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => !(ip.is_unspecified() || ip.is_multicast() || ip.is_broadcast()),
        IpAddr::V6(ip) => !(ip.is_unspecified() || ip.is_multicast()),
    }
}

/// SipHash-1-3 with a key of the stack.
#[derive(Clone, Debug)]
pub(crate) struct KeyedHash(Key);

impl KeyedHash {
    /// Returns the hash of the stack with this seed.
    pub(crate) fn new(seed: &Seed) -> Self {
        KeyedHash(Chance::new(seed, Purpose::Demux).key())
    }

    /// Returns the hash of an IPv4 four-tuple.
    pub(crate) fn of_v4(&self, v4: V4) -> u64 {
        self.build_hasher().hash(&bytes(v4))
    }
}

impl BuildHasher for KeyedHash {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_key(&self.0)
    }
}

/// A four-tuple in the form of tables. For IPv4 it takes a quarter of the bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum CompactTuple {
    /// Addresses and ports, ours first.
    V4([Ipv4Addr; 2], [u16; 2]),
    /// Any other four-tuple.
    Other(Box<FourTuple>),
}

impl CompactTuple {
    pub(crate) fn is(&self, tuple: &FourTuple) -> bool {
        match self {
            CompactTuple::V4([local, remote], [local_port, remote_port]) => {
                let is = |addr: &SocketAddr, ip: &Ipv4Addr, port: u16| matches!(addr, SocketAddr::V4(addr) if addr.ip() == ip && addr.port() == port);
                is(&tuple.local, local, *local_port) && is(&tuple.remote, remote, *remote_port)
            }
            CompactTuple::Other(known) => **known == *tuple,
        }
    }
}

impl CompactTuple {
    pub(crate) fn is_ipv6(&self) -> bool {
        match self {
            CompactTuple::V4(..) => false,
            CompactTuple::Other(tuple) => tuple.remote.is_ipv6(),
        }
    }

    pub(crate) fn local_port(&self) -> u16 {
        match self {
            CompactTuple::V4(_, [port, _]) => *port,
            CompactTuple::Other(tuple) => tuple.local.port(),
        }
    }

    pub(crate) fn remote_port(&self) -> u16 {
        match self {
            CompactTuple::V4(_, [_, port]) => *port,
            CompactTuple::Other(tuple) => tuple.remote.port(),
        }
    }

    pub(crate) fn local_ip(&self) -> IpAddr {
        match self {
            CompactTuple::V4([ip, _], _) => (*ip).into(),
            CompactTuple::Other(tuple) => tuple.local.ip(),
        }
    }

    pub(crate) fn remote_ip(&self) -> IpAddr {
        match self {
            CompactTuple::V4([_, ip], _) => (*ip).into(),
            CompactTuple::Other(tuple) => tuple.remote.ip(),
        }
    }
}

impl From<FourTuple> for CompactTuple {
    fn from(tuple: FourTuple) -> Self {
        match (tuple.local, tuple.remote) {
            (SocketAddr::V4(local), SocketAddr::V4(remote)) => {
                CompactTuple::V4([*local.ip(), *remote.ip()], [local.port(), remote.port()])
            }
            (SocketAddr::V4(_) | SocketAddr::V6(_), _) => CompactTuple::Other(Box::new(tuple)),
        }
    }
}

impl From<&CompactTuple> for FourTuple {
    fn from(tuple: &CompactTuple) -> Self {
        match tuple {
            CompactTuple::V4([local, remote], [local_port, remote_port]) => {
                FourTuple { local: (*local, *local_port).into(), remote: (*remote, *remote_port).into() }
            }
            CompactTuple::Other(tuple) => **tuple,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_ends_are_equal_however_they_are_written() {
        let plain =
            FourTuple::new(SocketAddr::from(([10, 0, 0, 1], 80)), SocketAddr::from(([10, 0, 0, 2], 81)));
        let mapped = FourTuple::new(
            "[::ffff:10.0.0.1]:80".parse().expect("valid"),
            "10.0.0.2:81".parse().expect("valid"),
        );
        assert_eq!(plain, mapped);
        let labelled = SocketAddr::V6(core::net::SocketAddrV6::new(core::net::Ipv6Addr::LOCALHOST, 80, 7, 3));
        assert_eq!(canonical(labelled), "[::1]:80".parse().expect("valid"));
    }

    #[test]
    fn multicast_and_unspecified_addresses_are_not_unicast() {
        for ip in ["0.0.0.0", "255.255.255.255", "224.0.0.1", "::", "ff02::1"] {
            assert!(!is_unicast(&ip.parse().expect("valid")), "{ip}");
        }
        assert!(
            is_unicast(&"10.0.0.1".parse().expect("valid")) && is_unicast(&"::1".parse().expect("valid"))
        );
    }

    #[test]
    fn compact_tuple_equals_only_its_own_four_tuple() {
        let of = |local: &str, remote: &str| {
            FourTuple::new(local.parse().expect("valid"), remote.parse().expect("valid"))
        };
        let tuples = [
            of("10.0.0.1:80", "10.0.0.2:81"),
            of("10.0.0.1:80", "10.0.0.2:82"),
            of("10.0.0.1:81", "10.0.0.2:81"),
            of("10.0.0.3:80", "10.0.0.2:81"),
            of("10.0.0.1:80", "10.0.0.3:81"),
            of("[2001:db8::1]:80", "[2001:db8::2]:81"),
            of("[2001:db8::1]:80", "[2001:db8::2]:82"),
        ];
        for (a, known) in tuples.iter().enumerate() {
            assert_eq!(FourTuple::from(&CompactTuple::from(*known)), *known);
            for (b, tuple) in tuples.iter().enumerate() {
                assert_eq!(CompactTuple::from(*known).is(tuple), a == b);
            }
        }
    }

    #[test]
    fn the_hash_depends_on_the_seed() {
        let tuple =
            FourTuple::new(SocketAddr::from(([10, 0, 0, 1], 80)), SocketAddr::from(([10, 0, 0, 2], 81)));
        assert_eq!(KeyedHash::new(&1.into()).hash_one(tuple), KeyedHash::new(&1.into()).hash_one(tuple));
        let v4 = tuple.v4().expect("it is IPv4");
        assert_eq!(KeyedHash::new(&1.into()).hash_one(tuple), KeyedHash::new(&1.into()).of_v4(v4));
        assert_ne!(KeyedHash::new(&1.into()).hash_one(tuple), KeyedHash::new(&2.into()).hash_one(tuple));
    }
}

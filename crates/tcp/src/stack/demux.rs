//! Which connection a packet belongs to.
//!
//! One hash table from four-tuples to connections and TIME-WAIT entries. The hash is keyed by the seed
//! of the stack: nobody outside can choose four-tuples that fall into one bucket.

use core::hash::{BuildHasher, Hash, Hasher};
use core::net::{IpAddr, SocketAddr};

use hashbrown::HashMap;
use siphasher::sip::SipHasher13;

use super::conn_id::ConnId;
use super::keys::{Chance, Key, Purpose};

/// The two ends of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FourTuple {
    /// Our end.
    pub local: SocketAddr,
    /// The peer's end.
    pub remote: SocketAddr,
}

impl FourTuple {
    /// The four-tuple of these ends, in the one form that compares equal however they were written:
    /// no flow label, no scope, IPv4 as IPv4.
    pub fn new(local: SocketAddr, remote: SocketAddr) -> Self {
        FourTuple { local: canonical(local), remote: canonical(remote) }
    }

    /// True if both ends are of one address family.
    pub fn is_one_family(&self) -> bool {
        self.local.is_ipv4() == self.remote.is_ipv4()
    }
}

/// In as few words as it takes: every packet is looked up by it.
impl Hash for FourTuple {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for ip in [self.local.ip(), self.remote.ip()] {
            match ip {
                IpAddr::V4(ip) => state.write_u32(ip.to_bits()),
                IpAddr::V6(ip) => {
                    let bits = ip.to_bits();
                    state.write_u64((bits >> 64) as u64);
                    state.write_u64(bits as u64);
                }
            }
        }
        state.write_u32(u32::from(self.local.port()) << 16 | u32::from(self.remote.port()));
    }
}

/// The address without flow label and scope, IPv4-mapped addresses as IPv4.
pub(crate) fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

/// True for an address that one host can have.
pub(crate) fn is_unicast(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => !(ip.is_unspecified() || ip.is_multicast() || ip.is_broadcast()),
        IpAddr::V6(ip) => !(ip.is_unspecified() || ip.is_multicast()),
    }
}

/// What a four-tuple leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    /// A connection.
    Connection(ConnId),
    /// An entry of the TIME-WAIT table.
    TimeWait(u32),
}

/// SipHash-1-3 under a key of the stack.
#[derive(Clone, Debug)]
pub(crate) struct KeyedHash(Key);

impl KeyedHash {
    /// The hash of the stack with this seed.
    pub(crate) fn new(seed: u64) -> Self {
        KeyedHash(Chance::new(seed, Purpose::Demux).key())
    }
}

impl BuildHasher for KeyedHash {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_key(&self.0)
    }
}

/// The table of four-tuples. The stack bounds its size by `max_connections`.
pub(crate) type Demux = HashMap<FourTuple, Target, KeyedHash>;

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
        assert!(plain.is_one_family());
    }

    #[test]
    fn groups_and_nobody_are_not_unicast() {
        for ip in ["0.0.0.0", "255.255.255.255", "224.0.0.1", "::", "ff02::1"] {
            assert!(!is_unicast(ip.parse().expect("valid")), "{ip}");
        }
        assert!(is_unicast("10.0.0.1".parse().expect("valid")) && is_unicast("::1".parse().expect("valid")));
    }

    #[test]
    fn the_hash_depends_on_the_seed() {
        let tuple =
            FourTuple::new(SocketAddr::from(([10, 0, 0, 1], 80)), SocketAddr::from(([10, 0, 0, 2], 81)));
        assert_eq!(KeyedHash::new(1).hash_one(tuple), KeyedHash::new(1).hash_one(tuple));
        assert_ne!(KeyedHash::new(1).hash_one(tuple), KeyedHash::new(2).hash_one(tuple));
    }
}

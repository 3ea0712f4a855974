//! Which connection a packet belongs to.
//!
//! One hash table from four-tuples to connections and TIME-WAIT entries. The hash is keyed by the seed
//! of the stack: nobody outside can choose four-tuples that fall into one bucket.

use alloc::boxed::Box;
use core::hash::{BuildHasher, Hash, Hasher};
use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use hashbrown::HashTable;
use siphasher::sip::SipHasher13;

use super::conn_id::ConnId;
use super::keys::{Chance, Key, Purpose};

/// The two ends of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
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

/// A four-tuple as tables keep it: in a quarter of the bytes if the addresses are IPv4.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum CompactTuple {
    /// Addresses and ports, ours first.
    V4([Ipv4Addr; 2], [u16; 2]),
    /// Anything else.
    Other(Box<FourTuple>),
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

/// The table of four-tuples. The stack bounds its size by `max_connections`.
#[derive(Debug)]
pub(crate) struct Demux {
    hash: KeyedHash,
    entries: HashTable<(CompactTuple, Target)>,
}

impl Demux {
    /// An empty table.
    pub(crate) fn new(hash: KeyedHash) -> Self {
        Demux { hash, entries: HashTable::new() }
    }

    /// Number of four-tuples.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Where `tuple` leads to.
    pub(crate) fn get(&self, tuple: &FourTuple) -> Option<Target> {
        let hash = self.hash.hash_one(tuple);
        self.entries.find(hash, |(known, _)| FourTuple::from(known) == *tuple).map(|(_, target)| *target)
    }

    /// True if `tuple` leads anywhere.
    pub(crate) fn contains(&self, tuple: &FourTuple) -> bool {
        self.get(tuple).is_some()
    }

    /// Lets `tuple` lead to `target` from now on.
    pub(crate) fn insert(&mut self, tuple: FourTuple, target: Target) {
        let hash = self.hash.hash_one(tuple);
        match self.entries.find_mut(hash, |(known, _)| FourTuple::from(known) == tuple) {
            Some((_, known)) => *known = target,
            None => {
                let again = |(known, _): &(CompactTuple, Target)| self.hash.hash_one(FourTuple::from(known));
                self.entries.insert_unique(hash, (tuple.into(), target), again);
            }
        }
    }

    /// Forgets `tuple`.
    pub(crate) fn remove(&mut self, tuple: &FourTuple) {
        let hash = self.hash.hash_one(tuple);
        if let Ok(entry) = self.entries.find_entry(hash, |(known, _)| FourTuple::from(known) == *tuple) {
            entry.remove();
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
    fn what_was_put_in_last_is_found_until_it_is_removed() {
        let tuple = |local: &str, remote: &str| {
            FourTuple::new(local.parse().expect("valid"), remote.parse().expect("valid"))
        };
        let tuples: [FourTuple; 3] = [
            tuple("10.0.0.1:80", "10.0.0.2:81"),
            tuple("10.0.0.1:80", "10.0.0.2:82"),
            tuple("[2001:db8::1]:80", "[2001:db8::2]:81"),
        ];
        let mut demux = Demux::new(KeyedHash::new(1));
        for (place, tuple) in tuples.iter().enumerate() {
            assert_eq!(FourTuple::from(&CompactTuple::from(*tuple)), *tuple);
            demux.insert(*tuple, Target::TimeWait(place as u32));
            demux.insert(*tuple, Target::TimeWait(place as u32 + 10));
        }
        assert_eq!(demux.len(), 3);
        for (place, tuple) in tuples.iter().enumerate() {
            assert_eq!(demux.get(tuple), Some(Target::TimeWait(place as u32 + 10)));
            demux.remove(tuple);
            assert!(!demux.contains(tuple));
        }
        assert_eq!(demux.len(), 0);
    }

    #[test]
    fn the_hash_depends_on_the_seed() {
        let tuple =
            FourTuple::new(SocketAddr::from(([10, 0, 0, 1], 80)), SocketAddr::from(([10, 0, 0, 2], 81)));
        assert_eq!(KeyedHash::new(1).hash_one(tuple), KeyedHash::new(1).hash_one(tuple));
        assert_ne!(KeyedHash::new(1).hash_one(tuple), KeyedHash::new(2).hash_one(tuple));
    }
}

//! Which connection a packet belongs to.
//!
//! One hash table from four-tuples to connections and TIME-WAIT entries. The hash is keyed by the seed
//! of the stack: nobody outside can choose four-tuples that fall into one bucket. Part of the hash is kept, so that the
//! table grows without a look at the connections.

use alloc::boxed::Box;
use core::cell::Cell;
use core::hash::{BuildHasher, Hash, Hasher};
use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use hashbrown::HashTable;
use siphasher::sip::SipHasher13;

use super::keys::{Chance, Key, Purpose};

/// The two ends of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct FourTuple {
    /// Our end.
    pub local: SocketAddr,
    /// The peer's end.
    pub remote: SocketAddr,
}

/// An IPv4 four-tuple in two words: addresses and ports.
type V4 = (u64, u32);

impl FourTuple {
    /// The four-tuple of these ends, in the one form that compares equal however they were written:
    /// no flow label, no scope, IPv4 as IPv4.
    pub fn new(local: SocketAddr, remote: SocketAddr) -> Self {
        FourTuple { local: canonical(local), remote: canonical(remote) }
    }

    /// The addresses and the ports of both ends, ours first, if they are IPv4.
    #[inline]
    fn v4(&self) -> Option<V4> {
        let (SocketAddr::V4(local), SocketAddr::V4(remote)) = (self.local, self.remote) else { return None };
        let addresses = u64::from(local.ip().to_bits()) << 32 | u64::from(remote.ip().to_bits());
        Some((addresses, self.ports()))
    }

    /// What is hashed of an IPv4 four-tuple, in one piece: that takes a third fewer instructions than word by word.
    pub(super) fn v4_bytes(&self) -> Option<[u8; 12]> {
        self.v4().map(bytes)
    }

    /// Both ports in a word, ours first.
    fn ports(&self) -> u32 {
        u32::from(self.local.port()) << 16 | u32::from(self.remote.port())
    }

    /// True if both ends are one.
    pub(super) fn is_loop(&self) -> bool {
        self.local.port() == self.remote.port() && self.local == self.remote
    }

    /// True if both ends are of one address family.
    pub fn is_one_family(&self) -> bool {
        self.local.is_ipv4() == self.remote.is_ipv4()
    }
}

/// The words of an IPv4 four-tuple as they are hashed.
fn bytes((addresses, ports): V4) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&addresses.to_le_bytes());
    bytes[8..].copy_from_slice(&ports.to_le_bytes());
    bytes
}

/// In as few words as it takes.
impl Hash for FourTuple {
    fn hash<H: Hasher>(&self, state: &mut H) {
        hash_addresses(self.local.ip(), self.remote.ip(), state);
        state.write_u32(self.ports());
    }
}

/// Hashes two addresses of one family; the ends of a connection have one.
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

/// The address without flow label and scope, IPv4-mapped addresses as IPv4.
pub(crate) fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

/// True for an address that one host can have.
pub(crate) fn is_unicast(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => !(ip.is_unspecified() || ip.is_multicast() || ip.is_broadcast()),
        IpAddr::V6(ip) => !(ip.is_unspecified() || ip.is_multicast()),
    }
}

/// What a four-tuple leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    /// The connection in this slot.
    Connection(u32),
    /// An entry of the table of half-open connections.
    HalfOpen(u32),
    /// An entry of the TIME-WAIT table.
    TimeWait(u32),
}

/// Bits of a packed [`Target`] that tell the kinds apart: [`HALF_OPEN`], [`TIME_WAIT`] or none.
const KIND: u32 = HALF_OPEN | TIME_WAIT;
const HALF_OPEN: u32 = 1 << 30;
const TIME_WAIT: u32 = 1 << 31;

/// Four-tuples that there may be: the bits above tell the kinds apart.
pub(crate) const MAX_ENTRIES: usize = HALF_OPEN as usize;

impl Target {
    fn pack(self) -> u32 {
        match self {
            Target::Connection(place) => place,
            Target::HalfOpen(place) => place | HALF_OPEN,
            Target::TimeWait(place) => place | TIME_WAIT,
        }
    }

    fn unpack(packed: u32) -> Target {
        match packed & KIND {
            0 => Target::Connection(packed),
            HALF_OPEN => Target::HalfOpen(packed & !KIND),
            _ => Target::TimeWait(packed & !KIND),
        }
    }
}

/// SipHash-1-3 under a key of the stack.
#[derive(Clone, Debug)]
pub(crate) struct KeyedHash(Key);

impl KeyedHash {
    /// The hash of the stack with this seed.
    pub(crate) fn new(seed: u64) -> Self {
        KeyedHash(Chance::new(seed, Purpose::Demux).key())
    }

    /// The hash of an IPv4 four-tuple, at once.
    fn of_v4(&self, v4: V4) -> u64 {
        self.build_hasher().hash(&bytes(v4))
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

impl CompactTuple {
    /// True if it is this one.
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
///
/// An entry is eight bytes: half of the hash, and the target. The tuple itself stands once, at the target; whoever asks
/// says whether it is the one that is looked for.
#[derive(Debug)]
pub(crate) struct Demux {
    hash: KeyedHash,
    /// The IPv4 four-tuple that was asked for last: a packet that opens or ends a connection has the table asked and changed
    /// several times, and packets of one connection come in a row.
    last: Cell<Option<Last>>,
    entries: HashTable<Entry>,
}

/// What is known of a four-tuple.
#[derive(Clone, Copy, Debug)]
struct Last {
    tuple: V4,
    hash: u32,
    /// Where it leads to, if it was looked up since that changed.
    target: Option<Target>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    hash: u32,
    target: u32,
}

impl Entry {
    /// The hash in the width that the table takes: it picks the place by the low bits, and compares the top ones.
    fn spread(&self) -> u64 {
        u64::from(self.hash) << 32 | u64::from(self.hash)
    }
}

impl Demux {
    /// An empty table with this hash.
    pub(crate) fn new(hash: KeyedHash) -> Self {
        Demux { hash, last: Cell::new(None), entries: HashTable::new() }
    }

    /// As [`Demux::new`] makes one, in the same storage.
    pub(super) fn renew(&mut self, by: KeyedHash) {
        let Demux { hash, last, entries } = self;
        *hash = by;
        last.set(None);
        entries.clear();
    }

    /// Number of four-tuples.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    fn entry(&self, tuple: &FourTuple, target: Target) -> Entry {
        Entry { hash: self.hash_of(tuple), target: target.pack() }
    }

    /// The half of the hash of `tuple` that is kept.
    fn hash_of(&self, tuple: &FourTuple) -> u32 {
        let Some(v4) = tuple.v4() else { return self.hash.hash_one(tuple) as u32 };
        self.known(v4).hash
    }

    /// What is known of an IPv4 four-tuple: its hash, and perhaps more.
    fn known(&self, tuple: V4) -> Last {
        if let Some(last) = self.last.get().filter(|last| last.tuple == tuple) {
            return last;
        }
        let new = Last { tuple, hash: self.hash.of_v4(tuple) as u32, target: None };
        self.last.set(Some(new));
        new
    }

    /// `tuple` was asked for last, and leads to this now: or that is not known, if `None`.
    fn note(&self, tuple: &FourTuple, target: Option<Target>) {
        if tuple.v4().is_some() {
            self.last.set(self.last.get().map(|last| Last { target, ..last }));
        }
    }

    /// Where `tuple` leads to. `is_of`: the tuple of this target is the one that is looked for.
    pub(crate) fn get(&self, tuple: &FourTuple, is_of: impl Fn(Target) -> bool) -> Option<Target> {
        let known = tuple.v4().map(|v4| self.known(v4));
        if let Some(target) = known.and_then(|known| known.target) {
            debug_assert!(is_of(target), "it leads elsewhere");
            return Some(target);
        }
        let hash = known.map_or_else(|| self.hash_of(tuple), |known| known.hash);
        let sought = Entry { hash, target: 0 };
        let is_sought = |known: &Entry| known.hash == hash && is_of(Target::unpack(known.target));
        let found = self.entries.find(sought.spread(), is_sought).map(|found| Target::unpack(found.target));
        self.note(tuple, found);
        found
    }

    /// Lets `tuple` lead to `to` from now on; `from` is where it led so far.
    pub(crate) fn point(&mut self, tuple: &FourTuple, from: Option<Target>, to: Target) {
        let entry = self.entry(tuple, to);
        let before = from.map(|from| Entry { target: from.pack(), ..entry });
        match before.and_then(|before| self.entries.find_mut(entry.spread(), |known| *known == before)) {
            Some(known) => *known = entry,
            None => {
                self.entries.insert_unique(entry.spread(), entry, Entry::spread);
            }
        }
        self.note(tuple, None);
    }

    /// Forgets `tuple`, which led to `target`.
    pub(crate) fn remove(&mut self, tuple: &FourTuple, target: Target) {
        let entry = self.entry(tuple, target);
        if let Ok(found) = self.entries.find_entry(entry.spread(), |known| *known == entry) {
            found.remove();
        }
        self.note(tuple, None);
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
            assert!(!is_unicast(&ip.parse().expect("valid")), "{ip}");
        }
        assert!(
            is_unicast(&"10.0.0.1".parse().expect("valid")) && is_unicast(&"::1".parse().expect("valid"))
        );
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
        let owner = |target| match target {
            Target::Connection(place) => &tuples[place as usize],
            Target::HalfOpen(place) => &tuples[place as usize - 5],
            Target::TimeWait(place) => &tuples[place as usize - 10],
        };
        let found = |demux: &Demux, tuple| demux.get(tuple, |target| owner(target) == tuple);
        for (place, tuple) in (0..).zip(&tuples) {
            assert!(CompactTuple::from(*tuple).is(tuple));
            assert_eq!(FourTuple::from(&CompactTuple::from(*tuple)), *tuple);
            demux.point(tuple, None, Target::Connection(place));
            demux.point(tuple, Some(Target::Connection(place)), Target::HalfOpen(place + 5));
            assert_eq!(found(&demux, tuple), Some(Target::HalfOpen(place + 5)));
            demux.point(tuple, Some(Target::HalfOpen(place + 5)), Target::TimeWait(place + 10));
        }
        assert_eq!(demux.len(), 3);
        for (place, tuple) in (0..).zip(&tuples) {
            assert_eq!(found(&demux, tuple), Some(Target::TimeWait(place + 10)));
            demux.remove(tuple, Target::Connection(place));
            assert!(found(&demux, tuple).is_some(), "it no longer leads there");
            demux.remove(tuple, Target::TimeWait(place + 10));
            assert!(found(&demux, tuple).is_none());
        }
        assert_eq!(demux.len(), 0);
    }

    #[test]
    fn a_compact_tuple_is_no_other() {
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
            for (b, tuple) in tuples.iter().enumerate() {
                assert_eq!(CompactTuple::from(*known).is(tuple), a == b);
            }
        }
    }

    #[test]
    fn the_hash_depends_on_the_seed() {
        let tuple =
            FourTuple::new(SocketAddr::from(([10, 0, 0, 1], 80)), SocketAddr::from(([10, 0, 0, 2], 81)));
        assert_eq!(KeyedHash::new(1).hash_one(tuple), KeyedHash::new(1).hash_one(tuple));
        let v4 = tuple.v4().expect("it is IPv4");
        assert_eq!(KeyedHash::new(1).hash_one(tuple), KeyedHash::new(1).of_v4(v4));
        assert_ne!(KeyedHash::new(1).hash_one(tuple), KeyedHash::new(2).hash_one(tuple));
    }
}

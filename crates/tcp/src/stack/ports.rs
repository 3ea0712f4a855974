//! Ephemeral ports: the double-hash algorithm of RFC 6056 section 3.3.4, with random increments.
//!
//! A hash of the addresses gives the start of the search for a destination, and a counter from a small table
//! gives its progress. So a host that sees the ports used towards it learns nothing about those used towards
//! others. A port is used again towards a destination only after the counter has passed the whole range.

use core::hash::{Hash, Hasher};
use core::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use core::ops::RangeInclusive;

use siphasher::sip::SipHasher24;

use crate::keys::{Chance, Key, Purpose, Seed};

/// Number of counters. RFC 6056 recommends at least ten; more of them separate destinations better.
const COUNTERS: usize = 256;
/// Largest random increment.
const MAX_STEP: u32 = 8;

#[derive(Debug)]
pub(crate) struct Ports {
    first: u16,
    count: u32,
    seed: Seed,
    /// Derived at the first choice: a server never makes one.
    secrets: Option<PortSecrets>,
    counters: [u32; COUNTERS],
}

#[derive(Debug)]
struct PortSecrets {
    offset_key: Key,
    counter_key: Key,
    chance: Chance,
}

impl PortSecrets {
    fn new(seed: &Seed) -> Self {
        let mut chance = Chance::new(seed, Purpose::Ports);
        PortSecrets { offset_key: chance.key(), counter_key: chance.key(), chance }
    }
}

impl Ports {
    /// Returns a chooser for `range`, which is not empty.
    pub(crate) fn new(range: &RangeInclusive<u16>, seed: &Seed) -> Self {
        Ports {
            first: *range.start(),
            count: count(range),
            seed: seed.clone(),
            secrets: None,
            counters: [0; COUNTERS],
        }
    }

    /// Resets to the state after [`Ports::new`].
    pub(crate) fn renew(&mut self, range: &RangeInclusive<u16>, seed: &Seed) {
        // Without a choice of ports nothing was counted.
        if self.secrets.is_some() {
            *self = Ports::new(range, seed);
        } else {
            (self.first, self.count, self.seed) = (*range.start(), count(range), seed.clone());
        }
    }

    /// Returns a port for a connection from `local` to `remote` that `is_free` accepts; `None` if it rejects
    /// every port of the range.
    pub(crate) fn choose(
        &mut self,
        local: IpAddr,
        remote: SocketAddr,
        is_free: impl FnMut(u16) -> bool,
    ) -> Option<u16> {
        self.choose_among(self.count, local, remote, is_free)
    }

    /// Chooses a port like [`Ports::choose`], but tries only the next `max` ports of the range.
    pub(crate) fn choose_among(
        &mut self,
        max: u32,
        local: IpAddr,
        remote: SocketAddr,
        mut is_free: impl FnMut(u16) -> bool,
    ) -> Option<u16> {
        let secrets = self.secrets.get_or_insert_with(|| PortSecrets::new(&self.seed));
        let offset = hash(&secrets.offset_key, local, remote) as u32;
        let counter = &mut self.counters[hash(&secrets.counter_key, local, remote) as usize % COUNTERS];
        *counter = counter.wrapping_add(1 + secrets.chance.below(MAX_STEP));
        for _ in 0..self.count.min(max) {
            let port = self.first + (offset.wrapping_add(*counter) % self.count) as u16;
            if is_free(port) {
                return Some(port);
            }
            *counter = counter.wrapping_add(1);
        }
        None
    }
}

fn count(range: &RangeInclusive<u16>) -> u32 {
    u32::from(range.end().saturating_sub(*range.start())) + 1
}

fn hash(key: &Key, local: IpAddr, remote: SocketAddr) -> u64 {
    let mut hasher = SipHasher24::new_with_key(key);
    if let (IpAddr::V4(local), SocketAddr::V4(remote)) = (local, remote) {
        return hasher.hash(&v4_bytes(local, remote));
    }
    (local, remote).hash(&mut hasher);
    hasher.finish()
}

/// Returns the bytes that the standard library hashes for these ends. In one piece they take less than half
/// of the instructions. Before each address is its kind, a word that is zero.
fn v4_bytes(local: Ipv4Addr, remote: SocketAddrV4) -> [u8; 26] {
    let mut bytes = [0; 26];
    bytes[8..12].copy_from_slice(&local.octets());
    bytes[20..24].copy_from_slice(&remote.ip().octets());
    bytes[24..].copy_from_slice(&remote.port().to_ne_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const LOCAL: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 1));

    fn remote(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 1, last], 80))
    }

    #[test]
    fn every_port_of_the_range_is_found_before_it_is_exhausted() {
        let mut ports = Ports::new(&(40_000..=40_099), &1.into());
        let mut used = BTreeSet::new();
        for _ in 0..100 {
            let port = ports.choose(LOCAL, remote(1), |port| !used.contains(&port)).expect("a port is free");
            assert!((40_000..=40_099).contains(&port));
            assert!(used.insert(port));
        }
        assert_eq!(ports.choose(LOCAL, remote(1), |port| !used.contains(&port)), None);
    }

    #[test]
    fn short_search_asks_within_its_limit_and_the_next_continues() {
        let mut ports = Ports::new(&(40_000..=40_999), &1.into());
        let mut asked = BTreeSet::new();
        for _ in 0..2 {
            let found = ports.choose_among(10, LOCAL, remote(1), |port| {
                assert!(asked.insert(port), "{port} was asked before");
                false
            });
            assert_eq!(found, None);
        }
        assert_eq!(asked.len(), 20);
    }

    #[test]
    fn a_hash_is_the_same_in_one_piece_and_field_by_field() {
        let mut hasher = SipHasher24::new_with_key(&[7; 16]);
        (LOCAL, remote(9)).hash(&mut hasher);
        assert_eq!(hash(&[7; 16], LOCAL, remote(9)), hasher.finish());
    }

    #[test]
    fn a_range_of_one_port_and_the_highest_port_work() {
        let mut ports = Ports::new(&(65_535..=65_535), &1.into());
        assert_eq!(ports.choose(LOCAL, remote(1), |_| true), Some(65_535));
    }

    #[test]
    fn ports_of_one_destination_do_not_reveal_those_of_another() {
        let first_ports = |seed: u64| {
            let mut ports = Ports::new(&(32_768..=60_999), &seed.into());
            (1..=20).map(|n| ports.choose(LOCAL, remote(n), |_| true).expect("free")).collect::<BTreeSet<_>>()
        };
        let chosen = first_ports(1);
        assert_eq!(chosen.len(), 20, "no clustering");
        assert!(chosen.iter().next_back().expect("some") - chosen.iter().next().expect("some") > 5000);
        assert_eq!(chosen, first_ports(1));
        assert_ne!(chosen, first_ports(2));
    }
}

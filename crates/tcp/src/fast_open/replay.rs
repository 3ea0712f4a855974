//! SYNs whose data was accepted, remembered so that a copy is not accepted again (RFC 7413 section 6.1).
//!
//! A copy of a SYN is recognised while its connection exists, and for a minute after that by
//! [`super::last_ack`] (TCP Fast Open, CoNEXT 2011, section 3.5). But a server holds only connections that
//! left LAST-ACK. The window remembers every SYN whose data was accepted, for a configured time, by client
//! address, port of the listener, initial sequence number and data. The client's port is left out, so that a
//! copy from another port is recognised too.
//!
//! The window forgets nothing too early. While it is full, SYNs are treated as without Fast Open. A known SYN
//! opens an ordinary handshake, which an old duplicate never completes. Entries are keyed hashes; a collision
//! costs the second SYN a round trip.
//!
//! If several stacks share the addresses of a host, a copy may reach another stack. So their driver makes
//! them share the window ([`ReplayMemory`]).
//!
//! A restart loses the window. If the keys are random at each start, old cookies become invalid at the same
//! time. With configured keys, an earlier SYN can be accepted once more.

use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::ToString;
use core::fmt;
use core::hash::BuildHasher;
use core::net::IpAddr;

use brisk_wire::SeqNum;
use hashbrown::HashSet;

use crate::error::ConfigError;
use crate::four_tuple::KeyedHash;
use crate::time::{Duration, Instant};

/// Lifetime and size of the window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplayWindow {
    /// Time for which a SYN is remembered: at least as long as the network may delay a SYN (RFC 9293 section
    /// 3.4.1: two minutes). Above 0, up to 86400 s, default 120 s.
    pub lifetime: Duration,
    /// Limit of remembered SYNs, 50 bytes each. Further SYNs open an ordinary handshake. 1..=16777216,
    /// default 262144: 2,184 a second for 120 s.
    pub entries: usize,
}

impl Default for ReplayWindow {
    fn default() -> Self {
        ReplayWindow { lifetime: Duration::from_secs(120), entries: 1 << 18 }
    }
}

impl ReplayWindow {
    /// Checks the documented ranges of the fields; the error names the first field that is out of its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.lifetime.is_zero() || self.lifetime > Duration::from_secs(86_400) {
            let value = format!("{:?}", self.lifetime);
            return Err(ConfigError { key: "replay_window.lifetime", value, range: "1 ns to 86400 s" });
        }
        if !(1..=1 << 24).contains(&self.entries) {
            let value = self.entries.to_string();
            return Err(ConfigError { key: "replay_window.entries", value, range: "1 to 16777216" });
        }
        Ok(())
    }
}

/// The fields of a SYN with data that a copy of it has, too.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct FirstData<'a> {
    /// Source address of the SYN.
    pub client: IpAddr,
    /// Sequence number of the SYN.
    pub isn: SeqNum,
    /// Data of the SYN.
    pub data: &'a [u8],
}

/// Decision on a SYN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplayVerdict {
    /// The SYN was not seen within the window, and is remembered now.
    Fresh,
    /// The SYN was seen before.
    Replayed,
    /// There is no space to remember the SYN.
    Full,
}

/// Memory of the SYNs of a listener, of one stack or of several.
pub trait ReplayMemory: fmt::Debug + Send {
    /// Checks a SYN whose data is about to be accepted, and remembers it if it is fresh.
    fn check(&mut self, syn: &FirstData<'_>, now: Instant) -> ReplayVerdict;
}

/// The SYNs that one listener remembers.
#[derive(Debug)]
pub(crate) struct Replays {
    window: ReplayWindow,
    hash: KeyedHash,
    seen: HashSet<u64, KeyedHash>,
    /// In order of expiry.
    order: VecDeque<(Instant, u64)>,
}

impl Replays {
    pub(crate) fn new(window: ReplayWindow, hash: KeyedHash) -> Self {
        let seen = HashSet::with_hasher(hash.clone());
        Replays { window, hash, seen, order: VecDeque::new() }
    }
}

impl ReplayMemory for Replays {
    fn check(&mut self, syn: &FirstData<'_>, now: Instant) -> ReplayVerdict {
        while let Some((_, mark)) = self.order.pop_front_if(|(expiry, _)| *expiry <= now) {
            self.seen.remove(&mark);
        }
        let mark = self.hash.hash_one(syn);
        if self.seen.contains(&mark) {
            return ReplayVerdict::Replayed;
        }
        if self.order.len() >= self.window.entries {
            return ReplayVerdict::Full;
        }
        self.seen.insert(mark);
        self.order.push_back((now + self.window.lifetime, mark));
        ReplayVerdict::Fresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replays(entries: usize) -> Replays {
        let window = ReplayWindow { lifetime: Duration::from_secs(120), entries };
        Replays::new(window, KeyedHash::new(&1.into()))
    }

    fn syn(isn: u32, data: &[u8]) -> FirstData<'_> {
        FirstData { client: IpAddr::from([192, 0, 2, 1]), isn: SeqNum(isn), data }
    }

    fn at(secs: u64) -> Instant {
        Instant::from_millis(secs * 1000)
    }

    #[test]
    fn a_copy_is_known_for_the_lifetime_and_not_longer() {
        let mut replays = replays(10);
        assert_eq!(replays.check(&syn(7, b"GET /"), at(0)), ReplayVerdict::Fresh);
        assert_eq!(replays.check(&syn(7, b"GET /"), at(61)), ReplayVerdict::Replayed);
        assert_eq!(
            replays.check(&syn(7, b"GET /"), at(119)),
            ReplayVerdict::Replayed,
            "a copy renews nothing"
        );
        assert_eq!(replays.check(&syn(7, b"GET /"), at(120)), ReplayVerdict::Fresh);
    }

    #[test]
    fn the_same_request_on_a_new_connection_is_no_copy() {
        let mut replays = replays(10);
        let other = FirstData { client: IpAddr::from([192, 0, 2, 2]), ..syn(7, b"GET /") };
        for syn in [syn(7, b"GET /"), syn(8, b"GET /"), syn(7, b"GET /a"), other] {
            assert_eq!(replays.check(&syn, at(0)), ReplayVerdict::Fresh, "{syn:?}");
        }
    }

    #[test]
    fn a_full_window_takes_nothing_new_and_forgets_nothing() {
        let mut replays = replays(2);
        assert_eq!(replays.check(&syn(1, b"x"), at(0)), ReplayVerdict::Fresh);
        assert_eq!(replays.check(&syn(2, b"x"), at(60)), ReplayVerdict::Fresh);
        assert_eq!(replays.check(&syn(3, b"x"), at(61)), ReplayVerdict::Full);
        assert_eq!(replays.check(&syn(1, b"x"), at(61)), ReplayVerdict::Replayed);
        assert_eq!(replays.check(&syn(3, b"x"), at(120)), ReplayVerdict::Fresh, "the first has gone");
    }
}

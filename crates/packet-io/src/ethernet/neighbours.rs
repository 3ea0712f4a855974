//! Neighbours on the link: known hardware addresses, and packets that wait for one.
//!
//! There is no timer. A query is repeated when a packet is sent, at most once a second (RFC 1122 section
//! 2.3.2.1), so TCP's retransmissions trigger it. An entry that was not confirmed for some time stays in use
//! while it is queried again.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::frame::Mac;

/// Minimum interval between two queries for the same address.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// How long an answer is used without another query (REACHABLE_TIME of RFC 4861 section 10).
const REACHABLE: Duration = Duration::from_secs(30);
/// Maximum number of addresses; beyond it the entry that was heard longest ago is dropped.
const MAX_NEIGHBOURS: usize = 1024;
/// Maximum number of packets that wait for one address; beyond it the oldest is dropped.
const MAX_WAITING: usize = 64;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    known: HashMap<IpAddr, Neighbour>,
}

#[derive(Debug)]
struct Neighbour {
    mac: Option<Mac>,
    /// When it was last heard, or first queried.
    heard: Instant,
    asked: Option<Instant>,
    waiting: VecDeque<Vec<u8>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Verdict {
    /// The hardware address, or `None`: pass the packet to [`Neighbours::hold`].
    pub(super) mac: Option<Mac>,
    /// True if the address must be queried.
    pub(super) ask: bool,
}

impl Neighbours {
    /// Looks up the neighbour for a packet to `hop`.
    pub(super) fn look_up(&mut self, hop: IpAddr, now: Instant) -> Verdict {
        if !self.known.contains_key(&hop) {
            self.make_room();
        }
        let fresh = Neighbour { mac: None, heard: now, asked: None, waiting: VecDeque::new() };
        let entry = self.known.entry(hop).or_insert(fresh);
        let doubtful = entry.mac.is_none() || now.saturating_duration_since(entry.heard) >= REACHABLE;
        let due = entry.asked.is_none_or(|asked| now.saturating_duration_since(asked) >= ASK_AGAIN);
        let ask = doubtful && due;
        if ask {
            entry.asked = Some(now);
        }
        Verdict { mac: entry.mac, ask }
    }

    /// Keeps a packet until `hop` is known. Returns true if an older packet was dropped to make space.
    pub(super) fn hold(&mut self, hop: IpAddr, packet: &[u8]) -> bool {
        let Some(entry) = self.known.get_mut(&hop) else { return true };
        let full = entry.waiting.len() >= MAX_WAITING;
        if full {
            entry.waiting.pop_front();
        }
        entry.waiting.push_back(packet.to_vec());
        full
    }

    /// Records that `address` is at `mac`. A new entry is added only with `insert`: for senders of queries
    /// about our addresses (RFC 826), but not for senders of answers (RFC 4861 section 7.2.5). Returns the
    /// packets that waited.
    pub(super) fn learn(
        &mut self,
        address: IpAddr,
        mac: Mac,
        insert: bool,
        now: Instant,
    ) -> VecDeque<Vec<u8>> {
        if !self.known.contains_key(&address) {
            if !insert {
                return VecDeque::new();
            }
            self.make_room();
        }
        let fresh = Neighbour { mac: None, heard: now, asked: None, waiting: VecDeque::new() };
        let entry = self.known.entry(address).or_insert(fresh);
        (entry.mac, entry.heard, entry.asked) = (Some(mac), now, None);
        std::mem::take(&mut entry.waiting)
    }

    fn make_room(&mut self) {
        if self.known.len() < MAX_NEIGHBOURS {
            return;
        }
        let oldest = self.known.iter().min_by_key(|(_, entry)| entry.heard).map(|(address, _)| *address);
        oldest.map(|address| self.known.remove(&address));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const MAC: Mac = [2, 0, 0, 0, 0, 9];

    fn address(number: u32) -> IpAddr {
        Ipv4Addr::from_bits(0x0A00_0000 + number).into()
    }

    #[test]
    fn unknown_address_is_queried_once_a_second_and_packets_wait() {
        let (mut neighbours, start) = (Neighbours::default(), Instant::now());
        let mut asked = 0;
        for millis in (0..3000).step_by(100) {
            let verdict = neighbours.look_up(address(1), start + Duration::from_millis(millis));
            assert_eq!(verdict.mac, None);
            assert!(!neighbours.hold(address(1), &[millis as u8]));
            asked += u32::from(verdict.ask);
        }
        assert_eq!(asked, 3);
        let waited = neighbours.learn(address(1), MAC, false, start);
        assert_eq!((waited.len(), waited[0][0], waited[1][0]), (30, 0, 100));
        assert_eq!(neighbours.look_up(address(1), start), Verdict { mac: Some(MAC), ask: false });
    }

    #[test]
    fn stale_entry_is_used_and_queried_again() {
        let (mut neighbours, start) = (Neighbours::default(), Instant::now());
        neighbours.learn(address(1), MAC, true, start);
        let later = start + REACHABLE;
        assert_eq!(neighbours.look_up(address(1), later), Verdict { mac: Some(MAC), ask: true });
        assert_eq!(neighbours.look_up(address(1), later), Verdict { mac: Some(MAC), ask: false });
        neighbours.learn(address(1), MAC, false, later);
        assert!(!neighbours.look_up(address(1), later + ASK_AGAIN).ask);
    }

    #[test]
    fn table_is_bounded_and_advertisements_add_no_entry() {
        let (mut neighbours, start) = (Neighbours::default(), Instant::now());
        neighbours.learn(address(0), MAC, false, start);
        assert_eq!(neighbours.known.len(), 0);
        for number in 0..3000 {
            neighbours.learn(address(number), MAC, true, start + Duration::from_millis(u64::from(number)));
            neighbours.look_up(address(10_000 + number), start + Duration::from_millis(u64::from(number)));
        }
        assert_eq!(neighbours.known.len(), MAX_NEIGHBOURS);
        assert!(neighbours.known.contains_key(&address(2999)));
        for number in 0..200u8 {
            neighbours.hold(address(12_999), &[number]);
        }
        let waiting = &neighbours.known[&address(12_999)].waiting;
        assert_eq!((waiting.len(), waiting[0][0]), (MAX_WAITING, 200 - MAX_WAITING as u8));
    }
}

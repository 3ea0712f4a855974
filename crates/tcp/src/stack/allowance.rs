//! The allowance of redundancy per destination. It is [`PlannerConfig::max_overhead`] percent of a sum: the
//! bytes that all connections with a planner have sent there in the last ten seconds, and the constant
//! [`PlannerConfig::QUIET`]. The redundancy of these ten seconds is deducted. A plan is charged when it is
//! made, so connections that plan at the same time share the allowance. The unused part is credited back. A
//! reservation that is not released expires after ten seconds.

use alloc::collections::BTreeMap;
use core::net::IpAddr;

use crate::config::PlannerConfig;
use crate::connection::{Connection, ReservationChange};
use crate::outcome::Origin;
use crate::time::Instant;

/// Length of the history, seconds.
const SECONDS: u64 = 10;
/// Maximum number of destinations. A destination that was silent for ten seconds needs no entry.
const DESTINATIONS_MAX: usize = 4096;

/// Bytes sent to one destination, for each second.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct SentBytes {
    seconds: [SecondBytes; SECONDS as usize],
}

/// IP bytes sent in one second.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct SecondBytes {
    second: u64,
    /// Bytes other than redundancy.
    sent: u64,
    /// Copies and parity.
    spent: u64,
}

impl SentBytes {
    fn record(&mut self, sent: u64, spent: u64, second: u64) {
        if let Some(entry) = self.seconds.get_mut((second % SECONDS) as usize) {
            if entry.second != second {
                *entry = SecondBytes { second, ..SecondBytes::default() };
            }
            entry.sent += sent;
            entry.spent += spent;
        }
    }

    /// Cancels a charge made in the second `reserved_in`, if that is still in the history.
    fn release(&mut self, bytes: u64, reserved_in: u64) {
        let entry = self.seconds.get_mut((reserved_in % SECONDS) as usize);
        if let Some(entry) = entry.filter(|entry| entry.second == reserved_in) {
            entry.spent = entry.spent.saturating_sub(bytes);
        }
    }

    /// Returns the bytes sent and spent in the last ten seconds.
    fn sums(&self, second: u64) -> (u64, u64) {
        let recent = self.seconds.iter().filter(|entry| entry.second + SECONDS > second);
        recent.fold((0, 0), |(sent, spent), entry| (sent + entry.sent, spent + entry.spent))
    }
}

#[derive(Debug, Default)]
pub(super) struct Allowances {
    destinations: BTreeMap<IpAddr, SentBytes>,
    /// The second in which silent destinations were removed last.
    swept: u64,
}

impl Allowances {
    /// Returns the bytes of redundancy that may go to `remote` at `now`.
    pub(super) fn available(&self, remote: IpAddr, planner: &PlannerConfig, now: Instant) -> u32 {
        let (sent, spent) = match self.destinations.get(&remote) {
            Some(sent_bytes) => sent_bytes.sums(second(now)),
            None if self.destinations.len() < DESTINATIONS_MAX => (0, 0),
            None => return 0,
        };
        let earned = (sent + u64::from(PlannerConfig::QUIET)) * u64::from(planner.max_overhead) / 100;
        u32::try_from(earned.saturating_sub(spent)).unwrap_or(u32::MAX)
    }

    /// Returns the redundancy of the last ten seconds, percent of the other bytes sent to `remote`.
    pub(super) fn share(&self, remote: IpAddr, now: Instant) -> u32 {
        let (sent, spent) = self.destinations.get(&remote).map_or((0, 0), |sent| sent.sums(second(now)));
        (spent * 100).checked_div(sent).map_or(0, |share| share.min(100) as u32)
    }

    /// Records a packet of `bytes` IP bytes to `remote`.
    pub(super) fn record(&mut self, remote: IpAddr, origin: Origin, bytes: usize, now: Instant) {
        let bytes = bytes as u64;
        let (sent, spent) = if origin.is_redundancy() { (0, bytes) } else { (bytes, 0) };
        self.enter(remote, sent, spent, now);
    }

    /// Reserves the planned redundancy of this connection, and releases the part that is not needed.
    #[inline(always)]
    pub(super) fn update_reservation(&mut self, connection: &mut Connection, now: Instant) {
        let Some(change) = connection.with_gentle(|gentle, parts| gentle.take_reservation(parts, now)) else {
            return;
        };
        let ReservationChange { released, since, reserved } = change;
        let remote = connection.tuple().remote.ip();
        self.release(remote, released, since);
        if reserved > 0 {
            self.reserve(remote, reserved, now);
        }
    }

    /// Reserves IP bytes of redundancy for `remote`.
    fn reserve(&mut self, remote: IpAddr, bytes: u32, now: Instant) {
        self.enter(remote, 0, u64::from(bytes), now);
    }

    /// Releases reserved bytes that were sent and recorded, or that are not needed.
    fn release(&mut self, remote: IpAddr, bytes: u32, reserved_at: Instant) {
        if let Some(sent_bytes) = self.destinations.get_mut(&remote) {
            sent_bytes.release(u64::from(bytes), second(reserved_at));
        }
    }

    fn enter(&mut self, remote: IpAddr, sent: u64, spent: u64, now: Instant) {
        let second = second(now);
        if self.destinations.len() >= DESTINATIONS_MAX && !self.destinations.contains_key(&remote) {
            // Only once a second, because this reads all destinations.
            if self.swept != second {
                self.swept = second;
                self.destinations.retain(|_, sent_bytes| sent_bytes.sums(second) != (0, 0));
            }
            if self.destinations.len() >= DESTINATIONS_MAX {
                return;
            }
        }
        self.destinations.entry(remote).or_default().record(sent, spent, second);
    }
}

/// Returns the number of the current second. The first is 1, so that an empty entry belongs to no second.
fn second(now: Instant) -> u64 {
    now.as_micros() / 1_000_000 + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv4Addr;

    const PLANNER: PlannerConfig = PlannerConfig { max_overhead: 5, ..PlannerConfig::DEFAULT };

    fn peer(last: u32) -> IpAddr {
        IpAddr::V4(Ipv4Addr::from(last))
    }

    #[test]
    fn allowance_is_a_share_of_ten_seconds_and_of_the_quiet_bytes() {
        let mut allowances = Allowances::default();
        let available =
            |allowances: &Allowances, at| allowances.available(peer(1), &PLANNER, Instant::from_millis(at));
        assert_eq!(available(&allowances, 0), 50_000);
        allowances.record(peer(1), Origin::New, 20_000, Instant::from_millis(500));
        assert_eq!(available(&allowances, 600), 51_000);
        allowances.record(peer(1), Origin::Parity, 50_900, Instant::from_millis(700));
        assert_eq!(available(&allowances, 800), 100);
        assert_eq!(available(&allowances, 9_900), 100);
        assert_eq!(available(&allowances, 10_000), 50_000, "ten seconds later nothing of it counts");
        assert_eq!(allowances.available(peer(2), &PLANNER, Instant::from_millis(800)), 50_000);
    }

    #[test]
    fn reservation_is_spent_until_it_is_released_or_lapses() {
        let mut allowances = Allowances::default();
        let at = Instant::from_millis;
        let available = |allowances: &Allowances, now| allowances.available(peer(1), &PLANNER, now);
        allowances.reserve(peer(1), 49_900, at(900));
        assert_eq!(available(&allowances, at(900)), 100, "no other plan has it");
        allowances.record(peer(1), Origin::Parity, 200, at(1_100));
        allowances.release(peer(1), 200, at(900));
        assert_eq!(available(&allowances, at(1_100)), 100, "what left is not charged twice");
        allowances.release(peer(1), 49_700, at(900));
        assert_eq!(available(&allowances, at(1_200)), 49_800, "the rest was not needed");
        allowances.reserve(peer(1), 49_800, at(2_000));
        assert_eq!(available(&allowances, at(12_000)), 50_000, "of a connection that vanished");
        allowances.release(peer(1), 49_800, at(2_000));
        allowances.record(peer(1), Origin::Parity, 100, at(12_000));
        allowances.release(peer(1), 49_800, at(2_000));
        assert_eq!(available(&allowances, at(12_000)), 49_900, "its entry has been overwritten");
    }

    #[test]
    fn overdrawn_allowance_leaves_nothing() {
        let mut allowances = Allowances::default();
        allowances.record(peer(1), Origin::New, 1_000, Instant::ZERO);
        allowances.record(peer(1), Origin::Duplicate, 55_000, Instant::ZERO);
        assert_eq!(allowances.available(peer(1), &PLANNER, Instant::ZERO), 0);
    }

    #[test]
    fn destinations_are_bounded_and_silent_ones_go_first() {
        let mut allowances = Allowances::default();
        for index in 0..2 * DESTINATIONS_MAX as u32 {
            allowances.record(peer(index), Origin::New, 1_000, Instant::ZERO);
        }
        assert_eq!(allowances.destinations.len(), DESTINATIONS_MAX);
        assert_eq!(allowances.available(peer(u32::MAX), &PLANNER, Instant::ZERO), 0);
        allowances.record(peer(u32::MAX), Origin::New, 1_000, Instant::from_millis(20_000));
        assert_eq!(allowances.destinations.len(), 1);
    }
}

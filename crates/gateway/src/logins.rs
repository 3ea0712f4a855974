//! Failed logins by network: a client that guesses passwords is refused without a check.
//!
//! A network may fail [`BURST`] times at once and then once in [`PACE`]. Beyond that all its logins are
//! refused, even correct ones, until enough time has passed. A network is an IPv4 address or 56 bits of an
//! IPv6 address, the usual size for a subscriber. If the table is full, the network whose failures would be
//! forgiven first is removed.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Failures that a network may have at once.
const BURST: u32 = 10;
/// Time after which one failure is forgiven.
const PACE: Duration = Duration::from_secs(6);
/// Limit of remembered networks.
const MAX_NETWORKS: usize = 4096;

/// The failures of all networks. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct FailedLogins(Arc<Mutex<HashMap<IpAddr, Instant>>>);

impl FailedLogins {
    /// True if logins of this client are refused for now.
    pub(crate) fn refuses(&self, client: IpAddr, now: Instant) -> bool {
        let settled = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        settled.get(&network(client)).is_some_and(|at| at.saturating_duration_since(now) > PACE * (BURST - 1))
    }

    /// Records a failed login of this client.
    pub(crate) fn failed(&self, client: IpAddr, now: Instant) {
        let mut settled = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let network = network(client);
        if settled.len() >= MAX_NETWORKS && !settled.contains_key(&network) {
            settled.retain(|_, at| *at > now);
            if settled.len() >= MAX_NETWORKS
                && let Some(first) = settled.iter().min_by_key(|(_, at)| **at).map(|(network, _)| *network)
            {
                settled.remove(&first);
            }
        }
        let at = settled.entry(network).or_insert(now);
        // Several logins may be checked at the same time and all fail. The network then waits no longer than
        // after [`BURST`] failures.
        *at = ((*at).max(now) + PACE).min(now + PACE * BURST);
    }
}

/// Returns the network of a client: its address, or the prefix of an IPv6 subscriber.
fn network(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V4(v4) => v4.into(),
        IpAddr::V6(v6) => IpAddr::V6((u128::from(v6) >> 72 << 72).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn network_that_fails_too_often_is_refused_for_a_while() {
        for (guesser, neighbour, other) in [
            ("192.0.2.1", "::ffff:192.0.2.1", "192.0.2.2"),
            ("2001:db8::1", "2001:db8:0:ff::2", "2001:db8:0:100::1"),
        ] {
            let (logins, now) = (FailedLogins::default(), Instant::now());
            for _ in 0..BURST {
                assert!(!logins.refuses(address(guesser), now));
                logins.failed(address(guesser), now);
            }
            assert!(logins.refuses(address(guesser), now) && logins.refuses(address(neighbour), now));
            assert!(!logins.refuses(address(other), now));
            assert!(!logins.refuses(address(guesser), now + PACE), "one more is free");
            logins.failed(address(guesser), now + PACE);
            assert!(logins.refuses(address(guesser), now + PACE));
        }
    }

    #[test]
    fn failures_at_once_do_not_refuse_a_network_for_longer() {
        let (logins, now, guesser) = (FailedLogins::default(), Instant::now(), address("192.0.2.1"));
        (0..1000).for_each(|_| logins.failed(guesser, now));
        assert!(logins.refuses(guesser, now));
        assert!(!logins.refuses(guesser, now + PACE));
    }

    #[test]
    fn memory_of_failed_logins_is_bounded() {
        let (logins, now) = (FailedLogins::default(), Instant::now());
        let guesser = address("198.51.100.1");
        (0..BURST).for_each(|_| logins.failed(guesser, now));
        for n in 0..3 * MAX_NETWORKS as u32 {
            logins.failed(IpAddr::V4(n.into()), now);
        }
        assert_eq!(logins.0.lock().unwrap().len(), MAX_NETWORKS);
        assert!(logins.refuses(guesser, now));
    }
}

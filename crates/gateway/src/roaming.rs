//! Frontends whose address changes while they have connections.
//!
//! The stack identifies a peer by its address. A frontend may get another address, or another port at its
//! NAT. Then it opens a new watch (the connection with which it checks the backend, [`crate::upstream`]) and
//! repeats the secret that it sent before. The backend then recognises the peer, and its open connections
//! continue ([`Endpoint::move_peer`]).
//!
//! The secret has 32 random bytes. Each backend gets its own, which is valid from the start of the frontend
//! to its end. The frontend sends it only in sealed records, after a handshake that cannot be replayed, so
//! that only the frontend can move itself. The handshakes of TCP and of the tunnel prove that the frontend
//! receives packets at the new address; before that, no data of its open connections is sent there. Without
//! keys, anybody on the path could read and repeat the secret, so frontends of such a tunnel cannot move.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use brisk_runtime::Endpoint;

/// The secret of a frontend.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Secret(pub(crate) [u8; 32]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Returns a new secret; `None` if the system has no randomness.
pub(crate) fn secret() -> Option<Secret> {
    let mut secret = [0; 32];
    let filled = rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty());
    filled.is_ok_and(|filled| filled == secret.len()).then_some(Secret(secret))
}

/// Limit of known frontends. Beyond it, the key with the most frontends loses the one that was heard the
/// longest time ago. So a key with many frontends displaces none of a key with fewer, and frontends of a key
/// that have stopped are displaced before those that still ask.
const MAX_FRONTENDS: usize = 1024;
/// Number of earlier addresses that are kept for each frontend. Connections that began at older ones are
/// aborted.
const MAX_EARLIER: usize = 4;

/// The frontends of a backend by their secrets.
#[derive(Debug, Default)]
pub(crate) struct Roaming(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    frontends: BTreeMap<Secret, Location>,
    /// Number of registrations and questions.
    turn: u64,
}

/// The current and earlier addresses of a frontend.
#[derive(Debug)]
struct Location {
    /// The label of the hop key with which it authenticated; `None` for a key without a label.
    key_label: Option<Arc<str>>,
    /// Its address in the stack.
    at: IpAddr,
    outside: SocketAddr,
    /// Its earlier addresses in the stack, the latest last.
    earlier: VecDeque<IpAddr>,
    /// The turn in which it was heard last.
    heard: u64,
}

/// The move of a frontend to another address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Moved {
    pub(crate) before: SocketAddr,
    /// True if more than the port has changed.
    pub(crate) is_other_path: bool,
}

/// The changes that a registration causes in the stack.
#[derive(PartialEq, Eq, Debug, Default)]
struct AddressChange {
    moved: Option<(IpAddr, Moved)>,
    forgotten: Vec<IpAddr>,
}

impl Roaming {
    /// Registers the frontend with this secret and key label; its address is `at` in the stack and `outside`
    /// outside. If it has moved, its connections continue, and its earlier outside address is returned.
    pub(crate) fn register(
        &self,
        endpoint: &Endpoint,
        secret: Secret,
        key_label: Option<Arc<str>>,
        (at, outside): (IpAddr, SocketAddr),
    ) -> Option<Moved> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let AddressChange { moved, forgotten } = known.register(secret, key_label, at, outside);
        forgotten.into_iter().for_each(|address| endpoint.forget_peer(address));
        match moved {
            Some((before, moved)) => endpoint.move_peer(before, at, moved.is_other_path),
            None => endpoint.expect_moves(at),
        }
        moved.map(|(_, moved)| moved)
    }

    /// Records that the frontend with this secret still asks.
    pub(crate) fn hear(&self, secret: Secret) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).hear(secret);
    }
}

impl Known {
    fn hear(&mut self, secret: Secret) {
        self.turn += 1;
        if let Some(known) = self.frontends.get_mut(&secret) {
            known.heard = self.turn;
        }
    }

    fn register(
        &mut self,
        secret: Secret,
        key_label: Option<Arc<str>>,
        at: IpAddr,
        outside: SocketAddr,
    ) -> AddressChange {
        let mut change = AddressChange::default();
        self.turn += 1;
        let heard = self.turn;
        match self.frontends.get_mut(&secret) {
            Some(known) if known.key_label == key_label => {
                known.heard = heard;
                if known.at != at {
                    let is_other_path = known.outside.ip() != outside.ip();
                    change.moved = Some((known.at, Moved { before: known.outside, is_other_path }));
                    known.earlier.push_back(known.at);
                    (known.at, known.outside) = (at, outside);
                    if known.earlier.len() > MAX_EARLIER {
                        change.forgotten.extend(known.earlier.pop_front());
                    }
                }
            }
            // A secret that another frontend has registered proves nothing.
            Some(_) => {}
            None => {
                let earlier = VecDeque::new();
                self.frontends.insert(secret, Location { key_label, at, outside, earlier, heard });
                self.limit(&mut change);
            }
        }
        change
    }

    fn limit(&mut self, change: &mut AddressChange) {
        if self.frontends.len() <= MAX_FRONTENDS {
            return;
        }
        let mut of_key = BTreeMap::<_, (usize, _)>::new();
        for (secret, known) in &self.frontends {
            let (count, oldest) = of_key.entry(&known.key_label).or_insert((0, (known.heard, *secret)));
            *count += 1;
            *oldest = (*oldest).min((known.heard, *secret));
        }
        let most = of_key.into_values().max_by_key(|(count, _)| *count);
        if let Some(gone) = most.and_then(|(_, (_, secret))| self.frontends.remove(&secret)) {
            let is_shared = self.frontends.values().any(|known| known.at == gone.at);
            change.forgotten.extend(gone.earlier);
            change.forgotten.extend(Some(gone.at).filter(|_| !is_shared));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    fn register(known: &mut Known, secret: u8, label: &str, inside: u8, outside: &str) -> AddressChange {
        known.register(Secret([secret; 32]), Some(label.into()), at(inside), outside.parse().unwrap())
    }

    #[test]
    fn frontend_that_is_heard_elsewhere_has_moved() {
        let mut known = Known::default();
        for _ in 0..2 {
            assert_eq!(register(&mut known, 1, "a", 1, "192.0.2.1:1"), AddressChange::default());
        }
        let moved = |before: &str, is_other_path| Moved { before: before.parse().unwrap(), is_other_path };
        let change = register(&mut known, 1, "a", 2, "192.0.2.1:2");
        assert_eq!(change.moved, Some((at(1), moved("192.0.2.1:1", false))));
        let change = register(&mut known, 1, "a", 3, "192.0.2.9:2");
        assert_eq!(change.moved, Some((at(2), moved("192.0.2.1:2", true))));
        assert!(change.forgotten.is_empty());
        let forgotten: Vec<_> =
            (4..9).flat_map(|n| register(&mut known, 1, "a", n, "192.0.2.9:3").forgotten).collect();
        assert_eq!(forgotten, [1, 2, 3].map(at), "four earlier addresses are kept");
    }

    #[test]
    fn frontend_with_another_key_does_not_move_this_one() {
        let mut known = Known::default();
        register(&mut known, 1, "a", 1, "192.0.2.1:1");
        assert_eq!(register(&mut known, 1, "b", 2, "192.0.2.2:1"), AddressChange::default());
        assert!(register(&mut known, 1, "a", 3, "192.0.2.3:1").moved.is_some());
    }

    #[test]
    fn beyond_the_limit_the_key_with_most_frontends_loses_the_one_heard_first() {
        let mut known = Known::default();
        let secret = |n: usize| {
            let mut secret = [0; 32];
            secret[..8].copy_from_slice(&n.to_be_bytes());
            Secret(secret)
        };
        let inside = |n: usize| IpAddr::from((n as u32).to_be_bytes());
        let register = |known: &mut Known, n: usize, label: &str| {
            known.register(secret(n), Some(label.into()), inside(n), SocketAddr::new(inside(n), 1)).forgotten
        };
        assert!(register(&mut known, MAX_FRONTENDS, "other").is_empty());
        assert!((1..MAX_FRONTENDS).all(|n| register(&mut known, n, "a").is_empty()));
        register(&mut known, 1, "a");
        known.hear(secret(2));
        assert_eq!(register(&mut known, MAX_FRONTENDS + 1, "other"), [inside(3)]);
        assert_eq!(register(&mut known, MAX_FRONTENDS + 2, "a"), [inside(4)]);
    }
}

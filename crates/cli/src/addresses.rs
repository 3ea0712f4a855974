//! The addresses of a frontend's backends. Their names are looked up at the start, at a reload and from time
//! to time, because a backend may move; more often while a backend is down or its name is not found. All
//! addresses of a name are kept, and one is used; if the backend does not answer there, the next one is used.
//! If a name is not found, the other backends and the direct destination remain in use.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use brisk_gateway::log::{Level, Log, Value};
use brisk_gateway::settings::PeerSettings;
use tokio::task::JoinSet;

use crate::failure::Failure;

/// Time limit for the answer of a name server.
const LOOK_UP_LIMIT: Duration = Duration::from_secs(10);
/// Interval between look-ups of a name that is not found, or whose backend is down.
pub(crate) const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// Minimum interval between look-ups while clients wait for their result.
pub(crate) const MIN_RETRY_INTERVAL: Duration = Duration::from_millis(250);
/// Time that clients wait while the names of backends that are down are looked up again.
pub(crate) const MAX_CLIENT_WAIT: Duration = Duration::from_secs(3);
/// Interval between look-ups of the other names.
pub(crate) const RENEWAL: Duration = Duration::from_secs(30);

/// The addresses of a backend. Not empty.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Candidates {
    all: Vec<SocketAddr>,
    used: SocketAddr,
}

/// The addresses of each backend, by its configured name, or the reason why there is none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Addresses(BTreeMap<String, Result<Candidates, String>>);

impl Addresses {
    /// Looks up all of `names` at the same time.
    pub(crate) async fn look_up(names: impl IntoIterator<Item = String>) -> Addresses {
        let mut asked = JoinSet::new();
        for name in names {
            asked.spawn(async move { (name.clone(), candidates(&name).await) });
        }
        // The tasks are never cancelled and do not panic.
        Addresses(asked.join_all().await.into_iter().collect())
    }

    /// Looks up `peers` again. A peer that is not found keeps its known addresses. The address in use does
    /// not change if the peer still has it.
    pub(crate) async fn renewed(&self, peers: &[PeerSettings], log: &Log) -> Addresses {
        let found = Addresses::look_up(names(peers)).await;
        let kept = found.or(self);
        for (name, why) in found.missing() {
            let reason = match kept.of(name) {
                Some(address) => format!("{why}; the address {address} stays in use"),
                None => why.to_owned(),
            };
            let fields = [("backend", Value::Text(name.to_owned())), ("reason", Value::Text(reason))];
            log.line(Level::Warning, "unresolved", &fields);
        }
        kept
    }

    /// Returns these addresses, and those of `known` for names that have none here.
    fn or(&self, known: &Addresses) -> Addresses {
        let with = |(name, found): (&String, &Result<Candidates, String>)| {
            let known = known.0.get(name).and_then(|known| known.as_ref().ok());
            let found = match (found, known) {
                (Ok(found), Some(known)) => Ok(found.keeping(known.used)),
                (Err(_), Some(known)) => Ok(known.clone()),
                (found, None) => found.clone(),
            };
            (name.clone(), found)
        };
        Addresses(self.0.iter().map(with).collect())
    }

    /// Returns these addresses with those `found` for the backend `name`; `None` if nothing changes. The
    /// address in use is kept if the name still has it and the backend is not down.
    pub(crate) fn with(&self, name: &str, found: &Addresses, is_down: bool) -> Option<Addresses> {
        let mut all = self.clone();
        let place = all.0.get_mut(name)?;
        let found = found.0.get(name)?.as_ref().ok()?;
        let next = match place {
            Ok(known) if is_down => found.after(known.used),
            Ok(known) => found.keeping(known.used),
            Err(_) => found.clone(),
        };
        let is_new = place.as_ref() != Ok(&next);
        *place = Ok(next);
        is_new.then_some(all)
    }

    /// Records that the addresses found for `name` cannot be used; returns false if that is known already.
    pub(crate) fn refuse(&mut self, name: &str, why: &str) -> bool {
        let before = self.0.insert(name.to_owned(), Err(why.to_owned()));
        before != Some(Err(why.to_owned()))
    }

    /// Removes addresses for which `reaches` is false. A name that would have none left keeps all.
    pub(crate) fn only(&self, reaches: impl Fn(SocketAddr) -> bool) -> Addresses {
        let only = |(name, found): (&String, &Result<Candidates, String>)| {
            let reached = found.as_ref().ok().and_then(|found| found.only(&reaches));
            (name.clone(), reached.map_or_else(|| found.clone(), Ok))
        };
        Addresses(self.0.iter().map(only).collect())
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = SocketAddr> {
        self.0.values().flatten().flat_map(|found| found.all.iter().copied())
    }

    /// Returns the address in use of a backend.
    pub(crate) fn of(&self, name: &str) -> Option<SocketAddr> {
        self.0.get(name).and_then(|found| found.as_ref().ok()).map(|found| found.used)
    }

    /// Returns the names that were not found, with the reasons.
    pub(crate) fn missing(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().filter_map(|(name, found)| Some((name.as_str(), found.as_ref().err()?.as_str())))
    }

    /// Returns the address of the first of `peers` that has one; fails if none has.
    pub(crate) fn first(&self, peers: &[PeerSettings]) -> Result<SocketAddr, Failure> {
        let known = peers.iter().find_map(|peer| self.of(&peer.peer));
        known.ok_or_else(|| match self.missing().next() {
            Some((name, why)) => unknown(name, why),
            None => Failure::usage("there is no backend: --peer HOST:PORT"),
        })
    }
}

impl Candidates {
    /// Switches to `used` if it is one of the addresses.
    fn keeping(&self, used: SocketAddr) -> Candidates {
        let used = if self.all.contains(&used) { used } else { self.used };
        Candidates { used, all: self.all.clone() }
    }

    /// Switches to the address after `used`; after the last one it begins again with the first.
    fn after(&self, used: SocketAddr) -> Candidates {
        let place = self.all.iter().position(|address| *address == used);
        let next = place.and_then(|place| self.all.get(place + 1)).or(self.all.first());
        Candidates { used: next.copied().unwrap_or(self.used), all: self.all.clone() }
    }

    fn only(&self, reaches: impl Fn(SocketAddr) -> bool) -> Option<Candidates> {
        let all: Vec<SocketAddr> = self.all.iter().copied().filter(|address| reaches(*address)).collect();
        let first = *all.first()?;
        let used = if all.contains(&self.used) { self.used } else { first };
        Some(Candidates { all, used })
    }
}

pub(crate) fn names(peers: &[PeerSettings]) -> impl Iterator<Item = String> {
    peers.iter().map(|peer| peer.peer.clone())
}

/// True if the name of a backend is an address and needs no look-up.
pub(crate) fn is_address(peer: &str) -> bool {
    peer.parse::<SocketAddr>().is_ok()
}

/// Returns the first address of a backend.
pub(crate) async fn address_of(peer: &str) -> Result<SocketAddr, Failure> {
    candidates(peer).await.map(|found| found.used).map_err(|why| unknown(peer, &why))
}

fn unknown(peer: &str, why: &str) -> Failure {
    Failure::failed(format!("--peer {peer}: {why}; check the name"))
}

async fn candidates(peer: &str) -> Result<Candidates, String> {
    match tokio::time::timeout(LOOK_UP_LIMIT, tokio::net::lookup_host(peer)).await {
        Ok(Ok(found)) => {
            let all: Vec<SocketAddr> = found.collect();
            let used = *all.first().ok_or_else(|| "it has no address".to_owned())?;
            Ok(Candidates { all, used })
        }
        Ok(Err(error)) => Err(format!("cannot find its address: {error}")),
        Err(_) => Err("cannot find its address: no answer within 10s".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(known: &[(&str, &[&str])]) -> Addresses {
        let one = |(name, addresses): &(&str, &[&str])| {
            let all: Vec<SocketAddr> =
                addresses.iter().map(|text| text.parse().expect("an address")).collect();
            let found = all.first().copied().map(|used| Candidates { all, used });
            ((*name).to_owned(), found.ok_or_else(|| "nobody knows".to_owned()))
        };
        Addresses(known.iter().map(one).collect())
    }

    fn text(addresses: &Addresses, name: &str) -> String {
        addresses.of(name).map_or("none".into(), |address| address.to_string())
    }

    #[test]
    fn lost_names_keep_their_address_and_late_names_get_one() {
        let before = addresses(&[("a:1", &["192.0.2.1:1"]), ("gone:1", &["192.0.2.9:1"])]);
        let mut now = addresses(&[("a:1", &[]), ("b:1", &[])]).or(&before);
        assert_eq!((now.of("a:1"), now.of("b:1")), (before.of("a:1"), None));
        assert_eq!(now.of("gone:1"), None);
        let later = addresses(&[("b:1", &["192.0.2.2:1"]), ("gone:1", &["192.0.2.2:1"])]);
        assert!(now.with("a:1", &later, false).is_none() && now.with("gone:1", &later, false).is_none());
        assert!(now.refuse("b:1", "no way there") && !now.refuse("b:1", "no way there"));
        let now = now.with("b:1", &later, false).expect("it was missing");
        assert_eq!((now.of("a:1"), text(&now, "b:1")), (before.of("a:1"), "192.0.2.2:1".into()));
        assert_eq!(now.missing().count(), 0);
    }

    #[test]
    fn backend_that_is_down_is_tried_at_its_next_address() {
        let found = addresses(&[("a:1", &["192.0.2.1:1", "192.0.2.2:1", "[2001:db8::3]:1"])]);
        let mut now = found.clone();
        for used in ["192.0.2.2:1", "[2001:db8::3]:1", "192.0.2.1:1"] {
            assert!(now.with("a:1", &found, false).is_none(), "it answers there");
            now = now.with("a:1", &found, true).expect("another one");
            assert_eq!(text(&now, "a:1"), used);
        }
        let alone = addresses(&[("a:1", &["192.0.2.1:1"])]);
        assert!(alone.with("a:1", &alone, true).is_none(), "there is no other");
        let v4 = now.with("a:1", &found, true).expect("another one").only(|address| address.is_ipv4());
        assert_eq!(v4.all().count(), 2);
        let nothing = v4.only(|_| false);
        assert_eq!(nothing.of("a:1"), v4.of("a:1"), "unreachable addresses are kept if none is reachable");
    }

    #[test]
    fn backend_that_moved_is_followed_and_one_that_is_found_there_still_stays() {
        let (here, there) =
            (addresses(&[("a:1", &["192.0.2.1:1"])]), addresses(&[("a:1", &["192.0.2.2:1"])]));
        for is_down in [false, true] {
            let moved = here.with("a:1", &there, is_down).expect("it moved");
            assert_eq!(text(&moved, "a:1"), "192.0.2.2:1");
        }
        let both = addresses(&[("a:1", &["192.0.2.2:1", "192.0.2.1:1"])]);
        assert_eq!(text(&both.or(&here), "a:1"), "192.0.2.1:1");
    }
}

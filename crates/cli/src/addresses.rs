//! The addresses of a frontend's backends: looked up at the start and at a reload, and again from time to time for a name that
//! was not found. One name that nobody knows is no reason to do without the other backends, or the way without any.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use brisk_gateway::log::{Level, Log, Value};
use brisk_gateway::settings::PeerSettings;
use tokio::task::JoinSet;

use crate::failure::Failure;

/// How long a name server may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often a name that was not found is looked up.
pub(crate) const AGAIN: Duration = Duration::from_secs(5);

/// The first address of each backend by the name that it is configured with, or why there is none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Addresses(BTreeMap<String, Result<SocketAddr, String>>);

impl Addresses {
    /// Looks up all of `names` at one time.
    pub(crate) async fn look_up(names: impl IntoIterator<Item = String>) -> Addresses {
        let mut asked = JoinSet::new();
        for name in names {
            asked.spawn(async move { (name.clone(), first_address(&name).await) });
        }
        // Nobody cancels them, and none panics.
        Addresses(asked.join_all().await.into_iter().collect())
    }

    /// Those of `peers`, new ones; one that is not found keeps the address that it had here.
    pub(crate) async fn renewed(&self, peers: &[PeerSettings], log: &Log) -> Addresses {
        let found = Addresses::look_up(names(peers)).await;
        let kept = found.or(self);
        for (name, why) in found.missing() {
            let reason = match kept.of(name) {
                Some(address) => format!("{why}; it keeps {address}"),
                None => why.to_owned(),
            };
            let fields = [("backend", Value::Text(name.to_owned())), ("reason", Value::Text(reason))];
            log.line(Level::Warning, "unresolved", &fields);
        }
        kept
    }

    /// These, and where there is none the one of `known`.
    fn or(&self, known: &Addresses) -> Addresses {
        let with = |(name, found): (&String, &Result<SocketAddr, String>)| {
            let found = found.clone().or_else(|why| known.of(name).ok_or(why));
            (name.clone(), found)
        };
        Addresses(self.0.iter().map(with).collect())
    }

    /// These with what was `found` of a name that is missing here.
    pub(crate) fn with(&self, name: &str, found: SocketAddr) -> Option<Addresses> {
        let mut all = self.clone();
        let place = all.0.get_mut(name).filter(|place| place.is_err())?;
        *place = Ok(found);
        Some(all)
    }

    /// An address of `name` was found and is of no use; false if that is known already.
    pub(crate) fn refuse(&mut self, name: &str, why: &str) -> bool {
        let before = self.0.insert(name.to_owned(), Err(why.to_owned()));
        before != Some(Err(why.to_owned()))
    }

    /// Those that were found.
    pub(crate) fn found(&self) -> impl Iterator<Item = (&str, SocketAddr)> {
        self.0.iter().filter_map(|(name, found)| Some((name.as_str(), *found.as_ref().ok()?)))
    }

    /// The address of a backend.
    pub(crate) fn of(&self, name: &str) -> Option<SocketAddr> {
        self.0.get(name).and_then(|found| found.as_ref().ok()).copied()
    }

    /// Those that were not found, and why.
    pub(crate) fn missing(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().filter_map(|(name, found)| Some((name.as_str(), found.as_ref().err()?.as_str())))
    }

    /// The address of the first of `peers`; a failure if none is known of any of them.
    pub(crate) fn first(&self, peers: &[PeerSettings]) -> Result<SocketAddr, Failure> {
        let known = peers.iter().find_map(|peer| self.of(&peer.peer));
        known.ok_or_else(|| match self.missing().next() {
            Some((name, why)) => unknown(name, why),
            None => Failure::usage("there is no backend: --peer HOST:PORT"),
        })
    }
}

/// What the backends are called.
pub(crate) fn names(peers: &[PeerSettings]) -> impl Iterator<Item = String> {
    peers.iter().map(|peer| peer.peer.clone())
}

/// The first address of a backend.
pub(crate) async fn address_of(peer: &str) -> Result<SocketAddr, Failure> {
    first_address(peer).await.map_err(|why| unknown(peer, &why))
}

fn unknown(peer: &str, why: &str) -> Failure {
    Failure::failed(format!("--peer {peer}: {why}; check the name"))
}

async fn first_address(peer: &str) -> Result<SocketAddr, String> {
    match tokio::time::timeout(PATIENCE, tokio::net::lookup_host(peer)).await {
        Ok(Ok(mut found)) => found.next().ok_or_else(|| "it has no address".to_owned()),
        Ok(Err(error)) => Err(format!("cannot find its address: {error}")),
        Err(_) => Err("cannot find its address: no answer within 10s".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(known: &[(&str, Option<&str>)]) -> Addresses {
        let one = |(name, address): &(&str, Option<&str>)| {
            let found = address.map(|text| text.parse().expect("an address"));
            ((*name).to_owned(), found.ok_or_else(|| "nobody knows".to_owned()))
        };
        Addresses(known.iter().map(one).collect())
    }

    #[test]
    fn who_is_not_found_any_more_keeps_his_address_and_who_is_found_later_gets_one() {
        let before = addresses(&[("a:1", Some("192.0.2.1:1")), ("gone:1", Some("192.0.2.9:1"))]);
        let mut now = addresses(&[("a:1", None), ("b:1", None)]).or(&before);
        assert_eq!((now.of("a:1"), now.of("b:1")), (before.of("a:1"), None));
        assert_eq!(now.of("gone:1"), None);
        let later: SocketAddr = "192.0.2.2:1".parse().expect("an address");
        assert!(now.with("a:1", later).is_none() && now.with("gone:1", later).is_none());
        assert!(now.refuse("b:1", "no way there") && !now.refuse("b:1", "no way there"));
        let now = now.with("b:1", later).expect("it was missing");
        assert_eq!((now.of("a:1"), now.of("b:1")), (before.of("a:1"), Some(later)));
        assert_eq!(now.missing().count(), 0);
    }
}

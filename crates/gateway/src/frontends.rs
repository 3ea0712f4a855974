//! The frontends of a backend that have their own keys, with the counters and limits of each.
//!
//! The label of the key identifies a frontend. Labels are configured, so the number of metrics with labels is
//! limited.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::time::Instant;

use crate::access::Access;
use crate::end::End;
use crate::sums::Sums;
use crate::throttle::{BitRate, Throttle};

/// Limits on all connections of a frontend together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FrontendLimits {
    /// Maximum of simultaneous connections; further ones are refused. Default: only the limit of the backend.
    pub max_connections: Option<NonZeroU32>,
    /// Maximum rate of payload in each direction; excess data waits. Default: no limit.
    pub max_rate: Option<BitRate>,
}

/// The accounts of the frontends, by label.
#[derive(Debug, Default)]
pub(crate) struct Frontends(Mutex<Accounts>);

#[derive(Debug, Default)]
struct Accounts {
    listed: BTreeMap<Arc<str>, Arc<Account>>,
    /// Accounts of removed labels. An account exists as long as one of its connections, and serves its label
    /// again if the label comes back.
    removed: BTreeMap<Arc<str>, Weak<Account>>,
}

/// The counters of a frontend.
#[derive(Debug, Default)]
pub(crate) struct Account {
    /// Number of open connections.
    open: AtomicU64,
    watches: AtomicU64,
    limits: Mutex<FrontendLimits>,
    up: Throttle,
    down: Throttle,
    /// Total time that connections have waited because of the rate limit, microseconds.
    throttled: AtomicU64,
    ended: Mutex<Ended>,
}

/// The ended connections of a frontend.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ended {
    pub(crate) sums: Sums,
    /// Smoothed round-trip time of the connection that ended last.
    pub(crate) round_trip: Option<Duration>,
    /// Minimum round-trip time of the same connection within 300 s.
    pub(crate) min_round_trip: Option<Duration>,
    /// Connections by result, in the order of [`End::NAMES`].
    results: [u64; End::NAMES.len()],
}

/// Counts one open connection of a frontend until it is dropped.
#[derive(Debug)]
pub(crate) struct FrontendSlot(Arc<Account>);

/// Counts one watch of a frontend until it is dropped.
#[derive(Debug)]
pub(crate) struct WatchSlot(Arc<Account>);

/// The frontend has reached its limit of connections or watches.
#[derive(Debug, thiserror::Error)]
#[error("{label} has {max} {kind} open (max_connections)")]
pub(crate) struct TooMany {
    label: String,
    kind: &'static str,
    max: u64,
}

/// Minimum limit of the watches of a frontend with `max_connections`. Several hosts may use one label, and a
/// host may have several watches for a short time.
const MIN_WATCHES: u64 = 64;

impl Frontends {
    /// Replaces the frontends by those with these labels and `limits`. Labels that existed before or have
    /// open connections keep their accounts; new limits also apply to open connections.
    pub(crate) fn set(&self, labels: BTreeSet<Arc<str>>, limits: &BTreeMap<String, FrontendLimits>) {
        let mut accounts = lock(&self.0);
        let Accounts { listed, removed } = &mut *accounts;
        let mut before = std::mem::take(listed);
        let account = |label: Arc<str>| {
            let open = || removed.remove(&label)?.upgrade();
            let account = before.remove(&label).or_else(open).unwrap_or_default();
            account.limit(limits.get(&*label).copied().unwrap_or_default());
            (label, account)
        };
        *listed = labels.into_iter().map(account).collect();
        removed.extend(before.iter().map(|(label, account)| (label.clone(), Arc::downgrade(account))));
        drop(before);
        removed.retain(|_, account| account.strong_count() > 0);
    }

    /// Counts a new connection of a frontend; `None` if the frontend has been removed.
    ///
    /// # Errors
    /// If the frontend has reached its limit.
    pub(crate) fn admit(&self, label: &str) -> Result<Option<FrontendSlot>, TooMany> {
        let Some(account) = lock(&self.0).listed.get(label).cloned() else { return Ok(None) };
        let max = account.max_connections();
        match add_below(&account.open, max) {
            Ok(()) => Ok(Some(FrontendSlot(account))),
            Err(max) => Err(TooMany { label: label.to_owned(), kind: "connections", max }),
        }
    }

    /// Counts a new watch of a frontend; the limit of connections does not include watches. `None` if the
    /// frontend has been removed.
    ///
    /// # Errors
    /// If the frontend has reached its limit of watches: that of its connections, but at least 64.
    pub(crate) fn admit_watch(&self, label: &str) -> Result<Option<WatchSlot>, TooMany> {
        let Some(account) = lock(&self.0).listed.get(label).cloned() else { return Ok(None) };
        let max = account.max_connections().map(|max| max.max(MIN_WATCHES));
        match add_below(&account.watches, max) {
            Ok(()) => Ok(Some(WatchSlot(account))),
            Err(max) => Err(TooMany { label: label.to_owned(), kind: "watches", max }),
        }
    }

    /// Counts a connection that has ended.
    pub(crate) fn observe(&self, access: &Access) {
        let Some(label) = &access.frontend else { return };
        let Some(account) = lock(&self.0).listed.get(label).cloned() else { return };
        let mut ended = lock(&account.ended);
        ended.sums.add(access);
        if let Some(hop) = access.hop.as_ref().filter(|hop| hop.srtt.is_some()) {
            (ended.round_trip, ended.min_round_trip) = (hop.srtt, hop.min_rtt);
        }
        if let Some(result) = End::NAMES.iter().position(|name| *name == access.end.name()) {
            ended.results[result] += 1;
        }
    }

    /// Returns the accounts in the order of their labels.
    pub(crate) fn all(&self) -> Vec<(Arc<str>, Arc<Account>)> {
        lock(&self.0).listed.iter().map(|(label, account)| (label.clone(), account.clone())).collect()
    }
}

impl Account {
    pub(crate) fn open(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }

    pub(crate) fn limits(&self) -> FrontendLimits {
        *lock(&self.limits)
    }

    fn max_connections(&self) -> Option<u64> {
        self.limits().max_connections.map(|max| max.get().into())
    }

    fn limit(&self, limits: FrontendLimits) {
        *lock(&self.limits) = limits;
        self.up.set(limits.max_rate);
        self.down.set(limits.max_rate);
    }

    /// Returns the total time that connections have waited because of the rate limit.
    pub(crate) fn throttled(&self) -> Duration {
        Duration::from_micros(self.throttled.load(Ordering::Relaxed))
    }

    pub(crate) fn ended(&self) -> Ended {
        *lock(&self.ended)
    }
}

impl Ended {
    /// Returns the number of connections that were refused because of a limit.
    pub(crate) fn limited(&self) -> u64 {
        self.results().filter(|(name, _)| *name == "limited").map(|(_, count)| count).sum()
    }

    pub(crate) fn results(&self) -> impl Iterator<Item = (&'static str, u64)> {
        End::NAMES.into_iter().zip(self.results)
    }
}

impl FrontendSlot {
    /// Counts these bytes, which went towards the origin (`is_up`) or came from it, and waits until the rate
    /// limit allows more.
    pub(crate) async fn passed(&self, bytes: usize, is_up: bool) {
        let wait = self.charge(bytes, is_up);
        if !wait.is_zero() {
            self.0.throttled.fetch_add(u64::try_from(wait.as_micros()).unwrap_or(0), Ordering::Relaxed);
            tokio::time::sleep(wait).await;
        }
    }

    /// Counts bytes that have been copied; returns how long later bytes must wait.
    pub(crate) fn charge(&self, bytes: usize, is_up: bool) -> Duration {
        let throttle = if is_up { &self.0.up } else { &self.0.down };
        throttle.charge(bytes as u64, Instant::now())
    }
}

impl Drop for FrontendSlot {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for WatchSlot {
    fn drop(&mut self) {
        self.0.watches.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Adds one to `count`.
///
/// # Errors
/// If it has reached `max`.
fn add_below(count: &AtomicU64, max: Option<u64>) -> Result<(), u64> {
    let another = |count| Some(count + 1).filter(|another| max.is_none_or(|max| *another <= max));
    match (count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, another), max) {
        (Err(_), Some(max)) => Err(max),
        (Err(_), None) | (Ok(_), _) => Ok(()),
    }
}

/// Locks a mutex. Its users only add, so the value is valid even after a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Role;

    fn labels(labels: &[&str]) -> BTreeSet<Arc<str>> {
        labels.iter().map(|label| Arc::from(*label)).collect()
    }

    /// Returns limits that permit the frontend `label` at most `max` connections.
    fn limited(label: &str, max: u32) -> BTreeMap<String, FrontendLimits> {
        let limits = FrontendLimits { max_connections: NonZeroU32::new(max), max_rate: None };
        BTreeMap::from([(label.to_owned(), limits)])
    }

    #[test]
    fn counters_of_a_label_survive_a_reload_and_go_with_the_label() {
        let frontends = Frontends::default();
        let limits = BTreeMap::new();
        frontends.set(labels(&["rome", "oslo"]), &limits);
        let [open, gone] = ["rome", "paris"].map(|label| frontends.admit(label).unwrap());
        assert!(open.is_some() && gone.is_none());
        let begin = Access::begin(Role::Backend, "192.0.2.1:1".parse().unwrap());
        frontends.observe(&Access { frontend: Some("rome".into()), bytes_up: 7, ..begin });
        frontends.set(labels(&["rome", "paris"]), &limits);
        let all = frontends.all();
        let names: Vec<&str> = all.iter().map(|(label, _)| &**label).collect();
        assert_eq!(names, ["paris", "rome"]);
        let rome = &all[1].1;
        assert_eq!((rome.open(), rome.ended().sums.up), (1, 7));
        assert_eq!(rome.ended().results().next(), Some(("closed", 1)));
        drop(open);
        assert_eq!(rome.open(), 0);
    }

    #[test]
    fn label_that_comes_back_keeps_its_account_while_a_connection_is_open() {
        let frontends = Frontends::default();
        let limits = limited("rome", 2);
        frontends.set(labels(&["rome", "oslo"]), &limits);
        let mut open = vec![frontends.admit("rome").unwrap().unwrap()];
        for _ in 0..2 {
            frontends.set(labels(&[]), &limits);
            assert!(frontends.all().is_empty() && frontends.admit("rome").unwrap().is_none());
        }
        frontends.set(labels(&["rome", "oslo"]), &limits);
        open.push(frontends.admit("rome").unwrap().unwrap());
        assert!(frontends.admit("rome").is_err(), "both connections count");
        frontends.set(labels(&[]), &limits);
        drop(open);
        frontends.set(labels(&["paris"]), &limits);
        assert!(lock(&frontends.0).removed.is_empty());
    }

    #[test]
    fn connection_beyond_the_limit_of_its_frontend_is_refused() {
        let frontends = Frontends::default();
        let limits = limited("rome", 2);
        frontends.set(labels(&["rome", "oslo"]), &limits);
        let _others: Vec<_> = (0..5).map(|_| frontends.admit("oslo").unwrap()).collect();
        let [first, _second] = [(); 2].map(|()| frontends.admit("rome").unwrap());
        let why = frontends.admit("rome").unwrap_err().to_string();
        assert_eq!(why, "rome has 2 connections open (max_connections)");
        drop(first);
        let _third = frontends.admit("rome").unwrap();
        assert!(frontends.admit("rome").is_err());
        frontends.set(labels(&["rome"]), &BTreeMap::new());
        assert!(frontends.admit("rome").is_ok(), "the limit is gone");
    }

    #[test]
    fn watches_of_a_frontend_with_a_limit_have_one_of_their_own() {
        for (max, expected) in [(2, 64), (100, 100)] {
            let frontends = Frontends::default();
            frontends.set(labels(&["rome", "oslo"]), &limited("rome", max));
            let mut watches: Vec<_> =
                (0..expected).map(|_| frontends.admit_watch("rome").unwrap().unwrap()).collect();
            let why = frontends.admit_watch("rome").unwrap_err().to_string();
            assert_eq!(why, format!("rome has {expected} watches open (max_connections)"));
            assert!(frontends.admit("rome").is_ok(), "connections are counted apart");
            watches.pop();
            assert!(frontends.admit_watch("rome").is_ok());
            let unlimited: Vec<_> = (0..200).map(|_| frontends.admit_watch("oslo")).collect();
            assert!(unlimited.iter().all(Result::is_ok));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn connections_of_a_frontend_share_its_rate_in_each_direction() {
        let frontends = Frontends::default();
        let limits = FrontendLimits { max_connections: None, max_rate: "8mbit".parse().ok() };
        frontends.set(labels(&["rome"]), &BTreeMap::from([("rome".to_owned(), limits)]));
        let [one, other] = [(); 2].map(|()| frontends.admit("rome").unwrap().unwrap());
        let carry = async |slot: &FrontendSlot, is_up| {
            for _ in 0..50 {
                slot.passed(10_000, is_up).await;
            }
        };
        let began = Instant::now();
        tokio::join!(carry(&one, true), carry(&other, true), carry(&one, false), carry(&other, false));
        let millis = began.elapsed().as_millis();
        assert!((890..=910).contains(&millis), "1 MB each way at 1 MB/s after a burst of 0.1 s: {millis} ms");
        assert!(frontends.all()[0].1.throttled() > Duration::from_secs(3));
    }
}

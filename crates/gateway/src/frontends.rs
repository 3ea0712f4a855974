//! The frontends of a backend that have keys of their own, and what is counted of each.
//!
//! A frontend is known by the label of its key. Labels are configured, so that reports which have them are bounded.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::access::Access;
use crate::end::End;
use crate::sums::Sums;

/// The accounts of the frontends, by label.
#[derive(Debug, Default)]
pub(crate) struct Frontends(Mutex<BTreeMap<Arc<str>, Arc<Account>>>);

/// What is counted of a frontend.
#[derive(Debug, Default)]
pub(crate) struct Account {
    /// Connections that are open now.
    open: AtomicU64,
    ended: Mutex<Ended>,
}

/// The connections of a frontend that have ended.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ended {
    pub(crate) sums: Sums,
    /// Connections by how they ended, in the order of [`End::NAMES`].
    results: [u64; End::NAMES.len()],
}

/// A connection of a frontend, until it is dropped.
#[derive(Debug)]
pub(crate) struct FrontendSlot(Arc<Account>);

impl Frontends {
    /// Replaces the frontends by those with these labels. The accounts of labels that were there before go on.
    pub(crate) fn set(&self, labels: BTreeSet<Arc<str>>) {
        let mut accounts = lock(&self.0);
        let mut before = std::mem::take(&mut *accounts);
        let account = |label: Arc<str>| {
            let account = before.remove(&label).unwrap_or_default();
            (label, account)
        };
        *accounts = labels.into_iter().map(account).collect();
    }

    /// Counts a connection of a frontend that begins; `None` if the frontend is gone by now.
    pub(crate) fn admit(&self, label: &str) -> Option<FrontendSlot> {
        let account = lock(&self.0).get(label)?.clone();
        account.open.fetch_add(1, Ordering::Relaxed);
        Some(FrontendSlot(account))
    }

    /// Counts a connection that has ended.
    pub(crate) fn observe(&self, access: &Access) {
        let Some(label) = &access.frontend else { return };
        let Some(account) = lock(&self.0).get(label).cloned() else { return };
        let mut ended = lock(&account.ended);
        ended.sums.add(access);
        if let Some(result) = End::NAMES.iter().position(|name| *name == access.end.name()) {
            ended.results[result] += 1;
        }
    }

    /// The accounts, in the order of their labels.
    pub(crate) fn all(&self) -> Vec<(Arc<str>, Arc<Account>)> {
        lock(&self.0).iter().map(|(label, account)| (label.clone(), account.clone())).collect()
    }
}

impl Account {
    /// Connections that are open now.
    pub(crate) fn open(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }

    /// Those that have ended.
    pub(crate) fn ended(&self) -> Ended {
        *lock(&self.ended)
    }
}

impl Ended {
    /// Connections by how they ended.
    pub(crate) fn results(&self) -> impl Iterator<Item = (&'static str, u64)> {
        End::NAMES.into_iter().zip(self.results)
    }
}

impl Drop for FrontendSlot {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Readers and writers only add: the value is whole even if one panicked.
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

    #[test]
    fn counters_of_a_label_survive_a_reload_and_go_with_the_label() {
        let frontends = Frontends::default();
        frontends.set(labels(&["rome", "oslo"]));
        let (open, gone) = (frontends.admit("rome"), frontends.admit("paris"));
        assert!(open.is_some() && gone.is_none());
        let begin = Access::begin(Role::Backend, "192.0.2.1:1".parse().unwrap());
        frontends.observe(&Access { frontend: Some("rome".into()), bytes_up: 7, ..begin });
        frontends.set(labels(&["rome", "paris"]));
        let all = frontends.all();
        let names: Vec<&str> = all.iter().map(|(label, _)| &**label).collect();
        assert_eq!(names, ["paris", "rome"]);
        let rome = &all[1].1;
        assert_eq!((rome.open(), rome.ended().sums.up), (1, 7));
        assert_eq!(rome.ended().results().next(), Some(("closed", 1)));
        drop(open);
        assert_eq!(rome.open(), 0);
    }
}

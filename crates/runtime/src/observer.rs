//! Observers: functions of the program that receive reports about connections.

use std::sync::Arc;

use brisk_tcp::event::Observation;
use brisk_tcp::time::Instant;
use brisk_tcp::{ConnId, LifecycleEvent, Stack};

pub(crate) type OnLifecycle = dyn Fn(&LifecycleEvent) + Send + Sync;
pub(crate) type OnObservation = dyn Fn(ConnId, Instant, &Observation) + Send + Sync;

#[derive(Clone, Default)]
pub(crate) struct Observers {
    pub(crate) lifecycle: Option<Arc<OnLifecycle>>,
    pub(crate) observations: Option<Arc<OnObservation>>,
}

/// The observers of one driver, and the reports that they have not received yet.
pub(crate) struct Observing {
    observers: Observers,
    lifecycle: Vec<LifecycleEvent>,
    observations: Vec<(ConnId, Instant, Observation)>,
    /// True while an observer is running.
    pub(crate) is_calling: bool,
}

impl Observing {
    /// Returns `None` if there is no observer.
    pub(crate) fn new(observers: Observers) -> Option<Box<Observing>> {
        let Observers { lifecycle, observations } = &observers;
        let is_needed = lifecycle.is_some() || observations.is_some();
        let observing =
            || Observing { observers, lifecycle: Vec::new(), observations: Vec::new(), is_calling: false };
        is_needed.then(|| Box::new(observing()))
    }

    /// Takes the reports of the stack, under its lock.
    pub(crate) fn take(&mut self, stack: &mut Stack) {
        self.lifecycle.extend(std::iter::from_fn(|| stack.poll_lifecycle()));
        self.observations.extend(std::iter::from_fn(|| stack.poll_observation()));
    }

    /// Passes the reports to the observers, without the lock.
    pub(crate) fn call(&mut self) {
        let Observing { observers: Observers { lifecycle, observations }, .. } = self;
        self.is_calling = true;
        if let Some(observer) = lifecycle {
            self.lifecycle.drain(..).for_each(|event| observer(&event));
        }
        if let Some(observer) = observations {
            self.observations.drain(..).for_each(|(conn, at, observation)| observer(conn, at, &observation));
        }
        self.is_calling = false;
    }
}

//! A host of the simulation: one stack and the applications that use it.

use brisk_tcp::error::ConfigError;
use brisk_tcp::{Event, Stack, StackConfig};
use brisk_wire::Instant;

use crate::application::Application;
use crate::application::view::{HostView, Owners};
use crate::side::Side;

/// The identity of a host of a [`crate::World`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HostId(pub(crate) usize);

/// The identity of an application of a [`crate::World`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AppId {
    pub(crate) host: usize,
    pub(crate) index: usize,
}

#[derive(Debug)]
struct Running {
    /// When the application starts; `None` after it has started.
    starts: Option<Instant>,
    app: Box<dyn Application>,
}

#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) side: Side,
    pub(crate) stack: Box<Stack>,
    apps: Vec<Running>,
    owners: Owners,
    /// The notes of applications, until the trace takes them; `None` without a trace.
    pub(crate) notes: Option<Vec<(usize, String)>>,
    /// The host does nothing before this time; the packets that arrive wait.
    pub(crate) paused_until: Instant,
    pub(crate) waiting: Vec<Vec<u8>>,
}

impl Host {
    pub(crate) fn new(name: &str, side: Side, stack: Box<Stack>) -> Host {
        Host {
            name: name.to_owned(),
            side,
            stack,
            apps: Vec::new(),
            owners: Owners::default(),
            notes: None,
            paused_until: Instant::ZERO,
            waiting: Vec::new(),
        }
    }

    /// Reinitialises this host as [`Host::new`] would create it, but in the same memory.
    ///
    /// # Errors
    /// Those of [`Stack::renew`].
    #[inline]
    pub(crate) fn renew(
        &mut self,
        name: &str,
        side: Side,
        config: StackConfig,
        seed: u64,
    ) -> Result<(), ConfigError> {
        let Host { name: own_name, side: own_side, stack, apps, owners, notes, paused_until, waiting } = self;
        stack.renew(config, seed)?;
        own_name.clear();
        own_name.push_str(name);
        *own_side = side;
        apps.clear();
        owners.clear();
        *notes = None;
        *paused_until = Instant::ZERO;
        waiting.clear();
        Ok(())
    }

    pub(crate) fn add_app(&mut self, starts: Instant, app: Box<dyn Application>) -> usize {
        self.apps.push(Running { starts: Some(starts), app });
        self.apps.len() - 1
    }

    pub(crate) fn app(&self, index: usize) -> Option<&dyn Application> {
        self.apps.get(index).map(|running| &*running.app)
    }

    pub(crate) fn apps_done(&self) -> bool {
        self.apps.iter().all(|running| running.starts.is_none() && running.app.is_done())
    }

    /// Returns the time of the next timer, start or wake-up on this host.
    pub(crate) fn next_wake(&self) -> Option<Instant> {
        if !self.waiting.is_empty() {
            return Some(self.paused_until);
        }
        let apps = self.apps.iter().map(|running| running.starts.or_else(|| running.app.next_wake()));
        let next = apps.fold(self.stack.next_timeout(), Instant::earlier);
        next.map(|due| due.max(self.paused_until))
    }

    /// Serves due timers of the stack, starts and wake-ups of applications.
    pub(crate) fn wake(&mut self, now: Instant, scratch: &mut [u8]) {
        if self.stack.next_timeout().is_some_and(|due| due <= now) {
            self.stack.on_timeout(now);
        }
        for index in 0..self.apps.len() {
            let running = &mut self.apps[index];
            if running.starts.is_some_and(|due| due <= now) {
                running.starts = None;
                self.call(index, now, scratch, |app, host| app.start(host));
            } else if running.starts.is_none() && running.app.next_wake().is_some_and(|due| due <= now) {
                self.call(index, now, scratch, |app, host| app.on_wake(host));
            }
        }
    }

    /// Delivers `first` and the other pending events of the stack to the applications.
    pub(crate) fn deliver_events(&mut self, first: Event, now: Instant, scratch: &mut [u8]) {
        let mut next = Some(first);
        while let Some(event) = next {
            // A released connection has no application.
            if let Some(index) = self.owners.of(event) {
                self.call(index, now, scratch, |app, host| app.on_event(event, host));
            }
            next = self.stack.poll_event();
        }
    }

    fn call(
        &mut self,
        index: usize,
        now: Instant,
        scratch: &mut [u8],
        call: impl FnOnce(&mut dyn Application, &mut HostView<'_>),
    ) {
        let Host { stack, apps, owners, notes, .. } = self;
        let mut view = HostView { stack, now, app: index, owners, scratch, notes: notes.as_mut() };
        if let Some(running) = apps.get_mut(index) {
            call(&mut *running.app, &mut view);
        }
    }
}

//! Calls for packet scripts, whose driver advances the clock timer by timer and inspects the host after each
//! timer.
//!
//! Another thread makes the socket calls, because some of them block. It calls [`VirtualWorld::returned`]
//! after each of them, once it has stored the result.

use brisk_tcp::stack::Rx;

use super::{Inner, VirtualWorld};
use crate::errno::Answer;
use crate::host::{Host, START};
use crate::settings::Settings;
use brisk_wire::Instant;
use std::sync::PoisonError;
use std::time::Duration;

const RUNS_AWAY: &str = "the stack sends or sets timers without end at one instant: a bug of the stack";

impl VirtualWorld {
    /// Returns a world with the host `settings`, whose driver is the calling thread.
    ///
    /// # Errors
    /// `EINVAL` if the settings contradict each other.
    pub fn given(settings: Settings) -> Answer<VirtualWorld> {
        let mut host = Host::given(settings);
        host.refresh()?;
        Ok(VirtualWorld::of(host))
    }

    /// Returns the time since the clock started.
    pub fn elapsed(&self) -> Duration {
        self.lock().host.now.saturating_since(START)
    }

    /// Returns the time of day at which the clock started, microseconds since 1970.
    pub fn start_of_day(&self) -> u64 {
        self.lock().host.time_of_day(START)
    }

    /// Advances to the next timer of the stack or timeout of a call, if it is due before `to` after the
    /// start; with `inclusive`, also at `to`. Returns false if there is none.
    ///
    /// # Errors
    /// One line about a stack that does not become idle.
    pub fn step(&self, to: Duration, inclusive: bool) -> Result<bool, String> {
        let mut inner = self.await_callers(self.lock());
        let end = START + to;
        let due = inner.next_wake().filter(|due| *due < end || (inclusive && *due == end));
        let Some(due) = due else { return Ok(false) };
        inner.host.reach(due);
        if inner.host.runs_away() {
            inner.host.reach(due);
        }
        let failed = inner.host.runs_away();
        self.wake_sleepers(&mut inner);
        drop(self.await_callers(inner));
        if failed { Err(RUNS_AWAY.to_owned()) } else { Ok(true) }
    }

    /// Sets the clock to `to` after the start without serving events. Events that are due then stay pending.
    pub fn set_clock(&self, to: Duration) {
        let mut inner = self.lock();
        inner.host.now = inner.host.now.max(START + to);
    }

    /// Processes an arriving packet.
    ///
    /// # Errors
    /// One line about a stack that sends without end.
    pub fn arrive(&self, packet: &[u8]) -> Result<(), String> {
        let mut inner = self.lock();
        // The stack exists before the first socket, so there is no error.
        let _ = inner.host.arrive(packet, Rx::default());
        let failed = inner.host.sends_without_end();
        self.wake_sleepers(&mut inner);
        drop(self.await_callers(inner));
        if failed { Err(RUNS_AWAY.to_owned()) } else { Ok(()) }
    }

    /// Removes and returns the packets that have left, each with its time since the start.
    pub fn take_packets(&self) -> Vec<(Duration, Vec<u8>)> {
        let mut inner = self.lock();
        let since = |at: Instant| at.saturating_since(START);
        std::iter::from_fn(|| inner.host.next_packet()).map(|(at, packet)| (since(at), packet)).collect()
    }

    /// Calls `with_host` with the host.
    pub fn with_host<T>(&self, with_host: impl FnOnce(&mut Host) -> T) -> T {
        with_host(&mut self.lock().host)
    }

    /// Waits until the thread that makes calls sleeps in one, or `returned` reports that its call has
    /// returned.
    pub fn await_caller(&self, mut returned: impl FnMut() -> bool) {
        let mut inner = self.lock();
        let sleeps = |inner: &Inner| inner.sleepers.iter().any(|sleeper| !sleeper.must_try);
        while !returned() && !sleeps(&inner) {
            inner = self.changed.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Records that the thread that makes calls has returned from one.
    pub fn returned(&self) {
        let _inner = self.lock();
        self.changed.notify_all();
    }

    /// Ends all blocked and future blocking calls with `EINTR`.
    pub fn hang_up(&self) {
        let mut inner = self.lock();
        inner.ended = true;
        self.wake_sleepers(&mut inner);
    }
}

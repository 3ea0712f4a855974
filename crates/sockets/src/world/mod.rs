//! The environment of calls: a host behind a lock, and a virtual or a real clock.

use std::time::Duration;

use crate::errno::Answer;
use crate::host::Host;

pub(crate) mod real_time;
mod virtual_time;

pub use virtual_time::VirtualWorld;

/// A host with a clock, on which calls are made.
pub trait World {
    /// Makes a call that does not block.
    fn call<T>(&self, call: impl FnOnce(&mut Host) -> Answer<T>) -> Answer<T>;

    /// Makes a call that blocks until `attempt` has a result; `None` after `limit`.
    fn wait<T>(
        &self,
        limit: Option<Duration>,
        attempt: impl FnMut(&mut Host) -> Answer<Option<T>>,
    ) -> Answer<Option<T>>;
}

//! Where calls happen: a host behind a lock, and a clock that is virtual or real.

use std::time::Duration;

use crate::errno::Answer;
use crate::host::Host;

pub(crate) mod real_time;
mod virtual_time;

pub use virtual_time::VirtualWorld;

/// A host that calls reach, each at its time.
pub trait World {
    /// Makes a call that does not wait.
    fn call<T>(&self, call: impl FnOnce(&mut Host) -> Answer<T>) -> Answer<T>;

    /// Makes a call that waits until `attempt` has an answer, or for `limit`: `None` then.
    fn wait<T>(
        &self,
        limit: Option<Duration>,
        attempt: impl FnMut(&mut Host) -> Answer<Option<T>>,
    ) -> Answer<Option<T>>;
}

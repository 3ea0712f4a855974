//! A system timer for tasks that wait for a device.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use crate::reactor::Reactor;

/// A timer on the system's monotonic clock. Once set, it needs no system call until it fires, even if the
/// thread waits for other events again and again.
pub struct SystemTimer {
    fd: OwnedFd,
    reactor: Reactor,
}

impl SystemTimer {
    /// Returns a timer that is not set.
    ///
    /// # Errors
    /// No descriptor is free.
    pub fn new() -> io::Result<SystemTimer> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(SystemTimer { fd, reactor: Reactor::default() })
    }

    /// Sets the timer to fire once, `after` from now; less than 1 ns counts as 1 ns. Replaces an earlier
    /// setting.
    pub fn set(&mut self, after: Duration) {
        // Zero would disarm it.
        let after = after.max(Duration::from_nanos(1));
        let seconds = i64::try_from(after.as_secs()).unwrap_or(i64::MAX);
        let it_value = Timespec { tv_sec: seconds, tv_nsec: after.subsec_nanos().into() };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = Itimerspec { it_interval, it_value };
        // Only invalid times and descriptors are refused.
        let _ = timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &spec);
    }

    /// Ready once for each firing. Call it in a tokio runtime with I/O.
    ///
    /// # Errors
    /// The runtime has ended, or the descriptor cannot be registered.
    pub fn poll_fired(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.reactor.poll_readable(self.fd.as_fd(), cx))?;
            let read = || Ok((rustix::io::read(&self.fd, &mut [0; 8])?, true));
            match self.reactor.read_out(read) {
                Ok(_) => return Poll::Ready(Ok(())),
                // The timer was set again after it fired.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl fmt::Debug for SystemTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SystemTimer").field("fd", &self.fd).finish_non_exhaustive()
    }
}

//! Waiting for a due time with microsecond precision, for the link emulator.
//!
//! A plain `ppoll` returns 20 to 50 microseconds late, and milliseconds late on a busy machine. [`Waiter`]
//! sleeps in `ppoll` until shortly before the due time, and then polls in a busy loop. With a real-time
//! priority ([`request_fifo`]) and a timer slack of a nanosecond, its median lateness is below a microsecond.
//! The kernel stops a real-time thread for tens of milliseconds if it uses more than 95 % of a second, so the
//! time in the busy loop is limited.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

/// Result of a request for real-time scheduling.
#[derive(Debug)]
pub enum Priority {
    /// The thread runs under SCHED_FIFO.
    Fifo,
    /// The thread keeps its scheduling class: SCHED_FIFO needs CAP_SYS_NICE or an RLIMIT_RTPRIO.
    Ordinary(io::Error),
}

/// Requests SCHED_FIFO at `priority` (clamped to 1 to 99) for the calling thread. Threads that it starts do
/// not inherit it.
pub fn request_fifo(priority: u8) -> Priority {
    // SAFETY: sched_param is plain old data for which zero is a valid value (musl has more fields than
    // glibc).
    let mut parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    parameters.sched_priority = libc::c_int::from(priority.clamp(1, 99));
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: the pointer is to a live, initialised structure, and pid 0 names the calling thread only.
    if unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) } == 0 {
        Priority::Fifo
    } else {
        Priority::Ordinary(io::Error::last_os_error())
    }
}

/// Makes timers of the calling thread expire on time; by default they may expire up to 50 microseconds later
/// to save wake-ups. Needs no privilege.
pub fn set_finest_timer_slack() -> io::Result<()> {
    Ok(rustix::thread::set_current_timer_slack(Some(NonZeroU64::MIN))?)
}

/// Time before the due time at which [`Waiter`] stops sleeping by default.
pub const SPIN: Duration = Duration::from_micros(60);

/// Length of a window for the limit of the busy loop.
const WINDOW: Duration = Duration::from_millis(100);
/// Maximum time in the busy loop per window.
const SPIN_PER_WINDOW: Duration = Duration::from_millis(60);

/// Waits for descriptors and due times: `ppoll` until [`SPIN`] before the due time, then a busy wait.
#[derive(Clone, Debug)]
pub struct Waiter {
    spin: Duration,
    window_end: Option<Instant>,
    spun_in_window: Duration,
    spun: Duration,
}

impl Waiter {
    /// Returns a waiter with a busy loop of at most `spin` before a due time; zero disables it.
    pub fn new(spin: Duration) -> Waiter {
        Waiter { spin, window_end: None, spun_in_window: Duration::ZERO, spun: Duration::ZERO }
    }

    /// Waits until one of `fds` is readable or `due` is reached; without `due`, only for the descriptors.
    /// Returns which descriptors are readable; none if the due time has come or a signal has arrived.
    pub fn wait<const N: usize>(
        &mut self,
        fds: [BorrowedFd<'_>; N],
        due: Option<Instant>,
    ) -> io::Result<[bool; N]> {
        let Some(due) = due else { return poll(&fds, None) };
        let start = Instant::now();
        let spin = self.allowance(start);
        let sleep = due.saturating_duration_since(start).saturating_sub(spin);
        let mut readable = poll(&fds, Some(sleep))?;
        if readable.contains(&true) {
            return Ok(readable);
        }
        let spin_start = Instant::now();
        let mut now = spin_start;
        while now < due {
            if due - now > spin {
                // A signal ended the sleep early.
                return Ok(readable);
            }
            readable = poll(&fds, Some(Duration::ZERO))?;
            now = Instant::now();
            if readable.contains(&true) {
                break;
            }
            std::hint::spin_loop();
        }
        self.spun_in_window += now - spin_start;
        self.spun += now - spin_start;
        Ok(readable)
    }

    /// Returns the total time in the busy loop.
    pub fn spun(&self) -> Duration {
        self.spun
    }

    /// Returns the time that the busy loop may take now, so that the kernel does not stop a real-time thread.
    fn allowance(&mut self, now: Instant) -> Duration {
        if self.window_end.is_none_or(|end| now >= end) {
            self.window_end = Some(now + WINDOW);
            self.spun_in_window = Duration::ZERO;
        }
        self.spin.min(SPIN_PER_WINDOW.saturating_sub(self.spun_in_window))
    }
}

impl Default for Waiter {
    fn default() -> Self {
        Waiter::new(SPIN)
    }
}

fn poll<const N: usize>(fds: &[BorrowedFd<'_>; N], timeout: Option<Duration>) -> io::Result<[bool; N]> {
    let mut polled = std::array::from_fn::<_, N, _>(|i| PollFd::from_borrowed_fd(fds[i], PollFlags::IN));
    // A timeout that does not fit the kernel's type counts as none.
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match rustix::event::poll(&mut polled, timeout.as_ref()) {
        // Errors and hang-ups count as readable: the read returns them.
        Ok(_) => Ok(polled.map(|fd| !fd.revents().is_empty())),
        Err(rustix::io::Errno::INTR) => Ok([false; N]),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_sleep_never_ends_before_its_due_time() {
        set_finest_timer_slack().unwrap();
        let mut waiter = Waiter::default();
        for micros in [0, 10, 59, 61, 500, 2_000] {
            let due = Instant::now() + Duration::from_micros(micros);
            waiter.wait([], Some(due)).unwrap();
            assert!(Instant::now() >= due);
        }
    }

    #[test]
    fn a_readable_descriptor_ends_the_wait_and_is_named() {
        let (mut near, far) = UnixStream::pair().unwrap();
        let (quiet, _other) = UnixStream::pair().unwrap();
        let due = Instant::now() + Duration::from_millis(5);
        let fds = || [quiet.as_fd(), far.as_fd()];
        assert_eq!(Waiter::default().wait(fds(), Some(due)).unwrap(), [false, false]);
        assert!(Instant::now() >= due);
        near.write_all(b"x").unwrap();
        assert_eq!(Waiter::default().wait(fds(), None).unwrap(), [false, true]);
        let late = Instant::now() + Duration::from_secs(60);
        assert_eq!(Waiter::default().wait(fds(), Some(late)).unwrap(), [false, true]);
    }

    #[test]
    fn time_in_the_busy_loop_is_limited_per_window() {
        let mut waiter = Waiter::new(Duration::from_millis(1));
        let now = Instant::now();
        assert_eq!(waiter.allowance(now), Duration::from_millis(1));
        waiter.spun_in_window = SPIN_PER_WINDOW;
        assert_eq!(waiter.allowance(now), Duration::ZERO);
        assert_eq!(waiter.allowance(now + WINDOW), Duration::from_millis(1));
    }

    #[test]
    fn refused_priority_does_not_affect_the_thread() {
        std::thread::spawn(|| match request_fifo(10) {
            Priority::Fifo => println!("SCHED_FIFO granted"),
            Priority::Ordinary(error) => println!("SCHED_FIFO refused: {error}"),
        })
        .join()
        .unwrap();
    }
}

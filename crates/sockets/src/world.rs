//! Virtual time, for packetdrill: the lock around the host, the clock, and callers that sleep.
//!
//! The thread that loaded the library is the driver. It moves the clock (`usleep`, `netdev_receive`). Another
//! thread makes the calls that block: it sleeps until the state of the host has changed, and then tries
//! again.
//!
//! After a change, a thread may move the clock only under two conditions: every sleeper has tried again, and
//! every woken caller has left the library, asked for the time, and gone to sleep. Otherwise the clock would
//! advance before the callers have recorded when they returned. packetdrill's thread sleeps at this record,
//! because it needs a lock of the program. `gettimeofday` moves the clock on every thread, because
//! packetdrill calls it in a busy loop on both of its threads.

mod steps;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant as RealInstant};

use brisk_wire::Instant;

use crate::errno::{Answer, Errno};
use crate::flags::SoFlags;
use crate::host::Host;

/// Maximum real time for which the clock waits for a woken caller that does not ask for the time. Programs
/// other than packetdrill need not ask.
const PATIENCE: Duration = Duration::from_millis(200);
/// Interval, in real time, at which a woken caller that has asked for the time is checked: no event reports
/// that it sleeps.
const CHECK_INTERVAL: Duration = Duration::from_micros(100);
/// Number of consecutive timers without a packet after which no packet is expected.
const MAX_TIMERS: u32 = 1_000_000;
/// Maximum time by which `netdev_receive` advances the clock for a packet: longer than any timer of TCP.
const HORIZON: Duration = Duration::from_secs(24 * 3600);

/// A host whose clock its driver moves, and the callers that sleep until something changes.
#[derive(Debug)]
pub struct VirtualWorld {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Debug)]
struct Inner {
    host: Host,
    driver: ThreadId,
    sleepers: Vec<Sleeper>,
    /// Callers that were woken.
    returning: Vec<Returning>,
    /// True if the driver is gone, which ends blocked calls.
    ended: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Sleeper {
    thread: ThreadId,
    until: Option<Instant>,
    /// True if something has changed since its last attempt.
    must_try: bool,
}

/// A caller that was woken and has not made another call.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Returning {
    thread: ThreadId,
    /// File with the state of the thread, once it has asked for the time.
    stat: Option<PathBuf>,
}

impl Returning {
    /// True once the thread sleeps, after it has recorded when its call returned.
    fn is_over(&self) -> bool {
        let Some(stat) = &self.stat else { return false };
        // The state follows the thread's name, which is in brackets and may itself contain brackets.
        let state = |text: String| text.rsplit_once(") ").map(|(_, rest)| rest.starts_with('S'));
        fs::read_to_string(stat).ok().and_then(state).unwrap_or(true)
    }
}

impl Inner {
    /// Returns the time of the next timer, of the stack or of a sleeper.
    fn next_wake(&self) -> Option<Instant> {
        let limits = self.sleepers.iter().filter_map(|sleeper| sleeper.until);
        limits.chain(self.host.next_timeout()).min()
    }

    /// True if the calling thread, `me`, may advance the clock.
    fn may_advance(&mut self, me: ThreadId) -> bool {
        self.returning.retain(|caller| !caller.is_over());
        self.returning.iter().all(|caller| caller.thread == me)
            && self.sleepers.iter().all(|sleeper| !sleeper.must_try)
    }
}

type Locked<'a> = MutexGuard<'a, Inner>;

impl VirtualWorld {
    /// Returns a world whose driver is the calling thread.
    pub fn new(flags: SoFlags) -> VirtualWorld {
        VirtualWorld::of(Host::new(flags))
    }

    fn of(host: Host) -> VirtualWorld {
        let inner = Inner {
            host,
            driver: thread::current().id(),
            sleepers: Vec::new(),
            returning: Vec::new(),
            ended: false,
        };
        VirtualWorld { inner: Mutex::new(inner), changed: Condvar::new() }
    }

    fn lock_any(&self) -> Locked<'_> {
        // A call that panicked has returned an error, and the host remains usable.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> Locked<'_> {
        let mut inner = self.lock_any();
        let me = thread::current().id();
        // A thread that makes another call has returned from its last one.
        inner.returning.retain(|caller| caller.thread != me);
        inner
    }

    /// Advances the clock to the next timer because the driver itself waits and no other thread moves the
    /// clock.
    fn drive<'a>(&'a self, mut inner: Locked<'a>, until: Option<Instant>) -> Answer<Locked<'a>> {
        let next = inner.next_wake().into_iter().chain(until).min();
        // No event will ever come: return an error instead of blocking without end.
        let next = next.ok_or(Errno(libc::EDEADLK))?;
        inner.host.reach(next);
        self.wake_sleepers(&mut inner);
        Ok(self.await_callers(inner))
    }

    fn sleep<'a>(&'a self, mut inner: Locked<'a>, sleeper: Sleeper) -> Locked<'a> {
        inner.sleepers.push(sleeper);
        self.changed.notify_all();
        loop {
            let mine = inner.sleepers.iter().find(|known| known.thread == sleeper.thread);
            if mine.is_none_or(|mine| mine.must_try) {
                return inner;
            }
            inner = self.changed.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn wake_sleepers(&self, inner: &mut Inner) {
        if inner.sleepers.is_empty() {
            return;
        }
        inner.sleepers.iter_mut().for_each(|sleeper| sleeper.must_try = true);
        self.changed.notify_all();
    }

    /// Waits until all sleepers have tried and all woken callers have returned.
    fn await_callers<'a>(&'a self, mut inner: Locked<'a>) -> Locked<'a> {
        let me = thread::current().id();
        let started = RealInstant::now();
        while !inner.may_advance(me) {
            let left = PATIENCE.saturating_sub(started.elapsed());
            if left.is_zero() {
                inner.returning.clear();
                return inner;
            }
            let checks = inner.returning.iter().any(|caller| caller.stat.is_some());
            let waited =
                self.changed.wait_timeout(inner, if checks { left.min(CHECK_INTERVAL) } else { left });
            inner = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        inner
    }

    /// Advances the clock to `to`, timer by timer.
    fn pass<'a>(&'a self, inner: Locked<'a>, to: Instant) -> Locked<'a> {
        let mut inner = self.await_callers(inner);
        while let Some(next) = inner.next_wake().filter(|next| *next <= to) {
            inner.host.reach(next);
            self.wake_sleepers(&mut inner);
            inner = self.await_callers(inner);
            // A sleeper that has not tried again after its timeout must not stop the clock.
            if inner.next_wake().is_some_and(|again| again <= inner.host.now)
                && inner.host.next_timeout() != inner.next_wake()
            {
                let now = inner.host.now;
                inner.sleepers.retain(|sleeper| sleeper.until.is_none_or(|until| until > now));
            }
        }
        inner.host.reach(to);
        inner
    }

    /// usleep().
    pub fn advance(&self, span: Duration) {
        let inner = self.lock();
        let to = inner.host.now + span;
        drop(self.pass(inner, to));
    }

    /// Returns the microseconds since 1970, as gettimeofday(). Each call advances the clock by a microsecond,
    /// because packetdrill waits for the last few microseconds in a loop of these calls.
    pub fn time_of_day(&self) -> u64 {
        let inner = self.lock_any();
        let to = inner.host.now + Duration::from_micros(1);
        let mut inner = self.pass(inner, to);
        let me = thread::current().id();
        for caller in inner.returning.iter_mut().filter(|caller| caller.thread == me) {
            // Relative to /proc: PROCESS/task/THREAD.
            let stat = fs::read_link("/proc/thread-self").unwrap_or_default().join("stat");
            caller.stat = Some(Path::new("/proc").join(stat));
        }
        self.changed.notify_all();
        inner.host.time_of_day(inner.host.now)
    }

    /// Advances the clock from timer to timer until a packet leaves. Returns the packet and its time of day;
    /// `None` if no packet is expected.
    pub fn next_packet(&self) -> Option<(u64, Vec<u8>)> {
        let mut inner = self.await_callers(self.lock());
        let horizon = inner.host.now + HORIZON;
        for _ in 0..MAX_TIMERS {
            if inner.host.has_packet() {
                break;
            }
            let next = inner.next_wake().filter(|next| *next <= horizon)?;
            inner = self.pass(inner, next);
        }
        let (at, packet) = inner.host.next_packet()?;
        Some((inner.host.time_of_day(at), packet))
    }
}

/// Calls of the socket interface.
impl VirtualWorld {
    /// Makes a call that does not block.
    pub fn call<T>(&self, call: impl FnOnce(&mut Host) -> Answer<T>) -> Answer<T> {
        let mut inner = self.lock();
        let answer = call(&mut inner.host);
        inner.host.drain();
        self.wake_sleepers(&mut inner);
        answer
    }

    /// Makes a call that blocks until `attempt` has a result; `None` after `limit`.
    pub fn wait<T>(
        &self,
        limit: Option<Duration>,
        mut attempt: impl FnMut(&mut Host) -> Answer<Option<T>>,
    ) -> Answer<Option<T>> {
        let me = thread::current().id();
        let mut inner = self.lock();
        let until = limit.map(|limit| inner.host.now + limit);
        let mut slept = false;
        loop {
            let answer = attempt(&mut inner.host);
            inner.host.drain();
            inner.sleepers.retain(|sleeper| sleeper.thread != me);
            if inner.ended {
                return Err(Errno(libc::EINTR));
            }
            self.wake_sleepers(&mut inner);
            let over = until.is_some_and(|until| until <= inner.host.now);
            if over || !matches!(answer, Ok(None)) {
                if slept && me != inner.driver {
                    inner.returning.push(Returning { thread: me, stat: None });
                }
                self.changed.notify_all();
                return answer;
            }
            inner = match me == inner.driver {
                true => self.drive(inner, until)?,
                false => self.sleep(inner, Sleeper { thread: me, until, must_try: false }),
            };
            slept = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn world() -> Arc<VirtualWorld> {
        Arc::new(VirtualWorld::new(SoFlags::default()))
    }

    #[test]
    fn usleep_and_gettimeofday_advance_the_clock() {
        let world = world();
        let start = world.time_of_day();
        assert_eq!(world.time_of_day(), start + 1);
        world.advance(Duration::from_millis(250));
        assert_eq!(world.time_of_day(), start + 250_002);
    }

    #[test]
    fn blocked_caller_returns_at_the_time_of_its_timeout() {
        let world = world();
        let start = world.time_of_day();
        let other = Arc::clone(&world);
        let caller = thread::spawn(move || {
            let answer = other.wait(Some(Duration::from_millis(100)), |_| Ok(None::<()>));
            (answer, other.time_of_day())
        });
        while world.inner.lock().unwrap().sleepers.is_empty() {
            thread::yield_now();
        }
        world.advance(Duration::from_secs(3));
        let (answer, returned) = caller.join().unwrap();
        assert_eq!(answer, Ok(None));
        assert_eq!(returned - start, 100_001);
        assert_eq!(world.time_of_day() - start, 3_000_001);
    }

    /// The clock waits for a thread that is slow between asking for the time and sleeping.
    #[test]
    fn clock_waits_until_a_woken_caller_has_recorded_its_return() {
        let world = world();
        let (other, recorded) = (Arc::clone(&world), Arc::new(AtomicBool::new(false)));
        let record = Arc::clone(&recorded);
        let caller = thread::spawn(move || {
            let answer = other.wait(Some(Duration::from_millis(100)), |_| Ok(None::<()>));
            let returned = other.time_of_day();
            let busy = RealInstant::now();
            while busy.elapsed() < Duration::from_millis(20) {
                std::hint::spin_loop();
            }
            record.store(true, Ordering::SeqCst);
            (answer, returned)
        });
        while world.inner.lock().unwrap().sleepers.is_empty() {
            thread::yield_now();
        }
        world.advance(Duration::from_secs(3));
        assert!(recorded.load(Ordering::SeqCst));
        assert_eq!(caller.join().unwrap().0, Ok(None));
    }

    #[test]
    fn gettimeofday_advances_the_clock_on_any_thread() {
        let world = world();
        let start = world.time_of_day();
        let other = Arc::clone(&world);
        let spin = thread::spawn(move || Vec::from_iter((0..20).map(|_| other.time_of_day())));
        assert_eq!(spin.join().unwrap(), Vec::from_iter(start + 1..=start + 20));
    }

    #[test]
    fn driver_gets_an_error_if_no_event_can_come() {
        assert_eq!(world().wait(None, |_| Ok(None::<()>)), Err(Errno(libc::EDEADLK)));
        assert_eq!(world().next_packet(), None);
    }
}

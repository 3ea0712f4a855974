//! Real time, on a device: the lock around the host, callers that block their own threads, and the task that
//! moves packets.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use brisk_packet_io::{ChecksumState, Device, RxMeta, TxMeta};
use brisk_tcp::stack::Rx;
use brisk_wire::{ChecksumCheck, Instant};
use tokio::sync::Notify;

use crate::errno::{Answer, Errno};
use crate::host::{Host, START};
use crate::world::World;

/// Maximum number of packets that one round takes from the device.
const RECEIVE_BUDGET: usize = 64;
/// Granularity of timers, the same as in the runtime.
pub(crate) const GRANULARITY: Duration = Duration::from_millis(1);

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct RealWorld {
    inner: Mutex<Inner>,
    /// Signalled after a change: blocked callers try again.
    changed: Condvar,
    /// Signalled if a call may have left packets to send, or an earlier timer.
    acted: Notify,
    started: std::time::Instant,
}

#[derive(Debug)]
struct Inner {
    host: Host,
    /// True if the device has failed and packets no longer move.
    ended: bool,
}

/// A thread that makes calls. Its blocked calls end when `gone` is set.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) world: Arc<RealWorld>,
    pub(crate) gone: Arc<AtomicBool>,
}

impl RealWorld {
    pub(crate) fn new(host: Host) -> RealWorld {
        RealWorld {
            inner: Mutex::new(Inner { host, ended: false }),
            changed: Condvar::new(),
            acted: Notify::new(),
            started: std::time::Instant::now(),
        }
    }

    fn now(&self) -> Instant {
        START + self.started.elapsed()
    }

    /// Locks the host and sets its clock to the current time.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.host.reach(self.now());
        inner
    }

    /// Wakes all blocked callers, which try again.
    pub(crate) fn wake_callers(&self) {
        // The lock prevents a lost wake-up between a caller's attempt and its sleep.
        let _inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        self.changed.notify_all();
    }

    /// Moves packets and serves timers until the device fails; returns its error.
    pub(crate) async fn drive(&self, mut device: Box<dyn Device>) -> io::Error {
        let mut unsent: Option<Vec<u8>> = None;
        loop {
            let due = match self.round(device.as_mut(), &mut unsent) {
                Ok(due) => due,
                Err(error) => {
                    self.lock().ended = true;
                    self.wake_callers();
                    return error;
                }
            };
            self.changed.notify_all();
            self.sleep(device.as_mut(), unsent.is_some(), due).await;
        }
    }

    /// Makes one round: receives packets, serves timers, sends packets. Returns the time of the next timer.
    fn round(&self, device: &mut dyn Device, unsent: &mut Option<Vec<u8>>) -> io::Result<Option<Instant>> {
        let mut inner = self.lock();
        let host = &mut inner.host;
        device.receive(RECEIVE_BUDGET, &mut |packet, meta| {
            // There is no stack before the first socket.
            let _ = host.arrive(packet, rx(meta));
        })?;
        host.drain();
        while let Some(packet) = unsent.take().or_else(|| host.next_packet().map(|(_, packet)| packet)) {
            match device.send(&packet, TxMeta::default()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    *unsent = Some(packet);
                    break;
                }
                other => other?,
            }
        }
        match device.flush() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            other => other?,
        }
        Ok(host.next_timeout())
    }

    /// Waits for the device, a call, or the time `due`.
    async fn sleep(&self, device: &mut dyn Device, blocked: bool, due: Option<Instant>) {
        let device_ready = std::future::poll_fn(|cx| {
            // The next round returns the error of the device.
            let writable = blocked && device.poll_writable(cx).is_ready();
            if writable || device.poll_readable(cx).is_ready() { Poll::Ready(()) } else { Poll::Pending }
        });
        let timer = async {
            match due {
                Some(due) => tokio::time::sleep(due.saturating_since(self.now()).max(GRANULARITY)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = device_ready => {}
            () = self.acted.notified() => {}
            () = timer => {}
        }
    }
}

impl World for Caller {
    fn call<T>(&self, call: impl FnOnce(&mut Host) -> Answer<T>) -> Answer<T> {
        let mut inner = self.world.lock();
        if inner.ended {
            return Err(Errno(libc::ENETDOWN));
        }
        let answer = call(&mut inner.host);
        inner.host.drain();
        self.world.changed.notify_all();
        self.world.acted.notify_one();
        answer
    }

    fn wait<T>(
        &self,
        limit: Option<Duration>,
        mut attempt: impl FnMut(&mut Host) -> Answer<Option<T>>,
    ) -> Answer<Option<T>> {
        let mut inner = self.world.lock();
        let until = limit.map(|limit| inner.host.now + limit);
        loop {
            if inner.ended {
                return Err(Errno(libc::ENETDOWN));
            }
            if self.gone.load(Ordering::Relaxed) {
                return Err(Errno(libc::EINTR));
            }
            let answer = attempt(&mut inner.host);
            inner.host.drain();
            // The attempt may have changed the connection: a read opens the window, a write fills the buffer.
            self.world.acted.notify_one();
            let left = until.map(|until| until.saturating_since(inner.host.now));
            if left.is_some_and(|left| left.is_zero()) || !matches!(answer, Ok(None)) {
                self.world.changed.notify_all();
                return answer;
            }
            inner = match left {
                None => self.world.changed.wait(inner).unwrap_or_else(PoisonError::into_inner),
                Some(left) => {
                    let waited = self.world.changed.wait_timeout(inner, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
            inner.host.reach(self.world.now());
        }
    }
}

fn rx(meta: RxMeta) -> Rx {
    let checksum = match meta.checksum {
        ChecksumState::Verify => ChecksumCheck::Verify,
        ChecksumState::Trusted => ChecksumCheck::Trust,
    };
    Rx { checksum, segment_size: meta.segment_size, ..Rx::default() }
}

//! What carries the hop to a backend: our TCP, or the kernel's where the path carries no other; and the memory of which.
//!
//! Ours is tried first and has a start of [`HEAD_START`] at least. Where it has not come through the handshake by then, the
//! kernel's TCP is opened beside it and says **the same** first message. Of a sealed hop the backend acts once upon that,
//! whichever way it comes ([`crate::hop::replay`]), so that the first answer can be taken and the other way be dropped.
//! Where the kernel's won, connections begin with it, and ours is tried again after [`AGAIN`], then after twice as long, up
//! to [`AGAIN_MOST`].

use std::future::Future;
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::hop::dial::Refused;

/// How long our TCP is alone at least: three round trips where that is more.
pub(crate) const HEAD_START: Duration = Duration::from_millis(400);
/// How long the kernel's TCP goes on before ours is tried again.
const AGAIN: Duration = Duration::from_secs(1);
/// The longest pause between two trials.
const AGAIN_MOST: Duration = Duration::from_secs(60);

/// Trials in a row have failed for so long when the pause has grown to this: about 15 s.
const CERTAIN: Duration = Duration::from_secs(8);

/// Whether a path carries our TCP.
#[derive(Debug, Default)]
pub(crate) struct Memory(Mutex<Option<Lost>>);

/// It does not, as far as we know.
#[derive(Clone, Copy, Debug)]
struct Lost {
    again_at: Instant,
    pause: Duration,
}

impl Memory {
    /// True while connections begin with the kernel's TCP.
    pub(crate) fn over_kernel(&self) -> bool {
        self.get().is_some()
    }

    /// True if it is time to try ours again.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.get().is_some_and(|lost| lost.again_at <= now)
    }

    /// Ours did not come through. Answers whether that is certain enough to give up connections that began over it: a path,
    /// or a machine, that was busy for a moment must not cost them.
    pub(crate) fn lost(&self, now: Instant) -> bool {
        let trial = self.is_due(now);
        let pause = self.get().map_or(AGAIN, |lost| match lost.again_at <= now {
            true => (2 * lost.pause).min(AGAIN_MOST),
            // Others have seen the same at the same time.
            false => lost.pause,
        });
        self.set(Some(Lost { again_at: now + pause, pause }));
        trial && pause >= CERTAIN
    }

    /// Ours comes through.
    pub(crate) fn works(&self) {
        self.set(None);
    }

    fn get(&self) -> Option<Lost> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, lost: Option<Lost>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = lost;
    }
}

/// Tells the connections over a backend what they cannot see: that nobody will ever answer them.
#[derive(Debug, Default)]
pub(crate) struct Fates {
    process: watch::Sender<()>,
    path: watch::Sender<()>,
}

/// What a connection will be told.
#[derive(Debug)]
pub(crate) struct Fate {
    process: watch::Receiver<()>,
    path: watch::Receiver<()>,
}

impl Fates {
    /// For a connection that begins.
    pub(crate) fn begin(&self) -> Fate {
        Fate { process: self.process.subscribe(), path: self.path.subscribe() }
    }

    /// Nobody listens on the backend's port any more, and its host lives.
    pub(crate) fn process_gone(&self) {
        self.process.send_replace(());
    }

    /// The path carries the kernel's TCP and not ours, and that for a while.
    pub(crate) fn path_lost(&self) {
        self.path.send_replace(());
    }
}

impl Fate {
    /// Resolves when a connection has no future, with the reason.
    pub(crate) async fn sealed(mut self, over_kernel: bool) -> &'static str {
        tokio::select! {
            told = self.process.changed() => if told.is_ok() { return "the backend's process has gone" },
            told = self.path.changed(), if !over_kernel => {
                if told.is_ok() {
                    return "the path does not carry our TCP any more";
                }
            }
        }
        // Nobody knows this backend any more: the connection sees for itself what becomes of it.
        std::future::pending().await
    }
}

/// The answer of whichever comes first. `kernel` begins if `ours` has not said that it is `connected` after `head_start`; if
/// one fails the other is waited for. If both do, what is answered is the one that may have delivered something.
pub(crate) async fn first_of<T>(
    ours: impl Future<Output = Result<T, Refused>>,
    mut connected: watch::Receiver<bool>,
    head_start: Duration,
    kernel: impl Future<Output = Result<T, Refused>>,
) -> Result<T, Refused> {
    let (mut ours, mut kernel) = (pin!(ours), pin!(kernel));
    let silent = async {
        let connected = connected.wait_for(|connected| *connected);
        if matches!(tokio::time::timeout(head_start, connected).await, Ok(Ok(_))) {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        answered = &mut ours => return answered,
        () = silent => {}
    }
    let (first, other) = tokio::select! {
        answered = &mut ours => match answered {
            Ok(answered) => return Ok(answered),
            Err(refused) => (refused, kernel.await),
        },
        answered = &mut kernel => match answered {
            Ok(answered) => return Ok(answered),
            Err(refused) => (refused, ours.await),
        },
    };
    other.map_err(|second| if first.delivered_nothing() { second } else { first })
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::io;

    use super::*;

    fn failed(kind: io::ErrorKind) -> Result<&'static str, Refused> {
        Err(Refused::Line(kind.into()))
    }

    async fn after(ms: u64, answer: Result<&'static str, Refused>) -> Result<&'static str, Refused> {
        tokio::time::sleep(Duration::from_millis(ms)).await;
        answer
    }

    async fn race(
        ours: impl Future<Output = Result<&'static str, Refused>>,
        connected: bool,
        kernel: impl Future<Output = Result<&'static str, Refused>>,
    ) -> Result<&'static str, Refused> {
        let (_told, connected) = watch::channel(connected);
        first_of(ours, connected, HEAD_START, kernel).await
    }

    #[tokio::test(start_paused = true)]
    async fn the_kernels_tcp_begins_only_after_the_head_start_and_only_without_a_handshake() {
        let begin = tokio::time::Instant::now();
        assert_eq!(race(pending(), false, ready(Ok("kernel"))).await.unwrap(), "kernel");
        assert_eq!(begin.elapsed(), HEAD_START);
        assert_eq!(race(after(300, Ok("ours")), false, ready(Ok("kernel"))).await.unwrap(), "ours");
        // The origin takes long, the path is fine.
        assert_eq!(race(after(5000, Ok("ours")), true, ready(Ok("kernel"))).await.unwrap(), "ours");
        assert_eq!(race(after(500, Ok("ours")), false, after(200, Ok("kernel"))).await.unwrap(), "ours");
    }

    #[tokio::test(start_paused = true)]
    async fn who_fails_leaves_it_to_the_other() {
        let reset = || failed(io::ErrorKind::ConnectionReset);
        assert_eq!(race(after(500, reset()), false, after(900, Ok("kernel"))).await.unwrap(), "kernel");
        assert_eq!(race(after(900, Ok("ours")), false, reset_now()).await.unwrap(), "ours");
        // Nobody may send it elsewhere if one of the two may have delivered it.
        let refused = || failed(io::ErrorKind::ConnectionRefused);
        for (ours, kernel, nothing) in
            [(reset(), refused(), false), (refused(), reset(), false), (refused(), refused(), true)]
        {
            let failed = race(after(500, ours), false, ready(kernel)).await.unwrap_err();
            assert_eq!(failed.delivered_nothing(), nothing, "{failed}");
        }
    }

    async fn reset_now() -> Result<&'static str, Refused> {
        failed(io::ErrorKind::ConnectionReset)
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_told_what_comes_after_its_beginning_and_concerns_it() {
        let told = async |fate: Fate, over_kernel| {
            tokio::time::timeout(Duration::from_secs(1), fate.sealed(over_kernel)).await.ok()
        };
        let fates = Fates::default();
        fates.process_gone();
        let (ours, kernel) = (fates.begin(), fates.begin());
        fates.path_lost();
        assert!(told(ours, false).await.is_some_and(|why| why.contains("path")));
        assert_eq!(told(kernel, true).await, None);
        let kernel = fates.begin();
        fates.process_gone();
        assert!(told(kernel, true).await.is_some_and(|why| why.contains("process")));
        let (left, fates) = (fates.begin(), drop(fates));
        assert_eq!((told(left, false).await, fates), (None, ()));
    }

    #[test]
    fn the_pause_doubles_with_each_trial_that_fails_up_to_a_minute() {
        let (memory, mut now) = (Memory::default(), Instant::now());
        assert!(!memory.over_kernel() && !memory.is_due(now));
        for pause in [1, 2, 4, 8, 16, 32, 60, 60] {
            assert_eq!(memory.lost(now), pause >= CERTAIN.as_secs());
            // Somebody else who sees the same does not count as another trial.
            assert!(!memory.lost(now));
            let pause = Duration::from_secs(pause);
            assert!(memory.over_kernel() && !memory.is_due(now + pause / 2));
            now += pause;
            assert!(memory.is_due(now), "{pause:?}");
        }
        memory.works();
        assert!(!memory.over_kernel() && !memory.is_due(now));
    }
}

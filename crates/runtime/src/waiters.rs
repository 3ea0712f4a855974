//! Waiting tasks, each in a slot of its own.
//!
//! A task that polls again keeps its slot, even with another waker. Wakers do not identify slots, because
//! [`Waker::will_wake`] may return false for two wakers of the same task. One task would then take a slot at
//! each poll.

use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use smallvec::SmallVec;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Waiter(u64);

impl Waiter {
    /// Slot of `poll_*` functions. If several tasks poll, only the last one to poll is woken, as in tokio.
    pub(crate) const POLL: Waiter = Waiter(0);
    /// Slot of a task that polls for the end of the handshake. It may poll for a write at the same time.
    pub(crate) const HANDSHAKE: Waiter = Waiter(1);

    fn new() -> Waiter {
        static NEXT: AtomicU64 = AtomicU64::new(2);
        Waiter(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Tasks that wait for the same thing. Each waiting future has one slot, and all `poll_*` functions share
/// one.
#[derive(Default)]
pub(crate) struct Wakers(SmallVec<[(Waiter, Waker); 1]>);

impl Wakers {
    /// Adds a waiter; returns its earlier waker if that may wake another task.
    #[must_use = "a waker is dropped without the lock"]
    pub(crate) fn add(&mut self, waiter: Waiter, cx: &Context<'_>) -> Option<Waker> {
        match self.0.iter_mut().find(|(known, _)| *known == waiter) {
            Some((_, waker)) if waker.will_wake(cx.waker()) => None,
            Some((_, waker)) => Some(std::mem::replace(waker, cx.waker().clone())),
            None => {
                self.0.push((waiter, cx.waker().clone()));
                None
            }
        }
    }

    #[must_use = "a waker is dropped without the lock"]
    pub(crate) fn remove(&mut self, waiter: Waiter) -> Option<Waker> {
        let at = self.0.iter().position(|(known, _)| *known == waiter)?;
        Some(self.0.remove(at).1)
    }

    pub(crate) fn take_into(&mut self, woken: &mut Vec<Waker>) {
        woken.extend(self.0.drain(..).map(|(_, waker)| waker));
    }
}

/// Waits until `poll` is ready. `poll` must add the given waiter whenever it returns `Pending`. `leave`
/// removes the waiter at the end, also if the future is dropped.
pub(crate) async fn wait<T>(
    mut poll: impl FnMut(&mut Context<'_>, Waiter) -> Poll<T>,
    leave: impl FnMut(Waiter),
) -> T {
    let mut place = Place { waiter: Waiter::new(), taken: false, leave };
    poll_fn(|cx| {
        let polled = poll(cx, place.waiter);
        place.taken |= polled.is_pending();
        polled
    })
    .await
}

struct Place<L: FnMut(Waiter)> {
    waiter: Waiter,
    taken: bool,
    leave: L,
}

impl<L: FnMut(Waiter)> Drop for Place<L> {
    fn drop(&mut self) {
        if self.taken {
            (self.leave)(self.waiter);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::{Arc, Mutex};

    use super::*;

    struct Task;

    impl std::task::Wake for Task {
        fn wake(self: Arc<Self>) {}
    }

    fn woken(wakers: &mut Wakers) -> usize {
        let mut woken = Vec::new();
        wakers.take_into(&mut woken);
        woken.len()
    }

    #[test]
    fn future_has_one_slot_for_all_wakers_and_frees_it() {
        let wakers = Mutex::new(Wakers::default());
        let poll = |cx: &mut Context<'_>, waiter| {
            drop(wakers.lock().unwrap().add(waiter, cx));
            Poll::<()>::Pending
        };
        let leave = |waiter| drop(wakers.lock().unwrap().remove(waiter));
        {
            let (mut one, mut other) = (pin!(wait(poll, leave)), pin!(wait(poll, leave)));
            for _ in 0..100 {
                let waker = Waker::from(Arc::new(Task));
                assert!(one.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
                assert!(other.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            }
            assert_eq!(woken(&mut wakers.lock().unwrap()), 2);
            assert!(one.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        assert_eq!(woken(&mut wakers.lock().unwrap()), 0, "nothing is left of futures that were dropped");
    }

    #[test]
    fn last_of_several_polling_tasks_is_woken() {
        let mut wakers = Wakers::default();
        for _ in 0..3 {
            let waker = Waker::from(Arc::new(Task));
            drop(wakers.add(Waiter::POLL, &Context::from_waker(&waker)));
        }
        assert_eq!(woken(&mut wakers), 1);
    }
}

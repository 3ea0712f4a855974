//! Detects replayed first messages.
//!
//! The first message is encrypted with a key that does not change. So an attacker who has recorded it, or a
//! network that repeats its SYN, can present it again. The backend remembers the messages that it has acted
//! on for as long as their stamp makes them acceptable, and does not act on one again. The stamp names the
//! run of the backend that the message is for, so neither another backend nor this one after a restart
//! accepts it.
//!
//! If the backend cannot tell whether a message is new (the frontend does not know this run yet, the message
//! was long on its way, the table is full), it does not refuse the message. It asks the frontend to confirm,
//! which costs a round trip and needs the secret of the message. A repetition is never accepted as new.

use super::stamp::Stamp;
use std::collections::{HashSet, VecDeque};

/// Identifies a first message: the head of its public key, which is random, of its nonce if the key serves
/// for a while.
pub type MessageId = [u8; 16];

/// Freshness of a first message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Freshness {
    /// Made for this run of the backend, and not seen before.
    Fresh,
    /// Cannot be known: the frontend is to confirm.
    Unknown,
    /// Was here before.
    Repeated,
}

/// The messages of the recent past. Memory: about 64 bytes for each, at most [`ReplayWindow::MAX`].
#[derive(Debug)]
pub struct ReplayWindow {
    /// Names this run of the backend.
    epoch: u64,
    /// How far a message's time may be from ours, ms.
    tolerance: u64,
    /// First messages up to this time are forgotten.
    forgotten: Option<u64>,
    seen: HashSet<MessageId>,
    /// When each may be forgotten, in the order of arrival.
    order: VecDeque<(u64, MessageId)>,
}

impl ReplayWindow {
    /// Messages that are remembered at most; while there are as many, further ones have to be confirmed.
    pub const MAX: usize = 1 << 18;

    /// A window for the run called `epoch` (not 0), for messages whose time is up to `tolerance` ms off.
    pub fn new(epoch: u64, tolerance: u64) -> ReplayWindow {
        ReplayWindow { epoch, tolerance, forgotten: None, seen: HashSet::new(), order: VecDeque::new() }
    }

    /// Judges a message that carries `stamp`, `now` ms after the beginning of the run, and remembers it.
    pub fn judge(&mut self, id: MessageId, stamp: Stamp, now: u64) -> Freshness {
        self.forget(now);
        if self.seen.contains(&id) {
            return Freshness::Repeated;
        }
        let known = stamp.epoch == self.epoch
            && stamp.at.abs_diff(now) <= self.tolerance
            && self.forgotten.is_none_or(|until| stamp.at > until);
        if !known || self.seen.len() >= Self::MAX {
            return Freshness::Unknown;
        }
        self.seen.insert(id);
        self.order.push_back((now.saturating_add(self.tolerance.saturating_mul(2)), id));
        Freshness::Fresh
    }

    /// Returns the run and its time, for a frontend, at `now`.
    pub fn stamp(&self, now: u64) -> Stamp {
        Stamp { epoch: self.epoch, at: now, takes_lasting: false }
    }

    /// Messages that are remembered.
    pub fn len(&self) -> usize {
        self.seen.len()
    }

    /// True if none is.
    pub fn is_empty(&self) -> bool {
        self.seen.is_empty()
    }

    /// Forgets what its own stamp rules out from now on.
    fn forget(&mut self, now: u64) {
        while let Some((until, id)) = self.order.front().copied()
            && until < now
        {
            self.order.pop_front();
            self.seen.remove(&id);
            self.forgotten = self.forgotten.max(Some(until.saturating_sub(self.tolerance)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EPOCH: u64 = 77;
    const TOLERANCE: u64 = 10_000;

    fn id(n: u64) -> MessageId {
        u128::from(n).to_be_bytes()
    }

    fn made(at: u64) -> Stamp {
        Stamp { epoch: EPOCH, at, ..Stamp::default() }
    }

    fn window() -> ReplayWindow {
        ReplayWindow::new(EPOCH, TOLERANCE)
    }

    #[test]
    fn a_message_is_fresh_once() {
        let mut window = window();
        assert_eq!(window.judge(id(1), made(0), 50), Freshness::Fresh);
        assert_eq!(window.judge(id(1), made(0), 51), Freshness::Repeated);
        assert_eq!(window.judge(id(2), made(0), 51), Freshness::Fresh);
    }

    #[test]
    fn at_no_later_time_is_it_fresh_again() {
        let begin = 100_000;
        for at in [begin - TOLERANCE, begin - 1, begin, begin + 1, begin + TOLERANCE] {
            let mut window = window();
            assert_eq!(window.judge(id(1), made(at), begin), Freshness::Fresh);
            for later in (begin..begin + 6 * TOLERANCE).step_by(500) {
                // Others arrive, so that the window forgets; those are fresh.
                assert_eq!(window.judge(id(later), made(later - 100), later), Freshness::Fresh);
                assert_ne!(window.judge(id(1), made(at), later), Freshness::Fresh, "{at} {later}");
            }
            assert!(window.len() < 50, "the first ones are forgotten");
        }
    }

    #[test]
    fn another_run_or_another_backend_asks_for_confirmation() {
        let mut window = window();
        for epoch in [0, EPOCH + 1] {
            assert_eq!(
                window.judge(id(1), Stamp { epoch, at: 50, ..Stamp::default() }, 50),
                Freshness::Unknown
            );
        }
        assert!(window.is_empty(), "what is not acted upon is not kept");
    }

    #[test]
    fn a_time_that_is_off_costs_a_confirmation_and_no_more() {
        let (mut window, now) = (window(), 1_000_000);
        for at in [now - TOLERANCE - 1, now + TOLERANCE + 1, 0, u64::MAX >> 24] {
            assert_eq!(window.judge(id(at), made(at), now), Freshness::Unknown);
        }
        assert!(window.is_empty());
    }

    #[test]
    fn memory_is_bounded_and_a_full_window_refuses_nobody() {
        let mut window = window();
        for n in 0..ReplayWindow::MAX as u64 + 10 {
            let room = n < ReplayWindow::MAX as u64;
            let expected = if room { Freshness::Fresh } else { Freshness::Unknown };
            assert_eq!(window.judge(id(n), made(0), 0), expected);
        }
        assert_eq!(window.len(), ReplayWindow::MAX);
        let later = 2 * TOLERANCE + 1;
        assert_eq!(window.judge(id(u64::MAX), made(later), later), Freshness::Fresh);
        assert_eq!(window.len(), 1);
    }
}

//! Detects replayed first messages.
//!
//! The first message is encrypted with a key that does not change. So an attacker who has recorded it, or a
//! network that duplicates the SYN, can deliver it again. The backend never acts twice on a message: it
//! remembers each message that it has acted on as long as the message's stamp is acceptable. The stamp names
//! the run of the backend that the message is for. So no other backend accepts the message, and this backend
//! does not accept it after a restart.
//!
//! The backend may be unable to tell whether a message is new: the frontend does not know this run yet, the
//! message took long to arrive, or the table is full. Then it asks the frontend to confirm the message, which
//! costs a round trip and needs the secrets of the handshake. It never accepts a replayed message as new.

use super::stamp::Stamp;
use std::collections::{HashSet, VecDeque};

/// Identifies a first message: the first bytes of its public key, which is random, or of its nonce if the key
/// pair serves for several connections.
pub type MessageId = [u8; 16];

/// Freshness of a first message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Freshness {
    /// Sealed for this run of the backend, and not seen before.
    Fresh,
    /// Unknown: the frontend must confirm.
    Unknown,
    /// Seen before.
    Repeated,
}

/// The recent messages. Each takes about 64 bytes of memory; at most [`ReplayWindow::MAX`] are kept.
#[derive(Debug)]
pub struct ReplayWindow {
    /// Identifies this run of the backend.
    epoch: u64,
    /// Permitted difference between a message's time and this side's, ms.
    tolerance: u64,
    /// Messages with stamps up to this time have been forgotten, so it is unknown whether they are fresh.
    forgotten: Option<u64>,
    seen: HashSet<MessageId>,
    /// The messages in the order of arrival, with the time at which each may be forgotten.
    order: VecDeque<(u64, MessageId)>,
}

impl ReplayWindow {
    /// Limit of remembered messages; while it is reached, further ones must be confirmed.
    pub const MAX: usize = 1 << 18;

    /// Creates a window for the run `epoch` (not 0), for messages whose time differs by up to `tolerance` ms.
    pub fn new(epoch: u64, tolerance: u64) -> ReplayWindow {
        ReplayWindow { epoch, tolerance, forgotten: None, seen: HashSet::new(), order: VecDeque::new() }
    }

    /// Returns the freshness of a message with this `stamp`, `now` ms after the beginning of the run, and
    /// remembers a fresh one.
    pub fn check(&mut self, id: MessageId, stamp: Stamp, now: u64) -> Freshness {
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

    /// Returns the stamp that an answer at `now` carries.
    pub fn stamp(&self, now: u64) -> Stamp {
        Stamp { epoch: self.epoch, at: now, accepts_lasting: false }
    }

    /// Returns the number of remembered messages.
    pub fn len(&self) -> usize {
        self.seen.len()
    }

    /// True if no message is remembered.
    pub fn is_empty(&self) -> bool {
        self.seen.is_empty()
    }

    /// Forgets messages whose own stamps are too old to be accepted from now on.
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
        assert_eq!(window.check(id(1), made(0), 50), Freshness::Fresh);
        assert_eq!(window.check(id(1), made(0), 51), Freshness::Repeated);
        assert_eq!(window.check(id(2), made(0), 51), Freshness::Fresh);
    }

    #[test]
    fn at_no_later_time_is_it_fresh_again() {
        let begin = 100_000;
        for at in [begin - TOLERANCE, begin - 1, begin, begin + 1, begin + TOLERANCE] {
            let mut window = window();
            assert_eq!(window.check(id(1), made(at), begin), Freshness::Fresh);
            for later in (begin..begin + 6 * TOLERANCE).step_by(500) {
                // Others arrive, so that the window forgets messages; they are fresh.
                assert_eq!(window.check(id(later), made(later - 100), later), Freshness::Fresh);
                assert_ne!(window.check(id(1), made(at), later), Freshness::Fresh, "{at} {later}");
            }
            assert!(window.len() < 50, "the first ones are forgotten");
        }
    }

    #[test]
    fn another_run_or_another_backend_asks_for_confirmation() {
        let mut window = window();
        for epoch in [0, EPOCH + 1] {
            assert_eq!(
                window.check(id(1), Stamp { epoch, at: 50, ..Stamp::default() }, 50),
                Freshness::Unknown
            );
        }
        assert!(window.is_empty(), "messages that need a confirmation are not kept");
    }

    #[test]
    fn a_time_that_is_off_costs_a_confirmation_and_no_more() {
        let (mut window, now) = (window(), 1_000_000);
        for at in [now - TOLERANCE - 1, now + TOLERANCE + 1, 0, u64::MAX >> 24] {
            assert_eq!(window.check(id(at), made(at), now), Freshness::Unknown);
        }
        assert!(window.is_empty());
    }

    #[test]
    fn memory_is_bounded_and_a_full_window_refuses_nobody() {
        let mut window = window();
        for n in 0..ReplayWindow::MAX as u64 + 10 {
            let room = n < ReplayWindow::MAX as u64;
            let expected = if room { Freshness::Fresh } else { Freshness::Unknown };
            assert_eq!(window.check(id(n), made(0), 0), expected);
        }
        assert_eq!(window.len(), ReplayWindow::MAX);
        let later = 2 * TOLERANCE + 1;
        assert_eq!(window.check(id(u64::MAX), made(later), later), Freshness::Fresh);
        assert_eq!(window.len(), 1);
    }
}

//! Segments without data that a connection has to send, and events for the application.

use arrayvec::ArrayVec;
use brisk_wire::SeqNum;

use crate::on_demand::{Initial, OnDemand};
use crate::time::{Duration, Instant};

/// A segment that carries neither data nor a question of windows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Control {
    /// A challenge ACK (RFC 5961), or the plain answer to a segment outside the window.
    ChallengeAck,
    /// `<SEQ=seq><CTL=RST>`: refuses an acknowledgement of something never sent.
    Reset(SeqNum),
    /// `<SEQ=SND.NXT><ACK=RCV.NXT><CTL=RST,ACK>`: aborts.
    Abort,
    /// An empty segment one below SND.UNA: keepalive or zero-window probe.
    EmptyProbe,
}

/// The control segments that wait to be sent. A few at most: a further one of a kind that already
/// waits would tell the peer nothing new.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Outbox {
    waiting: OnDemand<Waiting>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Waiting(ArrayVec<Control, 4>);

impl Initial for Waiting {
    const INITIAL: Waiting = Waiting(ArrayVec::new_const());
    const SHARED: &'static Waiting = &Self::INITIAL;
}

impl Outbox {
    /// Queues `control` unless the same one waits already or the outbox is full.
    pub(crate) fn push(&mut self, control: Control) {
        let Waiting(waiting) = &mut *self.waiting;
        if !waiting.contains(&control) && !waiting.is_full() {
            waiting.push(control);
        }
    }

    /// Returns the oldest.
    pub(crate) fn first(&self) -> Option<Control> {
        self.waiting.0.first().copied()
    }

    /// Takes the oldest.
    pub(crate) fn pop(&mut self) -> Option<Control> {
        self.waiting.get_mut()?.0.pop_at(0)
    }

    /// True if nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.0.is_empty()
    }

    pub(crate) fn release_memory(&mut self) {
        self.waiting.release();
    }

    /// Throws away what waits.
    pub(crate) fn clear(&mut self) {
        self.waiting = OnDemand::new();
    }
}

/// The limit of one connection on answers that a flood of forged or stray segments would provoke: challenge
/// ACKs (RFC 5961 section 7), acknowledgements of empty segments outside the window, and SYN-ACKs for
/// repeated SYNs (Linux: `tcp_invalid_ratelimit`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct AnswerInterval {
    last: Option<Instant>,
}

impl AnswerInterval {
    /// True if an answer may be sent at `now`, at least `interval` after the last; it counts as sent.
    pub(crate) fn permits(&mut self, interval: Duration, now: Instant) -> bool {
        let permitted = self.last.is_none_or(|last| now.saturating_since(last) >= interval);
        if permitted {
            self.last = Some(now);
        }
        permitted
    }
}

/// The limit of one connection on resets that answer wrong acknowledgements before the handshake is complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ResetLimit {
    second: Instant,
    sent: u32,
}

impl ResetLimit {
    /// Such resets of one connection in a second.
    const PER_SECOND: u32 = 10;

    /// True if one may be sent now; it counts as sent.
    pub(crate) fn permits(&mut self, now: Instant) -> bool {
        if now.saturating_since(self.second) >= Duration::from_secs(1) {
            *self = ResetLimit { second: now, sent: 0 };
        }
        self.sent += 1;
        self.sent <= Self::PER_SECOND
    }
}

/// A set of things the application should hear of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Events(u8);

impl Events {
    /// The handshake completed.
    pub(crate) const CONNECTED: Events = Events(1);
    /// There is something to read.
    pub(crate) const READABLE: Events = Events(2);
    /// A write that would have blocked can go on.
    pub(crate) const WRITABLE: Events = Events(4);
    /// The connection is over.
    pub(crate) const CLOSED: Events = Events(8);

    /// Adds `other`.
    pub(crate) fn insert(&mut self, other: Events) {
        self.0 |= other.0;
    }

    /// True if all of `other` are in the set.
    pub(crate) fn contains(self, other: Events) -> bool {
        self.0 & other.0 == other.0
    }
}

impl core::ops::BitOr for Events {
    type Output = Events;

    fn bitor(self, other: Events) -> Events {
        Events(self.0 | other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outbox_is_bounded_and_says_nothing_twice() {
        let mut outbox = Outbox::default();
        outbox.push(Control::ChallengeAck);
        outbox.push(Control::ChallengeAck);
        for seq in 0..10 {
            outbox.push(Control::Reset(SeqNum(seq)));
        }
        assert_eq!(outbox.pop(), Some(Control::ChallengeAck));
        assert_eq!(outbox.pop(), Some(Control::Reset(SeqNum(0))));
        outbox.pop();
        outbox.pop();
        assert_eq!(outbox.pop(), None);
    }

    #[test]
    fn a_connection_answers_once_in_an_interval() {
        let mut limit = AnswerInterval::default();
        let interval = Duration::from_millis(500);
        let permitted =
            [0, 1, 499, 500, 999, 1_000].map(|at| limit.permits(interval, Instant::from_millis(at)));
        assert_eq!(permitted, [true, false, false, true, false, true]);
        assert!(limit.permits(Duration::ZERO, Instant::from_millis(1_000)), "no limit");
    }

    #[test]
    fn a_connection_sends_ten_resets_a_second() {
        let mut limit = ResetLimit::default();
        let permitted =
            |limit: &mut ResetLimit, at| (0..50).filter(|_| limit.permits(Instant::from_millis(at))).count();
        assert_eq!(permitted(&mut limit, 500), 10);
        assert_eq!(permitted(&mut limit, 999), 0);
        assert_eq!(permitted(&mut limit, 1_500), 10);
    }
}

//! Control segments, which leave before all others, and the limits of answers to forged or stray segments.

use arrayvec::ArrayVec;
use brisk_wire::SeqNum;

use crate::connection::{Counters, Env};
use crate::on_demand::{Initial, OnDemand};
use crate::time::{Duration, Instant};

/// A segment without data that is sent outside the usual turns.
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

/// The control segments that wait to be sent, and the limits of answers. There are few, because a second
/// segment of the same kind tells the peer nothing new.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Outbox {
    waiting: OnDemand<WaitingControls>,
    answers: AnswerInterval,
    resets: ResetLimit,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct WaitingControls(ArrayVec<Control, 4>);

impl Initial for WaitingControls {
    const INITIAL: WaitingControls = WaitingControls(ArrayVec::new_const());
    const SHARED: &'static WaitingControls = &Self::INITIAL;
}

impl Outbox {
    /// Queues `control` unless the same one is queued already or the outbox is full.
    pub(crate) fn push(&mut self, control: Control) {
        let WaitingControls(waiting) = &mut *self.waiting;
        if !waiting.contains(&control) && !waiting.is_full() {
            waiting.push(control);
        }
    }

    /// Queues a challenge ACK if the limits of this connection and of the host permit.
    pub(crate) fn challenge(
        &mut self,
        interval: Duration,
        env: &mut Env<'_>,
        counters: &mut Counters,
        now: Instant,
    ) {
        if self.answers.allow(interval, now) && (env.challenge)(now) {
            counters.challenge_acks += 1;
            self.push(Control::ChallengeAck);
        }
    }

    /// True if a stray segment may be answered at `now`, at least `interval` after the last answer; counts it
    /// as answered.
    pub(crate) fn may_answer(&mut self, interval: Duration, now: Instant) -> bool {
        self.answers.allow(interval, now)
    }

    /// Permits the next answer at once.
    pub(crate) fn reset_interval(&mut self) {
        self.answers = AnswerInterval::default();
    }

    /// Answers an unacceptable acknowledgement of our SYN by a reset, at a limited rate, because such
    /// acknowledgements can be forged in floods.
    pub(crate) fn reset_limited(&mut self, seq: SeqNum, now: Instant) {
        if self.resets.allow(now) {
            self.push(Control::Reset(seq));
        }
    }

    pub(crate) fn first(&self) -> Option<Control> {
        self.waiting.0.first().copied()
    }

    pub(crate) fn pop(&mut self) -> Option<Control> {
        self.waiting.get_mut()?.0.pop_at(0)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.0.is_empty()
    }

    pub(crate) fn release_memory(&mut self) {
        self.waiting.release();
    }

    pub(crate) fn clear(&mut self) {
        self.waiting = OnDemand::new();
    }
}

/// Rate limit of one connection for answers to forged or stray segments: challenge ACKs (RFC 5961 section 7),
/// acknowledgements of empty segments outside the window, and SYN-ACKs for repeated SYNs (Linux:
/// `tcp_invalid_ratelimit`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct AnswerInterval {
    last: Option<Instant>,
}

impl AnswerInterval {
    /// True if an answer may be sent at `now`, at least `interval` after the last; counts it as sent.
    fn allow(&mut self, interval: Duration, now: Instant) -> bool {
        let permitted = self.last.is_none_or(|last| now.saturating_since(last) >= interval);
        if permitted {
            self.last = Some(now);
        }
        permitted
    }
}

/// Rate limit of one connection for resets that answer wrong acknowledgements before the handshake is
/// complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct ResetLimit {
    second: Instant,
    sent: u32,
}

impl ResetLimit {
    /// Maximum number of such resets in a second.
    const PER_SECOND: u32 = 10;

    /// True if a reset may be sent now; counts it as sent.
    fn allow(&mut self, now: Instant) -> bool {
        if now.saturating_since(self.second) >= Duration::from_secs(1) {
            *self = ResetLimit { second: now, sent: 0 };
        }
        self.sent += 1;
        self.sent <= Self::PER_SECOND
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outbox_is_bounded_and_holds_no_duplicates() {
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
            [0, 1, 499, 500, 999, 1_000].map(|at| limit.allow(interval, Instant::from_millis(at)));
        assert_eq!(permitted, [true, false, false, true, false, true]);
        assert!(limit.allow(Duration::ZERO, Instant::from_millis(1_000)), "no limit");
    }

    #[test]
    fn a_connection_sends_ten_resets_a_second() {
        let mut limit = ResetLimit::default();
        let permitted =
            |limit: &mut ResetLimit, at| (0..50).filter(|_| limit.allow(Instant::from_millis(at))).count();
        assert_eq!(permitted(&mut limit, 500), 10);
        assert_eq!(permitted(&mut limit, 999), 0);
        assert_eq!(permitted(&mut limit, 1_500), 10);
    }
}

//! Limits on answers that an attacker can provoke: challenge ACKs and resets, for the whole host.
//!
//! RFC 5961 section 7 limits challenge ACKs. A fixed limit is a side channel (CVE-2016-5696). An attacker can
//! use it up and count the challenge ACKs it gets. A missing one shows that a packet forged in another host's
//! name was challenged. So the limit of each second is drawn again, uniformly from half to one and a half
//! times the configured limit.

use crate::keys::{Chance, Purpose, Seed};
use crate::time::{Duration, Instant};

const WINDOW: Duration = Duration::from_secs(1);

/// Limit of answers per second, randomised by up to half.
#[derive(Debug)]
pub(crate) struct AnswerLimit {
    per_second: u32,
    window_start: Option<Instant>,
    left: u32,
    chance: Chance,
}

impl AnswerLimit {
    /// Returns a limit of about `per_second` answers; 0 permits none.
    pub(crate) fn new(per_second: u32, seed: &Seed, purpose: Purpose) -> Self {
        AnswerLimit { per_second, window_start: None, left: 0, chance: Chance::new(seed, purpose) }
    }

    /// True if one more answer may be sent now.
    pub(crate) fn allows(&mut self, now: Instant) -> bool {
        if self.window_start.is_none_or(|start| now.saturating_since(start) >= WINDOW) {
            self.window_start = Some(now);
            self.left = (self.per_second / 2).saturating_add(self.chance.below(self.per_second));
            self.left = self.left.max(self.per_second.min(1));
        }
        let allowed = self.left > 0;
        self.left = self.left.saturating_sub(1);
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn allowed_in_second(limit: &mut AnswerLimit, second: u64) -> usize {
        (0..5000).filter(|n| limit.allows(Instant::from_micros(second * 1_000_000 + n))).count()
    }

    #[test]
    fn the_budget_is_within_half_of_the_limit_and_never_the_same() {
        let mut limit = AnswerLimit::new(1000, &1.into(), Purpose::ChallengeLimit);
        let budgets: BTreeSet<usize> = (0..20).map(|second| allowed_in_second(&mut limit, second)).collect();
        assert!(budgets.iter().all(|budget| (500..1500).contains(budget)), "{budgets:?}");
        assert!(budgets.len() > 15, "{budgets:?}");
    }

    #[test]
    fn limits_of_none_and_one_per_second_are_exact() {
        assert_eq!(allowed_in_second(&mut AnswerLimit::new(0, &1.into(), Purpose::ChallengeLimit), 0), 0);
        assert_eq!(allowed_in_second(&mut AnswerLimit::new(1, &1.into(), Purpose::ChallengeLimit), 0), 1);
    }
}

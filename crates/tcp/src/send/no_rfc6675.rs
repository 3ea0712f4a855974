//! Stands in for loss detection by counting where the feature `historical` is off: the type has no value, so
//! the compiler removes what would use it.

use super::rack::RackVerdict;
use super::scoreboard::Scoreboard;
use crate::outcome::{AckOutcome, LossCause};
use crate::time::{Instant, Micros};

#[derive(Clone, Debug)]
pub(crate) enum Rfc6675 {}

/// As where the feature is on.
#[expect(dead_code, reason = "nothing reads it here")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Situation {
    pub(crate) in_recovery: bool,
    pub(crate) may_send_new: bool,
    pub(crate) srtt: Option<Micros>,
}

impl Rfc6675 {
    pub(crate) fn on_ack(
        &mut self,
        _: &AckOutcome,
        _: &Scoreboard,
        _: &Situation,
    ) -> (RackVerdict, LossCause) {
        match *self {}
    }

    pub(crate) fn on_timeout(&mut self, _: &Scoreboard) -> (RackVerdict, LossCause) {
        match *self {}
    }

    pub(crate) fn on_spurious_recovery(&mut self) {
        match *self {}
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        match *self {}
    }

    pub(crate) fn disarm(&mut self) {
        match *self {}
    }

    pub(crate) fn reordering_seen(&self) -> bool {
        match *self {}
    }
}

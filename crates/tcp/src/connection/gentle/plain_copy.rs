//! Copies of a SYN and of a SYN-ACK.
//!
//! **The plain copy of a SYN with data** guards against a path that may drop such SYNs.
//!
//! A path that drops SYNs with data (about 6 % did in 2011: TCP Fast Open, CoNEXT, section 4.1) delays the
//! connection until the plain SYN follows. With the timer of that paper this takes 1.5 round trips, on each
//! connection until the client has learnt it. The copy leaves before the answer can arrive, with no data, no
//! cookie and the same sequence number. If the first SYN arrived, the server sees a repeated SYN and answers
//! it again, which changes nothing at the client. If not, the copy opens the connection, half a round trip
//! late instead of one and a half. The cost is two small packets. The memory of the client records when the
//! path has passed data once ([`OpenAttempt::untried`](crate::fast_open::client::OpenAttempt)); from then on
//! there is no copy.
//!
//! The copy is not a retransmission: option and data are still offered, and no mechanism falls back. The
//! timer of the SYN restarts with the copy. The echoed timestamp, or the time of the answer, shows which of
//! the two SYNs was answered. Only an echo gives a round-trip time (Karn's algorithm).
//!
//! **The copy of any SYN and SYN-ACK** ([`HandshakeCopies`](crate::config::HandshakeCopies)) guards against
//! loss, which delays a handshake more than anything else (Gentle Aggression section 8.4.1). The copy of a
//! SYN keeps the option of Corrective and Proactive. By default it has neither data nor cookie, since it must
//! not deliver a request a second time. It carries both only if the configuration permits that and the path
//! has passed data on a SYN before. The copy of a SYN-ACK is identical to the SYN-ACK. Neither copy is a
//! retransmission: no mechanism falls back, no option is withdrawn, and the timer continues. With the
//! [planner](crate::mechanism::plan) a copy leaves only where its benefit exceeds its cost.

use crate::fast_open::FastOpenConnect;
use crate::fast_open::client::{Mode, OpenAttempt};
use crate::time::{Duration, Instant, Micros, TIMESTAMP_TICK};

/// Time until the copy leaves if the round-trip time is not known.
const WAIT_UNKNOWN: Duration = Duration::from_millis(50);

/// Approximate bytes of a SYN on the wire, which a copy takes from the allowance of redundancy.
pub(crate) const SYN_LEN: u32 = 60;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum PlainCopy {
    /// There is no copy.
    #[default]
    Off,
    /// The copy leaves this time after the SYN.
    After(Duration),
    /// The copy leaves at this time, unless the answer arrives before.
    At(Instant),
    /// The copy leaves now.
    Due,
    /// The copy left at this time.
    Left(Instant),
}

impl PlainCopy {
    /// Returns the copy, and its delay, for the SYN of this attempt.
    pub(crate) fn of(attempt: &OpenAttempt, connect: &FastOpenConnect) -> Self {
        let share = |srtt: Duration| {
            let wait = srtt.saturating_mul(u32::from(connect.plain_copy_percent.min(100))) / 100;
            // With a shorter delay the timestamps of both would be equal.
            wait.max((TIMESTAMP_TICK * 2).into())
        };
        let wait = match attempt.mode {
            _ if connect.plain_copy_percent == 0 || !attempt.untried => return PlainCopy::Off,
            Mode::Data | Mode::DataNoCookie => attempt.srtt.map_or(WAIT_UNKNOWN, share),
            // A SYN without data has a copy only if the round-trip time is known; otherwise every first
            // contact would cost a copy.
            Mode::Request | Mode::CookieOnly => match attempt.srtt {
                Some(srtt) => share(srtt),
                None => return PlainCopy::Off,
            },
        };
        PlainCopy::After(wait)
    }

    /// Returns half a round trip, or a default if it is not known.
    pub(crate) fn half_of(srtt: Option<Duration>) -> Duration {
        srtt.map_or(WAIT_UNKNOWN, |srtt| srtt / 2)
    }

    /// Starts the wait after the SYN left. Returns how much later the timer of the SYN starts.
    pub(crate) fn start(&mut self, now: Instant) -> Duration {
        let PlainCopy::After(wait) = *self else { return Duration::ZERO };
        *self = if wait.is_zero() { PlainCopy::Due } else { PlainCopy::At(now + wait) };
        wait
    }

    #[inline]
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        match self {
            PlainCopy::At(at) => Some(*at),
            PlainCopy::Off | PlainCopy::After(_) | PlainCopy::Due | PlainCopy::Left(_) => None,
        }
    }

    /// Returns the IP bytes of a waiting copy, without its data.
    pub(crate) fn waiting_len(&self) -> u32 {
        match self {
            PlainCopy::At(_) | PlainCopy::Due => SYN_LEN,
            PlainCopy::Off | PlainCopy::After(_) | PlainCopy::Left(_) => 0,
        }
    }

    /// True if a SYN-ACK answers the copy and not the SYN before it. `echoed`: time since the SYN whose
    /// timestamp the SYN-ACK echoes; `opened`: the time of the first SYN.
    pub(crate) fn is_answered(
        &self,
        echoed: Option<Micros>,
        srtt: Option<Duration>,
        opened: Instant,
        now: Instant,
    ) -> bool {
        let PlainCopy::Left(left) = *self else { return false };
        let since = now.saturating_since(left);
        match (echoed, srtt) {
            (Some(echoed), _) => echoed <= Micros::from(since) + TIMESTAMP_TICK,
            // Without timestamps: the answer belongs to the SYN to which it is nearer in time.
            (None, Some(srtt)) => since + left.saturating_since(opened) / 2 >= srtt,
            (None, None) => true,
        }
    }

    pub(crate) fn has_left(&self) -> bool {
        matches!(self, PlainCopy::Left(_))
    }

    /// Withdraws a copy that has not left.
    pub(crate) fn cancel(&mut self) {
        match self {
            PlainCopy::After(_) | PlainCopy::At(_) | PlainCopy::Due => *self = PlainCopy::Off,
            PlainCopy::Off | PlainCopy::Left(_) => {}
        }
    }
}

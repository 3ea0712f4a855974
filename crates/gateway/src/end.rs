//! The end of a connection through the gateway, for its access line and the metrics.

use std::fmt;

use crate::timeouts::Timeout;

/// How a connection through the gateway ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// Both directions ended in order.
    Closed,
    /// The client reset the connection or vanished (reported by a frontend or an edge).
    ClientFailed(String),
    /// The origin reset the connection or vanished (reported by a backend or an edge).
    OriginFailed(String),
    /// The connection between the gateways was reset or lost.
    HopFailed(String),
    /// The origin could not be reached (found by a backend or an edge).
    OriginUnreachable(String),
    /// The peer gateway could not be reached (reported by a frontend).
    HopUnreachable(String),
    /// The gateway was shut down, and the connection outlasted `drain_timeout`.
    Drained,
    /// The frontend has as many connections as the backend permits it.
    Limited(String),
    /// The client did not log in.
    Unauthorized(&'static str),
    /// The bytes before the payload took too long, or the connection was inactive for too long.
    TimedOut(Timeout),
}

impl End {
    /// The names of all ends, for metrics.
    pub(crate) const NAMES: [&'static str; 10] = [
        "closed",
        "client_failed",
        "origin_failed",
        "hop_failed",
        "origin_unreachable",
        "hop_unreachable",
        "drained",
        "timed_out",
        "limited",
        "unauthorized",
    ];

    /// Returns the name for metrics.
    pub fn name(&self) -> &'static str {
        let n = match self {
            End::Closed => 0,
            End::ClientFailed(_) => 1,
            End::OriginFailed(_) => 2,
            End::HopFailed(_) => 3,
            End::OriginUnreachable(_) => 4,
            End::HopUnreachable(_) => 5,
            End::Drained => 6,
            End::TimedOut(_) => 7,
            End::Limited(_) => 8,
            End::Unauthorized(_) => 9,
        };
        End::NAMES[n]
    }

    /// True if the gateways, the hop or the origin ended the connection early. A timeout does not count.
    pub fn is_failure(&self) -> bool {
        !matches!(self, End::Closed | End::ClientFailed(_) | End::Unauthorized(_) | End::TimedOut(_))
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Closed => f.write_str("closed"),
            End::ClientFailed(why) => write!(f, "client: {why}"),
            End::OriginFailed(why) => write!(f, "origin: {why}"),
            End::HopFailed(why) => write!(f, "hop: {why}"),
            End::OriginUnreachable(why) => write!(f, "origin unreachable: {why}"),
            End::HopUnreachable(why) => write!(f, "peer gateway unreachable: {why}"),
            End::Drained => f.write_str("drain_timeout"),
            End::Limited(why) => write!(f, "limit: {why}"),
            End::Unauthorized(why) => write!(f, "unauthorized: {why}"),
            End::TimedOut(timeout) => write!(f, "{}_timeout", timeout.name()),
        }
    }
}

//! Loss detection, and the treatment of a loss at the tail, with today's methods and those of the paper's
//! time.

#[cfg(feature = "historical")]
use super::historical::{PaperConfig, Rfc6675Config};
pub use crate::congestion::PrrBound;
use crate::time::Duration;

/// The two forms of Reactive (Gentle Aggression section 4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Reactive {
    /// No probes: a lost tail waits for the retransmission timeout.
    Off,
    /// Algorithm 1 of the paper; meant to run with [`LossDetection::Rfc6675`].
    #[cfg(feature = "historical")]
    Paper(PaperConfig),
    /// The tail loss probe of RFC 8985.
    RackTlp(RackTlpConfig),
}

impl Default for Reactive {
    fn default() -> Self {
        Reactive::RackTlp(RackTlpConfig::default())
    }
}

/// The tail loss probe of RFC 8985 section 7.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RackTlpConfig {
    /// Maximum delay of the peer's acknowledgement of a single segment. 0..=1 s, default 200 ms.
    pub max_ack_delay: Duration,
    /// Makes literals end with `..`, so that releases can add fields.
    #[doc(hidden)]
    pub non_exhaustive: (),
}

impl Default for RackTlpConfig {
    fn default() -> Self {
        RackTlpConfig { max_ack_delay: Duration::from_millis(200), non_exhaustive: () }
    }
}

/// A thin stream has fewer than four segments outstanding and nothing more to send: games, terminals,
/// the ends of responses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThinStreamConfig {
    /// Number of timeouts in a row that do not double the timeout while the stream is thin. 0..=15, default 6
    /// (Linux: `TCP_THIN_LINEAR_TIMEOUTS`).
    pub linear_timeouts: u32,
    /// When an acknowledgement restarts the timer, measure from the transmission of the oldest outstanding
    /// segment, not from now (RFC 7765). Default on.
    pub rto_restart: bool,
    /// Makes literals end with `..`, so that releases can add fields.
    #[doc(hidden)]
    pub non_exhaustive: (),
}

impl Default for ThinStreamConfig {
    fn default() -> Self {
        ThinStreamConfig { linear_timeouts: 6, rto_restart: true, non_exhaustive: () }
    }
}

/// Algorithm of loss detection on a connection with SACK.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum LossDetection {
    /// By time (RFC 8985).
    #[default]
    Rack,
    /// By counting, as in the paper's time.
    #[cfg(feature = "historical")]
    Rfc6675(Rfc6675Config),
}

//! Loss detection, and the treatment of a loss at the tail, with today's methods and those of the paper's
//! time.

#[cfg(feature = "historical")]
use super::historical::{PaperConfig, Rfc6675Config};
pub use crate::congestion::PrrBound;

/// The two forms of Reactive (Gentle Aggression section 4).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Reactive {
    /// No probes: a lost tail waits for the retransmission timeout.
    Off,
    /// Algorithm 1 of the paper; meant to run with [`LossDetection::Rfc6675`].
    #[cfg(feature = "historical")]
    Paper(PaperConfig),
    /// The tail loss probe of RFC 8985.
    #[default]
    RackTlp,
}

/// A thin stream has fewer than four segments outstanding and nothing more to send: games, terminals, the
/// ends of responses. On such a stream up to six timeouts in a row do not double the timeout (Linux:
/// `TCP_THIN_LINEAR_TIMEOUTS`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThinStreamConfig {
    /// When an acknowledgement restarts the timer, measure from the transmission of the oldest outstanding
    /// segment, not from now (RFC 7765). Default on.
    pub rto_restart: bool,
    /// Makes literals end with `..`, so that releases can add fields.
    #[doc(hidden)]
    pub non_exhaustive: (),
}

impl Default for ThinStreamConfig {
    fn default() -> Self {
        ThinStreamConfig { rto_restart: true, non_exhaustive: () }
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

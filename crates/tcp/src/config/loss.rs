//! Loss detection and the treatment of a lost tail: today's methods (RACK-TLP) and those of *Gentle
//! Aggression* ("the paper").

#[cfg(feature = "historical")]
use super::historical::{PaperConfig, Rfc6675Config};
pub use crate::congestion::PrrBound;

/// Treatment of a lost tail: no probes, or one of the two forms of Reactive (Gentle Aggression section 4).
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

/// Algorithm of loss detection on a connection with SACK.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum LossDetection {
    /// By time (RFC 8985).
    #[default]
    Rack,
    /// By counting SACKed segments (RFC 6675).
    #[cfg(feature = "historical")]
    Rfc6675(Rfc6675Config),
}

//! The TCP of 2012, the baseline of the authors of Gentle Aggression, and their form of Reactive.

use super::{LossDetection, MechanismConfig, PrrBound, Reactive, TcpConfig};

impl TcpConfig {
    /// Returns the baseline of the authors of Gentle Aggression: loss detection by RFC 6675 with FACK and
    /// early retransmit, proportional rate reduction of RFC 6937, F-RTO, no probes.
    pub fn of_2012() -> Self {
        TcpConfig {
            loss_detection: LossDetection::Rfc6675(Rfc6675Config::of_2012()),
            mechanisms: MechanismConfig { reactive: Reactive::Off, ..MechanismConfig::default() },
            ..TcpConfig::default()
        }
    }

    /// Returns [`TcpConfig::of_2012`] with Reactive as in the paper.
    pub fn of_2012_with_reactive() -> Self {
        let detection =
            Rfc6675Config { early_retransmit: EarlyRetransmit::Relaxed, ..Rfc6675Config::of_2012() };
        let reactive = Reactive::Paper(PaperConfig::default());
        TcpConfig {
            loss_detection: LossDetection::Rfc6675(detection),
            mechanisms: MechanismConfig { reactive, ..MechanismConfig::default() },
            ..TcpConfig::default()
        }
    }
}

/// Reactive as in the paper.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PaperConfig {
    /// Maximum number of probes in a row without progress. 1..=2, default 1 (the authors' deployment).
    pub max_probes: u32,
}

impl Default for PaperConfig {
    fn default() -> Self {
        PaperConfig { max_probes: 1 }
    }
}

/// Loss detection of the years around 2012.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rfc6675Config {
    /// Treat all segments below the highest SACKed segment as if SACK had reported them (forward
    /// acknowledgement). Default on.
    pub fack: bool,
    /// The substitute for three duplicates if fewer than four segments are outstanding.
    pub early_retransmit: EarlyRetransmit,
    /// The proportional rate reduction. Default `Rfc9937`; the TCP of 2012 had `Rfc6937`.
    pub prr: PrrBound,
}

impl Default for Rfc6675Config {
    fn default() -> Self {
        Rfc6675Config { fack: true, early_retransmit: EarlyRetransmit::Rfc5827, prr: PrrBound::Rfc9937 }
    }
}

impl Rfc6675Config {
    /// Returns all values of 2012, including proportional rate reduction.
    pub fn of_2012() -> Self {
        Rfc6675Config { prr: PrrBound::Rfc6937, ..Rfc6675Config::default() }
    }
}

/// Early retransmit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum EarlyRetransmit {
    /// Off: three duplicates or a timeout.
    Off,
    /// SACK reports all outstanding segments but one (RFC 5827).
    Rfc5827,
    /// SACK reports one outstanding segment. The paper needs this: after the probe of a lost flight of three
    /// segments, SACK reports only the third.
    Relaxed,
}

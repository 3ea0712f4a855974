//! The one knob of the planner, and what it may use.

use alloc::string::ToString;

use super::{CopyScope, CorrectiveConfig, FecCode, MechanismConfig, ProactiveConfig, TcpConfig};
use crate::error::ConfigError;

/// The planner spends redundancy where it pays: for each flight it chooses between nothing, parity and
/// copies, so that the flight is expected to be there soonest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlannerConfig {
    /// Redundancy that may be added, percent of the bytes sent to a destination within ten seconds.
    /// 0 (none)..=200, default 5.
    pub max_overhead: u32,
    /// Bytes beside that share within ten seconds, for short exchanges that have earned nothing yet.
    /// 0..=65535, default 600: a SYN with a small request, and a SYN-ACK, twice.
    pub burst: u32,
    /// Loss of a path of which nothing is known, per million. 0..=500000, default 10000.
    pub assumed_loss: u32,
    /// What a connection is guessed to carry, bytes; the handshake is protected in proportion.
    /// 1..=16777216, default 10000.
    pub expected_bytes: u32,
}

impl PlannerConfig {
    /// The defaults.
    pub const DEFAULT: PlannerConfig =
        PlannerConfig { max_overhead: 5, burst: 600, assumed_loss: 10_000, expected_bytes: 10_000 };

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let PlannerConfig { max_overhead, burst, assumed_loss, expected_bytes } = *self;
        let bounds = [
            ("max_overhead", max_overhead, 0, 200, "0 to 200 percent"),
            ("planner.burst", burst, 0, 65_535, "0 to 65535 bytes"),
            ("planner.assumed_loss", assumed_loss, 0, 500_000, "0 to 500000 per million"),
            ("planner.expected_bytes", expected_bytes, 1, 1 << 24, "1 to 16777216 bytes"),
        ];
        match bounds.into_iter().find(|(_, value, least, most, _)| value < least || value > most) {
            Some((key, value, .., range)) => Err(ConfigError { key, value: value.to_string(), range }),
            None => Ok(()),
        }
    }
}

impl Default for PlannerConfig {
    fn default() -> Self {
        PlannerConfig::DEFAULT
    }
}

impl TcpConfig {
    /// Today's TCP with every mechanism at the planner's hand, within `max_overhead` percent of redundancy;
    /// 0 is plain TCP with Reactive. Both ends should have it.
    pub fn planned(max_overhead: u32) -> Self {
        if max_overhead == 0 {
            return TcpConfig::default();
        }
        let mechanisms = MechanismConfig {
            corrective: Some(CorrectiveConfig { code: FecCode::ReedSolomon, ..CorrectiveConfig::default() }),
            proactive: Some(ProactiveConfig { scope: CopyScope::Named, ..ProactiveConfig::default() }),
            planner: Some(PlannerConfig { max_overhead, ..PlannerConfig::default() }),
            ..MechanismConfig::default()
        };
        TcpConfig { mechanisms, ..TcpConfig::default() }
    }
}

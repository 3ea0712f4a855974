//! The setting of the planner, and the redundancy that it may use.

use alloc::string::ToString;

use super::{
    CopyScope, CorrectiveConfig, FecCode, FecHold, HandshakeCopies, MechanismConfig, ProactiveConfig,
    TcpConfig,
};
use crate::error::ConfigError;
use crate::mechanism::plan::Form;

/// Configuration of the planner. For each flight it chooses no redundancy, parity or copies. It minimises the
/// expected delay of the flight, if the gain is worth the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlannerConfig {
    /// Limit of added redundancy, in percent of the sum of three numbers: the bytes sent to a destination
    /// within ten seconds, [`PlannerConfig::QUIET`], and the flight that begins. 0 (none)..=200, default 5.
    pub max_overhead: u32,
    /// Assumed loss of an unknown path, per million. 0..=500000, default 10000.
    pub assumed_loss: u32,
    /// Copy segments also for a peer that has agreed to nothing. Its TCP drops a needless copy and reports it
    /// by DSACK. Default off.
    pub unmarked_copies: bool,
    /// Form of every flight, for comparisons in tests. Default `None`: the planner chooses.
    #[doc(hidden)]
    pub form: Option<Form>,
    /// Makes literals end with `..`, so that releases can add fields.
    #[doc(hidden)]
    pub non_exhaustive: (),
}

impl PlannerConfig {
    /// The defaults.
    pub const DEFAULT: PlannerConfig = PlannerConfig {
        max_overhead: 5,
        assumed_loss: 10_000,
        unmarked_copies: false,
        form: None,
        non_exhaustive: (),
    };

    /// The planner of an end that serves many peers, most of which do not run brisk: it adds redundancy only
    /// where losses have been measured.
    pub const ONE_SIDED: PlannerConfig =
        PlannerConfig { assumed_loss: 0, unmarked_copies: true, ..PlannerConfig::DEFAULT };

    /// Bytes that count as sent to each destination within ten seconds, in addition to those really sent. A
    /// quiet path has free capacity, and a few percent of a small exchange are less than a copy.
    pub const QUIET: u32 = 1_000_000;

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let PlannerConfig { max_overhead, assumed_loss, unmarked_copies: _, form: _, non_exhaustive: () } =
            *self;
        let bounds = [
            ("max_overhead", max_overhead, 0, 200, "0 to 200 percent"),
            ("planner.assumed_loss", assumed_loss, 0, 500_000, "0 to 500000 per million"),
        ];
        match bounds.into_iter().find(|(_, value, min, max, _)| value < min || value > max) {
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
    /// Returns today's TCP with every mechanism under a planner with this
    /// [`max_overhead`](PlannerConfig::max_overhead). With 0 it returns plain TCP with Reactive. Use it at
    /// both ends.
    pub fn planned(max_overhead: u32) -> Self {
        if max_overhead == 0 {
            return TcpConfig::default();
        }
        let mechanisms = MechanismConfig {
            // Parity leaves directly after the data, so loss detection can wait for it.
            corrective: Some(CorrectiveConfig {
                code: FecCode::ReedSolomon,
                hold: Some(FecHold::Full),
                ..CorrectiveConfig::default()
            }),
            proactive: Some(ProactiveConfig { scope: CopyScope::Named, ..ProactiveConfig::default() }),
            planner: Some(PlannerConfig { max_overhead, ..PlannerConfig::default() }),
            ..MechanismConfig::default()
        };
        let handshake_copies = Some(HandshakeCopies::default());
        TcpConfig { mechanisms, handshake_copies, ..TcpConfig::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_the_ranges_are_accepted() {
        let min = PlannerConfig { max_overhead: 0, assumed_loss: 0, ..PlannerConfig::default() };
        let max = PlannerConfig { max_overhead: 200, assumed_loss: 500_000, ..min };
        assert_eq!((min.validate(), max.validate()), (Ok(()), Ok(())));
        let beyond =
            [PlannerConfig { max_overhead: 201, ..max }, PlannerConfig { assumed_loss: 500_001, ..max }];
        for (config, key) in beyond.into_iter().zip(["max_overhead", "planner.assumed_loss"]) {
            assert_eq!(config.validate().unwrap_err().key, key);
        }
    }
}

//! Configuration of Corrective and Proactive (Gentle Aggression sections 5 and 6).
//!
//! One option on SYN and SYN-ACK negotiates both. A connection that is configured for neither does not send
//! the option, and ignores the peer's.

use alloc::string::{String, ToString};

use crate::error::ConfigError;
use crate::time::Duration;

/// Corrective: parity in addition to the data, from which the receiver rebuilds lost data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CorrectiveConfig {
    /// Offered and accepted placement of the parity. Default `F2`.
    pub profile: FecProfile,
    /// Offered code; the peer's offer is accepted unchanged. Default `Xor`.
    pub code: FecCode,
    /// Maximum number of blocks of a group. 2..=16, with [`FecCode::ReedSolomon`] 2..=32; default 16.
    pub blocks: u32,
    /// Parity segments of a group; other codes than [`FecCode::ReedSolomon`] have a fixed number. 1..=8,
    /// default 1.
    pub parities: u8,
    /// The delay of parity is the smoothed round-trip time divided by this number. A group ends this delay
    /// after its first segment. Its parity leaves this delay after its last segment, but at most twice the
    /// delay after its first segment. In F1 it leaves this delay after the first segment. 1..=16, default 4.
    pub delay_divisor: u32,
    /// Time that loss detection waits for a repair by parity. Default `None`: `Full` for
    /// [`FecCode::ReedSolomon`] without a planner, because this code repairs several losses together;
    /// otherwise `Reordering`.
    pub hold: Option<FecHold>,
    /// Round-trip time until the first sample. Default `None`: the time in the path memory. If that is
    /// unknown too, parity waits 250 ms.
    pub expected_rtt: Option<Duration>,
    /// Send an acknowledgement after the parity of a tail, which shows the end of the sequence numbers to
    /// stateful devices. Default on.
    pub tail_ack: bool,
    /// Makes literals end with `..`, so that releases can add fields.
    #[doc(hidden)]
    pub non_exhaustive: (),
}

impl Default for CorrectiveConfig {
    fn default() -> Self {
        CorrectiveConfig {
            profile: FecProfile::F2,
            code: FecCode::Xor,
            blocks: 16,
            parities: 1,
            expected_rtt: None,
            delay_divisor: 4,
            hold: None,
            tail_ack: true,
            non_exhaustive: (),
        }
    }
}

impl CorrectiveConfig {
    /// Returns Corrective as in the paper, for the laboratory, see [`FecProfile::F1`].
    #[cfg(feature = "historical")]
    pub fn of_the_paper() -> Self {
        CorrectiveConfig {
            profile: FecProfile::F1,
            hold: Some(FecHold::Off),
            tail_ack: false,
            ..CorrectiveConfig::default()
        }
    }

    /// Checks the documented ranges of the fields; the error names the first field that is out of its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let (max, range) = match self.code {
            FecCode::Xor | FecCode::XorInterleaved => (16, "2 to 16"),
            FecCode::ReedSolomon => (32, "2 to 32"),
        };
        if !(2..=max).contains(&self.blocks) {
            return refuse("fec_blocks", self.blocks.to_string(), range);
        }
        if !(1..=8).contains(&self.parities) {
            return refuse("fec_parities", self.parities.to_string(), "1 to 8");
        }
        if !(1..=16).contains(&self.delay_divisor) {
            return refuse("fec_delay_div", self.delay_divisor.to_string(), "1 to 16");
        }
        Ok(())
    }
}

/// Place of parity in the sequence space, and protection of the application from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FecProfile {
    /// As in the paper: at the first covered byte, with the option on every packet and without a checksum.
    /// Only for the laboratory, because a network that changes payloads can make F1 corrupt data.
    #[cfg(feature = "historical")]
    F1,
    /// Left of the window, where no TCP accepts data, with a checksum over the rebuilt range.
    F2,
    /// F2 is offered, both are accepted.
    #[cfg(feature = "historical")]
    Both,
}

impl FecProfile {
    /// True if F1 is accepted.
    pub(crate) const fn has_f1(self) -> bool {
        match self {
            #[cfg(feature = "historical")]
            FecProfile::F1 | FecProfile::Both => true,
            FecProfile::F2 => false,
        }
    }

    /// True if F2 is offered and accepted.
    pub(crate) const fn has_f2(self) -> bool {
        match self {
            #[cfg(feature = "historical")]
            FecProfile::F1 => false,
            #[cfg(feature = "historical")]
            FecProfile::Both => true,
            FecProfile::F2 => true,
        }
    }
}

/// Code of the parity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FecCode {
    /// One parity segment: the XOR of all blocks.
    Xor,
    /// Two parity segments, each of every other block.
    XorInterleaved,
    /// Up to 8 parity segments, each of which repairs one lost block.
    ReedSolomon,
}

/// Condition for loss detection to wait for the answer to parity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FecHold {
    /// Never.
    Off,
    /// Only while the reordering window of RFC 8985 is not zero. It becomes zero when three segments above a
    /// hole are reported and no reordering was seen.
    Reordering,
    /// Always.
    Full,
}

/// Proactive: data is sent twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProactiveConfig {
    /// Segments to copy. Default `Short`.
    pub scope: CopyScope,
    /// Mark of a copy. Default `Bit`.
    pub mark: CopyMark,
    /// With [`CopyScope::Short`], bytes of a burst that are copied. Default 65536.
    pub max_bytes: u32,
    /// Time between original and copy. 0..=1 s, default 0.
    pub gap: Duration,
    /// Copy acknowledgements too. No plan of a planner includes these copies; under a planner they leave only
    /// while the destination's allowance lasts. Default off.
    pub copy_acks: bool,
    /// Stop copying if more than this share of the last 100 segments was lost, percent. 1..=100, default 25.
    pub loss_cap: u32,
    /// Rule to distinguish the second instance from a retransmission. Default `Ledger`.
    pub rule: CopyRule,
    /// Makes literals end with `..`, so that releases can add fields.
    #[doc(hidden)]
    pub non_exhaustive: (),
}

impl Default for ProactiveConfig {
    fn default() -> Self {
        ProactiveConfig::DEFAULT
    }
}

impl ProactiveConfig {
    /// The defaults.
    pub const DEFAULT: ProactiveConfig = ProactiveConfig {
        scope: CopyScope::Short,
        mark: CopyMark::Bit,
        max_bytes: 65_536,
        gap: Duration::ZERO,
        copy_acks: false,
        loss_cap: 25,
        rule: CopyRule::Ledger,
        non_exhaustive: (),
    };

    /// Returns Proactive as in the paper, for the laboratory, see [`CopyRule::Paper`].
    pub fn of_the_paper() -> Self {
        ProactiveConfig { scope: CopyScope::All, rule: CopyRule::Paper, ..ProactiveConfig::default() }
    }

    /// Checks the documented ranges of the fields; the error names the first field that is out of its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.gap > Duration::from_secs(1) {
            return refuse("pro_gap", alloc::format!("{:?}", self.gap), "0 to 1 s");
        }
        if !(1..=100).contains(&self.loss_cap) {
            return refuse("pro_loss_cap", self.loss_cap.to_string(), "1 to 100 percent");
        }
        Ok(())
    }
}

/// Data to copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CopyScope {
    /// The first bytes of each burst after an idle time.
    Short,
    /// Everything.
    All,
    /// The segments that the planner chooses.
    Named,
}

/// Mark of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CopyMark {
    /// By a reserved bit of the header.
    Bit,
    /// By a flag of the option. It takes space of the payload, and passes devices that clear reserved bits.
    Option,
}

/// Treatment of an unmarked segment without new data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CopyRule {
    /// Drop a segment without an acknowledgement only if a copy delivered its data shortly before. Report
    /// lost originals to the sender.
    Ledger,
    /// The paper's rule, for comparison: a retransmission may get no acknowledgement, and losses that copies
    /// masked are not reported.
    Paper,
}

fn refuse(key: &'static str, value: String, range: &'static str) -> Result<(), ConfigError> {
    Err(ConfigError { key, value, range })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_outside_their_ranges_are_refused_by_name() {
        let corrective = CorrectiveConfig::default();
        let refused = |config: CorrectiveConfig| config.validate().unwrap_err().key;
        assert_eq!(corrective.validate(), Ok(()));
        #[cfg(feature = "historical")]
        assert_eq!(CorrectiveConfig::of_the_paper().validate(), Ok(()));
        assert_eq!(refused(CorrectiveConfig { blocks: 17, ..corrective }), "fec_blocks");
        assert_eq!(refused(CorrectiveConfig { blocks: 1, ..corrective }), "fec_blocks");
        assert_eq!(refused(CorrectiveConfig { delay_divisor: 0, ..corrective }), "fec_delay_div");
        let proactive = ProactiveConfig::default();
        assert_eq!(proactive.validate(), Ok(()));
        assert!(ProactiveConfig { loss_cap: 0, ..proactive }.validate().is_err());
        assert!(ProactiveConfig { gap: Duration::from_secs(2), ..proactive }.validate().is_err());
    }
}

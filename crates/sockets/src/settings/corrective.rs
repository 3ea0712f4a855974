//! The keys of Corrective.

use brisk_tcp::TcpConfig;
use brisk_tcp::config::{CorrectiveConfig, FecCode, FecHold, FecProfile};

use super::{Refused, number, on_off, refused, span};

/// The keys with their permitted values. All keys except the first one require the first one before them.
pub(super) const KEYS: &[(&str, &str)] = &[
    ("corrective", "off, f1, f2, both, or paper: f1 with the authors' settings"),
    ("enc_type", "xor, interleaved, or rs:PARITIES"),
    ("fec_blocks", "blocks of a group"),
    ("fec_delay_div", "divisor of the round-trip time for the delay of parity"),
    ("fec_hold", "off, reo or full"),
    ("fec_rtt", "off, or the round-trip time before the first sample"),
    ("enc_tail_ack", "on or off"),
];

/// Sets one of these keys; returns false for other keys.
pub(super) fn set(tcp: &mut TcpConfig, key: &str, value: &str) -> Result<bool, Refused> {
    if key == "corrective" {
        tcp.mechanisms.corrective = profile(key, value)?;
        return Ok(true);
    }
    if !KEYS.iter().any(|(known, _)| *known == key) {
        return Ok(false);
    }
    let mut config = tcp.mechanisms.corrective.unwrap_or_default();
    apply(&mut config, key, value)?;
    if tcp.mechanisms.corrective.is_none() {
        return Err(format!("{key}={value}: write --set corrective=f2 before it"));
    }
    tcp.mechanisms.corrective = Some(config);
    Ok(true)
}

fn profile(key: &str, value: &str) -> Result<Option<CorrectiveConfig>, Refused> {
    let with = |profile| Some(CorrectiveConfig { profile, ..CorrectiveConfig::default() });
    match value {
        "off" => Ok(None),
        "f1" => Ok(with(FecProfile::F1)),
        "f2" => Ok(with(FecProfile::F2)),
        "both" => Ok(with(FecProfile::Both)),
        "paper" => Ok(Some(CorrectiveConfig::of_the_paper())),
        _ => Err(refused(key, value)),
    }
}

fn apply(config: &mut CorrectiveConfig, key: &str, value: &str) -> Result<(), Refused> {
    match (key, value) {
        ("enc_type", "xor") => config.code = FecCode::Xor,
        ("enc_type", "interleaved") => config.code = FecCode::XorInterleaved,
        ("enc_type", _) => {
            let parities = value.strip_prefix("rs:").ok_or_else(|| refused(key, value))?;
            (config.code, config.parities) = (FecCode::ReedSolomon, number(key, parities)?);
        }
        ("fec_blocks", _) => config.blocks = number(key, value)?,
        ("fec_delay_div", _) => config.delay_divisor = number(key, value)?,
        ("fec_hold", "off") => config.hold = Some(FecHold::Off),
        ("fec_hold", "reo") => config.hold = Some(FecHold::Reordering),
        ("fec_hold", "full") => config.hold = Some(FecHold::Full),
        ("fec_rtt", "off") => config.expected_rtt = None,
        ("fec_rtt", _) => config.expected_rtt = Some(span(key, value)?),
        ("enc_tail_ack", _) => config.tail_ack = on_off(key, value)?,
        _ => return Err(refused(key, value)),
    }
    Ok(())
}

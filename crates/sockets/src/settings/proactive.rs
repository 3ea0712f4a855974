//! `--set proactive=…`: the scope and, after a colon, differences from the defaults.

use brisk_tcp::config::{CopyMark, CopyRule, CopyScope, ProactiveConfig};

use super::{Refused, number, refused, span};

/// Permitted values of the key.
pub(super) const TAKES: &str = "off, short, all or paper, with options after a colon: option (the mark), \
    max:BYTES, gap:TIME, acks, cap:PERCENT, literal (the paper's rule), \
    as in all:acks,gap:5ms";

pub(super) fn read(value: &str) -> Result<Option<ProactiveConfig>, Refused> {
    let (scope, parts) = value.split_once(':').unwrap_or((value, ""));
    let mut config = match scope {
        "off" => return Ok(None),
        "short" => ProactiveConfig::default(),
        "all" => ProactiveConfig { scope: CopyScope::All, ..ProactiveConfig::default() },
        "paper" => ProactiveConfig::of_the_paper(),
        _ => return Err(refused("proactive", value)),
    };
    for part in parts.split(',').filter(|part| !part.is_empty()) {
        match part.split_once(':').unwrap_or((part, "")) {
            ("option", "") => config.mark = CopyMark::Option,
            ("acks", "") => config.copy_acks = true,
            ("literal", "") => config.rule = CopyRule::Paper,
            ("max", bytes) => config.max_bytes = number("proactive", bytes)?,
            ("gap", time) => config.gap = span("proactive", time)?,
            ("cap", percent) => config.loss_cap = number("proactive", percent)?,
            _ => return Err(refused("proactive", value)),
        }
    }
    Ok(Some(config))
}

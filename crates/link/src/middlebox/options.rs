//! Boxes that do not like TCP options.

use super::Verdict;
use super::header::{OptionAt, Tcp, mend, read_u16, write_u16};
use crate::error::SpecError;
use alloc::format;
use brisk_wire::{Flags, gentle};
use core::fmt;

/// Which option a box looks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OptionPattern {
    /// By its kind, 2 to 255.
    Kind(u8),
    /// The option of Corrective and Proactive: an experimental kind (253, 254) with their experiment identifier
    /// (RFC 6994).
    Gentle,
}

/// On which segments a box looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Scope {
    /// All.
    #[default]
    All,
    /// SYN without ACK.
    Syn,
    /// SYN with ACK.
    SynAck,
    /// Without SYN.
    Rest,
}

impl OptionPattern {
    /// Reads `:KIND@SCOPE`, where the kind may be given already.
    pub(super) fn parse_scoped(
        text: &str,
        rest: &str,
        given: Option<OptionPattern>,
    ) -> Result<(OptionPattern, Scope), SpecError> {
        let (kind, scope) = rest.split_once('@').map_or((rest, None), |(kind, scope)| (kind, Some(scope)));
        let scope = match scope {
            None => Scope::All,
            Some("syn") => Scope::Syn,
            Some("synack") => Scope::SynAck,
            Some("rest") => Scope::Rest,
            Some(other) => {
                let problem = format!("'@{other}' names no segments");
                return Err(SpecError::new(text, problem, "use @syn, @synack, @rest or nothing"));
            }
        };
        match (given, kind) {
            (Some(given), "") => Ok((given, scope)),
            (None, ":ga") => Ok((OptionPattern::Gentle, scope)),
            (None, kind) => match kind.trim_start_matches(':').parse::<u8>() {
                Ok(kind @ 2..) => Ok((OptionPattern::Kind(kind), scope)),
                Ok(_) | Err(_) => {
                    let remedy = "write its number, 2 to 255, for instance 34 for Fast Open, or ga";
                    Err(SpecError::new(text, "it takes the kind of a TCP option", remedy))
                }
            },
            (Some(_), kind) => {
                Err(SpecError::new(text, format!("'{kind}' is one too many"), "write strip-ga"))
            }
        }
    }

    fn matches(self, ip: &[u8], option: OptionAt) -> bool {
        match self {
            OptionPattern::Kind(kind) => option.kind == kind,
            OptionPattern::Gentle => {
                let experimental = matches!(option.kind, 253 | 254) && option.len >= 4;
                experimental && read_u16(ip, option.start + 2) == gentle::EXPERIMENTAL_ID
            }
        }
    }
}

impl Scope {
    fn covers(self, flags: Flags) -> bool {
        let (syn, ack) = (flags.contains(Flags::SYN), flags.contains(Flags::ACK));
        match self {
            Scope::All => true,
            Scope::Syn => syn && !ack,
            Scope::SynAck => syn && ack,
            Scope::Rest => !syn,
        }
    }
}

impl fmt::Display for OptionPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OptionPattern::Kind(kind) => kind.fmt(f),
            OptionPattern::Gentle => f.write_str("ga"),
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Scope::All => "",
            Scope::Syn => "@syn",
            Scope::SynAck => "@synack",
            Scope::Rest => "@rest",
        })
    }
}

/// Overwrites every such option with NOPs.
pub(super) fn strip(ip: &mut [u8], tcp: Tcp, pattern: OptionPattern, scope: Scope) -> Verdict {
    const NOP: u8 = 1;
    if scope.covers(tcp.flags(ip)) {
        let mut stripped = false;
        loop {
            let found = tcp.options(ip).find(|option| pattern.matches(ip, *option));
            let Some(option) = found else { break };
            ip.get_mut(option.start..option.start + option.len).unwrap_or_default().fill(NOP);
            stripped = true;
        }
        if stripped {
            mend(ip);
        }
    }
    Verdict::Pass
}

/// Answers packets that carry such an option with `refusal`.
pub(super) fn refuse(ip: &[u8], tcp: Tcp, pattern: OptionPattern, scope: Scope, refusal: Verdict) -> Verdict {
    let carried = scope.covers(tcp.flags(ip)) && tcp.options(ip).any(|option| pattern.matches(ip, option));
    if carried { refusal } else { Verdict::Pass }
}

/// Lowers the MSS option of a SYN.
pub(super) fn clamp_mss(ip: &mut [u8], tcp: Tcp, most: u16) -> Verdict {
    const MSS: u8 = 2;
    let found = tcp.options(ip).find(|option| option.kind == MSS && option.len == 4);
    if let Some(option) = found.filter(|_| tcp.flags(ip).contains(Flags::SYN))
        && read_u16(ip, option.start + 2) > most
    {
        write_u16(ip, option.start + 2, most);
        mend(ip);
    }
    Verdict::Pass
}

//! Boxes that remove or reject TCP options.

use super::Verdict;
use super::header::{OptionAt, Tcp, read_u16, update_checksums, write_u16};
use crate::error::SpecError;
use alloc::format;
use brisk_wire::{Flags, gentle};
use core::fmt;

/// The option that a box matches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OptionPattern {
    /// By its kind, 2 to 255.
    Kind(u8),
    /// The option of Corrective and Proactive: an experimental kind (253, 254) with their experiment
    /// identifier (RFC 6994).
    Gentle,
}

/// The segments that a box matches.
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
    /// Parses `:KIND@SCOPE`; the kind may be given by the caller.
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
                let problem = format!("'@{other}' is not a scope");
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
                Err(SpecError::new(text, format!("'{kind}' is not expected"), "write strip-ga"))
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

/// Overwrites every matching option with NOPs.
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
            update_checksums(ip);
        }
    }
    Verdict::Pass
}

/// Returns `refusal` for packets that carry a matching option.
pub(super) fn refuse(ip: &[u8], tcp: Tcp, pattern: OptionPattern, scope: Scope, refusal: Verdict) -> Verdict {
    let carried = scope.covers(tcp.flags(ip)) && tcp.options(ip).any(|option| pattern.matches(ip, option));
    if carried { refusal } else { Verdict::Pass }
}

/// Lowers the MSS option of a SYN.
pub(super) fn clamp_mss(ip: &mut [u8], tcp: Tcp, max: u16) -> Verdict {
    const MSS: u8 = 2;
    let found = tcp.options(ip).find(|option| option.kind == MSS && option.len == 4);
    if let Some(option) = found.filter(|_| tcp.flags(ip).contains(Flags::SYN))
        && read_u16(ip, option.start + 2) > max
    {
        write_u16(ip, option.start + 2, max);
        update_checksums(ip);
    }
    Verdict::Pass
}

#[cfg(test)]
mod tests {
    use super::super::sample::{Sample, link};
    use alloc::vec;
    use brisk_wire::{Cookie, FastOpen, Flags, Gentle, Instant, Options};

    fn fast_open_syn() -> Sample {
        let cookie = Cookie::new(&[7; 8]).unwrap();
        let fast_open = Some(FastOpen { cookie, experimental: false });
        let syn = Sample::syn();
        let options = Options { fast_open, gentle: Some(Gentle::Capability(0x10)), ..syn.options };
        Sample { options, payload: vec![1; 80], ..syn }
    }

    #[test]
    fn stripped_option_is_removed_and_nothing_else_changes() {
        for syn in [fast_open_syn(), fast_open_syn().over_v6()] {
            let out = syn.travel_up("--middlebox strip-option:34").remove(0);
            let options = Options { fast_open: None, ..syn.options.clone() };
            assert_eq!(out, Sample { options, ..syn.clone() });
            let out = syn.travel_up("--middlebox strip-ga").remove(0);
            assert_eq!((out.options.gentle, out.options.fast_open.is_some()), (None, true));
        }
    }

    #[test]
    fn a_scope_limits_the_box_to_its_segments() {
        let syn = fast_open_syn();
        let synack = Sample { flags: Flags::SYN | Flags::ACK, ..syn.clone() };
        let stripped = |sample: &Sample, scope: &str| {
            let text = alloc::format!("--middlebox strip-option:34{scope}");
            sample.travel_up(&text).remove(0).options.fast_open.is_none()
        };
        assert_eq!((stripped(&syn, "@syn"), stripped(&synack, "@syn")), (true, false));
        assert_eq!((stripped(&syn, "@synack"), stripped(&synack, "@synack")), (false, true));
        assert_eq!((stripped(&syn, "@rest"), stripped(&synack, "@rest")), (false, false));
    }

    #[test]
    fn an_option_can_cost_the_packet_or_the_connection() {
        let syn = fast_open_syn();
        assert!(syn.travel_up("--middlebox drop-option:34").is_empty());
        assert_eq!(Sample::syn().travel_up("--middlebox drop-option:34").len(), 1);

        let reset = link("--middlebox rst-option:ga").up.offer(syn.bytes(), Instant::ZERO).answer().unwrap();
        let reset = Sample::read(&reset);
        assert_eq!((reset.src, reset.dst, reset.flags), (syn.dst, syn.src, Flags::RST | Flags::ACK));
        assert_eq!((reset.seq, reset.ack), (0, syn.seq + 1 + 80));
    }

    #[test]
    fn the_mss_is_lowered_and_never_raised() {
        let mss = |text| Sample::syn().travel_up(text).remove(0).options.mss;
        assert_eq!(mss("--middlebox clamp-mss:1200"), Some(1200));
        assert_eq!(mss("--middlebox clamp-mss:9000"), Some(1460));
    }
}

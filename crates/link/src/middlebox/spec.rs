//! The grammar of middleboxes: `strip-option:34@synack`.

use super::options::{OptionPattern, Scope};
use crate::error::{SpecError, suggest};
use crate::units::{Ratio, parse_ratio};
use alloc::format;
use alloc::vec::Vec;
use brisk_wire::Ecn;
use core::fmt;

/// Every middlebox of the grammar with its effect, for help texts.
pub const MIDDLEBOXES: &[(&str, &str)] = &[
    ("strip-option:KIND[@syn|@synack|@rest]", "overwrites the TCP option of this kind with NOPs"),
    (
        "strip-ga[@syn|@synack|@rest]",
        "the same for the Gentle Aggression option (kind 253 or 254, ExID 0xDC60)",
    ),
    ("drop-option:KIND[@...]", "drops packets that carry the option (KIND may be ga)"),
    ("rst-option:KIND[@...]", "drops packets that carry the option and answers with a RST"),
    ("clamp-mss:BYTES", "lowers the MSS option of SYN and SYN-ACK to this value"),
    ("drop-syn-data", "drops SYNs that carry data"),
    ("strip-syn-data[:KEEP]", "cuts the data off a SYN, all of it or all but the first KEEP bytes"),
    ("rst-syn-data", "drops SYNs that carry data and answers with a RST"),
    (
        "rewrite-payload[:SHARE]",
        "flips a bit of the payload and corrects the checksum, as an application gateway does",
    ),
    ("corrupt:SHARE", "flips a bit after the IP header without correcting the checksum"),
    ("clear-reserved", "clears the reserved bits 4 to 6 of the TCP header"),
    ("set-reserved", "sets reserved bit 4 on every segment"),
    ("drop-reserved", "drops packets with a reserved bit set"),
    ("set-ecn:not-ect|ect0|ect1|ce", "overwrites the ECN field of the IP header"),
    (
        "coalesce[:BYTES]",
        "joins adjacent segments that arrive within 0.5 ms, up to packets of BYTES (9000, or the MTU)",
    ),
    ("split[:BYTES]", "cuts segments into pieces of at most BYTES of payload; without BYTES, into halves"),
    (
        "rewrite-seq[:nosack]",
        "shifts sequence numbers per connection, as firewalls do; with nosack SACK blocks stay unshifted",
    ),
    ("nat", "gives each connection its own source address"),
    ("synproxy", "answers SYNs itself and connects to the server when the client has acknowledged"),
    ("drop-after-handshake[:all]", "drops all but SYNs of connections whose SYN carried data (or of all)"),
    ("drop-unseen-ack", "a firewall at each end drops acknowledgements of data that did not pass it"),
    ("drop-old", "a firewall at each end drops data that it saw acknowledged"),
];

/// One middlebox. `MIDDLEBOXES` has the name and effect of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MiddleboxSpec {
    /// Overwrites an option with NOPs, as TCPOPTSTRIP does.
    StripOption {
        /// The option.
        option: OptionPattern,
        /// The segments that the box matches.
        scope: Scope,
    },
    /// Drops packets with an option.
    DropOption {
        /// The option.
        option: OptionPattern,
        /// The segments that the box matches.
        scope: Scope,
    },
    /// Drops packets with an option and answers with a RST.
    RstOption {
        /// The option.
        option: OptionPattern,
        /// The segments that the box matches.
        scope: Scope,
    },
    /// Lowers the MSS that SYNs announce.
    ClampMss {
        /// Bytes.
        max: u16,
    },
    /// Drops SYNs with data.
    DropSynData,
    /// Cuts data off SYNs.
    StripSynData {
        /// Bytes that remain.
        keep: u16,
    },
    /// Drops SYNs with data and answers with a RST.
    RstSynData,
    /// Flips bit 5 of payload byte 10 (or of the last byte) and corrects the checksum.
    RewritePayload {
        /// Share of segments with payload.
        share: Ratio,
    },
    /// Flips one bit anywhere after the IP header.
    Corrupt {
        /// Share of packets.
        share: Ratio,
    },
    /// Clears reserved bits.
    ClearReserved,
    /// Sets reserved bit 4.
    SetReserved,
    /// Drops packets with reserved bits.
    DropReserved,
    /// Overwrites the ECN field.
    SetEcn {
        /// The new value.
        ecn: Ecn,
    },
    /// Joins segments.
    Coalesce {
        /// Largest joined packet, bytes.
        size: Option<u16>,
    },
    /// Cuts segments.
    Split {
        /// Largest piece of payload, bytes; `None` cuts into halves.
        size: Option<u16>,
    },
    /// Shifts sequence numbers.
    RewriteSeq {
        /// True if SACK blocks are shifted too.
        sack: bool,
    },
    /// Changes the client's address for each connection. One byte of it depends on the client's port: the
    /// third octet (IPv4) or the eighth byte (IPv6), so host parts and ports stay. ICMP errors are not
    /// translated.
    Nat,
    /// Answers SYNs in the name of the server.
    SynProxy,
    /// Drops everything after a SYN, except SYNs.
    DropAfterHandshake {
        /// True for every connection, false for connections whose SYN carried data.
        all: bool,
    },
    /// Drops acknowledgements of unseen data.
    DropUnseenAck,
    /// Drops data left of the window.
    DropOld,
}

impl MiddleboxSpec {
    /// Parses one middlebox, such as `strip-option:34@synack`.
    ///
    /// # Errors
    /// If there is no such box or its argument is invalid; names the nearest box.
    pub fn parse(text: &str) -> Result<MiddleboxSpec, SpecError> {
        let end = text.find([':', '@']).unwrap_or(text.len());
        let (name, rest) = text.split_at(end);
        let argument = rest.strip_prefix(':');
        let scoped = |default| OptionPattern::parse_scoped(text, rest, default);
        let bytes = |what| argument.map(|argument| parse_bytes(text, argument, what)).transpose();
        let share = || argument.map(parse_ratio).transpose();
        let spec = match name {
            "strip-option" => {
                scoped(None).map(|(option, scope)| MiddleboxSpec::StripOption { option, scope })?
            }
            "strip-ga" => {
                let (option, scope) = scoped(Some(OptionPattern::Gentle))?;
                MiddleboxSpec::StripOption { option, scope }
            }
            "drop-option" => {
                scoped(None).map(|(option, scope)| MiddleboxSpec::DropOption { option, scope })?
            }
            "rst-option" => scoped(None).map(|(option, scope)| MiddleboxSpec::RstOption { option, scope })?,
            "clamp-mss" => MiddleboxSpec::ClampMss { max: required(text, bytes("MSS")?, "clamp-mss:1200")? },
            "strip-syn-data" => MiddleboxSpec::StripSynData { keep: bytes("number of bytes")?.unwrap_or(0) },
            "rewrite-payload" => MiddleboxSpec::RewritePayload { share: share()?.unwrap_or(Ratio::ONE) },
            "corrupt" => MiddleboxSpec::Corrupt { share: required(text, share()?, "corrupt:0.1%")? },
            "set-ecn" => MiddleboxSpec::SetEcn { ecn: parse_ecn(text, argument)? },
            "coalesce" => MiddleboxSpec::Coalesce { size: bytes("packet size")? },
            "split" => MiddleboxSpec::Split { size: bytes("number of bytes")?.filter(|size| *size > 0) },
            "rewrite-seq" => MiddleboxSpec::RewriteSeq { sack: !word(text, argument, "nosack")? },
            "drop-after-handshake" => MiddleboxSpec::DropAfterHandshake { all: word(text, argument, "all")? },
            _ => Self::parse_plain(text, name, rest)?,
        };
        Ok(spec)
    }

    /// Parses a box without arguments.
    fn parse_plain(text: &str, name: &str, rest: &str) -> Result<MiddleboxSpec, SpecError> {
        let spec = match name {
            "drop-syn-data" => MiddleboxSpec::DropSynData,
            "rst-syn-data" => MiddleboxSpec::RstSynData,
            "clear-reserved" => MiddleboxSpec::ClearReserved,
            "set-reserved" => MiddleboxSpec::SetReserved,
            "drop-reserved" => MiddleboxSpec::DropReserved,
            "nat" => MiddleboxSpec::Nat,
            "drop-unseen-ack" => MiddleboxSpec::DropUnseenAck,
            "drop-old" => MiddleboxSpec::DropOld,
            "synproxy" => MiddleboxSpec::SynProxy,
            _ => {
                let names: Vec<&str> = MIDDLEBOXES.iter().map(|(usage, _)| name_of(usage)).collect();
                let remedy = suggest("", name, &names);
                return Err(SpecError::new(text, format!("there is no middlebox '{name}'"), remedy));
            }
        };
        match rest {
            "" => Ok(spec),
            _ => Err(SpecError::new(text, format!("{name} takes no argument"), format!("write {name}"))),
        }
    }

    /// True if the box works only if both directions have it.
    pub fn spans_both_ways(&self) -> bool {
        matches!(
            self,
            MiddleboxSpec::Nat
                | MiddleboxSpec::RewriteSeq { .. }
                | MiddleboxSpec::DropAfterHandshake { .. }
                | MiddleboxSpec::DropUnseenAck
                | MiddleboxSpec::DropOld
                | MiddleboxSpec::SynProxy
        )
    }

    /// True if the box keeps a table of connections.
    pub(crate) fn remembers_flows(&self) -> bool {
        matches!(self, MiddleboxSpec::DropAfterHandshake { .. } | MiddleboxSpec::SynProxy)
            || self.watches_deliveries()
    }

    /// True if the box also observes packets that leave the path.
    pub(crate) fn watches_deliveries(&self) -> bool {
        matches!(self, MiddleboxSpec::DropUnseenAck | MiddleboxSpec::DropOld)
    }
}

fn name_of(usage: &str) -> &str {
    usage.split([':', '[']).next().unwrap_or(usage)
}

fn required<T>(text: &str, value: Option<T>, example: &str) -> Result<T, SpecError> {
    value.ok_or_else(|| SpecError::new(text, "the argument is missing", format!("write {example}")))
}

fn parse_bytes(text: &str, argument: &str, what: &str) -> Result<u16, SpecError> {
    argument.parse().map_err(|_| {
        SpecError::new(text, format!("'{argument}' is not a {what}"), "use a whole number up to 65535")
    })
}

/// True if the only permitted word is present.
fn word(text: &str, argument: Option<&str>, allowed: &str) -> Result<bool, SpecError> {
    match argument {
        None => Ok(false),
        Some(argument) if argument == allowed => Ok(true),
        Some(argument) => Err(SpecError::new(
            text,
            format!("'{argument}' is not understood"),
            format!("write {allowed} or nothing"),
        )),
    }
}

const ECN_NAMES: [(&str, Ecn); 4] =
    [("not-ect", Ecn::NotEct), ("ect0", Ecn::Ect0), ("ect1", Ecn::Ect1), ("ce", Ecn::Ce)];

fn parse_ecn(text: &str, argument: Option<&str>) -> Result<Ecn, SpecError> {
    let known = ECN_NAMES.iter().find(|(name, _)| Some(*name) == argument);
    let remedy = "write set-ecn:not-ect, set-ecn:ect0, set-ecn:ect1 or set-ecn:ce";
    known.map(|(_, ecn)| *ecn).ok_or_else(|| SpecError::new(text, "it takes the new ECN field", remedy))
}

impl fmt::Display for MiddleboxSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let optional = |f: &mut fmt::Formatter<'_>, name: &str, value: Option<u16>| match value {
            Some(value) => write!(f, "{name}:{value}"),
            None => f.write_str(name),
        };
        match *self {
            MiddleboxSpec::StripOption { option: OptionPattern::Gentle, scope } => {
                write!(f, "strip-ga{scope}")
            }
            MiddleboxSpec::StripOption { option, scope } => write!(f, "strip-option:{option}{scope}"),
            MiddleboxSpec::DropOption { option, scope } => write!(f, "drop-option:{option}{scope}"),
            MiddleboxSpec::RstOption { option, scope } => write!(f, "rst-option:{option}{scope}"),
            MiddleboxSpec::ClampMss { max } => write!(f, "clamp-mss:{max}"),
            MiddleboxSpec::DropSynData => f.write_str("drop-syn-data"),
            MiddleboxSpec::StripSynData { keep } => optional(f, "strip-syn-data", (keep > 0).then_some(keep)),
            MiddleboxSpec::RstSynData => f.write_str("rst-syn-data"),
            MiddleboxSpec::RewritePayload { share: Ratio::ONE } => f.write_str("rewrite-payload"),
            MiddleboxSpec::RewritePayload { share } => write!(f, "rewrite-payload:{share}"),
            MiddleboxSpec::Corrupt { share } => write!(f, "corrupt:{share}"),
            MiddleboxSpec::ClearReserved => f.write_str("clear-reserved"),
            MiddleboxSpec::SetReserved => f.write_str("set-reserved"),
            MiddleboxSpec::DropReserved => f.write_str("drop-reserved"),
            MiddleboxSpec::SetEcn { ecn } => {
                let name = ECN_NAMES.iter().find(|(_, known)| *known == ecn).map_or("", |(name, _)| name);
                write!(f, "set-ecn:{name}")
            }
            MiddleboxSpec::Coalesce { size } => optional(f, "coalesce", size),
            MiddleboxSpec::Split { size } => optional(f, "split", size),
            MiddleboxSpec::RewriteSeq { sack: true } => f.write_str("rewrite-seq"),
            MiddleboxSpec::RewriteSeq { sack: false } => f.write_str("rewrite-seq:nosack"),
            MiddleboxSpec::Nat => f.write_str("nat"),
            MiddleboxSpec::DropAfterHandshake { all: false } => f.write_str("drop-after-handshake"),
            MiddleboxSpec::DropAfterHandshake { all: true } => f.write_str("drop-after-handshake:all"),
            MiddleboxSpec::DropUnseenAck => f.write_str("drop-unseen-ack"),
            MiddleboxSpec::DropOld => f.write_str("drop-old"),
            MiddleboxSpec::SynProxy => f.write_str("synproxy"),
        }
    }
}

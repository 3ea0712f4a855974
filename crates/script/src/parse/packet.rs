//! Packets: prefixes in brackets, TCP segments with their options, ICMP errors.

use brisk_wire::{Ecn, Flags, IcmpKind};

use super::Cursor;
use crate::ast::{Action, EcnBits, IcmpPacket, Prefix, TcpPacket};
use crate::error::ScriptError;
use crate::tcp_option::{Cookie, Echo, TcpOption};

pub(super) fn arriving(cursor: &mut Cursor<'_>) -> Result<Action, ScriptError> {
    let mut ahead = *cursor;
    let mut prefix = prefix(&mut ahead)?;
    let quoted = quotation(&mut ahead)?;
    if ahead.eat_word("icmp") {
        *cursor = ahead;
        return icmp(cursor, prefix, quoted).map(Action::IcmpArrives);
    }
    let packet = tcp(cursor)?;
    prefix = packet.prefix.clone();
    Ok(Action::Arrives(TcpPacket { prefix, ..packet }))
}

/// Parses `[ect0]`, `[flow b from 192.0.2.7, ce]`, `[badsum]`; returns no prefix if a number follows the
/// bracket.
fn prefix(cursor: &mut Cursor<'_>) -> Result<Prefix, ScriptError> {
    let mut prefix = Prefix::default();
    while cursor.sees("[") {
        let mut ahead = *cursor;
        ahead.expect("[")?;
        if ahead.peek().is_some_and(|c| c.is_ascii_digit()) {
            break;
        }
        *cursor = ahead;
        while !cursor.eat("]") {
            attribute(cursor, &mut prefix)?;
            cursor.eat(",");
        }
    }
    Ok(prefix)
}

fn attribute(cursor: &mut Cursor<'_>, prefix: &mut Prefix) -> Result<(), ScriptError> {
    let mut ahead = *cursor;
    match ahead.word() {
        Some("noecn") => prefix.ecn = Some(EcnBits::Is(Ecn::NotEct)),
        Some("ect0") => prefix.ecn = Some(EcnBits::Is(Ecn::Ect0)),
        Some("ect1") => prefix.ecn = Some(EcnBits::Is(Ecn::Ect1)),
        Some("ect01") => prefix.ecn = Some(EcnBits::Ect01),
        Some("ce") => prefix.ecn = Some(EcnBits::Is(Ecn::Ce)),
        Some("new") => prefix.new = true,
        Some("interleaved") => prefix.interleaved = true,
        Some("spoiled") => prefix.spoiled = true,
        Some("badsum") => prefix.bad_checksum = true,
        Some("flow") => {
            let name = ahead.word().ok_or_else(|| ahead.error("the name of a flow"))?;
            prefix.flow = Some(name.to_owned());
        }
        Some("from") => {
            let text = ahead.chunk();
            let bare = text.trim_end_matches([']', ',']);
            let addr = bare.parse().map_err(|_| cursor.error("`from ADDR` with an IP address"))?;
            prefix.from = Some(addr);
            // The chunk may include the bracket, so the address is read separately.
            ahead = *cursor;
            ahead.eat_word("from");
            ahead.eat(bare);
        }
        _ => {
            let known =
                "noecn, ect0, ect1, ect01, ce, flow NAME, from ADDR, new, interleaved, spoiled or badsum";
            return Err(cursor.error(known));
        }
    }
    *cursor = ahead;
    Ok(())
}

/// Parses `[seq:end(len)]`, the quotation of an ICMP error.
fn quotation(cursor: &mut Cursor<'_>) -> Result<Option<(u32, u32)>, ScriptError> {
    if !cursor.eat("[") {
        return Ok(None);
    }
    let quoted = sequence(cursor)?;
    cursor.expect("]")?;
    Ok(Some(quoted))
}

/// Parses a TCP segment without its direction.
pub(super) fn tcp(cursor: &mut Cursor<'_>) -> Result<TcpPacket, ScriptError> {
    let prefix = prefix(cursor)?;
    let line = cursor.line();
    let letters = cursor.chunk();
    let flags = Flags::from_letters(letters).ok_or_else(|| {
        cursor.complaint(line, format!("`{letters}` are not flags: use letters of FSRPEWAU456. or -"))
    })?;
    let (seq, len) = sequence(cursor)?;
    let ack = if cursor.eat_word("ack") { Some(number_in_stream(cursor)?) } else { None };
    let win = if cursor.eat_word("win") { Some(cursor.number_as()?) } else { None };
    let urg = if cursor.eat_word("urg") { Some(cursor.number_as()?) } else { None };
    if ack.is_some() != flags.contains(Flags::ACK) {
        return Err(cursor.complaint(line, "the flag `.` and `ack N` belong together: write both or none"));
    }
    let options = options(cursor)?;
    Ok(TcpPacket { prefix, flags, seq, len, ack, win, urg, options })
}

/// Parses `seq:end(len)`.
fn sequence(cursor: &mut Cursor<'_>) -> Result<(u32, u32), ScriptError> {
    let line = cursor.line();
    let seq = number_in_stream(cursor)?;
    cursor.expect(":")?;
    let end = number_in_stream(cursor)?;
    cursor.expect("(")?;
    let len: u32 = cursor.number_as()?;
    cursor.expect(")")?;
    if end.wrapping_sub(seq) != len {
        let right = end.wrapping_sub(seq);
        return Err(
            cursor.complaint(line, format!("{seq}:{end}({len}) contradicts itself: the length is {right}"))
        );
    }
    Ok((seq, len))
}

/// Parses a sequence number; a negative one counts back from the initial one.
fn number_in_stream(cursor: &mut Cursor<'_>) -> Result<u32, ScriptError> {
    let negative = cursor.eat("-");
    let number: u32 = cursor.number_as()?;
    Ok(if negative { number.wrapping_neg() } else { number })
}

fn options(cursor: &mut Cursor<'_>) -> Result<Option<Vec<TcpOption>>, ScriptError> {
    if !cursor.eat("<") {
        return Ok(Some(Vec::new()));
    }
    if cursor.eat("...") {
        cursor.expect(">")?;
        return Ok(None);
    }
    let mut options = Vec::new();
    while !cursor.eat(">") {
        options.push(option(cursor)?);
        if !cursor.eat(",") && !cursor.sees(">") {
            return Err(cursor.error("`,` or `>`"));
        }
    }
    Ok(Some(options))
}

fn option(cursor: &mut Cursor<'_>) -> Result<TcpOption, ScriptError> {
    let mut ahead = *cursor;
    let option = match ahead.word() {
        Some("nop") => TcpOption::Nop,
        Some("eol") => TcpOption::Eol,
        Some("mss") => TcpOption::Mss(ahead.number_as()?),
        Some("wscale") => TcpOption::WindowScale(ahead.number_as()?),
        Some("sackOK") => TcpOption::SackPermitted,
        Some("TS") => {
            ahead.eat_word("val");
            let value = ahead.number_as()?;
            ahead.eat_word("ecr");
            TcpOption::Timestamps { value, echo: echo(&mut ahead)? }
        }
        Some("sack") => TcpOption::Sack(blocks(&mut ahead)?),
        Some("FO") => TcpOption::FastOpen { cookie: cookie(&mut ahead)?, experimental: false },
        Some("FOEXP") => TcpOption::FastOpen { cookie: cookie(&mut ahead)?, experimental: true },
        Some("GA") => TcpOption::Gentle(bytes(&mut ahead)?),
        Some("kind") => TcpOption::Other { kind: ahead.number_as()?, content: bytes(&mut ahead)? },
        _ => {
            return Err(cursor.error("mss, nop, eol, wscale, sackOK, TS, sack, FO, FOEXP, GA or kind"));
        }
    };
    *cursor = ahead;
    Ok(option)
}

/// Parses `n`, `@` or `@seq/n`.
fn echo(cursor: &mut Cursor<'_>) -> Result<Echo, ScriptError> {
    if !cursor.eat("@") {
        return cursor.number_as().map(Echo::Value);
    }
    if !cursor.peek().is_some_and(|c| c.is_ascii_digit()) {
        return Ok(Echo::Newest);
    }
    let seq = number_in_stream(cursor)?;
    cursor.expect("/")?;
    Ok(Echo::Segment { seq, transmission: cursor.number_as()? })
}

fn blocks(cursor: &mut Cursor<'_>) -> Result<Vec<(u32, u32)>, ScriptError> {
    let mut blocks = Vec::new();
    while cursor.peek().is_some_and(|c| c.is_ascii_digit() || c == '-') {
        let start = number_in_stream(cursor)?;
        cursor.expect(":")?;
        blocks.push((start, number_in_stream(cursor)?));
    }
    Ok(blocks)
}

/// Parses `$name`, hexadecimal digits, or nothing, which is a cookie request.
fn cookie(cursor: &mut Cursor<'_>) -> Result<Cookie, ScriptError> {
    if cursor.eat("$") {
        let name = cursor.word().ok_or_else(|| cursor.error("the name of a cookie"))?;
        return Ok(Cookie::Named(name.to_owned()));
    }
    bytes(cursor).map(Cookie::Bytes)
}

fn bytes(cursor: &mut Cursor<'_>) -> Result<Vec<u8>, ScriptError> {
    let start = *cursor;
    let digits = cursor.hex_digits();
    if !digits.len().is_multiple_of(2) {
        *cursor = start;
        return Err(cursor.error("an even number of hexadecimal digits"));
    }
    let (pairs, _) = digits.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| {
        let digit = |c: u8| (c as char).to_digit(16).unwrap_or(0) as u8;
        digit(pair[0]) << 4 | digit(pair[1])
    };
    Ok(pairs.iter().map(byte).collect())
}

/// Parses `icmp unreachable host_unreachable`, `icmp unreachable frag_needed mtu 1400`, …
fn icmp(
    cursor: &mut Cursor<'_>,
    prefix: Prefix,
    before: Option<(u32, u32)>,
) -> Result<IcmpPacket, ScriptError> {
    let mut ahead = *cursor;
    let kind = match ahead.word() {
        Some("unreachable") => match ahead.word() {
            Some("net_unreachable") => IcmpKind::NetUnreachable,
            Some("host_unreachable" | "address_unreachable") => IcmpKind::HostUnreachable,
            Some("protocol_unreachable") => IcmpKind::ProtocolUnreachable,
            Some("port_unreachable") => IcmpKind::PortUnreachable,
            Some("admin_prohibited") => IcmpKind::AdminProhibited,
            Some("frag_needed") => too_big(&mut ahead)?,
            _ => return Err(cursor.error("a code of `icmp unreachable`")),
        },
        Some("packet_too_big") => too_big(&mut ahead)?,
        Some("time_exceeded") => IcmpKind::TimeExceeded,
        Some("parameter_problem") => IcmpKind::ParameterProblem,
        Some("source_quench") => IcmpKind::SourceQuench,
        _ => {
            let types = "unreachable, packet_too_big, time_exceeded, parameter_problem or source_quench";
            return Err(cursor.error(types));
        }
    };
    *cursor = ahead;
    let quoted = match before {
        Some(quoted) => Some(quoted),
        None => quotation(cursor)?,
    };
    let (quoted_seq, quoted_len) =
        quoted.ok_or_else(|| cursor.error("the quoted segment, as in `[1:1461(1460)]`"))?;
    Ok(IcmpPacket { prefix, kind, quoted_seq, quoted_len })
}

fn too_big(cursor: &mut Cursor<'_>) -> Result<IcmpKind, ScriptError> {
    if !cursor.eat_word("mtu") {
        return Err(cursor.error("`mtu N`"));
    }
    Ok(IcmpKind::PacketTooBig { mtu: cursor.number_as()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<TcpPacket, ScriptError> {
        tcp(&mut Cursor::new("t", text))
    }

    #[test]
    fn segments_have_flags_numbers_and_options() {
        let packet = read(
            "[ect0, flow b] FP. 1:1001(1000) ack 7 win 257 urg 3 <nop,nop,TS val 100 ecr 0, sack 1:2 5:9>",
        );
        let packet = packet.unwrap();
        assert_eq!(packet.flags, Flags::FIN | Flags::PSH | Flags::ACK);
        assert_eq!(
            (packet.seq, packet.len, packet.ack, packet.win, packet.urg),
            (1, 1000, Some(7), Some(257), Some(3))
        );
        let expected = [
            TcpOption::Nop,
            TcpOption::Nop,
            TcpOption::Timestamps { value: 100, echo: Echo::Value(0) },
            TcpOption::Sack(vec![(1, 2), (5, 9)]),
        ];
        assert_eq!(packet.options.as_deref(), Some(&expected[..]));
        assert_eq!(packet.prefix.flow.as_deref(), Some("b"));
        assert_eq!(packet.prefix.ecn, Some(EcnBits::Is(Ecn::Ect0)));
        assert_eq!(read("S 0:0(0) <...>").unwrap().options, None);
        let parity = read(". -999:1(1000) ack 1 <nop,sack -999:1>").unwrap();
        assert_eq!((parity.seq, parity.len), (0xffff_fc19, 1000));
        assert_eq!(parity.options.unwrap()[1], TcpOption::Sack(vec![(0xffff_fc19, 1)]));
    }

    #[test]
    fn cookies_are_hexadecimal_named_or_requests() {
        for (text, cookie) in [
            ("FO>", Cookie::Bytes(vec![])),
            ("FO 00abAA>", Cookie::Bytes(vec![0, 0xab, 0xaa])),
            ("FO $c1>", Cookie::Named("c1".to_owned())),
        ] {
            let expected = TcpOption::FastOpen { cookie, experimental: false };
            assert_eq!(option(&mut Cursor::new("t", text)).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn contradictions_are_refused() {
        assert!(read(". 1:10(10) ack 1").unwrap_err().message.contains("the length is 9"));
        assert!(read("S. 0:0(0)").unwrap_err().message.contains("write both or none"));
        assert!(read("X 0:0(0)").unwrap_err().message.contains("are not flags"));
        assert!(read("S 0:0(0) <mss>").unwrap_err().message.contains("a number"));
        assert!(read("[odd] S 0:0(0)").unwrap_err().message.contains("noecn"));
        assert!(read("S 0:0(0) <mss 70000>").unwrap_err().message.contains("16 bits"));
    }

    #[test]
    fn quotation_may_precede_or_follow_an_icmp_error() {
        let expected = IcmpPacket {
            prefix: Prefix::default(),
            kind: IcmpKind::PacketTooBig { mtu: 1200 },
            quoted_seq: 1,
            quoted_len: 1460,
        };
        for text in [
            "[1:1461(1460)] icmp unreachable frag_needed mtu 1200",
            "icmp unreachable frag_needed mtu 1200 [1:1461(1460)]",
        ] {
            assert_eq!(arriving(&mut Cursor::new("t", text)).unwrap(), Action::IcmpArrives(expected.clone()));
        }
    }
}

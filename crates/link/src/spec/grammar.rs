//! Parses the values of the link grammar, with one function per kind of value.

use crate::error::{SpecError, suggest};
use crate::loss::LossSpec;
use crate::queue::Depth;
use crate::rate::RateSpec;
use crate::spec::{Mtu, Reorder};
use crate::units::{Ratio, parse_duration, parse_rate, parse_ratio, parse_size};
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

/// Splits at white space; double quotes keep a piece together.
pub(crate) fn words(text: &str) -> Result<Vec<String>, SpecError> {
    let mut words = Vec::new();
    let (mut word, mut begun, mut quoted) = (String::new(), false, false);
    for c in text.chars() {
        if c == '"' {
            quoted = !quoted;
            begun = true;
        } else if c.is_whitespace() && !quoted {
            if begun {
                words.push(core::mem::take(&mut word));
            }
            begun = false;
        } else {
            word.push(c);
            begun = true;
        }
    }
    if quoted {
        return Err(SpecError::new(text, "a double quote is not closed", "close it"));
    }
    if begun {
        words.push(word);
    }
    Ok(words)
}

/// Parses `down:V`, `up:V` or `V`: the value for each direction.
pub(crate) fn prefixed(value: &str) -> (Option<&str>, Option<&str>) {
    if let Some(down) = value.strip_prefix("down:") {
        (Some(down), None)
    } else if let Some(up) = value.strip_prefix("up:") {
        (None, Some(up))
    } else {
        (Some(value), Some(value))
    }
}

/// Like [`prefixed`], but also parses `A/B` (down and up), except for values with a file name.
pub(crate) fn sides(value: &str) -> Result<(Option<&str>, Option<&str>), SpecError> {
    let (down, up) = prefixed(value);
    if value.contains("trace:") || !value.contains('/') {
        return Ok((down, up));
    }
    let parts: Vec<&str> = value.split('/').collect();
    match parts.as_slice() {
        [a, b] if down.is_some() && up.is_some() && !a.is_empty() && !b.is_empty() => Ok((Some(a), Some(b))),
        _ => Err(SpecError::new(
            value,
            "a slash separates down from up and may occur once",
            "write DOWN/UP, down:VALUE or up:VALUE",
        )),
    }
}

/// Parses a whole number from 0 to 2^64 - 1.
pub(crate) fn parse_seed(value: &str) -> Result<u64, SpecError> {
    value.parse().map_err(|_| {
        SpecError::new(
            value,
            format!("'{value}' is not a seed"),
            "use a whole number from 0 to 18446744073709551615",
        )
    })
}

/// Parses `20mbit`, `20mbit,5mbit@10s` or `trace:FILE`.
pub(crate) fn parse_rate_spec(value: &str) -> Result<RateSpec, SpecError> {
    if let Some(path) = value.strip_prefix("trace:") {
        return Ok(RateSpec::Trace { path: trace_path(path)?, opportunities: None });
    }
    let Some((first, later)) = value.split_once(',') else {
        return parse_rate(value).map(RateSpec::Constant);
    };
    let mut steps = Vec::from([(Duration::ZERO, parse_rate(first.trim())?)]);
    let mut last = Duration::ZERO;
    for step in later.split(',').map(str::trim) {
        let wrong =
            |problem: &str| SpecError::new(value, format!("'{step}' {problem}"), "write 20mbit,5mbit@10s");
        let (rate, after) = step.split_once('@').ok_or_else(|| wrong("has no start time"))?;
        let after = parse_duration(after.trim())?;
        if after <= last {
            return Err(wrong("does not begin after the previous step"));
        }
        steps.push((after, parse_rate(rate.trim())?));
        last = after;
    }
    Ok(RateSpec::Steps(steps.into()))
}

fn trace_path(path: &str) -> Result<Arc<str>, SpecError> {
    if path.is_empty() {
        return Err(SpecError::new(path, "the file is missing", "write trace:FILE"));
    }
    if path.contains('"') {
        return Err(SpecError::new(
            path,
            "a file name with a double quote cannot be written in a plan",
            "rename it",
        ));
    }
    Ok(path.into())
}

/// Parses `128kB` or `200p`, at least one byte or packet.
pub(crate) fn parse_depth(value: &str) -> Result<Depth, SpecError> {
    match parse_mark(value)? {
        Depth::Bytes(0) | Depth::Packets(0) => Err(SpecError::new(
            value,
            "an empty queue passes no packet",
            "use at least 1p; none gives the default",
        )),
        depth => Ok(depth),
    }
}

/// Parses `30kB` or `20p`. Zero is permitted: then a packet is marked if any other waits.
pub(crate) fn parse_mark(value: &str) -> Result<Depth, SpecError> {
    if let Some(packets) = value.strip_suffix('p')
        && let Ok(packets) = packets.parse()
    {
        return Ok(Depth::Packets(packets));
    }
    parse_size(value).map(Depth::Bytes).map_err(|error| {
        let problem = format!("'{value}' is neither a size nor a number of packets");
        match value.ends_with('p') || !value.starts_with(|c: char| c.is_ascii_digit()) {
            true => SpecError::new(value, problem, "write 128kB or 200p"),
            false => error,
        }
    })
}

/// Parses `1%` or `1%,5ms`.
pub(crate) fn parse_reorder(value: &str) -> Result<Reorder, SpecError> {
    let (share, by) = value.split_once(',').unwrap_or((value, ""));
    let by = if by.is_empty() { Reorder::DEFAULT_BY } else { parse_duration(by.trim())? };
    Ok(Reorder { share: parse_ratio(share.trim())?, by })
}

/// Parses `1500` or `1400,silent`.
pub(crate) fn parse_mtu(value: &str) -> Result<Mtu, SpecError> {
    let (bytes, word) = value.split_once(',').unwrap_or((value, ""));
    let silent = match word.trim() {
        "" => false,
        "silent" => true,
        other => {
            return Err(SpecError::new(
                value,
                format!("'{other}' is not understood"),
                "write 1400 or 1400,silent",
            ));
        }
    };
    match parse_size(bytes.trim())? {
        bytes @ 68..=65_535 => Ok(Mtu { bytes: bytes as u16, silent }),
        bytes => {
            let problem = format!("an IP path cannot have an MTU of {bytes} bytes");
            Err(SpecError::new(value, problem, "use 68 to 65535 (1280 or more for IPv6)"))
        }
    }
}

const LOSS_MODELS: &[&str] = &["after", "ge", "trace", "list", "outage", "policer"];

/// Parses one or more models joined by `+`.
pub(crate) fn parse_losses(value: &str) -> Result<Vec<LossSpec>, SpecError> {
    value.split('+').map(|one| parse_loss(one.trim())).collect()
}

fn parse_loss(text: &str) -> Result<LossSpec, SpecError> {
    let (model, rest) = match text.split_once(':') {
        Some((model, rest)) => (model, rest),
        None if text.starts_with(|c: char| c.is_ascii_alphabetic()) => (text, ""),
        None => return parse_ratio(text).map(LossSpec::Independent),
    };
    match model {
        "after" => parse_after(rest),
        "ge" => parse_gilbert_elliott(rest),
        "trace" => Ok(LossSpec::Trace { path: trace_path(rest)?, lost: None }),
        "list" => parse_positions(rest),
        "outage" => parse_outage(rest),
        "policer" => parse_policer(rest),
        _ => {
            let remedy = format!("{} (or a ratio such as 2%)", suggest("", model, LOSS_MODELS));
            Err(SpecError::new(text, format!("'{model}' is not a loss model"), remedy))
        }
    }
}

fn parse_after(rest: &str) -> Result<LossSpec, SpecError> {
    let fields: Vec<&str> = rest.split(',').map(str::trim).collect();
    let (p, q, gap) = match fields.as_slice() {
        [p, q] => (p, q, LossSpec::BURST_GAP),
        [p, q, gap] => (p, q, parse_duration(gap)?),
        _ => {
            let problem = "it takes the loss normally and the loss after a lost packet";
            return Err(SpecError::new(
                rest,
                problem,
                "write after:1%,50% (or after:1%,50%,500us with the burst gap)",
            ));
        }
    };
    Ok(LossSpec::After { p: parse_ratio(p)?, q: parse_ratio(q)?, gap })
}

fn parse_gilbert_elliott(rest: &str) -> Result<LossSpec, SpecError> {
    let (mut p, mut r, mut h, mut k) = (None, None, Ratio::ZERO, Ratio::ONE);
    let usage =
        "write ge:p=1%,r=50%,h=0%,k=100% (good to bad, bad to good, delivery in bad, delivery in good)";
    for field in rest.split(',') {
        let Some((name, value)) = field.split_once('=') else {
            return Err(SpecError::new(rest, format!("'{field}' is not NAME=RATIO"), usage));
        };
        let value = parse_ratio(value.trim())?;
        match name.trim() {
            "p" => p = Some(value),
            "r" => r = Some(value),
            "h" => h = value,
            "k" => k = value,
            other => {
                return Err(SpecError::new(rest, format!("'{other}' is not one of p, r, h and k"), usage));
            }
        }
    }
    let Some(p) = p else {
        return Err(SpecError::new(rest, "p is missing", usage));
    };
    // Default as in netem: without r the states have no memory.
    Ok(LossSpec::GilbertElliott { p, r: r.unwrap_or(p.complement()), h, k })
}

fn parse_positions(rest: &str) -> Result<LossSpec, SpecError> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for field in rest.split(',').map(str::trim) {
        let (first, last) = field.split_once('-').unwrap_or((field, field));
        match (first.parse::<u64>(), last.parse::<u64>()) {
            (Ok(first), Ok(last)) if 1 <= first && first <= last => ranges.push((first, last)),
            _ => {
                let problem = format!("'{field}' does not name packets");
                return Err(SpecError::new(rest, problem, "write list:3,7-9; the first packet is 1"));
            }
        }
    }
    ranges.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match merged.last_mut() {
            Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
            Some(_) | None => merged.push((first, last)),
        }
    }
    Ok(LossSpec::Positions(merged.into()))
}

fn parse_outage(rest: &str) -> Result<LossSpec, SpecError> {
    let usage = "write outage:2s..4s or outage:14s..15s,every=15s";
    let wrong = |problem: &str| SpecError::new(rest, problem, usage);
    let (span, every) = rest.split_once(',').unwrap_or((rest, ""));
    let Some((from, to)) = span.split_once("..") else {
        return Err(wrong("it takes a begin and an end"));
    };
    let (from, to) = (parse_duration(from.trim())?, parse_duration(to.trim())?);
    if to <= from {
        return Err(wrong("it ends before it begins"));
    }
    let every: Option<Duration> = match every.trim().strip_prefix("every=") {
        Some(every) => Some(parse_duration(every)?),
        None if every.trim().is_empty() => None,
        None => return Err(wrong(&format!("'{every}' is not understood"))),
    };
    if every.is_some_and(|every| every <= to - from) {
        return Err(wrong("it begins again before it ends"));
    }
    Ok(LossSpec::Outage { from, to, every })
}

fn parse_policer(rest: &str) -> Result<LossSpec, SpecError> {
    let Some((rate, bucket)) = rest.split_once(',') else {
        let problem = "it takes a rate and the size of a bucket";
        return Err(SpecError::new(rest, problem, "write policer:10mbit,100kB"));
    };
    let (rate, bucket) = (parse_rate(rate.trim())?, bucket.trim());
    match parse_size(bucket)? {
        0..1500 => {
            let problem = format!("a bucket of {bucket} passes no packet of full size");
            Err(SpecError::new(rest, problem, "use at least 1.5kB"))
        }
        bucket => Ok(LossSpec::Policer { rate, bucket }),
    }
}

/// Parses a recording of losses: `1` lost, `0` delivered; white space and `#` comments are ignored.
pub(crate) fn parse_loss_trace(path: &str, text: &str) -> Result<Arc<[bool]>, SpecError> {
    let mut lost = Vec::new();
    let place = format!("trace:{path}");
    for (index, line) in text.lines().enumerate() {
        let content = line.split('#').next().unwrap_or("");
        for c in content.chars().filter(|c| !c.is_whitespace()) {
            match c {
                '0' => lost.push(false),
                '1' => lost.push(true),
                other => {
                    let problem = format!("line {}: '{other}' is neither 0 nor 1", index + 1);
                    return Err(SpecError::new(
                        &place,
                        problem,
                        "write 1 for a lost packet and 0 for a delivered one",
                    ));
                }
            }
        }
    }
    if lost.is_empty() {
        return Err(SpecError::new(
            &place,
            "no packet in it",
            "write 1 for a lost packet and 0 for a delivered one",
        ));
    }
    Ok(lost.into())
}

//! Durations, sizes, rates and ratios as text: `50ms`, `30kB`, `20mbit`, `2%`.
//!
//! The whole project uses this parser. It is exact to the last digit (integers only), and its errors contain
//! the remedy. Every value prints as text that parses to the same value.

use crate::error::SpecError;
use alloc::format;
use alloc::string::String;
use core::fmt;
use core::time::Duration;

/// A rate in bits per second, never zero. Prints as `20mbit`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Rate(u64);

impl Rate {
    /// Returns a rate of `bits` per second. Zero counts as one bit per second: for a link that sends nothing,
    /// use an outage.
    pub const fn from_bits_per_second(bits: u64) -> Self {
        Rate(if bits == 0 { 1 } else { bits })
    }

    /// Returns bits per second, at least 1.
    pub const fn bits_per_second(self) -> u64 {
        self.0
    }
}

/// A share in parts per billion: a probability if at most [`Ratio::ONE`]. Prints as `2%`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Ratio(u32);

impl Ratio {
    /// Nothing.
    pub const ZERO: Ratio = Ratio(0);
    /// The whole: 100 %.
    pub const ONE: Ratio = Ratio(1_000_000_000);

    /// Returns `ppb` parts per billion; 1,000,000,000 is 100 %.
    pub const fn from_ppb(ppb: u32) -> Self {
        Ratio(ppb)
    }

    /// Returns `percent` percent; values above 400 count as 400.
    pub const fn from_percent(percent: u32) -> Self {
        Ratio(if percent > 400 { 4_000_000_000 } else { percent * 10_000_000 })
    }

    /// Returns parts per billion.
    pub const fn ppb(self) -> u32 {
        self.0
    }

    /// Returns the difference to 100 %, at least zero.
    pub const fn complement(self) -> Ratio {
        Ratio(Ratio::ONE.0.saturating_sub(self.0))
    }

    /// Returns the share as a number, for reports.
    pub fn as_f64(self) -> f64 {
        f64::from(self.0) / 1e9
    }
}

/// A name of a unit, and its size in the smallest unit.
type Unit = (&'static str, u64);

const DURATIONS: &[Unit] = &[
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

const SIZES: &[Unit] = &[
    ("B", 1),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("KB", 1_000),
];

const RATES: &[Unit] = &[("bit", 1), ("kbit", 1_000), ("mbit", 1_000_000), ("gbit", 1_000_000_000)];

/// Parses a duration: `50ms`, `1.5s`, `100us`, `2min`, `0`. The resolution is one nanosecond, the maximum
/// about 584 years.
///
/// # Errors
/// If there is no number, no unit (except for `0`), an unknown unit, or a fraction of a nanosecond.
pub fn parse_duration(text: &str) -> Result<Duration, SpecError> {
    let (number, unit) = split_number(text);
    if unit.is_empty() && is_zero(number) {
        return Ok(Duration::ZERO);
    }
    let scale = scale_of(text, unit, DURATIONS, "a duration", "ns, us, ms, s, min or h", "50ms")?;
    Ok(Duration::from_nanos(decimal(text, number, scale, "a duration", "50ms")?))
}

/// Parses a size in bytes: `1500`, `30kB` (30,000), `64KiB` (65,536), `1MB`.
///
/// # Errors
/// If there is no number, an unknown unit, or a fraction of a byte.
pub fn parse_size(text: &str) -> Result<u64, SpecError> {
    let (number, unit) = split_number(text);
    let unit = if unit.is_empty() { "B" } else { unit };
    let scale = scale_of(text, unit, SIZES, "size", "B, kB, MB, GB, KiB, MiB or GiB", "30kB")?;
    decimal(text, number, scale, "a size", "30kB")
}

/// Parses a rate: `20mbit`, `256kbit`, `1.5mbit`, `1gbit` (per second, decimal multiples, any case).
///
/// # Errors
/// If there is no number, no unit, an unknown unit, a fraction of a bit, or zero.
pub fn parse_rate(text: &str) -> Result<Rate, SpecError> {
    let (number, unit) = split_number(text);
    let lower = unit.to_ascii_lowercase();
    if lower.ends_with("bps") {
        let remedy = format!("write {number}{}bit", lower.trim_end_matches("bps"));
        return Err(SpecError::new(text, format!("'{unit}' is ambiguous (bits or bytes)"), remedy));
    }
    let scale = scale_of(text, &lower, RATES, "rate", "bit, kbit, mbit or gbit", "20mbit")?;
    match decimal(text, number, scale, "a rate", "20mbit")? {
        0 => Err(SpecError::new(text, "a rate of 0 passes no packet", "use none for an unlimited link")),
        bits => Ok(Rate(bits)),
    }
}

/// Parses a probability: `2%` or `0.02`. The range is 0 to 100 %, with a resolution of one in a billion.
///
/// # Errors
/// If it is not a number, finer than one in a billion, or more than 100 %.
pub fn parse_ratio(text: &str) -> Result<Ratio, SpecError> {
    let ratio = parse_proportion(text)?;
    if ratio > Ratio::ONE {
        let remedy = if text.contains('%') {
            String::from("use 0% to 100%")
        } else {
            format!("did you mean {text}%?")
        };
        return Err(SpecError::new(text, format!("'{text}' is more than 100 %"), remedy));
    }
    Ok(ratio)
}

/// Parses a share that may exceed 100 %, such as an allowance of extra bytes: `25%`, `1.5`; at most 400 %.
///
/// # Errors
/// If it is not a number, finer than one in a billion, or more than 400 %.
pub fn parse_proportion(text: &str) -> Result<Ratio, SpecError> {
    let (number, unit) = split_number(text);
    let scale = match unit {
        "" => 1_000_000_000,
        "%" => 10_000_000,
        _ => {
            let (problem, remedy) = match unit.trim_start() {
                "%" => (String::from("a ratio has no space in it"), format!("write {number}% (no space)")),
                _ => (format!("a ratio has no unit '{unit}'"), String::from("write 2% or 0.02")),
            };
            return Err(SpecError::new(text, problem, remedy));
        }
    };
    let ppb = decimal(text, number, scale, "a ratio", "2%")?;
    match u32::try_from(ppb) {
        Ok(ppb) if ppb <= 4_000_000_000 => Ok(Ratio(ppb)),
        _ => {
            let remedy = match unit {
                "" => format!("did you mean {text}%?"),
                _ => String::from("use a smaller one"),
            };
            Err(SpecError::new(text, format!("'{text}' is too large for a ratio"), remedy))
        }
    }
}

/// A duration that prints in its largest fitting unit, for instance `1.5s`; [`parse_duration`] reads it back.
#[derive(Clone, Copy, Debug)]
pub struct ShowDuration(pub Duration);

impl fmt::Display for ShowDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX);
        let (scale, unit) = match nanos {
            0 => (1_000_000, "ms"),
            1..1_000 => (1, "ns"),
            1_000..1_000_000 => (1_000, "us"),
            1_000_000..1_000_000_000 => (1_000_000, "ms"),
            1_000_000_000.. => (1_000_000_000, "s"),
        };
        write_decimal(f, nanos, scale, unit)
    }
}

/// A size in bytes that prints in the largest decimal unit, for instance `30kB`; [`parse_size`] reads it
/// back.
#[derive(Clone, Copy, Debug)]
pub struct ShowSize(pub u64);

impl fmt::Display for ShowSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0..1_000 => write_decimal(f, self.0, 1, "B"),
            1_000..1_000_000 => write_decimal(f, self.0, 1_000, "kB"),
            1_000_000..1_000_000_000 => write_decimal(f, self.0, 1_000_000, "MB"),
            1_000_000_000.. => write_decimal(f, self.0, 1_000_000_000, "GB"),
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0..1_000 => write_decimal(f, self.0, 1, "bit"),
            1_000..1_000_000 => write_decimal(f, self.0, 1_000, "kbit"),
            1_000_000..1_000_000_000 => write_decimal(f, self.0, 1_000_000, "mbit"),
            1_000_000_000.. => write_decimal(f, self.0, 1_000_000_000, "gbit"),
        }
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_decimal(f, u64::from(self.0), 10_000_000, "%")
    }
}

/// Writes `value / scale` with as many decimals as necessary; `scale` is a power of ten.
fn write_decimal(f: &mut fmt::Formatter<'_>, value: u64, scale: u64, unit: &str) -> fmt::Result {
    let (whole, rest) = (value / scale, value % scale);
    if rest == 0 {
        return write!(f, "{whole}{unit}");
    }
    let digits = format!("{:0width$}", rest, width = scale.ilog10() as usize);
    write!(f, "{whole}.{}{unit}", digits.trim_end_matches('0'))
}

/// Returns the leading digits and point of a text, and the rest.
fn split_number(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    text.split_at(end)
}

fn is_zero(number: &str) -> bool {
    !number.is_empty() && number.bytes().all(|b| b == b'0')
}

fn scale_of(
    text: &str,
    unit: &str,
    units: &[Unit],
    what: &str,
    names: &str,
    example: &str,
) -> Result<u64, SpecError> {
    if let Some((_, scale)) = units.iter().find(|(name, _)| *name == unit) {
        return Ok(*scale);
    }
    if unit.is_empty() {
        return Err(SpecError::new(
            text,
            "the unit is missing",
            format!("use {names}, for instance {example}"),
        ));
    }
    if split_number(text).0.is_empty() {
        return Err(not_a_number(text, what, example));
    }
    // Units are case-sensitive (KiB and kB differ), so a wrong case gets a hint of its own.
    let same = units.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit));
    let remedy = match same {
        Some((name, _)) => format!("use {name}"),
        None => format!("use {names}"),
    };
    let kind = what.trim_start_matches("a ");
    Err(SpecError::new(text, format!("'{unit}' is not a unit of {kind}"), remedy))
}

fn not_a_number(text: &str, what: &str, example: &str) -> SpecError {
    let what = if what.starts_with("a ") { String::from(what) } else { format!("a {what}") };
    SpecError::new(
        text,
        format!("'{text}' is not {what}"),
        format!("write a number and a unit, for instance {example}"),
    )
}

/// Returns `number * scale`, exactly.
fn decimal(text: &str, number: &str, scale: u64, what: &str, example: &str) -> Result<u64, SpecError> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    if (whole.is_empty() && fraction.is_empty()) || !digits(fraction) {
        return Err(not_a_number(text, what, example));
    }
    let too_large =
        || SpecError::new(text, format!("'{text}' is too large for {what}"), "use a smaller number");
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| too_large())? };
    let fraction = fraction.trim_end_matches('0');
    let mut numerator = 0u128;
    let mut denominator = 1u128;
    for digit in fraction.bytes().take(20) {
        numerator = numerator * 10 + u128::from(digit - b'0');
        denominator *= 10;
    }
    let part = numerator * u128::from(scale);
    if fraction.len() > 20 || !part.is_multiple_of(denominator) {
        return Err(SpecError::new(
            text,
            format!("'{text}' is finer than can be represented"),
            "use fewer decimals",
        ));
    }
    let total = u128::from(whole) * u128::from(scale) + part / denominator;
    u64::try_from(total).map_err(|_| too_large())
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use proptest::prelude::*;

    #[test]
    fn units_are_parsed_in_common_notation() {
        assert_eq!(parse_duration("50ms").unwrap(), Duration::from_millis(50));
        assert_eq!(parse_duration("1.5s").unwrap(), Duration::from_millis(1500));
        assert_eq!(parse_duration("100us").unwrap(), Duration::from_micros(100));
        assert_eq!(parse_duration("0").unwrap(), Duration::ZERO);
        assert_eq!(parse_duration("2min").unwrap(), Duration::from_secs(120));
        assert_eq!(parse_size("30kB").unwrap(), 30_000);
        assert_eq!(parse_size("64KiB").unwrap(), 65_536);
        assert_eq!(parse_size("1MB").unwrap(), 1_000_000);
        assert_eq!(parse_size("1500").unwrap(), 1500);
        assert_eq!(parse_rate("20mbit").unwrap().bits_per_second(), 20_000_000);
        assert_eq!(parse_rate("1.5Mbit").unwrap().bits_per_second(), 1_500_000);
        assert_eq!(parse_ratio("2%").unwrap(), parse_ratio("0.02").unwrap());
        assert_eq!(parse_ratio("100%").unwrap(), Ratio::ONE);
        assert_eq!(parse_proportion("250%").unwrap().as_f64(), 2.5);
    }

    #[test]
    fn errors_contain_the_remedy() {
        let message = |r: Result<Rate, SpecError>| r.unwrap_err().to_string();
        assert_eq!(
            message(parse_rate("20mbt")),
            "'20mbt': 'mbt' is not a unit of rate; use bit, kbit, mbit or gbit"
        );
        assert_eq!(
            message(parse_rate("20")),
            "'20': the unit is missing; use bit, kbit, mbit or gbit, for instance 20mbit"
        );
        assert_eq!(
            message(parse_rate("20mbps")),
            "'20mbps': 'mbps' is ambiguous (bits or bytes); write 20mbit"
        );
        assert_eq!(
            message(parse_rate("fast")),
            "'fast' is not a rate; write a number and a unit, for instance 20mbit"
        );
        assert_eq!(
            message(parse_rate("0mbit")),
            "'0mbit': a rate of 0 passes no packet; use none for an unlimited link"
        );
        assert_eq!(parse_ratio("2").unwrap_err().to_string(), "'2' is more than 100 %; did you mean 2%?");
        assert_eq!(parse_ratio("101%").unwrap_err().to_string(), "'101%' is more than 100 %; use 0% to 100%");
        assert_eq!(parse_size("3kb").unwrap_err().to_string(), "'3kb': 'kb' is not a unit of size; use kB");
        assert_eq!(
            parse_duration("3.0000000001s").unwrap_err().to_string(),
            "'3.0000000001s' is finer than can be represented; use fewer decimals"
        );
        assert!(
            parse_duration("").is_err() && parse_duration("ms").is_err() && parse_duration("1.2.3s").is_err()
        );
        assert!(parse_duration("-5ms").is_err() && parse_size("99999999999999999999GB").is_err());
    }

    proptest! {
        #[test]
        fn every_value_reads_back_as_printed(n in any::<u64>(), ppb in 0u32..=4_000_000_000) {
            prop_assert_eq!(parse_duration(&ShowDuration(Duration::from_nanos(n)).to_string()).unwrap(), Duration::from_nanos(n));
            prop_assert_eq!(parse_size(&ShowSize(n).to_string()).unwrap(), n);
            let rate = Rate::from_bits_per_second(n);
            prop_assert_eq!(parse_rate(&rate.to_string()).unwrap(), rate);
            let ratio = Ratio::from_ppb(ppb);
            prop_assert_eq!(parse_proportion(&ratio.to_string()).unwrap(), ratio);
        }

        #[test]
        fn no_text_makes_a_unit_panic(text in "\\PC*") {
            let _ = (parse_duration(&text), parse_size(&text), parse_rate(&text), parse_ratio(&text));
        }
    }
}

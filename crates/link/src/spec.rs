//! The description of a link in the grammar of the command line: `--rtt 100ms --rate 20mbit/4mbit --loss 2%`.
//!
//! The same grammar serves flags, plans, tests and messages. A [`LinkSpec`] prints as canonical text that
//! parses to the same value. Every key except `rtt` and `seed` has a value for each direction. A plain value
//! is for both, a value after `down:` or `up:` is for one, and `A/B` sets down to A and up to B.
//!
//! | key | value |
//! |---|---|
//! | `rtt` | round-trip time without load; half of it in each direction |
//! | `delay` | one-way delay |
//! | `rate` | `20mbit`, `4mbit/256kbit`, `20mbit,5mbit@10s` (a step), `trace:FILE` (mahimahi), `none` |
//! | `queue` | `128kB` or `200p` before the rate; 128 kB unless given |
//! | `ecn-mark` | packets are marked if more than this is in the queue: `30kB`, `20p` |
//! | `loss` | `2%`, `after:1%,50%`, `ge:p=1%,r=50%,h=0%,k=100%`, `trace:FILE`, `list:3,7-9`, `outage:2s..4s,every=15s`, `policer:10mbit,100kB`; joined by `+` |
//! | `reorder` | `1%,5ms`: this share is held back that long |
//! | `duplicate` | share that arrives twice |
//! | `jitter` | extra delay, uniform from 0 to this; never reorders |
//! | `mtu` | `1500`; `1400,silent` sends no ICMP error for packets that are too big |
//! | `middlebox` | see [`MIDDLEBOXES`](crate::middlebox::MIDDLEBOXES); values add up, and `+` joins several |
//! | `seed` | any whole number |
//!
//! `none` removes a setting.

use crate::error::{SpecError, suggest};
use crate::loss::LossSpec;
use crate::middlebox::MiddleboxSpec;
use crate::queue::Depth;
use crate::rate::{RateSpec, parse_rate_trace};
use crate::units::{Ratio, ShowDuration, ShowSize, parse_duration, parse_ratio};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

mod grammar;

/// The keys of the grammar, in the order in which a link prints.
pub const KEYS: &[&str] = &[
    "rtt",
    "delay",
    "rate",
    "queue",
    "ecn-mark",
    "jitter",
    "loss",
    "reorder",
    "duplicate",
    "mtu",
    "middlebox",
    "seed",
];

/// Both directions of a link. The default is transparent: no delay, no limit, no loss.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LinkSpec {
    /// From the server's side (B) to the client's side (A).
    pub down: DirectionSpec,
    /// From the client's side (A) to the server's side (B).
    pub up: DirectionSpec,
    /// Seed of all randomness on this link; without one the driver chooses.
    pub seed: Option<u64>,
}

/// One direction of a link. The default is transparent.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DirectionSpec {
    /// Propagation delay, one way.
    pub delay: Duration,
    /// The bottleneck; `None` is an unlimited link, which has no queue.
    pub rate: Option<RateSpec>,
    /// Limit of the buffer before the bottleneck; [`Depth::DEFAULT`] if there is a rate and no other value.
    pub queue: Option<Depth>,
    /// Content of the buffer above which packets are marked Congestion Experienced.
    pub ecn_mark: Option<Depth>,
    /// Largest extra delay, uniform from zero.
    pub jitter: Option<Duration>,
    /// The causes of loss; a packet is lost if any of them loses it.
    pub losses: Vec<LossSpec>,
    /// Reordering; `None`: none.
    pub reorder: Option<Reorder>,
    /// Share of packets that arrive twice.
    pub duplicate: Option<Ratio>,
    /// Largest packet that passes.
    pub mtu: Option<Mtu>,
    /// The middleboxes, in the order from A to B; packets in the direction `down` pass them in reverse.
    pub middleboxes: Vec<MiddleboxSpec>,
}

/// The largest IP packet that passes, in the grammar of `--mtu 1500`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mtu {
    /// In bytes, IP header included; at least 68 (RFC 791).
    pub bytes: u16,
    /// True if larger packets vanish without an ICMP error (a black hole of path MTU discovery, RFC 2923).
    pub silent: bool,
}

impl LinkSpec {
    /// Sets the value of the flag `key` (without dashes). `middlebox` adds to the existing boxes; all other
    /// keys replace their value.
    ///
    /// # Errors
    /// Names the flag, the value, the problem and the remedy. After an error the link is unchanged.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), SpecError> {
        let mut next = self.clone();
        next.apply(key, value.trim()).map_err(|error| error.at(key, value))?;
        *self = next;
        Ok(())
    }

    /// Parses a whole link: `--rtt 100ms --rate 20mbit/4mbit --loss 2%` (or `--rtt=100ms`); double quotes
    /// keep a value with spaces together.
    ///
    /// # Errors
    /// That of [`LinkSpec::set`] for the first wrong flag.
    pub fn parse(text: &str) -> Result<LinkSpec, SpecError> {
        let mut link = LinkSpec::default();
        let mut words = grammar::words(text)?.into_iter();
        while let Some(word) = words.next() {
            let Some(flag) = word.strip_prefix("--") else {
                let problem = "a link is a list of flags";
                return Err(SpecError::new(&word, problem, "begin with --, for instance --rtt 100ms"));
            };
            match flag.split_once('=').filter(|(key, _)| KEYS.contains(key)) {
                Some((key, value)) => link.set(key, value)?,
                None => link.set(flag, &words.next().unwrap_or_default())?,
            }
        }
        Ok(link)
    }

    /// Returns the round trip of a small packet on the idle link, without jitter: the sum of both delays.
    pub fn base_rtt(&self) -> Duration {
        self.down.delay.saturating_add(self.up.delay)
    }

    /// Reads the files of `trace:FILE` with `read`, because this crate has no file access. Call it before
    /// [`Link::new`](crate::Link::new): a trace that is not loaded limits and loses nothing.
    ///
    /// # Errors
    /// If `read` fails, or the file does not have the format of its trace.
    pub fn load_traces(
        &mut self,
        read: &mut dyn FnMut(&str) -> Result<String, String>,
    ) -> Result<(), SpecError> {
        let mut load = |key: &str, path: &str| {
            read(path).map_err(|problem| {
                let value = format!("trace:{path}");
                SpecError::new(&value, format!("cannot read it: {problem}"), "name a readable file")
                    .at(key, &value)
            })
        };
        for direction in [&mut self.down, &mut self.up] {
            if let Some(RateSpec::Trace { path, opportunities }) = &mut direction.rate {
                let text = load("rate", path)?;
                let place = |error: SpecError| error.at("rate", &format!("trace:{path}"));
                *opportunities = Some(parse_rate_trace(path, &text).map_err(place)?);
            }
            for loss in &mut direction.losses {
                if let LossSpec::Trace { path, lost } = loss {
                    let text = load("loss", path)?;
                    let place = |error: SpecError| error.at("loss", &format!("trace:{path}"));
                    *lost = Some(grammar::parse_loss_trace(path, &text).map_err(place)?);
                }
            }
        }
        Ok(())
    }

    /// True if [`LinkSpec::load_traces`] has not read all traces yet.
    pub fn needs_traces(&self) -> bool {
        [&self.down, &self.up].into_iter().any(|direction| {
            matches!(direction.rate, Some(RateSpec::Trace { opportunities: None, .. }))
                || direction.losses.iter().any(|loss| matches!(loss, LossSpec::Trace { lost: None, .. }))
        })
    }

    fn apply(&mut self, key: &str, value: &str) -> Result<(), SpecError> {
        if !KEYS.contains(&key) {
            return Err(SpecError::new(value, format!("a link has no '{key}'"), suggest_key(key)));
        }
        if value.is_empty() {
            return Err(SpecError::new(value, "the value is missing", format!("write {}", example(key))));
        }
        let set = value != "none" && value != "off";
        match key {
            "rtt" => {
                let rtt = if set { parse_duration(value)? } else { Duration::ZERO };
                self.down.delay = rtt / 2;
                self.up.delay = rtt - rtt / 2;
                Ok(())
            }
            "seed" => {
                self.seed = if set { Some(grammar::parse_seed(value)?) } else { None };
                Ok(())
            }
            "middlebox" => self.add_middleboxes(value),
            _ => {
                let (down, up) = grammar::sides(value)?;
                down.map_or(Ok(()), |value| self.down.apply(key, value))?;
                up.map_or(Ok(()), |value| self.up.apply(key, value))
            }
        }
    }

    fn add_middleboxes(&mut self, value: &str) -> Result<(), SpecError> {
        let (down, up) = grammar::prefixed(value);
        let list = down.or(up).unwrap_or(value);
        if list == "none" || list == "off" {
            down.is_some().then(|| self.down.middleboxes.clear());
            up.is_some().then(|| self.up.middleboxes.clear());
            return Ok(());
        }
        for name in list.split(['+', '|']) {
            let middlebox = MiddleboxSpec::parse(name.trim())?;
            if middlebox.spans_both_ways() && (down.is_none() || up.is_none()) {
                let problem = format!("{middlebox} always acts in both directions");
                return Err(SpecError::new(value, problem, "leave out down: and up:"));
            }
            down.is_some().then(|| self.down.middleboxes.push(middlebox));
            up.is_some().then(|| self.up.middleboxes.push(middlebox));
        }
        Ok(())
    }
}

impl DirectionSpec {
    /// Applies a key with a value per direction; `none` removes it.
    fn apply(&mut self, key: &str, value: &str) -> Result<(), SpecError> {
        let set = value != "none" && value != "off";
        match key {
            "delay" => self.delay = if set { parse_duration(value)? } else { Duration::ZERO },
            "rate" => self.rate = set.then(|| grammar::parse_rate_spec(value)).transpose()?,
            "queue" => self.queue = set.then(|| grammar::parse_depth(value)).transpose()?,
            "ecn-mark" => self.ecn_mark = set.then(|| grammar::parse_mark(value)).transpose()?,
            "jitter" => self.jitter = set.then(|| parse_duration(value)).transpose()?,
            "loss" => self.losses = if set { grammar::parse_losses(value)? } else { Vec::new() },
            "reorder" => self.reorder = set.then(|| grammar::parse_reorder(value)).transpose()?,
            "duplicate" => self.duplicate = set.then(|| parse_ratio(value)).transpose()?,
            "mtu" => self.mtu = set.then(|| grammar::parse_mtu(value)).transpose()?,
            _ => return Err(SpecError::new(value, format!("a direction has no '{key}'"), suggest_key(key))),
        }
        Ok(())
    }

    fn shown(&self, key: &str) -> Option<String> {
        match key {
            "delay" => (!self.delay.is_zero()).then(|| ShowDuration(self.delay).to_string()),
            "rate" => self.rate.as_ref().map(ToString::to_string),
            "queue" => self.queue.map(|depth| depth.to_string()),
            "ecn-mark" => self.ecn_mark.map(|depth| depth.to_string()),
            "jitter" => self.jitter.map(|max| ShowDuration(max).to_string()),
            "loss" => {
                let models: Vec<String> = self.losses.iter().map(ToString::to_string).collect();
                (!models.is_empty()).then(|| models.join("+"))
            }
            "reorder" => self.reorder.map(|reorder| reorder.to_string()),
            "duplicate" => self.duplicate.map(|share| share.to_string()),
            "mtu" => self.mtu.map(|mtu| mtu.to_string()),
            _ => None,
        }
    }
}

fn suggest_key(key: &str) -> String {
    suggest("--", key.trim_start_matches('-'), KEYS)
}

fn example(key: &str) -> &'static str {
    match key {
        "rtt" => "--rtt 100ms",
        "delay" => "--delay 50ms",
        "rate" => "--rate 20mbit or --rate 4mbit/256kbit",
        "queue" => "--queue 128kB or --queue 200p",
        "ecn-mark" => "--ecn-mark 30kB",
        "jitter" => "--jitter 3ms",
        "loss" => "--loss 2% or --loss after:1%,50%",
        "reorder" => "--reorder 1%,5ms",
        "duplicate" => "--duplicate 0.1%",
        "mtu" => "--mtu 1500",
        "middlebox" => "--middlebox strip-option:34",
        _ => "--seed 1",
    }
}

impl fmt::Display for LinkSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut flags: Vec<(&str, String)> = Vec::new();
        for key in KEYS {
            match *key {
                "rtt" => flags.extend(self.shown_rtt().map(|rtt| ("rtt", rtt))),
                "delay" if self.shown_rtt().is_some() => {}
                "middlebox" => {
                    flags.extend(self.shown_middleboxes().into_iter().map(|text| ("middlebox", text)))
                }
                "seed" => flags.extend(self.seed.map(|seed| ("seed", seed.to_string()))),
                key => match (self.down.shown(key), self.up.shown(key)) {
                    (Some(down), Some(up)) if down == up => flags.push((key, down)),
                    (down, up) => {
                        flags.extend(down.map(|text| (key, format!("down:{text}"))));
                        flags.extend(up.map(|text| (key, format!("up:{text}"))));
                    }
                },
            }
        }
        if flags.is_empty() {
            // A transparent link prints this flag, because an empty text would look like a missing link.
            flags.push(("rtt", String::from("0ms")));
        }
        for (index, (key, value)) in flags.iter().enumerate() {
            let space = if index == 0 { "" } else { " " };
            let quote = if value.contains(char::is_whitespace) { "\"" } else { "" };
            write!(f, "{space}--{key} {quote}{value}{quote}")?;
        }
        Ok(())
    }
}

impl LinkSpec {
    /// Returns the delays as one round-trip time, if that parses to the same two delays.
    fn shown_rtt(&self) -> Option<String> {
        let rtt = self.base_rtt();
        let halves = self.down.delay == rtt / 2 && self.up.delay == rtt - rtt / 2;
        (halves && !rtt.is_zero()).then(|| ShowDuration(rtt).to_string())
    }

    /// Returns the middleboxes of both directions, each once, in an order that preserves both lists.
    fn shown_middleboxes(&self) -> Vec<String> {
        let mut shown = Vec::new();
        let (mut down, mut up) = (self.down.middleboxes.as_slice(), self.up.middleboxes.as_slice());
        loop {
            match (down.split_first(), up.split_first()) {
                (None, None) => return shown,
                (Some((a, rest_down)), Some((b, rest_up))) if a == b => {
                    shown.push(a.to_string());
                    (down, up) = (rest_down, rest_up);
                }
                // A box of both directions is listed when it is next in both lists.
                (Some((a, _)), Some((b, rest))) if a.spans_both_ways() => {
                    shown.push(format!("up:{b}"));
                    up = rest;
                }
                (Some((a, rest)), Some(_) | None) => {
                    shown.push(format!("down:{a}"));
                    down = rest;
                }
                (None, Some((b, rest))) => {
                    shown.push(format!("up:{b}"));
                    up = rest;
                }
            }
        }
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.bytes, if self.silent { ",silent" } else { "" })
    }
}

/// Reordering, in the grammar of `--reorder 1%,5ms`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reorder {
    /// Share of packets that are held back.
    pub share: Ratio,
    /// Additional delay of these packets.
    pub by: Duration,
}

impl Reorder {
    /// Default additional delay.
    pub const DEFAULT_BY: Duration = Duration::from_millis(5);
}

impl fmt::Display for Reorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.share, ShowDuration(self.by))
    }
}

impl fmt::Display for RateSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RateSpec::Constant(rate) => rate.fmt(f),
            RateSpec::Steps(steps) => {
                for (index, (after, rate)) in steps.iter().enumerate() {
                    match index {
                        0 => rate.fmt(f)?,
                        _ => write!(f, ",{rate}@{}", ShowDuration(*after))?,
                    }
                }
                Ok(())
            }
            RateSpec::Trace { path, opportunities: _ } => write!(f, "trace:{path}"),
        }
    }
}

impl fmt::Display for LossSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LossSpec::Independent(p) => p.fmt(f),
            LossSpec::After { p, q, gap } if *gap == LossSpec::BURST_GAP => write!(f, "after:{p},{q}"),
            LossSpec::After { p, q, gap } => write!(f, "after:{p},{q},{}", ShowDuration(*gap)),
            LossSpec::GilbertElliott { p, r, h, k } => write!(f, "ge:p={p},r={r},h={h},k={k}"),
            LossSpec::Trace { path, lost: _ } => write!(f, "trace:{path}"),
            LossSpec::Positions(ranges) => {
                f.write_str("list:")?;
                for (index, (first, last)) in ranges.iter().enumerate() {
                    let comma = if index == 0 { "" } else { "," };
                    match first == last {
                        true => write!(f, "{comma}{first}")?,
                        false => write!(f, "{comma}{first}-{last}")?,
                    }
                }
                Ok(())
            }
            LossSpec::Policer { rate, bucket } => write!(f, "policer:{rate},{}", ShowSize(*bucket)),
            LossSpec::Outage { from, to, every } => {
                write!(f, "outage:{}..{}", ShowDuration(*from), ShowDuration(*to))?;
                every.map_or(Ok(()), |every| write!(f, ",every={}", ShowDuration(every)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Rate;
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    fn parse(text: &str) -> LinkSpec {
        LinkSpec::parse(text).unwrap_or_else(|error| panic!("{error}"))
    }

    fn error(text: &str) -> String {
        LinkSpec::parse(text).expect_err(text).to_string()
    }

    #[test]
    fn the_default_is_transparent() {
        assert_eq!(parse(""), LinkSpec::default());
        assert_eq!(LinkSpec::default().to_string(), "--rtt 0ms");
        assert_eq!(parse("--rtt 0ms"), LinkSpec::default());
    }

    #[test]
    fn a_round_trip_is_halved_and_a_rate_pair_is_down_and_up() {
        let link = parse("--rtt 100ms --rate 4mbit/256kbit --queue 128kB");
        assert_eq!(link.down.delay, Duration::from_millis(50));
        assert_eq!(link.base_rtt(), Duration::from_millis(100));
        assert_eq!(link.down.rate, Some(RateSpec::Constant(Rate::from_bits_per_second(4_000_000))));
        assert_eq!(link.up.rate, Some(RateSpec::Constant(Rate::from_bits_per_second(256_000))));
        assert_eq!(link.up.queue, Some(Depth::Bytes(128_000)));
    }

    #[test]
    fn prefix_sets_one_direction() {
        let link = parse("--loss 2% --loss up:none --delay down:40ms --delay up:10ms --middlebox up:split");
        assert_eq!((link.down.losses.len(), link.up.losses.len()), (1, 0));
        assert_eq!((link.down.middleboxes.len(), link.up.middleboxes.len()), (0, 1));
        assert_eq!(link.base_rtt(), Duration::from_millis(50));
    }

    #[test]
    fn canonical_text_is_short() {
        for text in [
            "--rtt 100ms --rate 20mbit --loss 2%",
            "--rtt 100ms --loss after:1%,50%",
            "--rtt 28ms --rate down:5mbit --rate up:1mbit --queue 200p --ecn-mark 30kB --jitter 3ms",
            "--loss ge:p=1%,r=50%,h=0%,k=100%+outage:14s..14.2s,every=15s --reorder 1%,5ms --duplicate 0.1%",
            "--loss down:list:3,7-9 --mtu 1400,silent --seed 7",
            "--middlebox strip-option:34@synack --middlebox drop-syn-data --middlebox nat --middlebox up:split:536",
            "--rate down:trace:a/b.down --loss trace:losses.txt",
            "--delay down:40ms --delay up:10ms",
            "--loss \"trace:my losses.txt\"",
            "--rate down:20mbit,5mbit@10s,20mbit@12.5s --rate up:1mbit --loss policer:10mbit,100kB+1%",
        ] {
            assert_eq!(parse(text).to_string(), text);
        }
    }

    #[test]
    fn shorthands_are_understood() {
        assert_eq!(parse("--rtt=100ms"), parse("--rtt 100ms"));
        assert_eq!(parse("--reorder 1%"), parse("--reorder 1%,5ms"));
        assert_eq!(parse("--loss ge:p=2%"), parse("--loss ge:p=2%,r=98%,h=0%,k=100%"));
        assert_eq!(parse("--loss list:9,7,8,3"), parse("--loss list:3,7-9"));
        assert_eq!(parse("--middlebox split+strip-ga"), parse("--middlebox split|strip-ga"));
        assert_eq!(parse("--middlebox split --middlebox none"), LinkSpec::default());
        assert_eq!(parse("--loss 2%/1%").to_string(), "--loss down:2% --loss up:1%");
    }

    #[test]
    fn errors_name_the_flag_the_problem_and_the_remedy() {
        for (text, message) in [
            ("--rate 20mbt", "--rate 20mbt: 'mbt' is not a unit of rate; use bit, kbit, mbit or gbit"),
            (
                "--rate 20mbit/4mbt",
                "--rate 20mbit/4mbt: 'mbt' is not a unit of rate; use bit, kbit, mbit or gbit",
            ),
            ("--jiter 3ms", "--jiter 3ms: a link has no 'jiter'; did you mean --jitter?"),
            ("--rtt", "--rtt: the value is missing; write --rtt 100ms"),
            ("--rtt 100", "--rtt 100: the unit is missing; use ns, us, ms, s, min or h, for instance 50ms"),
            ("--loss 2", "--loss 2: '2' is more than 100 %; did you mean 2%?"),
            (
                "--loss aftr:1%,50%",
                "--loss aftr:1%,50%: 'aftr' is not a loss model; did you mean after? (or a ratio such as 2%)",
            ),
            (
                "--loss after:1%",
                "--loss after:1%: it takes the loss normally and the loss after a lost packet; write after:1%,50% \
                 (or after:1%,50%,500us with the burst gap)",
            ),
            (
                "--loss outage:4s..2s",
                "--loss outage:4s..2s: it ends before it begins; write outage:2s..4s or outage:14s..15s,every=15s",
            ),
            (
                "--loss list:0",
                "--loss list:0: '0' does not name packets; write list:3,7-9; the first packet is 1",
            ),
            (
                "--loss policer:10mbit",
                "--loss policer:10mbit: it takes a rate and the size of a bucket; write policer:10mbit,100kB",
            ),
            (
                "--loss policer:10mbit,1kB",
                "--loss policer:10mbit,1kB: a bucket of 1kB passes no packet of full size; use at least 1.5kB",
            ),
            ("--rate 20mbit,5mbit", "--rate 20mbit,5mbit: '5mbit' has no start time; write 20mbit,5mbit@10s"),
            (
                "--rate 20mbit,5mbit@10s,1mbit@10s",
                "--rate 20mbit,5mbit@10s,1mbit@10s: '1mbit@10s' does not begin after the previous step; write \
                 20mbit,5mbit@10s",
            ),
            ("--queue 200q", "--queue 200q: 'q' is not a unit of size; use B, kB, MB, GB, KiB, MiB or GiB"),
            (
                "--queue big",
                "--queue big: 'big' is neither a size nor a number of packets; write 128kB or 200p",
            ),
            (
                "--queue 0p",
                "--queue 0p: an empty queue passes no packet; use at least 1p; none gives the default",
            ),
            (
                "--mtu 20",
                "--mtu 20: an IP path cannot have an MTU of 20 bytes; use 68 to 65535 (1280 or more for IPv6)",
            ),
            (
                "--middlebox strip-opton:34",
                "--middlebox strip-opton:34: there is no middlebox 'strip-opton'; did you mean strip-option?",
            ),
            (
                "--middlebox strip-option",
                "--middlebox strip-option: it takes the kind of a TCP option; write its number, 2 to 255, for instance \
                 34 for Fast Open, or ga",
            ),
            (
                "--middlebox up:nat",
                "--middlebox up:nat: nat always acts in both directions; leave out down: and up:",
            ),
            (
                "--rate 1mbit/2mbit/3mbit",
                "--rate 1mbit/2mbit/3mbit: a slash separates down from up and may occur once; write DOWN/UP, down:VALUE or up:VALUE",
            ),
            ("rtt 5ms", "'rtt': a link is a list of flags; begin with --, for instance --rtt 100ms"),
        ] {
            assert_eq!(error(text), message);
        }
    }

    #[test]
    fn a_failed_flag_changes_nothing() {
        let mut link = parse("--rate 1mbit");
        assert!(link.set("rate", "2mbit/oops").is_err());
        assert_eq!(link, parse("--rate 1mbit"));
    }

    #[test]
    fn traces_are_read_through_the_caller() {
        let mut link = parse("--rate down:trace:rates --loss up:trace:losses");
        assert!(link.needs_traces());
        let mut read = |path: &str| match path {
            "rates" => Ok(String::from("1\n2\n")),
            _ => Ok(String::from("# lost: 1\n0 1 0\n")),
        };
        link.load_traces(&mut read).unwrap();
        assert!(!link.needs_traces());
        let missing = link.load_traces(&mut |_| Err(String::from("no such file"))).unwrap_err();
        assert_eq!(
            missing.to_string(),
            "--rate trace:rates: cannot read it: no such file; name a readable file"
        );
        let wrong = parse("--loss trace:l").load_traces(&mut |_| Ok(String::from("0\n2"))).unwrap_err();
        assert_eq!(
            wrong.to_string(),
            "--loss trace:l: line 2: '2' is neither 0 nor 1; write 1 for a lost packet and 0 for a delivered one"
        );
    }

    fn ratio() -> impl Strategy<Value = Ratio> {
        (0u32..=1_000_000_000).prop_map(Ratio::from_ppb)
    }

    fn duration() -> impl Strategy<Value = Duration> {
        (0u64..100_000_000_000).prop_map(Duration::from_nanos)
    }

    fn path() -> impl Strategy<Value = alloc::sync::Arc<str>> {
        "[a-z./][a-z ./]{0,10}[a-z]".prop_map(|path| path.as_str().into())
    }

    fn loss() -> impl Strategy<Value = LossSpec> {
        prop_oneof![
            ratio().prop_map(LossSpec::Independent),
            (ratio(), ratio(), duration()).prop_map(|(p, q, gap)| LossSpec::After { p, q, gap }),
            (ratio(), ratio(), ratio(), ratio()).prop_map(|(p, r, h, k)| LossSpec::GilbertElliott {
                p,
                r,
                h,
                k
            }),
            path().prop_map(|path| LossSpec::Trace { path, lost: None }),
            (1u64..u64::MAX, 1500u64..u64::MAX).prop_map(|(bits, bucket)| LossSpec::Policer {
                rate: Rate::from_bits_per_second(bits),
                bucket,
            }),
            vec(2u64..50, 1..5).prop_map(|gaps| {
                let mut at = 0;
                let ranges: Vec<(u64, u64)> = gaps
                    .iter()
                    .map(|gap| {
                        let first = at + gap;
                        at = first + gap % 3;
                        (first, at)
                    })
                    .collect();
                LossSpec::Positions(ranges.into())
            }),
            (duration(), 1u64..1_000_000, option::of(1u64..1_000_000)).prop_map(|(from, length, pause)| {
                let to = from + Duration::from_micros(length);
                let every = pause.map(|pause| Duration::from_micros(length + pause));
                LossSpec::Outage { from, to, every }
            }),
        ]
    }

    fn depth() -> impl Strategy<Value = Depth> {
        prop_oneof![(1u64..u64::MAX).prop_map(Depth::Bytes), (1u64..u64::MAX).prop_map(Depth::Packets)]
    }

    fn middlebox() -> impl Strategy<Value = MiddleboxSpec> {
        let texts = [
            "strip-option:34",
            "strip-option:254@synack",
            "strip-ga@rest",
            "drop-option:ga@syn",
            "rst-option:34",
            "clamp-mss:1200",
            "drop-syn-data",
            "strip-syn-data",
            "strip-syn-data:100",
            "rst-syn-data",
            "rewrite-payload",
            "rewrite-payload:0.5%",
            "corrupt:1%",
            "clear-reserved",
            "set-reserved",
            "drop-reserved",
            "set-ecn:not-ect",
            "set-ecn:ce",
            "coalesce",
            "coalesce:3000",
            "split",
            "split:536",
        ];
        proptest::sample::select(texts.to_vec()).prop_map(|text| MiddleboxSpec::parse(text).unwrap())
    }

    fn both_ways() -> impl Strategy<Value = Option<MiddleboxSpec>> {
        let texts =
            ["nat", "rewrite-seq", "rewrite-seq:nosack", "drop-after-handshake:all", "drop-unseen-ack"];
        option::of(
            proptest::sample::select(texts.to_vec()).prop_map(|text| MiddleboxSpec::parse(text).unwrap()),
        )
    }

    fn rate() -> impl Strategy<Value = RateSpec> {
        prop_oneof![
            (1u64..u64::MAX).prop_map(|bits| RateSpec::Constant(Rate::from_bits_per_second(bits))),
            path().prop_map(|path| RateSpec::Trace { path, opportunities: None }),
            vec((1u64..1_000_000_000, 1u64..u64::MAX), 2..5).prop_map(|steps| {
                let mut at = Duration::ZERO;
                let steps: Vec<(Duration, Rate)> = steps
                    .iter()
                    .enumerate()
                    .map(|(index, (gap, bits))| {
                        at += Duration::from_nanos(if index == 0 { 0 } else { *gap });
                        (at, Rate::from_bits_per_second(*bits))
                    })
                    .collect();
                RateSpec::Steps(steps.into())
            }),
        ]
    }

    prop_compose! {
        fn direction()(
            delay in duration(),
            rate in option::of(rate()),
            queue in option::of(depth()),
            ecn_mark in option::of(depth()),
            jitter in option::of(duration()),
            losses in vec(loss(), 0..3),
            reorder in option::of((ratio(), duration()).prop_map(|(share, by)| Reorder { share, by })),
            duplicate in option::of(ratio()),
            mtu in option::of((68u16.., any::<bool>()).prop_map(|(bytes, silent)| Mtu { bytes, silent })),
            middleboxes in vec(middlebox(), 0..4),
        ) -> DirectionSpec {
            DirectionSpec { delay, rate, queue, ecn_mark, jitter, losses, reorder, duplicate, mtu, middleboxes }
        }
    }

    proptest! {
        #[test]
        fn every_link_reads_back_as_printed(
            down in direction(),
            up in direction(),
            alike in any::<bool>(),
            seed in any::<Option<u64>>(),
            firewall in both_ways(),
            at in any::<[prop::sample::Index; 2]>(),
        ) {
            let mut link = LinkSpec { up: if alike { down.clone() } else { up }, down, seed };
            if let Some(firewall) = firewall {
                for (list, at) in [&mut link.down.middleboxes, &mut link.up.middleboxes].into_iter().zip(at) {
                    list.insert(at.index(list.len() + 1), firewall);
                }
            }
            let text = link.to_string();
            let again = LinkSpec::parse(&text).map_err(|error| TestCaseError::fail(format!("{text}: {error}")))?;
            prop_assert_eq!(&again, &link, "{}", text);
            prop_assert_eq!(again.to_string(), text);
        }

        #[test]
        fn no_text_makes_the_grammar_panic(key in proptest::sample::select(KEYS), value in "\\PC{0,40}") {
            let mut link = LinkSpec::default();
            if let Err(error) = link.set(key, &value) {
                prop_assert!(error.to_string().starts_with("--") && error.key() == Some(key));
            }
            let _ = LinkSpec::parse(&value);
        }

        #[test]
        fn no_near_miss_makes_the_grammar_panic(
            key in proptest::sample::select(KEYS),
            pieces in vec(proptest::sample::select(&[
                "1", "5ms", "%", ",", ":", "@", "policer:", "+", "/", "..", "ge:", "after:", "list:", "outage:", "trace:", "p=", "-", "p",
                "strip-option:", "split", "@syn", "down:", "up:", "kB", "mbit", "none", "every=", ".",
            ][..]), 0..8),
        ) {
            let mut link = LinkSpec::default();
            if link.set(key, &pieces.concat()).is_ok() && !link.needs_traces() {
                let text = link.to_string();
                prop_assert_eq!(LinkSpec::parse(&text), Ok(link), "{}", text);
            }
        }
    }
}

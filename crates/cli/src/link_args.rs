//! The flags that describe a link, the same in every subcommand that has one.
//!
//! This file only names the flags; the grammar of [`brisk_link::LinkSpec`] defines their values.

use brisk_link::LinkSpec;

use crate::failure::Failure;

/// The link of `demo` and `whatif` when no flag describes one: a distant region over a mediocre path.
const USUAL_LINK: &str = "--rtt 100ms --rate 20mbit --loss 2%";

/// Returns the end of the help of a subcommand whose link has a default.
pub(crate) fn help_with_default(examples: &str) -> String {
    format!(
        "Default link: {USUAL_LINK}. If you set any flag of the link, the others mean\nno delay, no loss and no limit of the \
         rate.\n\n{examples}"
    )
}

/// The flags of a link.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Link")]
pub(crate) struct LinkArgs {
    /// Round-trip time of the empty path, half of it each way: 100ms
    #[arg(long, value_name = "TIME", env = "BRISK_RTT")]
    rtt: Option<String>,
    /// One-way delay, instead of --rtt: 50ms
    #[arg(long, value_name = "TIME", env = "BRISK_DELAY", conflicts_with = "rtt")]
    delay: Option<String>,
    /// Rate, or rate down/up: 20mbit, 4mbit/256kbit
    #[arg(long, value_name = "RATE", env = "BRISK_RATE")]
    rate: Option<String>,
    /// Drop-tail queue in front of the bottleneck, in bytes or packets: 128kB, 200p [default: 128kB]
    #[arg(long, value_name = "SIZE", env = "BRISK_QUEUE")]
    queue: Option<String>,
    /// Loss: 2%, after:1%,50% (bursts), list:3,7, trace:FILE, down:2% (one direction); more in docs/links.md
    #[arg(long, value_name = "MODEL", env = "BRISK_LOSS")]
    loss: Option<String>,
    /// Share of delayed packets, and the delay: 1%,5ms
    #[arg(long, value_name = "SHARE,TIME", env = "BRISK_REORDER")]
    reorder: Option<String>,
    /// Share of duplicated packets: 0.1%
    #[arg(long, value_name = "SHARE", env = "BRISK_DUPLICATE")]
    duplicate: Option<String>,
    /// Additional delay that varies and keeps the order: 3ms
    #[arg(long, value_name = "TIME", env = "BRISK_JITTER")]
    jitter: Option<String>,
    /// Largest IP packet that passes: 1500
    #[arg(long, value_name = "BYTES", env = "BRISK_MTU")]
    mtu: Option<String>,
    /// Mark ECN-capable packets while the queue holds more than this: 32kB
    #[arg(long, value_name = "SIZE", env = "BRISK_ECN_MARK")]
    ecn_mark: Option<String>,
    /// A middlebox, repeatable: strip-option:34, drop-syn-data, coalesce, rewrite-seq; more in docs/links.md
    #[arg(long, value_name = "BOX", env = "BRISK_MIDDLEBOX")]
    middlebox: Vec<String>,
    /// Seed of all random numbers; the same seed gives the same numbers
    #[arg(long, value_name = "N", env = "BRISK_SEED")]
    seed: Option<u64>,
}

impl LinkArgs {
    /// Returns the link that the flags describe; they change `preset`. Trace files are read.
    pub(crate) fn spec(&self, preset: LinkSpec) -> Result<LinkSpec, Failure> {
        let mut spec = preset;
        let words = [
            ("rtt", &self.rtt),
            ("delay", &self.delay),
            ("rate", &self.rate),
            ("queue", &self.queue),
            ("loss", &self.loss),
            ("reorder", &self.reorder),
            ("duplicate", &self.duplicate),
            ("jitter", &self.jitter),
            ("mtu", &self.mtu),
            ("ecn-mark", &self.ecn_mark),
        ];
        let boxes = self.middlebox.iter().map(|value| ("middlebox", value));
        for (key, value) in
            words.into_iter().filter_map(|(key, value)| Some((key, value.as_ref()?))).chain(boxes)
        {
            spec.set(key, value).map_err(Failure::usage)?;
        }
        if self.queue.is_some() && spec.down.rate.is_none() && spec.up.rate.is_none() {
            return Err(Failure::usage("--queue has no effect without a rate; add --rate 20mbit"));
        }
        if self.seed.is_some() {
            spec.seed = self.seed;
        }
        spec.load_traces(&mut |path| std::fs::read_to_string(path).map_err(|error| error.to_string()))
            .map_err(Failure::usage)?;
        Ok(spec)
    }

    /// Returns the link of the flags, or the default link if no flag shapes one.
    pub(crate) fn spec_or_default(&self) -> Result<LinkSpec, Failure> {
        let preset = if self.is_empty() { USUAL_LINK } else { "" };
        self.spec(LinkSpec::parse(preset).map_err(Failure::usage)?)
    }

    /// True if no flag shapes the link (a seed alone shapes nothing).
    pub(crate) fn is_empty(&self) -> bool {
        let flags = [
            &self.rtt,
            &self.delay,
            &self.rate,
            &self.queue,
            &self.loss,
            &self.reorder,
            &self.duplicate,
            &self.jitter,
            &self.mtu,
            &self.ecn_mark,
        ];
        self.middlebox.is_empty() && flags.iter().all(|flag| flag.is_none())
    }
}

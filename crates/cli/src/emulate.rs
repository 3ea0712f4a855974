//! `brisk emulate`: a link in real time between two network namespaces or devices.

use std::fs::File;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use brisk_lab::emulate::{Between, Capture, Emulation, EndError, EndSpec, Outcome, Ticker};
use brisk_link::{LinkSpec, RateSpec};
use brisk_runtime::Prefix;

use crate::Common;
use crate::failure::Failure;
use crate::interrupt;
use crate::link_args::LinkArgs;
use crate::output::{print, print_line};

const EXAMPLES: &str = "\
Examples:
  brisk emulate --between red,blue --create --rtt 100ms --rate 20mbit --loss 2%
  ip netns exec red ping 10.77.0.2
  brisk emulate --a tun:a0=10.9.0.1/24 --b tun:b0@blue=10.9.0.2/24 --rtt 40ms --pcap link.pcapng

Stop it with Ctrl-C. A is the client's side: 'down' is the direction from B to A.";

/// Above this rate the machine, not the link, limits the traffic.
const FASTEST_BITS_PER_SECOND: u64 = 200_000_000;
/// The default seed.
const USUAL_SEED: u64 = 1;

/// The flags of `emulate`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    ends: Ends,
    #[command(flatten)]
    link: LinkArgs,
    /// Stop after this many seconds
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), env = "BRISK_SECONDS")]
    seconds: Option<u64>,
    /// Record the packets at both ends in pcapng
    #[arg(long, value_name = "FILE", env = "BRISK_PCAP")]
    pcap: Option<PathBuf>,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Ends")]
struct Ends {
    /// Two network namespaces; each gets a TUN device brisk0
    #[arg(long, value_name = "A,B", env = "BRISK_BETWEEN")]
    between: Option<Between>,
    /// Create the missing namespaces, and delete them at the end
    #[arg(long, requires = "between")]
    create: bool,
    /// Address at A instead of 10.77.0.1/24 and fd77::1/64; repeatable
    #[arg(long, value_name = "ADDRESS/LENGTH", requires = "between")]
    addr_a: Vec<Prefix>,
    /// Address at B instead of 10.77.0.2/24 and fd77::2/64; repeatable
    #[arg(long, value_name = "ADDRESS/LENGTH", requires = "between")]
    addr_b: Vec<Prefix>,
    /// A TUN device as end A: tun:NAME, tun:NAME@NAMESPACE, tun:NAME@NAMESPACE=ADDRESS/LENGTH,...
    #[arg(long, value_name = "END", conflicts_with = "between", requires = "b")]
    a: Option<EndSpec>,
    /// A TUN device as end B
    #[arg(long, value_name = "END", conflicts_with = "between", requires = "a")]
    b: Option<EndSpec>,
}

/// Runs the link until it is stopped and prints the result.
pub(crate) fn run(args: Args, common: &Common) -> Result<(), Failure> {
    let spec = args.link.spec(LinkSpec::default())?;
    let seed = spec.seed.unwrap_or(USUAL_SEED);
    warn_of_rates(&spec, common);
    let stop = interrupt::stop_flag()?;
    let _created = match &args.ends.between {
        Some(between) if args.ends.create => Some(between.create_missing().map_err(failure)?),
        _ => None,
    };
    let (a, b) = args.ends.specs()?;
    let open = |end: &EndSpec| end.open().map_err(|error| args.ends.hint(end, error));
    let mut emulation = Emulation::new(open(&a)?, open(&b)?, &spec, seed);
    if let Some(path) = &args.pcap {
        let failed = |error| Failure::failed(format!("--pcap {}: {error}", path.display()));
        let file = File::create(path).map_err(failed)?;
        emulation.capture(Capture::new(file).map_err(failed)?);
    }
    if !common.quiet {
        eprintln!("{}", introduction(&a, &b));
    }
    emulation.prioritise();
    let mut ticker = Ticker::default();
    let live = !common.quiet && (common.verbose > 0 || std::io::stderr().is_terminal());
    let mut every_second = |progress: brisk_lab::emulate::Progress<'_>| {
        if live {
            eprintln!("{}", ticker.line(&progress));
        }
    };
    let limit = args.seconds.map(Duration::from_secs);
    let outcome = emulation
        .run(limit, &stop, &mut every_second)
        .map_err(|error| Failure::failed(format!("the link ended: {error}")))?;
    if live && stop.load(Ordering::Relaxed) {
        // The terminal has echoed ^C.
        eprintln!();
    }
    report(&outcome, &spec, seed, args.json)
}

fn report(outcome: &Outcome, spec: &LinkSpec, seed: u64, json: bool) -> Result<(), Failure> {
    match json {
        true => print_line(&outcome.to_json(spec, seed).to_string()),
        false => print(&outcome.to_text(spec)),
    }
}

impl Ends {
    fn specs(&self) -> Result<(EndSpec, EndSpec), Failure> {
        match (&self.between, &self.a, &self.b) {
            (Some(between), ..) => Ok(between.ends(self.addr_a.clone(), self.addr_b.clone())),
            (None, Some(a), Some(b)) => Ok((a.clone(), b.clone())),
            (None, ..) => Err(Failure::usage("write the two ends: --between RED,BLUE, or --a and --b")),
        }
    }
}

impl Ends {
    /// Returns the failure of opening an end. If a namespace is missing, the text names the flag that creates
    /// it.
    fn hint(&self, end: &EndSpec, error: EndError) -> Failure {
        let failure = failure(error);
        match self.between.is_some() && end.namespace_is_missing() {
            true => Failure { message: format!("{}; --create creates it", failure.message), ..failure },
            false => failure,
        }
    }
}

fn failure(error: EndError) -> Failure {
    match error {
        EndError::Grammar(_) | EndError::Pair(_) | EndError::Address(_) => Failure::usage(error),
        EndError::Open(_) => Failure::failed(error),
    }
}

fn warn_of_rates(spec: &LinkSpec, common: &Common) {
    let fixed = |rate: &Option<RateSpec>| match rate {
        Some(RateSpec::Constant(rate)) => rate.bits_per_second(),
        Some(RateSpec::Steps(steps)) => {
            steps.iter().map(|(_, rate)| rate.bits_per_second()).max().unwrap_or(0)
        }
        Some(RateSpec::Trace { .. }) | None => 0,
    };
    let fastest = fixed(&spec.down.rate).max(fixed(&spec.up.rate));
    if fastest > FASTEST_BITS_PER_SECOND && !common.quiet {
        eprintln!(
            "brisk: warning: above about 200mbit this machine may limit the traffic; check the timing error in the report"
        );
    }
}

fn introduction(a: &EndSpec, b: &EndSpec) -> String {
    let place = |end: &EndSpec| match &end.namespace {
        Some(namespace) => format!("{} in {namespace}", end.device),
        None => end.device.clone(),
    };
    let mut text = format!("A: {}    B: {}", place(a), place(b));
    if let (Some(namespace), Some(Prefix { address, .. })) = (&a.namespace, b.addresses.first()) {
        text.push_str(&format!("\ntry: ip netns exec {namespace} ping {address}"));
    }
    text
}

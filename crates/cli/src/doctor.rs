//! `brisk doctor`: probes the path to a backend; reports usable mechanisms and the expected gain.
//!
//! It opens the hop several times, as a frontend does. It reports round-trip time, loss and packet size;
//! whether the path carries data on the SYN and brisk's TCP options; and whether the key is correct. It sends
//! nothing to an origin. A simulation computes the duration of a response over such a path (feature `lab`).

use brisk_gateway::Settings;
use brisk_gateway::doctor::{Examination, Finding, Measured, Report, examine};
use brisk_gateway::settings::{HopSettings, check_host_port};
use brisk_packet_io::xdp::{self, Survey};
use brisk_runtime::DeviceSpec;

use crate::addresses::address_of;
use crate::failure::Failure;
use crate::flags::OfPair;
use crate::frontend::{Stacks, any_udp};
use crate::hop_args::{self, RoleArgs};
use crate::{Common, output, service};

#[cfg(feature = "lab")]
mod expected;

const EXAMPLES: &str = "\
Examples:
  brisk doctor origin.example:7443 --key-file key
  brisk doctor origin.example:7443 --key-file key --probes 500";

/// The flags of `doctor`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The backend: HOST:PORT
    #[arg(value_name = "PEER", value_parser = check_host_port)]
    peer: String,
    /// Number of probe requests over the hop
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    probes: u32,
    #[command(flatten)]
    role: RoleArgs<OfPair>,
}

/// Examines the path; status 1 if the backend cannot be used.
pub(crate) fn run(args: &Args, common: &Common) -> Result<(), Failure> {
    let settings = args.role.over_file(Settings::default())?;
    let hop = hop_args::protection_towards_backend(&settings.hop)?;
    let (tcp, fast_open) = hop_args::mechanisms(&settings.hop)?;
    let quiet = common.quiet;
    if let Some(Ok(DeviceSpec::Xdp { interface })) = settings.hop.device.as_deref().map(str::parse) {
        output::print(&before_opening(&interface, &xdp::survey(&interface).map_err(Failure::failed)?))?;
    }
    service::run(async move {
        let address = address_of(&args.peer).await?;
        let Stacks { endpoint, packet, devices } =
            Stacks::open(&settings.hop, any_udp(address), &service::one_core()?)?;
        let spec = devices.backend(&args.peer, address, &settings.hop)?;
        let examination = Examination {
            endpoint: endpoint.clone(),
            packet,
            backend: spec,
            hop,
            tcp,
            fast_open,
            probes: args.probes,
            patience: settings.limits.connect_timeout(),
        };
        if !quiet {
            eprintln!("probing {} ({address}) with {} requests ...", args.peer, args.probes);
        }
        let report = examine(&examination).await;
        output::print(&text(&report))?;
        if let Some(measured) = report.measured() {
            for state in hop_args::states(&settings.hop, &examination.tcp, fast_open) {
                output::print(&entry(state.name, &format!("{} ({})", state.state, state.reason)))?;
            }
            #[cfg(feature = "lab")]
            output::print(&expected::lines(&measured, &settings.hop)?)?;
            #[cfg(not(feature = "lab"))]
            output::print(&entry("expected", &whatif(&measured, &settings.hop)?))?;
        }
        // Lets the last packets leave.
        let _ = tokio::time::timeout(service::DRAIN_WAIT, endpoint.wait_idle()).await;
        match report.usable() {
            true => Ok(()),
            false => Err(Failure::failed(format!("{}: the hop cannot be used; see above", args.peer))),
        }
    })
}

/// Returns the flags of a link like the measured path.
fn link_flags(Measured { rtt, loss }: &Measured) -> String {
    format!("--rtt {}us --loss {:.2}%", rtt.as_micros().max(1), 100.0 * loss)
}

/// Returns the command that simulates a response over such a path, with our TCP alone and with the mechanisms
/// in use.
fn whatif(measured: &Measured, hop: &HopSettings) -> Result<String, Failure> {
    let (link, allowance) = (link_flags(measured), &hop.max_overhead());
    let name = hop_args::profile(hop)?.name;
    Ok(format!("brisk whatif {link} --flow 30kB --arms \"tcp; {name}\" --max-overhead {allowance}"))
}

/// Formats a line without a finding.
fn entry(name: &str, text: &str) -> String {
    format!("    {name:<16} {text}\n")
}

fn text(report: &Report) -> String {
    report.findings().iter().map(line).collect()
}

fn line(finding: &Finding) -> String {
    let mark = if finding.is_good { "ok " } else { "!! " };
    format!("{mark} {:<16} {}\n", finding.check, finding.result)
}

/// Reports the obstacles of an `xdp:` device, even if the device cannot be opened because of them.
fn before_opening(interface: &str, survey: &Survey) -> String {
    let Survey { refused, program, mtu, kind } = survey;
    let af_xdp = match refused {
        None => "available to this program".to_owned(),
        Some(error) => error.to_string(),
    };
    let there = match program {
        None => format!("none at {interface}"),
        Some(number) => format!(
            "number {number} is at {interface}, from a running or a dead process (`ip link set dev {interface} xdp off` \
             removes the program of a dead process)"
        ),
    };
    let frames = match kind.as_deref() {
        Some("veth") => format!("MTU {mtu}; a veth: segments with unfinished checksums are accepted"),
        _ if survey.fits() => format!("MTU {mtu}"),
        _ => format!("MTU {mtu} is too large: set at most {}, or use packet:", xdp::MAX_MTU),
    };
    let findings = [
        Finding { check: "af_xdp", result: af_xdp, is_good: refused.is_none() },
        Finding { check: "xdp program", result: there, is_good: program.is_none() },
        Finding { check: "frames", result: frames, is_good: survey.fits() },
    ];
    findings.iter().map(line).collect()
}

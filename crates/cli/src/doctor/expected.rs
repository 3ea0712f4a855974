//! The completion time to expect over the path that `brisk doctor` has measured, from the simulator.

use std::sync::atomic::AtomicBool;

use brisk_gateway::doctor::Measured;
use brisk_gateway::settings::HopSettings;
use brisk_lab::compare::{ArmReport, Comparison, compare};
use brisk_lab::scenario::Scenario;
use brisk_lab::sizes::Sizes;
use brisk_link::LinkSpec;
use brisk_runtime::profile::Profile;

use super::{entry, link_flags, whatif};
use crate::failure::Failure;
use crate::hop_args;

/// Bytes of the response.
const RESPONSE: u64 = 30_000;
/// Simulated transactions, and their seed. They take a few milliseconds.
const TRANSACTIONS: u64 = 2000;
const SEED: u64 = 1;

/// Returns two lines: the time of a response with brisk's TCP alone and with the mechanisms in use, and the
/// command that simulates it.
pub(super) fn lines(measured: &Measured, hop: &HopSettings) -> Result<String, Failure> {
    let comparison = Comparison {
        link: LinkSpec::parse(&link_flags(measured)).map_err(Failure::usage)?,
        request: 100,
        sizes: Sizes::Fixed(RESPONSE),
        sizes_text: String::new(),
        page: None,
        scenario: Scenario::default(),
        n: TRANSACTIONS,
        established: false,
        seed: SEED,
        arms: vec![Profile::parse("tcp").map_err(Failure::usage)?, hop_args::profile(hop)?],
    };
    let report = compare(&comparison, &|_| (), &AtomicBool::new(false)).map_err(Failure::failed)?;
    let [without, with] = report.arms.as_slice() else { return Ok(String::new()) };
    let times = |arm: &ArmReport| format!("p50 {:.1} ms, p99 {:.1} ms", arm.ms.p50, arm.ms.p99);
    let text = format!("30 kB on a new connection: {}; with plain TCP {}", times(with), times(without));
    Ok(entry("expected", &text) + &entry("", &whatif(measured, hop)?))
}

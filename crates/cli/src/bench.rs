//! `brisk bench`: processor time of brisk's TCP compared with the kernel's.

use std::sync::atomic::Ordering;

use brisk_lab::bench::end::End;
use brisk_lab::bench::report::RowReport;
use brisk_lab::bench::rows::{Row, rows};
use brisk_lab::bench::{Bench, allowed_cores};
use brisk_packet_io::privileges::{has_net_admin, has_sys_admin};

use crate::Common;
use crate::failure::Failure;
use crate::interrupt;
use crate::output::{print, print_line};

const EXAMPLES: &str = "\
Examples:
  brisk bench
  brisk bench --rows rr64,rr64-tfo --rounds 9 --json
  brisk bench --rows send,receive --cores 2

Both ends are processes on one core, in two new network namespaces. Creating these needs root, or
`unshare -Urnm brisk bench`. Run nothing else on the machine meanwhile.";

/// The flags of `bench`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Only these rows, separated by commas
    #[arg(long, value_name = "ROW,...", value_delimiter = ',', value_parser = row, env = "BRISK_ROWS")]
    rows: Vec<String>,
    /// Measurements of each row, the kernel and brisk in turns
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Duration of each measurement, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    seconds: f64,
    /// Cores: 1 for both ends on the same one, 2 for one each
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    cores: u8,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
    /// Act as one end of a measurement; the program starts itself with this flag
    #[arg(long, hide = true, value_name = "JSON")]
    end: Option<String>,
}

fn row(name: &str) -> Result<String, String> {
    let names: Vec<&str> = rows().iter().map(|row| row.name).collect();
    match names.contains(&name) {
        true => Ok(name.to_owned()),
        false => Err(format!("unknown row; the rows are: {}", names.join(", "))),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "write a number of seconds, for instance 0.5".to_owned())?;
    match (0.01..=600.0).contains(&seconds) {
        true => Ok(seconds),
        false => Err("write 0.01 to 600".to_owned()),
    }
}

/// Measures and prints a table.
pub(crate) fn run(args: Args, common: &Common) -> Result<(), Failure> {
    if let Some(end) = args.end {
        let end: End =
            serde_json::from_str(&end).map_err(|error| Failure::usage(format!("--end: {error}")))?;
        return end.run().map_err(Failure::failed);
    }
    let allowed = allowed_cores().map_or(1, |cores| cores.len());
    let asked_for = |row: &Row| match args.rows.is_empty() {
        true => row.cores().is_none_or(|cores| cores <= allowed),
        false => args.rows.iter().any(|name| name == row.name),
    };
    let rows: Vec<Row> = rows().into_iter().filter(asked_for).collect();
    if !has_net_admin() || !has_sys_admin() {
        for row in &rows {
            eprintln!("{}: skipped: network namespaces need CAP_SYS_ADMIN and CAP_NET_ADMIN", row.name);
        }
        return Err(Failure::failed(
            "nothing could be measured: run it as root, or `unshare -Urnm brisk bench`",
        ));
    }
    let program = std::env::current_exe()
        .map_err(|error| Failure::failed(format!("cannot find the program itself: {error}")))?;
    let (rounds, cores) = (args.rounds.into(), args.cores.into());
    let bench = Bench { program, rows, rounds, seconds: args.seconds, cores };
    let stop = interrupt::stop_flag()?;
    let mut on_progress = |row: &RowReport| {
        if !common.quiet {
            eprintln!("{}: {:.2} ({})", row.name, row.cpu.median, row.what);
        }
    };
    let report = bench.run(&stop, &mut on_progress).map_err(Failure::failed)?;
    match args.json {
        true => {
            let text = serde_json::to_string(&report).map_err(|error| Failure::failed(error.to_string()))?;
            print_line(&text)?;
        }
        false => print(&report.to_text())?,
    }
    match stop.load(Ordering::Relaxed) {
        true => Err(Failure::failed("interrupted; the table shows the rows measured so far")),
        false => Ok(()),
    }
}

//! Cost of TCP: processor time of both ends for the same work, measured alternately with the kernel's TCP and
//! with brisk's.
//!
//! Each measurement has two processes, a client and a server, on the same core or on one core each. The cost
//! is that of both ends, because one end may save work that the other must then do. The kernel charges its
//! packet work to the running process, which is one of the two if no other process uses the core. A row shows
//! the median of the rounds' ratios, so that changes of the machine's speed between rounds have no effect.
//!
//! | module | content |
//! |---|---|
//! | [`mod@self`] | the order of the measurements |
//! | [`rows`] | the rows of the table |
//! | [`end`] | the process at either end |
//! | `fixture` | namespaces, cores and costs |
//! | [`report`] | medians, one table |

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use brisk_packet_io::OpenError;
use thiserror::Error;

pub mod end;
mod fixture;
pub mod report;
pub mod rows;
mod talk;

use end::{Done, End};
pub use fixture::allowed_cores;
use fixture::{Fixture, Process, Usage};
use report::{BenchReport, RowReport};
use rows::{Row, Setup, Topology};

/// Warm-up before a measurement, seconds: the TCP learns the path, fetches cookies and fills caches.
const WARM_UP: f64 = 0.3;

/// The measurements to run.
#[derive(Clone, Debug)]
pub struct Bench {
    /// Path of this program, which `run` starts as `bench --end` for each end.
    pub program: PathBuf,
    /// The rows.
    pub rows: Vec<Row>,
    /// Number of rounds; at least 1.
    pub rounds: usize,
    /// Duration of each measurement, seconds.
    pub seconds: f64,
    /// 1 to run both ends on one core, 2 for one core each.
    pub cores: usize,
}

/// Reason why nothing could be measured.
#[derive(Debug, Error)]
pub enum BenchError {
    /// The system refused the namespaces or devices.
    #[error("{0}")]
    Open(#[from] OpenError),
    /// The system refused a process or file.
    #[error("cannot measure on this machine: {0}")]
    Io(#[from] io::Error),
    /// An end failed.
    #[error("one end of the measurement {0}")]
    End(String),
    /// More cores were requested than the process may use.
    #[error("--cores {asked}: this process may use {allowed}")]
    Cores {
        /// The requested number.
        asked: usize,
        /// The available number.
        allowed: usize,
    },
}

/// The cost of one TCP in one row.
#[derive(Clone, Copy, PartialEq, Debug, serde::Serialize)]
pub struct Cost {
    /// Units of work per second.
    pub per_second: f64,
    /// Processor time of both ends per unit, ns. If the client is on another host: busy time of the server's
    /// core per unit.
    pub both: f64,
    /// Processor time of the server per unit, ns.
    pub server: f64,
    /// User-mode processor time of the server per unit, ns, with the resolution of the kernel's ticks.
    pub server_user: f64,
    /// Packets that passed the interfaces of the client's host in both directions, per unit. A super-packet
    /// counts as one.
    pub packets: f64,
    /// Number of times that a thread of either end slept and was woken, per unit.
    pub wakeups: f64,
    /// Processor time of both ends / cores / elapsed time: 1 if no end waited.
    pub busy: f64,
    /// Transactions that failed.
    pub failed: u64,
}

impl Bench {
    /// Measures all rows, until `stop` is set; calls `on_progress` with the report of each row.
    ///
    /// # Errors
    /// [`BenchError`] if the system refuses.
    pub fn run(
        &self,
        stop: &AtomicBool,
        on_progress: &mut dyn FnMut(&RowReport),
    ) -> Result<BenchReport, BenchError> {
        let mut cores = allowed_cores()?;
        let asked = self.rows.iter().filter_map(Row::cores).max().unwrap_or(1).max(self.cores);
        if asked > cores.len() {
            return Err(BenchError::Cores { asked, allowed: cores.len() });
        }
        // The first cores usually serve interrupts, so the last ones are used.
        cores.reverse();
        let mut reports = Vec::new();
        for row in &self.rows {
            let mut rounds = Vec::new();
            for _ in 0..self.rounds {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let baseline = self.measure(row, row.baseline, &cores)?;
                rounds.push((baseline, self.measure(row, row.candidate, &cores)?));
            }
            if rounds.is_empty() {
                break;
            }
            let report = RowReport::new(row, rounds);
            on_progress(&report);
            reports.push(report);
        }
        Ok(BenchReport { rounds: self.rounds, seconds: self.seconds, cores: self.cores, rows: reports })
    }

    /// Measures one TCP in its own namespaces and processes.
    fn measure(&self, row: &Row, setup: Setup, cores: &[usize]) -> Result<Cost, BenchError> {
        let fixture = Fixture::new(self.program.clone(), row.topology, cores)?;
        let place = if setup.server_is_near() { &fixture.near } else { &fixture.far };
        let start = |(end, first, count): (End, usize, usize)| {
            fixture.start(place, &end, &cores[first..first + count])
        };
        let servers = setup.servers().into_iter().map(start).collect::<Result<Vec<_>, _>>()?;
        let routed = row.topology == Topology::Routed;
        let used = setup.cores().unwrap_or(if routed { 2 } else { self.cores });
        let start = |(n, end): (usize, End)| {
            let core = if setup.cores().is_some() { n } else { used - 1 };
            fixture.start(&fixture.near, &end, &cores[core..=core])
        };
        let clients = setup.clients(row.work).into_iter().enumerate().map(start);
        let mut clients = clients.collect::<Result<Vec<_>, _>>()?;
        work_together(&mut clients, WARM_UP.min(self.seconds))?;
        let before = [usage_of(&clients)?, usage_of(&servers)?];
        let packets_before = clients[0].packets()?;
        let core_before = fixture::busy(cores[0])?;
        let done = work_together(&mut clients, self.seconds)?;
        let core = fixture::busy(cores[0])?.saturating_sub(core_before);
        let packets = clients[0].packets()? - packets_before;
        let after = [usage_of(&clients)?, usage_of(&servers)?];
        let wakeups = [0, 1].map(|end| after[end].wakeups - before[end].wakeups);
        let units = done.iter().map(|done| done.units as f64).sum::<f64>();
        let [client, server] = [0, 1].map(|end| (after[end].total - before[end].total) as f64);
        let seconds = done.iter().map(|done| done.seconds).fold(0.0, f64::max);
        Ok(Cost {
            per_second: units / seconds,
            both: if routed { core.as_nanos() as f64 } else { client + server } / units,
            server: server / units,
            server_user: 1e9 * (after[1].user - before[1].user) / units,
            packets: packets as f64 / units,
            wakeups: wakeups.iter().sum::<u64>() as f64 / units,
            busy: (client + server) / 1e9 / seconds / used as f64,
            failed: done.iter().map(|done| done.failed).sum(),
        })
    }
}

/// Makes all clients work at the same time.
fn work_together(clients: &mut [Process], seconds: f64) -> Result<Vec<Done>, BenchError> {
    clients.iter_mut().try_for_each(|client| client.begin(seconds))?;
    clients.iter_mut().map(Process::done).collect()
}

/// Returns the sums of processor time and wake-ups so far.
fn usage_of(processes: &[Process]) -> io::Result<Usage> {
    let mut sum = Usage::default();
    for process in processes {
        let Usage { total, user, wakeups } = process.usage()?;
        sum.total += total;
        sum.user += user;
        sum.wakeups += wakeups;
    }
    Ok(sum)
}

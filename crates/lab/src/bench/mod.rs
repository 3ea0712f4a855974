//! Cost of TCP: processor time of both ends for the same work above the kernel's TCP and above ours, in
//! turns.
//!
//! Each measurement has two processes, a client and a server, on one core (or on one each). Both ends count:
//! work that one TCP saves may fall to the other. The kernel's packet work is charged to the process that
//! runs at the moment, which is one of the two, as long as nobody else keeps their core busy. A row compares
//! medians over rounds of the ratio of a round, so that a machine that becomes slower meanwhile does not
//! count.
//!
//! | module | what it is |
//! |---|---|
//! | [`mod@self`] | the order of things |
//! | [`rows`] | what is measured |
//! | [`end`] | the process at either end |
//! | `peer` | a server on smoltcp, in builds with the feature `peers` |
//! | `fixture` | namespaces, cores and costs |
//! | [`report`] | medians, one table |

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use brisk_packet_io::OpenError;
use thiserror::Error;

pub mod end;
mod fixture;
#[cfg(feature = "peers")]
mod peer;
pub mod report;
pub mod rows;
mod talk;

use end::{Done, End};
pub use fixture::allowed_cores;
use fixture::{Fixture, Process, Usage};
use report::{BenchReport, RowReport};
use rows::{Row, Topology, Way};

/// Both TCPs learn the path, fetch cookies and fill caches for so long before it counts, seconds.
const WARM: f64 = 0.3;

/// The measurements to make.
#[derive(Clone, Debug)]
pub struct Bench {
    /// The program whose `bench --end` is an end.
    pub program: PathBuf,
    /// Which rows.
    pub rows: Vec<Row>,
    /// How often each; at least 1.
    pub rounds: usize,
    /// How long each time, seconds.
    pub seconds: f64,
    /// 1: both ends on one core; 2: on one each.
    pub cores: usize,
}

/// Why nothing could be measured.
#[derive(Debug, Error)]
pub enum BenchError {
    /// The namespaces or devices were refused.
    #[error("{0}")]
    Open(#[from] OpenError),
    /// A process or file was refused.
    #[error("cannot measure on this machine: {0}")]
    Io(#[from] io::Error),
    /// An end does not work.
    #[error("one end of the measurement {0}")]
    End(String),
    /// There are not so many cores.
    #[error("--cores {asked}: this process may use {allowed}")]
    Cores {
        /// That were asked for.
        asked: usize,
        /// That there are.
        allowed: usize,
    },
}

/// One measurement of one way.
#[derive(Clone, Copy, PartialEq, Debug, serde::Serialize)]
pub struct Cost {
    /// Units of the work a second.
    pub per_second: f64,
    /// Processor time of both ends a unit, ns; in rows whose client is another host, of the server's core.
    pub both: f64,
    /// Of the server, ns a unit.
    pub server: f64,
    /// Of the server in its own code, ns a unit, as finely as the kernel's ticks are.
    pub server_user: f64,
    /// Processor time of both ends / cores / time: 1 if nobody waited for anything.
    pub busy: f64,
    /// Transactions that failed.
    pub failed: u64,
}

impl Bench {
    /// Measures row after row, until all are done or `stop` is set; `look` hears of each that is done.
    ///
    /// # Errors
    /// [`BenchError`] if the machine refuses.
    pub fn run(
        &self,
        stop: &AtomicBool,
        look: &mut dyn FnMut(&RowReport),
    ) -> Result<BenchReport, BenchError> {
        let mut cores = allowed_cores()?;
        let asked = self.rows.iter().filter_map(Row::cores).max().unwrap_or(1).max(self.cores);
        if asked > cores.len() {
            return Err(BenchError::Cores { asked, allowed: cores.len() });
        }
        // The first ones serve interrupts.
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
            look(&report);
            reports.push(report);
        }
        Ok(BenchReport { rounds: self.rounds, seconds: self.seconds, cores: self.cores, rows: reports })
    }

    /// One way, in namespaces and processes of its own.
    fn measure(&self, row: &Row, way: Way, cores: &[usize]) -> Result<Cost, BenchError> {
        let fixture = Fixture::new(self.program.clone(), row.topology, cores)?;
        let place = if way.server_is_near() { &fixture.near } else { &fixture.far };
        let start = |(end, first, count): (End, usize, usize)| {
            fixture.start(place, &end, &cores[first..first + count])
        };
        let servers = way.servers(row.work).into_iter().map(start).collect::<Result<Vec<_>, _>>()?;
        let routed = row.topology == Topology::Routed;
        let used = way.cores().unwrap_or(if routed { 2 } else { self.cores });
        let start = |(n, end): (usize, End)| {
            let core = if way.cores().is_some() { n } else { used - 1 };
            fixture.start(&fixture.near, &end, &cores[core..=core])
        };
        let clients = way.clients(row.work).into_iter().enumerate().map(start);
        let mut clients = clients.collect::<Result<Vec<_>, _>>()?;
        work_together(&mut clients, WARM.min(self.seconds))?;
        let before = [usage_of(&clients)?, usage_of(&servers)?];
        let core_before = fixture::busy(cores[0])?;
        let done = work_together(&mut clients, self.seconds)?;
        let core = fixture::busy(cores[0])?.saturating_sub(core_before);
        let after = [usage_of(&clients)?, usage_of(&servers)?];
        let units = done.iter().map(|done| done.units as f64).sum::<f64>();
        let [client, server] = [0, 1].map(|end| (after[end].total - before[end].total) as f64);
        let seconds = done.iter().map(|done| done.seconds).fold(0.0, f64::max);
        Ok(Cost {
            per_second: units / seconds,
            both: if routed { core.as_nanos() as f64 } else { client + server } / units,
            server: server / units,
            server_user: 1e9 * (after[1].user - before[1].user) / units,
            busy: (client + server) / 1e9 / seconds / used as f64,
            failed: done.iter().map(|done| done.failed).sum(),
        })
    }
}

/// Lets all clients work at the same time.
fn work_together(clients: &mut [Process], seconds: f64) -> Result<Vec<Done>, BenchError> {
    clients.iter_mut().try_for_each(|client| client.begin(seconds))?;
    clients.iter_mut().map(Process::done).collect()
}

/// Returns the processor time of all of them so far.
fn usage_of(processes: &[Process]) -> io::Result<Usage> {
    let mut sum = Usage::default();
    for process in processes {
        let Usage { total, user } = process.usage()?;
        sum.total += total;
        sum.user += user;
    }
    Ok(sum)
}

//! A demonstration on one machine, in real time, over real sockets and without privileges. It has clients, a
//! frontend, a long and lossy link, a backend and an origin. All arms (compared profiles) run at the same
//! time.
//!
//! ```text
//! clients --kernel TCP--> frontend ==brisk TCP in UDP==> emulated link ==> backend --kernel TCP--> origin
//! ```
//!
//! A warm-up precedes the counted requests, because a gateway pair in use knows its path. The report also has
//! the completion times of a simulation of the same link.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use brisk_link::LinkSpec;
use brisk_runtime::profile::Profile;
use brisk_sim::transaction::TransactionError;
use serde::Serialize;
use thiserror::Error;
use tokio::net::TcpListener;

use crate::compare::{ArmReport, Comparison, LinkReport, Repaired, Totals, Workload, compare};
use crate::emulate::Outcome;
use crate::http;
use crate::scenario::Scenario;
use crate::sizes::Sizes;
use crate::statistics::Sample;

mod fixture;
mod load;

use fixture::Fixture;
use load::{gap, lock, request, request_text};

/// Parameters of a demonstration.
#[derive(Clone, Debug)]
pub struct Demo {
    /// The emulated link between the gateways.
    pub link: LinkSpec,
    /// Profiles to compare. They run at the same time, each over a link of its own with the same seed.
    pub arms: Vec<Profile>,
    /// Bytes of each response.
    pub response_bytes: u64,
    /// The same size as the user wrote it (`20kB`), for the report.
    pub size_text: String,
    /// Requests per second to each arm.
    pub per_second: f64,
    /// Number of transactions of the simulation.
    pub simulated: u64,
    /// Duration of the warm-up, in which each arm learns its path.
    pub warm_up: Duration,
    /// Time for which counted requests are sent; then the demonstration waits for the last responses.
    pub duration: Duration,
    /// Seed of all random numbers.
    pub seed: u64,
}

/// An intermediate result.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// True during the warm-up.
    pub warming_up: bool,
    /// Time since the start of the warm-up, or after it since the start of the counted requests.
    pub elapsed: Duration,
    /// The arms.
    pub arms: Vec<ArmSnapshot>,
}

/// An intermediate result of one arm.
#[derive(Clone, Debug)]
pub struct ArmSnapshot {
    /// Its name.
    pub name: String,
    /// Requests with a response.
    pub answered: u64,
    /// Requests in progress.
    pub outstanding: u64,
    /// Packets that the link lost, in both directions.
    pub lost: u64,
    /// Completion times so far, ms.
    pub times: Sample,
}

/// Report of a demonstration: a row for each profile.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct DemoReport {
    /// The emulated link between the gateways.
    pub link: LinkReport,
    /// Sizes of the requests and responses.
    pub workload: Workload,
    /// Requests per second to each arm.
    pub per_second: f64,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Time from the first counted request until no response was awaited any more, seconds.
    pub seconds: f64,
    /// The arms.
    pub arms: Vec<DemoArm>,
}

/// The result of one arm.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct DemoArm {
    /// The measurements.
    #[serde(flatten)]
    pub measured: ArmReport,
    /// Result of the simulation for the same link, ms.
    pub simulated_ms: Expected,
    /// True if the emulated link delivered its packets on time.
    pub valid: bool,
    /// Says in words how punctual the link was.
    pub verdict: String,
    /// Lateness of packets at the link, 99th percentile, microseconds.
    pub lateness_p99_us: f64,
    /// Packets that the link lost, in both directions.
    pub lost: u64,
    /// Reason of the last failure, if a request failed.
    pub last_failure: Option<String>,
}

/// Quantiles of completion time, ms.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Expected {
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
}

/// Why the demonstration failed.
#[derive(Debug, Error)]
pub enum DemoError {
    /// The system refused a socket, thread or device.
    #[error("cannot set up the demonstration on this machine: {0}")]
    Io(#[from] io::Error),
    /// The simulation failed.
    #[error(transparent)]
    Simulation(#[from] TransactionError),
}

/// Maximum time to wait for outstanding responses.
const LINGER: Duration = Duration::from_secs(5);
/// Interval of the calls of `on_progress` while requests are sent.
const TICK: Duration = Duration::from_millis(500);

impl Demo {
    /// Runs the demonstration for its duration or until `stop` resolves. Calls `on_progress` with
    /// intermediate results two to four times a second while requests are sent or awaited.
    ///
    /// # Errors
    /// If the simulation fails, or the system refuses a socket or thread.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn run(
        &self,
        stop: impl Future<Output = ()>,
        on_progress: &mut dyn FnMut(&Snapshot),
    ) -> Result<DemoReport, DemoError> {
        let expected = self.simulate()?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let origin_at = listener.local_addr()?;
        let origin = tokio::spawn(http::serve(listener));
        let mut fixtures = Vec::new();
        for arm in &self.arms {
            fixtures.push(Fixture::start(arm.clone(), &self.link, self.seed, origin_at).await?);
        }
        let mut stop = pin!(stop);
        let mut on_warm_up =
            |snapshot: &Snapshot| on_progress(&Snapshot { warming_up: true, ..snapshot.clone() });
        let began = Instant::now();
        let warm_up = (self.warm_up, "warm-up");
        let stopped = self.load(&fixtures, began, warm_up, stop.as_mut(), &mut on_warm_up).await;
        if !self.warm_up.is_zero() {
            linger(&fixtures, began, &mut on_warm_up).await;
            // The link updates its counters only once a second.
            tokio::time::sleep(Duration::from_secs(1)).await;
            fixtures.iter_mut().for_each(Fixture::begin_to_count);
        }
        let began = Instant::now();
        if !stopped {
            self.load(&fixtures, began, (self.duration, "load"), stop.as_mut(), on_progress).await;
        }
        linger(&fixtures, began, on_progress).await;
        origin.abort();
        let elapsed = began.elapsed();
        let mut arms = Vec::new();
        for (fixture, simulated_ms) in fixtures.into_iter().zip(expected) {
            arms.push(self.report(fixture, simulated_ms)?);
        }
        Ok(DemoReport {
            link: LinkReport::of(&self.link),
            workload: Workload {
                flow: self.size_text.clone(),
                request_bytes: self.request_bytes(),
                established: false,
                n: arms.iter().map(|arm| arm.measured.n).max().unwrap_or_default(),
            },
            per_second: self.per_second,
            seed: self.seed,
            seconds: elapsed.as_millis() as f64 / 1000.0,
            arms,
        })
    }

    fn simulate(&self) -> Result<Vec<Expected>, DemoError> {
        let comparison = Comparison {
            link: self.link.clone(),
            request: self.request_bytes(),
            sizes: Sizes::Fixed(self.response_bytes + http::response_head(self.response_bytes).len() as u64),
            sizes_text: self.size_text.clone(),
            page: None,
            scenario: Scenario::default(),
            n: self.simulated,
            established: false,
            seed: self.seed,
            arms: self.arms.clone(),
        };
        let report = compare(&comparison, &|_| {}, &AtomicBool::new(false))?;
        let expected = |arm: ArmReport| Expected { p50: arm.ms.p50, p95: arm.ms.p95, p99: arm.ms.p99 };
        Ok(report.arms.into_iter().map(expected).collect())
    }

    fn request_bytes(&self) -> u32 {
        request_text(self.response_bytes).len() as u32
    }

    /// Sends requests to every arm at the same times, for `duration` from `began`. The times are random
    /// numbers of the given stream. Returns true if `stop` ended the load.
    async fn load(
        &self,
        fixtures: &[Fixture],
        began: Instant,
        (duration, stream): (Duration, &str),
        mut stop: Pin<&mut impl Future<Output = ()>>,
        on_progress: &mut dyn FnMut(&Snapshot),
    ) -> bool {
        let mut rng = brisk_link::seeds::rng(self.seed, stream);
        let mut tick = tokio::time::interval(TICK);
        let mut next = began;
        let end = began + duration;
        while next < end {
            tokio::select! {
                () = &mut stop => return true,
                _ = tick.tick() => on_progress(&snapshot(fixtures, began)),
                () = tokio::time::sleep_until(next.into()) => {
                    for fixture in fixtures {
                        tokio::spawn(request(fixture.frontend, self.response_bytes, fixture.tally.clone()));
                    }
                    next += gap(self.per_second, &mut rng);
                }
            }
        }
        false
    }

    fn report(&self, fixture: Fixture, simulated_ms: Expected) -> Result<DemoArm, DemoError> {
        let (name, hop, tally) =
            (fixture.arm.name.clone(), fixture.hop.clone(), lock(&fixture.tally).clone());
        let before = fixture.before();
        let outcome = fixture.stop()?;
        let times = Sample::new(tally.times);
        let Outcome { up, down, late, validity, .. } = outcome;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let totals = Totals {
            n: tally.begun,
            wire_bytes: up.offered_bytes + down.offered_bytes - before.wire_bytes,
            payload_bytes: tally.payload,
            timeouts: read(&hop.timeouts),
            retransmits: read(&hop.retransmits),
            hit: None,
            repaired: Repaired {
                probe: read(&hop.repaired_by_probe),
                parity: read(&hop.repaired_by_parity),
                copy: read(&hop.repaired_by_copy),
            },
        };
        Ok(DemoArm {
            measured: ArmReport::new(&name, &times, self.link.base_rtt(), totals),
            simulated_ms,
            valid: validity.is_valid(),
            verdict: validity.to_string(),
            lateness_p99_us: late.p99,
            lost: up.dropped() + down.dropped() - before.lost,
            last_failure: tally.last_failure.map(|seen| match hop.gave_up() {
                Some(why) => format!("{seen} ({why})"),
                None => seen,
            }),
        })
    }
}

/// Waits for outstanding requests. `began` is the start of their load.
async fn linger(fixtures: &[Fixture], began: Instant, on_progress: &mut dyn FnMut(&Snapshot)) {
    let end = Instant::now() + LINGER;
    loop {
        let now = snapshot(fixtures, began);
        on_progress(&now);
        if Instant::now() >= end || now.arms.iter().all(|arm| arm.outstanding == 0) {
            break;
        }
        tokio::time::sleep(TICK / 2).await;
    }
    // Gives the last connections time to close: the gateways count a connection only when it has ended.
    tokio::time::sleep(TICK).await;
}

fn snapshot(fixtures: &[Fixture], began: Instant) -> Snapshot {
    let arms = fixtures.iter().map(|fixture| {
        let tally = lock(&fixture.tally);
        let (up, down) = *fixture.link.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        ArmSnapshot {
            name: fixture.arm.name.clone(),
            answered: tally.times.len() as u64,
            outstanding: tally.outstanding(),
            lost: (up.dropped() + down.dropped()).saturating_sub(fixture.before().lost),
            times: Sample::new(tally.times.clone()),
        }
    });
    Snapshot { warming_up: false, elapsed: began.elapsed(), arms: arms.collect() }
}

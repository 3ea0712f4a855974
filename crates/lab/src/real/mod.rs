//! Contestants: the kernel's TCP, a connection pool and gateways. They run in real time, one after the other
//! over the same emulated link with the same seed, under the same load.
//!
//! ```text
//! namespace A                                         namespace B
//! load --> [the contestant's left command] ==> link ==> [its right command] --> origin
//! ```
//!
//! | module | content |
//! |---|---|
//! | [`mod@self`] | the order of the measurements |
//! | [`contestant`] | the contestants |
//! | `traffic` | origin, load and reference flow |
//! | `processes` | commands in namespaces, and their cost |
//! | [`report`] | one table |

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use brisk_link::LinkSpec;
use brisk_packet_io::OpenError;
use brisk_packet_io::netns::Namespace;
use thiserror::Error;

use crate::emulate::{Between, Emulation, EndError, Outcome};
use crate::fixture::{Scratch, shell};

pub mod contestant;
mod processes;
pub mod report;
mod traffic;

use contestant::{Contestant, Kernel, Places};
use processes::Processes;
use report::{ContestantReport, RealReport};
use traffic::{FetchRequest, Load, Origin};

/// Address of the origin in namespace B.
pub(crate) const ORIGIN: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 77, 0, 2)), 80);
/// Requests of each contestant that are not counted. They get cookies and fill the path memory of both ends.
const UNCOUNTED_REQUESTS: u64 = 10;
/// Maximum time until a contestant's first response.
const START_LIMIT: Duration = Duration::from_secs(20);

/// Parameters of the measurements.
#[derive(Clone, Debug)]
pub struct Real {
    /// Name of the report.
    pub name: String,
    /// The link.
    pub link: LinkSpec,
    /// Seed of the link, which is the same for every contestant.
    pub seed: u64,
    /// Bytes of each response.
    pub bytes: u64,
    /// Requests of each contestant.
    pub n: u64,
    /// Number of concurrent requests.
    pub parallel: usize,
    /// Duration of a bulk flow of each contestant next to one of the kernel's; zero: no such flow.
    pub beside: Duration,
    /// The contestants, in this order.
    pub contestants: Vec<Contestant>,
}

/// Reason why nothing could be measured.
#[derive(Debug, Error)]
pub enum RealError {
    /// The system refused the namespaces or devices.
    #[error("{0}")]
    Open(#[from] OpenError),
    /// The system refused the link's ends.
    #[error("{0}")]
    End(#[from] EndError),
    /// The system refused a socket, thread or file.
    #[error("cannot set up contestants on this machine: {0}")]
    Io(#[from] io::Error),
}

impl Real {
    /// Runs the contestants one after the other, until all are done or `stop` is set. Calls `on_progress`
    /// with the name of each contestant that begins.
    ///
    /// # Errors
    /// [`RealError`] if the system refuses something. The failure of a contestant is a result.
    pub fn run(&self, stop: &AtomicBool, on_progress: &mut dyn FnMut(&str)) -> Result<RealReport, RealError> {
        let mut reports = Vec::new();
        for contestant in &self.contestants {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            on_progress(&contestant.name);
            reports.push(self.measure(contestant, stop)?);
        }
        Ok(RealReport::new(self, reports))
    }

    /// Measures one contestant in its own namespaces.
    fn measure(&self, contestant: &Contestant, stop: &AtomicBool) -> Result<ContestantReport, RealError> {
        let name = |side: char| format!("brisk-{}-{side}", std::process::id());
        let between = Between { a: name('a'), b: name('b') };
        let _created = between.create_missing()?;
        let (a, b) = between.ends(Vec::new(), Vec::new());
        let mut emulation = Emulation::new(a.open()?, b.open()?, &self.link, self.seed);
        let (left, right) = (Namespace::open(&between.a)?, Namespace::open(&between.b)?);
        for side in [&left, &right] {
            side.run(|| contestant.kernel.set_up())??;
        }
        let scratch = Scratch::make("real")?;
        let stop_link = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let link = scope.spawn(|| {
                emulation.prioritise();
                emulation.run(None, &stop_link, &mut |_| {})
            });
            let origin = right.run(|| Origin::start(ORIGIN))?;
            let fixture =
                Fixture { real: self, contestant, left: &left, right: &right, scratch: &scratch.0, stop };
            let measured = origin.map_err(RealError::from).and_then(|_origin| fixture.measure());
            stop_link.store(true, Ordering::Relaxed);
            let outcome: Outcome =
                link.join().unwrap_or_else(|_| Err(io::Error::other("the thread of the link panicked")))?;
            Ok(ContestantReport::new(contestant, self, measured?, &outcome))
        })
    }
}

#[derive(Debug, Default)]
pub(crate) struct Measured {
    /// Times of successful requests, ms.
    pub(crate) times: Vec<f64>,
    pub(crate) failed: u64,
    pub(crate) last_failure: Option<String>,
    /// IP bytes that A and B sent for the counted requests.
    pub(crate) wire: (u64, u64),
    /// Processor time of the contestant's own processes for the counted requests.
    pub(crate) cpu: Option<Duration>,
    /// Bytes of the contestant's bulk flow and of the reference flow.
    pub(crate) beside: Option<(u64, u64)>,
}

struct Fixture<'a> {
    real: &'a Real,
    contestant: &'a Contestant,
    left: &'a Namespace,
    right: &'a Namespace,
    scratch: &'a Path,
    stop: &'a AtomicBool,
}

impl Fixture<'_> {
    fn measure(&self) -> Result<Measured, RealError> {
        let Contestant { left, right, kernel, .. } = self.contestant;
        let places = Places { directory: self.scratch.to_owned(), ..Places::default() };
        let failed =
            |why: String| Measured { failed: self.real.n, last_failure: Some(why), ..Measured::default() };
        let mut processes = Processes::default();
        for (namespace, command) in [(self.right, right), (self.left, left)] {
            let Some(command) = command else { continue };
            let words = places.fill(command)?;
            match namespace.run(|| processes.start(&words, self.scratch))? {
                Ok(()) => {}
                Err(error) => return Ok(failed(format!("{}: {error}", words[0]))),
            }
        }
        let to = if left.is_some() { places.listen } else { ORIGIN };
        let asked = FetchRequest { to, bytes: self.real.bytes, fast_open: kernel.fast_open };
        if let Err(why) = self.left.run(|| Load::first(&asked, START_LIMIT, &mut processes))? {
            return Ok(failed(why));
        }
        let load = |n| self.left.run(|| Load::run(&asked, n, self.real.parallel, self.stop));
        load(UNCOUNTED_REQUESTS)??;
        let (wire, cpu) = (self.sent()?, processes.cpu());
        let Load { times, failed, last_failure } = load(self.real.n)??;
        // The traffic includes segments that close connections and acknowledge the last bytes.
        std::thread::sleep(2 * self.real.link.base_rtt() + Duration::from_millis(200));
        let (wire_now, cpu_now) = (self.sent()?, processes.cpu());
        let beside = match self.real.beside {
            Duration::ZERO => None,
            takes => Some(self.left.run(|| Load::beside(&asked, ORIGIN, takes, self.stop))??),
        };
        Ok(Measured {
            times,
            failed,
            last_failure,
            wire: (wire_now.0 - wire.0, wire_now.1 - wire.1),
            cpu: (!processes.is_empty()).then(|| cpu_now.saturating_sub(cpu)),
            beside,
        })
    }

    /// Returns the IP bytes that both ends have sent into the link so far.
    fn sent(&self) -> Result<(u64, u64), RealError> {
        Ok((self.left.run(processes::sent_by_device)??, self.right.run(processes::sent_by_device)??))
    }
}

impl Kernel {
    /// Configures the kernel's TCP in this namespace.
    fn set_up(&self) -> io::Result<()> {
        for (key, value) in [
            // Cookies for client and server, and Fast Open on every listener.
            ("tcp_fastopen", if self.fast_open { "1027" } else { "0" }),
            ("tcp_no_metrics_save", "0"),
        ] {
            let path = format!("/proc/sys/net/ipv4/{key}");
            let failed = |error| io::Error::other(format!("{path} = {value}: {error}"));
            std::fs::write(&path, value).map_err(failed)?;
        }
        // The sysctl of a namespace rejects congestion controls that unprivileged users may not choose, but a
        // route accepts them.
        let words = ["route", "change", "10.77.0.0/24", "dev", "brisk0", "proto", "kernel", "scope", "link"];
        shell("ip", &[&words[..], &["congctl", &self.congestion]].concat())
    }
}

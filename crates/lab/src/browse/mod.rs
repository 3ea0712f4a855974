//! A page in a real Chromium over an emulated link, through a gateway pair for each arm. The arms take turns,
//! one load each.
//!
//! | module | content |
//! |---|---|
//! | [`mod@self`] | the order of the loads |
//! | `site`, `origin` | the page as files, and their web server |
//! | `fixture` | the gateways and addresses in each namespace |
//! | `driver` | Chromium through chromedriver |
//! | [`report`] | page-load times and first paints with intervals |

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use brisk_gateway::{Hop, HopKey, KeyRing};
use brisk_link::LinkSpec;
use brisk_packet_io::OpenError;
use brisk_packet_io::netns::Namespace;
use brisk_runtime::profile::Profile;
use thiserror::Error;
use tokio::sync::watch;

use crate::emulate::{Between, Emulation, EndError, Outcome};
use crate::fixture::Scratch;
use crate::pages::outline::Outline;

mod driver;
mod fixture;
mod origin;
pub mod report;
mod site;

use driver::Driver;
use fixture::HopTally;
use origin::Tally;
use report::{Load, PageReport};
use site::{Site, host_name};

/// Time limit of a page load.
const LONGEST_LOAD: Duration = Duration::from_secs(120);
/// Pause between two loads, so that the queues of the link are empty again.
const PAUSE: Duration = Duration::from_millis(300);

/// The page, the link, the profiles and the number of loads.
#[derive(Clone, Debug)]
pub struct Browse {
    /// The page.
    pub page: Outline,
    /// The link between the gateways.
    pub link: LinkSpec,
    /// Seed of the link.
    pub seed: u64,
    /// The arms to compare; gains are relative to the first.
    pub arms: Vec<Profile>,
    /// Counted loads of each arm. Before them an uncounted load lets the arm learn the path.
    pub loads: u32,
}

/// Reason why pages could not be loaded.
#[derive(Debug, Error)]
pub enum BrowseError {
    /// A program is not installed.
    #[error(
        "{program}: {error}; `brisk lab browse` needs Chromium and chromedriver (Debian: apt install chromium chromium-driver)"
    )]
    Missing {
        /// The program.
        program: String,
        /// Error of the attempt to start the program.
        error: io::Error,
    },
    /// The system refused the namespaces or devices.
    #[error("{0}")]
    Open(#[from] OpenError),
    /// The system refused the link's ends.
    #[error("{0}")]
    End(#[from] EndError),
    /// The system refused a socket, thread or file.
    #[error("cannot set up the page on this machine: {0}")]
    Io(#[from] io::Error),
    /// The browser or its driver failed.
    #[error("chromedriver: {0}")]
    Driver(String),
}

/// A completed load.
#[derive(Clone, Debug)]
pub struct Progress<'a> {
    /// Name of the arm.
    pub arm: &'a str,
    /// Number of the load, from 1; load 0 is not counted.
    pub number: u32,
    /// The measurement, or the reason of its failure.
    pub result: &'a Result<Load, String>,
}

impl Browse {
    /// Loads the page until all loads are complete or `stop` is set; calls `on_progress` after every load.
    /// Stores a picture of the page in `picture`.
    ///
    /// # Errors
    /// [`BrowseError`] if nothing could be measured.
    pub fn run(
        &self,
        picture: Option<&Path>,
        stop: &AtomicBool,
        on_progress: &mut (dyn FnMut(&Progress<'_>) + Send),
    ) -> Result<PageReport, BrowseError> {
        // A missing program is reported before anything is created.
        let (browser, chromedriver) = (driver::find("chromium")?, driver::find("chromedriver")?);
        let name = |side: char| format!("brisk-{}-{side}", std::process::id());
        let between = Between { a: name('a'), b: name('b') };
        let _created = between.create_missing()?;
        let (a, b) = between.ends(Vec::new(), Vec::new());
        let emulation = Emulation::new(a.open()?, b.open()?, &self.link, self.seed);
        let site = Arc::new(Site::of(&self.page));
        let hop = Hop::Sealed(KeyRing::of(HopKey::generate()?));
        let tally = Arc::new(Tally::default());
        let (stop_link, (stop_gateways, stopped)) = (AtomicBool::new(false), watch::channel(false));
        let (ready, is_ready) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let link = scope.spawn(|| run_link(emulation, &stop_link));
            let origin_side = || {
                let result = self.origin_side(&between.b, &hop, &site, &tally, stopped.clone(), &ready);
                // The receiver waits only for the first result.
                let _ = ready.send(result);
            };
            scope.spawn(origin_side);
            let result = match is_ready.recv().map_err(io::Error::other)? {
                Ok(()) => {
                    let browser_side =
                        Measurement { browse: self, hop: &hop, site: &site, tally: &tally, stop, picture };
                    Namespace::open(&between.a)?
                        .run(|| browser_side.run(&browser, &chromedriver, stopped.clone(), on_progress))
                        .map_err(BrowseError::from)
                        .flatten()
                }
                Err(error) => Err(error),
            };
            stop_gateways.send_replace(true);
            stop_link.store(true, Ordering::Relaxed);
            let outcome =
                link.join().unwrap_or_else(|_| Err(io::Error::other("the thread of the link panicked")))?;
            let arms = result?;
            Ok(report::page(self, &arms, &outcome))
        })
    }

    /// Runs the web server and the backends on the calling thread until they are stopped.
    fn origin_side(
        &self,
        namespace: &str,
        hop: &Hop,
        site: &Arc<Site>,
        tally: &Arc<Tally>,
        mut stopped: watch::Receiver<bool>,
        ready: &std::sync::mpsc::Sender<Result<(), BrowseError>>,
    ) -> Result<(), BrowseError> {
        Namespace::open(namespace)?.enter()?;
        fixture::add_hosts(site.hosts)?;
        fixture::prioritise();
        runtime()?.block_on(async {
            fixture::origin_side(&self.arms, hop, site, tally, &stopped).await?;
            let _ = ready.send(Ok(()));
            // The wait also ends when the sender is dropped.
            let _ = stopped.wait_for(|stopped| *stopped).await;
            Ok(())
        })
    }
}

/// The loads of one arm, and its connections between the gateways.
#[derive(Debug)]
pub(crate) struct ArmLoads {
    /// The measurement of each load, or the reason of its failure.
    pub(crate) loads: Vec<Result<Load, String>>,
    /// Number of connections of the counted loads, and how many of these had their first bytes on the SYN.
    pub(crate) hop: (u64, u64),
}

/// The browser's side of the measurement: the browser, the frontends and the results.
struct Measurement<'a> {
    browse: &'a Browse,
    hop: &'a Hop,
    site: &'a Site,
    tally: &'a Tally,
    stop: &'a AtomicBool,
    picture: Option<&'a Path>,
}

impl Measurement<'_> {
    fn run(
        &self,
        browser: &Path,
        chromedriver: &Path,
        stopped: watch::Receiver<bool>,
        on_progress: &mut (dyn FnMut(&Progress<'_>) + Send),
    ) -> Result<Vec<ArmLoads>, BrowseError> {
        let directory = Scratch::make("browse")?;
        let arms = &self.browse.arms;
        fixture::add_hosts(self.site.hosts)?;
        runtime()?.block_on(async {
            // chromedriver starts first, because the browser must not inherit the priority of the gateways.
            let mut driver = Driver::start(chromedriver, &directory.0).await?;
            fixture::prioritise();
            let tallies: Vec<Arc<HopTally>> = arms.iter().map(|_| Arc::default()).collect();
            fixture::browser_side(arms, self.hop, &tallies, &stopped).await?;
            let mut loads: Vec<Vec<Result<Load, String>>> = vec![Vec::new(); arms.len()];
            let mut before = vec![(0, 0); arms.len()];
            for number in 0..=self.browse.loads {
                for arm in order(number, arms.len()) {
                    if self.stop.load(Ordering::Relaxed) {
                        return Ok(arm_loads(loads, &tallies, &before));
                    }
                    let picture = self.picture.filter(|_| number == 0 && arm == 0);
                    let result = self.load(&mut driver, browser, arm, picture).await;
                    if let (0, Err(error)) = (number, result.as_ref()) {
                        // The first load has failed, and so would the counted ones.
                        return Err(BrowseError::Driver(error.clone()));
                    }
                    on_progress(&Progress { arm: &arms[arm].name, number, result: &result });
                    match number {
                        0 => before[arm] = tallies[arm].read(),
                        _ => loads[arm].push(result),
                    }
                }
            }
            Ok(arm_loads(loads, &tallies, &before))
        })
    }

    /// Loads the page once, in a new browser.
    async fn load(
        &self,
        driver: &mut Driver,
        browser: &Path,
        arm: usize,
        picture: Option<&Path>,
    ) -> Result<Load, String> {
        let rules = rules(self.site.hosts, fixture::port(arm));
        let session = driver.open(browser, &rules).await.map_err(|error| error.to_string())?;
        tokio::time::sleep(PAUSE).await;
        self.tally.take();
        let url = format!("http:{}", Site::url(0, 0));
        let timing = driver.load(&session, &url, LONGEST_LOAD).await;
        let (requests, connections) = self.tally.take();
        let photographed = match picture {
            Some(file) if timing.is_ok() => driver.photograph(&session).await.map(|png| Some((file, png))),
            _ => Ok(None),
        };
        driver.close(session).await;
        let timing = timing.map_err(|error| error.to_string())?;
        if let Some((file, png)) = photographed.map_err(|error| error.to_string())? {
            std::fs::write(file, png).map_err(|error| format!("{}: {error}", file.display()))?;
        }
        Ok(Load { load_ms: timing.load, paint_ms: timing.paint, requests, connections })
    }
}

fn arm_loads(
    loads: Vec<Vec<Result<Load, String>>>,
    tallies: &[Arc<HopTally>],
    before: &[(u64, u64)],
) -> Vec<ArmLoads> {
    let since = |(tally, before): (&Arc<HopTally>, &(u64, u64))| {
        let (all, with_syn) = tally.read();
        (all - before.0, with_syn - before.1)
    };
    let hops = tallies.iter().zip(before).map(since);
    loads.into_iter().zip(hops).map(|(loads, hop)| ArmLoads { loads, hop }).collect()
}

/// Returns the order of the arms in a round. Each round begins with another arm, so that other load on the
/// machine affects all arms equally.
fn order(round: u32, arms: usize) -> impl Iterator<Item = usize> {
    (0..arms).map(move |nth| (nth + round as usize) % arms)
}

/// Returns Chromium's rules that resolve the page's hosts and no others.
fn rules(hosts: usize, port: u16) -> String {
    let host = |host| format!("MAP {} {}:{port},", host_name(host), fixture::host_address(host));
    let mut rules: String = (0..hosts).map(host).collect();
    rules.push_str("MAP * ~NOTFOUND,EXCLUDE 127.0.0.1");
    rules
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

fn run_link(
    mut emulation: Emulation<crate::emulate::TunEnd, crate::emulate::TunEnd>,
    stop: &AtomicBool,
) -> io::Result<Outcome> {
    emulation.prioritise();
    emulation.run(None, stop, &mut |_| {})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_arm_begins_a_round_in_turn() {
        let rounds: Vec<Vec<usize>> = (0..3).map(|round| order(round, 3).collect()).collect();
        assert_eq!(rounds, [[0, 1, 2], [1, 2, 0], [2, 0, 1]]);
    }

    #[test]
    fn only_hosts_of_the_page_resolve_to_the_port_of_the_arm() {
        assert_eq!(
            rules(2, 8002),
            "MAP h0.test 10.71.0.1:8002,MAP h1.test 10.71.0.2:8002,MAP * ~NOTFOUND,EXCLUDE 127.0.0.1"
        );
    }
}

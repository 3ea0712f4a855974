//! The examination of the path to a backend, for `brisk doctor`.
//!
//! All measurements use connections of the watch ([`crate::upstream`]), which the backend answers itself.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::hop::stream::HopStream;
use crate::hop::{Ephemerals, Hop, Opening, Purpose};
use crate::log::Log;
use crate::peer::{self, Answer, Redundancy};
use crate::transport::Transport;
use crate::upstream::{BackendSpec, Dialling, Upstream};
use brisk_runtime::{ConnStats, Endpoint, FastOpenConnect, FastOpenOutcome, TcpConfig};

/// Pause between probe requests, so that one burst of losses does not hit several of them.
const PAUSE: Duration = Duration::from_millis(10);
/// Number of connections after the first. The second one can use the cookie that the first one got; the third
/// one shows whether the cookie is still valid.
const LATER_CONNECTIONS: usize = 2;

/// The backend to examine, and the stacks and settings for it.
#[derive(Clone, Debug)]
pub struct Examination {
    /// The stack that opens the connections.
    pub endpoint: Endpoint,
    /// The stack on a packet socket.
    pub packet: Option<Endpoint>,
    /// The backend.
    pub backend: BackendSpec,
    /// Protection of the hop.
    pub hop: Hop,
    /// Settings of the hop's connections.
    pub tcp: TcpConfig,
    /// True to request Fast Open.
    pub fast_open: bool,
    /// Number of probe requests.
    pub probes: u32,
    /// Time limit for opening a connection.
    pub patience: Duration,
}

/// The result of one check.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Name of the check.
    pub check: &'static str,
    /// Result in words.
    pub result: String,
    /// True if the operator need not act on the result.
    pub is_good: bool,
}

/// Measurements of the path.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Measured {
    /// Median round-trip time of the probe requests.
    pub rtt: Duration,
    /// Share of lost packets, the mean of both directions, 0 to 1.
    pub loss: f64,
}

/// Result of an examination.
#[derive(Clone, Debug, Default)]
pub struct Report {
    findings: Vec<Finding>,
    usable: bool,
    measured: Option<Measured>,
}

impl Report {
    /// Returns the findings in the order of the checks.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// True if any transport to the backend works.
    pub fn usable(&self) -> bool {
        self.usable
    }

    /// Returns the measurements if probe requests were answered.
    pub fn measured(&self) -> Option<Measured> {
        self.measured
    }

    fn add(&mut self, check: &'static str, is_good: bool, result: String) {
        self.findings.push(Finding { check, result, is_good });
    }
}

/// Runs all checks.
pub async fn examine(examination: &Examination) -> Report {
    let Examination { endpoint, packet, backend, hop, tcp, fast_open, probes, patience } =
        examination.clone();
    let fast_open = fast_open.then(FastOpenConnect::insured);
    let own = Arc::new(Ephemerals::new(Duration::ZERO));
    let dialling = Dialling { endpoint, packet, hop, own, tcp, fast_open, watched: true, log: Log::silent() };
    let upstream = Upstream::new(backend);
    let mut report = Report::default();
    let began = Instant::now();
    match open(&upstream, &dialling, patience, Transport::Usual).await {
        Ok(hop) => {
            let took = began.elapsed();
            report.usable = true;
            report.add(
                "hop",
                true,
                format!(
                    "brisk's TCP reaches the backend; the key is correct (first connection: {} ms)",
                    ms(took)
                ),
            );
            redundancy(&hop, &mut report);
            questions(hop, probes, &mut report).await;
            segment(&upstream, &dialling, patience, &mut report).await;
            if fast_open.is_some() {
                again(&upstream, &dialling, patience, &mut report).await;
            }
        }
        Err(why) => report.add("hop", false, why),
    }
    for transport in [Transport::Packet, Transport::Kernel] {
        other(&upstream, &dialling, patience, transport, &mut report).await;
    }
    report
}

async fn open(
    upstream: &Upstream,
    dialling: &Dialling,
    patience: Duration,
    transport: Transport,
) -> Result<HopStream, String> {
    let opening = Opening::new(Purpose::Watch);
    match tokio::time::timeout(patience, upstream.open_over(dialling, &opening, transport)).await {
        Ok(opened) => opened.map_err(|refused| refused.to_string()),
        Err(_) => {
            let patience = humantime::format_duration(patience);
            Err(format!(
                "no answer within {patience}; check that the backend runs and that no firewall drops the packets"
            ))
        }
    }
}

/// Reports whether both sides agreed on parity and copies.
fn redundancy(hop: &HopStream, report: &mut Report) {
    let Some(stats) = hop.connection().stats() else { return };
    let agreed = Redundancy::of(stats.gentle);
    let good = matches!(agreed, Redundancy::Agreed | Redundancy::Off | Redundancy::Lapsed);
    report.add("redundancy", good, format!("{}: {}", agreed.name(), agreed.reason()));
}

/// Sends probe requests and measures their answers.
async fn questions(mut hop: HopStream, probes: u32, report: &mut Report) {
    let mut times = Vec::new();
    let mut loss_in = None;
    let asked = async {
        let (mut read, mut write) = hop.split();
        for _ in 0..probes {
            let began = Instant::now();
            if let Answer::Up(loss) = peer::ask(&mut read, &mut write).await? {
                loss_in = loss;
            }
            times.push(began.elapsed());
            tokio::time::sleep(PAUSE).await;
        }
        std::io::Result::Ok(())
    };
    if let Err(error) = asked.await {
        report.add("probes", false, error.to_string());
    }
    times.sort();
    let at = |share: f64| times.get((share * times.len() as f64) as usize).or(times.last()).copied();
    if let (Some(min), Some(p50), Some(p99)) = (times.first(), at(0.5), at(0.99)) {
        let result = format!(
            "minimum {} ms, median {} ms, p99 {} ms ({} answers)",
            ms(*min),
            ms(p50),
            ms(p99),
            times.len()
        );
        report.add("round trip", true, result);
        if let Some(stats) = hop.connection().stats() {
            let loss = losses(&stats, times.len(), loss_in, report);
            report.measured = Some(Measured { rtt: p50, loss });
        }
    }
}

/// Reports the losses of each direction; returns their mean. If the backend does not count losses (an earlier
/// release), each unnecessary probe counts as a lost answer.
fn losses(stats: &ConnStats, answered: usize, loss_in: Option<f64>, report: &mut Report) -> f64 {
    let counters = &stats.counters;
    let lost = stats.lost_segments;
    let share = |count: u64| (count as f64 / (answered as f64).max(1.0)).min(1.0);
    let out = share(lost);
    let (back, source) = match loss_in {
        Some(result) => (result, "counted by the backend"),
        None => (share(counters.probes_spurious), "estimated from unnecessary probes"),
    };
    let result = format!(
        "out {:.1} % ({lost} of {answered}), in {:.1} % ({source}); {} timeouts",
        100.0 * out,
        100.0 * back,
        counters.timeouts
    );
    report.add("loss", out.max(back) < 0.05, result);
    let order = if stats.reordering_seen { "the path reorders packets" } else { "in order" };
    report.add("order", true, order.to_owned());
    (out + back) / 2.0
}

/// Sends full segments in both directions, because the path may drop packets of the size that the handshake
/// announced.
async fn segment(upstream: &Upstream, dialling: &Dialling, patience: Duration, report: &mut Report) {
    let Ok(mut hop) = open(upstream, dialling, patience, Transport::Usual).await else { return };
    let announced = hop.connection().segment();
    let began = Instant::now();
    let (mut read, mut write) = hop.split();
    let result = tokio::time::timeout(patience, peer::exchange_full(&mut read, &mut write, announced)).await;
    let took = ms(began.elapsed());
    let up = hop.connection().segment();
    let down = match result {
        Ok(Ok(down)) => down,
        Ok(Err(error)) => return report.add("segment", false, format!("{announced} bytes: {error}")),
        Err(_) => {
            return report.add(
                "segment",
                false,
                format!("{announced} bytes of payload did not arrive within {took} ms"),
            );
        }
    };
    let narrow = |up: usize, down: usize| {
        format!(
            "{announced} bytes of payload do not pass; {up} bytes up and {down} bytes down do (the search took {took} ms)"
        )
    };
    let (good, result) = match down {
        Some(down) if down.0 >= up && up == announced && down.0 == down.1 => {
            (up >= 1200, format!("{up} bytes of payload, tested in both directions"))
        }
        Some(down) => (false, narrow(up, down.1)),
        None if up == announced => {
            (up >= 1200, format!("{up} bytes of payload, tested upwards (the backend is an older release)"))
        }
        None => (
            false,
            format!("{announced} bytes of payload do not pass; {up} bytes do (the search took {took} ms)"),
        ),
    };
    report.add("segment", good, result);
}

/// Connects again, now with a cookie.
async fn again(upstream: &Upstream, dialling: &Dialling, patience: Duration, report: &mut Report) {
    let mut used = 0;
    let mut took = Duration::MAX;
    let mut outcome = None;
    for _ in 0..LATER_CONNECTIONS {
        let began = Instant::now();
        let Ok(hop) = open(upstream, dialling, patience, Transport::Usual).await else { continue };
        took = took.min(began.elapsed());
        let seen = hop.connection().stats().map(|stats| stats.fast_open);
        used += usize::from(seen == Some(FastOpenOutcome::Used));
        outcome = seen.or(outcome);
    }
    let seen = outcome.map_or("no connection", FastOpenOutcome::name);
    let result = match used {
        0 => format!("{seen}: requests wait for the handshake"),
        _ => format!("used: data on the SYN arrives; answered in {} ms", ms(took)),
    };
    report.add("fast open", used > 0, result);
}

/// Checks another transport.
async fn other(
    upstream: &Upstream,
    dialling: &Dialling,
    patience: Duration,
    transport: Transport,
    report: &mut Report,
) {
    if !upstream.available().contains(&transport) {
        return;
    }
    let what = transport.name();
    match open(upstream, dialling, patience, transport).await {
        Ok(_) => {
            report.usable = true;
            report.add(what, true, "works; used if the path does not carry the transports above".to_owned());
        }
        Err(why) => report.add(what, false, format!("fallback: {why}")),
    }
}

fn ms(duration: Duration) -> String {
    format!("{:.1}", duration.as_secs_f64() * 1e3)
}

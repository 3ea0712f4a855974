//! A capture as a workload: exchanges in groups of similar round-trip times, over links with the measured
//! losses.

use brisk_capture::train::BURST_GAP;
use brisk_capture::{Analysis, Exchange, Losses, Side};
use brisk_link::{LinkSpec, SpecError};
use serde::Serialize;

use crate::sizes::Sizes;
use crate::statistics::{Interval, Sample};

/// If the ratio of round-trip times (90th percentile / 10th) exceeds this, exchanges are simulated in groups.
const MIN_RTT_RATIO: f64 = 1.3;
/// Number of groups of similar round-trip times.
const GROUPS: usize = 3;
/// Minimum number of packets in a direction; with fewer packets, the losses of the other direction are used.
const MIN_PACKETS: u64 = 1000;
/// Minimum and maximum length of a request to the simulated server, bytes.
const REQUEST: (u64, u64) = (16, 65_536);

/// Exchanges that are simulated in the same way.
#[derive(Clone, PartialEq, Debug)]
pub struct Group {
    /// Round-trip time in microseconds.
    pub round_trip_us: u64,
    /// True if the exchanges begin with a handshake.
    pub fresh: bool,
    /// Response sizes.
    pub sizes: Sizes,
    /// Median length of a request, bytes.
    pub request: u32,
    /// Share of all exchanges.
    pub share: f64,
}

/// The loss rate: the estimate, or an end of its interval.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Case {
    /// The lower end of the 95 % interval of the loss rate.
    Low,
    /// The estimate.
    Estimate,
    /// The upper end of the interval.
    High,
}

/// A workload from a capture.
#[derive(Clone, PartialEq, Debug)]
pub struct Traffic {
    /// The exchanges.
    pub groups: Vec<Group>,
    /// Losses of packets from the servers.
    pub down: Losses,
    /// Losses of packets from the clients.
    pub up: Losses,
}

/// Statistics of the capture, for text and JSON. Times are in ms, sizes in bytes; rates are shares.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Facts {
    /// Packets in the file.
    pub packets: u64,
    /// Connections.
    pub connections: u64,
    /// Number of exchanges, and of those that begin with a handshake.
    pub exchanges: [u64; 2],
    /// Where the capture was made.
    pub side: Side,
    /// 10th, 50th and 90th percentile of the round-trip time.
    pub rtt_ms: [f64; 3],
    /// Losses of packets from the servers.
    pub down: LossFacts,
    /// Losses of packets from the clients.
    pub up: LossFacts,
    /// 10th, 50th and 90th percentile of the response sizes.
    pub response_bytes: [f64; 3],
    /// Mean time of an exchange at the capture point.
    pub mean_ms: f64,
    /// Facts on which the estimate is based, and its limits.
    pub basis: Vec<String>,
}

/// Losses of packets in one direction.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct LossFacts {
    /// Packets known to be lost or delivered.
    pub packets: u64,
    /// Packets lost.
    pub lost: u64,
    /// Share lost.
    pub rate: f64,
    /// 95 % interval of `rate`.
    pub rate_ci95: Interval,
    /// Mean number of consecutive losses.
    pub burst: f64,
    /// 95 % interval of `burst`; null if no packet followed a loss.
    pub burst_ci95: Interval,
}

impl From<Losses> for LossFacts {
    fn from(losses: Losses) -> LossFacts {
        LossFacts {
            packets: losses.packets,
            lost: losses.lost,
            rate: losses.rate(),
            rate_ci95: losses.rate_interval(),
            burst: losses.burst(),
            burst_ci95: losses.burst_interval(),
        }
    }
}

impl Traffic {
    /// Returns the workload of a capture; `None` without an exchange or a round-trip time.
    pub fn of(analysis: &Analysis) -> Option<Traffic> {
        let usual = analysis.round_trip(0.5)?;
        let spread = analysis.round_trip(0.9)? as f64 / analysis.round_trip(0.1)?.max(1) as f64;
        let mut exchanges: Vec<(u64, &Exchange)> =
            analysis.exchanges.iter().map(|e| (e.round_trip.unwrap_or(usual), e)).collect();
        exchanges.sort_by_key(|(round_trip, exchange)| (*round_trip, exchange.response));
        let parts = if spread > MIN_RTT_RATIO { GROUPS } else { 1 };
        let mut groups = Vec::new();
        for part in exchanges.chunks(exchanges.len().div_ceil(parts).max(1)) {
            let round_trip_us = part[part.len() / 2].0 / 1000;
            for fresh in [true, false] {
                let alike: Vec<&Exchange> =
                    part.iter().map(|(_, exchange)| *exchange).filter(|e| e.fresh == fresh).collect();
                let Some(sizes) = Sizes::of_sample(alike.iter().map(|e| e.response).collect()) else {
                    continue;
                };
                let mut requests: Vec<u64> = alike.iter().map(|e| e.request).collect();
                requests.sort_unstable();
                let request = requests[requests.len() / 2].clamp(REQUEST.0, REQUEST.1) as u32;
                let share = alike.len() as f64 / exchanges.len() as f64;
                groups.push(Group { round_trip_us, fresh, sizes, request, share });
            }
        }
        let own = |own: Losses, other: Losses| if own.packets < MIN_PACKETS { other } else { own };
        let (down, up) = (own(analysis.down, analysis.up), own(analysis.up, analysis.down));
        (!groups.is_empty()).then_some(Traffic { groups, down, up })
    }

    /// Returns the link of a group. `given` are additional settings in the grammar of links.
    ///
    /// # Errors
    /// An error of the link grammar; a link without `given` has none.
    pub fn link(&self, group: &Group, case: Case) -> Result<LinkSpec, SpecError> {
        let mut link = LinkSpec::default();
        link.set("rtt", &format!("{}us", group.round_trip_us))?;
        link.set("loss", &format!("{}/{}", loss_model(&self.down, case), loss_model(&self.up, case)))?;
        Ok(link)
    }
}

/// Returns the loss model in the grammar of links. It has the loss rate of the case, and the measured
/// probability that a run of losses continues.
fn loss_model(losses: &Losses, case: Case) -> String {
    let [low, high] = losses.rate_interval();
    let scale = match case {
        _ if losses.lost == 0 => return if case == Case::High { percent(high) } else { "none".to_owned() },
        Case::Low => low / losses.rate(),
        Case::Estimate => 1.0,
        Case::High => high / losses.rate(),
    };
    let (begins, continues) = (losses.begins() * scale, losses.continues());
    format!("after:{},{},{}us", percent(begins.min(1.0)), percent(continues), BURST_GAP / 1000)
}

fn percent(share: f64) -> String {
    format!("{:.5}%", share * 100.0)
}

impl Facts {
    /// Computes the statistics of a capture.
    pub fn of(analysis: &Analysis, traffic: &Traffic) -> Facts {
        let ms = |ns: u64| ns as f64 / 1e6;
        let rtt = |quantile| analysis.round_trip(quantile).map_or(f64::NAN, ms);
        let responses = Sample::new(analysis.exchanges.iter().map(|e| e.response as f64).collect());
        let took = Sample::new(analysis.exchanges.iter().map(|e| ms(e.took)).collect());
        let fresh = analysis.exchanges.iter().filter(|e| e.fresh).count() as f64;
        let share = fresh / analysis.exchanges.len().max(1) as f64;
        Facts {
            packets: analysis.packets,
            connections: analysis.connections,
            exchanges: [analysis.exchanges_seen, (share * analysis.exchanges_seen as f64).round() as u64],
            side: analysis.side,
            rtt_ms: [rtt(0.1), rtt(0.5), rtt(0.9)],
            down: analysis.down.into(),
            up: analysis.up.into(),
            response_bytes: [0.1, 0.5, 0.9].map(|q| responses.quantile(q)),
            mean_ms: took.mean(),
            basis: basis(analysis, traffic),
        }
    }

    /// Formats the statistics for a terminal of 80 columns.
    pub fn to_text(&self) -> String {
        let side = match self.side {
            Side::Client => "at the clients",
            Side::Server => "at the servers",
            Side::Between => "between clients and servers",
            Side::Unknown => "at an unknown place",
        };
        let [low, usual, high] = self.rtt_ms;
        let [small, middle, large] = self.response_bytes;
        let mut text =
            format!("{} packets, {} connections, captured {side}\n", self.packets, self.connections);
        text += &format!("round trip  {usual:.2} ms (p10 {low:.2}, p90 {high:.2})\n");
        for (name, losses) in [("loss down", &self.down), ("loss up", &self.up)] {
            let [from, to] = losses.rate_ci95.map(|share| share * 100.0);
            text += &format!("{name:11} {:.2} % ({from:.2}..{to:.2}), ", losses.rate * 100.0);
            let [short, long] = losses.burst_ci95;
            text += &match losses.lost {
                0 => format!("none of {} packets\n", losses.packets),
                lost => format!(
                    "runs of {:.2} ({short:.2}..{long:.2}), {lost} of {}\n",
                    losses.burst, losses.packets
                ),
            };
        }
        text += &format!(
            "exchanges   {}, {} with a handshake; {small:.0}, {middle:.0}, {large:.0} bytes (p10, p50, p90)\n",
            self.exchanges[0], self.exchanges[1]
        );
        text + &format!("took        {:.1} ms on average at the capture point\n", self.mean_ms)
    }
}

/// Returns the basis of the estimate, one line per fact.
fn basis(analysis: &Analysis, traffic: &Traffic) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(stopped) = &analysis.stopped {
        lines.push(format!("{stopped}; the {} packets before that count", analysis.packets));
    }
    let handshakes = analysis.opened - analysis.opened_with_repeats;
    lines.push(format!(
        "round-trip time: {handshakes} handshakes without a repeat; where there is none, times to acknowledgements"
    ));
    lines.push(match (analysis.side, analysis.by_identification) {
        (Side::Client | Side::Between, true) => {
            "losses before the capture point: gaps in the IP identification, acknowledgements included"
                .to_owned()
        }
        (Side::Client | Side::Between, false) => {
            "losses before the capture point: gaps in sequence numbers, so lost tails are missed".to_owned()
        }
        _ => "losses: data that was sent again and not acknowledged twice (DSACK)".to_owned(),
    });
    for (name, own, used) in [("up", analysis.up, traffic.up), ("down", analysis.down, traffic.down)] {
        if own != used {
            lines.push(format!(
                "losses {name}: only {} packets are known to be lost or delivered, so the losses of the other direction are used",
                own.packets
            ));
        }
    }
    if analysis.unseen_bytes > 0 {
        lines.push(format!("the capture lacks {} bytes that were acknowledged", analysis.unseen_bytes));
    }
    if analysis.unreadable > 0 {
        lines.push(format!("{} TCP headers are cut off or damaged and are omitted", analysis.unreadable));
    }
    lines.push(
        "not known: the bottleneck's rate (give --rate), and the think time of the servers, which is omitted"
            .to_owned(),
    );
    lines
}

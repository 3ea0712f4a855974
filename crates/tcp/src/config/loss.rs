//! How a loss is found, and what is done about one at the tail: today's ways and those of the paper's years.

pub use crate::congestion::PrrBound;
use crate::time::Duration;

/// The two forms of Reactive (Gentle Aggression section 4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reactive {
    /// No probes: a lost tail waits for the retransmission timeout.
    Off,
    /// Algorithm 1 of the paper; meant to run with [`LossDetection::Rfc6675`].
    Paper(PaperConfig),
    /// The tail loss probe of RFC 8985.
    RackTlp(RackTlpConfig),
}

impl Default for Reactive {
    fn default() -> Self {
        Reactive::RackTlp(RackTlpConfig::default())
    }
}

/// The tail loss probe of RFC 8985 section 7.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RackTlpConfig {
    /// How long the receiver may hold back the acknowledgement of a single segment. 0..=1 s, default
    /// 200 ms.
    pub max_ack_delay: Duration,
}

impl Default for RackTlpConfig {
    fn default() -> Self {
        RackTlpConfig { max_ack_delay: Duration::from_millis(200) }
    }
}

/// Reactive as the paper has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PaperConfig {
    /// Probes in a row without progress. 1..=2, default 1 (what the authors deployed).
    pub max_probes: u32,
    /// WDT, the worst-case delayed acknowledgement. 0..=1 s, default 200 ms.
    pub wdt: Duration,
    /// Algorithm 1 to the letter: without the least timeout of 10 ms, and `1.5*srtt + wdt` also where
    /// `2*srtt` is longer. Default off.
    pub strict_alg1: bool,
}

impl Default for PaperConfig {
    fn default() -> Self {
        PaperConfig { max_probes: 1, wdt: Duration::from_millis(200), strict_alg1: false }
    }
}

/// A thin stream has fewer than four segments outstanding and nothing more to send: games, terminals,
/// the ends of responses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThinStreamConfig {
    /// Timeouts in a row that do not double the timeout while the stream is thin. 0..=15, default 6
    /// (Linux: `TCP_THIN_LINEAR_TIMEOUTS`).
    pub linear_timeouts: u32,
    /// The timer that an acknowledgement restarts runs from the transmission of the oldest outstanding
    /// segment rather than from now (RFC 7765). Default on.
    pub rto_restart: bool,
}

impl Default for ThinStreamConfig {
    fn default() -> Self {
        ThinStreamConfig { linear_timeouts: 6, rto_restart: true }
    }
}

/// Who decides that a segment is lost, on a connection with SACK.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LossDetection {
    /// By time (RFC 8985).
    #[default]
    Rack,
    /// By counting, as in the years of the paper.
    Rfc6675(Rfc6675Config),
}

/// Loss detection of the years around 2012.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rfc6675Config {
    /// Count the segments below the highest one reported by SACK rather than those reported (forward
    /// acknowledgement). Default on.
    pub fack: bool,
    /// What stands in for three duplicates if fewer than four segments are outstanding.
    pub early_retransmit: EarlyRetransmit,
    /// Early retransmit waits for `srtt` divided by this; 0: it does not wait. Linux from 3.5 on: 4.
    /// Default 0.
    pub er_delay_divisor: u32,
    /// The proportional rate reduction. Default `Rfc9937`, as everywhere; the TCP of 2012 had the older one.
    pub prr: PrrBound,
}

impl Default for Rfc6675Config {
    fn default() -> Self {
        Rfc6675Config {
            fack: true,
            early_retransmit: EarlyRetransmit::Rfc5827,
            er_delay_divisor: 0,
            prr: PrrBound::Rfc9937,
        }
    }
}

impl Rfc6675Config {
    /// Everything as it was in 2012, proportional rate reduction included.
    pub fn of_2012() -> Self {
        Rfc6675Config { prr: PrrBound::Rfc6937, ..Rfc6675Config::default() }
    }
}

/// Early retransmit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EarlyRetransmit {
    /// None: three duplicates or a timeout.
    Off,
    /// All outstanding segments but one are reported by SACK (RFC 5827).
    Rfc5827,
    /// One outstanding segment is reported by SACK: what the paper needs for three outstanding
    /// segments of which the last was probed.
    Relaxed,
}

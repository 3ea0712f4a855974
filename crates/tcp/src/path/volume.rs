//! The volume that one flight of a path carries, and the rate of the path.
//!
//! A flight is the data of one round trip of a connection. The path memory evaluates its report as a whole.
//! Losses that chance explains do not change the volume. Two kinds of losses lower the volume if they recur:
//! losses while a queue exists, and more losses than chance explains. More than twice as many losses as
//! chance explains lower it at once. The rate follows from the spacing of a flight's acknowledgements (a
//! *train*), because a flight that ends before its first acknowledgement measures only volume per round trip.
//!
//! Data is *on trust* if it leaves in a window larger than the standard window and its arrival is not known
//! yet.

use alloc::collections::VecDeque;

use arrayvec::ArrayVec;

use crate::congestion::sample::Train;
use crate::evidence::{LossByPosition, LossHistory, LossTimes, is_queued, shows_queue};
use crate::time::{Duration, Instant};

/// After this time without a flight of at least half the volume, the volume counts half (careful resume). A
/// queue of other hosts is reported to new connections for this time.
const AGED: Duration = Duration::from_secs(30);
/// Maximum duration of the brake. Losses that grow with the volume count as excesses for the same time.
const BRAKE: Duration = Duration::from_secs(60);
/// Number of excesses among the remembered flights that begins the brake. Then starts use the standard
/// window.
const BRAKE_EXCESSES: usize = 2;
/// First duration of the brake. It doubles, up to [`BRAKE`], each time that the excesses recur within
/// [`BRAKE`] of the end of the last brake. On a busy path chance causes two excesses only every few minutes;
/// starts that are too large cause them again at once.
const BRAKE_FIRST: Duration = Duration::from_secs(4);
/// Number of remembered flights, and of remembered trains.
const FLIGHTS: usize = 8;
/// Number of latest trains that bound the rate from below.
const BOUNDS: usize = 4;
/// Part of a turn that is left free, percent of its bytes: for retransmissions, and for errors of the rate.
const HEADROOM: u64 = 3;
/// Maximum time that a start waits for its turn. It bounds the delay if the rate of the path is wrong.
const LONGEST_WAIT: Duration = Duration::from_secs(3);
/// Limit of simultaneous flights on trust.
const TOGETHER_MAX: u32 = 32;
/// Mask of the latest four flights in `queued`.
const QUEUED_FLIGHTS: u16 = 0b1111;
/// Minimum size of a flight that shows whether other hosts keep a queue, segments.
const QUEUE_SEGMENTS: u32 = 4;

/// A completed flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct FlightReport {
    /// Time when its first segment left.
    pub(crate) began: Instant,
    /// Time when its last segment left.
    pub(crate) sent_until: Instant,
    /// Data, in bytes and in segments.
    pub(crate) bytes: u32,
    pub(crate) segments: u32,
    /// Segments that left before the flight was acknowledged, including its own. `lost` counts among these.
    pub(crate) sent: u32,
    /// Lost segments, including repaired ones.
    pub(crate) lost: u32,
    /// Lost segments among those above the standard window.
    pub(crate) lost_beyond: u32,
    /// The standard window, bytes and segments: the largest window with which any connection may begin.
    pub(crate) standard: (u32, u32),
    /// Round-trip time of the path without a queue; 0 if unknown.
    pub(crate) min_rtt: Duration,
    /// Minimum time that its segments spent in queues.
    pub(crate) waited: Duration,
    /// Longest time in queues that the round-trip times around one of its losses show.
    pub(crate) waited_at_loss: Duration,
    /// Round-trip times of the flight, and those around its losses.
    pub(crate) times: LossTimes,
    /// The retransmission timer fired before any of it arrived.
    pub(crate) has_vanished: bool,
    /// The spacing of its acknowledgements.
    pub(crate) train: Option<Train>,
    /// Acknowledged bytes that had been granted above the standard window.
    pub(crate) granted: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FlightVerdict {
    /// All segments arrived.
    Whole,
    /// Chance explains its losses.
    Random,
    /// The flight had losses while a queue existed, or more than chance causes in one of a hundred flights.
    Suspect,
    /// The volume of the flight was too large.
    Excess,
}

/// A flight that was large or had losses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct FlightResult {
    verdict: FlightVerdict,
    /// [`FlightReport::sent`] and [`FlightReport::lost`].
    sent: u64,
    lost: u64,
}

/// The volume and the rate with which a connection may start now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PathVolume {
    /// Initial size of a flight, bytes; 0 if only the standard window is permitted.
    pub bytes: u32,
    /// Rate of a paced start, bytes per second, if known: the rate of the path. It is a quarter higher if the
    /// path did not slow down the latest flights.
    pub rate: Option<u64>,
    /// True if the path has limited the rate of a flight; otherwise `rate` is a lower bound.
    pub is_rate_limited: bool,
    /// True if the rate of the path is known and none of the last 16 flights saw a queue of other traffic. A
    /// queue on the path is then this host's own.
    pub is_quiet: bool,
}

impl PathVolume {
    /// Returns the rate in the form in which a flight shows it.
    pub(crate) fn train(&self) -> Option<Train> {
        self.rate.map(|rate| Train { rate, is_limited: self.is_rate_limited })
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Volume {
    /// Bytes that one flight has carried.
    pub(super) carried: u32,
    /// Bytes on trust that flights of several connections may carry together, if more than `carried`.
    together: u32,
    /// End of the volume's lifetime: `lifetime` after the last flight of at least half the volume with the
    /// verdict `Whole` or `Random`.
    pub(super) until: Instant,
    verdicts: ArrayVec<FlightResult, FLIGHTS>,
    /// An excess of a flight that began before this time causes no further reduction.
    reduced: Instant,
    braked_until: Instant,
    brake: Duration,
    is_suspended: bool,
    trains: ArrayVec<Train, FLIGHTS>,
    /// The path has limited the rate of a train.
    is_measured: bool,
    loss_by_position: LossByPosition,
    dose_until: Instant,
    grants: VecDeque<TrustedBurst>,
    /// Time two round trips after a refused request. By then the outcome of the data on trust is known, and
    /// more may be granted.
    refused: Option<Instant>,
    /// One bit for each of the latest flights of at least [`QUEUE_SEGMENTS`], the newest in the lowest place.
    /// A bit is set if other hosts kept a queue during the flight.
    queued: u16,
    /// Time of the last flight during which other hosts kept a queue.
    queued_at: Instant,
    /// The latest reported flights.
    bursts: ArrayVec<Burst, FLIGHTS>,
    /// Round-trip times around losses.
    times: LossTimes,
}

/// Data of one connection, past or expected. A part leaves at once, the rest at a constant rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Burst {
    began: Instant,
    until: Instant,
    bytes: u32,
    at_once: u32,
}

impl Burst {
    /// Returns the bytes that have left at `at`.
    fn sent(&self, at: Instant) -> u64 {
        let span = self.until.saturating_since(self.began).as_micros();
        let passed = at.saturating_since(self.began).as_micros();
        let (bytes, at_once) = (u128::from(self.bytes), u128::from(self.at_once.min(self.bytes)));
        let sent = match at > self.began {
            true if passed >= span => bytes,
            true => at_once + (bytes - at_once) * passed / span,
            false => 0,
        };
        u64::try_from(sent).unwrap_or(u64::MAX)
    }

    /// Returns the bytes that have not left at `at`.
    fn left(&self, at: Instant) -> u64 {
        u64::from(self.bytes).saturating_sub(self.sent(at))
    }
}

/// The request of a connection for a window larger than the standard window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StartRequest {
    /// The requested window, bytes.
    pub(crate) window: u32,
    /// The current window of the connection, bytes.
    pub(crate) has: u32,
    /// Bytes of the current window that an earlier request was granted.
    pub(crate) granted: u32,
    /// Bytes that leave at once.
    pub(crate) at_once: u32,
    /// Rate at which the others leave, bytes per second.
    pub(crate) rate: u64,
    /// Parity and copies that probably leave with them, percent.
    pub(crate) redundancy: u32,
    /// Round-trip time of the path.
    pub(crate) rtt: Duration,
}

/// The answer to a [`StartRequest`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Granted {
    /// The window, bytes.
    pub(crate) bytes: u32,
    /// Bytes that leave at once.
    pub(crate) at_once: u32,
    /// Time from which on the others leave.
    pub(crate) from: Instant,
}

/// A burst on trust, and the time by which its outcome is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct TrustedBurst {
    until: Instant,
    burst: Burst,
}

impl Volume {
    /// Returns the volume from a file: `carried` bytes, which expire at `until`.
    pub(super) fn stored(carried: u32, until: Instant, train: Option<Train>) -> Volume {
        let is_measured = train.is_some_and(|train| train.is_limited);
        Volume { carried, until, trains: train.into_iter().collect(), is_measured, ..Volume::default() }
    }

    /// Returns the volume and the rate of a start; `None` if they are unknown or if a whole flight has
    /// vanished. The brake limits the volume and not the rate, because a start at the path's rate builds no
    /// queue.
    pub(super) fn start(
        &self,
        min_rtt: Option<Duration>,
        lifetime: Duration,
        now: Instant,
    ) -> Option<PathVolume> {
        let left = self.until.saturating_since(now);
        if self.carried == 0 || left.is_zero() || self.is_suspended {
            return None;
        }
        let (rate, is_rate_limited) = match self.rate() {
            // The path did not slow down the latest flights, so it may have become faster.
            Some(Train { rate, is_limited: false }) if self.is_measured => (Some(rate + rate / 4), true),
            Some(Train { rate, is_limited }) => (Some(rate), is_limited),
            None => (None, false),
        };
        // If nothing speaks against it, half of the path's capacity is tried, as in careful resume.
        let bdp = self.bdp(min_rtt).unwrap_or(0);
        let is_doubtful = left + AGED < lifetime || self.is_queued();
        let bytes = match (self.braked_until > now, is_doubtful) {
            (true, _) => 0,
            (false, true) => self.carried / 2,
            (false, false) => self.carried.max(bdp / 2),
        };
        Some(PathVolume { bytes, rate, is_rate_limited, is_quiet: self.is_quiet() })
    }

    /// Returns the round-trip time from which on a loss counts as caused by a queue, if losses have shown it.
    pub(super) fn queued_from(&self) -> Option<Duration> {
        self.times.queued_from()
    }

    /// True if other hosts kept a queue recently, so that a start would lose packets.
    fn is_queued(&self) -> bool {
        self.queued & QUEUED_FLIGHTS != 0
    }

    /// True if the rate of the path is known and none of the latest flights saw a queue of other hosts.
    fn is_quiet(&self) -> bool {
        self.is_measured && self.queued == 0
    }

    /// True if other hosts kept a queue during the last [`AGED`]. Small flights do not show its end, so time
    /// decides.
    pub(super) fn was_queued_at(&self, now: Instant) -> bool {
        self.is_queued() && now < self.queued_at + AGED
    }

    /// Returns the capacity of the path without a queue, bytes. `None` if it is unknown, if one of the latest
    /// 16 flights saw a queue, or if one of the latest four verdicts is an excess.
    fn bdp(&self, min_rtt: Option<Duration>) -> Option<u32> {
        let (rate, rtt) = self.rate().filter(|_| self.is_quiet()).zip(min_rtt)?;
        let had_excess = self.latest(4).any(|verdict| verdict == FlightVerdict::Excess);
        let bytes = u128::from(rate.rate) * rtt.as_micros() / 1_000_000;
        (!had_excess).then(|| u32::try_from(bytes).unwrap_or(u32::MAX))
    }

    /// Returns the median of the path's limits. If a recent flight has reached a higher rate, returns that.
    pub(super) fn rate(&self) -> Option<Train> {
        let mut limited: ArrayVec<u64, FLIGHTS> =
            self.trains.iter().filter(|train| train.is_limited).map(|train| train.rate).collect();
        limited.sort_unstable();
        let median = limited.get(limited.len() / 2).copied();
        let reached = self
            .trains
            .iter()
            .rev()
            .take(BOUNDS)
            .filter(|train| !train.is_limited)
            .map(|train| train.rate)
            .max();
        match (median, reached) {
            (Some(median), reached) => {
                Some(Train { rate: median.max(reached.unwrap_or(0)), is_limited: true })
            }
            (None, reached) => reached.map(|rate| Train { rate, is_limited: false }),
        }
    }

    /// Remembers the rate of a flight. A train that the sender limited is a lower bound. Below the known rate
    /// it says nothing, and is not remembered. Otherwise slow flights would displace the path's limits, and
    /// later starts would be as slow.
    fn learn_rate(&mut self, train: Train) {
        let known = self.rate().filter(|_| !train.is_limited);
        if known.is_some_and(|known| train.rate < known.rate / 10 * 9) {
            return;
        }
        if self.trains.is_full() {
            self.trains.remove(0);
        }
        self.trains.push(train);
        self.is_measured |= train.is_limited;
    }

    /// Grants a connection a larger window for its start. Returns `None` if it keeps its current window.
    pub(super) fn grant(&mut self, request: &StartRequest, now: Instant) -> Option<Granted> {
        self.grants.retain(|grant| grant.until > now);
        let held = self.give_back(request.granted);
        // Beside other traffic, starts at the rate of the path would take its share of the path.
        let granted = match self.rate().filter(|_| self.is_quiet()) {
            Some(train) => self.grant_turn(request, train.rate, held, now),
            None => self.grant_share(request, held, now),
        };
        if granted.is_none() {
            self.grants.extend(held);
        }
        granted
    }

    /// Grants the requested window on a quiet path of known `rate`. The starts of the path take turns: each
    /// begins to leave when the path can take it after the starts before. So they build no queue, however
    /// many there are, and a transfer does not wait for those that began later.
    fn grant_turn(
        &mut self,
        request: &StartRequest,
        rate: u64,
        held: Option<TrustedBurst>,
        now: Instant,
    ) -> Option<Granted> {
        let free = self.grants.iter().map(|grant| grant.burst.until).max();
        let from = free.map_or(now, |free| free.max(now));
        if from > now + LONGEST_WAIT {
            return None;
        }
        // The bytes of an earlier grant have left already, or leave before the new ones.
        let before = held.map_or(0, |held| held.burst.bytes);
        let bytes = u64::from(request.window.saturating_sub(before));
        let more = bytes * (u64::from(request.redundancy) + HEADROOM) / 100;
        let takes = at_rate(bytes + more, rate).min(request.rtt * 2);
        let at_once = if from > now { 0 } else { request.at_once };
        let began = held.map_or(from, |held| held.burst.began);
        let burst = Burst { began, until: from + takes, bytes: request.window, at_once };
        self.grants.push_back(TrustedBurst { until: from + request.rtt * 2, burst });
        Some(Granted { bytes: request.window, at_once, from })
    }

    /// Grants as much of the request as the path carries in addition to other connections' data on trust, if
    /// that is more than the connection has. Data that left more than a round trip ago does not count,
    /// because it is no longer on the path. Its outcome is known after two round trips at the latest.
    fn grant_share(
        &mut self,
        request: &StartRequest,
        held: Option<TrustedBurst>,
        now: Instant,
    ) -> Option<Granted> {
        let until = now + request.rtt * 2;
        let gone = Instant::from_micros(now.as_micros().saturating_sub(request.rtt.as_micros() as u64));
        let out: u64 = self.grants.iter().map(|grant| grant.burst.left(gone)).sum();
        let out = u32::try_from(out).unwrap_or(u32::MAX);
        let carried = if self.is_queued() { self.carried / 2 } else { self.carried };
        let together = self.together.max(carried).max(request.window);
        let granted = request.window.min(together.saturating_sub(out));
        if granted <= request.has {
            self.refused.get_or_insert(until);
            return None;
        }
        let (began, at_once, before) = held.map_or((now, request.at_once, request.at_once), |held| {
            (held.burst.began, held.burst.at_once, held.burst.bytes)
        });
        let spread = at_rate(granted.saturating_sub(before).into(), request.rate);
        let burst = Burst { began, until: now + spread, bytes: granted, at_once };
        self.grants.push_back(TrustedBurst { until, burst });
        Some(Granted { bytes: granted, at_once: request.at_once, from: now })
    }

    /// Returns the latest bursts of this host's connections, past and granted, that began before `to`. Most
    /// granted bursts of a busy path begin later.
    fn own_bursts(&self, to: Instant) -> impl Iterator<Item = &Burst> {
        let granted = self.grants.iter().map(|grant| &grant.burst).filter(move |burst| burst.began < to);
        self.bursts.iter().chain(granted.rev().take(FLIGHTS))
    }

    /// Returns the longest time that a segment sent between `from` and `to` waits behind this host's own
    /// data; zero if the rate is unknown.
    fn longest_own_wait(&self, from: Instant, to: Instant) -> Duration {
        let Some(Train { rate, .. }) = self.rate() else { return Duration::ZERO };
        let ends = self.own_bursts(to).flat_map(|burst| [burst.began, burst.until]);
        let mut times: ArrayVec<Instant, { 4 * FLIGHTS + 2 }> =
            ends.filter(|at| *at < to).chain([from, to]).collect();
        times.sort_unstable();
        let (mut wait, mut longest) = (Duration::ZERO, Duration::ZERO);
        let (mut last, mut sent_by_last) = (times[0], 0);
        for at in times {
            let sent = self.own_bursts(to).map(|burst| burst.sent(at)).sum();
            wait = (wait + at_rate(sent - sent_by_last, rate)).saturating_sub(at.saturating_since(last));
            if at >= from {
                longest = longest.max(wait);
            }
            (last, sent_by_last) = (at, sent);
        }
        longest
    }

    /// True if other hosts kept a queue during this flight or around one of its losses. The sign is that its
    /// segments waited longer than this host's data explains. The first segments of a flight do not wait for
    /// the rest of it; segments around a loss may. `at_once`: bytes of the flight that left at once.
    fn is_queued_by_others(&mut self, flight: &FlightReport, at_once: u32) -> bool {
        let FlightReport { began, sent_until, bytes, min_rtt: min, waited, waited_at_loss, .. } = *flight;
        let all = |own| shows_queue(min + waited.saturating_sub(own), min);
        let learned = self.times.queued_from().zip(flight.times.mean_at_losses());
        let at_loss = |own| {
            is_queued(min + waited_at_loss.saturating_sub(own), Some(min))
                || learned.is_some_and(|(from, mean)| mean.saturating_sub(own) >= from)
        };
        let waits_for_others = all(Duration::ZERO) && all(self.longest_own_wait(began, sent_until));
        if self.bursts.is_full() {
            self.bursts.remove(0);
        }
        self.bursts.push(Burst { began, until: sent_until, bytes, at_once });
        waits_for_others || at_loss(Duration::ZERO) && at_loss(self.longest_own_wait(began, sent_until))
    }

    /// True if most of the flight left while no other data of this host did. Otherwise the host's own data
    /// may have limited its rate, and not the path.
    fn is_alone(&self, flight: &FlightReport) -> bool {
        let shared = |burst: &Burst| {
            burst.until.min(flight.sent_until).saturating_since(burst.began.max(flight.began))
        };
        let beside: Duration = self.own_bursts(flight.sent_until).map(shared).sum();
        beside * 2 <= flight.sent_until.saturating_since(flight.began)
    }

    /// Removes a connection's grant, if its outcome is not known yet.
    fn give_back(&mut self, granted: u32) -> Option<TrustedBurst> {
        let at = self.grants.iter().position(|grant| grant.burst.bytes == granted)?;
        self.grants.remove(at)
    }

    /// Records that every round trip of a connection of the path saw a queue.
    pub(super) fn on_queue(&mut self) {
        self.together /= 2;
        self.refused = None;
    }

    /// Evaluates a flight. `history`: the random loss of the path before the flight.
    pub(super) fn on_flight(
        &mut self,
        flight: &FlightReport,
        history: &LossHistory,
        lifetime: Duration,
        now: Instant,
    ) {
        let at_once = self.give_back(flight.granted).map_or(0, |grant| grant.burst.at_once);
        if let Some(Train { rate, is_limited }) = flight.train {
            self.learn_rate(Train { rate, is_limited: is_limited && self.is_alone(flight) });
        }
        self.times.learn(&flight.times);
        let is_queued = self.is_queued_by_others(flight, at_once);
        let (standard, standard_segments) = flight.standard;
        let beyond = flight.segments.saturating_sub(standard_segments);
        let head_lost = flight.lost.saturating_sub(flight.lost_beyond);
        self.loss_by_position.learn(
            ((flight.segments - beyond).into(), head_lost.into()),
            (beyond.into(), flight.lost_beyond.into()),
        );
        if self.loss_by_position.shows_congestion() {
            self.loss_by_position = LossByPosition::default();
            self.dose_until = now + BRAKE;
        }
        if flight.segments >= QUEUE_SEGMENTS {
            self.queued = self.queued << 1 | u16::from(is_queued);
        }
        if is_queued {
            self.queued_at = now;
            self.on_queue();
        }
        let verdict = self.classify(flight, is_queued, history, now);
        let is_large = flight.bytes >= self.carried / 2;
        match verdict {
            FlightVerdict::Whole | FlightVerdict::Random => {
                self.carried = self.carried.max(flight.bytes);
                if is_large {
                    self.until = now + lifetime;
                }
                if flight.bytes >= standard {
                    self.is_suspended = false;
                }
                if flight.granted > 0 && self.refused.take_if(|at| *at <= now).is_some() {
                    let max = self.carried.saturating_mul(TOGETHER_MAX);
                    self.together = self.together.max(self.carried).saturating_add(flight.bytes).min(max);
                }
            }
            FlightVerdict::Suspect => {}
            FlightVerdict::Excess if flight.began < self.reduced => {}
            FlightVerdict::Excess => {
                self.reduced = now;
                self.is_suspended |= flight.has_vanished;
                let share = if flight.has_vanished { 5 } else { 7 };
                self.carried = (self.carried.max(flight.bytes) / 10 * share).min(self.carried).max(standard);
                self.together = self.carried;
            }
        }
        let is_answered = verdict == FlightVerdict::Excess && self.reduced != now;
        if (is_large || flight.lost > 0) && !is_answered {
            if self.verdicts.is_full() {
                self.verdicts.remove(0);
            }
            self.verdicts.push(FlightResult { verdict, sent: flight.sent.into(), lost: flight.lost.into() });
        }
        let excesses = self.latest(FLIGHTS).filter(|verdict| *verdict == FlightVerdict::Excess).count();
        if excesses >= BRAKE_EXCESSES {
            let is_again = now < self.braked_until + BRAKE && !self.brake.is_zero();
            self.brake = if is_again { (self.brake * 2).min(BRAKE) } else { BRAKE_FIRST };
            self.braked_until = now + self.brake;
            self.verdicts.clear();
        }
    }

    fn classify(
        &self,
        flight: &FlightReport,
        is_queued: bool,
        history: &LossHistory,
        now: Instant,
    ) -> FlightVerdict {
        let grows_with_volume = flight.lost_beyond > 0 && self.dose_until > now;
        let (sent, lost) = (flight.sent.into(), flight.lost.into());
        let is_excess = history.is_excess(sent, lost);
        let is_certain = lost > 2 * history.allowed(sent);
        match flight.lost {
            _ if flight.has_vanished => FlightVerdict::Excess,
            0 => FlightVerdict::Whole,
            _ if is_certain || grows_with_volume => FlightVerdict::Excess,
            _ if !is_queued && !is_excess => FlightVerdict::Random,
            _ if self.recurs(sent, lost, is_queued, history) => FlightVerdict::Excess,
            _ => FlightVerdict::Suspect,
        }
    }

    /// True if one of the latest three flights with losses was suspect, too. Without a queue, chance must
    /// also fail to explain their losses together: at a loss of 2 %, one of a hundred flights of 20 segments
    /// is suspect by chance.
    fn recurs(&self, sent: u64, lost: u64, is_queued: bool, history: &LossHistory) -> bool {
        let mut lossy = self.verdicts.iter().enumerate().rev().filter(|(_, flight)| flight.lost > 0).take(3);
        let suspect = lossy.find(|(_, flight)| flight.verdict == FlightVerdict::Suspect);
        suspect.is_some_and(|(at, _)| {
            let since = self.verdicts.iter().skip(at);
            let (sent, lost) =
                since.fold((sent, lost), |(sent, lost), flight| (sent + flight.sent, lost + flight.lost));
            is_queued || history.is_certain_excess(sent, lost)
        })
    }

    fn latest(&self, flights: usize) -> impl Iterator<Item = FlightVerdict> {
        self.verdicts.iter().rev().take(flights).map(|flight| flight.verdict)
    }
}

/// Returns the time of this many bytes at `rate` bytes per second.
pub(crate) fn at_rate(bytes: u64, rate: u64) -> Duration {
    Duration::from_micros(bytes.saturating_mul(1_000_000) / rate.max(1))
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    const MSS: u32 = 1448;
    const LIFETIME: Duration = Duration::from_secs(600);
    const RTT: Duration = Duration::from_millis(100);

    fn request(window: u32) -> StartRequest {
        let (has, rate) = (10 * MSS, 2_500_000);
        StartRequest { window, has, granted: 0, at_once: 0, rate, redundancy: 0, rtt: RTT }
    }

    fn segments(granted: Option<Granted>) -> Option<u32> {
        granted.map(|granted| granted.bytes / MSS)
    }

    fn at(seconds: u64) -> Instant {
        Instant::from_millis(1000 * seconds)
    }

    fn flight(segments: u32, lost: u32, second: u64) -> FlightReport {
        FlightReport {
            began: at(second),
            sent_until: at(second),
            bytes: segments * MSS,
            segments,
            sent: segments,
            lost,
            lost_beyond: 0,
            standard: (10 * MSS, 10),
            min_rtt: Duration::from_millis(100),
            waited: Duration::ZERO,
            waited_at_loss: Duration::ZERO,
            times: LossTimes::default(),
            has_vanished: false,
            train: None,
            granted: 0,
        }
    }

    /// Returns the segments of a start after these flights, one per second from 1.
    fn after(flights: &[FlightReport]) -> Option<u32> {
        let mut volume = Volume::default();
        for (second, flight) in (1..).zip(flights) {
            volume.on_flight(
                &FlightReport { began: at(second), ..*flight },
                &LossHistory::default(),
                LIFETIME,
                at(second),
            );
        }
        let now = at(flights.len() as u64);
        volume.start(None, LIFETIME, now).map(|volume| volume.bytes / MSS).filter(|segments| *segments > 0)
    }

    #[test]
    fn random_loss_does_not_change_the_volume() {
        assert_eq!(after(&[flight(20, 0, 0), flight(20, 1, 0), flight(12, 1, 0), flight(3, 1, 0)]), Some(20));
        assert_eq!(
            after(&[flight(20, 0, 0), flight(30, 1, 0)]),
            Some(30),
            "chance says nothing about the volume"
        );
    }

    #[test]
    fn excess_lowers_the_volume_once_and_two_brake() {
        assert_eq!(after(&[flight(40, 0, 0), flight(40, 12, 0)]), Some(28));
        assert_eq!(after(&[flight(40, 0, 0), flight(40, 12, 0), flight(28, 9, 0)]), None);
        let mut volume = Volume::default();
        for lost in [0, 12, 12, 12] {
            volume.on_flight(&flight(40, lost, 1), &LossHistory::default(), LIFETIME, at(2));
        }
        assert_eq!(volume.carried / MSS, 28, "they began before the first was reported");
        let vanished = FlightReport { has_vanished: true, ..flight(40, 1, 0) };
        assert_eq!(after(&[flight(40, 0, 0), vanished]), None);
        assert_eq!(after(&[flight(40, 0, 0), vanished, flight(10, 0, 0)]), Some(20));
    }

    #[test]
    fn brake_keeps_the_rate_of_the_path() {
        let mut volume = Volume::default();
        let train = Some(Train { rate: 2_500_000, is_limited: true });
        for (second, lost) in (1..).zip([0, 12, 9]) {
            let flight = FlightReport { train, ..flight(40, lost, second) };
            volume.on_flight(&flight, &LossHistory::default(), LIFETIME, at(second));
        }
        let start = PathVolume { bytes: 0, rate: Some(2_500_000), is_rate_limited: true, is_quiet: true };
        assert_eq!(volume.start(None, LIFETIME, at(3)), Some(start));
    }

    /// Returns the seconds for which starts have the standard window, after two excesses at each of these
    /// seconds.
    fn braked_after(seconds: &[u64]) -> Vec<u64> {
        let mut volume = Volume::default();
        let mut brakes = Vec::new();
        for second in seconds {
            for _ in 0..2 {
                let flight = FlightReport { began: at(*second), ..flight(28, 20, 0) };
                volume.on_flight(&flight, &LossHistory::default(), LIFETIME, at(*second));
                volume.reduced = Instant::ZERO;
            }
            brakes.push(volume.braked_until.saturating_since(at(*second)).as_secs());
        }
        brakes
    }

    #[test]
    fn brakes_that_follow_each_other_become_longer() {
        assert_eq!(braked_after(&[100, 105, 120, 150, 200, 300]), [4, 8, 16, 32, 60, 60]);
        assert_eq!(braked_after(&[100, 165]), [4, 4], "chance");
    }

    #[test]
    fn losses_behind_a_queue_count_if_they_recur() {
        let queued = FlightReport { waited: Duration::from_millis(50), ..flight(40, 1, 0) };
        assert_eq!(after(&[flight(40, 0, 0), queued]), Some(20), "half of it into a queue");
        assert_eq!(after(&[flight(40, 0, 0), queued, flight(40, 0, 0), queued]), Some(14));
    }

    /// Flights of 100 kB at the rate of the path start 20 ms apart, so together they have twice that rate.
    #[test]
    fn queue_of_our_own_flights_is_not_one_of_others() {
        let rate = 2_500_000;
        let train = Some(Train { rate, is_limited: true });
        let ms = Instant::from_millis;
        let of = |began, waited| FlightReport {
            began: ms(began),
            sent_until: ms(began + 40),
            bytes: 100_000,
            waited: Duration::from_millis(waited),
            train,
            ..flight(70, 0, 0)
        };
        let mut volume = Volume::default();
        for flight in [of(0, 0), of(1000, 0), of(1020, 0), of(1040, 20)] {
            volume.on_flight(&flight, &LossHistory::default(), LIFETIME, ms(1200));
        }
        let waits =
            [1020, 1040, 1060, 1070, 1080].map(|at| volume.longest_own_wait(ms(at), ms(at)).as_millis());
        assert_eq!(waits, [0, 20, 40, 40, 40]);
        assert!(!volume.is_queued(), "the last flight waited for the others");
        volume.on_flight(&of(1060, 80), &LossHistory::default(), LIFETIME, ms(1300));
        assert!(volume.is_queued(), "40 ms of that are due to others");
        volume.on_flight(&flight(2, 0, 2), &LossHistory::default(), LIFETIME, at(20));
        let was_queued = [31_299, 31_300].map(|at| volume.was_queued_at(ms(at)));
        assert_eq!(was_queued, [true, false], "a small flight shows nothing, so the sign ages");
    }

    /// Another flight left at the same time, without a grant. Eleven more wait for their turns.
    #[test]
    fn granted_flight_that_is_not_over_explains_a_wait() {
        let train = Some(Train { rate: 2_500_000, is_limited: true });
        let ms = Instant::from_millis;
        let of = |began, waited| FlightReport {
            began: ms(began),
            sent_until: ms(began + 40),
            bytes: 100_000,
            waited: Duration::from_millis(waited),
            train,
            ..flight(70, 0, 0)
        };
        let mut volume = Volume::default();
        volume.on_flight(&of(0, 0), &LossHistory::default(), LIFETIME, ms(200));
        for _ in 0..12 {
            assert!(volume.grant(&request(100_000), ms(1000)).is_some());
        }
        volume.on_flight(&of(1000, 0), &LossHistory::default(), LIFETIME, ms(1150));
        volume.on_flight(&of(1040, 40), &LossHistory::default(), LIFETIME, ms(1180));
        assert!(!volume.is_queued(), "the last flight waited for the first two");
    }

    /// The head of a start leaves at once, faster than the path, and other data waits for it.
    #[test]
    fn head_of_a_granted_flight_explains_a_wait() {
        let train = Some(Train { rate: 1_250_000, is_limited: true });
        let ms = Instant::from_millis;
        let rtt = Duration::from_millis(40);
        let waits = |at_once| {
            let mut volume = Volume::default();
            let known = FlightReport { train, min_rtt: rtt, ..flight(20, 0, 0) };
            volume.on_flight(&known, &LossHistory::default(), LIFETIME, ms(200));
            let request = StartRequest { at_once, rtt, ..request(30_000) };
            let granted = Granted { bytes: 30_000, at_once, from: ms(1000) };
            assert_eq!(volume.grant(&request, ms(1000)), Some(granted));
            let until = ms(1012);
            let beside = FlightReport { began: ms(1000), sent_until: until, min_rtt: rtt, ..flight(8, 0, 1) };
            let waited = Duration::from_millis(7);
            volume.on_flight(&FlightReport { waited, ..beside }, &LossHistory::default(), LIFETIME, ms(1060));
            volume.is_queued()
        };
        assert_eq!([0, 4 * MSS].map(waits), [true, false]);
    }

    /// A policer passes the first segments of each flight.
    #[test]
    fn losses_that_grow_with_the_volume_are_congestion() {
        let mut volume = Volume::default();
        let lossy = LossHistory { segments: 10_000, lost: 500, runs: 500 };
        let policed = FlightReport { lost_beyond: 2, ..flight(64, 2, 0) };
        for second in 1..=8 {
            volume.on_flight(&FlightReport { began: at(second), ..policed }, &lossy, LIFETIME, at(second));
        }
        assert_eq!(volume.start(None, LIFETIME, at(8)).unwrap().bytes, 0, "{volume:?}");
    }

    #[test]
    fn old_volume_is_halved_and_forgotten() {
        let mut volume = Volume::default();
        volume.on_flight(&flight(40, 0, 0), &LossHistory::default(), LIFETIME, at(0));
        let start = |second| volume.start(None, LIFETIME, at(second)).map(|start| start.bytes / MSS);
        assert_eq!([30, 31, 599, 600].map(start), [Some(40), Some(20), Some(20), None]);
    }

    #[test]
    fn rate_is_the_median_limit_or_the_highest_rate_reached() {
        let mut volume = Volume::default();
        let mut add = |rate, is_limited| {
            let train = Some(Train { rate, is_limited });
            volume.on_flight(
                &FlightReport { train, ..flight(20, 0, 0) },
                &LossHistory::default(),
                LIFETIME,
                at(0),
            );
            volume.rate().map(|train| (train.rate, train.is_limited))
        };
        assert_eq!(add(500, false), Some((500, false)));
        assert_eq!(add(900, true), Some((900, true)));
        assert_eq!(add(1000, true), Some((1000, true)));
        assert_eq!(add(5000, true), Some((1000, true)), "acknowledgements that arrived together");
        assert_eq!(add(1200, false), Some((1200, true)));
    }

    /// The first flight of Fast Open may end with segments that left a round trip after the others.
    #[test]
    fn slow_flights_of_the_sender_do_not_displace_the_rate_of_the_path() {
        let rate_after = |slow| {
            let mut volume = Volume::default();
            for (rate, is_limited) in [(2_400_000, true)].into_iter().chain([(slow, false); 12]) {
                let flight = FlightReport { train: Some(Train { rate, is_limited }), ..flight(20, 0, 0) };
                volume.on_flight(&flight, &LossHistory::default(), LIFETIME, at(0));
            }
            volume.start(None, LIFETIME, at(1)).and_then(|start| start.rate)
        };
        assert_eq!(rate_after(160_000), Some(2_400_000));
        assert_eq!(rate_after(2_300_000), Some(2_875_000), "the path did not limit them: a quarter more");
    }

    #[test]
    fn half_of_the_capacity_is_tried_without_contrary_evidence() {
        // 125 kB at 100 ms, whether the path limited the last flight or an earlier one.
        for flights in [1, 12] {
            let mut volume = Volume::default();
            let train = Some(Train { rate: 1_250_000, is_limited: true });
            for second in 0..flights {
                let train = Some(Train { rate: 1_250_000, is_limited: second == 0 });
                let flight = FlightReport { train, ..flight(20, 0, 0) };
                volume.on_flight(&flight, &LossHistory::default(), LIFETIME, at(0));
            }
            let start = |volume: &Volume, rtt| {
                let start = volume.start(Some(Duration::from_millis(rtt)), LIFETIME, at(1));
                start.map(|start| start.bytes)
            };
            assert_eq!((start(&volume, 100), start(&volume, 40)), (Some(62_500), Some(20 * MSS)));
            let excess = FlightReport { train, ..flight(20, 12, 2) };
            volume.on_flight(&excess, &LossHistory::default(), LIFETIME, at(2));
            assert_eq!(start(&volume, 100), Some(14 * MSS), "the path did not hold it");
        }
    }

    #[test]
    fn recurring_unlikely_losses_lower_the_volume() {
        // 1 % of 40 segments: two losses are plausible, five are not.
        let history = LossHistory { segments: 10_000, lost: 100, runs: 100 };
        assert_eq!(history.allowed(40), 2);
        let carried = |losses: &[u32]| {
            let mut volume = Volume::default();
            for (second, lost) in (1..).zip(losses) {
                volume.on_flight(&flight(40, *lost, second), &history, LIFETIME, at(second));
            }
            volume.carried / MSS
        };
        assert_eq!(carried(&[0, 4]), 40, "one in a hundred flights");
        assert_eq!(carried(&[0, 4, 0, 1, 4]), 28);
        assert_eq!(carried(&[0, 3, 0, 1, 3]), 40, "a path that is used a lot has these by chance");
        assert_eq!(carried(&[0, 5]), 28);
    }

    #[test]
    fn connections_of_a_path_share_its_volume() {
        let mut volume = Volume::default();
        volume.on_flight(&flight(40, 0, 0), &LossHistory::default(), LIFETIME, at(0));
        let request = request(25 * MSS);
        let grants = [(); 3].map(|()| segments(volume.grant(&request, at(1))));
        assert_eq!(grants, [Some(25), Some(15), None]);
        volume.on_flight(
            &FlightReport { granted: 25 * MSS, ..flight(25, 0, 1) },
            &LossHistory::default(),
            LIFETIME,
            at(1),
        );
        volume.on_flight(&flight(40, 0, 2), &LossHistory::default(), LIFETIME, at(2));
        let proven = FlightReport { granted: 15 * MSS, ..flight(15, 0, 1) };
        volume.on_flight(&proven, &LossHistory::default(), LIFETIME, at(2));
        let grants = [(); 3].map(|()| segments(volume.grant(&request, at(2))));
        assert_eq!(grants, [Some(25), Some(25), None], "one flight more, since another asked in vain");
        volume.on_queue();
        assert_eq!(segments(volume.grant(&request, at(3))), Some(25), "all are over");
        assert_eq!(segments(volume.grant(&request, at(3))), Some(15));
        let more = StartRequest { window: 20 * MSS, has: 15 * MSS, granted: 15 * MSS, ..request };
        assert_eq!(segments(volume.grant(&more, at(3))), None, "25 of 40 are with another connection");
        let more = StartRequest { window: 40 * MSS, has: 25 * MSS, granted: 25 * MSS, ..request };
        volume.on_flight(
            &FlightReport { granted: 15 * MSS, ..flight(15, 0, 3) },
            &LossHistory::default(),
            LIFETIME,
            at(3),
        );
        assert_eq!(segments(volume.grant(&more, at(3))), Some(40), "the other one has given back");
    }

    #[test]
    fn flights_with_random_losses_show_that_the_path_carries_them_together() {
        let together = |lost| {
            let mut volume = Volume::default();
            let history = LossHistory { segments: 10_000, lost: 500, runs: 500 };
            volume.on_flight(&flight(40, 0, 0), &history, LIFETIME, at(0));
            let request = request(40 * MSS);
            let first = [(); 2].map(|()| segments(volume.grant(&request, at(1))));
            assert_eq!(first, [Some(40), None]);
            let flight = FlightReport { granted: 40 * MSS, ..flight(40, lost, 1) };
            volume.on_flight(&flight, &history, LIFETIME, at(2));
            [(); 2].map(|()| segments(volume.grant(&request, at(2))))
        };
        assert_eq!(together(2), [Some(40); 2], "chance explains two of 40 at 5 %");
        assert_eq!(together(8), [Some(40), None], "but not eight");
    }

    /// Returns a volume that knows the rate of the path.
    fn measured(rate: u64) -> Volume {
        let mut volume = Volume::default();
        let train = Some(Train { rate, is_limited: true });
        let known = FlightReport { bytes: 100_000, train, ..flight(70, 0, 0) };
        volume.on_flight(&known, &LossHistory::default(), LIFETIME, at(0));
        volume
    }

    /// The path carries 100 kB in 40 ms. A turn takes a little longer.
    #[test]
    fn starts_take_turns_at_the_rate_of_the_path() {
        let mut volume = measured(2_500_000);
        let ms = Instant::from_millis;
        let mut grant = |redundancy, at_ms| {
            let request = StartRequest { at_once: 4 * MSS, redundancy, ..request(100_000) };
            volume.grant(&request, ms(at_ms)).map(|Granted { bytes, at_once, from }| {
                assert_eq!(bytes, 100_000);
                (at_once, from.saturating_since(at(1)).as_millis())
            })
        };
        assert_eq!([grant(0, 1000), grant(0, 1000)], [Some((4 * MSS, 0)), Some((0, 41))]);
        assert_eq!([grant(25, 1010), grant(0, 1020)], [Some((0, 82)), Some((0, 133))], "parity takes time");
        assert_eq!(grant(0, 1200), Some((4 * MSS, 200)), "the others have left");
        let granted = (0..100).filter_map(|_| grant(0, 1200)).count();
        assert_eq!(granted, 72, "3 s at most");
        assert_eq!(grant(0, 5000), Some((4 * MSS, 4000)));

        let mut beside_others = measured(2_500_000);
        beside_others.queued = 1 << 8;
        let grants = [(); 2].map(|()| beside_others.grant(&request(100_000), at(1)).is_some());
        assert_eq!(grants, [true, false], "the volume of one flight");
    }

    #[test]
    fn rate_of_a_flight_that_left_beside_others_is_not_that_of_the_path() {
        let ms = Instant::from_millis;
        let of = |began, rate| FlightReport {
            began: ms(began),
            sent_until: ms(began + 40),
            train: Some(Train { rate, is_limited: true }),
            ..flight(70, 0, 0)
        };
        let rate_after = |flights: &[u64]| {
            let mut volume = measured(2_500_000);
            for began in flights {
                volume.on_flight(&of(*began, 800_000), &LossHistory::default(), LIFETIME, ms(*began + 200));
            }
            volume.rate().map(|train| train.rate)
        };
        assert_eq!(rate_after(&[1000]), Some(2_500_000), "the median");
        assert_eq!(rate_after(&[1000, 1010, 1020, 1030]), Some(2_500_000));
        assert_eq!(rate_after(&[1000, 1040, 1080, 1120]), Some(800_000), "one after the other");
    }

    /// The path carries 100 kB in 40 ms. The outcome of a flight is known late if a segment is sent again.
    #[test]
    fn data_that_left_a_round_trip_ago_takes_no_volume() {
        let ms = Instant::from_millis;
        let second = |at| {
            let mut volume = Volume::default();
            let known = FlightReport { bytes: 100_000, ..flight(70, 0, 0) };
            volume.on_flight(&known, &LossHistory::default(), LIFETIME, ms(200));
            let request = request(100_000);
            let [first, second] = [1000, at].map(|at| volume.grant(&request, ms(at)));
            assert!(first.is_some());
            second.map(|granted| granted.bytes)
        };
        assert_eq!([1100, 1120, 1140].map(second), [None, Some(50_000), Some(100_000)]);
    }

    /// The application writes more data after most of a round trip.
    #[test]
    fn data_of_an_extended_grant_leaves_after_the_extension() {
        let ms = Instant::from_millis;
        let mut volume = Volume::default();
        let known = FlightReport { bytes: 100_000, ..flight(70, 0, 0) };
        volume.on_flight(&known, &LossHistory::default(), LIFETIME, ms(200));
        let request = request(20_000);
        let mut grant = |request: &StartRequest, at_ms| {
            volume.grant(request, ms(at_ms)).map_or(0, |granted| granted.bytes)
        };
        assert_eq!(grant(&request, 1000), 20_000);
        let more = StartRequest { window: 100_000, has: 20_000, granted: 20_000, ..request };
        assert_eq!(grant(&more, 1090), 100_000);
        let granted = grant(&StartRequest { window: 100_000, ..request }, 1140);
        assert!(granted < 50_000, "{granted} of 100 kB, of which 80 kB left 18 to 50 ms ago");
    }
}

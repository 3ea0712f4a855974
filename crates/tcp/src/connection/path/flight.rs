//! Observes the volume, the losses and the acknowledgement rate of each flight, for the path memory and the
//! congestion controller.
//!
//! A flight is all data that leaves before the acknowledgement of its first segment arrives: a round trip of
//! data. It is reported as soon as each of its segments has arrived or is known to be lost. The path memory
//! decides what the report means ([`crate::path::PathVolume`]).

use brisk_wire::SeqNum;

use crate::congestion::sample::Train;
use crate::connection::path::pause::{Rise, Sample};
use crate::connection::path::{OnPath, STANDARD_WINDOW};
use crate::connection::sender::{Sender, initial_window};
use crate::evidence::{LossTimes, shows_queue};
use crate::outcome::AckOutcome;
use crate::path::{FlightReport, LossCount};
use crate::send::rtt::RecentRtts;
use crate::send::scoreboard::Scoreboard;
use crate::seq_ranges::SeqRange;
use crate::time::{Duration, Instant, Micros};

/// Minimum number of segments in a flight that is reported as lost as a whole.
const WHOLE_FLIGHT: u32 = 4;
/// Minimum number of segments and of acknowledgements in a train.
const TRAIN_SEGMENTS: u32 = 8;
const TRAIN_ACKS: u32 = 4;
const TRAIN_MIN: Micros = Micros::from_millis(1);
/// Delay after which the acknowledgement of one segment is attributed to the receiver's delayed ACK.
const DELAYED: Micros = Micros::from_millis(5);

/// Minimum number of round-trip samples that show a queue of other traffic.
const QUEUE_SAMPLES: u32 = 4;

#[derive(Debug, Default)]
pub(crate) struct FlightWatch {
    round: Option<Round>,
    rise: Option<Rise>,
    /// Minimum queueing delay of the previous flight.
    waited: Duration,
    recent: RecentRtts,
    finished: Option<FlightReport>,
    /// Data before this belongs to flights that have been reported.
    reported: Option<SeqNum>,
}

/// The flight that is being acknowledged.
#[derive(Debug)]
struct Round {
    range: SeqRange,
    began: Instant,
    /// Time of the first acknowledgement: data that leaves from then on is the next flight.
    acked: Instant,
    before: LossCount,
    lost_beyond: u32,
    /// Maximum queueing delay around a loss.
    waited_at_loss: Duration,
    /// Minimum round-trip time of the flight, and the number of its samples. A queue of other traffic delays
    /// all segments of the flight. The flight's own queue delays only the later ones, and a process that runs
    /// late delays only some.
    min_rtt: Option<Micros>,
    rtt_samples: u32,
    train: TrainMeter,
    /// Redundancy of the connection that had been delivered at the last acknowledgement.
    redundancy: u64,
    times: LossTimes,
}

/// Acknowledgements of one flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct TrainMeter {
    acks: u32,
    first: Point,
    previous: Point,
    last: Point,
}

/// An acknowledgement: its arrival time, the time at which the newest of its segments left, and the bytes
/// delivered after the first acknowledgement, redundancy included.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Point {
    at: Instant,
    sent_at: Instant,
    bytes: u32,
}

impl TrainMeter {
    fn on_ack(&mut self, at: Instant, sent_at: Instant, bytes: u32) {
        self.acks += 1;
        if self.acks == 1 {
            self.first = Point { at, sent_at, bytes: 0 };
            self.last = self.first;
            return;
        }
        self.previous = self.last;
        self.last = Point { at, sent_at: sent_at.max(self.last.sent_at), bytes: self.last.bytes + bytes };
    }

    /// Returns the rate from the first acknowledgement to the last one, if the interval is long enough.
    fn rate(&self, mss: u32) -> Option<Train> {
        let span = |point: &Point| Micros::between(self.first.at, point.at);
        let gap = Micros::between(self.previous.at, self.last.at);
        let mean = span(&self.previous).0 / self.acks.saturating_sub(2).max(1);
        let is_delayed = self.last.bytes - self.previous.bytes <= mss && gap > DELAYED && gap.0 / 2 > mean;
        let last = if is_delayed && self.acks > 2 { self.previous } else { self.last };
        if self.acks < TRAIN_ACKS || last.bytes < (TRAIN_SEGMENTS - 1) * mss || span(&last) < TRAIN_MIN {
            return None;
        }
        let per_second = |span: Micros| (u64::from(last.bytes) * 1_000_000).checked_div(span.0.into());
        let acked = per_second(span(&last))?;
        let sent = per_second(Micros::between(self.first.sent_at, last.sent_at)).unwrap_or(u64::MAX);
        let rate = acked.min(sent);
        Some(Train { rate, is_limited: u128::from(rate) * 10 < u128::from(sent) * 9 })
    }
}

impl OnPath {
    /// Processes the round-trip sample of an acknowledgement, before the estimator does. Returns the sample
    /// if it may show a queue (see [`Rise`]).
    pub(in crate::connection) fn watch_rtt(
        &mut self,
        ack: &AckOutcome,
        tx: &Sender,
        now: Instant,
    ) -> Option<Micros> {
        let rtt = ack.rtt?;
        let mut originals = ack.delivered.iter().filter(|segment| !segment.retransmitted);
        let bytes = originals.clone().map(|segment| segment.range.len()).sum();
        // The acknowledgement of a SYN delivers no data, so the sample gives the time of departure.
        let sent = now.as_micros().saturating_sub(rtt.0.into());
        let sent_at = originals.next_back().map_or(Instant::from_micros(sent), |newest| newest.sent_at);
        let Some(least) = self.min_rtt(tx) else { return Some(rtt) };
        let sample = Sample {
            rtt: rtt.into(),
            latest: tx.rtt.latest().map(Duration::from),
            least,
            sent_at,
            bytes,
            rate: self.known.volume.filter(|volume| volume.is_rate_limited).and_then(|volume| volume.rate),
        };
        let mut rise = self.flights.as_ref().and_then(|watch| watch.rise);
        let may_show_queue = Rise::may_show_queue(&mut rise, &sample, now);
        if self.flights.is_some() || rise.is_some() && !tx.scoreboard.is_empty() {
            self.flights.get_or_insert_default().rise = rise;
        }
        may_show_queue.then_some(rtt)
    }

    /// Processes an acknowledgement. `rtt`: its round-trip sample, if it may show a queue; `before`: the
    /// losses before it.
    pub(in crate::connection) fn watch_flight(
        &mut self,
        ack: &AckOutcome,
        rtt: Option<Micros>,
        before: LossCount,
        tx: &Sender,
        now: Instant,
    ) {
        let (nxt, redundancy) = (tx.scoreboard.nxt(), redundancy_of(tx));
        let watch = self.flights.get_or_insert_default();
        if let Some(rtt) = rtt {
            watch.recent.push(rtt);
        }
        if watch.round.is_none()
            && let Some(first) = ack.delivered.iter().find(|segment| !segment.retransmitted)
        {
            let start = watch.reported.map_or(ack.una_before, |reported| reported.max(ack.una_before));
            watch.round = Some(Round::new(SeqRange::new(start, nxt), first.sent_at, now, before, redundancy));
        }
        let Some(round) = &mut watch.round else { return };
        if let Some(rtt) = rtt {
            round.min_rtt = Some(round.min_rtt.map_or(rtt, |min| min.min(rtt)));
            round.rtt_samples += 1;
            round.times.on_rtt(rtt);
        }
        let (mut bytes, mut newest) = (0, None);
        for segment in &ack.delivered {
            if !segment.retransmitted && segment.range.end.le(round.range.end) {
                bytes += segment.range.len();
                newest = Some(segment.sent_at);
            }
        }
        if let Some(sent_at) = newest {
            let more = redundancy.saturating_sub(core::mem::replace(&mut round.redundancy, redundancy));
            let more = u32::try_from(more).unwrap_or(u32::MAX);
            round.train.on_ack(now, sent_at, bytes.saturating_add(more));
        }
    }

    /// True if each segment of the flight has arrived or is known to be lost.
    #[inline]
    pub(super) fn is_flight_over(&self, board: &Scoreboard) -> bool {
        let round = self.flights.as_ref().and_then(|watch| watch.round.as_ref());
        round.is_some_and(|round| {
            board.originals().next().is_none_or(|original| original.range.start.ge(round.range.end))
        })
    }

    /// Reports the flight, which is over. `losses`: all losses until now. Returns the rate of its
    /// acknowledgements, if there are enough of them.
    pub(super) fn report_flight(
        &mut self,
        losses: LossCount,
        has_memory: bool,
        tx: &Sender,
        now: Instant,
    ) -> Option<Train> {
        let (una, nxt, mss) = (tx.scoreboard.una(), tx.scoreboard.nxt(), tx.mss());
        let (waited, min_rtt) = (self.waited(tx), self.min_rtt(tx));
        let round = self.flights.as_mut().and_then(|watch| watch.round.take())?;
        let end = round.range.end;
        let train = round.train.rate(mss);
        let lost = losses.since(round.before);
        let granted = if self.is_on_trust_behind(end) { 0 } else { self.take_granted() };
        let segments = round.range.len().div_ceil(mss);
        let report = FlightReport {
            began: round.began,
            sent_until: round.train.last.sent_at.max(round.began),
            bytes: round.range.len(),
            segments,
            sent: segments.saturating_add(u32::try_from(lost.sent).unwrap_or(u32::MAX)),
            lost: u32::try_from(lost.lost).unwrap_or(u32::MAX),
            lost_beyond: round.lost_beyond,
            standard: (initial_window(STANDARD_WINDOW, mss), STANDARD_WINDOW),
            min_rtt: min_rtt.unwrap_or_default(),
            waited,
            waited_at_loss: round.waited_at_loss,
            times: round.times,
            has_vanished: false,
            train,
            granted,
        };
        // A SYN, a FIN or a short request says nothing about the volume.
        let is_relevant = report.bytes >= mss || report.lost > 0 || granted > 0;
        if let Some(watch) = &mut self.flights {
            watch.waited = waited;
            watch.finished = Some(report).filter(|_| has_memory && is_relevant);
            watch.reported = Some(end);
            let next = end.lt(nxt).then_some(SeqRange::new(end, nxt));
            watch.round = next.map(|range| Round::new(range, round.acked, now, losses, redundancy_of(tx)));
            if una.ge(nxt) && watch.finished.is_none() {
                self.flights = None;
            }
        }
        train
    }

    /// True if all round trips of the flight are longer than the round trip of the path without a queue.
    pub(in crate::connection) fn sees_queue(&self, tx: &Sender) -> bool {
        self.min_rtt(tx).is_some_and(|min| shows_queue(min + self.waited(tx), min))
    }

    /// Returns the minimum time that a segment of the flight spent in queues: its minimum round-trip time
    /// less the round-trip time of the empty path. With too few samples it is the value of the previous
    /// flight.
    fn waited(&self, tx: &Sender) -> Duration {
        let Some(watch) = &self.flights else { return Duration::ZERO };
        let enough = watch.round.as_ref().filter(|round| round.rtt_samples >= QUEUE_SAMPLES);
        match enough.and_then(|round| round.min_rtt).zip(self.min_rtt(tx)) {
            Some((rtt, min)) => Duration::from(rtt).saturating_sub(min),
            None => watch.waited,
        }
    }

    /// Records segments that have been declared lost.
    #[inline]
    pub(in crate::connection) fn watch_losses(&mut self, lost: &[SeqRange], tx: &Sender) {
        let min = self.min_rtt(tx);
        let standard = initial_window(STANDARD_WINDOW, tx.mss());
        let Some(watch) = &mut self.flights else { return };
        let Some(round) = &mut watch.round else { return };
        if let Some((rtt, min)) = watch.recent.min().zip(min) {
            round.waited_at_loss = round.waited_at_loss.max(Duration::from(rtt).saturating_sub(min));
        }
        if let Some(rtt) = watch.recent.min_of_latest_two() {
            round.times.on_loss(rtt);
        }
        let beyond = round.range.start + standard;
        round.lost_beyond += lost.iter().filter(|range| range.start.ge(beyond)).count() as u32;
    }

    /// Processes a retransmission timeout. If nothing of a whole flight has arrived, the report says that all
    /// of it was lost.
    pub(in crate::connection) fn watch_timeout(&mut self, tx: &Sender, now: Instant) {
        let (mss, bytes) = (tx.mss(), tx.scoreboard.outstanding());
        let has_round = self.flights.as_ref().is_some_and(|watch| watch.round.is_some());
        if has_round || bytes < WHOLE_FLIGHT * mss {
            return;
        }
        let segments = bytes.div_ceil(mss);
        let report = FlightReport {
            began: tx.scoreboard.head().map_or(now, |head| head.first_sent_at),
            sent_until: now,
            bytes,
            segments,
            sent: segments,
            lost: segments,
            lost_beyond: 0,
            standard: (initial_window(STANDARD_WINDOW, mss), STANDARD_WINDOW),
            min_rtt: self.min_rtt(tx).unwrap_or_default(),
            waited: Duration::ZERO,
            waited_at_loss: Duration::ZERO,
            times: LossTimes::default(),
            has_vanished: true,
            train: None,
            granted: self.take_granted(),
        };
        self.flights.get_or_insert_default().finished = Some(report);
    }

    /// True if a report about a flight is due.
    #[inline]
    pub(crate) fn owes_flight_report(&self) -> bool {
        self.flights.as_ref().is_some_and(|watch| watch.finished.is_some())
    }

    /// Takes the report about the finished flight. `is_idle`: nothing is in flight.
    pub(crate) fn take_flight_report(&mut self, is_idle: bool) -> Option<FlightReport> {
        let watch = self.flights.as_mut()?;
        let report = watch.finished.take();
        if watch.round.is_none() && is_idle {
            self.flights = None;
        }
        report
    }
}

impl Round {
    fn new(range: SeqRange, began: Instant, acked: Instant, before: LossCount, redundancy: u64) -> Round {
        Round {
            range,
            began,
            acked,
            before,
            lost_beyond: 0,
            waited_at_loss: Duration::ZERO,
            min_rtt: None,
            rtt_samples: 0,
            train: TrainMeter::default(),
            redundancy,
            times: LossTimes::default(),
        }
    }
}

/// Returns the redundancy of the connection that has been delivered, bytes; 0 if it is unknown.
fn redundancy_of(tx: &Sender) -> u64 {
    let own = tx.rate.delivery.as_ref().filter(|_| tx.rate.others.is_none());
    own.map_or(0, |delivery| delivery.redundancy_delivered())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 1432;

    fn us(micros: u64) -> Instant {
        Instant::from_micros(micros)
    }

    /// 20 segments back to back through 10 Mbit/s, acknowledged in twos.
    #[test]
    fn train_shows_the_rate_of_the_path() {
        let mut train = TrainMeter::default();
        for ack in 0..10 {
            train.on_ack(us(102_400 + 2400 * ack), us(0), 2 * MSS);
        }
        assert_eq!(train.rate(MSS), Some(Train { rate: 1_193_333, is_limited: true }));
        train.on_ack(us(102_400 + 2400 * 9 + 40_000), us(0), MSS);
        assert_eq!(train.rate(MSS).map(|train| train.rate), Some(1_193_333), "a delayed acknowledgement");
    }

    #[test]
    fn train_that_arrives_as_it_was_sent_is_a_lower_bound() {
        let mut train = TrainMeter::default();
        for ack in 0..10 {
            train.on_ack(us(100_000 + 5000 * ack), us(5000 * ack), 2 * MSS);
        }
        assert_eq!(train.rate(MSS), Some(Train { rate: 572_800, is_limited: false }));
        let mut short = TrainMeter::default();
        (0..3).for_each(|ack| short.on_ack(us(2400 * ack), us(0), 8 * MSS));
        assert_eq!(short.rate(MSS), None);
    }
}

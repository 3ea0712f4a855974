//! The planner on one connection: its input for [`crate::mechanism::plan`], and the use of the resulting
//! plan.
//!
//! A plan is made when a flight begins: there is data to send, and the flight of the last plan has left. It
//! determines the groups of the encoder, the segments that the copier selects, and the size of segments.
//! Until the next plan the cost of this one limits the redundancy. The unspent part of the previous plan is
//! added if its flight was not acknowledged when this plan was made.

use brisk_wire::SeqNum;

use crate::config::PlannerConfig;
use crate::connection::State;
use crate::connection::gentle::{Gentle, Parts};
use crate::connection::observation::Observation;
use crate::connection::sender::Sender;
use crate::evidence::is_queued;
use crate::mechanism::plan::{self, Flight, Losses, Means, Plan, Protection};
use crate::outcome::CongestionState;
use crate::send::budget::Budget;
use crate::send::rtt::RecentRtts;
use crate::seq_ranges::SeqRange;
use crate::time::{Duration, Instant, Micros};

/// Weight of the assumed loss of an unknown path, in segments.
const PRIOR_SEGMENTS: u64 = 5;
/// Number of recent losses whose cause is remembered.
const KINDS: u32 = 8;

/// Delay of an exchange whose SYN or SYN-ACK was lost, in thousandths of a round trip. It consists of the
/// timer of the handshake, and the round trip of a request without Fast Open.
const LATE_HANDSHAKE: u32 = 2_500;
/// Mean length of a run of losses, in thousandths of a loss, from which a SYN and its copy leave with a gap.
const RUNS: u32 = 1_300;
/// Maximum time between a SYN and its copy.
const GAP_MAX: Duration = Duration::from_millis(200);
/// Delay if only the data of the SYN was lost and follows the handshake, in thousandths of a round trip.
const LATE_REQUEST: u32 = 1_000;

#[derive(Debug)]
pub(crate) struct Planner {
    config: PlannerConfig,
    /// Redundancy that the allowance of the destination permits now, bytes.
    destination_allowance: u32,
    /// Part of the allowance reserved for flights planned here, and the time of the reservation.
    reserved: (u32, Instant),
    flight: Option<Planned>,
    pub(super) kinds: LossKinds,
    /// True if the latest plan or loss found a full queue on the path.
    sees_queue: bool,
}

/// A change of a connection's reservation in the allowance of its destination, bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReservationChange {
    /// Bytes reserved at `since` that are free again.
    pub(crate) released: u32,
    pub(crate) since: Instant,
    /// Bytes reserved from now on.
    pub(crate) reserved: u32,
}

/// A flight that has a plan.
#[derive(Clone, Copy, Debug)]
struct Planned {
    range: SeqRange,
    plan: Plan,
}

/// Causes of the last losses: one bit each, set if there was a queue on the path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct LossKinds {
    seen: u32,
    queue: u32,
    pub(super) recent: RecentRtts,
}

impl LossKinds {
    /// Records a loss. `is_full`: the path drops segments at a full queue now.
    fn on_loss(&mut self, min_rtt: Option<Duration>, is_full: bool) {
        let queue = is_full || self.shows_queue(min_rtt);
        self.queue = (self.queue << 1 | u32::from(queue)) & ((1 << KINDS) - 1);
        self.seen = (self.seen + 1).min(KINDS);
    }

    /// True if all of the last round trips were long.
    fn shows_queue(&self, min_rtt: Option<Duration>) -> bool {
        self.recent.min().is_some_and(|rtt| is_queued(rtt.into(), min_rtt))
    }

    /// True if most of the losses came from a queue, or some did and there is a queue now.
    fn is_queue(&self, min_rtt: Option<Duration>) -> bool {
        let queued = self.queue.count_ones();
        queued * 2 > self.seen || (queued > 0 && self.shows_queue(min_rtt))
    }
}

impl Planner {
    pub(crate) fn new(config: PlannerConfig) -> Self {
        Planner {
            config,
            destination_allowance: 0,
            reserved: (0, Instant::ZERO),
            flight: None,
            kinds: LossKinds::default(),
            sees_queue: false,
        }
    }

    /// Returns how long the copy of this segment waits; `None` if the plan does not copy it.
    pub(crate) fn copy_delay(&self, segment: &SeqRange, srtt: Option<Micros>) -> Option<Duration> {
        let Planned { range, plan } = self.flight?;
        let Protection::Copies { last, pause } = plan.protection else { return None };
        let segments = range.len().div_ceil(plan.segment.max(1));
        let named = range.start + segments.saturating_sub(last).saturating_mul(plan.segment);
        let wait = if pause { Duration::from(srtt.unwrap_or_default()) / 4 } else { Duration::ZERO };
        (segment.end.gt(named) && segment.start.lt(range.end)).then_some(wait)
    }

    /// Returns the allowance that the flight itself earns.
    fn earned_by(&self, flight: &Flight) -> u32 {
        let bytes = u64::from(flight.bytes) + u64::from(flight.segments() * flight.headers);
        (bytes * u64::from(self.config.max_overhead) / 100) as u32
    }

    /// Returns the last planned flight until all of it is acknowledged.
    fn unacknowledged(&self, parts: &Parts<'_>) -> Option<Planned> {
        let una = parts.tx.scoreboard.una();
        self.flight.filter(|flight| parts.state != State::Closed && una.lt(flight.range.end))
    }

    /// Returns the expected losses: a weighted mean of an assumption, the memory of the path and this
    /// connection.
    pub(crate) fn expected_losses(&self, parts: &Parts<'_>) -> Losses {
        let Parts { path, tx, .. } = parts;
        let own = path.random_losses(parts.all_losses());
        let known = path.known.loss;
        let (known_segments, known_loss) = known.map_or((0, 0), |known| (known.segments, known.per_million));
        let segments = PRIOR_SEGMENTS + u64::from(known_segments) + own.sent;
        let lost = PRIOR_SEGMENTS * u64::from(self.config.assumed_loss)
            + u64::from(known_segments) * u64::from(known_loss)
            + own.lost * 1_000_000;
        Losses {
            per_million: (lost / segments).min(500_000) as u32,
            burst_milli: known.map_or(1000, |known| known.burst_milli).max(1000),
            queue: self.kinds.is_queue(path.min_rtt(tx))
                || path.known.is_queued
                || path.began_in_queue(tx)
                || path.sees_queue(tx),
        }
    }
}

/// The plan in force.
impl Gentle {
    pub(crate) fn plans(&self) -> bool {
        self.planner.is_some()
    }

    pub(crate) fn planner_config(&self) -> Option<&PlannerConfig> {
        self.planner.as_ref().map(|planner| &planner.config)
    }

    /// True if the planner has made a decision, or had an allowance to make one.
    pub(crate) fn has_planned(&self) -> bool {
        self.planner.as_ref().is_some_and(|planner| {
            let has_reserved = planner.reserved != (0, Instant::ZERO);
            planner.flight.is_some() || planner.destination_allowance > 0 || has_reserved
        })
    }

    /// Sets the redundancy that the allowance of the destination permits now, bytes.
    pub(crate) fn set_destination_allowance(&mut self, bytes: u32) {
        if let Some(planner) = &mut self.planner {
            planner.destination_allowance = bytes;
        }
    }

    /// True if the allowance of the destination permits `bytes` in addition to the plans; always true without
    /// a planner.
    pub(crate) fn affords(&self, bytes: u32) -> bool {
        self.planner.as_ref().is_none_or(|planner| bytes <= planner.destination_allowance)
    }

    /// True if no parity may leave now. Recovery mostly follows a queue that overflowed, and parity would
    /// lengthen the queue. With a planner, parity may leave after random losses. Otherwise the first random
    /// loss would end the protection of a flight that takes longer than a round trip.
    pub(crate) fn withholds_parity(&self, state: CongestionState) -> bool {
        match state {
            CongestionState::Open | CongestionState::Disorder | CongestionState::Cwr => false,
            CongestionState::Recovery => self.planner.as_ref().is_none_or(|planner| planner.sees_queue),
            CongestionState::Loss => true,
        }
    }

    fn planned_flight(&self) -> Option<Planned> {
        self.planner.as_ref().and_then(|planner| planner.flight)
    }

    /// True if segments of the current flight are copied.
    pub(crate) fn plans_copies(&self) -> bool {
        let flight = self.planned_flight();
        flight.is_some_and(|flight| matches!(flight.plan.protection, Protection::Copies { .. }))
    }

    /// Returns the bytes, in whole segments, to the end of the current flight: later data has its own plan.
    pub(crate) fn planned_run(&self, nxt: SeqNum, mss: u32) -> u32 {
        let end = self.planned_flight().map(|flight| flight.range.end).filter(|end| nxt.lt(*end));
        end.map_or(u32::MAX, |end| end.since(nxt).div_ceil(mss).saturating_mul(mss))
    }

    /// Returns the largest payload of a segment that begins at `seq`, if the plan makes segments smaller.
    pub(crate) fn planned_segment(&self, seq: SeqNum) -> u32 {
        let flight = self.planned_flight().filter(|flight| flight.range.contains(seq));
        flight.map_or(u32::MAX, |flight| flight.plan.segment)
    }

    /// Returns a change of the reservation in the allowance of the destination; usually `None`, and always
    /// without a planner.
    #[inline]
    pub(crate) fn take_reservation(&mut self, parts: &Parts<'_>, now: Instant) -> Option<ReservationChange> {
        let planner = self.planner.as_mut()?;
        // IP bytes that are planned and may still leave: the copy of a SYN or SYN-ACK, and redundancy of a
        // flight that is not acknowledged.
        let redundancy = planner.unacknowledged(parts).map_or(0, |_| parts.tx.redundancy_left());
        let planned = redundancy.saturating_add(parts.handshake.syn.copy.waiting_len());
        let (reserved, since) = planner.reserved;
        if planned == reserved {
            return None;
        }
        if planned < reserved {
            planner.reserved.0 = planned;
            return Some(ReservationChange { released: reserved - planned, since, reserved: 0 });
        }
        planner.reserved = (planned, now);
        Some(ReservationChange { released: reserved, since, reserved: planned })
    }
}

/// Losses: the memory of the path and the planner learn of them.
impl Gentle {
    /// Records the cause of a loss, repaired or not.
    pub(crate) fn record_loss(&mut self, parts: &mut Parts<'_>) {
        parts.path.sort_losses(parts.all_losses(), parts.tx);
        let Some(planner) = &mut self.planner else { return };
        // A sample that may include the timer of a lost SYN-ACK is long even without a queue.
        let min = parts.path.rtt_report(parts.tx).and_then(|_| parts.path.min_rtt(parts.tx));
        planner.kinds.on_loss(min, parts.tx.is_queue_full());
        planner.sees_queue = planner.expected_losses(parts).queue;
    }
}

/// The handshake, which is protected first: without it redundancy of the data is useless.
impl Gentle {
    /// True if the planner considers a copy of the first SYN or SYN-ACK useful; always true without a
    /// planner. The copy has `bytes` bytes. `plain`: it omits the data of the SYN.
    pub(crate) fn plans_syn_copy(&self, bytes: u32, plain: bool, parts: &Parts<'_>) -> bool {
        let late = if plain { LATE_HANDSHAKE - LATE_REQUEST } else { LATE_HANDSHAKE };
        self.planner.as_ref().is_none_or(|planner| {
            plan::doubles_handshake(
                bytes,
                late,
                &planner.expected_losses(parts),
                planner.destination_allowance,
            )
        })
    }

    /// Returns the minimum delay of the copy of a SYN. If losses come in runs, the copy leaves after such a
    /// run. The copy of a SYN-ACK does not wait, because the response follows the SYN-ACK and would arrive
    /// before the handshake is complete.
    pub(crate) fn planned_syn_gap(&self, parts: &Parts<'_>) -> Duration {
        let planner = self.planner.as_ref().filter(|_| parts.state == State::SynSent);
        let runs = planner.is_some_and(|planner| planner.expected_losses(parts).burst_milli >= RUNS);
        let srtt = parts.path.known.rtt.map_or(Duration::ZERO, |rtt| rtt.srtt);
        if runs { (srtt / 4).min(GAP_MAX) } else { Duration::ZERO }
    }
}

/// Decisions of the planner.
impl Gentle {
    /// True if a flight begins with the next new data, and has no plan.
    pub(crate) fn needs_plan(&self, tx: &Sender) -> bool {
        let Some(planner) = &self.planner else { return false };
        let under_way = planner.flight.is_some_and(|flight| tx.scoreboard.nxt().lt(flight.range.end));
        tx.unsent() > 0 && !under_way
    }

    /// Plans how the flight that begins is protected, and applies the plan to the mechanisms.
    pub(crate) fn plan_flight(&mut self, flight: Flight, parts: &mut Parts<'_>) {
        let unmarked = self.may_copy_unmarked(parts);
        let means = Means { parity: self.planned_parity(), copies: unmarked || self.sends_copies() };
        let Some(planner) = &mut self.planner else { return };
        let losses = planner.expected_losses(parts);
        // Pacing may have held back redundancy of the flight before.
        let left = parts.tx.redundancy_left();
        let owed = planner.unacknowledged(parts).map_or(0, |last| left.min(last.plan.cost));
        let (available, earned) = (planner.destination_allowance, planner.earned_by(&flight));
        // Each peer of such an end is a destination of its own. So the constant of the allowance would permit
        // copies of all data of most peers.
        let allowance = if unmarked { available.min(earned) } else { available.saturating_add(earned) };
        let plan = match planner.config.form {
            Some(form) => form.weigh(&flight, &losses),
            None => plan::plan(&flight, &losses, &means, allowance),
        };
        planner.sees_queue = losses.queue;
        let range = SeqRange::with_len(parts.tx.scoreboard.nxt(), flight.bytes);
        planner.flight = Some(Planned { range, plan });
        let (parities, group, pause) = match plan.protection {
            Protection::Parity { parities, group, pause } => (parities, group, pause),
            Protection::Nothing | Protection::Copies { .. } => (0, 2, false),
        };
        if unmarked && plan.protection != Protection::Nothing {
            self.start_unmarked(parts);
        }
        self.plan_parity(parities, group, pause);
        parts.tx.limit_redundancy_to_plan(plan.redundancy(&flight).saturating_add(owed));
        parts.counters.planned += 1;
        parts.counters.planned_protected += u64::from(plan.protection != Protection::Nothing);
        parts.observe(Observation::Planned { flight, losses, plan });
    }
}

/// Input of the planner.
impl Sender {
    /// Returns the next flight, in segments of `mss` bytes of payload and `headers` bytes of headers. It is
    /// all written data if the window takes it within a round trip, else the part that the window admits now.
    pub(crate) fn next_flight(&self, budget: &Budget, mss: u32, headers: u32) -> Flight {
        let unsent = self.unsent();
        let by_window = budget.unpaced().max(mss);
        let bytes = if unsent <= budget.cwnd { unsent } else { by_window.min(unsent) };
        // If the buffer is full, the application waits with more data: by estimate, as much again.
        let is_full = self.queue.free() == 0 && !self.queue.fin_queued();
        let waiting = if is_full { unsent.max(budget.pipe) } else { 0 };
        let followed = self.followed(bytes, (unsent - bytes).saturating_add(waiting), budget);
        Flight { bytes, mss, headers, followed, delays_others: 0, at_once: bytes <= by_window }
    }

    /// Returns how much later than the flight of `bytes` bytes the `rest` bytes after it end, in thousandths
    /// of a round trip. They begin to leave when acknowledgements arrive, a round trip after the flight
    /// begins, and fill a window in each round trip. The mean byte of the flight leaves when the pacer has
    /// sent half of the flight.
    fn followed(&self, bytes: u32, rest: u32, budget: &Budget) -> u32 {
        if rest == 0 {
            return 0;
        }
        let paced = self.rate.pacer.rate().zip(self.rtt.srtt());
        let per_round_trip = paced.map(|(rate, srtt)| u128::from(rate) * u128::from(srtt.0) / 1_000_000);
        let spread = per_round_trip.map_or(0, |max| (1000 * u128::from(bytes) / max.max(1)).min(1000) as u32);
        let window = budget.cwnd.saturating_sub(budget.others).max(budget.mss).max(1);
        let left = 1000 * u64::from(rest) / u64::from(window);
        (1000 - spread / 2).saturating_add(u32::try_from(left).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TcpConfig;

    const SHORT: Duration = Duration::from_millis(100);
    /// Longer than the minimum round trip by a quarter and 4 ms.
    const QUEUED: Duration = Duration::from_millis(129);

    /// Returns eight losses, the first `queued` of them after a rising round-trip time.
    fn eight(queued: u32) -> LossKinds {
        let mut kinds = LossKinds::default();
        for loss in 0..8 {
            (0..4).for_each(|_| kinds.recent.push(if loss < queued { QUEUED } else { SHORT }.into()));
            kinds.on_loss(Some(SHORT), false);
        }
        kinds
    }

    #[test]
    fn parity_leaves_in_recovery_only_after_random_losses_that_a_planner_knows() {
        use CongestionState::{Cwr, Disorder, Loss, Open, Recovery};
        let withheld = |gentle: &Gentle| {
            [Open, Disorder, Cwr, Recovery, Loss].map(|state| gentle.withholds_parity(state))
        };
        let mut gentle = Gentle::new(&TcpConfig::planned(25), true);
        assert_eq!(withheld(&gentle), [false, false, false, false, true]);
        gentle.planner.as_mut().expect("a planner").sees_queue = true;
        assert_eq!(withheld(&gentle), [false, false, false, true, true]);
        let unplanned = Gentle::new(&TcpConfig::default(), true);
        assert_eq!(withheld(&unplanned), [false, false, false, true, true]);
    }

    #[test]
    fn single_long_round_trips_are_no_queue() {
        let mut kinds = LossKinds::default();
        for rtt in [QUEUED, QUEUED, QUEUED, SHORT, QUEUED, QUEUED, QUEUED] {
            kinds.recent.push(rtt.into());
            kinds.on_loss(Some(SHORT), false);
        }
        assert_eq!(kinds.queue.count_ones(), 3, "the first three, of which nothing else is known");
    }

    #[test]
    fn last_segment_of_a_flight_is_copied_although_it_is_not_full() {
        let mut planner = Planner::new(PlannerConfig::default());
        let range = SeqRange::with_len(SeqNum(5), 2500);
        let protection = Protection::Copies { last: 1, pause: false };
        let plan = Plan {
            segment: 1000,
            protection,
            reason: plan::Reason::Pays,
            cost: 0,
            late: 0,
            failure_per_million: 0,
        };
        planner.flight = Some(Planned { range, plan });
        let named = |start, len| planner.copy_delay(&SeqRange::with_len(SeqNum(start), len), None).is_some();
        assert_eq!(
            [named(5, 1000), named(1005, 1000), named(2005, 500), named(2505, 500)],
            [false, false, true, false]
        );
    }

    #[test]
    fn losses_count_as_queue_losses_if_most_are_or_a_queue_exists() {
        for (queued, now, queue) in [
            (0, SHORT, false),
            (0, QUEUED, false),
            (1, SHORT, false),
            (1, QUEUED, true),
            (4, SHORT, false),
            (5, SHORT, true),
        ] {
            let mut kinds = eight(queued);
            (0..4).for_each(|_| kinds.recent.push(now.into()));
            assert_eq!(kinds.is_queue(Some(SHORT)), queue, "{queued} of 8, now {now:?}");
        }
    }
}

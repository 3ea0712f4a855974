//! The planner computes the redundancy of a flight, as a pure function of the flight, the known losses of the
//! path, the means of the connection and the allowance.
//!
//! It computes the expected delay of every form of the flight that fits the allowance. It takes the form with
//! the smallest sum of delay and price of its bytes. Losses follow a chain of two states (Gilbert): a packet
//! after a lost packet is lost with probability `1 - 1/burst`, and a pause ends a burst. Losses in a full
//! queue get no redundancy.
//!
//! Time constants are in thousandths of a round trip, expected delays in millionths, probabilities in units
//! of 1e-9; all are integers.

use alloc::vec::Vec;

use crate::outcome::PARITY_OPTION;

/// The probability 1.
const ONE: u64 = 1_000_000_000;
/// Maximum number of parities of a group.
pub(crate) const PARITIES_MAX: u32 = 8;
/// Number of cases that are distinguished by lost packets: none, up to the number of parities, and more.
const COUNTS: usize = PARITIES_MAX as usize + 2;
/// Only a flight of at most this many segments may be cut into smaller ones.
const CUT_MAX: u32 = 8;
/// Maximum number of segments that cutting adds to a flight.
const CUTS: u32 = 3;

/// Delay of a loss inside the flight, which later packets reveal: a round trip and the reordering window.
const LATE_HOLE: u64 = 1_250;
/// Delay of a lost tail, which waits for a probe: two round trips.
const LATE_TAIL: u64 = 2_000;
/// Delay of a lost flight of one segment. The timer of its probe allows for a delayed acknowledgement.
const LATE_SINGLE: u64 = 3_000;
/// Delay after a failure of parity, which is reported at once: a round trip.
const LATE_FAILURE: u64 = 1_000;
/// Delay of parity after a pause.
const AFTER_PAUSE: u64 = 250;
/// Delay of parity directly after the data.
const AFTER_DATA: u64 = 20;
/// Divisor of the delay of a flight if enough data follows that a retransmission delays only this flight. It
/// is finite, because the later data may be late as well.
const MORE_FOLLOWS_DIVISOR: u64 = 100;
/// Minimum gain of a thousand additional bytes, in millionths of a round trip.
const PRICE: u64 = 3_000;

/// Data that is about to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flight {
    /// Bytes of payload, at least 1.
    pub bytes: u32,
    /// Maximum payload of a segment.
    pub mss: u32,
    /// Headers of a segment, IP and TCP with the options that every segment has, bytes.
    pub headers: u32,
    /// Time between the end of this flight and the end of the known data after it, in thousandths of a round
    /// trip. If a retransmission takes no longer, it delays only this flight. 0 if no further data is known:
    /// the flight then ends a request or a response.
    pub followed: u32,
    /// Delay that a thousand bytes more cause for other transfers, which wait for the path, in millionths of
    /// a round trip.
    pub delays_others: u32,
    /// True if the windows permit all of it to leave at once. Otherwise acknowledgements pace it.
    pub at_once: bool,
}

impl Flight {
    /// Returns the number of segments without cutting.
    pub fn segments(&self) -> u32 {
        self.bytes.div_ceil(self.mss.max(1)).max(1)
    }

    /// Returns the minimum gain of additional bytes, millionths of a round trip.
    fn price(&self, bytes: u32) -> u64 {
        u64::from(bytes) * (PRICE + u64::from(self.delays_others)) / 1000
    }

    /// Returns the cost of a plan, millionths of a round trip: the delay and the price of its bytes.
    fn value(&self, plan: &Plan) -> u64 {
        plan.late + self.price(plan.cost)
    }

    /// Returns the delay of the last known byte if this flight is late by `late`. Both have the same unit.
    fn delay_of_end(&self, late: u64) -> u64 {
        let left = LATE_HOLE.saturating_sub(self.followed.into());
        late * left.max(LATE_HOLE / MORE_FOLLOWS_DIVISOR) / LATE_HOLE
    }
}

/// Known losses of the path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Losses {
    /// Share of packets, per million.
    pub per_million: u32,
    /// Mean length of a run of lost packets, in thousandths; at least 1000.
    pub burst_milli: u32,
    /// The round-trip time rose before packets were lost: a queue overflowed.
    pub queue: bool,
}

/// The kinds of parity that the connection may send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parity {
    /// One parity for at most 16 segments.
    Xor,
    /// Two parities, each of every other segment, for at most 16 segments together.
    Interleaved,
    /// One to eight parities for at most 32 segments.
    ReedSolomon,
}

impl Parity {
    /// Returns the maximum number of segments of a group.
    pub fn blocks_max(self) -> u32 {
        match self {
            Parity::Xor | Parity::Interleaved => 16,
            Parity::ReedSolomon => 32,
        }
    }
}

/// The redundancy that the connection may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Means {
    /// Parity, if agreed on.
    pub parity: Option<Parity>,
    /// Copies are agreed on.
    pub copies: bool,
}

/// Protection of a flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protection {
    /// Reactive only: probe and retransmission.
    Nothing,
    /// This number of parities for each group of at most `group` segments.
    Parity {
        /// Parities of a group.
        parities: u32,
        /// Maximum number of segments of a group.
        group: u32,
        /// Parity leaves after a pause, not directly after the data.
        pause: bool,
    },
    /// The last segments leave twice.
    Copies {
        /// Number of these segments.
        last: u32,
        /// The copies leave after a pause.
        pause: bool,
    },
}

/// Reason of a decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Reason {
    /// The redundancy shortens the expected delay by more than the price of its bytes.
    Pays,
    /// Losses are so rare that redundancy is not worth its bytes.
    RareLoss,
    /// Losses come from a full queue, and more packets would lengthen it.
    QueueLoss,
    /// The allowance does not suffice.
    Allowance,
    /// Neither parity nor copies are agreed on.
    NoMeans,
}

/// A decision and its expected result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Plan {
    /// Payload of a segment. It is below the MSS if the flight is cut to make parity cheap.
    pub segment: u32,
    /// Protection of the flight.
    pub protection: Protection,
    /// Reason of the decision.
    pub reason: Reason,
    /// Additional bytes, headers included.
    pub cost: u32,
    /// Expected delay of the flight, millionths of a round trip.
    pub late: u64,
    /// Probability, per million, that a retransmission is still needed.
    pub failure_per_million: u32,
}

impl Plan {
    /// Returns the bytes of the cost that copies and parity take. The rest of the cost is the headers of
    /// segments that the plan adds by cutting.
    pub(crate) fn redundancy(&self, flight: &Flight) -> u32 {
        let segments = flight.bytes.div_ceil(self.segment.max(1));
        let added = segments.saturating_sub(flight.segments());
        self.cost.saturating_sub(added.saturating_mul(flight.headers))
    }
}

/// Decides the plan of a flight. `allowance`: bytes that may be spent on it.
pub fn plan(flight: &Flight, losses: &Losses, means: &Means, allowance: u32) -> Plan {
    let mut tally = LossOdds::of(losses, means.parity.map_or(0, parities_max));
    let plain = Form::nothing(flight).possible().weighed(flight, &mut tally);
    let without = |reason| Plan { reason, ..plain };
    if losses.queue {
        return without(Reason::QueueLoss);
    }
    if means.parity.is_none() && !means.copies {
        return without(Reason::NoMeans);
    }
    let (mut best, mut best_value) = (without(Reason::RareLoss), flight.value(&plain));
    for form in forms(flight, means) {
        if flight.price(form.cost(flight)) >= best_value {
            // Even without a delay this form would cost more than the best one.
            continue;
        }
        let plan = form.possible().weighed(flight, &mut tally);
        let value = flight.value(&plan);
        if value < best_value {
            if plan.cost <= allowance {
                (best, best_value) = (plan, value);
            } else if best.protection == Protection::Nothing {
                best.reason = Reason::Allowance;
            }
        }
    }
    best
}

/// True if a packet of the handshake should leave twice. `bytes`: its length. `allowance`: bytes that may be
/// spent. `late_milli`: the delay of a loss (the timer of the SYN or SYN-ACK), thousandths of a round trip.
pub(crate) fn doubles_handshake(bytes: u32, late_milli: u32, losses: &Losses, allowance: u32) -> bool {
    let chain = Chain::of(losses);
    let gain = mul(chain.loss - mul(chain.loss, chain.stay), u64::from(late_milli) * 1000);
    !losses.queue && bytes <= allowance && gain > u64::from(bytes) * PRICE / 1000
}

/// A form in which to send a flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Form {
    /// Number of segments.
    pub segments: u32,
    /// Payload of each segment but the last.
    pub segment: u32,
    /// Protection of the flight.
    pub protection: Protection,
}

impl Form {
    fn nothing(flight: &Flight) -> Self {
        let segments = flight.segments();
        Form { segments, segment: flight.mss, protection: Protection::Nothing }
    }

    fn pauses(&self) -> bool {
        match self.protection {
            Protection::Nothing => true,
            Protection::Parity { pause, .. } | Protection::Copies { pause, .. } => pause,
        }
    }

    /// Returns the bytes that this form adds to the unprotected flight.
    fn cost(&self, flight: &Flight) -> u32 {
        let more = self.segments.saturating_sub(flight.segments());
        let payload = self.segment.min(flight.bytes);
        let redundant = match self.protection {
            Protection::Nothing => 0,
            Protection::Parity { parities, group, .. } => {
                parities * self.segments.div_ceil(group) * (payload + flight.headers + PARITY_OPTION)
            }
            Protection::Copies { last, .. } => {
                let before = self.segments.saturating_sub(last).saturating_mul(payload);
                flight.bytes.saturating_sub(before) + last * flight.headers
            }
        };
        redundant + more * flight.headers
    }

    /// Returns the nearest possible form. It copies at most all segments, has at most [`PARITIES_MAX`]
    /// parities in a group, and no empty group.
    fn possible(self) -> Form {
        let segments = self.segments.max(1);
        let protection = match self.protection {
            Protection::Nothing => Protection::Nothing,
            Protection::Parity { parities, group, pause } => {
                Protection::Parity { parities: parities.min(PARITIES_MAX), group: group.max(1), pause }
            }
            Protection::Copies { last, pause } => Protection::Copies { last: last.min(segments), pause },
        };
        Form { segments, segment: self.segment.max(1), protection }
    }

    /// Returns the cost and the expected result of the flight in this form.
    pub fn weigh(&self, flight: &Flight, losses: &Losses) -> Plan {
        let form = self.possible();
        let parities = match form.protection {
            Protection::Nothing | Protection::Copies { .. } => 0,
            Protection::Parity { parities, .. } => parities,
        };
        form.weighed(flight, &mut LossOdds::of(losses, parities))
    }

    /// Like [`Form::weigh`], for a possible form, with the tally of losses.
    fn weighed(&self, flight: &Flight, tally: &mut LossOdds) -> Plan {
        let odds = match self.protection {
            Protection::Nothing => without(self.segments, &tally.chain),
            Protection::Parity { parities, group, pause } => {
                with_parity(self.segments, parities, group, pause, tally)
            }
            Protection::Copies { last, pause } => with_copies(self.segments, last, pause, &tally.chain),
        };
        Plan {
            segment: self.segment,
            protection: self.protection,
            reason: Reason::Pays,
            cost: self.cost(flight),
            late: flight.delay_of_end(odds.late),
            failure_per_million: (odds.failure / 1000) as u32,
        }
    }
}

/// Iterates over every form that the connection may use, except the unprotected one.
pub fn forms(flight: &Flight, means: &Means) -> impl Iterator<Item = Form> + use<> {
    let Flight { bytes, mss, at_once, .. } = *flight;
    let plain = flight.segments();
    let cuts = if plain <= CUT_MAX { CUTS.min(bytes.saturating_sub(1)) } else { 0 };
    let Means { parity, copies } = *means;
    (plain..=plain + cuts).flat_map(move |segments| {
        let segment = if segments == plain { mss } else { bytes.div_ceil(segments) };
        let of = move |protection| Form { segments, segment, protection };
        let parities = parity.into_iter().flat_map(move |code| parity_forms(code, segments));
        let last = [1, 2, 4, segments].into_iter().filter(move |last| copies && *last <= segments);
        let doubled = last.flat_map(|last| [false, true].map(|pause| Protection::Copies { last, pause }));
        parities.chain(doubled).map(of).filter(move |form| at_once || form.pauses())
    })
}

fn parity_forms(code: Parity, segments: u32) -> impl Iterator<Item = Protection> {
    let groups = segments.div_ceil(code.blocks_max());
    let group = segments.div_ceil(groups);
    let doubled = if code == Parity::Interleaved { 2 } else { 1 };
    (1..=parities_max(code) / doubled).flat_map(move |parities| {
        [false, true].map(|pause| Protection::Parity { parities: parities * doubled, group, pause })
    })
}

/// Returns the maximum number of parities of a group with a code.
fn parities_max(code: Parity) -> u32 {
    match code {
        Parity::Xor => 1,
        Parity::Interleaved => 2,
        Parity::ReedSolomon => PARITIES_MAX,
    }
}

/// Expected results of a candidate.
#[derive(Clone, Copy, Debug)]
struct Odds {
    /// Expected delay, millionths of a round trip.
    late: u64,
    /// Probability that a retransmission is needed.
    failure: u64,
}

fn odds(parts: &[(u64, u64)], failure: u64) -> Odds {
    Odds { late: parts.iter().map(|(probability, late)| mul(*probability, late * 1000)).sum(), failure }
}

fn without(segments: u32, chain: &Chain) -> Odds {
    let any = ONE - chain.none_lost(segments);
    let tail = chain.loss.min(any);
    let late = if segments == 1 { LATE_SINGLE } else { LATE_TAIL };
    odds(&[(tail, late), (any - tail, LATE_HOLE)], any)
}

fn with_copies(segments: u32, last: u32, pause: bool, chain: &Chain) -> Odds {
    let both = mul(chain.loss, if pause { chain.loss } else { chain.stay });
    let single = segments - last;
    let hole = ONE - chain.none_lost(single);
    let none = pow(ONE - both, last);
    let tail = ONE - none;
    let pause_late = if pause { AFTER_PAUSE } else { AFTER_DATA };
    let used = (ONE - chain.none_lost(last)).saturating_sub(tail);
    odds(&[(tail, LATE_TAIL), (hole, LATE_HOLE), (used, pause_late)], (tail + hole).min(ONE))
}

fn with_parity(segments: u32, parities: u32, group: u32, pause: bool, tally: &mut LossOdds) -> Odds {
    let groups = segments.div_ceil(group);
    let blocks = segments.div_ceil(groups);
    let lost = tally.lost(blocks, parities + 1);
    let any = ONE - lost[0];
    let failure = if pause {
        let parity = tally.lost(parities, parities + 1);
        // The more data segments are lost, the fewer lost parities cause a failure.
        let (mut failure, mut enough) = (0, parity[parities as usize + 1]);
        for (share, fewest) in lost[1..].iter().zip((0..=parities as usize).rev()) {
            enough += parity[fewest];
            failure += mul(*share, enough);
        }
        failure
    } else {
        tally.lost(blocks + parities, parities + 1)[parities as usize + 1].min(any)
    };
    let wait = if pause { AFTER_PAUSE } else { AFTER_DATA };
    // The last of several groups completes the flight, and each group can fail.
    let failures = ONE - pow(ONE - failure.min(ONE), groups);
    let hit = (ONE - pow(ONE - any, groups)).saturating_sub(failures);
    odds(&[(hit, wait), (failures, wait + LATE_FAILURE)], failures)
}

/// Losses as a chain of two states.
#[derive(Clone, Copy, Debug)]
struct Chain {
    /// Share of packets lost; also the probability after a pause.
    loss: u64,
    /// Probability that the packet after a lost one is lost.
    stay: u64,
    /// Probability that the packet after a delivered one is lost.
    enter: u64,
}

impl Chain {
    fn of(losses: &Losses) -> Self {
        let loss = (u64::from(losses.per_million) * 1000).min(ONE / 2);
        let burst = u64::from(losses.burst_milli.max(1000));
        let stay = (ONE - ONE / 1000 * 1_000_000 / burst).max(loss);
        // The share stays constant: loss = loss * stay + (1 - loss) * enter.
        let enter = loss * (ONE - stay) / (ONE - loss);
        Chain { loss, stay, enter }
    }

    fn none_lost(&self, packets: u32) -> u64 {
        if packets == 0 { ONE } else { mul(ONE - self.loss, pow(ONE - self.enter, packets - 1)) }
    }

    /// Returns the probability that the next packet is delivered, after `so_far`.
    fn delivered(&self, so_far: TailOdds) -> u64 {
        mul(so_far.good, ONE - self.enter) + mul(so_far.bad, ONE - self.stay)
    }

    /// Returns the probability that the next packet is lost, after `so_far`.
    fn lost(&self, so_far: TailOdds) -> u64 {
        mul(so_far.good, self.enter) + mul(so_far.bad, self.stay)
    }
}

/// Probabilities of a number of losses, with the last packet delivered or lost.
#[derive(Clone, Copy, Default, Debug)]
struct TailOdds {
    good: u64,
    bad: u64,
}

/// Probabilities of the number of losses among consecutive packets. The forms of a flight use the same few
/// numbers of packets repeatedly. The probabilities for each number follow from those for the number before.
#[derive(Clone, Debug)]
struct LossOdds {
    chain: Chain,
    /// Maximum number of losses that is distinguished from more.
    max: usize,
    /// One row for each number of packets: the probabilities of exactly each number of losses, and of at
    /// least that number.
    rows: Vec<[[TailOdds; COUNTS]; 2]>,
}

impl LossOdds {
    /// Creates the tally for groups of at most this number of parities.
    fn of(losses: &Losses, parities: u32) -> LossOdds {
        LossOdds { chain: Chain::of(losses), max: (parities as usize + 1).min(COUNTS - 1), rows: Vec::new() }
    }

    /// Returns the probabilities of 0, 1, ... losses among `packets` consecutive ones. `max` and more losses
    /// are one case. `max` is at least 1, and at most one more than the number of parities.
    fn lost(&mut self, packets: u32, max: u32) -> [u64; COUNTS] {
        while self.rows.len() <= packets as usize {
            let row = self.next_row();
            self.rows.push(row);
        }
        let [exactly, or_more] = &self.rows[packets as usize];
        let max = max as usize;
        let mut shares = [0; COUNTS];
        for (share, ends) in shares.iter_mut().zip(&exactly[..max]) {
            *share = ends.good + ends.bad;
        }
        shares[max] = or_more[max].good + or_more[max].bad;
        shares
    }

    fn next_row(&self) -> [[TailOdds; COUNTS]; 2] {
        let LossOdds { chain, max, ref rows } = *self;
        let mut row = [[TailOdds::default(); COUNTS]; 2];
        let [exactly, or_more] = &mut row;
        match rows.last() {
            None => exactly[0].good = ONE,
            Some(_) if rows.len() == 1 => {
                (exactly[0].good, exactly[1].bad, or_more[1].bad) =
                    (ONE - chain.loss, chain.loss, chain.loss);
            }
            Some([before, or_more_before]) => {
                // Not more packets are lost than were sent.
                for count in 1..=max.min(rows.len()) {
                    let first = chain.lost(before[count - 1]);
                    let (same, more) = (before[count], or_more_before[count]);
                    exactly[count] = TailOdds { good: chain.delivered(same), bad: first };
                    or_more[count] = TailOdds { good: chain.delivered(more), bad: first + chain.lost(more) };
                }
                exactly[0].good = chain.delivered(before[0]);
            }
        }
        row
    }
}

fn mul(a: u64, b: u64) -> u64 {
    match a.checked_mul(b) {
        // Nearly all factors are probabilities, whose product fits.
        Some(product) => product / ONE,
        None => (u128::from(a) * u128::from(b) / u128::from(ONE)) as u64,
    }
}

fn pow(base: u64, exponent: u32) -> u64 {
    (0..exponent).fold(ONE, |power, _| mul(power, base))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RS: Means = Means { parity: Some(Parity::ReedSolomon), copies: true };
    const COPIES: Means = Means { parity: None, copies: true };

    fn flight(bytes: u32) -> Flight {
        Flight { bytes, mss: 1432, headers: 52, followed: 0, delays_others: 0, at_once: true }
    }

    fn losses(per_million: u32) -> Losses {
        Losses { per_million, burst_milli: 1000, queue: false }
    }

    #[test]
    fn no_redundancy_without_loss_allowance_or_mechanism() {
        let nothing = |plan: Plan| (plan.protection, plan.reason);
        let of = |losses: &Losses, means: &Means, allowance| {
            nothing(plan(&flight(30_000), losses, means, allowance))
        };
        assert_eq!(of(&losses(0), &RS, 30_000), (Protection::Nothing, Reason::RareLoss));
        assert_eq!(of(&losses(20_000), &RS, 0), (Protection::Nothing, Reason::Allowance));
        let none = Means { parity: None, copies: false };
        assert_eq!(of(&losses(20_000), &none, 30_000), (Protection::Nothing, Reason::NoMeans));
    }

    /// A caller may set any numbers of a form.
    #[test]
    fn impossible_form_becomes_the_nearest_possible_one() {
        for protection in [
            Protection::Copies { last: 100, pause: false },
            Protection::Parity { parities: 200, group: 0, pause: true },
        ] {
            for (segments, segment) in [(0, 0), (1, 1448), (3, 0)] {
                let plan = Form { segments, segment, protection }.weigh(&flight(2_000), &losses(20_000));
                assert!(plan.segment > 0, "{plan:?}");
            }
        }
    }

    /// Forms that cost more than they could gain are not weighed. This does not change the result.
    #[test]
    fn skipping_expensive_forms_does_not_change_the_plan() {
        for (bytes, followed) in [(200, 0), (1432, 5_000), (5_000, 0), (30_000, 600), (64_440, 2_000)] {
            for per_million in [0, 10, 300, 10_000, 50_000, 300_000] {
                for allowance in [0, 300, 2_000, 30_000] {
                    let (flight, losses) = (Flight { followed, ..flight(bytes) }, losses(per_million));
                    let plain = Form::nothing(&flight).weigh(&flight, &losses);
                    let weighed = forms(&flight, &RS).map(|form| form.weigh(&flight, &losses));
                    let affordable = weighed.filter(|plan| plan.cost <= allowance);
                    let best = affordable
                        .map(|plan| flight.value(&plan))
                        .min()
                        .unwrap_or(u64::MAX)
                        .min(flight.value(&plain));
                    let found = plan(&flight, &losses, &RS, allowance);
                    assert_eq!(
                        flight.value(&found),
                        best,
                        "{bytes} bytes, {per_million}, {allowance}: {found:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn products_of_probabilities_and_of_large_numbers_are_exact() {
        for (a, b) in [
            (ONE, ONE),
            (ONE - 1, ONE - 1),
            (123_456_789, 987_654_321),
            (u64::MAX, ONE),
            (u64::MAX / 3, 2_999_999_999),
        ] {
            let exact = u128::from(a) * u128::from(b) / u128::from(ONE);
            assert_eq!(u128::from(mul(a, b)), exact & u128::from(u64::MAX));
        }
    }

    #[test]
    fn queue_losses_get_no_redundancy() {
        for per_million in [1_000, 20_000, 200_000] {
            let queue = Losses { queue: true, ..losses(per_million) };
            let plan = plan(&flight(30_000), &queue, &RS, 30_000);
            assert_eq!(
                (plan.protection, plan.reason, plan.cost),
                (Protection::Nothing, Reason::QueueLoss, 0)
            );
        }
    }

    /// The reference cases: 30 kB at 2 % need three parities; 2 kB at 5 % are cut into three segments and
    /// need two.
    #[test]
    fn reference_flights_get_their_parities() {
        let large = plan(&flight(30_000), &losses(20_000), &RS, 7_500);
        assert!(
            matches!(large.protection, Protection::Parity { parities: 3, group: 21, pause: false }),
            "{large:?}"
        );
        assert!(large.failure_per_million < 2_000, "{large:?}");
        let small = plan(&flight(2_000), &losses(50_000), &RS, 2_000);
        assert!(
            matches!(small.protection, Protection::Parity { parities: 2, pause: false, .. }),
            "{small:?}"
        );
        assert_eq!((small.segment, small.reason), (667, Reason::Pays));
    }

    #[test]
    fn the_allowance_is_a_bound_and_more_of_it_never_makes_a_flight_later() {
        for bytes in [200, 2_000, 10_000, 30_000] {
            for per_million in [1_000, 10_000, 50_000] {
                let mut before = u64::MAX;
                for allowance in [0, 100, 500, 1_500, 5_000, 30_000] {
                    for means in [RS, COPIES] {
                        assert!(
                            plan(&flight(bytes), &losses(per_million), &means, allowance).cost <= allowance
                        );
                    }
                    let plan = plan(&flight(bytes), &losses(per_million), &RS, allowance);
                    let value = flight(bytes).value(&plan);
                    assert!(value <= before);
                    before = value;
                }
            }
        }
    }

    #[test]
    fn redundancy_waits_for_the_end_of_a_burst() {
        let bursty = Losses { per_million: 20_000, burst_milli: 3_000, queue: false };
        let pauses = |means: &Means| match plan(&flight(14_000), &bursty, means, 15_500).protection {
            Protection::Parity { pause, .. } | Protection::Copies { pause, .. } => pause,
            Protection::Nothing => false,
        };
        assert!(pauses(&COPIES), "{:?}", plan(&flight(14_000), &bursty, &COPIES, 15_500));
    }

    #[test]
    fn flight_with_later_data_is_protected_only_at_high_loss() {
        let middle = Flight { followed: 2_000, ..flight(14_000) };
        assert_eq!(plan(&middle, &losses(10_000), &RS, 14_000).protection, Protection::Nothing);
    }

    /// A retransmission then arrives after all other data.
    #[test]
    fn flight_with_little_later_data_is_protected() {
        for followed in [500, 1_000] {
            let flight = Flight { followed, ..flight(200_000) };
            let plan = plan(&flight, &losses(20_000), &RS, 50_000);
            assert!(
                matches!(plan.protection, Protection::Parity { parities: 2.., .. }),
                "{followed}: {plan:?}"
            );
        }
    }

    #[test]
    fn redundancy_that_delays_others_more_than_it_saves_is_not_sent() {
        let protects = |delays_others| {
            let flight = Flight { delays_others, ..flight(100_000) };
            plan(&flight, &losses(20_000), &RS, 25_000).protection != Protection::Nothing
        };
        assert_eq!([0, 10_000, 1_000_000].map(protects), [true, true, false]);
    }

    #[test]
    fn ack_clocked_flight_gets_redundancy_after_a_pause() {
        let paced = Flight { at_once: false, ..flight(14_000) };
        let protection = plan(&paced, &losses(20_000), &RS, 7_000).protection;
        assert!(matches!(protection, Protection::Parity { pause: true, .. }), "{protection:?}");
    }

    #[test]
    fn handshake_is_copied_if_its_loss_costs_more_than_the_bytes() {
        assert!(doubles_handshake(172, 1500, &losses(20_000), 200));
        assert!(!doubles_handshake(172, 1500, &losses(20_000), 100), "allowance");
        assert!(!doubles_handshake(172, 1500, &losses(0), 200));
        assert!(!doubles_handshake(172, 1500, &Losses { queue: true, ..losses(20_000) }, 200));
    }

    /// In the long run the share and the bursts of losses are the given ones. The probability of a loss is
    /// different after a lost packet and after a delivered one.
    #[test]
    fn simulated_chain_has_the_given_loss_and_burst_length() {
        for (per_million, burst_milli) in [(20_000, 1_500), (200_000, 3_000), (400_000, 4_000)] {
            let chain = Chain::of(&Losses { per_million, burst_milli, queue: false });
            assert_eq!(chain.loss, u64::from(per_million) * 1000);
            let again = mul(chain.loss, chain.stay) + mul(ONE - chain.loss, chain.enter);
            assert!(again.abs_diff(chain.loss) < 1_000, "{again} of {chain:?}");
            let burst = ONE * 1000 / (ONE - chain.stay);
            assert!(burst.abs_diff(u64::from(burst_milli)) <= 1, "{burst} of {chain:?}");
            for packets in 0..12 {
                let none = tally(chain).lost(packets, 3)[0];
                assert!(chain.none_lost(packets).abs_diff(none) < 1_000, "{packets} of {chain:?}");
            }
        }
    }

    fn tally(chain: Chain) -> LossOdds {
        LossOdds { chain, max: COUNTS - 1, rows: Vec::new() }
    }

    /// Returns the result of a tally for one number of packets.
    fn lost_of(chain: &Chain, packets: u32, max: usize) -> Vec<u64> {
        let mut ends = [TailOdds::default(); COUNTS];
        match packets {
            0 => ends[0].good = ONE,
            _ => (ends[0].good, ends[1.min(max)].bad) = (ONE - chain.loss, chain.loss),
        }
        for _ in 1..packets {
            for count in (1..=max).rev() {
                let more = if count == max { chain.lost(ends[max]) } else { 0 };
                ends[count] =
                    TailOdds { good: chain.delivered(ends[count]), bad: chain.lost(ends[count - 1]) + more };
            }
            ends[0] = TailOdds { good: chain.delivered(ends[0]), bad: 0 };
        }
        ends[..=max].iter().map(|TailOdds { good, bad }| good + bad).collect()
    }

    #[test]
    fn loss_odds_do_not_depend_on_the_order_of_queries() {
        for (per_million, burst_milli) in [(0, 1_000), (20_000, 1_000), (50_000, 2_700), (600_000, 9_000)] {
            let chain = Chain::of(&Losses { per_million, burst_milli, queue: false });
            for max in 1..COUNTS {
                let mut tally = LossOdds { max, ..tally(chain) };
                for packets in [7, 0, 1, 2, 40, 3, 39] {
                    for fewer in 1..=max {
                        let expected = lost_of(&chain, packets, fewer);
                        let shares = tally.lost(packets, fewer as u32);
                        assert_eq!(shares[..=fewer], expected, "{packets} {fewer}");
                        assert!(shares[fewer + 1..].iter().all(|share| *share == 0));
                    }
                }
            }
        }
    }

    /// Compares the chain with a count over many runs of a seeded generator.
    #[test]
    fn loss_odds_agree_with_the_simulated_chain() {
        use rand_chacha::rand_core::{RngCore, SeedableRng};
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(7);
        for (per_million, burst_milli) in [(20_000, 1_000), (50_000, 2_000), (10_000, 4_000)] {
            let chain = Chain::of(&Losses { per_million, burst_milli, queue: false });
            let mut counts = [0u64; 5];
            const RUNS: u64 = 100_000;
            for _ in 0..RUNS {
                let (mut lost, mut last) = (0, None);
                for _ in 0..12 {
                    let odds = last.map_or(chain.loss, |lost| if lost { chain.stay } else { chain.enter });
                    let hit = random.next_u64() % ONE < odds;
                    lost += usize::from(hit);
                    last = Some(hit);
                }
                counts[lost.min(4)] += 1;
            }
            for (computed, counted) in tally(chain).lost(12, 4).iter().zip(counts) {
                let seen = counted * (ONE / RUNS);
                assert!(computed.abs_diff(seen) < ONE / 100, "{computed} {seen}");
            }
            assert!(tally(chain).lost(12, 4).iter().sum::<u64>().abs_diff(ONE) < 1_000, "they sum up to one");
        }
    }
}

//! A BBR flow on a path of one bottleneck, packet by packet, with a delivery-rate sampler.

use super::*;
use crate::congestion::sample::DeliverySample;
use crate::evidence::LossHistory;
use crate::outcome::{Episode, Origin};
use crate::seq_ranges::SeqRange;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use brisk_wire::SeqNum;
use proptest::prelude::*;

const MSS: u32 = 1448;

fn start() -> ControllerStart {
    ControllerStart { now: Instant::ZERO, mss: MSS, initial_window: 10 * MSS, paced: false, seed: 7 }
}

/// Returns a sample of `rate` bytes a second that is not limited by the application.
fn sample_of(rate: u64) -> RateSample {
    RateSample {
        prior_delivered: 0,
        delivered: 0,
        lost: 0,
        tx_in_flight: 0,
        app_limited: false,
        is_probe: false,
        rtt: None,
        rate: Some(rate),
    }
}

/// Returns a flow with a known model: 1,250,000 bytes a second, 40 ms, full pipe.
fn informed() -> Bbr {
    let mut bbr = Bbr::new(&start());
    bbr.min_rtt.update(Instant::ZERO, Some(Micros::from_millis(40)));
    bbr.max_bw.update(&sample_of(1_250_000));
    bbr.has_rtt = true;
    (bbr.full_pipe.reached, bbr.full_pipe.is_found) = (true, true);
    bbr
}

#[test]
fn rates_and_windows_follow_from_the_model() {
    let mut bbr = informed();
    assert_eq!(bbr.bdp(bbr.bandwidth(), (1, 1)), 50_000);
    bbr.set_pacing_rate(None);
    assert_eq!(bbr.pacing_rate, 3_427_875);
    bbr.state = BbrState::ProbeBw(CyclePhase::Up);
    bbr.set_pacing_rate(None);
    assert_eq!((bbr.pacing_rate, bbr.quantum()), (1_546_875, 2896));
    bbr.set_window(1 << 20);
    assert_eq!(bbr.cwnd(), 112_500 + 2 * MSS);
    bbr.state = BbrState::ProbeRtt;
    bbr.probe_rtt.cwnd = bbr.bdp(bbr.bandwidth(), (1, 2));
    bbr.set_window(MSS);
    assert_eq!(bbr.cwnd(), 25_000);
}

#[test]
fn a_train_sets_the_pace_of_flights_that_the_application_limits() {
    let mut bbr = Bbr::new(&start());
    bbr.set_pacing_rate(Some(Micros::from_millis(100)));
    let at_first = bbr.pacing_rate;
    bbr.on_train(&Train { rate: 1_000_000, is_limited: false });
    assert_eq!((at_first, bbr.pacing_rate), (401_096, 2_742_300), "the path may be faster");
    bbr.on_train(&Train { rate: 2_500_000, is_limited: true });
    assert_eq!(bbr.pacing_rate, 2_742_300, "before the pipe is full the rate only grows");

    let mut bbr = informed();
    bbr.state = BbrState::ProbeBw(CyclePhase::Cruise);
    bbr.on_train(&Train { rate: 2_500_000, is_limited: true });
    bbr.set_pacing_rate(None);
    assert_eq!(bbr.pacing_rate, 1_237_500, "the bandwidth sets the pace while data flows");
    let at = Instant::from_millis(1);
    bbr.on_sent(&Transmission {
        at,
        len: MSS,
        origin: Origin::New,
        pipe: 0,
        from_idle: true,
        app_limited: true,
    });
    assert_eq!(bbr.pacing_rate, 2_475_000, "out of idle the train does");
}

#[test]
fn remembered_rate_of_the_path_outlasts_the_first_round_trip_time() {
    let mut bbr = Bbr::new(&start());
    bbr.on_train(&Train { rate: 2_500_000, is_limited: true });
    CongestionController::start(&mut bbr, 100 * MSS);
    bbr.set_pacing_rate(Some(Micros::from_millis(100)));
    assert_eq!(bbr.pacing_rate, 2_475_000, "and not the window in each round trip");
}

/// The losses that end the probe are reported before the recovery that they begin.
#[test]
fn a_mistaken_recovery_restores_limits_and_probes_again() {
    let mut bbr = informed();
    bbr.state = BbrState::ProbeBw(CyclePhase::Up);
    bbr.cycle.is_probe_sample = true;
    bbr.cwnd = 100_000;
    for _ in 0..2 {
        lose(&mut bbr, 10);
    }
    assert_eq!((bbr.state, bbr.cycle.prev_too_high), (BbrState::ProbeBw(CyclePhase::Down), true));
    assert!(bbr.bounds.inflight_longterm < 50_000);
    bbr.on_congestion(&event(CongestionCause::Loss));
    bbr.bounds.bw_shortterm = 1_000_000;
    bbr.cwnd = 30_000;
    bbr.on_spurious(Instant::ZERO);
    assert_eq!((bbr.cwnd, bbr.state), (100_000, BbrState::ProbeBw(CyclePhase::Refill)));
    assert_eq!((bbr.bounds.inflight_longterm, bbr.bandwidth()), (bounds::UNBOUNDED, 1_250_000));
    assert!(!bbr.cycle.prev_too_high);
    bbr.cwnd = 20_000;
    bbr.on_spurious(Instant::ZERO);
    assert_eq!(bbr.cwnd, 20_000, "once");
}

/// On a path that loses 2 % at random, one flight of 100 segments in a hundred loses 6 or more. Such a flight
/// must not end a search for bandwidth.
#[test]
fn losses_that_chance_causes_now_and_then_end_no_probe() {
    let ends = |is_found, lost: u32| {
        let mut bbr = informed();
        bbr.expect_random_loss(LossHistory { segments: 2000, lost: 40, runs: 40 });
        bbr.full_pipe.is_found = is_found;
        (bbr.state, bbr.cycle.is_probe_sample) = (BbrState::ProbeBw(CyclePhase::Up), true);
        for n in 1..=lost {
            bbr.on_lost(&LostPacket {
                range: SeqRange::with_len(SeqNum(2 * n * MSS), MSS),
                tx_in_flight: 100 * MSS,
                lost: u64::from(n * MSS),
                ..lost_packet()
            });
        }
        bbr.state != BbrState::ProbeBw(CyclePhase::Up)
    };
    assert_eq!([2, 6, 8, 20].map(|lost| ends(false, lost)), [false, false, false, true]);
    assert_eq!([2, 8].map(|lost| ends(true, lost)), [false, true], "the bandwidth is known");
}

#[test]
fn a_timeout_starts_from_one_segment_and_keeps_the_model() {
    let mut bbr = informed();
    bbr.state = BbrState::ProbeBw(CyclePhase::Cruise);
    bbr.cwnd = 100_000;
    bbr.on_rto(&RtoEvent { now: Instant::ZERO, pipe: 0, first: true, max_ssthresh: None });
    assert_eq!((bbr.cwnd, bbr.bandwidth(), bbr.bounds.inflight_shortterm), (MSS, 1_250_000, 100_000));
}

/// Returns a flow in Startup after the loss of `lost` of 20 segments in flight and an acknowledgement of one.
fn after_losses(mut bbr: Bbr, lost: u32) -> Bbr {
    bbr.cwnd = 20 * MSS;
    bbr.delivered = bbr.delivered.max(u64::from(10 * MSS));
    lose(&mut bbr, lost);
    bbr.on_congestion(&event(CongestionCause::Loss));
    acknowledge(&mut bbr, 1, 19 - lost, 0);
    bbr
}

/// Loses `segments` of a flight of 20 in one run.
fn lose(bbr: &mut Bbr, segments: u32) {
    bbr.on_lost(&LostPacket {
        range: SeqRange::with_len(SeqNum(1), segments * MSS),
        lost: u64::from(segments * MSS),
        prior_delivered: bbr.delivered,
        delivered: bbr.delivered,
        ..lost_packet()
    });
}

/// Returns one lost segment of a flight of 20.
fn lost_packet() -> LostPacket {
    LostPacket {
        now: Instant::ZERO,
        range: SeqRange::with_len(SeqNum(1), MSS),
        tx_in_flight: 20 * MSS,
        lost: MSS.into(),
        prior_delivered: 0,
        delivered: 0,
        app_limited: false,
        is_queued: false,
    }
}

/// Ends a round that delivers `delivered` segments and whose round trip takes `rtt_ms`.
fn end_round(bbr: &mut Bbr, delivered: u32, rtt_ms: u64) {
    bbr.delivered += u64::from(delivered * MSS);
    bbr.loss_round.start = true;
    bbr.end_loss_round(&RateSample { rtt: Some(Micros::from_millis(rtt_ms)), ..sample_of(1_000_000) });
}

/// True if `rounds` rounds of 100 segments in `state` have lowered the short-term limits, with `lost` of them
/// lost and round trips of `rtt_ms`. Without a queue they take 40 ms.
fn lowered_by(state: BbrState, rounds: u32, lost: u32, rtt_ms: u64) -> bool {
    let mut bbr = informed();
    (bbr.state, bbr.cwnd) = (state, 100_000);
    for _ in 0..rounds {
        lose(&mut bbr, lost);
        end_round(&mut bbr, 100 - lost, rtt_ms);
    }
    bbr.bounds.bw_shortterm != bounds::UNBOUNDED
}

/// Of 100 segments, chance loses four in one of a hundred rounds, and nine in one of ten thousand.
#[test]
fn losses_lower_the_limits_if_neither_chance_nor_the_flows_own_queue_explains_them() {
    let cruise = BbrState::ProbeBw(CyclePhase::Cruise);
    assert!(!lowered_by(cruise, 1, 8, 40), "chance");
    assert!(lowered_by(cruise, 2, 8, 40), "not twice");
    assert!(lowered_by(cruise, 1, 9, 40), "not so many");
    assert!(lowered_by(cruise, 1, 5, 80), "not in a queue");
    assert!(lowered_by(cruise, 2, 1, 80), "each time in a queue");
    for state in [BbrState::Drain, BbrState::ProbeBw(CyclePhase::Down)] {
        assert!(!lowered_by(state, 2, 1, 80), "the flow has built the queue: {state:?}");
        assert!(lowered_by(state, 1, 9, 80), "{state:?}");
    }
}

/// 3,000 segments without a loss show that a loss is rare. They do not if the flow kept a queue of its own
/// meanwhile, because losses in that queue may be random. Without this knowledge chance explains six losses
/// of 100.
#[test]
fn rounds_in_the_flows_own_queue_do_not_count_as_evidence_of_random_loss() {
    let is_known = |state, rtt_ms| {
        let mut bbr = informed();
        (bbr.state, bbr.cwnd) = (state, 100_000);
        for _ in 0..30 {
            end_round(&mut bbr, 100, rtt_ms);
        }
        bbr.state = BbrState::ProbeBw(CyclePhase::Cruise);
        for _ in 0..2 {
            lose(&mut bbr, 6);
            end_round(&mut bbr, 94, 40);
        }
        bbr.bounds.bw_shortterm != bounds::UNBOUNDED
    };
    let phase = BbrState::ProbeBw;
    assert!(is_known(phase(CyclePhase::Cruise), 80), "a queue of other flows");
    for state in [BbrState::Startup, BbrState::Drain, phase(CyclePhase::Up), phase(CyclePhase::Down)] {
        assert!(!is_known(state, 80), "{state:?}");
        assert!(is_known(state, 40), "{state:?} without a queue");
    }
}

/// An eighth of 40 ms is 5 ms. In the first round other flows that begin may have built the queue.
#[test]
fn startup_ends_when_five_samples_in_a_row_are_an_eighth_later() {
    let leaves_in = |round: u64, rtts: &[u64]| {
        let mut bbr = informed();
        (bbr.full_pipe.reached, bbr.rounds.count) = (false, round);
        for rtt in rtts {
            bbr.leave_startup(
                CongestionState::Open,
                Some(&RateSample { rtt: Some(Micros::from_millis(*rtt)), ..sample_of(1_250_000) }),
            );
        }
        bbr.state != BbrState::Startup
    };
    assert!(!leaves_in(1, &[46; 9]), "the first flight");
    let leaves = |rtts: &[u64]| leaves_in(2, rtts);
    assert!(leaves(&[46; 5]));
    assert!(!leaves(&[46; 4]), "too few");
    assert!(!leaves(&[45; 20]), "too early");
    assert!(!leaves(&[46, 46, 46, 46, 40, 46, 46, 46, 46]), "not in a row");
}

/// Returns a flow that has left Startup just now.
fn draining() -> Bbr {
    let mut bbr = informed();
    (bbr.delivered, bbr.cwnd) = (u64::from(100 * MSS), 100_000);
    bbr.start_drain();
    bbr
}

#[test]
fn losses_of_startup_lower_nothing_after_it() {
    for (sent_before, is_lowered) in [(1, false), (0, true)] {
        let mut bbr = draining();
        bbr.delivered -= sent_before;
        lose(&mut bbr, 15);
        bbr.delivered += sent_before;
        end_round(&mut bbr, 20, 40);
        assert_eq!(bbr.bounds.bw_shortterm != bounds::UNBOUNDED, is_lowered);
    }
}

/// A queue is known to have lost data of Startup, and redundancy repairs a later loss in the same round.
#[test]
fn a_queue_that_lost_data_of_startup_is_no_reason_to_lower_the_limits_in_drain() {
    for (sent_before, is_lowered) in [(1, false), (0, true)] {
        let mut bbr = draining();
        bbr.on_lost(&LostPacket {
            now: Instant::ZERO,
            range: SeqRange::with_len(SeqNum(1), MSS),
            tx_in_flight: 20 * MSS,
            lost: u64::from(MSS),
            prior_delivered: bbr.delivered - sent_before,
            delivered: bbr.delivered,
            app_limited: false,
            is_queued: true,
        });
        bbr.loss_round.begin(bbr.delivered);
        end_round(&mut bbr, 20, 40);
        assert_eq!(bbr.bounds.bw_shortterm != bounds::UNBOUNDED, is_lowered);
    }
}

/// Of 100 segments chance explains seven losses, but not seven more that prove spurious.
#[test]
fn losses_that_prove_spurious_do_not_count_later_in_the_round() {
    let mut bbr = informed();
    (bbr.state, bbr.cwnd) = (BbrState::ProbeBw(CyclePhase::Cruise), 100_000);
    bbr.on_congestion(&event(CongestionCause::Loss));
    lose(&mut bbr, 7);
    bbr.on_spurious(Instant::ZERO);
    lose(&mut bbr, 7);
    end_round(&mut bbr, 93, 40);
    assert_eq!(bbr.bounds.bw_shortterm, bounds::UNBOUNDED);
}

/// The acknowledgements of the last flight of Startup arrive in Drain.
#[test]
fn in_drain_the_long_term_limit_follows_the_bandwidth() {
    let mut bbr = informed();
    bbr.cwnd = 100_000;
    bbr.full_pipe.reached = false;
    bbr.leave_startup_by_loss();
    bbr.start_drain();
    assert_eq!(bbr.bounds.inflight_longterm, 50_000);
    bbr.max_bw.update(&sample_of(2_500_000));
    bbr.leave_drain(Instant::ZERO, 200_000);
    assert_eq!((bbr.state, bbr.bounds.inflight_longterm), (BbrState::Drain, 100_000));
    bbr.leave_drain(Instant::ZERO, 90_000);
    assert_eq!(bbr.state, BbrState::ProbeBw(CyclePhase::Down));
}

#[test]
fn drain_ends_after_three_rounds_with_any_amount_in_flight() {
    let mut bbr = informed();
    bbr.start_drain();
    for (rounds, state) in [(3, BbrState::Drain), (4, BbrState::ProbeBw(CyclePhase::Down))] {
        bbr.rounds.count = bbr.drain_start_round + rounds;
        bbr.leave_drain(Instant::ZERO, 1_000_000);
        assert_eq!(bbr.state, state, "{rounds}");
    }
}

/// Acknowledges `segments` that were sent when `prior` segments after the first ten were delivered; `pipe`
/// remain in flight.
fn acknowledge(bbr: &mut Bbr, segments: u32, pipe: u32, prior: u32) {
    let (delivered, prior) = (bbr.delivered + u64::from(segments * MSS), u64::from((10 + prior) * MSS) - 1);
    let rate = RateSample {
        prior_delivered: prior,
        delivered: delivered - prior,
        lost: 0,
        tx_in_flight: 20 * MSS,
        app_limited: true,
        is_probe: false,
        rtt: None,
        rate: None,
    };
    let delivery = Some(DeliverySample { delivered, lost: 0, rate: Some(rate) });
    let ack = AckSample::acked(Instant::ZERO, segments * MSS);
    bbr.on_ack(&AckSample { pipe: pipe * MSS, state: CongestionState::Recovery, delivery, ..ack });
}

#[test]
fn heavy_losses_at_start_conserve_packets_for_a_round_then_double() {
    let mut bbr = after_losses(Bbr::new(&start()), 15);
    assert_eq!(bbr.cwnd, 5 * MSS, "four in flight, and the one that was acknowledged");
    acknowledge(&mut bbr, 2, 3, 0);
    assert_eq!(bbr.cwnd, 5 * MSS);
    acknowledge(&mut bbr, 2, 3, 2);
    assert_eq!(bbr.cwnd, 7 * MSS, "the first round is over");
    bbr.on_recovery_exit(CongestionState::Recovery);
    assert_eq!(bbr.cwnd, 20 * MSS);
    acknowledge(&mut bbr, 1, 3, 4);
    assert_eq!(bbr.cwnd, 21 * MSS);
}

#[test]
fn losses_that_become_heavy_with_a_later_ack_conserve_packets() {
    let mut bbr = after_losses(Bbr::new(&start()), 4);
    assert_eq!(bbr.cwnd, 21 * MSS);
    lose(&mut bbr, 11);
    acknowledge(&mut bbr, 1, 4, 0);
    assert_eq!(bbr.cwnd, 5 * MSS);
}

#[test]
fn a_recovery_that_was_a_mistake_restricts_nothing_later() {
    let mut bbr = after_losses(Bbr::new(&start()), 15);
    bbr.on_spurious(Instant::ZERO);
    assert_eq!(bbr.cwnd, 20 * MSS);
    lose(&mut bbr, 1);
    bbr.on_congestion(&event(CongestionCause::Loss));
    assert!(!bbr.recovery.restricts());
    assert!(bbr.undo.is_some(), "it can be a mistake too");
}

#[test]
fn few_or_late_losses_do_not_restrict_the_window() {
    assert_eq!([1, 4].map(|lost| after_losses(Bbr::new(&start()), lost).cwnd), [21 * MSS; 2]);
    let later = Bbr { delivered: u64::from(64 * MSS), ..Bbr::new(&start()) };
    let informed = Bbr { state: BbrState::ProbeBw(CyclePhase::Cruise), ..informed() };
    assert_eq!([later, informed].map(|bbr| after_losses(bbr, 15).cwnd), [21 * MSS; 2]);
}

#[test]
fn a_lost_flight_grows_the_window_from_one_segment_after_a_timeout() {
    let mut bbr = Bbr::new(&start());
    bbr.cwnd = 20 * MSS;
    lose(&mut bbr, 20);
    bbr.on_rto(&RtoEvent { now: Instant::ZERO, pipe: 0, first: true, max_ssthresh: None });
    bbr.delivered = u64::from(10 * MSS);
    acknowledge(&mut bbr, 1, 0, 0);
    assert_eq!(bbr.cwnd, 2 * MSS);
}

#[test]
fn losses_found_by_a_timer_permit_one_segment_more() {
    let mut bbr = Bbr::new(&start());
    bbr.cwnd = 20 * MSS;
    lose(&mut bbr, 15);
    bbr.on_congestion(&event(CongestionCause::Loss));
    bbr.on_reordering_timeout(5 * MSS);
    assert_eq!(bbr.cwnd, 6 * MSS);
}

/// The timer fires between acknowledgements. Data sent after the last acknowledgement then does not count as
/// sent after the losses.
#[test]
fn first_round_begun_by_a_timer_outlasts_the_flight_with_the_losses() {
    let mut bbr = Bbr::new(&start());
    (bbr.cwnd, bbr.delivered) = (20 * MSS, u64::from(10 * MSS) - 1);
    lose(&mut bbr, 15);
    bbr.on_congestion(&event(CongestionCause::Loss));
    bbr.on_reordering_timeout(5 * MSS);
    for pipe in [5, 5, 5] {
        acknowledge(&mut bbr, 1, pipe, 0);
        assert_eq!(bbr.cwnd, 6 * MSS, "five in flight, and the one that was acknowledged");
    }
    acknowledge(&mut bbr, 2, 4, 1);
    assert_eq!(bbr.cwnd, 8 * MSS, "the first round is over");
}

#[test]
fn heavy_losses_in_the_round_after_a_mark_conserve_packets_too() {
    let mut bbr = Bbr::new(&start());
    (bbr.cwnd, bbr.delivered) = (20 * MSS, u64::from(10 * MSS));
    bbr.on_congestion(&event(CongestionCause::Ecn));
    acknowledge(&mut bbr, 1, 19, 0);
    lose(&mut bbr, 15);
    acknowledge(&mut bbr, 2, 2, 0);
    assert_eq!(bbr.cwnd, 4 * MSS, "two in flight, and the two that were acknowledged");
    acknowledge(&mut bbr, 2, 2, 0);
    assert_eq!(bbr.cwnd, 4 * MSS);
}

#[test]
fn congestion_experienced_takes_15_percent_or_ends_a_probe() {
    let mut bbr = informed();
    bbr.cwnd = 100_000;
    bbr.state = BbrState::ProbeBw(CyclePhase::Cruise);
    bbr.on_congestion(&event(CongestionCause::Ecn));
    assert_eq!((bbr.bounds.inflight_shortterm, bbr.bandwidth()), (85_000, 1_250_000));
    bbr.state = BbrState::ProbeBw(CyclePhase::Up);
    bbr.on_congestion(&event(CongestionCause::Ecn));
    assert_eq!((bbr.state, bbr.bounds.inflight_longterm), (BbrState::ProbeBw(CyclePhase::Down), 35_000));
}

/// Data that left before the mark and data that leaves with the same acknowledgement have the same count.
#[test]
fn losses_of_data_that_left_before_the_mark_that_ends_startup_lower_nothing() {
    for (acknowledged, is_lowered) in [(0, false), (1, true)] {
        let mut bbr = informed();
        (bbr.state, bbr.delivered, bbr.cwnd) = (BbrState::Startup, u64::from(100 * MSS), 100_000);
        bbr.on_congestion(&event(CongestionCause::Ecn));
        assert_eq!(bbr.state, BbrState::Drain);
        bbr.delivered += acknowledged;
        lose(&mut bbr, 15);
        end_round(&mut bbr, 20, 40);
        assert_eq!(bbr.bounds.bw_shortterm != bounds::UNBOUNDED, is_lowered);
    }
}

fn event(cause: CongestionCause) -> CongestionEvent {
    CongestionEvent {
        now: Instant::ZERO,
        cause,
        undelivered_before: 0,
        delivered_while_held: 0,
        max_ssthresh: None,
    }
}

#[derive(Clone, Copy)]
struct Packet {
    number: u64,
    sent: Instant,
    /// Time when its acknowledgement arrives; `None` if it is lost.
    acked: Option<Instant>,
    delivered: u64,
    delivered_at: Instant,
    first_sent: Instant,
    lost: u64,
    tx_in_flight: u32,
    app_limited: bool,
}

/// A flow with endless data over one bottleneck; a loss is detected when three later packets are
/// acknowledged.
struct Flow {
    bbr: Bbr,
    /// Rate of the path, bytes per second, with round trip and buffer.
    rate: u64,
    rtt: Micros,
    buffer: u64,
    /// Random loss, parts per million.
    loss: u64,
    now: Instant,
    free_at: Instant,
    next_send: Instant,
    flight: VecDeque<Packet>,
    pipe: u32,
    delivered: u64,
    delivered_at: Instant,
    first_sent: Instant,
    lost: u64,
    sent: u64,
    chance: u64,
    recovery_until: Option<u64>,
    /// Time when the application began to write slowly, the number of packets until then, and its bytes per
    /// second since; data is endless before.
    application: Option<(Instant, u64, u64)>,
    largest_queue: Micros,
    states: Vec<BbrState>,
}

impl Flow {
    fn new(mbit: u64, rtt: Micros, buffer: u64, loss: u64) -> Flow {
        Flow {
            bbr: Bbr::new(&start()),
            rate: mbit * 125_000,
            rtt,
            buffer,
            loss,
            now: Instant::ZERO,
            free_at: Instant::ZERO,
            next_send: Instant::ZERO,
            flight: VecDeque::new(),
            pipe: 0,
            delivered: 0,
            delivered_at: Instant::ZERO,
            first_sent: Instant::ZERO,
            lost: 0,
            sent: 0,
            chance: 99,
            recovery_until: None,
            application: None,
            largest_queue: Micros::ZERO,
            states: Vec::new(),
        }
    }

    /// Runs to `seconds`; returns the bytes delivered in that time.
    fn run_to(&mut self, seconds: u64) -> u64 {
        self.run_until(Instant::from_millis(seconds * 1000))
    }

    fn run_until(&mut self, end: Instant) -> u64 {
        let before = self.delivered;
        loop {
            if self.states.last() != Some(&self.bbr.state) {
                self.states.push(self.bbr.state);
            }
            let ack = self.flight.iter().find_map(|packet| packet.acked).unwrap_or(end);
            let waits = self.application.is_some_and(|(since, sent, rate)| {
                (self.sent - sent) * u64::from(MSS) > bytes_in(rate, Micros::between(since, self.now))
            });
            let send = match self.pipe + MSS <= self.bbr.cwnd() {
                true if waits => self.now + Micros(500),
                true => self.next_send.max(self.now),
                false => end,
            };
            let next = ack.min(send);
            if next >= end {
                self.now = end;
                return self.delivered - before;
            }
            self.now = next;
            if ack <= send {
                self.acknowledge();
            } else if !waits {
                self.send();
            }
        }
    }

    fn send(&mut self) {
        let from_idle = self.flight.is_empty();
        if from_idle {
            (self.delivered_at, self.first_sent) = (self.now, self.now);
        }
        let app_limited = self.application.is_some();
        self.bbr.on_sent(&Transmission {
            at: self.now,
            len: MSS,
            origin: Origin::New,
            pipe: self.pipe,
            from_idle,
            app_limited,
        });
        self.chance = self.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let queue = Micros::between(self.now, self.free_at);
        let is_lost = (self.chance >> 33) % 1_000_000 < self.loss || bytes_in(self.rate, queue) > self.buffer;
        let mut acked = None;
        if !is_lost {
            self.largest_queue = self.largest_queue.max(queue);
            self.free_at =
                self.free_at.max(self.now) + Micros::from_micros(u64::from(MSS) * 1_000_000 / self.rate);
            acked = Some(self.free_at + self.rtt);
        }
        self.pipe += MSS;
        self.flight.push_back(Packet {
            number: self.sent,
            sent: self.now,
            acked,
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_sent: self.first_sent,
            lost: self.lost,
            tx_in_flight: self.pipe,
            app_limited,
        });
        self.sent += 1;
        self.next_send = self.now + Micros::from_micros(u64::from(MSS) * 1_000_000 / self.bbr.pacing_rate);
    }

    fn acknowledge(&mut self) {
        let pipe_before = self.pipe;
        let cwnd_limited = self.pipe + MSS > self.bbr.cwnd();
        let at = self.flight.iter().position(|packet| packet.acked.is_some()).unwrap_or(0);
        let packet = self.flight.remove(at).expect("an acknowledgement of a packet");
        self.pipe -= MSS;
        self.delivered += u64::from(MSS);
        let interval = Micros::between(packet.first_sent, packet.sent)
            .max(Micros::between(packet.delivered_at, self.now));
        self.first_sent = packet.sent;
        self.delivered_at = self.now;
        let mut newly_lost = 0;
        while let Some(lost) = self.flight.front().copied().filter(|lost| lost.number + 3 <= packet.number) {
            self.flight.pop_front();
            self.pipe -= MSS;
            self.lost += u64::from(MSS);
            newly_lost += MSS;
            self.bbr.on_lost(&LostPacket {
                now: self.now,
                range: SeqRange::with_len(SeqNum((lost.number * u64::from(MSS)) as u32), MSS),
                tx_in_flight: lost.tx_in_flight,
                lost: self.lost - lost.lost,
                prior_delivered: lost.delivered,
                delivered: self.delivered,
                app_limited: lost.app_limited,
                is_queued: false,
            });
        }
        if newly_lost > 0 && self.recovery_until.is_none() {
            self.recovery_until = Some(self.sent);
            self.bbr.on_congestion(&event_at(self.now, false));
        }
        let over = self.recovery_until.is_some_and(|until| packet.number >= until);
        if over {
            self.recovery_until = None;
            self.bbr.on_recovery_exit(CongestionState::Recovery);
        }
        let state =
            if self.recovery_until.is_some() { CongestionState::Recovery } else { CongestionState::Open };
        let rtt = Micros::between(packet.sent, self.now);
        let delivered = self.delivered - packet.delivered;
        self.bbr.on_ack(&AckSample {
            now: self.now,
            newly_acked: MSS,
            repeated: 0,
            newly_lost,
            una_advanced: true,
            pipe_before,
            pipe: self.pipe,
            rtt: Some(rtt),
            srtt: Some(rtt),
            min_rtt: Some(self.rtt),
            una: SeqNum(0),
            nxt: SeqNum(0),
            state,
            episode: if over { Episode::Exited } else { Episode::None },
            may_grow: true,
            cwnd_limited,
            delivery: Some(DeliverySample {
                delivered: self.delivered,
                lost: self.lost,
                rate: Some(RateSample {
                    prior_delivered: packet.delivered,
                    delivered,
                    lost: self.lost - packet.lost,
                    tx_in_flight: packet.tx_in_flight,
                    app_limited: packet.app_limited,
                    is_probe: false,
                    rtt: Some(rtt),
                    rate: (interval >= self.rtt)
                        .then(|| (u128::from(delivered) * 1_000_000).div_ceil(interval.0.into()) as u64),
                }),
            }),
        });
    }

    fn percent_of_rate(&self, bytes: u64, seconds: u64) -> u64 {
        bytes * 100 / (self.rate * seconds)
    }
}

/// The pipe is full after some rounds, nothing is lost, and the queue is that of a probe at most.
#[test]
fn a_clean_path_is_filled_without_loss_and_without_a_standing_queue() {
    let mut flow = Flow::new(10, Micros::from_millis(40), 400_000, 0);
    flow.run_to(2);
    assert_eq!(
        flow.states.get(..3),
        Some(&[BbrState::Startup, BbrState::Drain, BbrState::ProbeBw(CyclePhase::Refill)][..]),
        "a queue ended Startup, and the next probe does not wait"
    );
    assert!(flow.largest_queue < Micros::from_millis(60), "{:?}", flow.largest_queue);
    flow.largest_queue = Micros::ZERO;
    let delivered = flow.run_to(32);
    assert!(flow.percent_of_rate(delivered, 30) >= 95, "{}", flow.percent_of_rate(delivered, 30));
    assert!(flow.largest_queue <= Micros::from_millis(48), "{:?}", flow.largest_queue);
    assert_eq!(flow.lost, 0);
    assert!(
        flow.states.contains(&BbrState::ProbeRtt) && flow.states.contains(&BbrState::ProbeBw(CyclePhase::Up))
    );
    let bandwidth = flow.bbr.bandwidth() * 100 / flow.rate;
    assert!((99..=101).contains(&bandwidth), "{bandwidth}");
}

#[test]
fn rate_falls_only_by_the_random_loss() {
    for (loss_percent, rtt, floor) in [(1, 100, 93), (2, 100, 90), (2, 20, 88), (5, 100, 75)] {
        let mut flow = Flow::new(20, Micros::from_millis(rtt), 250_000, loss_percent * 10_000);
        flow.run_to(5);
        let delivered = flow.run_to(45);
        let percent = flow.percent_of_rate(delivered, 40);
        assert!(percent >= floor, "{loss_percent} % at {rtt} ms: {percent}");
    }
}

#[test]
fn short_buffer_is_not_overfilled() {
    // 100 Mbit/s, 40 ms: a path of 500,000 bytes.
    for (share_percent, floor, max_loss_permille) in [(5, 75, 30), (25, 85, 30), (100, 95, 10)] {
        let mut flow = Flow::new(100, Micros::from_millis(40), 5_000 * share_percent, 0);
        flow.run_to(3);
        let (lost, sent) = (flow.lost, flow.sent);
        let delivered = flow.run_to(23);
        let percent = flow.percent_of_rate(delivered, 20);
        assert!(percent >= floor, "{share_percent} %: {percent}");
        let loss = (flow.lost - lost) * 1000 / ((flow.sent - sent) * u64::from(MSS));
        assert!(loss <= max_loss_permille, "{share_percent} %: {loss}");
    }
}

#[test]
fn a_step_of_the_rate_is_found() {
    let mut flow = Flow::new(20, Micros::from_millis(50), 250_000, 0);
    flow.run_to(10);
    flow.rate /= 4;
    flow.run_to(22);
    let bandwidth = flow.bbr.bandwidth() * 100 / flow.rate;
    assert!((95..=105).contains(&bandwidth), "two cycles later: {bandwidth}");
    flow.rate *= 4;
    flow.run_to(32);
    let bandwidth = flow.bbr.bandwidth() * 100 / flow.rate;
    assert!((90..=101).contains(&bandwidth), "{bandwidth}");
}

#[test]
fn the_round_trip_time_is_measured_every_five_seconds_of_a_full_path_only() {
    let mut flow = Flow::new(10, Micros::from_millis(40), 100_000, 0);
    flow.run_to(30);
    let probes = flow.states.iter().filter(|state| **state == BbrState::ProbeRtt).count();
    assert!((4..=6).contains(&probes), "{probes}");
    flow.states.clear();
    flow.application = Some((flow.now, flow.sent, 300_000));
    flow.run_to(60);
    assert!(!flow.states.contains(&BbrState::ProbeRtt), "the application leaves the path half empty");
}

/// One loss alone is not more than random loss explains.
#[test]
fn one_loss_in_a_queue_that_the_path_is_known_for_ends_startup() {
    for is_queued in [false, true] {
        let mut flow = Flow::new(20, Micros::from_millis(50), 250_000, 0);
        flow.run_until(Instant::from_millis(120));
        assert_eq!(flow.bbr.state, BbrState::Startup);
        flow.bbr.on_lost(&LostPacket {
            now: flow.now,
            range: SeqRange::with_len(SeqNum(0), MSS),
            tx_in_flight: 40 * MSS,
            lost: u64::from(MSS),
            prior_delivered: flow.delivered,
            delivered: flow.delivered,
            app_limited: false,
            is_queued,
        });
        flow.run_until(Instant::from_millis(125));
        assert_eq!(flow.bbr.state != BbrState::Startup, is_queued);
    }
}

#[test]
fn the_same_seed_gives_the_same_flow() {
    let run = |seed| {
        let mut flow = Flow::new(20, Micros::from_millis(30), 100_000, 10_000);
        flow.bbr.random = seed;
        (flow.run_to(60), flow.sent, flow.states.len())
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

/// An event of a flow, in any order and however unlikely.
#[derive(Clone, Debug)]
enum Event {
    Sent { len: u32, from_idle: bool, app_limited: bool },
    Acked { bytes: u32, lost: u32, age: u64, in_recovery: bool, app_limited: bool, cwnd_limited: bool },
    Congestion { ecn: bool },
    RecoveryExit,
    Rto,
    Spurious,
    Mss(u32),
}

fn events() -> impl Strategy<Value = Vec<(u64, Event)>> {
    let gap = prop_oneof![4 => 0u64..20_000, 1 => 20_000u64..3_000_000];
    let event = prop_oneof![
        4 => (1u32..70_000, any::<bool>(), any::<bool>())
            .prop_map(|(len, from_idle, app_limited)| Event::Sent { len, from_idle, app_limited }),
        9 => (0u32..70_000, 0u32..30_000, 0u64..8, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
            |(bytes, lost, age, in_recovery, app_limited, cwnd_limited)| Event::Acked {
                bytes,
                lost: lost.saturating_sub(20_000),
                age,
                in_recovery,
                app_limited,
                cwnd_limited,
            }
        ),
        1 => any::<bool>().prop_map(|ecn| Event::Congestion { ecn }),
        1 => Just(Event::RecoveryExit),
        1 => Just(Event::Rto),
        1 => Just(Event::Spurious),
        1 => (1u32..9000).prop_map(Event::Mss),
    ];
    proptest::collection::vec((gap, event), 1..400)
}

proptest! {
    #[test]
    fn events_neither_stall_the_flow_nor_grow_the_window_without_acks(
        events in events(),
        seed in any::<u64>(),
    ) {
        let mut bbr = Bbr::new(&ControllerStart { seed, ..start() });
        let (mut now, mut delivered, mut lost) = (Instant::ZERO, 0u64, 0u64);
        // Counters at the last acknowledgements, of which a sample takes one.
        let mut past = alloc::vec![(0u64, 0u64)];
        for (gap, event) in events {
            now = now + Micros::from_micros(gap);
            let before = u64::from(bbr.cwnd.max(bbr.prior_cwnd));
            let mut acked = 0;
            match event {
                Event::Sent { len, from_idle, app_limited } => bbr.on_sent(&Transmission {
                    at: now,
                    len,
                    origin: Origin::New,
                    pipe: 0,
                    from_idle,
                    app_limited,
                }),
                Event::Acked { bytes, lost: newly_lost, age, in_recovery, app_limited, cwnd_limited } => {
                    acked = bytes;
                    delivered += u64::from(bytes);
                    let (prior, prior_lost) = past[past.len().saturating_sub(1 + age as usize)];
                    if newly_lost > 0 {
                        lost += u64::from(newly_lost);
                        bbr.on_lost(&LostPacket {
                            now,
                            range: SeqRange::with_len(SeqNum(lost as u32), newly_lost),
                            tx_in_flight: bbr.cwnd,
                            lost: lost - prior_lost,
                            prior_delivered: prior,
                            delivered,
                            app_limited,
                            is_queued: false,
                        });
                    }
                    past.push((delivered, lost));
                    let state =
                        if in_recovery { CongestionState::Recovery } else { CongestionState::Open };
                    let rtt = (bytes > 0).then_some(Micros::from_micros(gap + 1));
                    bbr.on_ack(&AckSample {
                        now,
                        newly_acked: bytes,
                        repeated: 0,
                        newly_lost,
                        una_advanced: true,
                        pipe_before: bbr.cwnd,
                        pipe: bbr.cwnd.saturating_sub(bytes),
                        rtt,
                        srtt: rtt,
                        min_rtt: rtt,
                        una: SeqNum(0),
                        nxt: SeqNum(0),
                        state,
                        episode: Episode::None,
                        may_grow: true,
                        cwnd_limited,
                        delivery: Some(DeliverySample {
                            delivered,
                            lost,
                            rate: (bytes > 0).then(|| RateSample {
                                prior_delivered: prior,
                                delivered: delivered - prior,
                                lost: lost - prior_lost,
                                tx_in_flight: bbr.cwnd,
                                app_limited,
                                is_probe: age == 7,
                                rtt,
                                rate: Some(((delivered - prior) * 1_000_000).div_ceil(gap + 1)),
                            }),
                        }),
                    });
                    let min_segments = if bbr.recovery.restricts() { 1 } else { 4 };
                    prop_assert!(bbr.cwnd >= min_segments * bbr.mss, "{} of {}", bbr.cwnd, bbr.mss);
                }
                Event::Congestion { ecn } => bbr.on_congestion(&event_at(now, ecn)),
                Event::RecoveryExit => bbr.on_recovery_exit(CongestionState::Recovery),
                Event::Rto => bbr.on_rto(&RtoEvent { now, pipe: 0, first: true, max_ssthresh: None }),
                Event::Spurious => bbr.on_spurious(now),
                Event::Mss(mss) => bbr.set_mss(mss),
            }
            let bound = before.max(4 * u64::from(bbr.mss)) + u64::from(acked);
            prop_assert!(u64::from(bbr.cwnd) <= bound && bbr.cwnd >= bbr.mss, "{} of {bound}", bbr.cwnd);
            prop_assert!((1..=1 << 40).contains(&bbr.pacing_rate), "{}", bbr.pacing_rate);
        }
    }
}

fn event_at(now: Instant, ecn: bool) -> CongestionEvent {
    let cause = if ecn { CongestionCause::Ecn } else { CongestionCause::Loss };
    CongestionEvent { now, ..event(cause) }
}

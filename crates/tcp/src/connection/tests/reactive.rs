//! Tail losses in both forms of Reactive: the rows of Table 1 of *Gentle Aggression*, and other properties of
//! the probes. C sends segments of 1000 bytes in one burst at time 0, and every segment is acknowledged at
//! once. The path takes 50 ms each way, the timeout is 500 ms, the window is ten segments.

#[cfg(feature = "historical")]
use super::recovery::forge;
use super::*;
#[cfg(feature = "historical")]
use crate::config::{EarlyRetransmit, PaperConfig, Rfc6675Config};
use crate::config::{LossDetection, MechanismConfig, Reactive, RtoConfig};
#[cfg(feature = "historical")]
use crate::connection::observation::Observation;
use crate::outcome::CongestionState;
#[cfg(feature = "historical")]
use crate::outcome::LossCause;

pub(super) const P: u32 = 1000;
/// The initial sequence number of C in the test bench.
pub(super) const ISS: u32 = u32::MAX - 5000;

pub(super) fn setting(reactive: Reactive) -> TcpConfig {
    let loss_detection = match reactive {
        Reactive::Off | Reactive::RackTlp => LossDetection::Rack,
        #[cfg(feature = "historical")]
        Reactive::Paper(_) => LossDetection::Rfc6675(Rfc6675Config {
            early_retransmit: EarlyRetransmit::Relaxed,
            ..Rfc6675Config::default()
        }),
    };
    TcpConfig {
        max_segment: Some(P as u16 + 12),
        delack_max: Duration::ZERO,
        nodelay: true,
        rto: RtoConfig { var_floor: Duration::from_millis(400), ..RtoConfig::LINUX },
        loss_detection,
        mechanisms: MechanismConfig { reactive, ..MechanismConfig::default() },
        ..TcpConfig::default()
    }
}

#[cfg(feature = "historical")]
fn paper() -> TcpConfig {
    setting(Reactive::Paper(PaperConfig::default()))
}

pub(super) fn rack_tlp() -> TcpConfig {
    setting(Reactive::default())
}

/// Returns each form of the probe timer that is compiled.
fn forms() -> impl Iterator<Item = TcpConfig> {
    let forms = [
        #[cfg(feature = "historical")]
        paper(),
        rack_tlp(),
    ];
    forms.into_iter()
}

/// An open connection over which C sent `segments` at once; `lose` counts its packets from 1.
pub(super) struct Tail {
    pub(super) world: World,
    begin: Instant,
}

impl Tail {
    pub(super) fn new(config: TcpConfig, segments: u32, lose: fn(usize, usize) -> bool) -> Tail {
        let mut world = World::open(config);
        world.end(C).counters.record_observations();
        world.lose = lose;
        let begin = world.now;
        let mut tail = Tail { world, begin };
        tail.write(segments);
        tail
    }

    pub(super) fn write(&mut self, segments: u32) {
        let now = self.world.now;
        let data = vec![7; (segments * P) as usize];
        assert_eq!(self.world.end(C).write(&data, now), Ok(data.len()));
        self.world.drain();
    }

    /// Runs until `millis` after the burst.
    pub(super) fn until(&mut self, millis: u64) -> &mut Tail {
        self.world.run(self.begin + Duration::from_millis(millis));
        self
    }

    /// Returns the segments of C after the burst: milliseconds, first and last sequence number.
    pub(super) fn sent(&self) -> Vec<(u64, u32, u32)> {
        let from_client = self.world.log.iter().filter(|entry| entry.1 == C && entry.5 > 0);
        let relative = |seq: u32| seq.wrapping_sub(ISS);
        from_client
            .map(|&(at, _, _, seq, _, len)| {
                let after = at.saturating_since(self.begin).as_micros() / 1000;
                (after as u64, relative(seq), relative(seq) + len as u32)
            })
            .filter(|(after, ..)| *after > 0)
            .collect()
    }

    pub(super) fn cwnd(&mut self) -> u32 {
        self.world.end(C).stats().cwnd / P
    }

    pub(super) fn counters(&mut self) -> crate::connection::Counters {
        self.world.end(C).stats().counters
    }
}

/// Returns segment `k` of the burst in the form of [`Tail::sent`].
pub(super) fn segment(at: u64, k: u32) -> (u64, u32, u32) {
    (at, (k - 1) * P + 1, k * P + 1)
}

#[test]
fn lost_last_segment_is_repaired_by_the_probe_and_reported() {
    // First row of Table 1: 1.5*100+200 after the last acknowledgement in the paper's form,
    // 2*100+200 in that of RFC 8985.
    for config in forms() {
        let probe_at = if config.mechanisms.reactive == Reactive::RackTlp { 500 } else { 450 };
        let mut tail = Tail::new(config, 4, |who, n| who == C && n == 4);
        assert_eq!(tail.until(probe_at + 140).sent(), [segment(probe_at, 4)]);
        assert_eq!((tail.cwnd(), tail.counters().masked_losses), (10, 0), "no verdict yet");
        tail.write(1);
        tail.until(probe_at + 300);
        assert_eq!(tail.cwnd(), 7);
        let counters = tail.counters();
        assert_eq!((counters.masked_losses, counters.reductions, counters.timeouts), (1, 1, 0));
        assert_eq!((counters.probes, counters.repaired_by_probe, counters.undos), (1, 1, 0));
        assert_eq!(tail.world.end(C).stats().recovery, CongestionState::Open);
        tail.write(1);
        tail.until(probe_at + 500);
        assert_eq!(tail.counters().reductions, 1, "one loss, one reduction");
    }
}

#[test]
fn tail_losses_of_two_or_more_segments_end_in_fast_recovery() {
    // The other rows of Table 1. Both forms send the same packets at the same times.
    type Row = (u32, fn(usize, usize) -> bool, Vec<(u64, u32, u32)>);
    let rows: [Row; 5] = [
        (4, |who, n| who == C && (3..=4).contains(&n), vec![segment(300, 4), segment(400, 3)]),
        (
            4,
            |who, n| who == C && (2..=4).contains(&n),
            vec![segment(300, 4), segment(400, 2), segment(500, 3)],
        ),
        (
            4,
            |who, n| who == C && n <= 4,
            vec![segment(200, 4), segment(300, 1), segment(400, 2), segment(400, 3)],
        ),
        (
            6,
            |who, n| who == C && n <= 6,
            vec![
                segment(200, 6),
                segment(300, 1),
                segment(400, 2),
                segment(400, 3),
                segment(500, 4),
                segment(500, 5),
            ],
        ),
        (
            10,
            |who, n| who == C && (6..=10).contains(&n),
            vec![segment(300, 10), segment(400, 6), segment(500, 7), segment(500, 8), segment(600, 9)],
        ),
    ];
    for (segments, lose, expected) in rows {
        for config in forms() {
            let name = config.mechanisms.clone();
            let mut tail = Tail::new(config, segments, lose);
            assert_eq!(tail.until(1000).sent(), expected, "{name:?}");
            let counters = tail.counters();
            assert_eq!((counters.timeouts, counters.recoveries, counters.reductions), (0, 1, 1), "{name:?}");
            assert_eq!((counters.probes, counters.masked_losses, counters.undos), (1, 0, 0), "{name:?}");
            assert_eq!(tail.world.read_all(S).len() as u32, segments * P);
        }
    }
}

#[cfg(feature = "historical")]
#[test]
fn each_row_of_the_table_is_detected_by_its_rule() {
    type Row = (u32, fn(usize, usize) -> bool, LossCause);
    let rows: [Row; 4] = [
        (4, |who, n| who == C && (3..=4).contains(&n), LossCause::EarlyRetransmit),
        (4, |who, n| who == C && (2..=4).contains(&n), LossCause::EarlyRetransmit),
        (4, |who, n| who == C && n <= 4, LossCause::Fack),
        (6, |who, n| who == C && n <= 6, LossCause::Fack),
    ];
    for (segments, lose, cause) in rows {
        let mut tail = Tail::new(paper(), segments, lose);
        tail.until(1000);
        let declared: Vec<_> = (tail.world.end(C).counters.take_observations().into_iter())
            .filter_map(
                |probe| if let Observation::LossDeclared { by, .. } = probe { Some(by) } else { None },
            )
            .collect();
        assert_eq!(declared, [cause]);
        let counters = tail.counters();
        let by_cause = match cause {
            LossCause::EarlyRetransmit => (counters.segments_lost, 0),
            _ => (0, counters.segments_lost),
        };
        assert_eq!((counters.early_retransmits, counters.fack_losses), by_cause);
    }
}

#[cfg(feature = "historical")]
#[test]
fn with_rfc_5827_three_lost_of_four_wait_for_the_timeout() {
    // With the plain rule of RFC 5827, which needs two SACKed segments, only the RTO at 800 ms acts.
    let plain = Rfc6675Config::default();
    let config = TcpConfig { loss_detection: LossDetection::Rfc6675(plain), ..paper() };
    let mut tail = Tail::new(config, 4, |who, n| who == C && (2..=4).contains(&n));
    assert_eq!(tail.until(850).sent(), [segment(300, 4), segment(800, 2)]);
    assert_eq!(tail.counters().timeouts, 1);
}

#[test]
fn a_needless_probe_costs_no_window() {
    // Three segments are delivered, the acknowledgements come 250 ms late.
    for config in forms() {
        let mut tail = Tail::new(config, 3, |_, _| false);
        tail.world.hold_from(S, Duration::from_millis(250));
        assert_eq!(tail.until(560).sent(), [segment(200, 3)]);
        tail.world.hold_from(S, Duration::ZERO);
        assert_eq!(tail.counters().probes_spurious, 1);
        tail.until(700).write(1);
        tail.until(1000);
        let counters = tail.counters();
        assert_eq!((tail.cwnd(), counters.reductions, counters.masked_losses), (10, 0, 0));
        assert_eq!(counters.repaired_by_probe, 0);
    }
}

#[cfg(feature = "historical")]
#[test]
fn two_probes_and_one_answer_count_as_a_loss() {
    // The acknowledgements before 400 ms are lost, so that one of two duplicates never shows.
    let mut tail =
        Tail::new(setting(Reactive::Paper(PaperConfig { max_probes: 2 })), 3, |who, n| who == S && n <= 4);
    assert_eq!(tail.until(560).sent(), [segment(200, 3), segment(400, 3)]);
    assert_eq!((tail.cwnd(), tail.counters().masked_losses), (10, 0));
    tail.write(1);
    tail.until(800);
    assert_eq!((tail.cwnd(), tail.counters().masked_losses), (7, 1));
}

#[test]
fn single_segment_waits_for_a_delayed_ack_up_to_the_timeout() {
    // RTO 300 ms: the PTO is min(350, 300) in the paper, min(400, 300) in RACK-TLP. RTO 500 ms: 350, 400.
    for config in forms() {
        let expected = if config.mechanisms.reactive == Reactive::RackTlp { 400 } else { 350 };
        let mut tail = Tail::new(config.clone(), 1, |who, n| who == C && n == 1);
        assert_eq!(tail.until(600).sent(), [segment(expected, 1)]);
        let short = TcpConfig { rto: RtoConfig::LINUX, ..config };
        let mut tail = Tail::new(short, 1, |who, n| who == C && n == 1);
        assert_eq!(tail.until(600).sent(), [segment(300, 1)]);
        assert_eq!((tail.counters().timeouts, tail.counters().probes), (0, 1), "the probe goes first");
    }
}

#[test]
fn a_probe_of_new_data_exceeds_the_window_by_one_segment() {
    // Window of two, three segments queued, the first two lost.
    for config in forms() {
        let config = TcpConfig { initial_window: 2, ..config };
        let mut tail = Tail::new(config, 3, |who, n| who == C && n <= 2);
        assert_eq!(tail.until(350).sent(), [segment(200, 3), segment(300, 1)]);
        tail.until(900);
        let counters = tail.counters();
        assert_eq!((counters.probes_of_new_data, counters.masked_losses, counters.timeouts), (1, 0, 0));
        assert_eq!(tail.world.read_all(S).len() as u32, 3 * P);
    }
}

#[cfg(feature = "historical")]
#[test]
fn an_acknowledgement_of_nothing_new_earns_no_further_probe() {
    // Algorithm 1: the count of consecutive probes starts again when something is acknowledged.
    let config = setting(Reactive::Paper(PaperConfig { max_probes: 1 }));
    let mut tail = Tail::new(config, 4, |who, _| who == C);
    tail.until(300);
    assert_eq!(tail.counters().probes, 1);
    forge(&mut tail, 1, &[]);
    tail.until(690);
    assert_eq!((tail.counters().probes, tail.counters().timeouts), (1, 0));
}

#[test]
fn a_lost_probe_leaves_it_to_the_timeout() {
    // The RTO fires at 200 + 500 = 700 ms: segment 1 leaves, with cwnd 1 and state Loss.
    for config in forms() {
        let mut tail = Tail::new(config, 4, |who, n| who == C && n <= 5);
        assert_eq!(tail.until(740).sent(), [segment(200, 4), segment(700, 1)]);
        let stats = tail.world.end(C).stats();
        assert_eq!((stats.recovery, stats.counters.timeouts), (CongestionState::Loss, 1));
        tail.until(3000);
        assert_eq!(tail.world.read_all(S).len() as u32, 4 * P);
    }
}

#[test]
fn sacked_data_is_left_to_the_reordering_timer() {
    // SACK shows the hole, so no probe is needed: RACK acts at 100 + min_rtt/4.
    let mut tail = Tail::new(rack_tlp(), 2, |who, n| who == C && n == 1);
    assert_eq!(tail.until(1000).sent(), [segment(125, 1)]);
    assert_eq!((tail.counters().probes, tail.counters().recoveries), (0, 1));
}

#[test]
fn no_probe_leaves_without_sack_or_with_a_closed_window() {
    for config in forms() {
        let mut tail = Tail::new(TcpConfig { sack: false, ..config.clone() }, 4, |who, n| who == C && n == 4);
        tail.until(590);
        assert_eq!((tail.counters().probes, tail.sent()), (0, vec![]));
        let mut world = World::open(config);
        let now = world.now;
        for _ in 0..300 {
            let _ = world.end(C).write(&[1; 10_000], now);
            world.run_for(20);
        }
        assert_eq!(world.end(C).stats().snd_wnd, 0);
        let before = world.end(C).stats().counters;
        world.run_for(20_000);
        let after = world.end(C).stats().counters;
        assert_eq!(after.probes, before.probes);
        assert!(after.window_probes > before.window_probes);
    }
}

#[test]
fn before_the_handshake_is_complete_no_probe_leaves() {
    // With Fast Open data may be outstanding in SYN-RECEIVED.
    for config in forms() {
        assert!(World::new(config.clone()).end(C).reactive.is_none());
        let mut tail = Tail::new(config, 0, |who, n| who == C && n <= 4);
        assert!(tail.world.end(C).reactive.take().is_some(), "there is a timer from ESTABLISHED on");
        tail.write(4);
        assert_eq!(tail.until(450).sent(), []);
        assert_eq!(tail.until(550).sent(), [segment(500, 1)]);
        assert_eq!((tail.counters().probes, tail.counters().timeouts), (0, 1));
    }
}

#[test]
fn a_delayed_acknowledgement_of_200_ms_provokes_no_probe() {
    // One segment, ACK at t=300.
    for config in forms() {
        let mut tail = Tail::new(config, 1, |_, _| false);
        tail.world.hold_from(S, Duration::from_millis(200));
        assert_eq!(tail.until(1000).sent(), []);
        assert_eq!(tail.counters().probes, 0);
    }
}

#[test]
fn a_probe_needs_a_round_trip_sample_since_the_last() {
    // RFC 8985 section 7.3: "the sender MUST NOT send another loss probe until [...] a new RTT sample": after
    // a path has gone silent, one probe leaves and then only timeouts follow.
    let mut tail = Tail::new(rack_tlp(), 4, |who, _| who == C);
    tail.until(10_000);
    assert_eq!(tail.counters().probes, 1);
    assert!(tail.counters().timeouts >= 4);
}

#[test]
fn lost_tail_waits_for_the_timeout_without_reactive() {
    let mut tail = Tail::new(setting(Reactive::Off), 4, |who, n| who == C && n == 4);
    assert_eq!(tail.until(1500).sent(), [segment(600, 4)]);
    assert_eq!((tail.counters().probes, tail.counters().timeouts), (0, 1));
}

#[test]
fn a_fin_is_a_tail_like_any_other() {
    let mut tail = Tail::new(rack_tlp(), 0, |who, n| who == C && n == 1);
    let now = tail.world.now;
    tail.world.end(C).shutdown(now).unwrap();
    tail.until(450);
    assert_eq!(tail.world.end(S).state(), State::CloseWait, "two round trips and the allowance: 400 ms");
    assert_eq!((tail.counters().probes, tail.counters().timeouts), (1, 0));
}

#[test]
fn the_ranges_of_the_settings_are_checked() {
    let of = |reactive| setting(reactive).validate().is_ok();
    assert!(of(Reactive::default()) && of(Reactive::Off));
    #[cfg(feature = "historical")]
    {
        let paper = |max_probes| of(Reactive::Paper(PaperConfig { max_probes }));
        assert_eq!([0, 1, 3].map(paper), [false, true, false]);
        assert!(TcpConfig::of_2012().validate().is_ok());
        assert!(TcpConfig::of_2012_with_reactive().validate().is_ok());
    }
}

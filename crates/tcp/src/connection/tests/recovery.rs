//! Spurious losses, lost retransmissions and reneging receivers, on two connections, with the test bench of
//! `reactive`.

use brisk_wire::{Options, SackBlock};

use super::reactive::{ISS, P, Tail, rack_tlp, segment, setting};
use super::*;
use crate::config::{MtuProbing, PacingConfig, Reactive};
use crate::connection::observation::Observation;
use crate::outcome::CongestionState;
use crate::outcome::UndoCause;
use crate::path::FlightReport;

fn undone(tail: &mut Tail) -> Vec<UndoCause> {
    let probes = tail.world.end(C).counters.take_observations();
    probes
        .into_iter()
        .filter_map(|probe| if let Observation::Undone { why } = probe { Some(why) } else { None })
        .collect()
}

/// Passes C an acknowledgement that S never sent.
pub(super) fn forge(tail: &mut Tail, ack: u32, sack: &[(u32, u32)]) {
    let world = &mut tail.world;
    let seq = |relative: u32| SeqNum(ISS.wrapping_add(relative));
    let sack = sack.iter().map(|&(start, end)| SackBlock { start: seq(start), end: seq(end) }).collect();
    let options = Options { sack, ..Options::default() };
    let rcv_nxt = world.end(C).rx.rcv_nxt();
    let arrived = Arrived {
        seq: rcv_nxt,
        ack: seq(ack),
        flags: Flags::ACK,
        window: 1000,
        urgent: 0,
        options: &options,
        payload: &[],
        ecn: brisk_wire::Ecn::NotEct,
        segment_size: 0,
    };
    let mut permit = |_| true;
    let mut env = Env {
        challenge: &mut permit,
        super_segment: 0,
        sends_twice: false,
        partial_checksum: false,
        payload_in_place: false,
    };
    let now = world.now;
    let _ = world.end(C).on_segment(&arrived, now, &mut env);
}

#[test]
fn delay_spike_reduction_is_undone() {
    // RFC 3522: the acknowledgements of the originals come 800 ms late, after the timeout at 700 ms.
    let mut tail = Tail::new(rack_tlp(), 4, |_, _| false);
    tail.world.hold_from(S, Duration::from_millis(800));
    tail.until(2_000);
    assert_eq!(tail.sent(), [segment(200, 4), segment(700, 1)], "the rest is not sent again");
    assert_eq!(undone(&mut tail), [UndoCause::Eifel]);
    let stats = tail.world.end(C).stats();
    assert_eq!(stats.recovery, CongestionState::Open);
    assert!(stats.cwnd >= 10 * P && stats.ssthresh == u32::MAX, "{} {}", stats.cwnd, stats.ssthresh);
    assert!(stats.rto >= Duration::from_millis(500), "the path is slower than it was thought to be");
    assert!(!stats.reordering_seen, "late is not out of order");
}

#[test]
fn new_data_shows_a_spurious_timeout_without_timestamps() {
    // RFC 5682 section 3.1: after the timeout the first acknowledgement permits two new segments; the next
    // one is for an original.
    let config =
        TcpConfig { timestamps: false, max_segment: Some(P as u16), initial_window: 4, ..rack_tlp() };
    let mut tail = Tail::new(config, 8, |_, _| false);
    tail.world.hold_from(S, Duration::from_millis(800));
    tail.until(910);
    assert_eq!(undone(&mut tail), [UndoCause::Frto]);
    // The probe carried new data, the timeout retransmitted the first segment, the rest is new.
    let expected = [segment(200, 5), segment(700, 1), segment(900, 6), segment(900, 7), segment(900, 8)];
    assert_eq!(tail.sent(), expected);
    tail.until(3_000);
    let counters = tail.counters();
    assert_eq!((counters.retransmits, counters.timeouts, counters.undos), (1, 1, 1));
    assert_eq!(tail.world.read_all(S).len() as u32, 8 * P);
}

#[test]
fn needless_fast_retransmit_is_undone_and_widens_the_window() {
    // RFC 3708 and RFC 8985 section 6.2 step 4: the second of eight segments is 60 ms late; six overtake it.
    let late: fn(usize, usize) -> u64 = |who, n| if who == C && n == 2 { 60 } else { 0 };
    for (timestamps, why) in [(true, UndoCause::Eifel), (false, UndoCause::Dsack)] {
        let max_segment = Some(P as u16 + if timestamps { 12 } else { 0 });
        let config = TcpConfig { timestamps, max_segment, ..rack_tlp() };
        let mut tail = Tail::new(config, 0, |_, _| false);
        tail.world.late = late;
        tail.write(8);
        tail.until(400);
        assert_eq!(tail.sent(), [segment(100, 2)]);
        assert_eq!(undone(&mut tail), [why]);
        assert_eq!(tail.counters().dsacks, 1);
        let stats = tail.world.end(C).stats();
        assert!(stats.reordering_seen && stats.cwnd >= 10 * P && stats.ssthresh == u32::MAX);
        // 40 ms are within two quarters of the round trip: there are no more unnecessary retransmissions.
        tail.world.late = |who, n| if who == C && n == 11 { 40 } else { 0 };
        tail.write(8);
        tail.until(1_000);
        let counters = tail.counters();
        assert_eq!((counters.retransmits, counters.reductions, counters.undos), (1, 1, 1), "{counters:?}");
    }
}

#[test]
fn a_lost_retransmission_is_noticed_without_a_timeout() {
    // RFC 8985 section 6.2: the delivery of data sent after the retransmission shows that the retransmission
    // is lost.
    let mut tail = Tail::new(rack_tlp(), 30, |who, n| who == C && (n == 3 || n == 17));
    tail.until(3_000);
    let again: Vec<_> = tail.sent().into_iter().filter(|sent| sent.1 == 2 * P + 1).collect();
    assert_eq!(again.len(), 2, "{:?}", tail.sent());
    let counters = tail.counters();
    assert_eq!((counters.timeouts, counters.recoveries, counters.lost_again_bytes), (0, 1, u64::from(P)));
    assert_eq!(tail.world.read_all(S).len() as u32, 30 * P);
}

#[test]
fn a_lost_retransmission_that_no_data_follows_waits_for_the_timeout() {
    // RFC 8985 section 7.2 schedules no probe during recovery or while data is SACKed (Linux: the same). The
    // loss shows at 100 ms; the timeout counts from the retransmission.
    let mut tail = Tail::new(rack_tlp(), 8, |who, n| who == C && (n == 2 || n == 9));
    tail.until(3_000);
    let counters = tail.counters();
    assert_eq!((counters.probes, counters.timeouts, counters.recoveries), (0, 1, 1), "{:?}", tail.sent());
    assert_eq!(tail.world.read_all(S).len() as u32, 8 * P);
}

fn flight_report(world: &mut World) -> Option<FlightReport> {
    let client = world.end(C);
    client.path.take_flight_report(client.tx.scoreboard.is_empty())
}

#[test]
fn a_flight_is_reported_before_its_losses_are_repaired() {
    // RTT 100 ms. The second of eight is declared lost at 100 ms, and its repair arrives at 200 ms. If the
    // last of eight is lost, the probe repeats it.
    for (lost, known) in [(2, 130), (8, 750)] {
        let lose: fn(usize, usize) -> bool =
            if lost == 2 { |who, n| who == C && n == 2 } else { |who, n| who == C && n == 8 };
        let config = TcpConfig { path_start: true, ..rack_tlp() };
        let mut tail = Tail::new(config, 8, lose);
        tail.until(90);
        assert!(!tail.world.end(C).path.owes_flight_report());
        tail.until(known);
        let report = flight_report(&mut tail.world).expect(if lost == 2 { "hole" } else { "tail" });
        assert_eq!((report.bytes, report.segments), (8 * P, 8), "{report:?}");
        if lost == 2 {
            assert_eq!(report.lost, 1);
        }
        tail.until(3_000);
        assert_eq!(flight_report(&mut tail.world), None, "a repair is no flight");
    }
}

#[test]
fn reneged_data_is_sent_again() {
    // RFC 2018 section 8: "the data receiver is permitted to discard data in its queue that has not been
    // acknowledged". An acknowledgement that stops where the SACK began shows this.
    let mut tail = Tail::new(rack_tlp(), 4, |who, n| who == C && (2..=4).contains(&n));
    tail.until(90);
    forge(&mut tail, 1, &[(1001, 4001)]);
    tail.until(3_000);
    assert_eq!(tail.counters().reneged, 1);
    assert_eq!(tail.world.read_all(S).len() as u32, 4 * P);
}

#[test]
fn rto_covers_the_retransmission_not_the_original() {
    // The loss shows 450 ms after the transmission; the retransmission is acknowledged 100 ms later, after
    // the timeout of the original at 500 ms.
    let mut tail = Tail::new(rack_tlp(), 4, |who, n| who == C && n == 1);
    tail.world.hold_from(S, Duration::from_millis(350));
    tail.until(460);
    tail.world.hold_from(S, Duration::ZERO);
    tail.until(1_500);
    assert_eq!((tail.counters().timeouts, tail.counters().recoveries), (0, 1), "{:?}", tail.sent());
}

#[test]
fn timeouts_of_a_thin_stream_do_not_double() {
    let mtu_probing = MtuProbing::Off;
    let config = TcpConfig { thin_stream: true, mtu_probing, ..setting(Reactive::Off) };
    let mut tail = Tail::new(config, 1, |who, n| who == C && n <= 9);
    tail.until(9_000);
    let times: Vec<u64> = tail.sent().into_iter().map(|sent| sent.0).collect();
    assert_eq!(times, [500, 1000, 1500, 2000, 2500, 3000, 3500, 4500, 6500]);
}

#[test]
fn short_records_that_pacing_holds_back_do_not_wait_for_an_acknowledgement() {
    // Records 21 to 60 of 80 are lost. A record is charged as a full segment, so the pacer holds it back
    // while the record alone would pass.
    let congestion = CongestionAlgorithm::Fixed(30_000);
    let mut world =
        World::open(TcpConfig { congestion, pacing: Some(PacingConfig::default()), ..rack_tlp() });
    world.lose = |who, n| who == C && (21..=60).contains(&n);
    let begin = world.now;
    for _ in 0..80 {
        assert_eq!(world.end(C).write(&[7; 100], begin), Ok(100));
        world.end(C).tx.queue.end_record();
    }
    world.run_for(1_000);
    let again: Vec<_> = world.log[80..]
        .iter()
        .filter(|l| l.1 == C && l.5 > 0)
        .map(|l| l.0.saturating_since(begin).as_micros() / 1_000)
        .collect();
    assert_eq!(again.len(), 40, "{again:?}");
    assert!(again.last().unwrap() - again[0] < 50, "half a round trip: {again:?}");
    assert_eq!(world.end(C).stats().counters.timeouts, 0);
}

#[test]
fn first_syn_retries_may_be_evenly_spaced() {
    let mut world = World::new(TcpConfig { syn_linear_retries: 2, syn_retries: 4, ..TcpConfig::default() });
    world.lose = |who, _| who == C;
    world.run_for(30_000);
    let syns: Vec<_> = world.log.iter().map(|l| l.0.as_micros() / 1000).collect();
    assert_eq!(syns, [0, 1000, 2000, 3000, 5000]);
    assert!(TcpConfig { syn_linear_retries: 11, ..TcpConfig::default() }.validate().is_err());
}

//! False acknowledgements from a hostile peer.

use crate::bounded;
use crate::scene::*;
use brisk_tcp::config::EcnMode;
use brisk_wire::Flags;
use std::time::Duration;

#[test]
fn optimistic_acknowledgements_gain_nothing() {
    let mut scene = Scene::new(|_, _| {});
    let (id, isn) = scene.open(peer(1), &MSS_1000);
    scene.write(id, 100_000);
    let before = scene.stats(id).cwnd;
    for step in 1..1000 {
        scene.arrive(peer(1), ack(isn + 1 + 10_000 + step * 1000));
    }
    bounded(
        "optimistic ACKs of what was never sent",
        "growth of cwnd, bytes",
        0,
        u64::from(scene.stats(id).cwnd - before),
    );
    bounded("optimistic ACKs of what was never sent", "payload sent, bytes", 10_000, scene.payload_sent());
}

#[test]
fn divided_acknowledgements_count_their_bytes() {
    let mut scene = Scene::new(|_, _| {});
    let (id, isn) = scene.open(peer(1), &MSS_1000);
    scene.write(id, 200_000);
    let before = scene.stats(id).cwnd;
    scene.now += Duration::from_millis(100);
    for byte in 1..=1000 {
        scene.arrive(peer(1), ack(isn + 1 + byte));
    }
    bounded(
        "ACK division, 1000 ACKs for 1000 bytes",
        "growth of cwnd, bytes",
        1000,
        u64::from(scene.stats(id).cwnd - before),
    );
}

/// RFC 5681 section 3.2: each duplicate may stand for one of the other nine segments. Limited transmit (RFC
/// 3042) sends two more segments; then the third duplicate retransmits the first.
#[test]
fn spoofed_duplicates_buy_no_more_than_what_was_outstanding_once_more() {
    let mut scene = Scene::new(|_, _| {});
    let (id, isn) = scene.open(peer(1), &MSS_1000);
    scene.write(id, 250_000);
    scene.now += Duration::from_millis(100);
    for _ in 0..10_000 {
        scene.arrive(peer(1), ack(isn + 1));
    }
    bounded(
        "DupACK spoofing, 10000 duplicates of 10 segments",
        "payload sent, bytes",
        10_000 + 9_000 + 2_000 + 1_000,
        scene.payload_sent(),
    );
    bounded("DupACK spoofing", "cwnd, bytes", 10_000, u64::from(scene.stats(id).cwnd));
}

#[test]
fn a_sack_bomb_does_not_multiply_records() {
    let mut scene = Scene::new(|_, _| {});
    let (id, isn) = scene.open(peer(1), &WITH_SACK);
    scene.write(id, 250_000);
    scene.now += Duration::from_millis(100);
    for count in 0..20_000u32 {
        let start = isn + 1 + 1 + (count * 7) % 9_000;
        let mut option = vec![1, 1, 5, 10];
        option.extend(start.to_be_bytes());
        option.extend((start + 1).to_be_bytes());
        scene.arrive(peer(1), Attack { options: &option, ..ack(isn + 1) });
    }
    let outstanding = scene.stack.conn_info(id).unwrap().unacked;
    bounded("SACK bomb, 20000 blocks of one byte", "records of segments", 250 + 1024, u64::from(outstanding));
}

/// A receiver may renege (RFC 2018 section 8). This only delays its own data.
#[test]
fn a_receiver_that_takes_back_what_it_sacked_gets_it_again() {
    let mut scene = Scene::new(|_, _| {});
    let (id, isn) = scene.open(peer(1), &WITH_SACK);
    scene.write(id, 10_000);
    scene.now += Duration::from_millis(100);
    let report = sack(isn + 1 + 1000, isn + 1 + 10_000);
    scene.arrive(peer(1), Attack { options: &report, ..ack(isn + 1) });
    scene.now += Duration::from_millis(100);
    scene.sent.clear();
    let began = scene.now;
    let mut acked = isn + 1 + 1000;
    scene.arrive(peer(1), ack(acked));
    while acked != isn + 1 + 10_000 && scene.now < began + Duration::from_secs(60) {
        if scene.sent.is_empty() {
            let next = scene.stack.next_timeout().unwrap();
            scene.pass(next - scene.now);
        }
        for (tcp, len) in std::mem::take(&mut scene.sent) {
            if tcp.seq.0 == acked {
                acked += len as u32;
            }
        }
        scene.now += Duration::from_millis(100);
        scene.arrive(peer(1), ack(acked));
    }
    let took = (scene.now - began).as_millis() as u64;
    bounded("reneging, nine of ten segments", "time until all is delivered, ms", 3_000, took);
    assert_eq!(acked, isn + 1 + 10_000);
}

#[test]
fn reneging_for_ever_draws_a_bounded_number_of_bytes() {
    let mut scene = Scene::new(|_, _| {});
    let (id, isn) = scene.open(peer(1), &WITH_SACK);
    scene.write(id, 100_000);
    let mut acked = isn + 1;
    for _ in 0..100 {
        scene.pass(Duration::from_millis(100));
        let end = scene.sent_to(isn);
        let report = sack(acked + 1000, end);
        if end.wrapping_sub(acked) > 1000 {
            scene.arrive(peer(1), Attack { options: &report, ..ack(acked) });
            scene.pass(Duration::from_millis(100));
        }
        acked = (acked + 1000).min(scene.sent_to(isn));
        scene.arrive(peer(1), ack(acked));
    }
    bounded(
        "reneging in each of 100 round trips",
        "payload sent, bytes: 100000 and ten retransmissions of each",
        1_100_000,
        scene.payload_sent(),
    );
}

/// SACK blocks for data that was sent and has not arrived. Like optimistic ACKs, they cause no more than the
/// attacker's own window permits.
#[test]
fn optimistic_sack_draws_no_more_than_the_window_of_the_liar() {
    let mut scene = Scene::new(|_, _| {});
    let (id, isn) = scene.open(peer(1), &WITH_SACK);
    scene.write(id, 250_000);
    for _ in 0..2_000 {
        scene.now += Duration::from_millis(10);
        let report = sack(isn + 1 + 1000, scene.sent_to(isn));
        scene.arrive(peer(1), Attack { options: &report, ..ack(isn + 1) });
    }
    let first_time = scene.sent_to(isn).wrapping_sub(isn + 1);
    bounded("optimistic SACK, 2000 blocks over 20 s", "new payload, bytes", 60_000, u64::from(first_time));
    bounded(
        "optimistic SACK, 2000 blocks over 20 s",
        "payload sent again, bytes",
        20_000,
        scene.payload_sent() - u64::from(first_time),
    );
}

/// DSACK blocks that falsely report unnecessary retransmissions. They undo one reduction, and no more.
#[test]
fn forged_dsacks_undo_no_more_than_the_last_reduction() {
    let mut scene = Scene::new(|_, _| {});
    let (id, isn) = scene.open(peer(1), &WITH_SACK);
    scene.write(id, 10_000);
    scene.now += Duration::from_millis(100);
    let before = scene.stats(id).cwnd;
    let report = sack(isn + 1 + 3000, isn + 1 + 10_000);
    scene.arrive(peer(1), Attack { options: &report, ..ack(isn + 1) });
    scene.pass(Duration::from_millis(50));
    for count in 0..5_000u32 {
        let start = isn + 1 + (count % 10) * 1000;
        let report = sack(start, start + 1000);
        scene.arrive(peer(1), Attack { options: &report, ..ack(isn + 1 + 10_000) });
    }
    let growth = scene.stats(id).cwnd.saturating_sub(before);
    bounded(
        "5000 forged DSACKs",
        "cwnd beyond the acknowledged bytes",
        0,
        u64::from(growth.saturating_sub(10_000)),
    );
}

/// ECE in every acknowledgement causes one reduction per round trip, down to a window that permits progress.
#[test]
fn permanent_ece_leaves_a_minimum_window() {
    let mut scene = Scene::new(|_, listen| listen.tcp.ecn = EcnMode::On);
    let syn = Attack {
        seq: ISN,
        flags: Flags::SYN | Flags::ECE | Flags::CWR,
        options: &WITH_SACK,
        ..Attack::default()
    };
    scene.arrive(peer(1), syn);
    let isn = scene.sent.last().unwrap().0.seq.0;
    scene.now += Duration::from_millis(100);
    scene.arrive(peer(1), ack(isn + 1));
    let (id, _) = scene.stack.accept(scene.listener).unwrap();
    scene.sent.clear();
    let mut acked = isn + 1;
    for _ in 0..500 {
        scene.write(id, 20_000);
        scene.pass(Duration::from_millis(100));
        acked = scene.sent_to(acked.wrapping_sub(1));
        scene.arrive(peer(1), Attack { flags: Flags::ACK | Flags::ECE, ..ack(acked) });
        scene.sent.clear();
    }
    let stats = scene.stats(id);
    bounded("ECE in 500 round trips", "reductions, at most one a round trip", 500, stats.counters.reductions);
    bounded(
        "ECE in 500 round trips",
        "round trips in which nothing moved",
        0,
        u64::from(stats.cwnd < stats.mss),
    );
}

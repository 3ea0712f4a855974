//! Time: clocks that step, timestamps that wrap or are false.

use brisk_tcp::connection::State;
use brisk_tcp::time::{Duration, Instant};

use crate::bounded;
use crate::harness::{A, Pair, pattern};
use crate::scene::*;

#[test]
fn a_clock_that_steps_back_stops_nothing() {
    let mut scene = Scene::new(|_, _| {});
    let (id, isn) = scene.open(peer(1), &MSS_1000);
    scene.write(id, 50_000);
    let mut acked = isn + 1;
    for step in 0..200u64 {
        scene.now = Instant::from_millis(1_000_000 + 1000 * (step % 7));
        scene.stack.on_timeout(scene.now);
        scene.drain();
        acked = scene.sent.iter().map(|(tcp, len)| tcp.seq.0 + *len as u32).max().unwrap_or(acked).max(acked);
        scene.arrive(peer(1), ack(acked));
    }
    bounded("clock that steps back by seconds", "bytes not delivered", 0, scene.stats(id).send_queue as u64);
}

/// Returns the options MSS 1000 and timestamps.
fn with_timestamps(value: u32) -> Vec<u8> {
    [&MSS_1000[..], &timestamps(value, 0)].concat()
}

/// RFC 7323 section 5: segments with old timestamps are dropped and answered, and their data is not accepted.
#[test]
fn old_timestamps_deliver_nothing() {
    let mut scene = Scene::new(|_, _| {});
    let (id, isn) = scene.open_with(peer(1), &with_timestamps(1_000_000), &timestamps(1_000_100, 0));
    for n in 0..10_000u32 {
        let option = timestamps(1_000_099 - n * 7, 0);
        scene.arrive(peer(1), Attack { options: &option, payload: b"old", ..ack(isn + 1) });
    }
    let what = "PAWS: 10000 segments at RCV.NXT with old timestamps";
    bounded(what, "bytes delivered", 0, scene.stack.readable(id) as u64);
    bounded(what, "acknowledgements", 10_000, scene.sent.len() as u64);
    let option = timestamps(1_000_101, 0);
    scene.arrive(peer(1), Attack { options: &option, payload: b"new", ..ack(isn + 1) });
    assert_eq!(scene.stack.readable(id), 3, "what is genuine is taken");
}

/// A timestamp far ahead would make every genuine segment old (RFC 7323 section 7). So it is not accepted
/// from an unacceptable segment.
#[test]
fn forged_future_timestamps_do_not_change_ts_recent() {
    let mut scene = Scene::new(|_, _| {});
    let (id, isn) = scene.open_with(peer(1), &with_timestamps(1_000_000), &timestamps(1_000_100, 0));
    let future = timestamps(1_000_100 + (1 << 30), 0);
    for n in 1..=10_000u32 {
        let wrong_ack = isn.wrapping_add(0x1000_0000).wrapping_add(n * 0x1_0000);
        let attack = match n % 3 {
            // Outside the window; at its edge with an ACK of data never sent; without ACK.
            0 => Attack { seq: ISN.wrapping_add(n * 400_000), payload: b"x", ..ack(isn + 1) },
            1 => Attack { payload: b"x", ..ack(wrong_ack) },
            _ => Attack { flags: Default::default(), payload: b"x", ..ack(0) },
        };
        scene.arrive(peer(1), Attack { options: &future, ..attack });
    }
    let genuine = timestamps(1_000_200, 0);
    for n in 0..100u32 {
        let seq = ISN + 1 + n * 7;
        scene.arrive(peer(1), Attack { seq, options: &genuine, payload: b"genuine", ..ack(isn + 1) });
    }
    let lost = 700 - scene.stack.readable(id) as u64;
    bounded("PAWS: 10000 forged timestamps from the future", "genuine bytes refused", 0, lost);
}

/// A peer echoes timestamps never sent, or sent long ago. The timeout stays within its bounds.
#[test]
fn lying_echoes_leave_the_timeout_in_its_bounds() {
    let mut scene = Scene::new(|_, _| {});
    let (id, isn) = scene.open_with(peer(1), &with_timestamps(1_000_000), &timestamps(1_000_100, 0));
    let ours = scene.last_timestamp;
    let (mut least, mut most) = (Duration::MAX, Duration::ZERO);
    let mut acked = isn + 1;
    for n in 0..2_000u32 {
        scene.write(id, 1_000);
        scene.pass(Duration::from_millis(50));
        acked = scene.sent_to(acked - 1);
        let echo = ours.wrapping_add((n.wrapping_mul(2_654_435_761)) >> (n % 32));
        let option = timestamps(1_000_200 + n, echo);
        scene.arrive(peer(1), Attack { options: &option, ..ack(acked) });
        let rto = scene.stats(id).rto;
        (least, most) = (least.min(rto), most.max(rto));
    }
    bounded("2000 lying timestamp echoes", "largest timeout, ms", 120_000, most.as_millis() as u64);
    bounded(
        "2000 lying timestamp echoes",
        "shortfall of the smallest timeout from 200 ms, ms",
        0,
        200u64.saturating_sub(least.as_millis() as u64),
    );
    assert_eq!(scene.stack.state(id), Some(State::Established));
}

/// The timestamp clocks of both ends wrap once (2^32 ms are 49.7 days), with traffic every six hours.
#[test]
fn timestamps_that_wrap_lose_nothing() {
    let mut pair = Pair::new(5);
    pair.record = false;
    let (at_a, at_b) = pair.established();
    let data = pattern(20_000);
    for _ in 0..4 * 60 {
        pair.transfer(A, at_a, at_b, &data, Duration::from_secs(60));
        pair.run(Duration::from_secs(6 * 3600));
    }
    let stats = [pair.a.conn_stats(at_a), pair.b.conn_stats(at_b)].map(|stats| stats.unwrap().counters);
    let refused = stats.iter().map(|counters| counters.paws).sum();
    bounded("timestamp wrap, 60 days of traffic", "segments refused by PAWS", 0, refused);
    let again = stats.iter().map(|counters| counters.retransmits + counters.timeouts).sum();
    bounded("timestamp wrap, 60 days of traffic", "retransmissions", 0, again);
}

/// After 24 days of silence the sign of the difference has changed: TS.Recent is no longer valid.
#[test]
fn silence_of_weeks_does_not_lock_the_peer_out() {
    let mut pair = Pair::new(6);
    pair.record = false;
    let (at_a, at_b) = pair.established();
    let data = pattern(20_000);
    for days in [24, 25, 30, 49, 50, 75] {
        pair.run(Duration::from_secs(days * 86_400));
        pair.transfer(A, at_a, at_b, &data, Duration::from_secs(60));
    }
    let refused =
        pair.b.conn_stats(at_b).unwrap().counters.paws + pair.a.conn_stats(at_a).unwrap().counters.paws;
    bounded("silence of 24 to 75 days", "segments refused by PAWS", 0, refused);
}

//! Windows that are small, shrink, or never open.

use brisk_tcp::time::Duration;

use crate::bounded;
use crate::scene::*;

#[test]
fn a_tiny_mss_does_not_cause_a_packet_per_byte() {
    let mut scene = Scene::new(|_, _| {});
    let (id, isn) = scene.open(peer(1), &[2, 4, 0, 1]);
    scene.write(id, 10_000);
    for _ in 0..100 {
        scene.now += Duration::from_millis(10);
        let end = scene.sent.last().map_or(isn + 1, |(tcp, len)| tcp.seq.0 + *len as u32);
        scene.arrive(peer(1), ack(end));
    }
    bounded("MSS of 1 byte, 10000 bytes written", "segments sent", 10_000 / 36 + 1, scene.sent.len() as u64);
}

#[test]
fn a_permanent_zero_window_costs_only_probes() {
    let mut scene = Scene::new(|_, _| {});
    let (id, isn) = scene.open(peer(1), &MSS_1000);
    scene.arrive(peer(1), Attack { window: Some(0), ..ack(isn + 1) });
    scene.write(id, 10_000);
    for _ in 0..3600 {
        let before = scene.sent.len();
        scene.pass(Duration::from_secs(1));
        if scene.sent.len() > before {
            scene.arrive(peer(1), Attack { window: Some(0), ..ack(isn + 1) });
        }
    }
    bounded("zero window for an hour, probes answered", "segments sent", 40, scene.sent.len() as u64);
    bounded("zero window for an hour", "payload sent, bytes", 0, scene.payload_sent());
}

/// Peers that request large responses, close their windows and then are silent.
#[test]
fn many_closed_windows_hold_bounded_memory_for_a_bounded_time() {
    const ALLOWED: usize = 1 << 20;
    let what = "100 windows closed for ever, probes unanswered";
    let mut scene = Scene::new(|config, listen| {
        config.max_buffer_bytes = ALLOWED;
        listen.backlog = 200;
    });
    let mut most = 0;
    let ids: Vec<_> = (1..=100u16)
        .map(|port| {
            let (id, isn) = scene.open(peer(port), &MSS_1000);
            scene.arrive(peer(port), Attack { window: Some(0), ..ack(isn + 1) });
            scene.write(id, 100_000);
            most = most.max(scene.stack.memory());
            id
        })
        .collect();
    bounded(what, "memory of buffers, bytes, 1 MiB allowed", ALLOWED as u64, most as u64);
    // The program releases the connections too.
    ids.into_iter().for_each(|id| scene.stack.release(id, scene.now));
    scene.sent.clear();
    scene.pass(Duration::from_secs(3600));
    bounded(what, "segments sent to each", 20, scene.sent.len() as u64 / 100);
    bounded(what, "connections an hour later", 0, scene.stack.connections() as u64);
    bounded(what, "memory of buffers an hour later, bytes", 0, scene.stack.memory() as u64);
}

/// RFC 9293 section 3.8.6: the sender must survive a window that shrinks, and send nothing new beyond it.
#[test]
fn a_window_that_shrinks_below_what_is_in_flight_stops_new_data() {
    let mut scene = Scene::new(|_, _| {});
    let (id, isn) = scene.open(peer(1), &WITH_SACK);
    scene.write(id, 100_000);
    let reached = scene.sent_to(isn);
    scene.now += Duration::from_millis(100);
    scene.arrive(peer(1), Attack { window: Some(500), ..ack(isn + 1 + 2000) });
    scene.pass(Duration::from_secs(30));
    let beyond = scene.sent_to(isn).wrapping_sub(reached);
    bounded(
        "window shrunk below what is in flight",
        "new payload beyond the edge, bytes",
        0,
        u64::from(beyond),
    );
    let before = scene.payload_sent();
    for _ in 0..100 {
        scene.arrive(peer(1), Attack { window: Some(0), ..ack(isn + 1 + 2000) });
        scene.arrive(peer(1), Attack { window: Some(8_000), ..ack(isn + 1 + 2000) });
    }
    let drawn = scene.payload_sent() - before;
    bounded("window that shrinks and opens 100 times at one instant", "payload sent, bytes", 8_000, drawn);
    // Normal windows again: everything arrives.
    let mut acked = isn + 1 + 2000;
    for _ in 0..200 {
        scene.sent.clear();
        scene.arrive(peer(1), ack(acked));
        scene.pass(Duration::from_millis(500));
        acked = scene.sent.iter().fold(
            acked,
            |acked, (tcp, len)| {
                if tcp.seq.0 == acked { acked + *len as u32 } else { acked }
            },
        );
    }
    bounded("window shrunk, then open again", "bytes not delivered", 0, scene.stats(id).send_queue as u64);
}

/// RFC 9293 section 3.8.6.2.1: a receiver that offers one byte at a time does not get a packet for each.
#[test]
fn a_silly_window_does_not_cause_a_packet_per_byte() {
    let mut scene = Scene::new(|_, _| {});
    let (id, isn) = scene.open(peer(1), &MSS_1000);
    scene.write(id, 60_000);
    let mut acked = scene.sent_to(isn);
    scene.sent.clear();
    for step in 0..5_000u32 {
        // The right edge moves by one byte a millisecond.
        let edge = isn + 1 + 10_000 + step;
        scene.pass(Duration::from_millis(1));
        acked = scene.sent_to(acked - 1);
        let window = edge.saturating_sub(acked).min(60_000) as u16;
        scene.arrive(peer(1), Attack { window: Some(window), ..ack(acked) });
    }
    bounded("silly window, one byte more each ms for 5 s", "segments sent", 40, scene.sent.len() as u64);
}

/// RFC 9293 section 3.8.6.2.2: this end offers no silly windows when the program reads a byte at a time.
#[test]
fn reads_of_single_bytes_cause_no_silly_windows() {
    let mut scene = Scene::new(|_, listen| {
        listen.tcp.receive_buffer = brisk_tcp::config::BufferConfig { initial: 16 << 10, max: 16 << 10 };
    });
    let (id, isn) = scene.open(peer(1), &MSS_1000);
    let (mut next, mut acked) = (ISN + 1, ISN + 1);
    let payload = [3u8; 1000];
    let mut silly = 0u64;
    let mut edge = acked + scene.stats(id).rcv_wnd;
    for _ in 0..30_000 {
        let room = edge.saturating_sub(next).min(1000);
        if room > 0 {
            scene.arrive(peer(1), Attack { seq: next, payload: &payload[..room as usize], ..ack(isn + 1) });
            next += room;
        }
        let _ = scene.stack.read(id, &mut [0], scene.now);
        scene.pass(Duration::from_millis(1));
        for (tcp, _) in std::mem::take(&mut scene.sent) {
            let offered = tcp.ack.0 + u32::from(tcp.window);
            silly += u64::from(offered > edge && offered - edge < 1000);
            (edge, acked) = (edge.max(offered), acked.max(tcp.ack.0));
        }
        next = next.min(edge).max(acked);
    }
    bounded("program that reads 30000 single bytes", "window updates of less than a segment", 0, silly);
}

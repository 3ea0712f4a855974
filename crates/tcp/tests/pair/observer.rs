//! Reports of the lives of connections, including those that the program has released or not accepted.

use std::time::Duration;

use brisk_tcp::config::{ConnectConfig, ListenConfig, StackConfig};
use brisk_tcp::error::CloseReason;
use brisk_tcp::fast_open::{FastOpenConnect, FastOpenListen};
use brisk_tcp::{Lifecycle, LifecycleEvent, Stack};

use crate::harness::{A, B, Pair, stack_config, syn};

use Lifecycle::{Closed, Established, Failed};

fn observed() -> Pair {
    let config = |side| StackConfig { lifecycle: true, ..stack_config(side) };
    Pair::with_configs(1, config(A), config(B))
}

fn events(stack: &mut Stack) -> Vec<LifecycleEvent> {
    std::iter::from_fn(|| stack.poll_lifecycle()).collect()
}

fn changes(stack: &mut Stack) -> Vec<(bool, Lifecycle)> {
    events(stack).into_iter().map(|event| (event.is_active, event.change)).collect()
}

#[test]
fn both_ends_of_a_released_connection_are_reported() {
    let mut pair = observed();
    let (at_a, at_b) = pair.established();
    let tuple = |event: &LifecycleEvent| (event.ends.local, event.ends.remote);
    let [at_client, at_server] = [events(&mut pair.a), events(&mut pair.b)].map(|mut events| {
        assert_eq!((events.len(), events[0].change), (1, Established));
        events.remove(0)
    });
    assert_eq!((at_client.conn, at_client.is_active), (at_a, true));
    assert_eq!((at_server.conn, at_server.is_active), (at_b, false));
    assert_eq!(tuple(&at_client), (at_server.ends.remote, at_server.ends.local));
    assert!(at_client.stats.established.is_some());

    pair.write(A, at_a, &[7; 5_000]).expect("open");
    pair.run_ms(100);
    pair.read(B, at_b).expect("open").expect("data");
    for (side, id) in [(A, at_a), (B, at_b)] {
        pair.release(side, id);
        pair.run_ms(100);
    }
    let [mut at_client, mut at_server] = [events(&mut pair.a), events(&mut pair.b)];
    for events in [&at_client, &at_server] {
        assert_eq!(
            events.iter().map(|event| event.change).collect::<Vec<_>>(),
            [Closed(CloseReason::Finished)]
        );
    }
    assert_eq!(at_client.remove(0).stats.counters.payload_bytes_acked, 5_000);
    assert_eq!(at_server.remove(0).stats.counters.payload_bytes_received, 5_000);
    pair.run(Duration::from_secs(120));
    assert_eq!(pair.a.connections() + pair.b.connections(), 0);
    assert_eq!(
        (changes(&mut pair.a), changes(&mut pair.b)),
        (vec![], vec![]),
        "the end of TIME-WAIT is no change"
    );
}

#[test]
fn a_reset_and_its_cause_are_reported_at_both_ends() {
    let mut pair = observed();
    let (at_a, _) = pair.established();
    pair.abort(A, at_a);
    pair.run_ms(100);
    assert_eq!(changes(&mut pair.a), [(true, Established), (true, Closed(CloseReason::Aborted))]);
    assert_eq!(changes(&mut pair.b), [(false, Established), (false, Closed(CloseReason::Reset))]);
}

#[test]
fn connections_that_nobody_accepts_are_reported() {
    let mut pair = observed();
    let listener = pair.listen(B, 80, ListenConfig::default());
    pair.connect(A, 80);
    pair.run_ms(100);
    let now = pair.now;
    pair.b.close_listener(listener, now);
    pair.run_ms(100);
    assert_eq!(changes(&mut pair.a), [(true, Established), (true, Closed(CloseReason::Reset))]);
    assert_eq!(changes(&mut pair.b), [(false, Established), (false, Closed(CloseReason::ListenerClosed))]);
}

#[test]
fn connections_that_fail_are_reported_once_with_the_cause() {
    let mut pair = observed();
    let refused = pair.connect(A, 80);
    pair.run_ms(100);
    pair.release(A, refused);
    assert_eq!(changes(&mut pair.a), [(true, Failed(CloseReason::Refused))]);

    let given_up = pair.connect(A, 80);
    pair.release(A, given_up);
    assert_eq!(changes(&mut pair.a), [(true, Failed(CloseReason::Aborted))]);

    pair.tap = Some(Box::new(|_, _| true));
    let unanswered = pair.connect(A, 80);
    pair.run(Duration::from_secs(300));
    pair.release(A, unanswered);
    assert_eq!(changes(&mut pair.a), [(true, Failed(CloseReason::HandshakeTimeout))]);
    assert_eq!(changes(&mut pair.b), [], "there was no connection");
}

#[test]
fn handshakes_that_a_peer_leaves_are_only_counted() {
    let mut pair = observed();
    let listener = pair.listen(B, 80, ListenConfig::default());
    pair.tap = Some(Box::new(|_, _| true));
    for port in 0..200 {
        let mut tcp = syn(1);
        (tcp.src_port, tcp.dst_port) = (2_000 + port, 80);
        pair.forge(B, &tcp, b"");
    }
    assert_eq!(pair.b.half_open(), 200);
    pair.run(Duration::from_secs(100));
    assert_eq!((pair.b.half_open(), pair.b.stats().handshakes_failed), (0, 200));
    let mut tcp = syn(1);
    (tcp.src_port, tcp.dst_port) = (1_000, 80);
    pair.forge(B, &tcp, b"");
    let now = pair.now;
    pair.b.close_listener(listener, now);
    pair.run_ms(100);
    assert_eq!(pair.b.connections(), 0);
    assert_eq!(changes(&mut pair.b), []);
}

#[test]
fn connection_opened_by_syn_data_is_reported_when_established_or_failed() {
    let mut pair = observed();
    let fast_open = Some(FastOpenListen::default());
    let listener = pair.listen(B, 80, ListenConfig { fast_open, ..ListenConfig::default() });
    let fast_open = Some(FastOpenConnect::default());
    let config = ConnectConfig { fast_open, ..ConnectConfig::default() };
    // The first connection gets the cookie.
    pair.established_at(listener, &config);
    assert_eq!(changes(&mut pair.a).len() + changes(&mut pair.b).len(), 2);
    for is_lost in [false, true] {
        if is_lost {
            pair.tap = Some(Box::new(|from, _| from == B));
        }
        let now = pair.now;
        pair.a.connect_with_data(B.addr(80), b"request", &config, now).expect("possible");
        pair.run_ms(15);
        assert!(pair.b.accept(listener).is_some(), "the SYN opened it");
        assert_eq!(changes(&mut pair.b), [], "the SYN alone establishes nothing");
        pair.run(Duration::from_secs(if is_lost { 300 } else { 1 }));
        let expected = if is_lost { Failed(CloseReason::HandshakeTimeout) } else { Established };
        assert_eq!(changes(&mut pair.a), [(true, expected)]);
        assert_eq!(changes(&mut pair.b), [(false, expected)]);
    }
}

#[test]
fn nothing_is_recorded_unless_it_is_asked_for() {
    let mut pair = Pair::new(1);
    let (at_a, _) = pair.established();
    pair.abort(A, at_a);
    pair.run_ms(100);
    assert_eq!((changes(&mut pair.a), changes(&mut pair.b)), (vec![], vec![]));
}

#[test]
fn changes_that_nobody_takes_are_bounded_and_counted() {
    let mut pair = observed();
    pair.record = false;
    let now = pair.now;
    for _ in 0..65_540 {
        let id = pair.a.connect(B.addr(80), &ConnectConfig::default(), now).expect("a port is free");
        pair.a.release(id, now);
    }
    assert_eq!(pair.a.stats().lifecycle_dropped, 4);
    assert_eq!(changes(&mut pair.a).len(), 65_536);
}

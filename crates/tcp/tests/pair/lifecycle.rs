//! Changes of a host at run time: MTU, addresses, shutdown.

use std::time::Duration;

use brisk_tcp::config::ListenConfig;
use brisk_tcp::connection::State;
use brisk_tcp::error::{CloseReason, ConnectError, WriteError};
use brisk_tcp::{ConnectConfig, Event};

use crate::harness::{A, B, Pair, pattern};

fn longest(pair: &mut Pair) -> usize {
    pair.seen.drain(..).filter(|seen| seen.from == A).map(|seen| seen.len).max().unwrap_or(0)
}

#[test]
fn a_lower_mtu_shortens_segments_of_open_connections_and_is_no_loss() {
    let mut pair = Pair::new(1);
    let (at_a, at_b) = pair.established();
    pair.transfer(A, at_a, at_b, &pattern(100_000), Duration::from_secs(10));
    assert_eq!(longest(&mut pair), 1448);
    let window = pair.a.conn_stats(at_a).expect("held").cwnd;
    let now = pair.now;
    pair.write(A, at_a, &pattern(20_000)).expect("there is room");
    pair.a.set_mtu(1000, now).expect("in range");
    pair.run(Duration::from_secs(2));
    assert_eq!(pair.read(B, at_b).expect("open").expect("not at its end"), pattern(20_000));
    assert!(pair.a.conn_stats(at_a).expect("held").cwnd >= window, "no congestion");
    longest(&mut pair);
    pair.transfer(A, at_a, at_b, &pattern(100_000), Duration::from_secs(10));
    assert_eq!(longest(&mut pair), 948);
    assert!(pair.a.set_mtu(575, now).is_err());
    assert_eq!(pair.a.config().mtu, 1000);
}

#[test]
fn connections_after_an_increase_of_the_mtu_use_it() {
    let mut pair = Pair::new(1);
    let now = pair.now;
    pair.a.set_mtu(1000, now).expect("in range");
    let (at_a, at_b) = pair.established();
    pair.transfer(A, at_a, at_b, &pattern(50_000), Duration::from_secs(10));
    assert_eq!(longest(&mut pair), 948);
    pair.a.set_mtu(1500, now).expect("in range");
    pair.transfer(A, at_a, at_b, &pattern(50_000), Duration::from_secs(10));
    assert_eq!(longest(&mut pair), 948);
    let listener = pair.listen(B, 81, ListenConfig::default());
    let (at_a, at_b) = pair.established_at(listener, &ConnectConfig::default());
    pair.transfer(A, at_a, at_b, &pattern(50_000), Duration::from_secs(10));
    assert_eq!(longest(&mut pair), 1448);
}

#[test]
fn an_address_comes_and_goes_with_its_connections() {
    let mut pair = Pair::new(1);
    let other = "10.0.0.77".parse().expect("an address");
    assert!(pair.a.add_address(other) && !pair.a.add_address(other));
    let listener = pair.listen(B, 80, ListenConfig::default());
    let from_other = ConnectConfig { local: Some((other, 0).into()), ..ConnectConfig::default() };
    let (moved, _) = pair.established_at(listener, &from_other);
    let (stays, at_b) = pair.established_at(listener, &ConnectConfig::default());
    let now = pair.now;
    assert!(pair.a.remove_address(other, now) && !pair.a.remove_address(other, now));
    pair.run_ms(100);
    assert!(pair.heard(A, Event::Closed(moved, CloseReason::Aborted)));
    pair.transfer(A, stays, at_b, &pattern(10_000), Duration::from_secs(1));
    let refused = pair.a.connect(B.addr(80), &from_other, now);
    assert_eq!(refused, Err(ConnectError::NotLocal(other)));
}

#[test]
fn closing_a_host_ends_listeners_and_connections_in_order_then_by_force() {
    let mut pair = Pair::new(1);
    let listener = pair.listen(B, 80, ListenConfig::default());
    let (at_a, at_b) = pair.established_at(listener, &ConnectConfig::default());
    let unaccepted = pair.connect(A, 80);
    pair.run_ms(200);
    pair.write(B, at_b, b"last words").expect("there is room");
    let now = pair.now;
    pair.b.close_all(now);
    pair.run_ms(200);
    assert!(pair.heard(A, Event::Closed(unaccepted, CloseReason::Reset)));
    assert_eq!(pair.read(A, at_a).expect("open").expect("data"), b"last words");
    assert_eq!(pair.b.state(at_b), Some(State::FinWait2));
    assert_eq!(pair.b.write(at_b, b"more", now), Err(WriteError::AfterClose));
    let refused = pair.connect(A, 80);
    pair.run_ms(200);
    assert!(pair.heard(A, Event::Closed(refused, CloseReason::Refused)));
    let now = pair.now;
    pair.b.abort_all(now);
    pair.run_ms(200);
    assert!(pair.heard(A, Event::Closed(at_a, CloseReason::Reset)));
    assert_eq!(pair.b.connections(), 0);
}

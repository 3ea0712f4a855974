//! Forwarding: SYNs without a listener wait for the decision of the program.

use std::time::Duration;

use brisk_tcp::config::{StackConfig, TcpConfig};
use brisk_tcp::connection::State;
use brisk_tcp::error::{CloseReason, RequestError};
use brisk_tcp::stack::{Refusal, Request};
use brisk_tcp::{ConnId, Event};
use brisk_wire::{Flags, TcpHeader};

use crate::harness::{A, B, Pair, packet, pattern, stack_config, syn};

const SYN_ACK: Flags = Flags(Flags::SYN.0 | Flags::ACK.0);

/// Returns a pair in which B forwards and A has requested a connection to `port`.
fn asked(port: u16) -> (Pair, ConnId, Request) {
    let mut pair = Pair::new(1);
    pair.b.set_forwarding(2);
    let at_a = pair.connect(A, port);
    pair.run_ms(100);
    let request = pair.b.next_request().expect("held");
    (pair, at_a, request)
}

#[test]
fn a_request_waits_without_an_answer_and_opens_when_accepted() {
    let (mut pair, at_a, request) = asked(4711);
    assert_eq!(request.tuple.local, B.addr(4711));
    assert_eq!(Some(request.tuple.remote), pair.a.local_addr(at_a));
    assert!(request.options.mss.is_some() && request.options.sack_permitted);
    pair.run(Duration::from_secs(4));
    assert!(pair.count(A, Flags::SYN) > 1 && pair.seen.iter().all(|seen| seen.from == A));
    assert!(!pair.b.has_request() && pair.b.connections() == 0, "the same SYN is no second request");
    let now = pair.now;
    let at_b = pair.b.accept_request(&request, &TcpConfig::default(), now).expect("held");
    assert_eq!(pair.b.state(at_b), Some(State::SynReceived));
    pair.run_ms(200);
    assert!(pair.heard(B, Event::Connected(at_b)) && pair.heard(A, Event::Connected(at_a)));
    let (client, server) = (pair.a.stats(), pair.b.stats());
    assert_eq!((server.passive_opens, server.handshakes_completed, server.handshakes_failed), (1, 1, 0));
    assert_eq!((client.active_opens, client.handshakes_completed), (1, 0));
    pair.transfer(A, at_a, at_b, &pattern(100_000), Duration::from_secs(60));
    let again = pair.b.accept_request(&request, &TcpConfig::default(), now);
    assert_eq!(again, Err(RequestError::Gone(request.tuple.remote)));
}

#[test]
fn a_peer_that_resets_an_accepted_request_has_failed_its_handshake() {
    for is_released in [false, true] {
        let (mut pair, at_a, request) = asked(4711);
        let now = pair.now;
        pair.a.abort(at_a, now);
        let at_b = pair.b.accept_request(&request, &TcpConfig::default(), now).expect("held");
        if is_released {
            pair.b.release(at_b, now);
        }
        pair.run_ms(200);
        assert_ne!(pair.b.state(at_b), Some(State::Established));
        let stats = pair.b.stats();
        let counts = (stats.passive_opens, stats.handshakes_completed, stats.handshakes_failed);
        assert_eq!(counts, (1, 0, 1), "released: {is_released}");
    }
}

#[test]
fn a_refused_request_is_answered_with_a_reset() {
    let (mut pair, at_a, request) = asked(81);
    let now = pair.now;
    assert!(pair.b.refuse_request(&request, now));
    assert!(!pair.b.refuse_request(&request, now), "decided");
    pair.run_ms(100);
    assert!(pair.heard(A, Event::Closed(at_a, CloseReason::Refused)));
    assert_eq!(pair.count(B, SYN_ACK), 0);
}

#[test]
fn the_next_syn_of_an_ignored_request_is_a_new_one() {
    let (mut pair, _, request) = asked(81);
    pair.b.ignore_request(&request);
    assert!(!pair.b.has_request());
    pair.run(Duration::from_secs(2));
    let next = pair.b.next_request().expect("asked again");
    assert_eq!(next.tuple, request.tuple);
    let now = pair.now;
    assert!(!pair.b.refuse_request(&request, now), "a decision about the first is none about the second");
    assert!(pair.b.refuse_request(&next, now));
}

#[test]
fn more_requests_than_may_wait_are_dropped_until_one_is_decided() {
    let (mut pair, _, first) = asked(81);
    for (n, port) in (0..).zip([82, 83, 84]) {
        let tcp = TcpHeader { dst_port: port, ..syn(100) };
        let packet = packet(A.addr(5000), B.addr(port), &tcp, b"");
        pair.inject(B, &packet);
        assert_eq!(pair.b.stats().refused(Refusal::BacklogFull), n);
    }
    assert_eq!(pair.b.next_request().map(|request| request.tuple.local), Some(B.addr(82)));
    assert_eq!(pair.b.next_request(), None);
    pair.b.ignore_request(&first);
    pair.inject(B, &packet(A.addr(5000), B.addr(85), &TcpHeader { dst_port: 85, ..syn(1) }, b""));
    assert_eq!(pair.b.next_request().map(|request| request.tuple.local), Some(B.addr(85)));
}

#[test]
fn listeners_go_before_requests_and_ends_of_forwarding_reset() {
    let mut pair = Pair::new(1);
    pair.b.set_forwarding(8);
    let (at_a, at_b) = pair.established();
    assert!(!pair.b.has_request());
    pair.transfer(A, at_a, at_b, b"hello", Duration::from_secs(1));
    // Only a SYN is a request.
    pair.forge(B, &TcpHeader { src_port: 7, dst_port: 99, flags: Flags::ACK, ..syn(1) }, b"");
    assert_eq!(pair.b.stats().refused(Refusal::NoListener), 1);
    let waiting = pair.connect(A, 81);
    pair.run_ms(50);
    let request = pair.b.next_request().expect("held");
    pair.b.set_forwarding(0);
    let now = pair.now;
    assert!(pair.b.accept_request(&request, &TcpConfig::default(), now).is_err());
    pair.run(Duration::from_secs(2));
    assert!(pair.heard(A, Event::Closed(waiting, CloseReason::Refused)));
}

#[test]
fn a_stack_on_every_address_is_asked_for_all_of_them() {
    let any = StackConfig { any_address: true, ..stack_config(B) };
    let mut pair = Pair::with_configs(1, stack_config(A), any);
    pair.b.set_forwarding(8);
    let far = "198.51.100.7:443".parse().expect("an address");
    let now = pair.now;
    let at_a = pair.a.connect(far, &Default::default(), now).expect("possible");
    pair.run_ms(50);
    let request = pair.b.next_request().expect("held");
    assert_eq!(request.tuple.local, far);
    let at_b = pair.b.accept_request(&request, &TcpConfig::default(), now).expect("held");
    pair.run_ms(200);
    assert_eq!(pair.a.state(at_a), Some(State::Established));
    assert_eq!(pair.b.local_addr(at_b), Some(far));
}

#[test]
fn a_request_takes_the_place_of_a_time_wait() {
    let (mut pair, at_a, request) = asked(81);
    let now = pair.now;
    let at_b = pair.b.accept_request(&request, &TcpConfig::default(), now).expect("held");
    pair.run_ms(200);
    pair.release(B, at_b);
    pair.run_ms(200);
    pair.release(A, at_a);
    pair.run_ms(200);
    assert_eq!(pair.b.time_waits(), 1);
    let config = brisk_tcp::ConnectConfig { local: Some(request.tuple.remote), ..Default::default() };
    let again = pair.connect_with(A, 81, &config);
    pair.run_ms(100);
    let request = pair.b.next_request().expect("held");
    let now = pair.now;
    pair.b.accept_request(&request, &TcpConfig::default(), now).expect("held");
    pair.run_ms(200);
    assert_eq!(pair.a.state(again), Some(State::Established));
    assert_eq!((pair.b.time_waits(), pair.b.stats().time_waits_reused), (0, 1));
}

#[test]
fn an_accepted_request_whose_peer_is_gone_ends() {
    let (mut pair, at_a, request) = asked(81);
    pair.abort(A, at_a);
    pair.release(A, at_a);
    let now = pair.now;
    let at_b = pair.b.accept_request(&request, &TcpConfig::default(), now).expect("held");
    pair.run_ms(500);
    let closed = pair
        .events
        .iter()
        .any(|(side, event)| *side == B && matches!(event, Event::Closed(id, _) if *id == at_b));
    assert!(closed, "{:?}", pair.events);
    pair.release(B, at_b);
    assert_eq!(pair.b.connections(), 0);
    let wrong = TcpConfig { syn_retries: 255, dscp: 200, ..TcpConfig::default() };
    pair.inject(B, &packet(A.addr(5001), B.addr(80), &syn(1), b""));
    let request = pair.b.next_request().expect("held");
    assert!(matches!(pair.b.accept_request(&request, &wrong, now), Err(RequestError::BadConfig(_))));
    assert!(pair.b.refuse_request(&request, now), "a wrong setting decides nothing");
}

//! Opening: three-way handshake, simultaneous open, refusals, listeners, cookies.

use std::time::Duration;

use brisk_tcp::config::{ConnectConfig, ListenConfig, SynCookies, TcpConfig};
use brisk_tcp::connection::State;
use brisk_tcp::error::{CloseReason, ConnectError, ListenError, ReadError};
use brisk_tcp::stack::Refusal;
use brisk_tcp::{Event, Stack, StackConfig};
use brisk_wire::{Flags, SeqNum, TcpHeader};

use crate::harness::{A, B, Pair, packet, pattern, stack_config, syn};

const SYN_ACK: Flags = Flags(Flags::SYN.0 | Flags::ACK.0);
const RST_ACK: Flags = Flags(Flags::RST.0 | Flags::ACK.0);

#[test]
fn three_segments_open_a_connection() {
    let mut pair = Pair::new(1);
    let listener = pair.listen(B, 80, ListenConfig::default());
    let at_a = pair.connect(A, 80);
    assert_eq!(pair.a.state(at_a), Some(State::SynSent));
    pair.run_ms(100);
    let (at_b, remote) = pair.b.accept(listener).expect("waits");
    assert_eq!(Some(remote), pair.a.local_addr(at_a));
    assert_eq!(pair.a.state(at_a), Some(State::Established));
    assert_eq!(pair.b.state(at_b), Some(State::Established));
    assert!(pair.heard(A, Event::Connected(at_a)) && pair.heard(B, Event::Incoming(listener)));
    let flags: Vec<Flags> = pair.seen.iter().map(|seen| seen.tcp.flags).collect();
    assert_eq!(flags, [Flags::SYN, SYN_ACK, Flags::ACK]);
    assert_eq!(pair.b.accept(listener), None);
    let counts = |stack: &Stack, id| {
        let counters = stack.conn_stats(id).expect("held").counters;
        (counters.segments_out, counters.segments_in)
    };
    assert_eq!((counts(&pair.a, at_a), counts(&pair.b, at_b)), ((2, 1), (1, 2)));
}

#[test]
fn nobody_listens_and_the_syn_is_refused() {
    let mut pair = Pair::new(1);
    let id = pair.connect(A, 81);
    pair.run_ms(100);
    assert!(pair.heard(A, Event::Closed(id, CloseReason::Refused)));
    assert_eq!(pair.last(B).tcp.flags, RST_ACK);
    assert_eq!(pair.b.stats().refused(Refusal::NoListener), 1);
    let now = pair.now;
    assert_eq!(pair.a.read(id, &mut [0; 8], now), Err(ReadError::Closed(CloseReason::Refused)));
    pair.release(A, id);
    assert_eq!(pair.a.connections(), 0);
}

#[test]
fn a_lost_syn_and_a_lost_syn_ack_are_sent_again() {
    let mut pair = Pair::new(1);
    let mut dropped = (false, false);
    pair.tap = Some(Box::new(move |_, segment| {
        let lost = match segment.tcp.flags {
            Flags::SYN => &mut dropped.0,
            SYN_ACK => &mut dropped.1,
            _ => return false,
        };
        !core::mem::replace(lost, true)
    }));
    pair.established();
    assert!(pair.count(A, Flags::SYN) >= 2 && pair.count(B, SYN_ACK) >= 2);
    assert_eq!(pair.b.stats().handshakes_completed, 1);
}

#[test]
fn an_unanswered_syn_gives_up_after_its_retries() {
    let mut pair = Pair::new(1);
    pair.tap = Some(Box::new(|_, _| true));
    let config = ConnectConfig {
        tcp: TcpConfig { syn_retries: 2, ..TcpConfig::default() },
        ..ConnectConfig::default()
    };
    let id = pair.connect_with(A, 80, &config);
    pair.run(Duration::from_secs(20));
    assert!(pair.heard(A, Event::Closed(id, CloseReason::HandshakeTimeout)));
    assert_eq!(pair.count(A, Flags::SYN), 3);
}

#[test]
fn an_unanswered_syn_ack_gives_up_and_frees_the_half_open_connection() {
    let mut pair = Pair::new(1);
    let config = ListenConfig {
        tcp: TcpConfig { synack_retries: 2, ..TcpConfig::default() },
        ..ListenConfig::default()
    };
    pair.listen(B, 80, config);
    pair.inject(B, &packet("10.9.9.9:1000".parse().expect("valid"), B.addr(80), &syn(7), &[]));
    assert_eq!(pair.b.connections(), 1);
    pair.run(Duration::from_secs(60));
    assert_eq!(pair.count(B, SYN_ACK), 3);
    assert_eq!((pair.b.connections(), pair.b.stats().handshakes_failed), (0, 1));
}

#[test]
fn syns_that_cross_open_one_connection() {
    let mut pair = Pair::new(1);
    let now = pair.now;
    let config = |side: crate::harness::Side| ConnectConfig {
        local: Some(side.addr(4000)),
        ..ConnectConfig::default()
    };
    let at_a = pair.a.connect(B.addr(4000), &config(A), now).expect("possible");
    let at_b = pair.b.connect(A.addr(4000), &config(B), now).expect("possible");
    pair.run_ms(200);
    assert_eq!(pair.a.state(at_a), Some(State::Established));
    assert_eq!(pair.b.state(at_b), Some(State::Established));
    assert_eq!((pair.count(A, Flags::SYN), pair.count(A, SYN_ACK)), (1, 1));
    pair.transfer(A, at_a, at_b, &pattern(50_000), Duration::from_secs(5));
    pair.transfer(B, at_b, at_a, &pattern(50_000), Duration::from_secs(5));
}

#[test]
fn data_written_before_the_handshake_follows_it() {
    let mut pair = Pair::new(1);
    let listener = pair.listen(B, 80, ListenConfig::default());
    let now = pair.now;
    let config = ConnectConfig::default();
    let (_, taken) = pair.a.connect_with_data(B.addr(80), b"GET /", &config, now).expect("possible");
    assert_eq!(taken, 5);
    pair.run_ms(100);
    let (at_b, _) = pair.b.accept(listener).expect("waits");
    assert!(pair.seen.iter().all(|seen| !seen.tcp.flags.contains(Flags::SYN) || seen.len == 0));
    assert_eq!(pair.read(B, at_b), Ok(Some(b"GET /".to_vec())));
}

#[test]
fn late_accept_reports_readable_data() {
    let mut pair = Pair::new(1);
    let listener = pair.listen(B, 80, ListenConfig::default());
    let at_a = pair.connect(A, 80);
    pair.run_ms(100);
    pair.write(A, at_a, b"early").expect("open");
    pair.run_ms(100);
    pair.events.clear();
    let (at_b, _) = pair.b.accept(listener).expect("waits");
    pair.run_ms(100);
    let told: Vec<Event> = std::iter::from_fn(|| pair.b.poll_event()).collect();
    assert!(told.contains(&Event::Readable(at_b)) || pair.heard(B, Event::Readable(at_b)));
    assert_eq!(pair.b.readable(at_b), 5);
}

#[test]
fn destinations_and_addresses_that_make_no_sense_are_refused() {
    let mut pair = Pair::new(1);
    let now = pair.now;
    let plain = ConnectConfig::default();
    let mut refused = |remote: &str, config: &ConnectConfig| {
        pair.a.connect(remote.parse().expect("valid"), config, now).expect_err("refused")
    };
    assert!(matches!(refused("10.0.0.2:0", &plain), ConnectError::BadDestination(_)));
    assert!(matches!(refused("0.0.0.0:80", &plain), ConnectError::BadDestination(_)));
    assert!(matches!(refused("224.0.0.1:80", &plain), ConnectError::BadDestination(_)));
    assert!(matches!(refused("[2001:db8::1]:80", &plain), ConnectError::NoAddress(_)));
    let foreign = ConnectConfig { local: Some("10.0.0.9:0".parse().expect("valid")), ..plain };
    assert!(matches!(refused("10.0.0.2:80", &foreign), ConnectError::NotLocal(_)));
    assert_eq!(pair.b.listen(A.addr(80), ListenConfig::default()), Err(ListenError::NotLocal(A.ip())));
    pair.listen(B, 80, ListenConfig::default());
    assert_eq!(pair.b.listen(B.addr(80), ListenConfig::default()), Err(ListenError::InUse(B.addr(80))));
}

#[test]
fn a_configuration_out_of_range_opens_nothing() {
    use brisk_tcp::config::{FastOpenConfig, StackConfig};
    use brisk_tcp::fast_open::{EarlyResponse, FastOpenConnect, FastOpenListen};
    let mut pair = Pair::new(1);
    let now = pair.now;
    let mut connect = |config: ConnectConfig| match pair.a.connect(B.addr(80), &config, now) {
        Err(ConnectError::BadConfig { key, range }) => (key, range),
        other => panic!("{other:?}"),
    };
    let tcp = |tcp| ConnectConfig { tcp, ..ConnectConfig::default() };
    let window = TcpConfig { initial_window: 0, ..TcpConfig::default() };
    assert_eq!(connect(tcp(window)), ("initial_window", "1 to 64 segments"));
    let fast_open =
        Some(FastOpenConnect { syn_rto_floor: Duration::from_secs(2), ..FastOpenConnect::default() });
    assert_eq!(connect(ConnectConfig { fast_open, ..ConnectConfig::default() }).0, "syn_rto_floor");
    let early_response = EarlyResponse::Multiple(65);
    let fast_open = Some(FastOpenListen { early_response, ..FastOpenListen::default() });
    let refused = pair.b.listen(B.addr(80), ListenConfig { fast_open, ..ListenConfig::default() });
    assert_eq!(
        refused.map_err(|error| error.to_string()),
        Err("early_response is out of range; use 1 to 64".into())
    );
    let stack = |config: StackConfig| brisk_tcp::Stack::new(config, 1).map(|_| ()).map_err(|error| error.key);
    let remembering = |path_entries| stack(StackConfig { path_entries, ..StackConfig::default() });
    assert_eq!([remembering(1_000_000), remembering(1_000_001)], [Ok(()), Err("path_entries")]);
    let off_for = |seconds| {
        let black_hole_base = Duration::from_secs(seconds);
        let fast_open = FastOpenConfig { black_hole_base, ..FastOpenConfig::default() };
        stack(StackConfig { fast_open, ..StackConfig::default() })
    };
    assert_eq!([off_for(0), off_for(86_400), off_for(86_401)], [Ok(()), Ok(()), Err("black_hole_base")]);
}

#[test]
fn a_chosen_local_port_is_used_once() {
    let mut pair = Pair::new(1);
    let now = pair.now;
    let config = ConnectConfig { local: Some(A.addr(5000)), ..ConnectConfig::default() };
    let id = pair.a.connect(B.addr(80), &config, now).expect("free");
    assert_eq!(pair.a.local_addr(id), Some(A.addr(5000)));
    assert!(matches!(pair.a.connect(B.addr(80), &config, now), Err(ConnectError::InUse { .. })));
    assert!(pair.a.connect(B.addr(81), &config, now).is_ok(), "another destination");
}

#[test]
fn a_listener_on_every_address_answers_and_port_zero_is_chosen() {
    let mut pair = Pair::new(1);
    let any = pair.b.listen("0.0.0.0:0".parse().expect("valid"), ListenConfig::default()).expect("free");
    let port = pair.b.listener_addr(any).expect("listens").port();
    assert!((32_768..=60_999).contains(&port));
    pair.established_at(any, &ConnectConfig::default());
}

#[test]
fn connections_over_ipv6() {
    let config =
        |ip: &str| StackConfig { addresses: vec![ip.parse().expect("valid")], ..StackConfig::default() };
    let mut pair = Pair::with_configs(1, config("2001:db8::1"), config("2001:db8::2"));
    let addr = "[2001:db8::2]:80".parse().expect("valid");
    let listener = pair.b.listen(addr, ListenConfig::default()).expect("free");
    let now = pair.now;
    let at_a = pair.a.connect(addr, &ConnectConfig::default(), now).expect("possible");
    pair.run_ms(100);
    let (at_b, _) = pair.b.accept(listener).expect("waits");
    pair.transfer(A, at_a, at_b, &pattern(100_000), Duration::from_secs(5));
    assert_eq!(pair.seen[0].tcp.options.mss, Some(1440));
}

#[test]
fn closing_a_listener_resets_what_was_not_accepted() {
    let mut pair = Pair::new(1);
    let listener = pair.listen(B, 80, ListenConfig::default());
    let at_a = pair.connect(A, 80);
    pair.run_ms(100);
    let now = pair.now;
    pair.b.close_listener(listener, now);
    pair.run_ms(100);
    assert!(pair.heard(A, Event::Closed(at_a, CloseReason::Reset)));
    assert_eq!((pair.b.connections(), pair.b.listener_addr(listener)), (0, None));
    let again = pair.listen(B, 80, ListenConfig::default());
    assert_ne!(again, listener);
}

#[test]
fn a_full_accept_queue_keeps_peers_waiting_until_there_is_room() {
    let mut pair = Pair::new(1);
    let listener = pair.listen(B, 80, ListenConfig { backlog: 2, ..ListenConfig::default() });
    for _ in 0..4 {
        pair.connect(A, 80);
    }
    pair.run_ms(500);
    assert_eq!(pair.b.stats().handshakes_completed, 2);
    assert!(pair.b.stats().refused(Refusal::BacklogFull) > 0);
    let mut accepted = 0;
    pair.run_until(Duration::from_secs(60), |pair| {
        while pair.b.accept(listener).is_some() {
            accepted += 1;
        }
        accepted == 4
    });
}

#[test]
fn a_flood_of_syns_is_bounded_and_real_peers_get_through_by_cookies() {
    let mut pair = Pair::new(1);
    let listener = pair.listen(B, 80, ListenConfig { max_half_open: 100, ..ListenConfig::default() });
    pair.record = false;
    for n in 0..5000u32 {
        let from = std::net::SocketAddr::from(([10, 9, (n >> 8) as u8, n as u8], 1000 + n as u16));
        pair.inject(B, &packet(from, B.addr(80), &syn(n), &[]));
    }
    assert_eq!(pair.b.connections(), 100);
    assert_eq!(pair.b.stats().syn_cookies_sent, 4900);
    pair.record = true;
    let (at_a, at_b) = pair.established_at(listener, &ConnectConfig::default());
    assert_eq!(pair.b.stats().syn_cookies_accepted, 1);
    let data = pattern(300_000);
    pair.transfer(A, at_a, at_b, &data, Duration::from_secs(10));
    pair.transfer(B, at_b, at_a, &data, Duration::from_secs(10));
    let answer = pair.seen.iter().find(|seen| seen.is(B, SYN_ACK)).expect("a cookie").tcp.options.clone();
    assert!(answer.sack_permitted && answer.window_scale.is_some() && answer.timestamps.is_some());
}

#[test]
fn cookies_work_for_a_peer_without_timestamps() {
    let mut pair = Pair::new(1);
    let always = ListenConfig { syn_cookies: SynCookies::Always, ..ListenConfig::default() };
    let listener = pair.listen(B, 80, always);
    let config = ConnectConfig {
        tcp: TcpConfig { timestamps: false, ..TcpConfig::default() },
        ..ConnectConfig::default()
    };
    let (at_a, at_b) = pair.established_at(listener, &config);
    assert_eq!(pair.b.stats().passive_opens, 0);
    let answer = pair.seen.iter().find(|seen| seen.is(B, SYN_ACK)).expect("a cookie").tcp.options.clone();
    assert!(!answer.sack_permitted && answer.window_scale.is_none() && answer.timestamps.is_none());
    pair.transfer(A, at_a, at_b, &pattern(200_000), Duration::from_secs(20));
}

#[test]
fn data_on_the_acknowledgement_of_a_cookie_is_delivered() {
    let mut pair = Pair::new(1);
    let always = ListenConfig { syn_cookies: SynCookies::Always, ..ListenConfig::default() };
    let listener = pair.listen(B, 80, always);
    pair.forge(B, &TcpHeader { src_port: 999, dst_port: 80, ..syn(7) }, &[]);
    let cookie = pair.last(B).tcp.seq;
    let ack = TcpHeader {
        src_port: 999,
        dst_port: 80,
        seq: SeqNum(8),
        ack: cookie + 1,
        flags: Flags::ACK,
        window: 1000,
        ..TcpHeader::default()
    };
    pair.forge(B, &TcpHeader { ack: cookie + 2, ..ack.clone() }, b"forged");
    assert_eq!(pair.last(B).tcp.flags, Flags::RST, "a wrong cookie");
    assert_eq!(pair.b.accept(listener), None);
    pair.forge(B, &ack, b"hello");
    let (at_b, _) = pair.b.accept(listener).expect("the cookie is good");
    assert_eq!(pair.read(B, at_b), Ok(Some(b"hello".to_vec())));
}

#[test]
fn without_cookies_a_full_half_open_table_drops_syns() {
    let mut pair = Pair::new(1);
    let config = ListenConfig { max_half_open: 3, syn_cookies: SynCookies::Off, ..ListenConfig::default() };
    pair.listen(B, 80, config);
    for port in 1000..1010 {
        pair.inject(B, &packet(([10, 9, 9, 9], port).into(), B.addr(80), &syn(7), &[]));
    }
    assert_eq!(pair.b.connections(), 3);
    assert_eq!(pair.b.stats().refused(Refusal::HalfOpenFull), 7);
}

#[test]
fn repeated_syn_is_answered_again_and_another_syn_is_challenged() {
    let mut pair = Pair::new(1);
    pair.tap = Some(Box::new(|_, _| true));
    pair.listen(B, 80, ListenConfig::default());
    let header = TcpHeader { src_port: 999, dst_port: 80, ..syn(7) };
    pair.forge(B, &header, &[]);
    pair.forge(B, &header, &[]);
    assert_eq!((pair.count(B, SYN_ACK), pair.b.connections()), (2, 1));
    pair.forge(B, &header, &[]);
    assert_eq!(pair.count(B, SYN_ACK), 2, "one answer in half a second");
    pair.run_ms(500);
    pair.forge(B, &TcpHeader { seq: SeqNum(10_000), ..header }, &[]);
    assert_eq!(pair.last(B).tcp.flags, Flags::ACK, "a challenge ACK");
    assert_eq!(pair.b.connections(), 1);
}

#[test]
fn a_reset_in_syn_received_frees_the_half_open_connection() {
    let mut pair = Pair::new(1);
    pair.listen(B, 80, ListenConfig::default());
    let header = TcpHeader { src_port: 999, dst_port: 80, ..syn(7) };
    pair.forge(B, &header, &[]);
    pair.forge(B, &TcpHeader { flags: Flags::RST, seq: SeqNum(8), ..header }, &[]);
    assert_eq!((pair.b.connections(), pair.b.stats().handshakes_failed), (0, 1));
}

#[test]
fn unacceptable_ack_in_syn_sent_is_reset_and_the_connection_lives() {
    let mut pair = Pair::new(1);
    pair.tap = Some(Box::new(|_, _| true));
    let id = pair.connect(A, 80);
    pair.run_ms(1);
    let port = pair.a.local_addr(id).expect("open").port();
    let bad = pair.last(A).tcp.seq + 77;
    let header = TcpHeader { src_port: 80, dst_port: port, ack: bad, flags: SYN_ACK, ..syn(7) };
    pair.forge(A, &header, &[]);
    assert_eq!((pair.last(A).tcp.flags, pair.last(A).tcp.seq), (Flags::RST, bad));
    assert_eq!(pair.a.state(id), Some(State::SynSent));
    pair.forge(A, &TcpHeader { flags: RST_ACK, ..header }, &[]);
    assert_eq!(pair.a.state(id), Some(State::SynSent), "a reset must acknowledge the SYN");
}

#[test]
fn refused_packets_are_counted_by_reason() {
    let mut pair = Pair::with_configs(1, stack_config(A), stack_config(B));
    pair.listen(B, 80, ListenConfig::default());
    let from = "10.9.9.9:1000".parse().expect("valid");
    let good = packet(from, B.addr(80), &syn(7), &[]);
    let mut bad_sum = good.clone();
    bad_sum[36] ^= 1;
    for bytes in [
        &[][..],
        &good[..30],
        &bad_sum,
        &packet(from, A.addr(80), &syn(7), &[]),
        &packet("224.0.0.1:1000".parse().expect("valid"), B.addr(80), &syn(7), &[]),
        &packet(B.addr(80), B.addr(80), &syn(7), &[]),
        &packet(from, B.addr(80), &TcpHeader { flags: Flags::RST, ..syn(7) }, &[]),
        &packet(from, B.addr(81), &TcpHeader { flags: Flags::RST, ..syn(7) }, &[]),
        &packet(from, B.addr(80), &TcpHeader { flags: Flags::SYN | Flags::FIN, ..syn(7) }, &[]),
        &packet(from, B.addr(80), &TcpHeader { flags: Flags::ACK, ..syn(7) }, &[]),
    ] {
        pair.inject(B, bytes);
    }
    let stats = pair.b.stats();
    let counted: Vec<(Refusal, u64)> = stats.refusals().filter(|(_, count)| *count > 0).collect();
    assert_eq!(
        counted,
        [
            (Refusal::Truncated, 2),
            (Refusal::TcpChecksum, 1),
            (Refusal::NotOurs, 1),
            (Refusal::BadSource, 2),
            (Refusal::StrayReset, 2),
            (Refusal::NoHandshake, 1),
            (Refusal::NotASyn, 1),
        ]
    );
    assert_eq!((stats.packets_in, stats.refused_total(), stats.resets_sent), (10, 10, 1));
}

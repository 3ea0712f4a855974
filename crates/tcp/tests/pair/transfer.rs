//! Data over a channel without faults: both ways, large, small, urgent.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use brisk_tcp::config::{
    BufferConfig, ConnectConfig, EcnMode, ListenConfig, MtuProbing, StackConfig, TcpConfig,
};
use brisk_tcp::error::{ReadError, WriteError};
use brisk_tcp::stack::{Rx, Transmit};
use brisk_tcp::{ConnId, Event};
use brisk_wire::{ChecksumCheck, Flags, Packet, SeqNum, TcpHeader};

use crate::harness::{A, B, Pair, packet, pattern, stack_config};

/// RFC 9293 section 3.8.7 (MUST-48): the application sets the DSCP of its segments, and may change it.
#[test]
fn the_dscp_can_be_changed_on_an_open_connection() {
    let mut pair = Pair::new(1);
    let (at_a, at_b) = pair.established();
    let seen: Rc<RefCell<Vec<u8>>> = Rc::default();
    let notes = Rc::clone(&seen);
    pair.tap = Some(Box::new(move |from, segment| {
        if from == A {
            notes.borrow_mut().push(segment.ip.dscp);
        }
        false
    }));
    for dscp in [0, 46, 63] {
        pair.a.conn_mut(at_a).expect("it is open").set_dscp(dscp);
        pair.transfer(A, at_a, at_b, &pattern(100), Duration::from_secs(1));
        assert_eq!(seen.take(), [dscp]);
    }
}

/// A device may coalesce several segments. They count as on the wire, headers included.
#[test]
fn coalesced_segments_count_one_by_one() {
    let mut pair = Pair::new(1);
    let (at_a, at_b) = pair.established();
    pair.seen.clear();
    pair.tap = Some(Box::new(|from, _| from == A));
    let before = [pair.a.conn_stats(at_a), pair.b.conn_stats(at_b)].map(|it| it.expect("open").counters);
    pair.write(A, at_a, &pattern(4_000)).expect("room");
    pair.run_ms(1);
    let first = pair.seen[0].clone();
    assert_eq!((pair.seen.len(), first.len), (3, 1448));
    let joined = packet(A.addr(first.tcp.src_port), B.addr(80), &first.tcp, &pattern(4_000));
    let now = pair.now;
    pair.b.on_packet(&joined, Rx { segment_size: Some(1448), ..Rx::default() }, now);
    let after = [pair.a.conn_stats(at_a), pair.b.conn_stats(at_b)].map(|it| it.expect("open").counters);
    let sent = after[0].wire_bytes_out - before[0].wire_bytes_out;
    assert_eq!(sent, 4_000 + 3 * 52);
    assert_eq!(after[1].wire_bytes_in - before[1].wire_bytes_in, sent);
}

#[test]
fn a_writer_that_found_no_room_hears_of_it_when_there_is_some() {
    let mut pair = Pair::new(1);
    let send_buffer = BufferConfig { initial: 20_000, max: 20_000 };
    let listener = pair.listen(B, 80, ListenConfig::default());
    let tcp = TcpConfig { send_buffer, ..TcpConfig::default() };
    let (at_a, at_b) = pair.established_at(listener, &ConnectConfig { tcp, ..ConnectConfig::default() });
    assert_eq!(pair.write(A, at_a, &pattern(30_000)), Ok(20_000));
    pair.run_ms(9);
    pair.events.clear();
    assert_eq!(pair.write(A, at_a, b"more"), Err(WriteError::WouldBlock));
    pair.run_ms(9);
    assert!(!pair.heard(A, Event::Writable(at_a)), "nothing is acknowledged yet");
    pair.run_ms(30);
    assert!(pair.heard(A, Event::Writable(at_a)));
    assert_eq!(pair.write(A, at_a, b"more"), Ok(4));
    pair.events.clear();
    pair.run_ms(100);
    assert!(!pair.heard(A, Event::Writable(at_a)), "a program that does not wait gets no event");
    assert_eq!(pair.read(B, at_b).expect("open").expect("not at its end").len(), 20_004);
}

#[test]
fn a_megabyte_each_way() {
    let mut pair = Pair::new(1);
    let (at_a, at_b) = pair.established();
    let data = pattern(1 << 20);
    pair.transfer(A, at_a, at_b, &data, Duration::from_secs(20));
    pair.transfer(B, at_b, at_a, &data, Duration::from_secs(20));
    for counters in
        [pair.a.conn_stats(at_a), pair.b.conn_stats(at_b)].map(|stats| stats.expect("open").counters)
    {
        assert_eq!((counters.retransmits, counters.timeouts), (0, 0));
        assert_eq!(counters.payload_bytes_received, 1 << 20);
    }
}

#[test]
fn both_ways_at_once() {
    let mut pair = Pair::new(1);
    let (at_a, at_b) = pair.established();
    let data = pattern(300_000);
    let (mut sent, mut got) = ([0, 0], [0, 0]);
    pair.run_until(Duration::from_secs(20), |pair| {
        for (n, (side, id)) in [(A, at_a), (B, at_b)].into_iter().enumerate() {
            sent[n] += pair.write(side, id, &data[sent[n]..]).unwrap_or(0);
            let bytes = pair.read(side, id).expect("open").expect("not at its end");
            assert!(bytes == data[got[n]..got[n] + bytes.len()]);
            got[n] += bytes.len();
        }
        got == [data.len(); 2]
    });
}

#[test]
fn probes_of_the_path_mtu_leave_room_for_sack_blocks() {
    let tcp = TcpConfig { mtu_probing: MtuProbing::Always, nodelay: true, ..TcpConfig::default() };
    let mut pair = Pair::new(1);
    let listener = pair.listen(B, 80, ListenConfig { tcp: tcp.clone(), ..ListenConfig::default() });
    let (at_a, at_b) = pair.established_at(listener, &ConnectConfig { tcp, ..ConnectConfig::default() });
    // A's data has a hole for a while, so that B's segments carry SACK blocks. The harness checks that no
    // packet is larger than the device takes.
    let mut data = 0;
    pair.tap = Some(Box::new(move |from, segment| {
        data += u32::from(from == A && !segment.payload.is_empty());
        from == A && data % 20 == 5
    }));
    let bytes = pattern(1 << 20);
    let (mut sent, mut got) = ([0, 0], 0);
    pair.run_until(Duration::from_secs(600), |pair| {
        for (n, (side, id)) in [(A, at_a), (B, at_b)].into_iter().enumerate() {
            sent[n] += pair.write(side, id, &bytes[sent[n]..]).unwrap_or(0);
            let read = pair.read(side, id).expect("open").expect("not at its end").len();
            got += read;
        }
        got == 2 * bytes.len()
    });
    let mss = pair.b.conn_stats(at_b).expect("open").mss;
    assert!(mss > 1300, "the search went on: {mss}");
}

#[test]
fn super_segments_carry_the_same_bytes() {
    // The longer ones have no length in their IP header.
    let packets = [65_000, 262_000].map(|most| {
        let big = |side| StackConfig { max_super_segment: most, ..stack_config(side) };
        let mut pair = Pair::with_configs(1, big(A), big(B));
        let (at_a, at_b) = pair.established();
        pair.transfer(A, at_a, at_b, &pattern(4 << 20), Duration::from_secs(20));
        assert!(pair.a.stats().packets_out < pair.seen.len() as u64 / 2, "packets left in bunches");
        assert_eq!(pair.a.conn_stats(at_a).expect("open").counters.retransmits, 0);
        pair.a.stats().packets_out
    });
    assert!(packets[1] < packets[0], "{packets:?}");
}

#[test]
fn every_combination_of_options_carries_data() {
    for bits in 0..16 {
        let tcp = TcpConfig {
            timestamps: bits & 1 != 0,
            sack: bits & 2 != 0,
            window_scaling: bits & 4 != 0,
            ecn: if bits & 8 != 0 { EcnMode::On } else { EcnMode::Off },
            ..TcpConfig::default()
        };
        let mut pair = Pair::new(1);
        let listener = pair.listen(B, 80, ListenConfig { tcp: tcp.clone(), ..ListenConfig::default() });
        let (at_a, at_b) = pair.established_at(listener, &ConnectConfig { tcp, ..ConnectConfig::default() });
        pair.channel.loss = 20;
        pair.transfer(A, at_a, at_b, &pattern(200_000), Duration::from_secs(60));
    }
}

#[test]
fn small_writes_wait_for_nagle_unless_told_not_to() {
    let mut pair = Pair::new(1);
    let (at_a, at_b) = pair.established();
    let small = |pair: &mut Pair| {
        let before = pair.seen.iter().filter(|seen| seen.from == A && seen.len > 0).count();
        for _ in 0..5 {
            pair.write(A, at_a, b"x").expect("open");
            pair.run_ms(1);
        }
        pair.run_ms(500);
        pair.seen.iter().filter(|seen| seen.from == A && seen.len > 0).count() - before
    };
    assert_eq!(small(&mut pair), 2, "the first at once, the others together");
    pair.a.conn_mut(at_a).expect("it is open").set_nodelay(true);
    assert_eq!(small(&mut pair), 5);
    assert_eq!(pair.b.readable(at_b), 10);
}

#[test]
fn a_cork_holds_back_what_is_not_full() {
    let mut pair = Pair::new(1);
    let (at_a, at_b) = pair.established();
    pair.a.conn_mut(at_a).expect("it is open").set_cork(true);
    pair.write(A, at_a, b"head").expect("open");
    pair.run_ms(100);
    assert_eq!(pair.b.readable(at_b), 0);
    pair.write(A, at_a, b"body").expect("open");
    pair.a.conn_mut(at_a).expect("it is open").set_cork(false);
    pair.run_ms(100);
    assert_eq!(pair.read(B, at_b), Ok(Some(b"headbody".to_vec())));
}

#[test]
fn the_urgent_byte_is_read_apart() {
    let mut pair = Pair::new(1);
    let (at_a, at_b) = pair.established();
    let now = pair.now;
    pair.a.write_urgent(at_a, b"abc!", now).expect("open");
    pair.write(A, at_a, b"def").expect("open");
    pair.run_ms(200);
    assert!(pair.seen.iter().any(|seen| seen.tcp.flags.contains(Flags::URG)));
    let now = pair.now;
    let mut buffer = [0; 16];
    assert_eq!(pair.b.read(at_b, &mut buffer, now), Ok(3), "up to the mark");
    assert_eq!(pair.b.read_urgent(at_b), Ok(b'!'));
    assert_eq!(pair.b.read_urgent(at_b), Err(ReadError::WouldBlock));
    assert_eq!(pair.read(B, at_b), Ok(Some(b"def".to_vec())));
}

#[test]
fn peeking_leaves_the_bytes() {
    let mut pair = Pair::new(1);
    let (at_a, at_b) = pair.established();
    pair.write(A, at_a, b"abc").expect("open");
    pair.run_ms(100);
    let mut buffer = [0; 2];
    assert_eq!(pair.b.peek(at_b, &mut buffer), Ok(2));
    assert_eq!(&buffer, b"ab");
    assert_eq!(pair.read(B, at_b), Ok(Some(b"abc".to_vec())));
    assert_eq!(pair.b.peek(at_b, &mut buffer), Err(ReadError::WouldBlock));
}

#[test]
fn one_lost_segment_costs_one_retransmission_and_no_timeout() {
    for bits in 0..4 {
        let tcp = TcpConfig { sack: bits & 1 != 0, ..TcpConfig::default() };
        let mut pair = Pair::new(1);
        pair.batches = bits & 2 != 0;
        let listener = pair.listen(B, 80, ListenConfig::default());
        let (at_a, at_b) = pair.established_at(listener, &ConnectConfig { tcp, ..ConnectConfig::default() });
        let mut segments = 0;
        pair.tap = Some(Box::new(move |from, segment| {
            segments += u32::from(from == A && !segment.payload.is_empty());
            from == A && segments == 20 && !segment.payload.is_empty()
        }));
        pair.transfer(A, at_a, at_b, &pattern(100_000), Duration::from_secs(5));
        let counters = pair.a.conn_stats(at_a).expect("open").counters;
        assert_eq!((counters.retransmits, counters.timeouts, counters.recoveries), (1, 0, 1), "case {bits}");
    }
}

/// Returns the segment of `A` on `id`, without passing it to `B`.
fn segment(pair: &mut Pair, id: ConnId, data: &[u8]) -> Vec<u8> {
    let (now, mut packet) = (pair.now, Vec::new());
    pair.a.conn_mut(id).expect("it is open").set_nodelay(true);
    pair.a.write(id, data, now).expect("there is room");
    pair.a.poll_transmit(now, &mut packet).expect("it is sent at once");
    packet
}

#[test]
fn the_answer_to_a_syn_waits_for_no_application() {
    let mut pair = Pair::new(5);
    pair.listen(B, 80, ListenConfig::default());
    let now = pair.now;
    let client = pair.a.connect(B.addr(80), &ConnectConfig::default(), now).expect("a port is left");
    let mut syn = Vec::new();
    assert!(pair.a.poll_transmit(now, &mut syn).is_some(), "{client:?}");
    assert!(!pair.b.is_urgent());
    pair.b.on_packet(&syn, Rx::default(), now);
    assert!(pair.b.is_urgent());
    let mut answer = Vec::new();
    assert!(pair.b.poll_urgent(now, &mut answer).is_some(), "SYN-ACK");
    assert!(pair.b.poll_urgent(now, &mut answer).is_none() && !pair.b.is_urgent());
    assert!(pair.b.poll_transmit(now, &mut answer).is_none());
    let due = pair.b.next_timeout().expect("the SYN-ACK may be lost");
    pair.b.on_timeout(due);
    assert!(pair.b.is_urgent() && pair.b.poll_urgent(due, &mut answer).is_some(), "and once more");
}

#[test]
fn urgent_connection_alone_answers_a_batch_segment_by_segment() {
    let mut pair = Pair::new(5);
    let listener = pair.listen(B, 80, ListenConfig::default());
    let connect = ConnectConfig::default();
    let ((one, one_at_b), (other, other_at_b)) =
        (pair.established_at(listener, &connect), pair.established_at(listener, &connect));
    pair.run_ms(100);
    let [first, second, lost, third] =
        [b"first", b"secnd", b"lost.", b"third"].map(|x| segment(&mut pair, one, x));
    let elsewhere = segment(&mut pair, other, b"elsewhere");
    let (now, mut answer) = (pair.now, Vec::new());
    let sender = |sent: Option<Transmit>| sent.and_then(|sent| sent.conn);
    pair.b.on_packet(&first, Rx::default(), now);
    pair.b.on_packet(&elsewhere, Rx::default(), now);
    assert!(
        !pair.b.is_urgent() && pair.b.poll_urgent(now, &mut answer).is_none(),
        "they may wait for answers"
    );
    pair.b.on_packet(&second, Rx::default(), now);
    assert!(pair.b.is_urgent(), "a young connection acknowledges each segment");
    let sent = pair.b.poll_urgent(now, &mut answer);
    assert_eq!(
        (sender(sent), acknowledged(&answer)),
        (Some(one_at_b), seq(&second)),
        "not yet the second one"
    );
    assert!(pair.b.poll_urgent(now, &mut answer).is_none() && !pair.b.is_urgent());
    assert_eq!(sender(pair.b.poll_transmit(now, &mut answer)), Some(one_at_b), "the second one");
    assert_eq!(sender(pair.b.poll_transmit(now, &mut answer)), Some(other_at_b), "it has waited");
    assert!(pair.b.poll_transmit(now, &mut answer).is_none());
    drop(lost);
    pair.b.on_packet(&third, Rx::default(), now);
    assert!(pair.b.is_urgent(), "the sender waits to hear of the hole");
    while pair.b.poll_transmit(now, &mut answer).is_some() {}
    assert!(!pair.b.is_urgent());
}

fn tcp_of(bytes: &[u8]) -> TcpHeader {
    match brisk_wire::parse(bytes, ChecksumCheck::Verify) {
        Ok(Packet::Tcp(segment)) => segment.tcp,
        other => panic!("{other:?}"),
    }
}

fn acknowledged(bytes: &[u8]) -> SeqNum {
    tcp_of(bytes).ack
}

fn seq(bytes: &[u8]) -> SeqNum {
    tcp_of(bytes).seq
}

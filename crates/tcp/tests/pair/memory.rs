//! The memory limit of a stack: for any limit, no accepted byte is lost without an error.

use std::time::Duration;

use brisk_tcp::config::{BufferConfig, ConnectConfig, KeepaliveConfig, ListenConfig, StackConfig, TcpConfig};
use brisk_tcp::error::{CloseReason, ReadError, WriteError};
use brisk_tcp::{ConnId, Event};
use proptest::prelude::*;

use crate::harness::{A, B, Pair, Side, pattern, stack_config};

/// Returns a pair in which two connections of A have used up A's memory with data that B does not receive.
fn used_up() -> (Pair, [ConnId; 2], ConnId) {
    let tight = StackConfig { max_buffer_bytes: 512 << 10, ..stack_config(A) };
    let mut pair = Pair::with_configs(1, tight, stack_config(B));
    let listener = pair.listen(B, 80, ListenConfig::default());
    let [(first, reader), (second, _)] =
        [(); 2].map(|()| pair.established_at(listener, &ConnectConfig::default()));
    pair.tap = Some(Box::new(|_, _| true));
    let data = pattern(64 << 10);
    while pair.write(A, first, &data).is_ok() {}
    while pair.write(A, second, &data).is_ok() {}
    (pair, [first, second], reader)
}

#[test]
fn write_to_a_full_buffer_without_memory_would_block() {
    for gives in [false, true] {
        let (mut pair, writers, _) = used_up();
        pair.gives = gives;
        assert_eq!(pair.a.writable(writers[0]), 0);
        for writer in writers {
            for len in [1, 100_000] {
                assert_eq!(pair.write(A, writer, &pattern(len)), Err(WriteError::WouldBlock));
            }
            assert_eq!(pair.write(A, writer, b""), Ok(0));
        }
    }
}

#[test]
fn write_without_memory_after_close_is_an_error() {
    let (mut pair, [first, second], _) = used_up();
    pair.shutdown(A, first);
    assert_eq!(pair.write(A, first, b"x"), Err(WriteError::AfterClose));
    pair.abort(A, second);
    assert_eq!(pair.write(A, second, b"x"), Err(WriteError::Closed(CloseReason::Aborted)));
}

#[test]
fn writer_with_full_buffer_is_woken_once_the_peer_takes_data() {
    let (mut pair, [first, _], reader) = used_up();
    assert_eq!(pair.write(A, first, b"x"), Err(WriteError::WouldBlock));
    pair.tap = None;
    pair.events.clear();
    pair.run_until(Duration::from_secs(60), |pair| {
        pair.read(B, reader).expect("open");
        // The writer may be woken before memory is free again. Then it waits further.
        let is_woken = pair.heard(A, Event::Writable(first));
        pair.events.clear();
        is_woken && pair.write(A, first, b"x") == Ok(1)
    });
}

#[test]
fn writer_whose_data_was_cut_by_the_memory_is_woken() {
    let tight = StackConfig { max_buffer_bytes: 64 << 10, ..stack_config(A) };
    let mut pair = Pair::with_configs(1, tight, stack_config(B));
    let (writer, reader) = pair.established();
    let data = pattern(100_000);
    let taken = pair.write(A, writer, &data).expect("room");
    assert!(taken < data.len() && pair.a.writable(writer) == 0);
    // The handshake has reported a writable connection.
    pair.events.clear();
    pair.run_until(Duration::from_secs(60), |pair| {
        pair.read(B, reader).expect("open");
        pair.heard(A, Event::Writable(writer))
    });
}

/// A connection of the property test below.
#[derive(Clone, Debug)]
struct Plan {
    total: usize,
    /// Bytes that the writer offers at once. `gives`: it hands over their ownership, so they are not copied.
    piece: usize,
    gives: bool,
    /// Bytes that the reader takes at once, and the number of turns that it lets pass in between.
    read: usize,
    pause: u64,
    /// The side that resets the connection, and the turn.
    reset: Option<(bool, u64)>,
}

fn plan() -> impl Strategy<Value = Plan> {
    let reset = prop::option::weighted(0.2, (any::<bool>(), 0u64..200));
    let sizes = (1usize..200_000, 1usize..70_000, 1usize..40_000);
    (sizes, any::<bool>(), 1u64..20, reset).prop_map(|((total, piece, read), gives, pause, reset)| Plan {
        total,
        piece,
        gives,
        read,
        pause,
        reset,
    })
}

/// A running connection. The writer writes until it is refused, and again only after an event. As a program
/// does, it releases the connection after its last byte or at the first error.
struct Flow {
    plan: Plan,
    data: Vec<u8>,
    writer: Option<ConnId>,
    reader: Option<ConnId>,
    accepted: usize,
    may_write: bool,
    write_failed: bool,
    received: Vec<u8>,
    ended: Option<Result<(), CloseReason>>,
}

impl Flow {
    fn write(&mut self, pair: &mut Pair) {
        let Some(id) = self.writer else { return };
        self.may_write |= pair.events.contains(&(A, Event::Writable(id)));
        while self.may_write && self.accepted < self.plan.total {
            pair.gives = self.plan.gives;
            let end = self.plan.total.min(self.accepted + self.plan.piece);
            match pair.write(A, id, &self.data[self.accepted..end]) {
                Err(WriteError::WouldBlock) => self.may_write = false,
                // `write_all` calls this an error, too.
                Ok(0) | Err(_) => {
                    self.write_failed = true;
                    break;
                }
                Ok(count) => self.accepted += count,
            }
        }
        if self.write_failed || self.accepted == self.plan.total {
            pair.release(A, id);
            self.writer = None;
        }
    }

    fn read(&mut self, pair: &mut Pair) {
        let Some(id) = self.reader else { return };
        let mut buffer = vec![0; self.plan.read];
        match pair.b.read(id, &mut buffer, pair.now) {
            Err(ReadError::WouldBlock) => return,
            Ok(0) => self.ended = Some(Ok(())),
            Ok(count) => return self.received.extend_from_slice(&buffer[..count]),
            Err(ReadError::Closed(reason)) => self.ended = Some(Err(reason)),
            Err(error) => panic!("{error}"),
        }
        pair.release(B, id);
        self.reader = None;
    }

    fn reset(&mut self, pair: &mut Pair, side: Side) {
        let id = if side == A { self.writer } else { self.reader };
        if let Some(id) = id {
            pair.abort(side, id);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn no_byte_is_lost_silently_under_any_memory_bound(
        seed in any::<u64>(),
        bounds in (8_000usize..600_000, 8_000usize..600_000),
        send_buffer in 4_096usize..100_000,
        loss in prop_oneof![3 => Just(0u32), 1 => 0u32..50],
        plans in prop::collection::vec(plan(), 1..8),
    ) {
        let bounded = |side, max_buffer_bytes| StackConfig { max_buffer_bytes, ..stack_config(side) };
        let mut pair = Pair::with_configs(seed, bounded(A, bounds.0), bounded(B, bounds.1));
        pair.record = false;
        let listener = pair.listen(B, 80, ListenConfig::default());
        let send_buffer = BufferConfig { initial: send_buffer, max: send_buffer };
        let tcp = TcpConfig { send_buffer, ..TcpConfig::default() };
        let connect = ConnectConfig { tcp, ..ConnectConfig::default() };
        let minute = Duration::from_secs(60);
        let mut flows: Vec<Flow> = plans
            .into_iter()
            .map(|plan| {
                let (writer, reader) = pair.established_at(listener, &connect);
                // A lost reset is not sent again. A side that only reads learns of it from a keepalive probe.
                pair.b.conn_mut(reader).expect("it is open").set_keepalive(Some(KeepaliveConfig { idle: minute, interval: minute, count: 9 }));
                let (data, received) = (pattern(plan.total), Vec::new());
                let (writer, reader) = (Some(writer), Some(reader));
                Flow {
                    plan, data, writer, reader, received,
                    accepted: 0, may_write: true, write_failed: false, ended: None,
                }
            })
            .collect();
        pair.channel.loss = loss;
        for turn in 0u64..1_000_000 {
            let events = std::mem::take(&mut pair.events);
            pair.events.extend(events.into_iter().filter(|(side, _)| *side == A));
            for flow in &mut flows {
                if let Some((at_b, _)) = flow.plan.reset.filter(|(_, at)| *at == turn) {
                    flow.reset(&mut pair, if at_b { B } else { A });
                }
                flow.write(&mut pair);
                if turn % flow.plan.pause == 0 {
                    flow.read(&mut pair);
                }
            }
            if flows.iter().all(|flow| flow.reader.is_none() && flow.writer.is_none()) {
                break;
            }
            pair.events.clear();
            pair.run_ms(10);
        }
        for flow in &flows {
            let (received, ended) = (&flow.received, flow.ended);
            prop_assert!(flow.data.starts_with(received));
            match ended {
                Some(Ok(())) => prop_assert_eq!(received.len(), flow.plan.total, "an orderly end after a part"),
                Some(Err(_)) => prop_assert!(flow.plan.reset.is_some(), "nobody has reset it: {:?}", flow.plan),
                None => prop_assert!(false, "it never ended: {:?}", flow.plan),
            }
            prop_assert!(!flow.write_failed || flow.plan.reset.is_some(), "a write failed without a reset");
        }
    }
}

//! A hostile channel and hostile peers. Bytes arrive once and in order, or the connection fails with an
//! error. No arrival causes a panic.

use std::time::Duration;

use brisk_tcp::config::{ConnectConfig, ListenConfig, StackConfig, TcpConfig};
use brisk_tcp::error::{CloseReason, WriteError};
use brisk_tcp::{ConnId, Event};
use brisk_wire::{Flags, Options, SackBlock, SeqNum, TcpHeader, Timestamps};
use proptest::prelude::*;

use crate::harness::{A, B, Channel, Pair, Side, pattern, stack_config};

/// A transfer of `size` bytes each way between two ends with the same options.
pub(crate) struct Exchange<'a> {
    /// Printed with a failure.
    pub(crate) seed: u64,
    pub(crate) size: usize,
    pub(crate) tcp: &'a TcpConfig,
    /// Time limit of the exchange.
    pub(crate) limit: Duration,
}

impl Exchange<'_> {
    /// Sends and closes, and calls `watch` for each end after every event. Returns true if every byte arrived
    /// once and in order, false after an error; panics otherwise.
    pub(crate) fn run(&self, pair: &mut Pair, mut watch: impl FnMut(&mut Pair, Side, ConnId)) -> bool {
        let (seed, size, tcp) = (self.seed, self.size, self.tcp);
        pair.record = false;
        let listener = pair.listen(B, 80, ListenConfig { tcp: tcp.clone(), ..ListenConfig::default() });
        let at_a = pair.connect_with(A, 80, &ConnectConfig { tcp: tcp.clone(), ..ConnectConfig::default() });
        let data = [pattern(size), pattern(size).into_iter().rev().collect()];
        let mut ids = [Some(at_a), None];
        let (mut sent, mut got) = ([0, 0], [0, 0]);
        let (mut shut, mut ended, mut failed) = ([false; 2], [false; 2], false);
        pair.run_until(self.limit, |pair| {
            ids[1] = ids[1].or_else(|| pair.b.accept(listener).map(|(id, _)| id));
            for (n, side) in [A, B].into_iter().enumerate() {
                let Some(id) = ids[n] else { continue };
                while sent[n] < size {
                    match pair.write(side, id, &data[n][sent[n]..]) {
                        Ok(count) => sent[n] += count,
                        Err(WriteError::WouldBlock) => break,
                        Err(_) => {
                            failed = true;
                            break;
                        }
                    }
                }
                if sent[n] == size && !core::mem::replace(&mut shut[n], true) {
                    let now = pair.now;
                    failed |= pair.stack(side).shutdown(id, now).is_err();
                }
                match pair.read(side, id) {
                    Ok(Some(bytes)) => {
                        let expected = &data[1 - n][got[n]..(got[n] + bytes.len()).min(size)];
                        assert!(bytes == expected, "seed {seed}: {side:?} got other bytes at {}", got[n]);
                        got[n] += bytes.len();
                    }
                    Ok(None) => ended[n] = true,
                    Err(_) => failed = true,
                }
                // A side that has sent and read everything learns of the failure only from this event.
                failed |= pair.events.iter().any(|(at, event)| {
                    matches!(event, Event::Closed(of, reason) if (*at, *of) == (side, id) && *reason != CloseReason::Finished)
                });
                watch(pair, side, id);
            }
            failed || ended == [true; 2]
        });
        assert!(failed || got == [size; 2], "seed {seed}: the stream ended early: {got:?} of {size}");
        !failed
    }
}

/// Runs an [`Exchange`] over `channel`.
pub(crate) fn exchange(
    seed: u64,
    channel: Channel,
    size: usize,
    tcp: &TcpConfig,
    super_segment: u32,
) -> bool {
    let config = |side| StackConfig {
        max_super_segment: super_segment,
        sends_twice: seed.is_multiple_of(2),
        ..stack_config(side)
    };
    let mut pair = Pair::with_configs(seed, config(A), config(B));
    pair.channel = channel;
    Exchange { seed, size, tcp, limit: Duration::from_secs(3600) }.run(&mut pair, |_, _, _| ())
}

/// Returns paths that delay, reorder, lose up to a quarter and duplicate up to a tenth.
pub(crate) fn channel() -> impl Strategy<Value = Channel> {
    (0u64..100, 0u64..60, 0u32..250, 0u32..100).prop_map(|(delay, jitter, loss, duplicate)| Channel {
        delay: Duration::from_millis(delay),
        jitter: Duration::from_millis(jitter),
        loss,
        duplicate,
    })
}

#[test]
fn data_survives_a_bad_channel() {
    let bad = Channel {
        delay: Duration::from_millis(20),
        jitter: Duration::from_millis(10),
        loss: 50,
        duplicate: 20,
    };
    for seed in 0..6 {
        assert!(exchange(seed, bad, 150_000, &TcpConfig::default(), 0), "seed {seed}");
        assert!(exchange(seed, bad, 150_000, &TcpConfig::default(), 65_000), "seed {seed}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn bytes_arrive_once_and_in_order_or_an_error_is_told(
        seed in any::<u64>(),
        channel in channel(),
        size in 0usize..60_000,
        options in 0u32..32,
    ) {
        let tcp = TcpConfig {
            timestamps: options & 1 != 0,
            sack: options & 2 != 0,
            window_scaling: options & 4 != 0,
            nodelay: options & 8 != 0,
            ..TcpConfig::default()
        };
        exchange(seed, channel, size, &tcp, if options & 16 != 0 { 65_000 } else { 0 });
    }

    #[test]
    fn whatever_segments_arrive_nothing_panics(
        seed in any::<u64>(),
        segments in prop::collection::vec((any::<u16>(), -70_000i64..70_000, -70_000i64..70_000,
            any::<u16>(), 0usize..2000, any::<u32>(), 0u8..8, 0u64..400), 1..60),
    ) {
        let mut pair = Pair::new(seed);
        pair.record = true;
        let (at_a, at_b) = pair.established();
        let _ = pair.write(A, at_a, &pattern(5_000));
        let base = pair.next_header(A);
        for (flags, seq, ack, window, len, noise, options, wait) in segments {
            let mut tcp = TcpHeader {
                seq: SeqNum((i64::from(base.seq.0) + seq) as u32),
                ack: SeqNum((i64::from(base.ack.0) + ack) as u32),
                flags: Flags(flags & 0x1ff),
                window,
                urgent: noise as u16,
                options: Options::default(),
                ..base.clone()
            };
            if options & 1 != 0 {
                tcp.options.timestamps = base.options.timestamps.map(|ts| Timestamps {
                    value: ts.value.wrapping_add(noise % 1000),
                    echo: ts.echo.wrapping_sub(noise >> 22),
                });
            }
            if options & 2 != 0 {
                let start = tcp.ack + noise % 100_000;
                let _ = tcp.options.sack.try_push(SackBlock { start, end: start + (noise >> 16) });
            }
            if options & 4 != 0 {
                tcp.options.mss = Some(noise as u16);
                tcp.options.window_scale = Some(noise as u8);
            }
            pair.forge(B, &tcp, &pattern(len));
            if noise % 5 == 0 {
                let _ = pair.write(B, at_b, &pattern(len * 3));
                let _ = pair.read(B, at_b);
            }
            pair.run_ms(wait);
        }
        let now = pair.now;
        pair.b.release(at_b, now);
        pair.run(Duration::from_secs(5));
    }

    #[test]
    fn whatever_bytes_arrive_nothing_panics(
        packets in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..80), 0..50),
    ) {
        let mut pair = Pair::new(1);
        pair.listen(B, 80, ListenConfig::default());
        for packet in packets {
            pair.inject(B, &packet);
        }
        prop_assert_eq!(pair.b.stats().packets_in, pair.b.stats().refused_total());
    }
}

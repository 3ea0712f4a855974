//! Sequence numbers that wrap within a connection.

use std::time::Duration;

use brisk_tcp::config::{ConnectConfig, StackConfig};
use brisk_tcp::error::WriteError;
use brisk_tcp::{ConnId, ListenConfig};
use brisk_wire::Flags;

use crate::bounded;
use crate::harness::{A, B, Channel, Pair, Side, pattern, stack_config};

/// Returns the initial sequence number with which `side` opens or answers a connection to port 80 now.
fn initial(pair: &mut Pair, side: Side, config: &ConnectConfig) -> (ConnId, u32) {
    pair.seen.clear();
    let id = pair.connect_with(A, 80, config);
    pair.run_ms(100);
    let flags = if side == A { Flags::SYN } else { Flags::SYN | Flags::ACK };
    (id, pair.seen.iter().find(|seen| seen.is(side, flags)).expect("sent").tcp.seq.0)
}

/// Opens a connection whose `side` begins `below` numbers under the wrap. Initial numbers follow the clock,
/// one every four microseconds, so the clock is set accordingly.
fn just_below(
    seed: u64,
    below: u32,
    side: Side,
    change: impl Fn(&mut StackConfig),
) -> (Pair, ConnId, ConnId) {
    let config = |host| {
        let mut config = StackConfig { ephemeral_ports: 40_000..=40_000, ..stack_config(host) };
        change(&mut config);
        config
    };
    let mut pair = Pair::with_configs(seed, config(A), config(B));
    let listener = pair.listen(B, 80, ListenConfig::default());
    let connect = ConnectConfig::default();
    let (first, iss) = initial(&mut pair, side, &connect);
    let (opened, ticks) = (pair.now, 0u32.wrapping_sub(below).wrapping_sub(iss));
    pair.abort(A, first);
    pair.run_ms(100);
    while let Some((id, _)) = pair.b.accept(listener) {
        pair.release(B, id);
    }
    pair.run(opened + Duration::from_micros(4 * u64::from(ticks)) - pair.now - Duration::from_millis(100));
    let (at_a, iss) = initial(&mut pair, side, &connect);
    assert_eq!(iss, 0u32.wrapping_sub(below), "the clock gives the number");
    let (at_b, _) = pair.b.accept(listener).expect("open");
    (pair, at_a, at_b)
}

#[test]
fn the_wrap_is_crossed_at_every_part_of_a_segment() {
    let data = pattern(120_000);
    let mut crossed = 0;
    for (seed, below) in
        [0, 1, 2, 700, 1_447, 1_448, 1_449, 14_481, 60_000, 119_999, 120_000].into_iter().enumerate()
    {
        for side in [A, B] {
            let (mut pair, at_a, at_b) = just_below(seed as u64, below, side, |_| {});
            let (writer, reader) = if side == A { (at_a, at_b) } else { (at_b, at_a) };
            pair.channel = Channel { loss: 30, jitter: Duration::from_millis(3), ..Channel::default() };
            // Panics if a byte is missing or wrong.
            pair.transfer(side, writer, reader, &data, Duration::from_secs(600));
            pair.shutdown(side, writer);
            pair.run_until(Duration::from_secs(60), |pair| {
                matches!(pair.read(side.other(), reader), Ok(None))
            });
            crossed += 1;
        }
    }
    bounded("sequence wrap, 22 crossings at 3 % loss", "transfers that failed", 0, 22 - crossed);
}

/// Sends more than twice the sequence space each way, in super-segments.
#[test]
#[ignore = "moves 18 GB through two stacks: minutes in release mode"]
fn eight_gigabytes_cross_the_wrap_twice() {
    const TOTAL: u64 = 9_000_000_000;
    let (mut pair, at_a, at_b) = just_below(1, 100, A, |config| config.max_super_segment = 65_000);
    pair.record = false;
    pair.channel.delay = Duration::from_millis(1);
    let block = pattern(251 * 1024);
    for (side, writer, reader) in [(A, at_a, at_b), (B, at_b, at_a)] {
        let (mut written, mut read, mut wrong) = (0u64, 0u64, 0u64);
        pair.run_until(Duration::from_secs(100_000), |pair| {
            while written < TOTAL {
                let at = (written % block.len() as u64) as usize;
                match pair.write(side, writer, &block[at..]) {
                    Ok(count) => written += count as u64,
                    Err(WriteError::WouldBlock) => break,
                    Err(error) => panic!("write: {error}"),
                }
            }
            let got = pair.read(side.other(), reader).expect("open").expect("not at its end");
            let mut rest = &got[..];
            while !rest.is_empty() {
                let at = (read % block.len() as u64) as usize;
                let count = rest.len().min(block.len() - at);
                wrong += u64::from(rest[..count] != block[at..at + count]);
                read += count as u64;
                rest = &rest[count..];
            }
            read >= written && written >= TOTAL
        });
        bounded("9 GB in one connection", "blocks with wrong bytes", 0, wrong);
    }
}

//! Paths that drop large packets silently, for connections with early suspicion.
//!
//! One way takes 50 ms. B sends, and both ends know the path.

use brisk_tcp::config::{MtuProbing, TcpConfig};
use brisk_tcp::path::PathFacts;

use crate::harness::{A, B, pattern};
use crate::path::{World, tcp};

/// Configuration of the gateway's hop.
fn early() -> TcpConfig {
    TcpConfig {
        nodelay: true,
        path_start: true,
        handshake_timers: true,
        mtu_probing: MtuProbing::Early,
        ..tcp()
    }
}

fn known(tcp: TcpConfig) -> World {
    let mut world = World::new(tcp);
    world.fetch(100);
    world
}

/// Drops packets above 1240 bytes: 20 of IP, 32 of TCP.
fn narrow(world: &mut World) {
    world.pair.tap = Some(Box::new(|_, segment| segment.payload.len() > 1188));
}

/// Returns the milliseconds from the SYN to the last of `bytes` bytes.
fn fetch(world: &mut World, bytes: usize) -> u128 {
    let (at_a, at_b) = world.open();
    let data = pattern(bytes);
    world.pair.transfer(B, at_b, at_a, &data, std::time::Duration::from_secs(100));
    let took = world.pair.now.saturating_since(world.began).as_millis();
    world.close(at_a, at_b);
    took
}

fn mtu(facts: PathFacts) -> Option<u16> {
    facts.mtu.map(|mtu| mtu.low)
}

#[test]
fn a_path_that_became_narrow_costs_less_than_a_second() {
    for (bytes, limit, next) in [(2_000, 1000, 210), (10_000, 1000, 210), (30_000, 1000, 410)] {
        let mut world = known(early());
        narrow(&mut world);
        let took = fetch(&mut world, bytes);
        assert!(took < limit, "{bytes}: {took} ms");
        // The next connection knows the size, and tries the larger one once more after its data.
        assert!(mtu(world.facts(B)).is_some_and(|low| low < 1240), "{:?}", world.facts(B));
        let took = fetch(&mut world, bytes);
        assert!(took <= next, "{bytes} again: {took} ms");
    }
}

/// Large packets that arrived before the change say nothing about the path after it.
#[test]
fn a_path_that_became_narrow_after_large_packets_costs_less_than_a_second() {
    for (bytes, limit) in [(2_000, 1000), (10_000, 1000), (30_000, 1000)] {
        let mut world = known(early());
        fetch(&mut world, 30_000);
        narrow(&mut world);
        let took = fetch(&mut world, bytes);
        assert!(took < limit, "{bytes}: {took} ms");
        assert!(mtu(world.facts(B)).is_some_and(|low| low < 1240), "{:?}", world.facts(B));
    }
}

#[test]
fn without_the_suspicion_it_takes_three_timeouts() {
    let mut world = known(TcpConfig { mtu_probing: MtuProbing::OnBlackHole, ..early() });
    narrow(&mut world);
    let took = fetch(&mut world, 30_000);
    assert!(took > 2000, "{took} ms");
}

#[test]
fn a_path_that_is_back_has_its_size_back() {
    for silent_until in [160, 400, 700, 1500] {
        let mut world = known(early());
        let (at_a, at_b) = world.open();
        let from = world.began;
        let last = from + std::time::Duration::from_millis(silent_until);
        let now = std::rc::Rc::new(std::cell::Cell::new(from));
        let clock = now.clone();
        world.pair.tap = Some(Box::new(move |side, segment| {
            side == B && !segment.payload.is_empty() && clock.get() < last
        }));
        let data = pattern(200_000);
        let (mut sent, mut got) = (0, 0);
        world.pair.run_until(std::time::Duration::from_secs(60), |pair| {
            now.set(pair.now);
            sent += pair.write(B, at_b, &data[sent..]).unwrap_or(0);
            got += pair.read(A, at_a).expect("open").expect("not at its end").len();
            got == data.len()
        });
        let stats = world.pair.b.conn_stats(at_b).expect("open");
        // A search ends 8 bytes before the exact size.
        assert!(stats.mss > 1440, "silent until {silent_until} ms: {}", stats.mss);
        world.close(at_a, at_b);
        assert_eq!(mtu(world.facts(B)), None, "silent until {silent_until} ms");
    }
}

/// With fewer transfers, the chance of the losses would move the totals by more than the permitted percent.
#[test]
fn paths_that_lose_much_are_no_slower_for_it() {
    for loss in [20, 50, 100] {
        let total = |mtu_probing| {
            let mut world = known(TcpConfig { mtu_probing, ..early() });
            world.pair.channel.loss = loss;
            (0..1000).map(|_| fetch(&mut world, 30_000)).sum::<u128>()
        };
        let (without, with) = (total(MtuProbing::OnBlackHole), total(MtuProbing::Early));
        assert!(with <= without * 101 / 100, "loss {loss} in 1000: {without} ms, {with} ms");
    }
}

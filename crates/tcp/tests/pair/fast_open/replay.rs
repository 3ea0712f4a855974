//! Repeated SYNs with data, and the replay window that recognises them. Times as in the parent module.

use super::*;

fn remembering(lifetime: u64, entries: usize) -> FastOpenListen {
    let window = ReplayWindow { lifetime: Duration::from_secs(lifetime), entries };
    FastOpenListen { replay_window: Some(window), ..FastOpenListen::default() }
}

/// Opens a connection from this port, gets a response and ends it; returns how many bytes of the SYN were
/// accepted.
fn visit(world: &mut World, client: &SimulatedClient, port: u16) -> u32 {
    let taken = client.open(world, port);
    client.reset(world, port);
    taken
}

#[test]
fn a_copy_is_not_taken_again_however_its_connection_ended() {
    let mut world = World::new(remembering(600, 100));
    let client = SimulatedClient::new(&mut world, 1);
    assert_eq!(visit(&mut world, &client, 1001), 10);
    // There is no hold, because the connection was reset. The reset no longer counts against the limit.
    world.until(70_000);
    assert_eq!(client.open(&mut world, 1001), 0, "an ordinary handshake");
    let stats = world.pair.b.stats().fast_open;
    assert_eq!((stats.served, stats.replay_blocked), (1, 1));
    assert_eq!(world.pending(), 0, "and it takes no place");
    world.until(601_000);
    client.reset(&mut world, 1001);
    assert_eq!(client.open(&mut world, 1001), 10, "forgotten after the configured time");
}

#[test]
fn a_copy_from_another_port_is_known() {
    let mut world = World::new(remembering(600, 100));
    let client = SimulatedClient::new(&mut world, 1);
    assert_eq!(client.open(&mut world, 1001), 10);
    let mut copy = syn(1001);
    copy.options.fast_open = client.cookie;
    client.segment(&mut world, 1002, &copy, b"0123456789");
    assert_eq!(world.pair.last(B).tcp.ack, SeqNum(1002), "only the SYN");
    assert_eq!(world.pair.b.stats().fast_open.replay_blocked, 1);
}

#[test]
fn a_full_window_lets_syns_open_ordinarily() {
    let mut world = World::new(remembering(60, 2));
    let client = SimulatedClient::new(&mut world, 1);
    assert_eq!([1001, 1002, 1003].map(|port| client.open(&mut world, port)), [10, 10, 0]);
    assert_eq!(world.pair.b.stats().fast_open.replay_window_full, 1);
    world.until(61_000);
    assert_eq!(client.open(&mut world, 1004), 10);
}

#[test]
fn forged_cookies_use_no_entry_and_new_keys_keep_all() {
    let mut world = World::new(remembering(600, 2));
    world.pair.b.set_fast_open_keys(fixed(1, None));
    let client = SimulatedClient::new(&mut world, 1);
    let forger =
        SimulatedClient { ip: [10, 9, 9, 2], cookie: Cookie::new(&[7; 8]).map(FastOpen::with_cookie) };
    assert_eq!([1001, 1002, 1003].map(|port| forger.open(&mut world, port)), [0; 3]);
    assert_eq!(visit(&mut world, &client, 2001), 10);
    world.until(70_000);
    world.pair.b.set_fast_open_keys(fixed(2, Some(1)));
    assert_eq!(client.open(&mut world, 2001), 0);
    assert_eq!(world.pair.b.stats().fast_open.replay_blocked, 1);
}

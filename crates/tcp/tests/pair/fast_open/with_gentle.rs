//! Fast Open and Corrective on one SYN, over paths that drop one of the two options or both together. The
//! tests check the options that each connection tries. Times as in the parent module.

use brisk_tcp::config::{CorrectiveConfig, MechanismConfig};
use brisk_tcp::mechanism::{GentleOff, GentleOutcome};

use super::*;

fn corrective() -> TcpConfig {
    let mechanisms = MechanismConfig { corrective: Some(CorrectiveConfig::default()), ..quick().mechanisms };
    TcpConfig { mechanisms, ..quick() }
}

/// Options of a first SYN: Fast Open's, Corrective's.
type Carried = (bool, bool);

const BOTH: Carried = (true, true);
const FAST_OPEN: Carried = (true, false);
const CORRECTIVE: Carried = (false, true);

/// Returns the options of the first SYNs of successive connections over a path that drops some of them.
fn tried(swallows: fn(Carried) -> bool, connections: usize) -> (World, Vec<Carried>) {
    let listen = ListenConfig { tcp: corrective(), ..serving(FastOpenListen::default()) };
    let mut world = World::with(listen, |config| config);
    world.learn();
    world.pair.tap = Some(Box::new(move |from, segment: &Segment<'_>| {
        from == A && segment.tcp.flags.contains(Flags::SYN) && swallows(carried(&segment.tcp))
    }));
    let seen = (0..connections).map(|_| one(&mut world)).collect();
    (world, seen)
}

fn carried(syn: &TcpHeader) -> Carried {
    (syn.options.fast_open.is_some(), syn.options.gentle.is_some())
}

/// Runs a connection that delivers a request, with or without its first SYN.
fn one(world: &mut World) -> Carried {
    world.restart();
    let config = ConnectConfig { tcp: corrective(), ..asking() };
    let id = world.open(&config, &pattern(100));
    world.until(1500);
    let at_b = world.accept();
    assert_eq!(world.read(B, at_b), pattern(100));
    let first = carried(&world.pair.seen[0].tcp);
    let stats = world.pair.a.conn_stats(id).expect("held");
    let withheld = [GentleOff::Remembered, GentleOff::OnTrial].map(GentleOutcome::Off);
    assert_eq!(withheld.contains(&stats.gentle), !first.1, "what is withheld says why");
    for (side, id) in [(A, id), (B, at_b)] {
        world.pair.abort(side, id);
        world.pair.release(side, id);
    }
    world.pair.run_ms(500);
    first
}

#[test]
fn a_path_that_passes_both_options_gets_both() {
    let (world, tried) = tried(|_| false, 4);
    assert_eq!(tried, [BOTH; 4]);
    assert_eq!(world.pair.a.stats().gentle_withheld, 0);
}

#[test]
fn the_option_of_corrective_is_found_to_be_dropped() {
    let (mut world, tried) = tried(|(_, corrective)| corrective, 8);
    let search = [BOTH, FAST_OPEN, CORRECTIVE, FAST_OPEN, CORRECTIVE];
    assert_eq!((&tried[..5], &tried[5..]), (&search[..], &[FAST_OPEN; 3][..]));
    let stats = *world.pair.a.stats();
    assert_eq!((stats.gentle_syn_drop, stats.fast_open.accepted), (3, 5));
    world.pair.run(Duration::from_secs(3600));
    assert_eq!(one(&mut world), BOTH, "an hour later it may try again");
}

#[test]
fn fast_open_is_found_to_be_dropped() {
    let (world, tried) = tried(|(fast_open, _)| fast_open, 8);
    let search = [BOTH, FAST_OPEN, CORRECTIVE, FAST_OPEN];
    assert_eq!((&tried[..4], &tried[4..]), (&search[..], &[CORRECTIVE; 4][..]));
    // The first of three drops may be random, so two more switch Fast Open off.
    assert_eq!((world.pair.a.stats().fast_open.syn_drop, world.pair.a.stats().gentle_withheld), (3, 2));
}

#[test]
fn a_path_that_passes_each_option_alone_keeps_fast_open() {
    let (mut world, tried) = tried(|carried| carried == BOTH, 7);
    let search = [BOTH, FAST_OPEN, CORRECTIVE, BOTH];
    assert_eq!((&tried[..4], &tried[4..]), (&search[..], &[FAST_OPEN; 3][..]));
    world.pair.run(Duration::from_secs(23 * 3600));
    assert_eq!(one(&mut world), FAST_OPEN, "for a day");
    world.pair.a.flush_paths();
    assert_eq!(one(&mut world), BOTH, "unless the network changes");
}

/// Events of a connection before the sender's first acknowledgement.
struct Opening {
    /// Bytes of data, without parity, that the sender of the long transfer had sent.
    sent: usize,
    /// The shift of the form `window` on the SYN-ACK.
    syn_ack_window: Option<u8>,
}

/// Opens two connections, each with a request and a response of these lengths, and reports on the second. The
/// first one continues with 500,000 bytes from `sender`, so that the path is known to carry them.
fn second_opening(
    (tcp, listen, connect): (TcpConfig, FastOpenListen, FastOpenConnect),
    sender: Side,
    transfers: [(usize, usize); 2],
    until: u64,
) -> Opening {
    let listen = ListenConfig { tcp: tcp.clone(), ..serving(listen) };
    let mut world = World::with(listen, |config| config);
    world.learn();
    let config = ConnectConfig { tcp, fast_open: Some(connect), ..asking() };
    let openings = transfers.map(|(request, response)| {
        world.restart();
        let id = world.open(&config, &pattern(request));
        world.until(60);
        let at_b = world.accept();
        world.pair.write(B, at_b, &pattern(response)).expect("room");
        world.until(until);
        let is_data = |seen: &&Seen| {
            seen.from == sender && !seen.tcp.options.gentle.is_some_and(|gentle| gentle.is_encoded())
        };
        let sent = world.pair.seen.iter().filter(is_data).map(|seen| seen.len).sum();
        let is_syn_ack = |seen: &&Seen| seen.from == B && seen.tcp.flags.contains(Flags::SYN);
        let syn_ack = world.pair.seen.iter().find(is_syn_ack).expect("a SYN-ACK");
        let syn_ack_window = syn_ack.tcp.options.early_window;
        world.until(1000);
        assert_eq!((world.read(B, at_b).len(), world.read(A, id).len()), (request, response));
        let (from, to) = if sender == A { (id, at_b) } else { (at_b, id) };
        world.pair.transfer(sender, from, to, &pattern(500_000), Duration::from_secs(10));
        for (side, id) in [(A, id), (B, at_b)] {
            world.pair.abort(side, id);
            world.pair.release(side, id);
        }
        Opening { sent, syn_ack_window }
    });
    let [_, second] = openings;
    second
}

/// The window beyond the 16 bits of a SYN: more data than the window field announces leaves before the
/// client's first acknowledgement.
#[test]
fn a_response_fills_the_early_window_before_the_handshake_is_over() {
    let before_the_acknowledgement = |early_window, authenticated, path_start| {
        let tcp = TcpConfig { path_start, initial_window: 32, ..corrective() };
        let early_response =
            if authenticated { EarlyResponse::Authenticated } else { EarlyResponse::Standard };
        let listen = FastOpenListen { early_response, ..FastOpenListen::default() };
        let connect = FastOpenConnect { early_window, ..FastOpenConnect::default() };
        let opening = second_opening((tcp, listen, connect), B, [(100, 0), (100, 120_000)], 149);
        assert_eq!(opening.syn_ack_window, None, "the request is short");
        opening.sent
    };
    let early = before_the_acknowledgement(true, true, true);
    assert!(early > 70_000, "what a flight of the first one has carried: {early}");
    let field = before_the_acknowledgement(false, true, true);
    assert!((64_000..=65_535).contains(&field), "the window field: {field}");
    for path_start in [true, false] {
        let unproven = before_the_acknowledgement(true, false, path_start);
        assert!((13_000..=14_480).contains(&unproven), "a cookie alone: {unproven}");
    }
    let configured = before_the_acknowledgement(true, true, false);
    assert!((40_000..=46_336).contains(&configured), "the configured window: {configured}");
}

/// The SYN-ACK announces such a window if the SYN does: the rest of a long request waits for no
/// acknowledgement.
#[test]
fn a_long_request_fills_the_early_window_of_the_syn_ack() {
    let before_the_first_acknowledgement = |early_window| {
        let tcp = TcpConfig { path_start: true, initial_window: 32, ..corrective() };
        let connect = FastOpenConnect { early_window, ..FastOpenConnect::default() };
        second_opening((tcp, FastOpenListen::default(), connect), A, [(1000, 0), (120_000, 0)], 199)
    };
    let Opening { sent, syn_ack_window } = before_the_first_acknowledgement(true);
    assert!(sent > 70_000 && syn_ack_window.is_some(), "what a flight of the first one has carried: {sent}");
    let Opening { sent, syn_ack_window } = before_the_first_acknowledgement(false);
    assert!((64_000..=67_000).contains(&sent), "the SYN, and the window field after it: {sent}");
    assert_eq!(syn_ack_window, None);
}

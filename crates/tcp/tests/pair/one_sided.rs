//! The planner of a server whose peer has agreed to nothing. Times are milliseconds since the SYN left; one
//! way takes 50 ms.

use brisk_tcp::config::{HandshakeCopies, PlannerConfig, TcpConfig};
use brisk_wire::Flags;

use crate::harness::B;
use crate::path::{World, tcp};

const SYN_ACK: Flags = Flags(Flags::SYN.0 | Flags::ACK.0);

/// TCP of a server for unmodified clients.
fn one_sided(max_overhead: u32) -> TcpConfig {
    let mut config = TcpConfig { handshake_copies: Some(HandshakeCopies::default()), ..tcp() };
    config.mechanisms.planner = Some(PlannerConfig { max_overhead, ..PlannerConfig::ONE_SIDED });
    config
}

/// Returns a server that has lost four segments to an unmodified client.
fn known_loss(max_overhead: u32) -> World {
    let mut world = World::served_by(one_sided(max_overhead), tcp());
    world.lose_four();
    world.fetch(200_000);
    world.pair.tap = None;
    world
}

#[test]
fn syn_ack_leaves_twice_only_where_loss_is_known() {
    let mut unknown = World::served_by(one_sided(25), tcp());
    for _ in 0..2 {
        unknown.fetch(10_000);
        assert_eq!(unknown.times(B, SYN_ACK), [50], "no loss");
    }
    for (max_overhead, times) in [(25, &[50, 50][..]), (0, &[50])] {
        let mut known = known_loss(max_overhead);
        known.fetch(10_000);
        assert_eq!(known.times(B, SYN_ACK), times, "{max_overhead} %");
    }
}

#[test]
fn copy_opens_the_connection_if_the_syn_ack_is_lost() {
    let mut world = known_loss(25);
    let mut syn_acks = 0;
    world.pair.tap = Some(Box::new(move |from, segment| {
        syn_acks += u32::from(from == B && segment.tcp.flags == SYN_ACK);
        from == B && segment.tcp.flags == SYN_ACK && syn_acks == 1
    }));
    world.open();
    assert_eq!((world.pair.now - world.began).as_millis(), 150, "the copy is answered");
}

//! Configurations of a stack, decided by bytes: small enough that every limit is met.

use std::net::IpAddr;

use brisk_tcp::config::{
    BufferConfig, CongestionAlgorithm, ConnectConfig, KeepaliveConfig, ListenConfig, MtuProbing,
    PacingConfig, RtoConfig, StackConfig, SynCookies, TcpConfig, UrgentPolicy,
};
use brisk_wire::Duration;

use crate::decisions::Decisions;

/// What holds for a stack with these addresses.
pub fn stack(decisions: &mut Decisions<'_>, addresses: Vec<IpAddr>) -> StackConfig {
    StackConfig {
        addresses,
        mtu: decisions.pick(&[1500, 576, 1280, 9000, u16::MAX]),
        max_super_segment: decisions.pick(&[0, 65_000, 3000, 1]),
        max_connections: decisions.pick(&[16, 2, 5]),
        max_buffer_bytes: decisions.pick(&[1 << 20, 10_000, 100_000]),
        msl: Duration::from_secs(decisions.pick(&[30, 1])),
        granularity: Duration::from_micros(decisions.pick(&[1, 1000, 10_000])),
        challenge_acks_per_second: decisions.pick(&[1000, 1, 0]),
        observe: decisions.one_in(2),
        ..StackConfig::default()
    }
}

/// What holds for a connection.
pub fn tcp(decisions: &mut Decisions<'_>) -> TcpConfig {
    let switches = decisions.byte();
    let on = |bit: u8| switches >> bit & 1 == 0;
    let buffers = [(8192, 65_536), (2048, 2048), (16_384, 16_384), (4096, 262_144)]
        .map(|(initial, max)| BufferConfig { initial, max });
    TcpConfig {
        congestion: decisions.pick(&[
            CongestionAlgorithm::Cubic,
            CongestionAlgorithm::Reno,
            CongestionAlgorithm::Fixed(20_000),
            CongestionAlgorithm::Fixed(1),
        ]),
        initial_window: decisions.pick(&[10, 1, 64]),
        rto: decisions.pick(&[RtoConfig::LINUX, RtoConfig::RFC6298]),
        send_buffer: decisions.pick(&buffers),
        receive_buffer: decisions.pick(&buffers),
        timestamps: on(0),
        sack: on(1),
        window_scaling: on(2),
        ecn: on(3),
        nodelay: !on(4),
        slow_start_after_idle: !on(5),
        pacing: (!on(6)).then(PacingConfig::default),
        urgent: if on(7) { UrgentPolicy::OutOfBand } else { UrgentPolicy::Inline },
        delack_max: Duration::from_millis(decisions.pick(&[40, 0, 500])),
        syn_retries: decisions.pick(&[6, 1]),
        synack_retries: decisions.pick(&[5, 1]),
        retries: decisions.pick(&[15, 3]),
        mtu_probing: decisions.pick(&[MtuProbing::OnBlackHole, MtuProbing::Off, MtuProbing::Always]),
        max_segment: decisions.pick(&[None, Some(88), Some(536)]),
        ..TcpConfig::default()
    }
}

/// What an active open needs.
pub fn connect(decisions: &mut Decisions<'_>) -> ConnectConfig {
    ConnectConfig { tcp: tcp(decisions), local: None }
}

/// What a listener needs.
pub fn listen(decisions: &mut Decisions<'_>) -> ListenConfig {
    ListenConfig {
        tcp: tcp(decisions),
        backlog: decisions.pick(&[8, 1, 0]),
        max_half_open: decisions.pick(&[8, 1, 0]),
        syn_cookies: decisions.pick(&[SynCookies::UnderFlood, SynCookies::Off, SynCookies::Always]),
    }
}

/// Keepalive that is on, or none.
pub fn keepalive(decisions: &mut Decisions<'_>) -> Option<KeepaliveConfig> {
    let idle = Duration::from_secs(decisions.pick(&[1, 60, 7200, 0]));
    let interval = Duration::from_secs(decisions.pick(&[1, 75, 0]));
    let count = decisions.pick(&[3, 9, 0]);
    (!decisions.one_in(4)).then_some(KeepaliveConfig { idle, interval, count })
}

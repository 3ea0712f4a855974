//! Configurations of a stack from bytes, small enough to reach every limit.

use std::net::IpAddr;

use brisk_tcp::config::{
    BufferConfig, CongestionAlgorithm, ConnectConfig, EcnMode, FastOpenConfig, KeepaliveConfig, ListenConfig,
    MtuProbing, PacingConfig, Reactive, RtoConfig, StackConfig, SynCookies, TcpConfig, UrgentPolicy,
};
use brisk_tcp::fast_open::{ClientCookie, EarlyResponse, FastOpenConnect, FastOpenListen, LastAckHold};
use brisk_wire::Duration;

use crate::decisions::Decisions;

/// Returns the configuration of a stack with these addresses.
pub fn stack(decisions: &mut Decisions<'_>, addresses: Vec<IpAddr>) -> StackConfig {
    StackConfig {
        addresses,
        mtu: decisions.pick(&[1500, 576, 1280, 9000, u16::MAX]),
        max_super_segment: decisions.pick(&[0, 65_000, 3000, 1, 262_000, 130_000]),
        max_connections: decisions.pick(&[16, 2, 5]),
        max_buffer_bytes: decisions.pick(&[1 << 20, 10_000, 100_000]),
        msl: Duration::from_secs(decisions.pick(&[30, 1])),
        granularity: Duration::from_micros(decisions.pick(&[1, 1000, 10_000])),
        challenge_acks_per_second: decisions.pick(&[1000, 1, 0]),
        observe: decisions.one_in(2),
        path_entries: decisions.pick(&[1024, 0, 1]),
        fast_open: fast_open(decisions),
        ..StackConfig::default()
    }
}

/// Returns the Fast Open configuration of a stack.
fn fast_open(decisions: &mut Decisions<'_>) -> FastOpenConfig {
    FastOpenConfig {
        max_pending_bytes: decisions.pick(&[1 << 20, 0, 600]),
        last_ack_hold: decisions.pick(&[LastAckHold::FastOpened, LastAckHold::All, LastAckHold::Off]),
        ..FastOpenConfig::default()
    }
}

/// Returns the configuration of a connection.
pub fn tcp(decisions: &mut Decisions<'_>) -> TcpConfig {
    let switches = decisions.byte();
    let on = |bit: u8| switches >> bit & 1 == 0;
    let buffers = [(8192, 65_536), (2048, 2048), (16_384, 16_384), (4096, 262_144), (262_144, 262_144)]
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
        ecn: if on(3) { EcnMode::On } else { EcnMode::Passive },
        nodelay: !on(4),
        slow_start_after_idle: on(5),
        pacing: (!on(6)).then(PacingConfig::default),
        urgent: if on(7) { UrgentPolicy::OutOfBand } else { UrgentPolicy::Inline },
        delack_max: Duration::from_millis(decisions.pick(&[40, 0, 500])),
        syn_retries: decisions.pick(&[6, 1]),
        synack_retries: decisions.pick(&[5, 1]),
        retries: decisions.pick(&[15, 3]),
        mtu_probing: decisions.pick(&[MtuProbing::OnBlackHole, MtuProbing::Off, MtuProbing::Always]),
        max_segment: decisions.pick(&[None, Some(88), Some(536)]),
        ..losses(decisions)
    }
}

/// Returns a configuration of loss detection and recovery.
fn losses(decisions: &mut Decisions<'_>) -> TcpConfig {
    match decisions.below(4) {
        0 => TcpConfig::default(),
        1 => {
            let mut without_probes = TcpConfig::default();
            without_probes.mechanisms.reactive = Reactive::Off;
            without_probes
        }
        2 => TcpConfig::of_2012(),
        _ => TcpConfig::of_2012_with_reactive(),
    }
}

/// Returns the configuration of an active open.
pub fn connect(decisions: &mut Decisions<'_>) -> ConnectConfig {
    let tcp = tcp(decisions);
    let choice = decisions.byte();
    let on = |bit: u8| choice >> bit & 1 == 1;
    let fast_open = FastOpenConnect {
        cookie: match (on(1), on(2), on(3)) {
            (true, _, _) => ClientCookie::None,
            (_, _, true) => ClientCookie::OneTime,
            (_, true, _) => ClientCookie::Experimental,
            _ => ClientCookie::Standard,
        },
        hold_early: !on(4),
        defer: on(5),
        ..FastOpenConnect::default()
    };
    ConnectConfig { tcp, fast_open: on(0).then_some(fast_open), ..ConnectConfig::default() }
}

/// Returns the configuration of a listener.
pub fn listen(decisions: &mut Decisions<'_>) -> ListenConfig {
    let tcp = tcp(decisions);
    // One byte for both, so that existing corpora keep their meaning.
    let choice = decisions.byte();
    ListenConfig {
        tcp,
        backlog: [8, 1, 0][usize::from(choice) % 3],
        defer_accept: choice >> 6,
        max_half_open: decisions.pick(&[8, 1, 0]),
        syn_cookies: decisions.pick(&[SynCookies::UnderFlood, SynCookies::Off, SynCookies::Always]),
        fast_open: fast_open_listen(decisions),
        ..ListenConfig::default()
    }
}

fn fast_open_listen(decisions: &mut Decisions<'_>) -> Option<FastOpenListen> {
    let choice = decisions.byte();
    let on = |bit: u8| choice >> bit & 1 == 1;
    on(0).then(|| FastOpenListen {
        max_pending: if on(1) { 1 } else { 256 },
        require_cookie: !on(2),
        early_response: match (on(3), on(4)) {
            (true, _) => EarlyResponse::Held,
            (false, true) => EarlyResponse::Multiple(3),
            (false, false) => EarlyResponse::Standard,
        },
        one_time: on(5),
        ..FastOpenListen::default()
    })
}

/// Returns keepalive settings, or none.
pub fn keepalive(decisions: &mut Decisions<'_>) -> Option<KeepaliveConfig> {
    let idle = Duration::from_secs(decisions.pick(&[1, 60, 7200, 0]));
    let interval = Duration::from_secs(decisions.pick(&[1, 75, 0]));
    let count = decisions.pick(&[3, 9, 0]);
    (!decisions.one_in(4)).then_some(KeepaliveConfig { idle, interval, count })
}

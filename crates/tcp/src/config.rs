//! Configuration of a stack and of its connections.
//!
//! The defaults are the Linux profile: a default brisk connection looks to its peer like a connection of
//! Linux. A mechanism is off if its value is absent.
//!
//! A release can add fields to these types without a new major version, so a literal ends with the defaults:
//! `TcpConfig { nodelay: true, ..TcpConfig::default() }`. Only [`BufferConfig`], [`KeepaliveConfig`] and
//! [`RtoConfig`] get no new fields.
//!
//! ```
//! use brisk_tcp::TcpConfig;
//! use brisk_tcp::config::{BufferConfig, RtoConfig};
//!
//! // Every mechanism, with at most a quarter more bytes; BBR; windows for 100 Mbit/s and two seconds.
//! let tcp = TcpConfig {
//!     congestion: "bbr".parse()?,
//!     receive_buffer: BufferConfig { initial: 128 << 10, max: 50 << 20 },
//!     rto: RtoConfig { max: RtoConfig::RFC6298.max, ..RtoConfig::LINUX },
//!     ..TcpConfig::planned(25)
//! };
//! tcp.validate()?;
//! let error = TcpConfig { initial_window: 100, ..tcp }.validate().unwrap_err();
//! assert_eq!((error.key, error.range), ("initial_window", "1 to 64 segments"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use alloc::string::ToString;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::ops::RangeInclusive;

use crate::error::ConfigError;
use crate::fast_open::{FastOpenConnect, FastOpenListen, KeySource, LastAckHold};
use crate::time::Duration;

mod gentle;
#[cfg(feature = "historical")]
mod historical;
mod loss;
mod planner;

pub use crate::congestion::{CongestionAlgorithm, ControllerFactory, UnknownCongestion};
pub use gentle::{
    CopyMark, CopyRule, CopyScope, CorrectiveConfig, FecCode, FecHold, FecProfile, ProactiveConfig,
};
#[cfg(feature = "historical")]
pub use historical::{EarlyRetransmit, PaperConfig, Rfc6675Config};
pub use loss::{LossDetection, PrrBound, Reactive};
pub use planner::PlannerConfig;

/// Configuration of a whole stack.
#[derive(Clone, Debug)]
pub struct StackConfig {
    /// Addresses of the stack. May be empty with `any_address`.
    pub addresses: Vec<IpAddr>,
    /// Accept packets to every destination address (a device that receives all traffic of a namespace).
    pub any_address: bool,
    /// Largest IP packet of the device, bytes. 576..=65535, default 1500.
    pub mtu: u16,
    /// Largest super-segment for the device, payload bytes; 0 switches super-segments off. The driver sets it
    /// to the limit of its device, which is rarely above 65000. 0..=262000, default 0.
    pub max_super_segment: u32,
    /// True if the device can send each segment of a super-segment twice in a row and mark the second one as
    /// a copy ([`Transmit::twice`](crate::stack::Transmit::twice)). Copies of Proactive then leave in runs.
    /// The driver sets this for its device. Default false.
    pub sends_twice: bool,
    /// Limit of simultaneous connections, including half-open connections and TIME-WAITs. 1 or more, default
    /// 65536.
    pub max_connections: usize,
    /// Limit of bytes in all send and receive buffers together. Writes use at most three quarters of it,
    /// which leaves space for received data. Above the limit a connection accepts only the next segment, and
    /// only while its application has nothing to read. Default 1 GiB.
    pub max_buffer_bytes: usize,
    /// Limit of received bytes that all connections together keep for repairs. With 0, no connection agrees
    /// on Corrective. Default 64 MiB.
    pub fec_mem_total: usize,
    /// Local ports of active opens (RFC 6056). 1..=65535, not empty, default 32768..=60999.
    pub ephemeral_ports: RangeInclusive<u16>,
    /// Maximum segment lifetime; TIME-WAIT lasts twice as long. 1..=120 s, default 30 s.
    pub msl: Duration,
    /// Let a reset at RCV.NXT end TIME-WAIT (RFC 9293 section 3.10.7.4, and Linux with `tcp_rfc1337` 0).
    /// Default false, because an old reset could let old segments into the next connection (RFC 1337).
    pub time_wait_resets: bool,
    /// Clock granularity of the driver: G of RFC 6298. Default 1 us.
    pub granularity: Duration,
    /// Challenge ACKs per second over all connections (RFC 5961 section 7), randomised by half.
    /// Default 1000.
    pub challenge_acks_per_second: u32,
    /// Number of half-open connections that are kept whole. Older ones are reduced to a few bytes, from which
    /// the next segment or timer restores them. Most handshakes complete within a round trip and so are never
    /// reduced. The value changes the memory, not the traffic. Default 64.
    pub warm_half_open: usize,
    /// Record [`crate::event::Observation`]s. Default off.
    pub observe: bool,
    /// Record [`crate::event::LifecycleEvent`]s. Default off.
    pub lifecycle: bool,
    /// Settings of Fast Open, for the connections and listeners that enable it.
    pub fast_open: FastOpenConfig,
    /// Number of paths (pairs of addresses) in the memory of paths and in that of Fast Open cookies. 0
    /// (off)..=1000000, default 1024.
    pub path_entries: usize,
    /// Makes literals end with `..`, so that releases can add fields.
    #[doc(hidden)]
    pub non_exhaustive: (),
}

/// Settings of Fast Open for a whole stack.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FastOpenConfig {
    /// Time for which a client uses no Fast Open once its network seems to be a black hole. It doubles each
    /// time. 0: the client always uses Fast Open. Up to 86400 s, default 3600 s.
    pub black_hole_base: Duration,
    /// Limit of the bytes of SYN data of all pending connections of a server. Pending are connections that a
    /// SYN with data has opened and whose SYN-ACK the client has not acknowledged. Default 1 MiB.
    pub max_pending_bytes: usize,
    /// The keys of listeners without keys of their own. `None`: the stack uses a key derived from its seed.
    pub keys: Option<KeySource>,
    /// Closed connections to remember, to recognise late duplicates of their SYNs. At most 10,000.
    pub last_ack_hold: LastAckHold,
    /// Makes literals end with `..`, so that releases can add fields.
    #[doc(hidden)]
    pub non_exhaustive: (),
}

impl Default for FastOpenConfig {
    fn default() -> Self {
        FastOpenConfig {
            black_hole_base: Duration::from_secs(3600),
            max_pending_bytes: 1 << 20,
            keys: None,
            last_ack_hold: LastAckHold::FastOpened,
            non_exhaustive: (),
        }
    }
}

impl Default for StackConfig {
    fn default() -> Self {
        StackConfig {
            addresses: Vec::new(),
            any_address: false,
            mtu: 1500,
            max_super_segment: 0,
            sends_twice: false,
            max_connections: 65_536,
            max_buffer_bytes: 1 << 30,
            fec_mem_total: 64 << 20,
            ephemeral_ports: 32_768..=60_999,
            msl: Duration::from_secs(30),
            time_wait_resets: false,
            granularity: Duration::from_micros(1),
            challenge_acks_per_second: 1000,
            warm_half_open: 64,
            observe: false,
            lifecycle: false,
            fast_open: FastOpenConfig::default(),
            path_entries: 1024,
            non_exhaustive: (),
        }
    }
}

impl StackConfig {
    /// Checks the documented ranges of the fields; the error names the first field that is out of its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let refuse = |key, value: alloc::string::String, range| Err(ConfigError { key, value, range });
        if self.mtu < 576 {
            return refuse("mtu", self.mtu.to_string(), "576 to 65535 bytes");
        }
        // Leaves space for headers in `brisk_wire::MAX_SUPER_LEN`.
        if self.max_super_segment > 262_000 {
            return refuse("max_super_segment", self.max_super_segment.to_string(), "0 to 262000 bytes");
        }
        if self.max_connections == 0 {
            return refuse("max_connections", "0".to_string(), "1 or more");
        }
        if self.ephemeral_ports.is_empty() || *self.ephemeral_ports.start() == 0 {
            return refuse("ephemeral_ports", "an empty range".to_string(), "1 to 65535, low to high");
        }
        if !(Duration::from_secs(1)..=Duration::from_secs(120)).contains(&self.msl) {
            return refuse("msl", alloc::format!("{:?}", self.msl), "1 s to 120 s");
        }
        if self.path_entries > 1_000_000 {
            return refuse("path_entries", self.path_entries.to_string(), "0 to 1000000");
        }
        let base = self.fast_open.black_hole_base;
        if base > Duration::from_secs(86_400) {
            return refuse("black_hole_base", alloc::format!("{base:?}"), "0 to 86400 s");
        }
        Ok(())
    }
}

/// Computation of the retransmission timeout (RFC 6298).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RtoConfig {
    /// Floor of the variance term `4*rttvar`. Linux: 200 ms. RFC 6298: 0. 0..=1 s.
    pub var_floor: Duration,
    /// Minimum timeout. Linux 200 ms, RFC 6298 1 s. 1 ms..=1 s.
    pub min: Duration,
    /// Maximum timeout. 1..=240 s, default 120 s.
    pub max: Duration,
    /// Timeout before the first sample. 1 ms..=`max`, default 1 s.
    pub initial: Duration,
}

impl RtoConfig {
    /// Linux's choice: the floor is on the variance term, so that a stable path keeps `rto = srtt + 200 ms`.
    pub const LINUX: RtoConfig = RtoConfig {
        var_floor: Duration::from_millis(200),
        min: Duration::from_millis(200),
        max: Duration::from_secs(120),
        initial: Duration::from_secs(1),
    };
    /// The values of RFC 6298.
    pub const RFC6298: RtoConfig = RtoConfig {
        var_floor: Duration::ZERO,
        min: Duration::from_secs(1),
        max: Duration::from_secs(120),
        initial: Duration::from_secs(1),
    };

    /// Checks the documented ranges of the fields; the error names the first field that is out of its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        const SHORTEST: Duration = Duration::from_millis(1);
        const SECOND: Duration = Duration::from_secs(1);
        let checks = [
            ("rto.var_floor", self.var_floor, self.var_floor <= SECOND, "0 to 1 s"),
            ("rto.max", self.max, (SECOND..=240 * SECOND).contains(&self.max), "1 s to 240 s"),
            ("rto.min", self.min, (SHORTEST..=SECOND).contains(&self.min), "1 ms to 1 s"),
            ("rto.initial", self.initial, (SHORTEST..=self.max).contains(&self.initial), "1 ms to rto.max"),
        ];
        match checks.into_iter().find(|(_, _, is_valid, _)| !is_valid) {
            Some((key, value, _, range)) => {
                Err(ConfigError { key, value: alloc::format!("{value:?}"), range })
            }
            None => Ok(()),
        }
    }
}

/// Sizes of one of the two buffers of a connection, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BufferConfig {
    /// Initial size. At least 2,048, default 256 KiB to send and 128 KiB to receive.
    pub initial: usize,
    /// Limit of autotuning; equal to `initial` switches autotuning off. Up to 1 GiB, default 4 MiB to send
    /// and 6 MiB to receive.
    pub max: usize,
}

/// Pacing of transmissions over the round-trip time: at 200 % of cwnd/srtt in slow start and at 120 %
/// afterwards, as in Linux.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PacingConfig {
    /// Maximum rate, bytes of payload per second (Linux: `SO_MAX_PACING_RATE`). Default `None`: no limit.
    pub max_rate: Option<u64>,
    /// Makes literals end with `..`, so that releases can add fields.
    #[doc(hidden)]
    pub non_exhaustive: (),
}

/// Keepalive probes (RFC 9293 section 3.8.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeepaliveConfig {
    /// Silence before the first probe; below 1 s counts as 1 s. Default 7200 s.
    pub idle: Duration,
    /// Time between probes; below 1 s counts as 1 s. Default 75 s.
    pub interval: Duration,
    /// Number of unanswered probes after which the connection fails. Default 9.
    pub count: u32,
}

impl Default for KeepaliveConfig {
    fn default() -> Self {
        KeepaliveConfig { idle: Duration::from_secs(7200), interval: Duration::from_secs(75), count: 9 }
    }
}

/// Path-MTU discovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum MtuProbing {
    /// Only ICMP lowers the MTU.
    Off,
    /// Search by probes (RFC 4821) once repeated timeouts suggest that large packets vanish.
    #[default]
    OnBlackHole,
    /// Like `OnBlackHole`, but a path that has not delivered a large packet yet is suspected earlier: at the
    /// first timeout, or when only a small segment of a whole flight arrives. Large packets of other
    /// connections that arrive meanwhile prevent the suspicion. After a suspicion, data leaves in segments of
    /// [`TcpConfig::base_mss`]. A round trip later the previous size is tried again, because the path may
    /// only have had many losses.
    Early,
    /// Always search upwards from the base.
    Always,
}

/// Use of ECN on a connection (RFC 3168); Linux: `tcp_ecn`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum EcnMode {
    /// Never.
    Off,
    /// If the peer requests it in its SYN.
    #[default]
    Passive,
    /// Active opens request it too.
    On,
}

/// Treatment of the urgent pointer, with Linux's choices.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum UrgentPolicy {
    /// The byte before the urgent pointer is removed from the stream and read separately.
    #[default]
    OutOfBand,
    /// The byte stays in the stream (SO_OOBINLINE).
    Inline,
}

/// Limits of the offered window in addition to the receive buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WindowRules {
    /// Maximum of the offered window, bytes. It also determines the window scale (Linux: `TCP_WINDOW_CLAMP`).
    /// Default `None`: only the buffer.
    pub clamp: Option<u32>,
    /// Let a nearly full buffer close the window below what was offered (Linux: `tcp_shrink_window`). RFC
    /// 9293 section 3.8.6.2.1 says that a receiver SHOULD NOT. Default off.
    pub may_shrink: bool,
    /// Makes literals end with `..`, so that releases can add fields.
    #[doc(hidden)]
    pub non_exhaustive: (),
}

/// Configuration of one connection. Connections of a listener use the listener's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TcpConfig {
    /// Congestion control.
    pub congestion: CongestionAlgorithm,
    /// Long transfers between the same two addresses share one controller, one pacer and one response to
    /// losses. A transfer of up to 128 KiB has its own controller if no long transfer is in progress.
    /// Otherwise it joins the shared controller, and takes precedence over the long transfers. Only with
    /// [`CongestionAlgorithm::Bbr`]. Default off.
    pub share_path: bool,
    /// Initial window in segments (RFC 6928). 1..=64, default 10.
    pub initial_window: u32,
    /// The retransmission timeout.
    pub rto: RtoConfig,
    /// Send buffer. Linux profile: 256 KiB, grows to 4 MiB with the window.
    pub send_buffer: BufferConfig,
    /// Receive buffer. Linux profile: 128 KiB advertised at first, grows to 6 MiB by autotuning.
    pub receive_buffer: BufferConfig,
    /// Further limits of the receive window.
    pub window: WindowRules,
    /// Offer timestamps (RFC 7323). Default on.
    pub timestamps: bool,
    /// Offer SACK (RFC 2018). Default on.
    pub sack: bool,
    /// Offer window scaling (RFC 7323). Default on.
    pub window_scaling: bool,
    /// Explicit congestion notification (RFC 3168). Default [`EcnMode::Passive`].
    pub ecn: EcnMode,
    /// Switch off Nagle's algorithm. Default off, as in the socket API.
    pub nodelay: bool,
    /// Maximum delay of an acknowledgement. 0..=500 ms, default 40 ms.
    pub delack_max: Duration,
    /// Pace transmissions. Default `None`: Linux with CUBIC sends in bursts.
    pub pacing: Option<PacingConfig>,
    /// Halve the window for each timeout without transmissions, down to the initial window (RFC 2861; Linux:
    /// `tcp_slow_start_after_idle`). Default on.
    pub slow_start_after_idle: bool,
    /// Keepalive. Default off.
    pub keepalive: Option<KeepaliveConfig>,
    /// Longest time data may stay unacknowledged (RFC 5482). Default `None`: retries decide.
    pub user_timeout: Option<Duration>,
    /// Maximum number of retransmissions of a SYN. 1..=127, default 6.
    pub syn_retries: u32,
    /// Number of retransmissions of a SYN at equal intervals before the timeout doubles (Linux since 6.5: 4).
    /// RFC 6298 section 5.5 doubles it each time. Early retries of `handshake_timers` do not count. 0..=10,
    /// default 0.
    pub syn_linear_retries: u32,
    /// Maximum number of retransmissions of a SYN-ACK. 1..=127, default 5.
    pub synack_retries: u32,
    /// Maximum number of retransmission timeouts in a row on an established connection. Default 15.
    pub retries: u32,
    /// Like `retries`, for a connection that the application has released. Also limits how often the interval
    /// of its window probes doubles, whether or not the peer answers them (RFC 6429).
    /// Default `None`: no smaller limit.
    pub orphan_retries: Option<u32>,
    /// Number of segments above a hole at which the hole counts as lost, if no reordering is known on the
    /// path (RFC 5681 section 3.2; Linux: `tcp_reordering`). 1 to 300, default 3.
    pub dup_thresh: u32,
    /// Minimum time between two answers of a connection to stray segments: empty segments outside the window,
    /// other reasons for challenge ACKs, and repeated SYNs together (RFC 5961 section 7 asks for a limit;
    /// Linux: `tcp_invalid_ratelimit`). With `handshake_timers` it is at most 50 ms for repeated SYNs.
    /// Default 500 ms.
    pub challenge_interval: Duration,
    /// Duration of FIN-WAIT-2 after the application has released the connection. Default 60 s.
    pub fin_wait_2_timeout: Duration,
    /// Path-MTU discovery by probing.
    pub mtu_probing: MtuProbing,
    /// Payload size at which a search begins, and which is used while large packets vanish, bytes (RFC 4821
    /// section 7.2; Linux: `tcp_base_mss`). 88 or more, default 1024.
    pub base_mss: u16,
    /// Maximum MSS to offer and to use, bytes, 88 or more. Default `None`: limited by the MTU.
    pub max_segment: Option<u16>,
    /// Treatment of urgent data.
    pub urgent: UrgentPolicy,
    /// Set PSH on the last segment of every burst of several segments, in addition to the ends of writes.
    /// Linux does so since 5.4 with segmentation offload. Default off.
    pub push_bursts: bool,
    /// IP hop limit. 1..=255, default 64.
    pub hop_limit: u8,
    /// DSCP of sent packets. 0..=63, default 0.
    pub dscp: u8,
    /// Up to six timeouts in a row do not double the timeout of a thin stream: fewer than four segments are
    /// outstanding and nothing more is to be sent (Linux: `TCP_THIN_LINEAR_TIMEOUTS`). Games, terminals and
    /// the ends of responses are thin. Default off.
    pub thin_stream: bool,
    /// Algorithm of loss detection. Default `Rack`.
    pub loss_detection: LossDetection,
    /// Begin a connection over a known path with the remembered facts (RFC 9040). Default off.
    ///
    /// The connection uses the remembered variation of the round-trip time. Its first window is the bytes
    /// that one flight has carried, or half of the path's capacity without a queue if that is more. Above 64
    /// segments this capacity limits the window. All connections of the path share this window. The window is
    /// paced, and reduced if its losses exceed what chance explains. An `initial_window` above ten follows
    /// the same rules on a known path.
    pub path_start: bool,
    /// Early retransmissions of a SYN or SYN-ACK on a path with a remembered round-trip time, at most three.
    /// The first leaves after one and a half times that time and at least 50 ms. Each later one doubles the
    /// previous wait, while that wait is shorter than the ordinary timeout. They do not count as retries. The
    /// ordinary schedule begins after them; an unknown path has only that. Default off.
    pub handshake_timers: bool,
    /// Send every SYN and SYN-ACK twice. Default `None`.
    pub handshake_copies: Option<HandshakeCopies>,
    /// The mechanisms beyond plain TCP.
    pub mechanisms: MechanismConfig,
    /// Makes literals end with `..`, so that releases can add fields.
    #[doc(hidden)]
    pub non_exhaustive: (),
}

impl Default for TcpConfig {
    fn default() -> Self {
        TcpConfig {
            congestion: CongestionAlgorithm::Cubic,
            share_path: false,
            initial_window: 10,
            rto: RtoConfig::LINUX,
            send_buffer: BufferConfig { initial: 256 << 10, max: 4 << 20 },
            receive_buffer: BufferConfig { initial: 128 << 10, max: 6 << 20 },
            window: WindowRules::default(),
            timestamps: true,
            sack: true,
            window_scaling: true,
            ecn: EcnMode::Passive,
            nodelay: false,
            delack_max: Duration::from_millis(40),
            pacing: None,
            slow_start_after_idle: true,
            keepalive: None,
            user_timeout: None,
            syn_retries: 6,
            syn_linear_retries: 0,
            synack_retries: 5,
            retries: 15,
            orphan_retries: None,
            dup_thresh: 3,
            challenge_interval: Duration::from_millis(500),
            fin_wait_2_timeout: Duration::from_secs(60),
            mtu_probing: MtuProbing::OnBlackHole,
            base_mss: 1024,
            max_segment: None,
            urgent: UrgentPolicy::OutOfBand,
            push_bursts: false,
            hop_limit: 64,
            dscp: 0,
            thin_stream: false,
            loss_detection: LossDetection::Rack,
            path_start: false,
            handshake_timers: false,
            handshake_copies: None,
            mechanisms: MechanismConfig::default(),
            non_exhaustive: (),
        }
    }
}

impl TcpConfig {
    /// Checks the documented ranges of the fields; the error names the first field that is out of its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let refuse = |key, value: alloc::string::String, range| Err(ConfigError { key, value, range });
        if !(1..=64).contains(&self.initial_window) {
            return refuse("initial_window", self.initial_window.to_string(), "1 to 64 segments");
        }
        self.rto.validate()?;
        if self.share_path && self.congestion != CongestionAlgorithm::Bbr {
            return refuse("share_path", self.congestion.to_string(), "congestion control bbr");
        }
        if self.delack_max > Duration::from_millis(500) {
            return refuse("delack_max", alloc::format!("{:?}", self.delack_max), "0 to 500 ms");
        }
        if self.syn_linear_retries > 10 {
            return refuse("syn_linear_retries", self.syn_linear_retries.to_string(), "0 to 10");
        }
        if let Some(gap) = self.handshake_copies.map(|copies| copies.gap).filter(|gap| gap.as_secs() > 0) {
            return refuse("gap", alloc::format!("{gap:?}"), "0 to 999 ms");
        }
        self.mechanisms.validate()?;
        if self.dscp > 63 {
            return refuse("dscp", self.dscp.to_string(), "0 to 63");
        }
        if self.hop_limit == 0 {
            return refuse("hop_limit", "0".to_string(), "1 to 255");
        }
        for (key, value) in [("syn_retries", self.syn_retries), ("synack_retries", self.synack_retries)] {
            if !(1..=127).contains(&value) {
                return refuse(key, value.to_string(), "1 to 127");
            }
        }
        for (key, buffer) in [("send_buffer", self.send_buffer), ("receive_buffer", self.receive_buffer)] {
            if buffer.initial < 2048 || buffer.max < buffer.initial || buffer.max > 1 << 30 {
                return refuse(
                    key,
                    alloc::format!("{} to {}", buffer.initial, buffer.max),
                    "2 KiB to 1 GiB, initial not above max",
                );
            }
        }
        if !(1..=300).contains(&self.dup_thresh) {
            return refuse("dup_thresh", self.dup_thresh.to_string(), "1 to 300 segments");
        }
        if self.base_mss < 88 {
            return refuse("base_mss", self.base_mss.to_string(), "88 to 65535 bytes");
        }
        if self.max_segment.is_some_and(|mss| mss < 88) {
            return refuse("max_segment", alloc::format!("{:?}", self.max_segment), "88 to 65495 bytes");
        }
        Ok(())
    }
}

/// A copy of every SYN and SYN-ACK (Gentle Aggression section 8.4.1). A loss in the handshake costs a timeout
/// of a second, a copy only 60 bytes. The copy of a SYN carries neither data nor a cookie, so that it
/// delivers no request twice. A planner sends copies only if the gain is worth it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HandshakeCopies {
    /// Time between original and copy. 0..=999 ms, default 0.
    pub gap: Duration,
    /// Put the data and the cookie into the copy of a SYN too, if the path has delivered such a SYN before.
    /// Original and copy open one connection. But a copy that arrives after that connection is forgotten
    /// opens another, so use this only for servers with a [replay window](crate::fast_open::ReplayWindow) or
    /// for requests that may be repeated (RFC 7413 section 6.1). Default off.
    pub with_data: bool,
    /// Makes literals end with `..`, so that releases can add fields.
    #[doc(hidden)]
    pub non_exhaustive: (),
}

/// The mechanisms of a connection beyond plain TCP.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MechanismConfig {
    /// Probes that turn the timeout of a lost tail into a fast recovery. Default `RackTlp`.
    pub reactive: Reactive,
    /// Parity in addition to the data, if the peer agrees. Default `None`.
    pub corrective: Option<CorrectiveConfig>,
    /// Data sent twice, if the peer agrees. Default `None`.
    pub proactive: Option<ProactiveConfig>,
    /// Planner that decides for each flight how parity and copies are used. Default `None`: `corrective` and
    /// `proactive` decide.
    pub planner: Option<PlannerConfig>,
    /// Makes literals end with `..`, so that releases can add fields.
    #[doc(hidden)]
    pub non_exhaustive: (),
}

impl MechanismConfig {
    /// Checks the documented ranges of the fields; the error names the first field that is out of its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.corrective.map_or(Ok(()), |corrective| corrective.validate())?;
        self.proactive.map_or(Ok(()), |proactive| proactive.validate())?;
        self.planner.map_or(Ok(()), |planner| planner.validate())?;
        #[cfg(feature = "historical")]
        if let Reactive::Paper(paper) = self.reactive
            && !(1..=2).contains(&paper.max_probes)
        {
            let value = paper.max_probes.to_string();
            return Err(ConfigError { key: "max_probes", value, range: "1 or 2" });
        }
        Ok(())
    }
}

/// Parameters of an active open in addition to the destination.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ConnectConfig {
    /// The connection.
    pub tcp: TcpConfig,
    /// Local address and port; port 0 or `None` lets the stack choose.
    pub local: Option<SocketAddr>,
    /// Fast Open. With it data of [`crate::Stack::connect_with_data`] can reach the server's application
    /// **more than once**. Default `None`.
    pub fast_open: Option<FastOpenConnect>,
    /// Makes literals end with `..`, so that releases can add fields.
    #[doc(hidden)]
    pub non_exhaustive: (),
}

impl ConnectConfig {
    /// Checks the documented ranges of the fields; the error names the first field that is out of its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.tcp.validate()?;
        self.fast_open.as_ref().map_or(Ok(()), FastOpenConnect::validate)
    }
}

/// Condition for answering with a SYN cookie instead of keeping a half-open connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum SynCookies {
    /// Never: SYNs beyond the limit are dropped.
    Off,
    /// When the half-open table is full.
    #[default]
    UnderFlood,
    /// Always.
    Always,
}

/// Parameters of a listener in addition to its address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListenConfig {
    /// Configuration of its connections.
    pub tcp: TcpConfig,
    /// Limit of completed connections that wait for `accept`. Default 1024.
    pub backlog: usize,
    /// Limit of connections in SYN-RECEIVED. Unless SYN cookies are off, connections that replace a TIME-WAIT
    /// may use as many again. Default 4096.
    pub max_half_open: usize,
    /// SYN cookies.
    pub syn_cookies: SynCookies,
    /// Number of times that the SYN-ACK's timer must fire before an acknowledgement without data completes
    /// the handshake (Linux: `TCP_DEFER_ACCEPT`). So an accepted connection has data to read. Default 0:
    /// every acknowledgement completes it.
    pub defer_accept: u8,
    /// Fast Open. With it the data of an accepted connection may be a repetition. Default `None`.
    pub fast_open: Option<FastOpenListen>,
    /// Makes literals end with `..`, so that releases can add fields.
    #[doc(hidden)]
    pub non_exhaustive: (),
}

impl ListenConfig {
    /// Checks the documented ranges of the fields; the error names the first field that is out of its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.tcp.validate()?;
        self.fast_open.as_ref().map_or(Ok(()), FastOpenListen::validate)
    }
}

impl Default for ListenConfig {
    fn default() -> Self {
        ListenConfig {
            tcp: TcpConfig::default(),
            backlog: 1024,
            max_half_open: 4096,
            syn_cookies: SynCookies::UnderFlood,
            defer_accept: 0,
            fast_open: None,
            non_exhaustive: (),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fast_open::ReplayWindow;

    #[test]
    fn timeouts_outside_their_ranges_are_refused_by_name() {
        let refused = |rto| TcpConfig { rto, ..TcpConfig::default() }.validate().map_err(|error| error.key);
        let (linux, ms) = (RtoConfig::LINUX, Duration::from_millis);
        for valid in [linux, RtoConfig::RFC6298, RtoConfig { max: ms(1000), min: ms(1), ..linux }] {
            assert_eq!(refused(valid), Ok(()), "{valid:?}");
        }
        for (rto, key) in [
            (RtoConfig { var_floor: ms(1001), ..linux }, "rto.var_floor"),
            (RtoConfig { min: Duration::ZERO, ..linux }, "rto.min"),
            (RtoConfig { min: ms(121_000), ..linux }, "rto.min"),
            (RtoConfig { max: ms(100), ..linux }, "rto.max"),
            (RtoConfig { max: ms(241_000), ..linux }, "rto.max"),
            (RtoConfig { initial: ms(121_000), ..linux }, "rto.initial"),
        ] {
            assert_eq!(refused(rto), Err(key), "{rto:?}");
        }
        let config = TcpConfig { rto: RtoConfig { min: ms(2000), ..linux }, ..TcpConfig::default() };
        let text = config.validate().unwrap_err().to_string();
        assert_eq!(text, "rto.min: 2s is out of range; use 1 ms to 1 s");
    }

    #[test]
    fn fast_open_outside_its_ranges_is_refused_by_name() {
        let connect = |syn_parts| {
            let fast_open = Some(FastOpenConnect { syn_parts, ..FastOpenConnect::default() });
            ConnectConfig { fast_open, ..ConnectConfig::default() }.validate().map_err(|error| error.key)
        };
        assert_eq!([0, 1, 4, 5].map(connect), [Err("syn_parts"), Ok(()), Ok(()), Err("syn_parts")]);
        let one_time = Some(FastOpenListen { one_time: true, ..FastOpenListen::default() });
        let one_time = ListenConfig { fast_open: one_time, ..ListenConfig::default() }.validate();
        assert_eq!(one_time.is_ok(), cfg!(feature = "one-time-cookies"), "{one_time:?}");
        let listen = |lifetime, entries| {
            let replay_window = Some(ReplayWindow { lifetime: Duration::from_secs(lifetime), entries });
            let fast_open = Some(FastOpenListen { replay_window, ..FastOpenListen::default() });
            ListenConfig { fast_open, ..ListenConfig::default() }.validate().map_err(|error| error.key)
        };
        assert_eq!((listen(1, 1), listen(86_400, 1 << 24)), (Ok(()), Ok(())));
        let (lifetime, entries) = (Err("replay_window.lifetime"), Err("replay_window.entries"));
        assert_eq!((listen(0, 1), listen(86_401, 1)), (lifetime, lifetime));
        assert_eq!((listen(1, 0), listen(1, (1 << 24) + 1)), (entries, entries));
    }

    #[test]
    fn congestion_control_reads_what_it_prints() {
        for algorithm in [
            CongestionAlgorithm::Cubic,
            CongestionAlgorithm::Reno,
            CongestionAlgorithm::Bbr,
            CongestionAlgorithm::Fixed(14_600),
        ] {
            assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
        }
        for text in ["", "vegas", "fixed", "fixed:", "fixed:-1", "Cubic"] {
            assert_eq!(text.parse::<CongestionAlgorithm>(), Err(UnknownCongestion), "{text}");
        }
    }
}

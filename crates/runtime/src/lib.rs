//! A tokio-like API for brisk's TCP.
//!
//! | module | content |
//! |---|---|
//! | `attach` | opening the device that a user named (feature `packet-io`, Linux) |
//! | [`channel`] | [`ChannelDevice`](channel::ChannelDevice): packets of a tunnel through channels |
//! | [`cores`] | [`Cores`]: a thread with its own tokio runtime for each core; the stacks of an endpoint run on them |
//! | [`endpoint`] | [`Endpoint`]: a TCP host on a device, driven by tasks of tokio |
//! | [`stream`] | [`TcpStream`]: a connection |
//! | [`forwarder`] | [`Forwarder`]: the program decides about each connection before the stack answers |
//! | [`hedge`] | [`HedgedStream`]: a request over Fast Open, with a second connection as a backup |
//! | `stream::split` | the two halves of a stream |
//! | [`listener`] | [`TcpListener`] |
//! | [`memory`] | two endpoints joined by an emulated link |
//! | [`profile`] | [`Profile`](profile::Profile): a set of mechanisms by name |
//! | [`prefix`] | an address with the length of its network |
//! | [`socket`] | [`TcpSocket`]: the configuration of a connection or listener before it opens |
//!
//! Names and meanings follow `tokio::net`. The main difference: a connection belongs to an [`Endpoint`], not
//! to the kernel. An endpoint is a TCP host with its own addresses. The page `docs/library/tokio.md` of the
//! repository lists the other differences.
//!
//! The runtime depends on no operating system: packets come and go through a [`Device`], which a program may
//! implement itself. With the feature `packet-io` it opens Linux devices by name and uses Linux timers.
//!
//! Two hosts in one process, as in `examples/two_endpoints.rs`:
//!
#![doc = concat!("```\n", include_str!("../examples/two_endpoints.rs"), "```")]
#![forbid(unsafe_code)]

#[cfg(all(feature = "packet-io", target_os = "linux"))]
pub mod attach;
pub mod channel;
mod clock;
mod connection;
pub mod cores;
mod driver;
pub mod endpoint;
mod error;
mod exchange;
pub mod forwarder;
pub mod hedge;
#[cfg(any(feature = "axum", feature = "hyper"))]
mod http;
pub mod listener;
#[cfg(feature = "tracing")]
mod log;
pub mod memory;
mod observer;
pub mod prefix;
pub mod profile;
mod shards;
mod shared;
pub mod socket;
pub mod stream;
mod timer;
mod waiters;

pub use brisk_device::{self as device, Counters, Device};
pub use brisk_link as link;
#[cfg(all(feature = "packet-io", target_os = "linux"))]
pub use brisk_packet_io::{self as packet_io, DeviceSpec};
pub use brisk_tcp::config::{CongestionAlgorithm, FastOpenConfig, KeepaliveConfig, SynCookies};
pub use brisk_tcp::connection::ConnStats;
pub use brisk_tcp::error::CloseReason;
pub use brisk_tcp::error::ImportError;
pub use brisk_tcp::event::{Lifecycle, LifecycleEvent, Observation};
pub use brisk_tcp::fast_open::{self, FastOpenConnect, FastOpenListen, FastOpenOutcome, KeySource};
pub use brisk_tcp::path::PathFacts;
pub use brisk_tcp::stack::{ConnId, FourTuple, StackStats};
pub use brisk_tcp::{self as tcp, time};
pub use brisk_tcp::{ConnectConfig, ListenConfig, Seed, StackConfig, TcpConfig};
pub use cores::Cores;
pub use endpoint::{Builder, Endpoint};
pub use error::close_reason;
pub use forwarder::{ConnectRequest, Forwarder};
pub use hedge::{HedgedHandle, HedgedStream};
pub use listener::TcpListener;
pub use prefix::Prefix;
pub use socket::TcpSocket;
pub use stream::split::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, WriteHalf};
pub use stream::{StreamHandle, TcpStream};

/// Runs the code of the guide to the library as tests.
#[cfg(doctest)]
mod guide {
    #[doc = include_str!("../../../docs/library/README.md")]
    struct ChooseALayer;
    #[doc = include_str!("../../../docs/library/first-program.md")]
    struct FirstProgram;
    #[doc = include_str!("../../../docs/library/own-device.md")]
    struct OwnDevice;
    #[doc = include_str!("../../../docs/library/tunnel.md")]
    struct Tunnel;
    #[doc = include_str!("../../../docs/library/testing.md")]
    struct Testing;
    #[doc = include_str!("../../../docs/library/fast-open.md")]
    struct FastOpen;
    #[doc = include_str!("../../../docs/library/controller.md")]
    struct Controller;
    #[doc = include_str!("../../../docs/library/hyper-and-tls.md")]
    struct HyperAndTls;
    #[doc = include_str!("../../../docs/library/tuning.md")]
    struct Tuning;
}

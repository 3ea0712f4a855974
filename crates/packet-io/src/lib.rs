//! Linux devices that carry brisk's packets, behind the trait of [`brisk_device`].
//!
//! | module | content |
//! |---|---|
//! | [`spec`] | [`DeviceSpec`]: the grammar of `--device` |
//! | [`tun`] | a Linux TUN, with segmentation and checksum offload where the kernel supports it |
//! | [`udp`] | TCP inside UDP: needs no privilege, passes every NAT |
//! | [`packet`] | native TCP on an address of the host, through a packet socket |
//! | [`xdp`] | native TCP on an address of the host, through AF_XDP |
//! | [`netns`] | network namespaces: open, create, run a closure inside |
//! | [`interface`] | addresses, MTU and routes of a network interface |
//! | [`realtime`] | waiting for a due time with microsecond precision |
//! | [`share`] | the share of the clients that the stack serves while the kernel serves the others |
//! | [`takeover`] | a process that takes a served port over from an earlier process |
//! | [`sockopt`] | options of the kernel's sockets, by number |
//! | [`privileges`] | errors with advice for a user who lacks a capability |
//!
//! A device has neither TCP state nor a clock. It moves packets, cuts super-packets that the kernel cannot
//! cut, and completes partial checksums. All unsafe code of production programs is in this crate.

#[cfg(not(target_os = "linux"))]
compile_error!(
    "brisk-packet-io drives Linux devices (TUN, UDP_SEGMENT, network namespaces) and builds on Linux only"
);

mod bpf;
mod buffers;
mod headers;
pub mod inherited;
pub mod interface;
pub mod message;
pub mod netns;
pub mod packet;
pub mod privileges;
mod queue_program;
mod reactor;
pub mod realtime;
mod routes;
pub mod share;
pub mod sockopt;
pub mod spec;
pub mod takeover;
#[cfg(test)]
mod testing;
mod timer;
pub mod tun;
pub mod udp;
mod uring;
mod vnet;
pub mod xdp;

pub use brisk_device::{
    Capabilities, ChecksumState, Counters, Device, Gathered, MAX_SUPER, ReturnRoute, RxMeta, TxMeta,
};
pub use privileges::OpenError;
pub use spec::{DeviceSpec, SpecError};
pub use timer::SystemTimer;

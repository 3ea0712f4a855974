//! A C library through which the real packetdrill drives our stack, in virtual time.
//!
//! ```text
//! LD_PRELOAD=libbrisk_conformance.so packetdrill --so_filename=libbrisk_conformance.so \
//!     --so_flags='initial_window=4' script.pkt
//! ```
//!
//! packetdrill loads the library, calls `packetdrill_interface_init`, and from then on makes its system
//! calls through a table of 32 functions instead of the kernel: sockets, the packets in both
//! directions, and the clock. The same library stands in `LD_PRELOAD` because three calls go past that
//! table (`close` at exit, `getsockopt` for `TCP_INFO`, `sendfile`).
//!
//! | module | what |
//! |---|---|
//! | `abi` | everything C: the table, the caller's memory, the preloaded symbols; all `unsafe` of the crate |
//! | `world` | the lock, the clock (virtual or real), and callers that sleep |
//! | [`live`] | the same calls in real time on a device, for `brisk-conformance-dut` |
//! | `host` | the stack, the packets that left it, the descriptors |
//! | `socket` | what a socket is, and its calls |
//! | `ready` | `poll` and `epoll` |
//! | `options` | `setsockopt` and `getsockopt` |
//! | `tcp_info` | `struct tcp_info` |
//! | `usage` | how long a connection was busy, and what held it up |
//! | `error_queue` | time stamps of sent bytes, completions of `MSG_ZEROCOPY`, ICMP errors |
//! | `arrivals` | what sockets take from packets themselves: saved SYNs, hop limits, ICMP errors |
//! | `sysctl` | the settings of the network namespace |
//! | `flags` | `--so_flags` |
//!
//! Time is virtual: it advances in `usleep`, by a microsecond with each `gettimeofday`, and from timer to
//! timer in `netdev_receive`. A caller on another thread that waits for something sleeps in earnest (that
//! is how packetdrill recognises it), and the clock stands still until a woken caller has returned.

#![deny(unsafe_code)]

mod abi;
mod arrivals;
mod calls;
mod errno;
mod error_queue;
mod flags;
mod host;
pub mod live;
mod options;
mod ready;
mod socket;
mod sysctl;
mod tcp_info;
mod usage;
mod world;

pub use errno::Errno;

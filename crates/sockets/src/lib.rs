//! Linux's socket calls on top of brisk's stack.
//!
//! This crate has the calls of a Linux TCP socket, from `socket()` to `epoll_wait()` and the error queue,
//! with Linux's results and error numbers. Packet scripts (`brisk-script`) and the library for packetdrill
//! (`brisk-conformance`) use it.
//!
//! | module | content |
//! |---|---|
//! | [`calls`] | the calls, and how long they block |
//! | [`control`] | control messages as bytes |
//! | `world` | the lock, the virtual clock, and callers that sleep |
//! | `host` | the stack, the packets that left it, the descriptors |
//! | `socket` | a socket and its calls |
//! | `ready` | `poll` and `epoll` |
//! | `epoll` | the watches of an epoll descriptor |
//! | `options` | `setsockopt` and `getsockopt` |
//! | `tcp_info` | `struct tcp_info` |
//! | `usage` | the busy time of a connection, by the event that it waited for |
//! | `error_queue` | time stamps of sent bytes, completions of `MSG_ZEROCOPY` |
//! | `host::arrivals` | data that sockets take from packets: ECN counts, ICMP errors |
//! | [`settings`] | the settings of a host, by keys or by Linux's names |
//! | `sysctl` | the settings of the network namespace |
//! | `flags` | the settings as one line of text |

#![forbid(unsafe_code)]

pub mod calls;
pub mod control;
mod epoll;
mod errno;
mod error_queue;
mod flags;
mod host;
mod options;
mod ready;
pub mod settings;
mod socket;
mod sysctl;
mod tcp_info;
mod usage;
mod world;

pub use epoll::Control as EpollControl;
pub use errno::{Answer, Errno};
pub use flags::SoFlags;
pub use host::{FIRST_FD, Host};
pub use socket::{Control, Received};
pub use world::VirtualWorld;

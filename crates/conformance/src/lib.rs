//! A C library through which the original packetdrill controls brisk's stack, in virtual time.
//!
//! ```text
//! LD_PRELOAD=libbrisk_conformance.so packetdrill --so_filename=libbrisk_conformance.so \
//!     --so_flags='initial_window=4' script.pkt
//! ```
//!
//! packetdrill loads the library, calls `packetdrill_interface_init`, and then makes its system calls through
//! a table of 32 functions instead of the kernel: sockets, the packets in both directions, and the clock. The
//! same library must be in `LD_PRELOAD`, because three calls do not use the table (`close` at exit,
//! `getsockopt` for `TCP_INFO`, `sendfile`).
//!
//! [`brisk_sockets`] implements the calls. This crate is the C interface: the table, the caller's memory, the
//! preloaded symbols, and all `unsafe` code of the two crates.
//!
//! Time is virtual: it advances in `usleep`, by a microsecond with each `gettimeofday`, and from timer to
//! timer in `netdev_receive`. A caller that blocks on another thread sleeps in real time, because packetdrill
//! checks this. When a caller wakes, the clock stops until it has recorded the time of its return, at most
//! 200 ms of real time.

#![deny(unsafe_code)]

mod abi;

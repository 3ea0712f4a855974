//! The device under test from outside: calls over gRPC on one side, segments on an Ethernet on the other.
//!
//! | module | what |
//! |---|---|
//! | `bench` | the cable and the program |
//! | `client` | the calls |
//! | `peer` | the segments |
//! | `calls` | each call, its errors, calls beside each other |
//! | `opening` | handshakes, refusals, backlog, ICMP errors |
//! | `sending` | retransmission, windows, probes, limits |
//! | `receiving` | what is acceptable, what is told about it |
//! | `closing` | the end, in order and out of it |
//!
//! Needs root (network namespaces, packet sockets) and `ip`; a test that lacks them says `skipped` and
//! passes.

mod bench;
mod calls;
mod client;
mod closing;
mod opening;
mod peer;
mod receiving;
mod sending;

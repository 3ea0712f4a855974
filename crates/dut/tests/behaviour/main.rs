//! The device under test, tested from outside: calls over gRPC on one side, segments on an Ethernet on the
//! other.
//!
//! | module | content |
//! |---|---|
//! | `bench` | the network and the program |
//! | `client` | the calls |
//! | `peer` | the segments |
//! | `calls` | each call, its errors, concurrent calls |
//! | `opening` | handshakes, refusals, backlog, ICMP errors |
//! | `sending` | retransmission, windows, probes, limits |
//! | `receiving` | acceptable and unacceptable segments, and the answers |
//! | `closing` | the end of a connection, normal or by a reset |
//!
//! The tests need root (network namespaces, packet sockets) and `ip`; without these a test prints `skipped`
//! and passes.

mod bench;
mod calls;
mod client;
mod closing;
mod opening;
mod peer;
mod receiving;
mod sending;

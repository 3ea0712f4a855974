//! Any bytes at every input of brisk, with the invariants that must hold.
//!
//! Each target is a plain function over bytes that panics if an invariant is violated, so the same code runs
//! under `cargo fuzz` (nightly, feature `libfuzzer`), over the corpora in `cargo test` (stable) and in a
//! debugger.
//!
//! | target | input | invariant |
//! |---|---|---|
//! | [`segment`] | a packet | parsing succeeds or fails; a parsed packet is written and parsed as the same |
//! | [`options`] | a TCP option area | the same for the options; the encoder stays within 40 bytes |
//! | [`link`] | text of the link grammar | a valid link prints as text that parses as the same link; the link runs |
//! | [`script`] | text of a packet script | parsing and running it end, with a verdict or an error |
//! | [`parity`] | parity segments at the decoder of Corrective | a repair brings the missing range, with the right bytes |
//! | [`capture`] | a packet capture | the analysis ends, with consistent figures or one line of error |
//! | [`handshake`] | messages on the hop between two gateways | changed messages are refused, others accepted |
//! | [`proxy`] | the PROXY header in front of a connection | the same result in any pieces; addresses are written and read as the same |
//! | [`client_hello`] | the first bytes of a TLS client | the same result in any pieces; the length is bounded |
//! | [`settings`] | text of a gateway's configuration | settings, or an error of one line that names a line |
//! | [`connection`] | calls, time and forged segments at one stack | bounded memory, work and wake-ups |
//! | [`controller`] | acknowledgements of any kind to connections with BBR, with a shared path or not | no stall, no window beyond the acknowledged data, a pacing rate within its bounds |
//! | [`pair`] | two honest stacks and a path that does anything except forge | the stream arrives as a prefix, and at the end completely |
//!
//! [`decisions`] reads bytes as decisions, [`watched`] is a stack with checks after every call, [`forge`] is
//! the attacker who sees the traffic, [`seeds`] has the seeds of the corpora, and [`mutate`] mutates them in
//! tests. [`barrage`] is the acceptance test: a million segments to a connection in every state.
//! [`differential`] runs random packet scripts against the stack and the kernel.
//!
//! ```text
//! cargo test -p brisk-fuzz                                              corpora, quick barrage
//! cargo test --profile fuzz -p brisk-fuzz -- --ignored --nocapture      1,000,000 per state, 1,000,000 handshakes
//! cargo run -p brisk-fuzz --example replay connection FILE              one input
//! cargo run -p brisk-fuzz --example write_seeds                         write the corpora again
//! cargo run -p brisk-fuzz --example differential -- --count 100         comparison with the kernel's TCP (root)
//! cargo +nightly fuzz run --features libfuzzer connection               coverage-guided
//! ```

pub mod barrage;
pub mod capture;
pub mod client_hello;
pub mod configs;
pub mod connection;
pub mod controller;
pub mod decisions;
pub mod differential;
pub mod flow;
pub mod forge;
pub mod handshake;
pub mod link;
pub mod mutate;
pub mod options;
pub mod pair;
pub mod parity;
pub mod proxy;
pub mod script;
pub mod seeds;
pub mod segment;
pub mod settings;
pub mod watched;

/// A fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name of the target and of its directory in `corpus/`.
    pub name: &'static str,
    /// Runs one input; panics if an invariant is violated.
    pub run: fn(&[u8]),
}

/// Every target.
pub const TARGETS: [Target; 13] = [
    Target { name: "segment", run: segment::run },
    Target { name: "options", run: options::run },
    Target { name: "link", run: link::run },
    Target { name: "script", run: script::run },
    Target { name: "parity", run: parity::run },
    Target { name: "capture", run: capture::run },
    Target { name: "handshake", run: handshake::run },
    Target { name: "proxy", run: proxy::run },
    Target { name: "client_hello", run: client_hello::run },
    Target { name: "settings", run: settings::run },
    Target { name: "connection", run: connection::run },
    Target { name: "controller", run: controller::run },
    Target { name: "pair", run: pair::run },
];

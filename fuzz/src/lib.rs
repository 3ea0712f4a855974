//! Any bytes, at every door of brisk: what must hold whatever arrives.
//!
//! Each target is a plain function over bytes that panics when something is wrong, so that the same
//! code runs under `cargo fuzz` (nightly, feature `libfuzzer`), over the corpora in `cargo test`
//! (stable) and in a debugger.
//!
//! | target | input | must hold |
//! |---|---|---|
//! | [`segment`] | a packet | parsing refuses or answers; what was read is written and read as the same |
//! | [`options`] | a TCP option area | as above, for the options; the encoder stays within 40 bytes |
//! | [`link`] | text of the link grammar | what reads prints as text that reads as itself; the link runs |
//! | [`script`] | text of a packet script | reading and running it end, with a verdict or an error |
//! | [`parity`] | parity segments at the decoder of Corrective | a repair brings what was missing, and the true bytes |
//! | [`capture`] | a packet capture | reading ends, with figures that fit together or one line of error |
//! | [`handshake`] | what is said on the hop between two gateways | what is changed is refused, what is not is accepted |
//! | [`proxy`] | the PROXY header in front of a connection | the same in any pieces; addresses are written and read as the same |
//! | [`client_hello`] | the first bytes of a TLS client | the same in any pieces; it ends within its bound |
//! | [`settings`] | text of a gateway's configuration | settings, or an error of one line that names a line |
//! | [`connection`] | calls, time and forged segments at one stack | bounded memory, work and wake-ups |
//! | [`controller`] | acknowledgements of any kind to connections with BBR, which share a path or do not | no stall, no window beyond what was acknowledged, a pacing rate within its bounds |
//! | [`pair`] | two honest stacks and a path between them that may do anything but forge | the stream arrives as a prefix, and in the end whole |
//!
//! [`decisions`] reads bytes as decisions, [`watched`] is a stack whose every answer is checked,
//! [`forge`] is the attacker who sees the traffic, [`seeds`] is where the corpora come from and
//! [`mutate`] what the tests make of them. [`barrage`] is the acceptance: a million segments at a
//! connection in every state. [`differential`] plays random packet scripts to the stack and to the kernel.
//!
//! ```text
//! cargo test --manifest-path fuzz/Cargo.toml                                       corpora, quick barrage
//! cargo test --release --manifest-path fuzz/Cargo.toml -- --ignored --nocapture    1,000,000 per state
//! cargo test --release --manifest-path fuzz/Cargo.toml --test handshakes -- --ignored --nocapture   1,000,000 handshakes
//! cargo run --manifest-path fuzz/Cargo.toml --example replay connection FILE       one input
//! cargo run --manifest-path fuzz/Cargo.toml --example write_seeds                  corpora anew
//! cargo run --manifest-path fuzz/Cargo.toml --example differential -- --count 100  the kernel's TCP beside ours (root)
//! cargo +nightly fuzz run --features libfuzzer connection                          coverage-guided
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

/// A fuzz target by name.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, and that of its directory in `corpus/`.
    pub name: &'static str,
    /// Runs one input; panics if something is wrong.
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

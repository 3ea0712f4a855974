//! Experiments: comparisons in virtual time, links in real time, a demonstration.
//!
//! | module | content |
//! |---|---|
//! | [`sizes`] | response sizes: one size or a distribution |
//! | [`compare`] | many short transfers over one link, once for each compared set of mechanisms (an *arm*) |
//! | [`scenario`] | the surroundings of a transaction: several paths, a second hop, other flows on the link |
//! | [`statistics`] | quantiles, means and their confidence intervals |
//! | [`demo`] | a gateway pair over an emulated link, under load, on one machine |
//! | [`diagram`] | the packets of a simulated connection as a diagram |
//! | [`pages`] | pages of many objects: from a HAR or another recording, or created from a seed |
//! | [`plan`] | the experiments of two papers, with the published numbers: run, stored, checked, reported |
//! | [`browse`] | a page in a real Chromium over an emulated link |
//! | [`captured`] | traffic from a capture or an access log, and the expected gain of each mechanism for it |
//! | [`real`] | the kernel's TCP, a connection pool and gateways, in real time over the same link |
//! | [`row`] | one transaction as a row of CSV |
//! | [`mod@bench`] | processor time of both ends with the kernel's TCP and with brisk's |
//! | [`either_tcp`] | one interface to the kernel's TCP and to brisk's |
//! | [`emulate`] | a link in real time between two devices |

#![forbid(unsafe_code)]

pub mod bench;
pub mod browse;
pub mod captured;
pub mod compare;
pub mod demo;
pub mod diagram;
pub mod either_tcp;
pub mod emulate;
mod fixture;
mod http;
pub mod pages;
pub mod plan;
pub mod real;
pub mod row;
pub mod scenario;
pub mod sizes;
pub mod statistics;
mod text_table;

/// Returns a digest of bytes (SipHash-2-4 with a fixed key). It shows that a file or program has changed; it
/// does not protect against forgery.
pub fn digest(bytes: &[u8]) -> u64 {
    siphasher::sip::SipHasher24::new_with_keys(0, 0).hash(bytes)
}

//! Experiments: comparisons in virtual time, links in real time, a demonstration.
//!
//! | module | what it is |
//! |---|---|
//! | [`arms`] | what is compared: sets of mechanisms, by name or written out |
//! | [`sizes`] | how large the responses are: one size or a distribution |
//! | [`compare`] | many short transfers over one link, once for each arm |
//! | [`statistics`] | quantiles, means and bootstrap intervals |
//! | [`demo`] | a gateway pair over an emulated link, under load, on one machine |
//! | [`emulate`] | a link in real time between two devices |

#![forbid(unsafe_code)]

pub mod arms;
pub mod compare;
pub mod demo;
pub mod emulate;
pub mod sizes;
pub mod statistics;

//! The TCP of brisk: sans-IO, deterministic, no clock, no operating system.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod config;
pub mod congestion;
pub mod connection;
pub mod error;
pub mod event;
pub mod mechanism;
pub mod outcome;
pub(crate) mod receive;
pub(crate) mod send;
pub mod seq_ranges;
pub mod stack;
pub mod time;

pub use config::{ConnectConfig, ListenConfig, StackConfig, TcpConfig};
pub use event::Event;
pub use stack::{ConnId, ListenerId, Stack};

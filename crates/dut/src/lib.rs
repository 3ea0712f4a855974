//! A device under test for packetimpact: Linux's socket calls on top of brisk's stack, controlled over gRPC.
//!
//! | module | content |
//! |---|---|
//! | [`messages`] | the messages of the protocol `posix_server` |
//! | [`service`] | the gRPC service |
//! | `answer` | each call: request message, socket calls, response message |
//!
//! The messages are written by hand, so that no other tool than cargo is needed to build this crate.

#![forbid(unsafe_code)]

mod answer;
pub mod messages;
pub mod service;

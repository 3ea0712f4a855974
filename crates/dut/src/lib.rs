//! A device under test for packetimpact: Linux's socket calls on top of our stack, controlled over gRPC.
//!
//! | module | content |
//! |---|---|
//! | [`messages`] | the messages of the protocol `posix_server` |
//! | [`service`] | the gRPC service |
//! | `answer` | each call: request message, socket calls, response message |
//!
//! The messages are written by hand, so that cargo alone can build this crate.

#![forbid(unsafe_code)]

mod answer;
pub mod messages;
pub mod service;

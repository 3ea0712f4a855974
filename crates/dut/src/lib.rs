//! A device under test for packetimpact: Linux's socket calls over our stack, steered over gRPC.
//!
//! | module | what |
//! |---|---|
//! | [`messages`] | the messages of the protocol `posix_server` |
//! | [`service`] | the gRPC service |
//! | `answer` | each call: message in, socket calls, message out |
//!
//! The messages are written by hand, so that nothing but cargo is needed to build this.

#![forbid(unsafe_code)]

mod answer;
pub mod messages;
pub mod service;

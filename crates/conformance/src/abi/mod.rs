//! The C interface: packetdrill's table of calls, the memory of its calls, and the symbols outside the table.
//! All `unsafe` of the crate is here; the rest uses values.
//!
//! The unsafe code relies on the C contract of each call, which is that of the system call of the same name:
//! a pointer and its length describe memory of the caller that lives until the call returns. No pointer
//! outlives its call. Once a call blocks, the memory is used only to write the result.

#![allow(unsafe_code)]

mod memory;
mod message;
// The crate's unit tests must close their own files.
#[cfg(not(test))]
mod preload;
mod raw;
mod slots;
mod table;

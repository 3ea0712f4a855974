//! Everything C: the table that packetdrill calls through, the memory of its calls, and the symbols that
//! go past the table. All `unsafe` of the crate is here; the rest of it sees values.
//!
//! The unsafe code relies on the C contract of each call, the same as for the system call of that
//! name: a pointer and its length describe memory of the caller that lives until the call returns. No
//! pointer outlives its call, and nothing of the caller is read again after the call has begun to wait
//! except to write the answer.

#![allow(unsafe_code)]

mod memory;
mod message;
// The crate's own unit tests shall close their files themselves.
#[cfg(not(test))]
mod preload;
mod raw;
mod slots;
mod table;

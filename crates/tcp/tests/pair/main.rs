//! Two stacks over a virtual wire: what the peers of a brisk stack see of it.

mod closing;
mod fast_open;
mod handshake;
mod harness;
mod hostile;
mod limits;
mod silence;
mod transfer;

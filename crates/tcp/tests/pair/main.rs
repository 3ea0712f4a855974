//! Two stacks over a virtual wire: behaviour as the peers of a brisk stack see it.

mod acknowledgements;
mod closing;
mod congestion;
mod fast_open;
mod gentle;
mod half_open;
mod handshake;
mod harness;
mod hostile;
mod idle;
mod lifecycle;
mod limits;
mod members;
mod memory;
mod moves;
mod mtu;
mod observer;
mod one_sided;
mod path;
mod planner;
mod proactive;
mod requests;
mod shared;
mod silence;
mod transfer;

//! Time as the core sees it: instants that the driver hands in.
//!
//! The core cannot name a clock. Every call that needs to know the time takes `now: Instant`, in
//! microseconds since an origin that the driver chose; the simulator hands in virtual time, the
//! runtime a monotonic clock. The type itself lives in `brisk-wire`, the one crate that the core,
//! the link models and the devices all see.

pub(crate) use brisk_wire::time::micros;
pub use brisk_wire::{Duration, Instant};

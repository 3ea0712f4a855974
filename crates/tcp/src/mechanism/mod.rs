//! The parts of the mechanisms of *Gentle Aggression* that take and return values: Corrective (parity),
//! Proactive (copies), their negotiation, and the planner. The planner decides which redundancy is worth its
//! cost.
//!
//! None of them knows a connection. [`crate::connection`] calls them at fixed points and sends the segments
//! that they request. Reactive needs only the sender, so it is in `connection` too, as a probe timer.

mod capability;
pub(crate) mod corrective;
pub(crate) mod memory;
pub(crate) mod plan;
pub(crate) mod proactive;
pub(crate) mod signal;

pub use capability::{Agreed, GentleOff, GentleOutcome, ParityOff, Profile};
pub(crate) use capability::{Capabilities, accept};
pub use corrective::decoder::Failure;
pub(crate) use corrective::encoder::DueParity;
pub use plan::{Flight, Losses, Plan, Protection, Reason};
pub use proactive::copies::CopiesOff;

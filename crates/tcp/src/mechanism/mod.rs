//! The parts of the mechanisms of *Gentle Aggression* that take and return values: Corrective (parity),
//! Proactive (copies), what both ends agree on, and the planner that decides which redundancy pays.
//!
//! None of them knows a connection. [`crate::connection`] calls them at named points and sends what they ask
//! for. Reactive, which needs nothing but the sender, is there too, as the probe timer of a connection.

mod capability;
pub mod corrective;
pub(crate) mod memory;
pub mod plan;
pub(crate) mod proactive;
pub(crate) mod signal;

pub use capability::{Agreed, GentleOff, GentleOutcome, ParityOff, Profile};
pub(crate) use capability::{Willing, accept};
pub(crate) use corrective::encoder::ParityPlan;
pub use proactive::copies::CopiesOff;

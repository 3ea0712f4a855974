//! The stack against the kernel's: the same random script, played to both, and every difference explained.
//!
//! | module | what it is |
//! |---|---|
//! | `generate` | random scripts of a seed: a sender with a peer behind a bad path, or a receiver |
//! | `record` | the trace of a run as values |
//! | `compare` | the differences between two records |
//! | `explain` | the list of differences that are deliberate |
//! | `judge` | plays a script to both, again if the machine was late, and makes it smaller |

mod compare;
mod draws;
mod explain;
mod generate;
mod judge;
mod record;
mod script;

pub use compare::{Difference, What, compare, lateness};
pub use explain::{Explanation, explain, explanations};
pub use generate::{FIELDS, Kind, generate};
pub use judge::{Verdict, judge, minimise, play_kernel, play_ours};
pub use record::{Deed, Packet, Record, Step};
pub use script::{Event, Script};

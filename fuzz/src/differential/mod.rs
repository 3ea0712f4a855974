//! Comparison with the kernel's stack: both run the same random script, and every difference is explained.
//!
//! | module | content |
//! |---|---|
//! | `generate` | random scripts from a seed: a sender with a peer behind a bad path, or a receiver |
//! | `record` | the trace of a run as values |
//! | `compare` | the differences between two records |
//! | `explain` | the list of deliberate differences |
//! | `judge` | runs a script against both, again if the machine was late, and minimises it |

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
pub use record::{Packet, Reaction, Record, Step};
pub use script::{Event, Script};

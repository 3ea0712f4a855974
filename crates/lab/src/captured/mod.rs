//! Traffic of one's own: what a capture or an access log has, and what each mechanism would do for it.
//!
//! | module | content |
//! |---|---|
//! | [`access_log`] | response sizes from the log of a web server |
//! | [`traffic`] | a capture as a workload over links |
//! | [`estimate`] | the gain of each mechanism with its interval, and what to switch on |

pub mod access_log;
pub mod estimate;
pub mod traffic;

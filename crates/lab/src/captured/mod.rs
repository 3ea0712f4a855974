//! Captured traffic: the workload in a capture or an access log, and the expected gain of each mechanism for
//! it.
//!
//! | module | content |
//! |---|---|
//! | [`access_log`] | response sizes from the log of a web server |
//! | [`traffic`] | a capture as a workload over links |
//! | [`estimate`] | the gain of each mechanism with its interval, and a recommendation |

pub mod access_log;
pub mod estimate;
pub mod traffic;

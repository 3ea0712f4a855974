//! A mechanism as a value, for the parked form of a connection.

use alloc::boxed::Box;
use alloc::vec::Vec;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Mechanism;
use super::paper::Paper;
use super::tlp::Tlp;

/// One of the mechanisms with all that it knows.
#[derive(Debug, Serialize, Deserialize)]
pub enum Snapshot {
    /// Tail loss probes of RFC 8985.
    Tlp(Tlp),
    /// Reactive as in the paper.
    Paper(Paper),
}

impl From<Snapshot> for Box<dyn Mechanism> {
    fn from(snapshot: Snapshot) -> Self {
        match snapshot {
            Snapshot::Tlp(tlp) => Box::new(tlp),
            Snapshot::Paper(paper) => Box::new(paper),
        }
    }
}

pub(crate) fn serialize<S: Serializer>(mechanisms: &[Box<dyn Mechanism>], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(mechanisms.iter().map(|mechanism| mechanism.snapshot()))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Box<dyn Mechanism>>, D::Error> {
    let snapshots: Vec<Snapshot> = Vec::deserialize(from)?;
    Ok(snapshots.into_iter().map(Into::into).collect())
}

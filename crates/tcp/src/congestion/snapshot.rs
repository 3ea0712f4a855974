//! A controller as a value, for the parked form of a connection.

use alloc::boxed::Box;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::CongestionController;
use super::cubic::Cubic;
use super::fixed::Fixed;
use super::reno::Reno;

/// One of the controllers with all that it knows.
#[derive(Debug, Serialize, Deserialize)]
pub enum Snapshot {
    /// CUBIC.
    Cubic(Cubic),
    /// Reno.
    Reno(Reno),
    /// A fixed window.
    Fixed(Fixed),
}

impl From<Snapshot> for Box<dyn CongestionController> {
    fn from(snapshot: Snapshot) -> Self {
        match snapshot {
            Snapshot::Cubic(cubic) => Box::new(cubic),
            Snapshot::Reno(reno) => Box::new(reno),
            Snapshot::Fixed(fixed) => Box::new(fixed),
        }
    }
}

pub(crate) fn serialize<S: Serializer>(
    controller: &impl AsRef<dyn CongestionController>,
    to: S,
) -> Result<S::Ok, S::Error> {
    controller.as_ref().snapshot().serialize(to)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Box<dyn CongestionController>, D::Error> {
    Snapshot::deserialize(from).map(Into::into)
}

//! Both directions of a path, and what their middleboxes know together.

use crate::direction::{Direction, Setting};
use crate::middlebox::Flows;
use crate::parcel::Parcel;
use crate::spec::LinkSpec;
use crate::way::Way;
use alloc::sync::Arc;
use brisk_wire::Instant;

/// A path in both directions. The directions share nothing but the connection table of stateful middleboxes;
/// each has its own bottleneck, loss and generators.
#[derive(Debug)]
pub struct Link<P> {
    /// From the server's side (B) to the client's side (A).
    pub down: Direction<P>,
    /// From the client's side (A) to the server's side (B).
    pub up: Direction<P>,
}

impl<P: Parcel> Link<P> {
    /// A link whose clock begins at zero. `seed` counts, not `spec.seed`: the driver decides what the
    /// description's seed means for its first, second and thousandth run.
    pub fn new(spec: &LinkSpec, seed: u64) -> Self {
        Link::starting_at(spec, seed, Instant::ZERO)
    }

    /// As [`Link::new`], with outages and rate traces counted from `began`: for drivers whose clock runs
    /// already.
    pub fn starting_at(spec: &LinkSpec, seed: u64, began: Instant) -> Self {
        let flows = Flows::wanted_by(&[&spec.down, &spec.up]);
        let [down, up] = settings(seed, flows.as_ref(), began);
        Link { down: Direction::of_link(&spec.down, down), up: Direction::of_link(&spec.up, up) }
    }

    /// Makes this link what [`Link::new`] makes of `spec` and `seed`, in the same storage.
    pub fn renew(&mut self, spec: &LinkSpec, seed: u64) {
        let flows = Flows::wanted_by(&[&spec.down, &spec.up]);
        let [down, up] = settings(seed, flows.as_ref(), Instant::ZERO);
        self.down.renew(&spec.down, down);
        self.up.renew(&spec.up, up);
    }

    /// Hands all packets on the way to `to`, without counting them. Packets that a middlebox holds are not
    /// among them.
    pub fn clear(&mut self, to: &mut impl FnMut(P)) {
        self.down.clear(to);
        self.up.clear(to);
    }

    /// When either direction has something to do next.
    pub fn next_departure(&self) -> Option<Instant> {
        match (self.down.next_departure(), self.up.next_departure()) {
            (Some(down), Some(up)) => Some(down.min(up)),
            (down, up) => down.or(up),
        }
    }
}

/// The share of each direction in the link, the way down first.
fn settings(seed: u64, flows: Option<&Arc<Flows>>, began: Instant) -> [Setting<'_>; 2] {
    [("down", Way::Down), ("up", Way::Up)].map(|(name, way)| Setting { seed, name, way, flows, began })
}

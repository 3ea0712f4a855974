//! Both directions of a path, and the state that their middleboxes share.

use crate::direction::{LinkDirection, Setting};
use crate::middlebox::Flows;
use crate::packet::LinkPacket;
use crate::spec::LinkSpec;
use crate::up_down::Direction;
use alloc::sync::Arc;
use brisk_wire::Instant;

/// A path in both directions. The directions share only the connection table of stateful middleboxes; each
/// has its own bottleneck, loss and generators.
#[derive(Debug)]
pub struct Link<P> {
    /// From the server's side (B) to the client's side (A).
    pub down: LinkDirection<P>,
    /// From the client's side (A) to the server's side (B).
    pub up: LinkDirection<P>,
}

impl<P: LinkPacket> Link<P> {
    /// Returns a link whose clock begins at zero. It uses `seed`, not `spec.seed`: the driver derives the
    /// seed of each run.
    pub fn new(spec: &LinkSpec, seed: u64) -> Self {
        Link::starting_at(spec, seed, Instant::ZERO)
    }

    /// Like [`Link::new`], with outages and rate traces counted from `began`, for drivers whose clock is
    /// already running.
    pub fn starting_at(spec: &LinkSpec, seed: u64, began: Instant) -> Self {
        let flows = Flows::wanted_by(&[&spec.down, &spec.up]);
        let [down, up] = settings(seed, flows.as_ref(), began);
        Link { down: LinkDirection::of_link(&spec.down, down), up: LinkDirection::of_link(&spec.up, up) }
    }

    /// Configures this link like [`Link::new`] with `spec` and `seed`, in the same storage.
    pub fn renew(&mut self, spec: &LinkSpec, seed: u64) {
        let flows = Flows::wanted_by(&[&spec.down, &spec.up]);
        let [down, up] = settings(seed, flows.as_ref(), Instant::ZERO);
        self.down.renew(&spec.down, down);
        self.up.renew(&spec.up, up);
    }

    /// Removes the packets in flight and hands them to `to`, without counting them. Packets that a middlebox
    /// holds are not handed out.
    pub fn clear(&mut self, to: &mut impl FnMut(P)) {
        self.down.clear(to);
        self.up.clear(to);
    }

    /// Returns the time of the next event in either direction.
    pub fn next_departure(&self) -> Option<Instant> {
        match (self.down.next_departure(), self.up.next_departure()) {
            (Some(down), Some(up)) => Some(down.min(up)),
            (down, up) => down.or(up),
        }
    }
}

/// Returns the parameters of each direction, `down` first.
fn settings(seed: u64, flows: Option<&Arc<Flows>>, began: Instant) -> [Setting<'_>; 2] {
    [("down", Direction::Down), ("up", Direction::Up)].map(|(name, direction)| Setting {
        seed,
        name,
        direction,
        flows,
        began,
    })
}

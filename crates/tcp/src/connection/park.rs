//! The parked form of a connection: what an idle one is kept as.
//!
//! A connection that waits for nothing but its peer or its application needs none of its buffers and tables, and most of
//! its counters and timers are zero. It is serialised ([postcard], which writes small numbers in few bytes), and the
//! zeros are squeezed out. Nothing is lost or rounded, so a connection that was parked and woken is the connection that
//! it was; only the spare capacity of its buffers is gone.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::config::TcpConfig;
use crate::connection::{Connection, State};

/// Bytes that one byte of flags tells of.
const GROUP: usize = 8;

/// A connection at rest.
#[derive(Debug)]
pub(crate) struct Parked {
    config: Arc<TcpConfig>,
    squeezed: Box<[u8]>,
}

impl Connection {
    /// True if nothing is in flight, nothing waits to be sent or read, and nothing runs on it that has no parked form:
    /// Corrective, Proactive, the planner, and observation.
    pub(crate) fn may_park(&self) -> bool {
        // A half-open connection has its SYN-ACK in flight, and may wait with it for a minute.
        let waits = match self.state {
            State::SynSent => false,
            State::SynReceived => !self.holds_early(),
            _ => self.tx.scoreboard.is_empty(),
        };
        let has_parked_form =
            self.gentle.active.is_none() && self.gentle.planner.is_none() && self.probes.is_none();
        let holds_nothing = self.tx.queue.is_empty() && self.rx.queue.memory() == 0;
        waits && has_parked_form && holds_nothing && !self.has_events()
    }

    /// True if both are in the same state, in all that is kept of a parked one.
    pub(crate) fn equals(&self, other: &Connection) -> bool {
        let [plain, other] = [self, other].map(postcard::to_allocvec);
        plain.is_ok() && plain == other
    }

    /// The parked form; `None` if the connection [must not be parked](Connection::may_park).
    pub(crate) fn park(&self) -> Option<Parked> {
        let plain = self.may_park().then(|| postcard::to_allocvec(self))?.ok()?;
        Some(Parked { config: Arc::clone(&self.config), squeezed: squeeze(&plain) })
    }
}

impl Parked {
    /// The connection as it was.
    pub(crate) fn wake(&self) -> Box<Connection> {
        let plain = expand(&self.squeezed);
        let mut connection: Box<Connection> =
            postcard::from_bytes(&plain).expect("what was written above can be read");
        connection.config = Arc::clone(&self.config);
        connection
    }
}

/// Leaves out zeros: a byte of flags, then those of the next eight bytes that are not zero.
fn squeeze(plain: &[u8]) -> Box<[u8]> {
    let mut squeezed = Vec::with_capacity(plain.len() + plain.len().div_ceil(GROUP));
    for group in plain.chunks(GROUP) {
        let flags = group.iter().rev().fold(0, |flags, byte| flags << 1 | u8::from(*byte != 0));
        squeezed.push(flags);
        squeezed.extend(group.iter().copied().filter(|byte| *byte != 0));
    }
    squeezed.into_boxed_slice()
}

/// Puts them in again; up to seven more than there were.
fn expand(squeezed: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(squeezed.len() * 3);
    let mut bytes = squeezed.iter().copied();
    while let Some(flags) = bytes.next() {
        plain.extend((0..GROUP).map(|bit| if flags >> bit & 1 == 1 { bytes.next().unwrap_or(0) } else { 0 }));
    }
    plain
}

/// What wakes is what was parked.
#[cfg(test)]
pub(super) fn assert_nothing_is_lost(connection: &Connection) {
    use std::format;
    if let Some(parked) = connection.park() {
        assert_eq!(format!("{:?}", parked.wake()), format!("{connection:?}"));
        assert!(parked.squeezed.len() < 600, "{} bytes", parked.squeezed.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_was_squeezed_out_comes_back(plain in prop::collection::vec(prop_oneof![3 => Just(0u8), 1 => any::<u8>()], 0..100)) {
            let expanded = expand(&squeeze(&plain));
            prop_assert!(expanded.len() < plain.len() + GROUP);
            let (start, rest) = expanded.split_at(plain.len());
            prop_assert_eq!(start, plain.as_slice());
            prop_assert!(rest.iter().all(|byte| *byte == 0));
        }
    }
}

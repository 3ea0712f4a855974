//! Events of the stack: [`Event`] for the application, [`LifecycleEvent`] and [`Observation`] for observers.

use alloc::boxed::Box;

use crate::conn_id::{ConnId, ListenerId};
use crate::connection::ConnStats;
use crate::error::CloseReason;
use crate::four_tuple::FourTuple;

pub use crate::connection::observation::Observation;
pub use crate::outcome::{LossCause, Origin, Repair, UndoCause};
pub use crate::seq_ranges::SeqRange;

/// An event that the application waits for. It is edge-triggered: reported once per change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// The handshake of an active open completed.
    Connected(ConnId),
    /// A connection waits in the accept queue of the listener.
    Incoming(ListenerId),
    /// Bytes, the end of the stream or an error can be read.
    Readable(ConnId),
    /// A write that was refused is possible again.
    Writable(ConnId),
    /// The connection has ended. Received data can still be read. The handle stays valid until
    /// [`crate::Stack::release`].
    Closed(ConnId, CloseReason),
}

/// A change in the life of a connection, even of one that the program has released. Recorded only if
/// `StackConfig::lifecycle` is set.
///
/// Each connection that is established, or that this side opened, ends exactly once, with
/// [`Lifecycle::Closed`] or [`Lifecycle::Failed`]. Before that, there is at most one
/// [`Lifecycle::Established`]. Handshakes that a peer began and did not complete cause no events, because a
/// flood of SYNs would become a flood of events.
/// [`StackStats::handshakes_failed`](crate::stack::StackStats::handshakes_failed) counts them.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct LifecycleEvent {
    /// The connection. The handle is invalid once the program has released it.
    pub conn: ConnId,
    /// Ends of the connection.
    pub ends: FourTuple,
    /// True if this side sent the first SYN.
    pub is_active: bool,
    /// The change.
    pub change: Lifecycle,
    /// Statistics of the connection just after the change. At its end these are the final statistics.
    pub stats: Box<ConnStats>,
}

/// The kind of a change in the life of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Lifecycle {
    /// The handshake is complete. Data of a SYN may have been delivered before.
    Established,
    /// An established connection has ended. If both sides have closed, it ends when it enters TIME-WAIT.
    Closed(CloseReason),
    /// The connection ended before its handshake was complete. This side or the data of a SYN had opened it.
    Failed(CloseReason),
}

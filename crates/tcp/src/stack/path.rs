//! The memory of paths and the connections: a new one is handed what is known, a living one is heard.

use super::Stack;
use super::conn_id::ConnId;
use crate::connection::Connection;
use crate::path::Ends;
use crate::stack::FourTuple;
use crate::time::Instant;

pub(super) fn ends(tuple: &FourTuple) -> Ends {
    Ends { local: tuple.local.ip(), remote: tuple.remote.ip() }
}

impl Stack {
    /// Hands a new connection what is known of its path, before its first segment leaves.
    pub(super) fn start_on_path(&self, connection: &mut Connection, now: Instant) {
        let known = self.paths.facts(&ends(&connection.tuple()), now);
        connection.start_from(known, now);
    }

    /// A timer of a connection is due: while it opens, it hears what others have measured since it began.
    pub(super) fn refresh_path(&mut self, id: ConnId, now: Instant) {
        let Some(slot) = self.slots.at_mut(id) else { return };
        if slot.connection.is_opening()
            && let Some(rtt) = self.paths.facts(&ends(&slot.connection.tuple()), now).handshake_rtt()
        {
            slot.connection.on_longer_path(rtt);
        }
    }

    /// A connection was touched: what it has to tell of its path.
    pub(super) fn settle_path(&mut self, id: ConnId, now: Instant) {
        let Some(slot) = self.slots.at_mut(id) else { return };
        if let Some(report) = slot.connection.take_path_report(now) {
            self.paths.on_report(ends(&slot.connection.tuple()), &report, now);
        }
    }
}

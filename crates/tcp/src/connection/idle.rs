//! The memory that an idle connection gives back.

use crate::connection::{Connection, State};

impl Connection {
    /// True if nothing is in flight and nothing waits to be sent or read.
    pub(crate) fn is_idle(&self) -> bool {
        // A half-open connection has its SYN-ACK in flight, and may wait with it for a minute.
        let waits = match self.state {
            State::SynSent => false,
            State::SynReceived => !self.holds_early(),
            _ => self.tx.scoreboard.is_empty(),
        };
        waits && self.tx.queue.is_empty() && self.readable() == 0 && !self.has_events()
    }

    /// True if the connection is idle and holds no buffers, is unobserved, and is without Corrective,
    /// Proactive and planner.
    pub(crate) fn is_bare(&self) -> bool {
        let has_mechanisms = self.gentle.active.is_some() || self.gentle.planner.is_some();
        self.is_idle() && self.rx.queue.memory() == 0 && !has_mechanisms && self.probes.is_none()
    }

    /// Frees what only traffic needs: empty lists, and parts that have their initial value. Nothing else
    /// changes.
    pub(crate) fn release_memory(&mut self) {
        self.counters.release_memory();
        self.outbox.release_memory();
        self.release_loss_memory();
        self.tx.release_memory();
        self.rx.release_memory();
    }
}

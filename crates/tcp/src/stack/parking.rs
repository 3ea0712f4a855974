//! Which connections are parked, and when they wake.
//!
//! A connection that has had nothing to do for [`StackConfig::park_after`](crate::config::StackConfig) takes its
//! [parked form](crate::connection::Parked), where there are many of them after a tenth of that time: those that are opened
//! only to wait do not all stay whole for a second, and those in use are not parked between two segments. Whoever touches
//! one wakes it; a question about it is answered from a copy.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::ops::Deref;

use super::Stack;
use crate::conn_id::ConnId;
use crate::connection::{Connection, Parked, Urgency};
use crate::time::{Duration, Instant};

/// Where there are many, this part of the time is enough.
const EARLY_PART: u32 = 10;

/// Connections that are looked at, of many, when one more has nothing to do.
const LOOKS: usize = 2;

/// A connection, awake or parked.
#[derive(Debug)]
pub(crate) enum Seat {
    /// In its working form.
    Awake(Box<Connection>),
    /// In its compact form.
    Parked(Parked),
}

/// A connection to look at.
pub(crate) enum Look<'a> {
    /// The one that is awake.
    Awake(&'a Connection),
    /// A copy of a parked one.
    Copy(Box<Connection>),
}

impl Deref for Look<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        match self {
            Look::Awake(connection) => connection,
            Look::Copy(connection) => connection,
        }
    }
}

impl Seat {
    /// The connection, to be changed: it wakes.
    pub(crate) fn wake(&mut self) -> &mut Connection {
        if let Seat::Parked(parked) = self {
            *self = Seat::Awake(parked.wake());
        }
        match self {
            Seat::Awake(connection) => connection,
            Seat::Parked(_) => unreachable!("it has just been woken"),
        }
    }

    /// The connection as it is.
    pub(crate) fn look(&self) -> Look<'_> {
        match self {
            Seat::Awake(connection) => Look::Awake(connection),
            Seat::Parked(parked) => Look::Copy(parked.wake()),
        }
    }

    /// The connection, if it is awake.
    pub(crate) fn awake(&self) -> Option<&Connection> {
        match self {
            Seat::Awake(connection) => Some(connection),
            Seat::Parked(_) => None,
        }
    }
}

/// Connections that have nothing to do, in the order in which they are looked at again.
#[derive(Debug, Default)]
pub(crate) struct Idle {
    order: VecDeque<(Instant, ConnId)>,
}

impl Idle {
    /// As a new one is, in the same storage.
    pub(super) fn clear(&mut self) {
        self.order.clear();
    }

    /// When the next one is looked at.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.order.front().map(|&(at, _)| at)
    }
}

impl Stack {
    /// A connection has nothing to do. It is looked at again when it may have been idle for long enough; meanwhile its slot
    /// only notes when it was touched last.
    pub(super) fn note_idle(&mut self, id: ConnId, after: Duration, now: Instant) {
        self.idle.order.push_back((now + after, id));
        self.park_early(after, now);
    }

    /// Where there are more with nothing to do than are kept whole: looks at the oldest of them.
    fn park_early(&mut self, after: Duration, now: Instant) {
        for _ in 0..LOOKS {
            if self.idle.order.len() <= self.config.warm_idle {
                return;
            }
            let Some(&(at, id)) = self.idle.order.front() else { return };
            let Some(slot) = self.slots.at_mut(id) else {
                self.idle.order.pop_front();
                continue;
            };
            let was_touched = slot.touched + after > at;
            if !was_touched && now.saturating_since(slot.touched) < after / EARLY_PART {
                return;
            }
            slot.is_idle = was_touched;
            let due = slot.touched + after;
            self.idle.order.pop_front();
            if was_touched {
                self.idle.order.push_back((due, id));
            } else {
                self.park(id);
            }
        }
    }

    /// Parks what has been idle for long enough.
    pub(super) fn park_idle(&mut self, now: Instant) {
        let Some(after) = self.config.park_after else { return };
        while let Some(id) = self.idle.order.front().filter(|(at, _)| *at <= now).map(|&(_, id)| id) {
            self.idle.order.pop_front();
            let Some(slot) = self.slots.at_mut(id) else { continue };
            let due = slot.touched + after;
            slot.is_idle = due > now && slot.connection.awake().is_some_and(Connection::may_park);
            if slot.is_idle {
                self.idle.order.push_back((due, id));
            } else if due <= now {
                self.park(id);
            }
        }
    }

    fn park(&mut self, id: ConnId) {
        let Some(slot) = self.slots.at_mut(id) else { return };
        let connection = slot.connection.awake().filter(|_| slot.urgency == Urgency::Idle);
        if let Some(parked) = connection.and_then(Connection::park) {
            slot.connection = Seat::Parked(parked);
            slot.count_memory(0, &mut self.memory);
            self.wake_memory_waiters();
        }
    }
}

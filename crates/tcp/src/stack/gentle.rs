//! The memory of destinations that do not take the option of Corrective and Proactive: a new connection is
//! told whether to offer it, a living one is heard.

use super::Stack;
use super::path::ends;
use super::share::Learnt;
use crate::conn_id::ConnId;
use crate::connection::Connection;
use crate::four_tuple::FourTuple;
use crate::mechanism::memory::{Destination, Turn};
use crate::time::Instant;

fn destination(tuple: &FourTuple) -> Destination {
    Destination { ends: ends(tuple), port: tuple.remote.port() }
}

impl Stack {
    /// Which options the SYN of a new connection may carry.
    pub(super) fn turn_of(&self, connection: &Connection, now: Instant) -> Turn {
        if !connection.wants_gentle() {
            return Turn::Together;
        }
        self.gentle_memory.turn(&destination(&connection.tuple()), now)
    }

    /// Withholds the option of Corrective and Proactive if it is not its turn. That of Fast Open is planned.
    pub(super) fn plan_gentle(&mut self, connection: &mut Connection, turn: Turn) {
        let withheld = match turn {
            Turn::NoGentle => true,
            Turn::FastOpen => connection.opens_fast(),
            Turn::Together | Turn::Gentle => false,
        };
        if withheld {
            self.stats.gentle_withheld += 1;
            connection.withhold_gentle();
        }
    }

    /// Takes in what the opening of a connection has taught about Corrective and Proactive.
    pub(super) fn learn_gentle(&mut self, id: ConnId, now: Instant) {
        let Some(slot) = self.slots.at_mut(id) else { return };
        let (opened, spoilt) = (slot.connection.take_opened(), slot.connection.take_spoilt());
        if opened.is_none() && !spoilt {
            return;
        }
        let to = destination(&slot.connection.tuple());
        if let Some(opened) = opened {
            self.gentle_memory.on_opened(to, &opened, now);
            self.share.tell(|| Learnt::Opened(to, opened));
            self.stats.gentle_syn_drop += u64::from(opened.gentle && opened.swallowed);
        }
        if spoilt {
            self.gentle_memory.on_spoilt(to, now);
            self.share.tell(|| Learnt::Spoilt(to));
        }
    }
}

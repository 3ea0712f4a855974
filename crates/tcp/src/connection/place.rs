//! Where a connection that is over has lain: the next one is made there.
//!
//! A connection takes more memory than the fast lists of most allocators hand out, and each fills the same few short lists.
//! Nothing else is left of the old one: the new one is written over it.

use alloc::boxed::Box;

use crate::connection::Connection;
use crate::receive::{Assembler, RecvQueue};
use brisk_wire::SeqNum;

/// Memory for a connection; by default new memory.
#[derive(Default)]
pub(crate) struct Place(Option<Box<Connection>>);

impl Place {
    /// That of a connection which nobody will hear of again. What it holds besides is freed, but for its configuration.
    pub(crate) fn of(mut connection: Box<Connection>) -> Place {
        let Connection { fast_open, gentle, probes, tx, rx, .. } = &mut *connection;
        (*fast_open, gentle.active, gentle.planner, *probes) = (None, None, None, None);
        tx.scoreboard.give_up();
        tx.queue.give_up();
        (rx.queue, rx.assembler) = (RecvQueue::new(0), Assembler::new(SeqNum(0)));
        Place(Some(connection))
    }

    /// Puts a connection there.
    #[inline]
    pub(super) fn take(self, connection: Connection) -> Box<Connection> {
        let Some(mut place) = self.0 else { return Box::new(connection) };
        let lists = (place.tx.scoreboard.take_lists(), place.tx.queue.take_list());
        *place = connection;
        place.tx.scoreboard.lend_lists(lists.0);
        place.tx.queue.lend_list(lists.1);
        place
    }
}

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;
    use alloc::vec::Vec;
    use std::format;

    use brisk_wire::OptionProfile;

    use super::*;
    use crate::config::{CorrectiveConfig, MechanismConfig, PlannerConfig, TcpConfig};
    use crate::connection::{Env, Host, Secrets};
    use crate::four_tuple::FourTuple;
    use crate::time::{Duration, Instant};

    fn connect(place: Place, port: u16, config: &Arc<TcpConfig>) -> Box<Connection> {
        let tuple = FourTuple { local: ([10, 0, 0, 1], port).into(), remote: ([10, 0, 0, 2], 80).into() };
        let secrets = Secrets { iss: SeqNum(u32::from(port)), ts_offset: 0 };
        let host = Host { mtu: 1500, granularity: Duration::from_micros(1), repairs: true };
        Connection::connect(place, tuple, config, secrets, host, Instant::ZERO)
    }

    #[test]
    fn a_connection_in_a_used_place_is_as_one_in_new_memory() {
        let planner = Some(PlannerConfig::default());
        let corrective = Some(CorrectiveConfig::default());
        let mechanisms = MechanismConfig { corrective, planner, ..MechanismConfig::default() };
        let (plain, rich) = (Arc::default(), Arc::new(TcpConfig { mechanisms, ..TcpConfig::default() }));
        let mut old = connect(Place::default(), 1, &rich);
        old.observe();
        old.write(&[7; 3000], Instant::ZERO).expect("there is room");
        let env = Env {
            challenge: &mut |_| true,
            super_segment: 0,
            sends_twice: false,
            partial_checksum: false,
            payload_in_place: false,
            option_profile: &OptionProfile::DEFAULT,
        };
        let mut packet = Vec::new();
        old.poll_transmit(Instant::ZERO, &env, &mut packet).expect("its SYN");
        let place = Place::of(old);
        let left = place.0.as_ref().expect("it has been used");
        assert_eq!((left.memory(), Arc::strong_count(&rich)), (0, 2));
        let [again, new] = [place, Place::default()].map(|place| connect(place, 2, &plain));
        assert_eq!(format!("{again:?}"), format!("{new:?}"));
        assert_eq!(Arc::strong_count(&rich), 1);
    }
}

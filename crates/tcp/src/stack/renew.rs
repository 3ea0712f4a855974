//! A stack made again in the storage of an old one.
//!
//! A simulation gives every short transfer stacks of its own, so that nothing but the seed decides about it, and may
//! run a hundred thousand of them a second. The lists of a stack are what each of them would have to grow again.

use alloc::collections::VecDeque;
use core::mem::take;

use super::Stack;
use super::conn_id::{ConnId, Slots};
use super::deadlines::Deadlines;
use super::events::EventQueue;
use super::listener::Listener;
use super::settle::Slot;
use crate::config::StackConfig;
use crate::error::ConfigError;

/// The lists that every connection goes through. What is in none of them begins anew with every stack.
#[derive(Default)]
pub(super) struct Lists {
    pub(super) slots: Slots<Slot>,
    pub(super) listeners: Slots<Listener>,
    pub(super) deadlines: Deadlines,
    pub(super) to_transmit: VecDeque<ConnId>,
    pub(super) hurried: VecDeque<ConnId>,
    pub(super) events: EventQueue,
}

impl Lists {
    /// The lists of a stack that is over, emptied.
    fn of(stack: &mut Stack) -> Lists {
        let mut lists = Lists {
            slots: take(&mut stack.slots),
            listeners: take(&mut stack.listeners),
            deadlines: take(&mut stack.deadlines),
            to_transmit: take(&mut stack.to_transmit),
            hurried: take(&mut stack.hurried),
            events: take(&mut stack.events),
        };
        let Lists { slots, listeners, deadlines, to_transmit, hurried, events } = &mut lists;
        slots.clear();
        listeners.clear();
        deadlines.clear();
        to_transmit.clear();
        hurried.clear();
        events.clear();
        lists
    }
}

impl Stack {
    /// Makes this stack what [`Stack::new`] makes of `config` and `seed`. Nothing is left of its connections, listeners
    /// and memories but storage.
    ///
    /// # Errors
    /// As [`Stack::new`]; the stack then is what it was.
    pub fn renew(&mut self, config: StackConfig, seed: u64) -> Result<(), ConfigError> {
        config.validate()?;
        let lists = Lists::of(self);
        *self = Stack::with_lists(lists, config, seed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::format;
    use std::vec::Vec;

    use super::*;
    use crate::config::{ConnectConfig, ListenConfig, TcpConfig};
    use crate::event::Event;
    use crate::stack::{ConnId, ListenerId, Rx};
    use crate::time::{Duration, Instant};

    fn config(last: u8) -> StackConfig {
        StackConfig { addresses: [[10, 0, 0, last].into()].into(), observe: true, ..StackConfig::default() }
    }

    fn pair(seed: u64) -> [Stack; 2] {
        [1, 2].map(|last| Stack::new(config(last), seed + u64::from(last)).expect("valid"))
    }

    /// What two stacks say to one another while one asks and the other answers; a connection stays open.
    fn conversation([client, server]: &mut [Stack; 2]) -> Vec<Vec<u8>> {
        let now = Instant::ZERO + Duration::from_millis(1);
        let listen = ListenConfig { tcp: TcpConfig::planned(30), ..ListenConfig::default() };
        let listener: ListenerId = server.listen(([10, 0, 0, 2], 80).into(), listen).expect("free");
        let connect = ConnectConfig { tcp: TcpConfig::planned(30), ..ConnectConfig::default() };
        let opened: Vec<ConnId> = (0..3)
            .map(|_| client.connect(([10, 0, 0, 2], 80).into(), &connect, now).expect("a port is free"))
            .collect();
        let mut packets = Vec::new();
        let mut exchange = |client: &mut Stack, server: &mut Stack| {
            let mut packet = Vec::new();
            loop {
                let before = packets.len();
                while client.poll_transmit(now, &mut packet).is_some() {
                    packets.push(packet.clone());
                    server.on_packet(&packet, Rx::default(), now);
                }
                while server.poll_transmit(now, &mut packet).is_some() {
                    packets.push(packet.clone());
                    client.on_packet(&packet, Rx::default(), now);
                }
                if packets.len() == before {
                    return;
                }
            }
        };
        exchange(client, server);
        assert_eq!(server.poll_event(), Some(Event::Incoming(listener)));
        while let Some((id, _)) = server.accept(listener) {
            server.write(id, &[7; 5_000], now).expect("there is room");
        }
        exchange(client, server);
        for id in &opened[1..] {
            client.release(*id, now);
        }
        exchange(client, server);
        packets
    }

    #[test]
    fn a_stack_made_again_is_a_new_one() {
        let mut again = pair(1);
        conversation(&mut again);
        for (stack, last) in again.iter_mut().zip([1, 2]) {
            let seed = 5 + u64::from(last);
            stack.renew(config(last), seed).expect("valid");
            let new = Stack::new(config(last), seed).expect("valid");
            assert_eq!(format!("{stack:?}"), format!("{new:?}"), "in every field");
        }
        let mut new = pair(5);
        assert_eq!(conversation(&mut again), conversation(&mut new), "to the byte");
        assert_eq!(format!("{again:?}"), format!("{new:?}"));
    }

    #[test]
    fn a_stack_that_cannot_be_made_stays_what_it_was() {
        let mut stacks = pair(1);
        conversation(&mut stacks);
        let before = format!("{:?}", stacks[0]);
        stacks[0].renew(StackConfig { mtu: 5, ..config(1) }, 2).expect_err("the MTU is out of range");
        assert_eq!(format!("{:?}", stacks[0]), before);
    }
}

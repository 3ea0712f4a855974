//! Channels over which the stacks of an endpoint exchange facts about paths and servers.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use brisk_tcp::Stack;
use brisk_tcp::stack::SharedFact;
use brisk_tcp::time::Instant;

/// Capacity of the channel to a stack. When it is full, facts are dropped.
const CAPACITY: usize = 1024;

/// The channels between one stack and the others, for facts about paths and servers. No stack waits for
/// another.
#[derive(Debug)]
pub(crate) struct Exchange {
    to: Vec<SyncSender<SharedFact>>,
    from: Receiver<SharedFact>,
}

impl Exchange {
    pub(crate) fn between(count: usize) -> Vec<Exchange> {
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..count).map(|_| sync_channel(CAPACITY)).unzip();
        let others = |own: usize| {
            let to = senders.iter().enumerate().filter(|(index, _)| *index != own);
            to.map(|(_, sender)| sender.clone()).collect()
        };
        receivers.into_iter().enumerate().map(|(own, from)| Exchange { to: others(own), from }).collect()
    }

    /// Sends the new facts of `stack` to the other stacks.
    pub(crate) fn send(&self, stack: &mut Stack) {
        while let Some(fact) = stack.poll_shared_fact() {
            for to in &self.to {
                // The fact is dropped if the other stack is gone or its channel is full.
                let _ = to.try_send(fact.clone());
            }
        }
    }

    /// Passes the new facts of the other stacks to `stack`.
    pub(crate) fn receive(&self, stack: &mut Stack, now: Instant) {
        for fact in self.from.try_iter() {
            stack.on_shared_fact(&fact, now);
        }
    }
}

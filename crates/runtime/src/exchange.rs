//! Channels over which the stacks of an endpoint exchange what they learn about paths.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use brisk_tcp::Stack;
use brisk_tcp::stack::Lesson;
use brisk_tcp::time::Instant;

/// Lessons that wait for a stack; what comes when there are more is not learnt there.
const LESSONS: usize = 1024;

/// How one stack of several tells the others what it has learnt, and hears it from them. Nobody waits for
/// anybody.
#[derive(Debug)]
pub(crate) struct Exchange {
    to: Vec<SyncSender<Lesson>>,
    from: Receiver<Lesson>,
}

impl Exchange {
    /// One for each of `count` stacks.
    pub(crate) fn between(count: usize) -> Vec<Exchange> {
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..count).map(|_| sync_channel(LESSONS)).unzip();
        let others = |own: usize| {
            let to = senders.iter().enumerate().filter(|(index, _)| *index != own);
            to.map(|(_, sender)| sender.clone()).collect()
        };
        receivers.into_iter().enumerate().map(|(own, from)| Exchange { to: others(own), from }).collect()
    }

    /// Tells the others what `stack` has learnt.
    pub(crate) fn tell(&self, stack: &mut Stack) {
        while let Some(lesson) = stack.poll_lesson() {
            for to in &self.to {
                // A stack that is gone or whose channel is full does not learn it.
                let _ = to.try_send(lesson.clone());
            }
        }
    }

    /// Lets `stack` hear what the others have told.
    pub(crate) fn hear(&self, stack: &mut Stack, now: Instant) {
        for lesson in self.from.try_iter() {
            stack.on_lesson(&lesson, now);
        }
    }
}

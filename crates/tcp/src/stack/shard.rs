//! One host, several stacks: the shard that each has of the four-tuples, and what they tell each other.
//!
//! A driver that runs a stack on every core gives each a shard of all four-tuples ([`Stack::set_shard`]) and
//! hands it the packets of its shard alone. The stacks share their knowledge of servers and paths: each
//! returns it as [`Lesson`]s ([`Stack::poll_lesson`]), which the driver carries to the others
//! ([`Stack::on_lesson`]). So every stack has the whole memory, and none waits for another. A stack without a
//! share returns no lessons and does nothing differently.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::fmt;

use super::{ListenerId, Stack};
use crate::fast_open::KeySource;
use crate::fast_open::client::{Asker, FastOpenReport};
use crate::fast_open::replay::ReplayMemory;
use crate::four_tuple::FourTuple;
use crate::mechanism::memory::{Destination, Opened};
use crate::path::{Ends, LargePacket, PathReport};
use crate::time::Instant;

/// Lessons that wait for the driver; of more than that the oldest are forgotten, which costs nobody a packet.
const LESSONS: usize = 1024;

/// Which four-tuples are for a stack.
type IsOurs = Box<dyn Fn(&FourTuple) -> bool + Send>;

/// Knowledge that one stack of several got from a connection.
#[derive(Clone, Debug)]
pub struct Lesson(Learnt);

/// Of what.
#[derive(Clone, Debug)]
pub(super) enum Learnt {
    /// Of the path.
    Path(Ends, Box<PathReport>),
    /// That the path carries large packets.
    LargePacket(Ends, LargePacket),
    /// Of the server's Fast Open.
    FastOpen(Asker, FastOpenReport),
    /// Of what became of the option of Corrective and Proactive on a SYN.
    Opened(Destination, Opened),
    /// That the path spoils it.
    Spoilt(Destination),
}

/// The part of one stack among several.
#[derive(Default)]
pub(super) struct Shard {
    is_ours: Option<IsOurs>,
    lessons: VecDeque<Learnt>,
}

impl Shard {
    /// Whether connections over this four-tuple are for this stack.
    pub(super) fn has(&self, tuple: &FourTuple) -> bool {
        self.is_ours.as_ref().is_none_or(|is_ours| is_ours(tuple))
    }

    /// The others should hear of this.
    pub(super) fn publish(&mut self, learnt: impl FnOnce() -> Learnt) {
        if self.is_ours.is_none() {
            return;
        }
        if self.lessons.len() >= LESSONS {
            self.lessons.pop_front();
        }
        self.lessons.push_back(learnt());
    }
}

impl fmt::Debug for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shard").field("lessons", &self.lessons.len()).finish_non_exhaustive()
    }
}

/// One of several.
impl Stack {
    /// Makes this stack one of several with the same addresses: from now on it opens connections only over
    /// four-tuples for which `is_ours` holds, as far as the choice of the port is its own, and tells what it
    /// learns.
    pub fn set_shard(&mut self, is_ours: impl Fn(&FourTuple) -> bool + Send + 'static) {
        self.shard.is_ours = Some(Box::new(is_ours));
    }

    /// Returns the next lesson for the other stacks of the host, `None` if nothing more. Always `None`
    /// without a shard.
    pub fn poll_lesson(&mut self) -> Option<Lesson> {
        self.shard.lessons.pop_front().map(Lesson)
    }

    /// Takes in what another stack of the host has learnt.
    pub fn on_lesson(&mut self, Lesson(learnt): &Lesson, now: Instant) {
        match learnt {
            Learnt::Path(ends, report) => self.paths.on_report(*ends, report, now),
            Learnt::LargePacket(ends, packet) => drop(self.paths.on_large_packet(*ends, *packet)),
            Learnt::FastOpen(asker, report) => self.fast_open.on_report(asker, report, now),
            // What Fast Open learns from it comes as a lesson of its own.
            Learnt::Opened(to, opened) => drop(self.gentle_memory.on_opened(*to, opened, now)),
            Learnt::Spoilt(to) => self.gentle_memory.on_spoilt(*to, now),
        }
    }

    /// Takes the memory of a listener with a [replay window](crate::fast_open::ReplayWindow) out, so that it
    /// can be shared; until it has one again ([`Stack::set_replays`]) it takes any copy.
    pub fn take_replays(&mut self, listener: ListenerId) -> Option<Box<dyn ReplayMemory>> {
        self.listeners.at_mut(listener)?.fast_open.as_deref_mut()?.replace_replays(None)
    }

    /// Gives a listener with Fast Open a memory that the other stacks have as well.
    pub fn set_replays(&mut self, listener: ListenerId, replays: impl ReplayMemory + 'static) {
        let at = self.listeners.at_mut(listener).and_then(|at| at.fast_open.as_deref_mut());
        if let Some(at) = at {
            at.replace_replays(Some(Box::new(replays)));
        }
    }

    /// The keys of listeners that have none of their own, for the other stacks of the host: a client that
    /// comes back may come to any of them.
    pub fn fast_open_keys(&self) -> &KeySource {
        self.fast_open.keys()
    }
}

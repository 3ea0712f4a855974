//! Several stacks on one host: the shard of the four-tuples of each, and the knowledge that they exchange.
//!
//! A driver that runs a stack on every core gives each a shard of all four-tuples ([`Stack::set_shard`]) and
//! passes it only the packets of its shard. The stacks share their knowledge of servers and paths: each
//! returns it as [`SharedFact`]s ([`Stack::poll_shared_fact`]), which the driver passes to the others
//! ([`Stack::on_shared_fact`]). So every stack has the whole memory, and none waits for another. A stack
//! without a shard behaves the same, but returns no facts.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::fmt;

use super::{ListenerId, Stack};
use crate::fast_open::KeySource;
use crate::fast_open::client::{FastOpenReport, ServerKey};
use crate::fast_open::replay::ReplayMemory;
use crate::four_tuple::FourTuple;
use crate::mechanism::memory::{Destination, Opened};
use crate::path::{Ends, LargePacket, PathReport};
use crate::time::Instant;

/// Maximum number of facts that wait for the driver. Beyond it the oldest are dropped; no packet is lost.
const MAX_FACTS: usize = 1024;

/// Predicate for the four-tuples of a stack.
type IsOurs = Box<dyn Fn(&FourTuple) -> bool + Send>;

/// Knowledge about a path or a server that one of several stacks got from a connection.
#[derive(Clone, Debug)]
pub struct SharedFact(Fact);

/// Subject of a [`SharedFact`].
#[derive(Clone, Debug)]
pub(super) enum Fact {
    /// A report about the path.
    Path(Ends, Box<PathReport>),
    /// The path passes large packets.
    LargePacket(Ends, LargePacket),
    /// A report about the server's Fast Open.
    FastOpen(ServerKey, FastOpenReport),
    /// The result of a SYN that may have had the option of Corrective and Proactive.
    Opened(Destination, Opened),
    /// The path damages segments with the option.
    Interference(Destination),
}

/// The part of one stack among several.
#[derive(Default)]
pub(super) struct Shard {
    is_ours: Option<IsOurs>,
    facts: VecDeque<Fact>,
}

impl Shard {
    /// True if connections over this four-tuple belong to this stack.
    pub(super) fn has(&self, tuple: &FourTuple) -> bool {
        self.is_ours.as_ref().is_none_or(|is_ours| is_ours(tuple))
    }

    /// Queues a fact for the other stacks.
    pub(super) fn publish(&mut self, fact: impl FnOnce() -> Fact) {
        if self.is_ours.is_none() {
            return;
        }
        if self.facts.len() >= MAX_FACTS {
            self.facts.pop_front();
        }
        self.facts.push_back(fact());
    }
}

impl fmt::Debug for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shard").field("facts", &self.facts.len()).finish_non_exhaustive()
    }
}

/// Methods of a stack that is one of several.
impl Stack {
    /// Makes this stack one of several with the same addresses. From now on it returns facts. If it chooses a
    /// port itself, it opens connections only over four-tuples for which `is_ours` returns true.
    ///
    /// ```
    /// # use brisk_tcp::time::Instant;
    /// # use brisk_tcp::{Stack, StackConfig};
    /// # let at = |ip: &str| StackConfig { addresses: vec![ip.parse().unwrap()], ..StackConfig::default() };
    /// # let mut client = Stack::new(at("10.0.0.1"), 1)?;
    /// # let now = Instant::ZERO;
    /// use brisk_tcp::fast_open::KeySource;
    /// use brisk_tcp::stack::SharedFact;
    /// # let mut first = client;
    /// # let mut second = Stack::new(at("10.0.0.1"), 3)?;
    ///
    /// // Two stacks of a host divide the connections by the port, and share keys and knowledge.
    /// first.set_shard(|tuple| tuple.local.port() % 2 == 0);
    /// second.set_shard(|tuple| tuple.local.port() % 2 == 1);
    /// let keys: KeySource = first.fast_open_keys().clone();
    /// second.set_fast_open_keys(keys);
    /// while let Some(fact) = first.poll_shared_fact() {
    ///     let fact: SharedFact = fact;
    ///     second.on_shared_fact(&fact, now);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_shard(&mut self, is_ours: impl Fn(&FourTuple) -> bool + Send + 'static) {
        self.shard.is_ours = Some(Box::new(is_ours));
    }

    /// Returns the next fact for the other stacks of the host; `None` if there is none, and always without
    /// a shard.
    pub fn poll_shared_fact(&mut self) -> Option<SharedFact> {
        self.shard.facts.pop_front().map(SharedFact)
    }

    /// Processes a fact of another stack of the host.
    pub fn on_shared_fact(&mut self, SharedFact(fact): &SharedFact, now: Instant) {
        match fact {
            Fact::Path(ends, report) => self.paths.on_report(*ends, report, now),
            Fact::LargePacket(ends, packet) => drop(self.paths.on_large_packet(*ends, *packet)),
            Fact::FastOpen(server_key, report) => self.fast_open.on_report(server_key, report, now),
            // The result for Fast Open is a separate fact.
            Fact::Opened(to, opened) => drop(self.gentle_memory.on_opened(*to, opened, now)),
            Fact::Interference(to) => self.gentle_memory.on_interference(*to, now),
        }
    }

    /// Takes the memory of a listener with a [replay window](crate::fast_open::ReplayWindow), so that it can
    /// be shared. Until the listener has a memory again ([`Stack::set_replays`]), it accepts any copy of a
    /// SYN.
    pub fn take_replays(&mut self, listener: ListenerId) -> Option<Box<dyn ReplayMemory>> {
        self.listeners.at_mut(listener)?.fast_open.as_deref_mut()?.replace_replays(None)
    }

    /// Gives a listener with Fast Open a memory that other stacks share.
    pub fn set_replays(&mut self, listener: ListenerId, replays: impl ReplayMemory + 'static) {
        let at = self.listeners.at_mut(listener).and_then(|at| at.fast_open.as_deref_mut());
        if let Some(at) = at {
            at.replace_replays(Some(Box::new(replays)));
        }
    }

    /// Returns the keys of listeners without their own, for the other stacks of the host: a returning client
    /// may reach any of them.
    pub fn fast_open_keys(&self) -> &KeySource {
        self.fast_open.keys()
    }
}

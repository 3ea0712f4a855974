//! The stacks of an endpoint: one, or one for each queue of its device.
//!
//! Each stack has its own lock and driver, and owns the connections whose four-tuples hash to it. Requests
//! that concern all stacks, such as keys and statistics, go to each stack in turn. The stacks exchange facts
//! about paths through [`Exchange`](crate::exchange::Exchange).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use brisk_device::steering::Steering;
use brisk_tcp::Stack;
use brisk_tcp::stack::FourTuple;
use brisk_tcp::time::Instant;

use crate::cores::Cores;
use crate::shared::{Inner, Shared};

#[derive(Debug)]
pub(crate) struct Shards {
    all: Box<[Arc<Shared>]>,
    /// `None` if there is only one stack.
    steering: Option<Steering>,
    /// Index of the stack that opens the next connection for a caller whose thread is not one of the
    /// [`Cores`](crate::Cores).
    next: AtomicUsize,
}

impl Shards {
    /// Creates the set from at least one stack.
    pub(crate) fn new(all: Vec<Arc<Shared>>, steering: Option<Steering>) -> Shards {
        Shards { all: all.into(), steering, next: AtomicUsize::new(0) }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Shared>> {
        self.all.iter()
    }

    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// Calls `question` with the first stack, after this stack has received the facts of the others.
    pub(crate) fn ask<T>(&self, question: impl FnOnce(&Stack, Instant) -> T) -> T {
        let first = &self.all[0];
        let now = first.clock.now();
        let mut inner = first.lock();
        inner.receive_facts(now);
        question(&inner.stack, now)
    }

    pub(crate) fn for_each(&self, mut action: impl FnMut(&mut Stack, Instant)) {
        for shared in &self.all {
            action(&mut shared.lock().stack, shared.clock.now());
        }
    }

    /// Runs `action` on each stack, and wakes its driver to send the resulting packets.
    pub(crate) fn act<T>(&self, action: impl Fn(&mut Inner, Instant) -> T) -> impl Iterator<Item = T> {
        self.all.iter().map(move |shared| {
            let now = shared.clock.now();
            shared.act(|inner| action(inner, now))
        })
    }

    /// Like [`Shards::for_each`], but stops at the first error.
    pub(crate) fn try_for_each<E>(
        &self,
        mut action: impl FnMut(&mut Stack, Instant) -> Result<(), E>,
    ) -> Result<(), E> {
        self.all.iter().try_for_each(|shared| action(&mut shared.lock().stack, shared.clock.now()))
    }

    pub(crate) fn sum<T: Default + std::ops::AddAssign>(&self, of: impl Fn(&Inner) -> T) -> T {
        let mut sum = T::default();
        for shared in &self.all {
            sum += of(&shared.lock());
        }
        sum
    }

    /// Returns the stack that opens a connection. With a port in `wanted` it is the owner of the four-tuple,
    /// otherwise the stack of the caller's core. Callers on other threads get the stacks in turn.
    pub(crate) fn opener(&self, wanted: Option<SocketAddr>, remote: SocketAddr) -> &Arc<Shared> {
        let index = match (&self.steering, wanted.filter(|wanted| wanted.port() != 0)) {
            (None, _) => 0,
            (Some(steering), Some(wanted)) => {
                let FourTuple { local, remote } = FourTuple::new(wanted, remote);
                let first = |addresses: &[IpAddr]| {
                    addresses.iter().find(|own| own.is_ipv4() == remote.is_ipv4()).copied()
                };
                let ip = match local.ip().is_unspecified() {
                    true => first(&self.all[0].lock().stack.config().addresses),
                    false => None,
                };
                steering.queue_of(SocketAddr::new(ip.unwrap_or(local.ip()), local.port()), remote)
            }
            (Some(_), None) => Cores::current().unwrap_or_else(|| self.next.fetch_add(1, Ordering::Relaxed)),
        };
        &self.all[index % self.all.len()]
    }
}

//! State that the handles of an endpoint and its driver share: the stack and the tasks that wait for it,
//! behind one lock.
//!
//! Handles act on the stack directly, under the lock and without awaiting, and then wake the driver. Only the
//! driver uses the device and the timer. The stack's `max_connections` bounds the state of connections.
//!
//! A waker is code of the program, which may use the endpoint: it is woken and dropped after the lock is
//! released ([`Inner::retired`]). It is cloned under the lock, which for a waker made of an `Arc` counts up.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Waker};

use brisk_device::Counters;
use brisk_tcp::error::CloseReason;
use brisk_tcp::time::{Duration, Instant};
use brisk_tcp::{ConnId, Event, ListenerId, Stack};

use crate::clock::Clock;
use crate::exchange::Exchange;
use crate::waiters::{Waiter, Wakers};

/// One stack, its clock and those who wait for it.
pub(crate) struct Shared {
    pub(crate) clock: Clock,
    inner: Mutex<Inner>,
    /// The other stacks of the endpoint.
    siblings: OnceLock<Vec<Weak<Shared>>>,
}

/// Behind the lock.
pub(crate) struct Inner {
    pub(crate) stack: Stack,
    /// The counters of the device when the driver last looked.
    pub(crate) device: Counters,
    /// Each at the place of its connection in the stack.
    connections: Vec<Option<(ConnId, Waiting)>>,
    listeners: HashMap<ListenerId, Wakers>,
    /// Tasks that wait for a request, if there is a forwarder.
    pub(crate) forwarder: Option<Wakers>,
    idle: Wakers,
    /// Wakers that nobody waits with any more, until the lock is released.
    pub(crate) retired: Vec<Waker>,
    driver: Option<Waker>,
    driver_awake: bool,
    /// Endpoints, listeners and connections that the application holds.
    handles: usize,
    ended: Option<Ended>,
    /// The endpoint is being closed: nothing new begins.
    closing: bool,
    /// The driver ends as soon as it has sent what there is.
    pub(crate) closed: bool,
    /// With the other stacks of the endpoint, if there are any.
    exchange: Option<Exchange>,
    /// Moves of peers that the device has not heard of.
    pub(crate) moves: Vec<PeerMove>,
    /// The stack has connected to an address of its own.
    pub(crate) loops: bool,
    /// Connections that somebody waits for although their SYN waits for the first write, and when it leaves
    /// without one; the first that is due is in front.
    deferred: VecDeque<(ConnId, Instant)>,
}

/// How long a SYN still waits for the first write once somebody waits for the connection: an HTTP client
/// reads before it writes, and both in the same turn of its task.
const FIRST_WRITE: Duration = Duration::from_millis(10);

/// A change of a device's knowledge of a peer that moves.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PeerMove {
    /// Packets for one address go to another.
    To { from: IpAddr, to: IpAddr },
    /// The address leads to nobody who moved.
    Forgotten(IpAddr),
}

/// Tasks that wait for a connection, and its events so far.
#[derive(Default)]
pub(crate) struct Waiting {
    pub(crate) readers: Wakers,
    pub(crate) writers: Wakers,
    pub(crate) connected: bool,
    pub(crate) closed: Option<CloseReason>,
}

impl Waiting {
    fn take_into(mut self, wakers: &mut Vec<Waker>) {
        self.readers.take_into(wakers);
        self.writers.take_into(wakers);
    }
}

/// Why there is no driver any more.
#[derive(Clone, Debug)]
pub(crate) enum Ended {
    /// The device failed.
    Device(io::ErrorKind, String),
    /// The tokio runtime that the driver ran on was shut down.
    Runtime,
    /// The program closed the endpoint.
    Closed,
    /// The driver panicked in the stack.
    Defect,
    /// The driver panicked in the device.
    DevicePanicked,
    /// The driver panicked in an observer.
    ObserverPanicked,
}

impl Ended {
    /// The error that every handle then returns.
    pub(crate) fn error(&self) -> io::Error {
        match self {
            Ended::Device(kind, text) => io::Error::new(*kind, text.clone()),
            Ended::Runtime => io::Error::other("the tokio runtime that this endpoint ran on was shut down"),
            Ended::Closed => endpoint_closed(),
            Ended::Defect => io::Error::other("the stack panicked, which is a defect: please report it"),
            Ended::DevicePanicked => io::Error::other("the device panicked"),
            Ended::ObserverPanicked => io::Error::other("the observer panicked"),
        }
    }
}

/// The lock, held. Its end first releases it and then drops the retired wakers.
pub(crate) struct Locked<'a> {
    inner: MutexGuard<'a, Inner>,
    /// Those of `inner` in the end; fields are dropped in their order.
    retired: Vec<Waker>,
}

impl Deref for Locked<'_> {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.inner
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Inner {
        &mut self.inner
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.retired = std::mem::take(&mut self.inner.retired);
    }
}

impl Shared {
    pub(crate) fn new(stack: Stack, clock: Clock, exchange: Option<Exchange>) -> Shared {
        let inner = Inner {
            stack,
            device: Counters::default(),
            connections: Vec::new(),
            listeners: HashMap::new(),
            forwarder: None,
            idle: Wakers::default(),
            retired: Vec::new(),
            driver: None,
            driver_awake: false,
            handles: 0,
            ended: None,
            closing: false,
            closed: false,
            exchange,
            moves: Vec::new(),
            loops: false,
            deferred: VecDeque::new(),
        };
        Shared { clock, inner: Mutex::new(inner), siblings: OnceLock::new() }
    }

    /// The endpoint has these stacks beside this one. To be told once.
    pub(crate) fn set_siblings(&self, siblings: Vec<Weak<Shared>>) {
        let _ = self.siblings.set(siblings);
    }

    /// A panic under the lock can only come from a defect of the stack; the others then see what it left.
    pub(crate) fn lock(&self) -> Locked<'_> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        Locked { inner, retired: Vec::new() }
    }

    /// True if something panicked under the lock.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.inner.is_poisoned()
    }

    /// Runs `action` under the lock and wakes the driver afterwards, to send what it caused.
    pub(crate) fn act<T>(&self, action: impl FnOnce(&mut Inner) -> T) -> T {
        let mut inner = self.lock();
        let result = action(&mut inner);
        let driver = inner.rouse_driver();
        drop(inner);
        if let Some(driver) = driver {
            driver.wake();
        }
        result
    }

    /// The driver is gone: every waiting task hears of it. If the stack was still needed, so do those of its
    /// siblings: a host of which a part is deaf would fail some connections without a word. The drivers of a
    /// closed endpoint end by themselves.
    pub(crate) fn end(&self, ended: Ended) {
        let is_needed = self.lock().has_handles();
        if self.end_alone(ended.clone()) && is_needed {
            #[cfg(feature = "tracing")]
            match &ended {
                Ended::Closed => crate::log::closed(),
                failed => crate::log::failed(&failed.error()),
            }
        }
        if is_needed && !matches!(ended, Ended::Closed) {
            for sibling in self.siblings.get().into_iter().flatten().filter_map(Weak::upgrade) {
                sibling.end_alone(ended.clone());
            }
        }
    }

    /// Closes the listeners, and every connection for writing.
    pub(crate) fn begin_close(&self) {
        let (now, mut woken) = (self.clock.now(), Vec::new());
        self.act(|inner| {
            inner.closing = true;
            inner.stack.close_all(now);
            for acceptors in inner.listeners.values_mut() {
                acceptors.take_into(&mut woken);
            }
            if let Some(waiting) = &mut inner.forwarder {
                waiting.take_into(&mut woken);
            }
        });
        woken.into_iter().for_each(Waker::wake);
    }

    /// Aborts what is left, and ends the driver; answers how many connections that were.
    pub(crate) fn finish_close(&self) -> usize {
        let now = self.clock.now();
        self.act(|inner| {
            inner.closed = true;
            let left = inner.stack.connections().saturating_sub(inner.stack.time_waits());
            inner.stack.abort_all(now);
            left
        })
    }

    /// Returns true unless it has ended before.
    fn end_alone(&self, ended: Ended) -> bool {
        let mut woken = Vec::new();
        let mut inner = self.lock();
        let is_first = inner.ended.is_none();
        inner.ended.get_or_insert(ended);
        for (_, waiting) in inner.connections.iter_mut().flatten() {
            waiting.readers.take_into(&mut woken);
            waiting.writers.take_into(&mut woken);
        }
        for acceptors in inner.listeners.values_mut() {
            acceptors.take_into(&mut woken);
        }
        if let Some(waiting) = &mut inner.forwarder {
            waiting.take_into(&mut woken);
        }
        inner.idle.take_into(&mut woken);
        drop(inner);
        woken.into_iter().for_each(Waker::wake);
        is_first
    }
}

fn endpoint_closed() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the endpoint was closed")
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("clock", &self.clock).finish_non_exhaustive()
    }
}

impl Inner {
    /// Errs if nothing moves any more.
    pub(crate) fn check_driver(&self) -> io::Result<()> {
        self.ended.as_ref().map_or(Ok(()), |ended| Err(ended.error()))
    }

    /// Errs if nothing new can begin: connections, listeners, requests.
    pub(crate) fn check_open(&self) -> io::Result<()> {
        self.check_driver()?;
        if self.closing { Err(endpoint_closed()) } else { Ok(()) }
    }

    pub(crate) fn waiting(&mut self, id: ConnId) -> &mut Waiting {
        if self.connections.len() <= id.place() {
            self.connections.resize_with(id.place() + 1, || None);
        }
        let at = &mut self.connections[id.place()];
        if let Some((_, forgotten)) = at.take_if(|(known, _)| *known != id) {
            forgotten.take_into(&mut self.retired);
        }
        let (_, waiting) = at.get_or_insert_with(|| (id, Waiting::default()));
        waiting
    }

    pub(crate) fn forget(&mut self, id: ConnId) {
        let at = self.connections.get_mut(id.place());
        if let Some((_, forgotten)) = at.and_then(|at| at.take_if(|(known, _)| *known == id)) {
            forgotten.take_into(&mut self.retired);
        }
    }

    /// The task waits for something to read.
    pub(crate) fn add_reader(&mut self, id: ConnId, waiter: Waiter, cx: &Context<'_>) {
        let replaced = self.waiting(id).readers.add(waiter, cx);
        self.retired.extend(replaced);
    }

    /// The task waits for room, or for another state of the connection.
    pub(crate) fn add_writer(&mut self, id: ConnId, waiter: Waiter, cx: &Context<'_>) {
        let replaced = self.waiting(id).writers.add(waiter, cx);
        self.retired.extend(replaced);
    }

    /// A future that waited for this connection is gone.
    pub(crate) fn leave(&mut self, id: ConnId, waiter: Waiter) {
        let mut removed = [None, None];
        self.tell(id, |waiting| {
            removed = [waiting.readers.remove(waiter), waiting.writers.remove(waiter)];
        });
        self.retired.extend(removed.into_iter().flatten());
    }

    /// A SYN that waits for the first write leaves soon without one.
    pub(crate) fn open_soon(&mut self, id: ConnId, now: Instant) {
        self.deferred.push_back((id, now + FIRST_WRITE));
    }

    /// Lets those go that have waited long enough. Returns when the next one has.
    pub(crate) fn send_deferred(&mut self, now: Instant) -> Option<Instant> {
        while let Some((id, _)) = self.deferred.pop_front_if(|(_, at)| *at <= now) {
            self.stack.send_deferred_syn(id, now);
        }
        self.deferred.front().map(|(_, at)| *at)
    }

    pub(crate) fn add_listener(&mut self, id: ListenerId) {
        self.listeners.entry(id).or_default();
    }

    /// The task waits for a connection to accept.
    pub(crate) fn add_acceptor(&mut self, id: ListenerId, waiter: Waiter, cx: &Context<'_>) {
        let replaced = self.listeners.entry(id).or_default().add(waiter, cx);
        self.retired.extend(replaced);
    }

    pub(crate) fn remove_acceptor(&mut self, id: ListenerId, waiter: Waiter) {
        let acceptors = self.listeners.get_mut(&id);
        self.retired.extend(acceptors.and_then(|acceptors| acceptors.remove(waiter)));
    }

    pub(crate) fn forget_listener(&mut self, id: ListenerId) {
        if let Some(mut acceptors) = self.listeners.remove(&id) {
            acceptors.take_into(&mut self.retired);
        }
    }

    /// The task waits for a request; without a forwarder, for nothing.
    pub(crate) fn add_forwarder(&mut self, waiter: Waiter, cx: &Context<'_>) {
        let replaced = self.forwarder.as_mut().and_then(|waiting| waiting.add(waiter, cx));
        self.retired.extend(replaced);
    }

    pub(crate) fn remove_forwarder(&mut self, waiter: Waiter) {
        let removed = self.forwarder.as_mut().and_then(|waiting| waiting.remove(waiter));
        self.retired.extend(removed);
    }

    /// The forwarder is gone.
    pub(crate) fn forget_forwarder(&mut self) {
        if let Some(mut waiting) = self.forwarder.take() {
            waiting.take_into(&mut self.retired);
        }
    }

    /// True if nothing is left to be delivered. A TIME-WAIT only guards against old duplicates: it is no
    /// reason to hold a device, or whoever waits for the end, for a minute.
    pub(crate) fn is_idle(&self) -> bool {
        self.stack.connections() == self.stack.time_waits()
    }

    /// The task waits for [`Inner::is_idle`].
    pub(crate) fn add_idle(&mut self, waiter: Waiter, cx: &Context<'_>) {
        let replaced = self.idle.add(waiter, cx);
        self.retired.extend(replaced);
    }

    pub(crate) fn remove_idle(&mut self, waiter: Waiter) {
        let removed = self.idle.remove(waiter);
        self.retired.extend(removed);
    }

    /// Takes those who wait for [`Inner::is_idle`].
    pub(crate) fn take_idle(&mut self, woken: &mut Vec<Waker>) {
        self.idle.take_into(woken);
    }

    pub(crate) fn add_handle(&mut self) {
        self.handles += 1;
    }

    pub(crate) fn drop_handle(&mut self) {
        self.handles = self.handles.saturating_sub(1);
    }

    pub(crate) fn has_handles(&self) -> bool {
        self.handles > 0
    }

    /// The stack hears what the others of the endpoint have learnt.
    pub(crate) fn hear(&mut self, now: Instant) {
        if let Some(exchange) = &self.exchange {
            exchange.hear(&mut self.stack, now);
        }
    }

    /// The driver begins a round: from here on it wants to be woken by `waker`.
    pub(crate) fn driver_runs(&mut self, waker: &Waker, now: Instant) {
        self.hear(now);
        self.driver_awake = false;
        if !self.driver.as_ref().is_some_and(|known| known.will_wake(waker)) {
            self.retired.extend(self.driver.replace(waker.clone()));
        }
    }

    /// True if a handle did something since the driver's last round began.
    pub(crate) fn is_driver_roused(&self) -> bool {
        self.driver_awake
    }

    /// The waker of the driver, unless it has been woken already since its last round.
    pub(crate) fn rouse_driver(&mut self) -> Option<Waker> {
        if std::mem::replace(&mut self.driver_awake, true) { None } else { self.driver.clone() }
    }

    /// Hands the events of the stack to those who wait for them, and what it has learnt to the other stacks.
    pub(crate) fn take_events(&mut self, woken: &mut Vec<Waker>) {
        while let Some(event) = self.stack.poll_event() {
            match event {
                Event::Incoming(id) => {
                    if let Some(acceptors) = self.listeners.get_mut(&id) {
                        acceptors.take_into(woken);
                    }
                }
                // A connection that waits to be accepted has nobody: `accept` looks at the stack itself.
                Event::Connected(id) => self.tell(id, |waiting| {
                    waiting.connected = true;
                    waiting.writers.take_into(woken);
                }),
                Event::Readable(id) => self.tell(id, |waiting| waiting.readers.take_into(woken)),
                Event::Writable(id) => self.tell(id, |waiting| waiting.writers.take_into(woken)),
                Event::Closed(id, reason) => self.tell(id, |waiting| {
                    waiting.closed = Some(reason);
                    waiting.readers.take_into(woken);
                    waiting.writers.take_into(woken);
                }),
            }
        }
        if let Some(waiting) = self.forwarder.as_mut().filter(|_| self.stack.has_request()) {
            waiting.take_into(woken);
        }
        if let Some(exchange) = &self.exchange {
            exchange.tell(&mut self.stack);
        }
    }

    fn tell(&mut self, id: ConnId, what: impl FnOnce(&mut Waiting)) {
        if let Some(Some((known, waiting))) = self.connections.get_mut(id.place())
            && *known == id
        {
            what(waiting);
        }
    }
}

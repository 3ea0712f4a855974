//! State that the handles of an endpoint and its driver share behind one lock: the stack and the tasks that
//! wait for it.
//!
//! Handles change the stack themselves, under the lock and without awaiting, and then wake the driver. Only
//! the driver uses the device and the timer. The stack's `max_connections` limits the number of entries in
//! [`Inner::connections`].
//!
//! Wakers are code of the program, and may call the endpoint. So they are woken and dropped only after the
//! lock is released ([`Inner::retired`]). They are cloned under the lock; cloning a waker that is an `Arc`
//! only increments its count.

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

/// A stack, its clock and the tasks that wait for it.
pub(crate) struct Shared {
    pub(crate) clock: Clock,
    inner: Mutex<Inner>,
    /// The other stacks of the endpoint.
    siblings: OnceLock<Vec<Weak<Shared>>>,
}

/// The state behind the lock.
pub(crate) struct Inner {
    pub(crate) stack: Stack,
    /// The counters of the device at the driver's last reading.
    pub(crate) device: Counters,
    /// Waiting tasks, at the index of their connection in the stack.
    connections: Vec<Option<(ConnId, Waiting)>>,
    listeners: HashMap<ListenerId, Wakers>,
    /// Tasks that wait for a request, if there is a forwarder.
    pub(crate) forwarder: Option<Wakers>,
    idle: Wakers,
    /// Wakers that are no longer needed; they are dropped when the lock is released.
    pub(crate) retired: Vec<Waker>,
    driver: Option<Waker>,
    driver_awake: bool,
    /// Number of endpoints, listeners and connections that the application holds.
    handles: usize,
    ended: Option<Ended>,
    /// True while the endpoint is being closed: it accepts no new connection or listener.
    closing: bool,
    /// True if the driver ends once it has sent all outgoing packets.
    pub(crate) closed: bool,
    /// Channels to the other stacks of the endpoint, if there are any.
    exchange: Option<Exchange>,
    /// Moves of peers that the driver has not reported to the device yet.
    pub(crate) moves: Vec<PeerMove>,
    /// True if the stack has opened a connection to an address of its own.
    pub(crate) loops: bool,
    /// Connections with a deferred SYN on which a task waits already. Each has the time at which the SYN
    /// leaves without data; the earliest is first.
    deferred: VecDeque<(ConnId, Instant)>,
}

/// Time for which a deferred SYN still waits for the first write after a task has begun to wait for the
/// handshake or for data. An HTTP client first polls for reading and then writes, in one poll of its task.
const FIRST_WRITE: Duration = Duration::from_millis(10);

/// A change of the device's table of moved peers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PeerMove {
    /// The device sends packets for `from` to `to`.
    To { from: IpAddr, to: IpAddr },
    /// The device forgets the moved peer at this address.
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

/// Reason why the driver has ended.
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
    /// Returns the error that every handle then reports.
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

/// The held lock. Dropping it releases the lock and, after that, drops the retired wakers.
pub(crate) struct Locked<'a> {
    inner: MutexGuard<'a, Inner>,
    /// The retired wakers of `inner`. They are dropped after the field `inner`, and so without the lock.
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

    /// Sets the other stacks of the endpoint. Call it once.
    pub(crate) fn set_siblings(&self, siblings: Vec<Weak<Shared>>) {
        let _ = self.siblings.set(siblings);
    }

    /// Takes the lock. If the stack or a device that gathers has panicked while the lock was held, later
    /// callers see the state that the panic left.
    pub(crate) fn lock(&self) -> Locked<'_> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        Locked { inner, retired: Vec::new() }
    }

    /// True if a holder of the lock has panicked.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.inner.is_poisoned()
    }

    /// Runs `action` under the lock and then wakes the driver, to send the resulting packets.
    pub(crate) fn act<T>(&self, action: impl FnOnce(&mut Inner) -> T) -> T {
        let mut inner = self.lock();
        let result = action(&mut inner);
        let driver = inner.take_driver_waker();
        drop(inner);
        if let Some(driver) = driver {
            driver.wake();
        }
        result
    }

    /// Records that the driver has ended, and wakes every waiting task. If the stack was still in use, the
    /// other stacks of the endpoint end too. Otherwise new connections of this stack would get no answer, and
    /// no handle would report it. The drivers of a closed endpoint end by themselves.
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

    /// Closes the listeners, and the sending side of every connection.
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

    /// Aborts the remaining connections and lets the driver end. Returns how many of them were not in
    /// TIME-WAIT.
    pub(crate) fn finish_close(&self) -> usize {
        let now = self.clock.now();
        self.act(|inner| {
            inner.closed = true;
            let left = inner.stack.connections().saturating_sub(inner.stack.time_waits());
            inner.stack.abort_all(now);
            left
        })
    }

    /// Records the end of this driver only, and wakes every waiting task; false if it had ended before.
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
    /// Returns an error if the driver has ended.
    pub(crate) fn check_driver(&self) -> io::Result<()> {
        self.ended.as_ref().map_or(Ok(()), |ended| Err(ended.error()))
    }

    /// Returns an error if no connection, listener or request can begin.
    pub(crate) fn check_open(&self) -> io::Result<()> {
        self.check_driver()?;
        if self.closing { Err(endpoint_closed()) } else { Ok(()) }
    }

    pub(crate) fn waiting(&mut self, id: ConnId) -> &mut Waiting {
        if self.connections.len() <= id.index() {
            self.connections.resize_with(id.index() + 1, || None);
        }
        let at = &mut self.connections[id.index()];
        if let Some((_, forgotten)) = at.take_if(|(known, _)| *known != id) {
            forgotten.take_into(&mut self.retired);
        }
        let (_, waiting) = at.get_or_insert_with(|| (id, Waiting::default()));
        waiting
    }

    pub(crate) fn forget(&mut self, id: ConnId) {
        let at = self.connections.get_mut(id.index());
        if let Some((_, forgotten)) = at.and_then(|at| at.take_if(|(known, _)| *known == id)) {
            forgotten.take_into(&mut self.retired);
        }
    }

    /// Adds a task that waits for data to read.
    pub(crate) fn add_reader(&mut self, id: ConnId, waiter: Waiter, cx: &Context<'_>) {
        let replaced = self.waiting(id).readers.add(waiter, cx);
        self.retired.extend(replaced);
    }

    /// Adds a task that waits for space in the send buffer, or for another state of the connection.
    pub(crate) fn add_writer(&mut self, id: ConnId, waiter: Waiter, cx: &Context<'_>) {
        let replaced = self.waiting(id).writers.add(waiter, cx);
        self.retired.extend(replaced);
    }

    /// Removes a waiting future of this connection.
    pub(crate) fn leave(&mut self, id: ConnId, waiter: Waiter) {
        let mut removed = [None, None];
        self.update_waiting(id, |waiting| {
            removed = [waiting.readers.remove(waiter), waiting.writers.remove(waiter)];
        });
        self.retired.extend(removed.into_iter().flatten());
    }

    /// Limits the wait of a deferred SYN for the first write to [`FIRST_WRITE`].
    pub(crate) fn open_soon(&mut self, id: ConnId, now: Instant) {
        self.deferred.push_back((id, now + FIRST_WRITE));
    }

    /// Sends the deferred SYNs that are due. Returns when the next one is due.
    pub(crate) fn send_deferred(&mut self, now: Instant) -> Option<Instant> {
        while let Some((id, _)) = self.deferred.pop_front_if(|(_, at)| *at <= now) {
            self.stack.send_deferred_syn(id, now);
        }
        self.deferred.front().map(|(_, at)| *at)
    }

    pub(crate) fn add_listener(&mut self, id: ListenerId) {
        self.listeners.entry(id).or_default();
    }

    /// Adds a task that waits for a connection to accept.
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

    /// Adds a task that waits for a request, if there is a forwarder.
    pub(crate) fn add_forwarder(&mut self, waiter: Waiter, cx: &Context<'_>) {
        let replaced = self.forwarder.as_mut().and_then(|waiting| waiting.add(waiter, cx));
        self.retired.extend(replaced);
    }

    pub(crate) fn remove_forwarder(&mut self, waiter: Waiter) {
        let removed = self.forwarder.as_mut().and_then(|waiting| waiting.remove(waiter));
        self.retired.extend(removed);
    }

    pub(crate) fn forget_forwarder(&mut self) {
        if let Some(mut waiting) = self.forwarder.take() {
            waiting.take_into(&mut self.retired);
        }
    }

    /// True if no connection is left except in TIME-WAIT. TIME-WAIT only guards against old duplicates and
    /// acknowledges a repeated FIN. All data is delivered by then, so the end of a device or a program need
    /// not wait a minute for it.
    pub(crate) fn is_idle(&self) -> bool {
        self.stack.connections() == self.stack.time_waits()
    }

    /// Adds a task that waits for [`Inner::is_idle`].
    pub(crate) fn add_idle(&mut self, waiter: Waiter, cx: &Context<'_>) {
        let replaced = self.idle.add(waiter, cx);
        self.retired.extend(replaced);
    }

    pub(crate) fn remove_idle(&mut self, waiter: Waiter) {
        let removed = self.idle.remove(waiter);
        self.retired.extend(removed);
    }

    /// Removes the tasks that wait for [`Inner::is_idle`], for the caller to wake.
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

    /// Passes the facts of the endpoint's other stacks to this one.
    pub(crate) fn receive_facts(&mut self, now: Instant) {
        if let Some(exchange) = &self.exchange {
            exchange.receive(&mut self.stack, now);
        }
    }

    /// Records that the driver begins a round and that `waker` wakes it from now on.
    pub(crate) fn driver_runs(&mut self, waker: &Waker, now: Instant) {
        self.receive_facts(now);
        self.driver_awake = false;
        if !self.driver.as_ref().is_some_and(|known| known.will_wake(waker)) {
            self.retired.extend(self.driver.replace(waker.clone()));
        }
    }

    /// True if a handle has acted since the driver's latest round began.
    pub(crate) fn is_driver_woken(&self) -> bool {
        self.driver_awake
    }

    /// Returns the waker of the driver, unless it was woken since its last round.
    pub(crate) fn take_driver_waker(&mut self) -> Option<Waker> {
        if std::mem::replace(&mut self.driver_awake, true) { None } else { self.driver.clone() }
    }

    /// Collects the wakers of tasks that wait for the stack's events, and sends new facts to the other
    /// stacks.
    pub(crate) fn take_events(&mut self, woken: &mut Vec<Waker>) {
        while let Some(event) = self.stack.poll_event() {
            match event {
                Event::Incoming(id) => {
                    if let Some(acceptors) = self.listeners.get_mut(&id) {
                        acceptors.take_into(woken);
                    }
                }
                // No task waits for a connection before it is accepted; `accept` reads its state from the
                // stack.
                Event::Connected(id) => self.update_waiting(id, |waiting| {
                    waiting.connected = true;
                    waiting.writers.take_into(woken);
                }),
                Event::Readable(id) => self.update_waiting(id, |waiting| waiting.readers.take_into(woken)),
                Event::Writable(id) => self.update_waiting(id, |waiting| waiting.writers.take_into(woken)),
                Event::Closed(id, reason) => self.update_waiting(id, |waiting| {
                    waiting.closed = Some(reason);
                    waiting.readers.take_into(woken);
                    waiting.writers.take_into(woken);
                }),
                _ => {}
            }
        }
        if let Some(waiting) = self.forwarder.as_mut().filter(|_| self.stack.has_request()) {
            waiting.take_into(woken);
        }
        if let Some(exchange) = &self.exchange {
            exchange.send(&mut self.stack);
        }
    }

    fn update_waiting(&mut self, id: ConnId, what: impl FnOnce(&mut Waiting)) {
        if let Some(Some((known, waiting))) = self.connections.get_mut(id.index())
            && *known == id
        {
            what(waiting);
        }
    }
}

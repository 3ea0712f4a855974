//! [`TcpListener`]: accepts connections.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use brisk_tcp::fast_open::{FastOpenListen, FirstData, KeySource, ReplayMemory, ReplayVerdict};
use brisk_tcp::time::Instant;
use brisk_tcp::{ConnId, ListenConfig, ListenerId};
use tokio::task::coop::poll_proceed;

use crate::connection::Connection;
use crate::endpoint::Endpoint;
use crate::error;
use crate::shared::{Locked, Shared};
use crate::stream::TcpStream;
use crate::waiters::{Waiter, wait};

/// A listening port of an endpoint. Dropping it closes the port and resets connections that were not
/// accepted.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use brisk_runtime::memory::{self, LinkSpec};
/// # let (client, server) = memory::network(&LinkSpec::default(), 1)?;
/// use brisk_runtime::{ListenConfig, TcpListener};
/// use std::future::poll_fn;
///
/// let config = ListenConfig { backlog: 4096, ..ListenConfig::default() };
/// let listener = TcpListener::bind_with(&server, "10.0.0.2:0".parse()?, config)?;
/// let _stream = client.connect(listener.local_addr()).await?;
/// let (_accepted, from) = poll_fn(|cx| listener.poll_accept(cx)).await?;
/// assert_eq!(from.ip(), client.addresses()[0]);
///
/// // One listener for each stack of the endpoint.
/// assert_eq!(listener.split().len(), server.stacks());
/// # Ok(())
/// # }
/// ```
pub struct TcpListener {
    /// One part in each stack of the endpoint.
    parts: Vec<Part>,
    /// Index of the part that `accept` examines first.
    next: AtomicUsize,
    local: SocketAddr,
}

/// The listener of one stack.
struct Part {
    shared: Arc<Shared>,
    id: ListenerId,
}

impl TcpListener {
    /// Listens on `local` with the endpoint's settings. Port 0 lets the stack choose; an unspecified address
    /// means every address of its family.
    ///
    /// # Errors
    /// `AddrInUse`, or `AddrNotAvailable` if the address is not one of the endpoint's.
    pub fn bind(endpoint: &Endpoint, local: SocketAddr) -> io::Result<TcpListener> {
        let config = ListenConfig { tcp: endpoint.tcp_config().clone(), ..ListenConfig::default() };
        TcpListener::bind_with(endpoint, local, config)
    }

    /// Like [`bind`](TcpListener::bind), with the given settings. The stacks of an endpoint divide the limits
    /// of `config` among themselves.
    ///
    /// # Errors
    /// As [`bind`](TcpListener::bind); `InvalidInput` for a setting out of its range. Also `InvalidInput` for
    /// one-time cookies on an endpoint with several stacks, because each stack would honour a cookie once.
    pub fn bind_with(
        endpoint: &Endpoint,
        local: SocketAddr,
        config: ListenConfig,
    ) -> io::Result<TcpListener> {
        config.validate().map_err(error::config)?;
        let shards = endpoint.shards();
        let config = part_of(config, shards.count())?;
        let (mut at, mut parts) = (local, Vec::new());
        for shared in shards.iter() {
            let part = shared.act(|inner| {
                inner.check_open()?;
                let id = inner.stack.listen(at, config.clone()).map_err(error::listen)?;
                inner.add_listener(id);
                inner.add_handle();
                at = inner.stack.listener_addr(id).unwrap_or(at);
                io::Result::Ok(Part { shared: shared.clone(), id })
            });
            parts.push(part?);
        }
        share_replays(&parts);
        Ok(TcpListener { parts, next: AtomicUsize::new(0), local: at })
    }

    /// Splits into one listener for each stack of the endpoint, in the order of the stacks. Use it to accept
    /// a stack's connections on the stack's core ([`Cores`](crate::Cores)).
    pub fn split(self) -> Vec<TcpListener> {
        let TcpListener { parts, next: _, local } = self;
        let alone = |part| TcpListener { parts: vec![part], next: AtomicUsize::new(0), local };
        parts.into_iter().map(alone).collect()
    }

    /// Waits for the next connection; returns it and the address of its peer. Cancel-safe.
    ///
    /// # Errors
    /// If the endpoint's device has failed, or the endpoint was closed.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        wait(|cx, waiter| self.poll_accept_as(waiter, cx), |waiter| self.leave(waiter)).await
    }

    /// Like [`accept`](TcpListener::accept), for use in a `poll` function. If several tasks poll, only the
    /// last one to poll is woken.
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        self.poll_accept_as(Waiter::POLL, cx)
    }

    fn poll_accept_as(
        &self,
        waiter: Waiter,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        let turn = ready!(poll_proceed(cx));
        // The start rotates, so that a stack with many connections does not starve the others.
        let first = if self.parts.len() > 1 { self.next.fetch_add(1, Ordering::Relaxed) } else { 0 };
        let in_turn =
            || (0..self.parts.len()).map(|n| &self.parts[(first.wrapping_add(n)) % self.parts.len()]);
        if self.parts.len() > 1
            && let Some(accepted) = in_turn().find_map(Part::accept)
        {
            turn.made_progress();
            return Poll::Ready(Ok(accepted));
        }
        for part in in_turn() {
            if let Poll::Ready(accepted) = part.poll_accept(waiter, cx) {
                turn.made_progress();
                if self.parts.len() > 1 {
                    self.leave(waiter);
                }
                return Poll::Ready(accepted);
            }
        }
        Poll::Pending
    }

    fn leave(&self, waiter: Waiter) {
        self.parts.iter().for_each(|part| part.shared.lock().remove_acceptor(part.id, waiter));
    }

    /// Sets the Fast Open keys of this listener only; returns false if it does not use Fast Open.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use brisk_runtime::memory::{self, LinkSpec};
    /// # let (_client, server) = memory::network(&LinkSpec::default(), 1)?;
    /// use brisk_runtime::{KeySource, TcpSocket};
    ///
    /// let mut socket = TcpSocket::new(&server);
    /// socket.bind("10.0.0.2:80".parse()?);
    /// socket.fast_open(16);
    /// let listener = socket.listen(128)?;
    /// let keys = KeySource::parse("00112233-44556677-8899aabb-ccddeeff")?;
    /// assert!(listener.set_fast_open_keys(keys.clone()));
    /// assert_eq!(listener.fast_open_pending(), 0);
    /// // For all listeners that have no keys of their own:
    /// server.set_fast_open_keys(keys);
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_fast_open_keys(&self, keys: KeySource) -> bool {
        let mut installed = true;
        for part in &self.parts {
            installed &= part.shared.lock().stack.set_listener_fast_open_keys(part.id, keys.clone());
        }
        installed
    }

    /// Returns the number of connections that SYN data opened and whose handshake the client has not
    /// completed yet. Connections that a reset ended a short time ago count too.
    pub fn fast_open_pending(&self) -> usize {
        let of = |part: &Part| {
            let now = part.shared.clock.now();
            part.shared.lock().stack.fast_open_pending(part.id, now)
        };
        self.parts.iter().map(of).sum()
    }

    /// Returns the local address and port.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }
}

impl fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpListener").field("local", &self.local).finish_non_exhaustive()
    }
}

impl Part {
    fn accept(&self) -> Option<(TcpStream, SocketAddr)> {
        let mut inner = self.shared.lock();
        let (id, remote) = inner.stack.accept(self.id)?;
        Some((self.hand_out(inner, id, remote), remote))
    }

    fn poll_accept(&self, waiter: Waiter, cx: &mut Context<'_>) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        let mut inner = self.shared.lock();
        if let Some((id, remote)) = inner.stack.accept(self.id) {
            return Poll::Ready(Ok((self.hand_out(inner, id, remote), remote)));
        }
        inner.check_open()?;
        inner.add_acceptor(self.id, waiter, cx);
        Poll::Pending
    }

    fn hand_out(&self, mut inner: Locked<'_>, id: ConnId, remote: SocketAddr) -> TcpStream {
        let connection = Connection::register(&self.shared, &mut inner, id, remote);
        // If the connection has data, the application reads it at once, and reading wakes the driver.
        let driver = if inner.stack.readable(id) == 0 { inner.take_driver_waker() } else { None };
        drop(inner);
        if let Some(driver) = driver {
            driver.wake();
        }
        TcpStream::new(connection)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let now = self.shared.clock.now();
        self.shared.act(|inner| {
            inner.stack.close_listener(self.id, now);
            inner.forget_listener(self.id);
            inner.drop_handle();
        });
    }
}

/// Gives all stacks one replay memory: a replayed SYN with another source port may be assigned to another
/// stack.
fn share_replays(parts: &[Part]) {
    let [first, others @ ..] = parts else { return };
    if others.is_empty() {
        return;
    }
    let shared = first.shared.act(|inner| {
        let replays = inner.stack.take_replays(first.id)?;
        let shared = SharedReplays(Arc::new(Mutex::new(replays)));
        inner.stack.set_replays(first.id, shared.clone());
        Some(shared)
    });
    let Some(shared) = shared else { return };
    for part in others {
        part.shared.act(|inner| inner.stack.set_replays(part.id, shared.clone()));
    }
}

/// A replay memory for several stacks. Only SYNs with data and a valid cookie use it.
#[derive(Clone, Debug)]
struct SharedReplays(Arc<Mutex<Box<dyn ReplayMemory>>>);

impl ReplayMemory for SharedReplays {
    fn check(&mut self, syn: &FirstData<'_>, now: Instant) -> ReplayVerdict {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).check(syn, now)
    }
}

/// Returns the limits of one of `count` stacks. The limit per client is not divided, because all connections
/// of a client may belong to one stack.
fn part_of(config: ListenConfig, count: usize) -> io::Result<ListenConfig> {
    if count == 1 {
        return Ok(config);
    }
    let share = |limit: u16| limit.div_ceil(u16::try_from(count).unwrap_or(u16::MAX));
    let fast_open = config
        .fast_open
        .map(|fast_open| FastOpenListen { max_pending: share(fast_open.max_pending), ..fast_open });
    if fast_open.as_ref().is_some_and(|fast_open| fast_open.one_time) {
        let text = "one-time cookies need an endpoint with one stack: each of several would honour them once";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let max_half_open = config.max_half_open.div_ceil(count);
    Ok(ListenConfig { backlog: config.backlog.div_ceil(count), max_half_open, fast_open, ..config })
}

//! [`TcpListener`]: accepts connections.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use brisk_tcp::fast_open::KeySource;
use brisk_tcp::{ListenConfig, ListenerId};
use tokio::task::coop::poll_proceed;

use crate::connection::Connection;
use crate::endpoint::Endpoint;
use crate::error;
use crate::shared::Shared;
use crate::stream::TcpStream;
use crate::waiters::{Waiter, wait};

/// A port of an endpoint on which connections are accepted. Dropping it closes it; connections that were not accepted
/// are reset.
#[derive(Debug)]
pub struct TcpListener {
    shared: Arc<Shared>,
    id: ListenerId,
    local: SocketAddr,
}

impl TcpListener {
    /// Listens on `local` with the endpoint's settings. Port 0 lets the stack choose; an unspecified address stands for
    /// every address of its family.
    ///
    /// # Errors
    /// `AddrInUse`, or `AddrNotAvailable` if the address is not one of the endpoint's.
    pub fn bind(endpoint: &Endpoint, local: SocketAddr) -> io::Result<TcpListener> {
        let config = ListenConfig { tcp: endpoint.tcp_config().clone(), ..ListenConfig::default() };
        TcpListener::bind_with(endpoint, local, config)
    }

    /// As [`bind`](TcpListener::bind), with settings of its own.
    ///
    /// # Errors
    /// As [`bind`](TcpListener::bind); `InvalidInput` for a setting out of its range.
    pub fn bind_with(
        endpoint: &Endpoint,
        local: SocketAddr,
        config: ListenConfig,
    ) -> io::Result<TcpListener> {
        config.tcp.validate().map_err(error::config)?;
        let shared = endpoint.shared();
        shared.act(|inner| {
            inner.check_driver()?;
            let id = inner.stack.listen(local, config).map_err(error::listen)?;
            inner.acceptors(id);
            inner.add_handle();
            let local = inner.stack.listener_addr(id).unwrap_or(local);
            Ok(TcpListener { shared: shared.clone(), id, local })
        })
    }

    /// The next connection and the address of its peer. Cancel-safe.
    ///
    /// # Errors
    /// If the endpoint's device has failed.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let leave = |waiter| self.shared.lock().acceptors(self.id).remove(waiter);
        wait(|cx, waiter| self.poll_accept_as(waiter, cx), leave).await
    }

    /// As [`accept`](TcpListener::accept), for use in a `poll` function. Of several tasks that poll, the latest is woken.
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        self.poll_accept_as(Waiter::POLL, cx)
    }

    fn poll_accept_as(
        &self,
        waiter: Waiter,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        let turn = ready!(poll_proceed(cx));
        let mut inner = self.shared.lock();
        if let Some((id, remote)) = inner.stack.accept(self.id) {
            turn.made_progress();
            let connection = Connection::register(&self.shared, &mut inner, id, remote);
            // Who finds something to read reads it now, and the driver has something to do then.
            let driver = if inner.stack.readable(id) == 0 { inner.rouse_driver() } else { None };
            drop(inner);
            if let Some(driver) = driver {
                driver.wake();
            }
            return Poll::Ready(Ok((TcpStream::new(connection), remote)));
        }
        inner.check_driver()?;
        inner.acceptors(self.id).add(waiter, cx);
        Poll::Pending
    }

    /// Installs keys for Fast Open at this listener alone. False if it does not use Fast Open.
    pub fn set_fast_open_keys(&self, keys: KeySource) -> bool {
        self.shared.lock().stack.set_listener_fast_open_keys(self.id, keys)
    }

    /// Connections that data of their SYN opened and that the client has not acknowledged yet, with those that a reset
    /// ended a short time ago.
    pub fn fast_open_pending(&self) -> usize {
        let now = self.shared.clock.now();
        self.shared.lock().stack.fast_open_pending(self.id, now)
    }

    /// The address and port that are listened on.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        let now = self.shared.clock.now();
        self.shared.act(|inner| {
            inner.stack.close_listener(self.id, now);
            inner.forget_listener(self.id);
            inner.drop_handle();
        });
    }
}

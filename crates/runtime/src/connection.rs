//! The operations that a stream has in common with its two halves.
//!
//! Reading and writing spend the task's cooperative budget, as tokio's own sockets do. Without it, a task
//! with endless data to move would keep the driver from running.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker, ready};

use brisk_tcp::config::{ConnectConfig, KeepaliveConfig};
use brisk_tcp::connection::ConnStats;
use brisk_tcp::error::{CloseReason, ReadError, WriteError};
use brisk_tcp::stack::ConnMut;
use brisk_tcp::time::{Duration, Instant};
use brisk_tcp::{ConnId, Stack};
use bytes::Bytes;
use tokio::io::ReadBuf;
use tokio::task::coop::poll_proceed;

use crate::error;
use crate::shared::{Inner, Shared};
use crate::waiters::{Waiter, wait};

/// Implements reading and writing for a public type whose field `$field` is a `Connection`.
macro_rules! reads_and_writes {
    (read $type:ty, $field:tt) => {
        impl tokio::io::AsyncRead for $type {
            fn poll_read(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
                buffer: &mut tokio::io::ReadBuf<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                self.$field.poll_read(cx, buffer)
            }
        }
    };
    (write $type:ty, $field:tt) => {
        impl tokio::io::AsyncWrite for $type {
            fn poll_write(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
                data: &[u8],
            ) -> std::task::Poll<std::io::Result<usize>> {
                self.$field.poll_write(cx, &[std::io::IoSlice::new(data)])
            }

            fn poll_write_vectored(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
                slices: &[std::io::IoSlice<'_>],
            ) -> std::task::Poll<std::io::Result<usize>> {
                self.$field.poll_write(cx, slices)
            }

            fn is_write_vectored(&self) -> bool {
                true
            }

            /// Does nothing: written data is queued for sending already, as with a kernel socket.
            fn poll_flush(
                self: std::pin::Pin<&mut Self>,
                _: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                std::task::Poll::Ready(Ok(()))
            }

            /// Closes for writing; the stream can still be read.
            fn poll_shutdown(
                self: std::pin::Pin<&mut Self>,
                _: &mut std::task::Context<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                std::task::Poll::Ready(self.$field.shutdown())
            }
        }
    };
}
pub(crate) use reads_and_writes;

/// The application's handle to a connection of the stack. Dropping it closes the connection gracefully, or
/// resets it if the application has asked for that.
#[derive(Debug)]
pub(crate) struct Connection {
    shared: Arc<Shared>,
    id: ConnId,
    local: SocketAddr,
    remote: SocketAddr,
    reset_on_drop: AtomicBool,
    /// True while the SYN waits for the first write and no task waits for the handshake or for data.
    is_deferred: AtomicBool,
    /// True if a write has reported why the connection ended.
    write_failed: AtomicBool,
}

impl Connection {
    /// Starts an active open; returns how many bytes of `data` were queued behind the SYN.
    pub(crate) fn open(
        shared: &Arc<Shared>,
        remote: SocketAddr,
        data: &[u8],
        config: &ConnectConfig,
    ) -> io::Result<(Connection, usize)> {
        let now = shared.clock.now();
        shared.act(|inner| {
            inner.check_open()?;
            inner.receive_facts(now);
            inner.loops |= inner.stack.config().addresses.contains(&remote.ip().to_canonical());
            let (id, taken) =
                inner.stack.connect_with_data(remote, data, config, now).map_err(error::connect)?;
            let connection = Connection::register(shared, inner, id, remote);
            let defers = config.fast_open.is_some_and(|fast_open| fast_open.defer) && taken == 0;
            connection.is_deferred.store(defers, Ordering::Relaxed);
            Ok((connection, taken))
        })
    }

    /// True if the SYN waits for the first write. If the SYN cannot carry data, sends it now and returns
    /// false.
    pub(crate) fn waits_for_first_write(&self) -> bool {
        if !self.is_deferred.load(Ordering::Relaxed) {
            return false;
        }
        let now = self.shared.clock.now();
        self.shared.act(|inner| {
            if inner.stack.conn_info(self.id).is_some_and(|info| info.syn_room.is_some()) {
                return true;
            }
            self.is_deferred.store(false, Ordering::Relaxed);
            inner.stack.send_deferred_syn(self.id, now);
            false
        })
    }

    /// Limits the wait of a deferred SYN for the first write to a few milliseconds, because a task now waits
    /// for the connection. Returns the driver's waker.
    fn wait_begins(&self, inner: &mut Inner) -> Option<Waker> {
        if !self.is_deferred.load(Ordering::Relaxed) || !self.is_deferred.swap(false, Ordering::Relaxed) {
            return None;
        }
        inner.open_soon(self.id, self.shared.clock.now());
        inner.take_driver_waker()
    }

    /// Creates the handle of a connection that the stack has opened. The caller holds the lock.
    pub(crate) fn register(
        shared: &Arc<Shared>,
        inner: &mut Inner,
        id: ConnId,
        remote: SocketAddr,
    ) -> Connection {
        inner.waiting(id);
        inner.add_handle();
        let unknown = SocketAddr::new(std::net::Ipv4Addr::UNSPECIFIED.into(), 0);
        let local = inner.stack.local_addr(id).unwrap_or(unknown);
        Connection {
            shared: shared.clone(),
            id,
            local,
            remote,
            reset_on_drop: AtomicBool::new(false),
            is_deferred: AtomicBool::new(false),
            write_failed: AtomicBool::new(false),
        }
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.local
    }

    pub(crate) fn remote_addr(&self) -> SocketAddr {
        self.remote
    }

    /// Waits until the handshake is complete or has failed.
    pub(crate) async fn connected(&self) -> io::Result<()> {
        self.wait(|cx, waiter| self.poll_connected_as(waiter, cx)).await
    }

    /// Waits until the connection has failed; never resolves if it ends normally.
    pub(crate) async fn failed(&self) -> io::Error {
        self.wait(|cx, waiter| self.poll_failed(waiter, cx)).await
    }

    /// Waits until the connection has ended.
    pub(crate) async fn ended(&self) {
        self.wait(|cx, waiter| self.poll_ended(waiter, cx)).await;
    }

    /// Waits for received data and copies it without removing it.
    pub(crate) async fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.wait(|cx, waiter| self.poll_bytes(waiter, cx, |inner, _| inner.stack.peek(self.id, buffer)))
            .await
    }

    async fn wait<T>(&self, poll: impl FnMut(&mut Context<'_>, Waiter) -> Poll<T>) -> T {
        wait(poll, |waiter| self.shared.lock().leave(self.id, waiter)).await
    }

    /// Ready once the handshake is complete, or has failed.
    pub(crate) fn poll_connected(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_connected_as(Waiter::HANDSHAKE, cx)
    }

    fn poll_connected_as(&self, waiter: Waiter, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut inner = self.shared.lock();
        let waiting = inner.waiting(self.id);
        if waiting.connected {
            return Poll::Ready(Ok(()));
        }
        if let Some(reason) = waiting.closed {
            return Poll::Ready(Err(error::closed(reason)));
        }
        inner.add_writer(self.id, waiter, cx);
        inner.check_driver()?;
        let driver = self.wait_begins(&mut inner);
        drop(inner);
        driver.into_iter().for_each(Waker::wake);
        Poll::Pending
    }

    /// Ready once the connection has failed; never after a normal end.
    fn poll_failed(&self, waiter: Waiter, cx: &mut Context<'_>) -> Poll<io::Error> {
        let mut inner = self.shared.lock();
        if let Err(error) = inner.check_driver() {
            return Poll::Ready(error);
        }
        match inner.waiting(self.id).closed {
            Some(CloseReason::Finished) => Poll::Pending,
            Some(reason) => Poll::Ready(error::closed(reason)),
            None => {
                inner.add_reader(self.id, waiter, cx);
                Poll::Pending
            }
        }
    }

    /// Ready once the connection has ended.
    fn poll_ended(&self, waiter: Waiter, cx: &mut Context<'_>) -> Poll<()> {
        let mut inner = self.shared.lock();
        if inner.waiting(self.id).closed.is_some() || inner.check_driver().is_err() {
            return Poll::Ready(());
        }
        inner.add_writer(self.id, waiter, cx);
        Poll::Pending
    }

    pub(crate) fn poll_read(&self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let unfilled = buffer.initialize_unfilled();
        let read = self.poll_taken(Waiter::POLL, cx, |stack, now| stack.read(self.id, unfilled, now));
        read.map_ok(|count| buffer.advance(count))
    }

    /// Reads, and wakes the driver. The driver then announces the window that reading may have opened, and
    /// ends the turn of woken tasks (`driver::READERS_TURN`).
    fn poll_taken<T>(
        &self,
        waiter: Waiter,
        cx: &mut Context<'_>,
        read: impl FnOnce(&mut Stack, Instant) -> Result<T, ReadError>,
    ) -> Poll<io::Result<T>> {
        let mut driver = None;
        let taken = self.poll_bytes(waiter, cx, |inner, now| {
            driver = inner.take_driver_waker();
            read(&mut inner.stack, now)
        });
        if let Some(driver) = driver {
            driver.wake();
        }
        taken
    }

    /// Waits for received data and returns it, mostly without a copy (`TcpStream::read_bytes`).
    pub(crate) async fn read_bytes(&self, max: usize) -> io::Result<Bytes> {
        self.wait(|cx, waiter| self.poll_take(waiter, cx, max)).await
    }

    pub(crate) fn poll_read_bytes(&self, cx: &mut Context<'_>, max: usize) -> Poll<io::Result<Bytes>> {
        self.poll_take(Waiter::POLL, cx, max)
    }

    fn poll_take(&self, waiter: Waiter, cx: &mut Context<'_>, max: usize) -> Poll<io::Result<Bytes>> {
        self.poll_taken(waiter, cx, |stack, now| stack.read_bytes(self.id, max, now))
    }

    pub(crate) fn poll_peek(&self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        self.poll_bytes(Waiter::POLL, cx, |inner, _| inner.stack.peek(self.id, buffer))
    }

    fn poll_bytes<T>(
        &self,
        waiter: Waiter,
        cx: &mut Context<'_>,
        read: impl FnOnce(&mut Inner, Instant) -> Result<T, ReadError>,
    ) -> Poll<io::Result<T>> {
        let turn = ready!(poll_proceed(cx));
        let now = self.shared.clock.now();
        let mut inner = self.shared.lock();
        let result = read(&mut inner, now);
        match result.map_err(error::read) {
            Ok(taken) => {
                turn.made_progress();
                Poll::Ready(Ok(taken))
            }
            Err(Some(error)) => Poll::Ready(Err(error)),
            Err(None) => {
                inner.check_driver()?;
                inner.add_reader(self.id, waiter, cx);
                let driver = self.wait_begins(&mut inner);
                drop(inner);
                driver.into_iter().for_each(Waker::wake);
                Poll::Pending
            }
        }
    }

    /// Writes the slices in turn until the send buffer is full.
    pub(crate) fn poll_write(
        &self,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_given(Waiter::POLL, cx, |stack, now| {
            let mut written = 0;
            for slice in slices.iter().filter(|slice| !slice.is_empty()) {
                match stack.write(self.id, slice, now) {
                    Ok(count) => {
                        written += count;
                        if count < slice.len() {
                            break;
                        }
                    }
                    Err(_) if written > 0 => break,
                    Err(error) => return Err(error),
                }
            }
            Ok(written)
        })
    }

    /// Waits for space in the send buffer. Then queues as many bytes from the front of `bytes` as fit; long
    /// runs are not copied.
    pub(crate) async fn write_bytes(&self, bytes: &mut Bytes) -> io::Result<usize> {
        self.wait(|cx, waiter| self.poll_give(waiter, cx, bytes)).await
    }

    pub(crate) fn poll_write_bytes(
        &self,
        cx: &mut Context<'_>,
        bytes: &mut Bytes,
    ) -> Poll<io::Result<usize>> {
        self.poll_give(Waiter::POLL, cx, bytes)
    }

    fn poll_give(&self, waiter: Waiter, cx: &mut Context<'_>, bytes: &mut Bytes) -> Poll<io::Result<usize>> {
        self.poll_given(waiter, cx, |stack, now| stack.write_bytes(self.id, bytes, now))
    }

    /// Hands the stack data to send; waits if the send buffer is full.
    fn poll_given(
        &self,
        waiter: Waiter,
        cx: &mut Context<'_>,
        write: impl FnOnce(&mut Stack, Instant) -> Result<usize, WriteError>,
    ) -> Poll<io::Result<usize>> {
        let turn = ready!(poll_proceed(cx));
        let now = self.shared.clock.now();
        self.shared.act(|inner| {
            inner.check_driver()?;
            let written = write(&mut inner.stack, now).map_err(|error| match error {
                // As with the kernel, only the first write returns the reason why the connection ended.
                WriteError::Closed(reason) if self.write_failed.swap(true, Ordering::Relaxed) => {
                    Some(error::broken_pipe(reason))
                }
                error => error::write(error),
            });
            match written {
                Ok(count) => {
                    turn.made_progress();
                    Poll::Ready(Ok(count))
                }
                Err(Some(error)) => Poll::Ready(Err(error)),
                Err(None) => {
                    inner.add_writer(self.id, waiter, cx);
                    Poll::Pending
                }
            }
        })
    }

    pub(crate) async fn write_all_bytes(&self, mut bytes: Bytes) -> io::Result<()> {
        while !bytes.is_empty() {
            self.write_bytes(&mut bytes).await?;
        }
        Ok(())
    }

    /// Queues a FIN after the written data. Like `shutdown(2)`, it does not wait for the peer.
    pub(crate) fn shutdown(&self) -> io::Result<()> {
        let now = self.shared.clock.now();
        let result = self.shared.act(|inner| inner.stack.shutdown(self.id, now));
        match result.map_err(|error| (error, error::write(error))) {
            Ok(()) | Err((_, None)) => Ok(()),
            // The connection is already in the requested state.
            Err((WriteError::AfterClose, _)) => Ok(()),
            Err((WriteError::Closed(CloseReason::Finished), _)) => Ok(()),
            Err((_, Some(error))) => Err(error),
        }
    }

    pub(crate) fn abort(&self) {
        let now = self.shared.clock.now();
        self.shared.act(|inner| inner.stack.abort(self.id, now));
    }

    pub(crate) fn set_reset_on_drop(&self, reset: bool) {
        self.reset_on_drop.store(reset, Ordering::Relaxed);
    }

    /// Changes an option of the connection, if the stack still has the connection.
    fn change(&self, change: impl FnOnce(&mut ConnMut<'_>)) {
        self.shared.act(|inner| inner.stack.conn_mut(self.id).as_mut().map(change));
    }

    pub(crate) fn set_nodelay(&self, nodelay: bool) {
        self.change(|conn| conn.set_nodelay(nodelay));
    }

    pub(crate) fn set_keepalive(&self, keepalive: Option<KeepaliveConfig>) {
        self.change(|conn| conn.set_keepalive(keepalive));
    }

    pub(crate) fn set_user_timeout(&self, timeout: Option<Duration>) {
        self.change(|conn| conn.set_user_timeout(timeout));
    }

    pub(crate) fn hedge_wait(&self) -> Option<Duration> {
        self.shared.lock().stack.hedge_wait(self.id)
    }

    pub(crate) fn report_hedge_won(&self) {
        let now = self.shared.clock.now();
        self.shared.act(|inner| inner.stack.report_hedge_won(self.id, now));
    }

    pub(crate) fn stats(&self) -> Option<ConnStats> {
        self.shared.lock().stack.conn_stats(self.id)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let now = self.shared.clock.now();
        self.shared.act(|inner| {
            if self.reset_on_drop.load(Ordering::Relaxed) {
                inner.stack.abort(self.id, now);
            }
            inner.stack.release(self.id, now);
            inner.forget(self.id);
            inner.drop_handle();
        });
    }
}

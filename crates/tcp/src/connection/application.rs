//! Calls of the program: write, read, close, abort, options.

use alloc::boxed::Box;
use alloc::sync::Arc;

use bytes::Bytes;

use crate::config::{KeepaliveConfig, TcpConfig};
use crate::connection::Connection;
use crate::connection::outbox::Control;
use crate::connection::state::{Input, State};
use crate::connection::timer::Keepalive;
use crate::error::{CloseReason, ReadError, WriteError};
use crate::send::queue::SendQueue;
use crate::time::Instant;

impl Connection {
    /// Queues as much of `data` as fits. Data written during the handshake waits for it.
    pub(crate) fn write(&mut self, data: &[u8], now: Instant) -> Result<usize, WriteError> {
        self.write_with(data.len(), now, |queue| queue.write(data))
    }

    /// Queues at most `max` bytes like [`Connection::write`], but splits them off the front of `data`. A long
    /// run of bytes is not copied.
    pub(crate) fn write_bytes(
        &mut self,
        data: &mut Bytes,
        max: usize,
        now: Instant,
    ) -> Result<usize, WriteError> {
        self.write_with(data.len().min(max), now, |queue| queue.write_bytes(data, max))
    }

    /// Queues data: `write` stores as much of `len` bytes as fits, and returns how much.
    fn write_with(
        &mut self,
        len: usize,
        now: Instant,
        write: impl FnOnce(&mut SendQueue) -> usize,
    ) -> Result<usize, WriteError> {
        if let Some(reason) = self.closed {
            return Err(WriteError::Closed(reason));
        }
        if self.tx.queue.fin_queued() {
            return Err(WriteError::AfterClose);
        }
        if len == 0 {
            return Ok(0);
        }
        self.tx.check_app_limited();
        let taken = write(&mut self.tx.queue);
        if taken < len {
            self.tx.writer_waits = true;
        }
        if taken == 0 {
            return Err(WriteError::WouldBlock);
        }
        if self.tx.nagle.more {
            self.tx.queue.leave_open();
        } else {
            self.tx.queue.mark_push();
        }
        self.send_deferred_syn();
        self.update_timers(now);
        Ok(taken)
    }

    /// Queues data like [`Connection::write`]; if all of it fits, its last byte is marked as urgent.
    pub(crate) fn write_urgent(&mut self, data: &[u8], now: Instant) -> Result<usize, WriteError> {
        let taken = self.write(data, now)?;
        if taken == data.len() {
            self.urgent.on_write(self.tx.queue.end());
        }
        Ok(taken)
    }

    /// Returns the bytes that a write would accept now.
    pub(crate) fn writable(&self) -> usize {
        if self.closed.is_some() || self.tx.queue.fin_queued() { 0 } else { self.tx.queue.free() }
    }

    /// Reads bytes in order; `Ok(0)` is the end of the stream.
    pub(crate) fn read(&mut self, buffer: &mut [u8], now: Instant) -> Result<usize, ReadError> {
        let take = self.rx.readable_run(&mut self.urgent, self.tx.rtt.min_rtt(), now);
        if take == 0 {
            return self.nothing_to_read().map(|()| 0);
        }
        let wanted = buffer.len().min(take as usize);
        let read = self.rx.queue.read(&mut buffer[..wanted]);
        self.on_read(read, now);
        Ok(read)
    }

    /// Reads at most `max` bytes like [`Connection::read`], but without a copy if they are in a packet.
    pub(crate) fn read_bytes(&mut self, max: usize, now: Instant) -> Result<Bytes, ReadError> {
        let take = self.rx.readable_run(&mut self.urgent, self.tx.rtt.min_rtt(), now);
        if take == 0 {
            return self.nothing_to_read().map(|()| Bytes::new());
        }
        let bytes = self.rx.queue.take(max.min(take as usize));
        self.on_read(bytes.len(), now);
        Ok(bytes)
    }

    fn on_read(&mut self, read: usize, now: Instant) {
        self.rx.consumed(read, self.tx.rtt.min_rtt(), now);
        self.rx.ack.on_read(read, self.rx.queue.readable() == 0, self.rx.rcv_nxt());
        if self.state.receives()
            && self.state.is_synchronized()
            && self.rx.update_worthwhile(self.handshake.irs)
        {
            self.rx.ack.force();
        }
    }

    /// Reads like [`Connection::read`], but leaves the bytes in the receive buffer.
    pub(crate) fn peek(&mut self, buffer: &mut [u8], now: Instant) -> Result<usize, ReadError> {
        let take = self.rx.readable_run(&mut self.urgent, self.tx.rtt.min_rtt(), now);
        if take == 0 {
            return self.nothing_to_read().map(|()| 0);
        }
        let wanted = buffer.len().min(take as usize);
        Ok(self.rx.queue.peek(&mut buffer[..wanted]))
    }

    /// Returns `Ok` at the end of the stream, else the reason why there is nothing to read.
    fn nothing_to_read(&self) -> Result<(), ReadError> {
        if self.rx.at_end() {
            return Ok(());
        }
        match self.closed {
            Some(CloseReason::Finished) => Ok(()),
            Some(reason) => Err(ReadError::Closed(reason)),
            None => Err(ReadError::WouldBlock),
        }
    }

    /// Closes for writing: a FIN follows the queued data. Reading remains possible.
    pub(crate) fn shutdown(&mut self, now: Instant) -> Result<(), WriteError> {
        if let Some(reason) = self.closed {
            return Err(WriteError::Closed(reason));
        }
        if self.tx.queue.fin_queued() {
            return Ok(());
        }
        self.tx.queue.queue_fin();
        self.send_deferred_syn();
        if self.state != State::SynReceived {
            self.enter(self.state.after(Input::Close));
        }
        self.update_timers(now);
        Ok(())
    }

    /// Ends the connection with a reset; silently in SYN-SENT, CLOSING, LAST-ACK and TIME-WAIT (RFC 9293
    /// section 3.10.5).
    pub(crate) fn abort(&mut self) {
        if self.closed.is_some() {
            return;
        }
        let silent = matches!(self.state, State::SynSent | State::Closing | State::LastAck | State::TimeWait);
        if !silent {
            self.outbox.push(Control::Abort);
        }
        self.end(CloseReason::Aborted);
    }

    /// Releases the connection from its owner. Unread data causes a reset, as RFC 9293 section 3.6.1
    /// requires; otherwise the connection closes normally without its owner.
    pub(crate) fn release(&mut self, now: Instant) {
        self.released = true;
        self.rx.closed = true;
        if self.closed.is_some() {
            return;
        }
        if self.state == State::SynSent || self.rx.queue.readable() > 0 {
            return self.abort();
        }
        if self.shutdown(now).is_err() {
            return;
        }
        if self.state == State::FinWait2 {
            self.fin_wait_2_until = Some(now + self.config.fin_wait_2_timeout);
        }
    }

    /// Ends a connection whose listener was closed. An open connection ends with a reset, a half-open one
    /// silently: the stack resets a peer that continues the handshake.
    pub(crate) fn abandon(&mut self) {
        if self.closed.is_none() {
            if self.handshake.is_complete() || self.fast_open.is_opened_by_syn() {
                self.outbox.push(Control::Abort);
            }
            self.end(CloseReason::ListenerClosed);
        }
    }

    /// Returns the configuration, for changes that need nothing else.
    pub(crate) fn config_mut(&mut self) -> &mut TcpConfig {
        Arc::make_mut(&mut self.config)
    }

    /// Switches keepalive on or off. The timer starts when the handshake is complete.
    pub(crate) fn set_keepalive(&mut self, keepalive: Option<KeepaliveConfig>, now: Instant) {
        self.config_mut().keepalive = keepalive;
        let open = self.handshake.is_complete() && self.closed.is_none();
        self.keepalive = keepalive.filter(|_| open).map(|config| Box::new(Keepalive::new(config, now)));
    }
}

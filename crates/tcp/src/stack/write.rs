//! The application hands in what is to be sent.

use bytes::Bytes;

use super::slot::Phase;
use super::spares::Spares;
use super::{ConnId, Stack};
use crate::connection::Connection;
use crate::error::WriteError;
use crate::time::Instant;

impl Stack {
    /// Puts bytes into the send buffer; answers how many fitted.
    ///
    /// # Errors
    /// [`WriteError::WouldBlock`] if none fitted; an [`Event::Writable`](crate::Event::Writable) follows.
    pub fn write(&mut self, id: ConnId, data: &[u8], now: Instant) -> Result<usize, WriteError> {
        self.copy(id, data, now, Connection::write)
    }

    /// Takes bytes off the front of `data` and puts them into the send buffer; answers how many fitted. A run
    /// of 4 kB and more is not copied: it leaves from where it lies, and is let go of when it is
    /// acknowledged.
    ///
    /// It counts with its length in [`max_buffer_bytes`](crate::StackConfig::max_buffer_bytes), and in the
    /// send buffer of the connection; but what is a part of a longer buffer keeps that whole buffer for so
    /// long.
    ///
    /// # Errors
    /// As [`Stack::write`].
    pub fn write_bytes(&mut self, id: ConnId, data: &mut Bytes, now: Instant) -> Result<usize, WriteError> {
        self.write_within_memory(id, data.len(), now, |connection, _, most| {
            connection.write_bytes(data, most, now)
        })
    }

    /// Puts bytes into the send buffer, the last of them urgent (RFC 9293 section 3.8.5).
    ///
    /// # Errors
    /// As [`Stack::write`].
    pub fn write_urgent(&mut self, id: ConnId, data: &[u8], now: Instant) -> Result<usize, WriteError> {
        self.copy(id, data, now, Connection::write_urgent)
    }

    /// Notes that the program waits for the end of the handshake with data to write: the acknowledgement of
    /// the SYN-ACK waits for that data, as long as a delayed one.
    pub fn await_write(&mut self, id: ConnId) {
        if let Some(slot) = self.slots.at_mut(id).filter(|slot| slot.phase == Phase::Owned) {
            slot.connection.await_write();
        }
    }

    /// Writes as much of `data` as there is memory for into the storage of a connection, which may be that of
    /// one that is gone.
    fn copy(
        &mut self,
        id: ConnId,
        data: &[u8],
        now: Instant,
        write: impl FnOnce(&mut Connection, &[u8], Instant) -> Result<usize, WriteError>,
    ) -> Result<usize, WriteError> {
        self.write_within_memory(id, data.len(), now, |connection, spares, most| {
            if let Some(storage) = spares.take_to_send(connection.wanted_to_send(most)) {
                connection.lend_to_send(storage);
            }
            write(connection, data.get(..most).unwrap_or(data), now)
        })
    }

    /// Lets `write` hand a connection as much of `len` bytes as there is memory for.
    fn write_within_memory(
        &mut self,
        id: ConnId,
        len: usize,
        now: Instant,
        write: impl FnOnce(&mut Connection, &mut Spares, usize) -> Result<usize, WriteError>,
    ) -> Result<usize, WriteError> {
        let left = self.memory_left_to_writes();
        self.lend(id, now);
        let owned = self.slots.at_mut(id).filter(|slot| slot.phase == Phase::Owned);
        let connection = &mut owned.ok_or(WriteError::NoConnection)?.connection;
        if left == 0 && len > 0 && connection.writable() > 0 {
            self.wait_for_memory(id);
            return Err(WriteError::WouldBlock);
        }
        // Without memory the connection takes nothing here: its buffer is full, or it is closed. It reports
        // which only if it is offered something.
        let (written, aftermath) =
            connection.act(now, |connection| write(connection, &mut self.spares, len.min(left.max(1))));
        if written == Ok(left) && left < len {
            // The memory ended before the data did.
            self.wait_for_memory(id);
        }
        self.after(id, aftermath, now);
        written
    }
}

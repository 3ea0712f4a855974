//! Calls of the application that take received data.

use bytes::Bytes;

use super::{ConnId, Stack};
use crate::connection::Connection;
use crate::error::ReadError;
use crate::time::Instant;

impl Stack {
    /// Takes received bytes; 0 is the end of the stream.
    ///
    /// # Errors
    /// [`ReadError::WouldBlock`] if there is nothing yet; an [`Event::Readable`](crate::Event::Readable)
    /// follows.
    pub fn read(&mut self, id: ConnId, buffer: &mut [u8], now: Instant) -> Result<usize, ReadError> {
        self.take(id, now, |connection| connection.read(buffer, now))
    }

    /// Takes received bytes, at most `most`, without a copy if they lie in a packet that was [handed in by
    /// reference](Stack::on_packet_shared); others are copied. Returns one contiguous piece, which may be
    /// less than there is. Empty is the end of the stream, or the result for a `most` of 0.
    ///
    /// A caller that keeps them keeps the whole buffer that they lie in, which the stack no longer counts:
    /// [`max_buffer_bytes`](crate::StackConfig::max_buffer_bytes) bounds only data that has not been taken.
    /// The buffer is that of a packet, some 64 kB, or the receive buffer of the connection when a long packet
    /// came behind the data in it.
    ///
    /// # Errors
    /// As [`Stack::read`].
    pub fn read_bytes(&mut self, id: ConnId, most: usize, now: Instant) -> Result<Bytes, ReadError> {
        self.take(id, now, |connection| connection.read_bytes(most, now))
    }

    fn take<T>(
        &mut self,
        id: ConnId,
        now: Instant,
        read: impl FnOnce(&mut Connection) -> Result<T, ReadError>,
    ) -> Result<T, ReadError> {
        let slot = self.owned_mut(id).ok_or(ReadError::NoConnection)?;
        let connection = &mut slot.connection;
        // A read without data changes nothing.
        if connection.readable() == 0 {
            return read(connection);
        }
        let (taken, aftermath) = connection.act(now, read);
        self.after(id, aftermath, now);
        taken
    }

    /// Copies received bytes without taking them; 0 is the end of the stream.
    ///
    /// # Errors
    /// As [`Stack::read`].
    pub fn peek(&mut self, id: ConnId, buffer: &mut [u8]) -> Result<usize, ReadError> {
        let clock = self.clock;
        self.owned_mut(id).ok_or(ReadError::NoConnection)?.connection.peek(buffer, clock)
    }

    /// Takes the urgent byte that left the stream ([`crate::config::UrgentPolicy::OutOfBand`]).
    ///
    /// # Errors
    /// [`ReadError::WouldBlock`] if there is none.
    pub fn read_urgent(&mut self, id: ConnId) -> Result<u8, ReadError> {
        self.owned_mut(id).ok_or(ReadError::NoConnection)?.connection.read_urgent()
    }

    /// Bytes that [`Stack::read`] would return now.
    pub fn readable(&self, id: ConnId) -> usize {
        self.owned(id).map_or(0, |slot| slot.connection.readable())
    }
}

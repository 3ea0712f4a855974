//! Reads and writes of the application.

use bytes::Bytes;

use super::slot::Ownership;
use super::spares::Spares;
use super::{ConnId, Stack};
use crate::connection::Connection;
use crate::error::{ReadError, WriteError};
use crate::time::Instant;

impl Stack {
    /// Appends bytes to the send buffer; returns how many fitted.
    ///
    /// # Errors
    /// [`WriteError::WouldBlock`] if none fitted; an [`Event::Writable`](crate::Event::Writable) follows.
    pub fn write(&mut self, id: ConnId, data: &[u8], now: Instant) -> Result<usize, WriteError> {
        self.copy(id, data, now, Connection::write)
    }

    /// Takes bytes off the front of `data` and appends them to the send buffer; returns how many fitted. A
    /// run of 4 kB or more is not copied but sent from `data`'s buffer, which is released after the
    /// acknowledgement.
    ///
    /// The run counts with its length in [`max_buffer_bytes`](crate::StackConfig::max_buffer_bytes) and in
    /// the send buffer of the connection. But a slice of a longer buffer keeps that whole buffer allocated
    /// until the acknowledgement.
    ///
    /// ```
    /// # use brisk_tcp::stack::Rx;
    /// # use brisk_tcp::time::Instant;
    /// # use brisk_tcp::{ConnectConfig, ListenConfig, Stack, StackConfig};
    /// # fn pass(from: &mut Stack, to: &mut Stack) {
    /// #     let mut packet = Vec::new();
    /// #     while from.poll_transmit(Instant::ZERO, &mut packet).is_some() {
    /// #         to.on_packet(&packet, Rx::default(), Instant::ZERO);
    /// #     }
    /// # }
    /// # let at = |ip: &str| StackConfig { addresses: vec![ip.parse().unwrap()], ..StackConfig::default() };
    /// # let (mut client, mut server) = (Stack::new(at("10.0.0.1"), 1)?, Stack::new(at("10.0.0.2"), 2)?);
    /// # let (address, now) = ("10.0.0.2:80".parse()?, Instant::ZERO);
    /// # let listener = server.listen(address, ListenConfig::default())?;
    /// # let id = client.connect(address, &ConnectConfig::default(), now)?;
    /// # pass(&mut client, &mut server);
    /// # pass(&mut server, &mut client);
    /// # pass(&mut client, &mut server);
    /// # let (peer, _) = server.accept(listener).expect("the handshake is complete");
    /// use brisk_tcp::Bytes;
    ///
    /// let mut response = Bytes::from_static(b"welcome");
    /// let room = server.writable(peer);
    /// assert_eq!(server.write_bytes(peer, &mut response, now)?, 7);
    /// assert_eq!(server.writable(peer), room - 7);
    /// // The bytes of a later record leave in segments of their own.
    /// server.end_record(peer);
    /// # pass(&mut server, &mut client);
    /// assert_eq!(client.readable(id), 7);
    /// let mut first = [0; 3];
    /// assert_eq!((client.peek(id, &mut first)?, &first), (3, b"wel"));
    /// assert_eq!(client.read_bytes(id, 100, now)?, "welcome");
    ///
    /// // Half-close: the server ends its stream, and the client still writes.
    /// server.shutdown(peer, now)?;
    /// # pass(&mut server, &mut client);
    /// assert_eq!(client.read(id, &mut first, now)?, 0);
    /// client.write_urgent(id, b"stop", now)?;
    /// # pass(&mut client, &mut server);
    /// assert_eq!(server.read(peer, &mut [0; 10], now)?, 3);
    /// assert_eq!(server.read_urgent(peer)?, b'p');
    /// server.shutdown_reading(peer);
    /// client.abort(id, now);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Stack::write`].
    pub fn write_bytes(&mut self, id: ConnId, data: &mut Bytes, now: Instant) -> Result<usize, WriteError> {
        self.write_within_memory(id, data.len(), now, |connection, _, max| {
            connection.write_bytes(data, max, now)
        })
    }

    /// Appends bytes to the send buffer, the last of them urgent (RFC 9293 section 3.8.5).
    ///
    /// # Errors
    /// As [`Stack::write`].
    pub fn write_urgent(&mut self, id: ConnId, data: &[u8], now: Instant) -> Result<usize, WriteError> {
        self.copy(id, data, now, Connection::write_urgent)
    }

    /// Records that the program will write as soon as the handshake is complete. The acknowledgement of the
    /// SYN-ACK waits for this data, at most as long as a delayed acknowledgement.
    ///
    /// ```
    /// # use brisk_tcp::time::Instant;
    /// # use brisk_tcp::{ConnectConfig, Stack, StackConfig};
    /// # let at = |ip: &str| StackConfig { addresses: vec![ip.parse().unwrap()], ..StackConfig::default() };
    /// # let mut client = Stack::new(at("10.0.0.1"), 1)?;
    /// # let (address, now) = ("10.0.0.2:80".parse()?, Instant::ZERO);
    /// let id = client.connect(address, &ConnectConfig::default(), now)?;
    /// // The request follows when the handshake is complete, so its acknowledgement need not leave alone.
    /// client.await_write(id);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn await_write(&mut self, id: ConnId) {
        if let Some(slot) = self.slots.at_mut(id).filter(|slot| slot.phase == Ownership::Owned) {
            slot.connection.tx.writer_waits = true;
        }
    }

    /// Copies as much of `data` as the memory permits to a connection's send buffer, which may get reused
    /// storage.
    fn copy(
        &mut self,
        id: ConnId,
        data: &[u8],
        now: Instant,
        write: impl FnOnce(&mut Connection, &[u8], Instant) -> Result<usize, WriteError>,
    ) -> Result<usize, WriteError> {
        self.write_within_memory(id, data.len(), now, |connection, spares, max| {
            let queue = &mut connection.tx.queue;
            if let Some(storage) = spares.take_to_send(queue.wanted(max)) {
                queue.lend(storage);
            }
            write(connection, data.get(..max).unwrap_or(data), now)
        })
    }

    /// Lets `write` queue as much of `len` bytes as the memory permits.
    fn write_within_memory(
        &mut self,
        id: ConnId,
        len: usize,
        now: Instant,
        write: impl FnOnce(&mut Connection, &mut Spares, usize) -> Result<usize, WriteError>,
    ) -> Result<usize, WriteError> {
        let left = self.memory.left_to_writes();
        self.lend(id, now);
        let owned = self.slots.at_mut(id).filter(|slot| slot.phase == Ownership::Owned);
        let slot = owned.ok_or(WriteError::NoConnection)?;
        let connection = &mut slot.connection;
        if left == 0 && len > 0 && connection.writable() > 0 {
            self.memory.wait(id, slot);
            return Err(WriteError::WouldBlock);
        }
        // With `left` = 0 the connection accepts nothing here: its buffer is full, or it is closed. A call
        // with one byte returns the right error.
        let (written, aftermath) = connection
            .act(now, |connection| write(connection, &mut self.memory.spares, len.min(left.max(1))));
        if written == Ok(left) && left < len {
            // The memory ended before the data did.
            self.memory.wait(id, slot);
        }
        self.apply_aftermath(id, aftermath, now);
        written
    }
}

impl Stack {
    /// Reads received bytes; 0 is the end of the stream.
    ///
    /// # Errors
    /// [`ReadError::WouldBlock`] if there is nothing yet; an [`Event::Readable`](crate::Event::Readable)
    /// follows.
    pub fn read(&mut self, id: ConnId, buffer: &mut [u8], now: Instant) -> Result<usize, ReadError> {
        self.take(id, now, |connection| connection.read(buffer, now))
    }

    /// Reads received bytes, at most `max`. Bytes in a packet that was [passed by
    /// reference](Stack::on_packet_shared) are not copied; others may be. Returns one contiguous piece, which
    /// may be shorter than the available data. An empty piece is the end of the stream, or the result for a
    /// `max` of 0.
    ///
    /// The piece keeps its whole buffer allocated, but the stack no longer counts it:
    /// [`max_buffer_bytes`](crate::StackConfig::max_buffer_bytes) bounds only unread data. The buffer belongs
    /// to a packet (some 64 kB). For data that arrived before a long packet, it is the receive buffer of the
    /// connection.
    ///
    /// # Errors
    /// As [`Stack::read`].
    pub fn read_bytes(&mut self, id: ConnId, max: usize, now: Instant) -> Result<Bytes, ReadError> {
        self.take(id, now, |connection| connection.read_bytes(max, now))
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
        if connection.rx.queue.readable() == 0 {
            return read(connection);
        }
        let (taken, aftermath) = connection.act(now, read);
        self.apply_aftermath(id, aftermath, now);
        taken
    }

    /// Copies received bytes without removing them; 0 is the end of the stream.
    ///
    /// # Errors
    /// As [`Stack::read`].
    pub fn peek(&mut self, id: ConnId, buffer: &mut [u8]) -> Result<usize, ReadError> {
        let clock = self.clock;
        self.owned_mut(id).ok_or(ReadError::NoConnection)?.connection.peek(buffer, clock)
    }

    /// Takes the urgent byte that was removed from the stream ([`crate::config::UrgentPolicy::OutOfBand`]).
    ///
    /// # Errors
    /// [`ReadError::WouldBlock`] if there is none.
    pub fn read_urgent(&mut self, id: ConnId) -> Result<u8, ReadError> {
        self.owned_mut(id)
            .ok_or(ReadError::NoConnection)?
            .connection
            .urgent
            .take()
            .ok_or(ReadError::WouldBlock)
    }

    /// Returns the bytes that [`Stack::read`] would return now.
    pub fn readable(&self, id: ConnId) -> usize {
        self.owned(id).map_or(0, |slot| slot.connection.rx.queue.readable())
    }
}

//! A connection of the hop after both handshake messages, as a stream of payload bytes.
//!
//! Over a plain hop the bytes of the connection are the payload. Over an encrypted hop they are records, and
//! an empty record ends a direction. A connection that ends without it is an error, because an attacker on
//! the path can end a TCP connection.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::connection::{Connection, ConnectionRead, ConnectionWrite};
use super::records::{LONGEST_PAYLOAD, RECORD_OVERHEAD, RecordSizes, Sealing};
use super::{LASTING_FLAG, LENGTH, LONGEST_MESSAGE};
use crate::io::{Sink, Source};

/// Bytes of one read from the connection.
const CHUNK: usize = 16 << 10;

thread_local! {
    /// Buffer of a read, from which the bytes are copied to the connection's own buffer.
    static CHUNK_BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; CHUNK]);
}

/// A connection of the hop.
#[derive(Debug)]
pub struct HopStream {
    connection: Connection,
    /// `None` over a plain hop.
    sealing: Option<Mutex<Sealing>>,
    incoming: Incoming,
    outgoing: Outgoing,
}

/// Bytes that have arrived and are not read yet.
#[derive(Debug, Default)]
struct Incoming {
    /// Bytes from the connection.
    wire: Vec<u8>,
    /// Payload.
    plain: Vec<u8>,
    /// Number of bytes of `plain` that have been read already.
    read: usize,
    ended: bool,
}

/// Written bytes that have not left yet.
#[derive(Debug)]
struct Outgoing {
    wire: Vec<u8>,
    /// Number of bytes of `wire` that have left already.
    sent: usize,
    sizes: RecordSizes,
    ended: bool,
}

impl HopStream {
    /// Returns a stream over `connection`. `arrived` holds the bytes received after the last message. `first`
    /// is kept until the first write, and leaves in front of it. `before` is the number of bytes sent on the
    /// connection so far. Without `sealing` the hop is plain.
    pub(super) fn new(
        connection: Connection,
        sealing: Option<Sealing>,
        arrived: Vec<u8>,
        first: Vec<u8>,
        before: usize,
    ) -> HopStream {
        let sizes = RecordSizes::new(connection.segment(), before + first.len(), Instant::now());
        let incoming = match sealing {
            Some(_) => Incoming { wire: arrived, ..Incoming::default() },
            None => Incoming { plain: arrived, ..Incoming::default() },
        };
        let outgoing = Outgoing { wire: first, sent: 0, sizes, ended: false };
        HopStream { connection, sealing: sealing.map(Mutex::new), incoming, outgoing }
    }

    /// Returns a stream to an origin, without a hop. It begins with `first`.
    pub(crate) fn direct(connection: Connection, first: Vec<u8>) -> HopStream {
        HopStream::new(connection, None, Vec::new(), first, 0)
    }

    /// Returns the transport of the connection.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(crate) fn split(&mut self) -> (HopRead<'_>, HopWrite<'_>) {
        let (read, write) = self.connection.split();
        let sealing = self.sealing.as_ref();
        (
            HopRead { connection: read, sealing, state: &mut self.incoming },
            HopWrite { connection: write, sealing, state: &mut self.outgoing },
        )
    }
}

/// A message, and the flag in its length: its key pair serves for several connections.
pub(super) struct Message {
    pub(super) bytes: Vec<u8>,
    pub(super) is_lasting: bool,
}

/// Waits for bytes and returns them; returns nothing if the connection has ended.
pub(super) async fn arrival(connection: &mut Connection) -> io::Result<Vec<u8>> {
    let (mut arrived, (mut read, _)) = (Vec::new(), connection.split());
    poll_fn(|cx| poll_arrive(&mut read, &mut arrived, cx)).await?;
    Ok(arrived)
}

/// Reads the next message; bytes after it stay in `arrived`.
pub(super) async fn next_message(connection: &mut Connection, arrived: &mut Vec<u8>) -> io::Result<Message> {
    let (mut read, _) = connection.split();
    loop {
        if let Some((length, rest)) = arrived.split_first_chunk::<LENGTH>() {
            let length = u16::from_be_bytes(*length);
            let (is_lasting, length) = (length & LASTING_FLAG != 0, usize::from(length & !LASTING_FLAG));
            if length > LONGEST_MESSAGE {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "not a brisk handshake; did an ordinary client connect to the hop port?",
                ));
            }
            if rest.len() >= length {
                let bytes = rest[..length].to_vec();
                arrived.drain(..LENGTH + length);
                return Ok(Message { bytes, is_lasting });
            }
        }
        if poll_fn(|cx| poll_arrive(&mut read, arrived, cx)).await? == 0 {
            let how = if arrived.is_empty() { "closed" } else { "closed in the middle of a message" };
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, how));
        }
    }
}

/// Returns a message preceded by its length.
pub(super) fn framed(message: &[u8]) -> Vec<u8> {
    // All parts of a message were read with limits below 64 kB.
    let length = u16::try_from(message.len()).unwrap_or(u16::MAX);
    [&length.to_be_bytes()[..], message].concat()
}

/// Frames a first message whose key pair serves for several connections: its length carries the flag.
pub(super) fn framed_lasting(message: &[u8]) -> Vec<u8> {
    let mut framed = framed(message);
    framed[0] |= LASTING_FLAG.to_be_bytes()[0];
    framed
}

/// Appends the bytes available on the connection to `arrived`; returns their number.
fn poll_arrive(
    connection: &mut ConnectionRead<'_>,
    arrived: &mut Vec<u8>,
    cx: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    CHUNK_BUFFER.with_borrow_mut(|chunk| {
        let mut buffer = ReadBuf::new(chunk);
        ready!(Pin::new(connection).poll_read(cx, &mut buffer))?;
        arrived.extend_from_slice(buffer.filled());
        Poll::Ready(Ok(buffer.filled().len()))
    })
}

pub(crate) struct HopRead<'a> {
    connection: ConnectionRead<'a>,
    sealing: Option<&'a Mutex<Sealing>>,
    state: &'a mut Incoming,
}

/// Bytes that the connection does not accept at once leave when it is flushed.
pub(crate) struct HopWrite<'a> {
    connection: ConnectionWrite<'a>,
    sealing: Option<&'a Mutex<Sealing>>,
    state: &'a mut Outgoing,
}

/// Locks the keys. A panic under the lock has ended the connection, so its keys are not used again.
fn lock(sealing: &Mutex<Sealing>) -> MutexGuard<'_, Sealing> {
    sealing.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Source for HopRead<'_> {
    async fn failed(&self) -> io::Error {
        self.connection.failed().await
    }
}

impl Incoming {
    /// Opens the complete records. Returns false if there is none: more bytes are needed.
    fn open(&mut self, sealing: &Mutex<Sealing>) -> io::Result<bool> {
        self.plain.clear();
        self.read = 0;
        let mut at = 0;
        let mut sealing = lock(sealing);
        while let Some((length, rest)) = self.wire[at..].split_first_chunk::<LENGTH>() {
            let length = usize::from(u16::from_be_bytes(*length));
            let Some(record) = rest.get(..length) else { break };
            if at == 0 {
                // All payload is shorter than its records.
                self.plain.reserve(self.wire.len());
            }
            let opened = sealing.open(record, &mut self.plain);
            at += LENGTH + length;
            if opened.map_err(|forged| io::Error::new(io::ErrorKind::InvalidData, forged))? == 0 {
                self.ended = true;
                break;
            }
            if self.plain.len() >= LONGEST_PAYLOAD {
                break;
            }
        }
        self.wire.drain(..at);
        Ok(at > 0)
    }

    /// Frees empty buffers while no bytes arrive.
    fn free_buffers(&mut self) {
        if self.wire.is_empty() {
            self.wire = Vec::new();
        }
        if self.read == self.plain.len() {
            self.plain = Vec::new();
            self.read = 0;
        }
    }

    /// Moves decrypted bytes into `buffer`; false if there are none.
    fn take(&mut self, buffer: &mut ReadBuf<'_>) -> bool {
        let waiting = &self.plain[self.read..];
        let count = waiting.len().min(buffer.remaining());
        buffer.put_slice(&waiting[..count]);
        self.read += count;
        count > 0
    }
}

impl AsyncRead for HopRead<'_> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let HopRead { connection, sealing, state } = self.get_mut();
        loop {
            if state.take(buffer) || state.ended || buffer.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            let Some(sealing) = sealing else {
                state.free_buffers();
                return Pin::new(connection).poll_read(cx, buffer);
            };
            if state.open(sealing)? {
                continue;
            }
            let count = match poll_arrive(connection, &mut state.wire, cx) {
                Poll::Ready(count) => count?,
                Poll::Pending => {
                    state.free_buffers();
                    return Poll::Pending;
                }
            };
            if count == 0 {
                return Poll::Ready(Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the hop was cut before its end",
                )));
            }
        }
    }
}

impl Sink for HopWrite<'_> {}

impl HopWrite<'_> {
    /// Sends the waiting bytes.
    fn poll_leave(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let state = &mut self.state;
        while state.sent < state.wire.len() {
            let count = ready!(Pin::new(&mut self.connection).poll_write(cx, &state.wire[state.sent..]))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            state.sent += count;
        }
        state.wire.clear();
        state.sent = 0;
        Poll::Ready(Ok(()))
    }

    /// Seals the beginning of `data` into records, at most as much as one long record holds; returns the
    /// number of sealed bytes.
    fn seal(&mut self, sealing: &Mutex<Sealing>, data: &[u8]) -> io::Result<usize> {
        let data = &data[..data.len().min(LONGEST_PAYLOAD)];
        let mut rest = data;
        let mut sealing = lock(sealing);
        let now = Instant::now();
        // Enough for usual segments: a record of one segment has an overhead of 1.3 %.
        self.state.wire.reserve(data.len() + data.len() / 64 + RECORD_OVERHEAD);
        while !rest.is_empty() {
            let (payload, after) = rest.split_at(self.state.sizes.next(now).min(rest.len()));
            sealing.seal(payload, &mut self.state.wire).map_err(io::Error::other)?;
            self.state.sizes.made(payload.len());
            rest = after;
        }
        Ok(data.len())
    }
}

impl AsyncWrite for HopWrite<'_> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        // Waiting bytes leave together with the new ones, as the second message does with the first write. If
        // they are many, or if some have left already, the others must leave first.
        if this.state.sent > 0 || this.state.wire.len() > LONGEST_PAYLOAD {
            ready!(this.poll_leave(cx))?;
        }
        let count = match this.sealing {
            Some(sealing) => this.seal(sealing, data)?,
            None => {
                let count = data.len().min(LONGEST_PAYLOAD);
                this.state.wire.extend_from_slice(&data[..count]);
                count
            }
        };
        // If the send buffer is full, the rest leaves with the flush.
        match this.poll_leave(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(count)),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_leave(cx))?;
        this.state.wire = Vec::new();
        Pin::new(&mut this.connection).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Some(sealing) = this.sealing
            && !this.state.ended
        {
            lock(sealing).seal(b"", &mut this.state.wire).map_err(io::Error::other)?;
            this.state.ended = true;
        }
        ready!(this.poll_leave(cx))?;
        Pin::new(&mut this.connection).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use brisk_link::LinkSpec;
    use brisk_runtime::{Endpoint, TcpListener, TcpStream, memory};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::timeout;

    use super::*;

    async fn connected(near: &Endpoint, listener: &TcpListener) -> (TcpStream, TcpStream) {
        let (client, accepted) = tokio::join!(near.connect(listener.local_addr()), listener.accept());
        (client.unwrap(), accepted.unwrap().0)
    }

    /// Writes until the stream accepts no more; returns the number of bytes.
    async fn fill(stream: &mut TcpStream) -> usize {
        let mut written = 0;
        while let Ok(count) = timeout(Duration::from_secs(1), stream.write(&[7; 10_000])).await {
            written += count.unwrap();
        }
        written
    }

    #[tokio::test(start_paused = true)]
    async fn full_buffer_without_memory_makes_a_writer_wait_and_does_not_fail_it() {
        let (near, far) = memory::builders(&LinkSpec::parse("--rtt 2ms").unwrap(), 1);
        // The limit is one and a half send buffers.
        let (near, far) =
            (near.stack(|stack| stack.max_buffer_bytes = 512 << 10).build().unwrap(), far.build().unwrap());
        let listener = TcpListener::bind(&far, "10.0.0.2:80".parse().unwrap()).unwrap();
        let (mut first, mut reader) = connected(&near, &listener).await;
        let (mut second, _silent) = connected(&near, &listener).await;
        let written = fill(&mut first).await;
        fill(&mut second).await;
        let mut hop = HopStream::direct(Connection::Brisk(first), Vec::new());
        let (_, mut write) = hop.split();
        write.write_all(&[8; 10_000]).await.unwrap();
        assert!(timeout(Duration::from_secs(1), write.flush()).await.is_err(), "there is no room");
        let mut read = vec![0; written + 10_000];
        let (flushed, all) = tokio::join!(write.flush(), reader.read_exact(&mut read));
        flushed.unwrap();
        all.unwrap();
        assert!(read[..written].iter().all(|byte| *byte == 7) && read[written..] == [8; 10_000]);
    }
}

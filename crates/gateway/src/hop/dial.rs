//! The frontend's side of the handshake: sends the first message and reads the answer.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::Hop;
use super::connection::Connection;
use super::ephemeral::Ephemerals;
use super::handshake::{HandshakeError, Initiator, Verdict};
use super::opening::Opening;
use super::records::Sealing;
use super::stamp::{BackendClock, Stamp};
use super::stream::{HopStream, framed, framed_lasting, next_message};

/// Error of opening a connection through a backend.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    /// The backend refused; nothing was delivered to an origin.
    #[error("the backend {}", match .0 {
        Verdict::OriginUnreachable => "cannot reach its origin",
        Verdict::Forbidden => "may not connect to the origin that was asked for",
        Verdict::Limited => "allows this frontend no more connections (max_connections)",
        Verdict::Go | Verdict::Confirm => "asked for a second confirmation",
    })]
    Refused(Verdict),
    /// The first message could not be sealed; nothing was sent.
    #[error(transparent)]
    Unsealed(HandshakeError),
    /// The answer was not authentic. The backend may have acted on the first message nevertheless, because an
    /// attacker on the path can change its answer.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// The connection was not opened; nothing was delivered.
    #[error("{}{}", .0, match .0.kind() {
        io::ErrorKind::ConnectionRefused => ": no program listens there",
        _ => ": the connection could not be opened",
    })]
    Unopened(io::Error),
    /// The connection ended before the answer, after data may have been delivered. The backend resets peers
    /// without its key.
    #[error("{}{}", .0, match .0.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
            ": the backend closed the connection during the handshake; check that both sides use the same key (its log has the \
             reason)"
        }
        _ => ": the connection failed during the handshake",
    })]
    Connection(#[from] io::Error),
}

impl DialError {
    /// True if nothing listens at the address.
    pub(crate) fn is_port_closed(&self) -> bool {
        matches!(self, DialError::Unopened(error) if error.kind() == io::ErrorKind::ConnectionRefused)
    }

    /// True if the path leads to no program: nothing listens at the address, or a router reports that it is
    /// unreachable.
    pub(crate) fn is_unreachable(&self) -> bool {
        use io::ErrorKind::{HostUnreachable, NetworkUnreachable};
        let is_reported = |kind| matches!(kind, HostUnreachable | NetworkUnreachable);
        match self {
            DialError::Unopened(error) | DialError::Connection(error) => {
                self.is_port_closed() || is_reported(error.kind())
            }
            DialError::Refused(_) | DialError::Unsealed(_) | DialError::Handshake(_) => false,
        }
    }

    /// True if another backend may be tried, because certainly no origin has received anything.
    pub(crate) fn is_retryable(&self) -> bool {
        match self {
            DialError::Refused(verdict) => match verdict {
                Verdict::OriginUnreachable | Verdict::Forbidden | Verdict::Limited => true,
                Verdict::Go | Verdict::Confirm => false,
            },
            DialError::Unsealed(_) | DialError::Unopened(_) => true,
            DialError::Handshake(_) | DialError::Connection(_) => false,
        }
    }
}

/// A connection whose first message is sealed and whose answer has not arrived.
#[derive(Debug)]
pub(crate) struct Dialled {
    initiator: Option<Initiator>,
}

/// Seals the first message: `opening` and the client's `first` bytes. Returns the bytes to send. Uses the key
/// pair of `own` if the backend is known to accept pairs that serve for several connections.
pub(crate) fn dial(
    hop: &Hop,
    own: &Arc<Ephemerals>,
    opening: &Opening,
    first: &[u8],
) -> Result<(Dialled, Vec<u8>), HandshakeError> {
    let mut payload = Vec::with_capacity(64 + first.len());
    opening.encode(&mut payload);
    payload.extend_from_slice(first);
    let (initiator, message) = match hop {
        Hop::Plain => return Ok((Dialled { initiator: None }, framed(&payload))),
        Hop::Sealed(keys) if opening.stamp.accepts_lasting && own.are_lasting() => {
            let (initiator, message) = Initiator::begin_lasting(keys.newest(), own, &payload)?;
            return Ok((Dialled { initiator: Some(initiator) }, framed_lasting(&message)));
        }
        Hop::Sealed(keys) => Initiator::begin(keys.newest(), &payload)?,
        Hop::Pairs(keys) => Initiator::begin_with_pair(keys, &payload)?,
    };
    Ok((Dialled { initiator: Some(initiator) }, framed(&message)))
}

/// A connection on which the backend's answer has arrived.
#[derive(Debug)]
pub(crate) struct Answered {
    connection: Connection,
    answer: Vec<u8>,
    /// Bytes after the answer.
    arrived: Vec<u8>,
    /// Length of the first message.
    before: usize,
}

/// Sends the rest of the first message, of which `sent` bytes have already been queued, and waits for the
/// answer.
pub(crate) async fn ask(mut connection: Connection, rest: &[u8], sent: usize) -> Result<Answered, DialError> {
    if !rest.is_empty() {
        let (_, mut write) = connection.split();
        write.write_all(rest).await?;
    }
    let mut arrived = Vec::new();
    let answer = next_message(&mut connection, &mut arrived).await?.bytes;
    Ok(Answered { connection, answer, arrived, before: sent + rest.len() })
}

impl Dialled {
    /// Checks the answer, and sends the confirmation if the backend requests it. Stores the backend's stamp
    /// in `clock`.
    pub(crate) async fn finish(
        self,
        answered: Answered,
        clock: &BackendClock,
    ) -> Result<HopStream, DialError> {
        let Answered { connection, answer, arrived, before } = answered;
        let (sealing, verdict, stamp) = self.verdict(&answer)?;
        clock.set(stamp, Instant::now());
        let mut stream = HopStream::new(connection, sealing, arrived, Vec::new(), before);
        let verdict = match verdict {
            Verdict::Confirm => confirm(&mut stream).await?,
            other => other,
        };
        match verdict {
            Verdict::Go => Ok(stream),
            other => Err(DialError::Refused(other)),
        }
    }

    fn verdict(self, answer: &[u8]) -> Result<(Option<Sealing>, Verdict, Stamp), HandshakeError> {
        match self.initiator {
            Some(initiator) => {
                let (sealing, verdict, stamp) = initiator.finish(answer)?;
                Ok((Some(sealing), verdict, stamp))
            }
            None => Verdict::from_answer(answer).map(|(verdict, stamp)| (None, verdict, stamp)),
        }
    }
}

/// Sends the confirmation, and reads the verdict that follows.
async fn confirm(stream: &mut HopStream) -> Result<Verdict, DialError> {
    let (mut read, mut write) = stream.split();
    write.write_all(&[Verdict::Confirm.byte()]).await?;
    write.flush().await?;
    Verdict::from_byte(read.read_u8().await?).ok_or(DialError::Handshake(HandshakeError::NotOurs))
}

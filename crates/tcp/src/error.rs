//! One error type per operation, each with the side at fault.

use core::net::SocketAddr;

use thiserror::Error;

pub use crate::stored::ImportError;

/// The side at fault, which decides whether a retry, another peer or a change of code helps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A limit of this stack was reached.
    Ours,
    /// The peer refused, reset or broke the protocol.
    Peers,
    /// There was no answer, or an ICMP error.
    Paths,
    /// The call itself is not permitted.
    Callers,
}

/// Reason why a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// Both sides closed and everything was acknowledged.
    #[error("closed by both sides")]
    Finished,
    /// This side aborted the connection.
    #[error("aborted by this side")]
    Aborted,
    /// The peer answered the SYN with a reset.
    #[error("connection refused by the peer")]
    Refused,
    /// The peer reset the connection.
    #[error("connection reset by the peer")]
    Reset,
    /// No answer to the SYN (or to the SYN-ACK) after all retries.
    #[error("no answer to the handshake: timed out")]
    HandshakeTimeout,
    /// Data stayed unacknowledged for longer than the retries or the user timeout allow.
    #[error("the peer stopped answering: timed out")]
    TimedOut,
    /// Keepalive probes went unanswered.
    #[error("keepalive probes went unanswered")]
    KeepaliveTimeout,
    /// An ICMP error reports that the host is unreachable. During the handshake it ends the connection at
    /// once; later it replaces the timeout as the reason.
    #[error("host unreachable")]
    Unreachable,
    /// An ICMP error reports that the network is unreachable.
    #[error("network unreachable")]
    NetworkUnreachable,
    /// The listener was closed before the connection was accepted.
    #[error("the listener was closed")]
    ListenerClosed,
    /// Data arrived after this side had closed for reading, and was answered by a reset.
    #[error("data arrived after close")]
    DataAfterClose,
    /// Memory of the stack ran out.
    #[error("out of the configured memory")]
    OutOfMemory,
}

impl CloseReason {
    /// Returns the side at fault.
    pub fn fault(self) -> Fault {
        match self {
            CloseReason::Finished
            | CloseReason::Aborted
            | CloseReason::ListenerClosed
            | CloseReason::DataAfterClose => Fault::Callers,
            CloseReason::Refused | CloseReason::Reset => Fault::Peers,
            CloseReason::HandshakeTimeout
            | CloseReason::TimedOut
            | CloseReason::KeepaliveTimeout
            | CloseReason::Unreachable
            | CloseReason::NetworkUnreachable => Fault::Paths,
            CloseReason::OutOfMemory => Fault::Ours,
        }
    }
}

/// Reason why a connection could not be started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The stack has no address of the family of the destination.
    #[error("no local address of the family of {0}: give the stack one")]
    NoAddress(SocketAddr),
    /// The requested local address is not one of the stack's.
    #[error("{0} is not an address of this stack")]
    NotLocal(core::net::IpAddr),
    /// The four-tuple is in use.
    #[error("{local} to {remote} is in use")]
    InUse {
        /// Local end.
        local: SocketAddr,
        /// Remote end.
        remote: SocketAddr,
    },
    /// Every port of the ephemeral range is in use towards this destination.
    #[error("no free port towards {0}: every port of the ephemeral range is in use")]
    NoPort(SocketAddr),
    /// `max_connections` is reached.
    #[error("the stack holds its maximum of {0} connections")]
    TooMany(usize),
    /// A value of the configuration is out of its range.
    #[error("{key} is out of range; use {range}")]
    BadConfig {
        /// The configuration key.
        key: &'static str,
        /// Permitted values.
        range: &'static str,
    },
    /// The destination cannot be connected to (port 0, unspecified or multicast address).
    #[error("{0} is not an address that one can connect to")]
    BadDestination(SocketAddr),
}

/// Reason why a request could not be accepted.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The request was already decided, or its four-tuple is now in use.
    #[error("the request of {0} is not held any more")]
    Gone(SocketAddr),
    /// `max_connections` is reached.
    #[error("the stack holds its maximum of {0} connections")]
    TooMany(usize),
    /// A value of the configuration is out of its range.
    #[error(transparent)]
    BadConfig(#[from] ConfigError),
}

/// Reason why a listener could not be opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ListenError {
    /// Another listener uses the address and port.
    #[error("{0} is already listened on")]
    InUse(SocketAddr),
    /// The address is not one of the stack's.
    #[error("{0} is not an address of this stack")]
    NotLocal(core::net::IpAddr),
    /// Port 0 was given and every port is in use.
    #[error("no free port to listen on")]
    NoPort,
    /// A value of the configuration is out of its range.
    #[error("{key} is out of range; use {range}")]
    BadConfig {
        /// The configuration key.
        key: &'static str,
        /// Permitted values.
        range: &'static str,
    },
}

impl From<ConfigError> for ConnectError {
    fn from(ConfigError { key, range, value: _ }: ConfigError) -> Self {
        ConnectError::BadConfig { key, range }
    }
}

impl From<ConfigError> for ListenError {
    fn from(ConfigError { key, range, value: _ }: ConfigError) -> Self {
        ListenError::BadConfig { key, range }
    }
}

/// Reason why a read failed. The end of the stream is not an error: it is `Ok(0)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ReadError {
    /// Nothing to read now; a `Readable` event follows.
    #[error("nothing to read yet")]
    WouldBlock,
    /// There is no connection with this handle.
    #[error("no such connection")]
    NoConnection,
    /// The connection ended in another way than by the peer's FIN.
    #[error("{0}")]
    Closed(CloseReason),
}

/// Reason why a write failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum WriteError {
    /// The send buffer is full; a `Writable` event follows.
    #[error("the send buffer is full")]
    WouldBlock,
    /// There is no connection with this handle.
    #[error("no such connection")]
    NoConnection,
    /// This side has already closed for writing.
    #[error("written after close")]
    AfterClose,
    /// The connection ended.
    #[error("{0}")]
    Closed(CloseReason),
}

/// A configuration value that is not permitted.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{key}: {value} is out of range; use {range}")]
#[non_exhaustive]
pub struct ConfigError {
    /// The configuration key.
    pub key: &'static str,
    /// The rejected value.
    pub value: alloc::string::String,
    /// Permitted values.
    pub range: &'static str,
}

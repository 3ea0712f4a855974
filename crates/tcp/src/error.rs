//! One error type per operation, each with the side at fault.

use core::fmt;
use core::net::SocketAddr;

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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CloseReason {
    /// Both sides closed and everything was acknowledged.
    Finished,
    /// This side aborted the connection.
    Aborted,
    /// The peer answered the SYN with a reset.
    Refused,
    /// The peer reset the connection.
    Reset,
    /// No answer to the SYN (or to the SYN-ACK) after all retries.
    HandshakeTimeout,
    /// Data stayed unacknowledged for longer than the retries or the user timeout allow.
    TimedOut,
    /// Keepalive probes went unanswered.
    KeepaliveTimeout,
    /// An ICMP error reports that the host is unreachable. During the handshake it ends the connection at
    /// once; later it replaces the timeout as the reason.
    Unreachable,
    /// An ICMP error reports that the network is unreachable.
    NetworkUnreachable,
    /// The listener was closed before the connection was accepted.
    ListenerClosed,
    /// Data arrived after this side had closed for reading, and was answered by a reset.
    DataAfterClose,
    /// Memory of the stack ran out.
    OutOfMemory,
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CloseReason::Finished => f.write_str("closed by both sides"),
            CloseReason::Aborted => f.write_str("aborted by this side"),
            CloseReason::Refused => f.write_str("connection refused by the peer"),
            CloseReason::Reset => f.write_str("connection reset by the peer"),
            CloseReason::HandshakeTimeout => f.write_str("no answer to the handshake: timed out"),
            CloseReason::TimedOut => f.write_str("the peer stopped answering: timed out"),
            CloseReason::KeepaliveTimeout => f.write_str("keepalive probes went unanswered"),
            CloseReason::Unreachable => f.write_str("host unreachable"),
            CloseReason::NetworkUnreachable => f.write_str("network unreachable"),
            CloseReason::ListenerClosed => f.write_str("the listener was closed"),
            CloseReason::DataAfterClose => f.write_str("data arrived after close"),
            CloseReason::OutOfMemory => f.write_str("out of the configured memory"),
        }
    }
}

impl core::error::Error for CloseReason {}

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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ConnectError {
    /// The stack has no address of the family of the destination.
    NoAddress(SocketAddr),
    /// The requested local address is not one of the stack's.
    NotLocal(core::net::IpAddr),
    /// The four-tuple is in use.
    InUse {
        /// Local end.
        local: SocketAddr,
        /// Remote end.
        remote: SocketAddr,
    },
    /// Every port of the ephemeral range is in use towards this destination.
    NoPort(SocketAddr),
    /// `max_connections` is reached.
    TooMany(usize),
    /// A value of the configuration is out of its range.
    BadConfig {
        /// The configuration key.
        key: &'static str,
        /// Permitted values.
        range: &'static str,
    },
    /// The destination cannot be connected to (port 0, unspecified or multicast address).
    BadDestination(SocketAddr),
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectError::NoAddress(address) => {
                write!(f, "no local address of the family of {address}: give the stack one")
            }
            ConnectError::NotLocal(address) => write!(f, "{address} is not an address of this stack"),
            ConnectError::InUse { local, remote } => write!(f, "{local} to {remote} is in use"),
            ConnectError::NoPort(address) => {
                write!(f, "no free port towards {address}: every port of the ephemeral range is in use")
            }
            ConnectError::TooMany(count) => write!(f, "the stack holds its maximum of {count} connections"),
            ConnectError::BadConfig { key, range } => write!(f, "{key} is out of range; use {range}"),
            ConnectError::BadDestination(address) => {
                write!(f, "{address} is not an address that one can connect to")
            }
        }
    }
}

impl core::error::Error for ConnectError {}

/// Reason why a request could not be accepted.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RequestError {
    /// It was already decided, or its four-tuple is now in use.
    Gone(SocketAddr),
    /// `max_connections` is reached.
    TooMany(usize),
    /// A value of the configuration is out of its range.
    BadConfig(ConfigError),
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RequestError::Gone(address) => write!(f, "the request of {address} is not held any more"),
            RequestError::TooMany(count) => write!(f, "the stack holds its maximum of {count} connections"),
            RequestError::BadConfig(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for RequestError {}

impl From<ConfigError> for RequestError {
    fn from(error: ConfigError) -> Self {
        RequestError::BadConfig(error)
    }
}

/// Reason why a listener could not be opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ListenError {
    /// Another listener uses the address and port.
    InUse(SocketAddr),
    /// The address is not one of the stack's.
    NotLocal(core::net::IpAddr),
    /// Port 0 was given and every port is in use.
    NoPort,
    /// A value of the configuration is out of its range.
    BadConfig {
        /// The configuration key.
        key: &'static str,
        /// Permitted values.
        range: &'static str,
    },
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenError::InUse(address) => write!(f, "{address} is already listened on"),
            ListenError::NotLocal(address) => write!(f, "{address} is not an address of this stack"),
            ListenError::NoPort => f.write_str("no free port to listen on"),
            ListenError::BadConfig { key, range } => write!(f, "{key} is out of range; use {range}"),
        }
    }
}

impl core::error::Error for ListenError {}

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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadError {
    /// Nothing to read now; a `Readable` event follows.
    WouldBlock,
    /// There is no connection with this handle.
    NoConnection,
    /// The connection ended in another way than by the peer's FIN.
    Closed(CloseReason),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::WouldBlock => f.write_str("nothing to read yet"),
            ReadError::NoConnection => f.write_str("no such connection"),
            ReadError::Closed(reason) => reason.fmt(f),
        }
    }
}

impl core::error::Error for ReadError {}

/// Reason why a write failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteError {
    /// The send buffer is full; a `Writable` event follows.
    WouldBlock,
    /// There is no connection with this handle.
    NoConnection,
    /// This side has already closed for writing.
    AfterClose,
    /// The connection ended.
    Closed(CloseReason),
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WriteError::WouldBlock => f.write_str("the send buffer is full"),
            WriteError::NoConnection => f.write_str("no such connection"),
            WriteError::AfterClose => f.write_str("written after close"),
            WriteError::Closed(reason) => reason.fmt(f),
        }
    }
}

impl core::error::Error for WriteError {}

/// A configuration value that is not permitted.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ConfigError {
    /// The configuration key.
    pub key: &'static str,
    /// The rejected value.
    pub value: alloc::string::String,
    /// Permitted values.
    pub range: &'static str,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ConfigError { key, value, range } = self;
        write!(f, "{key}: {value} is out of range; use {range}")
    }
}

impl core::error::Error for ConfigError {}

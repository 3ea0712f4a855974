//! One error type per operation, and the side at fault.
//!
//! ```
//! use brisk_tcp::error::{CloseReason, ConnectError, Fault};
//! use brisk_tcp::time::Instant;
//! use brisk_tcp::{ConnectConfig, Stack, StackConfig};
//!
//! let mut stack = Stack::new(StackConfig::default(), 1)?;
//! let remote = "10.0.0.2:80".parse()?;
//! let error = stack.connect(remote, &ConnectConfig::default(), Instant::ZERO).unwrap_err();
//! assert_eq!(error, ConnectError::NoAddress(remote));
//!
//! // A peer that did not answer may do so later. A peer that refuses has no such service.
//! let is_worth_a_retry = |why: CloseReason| why.fault() == Fault::Paths;
//! assert!(is_worth_a_retry(CloseReason::HandshakeTimeout) && !is_worth_a_retry(CloseReason::Refused));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use core::net::SocketAddr;

pub use crate::stored::ImportError;

/// The side at fault. It decides whether a retry, another peer or a change of code helps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
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
    /// The peer answered the SYN with a reset, or its host answered with an ICMP error. If the SYN had data,
    /// no program has received it.
    Refused,
    /// The peer reset the connection, or a SYN whose data a program may have received.
    Reset,
    /// No answer to the SYN (or to the SYN-ACK) after all retries.
    HandshakeTimeout,
    /// Data stayed unacknowledged for longer than the retries or the user timeout allow.
    TimedOut,
    /// Keepalive probes went unanswered.
    KeepaliveTimeout,
    /// An ICMP error reports that the host is unreachable. During the handshake it ends the connection at
    /// once. Later it only replaces the timeout as the reason.
    Unreachable,
    /// An ICMP error reports that the network is unreachable.
    NetworkUnreachable,
    /// The listener was closed before the connection was accepted.
    ListenerClosed,
    /// Data arrived after this side had closed for reading. It was answered by a reset.
    DataAfterClose,
}

brisk_wire::impl_error! {
    CloseReason {
        Self::Finished => "closed by both sides";
        Self::Aborted => "aborted by this side";
        Self::Refused => "connection refused by the peer";
        Self::Reset => "connection reset by the peer";
        Self::HandshakeTimeout => "no answer to the handshake: timed out";
        Self::TimedOut => "the peer stopped answering: timed out";
        Self::KeepaliveTimeout => "keepalive probes went unanswered";
        Self::Unreachable => "host unreachable";
        Self::NetworkUnreachable => "network unreachable";
        Self::ListenerClosed => "the listener was closed";
        Self::DataAfterClose => "data arrived after close";
    }
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

brisk_wire::impl_error! {
    ConnectError {
        Self::NoAddress(address) => "no local address of the family of {address}: give the stack one";
        Self::NotLocal(address) => "{address} is not an address of this stack";
        Self::InUse { local, remote } => "{local} to {remote} is in use";
        Self::NoPort(address) =>
            "no free port towards {address}: every port of the ephemeral range is in use";
        Self::TooMany(number) => "the stack holds its maximum of {number} connections";
        Self::BadConfig { key, range } => "{key} is out of range; use {range}";
        Self::BadDestination(address) => "{address} is not an address that one can connect to";
    }
}

/// Reason why a request could not be accepted.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RequestError {
    /// The request was already decided, or its four-tuple is now in use.
    Gone(SocketAddr),
    /// `max_connections` is reached.
    TooMany(usize),
    /// A value of the configuration is out of its range.
    BadConfig(ConfigError),
}

brisk_wire::impl_error! {
    RequestError {
        Self::Gone(address) => "the request of {address} is not held any more";
        Self::TooMany(number) => "the stack holds its maximum of {number} connections";
        Self::BadConfig(error) => "{error}";
    }
}

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

brisk_wire::impl_error! {
    ListenError {
        Self::InUse(address) => "{address} is already listened on";
        Self::NotLocal(address) => "{address} is not an address of this stack";
        Self::NoPort => "no free port to listen on";
        Self::BadConfig { key, range } => "{key} is out of range; use {range}";
    }
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

/// Reason why a read failed. The end of the stream is no error but `Ok(0)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadError {
    /// Nothing to read now. A `Readable` event follows.
    WouldBlock,
    /// There is no connection with this handle.
    NoConnection,
    /// The connection ended in another way than by the peer's FIN.
    Closed(CloseReason),
}

brisk_wire::impl_error! {
    ReadError {
        Self::WouldBlock => "nothing to read yet";
        Self::NoConnection => "no such connection";
        Self::Closed(reason) => "{reason}";
    }
}

/// Reason why a write failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteError {
    /// The send buffer is full. A `Writable` event follows.
    WouldBlock,
    /// There is no connection with this handle.
    NoConnection,
    /// This side has already closed for writing.
    AfterClose,
    /// The connection ended.
    Closed(CloseReason),
}

brisk_wire::impl_error! {
    WriteError {
        Self::WouldBlock => "the send buffer is full";
        Self::NoConnection => "no such connection";
        Self::AfterClose => "written after close";
        Self::Closed(reason) => "{reason}";
    }
}

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

brisk_wire::impl_error! {
    ConfigError {
        Self { key, value, range } => "{key}: {value} is out of range; use {range}";
    }
}

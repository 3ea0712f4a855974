//! Converts errors of the stack to `std::io::Error`s with the kinds that socket programs expect.
//!
//! `error.get_ref()` returns the stack's own error, whose text says which end caused it; [`close_reason`]
//! returns the [`CloseReason`].

use std::io;

use brisk_tcp::error::{
    CloseReason, ConfigError, ConnectError, Fault, ListenError, ReadError, RequestError, WriteError,
};

/// Returns the reason why the connection ended, if `error` contains one.
///
/// ```
/// use brisk_tcp::error::CloseReason;
/// let error = std::io::Error::new(std::io::ErrorKind::ConnectionReset, CloseReason::Reset);
/// assert_eq!(brisk_runtime::close_reason(&error), Some(CloseReason::Reset));
/// ```
pub fn close_reason(error: &io::Error) -> Option<CloseReason> {
    error.get_ref()?.downcast_ref::<CloseReason>().copied()
}

/// Converts a close reason to an error of the kind that the kernel's sockets return for it.
pub(crate) fn closed(reason: CloseReason) -> io::Error {
    let kind = match reason {
        CloseReason::Finished => io::ErrorKind::NotConnected,
        CloseReason::Aborted | CloseReason::ListenerClosed | CloseReason::DataAfterClose => {
            io::ErrorKind::ConnectionAborted
        }
        CloseReason::Refused => io::ErrorKind::ConnectionRefused,
        CloseReason::Reset => io::ErrorKind::ConnectionReset,
        CloseReason::HandshakeTimeout | CloseReason::TimedOut | CloseReason::KeepaliveTimeout => {
            io::ErrorKind::TimedOut
        }
        CloseReason::Unreachable => io::ErrorKind::HostUnreachable,
        CloseReason::NetworkUnreachable => io::ErrorKind::NetworkUnreachable,
        other => kind_of(other.fault()),
    };
    io::Error::new(kind, reason)
}

/// Returns the kind of a reason that [`closed`] does not list.
fn kind_of(fault: Fault) -> io::ErrorKind {
    match fault {
        Fault::Peers => io::ErrorKind::ConnectionReset,
        Fault::Paths => io::ErrorKind::TimedOut,
        Fault::Callers => io::ErrorKind::ConnectionAborted,
    }
}

pub(crate) fn connect(error: ConnectError) -> io::Error {
    let kind = match error {
        ConnectError::NoAddress(_) | ConnectError::NotLocal(_) => io::ErrorKind::AddrNotAvailable,
        ConnectError::InUse { .. } | ConnectError::NoPort(_) => io::ErrorKind::AddrInUse,
        ConnectError::TooMany(_) => io::ErrorKind::QuotaExceeded,
        ConnectError::BadDestination(_) | ConnectError::BadConfig { .. } => io::ErrorKind::InvalidInput,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

pub(crate) fn request(error: RequestError) -> io::Error {
    let kind = match error {
        RequestError::Gone(_) => io::ErrorKind::ConnectionAborted,
        RequestError::TooMany(_) => io::ErrorKind::QuotaExceeded,
        RequestError::BadConfig(_) => io::ErrorKind::InvalidInput,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

pub(crate) fn listen(error: ListenError) -> io::Error {
    let kind = match error {
        ListenError::InUse(_) | ListenError::NoPort => io::ErrorKind::AddrInUse,
        ListenError::NotLocal(_) => io::ErrorKind::AddrNotAvailable,
        ListenError::BadConfig { .. } => io::ErrorKind::InvalidInput,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

pub(crate) fn config(error: ConfigError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}

/// Converts an error of a read; `None` if there is nothing to read yet.
pub(crate) fn read(error: ReadError) -> Option<io::Error> {
    match error {
        ReadError::WouldBlock => None,
        ReadError::NoConnection => Some(io::Error::new(io::ErrorKind::NotConnected, error)),
        ReadError::Closed(reason) => Some(closed(reason)),
    }
}

/// Converts an error of a write; `None` if the send buffer is full.
pub(crate) fn write(error: WriteError) -> Option<io::Error> {
    match error {
        WriteError::WouldBlock => None,
        WriteError::NoConnection => Some(io::Error::new(io::ErrorKind::NotConnected, error)),
        WriteError::AfterClose => Some(io::Error::new(io::ErrorKind::BrokenPipe, error)),
        // Both sides have closed; the kernel returns EPIPE for such a write.
        WriteError::Closed(reason @ CloseReason::Finished) => Some(broken_pipe(reason)),
        WriteError::Closed(reason) => Some(closed(reason)),
    }
}

/// Returns `BrokenPipe` with the reason why the connection ended.
pub(crate) fn broken_pipe(reason: CloseReason) -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_those_of_sockets_and_the_reason_stays_inside() {
        for (reason, kind) in [
            (CloseReason::Refused, io::ErrorKind::ConnectionRefused),
            (CloseReason::Reset, io::ErrorKind::ConnectionReset),
            (CloseReason::HandshakeTimeout, io::ErrorKind::TimedOut),
            (CloseReason::Unreachable, io::ErrorKind::HostUnreachable),
            (CloseReason::NetworkUnreachable, io::ErrorKind::NetworkUnreachable),
        ] {
            let error = closed(reason);
            assert_eq!(error.kind(), kind);
            assert_eq!(close_reason(&error), Some(reason));
            assert_eq!(error.to_string(), reason.to_string());
        }
    }

    #[test]
    fn a_write_after_both_sides_closed_is_a_broken_pipe() {
        let error = write(WriteError::Closed(CloseReason::Finished)).expect("an error");
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        assert!(write(WriteError::WouldBlock).is_none());
        assert!(read(ReadError::WouldBlock).is_none());
    }
}

//! Error numbers, and the reasons of the stack to which they correspond.

use brisk_tcp::error::{CloseReason, ConnectError, ListenError};

/// An error number of the C library, positive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub i32);

/// The result of a call.
pub type Answer<T = i32> = Result<T, Errno>;

/// Returns the error number of a close reason; `None` if the close is not an error. `closing` is true if the
/// connection was in CLOSE-WAIT.
pub(crate) fn of_close(reason: CloseReason, closing: bool) -> Option<Errno> {
    let number = match reason {
        CloseReason::Finished => return None,
        CloseReason::Aborted | CloseReason::ListenerClosed => libc::ECONNABORTED,
        CloseReason::Refused => libc::ECONNREFUSED,
        // Linux: a reset in CLOSE-WAIT is EPIPE.
        CloseReason::Reset | CloseReason::DataAfterClose if closing => libc::EPIPE,
        CloseReason::Reset | CloseReason::DataAfterClose => libc::ECONNRESET,
        CloseReason::HandshakeTimeout | CloseReason::TimedOut | CloseReason::KeepaliveTimeout => {
            libc::ETIMEDOUT
        }
        CloseReason::Unreachable => libc::EHOSTUNREACH,
        CloseReason::NetworkUnreachable => libc::ENETUNREACH,
        _ => libc::ECONNABORTED,
    };
    Some(Errno(number))
}

impl From<ConnectError> for Errno {
    fn from(error: ConnectError) -> Errno {
        Errno(match error {
            ConnectError::NoAddress(_) | ConnectError::BadDestination(_) => libc::ENETUNREACH,
            ConnectError::NotLocal(_) | ConnectError::InUse { .. } | ConnectError::NoPort(_) => {
                libc::EADDRNOTAVAIL
            }
            ConnectError::TooMany(_) => libc::ENOBUFS,
            ConnectError::BadConfig { .. } => libc::EINVAL,
            _ => libc::EADDRNOTAVAIL,
        })
    }
}

impl From<ListenError> for Errno {
    fn from(error: ListenError) -> Errno {
        Errno(match error {
            ListenError::InUse(_) => libc::EADDRINUSE,
            ListenError::NotLocal(_) | ListenError::NoPort => libc::EADDRNOTAVAIL,
            ListenError::BadConfig { .. } => libc::EINVAL,
            _ => libc::EADDRNOTAVAIL,
        })
    }
}

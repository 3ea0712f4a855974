//! A listening socket that the parent process has bound (systemd's socket activation).

use std::io;
use std::net::TcpListener;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

use socket2::Socket;

/// First inherited descriptor (`sd_listen_fds(3)`).
const FIRST: RawFd = 3;

/// Takes ownership of the listening TCP socket with this descriptor. Call it once per descriptor.
///
/// # Errors
/// The descriptor is below the first inherited one, is not open, or is not a listening TCP socket.
pub fn inherited_listener(descriptor: RawFd) -> io::Result<TcpListener> {
    let wrong =
        |why: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("descriptor {descriptor} {why}"));
    if descriptor < FIRST {
        return Err(wrong("cannot have been handed over by a service manager"));
    }
    // SAFETY: the borrow ends with this statement, and the call fails cleanly if the descriptor is not open.
    let copy = unsafe { BorrowedFd::borrow_raw(descriptor) }
        .try_clone_to_owned()
        .map_err(|_| wrong("is not open"))?;
    let listens = Socket::from(copy).is_listener().map_err(|_| wrong("is not a socket"))?;
    if !listens {
        return Err(wrong("is not a listening socket"));
    }
    // SAFETY: the descriptor is open, and by the contract of socket activation no other code owns it.
    let socket = Socket::from(unsafe { OwnedFd::from_raw_fd(descriptor) });
    socket.set_cloexec(true)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::os::fd::IntoRawFd;

    use super::*;

    #[test]
    fn a_listener_is_taken_and_everything_else_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let taken = inherited_listener(listener.into_raw_fd()).expect("it listens");
        assert_eq!(taken.local_addr().expect("an address"), address);
        for descriptor in [-1, 0, 2, 1_000_000] {
            assert!(inherited_listener(descriptor).is_err(), "{descriptor}");
        }
        let file = std::fs::File::open("/dev/null").expect("a file");
        let descriptor = std::os::fd::AsRawFd::as_raw_fd(&file);
        assert!(inherited_listener(descriptor).is_err());
    }
}

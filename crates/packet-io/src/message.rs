//! `sendmsg` and `recvmsg` with control messages as bytes, which no safe interface supports.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use socket2::SockAddr;

/// Result of recvmsg().
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Received {
    /// Bytes of data.
    pub len: usize,
    /// Bytes of control messages.
    pub control_len: usize,
    /// `msg_flags`.
    pub flags: i32,
}

/// Sends `data`, with control messages in this machine's layout, to the address `to` if there is one. Returns
/// the number of sent bytes.
pub fn send(
    fd: BorrowedFd<'_>,
    data: &[u8],
    flags: i32,
    to: Option<&SockAddr>,
    control: &[u8],
) -> io::Result<usize> {
    let part = IoSlice::new(data);
    let header = header(to, control, &part);
    // SAFETY: all memory that the header points to outlives the call, which only reads it.
    let taken = unsafe { libc::sendmsg(fd.as_raw_fd(), &header, flags) };
    usize::try_from(taken).map_err(|_| io::Error::last_os_error())
}

/// A message with its destination and control messages.
pub(crate) struct Message<'a> {
    pub(crate) to: SockAddr,
    pub(crate) data: IoSlice<'a>,
    pub(crate) control: Vec<u8>,
}

impl<'a> Message<'a> {
    pub(crate) fn new(to: SockAddr, data: &'a [u8]) -> Message<'a> {
        Message { to, data: IoSlice::new(data), control: Vec::new() }
    }

    pub(crate) fn add_control(&mut self, level: i32, kind: i32, value: &[u8]) {
        self.control.extend(control(level, kind, value));
    }

    /// Returns the kernel's header, which points into the message.
    pub(crate) fn header(&self) -> libc::msghdr {
        header(Some(&self.to), &self.control, &self.data)
    }
}

pub(crate) fn control(level: i32, kind: i32, value: &[u8]) -> Vec<u8> {
    let len = size_of::<usize>() + 2 * size_of::<i32>() + value.len();
    let mut control = [&len.to_ne_bytes()[..], &level.to_ne_bytes(), &kind.to_ne_bytes(), value].concat();
    control.resize(control.len().next_multiple_of(size_of::<usize>()), 0);
    control
}

/// Returns a header that points to these parts, which are only read.
fn header(to: Option<&SockAddr>, control: &[u8], part: &IoSlice<'_>) -> libc::msghdr {
    // SAFETY: a header of zeros points to nothing.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    // An IoSlice is an iovec.
    (header.msg_iov, header.msg_iovlen) = (std::ptr::from_ref(part).cast_mut().cast(), 1);
    if let Some(to) = to {
        header.msg_name = to.as_ptr().cast_mut().cast();
        header.msg_namelen = to.len();
    }
    if !control.is_empty() {
        // The C libraries declare the length with different integer types.
        (header.msg_control, header.msg_controllen) =
            (control.as_ptr().cast_mut().cast(), control.len() as _);
    }
    header
}

/// Receives into `data`, and control messages into `control`.
pub fn receive(fd: BorrowedFd<'_>, data: &mut [u8], control: &mut [u8], flags: i32) -> io::Result<Received> {
    let mut part = libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: data.len() };
    // SAFETY: a header of zeros points to nothing.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&mut part, 1);
    (header.msg_control, header.msg_controllen) = (control.as_mut_ptr().cast(), control.len() as _);
    // SAFETY: all buffers of the header outlive the call and have the stated lengths.
    let len = unsafe { libc::recvmsg(fd.as_raw_fd(), &mut header, flags) };
    let len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
    Ok(Received { len, control_len: header.msg_controllen as usize, flags: header.msg_flags })
}

/// Takes an error from a socket's error queue. Returns the part of the failed message that fits into `data`,
/// its destination, and the length of the control messages in `control` that describe the error.
pub(crate) fn receive_error(
    fd: BorrowedFd<'_>,
    data: &mut [u8],
    control: &mut [u8],
) -> io::Result<(usize, Option<SocketAddr>, usize)> {
    let mut part = libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: data.len() };
    // SAFETY: the header points to buffers that outlive the call and have the stated lengths; the kernel
    // writes the name and its length.
    let ((len, control_len), to) = unsafe {
        SockAddr::try_init(|name, name_len| {
            let mut header: libc::msghdr = std::mem::zeroed();
            (header.msg_name, header.msg_namelen) = (name.cast(), *name_len);
            (header.msg_iov, header.msg_iovlen) = (&mut part, 1);
            (header.msg_control, header.msg_controllen) = (control.as_mut_ptr().cast(), control.len() as _);
            let len = libc::recvmsg(fd.as_raw_fd(), &mut header, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT);
            let len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
            *name_len = header.msg_namelen;
            Ok((len, header.msg_controllen as usize))
        })
    }?;
    Ok((len, to.as_socket(), control_len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn message_is_received_with_its_control_data() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let sender = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (receiver, _) = listener.accept().unwrap();
        crate::sockopt::set(receiver.as_fd(), libc::SOL_TCP, libc::TCP_INQ, &1i32.to_ne_bytes()).unwrap();
        assert_eq!(send(sender.as_fd(), b"hello", 0, None, &[]).unwrap(), 5);
        let (mut data, mut control) = ([0; 3], [0; 64]);
        let received = receive(receiver.as_fd(), &mut data, &mut control, 0).unwrap();
        assert_eq!((received.len, &data), (3, b"hel"));
        // One control message with one int: two bytes are left to read.
        assert!((20..=24).contains(&received.control_len), "{received:?}");
        assert_eq!(control[16..20], 2i32.to_ne_bytes());
        let none = receive(receiver.as_fd(), &mut data, &mut control, libc::MSG_ERRQUEUE).unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn control_messages_have_the_layout_of_the_system() {
        let mut message =
            Message::new("127.0.0.1:9".parse::<std::net::SocketAddr>().unwrap().into(), b"data");
        for value in [&[1, 2][..], &[3, 4, 5, 6], &[7; 20]] {
            message.add_control(value.len() as i32, -1, value);
        }
        let header = message.header();
        // SAFETY: the header points to the control messages of `message`, which have the stated length.
        let mut next = unsafe { libc::CMSG_FIRSTHDR(&header) };
        for value in [&[1, 2][..], &[3, 4, 5, 6], &[7; 20]] {
            // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR return a complete message, or null.
            let (found, data) = unsafe { (next.read_unaligned(), libc::CMSG_DATA(next)) };
            assert_eq!((found.cmsg_level, found.cmsg_type), (value.len() as i32, -1));
            // SAFETY: CMSG_LEN only calculates.
            assert_eq!(found.cmsg_len, unsafe { libc::CMSG_LEN(value.len() as u32) } as usize);
            // SAFETY: the header is followed by this many bytes of data.
            assert_eq!(unsafe { std::slice::from_raw_parts(data, value.len()) }, value);
            // SAFETY: as above.
            next = unsafe { libc::CMSG_NXTHDR(&header, next) };
        }
        assert!(next.is_null());
    }
}

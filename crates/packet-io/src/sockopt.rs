//! Access, by number, to socket options and requests that no safe interface supports.

use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// Sets an option to the bytes of `value`.
pub fn set(fd: BorrowedFd<'_>, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
    // SAFETY: the pointer and the length are those of a slice that outlives the call.
    let answer = unsafe {
        libc::setsockopt(fd.as_raw_fd(), level, name, value.as_ptr().cast(), value.len() as libc::socklen_t)
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns the value of an option: at most `room` bytes.
pub fn get(fd: BorrowedFd<'_>, level: i32, name: i32, room: usize) -> io::Result<Vec<u8>> {
    let mut value = vec![0u8; room];
    let mut len = room as libc::socklen_t;
    // SAFETY: the pointer and the length are those of a buffer that outlives the call.
    let answer =
        unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, value.as_mut_ptr().cast(), &mut len) };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    value.truncate(len as usize);
    Ok(value)
}

/// `IP_LOCAL_PORT_RANGE` of linux/in.h.
const IP_LOCAL_PORT_RANGE: i32 = 51;

/// Limits the ports from which an unbound socket, of either family, connects.
///
/// # Errors
/// Not supported before Linux 6.3.
pub fn use_local_ports(fd: BorrowedFd<'_>, ports: RangeInclusive<u16>) -> io::Result<()> {
    let value = u32::from(*ports.end()) << 16 | u32::from(*ports.start());
    set(fd, libc::IPPROTO_IP, IP_LOCAL_PORT_RANGE, &value.to_ne_bytes())
}

/// Permits a socket to be bound to an address that this host does not have (`IP_TRANSPARENT`).
///
/// # Errors
/// Both CAP_NET_RAW and CAP_NET_ADMIN are missing.
pub fn allow_foreign_address(fd: BorrowedFd<'_>, ipv6: bool) -> io::Result<()> {
    let (level, name) = match ipv6 {
        true => (libc::SOL_IPV6, libc::IPV6_TRANSPARENT),
        false => (libc::SOL_IP, libc::IP_TRANSPARENT),
    };
    set(fd, level, name, &1i32.to_ne_bytes())
}

/// Statistics of a connection of the kernel's TCP (`struct tcp_info` of linux/tcp.h).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TcpInfo {
    /// Segments with data that this side sent, including retransmissions.
    pub data_segments_out: u64,
    /// Segments that this side retransmitted, including those of the handshake.
    pub retransmits: u64,
    /// Smoothed round-trip time.
    pub srtt: Option<Duration>,
}

impl TcpInfo {
    /// Returns the statistics of a socket.
    ///
    /// # Errors
    /// The descriptor is not a TCP socket.
    pub fn of(fd: BorrowedFd<'_>) -> io::Result<TcpInfo> {
        // Offsets of tcpi_rtt (microseconds), tcpi_total_retrans and tcpi_data_segs_out (Linux 4.6).
        const RTT: usize = 68;
        const TOTAL_RETRANS: usize = 100;
        const DATA_SEGS_OUT: usize = 156;
        let info = get(fd, libc::SOL_TCP, libc::TCP_INFO, DATA_SEGS_OUT + 4)?;
        let word = |at: usize| {
            let bytes = info.get(at..).and_then(<[u8]>::first_chunk::<4>);
            bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
        };
        let srtt = Duration::from_micros(word(RTT).into());
        Ok(TcpInfo {
            data_segments_out: word(DATA_SEGS_OUT).into(),
            retransmits: word(TOTAL_RETRANS).into(),
            srtt: (!srtt.is_zero()).then_some(srtt),
        })
    }
}

/// Makes a request such as SIOCINQ and returns the resulting number.
pub fn request(fd: BorrowedFd<'_>, request: u64) -> io::Result<i32> {
    let mut number: libc::c_int = 0;
    // SAFETY: requests of sockets with a number as the result write one int.
    let answer = unsafe { libc::ioctl(fd.as_raw_fd(), request as _, &mut number) };
    if answer == 0 { Ok(number) } else { Err(io::Error::last_os_error()) }
}

/// Returns how many bytes a TCP socket has accepted that its peer has not acknowledged. A FIN counts as one.
///
/// # Errors
/// The descriptor is not a TCP socket.
pub fn unacknowledged(fd: BorrowedFd<'_>) -> io::Result<usize> {
    Ok(usize::try_from(request(fd, libc::TIOCOUTQ as _)?).unwrap_or(0))
}

/// Requests socket buffers of `bytes` in each direction; the kernel may grant less.
pub fn request_buffers(fd: BorrowedFd<'_>, bytes: usize) {
    if rustix::net::sockopt::set_socket_recv_buffer_size_force(fd, bytes).is_err() {
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size(fd, bytes);
    }
    let _ = rustix::net::sockopt::set_socket_send_buffer_size(fd, bytes);
}

/// Returns the number of packets dropped because of a full receive buffer since the socket was opened; 0 if
/// the kernel does not report it.
pub fn dropped(fd: BorrowedFd<'_>) -> u64 {
    const SK_MEMINFO_DROPS: usize = 8;
    memory(fd).map_or(0, |memory| memory[SK_MEMINFO_DROPS].into())
}

/// Returns the limit of the memory for sent packets, and its current size, in bytes; `None` if the kernel
/// does not report it.
pub(crate) fn send_memory(fd: BorrowedFd<'_>) -> Option<(usize, usize)> {
    const SK_MEMINFO_WMEM_ALLOC: usize = 2;
    const SK_MEMINFO_SNDBUF: usize = 3;
    memory(fd).map(|memory| (memory[SK_MEMINFO_SNDBUF] as usize, memory[SK_MEMINFO_WMEM_ALLOC] as usize))
}

/// Returns `SO_MEMINFO`, in the order of linux/sock_diag.h.
fn memory(fd: BorrowedFd<'_>) -> Option<[u32; 9]> {
    let meminfo = get(fd, libc::SOL_SOCKET, libc::SO_MEMINFO, size_of::<[u32; 9]>()).ok()?;
    let mut words = meminfo.chunks_exact(4).filter_map(|word| word.try_into().ok());
    let mut memory = [0; 9];
    for word in &mut memory {
        *word = u32::from_ne_bytes(words.next()?);
    }
    Some(memory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;

    #[test]
    fn bytes_for_a_peer_that_does_not_read_stay_unacknowledged() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let _peer = listener.accept().unwrap();
        assert_eq!(unacknowledged(stream.as_fd()).unwrap(), 0);
        stream.set_nonblocking(true).unwrap();
        while stream.write(&[7; 65_536]).is_ok() {}
        assert!(unacknowledged(stream.as_fd()).unwrap() > 0);
    }

    #[test]
    fn a_socket_connects_from_the_ports_that_it_may_use() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        if use_local_ports(socket.as_fd(), 40_000..=40_100).is_err() {
            return println!("skipped: this kernel does not know IP_LOCAL_PORT_RANGE (Linux 6.3)");
        }
        socket.connect(&listener.local_addr().unwrap().into()).unwrap();
        let local = socket.local_addr().unwrap().as_socket().unwrap();
        assert!((40_000..=40_100).contains(&local.port()), "{local}");
    }

    #[test]
    fn kernel_reports_segments_and_the_round_trip_time() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        for _ in 0..3 {
            server.write_all(b"data").unwrap();
            client.read_exact(&mut [0; 4]).unwrap();
        }
        let TcpInfo { data_segments_out, retransmits, srtt } = TcpInfo::of(server.as_fd()).unwrap();
        assert_eq!((data_segments_out, retransmits), (3, 0));
        assert!(srtt.is_some_and(|srtt| srtt < Duration::from_secs(1)), "{srtt:?}");
        assert!(TcpInfo::of(std::net::UdpSocket::bind("127.0.0.1:0").unwrap().as_fd()).is_err());
    }

    #[test]
    fn option_that_was_set_is_returned() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        set(listener.as_fd(), libc::SOL_TCP, libc::TCP_NODELAY, &1i32.to_ne_bytes()).unwrap();
        let value = get(listener.as_fd(), libc::SOL_TCP, libc::TCP_NODELAY, 4).unwrap();
        assert_eq!(value, 1i32.to_ne_bytes());
        assert!(get(listener.as_fd(), libc::SOL_TCP, 9999, 4).is_err());
        let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(request(stream.as_fd(), libc::FIONREAD).unwrap(), 0);
    }
}

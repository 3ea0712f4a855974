//! The calls of the protocol: request message, socket calls, response message.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use brisk_sockets::Errno;
use brisk_sockets::live::{PollEntry, Sockets};

use crate::messages::*;

/// Sizes of a C `int` and of a `struct timeval`, bytes.
const INT: usize = 4;
const TIMEVAL: usize = 16;
/// Maximum number of bytes that a call requests; gRPC's default limit for a message is lower.
const MAX_BYTES: i32 = 64 << 20;

type Answer<T> = Result<T, Errno>;

const INVALID: Errno = Errno(libc::EINVAL);

/// Returns the return value of a C function, and errno.
fn returned(answer: Answer<i32>) -> (i32, i32) {
    answer.map_or_else(|Errno(number)| (-1, number), |value| (value, 0))
}

fn plain(answer: Answer<i32>) -> Return {
    let (ret, errno) = returned(answer);
    Return { ret, errno }
}

fn done(answer: Answer<()>) -> Return {
    plain(answer.map(|()| 0))
}

pub(crate) fn socket(sockets: &Sockets, request: SocketRequest) -> SocketResponse {
    let (fd, errno) = returned(sockets.socket(request.domain, request.kind, request.protocol));
    SocketResponse { fd, errno }
}

pub(crate) fn bind(sockets: &Sockets, request: BindRequest) -> Return {
    done(address(request.addr).and_then(|addr| sockets.bind(request.sockfd, addr)))
}

pub(crate) fn listen(sockets: &Sockets, request: ListenRequest) -> Return {
    done(sockets.listen(request.sockfd, request.backlog))
}

pub(crate) fn accept(sockets: &Sockets, request: AcceptRequest) -> AcceptResponse {
    match sockets.accept(request.sockfd) {
        Ok((fd, peer)) => AcceptResponse { fd, errno: 0, addr: Some(message(peer)) },
        Err(Errno(errno)) => AcceptResponse { fd: -1, errno, addr: None },
    }
}

pub(crate) fn connect(sockets: &Sockets, request: ConnectRequest) -> Return {
    done(address(request.addr).and_then(|addr| sockets.connect(request.sockfd, addr)))
}

pub(crate) fn get_sock_name(sockets: &Sockets, request: GetSockNameRequest) -> GetSockNameResponse {
    match sockets.getsockname(request.sockfd) {
        Ok(own) => GetSockNameResponse { ret: 0, errno: 0, addr: Some(message(own)) },
        Err(Errno(errno)) => GetSockNameResponse { ret: -1, errno, addr: None },
    }
}

pub(crate) fn get_sock_opt(sockets: &Sockets, request: GetSockOptRequest) -> GetSockOptResponse {
    match option_value(sockets, &request) {
        Ok(value) => GetSockOptResponse { ret: 0, errno: 0, optval: Some(SockOptVal { val: Some(value) }) },
        Err(Errno(errno)) => GetSockOptResponse { ret: -1, errno, optval: None },
    }
}

fn option_value(sockets: &Sockets, request: &GetSockOptRequest) -> Answer<OptionValue> {
    let kind = OptionKind::try_from(request.kind).map_err(|_| INVALID)?;
    let room = match kind {
        OptionKind::Unspecified => return Err(INVALID),
        OptionKind::Bytes => usize::try_from(request.optlen).map_err(|_| INVALID)?,
        OptionKind::Int => INT,
        OptionKind::Time => TIMEVAL,
    };
    let value = sockets.getsockopt(request.sockfd, request.level, request.optname, room)?;
    Ok(match kind {
        OptionKind::Unspecified | OptionKind::Bytes => OptionValue::Bytes(value),
        OptionKind::Int => OptionValue::Int(i32::from_ne_bytes(part(&value, 0)?)),
        OptionKind::Time => OptionValue::Time(Timeval {
            seconds: i64::from_ne_bytes(part(&value, 0)?),
            microseconds: i64::from_ne_bytes(part(&value, 8)?),
        }),
    })
}

fn part<const N: usize>(value: &[u8], at: usize) -> Answer<[u8; N]> {
    value.get(at..).and_then(|rest| rest.first_chunk().copied()).ok_or(INVALID)
}

pub(crate) fn set_sock_opt(sockets: &Sockets, request: SetSockOptRequest) -> Return {
    let value = match request.optval.and_then(|value| value.val) {
        None => return done(Err(INVALID)),
        Some(OptionValue::Bytes(bytes)) => bytes,
        Some(OptionValue::Int(number)) => number.to_ne_bytes().to_vec(),
        Some(OptionValue::Time(time)) => {
            [time.seconds.to_ne_bytes(), time.microseconds.to_ne_bytes()].concat()
        }
    };
    done(sockets.setsockopt(request.sockfd, request.level, request.optname, &value))
}

pub(crate) fn poll(sockets: &Sockets, request: PollRequest) -> PollResponse {
    let entries: Vec<PollEntry> =
        request.pfds.iter().map(|entry| PollEntry { fd: entry.fd, events: entry.events as i16 }).collect();
    match sockets.poll(&entries, request.timeout_millis) {
        Ok(ready) => {
            let pfds = ready.iter().map(|entry| PollFd { fd: entry.fd, events: entry.events as u16 as u32 });
            PollResponse { ret: ready.len() as i32, errno: 0, pfds: pfds.collect() }
        }
        Err(Errno(errno)) => PollResponse { ret: -1, errno, pfds: Vec::new() },
    }
}

pub(crate) fn recv(sockets: &Sockets, request: RecvRequest) -> RecvResponse {
    let len = usize::try_from(request.len.min(MAX_BYTES)).map_err(|_| INVALID);
    match len.and_then(|len| sockets.recv(request.sockfd, len, request.flags)) {
        Ok(buf) => RecvResponse { ret: buf.len() as i32, errno: 0, buf },
        Err(Errno(errno)) => RecvResponse { ret: -1, errno, buf: Vec::new() },
    }
}

pub(crate) fn send(sockets: &Sockets, request: SendRequest) -> Return {
    plain(sockets.send(request.sockfd, &request.buf, request.flags, None).map(|taken| taken as i32))
}

pub(crate) fn send_to(sockets: &Sockets, request: SendToRequest) -> Return {
    let to = request.dest_addr.map(|addr| address(Some(addr))).transpose();
    let sent = to.and_then(|to| sockets.send(request.sockfd, &request.buf, request.flags, to));
    plain(sent.map(|taken| taken as i32))
}

pub(crate) fn set_nonblocking(sockets: &Sockets, request: SetNonblockingRequest) -> SetNonblockingResponse {
    let (ret, errno) = returned(sockets.set_nonblocking(request.fd, request.nonblocking).map(|()| 0));
    // On a descriptor that does not exist, F_GETFL fails.
    let cmd = if ret == 0 { "" } else { "F_GETFL" };
    SetNonblockingResponse { ret, errno, cmd: cmd.to_owned() }
}

pub(crate) fn shutdown(sockets: &Sockets, request: ShutdownRequest) -> ShutdownResponse {
    let (_, errno) = returned(sockets.shutdown(request.fd, request.how).map(|()| 0));
    ShutdownResponse { errno }
}

pub(crate) fn close(sockets: &Sockets, request: CloseRequest) -> Return {
    done(sockets.close(request.fd))
}

/// Returns the address of a request. A missing address has the effect of a null pointer.
fn address(addr: Option<Sockaddr>) -> Answer<SocketAddr> {
    let addr = addr.and_then(|addr| addr.sockaddr).ok_or(Errno(libc::EFAULT))?;
    let (family, port) = match &addr {
        Address::In(v4) => (v4.family, v4.port),
        Address::In6(v6) => (v6.family as i32, v6.port),
    };
    let port = u16::try_from(port).map_err(|_| INVALID)?;
    match (addr, family) {
        (Address::In(v4), libc::AF_INET) => {
            let octets: [u8; 4] = v4.addr.as_slice().try_into().map_err(|_| INVALID)?;
            Ok((Ipv4Addr::from(octets), port).into())
        }
        (Address::In6(v6), libc::AF_INET6) => {
            let octets: [u8; 16] = v6.addr.as_slice().try_into().map_err(|_| INVALID)?;
            Ok(SocketAddrV6::new(Ipv6Addr::from(octets), port, 0, 0).into())
        }
        _ => Err(Errno(libc::EAFNOSUPPORT)),
    }
}

fn message(addr: SocketAddr) -> Sockaddr {
    let port = addr.port().into();
    let sockaddr = match addr {
        SocketAddr::V4(v4) => {
            Address::In(SockaddrIn { family: libc::AF_INET, port, addr: v4.ip().octets().to_vec() })
        }
        SocketAddr::V6(v6) => Address::In6(SockaddrIn6 {
            family: libc::AF_INET6 as u32,
            port,
            flowinfo: 0,
            addr: v6.ip().octets().to_vec(),
            scope_id: v6.scope_id(),
        }),
    };
    Sockaddr { sockaddr: Some(sockaddr) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_a_round_trip_through_messages() {
        for text in ["10.1.2.3:80", "[fd00::7]:65535"] {
            let addr: SocketAddr = text.parse().unwrap();
            assert_eq!(address(Some(message(addr))), Ok(addr));
        }
    }

    #[test]
    fn invalid_address_causes_the_error_of_linux() {
        let of = |family, port, addr: &[u8]| {
            let v4 = SockaddrIn { family, port, addr: addr.to_vec() };
            address(Some(Sockaddr { sockaddr: Some(Address::In(v4)) }))
        };
        assert_eq!(address(None), Err(Errno(libc::EFAULT)));
        assert_eq!(of(libc::AF_INET, 80, &[1, 2, 3]), Err(INVALID));
        assert_eq!(of(libc::AF_INET, 65_536, &[1, 2, 3, 4]), Err(INVALID));
        assert_eq!(of(libc::AF_UNIX, 80, &[1, 2, 3, 4]), Err(Errno(libc::EAFNOSUPPORT)));
    }
}

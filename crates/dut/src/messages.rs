//! The messages of `posix_server`, field by field. The field numbers are those of the protocol; the names are
//! chosen here.
//!
//! In a response, `ret` is the return value of the C function, and `errno` is Linux's error number, which is
//! 0 if `ret` is not negative.

use prost::{Enumeration, Message, Oneof};

/// `struct sockaddr_in`. The port is in host byte order, the address in network byte order.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct SockaddrIn {
    /// `AF_INET`.
    #[prost(int32, tag = "1")]
    pub family: i32,
    /// 0 to 65535.
    #[prost(uint32, tag = "2")]
    pub port: u32,
    /// Four bytes.
    #[prost(bytes = "vec", tag = "3")]
    pub addr: Vec<u8>,
}

/// `struct sockaddr_in6`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct SockaddrIn6 {
    /// `AF_INET6`.
    #[prost(uint32, tag = "1")]
    pub family: u32,
    /// 0 to 65535.
    #[prost(uint32, tag = "2")]
    pub port: u32,
    /// Flow label and traffic class.
    #[prost(uint32, tag = "3")]
    pub flowinfo: u32,
    /// Sixteen bytes.
    #[prost(bytes = "vec", tag = "4")]
    pub addr: Vec<u8>,
    /// The interface, for link-local addresses.
    #[prost(uint32, tag = "5")]
    pub scope_id: u32,
}

/// An address of either family.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Sockaddr {
    /// The address.
    #[prost(oneof = "Address", tags = "1, 2")]
    pub sockaddr: Option<Address>,
}

/// The address in a [`Sockaddr`].
#[derive(Clone, PartialEq, Eq, Oneof)]
pub enum Address {
    /// IPv4.
    #[prost(message, tag = "1")]
    In(SockaddrIn),
    /// IPv6.
    #[prost(message, tag = "2")]
    In6(SockaddrIn6),
}

/// `struct timeval`.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Timeval {
    /// Whole seconds.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// Microseconds in addition.
    #[prost(int64, tag = "2")]
    pub microseconds: i64,
}

/// The value of a socket option.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct SockOptVal {
    /// The value in one of three forms.
    #[prost(oneof = "OptionValue", tags = "1, 2, 3")]
    pub val: Option<OptionValue>,
}

/// The value in a [`SockOptVal`].
#[derive(Clone, PartialEq, Eq, Oneof)]
pub enum OptionValue {
    /// The bytes of the value in memory.
    #[prost(bytes, tag = "1")]
    Bytes(Vec<u8>),
    /// An `int`.
    #[prost(int32, tag = "2")]
    Int(i32),
    /// A `struct timeval`.
    #[prost(message, tag = "3")]
    Time(Timeval),
}

/// The requested form of an option.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Enumeration)]
#[repr(i32)]
pub enum OptionKind {
    /// No form was requested, which is an error.
    Unspecified = 0,
    /// The bytes of the value in memory.
    Bytes = 1,
    /// An `int`.
    Int = 2,
    /// A `struct timeval`.
    Time = 3,
}

/// Declares messages whose fields are numbers, texts, bytes or other messages.
macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty = $tag:literal ($($kind:tt)*)),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Message)]
        pub struct $name {
            $($(#[$field_doc])* #[prost($($kind)*, tag = $tag)] pub $field: $type,)*
        }
    )*};
}

messages! {
    /// accept(2).
    AcceptRequest {
        /// The listener.
        sockfd: i32 = "1" (int32),
    }
    /// The response of accept(2).
    AcceptResponse {
        /// The new socket, or -1.
        fd: i32 = "1" (int32),
        /// Error number.
        errno: i32 = "2" (int32),
        /// The peer.
        addr: Option<Sockaddr> = "3" (message, optional),
    }
    /// bind(2).
    BindRequest {
        /// The socket.
        sockfd: i32 = "1" (int32),
        /// The local address; port 0 requests an unused port.
        addr: Option<Sockaddr> = "2" (message, optional),
    }
    /// The response of bind, close, connect, listen, send, sendto and setsockopt.
    Return {
        /// The return value of the C function.
        ret: i32 = "1" (int32),
        /// Error number.
        errno: i32 = "2" (int32),
    }
    /// close(2).
    CloseRequest {
        /// The socket.
        fd: i32 = "1" (int32),
    }
    /// connect(2).
    ConnectRequest {
        /// The socket.
        sockfd: i32 = "1" (int32),
        /// The remote address.
        addr: Option<Sockaddr> = "2" (message, optional),
    }
    /// getsockname(2).
    GetSockNameRequest {
        /// The socket.
        sockfd: i32 = "1" (int32),
    }
    /// The response of getsockname(2).
    GetSockNameResponse {
        /// 0 or -1.
        ret: i32 = "1" (int32),
        /// Error number.
        errno: i32 = "2" (int32),
        /// The socket's local address.
        addr: Option<Sockaddr> = "3" (message, optional),
    }
    /// getsockopt(2).
    GetSockOptRequest {
        /// The socket.
        sockfd: i32 = "1" (int32),
        /// `SOL_SOCKET` or another level.
        level: i32 = "2" (int32),
        /// The option.
        optname: i32 = "3" (int32),
        /// Size of the caller's buffer, if the request is for bytes.
        optlen: i32 = "4" (int32),
        /// The requested form.
        kind: i32 = "5" (enumeration = "OptionKind"),
    }
    /// The response of getsockopt(2).
    GetSockOptResponse {
        /// 0 or -1.
        ret: i32 = "1" (int32),
        /// Error number.
        errno: i32 = "2" (int32),
        /// The value in the requested form.
        optval: Option<SockOptVal> = "3" (message, optional),
    }
    /// listen(2).
    ListenRequest {
        /// The socket.
        sockfd: i32 = "1" (int32),
        /// Maximum number of waiting connections.
        backlog: i32 = "2" (int32),
    }
    /// `struct pollfd`: `events` in a request, `revents` in a response.
    PollFd {
        /// The socket.
        fd: i32 = "1" (int32),
        /// The events.
        events: u32 = "2" (uint32),
    }
    /// poll(2).
    PollRequest {
        /// The sockets.
        pfds: Vec<PollFd> = "1" (message, repeated),
        /// -1 waits without a limit.
        timeout_millis: i32 = "2" (int32),
    }
    /// The response of poll(2).
    PollResponse {
        /// Number of sockets with events, or -1.
        ret: i32 = "1" (int32),
        /// Error number.
        errno: i32 = "2" (int32),
        /// The sockets with events; `ret` is their number.
        pfds: Vec<PollFd> = "3" (message, repeated),
    }
    /// recv(2).
    RecvRequest {
        /// The socket.
        sockfd: i32 = "1" (int32),
        /// Maximum number of bytes.
        len: i32 = "2" (int32),
        /// `MSG_...`.
        flags: i32 = "3" (int32),
    }
    /// The response of recv(2).
    RecvResponse {
        /// Number of bytes, or -1.
        ret: i32 = "1" (int32),
        /// Error number.
        errno: i32 = "2" (int32),
        /// The bytes.
        buf: Vec<u8> = "3" (bytes = "vec"),
    }
    /// send(2).
    SendRequest {
        /// The socket.
        sockfd: i32 = "1" (int32),
        /// The bytes.
        buf: Vec<u8> = "2" (bytes = "vec"),
        /// `MSG_...`.
        flags: i32 = "3" (int32),
    }
    /// sendto(2).
    SendToRequest {
        /// The socket.
        sockfd: i32 = "1" (int32),
        /// The bytes.
        buf: Vec<u8> = "2" (bytes = "vec"),
        /// `MSG_...`.
        flags: i32 = "3" (int32),
        /// The destination.
        dest_addr: Option<Sockaddr> = "4" (message, optional),
    }
    /// fcntl(2) with `O_NONBLOCK`.
    SetNonblockingRequest {
        /// The socket.
        fd: i32 = "1" (int32),
        /// The new state of the flag.
        nonblocking: bool = "2" (bool),
    }
    /// The response of fcntl(2).
    SetNonblockingResponse {
        /// 0 or -1.
        ret: i32 = "1" (int32),
        /// Error number.
        errno: i32 = "2" (int32),
        /// The command that failed: `F_GETFL` or `F_SETFL`.
        cmd: String = "3" (string),
    }
    /// setsockopt(2).
    SetSockOptRequest {
        /// The socket.
        sockfd: i32 = "1" (int32),
        /// `SOL_SOCKET` or another level.
        level: i32 = "2" (int32),
        /// The option.
        optname: i32 = "3" (int32),
        /// The value.
        optval: Option<SockOptVal> = "4" (message, optional),
    }
    /// shutdown(2).
    ShutdownRequest {
        /// The socket.
        fd: i32 = "1" (int32),
        /// `SHUT_RD`, `SHUT_WR`, `SHUT_RDWR`.
        how: i32 = "2" (int32),
    }
    /// The response of shutdown(2).
    ShutdownResponse {
        /// Error number.
        errno: i32 = "1" (int32),
    }
    /// socket(2).
    SocketRequest {
        /// `AF_INET` or `AF_INET6`.
        domain: i32 = "1" (int32),
        /// `SOCK_STREAM`.
        kind: i32 = "2" (int32),
        /// 0 or `IPPROTO_TCP`.
        protocol: i32 = "3" (int32),
    }
    /// The response of socket(2).
    SocketResponse {
        /// The socket, or -1.
        fd: i32 = "1" (int32),
        /// Error number.
        errno: i32 = "2" (int32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The forms of `posix_server`'s `GetSockOptRequest.SockOptType`, as a test bench sends them.
    #[test]
    fn option_forms_have_the_numbers_of_the_protocol() {
        let asked = [vec![], vec![5 << 3, 1], vec![5 << 3, 2], vec![5 << 3, 3]];
        let forms = asked.map(|bytes| GetSockOptRequest::decode(bytes.as_slice()).unwrap().kind());
        let expected = [OptionKind::Unspecified, OptionKind::Bytes, OptionKind::Int, OptionKind::Time];
        assert_eq!(forms, expected);
    }
}

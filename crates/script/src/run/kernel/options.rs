//! The names that scripts use for what the C library has numbers for.

/// Level and number of a socket option.
pub(super) fn socket_option(name: &str) -> Option<(i32, i32)> {
    let socket = |number| Some((libc::SOL_SOCKET, number));
    let tcp = |number| Some((libc::SOL_TCP, number));
    let ip = |number| Some((libc::SOL_IP, number));
    match name {
        "SO_REUSEADDR" => socket(libc::SO_REUSEADDR),
        "SO_REUSEPORT" => socket(libc::SO_REUSEPORT),
        "SO_SNDBUF" => socket(libc::SO_SNDBUF),
        "SO_RCVBUF" => socket(libc::SO_RCVBUF),
        "SO_KEEPALIVE" => socket(libc::SO_KEEPALIVE),
        "SO_LINGER" => socket(libc::SO_LINGER),
        "SO_ERROR" => socket(libc::SO_ERROR),
        "SO_PRIORITY" => socket(libc::SO_PRIORITY),
        "SO_MARK" => socket(libc::SO_MARK),
        "SO_RCVLOWAT" => socket(libc::SO_RCVLOWAT),
        "SO_MAX_PACING_RATE" => socket(libc::SO_MAX_PACING_RATE),
        "SO_OOBINLINE" => socket(libc::SO_OOBINLINE),
        "TCP_LINGER2" => tcp(libc::TCP_LINGER2),
        "TCP_WINDOW_CLAMP" => tcp(libc::TCP_WINDOW_CLAMP),
        "TCP_QUICKACK" => tcp(libc::TCP_QUICKACK),
        "TCP_DEFER_ACCEPT" => tcp(libc::TCP_DEFER_ACCEPT),
        // TCP_RTO_MAX_MS of linux/tcp.h.
        "TCP_RTO_MAX_MS" => tcp(44),
        "TCP_NODELAY" => tcp(libc::TCP_NODELAY),
        "TCP_MAXSEG" => tcp(libc::TCP_MAXSEG),
        "TCP_CORK" => tcp(libc::TCP_CORK),
        "TCP_KEEPIDLE" => tcp(libc::TCP_KEEPIDLE),
        "TCP_KEEPINTVL" => tcp(libc::TCP_KEEPINTVL),
        "TCP_KEEPCNT" => tcp(libc::TCP_KEEPCNT),
        "TCP_SYNCNT" => tcp(libc::TCP_SYNCNT),
        "TCP_USER_TIMEOUT" => tcp(libc::TCP_USER_TIMEOUT),
        "TCP_CONGESTION" => tcp(libc::TCP_CONGESTION),
        "TCP_FASTOPEN" => tcp(libc::TCP_FASTOPEN),
        "TCP_FASTOPEN_CONNECT" => tcp(libc::TCP_FASTOPEN_CONNECT),
        "TCP_NOTSENT_LOWAT" => tcp(25),
        "IP_TOS" => ip(libc::IP_TOS),
        "IP_TTL" => ip(libc::IP_TTL),
        "IP_MTU_DISCOVER" => ip(libc::IP_MTU_DISCOVER),
        "IP_FREEBIND" => ip(libc::IP_FREEBIND),
        _ => None,
    }
}

/// Flags of a send or receive call.
pub(super) fn message_flags(names: &[&str]) -> i32 {
    let number = |name: &&str| match *name {
        "MSG_DONTWAIT" => libc::MSG_DONTWAIT,
        "MSG_MORE" => libc::MSG_MORE,
        "MSG_OOB" => libc::MSG_OOB,
        "MSG_PEEK" => libc::MSG_PEEK,
        "MSG_FASTOPEN" => libc::MSG_FASTOPEN,
        "MSG_EOR" => libc::MSG_EOR,
        "MSG_TRUNC" => libc::MSG_TRUNC,
        "MSG_WAITALL" => libc::MSG_WAITALL,
        "MSG_DONTROUTE" => libc::MSG_DONTROUTE,
        "MSG_CONFIRM" => libc::MSG_CONFIRM,
        _ => 0,
    };
    names.iter().map(number).fold(libc::MSG_NOSIGNAL, |all, one| all | one)
}

/// The name of an error number.
pub(super) fn errno_name(error: &std::io::Error) -> &'static str {
    match error.raw_os_error().unwrap_or(0) {
        libc::EAGAIN => "EAGAIN",
        libc::EINPROGRESS => "EINPROGRESS",
        libc::EALREADY => "EALREADY",
        libc::EISCONN => "EISCONN",
        libc::ENOTCONN => "ENOTCONN",
        libc::ECONNREFUSED => "ECONNREFUSED",
        libc::ECONNRESET => "ECONNRESET",
        libc::ECONNABORTED => "ECONNABORTED",
        libc::EPIPE => "EPIPE",
        libc::ETIMEDOUT => "ETIMEDOUT",
        libc::EHOSTUNREACH => "EHOSTUNREACH",
        libc::ENETUNREACH => "ENETUNREACH",
        libc::EADDRINUSE => "EADDRINUSE",
        libc::EADDRNOTAVAIL => "EADDRNOTAVAIL",
        libc::EBADF => "EBADF",
        libc::EINVAL => "EINVAL",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        libc::ENOPROTOOPT => "ENOPROTOOPT",
        libc::EMSGSIZE => "EMSGSIZE",
        libc::ENOBUFS => "ENOBUFS",
        libc::EPROTO => "EPROTO",
        libc::EACCES => "EACCES",
        _ => "EUNKNOWN",
    }
}

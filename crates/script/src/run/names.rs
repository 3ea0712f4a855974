//! Names of constants of the C library in scripts.

pub(super) fn number(name: &str) -> Option<i64> {
    let known = [ERRNOS, CALLS, MESSAGES, EVENTS, SOCKET_OPTIONS, TCP_OPTIONS, IP_OPTIONS, STAMPS];
    known.into_iter().flatten().find(|(known, _)| *known == name).map(|(_, number)| i64::from(*number))
}

pub(super) fn errno(number: i32) -> &'static str {
    ERRNOS.iter().find(|(_, known)| *known == number).map_or("EUNKNOWN", |(name, _)| name)
}

/// Returns the level of a socket option without a level in the script.
pub(super) fn level_of(name: &str) -> i32 {
    match name.split('_').next() {
        Some("SO") => libc::SOL_SOCKET,
        Some("IP") => libc::SOL_IP,
        Some("IPV6") => libc::SOL_IPV6,
        Some(_) | None => libc::SOL_TCP,
    }
}

type Names = &'static [(&'static str, i32)];

macro_rules! of_libc {
    ($($name:ident)*) => { &[$((stringify!($name), libc::$name)),*] };
}

const ERRNOS: Names = of_libc! {
    EPERM ENOENT EINTR EIO EBADF EAGAIN ENOMEM EACCES EFAULT EBUSY EEXIST ENODEV EINVAL EMFILE ENOTTY ESPIPE EPIPE
    EDOM ELOOP ENOMSG ENOTSOCK EDESTADDRREQ EMSGSIZE EPROTOTYPE ENOPROTOOPT EPROTONOSUPPORT ESOCKTNOSUPPORT EOPNOTSUPP
    EPFNOSUPPORT EAFNOSUPPORT EADDRINUSE EADDRNOTAVAIL ENETDOWN ENETUNREACH ENETRESET ECONNABORTED ECONNRESET ENOBUFS
    EISCONN ENOTCONN ESHUTDOWN ETIMEDOUT ECONNREFUSED EHOSTDOWN EHOSTUNREACH EALREADY EINPROGRESS EPROTO EOVERFLOW
    ENONET ECANCELED ENOSYS EDEADLK
};

const CALLS: Names = &[
    ("AF_UNSPEC", libc::AF_UNSPEC),
    ("AF_INET", libc::AF_INET),
    ("AF_INET6", libc::AF_INET6),
    ("PF_INET", libc::PF_INET),
    ("PF_INET6", libc::PF_INET6),
    ("SOCK_STREAM", libc::SOCK_STREAM),
    ("SOCK_DGRAM", libc::SOCK_DGRAM),
    ("SOCK_NONBLOCK", libc::SOCK_NONBLOCK),
    ("SOCK_CLOEXEC", libc::SOCK_CLOEXEC),
    ("IPPROTO_TCP", libc::IPPROTO_TCP),
    ("IPPROTO_UDP", libc::IPPROTO_UDP),
    ("IPPROTO_IP", libc::IPPROTO_IP),
    ("IPPROTO_IPV6", libc::IPPROTO_IPV6),
    ("SOL_SOCKET", libc::SOL_SOCKET),
    ("SOL_TCP", libc::SOL_TCP),
    ("SOL_IP", libc::SOL_IP),
    ("SOL_IPV6", libc::SOL_IPV6),
    ("SHUT_RD", libc::SHUT_RD),
    ("SHUT_WR", libc::SHUT_WR),
    ("SHUT_RDWR", libc::SHUT_RDWR),
    ("O_RDWR", libc::O_RDWR),
    ("O_RDONLY", libc::O_RDONLY),
    ("O_WRONLY", libc::O_WRONLY),
    ("O_NONBLOCK", libc::O_NONBLOCK),
    ("F_GETFL", libc::F_GETFL),
    ("F_SETFL", libc::F_SETFL),
    ("F_GETFD", libc::F_GETFD),
    ("F_SETFD", libc::F_SETFD),
    ("FD_CLOEXEC", libc::FD_CLOEXEC),
    ("FIONREAD", libc::FIONREAD as i32),
    ("SIOCINQ", libc::FIONREAD as i32),
    ("SIOCOUTQ", libc::TIOCOUTQ as i32),
    // Of linux/sockios.h and asm/sockios.h.
    ("SIOCOUTQNSD", 0x894B),
    ("SIOCATMARK", 0x8905),
];

const MESSAGES: Names = of_libc! {
    MSG_OOB MSG_PEEK MSG_DONTROUTE MSG_CTRUNC MSG_TRUNC MSG_DONTWAIT MSG_EOR MSG_WAITALL MSG_CONFIRM MSG_ERRQUEUE
    MSG_NOSIGNAL MSG_MORE MSG_ZEROCOPY MSG_FASTOPEN MSG_CMSG_CLOEXEC
};

const EVENTS: Names = &[
    ("POLLIN", libc::POLLIN as i32),
    ("POLLPRI", libc::POLLPRI as i32),
    ("POLLOUT", libc::POLLOUT as i32),
    ("POLLERR", libc::POLLERR as i32),
    ("POLLHUP", libc::POLLHUP as i32),
    ("POLLNVAL", libc::POLLNVAL as i32),
    ("POLLRDHUP", libc::POLLRDHUP as i32),
    ("POLLRDNORM", libc::POLLRDNORM as i32),
    ("POLLWRNORM", libc::POLLWRNORM as i32),
    ("EPOLLIN", libc::EPOLLIN),
    ("EPOLLPRI", libc::EPOLLPRI),
    ("EPOLLOUT", libc::EPOLLOUT),
    ("EPOLLERR", libc::EPOLLERR),
    ("EPOLLHUP", libc::EPOLLHUP),
    ("EPOLLRDHUP", libc::EPOLLRDHUP),
    ("EPOLLRDNORM", libc::EPOLLRDNORM),
    ("EPOLLWRNORM", libc::EPOLLWRNORM),
    ("EPOLLONESHOT", libc::EPOLLONESHOT),
    ("EPOLLEXCLUSIVE", libc::EPOLLEXCLUSIVE),
    ("EPOLLET", libc::EPOLLET),
    ("EPOLL_CTL_ADD", libc::EPOLL_CTL_ADD),
    ("EPOLL_CTL_MOD", libc::EPOLL_CTL_MOD),
    ("EPOLL_CTL_DEL", libc::EPOLL_CTL_DEL),
];

const SOCKET_OPTIONS: Names = of_libc! {
    SO_REUSEADDR SO_REUSEPORT SO_TYPE SO_ERROR SO_DONTROUTE SO_BROADCAST SO_SNDBUF SO_RCVBUF SO_SNDBUFFORCE
    SO_RCVBUFFORCE SO_KEEPALIVE SO_OOBINLINE SO_NO_CHECK SO_PRIORITY SO_LINGER SO_RCVLOWAT SO_SNDLOWAT SO_RCVTIMEO
    SO_SNDTIMEO SO_ACCEPTCONN SO_PROTOCOL SO_DOMAIN SO_MARK SO_TIMESTAMP SO_TIMESTAMPNS SO_TIMESTAMPING SO_BUSY_POLL
    SO_MAX_PACING_RATE SO_INCOMING_CPU SO_BINDTODEVICE SO_MEMINFO SO_ZEROCOPY SO_TXTIME
};

const TCP_OPTIONS: Names = &[
    ("TCP_NODELAY", libc::TCP_NODELAY),
    ("TCP_MAXSEG", libc::TCP_MAXSEG),
    ("TCP_CORK", libc::TCP_CORK),
    ("TCP_KEEPIDLE", libc::TCP_KEEPIDLE),
    ("TCP_KEEPINTVL", libc::TCP_KEEPINTVL),
    ("TCP_KEEPCNT", libc::TCP_KEEPCNT),
    ("TCP_SYNCNT", libc::TCP_SYNCNT),
    ("TCP_LINGER2", libc::TCP_LINGER2),
    ("TCP_DEFER_ACCEPT", libc::TCP_DEFER_ACCEPT),
    ("TCP_WINDOW_CLAMP", libc::TCP_WINDOW_CLAMP),
    ("TCP_INFO", libc::TCP_INFO),
    ("TCP_QUICKACK", libc::TCP_QUICKACK),
    ("TCP_CONGESTION", libc::TCP_CONGESTION),
    ("TCP_THIN_LINEAR_TIMEOUTS", libc::TCP_THIN_LINEAR_TIMEOUTS),
    ("TCP_THIN_DUPACK", libc::TCP_THIN_DUPACK),
    ("TCP_USER_TIMEOUT", libc::TCP_USER_TIMEOUT),
    ("TCP_FASTOPEN", libc::TCP_FASTOPEN),
    ("TCP_FASTOPEN_CONNECT", libc::TCP_FASTOPEN_CONNECT),
    ("TCP_ULP", libc::TCP_ULP),
    // Of linux/tcp.h.
    ("TCP_TIMESTAMP", 24),
    ("TCP_NOTSENT_LOWAT", 25),
    ("TCP_CC_INFO", 26),
    ("TCP_SAVE_SYN", 27),
    ("TCP_SAVED_SYN", 28),
    ("TCP_FASTOPEN_KEY", 33),
    ("TCP_FASTOPEN_NO_COOKIE", 34),
    ("TCP_INQ", 36),
    ("TCP_CM_INQ", 36),
    ("TCP_TX_DELAY", 37),
    ("TCP_RTO_MAX_MS", 44),
    ("TCP_RTO_MIN_US", 45),
    ("TCP_DELACK_MAX_US", 46),
];

const IP_OPTIONS: Names = &[
    ("IP_TOS", libc::IP_TOS),
    ("IP_TTL", libc::IP_TTL),
    ("IP_MTU", libc::IP_MTU),
    ("IP_MTU_DISCOVER", libc::IP_MTU_DISCOVER),
    ("IP_PMTUDISC_DONT", libc::IP_PMTUDISC_DONT),
    ("IP_PMTUDISC_WANT", libc::IP_PMTUDISC_WANT),
    ("IP_PMTUDISC_DO", libc::IP_PMTUDISC_DO),
    ("IP_PMTUDISC_PROBE", libc::IP_PMTUDISC_PROBE),
    ("IP_FREEBIND", libc::IP_FREEBIND),
    ("IP_TRANSPARENT", libc::IP_TRANSPARENT),
    ("IP_RECVERR", libc::IP_RECVERR),
    ("IP_MINTTL", libc::IP_MINTTL),
    ("IPV6_TCLASS", libc::IPV6_TCLASS),
    ("IPV6_UNICAST_HOPS", libc::IPV6_UNICAST_HOPS),
    ("IPV6_V6ONLY", libc::IPV6_V6ONLY),
    ("IPV6_RECVERR", libc::IPV6_RECVERR),
    ("IPV6_MTU", libc::IPV6_MTU),
    ("IPV6_MTU_DISCOVER", libc::IPV6_MTU_DISCOVER),
    ("CMSG_LEVEL_IP", libc::SOL_IP),
    ("CMSG_TYPE_RECVERR", libc::IP_RECVERR),
];

/// Of linux/net_tstamp.h and linux/errqueue.h.
const STAMPS: Names = &[
    ("SCM_TIMESTAMPING", libc::SCM_TIMESTAMPING),
    ("SOF_TIMESTAMPING_TX_HARDWARE", 1),
    ("SOF_TIMESTAMPING_TX_SOFTWARE", 1 << 1),
    ("SOF_TIMESTAMPING_RX_HARDWARE", 1 << 2),
    ("SOF_TIMESTAMPING_RX_SOFTWARE", 1 << 3),
    ("SOF_TIMESTAMPING_SOFTWARE", 1 << 4),
    ("SOF_TIMESTAMPING_SYS_HARDWARE", 1 << 5),
    ("SOF_TIMESTAMPING_RAW_HARDWARE", 1 << 6),
    ("SOF_TIMESTAMPING_OPT_ID", 1 << 7),
    ("SOF_TIMESTAMPING_TX_SCHED", 1 << 8),
    ("SOF_TIMESTAMPING_TX_ACK", 1 << 9),
    ("SOF_TIMESTAMPING_OPT_CMSG", 1 << 10),
    ("SOF_TIMESTAMPING_OPT_TSONLY", 1 << 11),
    ("SOF_TIMESTAMPING_OPT_STATS", 1 << 12),
    ("SOF_TIMESTAMPING_OPT_ID_TCP", 1 << 16),
    ("SCM_TSTAMP_SND", 0),
    ("SCM_TSTAMP_SCHED", 1),
    ("SCM_TSTAMP_ACK", 2),
    ("SO_EE_ORIGIN_NONE", 0),
    ("SO_EE_ORIGIN_LOCAL", 1),
    ("SO_EE_ORIGIN_ICMP", 2),
    ("SO_EE_ORIGIN_ICMP6", 3),
    ("SO_EE_ORIGIN_TIMESTAMPING", 4),
    ("SO_EE_ORIGIN_ZEROCOPY", 5),
    ("SO_EE_CODE_ZEROCOPY_COPIED", 1),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_the_numbers_of_the_c_library() {
        for (name, expected) in [
            ("ECONNREFUSED", 111),
            ("MSG_FASTOPEN", 0x2000_0000),
            ("EPOLLONESHOT", 1 << 30),
            ("SO_ZEROCOPY", 60),
            ("TCP_INQ", 36),
        ] {
            assert_eq!(number(name), Some(expected), "{name}");
        }
        assert_eq!(number("MSG_NOTHING"), None);
        assert_eq!(errno(libc::EINPROGRESS), "EINPROGRESS");
        assert_eq!(errno(-5), "EUNKNOWN");
    }
}

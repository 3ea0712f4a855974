//! Capabilities of this process, and errors with advice for a user who lacks one.
//!
//! A device that cannot be opened returns an [`OpenError`]: one line with the device, the problem and the
//! remedy. Most failures are a missing capability.

use std::fmt;
use std::io;

use rustix::thread::CapabilitySet;

/// Why a device, namespace or interface could not be opened or configured.
///
/// Converts into [`io::Error`] and keeps the [`io::ErrorKind`] of its cause.
#[derive(Debug)]
pub struct OpenError {
    subject: String,
    problem: String,
    kind: io::ErrorKind,
    source: Option<io::Error>,
}

impl OpenError {
    /// Returns the error of a failed `action` on `subject`, with its cause `source`. `remedy` says how to
    /// avoid it.
    pub(crate) fn new(subject: impl Into<String>, action: &str, remedy: &str, source: io::Error) -> Self {
        let problem = format!("{action}: {source}; {remedy}");
        OpenError { subject: subject.into(), problem, kind: source.kind(), source: Some(source) }
    }

    /// Returns an error, without a kernel error, for a request that no system can fulfil.
    pub(crate) fn unsupported(subject: impl Into<String>, problem: impl Into<String>) -> Self {
        OpenError {
            subject: subject.into(),
            problem: problem.into(),
            kind: io::ErrorKind::Unsupported,
            source: None,
        }
    }

    /// Returns an error for an invalid interface name.
    pub(crate) fn bad_name(subject: impl Into<String>, problem: &str) -> Self {
        let remedy = "an interface name has 1 to 15 characters, without '/', ':' or spaces";
        OpenError::unsupported(subject, format!("{problem}; {remedy}"))
    }

    pub(crate) fn tun(name: &str, action: &str, source: io::Error) -> Self {
        let subject = format!("tun:{name}");
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                let problem = format!(
                    "permission denied: creating a TUN device needs CAP_NET_ADMIN \
                     (run as root, or `ip tuntap add {name} mode tun user $USER` once, or use udp:)"
                );
                OpenError { subject, problem, kind: source.kind(), source: Some(source) }
            }
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => OpenError::new(
                subject,
                action,
                "the kernel offers no TUN devices here (try `modprobe tun`, give the container /dev/net/tun, \
                 or use udp:)",
                source,
            ),
            Some(libc::EBUSY) => OpenError::new(
                subject,
                action,
                "another process holds this device, or it is not a TUN device; end that process or choose another name",
                source,
            ),
            Some(libc::EINVAL) => OpenError::new(
                subject,
                action,
                "an interface of that name exists and is not a TUN device, or has another number of queues \
                 (`ip tuntap add ... multi_queue` makes it for more than one core); choose another name",
                source,
            ),
            _ => OpenError::new(
                subject,
                action,
                "choose another name, or use udp:, which needs no interface",
                source,
            ),
        }
    }

    pub(crate) fn packet(interface: &str, action: &str, source: io::Error) -> Self {
        let remedy = match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                "packet sockets need CAP_NET_RAW (run as root, or `setcap cap_net_raw+ep` the program, or use udp:)"
            }
            Some(libc::ENETDOWN) => "the interface is switched off; `ip link set dev NAME up` switches it on",
            _ => "`ip link show` lists the interfaces; choose another one, or use udp:",
        };
        OpenError::new(format!("packet:{interface}"), action, remedy, source)
    }

    /// Returns the error for a port that a packet device needs and cannot get.
    pub(crate) fn guard(subject: &str, served: Option<std::net::SocketAddr>, source: io::Error) -> Self {
        let not_ours = source.raw_os_error() == Some(libc::EADDRNOTAVAIL);
        let port = match served {
            None => "61056 to 65535".to_owned(),
            Some(served) if not_ours => format!("{} of {}", served.port(), served.ip()),
            Some(served) => served.port().to_string(),
        };
        let remedy = match source.raw_os_error() {
            Some(libc::EPERM) => "a share of the clients needs CAP_NET_ADMIN (run as root)",
            Some(libc::EACCES) => "ports below 1024 need CAP_NET_BIND_SERVICE; choose a higher one",
            Some(libc::EADDRNOTAVAIL) => {
                "this host does not have the address; `ip address` shows its addresses"
            }
            _ if source.kind() == io::ErrorKind::AddrInUse => {
                "another program uses this port; end that program or choose another port"
            }
            _ => "choose another port, or use udp:",
        };
        let action = format!("TCP port {port} cannot be reserved");
        OpenError::new(subject, &action, remedy, source)
    }

    pub(crate) fn xdp(interface: &str, action: &str, source: io::Error) -> Self {
        let remedy = match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                "AF_XDP needs CAP_NET_RAW, CAP_NET_ADMIN, CAP_BPF and CAP_PERFMON (run as root, give the program these, or \
                 use packet:)"
            }
            Some(libc::EAFNOSUPPORT) => {
                "this kernel was built without AF_XDP (CONFIG_XDP_SOCKETS); use packet:"
            }
            // The kernel's errors if the packet memory exceeds the limit of pinned memory.
            Some(libc::ENOBUFS | libc::ENOMEM) => {
                "packets need more memory than may be locked (`ulimit -l`, RLIMIT_MEMLOCK); raise it, or let the process have \
                 CAP_IPC_LOCK"
            }
            Some(libc::EBUSY | libc::EEXIST) => {
                "another program uses XDP on this interface (`ip link show` shows the number of its XDP program); end that program, or use packet:"
            }
            Some(libc::ENETDOWN) => "the interface is switched off; `ip link set dev NAME up` switches it on",
            _ => "use packet:, which needs no AF_XDP",
        };
        OpenError::new(format!("xdp:{interface}"), action, remedy, source)
    }

    pub(crate) fn udp(bind: std::net::SocketAddr, action: &str, source: io::Error) -> Self {
        let remedy = match source.raw_os_error() {
            Some(libc::EADDRINUSE) => "another program has this port; choose another",
            Some(libc::EADDRNOTAVAIL) => {
                "this host does not have the address; 0.0.0.0 or [::] bind all addresses"
            }
            Some(libc::EACCES | libc::EPERM) => {
                "ports below 1024 need CAP_NET_BIND_SERVICE; choose a higher one"
            }
            Some(libc::EAFNOSUPPORT) => "this host has no IPv6; bind an IPv4 address",
            _ => "choose another address and port",
        };
        OpenError::new(format!("udp:{bind}"), action, remedy, source)
    }

    pub(crate) fn namespace(label: &str, action: &str, source: io::Error) -> Self {
        let remedy = match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => "network namespaces need CAP_SYS_ADMIN (run as root)",
            Some(libc::ENOENT) => "`ip netns list` shows those that exist",
            Some(libc::EEXIST) => "it exists already; choose another name",
            _ => "`ip netns list` shows the namespaces of this host",
        };
        OpenError::new(format!("namespace {label}"), action, remedy, source)
    }

    pub(crate) fn interface(name: &str, action: &str, source: io::Error) -> Self {
        let remedy = match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => "changing an interface needs CAP_NET_ADMIN (run as root)",
            Some(libc::ENODEV) => {
                "this network namespace has no interface of that name; `ip link show` lists its interfaces"
            }
            _ => "`ip -details link show` shows what the interface permits",
        };
        OpenError::new(format!("interface {name}"), action, remedy, source)
    }

    /// Returns the kind of the underlying error.
    pub fn kind(&self) -> io::ErrorKind {
        self.kind
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OpenError { subject, problem, kind: _, source: _ } = self;
        write!(f, "{subject}: {problem}")
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}

impl From<OpenError> for io::Error {
    fn from(error: OpenError) -> Self {
        io::Error::new(error.kind, error)
    }
}

/// True if this thread has CAP_NET_ADMIN: it can create TUN devices and configure interfaces.
pub fn has_net_admin() -> bool {
    has(CapabilitySet::NET_ADMIN)
}

/// True if this thread has CAP_SYS_ADMIN: it can create and enter network namespaces.
pub fn has_sys_admin() -> bool {
    has(CapabilitySet::SYS_ADMIN)
}

fn has(capability: CapabilitySet) -> bool {
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(capability))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_tun_names_the_capability_and_three_remedies() {
        let error = OpenError::tun("brisk0", "TUNSETIFF", io::Error::from_raw_os_error(libc::EPERM));
        assert_eq!(
            error.to_string(),
            "tun:brisk0: permission denied: creating a TUN device needs CAP_NET_ADMIN (run as root, or \
             `ip tuntap add brisk0 mode tun user $USER` once, or use udp:)"
        );
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn every_open_error_is_one_line_with_a_remedy() {
        for errno in 1..=libc::EHWPOISON {
            let cause = || io::Error::from_raw_os_error(errno);
            for error in [
                OpenError::tun("t", "TUNSETIFF", cause()),
                OpenError::udp("[::]:1".parse().unwrap(), "bind", cause()),
                OpenError::packet("eth0", "open", cause()),
                OpenError::guard("packet:eth0", None, cause()),
                OpenError::xdp("eth0", "bind", cause()),
                OpenError::namespace("n", "open", cause()),
                OpenError::interface("i", "set MTU", cause()),
            ] {
                let text = error.to_string();
                let cause = io::Error::from_raw_os_error(errno).to_string();
                let remedy = text.split_once(&format!("{cause}; ")).map_or("", |(_, remedy)| remedy);
                assert!(!remedy.is_empty() || text.contains("(run as root, or `ip tuntap"), "{text}");
                assert!(!text.contains('\n'), "{text}");
            }
        }
    }
}

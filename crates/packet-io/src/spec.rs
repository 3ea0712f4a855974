//! The grammar of `--device`: `tun:NAME`, `udp:ADDR:PORT`, `packet:IFACE`, `xdp:IFACE`.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use crate::interface::name_problem;

/// A device in the notation of `--device`.
///
/// ```
/// use brisk_packet_io::DeviceSpec;
/// let spec: DeviceSpec = "udp:[::]:7413".parse().unwrap();
/// assert_eq!(spec, DeviceSpec::Udp { bind: "[::]:7413".parse().unwrap() });
/// assert_eq!(spec.to_string(), "udp:[::]:7413");
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum DeviceSpec {
    /// `tun:NAME`: a TUN interface, created if it does not exist.
    Tun {
        /// Name of the interface, 1 to 15 bytes.
        name: String,
    },
    /// `udp:ADDR:PORT`: TCP inside UDP on this local address. Port 0 lets the kernel choose.
    Udp {
        /// Local address to bind.
        bind: SocketAddr,
    },
    /// `packet:IFACE`: native TCP on an address of the host.
    Packet {
        /// Name of the interface.
        interface: String,
    },
    /// `xdp:IFACE`: native TCP on an address of the host, through AF_XDP.
    Xdp {
        /// Name of the interface.
        interface: String,
    },
}

/// Why a text is not a [`DeviceSpec`]. Its `Display` is one line with the error and the remedy.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// There is no colon.
    #[error("device '{0}' lacks a kind; write tun:NAME, packet:IFACE, xdp:IFACE or udp:ADDR:PORT")]
    NoKind(String),
    /// An unknown kind.
    #[error(
        "device '{text}': '{kind}' is not a kind of device; write tun:NAME, packet:IFACE, xdp:IFACE or udp:ADDR:PORT"
    )]
    UnknownKind {
        /// The whole text.
        text: String,
        /// The text before the first colon.
        kind: String,
    },
    /// A name that no Linux interface can have.
    #[error(
        "device '{text}': {problem}; an interface name has 1 to 15 characters, without '/', ':' or spaces"
    )]
    BadName {
        /// The whole text.
        text: String,
        /// Error in the name.
        problem: &'static str,
    },
    /// The local UDP address cannot be parsed.
    #[error("device '{text}': '{address}' is not an address and port; {hint}")]
    BadAddress {
        /// The whole text.
        text: String,
        /// The text after `udp:`.
        address: String,
        /// Remedy.
        hint: &'static str,
    },
}

impl FromStr for DeviceSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let Some((kind, rest)) = text.split_once(':') else {
            return Err(SpecError::NoKind(text.to_owned()));
        };
        match kind {
            "tun" => Ok(DeviceSpec::Tun { name: interface_name(text, rest)? }),
            "packet" => Ok(DeviceSpec::Packet { interface: interface_name(text, rest)? }),
            "xdp" => Ok(DeviceSpec::Xdp { interface: interface_name(text, rest)? }),
            "udp" => Ok(DeviceSpec::Udp { bind: udp_address(text, rest)? }),
            _ => Err(SpecError::UnknownKind { text: text.to_owned(), kind: kind.to_owned() }),
        }
    }
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceSpec::Tun { name } => write!(f, "tun:{name}"),
            DeviceSpec::Udp { bind } => write!(f, "udp:{bind}"),
            DeviceSpec::Packet { interface } => write!(f, "packet:{interface}"),
            DeviceSpec::Xdp { interface } => write!(f, "xdp:{interface}"),
        }
    }
}

/// Checks a name as the kernel's `dev_valid_name` does, so that a bad name is reported rather than a missing
/// capability.
fn interface_name(text: &str, name: &str) -> Result<String, SpecError> {
    match name_problem(name) {
        None => Ok(name.to_owned()),
        Some(problem) => Err(SpecError::BadName { text: text.to_owned(), problem }),
    }
}

fn udp_address(text: &str, address: &str) -> Result<SocketAddr, SpecError> {
    let refuse =
        |hint| Err(SpecError::BadAddress { text: text.to_owned(), address: address.to_owned(), hint });
    if let Ok(bind) = address.parse() {
        return Ok(bind);
    }
    if address.parse::<std::net::Ipv4Addr>().is_ok() {
        return refuse("the port is missing, write for instance udp:0.0.0.0:7413");
    }
    if address.matches(':').count() > 1 && !address.starts_with('[') {
        return refuse("an IPv6 address needs brackets, as in udp:[::]:7413");
    }
    if address.chars().any(|c| c.is_ascii_alphabetic()) && !address.starts_with('[') {
        return refuse("a local address is needed, not a host name, for instance udp:0.0.0.0:7413");
    }
    refuse("write for instance udp:0.0.0.0:7413 or udp:[::]:7413")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        text.parse::<DeviceSpec>().expect_err("the text is refused").to_string()
    }

    #[test]
    fn every_kind_of_the_grammar_parses_and_prints_as_written() {
        for text in ["tun:brisk0", "udp:0.0.0.0:7413", "udp:[::1]:0", "packet:eth0", "xdp:eth0"] {
            let spec: DeviceSpec = text.parse().unwrap();
            assert_eq!(spec.to_string(), text);
        }
    }

    #[test]
    fn error_names_the_mistake_and_the_remedy() {
        assert_eq!(
            error("eth0"),
            "device 'eth0' lacks a kind; write tun:NAME, packet:IFACE, xdp:IFACE or udp:ADDR:PORT"
        );
        assert!(error("tap:x").contains("'tap' is not a kind of device"));
        assert!(error("tun:").contains("empty"));
        assert!(error("tun:a-name-with-16-c").contains("too long"));
        assert!(error("tun:a/b").contains("does not allow"));
        assert!(error("tun:t%d").contains("does not allow"));
        assert!(error("udp:10.0.0.1").contains("the port is missing"));
        assert!(error("udp:::1:80").contains("brackets"));
        assert!(error("udp:localhost:80").contains("not a host name"));
        assert!(error("udp:1.2.3.4:99999").contains("udp:0.0.0.0:7413"));
    }

    #[test]
    fn an_error_is_one_line() {
        for text in ["", ":", "tun:", "udp:", "xyz:1", "udp:[::1]"] {
            assert!(!error(text).contains('\n'));
        }
    }
}

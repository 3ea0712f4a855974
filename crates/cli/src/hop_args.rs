//! The flags that frontend and backend share.

use std::net::{Ipv6Addr, SocketAddr};
use std::time::Duration;

use brisk_gateway::{Log, ServiceConfig};

use crate::duration::parse_duration;

/// Limits, and the permission to be open to others.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ServiceArgs {
    /// Listen on and connect to other addresses than loopback, although the hop is not encrypted yet
    #[arg(long, env = "BRISK_INSECURE")]
    pub(crate) insecure: bool,
    /// Connections at one time; more wait to be accepted
    #[arg(long, default_value_t = 10_000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_connections: u32,
    /// How long connections may go on after SIGTERM
    #[arg(long, default_value = "30s", value_name = "TIME", value_parser = parse_duration)]
    drain_timeout: Duration,
    /// How long the next connection (hop or origin) may take to open
    #[arg(long, default_value = "10s", value_name = "TIME", value_parser = parse_duration)]
    connect_timeout: Duration,
}

impl ServiceArgs {
    pub(crate) fn config(&self, log: Log) -> ServiceConfig {
        ServiceConfig {
            max_connections: self.max_connections as usize,
            drain_timeout: self.drain_timeout,
            connect_timeout: self.connect_timeout,
            log,
            on_access: None,
        }
    }
}

/// `ADDR:PORT`, or `:PORT` for every address of the host.
pub(crate) fn listen_address(text: &str) -> Result<SocketAddr, String> {
    if let Some(port) = text.strip_prefix(':').and_then(|port| port.parse().ok()) {
        return Ok(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)));
    }
    text.parse().map_err(|_| "write ADDR:PORT or :PORT, for instance 127.0.0.1:8080".to_owned())
}

/// `HOST:PORT`, checked for its form; names are looked up later.
pub(crate) fn host_and_port(text: &str) -> Result<String, String> {
    let port =
        text.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port.parse::<u16>());
    match port {
        Some(Ok(port)) if port > 0 => Ok(text.to_owned()),
        Some(_) | None => Err("write HOST:PORT, for instance 127.0.0.1:80".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_means_every_address() {
        assert_eq!(listen_address(":80"), Ok("[::]:80".parse().expect("an address")));
        assert_eq!(listen_address("127.0.0.1:80"), Ok("127.0.0.1:80".parse().expect("an address")));
        for bad in ["80", ":", ":x", ":99999", "host:80"] {
            assert!(listen_address(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_origin_and_a_peer_have_a_host_and_a_port() {
        for good in ["127.0.0.1:80", "origin.example:8080", "[::1]:80"] {
            assert_eq!(host_and_port(good).as_deref(), Ok(good));
        }
        for bad in ["", "80", ":80", "host:", "host:0", "host:99999", "host:http"] {
            assert!(host_and_port(bad).is_err(), "{bad}");
        }
    }
}

//! The contestants: the kernel's own TCP, and commands on one or both sides of the link.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use brisk_gateway::HopKey;

use super::ORIGIN;

/// A TCP, a pool or a pair of gateways that carries requests to the origin.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Contestant {
    /// The name in the table.
    pub name: String,
    /// The kernel's TCP, on both sides.
    pub kernel: Kernel,
    /// The command on the load's side, which accepts its requests; `None`: the load connects to the origin.
    pub left: Option<String>,
    /// The command on the origin's side.
    pub right: Option<String>,
}

/// The kernel's TCP.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kernel {
    /// Congestion control, a name of `net.ipv4.tcp_available_congestion_control`.
    pub congestion: String,
    /// True for Fast Open on both sides.
    pub fast_open: bool,
}

impl Kernel {
    /// Returns the kernel's CUBIC.
    pub fn cubic(fast_open: bool) -> Kernel {
        Kernel { congestion: "cubic".to_owned(), fast_open }
    }
}

impl Contestant {
    /// Returns the kernel's TCP from end to end, with the name of its congestion control.
    pub fn kernel(congestion: &str, fast_open: bool) -> Contestant {
        Contestant {
            name: format!("kernel {congestion}{}", if fast_open { "+tfo" } else { "" }),
            kernel: Kernel { congestion: congestion.to_owned(), fast_open },
            left: None,
            right: None,
        }
    }

    /// Returns nginx as a reverse proxy that keeps connections to the origin open.
    pub fn nginx_pool() -> Contestant {
        Contestant {
            name: "nginx pool".to_owned(),
            kernel: Kernel::cubic(false),
            left: Some("nginx -c {nginx}".to_owned()),
            right: None,
        }
    }

    /// Returns the gateway pair that `program` runs with an arm.
    pub fn pair(program: &Path, arm: &str) -> Contestant {
        let program = program.display();
        let arm = arm.replace(' ', "");
        Contestant {
            name: format!("brisk {arm}"),
            kernel: Kernel::cubic(false),
            left: Some(format!(
                "{program} -q frontend --listen {{listen}} --peer {{peer}} --key-file {{key}} --mechanisms {arm}"
            )),
            right: Some(format!(
                "{program} -q backend --listen {{peer}} --to {{origin}} --key-file {{key}} --mechanisms {arm}"
            )),
        }
    }

    /// Returns the kernel's TCPs on this machine: CUBIC and BBR, each without and with Fast Open.
    pub fn kernels() -> Vec<Contestant> {
        let available = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control")
            .unwrap_or_default();
        let here = ["cubic", "bbr"]
            .into_iter()
            .filter(|name| available.split_whitespace().any(|word| word == *name));
        here.flat_map(|name| [false, true].map(|fast_open| Contestant::kernel(name, fast_open))).collect()
    }
}

/// Values that replace the words in braces of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Places {
    /// `{listen}`: address at which the left command accepts requests.
    pub(crate) listen: SocketAddr,
    /// `{peer}`: the right command's address on the link.
    pub(crate) peer: SocketAddr,
    /// The contestant's directory; `{key}` and `{nginx}` are files in it that are created on use.
    pub(crate) directory: PathBuf,
}

impl Default for Places {
    fn default() -> Self {
        Places {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8000)),
            peer: SocketAddr::new(ORIGIN.ip(), 7443),
            directory: PathBuf::new(),
        }
    }
}

impl Places {
    /// Splits a command into words and replaces the words in braces.
    pub(crate) fn fill(&self, command: &str) -> io::Result<Vec<String>> {
        let (key, nginx) = (self.directory.join("key"), self.directory.join("nginx.conf"));
        if command.contains("{key}") && !key.exists() {
            std::fs::write(&key, HopKey::generate()?.reveal().as_bytes())?;
            std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600))?;
        }
        if command.contains("{nginx}") {
            std::fs::write(&nginx, self.nginx())?;
        }
        let filled = |word: &str| {
            word.replace("{listen}", &self.listen.to_string())
                .replace("{origin}", &ORIGIN.to_string())
                .replace("{peer}", &self.peer.to_string())
                .replace("{key}", &key.display().to_string())
                .replace("{nginx}", &nginx.display().to_string())
        };
        Ok(command.split_whitespace().map(filled).collect())
    }

    fn nginx(&self) -> String {
        let (directory, listen) = (self.directory.display(), self.listen);
        format!(
            "daemon off; user root; pid {directory}/nginx.pid; error_log {directory}/nginx.log; worker_processes 1;\n\
             events {{ worker_connections 4096; }}\n\
             http {{ access_log off; upstream origin {{ server {ORIGIN}; keepalive 64; keepalive_requests 1000000; }}\n\
             server {{ listen {listen}; location / {{ proxy_pass http://origin; proxy_http_version 1.1; \
             proxy_set_header Connection \"\"; proxy_buffering on; proxy_max_temp_file_size 0; }} }} }}\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_in_braces_are_replaced() {
        let places = Places::default();
        let words = places.fill("x --l {listen} --to {origin} {peer}").unwrap();
        assert_eq!(words, ["x", "--l", "127.0.0.1:8000", "--to", "10.77.0.2:80", "10.77.0.2:7443"]);
    }
}

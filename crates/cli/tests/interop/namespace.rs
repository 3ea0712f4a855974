//! A network namespace that is removed with the test.

use std::net::IpAddr;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use brisk_packet_io::netns;

/// A fresh network namespace with its loopback up and a name for `ip netns`.
pub(crate) struct Namespace {
    name: String,
}

impl Namespace {
    pub(crate) fn new() -> Namespace {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let namespace = Namespace { name: format!("brisk-it-{}-{number}", std::process::id()) };
        ip(&["netns", "add", &namespace.name]);
        namespace.ip(&["link", "set", "lo", "up"]);
        namespace
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns a command that runs `program` inside.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]);
        command
    }

    /// Returns a command that runs `brisk` with these words inside.
    pub(crate) fn brisk(&self, words: &[&str]) -> Command {
        let mut command = self.command(env!("CARGO_BIN_EXE_brisk"));
        command.args(words);
        command
    }

    /// Runs `ip` with these words for this namespace.
    pub(crate) fn ip(&self, words: &[&str]) {
        ip(&[&["-n", &self.name], words].concat());
    }

    /// Runs `body` on a thread inside and returns its result; sockets created there stay there.
    pub(crate) fn inside<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        let namespace = netns::Namespace::open(&self.name).expect("the namespace exists");
        namespace.run(body).expect("it can be entered")
    }

    /// Enables forwarding.
    pub(crate) fn forward(&self) {
        ["ipv4/ip_forward", "ipv6/conf/all/forwarding"].iter().for_each(|name| self.set(name, "1"));
    }

    /// Sets a sysctl of `net`.
    pub(crate) fn set(&self, name: &str, value: &str) {
        let path = format!("/proc/sys/net/{name}");
        self.inside(|| std::fs::write(&path, value))
            .unwrap_or_else(|error| panic!("{path}={value}: {error}"));
    }

    /// Returns the bytes that a device of this namespace has received.
    pub(crate) fn received_on(&self, device: &str) -> u64 {
        let table =
            self.inside(|| std::fs::read_to_string("/proc/thread-self/net/dev")).expect("a table of devices");
        let line = table.lines().find_map(|line| line.trim().strip_prefix(device)?.strip_prefix(':'));
        line.and_then(|line| line.split_whitespace().next()?.parse().ok())
            .expect("the device is in the table")
    }

    pub(crate) fn route(&self, network: &str, gateway: IpAddr) {
        self.ip(&["route", "add", network, "via", &gateway.to_string()]);
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Processes inside keep the namespace alive without a name; a failure cannot be reported here.
        let _ = Command::new("ip").args(["netns", "delete", &self.name]).output();
    }
}

fn ip(words: &[&str]) -> Output {
    let out = Command::new("ip").args(words).output().expect("ip starts");
    assert!(out.status.success(), "ip {}: {}", words.join(" "), String::from_utf8_lossy(&out.stderr));
    out
}

//! A farm of a kernel server and `brisk serve` behind one address: each accepts the other's cookies, and a
//! key rotation in three steps leaves no connection without Fast Open.

use std::path::Path;

use crate::fast_open::{allow, counters, curl};
use crate::namespace::Namespace;
use crate::nginx;
use crate::pages::{Pages, fetches};
use crate::process::{Process, run, text};

/// The address of the farm.
const FARM: &str = "10.7.0.2";

/// Both servers with the address of the farm, and a client that a balancer sends to one or the other.
struct Farm {
    client: Namespace,
    kernel: Namespace,
    pages: Pages,
    brisk: Process,
    _nginx: Process,
    /// Number of connections that the client has made.
    made: u64,
    /// Number of key changes that `brisk serve` has logged.
    noticed: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Server {
    Kernel,
    Brisk,
}

impl Farm {
    fn new() -> Farm {
        let (client, kernel, pages) = (Namespace::new(), Namespace::new(), Pages::new());
        allow(&client);
        allow(&kernel);
        let keys = pages.path("keys");
        run(client.brisk(&["tfo-key"]).arg(&keys));
        client.ip(&["link", "add", "near", "type", "veth", "peer", "name", "far", "netns", kernel.name()]);
        client.ip(&["link", "set", "near", "up"]);
        kernel.ip(&["addr", "add", &format!("{FARM}/24"), "dev", "far"]);
        kernel.ip(&["link", "set", "far", "up"]);
        let nginx = nginx::serve(&kernel, &pages);
        let words = ["serve", pages.directory(), "--device", "tun:brisk1", "--addr", &format!("{FARM}/24")];
        let brisk = Process::start(
            "brisk serve",
            client.brisk(&words).args(["--fast-open", "--fast-open-key"]).arg(&keys),
        );
        brisk.until_it_says("url=");
        let farm = Farm { client, kernel, pages, brisk, _nginx: nginx, made: 0, noticed: 0 };
        farm.set_kernel_keys();
        farm
    }

    /// Sets the kernel's keys to the line of the key file.
    fn set_kernel_keys(&self) {
        let line = std::fs::read_to_string(self.pages.path("keys")).expect("the keys");
        let setting = format!("net.ipv4.tcp_fastopen_key={}", line.trim());
        run(self.kernel.command("sysctl").args(["-q", "-w", &setting]));
    }

    /// Makes a connection to this server; returns true if the SYN carried the request.
    fn visit(&mut self, server: Server) -> bool {
        let device = match server {
            Server::Kernel => "near",
            Server::Brisk => "brisk1",
        };
        self.client.ip(&["route", "replace", &format!("{FARM}/32"), "dev", device, "src", "10.7.0.1"]);
        let before = counters(&self.client)["Active"];
        fetches(&mut curl(&self.client, FARM), &self.pages.path("small"), 1);
        self.made += 1;
        counters(&self.client)["Active"] > before
    }

    /// Checks that connections use Fast Open: to both servers in turn, each after itself and after the other.
    fn is_fast(&mut self, when: &str) {
        for server in [Server::Kernel, Server::Brisk, Server::Brisk, Server::Kernel, Server::Kernel] {
            assert!(self.visit(server), "{when}: no Fast Open with {server:?}");
        }
    }

    /// Changes the key file. The kernel gets the keys at once; `brisk serve` reads the file.
    fn step(&mut self, flag: &str, keys: &Path) {
        run(self.client.brisk(&["tfo-key", flag]).arg(keys));
        self.set_kernel_keys();
        // `brisk serve` checks the file every two seconds: until then one server is a step ahead, as in any
        // farm.
        self.is_fast(&format!("{flag}, the kernel alone"));
        self.noticed += 1;
        self.brisk.until_it_says_again("event=fast_open_keys", self.noticed);
        self.is_fast(&format!("{flag}, both"));
    }
}

#[test]
fn key_rotation_of_a_mixed_farm_loses_no_fast_open() {
    require!("nginx", "curl", "sysctl");
    let mut farm = Farm::new();
    assert!(!farm.visit(Server::Kernel), "the first asks for a cookie");
    farm.is_fast("before");
    let keys = farm.pages.path("keys");
    let old = std::fs::read_to_string(&keys).expect("the keys");
    for flag in ["--stage", "--swap", "--retire"] {
        farm.step(flag, &keys);
    }
    let new = std::fs::read_to_string(&keys).expect("the keys");
    assert!(old != new && !new.contains(','), "the key was exchanged");
    let (client, kernel) = (counters(&farm.client), counters(&farm.kernel));
    assert_eq!((client["Active"], client["ActiveFail"]), (farm.made - 1, 0));
    assert_eq!(kernel["PassiveFail"], 0);
    let said = farm.brisk.stop().said;
    println!(
        "{} connections, all but the first with Fast Open; {} at the kernel",
        farm.made, kernel["Passive"]
    );
    assert_eq!(text(said.as_bytes()).matches("level=warning").count(), 0, "{said}");
}

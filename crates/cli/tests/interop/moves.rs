//! The gateway pair while the address of the frontend's host or of a backend changes, and with backends of
//! both families.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::namespace::Namespace;
use crate::process::{Process, eventually};

const ENTRANCE: &str = "127.0.0.1:8080";
const ADMIN: &str = "127.0.0.1:9413";
const KEY: &str = "6f1c0dd5a1f3b6b6e0a7f0c59f5d6b1c3a9e8d7c6b5a49382716054f3e2d1c0b";
/// Name of a backend in the frontend's configuration.
const NAME: &str = "backend.example";

/// A frontend's and a backend's host, connected by a veth pair, with an origin next to the backend.
struct Cable {
    near: Namespace,
    far: Namespace,
    origin: SocketAddr,
}

impl Cable {
    fn new() -> Cable {
        let (near, far) = (Namespace::new(), Namespace::new());
        near.ip(&["link", "add", "e0", "type", "veth", "peer", "name", "e0", "netns", far.name()]);
        for (namespace, host) in [(&near, 1), (&far, 2)] {
            namespace.ip(&["link", "set", "e0", "up"]);
            add(namespace, &format!("10.88.0.{host}"));
            namespace.ip(&["addr", "add", &format!("fd88::{host}/64"), "dev", "e0", "nodad"]);
        }
        let listener = far.inside(|| TcpListener::bind("127.0.0.1:0")).expect("a port");
        let origin = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || answer(stream));
            }
        });
        Cable { near, far, origin }
    }

    fn backend(&self, listen: &str) -> Process {
        let origin = self.origin.to_string();
        let words = ["backend", "--listen", listen, "--to", &origin];
        let backend = Process::start("brisk backend", self.far.brisk(&words).env("BRISK_KEY", KEY));
        backend.until_it_says("listen=");
        backend
    }

    fn frontend(&self, peers: &[&str]) -> Process {
        let words = ["frontend", "--listen", ENTRANCE, "--admin", ADMIN, "--peer", &peers.join(",")];
        let frontend = Process::start("brisk frontend", self.near.brisk(&words).env("BRISK_KEY", KEY));
        frontend.until_it_says("event=admin");
        frontend
    }

    /// Returns the answer to a request through the pair.
    fn ask(&self) -> std::io::Result<String> {
        get(&self.near, ENTRANCE)
    }

    /// Returns health and transport of each backend.
    fn backends(&self) -> Vec<(String, String)> {
        let status = get(&self.near, ADMIN).expect("a status");
        let (_, body) = status.split_once("\r\n\r\n").expect("a body");
        let status: serde_json::Value = serde_json::from_str(body).expect("JSON");
        let backends = status["backends"].as_array().expect("backends").iter();
        let word = |value: &serde_json::Value| value.as_str().expect("a word").to_owned();
        backends.map(|backend| (word(&backend["health"]), word(&backend["transport"]))).collect()
    }
}

fn add(namespace: &Namespace, address: &str) {
    namespace.ip(&["addr", "add", &format!("{address}/24"), "dev", "e0"]);
}

/// Sends a message back, and continues if it announces another.
fn answer(mut stream: TcpStream) {
    let mut request = [0; 1000];
    while let Ok(count @ 1..) = stream.read(&mut request) {
        let said = String::from_utf8_lossy(&request[..count]).into_owned();
        if stream.write_all(format!("you said: {said}").as_bytes()).is_err() || !said.contains("more") {
            return;
        }
    }
}

fn enter(namespace: &Namespace, address: &str) -> std::io::Result<TcpStream> {
    let address: SocketAddr = address.parse().expect("an address");
    let stream = namespace.inside(|| TcpStream::connect(address))?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    Ok(stream)
}

fn get(namespace: &Namespace, address: &str) -> std::io::Result<String> {
    let mut stream = enter(namespace, address)?;
    stream.write_all(
        b"GET /status HTTP/1.1\r\nHost: a\r\nAccept: application/json\r\nConnection: close\r\n\r\n",
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// `/etc/hosts` of a namespace.
struct Hosts(PathBuf);

impl Hosts {
    /// Creates the file, which must exist before a program is started in `namespace`. The error is the reason
    /// why that is impossible.
    fn of(namespace: &Namespace, addresses: &[&str]) -> std::io::Result<Hosts> {
        let directory = PathBuf::from("/etc/netns").join(namespace.name());
        std::fs::create_dir_all(&directory)?;
        let hosts = Hosts(directory);
        hosts.set(addresses);
        Ok(hosts)
    }

    fn set(&self, addresses: &[&str]) {
        let lines: String = addresses.iter().map(|address| format!("{address} {NAME}\n")).collect();
        std::fs::write(self.0.join("hosts"), lines).expect("the directory is ours");
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

macro_rules! hosts {
    ($cable:expr, $addresses:expr) => {
        match Hosts::of(&$cable.near, $addresses) {
            Ok(hosts) => hosts,
            Err(error) => return crate::machine::skipped(&format!("needs /etc/netns: {error}")),
        }
    };
}

#[test]
fn frontend_whose_address_changes_stays_on_udp() {
    require!();
    let cable = Cable::new();
    let _backend = cable.backend("10.88.0.2:7443");
    let frontend = cable.frontend(&["10.88.0.2:7443"]);
    frontend.until_it_says("health=up");
    assert!(cable.ask().expect("an answer").starts_with("you said"));
    let mut open = enter(&cable.near, ENTRANCE).expect("the frontend accepts");
    open.write_all(b"more\n").expect("it is sent");
    open.read_exact(&mut [0; 15]).expect("an answer");

    cable.near.ip(&["-4", "addr", "flush", "dev", "e0"]);
    add(&cable.near, "10.88.0.4");
    let changed = Instant::now();
    eventually("a request is answered", || cable.ask().ok());
    assert!(changed.elapsed() < Duration::from_secs(5), "{:?}", changed.elapsed());
    eventually("the hop is in UDP", || {
        (cable.backends() == [("up".to_owned(), "brisk".to_owned())]).then_some(())
    });
    // The open connection continues, because the frontend has proved its identity to the backend.
    open.write_all(b"more\n").expect("it is sent");
    open.read_exact(&mut [0; 15]).expect("an answer over the new address");
    assert!(changed.elapsed() < Duration::from_secs(15), "{:?}", changed.elapsed());
}

#[test]
fn backend_that_moves_is_found_by_its_name() {
    require!();
    let cable = Cable::new();
    let hosts = hosts!(cable, &["10.88.0.2"]);
    let backend = cable.backend("10.88.0.2:7443");
    let frontend = cable.frontend(&["backend.example:7443"]);
    frontend.until_it_says("health=up");
    drop(backend);
    cable.far.ip(&["-4", "addr", "flush", "dev", "e0"]);
    add(&cable.far, "10.88.0.3");
    let _backend = cable.backend("10.88.0.3:7443");
    hosts.set(&["10.88.0.3"]);
    frontend.until_it_says("event=resolved backend=backend.example:7443 address=10.88.0.3:7443");
    eventually("a request is answered", || cable.ask().ok());
    assert_eq!(cable.backends()[0].1, "brisk");
}

#[test]
fn backend_is_tried_at_each_address_of_its_name() {
    require!();
    let cable = Cable::new();
    add(&cable.far, "10.88.0.8");
    // The system's resolver prefers addresses with more bits in common with the host's own.
    let _hosts = hosts!(cable, &["10.88.0.3", "10.88.0.7", "10.88.0.8"]);
    let _backend = cable.backend("10.88.0.8:7443");
    let frontend = cable.frontend(&["backend.example:7443"]);
    frontend.until_it_says("event=resolved backend=backend.example:7443 address=10.88.0.8:7443");
    eventually("a request is answered", || cable.ask().ok());
    assert_eq!(cable.backends()[0].1, "brisk");
}

#[test]
fn backends_of_both_families_are_reached_in_udp() {
    require!();
    let cable = Cable::new();
    let _one = cable.backend("10.88.0.2:7443");
    let _other = cable.backend("[fd88::2]:7444");
    let _frontend = cable.frontend(&["10.88.0.2:7443", "[fd88::2]:7444"]);
    let up = || ("up".to_owned(), "brisk".to_owned());
    eventually("both are up in UDP", || (cable.backends() == [up(), up()]).then_some(()));
}

//! Fast Open keys from what operators have: a farm is played by servers that come one after the other behind one
//! address.

use std::net::UdpSocket;

use crate::program::{Running, Scratch, run, text};

fn write(scratch: &Scratch, name: &str, text: &str) -> String {
    let at = scratch.path(name);
    std::fs::write(&at, text).expect("a file");
    at
}

/// A server with keys of this kind, and its URL.
fn serve(scratch: &Scratch, address: &str, keys: &[&str]) -> (Running, String) {
    let device = format!("udp:{address}");
    let common =
        ["serve", &scratch.path(""), "--synthetic", "--device", &device, "--fast-open", "--fast-open-key"];
    let mut server = Running::start(&[&common[..], keys].concat());
    let url = server.announced("url");
    (server, url)
}

/// What became of Fast Open on a transfer; the client remembers in a file, and comes from one UDP port: by its address and
/// port a server knows it.
fn outcome(scratch: &Scratch, url: &str) -> String {
    let port = std::fs::read_to_string(scratch.path("port")).unwrap_or_else(|_| {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let port = socket.local_addr().expect("bound").port().to_string();
        write(scratch, "port", &port);
        port
    });
    let device = format!("udp:127.0.0.1:{port}");
    let words = ["get", &format!("{url}/1000"), "--device", &device, "--output", "/dev/null"];
    let more = ["--fast-open", "--fast-open-cache", &scratch.path("cache"), "--stats", "json"];
    let got = run(&[&words[..], &more[..]].concat());
    assert!(got.status.success(), "{}", text(&got.stderr));
    let all = text(&got.stdout) + &text(&got.stderr);
    let rest = all.split(r#""fast_open":""#).nth(1).unwrap_or_else(|| panic!("no outcome in {all}"));
    rest.split('"').next().unwrap_or_default().to_owned()
}

fn address(url: &str) -> &str {
    url.trim_start_matches("http://").trim_end_matches('/')
}

#[test]
fn keys_that_are_derived_from_a_secret_are_the_same_on_every_server() {
    let scratch = Scratch::with_files();
    let secret = write(&scratch, "secret", "a secret of the farm\n");
    let other = write(&scratch, "other", "a secret of another farm\n");
    let derived = |secret| [secret, "--fast-open-key-mode", "derived", "--fast-open-rotate", "30d"];
    let (server, url) = serve(&scratch, "127.0.0.1:0", &derived(secret.as_str()));
    let (at, url) = (address(&url).to_owned(), url.trim_end_matches('/').to_owned());
    assert_eq!(outcome(&scratch, &url), "no-cookie");
    server.stop();
    let (server, _) = serve(&scratch, &at, &derived(secret.as_str()));
    let mut seen = outcome(&scratch, &url);
    if seen == "blackholed" {
        // On a busy machine the answer may come later than that of the connection which insures it.
        seen = outcome(&scratch, &url);
    }
    assert_eq!(seen, "used", "the cookie of the first is good at the second");
    server.stop();
    let (server, _) = serve(&scratch, &at, &derived(other.as_str()));
    assert_eq!(outcome(&scratch, &url), "refused", "and not elsewhere");
    server.stop();
}

#[test]
fn keys_without_fast_open_are_a_mistake_of_the_command_line() {
    let scratch = Scratch::with_files();
    let key = write(&scratch, "key", "1-2-3-4\n");
    let got = run(&["serve", &scratch.path(""), "--device", "udp:127.0.0.1:0", "--fast-open-key", &key]);
    assert_eq!(got.status.code(), Some(2));
    assert!(text(&got.stderr).contains("needs --fast-open"), "{}", text(&got.stderr));
}

#[cfg(feature = "etcd")]
mod etcd {
    use super::*;

    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    const KEY: &str = "brisk/fast-open-keys";
    const PATIENCE: Duration = Duration::from_secs(20);

    /// An etcd of its own.
    struct Etcd {
        process: Option<Child>,
        scratch: Scratch,
        ports: [u16; 2],
    }

    impl Etcd {
        /// `None`, and a word why, where there is no etcd.
        fn start() -> Option<Etcd> {
            if Command::new("etcd").arg("--version").stdout(Stdio::null()).status().is_err() {
                eprintln!("skipped: there is no etcd (package etcd-server)");
                return None;
            }
            let held = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
            let ports = held.each_ref().map(|held| held.local_addr().expect("bound").port());
            drop(held);
            let mut etcd = Etcd { process: None, scratch: Scratch::with_files(), ports };
            etcd.run();
            Some(etcd)
        }

        fn run(&mut self) {
            let [client, peer] = self.ports.map(|port| format!("http://127.0.0.1:{port}"));
            let mut command = Command::new("etcd");
            command.args(["--data-dir", &self.scratch.path("data"), "--log-level", "error"]);
            command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
            command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
            command.args(["--initial-cluster", &format!("default={peer}")]);
            // Debian lists some architectures as unsupported by upstream; that is not for this test to judge.
            command.env("ETCD_UNSUPPORTED_ARCH", std::env::consts::ARCH);
            self.process =
                Some(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("etcd starts"));
            let began = Instant::now();
            while self.post("/health", "").is_none_or(|answer| !answer.contains("true")) {
                assert!(began.elapsed() < PATIENCE, "etcd does not become healthy");
                std::thread::sleep(Duration::from_millis(50));
            }
        }

        fn kill(&mut self) {
            if let Some(mut process) = self.process.take() {
                let _ = process.kill();
                let _ = process.wait();
            }
        }

        fn put(&self, value: &str) {
            let (key, value) = (STANDARD.encode(KEY), STANDARD.encode(value));
            let answer = self.post("/v3/kv/put", &format!(r#"{{"key":"{key}","value":"{value}"}}"#));
            assert!(answer.is_some_and(|answer| answer.contains("revision")), "put");
        }

        fn post(&self, path: &str, body: &str) -> Option<String> {
            let method = if body.is_empty() { "GET" } else { "POST" };
            let mut stream = TcpStream::connect(("127.0.0.1", self.ports[0])).ok()?;
            let len = body.len();
            let head =
                format!("{method} {path} HTTP/1.0\r\nHost: etcd\r\nContent-Length: {len}\r\n\r\n{body}");
            stream.write_all(head.as_bytes()).ok()?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).ok()?;
            Some(answer)
        }

        fn source(&self) -> String {
            format!("etcd://127.0.0.1:{}/{KEY}", self.ports[0])
        }
    }

    impl Drop for Etcd {
        fn drop(&mut self) {
            self.kill();
        }
    }

    #[test]
    fn keys_in_etcd_are_watched_and_found_again_after_it_was_away() {
        let Some(mut etcd) = Etcd::start() else { return };
        let missing = run(&[
            "serve",
            "/",
            "--device",
            "udp:127.0.0.1:0",
            "--fast-open",
            "--fast-open-key",
            &etcd.source(),
        ]);
        assert!(text(&missing.stderr).contains("no such key"), "{}", text(&missing.stderr));

        etcd.put("1-1-1-1");
        let scratch = Scratch::with_files();
        let (mut server, url) = serve(&scratch, "127.0.0.1:0", &[&etcd.source()]);
        let url = url.trim_end_matches('/').to_owned();
        assert_eq!(outcome(&scratch, &url), "no-cookie");
        assert_eq!(outcome(&scratch, &url), "used");

        let began = Instant::now();
        etcd.put("2-2-2-2,1-1-1-1");
        assert_eq!(server.announced_next("source"), etcd.source());
        eprintln!("a change of the key was in force after {:?}", began.elapsed());
        assert_eq!(outcome(&scratch, &url), "used", "the backup key is good still");

        etcd.kill();
        assert!(!server.announced_next("reason").is_empty());
        assert_eq!(outcome(&scratch, &url), "used", "without etcd the keys stay in force");
        etcd.run();
        etcd.put("3-3-3-3");
        assert_eq!(server.announced_next("source"), etcd.source());
        assert_eq!(outcome(&scratch, &url), "refused", "the old keys are gone");
        assert_eq!(outcome(&scratch, &url), "used");
        server.stop();
    }
}

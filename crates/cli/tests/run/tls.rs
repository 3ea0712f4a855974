//! TLS by server name through a pair, with real clients and origins, during reloads and restarts.
//!
//! Clients are curl, origins Python, certificates from openssl. The test acts as the service manager: it
//! keeps the listening sockets and passes them to each frontend (`LISTEN_FDS`).

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::gateway::key;
use crate::program::{BRISK, Running, Scratch, text};

const ORIGIN: &str = "
import http.server, ssl, sys
name, certificate, key = sys.argv[1:]
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = name.encode() * 2000
        self.send_response(200)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *words): pass
class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128
server = Server(('127.0.0.1', 0), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(certificate, key)
server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
print(server.server_address[1], flush=True)
server.serve_forever()
";

/// An HTTPS server with a certificate for its name only.
struct Origin {
    child: Child,
    name: &'static str,
    certificate: String,
    port: u16,
}

impl Origin {
    fn start(files: &Scratch, name: &'static str) -> Origin {
        let [certificate, key] = ["crt", "key"].map(|kind| files.path(&format!("{name}.{kind}")));
        let made = Command::new("openssl")
            .args([
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-nodes",
                "-days",
                "2",
            ])
            .args(["-keyout", &key, "-out", &certificate, "-subj", &format!("/CN={name}")])
            .args(["-addext", &format!("subjectAltName=DNS:{name}")])
            .output()
            .expect("openssl runs");
        assert!(made.status.success(), "{}", text(&made.stderr));
        let mut child = Command::new("python3")
            .args(["-c", ORIGIN, name, &certificate, &key])
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 runs");
        let mut port = String::new();
        let stdout = child.stdout.take().expect("its stdout is piped");
        BufReader::new(stdout).read_line(&mut port).expect("a port");
        Origin { child, name, certificate, port: port.trim().parse().expect("a port") }
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        // The process has ended already if it failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a frontend that gets these sockets as from a service manager.
fn frontend(config: &str, sockets: &[TcpListener; 2]) -> Running {
    let [one, two] =
        sockets.each_ref().map(|socket| OwnedFd::from(socket.try_clone().expect("a descriptor")));
    let script = format!(
        "exec 3<&0 4<&1 0</dev/null 1>/dev/null; \
         LISTEN_PID=$$ LISTEN_FDS=2 exec {BRISK} frontend -c {config}"
    );
    Running::of(Command::new("sh").args(["-c", &script]).stdin(Stdio::from(one)).stdout(Stdio::from(two)))
}

/// Requests `name` at `port` repeatedly until it is stopped; returns the number of answers, and the failures.
fn load(
    name: &'static str,
    certificate: &str,
    port: u16,
    stop: Arc<AtomicBool>,
) -> JoinHandle<(u32, Vec<String>)> {
    let certificate = certificate.to_owned();
    std::thread::spawn(move || {
        let (mut answered, mut failed) = (0, Vec::new());
        while !stop.load(Ordering::Relaxed) {
            let said = Command::new("curl")
                .args(["-sS", "--noproxy", "*", "--max-time", "30", "--cacert", &certificate])
                .args(["--resolve", &format!("{name}:{port}:127.0.0.1"), &format!("https://{name}:{port}/")])
                .output()
                .expect("curl runs");
            if said.status.success() && text(&said.stdout) == name.repeat(2000) {
                answered += 1;
            } else {
                failed.push(format!("{name}:{port} {}", text(&said.stderr)));
            }
        }
        (answered, failed)
    })
}

#[test]
fn no_tls_client_fails_through_a_reload_and_a_restart() {
    for tool in ["openssl", "curl", "python3"] {
        if Command::new(tool).arg("--help").output().is_err() {
            println!("skipped: there is no {tool}");
            return;
        }
    }
    let files = Scratch::with_files();
    let key = key(&files, "key");
    let origins = ["one.test", "two.test"].map(|name| Origin::start(&files, name));
    let [one, two] = origins.each_ref().map(|origin| format!("127.0.0.1:{}", origin.port));
    let named = format!("one={one},two={two}");
    let words = ["--listen", "127.0.0.1:0", "--to", &one, "--origin", &named, "--key-file", &key];
    let mut backend = Running::start(&[&["backend"], &words[..]].concat());
    let peer = backend.announced("listen");

    let sockets = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
    let ports = sockets.each_ref().map(|socket| socket.local_addr().expect("an address").port());
    let config = files.path("frontend.toml");
    let write = |patterns: [&str; 2]| {
        let mut content = format!("[hop]\nkey_file = '{key}'\n[[backends]]\npeer = '{peer}'\n");
        for port in ports {
            content += &format!("[[listener]]\nlisten = '127.0.0.1:{port}'\n");
            for (pattern, origin) in patterns.iter().zip(["one", "two"]) {
                content += &format!("[[listener.route]]\nsni = '{pattern}'\norigin = '{origin}'\n");
            }
        }
        std::fs::write(&config, content).expect("a file");
    };
    write(["one.test", "two.test"]);
    let mut first = frontend(&config, &sockets);
    first.until("health=up");

    let stop = Arc::new(AtomicBool::new(false));
    let pairs = origins.iter().flat_map(|origin| ports.map(|port| (origin, port)));
    let loads: Vec<_> =
        pairs.map(|(origin, port)| load(origin.name, &origin.certificate, port, stop.clone())).collect();
    let pause = || std::thread::sleep(Duration::from_secs(1));
    pause();
    write(["one.test", "*.test"]);
    first.signal("HUP");
    first.until("event=reloaded");
    pause();
    assert_eq!(first.stop().0, Some(0));
    // Clients wait in the sockets for the next frontend.
    let mut second = frontend(&config, &sockets);
    second.until("health=up");
    pause();
    stop.store(true, Ordering::Relaxed);
    for load in loads {
        let (answered, failed) = load.join().expect("it ends");
        assert!(failed.is_empty() && answered > 5, "{answered} answered, {failed:?}");
    }
    assert_eq!(second.stop().0, Some(0));
    assert_eq!(backend.stop().0, Some(0));
}

#[test]
fn passed_sockets_without_a_listener_are_reported() {
    let files = Scratch::with_files();
    let config = files.path("frontend.toml");
    std::fs::write(&config, "[hop]\nplain = true\n[[backends]]\npeer = '127.0.0.1:9'\n").expect("a file");
    let sockets = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
    let addresses = sockets.each_ref().map(|socket| socket.local_addr().expect("an address").to_string());
    let said = frontend(&config, &sockets).until("LISTEN_FDS");
    assert!(addresses.iter().all(|address| said.contains(address)), "{said}");
}

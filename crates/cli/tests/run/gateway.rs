//! `frontend` and `backend` over TCP in UDP on loopback: no privileges.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;

use crate::program::{BRISK, Running, Scratch, run, text};

/// Creates a key in a file, as `brisk keygen > FILE` does.
pub(crate) fn key(files: &Scratch, name: &str) -> String {
    let path = files.path(name);
    let command = format!("umask 022; {BRISK} keygen > {path}");
    let made = std::process::Command::new("sh").args(["-c", &command]).status();
    assert!(made.is_ok_and(|status| status.success()), "{command}");
    path
}

/// Starts an origin that sends received data back on every connection.
pub(crate) fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            std::thread::spawn(move || {
                let mut writer = stream.try_clone().expect("a handle");
                std::io::copy(&mut stream, &mut writer).expect("all is copied");
            });
        }
    });
    address
}

pub(crate) fn through(address: &str, request: Vec<u8>) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).expect("the frontend accepts");
    let mut writer = stream.try_clone().expect("a handle");
    let writing = std::thread::spawn(move || {
        writer.write_all(&request).expect("all is written");
        writer.shutdown(Shutdown::Write).expect("half closed");
    });
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    writing.join().expect("the writer ends");
    answer
}

#[test]
fn pair_over_udp_carries_any_bytes_and_stops_on_sigterm() {
    let files = Scratch::with_files();
    let key = key(&files, "key");
    let origin = echo().to_string();
    let (backend, peer) = before(&origin, &key);
    let mut frontend =
        Running::start(&["frontend", "--listen", "127.0.0.1:0", "--peer", &peer, "--key-file", &key]);
    let address = frontend.announced("listen");

    assert_eq!(through(&address, b"hello".to_vec()), b"hello");
    let large: Vec<u8> = (0..2_000_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    assert!(through(&address, large.clone()) == large);

    let (status, log) = frontend.stop();
    assert_eq!(status, Some(0), "{log}");
    let access = log.lines().find(|line| line.contains("event=access")).expect("an access line");
    for word in ["role=frontend", "peer=127.0.0.1:", "bytes_up=5", "bytes_down=5", "rtt_ms=", "reason=closed"]
    {
        assert!(access.contains(word), "{word} in {access}");
    }
    let (status, log) = backend.stop();
    assert_eq!(status, Some(0), "{log}");
    assert!(log.contains("role=backend peer=127.0.0.1:"), "the frontend by its UDP address: {log}");
}

#[test]
fn frontend_without_backend_resets_the_client_and_logs_the_reason() {
    let limit = ["--connect-timeout", "300ms", "--plain"];
    let words = [&["frontend", "--listen", "127.0.0.1:0", "--peer", "127.0.0.1:9"], &limit[..]].concat();
    let mut frontend = Running::start(&words);
    let address = frontend.announced("listen");
    let mut client = TcpStream::connect(address).expect("the frontend accepts");
    client.write_all(b"hello").expect("it is written");
    let error = client.read(&mut [0; 8]).expect_err("a reset");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    let (status, log) = frontend.stop();
    assert_eq!(status, Some(0));
    assert!(log.contains("reason=\"peer gateway unreachable: "), "{log}");
    assert!(log.contains("connection refused by the peer: no program listens there"), "{log}");
}

#[test]
fn keygen_makes_a_file_for_its_owner_alone_and_a_different_key_each_time() {
    let files = Scratch::with_files();
    let (one, other) = (key(&files, "one"), key(&files, "other"));
    let texts = [&one, &other].map(|path| std::fs::read_to_string(path).expect("a key"));
    assert!(texts.iter().all(|text| text.trim().len() == 64) && texts[0] != texts[1], "{texts:?}");
    let mode = std::fs::metadata(&one).expect("a file").permissions().mode() & 0o777;
    assert_eq!(mode, 0o600, "{mode:o}");
}

#[test]
fn frontend_with_another_key_is_refused_and_both_sides_log_it() {
    let files = Scratch::with_files();
    let (one, other) = (key(&files, "one"), key(&files, "other"));
    let origin = echo().to_string();
    let mut backend =
        Running::start(&["backend", "--listen", "127.0.0.1:0", "--to", &origin, "--key-file", &one]);
    let peer = backend.announced("listen");
    let mut frontend =
        Running::start(&["frontend", "--listen", "127.0.0.1:0", "--peer", &peer, "--key-file", &other]);
    let address = frontend.announced("listen");
    for _ in 0..5 {
        let mut client = TcpStream::connect(&address).expect("the frontend accepts");
        client.write_all(b"hello").expect("it is written");
        let error = client.read(&mut [0; 8]).expect_err("a reset");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
    let (status, log) = frontend.stop();
    assert!(status == Some(0) && log.contains("check that both sides use the same key"), "{log}");
    let (_, log) = backend.stop();
    assert!(log.contains("does not hold the key"), "{log}");
    assert!(log.matches("event=rejected").count() < 5, "not a line for each: {log}");
}

/// Creates a pair of keys in a file, and its public half in another.
fn pair(files: &Scratch, name: &str) -> (String, String) {
    let (own, public) = (files.path(name), files.path(&format!("{name}.public")));
    let command =
        format!("umask 022; {BRISK} keygen --static > {own} && {BRISK} keygen --public {own} > {public}");
    let made = std::process::Command::new("sh").args(["-c", &command]).status();
    assert!(made.is_ok_and(|status| status.success()), "{command}");
    let mode = std::fs::metadata(&own).expect("a file").permissions().mode() & 0o777;
    assert_eq!(mode, 0o600, "{mode:o}");
    (own, public)
}

#[test]
fn frontend_with_a_key_pair_is_admitted_until_its_key_is_removed() {
    let files = Scratch::with_files();
    let [(front, front_public), (back, back_public)] = ["front", "back"].map(|name| pair(&files, name));
    let (_, other_public) = pair(&files, "other");
    let listed = files.path("frontends");
    let public = std::fs::read_to_string(&front_public).expect("a public key");
    let list_as =
        |label: &str| std::fs::write(&listed, format!("{} {label}\n", public.trim())).expect("a list");
    list_as("edge Rome");
    let (origin, list) = (echo().to_string(), ["--peer-keys", &listed]);
    let words = ["backend", "--listen", "127.0.0.1:0", "--to", &origin, "--key-file", &back];
    let mut backend = Running::start(&[&words[..], &list].concat());
    let peer = backend.announced("listen");
    let words = ["frontend", "--listen", "127.0.0.1:0", "--peer", &peer, "--key-file", &front];
    let mut frontend = Running::start(&[&words[..], &["--peer-keys", &back_public]].concat());
    let address = frontend.announced("listen");
    assert_eq!(through(&address, b"hello".to_vec()), b"hello");
    assert!(backend.until("event=access").contains("frontend=\"edge Rome\" "));
    list_as("Oslo");
    backend.signal("HUP");
    assert!(backend.until("event=changed").contains("key=labels before=\"edge Rome\" after=Oslo"));
    assert_eq!(through(&address, b"hello".to_vec()), b"hello");
    assert!(backend.until("event=access").contains("frontend=Oslo "));
    backend.signal("USR1");
    let status = backend.until("event=status");
    assert!(
        status.contains(
            r#"{\"name\":\"Oslo\",\"open\":0,\"max_connections\":null,\"max_rate\":null,\"total\":1,"#
        ),
        "{status}"
    );

    std::fs::copy(&other_public, &listed).expect("a list");
    backend.signal("HUP");
    backend.until("event=reloaded");
    let mut client = TcpStream::connect(&address).expect("the frontend accepts");
    client.write_all(b"hello").expect("it is written");
    let error = client.read(&mut [0; 8]).expect_err("a reset");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    drop(frontend);
    let (_, log) = backend.stop();
    let fingerprint = &public["public:".len()..][..8];
    let message = format!("key-{fingerprint} is not among the public keys of the other side");
    assert!(log.contains("event=rejected") && log.contains(&message), "{log}");
}

#[test]
fn reload_changes_the_limits_of_a_frontend() {
    let files = Scratch::with_files();
    let [(front, front_public), (back, back_public)] = ["front", "back"].map(|name| pair(&files, name));
    let (listed, file) = (files.path("frontends"), files.path("backend.toml"));
    let public = std::fs::read_to_string(&front_public).expect("a public key");
    std::fs::write(&listed, format!("{} edge\n", public.trim())).expect("a list");
    let origin = echo();
    let limits = |limits: &str| {
        let hop = format!("[hop]\nkey_file = '{back}'\npeer_keys = '{listed}'\n");
        let backend = format!("[backend]\nlisten = '127.0.0.1:0'\nto = '{origin}'\n");
        let limits = format!("[[frontends]]\nlabel = 'edge'\n{limits}[[frontends]]\nlabel = 'nobody'\n");
        std::fs::write(&file, format!("{hop}{backend}{limits}")).expect("a file");
    };
    limits("max_connections = 1\n");
    let mut backend = Running::start(&["backend", "-c", &file]);
    let peer = backend.announced("listen");
    assert!(backend.until("event=ignored").contains("label 'nobody'"));
    let words = ["frontend", "--listen", "127.0.0.1:0", "--peer", &peer, "--key-file", &front];
    let mut frontend = Running::start(&[&words[..], &["--peer-keys", &back_public]].concat());
    let address = frontend.announced("listen");
    let open = || {
        let mut client = TcpStream::connect(&address).expect("the frontend accepts");
        client.write_all(b"hello").expect("it is written");
        let answer = client.read_exact(&mut [0; 5]);
        answer.map(|()| client)
    };
    let first = open().expect("the first one is served");
    let refused = open().expect_err("one above the limit");
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionReset);
    let message = "limit: edge has 1 connections open (max_connections)";
    assert!(backend.until("event=access").contains(message));
    assert!(
        frontend
            .until("event=access")
            .contains("limit: the backend allows this frontend no more connections")
    );
    drop(first);

    limits("max_rate = '4mbit'\n");
    backend.signal("HUP");
    assert!(backend.until("event=changed").contains("after=\"edge (max_rate 4mbit), nobody"));
    backend.until("event=reloaded");
    let began = std::time::Instant::now();
    let sent = vec![7; 500_000];
    assert_eq!(through(&address, sent.clone()), sent);
    assert!(began.elapsed().as_millis() > 800, "500 kB each way at 500 kB/s took {:?}", began.elapsed());
    assert_eq!((frontend.stop().0, backend.stop().0), (Some(0), Some(0)));
}

#[test]
fn a_client_of_a_proxy_logs_in_as_a_user_of_the_file() {
    let files = Scratch::with_files();
    let (key, users, origin) = (key(&files, "key"), files.path("users"), echo().to_string());
    let write = |text: &str| {
        std::fs::write(&users, text).expect("a file");
        std::fs::set_permissions(&users, PermissionsExt::from_mode(0o600)).expect("its owner's alone");
    };
    write("alice:secret\n");
    let words = ["backend", "--listen", "127.0.0.1:0", "--allow", &origin, "--key-file", &key];
    let mut backend = Running::start(&words);
    let peer = backend.announced("listen");
    let mut frontend =
        Running::start(&[&towards(&key, &[&peer])[..], &["--connect", "--users-file", &users]].concat());
    let address = frontend.announced("listen");
    let answer = |credentials: &str| {
        let mut client = TcpStream::connect(&address).expect("the frontend accepts");
        let field = format!("Proxy-Authorization: Basic {credentials}\r\n");
        write!(client, "CONNECT {origin} HTTP/1.1\r\n{field}\r\n").expect("it is written");
        let mut answer = [0; 12];
        client.read_exact(&mut answer).expect("an answer");
        text(&answer)
    };
    assert_eq!(answer("YWxpY2U6c2VjcmV0"), "HTTP/1.1 200");
    assert!(frontend.until("event=access").contains("user=alice "));
    assert_eq!(answer("YWxpY2U6b3RoZXI="), "HTTP/1.1 407");
    assert!(frontend.until("event=access").contains("reason=\"unauthorized: wrong user name or password\""));
    write("alice:other\nbob:secret\n");
    frontend.signal("HUP");
    assert!(frontend.until("event=changed").contains("key=users before=1 after=2"));
    frontend.until("event=reloaded");
    assert_eq!(answer("YWxpY2U6b3RoZXI="), "HTTP/1.1 200");
    write("# nobody\n");
    frontend.signal("HUP");
    frontend.until("event=nobody");
    frontend.until("event=reloaded");
    assert_eq!(answer("YWxpY2U6b3RoZXI="), "HTTP/1.1 407");
    let (status, log) = frontend.stop();
    assert!(status == Some(0) && !log.contains("secret") && !log.contains("other"), "{log}");
    assert_eq!(backend.stop().0, Some(0));

    std::fs::set_permissions(&users, PermissionsExt::from_mode(0o644)).expect("open to others");
    let refused = run(&[&towards(&key, &[&peer])[..], &["--socks5", "--users-file", &users]].concat());
    let message = text(&refused.stderr);
    assert!(refused.status.code() == Some(1) && message.contains("chmod 600"), "{message}");
}

/// Starts a backend in front of `origin`; returns it with its address.
fn before(origin: &str, key: &str) -> (Running, String) {
    let mut backend =
        Running::start(&["backend", "--listen", "127.0.0.1:0", "--to", origin, "--key-file", key]);
    let peer = backend.announced("listen");
    (backend, peer)
}

/// Returns the words of a frontend with these peers.
fn towards<'a>(key: &'a str, peers: &[&'a str]) -> Vec<&'a str> {
    let peers = peers.iter().flat_map(|peer| ["--peer", *peer]);
    ["frontend", "--listen", "127.0.0.1:0", "--key-file", key].into_iter().chain(peers).collect()
}

#[test]
fn backend_with_an_unknown_name_is_down_and_others_work() {
    let files = Scratch::with_files();
    let key = key(&files, "key");
    let origin = echo().to_string();
    let (backend, peer) = before(&origin, &key);
    let nobody = "nobody.invalid:7443";
    let mut frontend = Running::start(&towards(&key, &[nobody, &peer]));
    assert!(frontend.until("event=unresolved").contains("level=warn"));
    let address = frontend.announced("listen");
    assert_eq!(through(&address, b"hello".to_vec()), b"hello");
    assert!(frontend.until("bytes_up=5").contains(&format!("route={peer}")));
    frontend.signal("HUP");
    frontend.until("event=reloaded");
    frontend.signal("USR1");
    let status = frontend.until("event=status");
    assert!(status.contains("nobody.invalid") && status.contains("down"), "{status}");
    assert_eq!(frontend.stop().0, Some(0));

    let mut straight = Running::start(&[&towards(&key, &[nobody])[..], &["--direct", &origin]].concat());
    straight.until("event=unresolved");
    let address = straight.announced("listen");
    assert_eq!(through(&address, b"hello".to_vec()), b"hello");
    assert!(straight.until("bytes_up=5").contains("route=direct:"));
    assert_eq!(straight.stop().0, Some(0));

    let refused = run(&towards(&key, &[nobody]));
    let message = text(&refused.stderr);
    assert!(refused.status.code() == Some(1) && message.contains("check the name"), "{message}");
    assert_eq!(backend.stop().0, Some(0));
}

#[test]
fn backend_that_was_not_found_is_looked_up_again() {
    let files = Scratch::with_files();
    let key = key(&files, "key");
    let origin = echo().to_string();
    let (backend, peer) = before(&origin, &key);
    let port = peer.rsplit_once(':').expect("a port").1;
    // A separate hosts file, which is changed while the frontend runs.
    let hosts = files.path("hosts");
    std::fs::write(&hosts, "127.0.0.1 localhost\n").expect("a file");
    let inside = |command: &str| {
        let mut unshare = std::process::Command::new("unshare");
        unshare.args(["-rm", "sh", "-c", &format!("mount --bind {hosts} /etc/hosts && {command}")]);
        unshare
    };
    if !inside("true").output().is_ok_and(|out| out.status.success()) {
        println!("SKIPPED: no mount namespace for a user");
        return;
    }
    let name = format!("late.invalid:{port}");
    let words = [&towards(&key, &[&name])[..], &["--direct", &origin]].concat().join(" ");
    let mut frontend = Running::of(&mut inside(&format!("exec {BRISK} {words}")));
    frontend.until("event=unresolved");
    let address = frontend.announced("listen");
    assert_eq!(through(&address, b"hello".to_vec()), b"hello");
    assert!(frontend.until("bytes_up=5").contains("route=direct:"));
    std::fs::write(&hosts, "127.0.0.1 localhost late.invalid\n").expect("a file");
    frontend.until("event=resolved");
    frontend.until("health=up");
    assert_eq!(through(&address, b"again!".to_vec()), b"again!");
    assert!(frontend.until("bytes_up=6").contains(&format!("route={name}")));
    assert_eq!(frontend.stop().0, Some(0));
    assert_eq!(backend.stop().0, Some(0));
}

//! Operation of a running gateway: configure, inspect and reload it, and kill one side.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::gateway::{echo, key, through};
use crate::program::{BRISK, Running, Scratch, run, text};

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port()
}

fn get(admin: &str, path: &str, header: &str) -> String {
    let mut stream = TcpStream::connect(admin).expect("the admin listener answers");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n{header}Connection: close\r\n\r\n")
        .expect("it is written");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("an answer");
    response
}

/// A pair with configuration files.
struct Configured {
    files: Scratch,
    backend: Running,
    frontend: Running,
    address: String,
    admin: String,
}

impl Configured {
    fn start() -> Configured {
        let files = Scratch::with_files();
        let key = key(&files, "key");
        let origin = echo().to_string();
        let hop = format!("[hop]\nkey_file = '{key}'\n");
        std::fs::write(
            files.path("b.toml"),
            format!("{hop}[backend]\nlisten = '127.0.0.1:0'\nto = '{origin}'\n"),
        )
        .expect("a file");
        let mut backend = Running::start(&["backend", "-c", &files.path("b.toml")]);
        let peer = backend.announced("listen");
        let admin = format!("127.0.0.1:{}", free_port());
        let frontend = format!(
            "{hop}[frontend]\nlisten = '127.0.0.1:0'\nfallback = 'direct'\norigin = '{origin}'\n\
             [[backends]]\npeer = '{peer}'\n[admin]\nlisten = '{admin}'\n"
        );
        std::fs::write(files.path("f.toml"), frontend).expect("a file");
        let mut frontend = Running::start(&["frontend", "-c", &files.path("f.toml")]);
        let address = frontend.announced("listen");
        frontend.until("event=admin");
        Configured { files, backend, frontend, address, admin }
    }
}

#[test]
fn pair_from_files_is_checked_started_inspected_and_reloaded() {
    let Configured { files, backend, mut frontend, address, admin } = Configured::start();
    for file in ["f.toml", "b.toml"] {
        let checked = run(&["check", "-c", &files.path(file)]);
        assert!(checked.status.success(), "{}", text(&checked.stderr));
    }
    assert_eq!(through(&address, b"hello".to_vec()), b"hello");
    let until = Instant::now() + Duration::from_secs(5);
    while !get(&admin, "/metrics", "").contains("brisk_connections_total{result=\"closed\"} 1\n") {
        assert!(Instant::now() < until, "the connection is counted");
    }
    assert!(get(&admin, "/healthz", "").starts_with("HTTP/1.1 200"));
    assert!(get(&admin, "/readyz", "").starts_with("HTTP/1.1 200"));
    let page = get(&admin, "/status", "Accept: text/html\r\n");
    assert!(
        page.contains("<!doctype html>") && !page.contains("http://") && !page.contains("https://"),
        "self-contained"
    );
    let top = run(&["top", &admin, "--once"]);
    let shown = text(&top.stdout);
    assert!(shown.contains("brisk frontend") && shown.contains("total 1"), "{shown}{}", text(&top.stderr));

    // A broken file is refused, and the old configuration stays in use.
    let good = std::fs::read_to_string(files.path("f.toml")).expect("the file");
    std::fs::write(files.path("f.toml"), good.replace("fallback", "fallbak")).expect("a file");
    let checked = run(&["check", "-c", &files.path("f.toml")]);
    assert_eq!(checked.status.code(), Some(1));
    assert!(text(&checked.stderr).contains("did you mean fallback?"), "{}", text(&checked.stderr));
    frontend.signal("HUP");
    let said = frontend.until("event=not-reloaded");
    assert!(said.contains("f.toml:5") && said.contains("did you mean fallback?"), "{said}");
    assert_eq!(through(&address, b"still".to_vec()), b"still");
    std::fs::write(files.path("f.toml"), good.replace("'direct'", "'none'")).expect("a file");
    frontend.signal("HUP");
    frontend.until("event=reloaded");
    assert_eq!(through(&address, b"again".to_vec()), b"again");
    frontend.signal("USR1");
    assert!(frontend.until("event=status").contains("uptime_s"));
    assert_eq!(frontend.stop().0, Some(0));
    assert_eq!(backend.stop().0, Some(0));
}

/// Runs `check` on a frontend with these settings in addition to the required ones.
fn checked(files: &Scratch, more: &str) -> (Option<i32>, String) {
    let needed = "[frontend]\nlisten = '127.0.0.1:0'\n[[backends]]\npeer = '127.0.0.1:7443'\n";
    let file = files.path("checked.toml");
    std::fs::write(&file, format!("{needed}{more}")).expect("a file");
    let checked = run(&["check", "-c", &file]);
    (checked.status.code(), text(&checked.stderr))
}

#[test]
fn check_refuses_a_side_that_cannot_start() {
    let files = Scratch::with_files();
    for (more, says) in [
        ("[admin]\nlisten = '0.0.0.0:0'\n", "give it a token with --admin-token-file"),
        ("[admin]\nlisten = '0.0.0.0:0'\ntoken_file = '/nonexistent'\n", "/nonexistent"),
        ("[admin]\nlisten = '127.0.0.1:0'\ntoken_file = '/etc/hostname'\n", "at least 16 characters"),
        ("[hop]\nplain = true\ndevice = 'tun:x'\n", "checked.toml:7: tun:x needs an address"),
        ("[hop]\nplain = true\nmechanisms = 'quick'\n", "checked.toml:7: mechanisms: "),
        ("[hop]\nplain = true\ndevice = 'eth0'\n", "checked.toml:7: hop device: "),
        (
            "[backend]\nto = 'http://127.0.0.1:80'\n",
            "checked.toml:8: 'http://127.0.0.1:80': a gateway carries TCP",
        ),
        ("[hop]\nplain = false\n", "checked.toml:5: the hop has no key"),
        (
            "[hop]\nplain = true\n[backend]\nto = 'a:1'\n",
            "checked.toml:7: a backend needs an address for frontends",
        ),
    ] {
        let more =
            if more.contains("[hop]") { more.to_owned() } else { format!("[hop]\nplain = true\n{more}") };
        let (status, output) = checked(&files, &more);
        assert!(status == Some(1) && output.contains(says), "{more}: {output}");
        if more.contains("[backend]") {
            continue;
        }
        let started = run(&["frontend", "-c", &files.path("checked.toml")]);
        let said = text(&started.stderr);
        assert!(!started.status.success() && said.contains(says), "{more}: {said}");
        assert!(!said.contains("event=started"), "{more}: {said}");
    }
    let (status, output) = checked(&files, "[hop]\nplain = true\npacket = 'nope0'\n");
    assert_eq!(status, Some(0));
    assert!(
        output.contains("warning") && output.contains("checked.toml:7: the interface nope0 does not exist"),
        "{output}"
    );
}

#[test]
fn setting_without_effect_is_a_warning_of_check_and_start() {
    let files = Scratch::with_files();
    let (status, output) = checked(&files, "[hop]\nplain = true\n[admin]\ntoken_file = '/nonexistent'\n");
    assert_eq!(status, Some(0));
    assert!(
        output.contains("warning") && output.contains("checked.toml:8: token_file has no effect"),
        "{output}"
    );
    let words = ["frontend", "-c", &files.path("checked.toml"), "--send-proxy", "v2"];
    let mut frontend = Running::start(&words);
    assert!(frontend.until("event=ignored").contains("level=warn"));
    frontend.until("key=admin.token_file");
    frontend.until("event=started");
    assert_eq!(frontend.stop().0, Some(0));
}

#[test]
fn check_names_limits_of_a_label_that_no_key_has() {
    let files = Scratch::with_files();
    let key = files.path("key");
    let made = format!("umask 077; {BRISK} keygen --static > {key}");
    assert!(Command::new("sh").args(["-c", &made]).status().is_ok_and(|status| status.success()));
    let public = text(&run(&["keygen", "--public", &key]).stdout);
    let peers = files.path("peers");
    std::fs::write(&peers, format!("{} berlin\n", public.trim())).expect("a file");
    let file = files.path("backend.toml");
    for (label, warned) in [("berlin", false), ("belrin", true)] {
        let content = format!(
            "[hop]\nkey_file = '{key}'\npeer_keys = '{peers}'\n[backend]\nlisten = '127.0.0.1:0'\nto = '127.0.0.1:80'\n\
             [[frontends]]\nlabel = '{label}'\nmax_connections = 9\n"
        );
        std::fs::write(&file, content).expect("a file");
        let checked = run(&["check", "-c", &file]);
        let output = text(&checked.stderr);
        assert!(checked.status.success(), "{output}");
        assert_eq!(output.contains("no public key of peer_keys has the label 'belrin'"), warned, "{output}");
    }
}

#[test]
fn reload_reports_needed_restarts_and_refuses_invalid_files() {
    let Configured { files, mut backend, mut frontend, address, admin } = Configured::start();
    let good = std::fs::read_to_string(files.path("f.toml")).expect("the file");
    let write = |text: String| std::fs::write(files.path("f.toml"), text).expect("a file");
    write(good.replace(&admin, "0.0.0.0:9"));
    frontend.signal("HUP");
    let said = frontend.until("event=not-reloaded");
    assert!(said.contains("--admin-token-file"), "{said}");
    let other =
        good.replace(&admin, "127.0.0.1:9").replace("listen = '127.0.0.1:0'", "listen = '127.0.0.2:0'");
    write(format!("{other}[limits]\nidle_timeout = '1m'\n"));
    frontend.signal("HUP");
    let said = frontend.until("loaded");
    let waiting = "event=reloaded changes=3 needs_restart=limits.idle_timeout,admin.listen\n";
    assert!(said.ends_with(waiting), "{said}");
    let until = Instant::now() + Duration::from_secs(5);
    while TcpStream::connect(&address).is_ok() {
        assert!(Instant::now() < until, "the listener has moved");
    }
    let listen = format!("listen = '{address}'");
    write(good.replace("'direct'", "'none'").replace("listen = '127.0.0.1:0'", &listen));
    frontend.signal("HUP");
    let said = frontend.until("loaded");
    assert!(said.ends_with("event=reloaded changes=4\n"), "{said}");

    let b = std::fs::read_to_string(files.path("b.toml")).expect("the file");
    std::fs::write(files.path("b.toml"), format!("{b}as_client = true\nsend_proxy = 'v2'\n"))
        .expect("a file");
    backend.signal("HUP");
    let said = backend.until("loaded");
    assert!(said.ends_with("event=reloaded changes=2 needs_restart=backend.as_client\n"), "{said}");
    assert!(through(&address, b"as before".to_vec()).ends_with(b"as before"));
    assert_eq!(frontend.stop().0, Some(0));
    assert_eq!(backend.stop().0, Some(0));
}

#[test]
fn replaced_key_is_read_without_a_signal() {
    let Configured { files, mut backend, mut frontend, address, .. } = Configured::start();
    let new = key(&files, "new");
    // Kubernetes replaces a mounted secret in the same way: atomically, under the same name.
    std::fs::rename(new, files.path("key")).expect("the file moves");
    for side in [&mut frontend, &mut backend] {
        side.until("event=changed key=keys");
        side.until("event=reloaded changes=1");
    }
    assert_eq!(through(&address, b"sealed by the new key".to_vec()), b"sealed by the new key");
    assert_eq!(frontend.stop().0, Some(0));
    assert_eq!(backend.stop().0, Some(0));
}

/// Returns the answer to one byte through a frontend: the origin's name; empty if the connection is refused.
fn whose(address: &str) -> String {
    let Ok(mut client) = TcpStream::connect(address) else { return String::new() };
    let mut answer = String::new();
    let exchanged = client.write_all(b"?").and_then(|()| client.read_to_string(&mut answer));
    exchanged.map_or_else(|_| String::new(), |_| answer)
}

/// Starts an origin that answers the first data of every connection with its name.
fn named(name: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    std::thread::spawn(move || {
        while let Ok((mut client, _)) = listener.accept() {
            std::thread::spawn(move || client.read(&mut [0]).and_then(|_| client.write_all(name.as_bytes())));
        }
    });
    address
}

#[test]
fn listeners_are_checked_named_and_changed_by_a_reload() {
    let files = Scratch::with_files();
    let (web, api, own) = (named("web"), named("api"), named("own"));
    let more = format!("web={web},api={api}");
    let mut backend =
        Running::start(&["backend", "--listen", "127.0.0.1:0", "--to", &own, "--origin", &more, "--plain"]);
    let peer = backend.announced("listen");
    let admin = format!("127.0.0.1:{}", free_port());
    let [a, b, c] = [free_port(), free_port(), free_port()].map(|port| format!("127.0.0.1:{port}"));
    let common = format!(
        "[hop]\nplain = true\n[[backends]]\npeer = '{peer}'\n[admin]\nlisten = '{admin}'\n\
         [frontend]\nlisten = '{a}'\n"
    );
    let listener =
        |listen: &str, origin: &str| format!("[[listener]]\nlisten = '{listen}'\norigin = '{origin}'\n");
    let file = files.path("f.toml");
    let write = |listeners: &[String]| {
        std::fs::write(&file, format!("{common}{}", listeners.concat())).expect("a file");
    };
    for (bad, says) in [
        (listener(&a, "web"), "f.toml:9: the listeners"),
        (listener("127.0.0.1:1-2000", "web"), "2001 ports in total; a frontend has at most 1024"),
        (listener("127.0.0.1:9-8", "web"), "f.toml:10: '127.0.0.1:9-8': write ADDR:PORT, ADDR:FIRST-LAST"),
        (listener(&b, "we:b"), "f.toml:11: 'we:b' is not a name for an origin"),
        (listener(&b, "web").replace("origin", "orign"), "did you mean origin?"),
    ] {
        write(&[bad]);
        for words in [["check", "-c", &file], ["frontend", "-c", &file]] {
            let said = run(&words);
            assert!(!said.status.success() && text(&said.stderr).contains(says), "{}", text(&said.stderr));
        }
    }

    write(&[listener(&b, "web")]);
    assert!(run(&["check", "-c", &file]).status.success());
    let mut frontend = Running::start(&["frontend", "-c", &file]);
    assert_eq!(frontend.announced("listen"), format!("{a},{b}"));
    frontend.until("health=up");
    assert_eq!([whose(&a), whose(&b), whose(&c)], ["own", "web", ""]);

    // A connection of a listener that stays, and one of a listener that is removed.
    let mut open = [&a, &b].map(|address| TcpStream::connect(address).expect("it is accepted"));
    std::thread::sleep(Duration::from_millis(300));
    write(&[listener(&c, "api")]);
    frontend.signal("HUP");
    let said = frontend.until("event=changed key=listener");
    assert!(said.contains(&format!("before=\"{b} to web\" after=\"{c} to api\"")), "{said}");
    frontend.until("event=reloaded changes=1\n");
    assert_eq!([whose(&a), whose(&b), whose(&c)], ["own", "", "api"]);
    for (open, name) in open.iter_mut().zip(["own", "web"]) {
        let mut answer = String::new();
        open.write_all(b"?").and_then(|()| open.read_to_string(&mut answer)).expect("it goes on");
        assert_eq!(answer, name);
    }

    // If another program uses the port of a listener, everything stays unchanged.
    let held = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = held.local_addr().expect("an address").to_string();
    write(&[listener(&b, "api"), listener(&taken, "web")]);
    frontend.signal("HUP");
    let said = frontend.until("event=not-reloaded");
    assert!(said.contains(&format!("cannot listen on {taken}")), "{said}");
    assert_eq!([whose(&a), whose(&b), whose(&c)], ["own", "", "api"]);
    write(&[listener(&c, "unknown")]);
    frontend.signal("HUP");
    frontend.until("event=reloaded");
    assert_eq!([whose(&a), whose(&c)], ["own", ""]);
    let said = frontend.until("reason=\"origin unreachable");
    assert!(said.contains(&format!("listener={c}")) && said.contains("origin=unknown"), "{said}");
    let said = backend.until("no origin of this backend is named unknown");
    assert!(said.contains("level=error"), "{said}");
    let metrics = get(&admin, "/metrics", "");
    let line =
        format!("brisk_service_connections_total{{listener=\"{b}\",origin=\"web\",result=\"closed\"}}");
    assert!(metrics.contains(&line), "{metrics}");
    let status = get(&admin, "/status", "Accept: application/json\r\n");
    assert!(status.contains(&format!("{{\"listen\":\"{c}\",\"origin\":\"unknown\"}}")), "{status}");
    assert_eq!(frontend.stop().0, Some(0));
    assert_eq!(backend.stop().0, Some(0));
}

#[test]
fn killed_backend_is_bypassed_until_it_returns() {
    let Configured { files, backend, mut frontend, address, admin: _admin } = Configured::start();
    frontend.until("health=up");
    assert_eq!(through(&address, b"hello".to_vec()), b"hello");
    drop(backend);
    let died = Instant::now();
    frontend.until("health=down");
    // On an idle machine this takes less than a second.
    assert!(died.elapsed() < Duration::from_secs(3), "{:?}", died.elapsed());
    assert_eq!(through(&address, b"straight".to_vec()), b"straight");
    assert!(frontend.until("bytes_up=8").contains("route=direct:"));
    // The backend restarts at the same address, with a flag that overrides the file.
    let peer = std::fs::read_to_string(files.path("f.toml")).expect("the file");
    let peer =
        peer.split("peer = '").nth(1).and_then(|rest| rest.split('\'').next()).expect("a peer").to_owned();
    let backend = Running::start(&["backend", "-c", &files.path("b.toml"), "--listen", &peer]);
    frontend.until("health=up");
    assert_eq!(through(&address, b"over the hop".to_vec()), b"over the hop");
    assert!(frontend.until("bytes_up=12").contains(&format!("route={peer}")));
    assert_eq!(frontend.stop().0, Some(0));
    assert_eq!(backend.stop().0, Some(0));
}

#[test]
fn doctor_reports_usable_and_unusable_mechanisms() {
    let Configured { files, backend, frontend, .. } = Configured::start();
    let f = std::fs::read_to_string(files.path("f.toml")).expect("the file");
    let peer = f.split("peer = '").nth(1).and_then(|rest| rest.split('\'').next()).expect("a peer");
    let (right, wrong) = (files.path("key"), key(&files, "wrong"));
    let out = run(&["doctor", peer, "--key-file", &right, "--probes", "20", "-q"]);
    let said = text(&out.stdout);
    assert!(out.status.success(), "{said}{}", text(&out.stderr));
    let found = ["ok  hop", "ok  round trip", "ok  fast open        used", "ok  kernel-tcp"];
    let always = [
        "ok  redundancy       agreed: both sides agreed",
        "bytes of payload, tested in both directions",
        "    fast_open        on (default)",
        "    planner          on (default max_overhead 25%)",
        "brisk whatif --rtt",
        "    congestion       bbr (default)",
        "\"tcp; all\" --max-overhead 25%",
    ];
    for words in found.into_iter().chain(always) {
        assert!(said.contains(words), "{words} is not in\n{said}");
    }
    let off = ["--max-overhead", "0%", "--quiet"];
    let out = run(&[&["doctor", peer, "--key-file", &right, "--probes", "2"][..], &off].concat());
    let said = text(&out.stdout);
    for words in
        ["ok  redundancy       off: ", "    planner          off (max_overhead 0%)", "fast_open        on"]
    {
        assert!(said.contains(words), "{words} is not in\n{said}");
    }
    let out = run(&["doctor", peer, "--key-file", &wrong, "--connect-timeout", "2s", "-q"]);
    let said = text(&out.stdout);
    assert_eq!(out.status.code(), Some(1));
    assert!(said.contains("!!  hop") && said.contains("check that both sides use the same key"), "{said}");
    assert!(!said.contains("expected"), "{said}");
    let _ = (backend.stop(), frontend.stop());
}

#[test]
fn everything_is_on_by_default_and_a_peer_without_redundancy_is_reported() {
    let files = Scratch::with_files();
    let key = key(&files, "key");
    let origin = echo().to_string();
    let admin = format!("127.0.0.1:{}", free_port());
    let report = |overhead: &[&str]| {
        let backend = ["backend", "--listen", "127.0.0.1:0", "--to", &origin, "--key-file", &key];
        let mut backend = Running::start(&[&backend[..], overhead].concat());
        let peer = backend.announced("listen");
        let words = ["--peer", &peer, "--key-file", &key, "--admin", &admin];
        let mut frontend = Running::start(&[&["frontend", "--listen", "127.0.0.1:0"][..], &words].concat());
        for state in ["fast_open state=on", "path state=on", "corrective state=on", "proactive state=on"] {
            frontend.until(&format!("event=mechanism name={state}"));
        }
        let planner = frontend.until("name=planner");
        assert!(planner.ends_with("state=on reason=\"default max_overhead 25%\"\n"), "{planner}");
        let said = frontend.until("event=redundancy");
        let doctor = text(&run(&["doctor", &peer, "--key-file", &key, "--probes", "2", "-q"]).stdout);
        let (status, metrics) = (get(&admin, "/status.json", ""), get(&admin, "/metrics", ""));
        let top = text(&run(&["top", &admin, "--once"]).stdout);
        assert_eq!((frontend.stop().0, backend.stop().0), (Some(0), Some(0)));
        [said, doctor, status, metrics, top]
    };
    let holds = |reports: [String; 5], words: [&str; 5]| {
        for (report, words) in reports.iter().zip(words) {
            assert!(report.contains(words), "{words} is not in\n{report}");
        }
    };
    holds(
        report(&[]),
        [
            "level=info event=redundancy",
            "ok  redundancy       agreed",
            "\"redundancy\":\"agreed\"",
            "mechanism=\"redundancy\",state=\"agreed\"",
            "agreed",
        ],
    );
    holds(
        report(&["--max-overhead", "0%"]),
        [
            "level=warning event=redundancy",
            "!!  redundancy       unanswered",
            "\"redundancy\":\"unanswered\"",
            "mechanism=\"redundancy\",state=\"unanswered\"",
            "unanswered",
        ],
    );
}

#[test]
fn q_leaves_top() {
    let Configured { backend, frontend, admin, files: _files, .. } = Configured::start();
    // `script` gives the program a terminal.
    let words = format!("{BRISK} top {admin}");
    let mut top = match Command::new("script")
        .args(["-qec", &words, "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
    {
        Ok(top) => top,
        Err(error) => return println!("SKIPPED q_leaves_top: script: {error}"),
    };
    let mut shown = top.stdout.take().expect("its stdout is piped");
    let mut page = Vec::new();
    while !text(&page).contains("brisk frontend") {
        let mut some = [0; 4096];
        let count = shown.read(&mut some).expect("a page");
        assert!(count > 0, "top has ended: {}", text(&page));
        page.extend_from_slice(&some[..count]);
    }
    top.stdin.take().expect("its stdin is piped").write_all(b"q").expect("a key");
    let until = Instant::now() + Duration::from_secs(10);
    let left = std::thread::spawn(move || std::io::copy(&mut shown, &mut std::io::sink()));
    while top.try_wait().expect("its status").is_none() {
        if Instant::now() > until {
            top.kill().expect("it is killed");
            panic!("q does not quit");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(top.wait().expect("its status").success() && left.join().is_ok());
    assert_eq!((frontend.stop().0, backend.stop().0), (Some(0), Some(0)));
}

#[test]
fn reload_logs_the_changes_and_every_report_shows_them() {
    let Configured { files, backend, mut frontend, admin, .. } = Configured::start();
    let good = std::fs::read_to_string(files.path("f.toml")).expect("the file");
    let changed = good.replace("[hop]\n", "[hop]\nmax_overhead = '10%'\n");
    std::fs::write(files.path("f.toml"), changed).expect("a file");
    frontend.signal("HUP");
    let said = frontend.until("event=changed");
    assert!(said.ends_with("key=hop.max_overhead before=default after=10%\n"), "{said}");
    frontend.until("event=reloaded changes=1");
    let metrics = get(&admin, "/metrics", "");
    let states: Vec<&str> = metrics.lines().filter(|line| line.contains("mechanism=\"planner\"")).collect();
    assert!(states.len() == 1 && states[0].contains("reason=\"max_overhead 10%\""), "{states:?}");
    let top = text(&run(&["top", &admin, "--once"]).stdout);
    assert!(
        top.contains("max_overhead 10%") && get(&admin, "/status.json", "").contains("max_overhead 10%"),
        "{top}"
    );
    assert_eq!((frontend.stop().0, backend.stop().0), (Some(0), Some(0)));
}

#[test]
fn the_last_peer_key_is_revoked_by_a_reload() {
    let files = Scratch::with_files();
    let pair = |name: &str| {
        let (key, public) = (files.path(name), files.path(&format!("{name}.public")));
        let private = text(&run(&["keygen", "--static"]).stdout);
        std::fs::write(&key, private).expect("a file");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&key, mode).expect("its mode");
        std::fs::write(&public, text(&run(&["keygen", "--public", &key]).stdout)).expect("a file");
        (key, public)
    };
    let ((key, public), (others, known)) = (pair("backend"), pair("frontend"));
    let origin = echo().to_string();
    let listen = ["--listen", "127.0.0.1:0"];
    let words = ["--to", &origin, "--key-file", &key, "--peer-keys", &known];
    let mut backend = Running::start(&[&["backend"], &listen[..], &words].concat());
    let peer = backend.announced("listen");
    let doctor =
        || run(&["doctor", &peer, "--key-file", &others, "--peer-keys", &public, "--probes", "2", "-q"]);
    assert!(doctor().status.success());
    std::fs::write(&known, "# nobody\n").expect("a file");
    backend.signal("HUP");
    assert!(backend.until("event=nobody").contains("level=warn"));
    let said = backend.until("event=changed");
    assert!(
        said.ends_with("key=keys before=\"1 pair, 1 peer key\" after=\"1 pair, 0 peer keys\"\n"),
        "{said}"
    );
    assert_eq!(doctor().status.code(), Some(1), "the frontend is shut out");
    std::fs::write(&public, "# nobody\n").expect("a file");
    let said = text(&doctor().stderr);
    assert!(said.contains("write the backend's public key into that file"), "{said}");
    assert_eq!(backend.stop().0, Some(0));
}

#[test]
fn a_key_is_changed_under_traffic_without_a_failure() {
    let files = Scratch::with_files();
    let (old, new) = (key(&files, "old"), key(&files, "new"));
    let [old, new] = [old, new].map(|path| std::fs::read_to_string(path).expect("a key"));
    let (at_backend, at_frontend) = (key(&files, "b"), key(&files, "f"));
    let write = |path: &str, keys: &str| std::fs::write(path, keys).expect("a file");
    write(&at_backend, &old);
    write(&at_frontend, &old);
    let origin = echo().to_string();
    let mut backend =
        Running::start(&["backend", "--listen", "127.0.0.1:0", "--to", &origin, "--key-file", &at_backend]);
    let peer = backend.announced("listen");
    let mut frontend =
        Running::start(&["frontend", "--listen", "127.0.0.1:0", "--peer", &peer, "--key-file", &at_frontend]);
    let address = frontend.announced("listen");
    let ask = || assert_eq!(through(&address, b"hello".to_vec()), b"hello");
    ask();
    write(&at_backend, &format!("{new}{old}"));
    backend.signal("HUP");
    backend.until("event=reloaded");
    ask();
    write(&at_frontend, &new);
    frontend.signal("HUP");
    frontend.until("event=reloaded");
    ask();
    write(&at_backend, &new);
    backend.signal("HUP");
    backend.until("event=reloaded");
    for _ in 0..3 {
        ask();
    }
    let (status, log) = frontend.stop();
    assert!(status == Some(0) && !log.contains("unreachable"), "{log}");
}

#[test]
fn systemd_is_notified_and_passes_the_listener() {
    let files = Scratch::with_files();
    let notify = files.path("notify");
    let notified = std::os::unix::net::UnixDatagram::bind(&notify).expect("a socket");
    notified.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
    let port = free_port();
    // The script acts as systemd: the listener is descriptor 3 of the program, and LISTEN_PID is its process
    // id.
    let script = format!(
        "import os,socket\ns=socket.create_server(('127.0.0.1',{port}))\nos.dup2(s.fileno(),3);os.set_inheritable(3,True)\n\
         os.environ['LISTEN_PID']=str(os.getpid());os.environ['LISTEN_FDS']='1';os.environ['NOTIFY_SOCKET']='{notify}'\n\
         os.execv('{}',['brisk','frontend','--peer','127.0.0.1:9','--plain'])",
        crate::program::BRISK
    );
    let Ok(mut child) =
        Command::new("python3").args(["-c", &script]).stderr(std::process::Stdio::null()).spawn()
    else {
        println!("skipped: there is no python3");
        return;
    };
    let mut message = [0; 256];
    let length = notified.recv(&mut message).expect("it says that it is ready");
    assert!(text(&message[..length]).contains("READY=1"));
    TcpStream::connect(("127.0.0.1", port)).expect("it listens where it was notified");
    assert!(
        Command::new("kill").args(["-TERM", &child.id().to_string()]).status().is_ok_and(|s| s.success())
    );
    let length = notified.recv(&mut message).expect("it says that it stops");
    assert!(text(&message[..length]).contains("STOPPING=1"));
    assert!(child.wait().expect("an end").success());
}

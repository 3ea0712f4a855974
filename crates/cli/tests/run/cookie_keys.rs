//! Fast Open keys from the sources that operators use. Consecutive servers at one address represent a farm.

use std::net::UdpSocket;

use crate::program::{Running, Scratch, run, text};

fn write(scratch: &Scratch, name: &str, text: &str) -> String {
    let at = scratch.path(name);
    std::fs::write(&at, text).expect("a file");
    at
}

/// Starts a server with keys from this source; returns it with its URL.
fn serve(scratch: &Scratch, address: &str, keys: &[&str]) -> (Running, String) {
    let device = format!("udp:{address}");
    let common =
        ["serve", &scratch.path(""), "--synthetic", "--device", &device, "--fast-open", "--fast-open-key"];
    let mut server = Running::start(&[&common[..], keys].concat());
    let url = server.announced("url");
    (server, url)
}

/// Returns the outcome of Fast Open on a transfer. On a busy machine the second connection, which repeats the
/// request, may answer first ("off", or "blackholed" if the answer never came in time). Then the transfer is
/// repeated, three times at most.
fn outcome(scratch: &Scratch, url: &str) -> String {
    let outcomes = std::iter::repeat_with(|| outcome_of_one(scratch, url)).take(3);
    let mut last = String::new();
    for outcome in outcomes {
        last = outcome;
        if !["off", "blackholed"].contains(&last.as_str()) {
            break;
        }
    }
    last
}

/// Returns the outcome of Fast Open on one transfer. The client stores its memory in a file and uses one UDP
/// port, because the server identifies it by address and port.
fn outcome_of_one(scratch: &Scratch, url: &str) -> String {
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
    assert_eq!(outcome(&scratch, &url), "used", "the cookie of the first is good at the second");
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

#[test]
fn changed_keys_are_installed_while_the_server_runs() {
    let scratch = Scratch::with_files();
    let key = write(&scratch, "key", "1-1-1-1\n");
    let (mut server, url) = serve(&scratch, "127.0.0.1:0", &[&key]);
    let url = url.trim_end_matches('/').to_owned();
    assert_eq!(outcome(&scratch, &url), "no-cookie");
    assert_eq!(outcome(&scratch, &url), "used");
    write(&scratch, "key", "2-2-2-2,1-1-1-1\n");
    assert_eq!(server.announced_next("source"), key);
    assert_eq!(outcome(&scratch, &url), "used", "the backup key is good still");
    std::fs::remove_file(&key).expect("removed");
    assert!(!server.announced_next("reason").is_empty());
    assert_eq!(outcome(&scratch, &url), "used", "keys that cannot be read stay in force");
    write(&scratch, "key", "3-3-3-3\n");
    assert_eq!(server.announced_next("source"), key);
    assert_eq!(outcome(&scratch, &url), "refused", "the old keys are gone");
    server.stop();
}

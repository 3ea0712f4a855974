//! `brisk serve` over a TUN, with the kernel's TCP and curl as clients.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use socket2::SockRef;

use crate::namespace::Namespace;
use crate::pages::{Pages, assert_same, fetches};
use crate::process::{Ended, Process, run, text};
use crate::scale::Scale;

/// The addresses of the stack, in each family.
const STACK: [&str; 2] = ["10.7.0.2", "[fd07::2]"];

/// Starts `brisk serve` in `namespace`, reachable at [`STACK`] on port 80.
pub(crate) fn serve(namespace: &Namespace, pages: &Pages) -> Process {
    serve_with(namespace, pages, &[])
}

fn serve_with(namespace: &Namespace, pages: &Pages, more: &[&str]) -> Process {
    let words = ["serve", pages.directory(), "--device", "tun:brisk1", "--addr", "10.7.0.2/24,fd07::2/64"];
    let server = Process::start("brisk serve", namespace.brisk(&words).args(more));
    server.until_it_says("url=http://[fd07::2]:80/");
    server
}

fn stage() -> (Namespace, Pages, Process) {
    let (namespace, pages) = (Namespace::new(), Pages::new());
    let server = serve(&namespace, &pages);
    (namespace, pages, server)
}

fn connect(namespace: &Namespace, host: &str, port: u16) -> std::io::Result<TcpStream> {
    let address: SocketAddr = format!("{host}:{port}").parse().expect("an address");
    let stream = namespace.inside(|| TcpStream::connect_timeout(&address, Duration::from_secs(10)))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    Ok(stream)
}

#[test]
fn curl_gets_small_and_large_files_unchanged() {
    require!("curl");
    let (namespace, pages, server) = stage();
    let bulk = pages.write("bulk", Scale::chosen().clean_bulk);
    for host in STACK {
        for file in [&pages.path("small"), &bulk] {
            let name = file.file_name().expect("a name").display();
            let url = format!("http://{host}/{name}");
            fetches(namespace.command("curl").args(["-sSfg", "-m", Scale::chosen().patience, &url]), file, 1);
        }
    }
    let ended = server.stop();
    assert_eq!(ended.status, Some(0), "{}", ended.said);
}

#[test]
fn head_has_the_length_and_no_body() {
    require!("curl");
    let (namespace, _pages, _server) = stage();
    for host in STACK {
        let head =
            run(namespace.command("curl").args(["-sSfgI", "-m", "20", &format!("http://{host}/small")]));
        let head = text(&head.stdout).to_lowercase();
        assert!(head.starts_with("http/1.1 200") && head.contains("content-length: 700\r\n"), "{head}");
    }
}

/// Returns a `curl` command that fetches `url` this many times; copy `i` goes to the path from `to`.
pub(crate) fn curl_many(
    namespace: &Namespace,
    words: &[&str],
    url: &str,
    times: u32,
    to: impl Fn(u32) -> PathBuf,
) -> String {
    let mut curl = namespace.command("curl");
    curl.args(["-sSfg", "-m", Scale::chosen().patience]).args(words);
    for i in 0..times {
        curl.arg("-o").arg(to(i)).arg(url);
    }
    text(&run(&mut curl).stdout)
}

#[test]
fn one_connection_carries_many_requests() {
    require!("curl");
    let (namespace, _pages, _server) = stage();
    for host in STACK {
        let url = format!("http://{host}/small");
        let connects = curl_many(&namespace, &["-w", "%{num_connects}"], &url, 20, |_| "/dev/null".into());
        assert_eq!(connects, format!("1{}", "0".repeat(19)));
    }
}

#[test]
fn fifty_clients_at_once_each_get_their_file() {
    require!("curl");
    let (namespace, pages, server) = stage();
    let ended = fifty_at_once(&namespace, &pages, server);
    assert_eq!(ended.status, Some(0), "{}", ended.said);
}

/// Runs fifty clients at once over each family; then stops the server.
fn fifty_at_once(namespace: &Namespace, pages: &Pages, server: Process) -> Ended {
    let page = pages.write("page", 300_000);
    for host in STACK {
        let url = format!("http://{host}/page");
        let together = ["-Z", "--parallel-max", "50", "--parallel-immediate", "-H", "Connection: close"];
        curl_many(namespace, &together, &url, 50, |i| pages.path(&format!("copy{i}")));
        (0..50).for_each(|i| assert_same(&pages.path(&format!("copy{i}")), &page));
    }
    let ended = server.stop();
    assert_eq!(ended.said.lines().filter(|line| line.contains("path=/page status=200")).count(), 100);
    ended
}

#[test]
fn a_stack_on_each_of_several_cores_serves_the_same_pages() {
    require!("curl");
    for cores in ["1", "2", "3"] {
        let (namespace, pages) = (Namespace::new(), Pages::new());
        let server = serve_with(&namespace, &pages, &["--cores", cores]);
        let ended = fifty_at_once(&namespace, &pages, server);
        assert_eq!(ended.status, Some(0), "{}", ended.said);
        assert!(ended.said.contains(&format!("cores={cores}")), "{}", ended.said);
    }
}

#[test]
fn device_with_one_queue_serves_one_core_and_refuses_more() {
    require!("curl");
    let (namespace, pages) = (Namespace::new(), Pages::new());
    namespace.ip(&["tuntap", "add", "dev", "brisk1", "mode", "tun"]);
    let server = serve(&namespace, &pages);
    let url = format!("http://{}/small", STACK[0]);
    fetches(namespace.command("curl").args(["-sSfg", "-m", "20", &url]), &pages.path("small"), 1);
    assert!(server.stop().said.contains("cores=1"));
    let words =
        ["serve", pages.directory(), "--device", "tun:brisk1", "--addr", "10.7.0.2/24", "--cores", "2"];
    let ended = Process::start("brisk serve", &mut namespace.brisk(&words)).ended();
    assert_eq!(ended.status, Some(1), "{}", ended.said);
    assert!(ended.said.contains("multi_queue"), "{}", ended.said);
}

#[test]
fn a_second_server_does_not_take_the_device_of_the_first() {
    require!("curl");
    let (namespace, pages) = (Namespace::new(), Pages::new());
    let server = serve_with(&namespace, &pages, &["--cores", "2"]);
    let words =
        ["serve", pages.directory(), "--device", "tun:brisk1", "--addr", "10.7.0.3/24", "--cores", "2"];
    let ended = Process::start("a second brisk serve", &mut namespace.brisk(&words)).ended();
    assert_eq!(ended.status, Some(1), "{}", ended.said);
    assert!(ended.said.contains("another process holds this device"), "{}", ended.said);
    let url = format!("http://{}/small", STACK[0]);
    fetches(namespace.command("curl").args(["-sSfg", "-m", "20", &url]), &pages.path("small"), 1);
    assert_eq!(server.stop().status, Some(0));
}

#[test]
fn consecutive_connections_leave_no_state() {
    require!();
    let (namespace, _pages, server) = stage();
    for i in 0..Scale::chosen().sequential {
        let host = STACK[i as usize % STACK.len()];
        let mut stream = connect(&namespace, host, 80).expect("the stack accepts");
        stream.write_all(b"GET /small HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("it is sent");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an answer");
        assert!(
            answer.starts_with(b"HTTP/1.1 200") && answer.len() > 700,
            "connection {i}: {}",
            text(&answer)
        );
    }
    let ended = server.stop();
    assert_eq!(ended.status, Some(0), "{}", ended.said);
}

#[test]
fn client_that_has_closed_its_side_gets_the_whole_answer() {
    require!();
    let (namespace, pages, _server) = stage();
    let page = pages.write("page", 1_000_000);
    for host in STACK {
        let mut stream = connect(&namespace, host, 80).expect("the stack accepts");
        stream.write_all(b"GET /page HTTP/1.1\r\nHost: x\r\n\r\n").expect("it is sent");
        stream.shutdown(Shutdown::Write).expect("half closed");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an answer, and the end of the stream");
        let body = answer.windows(4).position(|four| four == b"\r\n\r\n").map(|at| &answer[at + 4..]);
        assert!(body == std::fs::read(&page).ok().as_deref(), "{} bytes", answer.len());
    }
}

#[test]
fn port_without_listener_refuses() {
    require!();
    let (namespace, _pages, _server) = stage();
    for host in STACK {
        let error = connect(&namespace, host, 81).expect_err("nobody listens");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
    }
}

#[test]
fn resets_in_mid_transfer_do_not_affect_other_clients() {
    require!("curl");
    let (namespace, pages, _server) = stage();
    let bulk = pages.write("bulk", 3_000_000);
    for host in STACK {
        for _ in 0..20 {
            let mut stream = connect(&namespace, host, 80).expect("the stack accepts");
            stream.write_all(b"GET /bulk HTTP/1.1\r\nHost: x\r\n\r\n").expect("it is sent");
            stream.read_exact(&mut [0; 1000]).expect("the answer begins");
            SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("the next close is a reset");
        }
        let url = format!("http://{host}/bulk");
        fetches(namespace.command("curl").args(["-sSfg", "-m", "60", &url]), &bulk, 1);
    }
}

#[test]
fn removed_device_ends_the_program_with_a_reason() {
    require!();
    let (namespace, _pages, server) = stage();
    namespace.ip(&["link", "delete", "brisk1"]);
    let ended = server.ended();
    assert_eq!(ended.status, Some(1), "{}", ended.said);
    assert!(ended.said.contains("brisk: the device failed or was deleted"), "{}", ended.said);
}

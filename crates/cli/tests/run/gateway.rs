//! `frontend` and `backend` over TCP in UDP on loopback: no privileges.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};

use crate::program::{Running, run, text};

/// An origin that sends back what it gets, connection after connection.
fn echo() -> SocketAddr {
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

fn through(address: &str, request: Vec<u8>) -> Vec<u8> {
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
fn a_pair_over_udp_carries_any_bytes_and_stops_when_told() {
    let origin = echo().to_string();
    let mut backend = Running::start(&["backend", "--listen", "127.0.0.1:0", "--to", &origin]);
    let peer = backend.announced("listen");
    let mut frontend = Running::start(&["frontend", "--listen", "127.0.0.1:0", "--peer", &peer]);
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
fn a_frontend_without_its_backend_resets_the_client_and_says_why() {
    let words =
        ["frontend", "--listen", "127.0.0.1:0", "--peer", "127.0.0.1:9", "--connect-timeout", "300ms"];
    let mut frontend = Running::start(&words);
    let address = frontend.announced("listen");
    let mut client = TcpStream::connect(address).expect("the frontend accepts");
    client.write_all(b"hello").expect("it is written");
    let error = client.read(&mut [0; 8]).expect_err("a reset");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    let (status, log) = frontend.stop();
    assert_eq!(status, Some(0));
    assert!(log.contains("reason=\"peer gateway unreachable: no answer within 300ms\""), "{log}");
}

#[test]
fn others_than_this_host_need_the_insecure_flag() {
    for words in [
        &["backend", "--listen", ":7443", "--to", "127.0.0.1:80"][..],
        &["frontend", "--listen", ":8080", "--peer", "127.0.0.1:7443"][..],
        &["frontend", "--listen", "127.0.0.1:0", "--peer", "192.0.2.1:7443"][..],
    ] {
        let refused = run(words);
        let message = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{message}");
        assert!(message.contains("--insecure") && message.lines().count() == 1, "{message}");
    }
}

//! Corrective with peers that do not support it: nginx and curl over the kernel's TCP. Except for the option
//! on the SYN, our packets are those of plain TCP.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use brisk_runtime::profile::Profile;
use brisk_runtime::{Endpoint, TcpSocket};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::capture::{Capture, assert_sound, tshark};
use crate::get;
use crate::namespace::Namespace;
use crate::nginx;
use crate::pages::Pages;
use crate::process::text;

/// One write that takes several flights.
const BODY: usize = 40_000;
/// The option's kind (RFC 4727), and the other experimental kind.
const EXPERIMENTAL: [&str; 2] = ["254", "253"];
/// The stack's address; the kernel has 10.8.0.1.
const STACK: &str = "10.8.0.2";

/// A segment with payload, without values that depend on time: acknowledgement, window, time stamps and PSH.
type Segment = Vec<String>;

/// Packets that were sent in one connection.
#[derive(PartialEq, Eq, Debug)]
struct Sent {
    /// Options of our SYN or SYN-ACK, by kind.
    syn: BTreeSet<String>,
    /// Our segments with payload: relative sequence number, length, flags, header length, kinds of the
    /// options, payload. A retransmission counts once.
    data: BTreeSet<Segment>,
}

#[test]
fn nginx_receives_the_segments_of_plain_tcp() {
    require!("nginx", "dumpcap", "tshark");
    let (namespace, pages) = (Namespace::new(), Pages::new());
    let page = std::fs::read(pages.write("page", BODY as u64)).expect("the page");
    let _nginx = nginx::serve(&namespace, &pages);
    let fetch = async |endpoint: Endpoint| {
        let address: SocketAddr = "10.8.0.1:80".parse().expect("an address");
        let mut stream = endpoint.connect(address).await.expect("nginx accepts");
        // The request takes several segments, and nginx must obey a header at its end.
        let request = format!("GET /page HTTP/1.1\r\nHost: x\r\n{}Connection: close\r\n\r\n", long_header());
        stream.write_all(request.as_bytes()).await.expect("it is sent");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.expect("the answer and its end");
        assert!(answer.ends_with(&page), "{} bytes", answer.len());
    };
    let [plain, corrective] = ["tcp", "corrective"].map(|arm| recorded(&namespace, &pages, arm, fetch));
    assert_differs_by_the_offer(&plain, &corrective);
}

#[test]
fn curl_receives_the_segments_of_plain_tcp() {
    require!("curl", "dumpcap", "tshark");
    let (namespace, pages) = (Namespace::new(), Pages::new());
    let page = std::fs::read(pages.write("page", BODY as u64)).expect("the page");
    let serve = async |endpoint: Endpoint| {
        let mut socket = TcpSocket::new(&endpoint);
        socket.bind(format!("{STACK}:80").parse().expect("an address"));
        let listener = socket.listen(8).expect("the port is free");
        let mut curl = namespace.command("curl");
        curl.args(["-sSfg", "-m", "50", &format!("http://{STACK}/page")]).stdout(Stdio::piped());
        let curl = std::thread::spawn(move || curl.output().expect("curl starts"));
        let (mut stream, _) = listener.accept().await.expect("curl connects");
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(stream.read_u8().await.expect("the request goes on"));
        }
        let mut answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {BODY}\r\n\r\n").into_bytes();
        answer.extend(&page);
        stream.write_all(&answer).await.expect("it is sent");
        stream.shutdown().await.expect("half closed");
        assert_eq!(stream.read(&mut [0; 16]).await.expect("curl closes too"), 0);
        let got = curl.join().expect("curl ends");
        assert!(got.status.success() && got.stdout == page, "{}", text(&got.stderr));
    };
    let [plain, corrective] = ["tcp", "corrective"].map(|arm| recorded(&namespace, &pages, arm, serve));
    assert!(plain.data.len() > BODY / 1460, "{} segments", plain.data.len());
    assert_eq!(plain, corrective, "curl's kernel does not offer Corrective and gets none");
}

/// Returns header lines of 6,000 bytes.
fn long_header() -> String {
    (0..6).map(|line| format!("X-Filling-{line}: {}\r\n", "x".repeat(980))).collect()
}

/// Runs `body` with the TCP of `arm`, and returns the packets of our stack. Checks that the other end used
/// only options that it supports.
fn recorded(namespace: &Namespace, pages: &Pages, arm: &str, body: impl AsyncFnOnce(Endpoint)) -> Sent {
    let mut file = PathBuf::new();
    let tcp = Profile::parse(arm).expect("an arm").tcp;
    get::with_endpoint_of(namespace, tcp, false, async |endpoint| {
        let capture = Capture::start(namespace, "brisk1", pages.path(arm));
        // This is the last handle: the device is removed with it, and the capture ends with the device.
        body(endpoint.clone()).await;
        file = capture.stop(1);
    });
    assert_sound(&file);
    for kind in EXPERIMENTAL {
        let after = format!("tcp.flags.syn == 0 && tcp.option_kind == {kind}");
        assert_eq!(tshark(&file, &after, &["frame.number"]), Vec::<String>::new(), "{arm}: {after}");
    }
    Sent { syn: syn_options(&file), data: data(&file) }
}

fn syn_options(file: &Path) -> BTreeSet<String> {
    let syns = tshark(file, &format!("ip.src == {STACK} && tcp.flags.syn == 1"), &["tcp.option_kind"]);
    let [syn, ..] = syns.as_slice() else { panic!("no SYN of ours in {}", file.display()) };
    syn.split(',').map(str::to_owned).collect()
}

fn data(file: &Path) -> BTreeSet<Segment> {
    let fields = ["tcp.seq", "tcp.len", "tcp.hdr_len", "tcp.option_kind", "tcp.payload"];
    let flags = "tcp.flags.syn == 0 && tcp.flags.reset == 0 && tcp.flags.urg == 0";
    let all = tshark(file, &format!("ip.src == {STACK} && tcp.len > 0"), &fields);
    let usual = tshark(file, &format!("ip.src == {STACK} && tcp.len > 0 && {flags}"), &fields);
    assert_eq!(all, usual, "segments of data have no other flag");
    all.iter().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

fn assert_differs_by_the_offer(plain: &Sent, corrective: &Sent) {
    let offered: Vec<&String> = corrective.syn.difference(&plain.syn).collect();
    assert_eq!(offered, [EXPERIMENTAL[0]], "the offer");
    assert!(plain.syn.is_subset(&corrective.syn), "{:?} {:?}", plain.syn, corrective.syn);
    assert!(plain.data.len() > 2, "{:?}", plain.data.len());
    assert_eq!(plain.data, corrective.data);
}

//! The seeds of the corpora: a few inputs per target that pass its first checks.
//!
//! `cargo run --example write_seeds` writes them to `corpus/`, where `cargo fuzz` finds them; a test checks
//! that both are equal.

use brisk_wire::{
    ChecksumFill, Cookie, FastOpen, Flags, IcmpKind, IpMeta, SackBlock, SeqNum, TcpHeader, Timestamps, emit,
    emit_icmp,
};

/// Returns the seeds of a target: name and content.
pub fn of(target: &str) -> Vec<(String, Vec<u8>)> {
    let named = |seeds: Vec<(&str, Vec<u8>)>| {
        seeds.into_iter().map(|(name, bytes)| (name.to_string(), bytes)).collect()
    };
    match target {
        "segment" => named(segment()),
        "options" => named(options()),
        "link" => link(),
        "script" => script(),
        "parity" => named(parity()),
        "capture" => named(capture()),
        "handshake" => named(handshake()),
        "proxy" => named(proxy()),
        "client_hello" => named(client_hello()),
        "settings" => named(settings()),
        "connection" => named(connection()),
        "controller" => named(controller()),
        "pair" => named(pair()),
        _ => Vec::new(),
    }
}

fn packet(v6: bool, tcp: &TcpHeader, payload: &[u8]) -> Vec<u8> {
    let ip = match v6 {
        false => IpMeta::new([192, 0, 2, 1].into(), [198, 51, 100, 9].into()),
        true => IpMeta::new([0x20; 16].into(), [0x2f; 16].into()),
    };
    let mut out = Vec::new();
    emit(&ip, tcp, &[payload], ChecksumFill::Full, &mut out).expect("a small packet");
    out
}

fn syn() -> TcpHeader {
    let mut tcp = TcpHeader { src_port: 5000, dst_port: 80, flags: Flags::SYN, ..TcpHeader::default() };
    tcp.options.mss = Some(1460);
    tcp.options.window_scale = Some(7);
    tcp.options.sack_permitted = true;
    tcp.options.timestamps = Some(Timestamps { value: 7, echo: 0 });
    tcp
}

/// A handshake, a request, and a response of two segments of which the first is retransmitted.
fn capture() -> Vec<(&'static str, Vec<u8>)> {
    let client = |seq: u32, ack: u32, flags| TcpHeader { seq: SeqNum(seq), ack: SeqNum(ack), flags, ..syn() };
    let server =
        |seq: u32, ack: u32, flags| TcpHeader { src_port: 80, dst_port: 5000, ..client(seq, ack, flags) };
    let back = |tcp: &TcpHeader, payload: &[u8]| {
        let ip = IpMeta::new([198, 51, 100, 9].into(), [192, 0, 2, 1].into());
        let mut out = Vec::new();
        emit(&ip, tcp, &[payload], ChecksumFill::Full, &mut out).expect("a small packet");
        out
    };
    let packets = [
        packet(false, &client(10, 0, Flags::SYN), b""),
        back(&server(90, 11, Flags::SYN | Flags::ACK), b""),
        packet(false, &client(11, 91, Flags::ACK), b"GET /"),
        back(&server(91, 16, Flags::ACK), b"hundred"),
        back(&server(98, 16, Flags::ACK), b"bytes"),
        back(&server(91, 16, Flags::ACK), b"hundred"),
        packet(false, &client(16, 103, Flags::ACK), b""),
    ];
    let words = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
    // Formats: draft-ietf-opsawg-pcap and -pcapng; raw IP is link type 101.
    let mut old = words(&[0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 101]);
    let mut new = words(&[0x0a0d_0d0a, 28, 0x1a2b_3c4d, 1, u32::MAX, u32::MAX, 28, 1, 20, 101, 0, 20]);
    for (number, packet) in packets.iter().enumerate() {
        let (at, len) = (number as u32 * 20_000, packet.len() as u32);
        old.extend(words(&[1_700_000_000, at, len, len]));
        old.extend(packet);
        let block = 32 + len.next_multiple_of(4);
        new.extend(words(&[6, block, 0, 0, at, len, len]));
        new.extend(packet);
        new.resize(new.len().next_multiple_of(4), 0);
        new.extend(words(&[block]));
    }
    let cut = old[..old.len() - 30].to_vec();
    // Process information of 8 bytes; a block has at least 12.
    let too_short = [new.clone(), words(&[0x8000_0001, 8, 0, 8])].concat();
    vec![("pcap", old), ("pcapng", new), ("cut", cut), ("too-short", too_short)]
}

fn segment() -> Vec<(&'static str, Vec<u8>)> {
    let data = TcpHeader { flags: Flags::ACK | Flags::PSH, ..syn() };
    let mut error = Vec::new();
    emit_icmp([203, 0, 113, 1].into(), &packet(false, &syn(), b""), IcmpKind::TimeExceeded, &mut error);
    // A destination option header of 8 bytes before the TCP header.
    let mut extended = packet(true, &data, b"abc");
    extended[5] += 8;
    extended[6] = 60;
    extended.splice(40..40, [6, 0, 1, 4, 0, 0, 0, 0]);
    let mut fragment = packet(false, &data, b"abc");
    fragment[6] = 0x20;
    [
        ("syn", 0, packet(false, &syn(), b"")),
        ("data", 2, packet(false, &data, b"sixteen bytes...")),
        ("data-v6", 1, packet(true, &data, b"ab")),
        ("extended-v6", 3, extended),
        ("icmp", 0, error),
        ("fragment", 0, fragment),
    ]
    .map(|(name, size, packet)| (name, [&[size][..], &packet].concat()))
    .into()
}

fn options() -> Vec<(&'static str, Vec<u8>)> {
    let area = |syn: bool, change: fn(&mut brisk_wire::Options)| {
        let mut options = brisk_wire::Options::default();
        change(&mut options);
        let mut out = brisk_wire::ArrayVec::new();
        options.emit(syn, &mut out);
        [&[u8::from(syn)][..], &out].concat()
    };
    vec![
        ("syn", area(true, |options| *options = syn().options)),
        (
            "fast-open",
            area(true, |options| {
                let cookie = Cookie::new(&[7; 8]).expect("a legal length");
                options.fast_open = Some(FastOpen { cookie, experimental: true });
            }),
        ),
        (
            "sack",
            area(false, |options| {
                options.timestamps = Some(Timestamps { value: 1, echo: 2 });
                options.sack.push(SackBlock { start: SeqNum(9), end: SeqNum(12) });
                options.sack.push(SackBlock { start: SeqNum(1), end: SeqNum(5) });
            }),
        ),
        (
            "gentle",
            area(false, |options| {
                options.gentle = Some(brisk_wire::Gentle::EncF1 { flags: 0x10, enc_len: 1448 });
            }),
        ),
        (
            "parities",
            area(false, |options| {
                options.gentle = Some(brisk_wire::Gentle::EncRs {
                    flags: 0x10,
                    enc_len: 3000,
                    start_off: 1000,
                    crc32c: 0xa40b_2119,
                    parity: 1,
                    parities: 3,
                });
            }),
        ),
        ("broken", vec![0, 8, 10, 1, 2, 5, 3, 0, 254, 1, 2, 0, 34]),
        ("other-profile", vec![2, 0xab, 0xcd, 99, 99, 6, 0xab, 0xcd, 0x80, 1]),
    ]
}

/// Decisions for [`crate::parity::run`]: code, first number, rule; then steps.
fn parity() -> Vec<(&'static str, Vec<u8>)> {
    let arrive = |from: u16, len: u8| [&[1, 0][..], &from.to_le_bytes(), &[len - 1]].concat();
    // A group of `len` bytes from `from` in blocks of 100, its `part`, of `rows` parities number `row`.
    let sent = |from: u16, len: u16, rest: &[u8]| {
        [&[1, 2][..], &from.to_le_bytes(), &[99], &(len - 1).to_le_bytes(), rest].concat()
    };
    vec![
        (
            "xor",
            [&[0, 0, 0][..], &arrive(0, 100), &arrive(200, 100), &sent(0, 300, &[0, 0, 0, 1, 1])].concat(),
        ),
        (
            "interleaved",
            [
                &[1, 2, 0][..],
                &arrive(0, 100),
                &arrive(300, 100),
                &sent(0, 400, &[0, 0, 0, 1, 1]),
                &sent(0, 400, &[1, 0, 0, 1, 1]),
            ]
            .concat(),
        ),
        (
            "reed-solomon",
            [
                &[2, 0, 0][..],
                &arrive(0, 200),
                &sent(0, 400, &[0, 1, 0, 0, 1, 1]),
                &sent(0, 400, &[0, 1, 1, 0, 1, 1]),
            ]
            .concat(),
        ),
        ("rewritten", [&[0, 0, 0][..], &arrive(0, 100), &sent(0, 200, &[0, 0, 0, 0, 1, 0, 0, 7])].concat()),
    ]
}

/// Decisions for [`crate::handshake::run`]: the target, then changes: kind, place, value.
fn handshake() -> Vec<(&'static str, Vec<u8>)> {
    let opening =
        [&[6, 0x10][..], &[0; 14], &[4, 192, 0, 2, 1, 0, 80, 198, 51, 100, 9, 1, 187], b"\x03a:1GET /"];
    vec![
        ("one-key-bit", vec![0, 0, 0, 40, 3]),
        ("one-key-cut", vec![0, 2, 0, 47]),
        ("one-key-unchanged", vec![0]),
        ("pairs-bit", vec![1, 0, 0, 70, 3]),
        ("pairs-longer", vec![1, 4, 0, 0, 7, 7, 7]),
        ("pairs-unchanged", vec![1]),
        ("guessed", [&[2][..], &[0x5a; 64]].concat()),
        ("guessed-for-pairs", [&[3][..], &[0x5a; 112]].concat()),
        ("answer-bit", vec![4, 0, 0, 33, 1]),
        ("answer-unchanged", vec![4]),
        ("record-byte", vec![5, 1, 0, 9, 0]),
        ("record-unchanged", vec![5]),
        ("opening", opening.concat()),
        ("lasting-bit", vec![8, 0, 0, 20, 3]),
        ("lasting-public-key", vec![8, 0, 0, 55, 7]),
        ("lasting-unchanged", vec![8]),
        ("guessed-for-lasting", [&[9][..], &[0x5a; 90]].concat()),
        ("lasting-answer-bit", vec![10, 0, 0, 55, 7]),
        ("lasting-answer-unchanged", vec![10]),
        ("lasting-record-byte", vec![11, 1, 0, 9, 0]),
    ]
}

/// A client hello with a name, whole and in small records, and one without.
fn client_hello() -> Vec<(&'static str, Vec<u8>)> {
    let sized = |bytes: &[u8]| [&[0, bytes.len() as u8][..], bytes].concat();
    let hello = |extensions: &[u8], fragment: usize| {
        let body = [&[3, 3][..], &[7; 32], &[0, 0, 2, 0x13, 1, 1, 0], &sized(extensions)].concat();
        let message = [&[1, 0][..], &sized(&body)].concat();
        message.chunks(fragment).flat_map(|part| [&[22, 3, 1][..], &sized(part)].concat()).collect()
    };
    let name = [&[0, 0][..], &sized(&sized(&[&[0][..], &sized(b"shop.example")].concat()))].concat();
    let named = [&[0, 43, 0, 3, 2, 3, 4][..], &name].concat();
    vec![
        ("named", hello(&named, 255)),
        ("fragments", hello(&named, 9)),
        ("nameless", hello(&[0, 43, 0, 3, 2, 3, 4], 255)),
    ]
}

/// Both versions with and without addresses, in both families, and one that is followed by another family.
fn proxy() -> Vec<(&'static str, Vec<u8>)> {
    use brisk_gateway::hop::opening::ClientAddresses;
    use brisk_gateway::proxy::{ProxyVersion, header};
    let pair = |source: &str, destination: &str| {
        let address = |text: &str| text.parse().expect("an address");
        Some(ClientAddresses { source: address(source), destination: address(destination) })
    };
    let v4 = pair("192.0.2.1:5000", "198.51.100.9:80");
    let v6 = pair("[2001:db8::1]:5000", "[2001:db8::9]:443");
    let local = b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00GET / HTTP/1.1\r\n".to_vec();
    vec![
        ("v1-v4", header(ProxyVersion::V1, v4)),
        ("v1-v6", header(ProxyVersion::V1, v6)),
        ("v1-unknown", header(ProxyVersion::V1, None)),
        ("v2-v4", header(ProxyVersion::V2, v4)),
        ("v2-v6", header(ProxyVersion::V2, v6)),
        ("v2-local", local),
    ]
}

/// A configuration with each kind of value; the test of the corpora adds the packaged examples.
fn settings() -> Vec<(&'static str, Vec<u8>)> {
    let every_kind = "[frontend]\nlisten = ':80'\nfirst_bytes_wait = '5ms'\nproxy_from = ['10.0.0.0/8', '2001:db8::/32']\n\
        socks5 = true\nfallback = 'none'\nsend_proxy = 'v1'\n[backend]\nto = 'origin.example:80'\n\
        allow = ['*.example:443']\nreplay_tolerance = '10s'\n[[backends]]\npeer = '[2001:db8::1]:7443'\nweight = 3\n\
        [hop]\nplain = true\ndevice = 'udp:0.0.0.0:0'\nmtu = 1400\n[limits]\nthreads = 2\n[admin]\nlisten = '127.0.0.1:1'\n";
    vec![("every-kind", every_kind.as_bytes().to_vec())]
}

fn link() -> Vec<(String, Vec<u8>)> {
    [
        "--rtt 100ms --rate 20mbit/4mbit --queue 128kB --loss 2%",
        "--delay down:10ms --jitter 3ms --reorder 1%,5ms --duplicate 0.1%",
        "--loss after:1%,50%+list:3,7-9+outage:2s..4s,every=15s --seed 7",
        "--loss down:ge:p=1%,r=50%,h=0%,k=100% --mtu 1400,silent",
        "--rate \"trace:1 2 2 5\" --ecn-mark 20p --loss up:trace:0110",
        "--middlebox strip-option:34+split --middlebox down:coalesce",
        "--rtt=1us --rate 1bit --queue 1p",
    ]
    .iter()
    .enumerate()
    .map(|(number, text)| (format!("{number}"), text.as_bytes().to_vec()))
    .collect()
}

fn script() -> Vec<(String, Vec<u8>)> {
    let accepted = "0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3\n+0 bind(3, ..., ...) = 0\n+0 listen(3, 1) = 0\n\
        +0 < S 0:0(0) win 65535 <mss 1460,sackOK,TS val 1 ecr 0,nop,wscale 7>\n+0 > S. 0:0(0) ack 1 <...>\n\
        +.1 < . 1:1(0) ack 1 win 257 <nop,nop,TS val 2 ecr 1>\n+0 accept(3, ..., ...) = 4\n";
    let connected = "--set timestamps=off\n--tolerance_usecs=1000\n0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3\n\
        +0...0.05 connect(3, ..., ...) = 0\n+0 > S 0:0(0) <...>\n+.05 < S. 0:0(0) ack 1 win 5000 <mss 1000,sackOK>\n\
        +0 > . 1:1(0) ack 1\n";
    let of = |name: &str, text: &[&str]| (name.to_string(), text.concat().into_bytes());
    vec![
        of("server", &[accepted, "+.01 write(4, ..., 3000) = 3000\n+0 > P. 1:1449(1448) ack 1\n"]),
        of("urgent", &[accepted, "+0 < PU. 1:11(10) ack 1 win 257 urg 5\n+0 read(4, ..., 100) = 4\n"]),
        of("client", &[connected, "+0 write(3, ..., 10) = 10\n+0 > P. 1:11(10) ack 1\n+.2 close(3) = 0\n"]),
        of("losses", &[connected, "+0 < . 1:1(0) ack 1 win 5000 <nop,nop,sack 1001:2001 3001:4001>\n"]),
        of(
            "icmp",
            &[connected, "+0 < icmp unreachable frag_needed mtu 600 [1:1001(1000)]\n+1 %{ assert True }%\n"],
        ),
    ]
}

/// Decisions that are all the first choice.
const STACK: [u8; 13] = [0; 13];
const TCP: [u8; 13] = [0; 13];
/// Super-segments of 256 kB, with an initial window and buffers that permit more than 64 kB.
const LONG_STACK: [u8; 13] = [0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const LARGE_TCP: [u8; 13] = [0, 0, 2, 0, 4, 4, 0, 0, 0, 0, 0, 0, 0];

/// Steps of the target `connection`, by its numbers.
mod step {
    /// Connects to port 80 of a host, with two pieces of data.
    pub(super) fn connect(tcp: [u8; 13], fast_open: u8) -> Vec<u8> {
        [&[0][..], &tcp, &[fast_open, 4, 0], &[b'x'; 20]].concat()
    }
    /// Listens at port 80.
    pub(super) fn listen(tcp: [u8; 13], fast_open: u8) -> Vec<u8> {
        [&[1][..], &tcp, &[0, 0, 0, fast_open, 0, 0]].concat()
    }
    /// Accepts all waiting connections.
    pub(super) const ACCEPT: [u8; 1] = [2];
    /// Writes 4000 bytes.
    pub(super) const WRITE: [u8; 5] = [3, 0, 0x0f, 0xa0, 0];
    /// Writes 65,535 bytes.
    pub(super) const FILL: [u8; 5] = [3, 0, 0xff, 0xff, 0];
    /// Reads up to 4096 bytes.
    pub(super) const READ: [u8; 6] = [4, 0, 0, 0x10, 0, 0];
    /// Shuts down writing.
    pub(super) const SHUTDOWN: [u8; 3] = [5, 0, 0];
    /// Releases the handle.
    pub(super) const RELEASE: [u8; 3] = [5, 0, 6];
    /// Waits 200 ms.
    pub(super) const PAUSE: [u8; 2] = [7, 200];
    /// Waits 61 s.
    pub(super) const LONG_PAUSE: [u8; 2] = [8, 2];
    /// Adds a flow of the attacker to port 80.
    pub(super) const FLOW: [u8; 5] = [10, 0, 0, 0, 0];
    /// Adds another flow.
    pub(super) const FLOW_AGAIN: [u8; 5] = [10, 0, 0, 1, 0];
    /// Forges a SYN (0) or SYN-ACK (1).
    pub(super) const fn handshake(flags: u8) -> [u8; 15] {
        [11, 0, 10, flags, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    }
    /// Like `handshake` with a Fast Open option and data: a request (3), or the issued cookie (0).
    pub(super) const fn fast_open(flags: u8, option: u8) -> [u8; 16] {
        [11, 0, 10, flags, 0, 0, 0, 0, 0, 0, 1, option, 0, 3, 0, 0]
    }
    /// Forges an acknowledgement of everything, without data.
    pub(super) const ACK: [u8; 10] = [11, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    /// Like `ACK` with 1448 bytes.
    pub(super) const DATA: [u8; 11] = [11, 0, 0, 0, 4, 0, 0, 0, 9, 0, 0];
    /// Like `ACK` with a FIN.
    pub(super) const FIN: [u8; 10] = [11, 0, 0, 0, 0, 0, 63, 0, 0, 0];
    /// Forges a SACK block that leaves out the beginning.
    pub(super) const SACK: [u8; 13] = [11, 0, 3, 0, 7, 2, 0, 128, 0, 7, 0, 0, 0];
}

fn connection() -> Vec<(&'static str, Vec<u8>)> {
    use step::{ACCEPT, ACK, DATA, FILL, FIN, FLOW, LONG_PAUSE, PAUSE, READ, RELEASE, SACK, SHUTDOWN, WRITE};
    // A stack, the clock.
    let run_on = |stack: [u8; 13], steps: &[&[u8]]| [&stack[..], &[0], &steps.concat()].concat();
    let run = |steps: &[&[u8]]| run_on(STACK, steps);
    let bare = {
        let mut tcp = TCP;
        tcp[0] = 0x4f;
        tcp
    };
    let opened = [step::connect(TCP, 0), step::handshake(1).to_vec()].concat();
    let long_opened = [step::connect(LARGE_TCP, 0), step::handshake(1).to_vec()].concat();
    let bare_opened = [step::connect(bare, 0), step::handshake(1).to_vec()].concat();
    let accepted = [&step::listen(TCP, 0)[..], &FLOW, &step::handshake(0), &ACK, &ACCEPT].concat();
    let fast_accepted = [
        &step::listen(TCP, 1)[..],
        &FLOW,
        &step::fast_open(0, 3),
        &step::FLOW_AGAIN,
        &step::fast_open(0, 0),
        &ACCEPT,
    ]
    .concat();
    let fast_opened = [
        &step::connect(TCP, 1)[..],
        &step::fast_open(1, 4),
        &[2, 0],
        &step::connect(TCP, 1),
        &step::fast_open(1, 0),
    ]
    .concat();
    vec![
        ("fast-open-server", run(&[&fast_accepted, &READ, &WRITE, &ACK, &FIN, &RELEASE])),
        ("fast-open-client", run(&[&fast_opened, &DATA, &READ, &SHUTDOWN, &ACK, &FIN])),
        ("active", run(&[&opened, &WRITE, &ACK, &DATA, &READ, &SHUTDOWN, &ACK, &FIN, &LONG_PAUSE])),
        ("bare", run(&[&bare_opened, &WRITE, &PAUSE, &ACK, &DATA, &READ, &FIN, &SHUTDOWN, &ACK])),
        ("passive", run(&[&accepted, &DATA, &READ, &WRITE, &ACK, &FIN, &RELEASE, &ACK])),
        ("losses", run(&[&opened, &WRITE, &WRITE, &SACK, &PAUSE, &SACK, &LONG_PAUSE, &ACK, &ACK])),
        ("beyond-64k", run_on(LONG_STACK, &[&long_opened, &FILL, &FILL, &FILL, &ACK])),
        ("silence", run(&[&opened, &WRITE, &SHUTDOWN, &LONG_PAUSE, &LONG_PAUSE])),
        ("half-open", run(&[&accepted, &FLOW, &step::handshake(0), &LONG_PAUSE])),
        ("simultaneous", run(&[&step::connect(TCP, 0), &step::handshake(0), &ACK, &DATA])),
    ]
}

/// Steps of the target `controller`, each with its connection first.
fn controller() -> Vec<(&'static str, Vec<u8>)> {
    const WRITE: [u8; 2] = [0, 1];
    const WRITE_SECOND: [u8; 2] = [1, 1];
    const ALL: [u8; 2] = [0, 10];
    const HALF: [u8; 4] = [0, 4, 0x20, 127];
    const MARKED: [u8; 4] = [0, 4, 0x38, 127];
    const CLOSED_WINDOW: [u8; 4] = [0, 4, 0x24, 255];
    const BLOCK: [u8; 5] = [0, 7, 0x40, 128, 3];
    const DUPLICATE: [u8; 5] = [0, 7, 0x43, 200, 1];
    const ROUND: [u8; 3] = [0, 11, 100];
    const SECOND: [u8; 3] = [0, 15, 0];
    const MINUTE: [u8; 3] = [0, 15, 3];
    const LONG_PAUSE: [u8; 3] = [0, 15, 2];
    const ABORT_SECOND: [u8; 4] = [1, 3, 3, 0];
    let run = |config: u8, steps: &[&[u8]]| [&[config][..], &steps.concat()].concat();
    let rounds = [&WRITE[..], &ROUND, &ALL].concat().repeat(12);
    vec![
        ("alone", run(0x01, &[&rounds, &LONG_PAUSE, &rounds])),
        ("members", run(0xc0, &[&rounds, &WRITE_SECOND, &ROUND, &ALL, &rounds])),
        (
            "losses",
            run(0x40, &[&rounds, &WRITE, &BLOCK, &BLOCK, &ROUND, &HALF, &DUPLICATE, &SECOND, &rounds]),
        ),
        ("marks", run(0x40, &[&rounds, &WRITE, &MARKED, &ROUND, &MARKED, &rounds])),
        ("slow", run(0x01, &[&WRITE, &MINUTE, &HALF, &MINUTE, &HALF, &MINUTE, &ALL, &WRITE])),
        ("departed", run(0x40, &[&rounds, &WRITE_SECOND, &ABORT_SECOND, &WRITE, &ROUND, &ALL])),
        ("window", run(0x00, &[&rounds, &WRITE, &CLOSED_WINDOW, &SECOND, &ALL])),
    ]
}

/// Steps of the target `pair`.
fn pair() -> Vec<(&'static str, Vec<u8>)> {
    const WRITE: [u8; 5] = [1, 0, 0, 0x4e, 0x1f];
    const ANSWER: [u8; 5] = [1, 1, 0, 0x20, 0];
    const READ: [u8; 2] = [4, 0];
    const SHUTDOWN: [u8; 3] = [6, 0, 0];
    const DELIVER: [u8; 3] = [9, 0, 3];
    const DROP: [u8; 4] = [12, 0, 0, 1];
    const REORDER: [u8; 4] = [12, 0, 3, 2];
    const TOO_BIG: [u8; 4] = [13, 0, 1, 0];
    const COALESCE: [u8; 2] = [14, 0];
    const CONNECT: [u8; 17] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 100];
    const PAUSE: [u8; 3] = [15, 0, 250];
    const EXCHANGE: [u8; 2] = [19, 0];
    // The clock, two stacks, a listener, a connection.
    let run_on = |stack: [u8; 13], tcp: [u8; 13], fast_open: u8, steps: &[&[u8]]| {
        [&[0][..], &stack, &stack, &tcp, &[0, 0, 0, fast_open], &tcp, &[fast_open, 60], &steps.concat()]
            .concat()
    };
    let run = |tcp, fast_open, steps: &[&[u8]]| run_on(STACK, tcp, fast_open, steps);
    let long = |steps: &[&[u8]]| run_on(LONG_STACK, LARGE_TCP, 0, steps);
    let mut bare = TCP;
    bare[0] = 0x0f;
    let mut paced = TCP;
    (paced[0], paced[1], paced[10]) = (0x70, 1, 2);
    let fill = WRITE.repeat(14);
    vec![
        ("beyond-64k", long(&[&EXCHANGE, &fill, &EXCHANGE, &READ, &fill, &EXCHANGE, &READ])),
        ("transfer", run(TCP, 0, &[&EXCHANGE, &WRITE, &ANSWER, &EXCHANGE, &READ, &SHUTDOWN, &EXCHANGE])),
        ("loss", run(TCP, 0, &[&EXCHANGE, &WRITE, &DROP, &DELIVER, &EXCHANGE, &PAUSE, &READ, &WRITE])),
        ("reorder", run(TCP, 0, &[&EXCHANGE, &WRITE, &REORDER, &DELIVER, &READ, &EXCHANGE, &WRITE, &PAUSE])),
        ("bare", run(bare, 0, &[&EXCHANGE, &WRITE, &DROP, &EXCHANGE, &ANSWER, &PAUSE, &READ])),
        ("too-big", run(TCP, 0, &[&EXCHANGE, &WRITE, &TOO_BIG, &EXCHANGE, &PAUSE, &READ])),
        ("fast-open", run(TCP, 1, &[&EXCHANGE, &SHUTDOWN, &EXCHANGE, &CONNECT, &EXCHANGE, &READ, &PAUSE])),
        ("coalesced", run(paced, 0, &[&EXCHANGE, &WRITE, &PAUSE, &COALESCE, &DELIVER, &PAUSE, &EXCHANGE])),
    ]
}

//! Tests `docs/wireshark/gentle.lua` in tshark: it shows every flag and the encoded range of the segments
//! that brisk writes. Skipped, with a reason, without tshark.

use std::path::{Path, PathBuf};
use std::process::Command;

use brisk_link::LinkSpec;
use brisk_sim::TransactionSpec;
use brisk_sim::pcapng::{Heading, PcapngWriter};
use brisk_sim::transaction::{Records, transaction_recorded};
use brisk_tcp::config::{CorrectiveConfig, FecCode, FecHold, TcpConfig};
use brisk_wire::gentle::{A_PAR, COPY, ENC, FIN_END, R_ACK, R_FAIL, R_SUCC, S_PAR, STOP};
use brisk_wire::{ChecksumFill, Flags, Gentle, Instant, IpMeta, Options, SeqNum, TcpHeader, emit};

/// Initial sequence numbers of client and server (relative number 0).
const ISS: [u32; 2] = [0xffff_ff00, 5000];

/// A segment from the client (0) or the server (1), with relative numbers.
struct Segment {
    from: usize,
    seq: i32,
    ack: u32,
    flags: Flags,
    option: Option<Gentle>,
    len: usize,
}

impl Segment {
    fn new(from: usize, seq: i32, ack: u32, flags: Flags, len: usize) -> Self {
        Segment { from, seq, ack, flags, option: None, len }
    }

    fn with(self, option: Gentle) -> Self {
        Segment { option: Some(option), ..self }
    }

    fn bytes(&self) -> Vec<u8> {
        let hosts = [[10, 0, 0, 1], [10, 0, 0, 2]];
        let ports = [40_000, 80];
        let (from, to) = (self.from, 1 - self.from);
        let header = TcpHeader {
            src_port: ports[from],
            dst_port: ports[to],
            seq: SeqNum(ISS[from].wrapping_add_signed(self.seq)),
            ack: SeqNum(if self.flags.contains(Flags::ACK) { ISS[to].wrapping_add(self.ack) } else { 0 }),
            flags: self.flags,
            window: 1000,
            urgent: 0,
            options: Options { gentle: self.option, ..Options::default() },
        };
        let ip = IpMeta::new(hosts[from].into(), hosts[to].into());
        let mut out = Vec::new();
        emit(&ip, &header, &[&vec![7; self.len]], ChecksumFill::Full, &mut out).expect("a small packet");
        out
    }
}

/// Returns the segments of a connection that uses every value of the option.
fn segments() -> Vec<Segment> {
    let (syn, ack) = (Flags::SYN, Flags::ACK);
    let parity = |seq, len, option| Segment::new(1, seq, 1, ack, len).with(option);
    let f2 = |flags, enc_len, start_off| Gentle::EncF2 { flags, enc_len, start_off, crc32c: 0x0135_9494 };
    vec![
        Segment::new(0, 0, 0, syn, 0).with(Gentle::Capability(0x53)),
        Segment::new(1, 0, 1, syn | ack, 0).with(Gentle::Capability(0x93)),
        Segment::new(0, 1, 1, ack, 0),
        Segment::new(1, 1, 1, ack, 1000),
        Segment::new(1, 2001, 1, ack, 1000).with(Gentle::Short { flags: COPY }),
        parity(-999, 1000, f2(ENC | FIN_END, 3000, 1000)),
        Segment::new(0, 1, 3001, ack, 0).with(Gentle::Short { flags: R_SUCC | S_PAR }),
        Segment::new(1, 3001, 1, ack, 1000).with(Gentle::Short { flags: R_ACK | A_PAR }),
        Segment::new(0, 1, 4001, ack, 0).with(Gentle::Fail { flags: R_FAIL, lost_len: 3000 }),
        Segment::new(0, 1, 4001, ack, 0).with(Gentle::Fail { flags: R_FAIL, lost_len: STOP }),
        parity(
            3001,
            1000,
            Gentle::EncRs { flags: ENC, enc_len: 21_000, start_off: 1000, crc32c: 1, parity: 1, parities: 3 },
        ),
        parity(1, 1000, Gentle::EncF1 { flags: ENC, enc_len: 3000 }),
    ]
}

/// True, with a printed reason, if this machine cannot run the test.
fn tshark_is_missing() -> bool {
    let missing = Command::new("tshark").arg("--version").output().is_err();
    if missing {
        println!("skipped: tshark is not installed");
    }
    missing
}

fn capture(name: &str, packets: impl IntoIterator<Item = Vec<u8>>) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut writer = PcapngWriter::new(std::fs::File::create(&path).expect("a file")).expect("a capture");
    let link = writer.interface("link").expect("an interface");
    for (at, packet) in packets.into_iter().enumerate() {
        writer.packet(link, Heading::Out, Instant::from_millis(at as u64), &packet).expect("written");
    }
    writer.flush().expect("flushed");
    path
}

/// Returns one line per packet that passes the filter: the fields, separated by a bar.
fn dissected(file: &Path, filter: &str, fields: &[&str]) -> Vec<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/wireshark/gentle.lua");
    let mut command = Command::new("tshark");
    command.arg("-X").arg(format!("lua_script:{}", script.display())).arg("-r").arg(file);
    command.args(["-Y", filter, "-T", "fields", "-E", "separator=|"]);
    fields.iter().for_each(|field| {
        command.args(["-e", field]);
    });
    let output = command.output().expect("tshark starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !errors.contains("Lua"), "{errors}");
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_string).collect()
}

#[test]
fn the_dissector_names_every_flag_and_the_encoded_range() {
    if tshark_is_missing() {
        return;
    }
    let file = capture("gentle.pcapng", segments().iter().map(Segment::bytes));
    let info: Vec<String> = dissected(&file, "tcp", &["_ws.col.Info"])
        .iter()
        .map(|line| line.split_once("[GA ").map_or("", |(_, rest)| rest).to_string())
        .collect();
    assert_eq!(
        info,
        [
            "offers Reed-Solomon and Proactive]",
            "agrees Reed-Solomon]",
            "",
            "",
            "COPY]",
            "ENC|FIN_END [1,3001)]",
            "R_SUCC|S_PAR]",
            "R_ACK|A_PAR]",
            "R_FAIL [4001,7001)]",
            "R_FAIL STOP]",
            "ENC [4001,25001) parity 1 of 3]",
            "ENC [1,3001)]",
        ]
    );
    let fields = [
        "gentle.form",
        "gentle.enc_len",
        "gentle.start_off",
        "gentle.crc32c",
        "gentle.block",
        "gentle.blocks",
    ];
    let parities = dissected(&file, "gentle.flags.enc == 1", &fields);
    assert_eq!(
        parities,
        [
            "enc-F2|3000|1000|0x01359494|1000|3",
            "enc-RS|21000|1000|0x00000001|1000|21",
            "enc-F1|3000|||1000|3",
        ]
    );
    let flags = ["r_ack", "r_succ", "r_fail", "enc", "s_par", "a_par", "copy", "fin_end"]
        .map(|flag| format!("gentle.flags.{flag}"));
    let set = dissected(&file, "gentle.flags", &flags.each_ref().map(String::as_str));
    let seen = |column: usize| set.iter().filter(|line| line.split('|').nth(column) == Some("1")).count();
    assert_eq!(std::array::from_fn(seen), [1, 1, 2, 3, 1, 1, 1, 1], "{flags:?}");
    assert_eq!(dissected(&file, "gentle.stop == 1", &["frame.number"]), ["10"]);
}

/// The simulator records a response with Reed-Solomon parities, of which three segments are lost.
#[test]
fn dissector_reads_captures_of_the_simulator() {
    if tshark_is_missing() {
        return;
    }
    let mut tcp = TcpConfig { initial_window: 32, ..TcpConfig::default() };
    let code = FecCode::ReedSolomon;
    let hold = Some(FecHold::Reordering);
    tcp.mechanisms.corrective =
        Some(CorrectiveConfig { code, blocks: 32, parities: 3, hold, ..CorrectiveConfig::default() });
    let link = LinkSpec::parse("--rtt 100ms --loss down:list:3,8,22").expect("a link");
    let spec = TransactionSpec {
        established: true,
        client: tcp.clone(),
        server: tcp,
        ..TransactionSpec::new(&link, 30_000)
    };
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("gentle-recorded.pcapng");
    let capture = Box::new(std::fs::File::create(&path).expect("a file"));
    transaction_recorded(&spec, 1, Records { capture: Some(capture), trace: None }).expect("it runs");
    assert_eq!(dissected(&path, "gentle.malformed || gentle.ignored", &["frame.number"]), [""; 0]);
    let capabilities = dissected(&path, "gentle.capability", &["gentle.capability.encoding"]);
    assert!(
        capabilities.len() >= 2 && capabilities.iter().all(|encoding| encoding == "3"),
        "{capabilities:?}"
    );
    let fields = ["gentle.parity", "gentle.blocks", "gentle.range.end"];
    let mut parities = dissected(&path, "gentle.parities == 3 && tcp.srcport == 80", &fields);
    // The capture has each segment at both ends of the link.
    parities.sort();
    parities.dedup();
    assert_eq!(parities, ["0|21|30001", "1|21|30001", "2|21|30001"]);
    assert!(!dissected(&path, "gentle.flags.r_succ == 1", &["frame.number"]).is_empty());
}

#[test]
fn dissector_marks_invalid_segments_and_accepts_any_option() {
    if tshark_is_missing() {
        return;
    }
    // A parity segment. The test then changes its option byte by byte: Length, flags, parities.
    let good = Segment::new(1, 3001, 1, Flags::ACK, 100).with(Gentle::EncRs {
        flags: ENC,
        enc_len: 300,
        start_off: 100,
        crc32c: 1,
        parity: 1,
        parities: 3,
    });
    let bytes = good.bytes();
    let option = bytes.windows(2).position(|two| two == [254, 16]).expect("the option is there");
    let broken = |at: usize, value: u8| {
        let mut bytes = bytes.clone();
        bytes[option + at] = value;
        bytes
    };
    let file = capture(
        "gentle-broken.pcapng",
        [bytes.clone(), broken(15, 0x33), broken(4, ENC | R_FAIL), broken(1, 12)],
    );
    assert_eq!(dissected(&file, "gentle.malformed", &["frame.number"]), ["2", "3", "4"]);
    let any = (0..16).flat_map(|at| [0, 1, 2, 3, 5, 0x7f, 0xff].map(|value| broken(at, value)));
    let file = capture("gentle-any.pcapng", any);
    assert_eq!(dissected(&file, "tcp", &["frame.number"]).len(), 112);
}

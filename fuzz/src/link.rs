//! Target: any text as a link.
//!
//! A valid link prints as text that parses as the same link, and the link carries packets. Traces are read
//! from the text itself.

use brisk_link::{Link, LinkSpec};
use brisk_wire::{ChecksumCheck, Duration, Instant};

/// Number of packets offered to a valid link in each direction.
const PACKETS: u64 = 24;
/// Maximum number of packets that may leave, duplicates and pieces included.
const MAX_OUT: usize = 100_000;

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut spec = match LinkSpec::parse(&text) {
        Ok(spec) => spec,
        Err(error) => {
            assert!(!error.to_string().contains('\n') || text.contains('\n'), "an error is one line");
            return;
        }
    };
    let shown = spec.to_string();
    let again = LinkSpec::parse(&shown).unwrap_or_else(|error| panic!("'{shown}' does not read: {error}"));
    assert_eq!(again, spec, "'{shown}' reads as something else than '{text}'");
    assert_eq!(again.to_string(), shown);
    let _ = (spec.base_rtt(), spec.needs_traces());
    if spec.load_traces(&mut |path| Ok(path.replace(' ', "\n"))).is_ok() {
        carry(&spec);
    }
}

/// Offers packets a millisecond apart and takes those that leave.
fn carry(spec: &LinkSpec) {
    let mut link: Link<Vec<u8>> = Link::new(spec, spec.seed.unwrap_or(1));
    for direction in [&mut link.down, &mut link.up] {
        let mut out = 0;
        for number in 0..PACKETS {
            let now = Instant::from_millis(1000 + number);
            let packet = packet(number);
            if let Some(answer) = direction.offer(packet, now).answer() {
                assert!(brisk_wire::parse(&answer, ChecksumCheck::Verify).is_ok(), "{answer:02x?}");
            }
            while direction.poll(now).is_some() {
                out += 1;
                assert!(out < MAX_OUT, "packets come out for ever");
            }
        }
        let mut wakes = 0;
        let end = Instant::from_millis(1000 + PACKETS) + Duration::from_secs(100_000);
        while let Some(next) = direction.next_departure().filter(|next| *next <= end) {
            while direction.poll(next).is_some() {
                out += 1;
                assert!(out < MAX_OUT, "packets come out for ever");
            }
            wakes += 1;
            assert!(wakes < MAX_OUT, "the link wants to be woken for ever");
        }
    }
}

/// Returns a TCP packet: every fourth is a SYN, which middleboxes process.
fn packet(number: u64) -> Vec<u8> {
    use brisk_wire::{ChecksumFill, Flags, IpMeta, SeqNum, TcpHeader, Timestamps, emit};
    let ip = IpMeta::new([192, 0, 2, 1].into(), [198, 51, 100, 9].into());
    let syn = number.is_multiple_of(4);
    let flags = if syn { Flags::SYN } else { Flags::ACK };
    let mut tcp = TcpHeader { src_port: 5000, dst_port: 80, flags, ..TcpHeader::default() };
    tcp.seq = SeqNum(number as u32 * 1000);
    tcp.options.mss = syn.then_some(1460);
    tcp.options.timestamps = Some(Timestamps { value: number as u32, echo: 0 });
    let payload = vec![number as u8; number as usize * 60];
    let mut out = Vec::new();
    emit(&ip, &tcp, &[&payload], ChecksumFill::Full, &mut out).expect("a small packet");
    out
}

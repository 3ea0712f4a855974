//! Random scripts. Their peer is a small model of a receiver behind a path that loses, delays and reorders:
//! it sees the segments of our stack and writes its answers into the script, so that a script reaches the
//! states of real connections. The finished script is fixed; both stacks get the same.
//!
//! The kernel's timers are late, ours are not. No event lies between the expiry of our timer and that of the
//! kernel's: the peer waits until both have expired.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use brisk_script::Options;

use super::draws::Draws;
use super::record::{Packet, Record};
use super::script::Script;

/// The direction of the data in a script.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The stack sends, the peer acknowledges.
    Sender,
    /// The peer sends, the stack acknowledges.
    Receiver,
}

/// The fields of TCP_INFO that are compared.
pub const FIELDS: &[&str] = &[
    "state",
    "ca_state",
    "retransmits",
    "probes",
    "backoff",
    "options",
    "rto",
    "snd_mss",
    "rcv_mss",
    "unacked",
    "sacked",
    "lost",
    "retrans",
    "pmtu",
    "rtt",
    "snd_ssthresh",
    "snd_cwnd",
    "advmss",
    "reordering",
    "total_retrans",
    "bytes_acked",
    "bytes_received",
    "segs_out",
    "segs_in",
    "notsent_bytes",
    "min_rtt",
    "data_segs_in",
    "data_segs_out",
    "delivered",
    "delivered_ce",
    "bytes_sent",
    "bytes_retrans",
    "dsack_dups",
    "reord_seen",
    "rcv_ooopack",
    "snd_wnd",
    "total_rto",
];

/// Start of the handshake: the sockets have been opened by then, even on a busy machine.
const BEGIN: i64 = 50_000;
/// Minimum time between two events.
const SPACING: i64 = 300;
/// Time after an event within which timers are considered.
const AHEAD: i64 = 6_000;
/// Sequence number beyond any window that the stack offers in these scripts.
const FAR: i64 = 500_000;
/// Bytes of a time stamp with its padding.
const STAMP_LEN: i64 = 12;
/// Maximum number of events of a script.
const MAX_EVENTS: usize = 90;

/// An event that happens unless the script ends first.
#[derive(Clone, Debug)]
enum Pending {
    /// A segment of the stack arrives at the peer: `transmission` counts those that began at `seq`.
    Delivered {
        seq: i64,
        len: i64,
        fin: bool,
        transmission: usize,
    },
    /// The peer's delayed acknowledgement.
    DelayedAck,
    /// A system call.
    Call(String),
    /// The peer sends data.
    Data {
        seq: i64,
        len: i64,
        fin: bool,
        ce: bool,
        old_stamp: bool,
    },
    Stray(Stray),
    Mark,
    End,
}

/// An event that an honest peer never or rarely causes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stray {
    DuplicateAck,
    OldAck,
    AckInsideASegment,
    AckOfTheUnsent,
    SackOfNothing,
    WindowCloses,
    WindowShrinks,
    WindowOpens,
    CongestionEcho,
    Reneges,
    Data,
    OldData,
}

const STRAYS: &[Stray] = &[
    Stray::DuplicateAck,
    Stray::OldAck,
    Stray::AckInsideASegment,
    Stray::AckOfTheUnsent,
    Stray::SackOfNothing,
    Stray::WindowCloses,
    Stray::WindowShrinks,
    Stray::WindowOpens,
    Stray::CongestionEcho,
    Stray::Reneges,
    Stray::Data,
    Stray::OldData,
];

/// Returns the script of a seed.
pub fn generate(kind: Kind, seed: u64) -> Script {
    let salt = match kind {
        Kind::Sender => 0,
        Kind::Receiver => 1 << 63,
    };
    let mut generator = Generator::new(Draws::new(seed ^ salt));
    generator.open();
    match kind {
        Kind::Sender => generator.plan_writes(),
        Kind::Receiver => generator.plan_data(),
    }
    generator.play();
    generator.script
}

struct Generator {
    draws: Draws,
    script: Script,
    pending: BTreeMap<(i64, u64), Pending>,
    /// Keeps the order of events planned for one instant.
    planned: u64,
    ends: i64,
    fd: u32,
    // The negotiated options.
    sack: bool,
    stamps: bool,
    shift: u32,
    /// Payload of a full segment of the stack.
    size: i64,
    // The path.
    round_trip: i64,
    jitter: i64,
    loss: i64,
    ack_loss: i64,
    reorder: i64,
    blackout: Option<(i64, i64)>,
    /// Time of the last delivery of a segment.
    delivered: i64,
    // The peer.
    ack_every: i64,
    delay: i64,
    dsack: bool,
    window: i64,
    next: i64,
    ranges: Vec<(i64, i64)>,
    duplicate: Option<(i64, i64)>,
    echo: (i64, usize),
    unanswered: i64,
    seq: i64,
    transmissions: HashMap<i64, usize>,
    /// The highest sequence number that the stack has sent.
    highest: i64,
    seen: usize,
}

impl Generator {
    fn new(mut draws: Draws) -> Generator {
        let round_trip = draws.pick(&[4_000, 12_000, 30_000, 60_000]);
        Generator {
            script: Script::default(),
            pending: BTreeMap::new(),
            planned: 0,
            ends: BEGIN + draws.between(500_000, 1_700_000),
            fd: 4,
            sack: draws.percent(80),
            stamps: draws.percent(50),
            shift: draws.pick(&[0, 0, 2, 7]),
            size: 0,
            round_trip,
            jitter: draws.pick(&[0, 500, 3_000]),
            loss: draws.pick(&[0, 3, 10, 25]),
            ack_loss: draws.pick(&[0, 0, 10, 30]),
            reorder: draws.pick(&[0, 0, 0, 5, 20]),
            blackout: None,
            delivered: 0,
            ack_every: draws.pick(&[1, 2, 2, 4, 10]),
            delay: draws.pick(&[10_000, 40_000]),
            dsack: draws.percent(80),
            window: draws.pick(&[16_000, 60_000, 60_000, 60_000, 60_000, 60_000]),
            next: 1,
            ranges: Vec::new(),
            duplicate: None,
            echo: (0, 1),
            unanswered: 0,
            seq: 1,
            transmissions: HashMap::new(),
            highest: 1,
            seen: 0,
            draws,
        }
    }

    fn plan(&mut self, at: i64, what: Pending) {
        self.planned += 1;
        self.pending.insert((at, self.planned), what);
    }

    /// Writes settings and handshake.
    fn open(&mut self) {
        let congestion = self.draws.pick(&["reno", "cubic"]);
        let ecn = self.draws.percent(25);
        self.script.header = vec![
            "--set push_bursts=on".to_owned(),
            "--set send_buffer=4194304".to_owned(),
            format!("--set congestion={congestion}"),
        ];
        if ecn {
            self.script.header.push("--set ecn=on".to_owned());
        }
        // Linux holds segments back so that bursts get longer, and leaves out every second duplicate
        // acknowledgement of a burst: neither is compared.
        let commands = "`sysctl -q net.ipv4.tcp_tso_win_divisor=255 net.ipv4.tcp_comp_sack_nr=0`";
        self.script.header.push(commands.to_owned());
        let mss = self.draws.pick(&[536, 1000, 1000, 1460]);
        self.size = mss - if self.stamps { STAMP_LEN } else { 0 };
        let mut options = vec![format!("mss {mss}")];
        if self.sack {
            options.push("nop,nop,sackOK".to_owned());
        }
        if self.stamps {
            let echo = "ecr @";
            options.push(format!("nop,nop,TS val {} {echo}", Self::stamp(BEGIN)));
        }
        if self.shift > 0 {
            options.push(format!("nop,wscale {}", self.shift));
        }
        let options = options.join(",");
        let window = self.window.min(65_535);
        self.script.push(0, "socket(..., SOCK_STREAM, IPPROTO_TCP) = 3");
        let established = BEGIN + self.round_trip;
        if self.draws.percent(70) {
            self.script.push(0, "bind(3, ..., ...) = ?");
            self.script.push(0, "listen(3, 1) = ?");
            let flags = if ecn { "SEW" } else { "S" };
            let options = options.replace("ecr @", "ecr 0");
            self.script.push(BEGIN, format!("< {flags} 0:0(0) win {window} <{options}>"));
            let ack = self.segment(established, "", ".", 1, 0, 1);
            self.script.push(established, ack);
            self.script.push(established, "accept4(3, ..., ..., SOCK_NONBLOCK) = ?");
        } else {
            self.fd = 3;
            self.script.push(0, "fcntl(3, F_SETFL, O_RDWR|O_NONBLOCK) = ?");
            self.script.push(BEGIN, "connect(3, ..., ...) = ?");
            let flags = if ecn { "SE." } else { "S." };
            self.script.push(established, format!("< {flags} 0:0(0) ack 1 win {window} <{options}>"));
        }
        if self.draws.percent(30) {
            let fd = self.fd;
            self.script.push(established, format!("setsockopt({fd}, SOL_TCP, TCP_NODELAY, [1], 4) = ?"));
        }
        self.plan(established, Pending::Mark);
        self.plan(self.ends, Pending::End);
    }

    fn plan_writes(&mut self) {
        let (fd, begin) = (self.fd, self.script.last());
        let mut at = begin;
        // Linux counts segments, we count bytes: both are equal while all segments are full.
        let whole = self.draws.percent(85);
        for _ in 0..self.draws.between(1, 6) {
            at += self.draws.pick(&[0, 1_000, 30_000, 200_000, 400_000]);
            let bytes = self.draws.pick(&[1, 100, 1000, 3_000, 10_000, 10_000, 20_000, 40_000]);
            let bytes = bytes + self.draws.between(0, bytes / 3);
            let bytes = if whole { (bytes / self.size).max(1) * self.size } else { bytes };
            let call = match self.draws.percent(10) {
                true => format!("send({fd}, ..., {bytes}, MSG_MORE) = ?"),
                false => format!("write({fd}, ..., {bytes}) = ?"),
            };
            self.plan(at, Pending::Call(call));
        }
        if self.draws.percent(40) {
            let at = at + self.draws.between(0, 300_000);
            let call = match self.draws.percent(50) {
                true => format!("close({fd}) = ?"),
                false => format!("shutdown({fd}, SHUT_WR) = ?"),
            };
            self.plan(at, Pending::Call(call));
        }
        if self.draws.percent(30) {
            let from = begin + self.draws.between(0, 400_000);
            self.blackout = Some((from, from + self.draws.between(100_000, 700_000)));
        }
        let strays = self.draws.pick(&[0, 0, 1, 2, 4]);
        self.plan_strays(begin, strays);
    }

    fn plan_strays(&mut self, begin: i64, count: i64) {
        for _ in 0..count {
            let stray = self.draws.pick(STRAYS);
            let at = self.draws.between(begin + 1_000, self.ends);
            self.plan(at, Pending::Stray(stray));
            if matches!(stray, Stray::WindowCloses | Stray::WindowShrinks) {
                let at = at + self.draws.between(10_000, 900_000);
                self.plan(at, Pending::Stray(Stray::WindowOpens));
            }
        }
    }

    /// Plans the peer's data: in order, and changed by the path.
    fn plan_data(&mut self) {
        let (fd, mut at) = (self.fd, self.script.last());
        let begin = at;
        let max = if self.stamps { 1460 - STAMP_LEN } else { 1460 };
        let size = self.draws.pick(&[100, 536, 1000, max]);
        let reads = self.draws.pick(&[0, 1, 1, 1, 2, 2]);
        let mut seq = self.seq;
        let (loss, repeat, overlap) =
            (self.draws.pick(&[0, 10, 25]), self.draws.pick(&[0, 5, 15]), self.draws.pick(&[0, 0, 10]));
        let marks = self.draws.pick(&[0, 0, 10]);
        let old = self.draws.pick(&[0, 0, 10]);
        let data = |seq, len| Pending::Data { seq, len, fin: false, ce: false, old_stamp: false };
        while at < self.ends - 100_000 && seq < 40_000 {
            at += self.draws.pick(&[1_000, 5_000, 20_000, 60_000, 150_000, 300_000]);
            for _ in 0..self.draws.pick(&[1, 1, 2, 3, 4, 8]) {
                at += SPACING;
                let len = if self.draws.percent(20) { self.draws.between(1, size) } else { size };
                let late = at + self.draws.between(3_000, 2 * self.round_trip + 100_000);
                if self.draws.percent(loss) {
                    self.plan(late, data(seq, len));
                } else {
                    let (ce, old_stamp) = (self.draws.percent(marks), self.draws.percent(old));
                    self.plan(at, Pending::Data { seq, len, fin: false, ce, old_stamp });
                    if old_stamp {
                        self.plan(late, data(seq, len));
                    }
                }
                if self.draws.percent(repeat) {
                    self.plan(late, data(seq, len));
                }
                if self.draws.percent(overlap) {
                    let from = (seq - self.draws.between(0, 2 * size)).max(1);
                    let len = self.draws.between(1, 2 * size).min(max);
                    self.plan(late, data(from, len.min(seq + size - from)));
                }
                seq += len;
            }
            if reads == 1 || (reads == 2 && self.draws.percent(30)) {
                let bytes = self.draws.pick(&[100, 4_000, 100_000]);
                self.plan(at + SPACING, Pending::Call(format!("read({fd}, ..., {bytes}) = ?")));
            }
            if self.draws.percent(10) {
                let bytes = self.draws.between(1, 3_000);
                self.plan(at + SPACING, Pending::Call(format!("write({fd}, ..., {bytes}) = ?")));
            }
            if self.draws.percent(3) {
                self.plan(at, data(seq + FAR, size));
            }
        }
        self.seq = seq;
        if self.draws.percent(50) {
            let at = at + self.draws.between(-100_000, 100_000);
            self.plan(
                at.max(begin + 1_000),
                Pending::Data { seq, len: 0, fin: true, ce: false, old_stamp: false },
            );
        }
        if self.draws.percent(30) {
            let at = at + self.draws.between(-100_000, 200_000);
            self.plan(at.max(begin + 1_000), Pending::Call(format!("close({fd}) = ?")));
        }
        self.seq = 1;
        let strays = self.draws.pick(&[0, 0, 0, 1]);
        self.plan_strays(begin, strays);
    }

    /// Processes planned events in order of time, until the end.
    fn play(&mut self) {
        while let Some((&key, _)) = self.pending.first_key_value() {
            let at = key.0.max(self.script.last() + SPACING);
            let packets = self.observe(at + AHEAD);
            self.take_in(&packets, at);
            if self.pending.first_key_value().is_none_or(|(first, _)| *first != key) {
                continue;
            }
            if let Some(clear) = self.kernel_expiry(&packets, at) {
                self.postpone(clear);
                continue;
            }
            let Some(what) = self.pending.remove(&key) else { return };
            if matches!(what, Pending::End) {
                return self.mark(at);
            }
            self.take_place(at, what);
            if self.script.events.len() >= MAX_EVENTS {
                self.pending.clear();
                self.plan(at + SPACING, Pending::End);
            }
        }
    }

    /// Returns the packets that our stack sends up to this time.
    fn observe(&self, until: i64) -> Vec<Packet> {
        let mut script = self.script.clone();
        script.push(until, "%{ print(tcpi_state) }%");
        let options = Options { lenient: true, ..Options::default() };
        let report = brisk_script::run("generated", &script.text(), &options);
        let report = report.unwrap_or_else(|error| panic!("{error}\n{}", script.text()));
        Record::read("", &report.trace).packets().cloned().collect()
    }

    /// Decides whether the path loses, delays or delivers the segments that have left by now.
    fn take_in(&mut self, packets: &[Packet], now: i64) {
        while let Some(packet) = packets.get(self.seen) {
            let first = self.pending.first_key_value().map_or(i64::MAX, |((at, _), _)| *at);
            if packet.at > now.min(first) {
                return;
            }
            self.seen += 1;
            let fin = packet.has('F');
            if packet.len == 0 && !fin || packet.has('S') || packet.has('R') {
                continue;
            }
            let transmission = self.transmissions.entry(packet.seq).or_default();
            *transmission += 1;
            let transmission = *transmission;
            self.highest = self.highest.max(packet.seq + packet.len + i64::from(fin));
            let dark = self.blackout.is_some_and(|(from, to)| (from..to).contains(&packet.at));
            let lost = self.draws.percent(self.loss);
            let reordered = self.draws.percent(self.reorder);
            let mut arrival = packet.at + self.round_trip + self.draws.between(0, self.jitter);
            if dark {
                // Lost, or delayed to the end of the blackout.
                match (self.blackout, self.draws.percent(50)) {
                    (Some((_, to)), true) => arrival = arrival.max(to),
                    _ => continue,
                }
            } else if lost {
                continue;
            }
            if reordered {
                arrival += self.draws.between(1_000, self.round_trip);
            } else {
                arrival = arrival.max(self.delivered + SPACING);
                self.delivered = arrival;
            }
            self.plan(arrival, Pending::Delivered { seq: packet.seq, len: packet.len, fin, transmission });
        }
    }

    /// Returns the time at which the kernel's timer has certainly expired, if `at` is so close to a timer of
    /// brisk that the kernel's may expire before or after it.
    fn kernel_expiry(&self, packets: &[Packet], at: i64) -> Option<i64> {
        let events: BTreeSet<i64> = self.script.events.iter().map(|event| event.at).collect();
        packets.iter().filter(|packet| !events.contains(&packet.at)).find_map(|packet| {
            let clear = packet.at + lateness(packet);
            (at > packet.at - AHEAD && at < clear).then_some(clear)
        })
    }

    /// Moves the events before this time to it, in order and with the minimum spacing.
    fn postpone(&mut self, to: i64) {
        let early: Vec<_> = self.pending.range(..(to, 0)).map(|(key, _)| *key).collect();
        let moved: Vec<Pending> = early.iter().filter_map(|key| self.pending.remove(key)).collect();
        for (n, what) in moved.into_iter().enumerate() {
            self.plan(to + n as i64 * SPACING, what);
        }
    }

    fn take_place(&mut self, at: i64, what: Pending) {
        match what {
            Pending::Delivered { seq, len, fin, transmission } => {
                self.receive(at, seq, len, fin, transmission)
            }
            Pending::DelayedAck if self.unanswered > 0 => self.acknowledge(at),
            Pending::DelayedAck | Pending::End => {}
            Pending::Call(call) => {
                self.script.push(at, call);
                self.mark(at);
            }
            Pending::Data { seq, len, fin, ce, old_stamp } => {
                let ecn = if ce { "[ce] " } else { "" };
                let flags = if fin { "F." } else { "P." };
                let stamped = if old_stamp { at - 10_000_000 } else { at };
                let text = self.segment_stamped(stamped, ecn, flags, seq, len, self.next);
                // Data far beyond the window is not the peer's stream.
                if seq < FAR {
                    self.seq = self.seq.max(seq + len + i64::from(fin));
                }
                self.script.push(at, text);
                self.mark(at);
            }
            Pending::Stray(stray) => self.stray(at, stray),
            Pending::Mark => self.mark(at),
        }
    }

    fn mark(&mut self, at: i64) {
        let names: Vec<String> = FIELDS.iter().map(|field| format!("tcpi_{field}")).collect();
        self.script.push(at, format!("%{{ print({}) }}%", names.join(", ")));
    }

    /// Processes a segment at the peer.
    fn receive(&mut self, at: i64, seq: i64, len: i64, fin: bool, transmission: usize) {
        let end = seq + len + i64::from(fin);
        let known = end <= self.next || self.ranges.iter().any(|(from, to)| *from <= seq && end <= *to);
        if known {
            self.duplicate = Some((seq, end));
            return self.acknowledge(at);
        }
        if seq <= self.next {
            self.echo = (seq, transmission);
        }
        let in_order = seq <= self.next;
        let (mut from, mut to) = (seq.max(self.next), end);
        self.ranges.retain(|(other, other_to)| {
            let apart = *other_to < from || to < *other;
            if !apart {
                from = from.min(*other);
                to = to.max(*other_to);
            }
            apart
        });
        let had_gap = !self.ranges.is_empty() || to > end;
        if in_order {
            self.next = to;
            self.unanswered += 1;
        } else {
            self.ranges.insert(0, (from, to));
        }
        if !in_order || had_gap || fin || self.unanswered >= self.ack_every {
            self.acknowledge(at);
        } else if self.unanswered == 1 {
            let delay = self.delay;
            self.plan(at + delay, Pending::DelayedAck);
        }
    }

    fn acknowledge(&mut self, at: i64) {
        self.unanswered = 0;
        if self.draws.percent(self.ack_loss) {
            self.duplicate = None;
            return;
        }
        let ack = self.segment(at, "", ".", self.seq, 0, self.next);
        self.script.push(at, ack);
        self.mark(at);
    }

    fn stray(&mut self, at: i64, stray: Stray) {
        let highest = self.highest.max(2);
        let text = match stray {
            Stray::DuplicateAck => self.segment(at, "", ".", self.seq, 0, self.next),
            Stray::OldAck => {
                let ack = self.draws.between(1, self.next);
                self.segment(at, "", ".", self.seq, 0, ack)
            }
            Stray::AckInsideASegment => {
                self.next = self.draws.between(self.next, highest);
                let next = self.next;
                self.ranges.retain(|(from, _)| *from > next);
                self.segment(at, "", ".", self.seq, 0, next)
            }
            Stray::AckOfTheUnsent => self.segment(at, "", ".", self.seq, 0, highest + 100_000),
            Stray::SackOfNothing => {
                let from = 1 + self.draws.between(0, highest / self.size) * self.size;
                self.duplicate = Some((from, from + self.draws.between(1, 3) * self.size));
                self.segment(at, "", ".", self.seq, 0, self.next)
            }
            // The next acknowledgement reports it: Linux accepts a smaller window from a segment that
            // acknowledges data.
            Stray::WindowShrinks => {
                self.window = self.draws.between(1, 3_000);
                return;
            }
            Stray::WindowCloses | Stray::WindowOpens => {
                self.window =
                    if stray == Stray::WindowCloses { 0 } else { self.draws.pick(&[4_000, 60_000]) };
                self.segment(at, "", ".", self.seq, 0, self.next)
            }
            Stray::CongestionEcho => self.segment(at, "", "E.", self.seq, 0, self.next),
            Stray::Reneges => {
                self.ranges.clear();
                self.segment(at, "", ".", self.seq, 0, self.next)
            }
            Stray::Data => {
                let (seq, len) = (self.seq, self.draws.between(1, 1_000));
                self.seq += len;
                self.segment(at, "", "P.", seq, len, self.next)
            }
            Stray::OldData => {
                let seq = self.draws.between(1, self.seq);
                self.segment(at, "", "P.", seq, (self.seq - seq).min(1_000), self.next)
            }
        };
        self.script.push(at, text);
        self.mark(at);
    }

    fn stamp(at: i64) -> i64 {
        100_000 + at / 1000
    }

    fn segment(&mut self, at: i64, ecn: &str, flags: &str, seq: i64, len: i64, ack: i64) -> String {
        self.segment_stamped(at, ecn, flags, seq, len, ack)
    }

    fn segment_stamped(&mut self, at: i64, ecn: &str, flags: &str, seq: i64, len: i64, ack: i64) -> String {
        let mut options = Vec::new();
        if self.stamps {
            let (from, transmission) = self.echo;
            options.push(format!("nop,nop,TS val {} ecr @{from}/{transmission}", Self::stamp(at)));
        }
        let duplicate = self.duplicate.take().filter(|_| self.dsack);
        if self.sack {
            let max = if self.stamps { 3 } else { 4 };
            let blocks = duplicate.iter().chain(&self.ranges).take(max);
            let blocks: Vec<String> = blocks.map(|(from, to)| format!("{from}:{to}")).collect();
            if !blocks.is_empty() {
                options.push(format!("nop,nop,sack {}", blocks.join(" ")));
            }
        }
        let options = if options.is_empty() { String::new() } else { format!(" <{}>", options.join(",")) };
        let window = (self.window >> self.shift).min(65_535);
        format!("< {ecn}{flags} {seq}:{}({len}) ack {ack} win {window}{options}", seq + len)
    }
}

/// Returns how late the kernel's timer for this segment may be, microseconds. The wheel has slots of 4 ms up
/// to a quarter of a second, as for a delayed acknowledgement, and of 32 ms up to two seconds, as for a
/// timeout (250 ticks per second).
pub(super) fn lateness(sent: &Packet) -> i64 {
    if sent.is_pure_ack() { 14_000 } else { 45_000 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_makes_the_same_script_each_time() {
        for kind in [Kind::Sender, Kind::Receiver] {
            for seed in 0..5 {
                assert_eq!(generate(kind, seed), generate(kind, seed), "{kind:?} {seed}");
            }
            assert_ne!(generate(kind, 1), generate(kind, 2), "{kind:?}");
        }
    }

    #[test]
    fn events_are_in_order_and_apart() {
        for kind in [Kind::Sender, Kind::Receiver] {
            let script = generate(kind, 7);
            assert!(script.events.is_sorted_by_key(|event| event.at), "{}", script.text());
            assert!(script.events.len() > 10, "{}", script.text());
        }
    }
}

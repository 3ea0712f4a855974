//! The filter of a packet socket: accepts TCP to the stack's ports, and ICMP errors. It is a program of
//! classic BPF (`Documentation/networking/filter.rst`), generated for one kind of link and one set of ports.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd};

use libc::sock_filter;

use crate::bpf::{CLIENT, JEQ, JGE, JGT, JSET, LDB, LDB_X, LDH, LDH_X, LDW, LDX_IP, PROTOCOL, RET};
use crate::share::{Exceptions, Share, hash_of_source};

/// Ethernet protocol of IPv4 (`linux/if_ether.h`).
const ETH_P_IP: u32 = 0x0800;
const ETH_P_IPV6: u32 = 0x86DD;
const ICMP: u32 = 1;
const TCP: u32 = 6;
const ICMPV6: u32 = 58;
/// ICMP "destination unreachable", which includes "too big" (RFC 792).
const UNREACHABLE: u32 = 3;
/// ICMPv6 "destination unreachable" is 1, "packet too big" 2 (RFC 4443).
const TOO_BIG_V6: u32 = 2;
/// The low 13 bits: the fragment offset. A packet with an offset has no ports.
const FRAGMENT_OFFSET: u32 = 0x1FFF;
/// Result that accepts the whole packet: more than the length of any packet.
const WHOLE_PACKET: u32 = 0x4_0000;
/// Result for ICMP errors, which may concern connections of the kernel. For a packet socket it has the effect
/// of [`WHOLE_PACKET`], because packet sockets always receive copies.
pub(crate) const COPY_TO_BOTH: u32 = WHOLE_PACKET + 1;

/// Jump targets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Label {
    Next,
    V6,
    Icmp4,
    Icmp6,
    Ports,
    Share6,
    Range,
    Accept,
    Client,
    Copy,
    Drop,
    /// After this many instructions.
    Skip(u8),
}

/// An instruction, with the jump targets for a true and for a false condition.
type LabelledInstruction = (u32, Label, Label, u32);

/// Accepted packets: segments to certain ports, and ICMP errors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    /// Length of the link header, bytes.
    pub(crate) link: u32,
    pub(crate) served: Option<u16>,
    pub(crate) own: Option<&'a RangeInclusive<u16>>,
    /// Destination addresses of accepted segments, at most [`MAX_ADDRESSES`]; all if empty.
    pub(crate) addresses: &'a [IpAddr],
    /// The clients whose segments to `served` are accepted.
    pub(crate) share: Share,
    /// If there is a list, the program returns [`CLIENT`] for the segments of clients in `share`.
    pub(crate) exceptions: Option<&'a Exceptions>,
}

impl Wanted<'_> {
    pub(crate) fn list(&self) -> Option<BorrowedFd<'_>> {
        self.exceptions.map(AsFd::as_fd)
    }
}

impl Default for Wanted<'_> {
    fn default() -> Self {
        Wanted { link: 0, served: None, own: None, addresses: &[], share: Share::ALL, exceptions: None }
    }
}

/// Maximum number of addresses: a jump spans 255 instructions, and an IPv6 address takes eight.
pub(crate) const MAX_ADDRESSES: usize = 16;

pub(crate) fn program(wanted: Wanted<'_>) -> Vec<sock_filter> {
    let (steps, places) = steps(wanted);
    let place = |label: Label| places.iter().find(|(known, _)| *known == label).map(|(_, at)| *at);
    let distance = |from: usize, label: Label| match (label, place(label)) {
        (Label::Skip(count), _) => count,
        // The target is later in the program, which is shorter than 256 instructions.
        (_, Some(at)) => (at - from - 1) as u8,
        (_, None) => 0,
    };
    let instruction = |(n, (code, yes, no, k)): (usize, &LabelledInstruction)| sock_filter {
        code: *code as u16,
        jt: distance(n, *yes),
        jf: distance(n, *no),
        k: *k,
    };
    steps.iter().enumerate().map(instruction).collect()
}

fn steps(wanted: Wanted<'_>) -> (Vec<LabelledInstruction>, Vec<(Label, usize)>) {
    let Wanted { link, served, own, addresses, share, exceptions } = wanted;
    use Label::{Accept, Client, Copy, Drop, Icmp4, Icmp6, Next, Ports, Range, Share6, V6};
    let mut steps = Vec::new();
    let mut places = Vec::new();
    let mut part = |label: Option<Label>, part: &[LabelledInstruction]| {
        places.extend(label.map(|label| (label, steps.len())));
        steps.extend_from_slice(part);
    };
    let always = |label: Label| (JGE, label, label, 0);
    // The kernel reports the protocol behind any VLAN tags.
    part(None, &[(LDW, Next, Next, PROTOCOL), (JEQ, Next, V6, ETH_P_IP)]);
    part(None, &[(LDB, Next, Next, link + 9), (JEQ, Icmp4, Next, ICMP), (JEQ, Next, Drop, TCP)]);
    part(None, &[(LDH, Next, Next, link + 6), (JSET, Drop, Next, FRAGMENT_OFFSET)]);
    part(None, &addressed_to(addresses, link, false));
    part(None, &[(LDX_IP, Next, Next, link), (LDH_X, Next, Next, link + 2), always(Ports)]);
    part(Some(Icmp4), &[(LDX_IP, Next, Next, link), (LDB_X, Next, Next, link)]);
    part(None, &[(JEQ, Copy, Drop, UNREACHABLE)]);
    part(Some(V6), &[(JEQ, Next, Drop, ETH_P_IPV6), (LDB, Next, Next, link + 6)]);
    part(None, &[(JEQ, Icmp6, Next, ICMPV6), (JEQ, Next, Drop, TCP)]);
    part(None, &addressed_to(addresses, link, true));
    part(None, &[(LDH, Next, Next, link + 42), always(Ports)]);
    part(Some(Icmp6), &[(LDB, Next, Next, link + 40), (JGT, Drop, Copy, TOO_BIG_V6)]);
    part(Some(Ports), &[]);
    if let Some(port) = served {
        let (is_all, accept) = (share.is_all(), if exceptions.is_some() { Client } else { Accept });
        let matches = if is_all && exceptions.is_none() { Accept } else { Next };
        part(None, &[(JEQ, matches, Range, port.into())]);
        if matches == Next {
            let hash = |start, words| -> Vec<LabelledInstruction> {
                let hash = hash_of_source(link + start, words).into_iter();
                hash.map(|(code, k)| (code, Next, Next, k)).collect()
            };
            let decide = if is_all { always(accept) } else { (JGE, Drop, accept, share.limit()) };
            part(None, &[(LDW, Next, Next, PROTOCOL), (JEQ, Next, Share6, ETH_P_IP)]);
            part(None, &hash(12, 1));
            part(None, &[decide]);
            part(Some(Share6), &hash(8, 2));
            part(None, &[decide]);
        }
    }
    part(Some(Range), &[]);
    if let Some(own) = own {
        let (first, last) = (u32::from(*own.start()), u32::from(*own.end()));
        part(None, &[(JGE, Next, Drop, first), (JGT, Drop, Accept, last)]);
    }
    part(Some(Drop), &[(RET, Next, Next, 0)]);
    // The kernel rejects eBPF programs with unreachable instructions.
    if own.is_some() || exceptions.is_none() {
        part(Some(Accept), &[(RET, Next, Next, WHOLE_PACKET)]);
    }
    if served.is_some() && exceptions.is_some() {
        part(Some(Client), &[(RET, Next, Next, CLIENT)]);
    }
    part(Some(Copy), &[(RET, Next, Next, COPY_TO_BOTH)]);
    (steps, places)
}

/// Continues if a packet of this IP version is addressed to one of `addresses`, or if `addresses` is empty.
fn addressed_to(addresses: &[IpAddr], link: u32, v6: bool) -> Vec<LabelledInstruction> {
    let of_version: Vec<Vec<u32>> = addresses.iter().filter(|ip| ip.is_ipv6() == v6).map(words_of).collect();
    if of_version.is_empty() {
        // This jump is always taken. A plain drop would leave unreachable instructions, which the kernel
        // rejects in eBPF programs.
        let never = (JGE, Label::Drop, Label::Next, 0);
        return if addresses.is_empty() { Vec::new() } else { vec![never] };
    }
    let start = link + if v6 { 24 } else { 16 };
    let mut steps = Vec::new();
    for (n, words) in of_version.iter().enumerate() {
        let others = of_version.len() - 1 - n;
        for (k, word) in words.iter().enumerate() {
            let rest = words.len() - 1 - k;
            // Equal: the next word, or the end of the list. Not equal: the next address.
            let yes = Label::Skip(if rest > 0 { 0 } else { 2 * (others * words.len()) as u8 });
            let no = if others > 0 { Label::Skip(2 * rest as u8) } else { Label::Drop };
            steps.extend([(LDW, Label::Next, Label::Next, start + 4 * k as u32), (JEQ, yes, no, *word)]);
        }
    }
    steps
}

fn words_of(ip: &IpAddr) -> Vec<u32> {
    match ip {
        IpAddr::V4(ip) => vec![ip.to_bits()],
        IpAddr::V6(ip) => [96, 64, 32, 0].map(|shift| (ip.to_bits() >> shift) as u32).to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;
    use crate::bpf::extended::{self, Kind};
    use crate::bpf::{LDX, MUL, RSH, TAX, TXA, XOR_X, set_program};
    use crate::share::hash;
    use crate::testing::Tcp;

    fn accepts(link: u32, served: Option<u16>, own: Option<RangeInclusive<u16>>, frame: &[u8]) -> bool {
        answer(Wanted { link, served, own: own.as_ref(), ..Wanted::default() }, frame) > 0
    }

    /// Returns the program's verdict on a frame, and checks that its translation for XDP has the same one in
    /// the kernel.
    fn answer(wanted: Wanted<'_>, frame: &[u8]) -> u32 {
        let program = program(wanted);
        let answer = classic_answer(wanted, &program, frame);
        if wanted.link == 14
            && let Some(translated) = answer_in_place(&program, frame, None)
        {
            // The translation passes truncated and rejected frames to the kernel.
            assert!(translated == answer || (answer == 0 && translated == PASS), "{translated} {answer}");
        }
        answer
    }

    /// `XDP_PASS` of linux/bpf.h.
    const PASS: u32 = 2;

    /// Runs the translation in the kernel; `None` without the capability to load programs.
    fn answer_in_place(program: &[sock_filter], frame: &[u8], list: Option<BorrowedFd<'_>>) -> Option<u32> {
        let mut frame = frame.to_vec();
        let kind = if frame[14] >> 4 == 4 { ETH_P_IP } else { ETH_P_IPV6 };
        frame[12..14].copy_from_slice(&(kind as u16).to_be_bytes());
        match extended::load(Kind::Xdp, &extended::answering_in_place(program, list).unwrap()) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => None,
            loaded => Some(extended::answer(loaded.unwrap().as_fd(), &frame).unwrap()),
        }
    }

    /// Interprets the instructions of classic BPF that the program uses.
    fn classic_answer(wanted: Wanted<'_>, program: &[sock_filter], frame: &[u8]) -> u32 {
        let byte = |at: u32| frame.get(at as usize).map(|byte| u32::from(*byte));
        let half = |at: u32| Some(byte(at)? << 8 | byte(at + 1)?);
        let word = |at: u32| Some(half(at)? << 16 | half(at + 2)?);
        let version = frame[wanted.link as usize] >> 4;
        let (mut a, mut x, mut pc) = (0, 0, 0);
        loop {
            let sock_filter { code, jt, jf, k } = program[pc];
            let code = u32::from(code);
            let loaded = match code {
                LDW if k == PROTOCOL => Some(if version == 4 { ETH_P_IP } else { ETH_P_IPV6 }),
                LDW => word(k),
                LDB => byte(k),
                LDH => half(k),
                LDB_X => byte(x + k),
                LDH_X => half(x + k),
                LDX_IP => byte(k).map(|byte| (byte & 15) * 4),
                RET => return k,
                LDX => Some(k),
                TXA => Some(x),
                XOR_X => Some(a ^ x),
                MUL => Some(a.wrapping_mul(k)),
                RSH => Some(a >> k),
                _ => Some(a),
            };
            // A load beyond the end rejects the frame.
            let Some(loaded) = loaded else { return 0 };
            if matches!(code, LDX_IP | LDX | TAX) {
                x = loaded
            } else {
                a = loaded
            }
            let holds = match code {
                JEQ => a == k,
                JGT => a > k,
                JGE => a >= k,
                JSET => a & k != 0,
                _ => true,
            };
            pc += 1 + usize::from(if holds { jt } else { jf });
        }
    }

    fn to(port: u16, template: Tcp) -> Vec<u8> {
        [vec![0; 14], Tcp { ports: (9, port), ..template }.packet()].concat()
    }

    #[test]
    fn only_segments_to_our_ports_pass() {
        for template in [Tcp::v4, Tcp::v6] {
            for (port, passes) in [(79, false), (80, true), (81, false), (999, false), (1000, true)] {
                assert_eq!(accepts(14, Some(80), Some(1000..=1009), &to(port, template())), passes, "{port}");
            }
            assert!(accepts(14, None, Some(1000..=1009), &to(1009, template())));
            assert!(!accepts(14, None, Some(1000..=1009), &to(1010, template())));
            assert!(accepts(14, Some(80), None, &to(80, template())));
            assert!(!accepts(14, Some(80), None, &to(81, template())));
            assert!(accepts(0, Some(80), None, &to(80, template())[14..]));
        }
    }

    #[test]
    fn segments_to_other_addresses_do_not_pass_if_ours_are_known() {
        let own = [Tcp::v4(), Tcp::v6()].map(|template| template.dst);
        let near = |ip: IpAddr, bit: u32| -> IpAddr {
            match ip {
                IpAddr::V4(ip) => Ipv4Addr::from_bits(ip.to_bits() ^ 1 << (bit % 32)).into(),
                IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() ^ 1 << bit).into(),
            }
        };
        // Addresses that differ from ours in one bit, with our own among them.
        let mut others: Vec<IpAddr> =
            own.iter().flat_map(|ip| [1, 40, 70, 100].map(|bit| near(*ip, bit))).collect();
        others.insert(5, own[0]);
        others.push(own[1]);
        for addresses in [&own[..], &others, &own[..1], &own[1..]] {
            let wanted = Wanted { link: 14, served: Some(80), addresses, ..Wanted::default() };
            for template in [Tcp::v4(), Tcp::v6()] {
                let dst = template.dst;
                assert_eq!(answer(wanted, &to(80, template.clone())) > 0, addresses.contains(&dst), "{dst}");
                assert_eq!(answer(wanted, &to(81, template.clone())), 0);
                for bit in [0, 39, 69, 127] {
                    assert_eq!(answer(wanted, &to(80, Tcp { dst: near(dst, bit), ..template.clone() })), 0);
                }
            }
        }
        let addresses = [own[1]; MAX_ADDRESSES];
        let share = "50%".parse().unwrap();
        let wanted = Wanted {
            link: 14,
            served: Some(80),
            own: Some(&(1000..=1009)),
            addresses: &addresses,
            share,
            ..Wanted::default()
        };
        assert!(program(wanted).len() < 256);
        let whole = Wanted { share: Share::ALL, ..wanted };
        assert!(answer(whole, &to(80, Tcp::v6())) > 0);
        if let Ok(exceptions) = Exceptions::create() {
            assert!(program(Wanted { exceptions: Some(&exceptions), ..wanted }).len() < 256);
        }
    }

    #[test]
    fn segments_of_clients_outside_the_share_do_not_pass_to_the_served_port() {
        for text in ["0%", "30%", "50%", "99.99%"] {
            let share: Share = text.parse().unwrap();
            for link in [0, 14] {
                let wanted =
                    Wanted { link, served: Some(80), own: Some(&(1000..=1009)), share, ..Wanted::default() };
                for n in 0..20u16 {
                    let v4 = Tcp {
                        src: Ipv4Addr::from_bits(0x0A00_0000 + u32::from(n) * 7777).into(),
                        ..Tcp::v4()
                    };
                    let v6 = Tcp { src: Ipv6Addr::new(0xFD00, n, 3, n, 5, 6, n, 8).into(), ..Tcp::v6() };
                    for client in [v4, v6] {
                        let is_in = share.contains(client.src);
                        let passes =
                            |port| answer(wanted, &to(port, client.clone())[14 - link as usize..]) > 0;
                        assert_eq!(passes(80), is_in, "{} {text}", client.src);
                        assert!(passes(1005) && !passes(81), "the share is about the served port");
                    }
                }
            }
        }
    }

    #[test]
    fn segments_of_exceptions_do_not_pass_to_the_served_port() {
        let Ok(exceptions) = Exceptions::create() else {
            return println!("skipped: a list of the kernel needs CAP_BPF");
        };
        for share in ["100%", "50%"] {
            let share: Share = share.parse().unwrap();
            let wanted = Wanted {
                link: 14,
                served: Some(80),
                own: Some(&(1000..=1009)),
                share,
                exceptions: Some(&exceptions),
                ..Wanted::default()
            };
            let program = program(wanted);
            for client in [Tcp::v4(), Tcp::v6()] {
                let passes = |port| {
                    let (frame, list) = (to(port, client.clone()), wanted.list());
                    // XDP_PASS is the verdict on a frame that the filter rejects in place.
                    answer_in_place(&program, &frame, list).is_some_and(|answer| answer > PASS)
                };
                let is_in = share.contains(client.src);
                assert!(passes(80) == is_in && passes(1005) && !passes(81), "{} {share}", client.src);
                exceptions.insert(hash(client.src)).unwrap();
                assert!(!passes(80) && passes(1005), "{} {share}", client.src);
                exceptions.remove(hash(client.src)).unwrap();
                assert_eq!(passes(80), is_in, "{} {share}", client.src);
            }
        }
    }

    #[test]
    fn only_icmp_errors_pass_besides_segments() {
        let with = |template: Tcp, at: usize, protocol: u8, kind: u8| {
            let mut frame = to(80, template);
            let ip = if frame[14] >> 4 == 4 { 20 } else { 40 };
            frame[14 + at] = protocol;
            frame[14 + ip] = kind;
            let answer = answer(Wanted { link: 14, served: Some(80), ..Wanted::default() }, &frame);
            assert!(answer == 0 || answer == COPY_TO_BOTH, "the kernel gets the frame, too");
            answer > 0
        };
        assert!(with(Tcp::v4(), 9, 1, 3) && !with(Tcp::v4(), 9, 1, 8) && !with(Tcp::v4(), 9, 17, 3));
        assert!(with(Tcp::v6(), 6, 58, 2) && with(Tcp::v6(), 6, 58, 1));
        assert!(!with(Tcp::v6(), 6, 58, 128) && !with(Tcp::v6(), 6, 17, 1));
    }

    #[test]
    fn later_fragments_and_short_frames_are_refused() {
        let mut fragment = to(80, Tcp::v4());
        fragment[14 + 7] = 1;
        assert!(!accepts(14, Some(80), None, &fragment));
        for template in [Tcp::v4(), Tcp::v6()] {
            let frame = to(80, template);
            let ports = frame.len() - 20 + 4;
            for len in 15..ports {
                assert!(!accepts(14, Some(80), None, &frame[..len]), "{len}");
            }
        }
    }

    #[test]
    fn kernel_accepts_the_program() {
        let any = Wanted { link: 0, ..Wanted::default() };
        let whole = Wanted { link: 14, served: Some(80), own: Some(&(1000..=1009)), ..any };
        assert!(program(whole).len() < 64, "{}", program(whole).len());
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let addresses = [Tcp::v4().dst, Tcp::v6().dst];
        let [v4, v6] = [&addresses[..1], &addresses[1..]].map(|addresses| Wanted { addresses, ..whole });
        let some = Wanted { addresses: &addresses, ..whole };
        let (serving, dialling) = (Wanted { own: None, ..some }, Wanted { served: None, ..some });
        let own = Wanted { own: Some(&(1..=2)), ..any };
        let share = |text: &str| Wanted { share: text.parse().unwrap(), ..some };
        let shares = [share("0%"), share("50%"), Wanted { own: None, ..share("99.99%") }];
        let all = [whole, own, Wanted { served: Some(1), ..any }, some, v4, v6, serving, dialling];
        let exceptions = Exceptions::create().ok();
        let all = all.into_iter().chain(shares);
        let listed = all.clone().map(|wanted| Wanted { exceptions: exceptions.as_ref(), ..wanted });
        for wanted in all.chain(listed) {
            let program = program(wanted);
            set_program(socket.as_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program).unwrap();
            match extended::load(
                Kind::SchedCls,
                &extended::redirecting(&program, 1, COPY_TO_BOTH, wanted.list()).unwrap(),
            ) {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    println!("skipped: extended programs need CAP_BPF and CAP_NET_ADMIN");
                }
                loaded => drop(loaded.unwrap()),
            }
            let Ok(sockets) = extended::socket_map(1) else { continue };
            let translated =
                extended::to_sockets(&program, sockets.as_fd(), COPY_TO_BOTH, wanted.list()).unwrap();
            drop(extended::load(Kind::Xdp, &translated).unwrap());
        }
    }
}

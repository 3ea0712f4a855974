//! What the kernel hands to a packet socket: TCP to ports of ours, and ICMP errors. A program of classic BPF
//! (`Documentation/networking/filter.rst`), made for one kind of link and one set of ports.

use std::ops::RangeInclusive;

use socket2::SockFilter;

/// Protocol of a frame that carries IPv4, as `linux/if_ether.h` has it.
const ETH_P_IP: u32 = 0x0800;
const ETH_P_IPV6: u32 = 0x86DD;
const ICMP: u32 = 1;
const TCP: u32 = 6;
const ICMPV6: u32 = 58;
/// ICMP "destination unreachable", which "too big" is one of (RFC 792).
const UNREACHABLE: u32 = 3;
/// ICMPv6 "destination unreachable" is 1, "packet too big" 2 (RFC 4443).
const TOO_BIG_V6: u32 = 2;
/// Offset and more-fragments are the low 14 bits; of these the offset alone says that the ports are not here.
const FRAGMENT_OFFSET: u32 = 0x1FFF;
/// More than any packet has.
const WHOLE: u32 = 0x4_0000;

/// Load a byte, a half word, a word from a fixed place; a byte and a half word from behind a register.
const LDB: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
const LDH: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_ABS;
const LDW: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const LDB_X: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_IND;
const LDH_X: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_IND;
/// The length of an IPv4 header into the register.
const LDX_IP: u32 = libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH;
const JEQ: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const JGT: u32 = libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K;
const JGE: u32 = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
const JSET: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
const RET: u32 = libc::BPF_RET | libc::BPF_K;

/// Places that are jumped to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Label {
    Next,
    V6,
    Icmp4,
    Icmp6,
    Ports,
    Range,
    Accept,
    Drop,
}

/// An instruction; the labels are where it goes on if its condition holds and if it does not.
type Step = (u32, Label, Label, u32);

/// The program for links whose header has `link` bytes: accepts segments to the ports `served` and `own`.
pub(super) fn program(link: u32, served: Option<u16>, own: Option<&RangeInclusive<u16>>) -> Vec<SockFilter> {
    let (steps, places) = steps(link, served, own);
    let place = |label: Label| places.iter().find(|(known, _)| *known == label).map(|(_, at)| *at);
    let distance = |from: usize, label: Label| match place(label) {
        // A place behind it, and the program is shorter than 256 instructions.
        Some(at) => (at - from - 1) as u8,
        None => 0,
    };
    let instruction = |(n, (code, yes, no, k)): (usize, &Step)| {
        SockFilter::new(*code as u16, distance(n, *yes), distance(n, *no), *k)
    };
    steps.iter().enumerate().map(instruction).collect()
}

fn steps(
    link: u32,
    served: Option<u16>,
    own: Option<&RangeInclusive<u16>>,
) -> (Vec<Step>, Vec<(Label, usize)>) {
    use Label::{Accept, Drop, Icmp4, Icmp6, Next, Ports, Range, V6};
    let mut steps = Vec::new();
    let mut places = Vec::new();
    let mut part = |label: Option<Label>, part: &[Step]| {
        places.extend(label.map(|label| (label, steps.len())));
        steps.extend_from_slice(part);
    };
    let always = |label: Label| (JGE, label, label, 0);
    // The kernel's own word for what the frame carries, whatever tags are in front of it.
    let protocol = (libc::SKF_AD_OFF + libc::SKF_AD_PROTOCOL) as u32;
    part(None, &[(LDW, Next, Next, protocol), (JEQ, Next, V6, ETH_P_IP)]);
    part(None, &[(LDB, Next, Next, link + 9), (JEQ, Icmp4, Next, ICMP), (JEQ, Next, Drop, TCP)]);
    part(None, &[(LDH, Next, Next, link + 6), (JSET, Drop, Next, FRAGMENT_OFFSET)]);
    part(None, &[(LDX_IP, Next, Next, link), (LDH_X, Next, Next, link + 2), always(Ports)]);
    part(Some(Icmp4), &[(LDX_IP, Next, Next, link), (LDB_X, Next, Next, link)]);
    part(None, &[(JEQ, Accept, Drop, UNREACHABLE)]);
    part(Some(V6), &[(JEQ, Next, Drop, ETH_P_IPV6), (LDB, Next, Next, link + 6)]);
    part(None, &[(JEQ, Icmp6, Next, ICMPV6), (JEQ, Next, Drop, TCP)]);
    part(None, &[(LDH, Next, Next, link + 42), always(Ports)]);
    part(Some(Icmp6), &[(LDB, Next, Next, link + 40), (JGT, Drop, Accept, TOO_BIG_V6)]);
    part(Some(Ports), &[]);
    if let Some(port) = served {
        part(None, &[(JEQ, Accept, Range, port.into())]);
    }
    part(Some(Range), &[]);
    if let Some(own) = own {
        let (first, last) = (u32::from(*own.start()), u32::from(*own.end()));
        part(None, &[(JGE, Next, Drop, first), (JGT, Drop, Accept, last)]);
    }
    part(Some(Drop), &[(RET, Next, Next, 0)]);
    part(Some(Accept), &[(RET, Next, Next, WHOLE)]);
    (steps, places)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tcp;

    /// What the program answers to a frame: the machine of classic BPF, as far as the program uses it.
    fn accepts(link: u32, served: Option<u16>, own: Option<RangeInclusive<u16>>, frame: &[u8]) -> bool {
        let (steps, places) = steps(link, served, own.as_ref());
        let at = |label: Label| places.iter().find(|(known, _)| *known == label).unwrap().1;
        let byte = |at: u32| frame.get(at as usize).map(|byte| u32::from(*byte));
        let half = |at: u32| Some(byte(at)? << 8 | byte(at + 1)?);
        let version = frame[link as usize] >> 4;
        let (mut a, mut x, mut pc) = (0, 0, 0);
        loop {
            let (code, yes, no, k) = steps[pc];
            let loaded = match code {
                LDW => Some(if version == 4 { ETH_P_IP } else { ETH_P_IPV6 }),
                LDB => byte(k),
                LDH => half(k),
                LDB_X => byte(x + k),
                LDH_X => half(x + k),
                LDX_IP => byte(k).map(|byte| (byte & 15) * 4),
                RET => return k > 0,
                _ => Some(a),
            };
            // A load from behind the end refuses the frame.
            let Some(loaded) = loaded else { return false };
            if code == LDX_IP {
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
            let label = if holds { yes } else { no };
            pc = if label == Label::Next { pc + 1 } else { at(label) };
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
    fn errors_of_icmp_pass_and_nothing_else_does() {
        let with = |template: Tcp, at: usize, protocol: u8, kind: u8| {
            let mut frame = to(80, template);
            let ip = if frame[14] >> 4 == 4 { 20 } else { 40 };
            frame[14 + at] = protocol;
            frame[14 + ip] = kind;
            accepts(14, Some(80), None, &frame)
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
    fn a_program_is_what_the_kernel_takes() {
        let whole = program(14, Some(80), Some(&(1000..=1009)));
        assert!(whole.len() < 64, "{}", whole.len());
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let socket = socket2::SockRef::from(&socket);
        for program in [whole, program(0, None, Some(&(1..=2))), program(0, Some(1), None)] {
            socket.attach_filter(&program).unwrap();
        }
    }
}

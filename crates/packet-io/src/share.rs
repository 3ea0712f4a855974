//! The share of the clients that the stack serves on a port of the host; the kernel's TCP serves the others.
//!
//! A hash of the client's address decides; of an IPv6 address, only the first 64 bits are hashed. Two
//! programs in the kernel compute the hash. The device's program passes the packets of the share to the
//! stack. The program of the kernel's listener drops these packets, without a reset.
//!
//! The hash has no secret key, so the same clients are in the share on every host and after every restart. A
//! larger share contains every smaller one. A client can choose its address by the hash, but this only
//! determines which TCP serves it.
//!
//! The kernel also serves the clients of the share that are in the list [`Exceptions`]. Both programs read
//! the list, which can change at any time.

use std::fmt;
use std::io;
use std::net::{IpAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::str::FromStr;
use std::sync::Arc;

use brisk_device::steering::{FACTOR, SHIFT, address_words};
use libc::sock_filter;

use crate::bpf::{
    CLIENT, JGE, LDB, LDW, LDX, MUL, RET, RSH, TAX, TXA, XOR_X, extended, set_program, skip_unless, step,
};

/// Words that are mixed in before and after the address.
const START: u32 = 0x6272_6973;
const END: u32 = 0x6b2d_7368;
/// 100 % in the unit of a share.
const FULL_SHARE: u16 = 10_000;
/// Offset of the IP header for a program that a TCP socket runs.
const IP_HEADER: u32 = libc::SKF_NET_OFF as u32;

/// A share of the clients, from 0 % to 100 % in steps of 0.01 %.
///
/// ```
/// use brisk_packet_io::share::Share;
/// let share: Share = "2.5%".parse().unwrap();
/// assert_eq!(share.to_string(), "2.5%");
/// assert!(Share::ALL.contains("192.0.2.1".parse().unwrap()));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Share(u16);

impl Share {
    /// All clients.
    pub const ALL: Share = Share(FULL_SHARE);

    /// True if all clients are in the share.
    pub fn is_all(self) -> bool {
        self == Share::ALL
    }

    /// True if the client with this address is in the share.
    pub fn contains(self, client: IpAddr) -> bool {
        self.is_all() || hash(client) < self.limit()
    }

    /// Returns the first hash outside the share, which must be less than 100 %.
    pub(crate) fn limit(self) -> u32 {
        // The share is less than 100 %, so the result is below 2^32.
        ((u64::from(self.0) << 32) / u64::from(FULL_SHARE)) as u32
    }
}

impl Default for Share {
    fn default() -> Share {
        Share::ALL
    }
}

/// Returns the hash of a client: of an IPv4 address, or of the first 64 bits of an IPv6 address.
pub fn hash(client: IpAddr) -> u32 {
    let hash = match client.to_canonical() {
        IpAddr::V4(v4) => mix(START, v4.to_bits()),
        v6 => address_words(v6).into_iter().take(2).fold(START, mix),
    };
    mix(hash, END)
}

/// The kernel's listener at the served address, for the clients that the stack does not serve.
#[derive(Debug)]
pub struct KernelListener {
    /// The listener. It does not block.
    pub listener: TcpListener,
    /// The list of clients in the share that the kernel serves nevertheless; `None` if the system permits no
    /// such list.
    pub exceptions: Option<Exceptions>,
    /// True if the stack needs the listener while it has connections: the kernel also sees their packets, and
    /// would reset them without the listener.
    pub guards: bool,
}

/// Clients in the share that the kernel serves nevertheless, by the [`hash`] of their address. Two clients
/// with the same hash count as one. Clones are the same list.
///
/// When a client enters the list, packets of its connections with the stack go to the kernel, which resets
/// these connections.
#[derive(Clone, Debug)]
pub struct Exceptions(Arc<OwnedFd>);

impl Exceptions {
    /// Maximum number of entries.
    pub const MAX: u32 = 4096;

    /// Creates an empty list.
    ///
    /// # Errors
    /// The kernel's error: EPERM without CAP_BPF where `kernel.unprivileged_bpf_disabled` is not 0.
    pub(crate) fn create() -> io::Result<Exceptions> {
        extended::word_map(Exceptions::MAX).map(|map| Exceptions(Arc::new(map)))
    }

    /// Enters a client.
    ///
    /// # Errors
    /// If the list is full, or the system refuses.
    pub fn insert(&self, client: u32) -> io::Result<()> {
        extended::put_word(self.as_fd(), client)
    }

    /// Removes a client.
    ///
    /// # Errors
    /// If the client is not in the list, or the system refuses.
    pub fn remove(&self, client: u32) -> io::Result<()> {
        extended::remove_word(self.as_fd(), client)
    }
}

impl AsFd for Exceptions {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn mix(hash: u32, word: u32) -> u32 {
    let product = (hash ^ word).wrapping_mul(FACTOR);
    product ^ product >> SHIFT
}

/// Returns instructions and their constants that load the hash of a source address into the accumulator. The
/// address begins at `start`; its first `words` words are hashed.
pub(crate) fn hash_of_source(start: u32, words: u32) -> Vec<(u32, u32)> {
    let mix = [(XOR_X, 0), (MUL, FACTOR), (TAX, 0), (RSH, SHIFT), (XOR_X, 0), (TAX, 0)];
    let mut program = vec![(LDX, START)];
    for n in 0..words {
        program.push((LDW, start.wrapping_add(4 * n)));
        program.extend(mix);
    }
    program.push((TXA, 0));
    program.extend([(LDX, END)]);
    program.extend(mix);
    program
}

/// Makes the kernel's listener drop the packets of the clients in `share`, except those in `list`.
///
/// # Errors
/// EPERM if CAP_NET_ADMIN is missing or, with a list, CAP_BPF.
pub(crate) fn reject(listener: BorrowedFd<'_>, share: Share, list: Option<&Exceptions>) -> io::Result<()> {
    match list {
        None => {
            let program = rejecting(share, 0);
            set_program(listener, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
        }
        Some(list) => {
            let program = rejecting(share, CLIENT);
            extended::filter_by_list(listener, &program, list.as_fd(), [u32::MAX, 0])
        }
    }
}

/// Returns a program for the kernel's listener that returns `inside` for the packets of the clients in
/// `share`, and accepts all others.
fn rejecting(share: Share, inside: u32) -> Vec<sock_filter> {
    let of_version = |start: u32, words: u32| {
        let hash = hash_of_source(IP_HEADER.wrapping_add(start), words);
        let mut program: Vec<_> = hash.into_iter().map(|(code, k)| step(code, k)).collect();
        if !share.is_all() {
            program.extend([sock_filter { jf: 1, ..step(JGE, share.limit()) }, step(RET, u32::MAX)]);
        }
        program.push(step(RET, inside));
        program
    };
    let (v4, v6) = (of_version(12, 1), of_version(8, 2));
    let version = [step(LDB, IP_HEADER), step(RSH, 4), skip_unless(4, v4.len() as u8)];
    [version.to_vec(), v4, v6].concat()
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Share, String> {
        let parse = || {
            let (whole, part) = match text.strip_suffix('%')?.split_once('.') {
                Some((whole, part)) => (whole, part),
                None => (text.strip_suffix('%')?, "0"),
            };
            let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
            if !digits(whole) || !digits(part) || part.len() > 2 {
                return None;
            }
            let (whole, part): (u16, u16) = (whole.parse().ok()?, format!("{part:0<2}").parse().ok()?);
            let share = whole.checked_mul(100)?.checked_add(part)?;
            (share <= FULL_SHARE).then_some(Share(share))
        };
        parse().ok_or_else(|| "write a share from 0% to 100%, for instance 10% or 0.5%".to_owned())
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, part) = (self.0 / 100, self.0 % 100);
        match part {
            0 => write!(f, "{whole}%"),
            part if part % 10 == 0 => write!(f, "{whole}.{}%", part / 10),
            part => write!(f, "{whole}.{part:02}%"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    fn share(text: &str) -> Share {
        text.parse().unwrap()
    }

    #[test]
    fn text_of_a_share_has_a_percent_sign_and_two_decimals_at_most() {
        for text in ["0%", "0.01%", "0.5%", "10%", "12.34%", "99.99%", "100%"] {
            assert_eq!(share(text).to_string(), text);
        }
        assert_eq!(share("10.50%"), share("10.5%"));
        for bad in
            ["", "%", "10", "0.1", "-1%", "+1%", "1.234%", "100.01%", "101%", "99999%", "1 %", ".5%", "1e1%"]
        {
            assert!(bad.parse::<Share>().is_err_and(|why| why.contains("0% to 100%")), "{bad}");
        }
        assert!(share("100%").is_all() && !share("99.99%").is_all());
    }

    fn percentage(share: Share, clients: impl Iterator<Item = IpAddr>) -> f64 {
        let (mut inside, mut all) = (0, 0);
        for client in clients {
            inside += u32::from(share.contains(client));
            all += 1;
        }
        100.0 * f64::from(inside) / f64::from(all)
    }

    #[test]
    fn share_contains_its_part_of_every_kind_of_network() {
        for (text, percent) in [("0%", 0.0), ("1%", 1.0), ("10%", 10.0), ("50%", 50.0), ("100%", 100.0)] {
            let share = share(text);
            let v4 = |first: u32, step: u32| {
                (0..20_000).map(move |n| IpAddr::from(Ipv4Addr::from_bits(first.wrapping_add(n * step))))
            };
            let v6 = |first: u128, shift: u32| {
                (0..20_000u128).map(move |n| IpAddr::from(Ipv6Addr::from_bits(first + (n << shift))))
            };
            let prefix = 0x2001_0db8_u128 << 96;
            for found in [
                // Neighbours, the same host in many networks, and addresses all over the range.
                percentage(share, v4(0xC000_0200, 1)),
                percentage(share, v4(0x0A00_0001, 1 << 8)),
                percentage(share, v4(0x0A00_0001, 1 << 12)),
                percentage(share, v4(7, 0x3_1415)),
                percentage(share, v6(prefix, 64)),
                percentage(share, v6(prefix + 1, 80)),
            ] {
                // Four standard deviations of a random choice.
                let deviation = f64::sqrt(percent * (100.0 - percent) / 20_000.0);
                assert!((found - percent).abs() <= 4.0 * deviation, "{text}: {found}");
            }
        }
    }

    #[test]
    fn network_of_an_ipv6_client_decides_and_not_its_host_part() {
        let network = |n: u128| (0x2001_0db8_0000_0000 | n) << 64;
        let is_in = |bits| share("50%").contains(Ipv6Addr::from_bits(bits).into());
        for n in 0..100 {
            assert!((0..50).all(|host| is_in(network(n) + host * 0x1234_5678) == is_in(network(n))));
        }
        let v4: Ipv4Addr = "192.0.2.7".parse().unwrap();
        for text in ["20%", "40%", "60%", "80%"] {
            assert_eq!(share(text).contains(v4.into()), share(text).contains(v4.to_ipv6_mapped().into()));
        }
    }

    #[test]
    fn larger_share_contains_every_smaller_one() {
        for client in (0..5000).map(|n| IpAddr::from(Ipv4Addr::from_bits(0x0A00_0000 + n))) {
            let inside: Vec<bool> =
                (0..=FULL_SHARE).step_by(100).map(|share| Share(share).contains(client)).collect();
            assert!(inside.is_sorted() && !inside[0] && inside[100], "{client}");
        }
    }

    #[test]
    fn clients_of_a_share_are_the_same_in_every_version() {
        let clients = (0..20).map(|n| IpAddr::from(Ipv4Addr::new(192, 0, 2, n)));
        let networks = (0..20).map(|n| IpAddr::from(Ipv6Addr::new(0x2001, 0xdb8, 0, n, 0, 0, 0, 1)));
        let inside = |all: &mut dyn Iterator<Item = IpAddr>| -> Vec<usize> {
            all.enumerate().filter(|(_, ip)| share("25%").contains(*ip)).map(|(n, _)| n).collect()
        };
        assert_eq!(inside(&mut { clients }), [0, 9, 12, 13, 14, 15]);
        assert_eq!(inside(&mut { networks }), [3, 7, 10]);
    }
}

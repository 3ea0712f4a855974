//! Super-packets of more than 64 kB, which the kernel accepts whole if they end in this host.
//!
//! An IPv4 packet that is too long for its length field has 0 in that field; its length is that of the buffer
//! (Linux 6.3, "BIG TCP"). A TUN accepts such a packet since Linux 6.6. One write then moves four times as
//! much, and the kernel's TCP processes it once and wakes its reader once. This halves the cost of bulk data
//! to a program of this host (docs/notes/performance-bulk.md, "Packets of 256 kB").
//!
//! Packets to other hosts leave in pieces of 64 kB: most interfaces accept no more, so the kernel would cut a
//! longer packet into single segments. IPv6 packets also leave in pieces, because a greater length needs an
//! extension header. So do packets for which the kernel has no memory.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use crate::routes::Routes;

/// Time for which the kernel's answer about an address is kept.
const ANSWER_LIFETIME: Duration = Duration::from_secs(1);
/// Maximum number of addresses whose answers are kept.
const MAX_KNOWN: usize = 256;
/// First Linux release that accepts such packets from a TUN. Earlier ones store a packet in at most 17 pages.
const MIN_RELEASE: (u32, u32) = (6, 6);

/// Addresses that this host has, according to the kernel.
#[derive(Debug)]
pub(super) struct Locals {
    routes: Routes,
    known: HashMap<Ipv4Addr, Answer>,
}

#[derive(Clone, Copy, Debug)]
struct Answer {
    is_ours: bool,
    at: Instant,
}

impl Locals {
    /// Opens the tables of the calling thread's network namespace; `None` if the kernel does not accept such
    /// packets, or cannot be queried.
    pub(super) fn open() -> Option<Locals> {
        let release = rustix::system::uname();
        let takes_them = version(release.release().to_str().ok()?)? >= MIN_RELEASE;
        let routes = if takes_them { Routes::open().ok() } else { None };
        routes.map(|routes| Locals { routes, known: HashMap::new() })
    }

    /// True if packets with these headers end in this host and may have any length.
    pub(super) fn accepts_whole(&mut self, headers: &[u8]) -> bool {
        match headers.get(16..).and_then(|rest| rest.first_chunk::<4>()) {
            Some(&to) if headers.first().is_some_and(|first| first >> 4 == 4) => self.are_of(to.into()),
            _ => false,
        }
    }

    fn are_of(&mut self, address: Ipv4Addr) -> bool {
        let now = Instant::now();
        if let Some(answer) = self.known.get(&address)
            && now.saturating_duration_since(answer.at) < ANSWER_LIFETIME
        {
            return answer.is_ours;
        }
        let is_ours = self.routes.is_local(IpAddr::V4(address)).unwrap_or(false);
        if self.known.len() >= MAX_KNOWN {
            self.known.clear();
        }
        self.known.insert(address, Answer { is_ours, at: now });
        is_ours
    }
}

/// True if the kernel had no memory for a packet of that length. Shorter packets may succeed.
pub(super) fn is_out_of_memory(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM | libc::EMSGSIZE))
}

/// Returns the first two numbers of a Linux release: "6.18.44-generic" is (6, 18).
fn version(release: &str) -> Option<(u32, u32)> {
    let (major, rest) = release.split_once('.')?;
    let minor: String = rest.chars().take_while(char::is_ascii_digit).collect();
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::Namespace;
    use crate::privileges::has_sys_admin;
    use crate::testing::Tcp;

    #[test]
    fn releases_are_compared_by_number() {
        assert_eq!(version("6.18.44-fc-v657"), Some((6, 18)));
        assert_eq!(version("6.6-rc1"), Some((6, 6)));
        assert!(version("5.15.0-generic") < Some(MIN_RELEASE));
        assert_eq!(version("unknown"), None);
    }

    #[test]
    fn long_packets_pass_whole_only_to_addresses_of_the_host() {
        if !has_sys_admin() {
            println!("skipped: needs CAP_SYS_ADMIN to create a network namespace");
            return;
        }
        let whole = Namespace::anonymous().unwrap().run(|| {
            let lo = crate::interface::Interface::named("lo").unwrap();
            lo.set_up().unwrap();
            lo.add_address("10.77.0.1".parse().unwrap(), 32).unwrap();
            lo.add_route("10.78.0.0".parse().unwrap(), 16, None).unwrap();
            let mut locals = Locals::open()?;
            let mut take = |dst: &str, template: Tcp| {
                locals.accepts_whole(&Tcp { dst: dst.parse().unwrap(), ..template }.packet())
            };
            let v4 = ["10.77.0.1", "10.77.0.1", "127.0.0.1", "10.78.0.1", "10.79.0.1"];
            let v4 = v4.map(|dst| take(dst, Tcp::v4()));
            Some((v4, take("::1", Tcp::v6())))
        });
        match whole.unwrap() {
            Some(whole) => assert_eq!(whole, ([true, true, true, false, false], false)),
            None => println!("skipped: a TUN takes no packet beyond 64 kB before Linux 6.6"),
        }
    }
}

//! Looks up an address in the kernel's tables: its route, and the neighbour at the next hop (`rtnetlink(7)`).
//!
//! Devices whose frames bypass the kernel's network stack need this. The kernel maintains the tables: it
//! resolves and refreshes hardware addresses, and an administrator's changes apply here too.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;

use rustix::net::{RecvFlags, SendFlags};

use crate::interface::{
    NLMSG_ERROR, NLMSGHDR, RTA_DST, RTA_GATEWAY, RTA_OIF, RTM_GETROUTE, RTN_LOCAL, RTN_UNICAST, Request,
    attribute, encode, next_message, refusal, rtnetlink,
};

// From linux/rtnetlink.h and linux/neighbour.h.
const RTM_NEWNEIGH: u16 = 28;
const RTM_GETNEIGH: u16 = 30;
const RTA_SRC: u16 = 2;
const RTA_VIA: u16 = 18;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NTF_USE: u8 = 1;
const NUD_STALE: u16 = 0x04;
/// The states in which a neighbour's address is used: reachable, stale, delay, probe, no ARP needed,
/// permanent.
const NUD_VALID: u16 = 0x02 | NUD_STALE | 0x08 | 0x10 | 0x40 | 0x80;
/// Sizes of struct rtmsg and struct ndmsg.
const RTMSG: usize = 12;
const NDMSG: usize = 12;
/// Maximum length of an answer about one route or neighbour, bytes.
const ANSWER_MAX: usize = 4096;

/// Queries the tables of the network namespace in which it was opened.
#[derive(Debug)]
pub(crate) struct Routes {
    socket: OwnedFd,
    number: u32,
    answer: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Hop {
    /// Index of the interface.
    pub(crate) interface: u32,
    /// Address of a router, or of the destination itself.
    pub(crate) address: IpAddr,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Neighbour {
    pub(crate) mac: [u8; 6],
    /// True if the entry is stale: it may be used, but should be [confirmed](Routes::confirm).
    pub(crate) is_stale: bool,
}

impl Routes {
    /// Opens a socket for queries.
    ///
    /// # Errors
    /// An error of the kernel.
    pub(crate) fn open() -> io::Result<Routes> {
        Ok(Routes { socket: rtnetlink()?, number: 0, answer: vec![0; ANSWER_MAX] })
    }

    /// Returns the next hop from a local address to another host; `None` for a local, broadcast or
    /// multicast destination.
    ///
    /// # Errors
    /// ENETUNREACH and similar.
    pub(crate) fn hop(&mut self, from: IpAddr, to: IpAddr) -> io::Result<Option<Hop>> {
        let ((family, to_octets), (_, from_octets)) = (encode(to), encode(from));
        let [to_bits, from_bits] = [&to_octets, &from_octets].map(|octets| 8 * octets.len() as u8);
        // struct rtmsg: family, lengths of destination and source; the other fields are left unspecified.
        let header = [family, to_bits, from_bits, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let question = Request::question(RTM_GETROUTE)
            .bytes(&header)
            .attribute(RTA_DST, &to_octets)
            .attribute(RTA_SRC, &from_octets);
        Ok(hop_in(self.request(question)?, to))
    }

    /// True if `to` is an address of this host.
    ///
    /// # Errors
    /// An error of the kernel.
    pub(crate) fn is_local(&mut self, to: IpAddr) -> io::Result<bool> {
        let (family, octets) = encode(to);
        let header = [family, 8 * octets.len() as u8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let question = Request::question(RTM_GETROUTE).bytes(&header).attribute(RTA_DST, &octets);
        Ok(self.request(question)?.get(7) == Some(&RTN_LOCAL))
    }

    /// Returns the neighbour at `hop`; `None` if the kernel has not resolved it.
    ///
    /// # Errors
    /// An error of the kernel.
    pub(crate) fn neighbour(&mut self, hop: Hop) -> io::Result<Option<Neighbour>> {
        let question = about_neighbour(Request::question(RTM_GETNEIGH), hop, 0);
        match self.request(question) {
            Ok(answer) => Ok(neighbour_in(answer)),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Tells the kernel that the neighbour is in use, so that it confirms the address.
    ///
    /// # Errors
    /// CAP_NET_ADMIN is missing.
    pub(crate) fn confirm(&mut self, hop: Hop) -> io::Result<()> {
        self.request(about_neighbour(Request::new(RTM_NEWNEIGH, 0), hop, NTF_USE)).map(drop)
    }

    /// Sends a request, and returns the kernel's answer; it is empty for an acknowledgement.
    fn request(&mut self, request: Request) -> io::Result<&[u8]> {
        self.number = self.number.wrapping_add(1);
        rustix::net::send(&self.socket, &request.numbered(self.number), SendFlags::empty())?;
        loop {
            // The kernel answers before `send` returns.
            let (_, len) = rustix::net::recv(&self.socket, self.answer.as_mut_slice(), RecvFlags::DONTWAIT)?;
            let answer = self.answer.get(..len).unwrap_or_default();
            // The answer to an earlier request that was given up may come first.
            if answer.get(8..12) == Some(&self.number.to_ne_bytes()) {
                break;
            }
        }
        let (kind, payload, _) = next_message(&self.answer)?;
        let (from, to) = (NLMSGHDR, NLMSGHDR + payload.len());
        if kind == NLMSG_ERROR {
            return refusal(payload).map(|()| &[][..]);
        }
        self.answer.get(from..to).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

fn about_neighbour(request: Request, hop: Hop, flags: u8) -> Request {
    let (family, octets) = encode(hop.address);
    // struct ndmsg: family, padding, interface, state, flags, type.
    let mut header = vec![family, 0, 0, 0];
    header.extend(hop.interface.to_ne_bytes());
    header.extend([0, 0, flags, 0]);
    request.bytes(&header).attribute(NDA_DST, &octets)
}

/// Returns the hop in struct rtmsg and attributes.
fn hop_in(answer: &[u8], to: IpAddr) -> Option<Hop> {
    let attributes = answer.get(RTMSG..)?;
    let interface = u32::from_ne_bytes(attribute(attributes, RTA_OIF)?.try_into().ok()?);
    let via = attribute(attributes, RTA_GATEWAY)
        // A router of the other family: two bytes for the family, then its address.
        .or_else(|| attribute(attributes, RTA_VIA).and_then(|via| via.get(2..)));
    let address = match via.map(<[u8]>::len) {
        None => to,
        Some(4) => Ipv4Addr::from(*via?.first_chunk::<4>()?).into(),
        Some(_) => Ipv6Addr::from(*via?.first_chunk::<16>()?).into(),
    };
    (answer.get(7) == Some(&RTN_UNICAST)).then_some(Hop { interface, address })
}

/// Returns the neighbour in struct ndmsg and attributes.
fn neighbour_in(answer: &[u8]) -> Option<Neighbour> {
    let state = u16::from_ne_bytes(answer.get(8..10)?.try_into().ok()?);
    let mac = attribute(answer.get(NDMSG..)?, NDA_LLADDR)?.try_into().ok()?;
    (state & NUD_VALID != 0).then_some(Neighbour { mac, is_stale: state & NUD_STALE != 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interface::Interface;
    use crate::netns::Namespace;
    use crate::privileges::{has_net_admin, has_sys_admin};
    use std::process::Command;

    fn ip(words: &str) {
        let done = Command::new("ip").args(words.split_whitespace()).output().unwrap();
        assert!(done.status.success(), "ip {words}: {}", String::from_utf8_lossy(&done.stderr));
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn routes_and_neighbours_are_those_of_the_kernel() {
        if !has_sys_admin() || !has_net_admin() {
            println!("skipped: a veth pair in a network namespace needs CAP_SYS_ADMIN and CAP_NET_ADMIN");
            return;
        }
        let work = || {
            ip("link add eth0 type veth peer name eth1");
            ip("link set lo up");
            ip("link set eth0 up");
            ip("link set eth1 up");
            ip("addr add 10.77.0.1/24 dev eth0");
            ip("addr add fd77::1/64 dev eth0 nodad");
            ip("route add 192.0.2.0/24 via 10.77.0.9");
            ip("route add 2001:db8::/32 via fd77::9");
            ip("route add 198.51.100.0/24 via inet6 fd77::9 dev eth0");
            ip("neigh add 10.77.0.9 lladdr 02:00:00:00:00:09 dev eth0 nud permanent");
            ip("neigh add fd77::9 lladdr 02:00:00:00:00:0a dev eth0 nud stale");
            let (mut routes, index) = (Routes::open().unwrap(), Interface::named("eth0").unwrap().index());
            let hop = |via: &str| Some(Hop { interface: index, address: address(via) });
            let (v4, v6) = (address("10.77.0.1"), address("fd77::1"));
            for (from, to, via) in [
                (v4, "10.77.0.3", "10.77.0.3"),
                (v4, "192.0.2.7", "10.77.0.9"),
                (v4, "198.51.100.7", "fd77::9"),
                (v6, "fd77::3", "fd77::3"),
                (v6, "2001:db8::7", "fd77::9"),
            ] {
                assert_eq!(routes.hop(from, address(to)).unwrap(), hop(via), "{to}");
            }
            assert_eq!(routes.hop(v4, v4).unwrap(), None, "ourselves");
            let unreachable = routes.hop(v4, address("203.0.113.1")).unwrap_err();
            assert_eq!(unreachable.raw_os_error(), Some(libc::ENETUNREACH));

            let known = routes.neighbour(hop("10.77.0.9").unwrap()).unwrap().unwrap();
            assert_eq!(known, Neighbour { mac: [2, 0, 0, 0, 0, 9], is_stale: false });
            let stale = hop("fd77::9").unwrap();
            assert!(routes.neighbour(stale).unwrap().unwrap().is_stale);
            routes.confirm(stale).unwrap();
            assert!(!routes.neighbour(stale).unwrap().unwrap().is_stale, "the kernel confirms the neighbour");
            assert_eq!(routes.neighbour(hop("10.77.0.77").unwrap()).unwrap(), None);
        };
        Namespace::anonymous().unwrap().run(work).unwrap();
    }
}

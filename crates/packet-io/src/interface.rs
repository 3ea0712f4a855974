//! A network interface and its configuration: addresses, MTU, state, routes.
//!
//! The module has a small encoder for rtnetlink (`rtnetlink(7)`), so that no external program is needed, and
//! IPv4 and IPv6 have the same code. All calls act in the network namespace of the calling thread; see
//! [`crate::netns`]. They fail with the kernel's error, for example if CAP_NET_ADMIN is missing or the
//! interface is gone.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::privileges::OpenError;

/// An interface of the calling thread's network namespace.
#[derive(Clone, Debug)]
pub struct Interface {
    name: String,
    index: u32,
}

impl Interface {
    /// Finds an interface by name.
    pub fn named(name: &str) -> Result<Interface, OpenError> {
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
        let index = socket.and_then(|socket| rustix::net::netdevice::name_to_index(socket, name));
        match index {
            Ok(index) => Ok(Interface { name: name.to_owned(), index }),
            Err(error) => Err(OpenError::interface(name, "cannot be found", error.into())),
        }
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the kernel's index of the interface.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// True if the interface is up.
    pub fn is_up(&self) -> Result<bool, OpenError> {
        let reply = self
            .link()
            .map_err(|error| OpenError::interface(&self.name, "does not report its state", error))?;
        let flags = reply.get(8..12).and_then(|flags| flags.try_into().ok()).map_or(0, i32::from_ne_bytes);
        Ok(flags & libc::IFF_UP != 0)
    }

    /// True if the other end is connected; for a TUN device, if a process has it open.
    pub fn has_carrier(&self) -> Result<bool, OpenError> {
        let reply = self
            .link()
            .map_err(|error| OpenError::interface(&self.name, "does not report its state", error))?;
        let carrier = attribute(reply.get(IFINFOMSG..).unwrap_or_default(), IFLA_CARRIER);
        Ok(carrier.is_some_and(|carrier| carrier != [0]))
    }

    /// Returns the MTU in bytes.
    pub fn mtu(&self) -> Result<usize, OpenError> {
        self.link()
            .and_then(|reply| {
                let attributes = reply.get(IFINFOMSG..).unwrap_or_default();
                let mtu = attribute(attributes, IFLA_MTU).and_then(|value| value.try_into().ok());
                mtu.map(|mtu| u32::from_ne_bytes(mtu) as usize)
                    .ok_or_else(|| io::ErrorKind::InvalidData.into())
            })
            .map_err(|error| OpenError::interface(&self.name, "does not report its MTU", error))
    }

    /// Returns the hardware address of an Ethernet.
    pub fn hardware_address(&self) -> Result<[u8; 6], OpenError> {
        self.link()
            .and_then(|reply| {
                let attributes = reply.get(IFINFOMSG..).unwrap_or_default();
                let address = attribute(attributes, IFLA_ADDRESS).and_then(|value| value.try_into().ok());
                // The loopback interface reports an address of zeros.
                address
                    .filter(|address| *address != [0; 6])
                    .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it is not an Ethernet"))
            })
            .map_err(|error| OpenError::interface(&self.name, "has no hardware address of six bytes", error))
    }

    /// Returns the kind of a virtual device, as in `ip -d link` ("veth", "bridge"); `None` for hardware.
    pub(crate) fn kind(&self) -> Option<String> {
        let reply = self.link().ok()?;
        let information = attribute(reply.get(IFINFOMSG..)?, IFLA_LINKINFO)?;
        let kind = attribute(information, IFLA_INFO_KIND)?;
        Some(String::from_utf8_lossy(kind).trim_end_matches('\0').to_owned())
    }

    /// Returns the id of the XDP program on the interface, if there is one.
    pub(crate) fn xdp_program(&self) -> Option<u32> {
        let reply = self.link().ok()?;
        let xdp = attribute(reply.get(IFINFOMSG..)?, IFLA_XDP)?;
        Some(u32::from_ne_bytes(attribute(xdp, IFLA_XDP_PROG_ID)?.try_into().ok()?))
    }

    /// Returns the number of receive queues, as in `ethtool -l`. If the driver does not report them, returns
    /// the number of queues for which it has allocated memory.
    pub(crate) fn receive_queues(&self) -> u32 {
        let rooms = || {
            let reply = self.link().ok()?;
            let rooms = attribute(reply.get(IFINFOMSG..)?, IFLA_NUM_RX_QUEUES)?;
            Some(u32::from_ne_bytes(rooms.try_into().ok()?))
        };
        self.channels().ok().or_else(rooms).unwrap_or(1)
    }

    /// Returns the number of active receive queues that the driver reports (`ETHTOOL_GCHANNELS`).
    fn channels(&self) -> io::Result<u32> {
        let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0))?;
        // struct ethtool_channels: the command, the maximum of each kind, then the numbers of receive, send,
        // other and combined channels.
        let mut channels = [0u32; 9];
        channels[0] = ETHTOOL_GCHANNELS;
        // SAFETY: ifreq is plain old data.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (place, byte) in request.ifr_name.iter_mut().zip(self.name.bytes().take(libc::IFNAMSIZ - 1)) {
            *place = byte as libc::c_char;
        }
        request.ifr_ifru.ifru_data = (&raw mut channels).cast();
        // SAFETY: the request takes an ifreq whose data is the structure of its command, here struct
        // ethtool_channels; both outlive the call.
        match unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) } {
            0 => Ok(channels[5] + channels[8]),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Returns the kernel's description of the interface: struct ifinfomsg and attributes.
    fn link(&self) -> io::Result<Vec<u8>> {
        Request::new(RTM_GETLINK, 0).bytes(&link_header(self.index, 0, 0)).exchange()
    }

    /// Returns the addresses of the interface, except link-local IPv6 addresses.
    pub fn addresses(&self) -> Result<Vec<IpAddr>, OpenError> {
        let failed = |error| OpenError::interface(&self.name, "does not report its addresses", error);
        let mut found = Vec::new();
        for family in [libc::AF_INET, libc::AF_INET6] {
            // struct ifaddrmsg: the family, and no filter.
            let header = [family as u8, 0, 0, 0, 0, 0, 0, 0];
            let request = Request::new(RTM_GETADDR, NLM_F_DUMP).bytes(&header);
            for answer in request.dump().map_err(failed)? {
                found.extend(self.address_in(&answer));
            }
        }
        Ok(found)
    }

    /// Returns the address in struct ifaddrmsg and attributes, if it belongs to this interface.
    fn address_in(&self, answer: &[u8]) -> Option<IpAddr> {
        let index = u32::from_ne_bytes(answer.get(4..8)?.try_into().ok()?);
        let attributes = answer.get(IFADDRMSG..)?;
        let octets = attribute(attributes, IFA_LOCAL).or_else(|| attribute(attributes, IFA_ADDRESS))?;
        let address = match octets.len() {
            4 => IpAddr::from(<[u8; 4]>::try_from(octets).ok()?),
            _ => IpAddr::from(<[u8; 16]>::try_from(octets).ok()?),
        };
        let of_the_link = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
        (index == self.index && !of_the_link).then_some(address)
    }

    /// Sets the MTU in bytes.
    pub fn set_mtu(&self, mtu: u32) -> Result<(), OpenError> {
        Request::new(RTM_NEWLINK, 0)
            .bytes(&link_header(self.index, 0, 0))
            .attribute(IFLA_MTU, &mtu.to_ne_bytes())
            .exchange()
            .map(drop)
            .map_err(|error| OpenError::interface(&self.name, &format!("does not accept MTU {mtu}"), error))
    }

    /// Sets the maximum length, in bytes, of super-packets that the kernel sends through the interface or
    /// merges on receipt. More than 65,536 requires Linux 6.3 and an interface with support (a veth has it, a
    /// TUN does not).
    pub fn set_longest_super(&self, bytes: u32) -> Result<(), OpenError> {
        let lengths = [IFLA_GSO_MAX_SIZE, IFLA_GRO_MAX_SIZE, IFLA_GSO_IPV4_MAX_SIZE, IFLA_GRO_IPV4_MAX_SIZE];
        let request = Request::new(RTM_NEWLINK, 0).bytes(&link_header(self.index, 0, 0));
        let request =
            lengths.into_iter().fold(request, |request, of| request.attribute(of, &bytes.to_ne_bytes()));
        request.exchange().map(drop).map_err(|error| {
            let action = format!("does not accept super-packets of {bytes} bytes");
            OpenError::interface(&self.name, &action, error)
        })
    }

    /// Brings the interface up.
    pub fn set_up(&self) -> Result<(), OpenError> {
        Request::new(RTM_NEWLINK, 0)
            .bytes(&link_header(self.index, libc::IFF_UP as u32, libc::IFF_UP as u32))
            .exchange()
            .map(drop)
            .map_err(|error| OpenError::interface(&self.name, "cannot be switched on", error))
    }

    /// Adds an address with a prefix of `prefix` bits to the interface. An existing address is not an error.
    /// If the interface is up, the kernel answers at the address when this returns.
    pub fn add_address(&self, address: IpAddr, prefix: u8) -> Result<(), OpenError> {
        let (family, octets) = encode(address);
        // struct ifaddrmsg: family, prefix length, flags, scope, index. Without duplicate address detection
        // an IPv6 address is usable at once. Only brisk's own devices get addresses here, so no other host
        // can have them.
        let no_detection = if address.is_ipv6() { libc::IFA_F_NODAD as u8 } else { 0 };
        let mut header = vec![family, prefix, no_detection, 0];
        header.extend(self.index.to_ne_bytes());
        Request::new(RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE)
            .bytes(&header)
            .attribute(IFA_LOCAL, &octets)
            .attribute(IFA_ADDRESS, &octets)
            .exchange()
            .map_err(|error| {
                OpenError::interface(
                    &self.name,
                    &format!("does not accept address {address}/{prefix}"),
                    error,
                )
            })?;
        if address.is_ipv6() && self.is_up()? {
            wait_until_local(address);
        }
        Ok(())
    }

    /// Routes `destination/prefix` to this interface, through the next hop `via` if given. `0.0.0.0/0` and
    /// `::/0` are the default routes. An existing route is replaced.
    pub fn add_route(&self, destination: IpAddr, prefix: u8, via: Option<IpAddr>) -> Result<(), OpenError> {
        let (family, octets) = encode(destination);
        let scope = if via.is_some() { RT_SCOPE_UNIVERSE } else { RT_SCOPE_LINK };
        // struct rtmsg: family, lengths of destination and source, tos, table, protocol, scope, type, flags.
        let mut header = vec![family, prefix, 0, 0, RT_TABLE_MAIN, RTPROT_STATIC, scope, RTN_UNICAST];
        header.extend(0u32.to_ne_bytes());
        let mut request = Request::new(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE).bytes(&header);
        if prefix > 0 {
            request = request.attribute(RTA_DST, &octets);
        }
        if let Some(via) = via {
            request = request.attribute(RTA_GATEWAY, &encode(via).1);
        }
        request.attribute(RTA_OIF, &self.index.to_ne_bytes()).exchange().map(drop).map_err(|error| {
            OpenError::interface(&self.name, &format!("does not accept route {destination}/{prefix}"), error)
        })
    }
}

/// Waits until Linux has added the local route of an IPv6 address, which it does shortly after it adds the
/// address. Packets that arrive earlier are lost.
fn wait_until_local(address: IpAddr) {
    const ATTEMPTS: u32 = 500;
    const PAUSE: Duration = Duration::from_millis(1);
    for _ in 0..ATTEMPTS {
        let (family, octets) = encode(address);
        let header = [family, octets.len() as u8 * 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let route = Request::new(RTM_GETROUTE, 0).bytes(&header).attribute(RTA_DST, &octets).exchange();
        // The eighth byte of struct rtmsg is the type of the route that the kernel would use.
        if route.is_ok_and(|route| route.get(7) == Some(&RTN_LOCAL)) {
            return;
        }
        std::thread::sleep(PAUSE);
    }
}

pub(crate) fn encode(address: IpAddr) -> (u8, Vec<u8>) {
    match address {
        IpAddr::V4(v4) => (libc::AF_INET as u8, v4.octets().to_vec()),
        IpAddr::V6(v6) => (libc::AF_INET6 as u8, v6.octets().to_vec()),
    }
}

// From linux/rtnetlink.h, linux/if_link.h and linux/if_addr.h.
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
pub(crate) const RTM_GETROUTE: u16 = 26;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
const NLM_F_REPLACE: u16 = 0x100;
const NLM_F_CREATE: u16 = 0x400;
const NLM_F_DUMP: u16 = 0x300;
pub(crate) const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const IFLA_ADDRESS: u16 = 1;
const IFLA_MTU: u16 = 4;
const IFLA_LINKINFO: u16 = 18;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_CARRIER: u16 = 33;
const IFLA_GSO_MAX_SIZE: u16 = 41;
const IFLA_XDP: u16 = 43;
const IFLA_GRO_MAX_SIZE: u16 = 58;
const IFLA_GSO_IPV4_MAX_SIZE: u16 = 63;
const IFLA_GRO_IPV4_MAX_SIZE: u16 = 64;
const IFLA_XDP_PROG_ID: u16 = 4;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
pub(crate) const RTA_DST: u16 = 1;
pub(crate) const RTA_OIF: u16 = 4;
pub(crate) const RTA_GATEWAY: u16 = 5;
const RT_TABLE_MAIN: u8 = 254;
const RTPROT_STATIC: u8 = 4;
const RT_SCOPE_UNIVERSE: u8 = 0;
const RT_SCOPE_LINK: u8 = 253;
pub(crate) const RTN_UNICAST: u8 = 1;
pub(crate) const RTN_LOCAL: u8 = 2;
// From linux/sockios.h and linux/ethtool.h.
const SIOCETHTOOL: libc::Ioctl = 0x8946;
const ETHTOOL_GCHANNELS: u32 = 0x3C;
/// Size of the buffer for the kernel's answers, bytes.
const ANSWER_MAX: usize = 32 << 10;
/// Size of struct nlmsghdr.
pub(crate) const NLMSGHDR: usize = 16;
/// Size of struct ifinfomsg.
const IFINFOMSG: usize = 16;
/// Size of struct ifaddrmsg.
const IFADDRMSG: usize = 8;

/// struct ifinfomsg: family, padding, device type, index, flags, mask of the flags to change.
fn link_header(index: u32, flags: u32, change: u32) -> Vec<u8> {
    let mut header = vec![0u8; 4];
    for word in [index, flags, change] {
        header.extend(word.to_ne_bytes());
    }
    header
}

/// One message to the kernel: header, fixed part and attributes, each aligned to four bytes.
pub(crate) struct Request(Vec<u8>);

impl Request {
    /// Returns a request for one answer and no acknowledgement.
    pub(crate) fn question(kind: u16) -> Request {
        let mut question = Request::new(kind, 0);
        question.0[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
        question
    }

    /// Returns the message with a sequence number, which its answer repeats.
    pub(crate) fn numbered(mut self, number: u32) -> Vec<u8> {
        let len = self.0.len() as u32;
        self.0[..4].copy_from_slice(&len.to_ne_bytes());
        self.0[8..12].copy_from_slice(&number.to_ne_bytes());
        self.0
    }

    /// Returns a request that gets an answer; a command gets an acknowledgement.
    pub(crate) fn new(kind: u16, flags: u16) -> Request {
        // struct nlmsghdr: length (written last), type, flags, sequence number, port.
        let mut message = vec![0u8; 4];
        message.extend(kind.to_ne_bytes());
        message.extend((NLM_F_REQUEST | NLM_F_ACK | flags).to_ne_bytes());
        message.extend([0u8; 8]);
        Request(message)
    }

    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Request {
        self.0.extend(bytes);
        self.align()
    }

    pub(crate) fn attribute(mut self, kind: u16, value: &[u8]) -> Request {
        let len = 4 + value.len() as u16;
        self.0.extend(len.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.align()
    }

    fn align(mut self) -> Request {
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// Sends the request and returns the payload of the first answer; empty for a command, which is only
    /// acknowledged.
    fn exchange(self) -> io::Result<Vec<u8>> {
        let socket = self.send()?;
        let mut buffer = vec![0u8; ANSWER_MAX];
        let (_, len) = rustix::net::recv(&socket, &mut buffer, RecvFlags::empty())?;
        let (kind, payload, _) = next_message(buffer.get(..len).unwrap_or_default())?;
        if kind != NLMSG_ERROR {
            return Ok(payload.to_vec());
        }
        refusal(payload).map(|()| Vec::new())
    }

    /// Sends a request with many answers, and returns their payloads.
    fn dump(self) -> io::Result<Vec<Vec<u8>>> {
        let socket = self.send()?;
        let mut buffer = vec![0u8; ANSWER_MAX];
        let mut answers = Vec::new();
        loop {
            let (_, len) = rustix::net::recv(&socket, &mut buffer, RecvFlags::empty())?;
            let mut messages = buffer.get(..len).unwrap_or_default();
            while !messages.is_empty() {
                let (kind, payload, rest) = next_message(messages)?;
                match kind {
                    NLMSG_DONE => return Ok(answers),
                    NLMSG_ERROR => refusal(payload)?,
                    _ => answers.push(payload.to_vec()),
                }
                messages = rest;
            }
        }
    }

    fn send(self) -> io::Result<OwnedFd> {
        let socket = rtnetlink()?;
        rustix::net::send(&socket, &self.numbered(0), SendFlags::empty())?;
        Ok(socket)
    }
}

/// Opens a socket for queries about interfaces and routes.
pub(crate) fn rtnetlink() -> io::Result<OwnedFd> {
    // NETLINK_ROUTE is protocol 0, the default.
    let family = AddressFamily::NETLINK;
    Ok(rustix::net::socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, None)?)
}

/// Returns type and payload of the first message, and the remaining bytes.
pub(crate) fn next_message(messages: &[u8]) -> io::Result<(u16, &[u8], &[u8])> {
    let take = || {
        let len = u32::from_ne_bytes(messages.get(..4)?.try_into().ok()?) as usize;
        let kind = u16::from_ne_bytes(messages.get(4..6)?.try_into().ok()?);
        let rest = messages.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, messages.get(NLMSGHDR..len)?, rest))
    };
    take().ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Decodes an NLMSG_ERROR; code 0 means success.
pub(crate) fn refusal(payload: &[u8]) -> io::Result<()> {
    let code = payload.get(..4).and_then(|code| code.try_into().ok()).map(i32::from_ne_bytes);
    match code.ok_or(io::ErrorKind::InvalidData)? {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code.saturating_neg())),
    }
}

pub(crate) fn attribute(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let len = usize::from(u16::from_ne_bytes(attributes.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(attributes.get(2..4)?.try_into().ok()?);
        let value = attributes.get(4..len)?;
        if kind == wanted {
            return Some(value);
        }
        attributes = attributes.get(len.next_multiple_of(4)..)?;
    }
}

/// Returns the error in an interface name; `None` if Linux accepts the name.
pub(crate) fn name_problem(name: &str) -> Option<&'static str> {
    if name.is_empty() {
        Some("the interface name is empty")
    } else if name.len() >= libc::IFNAMSIZ {
        Some("the interface name is too long")
    } else if name == "."
        || name == ".."
        || name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace())
    {
        Some("the interface name has a character that Linux does not allow")
    } else if name.contains(|c: char| c.is_control() || c == '%') {
        // With a '%' the kernel would replace "%d" by a number, and the caller would not know the name.
        Some("the interface name has a character that brisk does not allow")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::Namespace;
    use crate::privileges::has_sys_admin;

    #[test]
    fn mtu_of_loopback_is_read_without_privileges() {
        assert!(Interface::named("lo").unwrap().mtu().unwrap() >= 1500);
    }

    #[test]
    fn an_unknown_interface_is_named_in_the_error() {
        let error = Interface::named("pio-absent").unwrap_err().to_string();
        assert!(
            error.contains("interface pio-absent") && error.contains("no interface of that name"),
            "{error}"
        );
    }

    #[test]
    fn addresses_and_routes_of_both_families_are_accepted() {
        if !has_sys_admin() {
            println!("skipped: needs CAP_SYS_ADMIN to create a network namespace");
            return;
        }
        let namespace = Namespace::anonymous().unwrap();
        let bound = namespace.run(|| {
            let lo = Interface::named("lo").unwrap();
            lo.set_mtu(9000).unwrap();
            assert_eq!(lo.mtu().unwrap(), 9000);
            lo.add_address("10.99.0.1".parse().unwrap(), 24).unwrap();
            lo.add_address("10.99.0.1".parse().unwrap(), 24).unwrap();
            lo.add_address("fd00:99::1".parse().unwrap(), 64).unwrap();
            lo.add_route("10.98.0.0".parse().unwrap(), 16, None).unwrap();
            lo.add_route("0.0.0.0".parse().unwrap(), 0, Some("10.99.0.2".parse().unwrap())).unwrap();
            lo.add_route("fd00:98::".parse().unwrap(), 64, None).unwrap();
            let refused = lo.add_address("10.99.0.1".parse().unwrap(), 33).unwrap_err().to_string();
            assert!(refused.contains("10.99.0.1/33"), "{refused}");
            let addresses = lo.addresses().unwrap();
            for own in ["10.99.0.1", "fd00:99::1"] {
                assert!(addresses.contains(&own.parse().unwrap()), "{addresses:?}");
            }
            ["10.99.0.1:0", "[fd00:99::1]:0"].map(|address| std::net::UdpSocket::bind(address).is_ok())
        });
        assert_eq!(bound.unwrap(), [true, true]);
    }
}

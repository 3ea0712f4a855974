//! Native TCP on an address of the host, through AF_XDP (`Documentation/networking/af_xdp.rst`).
//!
//! A program on the interface puts segments for the stack into brisk's memory, before the kernel processes
//! them. The kernel gets all other frames. Packets of the stack leave as frames from the same memory, past
//! the host's firewall, to the next hop in the kernel's tables. The kernel sends packets that leave by
//! another interface (`next_hops`). If the driver supports it, frames are not copied at all. Super-packets
//! cannot cross the interface: this module cuts and merges them. The device is meant for many short
//! transfers; `packet:` is better for bulk.
//!
//! | file | content |
//! |---|---|
//! | [`mod@self`] | [`open`] |
//! | `device` | the device: some of the queues of the interface |
//! | `program` | the program on the interface |
//! | `socket` | the socket of a queue of the interface, its memory and rings |
//! | `ring`, `mapping` | a ring, and memory shared with the kernel |
//! | `merge` | merges consecutive segments |
//! | `next_hops` | hardware addresses of next hops |
//! | `errors` | ICMP errors, and the state of the interface |
//! | `survey` | checks the requirements on an interface |
//!
//! It requires an Ethernet with an MTU of at most [`MAX_MTU`], Linux 5.9, CAP_NET_RAW, CAP_NET_ADMIN, CAP_BPF
//! and CAP_PERFMON. The program and all other resources end with the process, even after a crash.

mod device;
mod errors;
mod mapping;
mod merge;
mod next_hops;
mod program;
mod ring;
mod socket;
mod survey;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::sync::Arc;

use brisk_device::Device;
use socket2::Socket;

use crate::bpf::extended::XdpMode;
use crate::interface::Interface;
use crate::packet::filter::MAX_ADDRESSES;
use crate::packet::guard::Guards;
use crate::packet::{ETHERNET_HEADER, PacketOptions};
use crate::privileges::OpenError;
use crate::share::{KernelListener, Share};
use device::{Host, Port, XdpDevice};
use errors::Errors;
use program::Running;
use socket::{HEADROOM, XdpSocket};
pub use survey::{Survey, survey};

/// Options of an XDP device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct XdpOptions {
    /// As [`PacketOptions::serve`]. Default none.
    pub serve: Option<SocketAddr>,
    /// As [`PacketOptions::share`]. Default `None`.
    pub share: Option<Share>,
    /// As [`PacketOptions::local_ports`]. Default 256.
    pub local_ports: u16,
    /// Frames that may wait for the stack on each queue of the interface: 64 to 65,536, rounded up to a power
    /// of two. Each takes 2 KiB, or 4 KiB if the MTU is above 1774. Default 2048.
    pub receive_frames: u32,
    /// Frames that may wait for the interface on each of its queues, with the same limits. Default 1024.
    pub send_frames: u32,
    /// True to run the program in the driver if possible. Default true.
    pub native: bool,
    /// True to let the driver use the stack's memory if possible. Default true.
    pub zero_copy: bool,
    /// True to trust segments whose checksum is only the sum of the pseudo-header. A sender on the same host
    /// leaves the rest to the interface. Must be false if segments come from a wire. `None`: true on a veth,
    /// otherwise false. Default `None`.
    pub unfinished_checksums: Option<bool>,
}

impl Default for XdpOptions {
    fn default() -> Self {
        XdpOptions {
            serve: None,
            share: None,
            local_ports: PacketOptions::default().local_ports,
            receive_frames: 2048,
            send_frames: 1024,
            native: true,
            zero_copy: true,
            unfinished_checksums: None,
        }
    }
}

/// Maximum length of an IP packet, bytes: a frame is a page, with 256 bytes before the packet and possibly a
/// VLAN tag in the header.
pub const MAX_MTU: usize = 4096 - HEADROOM - ETHERNET_HEADER - VLAN_TAG;
const VLAN_TAG: usize = 4;
/// Maximum number of queues of an interface; `ethtool -L` reduces its queues.
const MAX_QUEUES: u32 = 64;

/// The device that [`open`] has opened.
pub struct Opened {
    /// The queues, one device each: as many as requested, or as the interface has if these are fewer.
    pub queues: Vec<Box<dyn Device>>,
    /// Ports from which the stack must open connections.
    pub local_ports: Option<RangeInclusive<u16>>,
    /// How frames reach the stack.
    pub path: Path,
    /// As [`packet::Opened::kernel_listener`](crate::packet::Opened::kernel_listener).
    pub kernel_listener: Option<KernelListener>,
}

/// How frames reach the stack from the interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Path {
    /// The driver writes them to the stack's memory.
    ZeroCopy,
    /// The driver runs the program, and frames are copied.
    Native,
    /// The driver does not support XDP: the kernel runs the program on its own buffers, and frames are
    /// copied. Merged packets (GRO, or TSO of a sender on the same host) do not fit a frame and are lost.
    Generic,
}

impl Path {
    /// Returns `zero-copy`, `native` or `generic`.
    pub fn name(self) -> &'static str {
        match self {
            Path::ZeroCopy => "zero-copy",
            Path::Native => "native",
            Path::Generic => "generic",
        }
    }
}

/// Opens `count` queues, or fewer if the interface has fewer. `addresses` are the addresses of the stack, and
/// of the host on `interface`.
///
/// # Errors
/// The interface does not exist or is not an Ethernet; its MTU is above [`MAX_MTU`]; there are no addresses,
/// or more than 16; a capability is missing; the interface has another XDP program (it stays); another
/// program uses the port.
pub fn open(
    interface: &str,
    addresses: &[IpAddr],
    options: XdpOptions,
    count: usize,
) -> Result<Opened, OpenError> {
    open_with(interface, addresses, options, count, None).map(|(opened, _)| opened)
}

/// Like [`open`], but also returns the guards. `inherited` is the guard of the served port if another process
/// hands that port over.
pub(crate) fn open_with(
    interface: &str,
    addresses: &[IpAddr],
    options: XdpOptions,
    count: usize,
    inherited: Option<&Socket>,
) -> Result<(Opened, Arc<Guards>), OpenError> {
    let subject = format!("xdp:{interface}");
    let unsupported = |problem: String| Err(OpenError::unsupported(subject.clone(), problem));
    let XdpOptions { serve, share, local_ports, .. } = options;
    let guards = Guards::claim_for(&subject, interface, serve, share, local_ports, inherited)?;
    let unusable = |error| OpenError::xdp(interface, "the kernel's listener cannot be used", error);
    let kernel_listener = guards.kernel_listener(false).map_err(unusable)?;
    let interface = Interface::named(interface)?;
    let (mtu, mac) = (interface.mtu()?, interface.hardware_address()?);
    if mtu > MAX_MTU {
        return unsupported(format!(
            "its MTU is {mtu}, and a frame of AF_XDP has room for {MAX_MTU}; `ip link set {} mtu {MAX_MTU}`, or use packet:",
            interface.name()
        ));
    }
    // Without addresses, the program would also take packets that this host forwards.
    if addresses.is_empty() || addresses.len() > MAX_ADDRESSES {
        return unsupported(format!(
            "the stack can share 1 to {MAX_ADDRESSES} addresses with the host, not {}; name them with --addr",
            addresses.len()
        ));
    }
    let sockets = sockets(&interface, mtu, &options)?;
    let own = guards.ports();
    let wanted = guards.wanted(ETHERNET_HEADER, own.as_ref(), addresses);
    let descriptors: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
    let running = Arc::new(Running::start(&interface, wanted, &descriptors, options.native)?);
    let path = match running.mode() {
        _ if sockets.iter().all(XdpSocket::is_zero_copy) => Path::ZeroCopy,
        XdpMode::Native => Path::Native,
        XdpMode::Generic => Path::Generic,
    };
    let trusts = options.unfinished_checksums.unwrap_or_else(|| interface.kind().as_deref() == Some("veth"));
    let count = count.clamp(1, sockets.len());
    let mut ports: Vec<Vec<Port>> = (0..count).map(|_| Vec::new()).collect();
    for (n, socket) in sockets.into_iter().enumerate() {
        ports[n % count].push(Port::new(socket));
    }
    let host = Host { interface, mac, mtu, trusts };
    let device = |ports| XdpDevice::new(running.clone(), ports, guards.clone(), host.clone());
    let mut devices = ports.into_iter().map(device).collect::<Result<Vec<_>, _>>()?;
    if let Some(first) = devices.first_mut() {
        let failed = |error| OpenError::xdp(host.interface.name(), "a packet socket cannot be opened", error);
        first.listen_to(Errors::open(&host.interface).map_err(failed)?);
    }
    let queues = devices.into_iter().map(|device| Box::new(device) as Box<dyn Device>).collect();
    let local_ports = guards.ports();
    Ok((Opened { queues, local_ports, path, kernel_listener }, guards))
}

/// Opens a socket for each queue of the interface, because frames of a queue can go only to its own socket.
fn sockets(interface: &Interface, mtu: usize, options: &XdpOptions) -> Result<Vec<XdpSocket>, OpenError> {
    let chunk = if mtu + ETHERNET_HEADER + VLAN_TAG + HEADROOM <= 2048 { 2048 } else { 4096 };
    let queues = interface.receive_queues().max(1);
    if queues > MAX_QUEUES {
        let problem = format!(
            "it has {queues} queues, and at most {MAX_QUEUES} are used; `ethtool -L {} combined {MAX_QUEUES}` reduces them",
            interface.name()
        );
        return Err(OpenError::unsupported(format!("xdp:{}", interface.name()), problem));
    }
    let mut sockets = Vec::new();
    for queue in 0..queues {
        match XdpSocket::open(interface, queue, chunk, options) {
            Ok(socket) => sockets.push(socket),
            // The driver has allocated memory for more queues than the interface uses.
            Err(error) if queue > 0 && error.kind() == io::ErrorKind::InvalidInput => break,
            Err(error) => return Err(error),
        }
    }
    Ok(sockets)
}

#[cfg(test)]
mod tests;

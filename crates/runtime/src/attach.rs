//! Opens the device that a user names with `--device`, `--addr` and `--gateway`.
//!
//! A TUN device is created if it does not exist, and is brought up. The kernel's side of it gets an address
//! in each network: the gateway if it is in that network, otherwise the first address that is not the
//! stack's. So with `--device tun:brisk0 --addr 10.7.0.2/24` the kernel has `10.7.0.1` and reaches the stack.
//!
//! On a `udp:` device the stack has a fixed address. The UDP address and port identify a peer. The UDP port
//! identifies a service; inside the stack every service has the port [`UDP_SERVICE_PORT`]. On a `packet:` or
//! `xdp:` device the stack has the addresses of the interface.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use brisk_packet_io::interface::Interface;
use brisk_packet_io::packet::{self, PacketOptions};
use brisk_packet_io::share::{KernelListener, Share};
use brisk_packet_io::takeover::{self, Candidate, Offer, Predecessor};
use brisk_packet_io::tun::{TunDevice, TunOptions};
use brisk_packet_io::udp::{self, UdpDevice, UdpOptions};
use brisk_packet_io::xdp::{self, XdpOptions};
use brisk_packet_io::{Device, DeviceSpec, OpenError};

use crate::endpoint::Builder;
use crate::prefix::Prefix;

/// The service's TCP port in the stack of a `udp:` device.
pub const UDP_SERVICE_PORT: u16 = 7413;

/// Default MTU of a TUN device, bytes.
const TUN_MTU: u16 = 1500;

/// A device and its addresses, as a user requests them.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use brisk_runtime::packet_io::share::Share;
/// use brisk_runtime::attach::{
///     AttachConfig, AttachError, Attached, Frames, NoRoute, OpenShare, Queues, UDP_SERVICE_PORT,
/// };
///
/// let mut request = AttachConfig::new("udp:127.0.0.1:0".parse()?);
/// request.queues = Queues::UpTo(4);
/// let checked: Result<(), AttachError> = request.check();
/// checked?;
/// // `udp:` cannot leave some of the clients to the kernel, as `packet:` can.
/// assert!(request.check_share("10%".parse()?).is_err() && request.open_share("10%".parse()?, None).is_err());
/// let OpenShare { offer, .. } = request.open_share(Share::ALL, None)?;
/// assert!(offer.is_none(), "another process can take over the port of `packet:` only");
/// let (builder, attached) = request.open()?;
/// match &attached {
///     Attached::Native { frames: Frames::Redirected, .. } => println!("the kernel redirects frames"),
///     Attached::Native { frames, .. } => println!("packets arrive by {}", frames.name()),
///     Attached::Udp { .. } => println!("peers are known by their UDP address"),
/// }
/// assert_eq!(attached.service_port(7000), UDP_SERVICE_PORT);
/// let inside: Result<_, NoRoute> = attached.destination("192.0.2.1:7000".parse()?);
/// assert_eq!(attached.peer(inside?), "192.0.2.1:7000".parse()?);
/// # drop(builder);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AttachConfig {
    /// The device.
    pub device: DeviceSpec,
    /// The stack's own addresses. `tun:` needs at least one, `udp:` none. For `packet:` and `xdp:` they are
    /// addresses of the host; the default is the address in `serve`, or else all addresses of the interface.
    pub addresses: Vec<Prefix>,
    /// The address of the kernel's side of a TUN device, in the network of one of `addresses`.
    pub gateway: Option<IpAddr>,
    /// Maximum size of an IP packet, bytes, 576 to 65535. On a `udp:` device it applies to the path that
    /// carries the datagrams. `None`: 1500 on `tun:` and `udp:`, otherwise the MTU of the interface.
    pub mtu: Option<u16>,
    /// The address and port to serve, for `packet:` and `xdp:`. Other programs cannot use the port. `[::]`
    /// means every address.
    pub serve: Option<SocketAddr>,
    /// Ports for connections that the stack opens, for `packet:` and `xdp:`; see
    /// [`PacketOptions::local_ports`].
    pub local_ports: u16,
    /// Queues of the device, each with a stack of its own ([`Builder::queue`]). Default one.
    pub queues: Queues,
}

/// Number of queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Queues {
    /// This number, 1 or more; opening fails if the device does not have as many.
    Exactly(usize),
    /// This number, or fewer if the device does not have as many.
    UpTo(usize),
}

/// Reason why a device could not be attached, in one line with the remedy.
#[derive(Debug)]
#[non_exhaustive]
pub enum AttachError {
    /// The options contradict each other.
    Usage(String),
    /// The device could not be opened.
    Open(OpenError),
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AttachError::Usage(text) => f.write_str(text),
            AttachError::Open(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for AttachError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            AttachError::Usage(_) => None,
            AttachError::Open(error) => error.source(),
        }
    }
}

impl From<OpenError> for AttachError {
    fn from(error: OpenError) -> Self {
        AttachError::Open(error)
    }
}

impl From<AttachError> for io::Error {
    fn from(error: AttachError) -> io::Error {
        match error {
            AttachError::Usage(text) => io::Error::new(io::ErrorKind::InvalidInput, text),
            AttachError::Open(error) => error.into(),
        }
    }
}

/// Reason why a destination cannot be reached from this device, in one line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NoRoute {
    destination: IpAddr,
    family: &'static str,
    remedy: &'static str,
}

brisk_wire::impl_error! {
    NoRoute {
        Self { destination, family, remedy } =>
            "{destination} cannot be reached: the stack has no {family} address; {remedy}";
    }
}

impl NoRoute {
    fn to(outside: SocketAddr, remedy: &'static str) -> NoRoute {
        let family = if outside.is_ipv4() { "IPv4" } else { "IPv6" };
        NoRoute { destination: outside.ip(), family, remedy }
    }
}

impl From<NoRoute> for io::Error {
    fn from(error: NoRoute) -> io::Error {
        io::Error::new(io::ErrorKind::AddrNotAvailable, error)
    }
}

/// How outside addresses correspond to addresses in the stack.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Attached {
    /// They are equal: `tun:`, `packet:` and `xdp:`.
    Native {
        /// The stack's addresses.
        addresses: Vec<IpAddr>,
        /// How packets get to the stack.
        frames: Frames,
    },
    /// The UDP address and port identify a peer.
    Udp {
        /// The UDP address and port of the device.
        local: SocketAddr,
    },
}

/// A device that [`AttachConfig::open_share`] has opened.
#[derive(Debug)]
#[non_exhaustive]
pub struct OpenShare {
    /// A builder with the device and the addresses.
    pub builder: Builder,
    /// How outside addresses correspond to addresses in the stack.
    pub attached: Attached,
    /// The kernel's listener. It serves the clients outside the share, and later also exempt clients. `None`
    /// if the share is 100 % and the system cannot exempt clients.
    pub kernel: Option<KernelListener>,
    /// The offer to hand the port over to a later process; `None` on `tun:` and `udp:`. The stack receives
    /// nothing before the offer [begins](Offer::begin).
    pub offer: Option<Offer>,
}

/// How packets to the stack's addresses get from the interface to the stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Frames {
    /// The interface is the device: `tun:`.
    Own,
    /// `packet:` reads copies of frames.
    Copied,
    /// The kernel redirects frames to `packet:` ([`packet::Opened`]).
    Redirected,
    /// Frames arrive by `xdp:`, over this path.
    Xdp(xdp::Path),
}

impl Frames {
    /// Returns one word for the log.
    pub fn name(self) -> &'static str {
        match self {
            Frames::Own => "own",
            Frames::Copied => "copied",
            Frames::Redirected => "redirected",
            Frames::Xdp(path) => path.name(),
        }
    }
}

impl AttachConfig {
    /// Returns a request for `device` with default settings.
    pub fn new(device: DeviceSpec) -> AttachConfig {
        let local_ports = PacketOptions::default().local_ports;
        AttachConfig {
            device,
            addresses: Vec::new(),
            gateway: None,
            mtu: None,
            serve: None,
            local_ports,
            queues: Queues::Exactly(1),
        }
    }

    /// Opens the device and configures the kernel's side of it. The returned builder has the device and the
    /// addresses.
    ///
    /// # Errors
    /// [`AttachError::Usage`] if the request contradicts itself; [`AttachError::Open`] if the system refuses
    /// it.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn open(&self) -> Result<(Builder, Attached), AttachError> {
        self.check()?;
        let opened = match &self.device {
            DeviceSpec::Tun { name } => return self.open_tun(name),
            DeviceSpec::Udp { bind } => return self.open_udp(*bind),
            DeviceSpec::Packet { interface } => {
                let (options, count, addresses) = self.packet_options(interface, None)?;
                self.on_packet((packet::open(interface, &addresses, options, count)?, None), addresses)
            }
            DeviceSpec::Xdp { interface } => {
                let (options, count, addresses) = self.xdp_options(interface, None)?;
                let opened = xdp::open(interface, &addresses, options, count)?;
                self.on_xdp(interface, (opened, None), count, addresses)?
            }
        };
        Ok((opened.builder, opened.attached))
    }

    /// Like [`open`](AttachConfig::open), but the stack serves only the clients in `share`. With a
    /// `predecessor`, this process takes the port `serve` over from it. On `packet:` and `xdp:` a later
    /// process can take the port over from this one.
    ///
    /// # Errors
    /// Those of [`open`](AttachConfig::open) and of [`check_share`](AttachConfig::check_share).
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn open_share(
        &self,
        share: Share,
        predecessor: Option<Predecessor>,
    ) -> Result<OpenShare, AttachError> {
        self.check_share(share)?;
        self.check()?;
        match &self.device {
            DeviceSpec::Packet { interface } => {
                let (options, count, addresses) = self.packet_options(interface, Some(share))?;
                let opened = takeover::open_packet(interface, &addresses, options, count, predecessor)?;
                Ok(self.on_packet(opened, addresses))
            }
            DeviceSpec::Xdp { interface } => {
                let (options, count, addresses) = self.xdp_options(interface, Some(share))?;
                let opened = takeover::open_xdp(interface, &addresses, options, count, predecessor)?;
                self.on_xdp(interface, opened, count, addresses)
            }
            DeviceSpec::Tun { .. } | DeviceSpec::Udp { .. } => {
                let (builder, attached) = self.open()?;
                Ok(OpenShare { builder, attached, kernel: None, offer: None })
            }
        }
    }

    /// Asks the process that serves the port `serve` on this interface to hand it over. `None` if no process
    /// offers it.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn ask(&self) -> Option<Candidate> {
        match &self.device {
            DeviceSpec::Packet { interface } | DeviceSpec::Xdp { interface } => {
                Candidate::ask(interface, self.serve?)
            }
            DeviceSpec::Tun { .. } | DeviceSpec::Udp { .. } => None,
        }
    }

    /// Checks that the kernel can serve the clients outside `share` on this device.
    ///
    /// # Errors
    /// [`AttachError::Usage`] if it cannot.
    pub fn check_share(&self, share: Share) -> Result<(), AttachError> {
        match &self.device {
            DeviceSpec::Packet { .. } | DeviceSpec::Xdp { .. } => Ok(()),
            DeviceSpec::Tun { .. } | DeviceSpec::Udp { .. } if share.is_all() => Ok(()),
            device @ (DeviceSpec::Tun { .. } | DeviceSpec::Udp { .. }) => Err(AttachError::Usage(format!(
                "{device} cannot serve a share of {share}: the kernel has no clients at its address; use packet: or xdp:"
            ))),
        }
    }

    /// Makes the checks of [`open`](AttachConfig::open) that need no system call.
    ///
    /// # Errors
    /// [`AttachError::Usage`] if the request contradicts itself.
    pub fn check(&self) -> Result<(), AttachError> {
        let device = &self.device;
        let refuse = |text: String| Err(AttachError::Usage(text));
        match device {
            DeviceSpec::Tun { .. } if self.addresses.is_empty() => {
                return refuse(format!("{device} needs an address for the stack: --addr 10.7.0.2/24"));
            }
            DeviceSpec::Udp { .. } if !self.addresses.is_empty() || self.gateway.is_some() => {
                return refuse(format!(
                    "{device} takes no --addr and no --gateway: its address is the UDP address"
                ));
            }
            DeviceSpec::Packet { .. } | DeviceSpec::Xdp { .. } if self.gateway.is_some() => {
                return refuse(format!("{device} takes no --gateway: it uses the routes of the host"));
            }
            DeviceSpec::Tun { .. }
            | DeviceSpec::Udp { .. }
            | DeviceSpec::Packet { .. }
            | DeviceSpec::Xdp { .. } => {}
        }
        let Some(gateway) = self.gateway else { return Ok(()) };
        let Some(network) = self.addresses.iter().find(|own| own.contains(gateway)) else {
            return refuse(format!(
                "--gateway {gateway} is not in the network of any --addr; choose an address that is"
            ));
        };
        if network.address == gateway {
            return refuse(format!("--gateway {gateway} is the stack's own address; choose another"));
        }
        Ok(())
    }

    fn open_tun(&self, name: &str) -> Result<(Builder, Attached), AttachError> {
        let mut queues =
            self.open_queues(|count| TunDevice::open_queues(name, TunOptions::default(), count))?;
        let mtu = self.mtu.unwrap_or(TUN_MTU);
        let device = queues
            .first_mut()
            .ok_or_else(|| AttachError::Usage(format!("tun:{name} with 0 queues; request 1 or more")))?;
        for own in &self.addresses {
            match self.set_up(device, own, mtu) {
                // A user who may not configure the device can still use one that is already configured.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                other => other?,
            }
        }
        let addresses: Vec<IpAddr> = self.addresses.iter().map(|own| own.address).collect();
        Ok((
            self.builder(boxed(queues), &addresses, None),
            Attached::Native { addresses, frames: Frames::Own },
        ))
    }

    /// Configures the kernel's side of the network of `own`.
    fn set_up(&self, device: &mut TunDevice, own: &Prefix, mtu: u16) -> Result<(), OpenError> {
        let gateway = self.gateway.filter(|gateway| own.contains(*gateway));
        match gateway.or_else(|| own.neighbour()) {
            Some(kernel) => device.configure(kernel, own.length, mtu.into()),
            // The network has only this address, so the kernel needs only a route to it.
            None => {
                let interface = Interface::named(device.name())?;
                interface.set_mtu(mtu.into())?;
                interface.set_up()?;
                interface.add_route(own.address, own.length, None)
            }
        }
    }

    fn open_udp(&self, bind: SocketAddr) -> Result<(Builder, Attached), AttachError> {
        let defaults = UdpOptions::default();
        let path_mtu = self.mtu.map_or(defaults.path_mtu, usize::from);
        let options = UdpOptions { path_mtu, ..defaults };
        let queues = self.open_queues(|count| UdpDevice::bind_queues(bind, options, count))?;
        let local = queues.first().map_or(bind, UdpDevice::local_addr);
        Ok((self.builder(boxed(queues), &[udp::LOCAL_INNER.into()], None), Attached::Udp { local }))
    }

    fn packet_options(
        &self,
        interface: &str,
        share: Option<Share>,
    ) -> Result<(PacketOptions, usize, Vec<IpAddr>), AttachError> {
        let AttachConfig { serve, local_ports, .. } = *self;
        let (Queues::Exactly(count) | Queues::UpTo(count)) = self.queues;
        let options = PacketOptions { serve, share, local_ports, ..PacketOptions::default() };
        Ok((options, count, self.host_addresses(interface)?))
    }

    fn on_packet(
        &self,
        (opened, offer): (packet::Opened, Option<Offer>),
        addresses: Vec<IpAddr>,
    ) -> OpenShare {
        let builder = self.builder(opened.queues, &addresses, opened.local_ports);
        let frames = if opened.redirected { Frames::Redirected } else { Frames::Copied };
        let attached = Attached::Native { addresses, frames };
        OpenShare { builder, attached, kernel: opened.kernel_listener, offer }
    }

    fn xdp_options(
        &self,
        interface: &str,
        share: Option<Share>,
    ) -> Result<(XdpOptions, usize, Vec<IpAddr>), AttachError> {
        let AttachConfig { serve, local_ports, .. } = *self;
        let (Queues::Exactly(count) | Queues::UpTo(count)) = self.queues;
        let options = XdpOptions { serve, share, local_ports, ..XdpOptions::default() };
        Ok((options, count, self.host_addresses(interface)?))
    }

    fn on_xdp(
        &self,
        interface: &str,
        (opened, offer): (xdp::Opened, Option<Offer>),
        count: usize,
        addresses: Vec<IpAddr>,
    ) -> Result<OpenShare, AttachError> {
        let there = opened.queues.len();
        if there < count && self.queues == Queues::Exactly(count) {
            return Err(AttachError::Usage(format!(
                "xdp:{interface} supports {there} cores at most, one for each of its queues (`ethtool -l {interface}`), and \
                 {count} are asked for"
            )));
        }
        let builder = self.builder(opened.queues, &addresses, opened.local_ports);
        let attached = Attached::Native { addresses, frames: Frames::Xdp(opened.path) };
        Ok(OpenShare { builder, attached, kernel: opened.kernel_listener, offer })
    }

    /// Returns the addresses of the host that the stack shares with the kernel.
    fn host_addresses(&self, interface: &str) -> Result<Vec<IpAddr>, AttachError> {
        if !self.addresses.is_empty() {
            return Ok(self.addresses.iter().map(|own| own.address).collect());
        }
        if let Some(serve) = self.serve.filter(|serve| !serve.ip().is_unspecified()) {
            return Ok(vec![serve.ip()]);
        }
        let found = Interface::named(interface)?.addresses()?;
        match found.is_empty() {
            false => Ok(found),
            true => Err(AttachError::Usage(format!(
                "{interface} has no address; give it one, or name an address of this host with --addr"
            ))),
        }
    }

    /// Returns a builder with these queues, at least one.
    fn builder(
        &self,
        queues: Vec<Box<dyn Device>>,
        addresses: &[IpAddr],
        local_ports: Option<RangeInclusive<u16>>,
    ) -> Builder {
        Builder::on_queues(queues).stack(|stack| {
            stack.addresses = addresses.to_vec();
            stack.mtu = self.mtu.unwrap_or(stack.mtu);
            if let Some(ports) = local_ports {
                stack.ephemeral_ports = ports;
            }
        })
    }

    /// Opens the requested number of queues; one if the device has only one and the request permits that.
    fn open_queues<T>(&self, open: impl Fn(usize) -> Result<Vec<T>, OpenError>) -> Result<Vec<T>, OpenError> {
        match self.queues {
            Queues::Exactly(count) => open(count),
            Queues::UpTo(count) => match open(count) {
                // The device was created for one queue.
                Err(error) if count > 1 && error.kind() == io::ErrorKind::InvalidInput => open(1),
                other => other,
            },
        }
    }
}

fn boxed(queues: Vec<impl Device + 'static>) -> Vec<Box<dyn Device>> {
    queues.into_iter().map(|queue| Box::new(queue) as Box<dyn Device>).collect()
}

impl Attached {
    /// Returns the address in the stack for the address `outside`.
    ///
    /// # Errors
    /// If the stack has no address of its family.
    pub fn destination(&self, outside: SocketAddr) -> Result<SocketAddr, NoRoute> {
        match self {
            // A socket on every IPv6 address serves both families.
            Attached::Udp { local }
                if local.is_ipv4() != outside.is_ipv4()
                    && (local.is_ipv4() || !local.ip().is_unspecified()) =>
            {
                Err(NoRoute::to(outside, "give it a socket of both families with --device udp:[::]:0"))
            }
            Attached::Udp { .. } => Ok(SocketAddr::new(udp::inner_address(outside), UDP_SERVICE_PORT)),
            Attached::Native { addresses, .. } => {
                match addresses.iter().any(|own| own.is_ipv4() == outside.is_ipv4()) {
                    true => Ok(outside),
                    false => Err(NoRoute::to(outside, "give it one with --addr")),
                }
            }
        }
    }

    /// Returns the port in the stack of the service at the outside port `port`.
    pub fn service_port(&self, port: u16) -> u16 {
        match self {
            Attached::Native { .. } => port,
            Attached::Udp { .. } => UDP_SERVICE_PORT,
        }
    }

    /// Returns the outside address of the peer whose address in the stack is `inside`, or `inside` itself if
    /// the outside address is unknown. For a peer that has moved on a `udp:` device, returns its first
    /// outside address.
    pub fn peer(&self, inside: SocketAddr) -> SocketAddr {
        match self {
            Attached::Udp { .. } => udp::outer_address(inside.ip()).unwrap_or(inside),
            Attached::Native { .. } => inside,
        }
    }

    /// Returns one word for how frames get to the stack; `None` on `tun:` and `udp:`.
    pub fn frames(&self) -> Option<&'static str> {
        match self {
            Attached::Native { frames: Frames::Own, .. } | Attached::Udp { .. } => None,
            Attached::Native { frames, .. } => Some(frames.name()),
        }
    }

    /// Returns the outside address and port of a listener on `local`.
    pub fn outside(&self, local: SocketAddr) -> SocketAddr {
        match self {
            Attached::Udp { local } => *local,
            Attached::Native { addresses, .. } => {
                let own = addresses.iter().find(|own| own.is_ipv4() == local.is_ipv4());
                let address = own.copied().filter(|_| local.ip().is_unspecified()).unwrap_or(local.ip());
                SocketAddr::new(address, local.port())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(config: &AttachConfig) -> String {
        match config.check() {
            Err(AttachError::Usage(text)) => text,
            other => panic!("{other:?}"),
        }
    }

    fn config(device: &str, addresses: &[&str], gateway: Option<&str>) -> AttachConfig {
        AttachConfig {
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
            gateway: gateway.map(|text| text.parse().unwrap()),
            ..AttachConfig::new(device.parse().unwrap())
        }
    }

    #[test]
    fn an_error_keeps_that_of_the_system() {
        use std::error::Error;

        let here = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let taken = config(&format!("udp:{}", here.local_addr().unwrap()), &[], None);
        let error = taken.open().unwrap_err();
        let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
        assert_eq!(source.map(io::Error::kind), Some(io::ErrorKind::AddrInUse), "{error}");
    }

    #[test]
    fn requests_that_contradict_themselves_are_refused_with_a_remedy() {
        assert!(refused(&config("tun:t0", &[], None)).contains("--addr 10.7.0.2/24"));
        assert!(refused(&config("udp:0.0.0.0:1", &["10.0.0.1/24"], None)).contains("takes no --addr"));
        let elsewhere = config("tun:t0", &["10.0.0.1/24"], Some("10.0.1.1"));
        assert!(refused(&elsewhere).contains("not in the network of any --addr"));
        for device in ["packet:eth0", "xdp:eth0"] {
            assert!(refused(&config(device, &[], Some("10.0.0.1"))).contains("takes no --gateway"));
        }
        let own = config("tun:t0", &["10.0.0.1/24"], Some("10.0.0.1"));
        assert!(refused(&own).contains("own address"));
        assert!(config("tun:t0", &["10.0.0.1/24"], Some("10.0.0.9")).check().is_ok());
    }

    #[test]
    fn only_devices_on_addresses_of_the_host_serve_a_share() {
        let part: Share = "10%".parse().unwrap();
        for (device, serves) in
            [("tun:t0", false), ("udp:0.0.0.0:1", false), ("packet:eth0", true), ("xdp:eth0", true)]
        {
            let config = config(device, &[], None);
            assert_eq!(config.check_share(part).is_ok(), serves, "{device}");
            assert!(config.check_share(Share::ALL).is_ok());
        }
    }

    #[test]
    fn a_destination_needs_an_address_of_its_family() {
        let attached = Attached::Native { addresses: vec!["10.0.0.2".parse().unwrap()], frames: Frames::Own };
        let (v4, v6) = ("10.0.0.1:80".parse().unwrap(), "[fd00::1]:80".parse().unwrap());
        assert_eq!(attached.destination(v4), Ok(v4));
        assert!(attached.destination(v6).unwrap_err().to_string().contains("no IPv6 address"));
        let unspecified = "0.0.0.0:80".parse().unwrap();
        assert_eq!(attached.outside(unspecified), "10.0.0.2:80".parse().unwrap());
    }

    #[test]
    fn udp_socket_reaches_peers_of_its_families() {
        for (local, reaches_v4, reaches_v6) in
            [("0.0.0.0:1", true, false), ("[::]:1", true, true), ("[::1]:1", false, true)]
        {
            let attached = Attached::Udp { local: local.parse().unwrap() };
            let reaches = |outside: &str| attached.destination(outside.parse().unwrap()).is_ok();
            assert_eq!(
                (reaches("192.0.2.1:9"), reaches("[2001:db8::1]:9")),
                (reaches_v4, reaches_v6),
                "{local}"
            );
        }
    }

    #[test]
    fn peer_over_udp_has_its_inner_address_and_the_service_port() {
        let attached = Attached::Udp { local: "[::]:9".parse().unwrap() };
        for outside in ["192.0.2.1:80", "[2001:db8::1]:80"] {
            let outside = outside.parse().unwrap();
            let inner = attached.destination(outside).unwrap();
            assert_eq!(inner, SocketAddr::new(udp::inner_address(outside), UDP_SERVICE_PORT));
            assert_eq!(attached.outside(inner), "[::]:9".parse().unwrap());
            assert_eq!(attached.peer(inner), outside);
        }
        let unknown = "[fd62:7269:736b:6:1:2:3:4]:5".parse().unwrap();
        assert_eq!(attached.peer(unknown), unknown);
    }
}

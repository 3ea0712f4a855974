//! Redirection, the fast path to an address of the host. The kernel moves packets for the stack from the
//! interface to a TUN device of brisk. Packets that the stack writes to the TUN leave through the interface,
//! addressed to the next hop.
//!
//! Two small programs do this, one at the interface and one at the TUN. Super-packets pass whole in both
//! directions, and the kernel's TCP never sees the segments. ICMP errors are copied, so the kernel gets them
//! too. The kernel's routes and neighbours apply, but none of its firewall rules. Programs and TUN end with
//! the process.
//!
//! Redirection requires an Ethernet, Linux 6.6, CAP_NET_ADMIN and CAP_BPF.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::task::{Context, Poll};

use brisk_device::steering::Steering;
use brisk_device::{Capabilities, Counters, Device, Gathered, RxMeta, SharedSink, TxMeta};

use super::ETHERNET_HEADER;
use super::filter::{self, MAX_ADDRESSES};
use super::guard::Guards;
use crate::bpf::extended::{self, Instruction, Kind};
use crate::interface::Interface;
use crate::privileges::OpenError;
use crate::tun::{TunDevice, TunOptions};

/// Name of the TUN; the kernel chooses the number.
const NAME: &str = "brisk%d";

/// A queue of the TUN.
#[derive(Debug)]
pub(super) struct RedirectDevice {
    /// The two programs. They are dropped first.
    _running: Arc<[OwnedFd; 2]>,
    tun: TunDevice,
    guards: Arc<Guards>,
    mtu: usize,
}

impl RedirectDevice {
    /// Opens `count` queues for packets to `addresses` and the ports of `guards`.
    ///
    /// # Errors
    /// A requirement is missing, or there are no addresses or more than [`MAX_ADDRESSES`].
    pub(super) fn open_queues(
        interface: &str,
        addresses: &[IpAddr],
        guards: &Arc<Guards>,
        count: usize,
    ) -> Result<Vec<RedirectDevice>, OpenError> {
        // Without addresses, the program would also redirect packets that this host forwards.
        if addresses.is_empty() || addresses.len() > MAX_ADDRESSES {
            return Err(OpenError::unsupported(
                format!("packet:{interface}"),
                format!("{} addresses cannot be redirected; name 1 to {MAX_ADDRESSES}", addresses.len()),
            ));
        }
        let interface = Interface::named(interface)?;
        interface.hardware_address()?;
        let mtu = interface.mtu()?;
        let queues = TunDevice::open_new(NAME, TunOptions::default(), count)?;
        let tun = Interface::named(queues.first().map_or(NAME, TunDevice::name))?;
        tun.set_mtu(u32::try_from(mtu).unwrap_or(u32::MAX))?;
        tun.set_up()?;
        let own = guards.ports();
        let wanted = guards.wanted(ETHERNET_HEADER, own.as_ref(), addresses);
        let filter = filter::program(wanted);
        let inwards = extended::redirecting(&filter, tun.index(), filter::COPY_TO_BOTH, wanted.list());
        let inwards = inwards.unwrap_or_default();
        let failed = |error| OpenError::packet(interface.name(), "frames cannot be redirected", error);
        let outwards = run(&extended::sending_out(interface.index()), &tun).map_err(failed)?;
        let running = Arc::new([outwards, run(&inwards, &interface).map_err(failed)?]);
        let queue = |tun| RedirectDevice { _running: running.clone(), tun, guards: guards.clone(), mtu };
        Ok(queues.into_iter().map(queue).collect())
    }
}

fn run(program: &[Instruction], interface: &Interface) -> io::Result<OwnedFd> {
    let program = extended::load(Kind::SchedCls, program)?;
    extended::run_on_ingress(program.as_fd(), interface.index())
}

impl Device for RedirectDevice {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.tun.poll_readable(cx)
    }

    fn receive(&mut self, budget: usize, sink: &mut dyn FnMut(&[u8], RxMeta)) -> io::Result<usize> {
        self.tun.receive(budget, sink)
    }

    fn receive_shared(&mut self, budget: usize, sink: &mut SharedSink<'_>) -> io::Result<usize> {
        self.tun.receive_shared(budget, sink)
    }

    fn send(&mut self, packet: &[u8], tx: TxMeta) -> io::Result<()> {
        match self.guards.is_unguarded(packet) {
            true => self.tun.refuse(),
            false => self.tun.send(packet, tx),
        }
    }

    fn send_gathered(&mut self, headers: &[u8], payload: [&[u8]; 2], tx: TxMeta) -> io::Result<()> {
        match self.guards.is_unguarded(headers) {
            true => self.tun.refuse(),
            false => self.tun.send_gathered(headers, payload, tx),
        }
    }

    fn send_batch(&mut self, packets: &mut [Gathered<'_>]) -> io::Result<()> {
        for packet in packets.iter_mut().filter(|packet| !packet.taken) {
            if self.guards.is_unguarded(packet.headers) {
                self.tun.refuse()?;
                packet.taken = true;
            }
        }
        self.tun.send_batch(packets)
    }

    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.tun.poll_writable(cx)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.tun.flush()
    }

    fn mtu(&self) -> usize {
        self.mtu
    }

    fn capabilities(&self) -> Capabilities {
        self.tun.capabilities()
    }

    fn counters(&self) -> Counters {
        self.tun.counters()
    }

    fn spread(&mut self, steering: &Steering) -> io::Result<()> {
        self.tun.spread(steering)
    }
}

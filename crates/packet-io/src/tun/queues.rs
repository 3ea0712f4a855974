//! A TUN device with several queues (`IFF_MULTI_QUEUE`), one per core.
//!
//! The kernel assigns a new flow to a queue by its own hash. Once this process has written a packet of the
//! flow into a queue, the kernel delivers the flow to that queue, until three seconds pass without such a
//! packet. So after the first answer, packets arrive on the queue that serves the flow. If the kernel accepts
//! our program (`TUNSETSTEERINGEBPF`, Linux 4.16, CAP_BPF), the first packet also arrives on that queue.
//! [`steering`](brisk_device::steering) handles packets on another queue.

use std::io;
use std::os::fd::AsRawFd;

use brisk_device::steering::Steering;

use super::{BUSY_PAUSE, BUSY_RETRIES, TunDevice, TunOptions};
use crate::bpf::extended::{self, Kind};
use crate::interface::Interface;
use crate::privileges::OpenError;
use crate::queue_program;

/// `TUNSETSTEERINGEBPF` of linux/if_tun.h.
const TUNSETSTEERINGEBPF: libc::Ioctl = libc::_IOR::<libc::c_int>(b'T' as u32, 224);

impl TunDevice {
    /// Opens `count` queues of the TUN device `name`, which is created if it does not exist. One queue is the
    /// same as [`open`](TunDevice::open); more need a device that was created for several.
    ///
    /// The kernel gives queues of such a device to every process that asks, so a second process would take
    /// flows from the first. Therefore the device counts as busy if one of its queues is already open.
    ///
    /// # Errors
    /// Those of [`open`](TunDevice::open).
    pub fn open_queues(name: &str, options: TunOptions, count: usize) -> Result<Vec<TunDevice>, OpenError> {
        if count <= 1 {
            return TunDevice::open(name, options).map(|device| vec![device]);
        }
        if is_held(name, BUSY_RETRIES) {
            let busy = io::Error::from_raw_os_error(libc::EBUSY);
            return Err(OpenError::tun(name, "cannot be attached", busy));
        }
        let options = TunOptions { multi_queue: true, ..options };
        (0..count).map(|_| TunDevice::open(name, options)).collect()
    }

    /// Creates a TUN device with `count` queues. `pattern` is its name with `%d` for a number that the kernel
    /// chooses. It is for packets that the kernel forwards to other hosts, so it carries none above 64 kB.
    ///
    /// # Errors
    /// Those of [`open`](TunDevice::open).
    pub(crate) fn open_new(
        pattern: &str,
        options: TunOptions,
        count: usize,
    ) -> Result<Vec<TunDevice>, OpenError> {
        let options = TunOptions { multi_queue: count > 1, beyond_64k: false, ..options };
        let first = TunDevice::open_named(pattern, options)?;
        let name = first.name().to_owned();
        let others = (1..count).map(|_| TunDevice::open(&name, options));
        std::iter::once(Ok(first)).chain(others).collect()
    }

    /// Makes the kernel choose among the queues of this device as `steering` does.
    pub(super) fn choose_queue_by(&self, steering: &Steering) -> io::Result<()> {
        let program =
            extended::answering(&queue_program::for_packets(steering)).ok_or(io::ErrorKind::InvalidInput)?;
        let program = extended::load(Kind::SocketFilter, &program)?;
        let number: libc::c_int = program.as_raw_fd();
        // SAFETY: TUNSETSTEERINGEBPF reads one int, and the pointer is to a live one. The device keeps the
        // program.
        match unsafe { libc::ioctl(self.as_raw_fd(), TUNSETSTEERINGEBPF, &raw const number) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// True if somebody keeps a queue of the interface open: the interface has a carrier at `retries` + 1 checks,
/// `BUSY_PAUSE` apart. A previous owner may still be closing its queues.
fn is_held(name: &str, retries: u32) -> bool {
    let held = || Interface::named(name).and_then(|interface| interface.has_carrier()).unwrap_or(false);
    for _ in 0..retries {
        if !held() {
            return false;
        }
        std::thread::sleep(BUSY_PAUSE);
    }
    held()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::net::{IpAddr, SocketAddr};

    use socket2::{Domain, Socket, Type};

    use super::*;
    use crate::netns::Namespace;
    use crate::privileges::{has_net_admin, has_sys_admin};
    use brisk_device::Device;

    #[test]
    fn several_queues_belong_to_one_owner() {
        if !has_sys_admin() || !has_net_admin() {
            println!("skipped: a TUN in a network namespace needs CAP_SYS_ADMIN and CAP_NET_ADMIN");
            return;
        }
        let open = |count| TunDevice::open_queues("pioq", TunOptions::default(), count);
        let opened = |count: usize| match open(count) {
            Ok(queues) => Some(queues),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => panic!("{error}"),
        };
        let work = || {
            let Some(mut queues) = opened(3) else {
                println!("skipped: there is no /dev/net/tun");
                return;
            };
            assert_eq!(queues.len(), 3);
            queues[0].configure("10.79.0.1".parse().unwrap(), 24, 1400).unwrap();
            let error = open(2).unwrap_err();
            assert!(error.to_string().contains("another process holds this device"), "{error}");
            drop(queues);
            // The last queue was closed, so the device was removed, and a device of another kind can be
            // created.
            let one = opened(1).unwrap();
            assert_eq!(one.len(), 1);
            assert!(open(2).is_err());
        };
        Namespace::anonymous().unwrap().run(work).unwrap();
    }
    /// Starts a connection of the kernel, which sends a SYN.
    fn dial(to: SocketAddr) -> Socket {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM.nonblocking(), None).unwrap();
        let error = socket.connect(&to.into()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINPROGRESS), "{error}");
        socket
    }

    #[test]
    fn kernel_steers_each_connection_to_its_queue() {
        if !has_sys_admin() || !has_net_admin() {
            println!("skipped: a TUN in a network namespace needs CAP_SYS_ADMIN and CAP_NET_ADMIN");
            return;
        }
        let work = || {
            let Ok(mut queues) = TunDevice::open_queues("pioq", TunOptions::default(), 3) else {
                println!("skipped: there is no /dev/net/tun");
                return;
            };
            queues[0].configure("10.79.0.1".parse().unwrap(), 24, 1400).unwrap();
            queues[0].configure("fd00:79::1".parse().unwrap(), 64, 1400).unwrap();
            let steering = Steering::new(3, 0x8796_a5b4_c3d2_e1f0);
            if let Err(error) = queues[0].spread(&steering) {
                println!("skipped: the kernel rejected the program: {error}");
                return;
            }
            let peers = ["10.79.0.2", "fd00:79::2"].map(|ip| ip.parse::<IpAddr>().unwrap());
            let to = |port| peers.map(|ip| SocketAddr::new(ip, port));
            let dialled: Vec<Socket> = (1..=60).flat_map(to).map(dial).collect();
            let mut found = HashSet::new();
            for (index, queue) in queues.iter().enumerate() {
                let (mut buffer, before) = ([0; 2000], found.len());
                while let Ok(len) = queue.recv(&mut buffer) {
                    // IPv6 neighbour discovery also arrives.
                    if let Some(tuple) = brisk_wire::four_tuple(&buffer[..len]) {
                        assert_eq!(steering.queue_of_packet(&buffer[..len]), Some(index), "{tuple:?}");
                        found.insert(tuple);
                    }
                }
                assert!(found.len() > before, "queue {index} got nothing");
            }
            assert_eq!(found.len(), dialled.len());
        };
        Namespace::anonymous().unwrap().run(work).unwrap();
    }
}

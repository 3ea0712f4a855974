//! Several packet sockets on one interface (`PACKET_FANOUT`), one per core.
//!
//! Each frame goes to one of the sockets: to the first one, until the kernel gets a program that chooses. All
//! sockets have the same guards.

use std::io;
use std::sync::Arc;

use brisk_device::steering::Steering;

use super::guard::Guards;
use super::{PacketDevice, PacketOptions};
use crate::bpf;
use crate::privileges::OpenError;
use crate::queue_program;
use crate::sockopt;

// From linux/if_packet.h.
const PACKET_FANOUT: i32 = 18;
const PACKET_FANOUT_DATA: i32 = 22;
const PACKET_FANOUT_CBPF: u32 = 6;
/// The kernel chooses an unused number for the group (Linux 4.12).
const PACKET_FANOUT_FLAG_UNIQUEID: u32 = 0x2000;

impl PacketDevice {
    /// Opens `count` queues on `interface` for the ports of `guards`.
    ///
    /// # Errors
    /// Those of [`open`](super::open).
    pub(super) fn queues(
        interface: &str,
        options: PacketOptions,
        guards: Arc<Guards>,
        count: usize,
    ) -> Result<Vec<PacketDevice>, OpenError> {
        let first = PacketDevice::guarded(interface, options, guards.clone())?;
        if count <= 1 {
            return Ok(vec![first]);
        }
        let failed = |error| OpenError::packet(interface, "packet sockets cannot share it", error);
        let group = first.create_group().map_err(failed)?;
        let mut queues = vec![first];
        for _ in 1..count {
            let queue = PacketDevice::guarded(interface, options, guards.clone())?;
            queue.join_group(group).map_err(failed)?;
            queues.push(queue);
        }
        Ok(queues)
    }

    /// Creates a fanout group that contains this socket; returns its number.
    fn create_group(&self) -> io::Result<u16> {
        self.join((PACKET_FANOUT_FLAG_UNIQUEID | PACKET_FANOUT_CBPF) << 16)?;
        let value = sockopt::get(self.frames()?, libc::SOL_PACKET, PACKET_FANOUT, size_of::<i32>())?;
        let value: [u8; 4] = value.try_into().map_err(|_| io::ErrorKind::InvalidData)?;
        // The low half is the number of the group.
        Ok(u32::from_ne_bytes(value) as u16)
    }

    fn join_group(&self, group: u16) -> io::Result<()> {
        self.join(PACKET_FANOUT_CBPF << 16 | u32::from(group))
    }

    fn join(&self, argument: u32) -> io::Result<()> {
        sockopt::set(self.frames()?, libc::SOL_PACKET, PACKET_FANOUT, &argument.to_ne_bytes())
    }

    /// Makes the kernel choose among the queues of this device as `steering` does.
    pub(super) fn choose_queue_by(&self, steering: &Steering) -> io::Result<()> {
        let program = queue_program::for_packets(steering);
        bpf::set_program(self.frames()?, libc::SOL_PACKET, PACKET_FANOUT_DATA, &program)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::netns::Namespace;
    use crate::packet::claim;
    use crate::privileges::{has_net_admin, has_sys_admin};
    use crate::testing::Tcp;
    use crate::tun::{TunDevice, TunOptions};
    use brisk_device::{Device, RxMeta};

    #[test]
    fn kernel_steers_connections_to_their_queue_and_guards_ports_once() {
        if !has_sys_admin() || !has_net_admin() {
            println!("skipped: a TUN in a network namespace needs CAP_SYS_ADMIN and CAP_NET_ADMIN");
            return;
        }
        let work = || {
            // A link on which the test can send.
            let Ok(mut link) = TunDevice::open("pioq", TunOptions::default()) else {
                println!("skipped: there is no /dev/net/tun");
                return;
            };
            link.configure("10.77.0.1".parse().unwrap(), 24, 1400).unwrap();
            let served = Some("0.0.0.0:80".parse().unwrap());
            let options = PacketOptions { serve: served, local_ports: 64, ..PacketOptions::default() };
            let guards = claim("pioq", options, None).unwrap();
            let mut queues = PacketDevice::queues("pioq", options, guards, 3).unwrap();
            let steering = Steering::new(3, 0x8796_a5b4_c3d2_e1f0);
            queues[0].spread(&steering).unwrap();
            for port in 1..=60 {
                link.send_raw(&Tcp { ports: (port, 80), ..Tcp::v4() }.packet()).unwrap();
            }
            let mut found = HashSet::new();
            for (index, queue) in queues.iter_mut().enumerate() {
                let before = found.len();
                let mut sink = |packet: &[u8], _: RxMeta| {
                    assert_eq!(steering.queue_of_packet(packet), Some(index));
                    found.insert(brisk_wire::four_tuple(packet));
                };
                queue.receive(100, &mut sink).unwrap();
                assert!(found.len() > before, "queue {index} got nothing");
            }
            assert_eq!(found.len(), 60);
            let ports = queues[0].local_ports().unwrap();
            assert!(queues.iter().all(|queue| queue.local_ports() == Some(ports.clone())));
            assert!(queues.iter().all(|queue| queue.guards.ensure_guarded(*ports.end()) && queue.guards.ensure_guarded(80)));
        };
        Namespace::anonymous().unwrap().run(work).unwrap();
    }
}

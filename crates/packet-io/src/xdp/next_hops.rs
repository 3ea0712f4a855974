//! Hardware addresses of next hops from the kernel's tables ([`Routes`]), cached.
//!
//! This module resolves no address, and never waits. If the kernel does not know the next hop yet, or the
//! packet leaves by another interface, the kernel sends the packet and resolves the address.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::interface::Interface;
use crate::routes::Routes;

/// Time for which an answer is valid. A changed route takes effect after this time.
const RESOLVED_LIFETIME: Duration = Duration::from_secs(2);
/// Time for which an answer is valid while the kernel is still resolving the address.
const UNRESOLVED_LIFETIME: Duration = Duration::from_millis(2);
/// Maximum number of cached address pairs. Beyond it all are dropped, so that a flood of senders only causes
/// queries.
const MAX_KNOWN: usize = 16_384;

#[derive(Debug)]
pub(super) struct NextHops {
    routes: Routes,
    /// Index of the interface.
    interface: u32,
    known: HashMap<(IpAddr, IpAddr), NextHop>,
}

/// An answer and its expiry.
#[derive(Clone, Copy, Debug)]
struct NextHop {
    mac: Option<[u8; 6]>,
    until: Instant,
}

impl NextHops {
    /// Returns an empty cache for the packets that leave by `interface`.
    ///
    /// # Errors
    /// An error of the kernel.
    pub(super) fn of(interface: &Interface) -> io::Result<NextHops> {
        Ok(NextHops { routes: Routes::open()?, interface: interface.index(), known: HashMap::new() })
    }

    /// Returns the hardware address for a packet from `from` to `to`; `None`: the kernel must send it.
    pub(super) fn mac(&mut self, from: IpAddr, to: IpAddr, now: Instant) -> Option<[u8; 6]> {
        if let Some(hop) = self.known.get(&(from, to))
            && now < hop.until
        {
            return hop.mac;
        }
        // If the address cannot be resolved, the kernel reports that when it sends the packet.
        let mac = self.look_up(from, to).unwrap_or_default();
        if self.known.len() >= MAX_KNOWN {
            self.known.clear();
        }
        let until = now + if mac.is_some() { RESOLVED_LIFETIME } else { UNRESOLVED_LIFETIME };
        self.known.insert((from, to), NextHop { mac, until });
        mac
    }

    fn look_up(&mut self, from: IpAddr, to: IpAddr) -> io::Result<Option<[u8; 6]>> {
        let Some(hop) = self.routes.hop(from, to)?.filter(|hop| hop.interface == self.interface) else {
            return Ok(None);
        };
        let Some(neighbour) = self.routes.neighbour(hop)? else { return Ok(None) };
        // The kernel does not see the frames that leave here, so it does not know that the neighbour is in
        // use. If this process lacks the capability to tell it, the kernel sends the packet.
        if neighbour.is_stale {
            self.routes.confirm(hop)?;
        }
        Ok(Some(neighbour.mac))
    }
}

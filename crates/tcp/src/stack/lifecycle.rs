//! Changes of the host at run time: MTU, addresses, shutdown.

use alloc::vec::Vec;
use core::net::IpAddr;

use super::Stack;
use super::slot::{Ownership, Slot};
use crate::config::StackConfig;
use crate::conn_id::{ConnId, ListenerId};
use crate::connection::Connection;
use crate::error::ConfigError;
use crate::time::Instant;

impl Stack {
    /// Changes the largest IP packet, bytes. Existing connections send no larger packet from now on; after an
    /// increase only new connections send larger packets.
    ///
    /// ```
    /// # use brisk_tcp::time::Instant;
    /// # use brisk_tcp::{Stack, StackConfig};
    /// # let at = |ip: &str| StackConfig { addresses: vec![ip.parse().unwrap()], ..StackConfig::default() };
    /// # let mut client = Stack::new(at("10.0.0.1"), 1)?;
    /// # let now = Instant::ZERO;
    /// let new = "10.0.0.7".parse()?;
    /// assert!(client.add_address(new));
    /// assert!(client.remove_address(new, now));
    /// client.set_mtu(1280, now)?;
    /// assert_eq!(client.config().mtu, 1280);
    ///
    /// // The host goes down: first it closes its connections in order, then it aborts the rest.
    /// client.close_all(now);
    /// client.abort_all(now);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If `mtu` is out of the range of [`StackConfig::mtu`].
    pub fn set_mtu(&mut self, mtu: u16, now: Instant) -> Result<(), ConfigError> {
        StackConfig { mtu, ..self.config.clone() }.validate()?;
        self.config.mtu = mtu;
        self.act_on_all(now, |_| true, |connection| connection.limit_mtu(mtu));
        Ok(())
    }

    /// Adds an address of the host; false if it already has it.
    pub fn add_address(&mut self, address: IpAddr) -> bool {
        let is_new = !self.config.addresses.contains(&address);
        if is_new {
            self.config.addresses.push(address);
        }
        is_new
    }

    /// Removes an address of the host, and aborts the connections that use it; false if it does not have it.
    /// A listener on this address alone gets no more connections.
    pub fn remove_address(&mut self, address: IpAddr, now: Instant) -> bool {
        let known = self.config.addresses.len();
        self.config.addresses.retain(|own| *own != address);
        if self.config.addresses.len() == known {
            return false;
        }
        let uses = |slot: &Slot| slot.connection.tuple().local.ip() == address;
        self.act_on_all(now, uses, Connection::abort);
        true
    }

    /// Closes every listener, and every connection for writing. Connections that were not accepted are reset;
    /// the others end when their peers close too.
    pub fn close_all(&mut self, now: Instant) {
        self.set_forwarding(0);
        let listeners: Vec<ListenerId> = self.listeners.iter().map(|(id, _)| id).collect();
        for listener in listeners {
            self.close_listener(listener, now);
        }
        let is_owned = |slot: &Slot| slot.phase == Ownership::Owned;
        self.act_on_all(now, is_owned, |connection| {
            // A connection that is closed already stays closed.
            let _ = connection.shutdown(now);
        });
    }

    /// Aborts every connection with a reset.
    pub fn abort_all(&mut self, now: Instant) {
        self.act_on_all(now, |_| true, Connection::abort);
    }

    pub(super) fn act_on_all(
        &mut self,
        now: Instant,
        of: impl Fn(&Slot) -> bool,
        mut act: impl FnMut(&mut Connection),
    ) {
        let chosen = self.slots.iter().filter(|(_, slot)| of(slot)).map(|(id, _)| id);
        let chosen: Vec<ConnId> = chosen.collect();
        for id in chosen {
            self.lend(id, now);
            let Some(slot) = self.slots.at_mut(id) else { continue };
            slot.half_open = None;
            let ((), aftermath) = slot.connection.act(now, &mut act);
            self.apply_aftermath(id, aftermath, now);
        }
    }
}

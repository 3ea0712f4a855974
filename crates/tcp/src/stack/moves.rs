//! Peers whose address changes while they have connections.
//!
//! A connection keeps its original four-tuple; the device sends packets for an earlier address of a peer to
//! its present address. Segments of such a connection arrive from the present address, like those of the
//! peer's new connections. A segment from there without an owner is looked up at the earlier addresses. The
//! caller must authenticate the peer and validate its path before [`Stack::move_peer`] (RFC 9000 sections 8.2
//! and 9); no arriving packet moves an address by itself.
//!
//! Between the change and its report, a reset would end connections that will be found again. So once a peer
//! has announced that it reports its moves ([`Stack::expect_moves`]), unknown segments from unreported
//! addresses are not answered for [`MOVE_REPORT_WAIT`]. Nor is a SYN that repeats one whose data has already
//! opened a connection of such a peer: another connection would deliver the data again. After the report, the
//! repetition belongs to the connection that the first SYN opened.
//!
//! The ports alone must determine the shard of a peer's connection, whatever its address: a stack does not
//! look for connections in other stacks of the host.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use brisk_wire::{Flags, SeqNum};

use super::Stack;
use super::slot::Slot;
use crate::conn_id::ConnId;
use crate::connection::Connection;
use crate::four_tuple::FourTuple;
use crate::time::{Duration, Instant};

/// Time for which unknown segments from an address wait for the report of a move.
const MOVE_REPORT_WAIT: Duration = Duration::from_secs(15);
/// Maximum number of addresses whose unknown segments wait; those from further addresses are answered by a
/// reset.
const MAX_WAITING: usize = 1024;
/// Maximum number of known peers, and of earlier addresses.
const MAX_PEERS: usize = 16_384;
/// Maximum number of earlier addresses at which a peer's connections are looked up.
const MAX_EARLIER: usize = 8;
/// The latest SYNs with data are remembered: at least this many, at most twice as many.
const OPENED: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Moves {
    /// The previous address of a peer, by the address that followed it.
    earlier: BTreeMap<IpAddr, IpAddr>,
    /// Present addresses of peers that report their moves.
    known: BTreeSet<IpAddr>,
    /// Addresses whose unknown segments are not answered, with the time of the first, the oldest first.
    waiting: VecDeque<(IpAddr, Instant)>,
    /// Addresses of known peers whose SYNs with data have opened connections, by port and sequence number:
    /// the latest ones, and those before.
    opened: [BTreeMap<(u16, u32), IpAddr>; 2],
}

impl Moves {
    /// Returns the earlier addresses of the peer at `address`, the latest first.
    fn before(&self, address: IpAddr) -> impl Iterator<Item = IpAddr> {
        let first = self.earlier.get(&address).copied();
        core::iter::successors(first, |address| self.earlier.get(address).copied()).take(MAX_EARLIER)
    }

    /// True if an unknown segment from this address may be one of a peer that has moved and has not reported
    /// it yet.
    fn is_awaited(&mut self, address: IpAddr, now: Instant) -> bool {
        if self.known.is_empty() || self.known.contains(&address) {
            return false;
        }
        let age = |since: Instant| now.saturating_since(since);
        // An address that waited in vain is remembered for the same time again, during which its segments are
        // answered.
        while self.waiting.pop_front_if(|(_, since)| age(*since) >= MOVE_REPORT_WAIT * 2).is_some() {}
        match self.waiting.iter().find(|(waiting, _)| *waiting == address) {
            Some((_, since)) => age(*since) < MOVE_REPORT_WAIT,
            None => {
                let has_room = self.waiting.len() < MAX_WAITING;
                if has_room {
                    self.waiting.push_back((address, now));
                }
                has_room
            }
        }
    }

    /// Finds the owner of a segment among the connections at the sender's earlier addresses. Returns the
    /// owner's four-tuple, with the latest such address that has an owner.
    pub(super) fn find(
        &self,
        tuple: &FourTuple,
        has_owner: impl Fn(&FourTuple) -> bool,
    ) -> Option<FourTuple> {
        if self.earlier.is_empty() {
            return None;
        }
        let at = |ip| FourTuple { local: tuple.local, remote: SocketAddr::new(ip, tuple.remote.port()) };
        self.before(tuple.remote.ip()).map(at).find(has_owner)
    }

    /// Remembers a SYN whose data has opened a connection.
    pub(super) fn on_opened(&mut self, remote: SocketAddr, seq: SeqNum) {
        if !self.known.contains(&remote.ip()) {
            return;
        }
        let [latest, before] = &mut self.opened;
        if latest.len() >= OPENED {
            *before = core::mem::take(latest);
        }
        latest.insert((remote.port(), seq.0), remote.ip());
    }

    /// Returns the four-tuple of the connection that an identical SYN has opened from the address of a known
    /// peer. `None` if there is none, or if no report of a move is awaited from this SYN's address.
    pub(super) fn opened_elsewhere(
        &mut self,
        tuple: &FourTuple,
        seq: SeqNum,
        now: Instant,
    ) -> Option<FourTuple> {
        let remote = tuple.remote;
        let known = self.opened.iter().find_map(|opened| opened.get(&(remote.port(), seq.0))).copied()?;
        let is_awaited = known != remote.ip() && self.is_awaited(remote.ip(), now);
        is_awaited.then_some(FourTuple { local: tuple.local, remote: SocketAddr::new(known, remote.port()) })
    }

    /// True if no reset may answer an unknown segment from this address, because its connection may be about
    /// to move.
    pub(super) fn withholds_reset(&mut self, address: IpAddr, flags: Flags, now: Instant) -> bool {
        !flags.contains(Flags::SYN) && self.is_awaited(address, now)
    }
}

/// Peers that move.
impl Stack {
    /// Announces that the peer at `address` reports its moves ([`Stack::move_peer`]).
    pub fn expect_moves(&mut self, address: IpAddr) {
        let Moves { known, waiting, .. } = &mut self.moves;
        if known.len() < MAX_PEERS {
            known.insert(address);
        }
        waiting.retain(|(waiting, _)| *waiting != address);
    }

    /// Moves a peer from the address `from` to `to`: its connections continue. With `is_other_path` more has
    /// changed than the peer's port behind a NAT, so that the round-trip time is unknown (RFC 9000 section
    /// 9.4).
    ///
    /// ```
    /// # use brisk_tcp::time::Instant;
    /// # use brisk_tcp::{Stack, StackConfig};
    /// # let at = |ip: &str| StackConfig { addresses: vec![ip.parse().unwrap()], ..StackConfig::default() };
    /// # let (mut client, mut server) = (Stack::new(at("10.0.0.1"), 1)?, Stack::new(at("10.0.0.2"), 2)?);
    /// # let now = Instant::ZERO;
    /// # let [old, new] = ["10.0.0.1".parse()?, "10.0.0.9".parse()?];
    /// // The driver gives each peer an address, and this peer announces that it can move.
    /// server.expect_moves(old);
    /// // A packet proves that the peer is now at another place, to which the driver gives the address `new`.
    /// server.move_peer(old, new, true, now);
    /// // Nothing will come from the old place any more.
    /// server.forget_peer(old, now);
    /// // At the end that has moved:
    /// client.change_path("10.0.0.2".parse()?, true, now);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn move_peer(&mut self, from: IpAddr, to: IpAddr, is_other_path: bool, now: Instant) {
        self.clock = self.clock.max(now);
        if from != to && self.moves.earlier.len() < MAX_PEERS {
            self.moves.known.remove(&from);
            self.expect_moves(to);
            self.moves.earlier.insert(to, from);
            let earlier: Vec<IpAddr> = self.moves.before(to).collect();
            self.change_paths_of(&earlier, is_other_path, now);
        }
    }

    /// Records that the path to the peer at `address` has changed although its address has not: this host has
    /// moved.
    pub fn change_path(&mut self, address: IpAddr, is_other_path: bool, now: Instant) {
        self.clock = self.clock.max(now);
        self.change_paths_of(&[address], is_other_path, now);
    }

    /// Forgets the address of a peer. If the peer has left it, this aborts the connections that began there.
    /// No segment reaches them any more, and they would be in the way of the next peer at this address.
    pub fn forget_peer(&mut self, address: IpAddr, now: Instant) {
        if self.moves.earlier.values().any(|before| *before == address) {
            let began_there = |slot: &Slot| slot.connection.tuple().remote.ip() == address;
            self.act_on_all(now, began_there, Connection::abort);
        }
        self.moves.known.remove(&address);
        self.moves.earlier.remove(&address);
        self.moves.earlier.retain(|_, before| *before != address);
        for opened in &mut self.moves.opened {
            opened.retain(|_, from| *from != address);
        }
    }

    fn change_paths_of(&mut self, addresses: &[IpAddr], is_other_path: bool, now: Instant) {
        let is_of = |connection: &Connection| addresses.contains(&connection.tuple().remote.ip());
        let all = self.slots.iter::<ConnId>();
        let ids: Vec<ConnId> = all.filter(|(_, slot)| is_of(&slot.connection)).map(|(id, _)| id).collect();
        for id in ids {
            self.leave_path(id, now);
            let Some(slot) = self.slots.at_mut(id) else { continue };
            slot.half_open = None;
            let ((), aftermath) =
                slot.connection.act(now, |connection| connection.on_path_change(is_other_path, now));
            self.apply_aftermath(id, aftermath, now);
        }
    }
}

//! Active opens: the choice of local address and port.

use alloc::sync::Arc;
use core::net::{IpAddr, SocketAddr};

use brisk_wire::SeqNum;

use super::Stack;
use super::arrive::Owners;
use super::demux::Target;
use super::slot::Ownership;
use crate::config::{ConnectConfig, TcpConfig};
use crate::conn_id::ConnId;
use crate::connection::Connection;
use crate::error::ConnectError;
use crate::four_tuple::{self, FourTuple};
use crate::time::Instant;

/// Number of ports that are tried for a free port before a port in TIME-WAIT is accepted too. A range may be
/// full of TIME-WAITs, as after a minute of many short connections to one peer. A search through all of it at
/// every open would stop the stack.
const PREFER_FREE: u32 = 64;

/// Availability of a four-tuple.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Availability {
    /// No connection uses the four-tuple.
    Free,
    /// A TIME-WAIT that may be replaced uses the four-tuple. The new initial sequence number must not be
    /// below this number.
    Reusable(SeqNum),
    Taken,
}

impl Stack {
    pub(super) fn open(
        &mut self,
        remote: SocketAddr,
        data: &[u8],
        config: &ConnectConfig,
        now: Instant,
    ) -> Result<(ConnId, usize), ConnectError> {
        let remote = four_tuple::canonical(remote);
        if remote.port() == 0 || !four_tuple::is_unicast(&remote.ip()) {
            return Err(ConnectError::BadDestination(remote));
        }
        config.validate()?;
        let (tuple, floor) = self.choose_tuple(remote, config, now)?;
        if floor.is_some()
            && let Some(Target::TimeWait(index)) = self.owners().of(&tuple)
        {
            self.end_time_wait(index);
            self.stats.time_waits_reused += 1;
        }
        if !self.evict_if_full() {
            return Err(ConnectError::TooMany(self.config.max_connections));
        }
        let mut secrets = self.secrets.secrets(&tuple, now);
        secrets.iss = floor.map_or(secrets.iss, |floor| secrets.iss.max(floor));
        let tcp = self.intern_config(&config.tcp);
        let mut connection = Connection::connect(tuple, &tcp, secrets, self.host(), now);
        self.start_on_path(&mut connection, now);
        let options = self.syn_options_of(&mut connection, config, now);
        let server_key = self.choose_fast_open(&mut connection, config, options, now);
        self.apply_syn_options(&mut connection, options);
        let id = self.insert(connection, &tcp, Ownership::Owned, now);
        if let Some(slot) = self.slots.at_mut(id) {
            slot.server_key = server_key;
        }
        self.stats.active_opens += 1;
        let taken = if data.is_empty() { 0 } else { self.write(id, data, now).unwrap_or(0) };
        Ok((id, taken))
    }

    /// Returns a copy of a configuration, which successive opens with an equal configuration share.
    fn intern_config(&mut self, tcp: &TcpConfig) -> Arc<TcpConfig> {
        match &self.latest_tcp {
            Some(latest) if **latest == *tcp => Arc::clone(latest),
            Some(_) | None => Arc::clone(self.latest_tcp.insert(Arc::new(tcp.clone()))),
        }
    }

    /// Returns the ends of a new connection, and the minimum initial sequence number if they were used
    /// recently.
    fn choose_tuple(
        &mut self,
        remote: SocketAddr,
        config: &ConnectConfig,
        now: Instant,
    ) -> Result<(FourTuple, Option<SeqNum>), ConnectError> {
        let wanted = config.local.map(four_tuple::canonical);
        let ip = self.choose_address(wanted.map(|addr| addr.ip()), remote)?;
        if let Some(port) = wanted.map(|addr| addr.port()).filter(|&port| port != 0) {
            let tuple = FourTuple::new(SocketAddr::new(ip, port), remote);
            if tuple.is_loop() {
                return Err(ConnectError::InUse { local: tuple.local, remote });
            }
            return match self.availability(&tuple, now) {
                Availability::Free => Ok((tuple, None)),
                Availability::Reusable(floor) => Ok((tuple, Some(floor))),
                Availability::Taken => Err(ConnectError::InUse { local: tuple.local, remote }),
            };
        }
        self.choose_port(ip, remote, now)
    }

    fn choose_address(&self, wanted: Option<IpAddr>, remote: SocketAddr) -> Result<IpAddr, ConnectError> {
        let same_family = |ip: &IpAddr| ip.is_ipv4() == remote.is_ipv4();
        match wanted.filter(|ip| !ip.is_unspecified()) {
            Some(ip) if !self.is_local(&ip) => Err(ConnectError::NotLocal(ip)),
            Some(ip) if !same_family(&ip) => Err(ConnectError::NoAddress(remote)),
            Some(ip) => Ok(ip),
            None => {
                let first = self.config.addresses.iter().copied().find(same_family);
                first.ok_or(ConnectError::NoAddress(remote))
            }
        }
    }

    /// Returns a free ephemeral port; if none is near, the next port that is free or whose TIME-WAIT may be
    /// replaced.
    fn choose_port(
        &mut self,
        ip: IpAddr,
        remote: SocketAddr,
        now: Instant,
    ) -> Result<(FourTuple, Option<SeqNum>), ConnectError> {
        let tuple_of = |port| FourTuple::new(SocketAddr::new(ip, port), remote);
        let Stack { ports, demux, slots, half_open, time_wait, listening, shard, .. } = self;
        let owners = Owners { demux, slots, half_open, time_wait };
        let is_listened = |port| listening.contains_key(&SocketAddr::new(ip, port));
        let free = |port| !is_listened(port) && owners.of(&tuple_of(port)).is_none();
        // A connection to its own end would receive nothing.
        let is_ours = |port| shard.has(&tuple_of(port)) && !tuple_of(port).is_loop();
        let floor_of = |port| match owners.of(&tuple_of(port)) {
            Some(Target::TimeWait(index)) => time_wait.entry(index)?.reusable_by_us(now),
            Some(Target::Connection(_) | Target::HalfOpen(_)) | None => None,
        };
        if let Some(port) = ports.choose_among(PREFER_FREE, ip, remote, |port| is_ours(port) && free(port)) {
            return Ok((tuple_of(port), None));
        }
        let port = ports
            .choose(ip, remote, |port| is_ours(port) && (free(port) || floor_of(port).is_some()))
            .ok_or(ConnectError::NoPort(remote))?;
        Ok((tuple_of(port), floor_of(port)))
    }

    fn availability(&self, tuple: &FourTuple, now: Instant) -> Availability {
        match self.owners().of(tuple) {
            None => Availability::Free,
            Some(Target::Connection(_) | Target::HalfOpen(_)) => Availability::Taken,
            Some(Target::TimeWait(index)) => {
                let floor = self.time_wait.entry(index).and_then(|entry| entry.reusable_by_us(now));
                floor.map_or(Availability::Taken, Availability::Reusable)
            }
        }
    }
}

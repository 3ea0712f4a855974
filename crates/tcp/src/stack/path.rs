//! Two memories of the stack that outlive connections: facts about paths, and destinations that do not accept
//! the option of Corrective and Proactive. The driver may read and change the facts about paths. A new
//! connection gets the facts of both memories, and reports to both.

use alloc::boxed::Box;
use core::net::IpAddr;

use super::Stack;
use super::shard::Fact;
use crate::config::ConnectConfig;
use crate::conn_id::ConnId;
use crate::connection::{Connection, State};
use crate::error::ImportError;
use crate::four_tuple::FourTuple;
use crate::mechanism::GentleOff;
use crate::mechanism::memory::{Answer, Destination, SynOptions};
use crate::path::{Ends, PathFacts, PathMemory, PathReport};
use crate::time::Instant;

/// The memory of paths.
impl Stack {
    /// Returns the known facts of the path between these addresses.
    pub fn path(&self, local: IpAddr, remote: IpAddr, now: Instant) -> PathFacts {
        self.paths.facts(&Ends { local, remote }, now)
    }

    /// Returns every known path in the order of last use, the oldest first: local and remote address, and the
    /// facts.
    pub fn paths(&self, now: Instant) -> impl Iterator<Item = (IpAddr, IpAddr, PathFacts)> {
        self.paths.iter(now).map(|(ends, facts)| (ends.local, ends.remote, facts))
    }

    /// Forgets every path, and the failures of the option of Corrective and Proactive. Must be called when
    /// the network changes.
    pub fn flush_paths(&mut self) {
        self.paths.flush();
        self.gentle_memory.flush();
    }

    /// Returns the memory of paths as text for a file. It reveals the peers of this host.
    pub fn export_paths(&self, now: Instant) -> alloc::string::String {
        self.paths.export(self.fast_open.unix(now), now)
    }

    /// Adds the output of [`Stack::export_paths`], except where the stack has newer knowledge. The text may
    /// also contain the output of [`Stack::export_fast_open_cache`].
    ///
    /// ```
    /// # use brisk_tcp::stack::Rx;
    /// # use brisk_tcp::time::Instant;
    /// # use brisk_tcp::{ConnectConfig, ListenConfig, Stack, StackConfig};
    /// # fn pass(from: &mut Stack, to: &mut Stack) {
    /// #     let mut packet = Vec::new();
    /// #     while from.poll_transmit(Instant::ZERO, &mut packet).is_some() {
    /// #         to.on_packet(&packet, Rx::default(), Instant::ZERO);
    /// #     }
    /// # }
    /// # let at = |ip: &str| StackConfig { addresses: vec![ip.parse().unwrap()], ..StackConfig::default() };
    /// # let (mut client, mut server) = (Stack::new(at("10.0.0.1"), 1)?, Stack::new(at("10.0.0.2"), 2)?);
    /// # let (address, now) = ("10.0.0.2:80".parse()?, Instant::ZERO);
    /// # let listener = server.listen(address, ListenConfig::default())?;
    /// # let id = client.connect(address, &ConnectConfig::default(), now)?;
    /// # pass(&mut client, &mut server);
    /// # pass(&mut server, &mut client);
    /// # pass(&mut client, &mut server);
    /// # let (peer, _) = server.accept(listener).expect("the handshake is complete");
    /// use brisk_tcp::stack::SharedPath;
    ///
    /// let (cookies, paths) = (client.export_fast_open_cache(now), client.export_paths(now));
    /// # let mut restarted = client;
    /// restarted.import_fast_open_cache(&cookies, now)?;
    /// restarted.import_paths(&paths, now)?;
    /// for (local, remote, facts) in restarted.paths(now) {
    ///     let shared: Option<SharedPath> = restarted.shared_path(local, remote);
    ///     println!("{local} {remote} {:?} {shared:?}", facts.rtt);
    /// }
    /// // The network has changed:
    /// restarted.flush_fast_open_cache(None);
    /// restarted.flush_paths();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The error in the text; nothing was added then.
    pub fn import_paths(&mut self, text: &str, now: Instant) -> Result<(), ImportError> {
        self.paths.import(text, self.fast_open.unix(now), now)
    }
}

pub(super) fn ends(tuple: &FourTuple) -> Ends {
    Ends { local: tuple.local.ip(), remote: tuple.remote.ip() }
}

impl PathMemory {
    /// Decides about a connection's request for a window larger than RFC 6928 permits on any path.
    pub(super) fn start(&mut self, connection: &mut Connection, redundancy: u32, now: Instant) {
        let ends = ends(&connection.tuple());
        let facts = self.facts(&ends, now);
        let is_half_open = connection.state() == State::SynReceived;
        let is_authenticated = is_half_open.then(|| connection.fast_open.is_authenticated());
        let (config, handshake) = (&connection.config, &connection.handshake);
        let request = connection.path.request_start(
            &facts,
            config,
            handshake,
            &connection.tx,
            is_authenticated,
            redundancy,
        );
        let granted = request.and_then(|request| Some((self.grant(&ends, &request, now)?, request)));
        match granted {
            Some((granted, request)) => connection.start_on_trust(granted, &request, &facts, now),
            // A SYN proves nothing; the connection may request again when the peer is verified.
            None if connection.state().is_opening() => {}
            None => connection.path.start_as_unknown(),
        }
    }
}

impl Stack {
    /// Passes the facts of its path to a new connection, before its first segment leaves.
    pub(super) fn start_on_path(&self, connection: &mut Connection, now: Instant) {
        let known = self.paths.facts(&ends(&connection.tuple()), now);
        connection.start_from(known, now);
    }

    /// Refreshes facts that a connection learns from others when its timer is due. While the connection
    /// opens, this is the round-trip time that others have measured; later, the newest large packet that they
    /// have delivered.
    pub(super) fn refresh_path(&mut self, id: ConnId, now: Instant) {
        let Some(slot) = self.slots.at_mut(id) else { return };
        let is_opening = slot.connection.state().is_opening();
        if is_opening && let Some(rtt) = self.paths.handshake_rtt(&ends(&slot.connection.tuple()), now) {
            slot.connection.on_longer_path(rtt);
            slot.half_open = None;
        }
        if !is_opening && slot.connection.tx.is_size_at_stake(now) {
            let arrived = self.paths.large_packet(&ends(&slot.connection.tuple()));
            slot.connection.suspect_size(arrived, now);
        }
    }

    /// Processes a connection's report about its path.
    pub(super) fn learn_path(&mut self, id: ConnId, now: Instant) {
        // A member reports the window of its path.
        self.lend(id, now);
        let Some(slot) = self.slots.at_mut(id) else { return };
        let connection = &mut *slot.connection;
        let (counters, handshake, closed) =
            (&connection.counters, &connection.handshake, connection.close_reason());
        let report = connection.path.take_report(counters, handshake, &connection.tx, closed, now);
        let to = ends(&connection.tuple());
        let large = connection.tx.mtu.take_report();
        let is_large_new = large.is_some_and(|packet| self.paths.on_large_packet(to, packet));
        connection.suspect_size(self.paths.large_packet(&to), now);
        if let Some(member) = &slot.member {
            self.controllers.take_back_unchanged(member, connection);
        }
        if let Some(packet) = large.filter(|_| is_large_new) {
            self.shard.publish(|| Fact::LargePacket(to, packet));
        }
        // The report stays in place: it is large.
        if let Some(report) = &report {
            self.paths.on_report(to, report, now);
            self.shard.publish(|| Fact::Path(to, Box::new(*report)));
        }
        if let Some(flight) = connection.path.take_flight_report(connection.tx.scoreboard.is_empty()) {
            let report = PathReport { flight: Some(flight), ..PathReport::default() };
            self.paths.on_report(to, &report, now);
            self.shard.publish(|| Fact::Path(to, Box::new(report)));
        }
    }
}

fn destination(tuple: &FourTuple) -> Destination {
    Destination { ends: ends(tuple), port: tuple.remote.port() }
}

impl Stack {
    /// Returns the options that the SYN of a new connection may carry.
    pub(super) fn syn_options_of(
        &self,
        connection: &mut Connection,
        config: &ConnectConfig,
        now: Instant,
    ) -> SynOptions {
        let wants_gentle = connection.gentle.would_offer(config.tcp.timestamps);
        if !wants_gentle && config.fast_open.is_none() {
            return SynOptions::Together;
        }
        let (options, drops) = self.gentle_memory.syn_options(&destination(&connection.tuple()), now);
        connection.syn_report.known_drops = drops;
        if wants_gentle || options == SynOptions::Plain { options } else { SynOptions::Together }
    }

    /// Omits the option of Corrective and Proactive if `options` excludes it. `choose_fast_open` decides
    /// about the option of Fast Open.
    pub(super) fn apply_syn_options(&mut self, connection: &mut Connection, options: SynOptions) {
        let why = match options {
            SynOptions::NoGentle => GentleOff::Remembered,
            SynOptions::Plain if connection.gentle.would_offer(connection.config.timestamps) => {
                GentleOff::OnTrial
            }
            SynOptions::FastOpen if connection.fast_open.opens_fast() => GentleOff::OnTrial,
            SynOptions::Plain | SynOptions::FastOpen | SynOptions::Together | SynOptions::Gentle => return,
        };
        self.stats.gentle_withheld += 1;
        connection.gentle.switch_off(why);
    }

    /// Processes the result of a handshake for Corrective and Proactive.
    pub(super) fn learn_gentle(&mut self, id: ConnId, now: Instant) {
        let Some(slot) = self.slots.at_mut(id) else { return };
        let (opened, interference) = slot.connection.take_syn_report();
        let server_key = slot.server_key.as_deref().copied();
        if opened.is_none() && !interference {
            return;
        }
        let to = destination(&slot.connection.tuple());
        if let Some(opened) = opened {
            let blame = self.gentle_memory.on_opened(to, &opened, now);
            self.shard.publish(|| Fact::Opened(to, opened));
            self.stats.gentle_syn_drop += u64::from(opened.gentle && opened.answer != Answer::First);
            if let (Some(report), Some(server_key)) = (blame, server_key) {
                self.fast_open.on_report(&server_key, &report, now);
                self.shard.publish(|| Fact::FastOpen(server_key, report));
            }
        }
        if interference {
            self.gentle_memory.on_interference(to, now);
            self.shard.publish(|| Fact::Interference(to));
        }
    }
}

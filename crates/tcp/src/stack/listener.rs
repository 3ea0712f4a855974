//! Listeners: half-open connections, the accept queue, SYN cookies, and their limits.
//!
//! A SYN creates a half-open connection while the half-open table has space. Beyond that the SYN is answered
//! by a cookie, or dropped. A completed handshake moves its connection to the accept queue. While the queue
//! is full, SYNs and the last segments of handshakes are dropped, so the peer tries again later (as in
//! Linux).

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::cell::OnceCell;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use brisk_wire::{Flags, Options, Segment, SeqNum};

use super::fast_open::FastOpenAt;
use super::half_open::record::{Beginning, HalfOpen};
use super::slot::{Ownership, with_env};
use super::stats::Refusal;
use super::{Stack, syn_cookie};
use crate::config::{EcnMode, ListenConfig, MechanismConfig, SynCookies, TcpConfig};
use crate::conn_id::{ConnId, ListenerId};
use crate::connection::{Connection, Secrets, SynCookieParams};
use crate::error::ListenError;
use crate::event::Event;
use crate::fast_open::server::{Ticket, Verdict};
use crate::four_tuple::{self, FourTuple};
use crate::outcome::Arrived;
use crate::time::Instant;

/// Default MSS of a peer without the option: 536 over IPv4, 1220 over IPv6 (RFC 9293 section 3.7.1).
const DEFAULT_MSS: [u16; 2] = [536, 1220];

#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) addr: SocketAddr,
    tcp: Arc<TcpConfig>,
    /// The configuration for connections from a cookie. It has no mechanisms, because a cookie cannot store
    /// their negotiation. It is created for the first cookie: most listeners never send one.
    syn_cookie_config: OnceCell<Arc<TcpConfig>>,
    backlog: usize,
    max_half_open: usize,
    syn_cookies: SynCookies,
    /// See [`ListenConfig::defer_accept`].
    pub(crate) defer_accept: u8,
    half_open: usize,
    queue: VecDeque<ConnId>,
    last_cookie: Option<Instant>,
    pub(super) fast_open: Option<Box<FastOpenAt>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SynDecision {
    /// Keep a half-open connection.
    Keep,
    /// Answer with a cookie.
    Cookie,
    /// Drop it.
    Refuse(Refusal),
}

impl Listener {
    fn new(addr: SocketAddr, config: ListenConfig) -> Self {
        let ListenConfig {
            tcp,
            backlog,
            max_half_open,
            syn_cookies,
            defer_accept,
            fast_open,
            non_exhaustive: (),
        } = config;
        Listener {
            addr,
            tcp: Arc::new(tcp),
            syn_cookie_config: OnceCell::new(),
            backlog: backlog.max(1),
            max_half_open,
            syn_cookies,
            defer_accept,
            half_open: 0,
            queue: VecDeque::new(),
            last_cookie: None,
            fast_open: fast_open.map(|config| Box::new(FastOpenAt::new(config))),
        }
    }

    /// Decides about a further SYN that does not open its connection.
    fn syn_decision(&self) -> SynDecision {
        let full = self.half_open >= self.max_half_open;
        match self.syn_cookies {
            _ if self.is_full() => SynDecision::Refuse(Refusal::BacklogFull),
            SynCookies::Always => SynDecision::Cookie,
            SynCookies::UnderFlood if full => SynDecision::Cookie,
            SynCookies::Off if full => SynDecision::Refuse(Refusal::HalfOpenFull),
            SynCookies::UnderFlood | SynCookies::Off => SynDecision::Keep,
        }
    }

    pub(super) fn tcp(&self) -> &Arc<TcpConfig> {
        &self.tcp
    }

    fn syn_cookie_config(&self) -> Arc<TcpConfig> {
        let plain = || TcpConfig { mechanisms: MechanismConfig::default(), ..(*self.tcp).clone() };
        Arc::clone(self.syn_cookie_config.get_or_init(|| Arc::new(plain())))
    }

    pub(super) fn syn_cookies(&self) -> SynCookies {
        self.syn_cookies
    }

    pub(super) fn half_open(&self) -> usize {
        self.half_open
    }

    pub(crate) fn is_full(&self) -> bool {
        self.queue.len() >= self.backlog
    }

    /// Records that a half-open connection ended without a complete handshake.
    pub(crate) fn on_half_open_gone(&mut self) {
        self.half_open = self.half_open.saturating_sub(1);
    }

    /// Queues a connection that was opened by its SYN (Fast Open).
    pub(crate) fn on_opened(&mut self, id: ConnId) {
        self.queue.push_back(id);
    }

    /// Queues a half-open connection that completed its handshake.
    pub(crate) fn on_established(&mut self, id: ConnId) {
        self.on_half_open_gone();
        self.queue.push_back(id);
    }

    /// Returns the parameters of the SYN that a cookie can keep.
    fn syn_cookie_params(&self, segment: &Arrived<'_>, is_v6: bool) -> SynCookieParams {
        let options = segment.options;
        let timestamps = self.tcp.timestamps && options.timestamps.is_some();
        SynCookieParams {
            mss: options.mss.filter(|&mss| mss > 0).unwrap_or(DEFAULT_MSS[usize::from(is_v6)]),
            window_scale: options.window_scale.filter(|_| timestamps && self.tcp.window_scaling),
            sack: timestamps && self.tcp.sack && options.sack_permitted,
            timestamps,
            ecn: timestamps
                && self.tcp.ecn != EcnMode::Off
                && segment.flags.contains(Flags::ECE | Flags::CWR),
        }
    }
}

impl Stack {
    /// Opens a listener. With port 0 the stack chooses a port; an unspecified address listens on every
    /// address of its family. A listener on one address takes precedence over one on all addresses.
    ///
    /// # Errors
    /// The reason why there can be no such listener.
    pub fn listen(&mut self, local: SocketAddr, config: ListenConfig) -> Result<ListenerId, ListenError> {
        config.validate()?;
        let mut addr = four_tuple::canonical(local);
        if !addr.ip().is_unspecified() && !self.is_local(&addr.ip()) {
            return Err(ListenError::NotLocal(addr.ip()));
        }
        if addr.port() == 0 {
            let Stack { ports, listening, .. } = self;
            let free = |port| !listening.contains_key(&SocketAddr::new(addr.ip(), port));
            let port = ports.choose(addr.ip(), addr, free).ok_or(ListenError::NoPort)?;
            addr.set_port(port);
        }
        if self.listening.contains_key(&addr) {
            return Err(ListenError::InUse(addr));
        }
        let id: ListenerId = self.listeners.insert(Listener::new(addr, config));
        self.listening.insert(addr, id);
        self.set_listener_keys(id);
        Ok(id)
    }

    /// Closes a listener. Connections that were not accepted are reset.
    pub fn close_listener(&mut self, listener: ListenerId, now: Instant) {
        self.restore_all(listener, now);
        let Some(gone) = self.listeners.remove(listener) else { return };
        self.listening.remove(&gone.addr);
        self.fast_open.forget(listener);
        let orphans: alloc::vec::Vec<ConnId> = self
            .slots
            .iter()
            .filter(|(_, slot)| match slot.phase {
                Ownership::HalfOpen(at) | Ownership::Queued(at) => at == listener,
                Ownership::Owned | Ownership::Released => false,
            })
            .map(|(id, _)| id)
            .collect();
        for id in orphans {
            self.lend(id, now);
            if let Some(slot) = self.slots.at_mut(id) {
                slot.phase = Ownership::Released;
                slot.connection.abandon();
                slot.connection.release(now);
            }
            self.take_aftermath(id, now);
        }
    }

    /// Takes the oldest connection that waits at the listener, with the address of its peer. Events follow if
    /// data can be read already, or if the connection has already ended.
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
    /// use brisk_tcp::Event;
    /// use brisk_tcp::connection::State;
    ///
    /// let listener = server.listen(address, ListenConfig::default())?;
    /// let id = client.connect(address, &ConnectConfig::default(), now)?;
    /// # pass(&mut client, &mut server);
    /// assert_eq!((server.half_open(), server.connections()), (1, 1));
    /// # pass(&mut server, &mut client);
    /// # pass(&mut client, &mut server);
    /// // The drivers have passed three packets.
    /// assert_eq!(client.poll_event(), Some(Event::Connected(id)));
    /// assert_eq!(server.poll_event(), Some(Event::Incoming(listener)));
    /// let (peer, from) = server.accept(listener).expect("the handshake is complete");
    /// assert_eq!((client.local_addr(id), client.remote_addr(id)), (Some(from), server.listener_addr(listener)));
    /// assert_eq!(server.state(peer), Some(State::Established));
    /// println!("{:?} {:?} {:?}", client.conn_stats(id), client.conn_info(id), client.stats());
    ///
    /// // The driver sleeps until a packet arrives, or until the next timeout.
    /// if let Some(due) = client.next_timeout() {
    ///     client.on_timeout(due);
    /// }
    /// server.close_listener(listener, now);
    /// server.release(peer, now);
    /// client.release(id, now);
    /// # pass(&mut server, &mut client);
    /// # pass(&mut client, &mut server);
    /// # pass(&mut server, &mut client);
    /// assert_eq!((client.connections(), server.connections()), (1, 1));
    /// assert_eq!((client.time_waits(), client.memory(), client.repair_memory()), (1, 0, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn accept(&mut self, listener: ListenerId) -> Option<(ConnId, SocketAddr)> {
        let queue = &mut self.listeners.at_mut(listener)?.queue;
        while let Some(id) = queue.pop_front() {
            let Some(slot) = self.slots.at_mut(id) else { continue };
            slot.phase = Ownership::Owned;
            let remote = slot.connection.tuple().remote;
            let deferred = core::mem::take(&mut slot.deferred);
            let closed = slot.connection.close_reason();
            self.events.push_all(id, deferred);
            if let Some(reason) = closed {
                self.events.push(Event::Closed(id, reason));
            }
            return Some((id, remote));
        }
        None
    }

    /// Returns the listener for a local address. A listener on the address itself takes precedence over one
    /// on all addresses of the family.
    pub(super) fn listener_for(&self, local: SocketAddr) -> Option<ListenerId> {
        let everywhere = match local.ip() {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let wildcard = SocketAddr::new(everywhere, local.port());
        self.listening.get(&local).or_else(|| self.listening.get(&wildcard)).copied()
    }

    /// Processes a segment in LISTEN (RFC 9293 section 3.10.7.2).
    pub(super) fn on_segment_in_listen(
        &mut self,
        listener: ListenerId,
        tuple: FourTuple,
        segment: &Segment<'_>,
        arrived: &Arrived<'_>,
        wire_len: usize,
        now: Instant,
    ) -> Result<(), Refusal> {
        // "First, check for a RST: [...] should be ignored. Second, check for an ACK: any
        // acknowledgment is bad if it arrives on a connection still in the LISTEN state."
        if arrived.flags.contains(Flags::RST) {
            return Err(Refusal::StrayReset);
        }
        if arrived.flags.contains(Flags::ACK) {
            return match self.on_syn_cookie(listener, tuple, arrived, now) {
                Err(Refusal::NoHandshake) => self.answer_with_reset(segment, Refusal::NoHandshake, now),
                verdict => verdict,
            };
        }
        if !arrived.flags.contains(Flags::SYN) || arrived.flags.contains(Flags::FIN) {
            return Err(Refusal::NotASyn);
        }
        let elsewhere = self.moves.opened_elsewhere(&tuple, arrived.seq, now);
        if elsewhere.is_some_and(|opened| self.owners().has_opened(&opened, arrived.seq))
            || self.is_replay(&tuple, arrived, now)
        {
            return Err(Refusal::Replayed);
        }
        self.on_syn(listener, tuple, arrived, wire_len, None, now)
    }

    /// Processes a SYN for a listener. `floor` is set if the SYN replaces a TIME-WAIT: it is the minimum of
    /// the new initial sequence number.
    pub(super) fn on_syn(
        &mut self,
        listener: ListenerId,
        tuple: FourTuple,
        syn: &Arrived<'_>,
        wire_len: usize,
        floor: Option<SeqNum>,
        now: Instant,
    ) -> Result<(), Refusal> {
        let verdict = self.admit_syn_data(listener, &tuple, syn, now);
        let at = self.listeners.at_mut(listener).ok_or(Refusal::NoListener)?;
        match at.syn_decision() {
            _ if matches!(verdict, Some(Verdict::Accept { .. })) => {}
            SynDecision::Refuse(reason) => return Err(reason),
            // A cookie cannot guarantee a sequence number above the old connection's. Its peer has completed
            // a handshake, so such SYNs have as many places of their own.
            SynDecision::Cookie if floor.is_some() && at.half_open < 2 * at.max_half_open => {}
            SynDecision::Cookie if floor.is_some() => return Err(Refusal::HalfOpenFull),
            SynDecision::Cookie => return self.send_syn_cookie(listener, tuple, syn, now),
            SynDecision::Keep => {}
        }
        let tcp = Arc::clone(&at.tcp);
        if !self.evict_if_full() {
            self.fast_open.undo(verdict);
            return Err(Refusal::TooManyConnections);
        }
        let mut secrets = self.secrets.secrets(&tuple, now);
        secrets.iss = floor.map_or(secrets.iss, |floor| secrets.iss.max(floor));
        let host = self.host();
        let mut connection = Connection::accept(tuple, &tcp, secrets, host, syn, now);
        self.start_on_path(&mut connection, now);
        if matches!(verdict, Some(Verdict::Accept { .. })) && !syn.payload.is_empty() {
            self.memory.spares.lend(&mut connection.rx.queue);
        }
        let fast_open = self.listeners.at(listener).and_then(|at| at.fast_open.as_deref());
        let answer = fast_open.zip(verdict);
        let ticket = answer.and_then(|(at, verdict)| at.answer(&mut connection, verdict, syn, wire_len, now));
        let has_no_effect = answer.is_some_and(|(at, verdict)| at.has_no_effect(&verdict));
        match ticket {
            Some(ticket) => {
                self.moves.on_opened(tuple.remote, syn.seq);
                self.insert_opened(listener, connection, &tcp, ticket, now);
            }
            None => {
                let id = self.insert_half_open(listener, connection, &tcp, now);
                let verdict = verdict.filter(|_| !has_no_effect);
                let beginning =
                    Beginning { tuple, listener, syn, wire_len, secrets, host, verdict, opened: now };
                if let Some(slot) = self.slots.at_mut(id).filter(|_| !self.config.observe) {
                    slot.half_open = HalfOpen::new(beginning);
                }
            }
        }
        self.stats.passive_opens += 1;
        Ok(())
    }

    /// Puts a connection that was opened by its SYN into the accept queue.
    fn insert_opened(
        &mut self,
        listener: ListenerId,
        connection: Box<Connection>,
        tcp: &TcpConfig,
        ticket: Box<Ticket>,
        now: Instant,
    ) {
        let id = self.insert(connection, tcp, Ownership::Queued(listener), now);
        if let Some(slot) = self.slots.at_mut(id) {
            slot.ticket = Some(ticket);
        }
        if let Some(at) = self.listeners.at_mut(listener) {
            at.on_opened(id);
        }
        self.events.push(Event::Incoming(listener));
    }

    fn insert_half_open(
        &mut self,
        listener: ListenerId,
        connection: Box<Connection>,
        tcp: &TcpConfig,
        now: Instant,
    ) -> ConnId {
        if let Some(at) = self.listeners.at_mut(listener) {
            at.half_open += 1;
        }
        self.insert(connection, tcp, Ownership::HalfOpen(listener), now)
    }

    /// Answers a SYN without storing it. The SYN-ACK comes from a temporary connection, so that it has the
    /// same form as any other.
    fn send_syn_cookie(
        &mut self,
        listener: ListenerId,
        tuple: FourTuple,
        syn: &Arrived<'_>,
        now: Instant,
    ) -> Result<(), Refusal> {
        let host = self.host();
        let at = self.listeners.at_mut(listener).ok_or(Refusal::NoListener)?;
        let tcp = at.syn_cookie_config();
        let params = at.syn_cookie_params(syn, tuple.remote.is_ipv6());
        let iss = self.cookies.generate(&tuple, syn.seq, &params, now).ok_or(Refusal::HalfOpenFull)?;
        at.last_cookie = Some(now);
        let offset = self.secrets.timestamp_offset(&tuple);
        let secrets = Secrets { iss, ts_offset: syn_cookie::fold_into_offset(&params, offset, now) };
        let options = Options {
            mss: syn.options.mss,
            window_scale: params.window_scale,
            sack_permitted: params.sack,
            timestamps: syn.options.timestamps.filter(|_| params.timestamps),
            ..Options::default()
        };
        let flags = if params.ecn { syn.flags } else { syn.flags.without(Flags::ECE | Flags::CWR) };
        let kept = Arrived { options: &options, flags, payload: &[], ..*syn };
        let mut passing = Connection::accept(tuple, &tcp, secrets, host, &kept, now);
        let mut packet = self.answers.buffer();
        let built = with_env(&self.config, &mut self.challenges, &mut self.stats, |env| {
            passing.poll_transmit(now, env, &mut packet)
        });
        let sent = self.answers.push(packet) && built.is_some();
        self.stats.syn_cookies_sent += u64::from(sent);
        self.stats.answers_dropped += u64::from(!sent);
        Ok(())
    }

    /// Processes an acknowledgement at a listener, which may return a cookie.
    fn on_syn_cookie(
        &mut self,
        listener: ListenerId,
        tuple: FourTuple,
        ack: &Arrived<'_>,
        now: Instant,
    ) -> Result<(), Refusal> {
        let at = self.listeners.at(listener).ok_or(Refusal::NoListener)?;
        let sends_cookies =
            at.last_cookie.is_some_and(|last| now.saturating_since(last) < syn_cookie::LIFETIME);
        if !sends_cookies || ack.flags.contains(Flags::SYN) {
            return Err(Refusal::NoHandshake);
        }
        let (irs, iss) = (ack.seq - 1, ack.ack - 1);
        let echo = ack.options.timestamps.filter(|_| at.tcp.timestamps).map(|timestamps| timestamps.echo);
        let params = self.cookies.check(&tuple, irs, iss, echo, now).ok_or(Refusal::NoHandshake)?;
        if at.is_full() {
            return Err(Refusal::BacklogFull);
        }
        let tcp = at.syn_cookie_config();
        if !self.evict_if_full() {
            return Err(Refusal::TooManyConnections);
        }
        let secrets = Secrets { iss, ts_offset: self.secrets.timestamp_offset(&tuple) };
        let host = self.host();
        let connection = with_env(&self.config, &mut self.challenges, &mut self.stats, |env| {
            Connection::from_syn_cookie(tuple, &tcp, secrets, host, ack, params, now, env)
        });
        self.stats.syn_cookies_accepted += 1;
        self.insert_half_open(listener, connection, &tcp, now);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listener(syn_cookies: SynCookies) -> Listener {
        let config = ListenConfig { backlog: 1, max_half_open: 2, syn_cookies, ..ListenConfig::default() };
        Listener::new(SocketAddr::from(([10, 0, 0, 1], 80)), config)
    }

    #[test]
    fn full_half_open_table_sends_cookies_or_drops_syns() {
        for (cookies, at_rest, in_flood) in [
            (SynCookies::Off, SynDecision::Keep, SynDecision::Refuse(Refusal::HalfOpenFull)),
            (SynCookies::UnderFlood, SynDecision::Keep, SynDecision::Cookie),
            (SynCookies::Always, SynDecision::Cookie, SynDecision::Cookie),
        ] {
            let mut listener = listener(cookies);
            assert_eq!(listener.syn_decision(), at_rest);
            listener.half_open = 2;
            assert_eq!(listener.syn_decision(), in_flood);
        }
    }

    #[test]
    fn a_full_accept_queue_refuses_even_cookies() {
        let mut listener = listener(SynCookies::Always);
        listener.on_established(ConnId { index: 0, generation: 0 });
        assert_eq!(listener.syn_decision(), SynDecision::Refuse(Refusal::BacklogFull));
    }

    #[test]
    fn without_timestamps_a_cookie_keeps_only_the_mss() {
        let listener = listener(SynCookies::Always);
        let options =
            Options { mss: Some(1400), window_scale: Some(7), sack_permitted: true, ..Options::default() };
        let syn = Arrived {
            seq: SeqNum(1),
            ack: SeqNum(0),
            flags: Flags::SYN,
            window: 1000,
            urgent: 0,
            options: &options,
            payload: &[],
            ecn: brisk_wire::Ecn::NotEct,
            segment_size: 0,
        };
        let params = listener.syn_cookie_params(&syn, false);
        assert_eq!(
            params,
            SynCookieParams { mss: 1400, window_scale: None, sack: false, timestamps: false, ecn: false }
        );
    }
}

//! The client's side: its memory of servers and paths, and the decisions that follow from it (TCP Fast Open,
//! CoNEXT 2011, sections 3.2 and 4.1; RFC 7413 sections 3.1 and 4.1.3).
//!
//! For every pair of addresses the cache has the latest cookie; round-trip time and MSS belong to the memory
//! of paths ([`crate::path`]) and come as [`PathFacts`]. It also remembers failures, in three scopes, so that
//! a reaction is not larger than its cause:
//!
//! - A SYN with data (or with the option) was dropped. After the second time the client uses no Fast Open to
//!   this destination and port, for 240 s and doubling.
//! - The server answered but did not accept the data, three times in ten minutes. SYNs carry the cookie and
//!   no data for 60 s and doubling, so that the client notices a server that recovers. A client whose address
//!   changes sees this; it costs bytes and no time.
//! - The path passed the data and then nothing more, to two destinations. Fast Open is off on this attachment
//!   to the network, for one hour and doubling. One destination alone proves nothing: it may have crashed.

use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use arrayvec::ArrayVec;
use brisk_wire::{Cookie, FastOpen};

use super::outcome::{BlackHoleSign, OffReason, SynAckClass};
use crate::error::ConfigError;
use crate::four_tuple::KeyedHash;
use crate::lru::Lru;
use crate::path::PathFacts;
use crate::time::{Duration, Instant};

/// Bytes of a SYN that are kept for options, ours and what a middlebox may add (Linux: 40).
const OPTION_SPACE: u16 = 40;
/// MSS of a server that never said: IPv4, IPv6 (RFC 9293 section 3.7.1).
const DEFAULT_MSS: [u16; 2] = [536, 1220];
/// Largest MSS that a SYN with data may count on: what Ethernet carries over IPv4, IPv6.
const MSS_CAP: [u16; 2] = [1460, 1440];
/// Time between two signs of a black hole that belong together.
const BLACK_HOLE_WINDOW: Duration = Duration::from_secs(600);
/// An attachment over which an answer came behind a SYN with data within this time is no black hole, whatever
/// single destinations look like: a queue of several seconds shows the same signs.
const WORKS_TELLS: Duration = Duration::from_secs(60);
/// Swallowed SYNs in a row after which a destination and port is left alone that has answered behind data of
/// a SYN: where one handshake of twenty-five loses a packet two in a row are chance every 600 connections,
/// and six never.
const KNOWN_SYN_FAIL_LIMIT: u8 = 6;
/// Attachments and signs that are remembered at most.
const MAX_ATTACHMENTS: usize = 16;
const MAX_SIGNS: usize = 8;
/// One-time cookies kept for a server.
const MAX_ONE_TIME: usize = 8;
/// Ports of a server of which failures are remembered.
pub(super) const MAX_PORTS: usize = 8;

/// Bounds and times of the client's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClientMemory {
    /// Pairs of addresses. 0 (none)..=1000000, default 1024.
    pub entries: usize,
    /// Never count on more than 1460 (IPv4) or 1440 (IPv6) bytes of MSS for a SYN. Default `true`.
    pub cap_syn_mss: bool,
    /// Swallowed SYNs in a row after which a destination and port is left alone; 6 at least if an answer came
    /// from it behind data of a SYN before. 1..=10, default 2.
    pub syn_fail_limit: u8,
    /// It is left alone for this long, doubled per swallowed SYN. 1 s..=1 h, default 60 s.
    pub disable_base: Duration,
    /// Answers without the data after which data stays out of SYNs. 1..=10, default 3.
    pub soft_limit: u8,
    /// Within this time. Default 600 s.
    pub soft_window: Duration,
    /// For this long, doubled per episode. Default 60 s.
    pub soft_base: Duration,
    /// After a server gave no cookie: the time to the next request. Default 600 s.
    pub request_interval: Duration,
    /// The time to the next request after [`ClientMemory::syn_fail_limit`] in a row were swallowed, doubled
    /// each time. Default 1 h.
    pub request_base: Duration,
    /// Fast Open is off for this long on an attachment that is a black hole, doubled each time; 0: never.
    /// Up to 86400 s, default 3600 s.
    pub black_hole_base: Duration,
    /// Destinations that must show signs of it. 1..=8, default 2.
    pub black_hole_destinations: u8,
    /// Makes literals end with `..`, so that releases can add fields.
    #[doc(hidden)]
    pub non_exhaustive: (),
}

impl Default for ClientMemory {
    fn default() -> Self {
        ClientMemory {
            entries: 1024,
            cap_syn_mss: true,
            syn_fail_limit: 2,
            disable_base: Duration::from_secs(60),
            soft_limit: 3,
            soft_window: Duration::from_secs(600),
            soft_base: Duration::from_secs(60),
            request_interval: Duration::from_secs(600),
            request_base: Duration::from_secs(3600),
            black_hole_base: Duration::from_secs(3600),
            black_hole_destinations: 2,
            non_exhaustive: (),
        }
    }
}

/// Fast Open for one active open. Data of the SYN can reach the server's application **more than once**
/// (RFC 7413 section 6.1): ask for it only if a repeated request does no harm.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FastOpenConnect {
    /// Whose cookies to use: they can be told apart by a server, so give every privacy context its own
    /// partition. Default 0.
    pub partition: u64,
    /// The attachment to the network that the connection uses: a black hole is remembered for it. Default
    /// 0.
    pub attachment: u64,
    /// Send the data without asking for a cookie, as closed networks may. Default `false`.
    pub no_cookie: bool,
    /// A destination whose MSS is not known is taken to accept as much data on a SYN as our own device does,
    /// instead of the default MSS (RFC 7413 section 4.1.3) less options. Default `false`.
    pub assume_mtu: bool,
    /// The option in the experimental form that older servers know. Default `false`.
    pub experimental: bool,
    /// Ask for one-time cookies outside the handshake; only servers of this stack know them. Default
    /// `false`.
    pub one_time: bool,
    /// The first SYN is given this many percent of the remembered round-trip time before a plain one
    /// follows. 100..=300, default 150.
    pub syn_rto_percent: u16,
    /// But at least this. 0..=1 s, default 50 ms.
    pub syn_rto_floor: Duration,
    /// While the path has not taken data on a SYN yet, or has swallowed one since, a copy of the SYN without
    /// data follows after this many percent of the remembered round-trip time (50 ms without one): a path
    /// that swallows the first SYN then costs no more than that. Costs a small packet each way. 0..=100,
    /// default 0: no copy; [`FastOpenConnect::insured`] has 50.
    pub plain_copy_percent: u16,
    /// Keep what arrives before the SYN-ACK until it is there, a window of ten segments at most. Default
    /// `true`.
    pub hold_early: bool,
    /// Data segments that follow a SYN with data at once, before its answer. Only for hops inside UDP whose
    /// server takes them ([`super::FastOpenListen`]): elsewhere firewalls drop them. 0 (none)..=9, default 0.
    pub data_after_syn: u8,
    /// Announce on a SYN with data the whole receive window beside the 65,535 bytes that its field holds, so
    /// that a response to it may be longer than that before our next segment arrives. Takes effect with
    /// [`TcpConfig::path_start`](crate::config::TcpConfig::path_start) and an offer of Corrective or
    /// Proactive. Devices that watch windows may drop what exceeds the field. Default `false`;
    /// [`FastOpenConnect::insured`] has `true`.
    pub early_window: bool,
    /// Send a request that is longer than a SYN in so many SYNs, the first included: devices that pass
    /// nothing else before the SYN-ACK take them for repetitions. Only with a server of this stack that takes
    /// them ([`super::FastOpenListen::data_after_syn`]). 1 (the first alone)..=4, default 1.
    pub syn_parts: u8,
    /// The SYN leaves with the first write instead of at once, or with
    /// [`Stack::send_deferred_syn`](crate::Stack::send_deferred_syn); no timer runs until then. Default
    /// `false`.
    pub defer: bool,
    /// Makes literals end with `..`, so that releases can add fields.
    #[doc(hidden)]
    pub non_exhaustive: (),
}

impl Default for FastOpenConnect {
    fn default() -> Self {
        FastOpenConnect {
            partition: 0,
            attachment: 0,
            no_cookie: false,
            assume_mtu: false,
            experimental: false,
            one_time: false,
            syn_rto_percent: 150,
            syn_rto_floor: Duration::from_millis(50),
            plain_copy_percent: 0,
            hold_early: true,
            data_after_syn: 0,
            early_window: false,
            syn_parts: 1,
            defer: false,
            non_exhaustive: (),
        }
    }
}

impl ClientMemory {
    /// Checks the ranges given at the fields.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let refuse = |key, value: String, range| Err(ConfigError { key, value, range });
        if self.entries > 1_000_000 {
            return refuse("fast_open.entries", self.entries.to_string(), "0 to 1000000");
        }
        for (key, value) in [("syn_fail_limit", self.syn_fail_limit), ("soft_limit", self.soft_limit)] {
            if !(1..=10).contains(&value) {
                return refuse(key, value.to_string(), "1 to 10");
            }
        }
        let hour = Duration::from_secs(3600);
        if !(Duration::from_secs(1)..=hour).contains(&self.disable_base) {
            return refuse("disable_base", format!("{:?}", self.disable_base), "1 s to 1 h");
        }
        if self.black_hole_base > 24 * hour {
            return refuse("black_hole_base", format!("{:?}", self.black_hole_base), "0 to 86400 s");
        }
        if !(1..=8).contains(&self.black_hole_destinations) {
            return refuse("black_hole_destinations", self.black_hole_destinations.to_string(), "1 to 8");
        }
        Ok(())
    }
}

impl FastOpenConnect {
    /// Checks the ranges given at the fields.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let refuse = |key, value: String, range| Err(ConfigError { key, value, range });
        if !(100..=300).contains(&self.syn_rto_percent) {
            return refuse("syn_rto_percent", self.syn_rto_percent.to_string(), "100 to 300");
        }
        if self.syn_rto_floor > Duration::from_secs(1) {
            return refuse("syn_rto_floor", format!("{:?}", self.syn_rto_floor), "0 to 1 s");
        }
        if self.plain_copy_percent > 100 {
            return refuse("plain_copy_percent", self.plain_copy_percent.to_string(), "0 to 100");
        }
        if self.data_after_syn > 9 {
            return refuse("data_after_syn", self.data_after_syn.to_string(), "0 to 9 segments");
        }
        Ok(())
    }

    /// For paths of which nothing is known: as the default, with a plain copy of the SYN half a round trip
    /// behind it until the path has taken data once, and with the early window.
    pub fn insured() -> Self {
        FastOpenConnect { plain_copy_percent: 50, early_window: true, ..FastOpenConnect::default() }
    }
}

/// Key of the cache.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct PathKey {
    pub(crate) local: IpAddr,
    pub(crate) remote: IpAddr,
    pub(crate) partition: u64,
}

/// A connection as the cache knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Asker {
    pub(crate) path: PathKey,
    pub(crate) port: u16,
    pub(crate) attachment: u64,
}

impl Asker {
    pub(crate) fn new(local: SocketAddr, remote: SocketAddr, connect: &FastOpenConnect) -> Self {
        let path = PathKey { local: local.ip(), remote: remote.ip(), partition: connect.partition };
        Asker { path, port: remote.port(), attachment: connect.attachment }
    }
}

/// Content of the first SYN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// A request for a cookie.
    Request,
    /// A cookie, and the data there is.
    Data,
    /// A cookie and no data: the server did not take any lately.
    CookieOnly,
    /// Data without a cookie.
    DataNoCookie,
}

/// How a connection opens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Plan {
    pub(crate) mode: Mode,
    /// The option of the SYN.
    pub(crate) option: Option<FastOpen>,
    /// Payload bytes that the SYN may carry, before the path MTU is looked at.
    pub(crate) data_limit: u16,
    /// The remembered round-trip time that the first SYN reckons with, if it is fresh.
    pub(crate) srtt: Option<Duration>,
    /// The path has not taken data on a SYN to this port yet, or has swallowed one since.
    pub(crate) untried: bool,
    /// The path has brought an answer behind such a SYN, and has swallowed none since.
    pub(crate) proven: bool,
    /// Answers in a row that did not take the data, as far as they were known when it was made.
    pub(crate) refusals: u8,
}

/// A connection's report on its opening.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Report {
    /// The first acceptable SYN-ACK.
    SynAck {
        class: SynAckClass,
        /// Its Fast Open option, if the SYN had one too.
        cookie: Option<FastOpen>,
        /// [`Plan::refusals`] of the connection.
        refusals: u8,
    },
    /// A one-time cookie came outside the handshake.
    OneTime(Cookie),
    /// There was no SYN-ACK: a timeout, a reset or an ICMP error. The memory learns it when a plain
    /// connection has opened since.
    Failed(Mode),
    /// The SYN was swallowed, and something else about it may be the reason.
    Doubted,
    /// The connection opened and then showed this.
    BlackHole(BlackHoleSign),
    /// Data arrived on a connection whose SYN data was taken.
    Works,
}

impl Report {
    /// The same if the SYN had another option beside that of Fast Open which may be to blame.
    pub(crate) fn doubted(self) -> Report {
        match self {
            Report::SynAck { class: SynAckClass::SynDrop | SynAckClass::ReqDrop, .. } | Report::Failed(_) => {
                Report::Doubted
            }
            Report::SynAck { .. }
            | Report::OneTime(_)
            | Report::Doubted
            | Report::BlackHole(_)
            | Report::Works => self,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Path {
    pub(super) cookie: Option<FastOpen>,
    pub(super) one_time: VecDeque<Cookie>,
    pub(super) soft: u8,
    pub(super) soft_since: Instant,
    pub(super) soft_until: Option<Instant>,
    pub(super) soft_episodes: u8,
    pub(super) ports: ArrayVec<Port, MAX_PORTS>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Port {
    pub(super) port: u16,
    pub(super) syn_fail: u8,
    pub(super) disabled_until: Option<Instant>,
    pub(super) req_fail: u8,
    pub(super) request_after: Option<Instant>,
    /// Data of a SYN was taken, and none has been swallowed since.
    pub(super) takes_data: bool,
    /// And an answer came behind it.
    pub(super) proven: bool,
    /// An answer came over a plain connection first.
    pub(super) outrun: bool,
    /// An answer came behind data of a SYN since it was left alone last: what is swallowed now is rather
    /// lost.
    pub(super) answered: bool,
}

/// Whether an attachment to the network is a black hole for Fast Open.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Breaker {
    pub(super) attachment: u64,
    pub(super) times: u8,
    pub(super) off_until: Option<Instant>,
    /// When an answer came behind a SYN with data last.
    worked: Option<Instant>,
    signs: ArrayVec<(IpAddr, Instant), MAX_SIGNS>,
}

/// The memory of a client.
#[derive(Debug)]
pub(crate) struct ClientCache {
    memory: ClientMemory,
    hash: KeyedHash,
    pub(super) paths: Lru<PathKey, Path, KeyedHash>,
    /// The one used last at the end.
    pub(super) breakers: Vec<Breaker>,
}

impl ClientCache {
    /// An empty cache.
    pub(crate) fn new(memory: ClientMemory, hash: KeyedHash) -> Self {
        let paths = Lru::new(memory.entries, hash.clone());
        ClientCache { memory, hash, paths, breakers: Vec::new() }
    }

    /// As [`ClientCache::new`] makes one, in the same storage.
    pub(crate) fn renew(&mut self, by: ClientMemory, with: KeyedHash) {
        let ClientCache { memory, hash, paths, breakers } = self;
        paths.renew(by.entries, with.clone());
        (*memory, *hash) = (by, with);
        breakers.clear();
    }

    /// An empty cache of the same kind.
    pub(super) fn emptied(&self) -> Self {
        ClientCache::new(self.memory, self.hash.clone())
    }

    /// How this connection should open, or why without Fast Open. `known`: of the path.
    pub(crate) fn choose(
        &mut self,
        asker: &Asker,
        connect: &FastOpenConnect,
        user_mss: Option<u16>,
        known: &PathFacts,
        now: Instant,
    ) -> Result<Plan, OffReason> {
        let later = |until: Option<Instant>| until.is_some_and(|until| until > now);
        let family = usize::from(asker.path.remote.is_ipv6());
        if self.breaker(asker.attachment).is_some_and(|breaker| later(breaker.off_until)) {
            return Err(OffReason::BlackHole);
        }
        let cap = if self.memory.cap_syn_mss { MSS_CAP[family] } else { u16::MAX };
        let none = Path::default();
        let path = self.paths.touch(&asker.path).map_or(&none, |path| path);
        let port = path.port(asker.port);
        if later(port.disabled_until) {
            return Err(OffReason::Disabled);
        }
        let assumed = if connect.assume_mtu { u16::MAX } else { DEFAULT_MSS[family] };
        let mss = known.mss.unwrap_or(assumed).min(cap).min(user_mss.unwrap_or(u16::MAX));
        let srtt = known.handshake_rtt();
        let form = |cookie| FastOpen { cookie, experimental: connect.experimental };
        let cookie = path.one_time.front().copied().filter(|_| connect.one_time).map(form);
        let (mode, option) = match cookie.or(path.cookie) {
            _ if connect.no_cookie => (Mode::DataNoCookie, None),
            Some(option) if later(path.soft_until) => (Mode::CookieOnly, Some(option)),
            Some(option) => (Mode::Data, Some(option)),
            None if later(port.request_after) => return Err(OffReason::NoCookieThere),
            None => (Mode::Request, Some(form(Cookie::REQUEST))),
        };
        let plan = Plan {
            mode,
            option,
            data_limit: mss.saturating_sub(OPTION_SPACE),
            srtt,
            untried: !port.takes_data,
            proven: port.proven,
            refusals: path.soft,
        };
        if plan.option.is_some_and(|option| cookie == Some(option))
            && let Some(path) = self.paths.touch(&asker.path)
        {
            path.one_time.pop_front();
        }
        Ok(plan)
    }

    /// Takes in what a connection reports.
    pub(crate) fn on_report(&mut self, asker: &Asker, report: &Report, now: Instant) {
        match *report {
            Report::SynAck { class, cookie, refusals } => {
                let memory = self.memory;
                let Some((_, path)) = self.paths.touch_or_insert(asker.path, Path::default) else { return };
                path.cookie = cookie.filter(|option| !option.cookie.is_empty()).or(path.cookie);
                path.judge(asker.port, class, refusals, &memory, now);
            }
            Report::OneTime(cookie) => {
                let Some((_, path)) = self.paths.touch_or_insert(asker.path, Path::default) else { return };
                if path.one_time.len() == MAX_ONE_TIME {
                    path.one_time.pop_front();
                }
                path.one_time.push_back(cookie);
            }
            Report::Failed(mode) => {
                let memory = self.memory;
                let Some((_, path)) = self.paths.touch_or_insert(asker.path, Path::default) else { return };
                match mode {
                    Mode::Request => path.request_swallowed(asker.port, &memory, now),
                    Mode::Data | Mode::CookieOnly | Mode::DataNoCookie => {
                        path.syn_swallowed(asker.port, 1, &memory, now);
                    }
                }
            }
            Report::Doubted => {
                if let Some(path) = self.paths.touch(&asker.path) {
                    let port = path.port_mut(asker.port);
                    (port.takes_data, port.proven) = (false, false);
                }
            }
            Report::BlackHole(sign) => self.on_black_hole(asker, sign, now),
            Report::Works => {
                if let Some((_, path)) = self.paths.touch_or_insert(asker.path, Path::default) {
                    let port = path.port_mut(asker.port);
                    (port.proven, port.answered, port.outrun) = (true, true, false);
                }
                if !asker.path.remote.is_loopback() && !self.memory.black_hole_base.is_zero() {
                    let breaker = self.breaker_or_insert(asker.attachment);
                    (breaker.times, breaker.worked) = (0, Some(now));
                }
            }
        }
    }

    /// Forgets the cookies and failures of a partition, or of all: on a change of network.
    pub(crate) fn flush(&mut self, partition: Option<u64>) {
        self.paths.retain(|key, _| partition.is_some_and(|partition| partition != key.partition));
        if partition.is_none() {
            self.breakers.clear();
        }
    }

    /// Pairs of addresses that are known.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.paths.len()
    }

    fn on_black_hole(&mut self, asker: &Asker, sign: BlackHoleSign, now: Instant) {
        let memory = self.memory;
        if let Some((_, path)) = self.paths.touch_or_insert(asker.path, Path::default) {
            if sign == BlackHoleSign::Outrun && !path.was_outrun_before(asker.port) {
                return;
            }
            path.syn_swallowed(asker.port, 2, &memory, now);
        }
        if asker.path.remote.is_loopback() || memory.black_hole_base.is_zero() {
            return;
        }
        let breaker = self.breaker_or_insert(asker.attachment);
        if breaker.worked.is_some_and(|at| now.saturating_since(at) <= WORKS_TELLS) {
            return;
        }
        breaker.signs.retain(|(remote, at)| {
            *remote != asker.path.remote && now.saturating_since(*at) <= BLACK_HOLE_WINDOW
        });
        if breaker.signs.is_full() {
            breaker.signs.remove(0);
        }
        breaker.signs.push((asker.path.remote, now));
        if breaker.signs.len() >= usize::from(memory.black_hole_destinations) {
            breaker.off_until = Some(now + doubled(memory.black_hole_base, breaker.times.min(6)));
            breaker.times = breaker.times.saturating_add(1);
            breaker.signs.clear();
        }
    }

    fn breaker(&mut self, attachment: u64) -> Option<&mut Breaker> {
        self.breakers.iter_mut().find(|breaker| breaker.attachment == attachment)
    }

    pub(super) fn breaker_or_insert(&mut self, attachment: u64) -> &mut Breaker {
        let known = self.breakers.iter().position(|breaker| breaker.attachment == attachment);
        let breaker = match known {
            Some(at) => self.breakers.remove(at),
            None => Breaker { attachment, ..Breaker::default() },
        };
        if self.breakers.len() >= MAX_ATTACHMENTS {
            self.breakers.remove(0);
        }
        self.breakers.push_mut(breaker)
    }
}

impl Path {
    fn port(&self, port: u16) -> Port {
        self.ports.iter().find(|known| known.port == port).copied().unwrap_or_default()
    }

    /// The memory of a port; the one that was entered first makes way.
    pub(super) fn port_mut(&mut self, port: u16) -> &mut Port {
        let at = match self.ports.iter().position(|known| known.port == port) {
            Some(at) => at,
            None => {
                if self.ports.is_full() {
                    self.ports.remove(0);
                }
                self.ports.push(Port { port, ..Port::default() });
                self.ports.len() - 1
            }
        };
        &mut self.ports[at]
    }

    fn judge(&mut self, port: u16, class: SynAckClass, refusals: u8, memory: &ClientMemory, now: Instant) {
        match class {
            SynAckClass::Accepted => {
                let port = self.port_mut(port);
                (port.syn_fail, port.takes_data) = (0, true);
                (self.soft, self.soft_episodes) = (0, 0);
            }
            SynAckClass::Partial => {
                self.port_mut(port).takes_data = true;
                self.soft = 0;
            }
            SynAckClass::SoftReject | SynAckClass::SoftNegative | SynAckClass::LateReject => {
                self.data_not_taken(refusals, memory, now);
            }
            SynAckClass::SynDrop => self.syn_swallowed(port, 1, memory, now),
            SynAckClass::Granted => {
                let port = self.port_mut(port);
                (port.req_fail, port.request_after) = (0, None);
            }
            SynAckClass::NotSupported => {
                self.port_mut(port).request_after = Some(now + memory.request_interval);
            }
            SynAckClass::ReqDrop => self.request_swallowed(port, memory, now),
            SynAckClass::NoData => {}
        }
    }

    /// An answer did not take the data of a SYN, which knew of so many before it. A client that opens many
    /// connections at once meets the limits of the server with some of them: those are one sign and not many,
    /// since none of them knew of the others.
    fn data_not_taken(&mut self, known: u8, memory: &ClientMemory, now: Instant) {
        if self.soft == 0 || now.saturating_since(self.soft_since) > memory.soft_window {
            (self.soft, self.soft_since) = (0, now);
        }
        self.soft = self.soft.max(known.min(self.soft).saturating_add(1));
        if self.soft >= memory.soft_limit {
            self.soft_until = Some(now + doubled(memory.soft_base, self.soft_episodes.min(6)));
            self.soft_episodes = self.soft_episodes.saturating_add(1);
            self.soft = 0;
        }
    }

    fn syn_swallowed(&mut self, port: u16, count: u8, memory: &ClientMemory, now: Instant) {
        let port = self.port_mut(port);
        (port.takes_data, port.proven) = (false, false);
        port.syn_fail = port.syn_fail.saturating_add(count);
        // More than one at a time is a black hole, which is no matter of chance.
        let may_be_chance = port.answered && count == 1;
        if may_be_chance && port.syn_fail < memory.syn_fail_limit.max(KNOWN_SYN_FAIL_LIMIT) {
            return;
        }
        if port.syn_fail >= memory.syn_fail_limit {
            if core::mem::take(&mut port.answered) {
                // It is left alone as long as a stranger the first time.
                port.syn_fail = memory.syn_fail_limit;
            }
            port.disabled_until = Some(now + doubled(memory.disable_base, port.syn_fail.min(10)));
        }
    }

    /// An answer that came over another connection first may have been lost on this one: only the second time
    /// in a row tells something.
    fn was_outrun_before(&mut self, port: u16) -> bool {
        let port = self.port_mut(port);
        (port.takes_data, port.proven) = (false, false);
        let before = port.outrun;
        port.outrun = !before;
        before
    }

    fn request_swallowed(&mut self, port: u16, memory: &ClientMemory, now: Instant) {
        let port = self.port_mut(port);
        port.req_fail = port.req_fail.saturating_add(1);
        // A single one may have been lost.
        if let Some(more) = port.req_fail.checked_sub(memory.syn_fail_limit) {
            port.request_after = Some(now + doubled(memory.request_base, more.min(4)));
        }
    }
}

fn doubled(base: Duration, times: u8) -> Duration {
    base.saturating_mul(1 << times.min(31))
}

#[cfg(test)]
mod tests;

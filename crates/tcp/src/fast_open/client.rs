//! The client's side: its memory of servers and paths, and the decisions from it (TCP Fast Open, CoNEXT 2011,
//! sections 3.2 and 4.1; RFC 7413 sections 3.1 and 4.1.3).
//!
//! For every pair of addresses the cache has the latest cookie; the memory of paths ([`crate::path`])
//! provides round-trip time and MSS as [`PathFacts`]. The cache also remembers failures, in three scopes, so
//! that a reaction is not larger than its cause:
//!
//! - A SYN with data (or with the option) was dropped. After two in a row the client uses no Fast Open to
//!   this destination and port, for 240 s and doubling. Six are needed if the destination has answered SYN
//!   data.
//! - The server answered but did not accept the data, three times in ten minutes. SYNs then carry the cookie
//!   and no data for 60 s and doubling, so that the client notices when the server recovers. A change of the
//!   client's address has the same effect; it costs bytes and no time.
//! - The path passed the data and then nothing more. The destination and port is then avoided as after
//!   dropped SYNs. After two destinations, Fast Open is off for one hour and doubling, because a single one
//!   may have crashed. Silence does not count if an answer to SYN data came in the last minute: a queue of
//!   several seconds, an outage and a change of this host's address look the same.

use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::{String, ToString};
use core::net::{IpAddr, SocketAddr};

use arrayvec::ArrayVec;
use brisk_wire::{Cookie, FastOpen};

use super::outcome::{BlackHoleSign, OffReason, SynAckClass};
use crate::error::ConfigError;
use crate::four_tuple::KeyedHash;
use crate::lru::Lru;
use crate::path::PathFacts;
use crate::time::{Duration, Instant};

/// Bytes of a SYN reserved for options, including those that a middlebox may add (Linux: 40).
const OPTION_SPACE: u16 = 40;
/// MSS of a server that has not announced its MSS: IPv4, IPv6 (RFC 9293 section 3.7.1).
const DEFAULT_MSS: [u16; 2] = [536, 1220];
/// Largest MSS that a SYN with data may assume, as on Ethernet: IPv4, IPv6.
const MSS_CAP: [u16; 2] = [1460, 1440];
/// Number of dropped SYNs in a row after which a destination and port is avoided. Requests for a cookie pause
/// after the same number of dropped requests.
const SYN_FAIL_LIMIT: u8 = 2;
/// Time for which such a destination is avoided, doubled for each dropped SYN in a row: 240 s after two SYNs.
const DISABLE_BASE: Duration = Duration::from_secs(60);
/// Number of answers without the data, within [`SOFT_WINDOW`], after which SYNs carry no data.
const SOFT_LIMIT: u8 = 3;
const SOFT_WINDOW: Duration = Duration::from_secs(600);
/// Time for which SYNs carry no data, doubled per episode.
const SOFT_BASE: Duration = Duration::from_secs(60);
/// Time until the next request after a server gave no cookie.
const REQUEST_INTERVAL: Duration = Duration::from_secs(600);
/// Time until the next request after several in a row were dropped, doubled each time.
const REQUEST_BASE: Duration = Duration::from_secs(3600);
/// Number of destinations that must show signs of a black hole.
const BLACK_HOLE_DESTINATIONS: usize = 2;
/// Time within which two signs of a black hole belong together.
const BLACK_HOLE_WINDOW: Duration = Duration::from_secs(600);
/// Time after an answer to a SYN with data in which silence is no sign of a black hole for the same
/// destination and port. After any such answer, no sign counts for the network during this time.
const RECENT_SUCCESS: Duration = Duration::from_secs(60);
/// Like [`SYN_FAIL_LIMIT`], for a destination and port that has answered SYN data before. If one of
/// twenty-five handshakes loses a packet, chance causes two in a row every 600 connections, but six only
/// every 240 million.
const KNOWN_SYN_FAIL_LIMIT: u8 = 6;
/// Limit of remembered signs of a black hole.
const MAX_SIGNS: usize = 8;
/// Limit of one-time cookies kept for a server.
const MAX_ONE_TIME: usize = 8;
/// Limit of a server's ports whose failures are remembered.
pub(super) const MAX_PORTS: usize = 8;

/// Fast Open for one active open. Data of the SYN can reach the server's application **more than once** (RFC
/// 7413 section 6.1): use it only for requests that may be repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FastOpenConnect {
    /// Partition of the cookies. A server can recognise a client by its cookies, so give every privacy
    /// context its own partition. Default 0.
    pub partition: u64,
    /// Cookie of the SYN. Default `Standard`.
    pub cookie: ClientCookie,
    /// Assume that a destination with unknown MSS accepts as much data on a SYN as the local device.
    /// Otherwise the default MSS (RFC 7413 section 4.1.3) less options is assumed. Default `false`.
    pub assume_mtu: bool,
    /// Minimum time between the first SYN and the plain SYN. The plain one follows after one and a half
    /// remembered round-trip times. 0..=1 s, default 50 ms.
    pub syn_rto_floor: Duration,
    /// Time after which a copy of the SYN without data follows, in percent of the remembered round-trip time
    /// (50 ms without one). The copy is sent only while the path has not delivered SYN data yet or has
    /// dropped a SYN since. If the path drops the first SYN, this time is all that is lost. The copy costs a
    /// small packet in each direction. 0..=100, default 0: no copy; [`FastOpenConnect::insured`] has 50.
    pub plain_copy_percent: u16,
    /// Keep data that arrives before the SYN-ACK, at most a window of ten segments. Default `true`.
    pub hold_early: bool,
    /// Number of data segments that follow a SYN with data directly, before its answer. Only for hops inside
    /// UDP whose server accepts them ([`super::FastOpenListen`]), because firewalls on other paths drop them.
    /// 0..=9, default 0.
    pub data_after_syn: u8,
    /// Announce the whole receive window on a SYN with data. Its window field announces at most 65,535 bytes;
    /// without this a longer response would have to wait for the next segment. Takes effect with
    /// [`TcpConfig::path_start`](crate::config::TcpConfig::path_start) and an offer of Corrective or
    /// Proactive. Devices that check windows may drop data above the field. Default `false`;
    /// [`FastOpenConnect::insured`] has `true`.
    pub early_window: bool,
    /// Number of SYNs, including the first, over which a request that is longer than a SYN may be spread.
    /// Devices that pass nothing else before the SYN-ACK treat them as retransmissions. Only with a server of
    /// this stack that accepts them ([`super::FastOpenListen::data_after_syn`]). 1..=4, default 1.
    pub syn_parts: u8,
    /// The SYN leaves with the first write, or with
    /// [`Stack::send_deferred_syn`](crate::Stack::send_deferred_syn); no timer runs until then. Default
    /// `false`.
    pub defer: bool,
    /// Makes literals end with `..`, so that releases can add fields.
    #[doc(hidden)]
    pub non_exhaustive: (),
}

/// Cookie with which a client opens.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum ClientCookie {
    /// The cookie that the server gave in an earlier handshake (RFC 7413).
    #[default]
    Standard,
    /// That cookie in the experimental form of the option, for older servers.
    Experimental,
    /// A cookie for one connection, requested outside the handshake. Only servers of this stack know them.
    OneTime,
    /// No cookie: closed networks may accept the data without one.
    None,
}

impl Default for FastOpenConnect {
    fn default() -> Self {
        FastOpenConnect {
            partition: 0,
            cookie: ClientCookie::Standard,
            assume_mtu: false,
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

impl FastOpenConnect {
    /// Checks the documented ranges of the fields; the error names the first field that is out of its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let refuse = |key, value: String, range| Err(ConfigError { key, value, range });
        if self.syn_rto_floor > Duration::from_secs(1) {
            return refuse("syn_rto_floor", format!("{:?}", self.syn_rto_floor), "0 to 1 s");
        }
        if self.plain_copy_percent > 100 {
            return refuse("plain_copy_percent", self.plain_copy_percent.to_string(), "0 to 100");
        }
        if !(1..=4).contains(&self.syn_parts) {
            return refuse("syn_parts", self.syn_parts.to_string(), "1 to 4 SYNs");
        }
        if self.data_after_syn > 9 {
            return refuse("data_after_syn", self.data_after_syn.to_string(), "0 to 9 segments");
        }
        Ok(())
    }

    /// Returns settings for unknown paths: the default, with the early window and a plain copy of the SYN.
    /// The copy leaves half a round trip later, until the path has delivered SYN data once.
    pub fn insured() -> Self {
        FastOpenConnect { plain_copy_percent: 50, early_window: true, ..FastOpenConnect::default() }
    }
}

/// True if the data of a SYN takes all the room that a client of this stack leaves for it in segments of
/// `mss` bytes.
pub(crate) fn fills_syn(data: usize, mss: u16) -> bool {
    data >= usize::from(mss.saturating_sub(OPTION_SPACE))
}

/// Key of the cache.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct PathKey {
    pub(crate) local: IpAddr,
    pub(crate) remote: IpAddr,
    pub(crate) partition: u64,
}

/// Key of a server in the cache: the addresses, the partition and the port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ServerKey {
    pub(crate) path: PathKey,
    pub(crate) port: u16,
}

impl ServerKey {
    pub(crate) fn new(local: SocketAddr, remote: SocketAddr, connect: &FastOpenConnect) -> Self {
        let path = PathKey { local: local.ip(), remote: remote.ip(), partition: connect.partition };
        ServerKey { path, port: remote.port() }
    }
}

/// Content of the first SYN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// A request for a cookie.
    Request,
    /// A cookie and data.
    Data,
    /// A cookie without data, because the server did not accept data recently.
    CookieOnly,
    /// Data without a cookie.
    DataNoCookie,
}

/// The form in which a connection opens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OpenAttempt {
    pub(crate) mode: Mode,
    pub(crate) option: Option<FastOpen>,
    /// Maximum payload of the SYN, bytes, before the limit of the path MTU.
    pub(crate) data_limit: u16,
    /// The remembered round-trip time for the first SYN, if it is recent.
    pub(crate) srtt: Option<Duration>,
    /// True if the path has not delivered SYN data to this port yet, or has dropped a SYN since.
    pub(crate) untried: bool,
    /// True if the path has delivered an answer after such a SYN, and has dropped none since.
    pub(crate) proven: bool,
    pub(crate) known: Failures,
}

/// Failures in a row, as known when a connection was opened. Connections that were opened together knew
/// nothing of each other's failures, so these count as one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Failures {
    /// Answers without the data.
    pub(crate) refusals: u8,
    /// Dropped SYNs of the same kind: those with requests if this SYN requests a cookie, else those with
    /// cookie or data.
    pub(crate) drops: u8,
}

impl Failures {
    /// Returns the number of failures in a row after one more. `counted`: the number so far. `known`: the
    /// number that the connection of this failure knew of.
    fn one_more(counted: u8, known: u8) -> u8 {
        counted.max(known.min(counted).saturating_add(1))
    }
}

/// A connection's report on its opening.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FastOpenReport {
    /// The first acceptable SYN-ACK.
    SynAck {
        class: SynAckClass,
        /// The Fast Open option of the SYN-ACK, if the SYN had one too.
        cookie: Option<FastOpen>,
        /// [`OpenAttempt::known`] of the connection.
        known: Failures,
    },
    /// A one-time cookie arrived outside the handshake.
    OneTime(Cookie),
    /// There was no SYN-ACK: a timeout, a reset or an ICMP error. Reported once a plain connection has
    /// opened.
    Failed(Mode),
    /// The SYN was dropped, perhaps because of another option.
    Doubted,
    /// The connection opened and then showed this sign.
    BlackHole(BlackHoleSign),
    /// Data arrived on a connection whose SYN data was accepted.
    Works,
}

impl FastOpenReport {
    /// Returns the report for a SYN whose drop another option may have caused.
    pub(crate) fn doubted(self) -> FastOpenReport {
        match self {
            FastOpenReport::SynAck { class: SynAckClass::SynDrop | SynAckClass::ReqDrop, .. }
            | FastOpenReport::Failed(_) => FastOpenReport::Doubted,
            FastOpenReport::SynAck { .. }
            | FastOpenReport::OneTime(_)
            | FastOpenReport::Doubted
            | FastOpenReport::BlackHole(_)
            | FastOpenReport::Works => self,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct FastOpenPath {
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
    /// SYN data was accepted, and no SYN was dropped since.
    pub(super) takes_data: bool,
    /// An answer has followed SYN data, too.
    pub(super) proven: bool,
    /// A plain connection was answered first.
    pub(super) hedge_won: bool,
    /// True if an answer has followed SYN data since the destination was last avoided. A missing answer is
    /// then more likely a chance loss.
    pub(super) answered: bool,
    /// Time when an answer last followed SYN data.
    pub(super) worked: Option<Instant>,
}

/// State of the network: whether it is a black hole for Fast Open.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct BlackHoleState {
    pub(super) times: u8,
    pub(super) off_until: Option<Instant>,
    /// Time when an answer last followed a SYN with data.
    worked: Option<Instant>,
    signs: ArrayVec<(IpAddr, Instant), MAX_SIGNS>,
}

#[derive(Debug)]
pub(crate) struct ClientCache {
    entries: usize,
    /// Time for which Fast Open is off on a network that is a black hole, doubled each time. 0: never off.
    black_hole_base: Duration,
    hash: KeyedHash,
    pub(super) paths: Lru<PathKey, FastOpenPath, KeyedHash>,
    pub(super) black_hole: BlackHoleState,
}

impl ClientCache {
    /// Returns an empty cache for at most `entries` paths.
    pub(crate) fn new(entries: usize, black_hole_base: Duration, hash: KeyedHash) -> Self {
        let paths = Lru::new(entries, hash.clone());
        ClientCache { entries, black_hole_base, hash, paths, black_hole: BlackHoleState::default() }
    }

    /// Returns to the state after [`ClientCache::new`], in the same storage.
    pub(crate) fn renew(&mut self, size: usize, base: Duration, with: KeyedHash) {
        let ClientCache { entries, black_hole_base, hash, paths, black_hole } = self;
        paths.renew(size, with.clone());
        (*entries, *black_hole_base, *hash) = (size, base, with);
        *black_hole = BlackHoleState::default();
    }

    /// Returns an empty cache with the same settings.
    pub(super) fn emptied(&self) -> Self {
        ClientCache::new(self.entries, self.black_hole_base, self.hash.clone())
    }

    /// Returns how this connection should open, or the reason to open it without Fast Open. `known`: facts of
    /// the path.
    pub(crate) fn choose(
        &mut self,
        server_key: &ServerKey,
        connect: &FastOpenConnect,
        user_mss: Option<u16>,
        known: &PathFacts,
        now: Instant,
    ) -> Result<OpenAttempt, OffReason> {
        let later = |until: Option<Instant>| until.is_some_and(|until| until > now);
        let family = usize::from(server_key.path.remote.is_ipv6());
        if later(self.black_hole.off_until) {
            return Err(OffReason::BlackHole);
        }
        let none = FastOpenPath::default();
        let path = self.paths.touch(&server_key.path).map_or(&none, |path| path);
        let port = path.port(server_key.port);
        if later(port.disabled_until) {
            return Err(OffReason::Disabled);
        }
        let assumed = if connect.assume_mtu { u16::MAX } else { DEFAULT_MSS[family] };
        let mss = known.mss.unwrap_or(assumed).min(MSS_CAP[family]).min(user_mss.unwrap_or(u16::MAX));
        let srtt = known.handshake_rtt();
        let experimental = connect.cookie == ClientCookie::Experimental;
        let form = |cookie| FastOpen { cookie, experimental };
        let is_one_time = connect.cookie == ClientCookie::OneTime;
        let cookie = path.one_time.front().copied().filter(|_| is_one_time).map(form);
        let (mode, option) = match cookie.or(path.cookie) {
            _ if connect.cookie == ClientCookie::None => (Mode::DataNoCookie, None),
            Some(option) if later(path.soft_until) => (Mode::CookieOnly, Some(option)),
            Some(option) => (Mode::Data, Some(option)),
            None if later(port.request_after) => return Err(OffReason::NoCookieThere),
            None => (Mode::Request, Some(form(Cookie::REQUEST))),
        };
        let attempt = OpenAttempt {
            mode,
            option,
            data_limit: mss.saturating_sub(OPTION_SPACE),
            srtt,
            untried: !port.takes_data,
            proven: port.proven,
            known: Failures {
                refusals: path.soft,
                drops: if mode == Mode::Request { port.req_fail } else { port.syn_fail },
            },
        };
        if attempt.option.is_some_and(|option| cookie == Some(option))
            && let Some(path) = self.paths.touch(&server_key.path)
        {
            path.one_time.pop_front();
        }
        Ok(attempt)
    }

    pub(crate) fn on_report(&mut self, server_key: &ServerKey, report: &FastOpenReport, now: Instant) {
        match *report {
            FastOpenReport::SynAck { class, cookie, known } => {
                let Some((_, path)) = self.paths.touch_or_insert(server_key.path, FastOpenPath::default)
                else {
                    return;
                };
                path.cookie = cookie.filter(|option| !option.cookie.is_empty()).or(path.cookie);
                path.learn(server_key.port, class, known, now);
            }
            FastOpenReport::OneTime(cookie) => {
                let Some((_, path)) = self.paths.touch_or_insert(server_key.path, FastOpenPath::default)
                else {
                    return;
                };
                if path.one_time.len() == MAX_ONE_TIME {
                    path.one_time.pop_front();
                }
                path.one_time.push_back(cookie);
            }
            FastOpenReport::Failed(mode) => {
                let Some((_, path)) = self.paths.touch_or_insert(server_key.path, FastOpenPath::default)
                else {
                    return;
                };
                match mode {
                    Mode::Request => path.request_dropped(server_key.port, u8::MAX, now),
                    Mode::Data | Mode::CookieOnly | Mode::DataNoCookie => {
                        path.syn_dropped(server_key.port, u8::MAX, now);
                    }
                }
            }
            FastOpenReport::Doubted => {
                if let Some(path) = self.paths.touch(&server_key.path) {
                    let port = path.port_mut(server_key.port);
                    (port.takes_data, port.proven) = (false, false);
                }
            }
            FastOpenReport::BlackHole(sign) => self.on_black_hole(server_key, sign, now),
            FastOpenReport::Works => {
                if let Some((_, path)) = self.paths.touch_or_insert(server_key.path, FastOpenPath::default) {
                    let port = path.port_mut(server_key.port);
                    (port.proven, port.answered, port.hedge_won) = (true, true, false);
                    port.worked = Some(now);
                }
                if !server_key.path.remote.is_loopback() && !self.black_hole_base.is_zero() {
                    (self.black_hole.times, self.black_hole.worked) = (0, Some(now));
                }
            }
        }
    }

    /// Forgets the cookies and failures of a partition, or of all. Called when the network changes.
    pub(crate) fn flush(&mut self, partition: Option<u64>) {
        self.paths.retain(|key, _| partition.is_some_and(|partition| partition != key.partition));
        if partition.is_none() {
            self.black_hole = BlackHoleState::default();
        }
    }

    /// Returns the number of known pairs of addresses.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.paths.len()
    }

    fn on_black_hole(&mut self, server_key: &ServerKey, sign: BlackHoleSign, now: Instant) {
        let base = self.black_hole_base;
        let is_recent = |worked: Option<Instant>| {
            worked.is_some_and(|worked| now.saturating_since(worked) <= RECENT_SUCCESS)
        };
        if let Some((_, path)) = self.paths.touch_or_insert(server_key.path, FastOpenPath::default) {
            let port = path.port_mut(server_key.port);
            (port.takes_data, port.proven) = (false, false);
            let counts = match sign {
                // The first time, perhaps only this connection's answer was lost.
                BlackHoleSign::HedgeWon => {
                    port.hedge_won = !port.hedge_won;
                    !port.hedge_won
                }
                BlackHoleSign::EarlyReset => true,
                BlackHoleSign::Timeouts | BlackHoleSign::FinOnly | BlackHoleSign::RepeatedSynAck => {
                    !is_recent(port.worked)
                }
            };
            if !counts {
                return;
            }
            path.record_black_hole(server_key.port, now);
        }
        let black_hole = &mut self.black_hole;
        if server_key.path.remote.is_loopback() || base.is_zero() || is_recent(black_hole.worked) {
            return;
        }
        black_hole.signs.retain(|(remote, at)| {
            *remote != server_key.path.remote && now.saturating_since(*at) <= BLACK_HOLE_WINDOW
        });
        if black_hole.signs.is_full() {
            black_hole.signs.remove(0);
        }
        black_hole.signs.push((server_key.path.remote, now));
        if black_hole.signs.len() >= BLACK_HOLE_DESTINATIONS {
            black_hole.off_until = Some(now + doubled(base, black_hole.times.min(6)));
            black_hole.times = black_hole.times.saturating_add(1);
            black_hole.signs.clear();
        }
    }
}

impl FastOpenPath {
    fn port(&self, port: u16) -> Port {
        self.ports.iter().find(|known| known.port == port).copied().unwrap_or_default()
    }

    /// Returns the memory of a port; a new one replaces the oldest if necessary.
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

    fn learn(&mut self, port: u16, class: SynAckClass, known: Failures, now: Instant) {
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
                self.data_not_taken(known.refusals, now);
            }
            SynAckClass::SynDrop => self.syn_dropped(port, known.drops, now),
            SynAckClass::Granted => {
                let port = self.port_mut(port);
                (port.req_fail, port.request_after) = (0, None);
            }
            SynAckClass::NotSupported => {
                self.port_mut(port).request_after = Some(now + REQUEST_INTERVAL);
            }
            SynAckClass::ReqDrop => self.request_dropped(port, known.drops, now),
            SynAckClass::NoData => {}
        }
    }

    /// Records an answer without the data, to a connection that knew of `known` such answers. If a client
    /// opens several connections at once, they may exceed a limit of the server together.
    fn data_not_taken(&mut self, known: u8, now: Instant) {
        if self.soft == 0 || now.saturating_since(self.soft_since) > SOFT_WINDOW {
            (self.soft, self.soft_since) = (0, now);
        }
        self.soft = Failures::one_more(self.soft, known);
        if self.soft >= SOFT_LIMIT {
            self.soft_until = Some(now + doubled(SOFT_BASE, self.soft_episodes.min(6)));
            self.soft_episodes = self.soft_episodes.saturating_add(1);
            self.soft = 0;
        }
    }

    /// Records a dropped SYN of a connection that knew of `known` dropped SYNs in a row.
    fn syn_dropped(&mut self, port: u16, known: u8, now: Instant) {
        let port = self.port_mut(port);
        (port.takes_data, port.proven) = (false, false);
        if port.disabled_until.is_some_and(|until| until > now) {
            // This SYN left before the client began to avoid the destination.
            return;
        }
        port.syn_fail = Failures::one_more(port.syn_fail, known);
        let by_chance = if port.answered { KNOWN_SYN_FAIL_LIMIT } else { 0 };
        port.avoid_after(SYN_FAIL_LIMIT.max(by_chance), now);
    }

    /// Records a sign of a black hole. It counts as two dropped SYNs, and is no chance loss.
    fn record_black_hole(&mut self, port: u16, now: Instant) {
        let port = self.port_mut(port);
        port.syn_fail = port.syn_fail.saturating_add(2);
        port.avoid_after(SYN_FAIL_LIMIT, now);
    }

    /// Records a dropped request for a cookie of a connection that knew of `known` such requests in a row.
    fn request_dropped(&mut self, port: u16, known: u8, now: Instant) {
        let port = self.port_mut(port);
        port.req_fail = Failures::one_more(port.req_fail, known);
        // A single request may have been lost.
        if let Some(more) = port.req_fail.checked_sub(SYN_FAIL_LIMIT) {
            port.request_after = Some(now + doubled(REQUEST_BASE, more.min(4)));
        }
    }
}

impl Port {
    /// Avoids the destination if at least `limit` SYNs in a row were dropped.
    fn avoid_after(&mut self, limit: u8, now: Instant) {
        if self.syn_fail < limit {
            return;
        }
        if core::mem::take(&mut self.answered) {
            // The first time, a known destination is avoided no longer than an unknown one.
            self.syn_fail = SYN_FAIL_LIMIT;
        }
        self.disabled_until = Some(now + doubled(DISABLE_BASE, self.syn_fail.min(10)));
    }
}

fn doubled(base: Duration, times: u8) -> Duration {
    base.saturating_mul(1 << times.min(31))
}

#[cfg(test)]
mod tests;

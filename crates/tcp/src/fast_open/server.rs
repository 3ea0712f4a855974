//! The server's side: which SYNs open a connection at once, and the limits on them (TCP Fast Open, CoNEXT
//! 2011, sections 3.4 and 3.5; RFC 7413 section 5).
//!
//! A SYN with a valid cookie opens a connection before its sender has proved that it still receives packets
//! at its address. Three limits bound an attacker with valid cookies: the number of pending connections of a
//! listener, the number for each client address, and the bytes of their data in the whole stack. Above these
//! limits a SYN is treated as without Fast Open.
//!
//! A reset of a pending connection frees the connection but not its slot. The slot is free after a minute
//! (`RST_PENALTY`). Otherwise an attacker who floods with forged addresses would regain the slots at once,
//! because the hosts with these addresses send resets.

use alloc::collections::VecDeque;
use alloc::string::{String, ToString};
use core::net::{IpAddr, Ipv6Addr};

use brisk_wire::{Cookie, FastOpen};
use hashbrown::HashMap;

use super::cookie::{Check, KeyRing, KeySource};
use super::one_time::{OneTimeCookies, Redeemed};
use super::replay::ReplayWindow;
use crate::conn_id::ListenerId;
use crate::error::ConfigError;
use crate::four_tuple::KeyedHash;
use crate::lru::{EntryId, Lru};
use crate::time::{Duration, Instant};

/// Limit of client addresses whose connections are counted.
const PER_IP_ENTRIES: usize = 10_000;
/// Time for which a slot stays occupied after a reset.
const RST_PENALTY: Duration = Duration::from_secs(60);

/// Limit of the pending connections of all listeners of a stack.
const MAX_PENDING: usize = 65_535;

/// Fast Open at a listener. The application can receive the data of a SYN **more than once**, because the
/// network may duplicate the SYN (RFC 7413 section 6.1). Use it only for requests that may be repeated.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FastOpenListen {
    /// Maximum number of pending connections: a SYN with data has opened them, and the client has not
    /// acknowledged the SYN-ACK yet. 0 (off)..=65535, default 256.
    pub max_pending: u16,
    /// Maximum number of pending connections per client: an IPv4 address, an IPv6 /64. 1..=65535, default 16.
    pub max_per_ip: u16,
    /// Keys of this listener only. `None`: the stack's keys.
    pub keys: Option<KeySource>,
    /// The server address in the listener's cookies, if a load balancer translates the address that clients
    /// see. Default `None`: the destination of the packet.
    pub dst: Option<IpAddr>,
    /// Require cookies. `false` accepts data from any client: only for closed networks. Default `true`.
    pub require_cookie: bool,
    /// Limit of the response before the client's acknowledgement. Default `Standard`.
    pub early_response: EarlyResponse,
    /// Use cookies that open one connection each. Only clients of this stack support them. Needs the feature
    /// `one-time-cookies`. Default `false`.
    pub one_time: bool,
    /// Accept two more forms of early data: segments that follow a SYN with data before the handshake is
    /// complete, up to an initial window, and further SYNs with parts of the data. For hops whose clients
    /// send them ([`super::FastOpenConnect`]). Default `false`.
    pub data_after_syn: bool,
    /// Remember the SYNs whose data was accepted, and reject copies. Default `None`: a copy is recognised
    /// only during the connection and during the hold after LAST-ACK.
    pub replay_window: Option<ReplayWindow>,
    /// Makes literals end with `..`, so that releases can add fields.
    #[doc(hidden)]
    pub non_exhaustive: (),
}

/// Data that a server may send before the client has acknowledged the SYN-ACK. An attacker who has the cookie
/// of another host can send SYNs with its address. That host then receives this data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum EarlyResponse {
    /// At most ten segments.
    #[default]
    Standard,
    /// At most ten segments, and at most this multiple of the bytes of the SYN's packet. 1..=64.
    Multiple(u8),
    /// No data. The response is later by a round trip, less the time to compute it.
    Held,
    /// The whole [`crate::TcpConfig::initial_window`], or the volume of a flight of the path. Only for an
    /// application that authenticates the sender of a request before it responds, and responds once.
    Authenticated,
}

impl FastOpenListen {
    /// Checks the documented ranges of the fields; the error names the first field that is out of its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let refuse = |key, value: String, range| Err(ConfigError { key, value, range });
        if self.max_per_ip == 0 {
            return refuse("max_per_ip", "0".to_string(), "1 to 65535");
        }
        if let EarlyResponse::Multiple(multiple) = self.early_response
            && !(1..=64).contains(&multiple)
        {
            return refuse("early_response", multiple.to_string(), "1 to 64");
        }
        if self.one_time && !cfg!(feature = "one-time-cookies") {
            return refuse("one_time", "true".to_string(), "false, or the feature one-time-cookies");
        }
        self.replay_window.map_or(Ok(()), |window| window.validate())
    }
}

impl Default for FastOpenListen {
    fn default() -> Self {
        FastOpenListen {
            max_pending: 256,
            max_per_ip: 16,
            keys: None,
            dst: None,
            require_cookie: true,
            early_response: EarlyResponse::Standard,
            one_time: false,
            data_after_syn: false,
            replay_window: None,
            non_exhaustive: (),
        }
    }
}

/// The relevant fields of a SYN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SynFacts {
    pub(crate) client: IpAddr,
    pub(crate) server: IpAddr,
    pub(crate) option: Option<FastOpen>,
    pub(crate) payload: usize,
}

/// Decision on a SYN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// An ordinary handshake, with this option in the SYN-ACK.
    Plain { why: Plain, option: Option<FastOpen> },
    /// A connection at once, with this option in the SYN-ACK.
    Accept { ticket: Ticket, option: Option<FastOpen>, key: Check },
}

/// Reason why a SYN opens an ordinary handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Plain {
    /// The SYN has neither data nor the option.
    NotAsked,
    /// The SYN requests a cookie.
    Request,
    /// The SYN has data and no cookie.
    NoCookie,
    /// The cookie is not valid.
    Invalid,
    /// The cookie was used before.
    Reused,
    /// The listener or the stack has reached its limit of pending connections.
    Overflow,
    /// The client has reached its limit.
    PerIp,
    /// There is no space for the data.
    Memory,
    /// The data was accepted before.
    Replayed,
    /// There is no space to remember the SYN.
    WindowFull,
}

/// The slot of a connection until its SYN-ACK is acknowledged. It must be returned exactly once, by
/// [`Admission::release`] or [`Admission::penalise`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ticket {
    listener: ListenerId,
    per_ip: Option<EntryId>,
    bytes: usize,
}

/// A slot that stays occupied after a reset.
#[derive(Clone, Copy, Debug)]
struct Penalty {
    expiry: Instant,
    listener: ListenerId,
    per_ip: Option<EntryId>,
}

/// The SYNs with data that the listeners of a stack have admitted, within the limits.
#[derive(Debug)]
pub(crate) struct Admission {
    /// Limit of the bytes of SYN data of pending connections.
    max_bytes: usize,
    /// Pending connections of each listener, including penalties.
    pending: HashMap<ListenerId, usize, KeyedHash>,
    total: usize,
    bytes: usize,
    /// In order of expiry.
    penalties: VecDeque<Penalty>,
    per_ip: Lru<IpAddr, u32, KeyedHash>,
}

impl Admission {
    /// Returns the state without admitted SYNs.
    pub(crate) fn new(max_bytes: usize, hash: KeyedHash) -> Self {
        Admission {
            max_bytes,
            pending: HashMap::with_hasher(hash.clone()),
            total: 0,
            bytes: 0,
            penalties: VecDeque::new(),
            per_ip: Lru::new(PER_IP_ENTRIES, hash),
        }
    }

    /// Resets to the state after [`Admission::new`], and keeps the storage.
    pub(crate) fn renew(&mut self, limit: usize, hash: KeyedHash) {
        let Admission { max_bytes, pending, total, bytes, penalties, per_ip } = self;
        *max_bytes = limit;
        *pending = HashMap::with_hasher(hash.clone());
        (*total, *bytes) = (0, 0);
        penalties.clear();
        per_ip.renew(PER_IP_ENTRIES, hash);
    }

    /// Decides on a SYN. Checks the limits before the cookie, so that an overload costs no cryptography.
    pub(crate) fn admit(
        &mut self,
        listener: ListenerId,
        config: &FastOpenListen,
        keys: &KeyRing,
        one_time: Option<&mut OneTimeCookies>,
        syn: &SynFacts,
        now: Instant,
    ) -> Verdict {
        if syn.option.is_none() && syn.payload == 0 {
            return Verdict::Plain { why: Plain::NotAsked, option: None };
        }
        self.free_expired(now);
        if let Some(why) = self.is_full(listener, config, syn) {
            return Verdict::Plain { why, option: None };
        }
        if !config.require_cookie {
            return self.accept(listener, syn, None, Check::Primary);
        }
        let Some(option) = syn.option else {
            return Verdict::Plain { why: Plain::NoCookie, option: None };
        };
        if let Some(one_time) = one_time {
            return match one_time.redeem(&option.cookie, syn.client, syn.server) {
                Redeemed::Accepted => self.accept(listener, syn, None, Check::Primary),
                Redeemed::Reused => Verdict::Plain { why: Plain::Reused, option: None },
                Redeemed::Invalid if option.cookie.is_empty() => {
                    Verdict::Plain { why: Plain::Request, option: None }
                }
                Redeemed::Invalid => Verdict::Plain { why: Plain::Invalid, option: None },
            };
        }
        // The answer has the same form as the SYN's option.
        let fresh = |cookie: Cookie| FastOpen { cookie, ..option };
        let fresh = || keys.generate(syn.client, syn.server).map(fresh);
        if option.cookie.is_empty() {
            return Verdict::Plain { why: Plain::Request, option: fresh() };
        }
        match keys.check(&option.cookie, syn.client, syn.server) {
            Check::Primary => self.accept(listener, syn, None, Check::Primary),
            Check::Backup => {
                let option = fresh();
                self.accept(listener, syn, option, Check::Backup)
            }
            Check::Invalid => Verdict::Plain { why: Plain::Invalid, option: fresh() },
        }
    }

    fn is_full(&mut self, listener: ListenerId, config: &FastOpenListen, syn: &SynFacts) -> Option<Plain> {
        let pending = self.pending.get(&listener).copied().unwrap_or(0);
        if pending >= usize::from(config.max_pending) || self.total >= MAX_PENDING {
            return Some(Plain::Overflow);
        }
        let of_client = self.per_ip.touch(&client_key(syn.client)).copied().unwrap_or(0);
        if of_client >= u32::from(config.max_per_ip) {
            return Some(Plain::PerIp);
        }
        (self.bytes.saturating_add(syn.payload) > self.max_bytes).then_some(Plain::Memory)
    }

    fn accept(
        &mut self,
        listener: ListenerId,
        syn: &SynFacts,
        option: Option<FastOpen>,
        key: Check,
    ) -> Verdict {
        let per_ip = self.per_ip.touch_or_insert(client_key(syn.client), || 0).map(|(entry, count)| {
            *count += 1;
            entry
        });
        *self.pending.entry(listener).or_insert(0) += 1;
        self.total += 1;
        self.bytes += syn.payload;
        Verdict::Accept { ticket: Ticket { listener, per_ip, bytes: syn.payload }, option, key }
    }

    /// Frees the slot: the SYN-ACK was acknowledged, or the connection ended without a reset.
    pub(crate) fn release(&mut self, ticket: Ticket) {
        self.bytes = self.bytes.saturating_sub(ticket.bytes);
        self.free(ticket.listener, ticket.per_ip);
    }

    /// Keeps the slot occupied for some time, because the connection was reset before its SYN-ACK was
    /// acknowledged.
    pub(crate) fn penalise(&mut self, ticket: Ticket, now: Instant) {
        self.bytes = self.bytes.saturating_sub(ticket.bytes);
        let expiry = now + RST_PENALTY;
        self.penalties.push_back(Penalty { expiry, listener: ticket.listener, per_ip: ticket.per_ip });
    }

    /// Forgets a closed listener and its counts. Tickets of its connections may still be returned.
    pub(crate) fn forget(&mut self, listener: ListenerId) {
        let (gone, kept) = core::mem::take(&mut self.penalties)
            .into_iter()
            .partition::<VecDeque<_>, _>(|penalty| penalty.listener == listener);
        self.penalties = kept;
        for penalty in gone {
            self.free(penalty.listener, penalty.per_ip);
        }
    }

    /// Returns the number of connections that count towards the limit of this listener.
    pub(crate) fn pending(&mut self, listener: ListenerId, now: Instant) -> usize {
        self.free_expired(now);
        self.pending.get(&listener).copied().unwrap_or(0)
    }

    fn free_expired(&mut self, now: Instant) {
        while let Some(penalty) = self.penalties.pop_front_if(|penalty| penalty.expiry <= now) {
            self.free(penalty.listener, penalty.per_ip);
        }
    }

    fn free(&mut self, listener: ListenerId, per_ip: Option<EntryId>) {
        self.total = self.total.saturating_sub(1);
        if let Some(pending) = self.pending.get_mut(&listener) {
            *pending -= 1;
            if *pending == 0 {
                self.pending.remove(&listener);
            }
        }
        if let Some(entry) = per_ip
            && let Some(count) = self.per_ip.at(entry)
        {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.per_ip.remove_at(entry);
            }
        }
    }
}

/// Returns the address that counts as one client: an IPv4 address, or the /64 of an IPv6 address.
fn client_key(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX))),
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::super::cookie::CookieKey;
    use super::*;
    use proptest::prelude::*;

    const LISTENER: ListenerId = ListenerId { index: 0, generation: 0 };
    const SERVER: &str = "198.51.100.9";

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    struct Bench {
        server: Admission,
        keys: KeyRing,
        config: FastOpenListen,
    }

    impl Bench {
        fn new(max_pending: u16) -> Self {
            Bench::with_limits(max_pending, 1 << 20)
        }

        fn with_limits(max_pending: u16, max_bytes: usize) -> Self {
            let source =
                KeySource::Fixed { primary: CookieKey::new([2; 16]), backup: Some(CookieKey::new([1; 16])) };
            Bench {
                server: Admission::new(max_bytes, KeyedHash::new(&1.into())),
                keys: KeyRing::new(&source, None),
                config: FastOpenListen { max_pending, ..FastOpenListen::default() },
            }
        }

        fn cookie(&self, client: &str) -> FastOpen {
            let cookie = self.keys.generate(ip(client), ip(SERVER)).expect("a fixed key");
            FastOpen::with_cookie(cookie)
        }

        fn admit(&mut self, client: &str, option: Option<FastOpen>, payload: usize, now: u64) -> Verdict {
            let syn = SynFacts { client: ip(client), server: ip(SERVER), option, payload };
            self.server.admit(LISTENER, &self.config, &self.keys, None, &syn, at(now))
        }

        /// Sends a SYN with 100 bytes and a valid cookie.
        fn open(&mut self, client: &str, now: u64) -> Result<Ticket, Plain> {
            let option = Some(self.cookie(client));
            match self.admit(client, option, 100, now) {
                Verdict::Accept { ticket, option: None, key: Check::Primary } => Ok(ticket),
                Verdict::Plain { why, option: None } => Err(why),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn a_request_is_answered_by_a_cookie_in_the_form_of_the_question() {
        let mut bench = Bench::new(8);
        let made = bench.cookie("192.0.2.1");
        for experimental in [false, true] {
            let request = FastOpen { experimental, ..FastOpen::REQUEST };
            let verdict = bench.admit("192.0.2.1", Some(request), 0, 0);
            let option = Some(FastOpen { experimental, ..made });
            assert_eq!(verdict, Verdict::Plain { why: Plain::Request, option });
        }
    }

    #[test]
    fn a_good_cookie_opens_with_and_without_data() {
        let mut bench = Bench::new(8);
        let good = Some(bench.cookie("192.0.2.1"));
        for payload in [100, 0] {
            let verdict = bench.admit("192.0.2.1", good, payload, 0);
            assert!(matches!(verdict, Verdict::Accept { option: None, key: Check::Primary, .. }));
        }
    }

    #[test]
    fn invalid_cookie_is_answered_by_a_valid_one() {
        let mut bench = Bench::new(8);
        let (bad, good) = (bench.cookie("192.0.2.2"), bench.cookie("192.0.2.1"));
        let verdict = bench.admit("192.0.2.1", Some(bad), 100, 0);
        assert_eq!(verdict, Verdict::Plain { why: Plain::Invalid, option: Some(good) });
    }

    #[test]
    fn a_cookie_of_the_backup_key_opens_and_is_renewed() {
        let mut bench = Bench::new(8);
        let source = KeySource::Fixed { primary: CookieKey::new([1; 16]), backup: None };
        let old = KeyRing::new(&source, None);
        let stale = old.generate(ip("192.0.2.1"), ip(SERVER)).expect("a fixed key");
        let fresh = bench.cookie("192.0.2.1");
        let verdict = bench.admit("192.0.2.1", Some(FastOpen::with_cookie(stale)), 100, 0);
        assert!(
            matches!(verdict, Verdict::Accept { option, key: Check::Backup, .. } if option == Some(fresh))
        );
    }

    #[test]
    fn data_without_a_cookie_needs_explicit_permission() {
        let mut bench = Bench::new(8);
        assert_eq!(
            bench.admit("192.0.2.1", None, 100, 0),
            Verdict::Plain { why: Plain::NoCookie, option: None }
        );
        assert_eq!(
            bench.admit("192.0.2.1", None, 0, 0),
            Verdict::Plain { why: Plain::NotAsked, option: None }
        );
        bench.config.require_cookie = false;
        assert!(matches!(bench.admit("192.0.2.1", None, 100, 0), Verdict::Accept { option: None, .. }));
        assert_eq!(
            bench.admit("192.0.2.1", None, 0, 0),
            Verdict::Plain { why: Plain::NotAsked, option: None }
        );
    }

    #[test]
    fn pending_connections_of_a_listener_are_limited() {
        let mut bench = Bench::new(2);
        let first = bench.open("192.0.2.1", 0).expect("room");
        bench.open("192.0.2.2", 1).expect("room");
        assert_eq!(bench.open("192.0.2.3", 2), Err(Plain::Overflow));
        assert_eq!(
            bench.admit("192.0.2.3", Some(FastOpen::REQUEST), 0, 2),
            Verdict::Plain { why: Plain::Overflow, option: None },
            "not even a cookie: that costs cryptography"
        );
        bench.server.release(first);
        assert!(bench.open("192.0.2.3", 3).is_ok());
    }

    #[test]
    fn reset_connection_occupies_its_slot_for_a_minute() {
        let mut bench = Bench::new(2);
        let (first, second) = (bench.open("192.0.2.1", 0), bench.open("192.0.2.2", 1));
        for ticket in [first, second] {
            bench.server.penalise(ticket.expect("room"), at(10));
        }
        assert_eq!(bench.open("192.0.2.3", 1000), Err(Plain::Overflow));
        assert_eq!(bench.open("192.0.2.3", 60_009), Err(Plain::Overflow));
        assert!(bench.open("192.0.2.3", 60_010).is_ok());
    }

    #[test]
    fn limit_of_one_client_does_not_affect_others() {
        let mut bench = Bench::new(100);
        bench.config.max_per_ip = 1;
        let first = bench.open("192.0.2.1", 0).expect("room");
        assert_eq!(bench.open("192.0.2.1", 0), Err(Plain::PerIp));
        assert!(bench.open("192.0.2.2", 0).is_ok());
        bench.server.penalise(first, at(5));
        assert_eq!(bench.open("192.0.2.1", 60_004), Err(Plain::PerIp), "the penalty counts too");
        assert!(bench.open("192.0.2.1", 60_005).is_ok());
    }

    #[test]
    fn an_ipv6_network_of_64_bits_is_one_client() {
        assert_eq!(client_key(ip("2001:db8:1:2::3")), client_key(ip("2001:db8:1:2:ffff::9")));
        assert_ne!(client_key(ip("2001:db8:1:2::3")), client_key(ip("2001:db8:1:3::3")));
        assert_eq!(client_key(ip("::ffff:192.0.2.1")), ip("192.0.2.1"));
    }

    #[test]
    fn evicted_client_count_does_not_affect_others() {
        let mut bench = Bench::new(100);
        bench.server.per_ip = Lru::new(1, KeyedHash::new(&1.into()));
        bench.config.max_per_ip = 1;
        let first = bench.open("192.0.2.1", 0).expect("room");
        let second = bench.open("192.0.2.2", 0).expect("room");
        bench.server.release(first);
        assert_eq!(bench.open("192.0.2.2", 0), Err(Plain::PerIp), "its own count stands");
        bench.server.release(second);
        assert!(bench.open("192.0.2.2", 0).is_ok());
    }

    #[test]
    fn the_data_of_syns_has_a_bound_of_its_own() {
        let mut bench = Bench::with_limits(100, 250);
        let first = bench.open("192.0.2.1", 0).expect("room");
        bench.open("192.0.2.2", 0).expect("room");
        assert_eq!(bench.open("192.0.2.3", 0), Err(Plain::Memory));
        bench.server.release(first);
        assert!(bench.open("192.0.2.3", 0).is_ok());
    }

    #[cfg(feature = "one-time-cookies")]
    #[test]
    fn a_one_time_cookie_is_refused_the_second_time() {
        let mut bench = Bench::new(8);
        let key = CookieKey::new([7; 16]);
        let mut one_time = OneTimeCookies::new(&key, &key).expect("the feature is on");
        let cookie = one_time.issue(ip("192.0.2.1"), ip(SERVER));
        let mut admit = |cookie| {
            let option = Some(FastOpen::with_cookie(cookie));
            let syn = SynFacts { client: ip("192.0.2.1"), server: ip(SERVER), option, payload: 10 };
            bench.server.admit(LISTENER, &bench.config, &bench.keys, Some(&mut one_time), &syn, at(0))
        };
        assert!(matches!(admit(cookie), Verdict::Accept { option: None, .. }));
        assert_eq!(admit(cookie), Verdict::Plain { why: Plain::Reused, option: None });
        assert_eq!(admit(Cookie::REQUEST), Verdict::Plain { why: Plain::Request, option: None });
    }

    #[test]
    fn closing_a_listener_ends_its_penalties() {
        let mut bench = Bench::new(2);
        let ticket = bench.open("192.0.2.1", 0).expect("room");
        let live = bench.open("192.0.2.2", 0).expect("room");
        bench.server.penalise(ticket, at(0));
        bench.server.forget(LISTENER);
        assert_eq!(bench.server.pending(LISTENER, at(1)), 1);
        bench.server.release(live);
        assert_eq!((bench.server.total, bench.server.bytes, bench.server.per_ip.len()), (0, 0, 0));
    }

    proptest! {
        #[test]
        fn the_counts_return_to_zero(
            steps in proptest::collection::vec((0u8..4, 0u8..6, 0u64..5_000), 0..200),
            per_ip_entries in 1usize..5,
        ) {
            let mut bench = Bench::new(20);
            bench.server.per_ip = Lru::new(per_ip_entries, KeyedHash::new(&1.into()));
            bench.config.max_per_ip = 3;
            let mut open = std::vec::Vec::new();
            let mut now = 0;
            for (step, client, pause) in steps {
                now += pause;
                let client = std::format!("192.0.2.{client}");
                match step {
                    0 | 1 => open.extend(bench.open(&client, now).ok()),
                    2 => open.pop().into_iter().for_each(|ticket| bench.server.release(ticket)),
                    _ => open.pop().into_iter().for_each(|ticket| bench.server.penalise(ticket, at(now))),
                }
                prop_assert!(bench.server.pending(LISTENER, at(now)) <= 20);
                prop_assert!(bench.server.pending(LISTENER, at(now)) >= open.len());
            }
            open.into_iter().for_each(|ticket| bench.server.release(ticket));
            prop_assert_eq!(bench.server.pending(LISTENER, at(now + 60_000)), 0);
            let server = &bench.server;
            prop_assert_eq!((server.total, server.bytes, server.per_ip.len()), (0, 0, 0));
        }
    }
}

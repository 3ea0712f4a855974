//! The part of Fast Open that concerns several connections: the client's memory, the listeners' keys and
//! limits, and the SYNs of closed connections. [`crate::fast_open`] makes the decisions.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::OnceCell;

use brisk_wire::{Flags, Gentle, IpMeta, TcpHeader, Timestamps as TimestampOption};

use super::Stack;
use super::shard::Fact;
use super::slot::Slot;
use super::stats::{FastOpenStats, StackStats};
use crate::config::{ConnectConfig, StackConfig, SynCookies};
use crate::conn_id::{ConnId, ListenerId};
use crate::connection::{Connection, MAX_AFTER_SYN, SynAnswer};
use crate::error::{CloseReason, ImportError};
use crate::fast_open::client::{ClientCache, FastOpenReport, Mode, ServerKey};
use crate::fast_open::cookie::{Check, KeyRing};
use crate::fast_open::last_ack::{LastAckEntry, LastAckTable, LastAckVerdict};
use crate::fast_open::one_time::OneTimeCookies;
use crate::fast_open::replay::{FirstData, ReplayMemory, ReplayVerdict, Replays};
use crate::fast_open::server::{Admission, Plain, SynFacts, Ticket, Verdict};
use crate::fast_open::{
    CookieKey, EarlyResponse, FastOpenListen, FastOpenOutcome, KeySource, LastAckHold, OffReason, SynAckClass,
};
use crate::four_tuple::{FourTuple, KeyedHash};
use crate::keys::{Chance, Purpose, Seed};
use crate::mechanism::memory::SynOptions;
use crate::outcome::Arrived;
use crate::time::Instant;

/// Limit of closed connections that are remembered to recognise a duplicate of their SYN.
const LAST_ACK_ENTRIES: usize = 10_000;

#[derive(Debug)]
pub(crate) struct FastOpen {
    cache: ClientCache,
    admission: Admission,
    seed: Seed,
    /// Derived from the seed when the first listener needs them, unless keys were set. Most stacks issue no
    /// cookie.
    keys: OnceCell<KeySource>,
    last_ack: LastAckTable,
    which: LastAckHold,
    hash: KeyedHash,
    /// Allocated when the first listener needs it: it has a bitmap of 128 KiB.
    one_time: Option<OneTimeCookies>,
    /// The time of day, and the time at which it was set.
    unix: Option<(u64, Instant)>,
}

/// Fast Open of a listener.
#[derive(Debug)]
pub(crate) struct FastOpenAt {
    config: FastOpenListen,
    ring: Option<KeyRing>,
    replays: Option<Box<dyn ReplayMemory>>,
}

impl FastOpenAt {
    /// Returns the state without keys.
    pub(crate) fn new(config: FastOpenListen) -> Self {
        FastOpenAt { config, ring: None, replays: None }
    }

    /// Installs new keys; the memory of SYNs remains.
    fn set_keys(&mut self, common: &KeySource, hash: &KeyedHash) {
        let FastOpenListen { keys, dst, replay_window, .. } = &self.config;
        if self.replays.is_none() {
            let replays = |window| Box::new(Replays::new(window, hash.clone())) as Box<dyn ReplayMemory>;
            self.replays = replay_window.map(replays);
        }
        self.ring = Some(KeyRing::new(keys.as_ref().unwrap_or(common), *dst));
    }

    pub(super) fn has_no_effect(&self, verdict: &Verdict) -> bool {
        *verdict == Verdict::Plain { why: Plain::NotAsked, option: None } && !self.config.one_time
    }

    /// Applies the decision to the connection; returns the ticket if the SYN opens it.
    pub(super) fn answer(
        &self,
        connection: &mut Connection,
        verdict: Verdict,
        syn: &Arrived<'_>,
        wire_len: usize,
        now: Instant,
    ) -> Option<Box<Ticket>> {
        let config = &self.config;
        let (option, outcome, ticket) = match verdict {
            Verdict::Accept { ticket, option, key: _ } => (option, FastOpenOutcome::Used, Some(ticket)),
            Verdict::Plain { why, option } => (option, outcome_of(why), None),
        };
        let answer = SynAnswer {
            accepted: ticket.is_some(),
            outcome,
            option,
            hold_response: config.early_response == EarlyResponse::Held,
            allowance: match config.early_response {
                EarlyResponse::Multiple(multiple) => Some(wire_len * usize::from(multiple)),
                EarlyResponse::Standard | EarlyResponse::Held | EarlyResponse::Authenticated => None,
            },
            authenticated: config.early_response == EarlyResponse::Authenticated,
            one_time: config.one_time,
            after_syn: match (config.data_after_syn, ticket.is_some()) {
                (true, true) => MAX_AFTER_SYN,
                (true | false, _) => 0,
            },
        };
        if answer.accepted || answer.option.is_some() || answer.one_time {
            connection.start_fast_open_server(answer, syn, now);
        } else if outcome != FastOpenOutcome::Off(OffReason::NotAsked) {
            connection.fast_open.outcome = outcome;
        }
        ticket.map(Box::new)
    }

    /// Replaces the memory of SYNs; returns the old one.
    pub(super) fn replace_replays(
        &mut self,
        replays: Option<Box<dyn ReplayMemory>>,
    ) -> Option<Box<dyn ReplayMemory>> {
        core::mem::replace(&mut self.replays, replays)
    }
}

impl FastOpen {
    pub(crate) fn new(config: &StackConfig, seed: &Seed, hash: KeyedHash) -> Self {
        let of = &config.fast_open;
        FastOpen {
            seed: seed.clone(),
            cache: ClientCache::new(config.path_entries, of.black_hole_base, hash.clone()),
            admission: Admission::new(of.max_pending_bytes, hash.clone()),
            keys: of.keys.clone().map_or_else(OnceCell::new, OnceCell::from),
            last_ack: LastAckTable::new(LAST_ACK_ENTRIES, config.msl, hash.clone()),
            hash,
            which: of.last_ack_hold,
            one_time: None,
            unix: None,
        }
    }

    /// Resets to the state after [`FastOpen::new`], and keeps the storage.
    pub(crate) fn renew(&mut self, config: &StackConfig, by: &Seed, with: &KeyedHash) {
        let of = &config.fast_open;
        let FastOpen { seed, cache, admission, keys, last_ack, which, hash, one_time, unix } = self;
        *seed = by.clone();
        cache.renew(config.path_entries, of.black_hole_base, with.clone());
        admission.renew(of.max_pending_bytes, with.clone());
        *keys = of.keys.clone().map_or_else(OnceCell::new, OnceCell::from);
        *last_ack = LastAckTable::new(LAST_ACK_ENTRIES, config.msl, with.clone());
        (*which, *hash) = (of.last_ack_hold, with.clone());
        (*one_time, *unix) = (None, None);
    }

    pub(super) fn set_unix_time(&mut self, secs: u64, now: Instant) {
        self.unix = Some((secs, now));
    }

    /// Returns the time of day, seconds since 1970, if it was set.
    pub(super) fn unix(&self, now: Instant) -> Option<u64> {
        self.unix.map(|(secs, set_at)| secs.saturating_add(now.saturating_since(set_at).as_secs()))
    }

    /// Returns the keys of listeners without their own.
    pub(super) fn keys(&self) -> &KeySource {
        self.keys.get_or_init(|| {
            let [primary, ..] = self.drawn();
            KeySource::Fixed { primary, backup: None }
        })
    }

    /// Returns the keys derived from the seed: one for the stack's cookies, and two for its one-time cookies.
    fn drawn(&self) -> [CookieKey; 3] {
        let mut chance = Chance::new(&self.seed, Purpose::FastOpen);
        [(); 3].map(|()| CookieKey::new(chance.key()))
    }

    /// Processes a report about a server, from this stack or another one of the host.
    pub(super) fn on_report(&mut self, server_key: &ServerKey, report: &FastOpenReport, now: Instant) {
        self.cache.on_report(server_key, report, now);
    }

    pub(super) fn flush(&mut self, partition: Option<u64>) {
        self.cache.flush(partition);
    }

    pub(super) fn export(&self, now: Instant) -> String {
        self.cache.export(self.unix(now), now)
    }

    pub(super) fn import(&mut self, text: &str, now: Instant) -> Result<(), ImportError> {
        let unix = self.unix(now);
        self.cache.import(text, unix, now)
    }

    /// Keeps a SYN from opening a connection if its data was accepted before, or the replay window is full.
    fn unless_replayed(
        &mut self,
        verdict: Verdict,
        replays: Option<&mut Box<dyn ReplayMemory>>,
        tuple: &FourTuple,
        syn: &Arrived<'_>,
        now: Instant,
    ) -> Verdict {
        let (Verdict::Accept { ticket, .. }, Some(replays)) = (verdict, replays) else { return verdict };
        if syn.payload.is_empty() {
            return verdict;
        }
        let first = FirstData { client: tuple.remote.ip(), isn: syn.seq, data: syn.payload };
        let why = match replays.check(&first, now) {
            ReplayVerdict::Fresh => return verdict,
            ReplayVerdict::Replayed => Plain::Replayed,
            ReplayVerdict::Full => Plain::WindowFull,
        };
        self.admission.release(ticket);
        Verdict::Plain { why, option: None }
    }

    pub(super) fn forget(&mut self, listener: ListenerId) {
        self.admission.forget(listener);
    }

    pub(super) fn pending(&mut self, listener: ListenerId, now: Instant) -> usize {
        self.admission.pending(listener, now)
    }

    /// Undoes a decision that cannot be applied, because there is no space for another connection.
    pub(super) fn undo(&mut self, verdict: Option<Verdict>) {
        if let Some(Verdict::Accept { ticket, .. }) = verdict {
            self.admission.release(ticket);
        }
    }

    /// Frees the place of a connection in the limits, once the connection is established or closed.
    fn return_ticket(&mut self, slot: &mut Slot, stats: &mut StackStats, now: Instant) {
        let established = slot.connection.handshake.is_complete();
        let closed = slot.connection.close_reason();
        let Some(ticket) = slot.ticket.take_if(|_| established || closed.is_some()) else { return };
        let penalised = match closed {
            Some(
                CloseReason::Reset
                | CloseReason::Refused
                | CloseReason::Unreachable
                | CloseReason::NetworkUnreachable,
            ) => !established,
            Some(_) | None => false,
        };
        if penalised {
            self.admission.penalise(*ticket, now);
        } else {
            self.admission.release(*ticket);
        }
        stats.fast_open.rst_penalties += u64::from(penalised);
        stats.handshakes_completed += u64::from(established);
        stats.handshakes_failed += u64::from(!established);
    }

    /// Hands out a one-time cookie if the client waits for one.
    fn hand_out_cookie(&mut self, connection: &mut Connection) {
        if connection.fast_open.wants_one_time_cookie()
            && connection.handshake.is_complete()
            && let Some(one_time) = &mut self.one_time
        {
            let tuple = connection.tuple();
            let cookie = one_time.issue(tuple.remote.ip(), tuple.local.ip());
            connection.fast_open.give_one_time_cookie(cookie);
        }
    }

    /// Remembers a connection that leaves LAST-ACK, if a duplicate of its SYN could arrive.
    pub(super) fn remember_closed(&mut self, slot: &Slot, now: Instant) {
        let Some((irs, numbers, syn_data)) = slot.connection.closed_last() else { return };
        let wanted = match self.which {
            LastAckHold::Off => false,
            LastAckHold::FastOpened => syn_data,
            LastAckHold::All => true,
        };
        if wanted {
            let (tuple, hop_limit, dscp) = (slot.connection.tuple(), slot.hop_limit, slot.dscp);
            self.last_ack.insert(tuple, irs, numbers, hop_limit, dscp, now);
        }
    }
}

/// Keys.
impl Stack {
    pub(super) fn set_listener_keys(&mut self, listener: ListenerId) {
        let Stack { listeners, fast_open, .. } = self;
        let Some(at) = listeners.at_mut(listener).and_then(|at| at.fast_open.as_deref_mut()) else { return };
        at.set_keys(fast_open.keys(), &fast_open.hash);
        if at.config.one_time && fast_open.one_time.is_none() {
            let [_, key, hash_key] = fast_open.drawn();
            fast_open.one_time = OneTimeCookies::new(&key, &hash_key);
        }
    }

    /// Installs the keys of all listeners that have none of their own.
    pub fn set_fast_open_keys(&mut self, keys: KeySource) {
        self.fast_open.keys = OnceCell::from(keys);
        let listeners: Vec<ListenerId> = self.listeners.iter().map(|(id, _)| id).collect();
        for listener in listeners {
            self.set_listener_keys(listener);
        }
    }

    /// Installs keys at one listener. False if it does not exist or does not use Fast Open.
    ///
    /// ```
    /// # use brisk_tcp::time::Instant;
    /// # use brisk_tcp::{ConnectConfig, ListenConfig, Stack, StackConfig};
    /// # let at = |ip: &str| StackConfig { addresses: vec![ip.parse().unwrap()], ..StackConfig::default() };
    /// # let (mut client, mut server) = (Stack::new(at("10.0.0.1"), 1)?, Stack::new(at("10.0.0.2"), 2)?);
    /// # let (address, now) = ("10.0.0.2:80".parse()?, Instant::ZERO);
    /// use brisk_tcp::fast_open::{FastOpenConnect, FastOpenListen, KeySource, ReplayWindow};
    /// use brisk_tcp::fast_open::{FirstData, ReplayMemory, ReplayVerdict};
    ///
    /// let fast_open = FastOpenListen { replay_window: Some(ReplayWindow::default()), ..FastOpenListen::default() };
    /// let config = ListenConfig { fast_open: Some(fast_open), ..ListenConfig::default() };
    /// let listener = server.listen(address, config)?;
    /// server.set_unix_time(1_800_000_000, now);
    /// let keys = KeySource::parse("00112233-44556677-8899aabb-ccddeeff")?;
    /// assert!(server.set_listener_fast_open_keys(listener, keys));
    /// assert_eq!(server.fast_open_pending(listener, now), 0);
    ///
    /// // Stacks of one host can share what they have seen, for example in a map behind a lock.
    /// #[derive(Debug)]
    /// struct Shared;
    /// impl ReplayMemory for Shared {
    ///     fn check(&mut self, _: &FirstData<'_>, _: Instant) -> ReplayVerdict {
    ///         ReplayVerdict::Full
    ///     }
    /// }
    /// assert!(server.take_replays(listener).is_some());
    /// server.set_replays(listener, Shared);
    ///
    /// // The SYN waits for the first write, or for this call:
    /// let fast_open = FastOpenConnect { defer: true, ..FastOpenConnect::default() };
    /// let config = ConnectConfig { fast_open: Some(fast_open), ..ConnectConfig::default() };
    /// let id = client.connect(address, &config, now)?;
    /// client.send_deferred_syn(id, now);
    ///
    /// // A driver that hedges opens a second connection after this time, and reports if it was faster.
    /// if client.hedge_wait(id).is_some() {
    ///     client.report_hedge_won(id, now);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_listener_fast_open_keys(&mut self, listener: ListenerId, keys: KeySource) -> bool {
        let at = self.listeners.at_mut(listener).and_then(|at| at.fast_open.as_deref_mut());
        let Some(at) = at else { return false };
        at.config.keys = Some(keys);
        self.set_listener_keys(listener);
        true
    }
}

/// The client.
impl Stack {
    /// Decides how an active open uses Fast Open, if requested.
    pub(super) fn choose_fast_open(
        &mut self,
        connection: &mut Connection,
        config: &ConnectConfig,
        options: SynOptions,
        now: Instant,
    ) -> Option<Box<ServerKey>> {
        let connect = config.fast_open?;
        let tuple = connection.tuple();
        let server_key = ServerKey::new(tuple.local, tuple.remote, &connect);
        if matches!(options, SynOptions::Gentle | SynOptions::Plain) {
            self.stats.fast_open.disabled += 1;
            connection.fast_open.outcome = FastOpenOutcome::Off(OffReason::OnTrial);
            return (options == SynOptions::Plain).then(|| Box::new(server_key));
        }
        let known = connection.path.known;
        match self.fast_open.cache.choose(&server_key, &connect, config.tcp.max_segment, &known, now) {
            Ok(attempt) => {
                connection.open_fast(attempt, connect);
                Some(Box::new(server_key))
            }
            Err(reason) => {
                self.stats.fast_open.disabled += 1;
                connection.fast_open.outcome = FastOpenOutcome::Off(reason);
                None
            }
        }
    }
}

/// The server.
impl Stack {
    /// Decides about a SYN; returns `None` if it does not concern Fast Open.
    pub(super) fn admit_syn_data(
        &mut self,
        listener: ListenerId,
        tuple: &FourTuple,
        syn: &Arrived<'_>,
        now: Instant,
    ) -> Option<Verdict> {
        if matches!(syn.options.gentle, Some(Gentle::Part { .. })) {
            // This SYN repeats a part of the data without its beginning, so it cannot open the connection.
            return None;
        }
        let memory_left = self.memory.left();
        let Stack { listeners, fast_open, stats, .. } = self;
        let at = listeners.at_mut(listener)?;
        if at.is_full() || at.syn_cookies() == SynCookies::Always {
            return None;
        }
        let FastOpenAt { config, ring, replays } = at.fast_open.as_deref_mut()?;
        let ring = ring.as_mut()?;
        #[cfg(feature = "derived-keys")]
        ring.set_time(fast_open.unix(now));
        let facts = SynFacts {
            client: tuple.remote.ip(),
            server: tuple.local.ip(),
            option: syn.options.fast_open,
            payload: syn.payload.len(),
        };
        if facts.payload > memory_left {
            stats.fast_open.memory_refused += 1;
            return None;
        }
        let one_time = fast_open.one_time.as_mut().filter(|_| config.one_time);
        let verdict = fast_open.admission.admit(listener, config, ring, one_time, &facts, now);
        let verdict = fast_open.unless_replayed(verdict, replays.as_mut(), tuple, syn, now);
        stats.fast_open.count_verdict(&verdict);
        Some(verdict)
    }

    /// Reports the results of Fast Open after a handshake, and frees the connection's place in the limits.
    pub(super) fn learn_fast_open(&mut self, id: ConnId, now: Instant) {
        let Some(slot) = self.slots.at_mut(id) else { return };
        if let Some(server_key) = slot.server_key.as_deref().copied() {
            let sent = slot.connection.fast_open.first_syn();
            let shared = slot.connection.opened().is_some_and(|opened| opened.is_cause_ambiguous());
            for report in slot.connection.fast_open.take_reports() {
                self.stats.fast_open.count_report(&report, sent);
                // A failure is reported only when the next connection shows its reason: see `learn_gentle`.
                if !matches!(report, FastOpenReport::Failed(_)) {
                    let report = if shared { report.doubted() } else { report };
                    self.fast_open.on_report(&server_key, &report, now);
                    self.shard.publish(|| Fact::FastOpen(server_key, report));
                }
            }
        }
        if let Some(slot) = self.slots.at_mut(id) {
            self.fast_open.return_ticket(slot, &mut self.stats, now);
            self.fast_open.hand_out_cookie(&mut slot.connection);
        }
    }
}

/// Returns the outcome that a server's application sees if the SYN did not open its connection.
fn outcome_of(why: Plain) -> FastOpenOutcome {
    match why {
        Plain::NotAsked => FastOpenOutcome::Off(OffReason::NotAsked),
        Plain::Request | Plain::NoCookie => FastOpenOutcome::NoCookie,
        Plain::Invalid
        | Plain::Reused
        | Plain::Overflow
        | Plain::PerIp
        | Plain::Memory
        | Plain::Replayed
        | Plain::WindowFull => FastOpenOutcome::Refused,
    }
}

impl FastOpenStats {
    /// Counts a report of a client whose first SYN had this mode and this many bytes of data.
    fn count_report(&mut self, report: &FastOpenReport, sent: Option<(Mode, u32)>) {
        if let (FastOpenReport::SynAck { .. } | FastOpenReport::Failed(_), Some((mode, data))) =
            (report, sent)
        {
            self.requests_sent += u64::from(mode == Mode::Request);
            self.data_sent += u64::from(data > 0);
        }
        match *report {
            FastOpenReport::SynAck { class, .. } => {
                let counter = match class {
                    SynAckClass::Accepted => &mut self.accepted,
                    SynAckClass::Partial => &mut self.partial,
                    SynAckClass::SoftReject => &mut self.soft_reject,
                    SynAckClass::SoftNegative => &mut self.soft_negative,
                    SynAckClass::LateReject => &mut self.late_reject,
                    SynAckClass::SynDrop => &mut self.syn_drop,
                    SynAckClass::Granted => &mut self.granted,
                    SynAckClass::ReqDrop => &mut self.req_drop,
                    SynAckClass::NotSupported | SynAckClass::NoData => return,
                };
                *counter += 1;
            }
            FastOpenReport::Failed(Mode::Request) => self.req_drop += 1,
            FastOpenReport::Failed(Mode::Data | Mode::CookieOnly | Mode::DataNoCookie) => {
                self.syn_drop += u64::from(sent.is_some_and(|(_, data)| data > 0));
            }
            FastOpenReport::BlackHole(_) => self.black_holes += 1,
            FastOpenReport::OneTime(_) | FastOpenReport::Works | FastOpenReport::Doubted => {}
        }
    }

    fn count_verdict(&mut self, verdict: &Verdict) {
        match *verdict {
            Verdict::Accept { key, .. } => {
                self.served += 1;
                self.served_backup_key += u64::from(key == Check::Backup);
            }
            Verdict::Plain { why, .. } => match why {
                Plain::NotAsked | Plain::NoCookie => {}
                Plain::Request => self.requests += 1,
                Plain::Invalid => self.cookie_invalid += 1,
                Plain::Reused => self.one_time_reuse += 1,
                Plain::Overflow => self.overflow += 1,
                Plain::PerIp => self.per_ip_refused += 1,
                Plain::Memory => self.memory_refused += 1,
                Plain::Replayed => self.replay_blocked += 1,
                Plain::WindowFull => self.replay_window_full += 1,
            },
        }
    }
}

/// Connections that have ended.
impl Stack {
    /// True if the SYN is a duplicate from a connection that has ended. It is answered by the last
    /// acknowledgement of that connection, or not at all.
    pub(super) fn is_replay(&mut self, tuple: &FourTuple, syn: &Arrived<'_>, now: Instant) -> bool {
        let timestamp = syn.options.timestamps.map(|timestamps| timestamps.value);
        match self.fast_open.last_ack.check(tuple, syn.seq, timestamp, now) {
            LastAckVerdict::Unknown | LastAckVerdict::Fresh => false,
            LastAckVerdict::Duplicate { answer } => {
                self.stats.fast_open.replay_blocked += 1;
                if let Some(entry) = answer {
                    let (ip, tcp) = ack_of_closed(tuple, &entry, now);
                    self.answer(&ip, &tcp);
                }
                true
            }
        }
    }
}

/// Returns `<SEQ=SND.NXT><ACK=RCV.NXT><CTL=ACK>` of a connection that has ended.
fn ack_of_closed(tuple: &FourTuple, entry: &LastAckEntry, now: Instant) -> (IpMeta, TcpHeader) {
    let mut ip = IpMeta::new(tuple.local.ip(), tuple.remote.ip());
    ip.hop_limit = entry.hop_limit;
    ip.dscp = entry.dscp;
    let mut tcp = TcpHeader {
        src_port: tuple.local.port(),
        dst_port: tuple.remote.port(),
        seq: entry.numbers.snd_nxt,
        ack: entry.numbers.rcv_nxt,
        flags: Flags::ACK,
        window: entry.numbers.window,
        ..TcpHeader::default()
    };
    tcp.options.timestamps = entry.numbers.ts_recent.map(|echo| {
        let value = ((now.as_micros() / 1000) as u32).wrapping_add(entry.numbers.ts_offset);
        TimestampOption { value, echo }
    });
    (ip, tcp)
}

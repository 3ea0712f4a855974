//! Half-open connections in a few bytes (Linux has a request socket for this).
//!
//! A connection that has only answered a SYN is determined by that SYN, its time of arrival, and the times at
//! which the answer was sent and repeated. So the newest half-open connections are kept as whole connections
//! ([`StackConfig::warm_half_open`](crate::config::StackConfig)), and the others as a record of these facts.
//! When an event concerns a record, the connection is rebuilt by the calls that created it, with the same
//! times: its packets are the same as if it had been kept whole.
//!
//! After any other event before the end of the handshake (a segment that does not complete it, an ICMP error)
//! the connection remains whole. A connection that uses Corrective, Proactive or a planner also remains
//! whole, and so does one whose SYN had data that was accepted.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use brisk_wire::{Ecn, Flags, Options, SeqNum, Timestamps, UnknownOptions};

use super::Stack;
use super::deadlines::Deadlines;
use super::demux::Target;
use super::slab::Slab;
use super::slot::{Ownership, Slot};
use crate::config::StackConfig;
use crate::conn_id::{ConnId, ListenerId};
use crate::connection::{Connection, Env, Host, Secrets, Urgency};
use crate::fast_open::server::Verdict;
use crate::four_tuple::{CompactTuple, FourTuple};
use crate::outcome::Arrived;
use crate::path::PathFacts;
use crate::time::{Duration, Instant};

/// Record from which a half-open connection is rebuilt, and its history. There may be many records, so
/// optional values are stored as bits and separate words, and times as microseconds since the SYN arrived.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct HalfOpen {
    tuple: CompactTuple,
    opened: Instant,
    /// Fields that few records have.
    uncommon: Option<Box<UncommonFields>>,
    iss: SeqNum,
    ts_offset: u32,
    irs: SeqNum,
    ts_value: u32,
    answered: u32,
    /// Time of the last timeout.
    timed_out: u32,
    /// Slot of the listener.
    listener: u32,
    window: u16,
    mss: u16,
    wire_len: u16,
    payload_len: u16,
    /// Time from the timeout until the answer was sent again.
    repeated_after: u16,
    flags: u8,
    window_scale: u8,
    timeouts: u8,
    has: Has,
    last_action: LastAction,
    ecn: Ecn,
}

/// The optional values that are present, as bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Has(u8);

impl Has {
    const MSS: u8 = 1;
    const WINDOW_SCALE: u8 = 2;
    const SACK: u8 = 4;
    const TIMESTAMPS: u8 = 8;
    /// Not a property of the SYN: there was memory for repairs by parity.
    const ACCEPTS_PARITY: u8 = 16;

    fn all(bits: [(u8, bool); 5]) -> Has {
        Has(bits.iter().filter(|(_, is_set)| *is_set).fold(0, |all, (bit, _)| all | bit))
    }

    fn contains(self, bit: u8) -> bool {
        self.0 & bit != 0
    }
}

/// The last action of a half-open connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LastAction {
    /// The connection was created: its answer is due.
    Started,
    /// The answer was sent.
    Answered,
    /// The timer fired: the answer is due again.
    TimedOut,
}

/// Fields that a plain SYN from an unknown client does not have.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct UncommonFields {
    /// Options of the SYN, if they are unusual.
    options: Option<Options>,
    /// Facts of the path at the beginning, which the connection reports as long as it exists.
    known: PathFacts,
    verdict: Option<Verdict>,
}

/// Stored parts of a SYN, and the decisions about it.
pub(super) struct Beginning<'a> {
    pub(super) tuple: FourTuple,
    pub(super) listener: ListenerId,
    pub(super) syn: &'a Arrived<'a>,
    pub(super) wire_len: usize,
    pub(super) secrets: Secrets,
    pub(super) host: Host,
    pub(super) verdict: Option<Verdict>,
    pub(super) opened: Instant,
}

impl HalfOpen {
    /// Returns the record of a connection with this beginning; `None` if a value does not fit.
    pub(super) fn new(beginning: Beginning<'_>) -> Option<Box<HalfOpen>> {
        let Beginning { tuple, listener, syn, wire_len, secrets, host, verdict, opened } = beginning;
        let Arrived { seq, ack: _, flags, window, urgent, options, payload, ecn, segment_size } = *syn;
        if urgent != 0 || segment_size != payload.len() {
            return None;
        }
        let mut half_open = HalfOpen {
            tuple: tuple.into(),
            opened,
            uncommon: None,
            iss: secrets.iss,
            ts_offset: secrets.ts_offset,
            irs: seq,
            ts_value: options.timestamps.map_or(0, |timestamps| timestamps.value),
            answered: 0,
            timed_out: 0,
            repeated_after: 0,
            listener: listener.index,
            window,
            mss: options.mss.unwrap_or(0),
            wire_len: wire_len.try_into().ok()?,
            payload_len: payload.len().try_into().ok()?,
            // AE is reserved and has no effect.
            flags: flags.without(Flags::AE).0.try_into().ok()?,
            window_scale: options.window_scale.unwrap_or(0),
            timeouts: 0,
            has: Has::all([
                (Has::MSS, options.mss.is_some()),
                (Has::WINDOW_SCALE, options.window_scale.is_some()),
                (Has::SACK, options.sack_permitted),
                (Has::TIMESTAMPS, options.timestamps.is_some()),
                (Has::ACCEPTS_PARITY, host.accepts_parity),
            ]),
            last_action: LastAction::Started,
            ecn,
        };
        let options = (!is_usual(options)).then(|| options.clone());
        if options.is_some() || verdict.is_some() {
            half_open.uncommon =
                Some(Box::new(UncommonFields { options, verdict, ..UncommonFields::default() }));
        }
        Some(Box::new(half_open))
    }

    pub(crate) fn is_of(&self, tuple: &FourTuple) -> bool {
        self.tuple.is(tuple)
    }

    pub(crate) fn listener(&self) -> u32 {
        self.listener
    }

    fn options(&self) -> Options {
        if let Some(options) = self.uncommon.as_ref().and_then(|fields| fields.options.as_ref()) {
            return options.clone();
        }
        Options {
            mss: self.has.contains(Has::MSS).then_some(self.mss),
            window_scale: self.has.contains(Has::WINDOW_SCALE).then_some(self.window_scale),
            sack_permitted: self.has.contains(Has::SACK),
            timestamps: self
                .has
                .contains(Has::TIMESTAMPS)
                .then_some(Timestamps { value: self.ts_value, echo: 0 }),
            ..Options::default()
        }
    }

    fn since_opened(&self, now: Instant) -> Option<u32> {
        now.saturating_since(self.opened).as_micros().try_into().ok()
    }

    fn at(&self, since_opened: u32) -> Instant {
        self.opened + Duration::from_micros(since_opened.into())
    }

    /// Records a transmission. Returns `None` if it is not the answer to the SYN, or cannot be stored.
    fn sent(&mut self, now: Instant) -> Option<()> {
        let at = self.since_opened(now)?;
        match self.last_action {
            LastAction::Started => self.answered = at,
            LastAction::TimedOut => {
                self.repeated_after = at.saturating_sub(self.timed_out).try_into().ok()?;
            }
            LastAction::Answered => return None,
        }
        self.last_action = LastAction::Answered;
        Some(())
    }

    /// Records a timeout. Returns `None` if it cannot be stored.
    fn timed_out(&mut self, now: Instant) -> Option<()> {
        let at = self.since_opened(now)?;
        self.timeouts = self.timeouts.checked_add(1).filter(|_| self.last_action == LastAction::Answered)?;
        self.timed_out = at;
        self.last_action = LastAction::TimedOut;
        Some(())
    }

    /// Repeats the transmissions, whose packets are discarded, and the timeouts. A connection depends on the
    /// exact time only of its last retransmission.
    fn replay(&self, connection: &mut Connection, config: &StackConfig) {
        discard_transmissions(connection, config, self.at(self.answered));
        let last = self.at(self.timed_out);
        for timeout in 1..=self.timeouts {
            let is_last = timeout == self.timeouts;
            let timed_out = connection.next_timeout().filter(|_| !is_last).unwrap_or(last);
            // The events were handed over at the original timeout.
            let _ = connection.on_timeout(timed_out);
            let late = Duration::from_micros(self.repeated_after.into());
            let repeated = if is_last { last + late } else { timed_out };
            discard_transmissions(connection, config, repeated);
        }
    }
}

/// Polls a connection for packets and discards them.
fn discard_transmissions(connection: &mut Connection, config: &StackConfig, at: Instant) {
    let env = Env {
        challenge: &mut |_| false,
        super_segment: config.max_super_segment,
        sends_twice: false,
        partial_checksum: config.max_super_segment > 0,
        payload_in_place: false,
    };
    let mut packet = Vec::new();
    while connection.poll_transmit(at, &env, &mut packet).is_some() {
        packet.clear();
    }
}

/// True if these options of a SYN fit into the record without [`UncommonFields`].
fn is_usual(options: &Options) -> bool {
    let Options {
        mss: _,
        window_scale: _,
        sack_permitted: _,
        timestamps,
        sack,
        fast_open,
        gentle,
        early_window,
        unknown,
        malformed_gentle,
    } = options;
    timestamps.is_none_or(|timestamps| timestamps.echo == 0)
        && sack.is_empty()
        && fast_open.is_none()
        && gentle.is_none()
        && early_window.is_none()
        && *unknown == UnknownOptions::default()
        && !malformed_gentle
}

/// The records of half-open connections, and the whole connections that may become records. The listeners
/// bound their number.
#[derive(Debug)]
pub(crate) struct HalfOpenTable {
    entries: Slab<HalfOpen>,
    deadlines: Deadlines,
    /// Timers up to this time fire when packets are polled next.
    due: Instant,
    /// Whole connections that have answered and wait. Some may have left this state.
    warm: VecDeque<ConnId>,
}

impl Default for HalfOpenTable {
    fn default() -> Self {
        HalfOpenTable {
            entries: Slab::default(),
            deadlines: Deadlines::default(),
            due: Instant::ZERO,
            warm: VecDeque::new(),
        }
    }
}

impl HalfOpenTable {
    /// Resets the table to its initial state, and keeps its storage.
    pub(super) fn clear(&mut self) {
        let HalfOpenTable { entries, deadlines, due, warm } = self;
        entries.clear();
        deadlines.clear();
        *due = Instant::ZERO;
        warm.clear();
    }

    /// Permits timers up to `now` to fire.
    pub(super) fn on_timeout(&mut self, now: Instant) {
        self.due = self.due.max(now);
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn entry(&self, index: u32) -> Option<&HalfOpen> {
        self.entries.get(index)
    }

    /// True if no timer is due.
    #[inline]
    pub(super) fn is_idle(&self, now: Instant) -> bool {
        self.deadlines.next().is_none_or(|at| at > self.due.min(now))
    }

    /// Returns the next timeout that is not due. [`Stack::poll_transmit`] processes the timeouts that are
    /// due.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.deadlines.next().filter(|at| *at > self.due)
    }

    /// Returns the four-tuples of all records.
    pub(super) fn flows(&self) -> impl Iterator<Item = FourTuple> {
        self.entries.iter().map(|(_, entry)| FourTuple::from(&entry.tuple))
    }

    fn of(&self, listener: ListenerId) -> Vec<u32> {
        let all = self.entries.iter();
        all.filter(|(_, entry)| entry.listener == listener.index).map(|(index, _)| index).collect()
    }
}

/// Updates of a whole half-open connection.
impl Slot {
    /// Records that the connection sent a segment.
    pub(super) fn record_sent(&mut self, now: Instant) {
        self.half_open.take_if(|half_open| half_open.sent(now).is_none());
    }

    pub(super) fn record_timeout(&mut self, now: Instant) {
        self.half_open.take_if(|half_open| half_open.timed_out(now).is_none());
    }
}

/// From a connection to a record.
impl Stack {
    /// Keeps a waiting half-open connection whole. The connection that has waited longest becomes a record.
    pub(super) fn keep_warm(&mut self, id: ConnId) {
        self.half_open.warm.push_back(id);
        while self.half_open.warm.len() > self.config.warm_half_open {
            let Some(oldest) = self.half_open.warm.pop_front() else { return };
            self.compact(oldest);
        }
    }

    /// Replaces a half-open connection by its record, if possible.
    fn compact(&mut self, id: ConnId) {
        let Some(slot) = self.slots.at_mut(id) else { return };
        let connection = &slot.connection;
        let waits = matches!(slot.phase, Ownership::HalfOpen(_)) && slot.urgency == Urgency::Idle;
        if !waits || !connection.is_bare() {
            return;
        }
        let (deadline, known) = (connection.next_timeout(), connection.path.known);
        let Some(mut half_open) =
            slot.half_open.take_if(|half_open| half_open.last_action == LastAction::Answered)
        else {
            return;
        };
        if known != PathFacts::default() {
            half_open.uncommon.get_or_insert_default().known = known;
        }
        debug_assert!(self.is_restored_equal(id, &half_open), "{half_open:?}");
        let tuple = FourTuple::from(&half_open.tuple);
        self.deadlines.set(id.index, None);
        self.free(id);
        let index = self.half_open.entries.insert(*half_open);
        self.half_open.deadlines.set(index, deadline);
        self.demux.point(&tuple, Some(Target::Connection(id.index)), Target::HalfOpen(index));
    }
}

/// From a record to a connection.
impl Stack {
    /// True if the rebuilt connection equals the existing one.
    fn is_restored_equal(&self, id: ConnId, half_open: &HalfOpen) -> bool {
        let slot = self.slots.at(id);
        self.restored(half_open).zip(slot).is_some_and(|(again, slot)| {
            alloc::format!("{again:?}") == alloc::format!("{:?}", slot.connection)
        })
    }

    /// Rebuilds the connection at `index`, for an event that concerns it.
    pub(super) fn restore_half_open(&mut self, index: u32, now: Instant) -> Option<ConnId> {
        self.half_open.deadlines.set(index, None);
        let half_open = self.half_open.entries.remove(index)?;
        let tuple = FourTuple::from(&half_open.tuple);
        let connection = self.restored(&half_open);
        let listener: Option<ListenerId> = self.listeners.key_at(half_open.listener);
        let (Some(connection), Some(listener)) = (connection, listener) else {
            self.demux.remove(&tuple, Target::HalfOpen(index));
            return None;
        };
        let deadline = connection.next_timeout();
        let tcp = Arc::clone(&connection.config);
        let id = self.insert_slot(connection, &tcp, Ownership::HalfOpen(listener), now);
        self.deadlines.set(id.index, deadline);
        self.demux.point(&tuple, Some(Target::HalfOpen(index)), Target::Connection(id.index));
        if let Some(slot) = self.slots.at_mut(id) {
            slot.half_open = Some(Box::new(half_open));
        }
        Some(id)
    }

    /// Rebuilds the connections of a listener.
    pub(super) fn restore_all(&mut self, listener: ListenerId, now: Instant) {
        for index in self.half_open.of(listener) {
            self.restore_half_open(index, now);
        }
    }

    /// Fires the next due timer: one at a time, and only when nothing else is to be sent, so that few
    /// connections are whole at once.
    pub(super) fn fire_half_open(&mut self, now: Instant) -> bool {
        let due = self.half_open.due.min(now);
        let Some(index) = self.half_open.deadlines.pop_due(due) else { return false };
        if let Some(id) = self.restore_half_open(index, due) {
            self.on_conn_timeout(id, due);
        }
        true
    }

    /// Returns the connection rebuilt from `half_open`, with its history repeated.
    fn restored(&self, half_open: &HalfOpen) -> Option<Box<Connection>> {
        let listener: ListenerId = self.listeners.key_at(half_open.listener)?;
        let tcp = self.listeners.at(listener)?.tcp();
        let options = half_open.options();
        let syn = Arrived {
            seq: half_open.irs,
            ack: SeqNum(0),
            flags: Flags(half_open.flags.into()),
            window: half_open.window,
            urgent: 0,
            options: &options,
            payload: &[],
            ecn: half_open.ecn,
            segment_size: 0,
        };
        let host = Host { accepts_parity: half_open.has.contains(Has::ACCEPTS_PARITY), ..self.host() };
        let secrets = Secrets { iss: half_open.iss, ts_offset: half_open.ts_offset };
        let tuple = FourTuple::from(&half_open.tuple);
        let mut connection = Connection::accept(tuple, tcp, secrets, host, &syn, half_open.opened);
        let (known, verdict) = half_open
            .uncommon
            .as_ref()
            .map_or_else(Default::default, |fields| (fields.known, fields.verdict));
        connection.start_from(known, half_open.opened);
        let (wire_len, payload_len) = (half_open.wire_len.into(), half_open.payload_len.into());
        if let Some(verdict) = verdict {
            let fast_open = self.listeners.at(listener)?.fast_open.as_deref();
            fast_open.and_then(|at| at.answer(&mut connection, verdict, &syn, wire_len, half_open.opened));
        }
        connection.counters.count_arrival(wire_len, payload_len, payload_len);
        half_open.replay(&mut connection, &self.config);
        Some(connection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_of_an_unknown_ipv4_client_takes_80_bytes() {
        assert_eq!(size_of::<Option<HalfOpen>>(), 80);
    }
}

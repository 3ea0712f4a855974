//! The record of a half-open connection: its SYN, the decisions about it, and the times of its answers.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use brisk_wire::{Ecn, Flags, Options, SeqNum, Timestamps, UnknownOptions};

use crate::config::{StackConfig, TcpConfig};
use crate::conn_id::ListenerId;
use crate::connection::{Connection, Env, Host, Secrets};
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
    /// Facts of the path at the beginning of the connection.
    known: PathFacts,
    verdict: Option<Verdict>,
}

/// Stored parts of a SYN, and the decisions about it.
pub(in crate::stack) struct Beginning<'a> {
    pub(in crate::stack) tuple: FourTuple,
    pub(in crate::stack) listener: ListenerId,
    pub(in crate::stack) syn: &'a Arrived<'a>,
    pub(in crate::stack) wire_len: usize,
    pub(in crate::stack) secrets: Secrets,
    pub(in crate::stack) host: Host,
    pub(in crate::stack) verdict: Option<Verdict>,
    pub(in crate::stack) opened: Instant,
}

impl HalfOpen {
    /// Returns the record of a connection with this beginning; `None` if a value does not fit.
    pub(in crate::stack) fn new(beginning: Beginning<'_>) -> Option<Box<HalfOpen>> {
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

    /// True if `seq` is outstanding: it is that of the SYN-ACK, the only segment that was sent.
    pub(in crate::stack) fn is_outstanding(&self, seq: SeqNum) -> bool {
        seq == self.iss
    }

    pub(crate) fn listener(&self) -> u32 {
        self.listener
    }

    pub(super) fn tuple(&self) -> FourTuple {
        FourTuple::from(&self.tuple)
    }

    pub(super) fn opened(&self) -> Instant {
        self.opened
    }

    pub(super) fn wire_len(&self) -> usize {
        self.wire_len.into()
    }

    pub(super) fn verdict(&self) -> Option<Verdict> {
        self.uncommon.as_ref().and_then(|fields| fields.verdict)
    }

    /// Adds the facts of the path at the beginning.
    pub(super) fn set_known(&mut self, known: PathFacts) {
        if known != PathFacts::default() {
            self.uncommon.get_or_insert_default().known = known;
        }
    }

    /// True if the answer has left since the last timeout.
    pub(super) fn has_answered(&self) -> bool {
        self.last_action == LastAction::Answered
    }

    pub(super) fn options(&self) -> Options {
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
    pub(super) fn sent(&mut self, now: Instant) -> Option<()> {
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
    pub(super) fn timed_out(&mut self, now: Instant) -> Option<()> {
        let at = self.since_opened(now)?;
        self.timeouts = self.timeouts.checked_add(1).filter(|_| self.last_action == LastAction::Answered)?;
        self.timed_out = at;
        self.last_action = LastAction::TimedOut;
        Some(())
    }

    /// Returns the SYN; `options` are those of [`HalfOpen::options`].
    pub(super) fn syn<'a>(&self, options: &'a Options) -> Arrived<'a> {
        Arrived {
            seq: self.irs,
            ack: SeqNum(0),
            flags: Flags(self.flags.into()),
            window: self.window,
            urgent: 0,
            options,
            payload: &[],
            ecn: self.ecn,
            segment_size: 0,
        }
    }

    /// Creates the connection again, in its state before the decision about its data.
    pub(super) fn create(&self, syn: &Arrived<'_>, tcp: &Arc<TcpConfig>, host: Host) -> Box<Connection> {
        let host = Host { accepts_parity: self.has.contains(Has::ACCEPTS_PARITY), ..host };
        let secrets = Secrets { iss: self.iss, ts_offset: self.ts_offset };
        let mut connection = Connection::accept(self.tuple(), tcp, secrets, host, syn, self.opened);
        let known = self.uncommon.as_ref().map_or_else(PathFacts::default, |fields| fields.known);
        connection.start_from(known, self.opened);
        connection
    }

    /// Counts the SYN, and repeats the transmissions and timeouts; the packets are discarded. Of these times,
    /// only that of the last retransmission has to be exact.
    pub(super) fn replay(&self, connection: &mut Connection, config: &StackConfig) {
        let (wire_len, payload_len) = (self.wire_len.into(), self.payload_len.into());
        connection.counters.count_arrival(wire_len, payload_len, payload_len);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_of_an_unknown_ipv4_client_takes_80_bytes() {
        assert_eq!(size_of::<Option<HalfOpen>>(), 80);
    }
}

//! Copies of a SYN and of a SYN-ACK.
//!
//! **The plain copy of a SYN with data** guards against a path that may drop such SYNs.
//!
//! A path that drops SYNs with data (about 6 % did when the paper was written, section 4.1) delays the
//! connection until the plain SYN follows: by 1.5 round trips with the paper's timer, on each connection
//! until the client has learnt it. The copy leaves before the answer can arrive, with no data, no cookie and
//! the same sequence number. If the first SYN arrived, the server sees a repeated SYN and answers it again,
//! which changes nothing at the client. If not, the copy opens the connection, half a round trip late instead
//! of one and a half. The cost is two small packets, and only until the path has passed data once, which the
//! memory of the client records ([`OpenAttempt::untried`](crate::fast_open::client::OpenAttempt)).
//!
//! The copy is not a retransmission: option and data are still offered, no mechanism falls back, and the
//! timer of the SYN restarts with it. The echoed timestamp, or the time of the answer, shows which of the two
//! SYNs was answered; only an echo gives a round-trip time (Karn's algorithm).
//!
//! **The copy of any SYN and SYN-ACK** ([`HandshakeCopies`](crate::config::HandshakeCopies)) guards against
//! loss, which delays a handshake more than anything else (Gentle Aggression section 8.4.1). The copy of a
//! SYN has no data and no cookie, since it must not deliver a request a second time, but keeps the option of
//! Corrective and Proactive. It carries the data only if the configuration permits that and the path has
//! passed data on a SYN before. The copy of a SYN-ACK is identical to the SYN-ACK. Neither copy is a
//! retransmission: no mechanism falls back, no option is withdrawn, and the timer continues. With the
//! [planner](crate::mechanism::plan) a copy leaves only where it pays.

use brisk_wire::{Flags, Options, SeqNum, TcpHeader};

use crate::connection::{Connection, State};
use crate::fast_open::FastOpenConnect;
use crate::fast_open::client::{Mode, OpenAttempt};
use crate::outcome::{Arrived, Origin, Sent};
use crate::seq_ranges::SeqRange;
use crate::time::{Duration, Instant, Micros, TIMESTAMP_TICK};

/// Time until the copy leaves if the round-trip time is not known.
const WAIT_UNKNOWN: Duration = Duration::from_millis(50);

/// A repeated SYN that arrives less than this, or half a round trip, after our own SYN-ACK is a copy: the
/// copy of the SYN-ACK has answered it. No retransmission timer is that short.
const COPIES_MEET: Duration = Duration::from_millis(25);
/// Approximate bytes of a SYN on the wire, which a copy takes from the allowance of redundancy.
const SYN_LEN: u32 = 60;

/// State of the copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum PlainCopy {
    /// There is no copy.
    #[default]
    Off,
    /// It leaves this time after the SYN.
    After(Duration),
    /// It leaves at this time, unless the answer arrives before.
    At(Instant),
    /// It leaves now.
    Due,
    /// It left at this time.
    Left(Instant),
}

impl PlainCopy {
    /// Returns the copy, and its delay, for the SYN of this attempt.
    pub(crate) fn of(attempt: &OpenAttempt, connect: &FastOpenConnect) -> Self {
        let share = |srtt: Duration| {
            let wait = srtt.saturating_mul(u32::from(connect.plain_copy_percent.min(100))) / 100;
            // With a shorter delay the timestamps of both would be equal.
            wait.max((TIMESTAMP_TICK * 2).into())
        };
        let wait = match attempt.mode {
            _ if connect.plain_copy_percent == 0 || !attempt.untried => return PlainCopy::Off,
            Mode::Data | Mode::DataNoCookie => attempt.srtt.map_or(WAIT_UNKNOWN, share),
            // A first contact does not justify a copy of every SYN.
            Mode::Request | Mode::CookieOnly => match attempt.srtt {
                Some(srtt) => share(srtt),
                None => return PlainCopy::Off,
            },
        };
        PlainCopy::After(wait)
    }

    /// Returns half a round trip, or a default if it is not known.
    pub(crate) fn half_of(srtt: Option<Duration>) -> Duration {
        srtt.map_or(WAIT_UNKNOWN, |srtt| srtt / 2)
    }

    /// Starts the wait after the SYN left; returns the delay by which the timer of the SYN starts later.
    pub(crate) fn start(&mut self, now: Instant) -> Duration {
        let PlainCopy::After(wait) = *self else { return Duration::ZERO };
        *self = if wait.is_zero() { PlainCopy::Due } else { PlainCopy::At(now + wait) };
        wait
    }

    /// True once the copy left.
    pub(crate) fn has_left(&self) -> bool {
        matches!(self, PlainCopy::Left(_))
    }

    /// Withdraws a copy that has not left.
    pub(crate) fn cancel(&mut self) {
        match self {
            PlainCopy::After(_) | PlainCopy::At(_) | PlainCopy::Due => *self = PlainCopy::Off,
            PlainCopy::Off | PlainCopy::Left(_) => {}
        }
    }
}

impl Connection {
    /// Returns the time at which the copy leaves.
    pub(crate) fn plain_copy_timeout(&self) -> Option<Instant> {
        match self.handshake.syn.copy {
            PlainCopy::At(at) if self.state.is_opening() => Some(at),
            PlainCopy::At(_) | PlainCopy::Off | PlainCopy::After(_) | PlainCopy::Due | PlainCopy::Left(_) => {
                None
            }
        }
    }

    /// Starts the wait after the first SYN or SYN-ACK left with `data` bytes; returns the delay by which the
    /// timer of a SYN starts later.
    pub(crate) fn start_copy(&mut self, data: u32, now: Instant) -> Duration {
        let insures = self.insures_syn_data();
        if self.config.handshake_copies.is_some() && !insures && !self.affords_syn_copy(data) {
            self.handshake.syn.copy.cancel();
        }
        if let (PlainCopy::After(wait), false) = (&self.handshake.syn.copy, insures) {
            self.handshake.syn.copy = PlainCopy::After(*wait.max(&self.planned_syn_gap()));
        }
        let later = self.handshake.syn.copy.start(now);
        if self.fast_open.opens_fast() { later } else { Duration::ZERO }
    }

    /// Returns the IP bytes of a waiting copy, without its data.
    pub(crate) fn waiting_syn_copy(&self) -> u32 {
        match self.handshake.syn.copy {
            PlainCopy::At(_) | PlainCopy::Due if self.state.is_opening() => SYN_LEN,
            PlainCopy::At(_) | PlainCopy::Due | PlainCopy::Off | PlainCopy::After(_) | PlainCopy::Left(_) => {
                0
            }
        }
    }

    /// True if the copy guards against devices that drop SYNs with data.
    fn insures_syn_data(&self) -> bool {
        let of = self.fast_open.client().map(|client| PlainCopy::of(&client.attempt, &client.connect));
        of.is_some_and(|copy| copy != PlainCopy::Off)
    }

    /// True if the allowance covers a copy of a first SYN or SYN-ACK with `data` bytes, and the planner, if
    /// there is one, considers it useful.
    fn affords_syn_copy(&self, data: u32) -> bool {
        let again = data > 0 && self.repeats_syn_data();
        let bytes = if again { SYN_LEN + data } else { SYN_LEN };
        self.tx.redundancy_left() >= bytes && self.plans_syn_copy(bytes, data > 0 && !again)
    }

    /// True if the copy of a SYN has the data and the cookie of the first.
    fn repeats_syn_data(&self) -> bool {
        let permitted = self.config.handshake_copies.is_some_and(|copies| copies.with_data);
        permitted && self.fast_open.proven_syn_data().is_some()
    }

    /// Returns the header of the copy and its data: a SYN as a stack without Fast Open would send it, the SYN
    /// again where that is permitted, or the SYN-ACK again with every option of the first.
    pub(crate) fn syn_copy(&self, now: Instant) -> (TcpHeader, SeqRange) {
        let answer = self.state == State::SynReceived;
        let (flags, ack, data) = if answer {
            (Flags::ACK | self.ecn.syn_ack_flags(), self.rx.rcv_nxt(), 0)
        } else {
            (self.ecn.syn_flags(), SeqNum(0), self.copied_syn_data())
        };
        let gentle = if answer {
            self.gentle.sent_option()
        } else {
            self.config.handshake_copies.and(self.gentle.sent_option())
        };
        let fast_open = match answer {
            true => self.fast_open.server().and_then(|server| server.option()),
            false if self.repeats_syn_data() => self.fast_open.syn_option(self.handshake.syn.sent),
            false => None,
        };
        let header = TcpHeader {
            src_port: self.tuple.local_port(),
            dst_port: self.tuple.remote_port(),
            seq: self.handshake.iss,
            ack,
            flags: Flags::SYN | flags,
            window: self.rx.window.syn_window(),
            urgent: 0,
            options: Options { gentle, fast_open, ..self.syn_options(now) },
        };
        (header, SeqRange::with_len(self.handshake.iss + 1, data))
    }

    /// Returns the bytes of data on the copy of the SYN that left.
    fn copied_syn_data(&self) -> u32 {
        self.fast_open.proven_syn_data().filter(|_| self.repeats_syn_data()).unwrap_or(0)
    }

    pub(crate) fn account_syn_copy(&mut self, now: Instant) {
        let data = if self.state == State::SynSent { self.copied_syn_data() } else { 0 };
        self.handshake.syn.copy = PlainCopy::Left(now);
        self.tx.spend_redundancy(SYN_LEN + data);
        self.tx.scoreboard.on_sent(&Sent {
            range: SeqRange::with_len(self.handshake.iss, 1 + data),
            segment_size: data.max(1),
            origin: Origin::Duplicate,
            syn: true,
            fin: false,
            at: now,
        });
        self.counters.syn_copies += 1;
    }

    /// Processes a repeated SYN in SYN-RECEIVED: the SYN-ACK was lost, or this is a copy. A retransmission
    /// has no option of Corrective and Proactive, so a SYN that has one is a copy: it is answered by an
    /// identical SYN-ACK, and the agreement remains.
    pub(crate) fn on_repeated_syn(&mut self, syn: &Arrived<'_>, now: Instant) {
        let half_way = self.path.known.rtt.map_or(COPIES_MEET, |rtt| COPIES_MEET.max(rtt.srtt / 2));
        let near = self.handshake.syn.last_sent.is_some_and(|at| now.saturating_since(at) <= half_way);
        let answered = self.handshake.syn.copy != PlainCopy::Off || self.gentle.plans();
        if near && answered && self.handshake.syn.timeouts == 0 || !self.allow_repeated_syn_ack(now) {
            return;
        }
        if syn.options.gentle.is_some() && self.gentle.sent_option().is_some() && self.handshake.syn.sent == 1
        {
            self.handshake.syn.copy = PlainCopy::Due;
        } else {
            self.handshake.syn.due = true;
        }
    }

    /// Processes a reset that answers the SYN. Some devices refuse data on a SYN this way, so the first reset
    /// only makes the plain copy leave, if it has not. Returns false for a later reset, and if there is no
    /// copy to wait for.
    pub(crate) fn defers_reset_to_copy(&mut self) -> bool {
        if self.fast_open.client().is_none() {
            return false;
        }
        match self.handshake.syn.copy {
            PlainCopy::Off => return false,
            PlainCopy::After(_) | PlainCopy::At(_) => self.handshake.syn.copy = PlainCopy::Due,
            PlainCopy::Due | PlainCopy::Left(_) => {}
        }
        self.fast_open.client_mut().is_some_and(|client| !core::mem::replace(&mut client.reset, true))
    }

    /// True if the SYN-ACK answers the copy and not the SYN before it.
    pub(crate) fn answers_plain_copy(&self, syn_ack: &Arrived<'_>, now: Instant) -> bool {
        let Some(client) = self.fast_open.client() else { return false };
        let PlainCopy::Left(left) = self.handshake.syn.copy else { return false };
        if self.copied_syn_data() > 0 {
            return false;
        }
        let since = now.saturating_since(left);
        match (self.echo_rtt(syn_ack, now), client.attempt.srtt) {
            (Some(echoed), _) => echoed <= Micros::from(since) + TIMESTAMP_TICK,
            // Without timestamps: the answer belongs to the SYN to which it is nearer in time.
            (None, Some(srtt)) => since + left.saturating_since(self.handshake.opened) / 2 >= srtt,
            (None, None) => true,
        }
    }
}

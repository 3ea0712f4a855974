//! Copies of a SYN and of a SYN-ACK.
//!
//! **Of a SYN with data**: insurance on a path that has not yet been seen to pass such SYNs.
//!
//! A path that drops SYNs with data (about 6 % did when the paper was written, section 4.1) delays the
//! connection until the plain SYN follows: by 1.5 round trips with the paper's timer, on each connection
//! until the client has learnt it. The copy leaves while the answer is still under way, with no data, no
//! cookie and the same sequence number. If the first SYN arrived, the server sees a repeated SYN and answers
//! it again, which changes nothing at the client. If not, the copy opens the connection, half a round trip
//! late instead of one and a half. It costs two small packets, and only until the path has passed data once,
//! which the memory of the client records ([`OpenAttempt::untried`](crate::fast_open::client::OpenAttempt)).
//!
//! The copy is no retransmission: option and data are still offered, no mechanism falls back, and the timer
//! of the SYN starts again with it. The echoed timestamp, or the time of an answer, shows which of the two
//! SYNs it belongs to; only an echo gives a round-trip time (Karn's algorithm).

//! **Of every SYN and SYN-ACK** ([`HandshakeCopies`](crate::config::HandshakeCopies)): insurance against
//! loss, which costs a handshake more than anything else (Gentle Aggression section 8.4.1). The copy of a SYN
//! has no data and no cookie here either, since it must not deliver a request a second time, but keeps what
//! was offered for Corrective and Proactive; only who says that this may be is sent the data twice, and only
//! where the path has taken data on a SYN before. The copy of a SYN-ACK is the SYN-ACK again. Neither is a
//! retransmission: nothing falls back, nothing is withdrawn, the timer runs on. With the
//! [planner](crate::mechanism::plan) a copy leaves only where it pays.

use brisk_wire::{Flags, Options, SeqNum, TcpHeader};

use crate::connection::decision::Choice;
use crate::connection::{Connection, State};
use crate::fast_open::FastOpenConnect;
use crate::fast_open::client::{Mode, OpenAttempt};
use crate::outcome::{Arrived, Origin, Sent};
use crate::seq_ranges::SeqRange;
use crate::time::{Duration, Instant, Micros, TIMESTAMP_TICK};

/// The copy follows after this time if the round-trip time is not known.
const WAIT_UNKNOWN: Duration = Duration::from_millis(50);

/// A repeated SYN that comes closer to our own SYN-ACK than this, or half a round trip, is a copy: the copy
/// of the SYN-ACK has answered it. No timer is that short.
const COPIES_MEET: Duration = Duration::from_millis(25);
/// Bytes of a SYN on the wire, about: what a copy takes from the allowance of redundancy.
const SYN_LEN: u32 = 60;

/// Where the copy is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum PlainCopy {
    /// There is none.
    #[default]
    Off,
    /// It is to follow the SYN after this time.
    After(Duration),
    /// It leaves at this time, unless an answer is there before.
    At(Instant),
    /// It leaves now.
    Due,
    /// It left at this time.
    Left(Instant),
}

impl PlainCopy {
    /// Whether a SYN that opens like this is insured, and for how long it is left alone.
    pub(crate) fn of(attempt: &OpenAttempt, connect: &FastOpenConnect) -> Self {
        let share = |srtt: Duration| {
            let wait = srtt.saturating_mul(u32::from(connect.plain_copy_percent.min(100))) / 100;
            // Closer ones could not be told apart by their timestamps.
            wait.max((TIMESTAMP_TICK * 2).into())
        };
        let wait = match attempt.mode {
            _ if connect.plain_copy_percent == 0 || !attempt.untried => return PlainCopy::Off,
            Mode::Data | Mode::DataNoCookie => attempt.srtt.map_or(WAIT_UNKNOWN, share),
            // The first contact of all is no reason to send every SYN twice.
            Mode::Request | Mode::CookieOnly => match attempt.srtt {
                Some(srtt) => share(srtt),
                None => return PlainCopy::Off,
            },
        };
        PlainCopy::After(wait)
    }

    /// Half a round trip, as far as it is known.
    pub(crate) fn half_of(srtt: Option<Duration>) -> Duration {
        srtt.map_or(WAIT_UNKNOWN, |srtt| srtt / 2)
    }

    /// The SYN left; answers by how much later its own timer begins to run.
    pub(crate) fn start(&mut self, now: Instant) -> Duration {
        let PlainCopy::After(wait) = *self else { return Duration::ZERO };
        *self = if wait.is_zero() { PlainCopy::Due } else { PlainCopy::At(now + wait) };
        wait
    }

    /// True once it left.
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
    /// When the copy leaves.
    pub(crate) fn plain_copy_timeout(&self) -> Option<Instant> {
        match self.handshake.syn.copy {
            PlainCopy::At(at) if matches!(self.state, State::SynSent | State::SynReceived) => Some(at),
            PlainCopy::At(_) | PlainCopy::Off | PlainCopy::After(_) | PlainCopy::Due | PlainCopy::Left(_) => {
                None
            }
        }
    }

    pub(crate) fn on_plain_copy_timeout(&mut self) {
        self.handshake.syn.copy = PlainCopy::Due;
    }

    /// The first SYN or SYN-ACK left with so many bytes of data; answers by how much later the timer of a SYN
    /// begins to run.
    pub(crate) fn start_copy(&mut self, data: u32, now: Instant) -> Duration {
        let insures = self.insures_syn_data();
        if self.config.handshake_copies.is_some() && !insures && !self.affords_syn_copy(data) {
            self.handshake.syn.copy.cancel();
        }
        if let (PlainCopy::After(wait), false) = (&self.handshake.syn.copy, insures) {
            self.handshake.syn.copy = PlainCopy::After(*wait.max(&self.planned_syn_gap()));
        }
        let later = self.handshake.syn.copy.start(now);
        if self.opens_fast() { later } else { Duration::ZERO }
    }

    /// IP bytes of a copy that is to leave, without its data.
    pub(crate) fn waiting_syn_copy(&self) -> u32 {
        match self.handshake.syn.copy {
            PlainCopy::At(_) | PlainCopy::Due if self.is_opening() => SYN_LEN,
            PlainCopy::At(_) | PlainCopy::Due | PlainCopy::Off | PlainCopy::After(_) | PlainCopy::Left(_) => {
                0
            }
        }
    }

    /// True if the copy is there for devices that swallow data on a SYN.
    fn insures_syn_data(&self) -> bool {
        let of = self.fast_client().map(|client| PlainCopy::of(&client.attempt, &client.connect));
        of.is_some_and(|copy| copy != PlainCopy::Off)
    }

    /// True if there is a copy's worth of allowance behind a first SYN or SYN-ACK with so many bytes of data,
    /// and the planner, if there is one, finds it well spent.
    fn affords_syn_copy(&self, data: u32) -> bool {
        let again = data > 0 && self.repeats_syn_data();
        let bytes = if again { SYN_LEN + data } else { SYN_LEN };
        self.tx.redundancy_left() >= bytes && self.plans_syn_copy(bytes, data > 0 && !again)
    }

    /// True if the copy of a SYN has the data and the cookie of the first.
    fn repeats_syn_data(&self) -> bool {
        let permitted = self.config.handshake_copies.is_some_and(|copies| copies.with_data);
        permitted && self.proven_syn_data().is_some()
    }

    pub(crate) fn choose_syn_copy(&self) -> Option<Choice> {
        (self.handshake.syn.copy == PlainCopy::Due).then_some(Choice::SynCopy)
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
            true => self.served_option(),
            false if self.repeats_syn_data() => self.syn_fast_open_option(),
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

    /// Bytes of data on the copy of the SYN that left.
    fn copied_syn_data(&self) -> u32 {
        self.proven_syn_data().filter(|_| self.repeats_syn_data()).unwrap_or(0)
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

    /// A repeated SYN in SYN-RECEIVED: the SYN-ACK was lost, or this is a copy. A retransmission has nothing
    /// of Corrective and Proactive in it, so that one which still offers them is a copy: its answer is the
    /// SYN-ACK as it was, and what was agreed on holds.
    pub(crate) fn on_repeated_syn(&mut self, syn: &Arrived<'_>, now: Instant) {
        let half_way = self.known_path().rtt.map_or(COPIES_MEET, |rtt| COPIES_MEET.max(rtt.srtt / 2));
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

    /// A reset answers the SYN. There are devices that refuse data on a SYN this way, so the first reset
    /// leaves the verdict to the copy, which leaves now if it has not; false if there is none to wait for.
    pub(crate) fn defers_reset_to_copy(&mut self) -> bool {
        if self.fast_client().is_none() {
            return false;
        }
        match self.handshake.syn.copy {
            PlainCopy::Off => return false,
            PlainCopy::After(_) | PlainCopy::At(_) => self.handshake.syn.copy = PlainCopy::Due,
            PlainCopy::Due | PlainCopy::Left(_) => {}
        }
        self.fast_client_mut().is_some_and(|client| !core::mem::replace(&mut client.reset, true))
    }

    /// True if the SYN-ACK answers the copy and not the SYN before it.
    pub(crate) fn answers_plain_copy(&self, syn_ack: &Arrived<'_>, now: Instant) -> bool {
        let Some(client) = self.fast_client() else { return false };
        let PlainCopy::Left(left) = self.handshake.syn.copy else { return false };
        if self.copied_syn_data() > 0 {
            return false;
        }
        let since = now.saturating_since(left);
        match (self.echo_rtt(syn_ack, now), client.attempt.srtt) {
            (Some(echoed), _) => echoed <= Micros::from(since) + TIMESTAMP_TICK,
            // Without timestamps: which of the two it is nearer to.
            (None, Some(srtt)) => since + left.saturating_since(self.handshake.opened) / 2 >= srtt,
            (None, None) => true,
        }
    }
}

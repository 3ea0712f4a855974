//! Corrective and Proactive on one connection: what SYN and SYN-ACK agree on, the option of every later
//! segment, and what the option of an arriving segment means (Gentle Aggression sections 5 and 6).
//!
//! The parts are in [`crate::mechanism`]; this file connects them. Without a mechanism that speaks the
//! option, a connection sends none and ignores those of the peer, with one exception: where the
//! handshake has shown one, a segment whose payload may be parity is dropped, since parity taken for data
//! would corrupt the stream.

use alloc::boxed::Box;

use brisk_wire::gentle::{R_FAIL, STOP};
use brisk_wire::options::kind;
use brisk_wire::{Flags, Gentle, OptionProfile, Options};

use crate::config::TcpConfig;
use crate::connection::arrive::Verdict;
use crate::connection::decision::SynOption;
use crate::connection::gentle::f1::Quarantine;
use crate::connection::gentle::parity::ParityTx;
use crate::connection::gentle::proactive::Proactive;
use crate::connection::gentle::repair::ParityRx;
use crate::connection::opening::Told;
use crate::connection::{Connection, Env, State};
use crate::mechanism::corrective::code::Code;
use crate::mechanism::signal::{News, Signals};
use crate::mechanism::{Agreed, GentleOff, GentleOutcome, Willing, accept};
use crate::outcome::{AckOutcome, Arrived, CongestionSignal, Dsack, DsackOf, Reaction, Repair};
use crate::time::{Instant, Micros};

pub(crate) mod f1;
pub(crate) mod parity;
pub(crate) mod plain_copy;
pub(crate) mod planner;
pub(crate) mod proactive;
pub(crate) mod repair;

/// Bytes of a data segment that a set of flags takes, padding included.
const FLAGS_LEN: u32 = 8;

/// What the handshake made of the option, and the mechanisms that came of it.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct GentleLayer {
    willing: Option<Willing>,
    /// The byte of our first SYN, or of our SYN-ACK.
    spoken: Option<u8>,
    /// An option was sent or received in the handshake.
    seen: bool,
    /// Our first SYN had the option; the SYN-ACK had one.
    pub(in crate::connection) offered: bool,
    pub(in crate::connection) answered: bool,
    /// What the memory of destinations has heard.
    pub(in crate::connection) told: Told,
    outcome: GentleOutcome,
    #[serde(skip)]
    pub(crate) active: Option<Box<Active>>,
    pub(in crate::connection) quarantine: Option<Quarantine>,
}

/// What runs on a connection that agreed on at least one of the two.
#[derive(Debug)]
pub(crate) struct Active {
    pub(crate) agreed: Agreed,
    pub(crate) signals: Signals,
    /// When the last copy left.
    pub(crate) copied: Option<Instant>,
    pub(crate) proactive: Option<Proactive>,
    /// F1: a segment after the handshake has shown that the peer speaks the option.
    pub(crate) confirmed: bool,
    /// Parity for the peer.
    pub(crate) tx: Option<ParityTx>,
    /// Parity of the peer.
    pub(crate) rx: Option<ParityRx>,
}

impl GentleLayer {
    pub(crate) fn new(config: &TcpConfig, repairs: bool) -> Self {
        // What was lost is what SACK leaves out: without it nothing could be repaired.
        let willing = Willing::of(&config.mechanisms).filter(|_| config.sack);
        let willing = if repairs { willing } else { willing.and_then(Willing::without_parity) };
        GentleLayer {
            willing,
            spoken: None,
            seen: false,
            offered: false,
            answered: false,
            told: Told::default(),
            outcome: GentleOutcome::Off(GentleOff::NotAsked),
            active: None,
            quarantine: None,
        }
    }

    /// What became of it.
    pub(crate) fn outcome(&self) -> GentleOutcome {
        self.outcome
    }

    /// What is agreed on and at work.
    pub(crate) fn agreed(&self) -> Option<Agreed> {
        self.active.as_ref().map(|active| active.agreed)
    }

    /// This destination does not take the option, or is not to get it this time.
    pub(crate) fn withhold(&mut self) {
        self.switch_off(GentleOff::Remembered);
    }

    /// True if the SYN of an active open will have the option, if there is room for it.
    pub(crate) fn is_willing(&self, timestamps: bool) -> bool {
        self.willing.is_some_and(|willing| willing.offer(timestamps).is_some())
    }

    /// What runs, if anything does.
    pub(crate) fn active(&mut self) -> Option<&mut Active> {
        self.active.as_deref_mut()
    }

    /// Both mechanisms end on this connection, for good.
    fn switch_off(&mut self, why: GentleOff) {
        self.outcome = GentleOutcome::Off(why);
        (self.active, self.willing, self.spoken) = (None, None, None);
    }
}

/// The handshake.
impl Connection {
    /// Returns what the SYN or SYN-ACK that leaves next says: only the first has the option. A retransmission must pass whatever
    /// dropped the first; the option is off then.
    pub(crate) fn syn_gentle_option(&self, now: Instant, profile: &OptionProfile) -> SynOption {
        if self.tx.handshake.sent > 0 {
            return if self.gentle.spoken.is_some() { SynOption::Withdrawn } else { SynOption::None };
        }
        let byte = if self.state == State::SynReceived {
            self.gentle.spoken
        } else {
            self.gentle.willing.and_then(|willing| willing.offer(self.config.timestamps))
        };
        match byte {
            None => SynOption::None,
            Some(byte) if fits(Gentle::Capability(byte), self.syn_options_with_cookie(now), profile) => {
                SynOption::Capability(byte)
            }
            Some(_) => SynOption::NoRoom,
        }
    }

    /// A SYN or SYN-ACK left.
    pub(crate) fn account_syn_option(&mut self, option: SynOption) {
        match option {
            SynOption::None => {}
            SynOption::Capability(byte) => {
                self.gentle.seen = true;
                self.gentle.spoken = Some(byte);
                if self.state != State::SynReceived {
                    self.gentle.offered = true;
                    self.gentle.outcome = GentleOutcome::Pending;
                }
            }
            SynOption::NoRoom => self.gentle.switch_off(GentleOff::NoRoom),
            SynOption::Withdrawn => self.stop_gentle(GentleOff::HandshakeRetransmitted),
        }
    }

    /// The option that our first SYN or SYN-ACK had, while it is in force.
    pub(crate) fn gentle_spoken(&self) -> Option<Gentle> {
        self.gentle.spoken.map(Gentle::Capability)
    }

    /// The peer's SYN or SYN-ACK arrived: its other options are agreed on already.
    pub(crate) fn agree_on_gentle(&mut self, syn: &Arrived<'_>) {
        let byte = match syn.options.gentle {
            Some(Gentle::Capability(byte)) => Some(byte),
            Some(
                Gentle::Short { .. }
                | Gentle::Part { .. }
                | Gentle::Fail { .. }
                | Gentle::EncF1 { .. }
                | Gentle::EncF2 { .. }
                | Gentle::EncRs { .. },
            )
            | None => None,
        };
        self.gentle.seen |= byte.is_some();
        self.gentle.answered = byte.is_some();
        let Some(willing) = self.gentle.willing else { return };
        let signed = syn.options.unknown.contains(kind::MD5) || syn.options.unknown.contains(kind::AO);
        let (answers, opens) = (syn.flags.contains(Flags::ACK), self.state == State::SynSent);
        let usable = self.negotiated.sack && !signed;
        let timestamps = self.negotiated.timestamps;
        match (opens, byte.filter(|_| usable)) {
            (true, _) if !answers => self.gentle.switch_off(GentleOff::Simultaneous),
            (_, None) => self.gentle.switch_off(GentleOff::NotAnswered),
            (true, Some(byte)) => {
                match self.gentle.spoken.and_then(|offered| accept(offered, byte, timestamps)) {
                    Some(agreed) => self.start_gentle(agreed),
                    None => self.gentle.switch_off(GentleOff::IllegalAnswer),
                }
            }
            (false, Some(byte)) => match willing.answer(byte, timestamps) {
                Some((answer, agreed)) => {
                    self.start_gentle(agreed);
                    self.gentle.spoken = Some(answer);
                }
                None => self.gentle.switch_off(GentleOff::NotAnswered),
            },
        }
    }
}

/// Beginning and end.
impl Connection {
    /// Both ends agreed.
    fn start_gentle(&mut self, agreed: Agreed) {
        let code = Code::from_encoding(agreed.encoding);
        let corrective = code.zip(self.config.mechanisms.corrective);
        let rmss = u32::from(self.tx.advertised_mss());
        let origin = self.irs + 1;
        let tx = corrective.map(|(code, config)| ParityTx::new(&agreed, code, config));
        let rx = corrective.map(|(code, config)| ParityRx::new(&agreed, code, &config, rmss, origin));
        self.tx.reserved = tx.as_ref().map_or(0, ParityTx::reserved);
        self.rx.queue.retain(rx.as_ref().map_or(0, ParityRx::history));
        self.gentle.outcome = GentleOutcome::On(agreed);
        let proactive = self.config.mechanisms.proactive.filter(|_| agreed.proactive);
        self.gentle.active = Some(Box::new(Active {
            agreed,
            signals: Signals::new(agreed.profile),
            copied: None,
            proactive: proactive.as_ref().map(Proactive::new),
            confirmed: false,
            tx,
            rx,
        }));
    }

    /// Neither mechanism runs any more on this connection.
    pub(crate) fn stop_gentle(&mut self, why: GentleOff) {
        self.gentle.switch_off(why);
        self.tx.reserved = 0;
        self.rx.queue.retain(0);
        self.tx.rack.hold(false, []);
    }

    /// The next deadline of what runs.
    pub(crate) fn gentle_timeout(&self) -> Option<Instant> {
        self.gentle.active.as_ref()?;
        [self.parity_timeout(), self.history_timeout(), self.overtaken_timeout()].into_iter().flatten().min()
    }

    /// Time passed.
    pub(crate) fn on_gentle_timeout(&mut self, now: Instant) {
        if self.gentle.active.is_some() {
            self.on_parity_timeout(now);
            self.on_history_timeout(now);
            self.on_overtaken_timeout(now);
        }
    }
}

/// Segments that leave.
impl Connection {
    /// The option of a segment that leaves now.
    pub(crate) fn gentle_option(&self) -> Option<Gentle> {
        let flags = self.gentle.active.as_ref()?.signals.flags();
        (flags != 0).then_some(Gentle::Short { flags }).or_else(|| self.idle_option())
    }

    /// Bytes that it takes of a data segment.
    pub(crate) fn gentle_option_len(&self) -> u32 {
        let marks = self.proactive().map_or(0, |proactive| proactive.copies.mark_len());
        if self.gentle_option().is_some() { FLAGS_LEN } else { marks }
    }

    /// What an acknowledgement alone has to say beside the flags: a failure, or STOP.
    pub(crate) fn failure_option(&self) -> Option<Gentle> {
        let signals = &self.gentle.active.as_ref()?.signals;
        let lost_len = signals.failure()?;
        Some(Gentle::Fail { flags: signals.flags() | R_FAIL, lost_len })
    }

    /// True if a failure must be told at once, on an acknowledgement of its own.
    pub(crate) fn owes_failure(&self) -> bool {
        let failure = self.gentle.active.as_ref().and_then(|active| active.signals.failure());
        failure.is_some_and(|lost_len| lost_len != STOP)
    }

    /// A segment with this option leaves.
    pub(crate) fn gentle_sent(&mut self, option: Option<Gentle>, now: Instant) {
        if let Some(active) = &mut self.gentle.active {
            active.signals.on_sent(option, now);
        }
    }
}

/// Segments that arrive.
impl Connection {
    /// Before anything else: parity is taken out of the way of the data path, and what might be parity is
    /// dropped as a whole.
    pub(crate) fn check_gentle(
        &mut self,
        segment: &Arrived<'_>,
        now: Instant,
        _env: &mut Env<'_>,
    ) -> Verdict {
        if !self.gentle.seen {
            return Verdict::Continue;
        }
        if self.check_f1(segment, now) == Verdict::Done {
            return Verdict::Done;
        }
        if segment.options.malformed_gentle {
            self.counters.gentle_dropped += 1;
            return Verdict::Done;
        }
        if segment.options.gentle.is_some_and(|option| option.is_encoded()) {
            self.on_parity(segment, now);
            return Verdict::Done;
        }
        self.check_late_original(segment);
        Verdict::Continue
    }

    /// What the flags of an acceptable segment say.
    pub(crate) fn read_gentle_signals(&mut self, segment: &Arrived<'_>, now: Instant) -> News {
        let Some(active) = &mut self.gentle.active else { return News::default() };
        let rto = self.tx.timeout();
        let srtt = self.tx.rtt.srtt();
        let expected = active.expects_reports(rto, now);
        let news = active.signals.on_segment(segment, expected, srtt, now);
        let reports = segment.options.gentle.and_then(|option| option.flags()).unwrap_or(0)
            & brisk_wire::gentle::R_SUCC;
        self.counters.gentle_spoofed += u64::from(reports != 0 && !expected);
        news
    }

    /// Reduces the window for a repair that is reported for the first time.
    pub(crate) fn answer_gentle_signals(&mut self, news: &News, ack: &AckOutcome, now: Instant) {
        let Some(active) = &self.gentle.active else { return };
        if news.repaired {
            let parity = active.tx.as_ref().is_some_and(ParityTx::expects_reports);
            let by = if parity { Repair::Parity } else { Repair::Copy };
            self.note_masked_original();
            let signal = CongestionSignal { ack: ack.ack, by, reaction: Reaction::Proportional };
            self.answer_masked_loss(signal, ack.undelivered_before, now);
        }
    }
}

/// Repairs of what was not lost.
impl Connection {
    /// A DSACK may say that the original of what was repaired came after all.
    pub(crate) fn refute_repairs(&mut self, news: &News, ack: &AckOutcome, now: Instant) {
        let Some(Dsack { range, of }) = ack.dsack.filter(|_| self.gentle.active.is_some()) else { return };
        match of {
            DsackOf::NeverSentTwice => self.refute_repair(range, now),
            DsackOf::Duplicate => self.note_copy_reported(news, range, now),
            DsackOf::Retransmit | DsackOf::TailLossProbe | DsackOf::Repaired => {}
        }
    }
}

/// F1: the flags of a parity segment count like those of any other.
impl Connection {
    pub(crate) fn take_flags_of_parity(&mut self, segment: &Arrived<'_>, now: Instant) {
        let news = self.read_gentle_signals(segment, now);
        if news.repaired {
            let undelivered =
                self.tx.scoreboard.outstanding().saturating_sub(self.tx.scoreboard.sacked_bytes());
            let signal =
                CongestionSignal { ack: segment.ack, by: Repair::Parity, reaction: Reaction::Proportional };
            self.answer_masked_loss(signal, undelivered, now);
        }
    }
}

impl Active {
    /// True if something left from here that the peer may have repaired a loss with.
    fn expects_reports(&self, rto: Micros, now: Instant) -> bool {
        let parity = self.tx.as_ref().is_some_and(ParityTx::expects_reports);
        parity || self.copied.is_some_and(|copied| Micros::between(copied, now) <= rto * 2)
    }
}

/// Whether the option has room on a SYN or SYN-ACK beside the others.
fn fits(option: Gentle, options: Options, profile: &OptionProfile) -> bool {
    let with = Options { gentle: Some(option), ..options };
    let mut area = arrayvec::ArrayVec::new();
    !with.emit_with(true, profile, &mut area).gentle
}

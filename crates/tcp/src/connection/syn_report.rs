//! Results of the options of the first SYN, for the memory of destinations ([`crate::mechanism::memory`]).

use crate::connection::{Connection, State};
use crate::error::CloseReason;
use crate::fast_open::SynAckClass;
use crate::fast_open::client::Mode;
use crate::mechanism::memory::{Answer, Opened};
use crate::mechanism::{GentleOff, GentleOutcome, ParityOff};

/// The report about the options of the first SYN.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SynReport {
    /// Number of dropped SYNs in a row that the memory of destinations knew of when this connection was
    /// opened.
    pub(crate) known_drops: u8,
    /// True if the answer to the SYN was reported.
    opened: bool,
    /// True if damage that the path did to later segments was reported.
    interference: bool,
}

impl Connection {
    /// Returns how the first SYN of an active open was answered; `None` while it is unknown.
    pub(crate) fn opened(&self) -> Option<Opened> {
        let by_us = matches!(self.closed, Some(CloseReason::Aborted | CloseReason::ListenerClosed));
        let (syn, gentle) = (&self.handshake.syn, &self.gentle);
        let unanswered = !self.handshake.is_complete();
        if !self.handshake.active || syn.sent == 0 || unanswered && (self.closed.is_none() || by_us) {
            return None;
        }
        let simultaneous = GentleOutcome::Off(GentleOff::Simultaneous);
        if gentle.outcome() == simultaneous || self.state == State::SynReceived {
            return None;
        }
        // True if the SYN-ACK may answer a plain SYN that followed the first.
        let is_later = match self.fast_open.syn_ack_class() {
            Some(SynAckClass::SynDrop | SynAckClass::ReqDrop) => true,
            Some(SynAckClass::NoData) | None => self.handshake.unanswered() > 0 && !gentle.answered,
            Some(
                SynAckClass::Accepted
                | SynAckClass::Partial
                | SynAckClass::SoftReject
                | SynAckClass::SoftNegative
                | SynAckClass::LateReject
                | SynAckClass::Granted
                | SynAckClass::NotSupported,
            ) => false,
        };
        let answer = match unanswered {
            true => Answer::Never,
            false if is_later => Answer::Later,
            false => Answer::First,
        };
        let sent = self.fast_open.first_syn().filter(|&(mode, data)| mode != Mode::DataNoCookie || data > 0);
        // If this SYN-ACK has the option, it answers a copy of the SYN that had the option but no cookie. The
        // option is not to blame.
        let had_gentle = gentle.offered && !(answer == Answer::Later && gentle.answered);
        let (fast_open, known_drops) = (sent.map(|(mode, _)| mode), self.syn_report.known_drops);
        Some(Opened { fast_open, gentle: had_gentle, answer, known_drops })
    }

    /// False if [`Connection::take_syn_report`] has certainly nothing to report.
    #[inline]
    pub(crate) fn owes_syn_report(&self) -> bool {
        let answered = self.handshake.is_complete() || self.closed.is_some();
        let SynReport { opened, interference, .. } = self.syn_report;
        self.handshake.active && (!opened && answered || !interference && self.gentle.answered)
    }

    /// Takes the report about the options of the first SYN: how it was answered, and whether the path has
    /// interfered later. Interference is the removal of the option of Corrective and Proactive, or rewritten
    /// payload.
    pub(crate) fn take_syn_report(&mut self) -> (Option<Opened>, bool) {
        let opened = if self.syn_report.opened { None } else { self.opened() };
        self.syn_report.opened |= opened.is_some();
        let of = &self.counters.parity;
        let interferes = of.tx_off == Some(ParityOff::Stripped)
            || of.rx_off == Some(ParityOff::Checksum)
            || self.gentle.outcome() == GentleOutcome::Off(GentleOff::Stripped);
        let is_new =
            interferes && !self.syn_report.interference && self.handshake.active && self.gentle.offered;
        self.syn_report.interference |= is_new;
        (opened, is_new)
    }
}

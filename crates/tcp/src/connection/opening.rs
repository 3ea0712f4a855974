//! Whether the path let the options of the first SYN pass, for the memory of destinations
//! ([`crate::mechanism::memory`]). What a SYN-ACK says of Fast Open alone is in
//! [`crate::connection::fast_open`].

use crate::connection::{Connection, State};
use crate::error::CloseReason;
use crate::fast_open::SynAckClass;
use crate::fast_open::client::Mode;
use crate::mechanism::memory::Opened;
use crate::mechanism::{GentleOff, GentleOutcome, ParityOff};

/// What has been told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Told {
    opened: bool,
    spoilt: bool,
}

impl Connection {
    /// True if the configuration wants the option of Corrective and Proactive on the SYN.
    pub(crate) fn wants_gentle(&self) -> bool {
        self.gentle.is_willing(self.config.timestamps)
    }

    /// The SYN leaves without the option of Corrective and Proactive, because of what is remembered.
    pub(crate) fn withhold_gentle(&mut self) {
        self.gentle.withhold();
    }

    /// What became of the first SYN of an active open; `None` as long as nobody knows.
    pub(crate) fn opened(&self) -> Option<Opened> {
        let by_us = matches!(self.closed, Some(CloseReason::Aborted | CloseReason::ListenerClosed));
        let unanswered = self.established.is_none();
        if !self.is_active || self.tx.handshake.sent == 0 || unanswered && (self.closed.is_none() || by_us) {
            return None;
        }
        let simultaneous = GentleOutcome::Off(GentleOff::Simultaneous);
        if self.gentle.outcome() == simultaneous || self.state == State::SynReceived {
            return None;
        }
        let swallowed = unanswered || self.first_syn_was_swallowed();
        let fast_open = self.fast_open_syn().is_some_and(|(mode, data)| match mode {
            Mode::Request | Mode::CookieOnly | Mode::Data => true,
            Mode::DataNoCookie => data > 0,
        });
        // A copy of the SYN may have had the option and be what was answered.
        let gentle = self.gentle.offered && !(swallowed && self.gentle.answered);
        Some(Opened { fast_open, gentle, swallowed })
    }

    /// The SYN-ACK is there and may answer a plain SYN that followed the first.
    fn first_syn_was_swallowed(&self) -> bool {
        let repeated = self.tx.handshake.timeouts + self.tx.handshake.early > 0;
        match self.syn_ack_class() {
            Some(SynAckClass::SynDrop | SynAckClass::ReqDrop) => true,
            Some(SynAckClass::NoData) | None => repeated && !self.gentle.answered,
            Some(
                SynAckClass::Accepted
                | SynAckClass::Partial
                | SynAckClass::SoftReject
                | SynAckClass::SoftNegative
                | SynAckClass::LateReject
                | SynAckClass::Granted
                | SynAckClass::NotSupported,
            ) => false,
        }
    }

    /// False if neither [`Connection::take_opened`] nor [`Connection::take_spoilt`] can have anything.
    pub(crate) fn may_have_gentle_news(&self) -> bool {
        let told = &self.gentle.told;
        let answered = self.established.is_some() || self.closed.is_some();
        self.is_active && (!told.opened && answered || !told.spoilt && self.gentle.answered)
    }

    /// As [`Connection::opened`], once.
    pub(crate) fn take_opened(&mut self) -> Option<Opened> {
        if self.gentle.told.opened {
            return None;
        }
        let opened = self.opened()?;
        self.gentle.told.opened = true;
        Some(opened)
    }

    /// True once, on an active open whose path removed the option from later segments or rewrote payload.
    pub(crate) fn take_spoilt(&mut self) -> bool {
        if self.gentle.told.spoilt || !self.is_active || !self.gentle.offered {
            return false;
        }
        let of = &self.counters.parity;
        self.gentle.told.spoilt = of.tx_off == Some(ParityOff::Stripped)
            || of.rx_off == Some(ParityOff::Checksum)
            || self.gentle.outcome() == GentleOutcome::Off(GentleOff::Stripped);
        self.gentle.told.spoilt
    }
}

//! What mechanisms may know of the sender.

use brisk_wire::SeqNum;

use super::Connection;
use super::sender::Sender;
use crate::mechanism::Mechanisms;
use crate::outcome::CongestionState;
use crate::time::{Instant, Micros};

/// What the mechanisms may know of the sender when a hook runs. It answers what it is asked: each mechanism looks at
/// something else, and most acknowledgements end with the first question.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    sender: &'a Sender,
    established: bool,
    sack: bool,
}

impl View<'_> {
    /// SND.UNA.
    pub fn una(&self) -> SeqNum {
        self.sender.scoreboard.una()
    }

    /// SND.NXT.
    pub fn nxt(&self) -> SeqNum {
        self.sender.scoreboard.nxt()
    }

    /// Bytes written by the application and not sent yet.
    pub fn unsent(&self) -> u32 {
        self.sender.unsent()
    }

    /// SND.WND, scaled.
    pub fn snd_wnd(&self) -> u32 {
        self.sender.window.snd_wnd()
    }

    /// Congestion window, bytes.
    pub fn cwnd(&self) -> u32 {
        self.sender.congestion.cwnd()
    }

    /// RFC 6675 pipe, bytes.
    pub fn pipe(&self) -> u32 {
        self.sender.scoreboard.pipe()
    }

    /// Segments outstanding.
    pub fn segments(&self) -> u32 {
        self.sender.scoreboard.segments()
    }

    /// Bytes reported by SACK.
    pub fn sacked(&self) -> u32 {
        self.sender.scoreboard.sacked_bytes()
    }

    /// Largest payload of one segment.
    pub fn mss(&self) -> u32 {
        self.sender.mss()
    }

    /// Smoothed round-trip time, if there is a sample.
    pub fn srtt(&self) -> Option<Micros> {
        self.sender.rtt.srtt()
    }

    /// When the retransmission timer fires; `None` if it is not running.
    pub fn rto_at(&self) -> Option<Instant> {
        self.sender.rto.deadline()
    }

    /// True while the reordering timer of loss detection is running.
    pub fn reordering_timer(&self) -> bool {
        self.sender.reordering_timeout().is_some()
    }

    /// Clock granularity of the driver: no timer is set to less.
    pub fn granularity(&self) -> Micros {
        self.sender.rtt.granularity()
    }

    /// True while lost data is being repaired.
    pub fn recovers(&self) -> bool {
        match self.recovery() {
            CongestionState::Recovery | CongestionState::Loss => true,
            CongestionState::Open | CongestionState::Disorder | CongestionState::Cwr => false,
        }
    }

    /// Recovery state.
    pub fn recovery(&self) -> CongestionState {
        self.sender.recovery.state()
    }

    /// True once the handshake is complete.
    pub fn established(&self) -> bool {
        self.established
    }

    /// True if both ends use SACK.
    pub fn sack(&self) -> bool {
        self.sack
    }
}

impl Connection {
    /// The mechanisms, and what they may know of the sender.
    pub(super) fn mechanisms_and_view(&mut self) -> (&mut Mechanisms, View<'_>) {
        let (established, sack) = (self.established.is_some(), self.negotiated.sack);
        (&mut self.mechanisms, View { sender: &self.tx, established, sack })
    }
}

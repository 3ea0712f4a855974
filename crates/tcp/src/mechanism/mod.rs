//! The seam of the aggressive mechanisms.
//!
//! A mechanism sees what was sent, what was acknowledged and what arrived, and only *asks*; the
//! connection sends. What may exceed the window is decided in one table,
//! `Budget::of` in `send/budget.rs`. Off means absent from the list: no branch, no
//! cost, byte-identical traffic. Adding a mechanism takes one file here, a variant of [`Active`], a line in
//! [`enabled`], one field in [`MechanismConfig`], one row of that table if it sends something new, and one option
//! in `brisk-wire` if it speaks on the wire.

use core::fmt::Debug;

use arrayvec::ArrayVec;
use brisk_wire::Options;

use crate::config::{MechanismConfig, Reactive};
use crate::connection::View;
use crate::outcome::{AckOutcome, Arrived, Ask, CongestionSignal, Rebuilt, Sent};
use crate::time::Instant;

mod capability;
pub mod corrective;
pub(crate) mod memory;
mod paper;
pub mod plan;
pub(crate) mod proactive;
pub(crate) mod signal;
mod tlp;

pub use capability::{Agreed, GentleOff, GentleOutcome, ParityOff, Profile};
pub(crate) use capability::{Willing, accept};
pub use corrective::encoder::{GroupPlan, ParityPlan};
pub use proactive::copies::CopiesOff;

/// Whether a mechanism stays on the list after the handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keep {
    /// The peer agreed, or none is needed.
    Yes,
    /// Leave the list: from now on the connection is as if the mechanism had never been there.
    No,
}

/// Which handshake segment is being built.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Offer<'a> {
    /// Our SYN.
    Syn,
    /// Our SYN-ACK, answering a SYN with these options.
    SynAck(&'a Options),
}

/// A mechanism of a connection. Every hook has a default that does nothing.
pub trait Mechanism: Debug + Send {
    /// The name that operators know it by.
    fn name(&self) -> &'static str;

    /// Puts what it has to say into the options of a SYN or SYN-ACK.
    fn offer(&mut self, _on: Offer<'_>, _options: &mut Options) {}

    /// Hears what the peer answered once the handshake is complete.
    fn negotiated(&mut self, _peer: &Options) -> Keep {
        Keep::Yes
    }

    /// A transmission left.
    fn on_sent(&mut self, _sent: &Sent, _view: &View<'_>, _now: Instant) {}

    /// Returns the loss that an acknowledgement shows to be repaired. Asked before the acknowledgement changes recovery state
    /// and congestion window, so that the reduction starts from the window in which the loss happened.
    fn masked_loss(&mut self, _ack: &AckOutcome, _view: &View<'_>) -> Option<CongestionSignal> {
        None
    }

    /// An acknowledgement was processed.
    fn on_acked(&mut self, _ack: &AckOutcome, _view: &View<'_>, _now: Instant) {}

    /// A segment arrived; the mechanism may rebuild another from it. Stands before the assembler.
    fn on_arrived(&mut self, _segment: &Arrived<'_>, _now: Instant) -> Option<Rebuilt> {
        None
    }

    /// When it wants to be woken.
    fn next_timeout(&self) -> Option<Instant> {
        None
    }

    /// True while its deadline stands in for that of the retransmission timer, which does not fire
    /// meanwhile and starts anew when the deadline has passed (RFC 8985 section 8: the timers are
    /// mutually exclusive).
    fn stands_for_rto(&self) -> bool {
        false
    }

    /// Its time has come. A mechanism that is woken late acts as of its own deadline.
    fn on_timeout(&mut self, _view: &View<'_>, _now: Instant) {}

    /// Whether it asks for something now.
    fn asks(&self) -> bool {
        false
    }

    /// What it asks to send now. Asked until it answers `None`, if [`Mechanism::asks`]; a refused ask is dropped.
    fn poll(&mut self, _view: &View<'_>) -> Option<Ask> {
        None
    }
}

/// One of the mechanisms, in place: a connection is made and parked with all that it knows.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub enum Active {
    /// Tail loss probes of RFC 8985.
    Tlp(tlp::Tlp),
    /// Reactive as in the paper.
    Paper(paper::Paper),
}

/// The mechanisms of a connection, in the order in which their hooks run.
pub type Mechanisms = ArrayVec<Active, 1>;

/// The mechanisms that a configuration switches on.
pub fn enabled(config: &MechanismConfig) -> Mechanisms {
    let MechanismConfig { reactive, corrective: _, proactive: _, planner: _ } = config;
    let reactive = match reactive {
        Reactive::Off => None,
        Reactive::Paper(paper) => Some(Active::Paper(paper::Paper::new(paper))),
        Reactive::RackTlp(rack_tlp) => Some(Active::Tlp(tlp::Tlp::new(rack_tlp))),
    };
    reactive.into_iter().collect()
}

/// What the mechanism that is there says to `$call`.
macro_rules! of {
    ($self:ident, $mechanism:ident => $call:expr) => {
        match $self {
            Active::Tlp($mechanism) => $call,
            Active::Paper($mechanism) => $call,
        }
    };
}

impl Mechanism for Active {
    fn name(&self) -> &'static str {
        of!(self, mechanism => mechanism.name())
    }

    fn offer(&mut self, on: Offer<'_>, options: &mut Options) {
        of!(self, mechanism => mechanism.offer(on, options));
    }

    fn negotiated(&mut self, peer: &Options) -> Keep {
        of!(self, mechanism => mechanism.negotiated(peer))
    }

    fn on_sent(&mut self, sent: &Sent, view: &View<'_>, now: Instant) {
        of!(self, mechanism => mechanism.on_sent(sent, view, now));
    }

    fn masked_loss(&mut self, ack: &AckOutcome, view: &View<'_>) -> Option<CongestionSignal> {
        of!(self, mechanism => mechanism.masked_loss(ack, view))
    }

    fn on_acked(&mut self, ack: &AckOutcome, view: &View<'_>, now: Instant) {
        of!(self, mechanism => mechanism.on_acked(ack, view, now));
    }

    fn on_arrived(&mut self, segment: &Arrived<'_>, now: Instant) -> Option<Rebuilt> {
        of!(self, mechanism => mechanism.on_arrived(segment, now))
    }

    fn next_timeout(&self) -> Option<Instant> {
        of!(self, mechanism => mechanism.next_timeout())
    }

    fn stands_for_rto(&self) -> bool {
        of!(self, mechanism => mechanism.stands_for_rto())
    }

    fn on_timeout(&mut self, view: &View<'_>, now: Instant) {
        of!(self, mechanism => mechanism.on_timeout(view, now));
    }

    fn asks(&self) -> bool {
        of!(self, mechanism => mechanism.asks())
    }

    fn poll(&mut self, view: &View<'_>) -> Option<Ask> {
        of!(self, mechanism => mechanism.poll(view))
    }
}

//! The values of a decision: the [turns](Turn) in which kinds of segments may leave, the [`Step`] that is
//! decided in a turn, the [`Choice`] with all that the build and the accounting need, and the [control
//! segments](Control) that wait.

use arrayvec::ArrayVec;
use brisk_wire::{Gentle, SeqNum};

use crate::mechanism::DueParity;
use crate::on_demand::{Initial, OnDemand};
use crate::outcome::Origin;
use crate::send::push::BurstPush;
use crate::seq_ranges::SeqRange;

/// A kind of segments that may leave. [`Connection::turns`](crate::connection::Connection::turns) has their
/// order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    /// A control segment.
    Control,
    /// The SYN or the SYN-ACK.
    Syn,
    /// A copy of it.
    SynCopy,
    /// Data behind the SYN, before its answer.
    AfterSyn,
    /// A failure of Corrective that the peer must hear of.
    Failure,
    /// Copies of Proactive.
    Copies,
    /// Lost data.
    Lost,
    /// A tail loss probe.
    TailLossProbe,
    /// Parity that is due, and the acknowledgement that follows it.
    Parity,
    /// A path-MTU probe, which is made of new data.
    MtuProbe,
    /// New data.
    New,
    /// Parity that waits for nothing but the end of the burst.
    ParityBehindBurst,
    /// An acknowledgement alone.
    Ack,
}

/// The decision in a turn.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// This segment leaves.
    Send(Choice),
    /// This has to be done first. The same turn decides again.
    Prepare(Change),
    /// Nothing leaves in this turn. The change to make, if there is one.
    Skip(Option<Change>),
}

impl Step {
    /// The choice leaves, if there is one.
    pub(crate) fn send(choice: Option<Choice>) -> Step {
        choice.map_or(Step::Skip(None), Step::Send)
    }
}

/// A change of state that a decision asks for. It is made in `account`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// The next copy is needless, or will never be permitted.
    DropCopy,
    /// Pacing (`paced`) or the congestion window holds the next copy back.
    LimitCopy { paced: bool },
    /// The open group of the encoder is complete.
    CloseGroup,
    /// The encoder takes up the next group whose parity is due.
    TakeGroup,
    /// The allowance will never permit the next parity.
    DropParity,
    /// Pacing holds parity back.
    PaceParity,
    /// Pacing (`paced`) or the congestion window holds lost data back.
    LimitLost { paced: bool },
    /// New data leaves after an idle time: the congestion window becomes this.
    RestartWindow(u32),
    /// A FIN leaves after an idle time: the congestion window becomes this.
    DecayWindow(u32),
    /// The report that lowered the path MTU is no longer believed.
    RaiseMtu,
    /// The search for the path MTU begins again.
    SearchMtu,
    /// A flight begins, and has no plan.
    PlanFlight,
    /// Pacing (`paced`) or the congestion window holds new data back.
    LimitNew { paced: bool },
    /// No more new data leaves: it is all sent, or something else than the congestion window holds the rest
    /// back. `corked`: the cork.
    EndBurst { corked: bool },
}

/// The next segment to send.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Choice {
    /// A control segment.
    Control(Control),
    /// The SYN, or the SYN-ACK, and what it says of Corrective and Proactive.
    Syn(SynOption),
    /// A copy of the SYN or of the SYN-ACK.
    SynCopy,
    /// Data that follows the SYN before its answer.
    AfterSyn(SeqRange),
    /// Data, a FIN, or both.
    Data(Data),
    /// The next of the copies that wait, of this range.
    Copy(SeqRange),
    /// A parity segment.
    Parity(DueParity),
    /// An acknowledgement that shows how far the sequence numbers reach, and says nothing else.
    TailAck,
    /// An acknowledgement alone. `is_tail`: one that was owed serves as [`Choice::TailAck`].
    Ack { is_tail: bool },
}

/// A range of the send queue that leaves in one transmission.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Data {
    /// Sequence numbers, the FIN's included.
    pub(crate) range: SeqRange,
    /// Payload bytes of each wire segment.
    pub(crate) segment_size: u32,
    /// Why.
    pub(crate) origin: Origin,
    /// The range ends with our FIN.
    pub(crate) fin: bool,
    /// It is a path-MTU probe: larger than the MSS in force.
    pub(crate) mtu_probe: bool,
    /// Each of several segments is followed by its copy as it leaves.
    pub(crate) twice: bool,
    /// The burst that it belongs to, where bursts end with PSH.
    pub(crate) burst: Option<BurstPush>,
}

impl Data {
    /// Returns a range without a FIN, in segments of `segment_size` bytes of payload.
    pub(crate) fn new(range: SeqRange, segment_size: u32, origin: Origin) -> Data {
        Data { range, segment_size, origin, fin: false, mtu_probe: false, twice: false, burst: None }
    }

    /// Payload bytes, without the FIN.
    pub(crate) fn payload_len(&self) -> u32 {
        self.range.len() - u32::from(self.fin)
    }
}

/// The option of a SYN or SYN-ACK about Corrective and Proactive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SynOption {
    /// Nothing.
    None,
    /// The option, with this byte.
    Capability(u8),
    /// Nothing, since the option does not fit beside the others.
    NoRoom,
    /// Nothing any more: this is a retransmission.
    Withdrawn,
}

impl SynOption {
    pub(crate) fn option(self) -> Option<Gentle> {
        match self {
            SynOption::Capability(byte) => Some(Gentle::Capability(byte)),
            SynOption::None | SynOption::NoRoom | SynOption::Withdrawn => None,
        }
    }
}

/// A segment that carries neither data nor a question of windows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Control {
    /// A challenge ACK (RFC 5961), or the plain answer to a segment outside the window.
    ChallengeAck,
    /// `<SEQ=seq><CTL=RST>`: refuses an acknowledgement of something never sent.
    Reset(SeqNum),
    /// `<SEQ=SND.NXT><ACK=RCV.NXT><CTL=RST,ACK>`: aborts.
    Abort,
    /// An empty segment one below SND.UNA: keepalive or zero-window probe.
    EmptyProbe,
}

/// The control segments that wait to be sent. A few at most: a further one of a kind that already
/// waits would tell the peer nothing new.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Outbox {
    waiting: OnDemand<WaitingControls>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct WaitingControls(ArrayVec<Control, 4>);

impl Initial for WaitingControls {
    const INITIAL: WaitingControls = WaitingControls(ArrayVec::new_const());
    const SHARED: &'static WaitingControls = &Self::INITIAL;
}

impl Outbox {
    /// Queues `control` unless the same one waits already or the outbox is full.
    pub(crate) fn push(&mut self, control: Control) {
        let WaitingControls(waiting) = &mut *self.waiting;
        if !waiting.contains(&control) && !waiting.is_full() {
            waiting.push(control);
        }
    }

    /// Returns the oldest.
    pub(crate) fn first(&self) -> Option<Control> {
        self.waiting.0.first().copied()
    }

    /// Takes the oldest.
    pub(crate) fn pop(&mut self) -> Option<Control> {
        self.waiting.get_mut()?.0.pop_at(0)
    }

    /// True if nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.0.is_empty()
    }

    pub(crate) fn release_memory(&mut self) {
        self.waiting.release();
    }

    /// Throws away what waits.
    pub(crate) fn clear(&mut self) {
        self.waiting = OnDemand::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outbox_is_bounded_and_says_nothing_twice() {
        let mut outbox = Outbox::default();
        outbox.push(Control::ChallengeAck);
        outbox.push(Control::ChallengeAck);
        for seq in 0..10 {
            outbox.push(Control::Reset(SeqNum(seq)));
        }
        assert_eq!(outbox.pop(), Some(Control::ChallengeAck));
        assert_eq!(outbox.pop(), Some(Control::Reset(SeqNum(0))));
        outbox.pop();
        outbox.pop();
        assert_eq!(outbox.pop(), None);
    }
}

//! The types of a decision. A [turn](Turn) names a kind of segment, and a [`Step`] is the decision in a turn.
//! A [`Choice`] describes the segment for building and accounting.

use brisk_wire::Gentle;

use crate::connection::outbox::Control;
use crate::mechanism::DueParity;
use crate::outcome::Origin;
use crate::send::push::BurstPush;
use crate::seq_ranges::SeqRange;

/// A kind of segment that may leave. [`Connection::turns`](crate::connection::Connection::turns) orders them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    /// A control segment.
    Control,
    /// The SYN or the SYN-ACK.
    Syn,
    /// A copy of the SYN or SYN-ACK.
    SynCopy,
    /// Data after the SYN, before the SYN-ACK.
    AfterSyn,
    /// A failure of Corrective that must be reported to the peer.
    Failure,
    /// Copies of Proactive.
    Copies,
    /// Lost data.
    Lost,
    TailLossProbe,
    /// Parity that is due, and the acknowledgement that follows it.
    Parity,
    /// A path-MTU probe, which is made of new data.
    MtuProbe,
    /// New data.
    New,
    /// Parity that only waits for the end of the burst.
    ParityBehindBurst,
    /// An acknowledgement alone.
    Ack,
}

/// The decision in a turn.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// This segment leaves.
    Send(Choice),
    /// This change must be applied first. Then the same turn decides again.
    Prepare(Change),
    /// Nothing leaves in this turn; the change records the reason, if necessary.
    Skip(Option<Change>),
}

impl Step {
    /// Returns a step that sends the choice, if there is one.
    pub(crate) fn send(choice: Option<Choice>) -> Step {
        choice.map_or(Step::Skip(None), Step::Send)
    }
}

/// A change of state that a decision requests. `account` applies it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// Drop the next copy: it is needless, or will never be permitted.
    DropCopy,
    /// Pacing holds the next copy back.
    PaceCopy,
    /// Close the open group of the encoder.
    CloseGroup,
    /// Let the encoder take the next group whose parity is due.
    TakeGroup,
    /// Drop the next parity: the allowance will never permit it.
    DropParity,
    /// Pacing holds parity back.
    PaceParity,
    /// Pacing (`paced`) or the congestion window holds lost data back.
    LimitLost { paced: bool },
    /// New data leaves after an idle time: set the congestion window to this.
    RestartWindow(u32),
    /// A FIN leaves after an idle time: set the congestion window to this.
    DecayWindow(u32),
    /// Discard the expired report or result that lowered the path MTU.
    RaiseMtu,
    /// Start the search for the path MTU again.
    SearchMtu,
    /// Make a plan for the flight that begins.
    PlanFlight,
    /// Pacing (`paced`) or the congestion window holds new data back.
    LimitNew { paced: bool },
    /// No more new data leaves: all is sent, or a limit other than the congestion window holds the rest back.
    /// `corked`: that limit is the cork.
    EndBurst { corked: bool },
}

/// The next segment to send.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Choice {
    /// A control segment.
    Control(Control),
    /// The SYN or SYN-ACK, and its option of Corrective and Proactive.
    Syn(SynOption),
    /// A copy of the SYN or of the SYN-ACK.
    SynCopy,
    /// Data that follows the SYN before its answer.
    AfterSyn(SeqRange),
    /// Data, a FIN, or both.
    Data(Data),
    /// The next waiting copy, which repeats this range.
    Copy(SeqRange),
    /// A parity segment.
    Parity(DueParity),
    /// The tail ACK: it shows devices on the path where the data ends.
    TailAck,
    /// An acknowledgement alone. `is_tail`: it was owed anyway and serves as [`Choice::TailAck`].
    Ack { is_tail: bool },
}

/// A range of the send queue that leaves in one transmission.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Data {
    /// Sequence numbers, the FIN's included.
    pub(crate) range: SeqRange,
    /// Payload bytes of each wire segment.
    pub(crate) segment_size: u32,
    /// Reason of the transmission.
    pub(crate) origin: Origin,
    /// True if the range ends with our FIN.
    pub(crate) fin: bool,
    /// True for a path-MTU probe, which is larger than the MSS in force.
    pub(crate) mtu_probe: bool,
    /// True if each of several segments is followed by its copy.
    pub(crate) twice: bool,
    /// The burst that the range extends, if bursts end with PSH.
    pub(crate) burst: Option<BurstPush>,
}

impl Data {
    /// Returns a range without a FIN, in segments of `segment_size` bytes of payload.
    pub(crate) fn new(range: SeqRange, segment_size: u32, origin: Origin) -> Data {
        Data { range, segment_size, origin, fin: false, mtu_probe: false, twice: false, burst: None }
    }

    /// Returns the payload bytes, without the FIN.
    pub(crate) fn payload_len(&self) -> u32 {
        self.range.len() - u32::from(self.fin)
    }
}

/// The option of Corrective and Proactive on a SYN or SYN-ACK.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SynOption {
    /// No option.
    None,
    /// The option, with this byte.
    Capability(u8),
    /// No option, since it does not fit with the others.
    NoRoom,
    /// No option any more: this is a retransmission.
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

//! What leaves next: a value that says all that building the segment and accounting for it need.

use brisk_wire::Gentle;

use crate::connection::control::Control;
use crate::mechanism::ParityPlan;
use crate::mechanism::plan::{Flight, Losses, Plan, Protection};
use crate::outcome::Origin;
use crate::send::push::BurstPush;
use crate::seq_ranges::SeqRange;

/// What happens next.
#[derive(Debug)]
pub(crate) enum Decision {
    /// This segment leaves.
    Send(Choice, Findings),
    /// This changes, and then it is decided again.
    Prepare(Step, Findings),
    /// Nothing leaves now.
    Wait(Findings),
}

/// What leaves next, or what has to change first; `None`: nothing.
pub(crate) type Next = Option<Result<Choice, Step>>;

/// What has to change before a segment can be chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// After a silence the congestion window begins with this many bytes.
    Restart(u32),
    /// What a router said of the path MTU is old: the larger size is tried again.
    RaiseMtu,
    /// So many of the copies that wait are not needed, or not permitted, any more.
    DropCopies(usize),
    /// A group of segments is due for its parity.
    PrepareParity,
    /// The burst is over: its group gets parity without a delay.
    EndGroup,
}

/// What the decision found out about that which does not leave.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Findings {
    /// New data was considered and does not follow; true if the congestion window or pacing holds it.
    pub(crate) burst_end: Option<bool>,
    /// Pacing holds something.
    pub(crate) paced: bool,
    /// The cork holds a partial segment.
    pub(crate) corked: bool,
    /// Copies were considered.
    pub(crate) copies: Option<CopyFindings>,
    /// The allowance does not take the next parity.
    pub(crate) parity_refused: bool,
    /// The search for the path MTU begins again with the next segment.
    pub(crate) search_mtu: bool,
    /// The plan of the flight that begins.
    pub(crate) plan: Option<Planned>,
}

/// What was found out about the copies that wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CopyFindings {
    /// Further originals leave first.
    pub(crate) gathering: bool,
    /// The budget holds the next copy, though it is due.
    pub(crate) held: bool,
}

/// What leaves next.
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
    Parity(ParityPlan),
    /// An acknowledgement that shows how far the sequence numbers reach; one that is not owed says nothing else.
    Companion { owed: bool },
    /// An acknowledgement alone.
    Ack(Option<Gentle>),
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
    /// Payload bytes, without the FIN.
    pub(crate) fn payload_len(&self) -> u32 {
        self.range.len() - u32::from(self.fin)
    }
}

/// What a SYN or SYN-ACK says of Corrective and Proactive.
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

/// The plan of a flight, and what it was made from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planned {
    pub(crate) range: SeqRange,
    pub(crate) flight: Flight,
    pub(crate) losses: Losses,
    pub(crate) plan: Plan,
}

impl Planned {
    /// True if it names segments to be copied.
    pub(crate) fn copies(&self) -> bool {
        match self.plan.protection {
            Protection::Copies { .. } => true,
            Protection::Nothing | Protection::Parity { .. } => false,
        }
    }
}

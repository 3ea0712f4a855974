//! The next segment to send, as a value with all that the build and the accounting need.

use brisk_wire::Gentle;

use crate::connection::control::Control;
use crate::mechanism::ParityPlan;
use crate::outcome::Origin;
use crate::send::push::BurstPush;
use crate::seq_ranges::SeqRange;

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
    Parity(ParityPlan),
    /// An acknowledgement that shows how far the sequence numbers reach, and says nothing else.
    TailAck,
    /// An acknowledgement alone.
    Ack,
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

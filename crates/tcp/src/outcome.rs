//! The values that the parts of a connection exchange.
//!
//! Parts take values and return values; no part holds a reference to another. An arriving segment becomes an
//! [`Arrived`]. The scoreboard returns an `AckOutcome` for its acknowledgement. Loss detection turns that
//! into a `LossOutcome`, and recovery turns both into an [`Episode`]. Every part receives a `Sent` for a
//! transmission.

use alloc::vec::Vec;

use brisk_wire::{Ecn, Flags, Options, SeqNum};
use smallvec::SmallVec;

use crate::seq_ranges::SeqRange;
use crate::time::{Instant, Micros};

/// Bytes that the option of a parity segment adds to the headers of data.
pub(crate) const PARITY_OPTION: u32 = 16;

/// Reason why a segment was sent, which the budget (`send::budget`) and the scoreboard use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Origin {
    /// A segment without data, SYN or FIN.
    Ack,
    /// Data, SYN or FIN sent for the first time.
    New,
    /// A retransmission of data that was declared lost.
    Retransmit,
    /// A tail loss probe (RFC 8985 section 7; Gentle Aggression section 4).
    TailLossProbe,
    /// A Proactive copy (Gentle Aggression section 6).
    Duplicate,
    /// A Corrective parity segment (Gentle Aggression section 5).
    Parity,
}

/// The properties of the origins. A new origin needs entries here and in the table of `send::budget`.
impl Origin {
    /// True for redundancy, which spends the allowance; all other packets increase it.
    pub(crate) fn is_redundancy(self) -> bool {
        match self {
            Origin::Duplicate | Origin::Parity => true,
            Origin::Ack | Origin::New | Origin::Retransmit | Origin::TailLossProbe => false,
        }
    }

    /// Returns the cause of a DSACK for data that this origin sends again; `None` if the scoreboard does not
    /// record the origin.
    pub(crate) fn dsack_of(self) -> Option<DsackOf> {
        match self {
            Origin::Ack | Origin::Parity => None,
            Origin::New | Origin::Retransmit => Some(DsackOf::Retransmit),
            Origin::TailLossProbe => Some(DsackOf::TailLossProbe),
            Origin::Duplicate => Some(DsackOf::Duplicate),
        }
    }
}

/// A segment as the mechanisms and the receiver see it: header fields and payload, without addresses.
#[derive(Clone, Copy, Debug)]
pub struct Arrived<'a> {
    /// SEG.SEQ.
    pub seq: SeqNum,
    /// SEG.ACK, meaningful if `flags` has ACK.
    pub ack: SeqNum,
    /// Control bits, reserved bits included.
    pub flags: Flags,
    /// SEG.WND as on the wire, before scaling.
    pub window: u16,
    /// SEG.UP, meaningful if `flags` has URG.
    pub urgent: u16,
    /// The options of the segment.
    pub options: &'a Options,
    /// The payload.
    pub payload: &'a [u8],
    /// The ECN field of the IP header.
    pub ecn: Ecn,
    /// Payload bytes of each wire segment if a device coalesced several into this one. Else the payload
    /// length.
    pub segment_size: usize,
}

impl Arrived<'_> {
    /// Returns SEG.LEN of RFC 9293: payload bytes, plus one each for SYN and FIN.
    pub fn len(&self) -> u32 {
        self.payload.len() as u32
            + u32::from(self.flags.contains(Flags::SYN))
            + u32::from(self.flags.contains(Flags::FIN))
    }

    /// True if the segment has no sequence space.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the sequence number after the last one of the segment.
    pub fn end(&self) -> SeqNum {
        self.seq + self.len()
    }
}

/// A segment that a mechanism rebuilt from redundancy. The receiver processes it like an arrival.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rebuilt {
    /// First sequence number of the payload.
    pub seq: SeqNum,
    /// The repaired bytes.
    pub payload: Vec<u8>,
    /// True if a FIN follows the last byte.
    pub fin: bool,
}

/// A transmitted segment that an acknowledgement newly reports as delivered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Delivered {
    /// The sequence range of the segment.
    pub(crate) range: SeqRange,
    /// Time at which it was last sent.
    pub(crate) sent_at: Instant,
    /// True if it was sent more than once, if a copy left later, or if the receiver reneged on it. Its round
    /// trip is then ambiguous.
    pub(crate) retransmitted: bool,
    /// True if a copy left without an agreement.
    pub(crate) copied: bool,
    /// Reason of the last transmission.
    pub(crate) origin: Origin,
}

/// Cause of a DSACK block (RFC 2883), derived from the retransmissions on the scoreboard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DsackOf {
    /// A range that was retransmitted. The retransmission was not needed.
    Retransmit,
    /// A range that a tail loss probe repeated.
    TailLossProbe,
    /// A range of which a Proactive copy was sent.
    Duplicate,
    /// A range that was never sent twice: the network duplicated it. It does not cause an undo.
    NeverSentTwice,
    /// A range that was retransmitted although redundancy repaired it. The original was lost nevertheless, so
    /// it does not cause an undo.
    Repaired,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Dsack {
    pub(crate) range: SeqRange,
    /// The transmission that was duplicated.
    pub(crate) of: DsackOf,
    /// Bytes of the range that were sent more than once and not reported before.
    pub(crate) sent_twice: u32,
    /// True if its first segment had been reported before, was sent more than once, and is still outstanding.
    /// Then one of the two transmissions was late.
    pub(crate) reported_before: bool,
}

/// Changes of the scoreboard by an acknowledgement. Byte counts include SYN and FIN as one each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct AckOutcome {
    /// Arrival time of the acknowledgement.
    pub(crate) at: Instant,
    /// SEG.ACK.
    pub(crate) ack: SeqNum,
    /// SND.UNA before this acknowledgement.
    pub(crate) una_before: SeqNum,
    /// Bytes by which SND.UNA advanced; 0 for a duplicate.
    pub(crate) advanced: u32,
    /// Bytes newly reported by SACK blocks, above the new SND.UNA.
    pub(crate) newly_sacked: u32,
    /// Bytes newly known to be delivered: acknowledged cumulatively and not sacked before, or newly sacked.
    pub(crate) delivered_bytes: u32,
    /// Number of segments in `delivered_bytes`. Without SACK each duplicate acknowledgement counts as one
    /// segment. That segment is not counted again when it is acknowledged.
    pub(crate) delivered_segments: u32,
    /// Segments in `delivered_bytes`, in the order of their last transmission. Without SACK only acknowledged
    /// ones.
    pub(crate) delivered: SmallVec<[Delivered; 6]>,
    /// Bytes in flight (RFC 6675 pipe) before the acknowledgement was processed.
    pub(crate) pipe_before: u32,
    /// SND.NXT - SND.UNA less the sacked bytes, both before the acknowledgement: RecoverFS of RFC 9937.
    pub(crate) undelivered_before: u32,
    /// A round-trip sample that satisfies Karn's rule, if the acknowledgement gives one.
    pub(crate) rtt: Option<Micros>,
    /// The time since the transmission whose timestamp the acknowledgement echoes, in ticks of the timestamp
    /// clock. `None` without timestamps. It distinguishes an original from its retransmission.
    pub(crate) echoed_rtt: Option<Micros>,
    /// A DSACK block, if the acknowledgement carried one.
    pub(crate) dsack: Option<Dsack>,
    /// RFC 5681 duplicate acknowledgement: nothing advanced, no data, window unchanged, data outstanding.
    pub(crate) duplicate: bool,
    /// True if the segment is only an acknowledgement: no data, window unchanged.
    pub(crate) bare: bool,
    /// True if the peer echoes congestion experienced (ECE, RFC 3168).
    pub(crate) ece: bool,
    /// True if SND.UNA stopped at a segment that SACK had reported: the receiver reneged.
    pub(crate) reneged: bool,
    /// True if a repair by redundancy is reported for the first time. A later segment may have rebuilt data
    /// delivered now, so times prove nothing.
    pub(crate) repaired: bool,
    /// True if the peer reports a repair, for the first time or again. Data delivered late may then have been
    /// rebuilt rather than reordered.
    pub(crate) reports_repair: bool,
}

impl AckOutcome {
    /// Returns the bytes that left the path a second time. An unnecessary retransmission was delivered too,
    /// so it permits as much new data as the original (packet conservation; Linux: the same).
    pub(crate) fn repeated_bytes(&self) -> u32 {
        let repeated = self.dsack.filter(|dsack| match dsack.of {
            DsackOf::Retransmit | DsackOf::TailLossProbe => true,
            DsackOf::Duplicate | DsackOf::NeverSentTwice | DsackOf::Repaired => false,
        });
        repeated.map_or(0, |dsack| dsack.range.len())
    }

    /// Withholds the round-trip samples of an acknowledgement that reports a repair.
    pub(crate) fn withhold_times(&mut self) {
        self.repaired = true;
        (self.rtt, self.echoed_rtt) = (None, None);
    }
}

/// Evidence that a reduction of the window was spurious.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum UndoCause {
    /// Every retransmission was reported as a duplicate (RFC 3708).
    Dsack,
    /// An echoed timestamp is older than the first retransmission (RFC 3522).
    Eifel,
    /// After a timeout, data that was never sent again was delivered (RFC 5682).
    Frto,
}

/// Rule by which data was declared lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LossCause {
    /// RACK: the data was sent sufficiently before data that was delivered (RFC 8985 section 6.2).
    Rack,
    /// SACK reported three segments above the lost data (RFC 6675).
    DupThresh,
    /// The highest segment that SACK reported is at least three segments above the lost data (FACK).
    Fack,
    /// Few segments are outstanding, and SACK reported a segment above the lost data (RFC 5827).
    EarlyRetransmit,
    /// Three duplicate acknowledgements on a connection without SACK (RFC 5681).
    DupAcks,
    /// The retransmission timeout.
    Rto,
    /// A partial acknowledgement in recovery without SACK (RFC 6582).
    PartialAck,
    /// The path MTU shrank below the size of the segment.
    TooBig,
    /// A mechanism reported the loss.
    Mechanism,
}

/// Result of loss detection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct LossOutcome {
    /// Bytes newly marked lost.
    pub(crate) newly_lost: u32,
    /// Bytes of these that had been retransmitted before, so that the retransmission itself was lost.
    pub(crate) lost_again: u32,
}

/// Change of the recovery state by an acknowledgement or a timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Episode {
    /// No recovery is under way.
    None,
    /// A window reduction begins (fast recovery, ECN, masked loss).
    Entered,
    /// The reduction continues.
    Stayed,
    /// The reduction ends, because all data outstanding at its beginning is acknowledged.
    Exited,
}

/// A loss that redundancy repaired and that congestion control must still respond to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CongestionSignal {
    /// SEG.ACK of the acknowledgement that reported the repair.
    pub(crate) ack: SeqNum,
    /// Means of the repair.
    pub(crate) by: Repair,
    /// The form of the window reduction.
    pub(crate) reaction: Reaction,
}

/// Means that repaired a loss before loss detection could.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Repair {
    /// A tail loss probe.
    Probe,
    /// A parity segment.
    Parity,
    /// A copy.
    Copy,
}

/// The form of the window reduction after a repaired loss.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reaction {
    /// In proportion to the delivered data, by PRR.
    Proportional,
    /// In one step (Linux: tcp_process_tlp_ack; also the draft of the tail loss probe of 2013).
    AtOnce,
}

/// A transmission of the connection, as the parts record it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sent {
    /// The sequence range; empty for an acknowledgement.
    pub(crate) range: SeqRange,
    /// Payload bytes of each wire segment if the transmission is a super-segment.
    pub(crate) segment_size: u32,
    /// Reason of the transmission.
    pub(crate) origin: Origin,
    pub(crate) syn: bool,
    pub(crate) fin: bool,
    /// Time of the transmission.
    pub(crate) at: Instant,
}

/// Recovery state of the sender, with Linux's names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CongestionState {
    /// No sign of trouble.
    #[default]
    Open,
    /// Duplicate or selective acknowledgements arrive, but nothing is declared lost.
    Disorder,
    /// The window is being reduced without anything to retransmit (ECN, masked loss).
    Cwr,
    /// Fast recovery.
    Recovery,
    /// Recovery after a retransmission timeout.
    Loss,
}

//! The inputs of a congestion controller: transmissions, acknowledgements, losses.
//!
//! Byte counts are bytes of sequence space, rates bytes per second. A delivery rate is measured as in
//! draft-ietf-ccwg-bbr section 4.1 and only for controllers that ask for it.

use brisk_wire::SeqNum;

use crate::outcome::{CongestionState, Episode, Origin, Repair};
use crate::seq_ranges::SeqRange;
use crate::time::{Instant, Micros};

/// Arguments of a new controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ControllerStart {
    /// Time when the connection begins.
    pub now: Instant,
    /// The largest payload of a segment.
    pub mss: u32,
    /// Initial window, bytes.
    pub initial_window: u32,
    /// True if the configuration spreads transmissions over the round trip.
    pub paced: bool,
    /// Seed of the controller's random draws: the same seed gives the same decisions.
    pub seed: u64,
}

/// One transmission of data, before its bytes count as in flight. A super-segment is one transmission.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Transmission {
    /// Time of the transmission.
    pub at: Instant,
    /// Bytes.
    pub len: u32,
    /// Reason of the transmission.
    pub origin: Origin,
    /// Bytes in flight without it (RFC 6675 pipe).
    pub pipe: u32,
    /// True if nothing was unacknowledged: sending starts from idle.
    pub from_idle: bool,
    /// True if the application, not the path, limits the bytes in flight. Always true if the controller does
    /// not ask for `delivery`.
    pub app_limited: bool,
}

/// One acknowledgement, after loss detection and the recovery state have processed it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct AckSample {
    /// Arrival time.
    pub now: Instant,
    /// Bytes newly reported as delivered, cumulatively or by SACK. The windows of Reno and CUBIC grow only
    /// with these: RFC 5681 section 3.1 counts bytes that were not acknowledged before.
    pub newly_acked: u32,
    /// Bytes of a retransmission that a DSACK reports as unnecessary. They have left the path as well.
    pub repeated: u32,
    /// Bytes that loss detection has newly marked lost on this acknowledgement.
    pub newly_lost: u32,
    /// True if SND.UNA advanced.
    pub una_advanced: bool,
    /// Bytes in flight before the acknowledgement.
    pub pipe_before: u32,
    /// Bytes in flight now.
    pub pipe: u32,
    /// Round-trip sample of the acknowledgement, if Karn's rule permits one.
    pub rtt: Option<Micros>,
    /// Smoothed round-trip time.
    pub srtt: Option<Micros>,
    /// Windowed minimum round-trip time.
    pub min_rtt: Option<Micros>,
    /// SND.UNA after the acknowledgement.
    pub una: SeqNum,
    /// SND.NXT.
    pub nxt: SeqNum,
    /// The recovery state after the acknowledgement.
    pub state: CongestionState,
    /// The effect of the acknowledgement on the recovery state.
    pub episode: Episode,
    /// True if the acknowledgement lets a window grow. It must show progress and not end a reduction (RFC
    /// 5681 section 3.2). And no data of a start window from the path's memory may be outstanding.
    pub may_grow: bool,
    /// True if the window was the limit when sending last stopped. Otherwise it does not grow (RFC 7661).
    pub cwnd_limited: bool,
    /// Delivery counters and rate; `None` unless the controller asks for them.
    pub delivery: Option<DeliverySample>,
}

impl AckSample {
    /// Returns the bytes that have left the path, including those that arrived twice.
    pub(crate) fn left_path(&self) -> u32 {
        self.newly_acked + self.repeated
    }
}

/// Counters of the connection after an acknowledgement, and the rate of the newest transmission that it
/// delivers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DeliverySample {
    /// Bytes delivered since the connection began (`C.delivered`).
    pub delivered: u64,
    /// Bytes marked lost since the connection began; never decreases (`C.lost`).
    pub lost: u64,
    /// The newest transmission that the acknowledgement delivers. `None` if there is none whose sending is
    /// recorded, or if the acknowledgement reports a repair.
    pub rate: Option<RateSample>,
}

/// Delivery-rate sample of the newest transmission that an acknowledgement delivers (`RS` of the draft).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RateSample {
    /// `C.delivered` when it was sent.
    pub prior_delivered: u64,
    /// Bytes delivered since it was sent.
    pub delivered: u64,
    /// Bytes marked lost since it was sent.
    pub lost: u64,
    /// Bytes in flight when it was sent, including its own.
    pub tx_in_flight: u32,
    /// True if the application limited sending when it was sent.
    pub app_limited: bool,
    /// True if the transmission is a tail loss probe that repeated data.
    pub is_probe: bool,
    /// Round-trip time of the transmission, if unambiguous.
    pub rtt: Option<Micros>,
    /// Delivery rate, bytes per second, rounded up; `None` if the receiver has reneged, or the interval is
    /// zero or shorter than the minimum round-trip time.
    pub rate: Option<u64>,
}

/// The rate from the spacing of the acknowledgements of one flight. The flight has at least eight segments,
/// in at least four acknowledgements. If a flight ends before its first acknowledgement arrives, this is the
/// only measure of bandwidth: the [`RateSample`] of such a flight is its volume per round-trip time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Train {
    /// Bytes per second.
    pub rate: u64,
    /// True if the path limited the pace; otherwise the sender did, and the path may be faster.
    pub is_limited: bool,
}

/// One transmission, or a part of one, that has been marked lost. Lost packets are reported in the order of
/// sending, before the [`AckSample`] of the same acknowledgement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LostPacket {
    /// Time when it was marked.
    pub now: Instant,
    /// The lost range.
    pub range: SeqRange,
    /// Bytes in flight when it was sent, including its own.
    pub tx_in_flight: u32,
    /// Bytes marked lost between its transmission and now, including its own.
    pub lost: u64,
    /// `C.delivered` when it was sent.
    pub prior_delivered: u64,
    /// Bytes delivered since the connection began (`C.delivered`).
    pub delivered: u64,
    /// True if the application limited sending when it was sent.
    pub app_limited: bool,
    /// True if the path is known to lose segments to a full queue, and the last round-trip time was long
    /// enough to attribute the loss to the queue (`queued_from`).
    pub is_queued: bool,
}

/// Cause of a reduction of the window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CongestionCause {
    /// Loss detection found a loss.
    Loss,
    /// The peer echoes congestion experienced (RFC 3168).
    Ecn,
    /// A loss that redundancy or a probe has repaired.
    Repaired(Repair),
}

/// Entry of the sender into fast recovery or CWR: at most once per window of data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CongestionEvent {
    /// Time.
    pub now: Instant,
    /// Cause.
    pub cause: CongestionCause,
    /// SND.NXT - SND.UNA less the SACKed bytes, before the acknowledgement (RecoverFS of RFC 9937).
    pub undelivered_before: u32,
    /// Bytes delivered while loss detection waited for the answer to parity. Without that wait, recovery
    /// would have begun earlier.
    pub delivered_while_held: u32,
    /// `Some` if the start window from the path's memory was too large: upper bound of the slow-start
    /// threshold, bytes.
    pub max_ssthresh: Option<u32>,
}

/// A retransmission timeout, after its losses were marked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RtoEvent {
    /// Time.
    pub now: Instant,
    /// Bytes still in flight and not declared lost.
    pub pipe: u32,
    /// False if `ssthresh` is lowered already: by an earlier timeout of the same data, or by the reduction
    /// that the timeout interrupts (RFC 5681 equation 4).
    pub first: bool,
    /// `Some` if the start window from the path's memory was too large: upper bound of the slow-start
    /// threshold, bytes.
    pub max_ssthresh: Option<u32>,
}

#[cfg(test)]
impl AckSample {
    /// Returns an acknowledgement of `newly_acked` bytes in the open state, with the window as the limit.
    pub(crate) fn acked(now: Instant, newly_acked: u32) -> AckSample {
        AckSample {
            now,
            newly_acked,
            repeated: 0,
            newly_lost: 0,
            una_advanced: true,
            pipe_before: 0,
            pipe: 0,
            rtt: None,
            srtt: None,
            min_rtt: None,
            una: SeqNum(0),
            nxt: SeqNum(0),
            state: CongestionState::Open,
            episode: Episode::None,
            may_grow: true,
            cwnd_limited: true,
            delivery: None,
        }
    }
}

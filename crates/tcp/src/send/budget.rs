//! The bytes that may leave now. The congestion window, the peer's window, the pacer and the allowance limit
//! them. Two limits are elsewhere. `decide_lost` keeps retransmissions inside a window that the peer has
//! shrunk, and `choose_probe` limits a tail loss probe to one segment.

use crate::outcome::{Origin, PARITY_OPTION};

/// The current limits of transmissions, bytes; see [`Budget::of`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Budget {
    /// Congestion window.
    pub(crate) cwnd: u32,
    /// Bytes in flight of this connection (pipe of RFC 6675).
    pub(crate) pipe: u32,
    /// Bytes in flight of the path's other members, if the congestion window is that of the path.
    pub(crate) others: u32,
    /// Copies and parity in flight, if the congestion window counts them.
    pub(crate) redundancy_in_flight: u32,
    /// Bytes between SND.NXT and the right edge of the peer's window.
    pub(crate) peer: u32,
    /// Bytes that the pacer permits now.
    pub(crate) paced: u32,
    /// Payload of the largest copy that the flight's plan still permits, bytes, without headers.
    pub(crate) redundancy: u32,
    /// Payload of a full segment.
    pub(crate) mss: u32,
}

impl Budget {
    /// Returns the bytes of sequence space that may leave now for this reason.
    ///
    /// | origin | congestion window | peer's window | pacing | allowance |
    /// |---|---|---|---|---|
    /// | `Ack` | - | - | - | - |
    /// | `New` | yes (at least one segment when nothing is in flight) | yes | yes | - |
    /// | `Retransmit` | yes (unless nothing is in flight) | - | yes | - |
    /// | `TailLossProbe` | - | its new data | - | - |
    /// | `Duplicate`, `Parity` | - | - | yes | yes |
    ///
    /// A tail loss probe may exceed the congestion window by one segment (RFC 8985 section 7.3).
    #[inline]
    pub(crate) fn of(&self, origin: Origin) -> u32 {
        match origin {
            Origin::Ack => u32::MAX,
            Origin::New => self.unpaced().min(self.paced),
            Origin::Retransmit if self.is_alone() => self.paced,
            Origin::Retransmit => self.paced.min(self.unfilled()),
            Origin::TailLossProbe => self.peer,
            Origin::Duplicate => self.paced.min(self.redundancy),
            Origin::Parity => self.paced.min(self.redundancy.saturating_sub(PARITY_OPTION)),
        }
    }

    /// Returns the bytes of new data that both windows permit, regardless of pacing.
    pub(crate) fn unpaced(&self) -> u32 {
        let window = if self.is_alone() { self.cwnd.max(self.mss) } else { self.window() };
        window.min(self.peer)
    }

    /// Returns the bytes of new data that the allowance and pacing permit now, each with its copy.
    pub(crate) fn twice(&self) -> u32 {
        self.redundancy.min(self.paced / 2)
    }

    /// True if both windows permit more data after `len` bytes of new data: the congestion window a full
    /// segment, the peer's window that segment or the remaining `left` bytes.
    pub(crate) fn has_room_after(&self, len: u32, left: u32) -> bool {
        let window = self.unfilled().saturating_sub(len);
        self.mss <= window && left.min(self.mss) <= self.peer.saturating_sub(len)
    }

    /// True if pacing holds `len` bytes back.
    pub(crate) fn is_paced(&self, len: u32) -> bool {
        len > self.paced
    }

    /// True if a copy of `len` bytes exceeds the plan's allowance, which does not grow with time.
    pub(crate) fn is_spent(&self, len: u32) -> bool {
        len > self.redundancy
    }

    fn window(&self) -> u32 {
        self.unfilled().saturating_sub(self.redundancy_in_flight)
    }

    /// Returns the unused bytes of the congestion window.
    fn unfilled(&self) -> u32 {
        self.cwnd.saturating_sub(self.pipe.saturating_add(self.others))
    }

    /// True if nothing is in flight on the path.
    fn is_alone(&self) -> bool {
        self.pipe == 0 && self.others == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Budget = Budget {
        cwnd: 10_000,
        pipe: 9_000,
        others: 0,
        redundancy_in_flight: 0,
        peer: 5_000,
        paced: 2_000,
        redundancy: 500,
        mss: 1_460,
    };

    #[test]
    fn new_data_obeys_every_window_and_pacing() {
        assert_eq!(BUDGET.of(Origin::New), 1_000, "congestion window");
        assert_eq!(
            Budget { redundancy_in_flight: 400, ..BUDGET }.of(Origin::New),
            600,
            "redundancy that it counts"
        );
        assert_eq!(Budget { peer: 999, ..BUDGET }.of(Origin::New), 999, "peer's window");
        assert_eq!(Budget { paced: 999, ..BUDGET }.of(Origin::New), 999, "pacing");
        assert_eq!(Budget { paced: 0, ..BUDGET }.unpaced(), 1_000);
    }

    #[test]
    fn one_segment_may_leave_when_nothing_is_in_flight() {
        let idle = Budget { cwnd: 100, pipe: 0, ..BUDGET };
        assert_eq!(idle.of(Origin::New), 1_460);
        assert_eq!(idle.of(Origin::Retransmit), 2_000);
    }

    #[test]
    fn redundancy_spends_its_own_allowance_and_not_the_window() {
        let full = Budget { pipe: 10_000, ..BUDGET };
        assert_eq!((full.of(Origin::Duplicate), full.of(Origin::Parity)), (500, 484));
        assert_eq!(full.of(Origin::Retransmit), 0);
        assert_eq!(full.of(Origin::TailLossProbe), 5_000, "a probe exceeds the congestion window");
        assert!(full.is_spent(501) && !full.is_spent(500));
    }

    #[test]
    fn a_burst_goes_on_while_the_windows_take_another_segment() {
        let open = Budget { pipe: 0, ..BUDGET };
        assert!(open.has_room_after(3_000, 1_460) && !open.has_room_after(4_000, 1_460), "peer's window");
        assert!(open.has_room_after(4_000, 1_000), "the rest of the data");
        assert!(!BUDGET.has_room_after(1_000, 10), "congestion window");
    }
}

//! The peer's window (RFC 9293 section 3.10.7.4) and the persist timer that probes it when it is
//! closed (RFC 9293 section 3.8.6.1).

use brisk_wire::SeqNum;
use brisk_wire::gentle::{EARLY_SHIFT_MAX, EARLY_WINDOW};

use crate::time::{Instant, Micros};

/// Longest time between two zero-window probes.
const PERSIST_MAX: Micros = Micros::from_millis(120_000);

/// The default MSS (RFC 9293 section 3.7.1).
const DEFAULT_SEGMENT: u32 = 536;
/// Minimum segment size, regardless of the window: a packet of 68 bytes with the headers of IPv4 and TCP.
const MIN_SEGMENT: u32 = 28;

/// Effect of a segment on the send window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Changed {
    /// The segment is older than the one that set the window last.
    Stale,
    /// The window is unchanged.
    Same,
    /// The window was closed and is open now.
    Opened,
    /// The window is larger.
    Grew,
    /// The window is smaller, or closed.
    Shrank,
}

impl Changed {
    /// True if the window differs from before. Such an acknowledgement is no duplicate (RFC 5681).
    pub(crate) fn is_change(self) -> bool {
        match self {
            Changed::Stale | Changed::Same => false,
            Changed::Opened | Changed::Grew | Changed::Shrank => true,
        }
    }
}

/// SND.WND, the segment that set it, and the persist timer. Names as in RFC 9293.
#[derive(Clone, Debug)]
pub(crate) struct SendWindow {
    snd_wnd: u32,
    snd_wl1: SeqNum,
    snd_wl2: SeqNum,
    max_snd_wnd: u32,
    scale: u8,
    persist: Option<Instant>,
    persist_backoffs: u32,
    unanswered: u32,
}

impl SendWindow {
    /// Returns the window before the first segment of the peer: closed, unscaled.
    pub(crate) fn new() -> Self {
        SendWindow {
            snd_wnd: 0,
            snd_wl1: SeqNum(0),
            snd_wl2: SeqNum(0),
            max_snd_wnd: 0,
            scale: 0,
            persist: None,
            persist_backoffs: 0,
            unanswered: 0,
        }
    }

    /// Stores the window of the peer's SYN or SYN-ACK. RFC 7323 2.2: "The window field in a segment where the
    /// SYN bit is set (i.e., a `<SYN>` or `<SYN,ACK>`) MUST NOT be scaled."
    pub(crate) fn start(&mut self, seq: SeqNum, ack: SeqNum, wnd_raw: u16) {
        (self.snd_wl1, self.snd_wl2) = (seq, ack);
        self.snd_wnd = u32::from(wnd_raw);
    }

    /// Raises the window to the one that an option of the peer's SYN or SYN-ACK announces with `shift`,
    /// unless the window field announces a larger one. `acked`: bytes after our SYN that the segment
    /// acknowledges.
    pub(crate) fn widen(&mut self, shift: u8, acked: u32) {
        let early = EARLY_WINDOW << shift.min(EARLY_SHIFT_MAX);
        self.snd_wnd = self.snd_wnd.max(early.saturating_sub(acked));
    }

    /// Counts the window of the SYN in MAX.SND.WND, because a Fast Open server may send before the peer's
    /// next segment. Other servers begin to count with that segment (Linux: the same).
    pub(crate) fn count_offer(&mut self) {
        self.max_snd_wnd = self.max_snd_wnd.max(self.snd_wnd);
    }

    /// Returns the largest useful segment for a peer with small windows. It is half of the largest window
    /// that the peer has offered, or all of it if it is smaller than a default segment (Linux:
    /// tcp_bound_to_half_wnd).
    pub(crate) fn segment_bound(&self) -> u32 {
        match self.max_snd_wnd {
            0 => u32::MAX,
            largest if largest > DEFAULT_SEGMENT => largest / 2,
            largest => largest.max(MIN_SEGMENT),
        }
    }

    /// Sets Snd.Wind.Shift once both ends agreed to scale. RFC 7323 2.3: a larger shift than 14
    /// counts as 14.
    pub(crate) fn set_scale(&mut self, shift: u8) {
        self.scale = shift.min(14);
    }

    pub(crate) fn scale(&self) -> u8 {
        self.scale
    }

    /// Stores the window of an acceptable segment with ACK, unless it is older than the last one. The caller
    /// has checked SND.UNA =< SEG.ACK =< SND.NXT.
    pub(crate) fn update(&mut self, seq: SeqNum, ack: SeqNum, wnd_raw: u16) -> Changed {
        self.take(seq, ack, self.scaled(wnd_raw))
    }

    /// Like [`SendWindow::update`], for a segment with SYN, whose window is never scaled (RFC 7323 2.2).
    pub(crate) fn update_unscaled(&mut self, seq: SeqNum, ack: SeqNum, wnd_raw: u16) -> Changed {
        self.take(seq, ack, u32::from(wnd_raw))
    }

    fn take(&mut self, seq: SeqNum, ack: SeqNum, wnd: u32) -> Changed {
        // RFC 9293: "If (SND.WL1 < SEG.SEQ or (SND.WL1 = SEG.SEQ and SND.WL2 =< SEG.ACK)), set SND.WND". A
        // retransmission by the peer has an old SEG.SEQ; but if it acknowledges more than any segment before,
        // its window is new.
        let newer =
            ack.gt(self.snd_wl2) || seq.gt(self.snd_wl1) || (seq == self.snd_wl1 && ack == self.snd_wl2);
        if !newer {
            return Changed::Stale;
        }
        let before = self.snd_wnd;
        self.snd_wnd = wnd;
        (self.snd_wl1, self.snd_wl2) = (seq, ack);
        self.max_snd_wnd = self.max_snd_wnd.max(self.snd_wnd);
        match (before, self.snd_wnd) {
            (before, after) if before == after => Changed::Same,
            (0, _) => {
                self.disarm_persist();
                Changed::Opened
            }
            (before, after) if after > before => Changed::Grew,
            (_, _) => Changed::Shrank,
        }
    }

    /// Returns how many times the time between two probes was doubled.
    pub(crate) fn persist_backoffs(&self) -> u32 {
        self.persist_backoffs
    }

    /// Converts a window field of the peer to bytes.
    pub(crate) fn scaled(&self, wnd_raw: u16) -> u32 {
        u32::from(wnd_raw) << self.scale
    }

    pub(crate) fn snd_wnd(&self) -> u32 {
        self.snd_wnd
    }

    /// Returns MAX.SND.WND: the largest window that the peer ever offered, bytes.
    pub(crate) fn max_snd_wnd(&self) -> u32 {
        self.max_snd_wnd
    }

    /// Returns the sequence number after the last one that the peer permits.
    #[cfg(test)]
    pub(crate) fn right_edge(&self, una: SeqNum) -> SeqNum {
        una + self.snd_wnd
    }

    /// Returns the bytes between `nxt` and the right edge; 0 if the peer shrank the window below `nxt`.
    pub(crate) fn usable(&self, una: SeqNum, nxt: SeqNum) -> u32 {
        self.snd_wnd.saturating_sub(nxt.since(una))
    }

    /// Starts the persist timer unless it runs. The caller has checked that data waits, nothing is in flight,
    /// and the window is too small for the next segment. RFC 9293: "The transmitting host SHOULD send the
    /// first zero-window probe when a zero window has existed for the retransmission timeout period"
    /// (SHLD-29).
    pub(crate) fn arm_persist(&mut self, now: Instant, rto: Micros) {
        if self.persist.is_none() {
            self.persist = Some(now + self.persist_interval(rto));
        }
    }

    /// Restarts the persist timer after a probe, with a longer interval. RFC 9293: "and SHOULD increase
    /// exponentially the interval between successive probes" (SHLD-30).
    pub(crate) fn on_persist(&mut self, now: Instant, rto: Micros) {
        self.persist_backoffs = self.persist_backoffs.saturating_add(1);
        self.unanswered = self.unanswered.saturating_add(1);
        self.persist = Some(now + self.persist_interval(rto));
    }

    /// Records an acknowledgement that arrived during probing. RFC 9293: "As long as the receiving TCP peer
    /// continues to send acknowledgments in response to the probe segments, the sending TCP peer MUST allow
    /// the connection to stay open" (MUST-37).
    pub(crate) fn on_probe_answered(&mut self) {
        self.unanswered = 0;
    }

    /// Stops the persist timer and forgets its backoff.
    pub(crate) fn disarm_persist(&mut self) {
        self.persist = None;
        self.persist_backoffs = 0;
        self.unanswered = 0;
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.persist
    }

    /// Returns the number of probes in a row without an acknowledgement.
    pub(crate) fn unanswered_probes(&self) -> u32 {
        self.unanswered
    }

    fn persist_interval(&self, rto: Micros) -> Micros {
        let factor = 1u32.checked_shl(self.persist_backoffs).unwrap_or(u32::MAX);
        (rto * factor).min(PERSIST_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn window(raw: u16) -> SendWindow {
        let mut window = SendWindow::new();
        window.start(SeqNum(100), SeqNum(1), raw);
        window
    }

    #[test]
    fn the_window_of_a_syn_is_never_scaled() {
        let mut window = window(1000);
        window.set_scale(7);
        assert_eq!(window.snd_wnd(), 1000);
        assert_eq!(window.update_unscaled(SeqNum(100), SeqNum(2), 1000), Changed::Same);
        assert_eq!((window.snd_wnd(), window.max_snd_wnd()), (1000, 1000));
        assert_eq!(window.update(SeqNum(101), SeqNum(2), 1000), Changed::Grew);
        assert_eq!((window.snd_wnd(), window.max_snd_wnd()), (128_000, 128_000));
    }

    #[test]
    fn a_shift_above_14_counts_as_14() {
        // RFC 7323 2.3: "If a Window Scale option is received with a shift.cnt value larger than 14,
        // the TCP SHOULD log the error but MUST use 14 instead of the specified value."
        let mut window = window(1000);
        window.set_scale(255);
        assert_eq!(window.scale(), 14);
        window.update(SeqNum(101), SeqNum(1), u16::MAX);
        assert_eq!(window.snd_wnd(), 65_535 << 14);
    }

    #[test]
    fn an_older_segment_does_not_change_the_window() {
        // RFC 9293 3.10.7.4: "the check here prevents using old segments to update the window".
        let mut window = window(1000);
        assert_eq!(window.update(SeqNum(200), SeqNum(50), 2000), Changed::Grew);
        assert_eq!(window.update(SeqNum(150), SeqNum(50), 9000), Changed::Stale);
        assert_eq!(window.update(SeqNum(200), SeqNum(49), 9000), Changed::Stale);
        assert_eq!(window.snd_wnd(), 2000);
        assert_eq!(window.update(SeqNum(200), SeqNum(50), 2000), Changed::Same);
        assert_eq!(window.update(SeqNum(200), SeqNum(50), 1500), Changed::Shrank);
        assert_eq!(window.max_snd_wnd(), 2000);
    }

    #[test]
    fn retransmission_that_acknowledges_more_updates_the_window() {
        let mut window = window(1000);
        window.update(SeqNum(200), SeqNum(50), 2000);
        assert_eq!(window.update(SeqNum(150), SeqNum(60), 3000), Changed::Grew);
    }

    #[test]
    fn a_window_that_shrinks_below_what_was_sent_leaves_nothing_usable() {
        // RFC 9293 3.8.6: "a sending TCP peer MUST be robust against window shrinking, which may cause
        // the 'usable window' to become negative" (MUST-34).
        let mut window = window(1000);
        assert_eq!(window.usable(SeqNum(1), SeqNum(401)), 600);
        assert!(window.update(SeqNum(101), SeqNum(1), 300).is_change());
        assert_eq!(window.usable(SeqNum(1), SeqNum(401)), 0);
        assert_eq!(window.right_edge(SeqNum(1)), SeqNum(301));
    }

    #[test]
    fn zero_window_probes_come_after_the_timeout_and_then_ever_more_rarely() {
        let rto = Micros::from_millis(300);
        let mut window = window(0);
        window.arm_persist(at(0), rto);
        window.arm_persist(at(200), rto);
        assert_eq!(window.next_timeout(), Some(at(300)), "once armed it runs");
        let mut now = at(300);
        let mut gaps = [0; 10];
        for gap in &mut gaps {
            window.on_persist(now, rto);
            let next = window.next_timeout().unwrap_or(now);
            *gap = next.saturating_since(now).as_millis();
            now = next;
        }
        assert_eq!(gaps, [600, 1200, 2400, 4800, 9600, 19_200, 38_400, 76_800, 120_000, 120_000]);
        assert_eq!(window.unanswered_probes(), 10);
        window.on_probe_answered();
        assert_eq!(window.unanswered_probes(), 0, "an answered probe keeps the connection open");
        assert!(window.next_timeout().is_some());
    }

    #[test]
    fn an_opening_window_ends_the_probing() {
        let mut window = window(0);
        window.arm_persist(at(0), Micros::from_millis(300));
        window.on_persist(at(300), Micros::from_millis(300));
        assert_eq!(window.update(SeqNum(101), SeqNum(1), 500), Changed::Opened);
        assert_eq!(window.next_timeout(), None);
        window.arm_persist(at(1000), Micros::from_millis(300));
        assert_eq!(window.next_timeout(), Some(at(1300)), "the backoff is forgotten");
    }
}

//! PSH at the end of every burst, as in Linux since 5.4. In Linux a burst is one packet with segmentation
//! offload. Its last segment carries PSH so that a coalescing receiver need not wait for more.
//!
//! The length of that packet determines which segments carry PSH. Linux makes it as long as the data that the
//! pacing rate sends in 1/1024 s, even if it does not pace. On short paths it adds up to 64 KB, halved with
//! each 512 us of the minimum round-trip time. The packet has at least two segments, and at most half the
//! congestion window and 64 KB.

use crate::time::Micros;

/// Linux: `tcp_min_tso_segs`.
const MIN_SEGMENTS: u32 = 2;
/// Linux: `gso_max_size` less the headers.
const MAX_BYTES: u64 = 65_535 - 320;
/// Linux: `tcp_tso_rtt_log`. Each 2^9 us of the minimum round-trip time halve the added length.
const RTT_LOG: u32 = 9;
/// Pacing rates of slow start and of congestion avoidance, percent of cwnd/srtt.
const SLOW_START_PERCENT: u64 = 200;
const AVOIDANCE_PERCENT: u64 = 120;

/// The sender's state that determines the length of a burst.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pace {
    /// Congestion window, bytes.
    pub(crate) cwnd: u32,
    /// True if the window is below half the slow-start threshold.
    pub(crate) slow_start: bool,
    /// Bytes in flight.
    pub(crate) pipe: u32,
    /// Payload of a full segment.
    pub(crate) mss: u32,
    pub(crate) srtt: Option<Micros>,
    pub(crate) min_rtt: Option<Micros>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct BurstPush {
    /// Segments of the burst that have left.
    sent: u32,
    /// Maximum number of segments of the burst.
    max: u32,
    /// True if another full segment could not follow the last one at once.
    stalled: bool,
}

impl BurstPush {
    /// Returns the burst with one more segment of new data. `more`: another full segment may follow at once.
    pub(crate) fn with_segment(&self, pace: &Pace, more: bool) -> Self {
        let (sent, max) = if self.is_over() { (0, burst_segments(pace)) } else { (self.sent, self.max) };
        BurstPush { sent: sent + 1, max, stalled: !more }
    }

    /// True if the next segment begins another burst.
    fn is_over(&self) -> bool {
        self.stalled || self.sent >= self.max
    }

    /// True if the last segment ends a burst of several.
    pub(crate) fn pushes(&self) -> bool {
        self.is_over() && self.sent > 1
    }
}

fn burst_segments(pace: &Pace) -> u32 {
    let mss = u64::from(pace.mss.max(1));
    let percent = if pace.slow_start { SLOW_START_PERCENT } else { AVOIDANCE_PERCENT };
    let window = u64::from(pace.cwnd.max(pace.pipe));
    let srtt = pace.srtt.unwrap_or_default();
    let rate = (window * percent * 10_000).checked_div(srtt.0.into()).unwrap_or(u64::MAX);
    let near = pace.min_rtt.unwrap_or_default().0 >> RTT_LOG;
    let added = if near < 32 { MAX_BYTES >> near } else { 0 };
    let bytes = (rate >> 10).saturating_add(added).min(MAX_BYTES);
    let quota = (pace.cwnd / pace.mss.max(1) / 2).max(1);
    let segments = (bytes / mss).max(u64::from(MIN_SEGMENTS)).min(MAX_BYTES / mss);
    (segments as u32).min(quota)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(cwnd: u32, rtt_us: u32) -> Pace {
        let rtt = Some(Micros(rtt_us));
        Pace { cwnd, slow_start: true, pipe: 0, mss: 1000, srtt: rtt, min_rtt: rtt }
    }

    fn pushes(pace: &Pace, segments: u32) -> std::vec::Vec<u32> {
        let mut burst = BurstPush::default();
        let mut pushes = |at: &u32| {
            burst = burst.with_segment(pace, *at < segments);
            burst.pushes()
        };
        (1..=segments).filter(|at| pushes(at)).collect()
    }

    #[test]
    fn on_a_long_path_every_second_segment_pushes() {
        assert_eq!(pushes(&pace(10_000, 100_000), 10), [2, 4, 6, 8, 10]);
        assert_eq!(pushes(&pace(10_000, 100_000), 5), [2, 4], "the last is alone");
    }

    #[test]
    fn on_a_short_path_half_the_window_is_one_burst() {
        assert_eq!(pushes(&pace(10_000, 200), 10), [5, 10]);
        assert_eq!(pushes(&pace(10_000, 200), 7), [5, 7]);
        assert_eq!(pushes(&Pace { srtt: None, min_rtt: None, ..pace(10_000, 0) }, 10), [5, 10]);
    }

    /// Bursts to a near peer are long, even if its path has become slow.
    #[test]
    fn a_near_peer_gets_long_bursts_behind_a_queue_too() {
        let queued = |min_rtt_us| Pace { min_rtt: Some(Micros(min_rtt_us)), ..pace(10_000, 100_000) };
        assert_eq!(pushes(&queued(100), 10), [5, 10]);
        assert_eq!(pushes(&queued(50_000), 10), [2, 4, 6, 8, 10]);
    }

    #[test]
    fn a_segment_alone_does_not_push() {
        assert_eq!(pushes(&pace(10_000, 100_000), 1), []);
        assert_eq!(pushes(&pace(2_000, 100_000), 2), [], "half of two segments is one");
    }
}

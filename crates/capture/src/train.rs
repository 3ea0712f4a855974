//! The packets of one direction in the order of sending, each marked as lost or not.

use std::collections::VecDeque;

use serde::Serialize;

/// Pause, ns, that ends a burst: a loss after the pause does not continue a run of losses before it.
pub const BURST_GAP: u64 = 2_000_000;
/// Maximum number of packets whose state, lost or delivered, may still change.
const MAX_OPEN: usize = 4096;
/// Time, ns, after which the state of a packet is final.
const FINAL_AFTER: u64 = 20_000_000_000;

/// Losses and their runs. They give the two loss probabilities of the link grammar's `after:` model: that of
/// a packet after a lost one in a burst, and that of every other packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Losses {
    /// Packets sent.
    pub packets: u64,
    /// Packets lost.
    pub lost: u64,
    /// Packets that followed a lost packet in the same burst.
    pub after_lost: u64,
    /// Lost packets that followed a lost packet in the same burst.
    pub lost_after_lost: u64,
}

impl Losses {
    /// Returns the share of packets lost, 0 to 1.
    pub fn rate(&self) -> f64 {
        share(self.lost, self.packets)
    }

    /// Returns the probability of loss after a lost packet of the same burst. If no packet followed a lost
    /// one, returns the rate.
    pub fn continues(&self) -> f64 {
        if self.after_lost == 0 { self.rate() } else { share(self.lost_after_lost, self.after_lost) }
    }

    /// Returns the probability of loss of every other packet.
    pub fn begins(&self) -> f64 {
        share(self.lost.saturating_sub(self.lost_after_lost), self.packets.saturating_sub(self.after_lost))
    }

    /// Returns the mean length, in packets, of runs of losses that are not cut short by the end of a burst.
    pub fn burst(&self) -> f64 {
        1.0 / (1.0 - self.continues()).max(0.001)
    }

    /// Returns the 95 % interval of the rate: the normal approximation, with the variance multiplied by
    /// (1 + q) / (1 - q) because losses come in runs (two-state chain; q is [`Losses::continues`]). Without a
    /// loss the upper end is the rate of three losses (rule of three).
    pub fn rate_interval(&self) -> [f64; 2] {
        if self.lost == 0 {
            return [0.0, (3.0 / self.packets.max(3) as f64).min(1.0)];
        }
        let q = self.continues().min(0.99);
        let spread = 1.96 * ((1.0 + q) / (1.0 - q) / self.lost as f64).sqrt();
        let rate = self.rate();
        [(rate * (1.0 - spread)).max(0.0), (rate * (1.0 + spread)).min(1.0)]
    }

    /// Returns the 95 % interval of the mean run: Wilson's score interval of [`Losses::continues`].
    pub fn burst_interval(&self) -> [f64; 2] {
        let n = self.after_lost as f64;
        if self.after_lost == 0 {
            return [1.0, f64::INFINITY];
        }
        let (z2, q) = (1.96f64.powi(2), self.continues());
        let centre = (q + z2 / (2.0 * n)) / (1.0 + z2 / n);
        let half = 1.96 / (1.0 + z2 / n) * (q * (1.0 - q) / n + z2 / (4.0 * n * n)).sqrt();
        [centre - half, centre + half].map(|q| 1.0 / (1.0 - q.clamp(0.0, 0.999)))
    }

    /// Adds the losses of independent packets.
    pub fn add(&mut self, other: &Losses) {
        self.packets += other.packets;
        self.lost += other.lost;
        self.after_lost += other.after_lost;
        self.lost_after_lost += other.lost_after_lost;
    }

    /// Combines the losses of two consecutive parts of a path, which were measured with different packets.
    /// The result has the packet count of the part that lost more, and the loss rate of both parts together.
    pub fn then(&self, further: &Losses) -> Losses {
        let (worse, better) = if self.lost >= further.lost { (self, further) } else { (further, self) };
        if better.lost == 0 {
            return *worse;
        }
        let rate = 1.0 - (1.0 - self.rate()) * (1.0 - further.rate());
        Losses { lost: (rate * worse.packets as f64).round() as u64, ..*worse }
    }
}

fn share(part: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { part as f64 / of as f64 }
}

#[derive(Clone, Copy, Debug)]
struct Mark {
    at: u64,
    /// Sequence numbers, unwrapped; empty if the packet has no data or was not captured.
    start: u64,
    end: u64,
    lost: bool,
    /// True if a DSACK has reported the bytes as received twice.
    arrived: bool,
}

/// The train. Packets whose state is final leave `open` and are counted in `counted`.
#[derive(Clone, Debug, Default)]
pub struct Train {
    open: VecDeque<Mark>,
    /// Number of the first open packet.
    first: u64,
    last: Option<(u64, bool)>,
    counted: Losses,
}

impl Train {
    /// Appends a packet that was captured. Returns its number.
    pub fn seen(&mut self, at: u64, start: u64, end: u64) -> u64 {
        self.push(Mark { at, start, end, lost: false, arrived: false })
    }

    /// Appends a packet that was not captured. It counts as lost until [`Train::found`]. Returns its number.
    pub fn missing(&mut self, at: u64) -> u64 {
        self.push(Mark { at, start: 0, end: 0, lost: true, arrived: false })
    }

    fn push(&mut self, mark: Mark) -> u64 {
        while let Some(oldest) = self.open.front() {
            let old = mark.at.saturating_sub(oldest.at) > FINAL_AFTER;
            if !old && self.open.len() < MAX_OPEN {
                break;
            }
            self.settle_oldest();
        }
        self.open.push_back(mark);
        self.first + self.open.len() as u64 - 1
    }

    /// Marks a missing packet as late instead of lost.
    pub fn found(&mut self, number: u64) {
        let index = number.checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
        if let Some(mark) = index.and_then(|index| self.open.get_mut(index)) {
            mark.lost = false;
        }
    }

    /// Marks the packets that carried these bytes earlier as lost, because the bytes are sent again.
    pub fn sent_again(&mut self, start: u64, end: u64) {
        for mark in self.open.iter_mut().filter(|mark| mark.start < end && start < mark.end) {
            mark.lost = !mark.arrived;
        }
    }

    /// Processes a DSACK of these bytes. Several packets that carried them may be marked as lost; the last of
    /// these had arrived.
    pub fn had_arrived(&mut self, start: u64, end: u64) {
        let overlaps = |mark: &&mut Mark| mark.lost && mark.start < end && start < mark.end;
        if let Some(mark) = self.open.iter_mut().rev().find(overlaps) {
            mark.lost = false;
            mark.arrived = true;
        }
    }

    /// Returns the time of the last packet.
    pub fn last_at(&self) -> Option<u64> {
        self.open.back().map(|mark| mark.at)
    }

    /// Returns the number of open packets.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    fn settle_oldest(&mut self) {
        let Some(mark) = self.open.pop_front() else { return };
        self.first += 1;
        let after_lost = self.last.is_some_and(|(at, lost)| lost && mark.at.saturating_sub(at) <= BURST_GAP);
        self.counted.packets += 1;
        self.counted.lost += u64::from(mark.lost);
        self.counted.after_lost += u64::from(after_lost);
        self.counted.lost_after_lost += u64::from(after_lost && mark.lost);
        self.last = Some((mark.at, mark.lost));
    }

    /// Counts all open packets and returns the sums.
    pub fn finish(mut self) -> Losses {
        while !self.open.is_empty() {
            self.settle_oldest();
        }
        self.counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn runs_end_with_the_burst() {
        let mut train = Train::default();
        // Of a burst of four, the second and third packets are lost; of the next burst, the only packet is
        // lost.
        for (at, start) in [(0, 0), (0, 10), (0, 20), (0, 30), (100 * MS, 40)] {
            train.seen(at, start, start + 10);
        }
        train.seen(200 * MS, 50, 60);
        train.sent_again(10, 30);
        train.sent_again(40, 50);
        let losses = train.finish();
        assert_eq!(losses, Losses { packets: 6, lost: 3, after_lost: 2, lost_after_lost: 1 });
        assert_eq!((losses.continues(), losses.begins(), losses.burst()), (0.5, 0.5, 2.0));
    }

    #[test]
    fn arrived_or_late_segments_are_not_lost() {
        let mut train = Train::default();
        train.seen(0, 0, 10);
        let late = train.missing(0);
        train.seen(MS, 0, 10);
        train.sent_again(0, 10);
        train.had_arrived(0, 10);
        train.found(late);
        assert_eq!(train.clone().finish().lost, 1, "one of the two copies is the one that was sent again");
        train.had_arrived(0, 10);
        assert_eq!(train.finish().lost, 0);
    }

    #[test]
    fn losses_of_two_parts_of_a_path_are_combined() {
        let few = Losses { packets: 100, lost: 10, after_lost: 5, lost_after_lost: 1 };
        let many = Losses { packets: 1000, lost: 100, ..few };
        assert_eq!(few.then(&many), Losses { lost: 190, ..many });
        let none = Losses { packets: 5000, ..Losses::default() };
        assert_eq!((none.then(&few), few.then(&none)), (few, few));
    }

    #[test]
    fn train_is_bounded() {
        let mut train = Train::default();
        for i in 0..10_000 {
            train.seen(i, i, i + 1);
        }
        assert_eq!(train.open(), MAX_OPEN);
        train.seen(100 * FINAL_AFTER, 0, 1);
        assert_eq!(train.open(), 1);
        assert_eq!(train.finish().packets, 10_001);
    }

    #[test]
    fn intervals_hold_the_estimate_and_widen_with_runs() {
        let single = Losses { packets: 50_000, lost: 1000, after_lost: 1000, lost_after_lost: 20 };
        let runs = Losses { lost_after_lost: 500, ..single };
        let width = |[low, high]: [f64; 2]| high - low;
        assert!(width(runs.rate_interval()) > 1.5 * width(single.rate_interval()));
        for losses in [single, runs] {
            let ([low, high], [short, long]) = (losses.rate_interval(), losses.burst_interval());
            assert!(low < losses.rate() && losses.rate() < high);
            assert!(short < losses.burst() && losses.burst() < long);
        }
        assert_eq!(Losses { packets: 300, ..Losses::default() }.rate_interval(), [0.0, 0.01]);
    }
}

//! CUBIC congestion control (RFC 9438) in integers, with HyStart++ (RFC 9406) in the first slow start.
//!
//! After a reduction the window grows along a cubic curve of the time since. The curve is flat around the
//! size at which congestion occurred. So growth does not depend on the round-trip time. If Reno's window
//! would be larger, the window follows Reno's estimate (section 4.3). The controller counts bytes and
//! microseconds. Fractions of a byte are carried to the next acknowledgement.

use alloc::boxed::Box;

use super::hystart::{HyStart, HystartPhase};
use super::loss_based::Window;
use super::reno::SLOW_START_BURST;
use super::sample::AckSample;
use crate::time::{Instant, Micros};

/// C = 0.4 segments per second cubed, as a fraction.
const C: (u128, u128) = (4, 10);

/// beta_cubic = 0.7, as a fraction.
const BETA: (u64, u64) = (7, 10);

/// alpha_cubic = 3 * (1 - beta) / (1 + beta) = 9/17 (section 4.3).
const ALPHA: (u64, u64) = (9, 17);

/// L of RFC 9406 section 4.2 without pacing, segments.
const L: u32 = 8;

/// Cubic microseconds in a cubic second.
const MICROS_CUBED: u128 = 1_000_000_000_000_000_000;

/// Limit of the time from the plateau, microseconds. Beyond it the window is out of range anyway.
const OFFSET_MAX: u64 = 10_000_000_000;

/// State that a reduction changes and an undo restores (RFC 9438 section 4.9).
#[derive(Clone, Copy, Debug)]
struct Curve {
    ssthresh: u32,
    w_max: u32,
    /// cwnd_prior: the window before the last reduction, bytes.
    cwnd_prior: u32,
    /// The current stage of congestion avoidance.
    epoch: Option<Epoch>,
    /// True if the next stage starts on the plateau: K = 0, W_max = cwnd (sections 4.8, 4.10).
    flat: bool,
}

/// One stage of congestion avoidance.
#[derive(Clone, Copy, Debug)]
struct Epoch {
    /// Time at which t = 0. It moves on while the window is not the limit.
    start: Instant,
    /// K, microseconds.
    k: u64,
    /// Window at the plateau, bytes.
    plateau: u32,
    /// W_est: Reno's window, bytes.
    w_est: u32,
    /// Remainder of the growth of W_est.
    w_est_carry: u64,
    /// Remainder of the growth along the curve.
    carry: u64,
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub(crate) struct Cubic {
    mss: u32,
    cwnd: u32,
    paced: bool,
    curve: Curve,
    hystart: HyStart,
    /// Time of the last acknowledgement, from which unused time is measured.
    last_ack: Option<Instant>,
    /// State before the last reduction.
    before: Option<Box<(u32, Curve)>>,
}

impl Cubic {
    /// Returns a window of `initial` bytes with segments of at most `mss` bytes. `paced`: bursts are spread
    /// over the round trip.
    pub(crate) fn new(mss: u32, initial: u32, paced: bool) -> Self {
        let mss = mss.max(1);
        let curve = Curve { ssthresh: u32::MAX, w_max: 0, cwnd_prior: 0, epoch: None, flat: true };
        Cubic {
            mss,
            cwnd: initial.max(mss),
            paced,
            curve,
            hystart: HyStart::new(),
            last_ack: None,
            before: None,
        }
    }

    /// Grows the window in slow start (RFC 9438 section 4.10). Returns the bytes left for congestion
    /// avoidance.
    fn slow_start(&mut self, acked: &AckSample) -> u32 {
        let first = self.curve.ssthresh == u32::MAX;
        let phase = if first {
            self.hystart.on_ack(acked.rtt, acked.una, acked.nxt)
        } else {
            HystartPhase::SlowStart
        };
        if phase == HystartPhase::Done {
            // RFC 9406 section 4.2: "If CSS_ROUNDS rounds are complete, enter congestion avoidance by
            // setting the ssthresh to the current cwnd."
            self.curve.ssthresh = self.cwnd;
            return acked.newly_acked;
        }
        if !acked.cwnd_limited {
            return 0;
        }
        let max = if self.paced { u32::MAX } else { SLOW_START_BURST.max(L * self.mss) };
        let bytes = acked.newly_acked.min(max);
        let growth = if first { self.hystart.growth(bytes) } else { bytes };
        let missing = self.curve.ssthresh - self.cwnd;
        self.cwnd += growth.min(missing);
        growth.saturating_sub(missing)
    }

    /// Grows the window for `bytes` acknowledged bytes (sections 4.2 to 4.5).
    fn congestion_avoidance(&mut self, bytes: u32, acked: &AckSample) {
        if self.curve.epoch.is_none() {
            self.begin_epoch(acked.now);
        }
        let Some(epoch) = &mut self.curve.epoch else { return };
        let (cwnd, mss) = (self.cwnd, self.mss);
        epoch.grow_estimate(bytes, cwnd, self.curve.cwnd_prior, mss);
        let t = Micros::between(epoch.start, acked.now);
        if epoch.w_cubic(t, mss) < epoch.w_est {
            // Section 4.3: in the Reno-friendly region "cwnd SHOULD be set to W_est".
            self.cwnd = cwnd.max(epoch.w_est);
            return;
        }
        // Sections 4.4 and 4.5: the target is the curve's value one round trip from now. It is at most one
        // and a half windows.
        let rtt = acked.srtt.or(acked.rtt).unwrap_or_default();
        let target = epoch.w_cubic(t + rtt, mss).clamp(cwnd, cwnd.saturating_add(cwnd / 2));
        epoch.carry += u64::from(bytes) * u64::from(target - cwnd);
        let growth = epoch.carry / u64::from(cwnd);
        epoch.carry %= u64::from(cwnd);
        self.cwnd = cwnd.saturating_add(growth as u32);
    }

    /// Begins a stage (section 4.2).
    fn begin_epoch(&mut self, now: Instant) {
        if self.curve.flat || self.curve.w_max < self.cwnd {
            self.curve.w_max = self.cwnd;
        }
        self.curve.flat = false;
        self.curve.epoch = Some(Epoch {
            start: now,
            k: k_micros(self.curve.w_max - self.cwnd, self.mss),
            plateau: self.curve.w_max,
            w_est: self.cwnd,
            w_est_carry: 0,
            carry: 0,
        });
    }

    /// Excludes unused time from t (section 5.8). Unused is all time in which the window was not the limit.
    /// Of a longer time between two acknowledgements the part beyond a round trip is unused, too.
    fn skip_unused_time(&mut self, acked: &AckSample) {
        let last_ack = self.last_ack.replace(acked.now).unwrap_or(acked.now);
        let Some(epoch) = &mut self.curve.epoch else { return };
        let since = Micros::between(last_ack, acked.now);
        let used = if acked.cwnd_limited { acked.srtt.unwrap_or(since) } else { Micros::ZERO };
        epoch.start = (epoch.start + since.saturating_sub(used)).min(acked.now);
    }

    /// Performs the reduction of sections 4.6 and 4.7 in whole segments, because a part of one permits no
    /// transmission.
    fn reduce(&mut self) {
        self.before = Some(Box::new((self.cwnd, self.curve)));
        let used = self.cwnd - self.cwnd % self.mss;
        let cwnd = u64::from(used);
        let (num, den) = BETA;
        // Section 4.7, fast convergence: after congestion below the last W_max, leave capacity to others.
        self.curve.w_max =
            if used < self.curve.w_max { (cwnd * (den + num) / (2 * den)) as u32 } else { used };
        self.curve.cwnd_prior = used;
        let reduced = (cwnd * num / den) as u32;
        self.curve.ssthresh = (reduced - reduced % self.mss).max(2 * self.mss);
        self.curve.epoch = None;
        self.curve.flat = false;
    }
}

impl Epoch {
    /// Grows W_est by alpha segments per acknowledged window. Once W_est has reached the window before the
    /// reduction, it grows by one segment instead (section 4.3, figure 4).
    fn grow_estimate(&mut self, bytes: u32, cwnd: u32, cwnd_prior: u32, mss: u32) {
        let (num, den) = if self.w_est >= cwnd_prior { (ALPHA.1, ALPHA.1) } else { ALPHA };
        let whole = den * u64::from(cwnd);
        self.w_est_carry += u64::from(bytes) * u64::from(mss) * num;
        self.w_est = self.w_est.saturating_add((self.w_est_carry / whole) as u32);
        self.w_est_carry %= whole;
    }

    /// W_cubic(t) = C * (t - K)^3 + W_max (section 4.2, figure 1), bytes.
    fn w_cubic(&self, t: Micros, mss: u32) -> u32 {
        let t = u64::from(t.0);
        let offset = u128::from(t.abs_diff(self.k).min(OFFSET_MAX));
        let delta = C.0 * u128::from(mss) * offset * offset * offset / (C.1 * MICROS_CUBED);
        let delta = u32::try_from(delta).unwrap_or(u32::MAX);
        if t < self.k { self.plateau.saturating_sub(delta) } else { self.plateau.saturating_add(delta) }
    }
}

/// K = cbrt((W_max - cwnd_epoch) / C) (section 4.2, figure 2) for a difference in bytes, in
/// microseconds.
fn k_micros(difference: u32, mss: u32) -> u64 {
    cube_root(u128::from(difference) * C.1 * MICROS_CUBED / (C.0 * u128::from(mss)))
}

/// Returns the largest integer whose cube is at most `n`, which is below 2^126.
fn cube_root(n: u128) -> u64 {
    let mut root = 0u128;
    for bit in (0..42).rev() {
        let candidate = root | 1 << bit;
        if candidate * candidate * candidate <= n {
            root = candidate;
        }
    }
    root as u64
}

impl Window for Cubic {
    fn name(&self) -> &'static str {
        "cubic"
    }

    fn cwnd(&self) -> u32 {
        self.cwnd
    }

    fn ssthresh(&self) -> u32 {
        self.curve.ssthresh
    }

    fn mss(&self) -> u32 {
        self.mss
    }

    fn set_mss(&mut self, mss: u32) {
        self.mss = mss.max(1);
        self.cwnd = self.cwnd.max(self.mss);
    }

    fn on_ack(&mut self, acked: &AckSample) {
        self.skip_unused_time(acked);
        let bytes = if self.in_slow_start() { self.slow_start(acked) } else { acked.newly_acked };
        if acked.cwnd_limited && bytes > 0 && !self.in_slow_start() {
            self.congestion_avoidance(bytes, acked);
        }
    }

    fn on_congestion(&mut self, _now: Instant) -> u32 {
        self.reduce();
        self.curve.ssthresh
    }

    fn on_timeout(&mut self, _now: Instant, first: bool) {
        if first {
            self.reduce();
        }
        // Section 4.8: the next stage starts with K = 0 and W_max = cwnd.
        self.curve.flat = true;
        self.curve.epoch = None;
        self.cwnd = self.mss;
    }

    fn set_cwnd(&mut self, cwnd: u32) {
        self.cwnd = cwnd.max(self.mss);
    }

    fn set_ssthresh(&mut self, ssthresh: u32) {
        self.curve.ssthresh = ssthresh.max(2 * self.mss);
    }

    fn on_idle(&mut self, _now: Instant, restart: u32) {
        let restart = restart.max(self.mss);
        if restart < self.cwnd {
            // RFC 2861 section 3: ssthresh remembers what was known about the path.
            self.curve.ssthresh = self.curve.ssthresh.max(self.cwnd - self.cwnd / 4);
            self.curve.epoch = None;
            self.cwnd = restart;
        }
    }

    fn undo(&mut self, _now: Instant) {
        if let Some((cwnd, curve)) = self.before.take().map(|before| *before) {
            self.cwnd = self.cwnd.max(cwnd);
            self.curve = curve;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Duration;
    use brisk_wire::SeqNum;
    use std::vec::Vec;

    const MSS: u32 = 1448;

    /// A connection that sends whole windows; every second segment is acknowledged.
    struct Flow {
        cubic: Cubic,
        now: Instant,
        una: SeqNum,
    }

    impl Flow {
        fn new(cubic: Cubic) -> Self {
            Flow { cubic, now: Instant::from_millis(1_000), una: SeqNum(0) }
        }

        /// Returns a flow in congestion avoidance after a reduction from `w_max` segments.
        fn after_congestion(w_max: u32) -> Self {
            let mut cubic = Cubic::new(MSS, 10 * MSS, true);
            cubic.set_cwnd(w_max * MSS);
            let ssthresh = cubic.on_congestion(Instant::from_millis(1_000));
            cubic.set_cwnd(ssthresh);
            Flow::new(cubic)
        }

        fn acked(&self, bytes: u32, rtt: Duration) -> AckSample {
            AckSample {
                rtt: Some(rtt.into()),
                srtt: Some(rtt.into()),
                una: self.una,
                nxt: self.una + self.cubic.cwnd(),
                ..AckSample::acked(self.now, bytes)
            }
        }

        fn ack(&mut self, bytes: u32, rtt: Duration) {
            self.una += bytes;
            let acked = self.acked(bytes, rtt);
            self.cubic.on_ack(&acked);
        }

        /// One round trip: a window of acknowledgements, spread evenly. Calls `each` after every one.
        fn round(&mut self, rtt: Duration, mut each: impl FnMut(&Flow, u32)) {
            let acks = (self.cubic.cwnd() / (2 * MSS)).max(1);
            for _ in 0..acks {
                self.now += rtt / acks;
                self.ack(2 * MSS, rtt);
                each(self, 2 * MSS);
            }
        }
    }

    /// RFC 9438 in floating point, in segments and seconds, as it is printed.
    struct Reference {
        cwnd: f64,
        w_max: f64,
        k: f64,
        start: Option<f64>,
        w_est: f64,
        cwnd_prior: f64,
    }

    impl Reference {
        const C: f64 = 0.4;
        const BETA: f64 = 0.7;

        /// Returns the state just after a reduction from `w_max`.
        fn after_congestion(w_max: f64) -> Self {
            let cwnd = w_max * Self::BETA;
            let k = ((w_max - cwnd) / Self::C).cbrt();
            Reference { cwnd, w_max, k, start: None, w_est: cwnd, cwnd_prior: w_max }
        }

        fn w_cubic(&self, t: f64) -> f64 {
            Self::C * (t - self.k).powi(3) + self.w_max
        }

        fn on_ack(&mut self, segments: f64, now: f64, rtt: f64) {
            let t = now - *self.start.get_or_insert(now);
            let alpha = if self.w_est >= self.cwnd_prior {
                1.0
            } else {
                3.0 * (1.0 - Self::BETA) / (1.0 + Self::BETA)
            };
            self.w_est += alpha * segments / self.cwnd;
            if self.w_cubic(t) < self.w_est {
                self.cwnd = self.cwnd.max(self.w_est);
            } else {
                let target = self.w_cubic(t + rtt).clamp(self.cwnd, 1.5 * self.cwnd);
                self.cwnd += segments * (target - self.cwnd) / self.cwnd;
            }
        }
    }

    /// Runs both for `seconds` and checks that they never differ by a segment.
    fn follows_the_rfc(w_max: u32, rtt: Duration, seconds: u64) -> Flow {
        let mut flow = Flow::after_congestion(w_max);
        let mut reference = Reference::after_congestion(f64::from(w_max));
        let end = flow.now + Duration::from_secs(seconds);
        while flow.now < end {
            flow.round(rtt, |flow, bytes| {
                let now = flow.now.as_micros() as f64 / 1e6;
                reference.on_ack(f64::from(bytes) / f64::from(MSS), now, rtt.as_secs_f64());
                let cwnd = f64::from(flow.cubic.cwnd()) / f64::from(MSS);
                assert!((cwnd - reference.cwnd).abs() < 1.0, "{cwnd} at {now} s, not {}", reference.cwnd);
            });
        }
        flow
    }

    #[test]
    fn the_window_follows_the_formulae_of_rfc_9438() {
        for (w_max, millis) in [(10, 100), (100, 20), (100, 100), (500, 200), (2000, 50), (10_000, 100)] {
            follows_the_rfc(w_max, Duration::from_millis(millis), 20);
        }
    }

    /// Section 4.3: on short paths W_est grows faster than the curve: by 9/17 segments per round trip up to
    /// the old window, and by one segment after that.
    #[test]
    fn on_short_paths_it_is_as_fast_as_reno() {
        let rtt = Duration::from_millis(5);
        let flow = follows_the_rfc(40, rtt, 3);
        let rounds_to_w_max = 12.0 * 17.0 / 9.0;
        let expected = 40.0 + 600.0 - rounds_to_w_max;
        let cwnd = f64::from(flow.cubic.cwnd()) / f64::from(MSS);
        assert!((cwnd / expected - 1.0).abs() < 0.05, "{cwnd}, not {expected}");
    }

    /// Section 4.2: the target is bounded: "1.5 * cwnd if W_cubic(t + RTT) > 1.5 * cwnd".
    #[test]
    fn on_long_paths_it_grows_by_half_per_round_trip_at_most() {
        let mut flow = follows_the_rfc(20, Duration::from_secs(5), 25);
        let before = flow.cubic.cwnd();
        flow.round(Duration::from_secs(5), |_, _| ());
        let growth = f64::from(flow.cubic.cwnd()) / f64::from(before);
        assert!((1.4..=0.5f64.exp()).contains(&growth), "by {growth}");
    }

    /// Section 4.2: the window grows along a concave curve to W_max, which it reaches after K. From there it
    /// grows along a convex curve.
    #[test]
    fn the_plateau_is_reached_after_k() {
        let rtt = Duration::from_millis(100);
        let mut flow = Flow::after_congestion(1_000);
        let k = (300.0f64 / 0.4).cbrt();
        let mut sizes = Vec::new();
        let start = flow.now;
        while flow.now.saturating_since(start) < Duration::from_secs_f64(2.0 * k) {
            flow.round(rtt, |_, _| ());
            sizes.push(flow.cubic.cwnd() / MSS);
        }
        let at_k = sizes[(k / 0.1) as usize];
        assert!((995..=1_005).contains(&at_k), "{at_k} segments after {k} s");
        let growth = |round: usize| sizes[round + 5] - sizes[round];
        assert!(growth(0) > growth(40) && growth(80) < growth(170), "concave, then convex");
    }

    #[test]
    fn a_part_of_a_segment_does_not_count_when_the_window_is_reduced() {
        let mut cubic = Cubic::new(MSS, 9 * MSS + MSS - 1, true);
        assert_eq!(cubic.on_congestion(Instant::ZERO), 6 * MSS, "seven tenths of nine segments");
        assert_eq!((cubic.curve.w_max, cubic.curve.cwnd_prior), (9 * MSS, 9 * MSS));
    }

    /// Section 4.6: "ssthresh = cwnd * beta_cubic", at least two segments.
    #[test]
    fn congestion_multiplies_by_seven_tenths() {
        let mut cubic = Cubic::new(1_000, 100_000, true);
        assert_eq!(cubic.on_congestion(Instant::ZERO), 70_000);
        assert_eq!((cubic.cwnd(), cubic.ssthresh()), (100_000, 70_000), "PRR brings the window down");
        cubic.set_cwnd(2_000);
        assert_eq!(cubic.on_congestion(Instant::ZERO), 2_000);
    }

    /// Section 4.7: "W_max = cwnd * (1 + beta_cubic) / 2" if cwnd has not reached the last W_max.
    #[test]
    fn fast_convergence_gives_room_to_newcomers() {
        let mut cubic = Cubic::new(1_000, 100_000, true);
        cubic.on_congestion(Instant::ZERO);
        assert_eq!(cubic.curve.w_max, 100_000);
        cubic.set_cwnd(80_000);
        cubic.on_congestion(Instant::ZERO);
        assert_eq!((cubic.curve.w_max, cubic.curve.cwnd_prior), (68_000, 80_000));
        cubic.set_cwnd(90_000);
        cubic.on_congestion(Instant::ZERO);
        assert_eq!(cubic.curve.w_max, 90_000, "beyond the last W_max: no less than the window");
        cubic.on_congestion(Instant::ZERO);
        assert_eq!(cubic.curve.w_max, 90_000, "nor where the last W_max was just reached");
    }

    /// Section 4.8: after a timeout "K is set to 0, and W_max is set to the congestion window size at the
    /// beginning of the current congestion avoidance stage".
    #[test]
    fn after_a_timeout_the_curve_starts_flat() {
        let mut flow = Flow::new(Cubic::new(MSS, 100 * MSS, true));
        flow.cubic.on_timeout(flow.now, true);
        assert_eq!((flow.cubic.cwnd(), flow.cubic.ssthresh()), (MSS, 70 * MSS));
        let rtt = Duration::from_millis(100);
        while flow.cubic.in_slow_start() {
            flow.round(rtt, |_, _| ());
        }
        flow.round(rtt, |_, _| ());
        let epoch = flow.cubic.curve.epoch.expect("in congestion avoidance");
        assert_eq!((epoch.k, epoch.plateau), (0, 70 * MSS));
    }

    /// RFC 5681 section 3.1: for further timeouts of the same data "the value of ssthresh is held
    /// constant".
    #[test]
    fn further_timeouts_leave_ssthresh() {
        let mut cubic = Cubic::new(1_000, 100_000, true);
        cubic.on_timeout(Instant::ZERO, true);
        cubic.on_timeout(Instant::ZERO, false);
        assert_eq!((cubic.cwnd(), cubic.ssthresh()), (1_000, 70_000));
        cubic.undo(Instant::ZERO);
        assert_eq!((cubic.cwnd(), cubic.ssthresh()), (100_000, u32::MAX));
    }

    /// Section 4.9: a spurious reduction restores what was in force, the curve included.
    #[test]
    fn undo_restores_the_window_and_the_curve() {
        let rtt = Duration::from_millis(100);
        let mut flow = Flow::after_congestion(100);
        for _ in 0..10 {
            flow.round(rtt, |_, _| ());
        }
        let before = flow.cubic.clone();
        let ssthresh = flow.cubic.on_congestion(flow.now);
        flow.cubic.set_cwnd(ssthresh);
        flow.cubic.undo(flow.now);
        assert_eq!((flow.cubic.cwnd(), flow.cubic.ssthresh()), (before.cwnd(), before.ssthresh()));
        let (restored, epoch) = (flow.cubic.curve, before.curve.epoch.expect("in congestion avoidance"));
        assert_eq!(restored.w_max, before.curve.w_max);
        assert_eq!(restored.epoch.map(|epoch| (epoch.start, epoch.k)), Some((epoch.start, epoch.k)));
        flow.cubic.undo(flow.now);
        assert_eq!(flow.cubic.cwnd(), before.cwnd(), "once");
    }

    #[test]
    fn slow_start_grows_by_the_bytes_acknowledged() {
        let mut flow = Flow::new(Cubic::new(1_000, 10_000, true));
        flow.ack(10_000, Duration::from_millis(50));
        assert_eq!(flow.cubic.cwnd(), 20_000);
        flow.ack(500, Duration::from_millis(50));
        assert_eq!(flow.cubic.cwnd(), 20_500);
    }

    #[test]
    fn one_acknowledgement_grows_an_unpaced_window_by_a_super_segment_at_most() {
        let mut unpaced = Flow::new(Cubic::new(1_000, 200_000, false));
        unpaced.ack(200_000, Duration::from_millis(50));
        assert_eq!(unpaced.cubic.cwnd(), 200_000 + SLOW_START_BURST);
        let mut jumbo = Flow::new(Cubic::new(9_000, 200_000, false));
        jumbo.ack(200_000, Duration::from_millis(50));
        assert_eq!(jumbo.cubic.cwnd(), 200_000 + L * 9_000, "L = 8 segments if these are more");
        let mut paced = Flow::new(Cubic::new(1_000, 200_000, true));
        paced.ack(200_000, Duration::from_millis(50));
        assert_eq!(paced.cubic.cwnd(), 400_000);
    }

    #[test]
    fn slow_start_ends_at_ssthresh_and_the_rest_goes_to_congestion_avoidance() {
        let mut flow = Flow::after_congestion(100);
        flow.cubic.set_cwnd(69 * MSS);
        flow.ack(40 * MSS, Duration::from_millis(100));
        assert!(!flow.cubic.in_slow_start());
        assert!(flow.cubic.cwnd() > 70 * MSS && flow.cubic.cwnd() < 75 * MSS);
    }

    /// RFC 9406: a rising round-trip time ends the first slow start without a loss. W_max is then the window
    /// at that point (RFC 9438 section 4.10).
    #[test]
    fn hystart_ends_slow_start_before_a_loss() {
        let mut flow = Flow::new(Cubic::new(MSS, 20 * MSS, true));
        let mut rtt = Duration::from_millis(50);
        let mut conservative = 0;
        for round in 0..20 {
            if !flow.cubic.in_slow_start() {
                break;
            }
            if round >= 3 {
                rtt += Duration::from_millis(10);
            }
            let before = flow.cubic.cwnd();
            flow.round(rtt, |_, _| ());
            if matches!(flow.cubic.hystart.phase(), HystartPhase::Conservative { .. }) {
                conservative += 1;
            } else if round < 3 {
                assert_eq!(flow.cubic.cwnd(), before + before / (2 * MSS) * 2 * MSS, "doubles");
            }
        }
        assert!((4..=5).contains(&conservative), "{conservative} rounds of conservative slow start");
        assert!(flow.cubic.ssthresh() < u32::MAX && flow.cubic.before.is_none(), "and no reduction");
        flow.round(rtt, |_, _| ());
        let epoch = flow.cubic.curve.epoch.expect("in congestion avoidance");
        assert_eq!((epoch.k, epoch.plateau), (0, flow.cubic.ssthresh()));
    }

    /// RFC 9406 section 4.3: "An implementation SHOULD use HyStart++ only for the initial slow start".
    #[test]
    fn later_slow_starts_ignore_the_round_trip_time() {
        let mut flow = Flow::new(Cubic::new(MSS, 100 * MSS, true));
        flow.cubic.on_timeout(flow.now, true);
        let mut rtt = Duration::from_millis(50);
        for _ in 0..5 {
            rtt += Duration::from_millis(30);
            flow.round(rtt, |_, _| ());
        }
        assert_eq!(flow.cubic.hystart.phase(), HystartPhase::SlowStart);
    }

    /// RFC 7661: a window that is not used is not grown.
    #[test]
    fn the_window_does_not_grow_while_it_is_not_the_limit() {
        for mut flow in [Flow::new(Cubic::new(MSS, 10 * MSS, true)), Flow::after_congestion(100)] {
            let before = flow.cubic.cwnd();
            flow.now += Duration::from_millis(100);
            let acked = AckSample { cwnd_limited: false, ..flow.acked(5 * MSS, Duration::from_millis(100)) };
            flow.cubic.on_ack(&acked);
            assert_eq!(flow.cubic.cwnd(), before);
        }
    }

    /// RFC 9438 section 5.8: after a period in which the application did not use the window, the curve
    /// continues from the same point.
    #[test]
    fn unused_time_does_not_move_the_curve() {
        let rtt = Duration::from_millis(100);
        let mut steady = Flow::after_congestion(1_000);
        let mut pausing = Flow::after_congestion(1_000);
        for round in 0..40 {
            steady.round(rtt, |_, _| ());
            if round == 10 {
                for _ in 0..100 {
                    pausing.now += rtt;
                    let acked = AckSample { cwnd_limited: false, ..pausing.acked(MSS, rtt) };
                    pausing.cubic.on_ack(&acked);
                }
            }
            if round == 20 {
                pausing.now += Duration::from_secs(30);
            }
            pausing.round(rtt, |_, _| ());
        }
        let (a, b) = (steady.cubic.cwnd(), pausing.cubic.cwnd());
        assert!(a.abs_diff(b) < 10 * MSS, "{a} and {b}");
    }

    #[test]
    fn idleness_restarts_slow_start_towards_what_was_known() {
        let mut cubic = Cubic::new(1_000, 10_000, true);
        cubic.on_congestion(Instant::ZERO);
        cubic.set_cwnd(40_000);
        cubic.on_idle(Instant::ZERO, 10_000);
        assert_eq!((cubic.cwnd(), cubic.ssthresh()), (10_000, 30_000));
        cubic.on_idle(Instant::ZERO, 50_000);
        assert_eq!((cubic.cwnd(), cubic.ssthresh()), (10_000, 30_000), "never grows the window");
    }

    #[test]
    fn known_threshold_of_the_path_holds_with_a_minimum_of_two_segments() {
        let mut cubic = Cubic::new(1_000, 10_000, true);
        cubic.set_ssthresh(15_000);
        assert_eq!((cubic.cwnd(), cubic.ssthresh()), (10_000, 15_000));
        cubic.set_ssthresh(100);
        assert_eq!(cubic.ssthresh(), 2_000);
    }

    #[test]
    fn extreme_inputs_do_not_panic() {
        let mut flow = Flow::new(Cubic::new(0, 0, true));
        flow.ack(u32::MAX, Duration::ZERO);
        flow.ack(u32::MAX, Duration::ZERO);
        flow.cubic.on_congestion(flow.now);
        flow.cubic.set_mss(65_535);
        flow.now += Duration::from_secs(1_000_000);
        for _ in 0..10 {
            flow.ack(u32::MAX, Duration::from_secs(100_000));
            flow.now += Duration::from_secs(100_000);
        }
        flow.cubic.set_cwnd(0);
        flow.cubic.on_congestion(flow.now);
        flow.ack(1, Duration::ZERO);
        assert!(flow.cubic.cwnd() >= 65_535);
    }

    #[test]
    fn the_cube_root_is_exact() {
        for n in [0, 1, 7, 8, 26, 27, 1_000_000, 999_999_999_999_999_999, 1_000_000_000_000_000_000] {
            let root = u128::from(cube_root(n));
            assert!(root.pow(3) <= n && (root + 1).pow(3) > n, "{n}");
        }
        let largest = u128::from(u32::MAX) * C.1 * MICROS_CUBED / C.0;
        let root = u128::from(cube_root(largest));
        assert!(root.pow(3) <= largest && (root + 1).pow(3) > largest);
    }
}

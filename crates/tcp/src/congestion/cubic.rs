//! CUBIC congestion control (RFC 9438) in integers, with HyStart++ (RFC 9406) in the first slow start.
//!
//! After a reduction the window grows along a cubic curve of the time since, flat around the size at
//! which congestion was met, so that growth does not depend on the round-trip time. Where Reno would
//! have grown further, its estimate is followed instead (section 4.3). The controller counts bytes,
//! microseconds and thousandths of nothing: every fraction is a remainder that is carried over.

use super::hystart::{HyStart, Phase};
use super::reno::SLOW_START_BURST;
use super::{Acked, CongestionController};
use crate::time::{Duration, Instant};

/// C = 0.4 segments per second cubed, as a fraction.
const C: (u128, u128) = (4, 10);

/// beta_cubic = 0.7, as a fraction.
const BETA: (u64, u64) = (7, 10);

/// alpha_cubic = 3 * (1 - beta) / (1 + beta) = 9/17 (section 4.3).
const ALPHA: (u64, u64) = (9, 17);

/// L of RFC 9406 section 4.2 where transmissions are not paced, segments.
const L: u32 = 8;

/// Cubic microseconds in a cubic second.
const MICROS_CUBED: u128 = 1_000_000_000_000_000_000;

/// Times further than this from the plateau are taken for this: the window is out of range by then.
const OFFSET_MAX: u64 = 10_000_000_000;

/// What a reduction changes and an undo restores (RFC 9438 section 4.9).
#[derive(Clone, Copy, Debug)]
struct Curve {
    ssthresh: u32,
    /// W_max, bytes.
    w_max: u32,
    /// cwnd_prior: the window before the last reduction, bytes.
    cwnd_prior: u32,
    /// The congestion avoidance stage under way.
    epoch: Option<Epoch>,
    /// The stage that begins next starts on the plateau: K = 0, W_max = cwnd (sections 4.8, 4.10).
    flat: bool,
}

/// One stage of congestion avoidance.
#[derive(Clone, Copy, Debug)]
struct Epoch {
    /// t = 0, moved on while the window is not the limit.
    start: Instant,
    /// K, microseconds.
    k: u64,
    /// Window at the plateau, bytes.
    plateau: u32,
    /// W_est: what Reno would have, bytes.
    w_est: u32,
    /// Carry of W_est, in units of 1/(17 * cwnd) bytes... kept as numerator.
    w_est_carry: u64,
    /// Carry of the cubic growth, numerator over cwnd.
    carry: u64,
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct Cubic {
    mss: u32,
    cwnd: u32,
    paced: bool,
    curve: Curve,
    hystart: HyStart,
    /// When the last acknowledgement came: the time that does not count while the window is not the
    /// limit.
    last_ack: Option<Instant>,
    /// State before the last reduction.
    before: Option<(u32, Curve)>,
}

impl Cubic {
    /// An initial window of `initial` bytes and segments of at most `mss` bytes; `paced` if bursts
    /// are spread over the round trip.
    pub fn new(mss: u32, initial: u32, paced: bool) -> Self {
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

    /// Slow start (RFC 9438 section 4.10). Returns the bytes left for congestion avoidance.
    fn slow_start(&mut self, acked: &Acked) -> u32 {
        let first = self.curve.ssthresh == u32::MAX;
        let phase =
            if first { self.hystart.on_ack(acked.rtt, acked.una, acked.nxt) } else { Phase::SlowStart };
        if phase == Phase::Done {
            // RFC 9406 section 4.2: "enter congestion avoidance by setting ssthresh to current cwnd".
            self.curve.ssthresh = self.cwnd;
            return acked.bytes;
        }
        if !acked.cwnd_limited {
            return 0;
        }
        let most = if self.paced { u32::MAX } else { SLOW_START_BURST.max(L * self.mss) };
        let bytes = acked.bytes.min(most);
        let growth = if first { self.hystart.growth(bytes) } else { bytes };
        let room = self.curve.ssthresh - self.cwnd;
        self.cwnd += growth.min(room);
        growth.saturating_sub(room)
    }

    /// Sections 4.2 to 4.5.
    fn congestion_avoidance(&mut self, bytes: u32, acked: &Acked) {
        let (cwnd, mss) = (self.cwnd, self.mss);
        let prior = self.curve.cwnd_prior;
        let rtt = acked.srtt.or(acked.rtt).unwrap_or(Duration::ZERO);
        let begin = self.begin(acked.now);
        let epoch = self.curve.epoch.get_or_insert(begin);
        epoch.grow_estimate(bytes, cwnd, prior, mss);
        let t = acked.now.saturating_since(epoch.start);
        if epoch.w_cubic(t, mss) < epoch.w_est {
            // Section 4.3: in the Reno-friendly region "cwnd SHOULD be set to W_est".
            self.cwnd = cwnd.max(epoch.w_est);
            return;
        }
        // Sections 4.4 and 4.5: towards what the curve gives one round trip from now, at most by half.
        let target = epoch.w_cubic(t + rtt, mss).clamp(cwnd, cwnd.saturating_add(cwnd / 2));
        epoch.carry += u64::from(bytes) * u64::from(target - cwnd);
        let growth = epoch.carry / u64::from(cwnd);
        epoch.carry %= u64::from(cwnd);
        self.cwnd = cwnd.saturating_add(growth as u32);
    }

    /// The stage that begins now (section 4.2).
    fn begin(&self, now: Instant) -> Epoch {
        let flat = self.curve.flat || self.curve.w_max <= self.cwnd;
        let plateau = if flat { self.cwnd } else { self.curve.w_max };
        Epoch {
            start: now,
            k: k_micros(plateau - self.cwnd, self.mss),
            plateau,
            w_est: self.cwnd,
            w_est_carry: 0,
            carry: 0,
        }
    }

    /// Sections 4.6 and 4.7.
    fn reduce(&mut self) {
        self.before = Some((self.cwnd, self.curve));
        let cwnd = u64::from(self.cwnd);
        let (num, den) = BETA;
        // Section 4.7, fast convergence: meeting congestion below the last W_max, give room.
        self.curve.w_max =
            if self.cwnd < self.curve.w_max { (cwnd * (den + num) / (2 * den)) as u32 } else { self.cwnd };
        self.curve.cwnd_prior = self.cwnd;
        self.curve.ssthresh = ((cwnd * num / den) as u32).max(2 * self.mss);
        self.curve.epoch = None;
        self.curve.flat = false;
    }
}

impl Epoch {
    /// Section 4.3, figure 4: W_est grows by alpha segments per window acknowledged; by one once it
    /// has reached the window before the reduction.
    fn grow_estimate(&mut self, bytes: u32, cwnd: u32, cwnd_prior: u32, mss: u32) {
        let (num, den) = if self.w_est >= cwnd_prior { (ALPHA.1, ALPHA.1) } else { ALPHA };
        let whole = den * u64::from(cwnd);
        self.w_est_carry += u64::from(bytes) * u64::from(mss) * num;
        self.w_est = self.w_est.saturating_add((self.w_est_carry / whole) as u32);
        self.w_est_carry %= whole;
    }

    /// W_cubic(t) = C * (t - K)^3 + W_max (section 4.2, figure 1), bytes.
    fn w_cubic(&self, t: Duration, mss: u32) -> u32 {
        let t = t.as_micros() as u64;
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

/// The largest integer whose cube is not above `n`. `n` is below 2^126 here.
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

impl CongestionController for Cubic {
    fn name(&self) -> &'static str {
        "cubic"
    }

    fn cwnd(&self) -> u32 {
        self.cwnd
    }

    fn ssthresh(&self) -> u32 {
        self.curve.ssthresh
    }

    fn set_mss(&mut self, mss: u32) {
        self.mss = mss.max(1);
        self.cwnd = self.cwnd.max(self.mss);
    }

    fn on_ack(&mut self, acked: &Acked) {
        let since = acked.now.saturating_since(self.last_ack.unwrap_or(acked.now));
        self.last_ack = Some(acked.now);
        let bytes = if self.in_slow_start() { self.slow_start(acked) } else { acked.bytes };
        if acked.cwnd_limited {
            if bytes > 0 && !self.in_slow_start() {
                self.congestion_avoidance(bytes, acked);
            }
        } else if let Some(epoch) = &mut self.curve.epoch {
            // Section 4.2: t excludes the time in which the window was not the limit (section 5.8).
            epoch.start = (epoch.start + since).min(acked.now);
        }
    }

    fn on_congestion(&mut self, _now: Instant) -> u32 {
        self.reduce();
        self.curve.ssthresh
    }

    fn on_timeout(&mut self, _now: Instant, _in_flight: u32, first: bool) {
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

    fn on_idle(&mut self, _now: Instant, restart: u32) {
        self.cwnd = self.cwnd.min(restart.max(self.mss));
        self.curve.epoch = None;
    }

    fn undo(&mut self, _now: Instant) {
        if let Some((cwnd, curve)) = self.before.take() {
            self.cwnd = self.cwnd.max(cwnd);
            self.curve = curve;
        }
    }
}

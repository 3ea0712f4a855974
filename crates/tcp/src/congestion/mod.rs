//! Congestion control: who owns the window.
//!
//! The controller owns `cwnd` and `ssthresh`, in bytes, and nothing else; it does not know the
//! scoreboard. During fast recovery Proportional Rate Reduction decides the window and hands it in
//! through [`CongestionController::set_cwnd`].

use core::fmt::Debug;

use crate::config::CongestionAlgorithm;
use crate::time::{Instant, Micros};
use brisk_wire::SeqNum;

/// What a controller hears of an acknowledgement outside of recovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Acked {
    /// Arrival time.
    pub now: Instant,
    /// Bytes newly acknowledged.
    pub bytes: u32,
    /// Round-trip sample of this acknowledgement.
    pub rtt: Option<Micros>,
    /// Smoothed round-trip time.
    pub srtt: Option<Micros>,
    /// Windowed minimum round-trip time.
    pub min_rtt: Option<Micros>,
    /// SND.UNA after the acknowledgement: rounds are counted by it.
    pub una: SeqNum,
    /// SND.NXT.
    pub nxt: SeqNum,
    /// Bytes in flight before the acknowledgement.
    pub in_flight_before: u32,
    /// Whether the window was the limit; the window does not grow otherwise (RFC 7661).
    pub cwnd_limited: bool,
}

/// A congestion controller.
pub trait CongestionController: Debug + Send {
    /// Its name, as users know it.
    fn name(&self) -> &'static str;
    /// Congestion window, bytes.
    fn cwnd(&self) -> u32;
    /// Slow-start threshold, bytes; `u32::MAX` before the first congestion.
    fn ssthresh(&self) -> u32;
    /// The largest payload changed (path MTU, option size).
    fn set_mss(&mut self, mss: u32);
    /// An acknowledgement of new data while no reduction is under way.
    fn on_ack(&mut self, acked: &Acked);
    /// Congestion: computes and returns the new `ssthresh` (at least two segments) from `cwnd`;
    /// leaves `cwnd` to PRR.
    fn on_congestion(&mut self, now: Instant) -> u32;
    /// Retransmission timeout with `in_flight` bytes outstanding: one segment from here.
    /// `first` is false for further timeouts of the same data, which do not lower `ssthresh` again
    /// (RFC 5681 equation 4).
    fn on_timeout(&mut self, now: Instant, in_flight: u32, first: bool);
    /// PRR or the end of recovery sets the window.
    fn set_cwnd(&mut self, cwnd: u32);
    /// Sets the slow-start threshold: what is remembered of the path, or a limit that follows from it.
    fn set_ssthresh(&mut self, ssthresh: u32);
    /// Nothing was sent for longer than the timeout (RFC 5681 section 4.1): at most `restart` bytes.
    fn on_idle(&mut self, now: Instant, restart: u32);
    /// The reduction was a mistake: restore what was in force before it.
    fn undo(&mut self, now: Instant);
    /// True while the window grows exponentially.
    fn in_slow_start(&self) -> bool {
        self.cwnd() < self.ssthresh()
    }
}

/// One of the controllers, in place: a connection is made and parked with all that it knows.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub enum Controller {
    /// CUBIC.
    Cubic(cubic::Cubic),
    /// Reno.
    Reno(reno::Reno),
    /// A fixed window.
    Fixed(fixed::Fixed),
}

impl Controller {
    /// The controller that a configuration names, with an initial window of `initial` bytes.
    pub fn new(algorithm: CongestionAlgorithm, mss: u32, initial: u32, paced: bool) -> Controller {
        match algorithm {
            CongestionAlgorithm::Cubic => Controller::Cubic(cubic::Cubic::new(mss, initial, paced)),
            CongestionAlgorithm::Reno => Controller::Reno(reno::Reno::new(mss, initial)),
            CongestionAlgorithm::Fixed(window) => Controller::Fixed(fixed::Fixed::new(window)),
        }
    }
}

/// What the controller that is there says to `$call`.
macro_rules! of {
    ($self:ident, $controller:ident => $call:expr) => {
        match $self {
            Controller::Cubic($controller) => $call,
            Controller::Reno($controller) => $call,
            Controller::Fixed($controller) => $call,
        }
    };
}

impl CongestionController for Controller {
    fn name(&self) -> &'static str {
        of!(self, controller => controller.name())
    }

    #[inline]
    fn cwnd(&self) -> u32 {
        of!(self, controller => controller.cwnd())
    }

    #[inline]
    fn ssthresh(&self) -> u32 {
        of!(self, controller => controller.ssthresh())
    }

    fn set_mss(&mut self, mss: u32) {
        of!(self, controller => controller.set_mss(mss));
    }

    fn on_ack(&mut self, acked: &Acked) {
        of!(self, controller => controller.on_ack(acked));
    }

    fn on_congestion(&mut self, now: Instant) -> u32 {
        of!(self, controller => controller.on_congestion(now))
    }

    fn on_timeout(&mut self, now: Instant, in_flight: u32, first: bool) {
        of!(self, controller => controller.on_timeout(now, in_flight, first));
    }

    fn set_cwnd(&mut self, cwnd: u32) {
        of!(self, controller => controller.set_cwnd(cwnd));
    }

    fn set_ssthresh(&mut self, ssthresh: u32) {
        of!(self, controller => controller.set_ssthresh(ssthresh));
    }

    fn on_idle(&mut self, now: Instant, restart: u32) {
        of!(self, controller => controller.on_idle(now, restart));
    }

    fn undo(&mut self, now: Instant) {
        of!(self, controller => controller.undo(now));
    }
}

pub mod cubic;
pub mod fixed;
pub mod hystart;
pub mod reno;
pub mod sample;

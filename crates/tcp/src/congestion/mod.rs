//! Congestion control.
//!
//! A [`CongestionController`] receives reports of sent, delivered and lost data ([`sample`]) and returns a
//! window and, if it paces, a rate. It also sets the window during recovery, while `send/recovery.rs` decides
//! when recovery begins and ends. The loss-based controllers share `loss_based::LossBased`, which runs
//! Proportional Rate Reduction in recovery.

use alloc::boxed::Box;
use core::fmt::Debug;
use core::ops::{Deref, DerefMut};

use crate::outcome::CongestionState;
use crate::time::Instant;
use bbr::Bbr;
use cubic::Cubic;
use fixed::Fixed;
use loss_based::LossBased;
use reno::Reno;
use sample::{AckSample, CongestionEvent, ControllerStart, LostPacket, RtoEvent, Train, Transmission};

pub use algorithm::{CongestionAlgorithm, ControllerFactory, UnknownCongestion};
pub use prr::PrrBound;

/// A congestion controller. All sizes are in bytes.
pub trait CongestionController: Debug + Send {
    /// Its name, as users know it.
    fn name(&self) -> &'static str;

    /// Congestion window.
    fn cwnd(&self) -> u32;

    /// Slow-start threshold; `None` before the first congestion, or if there is none.
    fn ssthresh(&self) -> Option<u32> {
        None
    }

    /// True while the window grows exponentially.
    fn in_slow_start(&self) -> bool {
        false
    }

    /// Bytes per second at which transmissions leave; `None`: the configuration decides whether the window is
    /// paced.
    fn pacing_rate(&self) -> Option<u64> {
        None
    }

    /// True if [`AckSample::delivery`] is to be measured and losses are to be reported one by one.
    fn needs_delivery_rate(&self) -> bool {
        false
    }

    /// The largest payload changed (path MTU, option size).
    fn set_mss(&mut self, mss: u32);

    /// The connection starts, or starts again, with this window, and with this threshold if one is remembered
    /// for the path.
    fn start(&mut self, window: u32, ssthresh: Option<u32>);

    /// Data left, for the first time or again.
    fn on_sent(&mut self, _sent: &Transmission) {}

    /// A transmission has been marked lost; comes before the acknowledgement, congestion event or timeout
    /// that shows it.
    fn on_lost(&mut self, _lost: &LostPacket) {}

    /// A whole flight is acknowledged, and the spacing of its acknowledgements shows this rate. The call
    /// comes directly before or after the [`AckSample`] of the last acknowledgement.
    fn on_train(&mut self, _train: &Train) {}

    /// Takes every acknowledgement that carries information about outstanding data.
    fn on_ack(&mut self, ack: &AckSample);

    /// Fast recovery or CWR begins; the [`AckSample`] of the same acknowledgement follows.
    fn on_congestion(&mut self, event: &CongestionEvent);

    /// A reduction (`_from`) ends: all data outstanding at its beginning is delivered, or the supposed loss
    /// was none.
    fn on_recovery_exit(&mut self, _from: CongestionState) {}

    /// The reordering timer has declared a loss and leaves `_pipe` bytes in flight: the window must admit the
    /// first retransmission, since no acknowledgement will.
    fn on_reordering_timeout(&mut self, _pipe: u32) {}

    /// The retransmission timer fired.
    fn on_rto(&mut self, rto: &RtoEvent);

    /// The last reduction was a mistake: the state before it is restored.
    fn on_spurious(&mut self, now: Instant);

    /// Nothing was sent for longer than the timeout (RFC 5681 section 4.1): the window restarts with at most
    /// `_restart`.
    fn on_idle_restart(&mut self, _now: Instant, _restart: u32) {}
}

/// One of the controllers, in place.
#[derive(Debug)]
pub(crate) enum Controller {
    /// CUBIC.
    Cubic(LossBased<Cubic>),
    /// Reno.
    Reno(LossBased<Reno>),
    /// BBR, boxed because it is larger than the others.
    Bbr(Box<Bbr>),
    /// A fixed window.
    Fixed(Fixed),
    /// A controller of the program's own.
    Custom(Box<dyn CongestionController>),
}

impl Controller {
    /// The controller that a configuration names.
    pub(crate) fn new(algorithm: &CongestionAlgorithm, prr: PrrBound, start: &ControllerStart) -> Controller {
        let ControllerStart { mss, initial_window, paced, .. } = *start;
        match algorithm {
            CongestionAlgorithm::Cubic => {
                Controller::Cubic(LossBased::new(Cubic::new(mss, initial_window, paced), prr))
            }
            CongestionAlgorithm::Reno => {
                Controller::Reno(LossBased::new(Reno::new(mss, initial_window), prr))
            }
            CongestionAlgorithm::Bbr => Controller::Bbr(Box::new(Bbr::new(start))),
            CongestionAlgorithm::Fixed(window) => Controller::Fixed(Fixed::new(*window)),
            CongestionAlgorithm::Custom(factory) => Controller::Custom(factory.create(start)),
        }
    }
}

/// Sharing between the connections of a path.
impl Controller {
    /// True if the controller has found how much the path carries.
    pub(crate) fn knows_path(&self) -> bool {
        match self {
            Controller::Bbr(controller) => controller.has_filled_pipe(),
            Controller::Cubic(_) | Controller::Reno(_) | Controller::Fixed(_) | Controller::Custom(_) => {
                false
            }
        }
    }

    /// Forgets limits that hold for the next round trips only.
    pub(crate) fn forget_short_term(&mut self) {
        match self {
            Controller::Bbr(controller) => controller.forget_short_term(),
            Controller::Cubic(_) | Controller::Reno(_) | Controller::Fixed(_) | Controller::Custom(_) => {}
        }
    }
}

/// Methods that every segment needs: the controllers of this crate answer them without dynamic dispatch.
impl Controller {
    /// Congestion window, bytes.
    #[inline]
    pub(crate) fn cwnd(&self) -> u32 {
        match self {
            Controller::Cubic(controller) => controller.cwnd(),
            Controller::Reno(controller) => controller.cwnd(),
            Controller::Bbr(controller) => controller.cwnd(),
            Controller::Fixed(controller) => controller.cwnd(),
            Controller::Custom(controller) => controller.cwnd(),
        }
    }

    /// Data left, for the first time or again.
    #[inline]
    pub(crate) fn on_sent(&mut self, sent: &Transmission) {
        match self {
            Controller::Cubic(controller) => controller.on_sent(sent),
            Controller::Reno(controller) => controller.on_sent(sent),
            Controller::Bbr(controller) => controller.on_sent(sent),
            Controller::Fixed(controller) => controller.on_sent(sent),
            Controller::Custom(controller) => controller.on_sent(sent),
        }
    }
}

impl Deref for Controller {
    type Target = dyn CongestionController;

    #[inline]
    fn deref(&self) -> &Self::Target {
        match self {
            Controller::Cubic(controller) => controller,
            Controller::Reno(controller) => controller,
            Controller::Fixed(controller) => controller,
            Controller::Bbr(controller) => &**controller,
            Controller::Custom(controller) => &**controller,
        }
    }
}

impl DerefMut for Controller {
    #[inline]
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            Controller::Cubic(controller) => controller,
            Controller::Reno(controller) => controller,
            Controller::Fixed(controller) => controller,
            Controller::Bbr(controller) => &mut **controller,
            Controller::Custom(controller) => &mut **controller,
        }
    }
}

mod algorithm;
pub(crate) mod bbr;
mod cubic;
pub(crate) mod fixed;
pub(crate) mod hystart;
mod loss_based;
mod prr;
mod reno;
pub mod sample;

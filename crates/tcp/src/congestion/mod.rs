//! Congestion control.
//!
//! A [`CongestionController`] receives reports of sent, delivered and lost data ([`sample`]) and returns a
//! window and, if it paces, a rate. It also sets the window during recovery, while `send/recovery.rs` decides
//! when recovery begins and ends. The loss-based controllers share `loss_based::LossBased`, which runs
//! Proportional Rate Reduction in recovery.

use alloc::boxed::Box;
use core::fmt::Debug;
use core::ops::{Deref, DerefMut};

use crate::evidence::LossHistory;
use crate::time::Instant;
use bbr::Bbr;
use cubic::Cubic;
use fixed::Fixed;
use loss_based::LossBased;
use reno::Reno;
use sample::{AckSample, CongestionEvent, ControllerStart, LostPacket, RtoEvent, Train, Transmission};

pub use algorithm::{CongestionAlgorithm, ControllerFactory, UnknownCongestion};
pub use prr::PrrBound;

pub use crate::outcome::{CongestionState, Episode};

/// A congestion controller. All sizes are in bytes.
pub trait CongestionController: Debug + Send {
    /// Returns its name for users.
    fn name(&self) -> &'static str;

    /// Returns the congestion window.
    fn cwnd(&self) -> u32;

    /// Returns the slow-start threshold; `None` before the first congestion, or if there is none.
    fn ssthresh(&self) -> Option<u32> {
        None
    }

    /// True while the window grows exponentially.
    fn in_slow_start(&self) -> bool {
        false
    }

    /// Returns the rate of transmissions, bytes per second. `None`: the configuration decides about pacing.
    fn pacing_rate(&self) -> Option<u64> {
        None
    }

    /// True if the controller needs [`AckSample::delivery`] and reports of single losses.
    fn needs_delivery_rate(&self) -> bool {
        false
    }

    /// Sets the largest payload, which has changed (path MTU, option size).
    fn set_mss(&mut self, mss: u32);

    /// Starts the connection, or starts it again, with this window.
    fn start(&mut self, window: u32);

    /// Records that data left, for the first time or again.
    fn on_sent(&mut self, _sent: &Transmission) {}

    /// Records that a transmission was marked lost. Called before the acknowledgement, congestion event or
    /// timeout that shows the loss.
    fn on_lost(&mut self, _lost: &LostPacket) {}

    /// Records the rate that the spacing of the acknowledgements of a whole flight shows. Called directly
    /// before or after the [`AckSample`] of the acknowledgement that ends the flight. Called at the
    /// reordering timeout instead if that declares the last segment of the flight lost. Also called after
    /// [`CongestionController::start`], with the rate of earlier connections, if the path memory grants a
    /// larger window ([`path_start`](crate::config::TcpConfig::path_start)).
    fn on_train(&mut self, _train: &Train) {}

    /// Processes every acknowledgement with information about outstanding data.
    fn on_ack(&mut self, ack: &AckSample);

    /// Begins fast recovery or CWR. If an acknowledgement is the cause, its [`AckSample`] follows; no
    /// [`AckSample`] follows a timer.
    fn on_congestion(&mut self, event: &CongestionEvent);

    /// Ends a reduction (`_from`) for one of these reasons: all data outstanding at its beginning is
    /// delivered, the window has been reduced in one step, another reduction begins, or packets seem to be
    /// lost because of their size. For a spurious loss only [`CongestionController::on_spurious`] is called.
    fn on_recovery_exit(&mut self, _from: CongestionState) {}

    /// Responds to a loss that the reordering timer declared, with `_pipe` bytes in flight. The window must
    /// permit the first retransmission, because no acknowledgement will trigger it.
    fn on_reordering_timeout(&mut self, _pipe: u32) {}

    /// Responds to a retransmission timeout.
    fn on_rto(&mut self, rto: &RtoEvent);

    /// Restores the state before the last reduction, which was a mistake.
    fn on_spurious(&mut self, now: Instant);

    /// Limits the window to `_restart`, because nothing was sent for longer than the timeout (RFC 5681
    /// section 4.1).
    fn on_idle_restart(&mut self, _now: Instant, _restart: u32) {}
}

/// One of the controllers, without dynamic dispatch.
#[derive(Debug)]
pub(crate) enum Controller {
    Cubic(LossBased<Cubic>),
    Reno(LossBased<Reno>),
    /// BBR, boxed because it is larger than the others.
    Bbr(Box<Bbr>),
    /// A fixed window.
    Fixed(Fixed),
    /// A controller of the program's own.
    Custom(Box<dyn CongestionController>),
}

impl Controller {
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

/// Exchange with the other connections of a path.
impl Controller {
    /// Takes over the random loss that earlier connections have seen.
    pub(crate) fn expect_random_loss(&mut self, history: LossHistory) {
        if let Controller::Bbr(controller) = self {
            controller.expect_random_loss(history);
        }
    }

    /// True if the controller has found the capacity of the path.
    pub(crate) fn knows_path(&self) -> bool {
        match self {
            Controller::Bbr(controller) => controller.has_filled_pipe(),
            Controller::Cubic(_) | Controller::Reno(_) | Controller::Fixed(_) | Controller::Custom(_) => {
                false
            }
        }
    }

    /// Removes limits that apply to the next round trips only.
    pub(crate) fn forget_short_term(&mut self) {
        match self {
            Controller::Bbr(controller) => controller.forget_short_term(),
            Controller::Cubic(_) | Controller::Reno(_) | Controller::Fixed(_) | Controller::Custom(_) => {}
        }
    }
}

/// Methods that every segment needs, without dynamic dispatch for the controllers of this crate.
impl Controller {
    /// Returns the congestion window, bytes.
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

    /// Records that data left, for the first time or again.
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

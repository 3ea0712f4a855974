//! The choice of a congestion control: one by name, or a factory from the user of the library.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;
use core::str::FromStr;

use super::CongestionController;
use super::sample::ControllerStart;

/// The congestion control of a connection.
///
/// ```
/// use brisk_tcp::config::{CongestionAlgorithm, UnknownCongestion};
///
/// assert_eq!("fixed:20000".parse(), Ok(CongestionAlgorithm::Fixed(20_000)));
/// assert_eq!("vegas".parse::<CongestionAlgorithm>(), Err(UnknownCongestion));
/// assert_eq!(CongestionAlgorithm::Bbr.to_string(), "bbr");
/// assert!(CongestionAlgorithm::NAMES.contains("bbr"));
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum CongestionAlgorithm {
    /// CUBIC (RFC 9438) with HyStart++ (RFC 9406).
    #[default]
    Cubic,
    /// Reno (RFC 5681), beta 0.5.
    Reno,
    /// BBR version 3 (draft-ietf-ccwg-bbr): paces at the rate that the path delivers.
    Bbr,
    /// A fixed window in bytes, for tests and laboratory links.
    Fixed(u32),
    /// A controller of the program.
    Custom(Arc<dyn ControllerFactory>),
}

/// A factory that creates a congestion controller for each connection. With it a program can use its own
/// controller ([`CongestionAlgorithm::Custom`]).
pub trait ControllerFactory: fmt::Debug + Send + Sync {
    /// Returns the name of the algorithm in settings and statistics.
    fn name(&self) -> &str;

    /// Returns a controller for a new connection.
    fn create(&self, start: &ControllerStart) -> Box<dyn CongestionController>;
}

/// Two factories are equal if they are the same object.
impl PartialEq for dyn ControllerFactory {
    fn eq(&self, other: &Self) -> bool {
        core::ptr::addr_eq(self, other)
    }
}

impl Eq for dyn ControllerFactory {}

impl CongestionAlgorithm {
    /// The formats of [`str::parse`], for help texts and error messages.
    pub const NAMES: &str = "cubic, reno, bbr, or fixed:BYTES";
}

/// Prints the format of [`str::parse`], or the name of a custom controller.
impl fmt::Display for CongestionAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CongestionAlgorithm::Cubic => f.write_str("cubic"),
            CongestionAlgorithm::Reno => f.write_str("reno"),
            CongestionAlgorithm::Bbr => f.write_str("bbr"),
            CongestionAlgorithm::Fixed(window) => write!(f, "fixed:{window}"),
            CongestionAlgorithm::Custom(factory) => f.write_str(factory.name()),
        }
    }
}

impl FromStr for CongestionAlgorithm {
    type Err = UnknownCongestion;

    fn from_str(text: &str) -> Result<CongestionAlgorithm, UnknownCongestion> {
        match (text, text.strip_prefix("fixed:")) {
            ("cubic", _) => Ok(CongestionAlgorithm::Cubic),
            ("reno", _) => Ok(CongestionAlgorithm::Reno),
            ("bbr", _) => Ok(CongestionAlgorithm::Bbr),
            (_, Some(window)) => {
                window.parse().map(CongestionAlgorithm::Fixed).map_err(|_| UnknownCongestion)
            }
            _ => Err(UnknownCongestion),
        }
    }
}

/// Error for a text that names no congestion control.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownCongestion;

brisk_wire::impl_error! {
    UnknownCongestion {
        Self => "unknown congestion control; use {}", CongestionAlgorithm::NAMES;
    }
}

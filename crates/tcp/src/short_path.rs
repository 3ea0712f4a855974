//! How much may be under way where the path is short: within a host or a rack.
//!
//! Buffers follow what passes in a round trip. Where the path is nearly nothing, what is measured as a round trip is the
//! queue of the buffers themselves, and they would grow to their largest without moving a byte more a second, while what
//! waits in them falls out of the processor's caches and is fetched from memory by every copy. So on such a path they
//! follow what the empty path holds at the present rate.

use crate::time::Duration;

/// A path with a longer round trip is not short: buffers there are small beside what it holds.
const SHORT: Duration = Duration::from_millis(2);
/// What may always be under way, bytes: as much as most processors keep near a core.
const ALWAYS: u64 = 512 << 10;
/// How many times what the empty path holds is of use: readers and writers come in turns.
const TIMES: u128 = 4;

/// Bytes that are of use under way where `bytes` passed `within` a time, and no round trip was shorter than
/// `least_rtt`. `None`: the path is not short, or not known.
pub(crate) fn useful(bytes: u64, within: Duration, least_rtt: Option<Duration>) -> Option<u64> {
    let least = least_rtt.filter(|rtt| *rtt < SHORT)?;
    let held = u128::from(bytes) * least.as_micros() / within.as_micros().max(1);
    Some(u64::try_from(TIMES * held).unwrap_or(u64::MAX).max(ALWAYS))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn of_use_is_what_the_empty_path_holds_four_times_and_not_its_queue() {
        let least = Some(Duration::from_micros(500));
        // 8 MB in 4 ms: the path holds 1 MB.
        assert_eq!(useful(8 << 20, 4 * MS, least), Some(4 << 20));
        assert_eq!(useful(16 << 20, 8 * MS, least), Some(4 << 20), "a longer queue changes nothing");
        assert_eq!(useful(16 << 20, 4 * MS, least), Some(8 << 20), "a higher rate does");
        assert_eq!(useful(1 << 20, 4 * MS, least), Some(512 << 10));
    }

    #[test]
    fn a_path_that_is_long_or_unknown_has_no_such_bound() {
        assert_eq!(useful(8 << 20, 4 * MS, Some(2 * MS)), None);
        assert_eq!(useful(8 << 20, 4 * MS, None), None);
        assert_eq!(useful(u64::MAX, Duration::ZERO, Some(MS)), Some(u64::MAX));
    }
}

//! Target: any bytes as a packet capture.
//!
//! The analysis ends with consistent figures, or with an error of one line.

use brisk_capture::{Losses, analyse};

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let analysis = match analyse(bytes) {
        Ok(analysis) => analysis,
        Err(error) => return assert_eq!(error.to_string().lines().count(), 1, "{error}"),
    };
    assert!(0 < analysis.segments && analysis.segments <= analysis.packets, "{analysis:?}");
    assert!(analysis.connections <= analysis.segments && analysis.opened <= analysis.connections);
    assert!(analysis.exchanges.len() as u64 <= analysis.exchanges_seen);
    for losses in [analysis.down, analysis.up] {
        fits(&losses);
    }
}

fn fits(losses: &Losses) {
    let Losses { packets, after_lost, lost_after_lost, .. } = *losses;
    assert!(lost_after_lost <= after_lost && after_lost <= packets.saturating_mul(2), "{losses:?}");
    for share in [losses.continues(), losses.rate_interval()[0], losses.rate_interval()[1]] {
        assert!((0.0..=1.0).contains(&share), "{losses:?}: {share}");
    }
    assert!(losses.burst() >= 1.0, "{losses:?}");
}

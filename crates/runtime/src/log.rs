//! Events for the crate `tracing`: the life of each connection, and the end of a driver.

use std::io;
use std::sync::Arc;

use brisk_tcp::LifecycleEvent;
use brisk_tcp::event::Lifecycle;
use tracing::{debug, error};

use crate::observer::OnLifecycle;

/// Returns an observer that reports each change and then calls `next`.
pub(crate) fn observer(next: Option<Arc<OnLifecycle>>) -> Arc<OnLifecycle> {
    Arc::new(move |event: &LifecycleEvent| {
        let LifecycleEvent { ends, is_active, change, stats, .. } = event;
        let (local, remote, is_active) = (ends.local, ends.remote, *is_active);
        match change {
            Lifecycle::Established => debug!(%local, %remote, is_active, "connection established"),
            Lifecycle::Closed(reason) => {
                let (sent, received) = (stats.counters.segments_out, stats.counters.segments_in);
                debug!(%local, %remote, is_active, %reason, sent, received, "connection closed");
            }
            Lifecycle::Failed(reason) => debug!(%local, %remote, is_active, %reason, "connection failed"),
            _ => {}
        }
        if let Some(next) = &next {
            next(event);
        }
    })
}

/// Reports that the program has closed an endpoint.
pub(crate) fn closed() {
    debug!("endpoint closed");
}

/// Reports why a driver has ended although the program holds handles.
pub(crate) fn failed(reason: &io::Error) {
    error!(%reason, "endpoint failed");
}

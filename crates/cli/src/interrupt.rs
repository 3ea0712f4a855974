//! Ctrl-C and SIGTERM stop the work, and the results so far are reported.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::signal::unix::{SignalKind, signal};

use crate::failure::Failure;

/// A flag that SIGINT or SIGTERM sets, from now on.
pub(crate) fn stop_flag() -> Result<Arc<AtomicBool>, Failure> {
    let failed = |error| Failure::failed(format!("cannot catch signals: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().map_err(failed)?;
    let (mut interrupt, mut terminate) = {
        let _inside = runtime.enter();
        (signal(SignalKind::interrupt()).map_err(failed)?, signal(SignalKind::terminate()).map_err(failed)?)
    };
    let flag = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&flag);
    let wait = async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        set.store(true, Ordering::Relaxed);
    };
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || runtime.block_on(wait))
        .map_err(failed)?;
    Ok(flag)
}

//! What systemd is told (`Type=notify`), and the listener that it may have bound already (`LISTEN_FDS`).
//!
//! Outside systemd all of this does nothing.

use std::time::Duration;

use brisk_runtime::inherited_listener;
use sd_notify::NotifyState;

use crate::failure::Failure;

/// The service has started, or has read its configuration again.
pub(crate) fn ready() {
    tell(&[NotifyState::Ready]);
}

/// It reads its configuration.
pub(crate) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(_) => tell(&[NotifyState::Reloading]),
    }
}

/// It has been told to stop.
pub(crate) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// A service manager that cannot be told has gone; the service goes on.
fn tell(states: &[NotifyState<'_>]) {
    let _ = sd_notify::notify(states);
}

/// Says twice per interval that the runtime still turns, if systemd wants to know.
pub(crate) async fn watchdog() {
    let Some(interval) = sd_notify::watchdog_enabled() else { return };
    let mut beat = tokio::time::interval((interval / 2).max(Duration::from_millis(100)));
    loop {
        beat.tick().await;
        tell(&[NotifyState::Watchdog]);
    }
}

/// True if a listener was handed over.
pub(crate) fn is_activated() -> bool {
    sd_notify::listen_fds().is_ok_and(|descriptors| descriptors.len() > 0)
}

/// The listener that was handed over. More than one is more than a frontend has.
pub(crate) fn listener() -> Result<Option<tokio::net::TcpListener>, Failure> {
    let mut descriptors =
        sd_notify::listen_fds().map_err(|error| Failure::failed(format!("LISTEN_FDS: {error}")))?;
    let (Some(descriptor), None) = (descriptors.next(), descriptors.next()) else {
        return Ok(None);
    };
    let listener =
        inherited_listener(descriptor).map_err(|error| Failure::failed(format!("LISTEN_FDS: {error}")))?;
    Ok(Some(tokio::net::TcpListener::from_std(listener)?))
}

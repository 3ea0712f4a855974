//! Notifications to systemd (`Type=notify`), and listeners that systemd has bound (`LISTEN_FDS`).
//!
//! Outside systemd all of this does nothing.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use brisk_packet_io::inherited::inherited_listener;
use sd_notify::NotifyState;

use crate::failure::Failure;

/// Reports that the service has started, or has reloaded its configuration.
pub(crate) fn ready() {
    notify(&[NotifyState::Ready]);
}

/// Reports that the service reloads its configuration.
pub(crate) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(_) => notify(&[NotifyState::Reloading]),
    }
}

/// Reports that the service is stopping.
pub(crate) fn stopping() {
    notify(&[NotifyState::Stopping]);
}

/// Sends a notification. Ignores errors, because the service works without a service manager.
fn notify(states: &[NotifyState<'_>]) {
    let _ = sd_notify::notify(states);
}

/// Reports twice per interval that the runtime still works, if systemd has a watchdog for the service.
pub(crate) async fn watchdog() {
    let Some(interval) = sd_notify::watchdog_enabled() else { return };
    let mut beat = tokio::time::interval((interval / 2).max(Duration::from_millis(100)));
    loop {
        beat.tick().await;
        notify(&[NotifyState::Watchdog]);
    }
}

/// The listeners that systemd passed on.
#[derive(Debug)]
struct PassedListeners {
    addresses: Vec<SocketAddr>,
    /// The listeners, until the frontend takes them.
    listeners: Mutex<Vec<TcpListener>>,
}

static PASSED_LISTENERS: LazyLock<Result<PassedListeners, String>> =
    LazyLock::new(|| inherit().map_err(|error| format!("LISTEN_FDS: {error}")));

fn inherit() -> io::Result<PassedListeners> {
    let listeners: Vec<TcpListener> =
        sd_notify::listen_fds()?.map(inherited_listener).collect::<io::Result<_>>()?;
    let addresses = listeners.iter().map(TcpListener::local_addr).collect::<io::Result<_>>()?;
    Ok(PassedListeners { addresses, listeners: Mutex::new(listeners) })
}

fn passed_listeners() -> Result<&'static PassedListeners, Failure> {
    PASSED_LISTENERS.as_ref().map_err(Failure::failed)
}

/// Returns the addresses of the listeners that systemd passed on.
pub(crate) fn addresses() -> Result<&'static [SocketAddr], Failure> {
    passed_listeners().map(|passed_listeners| passed_listeners.addresses.as_slice())
}

/// Takes the listeners that systemd passed on. Only the first call returns them; must run inside a tokio
/// runtime.
pub(crate) fn take_listeners() -> Result<Vec<tokio::net::TcpListener>, Failure> {
    let mut listeners = passed_listeners()?.listeners.lock().unwrap_or_else(PoisonError::into_inner);
    let taken = std::mem::take(&mut *listeners).into_iter();
    Ok(taken.map(tokio::net::TcpListener::from_std).collect::<io::Result<_>>()?)
}

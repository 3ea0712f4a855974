//! Notifications to systemd (`Type=notify`), and the listeners that it may have bound already (`LISTEN_FDS`).
//!
//! Outside systemd all of this does nothing.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{LazyLock, Mutex, PoisonError};
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

/// The listeners that were handed over.
#[derive(Debug)]
struct Handed {
    addresses: Vec<SocketAddr>,
    /// Until the frontend takes them.
    listeners: Mutex<Vec<TcpListener>>,
}

static HANDED: LazyLock<Result<Handed, String>> =
    LazyLock::new(|| inherit().map_err(|error| format!("LISTEN_FDS: {error}")));

fn inherit() -> io::Result<Handed> {
    let listeners: Vec<TcpListener> =
        sd_notify::listen_fds()?.map(inherited_listener).collect::<io::Result<_>>()?;
    let addresses = listeners.iter().map(TcpListener::local_addr).collect::<io::Result<_>>()?;
    Ok(Handed { addresses, listeners: Mutex::new(listeners) })
}

fn handed() -> Result<&'static Handed, Failure> {
    HANDED.as_ref().map_err(Failure::failed)
}

/// The addresses of the listeners that were handed over.
pub(crate) fn addresses() -> Result<&'static [SocketAddr], Failure> {
    handed().map(|handed| handed.addresses.as_slice())
}

/// The listeners that were handed over, once; inside a tokio runtime.
pub(crate) fn take_listeners() -> Result<Vec<tokio::net::TcpListener>, Failure> {
    let mut listeners = handed()?.listeners.lock().unwrap_or_else(PoisonError::into_inner);
    let taken = std::mem::take(&mut *listeners).into_iter();
    Ok(taken.map(tokio::net::TcpListener::from_std).collect::<io::Result<_>>()?)
}

//! Parts of the measurements in real time: commands, directories, gateways.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use brisk_runtime::attach::{AttachConfig, Attached};
use brisk_runtime::{Builder, DeviceSpec, Endpoint};
use tokio::sync::watch;

/// Runs a command to its end.
///
/// # Errors
/// It could not start, or failed; with its message.
pub(crate) fn shell(program: &str, words: &[&str]) -> io::Result<()> {
    let done = Command::new(program).args(words).output();
    let done = done.map_err(|error| io::Error::other(format!("{program}: {error}; is it installed?")))?;
    match done.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&done.stderr);
            Err(io::Error::other(format!("{program} {}: {}", words.join(" "), said.trim())))
        }
    }
}

/// A directory that is removed on drop.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn make(name: &str) -> io::Result<Scratch> {
        let path = std::env::temp_dir().join(format!("brisk-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A failure leaves only configurations, logs and browser profiles in the temporary directory.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Opens a device for TCP in UDP.
pub(crate) fn udp_device(bind: SocketAddr) -> io::Result<(Builder, Attached)> {
    Ok(AttachConfig::new(DeviceSpec::Udp { bind }).open()?)
}

/// Runs a gateway, and keeps its stack until the gateway has ended.
pub(crate) async fn keep<T>(endpoint: Endpoint, side: impl Future<Output = T>) {
    side.await;
    drop(endpoint);
}

/// Resolves when the value becomes true or its sender is dropped.
pub(crate) async fn ordered(mut stopped: watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

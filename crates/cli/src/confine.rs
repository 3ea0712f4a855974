//! Confines a gateway before it takes its first connection: it gives up capabilities that it does not need,
//! the right to get new ones, and the right to write to the file system or execute from it.
//!
//! Each thread has these rights, and passes them on to the threads that it creates. So [`confine`] is called
//! while there is only one thread: before the first log line, which starts another thread.

use brisk_gateway::Settings;
use brisk_gateway::log::{Level, Log, Value};
use brisk_runtime::DeviceSpec;
use landlock::{
    ABI, AccessFs, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, path_beneath_rules,
};
use rustix::thread::{CapabilitySet, CapabilitySets};

/// The file that must be opened for writing to open a TUN device.
const TUN: &str = "/dev/net/tun";

/// The remaining rights, for the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Confined {
    capabilities: String,
    files: &'static str,
}

impl Confined {
    /// Logs the remaining rights.
    pub(crate) fn log_rights(&self, log: &Log) {
        let fields = [
            ("capabilities", Value::Text(self.capabilities.clone())),
            ("files", Value::Text(self.files.into())),
        ];
        log.line(Level::Info, "confined", &fields);
    }
}

/// Gives up rights that a side with these settings does not need. A right that the system does not take away
/// is kept: this is a second line of defence, and its failure must not prevent the start.
pub(crate) fn confine(settings: &Settings) -> Confined {
    let needed = needed(settings);
    // Fails only on kernels without this flag.
    let _ = rustix::thread::set_no_new_privs(true);
    let files = match read_only() {
        Ok(RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced) => "read-only",
        Ok(RulesetStatus::NotEnforced) | Err(_) => "unrestricted: the kernel has no landlock",
    };
    let capabilities = match keep(needed) {
        Ok(kept) if kept.is_empty() => "none".to_owned(),
        Ok(kept) => kept.iter_names().map(|(name, _)| name.to_lowercase()).collect::<Vec<_>>().join(","),
        Err(error) => format!("as before: {error}"),
    };
    Confined { capabilities, files }
}

/// Returns the capabilities that these settings need:
/// - CAP_NET_BIND_SERVICE for a port below 1024;
/// - the right to read any file for a key file of another owner (root starts a gateway with a user's key);
/// - CAP_NET_ADMIN for a TUN device and for sockets with foreign addresses;
/// - CAP_NET_RAW for packet sockets and clients' addresses;
/// - CAP_BPF for programs that choose the queue of a TUN device or redirect frames;
/// - CAP_PERFMON, too, for programs that read frames in place (`xdp:`);
/// - CAP_IPC_LOCK for packets' memory beyond the limit of locked memory.
fn needed(settings: &Settings) -> CapabilitySet {
    let named = [&settings.hop.device, &settings.frontend.client_device];
    let devices: Vec<DeviceSpec> =
        named.into_iter().flatten().filter_map(|device| device.parse().ok()).collect();
    let xdp = devices.iter().any(|device| matches!(device, DeviceSpec::Xdp { .. }));
    let is_packet = |device: &DeviceSpec| matches!(device, DeviceSpec::Packet { .. });
    let packet = xdp || settings.hop.packet.is_some() || devices.iter().any(is_packet);
    let tun = devices.iter().any(|device| matches!(device, DeviceSpec::Tun { .. }));
    let admin = tun || packet || settings.frontend.transparent.unwrap_or(false);
    let raw = packet || settings.backend.as_client.unwrap_or(false);
    let mut needed = CapabilitySet::NET_BIND_SERVICE | CapabilitySet::DAC_READ_SEARCH;
    if tun || packet {
        needed |= CapabilitySet::BPF;
    }
    if xdp {
        needed |= CapabilitySet::PERFMON | CapabilitySet::IPC_LOCK;
    }
    if admin {
        needed |= CapabilitySet::NET_ADMIN;
    }
    if raw {
        needed |= CapabilitySet::NET_RAW;
    }
    needed
}

/// Gives up all capabilities except those in `needed`; returns the remaining ones.
fn keep(needed: CapabilitySet) -> rustix::io::Result<CapabilitySet> {
    let held = rustix::thread::capabilities(None)?;
    let permitted = held.permitted & needed;
    let sets =
        CapabilitySets { effective: held.effective & needed, permitted, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets)?;
    Ok(permitted)
}

/// Gives up the rights to write, create, remove and execute files; open files stay open.
fn read_only() -> Result<RulesetStatus, RulesetError> {
    let writing = AccessFs::from_write(ABI::V3) | AccessFs::Execute;
    let rules = path_beneath_rules([TUN], AccessFs::WriteFile);
    let restricted =
        Ruleset::default().handle_access(writing)?.create()?.add_rules(rules)?.restrict_self()?;
    Ok(restricted.ruleset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_capabilities_that_the_settings_need_are_kept() {
        let mut settings = Settings::default();
        assert!(!needed(&settings).contains(CapabilitySet::NET_ADMIN));
        settings.hop.device = Some("udp:127.0.0.1:1".into());
        assert!(!needed(&settings).contains(CapabilitySet::NET_ADMIN));
        settings.hop.device = Some("tun:brisk0".into());
        assert!(needed(&settings).contains(CapabilitySet::NET_ADMIN | CapabilitySet::BPF));
        settings.hop.device = Some("packet:eth0".into());
        let redirects = CapabilitySet::NET_RAW | CapabilitySet::NET_ADMIN | CapabilitySet::BPF;
        assert!(needed(&settings).contains(redirects));
        assert!(!needed(&settings).contains(CapabilitySet::PERFMON));
        settings.hop.device = Some("xdp:eth0".into());
        let in_place = CapabilitySet::PERFMON | CapabilitySet::IPC_LOCK;
        assert!(needed(&settings).contains(redirects | in_place));
        settings.hop.device = None;
        assert!((needed(&settings) & redirects).is_empty());
        settings.hop.packet = Some("eth0".into());
        assert!(needed(&settings).contains(redirects));
        settings.hop.packet = None;
        settings.frontend.client_device = Some("packet:eth0".into());
        assert!(needed(&settings).contains(redirects));
        settings.frontend.client_device = None;
        settings.frontend.transparent = Some(true);
        assert!(needed(&settings).contains(CapabilitySet::NET_ADMIN));
    }

    #[test]
    fn a_confined_thread_reads_and_does_not_write() {
        // A separate thread, so that the other tests keep their rights.
        let seen = std::thread::spawn(|| {
            let file = std::env::temp_dir().join(format!("brisk-confined-{}", std::process::id()));
            let confined = confine(&Settings::default());
            let held = rustix::thread::capabilities(None).expect("they can be read");
            let written = std::fs::write(&file, "x");
            let _ = std::fs::remove_file(&file);
            (confined, held.permitted, written, std::fs::read_to_string("/proc/self/stat"))
        });
        let (confined, permitted, written, read) = seen.join().expect("it does not panic");
        assert!((permitted - needed(&Settings::default())).is_empty(), "{permitted:?}");
        assert!(read.is_ok());
        assert_eq!(written.is_err(), confined.files == "read-only", "{confined:?}");
    }
}

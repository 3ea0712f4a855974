//! The flags that frontend, backend and edge have in common. They become settings, which take precedence over
//! those of a file.

use std::path::PathBuf;
use std::sync::Arc;

use brisk_gateway::log::{Level, Value};
use brisk_gateway::settings::{AdminSettings, HopSettings, Ignored, LimitSettings};
use brisk_gateway::{Admin, Hop, Log, MechanismState, Metrics, ServiceConfig, Settings};
use brisk_packet_io::interface::Interface;
use brisk_runtime::attach::{AttachConfig, Attached};
use brisk_runtime::profile::{Profile, parse_max_overhead};
use brisk_runtime::{CongestionAlgorithm, DeviceSpec, Endpoint, TcpConfig};

use crate::failure::Failure;
use crate::flags::{Flags, HasKeys};

/// The environment variable that may hold the key itself.
const KEY_VARIABLE: &str = "BRISK_KEY";

/// Options of a role.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RoleArgs<R: HasKeys> {
    /// Configuration in TOML; precedence: flags, then environment variables, then this file
    #[arg(short, long, value_name = "FILE", env = "BRISK_CONFIG")]
    config: Option<PathBuf>,
    #[command(flatten)]
    flags: Flags<R>,
}

impl<R: HasKeys> RoleArgs<R> {
    /// Adds the line of the file to `failure`, if the key that caused it is set in the file only, and not by
    /// these flags or `own`.
    fn placed(&self, failure: Failure, own: Settings) -> Failure {
        let (Some(path), Some(key)) = (&self.config, failure.about) else { return failure };
        let by_flags = self.flags.settings.clone().over(own).changed(&Settings::default());
        match by_flags.iter().any(|given| given.key == key) {
            true => failure,
            false => failure.in_file(path),
        }
    }

    /// Returns the settings of these flags and of `own`, which take precedence over the file, if there is
    /// one.
    pub(crate) fn over_file(&self, own: Settings) -> Result<Settings, Failure> {
        let flags = self.flags.settings.clone().over(own);
        match &self.config {
            None => Ok(flags),
            Some(path) => {
                let mut file = Settings::load(path).map_err(Failure::failed)?;
                // A flag for one kind of protection cancels the other kind in the file.
                if flags.hop.key_file.is_some() {
                    file.hop.plain = None;
                } else if flags.hop.plain.is_some() {
                    (file.hop.key_file, file.hop.peer_keys) = (None, None);
                }
                Ok(flags.over(file))
            }
        }
    }

    /// Like [`RoleArgs::over_file`], but fails if `check` refuses the settings. If a key of the file caused
    /// the failure, the error names the file.
    pub(crate) fn checked(
        &self,
        own: Settings,
        check: impl FnOnce(&Settings) -> Result<(), Failure>,
    ) -> Result<Settings, Failure> {
        let settings = self.over_file(own.clone())?;
        check(&settings).map_err(|failure| self.placed(failure, own))?;
        Ok(settings)
    }
}

/// Makes the checks that both gateways of a pair have in common: at the start, at a reload and in `brisk
/// check`.
pub(crate) fn check(settings: &Settings) -> Result<(), Failure> {
    let Settings { hop, admin, .. } = settings;
    protection(hop)?;
    mechanisms(hop)?;
    check_admin(admin)
}

/// Checks that the admin listener may be opened.
pub(crate) fn check_admin(AdminSettings { listen, token_file }: &AdminSettings) -> Result<(), Failure> {
    let Some(listen) = *listen else { return Ok(()) };
    let about = if token_file.is_some() { "admin.token_file" } else { "admin.listen" };
    Admin::check(listen, token_file.as_deref()).map_err(|error| Failure::failed(error).about(about))
}

/// Makes the checks of the device that need no system call.
pub(crate) fn check_device(attach: &AttachConfig) -> Result<(), Failure> {
    attach.check().map_err(|error| Failure::from(error).about("hop.device"))
}

/// Returns the changed keys that need a restart: the limits, the admin listener, the hop's devices, and the
/// keys in `own`. `read` are the new settings, `started` those at the start.
pub(crate) fn needs_restart(read: &Settings, started: &Settings, own: &[&str]) -> Vec<String> {
    let opened = ["hop.device", "hop.addr", "hop.gateway", "hop.mtu", "hop.packet"];
    let fixed = |key: &String| {
        let is = |other: &&str| key == other;
        key.starts_with("limits.") || key.starts_with("admin.") || opened.iter().chain(own).any(is)
    };
    read.changed(started).into_iter().map(|change| change.key).filter(fixed).collect()
}

/// Returns the settings that were `read`, with the devices of `started`, the settings at the start.
pub(crate) fn as_opened(read: Settings, started: &Settings) -> Settings {
    let HopSettings { device, addr, gateway, mtu, packet, .. } = started.hop.clone();
    Settings { hop: HopSettings { device, addr, gateway, mtu, packet, ..read.hop }, ..read }
}

/// Warns that an empty list of public keys admits no frontend.
pub(crate) fn warn_no_peer_key(hop: &Hop, log: &Log) {
    if hop.admits_nobody() {
        let reason = "peer_keys has no key: no frontend may connect";
        log.line(Level::Warning, "nobody", &[("reason", Value::Text(reason.into()))]);
    }
}

/// Returns the protection of the hop for a side that connects to a backend and so needs the backend's key.
pub(crate) fn protection_towards_backend(hop: &HopSettings) -> Result<Hop, Failure> {
    let protection = protection(hop)?;
    match protection.admits_nobody() {
        true => Err(Failure::failed("peer_keys has no key: write the backend's public key into that file")
            .about("hop.peer_keys")),
        false => Ok(protection),
    }
}

/// Logs the settings that have no effect.
pub(crate) fn log_ignored(settings: &Settings, log: &Log) {
    for Ignored { key, why } in settings.ignored() {
        let fields = [("key", Value::Text(key.into())), ("reason", Value::Text(why.into()))];
        log.line(Level::Warning, "ignored", &fields);
    }
}

/// Returns the interfaces that this host does not have, with the keys that name them.
pub(crate) fn missing_interfaces(settings: &Settings) -> Vec<(&'static str, String)> {
    let Settings { hop, frontend, .. } = settings;
    let of_device = |(key, device): (&'static str, &Option<String>)| match device.as_deref()?.parse().ok()? {
        DeviceSpec::Packet { interface } | DeviceSpec::Xdp { interface } => Some((key, interface)),
        DeviceSpec::Tun { .. } | DeviceSpec::Udp { .. } => None,
    };
    let devices = [("hop.device", &hop.device), ("frontend.client_device", &frontend.client_device)];
    let of_devices = devices.into_iter().filter_map(of_device);
    let named = of_devices.chain(hop.packet.clone().map(|name| ("hop.packet", name)));
    named.filter(|(_, name)| Interface::named(name).is_err()).collect()
}

pub(crate) fn protection(hop: &HopSettings) -> Result<Hop, Failure> {
    let peers = hop.peer_keys.as_deref();
    if peers.is_some() && hop.plain() {
        return Err(
            Failure::usage("hop: peer_keys and plain contradict each other; remove one").about("hop.plain")
        );
    }
    match (&hop.key_file, std::env::var(KEY_VARIABLE), hop.plain()) {
        (Some(path), _, false) => Hop::load(path, peers)
            .map_err(|error| Failure::failed(error).about("hop.key_file")),
        (Some(_), _, true) => {
            Err(Failure::usage("hop: key_file and plain contradict each other; remove one")
                .about("hop.plain"))
        }
        (None, _, true) => Ok(Hop::Plain),
        (None, Ok(text), false) => Hop::parse(&text, KEY_VARIABLE, peers).map_err(Failure::failed),
        (None, Err(_), false) => Err(Failure::usage(
            "the hop has no key: create one (brisk keygen > key) and start both sides with --key-file key, or use --plain",
        )
        .about("hop.key_file")),
    }
}

/// Returns one word for the protection, for the log.
pub(crate) fn security(hop: &Hop) -> &'static str {
    match hop {
        Hop::Sealed(_) => "sealed",
        Hop::Pairs(_) => "sealed-by-pairs",
        Hop::Plain => "plain",
    }
}

pub(crate) fn attach(hop: &HopSettings, usual: DeviceSpec) -> Result<AttachConfig, Failure> {
    let device = match &hop.device {
        None => usual,
        Some(text) => text
            .parse()
            .map_err(|error| Failure::usage(format!("hop device: {error}")).about("hop.device"))?,
    };
    let addresses = hop.addr.clone().unwrap_or_default();
    if hop.packet.is_some() && !matches!(device, DeviceSpec::Udp { .. }) {
        return Err(Failure::usage(format!(
            "packet is a second transport for TCP in UDP, but the device is {device}; remove one of the two"
        ))
        .about("hop.packet"));
    }
    Ok(AttachConfig { addresses, gateway: hop.gateway, mtu: hop.mtu, ..AttachConfig::new(device) })
}

/// Number of ports that a frontend claims on a packet socket: the limit of connections to each backend, open
/// or in TIME-WAIT.
pub(crate) const LOCAL_PORTS: u16 = 3584;

/// True if the kernel's TCP is a fallback for the hop's device. With `udp:`, the backend's kernel listens on
/// the port number of the UDP port; with `packet:` and `xdp:`, the kernel's TCP connects to brisk's at the
/// host's address.
pub(crate) fn kernel_tcp(hop: &HopSettings) -> bool {
    let device = hop.device.as_deref().map(str::parse::<DeviceSpec>);
    let reaches = matches!(
        device,
        None | Some(Ok(DeviceSpec::Udp { .. } | DeviceSpec::Packet { .. } | DeviceSpec::Xdp { .. }))
    );
    reaches && hop.kernel_tcp()
}

/// Returns the settings of the packet socket that is used in addition to TCP in UDP; `None` if none is
/// configured. `serve`: the listener's address, `None` on a frontend.
pub(crate) fn packet(
    hop: &HopSettings,
    serve: Option<std::net::SocketAddr>,
) -> Result<Option<AttachConfig>, Failure> {
    let Some(interface) = &hop.packet else { return Ok(None) };
    let device = format!("packet:{interface}")
        .parse()
        .map_err(|error| Failure::usage(format!("hop {error}")).about("hop.packet"))?;
    let local_ports = if serve.is_some() { 0 } else { LOCAL_PORTS };
    Ok(Some(AttachConfig { mtu: hop.mtu, serve, local_ports, ..AttachConfig::new(device) }))
}

pub(crate) fn packet_endpoint(attach: Option<AttachConfig>) -> Result<Option<(Endpoint, Attached)>, Failure> {
    let Some(attach) = attach else { return Ok(None) };
    let (builder, attached) = attach.open()?;
    Ok(Some((builder.build()?, attached)))
}

/// Returns the mechanisms of the hop: its TCP settings, and whether Fast Open is on.
pub(crate) fn mechanisms(hop: &HopSettings) -> Result<(TcpConfig, bool), Failure> {
    let Profile { tcp, fast_open, .. } = profile(hop)?;
    Ok((brisk_gateway::service::hop_tcp(tcp), fast_open))
}

pub(crate) fn profile(hop: &HopSettings) -> Result<Profile, Failure> {
    let mut profile = Profile::parse(&hop.mechanisms())
        .map_err(|error| Failure::usage(format!("mechanisms: {error}")).about("hop.mechanisms"))?;
    profile.allow(max_overhead(hop)?);
    Ok(profile)
}

/// Returns the limit of redundancy in percent.
pub(crate) fn max_overhead(hop: &HopSettings) -> Result<u32, Failure> {
    parse_max_overhead(&hop.max_overhead())
        .map_err(|error| Failure::usage(format!("max_overhead: {error}")).about("hop.max_overhead"))
}

/// Returns the state of each mechanism with the reason, for the log at the start, the status and the metrics.
pub(crate) fn states(hop: &HopSettings, tcp: &TcpConfig, fast_open: bool) -> Vec<MechanismState> {
    let mechanisms = &tcp.mechanisms;
    let [corrective, proactive, planner] =
        [mechanisms.corrective.is_some(), mechanisms.proactive.is_some(), mechanisms.planner.is_some()];
    let chosen = hop.mechanisms();
    let words = || chosen.split(',').map(str::trim);
    let reactive = words().find_map(|word| match word {
        "reactive=off" | "tcp2012" => Some("off"),
        "reactive=paper" | "reactive" => Some("paper"),
        _ => None,
    });
    let source = if hop.mechanisms.is_some() { "by configuration" } else { "default" };
    let allowance = format!("max_overhead {}", hop.max_overhead());
    let allowance = if hop.max_overhead.is_some() { allowance } else { format!("default {allowance}") };
    // With an allowance of 0 % the planner is off, and so are the parity and copies that it adds.
    let without_allowance = !planner && words().any(|word| word == "all" || word.starts_with("planner"));
    let planned = |on: bool| match on == planner && (planner || without_allowance) {
        true => allowance.as_str(),
        false => source,
    };
    let state = |name, state, reason: &str| MechanismState { name, state, reason: reason.to_owned() };
    let switch = |on: bool| if on { "on" } else { "off" };
    let congestion = match tcp.congestion {
        CongestionAlgorithm::Cubic => "cubic",
        CongestionAlgorithm::Reno => "reno",
        CongestionAlgorithm::Bbr => "bbr",
        CongestionAlgorithm::Fixed(_) => "fixed",
        _ => "custom",
    };
    vec![
        state("fast_open", switch(fast_open), source),
        state("path", "on", "always on: it needs nothing at the peer"),
        state("reactive", reactive.unwrap_or("rack_tlp"), source),
        state("corrective", switch(corrective), planned(corrective)),
        state("proactive", switch(proactive), planned(proactive)),
        state("planner", switch(planner), planned(planner)),
        state("congestion", congestion, source),
    ]
}

/// Returns the service's configuration: its limits, its log and its metrics.
pub(crate) fn service(limits: &LimitSettings, log: &Log, metrics: &Arc<Metrics>) -> ServiceConfig {
    ServiceConfig { log: log.clone(), metrics: metrics.clone(), ..ServiceConfig::within(limits) }
}

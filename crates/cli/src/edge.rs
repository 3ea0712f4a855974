//! `brisk edge`: brisk's TCP towards unmodified clients, the kernel's TCP towards the origin.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use brisk_gateway::access::Role;
use brisk_gateway::edge::client_tcp;
use brisk_gateway::log::Log;
use brisk_gateway::settings::{EDGE_MECHANISMS, EdgeSettings, HopSettings, ListenerSettings};
use brisk_gateway::{
    Edge, EdgeConfig, EdgeControl, Facts, Hop, Listen, MechanismState, Metrics, OriginName, ServiceConfig,
    Settings,
};
use brisk_runtime::attach::{AttachConfig, Queues};
use brisk_runtime::profile::Profile;
use brisk_runtime::{Cores, DeviceSpec, Endpoint, TcpConfig};

use crate::Common;
use crate::confine::confine;
use crate::cookie_keys::CookieKeyArgs;
use crate::failure::Failure;
use crate::flags::OfEdge;
use crate::frontend::{check_listeners, listener, listeners, lock, started};
use crate::hop_args::{self, RoleArgs};
use crate::operation::{Opened, Operation, Reloaded, Side};
use crate::service;

const EXAMPLES: &str = "\
Examples:
  sudo brisk edge --listen 192.0.2.1:443 --device packet:eth0 --to 127.0.0.1:8443
  sudo brisk edge --listen :443 --device packet:eth0 --to 127.0.0.1:8443 --send-proxy v2
  sudo brisk edge --listener :443=web --listener :25=mail --origin web=10.0.0.5:443 --origin mail=10.0.0.6:25 --device packet:eth0
  sudo brisk edge -c /etc/brisk/edge.toml";

/// Maximum number of ports: on `packet:` each has a stack of its own.
const MAX_PORTS: usize = 16;
/// Number of clients whose paths are remembered.
const PATHS: usize = 16_384;

/// The flags of `edge`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Another place where clients connect, and the name of its origin: ADDR:PORT=NAME; repeatable
    #[arg(long, value_name = "ADDR:PORT=NAME", env = "BRISK_LISTENER", value_parser = listener, value_delimiter = ',')]
    listener: Vec<ListenerSettings>,
    #[command(flatten)]
    cookie_keys: CookieKeyArgs,
    #[command(flatten)]
    role: RoleArgs<OfEdge>,
}

impl Args {
    /// Returns the settings of file and flags if an edge can start with them.
    fn settings(&self) -> Result<Settings, Failure> {
        self.role.checked(Settings { listeners: self.listener.clone(), ..Settings::default() }, check)
    }
}

/// Serves until SIGINT or SIGTERM.
pub(crate) fn run(args: Args, common: &Common) -> Result<(), Failure> {
    let log = service::log(common);
    let settings = args.settings()?;
    let confined = confine(&settings);
    hop_args::tell_ignored(&settings, &log);
    service::run_on_one_thread(async move {
        let Opened { cores, stop, admin } = Opened::by(&settings)?;
        let places = open(&settings, &cores)?;
        let metrics = Arc::<Metrics>::default();
        let usual = configured(&settings, &log, &metrics)?;
        let service = ServiceConfig { cores: cores.handles().to_vec(), ..usual.service };
        let config = EdgeConfig { service, ..usual };
        let edge = Edge::bind(config.clone(), &places)?;
        for (_, endpoint) in &places {
            args.cookie_keys.clone().install(endpoint, &log).await?;
        }
        let listen: Vec<String> = places.iter().map(|(address, _)| address.to_string()).collect();
        let facts = Facts {
            role: Role::Edge,
            listen: listen.join(","),
            origin: config.origin.clone(),
            hop: "tcp",
            security: hop_args::security(&Hop::Plain),
        };
        metrics.set_mechanisms(states(&settings.hop, &config.tcp, config.fast_open.is_some()));
        let origin = config.origin.clone().unwrap_or_else(|| "by name".to_owned());
        started(&facts, ("origin", origin), &metrics.mechanisms(), &confined, &log);
        let side = Reloadable {
            args,
            started: settings.clone(),
            last: Mutex::new(settings),
            control: edge.control(),
            log: log.clone(),
            metrics: metrics.clone(),
        };
        let operation = Operation::begin(admin, facts, metrics, None, side, &log)?;
        edge.run(stop.clone().ordered()).await;
        operation.end();
        for (_, endpoint) in &places {
            service::last_words(endpoint, &log).await;
        }
        stop.verdict()
    })
}

/// The changes of SIGHUP.
struct Reloadable {
    args: Args,
    /// The settings at the start.
    started: Settings,
    /// The settings of the last reload.
    last: Mutex<Settings>,
    control: EdgeControl,
    log: Log,
    metrics: Arc<Metrics>,
}

impl Side for Reloadable {
    fn key_files(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    async fn reload(&self) -> Result<Reloaded, Failure> {
        let read = self.args.settings()?;
        hop_args::tell_ignored(&read, &self.log);
        let mut fixed = vec!["edge.listen", "hop.mechanisms"];
        if !places(&read).eq(&places(&self.started)) {
            fixed.push("listener");
        }
        let waiting = hop_args::needs_restart(&read, &self.started, &fixed);
        self.control.reload(configured(&as_opened(read.clone(), &self.started), &self.log, &self.metrics)?);
        let last = std::mem::replace(&mut *lock(&self.last), read.clone());
        Ok(Reloaded::between(&(last, Hop::Plain), &(read, Hop::Plain), waiting))
    }
}

/// Returns the settings that were `read`, with the listeners that the edge has `started` with; each takes
/// over the new settings for its address.
fn as_opened(read: Settings, started: &Settings) -> Settings {
    let now = |open: &ListenerSettings| {
        let same = read.listeners.iter().find(|listener| listener.listen == open.listen);
        same.unwrap_or(open).clone()
    };
    let listeners = started.listeners.iter().map(now).collect();
    let edge = EdgeSettings { listen: started.edge.listen, ..read.edge };
    let HopSettings { mechanisms, .. } = started.hop.clone();
    Settings { listeners, edge, hop: HopSettings { mechanisms, ..read.hop }, ..read }
}

/// Returns the addresses at which clients connect.
fn places(settings: &Settings) -> Vec<SocketAddr> {
    let others = settings.listeners.iter().flat_map(|listener| listener.listen.addresses());
    settings.edge.listen.into_iter().chain(others).collect()
}

/// Opens the device. On `tun:` one stack serves all addresses; otherwise each address has a stack, and its
/// port is hidden from the kernel.
fn open(settings: &Settings, cores: &Cores) -> Result<Vec<(SocketAddr, Endpoint)>, Failure> {
    let attach = attach(&settings.hop)?;
    let is_shared = matches!(attach.device, DeviceSpec::Tun { .. });
    let mut opened: Vec<(SocketAddr, Endpoint)> = Vec::new();
    for place in places(settings) {
        let endpoint = match opened.first() {
            Some((_, endpoint)) if is_shared => endpoint.clone(),
            Some(_) | None => {
                let queues = Queues::UpTo(cores.count());
                let attach = AttachConfig { serve: Some(place), local_ports: 0, queues, ..attach.clone() };
                let (builder, _) = attach.open()?;
                builder.stack(|stack| stack.path.entries = PATHS).cores(cores).build()?
            }
        };
        opened.push((place, endpoint));
    }
    Ok(opened)
}

/// Returns the device with its addresses.
fn attach(hop: &HopSettings) -> Result<AttachConfig, Failure> {
    let wrong = |why: &str| Failure::usage(why).about("hop.device");
    let Some(device) = &hop.device else {
        return Err(wrong("an edge needs a device towards the clients: --device packet:eth0, or hop.device"));
    };
    let device: DeviceSpec = device.parse().map_err(|error| wrong(&format!("device: {error}")))?;
    if matches!(device, DeviceSpec::Udp { .. }) {
        return Err(wrong(
            "udp: reaches only clients with brisk's TCP; an edge needs packet:IFACE, xdp:IFACE or tun:NAME",
        ));
    }
    hop_args::attach(hop, device)
}

/// Checks everything about the start of an edge with these settings that needs no system call.
pub(crate) fn check(settings: &Settings) -> Result<(), Failure> {
    let Settings { edge, listeners, hop, admin, .. } = settings;
    let count = places(settings).len();
    if count == 0 {
        return Err(Failure::usage(
            "an edge needs an address for clients: --listen ADDR:PORT or --listener ADDR:PORT=NAME, or edge.listen \
             or [[listener]]",
        )
        .about("edge.listen"));
    }
    check_listeners(edge.listen, listeners)?;
    let attach = attach(hop)?;
    let max_ports = if matches!(attach.device, DeviceSpec::Xdp { .. }) { 1 } else { MAX_PORTS };
    if count > max_ports {
        return Err(Failure::usage(format!(
            "the listeners have {count} ports in total; an edge on {} has at most {max_ports}",
            attach.device
        ))
        .about("listener"));
    }
    check_origins(edge, listeners)?;
    profile(hop)?;
    hop_args::check_admin(admin)?;
    hop_args::check_device(&attach)
}

/// Checks that each listener has an origin, and that each name of an origin has an address.
fn check_origins(edge: &EdgeSettings, listeners: &[ListenerSettings]) -> Result<(), Failure> {
    let needs_to = |listener: &ListenerSettings| listener.origin.is_none() && listener.routes.is_empty();
    if edge.to.is_none() && (edge.listen.is_some() || listeners.iter().any(needs_to)) {
        return Err(Failure::usage("an edge needs an origin: --to HOST:PORT, or edge.to").about("edge.to"));
    }
    let known = |name: &OriginName| edge.origins.as_ref().is_some_and(|all| all.get(name.as_str()).is_some());
    let of = |listener: &ListenerSettings| -> Vec<OriginName> {
        let routes = listener.routes.iter().map(|route| route.origin.clone());
        listener.origin.iter().cloned().chain(routes).collect()
    };
    match listeners.iter().flat_map(of).find(|name| !known(name)) {
        None => Ok(()),
        Some(name) => Err(Failure::usage(format!(
            "no origin is named {name}: --origin {name}=HOST:PORT, or edge.origins"
        ))
        .about("listener")),
    }
}

/// Returns the mechanisms towards the clients.
fn profile(hop: &HopSettings) -> Result<Profile, Failure> {
    Profile::parse(hop.mechanisms.as_deref().unwrap_or(EDGE_MECHANISMS))
        .map_err(|error| Failure::usage(format!("mechanisms: {error}")).about("hop.mechanisms"))
}

/// Converts the settings into those of an edge.
fn configured(settings: &Settings, log: &Log, metrics: &Arc<Metrics>) -> Result<EdgeConfig, Failure> {
    let Profile { tcp, fast_open, .. } = profile(&settings.hop)?;
    let TcpConfig { nodelay, keepalive, .. } = client_tcp();
    let EdgeSettings { listen, to, origins, send_proxy } = settings.edge.clone();
    let plain = listen.map(|address| ListenerSettings {
        listen: Listen::from(address),
        origin: None,
        routes: Vec::new(),
        direct: None,
        send_proxy: None,
    });
    let all: Vec<ListenerSettings> = plain.into_iter().chain(settings.listeners.iter().cloned()).collect();
    let usual = EdgeConfig::new(listeners(&all));
    Ok(EdgeConfig {
        origin: to,
        origins: origins.unwrap_or_default(),
        send_proxy,
        tcp: TcpConfig { nodelay, keepalive, ..tcp },
        fast_open: usual.fast_open.filter(|_| fast_open),
        service: hop_args::service(&settings.limits, log, metrics),
        ..usual
    })
}

/// Returns the state of each mechanism that needs nothing at the client.
fn states(hop: &HopSettings, tcp: &TcpConfig, fast_open: bool) -> Vec<MechanismState> {
    let source = if hop.mechanisms.is_some() { "by configuration" } else { "default" };
    let path = |state: MechanismState| match state.name {
        "path" => MechanismState {
            state: if tcp.path_start.is_some() { "on" } else { "off" },
            reason: source.to_owned(),
            ..state
        },
        _ => state,
    };
    let alone = |state: &MechanismState| !matches!(state.name, "corrective" | "proactive" | "planner");
    hop_args::states(hop, tcp, fast_open).into_iter().filter(alone).map(path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(text: &str) -> Result<(), String> {
        let settings = Settings::parse(text, "edge.toml").expect("a configuration");
        check(&settings).map_err(|failure| failure.message)
    }

    #[test]
    fn configuration_that_cannot_serve_says_what_is_missing() {
        let edge = "[edge]\nlisten = '192.0.2.1:443'\nto = '127.0.0.1:8443'\n";
        let device = "[hop]\ndevice = 'packet:eth0'\n";
        assert_eq!(checked(&format!("{edge}{device}")), Ok(()));
        for (text, says) in [
            (device.to_owned(), "--listen ADDR:PORT"),
            (edge.to_owned(), "--device packet:eth0"),
            (format!("{edge}[hop]\ndevice = 'udp:0.0.0.0:1'"), "packet:IFACE"),
            (format!("[edge]\nlisten = ':443'\n{device}"), "--to HOST:PORT"),
            (format!("{device}[[listener]]\nlisten = ':443'\norigin = 'web'"), "--origin web=HOST:PORT"),
            (format!("{edge}{device}[[listener]]\nlisten = '192.0.2.1:443'"), "share an address"),
            (format!("{edge}{device}[[listener]]\nlisten = ':1000-1100'"), "has at most 16"),
            (
                format!("{edge}[hop]\ndevice = 'xdp:eth0'\n[[listener]]\nlisten = ':80'"),
                "on xdp:eth0 has at most 1",
            ),
            (format!("{edge}{device}mechanisms = 'fast'"), "mechanisms: "),
        ] {
            let said = checked(&text).expect_err(&text);
            assert!(said.contains(says) && said.lines().count() == 1, "{text}: {said}");
        }
    }

    #[test]
    fn reload_keeps_open_listeners_and_takes_their_new_origins() {
        let read = |text: &str| Settings::parse(text, "edge.toml").expect("a configuration");
        let started = read("[edge]\nlisten = ':1'\n[[listener]]\nlisten = ':2'\n[[listener]]\nlisten = ':3'");
        let now = read("[edge]\nlisten = ':9'\nto = 'a:1'\n[[listener]]\nlisten = ':2'\norigin = 'web'");
        let opened = as_opened(now, &started);
        assert_eq!(places(&opened), places(&started));
        assert_eq!(opened.edge.to.as_deref(), Some("a:1"));
        assert_eq!(opened.listeners[0].origin.as_ref().map(OriginName::as_str), Some("web"));
    }

    #[test]
    fn default_mechanisms_need_nothing_at_the_client() {
        let hop = HopSettings::default();
        let profile = profile(&hop).expect("a profile");
        let mechanisms = &profile.tcp.mechanisms;
        assert!(mechanisms.corrective.is_none() && mechanisms.proactive.is_none());
        let shown = |state: &MechanismState| format!("{} {}", state.name, state.state);
        let states: Vec<String> = states(&hop, &profile.tcp, profile.fast_open).iter().map(shown).collect();
        assert_eq!(states, ["fast_open on", "path on", "reactive rack_tlp", "congestion bbr"]);
    }
}

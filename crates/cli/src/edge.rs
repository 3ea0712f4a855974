//! `brisk edge`: brisk's TCP towards unmodified clients, the kernel's TCP towards the origin.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use brisk_gateway::access::Role;
use brisk_gateway::log::Log;
use brisk_gateway::settings::{EdgeSettings, HopSettings, ListenerSettings};
use brisk_gateway::{
    Edge, EdgeConfig, EdgeControl, Facts, Hop, Listen, MechanismState, Metrics, OriginName, ServiceConfig,
    Settings,
};
use brisk_packet_io::share::KernelListener;

use crate::Common;
use crate::clients::{self, ClientDevice, OpenDevice, SettingNames};
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
  sudo brisk edge --listen :443 --device packet:eth0 --to 127.0.0.1:8443 --share 10%
  sudo brisk edge -c /etc/brisk/edge.toml";

/// The settings of the device towards the clients.
const NAMES: SettingNames =
    SettingNames { device: "hop.device", mechanisms: "hop.mechanisms", role: "an edge" };

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
    hop_args::log_ignored(&settings, &log);
    service::run_on_one_thread(async move {
        let Opened { cores, stop, operator } = Opened::by(&settings, service::all_cores())?;
        let device = device(&settings)?;
        let listen = places(&settings);
        let predecessors = tokio::select! {
            predecessors = device.predecessors(&listen, &log) => predecessors,
            () = stop.clone().requested() => return stop.verdict(),
        };
        let OpenDevice { places, frames, others, offers } = device.open(&listen, &cores, predecessors)?;
        let mechanisms = [device.states(), vec![exemptions(&others)]].concat();
        let metrics = Arc::<Metrics>::default();
        let usual = configured(&settings, &log, &metrics)?;
        let service = ServiceConfig { cores: cores.handles().to_vec(), ..usual.service };
        let config = EdgeConfig { service, ..usual };
        let edge = Edge::bind(config.clone(), &places)?.with_kernel(others)?.with_offers(offers);
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
            clients: Some(device.name()),
            share: Some(settings.edge.share()),
        };
        metrics.set_mechanisms(mechanisms);
        let origin = config.origin.clone().unwrap_or_else(|| "by name".to_owned());
        let of_role = [("origin", origin), ("frames", frames)];
        started(&facts, of_role, &metrics.mechanisms(), &confined, &log);
        let side = Reloadable {
            args,
            started: settings.clone(),
            last: Mutex::new(settings),
            control: edge.control(),
            log: log.clone(),
            metrics: metrics.clone(),
        };
        let operation = Operation::begin(operator, facts, metrics, None, side, &log)?;
        edge.run(stop.clone().requested()).await;
        operation.end();
        for (_, endpoint) in &places {
            service::drain_and_log(endpoint, &log).await;
        }
        stop.verdict()
    })
}

/// The state that a reload (SIGHUP) changes.
struct Reloadable {
    args: Args,
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
        hop_args::log_ignored(&read, &self.log);
        let mut fixed = vec!["edge.listen", "edge.share", "hop.mechanisms", "hop.max_overhead"];
        if !places(&read).eq(&places(&self.started)) {
            fixed.push("listener");
        }
        let waiting = hop_args::needs_restart(&read, &self.started, &fixed);
        self.control.reload(configured(&as_opened(read.clone(), &self.started), &self.log, &self.metrics)?);
        let last = std::mem::replace(&mut *lock(&self.last), read.clone());
        Ok(Reloaded::between(&(last, Hop::Plain), &(read, Hop::Plain), waiting))
    }
}

/// Returns the settings that were `read`, but with the addresses, the share, the mechanisms and the limit of
/// redundancy of `started`, the settings at the start.
fn as_opened(read: Settings, started: &Settings) -> Settings {
    let listeners = clients::as_opened(&read.listeners, &started.listeners);
    let edge = EdgeSettings { listen: started.edge.listen, share: started.edge.share, ..read.edge };
    let HopSettings { mechanisms, max_overhead, .. } = started.hop.clone();
    Settings { listeners, edge, hop: HopSettings { mechanisms, max_overhead, ..read.hop }, ..read }
}

/// Returns the addresses at which clients connect.
fn places(settings: &Settings) -> Vec<SocketAddr> {
    let others = settings.listeners.iter().flat_map(|listener| listener.listen.addresses());
    settings.edge.listen.into_iter().chain(others).collect()
}

/// Returns the state of the exemptions: clients whose path fails with brisk's TCP are left to the kernel.
fn exemptions(others: &[(SocketAddr, KernelListener)]) -> MechanismState {
    let is_on = !others.is_empty() && others.iter().all(|(_, others)| others.exceptions.is_some());
    let (state, reason) = match is_on {
        true => ("on", "default"),
        false => ("off", "it needs packet: or xdp:, and CAP_BPF and CAP_NET_ADMIN"),
    };
    MechanismState { name: "exemptions", state, reason: reason.to_owned() }
}

fn device(settings: &Settings) -> Result<ClientDevice, Failure> {
    match settings.hop.device {
        Some(_) => ClientDevice::of(&settings.hop, NAMES, &places(settings))?.sharing(settings.edge.share()),
        None => Err(Failure::usage(
            "an edge needs a device towards the clients: --device packet:eth0, or hop.device",
        )
        .about(NAMES.device)),
    }
}

/// Makes the checks of an edge's start that need no system call.
pub(crate) fn check(settings: &Settings) -> Result<(), Failure> {
    let Settings { edge, listeners, admin, .. } = settings;
    if places(settings).is_empty() {
        return Err(Failure::usage(
            "an edge needs an address for clients: --listen ADDR:PORT or --listener ADDR:PORT=NAME, or edge.listen \
             or [[listener]]",
        )
        .about("edge.listen"));
    }
    check_listeners(edge.listen, listeners)?;
    device(settings)?;
    check_origins(edge, listeners)?;
    hop_args::check_admin(admin)
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

/// Converts the settings into those of an edge.
fn configured(settings: &Settings, log: &Log, metrics: &Arc<Metrics>) -> Result<EdgeConfig, Failure> {
    let EdgeSettings { listen, to, origins, send_proxy, share: _ } = settings.edge.clone();
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
        clients: device(settings)?.side(),
        service: hop_args::service(&settings.limits, log, metrics),
        ..usual
    })
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
            (
                format!("{edge}share = '10%'\n[hop]\ndevice = 'tun:t0'\naddr = ['10.7.0.2/24']"),
                "tun:t0 cannot serve a share of 10%",
            ),
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
}

//! `brisk backend`: the gateway's side near the origin.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use brisk_gateway::access::Role;
use brisk_gateway::log::{Level, Log, Value};
use brisk_gateway::settings::{BackendSettings, FrontendLimitSettings};
use brisk_gateway::{
    Backend, BackendConfig, BackendControl, Facts, FrontendLimits, Hop, Metrics, ServiceConfig, Settings,
};
use brisk_runtime::DeviceSpec;
use brisk_runtime::attach::{AttachConfig, Attached, Queues};

use crate::Common;
use crate::confine::confine;
use crate::cookie_keys::CookieKeyArgs;
use crate::failure::Failure;
use crate::flags::{Flags, OfBackend, OfPair};
use crate::frontend::{hop_name, lock, started};
use crate::hop_args::{self, RoleArgs};
use crate::operation::{Opened, Operation, Reloaded, Side};
use crate::service;

const EXAMPLES: &str = "\
Examples:
  brisk keygen > key
  brisk backend --listen :7443 --to 127.0.0.1:80 --key-file key --send-proxy v2
  brisk backend --listen 127.0.0.1:7443 --to 127.0.0.1:80 --plain
  brisk backend --listen :7443 --origin web=10.0.0.5:80 --origin mail=10.0.0.6:25 --key-file key
  brisk backend -c /etc/brisk/backend.toml
  sudo brisk backend --listen 10.7.0.2:7443 --to 127.0.0.1:80 --device tun:brisk0 --addr 10.7.0.2/24 --key-file key";

/// The flags of `backend`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    cookie_keys: CookieKeyArgs,
    #[command(flatten)]
    own: Flags<OfBackend>,
    #[command(flatten)]
    role: RoleArgs<OfPair>,
}

impl Args {
    /// Returns the settings of file and flags if a backend can start with them.
    fn settings(&self) -> Result<Settings, Failure> {
        self.role.checked(self.own.settings.clone(), check)
    }
}

/// Serves until SIGINT or SIGTERM.
pub(crate) fn run(args: Args, common: &Common) -> Result<(), Failure> {
    let log = service::log(common);
    let settings = args.settings()?;
    let confined = confine(&settings);
    hop_args::log_ignored(&settings, &log);
    service::run_on_one_thread(async move {
        let Opened { cores, stop, operator } = Opened::by(&settings, service::PAIR_THREADS)?;
        let listen = listen(&settings.backend)?;
        let queues = Queues::UpTo(cores.count());
        let (builder, attached) = AttachConfig { queues, ..attach(&settings, listen)? }.open()?;
        let endpoint = builder.cores(&cores).build()?;
        let packet = hop_args::packet_endpoint(hop_args::packet(&settings.hop, Some(listen))?)?;
        let metrics = Arc::<Metrics>::default();
        let usual = config(&settings, &attached, &log, &metrics)?;
        let service = ServiceConfig { cores: cores.handles().to_vec(), ..usual.service };
        let config = BackendConfig { packet: packet.map(|(packet, _)| packet), service, ..usual };
        let backend = bind(config.clone(), &endpoint, &log)?;
        args.cookie_keys.clone().install(&endpoint, &log).await?;
        let facts = Facts {
            role: Role::Backend,
            listen: attached.outside(backend.local_addr()).to_string(),
            origin: config.origin.clone(),
            hop: hop_name(&attached),
            security: hop_args::security(&config.hop),
            clients: None,
            share: None,
        };
        metrics.set_mechanisms(hop_args::states(&settings.hop, &config.tcp, config.fast_open.is_some()));
        let origin = config.origin.clone().unwrap_or_else(|| "named by frontends".to_owned());
        started(&facts, [("origin", origin)], &metrics.mechanisms(), &confined, &log);
        hop_args::warn_no_peer_key(&config.hop, &log);
        log_unknown_labels(&settings, &config, &log);
        let side = Reloadable {
            args,
            started: settings.clone(),
            last: Mutex::new((settings.clone(), config.hop.clone())),
            attached,
            control: backend.control(),
            log: log.clone(),
            metrics: metrics.clone(),
        };
        let operation = Operation::begin(operator, facts, metrics, None, side, &log)?;
        backend.run(stop.clone().requested()).await;
        operation.end();
        service::drain_and_log(&endpoint, &log).await;
        stop.verdict()
    })
}

/// Listens. If another program has the port in the kernel's TCP, the backend starts without the kernel's TCP,
/// which is only a fallback.
fn bind(config: BackendConfig, endpoint: &brisk_runtime::Endpoint, log: &Log) -> Result<Backend, Failure> {
    let Some(kernel) = config.kernel_listen.filter(|_| config.packet.is_none()) else {
        return Ok(Backend::bind(config, endpoint)?);
    };
    match std::net::TcpListener::bind(kernel) {
        Ok(free) => {
            drop(free);
            Ok(Backend::bind(config, endpoint)?)
        }
        Err(error) => {
            let fields =
                [("listen", Value::Text(kernel.to_string())), ("reason", Value::Text(error.to_string()))];
            log.line(Level::Warning, "no-kernel-tcp", &fields);
            Ok(Backend::bind(BackendConfig { kernel_listen: None, ..config }, endpoint)?)
        }
    }
}

/// Settings of a backend that only a restart changes, in addition to those of every side. The mechanisms are
/// properties of the listeners. A backend without `as_client` has given up the capability for it.
const FIXED: [&str; 6] = [
    "backend.listen",
    "backend.as_client",
    "backend.replay_tolerance",
    "hop.mechanisms",
    "hop.max_overhead",
    "hop.kernel_tcp",
];

/// The state that a reload (SIGHUP) changes.
struct Reloadable {
    args: Args,
    started: Settings,
    /// The settings and keys of the last reload.
    last: Mutex<(Settings, Hop)>,
    attached: Attached,
    control: BackendControl,
    log: Log,
    metrics: Arc<Metrics>,
}

impl Side for Reloadable {
    fn key_files(&self) -> Vec<PathBuf> {
        lock(&self.last).0.hop.key_files()
    }

    async fn reload(&self) -> Result<Reloaded, Failure> {
        let read = self.args.settings()?;
        hop_args::log_ignored(&read, &self.log);
        let waiting = hop_args::needs_restart(&read, &self.started, &FIXED);
        let mut settings = hop_args::as_opened(read.clone(), &self.started);
        settings.backend.as_client = self.started.backend.as_client;
        let config = config(&settings, &self.attached, &self.log, &self.metrics)?;
        hop_args::warn_no_peer_key(&config.hop, &self.log);
        log_unknown_labels(&settings, &config, &self.log);
        let read = (read, config.hop.clone());
        self.control.reload(config);
        let last = std::mem::replace(&mut *lock(&self.last), read.clone());
        Ok(Reloaded::between(&last, &read, waiting))
    }
}

/// Makes the checks of a backend's start that need no system call.
pub(crate) fn check(settings: &Settings) -> Result<(), Failure> {
    let listen = listen(&settings.backend)?;
    origin(&settings.backend)?;
    hop_args::check(settings)?;
    hop_args::packet(&settings.hop, Some(listen))?;
    hop_args::check_device(&attach(settings, listen)?)
}

fn listen(backend: &BackendSettings) -> Result<SocketAddr, Failure> {
    backend.listen.ok_or_else(|| {
        Failure::usage("a backend needs an address for frontends: --listen ADDR:PORT, or backend.listen")
            .about("backend.listen")
    })
}

/// The backend's own origin; `None` if it serves only origins that frontends ask for.
fn origin(backend: &BackendSettings) -> Result<Option<String>, Failure> {
    let asked_for = backend.allow.as_ref().is_some_and(|allow| !allow.is_empty())
        || backend.origins.as_ref().is_some_and(|origins| !origins.is_empty());
    if backend.to.is_none() && !asked_for {
        return Err(Failure::usage(
            "a backend needs an origin: --to HOST:PORT, or --origin NAME=HOST:PORT or --allow RULE for origins that frontends ask for (backend.to, backend.origins, backend.allow)",
        )
        .about("backend.to"));
    }
    Ok(backend.to.clone())
}

fn config(
    settings: &Settings,
    attached: &Attached,
    log: &Log,
    metrics: &Arc<Metrics>,
) -> Result<BackendConfig, Failure> {
    let backend = &settings.backend;
    let listen = listen(backend)?;
    let hop = hop_args::protection(&settings.hop)?;
    let (tcp, fast_open) = hop_args::mechanisms(&settings.hop)?;
    let usual = BackendConfig::new(inside(attached, listen), origin(backend)?, hop);
    let kernel_listen = match attached {
        Attached::Udp { local } if hop_args::kernel_tcp(&settings.hop) || settings.hop.packet.is_some() => {
            Some(*local)
        }
        Attached::Udp { .. } | Attached::Native { .. } => None,
    };
    Ok(BackendConfig {
        ephemeral_lifetime: settings.hop.ephemeral_lifetime(),
        tcp,
        fast_open: usual.fast_open.filter(|_| fast_open),
        replay_tolerance: backend.replay_tolerance(),
        kernel_listen,
        allow: backend.allow.clone().unwrap_or_default(),
        origins: backend.origins.clone().unwrap_or_default(),
        as_client: backend.as_client(),
        send_proxy: backend.send_proxy,
        attached: Some(attached.clone()),
        frontend_limits: frontend_limits(settings),
        service: hop_args::service(&settings.limits, log, metrics),
        ..usual
    })
}

fn frontend_limits(settings: &Settings) -> BTreeMap<String, FrontendLimits> {
    let of = |limits: &FrontendLimitSettings| {
        let FrontendLimitSettings { label, max_connections, max_rate } = limits.clone();
        (label, FrontendLimits { max_connections, max_rate })
    };
    settings.frontends.iter().map(of).collect()
}

/// Returns a message for each label that has limits but no key.
pub(crate) fn unknown_labels(settings: &Settings, hop: &Hop) -> Vec<String> {
    let labels = hop.labels();
    if labels.is_empty() {
        // If no key has a label, `settings/ignored.rs` reports that all limits are ignored.
        return Vec::new();
    }
    let unknown = frontend_limits(settings).into_keys().filter(|label| !labels.contains(label.as_str()));
    unknown.map(|label| format!("no public key of peer_keys has the label '{label}'")).collect()
}

/// Logs the labels that have limits but no key.
fn log_unknown_labels(settings: &Settings, config: &BackendConfig, log: &Log) {
    for why in unknown_labels(settings, &config.hop) {
        let fields = [("key", Value::Text("frontends".into())), ("reason", Value::Text(why))];
        log.line(Level::Warning, "ignored", &fields);
    }
}

/// Returns the configured device; by default a UDP socket at the address of `--listen`.
fn attach(settings: &Settings, listen: SocketAddr) -> Result<AttachConfig, Failure> {
    let attach = hop_args::attach(&settings.hop, DeviceSpec::Udp { bind: listen })?;
    match attach.device {
        DeviceSpec::Udp { bind } if bind != listen => Err(Failure::usage(format!(
            "--device udp:{bind} and --listen {listen} differ: omit --device, because --listen names the UDP socket"
        ))
        .about("hop.device")),
        _ => Ok(AttachConfig { serve: Some(listen), local_ports: 0, ..attach }),
    }
}

/// Returns the address to listen on inside the stack.
fn inside(attached: &Attached, listen: SocketAddr) -> SocketAddr {
    match attached {
        Attached::Native { .. } => listen,
        Attached::Udp { .. } => {
            SocketAddr::new(IpAddr::from(Ipv6Addr::UNSPECIFIED), attached.service_port(listen.port()))
        }
    }
}

#[cfg(test)]
mod tests {
    use brisk_gateway::NamedOrigin;

    use super::*;

    #[test]
    fn backend_without_an_origin_lists_the_permitted_ones() {
        let mut backend = BackendSettings::default();
        assert!(origin(&backend).is_err_and(|failure| failure.code == 2));
        backend.allow = Some(Vec::new());
        assert!(origin(&backend).is_err());
        backend.allow = Some(vec!["*.example:443".parse().unwrap()]);
        assert_eq!(origin(&backend).ok(), Some(None));
        let named = vec!["web=127.0.0.1:80".parse::<NamedOrigin>().unwrap()];
        let backend =
            BackendSettings { origins: Some(named.into_iter().collect()), ..BackendSettings::default() };
        assert_eq!(origin(&backend).ok(), Some(None));
    }

    #[test]
    fn the_udp_socket_is_named_once() {
        let listen = SocketAddr::from(([127, 0, 0, 1], 7443));
        let with = |device: Option<&str>| {
            let mut settings = Settings::default();
            settings.hop.device = device.map(str::to_owned);
            attach(&settings, listen)
        };
        assert_eq!(with(None).map(|attach| attach.device).ok(), Some(DeviceSpec::Udp { bind: listen }));
        assert_eq!(with(Some("udp:127.0.0.1:1")).expect_err("they differ").code, 2);
    }
}

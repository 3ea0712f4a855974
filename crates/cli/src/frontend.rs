//! `brisk frontend`: the gateway's side near the users.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use brisk_gateway::access::Role;
use brisk_gateway::log::{Level, Log, Value};
use brisk_gateway::settings::{
    Change, Fallback, FrontendSettings, HopSettings, ListenerSettings, PeerSettings, RouteSettings,
    check_host_port,
};
use brisk_gateway::{
    BackendSpec, Direct, Entrance, Facts, Frontend, FrontendConfig, FrontendControl, Health, Hop, Listen,
    Listener, MechanismState, Metrics, Route, ServiceConfig, Settings, Users,
};
use brisk_runtime::attach::{AttachConfig, Attached, Queues};
use brisk_runtime::{Cores, DeviceSpec, Endpoint, FastOpenConnect};

use crate::Common;
use crate::addresses::{
    Addresses, MAX_CLIENT_WAIT, MIN_RETRY_INTERVAL, RENEWAL, RETRY_INTERVAL, is_address, names,
};
use crate::clients::{self, ClientDevice, SettingNames};
use crate::confine::{Confined, confine};
use crate::cookie_keys::CookieKeyArgs;
use crate::failure::Failure;
use crate::flags::{Flags, OfFrontend, OfPair};
use crate::hop_args::{self, RoleArgs};
use crate::operation::{Opened, Operation, Reloaded, Side};
use crate::service;
use crate::systemd;

const EXAMPLES: &str = "\
Examples:
  brisk frontend --listen :80 --peer origin.example:7443 --key-file key
  brisk frontend --listen :80 --peer a.example:7443 --peer b.example:7443 --key-file key --direct origin.example:80
  brisk frontend --listen 127.0.0.1:1080 --peer a.example:7443 --key-file key --socks5 --connect
  sudo brisk frontend --listen :80 --client-device packet:eth0 --peer origin.example:7443 --key-file key
  brisk frontend --listener :80=web --listener :8000-8010=games --peer a.example:7443 --key-file key
  brisk frontend -c /etc/brisk/frontend.toml";

/// The settings of the device towards the clients.
const CLIENTS: SettingNames = SettingNames {
    device: "frontend.client_device",
    mechanisms: "frontend.client_mechanisms",
    role: "a frontend's device for clients",
};
/// Maximum number of ports: each takes a descriptor on each core.
const MAX_PORTS: usize = 1024;
/// Number of data segments that follow the SYN on a hop inside UDP: with the SYN they fill an initial window.
const DATA_AFTER_SYN: u8 = 9;

/// The flags of `frontend`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Another place where clients connect, and the name of their origin: ADDR:PORT=NAME,
    /// ADDR:FIRST-LAST=NAME; repeatable
    #[arg(long, value_name = "ADDR:PORT=NAME", env = "BRISK_LISTENER", value_parser = listener, value_delimiter = ',')]
    listener: Vec<ListenerSettings>,
    /// A backend: HOST:PORT; repeatable, in order of preference
    #[arg(long, value_name = "HOST:PORT", env = "BRISK_PEER", value_parser = check_host_port, value_delimiter = ',')]
    peer: Vec<String>,
    /// Connect to this origin over the kernel's TCP while no backend is up; bypasses the encryption of the
    /// hop
    #[arg(long, value_name = "HOST:PORT", env = "BRISK_DIRECT", value_parser = check_host_port)]
    direct: Option<String>,
    #[command(flatten)]
    cookie_keys: CookieKeyArgs,
    #[command(flatten)]
    own: Flags<OfFrontend>,
    #[command(flatten)]
    role: RoleArgs<OfPair>,
}

impl Args {
    /// The flags of this side.
    fn own(&self) -> Settings {
        let direct = FrontendSettings {
            fallback: self.direct.is_some().then_some(Fallback::Direct),
            origin: self.direct.clone(),
            ..FrontendSettings::default()
        };
        let peer = |(n, peer): (usize, &String)| PeerSettings {
            peer: peer.clone(),
            priority: u8::try_from(n).unwrap_or(u8::MAX),
            weight: 1,
        };
        let peers = self.peer.iter().enumerate().map(peer).collect();
        let listed =
            Settings { frontend: direct, peers, listeners: self.listener.clone(), ..Settings::default() };
        self.own.settings.clone().over(listed)
    }

    /// Returns the settings of file and flags if a frontend can start with them.
    fn settings(&self) -> Result<Settings, Failure> {
        self.role.checked(self.own(), check)
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
        let handed = handed(&settings, systemd::addresses()?)?;
        let read = settings.clone();
        let settings = with_listen(settings, handed);
        let addresses = look_up(&settings, &Addresses::default(), &log).await?;
        let device = device(&settings, &addresses);
        let Stacks { endpoint, packet, devices: attached } = Stacks::open(&settings.hop, device, &cores)?;
        let addresses = addresses.only(|address| attached.reach(address));
        let metrics = Arc::<Metrics>::default();
        let usual = configured(&settings, &addresses, &attached, &log, &metrics)?;
        let service = ServiceConfig { cores: cores.handles().to_vec(), ..usual.service };
        let config = FrontendConfig { packet, service, ..usual };
        let clients = client_device(&settings)?;
        let (places, frames) = match &clients {
            Some(device) => {
                let open = device.open(&places(&settings), &cores, Vec::new())?;
                (open.places, open.frames)
            }
            None => (Vec::new(), String::new()),
        };
        let frontend = match &clients {
            Some(device) => {
                let config = FrontendConfig { clients: Some(device.side()), ..config.clone() };
                Frontend::on_stacks(&places, config, endpoint.clone())?
            }
            None => Frontend::on(systemd::take_listeners()?, config.clone(), endpoint.clone())?,
        };
        for (_, endpoint) in &places {
            args.cookie_keys.clone().install(endpoint, &log).await?;
        }
        let facts = Facts {
            role: Role::Frontend,
            listen: frontend.control().addresses(),
            origin: None,
            hop: hop_name(&attached.usual),
            security: hop_args::security(&config.hop),
            clients: clients.as_ref().map(ClientDevice::name),
            share: None,
        };
        metrics.set_mechanisms(states(&settings, &settings, &config)?);
        let peers: Vec<&str> = settings.peers.iter().map(|peer| peer.peer.as_str()).collect();
        let of_role = [("peer", peers.join(",")), ("frames", frames)];
        started(&facts, of_role, &metrics.mechanisms(), &confined, &log);
        if let Some(direct) = &config.direct {
            let reason = "used while no backend is up; bypasses the encryption of the hop";
            let fields =
                [("origin", Value::Text(direct.origin.clone())), ("reason", Value::Text(reason.into()))];
            log.line(Level::Warning, "direct", &fields);
        }
        warn_no_users(config.entrance.users.as_ref(), &log);
        let side = Arc::new(Reloadable {
            args,
            last: Mutex::new((read.clone(), config.hop.clone())),
            started: read,
            handed,
            users: Mutex::new(config.entrance.users.clone()),
            now: tokio::sync::Mutex::new((settings.clone(), addresses)),
            attached,
            control: frontend.control(),
            log: log.clone(),
            metrics: metrics.clone(),
        });
        let control = Some(frontend.control());
        let operation = Operation::begin(operator, facts, metrics, control, side.clone(), &log)?;
        tokio::select! {
            _ = frontend.run(stop.requested()) => {}
            never = side.look_up_again() => match never {},
        }
        operation.end();
        for endpoint in places.iter().map(|(_, endpoint)| endpoint).chain([&endpoint]) {
            service::drain_and_log(endpoint, &log).await;
        }
        Ok(())
    })
}

/// Logs the start of a side with the fields of its role, a line per mechanism, and the rights that the
/// process has kept.
pub(crate) fn started(
    facts: &Facts,
    of_role: impl IntoIterator<Item = (&'static str, String)>,
    mechanisms: &[MechanismState],
    confined: &Confined,
    log: &Log,
) {
    let mut fields =
        vec![("role", Value::Text(facts.role.name().into())), ("listen", Value::Text(facts.listen.clone()))];
    // An edge has no hop.
    if facts.role != Role::Edge {
        fields.extend(
            [("hop", facts.hop), ("security", facts.security)]
                .map(|(key, text)| (key, Value::Text(text.into()))),
        );
    }
    let is_known = |(_, text): &(_, String)| !text.is_empty();
    fields.extend(of_role.into_iter().filter(is_known).map(|(key, text)| (key, Value::Text(text))));
    if let Some(clients) = &facts.clients {
        fields.push(("clients", Value::Text(clients.clone())));
    }
    log.line(Level::Info, "started", &fields);
    for mechanism in mechanisms {
        let fields = [
            ("name", Value::Text(mechanism.name.into())),
            ("state", Value::Text(mechanism.state.into())),
            ("reason", Value::Text(mechanism.reason.clone())),
        ];
        log.line(Level::Info, "mechanism", &fields);
    }
    confined.log_rights(log);
}

/// The state that a reload (SIGHUP) changes.
struct Reloadable {
    args: Args,
    started: Settings,
    /// The address on which systemd listens in place of `frontend.listen`.
    handed: Option<SocketAddr>,
    /// The settings and keys of the last reload.
    last: Mutex<(Settings, Hop)>,
    /// The users of the last reload.
    users: Mutex<Option<Users>>,
    /// The current settings, with the addresses of their backends.
    now: tokio::sync::Mutex<(Settings, Addresses)>,
    attached: Devices,
    control: FrontendControl,
    log: Log,
    metrics: Arc<Metrics>,
}

impl Reloadable {
    /// Looks up all names again from time to time, and when a client waits for a backend. More often, looks
    /// up names without an address and names of backends that are down. Never ends.
    async fn look_up_again(&self) -> Infallible {
        let mut renewed = Instant::now();
        loop {
            tokio::time::sleep(MIN_RETRY_INTERVAL).await;
            let is_wanted =
                tokio::time::timeout(RETRY_INTERVAL - MIN_RETRY_INTERVAL, self.control.look_up_wanted())
                    .await
                    .is_ok();
            let is_time = renewed.elapsed() >= RENEWAL;
            if is_time {
                renewed = Instant::now();
            }
            let down = self.down();
            let names: Vec<String> = {
                let (settings, addresses) = &*self.now.lock().await;
                let is_due = |name: &String| {
                    let is_used = addresses.of(name).is_some();
                    !is_address(name) && (is_time || is_wanted || !is_used || down.contains(name))
                };
                names(&settings.peers).filter(is_due).collect()
            };
            if !names.is_empty() {
                let found = Addresses::look_up(names.clone()).await;
                self.move_to(&found.only(|address| self.attached.reach(address)), &names).await;
            }
        }
    }

    /// Returns the backends that do not answer.
    fn down(&self) -> Vec<String> {
        let upstreams = self.control.upstreams();
        let down = upstreams.iter().filter(|upstream| upstream.health() == Health::Down);
        down.map(|upstream| upstream.spec.name.clone()).collect()
    }

    /// Switches to the addresses that were `found` for the backends with these `names`, if the devices reach
    /// them.
    async fn move_to(&self, found: &Addresses, names: &[String]) {
        let (settings, addresses) = &mut *self.now.lock().await;
        for name in names {
            // The backend may be up again by now.
            let is_down = self.down().contains(name);
            let Some(moved) = addresses.with(name, found, is_down) else { continue };
            let backend = ("backend", Value::Text(name.to_owned()));
            match configured(settings, &moved, &self.attached, &self.log, &self.metrics) {
                Ok(config) => {
                    if moved.of(name) != addresses.of(name) {
                        // The listeners stay the same, so none must be opened, which could fail.
                        let _ = self.control.reload(config);
                        let address = moved.of(name).map_or_else(String::new, |address| address.to_string());
                        self.log.line(Level::Info, "resolved", &[backend, ("address", Value::Text(address))]);
                    }
                    *addresses = moved;
                }
                Err(failure) if addresses.of(name).is_none() && addresses.refuse(name, &failure.message) => {
                    let fields = [backend, ("reason", Value::Text(failure.message))];
                    self.log.line(Level::Warning, "unresolved", &fields);
                }
                Err(_) => {}
            }
        }
    }
}

impl Side for Arc<Reloadable> {
    fn key_files(&self) -> Vec<PathBuf> {
        lock(&self.last).0.hop.key_files()
    }

    async fn reload(&self) -> Result<Reloaded, Failure> {
        let read = self.args.settings()?;
        hop_args::log_ignored(&read, &self.log);
        let mut fixed = vec!["frontend.client_device", "frontend.client_addr", "frontend.client_mechanisms"];
        if self.handed.is_some() || self.started.frontend.client_device.is_some() {
            fixed.push("frontend.listen");
        }
        if self.started.frontend.client_device.is_some() && places(&read) != places(&self.started) {
            fixed.push("listener");
        }
        let waiting = hop_args::needs_restart(&read, &self.started, &fixed);
        let settings = with_listen(as_opened(read.clone(), &self.started), self.handed);
        let mut now = self.now.lock().await;
        let addresses = look_up(&settings, &now.1, &self.log).await?;
        let addresses = addresses.only(|address| self.attached.reach(address));
        let config = configured(&settings, &addresses, &self.attached, &self.log, &self.metrics)?;
        let states = states(&settings, &self.started, &config)?;
        let users = config.entrance.users.clone();
        let read = (read, config.hop.clone());
        self.control.reload(config)?;
        warn_no_users(users.as_ref(), &self.log);
        let users_before = std::mem::replace(&mut *lock(&self.users), users.clone());
        self.metrics.set_mechanisms(states);
        *now = (settings, addresses);
        let last = std::mem::replace(&mut *lock(&self.last), read.clone());
        Ok(Reloaded::between(&last, &read, waiting)
            .with(users_changed(users_before.as_ref(), users.as_ref())))
    }
}

/// Returns the settings that were `read`, but with the devices of `started`, the settings at the start. If
/// clients connect on a device, the listening addresses are those of `started` too.
fn as_opened(read: Settings, started: &Settings) -> Settings {
    let read = hop_args::as_opened(read, started);
    let FrontendSettings { listen, client_device, client_addr, client_mechanisms, .. } =
        started.frontend.clone();
    let (listen, listeners) = match &client_device {
        Some(_) => (listen, clients::as_opened(&read.listeners, &started.listeners)),
        None => (read.frontend.listen, read.listeners),
    };
    let frontend =
        FrontendSettings { listen, client_device, client_addr, client_mechanisms, ..read.frontend };
    Settings { frontend, listeners, ..read }
}

/// Returns the addresses at which clients connect.
fn places(settings: &Settings) -> Vec<SocketAddr> {
    let others = settings.listeners.iter().flat_map(|listener| listener.listen.addresses());
    settings.frontend.listen.into_iter().chain(others).collect()
}

/// Returns the device for brisk's TCP towards the clients, if there is one.
fn client_device(settings: &Settings) -> Result<Option<ClientDevice>, Failure> {
    let FrontendSettings { client_device: device, client_addr, client_mechanisms, .. } =
        settings.frontend.clone();
    let Some(device) = device else { return Ok(None) };
    let hop = HopSettings {
        device: Some(device),
        addr: client_addr,
        mechanisms: client_mechanisms,
        max_overhead: settings.hop.max_overhead.clone(),
        ..HopSettings::default()
    };
    ClientDevice::of(&hop, CLIENTS, &places(settings)).map(Some)
}

/// Returns the states of the mechanisms of the hop, and of the device for clients, which is as at the start.
fn states(
    settings: &Settings,
    started: &Settings,
    config: &FrontendConfig,
) -> Result<Vec<MechanismState>, Failure> {
    let mut states = hop_args::states(&settings.hop, &config.tcp, config.fast_open.is_some());
    if let Some(device) = client_device(started)? {
        let name = |name| match name {
            "fast_open" => "client_fast_open",
            "path" => "client_path",
            "reactive" => "client_reactive",
            "planner" => "client_planner",
            _ => "client_congestion",
        };
        states.extend(
            device.states().into_iter().map(|state| MechanismState { name: name(state.name), ..state }),
        );
    }
    Ok(states)
}

/// Warns that an empty list of users admits no client.
fn warn_no_users(users: Option<&Users>, log: &Log) {
    if users.is_some_and(|users| users.count() == 0) {
        let reason = "users_file has no users: no client can log in";
        log.line(Level::Warning, "nobody", &[("reason", Value::Text(reason.into()))]);
    }
}

/// The change of the users for the log: only their number, no content of the file.
fn users_changed(before: Option<&Users>, now: Option<&Users>) -> Option<Change> {
    let number =
        |users: Option<&Users>| users.map_or_else(|| "none".to_owned(), |users| users.count().to_string());
    let change = Change { key: "users".to_owned(), before: number(before), after: number(now) };
    (before != now).then_some(change)
}

/// Locks the mutex. The value is valid even after a panic, because it is only ever replaced.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The devices of a frontend, and the addresses that they reach.
pub(crate) struct Devices {
    pub(crate) usual: Attached,
    /// The packet socket, in addition to TCP in UDP.
    pub(crate) packet: Option<Attached>,
}

/// The stacks of a frontend.
pub(crate) struct Stacks {
    pub(crate) endpoint: Endpoint,
    /// The stacks on the packet socket.
    pub(crate) packet: Option<Endpoint>,
    pub(crate) devices: Devices,
}

impl Stacks {
    /// Opens the device that the settings name, or else `usual`. The device has a stack on each core if it
    /// has enough queues.
    pub(crate) fn open(hop: &HopSettings, usual: DeviceSpec, cores: &Cores) -> Result<Stacks, Failure> {
        let attach = hop_args::attach(hop, usual)?;
        let beside = hop_args::packet(hop, None)?;
        let queues = Queues::UpTo(cores.count());
        let (builder, usual) =
            AttachConfig { local_ports: hop_args::LOCAL_PORTS, queues, ..attach }.open()?;
        let endpoint = builder.cores(cores).build()?;
        let (packet, attached) = hop_args::packet_endpoint(beside)?.unzip();
        Ok(Stacks { endpoint, packet, devices: Devices { usual, packet: attached } })
    }
}

impl Devices {
    /// True if the usual device reaches an address.
    pub(crate) fn reach(&self, address: SocketAddr) -> bool {
        self.usual.destination(address).is_ok()
    }

    /// Returns the backend at `address`, with its address on each transport.
    pub(crate) fn backend(
        &self,
        name: &str,
        address: SocketAddr,
        hop: &HopSettings,
    ) -> Result<BackendSpec, Failure> {
        let packet = self.packet.as_ref().map(|packet| packet.destination(address)).transpose();
        Ok(BackendSpec {
            name: name.to_owned(),
            kernel: Some(address).filter(|_| hop_args::kernel_tcp(hop)),
            packet: packet.map_err(Failure::failed)?,
            ..BackendSpec::new(self.usual.destination(address).map_err(Failure::failed)?)
        })
    }
}

/// Makes the checks of a frontend's start that need no system call.
pub(crate) fn check(settings: &Settings) -> Result<(), Failure> {
    let Settings { frontend, peers, hop, .. } = settings;
    check_listens(settings, systemd::addresses()?)?;
    if peers.is_empty() {
        return Err(no_peer());
    }
    check_listeners(settings.frontend.listen, &settings.listeners)?;
    direct(frontend)?;
    users(frontend)?;
    check_clients(settings, systemd::addresses()?)?;
    hop_args::check(settings)?;
    hop_args::protection_towards_backend(hop)?;
    hop_args::packet(hop, None)?;
    hop_args::check_device(&hop_args::attach(hop, any_udp(SocketAddr::from((Ipv4Addr::LOCALHOST, 1))))?)
}

fn check_clients(settings: &Settings, handed: &[SocketAddr]) -> Result<(), Failure> {
    if client_device(settings)?.is_none() {
        return Ok(());
    }
    let contradiction = match (settings.frontend.transparent, handed) {
        (Some(true), _) => {
            "transparent needs the kernel's TCP, which knows where a firewall rule redirects from"
        }
        (_, [_, ..]) => "LISTEN_FDS has sockets of the kernel's TCP",
        _ => return Ok(()),
    };
    Err(Failure::usage(format!("client_device: {contradiction}; use one of the two")).about(CLIENTS.device))
}

fn no_peer() -> Failure {
    Failure::usage(
        "a frontend needs a backend: --peer HOST:PORT, or [[backends]] with peer in the configuration",
    )
    .about("backends")
}

fn check_listens(settings: &Settings, handed: &[SocketAddr]) -> Result<(), Failure> {
    match settings.frontend.listen.is_none() && settings.listeners.is_empty() && handed.is_empty() {
        true => Err(Failure::usage(
            "a frontend needs an address for clients: --listen ADDR:PORT or --listener ADDR:PORT=NAME, or \
             frontend.listen or [[listener]]",
        )
        .about("frontend.listen")),
        false => Ok(()),
    }
}

/// Returns the address that replaces `frontend.listen`: the one that systemd passed (`handed`) and that no
/// other listener has.
fn handed(settings: &Settings, handed: &[SocketAddr]) -> Result<Option<SocketAddr>, Failure> {
    let is_of_listener = |address: &SocketAddr| {
        settings.listeners.iter().flat_map(|listener| listener.listen.addresses()).any(|own| own == *address)
    };
    let left: Vec<SocketAddr> = handed.iter().copied().filter(|address| !is_of_listener(address)).collect();
    match left[..] {
        [] => Ok(None),
        [address] => Ok(Some(address)),
        _ => Err(Failure::usage(format!(
            "LISTEN_FDS: the sockets {} match no [[listener]], and only one of them can replace frontend.listen; write a [[listener]] for each",
            left.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(", ")
        ))
        .about("listener")),
    }
}

/// Returns these settings with the addresses on which systemd listens, if it does.
fn with_listen(settings: Settings, handed: Option<SocketAddr>) -> Settings {
    let listen = handed.or(settings.frontend.listen);
    Settings { frontend: FrontendSettings { listen, ..settings.frontend }, ..settings }
}

/// Returns the listeners that have origins of their own.
pub(crate) fn listeners(settings: &[ListenerSettings]) -> Vec<Listener> {
    let listener = |listener: &ListenerSettings| {
        let ListenerSettings { listen, origin, routes, direct, send_proxy } = listener.clone();
        let route = |RouteSettings { sni, origin, direct, send_proxy }| Route {
            sni,
            origin,
            direct: direct.map(|origin| Direct { origin, send_proxy }),
        };
        let direct = direct.map(|origin| Direct { origin, send_proxy });
        Listener { listen, origin, routes: routes.into_iter().map(route).collect(), direct }
    };
    settings.iter().map(listener).collect()
}

/// Checks that all listeners can be open at the same time.
pub(crate) fn check_listeners(
    listen: Option<SocketAddr>,
    listeners: &[ListenerSettings],
) -> Result<(), Failure> {
    let wrong = |why: String| Err(Failure::usage(why).about("listener"));
    let others = listeners.iter().map(|listener| listener.listen.clone());
    let all: Vec<Listen> = listen.into_iter().map(Listen::from).chain(others).collect();
    for (n, listen) in all.iter().enumerate() {
        if let Some(other) = all.iter().take(n).find(|other| other.overlaps(listen)) {
            return wrong(format!(
                "the listeners {other} and {listen} share an address and a port; change one of them"
            ));
        }
    }
    let ports = all.iter().flat_map(Listen::addresses).count();
    match ports > MAX_PORTS {
        true => {
            wrong(format!("the listeners have {ports} ports in total; a frontend has at most {MAX_PORTS}"))
        }
        false => Ok(()),
    }
}

/// Parses the flag of a listener.
pub(crate) fn listener(text: &str) -> Result<ListenerSettings, String> {
    let wrong = || "write ADDR:PORT=NAME, for instance :80=web".to_owned();
    let (listen, origin) = text.split_once('=').ok_or_else(wrong)?;
    Ok(ListenerSettings {
        listen: listen.parse()?,
        origin: Some(origin.parse()?),
        routes: Vec::new(),
        direct: None,
        send_proxy: None,
    })
}

/// Returns the users of the proxies; `None` if clients need not log in.
fn users(frontend: &FrontendSettings) -> Result<Option<Users>, Failure> {
    let Some(file) = &frontend.users_file else { return Ok(None) };
    let about = |failure: Failure| failure.about("frontend.users_file");
    if frontend.transparent == Some(true) {
        return Err(about(Failure::usage(
            "users_file and transparent contradict each other: clients that a firewall rule redirects cannot log in",
        )));
    }
    Users::load(file).map(Some).map_err(|error| about(Failure::failed(error)))
}

fn direct(frontend: &FrontendSettings) -> Result<Option<Direct>, Failure> {
    match (frontend.fallback(), &frontend.origin) {
        (Fallback::Direct, Some(origin)) => {
            Ok(Some(Direct { origin: origin.clone(), send_proxy: frontend.send_proxy }))
        }
        (Fallback::Direct, None) => Err(Failure::usage(
            "fallback = \"direct\" needs frontend.origin, the origin's address as seen from here",
        )
        .about("frontend.fallback")),
        (Fallback::None, _) => Ok(None),
    }
}

/// Converts the settings into those of a frontend.
pub(crate) fn configured(
    settings: &Settings,
    addresses: &Addresses,
    attached: &Devices,
    log: &Log,
    metrics: &Arc<Metrics>,
) -> Result<FrontendConfig, Failure> {
    let frontend = &settings.frontend;
    let hop = hop_args::protection_towards_backend(&settings.hop)?;
    let (tcp, fast_open) = hop_args::mechanisms(&settings.hop)?;
    let over_udp = matches!(attached.usual, Attached::Udp { .. });
    let mut backends = Vec::new();
    for PeerSettings { peer, priority, weight } in &settings.peers {
        let spec = match addresses.of(peer) {
            Some(address) => attached.backend(peer, address, &settings.hop)?,
            None => BackendSpec::unknown(peer.clone()),
        };
        backends.push(BackendSpec { priority: *priority, weight: *weight, ..spec });
    }
    let usual = FrontendConfig::between(backends, hop);
    // No middlebox looks into the datagrams, so the rest of a long request need not wait for the SYN-ACK.
    let data_after_syn = if over_udp { DATA_AFTER_SYN } else { 0 };
    let opens = |usual: FastOpenConnect| {
        fast_open.then_some(FastOpenConnect { data_after_syn, early_window: over_udp, ..usual })
    };
    Ok(FrontendConfig {
        listen: settings.frontend.listen,
        listeners: listeners(&settings.listeners),
        ephemeral_lifetime: settings.hop.ephemeral_lifetime(),
        tcp,
        fast_open: usual.fast_open.and_then(opens),
        first_bytes_wait: frontend.first_bytes_wait(),
        first_bytes_limit: frontend.first_bytes_limit(),
        entrance: Entrance {
            proxy_from: frontend.proxy_from.clone().unwrap_or_default(),
            socks5: frontend.socks5(),
            connect: frontend.connect(),
            users: users(frontend)?,
            transparent: frontend.transparent(),
            ..Entrance::default()
        },
        watch: frontend.watch(),
        direct: direct(frontend)?,
        hold: if names(&settings.peers).all(|name| is_address(&name)) { usual.hold } else { MAX_CLIENT_WAIT },
        service: hop_args::service(&settings.limits, log, metrics),
        ..usual
    })
}

pub(crate) fn hop_name(attached: &Attached) -> &'static str {
    match attached {
        Attached::Native { .. } => "tcp",
        Attached::Udp { .. } => "tcp-in-udp",
    }
}

/// Looks up the addresses of the backends. Fails only if all are unknown and there is no direct destination.
async fn look_up(settings: &Settings, known: &Addresses, log: &Log) -> Result<Addresses, Failure> {
    let addresses = known.renewed(&settings.peers, log).await;
    if direct(&settings.frontend)?.is_none() {
        addresses.first(&settings.peers)?;
    }
    Ok(addresses)
}

/// Returns the default device: a UDP socket of the address family of the backends, or of both families.
pub(crate) fn device(settings: &Settings, addresses: &Addresses) -> DeviceSpec {
    let named: Vec<String> = names(&settings.peers).collect();
    let known: Vec<SocketAddr> = addresses.all().collect();
    let has = |is_ipv4| known.iter().any(|address| address.is_ipv4() == is_ipv4);
    // A name without a known address may have addresses of either family.
    let are_all_known = !known.is_empty() && named.iter().all(|name| addresses.of(name).is_some());
    if !are_all_known || has(true) && has(false) {
        let both = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
        let any = std::net::UdpSocket::bind(both).map(|_| both);
        return DeviceSpec::Udp { bind: any.unwrap_or(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))) };
    }
    // A backend with a name may move to another host.
    let stays_here =
        named.iter().all(|name| is_address(name)) && known.iter().all(|address| address.ip().is_loopback());
    udp(has(true), stays_here)
}

/// Returns a UDP socket on any port that reaches `peer`; it is on loopback only if the peer is.
pub(crate) fn any_udp(peer: SocketAddr) -> DeviceSpec {
    udp(peer.is_ipv4(), peer.ip().is_loopback())
}

fn udp(is_ipv4: bool, is_loopback: bool) -> DeviceSpec {
    let any: IpAddr = match (is_ipv4, is_loopback) {
        (true, true) => Ipv4Addr::LOCALHOST.into(),
        (true, false) => Ipv4Addr::UNSPECIFIED.into(),
        (false, true) => Ipv6Addr::LOCALHOST.into(),
        (false, false) => Ipv6Addr::UNSPECIFIED.into(),
    };
    DeviceSpec::Udp { bind: SocketAddr::new(any, 0) }
}

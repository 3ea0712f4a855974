//! Brisk's TCP towards unmodified clients, for `edge` and for `frontend --client-device`.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use brisk_gateway::clients::client_tcp;
use brisk_gateway::log::{Level, Log, Value};
use brisk_gateway::settings::{CLIENT_MECHANISMS, HopSettings, ListenerSettings};
use brisk_gateway::{ClientSide, MechanismState};
use brisk_packet_io::share::{KernelListener, Share};
use brisk_packet_io::takeover::{Offer, Predecessor};
use brisk_runtime::attach::{AttachConfig, Queues};
use brisk_runtime::profile::Profile;
use brisk_runtime::{Builder, Cores, DeviceSpec, Endpoint};

use crate::failure::Failure;
use crate::{hop_args, systemd};

/// Maximum number of ports on `packet:` and `tun:`. On `packet:` each port costs a device with stacks of its
/// own.
const MAX_PORTS: usize = 16;
/// Number of clients whose paths are remembered.
const PATHS: usize = 16_384;

/// Pause before a process that has not handed its port over is asked again.
const ASK_PAUSE: Duration = Duration::from_millis(100);

/// The addresses at which clients connect, each with its endpoint.
pub(crate) type Places = Vec<(SocketAddr, Endpoint)>;

/// Names of the settings for the device towards the clients, for errors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SettingNames {
    /// The setting that selects the device.
    pub(crate) device: &'static str,
    /// The setting that lists the mechanisms.
    pub(crate) mechanisms: &'static str,
    /// The role, with its article.
    pub(crate) role: &'static str,
}

/// The device towards the clients, and the mechanisms of its TCP.
#[derive(Clone, Debug)]
pub(crate) struct ClientDevice {
    attach: AttachConfig,
    side: ClientSide,
    settings: HopSettings,
    /// The share of the clients that brisk's TCP serves, at an edge; the kernel serves the others, and exempt
    /// clients. `None` at a frontend: the device serves all clients, and its port cannot be handed over.
    share: Option<Share>,
}

pub(crate) struct OpenDevice {
    pub(crate) places: Places,
    /// How frames get to the stacks: one word, or several if the ports differ. Empty on `tun:`.
    pub(crate) frames: String,
    /// The kernel's listeners for the clients that it serves.
    pub(crate) others: Vec<(SocketAddr, KernelListener)>,
    /// For each port, the open offer to hand it over to the next process, with the endpoint that serves it
    /// until then.
    pub(crate) offers: Vec<(Offer, Endpoint)>,
}

/// The process that hands over the port of each address, if there is one. In the order of the addresses.
pub(crate) type Predecessors = Vec<Option<Predecessor>>;

impl ClientDevice {
    /// Reads the settings, which have the same fields as those of the hop. Makes all checks that need no
    /// system call.
    pub(crate) fn of(
        settings: &HopSettings,
        names: SettingNames,
        places: &[SocketAddr],
    ) -> Result<ClientDevice, Failure> {
        let SettingNames { role, .. } = names;
        let wrong = |why: &str| Failure::usage(why).about(names.device);
        let device = settings.device.as_deref().unwrap_or_default();
        let device: DeviceSpec = device.parse().map_err(|error| wrong(&format!("device: {error}")))?;
        if matches!(device, DeviceSpec::Udp { .. }) {
            return Err(wrong(&format!(
                "udp: reaches only clients with brisk's TCP; {role} needs packet:IFACE, xdp:IFACE or tun:NAME"
            )));
        }
        let attach = hop_args::attach(settings, device)?;
        let max_ports = if matches!(attach.device, DeviceSpec::Xdp { .. }) { 1 } else { MAX_PORTS };
        if places.len() > max_ports {
            return Err(Failure::usage(format!(
                "the listeners have {} ports in total; {role} on {} has at most {max_ports}",
                places.len(),
                attach.device
            ))
            .about("listener"));
        }
        attach.check().map_err(|error| Failure::from(error).about(names.device))?;
        let mut profile = Profile::parse(settings.mechanisms.as_deref().unwrap_or(CLIENT_MECHANISMS))
            .map_err(|error| Failure::usage(format!("mechanisms: {error}")).about(names.mechanisms))?;
        profile.allow(hop_args::max_overhead(settings)?);
        let ClientSide { fast_open, .. } = ClientSide::default();
        let side =
            ClientSide { fast_open: fast_open.filter(|_| profile.fast_open), tcp: client_tcp(profile.tcp) };
        Ok(ClientDevice { attach, side, settings: settings.clone(), share: None })
    }

    /// Serves only the clients in `share`. The kernel serves the others, and those that are exempt because
    /// their paths fail with brisk's TCP (`brisk_gateway::exempt`). On `tun:` the kernel can serve nobody, so
    /// this fails unless the share is 100 %.
    pub(crate) fn sharing(self, share: Share) -> Result<ClientDevice, Failure> {
        self.attach.check_share(share).map_err(|error| Failure::from(error).about("edge.share"))?;
        Ok(ClientDevice { share: Some(share), ..self })
    }

    /// Returns brisk's TCP towards the clients.
    pub(crate) fn side(&self) -> ClientSide {
        self.side.clone()
    }

    /// Returns the device, as its user writes it.
    pub(crate) fn name(&self) -> String {
        self.attach.device.to_string()
    }

    /// Asks the processes that serve these ports to hand them over to this one, and waits. A process hands
    /// its port over when it is stopped. Reports the start to systemd before it waits: then the old unit can
    /// be stopped.
    pub(crate) async fn predecessors(&self, places: &[SocketAddr], log: &Log) -> Predecessors {
        let ask = |place: SocketAddr| AttachConfig { serve: Some(place), ..self.attach.clone() }.ask();
        let asked: Vec<_> = places.iter().map(|place| (*place, ask(*place))).collect();
        if asked.iter().any(|(_, candidate)| candidate.is_some()) {
            let reason = Value::Text("another process serves this address until it stops".to_owned());
            log.line(Level::Info, "waiting", &[("device", Value::Text(self.name())), ("reason", reason)]);
            systemd::ready();
        }
        let mut predecessors = Vec::new();
        for (place, mut candidate) in asked {
            let mut predecessor = None;
            while let (None, Some(waiting)) = (&predecessor, candidate.take()) {
                predecessor = waiting.wait().await;
                if predecessor.is_none() {
                    // The other process has ended without handing its port over, or refuses to.
                    tokio::time::sleep(ASK_PAUSE).await;
                    candidate = ask(place);
                }
            }
            predecessors.push(predecessor);
        }
        predecessors
    }

    /// Opens the device. On `tun:` one endpoint serves all addresses. Otherwise each address has its own, and
    /// its port is hidden from the kernel except for the clients that the kernel serves.
    pub(crate) fn open(
        &self,
        places: &[SocketAddr],
        cores: &Cores,
        predecessors: Predecessors,
    ) -> Result<OpenDevice, Failure> {
        let has_one_endpoint = matches!(self.attach.device, DeviceSpec::Tun { .. });
        let mut open =
            OpenDevice { places: Vec::new(), frames: String::new(), others: Vec::new(), offers: Vec::new() };
        let mut frames = BTreeSet::new();
        let mut predecessors = predecessors.into_iter();
        for &place in places {
            let predecessor = predecessors.next().flatten();
            let endpoint = match open.places.first() {
                Some((_, endpoint)) if has_one_endpoint => endpoint.clone(),
                Some(_) | None => {
                    let queues = Queues::UpTo(cores.count());
                    let attach =
                        AttachConfig { serve: Some(place), local_ports: 0, queues, ..self.attach.clone() };
                    let on = |builder: Builder| {
                        builder.stack(|stack| stack.path_entries = PATHS).cores(cores).build()
                    };
                    match self.share {
                        None => {
                            let (builder, attached) = attach.open()?;
                            frames.extend(attached.frames());
                            on(builder)?
                        }
                        Some(share) => {
                            let opened = attach.open_share(share, predecessor)?;
                            frames.extend(opened.attached.frames());
                            let endpoint = on(opened.builder)?;
                            open.others.extend(opened.kernel.map(|kernel| (place, kernel)));
                            open.offers.extend(opened.offer.map(|offer| (offer, endpoint.clone())));
                            endpoint
                        }
                    }
                }
            };
            open.places.push((place, endpoint));
        }
        open.frames = frames.into_iter().collect::<Vec<_>>().join(",");
        Ok(open)
    }

    /// Returns the state of each mechanism that needs nothing at the client.
    pub(crate) fn states(&self) -> Vec<MechanismState> {
        let ClientSide { tcp, fast_open } = &self.side;
        let source = if self.settings.mechanisms.is_some() { "by configuration" } else { "default" };
        let path = |state: MechanismState| match state.name {
            "path" => MechanismState {
                state: if tcp.path_start { "on" } else { "off" },
                reason: source.to_owned(),
                ..state
            },
            _ => state,
        };
        let alone = |state: &MechanismState| !matches!(state.name, "corrective" | "proactive");
        let states = hop_args::states(&self.settings, tcp, fast_open.is_some());
        states.into_iter().filter(alone).map(path).collect()
    }
}

/// After a reload: returns the opened listeners with the settings that were `read` for their addresses. The
/// addresses cannot change while the process runs.
pub(crate) fn as_opened(read: &[ListenerSettings], opened: &[ListenerSettings]) -> Vec<ListenerSettings> {
    let now = |open: &ListenerSettings| {
        let same = read.iter().find(|listener| listener.listen == open.listen);
        same.unwrap_or(open).clone()
    };
    opened.iter().map(now).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: SettingNames =
        SettingNames { device: "hop.device", mechanisms: "hop.mechanisms", role: "an edge" };

    #[test]
    fn default_mechanisms_need_nothing_at_the_client() {
        let hop = HopSettings { device: Some("packet:eth0".to_owned()), ..HopSettings::default() };
        let device = ClientDevice::of(&hop, NAMES, &[]).expect("a device");
        let mechanisms = &device.side.tcp.mechanisms;
        assert!(mechanisms.corrective.is_none() && mechanisms.proactive.is_none());
        let shown = |state: &MechanismState| format!("{} {}", state.name, state.state);
        let states: Vec<String> = device.states().iter().map(shown).collect();
        assert_eq!(states, ["fast_open on", "path on", "reactive rack_tlp", "planner on", "congestion bbr"]);
    }
}

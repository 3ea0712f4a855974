//! `brisk frontend`: the gateway's side near the users.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use brisk_gateway::log::{Level, Value};
use brisk_gateway::{Frontend, FrontendConfig, exposure};
use brisk_runtime::DeviceSpec;
use brisk_runtime::attach::Attached;

use crate::Common;
use crate::device_args::AddressArgs;
use crate::duration::parse_duration;
use crate::failure::Failure;
use crate::hop_args::{ServiceArgs, host_and_port, listen_address};
use crate::service::{self, Stop};

const EXAMPLES: &str = "\
Examples:
  brisk frontend --listen 127.0.0.1:8080 --peer 127.0.0.1:7443
  brisk frontend --listen :80 --peer origin.example:7443 --insecure
  sudo brisk frontend --listen 127.0.0.1:8080 --peer 10.7.0.1:7443 --device tun:brisk0 --addr 10.7.0.2/24 --insecure";

/// The flags of `frontend`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Where clients connect: ADDR:PORT, or :PORT for every address
    #[arg(long, value_name = "ADDR:PORT", env = "BRISK_LISTEN", value_parser = listen_address)]
    listen: SocketAddr,
    /// The backend: HOST:PORT
    #[arg(long, value_name = "HOST:PORT", env = "BRISK_PEER", value_parser = host_and_port)]
    peer: String,
    /// Device of the hop: tun:NAME or udp:ADDR:PORT; TCP inside UDP from any port if not given
    #[arg(long, value_name = "DEVICE", env = "BRISK_DEVICE", help_heading = "Device")]
    device: Option<DeviceSpec>,
    #[command(flatten)]
    addresses: AddressArgs,
    /// How long a client's first bytes are waited for, to let them ride along with the opening of the hop
    #[arg(long, default_value = "5ms", value_name = "TIME", value_parser = parse_duration)]
    first_bytes_wait: Duration,
    #[command(flatten)]
    service: ServiceArgs,
}

/// Serves until SIGINT or SIGTERM.
pub(crate) fn run(args: Args, common: &Common) -> Result<(), Failure> {
    let log = service::log(common);
    service::run(async move {
        let stop = Stop::on_signals()?;
        let peer = resolve(&args.peer).await?;
        if !args.service.insecure {
            exposure::check_listen(args.listen).map_err(Failure::usage)?;
            exposure::check_peer(peer).map_err(Failure::usage)?;
        }
        let (builder, attached) = args.addresses.on(args.device.unwrap_or(any_udp(peer))).open()?;
        let hop = attached.destination(peer).map_err(Failure::failed)?;
        let endpoint = builder.build()?;
        let config = FrontendConfig {
            first_bytes_wait: args.first_bytes_wait,
            service: args.service.config(log.clone()),
            ..FrontendConfig::new(args.listen, hop)
        };
        let frontend = Frontend::bind(config, endpoint.clone()).await?;
        let listening = frontend.local_addr()?;
        let fields = [
            ("role", Value::Text("frontend".into())),
            ("listen", Value::Text(listening.to_string())),
            ("peer", Value::Text(peer.to_string())),
            ("hop", Value::Text(hop_name(&attached).into())),
        ];
        log.line(Level::Info, "started", &fields);
        frontend.run(stop.ordered()).await;
        service::last_words(&endpoint, &log).await;
        Ok(())
    })
}

pub(crate) fn hop_name(attached: &Attached) -> &'static str {
    match attached {
        Attached::Tun { .. } => "tcp",
        Attached::Udp { .. } => "tcp-in-udp",
    }
}

/// The first address of the peer.
async fn resolve(peer: &str) -> Result<SocketAddr, Failure> {
    let failed = |why: String| Failure::failed(format!("--peer {peer}: {why}; check the name"));
    let mut found = tokio::net::lookup_host(peer)
        .await
        .map_err(|error| failed(format!("cannot find its address: {error}")))?;
    found.next().ok_or_else(|| failed("it has no address".to_owned()))
}

/// A UDP socket on any port that reaches `peer`; on loopback only if the peer is there.
fn any_udp(peer: SocketAddr) -> DeviceSpec {
    let any: IpAddr = match (peer.is_ipv4(), peer.ip().is_loopback()) {
        (true, true) => Ipv4Addr::LOCALHOST.into(),
        (true, false) => Ipv4Addr::UNSPECIFIED.into(),
        (false, true) => Ipv6Addr::LOCALHOST.into(),
        (false, false) => Ipv6Addr::UNSPECIFIED.into(),
    };
    DeviceSpec::Udp { bind: SocketAddr::new(any, 0) }
}

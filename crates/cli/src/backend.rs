//! `brisk backend`: the gateway's side near the origin.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use brisk_gateway::log::{Level, Value};
use brisk_gateway::{Backend, BackendConfig, exposure};
use brisk_runtime::DeviceSpec;
use brisk_runtime::attach::Attached;

use crate::Common;
use crate::device_args::AddressArgs;
use crate::failure::Failure;
use crate::frontend::hop_name;
use crate::hop_args::{ServiceArgs, host_and_port, listen_address};
use crate::service::{self, Stop};

const EXAMPLES: &str = "\
Examples:
  brisk backend --listen 127.0.0.1:7443 --to 127.0.0.1:80
  brisk backend --listen :7443 --to 127.0.0.1:80 --insecure
  sudo brisk backend --listen 10.7.0.2:7443 --to 127.0.0.1:80 --device tun:brisk0 --addr 10.7.0.2/24 --insecure";

/// The flags of `backend`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Where frontends connect: ADDR:PORT, or :PORT for every address
    #[arg(long, value_name = "ADDR:PORT", env = "BRISK_LISTEN", value_parser = listen_address)]
    listen: SocketAddr,
    /// The origin: HOST:PORT
    #[arg(long, value_name = "HOST:PORT", env = "BRISK_TO", value_parser = host_and_port)]
    to: String,
    /// Device of the hop: tun:NAME; TCP inside UDP on the address of --listen if not given
    #[arg(long, value_name = "DEVICE", env = "BRISK_DEVICE", help_heading = "Device")]
    device: Option<DeviceSpec>,
    #[command(flatten)]
    addresses: AddressArgs,
    #[command(flatten)]
    service: ServiceArgs,
}

/// Serves until SIGINT or SIGTERM.
pub(crate) fn run(args: Args, common: &Common) -> Result<(), Failure> {
    let log = service::log(common);
    service::run(async move {
        let stop = Stop::on_signals()?;
        if !args.service.insecure {
            exposure::check_listen(args.listen).map_err(Failure::usage)?;
        }
        let device = device(args.device, args.listen)?;
        let (builder, attached) = args.addresses.on(device).open()?;
        let endpoint = builder.build()?;
        let listen = inside(&attached, args.listen);
        let config = BackendConfig {
            attached: Some(attached.clone()),
            service: args.service.config(log.clone()),
            ..BackendConfig::new(listen, args.to.clone())
        };
        let backend = Backend::bind(config, &endpoint)?;
        let listening = attached.outside(backend.local_addr());
        let fields = [
            ("role", Value::Text("backend".into())),
            ("listen", Value::Text(listening.to_string())),
            ("origin", Value::Text(args.to)),
            ("hop", Value::Text(hop_name(&attached).into())),
        ];
        log.line(Level::Info, "started", &fields);
        backend.run(stop.clone().ordered()).await;
        service::last_words(&endpoint, &log).await;
        stop.verdict()
    })
}

/// The device that is asked for, or the UDP socket that `--listen` names.
fn device(device: Option<DeviceSpec>, listen: SocketAddr) -> Result<DeviceSpec, Failure> {
    match device {
        None => Ok(DeviceSpec::Udp { bind: listen }),
        Some(DeviceSpec::Udp { bind }) if bind != listen => Err(Failure::usage(format!(
            "--device udp:{bind} and --listen {listen} differ: leave --device out, --listen names the UDP socket"
        ))),
        Some(other) => Ok(other),
    }
}

/// What to listen on inside the stack.
fn inside(attached: &Attached, listen: SocketAddr) -> SocketAddr {
    match attached {
        Attached::Tun { .. } => listen,
        Attached::Udp { .. } => {
            SocketAddr::new(IpAddr::from(Ipv6Addr::UNSPECIFIED), attached.service_port(listen.port()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_udp_socket_is_named_once() {
        let listen = SocketAddr::from(([127, 0, 0, 1], 7443));
        assert_eq!(device(None, listen).ok(), Some(DeviceSpec::Udp { bind: listen }));
        let other = "udp:127.0.0.1:1".parse().ok();
        assert_eq!(device(other, listen).expect_err("they differ").code, 2);
    }
}

//! The flags that attach a stack to a device, the same in every subcommand that has one.

use std::net::IpAddr;

use brisk_runtime::attach::{AttachConfig, AttachError};
use brisk_runtime::{DeviceSpec, Prefix};

use crate::failure::Failure;

/// The device of the stack, and its addresses.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Device")]
pub(crate) struct DeviceArgs {
    /// tun:NAME, packet:IFACE, xdp:IFACE, or udp:ADDR:PORT for TCP inside UDP, which needs no privileges
    #[arg(long, value_name = "DEVICE", env = "BRISK_DEVICE")]
    pub(crate) device: DeviceSpec,
    #[command(flatten)]
    pub(crate) addresses: AddressArgs,
}

/// The addresses of the stack.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Device")]
pub(crate) struct AddressArgs {
    /// The stack's own address with the length of its prefix, repeatable: 10.7.0.2/24; on packet: and xdp:
    /// one of the interface's addresses [default: all of these]
    #[arg(long, value_name = "ADDR/LEN", env = "BRISK_ADDR", value_delimiter = ',')]
    pub(crate) addr: Vec<Prefix>,
    /// The kernel's address on the device, used as the stack's default route [default: the first other
    /// address of the network]
    #[arg(long, value_name = "ADDR", env = "BRISK_GATEWAY")]
    pub(crate) gateway: Option<IpAddr>,
    /// Largest IP packet on the device, bytes
    #[arg(long, value_name = "BYTES", env = "BRISK_MTU", value_parser = clap::value_parser!(u16).range(576..))]
    pub(crate) mtu: Option<u16>,
}

impl DeviceArgs {
    pub(crate) fn attach_config(&self) -> AttachConfig {
        self.addresses.on(self.device.clone())
    }
}

impl AddressArgs {
    /// Returns the attachment of these addresses to `device`.
    pub(crate) fn on(&self, device: DeviceSpec) -> AttachConfig {
        let (addresses, gateway, mtu) = (self.addr.clone(), self.gateway, self.mtu);
        AttachConfig { addresses, gateway, mtu, ..AttachConfig::new(device) }
    }
}

impl From<AttachError> for Failure {
    fn from(error: AttachError) -> Failure {
        match error {
            AttachError::Usage(message) => Failure::usage(message),
            error => Failure::failed(error),
        }
    }
}

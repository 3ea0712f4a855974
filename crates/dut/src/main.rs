//! `brisk-conformance-dut`: connects brisk's stack to an Ethernet. A test bench controls its sockets over
//! gRPC.

use std::future::poll_fn;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;

use brisk_conformance_dut::service;
use brisk_packet_io::ethernet::{EthernetDevice, EthernetOptions, OwnAddress};
use brisk_runtime::Prefix;
use brisk_sockets::live::Sockets;
use clap::Parser;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// A device under test for packetimpact: our TCP as a host on an Ethernet, its sockets controlled over gRPC.
///
/// The stack answers ARP and neighbour discovery for its addresses itself; the kernel must have none of them.
/// Needs CAP_NET_RAW. Prints "Server listening on ..." when it accepts calls.
#[derive(Parser, Debug)]
#[command(name = "brisk-conformance-dut", version, max_term_width = 100)]
struct Options {
    /// Ethernet interface on the test network
    #[arg(long, value_name = "IFACE")]
    interface: String,

    /// Address of the stack with its network, such as 192.0.2.2/24; repeatable, both families
    #[arg(long, value_name = "ADDR/LEN", required = true)]
    addr: Vec<Prefix>,

    /// Router for other networks; repeatable, one of each family
    #[arg(long, value_name = "ADDR")]
    gateway: Vec<IpAddr>,

    /// Address and port of the gRPC service, on the kernel's TCP
    #[arg(long, value_name = "ADDR:PORT", default_value = "0.0.0.0:54321")]
    listen: SocketAddr,

    /// Settings of the stack as in packet scripts (`brisk script --help`); they override those of the network
    /// namespace; repeatable
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("brisk-conformance-dut: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("the runtime does not start: {error}"))?;
    let ended = runtime.block_on(serve(options));
    // Blocked calls must not delay the exit.
    runtime.shutdown_background();
    ended
}

async fn serve(options: &Options) -> Result<(), String> {
    let addresses: Vec<OwnAddress> =
        options.addr.iter().map(|own| OwnAddress { address: own.address, prefix: own.length }).collect();
    let own = addresses.iter().map(|own| own.address).collect();
    let ethernet = EthernetOptions { addresses, gateways: options.gateway.clone() };
    let device = EthernetDevice::open(&options.interface, ethernet).map_err(|error| error.to_string())?;
    let (sockets, driver) = Sockets::start(Box::new(device), own, &options.settings.join(" "), seed()?)
        .map_err(|error| format!("--set: {error}"))?;
    let listener = TcpListener::bind(options.listen)
        .await
        .map_err(|error| format!("--listen {}: {error}; choose another port", options.listen))?;
    let at = listener.local_addr().map_err(|error| error.to_string())?;
    let (mut terminated, mut interrupted) =
        (ending(SignalKind::terminate())?, ending(SignalKind::interrupt())?);
    println!("Server listening on {at}");
    // The reader of this line may be a program behind a pipe.
    std::io::stdout().flush().map_err(|error| format!("standard output: {error}"))?;
    tokio::select! {
        error = driver => Err(format!("the device {} failed: {error}", options.interface)),
        error = service::serve(listener, sockets) => Err(format!("the gRPC service failed: {error}")),
        _ = poll_fn(|cx| terminated.poll_recv(cx)) => Ok(()),
        _ = poll_fn(|cx| interrupted.poll_recv(cx)) => Ok(()),
    }
}

fn ending(kind: SignalKind) -> Result<Signal, String> {
    signal(kind).map_err(|error| format!("signals cannot be taken: {error}"))
}

/// Returns a random seed for sequence numbers and keys.
fn seed() -> Result<[u8; 32], String> {
    let mut seed = [0; 32];
    match rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty()) {
        Ok(32) => Ok(seed),
        other => Err(format!("the operating system gave no randomness: {other:?}")),
    }
}

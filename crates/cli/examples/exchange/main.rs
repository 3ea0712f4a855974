//! The load of the measurements: requests and responses over fresh connections, over the kernel's TCP or
//! ours. The code above TCP is the same, so that only the TCP differs.
//!
//! ```text
//! exchange serve --listen 10.77.0.2:7000                                   the kernel's TCP
//! exchange serve --listen 10.78.0.2:7000 --device tun:brisk1 --addr 10.78.0.2/24     ours
//! exchange load  --to 10.77.0.2:7000 --bytes 5000 --count 1000 --parallel 8
//! ```
//!
//! `serve` prints `ready`, and on SIGTERM the counters of our stack. `load` prints a line per transaction. It
//! begins with times in milliseconds since the start (with `--open-for`: since the request): when the
//! connection was open, and when the first and the last byte of the response arrived. Then it has the bytes
//! and, for our TCP, the outcome of Fast Open and the client's retransmissions, timeouts and probes. A failed
//! transaction has `failed` and the reason. The scripts in `tools/measure` compute figures from this output.

mod client;
mod flood;
mod server;

use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use brisk_runtime::attach::AttachConfig;
use brisk_runtime::profile::Profile;
use brisk_runtime::{DeviceSpec, Prefix, StackConfig};
use clap::Parser;

use brisk_lab::either_tcp::EitherTcp;

/// Requests and responses over the kernel's TCP or ours
#[derive(Debug, Parser)]
enum Args {
    /// Answer requests until SIGTERM
    Serve(Serve),
    /// Send requests and print their durations
    Load(Load),
    /// Attack a server with Fast Open
    Flood(flood::Flood),
}

/// The TCP to use.
#[derive(Debug, clap::Args)]
struct Stack {
    /// Our TCP on this device; without it the kernel's
    #[arg(long, requires = "addr")]
    device: Option<DeviceSpec>,
    /// Address of our TCP on the device
    #[arg(long, value_name = "ADDR/LEN", requires = "device")]
    addr: Vec<Prefix>,
    /// Mechanisms of our TCP, in the form of `whatif --arms`
    #[arg(long, default_value = "tcp", requires = "device", value_name = "ARM")]
    arm: String,
    /// Overhead limit of the planner, percent of the bytes, if the profile has one
    #[arg(long, requires = "device", value_name = "PERCENT")]
    max_overhead: Option<u32>,
    /// Use Fast Open; the kernel's server needs `net.ipv4.tcp_fastopen` with 0x400
    #[arg(long)]
    fast_open: bool,
}

#[derive(Debug, clap::Args)]
struct Serve {
    #[command(flatten)]
    stack: Stack,
    /// Address and port
    #[arg(long)]
    listen: SocketAddr,
    /// Maximum number of connections that Fast Open may leave unacknowledged
    #[arg(long, default_value_t = 256)]
    queue: u16,
}

#[derive(Clone, Debug, clap::Args)]
struct Workload {
    /// Address and port of the server
    #[arg(long)]
    to: SocketAddr,
    /// Bytes of each response
    #[arg(long, default_value_t = 5000)]
    bytes: u64,
    /// Bytes of each request, 16 at least
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(16..=1 << 30))]
    request: u32,
    /// Number of transactions
    #[arg(long, default_value_t = u64::MAX)]
    count: u64,
    /// Begin no transaction after this many seconds, and abort unfinished ones
    #[arg(long)]
    seconds: Option<f64>,
    /// Number of concurrent transactions
    #[arg(long, default_value_t = 1)]
    parallel: usize,
    /// Send the request this many milliseconds after the connection was opened; times count from then
    #[arg(long, value_name = "MS", conflicts_with = "fast_open")]
    open_for: Option<u64>,
    /// Pause between two transactions of the same worker, milliseconds
    #[arg(long, default_value_t = 0)]
    pause: u64,
    /// The client closes first; otherwise the server does, after its response
    #[arg(long)]
    client_closes: bool,
}

#[derive(Debug, clap::Args)]
struct Load {
    #[command(flatten)]
    stack: Stack,
    #[command(flatten)]
    workload: Workload,
    /// Print only the sums: transactions, failures, seconds, bytes
    #[arg(long)]
    sum: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let work = async {
        match args {
            Args::Serve(serve) => {
                let tcp = serve.stack.open()?;
                server::serve(&tcp, serve.listen, serve.queue).await
            }
            Args::Load(load) => {
                let tcp = load.stack.open()?;
                client::load(tcp, load.workload, load.sum).await
            }
            Args::Flood(attack) => flood::flood(&attack),
        }
    };
    // The runtime has one thread, so that the cost of a transaction is that of one core.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.and_then(|runtime| runtime.block_on(work)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("exchange: {error}");
            ExitCode::FAILURE
        }
    }
}

impl Stack {
    fn open(&self) -> io::Result<EitherTcp> {
        let Some(device) = &self.device else {
            return Ok(EitherTcp::Kernel { fast_open: self.fast_open, congestion: None });
        };
        let mut arm = Profile::parse(&self.arm).map_err(io::Error::other)?;
        if let Some(percent) = self.max_overhead {
            arm.allow(percent);
        }
        let attach = AttachConfig { addresses: self.addr.clone(), ..AttachConfig::new(device.clone()) };
        let (builder, _) = attach.open().map_err(io::Error::other)?;
        let limits = |stack: &mut StackConfig| {
            stack.msl = Duration::from_secs(1);
            stack.max_connections = 200_000;
        };
        let endpoint = builder.tcp(arm.tcp).stack(limits).build()?;
        Ok(EitherTcp::Ours { endpoint, fast_open: self.fast_open || arm.fast_open })
    }
}

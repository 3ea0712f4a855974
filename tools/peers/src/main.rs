//! Compares brisk's library with the kernel's TCP, smoltcp, ipstack and, with `--features lwip`, lwIP.
//!
//! `sudo target/release/brisk-peers goodput|connections|memory [STACK...]` prints a table. Root creates a
//! network namespace for the kernel's TCP; the others need no privileges. In all measurements a client on
//! brisk's runtime talks to a server on the other stack over devices in memory, the kernel's TCP behind a TUN
//! device. Each cell runs in a process of its own. `./weight` measures compile time and size.

mod servers;

use std::alloc::{GlobalAlloc, Layout, System};
use std::io;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use brisk_device::Device;
use brisk_device::memory::{MemoryDevice, MemoryOptions};
use brisk_runtime::memory::{self, ADDRESSES, LinkSpec};
use brisk_runtime::{Endpoint, TcpStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use servers::{SERVER, serve};

const STACKS: &[&str] = &[
    "brisk",
    "brisk-bbr",
    "kernel",
    "kernel-bbr",
    "smoltcp",
    "ipstack",
    #[cfg(feature = "lwip")]
    "lwip",
];
const LOSSES: [&str; 4] = ["0%", "1%", "2%", "5%"];
/// Duration of a flow, its handshake included.
const FLOW: Duration = Duration::from_secs(5);
/// Duration of a load, its bytes, and connections at a time.
const LOAD: Duration = Duration::from_secs(3);
const RESPONSE: usize = 5000;
const AT_A_TIME: usize = 64;
/// Limit of a cell, which fails if it takes longer.
const CELL: Duration = Duration::from_secs(30);
/// lwIP's binding has 1,024 connections.
const IDLE: usize = 1000;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["cell", what @ ..] => {
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
            runtime.block_on(async { tokio::time::timeout(CELL, cell(what)).await? })?;
            // Tasks of ipstack continue when the runtime ends.
            std::process::exit(0);
        }
        ["goodput", stacks @ ..] => goodput_table(chosen(stacks)),
        ["connections", stacks @ ..] => connections_table(chosen(stacks)),
        ["memory", stacks @ ..] => memory_table(chosen(stacks)),
        _ => return Err("usage: brisk-peers goodput|connections|memory [STACK...]".into()),
    }
    Ok(())
}

fn chosen<'a>(stacks: &'a [&'a str]) -> &'a [&'a str] {
    if stacks.is_empty() { STACKS } else { stacks }
}

/// Prints the Mbit/s that servers send.
fn goodput_table(stacks: &[&str]) {
    println!("{:<12} {}", "server", LOSSES.map(|loss| format!("{loss:>8}")).concat());
    for stack in stacks {
        let rates = LOSSES.map(|loss| format!("{:>8}", run(&["goodput", stack, loss])));
        println!("{stack:<12} {}", rates.concat());
    }
}

fn connections_table(stacks: &[&str]) {
    println!("{:<12} {:>14} {:>18}", "server", "connections/s", "CPU us/connection");
    for stack in stacks.iter().filter(|stack| !stack.ends_with("-bbr")) {
        println!("{stack:<12} {}", run(&["connections", stack]));
    }
}

/// Prints bytes of an idle connection at the server: the growth of both ends, less the part of the client,
/// which is half of the growth between two endpoints of brisk.
fn memory_table(stacks: &[&str]) {
    let growth = |stack: &str| {
        let output = run(&["memory", stack]);
        let mut bytes = output.split(' ').map(|bytes| bytes.parse().unwrap_or(f64::NAN));
        [(); 2].map(|()| bytes.next().unwrap_or(f64::NAN))
    };
    println!("{:<12} {:>14} {:>18}", "server", "heap, bytes", "resident, bytes");
    let pair = growth("brisk");
    for stack in stacks.iter().filter(|stack| !stack.ends_with("-bbr")) {
        let both = growth(stack);
        println!("{stack:<12} {:>14.0} {:>18.0}", both[0] - pair[0] / 2.0, both[1] - pair[1] / 2.0);
    }
}

/// Runs a cell in a process of its own, and returns its output, or `failed`.
fn run(cell: &[&str]) -> String {
    let output = (|| {
        let program = std::env::current_exe()?;
        let mut command = if cell[1].starts_with("kernel") {
            let mut unshare = Command::new("unshare");
            unshare.arg("--net").arg(program);
            unshare
        } else {
            Command::new(program)
        };
        command.arg("cell").args(cell).stderr(Stdio::inherit()).output()
    })();
    match output {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
        }
        Ok(_) => "failed".to_owned(),
        Err(error) => {
            eprintln!("{}: {error}", cell.join(" "));
            "failed".to_owned()
        }
    }
}

async fn cell(what: &[&str]) -> Result<()> {
    match *what {
        ["goodput", stack, loss] => goodput(stack, loss).await,
        ["connections", stack] => connections(stack).await,
        ["memory", stack] => idle(stack).await,
        _ => Err("an unknown cell".into()),
    }
}

/// Prints the Mbit/s of a flow over a link of 100 Mbit/s and 50 ms with a queue of its bandwidth-delay
/// product.
async fn goodput(stack: &str, loss: &str) -> Result<()> {
    let link = LinkSpec::parse(&format!("--rtt 50ms --rate 100mbit --queue 625kB --loss {loss}"))?;
    let (a, b) = memory::devices(&link, 1);
    let _server = serve(stack, Box::new(b), 1, 1 << 20)?;
    let client = client(Box::new(a))?;
    let until = tokio::time::Instant::now() + FLOW;
    let mut stream = connect(&client).await?;
    let mut buffer = vec![0; 64 << 10];
    let mut bytes = 0;
    let flow = async {
        stream.write_all(&u64::MAX.to_be_bytes()).await?;
        loop {
            bytes += stream.read(&mut buffer).await? as u64;
        }
    };
    if let Ok(end) = tokio::time::timeout_at(until, flow).await {
        let end: io::Result<()> = end;
        end?;
    }
    println!("{:.1}", bytes as f64 * 8.0 / FLOW.as_secs_f64() / 1e6);
    Ok(())
}

/// Prints connections per second and the processor time of each, for a request and a response.
async fn connections(stack: &str) -> Result<()> {
    let (a, b) = cable();
    let _server = serve(stack, b, 8 * AT_A_TIME, 64 << 10)?;
    let client = Arc::new(client(a)?);
    let done = Arc::new(AtomicU64::new(0));
    let (began, used) = (Instant::now(), processor_time()?);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..AT_A_TIME {
        let (client, done) = (client.clone(), done.clone());
        tasks.spawn(async move {
            let mut response = [0; RESPONSE];
            while began.elapsed() < LOAD {
                let mut stream = connect(&client).await?;
                stream.write_all(&(RESPONSE as u64).to_be_bytes()).await?;
                stream.read_exact(&mut response).await?;
                stream.shutdown().await?;
                done.fetch_add(1, Ordering::Relaxed);
            }
            io::Result::Ok(())
        });
    }
    while let Some(task) = tasks.join_next().await {
        task??;
    }
    let done = done.load(Ordering::Relaxed) as f64;
    let rate = done / began.elapsed().as_secs_f64();
    let cost = (processor_time()? - used).as_secs_f64() * 1e6 / done;
    println!("{rate:>14.0} {cost:>18.1}");
    Ok(())
}

/// Prints the growth of heap and of resident memory with each idle connection, both ends.
async fn idle(stack: &str) -> Result<()> {
    let (a, b) = cable();
    let _server = serve(stack, b, IDLE, 64 << 10)?;
    let client = client(a)?;
    let mut streams = Vec::with_capacity(IDLE);
    // The first connections pay for tables and for buffers of the devices.
    for _ in 0..IDLE / 10 {
        streams.push(connect(&client).await?);
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = (HEAP.load(Ordering::Relaxed), resident(stack)?);
    for _ in streams.len()..IDLE {
        streams.push(connect(&client).await?);
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    let per = |bytes: isize| bytes as f64 / (IDLE - IDLE / 10) as f64;
    println!("{} {}", per(HEAP.load(Ordering::Relaxed) - before.0), per(resident(stack)? - before.1));
    Ok(())
}

fn cable() -> (Box<dyn Device>, Box<dyn Device>) {
    let (a, b) = MemoryDevice::pair_with(MemoryOptions { offload: false, ..MemoryOptions::default() });
    (Box::new(a), Box::new(b))
}

fn client(device: Box<dyn Device>) -> Result<Endpoint> {
    let builder = Endpoint::builder(device).address(ADDRESSES[0][0]);
    let builder = builder.stack(|stack| {
        // More connections a second do not find a free port: a port waits for twice this time.
        stack.msl = brisk_runtime::time::Duration::from_secs(1);
        stack.ephemeral_ports = 1024..=65_535;
    });
    Ok(builder.build()?)
}

async fn connect(client: &Endpoint) -> io::Result<TcpStream> {
    let stream = client.connect(SERVER).await?;
    stream.set_nodelay(true);
    Ok(stream)
}

fn processor_time() -> io::Result<Duration> {
    let fields = std::fs::read_to_string("/proc/self/stat")?;
    let ticks = fields.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    Ok(Duration::from_millis(10) * ticks.filter_map(|ticks| ticks.parse::<u32>().ok()).sum())
}

/// Returns the resident memory in bytes; for the kernel's TCP, also the slabs of the kernel.
fn resident(stack: &str) -> io::Result<isize> {
    let kilobytes = |file, field| {
        let text = std::fs::read_to_string(file)?;
        let line = text.lines().find(|line| line.starts_with(field)).unwrap_or_default();
        io::Result::Ok(
            line.split_whitespace().nth(1).and_then(|value| value.parse::<isize>().ok()).unwrap_or(0),
        )
    };
    let slabs = if stack == "kernel" { kilobytes("/proc/meminfo", "Slab:")? } else { 0 };
    Ok((kilobytes("/proc/self/status", "VmRSS:")? + slabs) << 10)
}

/// Bytes that the process has allocated from its allocator.
static HEAP: AtomicIsize = AtomicIsize::new(0);

struct Counting;

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HEAP.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller's contract is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HEAP.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller's contract is the same.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

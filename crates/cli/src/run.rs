//! `brisk run -- COMMAND`: runs a command whose TCP connections all go through the gateway. It needs no
//! privilege and changes nothing on the host.
//!
//! The command gets a user and a network namespace of its own ([`inside`]); a firewall rule in that namespace
//! sends every connection to a listener. This process stays outside, gets the listener's descriptor and is an
//! ordinary transparent frontend. Names are looked up by the host's resolver ([`names`]). Other UDP is
//! refused, so that browsers do not bypass the gateway with QUIC.

mod inside;
mod names;

use std::ffi::OsString;
use std::io::{IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

use brisk_gateway::log::{Level, Log, flush_stderr};
use brisk_gateway::settings::{FrontendSettings, PeerSettings, check_host_port};
use brisk_gateway::{Frontend, FrontendConfig, Metrics, ServiceConfig, Settings};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Pid, Signal, kill_process};
use tokio::signal::unix::{SignalKind, signal};

use crate::addresses::Addresses;
use crate::confine::confine;
use crate::failure::Failure;
use crate::flags::OfPair;
use crate::frontend::{Stacks, configured, device};
use crate::hop_args::{self, RoleArgs};
use crate::{Common, service};

const EXAMPLES: &str = "\
Examples:
  brisk run --peer origin.example:7443 --key-file key -- curl http://www.example/
  brisk run --peer origin.example:7443 --key-file key -- bash

The backend must --allow the addresses that the command connects to: --allow '0.0.0.0/0:443'.";

/// Time limit for the creation of the namespace.
const START_LIMIT: Duration = Duration::from_secs(10);

/// The flags of `run`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// A backend: HOST:PORT; repeatable, in order of preference
    #[arg(long, value_name = "HOST:PORT", env = "BRISK_PEER", value_parser = check_host_port, value_delimiter = ',')]
    peer: Vec<String>,
    #[command(flatten)]
    role: RoleArgs<OfPair>,
    /// For the program itself: the socket of the process outside
    #[arg(long, hide = true)]
    inside: Option<PathBuf>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs the command and exits with its status.
pub(crate) fn run(args: &Args, common: &Common) -> Result<(), Failure> {
    if let Some(outside) = &args.inside {
        return inside::run(outside, &args.command);
    }
    let settings = settings(args)?;
    hop_args::protection_towards_backend(&settings.hop)?;
    let handover = Handover::make()?;
    let mut child = Command::new("/proc/self/exe")
        .arg("run")
        .arg("--inside")
        .arg(handover.path())
        .arg("--")
        .args(&args.command)
        .spawn()
        .map_err(|error| Failure::failed(format!("cannot start itself again: {error}")))?;
    let met = handover.wait(&mut child)?;
    drop(handover);
    let Some((stream, sockets)) = met else { return status(wait(&mut child)?) };
    confine(&settings);
    let log = match common.verbose {
        0 => Log::stderr(service::log_format(common), Level::Error),
        _ => service::log(common),
    };
    let ended = service::run_on_one_thread(serve(settings, stream, sockets, child, log))?;
    status(ended)
}

fn settings(args: &Args) -> Result<Settings, Failure> {
    let peer = |peer: &String| PeerSettings { peer: peer.clone(), priority: 0, weight: 1 };
    let frontend = FrontendSettings {
        listen: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
        transparent: Some(true),
        ..FrontendSettings::default()
    };
    let peers = args.peer.iter().map(peer).collect();
    let settings = args.role.over_file(Settings { frontend, peers, ..Settings::default() })?;
    // The listeners of a file belong to another frontend.
    Ok(Settings { listeners: Vec::new(), ..settings })
}

/// The frontend, for as long as the command runs.
async fn serve(
    settings: Settings,
    mut stream: UnixStream,
    [listener, names]: [OwnedFd; 2],
    mut child: Child,
    log: Log,
) -> Result<ExitStatus, Failure> {
    let addresses = Addresses::default().renewed(&settings.peers, &log).await;
    addresses.first(&settings.peers)?;
    let usual = device(&settings, &addresses);
    let cores = service::gateway_cores(&settings.limits, service::PAIR_THREADS)?;
    let Stacks { endpoint, packet, devices } = Stacks::open(&settings.hop, usual, &cores)?;
    let addresses = addresses.only(|address| devices.reach(address));
    let metrics = Arc::<Metrics>::default();
    let usual = configured(&settings, &addresses, &devices, &log, &metrics)?;
    let service = ServiceConfig { cores: cores.handles().to_vec(), ..usual.service };
    let config = FrontendConfig { packet, service, ..usual };
    let listener = std::net::TcpListener::from(listener);
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let frontend = Frontend::on(vec![listener], config, endpoint.clone())?;
    let relay = tokio::spawn(names::relay(std::net::UdpSocket::from(names))?);
    // The command handles an interrupt on the terminal.
    let _caught = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    tokio::spawn(async move {
        while terminate.recv().await.is_some() {
            // The command may have ended already.
            let _ = pid.map(|pid| kill_process(pid, Signal::TERM));
        }
    });
    stream.write_all(&[0])?;
    let (end, ended) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || end.send(wait(&mut child)));
    let mut status = None;
    frontend.run(async { status = ended.await.ok() }).await;
    relay.abort();
    let _ = tokio::time::timeout(service::DRAIN_WAIT, endpoint.wait_idle()).await;
    status.unwrap_or_else(|| Err(Failure::failed("cannot wait for the command")))
}

fn wait(child: &mut Child) -> Result<ExitStatus, Failure> {
    child.wait().map_err(|error| Failure::failed(format!("cannot wait for the command: {error}")))
}

/// Exits with the command's status; like a shell, adds 128 to a signal.
fn status(ended: ExitStatus) -> Result<(), Failure> {
    match ended.code().or(ended.signal().map(|signal| 128 + signal)).unwrap_or(1) {
        0 => Ok(()),
        code => {
            flush_stderr();
            std::process::exit(code)
        }
    }
}

/// The socket between this process and the one inside, in a directory that only this user can enter.
struct Handover {
    directory: PathBuf,
    listener: UnixListener,
}

impl Handover {
    fn make() -> Result<Handover, Failure> {
        let directory = std::env::temp_dir().join(format!("brisk-run-{}", std::process::id()));
        let failed = |error| Failure::failed(format!("{}: {error}", directory.display()));
        std::fs::DirBuilder::new().mode(0o700).create(&directory).map_err(failed)?;
        let listener = UnixListener::bind(directory.join("socket")).map_err(failed)?;
        listener.set_nonblocking(true)?;
        Ok(Handover { directory, listener })
    }

    fn path(&self) -> PathBuf {
        self.directory.join("socket")
    }

    /// Waits for the process inside; returns the stream to it and the sockets that it has created. `None` if
    /// that process has ended and reported the reason.
    fn wait(&self, child: &mut Child) -> Result<Option<(UnixStream, [OwnedFd; 2])>, Failure> {
        let until = std::time::Instant::now() + START_LIMIT;
        let stream = loop {
            match self.listener.accept() {
                Ok((stream, _)) => break stream,
                Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => return Err(error.into()),
                Err(_) if child.try_wait()?.is_some() => return Ok(None),
                Err(_) if std::time::Instant::now() > until => {
                    return Err(Failure::failed("the namespace of the command was not created in time"));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(START_LIMIT))?;
        Ok(received(&stream)?.map(|sockets| (stream, sockets)))
    }
}

impl Drop for Handover {
    fn drop(&mut self) {
        // A failure leaves an empty directory.
        let _ = std::fs::remove_dir_all(Path::new(&self.directory));
    }
}

fn received(stream: &UnixStream) -> Result<Option<[OwnedFd; 2]>, Failure> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(stream, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
        .map_err(std::io::Error::from)?;
    let mut sockets = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            sockets.extend(rights);
        }
    }
    Ok(sockets.try_into().ok())
}

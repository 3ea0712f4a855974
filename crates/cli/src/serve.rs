//! `brisk serve`: a static HTTP/1.1 file server on our stack.

mod content;
mod files;

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use brisk_gateway::log::{Level, Log, Value};
use brisk_runtime::attach::{AttachConfig, Attached, Frames};
use brisk_runtime::stream::StreamHandle;
use brisk_runtime::{Endpoint, FastOpenListen, TcpListener, TcpSocket, TcpStream};
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::Common;
use crate::cookie_keys::CookieKeyArgs;
use crate::device_args::DeviceArgs;
use crate::duration::parse_duration;
use crate::failure::Failure;
use crate::serve::files::Files;
use crate::service::{self, Stop};

const EXAMPLES: &str = "\
Examples:
  sudo brisk serve . --device tun:brisk0 --addr 10.7.0.2/24     (then: curl http://10.7.0.2/)
  brisk serve . --device udp:127.0.0.1:8080                     (then: brisk get http://127.0.0.1:8080/ --device udp:127.0.0.1:0)";

/// The flags of `serve`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The directory to serve
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    #[command(flatten)]
    device: DeviceArgs,
    /// TCP port on a tun: or packet: device
    #[arg(long, default_value_t = 80, value_name = "PORT", env = "BRISK_PORT")]
    port: u16,
    /// Take requests with the SYN (TCP Fast Open) from clients that have a cookie; at most QUEUE of them wait
    /// to be acknowledged
    #[arg(long, value_name = "QUEUE", num_args = 0..=1, require_equals = true, default_missing_value = "256")]
    #[arg(env = "BRISK_FAST_OPEN")]
    fast_open: Option<u16>,
    #[command(flatten)]
    keys: CookieKeyArgs,
    /// Answer /N with N bytes that are made up on the way
    #[arg(long)]
    synthetic: bool,
    /// Connections at one time; more wait to be accepted
    #[arg(long, default_value_t = 10_000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_connections: u32,
    /// Cores to serve on, each with a stack of its own [default: all, where the device has queues for them]
    #[arg(long, value_name = "N", env = "BRISK_CORES", value_parser = clap::value_parser!(u8).range(1..=64))]
    cores: Option<u8>,
    /// How long connections may go on after SIGTERM
    #[arg(long, default_value = "10s", value_name = "TIME", value_parser = parse_duration)]
    drain_timeout: Duration,
}

/// Connections that wait to be accepted.
const BACKLOG: usize = 1024;

/// How long a client may take to send the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Serves until SIGINT or SIGTERM.
pub(crate) fn run(args: Args, common: &Common) -> Result<(), Failure> {
    if args.keys.given() && args.fast_open.is_none() {
        return Err(Failure::usage("--fast-open-key needs --fast-open: without it no cookie is made"));
    }
    let files = Files::open(&args.directory, args.synthetic).map_err(|error| {
        Failure::failed(format!("{}: cannot be served: {error}", args.directory.display()))
    })?;
    let log = service::log(common);
    let queues = service::queues(args.cores);
    service::run_on(queues, async move {
        let stop = Stop::on_signals()?;
        let everywhere = SocketAddr::from((Ipv6Addr::UNSPECIFIED, args.port));
        let attach =
            AttachConfig { serve: Some(everywhere), local_ports: 0, queues, ..args.device.attach_config() };
        let (builder, attached) = attach.open()?;
        let port = attached.service_port(args.port);
        let cores = service::cores(&builder)?;
        let endpoint = builder.cores(&cores).build()?;
        let fast_open = args.fast_open.filter(|&queue| queue > 0).map(|queue| fast_open(queue, &attached));
        let listeners = listen(&endpoint, port, fast_open)?;
        args.keys.install(&endpoint, &log).await?;
        for listener in &listeners {
            let address = attached.outside(listener.local_addr());
            let directory = args.directory.display().to_string();
            let mut fields = vec![
                ("directory", Value::Text(directory)),
                ("cores", Value::Count(cores.count() as u64)),
                ("url", Value::Text(format!("http://{address}/"))),
            ];
            if let Attached::Native { frames, .. } = &attached
                && *frames != Frames::Own
            {
                fields.push(("frames", Value::Text(frames.name().to_owned())));
            }
            log.line(Level::Info, "serving", &fields);
        }
        let server = Server {
            files,
            attached,
            slots: Arc::new(Semaphore::new(args.max_connections as usize)),
            log,
            stop,
            drain_timeout: args.drain_timeout,
        };
        let server = Arc::new(server);
        let mut acceptors = JoinSet::new();
        for listener in listeners {
            for (listener, core) in listener.split().into_iter().zip(cores.handles()) {
                acceptors.spawn_on(server.clone().accept(listener), core);
            }
        }
        while acceptors.join_next().await.is_some() {}
        // Data lost after this was not acknowledged in time; the peer times out.
        let _ = tokio::time::timeout(service::LAST_WORDS, endpoint.wait_idle()).await;
        server.stop.verdict()
    })
}

/// Room for `queue` connections. Inside UDP all clients share one network, so that they cannot be told apart
/// by it.
fn fast_open(queue: u16, attached: &Attached) -> FastOpenListen {
    let defaults = FastOpenListen::default();
    let max_per_ip = match attached {
        Attached::Native { .. } => defaults.max_per_ip,
        Attached::Udp { .. } => queue,
    };
    FastOpenListen { max_pending: queue, max_per_ip, ..defaults }
}

/// A `tun:` stack listens on the port of every family it has an address of.
fn listen(
    endpoint: &Endpoint,
    port: u16,
    fast_open: Option<FastOpenListen>,
) -> Result<Vec<TcpListener>, Failure> {
    let has_v4 = endpoint.addresses().iter().any(|address| address.is_ipv4());
    let has_v6 = endpoint.addresses().iter().any(|address| address.is_ipv6());
    let v4 = has_v4.then(|| SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)));
    let v6 = has_v6.then(|| SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)));
    let bind = |address| {
        let mut socket = TcpSocket::new(endpoint);
        socket.bind(address);
        socket.set_fast_open_listen(fast_open.clone());
        socket.listen(BACKLOG).map_err(Failure::from)
    };
    v4.into_iter().chain(v6).map(bind).collect()
}

/// State that all connections share.
struct Server {
    files: Files,
    attached: Attached,
    slots: Arc<Semaphore>,
    log: Log,
    stop: Stop,
    drain_timeout: Duration,
}

impl Server {
    /// Serves each connection in a task of its own, until the order to stop.
    async fn accept(self: Arc<Server>, listener: TcpListener) {
        let mut connections = JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            let next = async {
                // The semaphore is never closed; an error would mean that nothing can be accepted any more.
                let slot = self.slots.clone().acquire_owned().await.map_err(io::Error::other)?;
                listener.accept().await.map(|(stream, peer)| (slot, stream, peer))
            };
            let next = tokio::select! {
                () = self.stop.clone().ordered() => break,
                next = next => next,
            };
            let (slot, stream, peer) = match next {
                Ok(next) => next,
                Err(error) => {
                    self.log.line(Level::Error, "accept", &[("reason", Value::Text(error.to_string()))]);
                    break;
                }
            };
            let (server, peer) = (self.clone(), self.attached.peer(peer));
            connections.spawn(async move {
                server.converse(stream, peer).await;
                drop(slot);
            });
        }
        drop(listener);
        let all = async { while connections.join_next().await.is_some() {} };
        // Those that are still open are cut off: dropping the set resets them.
        let _ = tokio::time::timeout(self.drain_timeout, all).await;
    }

    /// One connection: requests until either side has enough.
    async fn converse(&self, stream: TcpStream, peer: SocketAddr) {
        stream.set_nodelay(true);
        let unfinished = Unfinished(Some(stream.handle()));
        let service = service_fn(|request: Request<Incoming>| async move {
            let response = self.files.answer(&request).await;
            let fields = [
                ("peer", Value::Text(peer.to_string())),
                ("method", Value::Text(request.method().to_string())),
                ("path", Value::Text(request.uri().path().to_owned())),
                ("status", Value::Count(response.status().as_u16().into())),
                ("bytes", Value::Count(response.body().len())),
            ];
            self.log.line(Level::Info, "request", &fields);
            Ok::<_, Infallible>(response)
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .half_close(true)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = self.stop.clone().ordered() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        let Err(error) = ended else { return unfinished.finish() };
        // The client ended in the middle of a request, or was silent for long: all that was asked is
        // answered.
        if error.is_incomplete_message() || error.is_timeout() {
            unfinished.finish();
        }
        if !error.is_incomplete_message() {
            let fields =
                [("peer", Value::Text(peer.to_string())), ("reason", Value::Text(error.to_string()))];
            self.log.line(Level::Warning, "connection", &fields);
        }
    }
}

/// A connection on which an answer may be under way. Dropping it resets the connection, so that no client
/// takes a part of a file for the whole.
struct Unfinished(Option<StreamHandle>);

impl Unfinished {
    /// No answer is under way.
    fn finish(mut self) {
        self.0 = None;
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(handle) = &self.0 {
            handle.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use brisk_link::LinkSpec;
    use brisk_runtime::memory;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// A server of synthetic files, a connection to it that has asked for one of them, and what serves that.
    async fn asked() -> (Endpoint, TcpStream, tokio::task::JoinHandle<()>) {
        let link = LinkSpec::parse("--rtt 2ms").expect("a link");
        let (near, far) = memory::network(&link, 1).expect("two endpoints");
        let listener = TcpListener::bind(&far, "10.0.0.2:80".parse().expect("an address")).expect("free");
        let (client, accepted) = tokio::join!(near.connect(listener.local_addr()), listener.accept());
        let (mut client, (stream, peer)) = (client.expect("connects"), accepted.expect("accepts"));
        let server = Server {
            files: Files::open(&std::env::temp_dir(), true).expect("a directory"),
            attached: Attached::Udp { local: peer },
            slots: Arc::new(Semaphore::new(1)),
            log: Log::silent(),
            stop: Stop::on_signals().unwrap_or_else(|failure| panic!("{}", failure.message)),
            drain_timeout: Duration::ZERO,
        };
        let serving = tokio::spawn(async move {
            let _far = far;
            server.converse(stream, peer).await;
        });
        let request = b"GET /5000000 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        client.write_all(request).await.expect("room");
        (near, client, serving)
    }

    #[tokio::test]
    async fn cut_answer_ends_in_a_reset() {
        let (_near, mut client, serving) = asked().await;
        let mut part = vec![0; 100_000];
        client.read_exact(&mut part).await.expect("the beginning");
        serving.abort();
        let error = client.read_to_end(&mut part).await.expect_err("the answer is cut");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }

    #[tokio::test]
    async fn whole_answer_ends_in_order() {
        let (_near, mut client, _serving) = asked().await;
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.expect("an end in order");
        assert!(answer.len() > 5_000_000, "{}", answer.len());
    }
}

//! `brisk get`: fetches a URL over our stack.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use brisk_runtime::attach::Attached;
use brisk_runtime::{ConnStats, ConnectConfig, Endpoint, FastOpenConnect, FastOpenOutcome, HedgedStream};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::header::{HOST, LOCATION, USER_AGENT};
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use serde::Serialize;

use crate::Common;
use crate::device_args::DeviceArgs;
use crate::failure::Failure;
use crate::fast_open_cache::Cache;
use crate::{output, service};
use brisk_gateway::settings::parse_duration;

const EXAMPLES: &str = "\
Examples:
  sudo brisk get http://10.7.0.1:8000/ --device tun:brisk0 --addr 10.7.0.2/24
  brisk get http://192.0.2.1:8080/big --device udp:0.0.0.0:0 -o big --stats json";

/// The flags of `get`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    // This is not a doc comment, because rustdoc would treat the brackets as a link.
    #[arg(help = "URL to fetch: http://HOST[:PORT]/PATH")]
    #[arg(value_name = "URL")]
    url: String,
    #[command(flatten)]
    device: DeviceArgs,
    /// Write the body to this file instead of stdout; - is stdout
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Fetch this many times, each over a fresh connection
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Send the request with the SYN to servers that gave a cookie earlier; the request may arrive twice
    #[arg(long, env = "BRISK_FAST_OPEN")]
    fast_open: bool,
    /// Keep the cookies of --fast-open in this file for the next run
    #[arg(long, value_name = "FILE", requires = "fast_open", env = "BRISK_FAST_OPEN_CACHE")]
    fast_open_cache: Option<PathBuf>,
    /// Print the figures of each transfer: json is one object per transfer on stdout, and the body is not
    /// shown
    #[arg(long, value_enum, value_name = "FORMAT")]
    stats: Option<Stats>,
    /// Limit for opening a connection
    #[arg(long, default_value = "10s", value_name = "TIME", value_parser = parse_duration)]
    connect_timeout: Duration,
    /// Limit for a transfer
    #[arg(long, default_value = "2m", value_name = "TIME", value_parser = parse_duration)]
    timeout: Duration,
}

/// Format of the statistics of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Stats {
    /// A sentence on stderr.
    Text,
    /// One JSON object per transfer on stdout.
    Json,
}

/// Fetches and prints.
pub(crate) fn run(args: Args, common: &Common) -> Result<(), Failure> {
    let target = Target::parse(&args.url)?;
    let quiet = common.quiet;
    service::run(async move {
        let (builder, attached) = args.device.attach_config().open()?;
        let remote = target.resolve(&attached).await?;
        let endpoint = builder.build()?;
        let cache = args.fast_open_cache.clone().map(Cache::new);
        if let Some(cache) = &cache {
            cache.load(&endpoint)?;
        }
        for _ in 0..args.repeat {
            let mut sink = Sink::open(&args)?;
            let fetching = fetch(&endpoint, remote, &target, &args, &mut sink);
            let transfer = tokio::time::timeout(args.timeout, fetching).await.map_err(|_| {
                let limit = humantime::format_duration(args.timeout);
                Failure::failed(format!("{}: not finished after {limit}; raise --timeout", args.url))
            })??;
            sink.finish()?;
            match args.stats {
                Some(Stats::Json) => output::print_line(&transfer.figures(&args.url).line()?)?,
                Some(Stats::Text) => eprintln!("{}", transfer.text(&args.url)),
                None if args.output.is_some() && !quiet => eprintln!("{}", transfer.text(&args.url)),
                None => {}
            }
        }
        match cache {
            Some(cache) => cache.store(&endpoint),
            None => Ok(()),
        }
    })
}

/// The parts of a URL.
#[derive(Debug)]
struct Target {
    url: String,
    host: String,
    port: u16,
    /// The value of the `Host` header.
    authority: String,
    path: String,
}

impl Target {
    fn parse(url: &str) -> Result<Target, Failure> {
        let refuse = |why: &str| Failure::usage(format!("{url}: {why}; write http://HOST[:PORT]/PATH"));
        let uri: Uri = url.parse().map_err(|error| refuse(&format!("{error}")))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => return Err(refuse("TLS is not supported")),
            Some(_) | None => return Err(refuse("only http:// is supported")),
        }
        let authority = uri.authority().ok_or_else(|| refuse("there is no host"))?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err(refuse("there is no host"));
        }
        let place = authority.as_str().rsplit('@').next().unwrap_or_default();
        let port = match place.strip_prefix(authority.host()).unwrap_or_default() {
            // A colon without a port is allowed and ignored.
            "" | ":" => Some(80),
            port => port.trim_start_matches(':').parse().ok().filter(|port| *port != 0),
        };
        let port: u16 = port.ok_or_else(|| refuse("a port is a number from 1 to 65535"))?;
        Ok(Target {
            url: url.to_owned(),
            host: host.to_owned(),
            port,
            authority: authority.to_string(),
            path: uri.path_and_query().map_or("/", |path| path.as_str()).to_owned(),
        })
    }

    /// Returns the address to connect to: the first one of an address family that the stack has.
    async fn resolve(&self, attached: &Attached) -> Result<SocketAddr, Failure> {
        let (url, host) = (&self.url, &self.host);
        let found = tokio::net::lookup_host((host.as_str(), self.port)).await.map_err(|error| {
            Failure::failed(format!("{url}: cannot find the address of {host}: {error}; check the name"))
        })?;
        let mut unreachable = None;
        for address in found {
            match attached.destination(address) {
                Ok(destination) => return Ok(destination),
                Err(error) => unreachable = Some(error),
            }
        }
        Err(match unreachable {
            Some(error) => Failure::failed(format!("{url}: {error}")),
            None => Failure::failed(format!("{url}: {host} has no address; check the name")),
        })
    }

    fn failed(&self, what: &str, error: impl std::fmt::Display) -> Failure {
        Failure::failed(format!("{}: {what}: {error}", self.url))
    }
}

/// The times of one transfer.
#[derive(Debug)]
struct Transfer {
    bytes: u64,
    connect: Duration,
    first_byte: Duration,
    total: Duration,
    stats: Option<ConnStats>,
}

/// One request over a fresh connection.
async fn fetch(
    endpoint: &Endpoint,
    remote: SocketAddr,
    target: &Target,
    args: &Args,
    sink: &mut Sink,
) -> Result<Transfer, Failure> {
    let started = Instant::now();
    let unreachable =
        |why: String| target.failed("cannot connect", format!("{why}; check address, port and device"));
    let mut tcp = endpoint.tcp_config().clone();
    tcp.nodelay = true;
    let config = ConnectConfig {
        tcp,
        // The SYN leaves with the first write, which is the request.
        fast_open: args.fast_open.then(|| FastOpenConnect { defer: true, ..FastOpenConnect::insured() }),
        ..ConnectConfig::default()
    };
    let opened = endpoint.connect_hedged(remote, &[], &config);
    let stream = opened.map_err(|error| unreachable(error.to_string()))?;
    let handle = stream.handle();
    let first = handle.stream();
    let opening = async {
        let within = tokio::time::timeout(args.connect_timeout, first.connected()).await;
        let limit =
            || unreachable(format!("no answer within {}", humantime::format_duration(args.connect_timeout)));
        within.map_err(|_| limit())?.map_err(|error| unreachable(error.to_string()))?;
        Ok::<_, Failure>(started.elapsed())
    };
    let (connect, mut response) = if args.fast_open {
        let (connect, response) = tokio::join!(opening, request(stream, target));
        match (connect, response) {
            // The second connection has got the response.
            (Err(_), Ok(response)) => (started.elapsed(), response),
            (connect, response) => (connect?, response?),
        }
    } else {
        (opening.await?, request(stream, target).await?)
    };
    let first_byte = started.elapsed();
    check(&response, target)?;
    let mut bytes = 0;
    while let Some(frame) = response.frame().await {
        let frame = frame.map_err(|error| target.failed("the transfer ended early", error))?;
        if let Some(data) = frame.data_ref() {
            bytes += data.len() as u64;
            sink.write(data)?;
        }
    }
    let total = started.elapsed();
    drop(response);
    // The server has answered in full, so unacknowledged bytes of the request do not matter.
    drop(first);
    let used = handle.stream();
    let _ = used.shutdown();
    let _ = tokio::time::timeout(service::DRAIN_WAIT, used.closed()).await;
    Ok(Transfer { bytes, connect, first_byte, total, stats: handle.stats() })
}

async fn request(stream: HedgedStream, target: &Target) -> Result<Response<Incoming>, Failure> {
    let failed = |error| target.failed("the server did not answer", error);
    let io = TokioIo::new(stream);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.map_err(failed)?;
    // The reader of the response gets its errors.
    tokio::spawn(connection);
    let request = Request::get(&target.path)
        .header(HOST, &target.authority)
        .header(USER_AGENT, concat!("brisk/", env!("CARGO_PKG_VERSION")))
        .body(Empty::<Bytes>::new())
        .map_err(|error| target.failed("cannot send the request", error))?;
    sender.send_request(request).await.map_err(failed)
}

/// Accepts only a success, whose body is written.
fn check(response: &Response<Incoming>, target: &Target) -> Result<(), Failure> {
    let status = response.status();
    if status.is_success() {
        return Ok(());
    }
    let location = response.headers().get(LOCATION).and_then(|location| location.to_str().ok());
    Err(Failure::failed(match location {
        Some(location) => format!("{}: the server answered {status}; fetch {location} instead", target.url),
        None => format!("{}: the server answered {status}", target.url),
    }))
}

impl Transfer {
    /// Returns the statistics for `--stats json`.
    fn figures<'a>(&self, url: &'a str) -> Figures<'a> {
        let counters = self.stats.map(|stats| stats.counters).unwrap_or_default();
        Figures {
            url,
            bytes: self.bytes,
            connect_ms: millis(self.connect),
            ttfb_ms: millis(self.first_byte),
            total_ms: millis(self.total),
            rtt_ms: self.stats.and_then(|stats| stats.srtt).map(millis),
            fast_open: self.fast_open_word(),
            retransmits: counters.retransmits + counters.handshake_retransmits,
            timeouts: counters.timeouts,
            probes: counters.probes,
            repaired: Repaired {
                probe: counters.repaired_by_probe,
                parity: counters.repaired_by_parity,
                copy: counters.repaired_by_copy,
            },
            wire_bytes: WireBytes { out: counters.wire_bytes_out, r#in: counters.wire_bytes_in },
        }
    }

    /// The format has no word for reasons: `off` means that the connection did not try Fast Open.
    fn fast_open_word(&self) -> &'static str {
        match self.stats.map(|stats| stats.fast_open) {
            None | Some(FastOpenOutcome::Off(_)) => "off",
            Some(tried) => tried.name(),
        }
    }

    fn text(&self, url: &str) -> String {
        let fast_open = self.stats.map_or("off", |stats| stats.fast_open.name());
        let fast_open = if fast_open == "off" { String::new() } else { format!(", Fast Open {fast_open}") };
        let rtt = self
            .stats
            .and_then(|stats| stats.srtt)
            .map_or(String::new(), |rtt| format!(", round trip {:.1} ms", millis(rtt)));
        format!(
            "{url}: {} bytes in {:.1} ms (connected after {:.1} ms, first byte after {:.1} ms{rtt}{fast_open})",
            self.bytes,
            millis(self.total),
            millis(self.connect),
            millis(self.first_byte)
        )
    }
}

/// The format of `--stats json`: programs read it, so its keys must not change.
#[derive(Debug, Serialize)]
struct Figures<'a> {
    url: &'a str,
    bytes: u64,
    connect_ms: f64,
    ttfb_ms: f64,
    total_ms: f64,
    /// Smoothed; null without a sample.
    rtt_ms: Option<f64>,
    fast_open: &'static str,
    retransmits: u64,
    timeouts: u64,
    probes: u64,
    repaired: Repaired,
    wire_bytes: WireBytes,
}

#[derive(Debug, Serialize)]
struct Repaired {
    probe: u64,
    parity: u64,
    copy: u64,
}

#[derive(Debug, Serialize)]
struct WireBytes {
    out: u64,
    r#in: u64,
}

impl Figures<'_> {
    fn line(&self) -> Result<String, Failure> {
        serde_json::to_string(self)
            .map_err(|error| Failure::failed(format!("cannot write the figures as JSON: {error}")))
    }
}

/// Returns milliseconds with microsecond precision.
fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

/// Destination of the body.
enum Sink {
    Nowhere,
    Stdout,
    File(std::fs::File, PathBuf),
}

impl Sink {
    fn open(args: &Args) -> Result<Sink, Failure> {
        match &args.output {
            Some(path) if path.as_os_str() == "-" => Ok(Sink::Stdout),
            Some(path) => match std::fs::File::create(path) {
                Ok(file) => Ok(Sink::File(file, path.clone())),
                Err(error) => Err(Failure::failed(format!("{}: cannot be written: {error}", path.display()))),
            },
            None if args.stats == Some(Stats::Json) => Ok(Sink::Nowhere),
            None => Ok(Sink::Stdout),
        }
    }

    fn write(&mut self, data: &[u8]) -> Result<(), Failure> {
        match self {
            Sink::Nowhere => Ok(()),
            Sink::Stdout => std::io::stdout()
                .write_all(data)
                .map_err(|error| Failure::failed(format!("cannot write the body to stdout: {error}"))),
            Sink::File(file, path) => file
                .write_all(data)
                .map_err(|error| Failure::failed(format!("{}: cannot be written: {error}", path.display()))),
        }
    }

    fn finish(&mut self) -> Result<(), Failure> {
        match self {
            Sink::Nowhere | Sink::File(..) => Ok(()),
            Sink::Stdout => std::io::stdout()
                .flush()
                .map_err(|error| Failure::failed(format!("cannot write the body to stdout: {error}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_taken_apart() {
        let target = Target::parse("http://[fd07::1]:8000/a?b")
            .unwrap_or_else(|failure| panic!("{}", failure.message));
        assert_eq!((target.host.as_str(), target.port), ("fd07::1", 8000));
        assert_eq!((target.authority.as_str(), target.path.as_str()), ("[fd07::1]:8000", "/a?b"));
        for url in ["http://origin", "http://origin:/", "http://me@origin:80"] {
            let target = Target::parse(url).unwrap_or_else(|failure| panic!("{}", failure.message));
            assert_eq!(
                (target.host.as_str(), target.port, target.path.as_str()),
                ("origin", 80, "/"),
                "{url}"
            );
        }
    }

    #[test]
    fn a_url_that_cannot_be_fetched_is_a_usage_error() {
        let bad_ports =
            ["http://a:99999/", "http://9:99999/", "http://a:0/", "http://[::1]:65536/", "http://a:x/"];
        for url in ["https://a/", "ftp://a/", "a/b", "", "http://"].into_iter().chain(bad_ports) {
            let failure = Target::parse(url).map(|_| ()).expect_err(url);
            assert_eq!(failure.code, 2, "{url}");
            assert!(failure.message.ends_with("write http://HOST[:PORT]/PATH"), "{}", failure.message);
        }
    }

    #[test]
    fn the_json_has_exactly_the_keys_of_the_contract() {
        let transfer = Transfer {
            bytes: 1,
            connect: Duration::from_micros(1_500),
            first_byte: Duration::from_millis(2),
            total: Duration::from_millis(3),
            stats: None,
        };
        let line =
            transfer.figures("http://a/").line().unwrap_or_else(|failure| panic!("{}", failure.message));
        assert_eq!(
            line,
            r#"{"url":"http://a/","bytes":1,"connect_ms":1.5,"ttfb_ms":2.0,"total_ms":3.0,"rtt_ms":null,"#
                .to_owned()
                + r#""fast_open":"off","retransmits":0,"timeouts":0,"probes":0,"#
                + r#""repaired":{"probe":0,"parity":0,"copy":0},"wire_bytes":{"out":0,"in":0}}"#
        );
    }
}

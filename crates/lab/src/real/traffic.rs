//! The origin, the load and the reference flow: ordinary programs on the kernel's TCP.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::processes::Processes;

/// `MSG_FASTOPEN` of `sendto(2)`: connect, with the data on the SYN if there is a cookie.
const MSG_FASTOPEN: i32 = 0x2000_0000;
const IN_PROGRESS: i32 = 115;
const TIME_LIMIT: Duration = Duration::from_secs(60);
/// Bytes of a bulk flow, more than can be transferred.
const BULK: u64 = 1 << 40;
/// Content of bodies.
static CHUNK: [u8; 16_384] = [b'.'; 16_384];

/// The web server: the response to `GET /N` has N bytes.
#[derive(Debug)]
pub(super) struct Origin {
    stop: watch::Sender<bool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Origin {
    /// Starts the server on a thread in the namespace of the calling thread.
    pub(super) fn start(address: SocketAddr) -> io::Result<Origin> {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let runtime = runtime()?;
        let (stop, mut stopped) = watch::channel(false);
        let thread = std::thread::Builder::new().name("origin".to_owned()).spawn(move || {
            runtime.block_on(async move {
                tokio::select! {
                    _ = serve(listener) => {}
                    _ = stopped.wait_for(|stopped| *stopped) => {}
                }
            });
        })?;
        Ok(Origin { stop, thread: Some(thread) })
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

async fn serve(listener: std::net::TcpListener) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // No descriptor is free at the moment.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        let service = service_fn(|request: Request<Incoming>| {
            let bytes = request.uri().path().trim_start_matches('/').parse().unwrap_or(0);
            async move { Ok::<_, Infallible>(Response::new(Dots { left: bytes })) }
        });
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

/// A body of this many bytes.
struct Dots {
    left: u64,
}

impl Body for Dots {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let len = self.left.min(CHUNK.len() as u64);
        self.left -= len;
        let frame = || Ok(Frame::data(Bytes::from_static(&CHUNK[..len as usize])));
        Poll::Ready((len > 0).then(frame))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

#[derive(Clone, Debug)]
pub(super) struct FetchRequest {
    pub(super) to: SocketAddr,
    pub(super) bytes: u64,
    /// True to use the kernel's Fast Open.
    pub(super) fast_open: bool,
}

/// Results of requests, each over a connection of its own.
#[derive(Clone, Debug, Default)]
pub(super) struct Load {
    /// Times of successful requests, ms.
    pub(super) times: Vec<f64>,
    pub(super) failed: u64,
    pub(super) last_failure: Option<String>,
}

impl Load {
    /// Repeats a request until it succeeds.
    pub(super) fn first(
        asked: &FetchRequest,
        patience: Duration,
        processes: &mut Processes,
    ) -> Result<(), String> {
        let began = Instant::now();
        let runtime = runtime().map_err(|error| error.to_string())?;
        loop {
            let answer =
                runtime.block_on(async { tokio::time::timeout(patience, fetch(asked, &|_| true)).await });
            let why = match answer {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(error)) => error.to_string(),
                Err(_) => "no answer".to_owned(),
            };
            if let Some(ended) = processes.ended() {
                return Err(ended);
            }
            if began.elapsed() > patience {
                return Err(format!("no answer within {} s: {why}", patience.as_secs()));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Makes `n` requests, `parallel` of them at a time.
    pub(super) fn run(asked: &FetchRequest, n: u64, parallel: usize, stop: &AtomicBool) -> io::Result<Load> {
        let begun = Arc::new(AtomicU64::new(0));
        let runtime = runtime()?;
        runtime.block_on(async {
            let ask_in_turn = || async {
                let mut load = Load::default();
                while begun.fetch_add(1, Ordering::Relaxed) < n && !stop.load(Ordering::Relaxed) {
                    load.fetch_one(asked).await;
                }
                load
            };
            let mut tasks: Vec<_> = (0..parallel).map(|_| Box::pin(ask_in_turn())).collect();
            let mut all = Load::default();
            // The loop waits for the next task to end; all of them make progress meanwhile.
            while !tasks.is_empty() {
                let (nth, load) = first_of(&mut tasks).await;
                drop(tasks.swap_remove(nth));
                all.times.extend(load.times);
                all.failed += load.failed;
                all.last_failure = load.last_failure.or(all.last_failure);
            }
            Ok(all)
        })
    }

    async fn fetch_one(&mut self, asked: &FetchRequest) {
        let began = Instant::now();
        let failure = match tokio::time::timeout(TIME_LIMIT, fetch(asked, &|_| true)).await {
            Ok(Ok(bytes)) if bytes == asked.bytes => {
                return self.times.push(began.elapsed().as_secs_f64() * 1e3);
            }
            Ok(Ok(bytes)) => format!("{bytes} bytes came of {}", asked.bytes),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer in {} s", TIME_LIMIT.as_secs()),
        };
        self.failed += 1;
        self.last_failure = Some(failure);
    }

    /// Runs a bulk flow next to one that connects directly to `reference`; returns the bytes of both.
    pub(super) fn beside(
        asked: &FetchRequest,
        reference: SocketAddr,
        takes: Duration,
        stop: &AtomicBool,
    ) -> io::Result<(u64, u64)> {
        let runtime = runtime()?;
        let end = Instant::now() + takes;
        let may_continue = |_: u64| Instant::now() < end && !stop.load(Ordering::Relaxed);
        let own = FetchRequest { bytes: BULK, ..asked.clone() };
        let other = FetchRequest { to: reference, bytes: BULK, fast_open: false };
        let flow = |asked: FetchRequest| async move {
            // A flow that fails or does not end in time counts as zero bytes.
            let limit = takes + Duration::from_millis(500);
            tokio::time::timeout(limit, fetch(&asked, &may_continue))
                .await
                .ok()
                .and_then(Result::ok)
                .unwrap_or(0)
        };
        Ok(runtime.block_on(async { tokio::join!(flow(own), flow(other)) }))
    }
}

/// Waits for the first of several futures; returns its index and its output.
async fn first_of<F: Future + Unpin>(futures: &mut [F]) -> (usize, F::Output) {
    std::future::poll_fn(|context| {
        let ready =
            futures.iter_mut().enumerate().find_map(|(nth, future)| match Pin::new(future).poll(context) {
                Poll::Ready(value) => Some((nth, value)),
                Poll::Pending => None,
            });
        ready.map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

/// Requests the bytes over a new connection; returns the number of bytes that arrived until the end, or until
/// `may_continue` returns false.
async fn fetch(asked: &FetchRequest, may_continue: &(dyn Fn(u64) -> bool + Sync)) -> io::Result<u64> {
    let request = format!("GET /{} HTTP/1.1\r\nHost: origin\r\nConnection: close\r\n\r\n", asked.bytes);
    let stream = match asked.fast_open {
        false => {
            let mut stream = TcpStream::connect(asked.to).await?;
            stream.set_nodelay(true)?;
            stream.write_all(request.as_bytes()).await?;
            stream
        }
        true => fast_open(asked.to, request.as_bytes()).await?,
    };
    read(stream, may_continue).await
}

/// Connects like `curl --tcp-fastopen`.
async fn fast_open(to: SocketAddr, request: &[u8]) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    let taken = match socket.send_to_with_flags(request, &SockAddr::from(to), MSG_FASTOPEN) {
        Ok(taken) => taken,
        Err(error) if error.raw_os_error() == Some(IN_PROGRESS) => 0,
        Err(error) => return Err(error),
    };
    let mut stream = TcpStream::from_std(socket.into())?;
    if taken < request.len() {
        stream.writable().await?;
        stream.write_all(&request[taken..]).await?;
    }
    Ok(stream)
}

/// Reads a response; returns its length without the head.
async fn read(stream: TcpStream, may_continue: &(dyn Fn(u64) -> bool + Sync)) -> io::Result<u64> {
    use tokio::io::AsyncReadExt;
    let mut stream = stream;
    let (mut head, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    let mut count = loop {
        let len = stream.read(&mut buffer).await?;
        if len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        head.extend_from_slice(&buffer[..len]);
        if let Some(end) = head.windows(4).position(|end| end == b"\r\n\r\n") {
            break (head.len() - end - 4) as u64;
        }
    };
    if !head.starts_with(b"HTTP/1.1 200") {
        let line = String::from_utf8_lossy(head.split(|byte| *byte == b'\r').next().unwrap_or_default());
        return Err(io::Error::other(line.into_owned()));
    }
    while may_continue(count) {
        let len = stream.read(&mut buffer).await?;
        if len == 0 {
            break;
        }
        count += len as u64;
    }
    Ok(count)
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_makes_n_requests_and_counts_failures() {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let _origin = Origin::start(port).unwrap();
        let asked = FetchRequest { to: port, bytes: 50_000, fast_open: false };
        Load::first(&asked, Duration::from_secs(20), &mut Processes::default()).unwrap();
        let stop = AtomicBool::new(false);
        let load = Load::run(&asked, 20, 4, &stop).unwrap();
        assert_eq!((load.times.len(), load.failed, load.last_failure), (20, 0, None));
        let (own, other) = Load::beside(&asked, port, Duration::from_millis(200), &stop).unwrap();
        assert!(own > 0 && other > 0, "{own} {other}");
        drop(_origin);
        let load = Load::run(&asked, 3, 2, &stop).unwrap();
        assert_eq!((load.times.len(), load.failed), (0, 3));
        assert!(load.last_failure.is_some());
    }
}

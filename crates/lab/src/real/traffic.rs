//! The origin, the load and the reference flow: ordinary programs on the kernel's TCP.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

use super::processes::Processes;
use crate::either_tcp::EitherTcp;
use crate::http;

const TIME_LIMIT: Duration = Duration::from_secs(60);
/// Bytes of a bulk flow, more than can be transferred.
const BULK: u64 = 1 << 40;

/// The web server: the response to `GET /N` has N bytes.
#[derive(Debug)]
pub(super) struct Origin {
    /// Its thread ends on drop.
    _runtime: Runtime,
}

impl Origin {
    /// Starts the server on a thread in the namespace of the calling thread.
    pub(super) fn start(address: SocketAddr) -> io::Result<Origin> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let listener = runtime.block_on(TcpListener::bind(address))?;
        runtime.spawn(http::serve(listener));
        Ok(Origin { _runtime: runtime })
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
                runtime.block_on(async { tokio::time::timeout(patience, asked.fetch(|_| true)).await });
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
        let (begun, all) = (Cell::new(0), RefCell::new(Load::default()));
        let ask_in_turn = || async {
            while begun.replace(begun.get() + 1) < n && !stop.load(Ordering::Relaxed) {
                let outcome = asked.time().await;
                all.borrow_mut().add(outcome);
            }
        };
        let mut tasks: Vec<_> = (0..parallel).map(|_| Box::pin(ask_in_turn())).collect();
        runtime()?.block_on(poll_fn(|context| {
            tasks.retain_mut(|task| task.as_mut().poll(context).is_pending());
            if tasks.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        }));
        drop(tasks);
        Ok(all.into_inner())
    }

    fn add(&mut self, outcome: Result<f64, String>) {
        match outcome {
            Ok(time) => self.times.push(time),
            Err(why) => (self.failed, self.last_failure) = (self.failed + 1, Some(why)),
        }
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
            tokio::time::timeout(limit, asked.fetch(may_continue))
                .await
                .ok()
                .and_then(Result::ok)
                .unwrap_or(0)
        };
        Ok(runtime.block_on(async { tokio::join!(flow(own), flow(other)) }))
    }
}

impl FetchRequest {
    /// Requests the bytes; returns the time that it took, ms.
    async fn time(&self) -> Result<f64, String> {
        let began = Instant::now();
        match tokio::time::timeout(TIME_LIMIT, self.fetch(|_| true)).await {
            Ok(Ok(bytes)) if bytes == self.bytes => Ok(began.elapsed().as_secs_f64() * 1e3),
            Ok(Ok(bytes)) => Err(format!("{bytes} bytes came of {}", self.bytes)),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no answer in {} s", TIME_LIMIT.as_secs())),
        }
    }

    /// Requests the bytes over a new connection; returns the number of bytes that arrived until the end, or
    /// until `may_continue` returns false.
    async fn fetch(&self, may_continue: impl Fn(u64) -> bool) -> io::Result<u64> {
        let request = format!("GET /{} HTTP/1.1\r\nHost: origin\r\nConnection: close\r\n\r\n", self.bytes);
        let tcp = EitherTcp::Kernel { fast_open: self.fast_open, congestion: None };
        let stream = tcp.ask(self.to, request.as_bytes()).await?;
        Ok(http::read_response(stream, may_continue).await?.1)
    }
}

fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
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

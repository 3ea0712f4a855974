//! The client: runs a number of concurrent transactions, each over its own connection.

use std::cell::Cell;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::LocalSet;

use crate::Workload;
use crate::server::Request;
use brisk_lab::either_tcp::{EitherTcp, Stream};

/// Time limit of a request.
const LIMIT: Duration = Duration::from_secs(120);

/// State that all workers share.
struct Shared {
    tcp: EitherTcp,
    workload: Workload,
    request: Vec<u8>,
    began: Instant,
    /// Number of transactions that have begun.
    begun: Cell<u64>,
    finished: Cell<u64>,
    failed: Cell<u64>,
    bytes: Cell<u64>,
    quiet: bool,
}

#[derive(Default)]
struct Transaction {
    connected: Duration,
    first_byte: Duration,
    last_byte: Duration,
    bytes: u64,
    of_ours: String,
}

/// Runs the workload and prints it.
pub(crate) async fn load(tcp: EitherTcp, workload: Workload, quiet: bool) -> io::Result<()> {
    let request =
        Request { bytes: workload.bytes, len: workload.request, server_closes: !workload.client_closes };
    let workers = workload.parallel;
    let shared = Rc::new(Shared {
        tcp,
        request: request.encode(),
        workload,
        began: Instant::now(),
        begun: Cell::new(0),
        finished: Cell::new(0),
        failed: Cell::new(0),
        bytes: Cell::new(0),
        quiet,
    });
    let local = LocalSet::new();
    for worker in 0..workers {
        local.spawn_local(shared.clone().work(worker));
    }
    local.await;
    if quiet {
        let Shared { finished, failed, bytes, .. } = &*shared;
        let seconds = shared.began.elapsed().as_secs_f64();
        println!("{} {} {seconds:.3} {}", finished.get(), failed.get(), bytes.get());
    }
    Ok(())
}

impl Shared {
    fn ends(&self) -> Option<Instant> {
        self.workload.seconds.map(|seconds| self.began + Duration::from_secs_f64(seconds))
    }

    async fn work(self: Rc<Self>, worker: usize) {
        // Workers start at different times.
        tokio::time::sleep(Duration::from_millis(worker as u64 * 7 % 200)).await;
        while self.begun.get() < self.workload.count && self.ends().is_none_or(|end| Instant::now() < end) {
            self.begun.set(self.begun.get() + 1);
            let limit = self.ends().map_or(LIMIT, |end| end.saturating_duration_since(Instant::now()));
            let mut transaction = Transaction::default();
            let outcome = tokio::time::timeout(limit, self.transact(&mut transaction)).await;
            self.bytes.set(self.bytes.get() + transaction.bytes);
            match outcome {
                Ok(Ok(())) => self.finished.set(self.finished.get() + 1),
                Ok(Err(_)) => self.failed.set(self.failed.get() + 1),
                Err(_) if self.ends().is_some() => return,
                Err(_) => self.failed.set(self.failed.get() + 1),
            }
            if !self.quiet {
                self.print(&transaction, outcome.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())));
            }
            if self.workload.pause > 0 {
                tokio::time::sleep(Duration::from_millis(self.workload.pause)).await;
            }
        }
    }

    async fn transact(&self, seen: &mut Transaction) -> io::Result<()> {
        let (mut stream, started) = self.begin(seen).await?;
        let mut buffer = vec![0; 1 << 16];
        while seen.bytes < self.workload.bytes {
            let read = stream.read(&mut buffer).await?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if seen.bytes == 0 {
                seen.first_byte = started.elapsed();
            }
            seen.bytes += read as u64;
        }
        seen.last_byte = started.elapsed();
        seen.of_ours = of_ours(&stream);
        Ok(())
    }

    /// Sends the request, on a new connection or one that was opened earlier. Also returns the start of the
    /// measured time.
    async fn begin(&self, seen: &mut Transaction) -> io::Result<(Stream, Instant)> {
        let Some(millis) = self.workload.open_for else {
            let started = Instant::now();
            let stream = self.tcp.ask(self.workload.to, &self.request).await?;
            seen.connected = started.elapsed();
            return Ok((stream, started));
        };
        let mut stream = self.tcp.connect(self.workload.to).await?;
        tokio::time::sleep(Duration::from_millis(millis)).await;
        let started = Instant::now();
        stream.write_all(&self.request).await?;
        Ok((stream, started))
    }

    fn print(&self, transaction: &Transaction, outcome: io::Result<()>) {
        let Transaction { connected, first_byte, last_byte, bytes, of_ours } = transaction;
        let ms = |time: &Duration| time.as_secs_f64() * 1e3;
        let line = match outcome {
            Ok(()) => {
                format!("{:.3} {:.3} {:.3} {bytes} {of_ours}", ms(connected), ms(first_byte), ms(last_byte))
            }
            Err(error) => format!("failed {error}"),
        };
        // An error means that the reader has closed the output.
        let _ = writeln!(io::stdout(), "{line}");
    }
}

/// Formats the outcome of Fast Open, and the numbers of retransmissions, timeouts, probes, received parity
/// segments, and losses that parity repaired.
fn of_ours(stream: &Stream) -> String {
    let mut text = String::new();
    if let Some(stats) = stream.stats() {
        let counters = stats.counters;
        let retransmits = counters.retransmits + counters.handshake_retransmits;
        let fast_open = stats.fast_open.name();
        let _ = write!(text, "{fast_open} {retransmits} {} {}", counters.timeouts, counters.probes);
        let _ = write!(text, " {} {}", counters.parity.received, counters.repaired_by_parity);
    }
    text
}

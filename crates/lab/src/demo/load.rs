//! The load of the demonstration: unmodified clients on the kernel's TCP. Each request has a connection of
//! its own and begins at a random time, regardless of earlier responses.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand_core::RngCore;

use crate::either_tcp::EitherTcp;
use crate::http;

/// Time limit of one request.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// The results of the requests so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    /// Completion times, ms.
    pub(super) times: Vec<f64>,
    pub(super) begun: u64,
    pub(super) failed: u64,
    /// Bytes of completed requests and responses, including HTTP headers.
    pub(super) payload: u64,
    pub(super) last_failure: Option<String>,
}

impl Tally {
    pub(super) fn outstanding(&self) -> u64 {
        self.begun - self.failed - self.times.len() as u64
    }
}

pub(super) type SharedTally = Arc<Mutex<Tally>>;

pub(super) async fn request(to: SocketAddr, bytes: u64, tally: SharedTally) {
    lock(&tally).begun += 1;
    let began = Instant::now();
    let result = tokio::time::timeout(TIME_LIMIT, fetch(to, bytes)).await;
    let took = began.elapsed();
    let mut tally = lock(&tally);
    match result {
        Ok(Ok(payload)) => {
            tally.times.push(took.as_secs_f64() * 1e3);
            tally.payload += payload;
        }
        Ok(Err(error)) => {
            tally.failed += 1;
            tally.last_failure = Some(error.to_string());
        }
        Err(_) => {
            tally.failed += 1;
            tally.last_failure = Some(format!("no answer in {} s", TIME_LIMIT.as_secs()));
        }
    }
}

/// Locks the tally. Every change is one statement, so a panic leaves no partial state.
pub(super) fn lock(tally: &SharedTally) -> std::sync::MutexGuard<'_, Tally> {
    tally.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Returns a request for a body of this length.
pub(super) fn request_text(bytes: u64) -> String {
    format!(
        "GET /{bytes} HTTP/1.1\r\nHost: origin.example\r\nUser-Agent: brisk-demo\r\nConnection: close\r\n\r\n"
    )
}

/// Makes one request; returns the bytes of request and response.
async fn fetch(to: SocketAddr, bytes: u64) -> io::Result<u64> {
    let request = request_text(bytes);
    let tcp = EitherTcp::Kernel { fast_open: false, congestion: None };
    let stream = tcp.ask(to, request.as_bytes()).await?;
    let (head, body) = http::read_response(stream, |body| body < bytes).await?;
    match body < bytes {
        true => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the response ended too early")),
        false => Ok(request.len() as u64 + head + body),
    }
}

/// Returns the time to the next request of a Poisson process with `per_second` requests.
pub(super) fn gap(per_second: f64, rng: &mut impl RngCore) -> Duration {
    let uniform = (f64::from(rng.next_u32()) + 1.0) / (f64::from(u32::MAX) + 1.0);
    Duration::from_secs_f64(-uniform.ln() / per_second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_have_the_mean_of_the_rate() {
        let mut rng = brisk_link::seeds::rng(1, "load");
        let n = 20_000;
        let sum: Duration = (0..n).map(|_| gap(50.0, &mut rng)).sum();
        let mean = sum.as_secs_f64() / f64::from(n);
        assert!((mean - 0.02).abs() < 0.001, "{mean}");
    }
}

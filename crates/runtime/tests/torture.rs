//! An endpoint with 500 stalled peers, 10,000 connections at once, 20,000 short-lived ones, slow readers,
//! streams that are dropped during a transfer, futures that are dropped at every await, and every kind of
//! end. Afterwards no data is lost and no state is left.
//!
//! The clock is paused and each test runs on one thread, so that every run is the same. Only the test of a
//! runtime that is shut down has two runtimes and real time.

#[path = "torture/cancelled.rs"]
mod cancelled;
#[path = "torture/churned.rs"]
mod churned;
#[path = "torture/dropped.rs"]
mod dropped;
#[path = "torture/ended.rs"]
mod ended;
#[path = "torture/heap.rs"]
mod heap;
#[path = "torture/many.rs"]
mod many;
#[path = "torture/slow.rs"]
mod slow;
#[path = "torture/stalled.rs"]
mod stalled;
mod watched;

use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use brisk_runtime::endpoint::Builder;
use brisk_runtime::memory::{self, LinkSpec};
use brisk_runtime::{Endpoint, TcpListener, TcpStream};
use tokio::time::timeout;

/// Maximum virtual time of a wait.
const LIMIT: Duration = Duration::from_secs(60);
const MSL: Duration = Duration::from_secs(1);

fn server_address() -> SocketAddr {
    "10.0.0.2:80".parse().unwrap()
}

fn builders(link: &str) -> (Builder, Builder) {
    let (a, b) = memory::builders(&LinkSpec::parse(link).unwrap(), 1);
    (a.stack(|stack| stack.msl = MSL), b.stack(|stack| stack.msl = MSL))
}

async fn pair(a: &Endpoint, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let (client, accepted) = tokio::join!(a.connect(listener.local_addr()), listener.accept());
    (client.unwrap(), accepted.unwrap().0)
}

/// Returns bytes that depend on their position and on their stream.
fn pattern(range: Range<usize>, salt: usize) -> Vec<u8> {
    range.map(|n| (n ^ (n >> 8) ^ salt) as u8).collect()
}

/// Waits until every connection is over, and checks that no state is left.
async fn assert_nothing_left(endpoints: &[&Endpoint]) {
    for endpoint in endpoints {
        timeout(LIMIT, endpoint.wait_idle()).await.expect("every connection ends");
    }
    tokio::time::sleep(3 * MSL).await;
    for endpoint in endpoints {
        assert_eq!((endpoint.connections(), endpoint.buffered_bytes()), (0, 0));
    }
}

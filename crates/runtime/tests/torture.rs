//! Conditions under which a stack must neither lose data nor keep state.
//!
//! | condition | tests |
//! |---|---|
//! | streams are dropped during a transfer | `dropped` |
//! | reads, writes, connects, accepts and other waits are cancelled, at every await | `cancelled` |
//! | tasks are aborted by another thread; several threads share a stream | `threads` |
//! | 10,000 connections are open at once | `many` |
//! | 500 peers stall, and the buffers reach their limit | `stalled` |
//! | readers are slow | `slow` |
//! | both ends close at once; an endpoint with idle connections closes; its runtime ends or is dropped | `ended` |
//! | the clock is paused | `ended::paused_clock_skips_a_minute_and_repeats_each_run` |
//! | 20,000 connections open and end one after another | `churned` |
//!
//! The clock is paused and each test runs on one thread, so that every run is the same. Only the tests of
//! several threads, and the test of an endpoint whose runtime shuts down, use real time.

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
#[path = "torture/threads.rs"]
mod threads;
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

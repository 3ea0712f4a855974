//! Copying between a kernel socket and the hop, both ways at once.
//!
//! The end of one direction is carried through as a half close while the other goes on. An error of one side becomes a
//! reset of the other: what an application sees through the gateway is what it would have seen without it.

use std::fmt;
use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;

/// Bytes read at once in each direction.
const CHUNK: usize = 16 << 10;

/// How a connection through the gateway ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// Both directions came to their end.
    Closed,
    /// The client reset the connection or vanished (as seen by the frontend).
    ClientFailed(String),
    /// The origin reset the connection or vanished (as seen by the backend).
    OriginFailed(String),
    /// The connection between the gateways was reset or lost.
    HopFailed(String),
    /// The origin could not be reached (as seen by the backend).
    OriginUnreachable(String),
    /// The peer gateway could not be reached (as seen by the frontend).
    HopUnreachable(String),
    /// The gateway was shut down and the drain limit had passed.
    Drained,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Closed => f.write_str("closed"),
            End::ClientFailed(why) => write!(f, "client: {why}"),
            End::OriginFailed(why) => write!(f, "origin: {why}"),
            End::HopFailed(why) => write!(f, "hop: {why}"),
            End::OriginUnreachable(why) => write!(f, "origin unreachable: {why}"),
            End::HopUnreachable(why) => write!(f, "peer gateway unreachable: {why}"),
            End::Drained => f.write_str("drain limit"),
        }
    }
}

/// Which of the two connections an error came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    Kernel,
    Hop,
}

/// Why copying stopped.
#[derive(Debug)]
pub(crate) enum Stopped {
    /// Both directions ended, and both ends were passed on.
    Ended,
    /// One side failed.
    Failed(Side, io::Error),
    /// The order came to end now.
    Cut,
}

/// What was copied, and why it stopped.
#[derive(Debug)]
pub(crate) struct Relayed {
    pub(crate) from_kernel: u64,
    pub(crate) from_hop: u64,
    pub(crate) stopped: Stopped,
}

/// Copies, beginning with `first` towards the hop, until both directions have ended, one side has failed or `signal` cuts
/// it short. Unless both have ended the caller resets both.
pub(crate) async fn relay<K, H>(
    kernel: &mut K,
    first: &[u8],
    hop: &mut H,
    signal: &watch::Receiver<bool>,
) -> Relayed
where
    K: AsyncRead + AsyncWrite + Unpin,
    H: AsyncRead + AsyncWrite + Unpin,
{
    let (kernel_read, kernel_write) = tokio::io::split(kernel);
    let (hop_read, hop_write) = tokio::io::split(hop);
    let (mut from_kernel, mut from_hop) = (0, 0);
    let up = pump(kernel_read, Side::Kernel, first, hop_write, Side::Hop, &mut from_kernel);
    let down = pump(hop_read, Side::Hop, &[], kernel_write, Side::Kernel, &mut from_hop);
    let both = async { tokio::try_join!(up, down) };
    let stopped = tokio::select! {
        ended = both => match ended {
            Ok(((), ())) => Stopped::Ended,
            Err((side, error)) => Stopped::Failed(side, error),
        },
        () = cut(signal.clone()) => Stopped::Cut,
    };
    Relayed { from_kernel, from_hop, stopped }
}

async fn pump(
    mut from: impl AsyncRead + Unpin,
    from_side: Side,
    first: &[u8],
    mut to: impl AsyncWrite + Unpin,
    to_side: Side,
    copied: &mut u64,
) -> Result<(), (Side, io::Error)> {
    to.write_all(first).await.map_err(|error| (to_side, error))?;
    *copied += first.len() as u64;
    let mut buffer = vec![0; CHUNK];
    loop {
        let count = from.read(&mut buffer).await.map_err(|error| (from_side, error))?;
        let Some(chunk) = buffer.get(..count).filter(|chunk| !chunk.is_empty()) else {
            break;
        };
        to.write_all(chunk).await.map_err(|error| (to_side, error))?;
        *copied += chunk.len() as u64;
    }
    match to.shutdown().await {
        // It reset the connection after it had said all: the other direction tells what there is to tell.
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
        other => other.map_err(|error| (to_side, error)),
    }
}

/// Resolves when connections have to end now.
async fn cut(mut signal: watch::Receiver<bool>) {
    // A dropped sender never cuts: the owner of the connections ends them by other means.
    if signal.wait_for(|cut| *cut).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Runs `attempt` for at most `limit` and until `signal` cuts it short; `failed` names what its error means.
pub(crate) async fn within<T>(
    limit: Duration,
    signal: &watch::Receiver<bool>,
    failed: fn(String) -> End,
    attempt: impl Future<Output = io::Result<T>>,
) -> Result<T, End> {
    tokio::select! {
        () = cut(signal.clone()) => Err(End::Drained),
        result = tokio::time::timeout(limit, attempt) => match result {
            Ok(result) => result.map_err(|error| failed(error.to_string())),
            Err(_) => Err(failed(format!("no answer within {}", humantime::format_duration(limit)))),
        },
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    #[tokio::test]
    async fn the_end_of_one_direction_leaves_the_other_open() {
        let (mut client, mut kernel) = duplex(1024);
        let (mut hop, mut origin) = duplex(1024);
        let (_cut, signal) = watch::channel(false);
        let relaying = tokio::spawn(async move { relay(&mut kernel, b"the ", &mut hop, &signal).await });
        client.write_all(b"request").await.unwrap();
        client.shutdown().await.unwrap();
        let mut request = Vec::new();
        origin.read_to_end(&mut request).await.unwrap();
        assert_eq!(request, b"the request");
        origin.write_all(b"a longer answer").await.unwrap();
        drop(origin);
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, b"a longer answer");
        let relayed = relaying.await.unwrap();
        assert_eq!((relayed.from_kernel, relayed.from_hop), (11, 15));
        assert!(matches!(relayed.stopped, Stopped::Ended));
    }

    #[tokio::test]
    async fn an_error_names_its_side() {
        let (client, mut kernel) = duplex(1024);
        let (mut hop, mut origin) = duplex(1024);
        let (_cut, signal) = watch::channel(false);
        drop(client);
        origin.write_all(b"to nobody").await.unwrap();
        let relayed = relay(&mut kernel, &[], &mut hop, &signal).await;
        let Stopped::Failed(side, error) = relayed.stopped else { panic!("{:?}", relayed.stopped) };
        assert_eq!((side, error.kind()), (Side::Kernel, io::ErrorKind::BrokenPipe));
    }

    #[tokio::test]
    async fn copying_is_cut_short_by_the_signal_and_still_says_what_was_copied() {
        let (mut client, mut kernel) = duplex(1024);
        let (mut hop, mut origin) = duplex(1024);
        let (cut, signal) = watch::channel(false);
        let relaying = tokio::spawn(async move { relay(&mut kernel, &[], &mut hop, &signal).await });
        client.write_all(b"1234").await.unwrap();
        let mut seen = [0; 4];
        origin.read_exact(&mut seen).await.unwrap();
        cut.send_replace(true);
        let relayed = relaying.await.unwrap();
        assert!(matches!(relayed.stopped, Stopped::Cut));
        assert_eq!(relayed.from_kernel, 4);
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_without_answer_ends_at_its_limit() {
        let (_cut, signal) = watch::channel(false);
        let limit = Duration::from_secs(10);
        let end =
            within::<()>(limit, &signal, End::HopUnreachable, std::future::pending()).await.unwrap_err();
        assert_eq!(end, End::HopUnreachable("no answer within 10s".into()));
    }
}

//! Copies between the two connections of a client: the hop and the outside, in both directions at once.
//!
//! The outside is the client's connection at a frontend, and the origin's at a backend or an edge.
//!
//! The end of one direction becomes a half close; the other direction continues. A connection over brisk's
//! TCP counts as open until its peer has acknowledged the last byte. An error on one side becomes a reset of
//! the other, so applications see the same as without a gateway. A reset discards the bytes that are not
//! acknowledged yet, so the relay waits for their acknowledgement for a limited time. It notices the failure
//! of a side even while it does not read from that side.

use std::borrow::Cow;
use std::future::poll_fn;
use std::io;
use std::ops::RangeInclusive;
use std::pin::Pin;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::access::{Access, Role};
use crate::end::End;
use crate::exchanges::Exchanges;
use crate::first_bytes::FirstSender;
use crate::frontends::FrontendSlot;
use crate::hop::connection::{ACK_CHECK, Connection};
use crate::hop::opening::ClientAddresses;
use crate::hop::stream::HopStream;
use crate::io::{Sink, Source, prepare, with_chunk};
use crate::outgoing;
use crate::proxy::{ProxyVersion, header};
use crate::service::{Phase, poll_first_bytes, reached};
use crate::timeouts::{Activity, Timeout, Timeouts};

/// Range of a time limit of four round trips. If one side has failed, the other is reset when it has
/// acknowledged the last bytes of the failed one, or at this limit.
const LAST_BYTES: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(5);

/// Maximum interval between two checks whether the last bytes are acknowledged.
const MAX_ACK_CHECK: Duration = Duration::from_secs(1);

/// One of the two connections of a relay: the outside or the hop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    Outside,
    Hop,
}

impl Role {
    /// Returns who is behind this side of the relay: the client or the origin.
    fn sender(self, side: Side) -> FirstSender {
        match (self, side) {
            (Role::Frontend, Side::Outside) | (Role::Backend | Role::Edge, Side::Hop) => FirstSender::Client,
            (Role::Frontend, Side::Hop) | (Role::Backend | Role::Edge, Side::Outside) => FirstSender::Server,
        }
    }
}

/// Reason why copying stopped.
#[derive(Debug)]
enum Stopped {
    /// Both directions ended, and both ends were forwarded.
    Ended,
    Failed(Side, io::Error),
    /// No more answer will come from the other gateway.
    Lost,
    /// The gateway must stop now.
    Cut,
    /// Nothing moved for too long.
    TimedOut(Timeout),
}

/// Bytes that were copied, and the reason for the end.
#[derive(Debug)]
struct Relayed {
    from_outside: Copied,
    from_hop: Copied,
    stopped: Stopped,
}

/// Parameters of a relayed connection.
pub(crate) struct Carry<'a, L> {
    /// Bytes that the outside has sent so far, to be sent over the hop first.
    pub(crate) first: Vec<u8>,
    /// Bytes that the outside has not accepted yet, to be sent to it first.
    pub(crate) unsent: Vec<u8>,
    /// Resolves with the reason if no more answer will come from the other gateway.
    pub(crate) lost: L,
    /// Called with the side that sends first, unless the record already has it.
    pub(crate) on_first: &'a (dyn Fn(FirstSender) + Sync),
    /// Limits of inactivity.
    pub(crate) timeouts: &'a Timeouts,
    pub(crate) signal: &'a mut watch::Receiver<Phase>,
    /// The slot of the frontend, in backends only. All connections of a frontend share its rate limit.
    pub(crate) slot: Option<&'a FrontendSlot>,
    /// Measures the exchanges.
    pub(crate) exchanges: Option<Exchanges<'a>>,
    /// True if the options of the kernel's socket must still be set.
    pub(crate) unprepared: bool,
}

/// The two connections of a client. Unless both directions have ended, dropping this resets both connections,
/// even if the task of the relay is cancelled or panics. An orderly end would tell an application that it has
/// received everything.
struct ConnectionPair {
    outside: Connection,
    hop: HopStream,
    have_ended: bool,
}

impl Drop for ConnectionPair {
    fn drop(&mut self) {
        if !self.have_ended {
            self.hop.connection().reset();
            self.outside.reset();
        }
    }
}

impl ConnectionPair {
    /// Waits until the peers over brisk's TCP have acknowledged all bytes. Until then the bytes take memory
    /// of this process, and are lost if it ends. So the connection keeps its slot, and the limits still
    /// apply. The kernel delivers the bytes of its sockets itself.
    async fn deliver_all(
        &mut self,
        activity: &Activity,
        timeouts: &Timeouts,
        signal: &mut watch::Receiver<Phase>,
    ) -> Stopped {
        let mut left = self.buffered();
        if left == 0 {
            return Stopped::Ended;
        }
        if self.outside.socket().is_some() {
            // The relay may have left the end of the outside to the drop. An error is a reset by the peer.
            let _ = self.outside.split().1.shutdown().await;
        }
        // Progress must be seen before the limit ends the connection; zero is no limit.
        let longest = match timeouts.half_closed / 4 {
            Duration::ZERO => MAX_ACK_CHECK,
            part => part.clamp(ACK_CHECK, MAX_ACK_CHECK),
        };
        let delivered = async {
            // The acknowledgement of the last byte arrives a round trip after it, or a little later. Earlier
            // checks would only wake the thread.
            let round_trip = self.round_trip().unwrap_or_default();
            let mut pause = (round_trip + round_trip / 4).clamp(ACK_CHECK, longest);
            while left > 0 {
                tokio::time::sleep(pause).await;
                pause = (2 * pause).min(longest);
                let before = std::mem::replace(&mut left, self.buffered());
                if left < before {
                    activity.moved();
                }
            }
        };
        tokio::select! {
            biased;
            () = delivered => Stopped::Ended,
            error = self.outside.failed(), if self.outside.socket().is_none() => {
                Stopped::Failed(Side::Outside, error)
            }
            error = self.hop.connection().failed(), if self.hop.connection().socket().is_none() => {
                Stopped::Failed(Side::Hop, error)
            }
            timeout = activity.exceeds(timeouts) => Stopped::TimedOut(timeout),
            () = reached(Phase::Cut, signal) => Stopped::Cut,
        }
    }

    /// Returns the longer round-trip time of the connections over brisk's TCP; `None` if none is known.
    fn round_trip(&self) -> Option<Duration> {
        let ends = [&self.outside, self.hop.connection()];
        ends.into_iter().filter_map(|end| end.stats()?.srtt).max()
    }

    /// Returns the bytes that brisk's TCP holds because the peers have not acknowledged them.
    fn buffered(&self) -> usize {
        let ends = [&self.outside, self.hop.connection()];
        ends.into_iter().filter(|end| end.socket().is_none()).map(Connection::unacknowledged).sum()
    }

    /// Forwards the bytes that a side sent before it failed, and waits until the other side has acknowledged
    /// them. Gives up if the other side fails too, after a time limit, or at the order to stop.
    async fn deliver_rest(
        &mut self,
        failed: Side,
        relayed: &mut Relayed,
        progress: &Progress<'_>,
        signal: &mut watch::Receiver<Phase>,
    ) {
        let other = match failed {
            Side::Outside => self.hop.connection(),
            Side::Hop => &self.outside,
        };
        let round_trip = other.stats().and_then(|stats| stats.srtt).unwrap_or_default();
        let limit = (4 * round_trip).clamp(*LAST_BYTES.start(), *LAST_BYTES.end());
        let delivered = async {
            match failed {
                Side::Outside => {
                    let (from, to) = (self.outside.split().0, self.hop.split().1);
                    forward_rest((from, failed), to, &mut relayed.from_outside, progress).await?;
                    self.hop.connection().acknowledged().await;
                }
                Side::Hop => {
                    let (from, to) = (self.hop.split().0, self.outside.split().1);
                    forward_rest((from, failed), to, &mut relayed.from_hop, progress).await?;
                    self.outside.acknowledged().await;
                }
            }
            io::Result::Ok(())
        };
        // All outcomes lead to the same reset.
        tokio::select! {
            biased;
            _ = tokio::time::timeout(limit, delivered) => {}
            () = reached(Phase::Cut, signal) => {}
        }
    }
}

/// Copies in both directions. Then closes both connections if both directions have ended and everything is
/// delivered, and otherwise resets them. Adds the copied bytes to the record.
pub(crate) async fn carry(
    outside: Connection,
    hop: HopStream,
    with: Carry<'_, impl Future<Output = &'static str>>,
    access: &mut Access,
) -> End {
    let Carry { first, unsent, lost, on_first, timeouts, signal, slot, exchanges, unprepared } = with;
    let mut pair = ConnectionPair { outside, hop, have_ended: false };
    let mut reason = None;
    let role = access.role;
    let on_first = |side| on_first(role.sender(side));
    let unprepared = AtomicBool::new(unprepared);
    let progress = Progress { slot, exchanges, unprepared, ..Progress::new(&on_first) };
    if access.sent_first.is_some() {
        let _ = progress.first.set(Side::Outside);
        progress.activity.moved();
    }
    let mut relayed = {
        let order = async {
            tokio::select! {
                why = lost => {
                    reason = Some(why);
                    Stopped::Lost
                }
                timeout = progress.activity.exceeds(timeouts) => Stopped::TimedOut(timeout),
                () = reached(Phase::Cut, signal) => Stopped::Cut,
            }
        };
        relay(pair.outside.split(), [first, unsent], pair.hop.split(), order, &progress).await
    };
    if let Stopped::Ended = relayed.stopped {
        relayed.stopped = pair.deliver_all(&progress.activity, timeouts, signal).await;
    }
    if let Stopped::Failed(side, _) = relayed.stopped {
        pair.deliver_rest(side, &mut relayed, &progress, signal).await;
    }
    let first_sender = progress.first.get().map(|side| role.sender(*side));
    access.sent_first = access.sent_first.or(first_sender);
    let (up, down) = match access.role {
        Role::Frontend => (relayed.from_outside, relayed.from_hop),
        Role::Backend | Role::Edge => (relayed.from_hop, relayed.from_outside),
    };
    access.bytes_up += up.bytes;
    access.bytes_down += down.bytes;
    access.end_hop(pair.hop.connection());
    access.outside = pair.outside.stats();
    access.client_ended = up.ended;
    access.first_byte = down.first.map(|at| at.saturating_duration_since(access.began));
    match relayed.stopped {
        Stopped::Ended => {
            pair.have_ended = true;
            if let Some(exchanges) = &progress.exchanges {
                exchanges.ended();
            }
            End::Closed
        }
        Stopped::Failed(Side::Outside, error) => access.role.outside_failed(&error),
        Stopped::Failed(Side::Hop, error) => access.role.hop_failed(error.to_string()),
        Stopped::Lost => access.role.hop_failed(reason.unwrap_or_default().to_owned()),
        Stopped::Cut => End::Drained,
        Stopped::TimedOut(timeout) => End::TimedOut(timeout),
    }
}

/// Copies until both directions have ended, one side has failed, or `stop` resolves with a reason. Unless
/// both have ended, the caller resets both. Begins with the bytes `first`, from the outside and from the hop.
async fn relay(
    (outside_read, outside_write): (impl Source, impl Sink),
    first: [Vec<u8>; 2],
    (hop_read, hop_write): (impl Source, impl Sink),
    stop: impl Future<Output = Stopped>,
    progress: &Progress<'_>,
) -> Relayed {
    let [mut from_outside, mut from_hop] = first.map(|rest| Copied { rest, ..Copied::default() });
    let up = pump((outside_read, Side::Outside), (hop_write, Side::Hop), progress, &mut from_outside);
    let down = pump((hop_read, Side::Hop), (outside_write, Side::Outside), progress, &mut from_hop);
    let both = async { tokio::try_join!(up, down) };
    let stopped = tokio::select! {
        biased;
        ended = both => match ended {
            Ok(((), ())) => Stopped::Ended,
            Err((side, error)) => Stopped::Failed(side, error),
        },
        stopped = stop => stopped,
    };
    Relayed { from_outside, from_hop, stopped }
}

/// Bytes that one direction has copied so far.
#[derive(Debug, Default)]
struct Copied {
    bytes: u64,
    /// Bytes that have been read and not written yet.
    rest: Vec<u8>,
    /// Time when the first bytes had been forwarded.
    first: Option<Instant>,
    /// True if no more bytes will come.
    ended: bool,
}

/// Progress of both directions.
struct Progress<'a> {
    /// Side that sent first.
    first: OnceLock<Side>,
    on_first: &'a (dyn Fn(Side) + Sync),
    activity: Activity,
    /// True if one direction has ended, and the end was forwarded.
    half_done: AtomicBool,
    /// The slot of the frontend, in backends only.
    slot: Option<&'a FrontendSlot>,
    /// Measures the exchanges, in frontends only.
    exchanges: Option<Exchanges<'a>>,
    /// True if the options of the kernel's socket must still be set.
    unprepared: AtomicBool,
}

impl<'a> Progress<'a> {
    fn new(on_first: &'a (dyn Fn(Side) + Sync)) -> Progress<'a> {
        Progress {
            first: OnceLock::new(),
            on_first,
            activity: Activity::begin(),
            half_done: AtomicBool::new(false),
            slot: None,
            exchanges: None,
            unprepared: AtomicBool::new(false),
        }
    }

    /// Sets the options of a kernel socket that the gateway has opened. This takes five system calls. Many
    /// connections to an origin carry one request and one response, and end before the options matter. So the
    /// relay sets them only before it waits for the socket or writes to it.
    fn prepare(&self, socket: Option<&TcpStream>) {
        if let Some(socket) = socket
            && self.unprepared.swap(false, Ordering::Relaxed)
        {
            prepare(socket);
        }
    }

    fn read(&self, side: Side) {
        self.activity.moved();
        if let Some(exchanges) = &self.exchanges
            && side == Side::Outside
        {
            exchanges.asked(Instant::now());
        }
        if self.first.get().is_none() && self.first.set(side).is_ok() {
            (self.on_first)(side);
        }
    }
}

async fn pump(
    (mut from, from_side): (impl Source, Side),
    (mut to, to_side): (impl Sink, Side),
    progress: &Progress<'_>,
    copied: &mut Copied,
) -> Result<(), (Side, io::Error)> {
    let (mut taken, mut state) = (copied.rest.len(), ReadState::Open);
    loop {
        if taken > 0 {
            progress.read(from_side);
        }
        let has_waited = !copied.rest.is_empty();
        if has_waited {
            progress.prepare(to.socket());
        }
        tokio::select! {
            biased;
            written = pass(&mut to, &mut copied.rest) => written.map_err(|error| (to_side, error))?,
            error = from.failed() => {
                copied.bytes += (taken - copied.rest.len()) as u64;
                return Err((from_side, error));
            }
        }
        if taken > 0 {
            copied.bytes += taken as u64;
            copied.first.get_or_insert_with(Instant::now);
            if let Some(exchanges) = &progress.exchanges
                && from_side == Side::Hop
            {
                exchanges.answered(Instant::now());
            }
        }
        // The other side has now accepted bytes that it did not accept at once.
        if has_waited {
            progress.activity.moved();
        }
        match state {
            ReadState::Open => {}
            ReadState::End => {
                copied.ended = true;
                break;
            }
            ReadState::Failed(error) => return Err((from_side, error)),
        }
        // An idle connection has no buffer.
        copied.rest = Vec::new();
        if let Some(slot) = progress.slot {
            // Only backends have slots, and at a backend the hop leads to the client.
            slot.passed(taken, from_side == Side::Hop).await;
        }
        let sides = (from_side, to_side);
        (taken, state) = poll_fn(|cx| {
            let moved = copy(cx, sides, &mut from, &mut to, &mut copied.rest, progress);
            if moved.is_pending() {
                progress.prepare(from.socket());
            }
            moved
        })
        .await?;
    }
    progress.activity.ended();
    if to.socket().is_some() && progress.half_done.load(Ordering::Relaxed) {
        // Nothing is left to copy, and the caller drops the connection.
        return Ok(());
    }
    match to.shutdown().await {
        // The peer reset the connection after its last byte; the other direction reports the outcome.
        Err(error) if error.kind() == io::ErrorKind::NotConnected => {}
        other => other.map_err(|error| (to_side, error))?,
    }
    progress.half_done.store(true, Ordering::Relaxed);
    Ok(())
}

/// State of a connection after a read.
enum ReadState {
    /// More bytes may arrive.
    Open,
    /// The connection has ended.
    End,
    /// The connection has failed. A socket may report that only once.
    Failed(io::Error),
}

/// Reads the available bytes and writes them; bytes that are not accepted at once go to `rest`. Returns the
/// number of bytes read, and the state of the connection after the read.
fn copy(
    cx: &mut Context<'_>,
    (from_side, to_side): (Side, Side),
    from: &mut impl Source,
    to: &mut impl Sink,
    rest: &mut Vec<u8>,
    progress: &Progress<'_>,
) -> Poll<Result<(usize, ReadState), (Side, io::Error)>> {
    with_chunk(|chunk| {
        let mut buffer = ReadBuf::new(chunk);
        ready!(Pin::new(&mut *from).poll_read(cx, &mut buffer)).map_err(|error| (from_side, error))?;
        let state = if buffer.filled().is_empty() { ReadState::End } else { more(cx, from, &mut buffer) };
        let read = buffer.filled();
        let mut written = 0;
        while written < read.len() {
            let write = match state {
                ReadState::End => to.poll_write_last(cx, &read[written..]),
                ReadState::Open | ReadState::Failed(_) => {
                    progress.prepare(to.socket());
                    Pin::new(&mut *to).poll_write(cx, &read[written..])
                }
            };
            match write {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err((to_side, io::ErrorKind::WriteZero.into()))),
                Poll::Ready(Ok(count)) => written += count,
                Poll::Ready(Err(error)) => return Poll::Ready(Err((to_side, error))),
                Poll::Pending => break,
            }
        }
        rest.extend_from_slice(&read[written..]);
        Poll::Ready(Ok((read.len(), state)))
    })
}

/// Reads until the buffer is full or no more bytes are available. If the previous read did not fill the
/// buffer, the socket is known to be empty, so this usually costs nothing.
fn more(cx: &mut Context<'_>, from: &mut impl Source, buffer: &mut ReadBuf<'_>) -> ReadState {
    while buffer.remaining() > 0 {
        let before = buffer.filled().len();
        match Pin::new(&mut *from).poll_read(cx, buffer) {
            Poll::Ready(Ok(())) if buffer.filled().len() == before => return ReadState::End,
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => return ReadState::Failed(error),
            Poll::Pending => break,
        }
    }
    ReadState::Open
}

/// Writes all of `chunk`, removes what is written from it, and flushes.
async fn pass(to: &mut (impl AsyncWrite + Unpin), chunk: &mut Vec<u8>) -> io::Result<()> {
    while !chunk.is_empty() {
        match to.write(chunk).await? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            count => drop(chunk.drain(..count)),
        }
    }
    to.flush().await
}

/// Forwards the bytes of a failed side that have not been forwarded yet: those that have been read already,
/// and those that its receive buffer holds.
async fn forward_rest(
    (mut from, side): (impl AsyncRead + Unpin, Side),
    mut to: impl AsyncWrite + Unpin,
    copied: &mut Copied,
    progress: &Progress<'_>,
) -> io::Result<()> {
    while !copied.ended {
        let count = copied.rest.len();
        pass(&mut to, &mut copied.rest).await?;
        copied.bytes += count as u64;
        // A failed connection is always ready: it returns bytes, the error or an end.
        match poll_fn(|cx| poll_first_bytes(&mut from, cx)).await {
            Ok(more) if !more.is_empty() => copied.rest = more,
            Ok(_) | Err(_) => break,
        }
        progress.read(side);
        copied.first.get_or_insert_with(Instant::now);
        if let Some(slot) = progress.slot {
            slot.charge(copied.rest.len(), side == Side::Hop);
        }
    }
    to.flush().await
}

/// Reason why an attempt failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// The gateway was shut down.
    Drained,
    /// The time limit has passed.
    Late(String),
}

/// The parameters of a connection to an origin.
pub(crate) struct OriginRequest<'a> {
    /// `HOST:PORT`.
    pub(crate) origin: &'a str,
    pub(crate) client: Option<ClientAddresses>,
    /// True to connect from the client's address.
    pub(crate) as_client: bool,
    /// The PROXY header that the origin expects.
    pub(crate) send_proxy: Option<ProxyVersion>,
    /// The client's first bytes.
    pub(crate) first: &'a [u8],
    pub(crate) limit: Duration,
}

impl OriginRequest<'_> {
    /// Connects, and sends the first bytes; returns the connection and the bytes that it did not accept at
    /// once. The caller sends these within the limits of the relay.
    ///
    /// # Errors
    /// The end of the connection if the origin cannot be reached, if the hop has `failed`, or at the signal
    /// to stop.
    pub(crate) async fn open(
        self,
        failed: impl Future<Output = io::Error>,
        role: Role,
        signal: &mut watch::Receiver<Phase>,
    ) -> Result<(TcpStream, Vec<u8>), End> {
        let greeting = match self.send_proxy {
            None => Cow::Borrowed(self.first),
            Some(version) => Cow::Owned([&header(version, self.client)[..], self.first].concat()),
        };
        let client = self.client.filter(|_| self.as_client).map(|client| client.source);
        let connecting = outgoing::connect_as(client, self.origin, &greeting);
        let unreachable = |why: &str| End::OriginUnreachable(format!("{}: {why}", self.origin));
        let (origin, sent) = tokio::select! {
            biased;
            opened = within(self.limit, signal, connecting) => match opened {
                Ok(Ok(opened)) => opened,
                Ok(Err(error)) => return Err(unreachable(&error.to_string())),
                Err(Stop::Late(why)) => return Err(unreachable(&why)),
                Err(Stop::Drained) => return Err(End::Drained),
            },
            error = failed => return Err(role.hop_failed(error.to_string())),
        };
        Ok((origin, greeting[sent..].to_vec()))
    }
}

/// Runs `attempt` for at most `limit`, and ends it early when all connections must end.
pub(crate) async fn within<T>(
    limit: Duration,
    signal: &mut watch::Receiver<Phase>,
    attempt: impl Future<Output = T>,
) -> Result<T, Stop> {
    tokio::select! {
        biased;
        result = tokio::time::timeout(limit, attempt) => {
            result.map_err(|_| Stop::Late(format!("no answer within {}", humantime::format_duration(limit))))
        }
        () = reached(Phase::Cut, signal) => Err(Stop::Drained),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use brisk_runtime::memory::{self, LinkSpec};
    use tokio::io::{AsyncRead, AsyncReadExt, DuplexStream, Interest, ReadHalf, WriteHalf, duplex};
    use tokio::sync::Notify;

    use super::*;

    /// Half of a stream in memory, which fails at the test's request.
    struct Half(ReadHalf<DuplexStream>, Arc<Notify>);

    impl AsyncRead for Half {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_read(cx, buffer)
        }
    }

    impl Sink for WriteHalf<DuplexStream> {}

    impl Source for Half {
        async fn failed(&self) -> io::Error {
            self.1.notified().await;
            io::ErrorKind::ConnectionReset.into()
        }
    }

    fn progress() -> Progress<'static> {
        Progress::new(&|_| ())
    }

    fn halves(stream: DuplexStream) -> (Half, WriteHalf<DuplexStream>) {
        let (read, write) = tokio::io::split(stream);
        (Half(read, Arc::default()), write)
    }

    #[tokio::test]
    async fn the_end_of_one_direction_leaves_the_other_open() {
        let (mut client, kernel) = duplex(1024);
        let (hop, mut origin) = duplex(1024);
        let relaying = tokio::spawn(async move {
            relay(
                halves(kernel),
                [b"the ".to_vec(), Vec::new()],
                halves(hop),
                std::future::pending(),
                &progress(),
            )
            .await
        });
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
        assert_eq!((relayed.from_outside.bytes, relayed.from_hop.bytes), (11, 15));
        assert!(matches!(relayed.stopped, Stopped::Ended));
    }

    #[tokio::test]
    async fn end_that_leaves_with_the_last_bytes_arrives_with_all_of_them() {
        for size in [1, 5000, 3 << 20] {
            let ((mut client, mut kernel), (hop, mut origin)) = (sockets().await, duplex(size));
            let sent: Vec<u8> = (0..size).map(|n| (n % 251) as u8).collect();
            origin.write_all(&sent).await.unwrap();
            drop(origin);
            let progress = progress();
            let relaying =
                relay(kernel.split(), Default::default(), halves(hop), std::future::pending(), &progress);
            let reading = async {
                let mut received = Vec::new();
                client.read_to_end(&mut received).await.unwrap();
                client.shutdown().await.unwrap();
                received
            };
            let (relayed, received) = tokio::join!(relaying, reading);
            assert!(received == sent, "{size}");
            assert_eq!(relayed.from_hop.bytes, size as u64);
            assert!(matches!(relayed.stopped, Stopped::Ended), "{:?}", relayed.stopped);
        }
    }

    /// A connected kernel socket and its other end.
    async fn sockets() -> (TcpStream, TcpStream) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connecting = TcpStream::connect(listener.local_addr().unwrap());
        let (ours, theirs) = tokio::join!(connecting, listener.accept());
        (ours.unwrap(), theirs.unwrap().0)
    }

    #[tokio::test]
    async fn an_origin_that_has_ended_hears_the_end_when_the_connection_is_dropped() {
        let ((mut kernel, mut origin), (hop, mut client)) = (sockets().await, duplex(1024));
        let relaying = tokio::spawn(async move {
            relay(kernel.split(), Default::default(), halves(hop), std::future::pending(), &progress()).await
        });
        origin.write_all(b"all there is").await.unwrap();
        origin.shutdown().await.unwrap();
        let mut received = Vec::new();
        client.read_to_end(&mut received).await.unwrap();
        assert_eq!(received, b"all there is");
        client.write_all(b"thanks").await.unwrap();
        client.shutdown().await.unwrap();
        let mut received = Vec::new();
        origin.read_to_end(&mut received).await.unwrap();
        assert_eq!(received, b"thanks");
        assert!(matches!(relaying.await.unwrap().stopped, Stopped::Ended));
    }

    /// Carries a connection of an edge to its end. The outside has not accepted the bytes in `unsent` yet.
    async fn carried((outside, hop): (Connection, Connection), unsent: Vec<u8>, timeouts: Timeouts) -> End {
        let (_cut, mut signal) = watch::channel(Phase::Serving);
        let with = Carry {
            first: Vec::new(),
            unsent,
            lost: std::future::pending(),
            on_first: &|_| (),
            timeouts: &timeouts,
            signal: &mut signal,
            slot: None,
            exchanges: None,
            unprepared: true,
        };
        let mut access = Access::begin(Role::Edge, "192.0.2.1:1".parse().unwrap());
        carry(outside, HopStream::direct(hop, Vec::new()), with, &mut access).await
    }

    #[tokio::test]
    async fn both_sides_are_reset_if_the_relay_is_dropped() {
        let ((kernel, mut client), (hop, mut origin)) = (sockets().await, sockets().await);
        let ends = (Connection::Kernel(kernel), Connection::Kernel(hop));
        let carrying = tokio::spawn(carried(ends, Vec::new(), Timeouts::default()));
        let mut received = [0; 9];
        client.write_all(b"the first").await.unwrap();
        origin.read_exact(&mut received).await.unwrap();
        origin.write_all(b"of a part").await.unwrap();
        client.read_exact(&mut received).await.unwrap();
        carrying.abort();
        for mut end in [client, origin] {
            let error = end.read(&mut received).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        }
    }

    /// Returns a connection over a link, and its other end.
    async fn over(link: &str) -> (brisk_runtime::TcpStream, brisk_runtime::TcpStream) {
        let (near, far) = memory::network(&LinkSpec::parse(link).unwrap(), 1).unwrap();
        let listener = brisk_runtime::TcpListener::bind(&far, "10.0.0.2:80".parse().unwrap()).unwrap();
        let (ours, theirs) = tokio::join!(near.connect(listener.local_addr()), listener.accept());
        (ours.unwrap(), theirs.unwrap().0)
    }

    /// Checks after 10, 30, 70 and 150 ms would notice the end only at the fourth.
    #[tokio::test(start_paused = true)]
    async fn first_check_for_the_last_acknowledgement_follows_the_round_trip() {
        let ((mut origin, outside), (mut client, hop)) = (over("--rtt 1ms").await, over("--rtt 100ms").await);
        client.shutdown().await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        origin.write_all(b"all there is").await.unwrap();
        origin.shutdown().await.unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
        let began = tokio::time::Instant::now();
        let ends = (Connection::Brisk(outside), Connection::Brisk(hop));
        let end = carried(ends, Vec::new(), Timeouts::default()).await;
        let took = began.elapsed().as_millis();
        assert!(end == End::Closed && (100..140).contains(&took), "{end:?} after {took} ms");
    }

    #[tokio::test]
    async fn origin_that_does_not_read_the_first_bytes_is_given_up_at_the_limit() {
        let ((kernel, _origin), (hop, _client)) = (sockets().await, sockets().await);
        let timeouts = Timeouts { idle: Duration::from_millis(200), ..Timeouts::default() };
        let ends = (Connection::Kernel(kernel), Connection::Kernel(hop));
        let carrying = carried(ends, vec![7; 64 << 20], timeouts);
        let end = tokio::time::timeout(Duration::from_secs(20), carrying).await.expect("it ends");
        assert_eq!(end, End::TimedOut(Timeout::Idle));
    }

    #[tokio::test]
    async fn a_socket_is_prepared_only_when_it_is_waited_for_or_written_to() {
        // Bytes from the origin and from the client, and whether the origin has ended.
        for (answer, more, has_ended) in [("all", "", true), ("all", "more", true), ("", "", false)] {
            let ((mut kernel, mut origin), (hop, mut client)) = (sockets().await, duplex(1024));
            origin.write_all(answer.as_bytes()).await.unwrap();
            if has_ended {
                origin.shutdown().await.unwrap();
                while !kernel.ready(Interest::READABLE).await.unwrap().is_read_closed() {
                    tokio::task::yield_now().await;
                }
            }
            client.write_all(more.as_bytes()).await.unwrap();
            let progress = Progress { unprepared: AtomicBool::new(true), ..progress() };
            let relaying =
                relay(kernel.split(), Default::default(), halves(hop), std::future::pending(), &progress);
            assert!(tokio::time::timeout(Duration::from_millis(50), relaying).await.is_err());
            let is_prepared = kernel.nodelay().unwrap();
            assert_eq!(is_prepared, socket2::SockRef::from(&kernel).keepalive().unwrap());
            assert_eq!(is_prepared, !has_ended || !more.is_empty(), "{answer} {more}");
        }
    }

    /// A stream that returns data, fails once, and then is at its end, like a kernel socket.
    struct Breaks(u8);

    impl AsyncRead for Breaks {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            self.0 += 1;
            match self.0 {
                1 => buffer.put_slice(b"last words"),
                2 => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
                _ => {}
            }
            Poll::Ready(Ok(()))
        }
    }

    impl Source for Breaks {
        async fn failed(&self) -> io::Error {
            std::future::pending().await
        }
    }

    #[tokio::test]
    async fn a_failure_after_the_last_bytes_is_reported_once_they_are_forwarded() {
        let (mut client, kernel) = duplex(1024);
        let (_, write) = halves(duplex(16).0);
        let (hop, progress) = ((Breaks(0), write), progress());
        let relayed = relay(halves(kernel), Default::default(), hop, std::future::pending(), &progress).await;
        assert!(matches!(relayed.stopped, Stopped::Failed(Side::Hop, _)), "{:?}", relayed.stopped);
        assert_eq!(relayed.from_hop.bytes, 10);
        let mut received = [0; 10];
        client.read_exact(&mut received).await.unwrap();
        assert_eq!(received, *b"last words");
    }

    #[tokio::test]
    async fn an_error_names_its_side() {
        let (client, kernel) = duplex(1024);
        let (hop, mut origin) = duplex(1024);
        drop(client);
        origin.write_all(b"to nobody").await.unwrap();
        let relayed =
            relay(halves(kernel), Default::default(), halves(hop), std::future::pending(), &progress()).await;
        let Stopped::Failed(side, error) = relayed.stopped else { panic!("{:?}", relayed.stopped) };
        assert_eq!((side, error.kind()), (Side::Outside, io::ErrorKind::BrokenPipe));
    }

    #[tokio::test]
    async fn a_side_that_fails_while_the_other_accepts_no_data_is_noticed() {
        let (mut client, kernel) = duplex(1024);
        let (hop, _origin) = duplex(16);
        let (read, write) = halves(kernel);
        let fail = read.1.clone();
        let relaying = tokio::spawn(async move {
            relay((read, write), Default::default(), halves(hop), std::future::pending(), &progress()).await
        });
        client.write_all(b"more than the hop takes").await.unwrap();
        fail.notify_one();
        let relayed = relaying.await.unwrap();
        assert!(matches!(relayed.stopped, Stopped::Failed(Side::Outside, _)), "{:?}", relayed.stopped);
    }

    #[tokio::test]
    async fn a_relay_that_the_signal_stops_reports_the_copied_bytes() {
        let (mut client, kernel) = duplex(1024);
        let (hop, mut origin) = duplex(1024);
        let (cut, order) = tokio::sync::oneshot::channel();
        let relaying = tokio::spawn(async move {
            let stop = async {
                order.await.unwrap();
                Stopped::Cut
            };
            relay(halves(kernel), Default::default(), halves(hop), stop, &progress()).await
        });
        client.write_all(b"1234").await.unwrap();
        let mut seen = [0; 4];
        origin.read_exact(&mut seen).await.unwrap();
        cut.send(()).unwrap();
        let relayed = relaying.await.unwrap();
        assert!(matches!(relayed.stopped, Stopped::Cut));
        assert_eq!(relayed.from_outside.bytes, 4);
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_without_answer_ends_at_its_limit() {
        let (_cut, mut signal) = watch::channel(Phase::Serving);
        let limit = Duration::from_secs(10);
        let stop = within::<()>(limit, &mut signal, std::future::pending()).await;
        assert_eq!(stop, Err(Stop::Late("no answer within 10s".into())));
    }
}

//! [`HedgedStream`]: a request over Fast Open, and a second connection in case the path then drops packets.
//!
//! Some paths pass a SYN with data and its SYN-ACK, and then drop every packet of the connection. The request
//! counts as delivered, so TCP has nothing to retransmit, and the silence looks like a slow server. Only a
//! second connection helps, and it must start before the client can know that it is needed. It starts half a
//! round trip after the SYN, but at least 50 ms after it, and does not use Fast Open. When its handshake is
//! complete (1.5 round trips after the SYN), it sends the request, unless the first connection has delivered
//! data by then. The stream uses the connection that is answered first, and resets the other one.
//!
//! On a path that works, this costs a SYN, a SYN-ACK and a reset, and only for the first request to a
//! destination. On a path that drops packets, the answer arrives half a round trip (at least 50 ms) later
//! than without Fast Open; with the first connection alone it would not arrive. If the server takes longer
//! than half a round trip to answer that first request, it gets the request **twice**. As always with Fast
//! Open, use this only for requests that may be repeated.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use brisk_tcp::ConnectConfig;
use brisk_tcp::connection::ConnStats;
use brisk_tcp::fast_open::FastOpenOutcome;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use crate::endpoint::Endpoint;
use crate::stream::{StreamHandle, TcpStream};

/// Maximum length, bytes, of a request that the application writes. The stream keeps it in memory for the
/// second connection. A write that exceeds the limit ends the race in favour of the first connection. Only
/// the send buffer limits the data passed to `connect_hedged`.
const MAX_HEDGED: usize = 65_536;

/// A connection that may send its first request twice. [`Endpoint::connect_hedged`] creates it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use brisk_runtime::memory::{self, LinkSpec};
/// # let (client, server) = memory::network(&LinkSpec::default(), 1)?;
/// # use brisk_runtime::TcpListener;
/// # let listener = TcpListener::bind(&server, "10.0.0.2:80".parse()?)?;
/// use brisk_runtime::{ConnectConfig, FastOpenConnect, HedgedHandle, HedgedStream};
/// use tokio::io::AsyncReadExt;
///
/// let config = ConnectConfig { fast_open: Some(FastOpenConnect::default()), ..ConnectConfig::default() };
/// let mut stream: HedgedStream = client.connect_hedged(listener.local_addr(), b"hello", &config)?;
/// let handle: HedgedHandle = stream.handle();
/// # let answering = tokio::spawn(async move {
/// #     let (stream, _) = listener.accept().await?;
/// #     stream.read_bytes(10).await?;
/// #     stream.write_all_bytes(bytes::Bytes::from_static(b"welcome")).await
/// # });
/// let mut response = [0; 7];
/// stream.read_exact(&mut response).await?;
/// println!("Fast Open: {:?}", handle.stats().map(|stats| stats.fast_open));
/// println!("the connection that was answered: {:?}", handle.stream());
/// # answering.await??;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct HedgedStream {
    state: State,
    handle: HedgedHandle,
}

#[derive(Debug)]
enum State {
    /// No connection has been answered.
    Open(Box<Race>),
    /// The race is over; the stream uses this connection.
    Decided(TcpStream),
    /// Placeholder while the state changes.
    Moving,
}

#[derive(Debug)]
struct Race {
    endpoint: Endpoint,
    remote: SocketAddr,
    /// Settings of the second connection.
    plain: ConnectConfig,
    first: TcpStream,
    /// The written bytes.
    request: Vec<u8>,
    /// True if the application has closed the connection for writing.
    closed: bool,
    /// Timer for the start of the second connection; set at the first write.
    start: Option<Pin<Box<Sleep>>>,
    second: Option<Second>,
}

#[derive(Debug)]
struct Second {
    stream: TcpStream,
    /// Number of bytes of the request that the stack has accepted for this connection.
    written: usize,
    closed: bool,
}

/// The connection that was answered first.
enum Winner {
    First,
    Second,
}

/// A handle to read the statistics of a [`HedgedStream`] while another task owns it.
#[derive(Clone, Debug)]
pub struct HedgedHandle {
    shared: Arc<Mutex<Current>>,
}

#[derive(Debug)]
struct Current {
    stream: StreamHandle,
    /// If the second connection has won: the outcome of Fast Open on the first.
    outcome: Option<FastOpenOutcome>,
}

impl Endpoint {
    /// Like [`connect_with_data`](Endpoint::connect_with_data), for a request to which the server responds.
    /// Until this destination has once answered over Fast Open, a plain connection follows half a round trip
    /// (at least 50 ms) after the SYN. It sends the request if no answer has arrived when its handshake is
    /// complete. So the server can get the request **twice**: use it only for requests that may be repeated.
    /// Queues all of `data`, or fails.
    ///
    /// # Errors
    /// Those of [`connect_with_data`](Endpoint::connect_with_data); `InvalidInput` if `data` is larger than
    /// the send buffer.
    pub fn connect_hedged(
        &self,
        remote: SocketAddr,
        data: &[u8],
        config: &ConnectConfig,
    ) -> io::Result<HedgedStream> {
        let (first, taken) = self.connect_with_data(remote, data, config)?;
        let current = Current { stream: first.handle(), outcome: None };
        let handle = HedgedHandle { shared: Arc::new(Mutex::new(current)) };
        if first.hedge_wait().is_none() && taken == data.len() {
            return Ok(HedgedStream { state: State::Decided(first), handle });
        }
        if taken < data.len() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the request is larger than the send buffer",
            ));
        }
        let plain = ConnectConfig { fast_open: None, ..config.clone() };
        let mut race = Race {
            endpoint: self.clone(),
            remote,
            plain,
            first,
            request: data.to_vec(),
            closed: false,
            start: None,
            second: None,
        };
        race.arm();
        Ok(HedgedStream { state: State::Open(Box::new(race)), handle })
    }
}

impl HedgedStream {
    /// Returns a handle to read statistics while another task owns the stream.
    pub fn handle(&self) -> HedgedHandle {
        self.handle.clone()
    }

    /// Returns the counters of the connection in use. If the second one has won, they contain the outcome of
    /// Fast Open on the first.
    pub fn stats(&self) -> Option<ConnStats> {
        self.handle.stats()
    }

    /// Ends the race and resets the loser.
    fn end_race(&mut self, winner: &Winner) {
        let State::Open(race) = std::mem::replace(&mut self.state, State::Moving) else { return };
        let Race { first, second, .. } = *race;
        let mut current = self.handle.lock();
        let (stream, loser) = match (winner, second) {
            (Winner::Second, Some(second)) => {
                first.report_hedge_won();
                current.outcome = first.stats().map(|stats| stats.fast_open);
                (second.stream, Some(first))
            }
            (Winner::First | Winner::Second, second) => (first, second.map(|second| second.stream)),
        };
        if let Some(loser) = loser {
            loser.abort();
        }
        current.stream = stream.handle();
        drop(current);
        self.state = State::Decided(stream);
    }
}

impl HedgedHandle {
    fn lock(&self) -> MutexGuard<'_, Current> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// See [`HedgedStream::stats`].
    pub fn stats(&self) -> Option<ConnStats> {
        let current = self.lock();
        let mut stats = current.stream.stats()?;
        stats.fast_open = current.outcome.unwrap_or(stats.fast_open);
        Some(stats)
    }

    /// Returns the connection in use: the first until the second has won.
    pub fn stream(&self) -> StreamHandle {
        self.lock().stream.clone()
    }
}

impl Race {
    /// Starts the timer of the second connection, because the request has been written.
    fn arm(&mut self) {
        if self.start.is_none() && !self.request.is_empty() {
            self.start = self.first.hedge_wait().map(|wait| Box::pin(tokio::time::sleep(wait)));
        }
    }

    /// Reads the first byte of the answer, and returns the connection that delivered it. If both connections
    /// fail, returns the error of the first.
    fn poll_answer(&mut self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<Winner>> {
        let failed = match Pin::new(&mut self.first).poll_read(cx, buffer) {
            Poll::Ready(Ok(())) => return Poll::Ready(Ok(Winner::First)),
            Poll::Ready(Err(error)) => Some(error),
            Poll::Pending => None,
        };
        // This call wakes the task at the end of the handshake, when it is known whether the SYN delivered
        // the data.
        let _ = self.first.poll_connected(cx);
        if failed.is_none() && self.first.hedge_wait().is_none() {
            // Without data on the SYN this is an ordinary connection, which retransmits lost data by itself.
            return Poll::Ready(Ok(Winner::First));
        }
        if self.second.is_none() {
            let due = self.start.as_mut().is_some_and(|start| start.as_mut().poll(cx).is_ready());
            if !due && failed.is_none() {
                return Poll::Pending;
            }
            let opened = self.endpoint.connect_with_data(self.remote, &[], &self.plain);
            self.second = opened.ok().map(|(stream, _)| Second { stream, written: 0, closed: false });
        }
        let Some(second) = &mut self.second else {
            return failed.map_or(Poll::Ready(Ok(Winner::First)), |error| Poll::Ready(Err(error)));
        };
        match second.poll_ask(&self.request, self.closed, cx, buffer) {
            Poll::Ready(Ok(())) => Poll::Ready(Ok(Winner::Second)),
            Poll::Ready(Err(_)) => match failed {
                Some(first) => Poll::Ready(Err(first)),
                // Only the first connection is left, with or without an answer.
                None => Poll::Ready(Ok(Winner::First)),
            },
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Second {
    /// Sends the rest of the request once the connection is open, and reads.
    fn poll_ask(
        &mut self,
        request: &[u8],
        closed: bool,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.stream.poll_connected(cx))?;
        while let Some(rest) = request.get(self.written..).filter(|rest| !rest.is_empty()) {
            match Pin::new(&mut self.stream).poll_write(cx, rest) {
                Poll::Ready(written) => self.written += written?,
                Poll::Pending => break,
            }
        }
        if closed && self.written == request.len() && !std::mem::replace(&mut self.closed, true) {
            ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
        }
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncRead for HedgedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let filled = buffer.filled().len();
        if let State::Open(race) = &mut self.state {
            let winner = ready!(race.poll_answer(cx, buffer))?;
            let answered = buffer.filled().len() > filled;
            self.end_race(&winner);
            if answered {
                return Poll::Ready(Ok(()));
            }
        }
        match &mut self.state {
            State::Decided(stream) => Pin::new(stream).poll_read(cx, buffer),
            State::Open(_) | State::Moving => Poll::Pending,
        }
    }
}

impl AsyncWrite for HedgedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let too_long = match &mut self.state {
            State::Open(race) => {
                let written = ready!(Pin::new(&mut race.first).poll_write(cx, data))?;
                race.request.extend_from_slice(&data[..written]);
                race.arm();
                if race.request.len() <= MAX_HEDGED {
                    return Poll::Ready(Ok(written));
                }
                written
            }
            State::Decided(stream) => return Pin::new(stream).poll_write(cx, data),
            State::Moving => return Poll::Pending,
        };
        self.end_race(&Winner::First);
        Poll::Ready(Ok(too_long))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.state {
            State::Open(race) => {
                race.closed = true;
                Pin::new(&mut race.first).poll_shutdown(cx)
            }
            State::Decided(stream) => Pin::new(stream).poll_shutdown(cx),
            State::Moving => Poll::Ready(Ok(())),
        }
    }
}

//! [`Forwarder`]: the program decides about each connection that a peer opens, before the stack answers.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

pub use brisk_wire::Options;

use brisk_tcp::TcpConfig;
use brisk_tcp::stack::Request;
use tokio::task::coop::poll_proceed;

use crate::connection::Connection;
use crate::endpoint::Endpoint;
use crate::error;
use crate::shared::Shared;
use crate::stream::TcpStream;
use crate::waiters::{Waiter, Wakers, wait};

/// A listener for every address and port of an endpoint: it returns a [`ConnectRequest`] for each SYN that no
/// [`TcpListener`](crate::TcpListener) accepts, before the stack answers.
///
/// A tunnel uses it with [`Builder::any_address`](crate::Builder::any_address): the program connects to the
/// destination first, and then accepts or refuses the request. Dropping the forwarder forgets the waiting
/// requests; a peer that repeats its SYN is refused.
///
/// ```no_run
/// # async fn example(endpoint: brisk_runtime::Endpoint) -> std::io::Result<()> {
/// let forwarder = brisk_runtime::Forwarder::bind(&endpoint, 1024)?;
/// loop {
///     let request = forwarder.request().await?;
///     tokio::spawn(async move {
///         // An error drops the request, which refuses it.
///         let mut to = tokio::net::TcpStream::connect(request.destination()).await?;
///         let mut from = request.accept().await?;
///         tokio::io::copy_bidirectional(&mut from, &mut to).await
///     });
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct Forwarder {
    endpoint: Endpoint,
}

impl Forwarder {
    /// Starts to hold SYNs for the program. At most `max_pending` requests, 1 or more, wait for a decision;
    /// the stack drops further SYNs, which their peers send again. The stacks of an endpoint divide this
    /// number among themselves.
    ///
    /// # Errors
    /// `AddrInUse` if the endpoint has a forwarder already; the error of its device if that has failed.
    pub fn bind(endpoint: &Endpoint, max_pending: usize) -> io::Result<Forwarder> {
        let shards = endpoint.shards();
        let share = max_pending.max(1).div_ceil(shards.count());
        for (index, shared) in shards.iter().enumerate() {
            let mut inner = shared.lock();
            inner.check_open()?;
            // Either all stacks of an endpoint have a forwarder or none has.
            if index == 0 && inner.forwarder.is_some() {
                return Err(io::Error::new(io::ErrorKind::AddrInUse, "the endpoint has a forwarder already"));
            }
            inner.forwarder = Some(Wakers::default());
            inner.stack.set_forwarding(share);
        }
        Ok(Forwarder { endpoint: endpoint.clone() })
    }

    /// Waits for the next request. Cancel-safe.
    ///
    /// # Errors
    /// If the endpoint's device has failed.
    pub async fn request(&self) -> io::Result<ConnectRequest> {
        wait(|cx, waiter| self.poll_request_as(waiter, cx), |waiter| self.leave(waiter)).await
    }

    /// Like [`request`](Forwarder::request), for use in a `poll` function. If several tasks poll, only the
    /// last one to poll is woken.
    pub fn poll_request(&self, cx: &mut Context<'_>) -> Poll<io::Result<ConnectRequest>> {
        self.poll_request_as(Waiter::POLL, cx)
    }

    fn poll_request_as(&self, waiter: Waiter, cx: &mut Context<'_>) -> Poll<io::Result<ConnectRequest>> {
        let turn = ready!(poll_proceed(cx));
        for shared in self.endpoint.shards().iter() {
            let mut inner = shared.lock();
            if let Some(request) = inner.stack.next_request() {
                drop(inner);
                turn.made_progress();
                self.leave(waiter);
                let (endpoint, shared) = (self.endpoint.clone(), shared.clone());
                return Poll::Ready(Ok(ConnectRequest { endpoint, shared, request, decided: false }));
            }
            inner.check_open()?;
            inner.add_forwarder(waiter, cx);
        }
        Poll::Pending
    }

    fn leave(&self, waiter: Waiter) {
        self.endpoint.shards().iter().for_each(|shared| shared.lock().remove_forwarder(waiter));
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        for shared in self.endpoint.shards().iter() {
            let mut inner = shared.lock();
            inner.forget_forwarder();
            inner.stack.set_forwarding(0);
        }
    }
}

/// A connection that a peer requests and that the stack has not answered yet. Dropping it refuses the
/// connection.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use brisk_runtime::memory::{self, LinkSpec};
/// # let (client, server) = memory::network(&LinkSpec::default(), 1)?;
/// use brisk_runtime::{ConnectRequest, Forwarder, TcpConfig};
/// use std::future::poll_fn;
///
/// let forwarder = Forwarder::bind(&server, 1024)?;
/// let connecting = tokio::spawn(async move { client.connect("10.0.0.2:443".parse().unwrap()).await });
/// let request: ConnectRequest = poll_fn(|cx| forwarder.poll_request(cx)).await?;
/// match request.destination().port() {
///     80 => request.refuse(),
///     25 => request.ignore(),
///     _ => {
///         println!("{} announces a segment of {:?} bytes", request.peer_addr(), request.options().mss);
///         request.accept_with(&TcpConfig::default()).await?;
///     }
/// }
/// connecting.await??;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ConnectRequest {
    endpoint: Endpoint,
    shared: Arc<Shared>,
    request: Request,
    decided: bool,
}

impl ConnectRequest {
    /// Returns the address and port that the peer wants to reach.
    pub fn destination(&self) -> SocketAddr {
        self.request.tuple.local
    }

    /// Returns the address and port of the peer.
    pub fn peer_addr(&self) -> SocketAddr {
        self.request.tuple.remote
    }

    /// Returns the options of the SYN.
    pub fn options(&self) -> &Options {
        &self.request.options
    }

    /// Answers with a SYN-ACK, with the endpoint's settings, and waits for the handshake.
    ///
    /// # Errors
    /// `TimedOut`, `ConnectionReset` and the like if the peer has given up; `ConnectionAborted` if the
    /// forwarder is gone; `QuotaExceeded` if the endpoint holds its maximum of connections.
    pub async fn accept(self) -> io::Result<TcpStream> {
        let tcp = self.endpoint.tcp_config().clone();
        self.accept_with(&tcp).await
    }

    /// Like [`accept`](ConnectRequest::accept), with the given settings.
    ///
    /// # Errors
    /// Those of [`accept`](ConnectRequest::accept); `InvalidInput` for a setting out of its range.
    pub async fn accept_with(mut self, tcp: &TcpConfig) -> io::Result<TcpStream> {
        let stream = TcpStream::new(self.open(tcp)?);
        stream.connected().await?;
        Ok(stream)
    }

    fn open(&mut self, tcp: &TcpConfig) -> io::Result<Connection> {
        let ConnectRequest { shared, request, .. } = self;
        let now = shared.clock.now();
        let connection = shared.act(|inner| {
            inner.check_open()?;
            let id = inner.stack.accept_request(request, tcp, now).map_err(error::request)?;
            io::Result::Ok(Connection::register(shared, inner, id, request.tuple.remote))
        })?;
        self.decided = true;
        Ok(connection)
    }

    /// Answers with a reset, as a host without such a service does.
    pub fn refuse(self) {}

    /// Sends no answer, like a host that is switched off. If the peer sends its SYN again, that is a new
    /// request.
    pub fn ignore(mut self) {
        self.shared.lock().stack.ignore_request(&self.request);
        self.decided = true;
    }
}

impl Drop for ConnectRequest {
    fn drop(&mut self) {
        if !self.decided {
            let now = self.shared.clock.now();
            self.shared.act(|inner| inner.stack.refuse_request(&self.request, now));
        }
    }
}

//! [`Endpoint`]: a TCP host on a device. It has one stack, or one for each queue of the device. A task of the
//! tokio runtime drives each stack.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use brisk_device::steering::{SteeredDevice, Steering};
use brisk_device::{Counters, Device};
use brisk_tcp::config::FastOpenConfig;
use brisk_tcp::error::ImportError;
use brisk_tcp::event::Observation;
use brisk_tcp::fast_open::KeySource;
use brisk_tcp::path::PathFacts;
use brisk_tcp::stack::{FourTuple, StackStats};
use brisk_tcp::{ConnId, ConnectConfig, LifecycleEvent, Seed, Stack, StackConfig, TcpConfig};
use brisk_wire::MAX_SUPER_LEN;
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::clock::{Clock, GRANULARITY};
use crate::connection::Connection;
use crate::cores::Cores;
use crate::driver::Driver;
use crate::error;
use crate::exchange::Exchange;
use crate::observer::Observers;
use crate::shards::Shards;
use crate::shared::{Inner, PeerMove, Shared};
use crate::stream::TcpStream;
use crate::waiters::wait;

/// Time limit for the device of a closed endpoint to take the last packets.
const LAST_PACKETS_LIMIT: Duration = Duration::from_secs(1);

/// A TCP host: addresses, connections and listeners on one device.
///
/// Clones are handles to the same host. After the last handle (endpoint, listener or stream) is dropped, the
/// driver delivers the remaining data and then closes the device, without waiting for connections in
/// TIME-WAIT.
///
/// With the feature `packet-io`, an endpoint uses Linux timers if its device has a descriptor
/// ([`Capabilities::descriptor`](brisk_device::Capabilities::descriptor)). Tokio's paused time does not drive
/// these timers, only those of endpoints on devices in memory.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use brisk_runtime::memory::{self, LinkSpec};
/// # let (client, server) = memory::network(&LinkSpec::default(), 1)?;
/// # use brisk_runtime::TcpListener;
/// # let listener = TcpListener::bind(&server, "10.0.0.2:80".parse()?)?;
/// use brisk_runtime::ConnectConfig;
/// use std::time::Duration;
///
/// // `TcpSocket` starts from the settings of its endpoint. A `ConnectConfig` must copy them:
/// let config = ConnectConfig { tcp: client.tcp_config().clone(), ..ConnectConfig::default() };
/// let stream = client.connect_with(listener.local_addr(), &config).await?;
/// assert_eq!((client.connections(), client.flows().len(), client.buffered_bytes()), (1, 1, 0));
/// println!("{:?} {:?}", client.stats(), client.device_counters());
///
/// drop(stream);
/// drop(listener);
/// client.wait_idle().await;
/// assert_eq!(client.close(Duration::from_secs(1)).await, 0);
/// # Ok(())
/// # }
/// ```
pub struct Endpoint {
    shards: Arc<Shards>,
    tcp: Arc<TcpConfig>,
    /// The MTU of the device when the endpoint was built.
    device_mtu: u16,
}

impl Endpoint {
    /// Begins to build an endpoint on `device`.
    pub fn builder(device: Box<dyn Device>) -> Builder {
        Builder::on_queues(vec![device])
    }

    /// Connects to `remote` with the endpoint's settings and waits for the handshake. Dropping the future
    /// aborts the attempt. Connections to the endpoint's own addresses do not use the device.
    ///
    /// # Errors
    /// `ConnectionRefused`, `TimedOut`, `HostUnreachable`, `NetworkUnreachable` from the other side;
    /// `AddrNotAvailable`, `AddrInUse`, `QuotaExceeded`, `InvalidInput` from this side. The error's text
    /// gives the reason.
    pub async fn connect(&self, remote: SocketAddr) -> io::Result<TcpStream> {
        let config = ConnectConfig { tcp: TcpConfig::clone(&self.tcp), ..ConnectConfig::default() };
        self.connect_with(remote, &config).await
    }

    /// Like [`connect`](Endpoint::connect), with the given settings. With
    /// [`FastOpenConnect::defer`](brisk_tcp::fast_open::FastOpenConnect::defer) and a cookie of the server,
    /// this returns the stream at once, as Linux does with `TCP_FASTOPEN_CONNECT`. The SYN then waits for the
    /// data of the first write, and reading and writing return errors of the handshake. `config.tcp` replaces
    /// [`tcp_config`](Endpoint::tcp_config); use a [`TcpSocket`](crate::TcpSocket) to start from that.
    ///
    /// # Errors
    /// Those of [`connect`](Endpoint::connect); `InvalidInput` for a setting out of its range.
    pub async fn connect_with(&self, remote: SocketAddr, config: &ConnectConfig) -> io::Result<TcpStream> {
        let (stream, _) = self.open(remote, &[], config)?;
        if !stream.waits_for_first_write() {
            stream.connected().await?;
        }
        Ok(stream)
    }

    /// Connects and queues `data` at once, so that it leaves as early as the handshake allows. Returns
    /// without waiting for the handshake; reading and writing wait for it, and fail if it fails. Also returns
    /// how many bytes of `data` were queued.
    ///
    /// If `config` enables Fast Open and there is a cookie of the server, the data leaves with the SYN. The
    /// network can then deliver it to the server's application **more than once**, each time in another
    /// connection: use it only for requests that may be repeated. [`TcpStream::stats`] reports the outcome.
    ///
    /// # Errors
    /// Those of [`connect`](Endpoint::connect) that come from this side.
    pub fn connect_with_data(
        &self,
        remote: SocketAddr,
        data: &[u8],
        config: &ConnectConfig,
    ) -> io::Result<(TcpStream, usize)> {
        self.open(remote, data, config)
    }

    fn open(
        &self,
        remote: SocketAddr,
        data: &[u8],
        config: &ConnectConfig,
    ) -> io::Result<(TcpStream, usize)> {
        config.validate().map_err(error::config)?;
        let shared = self.shards.opener(config.local, remote);
        let (connection, taken) = Connection::open(shared, remote, data, config)?;
        Ok((TcpStream::new(connection), taken))
    }

    /// Sets the Fast Open keys for all present and later listeners that have no keys of their own.
    pub fn set_fast_open_keys(&self, keys: KeySource) {
        self.shards.for_each(|stack, _| stack.set_fast_open_keys(keys.clone()));
    }

    /// Forgets the Fast Open cookies and failures of one partition
    /// ([`FastOpenConnect::partition`](brisk_tcp::fast_open::FastOpenConnect::partition)), or of all if it is
    /// `None`. Call it when the network changes.
    pub fn flush_fast_open_cache(&self, partition: Option<u64>) {
        self.shards.for_each(|stack, _| stack.flush_fast_open_cache(partition));
    }

    /// Returns the Fast Open cookies and failures as text for a file. Keep it secret: its reader can pretend
    /// to be this client.
    pub fn export_fast_open_cache(&self) -> String {
        self.shards.ask(|stack, now| stack.export_fast_open_cache(now))
    }

    /// Imports the text that [`export_fast_open_cache`](Endpoint::export_fast_open_cache) returned. The text
    /// of [`export_paths`](Endpoint::export_paths) may precede or follow it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use brisk_runtime::memory::{self, LinkSpec};
    /// # let (client, _server) = memory::network(&LinkSpec::default(), 1)?;
    /// use brisk_runtime::memory::ADDRESSES;
    ///
    /// // Before the program ends, and after it has started again:
    /// let (cookies, paths) = (client.export_fast_open_cache(), client.export_paths());
    /// client.import_fast_open_cache(&cookies)?;
    /// client.import_paths(&paths)?;
    ///
    /// // The network has changed:
    /// client.flush_fast_open_cache(None);
    /// client.flush_paths();
    /// let [[own, _], [remote, _]] = ADDRESSES;
    /// assert_eq!(client.path(own, remote).rtt, None);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The error in the text; in that case nothing was imported.
    pub fn import_fast_open_cache(&self, text: &str) -> Result<(), ImportError> {
        self.shards.try_for_each(|stack, now| stack.import_fast_open_cache(text, now))
    }

    /// Returns the known facts about the path between these addresses.
    pub fn path(&self, local: IpAddr, remote: IpAddr) -> PathFacts {
        self.shards.ask(|stack, now| stack.path(local, remote, now))
    }

    /// Forgets every path. Call it when the network changes.
    pub fn flush_paths(&self) {
        self.shards.for_each(|stack, _| stack.flush_paths());
    }

    /// Returns the facts about all paths as text for a file.
    pub fn export_paths(&self) -> String {
        self.shards.ask(|stack, now| stack.export_paths(now))
    }

    /// Imports the text that [`export_paths`](Endpoint::export_paths) returned. The text of
    /// [`export_fast_open_cache`](Endpoint::export_fast_open_cache) may precede or follow it.
    ///
    /// # Errors
    /// The error in the text; in that case nothing was imported.
    pub fn import_paths(&self, text: &str) -> Result<(), ImportError> {
        self.shards.try_for_each(|stack, now| stack.import_paths(text, now))
    }

    /// Announces that the peer at `address` may move to another address, and that the caller will report each
    /// move with [`move_peer`](Endpoint::move_peer). A segment of a connection of this peer may then arrive
    /// from an unknown address before the report. So for 15 seconds after the first unknown segment from an
    /// address, the stack answers none of them with a reset. In this time it also ignores a SYN from there
    /// that repeats a SYN of the peer whose data has opened a connection.
    pub fn expect_moves(&self, address: IpAddr) {
        self.shards.for_each(|stack, _| stack.expect_moves(address));
    }

    /// Moves the connections of a peer from its address `from` on this device to its new address `to`. The
    /// caller must have authenticated the peer and received a packet from it at `to`. If `is_other_path` is
    /// true, the facts about the path are reset; pass false if only the UDP port of the peer has changed. (A
    /// `udp:` device gives each UDP address and port of a peer an IP address of its own.)
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use brisk_runtime::memory::{self, LinkSpec};
    /// # let (client, server) = memory::network(&LinkSpec::default(), 1)?;
    /// # let (old, new) = ("10.0.0.1".parse()?, "10.0.0.9".parse()?);
    /// // The peer at `old` has announced that it reports its moves.
    /// server.expect_moves(old);
    /// // A packet from `new` proves that it comes from the same peer.
    /// server.move_peer(old, new, true);
    /// // No packet will come from `old` any more.
    /// server.forget_peer(old);
    /// // At the peer, which has moved:
    /// client.change_path("10.0.0.2".parse()?, true);
    /// # Ok(())
    /// # }
    /// ```
    pub fn move_peer(&self, from: IpAddr, to: IpAddr, is_other_path: bool) {
        let moved = self.shards.act(|inner, now| {
            inner.stack.move_peer(from, to, is_other_path, now);
            inner.moves.push(PeerMove::To { from, to });
        });
        moved.for_each(drop);
    }

    /// Reports that this host has moved. Connections to the peer at `address` retransmit unacknowledged data
    /// at once. If `is_other_path` is true, they also reset their facts about the path.
    pub fn change_path(&self, address: IpAddr, is_other_path: bool) {
        let changed = self.shards.act(|inner, now| inner.stack.change_path(address, is_other_path, now));
        changed.for_each(drop);
    }

    /// Forgets the address of a peer. If the peer has moved on from it, this aborts the connections that the
    /// peer had begun at this address.
    pub fn forget_peer(&self, address: IpAddr) {
        let forgotten = self.shards.act(|inner, now| {
            inner.stack.forget_peer(address, now);
            inner.moves.push(PeerMove::Forgotten(address));
        });
        forgotten.for_each(drop);
    }

    /// Returns the addresses of this host. [`Builder::any_address`] does not add any.
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.shards.ask(|stack, _| stack.config().addresses.clone())
    }

    /// Adds an address; returns false if the host already has it. Packets to the address must reach the
    /// device.
    pub fn add_address(&self, address: IpAddr) -> bool {
        self.shards.act(|inner, _| inner.stack.add_address(address)).fold(false, |any, added| any | added)
    }

    /// Removes an address and aborts the connections that use it; returns false if the host does not have it.
    /// A listener on this address alone gets no more connections.
    pub fn remove_address(&self, address: IpAddr) -> bool {
        self.shards
            .act(|inner, now| inner.stack.remove_address(address, now))
            .fold(false, |any, gone| any | gone)
    }

    /// Sets the MTU in bytes. After a decrease, existing connections send no larger packet; after an
    /// increase, only new connections send larger ones.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use brisk_runtime::memory::{self, LinkSpec};
    /// # let (client, _server) = memory::network(&LinkSpec::default(), 1)?;
    /// let new = "10.0.0.7".parse()?;
    /// assert!(client.add_address(new));
    /// assert!(client.addresses().contains(&new));
    /// assert!(client.remove_address(new));
    /// client.set_mtu(1280)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `InvalidInput` below 576, or above the MTU with which the device was built.
    pub fn set_mtu(&self, mtu: u16) -> io::Result<()> {
        if mtu > self.device_mtu {
            let message = format!("mtu {mtu}: the device was built for at most {} bytes", self.device_mtu);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        self.shards
            .act(|inner, now| inner.stack.set_mtu(mtu, now))
            .collect::<Result<(), _>>()
            .map_err(error::config)
    }

    /// Closes the listeners at once, and the sending side of each connection after its written data. Waits up
    /// to `limit` for the peers to close their sides, and then resets connections that are still open. Then
    /// the driver closes the device, and every handle reports `NotConnected`. Returns the number of reset
    /// connections.
    ///
    /// Does not wait for connections in TIME-WAIT. If the device still has not accepted the last packets
    /// after another second, this returns; the driver closes the device once they are accepted.
    pub async fn close(&self, limit: Duration) -> usize {
        self.shards.iter().for_each(|shared| shared.begin_close());
        let _ = timeout(limit, self.wait_idle()).await;
        let aborted = self.shards.iter().map(|shared| shared.finish_close()).sum();
        let _ = timeout(LAST_PACKETS_LIMIT, self.wait_while(|inner| inner.check_driver().is_ok())).await;
        aborted
    }

    /// Returns the default settings of connections.
    pub fn tcp_config(&self) -> &TcpConfig {
        &self.tcp
    }

    /// Returns counters over all connections since the endpoint was built.
    pub fn stats(&self) -> StackStats {
        self.shards.sum(|inner| *inner.stack.stats())
    }

    /// Returns counters of the packets that the device carried and dropped. The driver reads them ten times a
    /// second at most, and once more when it ends: after [`close`](Endpoint::close) they are exact.
    pub fn device_counters(&self) -> Counters {
        self.shards.sum(|inner| inner.device)
    }

    /// Returns the number of connections, including half-open ones and those in TIME-WAIT.
    pub fn connections(&self) -> usize {
        self.shards.sum(|inner| inner.stack.connections())
    }

    /// Returns the addresses of all connections, including half-open ones, without those in TIME-WAIT.
    pub fn flows(&self) -> Vec<FourTuple> {
        self.shards.iter().flat_map(|shared| shared.lock().stack.flows().collect::<Vec<_>>()).collect()
    }

    /// Returns the bytes that the buffers of all connections hold. `max_buffer_bytes` of the stack
    /// ([`Builder::stack`]) limits them.
    pub fn buffered_bytes(&self) -> usize {
        self.shards.sum(|inner| inner.stack.memory())
    }

    /// Waits until all connections are closed, except those in TIME-WAIT. Call it with a time limit before
    /// the program ends, so that the last written data is delivered. Drop or shut down the streams first.
    pub async fn wait_idle(&self) {
        self.wait_while(|inner| !inner.is_idle() && inner.check_driver().is_ok()).await;
    }

    async fn wait_while(&self, is_busy: impl Fn(&Inner) -> bool) {
        let poll = |cx: &mut Context<'_>, waiter| {
            let mut all = Poll::Ready(());
            for shared in self.shards.iter() {
                let mut inner = shared.lock();
                if is_busy(&inner) {
                    inner.add_idle(waiter, cx);
                    all = Poll::Pending;
                }
            }
            all
        };
        let leave = |waiter| self.shards.iter().for_each(|shared| shared.lock().remove_idle(waiter));
        wait(poll, leave).await;
    }

    /// Returns the number of stacks of this host: one for each queue of its device.
    pub fn stacks(&self) -> usize {
        self.shards.count()
    }

    pub(crate) fn shards(&self) -> &Shards {
        &self.shards
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("stacks", &self.stacks()).finish_non_exhaustive()
    }
}

impl Clone for Endpoint {
    fn clone(&self) -> Endpoint {
        self.shards.iter().for_each(|shared| shared.lock().add_handle());
        Endpoint { shards: self.shards.clone(), tcp: self.tcp.clone(), device_mtu: self.device_mtu }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.shards.iter().for_each(|shared| shared.act(Inner::drop_handle));
    }
}

/// Builder of an [`Endpoint`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use brisk_runtime::device::memory::MemoryDevice;
/// use brisk_runtime::{CongestionAlgorithm, Cores, Endpoint, TcpConfig};
///
/// // A device with two queues has two stacks, here on two cores.
/// let ((first, _far), (second, _end)) = (MemoryDevice::pair(), MemoryDevice::pair());
/// let cores = Cores::start(2.try_into()?)?;
/// let mut tcp = TcpConfig::default();
/// tcp.congestion = CongestionAlgorithm::Bbr;
/// let builder = Endpoint::builder(Box::new(first)).queue(Box::new(second)).cores(&cores);
/// assert_eq!(builder.stacks(), 2);
/// let endpoint = builder.any_address().tcp(tcp).seed(7).trace(|_, _, event| println!("{event:?}")).build()?;
/// assert_eq!(endpoint.stacks(), 2);
/// # Ok(())
/// # }
/// ```
pub struct Builder {
    /// At least one.
    queues: Vec<Box<dyn Device>>,
    cores: Vec<Handle>,
    stack: StackConfig,
    tcp: TcpConfig,
    seed: Option<Seed>,
    observers: Observers,
}

impl Builder {
    /// Begins to build an endpoint on one queue or more.
    pub(crate) fn on_queues(queues: Vec<Box<dyn Device>>) -> Builder {
        let mtu = queues.first().map_or(u16::MAX, |device| mtu_of(&**device));
        let stack = StackConfig { mtu, ..StackConfig::default() };
        Builder {
            queues,
            cores: Vec::new(),
            stack,
            tcp: TcpConfig::default(),
            seed: None,
            observers: Observers::default(),
        }
    }

    /// Returns the number of stacks of the endpoint: one for each queue.
    pub fn stacks(&self) -> usize {
        self.queues.len()
    }

    /// Adds a queue of the same device, which gets a stack of its own. Connections are spread over the stacks
    /// by their four-tuple. The stacks divide the limits on connections and bytes among themselves, including
    /// those of a listener. They exchange their facts about paths and servers.
    #[must_use]
    pub fn queue(mut self, queue: Box<dyn Device>) -> Builder {
        self.queues.push(queue);
        self
    }

    /// Distributes the stacks over these cores in turn. Default: all stacks run on the runtime in which
    /// [`build`](Builder::build) is called.
    #[must_use]
    pub fn cores(mut self, cores: &Cores) -> Builder {
        self.cores = cores.handles().to_vec();
        self
    }

    /// Adds an address of the host. Repeatable, IPv4 and IPv6.
    #[must_use]
    pub fn address(mut self, address: IpAddr) -> Builder {
        self.stack.addresses.push(address);
        self
    }

    /// Accepts packets to every destination address: for a device that receives all traffic of a tunnel or a
    /// namespace. To open a connection, the endpoint still needs a source address: one of
    /// [`address`](Builder::address), or any address with [`TcpSocket::bind`](crate::TcpSocket::bind).
    #[must_use]
    pub fn any_address(mut self) -> Builder {
        self.stack.any_address = true;
        self
    }

    /// Changes the configuration of the stack: its limits, caches, ports and timeouts. `change` receives the
    /// current configuration, with the addresses and the MTU of the device.
    ///
    /// [`build`](Builder::build) lowers `mtu` to the device's limit, and replaces `granularity`,
    /// `max_super_segment` and `sends_twice` by values for the device. It sets `lifecycle` and `observe`
    /// according to the observers. Several stacks divide the limits among them.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # use std::time::Duration;
    /// # let (device, _other) = brisk_runtime::device::memory::MemoryDevice::pair();
    /// let endpoint = brisk_runtime::Endpoint::builder(Box::new(device))
    ///     .address("10.0.0.1".parse().unwrap())
    ///     .stack(|stack| {
    ///         stack.max_connections = 1_000;
    ///         stack.max_buffer_bytes = 64 << 20;
    ///         stack.mtu = 1_400;
    ///     })
    ///     .build()?;
    /// # drop(endpoint); Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn stack(mut self, change: impl FnOnce(&mut StackConfig)) -> Builder {
        change(&mut self.stack);
        self
    }

    /// Sets the seed of sequence numbers, ports and keys: a number, for reproducible tests and simulations,
    /// or 32 bytes of entropy. Default: the randomness of the operating system.
    #[must_use]
    pub fn seed(mut self, seed: impl Into<Seed>) -> Builder {
        self.seed = Some(seed.into());
        self
    }

    /// Sets the default settings of connections.
    #[must_use]
    pub fn tcp(mut self, tcp: TcpConfig) -> Builder {
        self.tcp = tcp;
        self
    }

    /// Calls `observer` with each change in the life of a connection: established, closed with its cause,
    /// failed. It also reports connections that the program has dropped or never accepted. A second call
    /// replaces the observer. Without an observer this costs nothing.
    ///
    /// The driver of the stack calls the observer outside the lock of the stack, in the order of the changes.
    /// The observer may use the endpoint. It must return soon, because all connections of the stack wait for
    /// it. Calls for one stack follow one another; those for several stacks ([`queue`](Builder::queue)) may
    /// come at the same time, from several threads. The driver reports a change in its next round. So the
    /// observer learns of it after the call that causes it, and maybe after a task has noticed it. If the
    /// driver ends because the device fails or the tokio runtime is shut down, the end of open connections is
    /// not reported. If the observer panics, the driver ends.
    ///
    /// A clone of the endpoint in the observer keeps the endpoint alive.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> std::io::Result<()> {
    /// use brisk_runtime::memory::{self, LinkSpec};
    /// use brisk_runtime::{CloseReason, Lifecycle, LifecycleEvent};
    ///
    /// let (client, _server) = memory::builders(&LinkSpec::default(), 1);
    /// let (to_log, log) = std::sync::mpsc::channel();
    /// let observer = move |event: &LifecycleEvent| to_log.send((event.ends.remote, event.change)).unwrap();
    /// let client = client.observe(observer).build()?;
    /// # let _server = _server.build()?;
    /// let nobody_listens = "10.0.0.2:80".parse().unwrap();
    /// client.connect(nobody_listens).await.unwrap_err();
    /// assert_eq!(log.recv().unwrap(), (nobody_listens, Lifecycle::Failed(CloseReason::Refused)));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn observe(mut self, observer: impl Fn(&LifecycleEvent) + Send + Sync + 'static) -> Builder {
        self.observers.lifecycle = Some(Arc::new(observer));
        self
    }

    /// Calls `observer` with each [`Observation`]: events inside a connection and their reasons, for a trace.
    /// The rules of [`observe`](Builder::observe) apply. Recording costs time and memory for each segment;
    /// events that the driver cannot deliver in time are dropped and counted
    /// ([`StackStats::observations_dropped`](brisk_tcp::stack::StackStats::observations_dropped)).
    #[must_use]
    pub fn trace(
        mut self,
        observer: impl Fn(ConnId, brisk_tcp::time::Instant, &Observation) + Send + Sync + 'static,
    ) -> Builder {
        self.observers.observations = Some(Arc::new(observer));
        self
    }

    /// Starts the endpoint; its driver runs as a task of the current tokio runtime.
    ///
    /// # Errors
    /// `InvalidInput` for a setting out of its range; failure of the operating system's randomness.
    ///
    /// # Panics
    /// Outside a tokio runtime with time and I/O enabled, as tokio itself does.
    pub fn build(mut self) -> io::Result<Endpoint> {
        self.tcp.validate().map_err(error::config)?;
        self.fit_to_device();
        #[cfg(feature = "tracing")]
        {
            self.observers.lifecycle = Some(crate::log::observer(self.observers.lifecycle.take()));
        }
        self.stack.lifecycle = self.observers.lifecycle.is_some();
        self.stack.observe = self.observers.observations.is_some();
        let seed = self.seed.map_or_else(os_entropy, Ok)?;
        let several = self.queues.len() > 1;
        let peers_move = self.queues.first().is_some_and(|device| device.capabilities().peers_move);
        let steering = several.then(|| {
            let steering = Steering::new(self.queues.len(), steering_key(&seed));
            if peers_move { steering.by_ports() } else { steering }
        });
        let queues = match steering {
            Some(steering) => {
                let boxed = |queue| Box::new(queue) as Box<dyn Device>;
                SteeredDevice::over(self.queues, steering).into_iter().map(boxed).collect()
            }
            None => self.queues,
        };
        let device_mtu = queues.first().map_or(u16::MAX, |queue| mtu_of(&**queue));
        let clock = Clock::start();
        let stacks = stacks(self.stack, &seed, steering, clock)?;
        let exchanges = if several { Exchange::between(queues.len()) } else { Vec::new() };
        let mut exchanges = exchanges.into_iter();
        let all: Vec<Arc<Shared>> =
            stacks.into_iter().map(|stack| Arc::new(Shared::new(stack, clock, exchanges.next()))).collect();
        for (own, shared) in all.iter().enumerate() {
            let others = all.iter().enumerate().filter(|(index, _)| *index != own);
            shared.set_siblings(others.map(|(_, other)| Arc::downgrade(other)).collect());
            shared.lock().add_handle();
        }
        let current = Handle::current();
        for (index, (shared, queue)) in all.iter().zip(queues).enumerate() {
            let core = self.cores.get(index % self.cores.len().max(1)).unwrap_or(&current);
            let _entered = core.enter();
            core.spawn(Driver::new(shared.clone(), queue, self.observers.clone()));
        }
        Ok(Endpoint { shards: Arc::new(Shards::new(all, steering)), tcp: Arc::new(self.tcp), device_mtu })
    }

    /// Adapts the stack's configuration to the device. All queues of a device have the same properties.
    fn fit_to_device(&mut self) {
        let Some(device) = self.queues.first() else { return };
        let capabilities = device.capabilities();
        self.stack.mtu = self.stack.mtu.min(mtu_of(&**device));
        self.stack.granularity = GRANULARITY;
        let longest = capabilities.max_super.min(MAX_SUPER_LEN).saturating_sub(MAX_HEADERS) as u32;
        self.stack.sends_twice = capabilities.twice;
        self.stack.max_super_segment = if capabilities.tso { longest } else { 0 };
    }
}

/// Returns the device's MTU, up to the largest that a stack can use.
fn mtu_of(device: &dyn Device) -> u16 {
    u16::try_from(device.mtu()).unwrap_or(u16::MAX)
}

/// Bytes reserved for headers in the longest super-packet: 40 of IPv6 and 60 of TCP, rounded up so that
/// 65,000 of 65,535 bytes are left.
const MAX_HEADERS: usize = 535;

/// Builds one stack, or one for each queue of `steering`.
fn stacks(
    config: StackConfig,
    seed: &Seed,
    steering: Option<Steering>,
    clock: Clock,
) -> io::Result<Vec<Stack>> {
    let count = steering.map_or(1, |steering| steering.queues());
    let mut config = if count > 1 { part_of(config, count) } else { config };
    let mut stacks = Vec::new();
    for index in 0..count {
        let seed = if index == 0 { seed.clone() } else { seed.derive(index as u64) };
        let mut stack = Stack::new(config.clone(), seed).map_err(error::config)?;
        // With a system clock before 1970, keys cannot be derived from the time.
        if let Ok(unix) = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH) {
            stack.set_unix_time(unix.as_secs(), clock.now());
        }
        if let Some(steering) = steering {
            stack.set_shard(move |tuple| steering.queue_of(tuple.local, tuple.remote) == index);
        }
        // All stacks must accept each other's cookies.
        config.fast_open.keys.get_or_insert_with(|| stack.fast_open_keys().clone());
        stacks.push(stack);
    }
    Ok(stacks)
}

/// Returns the limits of one of `count` stacks: those of `config`, divided and rounded up.
fn part_of(config: StackConfig, count: usize) -> StackConfig {
    let max_pending_bytes = config.fast_open.max_pending_bytes.div_ceil(count);
    StackConfig {
        max_connections: config.max_connections.div_ceil(count),
        max_buffer_bytes: config.max_buffer_bytes.div_ceil(count),
        fec_mem_total: config.fec_mem_total.div_ceil(count),
        warm_half_open: config.warm_half_open.div_ceil(count),
        fast_open: FastOpenConfig { max_pending_bytes, ..config.fast_open },
        ..config
    }
}

/// Returns the key of the hash that assigns connections to stacks.
fn steering_key(seed: &Seed) -> u64 {
    u64::from_le_bytes(seed.derive(0).to_bytes().as_chunks().0[0])
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("stack", &self.stack).field("tcp", &self.tcp).finish_non_exhaustive()
    }
}

fn os_entropy() -> io::Result<Seed> {
    let mut entropy = [0; 32];
    getrandom::fill(&mut entropy)
        .map_err(|error| io::Error::other(format!("the operating system gave no randomness: {error}")))?;
    Ok(entropy.into())
}

#[cfg(test)]
mod tests {
    use brisk_device::memory::MemoryDevice;

    use super::*;

    fn built(change: impl FnOnce(&mut StackConfig)) -> io::Result<StackConfig> {
        let (device, _) = MemoryDevice::pair();
        let endpoint = Endpoint::builder(Box::new(device)).stack(change).build()?;
        Ok(endpoint.shards().ask(|stack, _| stack.config().clone()))
    }

    #[tokio::test]
    async fn configuration_of_the_stack_is_kept_and_fitted_to_the_device() {
        let (device, _) = MemoryDevice::pair();
        let device_mtu = mtu_of(&device);
        let config = built(|stack| {
            assert_eq!(stack.mtu, device_mtu);
            (stack.max_connections, stack.warm_half_open, stack.fec_mem_total) = (7, 3, 5);
            (stack.mtu, stack.granularity, stack.max_super_segment) = (900, Duration::ZERO, 1);
        });
        let config = config.unwrap();
        assert_eq!((config.max_connections, config.warm_half_open, config.fec_mem_total), (7, 3, 5));
        assert_eq!((config.mtu, config.granularity), (900, GRANULARITY));
        assert_ne!(config.max_super_segment, 1);
        assert_eq!(built(|stack| stack.mtu = u16::MAX).unwrap().mtu, device_mtu);
        assert_eq!(built(|stack| stack.mtu = 500).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn every_stack_has_a_seed_of_its_own_from_the_whole_seed() {
        let stacks = |seed: [u8; 32]| {
            let config = StackConfig { addresses: vec![[10, 0, 0, 1].into()], ..StackConfig::default() };
            let steering = Steering::new(2, steering_key(&seed.into()));
            let mut stacks = stacks(config, &seed.into(), Some(steering), Clock::start()).unwrap();
            let connect = |stack: &mut Stack| {
                let mut packet = Vec::new();
                let remote = "10.0.0.2:80".parse().unwrap();
                stack.connect(remote, &ConnectConfig::default(), brisk_tcp::time::Instant::ZERO).unwrap();
                stack.poll_transmit(brisk_tcp::time::Instant::ZERO, &mut packet).unwrap();
                packet
            };
            stacks.iter_mut().map(connect).collect::<Vec<_>>()
        };
        let (first, mut changed) = ([0; 32], [0; 32]);
        changed[31] = 1;
        let [first, changed] = [stacks(first), stacks(changed)];
        assert!(first[0] != first[1] && changed[0] != changed[1]);
        assert!(first[0] != changed[0] && first[1] != changed[1]);
    }
}

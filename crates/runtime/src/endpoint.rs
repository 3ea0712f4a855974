//! [`Endpoint`]: a stack on a device, driven by a task of the tokio runtime.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::SystemTime;

use brisk_packet_io::{Counters, Device};
use brisk_tcp::config::FastOpenConfig;
use brisk_tcp::fast_open::{ImportError, KeySource};
use brisk_tcp::path::{PathFacts, PathMemoryConfig};
use brisk_tcp::stack::StackStats;
use brisk_tcp::{ConnectConfig, Stack, StackConfig, TcpConfig};

use crate::clock::{Clock, GRANULARITY};
use crate::connection::Connection;
use crate::driver::Driver;
use crate::error;
use crate::shared::Shared;
use crate::stream::TcpStream;
use crate::waiters::wait;

/// A TCP host of its own: addresses, connections and listeners on one device.
///
/// Clones are handles to the same host. When the last handle (endpoint, listener or stream) is dropped the driver
/// finishes what is still to be delivered and then closes the device, without waiting for the end of TIME-WAITs.
#[derive(Debug)]
pub struct Endpoint {
    shared: Arc<Shared>,
    addresses: Arc<[IpAddr]>,
    tcp: Arc<TcpConfig>,
}

impl Endpoint {
    /// Begins an endpoint on `device`.
    pub fn builder(device: Box<dyn Device>) -> Builder {
        Builder { device, stack: StackConfig::default(), tcp: TcpConfig::default(), seed: None, mtu: None }
    }

    /// Connects to `remote` with the endpoint's settings and waits for the handshake. Dropping the future gives up.
    ///
    /// # Errors
    /// `ConnectionRefused`, `TimedOut`, `HostUnreachable` from the other side; `AddrNotAvailable`, `AddrInUse`,
    /// `QuotaExceeded`, `InvalidInput` from this one. The text says why.
    pub async fn connect(&self, remote: SocketAddr) -> io::Result<TcpStream> {
        let config = ConnectConfig { tcp: TcpConfig::clone(&self.tcp), ..ConnectConfig::default() };
        self.connect_with(remote, &config).await
    }

    /// As [`connect`](Endpoint::connect), with settings of its own.
    ///
    /// # Errors
    /// As [`connect`](Endpoint::connect); `InvalidInput` for a setting out of its range.
    pub async fn connect_with(&self, remote: SocketAddr, config: &ConnectConfig) -> io::Result<TcpStream> {
        let (stream, _) = self.open(remote, &[], config)?;
        stream.connected().await?;
        Ok(stream)
    }

    /// Connects with `data` queued behind the SYN, so that it leaves as early as the handshake allows, and does not wait
    /// for the handshake: reading and writing do, and fail if it fails. Answers how many bytes of `data` were taken.
    ///
    /// If `config` asks for Fast Open and there is a cookie of the server, the data leaves with the SYN. The network can
    /// then deliver it to the server's application **more than once**, in a connection each: ask for it only if a
    /// repeated request does no harm. [`TcpStream::stats`] says what became of it.
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
        config.tcp.validate().map_err(error::config)?;
        let (connection, taken) = Connection::open(&self.shared, remote, data, config)?;
        Ok((TcpStream::new(connection), taken))
    }

    /// Installs the Fast Open keys of all listeners that have none of their own.
    pub fn set_fast_open_keys(&self, keys: KeySource) {
        self.shared.lock().stack.set_fast_open_keys(keys);
    }

    /// Forgets the Fast Open cookies and failures of a partition, or of all: to be called when the network changes.
    pub fn flush_fast_open_cache(&self, partition: Option<u64>) {
        self.shared.lock().stack.flush_fast_open_cache(partition);
    }

    /// The Fast Open cookies and failures as text for a file. Whoever reads it can pretend to come back: let nobody else.
    pub fn export_fast_open_cache(&self) -> String {
        let now = self.shared.clock.now();
        self.shared.lock().stack.export_fast_open_cache(now)
    }

    /// Takes in what [`export_fast_open_cache`](Endpoint::export_fast_open_cache) wrote.
    ///
    /// # Errors
    /// What is wrong with the text; nothing of it was taken then.
    pub fn import_fast_open_cache(&self, text: &str) -> Result<(), ImportError> {
        let now = self.shared.clock.now();
        self.shared.lock().stack.import_fast_open_cache(text, now)
    }

    /// What is known of the path between these addresses.
    pub fn path(&self, local: IpAddr, remote: IpAddr) -> PathFacts {
        let now = self.shared.clock.now();
        self.shared.lock().stack.path(local, remote, now)
    }

    /// Forgets every path: to be called when the network changes.
    pub fn flush_paths(&self) {
        self.shared.lock().stack.flush_paths();
    }

    /// What is known of paths as text for a file.
    pub fn export_paths(&self) -> String {
        let now = self.shared.clock.now();
        self.shared.lock().stack.export_paths(now)
    }

    /// Takes in what [`export_paths`](Endpoint::export_paths) wrote; the text may hold more than that.
    ///
    /// # Errors
    /// What is wrong with the text; nothing of it was taken then.
    pub fn import_paths(&self, text: &str) -> Result<(), ImportError> {
        let now = self.shared.clock.now();
        self.shared.lock().stack.import_paths(text, now)
    }

    /// The addresses of this host. Empty if it answers to every address.
    pub fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// The settings of connections that ask for no others.
    pub fn tcp_config(&self) -> &TcpConfig {
        &self.tcp
    }

    /// Counters over all connections since the endpoint was built.
    pub fn stats(&self) -> StackStats {
        *self.shared.lock().stack.stats()
    }

    /// What went through the device, and what did not. As of the last time that anything happened.
    pub fn device_counters(&self) -> Counters {
        self.shared.lock().device
    }

    /// Connections that exist now, half-open ones and TIME-WAIT included.
    pub fn connections(&self) -> usize {
        self.shared.lock().stack.connections()
    }

    /// Waits until nothing is left to be delivered: no connection but those in TIME-WAIT. Put a time limit around it
    /// before a program ends, so that what it wrote last still leaves.
    pub async fn wait_idle(&self) {
        let poll = |cx: &mut Context<'_>, waiter| {
            let mut inner = self.shared.lock();
            if inner.is_idle() || inner.check_driver().is_err() {
                return Poll::Ready(());
            }
            inner.idle().add(waiter, cx);
            Poll::Pending
        };
        wait(poll, |waiter| self.shared.lock().idle().remove(waiter)).await;
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Clone for Endpoint {
    fn clone(&self) -> Endpoint {
        self.shared.lock().add_handle();
        Endpoint { shared: self.shared.clone(), addresses: self.addresses.clone(), tcp: self.tcp.clone() }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.shared.act(|inner| inner.drop_handle());
    }
}

/// An [`Endpoint`] in the making.
pub struct Builder {
    device: Box<dyn Device>,
    stack: StackConfig,
    tcp: TcpConfig,
    seed: Option<u64>,
    mtu: Option<u16>,
}

impl Builder {
    /// Adds an address of the host. Repeatable, IPv4 and IPv6.
    #[must_use]
    pub fn address(mut self, address: IpAddr) -> Builder {
        self.stack.addresses.push(address);
        self
    }

    /// Answers to every destination address: for a device that catches all traffic of a namespace.
    #[must_use]
    pub fn any_address(mut self) -> Builder {
        self.stack.any_address = true;
        self
    }

    /// Lowers the largest IP packet below what the device takes. 576 to 65535 bytes.
    #[must_use]
    pub fn mtu(mut self, mtu: u16) -> Builder {
        self.mtu = Some(mtu);
        self
    }

    /// Ports that connections opened by this host come from, where the device has only some. Default 32768 to 60999.
    #[must_use]
    pub fn ephemeral_ports(mut self, ports: std::ops::RangeInclusive<u16>) -> Builder {
        self.stack.ephemeral_ports = ports;
        self
    }

    /// Makes sequence numbers, ports and keys reproducible, for tests and simulations. Without it they come from the
    /// randomness of the operating system.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Builder {
        self.seed = Some(seed);
        self
    }

    /// Settings of connections that ask for no others.
    #[must_use]
    pub fn tcp(mut self, tcp: TcpConfig) -> Builder {
        self.tcp = tcp;
        self
    }

    /// Most connections at one time, TIME-WAIT included.
    #[must_use]
    pub fn max_connections(mut self, most: usize) -> Builder {
        self.stack.max_connections = most;
        self
    }

    /// Bytes that all buffers together may hold.
    #[must_use]
    pub fn max_buffer_bytes(mut self, most: usize) -> Builder {
        self.stack.max_buffer_bytes = most;
        self
    }

    /// What is remembered of paths from one connection to the next.
    pub fn paths(mut self, paths: PathMemoryConfig) -> Builder {
        self.stack.path = paths;
        self
    }

    /// What Fast Open remembers and how much may be pending. Connections and listeners ask for it themselves.
    #[must_use]
    pub fn fast_open(mut self, fast_open: FastOpenConfig) -> Builder {
        self.stack.fast_open = fast_open;
        self
    }

    /// How long TIME-WAIT lasts: twice this. 1 s to 120 s.
    #[must_use]
    pub fn msl(mut self, msl: std::time::Duration) -> Builder {
        self.stack.msl = msl;
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
        let capabilities = self.device.capabilities();
        let device_mtu = u16::try_from(self.device.mtu()).unwrap_or(u16::MAX);
        self.stack.mtu = self.mtu.map_or(device_mtu, |mtu| mtu.min(device_mtu));
        self.stack.granularity = GRANULARITY;
        // Longest headers: 40 bytes of IPv6, 60 of TCP.
        let longest = u32::try_from(capabilities.max_super.saturating_sub(100)).unwrap_or(u32::MAX);
        self.stack.max_super_segment = if capabilities.tso { longest.min(65_000) } else { 0 };
        let seed = self.seed.map_or_else(os_entropy, Ok)?;
        let addresses = self.stack.addresses.as_slice().into();
        let mut stack = Stack::new(self.stack, seed).map_err(error::config)?;
        let clock = Clock::start();
        // Before 1970 there were no derived keys.
        if let Ok(unix) = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH) {
            stack.set_unix_time(unix.as_secs(), clock.now());
        }
        let shared = Arc::new(Shared::new(stack, clock));
        shared.lock().add_handle();
        tokio::spawn(Driver::new(shared.clone(), self.device));
        Ok(Endpoint { shared, addresses, tcp: Arc::new(self.tcp) })
    }
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder").field("stack", &self.stack).field("tcp", &self.tcp).finish_non_exhaustive()
    }
}

fn os_entropy() -> io::Result<u64> {
    let mut seed = [0; 8];
    let filled = rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| io::Error::other(format!("the operating system gave no randomness: {error}")))?;
    if filled < seed.len() {
        return Err(io::Error::other("the operating system gave too little randomness"));
    }
    Ok(u64::from_ne_bytes(seed))
}

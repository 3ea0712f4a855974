//! Linux's socket calls on top of brisk's stack, in real time, on a device. Programs that control a device
//! under test use it.
//!
//! The calls are the same as for packetdrill, so both test the same sockets. A call that must wait blocks its
//! thread; other threads continue.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use brisk_packet_io::Device;

use crate::calls::{self, SendOptions};
use crate::errno::Errno;
use crate::flags::SoFlags;
use crate::host::{Host, OnDevice};
use crate::world::real_time::{Caller, GRANULARITY, RealWorld};

/// The result of a call: a value, or Linux's error number.
pub type Answer<T> = Result<T, Errno>;

/// A stack on a device, and its sockets.
#[derive(Clone, Debug)]
pub struct Sockets {
    caller: Caller,
}

/// Ends the calls of one [`Sockets`] when it is dropped: blocked calls return `EINTR`.
#[derive(Debug)]
pub struct HangUp {
    caller: Caller,
}

/// A descriptor with the events that poll() requests or returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PollEntry {
    /// The descriptor.
    pub fd: i32,
    /// Requested events (`POLLIN` and others); in a result, the ready events.
    pub events: i16,
}

impl Sockets {
    /// Starts a stack with the addresses `own` on `device`. `flags` are `key=value` pairs as in `--so_flags`;
    /// the other settings come from the network namespace. `seed` determines sequence numbers and keys: take
    /// it from the system's random numbers. Returns the sockets and the future that moves packets. The caller
    /// must poll this future; it ends with the error of the device.
    ///
    /// # Errors
    /// One line about a flag that is not valid.
    pub fn start(
        device: Box<dyn Device>,
        own: Vec<IpAddr>,
        flags: &str,
        seed: [u8; 32],
    ) -> Result<(Sockets, impl Future<Output = std::io::Error> + Send + use<>), String> {
        let mtu = u16::try_from(device.mtu()).unwrap_or(u16::MAX);
        let flags = SoFlags::parse(flags)?;
        let on_device = OnDevice { addresses: own, mtu, granularity: GRANULARITY, seed: seed.into() };
        let mut host = Host::on_device(flags, on_device);
        host.refresh().map_err(|_| "the settings contradict each other".to_owned())?;
        let world = Arc::new(RealWorld::new(host));
        let caller = Caller { world: Arc::clone(&world), gone: Arc::default() };
        Ok((Sockets { caller }, async move { world.drive(device).await }))
    }

    /// Returns the same sockets for another caller, and the handle that ends its calls.
    pub fn for_caller(&self) -> (Sockets, HangUp) {
        let caller = Caller { world: Arc::clone(&self.caller.world), gone: Arc::new(AtomicBool::new(false)) };
        (Sockets { caller: caller.clone() }, HangUp { caller })
    }

    /// socket(2): `AF_INET` or `AF_INET6`, `SOCK_STREAM`.
    pub fn socket(&self, domain: i32, kind: i32, protocol: i32) -> Answer<i32> {
        calls::socket(&self.caller, domain, kind, protocol)
    }

    /// bind(2).
    pub fn bind(&self, fd: i32, addr: SocketAddr) -> Answer<()> {
        calls::bind(&self.caller, fd, addr)
    }

    /// listen(2).
    pub fn listen(&self, fd: i32, backlog: i32) -> Answer<()> {
        calls::listen(&self.caller, fd, backlog)
    }

    /// accept(2): returns the new descriptor and the peer's address.
    pub fn accept(&self, fd: i32) -> Answer<(i32, SocketAddr)> {
        calls::accept(&self.caller, fd)
    }

    /// connect(2).
    pub fn connect(&self, fd: i32, remote: SocketAddr) -> Answer<()> {
        calls::connect(&self.caller, fd, remote)
    }

    /// getsockname(2).
    pub fn getsockname(&self, fd: i32) -> Answer<SocketAddr> {
        calls::getsockname(&self.caller, fd)
    }

    /// recv(2): returns at most `len` bytes.
    pub fn recv(&self, fd: i32, len: usize, flags: i32) -> Answer<Vec<u8>> {
        calls::receive(&self.caller, fd, len, flags).map(|received| received.bytes)
    }

    /// send(2), and sendto(2) with `to`: returns the number of bytes that were taken.
    pub fn send(&self, fd: i32, data: &[u8], flags: i32, to: Option<SocketAddr>) -> Answer<usize> {
        calls::send(&self.caller, fd, data, SendOptions { flags, to, stamping: None })
    }

    /// poll(2): waits and returns the entries that have events.
    pub fn poll(&self, entries: &[PollEntry], timeout_ms: i32) -> Answer<Vec<PollEntry>> {
        let mut asked: Vec<libc::pollfd> = entries
            .iter()
            .map(|entry| libc::pollfd { fd: entry.fd, events: entry.events, revents: 0 })
            .collect();
        // Descriptors of the kernel are not valid in this call.
        let foreign = &mut |entry: &mut libc::pollfd| entry.revents = libc::POLLNVAL;
        calls::poll(&self.caller, &mut asked, timeout_ms, foreign)?;
        let ready = asked.iter().filter(|entry| entry.revents != 0);
        Ok(ready.map(|entry| PollEntry { fd: entry.fd, events: entry.revents }).collect())
    }

    /// Sets or clears `O_NONBLOCK` (fcntl(2)).
    pub fn set_nonblocking(&self, fd: i32, nonblocking: bool) -> Answer<()> {
        calls::set_nonblocking(&self.caller, fd, nonblocking)
    }

    /// setsockopt(2).
    pub fn setsockopt(&self, fd: i32, level: i32, name: i32, value: &[u8]) -> Answer<()> {
        calls::setsockopt(&self.caller, fd, level, name, value)
    }

    /// getsockopt(2): returns at most `len` bytes.
    pub fn getsockopt(&self, fd: i32, level: i32, name: i32, len: usize) -> Answer<Vec<u8>> {
        calls::getsockopt(&self.caller, fd, level, name, len)
    }

    /// shutdown(2).
    pub fn shutdown(&self, fd: i32, how: i32) -> Answer<()> {
        calls::shutdown(&self.caller, fd, how)
    }

    /// close(2).
    pub fn close(&self, fd: i32) -> Answer<()> {
        calls::close(&self.caller, fd)
    }
}

impl Drop for HangUp {
    fn drop(&mut self) {
        self.caller.gone.store(true, Ordering::Relaxed);
        self.caller.world.wake_callers();
    }
}

//! Opening: bind, listen, accept, connect, and Fast Open on both sides.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use crate::settings::{Settings, linux_syn_retries};
use brisk_tcp::config::ConnectConfig;
use brisk_tcp::fast_open::{ClientCookie, FastOpenConnect};
use brisk_tcp::{ConnId, ListenConfig, Stack};
use brisk_wire::Instant;

use super::{Family, Role, Socket, is_any_v6, plain};
use crate::errno::{Answer, Errno};

/// Maximum backlog and half-open limit of a listener in Linux (somaxconn).
pub(crate) const MAX_WAITING: i32 = 4096;

impl Socket {
    pub(crate) fn bind(&mut self, addr: SocketAddr) -> Answer<()> {
        if self.over && !self.bound {
            self.become_fresh();
        }
        if self.local.is_some() || self.role != Role::Fresh {
            return Err(Errno(libc::EINVAL));
        }
        if self.family == Family::V4 && addr.is_ipv6() {
            return Err(Errno(libc::EAFNOSUPPORT));
        }
        self.local = Some(addr);
        self.bound = true;
        Ok(())
    }

    /// Listens. Another call changes the backlog.
    pub(crate) fn listen(
        &mut self,
        backlog: i32,
        stack: &mut Stack,
        settings: &Settings,
        now: Instant,
    ) -> Answer<()> {
        if matches!(self.role, Role::Connection(_)) {
            return Err(Errno(libc::EINVAL));
        }
        // As in Linux, one more connection than the backlog may wait. A negative number requests the maximum.
        self.backlog = (backlog as u32).min(MAX_WAITING as u32) as usize + 1;
        self.open_listeners(stack, settings, now)
    }

    /// Reopens the listener if its options or the system's settings have changed, so that its next
    /// connections use them.
    pub(crate) fn renew_listeners(&mut self, stack: &mut Stack, settings: &Settings, now: Instant) {
        if !matches!(self.role, Role::Listening(_)) {
            return;
        }
        self.follow_settings(settings);
        let changed = self.listens_with.as_ref() != Some(&self.listen_config(settings));
        // Reopening would reset connections that wait or are half open.
        if changed && self.waiting == 0 && stack.half_open() == 0 {
            let _ = self.open_listeners(stack, settings, now);
        }
    }

    fn open_listeners(&mut self, stack: &mut Stack, settings: &Settings, now: Instant) -> Answer<()> {
        if let Role::Listening(ids) = &self.role {
            for id in ids {
                stack.close_listener(*id, now);
            }
            self.role = Role::Fresh;
        }
        let any = match self.family {
            Family::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            Family::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let local = self.local.unwrap_or(SocketAddr::new(any, 0));
        let config = self.listen_config(settings);
        self.listens_with = Some(config.clone());
        let first = stack.listen(plain(local), config.clone())?;
        let mut ids = vec![first];
        let port = stack.listener_addr(first).map_or(local.port(), |addr| addr.port());
        self.local = Some(SocketAddr::new(local.ip(), port));
        if is_any_v6(local) && !self.options.v6_only {
            let both = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port);
            match stack.listen(both, config) {
                Ok(second) => ids.push(second),
                Err(error) => {
                    stack.close_listener(first, now);
                    return Err(error.into());
                }
            }
        }
        self.role = Role::Listening(ids);
        Ok(())
    }

    fn listen_config(&self, settings: &Settings) -> ListenConfig {
        let (tcp, backlog) = (self.tcp.clone(), self.backlog);
        let mut config = ListenConfig { tcp, backlog, ..settings.listen.clone() };
        config.defer_accept = self.options.defer_accept;
        let asked = settings.fast_open_all_listeners || self.options.fast_open_queue.is_some();
        if asked && settings.fast_open_server_allowed {
            let mut fast_open = settings.fast_open_listen.clone();
            if settings.like_linux {
                // Linux has no limit per client.
                fast_open.max_per_ip = u16::MAX;
            }
            if let Some(queue) = self.options.fast_open_queue {
                fast_open.max_pending = queue;
            }
            if let Some(keys) = &self.options.fast_open_keys {
                fast_open.keys = Some(keys.clone());
            }
            fast_open.require_cookie &= !self.options.fast_open_no_cookie;
            config.fast_open = Some(fast_open);
        }
        config
    }

    /// Returns the oldest connection that waits.
    pub(crate) fn accept(&mut self, stack: &mut Stack) -> Answer<Option<(ConnId, SocketAddr)>> {
        let Role::Listening(ids) = &self.role else { return Err(Errno(libc::EINVAL)) };
        for id in ids {
            if let Some((conn, remote)) = stack.accept(*id) {
                return Ok(Some((conn, self.as_seen(remote))));
            }
        }
        Ok(None)
    }

    /// Makes the first connect(): the SYN leaves, or waits for the first write. `None` means that the
    /// handshake is in progress.
    pub(crate) fn connect(
        &mut self,
        remote: SocketAddr,
        stack: &mut Stack,
        settings: &Settings,
        now: Instant,
    ) -> Answer<Option<()>> {
        match &self.role {
            Role::Fresh => {}
            Role::Listening(_) => return Err(Errno(libc::EISCONN)),
            Role::Connection(_) if self.is_forgotten() => self.restart(stack, now)?,
            Role::Connection(_) => return self.connect_again(),
        }
        let id = self.open(remote, self.options.fast_open_connect, stack, settings, now)?;
        if stack.conn_info(id).is_some_and(|info| info.syn_room.is_some()) {
            self.deferred = true;
            return Ok(Some(()));
        }
        stack.send_deferred_syn(id, now);
        self.connecting = true;
        Ok(None)
    }

    /// True after a failed attempt to connect: as in Linux, the program may try again on the same socket.
    fn is_forgotten(&self) -> bool {
        self.over && !self.connected
    }

    /// Makes the socket fresh. Returns the error of the failed attempt if it was not reported.
    pub(crate) fn restart(&mut self, stack: &mut Stack, now: Instant) -> Answer<()> {
        let reported = self.take_error();
        self.disconnect(stack, now);
        self.error = None;
        reported
    }

    fn connect_again(&mut self) -> Answer<Option<()>> {
        if self.connecting && self.connected {
            self.connecting = false;
            return Ok(Some(()));
        }
        Err(Errno(match self.connected || self.deferred {
            true => libc::EISCONN,
            false if self.over => libc::ECONNABORTED,
            false => libc::EALREADY,
        }))
    }

    /// Returns the result of the handshake that connect() began, once it has ended.
    pub(crate) fn connect_outcome(&mut self) -> Answer<Option<()>> {
        self.take_error()?;
        if self.over && !self.connected {
            return Err(Errno(libc::ECONNABORTED));
        }
        if self.connected {
            self.connecting = false;
        }
        Ok(self.connected.then_some(()))
    }

    /// Opens a connection with data: sendto(MSG_FASTOPEN) on a fresh socket, or the first write after a
    /// deferred connect(). Returns the number of bytes that the SYN carries, if any.
    pub(crate) fn connect_with_data(
        &mut self,
        remote: Option<SocketAddr>,
        data: &[u8],
        stack: &mut Stack,
        settings: &Settings,
        now: Instant,
    ) -> Answer<usize> {
        if !settings.fast_open_client_allowed {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        match &self.role {
            Role::Fresh => {}
            Role::Connection(id) if self.deferred => {
                let id = *id;
                self.connecting = true;
                let mut taken = self.send_syn_with(data, stack, now)?;
                if self.options.queues_in_handshake {
                    let queued = stack.write(id, data.get(taken..).unwrap_or(&[]), now).unwrap_or(0);
                    self.written += queued as u64;
                    taken += queued;
                }
                return Ok(taken);
            }
            Role::Connection(_) if self.is_forgotten() => self.restart(stack, now)?,
            // The handshake of an earlier connect() is complete, so the data follows it.
            Role::Connection(_) if self.connected && self.connecting => {
                self.connecting = false;
                return Ok(0);
            }
            Role::Connection(_) if self.connected => return Err(Errno(libc::EISCONN)),
            Role::Connection(_) => return Err(Errno(libc::EALREADY)),
            Role::Listening(_) => return Err(Errno(libc::EISCONN)),
        }
        let remote = remote.ok_or(Errno(libc::EDESTADDRREQ))?;
        if !settings.like_linux {
            let config = self.connect_config(plain(remote), true, settings);
            let (id, taken) = stack.connect_with_data(plain(remote), data, &config, now)?;
            self.become_connection(id);
            self.connecting = true;
            self.written = taken as u64;
            return Ok(taken);
        }
        self.open(remote, true, stack, settings, now)?;
        self.connecting = true;
        self.send_syn_with(data, stack, now)
    }

    /// Sends a waiting SYN, with as much of `data` as it can carry.
    pub(crate) fn send_syn_with(&mut self, data: &[u8], stack: &mut Stack, now: Instant) -> Answer<usize> {
        let id = self.conn().ok_or(Errno(libc::ENOTCONN))?;
        self.deferred = false;
        let space = stack.conn_info(id).and_then(|info| info.syn_room).unwrap_or(0) as usize;
        let fits = data.get(..space).unwrap_or(data);
        let taken = if fits.is_empty() { 0 } else { stack.write(id, fits, now).unwrap_or(0) };
        stack.send_deferred_syn(id, now);
        self.written += taken as u64;
        Ok(taken)
    }

    fn open(
        &mut self,
        remote: SocketAddr,
        fast: bool,
        stack: &mut Stack,
        settings: &Settings,
        now: Instant,
    ) -> Answer<ConnId> {
        let id = stack.connect(plain(remote), &self.connect_config(plain(remote), fast, settings), now)?;
        self.become_connection(id);
        Ok(id)
    }

    fn become_connection(&mut self, id: ConnId) {
        self.role = Role::Connection(id);
        self.active = true;
        self.error = None;
    }

    /// Returns the configuration of an active open to `remote`; `fast` if the call itself requests Fast Open.
    fn connect_config(&self, remote: SocketAddr, fast: bool, settings: &Settings) -> ConnectConfig {
        let local =
            self.local.map(plain).filter(|local| local.is_ipv4() == remote.is_ipv4() || local.port() != 0);
        let local = local.map(|local| match (local.ip().is_unspecified(), remote.is_ipv4()) {
            (true, true) => SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), local.port()),
            (true, false) | (false, _) => local,
        });
        let asked = (fast || settings.fast_open_always) && settings.fast_open_client_allowed;
        let mut tcp = self.tcp.clone();
        tcp.syn_retries = linux_syn_retries(tcp.syn_retries, tcp.syn_linear_retries);
        let fast_open = asked.then(|| self.fast_open_connect(settings));
        ConnectConfig { tcp, local, fast_open, ..ConnectConfig::default() }
    }

    fn fast_open_connect(&self, settings: &Settings) -> FastOpenConnect {
        let asked = settings.fast_open_connect;
        let cookie = if self.options.fast_open_no_cookie { ClientCookie::None } else { asked.cookie };
        if !settings.like_linux {
            return FastOpenConnect { defer: self.options.fast_open_connect, cookie, ..asked };
        }
        // Linux waits a second for the answer to a SYN with data, independently of its path memory.
        FastOpenConnect {
            defer: true,
            syn_rto_floor: Duration::from_secs(1),
            cookie,
            assume_mtu: true,
            ..asked
        }
    }
}

//! Brisk's stack in virtual time as the target of a script.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use brisk_sockets::calls::{self, SendOptions};
use brisk_sockets::{Answer, VirtualWorld};
use brisk_tcp::connection::State;

use super::backend::{Backend, Sent};
use super::request::{Reply, Request, Slot, System};
use super::{info, tcp_info};
use crate::settings::Settings;

/// Brisk's sockets.
struct OurSystem(VirtualWorld);

impl System for OurSystem {
    fn call(&self, request: Request) -> Answer<Reply> {
        let world = &self.0;
        let done = |()| Reply::default();
        match request {
            Request::Socket { domain, kind, protocol } => {
                calls::socket(world, domain, kind, protocol).map(Reply::of)
            }
            Request::Bind { fd, addr } => calls::bind(world, fd, addr).map(done),
            Request::Listen { fd, backlog } => calls::listen(world, fd, backlog).map(done),
            Request::Accept { fd, flags } => {
                let (accepted, remote) = calls::accept(world, fd)?;
                if flags & libc::SOCK_NONBLOCK != 0 {
                    calls::set_nonblocking(world, accepted, true)?;
                }
                Ok(Reply { addr: Some(remote), ..Reply::of(accepted) })
            }
            Request::Connect { fd, addr: Some(addr) } => calls::connect(world, fd, addr).map(done),
            Request::Connect { fd, addr: None } => calls::disconnect(world, fd).map(done),
            Request::Name { fd } => {
                calls::getsockname(world, fd).map(|addr| Reply { addr: Some(addr), ..Reply::default() })
            }
            Request::Receive { fd, len, flags } => {
                let received = calls::receive(world, fd, len, flags)?;
                let (control, flags) = (received.control, received.flags);
                Ok(Reply { bytes: received.bytes, control, flags, ..Reply::of(received.count as i64) })
            }
            Request::Send { fd, data, flags, to, control } => {
                let stamping = calls::stamping(&control)?;
                let taken = calls::send(world, fd, &data, SendOptions { flags, to, stamping })?;
                Ok(Reply::of(taken as i64))
            }
            Request::Shutdown { fd, how } => calls::shutdown(world, fd, how).map(done),
            Request::Close { fd } => calls::close(world, fd).map(done),
            Request::SetOption { fd, level, name, value } => {
                calls::setsockopt(world, fd, level, name, &value).map(done)
            }
            Request::GetOption { fd, level, name, capacity } => {
                let bytes = calls::getsockopt(world, fd, level, name, capacity)?;
                Ok(Reply { bytes, ..Reply::default() })
            }
            Request::Fcntl { fd, command, argument } => {
                calls::fcntl(world, fd, command, i64::from(argument)).map(Reply::of)
            }
            Request::Ioctl { fd, request } => calls::ioctl(world, fd, request).map(Reply::of),
            Request::Poll { entries, timeout } => poll(world, &entries, timeout),
            Request::EpollCreate { size } => calls::epoll_create(world, size).map(Reply::of),
            Request::EpollControl { epfd, fd, control } => {
                calls::epoll_ctl(world, epfd, fd, control).map(done)
            }
            Request::EpollWait { epfd, max, timeout } => {
                let events = calls::epoll_wait(world, epfd, max, timeout)?;
                Ok(Reply { value: events.len() as i64, events, ..Reply::default() })
            }
        }
    }

    fn returned(&self) {
        self.0.returned();
    }

    fn hang_up(&self) {
        self.0.hang_up();
    }
}

fn poll(world: &VirtualWorld, entries: &[(i32, i16)], timeout: i32) -> Answer<Reply> {
    let entry = |(fd, events): &(i32, i16)| libc::pollfd { fd: *fd, events: *events, revents: 0 };
    let mut asked: Vec<libc::pollfd> = entries.iter().map(entry).collect();
    let foreign = &mut |entry: &mut libc::pollfd| entry.revents = libc::POLLNVAL;
    let count = calls::poll(world, &mut asked, timeout, foreign)?;
    Ok(Reply { ready: asked.iter().map(|entry| entry.revents).collect(), ..Reply::of(count) })
}

/// See the [module](self).
pub(super) struct Virtual {
    system: Arc<OurSystem>,
    sent: VecDeque<Sent>,
}

impl Virtual {
    /// Returns the host with the settings of a script, or the error in them.
    pub(super) fn new(settings: &Settings) -> Result<Virtual, String> {
        let mut host = settings.host.clone();
        host.stack.addresses = vec![settings.local_ip];
        host.tcp.validate().map_err(|error| error.to_string())?;
        let world = VirtualWorld::given(host)
            .map_err(|_| "the settings of the stack contradict each other".to_owned())?;
        let system = Arc::new(OurSystem(world));
        Ok(Virtual { system, sent: VecDeque::new() })
    }

    fn world(&self) -> &VirtualWorld {
        &self.system.0
    }

    fn take_packets(&mut self) -> Result<(), String> {
        for (at, packet) in self.world().take_packets() {
            let sent = Sent::read(micros(at), &packet)
                .map_err(|what| format!("the stack sent a packet that is not a TCP segment: {what}"))?;
            self.sent.push_back(sent);
        }
        Ok(())
    }
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

/// Converts microseconds; negative times count as zero.
fn span(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

impl Backend for Virtual {
    fn system(&self) -> Arc<dyn System> {
        Arc::clone(&self.system) as Arc<dyn System>
    }

    fn now(&self) -> i64 {
        micros(self.world().elapsed())
    }

    fn start_of_day(&self) -> u64 {
        self.world().start_of_day()
    }

    fn step(&mut self, to: i64, inclusive: bool) -> Result<bool, String> {
        let stepped = self.world().step(span(to), inclusive)?;
        self.take_packets()?;
        Ok(stepped)
    }

    fn reach(&mut self, to: i64) {
        self.world().set_clock(span(to));
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        self.world().with_host(|host| host.sysctl(name, value))
    }

    fn arrive(&mut self, packet: &[u8]) -> Result<(), String> {
        self.world().arrive(packet)?;
        self.take_packets()
    }

    fn await_call(&mut self, slot: &Slot, _may_sleep: bool) -> Result<(), String> {
        self.world().await_caller(|| slot.is_filled());
        self.take_packets()
    }

    fn sent(&mut self) -> &mut VecDeque<Sent> {
        &mut self.sent
    }

    fn value(&self, name: &str, fd: Option<i32>) -> Option<i128> {
        if let Some(constant) = info::constant(name) {
            return Some(constant);
        }
        if let Some(counter) = name.strip_prefix("stack_") {
            return self.world().with_host(|host| info::stack_value(counter, host.stack_stats()?));
        }
        let (stats, bytes) = self.world().with_host(|host| host.connection(fd?))?;
        match name.strip_prefix("tcpi_") {
            // Linux reports only that the socket is closed.
            Some("state") if stats.state == State::TimeWait => info::constant("TCP_TIME_WAIT"),
            Some(field) => tcp_info::value(field, &bytes),
            None => info::own_value(name.strip_prefix("brisk_")?, &stats),
        }
    }
}

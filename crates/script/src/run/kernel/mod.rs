//! The kernel's TCP as the target of a script: real sockets in their own network namespace, a TUN device for
//! the packets, and real time.
//!
//! The thread that runs the script reads the packets; another thread makes the calls.

mod namespace;
mod system;

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant as RealInstant, SystemTime, UNIX_EPOCH};

use brisk_packet_io::sockopt;
use brisk_packet_io::tun::TunDevice;
use brisk_tcp::config::CongestionAlgorithm;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::backend::{Backend, Sent};
use super::request::{Slot, System};
use super::{info, tcp_info};
use crate::ast::{Action, Event, Moment, Script, Time};
use crate::settings::Settings;
use system::KernelSystem;

pub(crate) use namespace::{Refused, World};

/// Maximum time of one wait for the device: blocked calls are checked at this interval.
const SLICE: Duration = Duration::from_millis(1);
/// Maximum time of a call that must not block.
const CALL_LIMIT: Duration = Duration::from_secs(1);
/// Fields of TCP_INFO that are measured in real time.
const REAL_TIMES: &[&str] = &["rtt", "min_rtt"];
/// Permitted lateness of the machine, microseconds, in addition to the script's tolerance.
pub(crate) const LATENESS: i64 = 20_000;
/// Maximum duration of a script in real time; longer scripts are skipped.
const MAX_SECONDS: i64 = 40;

/// See the [module](self).
pub(super) struct Kernel {
    device: TunDevice,
    started: RealInstant,
    start_of_day: u64,
    sent: VecDeque<Sent>,
    system: Arc<KernelSystem>,
}

impl Kernel {
    pub(super) fn new(device: TunDevice, settings: &Settings) -> Kernel {
        let congestion = match &settings.host.tcp.congestion {
            CongestionAlgorithm::Reno => "reno",
            CongestionAlgorithm::Bbr => "bbr",
            _ => "cubic",
        };
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Kernel {
            device,
            started: RealInstant::now(),
            start_of_day: since_1970.as_micros() as u64,
            sent: VecDeque::new(),
            system: Arc::new(KernelSystem::new(congestion)),
        }
    }

    /// Reads all available packets; returns true if one of them was TCP.
    fn take_packets(&mut self) -> Result<bool, String> {
        let mut buffer = vec![0; 70_000];
        let mut any = false;
        loop {
            match self.device.recv(&mut buffer) {
                Ok(len) => any |= self.record(&buffer[..len]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(any),
                Err(error) => return Err(format!("the device fails: {error}")),
            }
        }
    }

    /// Records a TCP packet. Ignores others (neighbour discovery, multicast reports) and returns false.
    fn record(&mut self, packet: &[u8]) -> bool {
        let Ok(sent) = Sent::read(self.now(), packet) else { return false };
        self.sent.push_back(sent);
        true
    }

    fn wait(&self, limit: Duration) -> Result<(), String> {
        let mut entries = [PollFd::new(&self.device, PollFlags::IN)];
        let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
        match poll(&mut entries, Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(format!("poll fails: {error}")),
        }
    }
}

impl Backend for Kernel {
    fn system(&self) -> Arc<dyn System> {
        Arc::clone(&self.system) as Arc<dyn System>
    }

    fn start_of_day(&self) -> u64 {
        self.start_of_day
    }

    fn now(&self) -> i64 {
        self.started.elapsed().as_micros() as i64
    }

    fn step(&mut self, to: i64, _inclusive: bool) -> Result<bool, String> {
        let left = to - self.now();
        if left <= 0 {
            // Packets that are available now count as sent in time.
            return self.take_packets();
        }
        self.wait(SLICE.min(Duration::from_micros(left as u64)))?;
        self.take_packets()?;
        Ok(true)
    }

    fn reach(&mut self, _to: i64) {}

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        namespace::write("ipv4", name, value).map_err(|Refused(reason)| reason)
    }

    fn arrive(&mut self, packet: &[u8]) -> Result<(), String> {
        self.device.send_raw(packet).map_err(|error| format!("the device accepts no packet: {error}"))?;
        self.take_packets().map(|_| ())
    }

    fn sent(&mut self) -> &mut VecDeque<Sent> {
        &mut self.sent
    }

    fn await_call(&mut self, slot: &Slot, may_sleep: bool) -> Result<(), String> {
        slot.wait(if may_sleep { SLICE } else { CALL_LIMIT });
        self.take_packets().map(|_| ())
    }

    fn value(&self, name: &str, fd: Option<i32>) -> Option<i128> {
        // The kernel reports a socket in TIME-WAIT as closed.
        let name = if name == "TCP_TIME_WAIT" { "TCP_CLOSE" } else { name };
        if let Some(constant) = info::constant(name) {
            return Some(constant);
        }
        let field = name.strip_prefix("tcpi_")?;
        let socket = self.system.get(fd?).ok()?;
        let bytes = sockopt::get(socket.as_fd(), libc::SOL_TCP, libc::TCP_INFO, 512).ok()?;
        let number = tcp_info::value(field, &bytes)?;
        // Real time is not exact, and most scripts expect whole milliseconds: round to them.
        Some(if REAL_TIMES.contains(&field) { (number + 500) / 1000 * 1000 } else { number })
    }

    fn passes_over_unknown(&self) -> bool {
        true
    }

    /// Returns the permitted lateness. Linux keeps its timers in a wheel whose slots are as wide as an eighth
    /// of the remaining time; a sixth leaves a margin.
    fn lateness(&self, span: i64) -> i64 {
        span / 6
    }

    fn pushes_bursts(&self) -> bool {
        true
    }
}

/// Returns the reason why a script is not run against the kernel; `None` if it is run.
pub(crate) fn refusal(script: &Script, settings: &Settings) -> Option<String> {
    if let Some(reason) = &settings.not_on_the_kernel {
        return Some(format!("the script says: {reason}"));
    }
    let seconds = length(&script.events) / 1_000_000;
    if seconds > MAX_SECONDS {
        return Some(format!("it takes {seconds} s of real time"));
    }
    settings.own_keys.iter().find_map(|(key, value)| namespace::missing(key, value))
}

/// Returns the minimum duration of a script in microseconds.
fn length(events: &[Event]) -> i64 {
    let mut last = 0;
    for event in events {
        let absolute = |moment: Moment| if moment.relative { last + moment.micros } else { moment.micros };
        let calls = matches!(event.action, Action::Call(_));
        last = match event.time {
            Time::Any => last,
            Time::At(moment) => absolute(moment),
            Time::Between(_, to) => absolute(to),
            Time::Blocking(from, to) => absolute(if calls { from } else { to }),
        };
    }
    last
}

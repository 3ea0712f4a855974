//! The kernel's TCP as what a script runs against: real sockets in a network namespace of their own, a
//! TUN device for the packets, and real time.
//!
//! Every socket is non-blocking underneath; a call that would block in the script is tried again whenever
//! something has happened, as with our own stack.

mod namespace;
mod options;
mod sockets;
mod tcp_info;

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::time::{Duration, Instant as RealInstant};

use brisk_packet_io::tun::TunDevice;
use brisk_wire::{ChecksumCheck, Packet, parse};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::backend::{Backend, Scene};
use super::host::{Sent, instant, option_area};
use super::sockets::{Answer, Progress};
use crate::ast::{Action, Call, Event, Moment, Script, Time};
use crate::settings::Settings;
use sockets::KernelSockets;

pub(crate) use namespace::{Refused, World};

/// How long one look at the device waits at most: a call that blocks is tried again this often.
const SLICE: Duration = Duration::from_millis(1);
/// How late the machine may be in real time, beside what a script tolerates.
pub(crate) const LATENESS: i64 = 20_000;
/// Scripts that last longer than this in real time are not run.
const MOST_SECONDS: i64 = 40;

/// See the [module](self).
pub(super) struct Kernel {
    device: TunDevice,
    started: RealInstant,
    sent: VecDeque<Sent>,
    sockets: KernelSockets,
}

impl Kernel {
    pub(super) fn new(device: TunDevice) -> Kernel {
        Kernel {
            device,
            started: RealInstant::now(),
            sent: VecDeque::new(),
            sockets: KernelSockets::default(),
        }
    }

    /// Takes every packet that is there; true if there was one of TCP.
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

    /// What is not TCP (neighbour discovery, multicast reports) is nobody's business.
    fn record(&mut self, packet: &[u8]) -> bool {
        let Ok(Packet::Tcp(segment)) = parse(packet, ChecksumCheck::Verify) else { return false };
        let options = option_area(packet).unwrap_or_default().to_vec();
        let (ip, tcp, payload) = (segment.ip, segment.tcp, segment.payload.to_vec());
        self.sent.push_back(Sent { at: instant(self.now()), ip, tcp, options, payload });
        true
    }

    /// Waits for a packet, at most so long.
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
    fn now(&self) -> i64 {
        self.started.elapsed().as_micros() as i64
    }

    fn step(&mut self, to: i64, _inclusive: bool) -> Result<bool, String> {
        let left = to - self.now();
        if left <= 0 {
            // What has left by now has left in time.
            return self.take_packets();
        }
        self.wait(SLICE.min(Duration::from_micros(left as u64)))?;
        self.take_packets()?;
        Ok(true)
    }

    fn reach(&mut self, _to: i64) {}

    fn arrive(&mut self, packet: &[u8]) -> Result<(), String> {
        self.device.send_raw(packet).map_err(|error| format!("the device takes no packet: {error}"))?;
        self.take_packets().map(|_| ())
    }

    fn sent(&mut self) -> &mut VecDeque<Sent> {
        &mut self.sent
    }

    fn settle(&mut self) {}

    fn call(&mut self, call: &Call, progress: &mut Progress, scene: &mut Scene<'_>) -> Answer {
        let answer = self.sockets.call(call, progress, scene);
        progress.begun = true;
        self.take_packets()?;
        answer
    }

    fn value(&self, name: &str) -> Option<i128> {
        let watched = self.sockets.watched()?;
        tcp_info::value(name, watched.as_fd())
    }

    fn passes_over_unknown(&self) -> bool {
        true
    }

    /// The timers of Linux are kept in a wheel whose slots are as wide as an eighth of the time to wait.
    fn lateness(&self, span: i64) -> i64 {
        span / 6
    }

    fn pushes_bursts(&self) -> bool {
        true
    }
}

/// Why a script is not run against the kernel, if it is not.
pub(crate) fn refusal(script: &Script, settings: &Settings) -> Option<String> {
    if let Some(reason) = &settings.not_on_the_kernel {
        return Some(format!("the script says: {reason}"));
    }
    let seconds = length(&script.events) / 1_000_000;
    if seconds > MOST_SECONDS {
        return Some(format!("it takes {seconds} s of real time"));
    }
    settings.own_keys.iter().find_map(|(key, value)| namespace::missing(key, value))
}

/// Microseconds that a script takes at least.
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

//! What a script runs against: our stack in virtual time, or the kernel in real time.

use std::collections::VecDeque;

use super::flow::Flows;
use super::host::{Host, Sent, instant};
use super::info;
use super::sockets::{Answer, Progress, Sockets};
use crate::ast::Call;
use crate::settings::Settings;

/// What a script knows beside its calls.
pub(super) struct Scene<'a> {
    /// The connections that its packets belong to.
    pub(super) flows: &'a mut Flows,
    /// What it has set.
    pub(super) settings: &'a Settings,
}

/// A TCP with a clock. Times are microseconds since the start of the script.
pub(super) trait Backend {
    /// Now.
    fn now(&self) -> i64;

    /// Lets something happen before `to`, or at it with `inclusive`; false if nothing does.
    fn step(&mut self, to: i64, inclusive: bool) -> Result<bool, String>;

    /// Nothing happens any more before `to`: it is now.
    fn reach(&mut self, to: i64);

    /// A packet arrives.
    fn arrive(&mut self, packet: &[u8]) -> Result<(), String>;

    /// What was sent and nobody has looked at.
    fn sent(&mut self) -> &mut VecDeque<Sent>;

    /// The sockets hear what has happened.
    fn settle(&mut self);

    /// Makes a system call.
    fn call(&mut self, call: &Call, progress: &mut Progress, scene: &mut Scene<'_>) -> Answer;

    /// The value of a name in an assertion; `None` if there is no such name.
    fn value(&self, name: &str) -> Option<i128>;

    /// True if assertions about names that there are not are passed over: the kernel has no figures of our
    /// stack.
    fn passes_over_unknown(&self) -> bool {
        false
    }

    /// How much later than in theory a timer may fire that runs for so long. Microseconds.
    fn lateness(&self, _span: i64) -> i64 {
        0
    }

    /// True if a burst may end with PSH where the script has none: Linux pushes at the end of each packet
    /// that it hands to a device with segmentation offload.
    fn pushes_bursts(&self) -> bool {
        false
    }
}

/// Our stack in virtual time.
pub(super) struct Virtual {
    pub(super) host: Host,
    pub(super) sockets: Sockets,
}

impl Backend for Virtual {
    fn now(&self) -> i64 {
        self.host.micros()
    }

    fn step(&mut self, to: i64, inclusive: bool) -> Result<bool, String> {
        self.host.step(instant(to), inclusive)
    }

    fn reach(&mut self, to: i64) {
        self.host.now = self.host.now.max(instant(to));
    }

    fn arrive(&mut self, packet: &[u8]) -> Result<(), String> {
        self.host.arrive(packet)
    }

    fn sent(&mut self) -> &mut VecDeque<Sent> {
        &mut self.host.sent
    }

    fn settle(&mut self) {
        self.sockets.on_events(std::mem::take(&mut self.host.events));
    }

    fn call(&mut self, call: &Call, progress: &mut Progress, scene: &mut Scene<'_>) -> Answer {
        self.sockets.call(call, progress, &mut self.host, scene)
    }

    fn value(&self, name: &str) -> Option<i128> {
        let stack = &self.host.stack;
        let watched =
            self.sockets.watched().and_then(|id| Some((stack.conn_stats(id)?, stack.conn_info(id)?)));
        info::value(name, watched.as_ref().map(|(stats, info)| (stats, info)), stack.stats())
    }
}

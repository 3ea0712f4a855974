//! The runner: processes the events of a script in order, on one virtual clock.
//!
//! Before an arrival or a call, every timer that is due earlier fires. A timer that is due at the same
//! instant fires after it, because incoming segments precede timers. To wait for an expected packet, the
//! runner lets timers fire until the packet has left or is too late.

mod arguments;
mod backend;
mod calls;
mod compare;
mod flow;
mod info;
mod inject;
mod kernel;
mod names;
mod ours;
mod request;
mod stream;
mod tcp_info;

use std::collections::BTreeMap;

use brisk_wire::Flags;

use crate::Options;
use crate::assertion::{Assertion, Statement};
use crate::ast::{Action, Call, Event, Expected, IcmpPacket, Moment, Script, TcpPacket, Time};
use crate::error::ScriptError;
use crate::settings::{Settings, sysctls};
use crate::tcp_option::{Cookie, TcpOption};
use backend::Backend;
use calls::{Calls, Return, Scene};
use compare::{Seen, expected_line, seconds, seen_line};
use flow::Flows;
use ours::Virtual;

/// Maximum wait for a packet with the time `*`, microseconds: longer than any timer of TCP.
const PATIENCE: i64 = 4 * 3600 * 1_000_000;

pub(crate) fn run(
    file: &str,
    script: &Script,
    options: &Options,
    note: &mut dyn FnMut(String),
) -> Result<(), ScriptError> {
    let settings = settings(file, script, options)?;
    let mut backend = Virtual::new(&settings).map_err(|error| ScriptError::new(file, 1, error))?;
    play(file, script, settings, &mut backend, note)
}

/// Runs a parsed script against the kernel, in a namespace that the calling thread never leaves. Returns the
/// reason if the script is not run.
pub(crate) fn run_on_kernel(
    file: &str,
    script: &Script,
    options: &Options,
    note: &mut dyn FnMut(String),
) -> Result<Option<String>, ScriptError> {
    let mut settings = settings(file, script, options)?;
    if let Some(reason) = kernel::refusal(script, &settings) {
        return Ok(Some(reason));
    }
    settings.tolerance = settings.tolerance.max(kernel::LATENESS);
    let world = match kernel::World::new(&settings) {
        Ok(world) => world,
        Err(kernel::Refused(reason)) => return Ok(Some(reason)),
    };
    let mut backend = kernel::Kernel::new(world.device, &settings);
    play(file, script, settings, &mut backend, note).map(|()| None)
}

/// Runs the events of a script against a TCP.
fn play(
    file: &str,
    script: &Script,
    settings: Settings,
    backend: &mut dyn Backend,
    note: &mut dyn FnMut(String),
) -> Result<(), ScriptError> {
    let mut runner = Runner {
        file,
        flows: Flows::new(&settings),
        calls: Calls::new(backend.system()),
        settings,
        backend,
        cookies: BTreeMap::new(),
        blocked: None,
        last: 0,
        note,
    };
    for event in &script.events {
        runner.event(event)?;
    }
    runner.finish(script.events.last().map_or(1, |event| event.line))
}

fn settings(file: &str, script: &Script, options: &Options) -> Result<Settings, ScriptError> {
    let mut settings = Settings::default();
    for (key, value) in &options.flags {
        settings.flag(key, value).map_err(|error| ScriptError::new(file, 0, error))?;
    }
    for (line, command) in &script.commands {
        settings.command(command).map_err(|error| ScriptError::new(file, *line, error))?;
    }
    for flag in &script.flags {
        settings.flag(&flag.key, &flag.value).map_err(|error| ScriptError::new(file, flag.line, error))?;
    }
    settings.silence &= !options.lenient;
    Ok(settings)
}

struct Blocked {
    line: u32,
    call: Call,
    /// Script time at which the call must return, microseconds.
    until: i64,
}

/// Time at which an event is due, in microseconds of the script.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Due {
    from: i64,
    to: i64,
}

struct Runner<'a> {
    file: &'a str,
    settings: Settings,
    backend: &'a mut dyn Backend,
    flows: Flows,
    calls: Calls,
    cookies: BTreeMap<String, Vec<u8>>,
    blocked: Option<Blocked>,
    /// Time of the last event: the base of relative times.
    last: i64,
    note: &'a mut dyn FnMut(String),
}

impl Runner<'_> {
    fn fail<T>(&self, line: u32, message: impl Into<String>) -> Result<T, ScriptError> {
        Err(ScriptError::new(self.file, line, message))
    }

    fn event(&mut self, event: &Event) -> Result<(), ScriptError> {
        let due = self.due(event)?;
        if let Action::Sends(packet) = &event.action {
            return self.expect(event, packet, due);
        }
        if event.time == Time::Any {
            return self.fail(event.line, "only an outbound packet can come at any time (`*`)");
        }
        self.pass_to(due.from, false, event.line)?;
        self.last = due.from;
        match &event.action {
            Action::Sends(_) => Ok(()),
            Action::Arrives(packet) => self.arrive(event.line, packet),
            Action::IcmpArrives(packet) => self.icmp_arrives(event.line, packet),
            Action::Call(call) => self.begin_call(event, call, due),
            Action::Code(statements) => statements.iter().try_for_each(|statement| match statement {
                Statement::Assert(assertion) => self.check(assertion),
                Statement::Print(names) => {
                    self.print(names);
                    Ok(())
                }
            }),
            Action::Command(command) => self.command(event.line, command),
        }
    }

    /// Runs a command between events: applies Linux settings and ignores everything else.
    fn command(&mut self, line: u32, command: &str) -> Result<(), ScriptError> {
        for (name, value) in sysctls(command) {
            self.backend.set(&name, &value).or_else(|error| self.fail(line, error))?;
        }
        Ok(())
    }

    fn due(&self, event: &Event) -> Result<Due, ScriptError> {
        let absolute =
            |moment: Moment| if moment.relative { self.last + moment.micros } else { moment.micros };
        let due = match event.time {
            Time::Any => Due { from: self.last, to: self.last + PATIENCE },
            Time::At(moment) => Due { from: absolute(moment), to: absolute(moment) },
            Time::Between(from, to) | Time::Blocking(from, to) => {
                Due { from: absolute(from), to: absolute(to) }
            }
        };
        if due.from < self.last || due.to < due.from {
            let (from, last) = (seconds(due.from), seconds(self.last));
            return self.fail(
                event.line,
                format!("the time {from} lies before {last}, the time of the event before"),
            );
        }
        Ok(due)
    }

    /// Advances the clock to `to`; timers that are due then fire only if `inclusive`.
    fn pass_to(&mut self, to: i64, inclusive: bool, line: u32) -> Result<(), ScriptError> {
        while self.step(to, inclusive, line)? {}
        self.backend.reach(to);
        Ok(())
    }

    fn step(&mut self, to: i64, inclusive: bool, line: u32) -> Result<bool, ScriptError> {
        let before = self.backend.sent().len();
        let stepped = self.backend.step(to, inclusive).or_else(|error| self.fail(line, error))?;
        self.record_sent(before);
        self.finish_blocked_call()?;
        Ok(stepped)
    }

    /// Checks, after an event, whether the blocked call has returned.
    fn finish_blocked_call(&mut self) -> Result<(), ScriptError> {
        let Some(blocked) = self.blocked.take() else { return Ok(()) };
        let line = blocked.line;
        match self.finish_call(line, &blocked.call, true)? {
            None => {
                self.blocked = Some(blocked);
                Ok(())
            }
            Some(returned) => {
                let now = self.backend.now();
                let late = self.backend.lateness(blocked.until - self.last).max(0);
                if (now - blocked.until).abs() > self.settings.tolerance + late {
                    let (now, until) = (seconds(now), seconds(blocked.until));
                    return self
                        .fail(line, format!("{} returns at {now} instead of {until}", blocked.call.name));
                }
                self.check_result(line, &blocked.call, returned)
            }
        }
    }

    /// Returns the result of the current call; `None` while it blocks.
    fn finish_call(
        &mut self,
        line: u32,
        call: &Call,
        may_sleep: bool,
    ) -> Result<Option<Return>, ScriptError> {
        let before = self.backend.sent().len();
        let awaited = self.backend.await_call(self.calls.slot(), may_sleep);
        awaited.or_else(|error| self.fail(line, error))?;
        self.record_sent(before);
        let start_of_day = self.backend.start_of_day();
        let mut scene = Scene { flows: &mut self.flows, settings: &self.settings, start_of_day };
        let returned = self.calls.finish(call, &mut scene);
        returned.or_else(|error| self.fail(line, error))
    }

    fn record_sent(&mut self, before: usize) {
        for sent in self.backend.sent().iter().skip(before) {
            let line = match self.flows.of_tuple(sent.local(), sent.remote()) {
                Some(flow) => {
                    let counts =
                        !sent.payload.is_empty() || sent.tcp.flags.intersects(Flags::SYN | Flags::FIN);
                    if !self.settings.silence && sent.tcp.flags.contains(Flags::SYN) {
                        flow.on_syn_sent(0, sent.tcp.seq.0);
                    }
                    if let Some(stamps) = sent.tcp.options.timestamps {
                        flow.on_stamp_sent(counts.then_some(sent.tcp.seq.0), stamps.value);
                    }
                    // The script has not mapped this number yet; zero is the default.
                    let mut flow = flow.clone();
                    if sent.tcp.flags.contains(Flags::SYN) {
                        flow.on_syn_sent(0, sent.tcp.seq.0);
                    }
                    seen_line(&Seen::new(sent, &flow), '>')
                }
                None => {
                    format!("{} > to {} from {}", seconds(sent.at), sent.remote(), sent.local())
                }
            };
            (self.note)(line);
        }
    }

    fn arrive(&mut self, line: u32, packet: &TcpPacket) -> Result<(), ScriptError> {
        let at = seconds(self.backend.now());
        (self.note)(expected_line(&at, '<', packet));
        let flow = self.flows.of(&packet.prefix);
        if packet.flags.contains(Flags::SYN) && !packet.flags.contains(Flags::ACK) {
            flow.on_syn_arrives(packet.seq, packet.prefix.new);
        }
        let bytes = inject::segment(packet, flow, &|name| self.cookies.get(name).cloned());
        self.hand_in(line, bytes)
    }

    fn icmp_arrives(&mut self, line: u32, packet: &IcmpPacket) -> Result<(), ScriptError> {
        (self.note)(format!("{} < icmp {:?}", seconds(self.backend.now()), packet.kind));
        let bytes = inject::icmp(packet, self.flows.of(&packet.prefix));
        self.hand_in(line, bytes)
    }

    fn hand_in(&mut self, line: u32, bytes: Result<Vec<u8>, String>) -> Result<(), ScriptError> {
        let before = self.backend.sent().len();
        let arrived = bytes.and_then(|bytes| self.backend.arrive(&bytes));
        arrived.or_else(|error| self.fail(line, error))?;
        self.record_sent(before);
        self.finish_blocked_call()
    }

    fn begin_call(&mut self, event: &Event, call: &Call, due: Due) -> Result<(), ScriptError> {
        if let Some(blocked) = &self.blocked {
            let message = format!(
                "{} is called while {} of line {} has not returned",
                call.name, blocked.call.name, blocked.line
            );
            return self.fail(event.line, message);
        }
        (self.note)(format!("{} {}", seconds(self.backend.now()), call.name));
        let start_of_day = self.backend.start_of_day();
        let mut scene = Scene { flows: &mut self.flows, settings: &self.settings, start_of_day };
        let begun = self.calls.begin(call, &mut scene);
        begun.or_else(|error| self.fail(event.line, error))?;
        let may_block = matches!(event.time, Time::Blocking(..));
        match self.finish_call(event.line, call, may_block)? {
            None if may_block => {
                self.blocked = Some(Blocked { line: event.line, call: call.clone(), until: due.to });
                Ok(())
            }
            None => self
                .fail(event.line, format!("{} blocks; write when it returns, as in `0.1...0.3`", call.name)),
            Some(_) if may_block && due.to - due.from > self.settings.tolerance => self
                .fail(event.line, format!("{} returns at once instead of at {}", call.name, seconds(due.to))),
            Some(returned) => self.check_result(event.line, call, returned),
        }
    }

    fn check_result(&mut self, line: u32, call: &Call, returned: Return) -> Result<(), ScriptError> {
        let actual = match returned {
            Return::Value(value) => value.to_string(),
            Return::Errno(number) => format!("-1 {}", names::errno(number)),
        };
        if call.result == Expected::Anything {
            (self.note)(format!("{} {} = {actual}", seconds(self.backend.now()), call.name));
        }
        let (right, expected) = match &call.result {
            Expected::Anything => (true, "?".to_owned()),
            Expected::Value(value) => (returned == Return::Value(*value), value.to_string()),
            Expected::Errno(errno) => {
                let number = names::number(errno);
                let right = matches!(returned, Return::Errno(actual) if number == Some(i64::from(actual)));
                (right, format!("-1 {errno}"))
            }
        };
        if right {
            return Ok(());
        }
        self.fail(line, format!("{}: expected {expected}, the stack gives {actual}", call.name))
    }

    fn check(&mut self, assertion: &Assertion) -> Result<(), ScriptError> {
        match assertion.check(&|name| self.backend.value(name, self.calls.watched())) {
            Err(_) if self.backend.passes_over_unknown() => Ok(()),
            Err(error) => self.fail(assertion.line, error),
            Ok((true, _)) => Ok(()),
            Ok((false, values)) => {
                let values: Vec<String> =
                    values.iter().map(|(name, value)| format!("{name} = {value}")).collect();
                self.fail(assertion.line, format!("{} does not hold: {}", assertion.text, values.join(", ")))
            }
        }
    }

    /// Writes the values of names into the trace.
    fn print(&mut self, names: &[String]) {
        let values = names.iter().map(|name| match self.backend.value(name, self.calls.watched()) {
            Some(value) => format!("{name}={value}"),
            None => format!("{name}=none"),
        });
        let values: Vec<String> = values.collect();
        (self.note)(format!("{} print {}", seconds(self.backend.now()), values.join(" ")));
    }

    fn expect(&mut self, event: &Event, packet: &TcpPacket, due: Due) -> Result<(), ScriptError> {
        let tolerance = self.settings.tolerance;
        let (line, latest) = (event.line, due.to + tolerance + self.backend.lateness(due.to - self.last));
        while self.backend.sent().is_empty() && self.step(latest, true, line)? {}
        let time = match event.time {
            Time::Any => "*".to_owned(),
            Time::At(_) => seconds(due.from),
            Time::Between(..) | Time::Blocking(..) => format!("{}~{}", seconds(due.from), seconds(due.to)),
        };
        let wanted = expected_line(&time, '>', packet);
        let Some(seen) = self.take_seen(packet, line)? else {
            return self.fail(
                line,
                format!(
                    "no packet was sent\n  expected: {wanted}\n  actual:   nothing up to {}",
                    seconds(latest)
                ),
            );
        };
        let mut seen = seen;
        let mut pieces = 1;
        while !self.settings.strict_segments && seen.len < packet.len && packet.len > 0 {
            while self.backend.sent().is_empty() && self.step(latest, true, line)? {}
            let Some(next) = self.peek_seen() else { break };
            if !seen.absorb(&next) {
                break;
            }
            pieces += 1;
            self.backend.sent().pop_front();
        }
        let ticks = self.settings.ts_tick.map(|tick| (self.settings.tolerance / tick.max(1)) as u32);
        if pieces > 1 && self.backend.pushes_bursts() && !packet.flags.contains(Flags::PSH) {
            seen.flags = seen.flags.without(Flags::PSH);
        }
        let mut differences = seen.differences(packet, ticks);
        if event.time != Time::Any && !(due.from - tolerance..=latest).contains(&seen.at) {
            differences.insert(0, "time");
        }
        if !differences.is_empty() {
            let actual = seen_line(&seen, '>');
            let fields = differences.join(", ");
            return self.fail(
                line,
                format!("a packet differs: {fields}\n  expected: {wanted}\n  actual:   {actual}"),
            );
        }
        self.last = if matches!(event.time, Time::At(_)) { due.from } else { seen.at };
        Ok(())
    }

    /// Takes the next sent segment, and learns its flow's numbers from the expected packet.
    fn take_seen(&mut self, expected: &TcpPacket, line: u32) -> Result<Option<Seen>, ScriptError> {
        let Some(sent) = self.backend.sent().pop_front() else { return Ok(None) };
        let Some(flow) = self.flows.of_tuple(sent.local(), sent.remote()) else {
            let (local, remote) = (sent.local(), sent.remote());
            return self
                .fail(line, format!("a packet from {local} to {remote} belongs to no flow of the script"));
        };
        if sent.tcp.flags.contains(Flags::SYN) && expected.flags.contains(Flags::SYN) {
            flow.on_syn_sent(expected.seq, sent.tcp.seq.0);
        }
        for option in expected.options.iter().flatten() {
            match (option, &sent.tcp.options) {
                (TcpOption::Timestamps { value, .. }, options) => {
                    let live = options.timestamps.map(|stamps| stamps.value);
                    if let Some(live) =
                        live.filter(|_| self.settings.ts_tick.is_none() || !flow.knows_stamps())
                    {
                        flow.on_stamp(*value, live);
                    }
                }
                (TcpOption::FastOpen { cookie: Cookie::Named(name), .. }, options) => {
                    if let Some(fast_open) = &options.fast_open {
                        self.cookies.entry(name.clone()).or_insert(fast_open.cookie.as_slice().to_vec());
                    }
                }
                _ => {}
            }
        }
        Ok(Some(Seen::new(&sent, flow)))
    }

    fn peek_seen(&mut self) -> Option<Seen> {
        let sent = self.backend.sent().front()?;
        let flow = self.flows.of_tuple(sent.local(), sent.remote())?;
        Some(Seen::new(sent, flow))
    }

    /// Ends a script: fails if a packet is left that no event lists, or if a call still blocks.
    fn finish(&mut self, line: u32) -> Result<(), ScriptError> {
        self.pass_to(self.last, true, line)?;
        if let Some(blocked) = &self.blocked {
            return self.fail(
                blocked.line,
                format!("{} has not returned at the end of the script", blocked.call.name),
            );
        }
        if !self.settings.silence || self.backend.sent().is_empty() {
            return Ok(());
        }
        let actual =
            self.peek_seen().map_or_else(|| "a packet of no flow".to_owned(), |seen| seen_line(&seen, '>'));
        self.fail(
            line,
            format!("a packet was sent that no event lists\n  expected: nothing\n  actual:   {actual}"),
        )
    }
}

//! The `process_*` metrics that Prometheus clients have in common, read from `/proc/self` for each request.
//!
//! A value that the system does not provide is left out.

use std::fmt;
use std::time::{Duration, SystemTime};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

/// Collector of this process's metrics.
#[derive(Debug)]
pub(crate) struct Process {
    /// Time of the start, seconds since 1970. It is computed once, so that a change of the wall clock does
    /// not look like a restart.
    start: Option<f64>,
}

impl Process {
    pub(crate) fn new() -> Process {
        Process { start: Stat::read().and_then(|stat| stat.start(SystemTime::now(), since_boot())) }
    }
}

/// The used fields of `/proc/self/stat` (proc_pid_stat(5)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stat {
    /// Processor time of user and system, ticks.
    cpu: u64,
    /// Time of the start, ticks after the boot.
    started: u64,
    /// Bytes.
    virtual_memory: u64,
    /// Pages.
    resident: u64,
}

impl Stat {
    fn read() -> Option<Stat> {
        Stat::parse(&std::fs::read_to_string("/proc/self/stat").ok()?)
    }

    fn parse(text: &str) -> Option<Stat> {
        // The second field is the name in brackets, which may hold brackets and spaces; the third one follows
        // the last bracket.
        let (_, rest) = text.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let cpu = field(14)?.saturating_add(field(15)?);
        Some(Stat { cpu, started: field(22)?, virtual_memory: field(23)?, resident: field(24)? })
    }

    /// Returns the seconds from 1970 to the start of the process, if the time is `now` and the host booted
    /// `since_boot` ago.
    fn start(self, now: SystemTime, since_boot: Duration) -> Option<f64> {
        let now = now.duration_since(SystemTime::UNIX_EPOCH).ok()?;
        Some(now.as_secs_f64() - since_boot.as_secs_f64() + seconds(self.started))
    }
}

fn seconds(ticks: u64) -> f64 {
    ticks as f64 / clock_ticks_per_second() as f64
}

fn since_boot() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}

/// Returns the number of open descriptors, less the one that reads the directory.
fn open_descriptors() -> Option<u64> {
    let listed = std::fs::read_dir("/proc/self/fd").ok()?.count() as u64;
    Some(listed.saturating_sub(1))
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let mut write = |name: &str, help: &str, unit: Option<Unit>, value: Sample| {
            let (kind, unit) = (value.kind(), unit.as_ref());
            value.encode(encoder.encode_descriptor(name, help, unit, kind)?)
        };
        if let Some(stat) = Stat::read() {
            let cpu = Sample::Total(ConstCounter::new(seconds(stat.cpu)));
            write("process_cpu", "Processor time in user and system mode", Some(Unit::Seconds), cpu)?;
            let resident = stat.resident.saturating_mul(page_size() as u64);
            write("process_resident_memory", "Resident memory", Some(Unit::Bytes), Sample::now(resident))?;
            let virtual_memory = Sample::now(stat.virtual_memory);
            write("process_virtual_memory", "Virtual memory", Some(Unit::Bytes), virtual_memory)?;
        }
        if let Some(open) = open_descriptors() {
            write("process_open_fds", "Open descriptors", None, Sample::now(open))?;
        }
        if let Some(limit) = getrlimit(Resource::Nofile).current {
            write("process_max_fds", "Limit of open descriptors", None, Sample::now(limit))?;
        }
        if let Some(start) = self.start {
            let start = Sample::Now(ConstGauge::new(start));
            write(
                "process_start_time",
                "Start of the process, as time since 1970",
                Some(Unit::Seconds),
                start,
            )?;
        }
        Ok(())
    }
}

/// A value with its type.
enum Sample {
    Total(ConstCounter<f64>),
    Now(ConstGauge<f64>),
}

impl Sample {
    fn now(value: u64) -> Sample {
        Sample::Now(ConstGauge::new(value as f64))
    }

    fn kind(&self) -> prometheus_client::metrics::MetricType {
        match self {
            Sample::Total(total) => total.metric_type(),
            Sample::Now(now) => now.metric_type(),
        }
    }

    fn encode(&self, encoder: prometheus_client::encoding::MetricEncoder<'_>) -> Result<(), fmt::Error> {
        match self {
            Sample::Total(total) => total.encode(encoder),
            Sample::Now(now) => now.encode(encoder),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_with_brackets_does_not_shift_fields_of_stat() {
        let text = "42 (a) b (c) S 1 42 42 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 4 0 12345 8192000 512 1844";
        let expected = Stat { cpu: 300, started: 12345, virtual_memory: 8_192_000, resident: 512 };
        assert_eq!(Stat::parse(text), Some(expected));
        assert_eq!(Stat::parse("42 (a) S 1"), None);
    }

    #[test]
    fn start_of_this_process_is_in_the_past_and_not_long_ago() {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
        let start = Process::new().start.unwrap();
        assert!((now - 86_400.0..now + 1.0).contains(&start), "{start} at {now}");
    }
}

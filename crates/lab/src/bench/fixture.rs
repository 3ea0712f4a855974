//! The environment of a measurement: two namespaces joined by a veth pair, and processes in them on given
//! cores, whose cost is measured.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use brisk_packet_io::interface::Interface;
use brisk_packet_io::netns::Namespace;
use brisk_wire::MAX_SUPER_LEN;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::BenchError;
use super::end::{Done, End};
use super::rows::Topology;
use crate::fixture::shell;

/// The device in each namespace.
const VETH: &str = "bench0";
/// Addresses of the two hosts, and of the network behind the second one.
const NEAR: [u8; 4] = [10, 99, 0, 1];
const FAR: [u8; 4] = [10, 99, 0, 2];
const BEHIND: [u8; 4] = [10, 98, 0, 0];
/// Settings of both namespaces: Fast Open for clients and for every listener, and enough ports for the
/// transactions of a run.
const SYSCTLS: [(&str, &str); 2] = [("tcp_fastopen", "1027"), ("ip_local_port_range", "10000 65000")];

/// Time limit for an end to exit by itself.
const EXIT_LIMIT: Duration = Duration::from_secs(1);

/// Two namespaces. The client is in the first one; the setup of the row determines where the server is.
#[derive(Debug)]
pub(super) struct Fixture {
    pub(super) near: Namespace,
    pub(super) far: Namespace,
    program: PathBuf,
}

impl Fixture {
    /// Creates the namespaces. `cores` are those of the server and, if different, of the client.
    pub(super) fn new(program: PathBuf, topology: Topology, cores: &[usize]) -> Result<Fixture, BenchError> {
        let (near, far) = (Namespace::anonymous()?, Namespace::anonymous()?);
        near.run(|| join(&far))??;
        for (namespace, address) in [(&near, NEAR), (&far, FAR)] {
            namespace.run(|| set_up(address.into()))??;
        }
        match (topology, cores) {
            (Topology::Whole, _) => {}
            (Topology::Big, _) => {
                for namespace in [&near, &far] {
                    namespace.run(|| Interface::named(VETH)?.set_longest_super(MAX_SUPER_LEN as u32))??;
                }
            }
            (Topology::Packets, _) => {
                for namespace in [&near, &far] {
                    namespace
                        .run(|| shell("ethtool", &["-K", VETH, "tso", "off", "gso", "on", "gro", "on"]))??;
                }
            }
            (Topology::Routed, [server, client, ..]) => {
                near.run(|| Interface::named(VETH)?.add_route(BEHIND.into(), 24, Some(FAR.into())))??;
                far.run(|| fs::write("/proc/sys/net/ipv4/ip_forward", "1"))??;
                far.run(|| serve_packets_on(*server))??;
                near.run(|| serve_packets_on(*client))??;
            }
            (Topology::Routed, _) => return Err(BenchError::Cores { asked: 2, allowed: cores.len() }),
        }
        Ok(Fixture { near, far, program })
    }

    /// Starts a process in a namespace, on these cores, and waits until it is ready.
    pub(super) fn start(
        &self,
        namespace: &Namespace,
        end: &End,
        cores: &[usize],
    ) -> Result<Process, BenchError> {
        let spec = serde_json::to_string(end).map_err(io::Error::other)?;
        let spawn = || -> io::Result<Child> {
            let mut set = CpuSet::new();
            cores.iter().for_each(|core| set.set(*core));
            // This thread ends; only its child stays on these cores.
            sched_setaffinity(None, &set)?;
            let mut command = Command::new(&self.program);
            command.args(["bench", "--end", &spec]).stdin(Stdio::piped()).stdout(Stdio::piped());
            command.spawn()
        };
        let child = namespace.run(spawn)??;
        Process::new(child)
    }
}

/// Returns the cores that this process may use, lowest first.
pub fn allowed_cores() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect())
}

/// Creates a veth pair between the namespace of the calling thread and `far`.
fn join(far: &Namespace) -> io::Result<()> {
    let there = format!("/proc/{}/fd/{}", std::process::id(), far.as_fd().as_raw_fd());
    shell("ip", &["link", "add", VETH, "type", "veth", "peer", "name", VETH, "netns", &there])
}

/// Makes this core process the packets of the veth device, whichever core sent them, because each host has
/// its own core.
fn serve_packets_on(core: usize) -> io::Result<()> {
    let mask = 1u64.checked_shl(core as u32).unwrap_or(0);
    // Only a namespace's own sysfs has the files of its devices.
    let script =
        format!("mount -t sysfs sysfs /sys && echo {mask:x} > /sys/class/net/{VETH}/queues/rx-0/rps_cpus");
    shell("unshare", &["--mount", "sh", "-c", &script])
}

/// Returns the time for which a core has been busy since the system started, with the resolution of the
/// kernel's ticks.
pub(super) fn busy(core: usize) -> io::Result<Duration> {
    let unknown = || io::Error::other("/proc/stat does not report the use of the core");
    let ticks = busy_ticks(&fs::read_to_string("/proc/stat")?, core).ok_or_else(unknown)?;
    Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}

/// Returns user, nice, system, irq and softirq of `cpuN` (proc_stat(5)).
fn busy_ticks(stat: &str, core: usize) -> Option<u64> {
    let line = stat.lines().find_map(|line| line.strip_prefix(&format!("cpu{core} ")))?;
    let ticks: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
    [0, 1, 2, 5, 6].iter().map(|at| ticks.get(*at)).sum()
}

fn set_up(address: IpAddr) -> Result<(), BenchError> {
    let interface = Interface::named(VETH)?;
    interface.set_up()?;
    interface.add_address(address, 24)?;
    for (key, value) in SYSCTLS {
        let path = format!("/proc/sys/net/ipv4/{key}");
        fs::write(&path, value).map_err(|error| io::Error::other(format!("{path} = {value}: {error}")))?;
    }
    Ok(())
}

/// A process of a measurement. Dropping the value ends it.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    said: BufReader<ChildStdout>,
}

/// Processor time and wake-ups of a process.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    /// Processor time in its own code, in the kernel on its behalf, and for packets that the kernel processes
    /// while it runs; nanoseconds.
    pub(super) total: u64,
    /// Processor time in its own code, seconds, with the resolution of the kernel's ticks.
    pub(super) user: f64,
    /// Number of times that a thread slept and was woken.
    pub(super) wakeups: u64,
}

impl Process {
    fn new(mut child: Child) -> Result<Process, BenchError> {
        let said = child.stdout.take().ok_or_else(|| io::Error::other("a process without stdout"))?;
        let mut process = Process { child, said: BufReader::new(said) };
        match process.hear()?.trim() {
            "ready" => Ok(process),
            other => Err(BenchError::End(format!("said '{other}' instead of ready"))),
        }
    }

    /// Starts a client's work for this number of seconds.
    pub(super) fn begin(&mut self, seconds: f64) -> Result<(), BenchError> {
        let stdin = self.child.stdin.as_mut().ok_or_else(|| io::Error::other("a process without stdin"))?;
        Ok(writeln!(stdin, "{seconds}")?)
    }

    /// Waits for the end of the work and returns the result.
    pub(super) fn done(&mut self) -> Result<Done, BenchError> {
        let line = self.hear()?;
        serde_json::from_str(&line).map_err(|error| BenchError::End(format!("said '{line}': {error}")))
    }

    fn hear(&mut self) -> Result<String, BenchError> {
        let mut line = String::new();
        match self.said.read_line(&mut line)? {
            0 => Err(BenchError::End("ended early; see its message above".to_owned())),
            _ => Ok(line),
        }
    }

    /// Returns the processor time and the wake-ups of its threads so far.
    pub(super) fn usage(&self) -> io::Result<Usage> {
        let mut sum = Usage::default();
        for task in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let task = task?.path();
            let of = |file: &str| fs::read_to_string(task.join(file));
            let unknown = || io::Error::other("/proc does not report the processor time of a process");
            let total = of("schedstat")?.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
            let user = user_ticks(&of("stat")?)
                .map(|ticks| ticks as f64 / rustix::param::clock_ticks_per_second() as f64);
            sum.total += total.ok_or_else(unknown)?;
            sum.user += user.ok_or_else(unknown)?;
            sum.wakeups += wakeups(&of("status")?).ok_or_else(unknown)?;
        }
        Ok(sum)
    }

    /// Returns the number of packets that have passed the interfaces of its namespace, in both directions,
    /// without loopback. A super-packet counts as one.
    pub(super) fn packets(&self) -> io::Result<u64> {
        let unknown = || io::Error::other("/proc does not report the packets of an interface");
        packets(&fs::read_to_string(format!("/proc/{}/net/dev", self.child.id()))?).ok_or_else(unknown)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process ends when its standard input ends. Before that it can write files of its own, such as a
        // profile.
        drop(self.child.stdin.take());
        let until = Instant::now() + EXIT_LIMIT;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns field 14 of `/proc/PID/task/TID/stat` (proc_pid_stat(5)); the name before it may contain any
/// characters.
fn user_ticks(stat: &str) -> Option<u64> {
    let (_, behind_name) = stat.rsplit_once(')')?;
    behind_name.split_whitespace().nth(11)?.parse().ok()
}

/// Returns `voluntary_ctxt_switches` of `/proc/PID/task/TID/status` (proc_pid_status(5)).
fn wakeups(status: &str) -> Option<u64> {
    status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?.trim().parse().ok()
}

/// Returns the sum of received and sent packets of `/proc/PID/net/dev` (proc_pid_net(5)).
fn packets(devices: &str) -> Option<u64> {
    let interfaces = devices.lines().filter_map(|line| line.split_once(':'));
    let of = |(_, counts): (&str, &str)| {
        let counts: Vec<u64> = counts.split_whitespace().map_while(|word| word.parse().ok()).collect();
        Some(counts.get(1)? + counts.get(9)?)
    };
    interfaces.filter(|(name, _)| name.trim() != "lo").map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wakeups_of_a_thread_are_read() {
        let status = "Name:\tbrisk\nvoluntary_ctxt_switches:\t42\nnonvoluntary_ctxt_switches:\t7\n";
        assert_eq!(wakeups(status), Some(42));
        assert_eq!(wakeups("Name:\tbrisk\n"), None);
    }

    #[test]
    fn packets_of_all_interfaces_but_loopback_are_added() {
        let devices = "Inter-|   Receive          |  Transmit\n face |bytes    packets errs drop fifo frame compressed multicast|bytes packets\n    \
            lo: 9 9 0 0 0 0 0 0 9 9 0 0 0 0 0 0\nbench0: 100 3 0 0 0 0 0 0 200 4 0 0 0 0 0 0\nbench1: 1 10 0 0 0 0 0 0 2 20 0 0 0 0 0 0\n";
        assert_eq!(packets(devices), Some(37));
        assert_eq!(packets("bench0: 100 3"), None);
    }

    #[test]
    fn the_user_time_of_a_process_is_read() {
        let line = "42 (a (b) c) S 7 1 1 0 -1 4194560 1 2 3 4 100 20 3 4 20 0 1 0 99";
        assert_eq!(user_ticks(line), Some(100));
        assert_eq!(user_ticks("42"), None);
    }

    #[test]
    fn time_of_a_core_is_read() {
        let stat =
            "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 4 800 900 8 16 100 0 0\ncpu1 1 0 0 5 0 0 0 0 0 0\nintr 1\n";
        assert_eq!(busy_ticks(stat, 0), Some(31));
        assert_eq!(busy_ticks(stat, 1), Some(1));
        assert_eq!(busy_ticks(stat, 2), None);
    }
}

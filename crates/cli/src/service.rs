//! Parts common to the subcommands that run until they are stopped.

use std::io;
use std::num::NonZeroUsize;
use std::time::Duration;

use brisk_gateway::log::{Level, Log, LogFormat, Value};
use brisk_gateway::settings::LimitSettings;
use brisk_runtime::attach::Queues;
use brisk_runtime::{Cores, Endpoint};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::failure::Failure;
use crate::{Common, LogFormat as Written};

/// Time to wait for the last acknowledgements at the end.
pub(crate) const DRAIN_WAIT: Duration = Duration::from_millis(500);

/// Runs `work` on a tokio runtime of its own.
pub(crate) fn run<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    runtime(&mut Builder::new_multi_thread())?.block_on(work)
}

/// Like [`run`]. For several queues it uses only the calling thread; `work` starts a thread for each further
/// queue with [`cores`]. For one queue it uses tokio's thread pool.
pub(crate) fn run_on<T>(
    queues: Queues,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    match queues {
        Queues::Exactly(..=1) | Queues::UpTo(..=1) => run(work),
        Queues::Exactly(_) | Queues::UpTo(_) => run_on_one_thread(work),
    }
}

/// Starts a thread for each stack that `builder` will create, except for the first stack, which stays on the
/// current thread. Call it in the `work` of [`run_on`].
pub(crate) fn cores(builder: &brisk_runtime::Builder) -> Result<Cores, Failure> {
    start_cores(builder.stacks())
}

/// Returns the current thread as the only core.
pub(crate) fn one_core() -> Result<Cores, Failure> {
    start_cores(1)
}

fn start_cores(count: usize) -> Result<Cores, Failure> {
    Cores::start(NonZeroUsize::new(count).unwrap_or(NonZeroUsize::MIN))
        .map_err(|error| Failure::failed(format!("cannot start a thread: {error}")))
}

/// Like [`run`], but on the calling thread only. The work may start more threads ([`gateway_cores`]).
pub(crate) fn run_on_one_thread<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = runtime(&mut Builder::new_current_thread())?;
    let done = runtime.block_on(work);
    // A silent name server does not delay the end of the program.
    runtime.shutdown_background();
    done
}

/// Usual number of threads of a frontend and a backend. Each thread has a stack with its own controller for a
/// path, so the connections of a pair with several threads compete with each other for the path.
pub(crate) const PAIR_THREADS: usize = 1;

/// Starts as many threads as the limits say, or else `usual`, less the current one.
pub(crate) fn gateway_cores(limits: &LimitSettings, usual: usize) -> Result<Cores, Failure> {
    start_cores(limits.threads.map_or(usual, usize::from))
}

/// Returns queues for the requested number of cores, or for all cores that this process may use.
pub(crate) fn queues(cores: Option<u8>) -> Queues {
    match cores {
        Some(cores) => Queues::Exactly(cores.into()),
        None => Queues::UpTo(all_cores()),
    }
}

/// Returns the number of available cores, at most 64 as in the flags.
pub(crate) fn all_cores() -> usize {
    Cores::available().get().min(64)
}

fn runtime(builder: &mut Builder) -> Result<Runtime, Failure> {
    raise_descriptors();
    builder.enable_all().build().map_err(|error| Failure::failed(format!("cannot start a thread: {error}")))
}

/// Raises the limit of open descriptors to the maximum that the system permits. Each client and each origin
/// of a gateway takes one, and many shells limit a program to 1,024. Child processes keep the old limit,
/// because they are started earlier.
fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        // A failure is harmless: the program works with fewer.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    }
}

/// Waits until a gateway's last packets have left, and logs the counters of the hop's device. The counters
/// show whether a socket buffer was too small, which causes losses and delays of a second.
pub(crate) async fn drain_and_log(endpoint: &Endpoint, log: &Log) {
    // Data that is not acknowledged by then is lost, and the peer times out.
    let _ = tokio::time::timeout(DRAIN_WAIT, endpoint.wait_idle()).await;
    let device = endpoint.device_counters();
    let mut fields = vec![
        ("packets_in", Value::Count(device.received)),
        ("packets_out", Value::Count(device.sent)),
        ("overflowed", Value::Count(device.receive_overflowed)),
        ("malformed", Value::Count(device.receive_dropped)),
        ("refused", Value::Count(device.send_refused)),
    ];
    if device.unfinished_checksums > 0 {
        fields.push(("unfinished_checksums", Value::Count(device.unfinished_checksums)));
    }
    log.line(Level::Info, "hop", &fields);
}

/// Returns the log that the common flags describe.
pub(crate) fn log(common: &Common) -> Log {
    Log::stderr(log_format(common), if common.quiet { Level::Error } else { Level::Info })
}

pub(crate) fn log_format(common: &Common) -> LogFormat {
    match common.log_format {
        Written::Text => LogFormat::Text,
        Written::Json => LogFormat::Json,
    }
}

/// The signal to stop: SIGINT or SIGTERM.
#[derive(Clone, Debug)]
pub(crate) struct Stop(watch::Receiver<bool>);

impl Stop {
    /// Catches the signals from now on. A second signal, while connections are drained, ends the program at
    /// once.
    pub(crate) fn on_signals() -> Result<Stop, Failure> {
        let failed = |error: io::Error| Failure::failed(format!("cannot catch signals: {error}"));
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let (stop, stopped) = watch::channel(false);
        tokio::spawn(async move {
            for signals in 1.. {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                if signals > 1 {
                    std::process::exit(1);
                }
                crate::systemd::stopping();
                stop.send_replace(true);
            }
        });
        Ok(Stop(stopped))
    }

    /// Returns the result of a service that has ended. Without a signal to stop it is an error, because then
    /// the device of the service has failed.
    pub(crate) fn verdict(&self) -> Result<(), Failure> {
        match *self.0.borrow() {
            true => Ok(()),
            false => Err(Failure::failed(
                "the device failed or was deleted (see the previous line); restart the program",
            )),
        }
    }

    /// Resolves when the signal arrives.
    pub(crate) async fn requested(mut self) {
        // The sender lives as long as the runtime; without it no signal can come.
        if self.0.wait_for(|stop| *stop).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn stop_does_not_wait_for_a_name_server() {
        let began = Instant::now();
        let ended = run_on_one_thread(async {
            // The look-up sleeps on a thread of its own, like the host's resolver.
            tokio::task::spawn_blocking(|| std::thread::sleep(Duration::from_secs(20)));
            tokio::task::yield_now().await;
            Ok(())
        });
        assert!(ended.is_ok() && began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    }
}

//! Operation of a gateway: the admin listener, the signals of an operator, and messages to systemd.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use brisk_gateway::admin::Admin;
use brisk_gateway::log::{Level, Log, Value};
use brisk_gateway::settings::{AdminSettings, Change};
use brisk_gateway::{Facts, FrontendControl, Hop, Metrics, Settings, Shown, Status};
use brisk_runtime::Cores;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;

use crate::failure::Failure;
use crate::service::{self, Stop};
use crate::systemd;

/// Number of labels in the log line about a change of labels.
const SHOWN_LABELS: usize = 8;

/// A side that can read its configuration again.
pub(crate) trait Side: Send + Sync + 'static {
    /// The files with keys, which are watched.
    fn key_files(&self) -> Vec<PathBuf>;

    /// Reads, checks and applies the configuration. On an error the old one stays.
    fn reload(&self) -> impl Future<Output = Result<Reloaded, Failure>> + Send;
}

/// The changes of a reload.
pub(crate) struct Reloaded {
    /// Keys whose values have changed since the last reload.
    changes: Vec<Change>,
    /// Changed keys whose values need a restart.
    waiting: Vec<String>,
}

impl Reloaded {
    /// Returns the differences in the settings and in the hop's keys since the `last` reload.
    pub(crate) fn between(last: &(Settings, Hop), now: &(Settings, Hop), waiting: Vec<String>) -> Reloaded {
        let mut changes = now.0.changed(&last.0);
        if !now.1.has_keys_of(&last.1) {
            let (before, after) = (last.1.summary(), now.1.summary());
            if before != after || last.1.labels() == now.1.labels() {
                changes.push(Change { key: "keys".to_owned(), before, after });
            }
            changes.extend(labels(&last.1, &now.1));
        }
        Reloaded { changes, waiting }
    }

    pub(crate) fn with(mut self, change: Option<Change>) -> Reloaded {
        self.changes.extend(change);
        self
    }

    fn log_changes(self, log: &Log) {
        let Reloaded { changes, waiting } = self;
        for Change { key, before, after } in &changes {
            let mut fields = vec![
                ("key", Value::Text(key.clone())),
                ("before", Value::Text(before.clone())),
                ("after", Value::Text(after.clone())),
            ];
            if waiting.contains(key) {
                fields.push(("effect", Value::Text("after a restart".to_owned())));
            }
            log.line(Level::Info, "changed", &fields);
        }
        let mut fields = vec![("changes", Value::Count(changes.len() as u64))];
        let level = if waiting.is_empty() { Level::Info } else { Level::Warning };
        if !waiting.is_empty() {
            fields.push(("needs_restart", Value::Text(waiting.join(","))));
        }
        log.line(level, "reloaded", &fields);
    }
}

/// Returns the removed and the added labels of the other side's keys.
fn labels(last: &Hop, now: &Hop) -> Option<Change> {
    let (last, now) = (last.labels(), now.labels());
    let listed = |labels: Vec<&str>| match labels.get(SHOWN_LABELS..) {
        Some(more @ [_, ..]) => format!("{} and {} more", labels[..SHOWN_LABELS].join(", "), more.len()),
        _ => labels.join(", "),
    };
    let before = listed(last.difference(&now).map(|label| &**label).collect());
    let after = listed(now.difference(&last).map(|label| &**label).collect());
    let key = "labels".to_owned();
    (!before.is_empty() || !after.is_empty()).then_some(Change { key, before, after })
}

/// Runs the services until it is dropped.
pub(crate) struct Operation {
    tasks: JoinSet<()>,
}

/// The resources that a frontend, a backend or an edge opens first.
pub(crate) struct Opened {
    /// The cores that the limits permit.
    pub(crate) cores: Cores,
    pub(crate) stop: Stop,
    pub(crate) operator: Operator,
}

/// How the operator reaches the process.
pub(crate) struct Operator {
    /// The admin listener, if there is one; it is opened before a side reports its start.
    admin: Option<Admin>,
    /// SIGHUP. A signal that arrives while an edge waits for its port is answered after the start.
    hangup: Signal,
}

impl Opened {
    /// Opens the resources, and begins to report to systemd's watchdog. Call it on the runtime that will use
    /// them. `threads`: their number if the settings do not say it.
    pub(crate) fn by(settings: &Settings, threads: usize) -> Result<Opened, Failure> {
        tokio::spawn(systemd::watchdog());
        let cores = service::gateway_cores(&settings.limits, threads)?;
        let stop = Stop::on_signals()?;
        let AdminSettings { listen, token_file } = &settings.admin;
        let admin = listen.map(|listen| Admin::bind(listen, token_file.as_deref()));
        let admin = admin.transpose().map_err(Failure::failed)?;
        let hangup = signal(SignalKind::hangup()).map_err(cannot_catch)?;
        Ok(Opened { cores, stop, operator: Operator { admin, hangup } })
    }
}

impl Operation {
    /// Starts the services and reports the start to systemd.
    pub(crate) fn begin(
        operator: Operator,
        facts: Facts,
        metrics: Arc<Metrics>,
        frontend: Option<FrontendControl>,
        side: impl Side,
        log: &Log,
    ) -> Result<Operation, Failure> {
        let Operator { admin, hangup } = operator;
        let shown = Shown { facts, metrics, frontend };
        let mut tasks = JoinSet::new();
        // The task starts before the admin listener is logged, because a reader of that line may send the
        // signal.
        tasks.spawn(reloads(hangup, side, log.clone()));
        tasks.spawn(dumps(shown.clone(), log.clone())?);
        if let Some(admin) = admin {
            let fields = [("listen", Value::Text(admin.local_addr()?.to_string()))];
            log.line(Level::Info, "admin", &fields);
            tasks.spawn(admin.run(shown, log.clone()));
        }
        systemd::ready();
        Ok(Operation { tasks })
    }

    /// Stops the services.
    pub(crate) fn end(mut self) {
        self.tasks.abort_all();
    }
}

/// Reloads at SIGHUP, and when a file with keys has changed: the change of a mounted secret sends no signal.
async fn reloads(mut hangup: Signal, side: impl Side, log: Log) {
    let mut known = versions(&side.key_files());
    loop {
        tokio::select! {
            order = hangup.recv() => if order.is_none() { return },
            () = changed(&known, &side) => {}
        }
        known = versions(&side.key_files());
        systemd::reloading();
        match side.reload().await {
            Ok(reloaded) => reloaded.log_changes(&log),
            Err(failure) => {
                let fields = [("reason", Value::Text(failure.message))];
                log.line(Level::Error, "not-reloaded", &fields);
            }
        }
        systemd::ready();
    }
}

/// Interval between two checks of the files with keys.
const INTERVAL: Duration = Duration::from_secs(1);

/// Identifies the content of a file: inode, size, and the time of the last change in seconds and nanoseconds.
type Version = (u64, u64, i64, i64);

fn versions(files: &[PathBuf]) -> Vec<Option<Version>> {
    let version = |file: &PathBuf| {
        let of = std::fs::metadata(file).ok()?;
        Some((of.ino(), of.size(), of.mtime(), of.mtime_nsec()))
    };
    files.iter().map(version).collect()
}

/// Resolves when the versions of the files with keys differ from these.
async fn changed(known: &[Option<Version>], side: &impl Side) {
    let mut last = Vec::new();
    loop {
        tokio::time::sleep(INTERVAL).await;
        let now = versions(&side.key_files());
        if are_replaced(known, &last, &now) {
            return;
        }
        last = now;
    }
}

/// True if the files differ from the `known` ones and have not changed since the `last` check. A missing file
/// is being replaced. A file that still changes is being written: a program may have emptied it first, and an
/// empty list of public keys would refuse all frontends.
fn are_replaced(known: &[Option<Version>], last: &[Option<Version>], now: &[Option<Version>]) -> bool {
    now != known && now == last && now.iter().all(Option::is_some)
}

/// Logs the status at SIGUSR1.
fn dumps(shown: Shown, log: Log) -> Result<impl Future<Output = ()> + Send, Failure> {
    let mut order = signal(SignalKind::user_defined1()).map_err(cannot_catch)?;
    Ok(async move {
        while order.recv().await.is_some() {
            let Shown { facts, metrics, frontend } = &shown;
            let status = Status::of(facts, metrics, frontend.as_ref()).json();
            log.line(Level::Info, "status", &[("status", Value::Text(status))]);
        }
    })
}

fn cannot_catch(error: std::io::Error) -> Failure {
    Failure::failed(format!("cannot catch signals: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_read_once_it_is_written() {
        let known = [Some((1, 40, 100, 0))];
        let (empty, whole) = ([Some((1, 0, 200, 0))], [Some((1, 80, 200, 5))]);
        assert!(!are_replaced(&known, &known, &known));
        assert!(!are_replaced(&known, &known, &empty), "it may be written right now");
        assert!(!are_replaced(&known, &empty, &whole), "more may follow");
        assert!(!are_replaced(&known, &[None], &[None]), "another file takes its place");
        assert!(are_replaced(&known, &whole, &whole));
        assert!(are_replaced(&known, &empty, &empty), "the operator has emptied it");
    }
}

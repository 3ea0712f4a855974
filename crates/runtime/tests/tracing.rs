//! Events for the crate `tracing` (feature `tracing`).

use std::fmt::{Debug, Write};
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use brisk_runtime::{TcpListener, memory};
use tokio::io::AsyncReadExt;
use tracing::field::Field;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The events of the runtime, one line each.
struct Lines(Arc<Mutex<Vec<String>>>);

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("brisk_runtime")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = event.metadata().level().to_string();
        event.record(&mut |field: &Field, value: &dyn Debug| write!(line, " {field}={value:?}").unwrap());
        self.0.lock().unwrap().push(line);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test(start_paused = true)]
async fn life_of_a_connection_and_the_end_of_an_endpoint_are_events() {
    let lines = Arc::default();
    let _guard = tracing::subscriber::set_default(Lines(Arc::clone(&lines)));
    let (a, b) = memory::network(&memory::LinkSpec::default(), 1).unwrap();
    let listener = TcpListener::bind(&b, "10.0.0.2:80".parse().unwrap()).unwrap();
    let (client, accepted) = tokio::join!(a.connect(listener.local_addr()), listener.accept());
    drop(client.unwrap());
    let mut accepted = accepted.unwrap().0;
    assert_eq!(accepted.read(&mut [0]).await.unwrap(), 0);
    drop(accepted);
    let refused = a.connect("10.0.0.2:81".parse().unwrap()).await.unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    drop(listener);
    b.close(Duration::from_secs(1)).await;
    drop((a, b));
    tokio::time::sleep(Duration::from_secs(1)).await;

    let lines = lines.lock().unwrap();
    let with = |level: &str, words: &[&str]| {
        let is_it = |line: &&String| line.starts_with(level) && words.iter().all(|word| line.contains(word));
        lines.iter().filter(is_it).count()
    };
    assert_eq!(
        with("DEBUG", &["connection established", "is_active=true", "remote=10.0.0.2:80"]),
        1,
        "{lines:?}"
    );
    assert_eq!(
        with("DEBUG", &["connection established", "is_active=false", "local=10.0.0.2:80"]),
        1,
        "{lines:?}"
    );
    assert_eq!(with("DEBUG", &["connection closed", "reason=", "sent=", "received="]), 2, "{lines:?}");
    assert_eq!(with("DEBUG", &["connection failed", "remote=10.0.0.2:81", "refused"]), 1, "{lines:?}");
    // Dropping all handles of the first endpoint is not an event.
    assert_eq!((with("DEBUG", &["endpoint closed"]), with("ERROR", &[])), (1, 0), "{lines:?}");
}

#[test]
fn end_of_the_runtime_under_an_endpoint_is_an_error() {
    let lines = Arc::default();
    let _guard = tracing::subscriber::set_default(Lines(Arc::clone(&lines)));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (_a, _b) = runtime.block_on(async { memory::network(&memory::LinkSpec::default(), 1).unwrap() });
    drop(runtime);
    let lines = lines.lock().unwrap();
    let is_told =
        |line: &&String| line.starts_with("ERROR") && line.contains("runtime that this endpoint ran on");
    assert_eq!(lines.iter().filter(is_told).count(), 2, "{lines:?}");
}

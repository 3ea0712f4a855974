//! Observers of an endpoint: their events, the order of events, and the thread that calls them.

use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use brisk_runtime::endpoint::Builder;
use brisk_runtime::memory::{self, LinkSpec};
use brisk_runtime::{CloseReason, Endpoint, Lifecycle, LifecycleEvent, Observation, TcpListener};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout};

const LIMIT: Duration = Duration::from_secs(30);

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn builders() -> (Builder, Builder) {
    memory::builders(&LinkSpec::parse("--rtt 20ms").unwrap(), 1)
}

/// Returns the builder with an observer, and the observer's events.
fn observed(builder: Builder) -> (Builder, Receiver<LifecycleEvent>) {
    let (to_test, heard) = channel();
    // The test may end before the last connection does.
    let observer = move |event: &LifecycleEvent| drop(to_test.send(event.clone()));
    (builder.observe(observer), heard)
}

fn changes(heard: &Receiver<LifecycleEvent>) -> Vec<Lifecycle> {
    heard.try_iter().map(|event| event.change).collect()
}

#[tokio::test(start_paused = true)]
async fn dropped_connections_are_reported_until_their_end() {
    let (a, b) = builders();
    let ((a, at_client), (b, at_server)) = (observed(a), observed(b));
    let (a, b) = (a.build().unwrap(), b.build().unwrap());
    let listener = TcpListener::bind(&b, at("10.0.0.2:80")).unwrap();
    let mut client = a.connect(at("10.0.0.2:80")).await.unwrap();
    let local = client.local_addr();
    client.write_all(&[7; 5_000]).await.unwrap();
    drop(client);
    let (mut server, _) = listener.accept().await.unwrap();
    assert_eq!(server.read_to_end(&mut Vec::new()).await.unwrap(), 5_000);
    drop(server);
    timeout(LIMIT, async { tokio::join!(a.wait_idle(), b.wait_idle()) }).await.unwrap();

    let [at_client, at_server] = [at_client, at_server].map(|heard| heard.try_iter().collect::<Vec<_>>());
    for (events, is_active) in [(&at_client, true), (&at_server, false)] {
        let changes: Vec<_> = events.iter().map(|event| event.change).collect();
        assert_eq!(changes, [Lifecycle::Established, Lifecycle::Closed(CloseReason::Finished)]);
        assert!(events.iter().all(|event| event.is_active == is_active));
    }
    let counted = |events: &[LifecycleEvent]| events[1].stats.counters;
    assert_eq!((at_client[1].ends.local, at_server[1].ends.remote), (local, local));
    assert_eq!(counted(&at_client).payload_bytes_acked, 5_000);
    assert_eq!(counted(&at_server).payload_bytes_received, 5_000);
}

#[tokio::test(start_paused = true)]
async fn failed_and_aborted_connections_are_reported_with_their_cause() {
    let (a, b) = builders();
    let ((a, at_client), (b, at_server)) = (observed(a), observed(b));
    let (a, b) = (a.build().unwrap(), b.build().unwrap());
    a.connect(at("10.0.0.2:80")).await.unwrap_err();
    assert_eq!(changes(&at_client), [Lifecycle::Failed(CloseReason::Refused)]);
    timeout(Duration::from_millis(5), a.connect(at("10.0.0.2:80"))).await.unwrap_err();
    // The driver reports it in its next round.
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(changes(&at_client), [Lifecycle::Failed(CloseReason::Aborted)]);

    let _listener = TcpListener::bind(&b, at("10.0.0.2:80")).unwrap();
    let client = a.connect(at("10.0.0.2:80")).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(b.close(Duration::ZERO).await, 1);
    timeout(LIMIT, a.wait_idle()).await.unwrap();
    drop(client);
    assert_eq!(changes(&at_client), [Lifecycle::Established, Lifecycle::Closed(CloseReason::Reset)]);
    let ends = [CloseReason::ListenerClosed, CloseReason::Aborted].map(Lifecycle::Closed);
    let heard = changes(&at_server);
    assert_eq!((heard.len(), heard[0]), (2, Lifecycle::Established));
    assert!(ends.contains(&heard[1]), "{heard:?}");
}

#[tokio::test]
async fn observers_may_use_the_endpoint_because_the_stack_is_not_locked() {
    let (a, b) = builders();
    let endpoint = Arc::new(OnceLock::<Endpoint>::new());
    let (to_test, asked) = channel();
    let observer = {
        let endpoint = endpoint.clone();
        move |event: &LifecycleEvent| {
            // Runs in its own thread, so that a held lock fails the test instead of blocking it.
            let (endpoint, (answer, answered)) = (endpoint.clone(), channel());
            std::thread::spawn(move || answer.send(endpoint.get().map(Endpoint::connections)));
            to_test.send((event.change, answered.recv_timeout(Duration::from_secs(20)))).unwrap();
        }
    };
    let (a, b) = (a.observe(observer).build().unwrap(), b.build().unwrap());
    endpoint.set(a.clone()).unwrap();
    let _listener = TcpListener::bind(&b, at("10.0.0.2:80")).unwrap();
    let _client = timeout(LIMIT, a.connect(at("10.0.0.2:80"))).await.unwrap().unwrap();
    assert_eq!(asked.try_recv().unwrap(), (Lifecycle::Established, Ok(Some(1))));
}

#[tokio::test]
async fn panic_of_an_observer_is_reported_as_one() {
    let (a, b) = builders();
    let a = a.observe(|_| panic!("a defect of the program")).build().unwrap();
    let b = b.build().unwrap();
    let _listener = TcpListener::bind(&b, at("10.0.0.2:80")).unwrap();
    let began = Instant::now();
    let error = match timeout(LIMIT, a.connect(at("10.0.0.2:80"))).await.unwrap() {
        Ok(mut stream) => timeout(LIMIT, stream.read_u8()).await.unwrap().unwrap_err(),
        Err(error) => error,
    };
    assert_eq!((error.kind(), error.to_string().as_str()), (io::ErrorKind::Other, "the observer panicked"));
    assert!(began.elapsed() < LIMIT, "a task was not woken");
}

#[tokio::test(start_paused = true)]
async fn observations_reach_their_observer_in_order_and_all_of_them() {
    let (a, b) = builders();
    let observations = Arc::new(Mutex::new(Vec::new()));
    let to_test = observations.clone();
    let a = a.trace(move |_, at, observation| to_test.lock().unwrap().push((at, *observation)));
    let (a, b) = (a.build().unwrap(), b.build().unwrap());
    let listener = TcpListener::bind(&b, at("10.0.0.2:80")).unwrap();
    let (client, accepted) = tokio::join!(a.connect(at("10.0.0.2:80")), listener.accept());
    let (mut client, (mut server, _)) = (client.unwrap(), accepted.unwrap());
    client.write_all(&[7; 100_000]).await.unwrap();
    client.shutdown().await.unwrap();
    assert_eq!(server.read_to_end(&mut Vec::new()).await.unwrap(), 100_000);
    drop(server);
    timeout(LIMIT, a.wait_idle()).await.unwrap();
    let sent = client.stats().unwrap().counters.data_segments_out;
    let observations = observations.lock().unwrap();
    assert!(observations.is_sorted_by_key(|(at, _)| *at));
    let of_data =
        |observation: &&_| matches!(observation, (_, Observation::Sent { range, .. }) if range.len() > 1);
    assert!(sent > 60 && observations.iter().filter(of_data).count() as u64 + 1 >= sent);
    assert_eq!((a.stats().observations_dropped, b.stats().observations_dropped), (0, 0));
}

//! The demonstration, in real time. It is a test program of its own, so that no other tests compete for the
//! processor.

use std::time::Duration;

use brisk_lab::demo::{Demo, Snapshot};
use brisk_link::LinkSpec;
use brisk_runtime::profile::Profile;

fn demo(link: &str, seconds: u64) -> Demo {
    Demo {
        link: LinkSpec::parse(link).unwrap(),
        // Two profiles are enough: in builds without optimisation the encryption of the tunnel is slow.
        arms: Profile::parse_list("tcp; tcp+tfo").unwrap(),
        response_bytes: 5_000,
        size_text: "5kB".to_owned(),
        per_second: 15.0,
        simulated: 100,
        warm_up: Duration::from_secs(1),
        duration: Duration::from_secs(seconds),
        seed: 1,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_through_gateways_and_link_take_two_round_trips() {
    let (mut looks, mut warm_up) = (0, Vec::new());
    let demo = demo("--rtt 40ms --loss 1%", 3);
    let on_progress = &mut |snapshot: &Snapshot| match snapshot.warming_up {
        true => warm_up.push(snapshot.elapsed),
        false => looks += 1,
    };
    let report = demo.run(std::future::pending(), on_progress).await.unwrap();
    let arm = &report.arms[0];
    assert!(warm_up.len() >= 2 && looks >= 4, "{warm_up:?} {looks}");
    assert!(warm_up.is_sorted(), "the elapsed time never restarts within the warm-up: {warm_up:?}");
    assert_eq!(report.workload.request_bytes, 87, "the length of the request that the load sends");
    assert!((26..75).contains(&arm.measured.n), "the warm-up is not counted: {arm:?}");
    assert_eq!(arm.measured.completed, arm.measured.n, "{arm:?}");
    assert_eq!(arm.simulated_ms.p50, 80.0);
    // The upper bound only excludes a stall: on a busy machine the encryption is slow.
    assert!((80.0..1000.0).contains(&arm.measured.ms.p50), "{arm:?}");
    assert!((1.05..2.0).contains(&arm.measured.wire_ratio), "{arm:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn demonstration_can_be_stopped_early() {
    let demo = Demo { simulated: 10, ..demo("--rtt 20ms", 60) };
    let stop = tokio::time::sleep(Duration::from_secs(5));
    let report = demo.run(stop, &mut |_| {}).await.unwrap();
    assert!(report.seconds < 10.0 && report.arms[0].measured.completed > 0, "{report:?}");
}

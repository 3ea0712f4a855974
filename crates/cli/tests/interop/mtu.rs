//! A path with a smaller MTU than at both ends: with the ICMP errors that report it, and without them.

use std::time::{Duration, Instant};

use crate::link::{FAR, Link};
use crate::pages::{Pages, fetches};
use crate::process::{Process, run, text};
use crate::serve;

const NARROW: &[&str] = &["--rtt", "20ms", "--mtu", "1400"];
/// Rules for a router that sends no ICMP errors.
const SILENCE: &str = "table inet silence { chain forward { type filter hook forward priority 0; \
                       icmp type destination-unreachable drop; icmpv6 type packet-too-big drop; }; }";

/// Fetches from `brisk serve` over the narrow link, once per family, each within `limit`.
fn fetch_within(limit: Duration, link: &Link) {
    let pages = Pages::new();
    let page = pages.write("page", 1_000_000);
    link.route_beyond_far(&["10.7.0.0/24", "fd07::/64"]);
    let _server = serve::serve(&link.far, &pages);
    for host in ["10.7.0.2", "[fd07::2]"] {
        let (began, url) = (Instant::now(), format!("http://{host}/page"));
        fetches(link.near.command("curl").args(["-sSfg", "-m", "30", &url]), &page, 1);
        assert!(began.elapsed() < limit, "{url} took {:?}", began.elapsed());
    }
}

#[test]
fn mtu_reported_by_a_router_is_used() {
    require!("curl");
    let link = Link::start(NARROW);
    // The limit is less than three timeouts, so the sender learned the MTU from the error, not from losses.
    fetch_within(Duration::from_secs(3), &link);
    assert!(link.stop()["down"]["dropped_mtu"].as_u64() > Some(0), "the path was too narrow");
}

#[test]
fn black_hole_is_found_without_an_icmp_error() {
    require!("curl", "nft");
    let link = Link::start(NARROW);
    run(link.far.command("nft").arg(SILENCE));
    fetch_within(Duration::from_secs(20), &link);
    assert!(link.stop()["down"]["dropped_mtu"].as_u64() > Some(0), "the path was too narrow");
}

/// The handshake of a gateway pair announces segments that are too large for the path.
#[test]
fn the_doctor_tests_the_segment_that_it_reports() {
    require!();
    for (words, says) in [
        (&["--rtt", "20ms"][..], "bytes of payload, tested in both directions"),
        (NARROW, "bytes of payload do not pass"),
    ] {
        let link = Link::start(words);
        let backend = ["backend", "--listen", ":7443", "--to", "127.0.0.1:80", "--plain"];
        let backend = Process::start("brisk backend", &mut link.far.brisk(&backend));
        backend.until_it_says("listen=");
        let peer = format!("{}:7443", FAR[0].ip);
        let doctor = link.near.brisk(&["doctor", &peer, "--plain", "--probes", "1"]).output();
        let said = text(&doctor.expect("the doctor").stdout);
        let segment = said.lines().find(|line| line.contains(" segment "));
        assert!(segment.is_some_and(|line| line.contains(says)), "{words:?}:\n{said}");
    }
}

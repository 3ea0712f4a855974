//! The packets of our stack on the wire, in both roles, in tshark on a link without offloads.

use std::path::Path;

use crate::capture::{Capture, assert_sound, tshark};
use crate::get;
use crate::link::{FAR, LOSSY, Link};
use crate::nginx;
use crate::pages::{Pages, fetches};
use crate::serve;

#[test]
fn serving_speaks_correct_tcp_with_all_the_usual_options() {
    require!("curl", "dumpcap", "tshark");
    let (link, pages) = (Link::start(LOSSY), Pages::new());
    let page = pages.write("page", 1_000_000);
    link.route_beyond_far(&["10.7.0.0/24", "fd07::/64"]);
    let _server = serve::serve(&link.far, &pages);
    let capture = Capture::start(&link.near, "brisk0", pages.path("capture"));
    for host in ["10.7.0.2", "[fd07::2]"] {
        let url = format!("http://{host}/page");
        fetches(link.near.command("curl").args(["-sSfg", "-m", "60", &url]), &page, 1);
    }
    let file = capture.stop(2);
    assert_sound(&file);
    for ours in ["ip.src == 10.7.0.2", "ipv6.src == fd07::2"] {
        assert_negotiates(&file, &format!("{ours} && tcp.flags.syn == 1"));
        assert_every_segment_has_timestamps(&file, ours);
    }
}

#[test]
fn fetching_speaks_correct_tcp_with_all_the_usual_options() {
    require!("nginx", "dumpcap", "tshark");
    let (link, pages) = (Link::start(LOSSY), Pages::new());
    let page = pages.write("page", 1_000_000);
    link.route_beyond_near(&["10.8.0.0/24", "fd08::/64"]);
    let _nginx = nginx::serve(&link.far, &pages);
    let capture = Capture::start(&link.far, "brisk0", pages.path("capture"));
    for address in FAR {
        let mut get = link.near.brisk(&["get", &format!("http://{}/page", address.url)]);
        fetches(get.args(get::DEVICE), &page, 1);
    }
    let file = capture.stop(2);
    assert_sound(&file);
    for ours in ["ip.src == 10.8.0.2", "ipv6.src == fd08::2"] {
        assert_negotiates(&file, &format!("{ours} && tcp.flags.syn == 1"));
        assert_every_segment_has_timestamps(&file, ours);
        let with_holes = tshark(&file, &format!("{ours} && tcp.options.sack.count > 0"), &["frame.number"]);
        assert!(!with_holes.is_empty(), "losses on the way here are reported in SACK blocks");
    }
}

/// Checks that the SYN or SYN-ACK offers a segment size, window scaling, SACK and timestamps.
fn assert_negotiates(file: &Path, filter: &str) {
    let fields = [
        "tcp.options.mss_val",
        "tcp.options.wscale.shift",
        "tcp.options.sack_perm",
        "tcp.options.timestamp.tsval",
    ];
    let syns = tshark(file, filter, &fields);
    assert!(!syns.is_empty(), "no packet is {filter}");
    for syn in syns {
        let values: Vec<&str> = syn.split('\t').collect();
        assert!(
            values.len() == fields.len() && values.iter().all(|value| !value.is_empty()),
            "{filter}: {syn}"
        );
        let scale: u32 = values[1].parse().expect("a shift");
        assert!((1..=14).contains(&scale), "{syn}");
    }
}

/// RFC 7323 section 3.2: once negotiated, a timestamp is in every segment but a reset.
fn assert_every_segment_has_timestamps(file: &Path, ours: &str) {
    let without = format!("{ours} && tcp.flags.reset == 0 && !tcp.options.timestamp.tsval");
    assert_eq!(tshark(file, &without, &["frame.number", "_ws.col.Info"]), Vec::<String>::new());
}

//! Kernels with parts of modern TCP switched off or on: options that are not negotiated are not used, and all
//! data still arrives.

use std::collections::BTreeMap;
use std::path::Path;

use crate::capture::{Capture, assert_sound, tshark};
use crate::get;
use crate::link::{FAR, LOSSY, Link};
use crate::namespace::Namespace;
use crate::nginx;
use crate::pages::{Pages, fetches};
use crate::serve;

/// Changes in `net.ipv4` for one transfer; the names apply to both families.
const PEERS: [&[(&str, &str)]; 5] = [
    &[("tcp_sack", "0")],
    &[("tcp_timestamps", "0")],
    &[("tcp_window_scaling", "0")],
    &[("tcp_sack", "0"), ("tcp_timestamps", "0"), ("tcp_window_scaling", "0")],
    &[("tcp_ecn", "1")],
];
/// The initial state of a namespace.
const USUAL: [(&str, &str); 4] =
    [("tcp_sack", "1"), ("tcp_timestamps", "1"), ("tcp_window_scaling", "1"), ("tcp_ecn", "2")];

/// Runs `transfer` against the kernel of `namespace` with each of these settings.
fn with_each_peer(namespace: &Namespace, mut transfer: impl FnMut(usize)) {
    for (i, settings) in PEERS.iter().enumerate() {
        USUAL.iter().chain(*settings).for_each(|(name, value)| namespace.set(&format!("ipv4/{name}"), value));
        transfer(i);
    }
}

#[test]
fn serve_works_with_every_kind_of_client() {
    require!("curl", "dumpcap", "tshark");
    let (link, pages) = (Link::start(LOSSY), Pages::new());
    let page = pages.write("page", 300_000);
    link.route_beyond_far(&["10.7.0.0/24", "fd07::/64"]);
    let _server = serve::serve(&link.far, &pages);
    let capture = Capture::start(&link.near, "brisk0", pages.path("capture"));
    with_each_peer(&link.near, |i| {
        let url = format!("http://{}/page", ["10.7.0.2", "[fd07::2]"][i % 2]);
        fetches(link.near.command("curl").args(["-sSfg", "-m", "60", &url]), &page, 1);
    });
    assert_answers_only_what_was_offered(&capture.stop(PEERS.len()));
}

#[test]
fn get_works_with_every_kind_of_server() {
    require!("nginx", "dumpcap", "tshark");
    let (link, pages) = (Link::start(LOSSY), Pages::new());
    let page = pages.write("page", 300_000);
    link.route_beyond_near(&["10.8.0.0/24", "fd08::/64"]);
    let _nginx = nginx::serve(&link.far, &pages);
    let capture = Capture::start(&link.far, "brisk0", pages.path("capture"));
    with_each_peer(&link.far, |i| {
        let url = format!("http://{}/page", FAR[i % 2].url);
        fetches(link.near.brisk(&["get", &url]).args(get::DEVICE), &page, 1);
    });
    assert_answers_only_what_was_offered(&capture.stop(PEERS.len()));
}

/// Options that work only if both sides send them on their SYN.
const NEGOTIATED: [&str; 3] =
    ["tcp.options.sack_perm", "tcp.options.timestamp.tsval", "tcp.options.wscale.shift"];

/// Checks that a SYN-ACK has only options of the SYN, and a later segment only options of both.
fn assert_answers_only_what_was_offered(file: &Path) {
    assert_sound(file);
    let mut agreed: BTreeMap<String, [bool; 3]> = BTreeMap::new();
    let fields = [&["tcp.stream", "tcp.flags.ack"], &NEGOTIATED[..]].concat();
    for syn in tshark(file, "tcp.flags.syn == 1", &fields) {
        let values: Vec<&str> = syn.split('\t').collect();
        let offers = [2, 3, 4].map(|field| values.get(field).is_some_and(|value| !value.is_empty()));
        match agreed.get_mut(values[0]) {
            Some(agreed) => {
                let surplus = offers.iter().zip(&*agreed).any(|(answered, offered)| *answered && !offered);
                assert!(!surplus || values[1] == "0", "answers with an option that was not offered: {syn}");
                agreed.iter_mut().zip(offers).for_each(|(both, one)| *both &= one);
            }
            None => drop(agreed.insert(values[0].to_owned(), offers)),
        }
    }
    assert_eq!(agreed.len(), PEERS.len(), "a connection for each peer");
    for (stream, [sack, timestamps, _]) in agreed {
        let unused = [("tcp.options.sack.count", sack), ("tcp.options.timestamp.tsval", timestamps)];
        for (option, _) in unused.into_iter().filter(|(_, agreed)| !agreed) {
            let filter = format!("tcp.stream == {stream} && tcp.flags.syn == 0 && {option}");
            assert_eq!(tshark(file, &filter, &["frame.number"]), Vec::<String>::new(), "{filter}");
        }
    }
}

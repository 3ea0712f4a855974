//! Both roles over a link that loses 2 % of the packets and reorders others.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use crate::get;
use crate::link::{FAR, LOSSY, Link};
use crate::namespace::Namespace;
use crate::nginx;
use crate::pages::{Pages, fetches};
use crate::scale::Scale;
use crate::serve;

/// Bytes of a short transfer.
const SHORT: u64 = 30_000;
/// Number of concurrent clients.
const CLIENTS: u32 = 4;

#[test]
fn serve_delivers_short_and_long_files_unchanged() {
    require!("curl");
    let (link, pages, scale) = (Link::start(LOSSY), Pages::new(), Scale::chosen());
    let (short, bulk) = (pages.write("short", SHORT), pages.write("bulk", scale.lossy_bulk));
    link.route_beyond_far(&["10.7.0.0/24", "fd07::/64"]);
    let _server = serve::serve(&link.far, &pages);
    let hosts = ["10.7.0.2", "[fd07::2]"];
    many(scale.lossy_fetches, |i| {
        let url = format!("http://{}/short", hosts[i as usize % 2]);
        fetches(link.near.command("curl").args(["-sSfg", "-m", "60", &url]), &short, 1);
    });
    for host in hosts {
        let url = format!("http://{host}/bulk");
        fetches(link.near.command("curl").args(["-sSfg", "-m", Scale::chosen().patience, &url]), &bulk, 1);
    }
    let counted = link.stop();
    assert!(counted["down"]["dropped_loss"].as_u64() > Some(100), "the link did lose packets: {counted}");
}

#[test]
fn get_receives_short_and_long_files_unchanged() {
    require!("nginx");
    let (link, pages, scale) = (Link::start(LOSSY), Pages::new(), Scale::chosen());
    let (short, bulk) = (pages.write("short", SHORT), pages.write("bulk", scale.lossy_bulk));
    link.route_beyond_near(&["10.8.0.0/24", "fd08::/64", "10.9.0.0/24", "fd09::/64"]);
    let _nginx = nginx::serve(&link.far, &pages);
    let get = |namespace: &Namespace, file: &str, device: &[&str], repeat: u32, url: &str| {
        let words = [
            "get",
            &format!("http://{url}/{file}"),
            "--timeout",
            &format!("{}s", Scale::chosen().patience),
            "--repeat",
            &repeat.to_string(),
        ];
        let mut command = namespace.brisk(&words);
        command.args(device);
        command
    };
    // A stack for each family, both at the same time.
    let second = ["--device", "tun:brisk2", "--addr", "10.9.0.2/24,fd09::2/64"];
    let times = scale.lossy_fetches / 2;
    thread::scope(|scope| {
        for (device, address) in [&get::DEVICE, &second].into_iter().zip(FAR) {
            let (link, short, bulk) = (&link, &short, &bulk);
            scope.spawn(move || {
                fetches(&mut get(&link.near, "short", device, times, address.url), short, times);
                fetches(&mut get(&link.near, "bulk", device, 1, address.url), bulk, 1);
            });
        }
    });
    let counted = link.stop();
    assert!(counted["down"]["dropped_loss"].as_u64() > Some(100), "the link did lose packets: {counted}");
}

/// Runs `one` this many times, [`CLIENTS`] at a time.
pub(crate) fn many(times: u32, one: impl Fn(u32) + Sync) {
    let next = AtomicU32::new(0);
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                while let Some(i) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|i| *i < times) {
                    one(i);
                }
            });
        }
    });
}

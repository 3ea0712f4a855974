//! The kernel with itself over the emulated link: a failure here is one of the test environment, not of the
//! stack.

use crate::capture::assert_sound;
use crate::link::{CLEAN, FAR, LOSSY, Link};
use crate::nginx;
use crate::pages::{Pages, fetches};

#[test]
fn curl_fetches_from_nginx_over_a_clean_and_a_lossy_link() {
    require!("nginx", "curl", "tshark");
    let pages = Pages::new();
    let page = pages.write("page", 2_000_000);
    let recording = pages.path("recording");
    let record = ["--pcap", recording.to_str().expect("a plain name")];
    for (words, is_lossy) in [(CLEAN, false), (LOSSY, true)] {
        let link = Link::start(&[words, &record].concat());
        let nginx = nginx::serve(&link.far, &pages);
        for address in FAR {
            let url = format!("http://{}/page", address.url);
            fetches(link.near.command("curl").args(["-sSfg", "-m", "60", &url]), &page, 1);
        }
        drop(nginx);
        let counted = link.stop();
        let lost = counted["down"]["dropped_loss"].as_u64();
        assert_eq!(lost.map(|lost| lost > 0), Some(is_lossy), "{counted}");
        assert_sound(&recording);
    }
}

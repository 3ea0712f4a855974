//! Runs every script of `scripts/<topic>/`, one test per topic.

use std::path::{Path, PathBuf};

use brisk_script::{Options, run_file};

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts")
}

fn run_topic(topic: &str) {
    let entries = std::fs::read_dir(scripts().join(topic)).expect("the topic has a directory");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("readable").path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "pkt"));
    files.sort();
    assert!(!files.is_empty(), "{topic} has no scripts");
    let failures: Vec<String> = files
        .iter()
        .filter_map(|file| run_file(file, &Options::default()).err())
        .map(|error| error.to_string())
        .collect();
    assert!(failures.is_empty(), "{} of {} fail\n{}", failures.len(), files.len(), failures.join("\n"));
}

macro_rules! topics {
    ($($topic:ident)*) => {
        const TOPICS: &[&str] = &[$(stringify!($topic)),*];
        $(
            #[test]
            fn $topic() {
                run_topic(stringify!($topic));
            }
        )*
    };
}

topics! {
    handshake
    transfer
    close
    delayed_ack
    window
    time_wait
    reset
    rto
    recovery
    sack
    ecn
    urgent
    icmp
    keepalive
    timestamps
    fast_open
    proactive
    reactive
    corrective
    language
    matrix
    sockets
}

#[test]
fn every_topic_has_its_test() {
    let entries = std::fs::read_dir(scripts()).expect("the scripts are there");
    for entry in entries {
        let name = entry.expect("readable").file_name();
        let name = name.to_string_lossy();
        assert!(TOPICS.contains(&name.as_ref()), "scripts/{name} is not in the list of topics");
    }
}

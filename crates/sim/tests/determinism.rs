//! The same seed gives the same packets at the same microseconds, and the same results.

use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;

use brisk_link::LinkSpec;
use brisk_sim::seeds;
use brisk_sim::transaction::{Records, TransactionSpec, transaction, transaction_in, transaction_recorded};
use brisk_sim::world::Arena;

const LINK: &str =
    "--rtt 60ms --rate 10mbit --queue 20p --loss 3% --reorder 2%,4ms --duplicate 1% --jitter 3ms";

#[derive(Clone, Default)]
struct Shared(Rc<RefCell<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the capture, trace and result of one transaction.
fn records(seed: u64) -> [Vec<u8>; 3] {
    let link = LinkSpec::parse(LINK).unwrap();
    let (capture, trace) = (Shared::default(), Shared::default());
    let records = Records { capture: Some(Box::new(capture.clone())), trace: Some(Box::new(trace.clone())) };
    let result = transaction_recorded(&TransactionSpec::new(&link, 60_000), seed, records).unwrap();
    [capture.0.take(), trace.0.take(), serde_json::to_vec(&result).unwrap()]
}

#[test]
fn the_same_seed_gives_identical_capture_trace_and_result() {
    for seed in [1, 2, 3] {
        let [capture, trace, result] = records(seed);
        assert!(capture.len() > 60_000 && trace.len() > 1_000 && result.len() > 100);
        let again = records(seed);
        assert!(capture == again[0], "capture of seed {seed}");
        assert_eq!(String::from_utf8_lossy(&trace), String::from_utf8_lossy(&again[1]), "seed {seed}");
        assert_eq!(result, again[2], "seed {seed}");
    }
    assert!(records(1)[0] != records(2)[0], "another seed is another run");
}

#[test]
fn the_trace_is_one_object_per_line() {
    let [_, trace, _] = records(1);
    let trace = String::from_utf8(trace).unwrap();
    let mut last = 0;
    for line in trace.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let t = line["t"].as_u64().unwrap();
        assert!(line["what"].is_string());
        last = last.max(t);
    }
    assert!(last > 0 && trace.contains("\"dropped: lost\"") && trace.contains("exchange complete"));
}

#[test]
fn recording_and_reused_buffers_change_nothing() {
    let link = LinkSpec::parse(LINK).unwrap();
    let spec = TransactionSpec::new(&link, 60_000);
    let mut arena = Arena::default();
    for index in 0..50 {
        let seed = seeds::of_transaction(7, index);
        let fresh = transaction(&spec, seed).unwrap();
        assert_eq!(transaction_in(&spec, seed, &mut arena).unwrap(), fresh);
        assert_eq!(transaction_recorded(&spec, seed, Records::default()).unwrap(), fresh);
    }
}

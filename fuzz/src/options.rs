//! Target: any bytes as a TCP option area.
//!
//! The first byte selects whether the segment has SYN. The rest is the area, which may be longer than fits
//! into a header.

use brisk_wire::{ArrayVec, Options};

use crate::decisions::Decisions;

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let mut decisions = Decisions::new(bytes);
    let syn = decisions.byte() & 1 != 0;
    let area = decisions.all();
    let read = Options::parse(area, syn);
    let (written, dropped) = emit(&read, syn);
    let again = Options::parse(&written, syn);
    assert_eq!(again.timestamps, read.timestamps, "timestamps are never dropped");
    if !dropped {
        let read = Options { malformed_gentle: again.malformed_gentle, ..read };
        assert_eq!(again, read, "written without loss, read differently: {area:02x?} as {written:02x?}");
    }
    let (second, dropped) = emit(&again, syn);
    assert!(!dropped, "what came out of the encoder fits the encoder");
    assert_eq!(written, second, "written twice, written differently");
}

/// Returns the bytes of `options`, and whether an option was left out.
fn emit(options: &Options, syn: bool) -> (ArrayVec<u8, 40>, bool) {
    let mut area = ArrayVec::new();
    let dropped = options.emit(syn, &mut area);
    assert!(area.len() % 4 == 0, "an option area is whole words");
    (area, !dropped.is_none())
}

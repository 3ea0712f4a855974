//! Target: any bytes as a TCP option area.
//!
//! The first byte selects whether the segment has SYN and whether the experimental code points are the
//! default ones (those that a stack refuses are skipped). The rest is the area, which may be longer than fits
//! into a header.

use brisk_wire::{ArrayVec, OptionProfile, Options};

use crate::decisions::Decisions;

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let mut decisions = Decisions::new(bytes);
    let choice = decisions.byte();
    let syn = choice & 1 != 0;
    let profile = match choice & 2 {
        0 => OptionProfile::DEFAULT,
        _ => OptionProfile { ga_exid: decisions.short(), ga_kind: decisions.byte() },
    };
    if !profile.is_distinct() {
        return;
    }
    let area = decisions.all();
    let read = Options::parse(area, syn, &profile);
    let (written, dropped) = emit(&read, syn, &profile);
    let again = Options::parse(&written, syn, &profile);
    assert_eq!(again.timestamps, read.timestamps, "timestamps are never dropped");
    if !dropped {
        let read = Options { malformed_gentle: again.malformed_gentle, ..read };
        assert_eq!(again, read, "written without loss, read differently: {area:02x?} as {written:02x?}");
    }
    let (second, dropped) = emit(&again, syn, &profile);
    assert!(!dropped, "what came out of the encoder fits the encoder");
    assert_eq!(written, second, "written twice, written differently");
}

/// Returns the bytes of `options`, and whether an option was left out.
fn emit(options: &Options, syn: bool, profile: &OptionProfile) -> (ArrayVec<u8, 40>, bool) {
    let mut area = ArrayVec::new();
    let dropped = options.emit_with(syn, profile, &mut area);
    assert!(area.len() % 4 == 0, "an option area is whole words");
    (area, !dropped.is_none())
}

//! Writing an option area: one layout for every combination, so that tests can compare bytes.
//!
//! Aligned form, in the order that Linux uses, every option padded with NOPs to a multiple of four:
//!
//! - SYN, SYN-ACK: `MSS, SACKperm, TS, NOP, WS` (without TS: `MSS, NOP, NOP, SACKperm, NOP, WS`), Fast
//!   Open, GA, others;
//! - other segments: `NOP, NOP, TS`, GA, Fast Open, `NOP, NOP, SACK`, others.
//!
//! "Others" are the unknown options in their order, among them Accurate ECN, MD5 and AO, which this
//! crate does not interpret. If the aligned form exceeds 40 bytes, the packed form is taken: the same
//! order without any NOP, zeros at the end. If that exceeds 40 too, something is left out and the
//! choice starts again:
//!
//! - SYN, SYN-ACK, first dropped first: Accurate ECN (11, 8, 5, none), other unknown options from the
//!   last, GA, Fast Open. MSS, window scale, SACK permitted and timestamps are never dropped, MD5 and
//!   AO only if they do not fit beside those.
//! - Other segments: the fourth and third SACK block, Accurate ECN, other unknown options, Fast Open,
//!   the second SACK block, GA, the first.
//!
//! GA is not written together with MD5 or AO, and no SACK blocks are written on a segment whose
//! payload is encoded.

use arrayvec::ArrayVec;

use super::{MAX_LEN, MAX_WINDOW_SCALE, OptionProfile, Options, kind};
use crate::fast_open;

/// What [`Options::emit`] left out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Dropped {
    /// The GA option.
    pub gentle: bool,
    /// The Fast Open option.
    pub fast_open: bool,
    /// How many SACK blocks, counted from the last.
    pub sack_blocks: u8,
    /// How many unknown options; a shortened Accurate ECN option is not counted.
    pub unknown: u8,
    /// Bytes by which Accurate ECN options were shortened or left out.
    pub acc_ecn_bytes: u8,
}

impl Dropped {
    /// Whether everything was written.
    pub fn is_none(&self) -> bool {
        *self == Dropped::default()
    }
}

impl Options {
    /// Writes the option area into `out`, which is cleared first; its length becomes a multiple of 4.
    /// `syn` tells whether the segment has the SYN flag. Options that do not belong on that kind of
    /// segment are not written and not reported. The experiment numbers are the default ones.
    pub fn emit(&self, syn: bool, out: &mut ArrayVec<u8, MAX_LEN>) -> Dropped {
        self.emit_with(syn, &OptionProfile::default(), out)
    }

    /// The same as [`Options::emit`] with the experiment numbers of `profile`.
    pub fn emit_with(&self, syn: bool, profile: &OptionProfile, out: &mut ArrayVec<u8, MAX_LEN>) -> Dropped {
        let mut choice = Choice::everything(self, syn, profile);
        loop {
            for aligned in [true, false] {
                let mut area = Area { out, aligned, overflow: false };
                area.out.clear();
                choice.write(&mut area);
                if !area.overflow {
                    // The packed form ends in zeros up to the next word.
                    while !out.len().is_multiple_of(4) {
                        out.push(kind::END);
                    }
                    return choice.dropped();
                }
            }
            choice.leave_something_out();
        }
    }
}

/// Which of the options are to be written.
struct Choice<'a> {
    options: &'a Options,
    profile: &'a OptionProfile,
    syn: bool,
    gentle: bool,
    fast_open: bool,
    /// How many SACK blocks.
    sack: usize,
    /// MD5 and AO.
    signature: bool,
    /// How many of the unknown options that are neither a signature nor Accurate ECN.
    unknown: usize,
    /// Longest Accurate ECN option, with kind and length; below 2 none is written.
    acc_ecn: usize,
}

/// How the unknown options differ when there is no room for all.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    /// Accurate ECN: the first to go, counter by counter.
    AccEcn,
    /// MD5 and AO: a signature covers what is sent and outlives every experiment.
    Signature,
    /// Anything else.
    Other,
}

impl Class {
    fn of(option: u8) -> Class {
        match option {
            kind::ACC_ECN_0 | kind::ACC_ECN_1 => Class::AccEcn,
            kind::MD5 | kind::AO => Class::Signature,
            _ => Class::Other,
        }
    }
}

impl<'a> Choice<'a> {
    fn everything(options: &'a Options, syn: bool, profile: &'a OptionProfile) -> Self {
        let signature = contents_of(options, Class::Signature).next().is_some();
        let encoded = options.gentle.is_some_and(|gentle| gentle.is_encoded());
        Choice {
            options,
            profile,
            syn,
            gentle: options.gentle.is_some() && !signature,
            fast_open: options.fast_open.is_some(),
            sack: if syn || encoded { 0 } else { options.sack.len() },
            signature,
            unknown: contents_of(options, Class::Other).count(),
            acc_ecn: MAX_LEN,
        }
    }

    fn write(&self, area: &mut Area<'_>) {
        if self.syn {
            self.write_handshake(area);
            self.write_fast_open(area);
            self.write_gentle(area);
        } else {
            self.write_timestamps(area);
            self.write_gentle(area);
            self.write_fast_open(area);
            self.write_sack(area);
        }
        self.write_unknown(area);
    }

    fn write_handshake(&self, area: &mut Area<'_>) {
        if let Some(mss) = self.options.mss {
            area.option(kind::MSS, &[&mss.to_be_bytes()]);
        }
        if self.options.sack_permitted {
            // Linux puts SACK permitted where the two NOPs before the timestamps would be.
            if self.options.timestamps.is_none() {
                area.nops(2);
            }
            area.option(kind::SACK_PERMITTED, &[]);
            self.write_timestamps_here(area);
        } else {
            self.write_timestamps(area);
        }
        if let Some(shift) = self.options.window_scale {
            area.nops(1);
            area.option(kind::WINDOW_SCALE, &[&[shift.min(MAX_WINDOW_SCALE)]]);
        }
    }

    fn write_timestamps(&self, area: &mut Area<'_>) {
        if self.options.timestamps.is_some() {
            area.nops(2);
        }
        self.write_timestamps_here(area);
    }

    fn write_timestamps_here(&self, area: &mut Area<'_>) {
        if let Some(stamps) = self.options.timestamps {
            area.option(kind::TIMESTAMPS, &[&stamps.value.to_be_bytes(), &stamps.echo.to_be_bytes()]);
        }
    }

    fn write_fast_open(&self, area: &mut Area<'_>) {
        if let Some(option) = self.options.fast_open.filter(|_| self.fast_open) {
            let cookie = option.cookie.as_slice();
            if option.experimental {
                area.option(kind::EXPERIMENT_2, &[&fast_open::EXPERIMENTAL_ID.to_be_bytes(), cookie]);
            } else {
                area.option(kind::FAST_OPEN, &[cookie]);
            }
            area.align();
        }
    }

    fn write_gentle(&self, area: &mut Area<'_>) {
        if let Some(option) = self.options.gentle.filter(|_| self.gentle) {
            area.option(self.profile.ga_kind, &[&self.profile.ga_exid.to_be_bytes(), &option.value()]);
            area.align();
        }
    }

    fn write_sack(&self, area: &mut Area<'_>) {
        if self.sack == 0 {
            return;
        }
        let mut blocks = ArrayVec::<u8, 32>::new();
        for block in self.options.sack.iter().take(self.sack) {
            blocks.extend(block.start.0.to_be_bytes());
            blocks.extend(block.end.0.to_be_bytes());
        }
        area.nops(2);
        area.option(kind::SACK, &[&blocks]);
    }

    fn write_unknown(&self, area: &mut Area<'_>) {
        let mut others = 0;
        for (option, content) in self.options.unknown.iter() {
            let content = match Class::of(option) {
                Class::AccEcn => self.acc_ecn_content(content),
                Class::Signature => Some(content).filter(|_| self.signature),
                Class::Other => {
                    others += 1;
                    Some(content).filter(|_| others <= self.unknown)
                }
            };
            if let Some(content) = content {
                area.option(option, &[content]);
                area.align();
            }
        }
    }

    /// What is left of an Accurate ECN option: RFC 9768 section 3.2.3 lets a sender leave out counters
    /// from the end.
    fn acc_ecn_content<'c>(&self, content: &'c [u8]) -> Option<&'c [u8]> {
        self.acc_ecn.checked_sub(2).map(|room| content.get(..room).unwrap_or(content))
    }

    /// Leaves out the least important thing that is still there. Without any of them the area fits:
    /// the options that are never dropped have 19 bytes.
    fn leave_something_out(&mut self) {
        let longest = contents_of(self.options, Class::AccEcn).map(|content| content.len() + 2).max();
        let acc_ecn = longest.unwrap_or(0).min(self.acc_ecn);
        match self {
            Choice { sack: sack @ 3.., .. } => *sack -= 1,
            _ if acc_ecn > 0 => self.acc_ecn = [8, 5].into_iter().find(|len| *len < acc_ecn).unwrap_or(0),
            Choice { unknown: unknown @ 1.., .. } => *unknown -= 1,
            Choice { syn: true, gentle: gentle @ true, .. } => *gentle = false,
            Choice { fast_open: fast_open @ true, .. } => *fast_open = false,
            Choice { sack: sack @ 2, .. } => *sack = 1,
            Choice { gentle: gentle @ true, .. } => *gentle = false,
            Choice { sack: sack @ 1, .. } => *sack = 0,
            Choice { signature, .. } => *signature = false,
        }
    }

    fn dropped(&self) -> Dropped {
        let options = self.options;
        let others = contents_of(options, Class::Other).count();
        let signatures = if self.signature { 0 } else { contents_of(options, Class::Signature).count() };
        let cut = contents_of(options, Class::AccEcn).map(|content| {
            let kept = self.acc_ecn_content(content).map_or(0, |kept| kept.len() + 2);
            content.len() + 2 - kept
        });
        Dropped {
            gentle: options.gentle.is_some() && !self.gentle,
            fast_open: options.fast_open.is_some() && !self.fast_open,
            sack_blocks: if self.syn { 0 } else { (options.sack.len() - self.sack) as u8 },
            unknown: (others - self.unknown + signatures) as u8,
            acc_ecn_bytes: cut.sum::<usize>() as u8,
        }
    }
}

/// The contents of the unknown options of a class.
fn contents_of(options: &Options, class: Class) -> impl Iterator<Item = &[u8]> {
    options.unknown.iter().filter(move |(option, _)| Class::of(*option) == class).map(|(_, content)| content)
}

/// The area being written. Beyond 40 bytes it only remembers that it overflowed.
struct Area<'a> {
    out: &'a mut ArrayVec<u8, MAX_LEN>,
    aligned: bool,
    overflow: bool,
}

impl Area<'_> {
    fn option(&mut self, kind: u8, parts: &[&[u8]]) {
        let len = 2 + parts.iter().map(|part| part.len()).sum::<usize>();
        self.bytes(&[kind, len as u8]);
        for part in parts {
            self.bytes(part);
        }
    }

    fn nops(&mut self, count: usize) {
        if self.aligned {
            for _ in 0..count {
                self.bytes(&[kind::NOP]);
            }
        }
    }

    fn align(&mut self) {
        self.nops(self.out.len().next_multiple_of(4) - self.out.len());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.overflow |= self.out.try_extend_from_slice(bytes).is_err();
    }
}

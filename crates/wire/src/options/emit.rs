//! Writes an option area, with one layout for every combination, so that tests can compare bytes.
//!
//! The aligned form is in Linux's order, with every option padded by NOPs to a multiple of four:
//!
//! - SYN, SYN-ACK: `MSS, SACKperm, TS, NOP, WS` (without TS: `MSS, NOP, NOP, SACKperm, NOP, WS`), Fast
//!   Open, early window, GA, others;
//! - other segments: `NOP, NOP, TS`, GA, Fast Open, `NOP, NOP, SACK`, others.
//!
//! "Others" are the unknown options in their order, among them Accurate ECN, MD5 and AO, which this crate
//! does not interpret. If the aligned form exceeds 40 bytes, the packed form is used: the same order without
//! NOPs, with zeros at the end. If the packed form exceeds 40 bytes too, one option is left out, and both
//! forms are tried again:
//!
//! - SYN, SYN-ACK, in the order of dropping: the early window, Accurate ECN (shortened to 8 bytes, then to 5,
//!   then left out), other unknown options from the last, GA, Fast Open. MSS, window scale, SACK permitted
//!   and timestamps are never dropped; MD5 and AO are dropped only if they do not fit together with these.
//! - Other segments, in the order of dropping: the fourth and third SACK block, Accurate ECN, other unknown
//!   options, Fast Open, the second SACK block, GA, the first SACK block.
//!
//! GA is not written together with MD5 or AO, and no SACK blocks are written on a segment whose
//! payload is encoded.

use arrayvec::ArrayVec;

use super::{MAX_LEN, MAX_WINDOW_SCALE, Options, Timestamps, kind};
use crate::{fast_open, gentle};

/// The options that [`Options::emit`] left out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Dropped {
    /// True if the GA option was dropped.
    pub gentle: bool,
    /// True if the Fast Open option was dropped.
    pub fast_open: bool,
    /// Number of dropped SACK blocks, from the last.
    pub sack_blocks: u8,
    /// Number of dropped unknown options, not counting a shortened Accurate ECN option.
    pub unknown: u8,
    /// Bytes by which Accurate ECN options were shortened or left out.
    pub acc_ecn_bytes: u8,
}

impl Dropped {
    /// True if everything was written.
    pub fn is_none(&self) -> bool {
        *self == Dropped::default()
    }
}

impl Options {
    /// Writes the option area into `out`, which is cleared first; its length becomes a multiple of 4. `syn`:
    /// the segment has the SYN flag. Options that do not belong on that kind of segment are neither written
    /// nor reported.
    #[inline]
    pub fn emit(&self, syn: bool, out: &mut ArrayVec<u8, MAX_LEN>) -> Dropped {
        // A shortcut for most segments. A test checks that the result is that of the general case.
        if !syn && self.is_at_most_timestamps() {
            out.clear();
            if let Some(stamps) = self.timestamps {
                let _ = out.try_extend_from_slice(&stamps.aligned());
            }
            return Dropped::default();
        }
        self.emit_as_fits(syn, out)
    }

    /// Returns the timestamps if nothing else is to be written outside of a handshake.
    #[inline]
    pub(crate) fn only_timestamps(&self) -> Option<Timestamps> {
        self.timestamps.filter(|_| self.is_at_most_timestamps())
    }

    /// True if nothing but timestamps is to be written outside of a handshake.
    #[inline]
    fn is_at_most_timestamps(&self) -> bool {
        let Options { sack, fast_open, gentle, unknown, .. } = self;
        sack.is_empty() && fast_open.is_none() && gentle.is_none() && unknown.is_empty()
    }

    fn emit_as_fits(&self, syn: bool, out: &mut ArrayVec<u8, MAX_LEN>) -> Dropped {
        let mut choice = Choice::everything(self, syn);
        loop {
            for aligned in [true, false] {
                let mut area = Area { out, aligned, overflow: false };
                area.out.clear();
                choice.write(&mut area);
                if !area.overflow {
                    // The packed form is padded with zeros to the next word.
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

/// The options to write.
struct Choice<'a> {
    options: &'a Options,
    syn: bool,
    gentle: bool,
    early_window: bool,
    fast_open: bool,
    /// Number of SACK blocks.
    sack: usize,
    /// True to write MD5 and AO.
    signature: bool,
    /// Number of unknown options other than signatures and Accurate ECN.
    unknown: usize,
    /// Maximum length of the Accurate ECN option, with kind and length; below 2 none is written.
    acc_ecn: usize,
}

/// Classes of unknown options; the class decides when an option is dropped for lack of space.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    /// Accurate ECN: shortened counter by counter before it is dropped.
    AccEcn,
    /// MD5 and AO: they sign the segment, so they are dropped last.
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
    fn everything(options: &'a Options, syn: bool) -> Self {
        let signature = contents_of(options, Class::Signature).next().is_some();
        let encoded = options.gentle.is_some_and(|gentle| gentle.is_encoded());
        Choice {
            options,
            syn,
            gentle: options.gentle.is_some() && !signature,
            early_window: syn && options.gentle.is_some() && !signature && options.early_window.is_some(),
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
            self.write_early_window(area);
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
            area.option(kind::EXPERIMENT_2, &[&gentle::EXPERIMENTAL_ID.to_be_bytes(), &option.value()]);
            area.align();
        }
    }

    fn write_early_window(&self, area: &mut Area<'_>) {
        if let Some(shift) = self.options.early_window.filter(|_| self.early_window) {
            let value = [gentle::CAP_WINDOW + shift.min(gentle::EARLY_SHIFT_MAX)];
            area.option(kind::EXPERIMENT_2, &[&gentle::EXPERIMENTAL_ID.to_be_bytes(), &value]);
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

    /// Returns the part of an Accurate ECN option that fits: RFC 9768 section 3.2.3 permits a sender to leave
    /// out counters from the end.
    fn acc_ecn_content<'c>(&self, content: &'c [u8]) -> Option<&'c [u8]> {
        self.acc_ecn.checked_sub(2).map(|room| content.get(..room).unwrap_or(content))
    }

    /// Leaves out the least important option. The options that are never dropped have 19 bytes, so they fit
    /// when all others are left out.
    fn leave_something_out(&mut self) {
        let longest = contents_of(self.options, Class::AccEcn).map(|content| content.len() + 2).max();
        let acc_ecn = longest.unwrap_or(0).min(self.acc_ecn);
        match self {
            Choice { early_window: early_window @ true, .. } => *early_window = false,
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

/// Iterates over the contents of the unknown options of a class.
fn contents_of(options: &Options, class: Class) -> impl Iterator<Item = &[u8]> {
    options.unknown.iter().filter(move |(option, _)| Class::of(*option) == class).map(|(_, content)| content)
}

/// The area that is being written. After 40 bytes it only records the overflow.
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

#[cfg(test)]
mod tests {
    use super::super::arbitrary;
    use super::super::{SackBlock, Timestamps};
    use super::*;
    use crate::fast_open::{Cookie, FastOpen};
    use crate::gentle::{self, ENC, Gentle, R_ACK, R_FAIL, R_SUCC};
    use crate::seq::SeqNum;
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    const COOKIE: [u8; 8] = [0x00, 0xab, 0xaa, 0xab, 0xe8, 0xe9, 0x54, 0xc2];

    fn bytes(options: &Options, syn: bool) -> (Vec<u8>, Dropped) {
        let mut out = ArrayVec::new();
        let dropped = options.emit(syn, &mut out);
        (out.to_vec(), dropped)
    }

    /// Returns the length of the options without padding, read back from the written area.
    fn packed_len(area: &[u8]) -> usize {
        let tlv_len = |option| match option {
            super::super::RawOption::Tlv { content, .. } => content.len() + 2,
            super::super::RawOption::Nop { .. } => 0,
            super::super::RawOption::Malformed { .. } => panic!("{area:02x?}"),
        };
        super::super::RawOptions::new(area).map(tlv_len).sum()
    }

    fn base() -> Options {
        Options {
            mss: Some(1460),
            window_scale: Some(8),
            sack_permitted: true,
            timestamps: Some(Timestamps { value: 1000, echo: 0 }),
            ..Options::default()
        }
    }

    fn stamped() -> Options {
        Options { timestamps: Some(Timestamps { value: 1, echo: 2 }), ..Options::default() }
    }

    impl Options {
        fn fo(mut self, cookie_len: usize) -> Options {
            self.fast_open = Some(FastOpen::with_cookie(Cookie::new(&vec![7; cookie_len]).unwrap()));
            self
        }

        fn foexp(self, cookie_len: usize) -> Options {
            let mut options = self.fo(cookie_len);
            options.fast_open.as_mut().unwrap().experimental = true;
            options
        }

        fn ga(mut self, option: Gentle) -> Options {
            self.gentle = Some(option);
            self
        }

        fn blocks(mut self, count: u32) -> Options {
            self.sack =
                (0..count).map(|n| SackBlock { start: SeqNum(n * 10), end: SeqNum(n * 10 + 5) }).collect();
            self
        }

        fn other(mut self, kind: u8, len: usize) -> Options {
            self.unknown.push(kind, &vec![9; len - 2]).unwrap();
            self
        }
    }

    const OFFER: Gentle = Gentle::Capability(0x51);
    const SHORT: Gentle = Gentle::Short { flags: R_ACK };
    const FAIL: Gentle = Gentle::Fail { flags: R_FAIL, lost_len: 3000 };
    const ENC_F2: Gentle = Gentle::EncF2 { flags: ENC, enc_len: 3000, start_off: 1000, crc32c: 0x0135_9494 };

    #[test]
    fn byte_vectors_of_single_options() {
        let fast_open = |cookie: &[u8], experimental| Options {
            fast_open: Some(FastOpen { cookie: Cookie::new(cookie).unwrap(), experimental }),
            ..Options::default()
        };
        let ga = |option| Options::default().ga(option);
        let fail = |lost_len| Gentle::Fail { flags: R_FAIL, lost_len };
        let vectors: [(&str, bool, Options, &[u8]); 14] = [
            ("FO request", true, fast_open(&[], false), &[0x22, 0x02]),
            (
                "FO",
                true,
                fast_open(&COOKIE, false),
                &[0x22, 0x0a, 0, 0xab, 0xaa, 0xab, 0xe8, 0xe9, 0x54, 0xc2],
            ),
            ("FOEXP request", true, fast_open(&[], true), &[0xfe, 4, 0xf9, 0x89]),
            (
                "FOEXP",
                true,
                fast_open(&COOKIE, true),
                &[254, 12, 0xf9, 0x89, 0, 0xab, 0xaa, 0xab, 0xe8, 0xe9, 0x54, 0xc2],
            ),
            ("GA SYN F2 both", true, ga(Gentle::Capability(0x51)), &[0xfe, 5, 0xdc, 0x60, 0x51]),
            ("GA SYN-ACK F2", true, ga(Gentle::Capability(0xd1)), &[0xfe, 5, 0xdc, 0x60, 0xd1]),
            ("GA SYN F1 type 1", true, ga(Gentle::Capability(0x01)), &[0xfe, 5, 0xdc, 0x60, 0x01]),
            (
                "R_SUCC, S_PAR",
                false,
                ga(Gentle::Short { flags: R_SUCC | gentle::S_PAR }),
                &[0xfe, 5, 0xdc, 0x60, 0x48],
            ),
            (
                "R_ACK, A_PAR",
                false,
                ga(Gentle::Short { flags: R_ACK | gentle::A_PAR }),
                &[0xfe, 5, 0xdc, 0x60, 0x84],
            ),
            ("R_FAIL 3000", false, ga(fail(3000)), &[0xfe, 8, 0xdc, 0x60, 0x20, 0, 0x0b, 0xb8]),
            ("STOP", false, ga(fail(gentle::STOP)), &[0xfe, 8, 0xdc, 0x60, 0x20, 0xff, 0xff, 0xff]),
            (
                "ENC F1",
                false,
                ga(Gentle::EncF1 { flags: ENC, enc_len: 3000 }),
                &[254, 8, 0xdc, 0x60, 0x10, 0, 0x0b, 0xb8],
            ),
            (
                "ENC F2",
                false,
                ga(ENC_F2),
                &[254, 15, 0xdc, 0x60, 16, 0, 11, 0xb8, 0, 3, 0xe8, 1, 0x35, 0x94, 0x94],
            ),
            ("nothing", false, Options::default(), &[]),
        ];
        for (name, syn, options, expected) in vectors {
            let (area, dropped) = bytes(&options, syn);
            assert!(dropped.is_none(), "{name}");
            assert_eq!(&area[..expected.len()], expected, "{name}");
            assert!(area.len() % 4 == 0 && area[expected.len()..].iter().all(|byte| *byte == 1), "{name}");
            assert_eq!(Options::parse(expected, syn), options, "{name}");
        }
    }

    #[test]
    fn complete_option_area_of_a_syn_with_cookie_and_gentle() {
        let mut options = base().ga(OFFER);
        options.fast_open = Some(FastOpen::with_cookie(Cookie::new(&COOKIE).unwrap()));
        let expected: [u8; 40] = [
            0x02, 0x04, 0x05, 0xb4, 0x04, 0x02, 0x08, 0x0a, 0x00, 0x00, 0x03, 0xe8, 0x00, 0x00, 0x00, 0x00,
            0x01, 0x03, 0x03, 0x08, 0x22, 0x0a, 0x00, 0xab, 0xaa, 0xab, 0xe8, 0xe9, 0x54, 0xc2, 0x01, 0x01,
            0xfe, 0x05, 0xdc, 0x60, 0x51, 0x01, 0x01, 0x01,
        ];
        assert_eq!(bytes(&options, true), (expected.to_vec(), Dropped::default()));
    }

    #[test]
    fn a_16_byte_cookie_drops_gentle() {
        let (area, dropped) = bytes(&base().fo(16).ga(OFFER), true);
        assert_eq!(dropped, Dropped { gentle: true, ..Dropped::default() });
        let mut expected = vec![2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 3, 0xe8, 0, 0, 0, 0, 1, 3, 3, 8, 34, 18];
        expected.extend([7; 16]);
        expected.extend([1, 1]);
        assert_eq!(area, expected);
    }

    #[test]
    fn early_window_is_dropped_first() {
        let with = |options: Options| Options { early_window: Some(1), ..options };
        let (area, dropped) = bytes(&with(base().fo(8).ga(OFFER)), true);
        assert!(dropped.is_none() && area.len() == 40, "{area:02x?}");
        assert_eq!(area[29..39], [254, 5, 0xdc, 0x60, 0x31, 254, 5, 0xdc, 0x60, 0x51]);
        let read = Options::parse(&area, true);
        assert_eq!(read, with(base().fo(8).ga(OFFER)));
        for without in [base().fo(14).ga(OFFER), base().fo(8)] {
            assert_eq!(bytes(&with(without.clone()), true), bytes(&without, true));
        }
        let data = Options { timestamps: None, ..Options::default() }.ga(Gentle::Short { flags: R_SUCC });
        assert_eq!(bytes(&with(data.clone()), false), bytes(&data, false));
    }

    #[test]
    fn syn_without_timestamps_keeps_the_linux_layout() {
        let options = Options { timestamps: None, ..base() };
        assert_eq!(bytes(&options, true).0, [2, 4, 5, 0xb4, 1, 1, 4, 2, 1, 3, 3, 8]);
        let options = Options { sack_permitted: false, ..base() };
        let (area, _) = bytes(&options, true);
        assert_eq!(area, [2, 4, 5, 0xb4, 1, 1, 8, 10, 0, 0, 3, 0xe8, 0, 0, 0, 0, 1, 3, 3, 8]);
    }

    #[test]
    fn option_space_of_syn_and_syn_ack_row_by_row() {
        // (what, options, packed bytes of everything, bytes written, what was dropped)
        let none = Dropped::default();
        let no_gentle = Dropped { gentle: true, ..none };
        let no_fast_open = Dropped { fast_open: true, ..none };
        let cut = |acc_ecn_bytes| Dropped { acc_ecn_bytes, ..none };
        let rows: [(&str, Options, usize, usize, Dropped); 18] = [
            ("base", base(), 19, 20, none),
            ("base + FO request", base().fo(0), 21, 24, none),
            ("base + FO 8", base().fo(8), 29, 32, none),
            ("base + FO 16", base().fo(16), 37, 40, none),
            ("base + GA", base().ga(OFFER), 24, 28, none),
            ("base + FO request + GA", base().fo(0).ga(OFFER), 26, 32, none),
            ("base + FO 8 + GA", base().fo(8).ga(OFFER), 34, 40, none),
            ("base + FO 12 + GA", base().fo(12).ga(OFFER), 38, 40, none),
            ("base + FO 16 + GA", base().fo(16).ga(OFFER), 37, 40, no_gentle),
            ("base + FOEXP 8 + GA", base().foexp(8).ga(OFFER), 36, 40, none),
            ("base + FOEXP 16 + GA", base().foexp(16).ga(OFFER), 39, 40, no_gentle),
            ("base + FO 8 + AccECN 11", base().fo(8).other(172, 11), 40, 40, none),
            ("base + FO 8 + GA + AccECN 11", base().fo(8).ga(OFFER).other(172, 11), 39, 40, cut(6)),
            ("base + MD5", base().other(kind::MD5, 18), 37, 40, none),
            ("base + MD5 + FO request", base().other(kind::MD5, 18).fo(0), 39, 40, none),
            ("base + MD5 + FO 8", base().other(kind::MD5, 18).fo(8), 37, 40, no_fast_open),
            ("base + AO", base().other(kind::AO, 16), 35, 36, none),
            ("base + AO + FO request", base().other(kind::AO, 16).fo(0), 37, 40, none),
        ];
        for (name, options, packed, written, expected) in rows {
            let (area, dropped) = bytes(&options, true);
            assert_eq!((packed_len(&area), area.len(), dropped), (packed, written, expected), "{name}");
        }
        let (area, dropped) = bytes(&base().other(kind::AO, 16).fo(8), true);
        assert_eq!((packed_len(&area), dropped), (35, no_fast_open));
    }

    #[test]
    fn option_space_of_other_segments_row_by_row() {
        let none = Dropped::default();
        let fewer_blocks = |sack_blocks| Dropped { sack_blocks, ..none };
        let rows: [(&str, Options, usize, usize, Dropped); 8] = [
            ("TS", stamped(), 10, 12, none),
            ("TS + 3 SACK", stamped().blocks(3), 36, 40, none),
            ("TS + 4 SACK", stamped().blocks(4), 36, 40, fewer_blocks(1)),
            ("TS + GA short + 2 SACK", stamped().ga(SHORT).blocks(2), 33, 40, none),
            ("TS + GA short + 3 SACK", stamped().ga(SHORT).blocks(3), 33, 40, fewer_blocks(1)),
            ("TS + GA fail + 2 SACK", stamped().ga(FAIL).blocks(2), 36, 40, none),
            ("TS + enc-F2, without SACK blocks", stamped().ga(ENC_F2).blocks(2), 25, 28, fewer_blocks(2)),
            (
                "TS + AccECN 11 + 2 SACK + GA short",
                stamped().ga(SHORT).blocks(2).other(172, 11),
                38,
                40,
                Dropped { acc_ecn_bytes: 6, ..none },
            ),
        ];
        for (name, options, packed, written, expected) in rows {
            let (area, dropped) = bytes(&options, false);
            assert_eq!((packed_len(&area), area.len(), dropped), (packed, written, expected), "{name}");
        }
    }

    #[test]
    fn gentle_and_two_sack_blocks_outlast_unknown_options_and_fast_open() {
        // 10 + 18 + 8 + 12 + 12 = 60: the unknown option goes first, then Fast Open.
        let options = stamped().ga(FAIL).blocks(2).other(99, 12).fo(10);
        let (area, dropped) = bytes(&options, false);
        assert_eq!(dropped, Dropped { unknown: 1, fast_open: true, ..Dropped::default() });
        assert_eq!(packed_len(&area), 36);
    }

    #[test]
    fn second_sack_block_is_dropped_before_a_signature() {
        let (area, dropped) = bytes(&stamped().blocks(2).other(kind::MD5, 18), false);
        assert_eq!((packed_len(&area), dropped), (38, Dropped { sack_blocks: 1, ..Dropped::default() }));
    }

    #[test]
    fn order_of_other_segments() {
        let (area, _) = bytes(&stamped().ga(SHORT).blocks(1), false);
        let mut expected = vec![1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 254, 5, 0xdc, 0x60, 0x80, 1, 1, 1];
        expected.extend([1, 1, 5, 10, 0, 0, 0, 0, 0, 0, 0, 5]);
        assert_eq!(area, expected);
    }

    #[test]
    fn the_packed_form_has_the_same_order_and_ends_in_zeros() {
        let (area, dropped) = bytes(&base().fo(12).ga(OFFER), true);
        assert!(dropped.is_none());
        let mut expected = vec![2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 3, 0xe8, 0, 0, 0, 0, 3, 3, 8, 34, 14];
        expected.extend([7; 12]);
        expected.extend([254, 5, 0xdc, 0x60, 0x51, 0, 0]);
        assert_eq!(area, expected);
    }

    #[test]
    fn gentle_is_not_sent_with_a_signature() {
        for (kind, len) in [(kind::MD5, 18), (kind::AO, 16)] {
            let (area, dropped) = bytes(&Options::default().ga(OFFER).other(kind, len), true);
            assert_eq!((packed_len(&area), dropped.gentle), (len, true));
        }
    }

    #[test]
    fn acc_ecn_is_shortened_counter_by_counter() {
        let len_with = |others: usize| {
            let options = Options::default().other(172, 11).other(kind::AO, others);
            let (area, _) = bytes(&options, true);
            packed_len(&area) - others
        };
        // MSS is absent: 40 bytes for both.
        assert_eq!((len_with(29), len_with(27)), (11, 11));
        let options = |others: usize| base().other(172, 11).other(kind::AO, others);
        let left = |others: usize| packed_len(&bytes(&options(others), true).0) - 19 - others;
        assert_eq!((left(10), left(12), left(14), left(17)), (11, 8, 5, 0));
    }

    proptest! {
        #[test]
        fn options_that_fit_are_read_back(options in any::<bool>().prop_flat_map(|syn| (Just(syn), arbitrary::options(syn)))) {
            let (syn, options) = options;
            let (area, dropped) = bytes(&options, syn);
            prop_assert!(area.len() % 4 == 0 && area.len() <= MAX_LEN);
            let read = Options::parse(&area, syn);
            prop_assert!(!read.malformed_gentle);
            if dropped.is_none() {
                prop_assert_eq!(&read, &options);
            }
            // These options are never dropped, whatever else is present.
            prop_assert_eq!(
                (read.mss, read.window_scale, read.sack_permitted, read.timestamps),
                (options.mss, options.window_scale, options.sack_permitted, options.timestamps)
            );
            prop_assert_eq!(read.gentle.is_none(), options.gentle.is_none() || dropped.gentle);
            prop_assert_eq!(read.fast_open.is_none(), options.fast_open.is_none() || dropped.fast_open);
            prop_assert_eq!(read.sack.len() + usize::from(dropped.sack_blocks), options.sack.len());
        }

        #[test]
        fn fast_path_writes_like_the_general_case(
            options in arbitrary::options(false),
            stamps in proptest::option::of(any::<(u32, u32)>()),
        ) {
            let timestamps = stamps.map(|(value, echo)| Timestamps { value, echo });
            let plain = Options { timestamps, ..Options::default() };
            prop_assert!(plain.is_at_most_timestamps());
            for options in [plain, options] {
                let mut general = ArrayVec::new();
                let dropped = options.emit_as_fits(false, &mut general);
                prop_assert_eq!(bytes(&options, false), (general.to_vec(), dropped));
            }
        }

        #[test]
        fn writing_what_was_read_gives_the_same_bytes_again(
            area in proptest::collection::vec(any::<u8>(), 0..=40),
            syn: bool,
        ) {
            let read = Options::parse(&area, syn);
            let (first, dropped) = bytes(&read, syn);
            if dropped.is_none() {
                let again = Options::parse(&first, syn);
                prop_assert_eq!(bytes(&again, syn).0, first);
            }
        }
    }
}

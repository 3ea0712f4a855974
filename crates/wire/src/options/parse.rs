//! Parses an option area. It never fails; see [`Options::parse`] for the rules.

use super::{MAX_WINDOW_SCALE, Options, RawOption, RawOptions, SackBlock, Timestamps, kind};
use crate::fast_open::{self, Cookie, FastOpen};
use crate::gentle::{EXPERIMENTAL_ID, Gentle, Reading};
use crate::seq::SeqNum;

impl Options {
    /// Parses the option area of a segment; `syn`: it has the SYN flag.
    ///
    /// - A malformed option is ignored. A broken list ends at the error; earlier options count.
    /// - If an option occurs twice, the last well-formed instance counts. Fast Open in its standard form
    ///   takes precedence over the experimental form, in any order.
    /// - Handshake options (MSS, window scale, SACK permitted) on other segments, SACK blocks in the
    ///   handshake, unknown kinds and unknown experiments go to [`Options::unknown`].
    /// - A malformed Gentle-Aggression (GA) option outside of the handshake sets
    ///   [`Options::malformed_gentle`] if the payload may be a parity. So do two GA options of which one has
    ///   `ENC`. [`Options::gentle`] is then empty.
    #[inline]
    pub fn parse(area: &[u8], syn: bool) -> Options {
        Options::parse_usual(area).unwrap_or_else(|| Options::parse_one_by_one(area, syn))
    }

    /// Like [`Options::parse`], for the area of nearly every segment after the handshake: only timestamps, in
    /// the layout of RFC 7323 appendix A. Returns `None` for other areas.
    #[inline]
    pub(crate) fn parse_usual(area: &[u8]) -> Option<Options> {
        let stamps = Timestamps::read_aligned(area)?;
        Some(Options { timestamps: Some(stamps), ..Options::default() })
    }

    /// Like [`Options::parse`], for any other area.
    pub(crate) fn parse_one_by_one(area: &[u8], syn: bool) -> Options {
        let mut options = Options::default();
        for option in RawOptions::new(area) {
            match option {
                RawOption::Nop { .. } => {}
                RawOption::Tlv { kind, content, .. } => options.take(kind, content, syn),
                RawOption::Malformed { kind, rest, .. } => {
                    // The ExID of a GA option with a wrong length may still be readable.
                    let value = rest.get(1..).unwrap_or_default();
                    options.malformed_gentle |= !syn && gentle_value(kind, value).is_some();
                }
            }
        }
        if options.malformed_gentle {
            options.gentle = None;
        }
        options
    }

    fn take(&mut self, kind: u8, content: &[u8], syn: bool) {
        if let Some(value) = gentle_value(kind, content) {
            return self.take_gentle(Gentle::read(value, syn));
        }
        match (kind, syn) {
            (kind::TIMESTAMPS, _) => self.take_timestamps(content),
            (kind::SACK, false) => self.take_sack(content),
            (kind::FAST_OPEN, _) => self.take_fast_open(content, false),
            (kind::MSS, true) => {
                if let Ok(mss) = content.try_into() {
                    self.mss = Some(u16::from_be_bytes(mss));
                }
            }
            (kind::WINDOW_SCALE, true) => {
                if let [shift] = *content {
                    self.window_scale = Some(shift.min(MAX_WINDOW_SCALE));
                }
            }
            (kind::SACK_PERMITTED, true) => self.sack_permitted |= content.is_empty(),
            (kind::EXPERIMENT_2, _) => match experiment(content) {
                Some((fast_open::EXPERIMENTAL_ID, cookie)) => self.take_fast_open(cookie, true),
                _ => self.keep(kind, content),
            },
            _ => self.keep(kind, content),
        }
    }

    fn take_timestamps(&mut self, content: &[u8]) {
        if let (Some((value, rest)), 8) = (content.split_first_chunk(), content.len())
            && let Some((echo, _)) = rest.split_first_chunk()
        {
            self.timestamps =
                Some(Timestamps { value: u32::from_be_bytes(*value), echo: u32::from_be_bytes(*echo) });
        }
    }

    fn take_sack(&mut self, content: &[u8]) {
        let (blocks, rest) = content.as_chunks::<8>();
        if blocks.is_empty() || !rest.is_empty() {
            return;
        }
        self.sack.clear();
        for &[a, b, c, d, e, f, g, h] in blocks.iter().take(self.sack.capacity()) {
            self.sack.push(SackBlock {
                start: SeqNum(u32::from_be_bytes([a, b, c, d])),
                end: SeqNum(u32::from_be_bytes([e, f, g, h])),
            });
        }
    }

    fn take_fast_open(&mut self, cookie: &[u8], experimental: bool) {
        let standard_seen = self.fast_open.is_some_and(|seen| !seen.experimental);
        if experimental && standard_seen {
            return;
        }
        if let Some(cookie) = Cookie::new(cookie) {
            self.fast_open = Some(FastOpen { cookie, experimental });
        }
    }

    fn take_gentle(&mut self, reading: Reading) {
        match reading {
            Reading::Option(gentle) => {
                // No sender writes two. If one of them has `ENC`, the meaning of the payload is unknown.
                let encoded = |option: &Gentle| option.is_encoded();
                if self.gentle.as_ref().is_some_and(|first| encoded(first) || encoded(&gentle)) {
                    self.malformed_gentle = true;
                }
                self.gentle = Some(gentle);
            }
            Reading::Window(shift) => self.early_window = Some(shift),
            Reading::Ignore => {}
            Reading::Malformed => self.malformed_gentle = true,
        }
    }

    /// Keeps an option that has no meaning here. The options of an area of 40 bytes always fit. In a longer
    /// area some may be lost.
    fn keep(&mut self, kind: u8, content: &[u8]) {
        let _ = self.unknown.push(kind, content);
    }
}

/// Returns the value after the ExID if the option is a GA option.
fn gentle_value(kind: u8, content: &[u8]) -> Option<&[u8]> {
    if !matches!(kind, kind::EXPERIMENT_1 | kind::EXPERIMENT_2) {
        return None;
    }
    experiment(content).filter(|(exid, _)| *exid == EXPERIMENTAL_ID).map(|(_, value)| value)
}

/// Returns the 16-bit ExID of an experimental option and the bytes after it (RFC 6994 section 3).
fn experiment(content: &[u8]) -> Option<(u16, &[u8])> {
    content.split_first_chunk().map(|(exid, value)| (u16::from_be_bytes(*exid), value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gentle::{self, ENC};
    use proptest::prelude::*;
    use std::vec;

    fn syn(area: &[u8]) -> Options {
        Options::parse(area, true)
    }

    fn after_handshake(area: &[u8]) -> Options {
        Options::parse(area, false)
    }

    fn fast_open_of(cookie: &[u8], experimental: bool) -> Option<FastOpen> {
        Some(FastOpen { cookie: Cookie::new(cookie).unwrap(), experimental })
    }

    #[test]
    fn a_linux_syn_is_read() {
        let options = syn(&[2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 3, 0xe8, 0, 0, 0, 0, 1, 3, 3, 8]);
        let expected = Options {
            mss: Some(1460),
            window_scale: Some(8),
            sack_permitted: true,
            timestamps: Some(Timestamps { value: 1000, echo: 0 }),
            ..Options::default()
        };
        assert_eq!(options, expected);
    }

    #[test]
    fn sack_blocks_are_read_in_their_order() {
        let options = after_handshake(&[1, 1, 5, 18, 0, 0, 0, 9, 0, 0, 0, 12, 0, 0, 0, 1, 0, 0, 0, 5]);
        let block = |start, end| SackBlock { start: SeqNum(start), end: SeqNum(end) };
        assert_eq!(options.sack.as_slice(), [block(9, 12), block(1, 5)]);
    }

    #[test]
    fn an_empty_sack_option_does_not_undo_another() {
        let options = after_handshake(&[5, 10, 0, 0, 0, 9, 0, 0, 0, 12, 5, 2]);
        assert_eq!(options.sack.as_slice(), [SackBlock { start: SeqNum(9), end: SeqNum(12) }]);
    }

    #[test]
    fn window_scales_above_14_are_taken_as_14() {
        // RFC 7323 2.3: "If a Window Scale option is received with a shift.cnt value larger than 14,
        // the TCP SHOULD log the error but MUST use 14 instead of the specified value."
        assert_eq!(syn(&[3, 3, 200, 0]).window_scale, Some(14));
    }

    #[test]
    fn handshake_options_on_other_segments_are_kept_as_unknown() {
        let options = after_handshake(&[2, 4, 5, 0xb4, 4, 2, 3, 3, 8]);
        assert_eq!((options.mss, options.window_scale, options.sack_permitted), (None, None, false));
        let kept: std::vec::Vec<_> = options.unknown.iter().collect();
        assert_eq!(kept, [(2, &[5, 0xb4][..]), (4, &[]), (3, &[8])]);
        let options = syn(&[5, 10, 0, 0, 0, 9, 0, 0, 0, 12]);
        assert!(options.sack.is_empty() && options.unknown.contains(kind::SACK));
    }

    #[test]
    fn wrong_lengths_are_ignored() {
        let area = [2, 3, 5, 3, 2, 4, 3, 1, 8, 9, 0, 0, 0, 0, 0, 0, 0, 34, 5, 1, 2, 3];
        assert_eq!(syn(&area), Options::default());
        assert_eq!(after_handshake(&[5, 2, 5, 9, 0, 0, 0, 0, 0, 0, 0]), Options::default());
    }

    #[test]
    fn options_before_a_broken_one_are_kept() {
        let options = syn(&[2, 4, 5, 0xb4, 99, 1, 3, 3, 8]);
        assert_eq!(options, Options { mss: Some(1460), ..Options::default() });
    }

    #[test]
    fn nothing_counts_after_the_end_of_the_list() {
        assert_eq!(syn(&[1, 0, 2, 4, 5, 0xb4]), Options::default());
    }

    #[test]
    fn fast_open_of_illegal_length_counts_as_absent() {
        // Lengths are illegal if they are odd, 4, or above 18.
        for len in [3usize, 4, 5, 7, 17, 19, 20] {
            let mut area = std::vec![0u8; len];
            area[..2].copy_from_slice(&[34, len as u8]);
            assert_eq!(syn(&area), Options::default(), "length {len}");
        }
        assert_eq!(syn(&[34, 2]).fast_open, Some(FastOpen::REQUEST));
    }

    #[test]
    fn the_last_well_formed_fast_open_option_wins() {
        let options = syn(&[34, 6, 1, 1, 1, 1, 34, 6, 2, 2, 2, 2, 34, 5, 3, 3, 3]);
        assert_eq!(options.fast_open, fast_open_of(&[2; 4], false));
        assert_eq!(syn(&[34, 6, 1, 1, 1, 1, 34, 2]).fast_open, Some(FastOpen::REQUEST));
    }

    #[test]
    fn standard_fast_open_takes_precedence_in_any_order() {
        let (standard, experimental) = ([34, 6, 1, 1, 1, 1], [254, 8, 0xf9, 0x89, 2, 2, 2, 2]);
        for area in [[&standard[..], &experimental].concat(), [&experimental[..], &standard].concat()] {
            assert_eq!(syn(&area).fast_open, fast_open_of(&[1; 4], false));
        }
        assert_eq!(syn(&experimental).fast_open, fast_open_of(&[2; 4], true));
    }

    #[test]
    fn both_experimental_kinds_carry_gentle() {
        for kind in [253, 254] {
            assert_eq!(syn(&[kind, 5, 0xdc, 0x60, 0x51]).gentle, Some(Gentle::Capability(0x51)));
        }
    }

    #[test]
    fn another_experiment_is_kept_as_unknown() {
        // RFC 6994: options with other ExIDs are ignored.
        let options = after_handshake(&[254, 5, 0xdc, 0x61, ENC, 253, 4, 0xf9, 0x89, 254, 3, 0xdc]);
        assert_eq!((options.gentle, options.malformed_gentle, options.fast_open), (None, false, None));
        assert_eq!(options.unknown.iter().count(), 3);
    }

    #[test]
    fn malformed_gentle_is_reported_outside_of_the_handshake_only() {
        for area in [&[254, 5, 0xdc, 0x60, ENC][..], &[254, 4, 0xdc, 0x60], &[254, 6, 0xdc, 0x60, 0x40, 0]] {
            let options = after_handshake(area);
            assert_eq!((options.gentle, options.malformed_gentle), (None, true), "{area:02x?}");
        }
        assert_eq!(syn(&[254, 4, 0xdc, 0x60]), Options::default());
    }

    #[test]
    fn gentle_cut_off_by_the_end_of_the_area_is_malformed() {
        for area in
            [&[254, 15, 0xdc, 0x60, ENC, 0, 1, 0][..], &[254, 0, 0xdc, 0x60, ENC], &[254, 1, 0xdc, 0x60]]
        {
            assert!(after_handshake(area).malformed_gentle, "{area:02x?}");
        }
        assert!(!after_handshake(&[254, 15, 0xdc, 0x61, ENC, 0, 1, 0]).malformed_gentle);
    }

    #[test]
    fn two_gentle_options_of_which_one_is_encoded_are_malformed() {
        let (short, encoded) = ([254, 5, 0xdc, 0x60, 0x40], [254, 8, 0xdc, 0x60, ENC, 0, 0, 9]);
        for area in [[&short[..], &encoded].concat(), [&encoded[..], &short].concat()] {
            let options = after_handshake(&area);
            assert_eq!((options.gentle, options.malformed_gentle), (None, true));
        }
        let twice = after_handshake(&[short, [254, 5, 0xdc, 0x60, 0x80]].concat());
        assert_eq!(twice.gentle, Some(Gentle::Short { flags: gentle::R_ACK }), "the last counts");
        let second_is_none = after_handshake(&[short, [254, 5, 0xdc, 0x60, 0x20]].concat());
        assert_eq!(second_is_none.gentle, Some(Gentle::Short { flags: gentle::R_SUCC }));
    }

    proptest! {
        #[test]
        fn fast_path_reads_like_the_general_case(
            head in prop::sample::select(vec![[1, 1, 8, 10], [1, 8, 1, 10], [8, 10, 1, 1], [1, 1, 8, 9]]),
            rest in proptest::collection::vec(any::<u8>(), 7..=9),
            syn: bool,
        ) {
            let area = [&head[..], &rest].concat();
            let general = Options::parse_one_by_one(&area, syn);
            prop_assert_eq!(Options::parse(&area, syn), general);
        }

        #[test]
        fn any_area_is_read(area in proptest::collection::vec(any::<u8>(), 0..60), syn: bool) {
            let options = Options::parse(&area, syn);
            prop_assert!(!(options.malformed_gentle && options.gentle.is_some()));
        }
    }
}

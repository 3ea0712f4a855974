//! The option list on the wire (RFC 9293 section 3.1): kinds, lengths, contents, positions.
//!
//! It is for code that handles bytes rather than their meaning: the parser, and middleboxes that edit
//! packets.

use super::kind;

/// One element of an option list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RawOption<'a> {
    /// A NOP.
    Nop {
        /// Its offset in the option area.
        at: usize,
    },
    /// An option with kind and length.
    Tlv {
        /// Offset of the kind in the option area; the option has `content.len() + 2` bytes.
        at: usize,
        /// The kind.
        kind: u8,
        /// The bytes after the length.
        content: &'a [u8],
    },
    /// An option whose length is below 2, missing or beyond the area. The list ends here.
    Malformed {
        /// Offset of the kind in the option area.
        at: usize,
        /// The kind.
        kind: u8,
        /// Everything after the kind up to the end of the area.
        rest: &'a [u8],
    },
}

/// The elements of an option area, up to the end-of-list option, a malformed one or the end.
#[derive(Clone, Debug)]
pub struct RawOptions<'a> {
    area: &'a [u8],
    at: usize,
}

impl<'a> RawOptions<'a> {
    /// Iterates over the elements of `area`, the bytes between the fixed TCP header and the payload.
    pub const fn new(area: &'a [u8]) -> Self {
        RawOptions { area, at: 0 }
    }
}

impl<'a> Iterator for RawOptions<'a> {
    type Item = RawOption<'a>;

    fn next(&mut self) -> Option<RawOption<'a>> {
        let at = self.at;
        let (&kind, rest) = self.area.get(at..)?.split_first()?;
        match kind {
            kind::END => {
                self.at = self.area.len();
                None
            }
            kind::NOP => {
                self.at = at + 1;
                Some(RawOption::Nop { at })
            }
            _ => {
                let content = rest.first().and_then(|&len| rest.get(1..usize::from(len).checked_sub(1)?));
                self.at = content.map_or(self.area.len(), |content| at + 2 + content.len());
                Some(match content {
                    Some(content) => RawOption::Tlv { at, kind, content },
                    None => RawOption::Malformed { at, kind, rest },
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn elements(area: &[u8]) -> Vec<RawOption<'_>> {
        RawOptions::new(area).collect()
    }

    #[test]
    fn elements_have_their_positions() {
        let area = [1, 3, 3, 8, 1, 99, 2, 0, 5];
        let expected = [
            RawOption::Nop { at: 0 },
            RawOption::Tlv { at: 1, kind: 3, content: &[8] },
            RawOption::Nop { at: 4 },
            RawOption::Tlv { at: 5, kind: 99, content: &[] },
        ];
        assert_eq!(elements(&area), expected);
    }

    #[test]
    fn a_broken_length_ends_the_list() {
        let broken = |rest| [RawOption::Malformed { at: 1, kind: 8, rest }];
        for area in [&[1, 8][..], &[1, 8, 0, 1, 1], &[1, 8, 1, 1, 1], &[1, 8, 9, 1, 1]] {
            assert_eq!(elements(area)[1..], broken(&area[2..]), "{area:?}");
        }
    }

    proptest! {
        #[test]
        fn any_area_is_covered_once_in_order(area in proptest::collection::vec(any::<u8>(), 0..60)) {
            let mut at = 0;
            for element in RawOptions::new(&area) {
                let (start, len) = match element {
                    RawOption::Nop { at } => (at, 1),
                    RawOption::Tlv { at, content, .. } => (at, content.len() + 2),
                    RawOption::Malformed { at, rest, .. } => (at, rest.len() + 1),
                };
                prop_assert_eq!(start, at);
                at += len;
            }
            prop_assert!(at == area.len() || area[at] == kind::END);
        }
    }
}

//! The TCP options as values.
//!
//! | kind | option | specification |
//! |---|---|---|
//! | 2 | maximum segment size | RFC 9293 3.7.1 |
//! | 3 | window scale | RFC 7323 2 |
//! | 4, 5 | SACK permitted, SACK | RFC 2018 |
//! | 8 | timestamps | RFC 7323 3 |
//! | 34 | Fast Open | RFC 7413, see [`fast_open`](crate::fast_open) |
//! | 254 with ExID 0xF989 | Fast Open, experimental form | RFC 7413, RFC 6994 |
//! | 253, 254 with the GA ExID | Gentle Aggression | see [`gentle`](crate::gentle) |
//!
//! Parsing never fails. A malformed option is ignored, but a malformed GA option is reported if the payload
//! may be a parity. [`Options::unknown`] keeps options without meaning in this crate, so that they can be
//! written again. Writing is deterministic: the same value always gives the same bytes, in Linux's layout,
//! see [`Options::emit`].

mod emit;
mod parse;
mod raw;

use arrayvec::ArrayVec;

pub use emit::Dropped;
pub use raw::{RawOption, RawOptions};

use crate::fast_open::FastOpen;
use crate::gentle::Gentle;
use crate::seq::SeqNum;

/// Bytes of the largest option area.
pub const MAX_LEN: usize = 40;
/// The largest window scale (RFC 7323 section 2.3: larger ones count as 14).
pub const MAX_WINDOW_SCALE: u8 = 14;

/// Option kinds as in the IANA registry.
pub mod kind {
    /// End of the option list.
    pub const END: u8 = 0;
    /// No operation.
    pub const NOP: u8 = 1;
    /// Maximum segment size.
    pub const MSS: u8 = 2;
    /// Window scale.
    pub const WINDOW_SCALE: u8 = 3;
    /// SACK permitted.
    pub const SACK_PERMITTED: u8 = 4;
    /// SACK.
    pub const SACK: u8 = 5;
    /// Timestamps.
    pub const TIMESTAMPS: u8 = 8;
    /// MD5 signature (RFC 2385).
    pub const MD5: u8 = 19;
    /// TCP authentication option (RFC 5925).
    pub const AO: u8 = 29;
    /// Fast Open.
    pub const FAST_OPEN: u8 = 34;
    /// Accurate ECN, order 0 (RFC 9768).
    pub const ACC_ECN_0: u8 = 172;
    /// Accurate ECN, order 1 (RFC 9768).
    pub const ACC_ECN_1: u8 = 174;
    /// RFC 3692 experiment 1.
    pub const EXPERIMENT_1: u8 = 253;
    /// RFC 3692 experiment 2.
    pub const EXPERIMENT_2: u8 = 254;
}

/// The options of one segment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// Maximum segment size in bytes; on SYN and SYN-ACK.
    pub mss: Option<u16>,
    /// Shift of the window field, at most 14; on SYN and SYN-ACK.
    pub window_scale: Option<u8>,
    /// True if the sender accepts SACK blocks; on SYN and SYN-ACK.
    pub sack_permitted: bool,
    /// Timestamps.
    pub timestamps: Option<Timestamps>,
    /// SACK blocks in the order of the wire; not on SYN and SYN-ACK.
    pub sack: SackBlocks,
    /// Fast Open. Parsed on every kind of segment; outside of SYN and SYN-ACK the connection uses it only in
    /// the one-time cookie mode.
    pub fast_open: Option<FastOpen>,
    /// Gentle Aggression. Parsed whether or not the connection has negotiated it.
    pub gentle: Option<Gentle>,
    /// Receive window of a SYN that exceeds the 16 bits of the window field:
    /// [`EARLY_WINDOW`](crate::gentle::EARLY_WINDOW) shifted left by this number, which is from 1 to
    /// [`EARLY_SHIFT_MAX`](crate::gentle::EARLY_SHIFT_MAX). Written with [`Options::gentle`] only.
    pub early_window: Option<u8>,
    /// Options without meaning in this crate: unknown kinds, unknown experiments, options of a SYN on other
    /// segments.
    pub unknown: UnknownOptions,
    /// True if a GA option was malformed and the payload may be a parity. A connection on which either side
    /// sent a capability must drop the segment; others ignore the option. Never written.
    pub malformed_gentle: bool,
}

/// The timestamps option (RFC 7323 section 3.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Timestamps {
    /// TSval, in ticks of the sender.
    pub value: u32,
    /// TSecr, meaningful with ACK.
    pub echo: u32,
}

impl Timestamps {
    /// Length of an option area with timestamps only, in the form of RFC 7323 appendix A.
    pub(crate) const ALIGNED: usize = 12;
    /// The first bytes of that form.
    const ALIGNED_HEAD: [u8; 4] = [kind::NOP, kind::NOP, kind::TIMESTAMPS, 10];

    /// Returns an option area with timestamps only.
    pub(crate) fn aligned(&self) -> [u8; Self::ALIGNED] {
        let ([a, b, c, d], [e, f, g, h]) = (self.value.to_be_bytes(), self.echo.to_be_bytes());
        let [nop, another, kind, len] = Self::ALIGNED_HEAD;
        [nop, another, kind, len, a, b, c, d, e, f, g, h]
    }

    /// Returns the timestamps of an option area with timestamps only; `None` for other areas.
    fn read_aligned(area: &[u8]) -> Option<Timestamps> {
        let &[nop, another, kind, len, a, b, c, d, e, f, g, h] = area.as_array::<{ Self::ALIGNED }>()?;
        ([nop, another, kind, len] == Self::ALIGNED_HEAD).then(|| Timestamps {
            value: u32::from_be_bytes([a, b, c, d]),
            echo: u32::from_be_bytes([e, f, g, h]),
        })
    }
}

/// A SACK block: the bytes `[start, end)`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct SackBlock {
    /// First byte.
    pub start: SeqNum,
    /// The byte after the last.
    pub end: SeqNum,
}

/// The SACK blocks of a segment, at most four.
pub type SackBlocks = ArrayVec<SackBlock, 4>;

/// Options without a typed field, as kind and content, in the order of the wire.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct UnknownOptions {
    /// The options as on the wire: kind, length, content; without NOPs.
    bytes: ArrayVec<u8, MAX_LEN>,
}

/// Error for an option that exceeds the 40 bytes of a segment's option area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OptionSpaceFull;

crate::impl_error! {
    OptionSpaceFull {
        Self => "no room for another TCP option: all of them together have 40 bytes";
    }
}

impl UnknownOptions {
    /// Adds an option with this content (the bytes after kind and length). Kinds 0 (end) and 1 (NOP), which
    /// have no length, have no effect.
    ///
    /// # Errors
    /// [`OptionSpaceFull`] if the store would exceed 40 bytes.
    pub fn push(&mut self, option: u8, content: &[u8]) -> Result<(), OptionSpaceFull> {
        if matches!(option, kind::END | kind::NOP) {
            return Ok(());
        }
        let len = u8::try_from(content.len() + 2).map_err(|_| OptionSpaceFull)?;
        if usize::from(len) > self.bytes.remaining_capacity() {
            return Err(OptionSpaceFull);
        }
        self.bytes.extend([option, len]);
        self.bytes.extend(content.iter().copied());
        Ok(())
    }

    /// Iterates over the options as kind and content.
    pub fn iter(&self) -> impl Iterator<Item = (u8, &[u8])> {
        RawOptions::new(&self.bytes).filter_map(|option| match option {
            RawOption::Tlv { kind, content, .. } => Some((kind, content)),
            RawOption::Nop { .. } | RawOption::Malformed { .. } => None,
        })
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// True if there is one of this kind.
    pub fn contains(&self, option: u8) -> bool {
        self.iter().any(|(kind, _)| kind == option)
    }
}

#[cfg(test)]
pub(crate) mod arbitrary {
    //! Random options for tests. Each option fits the wire and has a meaning on the segment.

    use super::*;
    use crate::fast_open::Cookie;
    use crate::gentle;
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    /// A cookie or a request, in either form.
    pub(crate) fn fast_open() -> impl Strategy<Value = FastOpen> {
        let cookie = (any::<[u8; 16]>(), prop::sample::select(&[0usize, 4, 6, 8, 10, 12, 14, 16][..]));
        (cookie, any::<bool>()).prop_map(|((bytes, len), experimental)| FastOpen {
            cookie: Cookie::new(&bytes[..len]).expect("a legal length"),
            experimental,
        })
    }

    /// Returns a GA option in one of the forms that a SYN may carry (`syn`), or another segment.
    pub(crate) fn gentle(syn: bool) -> BoxedStrategy<Gentle> {
        if syn {
            return prop::sample::select(&[0x01u8, 0x02, 0x11, 0x51, 0x50, 0xd1][..])
                .prop_map(Gentle::Capability)
                .boxed();
        }
        let (len, enc_len) = (0..=gentle::MAX_LEN, 1..=gentle::MAX_LEN);
        let plain = any::<u8>().prop_map(|flags| flags & !(gentle::ENC | gentle::R_FAIL));
        let parities = (1..=gentle::PARITIES_MAX).prop_flat_map(|count| (0..count, Just(count)));
        (plain, len.clone(), enc_len, len, any::<u32>(), 0..5, parities)
            .prop_map(|(flags, lost_len, enc_len, start_off, crc32c, form, (parity, parities))| match form {
                0 => Gentle::Short { flags },
                1 => Gentle::Fail { flags: flags | gentle::R_FAIL, lost_len },
                2 => Gentle::EncF1 { flags: flags | gentle::ENC, enc_len },
                3 => Gentle::EncF2 { flags: flags | gentle::ENC, enc_len, start_off, crc32c },
                _ => {
                    Gentle::EncRs { flags: flags | gentle::ENC, enc_len, start_off, crc32c, parity, parities }
                }
            })
            .boxed()
    }

    /// Any combination of options. Together they may exceed the 40 bytes of a segment.
    pub(crate) fn options(syn: bool) -> impl Strategy<Value = Options> {
        let handshake = (option::of(any::<u16>()), option::of(0..=MAX_WINDOW_SCALE), any::<bool>());
        let stamps = any::<(u32, u32)>().prop_map(|(value, echo)| Timestamps { value, echo });
        let block =
            any::<(u32, u32)>().prop_map(|(start, end)| SackBlock { start: SeqNum(start), end: SeqNum(end) });
        let unknown = (prop::sample::select(&[19u8, 29, 99, 172, 174, 200][..]), vec(any::<u8>(), 0..12));
        (
            handshake,
            option::of(stamps),
            vec(block, 0..=4),
            option::of(fast_open()),
            option::of(gentle(syn)),
            vec(unknown, 0..3),
        )
            .prop_map(
                move |((mss, window_scale, sack_permitted), timestamps, sack, fast_open, gentle, others)| {
                    let mut options = Options { timestamps, fast_open, gentle, ..Options::default() };
                    if syn {
                        options = Options { mss, window_scale, sack_permitted, ..options };
                    } else {
                        options.sack = sack.into_iter().collect();
                    }
                    for (option, content) in others {
                        options.unknown.push(option, &content).expect("three short options fit");
                    }
                    options
                },
            )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_small_enough_to_pass_around() {
        assert!(size_of::<Options>() <= 160, "{} bytes", size_of::<Options>());
    }

    #[test]
    fn unknown_options_are_kept_up_to_the_space_of_a_segment() {
        let mut unknown = UnknownOptions::default();
        assert!(unknown.is_empty());
        unknown.push(99, &[1, 2, 3]).unwrap();
        unknown.push(kind::NOP, &[]).unwrap();
        unknown.push(19, &[0; 16]).unwrap();
        assert_eq!(unknown.push(100, &[0; 16]), Err(OptionSpaceFull));
        assert_eq!(unknown.push(100, &[0; 300]), Err(OptionSpaceFull));
        unknown.push(100, &[0; 15]).unwrap();
        let kinds: std::vec::Vec<u8> = unknown.iter().map(|(kind, _)| kind).collect();
        assert_eq!(kinds, [99, 19, 100]);
        assert!(unknown.contains(19) && !unknown.contains(20));
    }
}

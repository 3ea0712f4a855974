//! The Gentle-Aggression option (GA): one experimental option serves Corrective and Proactive.
//!
//! It has kind 254 (253 is accepted on receipt) and a 16-bit ExID (RFC 6994). The ExID is 0xDC60 by default,
//! as in the published patches of Corrective's authors. On SYN and SYN-ACK one byte negotiates. On other
//! segments the first byte is a set of flags, and four longer forms carry lengths:
//!
//! | form | Length | after the ExID | when |
//! |---|---|---|---|
//! | capability | 5 | the capability byte | SYN, SYN-ACK |
//! | window | 5 | 0x30 and the shift | a SYN of Fast Open, in an option of its own |
//! | part | 8 | flags `COPY`, offset (24 bits) | a SYN with a further part of its data |
//! | short | 5 | flags | neither `ENC` nor `R_FAIL` |
//! | fail | 8 | flags, lost_len (24 bits) | `R_FAIL` |
//! | enc-F1 | 8 | flags, enc_len (24 bits) | `ENC`, profile F1 (the prototype's) |
//! | enc-F2 | 15 | flags, enc_len (24), start_off (24), crc32c (32) | `ENC`, profile F2 |
//! | enc-RS | 16 | as enc-F2, then parity (4 bits), parities (4) | `ENC`, profile F2, encoding type 3 |
//!
//! If a malformed option has `ENC`, the payload of its segment must never be processed as data. So parsing
//! distinguishes a malformed option from an absent one: see [`Reading::Malformed`].

use arrayvec::ArrayVec;

/// Default ExID of the option.
pub const EXPERIMENTAL_ID: u16 = 0xDC60;

/// Flag `R_ACK`: the window was reduced for a repaired loss (the prototype's `RECOVERY_CWR`).
pub const R_ACK: u8 = 0x80;
/// Flag `R_SUCC`: a loss was repaired.
pub const R_SUCC: u8 = 0x40;
/// Flag `R_FAIL`: a loss could not be repaired; its length follows.
pub const R_FAIL: u8 = 0x20;
/// Flag `ENC`: the payload is a parity of stream data.
pub const ENC: u8 = 0x10;
/// Flag `S_PAR` (F2): the bit of the receiver's current episode (`docs/wire/reports.md`); belongs to
/// `R_SUCC`.
pub const S_PAR: u8 = 0x08;
/// Flag `A_PAR` (F2): the `S_PAR` that `R_ACK` confirms.
pub const A_PAR: u8 = 0x04;
/// Flag `COPY` (F2): this segment is a Proactive copy.
pub const COPY: u8 = 0x02;
/// Flag `FIN_END` (F2): with `ENC`, a FIN follows the last encoded byte.
pub const FIN_END: u8 = 0x01;

/// Capability bit `R`: the byte is an answer. Set in a SYN-ACK of version F2 only.
pub const CAP_ANSWER: u8 = 0x80;
/// Capability bit `P`: Proactive offered or agreed.
pub const CAP_PROACTIVE: u8 = 0x40;
/// Capability bits of the version.
pub const CAP_VERSION_MASK: u8 = 0x30;
/// Version F1: bit-compatible with the authors' prototype.
pub const CAP_VERSION_F1: u8 = 0x00;
/// Version F2.
pub const CAP_VERSION_F2: u8 = 0x10;
/// The form `window`, in the bits of the version: the low four bits are the shift of [`EARLY_WINDOW`].
pub const CAP_WINDOW: u8 = 0x30;
/// Unit of the form `window`, in bytes. Shifted left by 1 to [`EARLY_SHIFT_MAX`], it is the receive window of
/// a SYN, whose own window field is not scaled (RFC 7323 section 2.2).
pub const EARLY_WINDOW: u32 = 1 << 16;
/// Largest shift of the form `window`; it stands for a window of 1 GiB.
pub const EARLY_SHIFT_MAX: u8 = 14;
/// Capability bits of the encoding type; see [`encoding_type`].
pub const CAP_ENCODING_MASK: u8 = 0x0f;
/// Encoding type: none.
pub const ENCODING_NONE: u8 = 0;
/// Encoding type: XOR over all blocks.
pub const ENCODING_XOR: u8 = 1;
/// Encoding type: XOR over every other block, two interleaved groups.
pub const ENCODING_XOR_INTERLEAVED: u8 = 2;
/// Encoding type: Reed-Solomon over all blocks, up to [`PARITIES_MAX`] parities (`docs/wire/parity.md`).
pub const ENCODING_REED_SOLOMON: u8 = 3;

/// Maximum number of parities of one group with [`ENCODING_REED_SOLOMON`].
pub const PARITIES_MAX: u8 = 8;

/// The `lost_len` that means STOP: send no more `ENC` on this connection.
pub const STOP: u32 = 0xff_ffff;
/// The largest value of a 24-bit length.
pub const MAX_LEN: u32 = 0xff_ffff;

/// Returns the encoding type in a capability byte. Reserved types read as none.
pub const fn encoding_type(capability: u8) -> u8 {
    match capability & CAP_ENCODING_MASK {
        kind @ (ENCODING_XOR | ENCODING_XOR_INTERLEAVED | ENCODING_REED_SOLOMON) => kind,
        _ => ENCODING_NONE,
    }
}

/// The value of the option. Integers that exceed a 24-bit field are written as [`MAX_LEN`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Gentle {
    /// On SYN and SYN-ACK: the capability byte, see the `CAP_*` constants.
    Capability(u8),
    /// On a SYN that repeats an earlier one and has further data (Fast Open): the offset of that data.
    Part {
        /// Bytes of data before it, at least 1.
        offset: u32,
    },
    /// Flags only.
    Short {
        /// Neither [`ENC`] nor [`R_FAIL`].
        flags: u8,
    },
    /// A loss could not be repaired.
    Fail {
        /// [`R_FAIL`] and possibly others, not [`ENC`].
        flags: u8,
        /// Bytes from SEG.ACK on that are considered lost, or [`STOP`].
        lost_len: u32,
    },
    /// The payload is an XOR, profile F1: the encoded range starts at SEG.SEQ.
    EncF1 {
        /// [`ENC`] and possibly others, not [`R_FAIL`].
        flags: u8,
        /// Bytes from the first to the last encoded byte, at least 1.
        enc_len: u32,
    },
    /// The payload is an XOR, profile F2.
    EncF2 {
        /// [`ENC`] and possibly others, not [`R_FAIL`].
        flags: u8,
        /// Bytes from the first to the last encoded byte, at least 1.
        enc_len: u32,
        /// The encoded range starts at SEG.SEQ + `start_off`.
        start_off: u32,
        /// CRC-32C over the encoded stream bytes in stream order, without FIN. With encoding type 3 the CRC
        /// also covers the position of the range in the stream, which precedes the bytes.
        crc32c: u32,
    },
    /// The payload is one of several parities, profile F2 with encoding type 3.
    EncRs {
        /// [`ENC`] and possibly others, not [`R_FAIL`].
        flags: u8,
        /// Bytes from the first to the last encoded byte, at least 1.
        enc_len: u32,
        /// The encoded range starts at SEG.SEQ + `start_off`.
        start_off: u32,
        /// CRC-32C over the position of the range in the stream and its bytes, without FIN.
        crc32c: u32,
        /// Index of this parity in its group, from 0; below `parities`.
        parity: u8,
        /// Parities of the group, 1 to [`PARITIES_MAX`].
        parities: u8,
    },
}

/// Result of reading the value bytes of an option (after the ExID).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reading {
    /// A well-formed option.
    Option(Gentle),
    /// The form `window` of a SYN, with its shift.
    Window(u8),
    /// Malformed but harmless: process the segment as if the option were absent.
    Ignore,
    /// Malformed, and the payload may be a parity: drop the segment if either side has sent a capability on
    /// this connection.
    Malformed,
}

impl Gentle {
    /// Reads the value bytes, which begin after the ExID. `syn`: the segment is a SYN or SYN-ACK.
    pub fn read(value: &[u8], syn: bool) -> Reading {
        if syn { read_capability(value) } else { read_flags(value) }
    }

    /// Returns the flags byte of a segment after the handshake; `None` for the forms of a SYN.
    pub const fn flags(&self) -> Option<u8> {
        match *self {
            Gentle::Capability(_) | Gentle::Part { .. } => None,
            Gentle::Short { flags }
            | Gentle::Fail { flags, .. }
            | Gentle::EncF1 { flags, .. }
            | Gentle::EncF2 { flags, .. }
            | Gentle::EncRs { flags, .. } => Some(flags),
        }
    }

    /// True if the payload of the segment is a parity and not stream data.
    pub const fn is_encoded(&self) -> bool {
        match self {
            Gentle::EncF1 { .. } | Gentle::EncF2 { .. } | Gentle::EncRs { .. } => true,
            Gentle::Capability(_) | Gentle::Part { .. } | Gentle::Short { .. } | Gentle::Fail { .. } => false,
        }
    }

    /// Returns the 1, 4, 11 or 12 value bytes that follow the ExID.
    pub fn value(&self) -> ArrayVec<u8, 12> {
        let mut out = ArrayVec::new();
        match *self {
            Gentle::Capability(byte) | Gentle::Short { flags: byte } => out.push(byte),
            Gentle::Part { offset } => {
                out.push(COPY);
                out.extend(u24(offset));
            }
            Gentle::Fail { flags, lost_len: len } | Gentle::EncF1 { flags, enc_len: len } => {
                out.push(flags);
                out.extend(u24(len));
            }
            Gentle::EncF2 { flags, enc_len, start_off, crc32c } => {
                out.push(flags);
                out.extend(u24(enc_len));
                out.extend(u24(start_off));
                out.extend(crc32c.to_be_bytes());
            }
            Gentle::EncRs { flags, enc_len, start_off, crc32c, parity, parities } => {
                out.push(flags);
                out.extend(u24(enc_len));
                out.extend(u24(start_off));
                out.extend(crc32c.to_be_bytes());
                out.push(parity << 4 | parities & 0x0f);
            }
        }
        out
    }
}

fn read_capability(value: &[u8]) -> Reading {
    match *value {
        [byte] if matches!(byte & CAP_VERSION_MASK, CAP_VERSION_F1 | CAP_VERSION_F2) => {
            Reading::Option(Gentle::Capability(byte))
        }
        [byte] if byte > CAP_WINDOW && byte <= CAP_WINDOW + EARLY_SHIFT_MAX => {
            Reading::Window(byte - CAP_WINDOW)
        }
        [COPY, a, b, c] if [a, b, c] != [0; 3] => {
            Reading::Option(Gentle::Part { offset: from_u24([a, b, c]) })
        }
        // Reserved versions and other lengths are harmless: the payload of a SYN is never parity.
        _ => Reading::Ignore,
    }
}

fn read_flags(value: &[u8]) -> Reading {
    let encoded = value.first().is_some_and(|flags| flags & ENC != 0);
    let failed = value.first().is_some_and(|flags| flags & R_FAIL != 0);
    let option = match *value {
        [flags] if !encoded && !failed => Some(Gentle::Short { flags }),
        [flags, a, b, c] if failed && !encoded => Some(Gentle::Fail { flags, lost_len: from_u24([a, b, c]) }),
        [flags, a, b, c] if encoded && !failed => Some(Gentle::EncF1 { flags, enc_len: from_u24([a, b, c]) }),
        [flags, a, b, c, d, e, f, g, h, i, j] if encoded && !failed => Some(Gentle::EncF2 {
            flags,
            enc_len: from_u24([a, b, c]),
            start_off: from_u24([d, e, f]),
            crc32c: u32::from_be_bytes([g, h, i, j]),
        }),
        [flags, a, b, c, d, e, f, g, h, i, j, of] if encoded && !failed && is_parity_of(of) => {
            Some(Gentle::EncRs {
                flags,
                enc_len: from_u24([a, b, c]),
                start_off: from_u24([d, e, f]),
                crc32c: u32::from_be_bytes([g, h, i, j]),
                parity: of >> 4,
                parities: of & 0x0f,
            })
        }
        _ => None,
    };
    match option {
        Some(
            Gentle::EncF1 { enc_len: 0, .. }
            | Gentle::EncF2 { enc_len: 0, .. }
            | Gentle::EncRs { enc_len: 0, .. },
        ) => Reading::Malformed,
        Some(option) => Reading::Option(option),
        None if encoded || !matches!(value.len(), 1 | 4 | 11) => Reading::Malformed,
        None => Reading::Ignore,
    }
}

/// True if the last byte of the form enc-RS denotes one of up to [`PARITIES_MAX`] parities.
fn is_parity_of(byte: u8) -> bool {
    let (parity, parities) = (byte >> 4, byte & 0x0f);
    parity < parities && parities <= PARITIES_MAX
}

/// Returns the three bytes of a 24-bit integer; larger values saturate.
fn u24(value: u32) -> [u8; 3] {
    let [_, a, b, c] = value.min(MAX_LEN).to_be_bytes();
    [a, b, c]
}

fn from_u24([a, b, c]: [u8; 3]) -> u32 {
    u32::from_be_bytes([0, a, b, c])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reserved_versions_and_wrong_lengths_on_a_syn_are_ignored() {
        assert_eq!(Gentle::read(&[0x51], true), Reading::Option(Gentle::Capability(0x51)));
        assert_eq!(Gentle::read(&[0x01], true), Reading::Option(Gentle::Capability(0x01)));
        for value in [&[0x21u8][..], &[0x30], &[0x3f], &[0x71], &[0xb1], &[], &[0x51, 0]] {
            assert_eq!(Gentle::read(value, true), Reading::Ignore, "{value:02x?}");
        }
    }

    #[test]
    fn a_syn_may_announce_a_window_beyond_16_bits() {
        assert_eq!(Gentle::read(&[0x31], true), Reading::Window(1));
        assert_eq!(Gentle::read(&[0x3e], true), Reading::Window(EARLY_SHIFT_MAX));
        assert_ne!(Gentle::read(&[0x31], false), Reading::Window(1), "only on a SYN");
    }

    #[test]
    fn reserved_encoding_types_read_as_none() {
        let types: std::vec::Vec<u8> = (0x50..0x60).map(encoding_type).collect();
        let known = [ENCODING_NONE, ENCODING_XOR, ENCODING_XOR_INTERLEAVED, ENCODING_REED_SOLOMON];
        assert_eq!(types[..4], known);
        assert!(types[4..].iter().all(|kind| *kind == ENCODING_NONE));
    }

    #[test]
    fn illegal_forms_drop_the_segment_if_the_payload_may_be_encoded() {
        let malformed: [&[u8]; 13] = [
            &[ENC],                               // no length
            &[ENC | R_FAIL, 0, 0, 9],             // never set together
            &[ENC, 0, 0, 0],                      // encodes nothing
            &[ENC, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], // the same in F2
            &[ENC, 0, 0, 9, 0],                   // no form has this length
            &[R_SUCC, 0],                         // no form has this length, even without ENC
            &[],                                  // not even flags
            &[ENC | R_FAIL, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0],
            &[ENC, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0x11], // parity 2 of 1
            &[ENC, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0x00], // parity 1 of 0
            &[ENC, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0x09], // parity 1 of 9, above the maximum
            &[ENC, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x01], // encodes nothing
            &[ENC | R_FAIL, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0x01],
        ];
        for value in malformed {
            assert_eq!(Gentle::read(value, false), Reading::Malformed, "{value:02x?}");
        }
    }

    #[test]
    fn illegal_forms_without_encoding_are_ignored() {
        for value in [&[R_FAIL][..], &[R_SUCC, 0, 0, 9], &[R_SUCC, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]] {
            assert_eq!(Gentle::read(value, false), Reading::Ignore, "{value:02x?}");
        }
    }

    #[test]
    fn a_syn_may_carry_a_further_part_of_its_data() {
        let part = Gentle::Part { offset: 1420 };
        assert_eq!(part.value().as_slice(), [COPY, 0, 0x05, 0x8c]);
        assert_eq!(Gentle::read(&part.value(), true), Reading::Option(part));
        for none in [&[COPY, 0, 0, 0][..], &[COPY | ENC, 0, 0, 9], &[COPY, 0, 0]] {
            assert_eq!(Gentle::read(none, true), Reading::Ignore, "{none:02x?}");
        }
        assert_eq!(Gentle::read(&part.value(), false), Reading::Ignore, "only on a SYN");
    }

    #[test]
    fn lengths_beyond_24_bits_are_cut_to_the_largest() {
        let option = Gentle::Fail { flags: R_FAIL, lost_len: u32::MAX };
        assert_eq!(option.value().as_slice(), [R_FAIL, 0xff, 0xff, 0xff]);
    }

    #[test]
    fn parity_option_has_its_index_and_the_number_of_parities() {
        let bytes = [ENC, 0, 0x0b, 0xb8, 0, 0x03, 0xe8, 0x01, 0x35, 0x94, 0x94, 0x23];
        let option = Gentle::EncRs {
            flags: ENC,
            enc_len: 3000,
            start_off: 1000,
            crc32c: 0x0135_9494,
            parity: 2,
            parities: 3,
        };
        assert_eq!(Gentle::read(&bytes, false), Reading::Option(option));
        assert_eq!(option.value().as_slice(), bytes);
        assert!(option.is_encoded());
    }

    #[test]
    fn only_encoded_forms_are_encoded() {
        assert!(Gentle::EncF1 { flags: ENC, enc_len: 1 }.is_encoded());
        assert!(!Gentle::Short { flags: R_ACK }.is_encoded());
        assert_eq!(Gentle::Short { flags: R_ACK }.flags(), Some(R_ACK));
        assert_eq!(Gentle::Capability(0x51).flags(), None);
    }

    proptest! {
        #[test]
        fn parsed_option_is_written_back(
            value in proptest::collection::vec(any::<u8>(), 0..14),
            syn: bool,
        ) {
            if let Reading::Option(option) = Gentle::read(&value, syn) {
                let written = option.value();
                prop_assert_eq!(written.as_slice(), value.as_slice());
            }
        }

        #[test]
        fn possibly_encoded_payload_is_never_treated_as_data(
            value in proptest::collection::vec(any::<u8>(), 0..14),
        ) {
            let says_encoded = value.first().is_some_and(|flags| flags & ENC != 0);
            match Gentle::read(&value, false) {
                Reading::Option(option) => prop_assert_eq!(option.is_encoded(), says_encoded),
                Reading::Window(_) => prop_assert!(false, "only on a SYN"),
                Reading::Ignore => prop_assert!(!says_encoded),
                Reading::Malformed => {}
            }
        }
    }
}

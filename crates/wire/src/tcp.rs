//! The TCP header (RFC 9293 section 3.1) and its flags (RFC 9768 for AE).
//!
//! ```text
//!  byte 12                         byte 13
//! +---+---+---+---+---+---+---+---+---+---+---+---+---+---+---+---+
//! |  Data Offset  | R4| R5| R6|AE |CWR|ECE|URG|ACK|PSH|RST|SYN|FIN|
//! +---+---+---+---+---+---+---+---+---+---+---+---+---+---+---+---+
//! ```
//!
//! R4, R5 and R6 are reserved; their names are the numbers of the bits in the IANA registry. This crate does
//! not change these bits; a connection negotiates their meaning.

use core::fmt;
use core::ops::{BitOr, BitOrAssign};

use arrayvec::ArrayVec;

use crate::error::ParseError;
use crate::options::{Dropped, Options};
use crate::seq::SeqNum;

/// Bytes of a header without options.
pub const MIN_HEADER_LEN: usize = 20;
/// Bytes of the largest header: 15 words.
pub const MAX_HEADER_LEN: usize = 60;
/// Offset of the checksum field in the header.
pub const CHECKSUM_OFFSET: usize = 16;

/// The control bits of a segment, including the reserved ones.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Flags(pub u16);

impl Flags {
    /// No flag.
    pub const NONE: Flags = Flags(0);
    /// The sender has no more data.
    pub const FIN: Flags = Flags(0x001);
    /// Synchronise sequence numbers.
    pub const SYN: Flags = Flags(0x002);
    /// Reset.
    pub const RST: Flags = Flags(0x004);
    /// Push.
    pub const PSH: Flags = Flags(0x008);
    /// The acknowledgement field is valid.
    pub const ACK: Flags = Flags(0x010);
    /// The urgent pointer is valid.
    pub const URG: Flags = Flags(0x020);
    /// ECN echo.
    pub const ECE: Flags = Flags(0x040);
    /// Congestion window reduced.
    pub const CWR: Flags = Flags(0x080);
    /// Accurate ECN (RFC 9768), registry bit 7; formerly NS.
    pub const AE: Flags = Flags(0x100);
    /// Reserved, registry bit 6.
    pub const R6: Flags = Flags(0x200);
    /// Reserved, registry bit 5.
    pub const R5: Flags = Flags(0x400);
    /// Reserved, registry bit 4. Proactive marks its copies with it if both ends agreed.
    pub const R4: Flags = Flags(0x800);
    /// All bits of the field.
    pub const ALL: Flags = Flags(0xfff);

    /// Letters in the order in which packet scripts write them.
    const LETTERS: [(Flags, char); 12] = [
        (Flags::FIN, 'F'),
        (Flags::SYN, 'S'),
        (Flags::RST, 'R'),
        (Flags::PSH, 'P'),
        (Flags::ECE, 'E'),
        (Flags::CWR, 'W'),
        (Flags::AE, 'A'),
        (Flags::URG, 'U'),
        (Flags::R4, '4'),
        (Flags::R5, '5'),
        (Flags::R6, '6'),
        (Flags::ACK, '.'),
    ];

    /// True if all bits of `other` are set.
    pub const fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// True if at least one bit of `other` is set.
    pub const fn intersects(self, other: Flags) -> bool {
        self.0 & other.0 != 0
    }

    /// True if no bit is set.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Sets the bits of `other`.
    pub fn insert(&mut self, other: Flags) {
        self.0 |= other.0;
    }

    /// Clears the bits of `other`.
    pub fn remove(&mut self, other: Flags) {
        self.0 &= !other.0;
    }

    /// Returns these flags without the bits of `other`.
    #[must_use]
    pub const fn without(self, other: Flags) -> Flags {
        Flags(self.0 & !other.0)
    }

    /// Parses the format of `Display`: letters of `FSRPEWAU456.` in any order, or `-` for none. `None` for
    /// other characters.
    pub fn from_letters(text: &str) -> Option<Flags> {
        if text == "-" {
            return Some(Flags::NONE);
        }
        text.chars().try_fold(Flags::NONE, |flags, letter| {
            Self::LETTERS.iter().find(|(_, known)| *known == letter).map(|(flag, _)| flags | *flag)
        })
    }
}

impl BitOr for Flags {
    type Output = Flags;

    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

impl BitOrAssign for Flags {
    fn bitor_assign(&mut self, other: Flags) {
        self.insert(other);
    }
}

impl fmt::Display for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = ArrayVec::<u8, 12>::new();
        text.extend(
            Self::LETTERS.iter().filter(|(flag, _)| self.contains(*flag)).map(|(_, letter)| *letter as u8),
        );
        f.pad(if text.is_empty() { "-" } else { core::str::from_utf8(&text).unwrap_or("?") })
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The bytes of a segment, divided at its data offset.
pub(crate) struct Parts<'a> {
    fixed: &'a [u8; MIN_HEADER_LEN],
    pub(crate) options: &'a [u8],
    pub(crate) payload: &'a [u8],
}

impl Parts<'_> {
    /// Returns the control and reserved bits.
    #[inline]
    pub(crate) fn flags(&self) -> Flags {
        Flags(u16::from_be_bytes([self.fixed[12], self.fixed[13]]) & Flags::ALL.0)
    }
}

/// Divides the bytes of a segment.
#[inline]
pub(crate) fn split(bytes: &[u8]) -> Result<Parts<'_>, ParseError> {
    let (fixed, rest) = bytes.split_first_chunk::<MIN_HEADER_LEN>().ok_or(ParseError::Truncated)?;
    let header_len = usize::from(fixed[12] >> 4) * 4;
    let options_len = header_len.checked_sub(MIN_HEADER_LEN).ok_or(ParseError::TcpHeaderLength)?;
    let (options, payload) = rest.split_at_checked(options_len).ok_or(ParseError::Truncated)?;
    Ok(Parts { fixed, options, payload })
}

/// A TCP header, without data offset and checksum, which follow from the rest.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct TcpHeader {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// SEG.SEQ.
    pub seq: SeqNum,
    /// SEG.ACK, meaningful with [`Flags::ACK`].
    pub ack: SeqNum,
    /// Control and reserved bits.
    pub flags: Flags,
    /// SEG.WND as on the wire, before scaling.
    pub window: u16,
    /// SEG.UP, meaningful with [`Flags::URG`].
    pub urgent: u16,
    /// The options.
    pub options: Options,
}

impl TcpHeader {
    /// Parses the header at the start of `bytes`, which may continue with payload. Returns the header and its
    /// length in bytes. Does not verify the checksum.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] and [`ParseError::TcpHeaderLength`].
    pub fn parse(bytes: &[u8]) -> Result<(TcpHeader, usize), ParseError> {
        let parts = split(bytes)?;
        let options = Options::parse(parts.options, parts.flags().contains(Flags::SYN));
        Ok((TcpHeader::of(&parts, options), MIN_HEADER_LEN + parts.options.len()))
    }

    /// Returns the header of these bytes, with the options parsed from them.
    #[inline]
    pub(crate) fn of(parts: &Parts<'_>, options: Options) -> TcpHeader {
        let fixed = parts.fixed;
        TcpHeader {
            src_port: u16::from_be_bytes([fixed[0], fixed[1]]),
            dst_port: u16::from_be_bytes([fixed[2], fixed[3]]),
            seq: SeqNum(u32::from_be_bytes([fixed[4], fixed[5], fixed[6], fixed[7]])),
            ack: SeqNum(u32::from_be_bytes([fixed[8], fixed[9], fixed[10], fixed[11]])),
            flags: parts.flags(),
            window: u16::from_be_bytes([fixed[14], fixed[15]]),
            urgent: u16::from_be_bytes([fixed[18], fixed[19]]),
            options,
        }
    }

    /// Returns the bytes of the header with a checksum of zero, and the options that did not fit.
    pub fn emit(&self) -> (ArrayVec<u8, MAX_HEADER_LEN>, Dropped) {
        let mut area = ArrayVec::new();
        let dropped = self.options.emit(self.flags.contains(Flags::SYN), &mut area);
        let mut out = ArrayVec::new();
        // Together they have at most 60 bytes.
        let _ = out
            .try_extend_from_slice(&self.fixed(area.len(), 0))
            .and_then(|()| out.try_extend_from_slice(&area));
        (out, dropped)
    }

    /// Returns the header without its options, whose length is `options_len` bytes, with `checksum`.
    pub(crate) fn fixed(&self, options_len: usize, checksum: u16) -> [u8; MIN_HEADER_LEN] {
        let TcpHeader { src_port, dst_port, seq, ack, flags, window, urgent, options: _ } = self;
        let words = ((MIN_HEADER_LEN + options_len) / 4) as u16;
        let ports = u32::from(*src_port) << 16 | u32::from(*dst_port);
        let flags = words << 12 | flags.0 & Flags::ALL.0;
        let fields = [
            ports,
            seq.0,
            ack.0,
            u32::from(flags) << 16 | u32::from(*window),
            u32::from(checksum) << 16 | u32::from(*urgent),
        ];
        let mut fixed = [0; MIN_HEADER_LEN];
        for (place, field) in fixed.as_chunks_mut::<4>().0.iter_mut().zip(fields) {
            *place = field.to_be_bytes();
        }
        fixed
    }
}

#[cfg(test)]
pub(crate) mod arbitrary {
    //! Headers as a sender may build them.

    use super::*;
    use crate::options;
    use proptest::prelude::*;

    /// Returns a header whose options belong to its kind of segment, whether or not they fit.
    pub(crate) fn header() -> impl Strategy<Value = TcpHeader> {
        let options = (0..=Flags::ALL.0).prop_flat_map(|bits| {
            (Just(Flags(bits)), options::arbitrary::options(Flags(bits).contains(Flags::SYN)))
        });
        (any::<(u16, u16, u32, u32, u16, u16)>(), options).prop_map(|(numbers, (flags, options))| {
            let (src_port, dst_port, seq, ack, window, urgent) = numbers;
            TcpHeader {
                src_port,
                dst_port,
                seq: SeqNum(seq),
                ack: SeqNum(ack),
                flags,
                window,
                urgent,
                options,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::format;
    use std::string::ToString;

    #[test]
    fn a_marked_copy_has_the_bytes_of_the_specification() {
        // 32-byte header (timestamps), ACK and PSH, registry bit 4: byte 12 = 0x88, byte 13 = 0x18.
        let mut header = TcpHeader { flags: Flags::ACK | Flags::PSH | Flags::R4, ..TcpHeader::default() };
        header.options.timestamps = Some(crate::Timestamps { value: 1, echo: 2 });
        let (bytes, _) = header.emit();
        assert_eq!((bytes.len(), bytes[12], bytes[13]), (32, 0x88, 0x18));
    }

    #[test]
    fn fields_are_where_rfc_9293_puts_them() {
        let header = TcpHeader {
            src_port: 0x0102,
            dst_port: 0x0304,
            seq: SeqNum(0x0506_0708),
            ack: SeqNum(0x090a_0b0c),
            flags: Flags::SYN | Flags::ACK | Flags::AE,
            window: 0x0d0e,
            urgent: 0x0f10,
            options: Options::default(),
        };
        let (bytes, dropped) = header.emit();
        let expected = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x51, 0x12, 13, 14, 0, 0, 15, 16];
        assert_eq!((bytes.as_slice(), dropped.is_none()), (&expected[..], true));
    }

    #[test]
    fn bad_data_offsets_are_refused() {
        let mut bytes = [0u8; 24];
        assert_eq!(TcpHeader::parse(&bytes), Err(ParseError::TcpHeaderLength));
        bytes[12] = 0x40;
        assert_eq!(TcpHeader::parse(&bytes), Err(ParseError::TcpHeaderLength));
        bytes[12] = 0x70;
        assert_eq!(TcpHeader::parse(&bytes), Err(ParseError::Truncated));
        assert_eq!(TcpHeader::parse(&bytes[..19]), Err(ParseError::Truncated));
        bytes[12] = 0x60;
        assert_eq!(TcpHeader::parse(&bytes).map(|(_, len)| len), Ok(24));
    }

    #[test]
    fn flags_print_as_in_packet_scripts() {
        let cases = [
            (Flags::SYN, "S"),
            (Flags::SYN | Flags::ACK, "S."),
            (Flags::ACK | Flags::PSH, "P."),
            (Flags::FIN | Flags::PSH | Flags::ACK, "FP."),
            (Flags::SYN | Flags::ECE | Flags::CWR, "SEW"),
            (Flags::SYN | Flags::ECE | Flags::CWR | Flags::AE, "SEWA"),
            (Flags::R4 | Flags::ACK, "4."),
            (Flags::NONE, "-"),
        ];
        for (flags, text) in cases {
            assert_eq!((flags.to_string().as_str(), Flags::from_letters(text)), (text, Some(flags)));
        }
        assert_eq!(Flags::from_letters("SX"), None);
        assert_eq!(format!("[{:>3}] {:?}", Flags::ACK, Flags::RST), "[  .] R");
    }

    #[test]
    fn flags_are_a_set() {
        let mut flags = Flags::SYN | Flags::ACK;
        assert!(flags.contains(Flags::SYN) && !flags.contains(Flags::SYN | Flags::FIN));
        assert!(flags.intersects(Flags::SYN | Flags::FIN) && flags.contains(Flags::NONE));
        flags.remove(Flags::SYN);
        flags |= Flags::FIN;
        assert_eq!(flags, Flags::FIN | Flags::ACK);
        assert_eq!(flags.without(Flags::FIN), Flags::ACK);
        assert!(!flags.is_empty());
    }

    proptest! {
        #[test]
        fn headers_are_read_back(header in arbitrary::header()) {
            let (bytes, dropped) = header.emit();
            let (read, len) = TcpHeader::parse(&bytes).unwrap();
            prop_assert_eq!(len, bytes.len());
            if dropped.is_none() {
                prop_assert_eq!(read, header);
            }
        }

        #[test]
        fn every_set_of_flags_prints_and_reads_back(bits in 0u16..=0xfff) {
            prop_assert_eq!(Flags::from_letters(&Flags(bits).to_string()), Some(Flags(bits)));
        }
    }
}

//! The bytes that scripts transfer, and their parity for Corrective. Each byte depends on its offset, so that
//! misplaced data is detected.

use brisk_wire::Gentle;
use brisk_wire::gentle::{ENC, MAX_LEN};

/// Returns byte `offset` of a stream, in either direction.
pub(crate) fn byte(offset: u64) -> u8 {
    offset.wrapping_mul(7).wrapping_add(3) as u8
}

pub(crate) fn bytes(offset: u64, len: usize) -> Vec<u8> {
    (offset..).take(len).map(byte).collect()
}

/// Returns the offset of the data in a SYN with this option.
pub(crate) fn part_offset(option: &Gentle) -> u32 {
    if let Gentle::Part { offset } = option { *offset } else { 0 }
}

/// A parity segment: its range, from its option and sequence number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Parity {
    /// Script sequence number of the first covered byte.
    start: u32,
    /// Number of covered bytes.
    enc_len: u32,
}

impl Parity {
    /// Returns the parity segment for this option on a segment at `seq`, if the option is one of parity.
    pub(crate) fn of(option: &Gentle, seq: u32) -> Option<Parity> {
        match *option {
            Gentle::EncF1 { enc_len, .. } => Some(Parity { start: seq, enc_len }),
            Gentle::EncF2 { enc_len, start_off, .. } | Gentle::EncRs { enc_len, start_off, .. } => {
                Some(Parity { start: seq.wrapping_add(start_off), enc_len })
            }
            Gentle::Capability(_) | Gentle::Part { .. } | Gentle::Short { .. } | Gentle::Fail { .. } => None,
        }
    }

    /// Like [`of`](Parity::of), from the bytes of the option in a script.
    pub(crate) fn of_bytes(value: &[u8], seq: u32) -> Option<Parity> {
        let number = |bytes: &[u8]| bytes.iter().fold(0u32, |number, byte| number << 8 | u32::from(*byte));
        let (flags, rest) = value.split_first()?;
        let enc_len = number(rest.get(..3)?).min(MAX_LEN);
        let start_off = rest.get(3..6).map_or(0, number);
        (flags & ENC != 0).then(|| Parity { start: seq.wrapping_add(start_off), enc_len })
    }

    /// Returns the XOR of the covered bytes in blocks of `len`: of all blocks, or of every second one.
    pub(crate) fn payload(&self, len: usize, blocks: Blocks) -> Vec<u8> {
        let step = match blocks {
            Blocks::All => len,
            Blocks::EverySecond => 2 * len,
        };
        let mut payload = vec![0; len];
        let first = u64::from(self.start.wrapping_sub(1));
        let enc_len = self.enc_len as usize;
        for at in (0..enc_len).step_by(step.max(1)) {
            let block = bytes(first + at as u64, len.min(enc_len - at));
            payload.iter_mut().zip(block).for_each(|(sum, byte)| *sum ^= byte);
        }
        payload
    }
}

/// Blocks that a parity segment covers: encoding type 1 or 2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Blocks {
    /// Type 1.
    All,
    /// Type 2, interleaved.
    EverySecond,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parity_has_the_bytes_of_the_specification() {
        let start = |enc_len, len, blocks| Parity { start: 1, enc_len }.payload(len, blocks)[..8].to_vec();
        let hex = |text: u64| text.to_be_bytes().to_vec();
        assert_eq!(start(3000, 1000, Blocks::All), hex(0xebd2_b9a0_a78e_755c));
        assert_eq!(start(4000, 1000, Blocks::All), hex(0xe0c0_a080_80a0_4060));
        assert_eq!(start(1500, 1000, Blocks::All), hex(0x5868_7868_6858_a8b8));
        assert_eq!(
            Parity { start: 1, enc_len: 1500 }.payload(1000, Blocks::All)[500..508],
            hex(0xafb6_bdc4_cbd2_d9e0)
        );
        assert_eq!(start(3000, 1000, Blocks::EverySecond), hex(0xb0b0_d0d0_d0f0_f0d0));
        let odd = Parity { start: 1001, enc_len: 3000 }.payload(1000, Blocks::EverySecond);
        assert_eq!(odd[..8], hex(0x5070_7050_5050_b0b0));
    }

    #[test]
    fn parity_option_gives_the_covered_range() {
        let bytes = [0x10, 0, 0x0b, 0xb8, 0, 0x03, 0xe8, 1, 0x35, 0x94, 0x94];
        let expected = Some(Parity { start: 1, enc_len: 3000 });
        assert_eq!(Parity::of_bytes(&bytes, 0xffff_fc19), expected);
        let option = Gentle::EncF2 { flags: ENC, enc_len: 3000, start_off: 1000, crc32c: 0x0135_9494 };
        assert_eq!(Parity::of(&option, 0xffff_fc19), expected);
        assert_eq!(Parity::of_bytes(&[0x10, 0, 0x0b, 0xb8], 1), expected);
        assert_eq!(Parity::of_bytes(&[0x48], 1), None);
    }
}

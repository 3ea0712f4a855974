//! The codes of Corrective: which stream bytes a parity segment covers, its payload, and the checksum.
//!
//! A range of stream bytes is cut into blocks of B bytes from its start. The last block may be short and is
//! padded with zeros. A parity is a sum of the blocks, byte by byte. Each block is multiplied by a
//! coefficient in GF(256) (`gf256`). Bytes at the same *residue* modulo B form a column; one parity is one
//! equation for each column.
//!
//! | code | coefficients | parities per group | repairs in each column |
//! |---|---|---|---|
//! | [`Code::Xor`] | all 1 | 1 | one byte |
//! | [`Code::XorInterleaved`] | 1 for every other block, else 0 | 2, each for its half | one byte in each half |
//! | [`Code::ReedSolomon`] | `coefficient`: rows of a Cauchy matrix | 1 to 8 | as many bytes as parities |
//!
//! The first row of the matrix is all ones, so that the first Reed-Solomon parity is the XOR. Encoder and
//! decoder share this file; `docs/wire/parity.md` specifies it.

use arrayvec::ArrayVec;
use brisk_wire::SeqNum;

use super::{crc32c, gf256};
use crate::seq_ranges::SeqRange;

/// Largest number of blocks of a group with one of the XOR codes (Gentle Aggression section 5).
pub(crate) const XOR_BLOCKS_MAX: u32 = 16;
/// Largest number of blocks of a group with [`Code::ReedSolomon`].
pub(crate) const RS_BLOCKS_MAX: u32 = 32;
/// Largest number of parities of a group.
pub const ROWS_MAX: u8 = brisk_wire::gentle::PARITIES_MAX;

/// An erasure code that two ends can agree on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Code {
    /// XOR over all blocks: encoding type 1.
    Xor,
    /// XOR over every other block, two parities: encoding type 2.
    XorInterleaved,
    /// Systematic Reed-Solomon code with up to [`ROWS_MAX`] parities: encoding type 3.
    ReedSolomon,
}

impl Code {
    /// Returns the code of an encoding type (`brisk_wire::gentle::ENCODING_*`).
    pub fn from_encoding(kind: u8) -> Option<Code> {
        match kind {
            brisk_wire::gentle::ENCODING_XOR => Some(Code::Xor),
            brisk_wire::gentle::ENCODING_XOR_INTERLEAVED => Some(Code::XorInterleaved),
            brisk_wire::gentle::ENCODING_REED_SOLOMON => Some(Code::ReedSolomon),
            _ => None,
        }
    }

    /// Returns the encoding type of the code on SYN and SYN-ACK.
    pub fn encoding(self) -> u8 {
        match self {
            Code::Xor => brisk_wire::gentle::ENCODING_XOR,
            Code::XorInterleaved => brisk_wire::gentle::ENCODING_XOR_INTERLEAVED,
            Code::ReedSolomon => brisk_wire::gentle::ENCODING_REED_SOLOMON,
        }
    }

    /// Returns the largest number of blocks of a group.
    pub fn blocks_max(self) -> u32 {
        match self {
            Code::Xor | Code::XorInterleaved => XOR_BLOCKS_MAX,
            Code::ReedSolomon => RS_BLOCKS_MAX,
        }
    }

    /// Returns the distance between consecutive encoded blocks, in blocks: 1 if none is skipped.
    fn stride(self) -> u32 {
        match self {
            Code::Xor | Code::ReedSolomon => 1,
            Code::XorInterleaved => 2,
        }
    }
}

/// Returns the factor of block `block` in parity `row` of a Reed-Solomon group. It is in row `row` of the
/// Cauchy matrix `1 / (x_row + y_block)` with `x_row = row`, `y_block = 128 + block`. Each column is divided
/// by its entry in row 0, so row 0 is all ones. Every square part of such a matrix can be inverted, so any
/// `n` parities repair any `n` blocks. Rows up to 127, blocks up to 127.
pub(crate) const fn coefficient(row: u8, block: u32) -> u8 {
    let y = 0x80 | (block as u8 & 0x7f);
    match gf256::inverse((row & 0x7f) ^ y) {
        Some(inverse) => gf256::mul(y, inverse),
        None => 0, // x and y differ in the highest bit: their sum is never 0
    }
}

/// The stream bytes that one parity segment covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    range: SeqRange,
    block: u32,
    code: Code,
}

impl Layout {
    /// Returns the blocks of `block` bytes in `range`, which reaches from the first to the last encoded byte.
    /// `None` if the range has no block, if it has more than [`Code::blocks_max`] blocks, skipped ones
    /// included, or if the code skips the last block.
    pub fn new(code: Code, range: SeqRange, block: u32) -> Option<Layout> {
        if range.is_empty() || block == 0 {
            return None;
        }
        let blocks = range.len().div_ceil(block);
        let ends_encoded = (blocks - 1).is_multiple_of(code.stride());
        (blocks <= code.blocks_max() && ends_encoded).then_some(Layout { range, block, code })
    }

    /// Returns the layouts of the parity segments of a group in the order of sending. The interleaved code
    /// has two if the group has more than one block. Otherwise there is one, which serves every row of
    /// [`Code::ReedSolomon`]. Empty if the group has no block. Leaves out layouts that [`Layout::new`]
    /// refuses. The caller ensures that the group has at most [`Code::blocks_max`] blocks.
    pub fn of_group(code: Code, group: SeqRange, block: u32) -> ArrayVec<Layout, 2> {
        let blocks = if block == 0 { 0 } else { group.len().div_ceil(block) };
        match code {
            Code::Xor | Code::ReedSolomon => Layout::new(code, group, block).into_iter().collect(),
            Code::XorInterleaved => (0..2.min(blocks))
                .filter_map(|first| {
                    // From the first block of this half to the last; both indices are even or both odd.
                    let last = blocks - 1 - (blocks - 1 - first) % 2;
                    let end = group.end.min(group.start + (last + 1) * block);
                    Layout::new(code, SeqRange::new(group.start + first * block, end), block)
                })
                .collect(),
        }
    }

    /// Returns the range from the first to the last encoded byte; its length is `enc_len`.
    pub fn range(&self) -> SeqRange {
        self.range
    }

    /// Returns the code.
    pub fn code(&self) -> Code {
        self.code
    }

    /// Returns the block size B, bytes.
    pub fn block(&self) -> u32 {
        self.block
    }

    /// Returns the number of blocks in the range, including skipped ones.
    pub fn blocks(&self) -> u32 {
        self.range.len().div_ceil(self.block)
    }

    /// Returns the length of the parity, bytes: B, or the length of the range if that is shorter.
    pub fn payload_len(&self) -> usize {
        self.block.min(self.range.len()) as usize
    }

    /// Iterates over the encoded stream bytes in stream order, as ranges that do not touch.
    pub fn encoded(&self) -> impl Iterator<Item = SeqRange> + Clone + use<> {
        let Layout { range, block, code } = *self;
        let (size, count) = match code.stride() {
            1 => (range.len(), 1),
            stride => (block, range.len().div_ceil(block).div_ceil(stride)),
        };
        (0..count).map(move |index| {
            let start = range.start + index * size * code.stride();
            SeqRange::new(start, range.end.min(start + size))
        })
    }

    /// Cuts `range`, a part of the layout's range, at the ends of blocks. Leaves out skipped blocks.
    pub(super) fn parts(&self, range: SeqRange) -> impl Iterator<Item = Part> + Clone + use<> {
        let Layout { range: whole, block: size, code } = *self;
        let mut at = range.start;
        core::iter::from_fn(move || {
            while at.lt(range.end) {
                let offset = at.since(whole.start);
                let (block, residue) = (offset / size, offset % size);
                let part = SeqRange::new(at, range.end.min(at + (size - residue)));
                at = part.end;
                if block.is_multiple_of(code.stride()) {
                    return Some(Part { block, residue, range: part });
                }
            }
            None
        })
    }

    /// Returns the factor of a block in a row.
    pub(super) fn coefficient(&self, row: u8, block: u32) -> u8 {
        match self.code {
            Code::Xor | Code::XorInterleaved => 1,
            Code::ReedSolomon => coefficient(row, block),
        }
    }
}

/// Encoded bytes of one block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Part {
    /// Index of the block in its layout.
    pub(super) block: u32,
    /// Residue of the first byte.
    pub(super) residue: u32,
    /// Range of the bytes in the stream.
    pub(super) range: SeqRange,
}

/// Bytes of the stream with their sequence number.
pub type Placed<'a> = (SeqNum, &'a [u8]);

/// Converts two adjacent slices of a ring to [`Placed`] bytes, the input of [`parity`] and [`checksum`].
pub fn placed<'a>(start: SeqNum, slices: (&'a [u8], &'a [u8])) -> [Placed<'a>; 2] {
    [(start, slices.0), (start + slices.0.len() as u32, slices.1)]
}

/// Like [`placed`], for any number of pieces.
pub(crate) fn placed_pieces<'a>(
    start: SeqNum,
    pieces: &[&'a [u8]],
) -> impl Iterator<Item = Placed<'a>> + Clone {
    pieces.iter().scan(start, |seq, piece| {
        let at = *seq;
        *seq += piece.len() as u32;
        Some((at, *piece))
    })
}

/// Iterates over the encoded pieces of `bytes`, each within one block.
fn pieces<'a>(layout: &Layout, (seq, bytes): Placed<'a>) -> impl Iterator<Item = (Part, &'a [u8])> + use<'a> {
    layout.parts(SeqRange::with_len(seq, bytes.len() as u32)).map(move |part| {
        let from = part.range.start.since(seq) as usize;
        (part, bytes.get(from..from + part.range.len() as usize).unwrap_or_default())
    })
}

/// Writes parity `row` of the given bytes to `out`. Encoded bytes that are not given count as zero. Bytes
/// that are not encoded are skipped; bytes outside the range must not be given. `row` is 0 except for
/// [`Code::ReedSolomon`]. `out` has [`Layout::payload_len`] bytes.
pub fn parity<'a>(layout: &Layout, row: u8, bytes: impl Iterator<Item = Placed<'a>> + Clone, out: &mut [u8]) {
    out.fill(0);
    // All factors of row 0 are 1.
    let bits = if row == 0 { 0..1 } else { 0..8 };
    for bit in bits.rev() {
        gf256::double_all(out);
        for (part, bytes) in bytes.clone().flat_map(|placed| pieces(layout, placed)) {
            if layout.coefficient(row, part.block) >> bit & 1 == 1 {
                gf256::add(out.get_mut(part.residue as usize..).unwrap_or_default(), bytes);
            }
        }
    }
}

/// Computes the CRC-32C over the given bytes without those of skipped blocks. The bytes must be in stream
/// order and inside the range.
///
/// With [`Code::ReedSolomon`] the checksum also covers the position of the range, as its distance from the
/// first stream byte. The sequence number of that byte is `origin` (ISS + 1 for the sender, IRS + 1 for the
/// receiver). So a device that renumbers only a part of the stream cannot move a range. With the XOR codes
/// the checksum does not cover the position; a rule in `decoder` replaces this.
pub fn checksum<'a>(layout: &Layout, origin: SeqNum, bytes: impl Iterator<Item = Placed<'a>>) -> u32 {
    let add = |crc, (_, bytes): Placed<'a>| crc32c::append(crc, bytes);
    match layout.code {
        Code::Xor => bytes.fold(0, add),
        Code::ReedSolomon => {
            bytes.fold(crc32c::append(0, &layout.range.start.since(origin).to_be_bytes()), add)
        }
        Code::XorInterleaved => bytes
            .flat_map(|placed| pieces(layout, placed))
            .fold(0, |crc, (_, bytes)| crc32c::append(crc, bytes)),
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::*;

    /// Sequence number of the first stream byte.
    const FIRST: SeqNum = SeqNum(1);

    fn stream(len: usize) -> Vec<u8> {
        (0..len).map(|index| (7 * index + 3) as u8).collect()
    }

    fn range(from: u32, to: u32) -> SeqRange {
        SeqRange::new(FIRST + from, FIRST + to)
    }

    /// Returns the bytes of the layout's range in two slices, like those of a ring.
    fn bytes_of<'a>(stream: &'a [u8], layout: &Layout) -> [Placed<'a>; 2] {
        let from = layout.range().start.since(FIRST) as usize;
        let all = &stream[from..from + layout.range().len() as usize];
        placed(layout.range().start, all.split_at(all.len() / 3))
    }

    fn parity_of(stream: &[u8], layout: &Layout, row: u8) -> Vec<u8> {
        let mut out = vec![0xaa; layout.payload_len()];
        parity(layout, row, bytes_of(stream, layout).into_iter(), &mut out);
        out
    }

    fn checksum_of(stream: &[u8], layout: &Layout) -> u32 {
        checksum(layout, FIRST, bytes_of(stream, layout).into_iter())
    }

    fn hex(bytes: &[u8]) -> std::string::String {
        bytes.iter().map(|byte| std::format!("{byte:02x}")).collect()
    }

    /// The parity list of `docs/wire/vectors.md`, computed by an independent program.
    #[test]
    fn wire_vectors_of_parity_and_checksum() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/wire/vectors.md");
        let page = std::fs::read_to_string(page).expect("the page is in the repository");
        let lines = page.lines().skip_while(|line| *line != "```parity").skip(1);
        let vectors: Vec<_> = lines.take_while(|line| *line != "```").collect();
        assert!(vectors.len() > 20, "the list is found");
        for line in vectors {
            let words: Vec<_> = line.split_whitespace().collect();
            let number = |at: usize| words[at].parse::<u32>().expect("a number");
            let sum = |at: usize| u32::from_str_radix(words[at], 16).expect("a checksum");
            let code = Code::from_encoding(number(1) as u8).expect("an encoding type");
            let bytes =
                if words[0] == "text" { b"HELLO_WORLD_1234abc".to_vec() } else { stream(number(3) as usize) };
            let layout = Layout::new(code, range(number(2), number(3)), number(4)).expect("a legal range");
            let parity = parity_of(&bytes, &layout, number(5) as u8);
            assert_eq!(checksum_of(&bytes, &layout), sum(6), "{line}");
            assert_eq!(
                (hex(&parity[..8]).as_str(), crc32c::append(0, &parity)),
                (words[7], sum(8)),
                "{line}"
            );
        }
    }

    #[test]
    fn interleaved_parities_cover_every_other_block() {
        let halves = Layout::of_group(Code::XorInterleaved, range(0, 4000), 1000);
        assert_eq!(halves.iter().map(Layout::range).collect::<Vec<_>>(), [range(0, 3000), range(1000, 4000)]);
    }

    #[test]
    fn a_group_that_ends_in_a_short_block_is_interleaved_up_to_its_end() {
        let halves = Layout::of_group(Code::XorInterleaved, range(0, 2500), 1000);
        assert_eq!(halves.iter().map(Layout::range).collect::<Vec<_>>(), [range(0, 2500), range(1000, 2000)]);
        let encoded: Vec<_> = halves[0].encoded().collect();
        assert_eq!(encoded, [range(0, 1000), range(2000, 2500)]);
        assert_eq!(
            Layout::of_group(Code::XorInterleaved, range(0, 700), 1000).len(),
            1,
            "one block, one parity"
        );
    }

    #[test]
    fn impossible_layouts_are_refused() {
        let xor = |to, block| Layout::new(Code::Xor, range(0, to), block);
        assert!(xor(16_000, 1000).is_some() && xor(16_001, 1000).is_none(), "16 blocks");
        assert!(xor(0, 1000).is_none() && xor(10, 0).is_none());
        assert!(Layout::new(Code::ReedSolomon, range(0, 32_000), 1000).is_some());
        assert!(Layout::new(Code::ReedSolomon, range(0, 32_001), 1000).is_none(), "32 blocks");
        assert!(Layout::new(Code::XorInterleaved, range(0, 2000), 1000).is_none(), "ends in a skipped block");
    }

    #[test]
    fn the_first_row_of_the_matrix_is_all_ones_and_no_factor_is_zero() {
        assert!((0..128).all(|block| coefficient(0, block) == 1));
        assert!((0..ROWS_MAX).all(|row| (0..128).all(|block| coefficient(row, block) != 0)));
    }

    #[test]
    fn encoding_type_identifies_the_code() {
        for code in [Code::Xor, Code::XorInterleaved, Code::ReedSolomon] {
            assert_eq!(Code::from_encoding(code.encoding()), Some(code));
        }
    }
}

//! Solves the equations of the parities for the lost bytes.
//!
//! Each column of a group (the bytes at one residue modulo the block size) has one equation per parity and
//! one unknown per missing byte. Neighbouring columns miss the same blocks. So the columns are taken in spans
//! between the ends of the holes, and every span needs one small matrix. Received bytes are used in place.
//! Only the syndromes are copied: the part of the parities that depends on the missing bytes alone.

use alloc::vec;
use alloc::vec::Vec;

use arrayvec::ArrayVec;

use super::code::{self, Layout, Part, Placed, ROWS_MAX};
use super::gf256;
use crate::outcome::Rebuilt;
use crate::seq_ranges::SeqRange;

/// Limit of missing pieces of blocks. It bounds the work that one parity segment can cause. Honest losses are
/// whole segments, at most two pieces each.
pub(super) const HOLES_MAX: usize = 32;

const ROWS: usize = ROWS_MAX as usize;

/// A received parity: its row and its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ReceivedParity<'a> {
    pub(super) row: u8,
    pub(super) payload: &'a [u8],
}

/// A missing piece of one block, and the run of missing bytes to which it belongs.
#[derive(Clone, Copy, Debug)]
struct Hole {
    part: Part,
    run: usize,
}

impl Hole {
    fn covers(&self, column: u32) -> bool {
        (self.part.residue..self.part.residue + self.part.range.len()).contains(&column)
    }
}

/// The holes of a group, column by column.
#[derive(Debug)]
pub(super) struct Holes {
    holes: ArrayVec<Hole, HOLES_MAX>,
    /// Columns at which the set of missing blocks changes, in ascending order.
    cuts: Vec<u32>,
    /// Maximum number of missing bytes in a column.
    depth: usize,
}

impl Holes {
    /// Returns the holes of the missing runs. `None` if there are more than [`HOLES_MAX`].
    pub(super) fn new(layout: &Layout, missing: &[SeqRange]) -> Option<Holes> {
        let mut holes = ArrayVec::new();
        let mut cuts = Vec::new();
        for (run, range) in missing.iter().enumerate() {
            for part in layout.parts(*range) {
                holes.try_push(Hole { part, run }).ok()?;
                cuts.extend([part.residue, part.residue + part.range.len()]);
            }
        }
        cuts.sort_unstable();
        cuts.dedup();
        let missed = |column: &u32| holes.iter().filter(|hole| hole.covers(*column)).count();
        let depth = cuts.iter().map(missed).max().unwrap_or(0);
        Some(Holes { holes, cuts, depth })
    }

    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    /// Returns the missing runs with their bytes. Needs at least [`Holes::depth`] parities of different rows.
    /// `received` must have all encoded bytes that are not missing. Otherwise returns `None`.
    pub(super) fn repair<'a>(
        &self,
        layout: &Layout,
        missing: &[SeqRange],
        parities: &[ReceivedParity<'_>],
        received: impl Iterator<Item = Placed<'a>> + Clone,
    ) -> Option<Vec<Rebuilt>> {
        let parities = parities.get(..self.depth)?;
        let syndromes: ArrayVec<Vec<u8>, ROWS> =
            parities.iter().take(ROWS).map(|parity| syndrome(layout, parity, received.clone())).collect();
        let empty =
            |run: &SeqRange| Rebuilt { seq: run.start, payload: vec![0; run.len() as usize], fin: false };
        let mut runs: Vec<Rebuilt> = missing.iter().map(empty).collect();
        for span in self.cuts.windows(2) {
            let &[from, to] = span else { continue };
            let missed: ArrayVec<Hole, ROWS> =
                self.holes.iter().filter(|hole| hole.covers(from)).take(ROWS).copied().collect();
            let blocks: ArrayVec<u32, ROWS> = missed.iter().map(|hole| hole.part.block).collect();
            let inverse = invert(layout, &parities[..blocks.len()], &blocks)?;
            for (hole, factors) in missed.iter().zip(&inverse) {
                let run = runs.get_mut(hole.run)?;
                let at = (hole.part.range.start.since(run.seq) + from - hole.part.residue) as usize;
                let out = run.payload.get_mut(at..at + (to - from) as usize)?;
                sum(factors, syndromes.iter().map(|syndrome| syndrome.get(from as usize..to as usize)), out)?;
            }
        }
        Some(runs)
    }
}

/// Returns the part of a parity that depends on the missing bytes alone.
fn syndrome<'a>(
    layout: &Layout,
    parity: &ReceivedParity<'_>,
    received: impl Iterator<Item = Placed<'a>> + Clone,
) -> Vec<u8> {
    let mut out = vec![0; layout.payload_len()];
    code::parity(layout, parity.row, received, &mut out);
    gf256::add(&mut out, parity.payload);
    out
}

/// Computes `out` as the sum of `factor * bytes`; see [`gf256`].
fn sum<'a>(
    factors: &[u8],
    bytes: impl Iterator<Item = Option<&'a [u8]>> + Clone,
    out: &mut [u8],
) -> Option<()> {
    let all = factors.iter().fold(0, |all, factor| all | factor);
    for bit in (0..8 - all.leading_zeros()).rev() {
        gf256::double_all(out);
        for (factor, bytes) in factors.iter().zip(bytes.clone()) {
            if factor >> bit & 1 == 1 {
                gf256::add(out, bytes?);
            }
        }
    }
    Some(())
}

type Row = ArrayVec<u8, ROWS>;

/// Inverts the matrix of factors of these blocks (columns) in these parities (rows) by Gauss-Jordan
/// elimination. `None` if it is singular, which [`code::coefficient`] rules out for different rows and
/// different blocks.
fn invert(layout: &Layout, parities: &[ReceivedParity<'_>], blocks: &[u32]) -> Option<ArrayVec<Row, ROWS>> {
    let size = blocks.len();
    let mut left: ArrayVec<Row, ROWS> = parities
        .iter()
        .map(|parity| blocks.iter().map(|block| layout.coefficient(parity.row, *block)).collect())
        .collect();
    let unit = |row: usize| (0..size).map(|column| u8::from(row == column)).collect();
    let mut right: ArrayVec<Row, ROWS> = (0..size).map(unit).collect();
    for column in 0..size {
        let pivot = (column..size).find(|row| left[*row][column] != 0)?;
        left.swap(column, pivot);
        right.swap(column, pivot);
        let scale = gf256::inverse(left[column][column])?;
        for matrix in [&mut left, &mut right] {
            matrix[column].iter_mut().for_each(|entry| *entry = gf256::mul(*entry, scale));
        }
        for row in (0..size).filter(|row| *row != column) {
            let factor = left[row][column];
            for matrix in [&mut left, &mut right] {
                for entry in 0..size {
                    let subtract = gf256::mul(matrix[column][entry], factor);
                    matrix[row][entry] ^= subtract;
                }
            }
        }
    }
    Some(right)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mechanism::corrective::code::Code;
    use brisk_wire::SeqNum;

    /// The inverse times the matrix is the identity, for every choice of rows and 64 choices of blocks.
    #[test]
    fn any_parities_repair_as_many_blocks() {
        let layout = Layout::new(Code::ReedSolomon, SeqRange::with_len(SeqNum(0), 32), 1).expect("32 blocks");
        for rows in 1u32..256 {
            let chosen = (0..ROWS_MAX).filter(|row| rows >> row & 1 == 1);
            let parities: Vec<ReceivedParity<'_>> =
                chosen.map(|row| ReceivedParity { row, payload: &[] }).collect();
            for seed in 0..64 {
                let step = 1 + 2 * (seed % 16);
                let blocks: Vec<u32> =
                    (0..parities.len() as u32).map(|index| (seed + index * step) % 32).collect();
                let inverse = invert(&layout, &parities, &blocks).expect("it has an inverse");
                for (one, factors) in inverse.iter().enumerate() {
                    for (other, block) in blocks.iter().enumerate() {
                        let product = factors.iter().zip(&parities).fold(0, |sum, (factor, parity)| {
                            sum ^ gf256::mul(*factor, layout.coefficient(parity.row, *block))
                        });
                        assert_eq!(product, u8::from(one == other), "rows {rows:08b}, blocks {blocks:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn holes_beyond_the_bound_are_refused() {
        let layout =
            Layout::new(Code::ReedSolomon, SeqRange::with_len(SeqNum(0), 3200), 100).expect("32 blocks");
        let every_other = |count: u32| -> Vec<SeqRange> {
            (0..count).map(|index| SeqRange::with_len(SeqNum(index * 2), 1)).collect()
        };
        assert!(Holes::new(&layout, &every_other(32)).is_some());
        assert!(Holes::new(&layout, &every_other(33)).is_none());
    }
}

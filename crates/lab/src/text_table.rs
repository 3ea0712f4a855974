//! Tables for a terminal.

use std::ops::RangeBounds;

use comfy_table::{CellAlignment, Table};

/// Returns the lines of a table, with the columns of numbers aligned to the right.
pub(crate) fn lines(mut table: Table, numbers: impl RangeBounds<usize>) -> String {
    for column in table.column_iter_mut() {
        column.set_padding((0, 1));
        if numbers.contains(&column.index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

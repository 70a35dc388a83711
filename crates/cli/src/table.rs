//! Plain tables: aligned by spaces, no frames, so that `awk` reads them too.

use std::fmt::Write;

use crate::text;

/// Rows under a header. A cell that has nothing to say is `-`.
#[derive(Debug)]
pub(crate) struct Table<const N: usize> {
    header: [&'static str; N],
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    /// A table without rows.
    pub(crate) const fn new(header: [&'static str; N]) -> Self {
        Self { header, rows: Vec::new() }
    }

    /// Adds a row. Cells are cut to one line; empty ones become `-`.
    pub(crate) fn row(&mut self, cells: [String; N]) {
        let cell = |cell: String| if cell.is_empty() { "-".to_owned() } else { text::line(&cell).into_owned() };
        self.rows.push(cells.map(cell));
    }

    /// The table as text, each line ended. The last column is not padded.
    pub(crate) fn print(&self) -> String {
        let mut text = String::new();
        let header = self.header.map(str::to_owned);
        let width = |column: usize| {
            let cells = self.rows.iter().chain([&header]).map(|row| row[column].chars().count());
            cells.max().unwrap_or_default()
        };
        let widths: [usize; N] = std::array::from_fn(width);
        for row in [&header].into_iter().chain(&self.rows) {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(widths) {
                // Writing to a String cannot fail.
                let _ = write!(line, "{cell:width$}   ");
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_end_clean() {
        let mut table = Table::new(["NAME", "REASON"]);
        table.row(["web".to_owned(), String::new()]);
        table.row(["größer".to_owned(), "two\nlines".to_owned()]);
        assert_eq!(table.print(), "NAME     REASON\nweb      -\ngrößer   two lines\n");
    }
}

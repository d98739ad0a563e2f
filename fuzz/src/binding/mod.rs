//! The binding between Arrow and the core, without an interpreter.

mod columns;
mod file;
mod restored;
mod rows;

pub use file::{OPTIONS, end_at_panics_of_ours, parquet};
pub use restored::restore;
pub use rows::{rows, runs};

/// Bytes that never end: zeros follow.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn next(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn below(&mut self, end: u8) -> u8 {
        self.next() % end
    }

    fn wide(&mut self) -> i64 {
        i64::from_le_bytes(std::array::from_fn(|_| self.next()))
    }
}

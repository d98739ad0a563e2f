//! The binding between Arrow and the core, without an interpreter.

mod columns;
mod file;
mod restored;
mod rows;

pub use file::{OPTIONS, end_at_panics_of_ours, parquet};
pub use restored::restore;
pub use rows::{rows, runs};

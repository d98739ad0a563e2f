//! What the binding calls between Arrow and the core, without an interpreter.

mod calls;
mod columns;
mod file;
mod restored;
mod rows;

pub use calls::{apply, scan};
pub use file::{OPTIONS, end_at_panics_of_ours, parquet};
pub use restored::restore;
pub use rows::{rows, spans};

//! Reads and rewrites Parquet files: opens them, reads footers and columns, and removes rows without changing anything
//! else.
//!
//! The crate depends on Parquet and Arrow, but not on Python or the rules by which rows are judged. Whatever a file
//! contains, the worst result is an [`Error`]: a panic of a decoder becomes one.

mod arrange;
mod bounds;
mod chunk;
mod columns;
mod compressor;
mod cut;
mod decompress;
mod delta;
mod error;
mod extremes;
mod facts;
mod file;
mod indexes;
mod levels;
mod paged;
mod pages;
mod ranges;
mod read_at;
mod rewrite;
mod schema;
mod thrift;

pub use arrange::{Arranged, Arranging, Rows, Target, arrange};
pub use bounds::Bounds;
pub use columns::Columns;
pub use error::{Error, Result, caught};
pub use file::ParquetFile;
pub use ranges::RowRanges;
pub use read_at::ReadAt;
pub use rewrite::{Rewritten, rewrite};

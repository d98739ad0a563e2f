//! Parquet files as a job meets them: opened, their footers told, some of their columns read, and rows taken out of
//! them with everything else left as it is.
//!
//! The crate knows Parquet and Arrow and neither Python nor the rules by which rows are judged. Whatever a file
//! holds, an [`Error`] is the worst that comes of it: a panic of a decoder becomes one.

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

pub use bounds::Bounds;
pub use columns::Columns;
pub use error::{Error, Result};
pub use file::ParquetFile;
pub use ranges::RowRanges;
pub use read_at::ReadAt;
pub use rewrite::{Rewritten, rewrite};

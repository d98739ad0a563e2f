//! Reads and writes Kafka's log as it is on a broker's disk: segments of record batches, snapshots of producer state,
//! indexes.
//!
//! The crate does not depend on Python, Arrow or the rules by which batches are judged. Bytes are read by [`ReadAt`],
//! and columns are returned as plain vectors. Whatever a file contains, the worst result is an [`Error`]. No number in
//! a file makes the crate allocate memory that the file does not fill.

pub mod aborted;
mod batch;
mod columns;
mod compression;
mod control;
mod error;
mod header;
pub mod index;
mod isolation;
mod partition;
mod read_at;
mod record;
mod records;
mod recovery;
mod scan;
pub mod snapshot;
mod varint;

pub use batch::{BatchBuilder, Stamp, marker, place};
pub use columns::{BatchColumns, Marker};
pub use control::Control;
pub use error::{Error, Kind, Result, reason};
pub use header::{BatchHeader, Compression, HEADER_BYTES, LOG_APPEND_TIME};
pub use isolation::{AbortedRange, Outcomes, View};
pub use partition::{PartitionScan, Segment};
pub use read_at::ReadAt;
pub use records::{BATCH_BYTES_MAX, Bytes, RecordColumns, RecordScan};
pub use recovery::RecoveryScan;
pub use scan::SegmentScan;

//! Kafka's log as it lies on a broker's disk: segments of record batches, snapshots of producer state, indexes. Read, and
//! put together to be written.
//!
//! The crate knows neither Python nor Arrow nor the rules by which batches are judged: bytes come in by [`ReadAt`],
//! columns go out as plain vectors. Whatever a file holds, an [`Error`] is the worst that comes of it, and no number
//! that a file tells makes it ask for memory that the file does not fill.

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
pub use error::{Error, Kind, Result};
pub use header::{BatchHeader, Compression, HEADER_BYTES, LOG_APPEND_TIME};
pub use isolation::{AbortedRange, Outcomes, View};
pub use partition::{PartitionScan, Segment};
pub use read_at::ReadAt;
pub use records::{BATCH_BYTES_MAX, Bytes, RecordColumns, RecordScan};
pub use recovery::RecoveryScan;
pub use scan::SegmentScan;

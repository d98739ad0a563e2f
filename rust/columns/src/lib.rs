//! Connects Arrow and the core: converts columns, cuts spans and splits them by shard, and converts results to columns.
//!
//! It does not depend on Python. The binding takes rows from Python objects, releases the interpreter, and calls this
//! crate.

mod arrow_out;
mod batches;
mod failure;
mod identity;
mod judging;
mod kafka_columns;
mod log_rows;
mod outcomes;
mod panics;
mod records;
mod rows;
mod scan;
mod shards;
mod spans;
mod verdicts;

#[cfg(test)]
mod tests;

pub use arrow_out::{has_epochs, listed_batches, missing_batches, producers_batches};
pub use batches::{BatchCall, BatchNames, Produced, judge_batches, origin_of};
pub use failure::Failure;
pub use identity::{ColumnNames, Identity};
pub use judging::{Call, apply_and_keep, entries_batches, insert_entries, judge_and_keep, keep, restore};
pub use kafka_columns::{BatchArrays, RecordArrays};
pub use log_rows::{LogChunk, LogColumns, NO_PARTITION};
pub use outcomes::{aborted_batch, follow, open_batches, outcome_batches, resolved_batches};
pub use panics::without_panic;
pub use records::{HEADERS, KEY, RECORD_COLUMNS, VALUE, build_records};
pub use rows::{Batches, Column, Rows};
pub use scan::{Constant, Scan, ScanOptions};
pub use shards::shard_of_rows;
pub use verdicts::Verdicts;

//! Calls of the crate between Arrow and the core, as the binding makes them.

use arrow_array::RecordBatch;
use fencepost_columns::{Call, ColumnNames, Failure, Identity, Rows, Scan, ScanOptions, judge_and_keep};
use fencepost_core::StateTable;
use fencepost_lake::ParquetFile;
use std::collections::HashMap;

/// Like `StateTable.apply`: one verdict per row.
pub fn apply(table: &mut StateTable, rows: Vec<RecordBatch>, names: &ColumnNames) -> Result<Vec<u8>, Failure> {
    judge(table, rows, names, true, |table, batches, _| table.apply(batches))
}

/// As `StateTable.check`.
pub(super) fn check(table: &mut StateTable, rows: Vec<RecordBatch>, names: &ColumnNames) -> Result<Vec<u8>, Failure> {
    judge(table, rows, names, false, |table, batches, _| table.check(batches))
}

/// As `StateTable.apply_spans`: a verdict for each row of each span, whose lengths are in the column `length`.
pub(super) fn apply_spans(
    table: &mut StateTable,
    spans: Vec<RecordBatch>,
    names: &ColumnNames,
) -> Result<Vec<u8>, Failure> {
    let names = ColumnNames { length: Some("length".into()), ..names.clone() };
    judge(table, spans, &names, true, |table, batches, lengths| table.apply_spans(batches, lengths))
}

fn judge(
    table: &mut StateTable,
    rows: Vec<RecordBatch>,
    names: &ColumnNames,
    keeps_keys: bool,
    call: Call,
) -> Result<Vec<u8>, Failure> {
    let Some(first) = rows.first() else { return Ok(vec![]) };
    let identity = Identity::read(names, Rows::of_batches(first.schema(), rows))?;
    let verdicts = judge_and_keep(table, &identity, names, keeps_keys, call)?;
    Ok(verdicts.codes().to_vec())
}

/// The result of a scan of a file: the spans of the first `batches_max` decoded batches.
pub struct Scanned {
    /// By shard.
    pub spans: Vec<(u32, RecordBatch)>,
    /// Rows without a producer.
    pub untracked: u64,
    /// Whether the file has ended.
    pub is_end: bool,
}

/// As `SpanScan`, with two shards.
pub fn scan(
    file: &ParquetFile,
    names: &ColumnNames,
    order_by: Vec<String>,
    by_row: bool,
    batches_max: usize,
) -> Result<Scanned, Failure> {
    let options = ScanOptions { names: names.clone(), order_by, by_row, shards: 2, ordinal: 0, seq_max: i64::MAX };
    let mut scan = Scan::open(file, 0..file.row_groups(), options, HashMap::new())?;
    let mut scanned = Scanned { spans: vec![], untracked: 0, is_end: false };
    for _ in 0..batches_max {
        if !scan.step()? {
            scanned.is_end = true;
            break;
        }
        scanned.spans.extend(scan.take_spans()?);
    }
    scanned.untracked = scan.untracked();
    Ok(scanned)
}

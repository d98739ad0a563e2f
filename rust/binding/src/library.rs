//! What the binding does between Arrow and the core, without an interpreter: for the fuzz targets.

use crate::arrow_out::{has_epochs, missing_batches};
use crate::failure::Failure;
use crate::identity::{ColumnNames, Identity};
pub use crate::kafka::without_panic;
use crate::rows::Rows;
use crate::scan::{Asked, Scan};
use crate::table::{self, Call};
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use fencepost_core::StateTable;
use fencepost_lake::ParquetFile;
use std::collections::HashMap;

/// The columns of each role, by their names in the rows.
#[derive(Clone, Debug)]
pub struct Columns {
    /// Of the producer.
    pub pid: Vec<String>,
    /// Of its epoch.
    pub epoch: Option<String>,
    /// Of the partition.
    pub partition: Vec<String>,
    /// Of the sequence number.
    pub seq: String,
    /// Of the timestamp.
    pub timestamp: Option<String>,
}

impl Columns {
    fn names(&self, length: Option<&str>) -> ColumnNames {
        let Columns { pid, epoch, partition, seq, timestamp } = self.clone();
        ColumnNames { pid, epoch, partition, seq, timestamp, length: length.map(String::from) }
    }
}

/// Why rows, bytes or a file were refused.
#[derive(Debug)]
pub struct Refused(pub String);

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Refused {
        Refused(format!("{failure:?}"))
    }
}

/// As `StateTable.apply`: a verdict a row.
pub fn apply(table: &mut StateTable, rows: Vec<RecordBatch>, columns: &Columns) -> Result<Vec<u8>, Refused> {
    judge(table, rows, &columns.names(None), true, |table, batches, _| table.apply(batches))
}

/// As `StateTable.check`.
pub fn check(table: &mut StateTable, rows: Vec<RecordBatch>, columns: &Columns) -> Result<Vec<u8>, Refused> {
    judge(table, rows, &columns.names(None), false, |table, batches, _| table.check(batches))
}

/// As `StateTable.apply_spans`: a verdict for each row of each run, whose lengths are in the column `length`.
pub fn apply_spans(
    table: &mut StateTable,
    runs: Vec<RecordBatch>,
    length: &str,
    columns: &Columns,
) -> Result<Vec<u8>, Refused> {
    let names = columns.names(Some(length));
    judge(table, runs, &names, true, |table, batches, lengths| table.apply_spans(batches, lengths))
}

fn judge(
    table: &mut StateTable,
    rows: Vec<RecordBatch>,
    names: &ColumnNames,
    keeps_keys: bool,
    call: Call,
) -> Result<Vec<u8>, Refused> {
    let Some(first) = rows.first() else { return Ok(vec![]) };
    let identity = Identity::read(names, Rows::of_batches(first.schema(), rows))?;
    let verdicts = table::judge_and_keep(table, &identity, names, keeps_keys, call)?;
    Ok(verdicts.codes().to_vec())
}

/// As `StateTable.restore`.
pub fn restore(snapshot: &[u8], deltas: &[&[u8]]) -> Result<StateTable, Refused> {
    table::restore(snapshot, deltas.iter().copied()).map_err(|error| Failure::from(error).into())
}

/// As `StateTable.missing`.
pub fn missing(table: &StateTable) -> Vec<RecordBatch> {
    missing_batches(table.keys(), has_epochs(table), table.missing())
}

/// As `StateTable.entries`.
pub fn entries(table: &StateTable) -> Vec<RecordBatch> {
    table::entries_batches(table)
}

/// As `StateTable.from_entries`: puts entries into an empty table.
pub fn insert(table: StateTable, schema: &SchemaRef, entries: Vec<RecordBatch>) -> Result<StateTable, Refused> {
    Ok(table::insert_entries(table, schema, Box::new(entries.into_iter().map(Ok)))?)
}

/// What a scan of a file gives: its runs, those of the first `batches_max` batches that are decoded.
pub struct Scanned {
    /// By shard.
    pub runs: Vec<(u32, RecordBatch)>,
    /// Rows without a producer.
    pub untracked: u64,
    /// Whether that was all.
    pub is_end: bool,
}

/// As `RunScan`, with two shards.
pub fn scan(
    file: &ParquetFile,
    columns: &Columns,
    order_by: Vec<String>,
    by_row: bool,
    batches_max: usize,
) -> Result<Scanned, Refused> {
    let names = columns.names(None);
    let asked = Asked { names, order_by, by_row, shards: 2, ordinal: 0, seq_max: i64::MAX };
    let mut scan = Scan::open(file, 0..file.row_groups(), asked, HashMap::new())?;
    let mut scanned = Scanned { runs: vec![], untracked: 0, is_end: false };
    for _ in 0..batches_max {
        if !scan.step()? {
            scanned.is_end = true;
            break;
        }
        scanned.runs.extend(scan.give()?);
    }
    scanned.untracked = scan.untracked;
    Ok(scanned)
}

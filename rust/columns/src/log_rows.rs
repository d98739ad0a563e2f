//! Converts the columns of logs about transactions to the types of the core.

use crate::batches::{read_control, read_flags, read_timestamps};
use crate::failure::Failure;
use crate::identity::{IntReader, Parts, is_integer, is_null_type, never};
use crate::rows::Rows;
use arrow_array::types::{Int16Type, Int32Type, Int64Type};
use arrow_array::{Array, ArrayRef};
use arrow_buffer::ScalarBuffer;
use fencepost_core::{self as core, Column, Error, KeyKind, Keys, LogRows};

/// The core's number of the partition of rows without one.
pub const NO_PARTITION: i32 = -1;

/// The columns of each role, by their names in the input.
#[derive(Clone, Debug)]
pub struct LogColumns {
    /// The producer.
    pub pid: String,
    /// Its epoch.
    pub epoch: String,
    /// The partition. Empty if rows have none.
    pub partition: Vec<String>,
    /// The offset, the first of a batch.
    pub offset: String,
    /// The kind of a control row.
    pub control: String,
    /// The last offset of a batch.
    pub last_offset: Option<String>,
    /// Whether a row is part of a transaction.
    pub transactional: Option<String>,
    /// The timestamp.
    pub timestamp: Option<String>,
}

impl LogColumns {
    /// Removes optional columns that the rows do not have. It uses the first layout whose offset column exists in the
    /// rows, or the last layout.
    pub fn found_in(layouts: &[LogColumns], rows: &Rows) -> LogColumns {
        let fitting = layouts.iter().find(|layout| rows.has(&layout.offset));
        let mut columns = fitting.unwrap_or(&layouts[layouts.len() - 1]).clone();
        for optional in [&mut columns.last_offset, &mut columns.transactional, &mut columns.timestamp] {
            optional.take_if(|name| !rows.has(name));
        }
        columns
    }

    /// Every column that is read if the rows have it.
    pub fn all(&self) -> Vec<&str> {
        let mut names = vec![&*self.pid, &self.epoch, &self.offset, &self.control];
        names.extend(
            [&self.last_offset, &self.transactional, &self.timestamp].into_iter().flatten().map(String::as_str),
        );
        names.extend(self.partition.iter().map(String::as_str));
        names
    }

    /// Converts an error of the core, with the column names of the input.
    pub fn failure(&self, error: Error) -> Failure {
        let Error::Batch { column, row, problem } = error else { return Failure::from(error) };
        let optional = |name: &Option<String>| name.clone().unwrap_or_else(|| column.to_string());
        let name = match column {
            Column::Pid => self.pid.clone(),
            Column::Epoch => self.epoch.clone(),
            Column::Partition => self.partition.join(", "),
            Column::Offset => self.offset.clone(),
            Column::Control => self.control.clone(),
            Column::LastOffset => optional(&self.last_offset),
            Column::Transactional => optional(&self.transactional),
            Column::Timestamp => optional(&self.timestamp),
            other => other.to_string(),
        };
        Failure::batch(&name, row, problem)
    }
}

/// One chunk of a log.
pub struct LogChunk {
    rows: usize,
    pid: ScalarBuffer<i64>,
    epoch: ScalarBuffer<i16>,
    partition: Parts<i32>,
    offset: ScalarBuffer<i64>,
    last_offset: Option<ScalarBuffer<i64>>,
    transactional: Option<Vec<u8>>,
    control: Vec<u8>,
    timestamp: Option<ScalarBuffer<i64>>,
}

impl LogChunk {
    /// Reads and converts every column, chunk by chunk.
    pub fn read(columns: &LogColumns, rows: Rows) -> Result<Vec<LogChunk>, Failure> {
        let mut rows_before = 0;
        let convert = |arrays: Vec<ArrayRef>| {
            let chunk = Self::convert(columns, &arrays, rows_before)?;
            rows_before += chunk.rows;
            Ok(chunk)
        };
        rows.select(&columns.all())?.into_iter().map(convert).collect()
    }

    /// `arrays`: the columns in the order of [`LogColumns::all`].
    fn convert(columns: &LogColumns, arrays: &[ArrayRef], rows_before: usize) -> Result<LogChunk, Failure> {
        let (needed, mut rest) = arrays.split_at(4);
        let mut next = |name: &Option<String>| {
            let name = name.clone()?;
            let (array, after) = rest.split_first()?;
            rest = after;
            Some((name, array))
        };
        let [last_offset, flags, times] =
            [next(&columns.last_offset), next(&columns.transactional), next(&columns.timestamp)];
        let pid = read_pid(&columns.pid, &needed[0], rows_before)?;
        let is_without_producer = |row: usize| pid[row] == -1;
        let epoch = IntReader { name: &columns.epoch, rows_before, is_untracked: &is_without_producer };
        let epoch = epoch.read::<Int16Type>(&needed[1], "0..=32767")?;
        let offset = read_offset(&columns.offset, &needed[2], rows_before)?;
        let last_offset = last_offset.map(|(name, array)| read_last_offset(&name, array, rows_before, &offset));
        let flags = flags.map(|(name, array)| read_flags(&name, array));
        let times = times.map(|(name, array)| read_timestamps(&name, array, rows_before));
        Ok(LogChunk {
            rows: offset.len(),
            partition: read_partition(&columns.partition, rest, offset.len(), rows_before)?,
            control: read_control(&columns.control, &needed[3], rows_before)?,
            last_offset: last_offset.transpose()?,
            transactional: flags.transpose()?,
            timestamp: times.transpose()?,
            pid,
            epoch,
            offset,
        })
    }

    /// The type of the partition.
    pub fn key_kind(&self) -> KeyKind {
        self.partition.kind()
    }

    /// Numbers partitions that are not plain integers.
    pub fn number(&self, keys: &mut Keys) -> core::Result<ScalarBuffer<i32>> {
        self.partition.number(self.rows, &mut keys.partition.dictionary, never)
    }

    /// The columns in the types of the core.
    pub fn rows<'a>(&'a self, partition: &'a [i32]) -> LogRows<'a> {
        LogRows {
            pid: &self.pid,
            epoch: &self.epoch,
            partition,
            offset: &self.offset,
            last_offset: self.last_offset.as_deref(),
            transactional: self.transactional.as_deref(),
            control: &self.control,
            timestamp: self.timestamp.as_deref(),
        }
    }
}

fn read_pid(name: &str, column: &ArrayRef, rows_before: usize) -> Result<ScalarBuffer<i64>, Failure> {
    IntReader::read_or::<Int64Type>(name, column, rows_before, "0..=9223372036854775807 (-1 or null: no producer)", -1)
}

fn read_partition(
    names: &[String],
    columns: &[ArrayRef],
    rows: usize,
    rows_before: usize,
) -> Result<Parts<i32>, Failure> {
    match (names, columns) {
        (_, []) => Ok(Parts::Plain(vec![NO_PARTITION; rows].into())),
        ([name], [column]) if is_integer(column) || is_null_type(column) => {
            let range = "0..=2147483647 (-1 or null: not known)";
            Ok(Parts::Plain(IntReader::read_or::<Int32Type>(name, column, rows_before, range, NO_PARTITION)?))
        }
        _ => Parts::of_partition(names, columns, rows, &|name| IntReader { name, rows_before, is_untracked: &never }),
    }
}

fn read_offset(name: &str, column: &ArrayRef, rows_before: usize) -> Result<ScalarBuffer<i64>, Failure> {
    if let Some(row) = first_null(column) {
        return Err(Failure::batch(name, Some(rows_before + row), "null, but every row of a log has an offset"));
    }
    IntReader { name, rows_before, is_untracked: &never }.read::<Int64Type>(column, OFFSETS)
}

const OFFSETS: &str = "0..=9223372036854775806";

/// Reads the last offset; null becomes the first offset.
fn read_last_offset(
    name: &str,
    column: &ArrayRef,
    rows_before: usize,
    offset: &ScalarBuffer<i64>,
) -> Result<ScalarBuffer<i64>, Failure> {
    IntReader::fill(name, column, rows_before, |reader| reader.read::<Int64Type>(column, OFFSETS), |row| offset[row])
}

fn first_null(column: &ArrayRef) -> Option<usize> {
    let nulls = column.logical_nulls()?;
    (0..column.len()).find(|&row| nulls.is_null(row))
}

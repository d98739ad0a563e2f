//! Reads the rows of a Parquet file as spans, split by shard.

use crate::names::column_names;
use crate::objects::Blocks;
use crate::parquet::open;
use crate::raise::Raise;
use arrow_schema::SchemaRef;
use fencepost_columns::{Constant, Failure, Scan, ScanOptions};
use fencepost_core::Policy;
use pyo3::prelude::*;
use pyo3_arrow::{PyRecordBatch, PySchema};
use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Mutex;

/// The value of a column that is in the name of a folder.
#[derive(FromPyObject)]
pub(crate) enum FolderValue {
    Int(i64),
    Text(String),
}

impl From<FolderValue> for Constant {
    fn from(value: FolderValue) -> Constant {
        match value {
            FolderValue::Int(value) => Constant::Int(value),
            FolderValue::Text(value) => Constant::Text(value),
        }
    }
}

/// Reads the identity columns of a Parquet file, and returns its rows as spans, split by shard.
///
/// A span is a sequence of consecutive rows with the same key and epoch, consecutive sequence numbers, and equal
/// timestamps and values of ``order_by``, if those are read. With ``by_row`` each row is a span.
///
/// Several threads can use a scan; calls run one at a time and release the interpreter.
///
/// Args:
///     path: The file.
///     columns: A Columns.
///     shards: Number of shards. A key's shard is that of ``fencepost.shards``.
///     timestamp: Read timestamps.
///     order_by: Additional columns to read.
///     by_row: Make each row a span.
///     constants: Values of columns that are not read from the file.
///     ordinal: The number of the file, returned as ``_file``.
///     policy: The policy whose sequence space contains the values. None: all values of the column's type.
///     object: An object with ``size()`` and ``read(offset, length)`` to read instead of ``path``, which is then only
///         its name.
///     part: Number of the part to read, and number of parts. A part has the row groups whose middle is in its share of
///         the file.
///
/// Raises:
///     BatchError: A value that StateTable.apply would refuse (column, row of the file).
///     SourceError: The file is damaged (path, position).
///     StoreError: The storage cannot read the file (path, errno).
///     FileNotFoundError: The file does not exist.
#[pyclass(frozen, module = "fencepost._native")]
pub struct SpanScan {
    scan: Mutex<Scan>,
    first_row: u64,
    rows: u64,
    groups: Range<usize>,
    footer_crc: u32,
    schema_crc: u32,
    schema: SchemaRef,
}

#[pymethods]
impl SpanScan {
    #[new]
    #[pyo3(
        signature = (
            path, columns, shards, *, timestamp=false, order_by=vec![], by_row=false, constants=None, ordinal=0,
            policy=None, object=None, part=(0, 1)
        ),
        text_signature = "(path, columns, shards, *, timestamp=False, order_by=(), by_row=False, constants=None, \
            ordinal=0, policy=None, object=None, part=(0, 1))"
    )]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        columns: &Bound<'_, PyAny>,
        shards: u32,
        timestamp: bool,
        order_by: Vec<String>,
        by_row: bool,
        constants: Option<HashMap<String, Option<FolderValue>>>,
        ordinal: u32,
        policy: Option<&Bound<'_, PyAny>>,
        object: Option<Py<PyAny>>,
        part: (u32, u32),
    ) -> PyResult<SpanScan> {
        let (number, parts) = part;
        if number >= parts {
            let text = format!("part=({number}, {parts}): expected a number below {parts}");
            return Err(pyo3::exceptions::PyValueError::new_err(text));
        }
        if shards == 0 {
            return Err(pyo3::exceptions::PyValueError::new_err("shards=0: at least one shard is needed"));
        }
        let seq_max = match policy {
            None => i64::MAX,
            Some(policy) => {
                let policy = py.import("fencepost.policy")?.call_method1("resolve", (policy,))?;
                let rules: String = policy.getattr("rules")?.extract()?;
                rules.parse::<Policy>().map_err(|error| Failure::from(error).raise(py))?.seq_max()
            }
        };
        let names = column_names(columns)?.keeping_timestamps(timestamp);
        let options = ScanOptions { names, order_by, by_row, shards, ordinal, seq_max };
        let constants = constants.unwrap_or_default().into_iter();
        let constants = constants.map(|(name, value)| (name, value.map(Constant::from))).collect();
        let opened = py.detach(|| {
            let file = open(&path, object.as_ref(), Blocks::COLUMNS)?;
            let schema = file.schema()?;
            let groups = file.groups_of_part(number, parts);
            Ok((Scan::open(&file, groups.clone(), options, constants)?, groups, file, schema))
        });
        let (scan, groups, file, schema) = opened.map_err(|failure: Failure| failure.raise(py))?;
        let first_row = file.first_row(groups.start);
        Ok(SpanScan {
            scan: Mutex::new(scan),
            first_row,
            rows: file.first_row(groups.end) - first_row,
            groups,
            footer_crc: file.footer_crc(),
            schema_crc: file.schema_crc(),
            schema: schema.into(),
        })
    }

    /// Return the next spans, at least ``spans_max`` unless the file ends. Return None at its end.
    ///
    /// The result is a list of (shard, record batch) in the order of shards, without empty shards. The spans of a shard
    /// are in the order of the file. Columns: the identity columns, those of ``order_by``, ``_length`` (uint32),
    /// ``_file`` (uint32) and ``_row`` (uint64, the first row).
    ///
    /// No span continues across calls. Memory: the result, and some ten thousand rows.
    fn next(&self, py: Python<'_>, spans_max: u64) -> PyResult<Option<Vec<(u32, PyRecordBatch)>>> {
        loop {
            let step = py.detach(|| {
                let mut scan = self.lock()?;
                let is_end = !scan.step()?;
                (is_end || scan.spans_held() >= spans_max.max(1)).then(|| scan.take_spans()).transpose()
            });
            if let Some(batches) = step.map_err(|failure: Failure| failure.raise(py))? {
                let batches = batches.into_iter().map(|(shard, batch)| (shard, PyRecordBatch::new(batch)));
                let batches: Vec<_> = batches.collect();
                return Ok((!batches.is_empty()).then_some(batches));
            }
            py.check_signals()?;
        }
    }

    /// The first row of the part.
    #[getter]
    fn first_row(&self) -> u64 {
        self.first_row
    }

    /// Number of rows of the part.
    #[getter]
    fn rows(&self) -> u64 {
        self.rows
    }

    /// The first row group of the part, and the one after its last.
    #[getter]
    fn row_groups(&self) -> (usize, usize) {
        (self.groups.start, self.groups.end)
    }

    /// CRC-32 of the file's footer.
    #[getter]
    fn footer_crc(&self) -> u32 {
        self.footer_crc
    }

    /// CRC-32 of the columns as the footer declares them. Files with different values cannot be combined into one.
    #[getter]
    fn schema_crc(&self) -> u32 {
        self.schema_crc
    }

    /// All columns of the file as an Arrow schema, derived from the Parquet types. All of them are nullable.
    #[getter]
    fn schema(&self) -> PySchema {
        PySchema::new(self.schema.clone())
    }

    /// Number of rows without a producer so far. They are not part of any span.
    #[getter]
    fn untracked(&self, py: Python<'_>) -> PyResult<u64> {
        py.detach(|| Ok(self.lock()?.untracked())).map_err(|failure: Failure| failure.raise(py))
    }

    /// Number of spans so far.
    #[getter]
    fn spans(&self, py: Python<'_>) -> PyResult<u64> {
        py.detach(|| Ok(self.lock()?.spans())).map_err(|failure: Failure| failure.raise(py))
    }

    /// The greatest timestamp so far of rows with a producer, in milliseconds. None if no timestamp was read.
    #[getter]
    fn newest_timestamp(&self, py: Python<'_>) -> PyResult<Option<i64>> {
        py.detach(|| Ok(self.lock()?.newest_timestamp())).map_err(|failure: Failure| failure.raise(py))
    }
}

impl SpanScan {
    fn lock(&self) -> Result<std::sync::MutexGuard<'_, Scan>, Failure> {
        self.scan.lock().map_err(|_| Failure::Value("an earlier call on this scan failed midway".into()))
    }
}

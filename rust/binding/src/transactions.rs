use crate::keys::KeyValue;
use crate::names::{log_columns, take_log_rows};
use crate::raise::Raise;
use crate::rows::table_of;
use fencepost_columns::{
    Failure, LogChunk, NO_PARTITION, aborted_batch, follow, open_batches, outcome_batches, resolved_batches,
};
use fencepost_core::{self as core, KeyKind, Resolved};
use pyo3::prelude::*;
use pyo3_arrow::PyTable;
use std::sync::Mutex;

/// Follows Kafka's logs call by call, and decides which of their rows are committed, aborted or still open.
///
/// A transaction is what a producer writes to a partition up to its next marker there, even if rows and marker have
/// different epochs. A follower replays its log in the same way. The index stores a number per partition and an entry
/// per open transaction. For ``aborted`` it also stores 32 bytes per aborted transaction, which ``forget_aborted``
/// frees.
///
/// Partitions are integers, strings, binary, or tuples of them if they have several columns. None is the partition of
/// rows without one: the column is null, or ``BatchColumns(partition=None)``.
///
/// Every method is atomic: if it raises, the index is unchanged, except after a PoisonedError. Several threads can use
/// an index; calls run one at a time and release the interpreter.
#[pyclass(frozen, module = "fencepost.kafka")]
pub(crate) struct TransactionIndex {
    followed: Mutex<Followed>,
}

#[derive(Default)]
struct Followed {
    index: core::TransactionIndex,
    /// Transactions that were open before the last call and that it decided.
    resolved: Vec<Resolved>,
}

impl TransactionIndex {
    /// Calls `work` with the core's index and releases the interpreter meanwhile.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Followed) -> Result<T, Failure> + Send,
    ) -> PyResult<T> {
        let work = || work(&mut *self.followed.lock().map_err(|_| Failure::Poisoned)?);
        py.detach(work).map_err(|failure: Failure| failure.raise(py))
    }

    /// Calls `work` with the number of a partition. Returns `None` if the partition has no rows.
    fn with_partition<T: Send>(
        &self,
        partition: &Bound<'_, PyAny>,
        work: impl FnOnce(&mut core::TransactionIndex, i32) -> T + Send,
    ) -> PyResult<Option<T>> {
        let py = partition.py();
        let kind = self.with(py, |followed| {
            let index = &followed.index;
            Ok((!index.is_empty()).then(|| index.keys().partition.kind().clone()))
        })?;
        let Some(kind) = kind else { return Ok(None) };
        let is_unnamed = partition.is_none() && kind == KeyKind::Plain;
        let key = KeyValue::of(partition, &kind, "partition").map_err(|it| it.raise(py))?;
        self.with(py, |Followed { index, .. }| {
            let number = if is_unnamed { Some(NO_PARTITION) } else { key.partition_number(index.keys()) };
            Ok(number.filter(|&number| index.log_end(number).is_some()).map(|number| work(index, number)))
        })
    }
}

#[pymethods]
impl TransactionIndex {
    #[new]
    #[pyo3(signature = ())]
    fn new() -> TransactionIndex {
        TransactionIndex { followed: Mutex::default() }
    }

    /// Follow rows in order, and return the outcome of each at the end of this call.
    ///
    /// Args:
    ///     batches: Tabular data with one row per batch header or record. The rows of each partition are in the order
    ///         of its log.
    ///     columns: A BatchColumns. Default: the columns of ``read_batches`` if the rows have a base_offset, else
    ///         ``BatchColumns()``.
    ///
    /// Columns:
    /// - pid, epoch, partition, offset: required
    /// - control: required. Null: data. "commit" and "abort" are markers; "empty" and "other" decide nothing
    /// - last_offset: optional. Null: the offset
    /// - timestamp: optional; int64 ms or any Arrow timestamp
    /// - transactional: optional. Null: false. Without this column, all data with a producer is part of a transaction
    ///
    /// Returns:
    ///     Arrow table with the column ``outcome`` (utf8), one value per row: "committed", "aborted", "open" or "none".
    ///         The value is "none" for rows outside of transactions: markers, other control rows, and data that is not
    ///         transactional.
    ///
    /// Raises:
    ///     BatchError: A value is invalid (column, row, value, allowed range), or the offsets of a partition do not
    ///         increase.
    ///     PolicyError: A required column is None.
    ///     TypeError: The batches are not tabular.
    #[pyo3(signature = (batches, columns=None))]
    fn apply(
        &self,
        py: Python<'_>,
        batches: &Bound<'_, PyAny>,
        columns: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyTable> {
        let layouts = match columns {
            Some(columns) => vec![log_columns(columns)?],
            None => {
                let class = py.import("fencepost.policy")?.getattr("BatchColumns")?;
                vec![log_columns(&class.call_method0("kafka_log")?)?, log_columns(&class.call0()?)?]
            }
        };
        let (columns, rows) = take_log_rows(&layouts, batches)?;
        // Reads the stream before it locks the index, because a stream can be a Python generator that uses this index.
        let chunks = py.detach(|| LogChunk::read(&columns, rows)).map_err(|failure| failure.raise(py))?;
        let outcomes = self.with(py, |followed| {
            let before = followed.index.keys().mark();
            let followed_rows = follow(&mut followed.index, &chunks).map_err(|error| columns.failure(error));
            if followed_rows.is_err() || followed.index.is_empty() {
                followed.index.keys_mut().go_back(before);
            }
            let followed_rows = followed_rows?;
            followed.resolved = followed_rows.resolved;
            outcome_batches(&followed_rows.outcomes)
        })?;
        table_of(outcomes)
    }

    /// Return the transactions that an earlier call reported as open and that the last call decided.
    ///
    /// Use the result to correct stored outcomes: it applies to rows of the pid within these offsets.
    ///
    /// Returns:
    ///     Arrow table in the order of markers. Columns: the partition, pid, first_offset, last_offset (int64, of the
    ///         marker) and outcome (utf8, "committed" or "aborted").
    fn resolved(&self, py: Python<'_>) -> PyResult<PyTable> {
        self.with(py, |followed| Ok(resolved_batches(&followed.index, &followed.resolved))).and_then(table_of)
    }

    /// Return the transactions without a marker.
    ///
    /// Kafka considers a transaction late, and probably hanging, if its last timestamp is more than 20 minutes old.
    /// This is the longest timeout that a broker allows (transaction.max.timeout.ms, 15 minutes) and 5 more minutes.
    ///
    /// Returns:
    ///     Arrow table in the order of partition and first offset. Columns: the partition, pid, epoch (int16, of the
    ///         last row), first_offset and last_offset (int64, of the rows so far), last_timestamp (int64 ms, of the
    ///         last row; null if rows have no timestamps).
    fn open(&self, py: Python<'_>) -> PyResult<PyTable> {
        self.with(py, |followed| Ok(open_batches(&followed.index))).and_then(table_of)
    }

    /// Return the offset below which all rows of a partition are decided, or None if the partition has no rows.
    ///
    /// It is the first unstable offset, or the end of the log. A broker's value is also at most its high watermark,
    /// which logs do not contain.
    fn last_stable_offset(&self, partition: &Bound<'_, PyAny>) -> PyResult<Option<i64>> {
        Ok(self.with_partition(partition, |index, number| index.last_stable_offset(number))?.flatten())
    }

    /// Return the first offset of the oldest open transaction of a partition, or None if no transaction is open.
    fn first_unstable_offset(&self, partition: &Bound<'_, PyAny>) -> PyResult<Option<i64>> {
        Ok(self.with_partition(partition, |index, number| index.first_unstable_offset(number))?.flatten())
    }

    /// Return the offset after the last row of a partition, or None if the partition has no rows.
    fn log_end(&self, partition: &Bound<'_, PyAny>) -> PyResult<Option<i64>> {
        Ok(self.with_partition(partition, |index, number| index.log_end(number))?.flatten())
    }

    /// Return the aborted transactions of a partition in the order of their markers, as a broker's ``.txnindex`` lists
    /// them.
    ///
    /// Returns:
    ///     Arrow table of int64 columns: pid, first_offset, last_offset (of the marker) and last_stable_offset. The
    ///         last is the first offset of the oldest other transaction that was open at the marker, or the offset
    ///         after the marker.
    fn aborted(&self, partition: &Bound<'_, PyAny>) -> PyResult<PyTable> {
        let aborted = self.with_partition(partition, |index, number| aborted_batch(index.aborted(number)))?;
        table_of(vec![aborted.unwrap_or_else(|| aborted_batch(&[]))])
    }

    /// Drop the aborted transactions of a partition whose markers are below an offset. Readers from that offset on do
    /// not need them.
    ///
    /// Returns:
    ///     The number of dropped transactions.
    fn forget_aborted(&self, partition: &Bound<'_, PyAny>, below: i64) -> PyResult<usize> {
        Ok(self.with_partition(partition, move |index, number| index.forget_aborted(number, below))?.unwrap_or(0))
    }

    /// Bytes of memory that the index uses.
    #[getter]
    fn memory_bytes(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |followed| Ok(followed.index.memory_bytes()))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let (open, bytes) =
            self.with(py, |followed| Ok((followed.index.open_count(), followed.index.memory_bytes())))?;
        Ok(format!("<TransactionIndex: {open} open transactions, {bytes} bytes>"))
    }
}

use crate::keys::KeyValue;
use crate::names::{log_columns, take_log_rows};
use crate::raise::Raise;
use fencepost_columns::{
    Failure, LogChunk, NO_PARTITION, aborted_batch, follow, open_batches, outcome_batches, resolved_batches,
};
use fencepost_core::{self as core, KeyKind, Keys, Resolved};
use pyo3::prelude::*;
use pyo3_arrow::PyTable;
use std::sync::Mutex;

/// Which rows of Kafka's logs are committed, aborted and still undecided, followed call by call.
///
/// A transaction is what a producer writes to a partition up to its next marker there, whatever the epochs of both: so
/// a follower replays its log. What is remembered is a number for each partition and an entry for each open
/// transaction, and of each aborted one 32 bytes for ``aborted``, which ``forget_aborted`` lets go of.
///
/// Partitions are integers, strings, binary, or tuples of them where they have several columns; None stands for the
/// partition of rows that name none: a null there, or ``BatchColumns(partition=None)``.
///
/// Usable from several threads, one call at a time; the interpreter is released meanwhile. Every call is atomic:
/// whatever it raises, the index is as it was, a PoisonedError aside.
#[pyclass(frozen, module = "fencepost.kafka")]
pub(crate) struct TransactionIndex {
    followed: Mutex<Followed>,
}

#[derive(Default)]
struct Followed {
    index: core::TransactionIndex,
    /// What the last call decided of what was open before it.
    resolved: Vec<Resolved>,
}

impl TransactionIndex {
    /// Does something with the core's index while other Python threads run.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Followed) -> Result<T, Failure> + Send,
    ) -> PyResult<T> {
        let work = || work(&mut *self.followed.lock().map_err(|_| Failure::Poisoned)?);
        py.detach(work).map_err(|failure: Failure| failure.raise(py))
    }

    /// Does something with a partition that has rows.
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
            let number = if is_unnamed { Some(NO_PARTITION) } else { number_of(&key, index.keys()) };
            Ok(number.filter(|&number| index.log_end(number).is_some()).map(|number| work(index, number)))
        })
    }
}

fn number_of(key: &KeyValue, keys: &Keys) -> Option<i32> {
    i32::try_from(key.number(&keys.partition)?).ok()
}

#[pymethods]
impl TransactionIndex {
    #[new]
    #[pyo3(signature = ())]
    fn new() -> TransactionIndex {
        TransactionIndex { followed: Mutex::default() }
    }

    /// Follows rows in order and gives an Arrow table with the one column ``outcome`` (utf8), a value a row, as of the
    /// end of the call: "committed", "aborted", "open", or "none" for what is part of no transaction: markers, other
    /// control rows, data that is not transactional.
    ///
    /// ``batches``: anything tabular, a row a batch header or a record, each partition in the order of its log.
    /// ``columns``: a BatchColumns; unless given, those of ``read_batches`` where the rows have a base_offset, else
    /// BatchColumns(). Read are pid, epoch, partition, offset, control (null: data; "commit", "abort"; "empty" and
    /// "other" decide nothing) and where the rows have them last_offset (null: the offset), timestamp (int64 ms or any
    /// Arrow timestamp) and transactional (null: false); without it all data with a producer is part of a transaction.
    ///
    /// Raises BatchError naming column, row, value and allowed range, also where the offsets of a partition do not
    /// rise; PolicyError for columns that are not there for this; TypeError for what is not tabular.
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
        // Before the index is locked: a stream may be a Python generator that asks this index something.
        let chunks = py.detach(|| LogChunk::read(&columns, rows)).map_err(|failure| failure.raise(py))?;
        let outcomes = self.with(py, |followed| {
            let before = followed.index.keys().mark();
            let said = follow(&mut followed.index, &chunks).map_err(|error| columns.failure(error));
            if said.is_err() || followed.index.is_empty() {
                followed.index.keys_mut().go_back(before);
            }
            let said = said?;
            followed.resolved = said.resolved;
            outcome_batches(&said.outcomes)
        })?;
        PyTable::try_new(outcomes.clone(), outcomes[0].schema())
    }

    /// Transactions that an earlier call reported open and the last call decided, as an Arrow table in the order of
    /// their markers: the partition, pid, first_offset, last_offset (int64, that of the marker) and outcome (utf8,
    /// "committed" or "aborted"). With it, whoever keeps outcomes mends those that were open: rows of that pid within
    /// these offsets.
    fn resolved(&self, py: Python<'_>) -> PyResult<PyTable> {
        let batches = self.with(py, |followed| Ok(resolved_batches(&followed.index, &followed.resolved)))?;
        PyTable::try_new(batches.clone(), batches[0].schema())
    }

    /// The transactions without a marker, as an Arrow table in the order of partition and first offset: the partition,
    /// pid, epoch (int16, of the last row), first_offset and last_offset (int64, of the rows so far), last_timestamp
    /// (int64 ms, of the last row; null where rows have none).
    ///
    /// To Kafka a transaction is late, and most likely hangs, once its last timestamp is more than 20 minutes old: the
    /// longest time-out that a broker allows (transaction.max.timeout.ms, 15 minutes) and 5 more.
    fn open(&self, py: Python<'_>) -> PyResult<PyTable> {
        let batches = self.with(py, |followed| Ok(open_batches(&followed.index)))?;
        PyTable::try_new(batches.clone(), batches[0].schema())
    }

    /// Up to where everything in a partition is decided: its first unstable offset, or the end of its log. None where
    /// it has no rows. A broker's is not above its high watermark either, which no log tells.
    fn last_stable_offset(&self, partition: &Bound<'_, PyAny>) -> PyResult<Option<i64>> {
        Ok(self.with_partition(partition, |index, number| index.last_stable_offset(number))?.flatten())
    }

    /// The first offset of the oldest open transaction of a partition; None where none is open.
    fn first_unstable_offset(&self, partition: &Bound<'_, PyAny>) -> PyResult<Option<i64>> {
        Ok(self.with_partition(partition, |index, number| index.first_unstable_offset(number))?.flatten())
    }

    /// The offset after the last row of a partition; None where it has no rows.
    fn log_end(&self, partition: &Bound<'_, PyAny>) -> PyResult<Option<i64>> {
        Ok(self.with_partition(partition, |index, number| index.log_end(number))?.flatten())
    }

    /// The aborted transactions of a partition in the order of their markers, as a broker's ``.txnindex`` lists them:
    /// an Arrow table of int64 with pid, first_offset, last_offset (that of the marker) and last_stable_offset (the
    /// first offset of the oldest other transaction that was open then, or the offset after the marker).
    fn aborted(&self, partition: &Bound<'_, PyAny>) -> PyResult<PyTable> {
        let aborted = self.with_partition(partition, |index, number| aborted_batch(index.aborted(number)))?;
        let aborted = aborted.unwrap_or_else(|| aborted_batch(&[]));
        PyTable::try_new(vec![aborted.clone()], aborted.schema())
    }

    /// Lets go of the aborted transactions of a partition whose markers lie below an offset, and gives how many they
    /// were. No reader from that offset on needs them.
    fn forget_aborted(&self, partition: &Bound<'_, PyAny>, below: i64) -> PyResult<usize> {
        Ok(self.with_partition(partition, move |index, number| index.forget_aborted(number, below))?.unwrap_or(0))
    }

    /// Bytes held.
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

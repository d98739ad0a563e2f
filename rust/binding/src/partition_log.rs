//! The native writer of `fencepost.kafka.PartitionLog`.

use crate::broker::broker_options;
use crate::kafka::{KafkaStream, record_stream};
use crate::raise::Raise;
use crate::rows::take_rows;
use fencepost_columns::{Failure, HEADERS, KEY, RECORD_COLUMNS, Rows, VALUE, build_records};
use fencepost_core::{Control, Error};
use fencepost_kafka::{self as kafka, BatchBuilder, Compression, RecordScan, Stamp};
use fencepost_log as log;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The log of a partition, open for writing. See ``fencepost.kafka.PartitionLog``.
#[pyclass(frozen, module = "fencepost._native")]
pub(crate) struct PartitionLog {
    log: log::PartitionLog,
    topic: Option<String>,
    partition: i32,
    compression: Compression,
}

/// The code of a verdict, and the offset of the batch.
type Appended = (u8, Option<i64>);

#[pymethods]
impl PartitionLog {
    /// Open the log.
    ///
    /// ``interval_ms``: None unless the policy is "interval". ``shares_syncs``: true for the policy "group", false for
    /// "each".
    #[new]
    #[pyo3(signature = (path, topic, partition, *, interval_ms, shares_syncs, segment_bytes, compression, version, window, first, max_idle_ms, cuts_damage))]
    #[expect(clippy::too_many_arguments, reason = "fencepost.kafka.PartitionLog has validated them")]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        topic: Option<String>,
        partition: i32,
        interval_ms: Option<u64>,
        shares_syncs: bool,
        segment_bytes: u64,
        compression: &str,
        version: &str,
        window: i64,
        first: &str,
        max_idle_ms: i64,
        cuts_damage: bool,
    ) -> PyResult<PartitionLog> {
        let open = || {
            let policy = match (interval_ms, shares_syncs) {
                (Some(interval), _) => log::Policy::Interval(Duration::from_millis(interval)),
                (None, true) => log::Policy::Group,
                (None, false) => log::Policy::Each,
            };
            let found = Compression::ALL.into_iter().find(|it| it.name() == compression);
            let names = Compression::ALL.map(Compression::name).join(", ");
            let unknown = || Failure::Value(format!("compression='{compression}' must be one of {names}"));
            let compression = found.ok_or_else(unknown)?;
            let broker = broker_options(version, window, first, "assign", max_idle_ms)?;
            let options = log::Options { broker, policy, segment_bytes, cuts_damage };
            let unopened = |error| Failure::Refused {
                error,
                path: path.display().to_string(),
                state: "the log was not opened".into(),
            };
            let folder = log::Folder::create(&path).map_err(unopened)?;
            let lock = folder.lock().map_err(unopened)?;
            let lock = lock.ok_or_else(|| failure_of(log::Error::Locked(path.display().to_string())))?;
            let log = log::PartitionLog::open(Arc::new(folder), Some(lock), options).map_err(failure_of)?;
            Ok(PartitionLog { log, topic, partition, compression })
        };
        py.detach(open).map_err(|failure: Failure| failure.raise(py))
    }

    /// Append batches, each as (pid, epoch, base_seq, records, transactional). Return (verdict code, offset) of each.
    ///
    /// ``now_ms``: the timestamp of records that have none.
    fn append(&self, py: Python<'_>, batches: &Bound<'_, PyList>, now_ms: i64) -> PyResult<Vec<Appended>> {
        let count = batches.len();
        let mut records = Vec::with_capacity(count);
        // Batches of a producer usually have similar sizes.
        let mut capacity = 0;
        for (number, batch) in batches.iter().enumerate() {
            let of = |failure: Failure| if count > 1 { failure.in_batch(number) } else { failure }.raise(py);
            let (pid, epoch, base_seq, rows, is_transactional): (_, _, _, Bound<'_, PyAny>, bool) = batch.extract()?;
            let stamp = Stamp {
                pid: integer(&pid, "pid", -1, i64::MAX).map_err(of)?,
                epoch: integer(&epoch, "epoch", -1, i16::MAX.into()).map_err(of)? as i16,
                base_seq: integer(&base_seq, "base_seq", -1, i32::MAX.into()).map_err(of)? as i32,
                is_transactional,
            };
            let taken = Records::take(&rows, now_ms, capacity, of)?;
            if let Records::Built(builder) = &taken {
                capacity = builder.bytes();
            }
            records.push((stamp, taken));
        }
        let append = || {
            let batch = |(number, (stamp, records)): (usize, (Stamp, Records))| {
                let of = |failure: Failure| if count > 1 { failure.in_batch(number) } else { failure };
                records.build(now_ms).and_then(|records| self.batch(&stamp, records)).map_err(of)
            };
            let mut batches = records.into_iter().enumerate().map(batch).collect::<Result<Vec<_>, _>>()?;
            let appended = self.log.append(&mut batches).map_err(|error| match error {
                log::Error::Batch(Error::Batch { column, row: Some(row), problem }) => {
                    let failure = Failure::batch(&column.to_string(), None, problem);
                    if count > 1 { failure.in_batch(row) } else { failure }
                }
                other => failure_of(other),
            })?;
            Ok(appended.into_iter().map(|it| (it.verdict as u8, it.offset)).collect())
        };
        py.detach(append).map_err(|failure: Failure| failure.raise(py))
    }

    /// Append the marker that ends a transaction.
    #[expect(clippy::too_many_arguments, reason = "the fields of a marker")]
    fn append_marker(
        &self,
        py: Python<'_>,
        pid: Bound<'_, PyAny>,
        epoch: Bound<'_, PyAny>,
        is_commit: bool,
        coordinator_epoch: Bound<'_, PyAny>,
        transaction_version: Bound<'_, PyAny>,
        now_ms: i64,
    ) -> PyResult<Appended> {
        let number = |value, name, most| integer(&value, name, 0, most).map_err(|failure| failure.raise(py));
        let pid = number(pid, "pid", i64::MAX)?;
        let epoch = number(epoch, "epoch", i16::MAX.into())? as i16;
        let coordinator_epoch = number(coordinator_epoch, "coordinator_epoch", i32::MAX.into())? as i32;
        let transaction_version = number(transaction_version, "transaction_version", i8::MAX.into())? as i8;
        let append = || {
            let mut marker = [log::Batch {
                pid,
                epoch,
                base_seq: -1,
                count: 1,
                timestamp: now_ms,
                is_transactional: true,
                control: if is_commit { Control::Commit } else { Control::Abort },
                coordinator_epoch,
                transaction_version,
                bytes: kafka::marker(pid, epoch, is_commit, coordinator_epoch, now_ms),
            }];
            let appended = self.log.append(&mut marker).map_err(failure_of)?;
            Ok((appended[0].verdict as u8, appended[0].offset))
        };
        py.detach(append).map_err(|failure: Failure| failure.raise(py))
    }

    /// Return the records from an offset on, as of now.
    fn read(&self, py: Python<'_>, from_offset: i64, is_committed: bool) -> PyResult<KafkaStream> {
        let reading = py.detach(|| self.log.read(from_offset, is_committed));
        let reading = reading.map_err(|error| failure_of(error).raise(py))?;
        let scan = RecordScan::new(reading.partition, reading.view, kafka::BATCH_BYTES_MAX);
        Ok(record_stream(self.topic.clone(), Some(self.partition), scan))
    }

    /// The offset of the next batch.
    #[getter]
    fn log_end(&self, py: Python<'_>) -> PyResult<i64> {
        py.detach(|| self.log.log_end()).map_err(|error| failure_of(error).raise(py))
    }

    /// The offset below which all transactions are decided.
    #[getter]
    fn last_stable_offset(&self, py: Python<'_>) -> PyResult<i64> {
        py.detach(|| self.log.last_stable_offset()).map_err(|error| failure_of(error).raise(py))
    }

    /// The state file that the log was opened with, invalid state files, replayed batches, and bytes of damage that
    /// were cut.
    #[getter]
    fn recovered(&self) -> (Option<String>, Vec<String>, u64, u64) {
        let found = self.log.recovered().clone();
        (found.state, found.skipped_states, found.batches, found.cut_bytes)
    }

    /// Drop producers that are idle at ``now_ms`` (int64 ms). Return their number.
    fn evict(&self, py: Python<'_>, now_ms: i64) -> PyResult<usize> {
        py.detach(|| self.log.evict(now_ms)).map_err(|error| failure_of(error).raise(py))
    }

    /// Sync all appended batches to the disk.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.log.sync()).map_err(|error| failure_of(error).raise(py))
    }

    /// Sync, write indexes and states, and release the lock. The log is closed even if this raises.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.log.close()).map_err(|error| failure_of(error).raise(py))
    }
}

impl PartitionLog {
    fn batch(&self, stamp: &Stamp, records: BatchBuilder) -> Result<log::Batch, Failure> {
        let (count, timestamp) = (records.count(), records.max_timestamp());
        if count == 0 {
            return Err(Failure::batch(VALUE, None, "no records; a batch has one or more"));
        }
        let most = kafka::BATCH_BYTES_MAX;
        let too_large = |bytes: usize| {
            let problem = format!("a batch of {bytes} bytes, but at most {most} can be read back: use several batches");
            Err(Failure::batch(VALUE, None, problem))
        };
        if records.bytes() > most {
            return too_large(records.bytes());
        }
        let packed = records.finish(stamp, self.compression);
        let bytes = packed.map_err(|error| Failure::Value(format!("the batch cannot be compressed: {error}")))?;
        // Codecs make random bytes longer.
        if bytes.len() > most {
            return too_large(bytes.len());
        }
        Ok(log::Batch {
            pid: stamp.pid,
            epoch: stamp.epoch,
            base_seq: stamp.base_seq,
            count,
            timestamp,
            is_transactional: stamp.is_transactional,
            control: Control::Data,
            coordinator_epoch: -1,
            transaction_version: -1,
            bytes,
        })
    }
}

fn failure_of(error: log::Error) -> Failure {
    match error {
        log::Error::Damaged(error) => error.into(),
        log::Error::Batch(error) => error.into(),
        log::Error::Io { error, path, state } => Failure::Refused { error, path, state },
        log::Error::Poisoned(message) => Failure::PoisonedLog(message),
        locked @ log::Error::Locked(_) => Failure::Locked(locked.to_string()),
        other @ (log::Error::Closed | log::Error::Value(_)) => Failure::Value(other.to_string()),
    }
}

/// The records of a batch: already encoded, or Arrow data that is read without the interpreter.
enum Records {
    Built(BatchBuilder),
    Rows(Rows),
}

impl Records {
    /// Takes a list of records, or tabular data.
    fn take(
        records: &Bound<'_, PyAny>,
        now_ms: i64,
        capacity: usize,
        of: impl Fn(Failure) -> PyErr,
    ) -> PyResult<Records> {
        let Ok(list) = records.cast::<PyList>() else {
            let is_tabular = records.hasattr("__arrow_c_stream__")? || records.hasattr("__arrow_c_array__")?;
            if !is_tabular {
                let kind = records.get_type().fully_qualified_name()?;
                let expected = "a list of bytes, (key, value) or (key, value, headers), or an Arrow table";
                return Err(PyTypeError::new_err(format!("records of type {kind}: {expected} is needed")));
            }
            return Ok(Records::Rows(take_rows(records, Some(&RECORD_COLUMNS))?));
        };
        let mut builder = BatchBuilder::with_capacity(capacity);
        for (row, record) in list.iter().enumerate() {
            match record.cast::<PyBytes>() {
                Ok(value) => builder.push(now_ms, None, Some(value.as_bytes()), [].into_iter()),
                Err(_) => push_tuple(&mut builder, &record, row, now_ms).map_err(&of)?,
            }
        }
        Ok(Records::Built(builder))
    }

    fn build(self, now_ms: i64) -> Result<BatchBuilder, Failure> {
        match self {
            Records::Built(builder) => Ok(builder),
            Records::Rows(rows) => build_records(rows, now_ms),
        }
    }
}

fn push_tuple(builder: &mut BatchBuilder, record: &Bound<'_, PyAny>, row: usize, now_ms: i64) -> Result<(), Failure> {
    let wrong = |column: &str, found: &Bound<'_, PyAny>, expected: &str| {
        let kind = found.get_type().fully_qualified_name().map(|it| it.to_string()).unwrap_or_default();
        Failure::batch(column, Some(row), format!("of type {kind}, {expected} is needed"))
    };
    let Some(fields) = record.cast::<PyTuple>().ok().filter(|it| (2..=3).contains(&it.len())) else {
        return Err(wrong(VALUE, record, "bytes, (key, value) or (key, value, headers)"));
    };
    let field = |at: usize| fields.get_item(at).map_err(|error| Failure::Value(error.to_string()));
    let py = record.py();
    let bytes = |column: &str, found: Bound<'_, PyAny>| match found.cast::<PyBytes>() {
        Ok(bytes) => Ok(Some(bytes.clone().unbind())),
        Err(_) if found.is_none() => Ok(None),
        Err(_) => Err(wrong(column, &found, "bytes or None")),
    };
    let (key, value) = (bytes(KEY, field(0)?)?, bytes(VALUE, field(1)?)?);
    let mut headers = Vec::new();
    if fields.len() == 3 {
        let pairs = "a list of (name, bytes or None)";
        let listed = field(2)?;
        for pair in listed.try_iter().map_err(|_| wrong(HEADERS, &listed, pairs))? {
            let pair = pair.map_err(|_| wrong(HEADERS, &listed, pairs))?;
            let (name, value) =
                pair.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>)>().map_err(|_| wrong(HEADERS, &pair, pairs))?;
            let name = name.cast::<PyString>().ok().and_then(|name| name.extract::<String>().ok());
            headers.push((name.ok_or_else(|| wrong(HEADERS, &pair, pairs))?, bytes(HEADERS, value)?));
        }
    }
    let headers = headers.iter().map(|(name, value)| (name.as_bytes(), value.as_ref().map(|it| it.as_bytes(py))));
    let headers: Vec<_> = headers.collect();
    builder.push(
        now_ms,
        key.as_ref().map(|key| key.as_bytes(py)),
        value.as_ref().map(|value| value.as_bytes(py)),
        headers.into_iter(),
    );
    Ok(())
}

/// An int in a range. None is -1 if the range contains it.
fn integer(value: &Bound<'_, PyAny>, name: &str, least: i64, most: i64) -> Result<i64, Failure> {
    if value.is_none() && least == -1 {
        return Ok(-1);
    }
    let found = value.extract::<i64>().ok().filter(|found| (least..=most).contains(found));
    found.ok_or_else(|| {
        let shown = value.repr().map(|it| it.to_string()).unwrap_or_default();
        let untracked = if least == -1 { " (-1 or None: not idempotent)" } else { "" };
        Failure::batch(name, None, format!("value {shown} is outside 0..={most}{untracked}"))
    })
}

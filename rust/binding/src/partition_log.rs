//! What `fencepost.kafka.PartitionLog` writes with.

use crate::batches::read_timestamps;
use crate::broker::broker_options;
use crate::failure::Failure;
use crate::identity::wrong_type;
use crate::kafka::{KafkaStream, record_stream};
use crate::rows::Rows;
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef};
use arrow_schema::{DataType, Field, Fields};
use fencepost_core::{Control, Error};
use fencepost_kafka::{self as kafka, BatchBuilder, Compression, RecordScan, Stamp};
use fencepost_log as log;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The columns of records that come as Arrow.
const KEY: &str = "key";
const VALUE: &str = "value";
const TIMESTAMP: &str = "timestamp";
const HEADERS: &str = "headers";

/// The log of a partition, open for writing; see ``fencepost.kafka.PartitionLog``.
#[pyclass(frozen, module = "fencepost._native")]
pub(crate) struct PartitionLog {
    log: log::PartitionLog,
    topic: Option<String>,
    partition: i32,
    compression: Compression,
}

/// The code of a verdict, and an offset.
type Told = (u8, Option<i64>);

#[pymethods]
impl PartitionLog {
    /// ``interval_ms``: None unless the policy is "interval"; ``shares_syncs``: "group" and not "each".
    #[new]
    #[pyo3(signature = (path, topic, partition, *, interval_ms, shares_syncs, segment_bytes, compression, version, window, first, max_idle_ms, cuts_damage))]
    #[expect(clippy::too_many_arguments, reason = "what fencepost.kafka.PartitionLog has looked at")]
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
            let unknown = || Failure::Value(format!("compression='{compression}' is none of {names}"));
            let compression = found.ok_or_else(unknown)?;
            let broker = broker_options(version, window, first, "assign", max_idle_ms)?;
            let options = log::Options { broker, policy, segment_bytes, cuts_damage };
            let unopened = |error| log::Error::Io {
                error,
                path: path.display().to_string(),
                state: "the log was not opened".into(),
            };
            let folder = log::Folder::create(&path).map_err(unopened)?;
            let lock = folder.lock().map_err(unopened)?;
            let lock = lock.ok_or_else(|| log::Error::Locked(path.display().to_string()))?;
            let log = log::PartitionLog::open(Arc::new(folder), Some(lock), options)?;
            Ok(PartitionLog { log, topic, partition, compression })
        };
        py.detach(open).map_err(|failure: Failure| failure.raise(py))
    }

    /// Appends batches, (pid, epoch, base_seq, records, transactional) each; gives a verdict's code and an offset each.
    /// ``now_ms``: the timestamp of records that bring none.
    fn append(&self, py: Python<'_>, batches: &Bound<'_, PyList>, now_ms: i64) -> PyResult<Vec<Told>> {
        let count = batches.len();
        let mut records = Vec::with_capacity(count);
        // Batches of a producer are about as long as each other.
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
                other => other.into(),
            })?;
            Ok(appended.into_iter().map(|it| (it.verdict as u8, it.offset)).collect())
        };
        py.detach(append).map_err(|failure: Failure| failure.raise(py))
    }

    /// Appends the marker that ends a transaction.
    #[expect(clippy::too_many_arguments, reason = "what stands in a marker")]
    fn append_marker(
        &self,
        py: Python<'_>,
        pid: Bound<'_, PyAny>,
        epoch: Bound<'_, PyAny>,
        is_commit: bool,
        coordinator_epoch: Bound<'_, PyAny>,
        transaction_version: Bound<'_, PyAny>,
        now_ms: i64,
    ) -> PyResult<Told> {
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
            let appended = self.log.append(&mut marker)?;
            Ok((appended[0].verdict as u8, appended[0].offset))
        };
        py.detach(append).map_err(|failure: Failure| failure.raise(py))
    }

    /// The records from an offset on, as they are now.
    fn read(&self, py: Python<'_>, from_offset: i64, is_committed: bool) -> PyResult<KafkaStream> {
        let reading = py.detach(|| self.log.read(from_offset, is_committed));
        let reading = reading.map_err(|error| Failure::from(error).raise(py))?;
        let scan = RecordScan::new(reading.partition, reading.view, kafka::BATCH_BYTES_MAX);
        Ok(record_stream(self.topic.clone(), Some(self.partition), scan))
    }

    #[getter]
    fn log_end(&self, py: Python<'_>) -> PyResult<i64> {
        py.detach(|| self.log.log_end()).map_err(|error| Failure::from(error).raise(py))
    }

    #[getter]
    fn last_stable_offset(&self, py: Python<'_>) -> PyResult<i64> {
        py.detach(|| self.log.last_stable_offset()).map_err(|error| Failure::from(error).raise(py))
    }

    /// State, states that were passed over, batches that were followed, bytes that were cut off.
    #[getter]
    fn recovered(&self) -> (Option<String>, Vec<String>, u64, u64) {
        let found = self.log.recovered().clone();
        (found.state, found.passed_over, found.batches, found.cut_bytes)
    }

    fn evict(&self, py: Python<'_>, now_ms: i64) -> PyResult<usize> {
        py.detach(|| self.log.evict(now_ms)).map_err(|error| Failure::from(error).raise(py))
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.log.sync()).map_err(|error| Failure::from(error).raise(py))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.log.close()).map_err(|error| Failure::from(error).raise(py))
    }
}

impl PartitionLog {
    fn batch(&self, stamp: &Stamp, records: BatchBuilder) -> Result<log::Batch, Failure> {
        let (count, timestamp) = (records.count(), records.max_timestamp());
        if count == 0 {
            return Err(Failure::batch(VALUE, None, "no records; a batch has one or more"));
        }
        if records.bytes() > kafka::BATCH_BYTES_MAX {
            let (bytes, most) = (records.bytes(), kafka::BATCH_BYTES_MAX);
            return Err(Failure::batch(VALUE, None, format!("{bytes} bytes in a batch, {most} can be read again")));
        }
        let packed = records.finish(stamp, self.compression);
        let bytes = packed.map_err(|error| Failure::Value(format!("the batch cannot be compressed: {error}")))?;
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

impl From<log::Error> for Failure {
    fn from(error: log::Error) -> Failure {
        match error {
            log::Error::Damaged(error) => error.into(),
            log::Error::Batch(error) => error.into(),
            log::Error::Io { error, path, state } => Failure::Refused { error, path, state },
            log::Error::Poisoned(message) => Failure::PoisonedLog(message),
            locked @ log::Error::Locked(_) => Failure::Locked(locked.to_string()),
            other @ (log::Error::Closed | log::Error::Value(_)) => Failure::Value(other.to_string()),
        }
    }
}

/// The records of a batch: put together, or to be read from Arrow without the interpreter.
enum Records {
    Built(BatchBuilder),
    Rows(Rows),
}

impl Records {
    /// From a list of records, or anything tabular.
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
                let wanted = "a list of bytes, (key, value) or (key, value, headers), or an Arrow table";
                return Err(PyTypeError::new_err(format!("records of type {kind}: {wanted} is needed")));
            }
            return Ok(Records::Rows(Rows::take(records, Some(&[KEY, VALUE, TIMESTAMP, HEADERS]))?));
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
            Records::Rows(rows) => build_from_arrow(rows, now_ms),
        }
    }
}

fn push_tuple(builder: &mut BatchBuilder, record: &Bound<'_, PyAny>, row: usize, now_ms: i64) -> Result<(), Failure> {
    let wrong = |column: &str, found: &Bound<'_, PyAny>, wanted: &str| {
        let kind = found.get_type().fully_qualified_name().map(|it| it.to_string()).unwrap_or_default();
        Failure::batch(column, Some(row), format!("of type {kind}, {wanted} is needed"))
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

/// Columns value and, where there are some, key, timestamp and headers.
fn build_from_arrow(rows: Rows, now_ms: i64) -> Result<BatchBuilder, Failure> {
    let names: Vec<&str> =
        [VALUE, KEY, TIMESTAMP, HEADERS].into_iter().filter(|&name| name == VALUE || rows.has(name)).collect();
    let mut builder = BatchBuilder::default();
    for columns in rows.select(&names)? {
        let of = |name: &str| names.iter().position(|&it| it == name).map(|at| &columns[at]);
        let before = builder.count() as usize;
        let value = of(VALUE).map(|column| to_binary(VALUE, column)).transpose()?;
        let key = of(KEY).map(|column| to_binary(KEY, column)).transpose()?;
        let times = of(TIMESTAMP).map(|column| read_timestamps(TIMESTAMP, column, before)).transpose()?;
        let headers = of(HEADERS).map(to_headers).transpose()?;
        let rows = columns.first().map_or(0, |column| column.len());
        let headers_of = |row: usize| {
            let Some(headers) = headers.as_ref().filter(|it| it.is_valid(row)) else { return Ok(Vec::new()) };
            let pairs = headers.as_list::<i32>().value(row);
            let (names, values) = (pairs.as_struct().column(0).clone(), pairs.as_struct().column(1).clone());
            let pair = |at: usize| {
                if names.is_null(at) {
                    return Err(Failure::batch(HEADERS, Some(before + row), "a header without a name"));
                }
                let value = values.is_valid(at).then(|| values.as_binary::<i32>().value(at).to_vec());
                Ok((names.as_string::<i32>().value(at).to_string(), value))
            };
            (0..pairs.len()).map(pair).collect::<Result<Vec<_>, _>>()
        };
        fn bytes_of(column: &Option<ArrayRef>, row: usize) -> Option<&[u8]> {
            column.as_ref().filter(|it| it.is_valid(row)).map(|it| it.as_binary::<i64>().value(row))
        }
        for row in 0..rows {
            let timestamp = times.as_ref().map_or(now_ms, |times| times[row]);
            if timestamp < 0 {
                let problem = format!("value {timestamp} is outside 0..={}, or null", i64::MAX);
                return Err(Failure::batch(TIMESTAMP, Some(before + row), problem));
            }
            let headers = headers_of(row)?;
            let pairs: Vec<_> = headers.iter().map(|(name, value)| (name.as_bytes(), value.as_deref())).collect();
            builder.push(timestamp, bytes_of(&key, row), bytes_of(&value, row), pairs.into_iter());
        }
    }
    Ok(builder)
}

fn to_binary(name: &str, column: &ArrayRef) -> Result<ArrayRef, Failure> {
    let kind = match column.data_type() {
        DataType::Dictionary(_, values) => values,
        kind => kind,
    };
    let is_bytes = kind.is_string() || kind.is_binary() || kind.is_null();
    if !is_bytes {
        return Err(wrong_type(name, column.data_type(), "binary or strings"));
    }
    Ok(arrow_cast::cast(column, &DataType::LargeBinary)?)
}

fn to_headers(column: &ArrayRef) -> Result<ArrayRef, Failure> {
    let pair = vec![Field::new("key", DataType::Utf8, true), Field::new("value", DataType::Binary, true)];
    let wanted = DataType::new_list(DataType::Struct(Fields::from(pair)), true);
    let wrong = || wrong_type(HEADERS, column.data_type(), "lists of structs of key (utf8) and value (binary)");
    arrow_cast::cast(column, &wanted).map_err(|_| wrong())
}

/// An int in a range; None is -1 where that is in it.
fn integer(value: &Bound<'_, PyAny>, name: &str, least: i64, most: i64) -> Result<i64, Failure> {
    if value.is_none() && least == -1 {
        return Ok(-1);
    }
    let found = value.extract::<i64>().ok().filter(|found| (least..=most).contains(found));
    found.ok_or_else(|| {
        let told = value.repr().map(|it| it.to_string()).unwrap_or_default();
        let untracked = if least == -1 { " (-1 or None: not idempotent)" } else { "" };
        Failure::batch(name, None, format!("value {told} is outside 0..={most}{untracked}"))
    })
}

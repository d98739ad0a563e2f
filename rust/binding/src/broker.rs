//! `fencepost.BrokerTable`.

use crate::files::{READ_BYTES, read_snapshot, replace};
use crate::keys::KeyValue;
use crate::names::batch_names;
use crate::raise::Raise;
use crate::rows::{table_of, take_rows};
use crate::verdicts::Verdicts;
use fencepost_columns::{BatchCall, Failure, Produced, judge_batches, producers_batches};
use fencepost_core::{self as core, BrokerOptions, KeyKind, ProducerEntry};
use fencepost_kafka as kafka;
use fencepost_log as log;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use pyo3_arrow::PyTable;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

/// Judges produce batches and markers as the leader of a Kafka partition does, for any number of partitions.
///
/// Transaction verification, a handshake between a broker and its coordinator, is not included.
///
/// Every method is atomic: if it raises, the table is unchanged. Only after a PoisonedError must the table be restored
/// from a snapshot. Several threads can use a table; calls run one at a time and release the interpreter.
///
/// Args:
///     version: The Kafka release whose rules apply, "2.4" to "4.5". docs/broker.md lists the differences.
///     window: Number of batches to remember per producer, 1 to 255.
///     first: Sequence numbers with which an unknown producer may begin: "any" (as the version allows) or "zero".
///     offsets: "given" if a column has the offsets, "assign" if the table assigns them.
///     max_idle_ms: How long a producer may be idle before ``evict`` and ``restart`` drop it.
///
/// Raises:
///     PolicyError: Invalid options.
#[pyclass(frozen, module = "fencepost")]
pub(crate) struct BrokerTable {
    core: Mutex<core::BrokerTable>,
    /// The pids in the order of the broker's snapshot, so that the file can be written back byte for byte.
    order_read: Vec<i64>,
}

impl BrokerTable {
    fn wrap(core: core::BrokerTable) -> BrokerTable {
        BrokerTable { core: Mutex::new(core), order_read: Vec::new() }
    }

    fn lock(&self) -> Result<MutexGuard<'_, core::BrokerTable>, Failure> {
        let core = self.core.lock().map_err(|_| Failure::Poisoned)?;
        if core.is_half_done() { Err(Failure::Poisoned) } else { Ok(core) }
    }

    /// Calls `work` with the core's table and releases the interpreter meanwhile.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut core::BrokerTable) -> Result<T, Failure> + Send,
    ) -> PyResult<T> {
        py.detach(|| work(&mut *self.lock()?)).map_err(|failure| failure.raise(py))
    }

    /// Judges batches with `call`. New keys of partitions stay in the table only if `keeps_keys` is true and nothing
    /// fails.
    fn judge(
        &self,
        py: Python<'_>,
        batches: &Bound<'_, PyAny>,
        columns: Option<&Bound<'_, PyAny>>,
        keeps_keys: bool,
        call: BatchCall,
    ) -> PyResult<Verdicts> {
        let names = match columns {
            Some(columns) => batch_names(columns)?,
            None => batch_names(&py.import("fencepost.policy")?.getattr("BatchColumns")?.call0()?)?,
        };
        let rows = take_rows(batches, Some(&names.all()))?;
        let needs_partitions = self.with(py, |table| Ok(table.follows_log_ends()))?;
        // Reads the stream before it locks the table, because a stream can be a Python generator that uses this table.
        let produced = py.detach(|| Produced::read(&names, rows, needs_partitions));
        let produced = produced.map_err(|failure| failure.raise(py))?;
        self.with(py, |table| judge_batches(table, &produced, &names, keeps_keys, call)).map(Verdicts)
    }

    /// The key of a partition, with the key type of the table.
    fn partition(&self, py: Python<'_>, partition: &Bound<'_, PyAny>) -> PyResult<KeyValue> {
        let kind = self.with(py, |table| Ok(table.keys().partition.kind().clone()))?;
        KeyValue::of(partition, &kind, "partition").map_err(|failure| failure.raise(py))
    }
}

#[pymethods]
impl BrokerTable {
    #[new]
    #[pyo3(signature = (*, version="4.3", window=5, first="any", offsets="given", max_idle_ms=86_400_000))]
    fn new(
        py: Python<'_>,
        version: &str,
        window: i64,
        first: &str,
        offsets: &str,
        max_idle_ms: i64,
    ) -> PyResult<BrokerTable> {
        let table = empty_table(version, window, first, offsets, max_idle_ms);
        table.map(BrokerTable::wrap).map_err(|failure| failure.raise(py))
    }

    /// Judge every batch and marker in order, and update the table.
    ///
    /// Args:
    ///     batches: Tabular data with one row per batch.
    ///     columns: A BatchColumns, which assigns a role to each column. Default: ``BatchColumns()``.
    ///
    /// Columns:
    /// - pid: int64; -1 or null: not idempotent
    /// - epoch: int16
    /// - partition: int32, or strings and composites
    /// - base_seq, last_seq: int32
    /// - count: int32
    /// - offset, last_offset: int64
    /// - timestamp: int64 ms or Arrow timestamp; the newest of the batch
    /// - transactional: bool
    /// - control: utf8; null, "commit" or "abort". "empty" and "other" change nothing
    /// - coordinator_epoch: int32
    /// - transaction_version: int8, of markers. Null: a version below 2
    /// - origin: utf8; "client", "replica" or "coordinator"
    ///
    /// Integers of other widths are accepted if every value fits.
    ///
    /// Returns:
    ///     Verdicts with one verdict and one offset per row.
    ///
    /// Raises:
    ///     BatchError: A value is invalid (column, row, value, allowed range).
    ///     TypeError: The batches are not tabular.
    #[pyo3(signature = (batches, columns=None))]
    fn apply(
        &self,
        py: Python<'_>,
        batches: &Bound<'_, PyAny>,
        columns: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Verdicts> {
        self.judge(py, batches, columns, true, |table, batches| table.apply(batches))
    }

    /// Return the verdicts and offsets that ``apply`` would return, without changing the table.
    #[pyo3(signature = (batches, columns=None))]
    fn check(
        &self,
        py: Python<'_>,
        batches: &Bound<'_, PyAny>,
        columns: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Verdicts> {
        self.judge(py, batches, columns, false, |table, batches| table.check(batches))
    }

    /// Return the offset that ``offsets="assign"`` assigns next in a partition. It is 0 before the first batch.
    fn log_end(&self, py: Python<'_>, partition: &Bound<'_, PyAny>) -> PyResult<i64> {
        let partition = self.partition(py, partition)?;
        self.with(py, |table| Ok(partition.partition_number(table.keys()).map_or(0, |number| table.log_end(number))))
    }

    /// Set the end of a partition's log: the offset (int64) of its next batch.
    ///
    /// Raises:
    ///     PolicyError: The offset is negative, or the table reads its offsets from a column and its version does not
    ///         use log ends.
    fn set_log_end(&self, py: Python<'_>, partition: &Bound<'_, PyAny>, offset: i64) -> PyResult<()> {
        let kind = self.with(py, |table| {
            let known = table.keys().partition.is_fixed().then(|| table.keys().partition.kind().clone());
            Ok(known)
        })?;
        let kind = kind.map_or_else(|| KeyValue::kind_of(partition), Ok).map_err(|failure| failure.raise(py))?;
        let partition = KeyValue::of(partition, &kind, "partition").map_err(|failure| failure.raise(py))?;
        self.with(py, |table| {
            if !table.follows_log_ends() {
                let problem = "set_log_end: this table has offsets='given', so it keeps no log ends. Create it with \
                               offsets='assign'";
                return Err(Failure::Policy(problem.into()));
            }
            let before = table.keys().mark();
            table.keys_mut().fix(KeyKind::Plain, kind)?;
            let number = partition.number_or_new(&mut table.keys_mut().partition);
            let set = number.and_then(|number| Ok(table.set_log_end(number, offset)?));
            set.inspect_err(|_| table.keys_mut().go_back(before))
        })
    }

    /// Simulate a clean restart of a broker.
    ///
    /// Each producer keeps only the last batch of its window, because a snapshot file stores no more. Producers that
    /// were idle for at least ``max_idle_ms`` at ``now_ms`` (int64 ms) are dropped, unless they have an open
    /// transaction.
    ///
    /// Returns:
    ///     The number of dropped producers.
    fn restart(&self, py: Python<'_>, now_ms: i64) -> PyResult<usize> {
        self.with(py, |table| Ok(table.restart(now_ms)))
    }

    /// Drop producers whose last batch or marker is at least ``max_idle_ms`` older than ``now_ms`` (int64 ms).
    ///
    /// Producers with an open transaction stay. Age is measured by the timestamps of batches; duplicates do not count.
    ///
    /// Returns:
    ///     The number of dropped producers.
    ///
    /// Raises:
    ///     PolicyError: No batch had a timestamp.
    fn evict(&self, py: Python<'_>, now_ms: i64) -> PyResult<usize> {
        self.with(py, |table| Ok(table.evict(now_ms)?))
    }

    /// Return the state of a producer in a partition as a dict with the columns of ``entries()``, or None if it is
    /// unknown.
    fn get<'py>(
        &self,
        py: Python<'py>,
        pid: i64,
        partition: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        let key = self.partition(py, partition)?;
        let entry = self.with(py, |table| {
            let number = key.partition_number(table.keys());
            Ok(number.filter(|_| pid >= 0).and_then(|number| table.get(pid, number)))
        })?;
        entry.map(|entry| entry_dict(py, &entry, key.to_python(partition)?)).transpose()
    }

    /// Return the state of all producers as an Arrow table of several batches, in key order.
    ///
    /// Columns:
    /// - ``pid``: int64
    /// - the columns of the partition
    /// - ``epoch``: int16
    /// - ``coordinator_epoch``: int32, null before a marker
    /// - ``last_timestamp``: int64 ms, null if no batch had a timestamp
    /// - ``transaction_open``: bool
    /// - ``transaction_first_offset``: int64, null if unknown
    /// - ``batches``: list of struct, oldest first. Its fields are ``first_seq`` and ``last_seq`` (int32, null for
    ///   batches without sequence numbers), ``first_offset`` and ``last_offset`` (int64, null if unknown)
    fn entries(&self, py: Python<'_>) -> PyResult<PyTable> {
        self.with(py, |table| Ok(producers_batches(table.keys(), table.entries()))).and_then(table_of)
    }

    /// Return the table as bytes with a checksum. Equal tables have equal bytes. Options and log ends are included.
    fn snapshot<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = self.with(py, |table| Ok(table.snapshot()))?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Restore a table from the bytes of ``snapshot``. The result behaves exactly like the original.
    ///
    /// Raises:
    ///     SnapshotError: The bytes are not a valid snapshot.
    #[staticmethod]
    fn restore(py: Python<'_>, snapshot: &[u8]) -> PyResult<BrokerTable> {
        let core = py.detach(|| core::BrokerTable::restore(snapshot));
        core.map(BrokerTable::wrap).map_err(|error| Failure::from(error).raise(py))
    }

    /// Write the snapshot to a file. A new file is written in the same folder, synced, and renamed.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.with(py, |table| {
            let saved = replace(&path, |file| {
                let mut out = io::BufWriter::with_capacity(READ_BYTES, file);
                table.write_snapshot(&mut out)?;
                io::Write::flush(&mut out)
            });
            saved.map_err(|error| Failure::Io(error, path.display().to_string()))
        })
    }

    /// Read a table from a file of ``save``.
    ///
    /// Raises:
    ///     SnapshotError: The file is not a valid snapshot.
    #[staticmethod]
    fn load(py: Python<'_>, path: PathBuf) -> PyResult<BrokerTable> {
        py.detach(|| read_snapshot(&path, |input, _| core::BrokerTable::read_snapshot(input)))
            .map(BrokerTable::wrap)
            .map_err(|failure| failure.raise(py))
    }

    /// Read the producers of one partition from a broker's own ``.snapshot`` file (Kafka's version 1).
    ///
    /// The file has only the last batch of each producer. A retry of an earlier batch is therefore out of order, as it
    /// is for a broker that reads the file.
    ///
    /// Args:
    ///     path: The file. With ``offsets="assign"``, the log ends at the offset in the file's name.
    ///     partition: The key of the partition in the table.
    ///     version, window, first, offsets, max_idle_ms: The options of ``BrokerTable``.
    ///
    /// Raises:
    ///     SnapshotError: The file is not a valid snapshot.
    #[staticmethod]
    #[pyo3(signature = (path, partition, *, version="4.3", window=5, first="any", offsets="given", max_idle_ms=86_400_000))]
    #[expect(clippy::too_many_arguments, reason = "the options of a table, as its constructor takes them")]
    fn from_kafka_snapshot(
        py: Python<'_>,
        path: PathBuf,
        partition: &Bound<'_, PyAny>,
        version: &str,
        window: i64,
        first: &str,
        offsets: &str,
        max_idle_ms: i64,
    ) -> PyResult<BrokerTable> {
        let kind = KeyValue::kind_of(partition).map_err(|failure| failure.raise(py))?;
        let partition = KeyValue::of(partition, &kind, "partition").map_err(|failure| failure.raise(py))?;
        let read = || {
            let mut table = empty_table(version, window, first, offsets, max_idle_ms)?;
            table.keys_mut().fix(KeyKind::Plain, kind)?;
            let partition = partition.number_or_new(&mut table.keys_mut().partition)?;
            let order_read = add_kafka_snapshot(&mut table, &path, partition)?;
            Ok(BrokerTable { core: Mutex::new(table), order_read })
        };
        py.detach(read).map_err(|failure: Failure| failure.raise(py))
    }

    /// Write the producers of one partition to a file in the format of a broker's own ``.snapshot``.
    ///
    /// The file has the last batch of each producer. Producers of a file that ``from_kafka_snapshot`` read are in the
    /// order of that file, so an unchanged table is written back byte for byte. Other producers follow in the order of
    /// their pids. Brokers accept any order.
    ///
    /// Raises:
    ///     PolicyError: The offsets of a producer are unknown. A broker could not use the file without them.
    fn to_kafka_snapshot(&self, py: Python<'_>, path: PathBuf, partition: &Bound<'_, PyAny>) -> PyResult<()> {
        let key = self.partition(py, partition)?;
        self.with(py, |table| {
            let number = key.partition_number(table.keys());
            let entries = number.map_or(Ok(Vec::new()), |number| kafka_entries(table, number, &self.order_read))?;
            let bytes = kafka::snapshot::write(&entries);
            let saved = replace(&path, |file| io::Write::write_all(file, &bytes));
            saved.map_err(|error| Failure::Io(error, path.display().to_string()))
        })
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |table| Ok(table.len()))
    }

    /// Bytes of memory that the table uses.
    #[getter]
    fn memory_bytes(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |table| Ok(table.memory_bytes()))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |table| {
            let (version, entries, bytes) = (table.options().version, table.len(), table.memory_bytes());
            Ok(format!("<BrokerTable {version}: {entries} entries, {bytes} bytes>"))
        })
    }
}

fn empty_table(
    version: &str,
    window: i64,
    first: &str,
    offsets: &str,
    max_idle_ms: i64,
) -> Result<core::BrokerTable, Failure> {
    Ok(core::BrokerTable::new(broker_options(version, window, first, offsets, max_idle_ms)?)?)
}

/// Converts the options of a table from Python.
pub(crate) fn broker_options(
    version: &str,
    window: i64,
    first: &str,
    offsets: &str,
    max_idle_ms: i64,
) -> Result<BrokerOptions, Failure> {
    let one_of = |name, value, words: [&str; 2]| match words.iter().position(|&word| word == value) {
        Some(at) => Ok(at == 1),
        None => Err(Failure::Policy(format!("{name}='{value}' must be one of {}", words.join(", ")))),
    };
    let window = u8::try_from(window).map_err(|_| Failure::Policy(format!("window={window} is outside 1..=255")))?;
    Ok(BrokerOptions {
        version: version.parse()?,
        window,
        begins_at_zero: one_of("first", first, ["any", "zero"])?,
        assigns_offsets: one_of("offsets", offsets, ["given", "assign"])?,
        max_idle_ms,
    })
}

/// Adds the producers of a broker's snapshot, and returns their pids in the order of the file.
fn add_kafka_snapshot(table: &mut core::BrokerTable, path: &Path, partition: i32) -> Result<Vec<i64>, Failure> {
    let bytes = std::fs::read(path).map_err(|error| Failure::Io(error, path.display().to_string()))?;
    let in_file = |reason: String| Failure::snapshot(reason).in_file(path);
    let entries = kafka::snapshot::read(&bytes).map_err(|error| in_file(error.reason))?;
    for entry in &entries {
        let no_offset =
            || Failure::snapshot(format!("producer {}: its last batch has no offset", entry.pid)).in_file(path);
        let producer = log::of_kafka(entry, partition).ok_or_else(no_offset)?;
        table.add(&producer).map_err(|error| Failure::from(error).in_file(path))?;
    }
    let offset = path.file_stem().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
    if let Some(offset) = offset.filter(|_| table.follows_log_ends()) {
        table.set_log_end(partition, offset)?;
    }
    Ok(entries.into_iter().map(|entry| entry.pid).collect())
}

/// The entries that a broker would write for a partition.
fn kafka_entries(
    table: &core::BrokerTable,
    partition: i32,
    order: &[i64],
) -> Result<Vec<kafka::snapshot::ProducerEntry>, Failure> {
    let unknown = |pid: i64| {
        Failure::Policy(format!(
            "to_kafka_snapshot: the offsets of producer {pid} are not known, because its batches had none"
        ))
    };
    let entry = |entry: ProducerEntry| log::to_kafka(&entry).ok_or_else(|| unknown(entry.pid));
    let ranks: HashMap<i64, usize> = order.iter().enumerate().map(|(rank, &pid)| (pid, rank)).collect();
    let of_partition = table.entries().filter(|entry| entry.partition == partition);
    let mut entries = of_partition.map(entry).collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(|entry| ranks.get(&entry.pid).copied().unwrap_or(usize::MAX));
    Ok(entries)
}

fn entry_dict<'py>(
    py: Python<'py>,
    entry: &ProducerEntry,
    partition: Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyDict>> {
    let known = |number: i64| (number >= 0).then_some(number);
    let batches = PyList::empty(py);
    for batch in &entry.batches {
        let of_batch = PyDict::new(py);
        of_batch.set_item("first_seq", known(batch.first_seq().into()))?;
        of_batch.set_item("last_seq", known(batch.last_seq.into()))?;
        of_batch.set_item("first_offset", known(batch.first_offset()))?;
        of_batch.set_item("last_offset", known(batch.last_offset))?;
        batches.append(of_batch)?;
    }
    let found = PyDict::new(py);
    found.set_item("pid", entry.pid)?;
    found.set_item("partition", partition)?;
    found.set_item("epoch", entry.epoch)?;
    found.set_item("coordinator_epoch", known(entry.coordinator_epoch.into()))?;
    found.set_item("last_timestamp", (entry.last_timestamp != -1).then_some(entry.last_timestamp))?;
    found.set_item("transaction_open", entry.is_open)?;
    found.set_item("transaction_first_offset", known(entry.open_from))?;
    found.set_item("batches", batches)?;
    Ok(found)
}

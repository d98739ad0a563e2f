use crate::files::{read_snapshot, replace};
use crate::keys::KeyValue;
use crate::names::column_names;
use crate::raise::Raise;
use crate::rows::{table_of, take_rows};
use crate::verdicts::Verdicts;
use arrow_array::BooleanArray;
use fencepost_columns::{
    Call, ColumnNames, Failure, Identity, apply_and_keep, entries_batches, has_epochs, insert_entries, judge_and_keep,
    keep, listed_batches, missing_batches, restore,
};
use fencepost_core::{self as core, KeyKind, Partitions, Policy, Untracked};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use pyo3_arrow::{PyArray, PyTable};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

/// Judges rows by the rules of a policy, and stores which rows of each producer were accepted.
///
/// Every method is atomic: if it raises, the table is unchanged. Only after a PoisonedError must the table be restored
/// from a snapshot. Several threads can use a table; calls run one at a time and release the interpreter.
///
/// Args:
///     policy: A preset name or a Policy.
///     keep: Additional data to keep. With ("timestamp",), the table keeps the highest timestamp of each entry, and the
///         timestamp of the row that opened each hole, so that it can evict by age. Rows then need a timestamp.
///     entries_max: Maximum number of entries. A call that could exceed it raises CapacityError and changes nothing.
///     untracked: What to do with rows without a producer (pid null or -1). "keep": they get the verdict UNTRACKED.
///         "fail": they raise BatchError.
///     partitions: How many partitions each producer writes to, "one" or "many". By default, the table chooses its
///         memory layout while it grows. A large table is built in a third to two thirds of the time if it need not
///         choose. If producers write to one partition each, "many" takes 80 bytes per entry instead of 30. Verdicts do
///         not depend on this argument, and snapshots do not contain it.
///
/// Raises:
///     PolicyError: Invalid policy or options.
#[pyclass(frozen, module = "fencepost")]
pub(crate) struct StateTable {
    core: Mutex<core::StateTable>,
    /// The Python `Policy`.
    policy: Py<PyAny>,
    columns: ColumnNames,
    keeps_timestamp: bool,
}

impl StateTable {
    fn lock(&self) -> Result<MutexGuard<'_, core::StateTable>, Failure> {
        let core = self.core.lock().map_err(|_| Failure::Poisoned)?;
        if core.is_half_done() { Err(Failure::Poisoned) } else { Ok(core) }
    }

    /// Calls `work` with the core's table and releases the interpreter meanwhile.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut core::StateTable) -> Result<T, Failure> + Send,
    ) -> PyResult<T> {
        py.detach(|| work(&mut *self.lock()?)).map_err(|failure| failure.raise(py))
    }

    /// The types of pid and partition. `None` for an empty table: its first entry decides them.
    fn key_kinds(&self, py: Python<'_>) -> PyResult<Option<(KeyKind, KeyKind)>> {
        self.with(py, |table| {
            let kinds = (table.keys().pid.kind().clone(), table.keys().partition.kind().clone());
            Ok((!table.is_empty()).then_some(kinds))
        })
    }

    /// Wraps a core table. Its policy may be new to Python.
    fn wrap(py: Python<'_>, core: core::StateTable) -> PyResult<StateTable> {
        let policies = py.import("fencepost.policy")?;
        let policy = policies.call_method1("from_label", (core.policy().to_string(), core.label()))?;
        let columns = column_names(&policy.getattr("columns")?)?;
        let keeps_timestamp = core.keeps_timestamp();
        Ok(StateTable { core: Mutex::new(core), policy: policy.unbind(), columns, keeps_timestamp })
    }

    /// Raises SnapshotError if `expected` is a policy and differs from the table's.
    fn expect_policy(
        self,
        py: Python<'_>,
        expected: Option<&Bound<'_, PyAny>>,
        path: Option<&Path>,
    ) -> PyResult<StateTable> {
        let Some(expected) = expected else { return Ok(self) };
        let policies = py.import("fencepost.policy")?;
        let expected = policies.call_method1("resolve", (expected,))?;
        if expected.eq(&self.policy)? {
            return Ok(self);
        }
        let difference: String = policies.call_method1("difference", (&self.policy, expected))?.extract()?;
        let failure = Failure::snapshot(format!("the snapshot has another policy: {difference}"));
        let failure = if let Some(path) = path { failure.in_file(path) } else { failure };
        Err(failure.raise(py))
    }

    /// The columns to read: `columns` if they fit the policy, or the policy's if `None`.
    fn columns_or(&self, py: Python<'_>, columns: Option<&Bound<'_, PyAny>>) -> PyResult<ColumnNames> {
        let names = match columns {
            None => self.columns.clone(),
            Some(columns) => {
                let policies = py.import("fencepost.policy")?;
                column_names(&policies.call_method1("resolve_columns", (&self.policy, columns))?)?
            }
        };
        Ok(names.keeping_timestamps(self.keeps_timestamp))
    }

    /// Judges rows with `call`. New keys stay in the table only if `keeps_keys` is true and nothing fails.
    fn judge(
        &self,
        py: Python<'_>,
        rows: &Bound<'_, PyAny>,
        names: ColumnNames,
        keeps_keys: bool,
        call: Call,
    ) -> PyResult<Verdicts> {
        let rows = take_rows(rows, Some(&names.all()))?;
        // Reads the stream before it locks the table, because a stream can be a Python generator that uses this table.
        let identity = py.detach(|| Identity::read(&names, rows)).map_err(|failure| failure.raise(py))?;
        self.with(py, |table| judge_and_keep(table, &identity, &names, keeps_keys, call)).map(Verdicts)
    }
}

#[pymethods]
impl StateTable {
    #[new]
    #[pyo3(signature = (policy, *, keep=vec![], entries_max=None, untracked="keep", partitions=None),
            text_signature = "(policy, *, keep=(), entries_max=None, untracked='keep', partitions=None)")]
    fn new(
        py: Python<'_>,
        policy: &Bound<'_, PyAny>,
        keep: Vec<String>,
        entries_max: Option<i64>,
        untracked: &str,
        partitions: Option<&str>,
    ) -> PyResult<StateTable> {
        if let Some(unknown) = keep.iter().find(|&it| it != "timestamp") {
            let message = format!("keep=('{unknown}',): expected 'timestamp'; what the policy needs is always kept");
            return Err(Failure::Policy(message).raise(py));
        }
        if let Some(entries_max) = entries_max.filter(|&entries| entries < 0) {
            let message = format!("entries_max={entries_max} is not a whole number of at least 0");
            return Err(Failure::Policy(message).raise(py));
        }
        let untracked = match untracked {
            "keep" => Untracked::Keep,
            "fail" => Untracked::Fail,
            other => {
                let message = format!("untracked='{other}' must be one of keep, fail");
                return Err(Failure::Policy(message).raise(py));
            }
        };
        let partitions = match partitions {
            None => None,
            Some("one") => Some(Partitions::One),
            Some("many") => Some(Partitions::Many),
            Some(other) => {
                let message = format!("partitions='{other}': expected 'one' or 'many'");
                return Err(Failure::Policy(message).raise(py));
            }
        };
        let policies = py.import("fencepost.policy")?;
        let policy = policies.call_method1("resolve", (policy,))?;
        let columns = policy.getattr("columns")?;
        policies.call_method1("check_columns", (&policy, &columns))?;
        let rules: String = policy.getattr("rules")?.extract()?;
        let label: String = policies.call_method1("to_label", (&policy,))?.extract()?;
        let core = rules.parse::<Policy>().and_then(core::StateTable::new).map_err(|it| Failure::from(it).raise(py))?;
        let keeps_timestamp = !keep.is_empty();
        let core = core
            .with_untracked(untracked)
            .with_entries_max(entries_max.map(|entries| entries as u64))
            .with_keep_timestamp(keeps_timestamp)
            .with_partitions(partitions)
            .with_label(label);
        let columns = column_names(&columns)?;
        Ok(StateTable { core: Mutex::new(core), policy: policy.unbind(), columns, keeps_timestamp })
    }

    /// Judge every row in order, and update the table.
    ///
    /// Args:
    ///     rows: An object with ``__arrow_c_stream__`` or ``__arrow_c_array__``, or a mapping from column names to
    ///         NumPy or Arrow arrays. Of a stream, all batches are read first, but only their identity columns.
    ///         Integers can have any width; pid and partition can also be strings or binary. A table that keeps
    ///         timestamps reads one per row: integers in milliseconds, or Arrow timestamps of any unit, rounded down to
    ///         milliseconds. Writable arrays (NumPy's flag ``writeable``) are copied first. Other arrays must not
    ///         change during the call.
    ///     columns: A Columns, or the name of a preset (``Columns.preset``). Default: the columns of the policy. The
    ///         table stores values, not names of columns, so use columns of the same meaning in each call.
    ///
    /// Returns:
    ///     Verdicts with one verdict per row.
    ///
    /// Raises:
    ///     BatchError: A value is invalid (column, row, value, allowed range).
    ///     CapacityError: The table would exceed ``entries_max``.
    ///     PolicyError: The columns do not fit the policy.
    ///     TypeError: The rows are not tabular.
    #[pyo3(signature = (rows, columns=None))]
    fn apply(&self, py: Python<'_>, rows: &Bound<'_, PyAny>, columns: Option<&Bound<'_, PyAny>>) -> PyResult<Verdicts> {
        let names = self.columns_or(py, columns)?;
        self.judge(py, rows, names, true, |table, batches, _| table.apply(batches))
    }

    /// Return which rows to keep, as an Arrow boolean array: the same as ``apply(rows, columns).kept``, but faster.
    ///
    /// ``is_last``: the table is not used afterwards, so the call need not store new entries in an empty table.
    #[pyo3(signature = (rows, columns=None, is_last=false))]
    fn _keep(
        &self,
        py: Python<'_>,
        rows: &Bound<'_, PyAny>,
        columns: Option<&Bound<'_, PyAny>>,
        is_last: bool,
    ) -> PyResult<PyArray> {
        let names = self.columns_or(py, columns)?;
        let rows = take_rows(rows, Some(&names.all()))?;
        let identity = py.detach(|| Identity::read(&names, rows)).map_err(|failure| failure.raise(py))?;
        let kept = self.with(py, |table| {
            if is_last { keep(table, &identity, &names) } else { apply_and_keep(table, &identity, &names) }
        })?;
        Ok(PyArray::from_array_ref(Arc::new(BooleanArray::new(kept, None))))
    }

    /// Judge rows that are grouped into spans, and update the table. Verdicts are the same as those of ``apply`` row by
    /// row.
    ///
    /// A span is a number of rows with the same key and epoch, consecutive sequence numbers, and the same timestamp if
    /// timestamps are kept.
    ///
    /// Args:
    ///     rows: As for ``apply``, but one line per span. The line has the identity of the first row of the span.
    ///     lengths: The column with the number of rows of each span (integers, at least 1).
    ///     columns: As for ``apply``.
    ///
    /// Returns:
    ///     Verdicts with one verdict (one byte) per *row*, not per line: as many as the sum of all lengths.
    ///
    /// Raises:
    ///     BatchError, CapacityError, PolicyError, TypeError: As for ``apply``. Row numbers in errors are line numbers.
    #[pyo3(signature = (rows, lengths="_length", columns=None))]
    fn apply_spans(
        &self,
        py: Python<'_>,
        rows: &Bound<'_, PyAny>,
        lengths: &str,
        columns: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Verdicts> {
        let names = ColumnNames { length: Some(lengths.into()), ..self.columns_or(py, columns)? };
        self.judge(py, rows, names, true, |table, batches, lengths| table.apply_spans(batches, lengths))
    }

    /// Return the verdicts that ``apply`` would return, without changing the table.
    #[pyo3(signature = (rows, columns=None))]
    fn check(&self, py: Python<'_>, rows: &Bound<'_, PyAny>, columns: Option<&Bound<'_, PyAny>>) -> PyResult<Verdicts> {
        let names = self.columns_or(py, columns)?;
        self.judge(py, rows, names, false, |table, batches, _| table.check(batches))
    }

    /// Return the entry of a key as a dict, or None if there is no entry.
    ///
    /// Args:
    ///     pid: The pid. A tuple if the key has several columns.
    ///     partition: The partition. A tuple if it has several columns, None if the table reads no partition column.
    ///     epoch: The epoch of the entry. Default: the highest epoch of the key.
    ///
    /// Returns:
    ///     A dict with pid, partition, epoch, first, last, holes (a list of dicts with first, last and timestamp),
    ///         final_first, final_last and last_timestamp. The values are those of ``entries()``.
    ///
    /// Raises:
    ///     BatchError: The key does not have the type of this table's keys.
    #[pyo3(signature = (pid, partition, epoch=None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        pid: &Bound<'py, PyAny>,
        partition: &Bound<'py, PyAny>,
        epoch: Option<i64>,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some((pid_kind, partition_kind)) = self.key_kinds(py)? else { return Ok(None) };
        let pid_key = KeyValue::of(pid, &pid_kind, "pid").map_err(|it| it.raise(py))?;
        let partition_key = KeyValue::of(partition, &partition_kind, "partition").map_err(|it| it.raise(py))?;
        let Ok(epoch) = epoch.map(i16::try_from).transpose() else { return Ok(None) };
        let (has_epochs, entry) = self.with(py, |table| {
            let numbers = pid_key.number(&table.keys().pid).zip(partition_key.partition_number(table.keys()));
            let entry = numbers.and_then(|(pid, partition)| table.get(pid, partition, epoch));
            Ok((has_epochs(table), entry))
        })?;
        let Some(entry) = entry else { return Ok(None) };
        let holes = PyList::empty(py);
        for hole in &entry.holes {
            let range = PyDict::new(py);
            range.set_item("first", hole.first)?;
            range.set_item("last", hole.last)?;
            range.set_item("timestamp", hole.timestamp)?;
            holes.append(range)?;
        }
        let found = PyDict::new(py);
        found.set_item("pid", pid_key.to_python(pid)?)?;
        found.set_item("partition", partition_key.to_python(partition)?)?;
        found.set_item("epoch", has_epochs.then_some(entry.epoch))?;
        found.set_item("first", entry.first)?;
        found.set_item("last", entry.last)?;
        found.set_item("holes", holes)?;
        found.set_item("final_first", entry.final_range.map(|range| range.0))?;
        found.set_item("final_last", entry.final_range.map(|range| range.1))?;
        found.set_item("last_timestamp", entry.last_timestamp)?;
        Ok(Some(found))
    }

    /// Return all entries as an Arrow table of several batches, in key order.
    ///
    /// Columns:
    /// - the key columns: ``pid`` and ``partition``, or ``pid_0``, ``pid_1`` ... if they have several columns
    /// - ``epoch``: int16, null if the policy has no epochs
    /// - ``first``, ``last``: int64 positions. Under admit="next", the sequence numbers of the oldest and newest row in
    ///   the window
    /// - ``holes``: list of struct (first, last, timestamp)
    /// - ``final_first``, ``final_last``: int64: the range from the first to the last position that was given up as
    ///   missing (``Policy.reach``, ``evict``); null if there is none
    /// - ``last_timestamp``: int64 ms
    ///
    /// Timestamps are null unless the table keeps them. The schema metadata has the policy, the options and the
    /// horizon.
    fn entries(&self, py: Python<'_>) -> PyResult<PyTable> {
        self.with(py, |table| Ok(entries_batches(table))).and_then(table_of)
    }

    /// Return all open holes as an Arrow table, in key order.
    ///
    /// The columns are the key columns, epoch (int16), first_seq, last_seq and count (int64). The result is empty if
    /// the policy has gaps="normal".
    fn missing(&self, py: Python<'_>) -> PyResult<PyTable> {
        self.with(py, |table| Ok(missing_batches(table))).and_then(table_of)
    }

    /// Drop entries that were idle for at least ``max_idle_ms`` at ``now_ms`` (both int64 ms), and raise the horizon.
    ///
    /// The new horizon is ``now_ms - max_idle_ms``, unless it is already higher. From then on, a row at or below the
    /// horizon is DUPLICATE if a known entry contains it, and FORGOTTEN otherwise. Holes that opened at or below the
    /// horizon become final.
    ///
    /// Returns:
    ///     The number of dropped entries.
    ///
    /// Raises:
    ///     PolicyError: The table does not keep timestamps, or ``max_idle_ms`` is negative.
    fn evict(&self, py: Python<'_>, now_ms: i64, max_idle_ms: i64) -> PyResult<usize> {
        self.with(py, |table| {
            let dropped = table.evict(now_ms, max_idle_ms)?;
            table.drop_unused_keys();
            Ok(dropped)
        })
    }

    /// Drop the entries of a producer, or of one of its partitions, in all epochs. The horizon does not change.
    ///
    /// Use this if the producer restarted its sequence numbers.
    ///
    /// Args:
    ///     pid: As for ``get``.
    ///     partition: As for ``get``. None: all partitions of the producer.
    ///
    /// Returns:
    ///     The number of dropped entries.
    ///
    /// Raises:
    ///     BatchError: The key does not have the type of this table's keys.
    #[pyo3(signature = (pid, partition=None))]
    fn forget(&self, py: Python<'_>, pid: &Bound<'_, PyAny>, partition: Option<&Bound<'_, PyAny>>) -> PyResult<usize> {
        let Some((pid_kind, partition_kind)) = self.key_kinds(py)? else { return Ok(0) };
        let pid = KeyValue::of(pid, &pid_kind, "pid").map_err(|it| it.raise(py))?;
        let partition = partition.map(|value| KeyValue::of(value, &partition_kind, "partition")).transpose();
        let partition = partition.map_err(|it| it.raise(py))?;
        self.with(py, |table| {
            let Some(pid) = pid.number(&table.keys().pid) else { return Ok(0) };
            let dropped = match partition.map(|key| key.partition_number(table.keys())) {
                None => table.forget(pid, None),
                Some(number) => number.map_or(0, |it| table.forget(pid, Some(it))),
            };
            table.drop_unused_keys();
            Ok(dropped)
        })
    }

    /// Add the entries of another table to this one. The other table does not change.
    ///
    /// The result contains every position that either table accepted. Horizons and last timestamps become the later of
    /// the two. Two final ranges of an entry become the smallest range that contains both.
    ///
    /// Returns:
    ///     The overlap, as an Arrow table with the columns of ``missing()``: positions that both tables had accepted
    ///         and that are final in neither. For each of them, one row too many was accepted before the merge.
    ///
    /// Raises:
    ///     PolicyError: The tables cannot be merged, and neither changes. Their rules, kept data or key types differ;
    ///         the policy is not admit="any"; a key of both has positions on both sides of the border of the wrap; or
    ///         both tables are the same object.
    ///     CapacityError: The table would exceed ``entries_max``.
    fn merge(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<PyTable> {
        let Ok(other) = other.cast::<StateTable>() else {
            let kind = other.get_type().fully_qualified_name()?;
            return Err(PyTypeError::new_err(format!("a table merges with a StateTable, not with a {kind}")));
        };
        let other = other.get();
        if std::ptr::eq(self, other) {
            return Err(Failure::Policy("a table cannot merge with itself".into()).raise(py));
        }
        let overlap = py.detach(|| {
            // Locks are taken in the order of addresses. Otherwise two threads that merge two tables into each other
            // could deadlock.
            let is_first = std::ptr::from_ref(self) < std::ptr::from_ref(other);
            let (mut ours, theirs) = if is_first {
                let ours = self.lock()?;
                (ours, other.lock()?)
            } else {
                let theirs = other.lock()?;
                (self.lock()?, theirs)
            };
            let overlap = ours.merge(&theirs)?;
            Ok(listed_batches(ours.keys(), has_epochs(&ours), overlap.into_iter()))
        });
        overlap.map_err(|failure: Failure| failure.raise(py)).and_then(table_of)
    }

    /// Return the table as bytes with a checksum. Equal tables have equal bytes.
    ///
    /// docs/snapshot-format.md describes the format. Later versions of fencepost can read it.
    ///
    /// ``as_base``: the next delta follows this snapshot.
    #[pyo3(signature = (*, as_base=false))]
    fn snapshot<'py>(&self, py: Python<'py>, as_base: bool) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = self.with(py, |table| {
            let mut bytes = Vec::new();
            let checksum = table.write_snapshot(&mut bytes).expect("a Vec takes every write");
            if as_base {
                table.begin_changes(checksum);
            }
            Ok(bytes)
        })?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Start to track changed entries, or stop with ``on=False``.
    ///
    /// ``save_delta`` and ``snapshot_delta`` need this. Tracking takes 2 to 4 bits per entry and 2 to 5 ns per span of
    /// rows.
    #[pyo3(signature = (on=true))]
    fn track_changes(&self, py: Python<'_>, on: bool) -> PyResult<()> {
        self.with(py, |table| {
            table.track_changes(on);
            Ok(())
        })
    }

    /// Return the changes since the last snapshot or delta, as bytes for ``restore(snapshot, deltas=...)``.
    ///
    /// The changes begin at the last ``save``, ``save_delta``, ``snapshot_delta``, ``snapshot(as_base=True)``, ``load``
    /// or ``restore``.
    ///
    /// Raises:
    ///     SnapshotError: Changes are not tracked, or there is no snapshot for the delta to follow.
    fn snapshot_delta<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = self.with(py, |table| {
            let mut bytes = Vec::new();
            let checksum = table.delta()?.write(&mut bytes).expect("a Vec takes every write");
            table.begin_changes(checksum);
            Ok(bytes)
        })?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Restore a table from a snapshot and the deltas that followed it.
    ///
    /// Args:
    ///     snapshot: The bytes that ``snapshot`` returned.
    ///     policy: The expected policy. Default: any.
    ///     deltas: The bytes that ``snapshot_delta`` returned, in their order.
    ///
    /// Raises:
    ///     SnapshotError: The bytes are damaged, do not follow each other, or have another policy.
    #[staticmethod]
    #[pyo3(signature = (snapshot, policy=None, *, deltas=vec![]), text_signature = "(snapshot, policy=None, *, deltas=())")]
    fn restore(
        py: Python<'_>,
        snapshot: &[u8],
        policy: Option<&Bound<'_, PyAny>>,
        deltas: Vec<PyBackedBytes>,
    ) -> PyResult<StateTable> {
        let core = py.detach(|| restore(snapshot, deltas.iter().map(|delta| &delta[..])));
        let core = core.map_err(|error| Failure::from(error).raise(py))?;
        StateTable::wrap(py, core)?.expect_policy(py, policy, None)
    }

    /// Write the snapshot to a file.
    ///
    /// A new file is written in the same folder, synced, and renamed. The old file is complete until then. After an
    /// error the file may be the old or the new one, so save again before the next delta.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.with(py, |table| {
            let saved = replace(&path, |file| table.write_snapshot(file));
            table.begin_changes(saved.map_err(|error| Failure::Io(error, path.display().to_string()))?);
            Ok(())
        })
    }

    /// Write the bytes of ``snapshot_delta`` to a file, in the way of ``save``. If that fails, the next delta contains
    /// these changes, too.
    fn save_delta(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.with(py, |table| {
            let delta = table.delta()?;
            let saved = replace(&path, |file| delta.write(file));
            table.begin_changes(saved.map_err(|error| Failure::Io(error, path.display().to_string()))?);
            Ok(())
        })
    }

    /// Read a table from a file of ``save`` and the files of deltas that followed it. See ``restore``.
    #[staticmethod]
    #[pyo3(signature = (path, policy=None, *, deltas=vec![]), text_signature = "(path, policy=None, *, deltas=())")]
    fn load(
        py: Python<'_>,
        path: PathBuf,
        policy: Option<&Bound<'_, PyAny>>,
        deltas: Vec<PathBuf>,
    ) -> PyResult<StateTable> {
        let core = py.detach(|| {
            let mut table = read_snapshot(&path, core::StateTable::read_snapshot)?;
            deltas.iter().try_for_each(|delta| load_delta(&mut table, delta))?;
            Ok(table)
        });
        let core = core.map_err(|failure: Failure| failure.raise(py))?;
        StateTable::wrap(py, core)?.expect_policy(py, policy, Some(&path))
    }

    /// Build a table from entries, as ``entries()`` returns them.
    ///
    /// Args:
    ///     rows: Tabular data with the columns of ``entries()``, read batch by batch.
    ///     policy: A preset name or a Policy. Default: the policy in the schema metadata.
    ///     keep: As for ``StateTable``. Default: as in the schema metadata, like all other options.
    ///     horizon_ms: The horizon (int64 ms). Default: as in the schema metadata.
    ///
    /// Raises:
    ///     BatchError: A value cannot be part of an entry (column, row).
    ///     SnapshotError: An entry contradicts itself, the policy or another entry (row), or the metadata has other
    ///         rules.
    ///     PolicyError: Neither the metadata nor ``policy`` gives a policy, or there is a horizon, but the table keeps
    ///         no timestamps.
    #[staticmethod]
    #[pyo3(signature = (rows, policy=None, *, keep=None, horizon_ms=None))]
    fn from_entries(
        py: Python<'_>,
        rows: &Bound<'_, PyAny>,
        policy: Option<&Bound<'_, PyAny>>,
        keep: Option<Vec<String>>,
        horizon_ms: Option<i64>,
    ) -> PyResult<StateTable> {
        let (schema, batches) = take_rows(rows, None)?.batches().map_err(|failure| failure.raise(py))?;
        let policies = py.import("fencepost.policy")?;
        let options = policies.call_method1("options_of", (schema.metadata().clone(), policy))?;
        let (policy, kept, entries_max, untracked, horizon): (Bound<'_, PyAny>, _, _, String, Option<i64>) =
            options.extract()?;
        let StateTable { core, policy, columns, keeps_timestamp } =
            StateTable::new(py, &policy, keep.unwrap_or(kept), entries_max, &untracked, None)?;
        let horizon_ms = horizon_ms.or(horizon);
        if let Some(horizon_ms) = horizon_ms.filter(|_| !keeps_timestamp) {
            let message = format!("horizon_ms={horizon_ms} needs timestamps: pass keep=('timestamp',)");
            return Err(Failure::Policy(message).raise(py));
        }
        let core = core.into_inner().expect("nobody else has it yet").with_horizon_ms(horizon_ms);
        let core = py.detach(|| insert_entries(core, &schema, batches)).map_err(|failure| failure.raise(py))?;
        Ok(StateTable { core: Mutex::new(core), policy, columns, keeps_timestamp })
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |table| Ok(table.len()))
    }

    /// Additional data that the table keeps: () or ("timestamp",).
    #[getter]
    fn keep<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.keeps_timestamp.then_some("timestamp"))
    }

    /// The table can no longer judge unknown rows at or below this timestamp (ms). None before the first eviction.
    #[getter]
    fn horizon_ms(&self, py: Python<'_>) -> PyResult<Option<i64>> {
        self.with(py, |table| Ok(table.horizon_ms()))
    }

    /// Number of sequence positions in all entries: from first to last, without the holes.
    ///
    /// Under admit="any" and without eviction, a call adds one per accepted row. This reads the whole table.
    #[getter]
    fn positions(&self, py: Python<'_>) -> PyResult<u128> {
        self.with(py, |table| Ok(table.positions()))
    }

    /// Bytes of memory that the table uses.
    #[getter]
    fn memory_bytes(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |table| Ok(table.memory_bytes()))
    }

    /// The policy of the table.
    #[getter]
    fn policy(&self, py: Python<'_>) -> Py<PyAny> {
        self.policy.clone_ref(py)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let name: Option<String> = self.policy.bind(py).getattr("name")?.extract()?;
        let (rules, entries, bytes) =
            self.with(py, |table| Ok((table.policy().to_string(), table.len(), table.memory_bytes())))?;
        Ok(format!("<StateTable {}: {entries} entries, {bytes} bytes>", name.unwrap_or(rules)))
    }
}

fn load_delta(table: &mut core::StateTable, path: &Path) -> Result<(), Failure> {
    let bytes = std::fs::read(path).map_err(|error| Failure::Io(error, path.display().to_string()))?;
    table.apply_delta(&bytes).map_err(|error| Failure::from(error).in_file(path))
}

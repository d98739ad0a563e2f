use crate::files::{read_snapshot, replace};
use crate::keys::KeyValue;
use crate::names::column_names;
use crate::raise::Raise;
use crate::rows::take_rows;
use crate::verdicts::Verdicts;
use arrow_array::BooleanArray;
use fencepost_columns::{
    Call, ColumnNames, Failure, Identity, apply_and_keep, entries_batches, has_epochs, insert_entries, judge_and_keep,
    keep, missing_batches, restore,
};
use fencepost_core::{self as core, KeyKind, Policy, Untracked};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use pyo3_arrow::{PyArray, PyTable};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

/// What is remembered of producers, and the rules by which their rows are judged.
///
/// ``policy``: a preset name or a Policy. ``keep``: what to keep beyond what the rules need: ("timestamp",) keeps
/// when each entry was last written and each hole opened, so that the table can forget by age; rows then need a
/// timestamp. ``entries_max``: a bound on the number of entries, above which
/// a call raises CapacityError and changes nothing. ``untracked``: "keep" gives rows without a producer
/// (pid null or -1) the verdict UNTRACKED, "fail" raises BatchError for them.
///
/// Usable from several threads, one call at a time; the interpreter is released meanwhile. Every call is
/// atomic: whatever it raises, the table is as it was, a PoisonedError aside.
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

    /// Does something with the core's table while other Python threads run.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut core::StateTable) -> Result<T, Failure> + Send,
    ) -> PyResult<T> {
        py.detach(|| work(&mut *self.lock()?)).map_err(|failure| failure.raise(py))
    }

    /// The types of pid and partition; none for an empty table, for they are known from the first entry on.
    fn key_kinds(&self, py: Python<'_>) -> PyResult<Option<(KeyKind, KeyKind)>> {
        self.with(py, |table| {
            let kinds = (table.keys().pid.kind().clone(), table.keys().partition.kind().clone());
            Ok((!table.is_empty()).then_some(kinds))
        })
    }

    /// A table around a core's, whose policy Python may not have seen yet.
    fn wrap(py: Python<'_>, core: core::StateTable) -> PyResult<StateTable> {
        let policies = py.import("fencepost.policy")?;
        let policy = policies.call_method1("from_label", (core.policy().to_string(), core.label()))?;
        let columns = column_names(&policy.getattr("columns")?)?;
        let keeps_timestamp = core.keeps_timestamp();
        Ok(StateTable { core: Mutex::new(core), policy: policy.unbind(), columns, keeps_timestamp })
    }

    /// Raises SnapshotError where a policy was expected and is not the one that was found.
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
        let failure = Failure::snapshot(format!("of another policy: {difference}"));
        let failure = if let Some(path) = path { failure.in_file(path) } else { failure };
        Err(failure.raise(py))
    }

    /// The columns to read: those given if they go with the policy, else the policy's.
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

    /// Judges rows with `call`. What it learns of keys is kept only if `keeps_keys` and nothing fails.
    fn judge(
        &self,
        py: Python<'_>,
        rows: &Bound<'_, PyAny>,
        names: ColumnNames,
        keeps_keys: bool,
        call: Call,
    ) -> PyResult<Verdicts> {
        let rows = take_rows(rows, Some(&names.all()))?;
        // Before the table is locked: a stream may be a Python generator that asks this table something.
        let identity = py.detach(|| Identity::read(&names, rows)).map_err(|failure| failure.raise(py))?;
        self.with(py, |table| judge_and_keep(table, &identity, &names, keeps_keys, call)).map(Verdicts)
    }
}

#[pymethods]
impl StateTable {
    #[new]
    #[pyo3(signature = (policy, *, keep=vec![], entries_max=None, untracked="keep"),
            text_signature = "(policy, *, keep=(), entries_max=None, untracked='keep')")]
    fn new(
        py: Python<'_>,
        policy: &Bound<'_, PyAny>,
        keep: Vec<String>,
        entries_max: Option<i64>,
        untracked: &str,
    ) -> PyResult<StateTable> {
        if let Some(unknown) = keep.iter().find(|&it| it != "timestamp") {
            let message =
                format!("keep=('{unknown}',): 'timestamp' is all that can be kept beyond what the rules need");
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
                let message = format!("untracked='{other}' is none of keep, fail");
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
            .with_label(label);
        let columns = column_names(&columns)?;
        Ok(StateTable { core: Mutex::new(core), policy: policy.unbind(), columns, keeps_timestamp })
    }

    /// Judges every row in order and advances the table.
    ///
    /// ``rows``: an object with ``__arrow_c_stream__`` or ``__arrow_c_array__`` (a stream is collected
    /// first, its identity columns only), or a mapping of column name to NumPy or Arrow array. Integers
    /// of any width; pid and partition also strings or binary. Tables that keep timestamps read one a row:
    /// integers, which are milliseconds, or Arrow timestamps of any unit, of which the millisecond that has begun
    /// counts. Arrays that may be written (NumPy's flag ``writeable``) are copied first; others must not change
    /// during the call. ``columns``: a Columns, or the name of a preset (``Columns.preset``), the policy's unless
    /// given. Gives the Verdicts, one a row.
    ///
    /// Raises BatchError naming column, row, value and allowed range; CapacityError; PolicyError for
    /// columns that do not go with the policy; TypeError for what is not tabular.
    #[pyo3(signature = (rows, columns=None))]
    fn apply(&self, py: Python<'_>, rows: &Bound<'_, PyAny>, columns: Option<&Bound<'_, PyAny>>) -> PyResult<Verdicts> {
        let names = self.columns_or(py, columns)?;
        self.judge(py, rows, names, true, |table, batches, _| table.apply(batches))
    }

    /// Whether each row is to be kept, as Arrow booleans: ``apply(rows, columns).kept``, without what else
    /// ``apply`` reports. ``is_last``: nobody uses the table afterwards, so an empty one need not learn what rows bring.
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

    /// Judges rows that were gathered into runs, as ``apply`` judges them one by one, and advances the table.
    ///
    /// ``rows``: as for ``apply``, a line a run: the identity of its first row; the others have the sequence numbers
    /// that follow, and the same timestamp where those are kept. ``lengths``: the column that says how many rows a
    /// run has (integers from 1 on). Gives the Verdicts, one a *row*: as many as the lengths add up to, a byte each.
    ///
    /// Raises as ``apply`` does; the rows that errors name are lines.
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

    /// The verdicts that ``apply`` would give, the table untouched.
    #[pyo3(signature = (rows, columns=None))]
    fn check(&self, py: Python<'_>, rows: &Bound<'_, PyAny>, columns: Option<&Bound<'_, PyAny>>) -> PyResult<Verdicts> {
        let names = self.columns_or(py, columns)?;
        self.judge(py, rows, names, false, |table, batches, _| table.check(batches))
    }

    /// The entry of a key as a dict: pid, partition (tuples where composite), epoch, first, last, holes (a
    /// list of dicts: first, last, timestamp), final_first, final_last, last_timestamp, as in ``entries()``.
    /// Of the given epoch, or of the key's highest. None if there is none.
    ///
    /// ``partition``: None where the table reads no partition column. Raises BatchError for a key that is not of
    /// the type of this table's keys.
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
            let numbers = pid_key.number(&table.keys().pid).zip(partition_key.number(&table.keys().partition));
            let entry = numbers.and_then(|(pid, partition)| table.get(pid, i32::try_from(partition).ok()?, epoch));
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
        found.set_item("pid", pid_key.as_told(pid)?)?;
        found.set_item("partition", partition_key.as_told(partition)?)?;
        found.set_item("epoch", has_epochs.then_some(entry.epoch))?;
        found.set_item("first", entry.first)?;
        found.set_item("last", entry.last)?;
        found.set_item("holes", holes)?;
        found.set_item("final_first", entry.final_range.map(|range| range.0))?;
        found.set_item("final_last", entry.final_range.map(|range| range.1))?;
        found.set_item("last_timestamp", entry.last_timestamp)?;
        Ok(Some(found))
    }

    /// Every entry as an Arrow table of several batches, in key order: the key columns (``pid``, ``partition``;
    /// composites ``pid_0``, ``pid_1`` ...), epoch (int16, null where there are none), first and last (int64
    /// positions; under admit="next" the oldest and newest row in the window, as sequences), holes (list of struct
    /// first, last, timestamp), final_first and final_last (int64 positions, null where nothing is final),
    /// last_timestamp. Timestamps are int64 ms, null unless kept. Policy, options and horizon are schema metadata.
    fn entries(&self, py: Python<'_>) -> PyResult<PyTable> {
        let batches = self.with(py, |table| Ok(entries_batches(table)))?;
        PyTable::try_new(batches.clone(), batches[0].schema())
    }

    /// Every hole still open as an Arrow table, in key order: the key columns, epoch (int16), first_seq,
    /// last_seq and count (int64). Empty where gaps="normal".
    fn missing(&self, py: Python<'_>) -> PyResult<PyTable> {
        let batches = self.with(py, |table| Ok(missing_batches(table.keys(), has_epochs(table), table.missing())))?;
        PyTable::try_new(batches.clone(), batches[0].schema())
    }

    /// Drops the entries whose last timestamp lies ``max_idle_ms`` or more before ``now_ms`` (int64 ms both) and
    /// gives how many they were. Raises the horizon to ``now_ms - max_idle_ms``, never lowers it: from then on a row
    /// at or below it is DUPLICATE where a known entry holds it and FORGOTTEN elsewhere. Holes opened at or below
    /// the horizon become final.
    ///
    /// Raises PolicyError where the table does not keep timestamps, or for a negative ``max_idle_ms``.
    fn evict(&self, py: Python<'_>, now_ms: i64, max_idle_ms: i64) -> PyResult<usize> {
        self.with(py, |table| {
            let dropped = table.evict(now_ms, max_idle_ms)?;
            table.drop_unused_keys();
            Ok(dropped)
        })
    }

    /// Drops what is remembered of a producer, or of one of its partitions, in all epochs, and gives how many
    /// entries that were: the remedy where its sequence began anew. The horizon stays.
    ///
    /// ``pid``, ``partition``: as for ``get``, tuples where composite; ``partition=None``: all of them. Raises
    /// BatchError for a key that is not of the type of this table's keys.
    #[pyo3(signature = (pid, partition=None))]
    fn forget(&self, py: Python<'_>, pid: &Bound<'_, PyAny>, partition: Option<&Bound<'_, PyAny>>) -> PyResult<usize> {
        let Some((pid_kind, partition_kind)) = self.key_kinds(py)? else { return Ok(0) };
        let pid = KeyValue::of(pid, &pid_kind, "pid").map_err(|it| it.raise(py))?;
        let partition = partition.map(|value| KeyValue::of(value, &partition_kind, "partition")).transpose();
        let partition = partition.map_err(|it| it.raise(py))?;
        self.with(py, |table| {
            let Some(pid) = pid.number(&table.keys().pid) else { return Ok(0) };
            let dropped = match partition.map(|key| key.number(&table.keys().partition)) {
                None => table.forget(pid, None),
                Some(number) => number.and_then(|it| it.try_into().ok()).map_or(0, |it| table.forget(pid, Some(it))),
            };
            table.drop_unused_keys();
            Ok(dropped)
        })
    }

    /// Takes in another table: what either had accepted is accepted, horizons and last timestamps become the later
    /// ones, final ranges their hull. The other table stays as it is.
    ///
    /// Gives the overlap, an Arrow table with the columns of ``missing()``: what both had accepted and neither holds
    /// final. Verdicts given before are right only where the tables had no rows in common: of the overlap, one copy
    /// each is one too many.
    ///
    /// Raises PolicyError, and changes nothing, where the tables are of different rules, do not keep the same or
    /// have keys of different types; where the policy is not of admit="any"; where a key of both holds positions on
    /// both sides of the border of the wrap; and for the table itself. Raises CapacityError where ``entries_max``
    /// would be passed.
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
            // Always in the same order: two threads that merge two tables into each other must not wait for ever.
            let is_first = std::ptr::from_ref(self) < std::ptr::from_ref(other);
            let (mut ours, theirs) = if is_first {
                let ours = self.lock()?;
                (ours, other.lock()?)
            } else {
                let theirs = other.lock()?;
                (self.lock()?, theirs)
            };
            let overlap = ours.merge(&theirs)?;
            Ok(missing_batches(ours.keys(), has_epochs(&ours), overlap.into_iter()))
        });
        let overlap = overlap.map_err(|failure: Failure| failure.raise(py))?;
        PyTable::try_new(overlap.clone(), overlap[0].schema())
    }

    /// The table as bytes, with a checksum. Equal tables give equal bytes. docs/snapshot-format.md describes
    /// them; later versions read them. ``as_base``: whether the next delta follows this one.
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

    /// Begins, or with ``on=False`` ends, to note which entries change, so that ``save_delta`` and
    /// ``snapshot_delta`` can tell. Takes 2 to 4 bits an entry and 2 to 5 ns for every run of rows.
    #[pyo3(signature = (on=true))]
    fn track_changes(&self, py: Python<'_>, on: bool) -> PyResult<()> {
        self.with(py, |table| {
            table.track_changes(on);
            Ok(())
        })
    }

    /// What has changed since the last ``save``, ``save_delta``, ``snapshot_delta`` or
    /// ``snapshot(as_base=True)``, or since ``load`` or ``restore``, as bytes: for ``restore(snapshot, deltas=...)``.
    ///
    /// Raises SnapshotError where changes are not tracked or there is no snapshot that a delta could follow.
    fn snapshot_delta<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = self.with(py, |table| {
            let mut bytes = Vec::new();
            let checksum = table.delta()?.write(&mut bytes).expect("a Vec takes every write");
            table.begin_changes(checksum);
            Ok(bytes)
        })?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// The table that a snapshot holds, and the deltas that followed it, in their order. ``policy``: what it
    /// must be; another one is a SnapshotError.
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

    /// Writes the snapshot to a file: beside it first, synced, then put in its place, so that the old
    /// file stays whole until the new one is.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.with(py, |table| {
            let saved = replace(&path, |file| table.write_snapshot(file));
            table.begin_changes(saved.map_err(|error| Failure::Io(error, path.display().to_string()))?);
            Ok(())
        })
    }

    /// Writes what ``snapshot_delta`` gives to a file, as ``save`` does. Where that fails, the next delta
    /// holds it.
    fn save_delta(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.with(py, |table| {
            let delta = table.delta()?;
            let saved = replace(&path, |file| delta.write(file));
            table.begin_changes(saved.map_err(|error| Failure::Io(error, path.display().to_string()))?);
            Ok(())
        })
    }

    /// The table that a file holds, and files of deltas, see ``restore``.
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

    /// A table with the entries that ``entries()`` gave, or that were made like them: ``rows`` is anything tabular
    /// and is read batch by batch. What is not given comes from the schema metadata, if there is any: ``policy``;
    /// ``keep``, the options, and ``horizon_ms`` (int64 ms).
    ///
    /// Raises BatchError naming column and row for what is no entry; SnapshotError naming the row where an entry
    /// contradicts itself, the policy or another entry, and where the metadata names other rules; PolicyError
    /// where neither the metadata nor ``policy`` names a policy.
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
            StateTable::new(py, &policy, keep.unwrap_or(kept), entries_max, &untracked)?;
        let core = core.into_inner().expect("nobody else has it yet").with_horizon_ms(horizon_ms.or(horizon));
        let core = py.detach(|| insert_entries(core, &schema, batches)).map_err(|failure| failure.raise(py))?;
        Ok(StateTable { core: Mutex::new(core), policy, columns, keeps_timestamp })
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |table| Ok(table.len()))
    }

    /// What is kept beyond what the rules need: () or ("timestamp",).
    #[getter]
    fn keep<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.keeps_timestamp.then_some("timestamp"))
    }

    /// Rows at or below this timestamp (ms) are too old for what is still remembered; None before the first
    /// eviction.
    #[getter]
    fn horizon_ms(&self, py: Python<'_>) -> PyResult<Option<i64>> {
        self.with(py, |table| Ok(table.horizon_ms()))
    }

    /// How many sequence positions its entries hold: from first to last of each, less its holes. Under admit="any",
    /// where nothing is forgotten, a call adds as many as it accepts rows. Takes a pass over the table.
    #[getter]
    fn positions(&self, py: Python<'_>) -> PyResult<u128> {
        self.with(py, |table| Ok(table.positions()))
    }

    /// Bytes held by the table.
    #[getter]
    fn memory_bytes(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |table| Ok(table.memory_bytes()))
    }

    /// The rules by which it judges.
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

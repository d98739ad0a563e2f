//! The extension module `fencepost._native`. It takes rows from Python, releases the interpreter, calls
//! `fencepost_columns`, and returns Arrow data.

mod broker;
mod files;
mod kafka;
mod keys;
mod names;
mod objects;
mod parquet;
mod partition_log;
mod raise;
mod rows;
mod scan;
mod table;
mod transactions;
mod verdicts;

use crate::names::column_names;
use crate::raise::Raise;
use crate::rows::{FilteredRows, take_rows};
use arrow_array::cast::AsArray;
use fencepost_columns::{Failure, Identity, shard_of_rows};
use fencepost_core::{PRESETS, Policy};
use pyo3::prelude::*;
use pyo3_arrow::input::AnyArray;
use pyo3_arrow::{PyArray, PyTable};

/// Rewriting a Parquet file allocates and frees a buffer of about 1 MB per page. The system's allocator returns each
/// buffer to the system, so two fifths of the time would be spent in page faults.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[pymodule(gil_used = false)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<table::StateTable>()?;
    module.add_class::<broker::BrokerTable>()?;
    module.add_class::<verdicts::Verdicts>()?;
    module.add_class::<FilteredRows>()?;
    module.add_function(wrap_pyfunction!(presets, module)?)?;
    module.add_function(wrap_pyfunction!(validate_policy, module)?)?;
    module.add_function(wrap_pyfunction!(shards, module)?)?;
    module.add_function(wrap_pyfunction!(collect, module)?)?;
    module.add_function(wrap_pyfunction!(filter_rows, module)?)?;
    module.add_class::<transactions::TransactionIndex>()?;
    module.add_class::<scan::SpanScan>()?;
    module.add_class::<parquet::Rewritten>()?;
    module.add_class::<parquet::Arranged>()?;
    module.add_class::<parquet::ParquetFooter>()?;
    module.add_function(wrap_pyfunction!(parquet::rewrite, module)?)?;
    module.add_function(wrap_pyfunction!(parquet::arrange, module)?)?;
    module.add_function(wrap_pyfunction!(parquet::parquet_footer, module)?)?;
    module.add_class::<kafka::KafkaStream>()?;
    module.add_class::<partition_log::PartitionLog>()?;
    module.add_function(wrap_pyfunction!(kafka::kafka_batches, module)?)?;
    module.add_function(wrap_pyfunction!(kafka::kafka_records, module)?)?;
    module.add_function(wrap_pyfunction!(kafka::kafka_snapshot, module)?)?;
    module.add_function(wrap_pyfunction!(kafka::kafka_aborted, module)?)?;
    Ok(())
}

/// The name of a preset, its rules as text, and its default columns for pid, epoch, partition and seq.
type PresetFields = (&'static str, String, &'static str, Option<&'static str>, &'static str, &'static str);

/// Return (name, rules, pid column, epoch column or None, partition column, seq column) of each preset.
#[pyfunction]
fn presets() -> Vec<PresetFields> {
    PRESETS.iter().map(|it| (it.name, it.policy.to_string(), it.pid, it.epoch, it.partition, it.seq)).collect()
}

/// Raise PolicyError if the rules are invalid.
#[pyfunction]
fn validate_policy(py: Python<'_>, rules: &str) -> PyResult<()> {
    rules.parse::<Policy>().map(drop).map_err(|error| Failure::from(error).raise(py))
}

/// Return the shard of each row.
///
/// The hash of a row's key (pid and partition) chooses the shard. The result is the same on every machine. If
/// partitions are one integer column, 24 neighbouring partitions of a pid share a shard.
///
/// Args:
///     rows: Tabular data, as for ``StateTable.apply``.
///     count: Number of shards, at least 1.
///     columns: A Columns or the name of a preset. Only pid and partition are read. Default: "pid" and "partition".
///
/// Returns:
///     Arrow uint32 array with one value below ``count`` per row. Null for untracked rows, which have no key.
///
/// Raises:
///     BatchError: A value that a key cannot have.
#[pyfunction]
#[pyo3(signature = (rows, count, columns=None))]
fn shards(
    py: Python<'_>,
    rows: &Bound<'_, PyAny>,
    count: u32,
    columns: Option<&Bound<'_, PyAny>>,
) -> PyResult<PyArray> {
    if count == 0 {
        return Err(pyo3::exceptions::PyValueError::new_err("count=0: at least one shard is needed"));
    }
    let columns = py.import("fencepost.policy")?.call_method1("columns_or_default", (columns,))?;
    let names = column_names(&columns)?;
    let rows = take_rows(rows, Some(&names.keys()))?;
    let of_row = py.detach(|| shard_of_rows(&Identity::read_keys(&names, rows, 0)?, &names, count));
    of_row.map(PyArray::from_array_ref).map_err(|failure: Failure| failure.raise(py))
}

/// Read tabular data into an Arrow table, which can be read more than once.
#[pyfunction]
fn collect(py: Python<'_>, rows: &Bound<'_, PyAny>) -> PyResult<PyTable> {
    let rows = take_rows(rows, None)?;
    let (schema, batches) = py.detach(|| rows.collect()).map_err(|failure| failure.raise(py))?;
    PyTable::try_new(batches, schema)
}

/// Return the rows of a table for which the mask is true.
#[pyfunction]
fn filter_rows(py: Python<'_>, table: PyTable, mask: AnyArray) -> PyResult<FilteredRows> {
    let mask = mask.into_chunked_array()?;
    let (batches, schema) = table.into_inner();
    let kept = py.detach(|| {
        let chunks: Vec<_> = mask.chunks().iter().map(|chunk| chunk.as_ref()).collect();
        let mask = arrow_select::concat::concat(&chunks)?;
        let mask = mask.as_boolean();
        let mut from = 0;
        batches
            .iter()
            .map(|batch| {
                from += batch.num_rows();
                arrow_select::filter::filter_record_batch(batch, &mask.slice(from - batch.num_rows(), batch.num_rows()))
            })
            .collect::<Result<Vec<_>, _>>()
    });
    let kept = kept.map_err(|error| Failure::from(error).raise(py))?;
    FilteredRows::new(py, kept, schema)
}

//! The extension module `fencepost._native`: Arrow in, interpreter released, core called, Arrow out.
//!
//! As a library it has what needs no interpreter: [`library`].

mod arrow_out;
mod batches;
mod broker;
mod failure;
mod files;
mod identity;
mod kafka;
mod kafka_columns;
mod keys;
pub mod library;
mod log_rows;
mod objects;
mod parquet;
mod partition_log;
mod rows;
mod scan;
mod table;
mod transactions;
mod verdicts;

use crate::failure::Failure;
use crate::identity::{Chunk, ColumnNames, Identity, Parts};
use arrow_array::ArrayRef;
use arrow_array::builder::{ArrayBuilder, UInt32Builder};
use arrow_array::cast::AsArray;
use arrow_buffer::ArrowNativeType;
use fencepost_core::{Column, KeyRef, PRESETS, Policy, shard_hash};
use pyo3::prelude::*;
use pyo3_arrow::input::AnyArray;
use pyo3_arrow::{PyArray, PyTable};
use std::sync::Arc;

/// Pages of Parquet files are buffers of a megabyte that come and go. The system's allocator gives each back to the
/// system, and rewriting a file then spends two fifths of its time in page faults.
#[cfg(feature = "allocator")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[pymodule(gil_used = false)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<table::StateTable>()?;
    module.add_class::<broker::BrokerTable>()?;
    module.add_class::<verdicts::Verdicts>()?;
    module.add_function(wrap_pyfunction!(presets, module)?)?;
    module.add_function(wrap_pyfunction!(validate_policy, module)?)?;
    module.add_function(wrap_pyfunction!(shards, module)?)?;
    module.add_function(wrap_pyfunction!(collect, module)?)?;
    module.add_function(wrap_pyfunction!(filter_rows, module)?)?;
    module.add_class::<transactions::TransactionIndex>()?;
    module.add_class::<scan::RunScan>()?;
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

/// For each preset: its name, its rules as text, and its default columns for pid, epoch, partition, seq.
type PresetFields = (&'static str, String, &'static str, Option<&'static str>, &'static str, &'static str);

#[pyfunction]
fn presets() -> Vec<PresetFields> {
    PRESETS.iter().map(|it| (it.name, it.policy.to_string(), it.pid, it.epoch, it.partition, it.seq)).collect()
}

/// Raises PolicyError unless the rules make sense.
#[pyfunction]
fn validate_policy(py: Python<'_>, rules: &str) -> PyResult<()> {
    rules.parse::<Policy>().map(drop).map_err(|error| Failure::from(error).raise(py))
}

/// The shard of each row, chosen by the hash of its key: the same on every machine. Rows of a key (pid and partition)
/// share a shard, and so do those of neighbouring partitions of a pid where partitions are one integer, 24 to a block.
///
/// ``rows``: anything tabular, as for ``StateTable.apply``; ``count``: how many shards there are, at
/// least 1; ``columns``: a Columns or the name of a preset, of which pid and partition are read, ("pid", "partition") unless given.
/// Gives an Arrow uint32 array, one value below ``count`` a row; null for untracked rows, which have no key.
/// Raises BatchError for values that no key can hold.
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
    let names = ColumnNames::of(&columns)?;
    let rows = rows::Rows::take(rows, Some(&names.keys()))?;
    let of_row = py.detach(|| shard_of_rows(&Identity::read_keys(&names, rows, 0)?, &names, count));
    of_row.map(PyArray::from_array_ref).map_err(|failure: Failure| failure.raise(py))
}

/// Neighbours often share a key, and then it is hashed once.
fn shard_of_rows(keys: &Identity, names: &ColumnNames, count: u32) -> Result<ArrayRef, Failure> {
    let mut of_row = UInt32Builder::new();
    let (mut pids, mut partitions) = (Vec::new(), Vec::new());
    for Chunk { rows, pid, partition, .. } in keys.chunks() {
        let mut before: Option<(usize, u32)> = None;
        for row in 0..*rows {
            if pid.is_untracked(row) {
                of_row.append_null();
                continue;
            }
            let shard = match before {
                Some((same, shard)) if pid.is_same(same, row) && partition.is_same(same, row) => shard,
                _ => {
                    let pid = key_ref(pid, row, &mut pids);
                    let partition = key_ref(partition, row, &mut partitions);
                    let fail = |role, problem| Failure::batch(&names.of_role(role), Some(of_row.len()), problem);
                    check_plain(pid, i64::MAX).map_err(|problem| fail(Column::Pid, problem))?;
                    check_plain(partition, i32::MAX.into()).map_err(|problem| fail(Column::Partition, problem))?;
                    shard_of(pid, partition, count)
                }
            };
            before = Some((row, shard));
            of_row.append_value(shard);
        }
    }
    Ok(Arc::new(of_row.finish()))
}

/// The shard of a key.
fn shard_of(pid: KeyRef<'_>, partition: KeyRef<'_>, count: u32) -> u32 {
    ((u128::from(shard_hash(pid, partition)) * u128::from(count)) >> 64) as u32
}

/// What is wrong with a plain key. Encoded ones were checked when they were read.
fn check_plain(key: KeyRef<'_>, value_max: i64) -> Result<(), String> {
    match key {
        KeyRef::Plain(value @ ..0) => Err(format!("value {value} is outside 0..={value_max}")),
        _ => Ok(()),
    }
}

fn key_ref<'a, T: ArrowNativeType + Into<i64>>(parts: &Parts<T>, row: usize, bytes: &'a mut Vec<u8>) -> KeyRef<'a> {
    match parts {
        Parts::Plain(values) => KeyRef::Plain(values[row].into()),
        Parts::Several(parts) => {
            bytes.clear();
            parts.iter().for_each(|part| part.encode(row, bytes));
            KeyRef::Encoded(bytes)
        }
    }
}

/// Anything tabular as an Arrow table that can be read more than once.
#[pyfunction]
fn collect(py: Python<'_>, rows: &Bound<'_, PyAny>) -> PyResult<PyTable> {
    let rows = rows::Rows::take(rows, None)?;
    let (schema, batches) = py.detach(|| rows.collect()).map_err(|failure| failure.raise(py))?;
    PyTable::try_new(batches, schema)
}

/// The rows of a table where the mask is true.
#[pyfunction]
fn filter_rows(py: Python<'_>, table: PyTable, mask: AnyArray) -> PyResult<PyTable> {
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
    PyTable::try_new(kept, schema)
}

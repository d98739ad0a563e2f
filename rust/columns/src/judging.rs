//! Calls a state table with Arrow data.

use crate::arrow_out::{bytes_of_key, entries_batch, entries_of, has_epochs, in_batches, key_names};
use crate::failure::Failure;
use crate::identity::{ColumnNames, Identity};
use crate::rows::{Batches, Rows};
use crate::verdicts::{Verdicts, bits};
use arrow_array::RecordBatch;
use arrow_buffer::BooleanBuffer;
use arrow_schema::SchemaRef;
use fencepost_core::{self as core, Entry, Untracked};
use std::collections::HashMap;

/// Judges rows with `call`. New keys stay in the table only if `keeps_keys` is true and nothing fails.
pub fn judge_and_keep(
    table: &mut core::StateTable,
    identity: &Identity,
    names: &ColumnNames,
    keeps_keys: bool,
    call: Call,
) -> Result<Verdicts, Failure> {
    let before = table.keys().mark();
    let judged = judge_identity(table, identity, call).map_err(|error| Failure::of_core(error, names));
    let verdicts = judged.map(|judged| Verdicts::new(judged, table));
    // If no row was accepted, no key is used, and the next call may have keys of other types.
    if verdicts.is_err() || !keeps_keys || table.is_empty() {
        table.keys_mut().go_back(before);
    }
    verdicts
}

/// Returns which rows to keep, and updates the table.
pub fn apply_and_keep(
    table: &mut core::StateTable,
    identity: &Identity,
    names: &ColumnNames,
) -> Result<BooleanBuffer, Failure> {
    let verdicts =
        judge_and_keep(table, identity, names, true, |table, batches, _| table.apply_without_missing(batches))?;
    Ok(verdicts.kept_bits())
}

/// Like `apply_and_keep`, for an empty table that is not used afterwards. Its content depends on how the rows are
/// judged.
pub fn keep(table: &mut core::StateTable, identity: &Identity, names: &ColumnNames) -> Result<BooleanBuffer, Failure> {
    let found = fix_keys(table, identity)
        .and_then(|()| table.find_repeats(&identity.keyed(), identity.has_plain_keys()))
        .map_err(|error| Failure::of_core(error, names))?;
    let Some(mut found) = found else {
        return apply_and_keep(table, identity, names);
    };
    let others = std::mem::take(&mut found.others);
    if !others.is_empty() {
        let kept = apply_and_keep(table, &identity.take(&others)?, names)?;
        others.iter().zip(&kept).filter(|&(_, is_kept)| !is_kept).for_each(|(&row, _)| found.drop_row(row));
    }
    Ok(bits(found.kept, identity.rows()))
}

/// The type of functions that judge batches. They receive lengths if rows are grouped into spans.
pub type Call = fn(&mut core::StateTable, &[core::Batch<'_>], &[&[u32]]) -> core::Result<core::Judged>;

/// Sets the key types of an empty table to those of the first rows.
fn fix_keys(table: &mut core::StateTable, identity: &Identity) -> core::Result<()> {
    identity.key_kinds().map_or(Ok(()), |(pid, partition)| table.keys_mut().fix(pid, partition))
}

fn judge_identity(table: &mut core::StateTable, identity: &Identity, call: Call) -> core::Result<core::Judged> {
    fix_keys(table, identity)?;
    let chunks = identity.number(table.keys_mut())?;
    let batches: Vec<_> = chunks.iter().map(|chunk| chunk.batch()).collect();
    let lengths: Vec<_> = chunks.iter().map(|chunk| chunk.lengths()).collect();
    call(table, &batches, &lengths)
}

/// Reads a table from a snapshot and the deltas that followed it.
pub fn restore<'a>(snapshot: &[u8], deltas: impl Iterator<Item = &'a [u8]>) -> core::Result<core::StateTable> {
    let mut table = core::StateTable::restore(snapshot)?;
    for delta in deltas {
        table.apply_delta(delta)?;
    }
    Ok(table)
}

/// The result of `entries`.
pub fn entries_batches(table: &core::StateTable) -> Vec<RecordBatch> {
    let mut metadata = HashMap::from([
        ("fencepost.policy".to_string(), table.policy().to_string()),
        ("fencepost.columns".to_string(), table.label().to_string()),
        ("fencepost.options".to_string(), options_json(table)),
    ]);
    if let Some(horizon_ms) = table.horizon_ms() {
        metadata.insert("fencepost.horizon".into(), horizon_ms.to_string());
    }
    let keys = table.keys();
    let weight = |it: &Entry| bytes_of_key(keys, it.pid, it.partition).saturating_add(it.holes.len());
    in_batches(table.entries(), weight, |some| entries_batch(table, some, metadata.clone()))
}

fn options_json(table: &core::StateTable) -> String {
    let keep = if table.keeps_timestamp() { r#"["timestamp"]"# } else { "[]" };
    let entries_max = table.entries_max().map_or("null".to_string(), |entries| entries.to_string());
    let untracked = if table.untracked() == Untracked::Keep { "keep" } else { "fail" };
    format!(r#"{{"keep": {keep}, "entries_max": {entries_max}, "untracked": "{untracked}"}}"#)
}

/// Inserts entries from batches into an empty table.
pub fn insert_entries(
    mut table: core::StateTable,
    schema: &SchemaRef,
    batches: Batches,
) -> Result<core::StateTable, Failure> {
    let names = ColumnNames {
        length: None,
        pid: key_names(schema, "pid")?,
        partition: key_names(schema, "partition")?,
        epoch: None,
        seq: "first".into(),
        timestamp: None,
    };
    let has_epochs = has_epochs(&table);
    let mut rows_before = 0;
    for batch in batches {
        let batch = batch?;
        let rows = batch.num_rows();
        let entries = entries_of(&batch, has_epochs, rows_before)?;
        let keys = Identity::read_keys(&names, Rows::of_batch(batch), rows_before)?;
        if let Some((pid, partition)) = keys.key_kinds().filter(|_| rows > 0) {
            table.keys_mut().fix(pid, partition).map_err(|error| Failure::of_core(error, &names))?;
        }
        let numbered = keys.number(table.keys_mut())?;
        let numbers = numbered.iter().flat_map(|chunk| chunk.keys());
        for (row, (entry, (pid, partition))) in entries.into_iter().zip(numbers).enumerate() {
            let inserted = table.insert(&Entry { pid, partition, ..entry });
            inserted.map_err(|error| Failure::from(error).in_row(rows_before + row))?;
        }
        rows_before += rows;
    }
    Ok(table)
}

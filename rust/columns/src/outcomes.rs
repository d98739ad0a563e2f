//! Converts outcomes of transactions to Arrow.

use crate::arrow_out::{batch, in_batches, ints, key_columns, optional_ints};
use crate::failure::Failure;
use crate::log_rows::{LogChunk, NO_PARTITION};
use arrow_array::{ArrayRef, Int16Array, Int32Array, RecordBatch, StringArray};
use arrow_buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, Field, Schema};
use fencepost_core::{self as core, KeyKind, Keys, Outcome, Resolved};
use std::collections::HashMap;
use std::sync::Arc;

/// Follows the rows of a log in order.
pub fn follow(index: &mut core::TransactionIndex, chunks: &[LogChunk]) -> core::Result<core::Outcomes> {
    if let Some(first) = chunks.first() {
        index.keys_mut().fix(KeyKind::Plain, first.key_kind())?;
    }
    let partitions = chunks.iter().map(|chunk| chunk.number(index.keys_mut())).collect::<core::Result<Vec<_>>>()?;
    let rows: Vec<_> = chunks.iter().zip(&partitions).map(|(chunk, partition)| chunk.rows(partition)).collect();
    index.apply(&rows)
}

/// Number of rows of a batch of outcomes: Arrow's strings have 32-bit offsets.
const BATCH_ROWS: usize = 1 << 20;

/// Length of the longest name of an outcome, and number of bytes that are copied for each.
const NAME_BYTES_MAX: usize = 9;
const COPIED_BYTES: usize = 16;

/// Returns at least one batch, which can be empty.
pub fn outcome_batches(codes: &[u8]) -> Result<Vec<RecordBatch>, Failure> {
    let schema = Arc::new(Schema::new(vec![Field::new("outcome", DataType::Utf8, false)]));
    let batch = |codes| Ok(RecordBatch::try_new(schema.clone(), vec![Arc::new(outcome_names(codes)) as ArrayRef])?);
    if codes.is_empty() {
        return Ok(vec![batch(&[])?]);
    }
    codes.chunks(BATCH_ROWS).map(batch).collect()
}

/// Builds the names. All are copied with the same length: a copy of known length needs no function call.
fn outcome_names(codes: &[u8]) -> StringArray {
    let names = Outcome::ALL.map(|outcome| {
        let mut padded = [0; COPIED_BYTES];
        padded[..outcome.name().len()].copy_from_slice(outcome.name().as_bytes());
        (padded, outcome.name().len())
    });
    let mut bytes = vec![0; codes.len() * NAME_BYTES_MAX + COPIED_BYTES];
    let mut ends = Vec::with_capacity(codes.len() + 1);
    let mut end = 0;
    ends.push(0);
    for &code in codes {
        let (padded, length) = &names[usize::from(code)];
        bytes[end..end + COPIED_BYTES].copy_from_slice(padded);
        end += length;
        ends.push(end as i32);
    }
    bytes.truncate(end);
    StringArray::new(OffsetBuffer::new(ScalarBuffer::from(ends)), Buffer::from_vec(bytes), None)
}

/// The column or columns of a partition; null for rows without one.
fn partition_columns(keys: &Keys, numbers: impl Iterator<Item = i32>) -> Vec<(Field, ArrayRef)> {
    match keys.partition.kind() {
        KeyKind::Plain => {
            let values: Int32Array = numbers.map(|number| (number != NO_PARTITION).then_some(number)).collect();
            vec![(Field::new("partition", DataType::Int32, true), Arc::new(values))]
        }
        KeyKind::Parts(_) => {
            let numbers: Vec<_> = numbers.map(i64::from).collect();
            key_columns("partition", &keys.partition, DataType::Int32, &numbers)
        }
    }
}

/// Transactions that were decided: partition, pid, first and last offset, outcome.
pub fn resolved_batches(index: &core::TransactionIndex, resolved: &[Resolved]) -> Vec<RecordBatch> {
    let key_bytes = |it: &Resolved| index.keys().partition.bytes_of(it.partition.into());
    in_batches(resolved.iter().copied(), key_bytes, |some| resolved_batch(index, some))
}

fn resolved_batch(index: &core::TransactionIndex, resolved: &[Resolved]) -> RecordBatch {
    let mut columns = partition_columns(index.keys(), resolved.iter().map(|it| it.partition));
    columns.push(ints("pid", resolved.iter().map(|it| it.pid)));
    columns.push(ints("first_offset", resolved.iter().map(|it| it.first_offset)));
    columns.push(ints("last_offset", resolved.iter().map(|it| it.last_offset)));
    let outcomes = StringArray::from_iter_values(resolved.iter().map(|it| it.outcome.name()));
    columns.push((Field::new("outcome", DataType::Utf8, false), Arc::new(outcomes)));
    batch(columns, HashMap::new())
}

/// Transactions without a marker: partition, pid, epoch, first and last offset, last timestamp.
pub fn open_batches(index: &core::TransactionIndex) -> Vec<RecordBatch> {
    let key_bytes = |it: &core::OpenTransaction| index.keys().partition.bytes_of(it.partition.into());
    in_batches(index.open(), key_bytes, |some| open_batch(index, some))
}

fn open_batch(index: &core::TransactionIndex, open: &[core::OpenTransaction]) -> RecordBatch {
    let mut columns = partition_columns(index.keys(), open.iter().map(|it| it.partition));
    columns.push(ints("pid", open.iter().map(|it| it.pid)));
    let epochs = Int16Array::from_iter_values(open.iter().map(|it| it.epoch));
    columns.push((Field::new("epoch", DataType::Int16, false), Arc::new(epochs)));
    columns.push(ints("first_offset", open.iter().map(|it| it.first_offset)));
    columns.push(ints("last_offset", open.iter().map(|it| it.last_offset)));
    columns.push(optional_ints("last_timestamp", open.iter().map(|it| it.last_timestamp)));
    batch(columns, HashMap::new())
}

/// Aborted transactions of a partition: pid, first and last offset, last stable offset.
pub fn aborted_batch(aborted: &[core::AbortedTransaction]) -> RecordBatch {
    let columns = vec![
        ints("pid", aborted.iter().map(|it| it.pid)),
        ints("first_offset", aborted.iter().map(|it| it.first_offset)),
        ints("last_offset", aborted.iter().map(|it| it.last_offset)),
        ints("last_stable_offset", aborted.iter().map(|it| it.last_stable_offset)),
    ];
    batch(columns, HashMap::new())
}

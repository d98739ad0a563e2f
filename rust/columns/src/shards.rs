//! The shard of each key, by its hash: the same on every machine.

use crate::failure::Failure;
use crate::identity::{Chunk, ColumnNames, Identity, Parts};
use arrow_array::ArrayRef;
use arrow_array::builder::{ArrayBuilder, UInt32Builder};
use arrow_buffer::ArrowNativeType;
use fencepost_core::{Column, KeyRef, shard_hash};
use std::sync::Arc;

/// The shard of each row; null if the row is untracked. Adjacent rows often share a key, which is then hashed once.
pub fn shard_of_rows(keys: &Identity, names: &ColumnNames, count: u32) -> Result<ArrayRef, Failure> {
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
pub(crate) fn shard_of(pid: KeyRef<'_>, partition: KeyRef<'_>, count: u32) -> u32 {
    ((u128::from(shard_hash(pid, partition)) * u128::from(count)) >> 64) as u32
}

/// Checks a plain key. Encoded keys were checked when they were read.
fn check_plain(key: KeyRef<'_>, value_max: i64) -> Result<(), String> {
    match key {
        KeyRef::Plain(value @ ..0) => Err(format!("value {value} is outside 0..={value_max}")),
        _ => Ok(()),
    }
}

pub(crate) fn key_ref<'a, T: ArrowNativeType + Into<i64>>(
    parts: &Parts<T>,
    row: usize,
    bytes: &'a mut Vec<u8>,
) -> KeyRef<'a> {
    match parts {
        Parts::Plain(values) => KeyRef::Plain(values[row].into()),
        Parts::Several(parts) => {
            bytes.clear();
            parts.iter().for_each(|part| part.encode(row, bytes));
            KeyRef::Encoded(bytes)
        }
    }
}

use crate::memory::bounded;
use arrow_array::RecordBatch;
use fencepost_columns::{Failure, entries_batches, insert_entries, missing_batches};
use fencepost_core::StateTable;

/// What a call may hold whatever the bytes are, and for each of them.
const BYTES_FREE: usize = 1 << 20;
const BYTES_PER_BYTE: usize = 1 << 10;
const MAGIC: &[u8] = b"FPSTATE\0";

/// Any bytes as a snapshot and perhaps a delta behind it, as they are and with right checksums: refused, or restored,
/// and then its missing ranges and entries can be given, and make the same table.
pub fn restore(bytes: &[u8]) {
    check(bytes);
    check(&crate::seal(bytes));
}

fn check(bytes: &[u8]) {
    let limit = BYTES_FREE + BYTES_PER_BYTE * bytes.len();
    let delta = bytes.windows(MAGIC.len()).skip(1).position(|it| it == MAGIC).map_or(bytes.len(), |at| at + 1);
    let (snapshot, delta) = bytes.split_at(delta);
    let deltas = if delta.is_empty() { &[][..] } else { &[delta][..] };
    let Ok(table) = bounded(limit, || fencepost_columns::restore(snapshot, deltas.iter().copied())) else { return };
    // Each range and entry names its key in full.
    let keys = &table.keys();
    let key_bytes = |pid: i64, partition: i32| 64 + keys.pid.bytes_of(pid) + keys.partition.bytes_of(partition.into());
    let named: usize = table.missing().iter().map(|it| key_bytes(it.pid, it.partition)).sum();
    let missing = bounded(limit + 8 * named, || missing_batches(&table));
    assert_eq!(missing.iter().map(|batch| batch.num_rows()).sum::<usize>(), table.missing().len());
    let named: usize = table.entries().map(|it| 64 * (1 + it.holes.len()) + key_bytes(it.pid, it.partition)).sum();
    let entries = bounded(limit + 8 * named, || entries_batches(&table));
    let empty = StateTable::new(table.policy()).expect("a policy that a table has");
    let empty = empty
        .with_untracked(table.untracked())
        .with_entries_max(table.entries_max())
        .with_keep_timestamp(table.keeps_timestamp())
        .with_label(table.label().into())
        .with_horizon_ms(table.horizon_ms());
    let again = bounded(2 * limit + 32 * named, || insert(empty, entries.clone()));
    match again {
        // Without an entry, nothing says what the parts of keys are.
        Ok(again) => assert!(table.is_empty() || entries_batches(&again) == entries, "entries do not come back"),
        // Snapshots take integers as parts of keys that rows may not have, and without a key any width of one.
        Err(refused) => {
            let text = format!("{refused:?}");
            let is_wide = table.is_empty() && text.contains("a part of a key has at most");
            assert!(is_wide || text.contains("is outside 0..="), "its own entries: {text}");
        }
    }
}

/// As `StateTable.from_entries`: puts entries into an empty table.
pub(super) fn insert(table: StateTable, entries: Vec<RecordBatch>) -> Result<StateTable, Failure> {
    let schema = entries[0].schema();
    insert_entries(table, &schema, Box::new(entries.into_iter().map(Ok)))
}

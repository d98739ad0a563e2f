use crate::memory::peak_of;
use crate::seal;
use fencepost_core::BrokerTable;

/// What decoding may hold beside what the bytes justify: an empty table and buffers of one frame.
const BYTES_FREE: usize = 1 << 20;
/// An entry of a few bytes becomes a line, a window and a place aside.
const BYTES_PER_BYTE: usize = 1024;

/// Any bytes as the snapshot of a table of produce batches: refused or decoded, without a panic and without much
/// memory. What was decoded is encoded to bytes that are stable, and it judges. The same bytes with checksums that are
/// right come behind the checksum.
pub fn broker(bytes: &[u8]) {
    decode(bytes);
    decode(&seal(bytes));
}

fn decode(bytes: &[u8]) {
    let (table, peak) = peak_of(|| BrokerTable::restore(bytes));
    let allowed = BYTES_FREE + BYTES_PER_BYTE * bytes.len();
    assert!(peak <= allowed, "{} bytes made decoding hold {peak}, at most {allowed} are allowed", bytes.len());
    let Ok(mut table) = table else { return };
    let encoded = table.snapshot();
    let again = BrokerTable::restore(&encoded).expect("its own snapshot");
    assert!(again.entries().eq(table.entries()), "an entry was lost or changed");
    assert!(again.snapshot() == encoded, "equal tables, other bytes");
    let entries = table.len();
    table.restart(i64::MAX);
    assert!(table.len() <= entries);
    assert!(table.entries().all(|entry| entry.batches.len() <= 1), "a restart leaves the last batch");
}

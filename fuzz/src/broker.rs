use crate::memory::decode_within;
use crate::seal;
use fencepost_core::BrokerTable;

/// Bytes that decoding may allocate in addition to those per input byte: an empty table and buffers of one frame.
const BYTES_FREE: usize = 1 << 20;
/// An entry of a few bytes becomes a line, a window and an entry in the overflow.
const BYTES_PER_BYTE: usize = 1024;

/// Any bytes as the snapshot of a table of produce batches: refused or decoded, without a panic and with little memory.
/// A decoded table is encoded to stable bytes, and judges. The same bytes with valid checksums pass the checksum test.
pub fn broker(bytes: &[u8]) {
    decode(bytes);
    decode(&seal(bytes));
}

fn decode(bytes: &[u8]) {
    let allowed = BYTES_FREE + BYTES_PER_BYTE * bytes.len();
    let Ok(mut table) = decode_within(allowed, bytes.len(), || BrokerTable::restore(bytes)) else { return };
    let encoded = table.snapshot();
    let again = BrokerTable::restore(&encoded).expect("its own snapshot");
    assert!(again.entries().eq(table.entries()), "an entry was lost or changed");
    assert!(again.snapshot() == encoded, "equal tables, other bytes");
    let entries = table.len();
    table.restart(i64::MAX);
    assert!(table.len() <= entries);
    assert!(table.entries().all(|entry| entry.batches.len() <= 1), "a restart leaves the last batch");
}

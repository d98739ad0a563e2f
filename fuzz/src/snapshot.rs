use crate::memory::decode_within;
use fencepost_core::{Entry, KeyKind, KeySpace, StateTable};

/// Bytes that decoding may allocate in addition to those per input byte: an empty table and buffers of one frame.
const BYTES_FREE: usize = 1 << 18;
/// A table of lines that hold one entry each, while it grows, for each byte of such an entry.
const BYTES_PER_BYTE: usize = 256;

const HEAD_BYTES: usize = 12;
const MAGIC: &[u8] = b"FPSTATE\0";

/// The checksum that deltas of the corpus follow. That of a base changes with each of its bytes, and a delta would be
/// refused for that alone.
pub const FOLLOWED: u32 = 7;

/// Any bytes as a snapshot, possibly with a delta after it: refused or decoded, without a panic and with little memory.
/// A decoded table is encoded to stable bytes. The same bytes with valid checksums pass the checksum test.
pub fn snapshot(bytes: &[u8]) {
    decode(bytes);
    decode(&seal(bytes));
}

fn decode(bytes: &[u8]) {
    let mut rest = bytes;
    let count = bytes.len() as u64;
    let table = bounded(bytes.len(), || StateTable::read_snapshot(&mut rest, count));
    let Ok(mut table) = table else { return };
    check_stable(&table);
    if !rest.is_empty() {
        follow(&mut table, rest, bytes.len());
    }
}

/// A delta changes everything or nothing.
fn follow(table: &mut StateTable, delta: &[u8], bytes: usize) {
    table.begin_changes(FOLLOWED);
    let before = table.snapshot();
    match bounded(bytes, || table.apply_delta(delta)) {
        Ok(()) => check_stable(table),
        Err(_) => assert!(table.snapshot() == before, "a refused delta shows"),
    }
}

/// Decodes this many bytes. They justify a proportional amount of memory.
fn bounded<T>(bytes: usize, decode: impl FnOnce() -> T) -> T {
    decode_within(BYTES_FREE + BYTES_PER_BYTE * bytes, bytes, decode)
}

fn check_stable(table: &StateTable) {
    let encoded = table.snapshot();
    let again = StateTable::restore(&encoded).expect("its own snapshot");
    assert_eq!(content(&again), content(table), "an entry was lost or changed");
    assert!(again.snapshot() == encoded, "equal tables, other bytes");
}

/// Every entry with its keys by value, because a delta can number them differently.
fn content(table: &StateTable) -> Vec<(Vec<u8>, Vec<u8>, Entry)> {
    let value = |space: &KeySpace, number: i64| match space.kind() {
        KeyKind::Plain => number.to_le_bytes().to_vec(),
        KeyKind::Parts(_) => space.dictionary.bytes(number as u32).to_vec(),
    };
    let of = |entry: Entry| {
        let (pid, partition) = (&table.keys().pid, &table.keys().partition);
        let keys = (value(pid, entry.pid), value(partition, entry.partition.into()));
        (keys.0, keys.1, Entry { pid: 0, partition: 0, ..entry })
    };
    table.entries().map(of).collect()
}

/// Corrects all checksums. After a head of twelve bytes come frames: a length of eight bytes, the payload, and a CRC-32
/// of everything so far except checksums. A delta begins with a head again.
pub fn seal(bytes: &[u8]) -> Vec<u8> {
    let mut sealed = bytes.to_vec();
    let mut checksum = crc32fast::Hasher::new();
    let mut at = 0;
    while let Some(length) = bytes.get(at..at + 8) {
        if at == 0 || length == MAGIC {
            checksum = crc32fast::Hasher::new();
            checksum.update(&bytes[at..bytes.len().min(at + HEAD_BYTES)]);
            at += HEAD_BYTES;
            continue;
        }
        let length = u64::from_le_bytes(length.try_into().expect("eight bytes"));
        let Some(end) = usize::try_from(length).ok().and_then(|length| (at + 8).checked_add(length)) else { break };
        let (Some(frame), true) = (bytes.get(at..end), end <= bytes.len().saturating_sub(4)) else { break };
        checksum.update(frame);
        sealed[end..end + 4].copy_from_slice(&checksum.clone().finalize().to_le_bytes());
        at = end + 4;
    }
    sealed
}

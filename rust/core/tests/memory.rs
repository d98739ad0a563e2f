//! Memory that is counted by the allocator: reading a snapshot with wrong counts allocates at most a small multiple of
//! its bytes, and a transaction index reports what it has allocated.

use fencepost_core::{Batch, Entry, LogRows, Policy, Seqs, StateTable, TransactionIndex};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Counts the bytes that a thread has allocated at once.
struct Counting;

thread_local! {
    static NOW: Cell<usize> = const { Cell::new(0) };
    static MOST: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: passes every call to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.get().wrapping_add(layout.size());
        NOW.set(now);
        MOST.set(MOST.get().max(now));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        NOW.set(NOW.get().wrapping_sub(layout.size()));
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Maximum number of bytes of a call, without those allocated before.
fn most<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = NOW.get();
    MOST.set(before);
    let done = work();
    (done, MOST.get() - before)
}

const HEAD: usize = 12;

/// Replaces eight bytes of a frame and corrects all checksums.
fn with_number(bytes: &[u8], frame: usize, at: impl Fn(usize) -> usize, number: u64) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let (mut start, mut count) = (HEAD, 0);
    let mut checksum = crc32fast::Hasher::new();
    checksum.update(&bytes[..HEAD]);
    while start < bytes.len() {
        let length = u64::from_le_bytes(bytes[start..start + 8].try_into().expect("eight")) as usize;
        if count == frame {
            let at = start + 8 + at(length);
            bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        checksum.update(&bytes[start..start + 8 + length]);
        let end = start + 8 + length;
        bytes[end..end + 4].copy_from_slice(&checksum.clone().finalize().to_le_bytes());
        (start, count) = (end + 4, count + 1);
    }
    bytes
}

/// The entry of a key whose row 5 was accepted.
fn one_row(pid: i64, partition: i32) -> Entry {
    Entry { pid, partition, epoch: 0, first: 5, last: 5, holes: vec![], final_range: None, last_timestamp: None }
}

fn small() -> Vec<u8> {
    let mut table = StateTable::new(Policy::preset("kafka").expect("a preset")).expect("valid");
    for pid in 0..100 {
        table.insert(&one_row(pid, 0)).expect("a new key");
    }
    table.snapshot()
}

/// In addition to the memory for a correct file: its table, and the columns of a frame.
const MULTIPLE: usize = 64;

#[test]
fn a_wrong_count_allocates_nothing() {
    let bytes = small();
    assert!(bytes.len() < 1024);
    let (honest, needed) = most(|| StateTable::restore(&bytes).map(|table| table.len()));
    assert_eq!(honest, Ok(100));
    assert!(needed < bytes.len() * MULTIPLE, "{needed} bytes for a snapshot of {}", bytes.len());
    for number in [101, 1 << 20, 1 << 40, 1 << 60, u64::MAX] {
        // The number of entries in the header, and of entries and blocks in the frame.
        let end_of_header: fn(usize) -> usize = |length| length - 8;
        for (frame, at) in [(0, end_of_header), (1, |_| 0), (1, |_| 8)] {
            let lie = with_number(&bytes, frame, at, number);
            let (result, needed) = most(|| StateTable::restore(&lie).map(|table| table.len()));
            assert!(result.is_err(), "frame {frame} claims {number}");
            assert!(needed < bytes.len() * MULTIPLE, "{needed} bytes for a frame {frame} that claims {number}");
        }
    }
}

#[test]
fn no_length_and_no_byte_makes_it_allocate() {
    let bytes = small();
    let mut lengths = bytes.clone();
    lengths[HEAD..HEAD + 8].copy_from_slice(&(1u64 << 60).to_le_bytes());
    let (result, needed) = most(|| StateTable::restore(&lengths).map(|table| table.len()));
    assert!(result.is_err() && needed < bytes.len() * MULTIPLE, "{needed} bytes");
    let payload = bytes.len() - HEAD - 24;
    for at in 0..payload.saturating_sub(300) {
        for frame in [0, 1] {
            let lie = with_number(&bytes, frame, |length| at.min(length - 8), u64::MAX >> 3);
            let (_, needed) = most(|| StateTable::restore(&lie).map(|table| table.len()));
            assert!(needed < bytes.len() * MULTIPLE, "{needed} bytes for byte {at} of frame {frame}");
        }
    }
}

#[test]
fn writing_takes_little_memory() {
    let mut table = StateTable::new(Policy::preset("kafka").expect("a preset")).expect("valid");
    for key in 0..400_000i64 {
        table.insert(&one_row(key / 2, (key % 2) as i32)).expect("a new key");
    }
    let (_, needed) = most(|| table.write_snapshot(&mut std::io::sink()).expect("a sink"));
    assert!(needed < table.memory_bytes() / 10, "{needed} bytes beside a table of {}", table.memory_bytes());
}

/// One row of a log: pid, partition, whether it is part of a transaction, control.
type Row = (i64, i32, bool, u8);

/// Bytes that an index reports after rows, beside those that it has allocated.
fn reported_and_allocated(rows: &[Row]) -> (f64, f64) {
    let pid: Vec<_> = rows.iter().map(|row| row.0).collect();
    let partition: Vec<_> = rows.iter().map(|row| row.1).collect();
    let transactional: Vec<_> = rows.iter().map(|row| row.2.into()).collect();
    let control: Vec<_> = rows.iter().map(|row| row.3).collect();
    let (epoch, offset): (Vec<_>, Vec<_>) = (0..rows.len() as i64).map(|row| (0, row)).unzip();
    let before = NOW.get();
    let mut index = TransactionIndex::default();
    index
        .apply(&[LogRows {
            pid: &pid,
            epoch: &epoch,
            partition: &partition,
            offset: &offset,
            last_offset: None,
            transactional: Some(&transactional),
            control: &control,
            timestamp: None,
        }])
        .expect("valid rows");
    let allocated = NOW.get() - before + size_of::<TransactionIndex>();
    (index.memory_bytes() as f64, allocated as f64)
}

/// A table that only merges others, as a standby does with deltas.
#[test]
fn entries_that_lose_their_holes_in_merges_leave_no_memory() {
    const KEYS: i64 = 1000;
    let policy = Policy::preset("any_order").expect("a preset");
    let judged = |seqs: &[i32]| {
        let pid: Vec<i64> = (0..KEYS).flat_map(|pid| vec![pid; seqs.len()]).collect();
        let seq: Vec<i32> = (0..KEYS).flat_map(|_| seqs.to_vec()).collect();
        let (partition, epoch) = (vec![0; pid.len()], vec![0; pid.len()]);
        let mut table = StateTable::new(policy).expect("a table");
        let seq = Seqs::I32(&seq);
        let rows = Batch { pid: &pid, partition: &partition, epoch: Some(&epoch), seq, timestamp: None };
        table.apply(&[rows]).expect("rows");
        table
    };
    let mut merged = StateTable::new(policy).expect("a table");
    let mut bytes = Vec::new();
    for round in 0..20 {
        merged.merge(&judged(&[3 * round, 3 * round + 2])).expect("a merge");
        merged.merge(&judged(&[3 * round + 1])).expect("a merge");
        bytes.push(merged.memory_bytes());
    }
    assert!(bytes[19] <= bytes[2], "{bytes:?}");
}

/// Hash tables have memory beyond their capacity, which is not reported.
#[test]
fn a_transaction_index_reports_its_memory() {
    assert_eq!(TransactionIndex::default().memory_bytes(), size_of::<TransactionIndex>());
    let partitions: Vec<Row> = (0..5000).map(|it| (-1, it, false, 0)).collect();
    let open: Vec<Row> = (0..5000).map(|pid| (pid, 0, true, 0)).collect();
    let aborted: Vec<Row> = (0..5000).flat_map(|pid| [(pid, 0, true, 0), (pid, 0, true, 2)]).collect();
    for (what, rows, share_min) in [("partitions", partitions, 0.95), ("open", open, 0.85), ("aborted", aborted, 0.95)]
    {
        let (reported, allocated) = reported_and_allocated(&rows);
        assert!((share_min..=1.0).contains(&(reported / allocated)), "{what}: {reported} of {allocated} bytes");
    }
}

//! If the system has no memory before the first change of a call, the call returns an error and changes nothing.
//! `docs/state-table.md` lists which memory is reserved in this way.

use fencepost_core::{
    Batch, BrokerOptions, BrokerTable, Error, KeyKind, Origin, Origins, PartKind, Policy, ProduceBatches, Seqs,
    StateTable, encode_bytes,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, Ordering};

static REFUSES: AtomicBool = AtomicBool::new(false);

static REFUSES_LARGE: AtomicBool = AtomicBool::new(false);
const LARGE: usize = 1 << 18;

/// Refuses the memory of lines, the only one aligned to a cache line, or any large allocation.
struct Refusing;

// SAFETY: returns the result of the system's allocator, or null, which is allowed.
unsafe impl GlobalAlloc for Refusing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let is_of_lines = layout.align() == 64 && REFUSES.load(Ordering::Relaxed);
        if is_of_lines || layout.size() >= LARGE && REFUSES_LARGE.load(Ordering::Relaxed) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: all memory comes from the system's allocator.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Refusing = Refusing;

fn apply_new(table: &mut StateTable, pids: std::ops::Range<i64>) -> Result<u64, Error> {
    let pid: Vec<i64> = pids.collect();
    let (partition, epoch, seq) = (vec![3; pid.len()], vec![0; pid.len()], vec![9; pid.len()]);
    let judged = table.apply(&[Batch {
        pid: &pid,
        partition: &partition,
        epoch: Some(&epoch),
        seq: Seqs::I32(&seq),
        timestamp: None,
    }])?;
    Ok(judged.counts[0])
}

/// A single test, because the allocator is shared by all threads.
#[test]
fn refused_memory_is_an_error_and_changes_nothing() {
    a_call();
    a_call_of_many_rows();
    a_call_of_many_batches();
    keys();
    a_merge();
    a_delta();
    a_renumbering();
}

fn table_of(pids: std::ops::Range<i64>) -> StateTable {
    let mut table = StateTable::new(Policy::preset("any_order").expect("a preset")).expect("valid");
    apply_new(&mut table, pids).expect("memory");
    table
}

/// The result of a call while memory is refused: that of lines, or any large allocation.
fn refused<T>(memory: &AtomicBool, call: impl FnOnce() -> T) -> T {
    memory.store(true, Ordering::Relaxed);
    let given = call();
    memory.store(false, Ordering::Relaxed);
    given
}

/// Memory per row or span of a call is refused, not that of the table.
fn a_call_of_many_rows() {
    for distance in [0, 1] {
        let mut table = table_of(0..1000);
        let before = table.snapshot();
        let rows = 2 * LARGE as i64;
        let pid: Vec<i64> = (0..rows).map(|row| row % 1000 * distance).collect();
        let (partition, seq) = (vec![3; pid.len()], (10..10 + rows as i32).collect::<Vec<_>>());
        let epoch = vec![0; pid.len()];
        let batch =
            Batch { pid: &pid, partition: &partition, epoch: Some(&epoch), seq: Seqs::I32(&seq), timestamp: None };
        let error = refused(&REFUSES_LARGE, || table.apply(&[batch]));
        assert!(matches!(error, Err(Error::Memory { .. })) && !table.is_half_done(), "{error:?}");
        assert!(table.snapshot() == before);
        assert_eq!(table.apply(&[batch]).map(|judged| judged.verdicts.len()), Ok(pid.len()));
    }
}

/// The same for a table of produce batches.
fn a_call_of_many_batches() {
    let mut table =
        BrokerTable::new(BrokerOptions { assigns_offsets: true, ..BrokerOptions::default() }).expect("valid");
    let rows = LARGE as i32;
    let (pid, partition, epoch) = (vec![1; LARGE], vec![3; LARGE], vec![0; LARGE]);
    let (base_seq, count, timestamp) = ((0..rows).collect::<Vec<_>>(), vec![1; LARGE], vec![5; LARGE]);
    let batches = ProduceBatches {
        pid: &pid,
        partition: &partition,
        epoch: &epoch,
        base_seq: &base_seq,
        last_seq: None,
        count: Some(&count),
        offset: None,
        last_offset: None,
        timestamp: Some(&timestamp),
        transactional: None,
        control: None,
        coordinator_epoch: None,
        transaction_version: None,
        origin: Origins::All(Origin::Client),
    };
    let before = table.snapshot();
    let error = refused(&REFUSES_LARGE, || table.apply(&[batches]));
    assert!(matches!(error, Err(Error::Memory { .. })) && !table.is_half_done(), "{error:?}");
    assert!(table.snapshot() == before);
    assert_eq!(table.apply(&[batches]).map(|judged| judged.counts[0]), Ok(LARGE as u64));
}

/// Keys are numbered before rows are judged. Those of a refused call are removed again.
fn keys() {
    let mut table = StateTable::new(Policy::preset("any_order").expect("a preset")).expect("valid");
    let text = KeyKind::Parts(vec![PartKind::Utf8]);
    table.keys_mut().fix(text, KeyKind::Plain).expect("a table that was not used yet");
    let before = table.keys().mark();
    let mut add = |name: usize| {
        let mut key = Vec::new();
        encode_bytes(&mut key, format!("producer-{name}").as_bytes());
        table.keys_mut().pid.dictionary.intern(&key).err()
    };
    let error = refused(&REFUSES_LARGE, || (0..LARGE).find_map(&mut add));
    assert!(matches!(error, Some(Error::Memory { .. })), "{error:?}");
    let known = table.keys().pid.dictionary.len();
    assert!(known > 1000 && table.keys().pid.dictionary.get(b"producer-7\0\0") == Some(7));
    table.keys_mut().go_back(before);
    assert!(table.keys().pid.dictionary.is_empty());
}

fn a_merge() {
    let mut table = table_of(0..1000);
    let mut next = 1000;
    while refused(&REFUSES, || apply_new(&mut table, next..next + 10)).is_ok() {
        next += 10;
    }
    let (before, other) = (table.snapshot(), table_of(next - 5..next + 5));
    let error = refused(&REFUSES, || table.merge(&other));
    assert!(matches!(error, Err(Error::Memory { .. })) && !table.is_half_done(), "{error:?}");
    assert!(table.snapshot() == before && table.len() as i64 == next);
    assert_eq!(table.merge(&other).map(|overlap| overlap.len()), Ok(5));
    assert_eq!(table.len() as i64, next + 5, "with memory the same merge continues");
    let many = table_of(0..100_000);
    let error = refused(&REFUSES, || table.merge(&many));
    assert!(matches!(error, Err(Error::Memory { .. })) && table.is_half_done(), "{error:?}");
}

fn a_delta() {
    let mut table = table_of(0..1000);
    let mut bytes = Vec::new();
    let checksum = table.write_snapshot(&mut bytes).expect("a vector takes everything");
    table.track_changes(true);
    table.begin_changes(checksum);
    apply_new(&mut table, 1000..100_000).expect("memory");
    let mut delta = Vec::new();
    table.delta().expect("tracking").write(&mut delta).expect("a vector takes everything");
    let mut back = StateTable::restore(&bytes).expect("memory");
    let error = refused(&REFUSES, || back.apply_delta(&delta));
    assert!(matches!(error, Err(Error::Memory { .. })), "{error:?}");
    assert!(back.is_half_done() || back.snapshot() == bytes);
    let mut back = StateTable::restore(&bytes).expect("memory");
    assert_eq!(back.apply_delta(&delta), Ok(()));
    assert!(back.snapshot() == table.snapshot());
}

fn a_renumbering() {
    let mut table = StateTable::new(Policy::preset("any_order").expect("a preset")).expect("valid");
    let text = KeyKind::Parts(vec![PartKind::Utf8]);
    table.keys_mut().fix(text, KeyKind::Plain).expect("a table that was not used yet");
    for name in 0..100 {
        let mut key = Vec::new();
        encode_bytes(&mut key, format!("producer-{name}").as_bytes());
        table.keys_mut().pid.dictionary.intern(&key).expect("memory");
    }
    apply_new(&mut table, 0..100).expect("memory");
    (0..90).for_each(|pid| assert_eq!(table.forget(pid, None), 1));
    let before = table.snapshot();
    refused(&REFUSES, || table.drop_unused_keys());
    assert!(table.keys().pid.dictionary.len() == 100 && table.snapshot() == before);
    table.drop_unused_keys();
    assert!(table.keys().pid.dictionary.len() == 10 && table.snapshot() == before);
}

fn a_call() {
    let mut table = StateTable::new(Policy::preset("any_order").expect("a preset")).expect("valid");
    assert_eq!(apply_new(&mut table, 0..1000), Ok(1000));
    REFUSES.store(true, Ordering::Relaxed);
    let mut next = 1000;
    let error = loop {
        match apply_new(&mut table, next..next + 10) {
            Ok(accepted) => assert_eq!(accepted, 10),
            Err(error) => break error,
        }
        next += 10;
        assert!(next < 100_000, "a full table asks for memory");
    };
    assert!(matches!(error, Error::Memory { bytes } if bytes > 1000), "{error}");
    assert!(error.to_string().contains("bytes more"), "{error}");
    let before = table.snapshot();
    assert_eq!(apply_new(&mut table, next..next + 10), Err(error));
    assert!(table.snapshot() == before && table.len() as i64 == next);
    assert!(apply_new(&mut table, 0..10).is_err(), "room is asked for before rows are looked at");
    let made = StateTable::restore(&before).map(|table| table.len());
    assert!(matches!(made, Err(Error::Memory { .. })), "a table that cannot be made");
    REFUSES.store(false, Ordering::Relaxed);
    assert_eq!(apply_new(&mut table, next..next + 10), Ok(10), "with memory the same call continues");
    assert!(!table.is_half_done());
    // A call in progress that needs more than the reserved lines cannot be undone: the table reports this.
    let mut other = StateTable::restore(&before).expect("memory");
    assert_eq!(apply_new(&mut other, 0..10), Ok(0), "repeats of what was restored");
    let error = refused(&REFUSES, || {
        loop {
            match apply_new(&mut other, next..next + 10_000) {
                Ok(_) => next += 10_000,
                Err(error) => break error,
            }
        }
    });
    assert!(matches!(error, Error::Memory { .. }) && other.is_half_done(), "{error}");
}

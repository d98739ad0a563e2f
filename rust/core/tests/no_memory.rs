//! Where the system refuses memory: an error before the first change, never an abort.

use fencepost_core::{Batch, Error, Policy, Seqs, StateTable};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, Ordering};

static REFUSES: AtomicBool = AtomicBool::new(false);

/// Refuses the memory of lines, which is the only one that begins on a cache line.
struct Refusing;

// SAFETY: gives what the system's allocator gives, or nothing, which is allowed.
unsafe impl GlobalAlloc for Refusing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() == 64 && REFUSES.load(Ordering::Relaxed) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: everything comes from the system's allocator.
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

/// One test, for the allocator is one for all threads.
#[test]
fn refused_memory_is_an_error_and_changes_nothing() {
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
    assert_eq!(apply_new(&mut table, next..next + 10), Ok(10), "with memory the same call goes on");
    assert!(!table.is_half_done());
    // A call that has begun and needs more than the lines in reserve cannot go back: the table says so.
    let mut other = StateTable::restore(&before).expect("memory");
    assert_eq!(apply_new(&mut other, 0..10), Ok(0), "repeats of what was restored");
    REFUSES.store(true, Ordering::Relaxed);
    let refused = loop {
        match apply_new(&mut other, next..next + 10_000) {
            Ok(_) => next += 10_000,
            Err(error) => break error,
        }
    };
    REFUSES.store(false, Ordering::Relaxed);
    assert!(matches!(refused, Error::Memory { .. }) && other.is_half_done(), "{refused}");
}

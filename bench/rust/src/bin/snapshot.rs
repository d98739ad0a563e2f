//! Snapshots at size: entries a second each way, bytes an entry, memory beside the table.
//!
//! `cargo run --release -p fencepost-bench --bin snapshot -- [entries] [partitions of a producer] [policy] [rounds]`
//!
//! The best round is reported: what the others took longer is what else ran on the machine.

use fencepost_core::{Batch, Policy, Seqs, StateTable};
use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

/// Counts the bytes that are allocated, and how many were at once.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: passes every call on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        MOST.fetch_max(NOW.fetch_add(layout.size(), Relaxed) + layout.size(), Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Does something; gives the seconds it took and the bytes it held at once beside what it gives back.
fn measure<T>(work: impl FnOnce() -> T) -> (T, f64, usize) {
    let before = NOW.load(Relaxed);
    MOST.store(before, Relaxed);
    let begun = Instant::now();
    let done = work();
    let seconds = begun.elapsed().as_secs_f64();
    (done, seconds, MOST.load(Relaxed) - before.max(NOW.load(Relaxed)))
}

/// The quickest of several times, the last of which gives what it did.
fn best<T>(rounds: u64, mut work: impl FnMut() -> T) -> (T, f64, usize) {
    let mut quickest = f64::MAX;
    for _ in 1..rounds {
        quickest = measure(&mut work).1.min(quickest);
    }
    let (done, seconds, extra) = measure(work);
    (done, seconds.min(quickest), extra)
}

/// Takes bytes and forgets them.
struct Counter(u64);

impl Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, or| arguments.get(at).map_or(or, |text| text.parse().expect("a number"));
    let (entries, partitions) = (number(0, 1_000_000), number(1, 1000));
    let policy = arguments.get(2).map_or("kafka", String::as_str);
    let table = table(policy, entries, partitions);
    assert_eq!(table.len() as u64, entries);
    let rate = |seconds: f64| entries as f64 / seconds / 1e6;
    let bytes = table.memory_bytes();
    println!(
        "{policy}: {entries} entries, {partitions} partitions a producer, {:.2} bytes an entry in memory",
        bytes as f64 / entries as f64
    );
    let rounds = number(3, 3);
    let mut counter = Counter(0);
    let (_, seconds, extra) = best(rounds, || {
        counter = Counter(0);
        table.write_snapshot(&mut counter).expect("a counter takes every write")
    });
    println!(
        "save  {:6.1} M entries/s, {:.2} bytes an entry, {:.2} % beside the table",
        rate(seconds),
        counter.0 as f64 / entries as f64,
        extra as f64 / bytes as f64 * 100.0
    );
    let mut snapshot = Vec::with_capacity(counter.0 as usize);
    table.write_snapshot(&mut snapshot).expect("a Vec takes every write");
    drop(table);
    let (back, seconds, extra) = best(rounds, || StateTable::restore(&snapshot).expect("its own snapshot"));
    println!(
        "load  {:6.1} M entries/s, {:.2} bytes an entry in memory, {:.2} % beside the table",
        rate(seconds),
        back.memory_bytes() as f64 / entries as f64,
        extra as f64 / bytes as f64 * 100.0
    );
    let again = {
        let mut counter = Counter(0);
        back.write_snapshot(&mut counter).expect("a counter takes every write")
    };
    let last = u32::from_le_bytes(snapshot[snapshot.len() - 4..].try_into().expect("four bytes"));
    assert_eq!(again, last, "read and written again it is the same");
}

/// Every key once, with a sequence number drawn at random.
fn table(policy: &str, entries: u64, partitions: u64) -> StateTable {
    let policy = Policy::preset(policy).expect("a preset");
    let has_epochs = policy.epochs != fencepost_core::Epochs::Ignore;
    let mut table = StateTable::new(policy).expect("a preset is valid");
    let epoch = vec![0i16; 1 << 20];
    let mut state = 1u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for from in (0..entries).step_by(1 << 20) {
        let keys = from..entries.min(from + (1 << 20));
        let pid: Vec<i64> = keys.clone().map(|key| (key / partitions) as i64).collect();
        let partition: Vec<i32> = keys.clone().map(|key| (key % partitions) as i32).collect();
        let seq: Vec<i32> = keys.map(|_| (random() >> 33) as i32).collect();
        let batch = Batch {
            pid: &pid,
            partition: &partition,
            epoch: has_epochs.then_some(&epoch[..pid.len()]),
            seq: Seqs::I32(&seq),
            timestamp: None,
        };
        table.apply(&[batch]).expect("valid rows");
    }
    table
}

//! Nanoseconds a row, by the shape of the input; every answer is checked.

use divan::counter::ItemsCount;
use fencepost_bench::Columns;
use fencepost_core::{Policy, StateTable, Verdict};

const ROWS: usize = 4_000_000;
const BATCH: usize = 1_000_000;

fn main() {
    divan::main();
}

/// Judges everything from an empty table on and checks how many repeats were found.
fn judge(bencher: divan::Bencher<'_, '_>, policy: &str, keys: u64, run: usize) {
    let (columns, repeats) = Columns::random(ROWS, keys, run, 1);
    let batches = columns.batches(BATCH);
    let policy = Policy::preset(policy).expect("a preset");
    bencher.counter(ItemsCount::new(columns.pid.len())).bench_local(|| {
        let mut table = StateTable::new(policy).expect("a preset is valid");
        let mut refused = 0;
        for batch in &batches {
            let judged = table.apply(std::slice::from_ref(batch)).expect("valid rows");
            refused += judged.verdicts.len() as u64 - judged.counts[Verdict::Accepted as usize];
        }
        assert_eq!(refused, repeats);
    });
}

/// The same on a table that already knows every key: no growth.
fn judge_known(bencher: divan::Bencher<'_, '_>, policy: &str, keys: u64, run: usize) {
    let (columns, _) = Columns::random(ROWS, keys, run, 1);
    let batches = columns.batches(BATCH);
    let policy = Policy::preset(policy).expect("a preset");
    let mut known = StateTable::new(policy).expect("a preset is valid");
    known.apply(&batches).expect("valid rows");
    let entries = known.len();
    bencher.counter(ItemsCount::new(columns.pid.len())).bench_local(|| {
        for batch in &batches {
            let judged = known.apply(std::slice::from_ref(batch)).expect("valid rows");
            assert_eq!(judged.verdicts.len(), batch.len());
        }
        assert_eq!(known.len(), entries);
    });
}

const POLICIES: [&str; 3] = ["any_order", "in_order", "kafka"];

#[divan::bench(args = POLICIES, sample_count = 20)]
fn runs_of_20(bencher: divan::Bencher<'_, '_>, policy: &str) {
    judge(bencher, policy, 100_000, 20);
}

#[divan::bench(args = POLICIES, sample_count = 10)]
fn random_1m(bencher: divan::Bencher<'_, '_>, policy: &str) {
    judge(bencher, policy, 1_000_000, 1);
}

#[divan::bench(args = POLICIES, sample_count = 10)]
fn random_1m_known(bencher: divan::Bencher<'_, '_>, policy: &str) {
    judge_known(bencher, policy, 1_000_000, 1);
}

/// Judges rows that are all new, in order or one in ten late, and checks that none is refused and
/// none is missing in the end.
fn judge_displaced(bencher: divan::Bencher<'_, '_>, policy: &str, keys: u64, displaced_by: u64) {
    let columns = Columns::displaced(ROWS, keys, displaced_by, 1);
    let batches = columns.batches(BATCH);
    let policy = Policy::preset(policy).expect("a preset");
    bencher.counter(ItemsCount::new(columns.pid.len())).bench_local(|| {
        let mut table = StateTable::new(policy).expect("a preset is valid");
        for batch in &batches {
            let judged = table.apply(std::slice::from_ref(batch)).expect("valid rows");
            assert_eq!(judged.counts[Verdict::Accepted as usize], batch.len() as u64);
        }
        assert_eq!((table.len() as u64, table.missing().len()), (keys, 0));
    });
}

/// Keys between which the rows alternate; with one, most rows come in runs.
const INTERLEAVED: [u64; 3] = [1, 10, 1000];

/// How late one row in ten comes, in rows of its key.
const DISPLACED_BY: u64 = 10_000;

#[divan::bench(args = INTERLEAVED, sample_count = 10)]
fn ordered_in_order(bencher: divan::Bencher<'_, '_>, keys: u64) {
    judge_displaced(bencher, "in_order", keys, 0);
}

#[divan::bench(args = INTERLEAVED, sample_count = 10)]
fn ordered_any_order(bencher: divan::Bencher<'_, '_>, keys: u64) {
    judge_displaced(bencher, "any_order", keys, 0);
}

#[divan::bench(args = INTERLEAVED, sample_count = 10)]
fn displaced_any_order(bencher: divan::Bencher<'_, '_>, keys: u64) {
    judge_displaced(bencher, "any_order", keys, DISPLACED_BY);
}

#[divan::bench(sample_count = 20)]
fn sum_of_the_columns(bencher: divan::Bencher<'_, '_>) {
    let (columns, _) = Columns::random(ROWS, 100_000, 20, 1);
    bencher.counter(ItemsCount::new(columns.pid.len())).bench_local(|| divan::black_box(columns.sum()));
}

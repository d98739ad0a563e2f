//! Nanoseconds a row of the transaction index, by how many producers write at once; every answer is checked.

use divan::counter::ItemsCount;
use fencepost_bench::random;
use fencepost_core::{Control, LogRows, Outcome, TransactionIndex};

const ROWS: usize = 4_000_000;
const BATCH: usize = 1_000_000;

fn main() {
    divan::main();
}

/// A log by column, batch headers of three records each.
#[derive(Default)]
struct Log {
    pid: Vec<i64>,
    epoch: Vec<i16>,
    partition: Vec<i32>,
    offset: Vec<i64>,
    last_offset: Vec<i64>,
    transactional: Vec<u8>,
    control: Vec<u8>,
    timestamp: Vec<i64>,
    /// Rows by outcome.
    counts: [u64; 4],
    /// Transactions that were aborted.
    aborted: usize,
    /// Transactions that are open in the end.
    open: usize,
}

/// What a log is like.
#[derive(Clone, Copy, Debug)]
struct Shape {
    producers: u64,
    partitions: u64,
    /// Rows of one producer that follow each other.
    run: u64,
    /// Rows of a transaction, without its marker, of all partitions.
    transaction: u64,
}

impl Log {
    fn random(shape: Shape) -> Log {
        let Shape { producers, partitions, run, transaction } = shape;
        let mut log = Log::default();
        let mut ends = vec![0; partitions as usize];
        let mut open = vec![0; producers as usize];
        let mut state = 1;
        while log.pid.len() < ROWS {
            let producer = random(&mut state) % producers;
            let end = &mut ends[(producer % partitions) as usize];
            for _ in 0..run {
                log.push(producer, producer % partitions, end, Control::Data);
            }
            open[producer as usize] += run;
            if open[producer as usize] >= transaction {
                let is_aborted = random(&mut state).is_multiple_of(10);
                let (marker, outcome) =
                    if is_aborted { (Control::Abort, Outcome::Aborted) } else { (Control::Commit, Outcome::Committed) };
                log.push(producer, producer % partitions, end, marker);
                log.aborted += usize::from(is_aborted);
                log.counts[Outcome::None as usize] += 1;
                log.counts[outcome as usize] += std::mem::take(&mut open[producer as usize]);
            }
        }
        log.counts[Outcome::Open as usize] = open.iter().sum();
        log.open = open.iter().filter(|&&rows| rows > 0).count();
        log
    }

    fn push(&mut self, producer: u64, partition: u64, end: &mut i64, control: Control) {
        self.pid.push(producer as i64);
        self.epoch.push(0);
        self.partition.push(partition as i32);
        self.offset.push(*end);
        *end += if control == Control::Data { 3 } else { 1 };
        self.last_offset.push(*end - 1);
        self.transactional.push(1);
        self.control.push(control as u8);
        self.timestamp.push(self.pid.len() as i64);
    }

    fn rows(&self, from: usize, to: usize) -> LogRows<'_> {
        LogRows {
            pid: &self.pid[from..to],
            epoch: &self.epoch[from..to],
            partition: &self.partition[from..to],
            offset: &self.offset[from..to],
            last_offset: Some(&self.last_offset[from..to]),
            transactional: Some(&self.transactional[from..to]),
            control: &self.control[from..to],
            timestamp: Some(&self.timestamp[from..to]),
        }
    }

    fn cut(&self) -> Vec<LogRows<'_>> {
        let rows = self.pid.len();
        (0..rows).step_by(BATCH).map(|from| self.rows(from, rows.min(from + BATCH))).collect()
    }
}

/// Follows everything from an empty index on, in calls of a million rows, and checks how many transactions were aborted
/// and are open; once, in one call, what became of every row.
fn follow(bencher: divan::Bencher<'_, '_>, shape: Shape) {
    let log = Log::random(shape);
    let batches = log.cut();
    let whole = TransactionIndex::default().apply(&[log.rows(0, log.pid.len())]).expect("valid rows");
    let mut counts = [0; 4];
    whole.outcomes.iter().for_each(|&code| counts[usize::from(code)] += 1);
    assert_eq!(counts, log.counts);
    bencher.counter(ItemsCount::new(log.pid.len())).bench_local(|| {
        let mut index = TransactionIndex::default();
        for batch in &batches {
            divan::black_box(index.apply(std::slice::from_ref(batch)).expect("valid rows"));
        }
        let aborted: usize = (0..shape.partitions).map(|partition| index.aborted(partition as i32).len()).sum();
        assert_eq!((aborted, index.open_count()), (log.aborted, log.open));
    });
}

/// How many write at once.
const PRODUCERS: [u64; 5] = [1, 10, 100, 10_000, 1_000_000];

#[divan::bench(args = PRODUCERS, sample_count = 20)]
fn one_partition(bencher: divan::Bencher<'_, '_>, producers: u64) {
    follow(bencher, Shape { producers, partitions: 1, run: 1, transaction: 20 });
}

#[divan::bench(args = PRODUCERS, sample_count = 20)]
fn runs_of_20(bencher: divan::Bencher<'_, '_>, producers: u64) {
    follow(bencher, Shape { producers, partitions: 1, run: 20, transaction: 100 });
}

#[divan::bench(args = [1, 10, 100], sample_count = 20)]
fn small_transactions(bencher: divan::Bencher<'_, '_>, producers: u64) {
    follow(bencher, Shape { producers, partitions: 1, run: 1, transaction: 1 });
}

#[divan::bench(args = [10, 100, 1000], sample_count = 20)]
fn partitions_in_turn(bencher: divan::Bencher<'_, '_>, partitions: u64) {
    follow(bencher, Shape { producers: 10 * partitions, partitions, run: 1, transaction: 20 });
}

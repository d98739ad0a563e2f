//! Produce batches by how many producers write them: batches a second, bytes an entry.
//!
//! ```text
//! broker [--rounds 5] [--rows 4000000] [--producers 1,100000,1000000]
//! ```
//!
//! Prints a JSON object a line, one for each number of producers and set of columns. One batch in twenty is sent again;
//! every round is checked against the exact number of repeats, and against their original offsets.

use fencepost_bench::random;
use fencepost_core::{BrokerOptions, BrokerTable, Origin, Origins, ProduceBatches, Verdict};
use std::process::ExitCode;
use std::time::Instant;

/// Records of a batch.
const RECORDS: i32 = 10;
/// One batch in so many is sent again.
const REPEATED: u64 = 20;
/// Batches of a call.
const CALL: usize = 1_000_000;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (mut rounds, mut rows, mut producers) = (5, 4_000_000, vec![1, 100_000, 1_000_000]);
    while let Some(name) = arguments.next() {
        let value = arguments.next().unwrap_or_default();
        let numbers: Result<Vec<usize>, _> = value.split(',').map(str::parse).collect();
        match (name.as_str(), numbers) {
            ("--rounds", Ok(numbers)) => rounds = numbers[0],
            ("--rows", Ok(numbers)) => rows = numbers[0],
            ("--producers", Ok(numbers)) => producers = numbers,
            _ => {
                eprintln!("broker: {name} {value}: --rounds, --rows and --producers take whole numbers");
                return ExitCode::from(2);
            }
        }
    }
    for producers in producers {
        for columns in [Columns::Bare, Columns::Whole] {
            measure(producers, columns, rounds, rows);
        }
    }
    ExitCode::SUCCESS
}

/// What rows have beside pid, epoch, partition, base_seq and count.
#[derive(Clone, Copy, PartialEq)]
enum Columns {
    Bare,
    /// Offsets, timestamps and the transactional flag.
    Whole,
}

/// Batches of a call, and what must come of them.
#[derive(Default)]
struct Rows {
    pid: Vec<i64>,
    partition: Vec<i32>,
    epoch: Vec<i16>,
    base_seq: Vec<i32>,
    count: Vec<i32>,
    offset: Vec<i64>,
    timestamp: Vec<i64>,
    transactional: Vec<u8>,
    repeats: u64,
    /// Sum of the offsets that must be answered.
    offsets: i64,
}

/// What producers write, for ever.
struct Stream {
    state: u64,
    /// Batches written so far, and the offset of the last one, by producer.
    written: Vec<(i32, i64)>,
    end: i64,
}

impl Stream {
    fn new(producers: usize) -> Stream {
        Stream { state: 7, written: vec![(0, 0); producers], end: 0 }
    }

    /// The first batch of each producer, in an order that is not theirs.
    fn first(&mut self) -> Rows {
        let (count, mut rows) = (self.written.len(), Rows::default());
        (0..count).for_each(|at| self.write(at * 7919 % count, &mut rows));
        rows
    }

    fn random(&mut self, batches: usize) -> Rows {
        let mut rows = Rows::default();
        for _ in 0..batches {
            let drawn = random(&mut self.state);
            let producer = (((drawn >> 32) * self.written.len() as u64) >> 32) as usize;
            if drawn.is_multiple_of(REPEATED) {
                self.repeat(producer, &mut rows)
            } else {
                self.write(producer, &mut rows)
            }
        }
        rows
    }

    fn write(&mut self, producer: usize, rows: &mut Rows) {
        let (batches, last) = &mut self.written[producer];
        *last = self.end;
        rows.push(producer, *batches, self.end, self.end);
        *batches += 1;
        self.end += i64::from(RECORDS);
    }

    /// As a client does it that saw no answer: the log would be longer now, the answer is the old offset.
    fn repeat(&mut self, producer: usize, rows: &mut Rows) {
        let (batches, last) = self.written[producer];
        rows.push(producer, batches - 1, self.end, last);
        rows.repeats += 1;
    }
}

impl Rows {
    fn push(&mut self, producer: usize, batch: i32, offset: i64, answered: i64) {
        self.pid.push(1000 + producer as i64);
        self.partition.push((producer % 50) as i32);
        self.epoch.push(3);
        self.base_seq.push(batch.wrapping_mul(RECORDS) & i32::MAX);
        self.count.push(RECORDS);
        self.offset.push(offset);
        self.timestamp.push(1_700_000_000_000 + offset / 100);
        self.transactional.push(0);
        self.offsets += answered;
    }

    fn batches(&self, columns: Columns) -> ProduceBatches<'_> {
        let is_whole = columns == Columns::Whole;
        ProduceBatches {
            pid: &self.pid,
            partition: &self.partition,
            epoch: &self.epoch,
            base_seq: &self.base_seq,
            last_seq: None,
            count: Some(&self.count),
            offset: is_whole.then_some(&self.offset[..]),
            last_offset: None,
            timestamp: is_whole.then_some(&self.timestamp[..]),
            transactional: is_whole.then_some(&self.transactional[..]),
            control: None,
            coordinator_epoch: None,
            transaction_version: None,
            origin: Origins::All(Origin::Client),
        }
    }

    /// Judges them, checks the answer and gives the seconds it took.
    fn judge(&self, table: &mut BrokerTable, columns: Columns) -> f64 {
        let begin = Instant::now();
        let judged = table.apply(&[self.batches(columns)]).expect("valid batches");
        let seconds = begin.elapsed().as_secs_f64();
        let accepted = self.pid.len() as u64 - self.repeats;
        assert_eq!(judged.counts[Verdict::Accepted as usize], accepted);
        assert_eq!(judged.counts[Verdict::Duplicate as usize], self.repeats);
        assert!(columns == Columns::Bare || judged.offsets.iter().sum::<i64>() == self.offsets);
        seconds
    }
}

fn measure(producers: usize, columns: Columns, rounds: usize, rows: usize) {
    let mut stream = Stream::new(producers);
    let mut table = BrokerTable::new(BrokerOptions::default()).expect("default options");
    stream.first().judge(&mut table, columns);
    let mut spent: Vec<f64> = Vec::new();
    for round in 0..=rounds {
        let calls: Vec<Rows> = (0..rows.div_ceil(CALL)).map(|_| stream.random(CALL)).collect();
        let seconds: f64 = calls.iter().map(|rows| rows.judge(&mut table, columns)).sum();
        // The first round fills windows and is not counted.
        if round > 0 {
            spent.push((calls.len() * CALL) as f64 / seconds / 1e6);
        }
    }
    assert_eq!(table.len(), producers);
    spent.sort_by(f64::total_cmp);
    let list: Vec<String> = spent.iter().map(|it| format!("{it:.1}")).collect();
    println!(
        "{{\"producers\": {producers}, \"columns\": \"{}\", \"median_millions_a_second\": {:.1}, \
         \"millions_a_second\": [{}], \"bytes_an_entry\": {:.1}}}",
        if columns == Columns::Bare { "bare" } else { "whole" },
        spent[spent.len() / 2],
        list.join(", "),
        table.memory_bytes() as f64 / producers as f64,
    );
}

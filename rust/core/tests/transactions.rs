//! Compares the transaction index with a reader that always starts from the first row: short logs divided into calls in
//! all ways, and long seeded logs.

use fencepost_core::{AbortedTransaction, LogRows, OpenTransaction, Outcome, Resolved, TransactionIndex};
use fencepost_testkit::transactions::{Kind, Log, LogRow, RowOutcome, Transaction, random_log};
use fencepost_testkit::workload::Random;

/// Rows by column.
#[derive(Default)]
struct Columns {
    pid: Vec<i64>,
    epoch: Vec<i16>,
    partition: Vec<i32>,
    offset: Vec<i64>,
    last_offset: Vec<i64>,
    transactional: Vec<u8>,
    control: Vec<u8>,
    timestamp: Vec<i64>,
}

impl Columns {
    fn of(rows: &[LogRow]) -> Columns {
        let code = |row: &LogRow| match row.kind {
            Kind::Data => 0,
            Kind::Commit => 1,
            Kind::Abort => 2,
            Kind::Other => 4 - u8::from(row.pid != -1),
        };
        Columns {
            pid: rows.iter().map(|row| row.pid).collect(),
            epoch: rows.iter().map(|row| row.epoch).collect(),
            partition: rows.iter().map(|row| row.partition).collect(),
            offset: rows.iter().map(|row| row.offset).collect(),
            last_offset: rows.iter().map(|row| row.last_offset).collect(),
            transactional: rows.iter().map(|row| row.is_transactional.into()).collect(),
            control: rows.iter().map(code).collect(),
            timestamp: rows.iter().map(|row| row.timestamp).collect(),
        }
    }

    fn rows(&self) -> LogRows<'_> {
        LogRows {
            pid: &self.pid,
            epoch: &self.epoch,
            partition: &self.partition,
            offset: &self.offset,
            last_offset: Some(&self.last_offset),
            transactional: Some(&self.transactional),
            control: &self.control,
            timestamp: Some(&self.timestamp),
        }
    }
}

fn outcome(row_outcome: RowOutcome) -> Outcome {
    match row_outcome {
        RowOutcome::None => Outcome::None,
        RowOutcome::Committed => Outcome::Committed,
        RowOutcome::Aborted => Outcome::Aborted,
        RowOutcome::Open => Outcome::Open,
    }
}

/// All results of an index after a call.
#[derive(Clone, Debug, PartialEq)]
struct Reported {
    outcomes: Vec<Outcome>,
    resolved: Vec<Resolved>,
    open: Vec<OpenTransaction>,
    /// By partition: first unstable offset, last stable offset, aborted transactions.
    partitions: Vec<(Option<i64>, Option<i64>, Vec<AbortedTransaction>)>,
}

const PARTITIONS: std::ops::Range<i32> = 0..4;

fn report(index: &TransactionIndex, outcomes: Vec<u8>, resolved: Vec<Resolved>) -> Reported {
    let of_partition = |partition| {
        let (first_unstable, stable) = (index.first_unstable_offset(partition), index.last_stable_offset(partition));
        (first_unstable, stable, index.aborted(partition).to_vec())
    };
    Reported {
        outcomes: outcomes.into_iter().map(|code| Outcome::ALL[code as usize]).collect(),
        resolved,
        open: index.open().collect(),
        partitions: PARTITIONS.map(of_partition).collect(),
    }
}

/// The expected results from the whole log, whose last `fresh` rows are those of the call.
fn expect(log: &Log, fresh: usize) -> Reported {
    let row_outcomes = log.row_outcomes();
    let call_from = row_outcomes.len() - fresh;
    let all = log.transactions();
    let is_resolved = |it: &&Transaction| it.begun_at < call_from && it.decided_at.is_some_and(|at| at >= call_from);
    let mut resolved: Vec<_> = all.iter().filter(is_resolved).collect();
    resolved.sort_by_key(|it| it.decided_at);
    let mut open: Vec<_> = all.iter().filter(|it| it.row_outcome == RowOutcome::Open).collect();
    open.sort_by_key(|it| (it.partition, it.first_offset));
    let reported_resolved = |it: &Transaction| Resolved {
        partition: it.partition,
        pid: it.pid,
        first_offset: it.first_offset,
        last_offset: it.marker.expect("a decided one"),
        outcome: outcome(it.row_outcome),
    };
    let reported_open = |it: &Transaction| OpenTransaction {
        partition: it.partition,
        pid: it.pid,
        epoch: it.epoch,
        first_offset: it.first_offset,
        last_offset: it.data_end,
        last_timestamp: Some(it.last_timestamp),
    };
    let reported_aborted = |(pid, first_offset, last_offset, last_stable_offset)| AbortedTransaction {
        pid,
        first_offset,
        last_offset,
        last_stable_offset,
    };
    let of_partition = |partition| {
        let aborted = log.aborted(partition).into_iter().map(reported_aborted).collect();
        (log.first_unstable_offset(partition), log.last_stable_offset(partition), aborted)
    };
    Reported {
        outcomes: row_outcomes[call_from..].iter().map(|&row_outcome| outcome(row_outcome)).collect(),
        resolved: resolved.into_iter().map(reported_resolved).collect(),
        open: open.into_iter().map(reported_open).collect(),
        partitions: PARTITIONS.map(of_partition).collect(),
    }
}

/// How the tested index is broken: changes of its input and of its output.
#[derive(Clone, Copy)]
struct Subject {
    name: &'static str,
    hears: fn(&mut LogRow),
    change: fn(&mut Reported),
}

const HONEST: Subject = Subject { name: "honest", hears: |_| (), change: |_| () };

/// Follows a log in calls of several batches. `Err` has the first difference.
fn follow(subject: Subject, calls: &[Vec<&[LogRow]>]) -> Result<(), String> {
    let (mut index, mut log) = (TransactionIndex::default(), Log::default());
    for (number, call) in calls.iter().enumerate() {
        let heard = |rows: &&[LogRow]| {
            let mut rows = rows.to_vec();
            rows.iter_mut().for_each(subject.hears);
            Columns::of(&rows)
        };
        let columns: Vec<_> = call.iter().map(heard).collect();
        let batches: Vec<_> = columns.iter().map(Columns::rows).collect();
        let outcomes = index.apply(&batches).map_err(|error| format!("call {number}: {error}"))?;
        let mut reported = report(&index, outcomes.outcomes, outcomes.resolved);
        (subject.change)(&mut reported);
        call.iter().for_each(|rows| log.extend(rows));
        let expected = expect(&log, call.iter().map(|rows| rows.len()).sum());
        if reported != expected {
            return Err(format!("call {number}: {reported:?}\nexpected {expected:?}"));
        }
    }
    Ok(())
}

/// The calls by the bits of a number: bit n divides after row n.
fn cut_by(rows: &[LogRow], bits: u32) -> Vec<Vec<&[LogRow]>> {
    let (mut calls, mut from) = (Vec::new(), 0);
    for to in 1..=rows.len() {
        if to == rows.len() || bits >> (to - 1) & 1 == 1 {
            calls.push(vec![&rows[from..to]]);
            from = to;
        }
    }
    calls
}

fn cut_by_chance<'a>(rows: &'a [LogRow], random: &mut Random) -> Vec<Vec<&'a [LogRow]>> {
    let (mut calls, mut rest) = (Vec::new(), rows);
    while !rest.is_empty() {
        let mut call = Vec::new();
        for _ in 0..=random.below(3) {
            let (batch, after) = rest.split_at(rest.len().min(random.below(30) as usize));
            call.push(batch);
            rest = after;
        }
        calls.push(call);
    }
    calls
}

#[test]
fn short_logs_read_the_same_however_they_are_cut() {
    let mut readings = 0;
    for seed in 0..60 {
        let rows = random_log(&mut Random::new(seed), 9);
        for bits in 0..1 << 8 {
            let followed = follow(HONEST, &cut_by(&rows, bits));
            followed.unwrap_or_else(|difference| panic!("seed {seed}, cut {bits:b}: {rows:?}\n{difference}"));
            readings += 1;
        }
    }
    assert_eq!(readings, 60 * 256);
}

#[test]
fn long_logs_read_as_the_whole_log_reads() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let rows = random_log(&mut random, 400);
        let whole = follow(HONEST, &[vec![&rows]]);
        let pieces = follow(HONEST, &cut_by_chance(&rows, &mut random));
        whole.and(pieces).unwrap_or_else(|difference| panic!("seed {seed}: {difference}"));
    }
}

/// Ways in which an index could misread a log.
const BROKEN: [Subject; 13] = [
    Subject { name: "commits read as aborts", hears: |row| swap(row, Kind::Commit, Kind::Abort), ..HONEST },
    Subject { name: "aborts are not seen", hears: |row| swap(row, Kind::Abort, Kind::Other), ..HONEST },
    Subject { name: "emptied markers count", hears: count_emptied, ..HONEST },
    Subject { name: "flags are not read", hears: |row| row.is_transactional = row.pid != -1, ..HONEST },
    Subject { name: "only epoch 0 is fenced", hears: |row| hide(row, row.epoch > 0), ..HONEST },
    Subject { name: "partitions are one", hears: merge_partitions, ..HONEST },
    Subject { name: "rows have no extent", hears: |row| row.last_offset = row.offset, ..HONEST },
    Subject { name: "timestamps are of no row", hears: |row| row.timestamp = -1, ..HONEST },
    Subject { name: "nothing is resolved later", change: |reported| reported.resolved.clear(), ..HONEST },
    Subject { name: "what is open is committed", change: |reported| settle(reported), ..HONEST },
    Subject {
        name: "the stable offset is the end",
        change: |reported| reported.partitions.iter_mut().for_each(forget_open),
        ..HONEST
    },
    Subject {
        name: "entries know no others",
        change: |reported| reported.partitions.iter_mut().for_each(alone),
        ..HONEST
    },
    Subject {
        name: "entries end with data",
        change: |reported| reported.partitions.iter_mut().for_each(end_with_data),
        ..HONEST
    },
];

fn swap(row: &mut LogRow, from: Kind, to: Kind) {
    if row.kind == from {
        row.kind = to;
    }
}

fn hide(row: &mut LogRow, is_hidden: bool) {
    if is_hidden && row.kind != Kind::Data {
        row.kind = Kind::Other;
    }
}

fn count_emptied(row: &mut LogRow) {
    if row.kind == Kind::Other && row.pid != -1 {
        row.kind = Kind::Commit;
    }
}

/// All rows in partition 0, with separate offsets.
fn merge_partitions(row: &mut LogRow) {
    row.offset = row.timestamp * 100;
    row.last_offset = row.offset;
    row.partition = 0;
}

type OfPartition = (Option<i64>, Option<i64>, Vec<AbortedTransaction>);

fn settle(reported: &mut Reported) {
    for outcome in reported.outcomes.iter_mut().filter(|outcome| **outcome == Outcome::Open) {
        *outcome = Outcome::Committed;
    }
}

fn forget_open((first_unstable, _, _): &mut OfPartition) {
    *first_unstable = None;
}

fn alone((_, _, aborted): &mut OfPartition) {
    aborted.iter_mut().for_each(|entry| entry.last_stable_offset = entry.last_offset + 1);
}

fn end_with_data((_, _, aborted): &mut OfPartition) {
    aborted.iter_mut().for_each(|entry| entry.last_offset -= 1);
}

#[test]
fn every_broken_reader_is_found_out() {
    for subject in BROKEN {
        let is_caught = (0..20).any(|seed| {
            let mut random = Random::new(seed);
            let rows = random_log(&mut random, 100);
            follow(subject, &cut_by_chance(&rows, &mut random)).is_err_and(|it| it.contains("expected"))
        });
        assert!(is_caught, "{} was not found out", subject.name);
    }
}

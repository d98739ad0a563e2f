//! The parts of the benchmark. Each judges, checks the answer and prints a line.

use crate::Options;
use crate::shape::Shape;
use crate::stream::{LATER_MS, OLD_MS, Rows, Stream, first_rows};
use crate::system::{Lines, forget_peak, peak_bytes, resident_bytes};
use fencepost_core::{Policy, StateTable, Verdict};
use std::fmt::Display;
use std::fs::File;
use std::hint::black_box;
use std::io::{BufReader, BufWriter};
use std::time::Instant;

const SEED: u64 = 1;
const RUN: usize = 20;
const TABLES: usize = 8;
/// How far back a row comes that does not come in order.
const LAG_MAX: u64 = 10_000;

/// Every part that was asked for, of one shape at one size.
pub(crate) fn measure(shape: &'static Shape, entries: usize, options: &Options) {
    let wants = |part: &str| options.parts.iter().any(|it| it == part);
    let tell = Teller { shape, entries };
    if ["build", "random", "runs", "snapshot"].into_iter().any(wants) {
        let mut table = if wants("build") {
            build(&tell, "build", options.rounds, || shape.table())
        } else {
            first_table(shape, entries, shape.policy())
        };
        let mut stream = Stream::after_first_rows(shape, entries);
        if wants("random") {
            random_keys(&tell, &mut table, &mut stream, options);
        }
        if wants("runs") {
            runs(&tell, &mut table, &mut stream, options);
        }
        if wants("snapshot") {
            snapshot(&tell, table, &mut stream, options);
        }
    }
    if wants("declared") {
        build(&tell, "declared", options.rounds, || shape.declared_table());
    }
    if wants("evict") && shape.has_timestamps {
        evict(&tell, options);
    }
    if wants("disorder") && shape.name == "any_order" {
        disorder(&tell, options);
    }
    if wants("threads") {
        threads(&tell, options);
    }
}

/// From nothing, growth included. What is resident is measured in the first round: later ones find the allocator's
/// leftovers.
fn build(tell: &Teller, part: &str, rounds: usize, new: impl Fn() -> StateTable) -> StateTable {
    let mut spent = Vec::new();
    let (mut growth, mut peak, mut longest, mut median) = (0, 0, 0, 0);
    let mut table = new();
    for round in 0..rounds {
        table = new();
        assert!(first_rows(tell.shape, tell.entries).next().is_some_and(|rows| rows.len() > 0));
        let is_peak_known = forget_peak();
        let before = resident_bytes();
        let mut tally = Tally::default();
        for rows in first_rows(tell.shape, tell.entries) {
            tally.judge(&mut table, &rows);
        }
        tally.check(0);
        assert_eq!(table.len(), tell.entries, "an entry for every key");
        if round == 0 {
            growth = resident_bytes().saturating_sub(before);
            peak = if is_peak_known { peak_bytes().saturating_sub(before) } else { 0 };
            (longest, median) = (tally.longest(), tally.median());
        }
        spent.push(tally.ns_a_row());
    }
    tell.line(
        part,
        &[
            ("ns_an_entry", list(&spent)),
            ("memory_bytes", table.memory_bytes().to_string()),
            ("dictionary_bytes", dictionary_bytes(&table).to_string()),
            ("resident_growth_bytes", growth.to_string()),
            ("peak_growth_bytes", peak.to_string()),
            ("longest_call_ns", longest.to_string()),
            ("median_call_ns", median.to_string()),
        ],
    );
    table
}

/// Rows of random keys, one by one, on a table that knows them all; and the same number of bare random reads.
fn random_keys(tell: &Teller, table: &mut StateTable, stream: &mut Stream, options: &Options) {
    let lines = Lines::of_bytes(table.memory_bytes() - dictionary_bytes(table));
    let indexes = lines.random_indexes(SEED, options.rows);
    let (mut spent, mut read, mut checksum, mut longest, mut median) = (vec![], vec![], None, 0, 0);
    // The first round warms up and is not counted.
    for round in 0..=options.rounds {
        let batches = stream.random(SEED, options.rows, 1);
        let before = (round % 2 == 0).then(|| lines.read(&indexes));
        let tally = judge_all(table, &batches);
        let seconds = before.unwrap_or_else(|| lines.read(&indexes));
        assert_eq!(*checksum.get_or_insert(tally.checksum), tally.checksum, "rounds differ in their verdicts");
        if round > 0 {
            spent.push(tally.ns_a_row());
            read.push(seconds * 1e9 / indexes.len() as f64);
            (longest, median) = (tally.longest().max(longest), tally.median());
        }
    }
    assert_eq!(table.len(), tell.entries, "no key is new");
    tell.line(
        "random",
        &[
            ("rows", options.rows.to_string()),
            ("ns_a_row", list(&spent)),
            ("ns_a_bare_read", list(&read)),
            ("longest_call_ns", longest.to_string()),
            ("median_call_ns", median.to_string()),
            ("checksum", quoted(format!("{:016x}", checksum.expect("a round")))),
        ],
    );
}

/// Rows in runs of 20 of a random key; and reading the same four columns once.
fn runs(tell: &Teller, table: &mut StateTable, stream: &mut Stream, options: &Options) {
    let (mut spent, mut read, mut checksum) = (vec![], vec![], Checksum::default());
    for round in 0..=options.rounds {
        let batches = stream.random(SEED + 1, options.rows, RUN);
        let rows: usize = batches.iter().map(Rows::len).sum();
        let begin = Instant::now();
        black_box(batches.iter().fold(0i64, |sum, rows| sum.wrapping_add(rows.sum())));
        let seconds = begin.elapsed().as_secs_f64();
        let tally = judge_all(table, &batches);
        checksum.add(&tally.checksum.0.to_le_bytes());
        if round > 0 {
            spent.push(tally.ns_a_row());
            read.push(seconds * 1e9 / rows as f64);
        }
    }
    tell.line(
        "runs",
        &[
            ("rows", options.rows.to_string()),
            ("ns_a_row", list(&spent)),
            ("ns_a_row_read", list(&read)),
            ("checksum", quoted(format!("{checksum:016x}"))),
        ],
    );
}

/// To a file and back, so many times. The table that comes back must judge as the one that went would have. Memory is
/// that of the first round: later ones find the allocator's leftovers.
fn snapshot(tell: &Teller, mut table: StateTable, stream: &mut Stream, options: &Options) {
    let rounds: Vec<_> = (0..options.rounds).map(|_| save_and_load(tell, &mut table, stream, options)).collect();
    let each = |of: fn(&Saved) -> f64| list(&rounds.iter().map(of).collect::<Vec<_>>());
    let first = &rounds[0];
    tell.line(
        "snapshot",
        &[
            ("save_seconds", each(|it| it.save)),
            ("sync_seconds", each(|it| it.sync)),
            ("load_seconds", each(|it| it.load)),
            ("file_bytes", first.bytes.to_string()),
            ("memory_bytes", first.memory_bytes.to_string()),
            ("save_extra_bytes", first.save_extra.to_string()),
            ("load_extra_bytes", first.load_extra.to_string()),
        ],
    );
}

/// What one way to a file and back took.
struct Saved {
    save: f64,
    sync: f64,
    load: f64,
    bytes: u64,
    memory_bytes: usize,
    save_extra: u64,
    load_extra: u64,
}

fn save_and_load(tell: &Teller, kept: &mut StateTable, stream: &mut Stream, options: &Options) -> Saved {
    let path = options.folder.join(format!("curve-{}.snapshot", std::process::id()));
    let table = std::mem::replace(kept, tell.shape.table());
    forget_peak();
    let before = resident_bytes();
    let begin = Instant::now();
    let mut out = BufWriter::with_capacity(1 << 20, File::create(&path).expect("a folder to write to"));
    table.write_snapshot(&mut out).expect("room on the disk");
    let file = out.into_inner().expect("room on the disk");
    let save = begin.elapsed().as_secs_f64();
    file.sync_all().expect("a disk that syncs");
    let sync = begin.elapsed().as_secs_f64() - save;
    let (save_extra, bytes) = (peak_bytes().saturating_sub(before), file.metadata().expect("a file").len());
    drop(table);

    forget_peak();
    let before = resident_bytes();
    let begin = Instant::now();
    let mut input = BufReader::with_capacity(1 << 20, File::open(&path).expect("the file just written"));
    let mut table = StateTable::read_snapshot(&mut input, bytes).expect("the snapshot just written");
    let load = begin.elapsed().as_secs_f64();
    let load_extra = peak_bytes().saturating_sub(before).saturating_sub(table.memory_bytes() as u64);
    std::fs::remove_file(&path).expect("the file just written");

    assert_eq!(table.len(), tell.entries, "every entry comes back");
    judge_all(&mut table, &stream.random(SEED + 2, options.rows.min(tell.entries), 1));
    let memory_bytes = table.memory_bytes();
    *kept = table;
    Saved { save, sync, load, bytes, memory_bytes, save_extra, load_extra }
}

/// One sweep that drops every other entry.
fn evict(tell: &Teller, options: &Options) {
    let mut spent = Vec::new();
    for _ in 0..options.rounds {
        let mut table = first_table(tell.shape, tell.entries, tell.shape.policy());
        let begin = Instant::now();
        let dropped = table.evict(OLD_MS + LATER_MS, LATER_MS).expect("a table that keeps timestamps");
        spent.push(begin.elapsed().as_secs_f64());
        assert_eq!(dropped, tell.entries.div_ceil(2), "every other key is old");
        assert_eq!(table.len(), tell.entries / 2, "the others stay");
    }
    tell.line("evict", &[("seconds", list(&spent))]);
}

/// `any_order` against `in_order` on ordered runs, and on the same rows with one in ten up to 10 k rows late.
fn disorder(tell: &Teller, options: &Options) {
    let preset = |name| Policy::preset(name).expect("a preset");
    let contests =
        [("in_order", "in_order", false), ("any_order", "any_order", false), ("displaced", "any_order", true)];
    let mut tables = contests.map(|(_, policy, _)| first_table(tell.shape, tell.entries, preset(policy)));
    let mut spent = contests.map(|_| Vec::new());
    let mut stream = Stream::after_first_rows(tell.shape, tell.entries);
    for round in 0..=options.rounds {
        let (ordered, displaced) = stream.ordered_and_displaced(SEED, options.rows, RUN, LAG_MAX);
        for turn in 0..contests.len() {
            let number = (round + turn) % contests.len();
            let is_displaced = contests[number].2;
            let tally = judge_all(&mut tables[number], if is_displaced { &displaced } else { &ordered });
            if round > 0 {
                spent[number].push(tally.ns_a_row());
            }
        }
    }
    let fields = contests.map(|(name, _, _)| name).into_iter().zip(spent.iter().map(|spent| list(spent)));
    tell.line("disorder", &fields.collect::<Vec<_>>());
}

/// Eight tables of an eighth of the entries each: one thread takes all of them, then two threads take four each.
fn threads(tell: &Teller, options: &Options) {
    let each = (tell.entries / TABLES).max(1);
    let mut tables: Vec<_> = (0..TABLES).map(|_| first_table(tell.shape, each, tell.shape.policy())).collect();
    let mut streams: Vec<_> = (0..TABLES).map(|_| Stream::after_first_rows(tell.shape, each)).collect();
    let (mut one, mut two) = (Vec::new(), Vec::new());
    for round in 0..=options.rounds {
        for (workers, spent) in [(1, &mut one), (2, &mut two)] {
            let rows = streams.iter_mut().zip(SEED..).map(|(it, seed)| it.random(seed, options.rows / TABLES, 1));
            let mut work: Vec<_> = tables.iter_mut().zip(rows.collect::<Vec<_>>()).collect();
            let begin = Instant::now();
            std::thread::scope(|scope| {
                while !work.is_empty() {
                    let part: Vec<_> = work.drain(..TABLES / workers).collect();
                    scope.spawn(|| part.into_iter().for_each(|(table, batches)| drop(judge_all(table, &batches))));
                }
            });
            if round > 0 {
                spent.push(begin.elapsed().as_secs_f64());
            }
        }
    }
    tell.line("threads", &[("seconds_by_one", list(&one)), ("seconds_by_two", list(&two))]);
}

fn first_table(shape: &'static Shape, entries: usize, policy: Policy) -> StateTable {
    let mut table = shape.table_of(policy);
    for rows in first_rows(shape, entries) {
        Tally::default().judge(&mut table, &rows);
    }
    assert_eq!(table.len(), entries, "an entry for every key");
    table
}

/// Judges batch by batch and makes sure that exactly the repeats are refused.
fn judge_all(table: &mut StateTable, batches: &[Rows]) -> Tally {
    let mut tally = Tally::default();
    let repeats = batches.iter().map(|rows| rows.repeats).sum();
    for rows in batches {
        tally.judge(table, rows);
    }
    tally.check(repeats);
    tally
}

/// What the calls of a round took and said.
#[derive(Default)]
struct Tally {
    calls_ns: Vec<u64>,
    rows: u64,
    refused: u64,
    checksum: Checksum,
}

impl Tally {
    /// The clock runs while names are numbered and rows are judged, and at no other time.
    fn judge(&mut self, table: &mut StateTable, rows: &Rows) {
        let begin = Instant::now();
        let pid = rows.numbers(&mut table.keys_mut().pid.dictionary);
        let judged = table.apply(&[rows.batch(&pid)]).expect("valid rows");
        self.calls_ns.push(begin.elapsed().as_nanos() as u64);
        self.rows += rows.len() as u64;
        self.refused += rows.len() as u64 - judged.counts[Verdict::Accepted as usize];
        self.checksum.add(&judged.verdicts);
    }

    fn check(&self, repeats: u64) {
        assert_eq!(self.refused, repeats, "exactly the repeats are refused");
    }

    fn ns_a_row(&self) -> f64 {
        self.calls_ns.iter().sum::<u64>() as f64 / self.rows as f64
    }

    fn longest(&self) -> u64 {
        self.calls_ns.iter().copied().max().unwrap_or(0)
    }

    fn median(&self) -> u64 {
        let mut sorted = self.calls_ns.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied().unwrap_or(0)
    }
}

/// A hash of verdicts, eight at a time. It depends on how they are cut into calls, which is always the same here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Checksum(u64);

impl Default for Checksum {
    fn default() -> Checksum {
        Checksum(0xcbf2_9ce4_8422_2325)
    }
}

impl Checksum {
    fn add(&mut self, bytes: &[u8]) {
        let add = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        let (words, rest) = bytes.as_chunks::<8>();
        self.0 = words.iter().fold(self.0, |hash, word| add(hash, u64::from_le_bytes(*word)));
        self.0 = rest.iter().fold(add(self.0, rest.len() as u64), |hash, &byte| add(hash, u64::from(byte)));
    }
}

impl std::fmt::LowerHex for Checksum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::LowerHex::fmt(&self.0, f)
    }
}

fn dictionary_bytes(table: &StateTable) -> usize {
    let keys = table.keys();
    keys.pid.dictionary.memory_bytes() + keys.partition.dictionary.memory_bytes()
}

/// Prints lines of JSON about one shape at one size.
struct Teller {
    shape: &'static Shape,
    entries: usize,
}

impl Teller {
    fn line(&self, part: &str, fields: &[(&str, String)]) {
        let path = if cfg!(feature = "portable") { "portable" } else { "fast" };
        let (shape, entries) = (self.shape.name, self.entries);
        print!(r#"{{"part": "{part}", "shape": "{shape}", "entries": {entries}, "path": "{path}""#);
        fields.iter().for_each(|(name, value)| print!(r#", "{name}": {value}"#));
        println!("}}");
    }
}

fn list(values: &[impl Display]) -> String {
    let texts: Vec<_> = values.iter().map(|value| value.to_string()).collect();
    format!("[{}]", texts.join(", "))
}

fn quoted(text: String) -> String {
    format!("\"{text}\"")
}

//! Nanoseconds a row by the shape of the input: with gaps, displaced, shuffled, and as they ought to be.
//!
//! ```text
//! shapes --rows 3000000 --keys 50000 --policy any_order,in_order --shape gaps,shuffled --rounds 3 --json true
//! ```
//!
//! Prints, for each policy and shape, the processor time of a row that comes first, of the same row again and of the
//! call's list of missing ranges; the first divided by that of the shape `ordered`; and a checksum of all answers, by
//! which two builds compare. With `--json true` a JSON object a line instead, with the nanoseconds of each round. Shapes
//! take turns, round by round. Verdicts and what is missing at the end are checked against a model.

use fencepost_bench::random;
use fencepost_core::{Admit, Batch, Policy, Seqs, StateTable, Verdict};
use std::collections::HashSet;
use std::hint::black_box;
use std::time::{SystemTime, UNIX_EPOCH};

/// Rows of a call.
const BATCH_ROWS: usize = 1 << 20;
/// How late a displaced row comes, in rows of its key, on average twice over.
const LATE_MAX: u64 = 10;

/// How the rows of a stream follow each other.
#[derive(Clone, Copy)]
enum Order {
    /// Rows of random keys; those of each key rise.
    Random,
    /// One key after the other.
    ByKey,
    /// One row in ten comes late.
    Near,
    /// Every row comes late, each by another distance.
    Mixed,
    /// Rows of each key fall.
    Falling,
    Shuffled,
}

/// A shape: sequence numbers step by 1 to `step_max`, runs are of `run` rows.
struct Shape {
    name: &'static str,
    step_max: u64,
    run: usize,
    order: Order,
}

static SHAPES: [Shape; 13] = [
    Shape { name: "ordered", step_max: 1, run: 1, order: Order::Random },
    Shape { name: "gaps", step_max: 11, run: 1, order: Order::Random },
    Shape { name: "few_gaps", step_max: 2, run: 20, order: Order::Random },
    Shape { name: "wide_gaps", step_max: 1000, run: 1, order: Order::Random },
    Shape { name: "runs", step_max: 1, run: 20, order: Order::Random },
    Shape { name: "by_key", step_max: 11, run: 1, order: Order::ByKey },
    Shape { name: "near", step_max: 1, run: 1, order: Order::Near },
    Shape { name: "near_gaps", step_max: 11, run: 1, order: Order::Near },
    Shape { name: "mixed", step_max: 1, run: 1, order: Order::Mixed },
    Shape { name: "falling", step_max: 1, run: 1, order: Order::Falling },
    Shape { name: "shuffled", step_max: 1, run: 1, order: Order::Shuffled },
    Shape { name: "shuffled_gaps", step_max: 11, run: 1, order: Order::Shuffled },
    Shape { name: "random_numbers", step_max: 20_000_000, run: 1, order: Order::Shuffled },
];

struct Options {
    rows: usize,
    keys: u64,
    rounds: usize,
    policies: Vec<String>,
    shapes: Vec<String>,
    is_json: bool,
}

/// The rows of a stream by column.
struct Stream {
    pid: Vec<i64>,
    seq: Vec<i32>,
    partition: Vec<i32>,
    epoch: Vec<i16>,
}

impl Stream {
    fn new(shape: &Shape, options: &Options) -> Stream {
        let mut state = 1;
        let mut next = vec![0; options.keys as usize];
        let mut rows = Vec::with_capacity(options.rows + shape.run);
        while rows.len() < options.rows {
            let key = random(&mut state) % options.keys;
            let from = &mut next[key as usize];
            rows.extend((*from..*from + shape.run as i32).map(|seq| (key as i64, seq)));
            *from += (shape.run as u64 + random(&mut state) % shape.step_max) as i32;
        }
        order(&mut rows, shape.order, options.keys, &mut state);
        let (pid, seq) = rows.into_iter().unzip::<_, _, Vec<i64>, Vec<i32>>();
        Stream { partition: vec![0; pid.len()], epoch: vec![0; pid.len()], pid, seq }
    }

    fn batches(&self) -> impl Iterator<Item = Batch<'_>> {
        (0..self.pid.len()).step_by(BATCH_ROWS).map(|from| {
            let rows = from..(from + BATCH_ROWS).min(self.pid.len());
            Batch {
                pid: &self.pid[rows.clone()],
                partition: &self.partition[rows.clone()],
                epoch: Some(&self.epoch[rows.clone()]),
                seq: Seqs::I32(&self.seq[rows]),
                timestamp: None,
            }
        })
    }
}

fn order(rows: &mut [(i64, i32)], order: Order, keys: u64, state: &mut u64) {
    let mut late_by = |share: u64| match random(state).is_multiple_of(share) {
        true => random(state) % (LATE_MAX * keys),
        false => 0,
    };
    match order {
        Order::Random => {}
        Order::ByKey => rows.sort_unstable(),
        Order::Near => delay(rows, || late_by(10)),
        Order::Mixed => delay(rows, || late_by(1)),
        Order::Falling => rows.reverse(),
        Order::Shuffled => delay(rows, || random(state)),
    }
}

/// Moves each row back by as many rows as it is late.
fn delay(rows: &mut [(i64, i32)], mut late_by: impl FnMut() -> u64) {
    let mut places: Vec<_> = (0u64..).zip(&*rows).map(|(place, &row)| (place.saturating_add(late_by()), row)).collect();
    places.sort_by_key(|&(place, _)| place);
    rows.iter_mut().zip(places).for_each(|(row, (_, moved))| *row = moved);
}

/// What a right judge says: how many rows it accepts, first and again, and the ranges and rows missing at the end.
fn model(stream: &Stream, policy: &Policy, keys: u64) -> ([u64; 2], u64, u64) {
    let mut seen = HashSet::with_capacity(stream.pid.len());
    let mut last = vec![None; keys as usize];
    let accepted = [(); 2].map(|()| {
        let mut accepted = 0;
        for (&pid, &seq) in stream.pid.iter().zip(&stream.seq) {
            let last: &mut Option<i32> = &mut last[pid as usize];
            let is_accepted = match policy.admit {
                Admit::Any => !seen.contains(&(pid, seq)),
                Admit::Forward => last.is_none_or(|last| seq > last),
                Admit::Next => last.is_none_or(|last| seq == last + 1),
            };
            if is_accepted {
                seen.insert((pid, seq));
                *last = (*last).max(Some(seq));
                accepted += 1;
            }
        }
        accepted
    });
    let mut kept: Vec<_> = seen.into_iter().collect();
    kept.sort_unstable();
    let steps = kept.windows(2).filter(|pair| pair[0].0 == pair[1].0).map(|pair| (pair[1].1 - pair[0].1) as u64);
    let gaps = steps.filter(|&step| step > 1).fold((0, 0), |(ranges, rows), step| (ranges + 1, rows + step - 1));
    (accepted, gaps.0, gaps.1)
}

/// Processor time in nanoseconds.
struct Times {
    first: f64,
    again: f64,
    list: f64,
    checksum: u64,
}

fn measure(stream: &Stream, policy: Policy, expected: ([u64; 2], u64, u64)) -> Times {
    let mut table = StateTable::new(policy).expect("a preset");
    let mut times = Times { first: 0.0, again: 0.0, list: 0.0, checksum: 0 };
    for pass in 0..2 {
        let mut accepted = 0;
        for batch in stream.batches() {
            let begin = cpu_ns();
            let judged = table.apply(&[batch]).expect("valid rows");
            let judged_at = cpu_ns();
            judged.missing(table.keys()).for_each(|missing| _ = black_box(missing));
            let listed_at = cpu_ns();
            *[&mut times.first, &mut times.again][pass] += judged_at - begin;
            times.list += listed_at - judged_at;
            accepted += judged.counts[Verdict::Accepted as usize];
            for word in judged.missing(table.keys()).flat_map(|it| [it.pid as u64, it.first_seq as u64, it.count]) {
                times.checksum = times.checksum.wrapping_mul(31).wrapping_add(word);
            }
            for word in judged.counts.into_iter().chain(judged.verdicts.iter().map(|&it| it.into())) {
                times.checksum = times.checksum.wrapping_mul(31).wrapping_add(word);
            }
        }
        assert_eq!(accepted, expected.0[pass], "accepted rows");
    }
    let (mut ranges, mut rows) = (0, 0);
    table.for_each_missing(|missing| (ranges, rows) = (ranges + 1, rows + missing.count));
    let is_reported = policy.admit != Admit::Next;
    assert_eq!((ranges, rows), if is_reported { (expected.1, expected.2) } else { (0, 0) }, "missing at the end");
    times
}

/// What this thread has used of the processor, in which other processes do not show. The time of day where the system does
/// not tell.
fn cpu_ns() -> f64 {
    let of_thread = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let ns = of_thread.and_then(|it| it.split_whitespace().next()?.parse().ok());
    ns.unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |it| it.as_nanos() as f64))
}

fn main() {
    let options = options(std::env::args().skip(1));
    if !options.is_json {
        println!(
            "{:<11} {:<14} {:>6} {:>6} {:>6} {:>7}  checksum",
            "policy", "shape", "first", "again", "list", "times"
        );
    }
    for name in &options.policies {
        let policy = Policy::preset(name).unwrap_or_else(|| panic!("{name} is not a preset"));
        let is_wanted = |it: &&Shape| it.name == "ordered" || options.shapes.iter().any(|name| it.name == name);
        let contests: Vec<_> = SHAPES.iter().filter(is_wanted).map(|it| Contest::new(it, &policy, &options)).collect();
        let mut rounds: Vec<Vec<Times>> = contests.iter().map(|_| Vec::new()).collect();
        for round in 0..options.rounds {
            for turn in 0..contests.len() {
                let number = (round + turn) % contests.len();
                rounds[number].push(measure(&contests[number].stream, policy, contests[number].expected));
            }
        }
        let mut ordered = None;
        for (contest, rounds) in contests.iter().zip(&rounds) {
            let rows = contest.stream.pid.len() as f64;
            let each = |of: fn(&Times) -> f64| rounds.iter().map(move |it| of(it) / rows);
            let best = |of: fn(&Times) -> f64| each(of).fold(f64::INFINITY, f64::min);
            let (shape, checksum) = (contest.shape.name, rounds[0].checksum);
            if options.is_json {
                let [first, again, list] = [each(|it| it.first), each(|it| it.again), each(|it| it.list)]
                    .map(|of| of.map(|ns| ns.to_string()).collect::<Vec<_>>().join(", "));
                println!(
                    r#"{{"part": "order", "policy": "{name}", "shape": "{shape}", "rows": {rows}, "keys": {}, "first": [{first}], "again": [{again}], "list": [{list}], "checksum": "{checksum:016x}"}}"#,
                    options.keys
                );
                continue;
            }
            let (first, again, list) = (best(|it| it.first), best(|it| it.again), best(|it| it.list));
            let times = first / *ordered.get_or_insert(first);
            println!("{name:<11} {shape:<14} {first:6.1} {again:6.1} {list:6.1} {times:7.1}  {checksum:016x}");
        }
    }
}

/// A shape's rows and the right answer.
struct Contest {
    shape: &'static Shape,
    stream: Stream,
    expected: ([u64; 2], u64, u64),
}

impl Contest {
    fn new(shape: &'static Shape, policy: &Policy, options: &Options) -> Contest {
        let stream = Stream::new(shape, options);
        let expected = model(&stream, policy, options.keys);
        Contest { shape, stream, expected }
    }
}

fn options(mut args: impl Iterator<Item = String>) -> Options {
    let mut options = Options {
        rows: 3_000_000,
        keys: 50_000,
        rounds: 3,
        policies: vec!["any_order".into(), "in_order".into()],
        shapes: SHAPES.iter().map(|it| it.name.into()).collect(),
        is_json: false,
    };
    let names = |value: String| value.split(',').map(String::from).collect();
    while let Some(name) = args.next() {
        let value = args.next().unwrap_or_else(|| panic!("{name} needs a value"));
        match name.as_str() {
            "--rows" => options.rows = value.parse().expect("a number of rows"),
            "--keys" => options.keys = value.parse().expect("a number of keys"),
            "--rounds" => options.rounds = value.parse().expect("a number of rounds"),
            "--policy" => options.policies = names(value),
            "--shape" => options.shapes = names(value),
            "--json" => options.is_json = value.parse().expect("true or false"),
            _ => panic!("no option {name}: --rows, --keys, --rounds, --policy, --shape, --json"),
        }
    }
    options
}

//! The core against the naive oracle: every short stream there is, and long ones from seeds.

use fencepost_core::{Batch, Epochs, Judged, Policy, Seqs, StateTable};
use fencepost_testkit::oracle::{self, Oracle, Tracked};
use fencepost_testkit::workload::{Random, Row, SMALL_WORLD, Shape, exhaustive, stream};

/// Rows as columns, cut where `cuts` says.
struct Input {
    pid: Vec<i64>,
    partition: Vec<i32>,
    epoch: Vec<i16>,
    seq: Vec<i64>,
    narrow: Vec<i32>,
}

impl Input {
    fn of(rows: &[Row]) -> Input {
        Input {
            pid: rows.iter().map(|row| row.pid).collect(),
            partition: rows.iter().map(|row| row.partition).collect(),
            epoch: rows.iter().map(|row| row.epoch).collect(),
            seq: rows.iter().map(|row| row.seq).collect(),
            narrow: rows.iter().map(|row| row.seq as i32).collect(),
        }
    }

    fn batch(&self, from: usize, to: usize, has_epochs: bool, is_narrow: bool) -> Batch<'_> {
        Batch {
            pid: &self.pid[from..to],
            partition: &self.partition[from..to],
            epoch: has_epochs.then_some(&self.epoch[from..to]),
            seq: if is_narrow { Seqs::I32(&self.narrow[from..to]) } else { Seqs::I64(&self.seq[from..to]) },
            timestamp: None,
        }
    }
}

/// The same policy in the core's words and in the oracle's.
#[derive(Clone)]
struct Policies {
    name: String,
    core: Policy,
    oracle: oracle::Policy,
}

impl Policies {
    fn new(preset: &str, fields: &[(&str, &str)]) -> Policies {
        let mut core = Policy::preset(preset).expect("a preset");
        for (field, value) in fields {
            core.set(field, value).expect("a field");
        }
        let owned: Vec<_> = fields.iter().map(|&(field, value)| (field.to_string(), value.to_string())).collect();
        let oracle = oracle::Policy::named(preset, &owned).expect("a policy that the oracle takes too");
        Policies { name: format!("{preset} {fields:?}"), core, oracle }
    }

    fn has_epochs(&self) -> bool {
        self.core.epochs != Epochs::Ignore
    }

    fn has_narrow_seqs(&self) -> bool {
        self.core.wrap.is_some_and(|wrap| wrap <= 1 << 31)
    }
}

type Key = (i64, i32);

fn tracked(row: &Row) -> Option<Tracked<Key>> {
    let key = (row.pid, row.partition);
    (row.pid != -1).then(|| Tracked { key, epoch: row.epoch.into(), seq: row.seq, timestamp: 0 })
}

/// Everything that a call says, in a form that both sides can be brought to.
type Said = (Vec<u8>, Vec<(u64, i64)>, Vec<(Key, i64, i64, i64, i64)>, u64, u64);

fn core_said(judged: Judged) -> Said {
    let missing = judged
        .missing
        .iter()
        .map(|it| ((it.pid, it.partition), it.epoch.into(), it.first_seq, it.last_seq, it.count as i64));
    (judged.verdicts.clone(), judged.expected.clone(), missing.collect(), judged.stale_epoch, judged.border)
}

fn oracle_said(judged: oracle::Judged<Key>) -> Said {
    let code = |verdict: &oracle::Verdict| {
        fencepost_core::Verdict::ALL.iter().position(|it| it.name() == verdict.name()).expect("a verdict") as u8
    };
    let missing =
        judged.missing.iter().map(|it| (it.key, it.epoch.unwrap_or(0), it.first_seq, it.last_seq, it.count)).collect();
    let expected = judged.expected.iter().enumerate().filter_map(|(row, &seq)| Some((row as u64, seq?))).collect();
    (judged.verdicts.iter().map(code).collect(), expected, missing, judged.stale_epoch, judged.border)
}

fn core_open(table: &StateTable) -> Vec<(Key, i64, i64, i64)> {
    table.missing().map(|it| ((it.pid, it.partition), it.epoch.into(), it.first_seq, it.last_seq)).collect()
}

fn oracle_open(oracle: &Oracle<Key>) -> Vec<(Key, i64, i64, i64)> {
    oracle.missing().iter().map(|it| (it.key, it.epoch.unwrap_or(0), it.first_seq, it.last_seq)).collect()
}

/// Judges a stream in one call on both sides; `Err` says how they differ.
fn compare(policies: &Policies, core: Policy, rows: &[Row]) -> Result<(), String> {
    let input = Input::of(rows);
    let mut table = StateTable::new(core).expect("a valid policy");
    let batch = input.batch(0, rows.len(), policies.has_epochs(), policies.has_narrow_seqs());
    let said = core_said(table.apply(&[batch]).expect("valid rows"));
    let mut oracle = Oracle::new(policies.oracle);
    let truth = oracle_said(oracle.apply(&rows.iter().map(tracked).collect::<Vec<_>>()));
    if said != truth || core_open(&table) != oracle_open(&oracle) || table.len() != oracle.len() {
        return Err(format!("{}: {rows:?}\ncore   {said:?}\noracle {truth:?}", policies.name));
    }
    Ok(())
}

fn small_policies() -> Vec<Policies> {
    let mut all = vec![
        Policies::new("any_order", &[("wrap", "4")]),
        Policies::new("in_order", &[("wrap", "4")]),
        Policies::new("kafka", &[("wrap", "4"), ("window", "2")]),
        Policies::new("strict", &[("wrap", "4")]),
        Policies::new("watermark", &[]),
        Policies::new("kafka_offsets", &[]),
        Policies::new("kafka", &[("wrap", "4"), ("window", "3"), ("epochs", "key")]),
        Policies::new("in_order", &[("wrap", "4"), ("late", "duplicate"), ("first", "zero"), ("max_jump", "2")]),
    ];
    for fields in [&[("first", "zero")][..], &[("max_jump", "1")], &[("epochs", "fence")], &[("gaps", "normal")]] {
        all.push(Policies::new("any_order", &[&[("wrap", "4")], fields].concat()));
    }
    all
}

fn small_streams(length: usize) -> impl Iterator<Item = Vec<Row>> {
    let row = |(epoch, seq)| Row { pid: 1, epoch, partition: 0, seq };
    exhaustive(length, &SMALL_WORLD).map(move |pairs| pairs.into_iter().map(row).collect())
}

#[test]
fn every_short_stream_is_judged_as_the_oracle_judges() {
    let mut streams = 0;
    for policies in small_policies() {
        for rows in small_streams(5) {
            compare(&policies, policies.core, &rows).unwrap_or_else(|difference| panic!("{difference}"));
            streams += 1;
        }
    }
    assert_eq!(streams, 12 * 8usize.pow(5));
}

#[test]
fn the_small_world_finds_a_broken_core() {
    let broken: [fn(&mut Policy); 4] = [
        |policy| policy.window += 1,
        |policy| policy.max_jump = None,
        |policy| policy.first = fencepost_core::First::Any,
        |policy| policy.epochs = Epochs::Ignore,
    ];
    for (number, change) in broken.into_iter().enumerate() {
        let differs = small_policies().iter().any(|policies| {
            let mut core = policies.core;
            change(&mut core);
            let policies = Policies { core, ..policies.clone() };
            core.validate().is_ok() && small_streams(4).any(|rows| compare(&policies, core, &rows).is_err())
        });
        assert!(differs, "broken core {number} was not found out");
    }
}

/// Cuts a stream into batches and the batches into calls at random; the verdicts must not show it.
fn judge_in_pieces(policies: &Policies, rows: &[Row], random: &mut Random) -> (StateTable, Vec<u8>, u64, u64) {
    let input = Input::of(rows);
    let mut table = StateTable::new(policies.core).expect("a valid policy");
    let (mut verdicts, mut stale, mut border) = (Vec::new(), 0, 0);
    let mut from = 0;
    while from < rows.len() {
        let mut batches = Vec::new();
        for _ in 0..=random.below(3) {
            let to = (from + random.below(40) as usize).min(rows.len());
            let is_narrow = policies.has_narrow_seqs() && random.chance(50);
            batches.push(input.batch(from, to, policies.has_epochs(), is_narrow));
            from = to;
        }
        let checked = table.check(&batches).expect("valid rows");
        let judged = table.apply(&batches).expect("valid rows");
        assert_eq!(checked, judged, "check and apply disagree");
        verdicts.extend(judged.verdicts);
        stale += judged.stale_epoch;
        border += judged.border;
        if random.chance(20) {
            let bytes = table.snapshot();
            table = StateTable::restore(&bytes).expect("its own snapshot");
            assert_eq!(table.snapshot(), bytes, "restoring shows");
        }
    }
    (table, verdicts, stale, border)
}

/// Rows of many keys, some of several epochs, some without a producer.
fn many_keys(random: &mut Random, count: usize) -> Vec<Row> {
    let row = |random: &mut Random| Row {
        pid: random.below(60) as i64 - 1,
        epoch: if random.chance(80) { 1 } else { random.below(4) as i16 },
        partition: random.below(200) as i32,
        seq: random.below(12) as i64,
    };
    (0..count).map(|_| row(random)).collect()
}

#[test]
fn checking_many_keys_and_epochs_says_what_applying_says() {
    for preset in fencepost_core::PRESETS {
        let policies = Policies::new(preset.name, &[]);
        let mut table = StateTable::new(policies.core).expect("a valid policy");
        let mut random = Random::new(7);
        for count in [1, 300, 60_000, 20_000] {
            let input = Input::of(&many_keys(&mut random, count));
            let cuts = [0, count / 3, count / 2, count];
            let batch = |cut: &[usize]| input.batch(cut[0], cut[1], policies.has_epochs(), policies.has_narrow_seqs());
            let batches: Vec<_> = cuts.windows(2).map(batch).collect();
            let before = table.snapshot();
            let checked = table.check(&batches).expect("valid rows");
            assert!(table.snapshot() == before, "{}: a check leaves a trace", preset.name);
            assert!(checked == table.apply(&batches).expect("valid rows"), "{}: they disagree", preset.name);
        }
        assert!(table.len() > 4_000, "{}: {} entries", preset.name, table.len());
    }
}

#[test]
fn long_streams_obey_the_laws() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        for policies in [small_policies(), large_policies()].concat() {
            let rows = stream(random.bits(), 3_000, &Shape::mixed(policies.core.wrap));
            compare(&policies, policies.core, &rows).unwrap_or_else(|it| panic!("seed {seed}: {it}"));
            let whole = judge_in_pieces(&policies, &rows, &mut Random::new(seed + 1));
            let again = judge_in_pieces(&policies, &rows, &mut Random::new(seed + 2));
            assert_eq!((&whole.1, whole.2, whole.3), (&again.1, again.2, again.3), "seed {seed}: a cut shows");
            assert_eq!(whole.0.snapshot(), again.0.snapshot(), "seed {seed}: equal tables, other bytes");
        }
    }
}

/// The layouts of wide and of narrow sequence spaces, and windows that do not fit in a line's slot.
fn large_policies() -> Vec<Policies> {
    vec![
        Policies::new("any_order", &[]),
        Policies::new("any_order", &[("wrap", "64")]),
        Policies::new("any_order", &[("wrap", "none")]),
        Policies::new("in_order", &[("wrap", "256"), ("max_jump", "50")]),
        Policies::new("in_order", &[("wrap", "none"), ("epochs", "key")]),
        Policies::new("kafka", &[]),
        Policies::new("kafka", &[("wrap", "64"), ("window", "40")]),
        Policies::new("kafka", &[("wrap", "none"), ("window", "100"), ("epochs", "key")]),
        Policies::new("strict", &[("window", "14")]),
    ]
}

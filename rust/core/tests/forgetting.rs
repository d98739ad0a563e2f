//! Tests eviction and merging with the naive oracle: all short histories, and long seeded ones.

use fencepost_core::{Batch, Entry, Judged, KeyKind, PartKind, Policy, Seqs, StateTable, Verdict, encode_bytes};
use fencepost_testkit::pair::{Columns, Pair, Rules};
use fencepost_testkit::workload::{Random, Row, Shape, exhaustive, stream};

/// An operation on a table.
#[derive(Clone, Debug)]
enum Step {
    /// Rows and their timestamps.
    Rows(Vec<(Row, i64)>),
    Evict {
        now: i64,
        idle: i64,
    },
    Forget {
        pid: i64,
        partition: Option<i32>,
    },
}

/// Runs a step on both sides, with rows divided by `random`. `Err` has the difference.
fn take(pair: &mut Pair, step: &Step, random: &mut Random) -> Result<(), String> {
    match step {
        Step::Rows(rows) => apply_in_pieces(pair, rows, random)?,
        Step::Evict { now, idle } => pair.evict(*now, *idle)?,
        Step::Forget { pid, partition } => pair.forget(*pid, *partition)?,
    }
    pair.compare().map_err(|difference| format!("{step:?}: {difference}"))
}

fn apply_in_pieces(pair: &mut Pair, rows: &[(Row, i64)], random: &mut Random) -> Result<(), String> {
    let mut rest = rows;
    while !rest.is_empty() {
        let mut batches = Vec::new();
        for _ in 0..=random.below(3) {
            let (piece, after) = rest.split_at(rest.len().min(1 + random.below(30) as usize));
            batches.push(Columns::of(piece.iter().copied()));
            rest = after;
        }
        pair.apply(&batches)?;
    }
    if random.chance(20) { pair.restore() } else { Ok(()) }
}

fn small_rules() -> Vec<Rules> {
    let mut all = vec![
        Rules::new("any_order", &[("wrap", "8"), ("reach", "2")], false),
        Rules::new("any_order", &[("wrap", "8"), ("reach", "1"), ("first", "zero")], true),
        Rules::new("in_order", &[("wrap", "8"), ("reach", "2")], true),
        Rules::new("kafka", &[("wrap", "8"), ("window", "2")], true),
        Rules::new("strict", &[("wrap", "8")], true),
        Rules::new("watermark", &[], true),
        Rules::new("kafka_offsets", &[("reach", "3")], true),
    ];
    for fields in [&[][..], &[("first", "zero")], &[("max_jump", "2")], &[("epochs", "fence")], &[("reach", "1")]] {
        all.push(Rules::new("any_order", &[&[("wrap", "8")], fields].concat(), true));
    }
    all
}

/// Rows of one key, before and after the horizon, and an eviction that drops entries with only old rows.
fn small_histories(rules: &Rules, length: usize) -> impl Iterator<Item = Vec<Step>> {
    let row = |epoch, seq, timestamp| Step::Rows(vec![(Row { pid: 1, epoch, partition: 0, seq }, timestamp)]);
    let span =
        |seq| Step::Rows((seq..seq + 3).map(|it| (Row { pid: 1, epoch: 0, partition: 0, seq: it }, it)).collect());
    let mut alphabet: Vec<_> = [0, 1, 2, 4, 5, 7].map(|seq| row(0, seq, 9)).into();
    alphabet.extend([row(0, 3, 1), row(0, 6, 1), row(1, 0, 9), span(1), span(4)]);
    alphabet.push(if rules.keeps_timestamp { Step::Evict { now: 2, idle: 0 } } else { row(1, 6, 1) });
    let letters: Vec<_> = (0..alphabet.len()).map(|letter| (0, letter as i64)).collect();
    let spell = move |word: Vec<(i16, i64)>| word.into_iter().map(|(_, it)| alphabet[it as usize].clone()).collect();
    exhaustive(length, &letters).map(spell).collect::<Vec<_>>().into_iter()
}

fn first_difference(rules: &Rules, history: &[Step]) -> Option<String> {
    let mut pair = Pair::new(rules);
    let random = &mut Random::new(history.len() as u64);
    history.iter().find_map(|step| take(&mut pair, step, random).err())
}

#[test]
fn every_short_history_is_remembered_as_the_oracle_remembers() {
    for rules in small_rules() {
        for history in small_histories(&rules, 4) {
            if let Some(difference) = first_difference(&rules, &history) {
                panic!("{history:?}\n{difference}");
            }
        }
    }
}

#[test]
fn the_small_world_finds_a_core_with_another_reach() {
    for change in [1, u64::MAX] {
        let differs = small_rules().into_iter().any(|mut rules| {
            rules.core.reach = rules.core.reach.map(|reach| reach.wrapping_add(change));
            let is_valid = rules.core.validate().is_ok();
            is_valid && small_histories(&rules, 3).any(|history| first_difference(&rules, &history).is_some())
        });
        assert!(differs, "a core whose reach differs by {change} was not found out");
    }
}

fn large_rules() -> Vec<Rules> {
    vec![
        Rules::new("any_order", &[], true),
        Rules::new("any_order", &[("wrap", "64"), ("reach", "6")], true),
        Rules::new("any_order", &[("reach", "20")], false),
        Rules::new("any_order", &[("wrap", "none"), ("first", "zero"), ("reach", "9")], true),
        Rules::new("any_order", &[("epochs", "fence")], true),
        Rules::new("in_order", &[("wrap", "256"), ("reach", "10"), ("max_jump", "50")], true),
        Rules::new("in_order", &[("wrap", "none"), ("epochs", "key")], true),
        Rules::new("kafka", &[], true),
        Rules::new("kafka", &[("wrap", "none"), ("window", "100"), ("epochs", "key")], true),
        Rules::new("strict", &[("window", "14")], true),
        Rules::new("watermark", &[], true),
        Rules::new("kafka_offsets", &[], true),
    ]
}

/// A stream whose timestamps increase by ten per row, with some rows late by up to five hundred, and with evictions and
/// forgotten keys in between.
fn history(random: &mut Random, rules: &Rules, rows: usize) -> Vec<Step> {
    let rows = stream(random.bits(), rows, &Shape::mixed(rules.core.wrap));
    let mut steps = Vec::new();
    let mut now = 0;
    let mut rest = &rows[..];
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(rest.len().min(1 + random.below(120) as usize));
        let timed = |row: &Row| {
            now += 10;
            (*row, if random.chance(70) { now } else { now - random.below(500) as i64 })
        };
        steps.push(Step::Rows(piece.iter().map(timed).collect()));
        if rules.keeps_timestamp && random.chance(60) {
            steps.push(Step::Evict { now: now - random.below(100) as i64, idle: random.below(600) as i64 });
        }
        if random.chance(10) {
            let partition = random.chance(50).then(|| random.below(3) as i32);
            steps.push(Step::Forget { pid: random.below(4) as i64, partition });
        }
        rest = after;
    }
    steps
}

#[test]
fn long_histories_are_remembered_as_the_oracle_remembers() {
    for seed in 0..25 {
        for rules in large_rules() {
            let mut random = Random::new(seed);
            let history = history(&mut random, &rules, 1_500);
            let tables = [1, 2].map(|cut| {
                let mut pair = Pair::new(&rules);
                let random = &mut Random::new(seed + cut);
                for step in &history {
                    take(&mut pair, step, random).unwrap_or_else(|it| panic!("seed {seed}: {it}"));
                }
                pair.table
            });
            assert_eq!(tables[0].snapshot(), tables[1].snapshot(), "seed {seed}: equal tables, other bytes");
        }
    }
}

#[test]
fn no_row_above_the_horizon_is_accepted_twice() {
    let mut copies = 0;
    for seed in 0..25 {
        for (preset, fields) in [
            ("any_order", &[("epochs", "fence")][..]),
            ("any_order", &[]),
            ("any_order", &[("epochs", "fence"), ("reach", "9")]),
            ("in_order", &[]),
            ("kafka", &[]),
            ("strict", &[]),
            ("watermark", &[]),
        ] {
            let rules = Rules::new(preset, &[&[("wrap", "none")], fields].concat(), true);
            let random = &mut Random::new(seed);
            let mut table = rules.table();
            let mut accepted: Vec<(Row, i64)> = Vec::new();
            for step in history(random, &rules, 1_500) {
                match step {
                    Step::Rows(rows) => {
                        let judged = table.apply(&[Columns::of(rows.iter().copied()).batch(&rules.core)]);
                        accepted.extend(accepted_of(&rows, judged.expect("valid rows")));
                    }
                    Step::Evict { now, idle } => drop(table.evict(now, idle).expect("timestamps are kept")),
                    Step::Forget { .. } => continue,
                }
                let horizon = table.horizon_ms().unwrap_or(i64::MIN);
                accepted.retain(|(_, timestamp)| *timestamp > horizon);
                let copies_judged = table.check(&[Columns::of(accepted.iter().copied()).batch(&rules.core)]);
                let twice = accepted_of(&accepted, copies_judged.expect("valid rows"));
                assert!(twice.is_empty(), "seed {seed}, {preset} {fields:?}: accepted twice: {:?}", twice[0]);
                copies += accepted.len();
            }
        }
    }
    assert!(copies > 100_000, "only {copies} copies");
}

/// The rows of a call that were accepted.
fn accepted_of(rows: &[(Row, i64)], judged: Judged) -> Vec<(Row, i64)> {
    let verdicts = rows.iter().zip(judged.verdicts);
    verdicts.filter(|(_, verdict)| *verdict == Verdict::Accepted as u8).map(|(row, _)| *row).collect()
}

fn merged(tables: &[&StateTable]) -> StateTable {
    let mut all = StateTable::new(tables[0].policy()).expect("valid").with_keep_timestamp(tables[0].keeps_timestamp());
    tables.iter().for_each(|table| drop(all.merge(table).expect("tables of one policy")));
    all
}

/// All of a table except the timestamps of its holes, which depend on the order of merges.
fn positions(table: &StateTable) -> Vec<Entry> {
    let mut entries: Vec<_> = table.entries().collect();
    entries.iter_mut().flat_map(|entry| &mut entry.holes).for_each(|hole| hole.timestamp = None);
    entries
}

fn mergeable_rules() -> Vec<Rules> {
    vec![
        Rules::new("any_order", &[("wrap", "4096"), ("gaps", "normal")], false),
        Rules::new("any_order", &[("wrap", "none")], true),
        Rules::new("any_order", &[("wrap", "none"), ("first", "zero"), ("reach", "40")], true),
        Rules::new("any_order", &[("wrap", "none"), ("epochs", "fence")], true),
        Rules::new("kafka_offsets", &[("reach", "15")], false),
    ]
}

#[test]
fn merging_is_a_union_as_the_oracle_makes_it() {
    let mut overlaps = 0;
    for seed in 0..150 {
        let random = &mut Random::new(seed);
        for rules in mergeable_rules() {
            let mut pairs = [(); 3].map(|()| {
                let mut pair = Pair::new(&rules);
                for step in history(random, &rules, 200) {
                    take(&mut pair, &step, random).unwrap_or_else(|it| panic!("seed {seed}: {it}"));
                }
                pair
            });
            let [a, b, c] = &mut pairs;
            let (before, other) = (a.table.snapshot(), b.table.snapshot());
            let count = a.merge(b).unwrap_or_else(|it| panic!("seed {seed}: {it}"));
            let Some(count) = count else { continue };
            a.compare().unwrap_or_else(|it| panic!("seed {seed}: {it}"));
            overlaps += count;
            let union = &a.table;
            let restore = |bytes: &[u8]| StateTable::restore(bytes).expect("its own snapshot");
            let (first, second) = (restore(&before), restore(&other));
            assert_eq!(merged(&[&second, &first]).snapshot(), union.snapshot(), "seed {seed}: not commutative");
            assert_eq!(merged(&[union, union]).snapshot(), union.snapshot(), "seed {seed}: not idempotent");
            let again = merged(&[union, &first, &second]);
            assert_eq!(positions(&again), positions(union), "seed {seed}: what is known changes something");
            if rules.core.wrap.is_none() {
                let orders = [merged(&[&first, &second, &c.table]), merged(&[&c.table, &second, &first])];
                let nested = merged(&[&first, &merged(&[&second, &c.table])]);
                assert_eq!(positions(&orders[0]), positions(&orders[1]), "seed {seed}: the order shows");
                assert_eq!(positions(&orders[0]), positions(&nested), "seed {seed}: not associative");
            }
            let step = Step::Rows(
                stream(seed, 200, &Shape::mixed(rules.core.wrap)).into_iter().map(|it| (it, 1_500)).collect(),
            );
            take(a, &step, random).unwrap_or_else(|it| panic!("seed {seed}, after merging: {it}"));
        }
    }
    assert!(overlaps > 1_000, "only {overlaps} overlaps");
}

/// One row per numbered producer.
fn name_and_apply(table: &mut StateTable, names: std::ops::Range<u32>, timestamp: i64) -> Vec<u8> {
    let (pid, partition) = (KeyKind::Parts(vec![PartKind::Utf8]), KeyKind::Plain);
    table.keys_mut().fix(pid, partition).expect("the first use, or the same again");
    let name = |it: u32| {
        let mut bytes = Vec::new();
        encode_bytes(&mut bytes, format!("producer {it}").as_bytes());
        bytes
    };
    let pid: Vec<i64> =
        names.map(|it| table.keys_mut().pid.dictionary.intern(&name(it)).expect("memory").into()).collect();
    let (partition, epoch, seq) = (vec![0; pid.len()], vec![0; pid.len()], vec![5; pid.len()]);
    let timestamp = vec![timestamp; pid.len()];
    let (epoch, seq, timestamp) = (Some(&epoch[..]), Seqs::I32(&seq), Some(&timestamp[..]));
    table.apply(&[Batch { pid: &pid, partition: &partition, epoch, seq, timestamp }]).expect("valid rows").verdicts
}

#[test]
fn names_of_forgotten_producers_go_too() {
    let mut table = Rules::new("any_order", &[], true).table();
    name_and_apply(&mut table, 0..1_000, 10);
    name_and_apply(&mut table, 700..1_000, 30);
    name_and_apply(&mut table, 990..1_100, 30);
    let before = table.memory_bytes();
    assert_eq!(table.evict(20, 0).expect("timestamps are kept"), 1_000);
    table.drop_unused_keys();
    assert_eq!((table.len(), table.keys().pid.dictionary.len()), (100, 100));
    table.drop_unused_keys();
    assert!(table.memory_bytes() < before / 2);
    assert!(name_and_apply(&mut table, 1_000..1_100, 40).iter().all(|&it| it == Verdict::Duplicate as u8));
    assert!(name_and_apply(&mut table, 0..1_000, 20).iter().all(|&it| it == Verdict::Forgotten as u8));
    assert_eq!(table.len(), 100);
}

/// Their lines are still there, but their numbers are those of later producers.
#[test]
fn a_table_without_entries_forgets_the_names_of_refused_producers() {
    for names in [0..1, 3..5, 0..5] {
        let mut table = Rules::new("any_order", &[], true).table();
        table.evict(20, 0).expect("timestamps are kept");
        let before = table.keys().mark();
        assert_eq!(name_and_apply(&mut table, 0..5, 20), [Verdict::Forgotten as u8; 5]);
        table.keys_mut().go_back(before);
        let count = names.len();
        assert_eq!(name_and_apply(&mut table, names, 30), vec![Verdict::Accepted as u8; count]);
        let restored = StateTable::restore(&table.snapshot()).expect("a snapshot");
        assert_eq!((restored.len(), restored.snapshot()), (count, table.snapshot()));
    }
}

#[test]
fn an_empty_table_forgets_nothing() {
    let mut table = Rules::new("any_order", &[], true).table();
    assert_eq!(table.evict(20, 0).expect("timestamps are kept"), 0);
    assert_eq!(name_and_apply(&mut table, 0..1, 30), [Verdict::Accepted as u8]);
}

#[test]
fn a_table_that_keeps_timestamps_needs_them() {
    let batch = Batch { pid: &[1], partition: &[0], epoch: Some(&[0]), seq: Seqs::I32(&[0]), timestamp: None };
    let mut table = Rules::new("any_order", &[], true).table();
    let error = table.apply(&[batch]).expect_err("a row without its timestamp");
    assert_eq!(error.to_string(), "column 'timestamp': is missing, but this table keeps timestamps");
    let error = table.evict(0, -1).expect_err("a negative age");
    assert_eq!(error.to_string(), "max_idle_ms=-1 is below 0");
    let mut table = Rules::new("any_order", &[], false).table();
    table.apply(&[batch]).expect("nothing is missing");
    let error = table.evict(0, 1).expect_err("nothing to tell age by");
    assert!(error.to_string().starts_with("evict needs timestamps"), "{error}");
    assert_eq!(table.horizon_ms(), None);
}

#[test]
fn a_refused_merge_names_the_key_and_the_reason() {
    let any_order: Policy = "wrap=16".parse().expect("any_order with a small wrap");
    let mut kinds = [KeyKind::Plain, KeyKind::Parts(vec![PartKind::Utf8])].into_iter();
    for name in ["0", "'a'"] {
        let kind = kinds.next().expect("one for each name");
        let mut tables = [14, 2].map(|seq| {
            let mut table = StateTable::new(any_order).expect("valid");
            table.keys_mut().fix(kind.clone(), KeyKind::Plain).expect("the first use");
            let mut bytes = Vec::new();
            encode_bytes(&mut bytes, b"a");
            table.keys_mut().pid.dictionary.intern(&bytes).expect("memory");
            let seq = Seqs::I64(&[seq]);
            let batch = Batch { pid: &[0], partition: &[3], epoch: Some(&[2]), seq, timestamp: None };
            table.apply(&[batch]).expect("a row");
            table
        });
        let [one, other] = &mut tables;
        let expected = format!(
            "pid {name}, partition 3, epoch 2 has positions on both sides of the wrap: which of them are \
             newer depends on the order of rows, so these tables cannot merge"
        );
        assert_eq!(one.merge(other).expect_err("both zones").to_string(), expected);
    }
    let table = |policy: &str| StateTable::new(policy.parse().expect("a policy")).expect("valid");
    let refusal = |one: &str, other: &str| table(one).merge(&table(other)).expect_err("no merge").to_string();
    let forward = "admit=forward";
    assert_eq!(
        refusal(forward, forward),
        "only tables of admit='any' can merge: under other policies, verdicts depend on the order of rows"
    );
    assert!(refusal("wrap=16", "wrap=8").ends_with("this one has wrap=16, the other one wrap=8"));
    assert_eq!(
        table("").merge(&table("").with_keep_timestamp(true)).expect_err("no merge").to_string(),
        "one of the tables keeps timestamps and the other does not, so they cannot merge"
    );
}

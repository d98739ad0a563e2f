//! Compares the core with the naive oracle: all short streams, and long seeded ones.

use std::ops::Range;

use fencepost_core::{Epochs, First, Policy};
use fencepost_testkit::pair::{Columns, Pair, Rules};
use fencepost_testkit::workload::{Random, Row, SMALL_WORLD, Shape, exhaustive, stream};

fn columns(rows: &[Row]) -> Columns {
    Columns::of(rows.iter().map(|&row| (row, 0)))
}

/// Judges a stream in one call on both sides. `Err` has the difference.
fn judge_at_once(rules: &Rules, rows: &[Row]) -> Result<(Pair, Vec<u8>), String> {
    let mut pair = Pair::new(rules);
    let verdicts = pair.apply(&[columns(rows)])?;
    pair.compare()?;
    Ok((pair, verdicts))
}

fn rules(preset: &str, fields: &[(&str, &str)]) -> Rules {
    Rules::new(preset, fields, false)
}

fn small_policies() -> Vec<Rules> {
    let mut all = vec![
        rules("any_order", &[("wrap", "4")]),
        rules("in_order", &[("wrap", "4")]),
        rules("kafka", &[("wrap", "4"), ("window", "2")]),
        rules("strict", &[("wrap", "4")]),
        rules("watermark", &[]),
        rules("kafka_offsets", &[]),
        rules("kafka", &[("wrap", "4"), ("window", "3"), ("epochs", "key")]),
        rules("in_order", &[("wrap", "4"), ("late", "duplicate"), ("first", "zero"), ("max_jump", "2")]),
    ];
    for fields in [&[("first", "zero")][..], &[("max_jump", "1")], &[("epochs", "fence")], &[("gaps", "normal")]] {
        all.push(rules("any_order", &[&[("wrap", "4")], fields].concat()));
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
    for rules in small_policies() {
        for rows in small_streams(5) {
            judge_at_once(&rules, &rows).unwrap_or_else(|difference| panic!("{rows:?}\n{difference}"));
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
        |policy| policy.first = First::Any,
        |policy| policy.epochs = Epochs::Ignore,
    ];
    for (number, change) in broken.into_iter().enumerate() {
        let differs = small_policies().into_iter().any(|mut rules| {
            change(&mut rules.core);
            rules.core.validate().is_ok() && small_streams(4).any(|rows| judge_at_once(&rules, &rows).is_err())
        });
        assert!(differs, "broken core {number} was not found out");
    }
}

/// Like `judge_at_once`, with the stream divided into batches, and the batches into calls, at random.
fn judge_in_pieces(rules: &Rules, rows: &[Row], random: &mut Random) -> Result<(Pair, Vec<u8>), String> {
    let has_narrow_seqs = rules.core.wrap.is_some_and(|wrap| wrap <= 1 << 31);
    let (mut pair, mut verdicts) = (Pair::new(rules), Vec::new());
    let mut rest = rows;
    while !rest.is_empty() {
        let mut batches = Vec::new();
        for _ in 0..=random.below(3) {
            let (piece, after) = rest.split_at(rest.len().min(random.below(40) as usize));
            let is_narrow = has_narrow_seqs && random.chance(50);
            batches.push(if is_narrow { columns(piece).narrowed() } else { columns(piece) });
            rest = after;
        }
        verdicts.extend(pair.apply(&batches)?);
        if random.chance(20) {
            pair.restore()?;
        }
    }
    Ok((pair, verdicts))
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
fn check_agrees_with_apply_for_many_keys_and_epochs() {
    for preset in fencepost_core::PRESETS {
        let rules = rules(preset.name, &[]);
        let mut table = rules.table();
        let mut random = Random::new(7);
        for count in [1, 300, 60_000, 20_000] {
            let rows = many_keys(&mut random, count);
            let (head, tail) = rows.split_at(count / 3);
            let pieces = [columns(head), columns(tail)];
            let batches: Vec<_> = pieces.iter().map(|piece| piece.batch(&rules.core)).collect();
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
    streams_obey_the_laws(0..20);
}

/// More streams: `make test-portable` runs them.
#[test]
fn more_long_streams_obey_the_laws() {
    streams_obey_the_laws(20..60);
}

fn streams_obey_the_laws(seeds: Range<u64>) {
    for seed in seeds {
        let mut random = Random::new(seed);
        for rules in [small_policies(), large_policies()].concat() {
            let rows = stream(random.bits(), 3_000, &Shape::mixed(rules.core.wrap));
            let (whole, verdicts) = judge_at_once(&rules, &rows).unwrap_or_else(|it| panic!("seed {seed}: {it}"));
            for cut in [1, 2] {
                let pieces = judge_in_pieces(&rules, &rows, &mut Random::new(seed + cut));
                let (pieces, same) = pieces.unwrap_or_else(|it| panic!("seed {seed}: {it}"));
                assert_eq!(verdicts, same, "seed {seed}: a cut shows");
                assert!(whole.table.snapshot() == pieces.table.snapshot(), "seed {seed}: equal tables, other bytes");
            }
        }
    }
}

/// The layouts of wide and of narrow sequence spaces, and windows that do not fit in a line's slot.
fn large_policies() -> Vec<Rules> {
    vec![
        rules("any_order", &[]),
        rules("any_order", &[("wrap", "64")]),
        rules("any_order", &[("wrap", "none")]),
        rules("in_order", &[("wrap", "256"), ("max_jump", "50")]),
        rules("in_order", &[("wrap", "none"), ("epochs", "key")]),
        rules("kafka", &[]),
        rules("kafka", &[("wrap", "64"), ("window", "40")]),
        rules("kafka", &[("wrap", "none"), ("window", "100"), ("epochs", "key")]),
        rules("strict", &[("window", "14")]),
    ]
}

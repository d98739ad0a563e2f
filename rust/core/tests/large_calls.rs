//! Compares large calls, whose spans are found by several threads, with the same rows in many small calls.

use fencepost_core::{Batch, Column, Error, Policy, Seqs, StateTable};

const ROWS: usize = 700_001;

struct Rows {
    pid: Vec<i64>,
    partition: Vec<i32>,
    epoch: Vec<i16>,
    seq: Vec<i32>,
}

impl Rows {
    /// Spans of 1 to `span_max` rows of 500 keys. One span in nine repeats, one in seven leaves a gap.
    fn new(span_max: u64) -> Rows {
        let mut state = 5u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 33) % below
        };
        let mut rows = Rows { pid: vec![], partition: vec![], epoch: vec![], seq: vec![] };
        let mut next = vec![0; 500];
        while rows.pid.len() < ROWS {
            let (key, length) = (random(500) as usize, 1 + random(span_max) as i32);
            let first = if random(9) == 0 { 0 } else { next[key] + i32::from(random(7) == 0) };
            next[key] = next[key].max(first + length);
            for seq in first..first + length {
                rows.pid.push(if key == 77 { -1 } else { key as i64 / 10 });
                rows.partition.push(key as i32 % 10);
                rows.epoch.push((key / 10 % 3) as i16);
                rows.seq.push(seq);
            }
        }
        rows
    }

    fn batch(&self, from: usize, to: usize) -> Batch<'_> {
        Batch {
            pid: &self.pid[from..to],
            partition: &self.partition[from..to],
            epoch: Some(&self.epoch[from..to]),
            seq: Seqs::I32(&self.seq[from..to]),
            timestamp: None,
        }
    }
}

fn table() -> StateTable {
    StateTable::new(Policy::preset("any_order").expect("a preset")).expect("a valid policy")
}

#[test]
fn large_calls_are_judged_as_small_ones() {
    for span_max in [1, 3, 40] {
        let rows = Rows::new(span_max);
        let count = rows.pid.len();
        let (mut large, mut pieces, mut small) = (table(), table(), table());
        let judged = large.apply(&[rows.batch(0, count)]).expect("valid rows");
        assert!(judged.counts.iter().filter(|&&count| count > 10_000).count() >= 2);
        let cut = [rows.batch(0, 600_000), rows.batch(600_000, 600_000), rows.batch(600_000, count)];
        assert_eq!(pieces.apply(&cut).expect("valid rows"), judged);
        let mut verdicts = Vec::new();
        for from in (0..count).step_by(5_000) {
            verdicts.extend(small.apply(&[rows.batch(from, count.min(from + 5_000))]).expect("valid rows").verdicts);
        }
        assert!(verdicts == judged.verdicts, "spans of up to {span_max}");
        let bytes = small.snapshot();
        assert!(large.snapshot() == bytes && pieces.snapshot() == bytes, "spans of up to {span_max}");
        assert_eq!(large.check(&[rows.batch(0, count)]).expect("valid rows").counts[0], 0);
    }
}

#[test]
fn the_first_bad_row_of_a_large_call_is_named() {
    let mut rows = Rows::new(20);
    let count = rows.pid.len();
    for row in [500_000, 650_000] {
        (rows.pid[row], rows.partition[row]) = (1, -4);
    }
    let mut table = table();
    let batches = [rows.batch(0, 300_000), rows.batch(300_000, count)];
    let error = table.apply(&batches).expect_err("a negative partition");
    let problem = "value -4 is outside 0..=2147483647".to_string();
    assert_eq!(error, Error::Batch { column: Column::Partition, row: Some(500_000), problem });
    let short = Batch { partition: &rows.partition[..9], ..rows.batch(300_000, count) };
    let error = table.apply(&[rows.batch(0, 300_000), short]).expect_err("a short column");
    assert!(matches!(error, Error::Batch { column: Column::Partition, row: None, .. }), "{error}");
    assert!(table.is_empty());
}

use crate::bytes::Bytes;
use crate::follower::Follower;
use fencepost_core::{Policy, StateTable};
use fencepost_testkit::pair::{Columns, Pair, Rules};
use fencepost_testkit::workload::Row;

/// Preset, changed fields, and whether timestamps are kept.
pub type Named = (&'static str, &'static [(&'static str, &'static str)], bool);

/// The policies of tables: the first byte of an input chooses.
pub const POLICIES: [Named; 24] = [
    ("any_order", &[], false),
    ("any_order", &[("wrap", "16")], false),
    ("any_order", &[("wrap", "none"), ("first", "zero")], false),
    ("any_order", &[("wrap", "64"), ("max_jump", "20"), ("epochs", "fence")], false),
    ("in_order", &[], false),
    ("in_order", &[("wrap", "none"), ("epochs", "key"), ("late", "duplicate")], false),
    ("kafka", &[], false),
    ("kafka", &[("wrap", "64"), ("window", "40")], false),
    ("kafka", &[("wrap", "none"), ("window", "100"), ("epochs", "key")], false),
    ("strict", &[("window", "14")], false),
    ("watermark", &[], false),
    ("kafka_offsets", &[], false),
    ("any_order", &[("reach", "9")], false),
    ("any_order", &[("wrap", "none"), ("intervals_max", "3")], false),
    ("any_order", &[], true),
    ("any_order", &[("wrap", "16"), ("reach", "3")], true),
    ("any_order", &[("wrap", "none"), ("first", "zero"), ("reach", "12")], true),
    ("any_order", &[("wrap", "none"), ("epochs", "fence")], true),
    ("in_order", &[("wrap", "64"), ("reach", "6"), ("max_jump", "20")], true),
    ("in_order", &[("wrap", "none"), ("epochs", "key"), ("intervals_max", "3")], true),
    ("kafka", &[("wrap", "none"), ("epochs", "key")], true),
    ("strict", &[("wrap", "16")], true),
    ("watermark", &[], true),
    ("kafka_offsets", &[], true),
];

const PIDS: [i64; 4] = [1, 2, i64::MAX, -1];
const PARTITIONS: [i32; 8] = [0, 1, 4, 5, 7, 8, 1000, i32::MAX];

/// A sequence of operations on two tables, made from any bytes. The core and the oracle return and store the same, and
/// neither the division of calls nor snapshots matter.
pub fn operations(bytes: &[u8]) {
    operations_with(bytes, |_| ());
}

/// Like `operations`, with a changed policy of the core.
pub fn operations_with(bytes: &[u8], change: impl Fn(&mut Policy)) {
    let mut bytes = Bytes(bytes);
    let (preset, fields, keeps_timestamp) = POLICIES[usize::from(bytes.next()) % POLICIES.len()];
    let mut rules = Rules::new(preset, fields, keeps_timestamp);
    change(&mut rules.core);
    if rules.core.validate().is_err() {
        return;
    }
    let mut sides = [(); 2].map(|()| Side::new(&rules));
    let mut now = 0;
    while !bytes.0.is_empty() {
        let ended = step(&mut bytes, &mut now, &rules, &mut sides);
        ended.unwrap_or_else(|difference| panic!("{difference}"));
    }
    sides.iter_mut().for_each(Side::end);
}

/// One operation: mostly rows for the first table, which is sometimes swapped with the second.
fn step(bytes: &mut Bytes<'_>, now: &mut i64, rules: &Rules, sides: &mut [Side; 2]) -> Result<(), String> {
    let operation = bytes.next();
    let [one, other] = sides;
    match operation % 16 {
        8 | 9 if rules.keeps_timestamp => one.evict(*now - i64::from(bytes.next() % 8), i64::from(bytes.next() % 128)),
        10 => one.forget(PIDS[usize::from(bytes.next() % 4)], None),
        11 => one.forget(PIDS[usize::from(bytes.next() % 4)], Some(PARTITIONS[usize::from(bytes.next() % 8)])),
        12 => one.merge(other),
        13 => {
            sides.swap(0, 1);
            Ok(())
        }
        14 => one.follow(),
        15 => one.restore(),
        _ => one.apply((0..1 + operation / 16 % 3).map(|_| rows(bytes, now, rules)).collect()),
    }?;
    sides[0].pair.compare()
}

/// A table with its oracle, a table that applies its deltas, and a table that gets all rows between two other
/// operations in a single batch.
struct Side {
    rules: Rules,
    pair: Pair,
    follower: Follower,
    whole: StateTable,
    /// Rows that `whole` has not judged yet, and their expected verdicts.
    pending: Columns,
    verdicts: Vec<u8>,
}

impl Side {
    fn new(rules: &Rules) -> Side {
        Side {
            rules: rules.clone(),
            pair: Pair::new(rules),
            follower: Follower::default(),
            whole: rules.table(),
            pending: Columns::default(),
            verdicts: Vec::new(),
        }
    }

    fn apply(&mut self, batches: Vec<Columns>) -> Result<(), String> {
        let verdicts = self.pair.apply(&batches)?;
        // Whether a whole call is refused depends on the boundaries of calls.
        if self.rules.core.intervals_max.is_none() {
            self.verdicts.extend(verdicts);
            batches.iter().for_each(|rows| self.pending.extend(rows));
        }
        Ok(())
    }

    fn evict(&mut self, now: i64, idle: i64) -> Result<(), String> {
        self.catch_up().evict(now, idle).map_err(|error| error.to_string())?;
        self.pair.evict(now, idle)
    }

    fn forget(&mut self, pid: i64, partition: Option<i32>) -> Result<(), String> {
        self.catch_up().forget(pid, partition);
        self.pair.forget(pid, partition)
    }

    fn merge(&mut self, other: &mut Side) -> Result<(), String> {
        let merged = self.catch_up().merge(other.catch_up()).is_ok();
        let is_union = self.pair.merge(&other.pair)?.is_some();
        let has_whole = self.rules.core.intervals_max.is_none();
        if has_whole && merged != is_union { Err("a cut shows in a merge".into()) } else { Ok(()) }
    }

    fn restore(&mut self) -> Result<(), String> {
        self.follower = Follower::default();
        self.pair.restore()
    }

    /// Continues with the table read from base and deltas, which must be the same.
    fn follow(&mut self) -> Result<(), String> {
        self.follower.take_over(&mut self.pair.table)
    }

    fn catch_up(&mut self) -> &mut StateTable {
        let judged = self.whole.apply(&[self.pending.batch(&self.rules.core)]);
        assert_eq!(judged.expect("valid rows").verdicts, self.verdicts, "a cut shows");
        (self.pending, self.verdicts) = (Columns::default(), Vec::new());
        &mut self.whole
    }

    fn end(&mut self) {
        let is_same = self.catch_up().snapshot() == self.pair.table.snapshot();
        assert!(is_same || self.rules.core.intervals_max.is_some(), "equal tables, other bytes");
    }
}

/// Up to 31 rows of two bytes each, some longer: one per millisecond, and late if a byte says so.
fn rows(bytes: &mut Bytes<'_>, now: &mut i64, rules: &Rules) -> Columns {
    let mut rows = Columns::default();
    for _ in 0..bytes.next() % 32 {
        let key = bytes.next();
        let pid = PIDS[usize::from(key % 4)];
        let partition = PARTITIONS[usize::from(key / 4 % 8)];
        let epoch = [0, 1, 2, i16::MAX][usize::from(key / 32 % 4)];
        *now += 1;
        let delay = if key < 128 { 0 } else { i64::from(bytes.next()) };
        rows.push(Row { pid, epoch, partition, seq: seq(bytes, rules.core) }, *now - delay);
    }
    rows
}

/// A small sequence number, one just before the end, or any.
fn seq(bytes: &mut Bytes<'_>, policy: Policy) -> i64 {
    let end = policy.seq_max();
    match bytes.next() {
        small @ 0..200 => i64::from(small) % end.saturating_add(1).max(1),
        near @ 200..240 => (end - i64::from(near - 200)).max(0),
        _ => (bytes.wide() % (end as u64 + 1)) as i64,
    }
}

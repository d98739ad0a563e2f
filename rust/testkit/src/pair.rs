//! A table of the core and the oracle, side by side: both run the same calls, and their results and states must be
//! equal.
//!
//! This is the only module here that depends on the core.

use crate::oracle::{self, Oracle, Remembered, Tracked};
use crate::workload::Row;
use fencepost_core::{Admit, Batch, Entry, Epochs, Error, Judged, Keys, Missing, Policy, Seqs, StateTable, Verdict};
use std::fmt::Debug;

/// Producer and partition.
pub type Key = (i64, i32);

/// The same rules for the core and for the oracle.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Preset and fields.
    pub name: String,
    /// The policy of the core. A mutated core has another one.
    pub core: Policy,
    oracle: oracle::Policy,
    /// Whether the table keeps timestamps.
    pub keeps_timestamp: bool,
}

impl Rules {
    /// A preset with some replaced fields.
    ///
    /// # Panics
    /// If either side does not know them.
    pub fn new(preset: &str, fields: &[(&str, &str)], keeps_timestamp: bool) -> Rules {
        let mut core = Policy::preset(preset).expect("a preset");
        fields.iter().for_each(|(field, value)| core.set(field, value).expect("a field"));
        let owned: Vec<_> = fields.iter().map(|&(field, value)| (field.to_string(), value.to_string())).collect();
        let oracle = oracle::Policy::named(preset, &owned).expect("a policy that the oracle takes too");
        Rules { name: format!("{preset} {fields:?}"), core, oracle, keeps_timestamp }
    }

    /// An empty table.
    ///
    /// # Panics
    /// If the core's policy is invalid.
    pub fn table(&self) -> StateTable {
        StateTable::new(self.core).expect("a valid policy").with_keep_timestamp(self.keeps_timestamp)
    }
}

/// Rows and their timestamps, by column.
#[derive(Clone, Debug, Default)]
pub struct Columns {
    pid: Vec<i64>,
    partition: Vec<i32>,
    epoch: Vec<i16>,
    seq: Vec<i64>,
    narrow: Option<Vec<i32>>,
    timestamp: Vec<i64>,
}

impl Columns {
    /// The rows in their order.
    pub fn of(rows: impl IntoIterator<Item = (Row, i64)>) -> Columns {
        let mut columns = Columns::default();
        rows.into_iter().for_each(|(row, timestamp)| columns.push(row, timestamp));
        columns
    }

    /// Adds a row.
    pub fn push(&mut self, row: Row, timestamp: i64) {
        self.pid.push(row.pid);
        self.partition.push(row.partition);
        self.epoch.push(row.epoch);
        self.seq.push(row.seq);
        self.timestamp.push(timestamp);
    }

    /// Adds the rows of another.
    pub fn extend(&mut self, other: &Columns) {
        self.pid.extend_from_slice(&other.pid);
        self.partition.extend_from_slice(&other.partition);
        self.epoch.extend_from_slice(&other.epoch);
        self.seq.extend_from_slice(&other.seq);
        self.timestamp.extend_from_slice(&other.timestamp);
    }

    /// Converts sequence numbers to 32 bits, in which they must fit.
    pub fn narrowed(self) -> Columns {
        Columns { narrow: Some(self.seq.iter().map(|&seq| seq as i32).collect()), ..self }
    }

    /// The batch for the core. It has timestamps even if the table does not keep them, because they must not matter
    /// then.
    pub fn batch(&self, policy: &Policy) -> Batch<'_> {
        Batch {
            pid: &self.pid,
            partition: &self.partition,
            epoch: (policy.epochs != Epochs::Ignore).then_some(&self.epoch),
            seq: self.narrow.as_deref().map_or(Seqs::I64(&self.seq), Seqs::I32),
            timestamp: Some(&self.timestamp),
        }
    }

    fn tracked(&self, rules: &Rules) -> impl Iterator<Item = Option<Tracked<Key>>> {
        let row = |row: usize| Tracked {
            key: (self.pid[row], self.partition[row]),
            epoch: self.epoch[row].into(),
            seq: self.seq[row],
            timestamp: if rules.keeps_timestamp { self.timestamp[row] } else { 0 },
        };
        (0..self.pid.len()).map(move |at| (self.pid[at] != -1).then(|| row(at)))
    }
}

/// The core and the oracle. Each operation returns their difference as an error.
pub struct Pair {
    rules: Rules,
    /// The core's side.
    pub table: StateTable,
    oracle: Oracle<Key>,
}

impl Pair {
    /// Both empty.
    pub fn new(rules: &Rules) -> Pair {
        Pair { rules: rules.clone(), table: rules.table(), oracle: Oracle::new(rules.oracle) }
    }

    /// Judges rows in one call, divided into batches. Returns the verdicts, or none if the table has the maximum number
    /// of holes.
    pub fn apply(&mut self, batches: &[Columns]) -> Result<Vec<u8>, String> {
        let rows: Vec<_> = batches.iter().flat_map(|columns| columns.tracked(&self.rules)).collect();
        let batches: Vec<_> = batches.iter().map(|columns| columns.batch(&self.rules.core)).collect();
        let (checked, judged) = (self.table.check(&batches), self.table.apply(&batches));
        self.agree("check and apply", &checked, &judged)?;
        match judged {
            Ok(judged) if !self.oracle.is_full() => {
                let verdicts = judged.verdicts.clone();
                let reported = reported_by_core(judged, self.table.keys());
                self.agree_mut("the reported results", reported, |oracle| reported_by_oracle(oracle.apply(&rows)))?;
                Ok(verdicts)
            }
            Err(Error::Capacity { .. }) if self.oracle.is_full() => Ok(Vec::new()),
            other => Err(self.differ("being full", &other, &self.oracle.is_full())),
        }
    }

    /// Evicts old entries.
    pub fn evict(&mut self, now: i64, idle: i64) -> Result<(), String> {
        let dropped = self.table.evict(now, idle).map_err(|error| error.to_string())?;
        let core = (dropped, self.table.horizon_ms());
        self.agree_mut("what was evicted", core, |oracle| (oracle.evict(now, idle), oracle.horizon()))
    }

    /// Forgets a producer, or one of its partitions.
    pub fn forget(&mut self, pid: i64, partition: Option<i32>) -> Result<(), String> {
        let is_named = |key: &Key| key.0 == pid && partition.is_none_or(|it| it == key.1);
        let dropped = self.table.forget(pid, partition);
        self.agree_mut("what was forgotten", dropped, |oracle| oracle.forget(is_named))
    }

    /// Merges another pair into this one. Returns the number of overlaps; `None` if both sides refuse.
    pub fn merge(&mut self, other: &Pair) -> Result<Option<usize>, String> {
        let is_full = self.oracle.is_full();
        let before = self.table.snapshot();
        match self.table.merge(&other.table) {
            Ok(overlaps) if !is_full => {
                let count = overlaps.len();
                let core = Ok(overlaps.iter().map(of_core).collect::<Vec<_>>());
                let merge = |oracle: &mut Oracle<Key>| {
                    oracle.merge(&other.oracle).map(|overlaps| overlaps.iter().map(of_oracle).collect())
                };
                self.agree_mut("what both had accepted", core, merge)?;
                Ok(Some(count))
            }
            Err(Error::Policy(_) | Error::Capacity { .. })
                if is_full || self.oracle.clone().merge(&other.oracle).is_err() =>
            {
                self.agree("a refusal and what was before", &self.table.snapshot(), &before)?;
                Ok(None)
            }
            core => Err(self.differ("merging", &core, &self.oracle.clone().merge(&other.oracle))),
        }
    }

    /// Writes and reads the table, which must not change it.
    pub fn restore(&mut self) -> Result<(), String> {
        let bytes = self.table.snapshot();
        self.table = StateTable::restore(&bytes).map_err(|error| format!("its own snapshot: {error}"))?;
        if self.table.snapshot() == bytes { Ok(()) } else { Err("restoring shows".into()) }
    }

    /// Compares the complete states.
    pub fn compare(&self) -> Result<(), String> {
        self.agree("the number of entries", &self.table.len(), &self.oracle.len())?;
        let open: Vec<_> = self.table.missing().iter().map(of_core).collect();
        self.agree("what is missing", &open, &self.oracle.missing().iter().map(of_oracle).collect())?;
        if self.rules.core.admit == Admit::Next {
            return Ok(()); // its entries have no positions
        }
        let entries: Vec<_> = self.table.entries().map(|it| remembered(&it)).collect();
        self.agree("what is remembered", &entries, &self.oracle.remembered())
    }

    fn agree<T: PartialEq + Debug>(&self, on: &str, core: &T, truth: &T) -> Result<(), String> {
        if core == truth { Ok(()) } else { Err(self.differ(on, core, truth)) }
    }

    fn agree_mut<T: PartialEq + Debug>(
        &mut self,
        on: &str,
        core: T,
        ask: impl FnOnce(&mut Oracle<Key>) -> T,
    ) -> Result<(), String> {
        let truth = ask(&mut self.oracle);
        self.agree(on, &core, &truth)
    }

    fn differ(&self, on: &str, core: &impl Debug, truth: &impl Debug) -> String {
        format!("{}: core and oracle differ on {on}\ncore   {core:?}\noracle {truth:?}", self.rules.name)
    }
}

/// A range of sequences: key, epoch, first, last, count.
type Range = (Key, i64, i64, i64, i64);

/// The complete result of a call: verdicts, expected sequences by row, skipped ranges, stale rows and border rows.
type Reported = (Vec<u8>, Vec<(u64, i64)>, Vec<Range>, u64, u64);

fn reported_by_core(judged: Judged, keys: &Keys) -> Reported {
    let missing = judged.missing(keys).map(|it| of_core(&it)).collect();
    (judged.verdicts, judged.expected, missing, judged.stale_epoch, judged.border)
}

fn reported_by_oracle(judged: oracle::Judged<Key>) -> Reported {
    let code = |verdict: &oracle::Verdict| {
        Verdict::ALL.iter().position(|it| it.name() == verdict.name()).expect("a verdict") as u8
    };
    let expected = judged.expected.iter().enumerate().filter_map(|(row, &seq)| Some((row as u64, seq?))).collect();
    let missing = judged.missing.iter().map(of_oracle).collect();
    (judged.verdicts.iter().map(code).collect(), expected, missing, judged.stale_epoch, judged.border)
}

fn of_core(it: &Missing) -> Range {
    ((it.pid, it.partition), it.epoch.into(), it.first_seq, it.last_seq, it.count as i64)
}

fn of_oracle(it: &oracle::Missing<Key>) -> Range {
    (it.key, it.epoch.unwrap_or(0), it.first_seq, it.last_seq, it.count)
}

fn remembered(entry: &Entry) -> Remembered<Key> {
    let wide = |(first, last): (i64, i64)| (i128::from(first), i128::from(last));
    Remembered {
        key: (entry.pid, entry.partition),
        epoch: entry.epoch.into(),
        span: wide((entry.first, entry.last)),
        holes: entry.holes.iter().map(|it| (wide((it.first, it.last)), it.timestamp.unwrap_or(0))).collect(),
        final_range: entry.final_range.map(wide),
        last_timestamp: entry.last_timestamp.unwrap_or(0),
    }
}

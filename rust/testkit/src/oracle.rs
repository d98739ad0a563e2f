//! A naive judge of rows, written only from the rules.
//!
//! It keeps every accepted position in a plain set and every epoch of every key for good, so that each function can be
//! compared with the rule it implements. It shares no code with what it judges.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

/// Which new positions are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admit {
    /// All.
    Any,
    /// Those above the highest.
    Forward,
    /// Highest + 1.
    Next,
}

/// What an epoch means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Epochs {
    /// Each epoch has its own state.
    Key,
    /// Lower epochs are fenced; a higher one replaces the state.
    Fence,
    /// Epochs are not read.
    Ignore,
}

/// The rules, in plain fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Which new positions are accepted.
    pub admit: Admit,
    /// What an epoch means.
    pub epochs: Epochs,
    /// A key begins with 0. `Next` and `Forward` refuse other numbers; `Any` counts the head as missing.
    pub first_is_zero: bool,
    /// `Next`: the number of most recent rows that are recognized as duplicates.
    pub window: i64,
    /// `Forward`: a late row that was never accepted is a duplicate, not out of order.
    pub late_is_duplicate: bool,
    /// Nothing is listed as missing.
    pub gaps_are_normal: bool,
    /// The size of the sequence space, if it wraps.
    pub wrap: Option<i64>,
    /// `Any`, `Forward`: how far above the highest position a row may be.
    pub max_jump: Option<i64>,
    /// How far below the highest position a missing one may be before it becomes final.
    pub reach: Option<i64>,
    /// Number of holes with which a table takes no more rows.
    pub intervals_max: Option<i64>,
}

const ANY_ORDER: Policy = Policy {
    admit: Admit::Any,
    epochs: Epochs::Key,
    first_is_zero: false,
    window: 5,
    late_is_duplicate: false,
    gaps_are_normal: false,
    wrap: Some(1 << 31),
    max_jump: None,
    reach: None,
    intervals_max: None,
};

/// The names of the presets.
pub const PRESETS: [&str; 6] = ["any_order", "in_order", "kafka", "strict", "watermark", "kafka_offsets"];

impl Policy {
    /// A preset with some replaced fields, both as the rule book writes them.
    pub fn named(preset: &str, fields: &[(String, String)]) -> Result<Policy, String> {
        let in_order = Policy { admit: Admit::Forward, epochs: Epochs::Fence, ..ANY_ORDER };
        let numbered = |policy| Policy { epochs: Epochs::Ignore, gaps_are_normal: true, wrap: None, ..policy };
        let mut policy = match preset {
            "any_order" => ANY_ORDER,
            "in_order" => in_order,
            "kafka" => Policy { admit: Admit::Next, ..in_order },
            "strict" => Policy { admit: Admit::Next, first_is_zero: true, window: 1, ..in_order },
            "watermark" => Policy { late_is_duplicate: true, ..numbered(in_order) },
            "kafka_offsets" => numbered(ANY_ORDER),
            _ => return Err(format!("no preset '{preset}'")),
        };
        for (field, value) in fields {
            policy.set(field, value)?;
        }
        policy.check()
    }

    fn set(&mut self, field: &str, value: &str) -> Result<(), String> {
        let number = || value.parse::<i64>().map_err(|_| format!("{field}={value}"));
        let optional = || if value == "none" { Ok(None) } else { number().map(Some) };
        match (field, value) {
            ("admit", "any") => self.admit = Admit::Any,
            ("admit", "forward") => self.admit = Admit::Forward,
            ("admit", "next") => self.admit = Admit::Next,
            ("epochs", "key") => self.epochs = Epochs::Key,
            ("epochs", "fence") => self.epochs = Epochs::Fence,
            ("epochs", "ignore") => self.epochs = Epochs::Ignore,
            ("first", "any" | "zero") => self.first_is_zero = value == "zero",
            ("late", "out_of_order" | "duplicate") => self.late_is_duplicate = value == "duplicate",
            ("gaps", "report" | "normal") => self.gaps_are_normal = value == "normal",
            ("window", _) => self.window = number()?,
            ("wrap", _) => self.wrap = optional()?,
            ("max_jump", _) => self.max_jump = optional()?,
            ("reach", _) => self.reach = optional()?,
            ("intervals_max", _) => self.intervals_max = optional()?,
            _ => return Err(format!("no field or value {field}={value}")),
        }
        Ok(())
    }

    fn check(self) -> Result<Policy, String> {
        let window_end = self.wrap.unwrap_or(i64::MAX);
        let is_next = self.admit == Admit::Next;
        let bad_window = self.window < 0 || (is_next && !(1..window_end).contains(&self.window));
        let too_small = self.wrap.is_some_and(|wrap| wrap < 4);
        let bounds = [self.reach, self.intervals_max];
        let none_left = bounds.iter().chain([&self.max_jump]).flatten().any(|bound| *bound < 1);
        let no_holes = !self.keeps_holes() && bounds.iter().any(Option::is_some);
        if bad_window || none_left || too_small || no_holes { Err(format!("out of range: {self:?}")) } else { Ok(self) }
    }

    /// Whether skipped positions are stored.
    fn keeps_holes(&self) -> bool {
        match self.admit {
            Admit::Any => true,
            Admit::Forward => !(self.late_is_duplicate && self.gaps_are_normal),
            Admit::Next => false,
        }
    }
}

/// The verdict of a row. Values are the codes of all APIs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Verdict {
    /// New.
    Accepted = 0,
    /// Already accepted.
    Duplicate = 1,
    /// Not admitted.
    OutOfOrder = 2,
    /// Of a fenced epoch.
    Fenced = 3,
    /// Without a producer.
    Untracked = 6,
    /// Older than the state.
    Forgotten = 7,
}

impl Verdict {
    /// Its name in the rule book.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Accepted => "ACCEPTED",
            Verdict::Duplicate => "DUPLICATE",
            Verdict::OutOfOrder => "OUT_OF_ORDER",
            Verdict::Fenced => "FENCED",
            Verdict::Untracked => "UNTRACKED",
            Verdict::Forgotten => "FORGOTTEN",
        }
    }
}

/// A row of a producer. The epoch is not read if the policy ignores epochs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tracked<K> {
    /// Producer and partition, as any ordered type.
    pub key: K,
    /// The epoch of the producer.
    pub epoch: i64,
    /// The sequence number.
    pub seq: i64,
    /// The timestamp; 0 if timestamps are not kept.
    pub timestamp: i64,
}

/// A range of sequences that was skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing<K> {
    /// Producer and partition.
    pub key: K,
    /// The epoch; `None` if the policy ignores epochs.
    pub epoch: Option<i64>,
    /// The first sequence.
    pub first_seq: i64,
    /// The last sequence, less than the first if the range crosses the wrap.
    pub last_seq: i64,
    /// Number of sequences.
    pub count: i64,
}

/// The result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged<K> {
    /// One per row.
    pub verdicts: Vec<Verdict>,
    /// For rows out of order: the sequence that would have been accepted, if there is one.
    pub expected: Vec<Option<i64>>,
    /// Positions that rows of this call skipped and that were not accepted by its end, in order.
    pub missing: Vec<Missing<K>>,
    /// Number of rows below the highest accepted epoch of their key.
    pub stale_epoch: u64,
    /// Number of rows that the border rules put into a neighbouring lap.
    pub border: u64,
}

/// Returns the position of a sequence below, in or above the lap of the highest, and whether a border rule decided.
pub(crate) type Place = fn(policy: &Policy, highest: i128, seq: i64) -> (i128, bool);

/// Keeps the complete history and judges rows one by one.
#[derive(Clone, Debug)]
pub struct Oracle<K> {
    policy: Policy,
    pub(crate) place: Place,
    /// Every epoch that a key ever had; under `Fence` the highest is the entry, under `Ignore` all are 0.
    pub(crate) keys: BTreeMap<K, BTreeMap<i64, Entry>>,
    horizon: Option<i64>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Entry {
    /// Accepted positions (`Next`: sequences in the order of arrival, in `recent`).
    positions: BTreeSet<i128>,
    recent: Vec<i64>,
    /// Skipped positions, and their timestamps.
    jumps: Vec<(Range, i64)>,
    /// Final positions, accepted or not.
    final_range: Option<Range>,
    /// The highest timestamp of accepted rows; under `Fence` of all epochs of the key.
    last_timestamp: Option<i64>,
}

/// Positions, both ends included.
type Range = (i128, i128);

/// A span of positions of one entry.
struct Span<K> {
    key: K,
    epoch: i64,
    first: i128,
    last: i128,
}

/// The judgement of a row: the verdict and, if it is out of order, the sequence that would have been accepted.
type Judgement = (Verdict, Option<i64>);

impl<K: Ord + Clone + Debug> Oracle<K> {
    /// An empty table.
    pub fn new(policy: Policy) -> Oracle<K> {
        Oracle { policy, place: position, keys: BTreeMap::new(), horizon: None }
    }

    /// Number of entries: keys, or keys and epochs if each epoch has its own state.
    pub fn len(&self) -> usize {
        match self.policy.epochs {
            Epochs::Key => self.keys.values().map(BTreeMap::len).sum(),
            Epochs::Fence | Epochs::Ignore => self.keys.len(),
        }
    }

    /// Whether nothing was accepted yet.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// All open holes, in the order of key, epoch and position.
    pub fn missing(&self) -> Vec<Missing<K>> {
        let holes = |(key, epoch, entry): (&K, i64, &Entry)| {
            let range = |(first, last)| self.range(key, epoch, first, last);
            self.holes(entry).into_iter().map(range).collect::<Vec<_>>()
        };
        if self.policy.gaps_are_normal { Vec::new() } else { self.entries().flat_map(holes).collect() }
    }

    /// The entries that count, in the order of key and epoch.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&K, i64, &Entry)> {
        self.keys.iter().flat_map(|(key, epochs)| {
            let kept = if self.policy.epochs == Epochs::Fence { epochs.len() - 1 } else { 0 };
            epochs.iter().skip(kept).map(move |(epoch, entry)| (key, *epoch, entry))
        })
    }

    /// Judges rows in order; `None` is an untracked row.
    pub fn apply(&mut self, rows: &[Option<Tracked<K>>]) -> Judged<K> {
        let (verdicts, expected) = (Vec::with_capacity(rows.len()), Vec::with_capacity(rows.len()));
        let mut call = Judged { verdicts, expected, missing: Vec::new(), stale_epoch: 0, border: 0 };
        let mut jumped = Vec::new();
        for row in rows {
            let (verdict, expected) = match row {
                None => (Verdict::Untracked, None),
                Some(row) => self.judge(row, &mut call, &mut jumped),
            };
            call.verdicts.push(verdict);
            call.expected.push(expected);
        }
        jumped.sort_by(|a: &Span<K>, b| (&a.key, a.epoch, a.first).cmp(&(&b.key, b.epoch, b.first)));
        call.missing = self.uncovered(&jumped);
        call
    }

    /// Judges a row. A merged table can have holes beyond the reach. They become final first, but a refused row leaves
    /// no trace.
    fn judge(&mut self, row: &Tracked<K>, call: &mut Judged<K>, jumped: &mut Vec<Span<K>>) -> Judgement {
        let epoch = if self.policy.epochs == Epochs::Ignore { 0 } else { row.epoch };
        let before = self.keys.get(&row.key).and_then(|epochs| epochs.get(&epoch)).map(|entry| entry.final_range);
        if before.is_some() && self.policy.admit != Admit::Next {
            self.keep_reach(&row.key, epoch);
        }
        let judgement = self.judge_settled(row, epoch, call, jumped);
        if let Some(before) = before.filter(|_| judgement.0 != Verdict::Accepted) {
            let epochs = self.keys.get_mut(&row.key).expect("a key that was known");
            epochs.get_mut(&epoch).expect("an epoch that was known").final_range = before;
        }
        judgement
    }

    fn judge_settled(
        &mut self,
        row: &Tracked<K>,
        epoch: i64,
        call: &mut Judged<K>,
        jumped: &mut Vec<Span<K>>,
    ) -> Judgement {
        let policy = self.policy;
        let epochs = self.keys.get(&row.key);
        let highest_epoch = epochs.and_then(|epochs| epochs.last_key_value()).map(|(epoch, _)| *epoch);
        let is_stale = highest_epoch.is_some_and(|highest| highest > epoch);
        call.stale_epoch += u64::from(is_stale);
        if is_stale && policy.epochs == Epochs::Fence {
            return (Verdict::Fenced, None);
        }
        let is_old = self.horizon.is_some_and(|horizon| row.timestamp <= horizon);
        let Some(entry) = epochs.and_then(|epochs| epochs.get(&epoch)) else {
            if is_old {
                return (Verdict::Forgotten, None);
            }
            let is_bump = policy.epochs == Epochs::Fence && highest_epoch.is_some();
            return self.begin(row, epoch, is_bump, jumped);
        };
        if policy.admit == Admit::Next {
            let judgement = judge_next(&policy, entry, row.seq);
            if is_old && judgement.0 != Verdict::Duplicate {
                return (Verdict::Forgotten, None);
            }
            if judgement.0 == Verdict::Accepted {
                self.entry(row, epoch).recent.push(row.seq);
            }
            return judgement;
        }
        let (lowest, highest) = (self.start(entry), *entry.positions.last().expect("an entry has accepted a row"));
        let (position, is_border) = (self.place)(&policy, highest, row.seq);
        call.border += u64::from(is_border);
        if entry.final_range.is_some_and(|(first, last)| first <= position && position <= last) {
            return (Verdict::Forgotten, None);
        }
        let is_held = if policy.keeps_holes() {
            entry.positions.contains(&position)
        } else {
            lowest <= position && position <= highest
        };
        let judgement = match () {
            () if is_old && is_held => (Verdict::Duplicate, None),
            () if is_old => (Verdict::Forgotten, None),
            () => judge_position(&policy, entry, highest, position),
        };
        if judgement.0 == Verdict::Accepted {
            let entry = self.entry(row, epoch);
            entry.positions.insert(position);
            for (first, last) in [(highest + 1, position - 1), (position + 1, lowest - 1)] {
                entry.jumps.push(((first, last), row.timestamp));
                jumped.push(Span { key: row.key.clone(), epoch, first, last });
            }
            self.keep_reach(&row.key, epoch);
        }
        judgement
    }

    /// Judges a row of an unknown key, or of a higher epoch that restarts it.
    fn begin(&mut self, row: &Tracked<K>, epoch: i64, is_bump: bool, jumped: &mut Vec<Span<K>>) -> Judgement {
        let policy = self.policy;
        let only_zero = policy.first_is_zero || (is_bump && policy.admit == Admit::Next);
        if only_zero && policy.admit != Admit::Any && row.seq != 0 {
            return (Verdict::OutOfOrder, Some(0));
        }
        let entry = self.entry(row, epoch);
        if policy.admit == Admit::Next {
            entry.recent.push(row.seq);
        } else {
            entry.positions.insert(row.seq.into());
        }
        if policy.first_is_zero {
            let last = i128::from(row.seq) - 1;
            entry.jumps.push(((0, last), row.timestamp));
            jumped.push(Span { key: row.key.clone(), epoch, first: 0, last });
            self.keep_reach(&row.key, epoch);
        }
        (Verdict::Accepted, None)
    }

    /// The entry that accepts a row.
    fn entry(&mut self, row: &Tracked<K>, epoch: i64) -> &mut Entry {
        let epochs = self.keys.entry(row.key.clone()).or_default();
        let replaced = epochs.values().filter(|_| self.policy.epochs == Epochs::Fence);
        let newest = replaced.filter_map(|entry| entry.last_timestamp).max();
        let entry = epochs.entry(epoch).or_default();
        entry.last_timestamp = entry.last_timestamp.max(newest).max(Some(row.timestamp));
        entry
    }

    /// The first position whose holes count.
    fn start(&self, entry: &Entry) -> i128 {
        let lowest = entry.positions.first().copied().unwrap_or(0);
        if self.policy.first_is_zero { 0 } else { lowest }
    }

    /// Positions in the spans that were not accepted.
    fn uncovered(&self, spans: &[Span<K>]) -> Vec<Missing<K>> {
        let mut missing = Vec::new();
        if self.policy.gaps_are_normal {
            return missing;
        }
        for Span { key, epoch, first, last } in spans.iter().filter(|span| span.first <= span.last) {
            let mut from = *first;
            let accepted = self.keys[key][epoch].positions.range(first..=last).copied();
            for position in accepted.chain([last + 1]) {
                if from < position {
                    missing.push(self.range(key, *epoch, from, position - 1));
                }
                from = position + 1;
            }
        }
        missing
    }

    fn range(&self, key: &K, epoch: i64, first: i128, last: i128) -> Missing<K> {
        Missing {
            key: key.clone(),
            epoch: (self.policy.epochs != Epochs::Ignore).then_some(epoch),
            first_seq: sequence(&self.policy, first),
            last_seq: sequence(&self.policy, last),
            count: i64::try_from(last - first + 1).expect("a hole is shorter than the sequence space"),
        }
    }
}

fn judge_next(policy: &Policy, entry: &Entry, seq: i64) -> Judgement {
    let window = usize::try_from(policy.window).expect("checked with the policy");
    let last = *entry.recent.last().expect("an entry has accepted a row");
    let expected = after(policy, last.into());
    if entry.recent.iter().rev().take(window).any(|known| *known == seq) {
        (Verdict::Duplicate, None)
    } else if Some(seq) == expected {
        (Verdict::Accepted, None)
    } else {
        (Verdict::OutOfOrder, expected)
    }
}

fn judge_position(policy: &Policy, entry: &Entry, highest: i128, position: i128) -> Judgement {
    let is_too_far = policy.max_jump.is_some_and(|jump| position > highest + i128::from(jump));
    let is_known = entry.positions.contains(&position);
    let is_late = policy.admit == Admit::Forward && position <= highest;
    match () {
        () if is_too_far => (Verdict::OutOfOrder, after(policy, highest)),
        () if is_known || (is_late && policy.late_is_duplicate) => (Verdict::Duplicate, None),
        () if is_late => (Verdict::OutOfOrder, after(policy, highest)),
        () => (Verdict::Accepted, None),
    }
}

/// The rule of the wrap and its border.
pub(crate) fn position(policy: &Policy, highest: i128, seq: i64) -> (i128, bool) {
    let seq = i128::from(seq);
    let Some(wrap) = policy.wrap.map(i128::from) else {
        return (seq, false);
    };
    let zone = (wrap / 4).min(1 << 20);
    let (lap, within) = (highest.div_euclid(wrap), highest.rem_euclid(wrap));
    if within >= wrap - zone && seq < zone {
        ((lap + 1) * wrap + seq, true)
    } else if within < zone && seq >= wrap - zone && (!policy.first_is_zero || lap > 0) {
        ((lap - 1) * wrap + seq, true)
    } else {
        (lap * wrap + seq, false)
    }
}

fn sequence(policy: &Policy, position: i128) -> i64 {
    let seq = policy.wrap.map_or(position, |wrap| position.rem_euclid(wrap.into()));
    i64::try_from(seq).expect("a sequence has at most 63 bits")
}

/// The sequence after a position; none after the last 64-bit one.
fn after(policy: &Policy, position: i128) -> Option<i64> {
    match policy.wrap {
        Some(_) => Some(sequence(policy, position + 1)),
        None => i64::try_from(position + 1).ok(),
    }
}

mod forgetting;
pub use forgetting::{CannotMerge, Remembered};
#[cfg(test)]
mod tests;

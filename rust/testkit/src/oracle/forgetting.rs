//! Eviction of the oracle, and the merge of two oracles.

use super::{Admit, Entry, Epochs, Missing, Oracle, Policy, Range};
use std::collections::BTreeMap;
use std::fmt::Debug;

/// An entry, in positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remembered<K> {
    /// Producer and partition.
    pub key: K,
    /// The epoch, 0 if the policy ignores epochs.
    pub epoch: i64,
    /// From the first position to the last.
    pub span: Range,
    /// Skipped positions that are not final, with the timestamp of the row that skipped them.
    pub holes: Vec<(Range, i64)>,
    /// The final range.
    pub final_range: Option<Range>,
    /// The highest timestamp accepted.
    pub last_timestamp: i64,
}

/// The two oracles cannot be merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CannotMerge;

impl<K: Ord + Clone + Debug> Oracle<K> {
    /// Drops entries that were idle for this long, raises the horizon, and makes holes that opened at or below it
    /// final. Returns the number of dropped entries.
    pub fn evict(&mut self, now: i64, idle: i64) -> usize {
        let before = self.len();
        let horizon = self.horizon.max(Some(now - idle));
        self.horizon = horizon;
        let newest_alone = self.policy.epochs == Epochs::Fence;
        self.keys.retain(|_, epochs| {
            if newest_alone {
                let newest = epochs.pop_last();
                epochs.clear();
                epochs.extend(newest);
            }
            epochs.retain(|_, entry| now - entry.last_timestamp.unwrap_or(0) < idle);
            !epochs.is_empty()
        });
        let policy = self.policy;
        for entry in self.keys.values_mut().flat_map(BTreeMap::values_mut).filter(|_| policy.keeps_holes()) {
            let jumps = entry.jumps.clone();
            for ((first, last), _) in jumps.into_iter().filter(|(_, timestamp)| Some(*timestamp) <= horizon) {
                uncovered(entry, first, last).into_iter().for_each(|range| make_final(entry, range));
            }
        }
        let kept: Vec<_> = self.entries().map(|(key, epoch, _)| (key.clone(), epoch)).collect();
        kept.iter().for_each(|(key, epoch)| self.keep_reach(key, *epoch));
        before - self.len()
    }

    /// The horizon.
    pub fn horizon(&self) -> Option<i64> {
        self.horizon
    }

    /// Drops the matching keys in all epochs. Returns the number of dropped entries.
    pub fn forget(&mut self, is_named: impl Fn(&K) -> bool) -> usize {
        let before = self.len();
        self.keys.retain(|key, _| !is_named(key));
        before - self.len()
    }

    /// Whether no more rows are accepted, because too many holes are open.
    pub fn is_full(&self) -> bool {
        let holes = || self.entries().map(|(_, _, entry)| self.holes(entry).len()).sum::<usize>();
        self.policy.intervals_max.is_some_and(|limit| holes() as i64 >= limit)
    }

    /// All entries, in the order of key and epoch. Not under `Next`, which has no positions.
    pub fn remembered(&self) -> Vec<Remembered<K>> {
        assert!(self.policy.admit != Admit::Next, "no positions");
        let each = |(key, epoch, entry): (&K, i64, &Entry)| Remembered {
            key: key.clone(),
            epoch,
            span: (self.start(entry), *entry.positions.last().expect("it has accepted a row")),
            holes: self.holes(entry).into_iter().map(|range| (range, skipped_at(entry, range.0))).collect(),
            final_range: entry.final_range,
            last_timestamp: entry.last_timestamp.expect("it has accepted a row"),
        };
        self.entries().map(each).collect()
    }

    /// The final ranges, in positions.
    pub fn finals(&self) -> Vec<Missing<K>> {
        let each = |(key, epoch, entry): (&K, i64, &Entry)| {
            let (first, last) = entry.final_range?;
            let narrow = |position| i64::try_from(position).expect("64 bits");
            let range = self.range(key, epoch, first, last);
            Some(Missing { first_seq: narrow(first), last_seq: narrow(last), ..range })
        };
        self.entries().filter_map(each).collect()
    }

    /// Adds the positions that the other has accepted, and returns those that both had, in the order of key and epoch.
    pub fn merge(&mut self, other: &Oracle<K>) -> Result<Vec<Missing<K>>, CannotMerge> {
        if self.policy != other.policy || self.policy.admit != Admit::Any {
            return Err(CannotMerge);
        }
        let mut merged = self.keys.clone();
        let mut overlap = Vec::new();
        let ours: BTreeMap<_, _> = self.entries().map(|(key, epoch, entry)| ((key, epoch), entry)).collect();
        let mut theirs: Vec<_> = other.entries().collect();
        theirs.sort_by_key(|&(key, epoch, _)| (key, epoch));
        for (key, epoch, entry) in theirs {
            let place = merged.entry(key.clone()).or_default();
            let Some(ours) = ours.get(&(key, epoch)) else {
                let known = place.last_key_value().and_then(|(_, entry)| entry.last_timestamp);
                place.entry(epoch).or_insert_with(|| entry.clone());
                if self.policy.epochs == Epochs::Fence {
                    let mut newest = place.last_entry().expect("it was just put");
                    newest.get_mut().last_timestamp = known.max(entry.last_timestamp);
                }
                continue;
            };
            if is_ambiguous(&self.policy, &[ours, entry]) {
                return Err(CannotMerge);
            }
            overlap.extend(both(ours, entry).into_iter().map(|(first, last)| self.range(key, epoch, first, last)));
            place.insert(epoch, union(ours, entry));
        }
        self.keys = merged;
        self.horizon = self.horizon.max(other.horizon);
        Ok(overlap)
    }

    /// Skipped positions of an entry that may still come.
    pub(super) fn holes(&self, entry: &Entry) -> Vec<Range> {
        match entry.positions.last() {
            Some(last) if self.policy.keeps_holes() => uncovered(entry, self.start(entry), *last),
            _ => Vec::new(),
        }
    }

    /// Makes missing positions beyond the reach final.
    pub(super) fn keep_reach(&mut self, key: &K, epoch: i64) {
        let Some(reach) = self.policy.reach.map(i128::from) else { return };
        let start = self.start(&self.keys[key][&epoch]);
        let epochs = self.keys.get_mut(key).expect("a key that accepted a row");
        let entry = epochs.get_mut(&epoch).expect("an entry that accepted a row");
        let highest = *entry.positions.last().expect("it has accepted a row");
        uncovered(entry, start, highest - reach - 1).into_iter().for_each(|range| make_final(entry, range));
    }
}

/// Positions in a range that are neither accepted nor final.
fn uncovered(entry: &Entry, first: i128, last: i128) -> Vec<Range> {
    let mut ranges = Vec::new();
    let mut from = first;
    if first > last {
        return ranges;
    }
    for position in entry.positions.range(first..=last).copied().chain([last + 1]) {
        ranges.push((from, position - 1));
        from = position + 1;
    }
    let outside = |(first, last): Range| match entry.final_range {
        Some((low, high)) => vec![(first, last.min(low - 1)), (first.max(high + 1), last)],
        None => vec![(first, last)],
    };
    ranges.into_iter().flat_map(outside).filter(|(first, last)| first <= last).collect()
}

fn make_final(entry: &mut Entry, (first, last): Range) {
    let (low, high) = entry.final_range.unwrap_or((first, last));
    entry.final_range = Some((low.min(first), high.max(last)));
}

/// The timestamp of the row that skipped a position.
fn skipped_at(entry: &Entry, position: i128) -> i64 {
    let holds = |(first, last): Range| first <= position && position <= last;
    let found = entry.jumps.iter().find(|(range, _)| holds(*range));
    found.map(|(_, timestamp)| *timestamp).expect("what is missing was skipped")
}

/// Positions that both entries have accepted and that are final in neither.
fn both(one: &Entry, other: &Entry) -> Vec<Range> {
    let is_final =
        |entry: &Entry, position| entry.final_range.is_some_and(|(first, last)| first <= position && position <= last);
    let mut ranges: Vec<Range> = Vec::new();
    for position in one.positions.intersection(&other.positions).copied() {
        if is_final(one, position) || is_final(other, position) {
            continue;
        }
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == position => *last = position,
            _ => ranges.push((position, position)),
        }
    }
    ranges
}

fn union(one: &Entry, other: &Entry) -> Entry {
    let mut union = Entry {
        positions: &one.positions | &other.positions,
        last_timestamp: one.last_timestamp.max(other.last_timestamp),
        final_range: one.final_range,
        ..Entry::default()
    };
    other.final_range.into_iter().for_each(|range| make_final(&mut union, range));
    let jumps: Vec<_> = one.jumps.iter().chain(&other.jumps).filter(|((first, last), _)| first <= last).collect();
    let ends = |entry: &Entry| [*entry.positions.first().expect("one"), *entry.positions.last().expect("one") + 1];
    let mut cuts: Vec<i128> = jumps.iter().flat_map(|((first, last), _)| [*first, last + 1]).collect();
    cuts.extend([ends(one), ends(other)].concat());
    cuts.sort_unstable();
    cuts.dedup();
    for cut in cuts.windows(2) {
        let (first, last) = (cut[0], cut[1] - 1);
        let skipped = jumps.iter().filter(|((low, high), _)| *low <= first && last <= *high);
        let timestamp = skipped.map(|(_, timestamp)| *timestamp).max().or(union.last_timestamp);
        union.jumps.push(((first, last), timestamp.expect("both have accepted a row")));
    }
    union
}

/// Whether positions that may have been accepted are on both sides of the border and close to it.
fn is_ambiguous(policy: &Policy, entries: &[&Entry]) -> bool {
    let Some(wrap) = policy.wrap.map(i128::from) else { return false };
    let zone = (wrap / 4).min(1 << 20);
    let ranges = |entry: &Entry| {
        let positions = entry.positions.iter().map(|&position| (position, position));
        positions.chain(entry.final_range).collect::<Vec<_>>()
    };
    // The next position within the zone is in the range directly or on the next lap.
    let meets = |(first, last): Range, zone_first: i128| {
        let within = (first - zone_first).rem_euclid(wrap);
        within < zone || last - first >= wrap - within
    };
    let is_met = |zone_first| entries.iter().flat_map(|entry| ranges(entry)).any(|range| meets(range, zone_first));
    is_met(0) && is_met(wrap - zone)
}

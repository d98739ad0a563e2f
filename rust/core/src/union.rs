//! Merges two entries of one key. The result covers what either had accepted.

use crate::holes::Holes;
use crate::judge::FullEntry;

/// Positions that an entry does not cover, and the timestamp of the row that skipped them, if a row did.
struct Gap {
    first: i64,
    last: i64,
    timestamp: Option<i64>,
}

/// The union of two entries of one epoch. It is commutative, associative and idempotent on positions.
///
/// Positions that neither covers are a hole. Its timestamp is:
///
/// - the later one if both skipped it
/// - the one there is if one skipped it
/// - the later of the last timestamps if it is between the two entries
pub(crate) fn union(one: &FullEntry, other: &FullEntry) -> FullEntry {
    let (first, last) = (one.first.min(other.first), one.last.max(other.last));
    let last_timestamp = one.last_timestamp.max(other.last_timestamp);
    let finals = one.final_range.into_iter().chain(other.final_range);
    let final_range = finals.reduce(|(low, high), (first, last)| (low.min(first), high.max(last)));
    let (low, high) = final_range.unwrap_or((last, last));
    let mut holes = Holes::default();
    let (ones, others) = (gaps(one, first, last), gaps(other, first, last));
    let (mut ones, mut others) = (ones.iter().peekable(), others.iter().peekable());
    while let (Some(a), Some(b)) = (ones.peek(), others.peek()) {
        let (from, to) = (a.first.max(b.first), a.last.min(b.last));
        let timestamp = a.timestamp.max(b.timestamp).unwrap_or(last_timestamp);
        for (from, to) in [(from, to.min(low - 1)), (from.max(high.saturating_add(1)), to)] {
            if from <= to {
                holes.open(from, to, timestamp);
            }
        }
        if a.last <= b.last {
            ones.next()
        } else {
            others.next()
        };
    }
    FullEntry { epoch: one.epoch, first, last, holes, final_range, last_timestamp }
}

/// Positions that both entries cover, lowest first.
pub(crate) fn overlap(one: &FullEntry, other: &FullEntry) -> Vec<(i64, i64)> {
    let (first, last) = (one.first.max(other.first), one.last.min(other.last));
    if first > last {
        return Vec::new();
    }
    let mut missed = gaps(one, first, last);
    missed.extend(gaps(other, first, last));
    missed.sort_unstable_by_key(|gap| gap.first);
    let mut held = Vec::new();
    let mut from = Some(first);
    for gap in missed {
        let Some(start) = from.filter(|&start| gap.last >= start) else { continue };
        if gap.first > start {
            held.push((start, gap.first - 1));
        }
        from = gap.last.checked_add(1);
    }
    held.extend(from.filter(|&start| start <= last).map(|start| (start, last)));
    held
}

/// Positions of `first..=last` that an entry does not cover, lowest first.
fn gaps(entry: &FullEntry, first: i64, last: i64) -> Vec<Gap> {
    let mut gaps = Vec::new();
    let mut gap = |from: i64, to: i64, timestamp| {
        let (from, to) = (from.max(first), to.min(last));
        if from <= to {
            gaps.push(Gap { first: from, last: to, timestamp });
        }
    };
    if entry.first > first {
        gap(first, entry.first - 1, None);
    }
    entry.holes.iter_timed().for_each(|(from, to, timestamp)| gap(from, to, Some(timestamp)));
    entry.final_range.into_iter().for_each(|(from, to)| gap(from, to, None));
    if entry.last < last {
        gap(entry.last + 1, last, None);
    }
    gaps.sort_unstable_by_key(|gap| gap.first);
    gaps
}

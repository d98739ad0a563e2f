use std::collections::BTreeMap;

/// Disjoint, non-adjacent ranges of positions, both ends included, each with the timestamp of the row
/// that opened it (0 where timestamps are not kept).
///
/// From the first of each range to its last and its timestamp. The common entry has none and allocates
/// nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holes(BTreeMap<i64, (i64, i64)>);

impl Holes {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many ranges there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The ranges, lowest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (i64, i64)> + '_ {
        self.iter_timed().map(|(first, last, _)| (first, last))
    }

    /// The ranges with their timestamps, lowest first.
    pub(crate) fn iter_timed(&self) -> impl Iterator<Item = (i64, i64, i64)> + '_ {
        self.0.iter().map(|(&first, &(last, timestamp))| (first, last, timestamp))
    }

    /// What lies in `first..=last`, piece by piece, lowest first.
    pub(crate) fn within(&self, first: i64, last: i64) -> impl Iterator<Item = (i64, i64)> + '_ {
        let before = self.0.range(..first).next_back().filter(|&(_, &(end, _))| end >= first);
        let inside = (first <= last).then(|| self.0.range(first..=last)).into_iter().flatten();
        before.into_iter().chain(inside).map(move |(&start, &(end, _))| (start.max(first), end.min(last)))
    }

    /// Bytes held beyond the struct itself: a B-tree's nodes are at least half full.
    pub(crate) fn memory_bytes(&self) -> usize {
        const BYTES_PER_RANGE: usize = 36;
        if self.0.is_empty() { 0 } else { 288 + self.0.len() * BYTES_PER_RANGE }
    }

    /// Adds a range that overlaps none and joins it to its neighbours; the latest timestamp stays.
    pub(crate) fn open(&mut self, mut first: i64, mut last: i64, mut timestamp: i64) {
        debug_assert!(first <= last);
        let ranges = &mut self.0;
        if let Some((&below, &(end, other))) = ranges.range(..first).next_back() {
            debug_assert!(end < first);
            if end == first - 1 {
                ranges.remove(&below);
                (first, timestamp) = (below, timestamp.max(other));
            }
        }
        if last < i64::MAX
            && let Some((end, other)) = ranges.remove(&(last + 1))
        {
            (last, timestamp) = (end, timestamp.max(other));
        }
        ranges.insert(first, (last, timestamp));
    }

    /// Takes out what lies in `first..=last` and tells each piece, lowest first.
    pub(crate) fn close(&mut self, first: i64, last: i64, mut closed: impl FnMut(i64, i64)) {
        let ranges = &mut self.0;
        let mut from = first;
        while from <= last {
            let covering = ranges.range(..=from).next_back().filter(|&(_, &(end, _))| end >= from);
            let Some((&start, &(end, timestamp))) = covering.or_else(|| ranges.range(from..=last).next()) else {
                break;
            };
            let (piece_first, piece_last) = (start.max(first), end.min(last));
            ranges.remove(&start);
            if start < piece_first {
                ranges.insert(start, (piece_first - 1, timestamp));
            }
            if end > piece_last {
                ranges.insert(piece_last + 1, (end, timestamp));
            }
            closed(piece_first, piece_last);
            if piece_last == i64::MAX {
                break;
            }
            from = piece_last + 1;
        }
    }

    /// Takes out what lies in `first..=last`.
    pub(crate) fn remove(&mut self, first: i64, last: i64) {
        self.close(first, last, |_, _| ());
    }

    /// Takes out what lies below a position and gives the hull of it.
    pub(crate) fn finalise_below(&mut self, position: i64) -> Option<(i64, i64)> {
        let (&first, _) = self.0.first_key_value().filter(|&(&first, _)| first < position)?;
        let mut hull = (first, first);
        self.close(first, position - 1, |_, last| hull.1 = last);
        Some(hull)
    }

    /// Takes out the ranges whose timestamp is at or below the horizon and gives the hull of them.
    pub(crate) fn finalise_until(&mut self, horizon: i64) -> Option<(i64, i64)> {
        let mut hull: Option<(i64, i64)> = None;
        self.0.retain(|&first, &mut (last, timestamp)| {
            if timestamp <= horizon {
                hull = Some((hull.map_or(first, |(lowest, _)| lowest), last));
            }
            timestamp > horizon
        });
        hull
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_splits_and_tells_each_piece() {
        let mut holes = Holes::default();
        holes.open(10, 19, 1);
        holes.open(30, 39, 2);
        let mut pieces = Vec::new();
        holes.close(15, 32, |first, last| pieces.push((first, last)));
        assert_eq!(pieces, [(15, 19), (30, 32)]);
        assert_eq!(holes.iter_timed().collect::<Vec<_>>(), [(10, 14, 1), (33, 39, 2)]);
        holes.remove(0, 100);
        assert!(holes.is_empty());
    }

    #[test]
    fn neighbours_join_and_keep_the_latest_timestamp() {
        let mut holes = Holes::default();
        holes.open(0, 1, 5);
        holes.open(4, 5, 9);
        holes.open(2, 3, 1);
        assert_eq!(holes.iter_timed().collect::<Vec<_>>(), [(0, 5, 9)]);
    }

    #[test]
    fn what_becomes_final_leaves_and_its_hull_is_told() {
        let mut holes = Holes::default();
        for (first, timestamp) in [(0, 3), (10, 7), (20, 2), (30, 9)] {
            holes.open(first, first + 5, timestamp);
        }
        assert_eq!(holes.finalise_until(1), None);
        assert_eq!(holes.finalise_until(3), Some((0, 25)));
        assert_eq!(holes.iter().collect::<Vec<_>>(), [(10, 15), (30, 35)]);
        assert_eq!(holes.finalise_below(10), None);
        assert_eq!(holes.finalise_below(33), Some((10, 32)));
        assert_eq!(holes.iter_timed().collect::<Vec<_>>(), [(33, 35, 9)]);
        assert_eq!(holes.len(), 1);
    }

    #[test]
    fn every_small_close_equals_a_set_of_numbers() {
        for bits in 0u32..1 << 8 {
            for first in 0..8 {
                for last in first..8 {
                    let mut holes = Holes::default();
                    (0..8).filter(|i| bits >> i & 1 == 1).for_each(|i| holes.open(i, i, 0));
                    let mut taken = 0u32;
                    let seen = holes.within(first, last).flat_map(|(a, b)| a..=b).fold(0u32, |set, i| set | 1 << i);
                    holes.close(first, last, |a, b| (a..=b).for_each(|i| taken |= 1 << i));
                    let asked = (first..=last).fold(0u32, |set, i| set | 1 << i);
                    let left = holes.iter().flat_map(|(a, b)| a..=b).fold(0u32, |set, i| set | 1 << i);
                    assert_eq!((seen, taken, left), (bits & asked, bits & asked, bits & !asked));
                }
            }
        }
    }
}

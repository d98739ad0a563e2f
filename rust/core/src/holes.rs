use std::collections::BTreeMap;

/// Disjoint, non-adjacent ranges of positions, both ends included.
///
/// From the first of each range to its last. The common entry has none and allocates nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holes(BTreeMap<i64, i64>);

impl Holes {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The ranges, lowest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (i64, i64)> + '_ {
        self.0.iter().map(|(&first, &last)| (first, last))
    }

    /// What lies in `first..=last`, piece by piece, lowest first.
    pub(crate) fn within(&self, first: i64, last: i64) -> impl Iterator<Item = (i64, i64)> + '_ {
        let before = self.0.range(..first).next_back().filter(|&(_, &end)| end >= first);
        let inside = (first <= last).then(|| self.0.range(first..=last)).into_iter().flatten();
        before.into_iter().chain(inside).map(move |(&start, &end)| (start.max(first), end.min(last)))
    }

    /// Bytes held beyond the struct itself: a B-tree's nodes are at least half full.
    pub(crate) fn memory_bytes(&self) -> usize {
        const BYTES_PER_RANGE: usize = 24;
        if self.0.is_empty() { 0 } else { 192 + self.0.len() * BYTES_PER_RANGE }
    }

    /// Adds a range that overlaps none and joins it to its neighbours.
    pub(crate) fn open(&mut self, mut first: i64, mut last: i64) {
        debug_assert!(first <= last);
        let ranges = &mut self.0;
        if let Some((&below, &end)) = ranges.range(..first).next_back() {
            debug_assert!(end < first);
            if end == first - 1 {
                ranges.remove(&below);
                first = below;
            }
        }
        if last < i64::MAX
            && let Some(end) = ranges.remove(&(last + 1))
        {
            last = end;
        }
        ranges.insert(first, last);
    }

    /// Takes out what lies in `first..=last` and tells each piece, lowest first.
    pub(crate) fn close(&mut self, first: i64, last: i64, mut closed: impl FnMut(i64, i64)) {
        let ranges = &mut self.0;
        let mut from = first;
        while from <= last {
            let covering = ranges.range(..=from).next_back().filter(|&(_, &end)| end >= from);
            let Some((&start, &end)) = covering.or_else(|| ranges.range(from..=last).next()) else {
                break;
            };
            let (piece_first, piece_last) = (start.max(first), end.min(last));
            ranges.remove(&start);
            if start < piece_first {
                ranges.insert(start, piece_first - 1);
            }
            if end > piece_last {
                ranges.insert(piece_last + 1, end);
            }
            closed(piece_first, piece_last);
            if piece_last == i64::MAX {
                break;
            }
            from = piece_last + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_splits_and_tells_each_piece() {
        let mut holes = Holes::default();
        holes.open(10, 19);
        holes.open(30, 39);
        let mut pieces = Vec::new();
        holes.close(15, 32, |first, last| pieces.push((first, last)));
        assert_eq!(pieces, [(15, 19), (30, 32)]);
        assert_eq!(holes.iter().collect::<Vec<_>>(), [(10, 14), (33, 39)]);
        holes.close(0, 100, |_, _| ());
        assert!(holes.is_empty());
    }

    #[test]
    fn neighbours_join() {
        let mut holes = Holes::default();
        holes.open(0, 1);
        holes.open(4, 5);
        holes.open(2, 3);
        assert_eq!(holes.iter().collect::<Vec<_>>(), [(0, 5)]);
    }

    #[test]
    fn every_small_close_equals_a_set_of_numbers() {
        for bits in 0u32..1 << 8 {
            for first in 0..8 {
                for last in first..8 {
                    let mut holes = Holes::default();
                    (0..8).filter(|i| bits >> i & 1 == 1).for_each(|i| holes.open(i, i));
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

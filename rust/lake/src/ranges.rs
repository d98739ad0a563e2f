use crate::error::{Error, Result};
use std::ops::Range;

/// Rows of a file as sorted, disjoint ranges.
#[derive(Clone, Debug, Default)]
pub struct RowRanges {
    ranges: Vec<Range<u64>>,
}

impl RowRanges {
    /// Builds ranges from the first row and the number of rows of each.
    pub fn new(first_rows: &[u64], counts: &[u64]) -> Result<RowRanges> {
        if first_rows.len() != counts.len() {
            let problem = format!("{} first rows, but {} counts: a range needs both", first_rows.len(), counts.len());
            return Err(Error::Ranges(problem));
        }
        let mut ranges: Vec<Range<u64>> = Vec::with_capacity(counts.len());
        let mut end = 0;
        for (number, (&first, &count)) in first_rows.iter().zip(counts).enumerate() {
            let range_end = first.checked_add(count);
            let Some(range_end) = range_end.filter(|_| first >= end) else {
                let problem = format!("range {number} ({first}, {count}): ranges must be sorted and disjoint");
                return Err(Error::Ranges(problem));
            };
            end = range_end;
            match ranges.last_mut() {
                _ if count == 0 => {}
                Some(last) if last.end == first => last.end = range_end,
                _ => ranges.push(first..range_end),
            }
        }
        Ok(RowRanges { ranges })
    }

    /// The row after the last one.
    pub(crate) fn end(&self) -> u64 {
        self.ranges.last().map_or(0, |range| range.end)
    }

    /// The part of `rows` that is in these ranges, or with `is_inverse` is not, counted from its first row.
    pub(crate) fn within(&self, rows: Range<u64>, is_inverse: bool) -> Vec<Range<u64>> {
        let first = self.ranges.partition_point(|range| range.end <= rows.start);
        let inside = self.ranges[first..]
            .iter()
            .take_while(|range| range.start < rows.end)
            .map(|range| range.start.max(rows.start) - rows.start..range.end.min(rows.end) - rows.start);
        if !is_inverse {
            return inside.collect();
        }
        let mut outside = Vec::new();
        let mut at = 0;
        for range in inside {
            if range.start > at {
                outside.push(at..range.start);
            }
            at = range.end;
        }
        if at < rows.end - rows.start {
            outside.push(at..rows.end - rows.start);
        }
        outside
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_their_complements_are_split_by_row_group() {
        let ranges = RowRanges::new(&[2, 4, 10, 20], &[2, 1, 0, 5]).unwrap();
        assert_eq!(ranges.end(), 25);
        let pairs = |rows, is_inverse| -> Vec<(u64, u64)> {
            ranges.within(rows, is_inverse).into_iter().map(|range| (range.start, range.end)).collect()
        };
        assert_eq!(pairs(0..10, false), [(2, 5)]);
        assert_eq!(pairs(0..10, true), [(0, 2), (5, 10)]);
        assert_eq!(pairs(3..22, false), [(0, 2), (17, 19)]);
        assert_eq!(pairs(3..22, true), [(2, 17)]);
        assert_eq!(pairs(2..5, true), []);
        assert_eq!(pairs(5..20, true), [(0, 15)]);
    }

    #[test]
    fn ranges_that_overlap_go_back_or_overflow_are_refused() {
        for (first, counts) in [(vec![5, 4], vec![1, 1]), (vec![0, 4], vec![5, 1]), (vec![u64::MAX], vec![1])] {
            assert!(RowRanges::new(&first, &counts).is_err(), "{first:?} {counts:?}");
        }
        assert!(RowRanges::new(&[1], &[]).is_err());
    }
}

//! Spans of a batch of rows: cut where rows differ, and sorted by shard.

/// Adds a start at each row of a span that differs from the previous row.
pub(crate) fn cut_where(starts: &mut Vec<u32>, cut: &mut Vec<u32>, rows: u32, is_cut: impl Fn(usize) -> bool) {
    cut.clear();
    for (number, &start) in starts.iter().enumerate() {
        let end = starts.get(number + 1).copied().unwrap_or(rows);
        cut.push(start);
        cut.extend((start + 1..end).filter(|&row| is_cut(row as usize)));
    }
    std::mem::swap(starts, cut);
}

/// The spans of a batch, each with its shard. The buffers are reused for every batch.
#[derive(Default)]
pub(crate) struct Spans {
    first: Vec<u32>,
    length: Vec<u32>,
    shard: Vec<u32>,
    /// First rows and lengths in the order of shards, and the end of the spans of each shard.
    sorted: Vec<u32>,
    sorted_length: Vec<u32>,
    ends: Vec<u32>,
}

impl Spans {
    pub(crate) fn clear(&mut self, shards: u32) {
        self.first.clear();
        self.length.clear();
        self.shard.clear();
        self.ends.clear();
        self.ends.resize(shards as usize + 1, 0);
    }

    #[inline]
    pub(crate) fn push(&mut self, shard: u32, first: u32, length: u32) {
        self.first.push(first);
        self.length.push(length);
        self.shard.push(shard);
        self.ends[shard as usize + 1] += 1;
    }

    pub(crate) fn len(&self) -> usize {
        self.first.len()
    }

    /// The first row of each span, in the order of the batch.
    pub(crate) fn first_rows(&self) -> &[u32] {
        &self.first
    }

    /// The shard of the last added span.
    pub(crate) fn last_shard(&self) -> Option<usize> {
        self.shard.last().map(|&shard| shard as usize)
    }

    /// Sorts by counting: finds the beginning of each shard, then moves every span to its place. Call it once, after
    /// the last span.
    pub(crate) fn sort(&mut self) {
        for shard in 1..self.ends.len() {
            self.ends[shard] += self.ends[shard - 1];
        }
        self.sorted.clear();
        self.sorted.resize(self.first.len(), 0);
        self.sorted_length.clear();
        self.sorted_length.resize(self.first.len(), 0);
        for ((&row, &count), &shard) in self.first.iter().zip(&self.length).zip(&self.shard) {
            let place = &mut self.ends[shard as usize];
            self.sorted[*place as usize] = row;
            self.sorted_length[*place as usize] = count;
            *place += 1;
        }
    }

    /// The first rows and the lengths of the spans of each shard, in the order of the batch. Call `sort` first.
    pub(crate) fn by_shard(&self) -> impl Iterator<Item = (&[u32], &[u32])> {
        let mut start = 0;
        let shards = &self.ends[..self.ends.len().saturating_sub(1)];
        shards.iter().map(move |&end| {
            let places = std::mem::replace(&mut start, end as usize)..end as usize;
            (&self.sorted[places.clone()], &self.sorted_length[places])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_cut_where_rows_differ() {
        let (mut starts, mut cut) = (vec![0, 4, 5], Vec::new());
        cut_where(&mut starts, &mut cut, 8, |row| row % 3 == 0);
        assert_eq!(starts, [0, 3, 4, 5, 6]);
        // Rows that already begin a span are not compared.
        cut_where(&mut starts, &mut cut, 8, |row| [2, 7].contains(&row) || panic_at(row, &[0, 3, 4, 5, 6]));
        assert_eq!(starts, [0, 2, 3, 4, 5, 6, 7]);
        let mut none = Vec::new();
        cut_where(&mut none, &mut cut, 0, |_| true);
        assert!(none.is_empty());
    }

    fn panic_at(row: usize, rows: &[usize]) -> bool {
        assert!(!rows.contains(&row), "row {row}");
        false
    }

    /// Compares with a stable sort, with shards without spans, and with buffers that were used for another batch.
    #[test]
    fn spans_are_sorted_by_shard_and_keep_their_order() {
        let mut random = fencepost_testkit::workload::Random::new(7);
        let mut spans = Spans::default();
        for count in [0_u32, 1, 500, 3, 40] {
            let shards = 1 + random.below(9) as u32;
            let mut expected: Vec<(u32, u32, u32)> =
                (0..count).map(|row| (random.below(u64::from(shards)) as u32, 2 * row, 1 + row % 5)).collect();
            spans.clear(shards);
            expected.iter().for_each(|&(shard, first, length)| spans.push(shard, first, length));
            assert_eq!(spans.last_shard(), expected.last().map(|it| it.0 as usize));
            assert_eq!(spans.first_rows(), expected.iter().map(|it| it.1).collect::<Vec<_>>());
            expected.sort_by_key(|it| it.0);
            spans.sort();
            assert_eq!((spans.len(), spans.by_shard().count()), (count as usize, shards as usize));
            let found = (0..).zip(spans.by_shard()).flat_map(|(shard, (first, lengths))| {
                first.iter().zip(lengths).map(move |(&first, &length)| (shard, first, length))
            });
            assert_eq!(found.collect::<Vec<_>>(), expected);
        }
    }
}

//! The interval set of an entry's holes, in few bytes and with fast look-ups.
//!
//! ```text
//! Holes ── nothing
//!       ├─ one block                             a short sorted array in most cases
//!       └─ directory ── block, block, block...   each an array or bits, whichever is smaller
//! ```

mod array;
mod bits;
mod block;
mod directory;
#[cfg(test)]
mod tests;

use block::Block;
use directory::Directory;

/// Disjoint ranges of positions, both ends included, each with the timestamp of the row that opened it.
///
/// Adjacent ranges with equal timestamps are merged. Timestamps are 0 if they are not kept. Most entries have no holes
/// and allocate nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holes(Directory);

const _: () = assert!(size_of::<Holes>() == 72 && size_of::<Block>() == 72);

/// A range, and the timestamp at which it opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Interval {
    first: i64,
    last: i64,
    timestamp: i64,
}

impl Holes {
    /// A range, if it fits into bits stored in the set itself.
    #[inline(always)]
    pub(crate) fn of_few_bits(first: i64, last: i64, timestamp: i64) -> Option<Holes> {
        Block::of_few_bits(Interval { first, last, timestamp }).map(|block| Holes(Directory::One(block)))
    }

    pub(crate) fn is_empty(&self) -> bool {
        matches!(self.0, Directory::Empty)
    }

    /// Number of ranges.
    pub(crate) fn len(&self) -> usize {
        self.0.ranges()
    }

    /// The ranges, lowest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (i64, i64)> + '_ {
        self.ranges_from(i64::MIN).map(|range| (range.first, range.last))
    }

    /// Visits the ranges with their timestamps, lowest first. This takes a third of the time of `iter_timed`.
    #[inline]
    pub(crate) fn for_each(&self, mut visit: impl FnMut(i64, i64, i64)) {
        let mut index = 0;
        while let Some(block) = self.0.get(index) {
            block.for_each(|range| visit(range.first, range.last, range.timestamp));
            index += 1;
        }
    }

    /// The ranges with their timestamps, lowest first.
    pub(crate) fn iter_timed(&self) -> impl Iterator<Item = (i64, i64, i64)> + '_ {
        self.ranges_from(i64::MIN).map(|range| (range.first, range.last, range.timestamp))
    }

    /// The parts of ranges in `first..=last`, lowest first.
    pub(crate) fn within(&self, first: i64, last: i64) -> impl Iterator<Item = (i64, i64)> + '_ {
        self.ranges_from(first)
            .take_while(move |range| first <= last && range.first <= last)
            .map(move |range| (range.first.max(first), range.last.min(last)))
    }

    /// Whether a position is in a hole.
    #[inline]
    pub(crate) fn has(&self, position: i64) -> bool {
        if let Directory::One(block) = &self.0 {
            return block.key() <= position && block.has(position);
        }
        let block = self.0.count_up_to(position).checked_sub(1).and_then(|index| self.0.get(index));
        block.is_some_and(|block| block.has(position))
    }

    /// Prefetches the memory that a search for a position reads first. `last`: the end of the entry.
    #[inline(always)]
    pub(crate) fn prefetch(&self, position: i64, last: i64) {
        self.0.prefetch(position, last);
    }

    /// Bytes of memory outside the struct, including spare capacity.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.0.memory_bytes()
    }

    /// Adds a range that overlaps none, and merges it with neighbours of the same timestamp.
    pub(crate) fn open(&mut self, first: i64, last: i64, timestamp: i64) {
        debug_assert!(first <= last);
        debug_assert!(self.within(first, last).next().is_none());
        let range = Interval { first, last, timestamp };
        if !self.push(range) {
            self.open_joined(range);
        }
    }

    /// Adds a range that is above all others and adjacent to none, if there are bits that reach so far. This is the
    /// common case.
    #[inline(always)]
    pub(crate) fn append_in_bits(&mut self, first: i64, last: i64, timestamp: i64) -> bool {
        let Directory::One(block) = &mut self.0 else { return false };
        block.append_in_bits(Interval { first, last, timestamp })
    }

    /// Whether the holes are bits and a position is in none of them.
    #[inline(always)]
    pub(crate) fn is_apart_from_bits(&self, position: i64) -> bool {
        let Directory::One(block) = &self.0 else { return false };
        block.is_apart_from_bits(position)
    }

    /// Removes a position, if the holes are bits stored in the set itself and it is in one of them. Returns by how much
    /// the number of ranges has changed.
    #[inline]
    pub(crate) fn close_in_few_bits(&mut self, position: i64) -> Option<isize> {
        let Directory::One(block) = &mut self.0 else { return None };
        let change = block.close_in_few_bits(position)?;
        if block.len() == 0 {
            self.0 = Directory::Empty;
        }
        Some(change)
    }

    /// Removes all positions in `first..=last` and reports each part, lowest first.
    pub(crate) fn close(&mut self, first: i64, last: i64, mut closed: impl FnMut(i64, i64)) {
        if first > last {
            return;
        }
        let from = self.0.count_up_to(first).saturating_sub(1);
        let mut to = from;
        while self.0.get(to).is_some_and(|block| block.key() <= last) {
            while let Some(piece) = self.0.change(to, |block| block.take(first, last)) {
                closed(piece.0, piece.1);
                if piece.1 == last {
                    return self.0.settle(from, to);
                }
            }
            to += 1;
        }
        if to > from {
            self.0.settle(from, to - 1);
        }
    }

    /// Removes all positions in `first..=last`.
    pub(crate) fn remove(&mut self, first: i64, last: i64) {
        self.close(first, last, |_, _| ());
    }

    /// Removes all positions below a position, and returns their convex hull.
    pub(crate) fn finalise_below(&mut self, position: i64) -> Option<(i64, i64)> {
        let mut hull = None;
        self.close(i64::MIN, position.checked_sub(1)?, |first, last| join(&mut hull, (first, last)));
        hull
    }

    /// Removes the ranges that opened at or before the horizon, and returns their convex hull.
    pub(crate) fn finalise_until(&mut self, horizon: i64) -> Option<(i64, i64)> {
        let mut hull = None;
        let mut index = 0;
        while self.0.get(index).is_some() {
            if let Some(taken) = self.0.change(index, |block| block.take_until(horizon)) {
                join(&mut hull, taken);
            }
            index += 1;
        }
        self.0.drop_all_empty();
        hull
    }

    /// Adds a range if one block can decide that it continues none, or can merge it: at the end of all ranges, and in
    /// bits.
    fn push(&mut self, range: Interval) -> bool {
        let above = self.0.count_up_to(range.first);
        let is_apart = self.0.get(above).is_none_or(|next| next.key().checked_sub(1).is_some_and(|it| it > range.last));
        let is_pushed = above > 0 && is_apart && self.0.change(above - 1, |block| block.push(range));
        if is_pushed {
            self.0.settle(above - 1, above - 1);
        }
        is_pushed
    }

    /// Adds a range, merged with its neighbours.
    fn open_joined(&mut self, mut range: Interval) {
        if let Some(below) = range.first.checked_sub(1).and_then(|before| self.at(before, range.timestamp)) {
            self.remove(below.first, below.last);
            range.first = below.first;
        }
        if let Some(above) = range.last.checked_add(1).and_then(|after| self.at(after, range.timestamp)) {
            self.remove(above.first, above.last);
            range.last = above.last;
        }
        self.insert(range);
    }

    /// The range with this timestamp that contains a position.
    fn at(&self, position: i64, timestamp: i64) -> Option<Interval> {
        let index = self.0.count_up_to(position).checked_sub(1)?;
        self.0.get(index)?.containing(position).filter(|range| range.timestamp == timestamp)
    }

    /// Adds a range that neither overlaps nor continues another: to the block of its region, to the front of the next
    /// one, or as a new block between them.
    fn insert(&mut self, range: Interval) {
        let above = self.0.count_up_to(range.first);
        if self.0.get(above).is_some_and(|block| block.key() <= range.last) {
            self.0.change(above, Block::tighten);
        }
        for index in [above.checked_sub(1), Some(above)].into_iter().flatten() {
            if self.0.get(index).is_some() && self.0.change(index, |block| block.insert(range)) {
                return self.0.settle(index, index);
            }
        }
        self.0.insert(above, Block::new(range));
    }

    /// The ranges that do not end below a position.
    fn ranges_from(&self, position: i64) -> impl Iterator<Item = Interval> + '_ {
        let mut index = self.0.count_up_to(position).saturating_sub(1);
        let mut cursor = self.0.get(index).map_or(0, |block| block.cursor(position));
        std::iter::from_fn(move || {
            loop {
                if let Some((range, next)) = self.0.get(index)?.at(cursor) {
                    cursor = next;
                    return Some(range);
                }
                (index, cursor) = (index + 1, 0);
            }
        })
    }
}

/// Two are equal if they contain the same ranges, whatever the blocks.
impl PartialEq for Holes {
    fn eq(&self, other: &Holes) -> bool {
        self.len() == other.len() && self.iter_timed().eq(other.iter_timed())
    }
}

impl Eq for Holes {}

/// Extends a hull by a range above it.
fn join(hull: &mut Option<(i64, i64)>, (first, last): (i64, i64)) {
    *hull = Some(hull.map_or((first, last), |(lowest, _)| (lowest, last)));
}

//! Ranges in a sorted array.

use super::Range;
use crate::lines::prefetch;

/// An element of an array: a range, with what is kept beside it.
pub(super) trait Item: Copy {
    fn first(&self) -> i64;
    fn last(&self) -> i64;
    /// The same with other ends.
    fn between(&self, first: i64, last: i64) -> Self;
}

/// A range of which the block knows the timestamp: 16 bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plain {
    pub(super) first: i64,
    pub(super) last: i64,
}

impl Item for Plain {
    fn first(&self) -> i64 {
        self.first
    }

    fn last(&self) -> i64 {
        self.last
    }

    fn between(&self, first: i64, last: i64) -> Plain {
        Plain { first, last }
    }
}

impl Item for Range {
    fn first(&self) -> i64 {
        self.first
    }

    fn last(&self) -> i64 {
        self.last
    }

    fn between(&self, first: i64, last: i64) -> Range {
        Range { first, last, ..*self }
    }
}

/// The number of the first item that does not end below a position.
pub(super) fn find<T: Item>(items: &[T], position: i64) -> usize {
    items.partition_point(|item| item.last() < position)
}

/// Asks for the items that a search and an addition at the end read first.
#[inline(always)]
pub(super) fn ask_for<T: Item>(items: &[T]) {
    prefetch(items.as_ptr().wrapping_add(items.len() / 2));
    prefetch(items.as_ptr_range().end.wrapping_sub(1));
}

/// Whether a position lies in an item.
pub(super) fn has<T: Item>(items: &[T], position: i64) -> bool {
    items.get(find(items, position)).is_some_and(|item| item.first() <= position)
}

/// Whether a position lies above all items and does not continue the last.
pub(super) fn ends_apart_from<T: Item>(items: &[T], position: i64) -> bool {
    items.last().is_some_and(|item| item.last() < position && item.last() + 1 < position)
}

/// Adds an item above all.
pub(super) fn push<T: Item>(items: &mut Vec<T>, item: T) {
    insert_at(items, items.len(), item);
}

/// Adds an item that overlaps none.
pub(super) fn insert<T: Item>(items: &mut Vec<T>, item: T) {
    let index = find(items, item.first());
    insert_at(items, index, item);
}

/// Takes out the lowest piece that lies in `first..=last`.
#[inline]
pub(super) fn take<T: Item>(items: &mut Vec<T>, first: i64, last: i64) -> Option<(i64, i64)> {
    let index = find(items, first);
    let item = *items.get(index).filter(|item| item.first() <= last)?;
    let piece = (item.first().max(first), item.last().min(last));
    let below = (item.first() < piece.0).then(|| item.between(item.first(), piece.0 - 1));
    let above = (item.last() > piece.1).then(|| item.between(piece.1 + 1, item.last()));
    match (below, above) {
        (None, None) => remove_at(items, index),
        (Some(rest), None) | (None, Some(rest)) => items[index] = rest,
        (Some(below), Some(above)) => {
            items[index] = below;
            insert_at(items, index + 1, above);
        }
    }
    Some(piece)
}

/// Arrays have room for a power of two from one item on: the smallest vector would have four.
fn insert_at<T>(items: &mut Vec<T>, index: usize, item: T) {
    if items.len() == items.capacity() {
        items.reserve_exact((items.len() + 1).next_power_of_two() - items.len());
    }
    items.insert(index, item);
}

/// What is three quarters empty gives half of it back, but for a few items that would soon be asked for
/// again.
fn remove_at<T>(items: &mut Vec<T>, index: usize) {
    items.remove(index);
    if items.capacity() > 8 && items.len() * 4 <= items.capacity() {
        items.shrink_to(items.len() * 2);
    }
}

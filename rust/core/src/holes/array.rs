//! Ranges in a sorted array.

use super::Interval;
use crate::prefetch::prefetch;

/// An element of an array: a range and its additional data.
pub(super) trait Item: Copy {
    fn first(&self) -> i64;
    fn last(&self) -> i64;
    /// The same element with other ends.
    fn between(&self, first: i64, last: i64) -> Self;
}

/// A range whose timestamp is stored in the block: 16 bytes.
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

impl Item for Interval {
    fn first(&self) -> i64 {
        self.first
    }

    fn last(&self) -> i64 {
        self.last
    }

    fn between(&self, first: i64, last: i64) -> Interval {
        Interval { first, last, ..*self }
    }
}

/// Shorter arrays are searched by bisection.
const GUESSED_MIN: usize = 16;

/// The index of the first item that does not end below a position.
///
/// Items are mostly spread evenly, so the search begins at the interpolated place. Bisecting an array of 64 items would
/// read six cache lines one after the other, whose addresses are not known in advance.
pub(super) fn find<T: Item>(items: &[T], position: i64) -> usize {
    let is_below = |item: &T| item.last() < position;
    let within = |from: usize, to: usize| from + items[from..to].partition_point(is_below);
    let [lowest, .., highest] = items else { return within(0, items.len()) };
    if items.len() < GUESSED_MIN {
        return within(0, items.len());
    }
    let at = guess(items.len(), (lowest.first(), highest.last()), position);
    let mut step = 1;
    if is_below(&items[at]) {
        let mut from = at + 1;
        while items.get(from + step - 1).is_some_and(is_below) {
            (from, step) = (from + step, 2 * step);
        }
        within(from, items.len().min(from + step))
    } else {
        let mut to = at;
        while to >= step && !is_below(&items[to - step]) {
            (to, step) = (to - step, 2 * step);
        }
        within(to.saturating_sub(step), to)
    }
}

/// The interpolated place of a position among items that are spread evenly.
#[inline(always)]
fn guess(items: usize, (first, last): (i64, i64), position: i64) -> usize {
    let share = position.saturating_sub(first) as f64 / last.saturating_sub(first) as f64;
    ((share * items as f64) as usize).min(items - 1)
}

/// Prefetches the items that a search for a position, or an addition at the end, reads first. `ends`: the approximate
/// ends of all items.
#[inline(always)]
pub(super) fn prefetch_item<T: Item>(items: &[T], ends: (i64, i64), position: i64) {
    prefetch(items.as_ptr_range().end.wrapping_sub(1));
    if items.len() < GUESSED_MIN {
        return prefetch(items.as_ptr().wrapping_add(items.len() / 2));
    }
    prefetch(items.as_ptr());
    let guessed = items.as_ptr().wrapping_add(guess(items.len(), ends, position)).cast::<u8>();
    for line in [guessed.wrapping_sub(64), guessed, guessed.wrapping_add(64)] {
        prefetch(line);
    }
}

/// Whether a position is in an item.
pub(super) fn has<T: Item>(items: &[T], position: i64) -> bool {
    items.get(find(items, position)).is_some_and(|item| item.first() <= position)
}

/// Whether a position is above all items and does not continue the last one.
pub(super) fn ends_apart_from<T: Item>(items: &[T], position: i64) -> bool {
    items.last().is_some_and(|item| item.last() < position && item.last() + 1 < position)
}

/// Adds an item above all others.
pub(super) fn push<T: Item>(items: &mut Vec<T>, item: T) {
    insert_at(items, items.len(), item);
}

/// Adds an item that does not overlap others.
pub(super) fn insert<T: Item>(items: &mut Vec<T>, item: T) {
    let index = find(items, item.first());
    insert_at(items, index, item);
}

/// Removes the lowest part that is in `first..=last`.
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

/// Inserts an item. Capacities are powers of two from one item on; a vector would begin with four.
fn insert_at<T>(items: &mut Vec<T>, index: usize, item: T) {
    if items.len() == items.capacity() {
        items.reserve_exact((items.len() + 1).next_power_of_two() - items.len());
    }
    items.insert(index, item);
}

/// Removes an item. An array that is three quarters empty shrinks to half, except for a few items that would soon be
/// needed again.
fn remove_at<T>(items: &mut Vec<T>, index: usize) {
    items.remove(index);
    if items.capacity() > 8 && items.len() * 4 <= items.capacity() {
        items.shrink_to(items.len() * 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn searches_agree_with_bisection() {
        let spread: [fn(i64) -> i64; 4] =
            [|it| it * 1000, |it| it * it * it, |it| (1 << 62) - (1 << (it % 62)), |it| it * 3];
        for spread in spread {
            for count in [0, 1, 2, 3, 15, 16, 17, 40, 64] {
                let mut firsts: Vec<_> = (0..count).map(spread).collect();
                firsts.sort_unstable();
                firsts.dedup();
                let items: Vec<_> = firsts.iter().map(|&first| Plain { first, last: first + first % 2 }).collect();
                let near = |&first: &i64| [first - 1, first, first + 1, first + 2, first + 500];
                for position in firsts.iter().flat_map(near).chain([i64::MIN, 0, i64::MAX]) {
                    assert_eq!(find(&items, position), items.partition_point(|item| item.last < position));
                }
            }
        }
    }
}

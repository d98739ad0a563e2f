//! Positions that the rows of a call skipped, and the list of missing ranges, which is built on request.

use super::{Missing, missing_of};
use crate::judge::Rules;
use crate::keys::{Key, Keys};
use std::cmp::Ordering;

/// Positions of a key and epoch, both ends included.
pub(crate) type Skip = (Key, (i64, i64));

/// Ranges that rows of a call opened and filled, in the order of the rows.
///
/// Judging only appends to two lists, because most callers never read the missing ranges. A map or a tree would cost
/// more than all other judging (200 of 570 ns per row that opens a hole). The lists take 32 bytes per range, until the
/// result of the call is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Skipped {
    rules: Rules,
    is_listed: bool,
    opened: Vec<Skip>,
    /// Filled parts of opened or older ranges.
    closed: Vec<Skip>,
}

impl Skipped {
    /// `is_used`: whether the caller may read the list.
    pub(super) fn new(rules: Rules, is_used: bool) -> Skipped {
        let is_listed = is_used && rules.reports_missing();
        Skipped { rules, is_listed, opened: Vec::new(), closed: Vec::new() }
    }

    pub(super) fn opened(&self) -> usize {
        self.opened.len()
    }

    #[inline]
    pub(super) fn open(&mut self, key: Key, first: i64, last: i64) {
        if self.is_listed {
            self.opened.push((key, (first, last)));
        }
    }

    #[inline]
    pub(super) fn close(&mut self, key: Key, first: i64, last: i64) {
        if !self.opened.is_empty() {
            self.closed.push((key, (first, last)));
        }
    }

    /// The remaining ranges, in the order of pid, partition and epoch (by value). `keys`: the keys of the table when it
    /// judged.
    pub(super) fn missing(&self, keys: &Keys) -> impl Iterator<Item = Missing> + use<'_> {
        let mut left = self.left();
        if !keys.are_plain() {
            left.sort_by(|one, other| keys.order(one.0, other.0)); // stable: positions of a key stay in order
        }
        left.into_iter().map(|(key, range)| missing_of(&self.rules, key, range))
    }

    /// The ranges that were opened and not filled, in the order of keys by number, then of positions.
    fn left(&self) -> Vec<Skip> {
        let opened = in_order(&self.opened);
        if self.closed.is_empty() { opened } else { without(&opened, &in_order(&self.closed)) }
    }
}

/// Two are equal if the same ranges remain, whatever happened in between.
impl PartialEq for Skipped {
    fn eq(&self, other: &Skipped) -> bool {
        self.left() == other.left()
    }
}

impl Eq for Skipped {}

/// Subtracts ranges from others; both are sorted. A position is skipped once and filled once, so the ranges of either
/// list do not overlap. Each subtracted range is within one of the first list or outside all of them.
fn without(ranges: &[Skip], others: &[Skip]) -> Vec<Skip> {
    let mut left = Vec::new();
    let mut others = others.iter().peekable();
    for &(key, (mut first, last)) in ranges {
        while let Some(other) = others.next_if(|&&other| other <= (key, (last, last))) {
            if other.0 == key && other.1.0 >= first {
                left.extend((other.1.0 > first).then(|| (key, (first, other.1.0 - 1))));
                first = other.1.1 + 1;
            }
        }
        left.extend((first <= last).then_some((key, (first, last))));
    }
    left
}

/// Fewer ranges than this are sorted by comparing.
const DIGITS_MIN: usize = 256;
const DIGIT_BITS: u32 = 11;
/// Bits of a range's number, and of its key.
const NUMBER_BITS: u32 = 32;

/// Sorts ranges by the numbers of pid, partition, epoch, and by position.
///
/// Their keys and numbers are sorted digit by digit, 8 bytes per range. Comparing would take three times as long, and
/// moving the ranges twice as long. After that, the ranges of each key are sorted unless rows came late.
fn in_order(ranges: &[Skip]) -> Vec<Skip> {
    let mut sorted = Vec::new();
    let codes = Codes::of(ranges);
    if ranges.len() < DIGITS_MIN || ranges.len() >> NUMBER_BITS > 0 || codes.bits > NUMBER_BITS || ranges.is_sorted() {
        sorted.extend_from_slice(ranges);
    } else {
        let numbered = |(range, number): (&Skip, u64)| codes.code(range.0) << NUMBER_BITS | number;
        let mut order: Vec<u64> = ranges.iter().zip(0..).map(numbered).collect();
        let mut spare = vec![0; order.len()];
        for digit in 0..codes.bits.div_ceil(DIGIT_BITS) {
            sort_by_digit(&order, &mut spare, NUMBER_BITS + digit * DIGIT_BITS);
            std::mem::swap(&mut order, &mut spare);
        }
        sorted.extend(order.into_iter().map(|it| ranges[it as u32 as usize]));
    }
    if !sorted.is_sorted() {
        sort_each_key(&mut sorted);
    }
    sorted
}

/// Sorts the ranges of each key by position if they are in the order of keys, and all ranges otherwise.
fn sort_each_key(ranges: &mut [Skip]) {
    if !ranges.is_sorted_by_key(|range| range.0) {
        return ranges.sort_unstable();
    }
    for of_key in ranges.chunk_by_mut(|one, other| one.0 == other.0) {
        if !of_key.is_sorted() {
            of_key.sort_unstable();
        }
    }
}

/// One pass of a stable sort by digits, from the lowest digit.
fn sort_by_digit(from: &[u64], to: &mut [u64], shift: u32) {
    const DIGITS: usize = 1 << DIGIT_BITS;
    let digit = |it: u64| (it >> shift) as usize % DIGITS;
    let mut starts = [0; DIGITS];
    from.iter().for_each(|&it| starts[digit(it)] += 1);
    let mut sum = 0;
    for start in &mut starts {
        (*start, sum) = (sum, sum + *start);
    }
    for &it in from {
        to[starts[digit(it)]] = it;
        starts[digit(it)] += 1;
    }
}

/// Keys as numbers of few bits, in the same order.
struct Codes {
    lowest: Key,
    partition_bits: u32,
    epoch_bits: u32,
    bits: u32,
}

impl Codes {
    fn of(ranges: &[Skip]) -> Codes {
        let (mut lowest, mut highest) = ((i64::MAX, i32::MAX, i16::MAX), (0, 0, 0));
        for &((pid, partition, epoch), _) in ranges {
            lowest = (lowest.0.min(pid), lowest.1.min(partition), lowest.2.min(epoch));
            highest = (highest.0.max(pid), highest.1.max(partition), highest.2.max(epoch));
        }
        let bits = |low: i64, high: i64| u64::BITS - ((high - low) as u64).leading_zeros();
        let partition_bits = bits(lowest.1.into(), highest.1.into());
        let epoch_bits = bits(lowest.2.into(), highest.2.into());
        Codes { lowest, partition_bits, epoch_bits, bits: bits(lowest.0, highest.0) + partition_bits + epoch_bits }
    }

    /// Valid only if there are no more than 64 bits.
    #[inline]
    fn code(&self, (pid, partition, epoch): Key) -> u64 {
        let (pid, partition) = ((pid - self.lowest.0) as u64, (partition - self.lowest.1) as u64);
        (pid << self.partition_bits | partition) << self.epoch_bits | (epoch - self.lowest.2) as u64
    }
}

/// The order of ranges whose keys are compared by value.
pub(super) fn by_value(keys: &Keys) -> impl Fn(&Skip, &Skip) -> Ordering + '_ {
    |one, other| keys.order(one.0, other.0).then(one.1.cmp(&other.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys of few and of many bits, in calls of few and of many ranges.
    #[test]
    fn digits_and_comparisons_sort_equally() {
        let mut state = 7u64;
        let mut random = || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            state >> 33
        };
        for (pids, partitions, epochs) in [(1, 1, 1), (3000, 7, 3), (1 << 40, 5, 2), (50_000, 1, 1)] {
            for count in [10, 5000] {
                let mut ranges = Vec::new();
                for number in 0..count {
                    let pid = (random() << 20 | random()) % pids;
                    let key = (pid as i64, (random() % partitions) as i32, (random() % epochs) as i16);
                    ranges.push((key, (number ^ 5, number ^ 5)));
                }
                let mut expected = ranges.clone();
                expected.sort_unstable();
                assert_eq!(in_order(&ranges), expected);
            }
        }
    }

    #[test]
    fn missing_ranges_are_those_no_later_row_filled() {
        let rules = Rules::new(crate::Policy::preset("any_order").expect("a preset"));
        let mut skipped = Skipped::new(rules, true);
        let (one, other) = ((1, 0, 0), (0, 0, 0));
        skipped.close(one, 3, 4); // of an older hole
        skipped.open(one, 10, 19);
        skipped.open(other, 0, 4);
        skipped.close(one, 12, 12);
        skipped.close(one, 1, 2);
        skipped.close(one, 19, 19);
        skipped.close(other, 0, 4);
        assert_eq!(skipped.left(), [(one, (10, 11)), (one, (13, 18))]);
        let mut straight = Skipped::new(rules, true);
        straight.open(one, 10, 11);
        straight.open(one, 13, 18);
        assert_eq!(straight, skipped);
        straight.close(one, 10, 10);
        assert_ne!(straight, skipped);
    }
}

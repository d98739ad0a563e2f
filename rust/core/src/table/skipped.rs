//! Positions that the rows of a call skipped, and the list of missing ranges, which is built on request.

use super::{Missing, missing_of};
use crate::judge::Rules;
use crate::keys::{Key, Keys};
use crate::radix::{DIGIT_BITS, sort_by_digit};
use std::cmp::Ordering;

/// Positions of a key and epoch, both ends included.
pub(crate) type Skip = (Key, (i64, i64));

/// Ranges that rows of a call opened and filled.
///
/// Judging only appends to two lists, because most callers never read the missing ranges. A map or a tree would cost
/// more than all other judging (200 of 570 ns per row that opens a hole). The lists take 16 bytes per range, or 32 if
/// a number of it is large, until the result of the call is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Skipped {
    rules: Rules,
    is_listed: bool,
    opened: Skips,
    /// Filled parts of opened or older ranges.
    closed: Skips,
}

impl Skipped {
    /// `is_used`: whether the caller may read the list.
    pub(super) fn new(rules: Rules, is_used: bool) -> Skipped {
        let is_listed = is_used && rules.reports_missing();
        Skipped { rules, is_listed, opened: Skips::default(), closed: Skips::default() }
    }

    pub(super) fn opened(&self) -> usize {
        self.opened.len()
    }

    #[inline(always)]
    pub(super) fn open(&mut self, key: Key, first: i64, last: i64) {
        if self.is_listed {
            self.opened.push(key, first, last);
        }
    }

    #[inline(always)]
    pub(super) fn close(&mut self, key: Key, first: i64, last: i64) {
        if self.opened.len() > 0 {
            self.closed.push(key, first, last);
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
        if self.closed.len() == 0 { opened } else { without(&opened, &in_order(&self.closed)) }
    }
}

/// Two are equal if the same ranges remain, whatever happened in between.
impl PartialEq for Skipped {
    fn eq(&self, other: &Skipped) -> bool {
        self.left() == other.left()
    }
}

impl Eq for Skipped {}

/// Ranges in any order.
///
/// Most are packed. The lists of a large call are fresh memory, and the system takes longer to provide 32 bytes of it
/// than judging a row that continues its key takes.
#[derive(Clone, Debug, Default)]
struct Skips {
    packed: Vec<Packed>,
    /// Ranges that do not fit.
    others: Vec<Skip>,
}

/// A range in half the bytes of a [`Skip`].
#[derive(Clone, Copy, Debug)]
struct Packed {
    pid: u32,
    first: u32,
    /// Number of positions minus one.
    reach: u32,
    partition: u16,
    epoch: i16,
}

const _: () = assert!(size_of::<Packed>() * 2 == size_of::<Skip>());

impl Packed {
    #[inline(always)]
    fn of((pid, partition, epoch): Key, first: i64, last: i64) -> Option<Packed> {
        let fits = (pid | first | last) as u64 <= u32::MAX.into() && partition as u32 <= u16::MAX.into();
        let (pid, first, reach) = (pid as u32, first as u32, (last - first) as u32);
        fits.then_some(Packed { pid, first, reach, partition: partition as u16, epoch })
    }

    #[inline]
    fn unpacked(self) -> Skip {
        let Packed { pid, first, reach, partition, epoch } = self;
        let first = i64::from(first);
        ((pid.into(), partition.into(), epoch), (first, first + i64::from(reach)))
    }
}

impl Skips {
    #[inline(always)]
    fn push(&mut self, key: Key, first: i64, last: i64) {
        match Packed::of(key, first, last) {
            Some(packed) => self.packed.push(packed),
            None => self.push_other(key, first, last),
        }
    }

    #[cold]
    fn push_other(&mut self, key: Key, first: i64, last: i64) {
        self.others.push((key, (first, last)));
    }

    #[inline]
    fn len(&self) -> usize {
        self.packed.len() + self.others.len()
    }

    fn iter(&self) -> impl Iterator<Item = Skip> {
        self.packed.iter().map(|packed| packed.unpacked()).chain(self.others.iter().copied())
    }

    #[inline]
    fn get(&self, number: usize) -> Skip {
        match self.packed.get(number) {
            Some(packed) => packed.unpacked(),
            None => self.others[number - self.packed.len()],
        }
    }
}

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
/// Bits of a range's number, and of its key.
const NUMBER_BITS: u32 = 32;

/// Sorts ranges by the numbers of pid, partition, epoch, and by position.
///
/// Their keys and numbers are sorted digit by digit, 8 bytes per range. Comparing would take three times as long, and
/// moving the ranges twice as long. After that, the ranges of each key are sorted unless rows came late.
fn in_order(ranges: &Skips) -> Vec<Skip> {
    let mut sorted = Vec::with_capacity(ranges.len());
    let codes = Codes::of(ranges);
    let are_few = ranges.len() < DIGITS_MIN || ranges.len() >> NUMBER_BITS > 0 || codes.bits > NUMBER_BITS;
    if are_few || ranges.iter().is_sorted() {
        sorted.extend(ranges.iter());
    } else {
        let mut order = Vec::with_capacity(ranges.len());
        ranges.iter().zip(0..).for_each(|(range, number)| order.push(codes.code(range.0) << NUMBER_BITS | number));
        let mut spare = vec![0; order.len()];
        for digit in 0..codes.bits.div_ceil(DIGIT_BITS) {
            sort_by_digit(&order, &mut spare, |&it| (it >> (NUMBER_BITS + digit * DIGIT_BITS)) as usize);
            std::mem::swap(&mut order, &mut spare);
        }
        sorted.extend(order.into_iter().map(|it| ranges.get(it as u32 as usize)));
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

/// Keys as numbers of few bits, in the same order.
struct Codes {
    lowest: Key,
    partition_bits: u32,
    epoch_bits: u32,
    bits: u32,
}

impl Codes {
    fn of(ranges: &Skips) -> Codes {
        let (mut lowest, mut highest) = ((i64::MAX, i32::MAX, i16::MAX), (0, 0, 0));
        ranges.iter().for_each(|((pid, partition, epoch), _)| {
            lowest = (lowest.0.min(pid), lowest.1.min(partition), lowest.2.min(epoch));
            highest = (highest.0.max(pid), highest.1.max(partition), highest.2.max(epoch));
        });
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
        let (few, many) = (70_000, 1 << 40);
        for (pids, partitions, epochs) in [(1, 1, 1), (3000, 7, 3), (many, 5, 2), (50_000, 1, 1), (9, few, 2)] {
            for (count, highest) in [(10, 0), (5000, 0), (5000, 1 << 32)] {
                let mut ranges = Skips::default();
                for number in 0..count {
                    let pid = (random() << 20 | random()) % pids;
                    let key = (pid as i64, (random() % partitions) as i32, (random() % epochs) as i16);
                    let first = (number ^ 5) + if number % 3 == 0 { highest } else { 0 };
                    ranges.push(key, first, first + number % 2);
                }
                let mut expected: Vec<_> = ranges.iter().collect();
                assert_eq!(expected.len(), ranges.len());
                expected.sort_unstable();
                assert_eq!(in_order(&ranges), expected);
            }
        }
    }

    #[test]
    fn a_range_is_packed_if_it_fits() {
        let large = i64::from(u32::MAX);
        for (key, first, last, fits) in [
            ((0, 0, 0), 0, 0, true),
            ((large, 65_535, i16::MAX), 0, large, true),
            ((7, 3, -1), large, large, true),
            ((large + 1, 0, 0), 0, 0, false),
            ((0, 65_536, 0), 0, 0, false),
            ((0, i32::MAX, 0), 0, 0, false),
            ((0, 0, 0), large, large + 1, false),
            ((0, 0, 0), -2, -1, false),
            ((0, 0, 0), -1, 5, false),
            ((1 << 40, 9, 2), 1 << 50, i64::MAX, false),
        ] {
            let mut ranges = Skips::default();
            ranges.push(key, first, last);
            assert_eq!((ranges.packed.len(), ranges.others.len()), (usize::from(fits), usize::from(!fits)));
            assert_eq!((ranges.get(0), ranges.iter().next()), ((key, (first, last)), Some((key, (first, last)))));
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

//! Reads and adds entries in the order of snapshots.

use crate::Result;
use crate::fast_path::Slot;
use crate::judge::{FullEntry, PlainEntry};
use crate::key_block::{BLOCK_PARTITIONS, block_hash};
use crate::lines::{EntryKey, LinePlace, RowLine, Searches};
use crate::order::Renumbering;
use crate::parallel::ahead;
use crate::prefetch::{CHUNK, STEP};
use crate::radix::{DIGIT_BITS, sort_by_digit};
use crate::shelf::Shelf;
use std::cmp::Reverse;
use std::mem::take;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Minimum number of places that are sorted at once.
const PLACES_MIN: usize = 3 << 13;
/// Maximum share of the table's memory for all lists of places, if each has more than PLACES_MIN: 1 / PLACES_SHARE.
const PLACES_SHARE: usize = 24;
/// From this number of lines on, if most have one entry, a second thread finds and sorts places while this one reads the
/// previous ones. If lines have many entries, reading takes much longer than finding, and the lines are in the cache of
/// the core that has found them. If keys are renumbered, finding takes much longer.
const THREAD_LINES_MIN: usize = 1 << 18;

/// Number of lines to prefetch when lines are read in the order of snapshots.
const LINES_AHEAD: usize = 32;

/// The number of lines of all entries is estimated from the first SAMPLE entries, or from a share of them.
const SAMPLE: usize = 1 << 16;
const SAMPLE_SHARE: u64 = 8;
/// The estimate also begins if lines take this many bytes. The first entries are those with the smallest hashes:
/// without it they would fill one segment, which would split again and again.
const SAMPLE_BYTES: usize = 1 << 20;

/// A line, and the hash of its block with the last bits replaced by the line's place in the block. If partitions are
/// renumbered, it is a slot instead of a line.
type Found = (u64, LinePlace);

const LAST_BITS: u64 = 31;
const _: () = assert!(BLOCK_PARTITIONS <= LAST_BITS as u32 + 1);

/// The callback of [`Shelf::in_order`].
type Visit<'a, E> = dyn FnMut(i64, i32, PlainEntry, Option<&FullEntry>) -> std::result::Result<(), E> + 'a;

/// Consecutive segments in the order of snapshots. Their hashes have the same first bits.
#[derive(Clone)]
struct Stretch {
    segments: Range<usize>,
    common_bits: u32,
    places: usize,
}

/// An entry to be added after all others, in the order of snapshots.
pub(crate) struct Appended {
    /// The hash of its block.
    pub(crate) hash: u64,
    pub(crate) pid: i64,
    pub(crate) partition: i32,
    pub(crate) plain: PlainEntry,
    /// The full entry, if it has holes or a final range. It is boxed, so that in most cases only numbers are moved.
    pub(crate) whole: Option<Box<FullEntry>>,
    /// Whether the previous entry has the same key. This one then has a lower epoch.
    pub(crate) is_older: bool,
}

/// Sorts places by rank: by the first bits of their hashes digit by digit, then those with equal bits by comparing.
/// Comparing all would take twice as long. `common_bits`: number of first bits that all hashes share. `copy`: memory.
fn sort_by_rank(found: &mut Vec<Found>, copy: &mut Vec<Found>, common_bits: u32) {
    const SHIFT: u32 = u64::BITS - 2 * DIGIT_BITS;
    let bits = |&(rank, _): &Found| (rank << common_bits >> SHIFT) as usize;
    copy.clear();
    copy.reserve_exact(found.capacity());
    copy.extend_from_slice(found);
    sort_by_digit(found, copy, bits);
    sort_by_digit(copy, found, |it| bits(it) >> DIGIT_BITS);
    for equal in found.chunk_by_mut(|one, other| bits(one) == bits(other)) {
        if equal.len() > 1 {
            equal.sort_unstable_by_key(|&(rank, _)| rank);
        }
    }
}

impl<L: RowLine> Shelf<L> {
    /// Visits every entry for which `is_included` returns true, with its renumbered key, in the order of snapshots. The
    /// entry is passed without its holes and, if it is in the overflow, also with them.
    ///
    /// Segments are already in this order. If keys are renumbered, they are not: the function then reads all lines once
    /// per part of the order, so that it does not hold more places.
    pub(crate) fn in_order<E>(
        &self,
        numbers: &Renumbering,
        is_included: impl Fn(i64, i32) -> bool,
        mut visit: impl FnMut(i64, i32, PlainEntry, Option<&FullEntry>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let lines = self.lines().len();
        let is_parallel = numbers.is_none() && lines >= THREAD_LINES_MIN && 2 * lines > self.len();
        // One is sorted, with a copy. If there are two threads, one waits, and one is read.
        let lists = if is_parallel { 4 } else { 2 };
        let bytes_max = self.lines().memory_bytes() / PLACES_SHARE;
        let places_max = (bytes_max / lists / size_of::<Found>()).max(PLACES_MIN);
        let mut parts = self.stretches(numbers).into_iter().flat_map(|stretch| {
            let parts = stretch.places.div_ceil(places_max);
            (0..parts).map(move |part| (stretch.clone(), (part, parts)))
        });
        let (used, mut copy) = (Mutex::new(Vec::new()), Vec::new());
        let used = || used.lock().unwrap_or_else(PoisonError::into_inner);
        let next = || {
            let (stretch, part) = parts.next()?;
            let mut found = take(&mut *used());
            found.reserve_exact(stretch.places / part.1 * 17 / 16); // parts are nearly equal
            self.find_part(numbers, &stretch, part, &mut found);
            sort_by_rank(&mut found, &mut copy, stretch.common_bits);
            Some(found)
        };
        ahead(is_parallel, next, |next| {
            while let Some(mut found) = next() {
                self.visit_found(numbers, &found, &is_included, &mut visit)?;
                found.clear();
                *used() = found;
            }
            Ok(())
        })
    }

    /// The table in pieces that follow each other in the order of snapshots.
    fn stretches(&self, numbers: &Renumbering) -> Vec<Stretch> {
        let segments = self.lines().stretches();
        if numbers.is_none() {
            let of = |(segment, common_bits, places)| Stretch { segments: segment..segment + 1, common_bits, places };
            return segments.map(of).collect();
        }
        let places = if numbers.keeps_partitions() { self.lines().len() } else { self.len() };
        vec![Stretch { segments: 0..segments.count(), common_bits: 0, places }]
    }

    /// Finds the lines in one part of the hashes of a stretch, or the slots if neighbours may not be adjacent.
    fn find_part(
        &self,
        numbers: &Renumbering,
        stretch: &Stretch,
        (part, parts): (usize, usize),
        found: &mut Vec<Found>,
    ) {
        let mut add = |key: (i64, i32), line, slot: Option<u64>| {
            let (pid, partition) = numbers.key(key.0, key.1);
            let hash = block_hash(pid, partition);
            let rest = u128::from(hash << stretch.common_bits);
            if (rest * parts as u128) >> 64 == part as u128 {
                let last = slot.unwrap_or(u64::from(partition as u32 % BLOCK_PARTITIONS));
                found.push((hash & !LAST_BITS | last, line));
            }
        };
        for segment in stretch.segments.clone() {
            self.lines().for_each_line(segment, |line, first, slots| {
                if numbers.keeps_partitions() {
                    if numbers.has_pid(first.pid) {
                        add((first.pid, first.partition), line, None);
                    }
                    return;
                }
                let taken = (0..slots as u8).filter(|&slot| self.lines().read(line.slot(slot)) != Slot::Empty);
                taken.for_each(|slot| add((first.pid, first.partition + i32::from(slot)), line, Some(slot.into())));
            });
        }
    }

    fn visit_found<E>(
        &self,
        numbers: &Renumbering,
        found: &[Found],
        is_included: &impl Fn(i64, i32) -> bool,
        visit: &mut impl FnMut(i64, i32, PlainEntry, Option<&FullEntry>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let (mut visited, mut prefetched) = (0, 0);
        for near in found.chunk_by(|a, b| a.0 & !LAST_BITS == b.0 & !LAST_BITS) {
            visited += near.len();
            let ahead = (visited + LINES_AHEAD).min(found.len());
            found[prefetched..ahead].iter().for_each(|&(_, line)| self.lines().prefetch(line));
            prefetched = ahead;
            if numbers.keeps_partitions() && self.is_one_block(near) {
                near.iter().try_for_each(|&found| self.read_slots(numbers, found, is_included, visit))?;
            } else {
                self.visit_sorted(numbers, near, is_included, &mut *visit)?;
            }
        }
        Ok(())
    }

    /// Whether the lines are of one block, and each entry is the only one of its key. In nearly all cases this is true,
    /// and the order of lines is then the order of their entries.
    #[inline]
    fn is_one_block(&self, near: &[Found]) -> bool {
        let of = |&(_, line): &Found| {
            let first = self.lines().first_key(line);
            (first.pid, first.partition as u32 / BLOCK_PARTITIONS, first.older)
        };
        let first = of(&near[0]);
        first.2.is_none() && near[1..].iter().all(|found| of(found) == first)
    }

    #[cold]
    fn visit_sorted<E>(
        &self,
        numbers: &Renumbering,
        near: &[Found],
        is_included: &impl Fn(i64, i32) -> bool,
        visit: &mut Visit<'_, E>,
    ) -> std::result::Result<(), E> {
        let mut entries = Vec::new();
        for &found in near {
            self.read_slots(numbers, found, is_included, &mut |pid, partition, entry, whole| {
                entries.push(((block_hash(pid, partition), pid, partition, Reverse(entry.epoch)), entry, whole));
                Ok(())
            })?;
        }
        entries.sort_unstable_by_key(|&(rank, ..)| rank);
        entries.into_iter().try_for_each(|((_, pid, partition, _), entry, whole)| visit(pid, partition, entry, whole))
    }

    #[inline]
    fn read_slots<'a, E>(
        &'a self,
        numbers: &Renumbering,
        (last_bits, line): Found,
        is_included: &impl Fn(i64, i32) -> bool,
        visit: &mut impl FnMut(i64, i32, PlainEntry, Option<&'a FullEntry>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let only = (!numbers.keeps_partitions()).then_some((last_bits & LAST_BITS) as usize);
        let line = self.lines().line(line);
        for slot in 0..line.slots() {
            let (key, held) = line.read(slot);
            let (entry, whole) = match held {
                Slot::Empty => continue,
                Slot::Inline(entry) => (entry, None),
                Slot::Overflow(number) => (self.in_overflow(number).without_holes(), Some(self.in_overflow(number))),
            };
            if only.is_none_or(|only| only == slot) && is_included(key.pid, key.partition) {
                let (pid, partition) = numbers.key(key.pid, key.partition);
                visit(pid, partition, entry, whole)?;
            }
        }
        Ok(())
    }

    /// Adds entries that follow all others in the order of snapshots. It prefetches the lines of [`CHUNK`] entries before
    /// it adds the first of these.
    pub(crate) fn append(&mut self, entries: Vec<Appended>) -> Result<()> {
        let (mut entries, mut line) = (entries.into_iter(), None);
        while let Some(chunk) = entries.as_slice().chunks(CHUNK).next() {
            self.prefetch_appended(chunk);
            entries.by_ref().take(CHUNK).try_for_each(|entry| self.append_one(entry, &mut line))?;
        }
        Ok(())
    }

    fn prefetch_appended(&self, entries: &[Appended]) {
        let mut searches = [Searches::none(); CHUNK / STEP];
        let steps = searches.iter_mut().zip(entries.chunks(STEP)).map(|(searches, entries)| {
            let (mut hashes, mut partitions) = ([0; STEP], [0; STEP]);
            for (index, entry) in entries.iter().enumerate() {
                (hashes[index], partitions[index]) = (entry.hash, entry.partition);
            }
            self.lines().begin_hashed(&hashes, &partitions, searches);
        });
        let steps = steps.count();
        searches[..steps].iter_mut().for_each(|searches| self.lines().prefetch_lines(searches));
    }

    /// `line`: see [`Shelf::add_plain`].
    #[inline(always)]
    fn append_one(&mut self, entry: Appended, line: &mut Option<LinePlace>) -> Result<()> {
        let Appended { hash, pid, partition, plain, whole, is_older } = entry;
        let newest = EntryKey::newest(pid, partition);
        let key = if is_older { EntryKey::older(pid, partition, plain.epoch) } else { newest };
        match whole {
            None => self.add_plain(key, hash, plain, line),
            Some(whole) => {
                *line = None;
                self.add(key, *whole)
            }
        }
    }

    /// Reserves memory for `entries` in total, estimated from the lines of the first ones. The order is that of a hash,
    /// so the first blocks are a fair sample. Returns whether there are enough for an estimate.
    pub(crate) fn reserve_for(&mut self, entries: u64) -> Result<bool> {
        let have = self.len();
        let is_few = (have as u64) < entries.div_ceil(SAMPLE_SHARE).min(SAMPLE as u64);
        if is_few && self.lines().memory_bytes() < SAMPLE_BYTES {
            return Ok(false);
        }
        if (have as u64) < entries {
            let error = 8.0 / (have as f64).sqrt(); // eight standard errors
            self.reserve_times(entries as f64 / have as f64 * (1.0 + error))?;
        }
        Ok(true)
    }
}

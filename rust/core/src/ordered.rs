//! Entries in the order of snapshots: read in it, and added in it.

use crate::Result;
use crate::fast_path::Slot;
use crate::judge::{PlainSpan, Span};
use crate::key_block::{BLOCK_PARTITIONS, block_hash};
use crate::lines::{EntryKey, LinePlace, RowLine, Searches};
use crate::order::Renumbering;
use crate::prefetch::{CHUNK, STEP};
use crate::shelf::Shelf;
use std::cmp::Reverse;
use std::ops::Range;

/// Places that are sorted at once, at the least.
const PLACES_MIN: usize = 1 << 15;
/// What share of the table's memory they take, at the most.
const PLACES_SHARE: usize = 32;

/// Lines that are asked for before they are read in the order of snapshots.
const LINES_AHEAD: usize = 32;

/// Entries from which is known how many lines those to come will take: so many, or the first part of them.
const SAMPLE: usize = 1 << 16;
const SAMPLE_SHARE: u64 = 8;
/// Or so many that their lines take this many bytes: they are the first in the order of hashes, and would fill a segment
/// that divides, again and again.
const SAMPLE_BYTES: usize = 1 << 20;

/// A line, and the hash of its block with the last bits replaced: they say where in the block it lies. Of a
/// table whose partitions are renumbered, a slot, and they say which.
type Found = (u64, LinePlace);

const LAST_BITS: u64 = 31;
const _: () = assert!(BLOCK_PARTITIONS <= LAST_BITS as u32 + 1);

/// What is told of an entry, see [`Shelf::in_order`].
type Tell<'a, E> = dyn FnMut(i64, i32, PlainSpan, Option<&Span>) -> std::result::Result<(), E> + 'a;

/// Segments that follow each other in the order of snapshots, and whose hashes have the first bits in common.
struct Stretch {
    segments: Range<usize>,
    common_bits: u32,
    places: usize,
}

/// An entry to be added behind all others, in the order of snapshots.
pub(crate) struct Appended {
    /// Of its block.
    pub(crate) hash: u64,
    pub(crate) pid: i64,
    pub(crate) partition: i32,
    pub(crate) span: PlainSpan,
    /// The same with its holes, where it is not plain. Apart, so that nearly always nothing but numbers is moved.
    pub(crate) whole: Option<Box<Span>>,
    /// Whether the entry before it is of the same key, so that this one is of an epoch below.
    pub(crate) is_older: bool,
}

/// Entries that come in the order of snapshots.
pub(crate) trait InOrder {
    fn try_for_each(self, tell: impl FnMut(Appended) -> Result<()>) -> Result<()>;
}

impl<L: RowLine> Shelf<L> {
    /// Every entry for which `wanted` holds, with its key as it is renumbered, in the order of snapshots; once
    /// without its holes and, where it is in the overflow, once more with them.
    ///
    /// Goes from segment to segment, which have this order. Where keys are renumbered they have not: then
    /// it goes over all lines once for each part of the order, so that no more places are held.
    pub(crate) fn in_order<E>(
        &self,
        numbers: &Renumbering,
        wanted: impl Fn(i64, i32) -> bool,
        mut tell: impl FnMut(i64, i32, PlainSpan, Option<&Span>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let places_max = (self.lines().memory_bytes() / PLACES_SHARE / size_of::<Found>()).max(PLACES_MIN);
        let mut found = Vec::new();
        for stretch in self.stretches(numbers) {
            let parts = stretch.places.div_ceil(places_max);
            for part in 0..parts {
                found.clear();
                self.find_part(numbers, &stretch, (part, parts), &mut found);
                found.sort_unstable_by_key(|&(rank, _)| rank);
                self.tell_found(numbers, &found, &wanted, &mut tell)?;
            }
        }
        Ok(())
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

    /// What lies in one part of the hashes of a stretch: line by line, or slot by slot where neighbours may
    /// lie apart.
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
                    return add((first.pid, first.partition), line, None);
                }
                let taken = (0..slots as u8).filter(|&slot| self.lines().read(line.slot(slot)) != Slot::Empty);
                taken.for_each(|slot| add((first.pid, first.partition + i32::from(slot)), line, Some(slot.into())));
            });
        }
    }

    fn tell_found<E>(
        &self,
        numbers: &Renumbering,
        found: &[Found],
        wanted: &impl Fn(i64, i32) -> bool,
        tell: &mut impl FnMut(i64, i32, PlainSpan, Option<&Span>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let (mut told, mut asked) = (0, 0);
        for near in found.chunk_by(|a, b| a.0 & !LAST_BITS == b.0 & !LAST_BITS) {
            told += near.len();
            let ahead = (told + LINES_AHEAD).min(found.len());
            found[asked..ahead].iter().for_each(|&(_, line)| self.lines().prefetch(line));
            asked = ahead;
            if numbers.keeps_partitions() && self.is_one_block(near) {
                near.iter().try_for_each(|&found| self.read_slots(numbers, found, wanted, tell))?;
            } else {
                self.tell_sorted(numbers, near, wanted, &mut *tell)?;
            }
        }
        Ok(())
    }

    /// Whether the lines are of one block, and each entry the only one of its key: then lines in order have
    /// their entries in order. Nearly always so.
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
    fn tell_sorted<E>(
        &self,
        numbers: &Renumbering,
        near: &[Found],
        wanted: &impl Fn(i64, i32) -> bool,
        tell: &mut Tell<'_, E>,
    ) -> std::result::Result<(), E> {
        let mut entries = Vec::new();
        for &found in near {
            self.read_slots(numbers, found, wanted, &mut |pid, partition, span, whole| {
                entries.push(((block_hash(pid, partition), pid, partition, Reverse(span.epoch)), span, whole));
                Ok(())
            })?;
        }
        entries.sort_unstable_by_key(|&(rank, ..)| rank);
        entries.into_iter().try_for_each(|((_, pid, partition, _), span, whole)| tell(pid, partition, span, whole))
    }

    #[inline]
    fn read_slots<'a, E>(
        &'a self,
        numbers: &Renumbering,
        (last_bits, line): Found,
        wanted: &impl Fn(i64, i32) -> bool,
        tell: &mut impl FnMut(i64, i32, PlainSpan, Option<&'a Span>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let only = (!numbers.keeps_partitions()).then_some((last_bits & LAST_BITS) as usize);
        self.lines().read_line(line, |slot, key, held| {
            let (span, whole) = match held {
                Slot::Empty => return Ok(()),
                Slot::Inline(span) => (span, None),
                Slot::Overflow(number) => (self.in_overflow(number).without_holes(), Some(self.in_overflow(number))),
            };
            if only.is_some_and(|only| only != slot) || !wanted(key.pid, key.partition) {
                return Ok(());
            }
            let (pid, partition) = numbers.key(key.pid, key.partition);
            tell(pid, partition, span, whole)
        })
    }

    /// Adds entries that follow all others in the order of snapshots, up to [`CHUNK`] of them: their lines are asked for
    /// before the first is added. `line`: see [`Shelf::add_plain`].
    pub(crate) fn append(&mut self, entries: &mut Vec<Appended>, line: &mut Option<LinePlace>) -> Result<()> {
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
        entries.drain(..).try_for_each(|entry| self.append_one(entry, line))
    }

    #[inline(always)]
    fn append_one(&mut self, entry: Appended, line: &mut Option<LinePlace>) -> Result<()> {
        let Appended { hash, pid, partition, span, whole, is_older } = entry;
        let newest = EntryKey::newest(pid, partition);
        let key = if is_older { EntryKey::older(pid, partition, span.epoch) } else { newest };
        match whole {
            None => self.add_plain(key, hash, span, line),
            Some(whole) => {
                *line = None;
                self.add(key, *whole)
            }
        }
    }

    /// Makes room for `entries` in all, going by how many lines the first took: the order is that of a hash,
    /// so the first blocks are as good as any. Gives whether there are enough of them to go by.
    pub(crate) fn reserve_for(&mut self, entries: u64) -> Result<bool> {
        let have = self.len();
        let is_few = (have as u64) < entries.div_ceil(SAMPLE_SHARE).min(SAMPLE as u64);
        if is_few && self.lines().memory_bytes() < SAMPLE_BYTES {
            return Ok(false);
        }
        if (have as u64) < entries {
            let error = 8.0 / (have as f64).sqrt(); // eight standard errors of a count
            self.reserve_times(entries as f64 / have as f64 * (1.0 + error))?;
        }
        Ok(true)
    }
}

//! Entries in the order of snapshots: read in it, and added in it.

use crate::Result;
use crate::judge::Span;
use crate::lines::{EntryKey, Line, LinePlace, Slot};
use crate::shelf::Shelf;
use crate::snapshot::order::{Place as Rank, Renumbering};
use std::cmp::Reverse;

/// Places in a part of the order, at the least: every part is a pass over all lines.
const PART_MIN: usize = 1 << 14;
/// What share of the table's memory the places of a part take.
const PART_SHARE: usize = 20;

/// Lines that are asked for before they are read in the order of snapshots.
const LINES_AHEAD: usize = 32;

/// Entries from which is known how many lines those to come will take.
const SAMPLE: usize = 1 << 16;

/// Entries that are added together: while one is stored, the lines of the others are fetched.
const CHUNK: usize = 128;

/// Where a line stands in the order of snapshots, or one slot of it.
type Found = (Rank, LinePlace, Option<u8>);

/// An entry to be added behind all others, in the order of snapshots.
pub(crate) struct Appended {
    pub(crate) pid: i64,
    pub(crate) partition: i32,
    pub(crate) span: Span,
    /// Whether the entry before it is of the same key, so that this one is of an epoch below.
    pub(crate) is_older: bool,
}

impl<L: Line> Shelf<L> {
    /// Every entry for which `wanted` holds, with its key as it is renumbered, in the order of snapshots.
    ///
    /// Goes over the lines in passes, one for each part of the order, so that only the places of one
    /// part's lines are held, a twentieth of the table's memory.
    pub(crate) fn in_order<E>(
        &self,
        numbers: &Renumbering,
        wanted: impl Fn(i64, i32) -> bool,
        mut tell: impl FnMut(i64, i32, &Span) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let places = if numbers.keeps_partitions() { self.lines().len() } else { self.len() };
        let share = places * size_of::<Found>() * PART_SHARE / self.lines().memory_bytes().max(1);
        let parts = places.div_ceil(PART_MIN).clamp(1, share + 1);
        let mut found = Vec::with_capacity(places / parts + places / parts / 16);
        let mut entries = Vec::new();
        for part in 0..parts {
            found.clear();
            self.find_part(numbers, |rank| rank.part(parts as u64) == part as u64, &mut found);
            found.sort_unstable_by_key(|&(rank, ..)| rank);
            let (mut told, mut asked) = (0, 0);
            for near in found.chunk_by(|a, b| a.0.block() == b.0.block()) {
                told += near.len();
                let ahead = (told + LINES_AHEAD).min(found.len());
                found[asked..ahead].iter().for_each(|&(_, line, _)| self.lines().prefetch(line));
                asked = ahead;
                if numbers.keeps_partitions() && self.is_one_block(near) {
                    near.iter().try_for_each(|&found| self.read_slots(numbers, found, &wanted, &mut tell))?;
                } else {
                    self.tell_sorted(numbers, near, &wanted, &mut tell, &mut entries)?;
                }
            }
        }
        Ok(())
    }

    /// Whether the lines are of one block of partitions, and each entry the only one of its key: then
    /// lines in order have their entries in order. Nearly always so.
    fn is_one_block(&self, near: &[Found]) -> bool {
        let of = |&(_, line, _): &Found| {
            let first = self.lines().first_key(line);
            (first.pid, first.older)
        };
        let first = of(&near[0]);
        first.1.is_none() && near[1..].iter().all(|found| of(found) == first)
    }

    fn tell_sorted<E>(
        &self,
        numbers: &Renumbering,
        near: &[Found],
        wanted: &impl Fn(i64, i32) -> bool,
        tell: &mut impl FnMut(i64, i32, &Span) -> std::result::Result<(), E>,
        entries: &mut Vec<(i64, i32, Span)>,
    ) -> std::result::Result<(), E> {
        entries.clear();
        for &found in near {
            self.read_slots(numbers, found, wanted, &mut |pid, partition, span: &Span| {
                entries.push((pid, partition, span.clone()));
                Ok(())
            })?;
        }
        entries.sort_by_key(|(pid, partition, span)| (*pid, *partition, Reverse(span.epoch)));
        entries.iter().try_for_each(|(pid, partition, span)| tell(*pid, *partition, span))
    }

    /// Where the lines of one part lie in the order; slot by slot where neighbours may lie apart.
    fn find_part(&self, numbers: &Renumbering, is_in_part: impl Fn(Rank) -> bool, found: &mut Vec<Found>) {
        self.lines().for_each_line(|line, first, slots| {
            let mut add = |slot: u8, of: Option<u8>| {
                let (pid, partition) = numbers.key(first.pid, first.partition + i32::from(slot));
                let rank = Rank::of(pid, partition);
                if is_in_part(rank) {
                    found.push((rank, line, of));
                }
            };
            if numbers.keeps_partitions() {
                add(0, None);
            } else {
                let taken = (0..slots as u8).filter(|&slot| self.lines().read(line.slot(slot)) != Slot::Empty);
                taken.for_each(|slot| add(slot, Some(slot)));
            }
        });
    }

    #[inline]
    fn read_slots<E>(
        &self,
        numbers: &Renumbering,
        (_, line, slot): Found,
        wanted: &impl Fn(i64, i32) -> bool,
        tell: &mut impl FnMut(i64, i32, &Span) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        self.lines().read_line(line, |key, held| {
            let is_asked_for = slot.is_none_or(|slot| key == self.lines().key(line.slot(slot)));
            if held == Slot::Empty || !is_asked_for || !wanted(key.pid, key.partition) {
                return Ok(());
            }
            let (pid, partition) = numbers.key(key.pid, key.partition);
            match held {
                Slot::Empty => Ok(()),
                Slot::Inline(span) => tell(pid, partition, &span),
                Slot::Aside(number) => tell(pid, partition, self.aside(number)),
            }
        })
    }

    /// Adds entries that follow all others in the order of snapshots, and empties the batch.
    pub(crate) fn append(&mut self, batch: &mut Vec<Appended>) -> Result<()> {
        let mut entries = batch.drain(..).peekable();
        let mut chunk = Vec::with_capacity(CHUNK);
        while entries.peek().is_some() {
            chunk.extend(entries.by_ref().take(CHUNK));
            self.reserve(chunk.len())?;
            for entry in &chunk {
                self.lines().begin_search(entry.pid, entry.partition);
            }
            for Appended { pid, partition, span, is_older } in chunk.drain(..) {
                let epoch = span.epoch;
                let newest = EntryKey::newest(pid, partition);
                self.add(if is_older { EntryKey::older(pid, partition, epoch) } else { newest }, span);
            }
        }
        Ok(())
    }

    /// Makes room for `entries` in all, going by how many lines the first took. They lie scattered over
    /// the order, so a few blocks tell.
    pub(crate) fn reserve_for(&mut self, entries: u64) -> Result<()> {
        let have = self.len();
        if have < SAMPLE || have as u64 >= entries {
            return Ok(());
        }
        self.reserve_times(entries as f64 / have as f64 * 33.0 / 32.0)
    }
}

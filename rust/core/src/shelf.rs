//! Entries by key: in the slots of lines, or in the overflow if they do not fit.

use crate::fast_path::{self, FastOutcome, Slot};
use crate::holes::Holes;
use crate::judge::{FullEntry, PlainEntry, PlainRules, Rules, Sink, Span};
use crate::keys::Key;
use crate::lines::{EntryKey, LinePlace, Lines, Partitions, Place, RowLine, Searches};
use crate::prefetch::{CHUNK, STEP};
use crate::slab::Slab;
use crate::{Epochs, Result};
use std::cmp::Reverse;

/// An entry in two neighbouring cache lines, which are loaded as one.
#[repr(align(128))]
struct Cell(FullEntry);

/// No entry. Its position is below 0, so the fast path does not judge it.
impl Default for Cell {
    fn default() -> Cell {
        Cell(FullEntry { last: -1, ..FullEntry::default() })
    }
}

const _: () = assert!(size_of::<Cell>() == 128);

/// A hash table of lines, and the overflow for entries that do not fit into a line.
///
/// The newest epoch of a key is in the line of its producer and partition. If each epoch has its own state, lower
/// epochs are in lines of their own, so that the common look-up touches one line.
pub(crate) struct Shelf<L: RowLine> {
    lines: Lines<L>,
    overflow: Slab<Cell>,
    entries: usize,
    /// Number of holes of all entries.
    holes: usize,
}

/// Means that there is no entry.
const NONE: u32 = u32::MAX;

/// The entries of a step's keys that were in the overflow when they were looked up. An entry that left it since is none.
#[derive(Clone, Copy)]
pub(crate) struct InOverflow {
    is_any: bool,
    numbers: [u32; STEP],
}

impl InOverflow {
    /// No entries.
    pub(crate) const NONE: InOverflow = InOverflow { is_any: false, numbers: [NONE; STEP] };

    #[inline(always)]
    pub(crate) fn clear(&mut self) {
        self.is_any = false;
    }

    /// The number of a key's entry, if it was found.
    #[inline(always)]
    pub(crate) fn number(&self, index: usize) -> Option<u32> {
        (self.is_any && self.numbers[index] != NONE).then(|| self.numbers[index])
    }
}

impl<L: RowLine> Shelf<L> {
    pub(crate) fn new(partitions: Option<Partitions>) -> Shelf<L> {
        Shelf { lines: Lines::new(partitions), overflow: Slab::default(), entries: 0, holes: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.lines.memory_bytes() + self.overflow.memory_bytes(|Cell(entry)| entry.holes.memory_bytes())
    }

    /// The entry of a key and epoch, or of the key's highest epoch.
    pub(crate) fn get(&self, pid: i64, partition: i32, epoch: Option<i16>) -> Option<FullEntry> {
        let newest = self.get_at(EntryKey::newest(pid, partition))?;
        match epoch {
            Some(epoch) if epoch != newest.epoch => self.get_at(EntryKey::older(pid, partition, epoch)),
            _ => Some(newest),
        }
    }

    fn get_at(&self, key: EntryKey) -> Option<FullEntry> {
        self.lines.find(key).and_then(|place| self.read(place))
    }

    /// Visits every entry with its key, in arbitrary order.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(i64, i32, &FullEntry)) {
        self.lines.for_each(|key, held| match held {
            Slot::Empty => {}
            Slot::Inline(entry) => visit(key.pid, key.partition, &entry.into()),
            Slot::Overflow(number) => visit(key.pid, key.partition, self.in_overflow(number)),
        });
    }

    /// The holes of every entry that has some, in arbitrary order. They are in the overflow.
    pub(crate) fn all_holes(&self) -> Vec<(Key, &Holes)> {
        let mut found = Vec::new();
        self.lines.for_each(|key, held| {
            let Slot::Overflow(number) = held else { return };
            let entry = self.in_overflow(number);
            if !entry.holes.is_empty() {
                found.push(((key.pid, key.partition, entry.epoch), &entry.holes));
            }
        });
        found
    }

    /// Number of holes of all entries.
    pub(crate) fn holes(&self) -> u64 {
        debug_assert_eq!(self.holes, self.overflow.iter().map(|Cell(entry)| entry.holes.len()).sum::<usize>());
        self.holes as u64
    }

    pub(crate) fn lines(&self) -> &Lines<L> {
        &self.lines
    }

    /// An entry in the overflow.
    pub(crate) fn in_overflow(&self, number: u32) -> &FullEntry {
        &self.overflow.get(number).0
    }

    /// Adds a plain entry for a key without one. `line`: the line of the previous entry. If entries come in the order
    /// of snapshots, this entry is nearly always in the same line.
    #[inline(always)]
    pub(crate) fn add_plain(
        &mut self,
        key: EntryKey,
        block_hash: u64,
        entry: PlainEntry,
        line: &mut Option<LinePlace>,
    ) -> Result<()> {
        if line.is_some_and(|line| self.lines.write_beside(line, key, entry)) {
            self.entries += 1;
            return Ok(());
        }
        self.lines.reserve(1)?;
        let place = self.lines.find_or_insert_hashed(key, block_hash);
        *line = Some(place.line());
        self.entries += 1;
        if !self.lines.write(place, &Slot::Inline(entry)) {
            self.put(place, entry.into());
        }
        Ok(())
    }

    /// Adds an entry for a key without one.
    pub(crate) fn add(&mut self, key: EntryKey, entry: FullEntry) -> Result<()> {
        self.lines.reserve(1)?;
        self.put_at(key, entry);
        self.entries += 1;
        Ok(())
    }

    /// Reserves memory for `times` as many lines as there are now.
    pub(crate) fn reserve_times(&mut self, times: f64) -> Result<()> {
        self.lines.reserve_times(times)
    }

    /// The same entries under other keys.
    pub(crate) fn renumbered(&self, key: impl Fn(i64, i32) -> (i64, i32)) -> Result<Shelf<L>> {
        let (mut renumbered, mut enough) = (Shelf::new(self.lines.partitions()), Ok(()));
        self.for_each(|pid, partition, entry| {
            if enough.is_ok() {
                let (pid, partition) = key(pid, partition);
                enough = renumbered.reserve(2).map(|()| assert!(renumbered.insert(pid, partition, entry.clone())));
            }
        });
        enough.map(|()| renumbered)
    }

    /// Copies the entries that judging up to [`CHUNK`] keys and epochs would read.
    pub(crate) fn copy_to(&self, copy: &mut Shelf<L>, keys: &[Key]) -> Result<()> {
        copy.reserve(2 * keys.len())?;
        self.prefetch(keys);
        copy.prefetch(keys);
        for &(pid, partition, epoch) in keys.iter().filter(|key| key.0 != -1) {
            let newest = self.copy_entry_to(copy, EntryKey::newest(pid, partition));
            if newest.is_some_and(|newest| newest != epoch) {
                self.copy_entry_to(copy, EntryKey::older(pid, partition, epoch));
            }
        }
        Ok(())
    }

    /// Copies an entry, if there is one, and returns its epoch. It adds a line even if there is no entry, because
    /// judging would add it.
    fn copy_entry_to(&self, copy: &mut Shelf<L>, key: EntryKey) -> Option<i16> {
        let to = copy.lines.find_or_insert(key);
        if let Some(epoch) = copy.epoch_at(to) {
            return Some(epoch);
        }
        let entry = self.get_at(key)?;
        let epoch = entry.epoch;
        copy.entries += 1;
        copy.put(to, entry);
        Some(epoch)
    }

    /// Reserves memory for `lines` more lines.
    #[inline]
    pub(crate) fn reserve(&mut self, lines: usize) -> Result<()> {
        self.lines.reserve(lines)
    }

    /// Like `reserve`, during a call that will add about `expected` lines.
    #[inline]
    pub(crate) fn reserve_midway(&mut self, lines: usize, expected: usize) -> Result<()> {
        self.lines.reserve_midway(lines, expected)
    }

    /// Adds an entry if its key and epoch have none. Otherwise returns false and changes nothing. Memory for two lines
    /// must be reserved.
    pub(crate) fn insert(&mut self, pid: i64, partition: i32, entry: FullEntry) -> bool {
        if self.get(pid, partition, Some(entry.epoch)).is_some_and(|known| known.epoch == entry.epoch) {
            return false;
        }
        self.entries += 1;
        let newest = EntryKey::newest(pid, partition);
        match self.lines.find(newest).and_then(|place| Some((place, self.epoch_at(place)?))) {
            Some((place, known)) if known < entry.epoch => self.replace_newest(place, (pid, partition), entry),
            Some(_) => self.put_at(EntryKey::older(pid, partition, entry.epoch), entry),
            None => self.put_at(newest, entry),
        }
        true
    }

    /// Replaces the entry of a key, whose epoch is `known`.
    pub(crate) fn replace(&mut self, pid: i64, partition: i32, known: i16, state: FullEntry) {
        let newest = self.lines.find(EntryKey::newest(pid, partition));
        let place = newest
            .filter(|&place| self.epoch_at(place) == Some(known))
            .or_else(|| self.lines.find(EntryKey::older(pid, partition, known)))
            .expect("the entry is known");
        self.put(place, state);
    }

    /// Keeps the entries for which `keep` returns true, with its changes, and returns the number of dropped entries.
    /// `keep` must not change first, last and epoch.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(i64, i32, &mut FullEntry) -> bool) -> usize {
        let before = self.entries;
        for segment in 0..self.lines.segments() {
            let mut older = Vec::new();
            let (overflow, entries, holes) = (&mut self.overflow, &mut self.entries, &mut self.holes);
            self.lines.retain(segment, |key, held| {
                let is_kept = match held {
                    Slot::Empty => return false,
                    Slot::Inline(entry) => keep(key.pid, key.partition, &mut entry.into()),
                    Slot::Overflow(number) => {
                        let entry = &mut overflow.get_mut(number).0;
                        *holes -= entry.holes.len();
                        let is_kept = keep(key.pid, key.partition, entry);
                        if is_kept {
                            *holes += entry.holes.len();
                        } else {
                            overflow.retire(number);
                        }
                        is_kept
                    }
                };
                older.extend((is_kept && key.older.is_some()).then_some(key));
                *entries -= usize::from(!is_kept);
                is_kept
            });
            self.promote(older);
            self.release_numbers();
        }
        self.lines.shrink();
        before - self.entries
    }

    /// If the highest epoch of a key was dropped, the highest remaining one becomes the newest.
    fn promote(&mut self, mut older: Vec<EntryKey>) {
        older.sort_unstable_by_key(|key| (key.pid, key.partition, Reverse(key.older)));
        older.dedup_by_key(|key| (key.pid, key.partition));
        for key in older {
            let newest = self.lines.find(EntryKey::newest(key.pid, key.partition));
            let newest = newest.expect("a key with older epochs has a line for its highest");
            let place = self.lines.find(key).expect("it was just kept");
            if self.lines.read(newest) == Slot::Empty {
                let entry = self.read(place).expect("it was just kept");
                if let Slot::Overflow(number) = self.lines.read(place) {
                    self.take(number);
                    self.overflow.retire(number);
                }
                self.lines.clear(place);
                self.put(newest, entry);
            }
        }
    }

    /// Prefetches the lines of the keys that are looked up next, so that their cache misses overlap.
    pub(crate) fn prefetch(&self, keys: &[Key]) {
        let mut searches = [Searches::none(); CHUNK.div_ceil(STEP)];
        for (searches, keys) in searches.iter_mut().zip(keys.chunks(STEP)) {
            let (mut pids, mut partitions) = ([0; STEP], [0; STEP]);
            for (index, key) in keys.iter().enumerate() {
                (pids[index], partitions[index]) = (key.0, key.1);
            }
            self.lines.begin(&pids, &partitions, searches);
        }
        let steps = keys.len().div_ceil(STEP);
        searches.iter_mut().take(steps).for_each(|searches| self.lines.prefetch_lines(searches));
    }

    /// How many lines can be added before memory moves.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.lines.room()
    }

    /// Judges a span if its slot alone can decide. [`Shelf::judge_beyond`] judges all others.
    #[inline(always)]
    pub(crate) fn judge_fast(
        &mut self,
        rules: &PlainRules,
        key: (i64, i32),
        span: Span,
        searches: &Searches,
        index: usize,
    ) -> FastOutcome {
        let outcome = self.lines.judge_fast(key, span, rules, searches, index);
        self.entries += usize::from(outcome == FastOutcome::Begun);
        outcome
    }

    /// Prefetches the entries of keys in the overflow.
    #[inline(always)]
    pub(crate) fn prefetch_overflow(
        &self,
        searches: &Searches,
        pids: &[i64; STEP],
        partitions: &[i32; STEP],
        count: usize,
        found: &mut InOverflow,
    ) {
        for index in 0..count {
            let key = (pids[index], partitions[index]);
            let held = self.lines.read_near(searches, index, key);
            let number = match held {
                Some(Slot::Overflow(number)) => number,
                Some(_) => NONE,
                None => self.number_elsewhere(key),
            };
            found.numbers[index] = number;
            if number != NONE {
                found.is_any = true;
                self.overflow.prefetch(number);
            }
        }
    }

    /// The number of an entry in the overflow whose line was not found at the expected place.
    #[cold]
    #[inline(never)]
    fn number_elsewhere(&self, (pid, partition): (i64, i32)) -> u32 {
        match self.find(EntryKey::newest(pid, partition)).filter(|_| pid != -1) {
            Some((_, Slot::Overflow(number))) => number,
            _ => NONE,
        }
    }

    /// Prefetches the memory of these entries for positions.
    #[inline(always)]
    pub(crate) fn prefetch_holes(&self, found: &InOverflow, positions: &[i64; STEP], count: usize) {
        if !found.is_any {
            return;
        }
        for (&number, &position) in found.numbers[..count].iter().zip(positions) {
            if number != NONE {
                let entry = self.in_overflow(number);
                entry.holes.prefetch(position, entry.last);
            }
        }
    }

    /// Judges a span by an entry in the overflow, if that alone can decide.
    #[inline(always)]
    pub(crate) fn judge_in_overflow(
        &mut self,
        rules: &PlainRules,
        key: (i64, i32),
        span: Span,
        number: u32,
        (searches, index): (&Searches, usize),
    ) -> fast_path::InPlace {
        let entry = &mut self.overflow.get_mut(number).0;
        let judged = fast_path::judge_in_overflow(rules, entry, span, L::IS_TIMED);
        self.holes = self.holes.wrapping_add_signed(judged.holes);
        if judged.outcome == FastOutcome::Filled && entry.holes.is_empty() {
            self.leave_overflow(number, key, (searches, index));
        }
        judged
    }

    /// Moves an entry without holes from the overflow to its slot, if it fits.
    #[inline(never)]
    fn leave_overflow(&mut self, number: u32, key: (i64, i32), (searches, index): (&Searches, usize)) {
        let Some(plain) = self.in_overflow(number).plain() else { return };
        let place = match self.lines.read_near(searches, index, key) {
            Some(_) => self.lines.place_near(searches, index, key.1),
            None => self.lines.find(EntryKey::newest(key.0, key.1)).expect("a key with an entry has a line"),
        };
        if self.lines.write(place, &Slot::Inline(plain)) {
            self.overflow.retire(number);
        }
    }

    /// Moves an entry that has its first hole from its slot to the overflow.
    #[inline(always)]
    fn enter_overflow(&mut self, entry: FullEntry, key: (i64, i32), (searches, index): (&Searches, usize)) {
        let place = self.lines.place_near(searches, index, key.1);
        let number = self.overflow.add();
        assert!(self.lines.write(place, &Slot::Overflow(number)));
        *self.overflow.get_mut(number) = Cell(entry);
        self.holes += 1;
    }

    /// Releases the numbers of entries that left the overflow before the last period.
    #[inline]
    pub(crate) fn end_period(&mut self) {
        self.overflow.end_period();
    }

    /// Releases the numbers of all entries that left the overflow. No step may be in progress.
    pub(crate) fn release_numbers(&mut self) {
        self.overflow.release();
    }

    /// Whether an entry was ever in the overflow.
    #[inline]
    pub(crate) fn has_overflow(&self) -> bool {
        !self.overflow.is_empty()
    }

    /// Judges a span if it is within its entry or the entry is in the overflow, and no other entry is affected.
    /// Otherwise returns false and changes nothing.
    #[inline]
    pub(crate) fn judge_near(
        &mut self,
        rules: &Rules,
        key: (i64, i32),
        span: Span,
        (searches, index): (&Searches, usize),
        call: &mut impl Sink,
    ) -> bool {
        match self.lines.read_near(searches, index, key) {
            Some(Slot::Overflow(number)) => {
                let entry = &mut self.overflow.get_mut(number).0;
                let holes = entry.holes.len();
                let is_judged = rules.judge_in_place(entry, span, call);
                self.holes = self.holes - holes + entry.holes.len();
                if is_judged {
                    self.leave_overflow(number, key, (searches, index));
                }
                is_judged
            }
            Some(Slot::Inline(plain)) => {
                if let Some(entry) = fast_path::open_first_hole(&rules.plain, plain, span, L::IS_TIMED) {
                    call.opened(plain.last + 1, span.seq - 1);
                    self.enter_overflow(entry, key, (searches, index));
                    return true;
                }
                let mut entry = plain.into();
                let is_judged = rules.judge_in_place(&mut entry, span, call);
                if is_judged {
                    let place = self.lines.place_near(searches, index, key.1);
                    self.put_over(place, None, entry);
                }
                is_judged
            }
            _ => false,
        }
    }

    /// Judges any span.
    #[cold]
    #[inline(never)]
    pub(crate) fn judge_beyond(
        &mut self,
        rules: &Rules,
        (pid, partition): (i64, i32),
        span: Span,
        call: &mut impl Sink,
    ) {
        let newest = EntryKey::newest(pid, partition);
        let found = self.find(newest);
        let known_epoch = found.as_ref().and_then(|(_, held)| self.epoch_of(held));
        let is_stale = known_epoch.is_some_and(|known| span.epoch < known);
        if is_stale {
            call.stale(span.rows);
        }
        if rules.policy.epochs != Epochs::Key || known_epoch.is_none_or(|known| span.epoch == known) {
            self.judge_at(rules, newest, span, found, call);
        } else if is_stale {
            let older = EntryKey::older(pid, partition, span.epoch);
            self.judge_at(rules, older, span, self.find(older), call);
        } else if let (Some(entry), Some((place, _))) = (rules.judge(None, span, call), found) {
            self.entries += 1;
            self.replace_newest(place, (pid, partition), entry);
        }
    }

    fn find(&self, key: EntryKey) -> Option<(Place, Slot)> {
        self.lines.find(key).map(|place| (place, self.lines.read(place)))
    }

    /// Judges a span against the entry at a place, or against none, and stores the result.
    fn judge_at(
        &mut self,
        rules: &Rules,
        key: EntryKey,
        span: Span,
        found: Option<(Place, Slot)>,
        call: &mut impl Sink,
    ) {
        let (place, entry, number) = match found {
            Some((place, Slot::Overflow(number))) => (Some(place), Some(self.take(number)), Some(number)),
            Some((place, Slot::Inline(state))) => (Some(place), Some(state.into()), None),
            Some((place, Slot::Empty)) => (Some(place), None, None),
            None => (None, None, None),
        };
        let was_known = entry.is_some();
        if let Some(state) = rules.judge(entry, span, call) {
            let place = place.unwrap_or_else(|| self.lines.find_or_insert(key));
            self.put_over(place, number, state);
            self.entries += usize::from(!was_known);
        }
    }

    /// Puts a higher epoch at the newest place, and moves the previous one to a line of its own.
    fn replace_newest(&mut self, place: Place, (pid, partition): (i64, i32), state: FullEntry) {
        let before = self.read(place).expect("the newest place of a known key holds its entry");
        self.put(place, state);
        self.put_at(EntryKey::older(pid, partition, before.epoch), before);
    }

    fn epoch_at(&self, place: Place) -> Option<i16> {
        self.epoch_of(&self.lines.read(place))
    }

    fn epoch_of(&self, held: &Slot) -> Option<i16> {
        match held {
            Slot::Empty => None,
            Slot::Inline(entry) => Some(entry.epoch),
            Slot::Overflow(number) => Some(self.in_overflow(*number).epoch),
        }
    }

    fn read(&self, place: Place) -> Option<FullEntry> {
        match self.lines.read(place) {
            Slot::Empty => None,
            Slot::Inline(entry) => Some(entry.into()),
            Slot::Overflow(number) => Some(self.in_overflow(number).clone()),
        }
    }

    fn put_at(&mut self, key: EntryKey, entry: FullEntry) {
        let place = self.lines.find_or_insert(key);
        self.put(place, entry);
    }

    /// Stores an entry at a place: in the line if it fits, otherwise in the overflow.
    fn put(&mut self, place: Place, entry: FullEntry) {
        let number = match self.lines.read(place) {
            Slot::Overflow(number) => Some(number),
            _ => None,
        };
        self.put_over(place, number, entry);
    }

    /// Moves an entry out of the overflow, to be put back or freed.
    fn take(&mut self, number: u32) -> FullEntry {
        let Cell(entry) = self.overflow.take(number);
        self.holes -= entry.holes.len();
        entry
    }

    /// Like `put`, if it is known whether the place has an entry in the overflow.
    fn put_over(&mut self, place: Place, number: Option<u32>, entry: FullEntry) {
        number.into_iter().for_each(|number| drop(self.take(number)));
        if entry.plain().is_some_and(|plain| self.lines.write(place, &Slot::Inline(plain))) {
            number.into_iter().for_each(|number| self.overflow.retire(number));
            return;
        }
        let number = number.unwrap_or_else(|| {
            let number = self.overflow.add();
            assert!(self.lines.write(place, &Slot::Overflow(number)));
            number
        });
        self.holes += entry.holes.len();
        self.overflow.get_mut(number).0 = entry;
    }
}

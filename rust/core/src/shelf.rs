//! Entries by key: those that fit in their line's slot, and those in the overflow.

use crate::fast_path::{self, Plainly, Slot};
use crate::judge::{PlainRules, PlainSpan, Rules, Run, Sink, Span};
use crate::keys::Key;
use crate::lines::{EntryKey, LinePlace, Lines, Place, RowLine, Searches};
use crate::prefetch::{CHUNK, STEP};
use crate::slab::Slab;
use crate::{Epochs, Result};
use std::cmp::Reverse;

/// An entry in two neighbouring cache lines, which are fetched as one.
#[derive(Default)]
#[repr(align(128))]
struct Cell(Span);

const _: () = assert!(size_of::<Cell>() == 128);

/// A hash table of lines and what did not fit in them.
///
/// A key's newest epoch lies in the line of its producer and partition; where every epoch counts by
/// itself the epochs below it lie in lines of their own, so that the common look-up touches one line.
pub(crate) struct Shelf<L: RowLine> {
    lines: Lines<L>,
    overflow: Slab<Cell>,
    entries: usize,
    /// Of all entries.
    holes: usize,
}

/// No number of an entry.
const NONE: u32 = u32::MAX;

/// The entries in the overflow that the keys of a step have.
#[derive(Clone, Copy)]
pub(crate) struct InOverflow {
    is_any: bool,
    /// Of what is in the overflow when they were found.
    version: u64,
    numbers: [u32; STEP],
}

impl InOverflow {
    /// None.
    pub(crate) const NONE: InOverflow = InOverflow { is_any: false, version: 0, numbers: [NONE; STEP] };

    #[inline(always)]
    pub(crate) fn clear(&mut self) {
        self.is_any = false;
    }
}

impl<L: RowLine> Shelf<L> {
    pub(crate) fn new() -> Shelf<L> {
        Shelf { lines: Lines::new(), overflow: Slab::default(), entries: 0, holes: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.lines.memory_bytes() + self.overflow.memory_bytes(|Cell(span)| span.holes.memory_bytes())
    }

    /// The entry of a key: of the given epoch, or of its highest.
    pub(crate) fn get(&self, pid: i64, partition: i32, epoch: Option<i16>) -> Option<Span> {
        let newest = self.get_at(EntryKey::newest(pid, partition))?;
        match epoch {
            Some(epoch) if epoch != newest.epoch => self.get_at(EntryKey::older(pid, partition, epoch)),
            _ => Some(newest),
        }
    }

    fn get_at(&self, key: EntryKey) -> Option<Span> {
        self.lines.find(key).and_then(|place| self.read(place))
    }

    /// Every entry with its key, in no meaningful order.
    pub(crate) fn for_each(&self, mut tell: impl FnMut(i64, i32, &Span)) {
        self.lines.for_each(|key, held| match held {
            Slot::Empty => {}
            Slot::Inline(span) => tell(key.pid, key.partition, &span.into()),
            Slot::Overflow(number) => tell(key.pid, key.partition, self.in_overflow(number)),
        });
    }

    /// How many holes its entries have.
    pub(crate) fn holes(&self) -> u64 {
        debug_assert_eq!(self.holes, self.overflow.iter().map(|Cell(span)| span.holes.len()).sum::<usize>());
        self.holes as u64
    }

    pub(crate) fn lines(&self) -> &Lines<L> {
        &self.lines
    }

    /// An entry that lies in no line.
    pub(crate) fn in_overflow(&self, number: u32) -> &Span {
        &self.overflow.get(number).0
    }

    /// Adds a plain entry where there is none. `line`: that of the entry before, which has this one too
    /// nearly always where entries come in the order of snapshots.
    #[inline(always)]
    pub(crate) fn add_plain(
        &mut self,
        key: EntryKey,
        block_hash: u64,
        span: PlainSpan,
        line: &mut Option<LinePlace>,
    ) -> Result<()> {
        if line.is_some_and(|line| self.lines.write_beside(line, key, span)) {
            self.entries += 1;
            return Ok(());
        }
        self.lines.reserve(1)?;
        let place = self.lines.find_or_insert_hashed(key, block_hash);
        *line = Some(place.line());
        self.entries += 1;
        if !self.lines.write(place, &Slot::Inline(span)) {
            self.put(place, span.into());
        }
        Ok(())
    }

    /// Adds an entry where there is none.
    pub(crate) fn add(&mut self, key: EntryKey, span: Span) -> Result<()> {
        self.lines.reserve(1)?;
        self.put_at(key, span);
        self.entries += 1;
        Ok(())
    }

    /// Makes room for so many times the lines that there are.
    pub(crate) fn reserve_times(&mut self, times: f64) -> Result<()> {
        self.lines.reserve_times(times)
    }

    /// The same entries under other keys.
    pub(crate) fn renumbered(&self, key: impl Fn(i64, i32) -> (i64, i32)) -> Result<Shelf<L>> {
        let (mut renumbered, mut enough) = (Shelf::new(), Ok(()));
        self.for_each(|pid, partition, span| {
            if enough.is_ok() {
                let (pid, partition) = key(pid, partition);
                enough = renumbered.reserve(2).map(|()| assert!(renumbered.insert(pid, partition, span.clone())));
            }
        });
        enough.map(|()| renumbered)
    }

    /// Copies what judges of up to [`CHUNK`] keys and epochs would look at.
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

    /// Copies an entry if there is one, and gives its epoch. A line is added even if there is none: the judge
    /// would add it.
    fn copy_entry_to(&self, copy: &mut Shelf<L>, key: EntryKey) -> Option<i16> {
        let to = copy.lines.find_or_insert(key);
        if let Some(epoch) = copy.epoch_at(to) {
            return Some(epoch);
        }
        let span = self.get_at(key)?;
        let epoch = span.epoch;
        copy.entries += 1;
        copy.put(to, span);
        Some(epoch)
    }

    /// Makes room for `lines` more lines.
    #[inline]
    pub(crate) fn reserve(&mut self, lines: usize) -> Result<()> {
        self.lines.reserve(lines)
    }

    /// The same in a call that has begun, which will add `expected` lines as far as one can tell.
    #[inline]
    pub(crate) fn reserve_midway(&mut self, lines: usize, expected: usize) -> Result<()> {
        self.lines.reserve_midway(lines, expected)
    }

    /// Adds an entry where its key and epoch have none; false, and nothing changed, where they do. Room for two
    /// lines must have been reserved.
    pub(crate) fn insert(&mut self, pid: i64, partition: i32, span: Span) -> bool {
        if self.get(pid, partition, Some(span.epoch)).is_some_and(|known| known.epoch == span.epoch) {
            return false;
        }
        self.entries += 1;
        let newest = EntryKey::newest(pid, partition);
        match self.lines.find(newest).and_then(|place| Some((place, self.epoch_at(place)?))) {
            Some((place, known)) if known < span.epoch => self.replace_newest(place, (pid, partition), span),
            Some(_) => self.put_at(EntryKey::older(pid, partition, span.epoch), span),
            None => self.put_at(newest, span),
        }
        true
    }

    /// Puts an entry in the place of the one that its key has, of epoch `known`.
    pub(crate) fn replace(&mut self, pid: i64, partition: i32, known: i16, span: Span) {
        let newest = self.lines.find(EntryKey::newest(pid, partition));
        let place = newest
            .filter(|&place| self.epoch_at(place) == Some(known))
            .or_else(|| self.lines.find(EntryKey::older(pid, partition, known)))
            .expect("the entry is known");
        self.put(place, span);
    }

    /// Keeps the entries that `keep` says, as it leaves them, and gives how many went. It may change only
    /// what is said beside first, last and epoch.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(i64, i32, &mut Span) -> bool) -> usize {
        let before = self.entries;
        for segment in 0..self.lines.segments() {
            let mut older = Vec::new();
            let (overflow, entries, holes) = (&mut self.overflow, &mut self.entries, &mut self.holes);
            self.lines.retain(segment, |key, held| {
                let is_kept = match held {
                    Slot::Empty => return false,
                    Slot::Inline(span) => keep(key.pid, key.partition, &mut span.into()),
                    Slot::Overflow(number) => {
                        let span = &mut overflow.get_mut(number).0;
                        *holes -= span.holes.len();
                        let is_kept = keep(key.pid, key.partition, span);
                        if is_kept {
                            *holes += span.holes.len();
                        } else {
                            overflow.free(number);
                        }
                        is_kept
                    }
                };
                older.extend((is_kept && key.older.is_some()).then_some(key));
                *entries -= usize::from(!is_kept);
                is_kept
            });
            self.promote(older);
        }
        self.lines.shrink();
        before - self.entries
    }

    /// Where a key's highest epoch went, the highest of those that are left takes its place.
    fn promote(&mut self, mut older: Vec<EntryKey>) {
        older.sort_unstable_by_key(|key| (key.pid, key.partition, Reverse(key.older)));
        older.dedup_by_key(|key| (key.pid, key.partition));
        for key in older {
            let newest = self.lines.find(EntryKey::newest(key.pid, key.partition));
            let newest = newest.expect("a key with older epochs has a line for its highest");
            let place = self.lines.find(key).expect("it was just kept");
            if self.lines.read(newest) == Slot::Empty {
                let span = self.read(place).expect("it was just kept");
                if let Slot::Overflow(number) = self.lines.read(place) {
                    self.take(number);
                    self.overflow.free(number);
                }
                self.lines.clear(place);
                self.put(newest, span);
            }
        }
    }

    /// Prefetches the lines of keys that are looked up next, so that their misses overlap.
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

    /// How many lines can be added before anything moves.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.lines.room()
    }

    /// Judges the run if its slot alone can tell. [`Shelf::judge_beyond`] does the others.
    #[inline(always)]
    pub(crate) fn judge_plainly(
        &mut self,
        rules: &PlainRules,
        key: (i64, i32),
        run: Run,
        searches: &Searches,
        index: usize,
    ) -> Plainly {
        let plainly = self.lines.judge_plainly(key, run, rules, searches, index);
        self.entries += usize::from(plainly == Plainly::Begun);
        plainly
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
        found.version = self.overflow.version();
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

    /// The number of an entry in the overflow whose line does not lie where it was looked for.
    #[cold]
    #[inline(never)]
    fn number_elsewhere(&self, (pid, partition): (i64, i32)) -> u32 {
        match self.find(EntryKey::newest(pid, partition)).filter(|_| pid != -1) {
            Some((_, Slot::Overflow(number))) => number,
            _ => NONE,
        }
    }

    /// Prefetches what these entries hold beside positions.
    #[inline(always)]
    pub(crate) fn prefetch_holes(&self, found: &InOverflow, positions: &[i64; STEP], count: usize) {
        if !found.is_any || found.version != self.overflow.version() {
            return;
        }
        for (&number, &position) in found.numbers[..count].iter().zip(positions) {
            if number != NONE {
                let entry = self.in_overflow(number);
                entry.holes.prefetch(position, entry.last);
            }
        }
    }

    /// Judges a run by an entry in the overflow, if that alone can tell.
    #[inline(always)]
    pub(crate) fn judge_in_overflow(&mut self, rules: &PlainRules, number: u32, run: Run) -> (Plainly, i64) {
        let judged = fast_path::judge_in_overflow(rules, &mut self.overflow.get_mut(number).0, run, L::IS_TIMED);
        self.holes += usize::from(judged.1 < run.seq);
        judged
    }

    /// The number of a key's entry that is in the overflow, if it was found and is the same still.
    #[inline(always)]
    pub(crate) fn number_of(&self, found: &InOverflow, index: usize) -> Option<u32> {
        let is_found = found.is_any && found.version == self.overflow.version() && found.numbers[index] != NONE;
        is_found.then(|| found.numbers[index])
    }

    /// Whether an entry was ever in the overflow.
    #[inline]
    pub(crate) fn has_overflow(&self) -> bool {
        !self.overflow.is_empty()
    }

    /// Judges a run whose slot alone could not tell where the entry lies in it or is in the overflow, and no other is
    /// concerned. False, and nothing changed, where that is not plain to see.
    #[inline]
    pub(crate) fn judge_near(
        &mut self,
        rules: &Rules,
        key: (i64, i32),
        run: Run,
        (searches, index): (&Searches, usize),
        call: &mut impl Sink,
    ) -> bool {
        match self.lines.read_near(searches, index, key) {
            Some(Slot::Overflow(number)) => {
                let span = &mut self.overflow.get_mut(number).0;
                let holes = span.holes.len();
                let is_judged = rules.judge_in_place(span, run, call);
                self.holes = self.holes - holes + span.holes.len();
                if is_judged && let Some(plain) = span.plain() {
                    let place = self.lines.place_near(searches, index, key.1);
                    if self.lines.write(place, &Slot::Inline(plain)) {
                        self.overflow.free(number);
                    }
                }
                is_judged
            }
            Some(Slot::Inline(plain)) => {
                let mut span = plain.into();
                let is_judged = rules.judge_in_place(&mut span, run, call);
                if is_judged {
                    let place = self.lines.place_near(searches, index, key.1);
                    self.put_over(place, None, span);
                }
                is_judged
            }
            _ => false,
        }
    }

    /// Judges a run in any case.
    #[cold]
    #[inline(never)]
    pub(crate) fn judge_beyond(&mut self, rules: &Rules, (pid, partition): (i64, i32), run: Run, call: &mut impl Sink) {
        let newest = EntryKey::newest(pid, partition);
        let found = self.find(newest);
        let known_epoch = found.as_ref().and_then(|(_, held)| self.epoch_of(held));
        let is_stale = known_epoch.is_some_and(|known| run.epoch < known);
        if is_stale {
            call.stale(run.rows);
        }
        if rules.policy.epochs != Epochs::Key || known_epoch.is_none_or(|known| run.epoch == known) {
            self.judge_at(rules, newest, run, found, call);
        } else if is_stale {
            let older = EntryKey::older(pid, partition, run.epoch);
            self.judge_at(rules, older, run, self.find(older), call);
        } else if let (Some(span), Some((place, _))) = (rules.judge(None, run, call), found) {
            self.entries += 1;
            self.replace_newest(place, (pid, partition), span);
        }
    }

    fn find(&self, key: EntryKey) -> Option<(Place, Slot)> {
        self.lines.find(key).map(|place| (place, self.lines.read(place)))
    }

    /// Judges against what a place holds, or against nothing, and keeps what comes of it.
    fn judge_at(&mut self, rules: &Rules, key: EntryKey, run: Run, found: Option<(Place, Slot)>, call: &mut impl Sink) {
        let (place, entry, number) = match found {
            Some((place, Slot::Overflow(number))) => (Some(place), Some(self.take(number)), Some(number)),
            Some((place, Slot::Inline(span))) => (Some(place), Some(span.into()), None),
            Some((place, Slot::Empty)) => (Some(place), None, None),
            None => (None, None, None),
        };
        let was_known = entry.is_some();
        if let Some(span) = rules.judge(entry, run, call) {
            let place = place.unwrap_or_else(|| self.lines.find_or_insert(key));
            self.put_over(place, number, span);
            self.entries += usize::from(!was_known);
        }
    }

    /// A higher epoch takes the newest place, the one that had it moves to a line of its own.
    fn replace_newest(&mut self, place: Place, (pid, partition): (i64, i32), span: Span) {
        let before = self.read(place).expect("the newest place of a known key holds its entry");
        self.put(place, span);
        self.put_at(EntryKey::older(pid, partition, before.epoch), before);
    }

    fn epoch_at(&self, place: Place) -> Option<i16> {
        self.epoch_of(&self.lines.read(place))
    }

    fn epoch_of(&self, held: &Slot) -> Option<i16> {
        match held {
            Slot::Empty => None,
            Slot::Inline(span) => Some(span.epoch),
            Slot::Overflow(number) => Some(self.in_overflow(*number).epoch),
        }
    }

    fn read(&self, place: Place) -> Option<Span> {
        match self.lines.read(place) {
            Slot::Empty => None,
            Slot::Inline(span) => Some(span.into()),
            Slot::Overflow(number) => Some(self.in_overflow(number).clone()),
        }
    }

    fn put_at(&mut self, key: EntryKey, span: Span) {
        let place = self.lines.find_or_insert(key);
        self.put(place, span);
    }

    /// Stores an entry at a place: in the line if it fits, else in the overflow.
    fn put(&mut self, place: Place, span: Span) {
        let number = match self.lines.read(place) {
            Slot::Overflow(number) => Some(number),
            _ => None,
        };
        self.put_over(place, number, span);
    }

    /// An entry in the overflow moved out, to be put back or freed.
    fn take(&mut self, number: u32) -> Span {
        let Cell(span) = self.overflow.take(number);
        self.holes -= span.holes.len();
        span
    }

    /// The same where the place holds an entry in the overflow, or does not, as is known.
    fn put_over(&mut self, place: Place, number: Option<u32>, span: Span) {
        number.into_iter().for_each(|number| drop(self.take(number)));
        if span.plain().is_some_and(|plain| self.lines.write(place, &Slot::Inline(plain))) {
            number.into_iter().for_each(|number| self.overflow.free(number));
            return;
        }
        let number = number.unwrap_or_else(|| {
            let number = self.overflow.add();
            assert!(self.lines.write(place, &Slot::Overflow(number)));
            number
        });
        self.holes += span.holes.len();
        self.overflow.get_mut(number).0 = span;
    }
}

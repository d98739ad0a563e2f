//! Entries by key: those that fit in their line's slot, and those kept aside.

use crate::Epochs;
use crate::judge::{PlainRules, Rules, Run, Span};
use crate::lines::{Line, LineKey, Lines, Plainly, Slot, slot_of};
use crate::snapshot::order::{Place as Rank, Renumbering};
use crate::table::Call;
use std::cmp::Reverse;

/// A place that an entry has or could have: a line and a slot in it.
#[derive(Clone, Copy)]
struct Place {
    line: usize,
    slot: usize,
}

/// Places in a part of the order, at the least, and parts of a table, at the most: every part is a pass
/// over all lines. With eight parts of lines, a snapshot takes 2 to 3 % of the table's memory beside it.
const PART_MIN: usize = 1 << 16;
const PARTS_MAX: usize = 8;

/// Lines that are asked for before they are read in the order of snapshots.
const LINES_AHEAD: usize = 32;

/// Entries from which is known how many lines those to come will take.
const SAMPLE: usize = 1 << 16;

/// Stands for all slots of a line.
const EVERY_SLOT: u8 = u8::MAX;

/// A search under way, from [`Shelf::begin_search`] to [`Shelf::judge_plainly`].
#[derive(Clone, Copy, Default)]
pub(crate) struct Search {
    pub(crate) key: LineKey,
    hash: u64,
    slot: usize,
    /// The group where the search begins; then the line where it most likely ends.
    at: usize,
}

/// Where a line, or a slot of it, stands in the order of snapshots.
type Found = (Rank, u32, u8);

/// An entry to be added behind all others, in the order of snapshots.
pub(crate) struct Appended {
    pub(crate) pid: i64,
    pub(crate) partition: i32,
    pub(crate) span: Span,
    /// Whether the entry before it is of the same key, so that this one is of an epoch below.
    pub(crate) is_older: bool,
}

impl Appended {
    #[inline]
    fn line_key<L: Line>(&self) -> LineKey {
        match self.is_older {
            true => LineKey::older::<L>(self.pid, self.partition, self.span.epoch),
            false => LineKey::newest::<L>(self.pid, self.partition),
        }
    }
}

/// A hash table of lines and what did not fit in them.
///
/// A key's newest epoch lies in the line of its producer and partition; where every epoch counts by
/// itself the epochs below it lie in lines of their own, so that the common look-up touches one line.
pub(crate) struct Shelf<L> {
    lines: Lines<L>,
    aside: Vec<Span>,
    /// Numbers of `aside` that are free.
    free: Vec<u32>,
    entries: usize,
}

impl<L: Line> Shelf<L> {
    pub(crate) fn new() -> Shelf<L> {
        Shelf { lines: Lines::new(), aside: Vec::new(), free: Vec::new(), entries: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let holes: usize = self.aside.iter().map(|span| span.holes.memory_bytes()).sum();
        let aside = self.aside.capacity() * size_of::<Span>() + self.free.capacity() * size_of::<u32>();
        self.lines.memory_bytes() + aside + holes
    }

    /// The entry of a key: of the given epoch, or of its highest.
    pub(crate) fn get(&self, pid: i64, partition: i32, epoch: Option<i16>) -> Option<Span> {
        let newest = self.find(LineKey::newest::<L>(pid, partition), partition).and_then(|place| self.read(place))?;
        match epoch {
            Some(epoch) if epoch != newest.epoch => {
                self.find(LineKey::older::<L>(pid, partition, epoch), partition).and_then(|place| self.read(place))
            }
            _ => Some(newest),
        }
    }

    /// Every entry with its key, in no meaningful order.
    pub(crate) fn for_each(&self, mut tell: impl FnMut(i64, i32, &Span)) {
        for line in self.lines.iter() {
            for slot in 0..L::SLOTS {
                let partition = (line.partitions_from() + slot as u32) as i32;
                match line.read(slot) {
                    Slot::Empty => {}
                    Slot::Inline(span) => tell(line.pid(), partition, &span),
                    Slot::Aside(number) => tell(line.pid(), partition, &self.aside[number as usize]),
                }
            }
        }
    }

    /// Every entry for which `wanted` holds, with its key as it is renumbered, in the order of snapshots.
    ///
    /// Goes over the lines in passes, one for each part of the order, so that only the places of one
    /// part's lines are held: 16 bytes for every eighth line of a table.
    pub(crate) fn in_order<E>(
        &self,
        numbers: &Renumbering,
        wanted: impl Fn(i64, i32) -> bool,
        mut tell: impl FnMut(i64, i32, &Span) -> Result<(), E>,
    ) -> Result<(), E> {
        let (places, parts_max) = match numbers.keeps_partitions() {
            true => (self.lines.len(), PARTS_MAX),
            false => (self.entries, PARTS_MAX * 4),
        };
        let parts = places.div_ceil(PART_MIN).clamp(1, parts_max);
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
                found[asked..ahead].iter().for_each(|&(_, line, _)| self.lines.prefetch(line as usize));
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
            let line = self.lines.line(line as usize);
            (line.pid(), line.is_older())
        };
        let first = of(&near[0]);
        !first.1 && near[1..].iter().all(|found| of(found) == first)
    }

    fn tell_sorted<'a, E>(
        &'a self,
        numbers: &Renumbering,
        near: &[Found],
        wanted: &impl Fn(i64, i32) -> bool,
        tell: &mut impl FnMut(i64, i32, &Span) -> Result<(), E>,
        entries: &mut Vec<(i64, i32, Span)>,
    ) -> Result<(), E> {
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
        for (number, line) in self.lines.iter_numbered() {
            let from = line.partitions_from();
            let number = u32::try_from(number).expect("fewer than 2^32 lines");
            let mut add = |partition: u32, slots: u8| {
                let (pid, partition) = numbers.key(line.pid(), partition as i32);
                let rank = Rank::of(pid, partition);
                if is_in_part(rank) {
                    found.push((rank, number, slots));
                }
            };
            if numbers.keeps_partitions() {
                add(from, EVERY_SLOT);
            } else {
                let taken = (0..L::SLOTS).filter(|&slot| !line.is_empty_at(slot));
                taken.for_each(|slot| add(from + slot as u32, slot as u8));
            }
        }
    }

    #[inline]
    fn read_slots<E>(
        &self,
        numbers: &Renumbering,
        (_, line, slots): Found,
        wanted: &impl Fn(i64, i32) -> bool,
        tell: &mut impl FnMut(i64, i32, &Span) -> Result<(), E>,
    ) -> Result<(), E> {
        let line = self.lines.line(line as usize);
        let slots = if slots == EVERY_SLOT { 0..L::SLOTS } else { slots.into()..usize::from(slots) + 1 };
        for slot in slots {
            let partition = (line.partitions_from() + slot as u32) as i32;
            if line.is_empty_at(slot) || !wanted(line.pid(), partition) {
                continue;
            }
            let (pid, partition) = numbers.key(line.pid(), partition);
            match line.read(slot) {
                Slot::Empty => {}
                Slot::Inline(span) => tell(pid, partition, &span)?,
                Slot::Aside(number) => tell(pid, partition, &self.aside[number as usize])?,
            }
        }
        Ok(())
    }

    /// How many holes its entries have.
    pub(crate) fn holes(&self) -> u64 {
        self.aside.iter().map(|span| span.holes.len() as u64).sum()
    }

    /// Copies what a judge of this key and epoch would look at.
    pub(crate) fn copy_to(&self, copy: &mut Shelf<L>, (pid, partition, epoch): (i64, i32, i16)) {
        if pid == -1 || copy.get(pid, partition, Some(epoch)).is_some() {
            return;
        }
        let newest = self.get(pid, partition, None);
        if let Some(newest) = newest.filter(|_| copy.get(pid, partition, None).is_none()) {
            copy.insert(pid, partition, newest);
        }
        if let Some(span) = self.get(pid, partition, Some(epoch)).filter(|span| span.epoch == epoch) {
            copy.insert(pid, partition, span);
        }
    }

    /// Makes room for `lines` more lines.
    pub(crate) fn reserve(&mut self, lines: usize) {
        self.lines.reserve(lines);
    }

    /// Adds an entry where its key and epoch have none; false, and nothing changed, where they do.
    pub(crate) fn insert(&mut self, pid: i64, partition: i32, span: Span) -> bool {
        if self.get(pid, partition, Some(span.epoch)).is_some_and(|known| known.epoch == span.epoch) {
            return false;
        }
        self.reserve(2);
        self.entries += 1;
        let newest = LineKey::newest::<L>(pid, partition);
        match self.find(newest, partition).and_then(|place| Some((place, self.epoch_at(place)?))) {
            Some((place, known)) if known < span.epoch => self.replace_newest(place, (pid, partition), span),
            Some(_) => {
                let place = self.find_or_insert(LineKey::older::<L>(pid, partition, span.epoch), partition);
                self.put(place, span);
            }
            None => {
                let place = self.find_or_insert(newest, partition);
                self.put(place, span);
            }
        }
        true
    }

    /// Adds entries that follow all others in the order of snapshots, and empties the batch.
    pub(crate) fn append(&mut self, batch: &mut Vec<Appended>) {
        let same_line = |a: &Appended, b: &Appended| a.line_key::<L>() == b.line_key::<L>();
        let hashes: Vec<u64> = batch.chunk_by(same_line).map(|line| line[0].line_key::<L>().hash()).collect();
        self.reserve(hashes.len());
        hashes.iter().for_each(|&hash| self.lines.prefetch_tags(self.lines.group_of(hash)));
        hashes.iter().for_each(|&hash| self.lines.prefetch_free(hash));
        self.entries += batch.len();
        // A line of newest epochs ends where another begins, so that the next is known to be new.
        let mut newest: Option<(LineKey, usize)> = None;
        for entry in batch.iter_mut() {
            let (key, slot) = (entry.line_key::<L>(), slot_of::<L>(entry.partition));
            let line = match newest {
                _ if entry.is_older => self.find_or_insert(key, entry.partition).line,
                Some((known, line)) if known == key => line,
                Some(_) => self.lines.insert(key, key.hash()),
                None => self.find_or_insert(key, entry.partition).line,
            };
            newest = if entry.is_older { newest } else { Some((key, line)) };
            self.put_new(Place { line, slot }, &mut entry.span);
        }
        batch.clear();
    }

    /// Makes room for `entries` in all, going by how many lines the first took. They lie scattered over
    /// the order, so a few blocks tell.
    pub(crate) fn reserve_for(&mut self, entries: u64) {
        if self.entries >= SAMPLE || self.entries as u64 >= entries {
            let (lines, have) = (self.lines.len() as u128, self.entries.max(1) as u128);
            let expected = lines * u128::from(entries) / have * 33 / 32;
            self.reserve(usize::try_from(expected.saturating_sub(lines)).unwrap_or(0));
        }
    }

    /// Keeps the entries that `keep` says, as it leaves them, and gives how many went.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(i64, i32, &mut Span) -> bool) -> usize {
        let mut kept = Shelf::new();
        self.for_each(|pid, partition, span| {
            let mut span = span.clone();
            if keep(pid, partition, &mut span) {
                kept.insert(pid, partition, span);
            }
        });
        let dropped = self.entries - kept.entries;
        *self = kept;
        dropped
    }

    /// Puts an entry in the place of the one that its key has, of epoch `known`.
    pub(crate) fn replace(&mut self, pid: i64, partition: i32, known: i16, span: Span) {
        let newest = self.find(LineKey::newest::<L>(pid, partition), partition);
        let place = newest
            .filter(|&place| self.epoch_at(place) == Some(known))
            .or_else(|| self.find(LineKey::older::<L>(pid, partition, known), partition))
            .expect("the entry is known");
        self.put(place, span);
    }

    /// First pass over a chunk of runs: asks for the tags.
    #[inline]
    pub(crate) fn begin_search(&self, pid: i64, partition: i32) -> Search {
        let key = LineKey::newest::<L>(pid, partition);
        let hash = key.hash();
        let group = self.lines.group_of(hash);
        self.lines.prefetch_tags(group);
        Search { key, hash, slot: slot_of::<L>(partition), at: group }
    }

    /// Second pass: asks for the line.
    #[inline]
    pub(crate) fn go_on_searching(&self, search: &mut Search) {
        search.at = self.lines.prefetch_line(search.at, search.hash);
    }

    /// Third pass: judges the run if its slot alone can tell. [`Shelf::judge_beyond`] does the others.
    /// Room for two lines must have been reserved.
    #[inline(always)]
    pub(crate) fn judge_plainly(&mut self, rules: &PlainRules, run: Run, search: &Search) -> Plainly {
        let line = match self.lines.find_near(search.at, search.key, search.hash) {
            Some(line) => line,
            None if rules.begins_anywhere => {
                let line = self.lines.insert(search.key, search.hash);
                self.lines.line_mut(line)
            }
            None => return Plainly::Unclear,
        };
        let plainly = line.judge_plainly(search.slot, run, rules);
        self.entries += usize::from(plainly == Plainly::Begun);
        plainly
    }

    /// Judges a run whose slot alone could not tell.
    #[cold]
    #[inline(never)]
    pub(crate) fn judge_beyond(&mut self, rules: &Rules, key: (i64, i32), run: Run, call: &mut Call<'_>) {
        let found = self.find(LineKey::newest::<L>(key.0, key.1), key.1);
        let known_epoch = found.and_then(|place| self.epoch_at(place));
        let is_stale = known_epoch.is_some_and(|known| run.epoch < known);
        if is_stale {
            call.stale(run.rows);
        }
        if rules.policy.epochs != Epochs::Key || known_epoch.is_none_or(|known| run.epoch == known) {
            let line_key = LineKey::newest::<L>(key.0, key.1);
            self.judge_at(rules, line_key, key.1, run, found, call);
        } else if is_stale {
            let line_key = LineKey::older::<L>(key.0, key.1, run.epoch);
            let found = self.find(line_key, key.1);
            self.judge_at(rules, line_key, key.1, run, found, call);
        } else if let (Some(span), Some(place)) = (rules.judge(None, run, call), found) {
            self.entries += 1;
            self.replace_newest(place, key, span);
        }
    }

    /// Judges against the entry at a place, or against none, and keeps what comes of it.
    fn judge_at(
        &mut self,
        rules: &Rules,
        line_key: LineKey,
        partition: i32,
        run: Run,
        found: Option<Place>,
        call: &mut Call<'_>,
    ) {
        let entry = found.and_then(|place| self.take(place));
        let was_known = entry.is_some();
        if let Some(span) = rules.judge(entry, run, call) {
            let place = found.unwrap_or_else(|| self.find_or_insert(line_key, partition));
            self.put(place, span);
            self.entries += usize::from(!was_known);
        }
    }

    /// A higher epoch takes the newest place, the one that had it moves to a line of its own.
    fn replace_newest(&mut self, place: Place, (pid, partition): (i64, i32), span: Span) {
        let before = self.read(place).expect("the newest place of a known key holds its entry");
        self.put(place, span);
        let older = self.find_or_insert(LineKey::older::<L>(pid, partition, before.epoch), partition);
        self.put(older, before);
    }

    fn find(&self, key: LineKey, partition: i32) -> Option<Place> {
        let line = self.lines.find(key, key.hash())?;
        Some(Place { line, slot: slot_of::<L>(partition) })
    }

    fn find_or_insert(&mut self, key: LineKey, partition: i32) -> Place {
        let hash = key.hash();
        let line = self.lines.find(key, hash).unwrap_or_else(|| self.lines.insert(key, hash));
        Place { line, slot: slot_of::<L>(partition) }
    }

    fn epoch_at(&self, place: Place) -> Option<i16> {
        let line = self.lines.line(place.line);
        (!line.is_empty_at(place.slot)).then(|| line.epoch(place.slot))
    }

    fn read(&self, place: Place) -> Option<Span> {
        match self.lines.line(place.line).read(place.slot) {
            Slot::Empty => None,
            Slot::Inline(span) => Some(span),
            Slot::Aside(number) => Some(self.aside[number as usize].clone()),
        }
    }

    /// The entry at a place, moved out; [`Shelf::put`] follows.
    fn take(&mut self, place: Place) -> Option<Span> {
        match self.lines.line(place.line).read(place.slot) {
            Slot::Empty => None,
            Slot::Inline(span) => Some(span),
            Slot::Aside(number) => Some(std::mem::take(&mut self.aside[number as usize])),
        }
    }

    /// Stores an entry at a place: in the line if it fits, else aside.
    fn put(&mut self, place: Place, mut span: Span) {
        let line = self.lines.line_mut(place.line);
        let Slot::Aside(number) = line.read(place.slot) else { return self.put_new(place, &mut span) };
        if line.write_inline(place.slot, &span) {
            self.aside[number as usize] = Span::default();
            self.free.push(number);
        } else {
            line.write_aside(place.slot, span.epoch, number);
            self.aside[number as usize] = span;
        }
    }

    /// The same where no entry lies aside yet; takes the span only where it does not fit.
    #[inline]
    fn put_new(&mut self, place: Place, span: &mut Span) {
        let line = self.lines.line_mut(place.line);
        if line.write_inline(place.slot, span) {
            return;
        }
        let number = self.free.pop().unwrap_or_else(|| {
            self.aside.push(Span::default());
            u32::try_from(self.aside.len() - 1).expect("fewer than 2^32 entries with holes")
        });
        line.write_aside(place.slot, span.epoch, number);
        self.aside[number as usize] = std::mem::take(span);
    }
}

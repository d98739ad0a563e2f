//! Entries by key: those that fit in their line's slot, and those kept aside.

use crate::Epochs;
use crate::judge::{PlainRules, Rules, Run, Span};
use crate::lines::{Line, LineKey, Lines, Plainly, Slot, slot_of};
use crate::table::Call;

/// A place that an entry has or could have: a line and a slot in it.
#[derive(Clone, Copy)]
struct Place {
    line: usize,
    slot: usize,
}

/// A search under way, from [`Shelf::begin_search`] to [`Shelf::judge_plainly`].
#[derive(Clone, Copy, Default)]
pub(crate) struct Search {
    pub(crate) key: LineKey,
    hash: u64,
    slot: usize,
    /// The group where the search begins; then the line where it most likely ends.
    at: usize,
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
    fn put(&mut self, place: Place, span: Span) {
        let line = self.lines.line_mut(place.line);
        let number = match line.read(place.slot) {
            Slot::Aside(number) => Some(number),
            _ => None,
        };
        if line.write_inline(place.slot, &span) {
            if let Some(number) = number {
                self.aside[number as usize] = Span::default();
                self.free.push(number);
            }
            return;
        }
        let number = number.or_else(|| self.free.pop()).unwrap_or_else(|| {
            self.aside.push(Span::default());
            u32::try_from(self.aside.len() - 1).expect("fewer than 2^32 entries with holes")
        });
        line.write_aside(place.slot, span.epoch, number);
        self.aside[number as usize] = span;
    }
}

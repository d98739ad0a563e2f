//! The hash table: dense cache lines, found by one-byte tags.
//!
//! A line has the entries of one producer for a few neighbouring partitions, so the producer is stored once and not
//! once per entry. If producers write to one partition each, a line has one entry and is smaller. Data that does not
//! fit into a line (holes, positions beyond its width) is in the overflow, and the line has its number.
//!
//! ```text
//! directory  first bits of a block's hash -> segment           a block: 24 partitions of a producer
//! segment    |t t t t t t t t t t t t t t t t|t t t ...        a byte per line; 16 are compared at once
//!            |64 B|64 B|64 B| ...                              line i belongs to tag i
//! ```
//!
//! Segments grow one at a time, and each at another size. No call waits for all of them, and only one is in memory
//! twice. A segment of a few megabytes splits in two. The segment of a key depends on its block alone, whatever the
//! layout of lines.
//!
//! A 64-byte line is one cache miss. Linear probing over lines without tags was 3 to 4 times slower at 100 M entries:
//! its second probe is a miss that nothing prefetched.

mod buffer;
mod cell;
mod groups;
mod line;
mod search;
mod segment;
mod timed;

pub(crate) use line::{Line, NextLine, RangeLine, RowLine, WideLine};
pub(crate) use search::{Near, Searches};
pub(crate) use timed::Timed;

use crate::fast_path::{self, FastOutcome, Slot};
use crate::judge::{PlainEntry, PlainRules, Span};
use crate::key_block::{block_hash, folded};
use crate::parallel::{in_parallel, threads};
use crate::{Error, Result};
use groups::Groups;
use search::{Root, next_version};
use segment::{Growth, Held, Segment, with_groups};

/// Marks lines with entries of an epoch below the highest of their key.
const OLDER: u32 = 1 << 31;

/// A table with fewer bytes has several entries per line, whatever its keys. Changing the layout would cost more than
/// it saves.
const SMALL_BYTES: usize = 16 << 20;

/// The number of partitions that each producer writes to, as the caller declares it. It decides the layout of the lines
/// of a growing table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partitions {
    /// One: a line holds one entry.
    One,
    /// Several: a line holds several entries of a producer.
    Many,
}

/// The key of an entry: a producer, a partition, and the epoch if it is below the highest of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryKey {
    pub(crate) pid: i64,
    pub(crate) partition: i32,
    pub(crate) older: Option<i16>,
}

impl EntryKey {
    /// The entry of the highest epoch of a key.
    #[inline]
    pub(crate) fn newest(pid: i64, partition: i32) -> EntryKey {
        EntryKey { pid, partition, older: None }
    }

    /// The only entry of a line.
    pub(crate) fn of_lone(key: LineKey) -> EntryKey {
        EntryKey::newest(key.pid, key.group as i32)
    }

    /// The entry of an epoch below a key's highest.
    pub(crate) fn older(pid: i64, partition: i32, epoch: i16) -> EntryKey {
        EntryKey { pid, partition, older: Some(epoch) }
    }

    #[inline]
    fn block_hash(self) -> u64 {
        block_hash(self.pid, self.partition)
    }

    /// The key of its line.
    #[inline]
    fn line<L: Line>(self) -> LineKey {
        let group = self.partition as u32 / L::SLOTS as u32;
        match self.older {
            None => LineKey { pid: self.pid, group, epoch: 0 },
            Some(epoch) => LineKey { pid: self.pid, group: group | OLDER, epoch },
        }
    }

    #[inline]
    fn slot<L: Line>(self) -> usize {
        (self.partition as u32 % L::SLOTS as u32) as usize
    }

    /// The entry in a slot of a line.
    fn at<L: Line>(line: &L, slot: usize) -> EntryKey {
        let partition = ((line.group() & !OLDER) * L::SLOTS as u32 + slot as u32) as i32;
        EntryKey { pid: line.pid(), partition, older: line.is_older().then(|| line.own_epoch()) }
    }
}

/// The key of a line: a producer, a group of partitions, and the epoch if it is below the highest of its keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct LineKey {
    pid: i64,
    group: u32,
    epoch: i16,
}

impl LineKey {
    fn of<L: Line>(line: &L) -> LineKey {
        LineKey { pid: line.pid(), group: line.group(), epoch: if line.is_older() { line.own_epoch() } else { 0 } }
    }

    fn block_hash<L: Line>(self) -> u64 {
        block_hash(self.pid, ((self.group & !OLDER) * L::SLOTS as u32) as i32)
    }

    /// The hash of a line. High bits choose the group, low bits are the tag.
    #[inline]
    fn hash(self, block_hash: u64) -> u64 {
        let epoch = (self.epoch as u64) << 40;
        folded((block_hash ^ u64::from(self.group) ^ epoch).wrapping_mul(0xd6e8_feb8_6659_fd93))
    }
}

/// The place of an entry, or where it would be. Valid until a line is added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    segment: u32,
    line: u32,
    slot: u32,
}

/// The place of a line. Valid until a line is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinePlace {
    segment: u32,
    line: u32,
}

impl Place {
    #[inline]
    pub(crate) fn line(self) -> LinePlace {
        LinePlace { segment: self.segment, line: self.line }
    }
}

impl LinePlace {
    pub(crate) fn slot(self, slot: u8) -> Place {
        Place { segment: self.segment, line: self.line, slot: slot.into() }
    }
}

/// A hash table of entries in lines of layout `L` or of its other layout: each segment uses the smaller one.
pub(crate) struct Lines<L: Line> {
    /// The segment of each value of the first `depth` bits of a block's hash. It has at least one bit.
    directory: Vec<Root>,
    depth: u32,
    segments: Vec<Segment<L>>,
    /// The least room of all segments.
    room: usize,
    /// Whether a segment has lines of one entry.
    has_single: bool,
    /// A new number whenever a segment is replaced.
    version: u64,
    partitions: Option<Partitions>,
}

impl<L: Line> Lines<L> {
    pub(crate) fn new(partitions: Option<Partitions>) -> Lines<L> {
        let (directory, segments, version) = (vec![Root::of_nothing(); 2], Vec::new(), next_version());
        Lines { directory, depth: 1, segments, room: 0, has_single: false, version, partitions }
    }

    pub(crate) fn partitions(&self) -> Option<Partitions> {
        self.partitions
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let tables = self.directory.capacity() * size_of::<Root>() + self.segments.capacity() * size_of::<Segment<L>>();
        tables + self.segments.iter().map(Segment::bytes).sum::<usize>()
    }

    /// Visits every non-empty slot, segment by segment in the order of block hashes, and in arbitrary order within a
    /// segment.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(EntryKey, L::Slot)) {
        self.ordered().for_each(|segment| segment.for_each(&mut visit));
    }

    /// Number of lines.
    pub(crate) fn len(&self) -> usize {
        self.segments.iter().map(|segment| with_groups!(&segment.held, groups => groups.taken())).sum()
    }

    /// The numbers of the segments in the order of block hashes, with the number of common bits of their hashes and
    /// their number of lines.
    pub(crate) fn stretches(&self) -> impl Iterator<Item = (usize, u32, usize)> {
        self.ordered_numbers().map(|number| {
            let segment = &self.segments[number];
            (number, segment.depth, with_groups!(&segment.held, groups => groups.taken()))
        })
    }

    /// Visits every line of a segment: its place, the key of its first slot, and its number of slots.
    pub(crate) fn for_each_line(&self, segment: usize, mut visit: impl FnMut(LinePlace, EntryKey, usize)) {
        with_groups!(&self.segments[segment].held, groups => groups.for_each_line(&mut |line, first, slots| {
            visit(LinePlace { segment: segment as u32, line: line as u32 }, first, slots);
        }));
    }

    /// The key of a line's first slot.
    pub(crate) fn first_key(&self, place: LinePlace) -> EntryKey {
        self.key(place.slot(0))
    }

    /// The key of a place.
    pub(crate) fn key(&self, place: Place) -> EntryKey {
        with_groups!(&self.segments[place.segment as usize].held, groups => {
            EntryKey::at(groups.line(place.line as usize), place.slot as usize)
        })
    }

    /// A line of either layout, whose slots can be read.
    #[inline(always)]
    pub(crate) fn line(&self, place: LinePlace) -> EitherLine<'_, L> {
        match &self.segments[place.segment as usize].held {
            Held::Dense(groups) => EitherLine::Dense(groups.line(place.line as usize)),
            Held::Single(groups) => EitherLine::Single(groups.line(place.line as usize)),
        }
    }

    /// Prefetches a line.
    #[inline]
    pub(crate) fn prefetch(&self, place: LinePlace) {
        with_groups!(&self.segments[place.segment as usize].held, groups => groups.prefetch_number(place.line as usize));
    }

    /// The segments in the order of block hashes.
    fn ordered(&self) -> impl Iterator<Item = &Segment<L>> {
        self.ordered_numbers().map(|number| &self.segments[number])
    }

    fn ordered_numbers(&self) -> impl Iterator<Item = usize> {
        let number = |index: usize| self.directory[index].segment as usize;
        let is_first = move |&index: &usize| index == 0 || number(index) != number(index - 1);
        let numbers = (0..self.directory.len()).filter(is_first).map(number);
        numbers.filter(|&number| number < self.segments.len())
    }

    #[inline]
    fn segment_of(&self, block_hash: u64) -> u32 {
        self.directory[(block_hash >> (64 - self.depth)) as usize].segment
    }

    /// The place of an entry, if its line exists.
    pub(crate) fn find(&self, key: EntryKey) -> Option<Place> {
        let block_hash = key.block_hash();
        let segment = self.segment_of(block_hash);
        let held = &self.segments.get(segment as usize)?.held;
        let (line, slot) = with_groups!(held, groups => groups.find_entry(key, block_hash))?;
        Some(Place { segment, line: line as u32, slot: slot as u32 })
    }

    /// Like `find`, but adds the line if there is none. Call [`Lines::reserve`] first.
    pub(crate) fn find_or_insert(&mut self, key: EntryKey) -> Place {
        self.find_or_insert_hashed(key, key.block_hash())
    }

    /// Like `find_or_insert`, with a known hash. It is inlined: a place returned through memory would wait for all
    /// earlier writes, which takes 50 ns per entry when entries are added one by one.
    #[inline(always)]
    pub(crate) fn find_or_insert_hashed(&mut self, key: EntryKey, block_hash: u64) -> Place {
        let segment = self.segment_of(block_hash);
        let ((line, slot), room) = with_groups!(&mut self.segments[segment as usize].held, groups => {
            (groups.find_or_insert(key, block_hash), groups.room())
        });
        self.room = self.room.min(room);
        Place { segment, line: line as u32, slot: slot as u32 }
    }

    pub(crate) fn read(&self, place: Place) -> L::Slot {
        with_groups!(&self.segments[place.segment as usize].held, groups => {
            groups.line(place.line as usize).read(place.slot as usize)
        })
    }

    /// Clears a slot. Its line stays until [`Lines::shrink`].
    pub(crate) fn clear(&mut self, place: Place) {
        with_groups!(&mut self.segments[place.segment as usize].held, groups => {
            groups.line_mut(place.line as usize).clear(place.slot as usize);
        })
    }

    /// Reserves memory for `more` lines, so that adding them moves nothing.
    #[inline]
    pub(crate) fn reserve(&mut self, more: usize) -> Result<()> {
        if self.room < more { self.grow(more, 0) } else { Ok(()) }
    }

    /// Like `reserve`, during a call that will add about `expected` lines. If there is no memory, the lines that a
    /// segment can have above its load limit are a reserve: the call can finish, and the next one is refused.
    #[inline]
    pub(crate) fn reserve_midway(&mut self, more: usize, expected: usize) -> Result<()> {
        if self.room >= more {
            return Ok(());
        }
        let grown = self.grow(more, expected).or_else(|_| self.grow(more, 0));
        grown.or_else(|refused| self.use_reserve(more, refused))
    }

    fn use_reserve(&self, more: usize, refused: Error) -> Result<()> {
        let is_enough = |segment: &Segment<L>| with_groups!(&segment.held, groups => groups.last_room()) >= more;
        if self.segments.iter().all(is_enough) { Ok(()) } else { Err(refused) }
    }

    /// How many lines can be added before memory moves.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.room
    }

    #[cold]
    fn grow(&mut self, more: usize, expected: usize) -> Result<()> {
        if self.segments.is_empty() {
            self.put(0, Segment::new(more, self.partitions)?);
        }
        let mut growth = self.growth(more, expected);
        let mut number = 0;
        while number < self.segments.len() {
            if self.segments[number].room() >= more {
                number += 1;
            } else if self.segments[number].is_to_split(self.segments.len()) {
                let halves = self.segments[number].halves(&growth)?;
                self.put_halves(number, halves);
                growth = self.growth(more, expected);
            } else {
                self.put(number, self.segments[number].grown(&growth)?);
            }
        }
        self.measure_room();
        Ok(())
    }

    fn growth(&self, more: usize, expected: usize) -> Growth {
        let bytes: usize = self.segments.iter().map(Segment::bytes).sum();
        let is_alone = self.segments.len() == 1 && L::DOUBLES;
        let expected = expected / self.segments.len().max(1); // an empty table has no segments
        Growth { empty: 0, more, expected, is_small: bytes < SMALL_BYTES, is_alone, partitions: self.partitions }
    }

    /// Reserves memory for `times` as many lines, while there are few. It creates the segments that will be needed, in
    /// their final layout. The system provides their memory at once, on all cores.
    pub(crate) fn reserve_times(&mut self, times: f64) -> Result<()> {
        if self.segments.len() != 1 {
            return Ok(());
        }
        let growth = Growth { empty: 0, more: 0, expected: 0, is_small: false, is_alone: false, partitions: None };
        self.put(0, self.segments[0].grown(&growth)?);
        let first = &self.segments[0];
        let lines = with_groups!(&first.held, groups => groups.taken()) as f64 * times;
        let bytes = lines * first.bytes_a_line() as f64;
        while (self.segments.len() * segment::SPLIT_BYTES) as f64 * 1.5 < bytes {
            for number in 0..self.segments.len() {
                let halves = self.segments[number].halves(&growth)?;
                self.put_halves(number, halves);
            }
        }
        let each = (lines / self.segments.len() as f64) as usize;
        for number in 0..self.segments.len() {
            let segment = &self.segments[number];
            let more = each.saturating_sub(with_groups!(&segment.held, groups => groups.taken()));
            self.put(number, segment.grown(&Growth { more, ..growth })?);
        }
        self.measure_room();
        let provide =
            |(): &mut (), number: usize| with_groups!(&self.segments[number].held, groups => groups.provide());
        in_parallel(threads(), self.segments.len(), || (), provide);
        Ok(())
    }

    fn put_halves(&mut self, number: usize, [low, high]: [Segment<L>; 2]) {
        if high.depth > self.depth {
            self.directory = self.directory.iter().flat_map(|&root| [root, root]).collect();
            self.depth = high.depth;
        }
        self.put(self.segments.len(), high);
        self.put(number, low);
    }

    /// Replaces a segment or appends one, and updates the directory: no pointer to the old segment may remain.
    fn put(&mut self, number: usize, segment: Segment<L>) {
        let free_bits = self.depth - segment.depth;
        let first = (segment.prefix << free_bits) as usize;
        self.directory[first..first + (1 << free_bits)].fill(Root::new(number, &segment));
        (self.version, self.has_single) = (next_version(), self.has_single || segment.is_single());
        if number < self.segments.len() {
            self.segments[number] = segment;
        } else {
            self.segments.push(segment);
        }
    }

    fn measure_room(&mut self) {
        self.room = self.segments.iter().map(Segment::room).min().unwrap_or(0);
        self.has_single = self.segments.iter().any(Segment::is_single);
    }

    /// Number of segments.
    pub(crate) fn segments(&self) -> usize {
        self.segments.len()
    }

    /// Clears the slots of a segment for which `keep` returns false. Their lines stay until [`Lines::shrink`].
    pub(crate) fn retain(&mut self, segment: usize, mut keep: impl FnMut(EntryKey, L::Slot) -> bool) {
        with_groups!(&mut self.segments[segment].held, groups => groups.retain(&mut keep));
    }

    /// Removes the lines of empty slots, segment by segment. If there is no memory for this, the lines stay.
    pub(crate) fn shrink(&mut self) {
        let growth = Growth { is_alone: false, ..self.growth(0, 0) };
        for number in 0..self.segments.len() {
            if let Ok(Some(smaller)) = self.segments[number].without_empty_lines(&growth) {
                self.put(number, smaller);
            }
        }
        self.measure_room();
    }
}

/// Functions for entries that rows are judged by.
impl<L: RowLine> Lines<L> {
    /// Judges a span of a searched key if its slot alone can decide. If the key is new and may begin anywhere, a line
    /// is added.
    #[inline(always)]
    pub(crate) fn judge_fast(
        &mut self,
        key: (i64, i32),
        span: Span,
        rules: &PlainRules,
        searches: &Searches,
        index: usize,
    ) -> FastOutcome {
        match self.near(searches, index, key) {
            Some(Near::Dense(line)) => judge_in_line(line, key.1, span, rules),
            Some(Near::Single(line)) => judge_in_line(line, key.1, span, rules),
            None => {
                // Fields are passed one by one: a span whose address is taken would be written to memory for every row.
                let Span { epoch, seq, rows, newest, is_old } = span;
                self.judge_elsewhere(key, epoch, seq, rows, newest, is_old, rules)
            }
        }
    }

    /// Like `judge_fast`, for a line that was not found at the expected place.
    #[inline(never)]
    #[expect(clippy::too_many_arguments, reason = "a span taken apart, see judge_fast")]
    fn judge_elsewhere(
        &mut self,
        (pid, partition): (i64, i32),
        epoch: i16,
        seq: i64,
        rows: i64,
        newest: i64,
        is_old: bool,
        rules: &PlainRules,
    ) -> FastOutcome {
        if pid == -1 {
            return FastOutcome::Unclear;
        }
        let (span, hash) = (Span { epoch, seq, rows, newest, is_old }, block_hash(pid, partition));
        let segment = self.segment_of(hash) as usize;
        let (outcome, room) = match &mut self.segments[segment].held {
            Held::Dense(groups) => (judge_in(groups, (pid, partition), hash, span, rules), groups.room()),
            Held::Single(groups) => (judge_in(groups, (pid, partition), hash, span, rules), groups.room()),
        };
        self.room = self.room.min(room);
        outcome
    }

    /// Stores an entry in the line of the previous entry, if it belongs there and fits.
    #[inline(always)]
    pub(crate) fn write_beside(&mut self, before: LinePlace, key: EntryKey, entry: PlainEntry) -> bool {
        with_groups!(&mut self.segments[before.segment as usize].held, groups => {
            groups.line_of(before.line as usize, key).is_some_and(|(line, slot)| line.write(slot, &Slot::Inline(entry)))
        })
    }

    /// Stores the content of a slot. Returns false and changes nothing if it does not fit.
    #[inline]
    pub(crate) fn write(&mut self, place: Place, held: &Slot) -> bool {
        with_groups!(&mut self.segments[place.segment as usize].held, groups => {
            groups.line_mut(place.line as usize).write(place.slot as usize, held)
        })
    }
}

/// Functions for lines with one entry, whose two layouts are equal.
impl<L: Line<OtherLayout = L>> Lines<L> {
    /// The line of a searched key, if there is one.
    #[inline(always)]
    pub(crate) fn find_searched(&mut self, searches: &Searches, index: usize, key: (i64, i32)) -> Option<&mut L> {
        if self.read_near(searches, index, key).is_none() {
            return self.find(EntryKey::newest(key.0, key.1)).map(|place| self.line_at(place));
        }
        match self.near(searches, index, key)? {
            Near::Dense(line) | Near::Single(line) => Some(line),
        }
    }

    /// The line of an entry, which is added if there is none. Memory must be reserved.
    pub(crate) fn add(&mut self, key: EntryKey) -> &mut L {
        let place = self.find_or_insert(key);
        self.line_at(place)
    }

    /// The line at a place.
    pub(crate) fn line_at(&mut self, Place { segment, line, .. }: Place) -> &mut L {
        with_groups!(&mut self.segments[segment as usize].held, groups => groups.line_mut(line as usize))
    }
}

/// Judges a span by the slot of its partition, and stores the result.
#[inline(always)]
fn judge_in_line<L: RowLine>(line: &mut L, partition: i32, span: Span, rules: &PlainRules) -> FastOutcome {
    let slot = EntryKey::newest(0, partition).slot::<L>();
    let (outcome, entry) = fast_path::judge(rules, line.read(slot), span);
    match outcome {
        FastOutcome::Continued | FastOutcome::Begun if !line.write(slot, &Slot::Inline(entry)) => FastOutcome::Unclear,
        _ => outcome,
    }
}

fn judge_in<L: RowLine>(
    groups: &mut Groups<L>,
    (pid, partition): (i64, i32),
    block_hash: u64,
    span: Span,
    rules: &PlainRules,
) -> FastOutcome {
    match groups.find_newest(pid, partition, block_hash) {
        Some(line) => judge_in_line(line, partition, span, rules),
        None if !rules.begins_anywhere => FastOutcome::Unclear,
        None => judge_in_line(groups.insert_newest(pid, partition, block_hash), partition, span, rules),
    }
}

/// A line of either layout. A function that visits its slots would not be inlined: saving took a third longer.
pub(crate) enum EitherLine<'a, L: Line> {
    Dense(&'a L),
    Single(&'a L::OtherLayout),
}

impl<L: Line> EitherLine<'_, L> {
    /// Number of slots.
    #[inline(always)]
    pub(crate) fn slots(&self) -> usize {
        match self {
            EitherLine::Dense(_) => L::SLOTS,
            EitherLine::Single(_) => L::OtherLayout::SLOTS,
        }
    }

    /// The key and the content of a slot.
    #[inline(always)]
    pub(crate) fn read(&self, slot: usize) -> (EntryKey, L::Slot) {
        match self {
            EitherLine::Dense(line) => (EntryKey::at(*line, slot), line.read(slot)),
            EitherLine::Single(line) => (EntryKey::at(*line, slot), line.read(slot)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: EntryKey, last: i64) -> PlainEntry {
        PlainEntry { epoch: key.older.unwrap_or(0), first: last, last, last_timestamp: 0 }
    }

    /// Fills a table with entries in an order other than that of their keys.
    fn fill<L: RowLine>(count: i64, partitions: Option<Partitions>, key: impl Fn(i64) -> EntryKey) -> Lines<L> {
        let mut lines = Lines::new(partitions);
        for number in 0..count {
            let number = number * 7919 % count;
            lines.reserve(1).expect("memory");
            let place = lines.find_or_insert(key(number));
            assert!(lines.write(place, &Slot::Inline(entry(key(number), number))));
        }
        lines
    }

    fn check<L: RowLine>(count: i64, key: impl Fn(i64) -> EntryKey) {
        check_declared::<L>(count, None, key);
    }

    fn check_declared<L: RowLine>(count: i64, partitions: Option<Partitions>, key: impl Fn(i64) -> EntryKey) {
        let mut lines = fill::<L>(count, partitions, &key);
        let held = |lines: &Lines<L>, number| lines.find(key(number)).map(|place| lines.read(place));
        for number in 0..count {
            assert_eq!(held(&lines, number), Some(Slot::Inline(entry(key(number), number))));
        }
        assert!((count..2 * count).all(|number| held(&lines, number).is_none_or(|held| held == Slot::Empty)));
        let mut hashes = Vec::new();
        lines.ordered().for_each(|segment| {
            let mut of_segment = Vec::new();
            segment.for_each(&mut |key, _| of_segment.push(key.block_hash()));
            hashes.push((*of_segment.iter().min().expect("entries"), *of_segment.iter().max().expect("entries")));
        });
        assert!(hashes.is_sorted_by(|before, after| before.1 < after.0));
        let before = lines.memory_bytes();
        for number in (0..count).filter(|number| number % 30 < 24) {
            lines.clear(lines.find(key(number)).expect("it was found before"));
        }
        lines.shrink();
        assert!(lines.memory_bytes() < before * 2 / 3);
        let mut left = 0;
        lines.for_each(|_, _| left += 1);
        assert_eq!(left, (0..count).filter(|number| number % 30 >= 24).count());
        assert!((0..count).filter(|number| number % 30 >= 24).all(|number| held(&lines, number).is_some()));
    }

    #[test]
    fn every_entry_is_found_again_after_growth_and_shrinking() {
        let many = |number: i64| EntryKey::newest(number / 1000, (number % 1000) as i32);
        check::<RangeLine>(900_000, many);
        check::<NextLine>(900_000, many);
        check::<WideLine>(900_000, many);
        let single = |number: i64| EntryKey::newest(number, i32::MAX - 5);
        check::<RangeLine>(300_000, single);
        check::<NextLine>(300_000, single);
        check::<WideLine>(300_000, single);
        check::<RangeLine>(300_000, |number| EntryKey::older(number / 3, 7, (number % 3) as i16));
    }

    #[test]
    fn a_declared_layout_stays_while_the_table_grows() {
        let many = |number: i64| EntryKey::newest(number / 1000, (number % 1000) as i32);
        let single = |number: i64| EntryKey::newest(number, 5);
        for (partitions, is_single) in [(Partitions::One, true), (Partitions::Many, false)] {
            for lines in [
                fill::<RangeLine>(400_000, Some(partitions), many),
                fill::<RangeLine>(400_000, Some(partitions), single),
            ] {
                assert!(lines.segments.len() > 1);
                assert!(lines.segments.iter().all(|segment| segment.is_single() == is_single));
            }
            check_declared::<RangeLine>(100_000, Some(partitions), many);
            check_declared::<NextLine>(100_000, Some(partitions), single);
            check_declared::<RangeLine>(100_000, Some(partitions), |it| EntryKey::older(it / 3, 7, (it % 3) as i16));
        }
    }

    #[test]
    fn keys_of_any_pattern_spread_evenly() {
        let patterns: [fn(i64) -> EntryKey; 6] = [
            |number| EntryKey::newest(number, 0),
            |number| EntryKey::newest(number << 24, 0),
            |number| EntryKey::newest(number << 40 | 7, 1 << 20),
            |number| EntryKey::newest(3, (number * 8) as i32),
            |number| EntryKey::newest(number / 1000, (number % 1000 * 24) as i32),
            |number| EntryKey::older(5, number as i32 % 8, (number / 8 % 30_000) as i16),
        ];
        for (pattern, key) in patterns.into_iter().enumerate() {
            let lines = fill::<NextLine>(30_000, None, key);
            let (mut elsewhere, mut all) = (0, 0);
            for segment in &lines.segments {
                let Held::Dense(groups) = &segment.held else { panic!("a small table has lines of several entries") };
                elsewhere += groups.lines_elsewhere();
                all += groups.taken();
            }
            assert!(elsewhere * 25 < all, "pattern {pattern}: {elsewhere} of {all} lines lie behind their group");
        }
    }

    #[test]
    fn each_segment_has_the_layout_that_takes_less() {
        let bytes = |lines: &Lines<NextLine>, entries: i64| lines.memory_bytes() as i64 / entries;
        let dense = fill::<NextLine>(900_000, None, |number| EntryKey::newest(number / 1000, (number % 1000) as i32));
        assert!(bytes(&dense, 900_000) < 13 && dense.segments.iter().all(|it| matches!(it.held, Held::Dense(_))));
        let single = fill::<NextLine>(900_000, None, |number| EntryKey::newest(number, 7));
        assert!(bytes(&single, 900_000) < 32 && single.segments.iter().all(|it| matches!(it.held, Held::Single(_))));
    }

    /// Tables are loaded in the order of block hashes. If lines were stored in this order too, a segment would be full
    /// at its beginning and empty at its end until the last entries come, and every search would scan all of it.
    #[test]
    fn lines_are_not_in_the_order_of_block_hashes() {
        let mut groups = [0; 64];
        for key in (0..2_000_000).map(|pid| EntryKey::newest(pid, 0)).filter(|key| key.block_hash() >> 58 == 7) {
            groups[(key.line::<RangeLine>().hash(key.block_hash()) >> 58) as usize] += 1;
        }
        let mean = groups.iter().sum::<u32>() / 64;
        assert!(mean > 400 && groups.iter().all(|count| (mean / 2..mean * 2).contains(count)), "{groups:?}");
    }

    #[test]
    fn blocks_that_cannot_be_divided_grow_in_one_segment() {
        let key = |number: i64| EntryKey::older(1, (number % 24) as i32, (number / 24) as i16);
        let lines = fill::<RangeLine>(24 * i64::from(i16::MAX), None, key);
        assert!(lines.find(key(77)).is_some() && lines.directory.len() < 1 << 16);
    }
}

//! The hash table: dense cache lines, found by one-byte tags.
//!
//! A line holds the entries of one producer for a few neighbouring partitions, so the producer is
//! stored once and not once an entry. What a slot cannot hold inline (holes, positions beyond its
//! width) is kept aside, and the slot holds its number.
//!
//! ```text
//! tags   |t t t t t t t t t t t t t t t t|t t t ...      one byte a line, a group of 16 compared at once
//! lines  |64 B|64 B|64 B| ...                            line i belongs to tag i
//!
//! SpanLine, 5 entries          NextLine, 8 entries          WideLine, 3 entries
//!   pid    8                     pid    8                     pid    8
//!   group  4                     group  4                     group  4
//!   marks  2                     marks  4 (4 bits each)       marks  2
//!   epoch  5 × 2                 epoch  8 × 2                 epoch  3 × 2
//!   first  5 × 4                 last   8 × 4                 last   3 × 8
//!   last   5 × 4                                              count  3 × 6
//! ```
//!
//! One 64-byte line is one miss. Linear probing over lines without tags was 3 to 4 times slower at
//! 100 M entries, because its second probe is a miss that nothing prefetched.

use crate::judge::{PlainRules, Run, Span};
use std::mem::{align_of, size_of};

/// Lines whose tags are compared at once.
const GROUP: usize = 16;
/// Of 16 lines, how many may be taken before the table grows.
const GROUP_LOAD_MAX: usize = 13;

/// Marks the lines that hold the entries of an epoch below a key's highest.
const OLDER: u32 = 1 << 31;

/// What names a line: a producer, a group of partitions, and for entries of epochs below their key's
/// highest also the epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LineKey {
    pub(crate) pid: i64,
    group: u32,
    epoch: i16,
}

impl LineKey {
    /// The line that holds a key's entry (of its highest epoch).
    #[inline]
    pub(crate) fn newest<L: Line>(pid: i64, partition: i32) -> LineKey {
        LineKey { pid, group: partition as u32 / L::SLOTS as u32, epoch: 0 }
    }

    /// The line that holds a key's entry of an epoch below its highest.
    pub(crate) fn older<L: Line>(pid: i64, partition: i32, epoch: i16) -> LineKey {
        LineKey { pid, group: (partition as u32 / L::SLOTS as u32) | OLDER, epoch }
    }

    /// Multiply and fold, twice: high bits choose the group, low bits the tag.
    #[inline]
    pub(crate) fn hash(self) -> u64 {
        let group = u64::from(self.group) << 16 | u64::from(self.epoch as u16);
        fold(self.pid as u64 ^ 0x9e37_79b9_7f4a_7c15, fold(group ^ 0xd6e8_feb8_6659_fd93, 0xa076_1d64_78bd_642f))
    }
}

/// The two halves of a 128-bit product, one laid over the other: every bit of either factor reaches every bit.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product >> 64) as u64 ^ product as u64
}

/// The slot of a partition in its line.
#[inline]
pub(crate) fn slot_of<L: Line>(partition: i32) -> usize {
    partition as usize % L::SLOTS
}

/// What a slot holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// No entry.
    Empty,
    /// An entry without holes.
    Inline(Span),
    /// The number of an entry that is kept aside.
    Aside(u32),
}

/// 64 bytes that hold the entries of one producer for `SLOTS` partitions.
pub(crate) trait Line: Copy {
    const SLOTS: usize;
    /// Whether entries have timestamps.
    const IS_TIMED: bool = false;

    fn empty(key: LineKey) -> Self;
    fn pid(&self) -> i64;
    fn group(&self) -> u32;
    fn epoch(&self, slot: usize) -> i16;
    fn read(&self, slot: usize) -> Slot;
    /// Stores an entry where it fits; false, and nothing changed, where it does not.
    fn write_inline(&mut self, slot: usize, span: &Span) -> bool;
    fn write_aside(&mut self, slot: usize, epoch: i16, number: u32);
    fn is_empty_at(&self, slot: usize) -> bool;

    /// Judges the run where that is plain to see from the slot alone: it goes on where the entry
    /// stands, repeats what the entry covers, or begins an entry in an empty slot. Anything else is
    /// left to the judge, and nothing changed. Most rows end here, in the line just fetched.
    fn judge_plainly(&mut self, slot: usize, run: Run, rules: &PlainRules) -> Plainly;

    /// Whether its entries are of epochs below their keys' highest.
    fn is_older(&self) -> bool {
        self.group() & OLDER != 0
    }

    /// The first partition of its group.
    fn partitions_from(&self) -> u32 {
        (self.group() & !OLDER) * Self::SLOTS as u32
    }

    #[inline]
    fn is(&self, key: LineKey) -> bool {
        self.pid() == key.pid && self.group() == key.group && (key.group & OLDER == 0 || self.epoch(0) == key.epoch)
    }
}

/// What a slot alone could say of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plainly {
    /// Every row is accepted, the entry was there.
    WentOn,
    /// Every row is a duplicate.
    Repeated,
    /// Every row is accepted, the entry is new.
    Begun,
    /// Nothing.
    Unclear,
}

const EMPTY: u16 = 0;
const INLINE: u16 = 1;
const ASIDE: u16 = 2;

/// Two bits a slot.
#[inline]
fn mark(marks: u16, slot: usize) -> u16 {
    marks >> (2 * slot) & 3
}

#[inline]
fn with_mark(marks: u16, slot: usize, mark: u16) -> u16 {
    marks & !(3 << (2 * slot)) | mark << (2 * slot)
}

/// First and last position in 32 bits each.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct SpanLine {
    pid: i64,
    group: u32,
    marks: u16,
    epoch: [i16; 5],
    first: [u32; 5],
    last: [u32; 5],
}

impl Line for SpanLine {
    const SLOTS: usize = 5;

    fn empty(key: LineKey) -> Self {
        SpanLine { pid: key.pid, group: key.group, marks: 0, epoch: [key.epoch; 5], first: [0; 5], last: [0; 5] }
    }

    #[inline]
    fn pid(&self) -> i64 {
        self.pid
    }

    #[inline]
    fn group(&self) -> u32 {
        self.group
    }

    #[inline]
    fn epoch(&self, slot: usize) -> i16 {
        self.epoch[slot]
    }

    fn read(&self, slot: usize) -> Slot {
        match mark(self.marks, slot) {
            EMPTY => Slot::Empty,
            INLINE => Slot::Inline(Span {
                epoch: self.epoch[slot],
                first: i64::from(self.first[slot]),
                last: i64::from(self.last[slot]),
                ..Span::default()
            }),
            _ => Slot::Aside(self.first[slot]),
        }
    }

    fn write_inline(&mut self, slot: usize, span: &Span) -> bool {
        let (Ok(first), Ok(last)) = (u32::try_from(span.first), u32::try_from(span.last)) else {
            return false;
        };
        if !span.is_plain() {
            return false;
        }
        self.marks = with_mark(self.marks, slot, INLINE);
        (self.epoch[slot], self.first[slot], self.last[slot]) = (span.epoch, first, last);
        true
    }

    fn write_aside(&mut self, slot: usize, epoch: i16, number: u32) {
        self.marks = with_mark(self.marks, slot, ASIDE);
        (self.epoch[slot], self.first[slot]) = (epoch, number);
    }

    #[inline]
    fn is_empty_at(&self, slot: usize) -> bool {
        mark(self.marks, slot) == EMPTY
    }

    #[inline]
    fn judge_plainly(&mut self, slot: usize, run: Run, rules: &PlainRules) -> Plainly {
        let last_seq = run.last_seq();
        if last_seq > i64::from(u32::MAX) {
            return Plainly::Unclear;
        }
        match mark(self.marks, slot) {
            INLINE if self.epoch[slot] == run.epoch => {
                let (first, last) = (i64::from(self.first[slot]), i64::from(self.last[slot]));
                if run.seq == last + 1 {
                    (self.first[slot], self.last[slot]) = (rules.first_of(first, last_seq) as u32, last_seq as u32);
                    Plainly::WentOn
                } else if run.seq >= first && last_seq <= last && last < rules.plain_below {
                    Plainly::Repeated
                } else {
                    Plainly::Unclear
                }
            }
            EMPTY if rules.begins_anywhere => {
                self.marks = with_mark(self.marks, slot, INLINE);
                let first = rules.first_of(run.seq, last_seq);
                (self.epoch[slot], self.first[slot], self.last[slot]) = (run.epoch, first as u32, last_seq as u32);
                Plainly::Begun
            }
            _ => Plainly::Unclear,
        }
    }
}

/// The last position in 32 bits, and how many rows the window remembers in four.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct NextLine {
    pid: i64,
    group: u32,
    marks: u32,
    epoch: [i16; 8],
    last: [u32; 8],
}

impl NextLine {
    /// Rows that four bits can count, beside the marks for an empty slot and an entry kept aside.
    pub(crate) const WINDOW_MAX: u64 = 14;
    const ASIDE: u32 = 15;

    #[inline]
    fn mark(&self, slot: usize) -> u32 {
        self.marks >> (4 * slot) & 15
    }

    #[inline]
    fn set_mark(&mut self, slot: usize, mark: u32) {
        self.marks = self.marks & !(15 << (4 * slot)) | mark << (4 * slot);
    }
}

impl Line for NextLine {
    const SLOTS: usize = 8;

    fn empty(key: LineKey) -> Self {
        NextLine { pid: key.pid, group: key.group, marks: 0, epoch: [key.epoch; 8], last: [0; 8] }
    }

    #[inline]
    fn pid(&self) -> i64 {
        self.pid
    }

    #[inline]
    fn group(&self) -> u32 {
        self.group
    }

    #[inline]
    fn epoch(&self, slot: usize) -> i16 {
        self.epoch[slot]
    }

    fn read(&self, slot: usize) -> Slot {
        match self.mark(slot) {
            0 => Slot::Empty,
            Self::ASIDE => Slot::Aside(self.last[slot]),
            rows => {
                let last = i64::from(self.last[slot]);
                Slot::Inline(Span {
                    epoch: self.epoch[slot],
                    first: last - (i64::from(rows) - 1),
                    last,
                    ..Span::default()
                })
            }
        }
    }

    fn write_inline(&mut self, slot: usize, span: &Span) -> bool {
        let (Ok(last), Ok(rows)) = (u32::try_from(span.last), u64::try_from(span.last - span.first + 1)) else {
            return false;
        };
        if !span.is_plain() || !(1..=Self::WINDOW_MAX).contains(&rows) {
            return false;
        }
        self.set_mark(slot, rows as u32);
        (self.epoch[slot], self.last[slot]) = (span.epoch, last);
        true
    }

    fn write_aside(&mut self, slot: usize, epoch: i16, number: u32) {
        self.set_mark(slot, Self::ASIDE);
        (self.epoch[slot], self.last[slot]) = (epoch, number);
    }

    #[inline]
    fn is_empty_at(&self, slot: usize) -> bool {
        self.mark(slot) == 0
    }

    #[inline]
    fn judge_plainly(&mut self, slot: usize, run: Run, rules: &PlainRules) -> Plainly {
        let (remembered, last_seq) = (self.mark(slot), run.last_seq());
        if remembered == Self::ASIDE || last_seq > i64::from(u32::MAX) {
            return Plainly::Unclear;
        }
        let last = i64::from(self.last[slot]);
        let plainly = if remembered == 0 {
            if rules.begins_anywhere { Plainly::Begun } else { Plainly::Unclear }
        } else if self.epoch[slot] != run.epoch {
            Plainly::Unclear
        } else if run.seq == last + 1 {
            Plainly::WentOn
        } else if last_seq <= last && last - run.seq < i64::from(remembered) {
            Plainly::Repeated
        } else {
            Plainly::Unclear
        };
        if matches!(plainly, Plainly::WentOn | Plainly::Begun) {
            self.last[slot] = last_seq as u32;
            self.epoch[slot] = run.epoch;
            self.set_mark(slot, (i64::from(remembered) + run.rows).min(rules.remembered_max) as u32);
        }
        plainly
    }
}

/// The last position in 64 bits, and how far back the first one lies in 48.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct WideLine {
    pid: i64,
    last: [i64; 3],
    reach_low: [u32; 3],
    group: u32,
    reach_high: [u16; 3],
    epoch: [i16; 3],
    marks: u16,
}

impl WideLine {
    const REACH_BITS: u32 = 48;
}

impl Line for WideLine {
    const SLOTS: usize = 3;

    fn empty(key: LineKey) -> Self {
        WideLine {
            pid: key.pid,
            last: [0; 3],
            reach_low: [0; 3],
            group: key.group,
            reach_high: [0; 3],
            epoch: [key.epoch; 3],
            marks: 0,
        }
    }

    #[inline]
    fn pid(&self) -> i64 {
        self.pid
    }

    #[inline]
    fn group(&self) -> u32 {
        self.group
    }

    #[inline]
    fn epoch(&self, slot: usize) -> i16 {
        self.epoch[slot]
    }

    fn read(&self, slot: usize) -> Slot {
        match mark(self.marks, slot) {
            EMPTY => Slot::Empty,
            INLINE => {
                let reach = u64::from(self.reach_high[slot]) << 32 | u64::from(self.reach_low[slot]);
                let last = self.last[slot];
                Slot::Inline(Span { epoch: self.epoch[slot], first: last - reach as i64, last, ..Span::default() })
            }
            _ => Slot::Aside(self.reach_low[slot]),
        }
    }

    fn write_inline(&mut self, slot: usize, span: &Span) -> bool {
        let reach = span.last.wrapping_sub(span.first) as u64;
        if reach >> Self::REACH_BITS != 0 || !span.is_plain() {
            return false;
        }
        self.marks = with_mark(self.marks, slot, INLINE);
        self.last[slot] = span.last;
        (self.reach_low[slot], self.reach_high[slot]) = (reach as u32, (reach >> 32) as u16);
        self.epoch[slot] = span.epoch;
        true
    }

    fn write_aside(&mut self, slot: usize, epoch: i16, number: u32) {
        self.marks = with_mark(self.marks, slot, ASIDE);
        (self.epoch[slot], self.reach_low[slot]) = (epoch, number);
    }

    #[inline]
    fn is_empty_at(&self, slot: usize) -> bool {
        mark(self.marks, slot) == EMPTY
    }

    #[inline]
    fn judge_plainly(&mut self, slot: usize, run: Run, rules: &PlainRules) -> Plainly {
        let (last, last_seq) = (self.last[slot], run.last_seq());
        let reach = (u64::from(self.reach_high[slot]) << 32 | u64::from(self.reach_low[slot])) as i64;
        let (plainly, reach) = match mark(self.marks, slot) {
            INLINE if self.epoch[slot] == run.epoch => {
                if last.checked_add(1) == Some(run.seq) {
                    (Plainly::WentOn, reach + run.rows)
                } else if run.seq >= last - reach && last_seq <= last && last < rules.plain_below {
                    (Plainly::Repeated, reach)
                } else {
                    (Plainly::Unclear, reach)
                }
            }
            EMPTY if rules.begins_anywhere => (Plainly::Begun, run.rows - 1),
            _ => (Plainly::Unclear, reach),
        };
        if matches!(plainly, Plainly::WentOn | Plainly::Begun) {
            let reach = reach.min(rules.remembered_max - 1);
            if reach >> Self::REACH_BITS != 0 {
                return Plainly::Unclear;
            }
            self.marks = with_mark(self.marks, slot, INLINE);
            self.last[slot] = last_seq;
            self.epoch[slot] = run.epoch;
            (self.reach_low[slot], self.reach_high[slot]) = (reach as u32, (reach >> 32) as u16);
        }
        plainly
    }
}

const _: () = {
    assert!(size_of::<SpanLine>() == 64 && align_of::<SpanLine>() == 64);
    assert!(size_of::<NextLine>() == 64 && align_of::<NextLine>() == 64);
    assert!(size_of::<WideLine>() == 64 && align_of::<WideLine>() == 64);
};

/// The tags of 16 lines. 0: no line; else 0x80 and seven bits of the hash.
type Group = [u8; GROUP];

/// A hash table of lines. It only grows; a line once made stays until the table is dropped.
pub(crate) struct Lines<L> {
    groups: Vec<Group>,
    lines: Buffer<L>,
    taken: usize,
}

impl<L: Line> Lines<L> {
    pub(crate) fn new() -> Lines<L> {
        Self::with_groups(1)
    }

    fn with_groups(groups: usize) -> Lines<L> {
        Lines { groups: vec![[0; GROUP]; groups], lines: Buffer::new(groups * GROUP), taken: 0 }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.groups.len() * GROUP * (1 + size_of::<L>())
    }

    /// How many lines there are.
    pub(crate) fn len(&self) -> usize {
        self.taken
    }

    /// Every line, in no meaningful order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &L> {
        self.iter_numbered().map(|(_, line)| line)
    }

    /// Every line with its number, in no meaningful order.
    pub(crate) fn iter_numbered(&self) -> impl Iterator<Item = (usize, &L)> {
        (0..self.groups.len() * GROUP).filter(|&index| self.is_taken(index)).map(|index| (index, self.line(index)))
    }

    #[inline]
    fn is_taken(&self, index: usize) -> bool {
        self.groups[index / GROUP][index % GROUP] != 0
    }

    #[inline]
    pub(crate) fn line(&self, index: usize) -> &L {
        assert!(self.is_taken(index));
        // SAFETY: a line whose tag is set was written by `insert_line`, and `lines` has 16 lines a group.
        // Leaving lines uninitialised saves touching 64 bytes for every free line on growth.
        unsafe { self.lines.line(index).assume_init_ref() }
    }

    #[inline]
    pub(crate) fn line_mut(&mut self, index: usize) -> &mut L {
        assert!(self.is_taken(index));
        // SAFETY: as in `line`.
        unsafe { self.lines.line_mut(index).assume_init_mut() }
    }

    /// The group where a search for this hash begins.
    #[inline]
    pub(crate) fn group_of(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.groups.len() as u128) >> 64) as usize
    }

    /// Asks for the tags that a search reads first.
    #[inline]
    pub(crate) fn prefetch_tags(&self, group: usize) {
        prefetch(self.groups.as_ptr().wrapping_add(group));
    }

    /// Asks for a line by its number.
    #[inline]
    pub(crate) fn prefetch(&self, index: usize) {
        prefetch(self.lines.address(index));
    }

    /// Asks for the line that [`Lines::insert`] will most likely write for this hash.
    #[inline]
    pub(crate) fn prefetch_free(&self, hash: u64) {
        let group = self.group_of(hash);
        let free = equal_tags(&self.groups[group], 0);
        self.prefetch(group * GROUP + (free.trailing_zeros() as usize & (GROUP - 1)));
    }

    /// Asks for the lines that a search is most likely to look at and gives the number of the first.
    ///
    /// Seven bits of hash let one search in 20 to 30 meet another key's line first, and where a group is
    /// full the search goes on in the next: a line that was not asked for is a miss that is waited for.
    #[inline]
    pub(crate) fn prefetch_line(&self, group: usize, hash: u64) -> usize {
        let mut group = group;
        let mut matches = equal_tags(&self.groups[group], tag_of(hash));
        if matches == 0 && equal_tags(&self.groups[group], 0) == 0 {
            group = self.group_after(group);
            matches = equal_tags(&self.groups[group], tag_of(hash));
        }
        let line_of = |matches: u32| group * GROUP + (matches.trailing_zeros() as usize & (GROUP - 1));
        prefetch(self.lines.address(line_of(matches)));
        let second = matches & matches.wrapping_sub(1);
        if second != 0 {
            prefetch(self.lines.address(line_of(second)));
        }
        line_of(matches)
    }

    /// The line of a key, looked for where `prefetch_line` said and then everywhere.
    #[inline(always)]
    pub(crate) fn find_near(&mut self, index: usize, key: LineKey, hash: u64) -> Option<&mut L> {
        let is_here = self.is_taken(index) && self.line(index).is(key);
        let index = if is_here { index } else { self.find(key, hash)? };
        // SAFETY: either way the line was just read, so its tag is set; see `line`. Checking it a second
        // time costs 7 of some 200 instructions a row.
        Some(unsafe { self.lines.line_mut(index).assume_init_mut() })
    }

    pub(crate) fn find(&self, key: LineKey, hash: u64) -> Option<usize> {
        let mut group = self.group_of(hash);
        for _ in 0..self.groups.len() {
            let tags = &self.groups[group];
            let mut matches = equal_tags(tags, tag_of(hash));
            while matches != 0 {
                let index = group * GROUP + matches.trailing_zeros() as usize;
                if self.line(index).is(key) {
                    return Some(index);
                }
                matches &= matches - 1;
            }
            if equal_tags(tags, 0) != 0 {
                return None;
            }
            group = self.group_after(group);
        }
        unreachable!("a table with a free line ends every search")
    }

    #[inline]
    fn group_after(&self, group: usize) -> usize {
        if group + 1 == self.groups.len() { 0 } else { group + 1 }
    }

    /// Makes room for `more` lines, so that as many [`Lines::insert`] move nothing.
    #[inline]
    pub(crate) fn reserve(&mut self, more: usize) {
        if self.taken + more > self.groups.len() * GROUP_LOAD_MAX {
            self.grow(more);
        }
    }

    #[cold]
    fn grow(&mut self, more: usize) {
        let groups_needed = (self.taken + more).div_ceil(GROUP_LOAD_MAX) + 1;
        // Doubling builds a million entries in 16 % less time; above 64 MB it is the memory that counts.
        let now = self.groups.len();
        let wanted = if now < 1 << 16 { now * 2 } else { now / 2 * 3 };
        let mut grown = Lines::with_groups(groups_needed.max(wanted));
        for line in self.iter() {
            let epoch = if line.is_older() { line.epoch(0) } else { 0 };
            let key = LineKey { pid: line.pid(), group: line.group(), epoch };
            grown.insert_line(key.hash(), *line);
        }
        *self = grown;
    }

    /// Adds an empty line for a key that has none. Call [`Lines::reserve`] first.
    pub(crate) fn insert(&mut self, key: LineKey, hash: u64) -> usize {
        self.insert_line(hash, L::empty(key))
    }

    fn insert_line(&mut self, hash: u64, line: L) -> usize {
        assert!(self.taken < self.groups.len() * GROUP_LOAD_MAX, "room was reserved");
        let mut group = self.group_of(hash);
        loop {
            let free = equal_tags(&self.groups[group], 0);
            if free != 0 {
                let index = group * GROUP + free.trailing_zeros() as usize;
                // SAFETY: `lines` has 16 lines a group.
                unsafe { self.lines.line_mut(index) }.write(line);
                self.groups[group][index % GROUP] = tag_of(hash);
                self.taken += 1;
                return index;
            }
            group = self.group_after(group);
        }
    }
}

#[inline]
fn tag_of(hash: u64) -> u8 {
    hash as u8 | 0x80
}

/// One bit for each of 16 tags that equals `tag`. Written so that it becomes one vector compare.
#[inline]
fn equal_tags(tags: &Group, tag: u8) -> u32 {
    #[cfg(all(target_arch = "x86_64", not(feature = "portable")))]
    {
        use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi8};
        // SAFETY: SSE2 is part of every x86-64, the load is unaligned and reads the array's 16 bytes.
        // A loop over the bytes takes 3 to 4 ns a look-up more.
        unsafe {
            let group = _mm_loadu_si128(tags.as_ptr().cast());
            _mm_movemask_epi8(_mm_cmpeq_epi8(group, _mm_set1_epi8(tag as i8))) as u32
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(feature = "portable"))))]
    {
        equal_tags_portable(tags, tag)
    }
}

#[cfg(any(test, feature = "portable", not(target_arch = "x86_64")))]
fn equal_tags_portable(tags: &Group, tag: u8) -> u32 {
    tags.iter().enumerate().fold(0, |found, (index, &other)| found | u32::from(other == tag) << index)
}

/// Asks the processor to fetch a cache line. Never faults, whatever the address.
#[inline]
fn prefetch<T>(address: *const T) {
    #[cfg(all(target_arch = "x86_64", not(feature = "portable")))]
    // SAFETY: a prefetch is a hint; it reads nothing and cannot fault. It is the table's speed: at
    // 100 M entries a look-up waits 90 ns without and 13 to 20 ns with it.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(feature = "portable"))))]
    let _ = address;
}

use buffer::Buffer;

/// Uninitialised, cache-line aligned memory, in huge pages where the system gives them.
mod buffer {
    use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
    use std::mem::MaybeUninit;
    use std::ptr::NonNull;

    const HUGE_PAGE: usize = 2 << 20;

    pub(super) struct Buffer<L> {
        start: NonNull<MaybeUninit<L>>,
        count: usize,
    }

    // SAFETY: the buffer owns its memory and has no interior mutability, as a Vec.
    unsafe impl<L: Send> Send for Buffer<L> {}
    // SAFETY: as above.
    unsafe impl<L: Sync> Sync for Buffer<L> {}

    impl<L> Buffer<L> {
        pub(super) fn new(count: usize) -> Buffer<L> {
            let layout = Self::layout(count);
            assert!(layout.size() > 0);
            // SAFETY: the size is not zero. Huge pages take a random look-up in 100 M entries from 17
            // to 13 ns; a Vec gives neither them nor uninitialised lines.
            let Some(start) = NonNull::new(unsafe { alloc(layout) }) else { handle_alloc_error(layout) };
            advise_huge_pages(start, layout.size());
            Buffer { start: start.cast(), count }
        }

        fn layout(count: usize) -> Layout {
            let lines = Layout::array::<L>(count).expect("fewer bytes than the address space");
            if lines.size() < HUGE_PAGE { lines } else { lines.align_to(HUGE_PAGE).expect("a power of two") }
        }

        pub(super) fn address(&self, index: usize) -> *const MaybeUninit<L> {
            self.start.as_ptr().wrapping_add(index)
        }

        /// # Safety
        /// `index` is below the count that the buffer was made with.
        #[inline]
        pub(super) unsafe fn line(&self, index: usize) -> &MaybeUninit<L> {
            debug_assert!(index < self.count);
            // SAFETY: in bounds of the allocation, which lives as long as self; MaybeUninit needs no value.
            // The tag that the caller has looked at was in bounds, so a check here would be the second.
            unsafe { self.start.add(index).as_ref() }
        }

        /// # Safety
        /// As for `line`.
        #[inline]
        pub(super) unsafe fn line_mut(&mut self, index: usize) -> &mut MaybeUninit<L> {
            debug_assert!(index < self.count);
            // SAFETY: as in `line`, and self is borrowed mutably.
            unsafe { self.start.add(index).as_mut() }
        }
    }

    impl<L> Drop for Buffer<L> {
        fn drop(&mut self) {
            // SAFETY: allocated in `new` with this layout. Lines are Copy and need no drop.
            unsafe { dealloc(self.start.as_ptr().cast(), Self::layout(self.count)) }
        }
    }

    #[cfg(target_os = "linux")]
    fn advise_huge_pages(start: NonNull<u8>, bytes: usize) {
        if bytes >= HUGE_PAGE {
            // SAFETY: the range was just allocated and is aligned to a huge page; the advice changes
            // no content. An error means no huge pages, which is only slower.
            unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn advise_huge_pages(_start: NonNull<u8>, _bytes: usize) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_compare_the_same_with_and_without_vectors() {
        let tags = std::array::from_fn(|index| [0x80, 0x81, 0, 0xff][index * 7 % 4]);
        for tag in [0, 0x80, 0x81, 0x82, 0xff] {
            assert_eq!(equal_tags(&tags, tag), equal_tags_portable(&tags, tag));
        }
    }

    #[test]
    fn every_line_is_found_again_after_growth() {
        let mut lines = Lines::<SpanLine>::new();
        let key = |number: i64| LineKey::newest::<SpanLine>(number / 7, (number % 7 * 1000) as i32);
        for number in 0..10_000 {
            lines.reserve(1);
            lines.insert(key(number), key(number).hash());
        }
        assert!((0..10_000).all(|number| lines.find(key(number), key(number).hash()).is_some()));
        assert!((10_000..20_000).all(|number| lines.find(key(number), key(number).hash()).is_none()));
        assert_eq!(lines.iter().count(), 10_000);
    }

    #[test]
    fn a_slot_gives_back_what_it_took_or_refuses_it() {
        fn check<L: Line>(first: i64, last: i64, fits: bool) {
            let span = Span { epoch: 3, first, last, ..Span::default() };
            for slot in 0..L::SLOTS {
                let mut line = L::empty(LineKey::newest::<L>(1, 0));
                assert_eq!(line.write_inline(slot, &span), fits);
                assert_eq!(line.read(slot), if fits { Slot::Inline(span.clone()) } else { Slot::Empty });
                line.write_aside(slot, 9, 77);
                assert_eq!((line.read(slot), line.epoch(slot)), (Slot::Aside(77), 9));
            }
        }
        check::<SpanLine>(0, u32::MAX.into(), true);
        check::<SpanLine>(-1, 0, false);
        check::<SpanLine>(0, 1 << 32, false);
        check::<NextLine>(-13, 0, true);
        check::<NextLine>(0, 14, false);
        check::<WideLine>(1 << 62, (1 << 62) + (1 << 48) - 1, true);
        check::<WideLine>(-5, i64::MAX, false);
    }
}

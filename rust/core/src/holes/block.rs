//! The ranges of one region, in the form that takes the fewest bytes.

use super::Interval;
use super::array::{self, Item, Plain};
use super::bits::{Bits, FEW, Offsets, WORD_BITS};

/// Consecutive ranges in a [`Directory`](super::directory::Directory).
///
/// ```text
/// Plain   first last | first last | ...            one timestamp for all, 16 bytes per range
/// Timed   first last timestamp | ...               24 bytes per range
/// Bits    0000110101110000...                      one timestamp for all, 1 bit per position
/// ```
///
/// Up to 320 bits are stored in the block itself, so most entries need no other memory and no further cache miss. Holes
/// that are farther apart are an array. A full array becomes bits if these take no more bytes. Bits become an array
/// again if it takes less than half. The factor between the two prevents rows from converting back and forth.
#[derive(Clone, Debug)]
pub(super) struct Block {
    /// No range begins below the key, and no range of the previous block ends at it or above. Bits count from the key's
    /// word.
    key: i64,
    /// The timestamp of all ranges of `Plain` and `Bits`.
    timestamp: i64,
    body: Body,
}

#[derive(Clone, Debug)]
enum Body {
    Plain(Vec<Plain>),
    Timed(Vec<Interval>),
    Bits(Bits),
}

/// Maximum number of items. On average, an insertion or removal moves half of them: 512 bytes.
const ITEMS_MAX: usize = 64;

/// Maximum number of words: the bytes of a full array.
const WORDS_MAX: usize = 128;

/// Arrays with fewer items are not converted, because this saves little.
const PACKED_MIN: usize = 16;

impl Block {
    pub(super) fn new(range: Interval) -> Block {
        Block::of_few_bits(range).unwrap_or_else(|| {
            let body = Body::Plain(vec![Plain { first: range.first, last: range.last }]);
            Block { key: range.first, timestamp: range.timestamp, body }
        })
    }

    /// A range, if it fits into bits stored in the block itself.
    #[inline(always)]
    pub(super) fn of_few_bits(range: Interval) -> Option<Block> {
        if words_between(range.first, range.last) > FEW as u64 {
            return None;
        }
        let base = word_of(range.first);
        let bits = Bits::of_few((range.first.wrapping_sub(base) as usize, range.last.wrapping_sub(base) as usize));
        Some(Block { key: range.first, timestamp: range.timestamp, body: Body::Bits(bits) })
    }

    pub(super) fn key(&self) -> i64 {
        self.key
    }

    /// Number of ranges.
    pub(super) fn len(&self) -> usize {
        match &self.body {
            Body::Plain(items) => items.len(),
            Body::Timed(items) => items.len(),
            Body::Bits(bits) => bits.runs(),
        }
    }

    /// Whether the next range would enlarge the array, so that bits may be better.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        match &self.body {
            Body::Plain(items) => items.len() >= PACKED_MIN && items.len() >= items.capacity().min(ITEMS_MAX),
            Body::Timed(items) => items.len() > ITEMS_MAX,
            Body::Bits(_) => false,
        }
    }

    /// Whether the block must be split.
    pub(super) fn is_overfull(&self) -> bool {
        self.is_full() && self.len() > ITEMS_MAX
    }

    /// Whether [`Block::absorb`] can merge a neighbouring block into this one.
    pub(super) fn can_absorb(&self, other: &Block) -> bool {
        let (Body::Bits(_), Body::Bits(bits)) = (&self.body, &other.body) else { return false };
        let hull = other.hull().filter(|_| self.timestamp == other.timestamp);
        hull.is_some_and(|(first, last)| self.growth(first, last, bits.runs()).is_some())
    }

    #[cfg(test)]
    pub(super) fn form(&self) -> &'static str {
        match &self.body {
            Body::Plain(_) => "plain",
            Body::Timed(_) => "timed",
            Body::Bits(_) => "bits",
        }
    }

    /// Bytes of memory outside the struct.
    pub(super) fn memory_bytes(&self) -> usize {
        match &self.body {
            Body::Plain(items) => items.capacity() * size_of::<Plain>(),
            Body::Timed(items) => items.capacity() * size_of::<Interval>(),
            Body::Bits(bits) => bits.memory_bytes(),
        }
    }

    /// The range that contains a position.
    pub(super) fn containing(&self, position: i64) -> Option<Interval> {
        match &self.body {
            Body::Bits(bits) if position < self.base() => None,
            Body::Bits(bits) => bits.run_at(self.offset(position)).map(|run| self.range(run)),
            _ => self.at(self.cursor(position)).map(|(range, _)| range).filter(|range| range.first <= position),
        }
    }

    /// Whether a position is in a range. It must not be below the key.
    #[inline]
    pub(super) fn has(&self, position: i64) -> bool {
        match &self.body {
            Body::Plain(items) => array::has(items, position),
            Body::Timed(items) => array::has(items, position),
            Body::Bits(bits) => bits.has(self.offset(position)),
        }
    }

    /// Prefetches the memory that a search for a position reads first. `last`: the approximate end of the ranges.
    #[inline(always)]
    pub(super) fn prefetch(&self, position: i64, last: i64) {
        match &self.body {
            Body::Plain(items) => array::prefetch_item(items, (self.key, last), position),
            Body::Timed(items) => array::prefetch_item(items, (self.key, last), position),
            Body::Bits(bits) => bits.prefetch(self.offset(position)),
        }
    }

    /// The cursor at which [`Block::at`] returns the lowest range that does not end below a position.
    pub(super) fn cursor(&self, position: i64) -> usize {
        match &self.body {
            Body::Plain(items) => array::find(items, position),
            Body::Timed(items) => array::find(items, position),
            Body::Bits(_) if position < self.base() => 0,
            Body::Bits(bits) => {
                let offset = self.offset(position);
                bits.run_at(offset).map_or(offset, |(first, _)| first)
            }
        }
    }

    /// The range at a cursor, and the next cursor.
    pub(super) fn at(&self, cursor: usize) -> Option<(Interval, usize)> {
        match &self.body {
            Body::Plain(items) => items.get(cursor).map(|item| (self.timed(item), cursor + 1)),
            Body::Timed(items) => items.get(cursor).map(|&range| (range, cursor + 1)),
            Body::Bits(bits) => bits.run_from(cursor).map(|run| (self.range(run), run.1 + 1)),
        }
    }

    /// Visits every range, lowest first.
    #[inline]
    pub(super) fn for_each(&self, mut visit: impl FnMut(Interval)) {
        match &self.body {
            Body::Plain(items) => items.iter().for_each(|item| visit(self.timed(item))),
            Body::Timed(items) => items.iter().for_each(|&range| visit(range)),
            Body::Bits(bits) => bits.for_each(|run| visit(self.range(run))),
        }
    }

    /// Removes the lowest part that is in `first..=last`.
    #[inline]
    pub(super) fn take(&mut self, first: i64, last: i64) -> Option<(i64, i64)> {
        match &mut self.body {
            Body::Plain(items) => array::take(items, first, last),
            Body::Timed(items) => array::take(items, first, last),
            Body::Bits(_) => self.take_bits(first, last),
        }
    }

    /// Removes the ranges that opened at or before the horizon, and returns their convex hull.
    pub(super) fn take_until(&mut self, horizon: i64) -> Option<(i64, i64)> {
        let Body::Timed(items) = &mut self.body else {
            let hull = (self.timestamp <= horizon).then(|| self.hull()).flatten()?;
            self.body = Body::Plain(Vec::new());
            return Some(hull);
        };
        let mut taken = items.iter().filter(|item| item.timestamp <= horizon);
        let lowest = taken.next()?;
        let hull = (lowest.first, taken.next_back().unwrap_or(lowest).last);
        items.retain(|item| item.timestamp > horizon);
        items.shrink_to_fit();
        Some(hull)
    }

    /// Adds a range above all others and adjacent to none, if the block has bits that reach its end.
    #[inline(always)]
    pub(super) fn append_in_bits(&mut self, range: Interval) -> bool {
        let offsets = (self.offset(range.first), self.offset(range.last));
        let Body::Bits(bits) = &mut self.body else { return false };
        let is_within = range.first > self.key && range.timestamp == self.timestamp && offsets.1 < bits.end();
        if is_within {
            bits.append(offsets);
        }
        is_within
    }

    /// Whether the ranges are bits and a position is in none of them.
    #[inline(always)]
    pub(super) fn is_apart_from_bits(&self, position: i64) -> bool {
        let Body::Bits(bits) = &self.body else { return false };
        position < self.key || !bits.has(self.offset(position))
    }

    /// Removes a position, if the ranges are bits stored in the block and it is in one of them. Returns by how much the
    /// number of ranges has changed.
    #[inline]
    pub(super) fn close_in_few_bits(&mut self, position: i64) -> Option<isize> {
        let offset = self.offset(position);
        let Body::Bits(bits) = &mut self.body else { return None };
        (position >= self.key && bits.is_few() && bits.has(offset)).then(|| bits.clear(offset))
    }

    /// Adds a range that overlaps none, if it is clear at once which range it continues. Ranges of neighbouring blocks
    /// must not be adjacent to it, unless it begins at the key.
    #[inline]
    pub(super) fn push(&mut self, range: Interval) -> bool {
        match &mut self.body {
            Body::Plain(items) => {
                let is_apart = array::ends_apart_from(items, range.first);
                let fits = is_apart && items.len() < ITEMS_MAX && range.timestamp == self.timestamp;
                if fits {
                    array::push(items, Plain { first: range.first, last: range.last });
                }
                fits
            }
            Body::Timed(items) => {
                let fits = items.len() < ITEMS_MAX && array::ends_apart_from(items, range.first);
                if fits {
                    array::push(items, range);
                }
                fits
            }
            Body::Bits(_) => range.first > self.key && self.set_covered(range),
        }
    }

    /// Adds a range that neither overlaps nor continues another. Returns false and changes nothing if a neighbour or a
    /// new block should have it. This never happens between the block's own ranges.
    pub(super) fn insert(&mut self, range: Interval) -> bool {
        if let Body::Bits(_) = &self.body {
            return self.insert_in_bits(range);
        }
        let is_beyond = range.first < self.key || self.hull().is_some_and(|(_, last)| last < range.first);
        if is_beyond && self.len() >= ITEMS_MAX {
            return false;
        }
        self.insert_in_array(range);
        true
    }

    /// Converts an array to bits if they take no more bytes than its ranges. Returns whether it did.
    pub(super) fn pack(&mut self) -> bool {
        let Body::Plain(items) = &self.body else { return false };
        let Some((first, last)) = self.hull() else { return false };
        let words = words_between(first, last);
        if words > words_max(items.len()) {
            return false;
        }
        let base = word_of(first);
        let mut bits = Bits::with_words(words as usize);
        for item in items {
            bits.set(((item.first - base) as usize, (item.last - base) as usize));
        }
        (self.key, self.body) = (first, Body::Bits(bits));
        true
    }

    /// Adds the ranges of a block for which [`Block::can_absorb`] is true.
    pub(super) fn absorb(&mut self, other: &Block) {
        if let Some((first, last)) = other.hull() {
            let is_covered = self.cover(first, last, other.len());
            assert!(is_covered, "only what can be absorbed is");
        }
        let mut cursor = 0;
        while let Some((range, next)) = other.at(cursor) {
            self.set(range);
            cursor = next;
        }
    }

    /// Raises the key to the lowest range.
    pub(super) fn tighten(&mut self) {
        let Some((first, _)) = self.hull() else { return };
        let words = words_between(self.key, first) - 1;
        if let Body::Bits(bits) = &mut self.body {
            bits.cut_below(words as usize);
        }
        self.key = first;
    }

    /// Moves the upper half out of an array that is too full. If it is much too full, moves everything that does not
    /// fit.
    pub(super) fn split(&mut self) -> Block {
        let len = self.len();
        let at = if len > 2 * ITEMS_MAX { ITEMS_MAX } else { len / 2 };
        let body = match &mut self.body {
            Body::Plain(items) => Body::Plain(split_off(items, at)),
            Body::Timed(items) => Body::Timed(split_off(items, at)),
            Body::Bits(_) => unreachable!("bits are never overfull"),
        };
        let mut upper = Block { key: self.key, timestamp: self.timestamp, body };
        upper.key = upper.hull().expect("a half has ranges").0;
        upper
    }

    fn take_bits(&mut self, first: i64, last: i64) -> Option<(i64, i64)> {
        let base = self.base();
        let Body::Bits(bits) = &mut self.body else { unreachable!("only bits are taken out of bits") };
        if last < base {
            return None;
        }
        let last = (last.wrapping_sub(base) as u64).min(bits.end() as u64 - 1);
        let piece = bits.take((first.max(base).wrapping_sub(base) as usize, last as usize))?;
        if !bits.is_few() && bits.words() as u64 > 2 * words_max(bits.runs()) {
            self.unpack();
        }
        Some((base + piece.0 as i64, base + piece.1 as i64))
    }

    fn insert_in_bits(&mut self, range: Interval) -> bool {
        if self.set_covered(range) || self.insert_in_few(range) {
            return true;
        }
        if range.first < self.key || self.at(self.cursor(range.first)).is_none() {
            return false;
        }
        self.unpack();
        self.insert_in_array(range);
        true
    }

    /// Adds a range to bits stored in the block that do not reach it, if no other block is needed for this.
    fn insert_in_few(&mut self, range: Interval) -> bool {
        let is_small = matches!(&self.body, Body::Bits(bits) if bits.is_few() && bits.runs() < PACKED_MIN);
        if is_small {
            self.tighten();
            if !self.set_covered(range) {
                self.unpack();
                self.insert_in_array(range);
            }
        }
        is_small
    }

    fn insert_in_array(&mut self, range: Interval) {
        self.key = self.key.min(range.first);
        if let Body::Plain(items) = &self.body
            && range.timestamp != self.timestamp
        {
            let mut timed = Vec::with_capacity(items.capacity().max(items.len() + 1));
            timed.extend(items.iter().map(|item| self.timed(item)));
            self.body = Body::Timed(timed);
        }
        match &mut self.body {
            Body::Plain(items) => array::insert(items, Plain { first: range.first, last: range.last }),
            Body::Timed(items) => array::insert(items, range),
            Body::Bits(_) => unreachable!("only arrays are inserted in"),
        }
    }

    /// Adds a range to bits that reach it or can grow to reach it.
    fn set_covered(&mut self, range: Interval) -> bool {
        let is_covered = range.timestamp == self.timestamp && self.cover(range.first, range.last, 1);
        if is_covered {
            self.set(range);
        }
        is_covered
    }

    fn set(&mut self, range: Interval) {
        let run = (self.offset(range.first), self.offset(range.last));
        if let Body::Bits(bits) = &mut self.body {
            bits.set(run);
        }
    }

    /// Extends the bits to cover two positions, if they may grow by that much for the additional ranges.
    fn cover(&mut self, first: i64, last: i64, ranges: usize) -> bool {
        let Some((below, above)) = self.growth(first, last, ranges) else { return false };
        self.key = self.key.min(first);
        if let Body::Bits(bits) = &mut self.body
            && below + above > 0
        {
            bits.grow(below as usize, above as usize, WORDS_MAX);
        }
        true
    }

    /// The numbers of words to add below and above for that.
    fn growth(&self, first: i64, last: i64, ranges: usize) -> Option<(u64, u64)> {
        let Body::Bits(bits) = &self.body else { return None };
        let key = self.key.min(first);
        let below = words_between(key, self.base()) - 1;
        let had = bits.words() as u64;
        let words = words_between(key, last).max(below.saturating_add(had));
        let is_short = bits.is_few() && bits.runs() + ranges < PACKED_MIN;
        let words_max = if is_short { FEW as u64 } else { words_max(bits.runs() + ranges).max(FEW as u64) };
        (words == had || words <= words_max).then(|| (below, words - had - below))
    }

    /// Converts bits to an array.
    fn unpack(&mut self) {
        let mut items = Vec::with_capacity(self.len());
        let mut cursor = 0;
        while let Some((range, next)) = self.at(cursor) {
            items.push(Plain { first: range.first, last: range.last });
            cursor = next;
        }
        self.body = Body::Plain(items);
    }

    /// From the lowest to the highest position.
    fn hull(&self) -> Option<(i64, i64)> {
        let first = self.at(0)?.0.first;
        let last = match &self.body {
            Body::Plain(items) => items.last()?.last,
            Body::Timed(items) => items.last()?.last,
            Body::Bits(bits) => self.base() + bits.highest()? as i64,
        };
        Some((first, last))
    }

    fn timed(&self, item: &Plain) -> Interval {
        Interval { first: item.first, last: item.last, timestamp: self.timestamp }
    }

    /// The position of bit 0.
    fn base(&self) -> i64 {
        word_of(self.key)
    }

    fn offset(&self, position: i64) -> usize {
        position.wrapping_sub(self.base()) as usize
    }

    fn range(&self, (first, last): Offsets) -> Interval {
        let base = self.base();
        Interval { first: base + first as i64, last: base + last as i64, timestamp: self.timestamp }
    }
}

/// Number of words that take no more bytes than an array of this many ranges, within bounds.
fn words_max(ranges: usize) -> u64 {
    WORDS_MAX.min(ranges * size_of::<Plain>() / size_of::<u64>()) as u64
}

/// The first position of the word of a position.
fn word_of(position: i64) -> i64 {
    position & !(WORD_BITS as i64 - 1)
}

/// Number of words from one position to another.
fn words_between(first: i64, last: i64) -> u64 {
    last.wrapping_sub(word_of(first)) as u64 / WORD_BITS as u64 + 1
}

fn split_off<T: Item>(items: &mut Vec<T>, at: usize) -> Vec<T> {
    let mut upper = items.split_off(at);
    items.shrink_to(ITEMS_MAX);
    upper.shrink_to(ITEMS_MAX);
    upper
}

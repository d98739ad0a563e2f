//! Tracks what has changed in a table since a snapshot.

use crate::judge::{FullEntry, Rules};
use crate::key_block::block_hash;

/// Keys whose entries may differ from the snapshot `since`.
///
/// If changes are not tracked, this costs one test per call. Otherwise, it sets a bit per accepted span.
#[derive(Default)]
pub(crate) struct Changes {
    /// The checksum of the snapshot that the changes follow.
    since: Option<u32>,
    marks: Option<Marks>,
    /// Keys that were forgotten and may have appeared again, and evictions.
    gone: Vec<(i64, i32)>,
    eviction: Option<Eviction>,
    /// Whether all entries were dropped at some time. Tracked changes are later than that.
    everything: bool,
}

/// The limits of an eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Eviction {
    /// Entries with a last timestamp at or below this are dropped.
    pub(crate) idle_until: i64,
    /// Holes that opened at or below this become final.
    pub(crate) horizon: i64,
}

impl Eviction {
    /// Returns whether an entry stays, and makes holes in it final.
    #[inline]
    pub(crate) fn keeps(&self, rules: &Rules, entry: &mut FullEntry) -> bool {
        if !entry.holes.is_empty() {
            self.finalise(rules, entry);
        }
        entry.last_timestamp > self.idle_until
    }

    #[cold]
    fn finalise(&self, rules: &Rules, entry: &mut FullEntry) {
        if let Some(hull) = entry.holes.finalise_until(self.horizon) {
            entry.finalise(hull);
        }
        rules.settle(entry);
    }
}

/// What the table of a delta forgot.
pub(crate) struct Forgotten {
    pub(crate) horizon_ms: Option<i64>,
    /// All entries were dropped before anything else.
    pub(crate) everything: bool,
    pub(crate) eviction: Option<Eviction>,
    pub(crate) gone: Vec<(i64, i32)>,
}

impl Changes {
    /// The checksum of the snapshot that the changes follow. `None` if there is none or if changes are not tracked.
    pub(crate) fn since(&self) -> Option<u32> {
        self.since
    }

    /// The tracked changes.
    pub(crate) fn marks(&self) -> Option<&Marks> {
        self.marks.as_ref()
    }

    /// Keys that were forgotten and may have appeared again.
    pub(crate) fn gone(&self) -> &[(i64, i32)] {
        &self.gone
    }

    /// Whether the table equals the snapshot `since`.
    pub(crate) fn is_none(&self) -> bool {
        self.since.is_some() && self.marks.as_ref().is_none_or(|marks| marks.is_empty)
    }

    /// Starts or stops to track changes.
    pub(crate) fn track(&mut self, on: bool) {
        if on && self.marks.is_none() {
            self.marks = Some(Marks::new());
        } else if !on {
            self.since = self.since.filter(|_| self.is_none());
            *self = Changes { since: self.since, ..Changes::default() };
        }
    }

    /// Records that the table equals the snapshot with this checksum.
    pub(crate) fn begin(&mut self, checksum: u32) {
        self.since = Some(checksum);
        self.gone.clear();
        (self.eviction, self.everything) = (None, false);
        if let Some(marks) = &mut self.marks {
            marks.clear();
        }
    }

    /// Records a change. Returns the marks to set, if changes are tracked.
    pub(crate) fn note(&mut self, entries: usize) -> Option<&mut Marks> {
        match &mut self.marks {
            None => self.since = None,
            Some(marks) => marks.make_room(entries),
        }
        self.marks.as_mut()
    }

    /// All evictions combined into one.
    pub(crate) fn eviction(&self) -> Option<Eviction> {
        self.eviction
    }

    /// Records that a key is forgotten.
    pub(crate) fn note_gone(&mut self, pid: i64, partition: i32) {
        if self.note(0).is_some() {
            self.gone.push((pid, partition));
        }
    }

    /// Records an eviction. [`Changes::note_evicted`] receives the keys.
    pub(crate) fn note_eviction(&mut self, entries: usize, eviction: Eviction) {
        if self.note(entries).is_some() {
            let idle_until =
                self.eviction.map_or(eviction.idle_until, |before| before.idle_until.max(eviction.idle_until));
            self.eviction = Some(Eviction { idle_until, ..eviction });
        }
    }

    /// Records that an entry is evicted. For an unchanged key, the eviction itself is enough. The entry of a changed
    /// key may have been younger in the snapshot.
    pub(crate) fn note_evicted(&mut self, pid: i64, partition: i32) {
        if self.marks.as_ref().is_some_and(|marks| marks.has(pid, partition)) {
            self.gone.push((pid, partition));
        }
    }

    /// Records the number of dropped and remaining entries. If none remains, the table no longer knows its keys, and
    /// nothing else needs to be recorded.
    pub(crate) fn note_dropped(&mut self, dropped: usize, left: usize) {
        if dropped > 0 && left == 0 && self.note(0).is_some() {
            (self.everything, self.eviction) = (true, None);
            self.gone.clear();
        }
    }

    /// Whether all entries were dropped.
    pub(crate) fn everything(&self) -> bool {
        self.everything
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let marks = self.marks.as_ref().map_or(0, |marks| marks.bits.capacity() * size_of::<u64>());
        marks + self.gone.capacity() * size_of::<(i64, i32)>()
    }
}

/// A set of keys that can contain more keys than were added. It has one bit for all keys with the same leading bits of
/// a hash, 2 to 4 bits per entry. A delta with too many entries is still correct.
pub(crate) struct Marks {
    bits: Vec<u64>,
    is_empty: bool,
}

impl Marks {
    fn new() -> Marks {
        Marks { bits: vec![0; 128], is_empty: true }
    }

    fn clear(&mut self) {
        self.bits.fill(0);
        self.is_empty = true;
    }

    /// Doubles every bit until there are enough.
    fn make_room(&mut self, entries: usize) {
        self.is_empty = false;
        while self.bits.len() * 64 < entries * 2 {
            let doubled = |word: u64, from: u32| {
                (0..32).filter(|bit| word >> (from + bit) & 1 == 1).fold(0, |wide, bit| wide | 3 << (2 * bit))
            };
            self.bits = self.bits.iter().flat_map(|&word| [doubled(word, 0), doubled(word, 32)]).collect();
        }
    }

    #[inline]
    fn bit(&self, pid: i64, partition: i32) -> usize {
        // The hash is that of 24 partitions, but each needs its own bit. The product spreads them.
        let hash = (block_hash(pid, partition) ^ partition as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (hash >> (u64::BITS - (self.bits.len() * 64).ilog2())) as usize
    }

    #[inline]
    pub(crate) fn add(&mut self, pid: i64, partition: i32) {
        let bit = self.bit(pid, partition);
        self.bits[bit / 64] |= 1 << (bit % 64);
    }

    #[inline]
    pub(crate) fn has(&self, pid: i64, partition: i32) -> bool {
        let bit = self.bit(pid, partition);
        self.bits[bit / 64] >> (bit % 64) & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_stay_when_their_number_grows() {
        let mut changes = Changes::default();
        assert!(changes.note(1).is_none() && changes.since().is_none());
        changes.track(true);
        changes.begin(7);
        assert!(changes.is_none());
        for (entries, keys) in [(10, 0..10), (100_000, 10..100_000)] {
            let marks = changes.note(entries).expect("tracking");
            keys.for_each(|key| marks.add(key, 3));
        }
        let marks = changes.marks().expect("tracking");
        assert!((0..100_000).all(|key| marks.has(key, 3)));
        let others = (0..100_000).filter(|&key| marks.has(key, 4)).count();
        assert!(others < 50_000, "{others}: two bits an entry at the least");
        assert_eq!((changes.since(), changes.is_none()), (Some(7), false));
    }
}

//! A part of the hash table: groups of 16 lines of one layout, found by their tags.

use super::buffer::Buffer;
use super::{EntryKey, Line, LineKey};
use crate::Result;
use crate::prefetch::{HAS_PREFETCH, prefetch};
use std::ptr::NonNull;

/// Number of lines whose tags are compared at once.
pub(super) const GROUP: usize = 16;
/// Maximum number of used lines per 16 before more groups are needed.
const GROUP_LOAD_MAX: usize = 13;

/// The tags of 16 lines. 0: no line. Otherwise eight bits of the hash, with 0 replaced by 1.
pub(super) type Group = [u8; GROUP];

/// A hash table of lines of one layout. It does not grow: a larger one replaces it.
pub(super) struct Groups<L> {
    buffer: Buffer<L>,
    taken: usize,
}

impl<L: Line> Groups<L> {
    pub(super) fn new(groups: usize) -> Result<Groups<L>> {
        Ok(Groups { buffer: Buffer::new(groups)?, taken: 0 })
    }

    /// Number of groups for this many lines, with some spare room.
    pub(super) fn count_for(lines: usize) -> usize {
        lines / GROUP_LOAD_MAX + 1
    }

    /// Number of groups.
    pub(super) fn count(&self) -> usize {
        self.buffer.tags().len()
    }

    /// Number of lines.
    pub(super) fn taken(&self) -> usize {
        self.taken
    }

    /// How many lines can be added before the table must grow.
    pub(super) fn room(&self) -> usize {
        (self.count() * GROUP_LOAD_MAX).saturating_sub(self.taken)
    }

    /// How many lines can be added at most: a search ends at a free line.
    pub(super) fn last_room(&self) -> usize {
        (self.count() * GROUP - 1).saturating_sub(self.taken)
    }

    pub(super) fn bytes(&self) -> usize {
        self.buffer.bytes()
    }

    pub(super) fn provide(&self) {
        self.buffer.provide();
    }

    /// Visits all lines in arbitrary order.
    #[inline]
    pub(super) fn for_each(&self, mut visit: impl FnMut(&L)) {
        for (group, tags) in self.buffer.tags().iter().enumerate() {
            let mut taken = !equal_tags(tags, 0) & 0xffff;
            while taken != 0 {
                visit(self.line(group * GROUP + taken.trailing_zeros() as usize));
                taken &= taken - 1;
            }
        }
    }

    /// Visits every line: its number, the key of its first slot, and its number of slots.
    pub(super) fn for_each_line(&self, visit: &mut impl FnMut(usize, EntryKey, usize)) {
        for number in (0..self.count() * GROUP).filter(|&number| self.is_taken(number)) {
            visit(number, EntryKey::at(self.line(number), 0), L::SLOTS);
        }
    }

    /// Clears the slots for which `keep` returns false.
    pub(super) fn retain(&mut self, keep: &mut impl FnMut(EntryKey, L::Slot) -> bool) {
        for number in 0..self.count() * GROUP {
            if self.is_taken(number) {
                let line = self.line_mut(number);
                for slot in 0..L::SLOTS {
                    if !line.is_empty_at(slot) && !keep(EntryKey::at(line, slot), line.read(slot)) {
                        line.clear(slot);
                    }
                }
            }
        }
    }

    #[inline]
    fn is_taken(&self, number: usize) -> bool {
        self.buffer.tags().as_flattened()[number] != 0
    }

    #[inline]
    pub(super) fn line(&self, number: usize) -> &L {
        assert!(self.is_taken(number));
        // SAFETY: a line whose tag is set was written by `insert`, and the buffer has 16 lines per group. Lines are
        // uninitialized so that growth does not write 64 bytes per free line.
        unsafe { self.buffer.line(number).assume_init_ref() }
    }

    #[inline]
    pub(super) fn line_mut(&mut self, number: usize) -> &mut L {
        assert!(self.is_taken(number));
        // SAFETY: as in `line`.
        unsafe { self.buffer.line_mut(number).assume_init_mut() }
    }

    /// The group in which a search for this hash begins. Groups are in the order of hashes.
    #[inline]
    fn group_of(&self, hash: u64) -> usize {
        ((hash >> 32) as usize * self.count()) >> 32
    }

    /// Addresses of the tags and lines, and the number of groups, for searches that do not use this type.
    pub(super) fn parts(&self) -> (NonNull<Group>, NonNull<u8>, usize) {
        (self.buffer.tags_at(), self.buffer.lines_at(), self.count())
    }

    #[inline]
    pub(super) fn prefetch_number(&self, number: usize) {
        if HAS_PREFETCH {
            let line = self.buffer.address(number).cast::<u8>();
            prefetch(line);
            prefetch(line.wrapping_add(size_of::<L>() - 1)); // it can extend into the next cache line
        } else if self.is_taken(number) {
            std::hint::black_box(self.line(number).pid());
        }
    }

    /// The line of the newest entry of a key.
    pub(super) fn find_newest(&mut self, pid: i64, partition: i32, block_hash: u64) -> Option<&mut L> {
        let key = EntryKey::newest(pid, partition).line::<L>();
        self.find(key, key.hash(block_hash)).map(|number| self.line_mut(number))
    }

    /// A line and the slot of an entry, if this is its line.
    #[inline(always)]
    pub(super) fn line_of(&mut self, number: usize, key: EntryKey) -> Option<(&mut L, usize)> {
        let line = self.line_mut(number);
        line.is(key.line::<L>()).then(|| (line, key.slot::<L>()))
    }

    /// The number of an entry's line, and its slot.
    pub(super) fn find_entry(&self, key: EntryKey, block_hash: u64) -> Option<(usize, usize)> {
        let line_key = key.line::<L>();
        Some((self.find(line_key, line_key.hash(block_hash))?, key.slot::<L>()))
    }

    /// Like `find_entry`, but adds the line if there is none.
    #[inline]
    pub(super) fn find_or_insert(&mut self, key: EntryKey, block_hash: u64) -> (usize, usize) {
        let line_key = key.line::<L>();
        let hash = line_key.hash(block_hash);
        let line = self.find(line_key, hash).unwrap_or_else(|| self.insert(hash, L::empty(line_key)));
        (line, key.slot::<L>())
    }

    /// Stores the slots of another layout, each with its key and the hash of its block. Returns false if one does not
    /// fit. Prefetches all lines before it stores the first.
    pub(super) fn take_in(&mut self, entries: &[(EntryKey, u64, L::Slot)]) -> bool {
        let hash_of = |(key, block_hash, _): &(EntryKey, u64, L::Slot)| key.line::<L>().hash(*block_hash);
        for hash in entries.iter().map(hash_of) {
            prefetch(&raw const self.buffer.tags()[self.group_of(hash)]);
        }
        for hash in entries.iter().map(hash_of) {
            let tags = &self.buffer.tags()[self.group_of(hash)];
            let matches = equal_tags(tags, tag_of(hash)) | equal_tags(tags, 0) << GROUP;
            self.prefetch_number(self.group_of(hash) * GROUP + matches.trailing_zeros() as usize % GROUP);
        }
        entries.iter().all(|(key, block_hash, held)| {
            let has_room = self.room() > 0;
            has_room && {
                let (line, slot) = self.find_or_insert(*key, *block_hash);
                self.line_mut(line).write(slot, held)
            }
        })
    }

    /// Adds an empty line for the newest entry of a key that has none.
    pub(super) fn insert_newest(&mut self, pid: i64, partition: i32, block_hash: u64) -> &mut L {
        let key = EntryKey::newest(pid, partition).line::<L>();
        let line = self.insert(key.hash(block_hash), L::empty(key));
        self.line_mut(line)
    }

    /// How many lines are in another group because theirs was full.
    #[cfg(test)]
    pub(super) fn lines_elsewhere(&self) -> usize {
        let is_elsewhere = |&number: &usize| {
            let key = LineKey::of(self.line(number));
            self.group_of(key.hash(key.block_hash::<L>())) != number / GROUP
        };
        (0..self.count() * GROUP).filter(|&number| self.is_taken(number)).filter(is_elsewhere).count()
    }

    fn find(&self, key: LineKey, hash: u64) -> Option<usize> {
        let mut group = self.group_of(hash);
        for _ in 0..self.count() {
            let tags = &self.buffer.tags()[group];
            let mut matches = equal_tags(tags, tag_of(hash));
            while matches != 0 {
                let number = group * GROUP + matches.trailing_zeros() as usize;
                if self.line(number).is(key) {
                    return Some(number);
                }
                matches &= matches - 1;
            }
            if equal_tags(tags, 0) != 0 {
                return None;
            }
            group = self.group_after(group);
        }
        unreachable!("a free line ends every search")
    }

    #[inline]
    fn group_after(&self, group: usize) -> usize {
        if group + 1 == self.count() { 0 } else { group + 1 }
    }

    /// Writes a line for a key that has none, and returns its number.
    pub(super) fn insert(&mut self, hash: u64, line: L) -> usize {
        assert!(self.last_room() > 0, "room was reserved");
        let mut group = self.group_of(hash);
        loop {
            let free = equal_tags(&self.buffer.tags()[group], 0);
            if free != 0 {
                return self.put(group, free.trailing_zeros() as usize, hash, line);
            }
            group = self.group_after(group);
        }
    }

    /// Like `insert`, for groups that are filled one line after the other. `filled` counts the lines of each. Lines
    /// must come in the order of their groups: reading the tags of a group directly after a write to it would wait for
    /// that write.
    #[inline]
    pub(super) fn fill(&mut self, hash: u64, line: L, filled: &mut [u8]) {
        assert!(self.last_room() > 0, "room was reserved");
        let mut group = self.group_of(hash);
        while usize::from(filled[group]) == GROUP {
            group = self.group_after(group);
        }
        self.put(group, filled[group].into(), hash, line);
        filled[group] += 1;
    }

    #[inline]
    fn put(&mut self, group: usize, index: usize, hash: u64, line: L) -> usize {
        self.buffer.tags_mut()[group][index] = tag_of(hash);
        // SAFETY: the buffer has 16 lines per group, and both numbers were just checked.
        unsafe { self.buffer.line_mut(group * GROUP + index) }.write(line);
        self.taken += 1;
        group * GROUP + index
    }
}

/// The tag of a hash, never 0, which means no line. All other values are used, so only one search in 20 finds another
/// key's line first.
#[inline(always)]
pub(super) fn tag_of(hash: u64) -> u8 {
    (hash as u8).max(1)
}

/// One bit per tag that equals `tag`.
#[inline(always)]
pub(super) fn equal_tags(tags: &Group, tag: u8) -> u32 {
    #[cfg(all(target_arch = "x86_64", not(feature = "portable")))]
    {
        use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi8};
        // SAFETY: SSE2 is part of every x86-64. The load is unaligned and reads the array's 16 bytes. A loop over the
        // bytes takes 3 to 4 ns more per look-up.
        unsafe {
            let group = _mm_loadu_si128(tags.as_ptr().cast());
            _mm_movemask_epi8(_mm_cmpeq_epi8(group, _mm_set1_epi8(tag as i8))) as u32
        }
    }
    #[cfg(all(target_arch = "aarch64", not(feature = "portable")))]
    {
        use std::arch::aarch64::{vaddv_u8, vandq_u8, vceqq_u8, vdupq_n_u8, vget_high_u8, vget_low_u8, vld1q_u8};
        const BITS: Group = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];
        // SAFETY: NEON is part of every AArch64; both loads read the 16 bytes of an array. No ARM processor was
        // measured. On x86-64, a loop over the bytes takes 3 to 4 ns more per look-up.
        unsafe {
            let equal = vceqq_u8(vld1q_u8(tags.as_ptr()), vdupq_n_u8(tag));
            let bits = vandq_u8(equal, vld1q_u8(BITS.as_ptr()));
            u32::from(vaddv_u8(vget_low_u8(bits))) | u32::from(vaddv_u8(vget_high_u8(bits))) << 8
        }
    }
    #[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(feature = "portable"))))]
    {
        equal_tags_portable(tags, tag)
    }
}

#[cfg(any(test, feature = "portable", not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
fn equal_tags_portable(tags: &Group, tag: u8) -> u32 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const LOW_BITS: u64 = ONES * 0x7f;
    let equal_in = |eight: [u8; 8]| {
        let different = u64::from_le_bytes(eight) ^ (ONES * u64::from(tag));
        // Sets the high bit of each byte that is 0, then collects all eight in the highest byte.
        let is_zero = !(((different & LOW_BITS) + LOW_BITS) | different | LOW_BITS);
        ((is_zero >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u32
    };
    let [low, high] = [0, 8].map(|from| std::array::from_fn(|index| tags[from + index]));
    equal_in(low) | equal_in(high) << 8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_compare_the_same_with_and_without_vectors() {
        for from in 0..=255u8 {
            let tags = std::array::from_fn(|index| from.wrapping_add([0, 1, 0, 0x80, 0xff][index * 7 % 5]));
            for tag in 0..=255 {
                let one_by_one = (0..GROUP).fold(0, |found, index| found | u32::from(tags[index] == tag) << index);
                assert_eq!(equal_tags(&tags, tag), one_by_one);
                assert_eq!(equal_tags_portable(&tags, tag), one_by_one);
            }
        }
    }
}

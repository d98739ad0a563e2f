//! An interner: numbers byte strings.

use crate::error::make_room;
use crate::prefetch::prefetch;
use crate::{Error, Result};
use std::ops::Range;
use std::sync::Arc;

/// Byte strings in contiguous memory.
#[derive(Clone, Debug, Default)]
pub struct Strings {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Strings {
    /// Number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are no strings.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Total number of bytes.
    pub fn bytes_len(&self) -> usize {
        self.bytes.len()
    }

    /// One string.
    #[inline]
    pub fn get(&self, index: usize) -> &[u8] {
        &self.bytes[self.range(index)]
    }

    #[inline]
    fn range(&self, index: usize) -> Range<usize> {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        start..self.ends[index]
    }

    /// Adds the string that `write` appends.
    #[inline]
    pub fn push_with(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.bytes);
        self.ends.push(self.bytes.len());
    }

    /// Removes all strings.
    pub fn clear(&mut self) {
        self.truncate(0);
    }

    fn truncate(&mut self, count: usize) {
        self.ends.truncate(count);
        self.bytes.truncate(self.ends.last().copied().unwrap_or(0));
    }

    fn make_room(&mut self, bytes: usize) -> Result<()> {
        make_room(&mut self.bytes, bytes)?;
        make_room(&mut self.ends, 1)
    }

    fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.ends.capacity() * size_of::<usize>()
    }
}

/// Number of strings of a block of a [`Dictionary`].
const BLOCK: usize = 1024;
/// Maximum initial capacity of a block in bytes.
const BLOCK_BYTES_MAX: usize = 1 << 17;

/// Number of strings that are looked up together. While one is compared, the memory of the others is prefetched.
const TOGETHER: usize = 32;

/// Numbers byte strings from 0, in the order of their first appearance.
///
/// ```text
/// slots     hash 32 | number + 1, 32        open addressing in the order of hashes
/// blocks    1024 strings each               shared with the copies of [`Dictionary::names`]
/// ```
///
/// A slot has 32 bits of the hash. A look-up therefore rarely reads another string, and growth reads no strings.
#[derive(Clone, Debug, Default)]
pub struct Dictionary {
    blocks: Vec<Arc<Strings>>,
    len: usize,
    /// 0 if free. At most three quarters are used. Empty in copies that only name numbers.
    slots: Vec<u64>,
}

impl Dictionary {
    /// Number of strings.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no strings.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The string with a number.
    #[inline]
    pub fn bytes(&self, number: u32) -> &[u8] {
        let number = number as usize;
        self.blocks[number / BLOCK].get(number % BLOCK)
    }

    /// The number of a string, if it has one.
    pub fn get(&self, bytes: &[u8]) -> Option<u32> {
        if self.slots.is_empty() {
            return None;
        }
        self.find(bytes, hash(bytes)).ok()
    }

    /// Bytes of memory.
    pub fn memory_bytes(&self) -> usize {
        let blocks: usize = self.blocks.iter().map(|block| size_of::<Strings>() + block.memory_bytes()).sum();
        blocks + self.blocks.capacity() * size_of::<Arc<Strings>>() + self.slots.capacity() * size_of::<u64>()
    }

    /// A copy that can name and order numbers. It shares the strings, so it takes 8 bytes per 1024 strings.
    pub(crate) fn names(&self) -> Dictionary {
        Dictionary { blocks: self.blocks.clone(), len: self.len, slots: Vec::new() }
    }

    /// The number of a string, which is added if it is new. `Error::Memory` and `Error::Capacity` change nothing.
    pub fn intern(&mut self, bytes: &[u8]) -> Result<u32> {
        self.reserve(1)?;
        self.intern_hashed(bytes, hash(bytes))
    }

    /// Like `intern`, for several strings in order. After an error, the strings before it remain.
    pub fn intern_all(&mut self, strings: &Strings, mut visit: impl FnMut(u32)) -> Result<()> {
        for from in (0..strings.len()).step_by(TOGETHER) {
            let count = TOGETHER.min(strings.len() - from);
            self.reserve(count)?;
            let (mut hashes, mut candidates) = ([0; TOGETHER], [None; TOGETHER]);
            for (index, hash_of) in hashes.iter_mut().enumerate().take(count) {
                *hash_of = hash(strings.get(from + index));
                prefetch(&raw const self.slots[self.first_slot(*hash_of)]);
            }
            for (candidate, hash) in candidates.iter_mut().zip(hashes).take(count) {
                let slot = self.slots[self.first_slot(hash)];
                *candidate = (is_of(slot, hash)).then(|| number_of(slot));
                if let Some(number) = *candidate {
                    prefetch(&raw const self.blocks[number as usize / BLOCK].ends[number as usize % BLOCK]);
                }
            }
            for number in candidates.into_iter().flatten() {
                let block = &self.blocks[number as usize / BLOCK];
                let range = block.range(number as usize % BLOCK);
                prefetch(block.bytes.as_ptr().wrapping_add(range.start));
                prefetch(block.bytes.as_ptr().wrapping_add(range.end));
            }
            for (index, hash) in hashes.into_iter().enumerate().take(count) {
                visit(self.intern_hashed(strings.get(from + index), hash)?);
            }
        }
        Ok(())
    }

    /// A dictionary of the strings selected by `used`, and the new number of each.
    pub(crate) fn kept(&self, used: &[bool]) -> Result<(Dictionary, Vec<u32>)> {
        let mut kept = Dictionary::default();
        let number = |(number, &is_used): (usize, &bool)| {
            if is_used { kept.intern(self.bytes(number as u32)) } else { Ok(u32::MAX) }
        };
        let numbers = used.iter().enumerate().map(number).collect::<Result<_>>()?;
        Ok((kept, numbers))
    }

    /// Removes all numbers from `count` on.
    pub(crate) fn truncate(&mut self, count: usize) {
        if count == self.len {
            return;
        }
        self.blocks.truncate(count.div_ceil(BLOCK));
        if let Some(last) = self.blocks.last_mut().filter(|_| !count.is_multiple_of(BLOCK)) {
            Arc::make_mut(last).truncate(count % BLOCK);
        }
        self.len = count;
        let slots = std::mem::take(&mut self.slots);
        self.slots.resize(slots.len(), 0);
        self.take_slots(slots);
    }

    /// The number of a string, or the free slot for it.
    #[inline]
    fn find(&self, bytes: &[u8], hash: u64) -> std::result::Result<u32, usize> {
        let mut slot = self.first_slot(hash);
        loop {
            let found = self.slots[slot];
            if found == 0 {
                return Err(slot);
            }
            if is_of(found, hash) && self.bytes(number_of(found)) == bytes {
                return Ok(number_of(found));
            }
            slot = if slot + 1 == self.slots.len() { 0 } else { slot + 1 };
        }
    }

    /// Requires a reserved free slot.
    #[inline]
    fn intern_hashed(&mut self, bytes: &[u8], hash: u64) -> Result<u32> {
        match self.find(bytes, hash) {
            Ok(number) => Ok(number),
            Err(slot) => {
                self.push(bytes)?;
                self.slots[slot] = hash & !u64::from(u32::MAX) | self.len as u64;
                Ok(self.len as u32 - 1)
            }
        }
    }

    /// Adds a string. Partition numbers are 31 bits wide.
    fn push(&mut self, bytes: &[u8]) -> Result<()> {
        if self.len >= i32::MAX as usize {
            return Err(Error::Capacity { limit: i32::MAX as u64, needed: self.len as u64 + 1, what: "keys" });
        }
        if self.len == self.blocks.len() * BLOCK {
            make_room(&mut self.blocks, 1)?;
            self.blocks.push(Arc::new(self.next_block()?));
        }
        // A block shared with a copy is copied before it is changed.
        let block = Arc::make_mut(self.blocks.last_mut().expect("it was just looked for"));
        block.make_room(bytes.len())?;
        block.push_with(|all| all.extend_from_slice(bytes));
        self.len += 1;
        Ok(())
    }

    /// An empty block with the capacity of the previous block, because growing blocks are copied.
    fn next_block(&self) -> Result<Strings> {
        let mut block = Strings::default();
        if let Some(before) = self.blocks.last() {
            make_room(&mut block.bytes, before.bytes.len().min(BLOCK_BYTES_MAX))?;
            make_room(&mut block.ends, BLOCK)?;
        }
        Ok(block)
    }

    /// Reserves slots for more strings.
    #[inline]
    fn reserve(&mut self, more: usize) -> Result<()> {
        if (self.len + more) * 4 > self.slots.len() * 3 { self.grow(more) } else { Ok(()) }
    }

    #[cold]
    fn grow(&mut self, more: usize) -> Result<()> {
        let count = (self.slots.len() * 2).max((2 * (self.len + more)).next_power_of_two()).max(16);
        let mut slots = Vec::new();
        make_room(&mut slots, count)?;
        slots.resize(count, 0);
        let before = std::mem::replace(&mut self.slots, slots);
        if before.is_empty() {
            let slot = |number: u32| hash(self.bytes(number)) & !u64::from(u32::MAX) | u64::from(number + 1);
            let named = (0..self.len as u32).map(slot).collect();
            self.take_slots(named);
        } else {
            self.take_slots(before);
        }
        Ok(())
    }

    /// Fills empty slots with the existing numbers.
    fn take_slots(&mut self, slots: Vec<u64>) {
        for slot in slots.into_iter().filter(|&slot| slot != 0 && (number_of(slot) as usize) < self.len) {
            let mut free = self.first_slot(slot);
            while self.slots[free] != 0 {
                free = if free + 1 == self.slots.len() { 0 } else { free + 1 };
            }
            self.slots[free] = slot;
        }
    }

    /// The first slot of the search for a hash.
    #[inline]
    fn first_slot(&self, hash: u64) -> usize {
        ((hash >> 32).wrapping_mul(self.slots.len() as u64) >> 32) as usize
    }
}

/// Whether a slot has a string with this hash, compared by the bits it stores.
#[inline]
fn is_of(slot: u64, hash: u64) -> bool {
    slot != 0 && (slot ^ hash) >> 32 == 0
}

#[inline]
fn number_of(slot: u64) -> u32 {
    slot as u32 - 1
}

/// The high half chooses the slot.
#[inline]
fn hash(bytes: &[u8]) -> u64 {
    fold_bytes(0, bytes)
}

/// Folds a value into a hash.
#[inline(always)]
pub fn fold_hash(hash: u64, value: u64) -> u64 {
    let product = u128::from(hash ^ value) * u128::from(0x9e37_79b9_7f4a_7c15u64);
    product as u64 ^ (product >> 64) as u64
}

/// Folds bytes and their number into a hash.
#[inline(always)]
pub fn fold_bytes(hash: u64, bytes: &[u8]) -> u64 {
    let hash = fold_hash(hash, bytes.len() as u64);
    if let Some((_, last)) = bytes.split_last_chunk::<8>() {
        // The last word overlaps the previous one, because copying the rest would take longer.
        let words = bytes[..bytes.len() - 1].as_chunks::<8>().0.iter();
        let hash = words.fold(hash, |hash, word| fold_hash(hash, u64::from_le_bytes(*word)));
        return fold_hash(hash, u64::from_le_bytes(*last));
    }
    let mut last = [0; 8];
    for (to, byte) in last.iter_mut().zip(bytes) {
        *to = *byte;
    }
    fold_hash(hash, u64::from_le_bytes(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: u32) -> String {
        format!("producer-{number}")
    }

    fn filled(count: u32) -> Dictionary {
        let mut dictionary = Dictionary::default();
        for number in 0..count {
            assert_eq!(dictionary.intern(name(number).as_bytes()), Ok(number));
        }
        dictionary
    }

    #[test]
    fn numbers_are_exact_and_can_be_taken_back() {
        for count in [0, 1, 1023, 1024, 1025, 5_000] {
            let mut dictionary = filled(10_000);
            dictionary.truncate(count as usize);
            assert_eq!(dictionary.len(), count as usize);
            assert!((0..count).all(|number| dictionary.get(name(number).as_bytes()) == Some(number)));
            assert!((count..10_000).all(|number| dictionary.get(name(number).as_bytes()).is_none()));
            assert_eq!(dictionary.intern(b"other"), Ok(count));
            assert_eq!(dictionary.bytes(count), b"other");
        }
    }

    #[test]
    fn several_are_numbered_as_one_by_one() {
        let (mut one_by_one, mut together) = (Dictionary::default(), Dictionary::default());
        let mut state = 1u64;
        for count in [0, 1, 31, 32, 33, 100, 5_000] {
            let mut strings = Strings::default();
            let mut expected = Vec::new();
            for _ in 0..count {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                let string = name((state >> 52) as u32);
                strings.push_with(|all| all.extend_from_slice(string.as_bytes()));
                expected.push(one_by_one.intern(string.as_bytes()).expect("memory"));
            }
            let mut found = Vec::new();
            together.intern_all(&strings, |number| found.push(number)).expect("memory");
            assert_eq!(found, expected);
        }
        assert!(one_by_one.len() > 2_000);
    }

    #[test]
    fn strings_with_equal_hashes_are_distinguished() {
        let mut dictionary = Dictionary::default();
        dictionary.reserve(3).expect("memory");
        for (number, string) in [b"one", b"two", b"six"].into_iter().enumerate() {
            assert_eq!(dictionary.intern_hashed(string, 7 << 32), Ok(number as u32));
        }
        assert_eq!(dictionary.intern_hashed(b"two", 7 << 32), Ok(1));
    }

    #[test]
    fn a_copy_keeps_existing_names_and_adds_new_numbers() {
        let mut dictionary = filled(1_500);
        let mut names = dictionary.names();
        dictionary.truncate(1_100);
        assert_eq!(dictionary.intern(b"other"), Ok(1_100));
        assert!((0..1_500).all(|number| names.bytes(number) == name(number).as_bytes()));
        assert_eq!(names.intern(name(1_400).as_bytes()), Ok(1_400));
        assert_eq!(names.intern(b"another"), Ok(1_500));
        assert_eq!(dictionary.bytes(1_100), b"other");
    }

    #[test]
    fn bytes_of_any_number_have_hashes_of_their_own() {
        let bytes: Vec<u8> = (1..80).collect();
        let mut hashes: Vec<_> = (0..bytes.len()).map(|count| fold_bytes(1, &bytes[..count])).collect();
        for at in 0..40 {
            let mut changed = bytes[..40].to_vec();
            changed[at] ^= 1;
            hashes.push(fold_bytes(1, &changed));
        }
        hashes.extend([
            fold_bytes(1, &[0; 3]),
            fold_bytes(1, &[0; 4]),
            fold_bytes(1, &[0; 8]),
            fold_bytes(1, &[0; 16]),
        ]);
        let count = hashes.len();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), count);
    }
}

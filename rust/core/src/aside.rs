//! Entries that fit in no slot of a line.

use crate::prefetch::prefetch;

/// Entries that fit in no slot, by number. In blocks, so that growth copies nothing.
#[derive(Default)]
pub(crate) struct Aside<T> {
    blocks: Vec<Box<[T]>>,
    /// Numbers below `end` that are free.
    free: Vec<u32>,
    end: u32,
    /// How many times a number became free: while it stays, so does what each number names.
    freed: u64,
}

impl<T: Default> Aside<T> {
    const BLOCK: usize = 32;

    pub(crate) fn get(&self, number: u32) -> &T {
        &self.blocks[number as usize / Self::BLOCK][number as usize % Self::BLOCK]
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> &mut T {
        &mut self.blocks[number as usize / Self::BLOCK][number as usize % Self::BLOCK]
    }

    /// Whether none was ever added.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.end == 0
    }

    /// A number that changes whenever an entry is freed: see `freed`.
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.freed
    }

    /// Asks for an entry.
    #[inline(always)]
    pub(crate) fn ask_for(&self, number: u32) {
        for byte in (0..size_of::<T>()).step_by(64) {
            prefetch(std::ptr::from_ref(self.get(number)).cast::<u8>().wrapping_add(byte));
        }
    }

    /// An entry moved out, to be put back or freed.
    pub(crate) fn take(&mut self, number: u32) -> T {
        std::mem::take(self.get_mut(number))
    }

    pub(crate) fn add(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            assert!(self.end < u32::MAX - 1, "fewer than 2^32 - 2 entries aside");
            if self.end as usize == self.blocks.len() * Self::BLOCK {
                self.blocks.push((0..Self::BLOCK).map(|_| T::default()).collect());
            }
            self.end += 1;
            self.end - 1
        })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.blocks.iter().flat_map(|block| block.iter())
    }

    pub(crate) fn free(&mut self, number: u32) {
        *self.get_mut(number) = T::default();
        self.free.push(number);
        self.freed += 1;
    }

    /// Bytes held; `beside`: those that an entry holds in memory of its own.
    pub(crate) fn memory_bytes(&self, beside: impl Fn(&T) -> usize) -> usize {
        let blocks = self.blocks.len() * (Self::BLOCK * size_of::<T>() + size_of::<Box<[T]>>());
        blocks + self.free.capacity() * size_of::<u32>() + self.iter().map(beside).sum::<usize>()
    }
}

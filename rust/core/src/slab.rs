//! A slab: values by number, for entries that do not fit into a slot of a line.

use crate::prefetch::prefetch;

/// Values by number. They are stored in pages, so that growth copies nothing.
#[derive(Default)]
pub(crate) struct Slab<T> {
    pages: Vec<Box<[T]>>,
    /// Numbers below `end` that are free.
    free: Vec<u32>,
    end: u32,
    /// How many times a number became free. While it does not change, each number refers to the same value.
    freed: u64,
}

impl<T: Default> Slab<T> {
    const PAGE: usize = 32;

    pub(crate) fn get(&self, number: u32) -> &T {
        &self.pages[number as usize / Self::PAGE][number as usize % Self::PAGE]
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> &mut T {
        &mut self.pages[number as usize / Self::PAGE][number as usize % Self::PAGE]
    }

    /// Whether no value was ever added.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.end == 0
    }

    /// Changes whenever a value is freed.
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.freed
    }

    /// Prefetches a value.
    #[inline(always)]
    pub(crate) fn prefetch(&self, number: u32) {
        for byte in (0..size_of::<T>()).step_by(64) {
            prefetch(std::ptr::from_ref(self.get(number)).cast::<u8>().wrapping_add(byte));
        }
    }

    /// Moves an entry out, to be put back or freed.
    pub(crate) fn take(&mut self, number: u32) -> T {
        std::mem::take(self.get_mut(number))
    }

    pub(crate) fn add(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            assert!(self.end < u32::MAX - 1, "fewer than 2^32 - 2 entries in the overflow");
            if self.end as usize == self.pages.len() * Self::PAGE {
                self.pages.push((0..Self::PAGE).map(|_| T::default()).collect());
            }
            self.end += 1;
            self.end - 1
        })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.pages.iter().flat_map(|page| page.iter())
    }

    pub(crate) fn free(&mut self, number: u32) {
        *self.get_mut(number) = T::default();
        self.free.push(number);
        self.freed += 1;
    }

    /// Bytes of memory. `beside`: bytes that an entry allocates itself.
    pub(crate) fn memory_bytes(&self, beside: impl Fn(&T) -> usize) -> usize {
        let pages = self.pages.len() * (Self::PAGE * size_of::<T>() + size_of::<Box<[T]>>());
        pages + self.free.capacity() * size_of::<u32>() + self.iter().map(beside).sum::<usize>()
    }
}

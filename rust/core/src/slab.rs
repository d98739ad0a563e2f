//! A slab: values by number, for entries that do not fit into a slot of a line.

use crate::prefetch::prefetch;

/// Values by number. They are stored in pages, so that growth copies nothing.
#[derive(Default)]
pub(crate) struct Slab<T> {
    pages: Vec<Box<[T]>>,
    /// Numbers below `end` that are free.
    free: Vec<u32>,
    /// Numbers that became free in this period, and in the one before. They are not used again yet.
    retired: [Vec<u32>; 2],
    end: u32,
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
    }

    /// Like `free`, but the number is not used again before this period and the next one end. A number that was looked
    /// up in the last period therefore still refers to the same value, or to the default.
    pub(crate) fn retire(&mut self, number: u32) {
        *self.get_mut(number) = T::default();
        self.retired[0].push(number);
    }

    /// Ends a period.
    #[inline]
    pub(crate) fn end_period(&mut self) {
        if self.retired.iter().any(|numbers| !numbers.is_empty()) {
            self.retired.swap(0, 1);
            self.free.append(&mut self.retired[0]);
        }
    }

    /// Makes all retired numbers free. No number that was looked up may be in use.
    pub(crate) fn release(&mut self) {
        self.retired.iter_mut().for_each(|numbers| self.free.append(numbers));
    }

    /// Bytes of memory. `beside`: bytes that an entry allocates itself.
    pub(crate) fn memory_bytes(&self, beside: impl Fn(&T) -> usize) -> usize {
        let pages = self.pages.len() * (Self::PAGE * size_of::<T>() + size_of::<Box<[T]>>());
        let free = self.free.capacity() + self.retired.iter().map(Vec::capacity).sum::<usize>();
        pages + free * size_of::<u32>() + self.iter().map(beside).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number that was looked up in a period refers to its value or to the default until the next period ends.
    #[test]
    fn a_retired_number_rests_for_a_period() {
        let mut slab: Slab<u64> = Slab::default();
        let first = slab.add();
        *slab.get_mut(first) = 7;
        slab.retire(first);
        assert_eq!(*slab.get(first), 0);
        let added: Vec<u32> = (0..2).map(|_| (slab.add(), slab.end_period()).0).collect();
        assert!(!added.contains(&first), "{added:?}");
        assert_eq!(slab.add(), first);
    }

    #[test]
    fn retired_numbers_are_used_again() {
        let mut slab: Slab<u64> = Slab::default();
        for _ in 0..10_000 {
            let number = slab.add();
            slab.retire(number);
            slab.end_period();
        }
        for _ in 0..10_000 {
            let number = slab.add();
            slab.retire(number);
            slab.release();
        }
        assert!(slab.memory_bytes(|_| 0) < 1000, "{}", slab.memory_bytes(|_| 0));
    }
}

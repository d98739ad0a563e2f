//! The memory of a segment: the tags of its groups, then its lines.

use super::groups::{GROUP, Group};
use crate::{Error, Result};
use std::alloc::{Layout, alloc, dealloc};
use std::mem::MaybeUninit;
use std::ptr::NonNull;

/// Tags are zeroed; lines stay uninitialized, so growth writes only used lines. From the size of a huge page on, memory
/// comes from the system and returns to it, so that memory which a table frees is really free.
pub(super) struct Buffer<L> {
    start: NonNull<u8>,
    lines: NonNull<MaybeUninit<L>>,
    groups: usize,
}

/// Alignment of lines: a cache line.
const ALIGN: usize = 64;

// SAFETY: like a Vec, the buffer owns its memory and has no interior mutability.
unsafe impl<L: Send> Send for Buffer<L> {}
// SAFETY: as above.
unsafe impl<L: Sync> Sync for Buffer<L> {}

impl<L> Buffer<L> {
    /// Allocates memory for groups of lines, at least one. Returns `Error::Memory` on failure.
    pub(super) fn new(groups: usize) -> Result<Buffer<L>> {
        assert!(groups > 0 && align_of::<L>() <= ALIGN);
        let refused = Error::Memory { bytes: groups.saturating_mul(GROUP * (1 + size_of::<L>())) as u64 };
        let layout = Self::layout(groups).ok_or_else(|| refused.clone())?;
        // A Vec has no huge pages (they reduce a random look-up in 100 M entries from 17 to 13 ns) and no uninitialized
        // lines, and it aborts if there is no memory.
        let start = if is_from_system(layout) { map(layout.size()) } else { zeroed(layout, groups * GROUP) };
        let start = start.ok_or(refused)?;
        // SAFETY: the tags come first, so the lines begin within the allocation.
        let lines = unsafe { start.add(Self::lines_from(groups)) }.cast();
        Ok(Buffer { start, lines, groups })
    }

    fn layout(groups: usize) -> Option<Layout> {
        let lines = Layout::array::<L>(groups.checked_mul(GROUP)?).ok()?;
        let size = Self::lines_from(groups).checked_add(lines.size())?;
        Layout::from_size_align(size, ALIGN).ok()
    }

    /// Offset of the lines in bytes.
    fn lines_from(groups: usize) -> usize {
        (groups * size_of::<Group>()).next_multiple_of(ALIGN)
    }

    pub(super) fn bytes(&self) -> usize {
        Self::lines_from(self.groups) + self.groups * GROUP * size_of::<L>()
    }

    /// Makes the system provide all pages now. Otherwise the first use of each page waits for it.
    pub(super) fn provide(&self) {
        let layout = Self::layout(self.groups).expect("it was allocated with this layout");
        if is_from_system(layout) {
            provide(self.start, layout.size());
        }
    }

    /// Address of the tags, valid as long as the buffer.
    pub(super) fn tags_at(&self) -> NonNull<Group> {
        self.start.cast()
    }

    /// Address of the lines.
    pub(super) fn lines_at(&self) -> NonNull<u8> {
        self.lines.cast()
    }

    #[inline]
    pub(super) fn tags(&self) -> &[Group] {
        // SAFETY: `new` zeroed this many groups at the start, and only `tags_mut` writes them. Tags and lines share one
        // allocation, so the tags are in huge pages too.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.groups) }
    }

    #[inline]
    pub(super) fn tags_mut(&mut self) -> &mut [Group] {
        // SAFETY: as in `tags`, and self is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().cast(), self.groups) }
    }

    /// Address of a line, for prefetching. Any number is allowed.
    #[inline]
    pub(super) fn address(&self, index: usize) -> *const MaybeUninit<L> {
        self.lines.as_ptr().wrapping_add(index)
    }

    /// # Safety
    /// `index` is less than 16 times the groups of the buffer.
    #[inline]
    pub(super) unsafe fn line(&self, index: usize) -> &MaybeUninit<L> {
        debug_assert!(index < self.groups * GROUP);
        // SAFETY: in bounds of the allocation, which lives as long as self, and aligned: lines begin at a multiple of
        // 64 bytes. MaybeUninit needs no value. The tag that the caller has read was in bounds, so a check here would
        // be the second one (7 of some 200 instructions per row).
        unsafe { &*self.address(index) }
    }

    /// # Safety
    /// As for `line`.
    #[inline]
    pub(super) unsafe fn line_mut(&mut self, index: usize) -> &mut MaybeUninit<L> {
        debug_assert!(index < self.groups * GROUP);
        // SAFETY: as in `line`, and self is borrowed mutably.
        unsafe { &mut *self.address(index).cast_mut() }
    }
}

impl<L> Drop for Buffer<L> {
    fn drop(&mut self) {
        let layout = Self::layout(self.groups).expect("it was allocated with this layout");
        if is_from_system(layout) {
            unmap(self.start, layout.size());
        } else {
            // SAFETY: allocated in `zeroed` with this layout. Lines are Copy and need no drop.
            unsafe { dealloc(self.start.as_ptr(), layout) }
        }
    }
}

/// Allocates memory whose first `zeros` bytes are 0.
fn zeroed(layout: Layout, zeros: usize) -> Option<NonNull<u8>> {
    // SAFETY: the size is that of at least one group, not zero.
    let start = NonNull::new(unsafe { alloc(layout) })?;
    // SAFETY: the tags are within the allocation.
    unsafe { start.as_ptr().write_bytes(0, zeros) };
    Some(start)
}

use system::{is_from_system, map, provide, unmap};

#[cfg(all(target_os = "linux", not(miri)))]
mod system {
    use std::alloc::Layout;
    use std::ptr::NonNull;

    const HUGE_PAGE: usize = 2 << 20;

    pub(super) fn is_from_system(layout: Layout) -> bool {
        layout.size() >= HUGE_PAGE
    }

    /// Allocates zeroed memory that begins on a huge page.
    pub(super) fn map(bytes: usize) -> Option<NonNull<u8>> {
        let padded = bytes.checked_add(HUGE_PAGE)?;
        // SAFETY: a new private mapping at an address chosen by the system affects no existing memory. The allocator
        // would keep freed memory, and growing 100 M entries would then peak at twice their size.
        let mapped = unsafe {
            let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            libc::mmap(std::ptr::null_mut(), padded, access, kind, -1, 0)
        };
        if mapped == libc::MAP_FAILED {
            return None;
        }
        let mapped = NonNull::new(mapped.cast::<u8>())?;
        let before = mapped.as_ptr().align_offset(HUGE_PAGE);
        let start = unmap_ends(mapped, padded, before, bytes);
        // SAFETY: the range was just mapped; the advice changes no content. An error means that there are no huge
        // pages, which is only slower.
        unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
        Some(start)
    }

    /// Unmaps the parts of a mapping before and after the `bytes` that begin at offset `before`.
    fn unmap_ends(mapped: NonNull<u8>, padded: usize, before: usize, bytes: usize) -> NonNull<u8> {
        const PAGE: usize = 4096;
        let end = before + bytes.next_multiple_of(PAGE);
        // SAFETY: both pieces are within the mapping, which has more than `before + bytes` bytes, and no other code has
        // their address yet. Mappings are cut at multiples of a page. If the system has larger pages, the second call
        // fails and the end stays mapped and unused.
        unsafe {
            if before > 0 {
                libc::munmap(mapped.as_ptr().cast(), before);
            }
            if end < padded {
                libc::munmap(mapped.as_ptr().add(end).cast(), padded - end);
            }
            mapped.add(before)
        }
    }

    pub(super) fn provide(start: NonNull<u8>, bytes: usize) {
        // SAFETY: mapped by `map` with this size, and its owner is borrowed; the advice changes no content. An error
        // (an older system, no memory) is only slower. Without the advice, loading 100 M entries of one partition each
        // takes 5.2 s, not 3.4 s.
        unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_POPULATE_WRITE) };
    }

    pub(super) fn unmap(start: NonNull<u8>, bytes: usize) {
        // SAFETY: mapped by `map` with this size; its owner is being dropped.
        unsafe { libc::munmap(start.as_ptr().cast(), bytes) };
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
mod system {
    use std::alloc::Layout;
    use std::ptr::NonNull;

    pub(super) fn is_from_system(_layout: Layout) -> bool {
        false
    }

    pub(super) fn map(_bytes: usize) -> Option<NonNull<u8>> {
        unreachable!("nothing comes from the system here")
    }

    pub(super) fn provide(_start: NonNull<u8>, _bytes: usize) {
        unreachable!("nothing comes from the system here")
    }

    pub(super) fn unmap(_start: NonNull<u8>, _bytes: usize) {
        unreachable!("nothing comes from the system here")
    }
}

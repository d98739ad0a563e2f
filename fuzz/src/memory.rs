//! How much memory a piece of work asks for, by thread, and an end to it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
    /// What may be held at most. Where more is asked for, there is none, which ends the process unless the work knows
    /// better.
    static LIMIT: Cell<isize> = const { Cell::new(isize::MAX) };
    /// What was asked for above that.
    static REFUSED: Cell<usize> = const { Cell::new(0) };
}

/// What the work gives, and the bytes that it held at most.
pub(crate) fn peak_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.get();
    PEAK.set(before);
    let result = work();
    (result, (PEAK.get() - before) as usize)
}

/// Does something that may hold so many bytes more, and gets no more.
///
/// # Panics
/// Where it asked for more.
pub fn bounded<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    /// Also where the work panics.
    struct Unbounded;
    impl Drop for Unbounded {
        fn drop(&mut self) {
            LIMIT.set(isize::MAX);
        }
    }
    let before = HELD.get();
    REFUSED.set(0);
    LIMIT.set(before + bytes as isize);
    let result = {
        let _unbounded = Unbounded;
        work()
    };
    let refused = REFUSED.get();
    assert!(refused == 0, "{refused} bytes were asked for above the {bytes} that are allowed");
    result
}

/// Whether so many bytes more may be held. Counts them if so.
fn count(bytes: usize) -> bool {
    let held = HELD.get().saturating_add_unsigned(bytes);
    if held > LIMIT.get() {
        REFUSED.set(bytes);
        return false;
    }
    HELD.set(held);
    PEAK.set(PEAK.get().max(held));
    true
}

// SAFETY: every call is handed on to the system's allocator as it came, or there is no memory, which any allocator may
// say. Counting allocates nothing: the counters are plain numbers without a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !count(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !count(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise is the same.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        HELD.set(HELD.get().saturating_sub_unsigned(layout.size()));
        // SAFETY: the caller's promise is the same.
        unsafe { System.dealloc(start, layout) }
    }
}

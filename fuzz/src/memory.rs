//! Measures and limits the memory that work allocates, by thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
    /// The maximum number of allocated bytes. Further requests fail, which aborts the process unless the work handles
    /// it.
    static LIMIT: Cell<isize> = const { Cell::new(isize::MAX) };
    /// The bytes of refused requests.
    static REFUSED: Cell<usize> = const { Cell::new(0) };
}

/// Decodes this many bytes. Panics if more than `allowed` bytes are allocated at once.
pub(crate) fn decode_within<T>(allowed: usize, bytes: usize, decode: impl FnOnce() -> T) -> T {
    let before = HELD.get();
    PEAK.set(before);
    let result = decode();
    let peak = (PEAK.get() - before) as usize;
    assert!(peak <= allowed, "{bytes} bytes made decoding hold {peak}, at most {allowed} are allowed");
    result
}

/// Runs work that may allocate this many more bytes, and refuses further requests.
///
/// # Panics
/// If it requests more.
pub fn bounded<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    /// Removes the limit even if the work panics.
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

/// Whether this many more bytes may be allocated. Counts them if so.
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

// SAFETY: every call is passed unchanged to the system's allocator, or fails, which any allocator may do. Counting
// allocates nothing: the counters are plain numbers without a destructor.
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

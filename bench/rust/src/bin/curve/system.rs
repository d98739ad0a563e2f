//! What the system says of this process, and what the memory alone can do.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::hint::black_box;
use std::ptr::NonNull;
use std::time::Instant;

/// Resident bytes of this process; 0 where the system does not tell.
pub(crate) fn resident_bytes() -> u64 {
    status_bytes("VmRSS:")
}

/// The most that was resident since [`forget_peak`], or since the start where that does nothing.
pub(crate) fn peak_bytes() -> u64 {
    status_bytes("VmHWM:")
}

/// Begins the search for a peak again. False where the system has no such thing.
pub(crate) fn forget_peak() -> bool {
    std::fs::write("/proc/self/clear_refs", "5").is_ok()
}

fn status_bytes(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok()).unwrap_or(0) * 1024
}

const LINE_BYTES: usize = 64;
const HUGE_PAGE: usize = 2 << 20;
/// Lines asked for together: as many as runs go through the state table together.
const DEPTH: usize = 128;

/// As many 64-byte lines as a table has, in huge pages as a table's, to be read at random.
pub(crate) struct Lines {
    start: NonNull<u8>,
    layout: Layout,
    count: usize,
}

impl Lines {
    /// Lines of as many bytes, at least one. Line i begins with i.
    pub(crate) fn of_bytes(bytes: usize) -> Lines {
        let count = (bytes / LINE_BYTES).max(1);
        let align = if count * LINE_BYTES < HUGE_PAGE { LINE_BYTES } else { HUGE_PAGE };
        let layout = Layout::from_size_align(count * LINE_BYTES, align).expect("a table's size");
        // SAFETY: the size is not zero.
        let Some(start) = NonNull::new(unsafe { alloc(layout) }) else { handle_alloc_error(layout) };
        #[cfg(target_os = "linux")]
        if align == HUGE_PAGE {
            // SAFETY: the range was just allocated; the advice changes no content.
            unsafe { libc::madvise(start.as_ptr().cast(), layout.size(), libc::MADV_HUGEPAGE) };
        }
        let lines = Lines { start, layout, count };
        for index in 0..count {
            // SAFETY: in bounds, and a line is aligned for a u64.
            unsafe { lines.address(index).write(index as u64) };
        }
        lines
    }

    fn address(&self, index: usize) -> *mut u64 {
        self.start.as_ptr().wrapping_add(index * LINE_BYTES).cast()
    }

    /// Seconds that one read of each of these lines takes, each asked for 128 reads ahead. The sum of what they hold
    /// is checked.
    pub(crate) fn read(&self, indexes: &[u32]) -> f64 {
        let begin = Instant::now();
        let mut sum = 0u64;
        for chunk in indexes.chunks(DEPTH) {
            for &index in chunk {
                prefetch(self.address(index as usize));
            }
            for &index in chunk {
                assert!((index as usize) < self.count);
                // SAFETY: in bounds, written by `of_bytes`.
                sum += unsafe { self.address(index as usize).read() };
            }
        }
        let seconds = begin.elapsed().as_secs_f64();
        assert_eq!(black_box(sum), indexes.iter().map(|&index| u64::from(index)).sum::<u64>());
        seconds
    }

    /// Numbers of lines, drawn at random.
    pub(crate) fn random_indexes(&self, seed: u64, count: usize) -> Vec<u32> {
        let mut state = seed;
        (0..count).map(|_| (fencepost_bench::random(&mut state) % self.count as u64) as u32).collect()
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        // SAFETY: allocated in `of_bytes` with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// The limit is what this machine can do: it is asked for lines even where the table under test may not ask.
#[inline]
fn prefetch<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which reads nothing and cannot fault.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

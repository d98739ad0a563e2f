//! Prefetching: memory is requested before it is needed, for several keys at once. While one is judged, the lines of
//! the others are loaded.

/// Number of keys that do each step of a search together.
pub(crate) const STEP: usize = 16;

/// Maximum number of keys that are searched together.
pub(crate) const CHUNK: usize = 8 * STEP;

/// Whether the processor has an instruction for prefetching. Without one, a read whose result is not used is nearly as
/// good.
pub(crate) const HAS_PREFETCH: bool =
    cfg!(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(feature = "portable")));

/// Requests a cache line if the processor has an instruction for it. It never faults, whatever the address.
#[inline(always)]
pub fn prefetch<T>(address: *const T) {
    #[cfg(all(target_arch = "x86_64", not(feature = "portable")))]
    // SAFETY: a prefetch is a hint; it reads nothing and cannot fault. The speed of the table depends on it: at 100 M
    // entries, a look-up waits 90 ns without it and 13 to 20 ns with it.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(all(target_arch = "aarch64", not(feature = "portable")))]
    #[allow(clippy::pointers_in_nomem_asm_block)] // the instruction accesses no memory of the program
    // SAFETY: a prefetch is a hint; it reads nothing and cannot fault. The standard library has no stable call for this
    // instruction. The figure is that of x86-64: no ARM processor was measured.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) address, options(nomem, nostack, preserves_flags));
    }
    #[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(feature = "portable"))))]
    let _ = address;
}

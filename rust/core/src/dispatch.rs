//! Compiles code for several kinds of processor, and chooses the best one at run time.

/// Work that is faster with newer instructions. It is a trait and not a closure, because only functions marked
/// `#[inline(always)]` are compiled again for each kind of processor.
pub(crate) trait Work {
    type Done;
    /// Whether it is faster with vectors of 512 bits. Some processors lower their clock for these.
    #[cfg_attr(
        any(not(target_arch = "x86_64"), feature = "portable"),
        expect(dead_code, reason = "one kind of code for all processors")
    )]
    const IS_WIDE: bool;

    /// Must be marked `#[inline(always)]`, like all functions that it calls.
    fn work(self) -> Self::Done;
}

/// Runs the work in the code compiled for this processor.
#[inline]
pub(crate) fn dispatch<W: Work>(work: W) -> W::Done {
    #[cfg(all(target_arch = "x86_64", not(feature = "portable")))]
    {
        if W::IS_WIDE && has_avx512() && has_bits() {
            // SAFETY: the features were just detected. This is the same code, compiled for 512-bit vectors.
            return unsafe { with_avx512(work) };
        }
        if is_x86_feature_detected!("avx2") && has_bits() {
            // SAFETY: the features were just detected. This is the same code, compiled for 256-bit vectors.
            return unsafe { with_avx2(work) };
        }
    }
    work.work()
}

#[cfg(all(target_arch = "x86_64", not(feature = "portable")))]
fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
}

#[cfg(all(target_arch = "x86_64", not(feature = "portable")))]
fn has_bits() -> bool {
    is_x86_feature_detected!("bmi1") && is_x86_feature_detected!("bmi2")
}

#[cfg(all(target_arch = "x86_64", not(feature = "portable")))]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,bmi1,bmi2")]
fn with_avx512<W: Work>(work: W) -> W::Done {
    work.work()
}

#[cfg(all(target_arch = "x86_64", not(feature = "portable")))]
#[target_feature(enable = "avx2,bmi1,bmi2")]
fn with_avx2<W: Work>(work: W) -> W::Done {
    work.work()
}

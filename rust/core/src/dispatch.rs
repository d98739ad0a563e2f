//! One piece of code compiled for several kinds of processor, the best of which is taken at run time.

/// Work that gains from newer instructions. A closure would not do: only what is marked to be inlined
/// always is compiled anew for each kind of processor.
pub(crate) trait Work {
    type Done;
    /// Whether it gains from vectors of 512 bits, for which some processors slow down.
    #[cfg_attr(
        any(not(target_arch = "x86_64"), feature = "portable"),
        expect(dead_code, reason = "one kind of code for all processors")
    )]
    const IS_WIDE: bool;

    /// To be marked `#[inline(always)]`, and so what it calls.
    fn work(self) -> Self::Done;
}

/// Does the work in code for this processor.
#[inline]
pub(crate) fn dispatch<W: Work>(work: W) -> W::Done {
    #[cfg(all(target_arch = "x86_64", not(feature = "portable")))]
    {
        if W::IS_WIDE && has_avx512() && has_bits() {
            // SAFETY: the features were just found. The same code compiled for 512-bit vectors.
            return unsafe { with_avx512(work) };
        }
        if is_x86_feature_detected!("avx2") && has_bits() {
            // SAFETY: the features were just found. The same code compiled for 256-bit vectors.
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

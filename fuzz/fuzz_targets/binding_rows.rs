//! See `fencepost_fuzz::binding::rows`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fencepost_fuzz::binding::rows(bytes));

//! See `fencepost_fuzz::binding::restore`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fencepost_fuzz::binding::restore(bytes));

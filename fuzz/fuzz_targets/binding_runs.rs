//! See `fencepost_fuzz::binding::runs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fencepost_fuzz::binding::runs(bytes));

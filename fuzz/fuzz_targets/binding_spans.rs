//! See `fencepost_fuzz::binding::spans`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fencepost_fuzz::binding::spans(bytes));

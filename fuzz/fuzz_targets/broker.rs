//! See `fencepost_fuzz::broker`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fencepost_fuzz::broker(bytes));

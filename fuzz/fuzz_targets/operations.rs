//! See `fencepost_fuzz::operations`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fencepost_fuzz::operations(bytes));

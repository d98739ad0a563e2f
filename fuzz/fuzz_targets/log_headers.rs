//! See `fencepost_fuzz::log::headers`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fencepost_fuzz::log::headers(bytes));

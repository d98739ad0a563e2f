//! See `fencepost_fuzz::log::index`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fencepost_fuzz::log::index(bytes));

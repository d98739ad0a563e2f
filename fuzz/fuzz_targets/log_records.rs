//! See `fencepost_fuzz::log::records`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fencepost_fuzz::log::records(bytes));

//! See `fencepost_fuzz::log::aborted`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fencepost_fuzz::log::aborted(bytes));

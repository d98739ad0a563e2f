//! See `fencepost_fuzz::binding::parquet`.
#![no_main]

use fencepost_fuzz::binding::{end_at_panics_of_ours, parquet};

libfuzzer_sys::fuzz_target!(init: end_at_panics_of_ours(), |bytes: &[u8]| parquet(bytes));

//! What must hold of any bytes. Each function panics where it does not.
//!
//! libFuzzer calls them from `fuzz_targets`, and `tests/corpus.rs` calls them on the corpus and on what
//! comes of it by chance, without libFuzzer.

pub mod binding;
mod broker;
mod bytes;
mod follower;
pub mod log;
mod memory;
mod operations;
mod snapshot;

pub use broker::broker;
pub use memory::bounded;
pub use operations::{Named, POLICIES, operations, operations_with};
pub use snapshot::{FOLLOWED, seal, snapshot};

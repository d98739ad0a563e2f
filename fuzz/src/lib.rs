//! Properties that hold for any bytes. Each function panics if its property does not hold.
//!
//! libFuzzer calls them from `fuzz_targets`. `tests/corpus.rs` calls them without libFuzzer, on the corpus and on
//! random changes of it.

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

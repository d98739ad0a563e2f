//! The log of one partition, for one writer: batches are judged by a [`fencepost_core::BrokerTable`], written as a
//! broker writes them, and are on disk when the policy says so.
//!
//! The crate knows neither Python nor Arrow. Files go through [`Disk`], so that tests can take the disk away in the
//! middle of anything.

mod disk;
mod error;
mod log;
mod producers;
mod recovery;
mod repair;
mod segment;
mod sync;
mod transactions;

pub use disk::{Disk, Folder, Lock, LogFile};
pub use error::{Error, Result};
pub use log::{Appended, Batch, Options, PartitionLog, Reading};
pub use producers::{of_kafka, to_kafka};
pub use recovery::Recovered;
pub use sync::Policy;

//! The log of one partition, for one writer. A [`fencepost_core::BrokerTable`] judges its batches, and they are written
//! in a broker's format. The policy decides when they must be on disk.
//!
//! The crate does not depend on Python or Arrow. It accesses files through [`Disk`], so that tests can make the disk
//! fail at any moment.

mod disk;
mod error;
mod log;
mod producers;
mod recovery;
mod repair;
mod segment;
mod sync;
mod transactions;

pub use disk::{Disk, Folder, Lock, LogFile, sync_folder};
pub use error::{Error, Result};
pub use log::{Appended, Batch, Options, PartitionLog, Reading};
pub use producers::{of_kafka, to_kafka};
pub use recovery::Recovered;
pub use sync::Policy;

//! The rules by which rows are judged, the table that stores the state of producers, and its snapshots.
//!
//! A row is one event with (pid, epoch, partition, seq). A [`StateTable`] judges batches of rows under a [`Policy`] and
//! returns a [`Verdict`] for each. The crate does not depend on Python, Arrow, clocks or files: columns are slices, and
//! snapshots use [`std::io`].
//!
//! ```
//! use fencepost_core::{Batch, Policy, Seqs, StateTable, Verdict};
//!
//! let mut table = StateTable::new(Policy::preset("any_order").unwrap()).unwrap();
//! let judged = table
//!     .apply(&[Batch {
//!         pid: &[7, 7, 7, 7],
//!         partition: &[0, 0, 0, 0],
//!         epoch: Some(&[0, 0, 0, 0]),
//!         seq: Seqs::I32(&[0, 1, 1, 4]),
//!         timestamp: None,
//!     }])
//!     .unwrap();
//! assert_eq!(judged.verdicts, [0, 0, Verdict::Duplicate as u8, 0]);
//! let missing = judged.missing(table.keys()).next().unwrap();
//! assert_eq!((missing.first_seq, missing.last_seq), (2, 3));
//! ```

mod batch;
mod broker;
mod changes;
mod dictionary;
mod dispatch;
mod error;
mod fast_path;
mod holes;
mod judge;
mod key_block;
mod keys;
mod lines;
mod order;
mod ordered;
mod parallel;
mod policy;
mod position;
mod prefetch;
mod radix;
mod repeats;
mod shelf;
mod slab;
mod snapshot;
mod spans;
mod store;
mod table;
mod transactions;
mod union;
mod verdict;

pub use batch::{Batch, Seqs};
pub use broker::{
    BrokerJudged, BrokerOptions, BrokerTable, BrokerVersion, Control, Origin, Origins, ProduceBatches, ProducerEntry,
    WindowBatch,
};
pub use dictionary::{Dictionary, Strings, fold_bytes, fold_hash};
pub use error::{Column, Error, Result};
pub use keys::{
    KEY_BYTES_MAX, KEY_PARTS_MAX, KeyKind, KeyMark, KeyRef, KeySpace, Keys, PartKind, PartValue, decode_parts,
    encode_bytes, encode_int, shard_hash,
};
pub use lines::Partitions;
pub use policy::{Admit, Epochs, First, Gaps, Late, PRESETS, Policy, Preset, Untracked};
pub use prefetch::prefetch;
pub use repeats::{KeyColumns, KeyedRows, Repeats};
pub use snapshot::Delta;
pub use spans::{Domain, find_spans};
pub use table::{Entries, Entry, Hole, Judged, Missing, Stale, StateTable};
pub use transactions::{AbortedTransaction, LogRows, OpenTransaction, Outcome, Outcomes, Resolved, TransactionIndex};
pub use verdict::{Verdict, kept_bits};

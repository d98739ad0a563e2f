//! Transactions of the log: open and aborted ones (kafka-rules 5.2, Kafka's `ProducerStateManager`).

use fencepost_core::Control;
use fencepost_kafka::aborted::AbortedTxn;
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};

/// The open transactions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Transactions {
    /// First offset by producer.
    open: HashMap<i64, i64>,
    first_offsets: BTreeSet<i64>,
    /// First offset and marker of transactions whose marker may not be on disk yet. Readers treat them as open.
    undecided: Vec<(i64, i64)>,
}

impl Transactions {
    /// The offset from which on nothing is decided, in a log that readers see up to `end`.
    pub(crate) fn last_stable_offset(&self, end: i64) -> i64 {
        let undecided = self.undecided.iter().filter(|&&(_, marker)| marker >= end).map(|&(first, _)| first);
        undecided.chain(self.first_offsets.first().copied()).fold(end, i64::min)
    }

    /// Records a batch of a transaction. The first one counts.
    pub(crate) fn begin(&mut self, pid: i64, first_offset: i64) {
        if let Entry::Vacant(free) = self.open.entry(pid) {
            free.insert(first_offset);
            self.first_offsets.insert(first_offset);
        }
    }

    /// Records a batch or marker at this offset. For a marker that aborts data, returns its entry in the index of
    /// aborted transactions.
    pub(crate) fn note(
        &mut self,
        pid: i64,
        control: Control,
        is_transactional: bool,
        offset: i64,
    ) -> Option<AbortedTxn> {
        match control {
            Control::Commit | Control::Abort => self.end(pid, control, offset),
            Control::Data if is_transactional => {
                self.begin(pid, offset);
                None
            }
            Control::Data | Control::Empty | Control::Other => None,
        }
    }

    fn end(&mut self, pid: i64, control: Control, offset: i64) -> Option<AbortedTxn> {
        let first_offset = self.open.remove(&pid)?;
        self.first_offsets.remove(&first_offset);
        self.undecided.push((first_offset, offset));
        let last_stable_offset = self.first_offsets.first().copied().unwrap_or(offset + 1);
        (control == Control::Abort).then_some(AbortedTxn { pid, first_offset, last_offset: offset, last_stable_offset })
    }

    /// Records that readers see the log up to here: markers before it are on disk.
    pub(crate) fn forget_before(&mut self, end: i64) {
        self.undecided.retain(|&(_, marker)| marker >= end);
    }
}

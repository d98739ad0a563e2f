//! The rules: what a partition leader decides about one batch or marker (kafka-rules 4 and 5, after Kafka's
//! `ProducerAppendInfo`, `ProducerStateEntry` and `UnifiedLog`).

use super::batch::{Control, Origin, Row, add, subtract};
use super::{BrokerOptions, BrokerVersion, NONE};
use crate::Verdict;

/// A batch of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowBatch {
    /// Its last sequence number; -1 if it has none.
    pub last_seq: i32,
    /// The distance from its first to its last sequence number and offset.
    pub offset_delta: i32,
    /// The offset of its last record; -1 if unknown.
    pub last_offset: i64,
}

impl WindowBatch {
    /// Its first sequence number; -1 if it has none.
    pub fn first_seq(&self) -> i32 {
        if self.last_seq < 0 { -1 } else { subtract(self.last_seq, self.offset_delta) }
    }

    /// The offset of its first record; -1 if unknown.
    pub fn first_offset(&self) -> i64 {
        if self.last_offset < 0 { NONE } else { self.last_offset - i64::from(self.offset_delta) }
    }
}

/// The state of a producer in a partition.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Producer {
    pub(super) epoch: i16,
    /// -1: none.
    pub(super) coordinator_epoch: i32,
    /// The timestamp of the last batch or marker, in milliseconds; -1: none.
    pub(super) last_timestamp: i64,
    pub(super) is_open: bool,
    /// The first offset of the open transaction; -1: unknown, or none open.
    pub(super) open_from: i64,
    /// Oldest first. Empty after a marker that raised the epoch; this is different from an unknown producer.
    pub(super) window: Vec<WindowBatch>,
}

/// The judgement of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    Accepted,
    /// With the first offset of the original; -1: unknown.
    Duplicate(i64),
    /// With the only sequence number that would be accepted.
    OutOfOrder(i32),
    Refused(Verdict),
}

/// The rules of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) window: usize,
    /// Whether an unknown producer must begin at 0.
    begins_at_zero: bool,
    /// Whether it must do so in a partition that never had a record.
    pub(super) begins_at_zero_in_new_partitions: bool,
    /// Whether a marker of the second transaction protocol that ends a transaction raises the epoch.
    markers_raise_epoch: bool,
    /// Whether this includes the last epoch, which cannot be raised.
    last_epoch_is_raised: bool,
}

impl Rules {
    pub(super) fn new(options: &BrokerOptions) -> Rules {
        let from = |major, minor| options.version >= BrokerVersion { major, minor };
        Rules {
            window: options.window.into(),
            begins_at_zero: options.begins_at_zero || !from(2, 5),
            begins_at_zero_in_new_partitions: from(4, 5),
            markers_raise_epoch: from(4, 2),
            last_epoch_is_raised: !from(4, 3),
        }
    }

    /// Judges a row against the state of its producer. `is_new_partition`: the partition never had a record.
    pub(super) fn judge(&self, known: Option<&Producer>, row: &Row, is_new_partition: bool) -> Judgement {
        match row.control {
            Control::Data => self.judge_data(known, row, is_new_partition),
            Control::Commit | Control::Abort => self.judge_marker(known, row),
            Control::Empty | Control::Other => Judgement::Accepted,
        }
    }

    /// Judges data. The order of checks is: duplicate, epoch, sequence, transaction.
    fn judge_data(&self, known: Option<&Producer>, row: &Row, is_new_partition: bool) -> Judgement {
        let Some(known) = known else {
            let needs_zero = self.begins_at_zero || (self.begins_at_zero_in_new_partitions && is_new_partition);
            let is_refused = row.origin == Origin::Client && needs_zero && row.base_seq != 0;
            return if is_refused { Judgement::OutOfOrder(0) } else { Judgement::Accepted };
        };
        if row.origin == Origin::Client
            && known.epoch == row.epoch
            && let Some(same) = known.window.iter().find(|batch| batch.is(row))
        {
            return Judgement::Duplicate(same.first_offset());
        }
        if row.origin != Origin::Replica && row.epoch < known.epoch {
            return Judgement::Refused(Verdict::Fenced);
        }
        if row.origin == Origin::Client {
            let next = if row.epoch == known.epoch { known.next_seq() } else { 0 };
            if row.base_seq != next {
                return Judgement::OutOfOrder(next);
            }
        }
        let is_plain_within = known.is_open && !row.is_transactional;
        if is_plain_within { Judgement::Refused(Verdict::InvalidTxnState) } else { Judgement::Accepted }
    }

    /// Judges a marker: first the epoch, then the coordinator's epoch. In a replayed log, both are only logged.
    fn judge_marker(&self, known: Option<&Producer>, row: &Row) -> Judgement {
        let Some(known) = known.filter(|_| row.origin != Origin::Replica) else { return Judgement::Accepted };
        let must_raise = self.markers_raise_epoch
            && row.transaction_version >= 2
            // No transaction is open: a retry.
            && known.is_open
            && (self.last_epoch_is_raised || row.epoch < i16::MAX);
        if row.epoch < known.epoch || (must_raise && row.epoch == known.epoch) {
            return Judgement::Refused(Verdict::Fenced);
        }
        let is_deposed = row.coordinator_epoch >= 0 && row.coordinator_epoch < known.coordinator_epoch;
        if is_deposed { Judgement::Refused(Verdict::CoordinatorFenced) } else { Judgement::Accepted }
    }
}

impl WindowBatch {
    /// Whether the row repeats this batch: both ends must match.
    fn is(&self, row: &Row) -> bool {
        self.last_seq == row.last_seq && self.offset_delta == row.delta && row.base_seq >= 0
    }
}

impl Producer {
    /// A producer without a known state.
    pub(super) fn unknown(epoch: i16) -> Producer {
        Producer {
            epoch,
            coordinator_epoch: -1,
            last_timestamp: -1,
            is_open: false,
            open_from: NONE,
            window: Vec::new(),
        }
    }

    /// Copies another producer, and reuses the allocated memory.
    pub(super) fn copy_from(&mut self, other: &Producer) {
        let mut window = std::mem::take(&mut self.window);
        window.clone_from(&other.window);
        *self = Producer { window, ..*other };
    }

    /// The next sequence number of its epoch.
    fn next_seq(&self) -> i32 {
        self.window.last().map_or(0, |batch| if batch.last_seq < 0 { 0 } else { add(batch.last_seq, 1) })
    }

    /// Applies an accepted row.
    pub(super) fn take(&mut self, row: &Row, window: usize) {
        if matches!(row.control, Control::Empty | Control::Other) {
            return;
        }
        if self.epoch != row.epoch {
            self.window.clear();
            self.epoch = row.epoch;
        }
        self.last_timestamp = row.timestamp;
        if row.is_marker() {
            (self.is_open, self.open_from) = (false, NONE);
            if row.coordinator_epoch >= 0 {
                self.coordinator_epoch = row.coordinator_epoch;
            }
            return;
        }
        if self.window.len() == window {
            self.window.remove(0);
        }
        let last_offset = row.last_offset();
        self.window.push(WindowBatch { last_seq: row.last_seq, offset_delta: row.delta, last_offset });
        if row.is_transactional && !self.is_open {
            (self.is_open, self.open_from) = (true, row.offset);
        }
    }

    /// Whether it is dropped because it was idle.
    pub(super) fn is_expired(&self, now_ms: i64, max_idle_ms: i64) -> bool {
        !self.is_open && now_ms.saturating_sub(self.last_timestamp) >= max_idle_ms
    }
}

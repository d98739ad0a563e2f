//! Produce batches and markers as columns, and their validation before any is judged.

use super::NONE;
use crate::{Column, Error, Result};
use std::ops::Range;

/// Number of rows that are validated together before one is judged. Their columns stay in the nearest cache.
const BLOCK: usize = 512;

/// The kind of a batch, with respect to transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Control {
    /// Records of a producer.
    Data = 0,
    /// The marker that commits a transaction.
    Commit = 1,
    /// The marker that aborts a transaction.
    Abort = 2,
    /// A control batch whose record was removed by compaction. It changes nothing.
    Empty = 3,
    /// Another control record of the log, such as a change of leader. It has no producer.
    Other = 4,
}

/// The origin of a batch, which decides how much of it is checked (kafka-rules 4.1, Kafka's `AppendOrigin`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Origin {
    /// A producer: everything is checked.
    Client = 0,
    /// A follower that copies its leader, or a replayed log: nearly nothing is checked.
    Replica = 1,
    /// A coordinator: markers and offset commits; epochs are checked, sequences are not.
    Coordinator = 2,
}

/// The origin of each batch. If all rows have the origin of clients, markers have that of the coordinator.
#[derive(Clone, Copy, Debug)]
pub enum Origins<'a> {
    /// The same origin for all rows.
    All(Origin),
    /// The code of each row's [`Origin`]. [`ProduceBatches::NO_ORIGIN`]: not given.
    Each(&'a [u8], Origin),
}

/// The columns of some produce batches and markers, all of equal length. `None`: there is no such column. A missing
/// value is [`ProduceBatches::NO_INT`], or -1 for the columns that say so.
#[derive(Clone, Copy, Debug)]
pub struct ProduceBatches<'a> {
    /// -1 (not idempotent), or 0 and above.
    pub pid: &'a [i64],
    /// 0 … 2^31-1. Batches that are not idempotent need it only if the table assigns offsets.
    pub partition: &'a [i32],
    /// 0 … 32767.
    pub epoch: &'a [i16],
    /// The first sequence number; -1 if there is none (markers, offset commits).
    pub base_seq: &'a [i32],
    /// The last sequence number. If known, it determines the number of sequence numbers.
    pub last_seq: Option<&'a [i32]>,
    /// The number of records, which is used if there is no last sequence number.
    pub count: Option<&'a [i32]>,
    /// The offset of the first record; -1 if unknown.
    pub offset: Option<&'a [i64]>,
    /// The offset of the last record; -1 if unknown.
    pub last_offset: Option<&'a [i64]>,
    /// The timestamp of the newest record, in milliseconds; -1 if unknown.
    pub timestamp: Option<&'a [i64]>,
    /// 1: part of a transaction.
    pub transactional: Option<&'a [u8]>,
    /// The code of a [`Control`].
    pub control: Option<&'a [u8]>,
    /// Of markers; -1 where it is not known.
    pub coordinator_epoch: Option<&'a [i32]>,
    /// Of markers; -1 where it is not known.
    pub transaction_version: Option<&'a [i8]>,
    /// The origin of the batches.
    pub origin: Origins<'a>,
}

/// One batch or marker.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) pid: i64,
    pub(super) partition: i32,
    pub(super) epoch: i16,
    pub(super) control: Control,
    pub(super) origin: Origin,
    pub(super) is_transactional: bool,
    pub(super) transaction_version: i8,
    pub(super) base_seq: i32,
    pub(super) last_seq: i32,
    /// The distance from the first to the last record, in offsets and in sequence numbers.
    pub(super) delta: i32,
    pub(super) coordinator_epoch: i32,
    /// The offset of the first record.
    pub(super) offset: i64,
    pub(super) timestamp: i64,
}

impl Row {
    pub(super) fn last_offset(&self) -> i64 {
        if self.offset == NONE { NONE } else { self.offset + i64::from(self.delta) }
    }

    pub(super) fn is_marker(&self) -> bool {
        matches!(self.control, Control::Commit | Control::Abort)
    }
}

impl<'a> ProduceBatches<'a> {
    /// Means that a row has no value.
    pub const NO_INT: i32 = i32::MIN;
    /// Means that a row has no origin.
    pub const NO_ORIGIN: u8 = u8::MAX;

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.pid.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.pid.is_empty()
    }

    /// Whether rows have data that cannot be judged without offsets, coordinators and the beginnings of transactions.
    pub(super) fn has_offsets(&self) -> bool {
        self.offset.is_some() || self.coordinator_epoch.is_some()
    }

    /// Validates every row before the first is judged.
    pub(super) fn validate(&self, needs_partitions: bool, assigns: bool) -> Result<()> {
        for from in (0..self.len()).step_by(BLOCK) {
            let rows = from..self.len().min(from + BLOCK);
            if !(self.is_valid_data(rows.clone()) && (self.offset.is_some() || !assigns)) {
                rows.into_iter().try_for_each(|row| self.check(row, needs_partitions, assigns))?;
            }
        }
        Ok(())
    }

    /// Whether these rows are data with all their numbers, as nearly all are. It checks column by column without a
    /// branch. Checking each row separately takes 3 of 17 ns.
    fn is_valid_data(&self, rows: Range<usize>) -> bool {
        fn none<T: Copy>(values: &[T], is_wrong: impl Fn(T) -> bool) -> bool {
            !values.iter().fold(false, |any, &value| any | is_wrong(value))
        }
        let (pids, base_seqs) = (&self.pid[rows.clone()], &self.base_seq[rows.clone()]);
        let fits = |(offsets, last_offsets): (&[i64], &[i64])| {
            let pairs = offsets[rows.clone()].iter().zip(&last_offsets[rows.clone()]);
            let is_wrong = |(row, (&offset, &last)): (usize, (&i64, &i64))| last - offset != self.delta(row).into();
            !rows.clone().zip(pairs).any(is_wrong)
        };
        let is_large = |offset: i64| !(0..=i64::MAX >> 1).contains(&offset);
        matches!(self.origin, Origins::All(_))
            && none(pids, |pid| pid < 0)
            && none(&self.partition[rows.clone()], |partition| partition < 0)
            && none(&self.epoch[rows.clone()], |epoch| epoch < 0)
            && none(base_seqs, |seq| seq < 0)
            && self.control.is_none_or(|codes| none(&codes[rows.clone()], |code| code != 0))
            && match self.last_seq {
                Some(seqs) => none(&seqs[rows.clone()], |seq| seq < 0),
                None => self.count.is_some_and(|counts| none(&counts[rows.clone()], |count| count < 1)),
            }
            && self.offset.map_or(self.last_offset.is_none(), |offsets| none(&offsets[rows.clone()], is_large))
            && self.last_offset.is_none_or(|offsets| none(&offsets[rows.clone()], is_large))
            && self.offset.zip(self.last_offset).is_none_or(fits)
            && self.coordinator_epoch.is_none_or(|epochs| none(&epochs[rows.clone()], |epoch| epoch < -1))
    }

    #[inline(always)]
    fn check(&self, row: usize, needs_partitions: bool, assigns: bool) -> Result<()> {
        let (pid, control) = (self.pid[row], self.control(row));
        let is_tracked = pid >= 0;
        let is_data = control == Control::Data;
        let origin = self.origin(row, control);
        let has_offset = !assigns || origin == Origin::Replica;
        let is_fine = pid >= -1
            && (self.partition[row] >= 0 || !(is_tracked || needs_partitions))
            && if is_tracked {
                self.epoch[row] >= 0 && (!is_data || self.has_sequences(row, origin))
            } else {
                !self.is_transactional(row) && matches!(control, Control::Data | Control::Other)
            }
            && (is_data || origin != Origin::Client || control == Control::Other)
            && (!(is_data && (is_tracked || needs_partitions)) || self.has_count(row, has_offset))
            && if assigns {
                let fits = || self.offset(row) != NONE && self.has_fitting_offsets(row, is_data, true);
                origin != Origin::Replica || fits()
            } else {
                !(is_tracked || needs_partitions) || self.has_fitting_offsets(row, is_data, needs_partitions)
            }
            && self.coordinator_epoch.is_none_or(|epochs| epochs[row] >= -1);
        if is_fine { Ok(()) } else { Err(self.explain(row, needs_partitions, has_offset)) }
    }

    #[inline(always)]
    fn has_sequences(&self, row: usize, origin: Origin) -> bool {
        let last_seq = self.last_seq(row);
        match self.base_seq[row] {
            0.. => last_seq >= 0 || last_seq == Self::NO_INT,
            -1 => origin != Origin::Client && (last_seq == -1 || last_seq == Self::NO_INT),
            _ => false,
        }
    }

    /// If there is a last sequence number, or offsets instead, compaction may have left fewer records or none.
    #[inline(always)]
    fn has_count(&self, row: usize, has_offset: bool) -> bool {
        let (offset, last_offset) = (self.offset(row), self.last_offset(row));
        let has_offsets = has_offset && self.base_seq[row] < 0 && offset >= 0 && last_offset >= offset;
        self.last_seq(row) >= 0 || self.count(row) >= 1 || has_offsets
    }

    /// `moves_end`: the table stores the end of the log, which is one above the batch's last offset.
    #[inline(always)]
    fn has_fitting_offsets(&self, row: usize, is_data: bool, moves_end: bool) -> bool {
        let (offset, last_offset) = (self.offset(row), self.last_offset(row));
        if moves_end && offset >= 0 && self.end(row).is_none() {
            return false;
        }
        if offset == NONE || !is_data {
            return offset >= NONE && (last_offset == NONE || (offset != NONE && last_offset >= offset));
        }
        let Some(last) = offset.checked_add(self.delta(row).into()).filter(|_| offset >= 0) else { return false };
        last_offset == NONE || last == last_offset
    }

    /// The offset after a batch, if it has one. `None` if it exceeds 64 bits.
    #[inline(always)]
    fn end(&self, row: usize) -> Option<i64> {
        let more = if self.control(row) == Control::Data { self.delta(row) } else { 0 };
        self.offset(row).checked_add(i64::from(more) + 1)
    }

    /// For valid rows: the number of rows whose offset is assigned, and the greatest end of the others.
    pub(super) fn ends(&self, assigns: bool) -> (usize, i64) {
        let brings_offset = |row: &usize| {
            let is_asked = !assigns || self.origin(*row, self.control(*row)) == Origin::Replica;
            is_asked && self.offset(*row) != NONE
        };
        let none_does = self.offset.is_none() || (assigns && matches!(self.origin, Origins::All(Origin::Client)));
        if none_does {
            return (self.len(), 0);
        }
        let bringing = (0..self.len()).filter(brings_offset);
        let (count, end) =
            bringing.fold((0, 0), |(count, end), row| (count + 1, self.end(row).map_or(end, |it| it.max(end))));
        (self.len() - count, end)
    }

    /// The error of a row that is known to be invalid.
    #[cold]
    fn explain(&self, row: usize, needs_partitions: bool, has_offset: bool) -> Error {
        let at = |column, problem: String| Error::Batch { column, row: Some(row), problem };
        let (pid, control) = (self.pid[row], self.control(row));
        let origin = self.origin(row, control);
        if pid < -1 {
            return at(Column::Pid, format!("value {pid} is outside 0..=9223372036854775807 (-1 or null: untracked)"));
        }
        if self.partition[row] < 0 && (pid >= 0 || needs_partitions) {
            return at(Column::Partition, format!("value {} is outside 0..=2147483647", self.partition[row]));
        }
        if pid < 0 && self.is_transactional(row) {
            return at(Column::Transactional, "true, but the batch has no producer id".into());
        }
        if pid < 0 && !matches!(control, Control::Data | Control::Other) {
            return at(Column::Control, "a marker needs a producer id".into());
        }
        if pid >= 0 && self.epoch[row] < 0 {
            return at(Column::Epoch, format!("value {} is outside 0..=32767", self.epoch[row]));
        }
        if control != Control::Data && origin == Origin::Client && control != Control::Other {
            return at(Column::Origin, "client, but the origin of a marker is coordinator or replica".into());
        }
        if let Some(&epoch) = self.coordinator_epoch.map(|epochs| &epochs[row]).filter(|&&epoch| epoch < -1) {
            return at(Column::CoordinatorEpoch, format!("value {epoch} is outside 0..=2147483647"));
        }
        self.explain_numbers(row, origin, has_offset, needs_partitions)
    }

    fn explain_numbers(&self, row: usize, origin: Origin, has_offset: bool, moves_end: bool) -> Error {
        let at = |column, problem: String| Error::Batch { column, row: Some(row), problem };
        let (base_seq, last_seq) = (self.base_seq[row], self.last_seq(row));
        if self.control(row) == Control::Data && self.pid[row] >= 0 && !self.has_sequences(row, origin) {
            if base_seq < -1 {
                return at(Column::BaseSeq, format!("value {base_seq} is outside 0..=2147483647"));
            }
            if base_seq == -1 && origin == Origin::Client {
                let problem = "null or -1, but a client's batch with a producer needs 0..=2147483647";
                return at(Column::BaseSeq, problem.into());
            }
            let expected =
                if base_seq == -1 { "but without a base_seq it must be null" } else { "but it must be 0..=2147483647" };
            return at(Column::LastSeq, format!("value {last_seq}, {expected}"));
        }
        if self.control(row) == Control::Data && !self.has_count(row, has_offset) {
            let count = self.count(row);
            let found = if count == Self::NO_INT { "null".into() } else { format!("value {count}") };
            return at(Column::Count, format!("{found}, but a batch without a last_seq needs 1..=2147483647"));
        }
        let (offset, last_offset) = (self.offset(row), self.last_offset(row));
        if offset < NONE {
            return at(Column::Offset, format!("value {offset} is outside 0..=9223372036854775807"));
        }
        if offset == NONE {
            let unless =
                if last_offset == NONE { "a batch of a replica needs an offset" } else { "the row has a last_offset" };
            return at(Column::Offset, format!("null, but {unless}"));
        }
        if moves_end && self.end(row).is_none() {
            let most = i64::MAX - 1;
            return at(
                Column::Offset,
                format!("value {offset} makes the batch end above {most}, the last offset of a log"),
            );
        }
        if last_offset == NONE {
            let most = i64::MAX;
            return at(Column::Offset, format!("value {offset} makes the batch end above {most}"));
        }
        if self.control(row) != Control::Data {
            return at(Column::LastOffset, format!("value {last_offset} is below the row's offset {offset}"));
        }
        let records = i64::from(self.delta(row)) + 1;
        at(
            Column::LastOffset,
            format!("value {last_offset} does not fit the row's offset {offset} and its number of records {records}"),
        )
    }

    /// A valid row. `assigns`: offsets from clients and coordinators are ignored.
    #[inline(always)]
    pub(super) fn row(&self, row: usize, assigns: bool) -> Row {
        let control = self.control(row);
        let origin = self.origin(row, control);
        let has_offset = !assigns || origin == Origin::Replica;
        let base_seq = self.base_seq[row];
        let delta = if has_offset || base_seq >= 0 { self.delta(row) } else { self.count(row).max(1) - 1 };
        Row {
            pid: self.pid[row],
            partition: self.partition[row],
            epoch: self.epoch[row],
            control,
            origin,
            is_transactional: self.is_transactional(row),
            transaction_version: self.transaction_version.map_or(-1, |versions| versions[row]),
            base_seq,
            last_seq: if base_seq < 0 { -1 } else { add(base_seq, delta) },
            delta,
            coordinator_epoch: self.coordinator_epoch.map_or(-1, |epochs| epochs[row]),
            offset: if has_offset { self.offset(row) } else { NONE },
            timestamp: self.timestamp.map_or(-1, |times| times[row]),
        }
    }

    #[inline(always)]
    fn control(&self, row: usize) -> Control {
        match self.control.map_or(0, |codes| codes[row]) {
            0 => Control::Data,
            1 => Control::Commit,
            2 => Control::Abort,
            3 => Control::Empty,
            _ => Control::Other,
        }
    }

    #[inline(always)]
    fn origin(&self, row: usize, control: Control) -> Origin {
        let default = |origin| match origin {
            Origin::Client if control != Control::Data => Origin::Coordinator,
            other => other,
        };
        match self.origin {
            Origins::All(origin) => default(origin),
            Origins::Each(codes, origin) => match codes[row] {
                0 => Origin::Client,
                1 => Origin::Replica,
                2 => Origin::Coordinator,
                _ => default(origin),
            },
        }
    }

    #[inline(always)]
    fn is_transactional(&self, row: usize) -> bool {
        self.transactional.is_some_and(|flags| flags[row] != 0)
    }

    #[inline(always)]
    fn last_seq(&self, row: usize) -> i32 {
        self.last_seq.map_or(Self::NO_INT, |values| values[row])
    }

    #[inline(always)]
    fn count(&self, row: usize) -> i32 {
        self.count.map_or(Self::NO_INT, |values| values[row])
    }

    #[inline(always)]
    fn offset(&self, row: usize) -> i64 {
        self.offset.map_or(NONE, |values| values[row])
    }

    #[inline(always)]
    fn last_offset(&self, row: usize) -> i64 {
        self.last_offset.map_or(NONE, |values| values[row])
    }

    /// The distance from the first to the last record: by sequence numbers if given, else by offsets if given, else by
    /// the number of records.
    #[inline(always)]
    fn delta(&self, row: usize) -> i32 {
        let (base_seq, last_seq) = (self.base_seq[row], self.last_seq(row));
        if base_seq >= 0 && last_seq >= 0 {
            return (last_seq.wrapping_sub(base_seq)) & i32::MAX;
        }
        let (offset, last_offset) = (self.offset(row), self.last_offset(row));
        if base_seq < 0 && offset >= 0 && last_offset >= offset {
            return i32::try_from(last_offset - offset).unwrap_or(i32::MAX);
        }
        self.count(row).max(1) - 1
    }
}

/// The sequence number `more` after another: modulo 2^31, as `DefaultRecordBatch.incrementSequence`.
#[inline]
pub(super) fn add(seq: i32, more: i32) -> i32 {
    seq.wrapping_add(more) & i32::MAX
}

/// The sequence number `less` before another.
#[inline]
pub(super) fn subtract(seq: i32, less: i32) -> i32 {
    seq.wrapping_sub(less) & i32::MAX
}

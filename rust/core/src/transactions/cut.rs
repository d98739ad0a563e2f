//! The first pass over the rows of a call. It validates all rows and groups similar ones into spans.

use super::{LogRows, Partition, TransactionIndex};
use crate::error::make_room;
use crate::{Column, Control, Error, Result};

/// Consecutive rows of one batch, of the same partition, producer and kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    /// Its first row in the call.
    pub(super) start: u32,
    /// The index of its partition.
    pub(super) slot: u32,
    /// The previous span of the same transaction in this call.
    pub(super) before: u32,
}

pub(super) const NO_SPAN: u32 = u32::MAX;

/// The spans of a call.
#[derive(Default)]
pub(super) struct Cut {
    pub(super) spans: Vec<Span>,
    /// For each batch, the number of spans up to its end.
    pub(super) ends: Vec<usize>,
    /// Log ends of partitions before their rows, to restore them after an error.
    log_ends: Vec<(u32, i64)>,
}

/// Number of rows. A call has fewer than [`NO_SPAN`].
pub(super) fn check_lengths(batches: &[LogRows<'_>]) -> Result<usize> {
    let mut rows = 0;
    for batch in batches {
        let length = batch.pid.len();
        let lengths = [
            (Column::Epoch, batch.epoch.len()),
            (Column::Partition, batch.partition.len()),
            (Column::Offset, batch.offset.len()),
            (Column::LastOffset, batch.last_offset.map_or(length, <[i64]>::len)),
            (Column::Transactional, batch.transactional.map_or(length, <[u8]>::len)),
            (Column::Control, batch.control.len()),
            (Column::Timestamp, batch.timestamp.map_or(length, <[i64]>::len)),
        ];
        if let Some((column, found)) = lengths.into_iter().find(|&(_, found)| found != length) {
            let problem = format!("has {found} rows, the pid column has {length}");
            return Err(Error::Batch { column, row: None, problem });
        }
        rows += length;
    }
    if rows >= NO_SPAN as usize {
        let problem = format!("has {rows} rows, but a call takes at most {}: use several calls", NO_SPAN - 1);
        return Err(Error::Batch { column: Column::Pid, row: None, problem });
    }
    Ok(rows)
}

impl TransactionIndex {
    /// Validates rows, finds their spans, and moves the log ends. After an error the index is unchanged.
    pub(super) fn cut(&mut self, batches: &[LogRows<'_>]) -> Result<Cut> {
        let partitions_before = self.partitions.len();
        let mut cut = Cut::default();
        let mut from = 0;
        for batch in batches {
            if let Err(error) = self.cut_batch(batch, from, &mut cut) {
                cut.log_ends.iter().rev().for_each(|&(slot, end)| self.partitions[slot as usize].log_end = end);
                for new in self.partitions.drain(partitions_before..) {
                    self.slots.remove(&new.number);
                }
                return Err(error.after(from));
            }
            cut.ends.push(cut.spans.len());
            from += batch.pid.len();
        }
        Ok(cut)
    }

    fn cut_batch(&mut self, batch: &LogRows<'_>, from: usize, cut: &mut Cut) -> Result<()> {
        let (mut slot, mut log_end) = (0, 0);
        for row in 0..batch.pid.len() {
            if row == 0 || !batch.is_continuation(row) {
                batch.check_span(row)?;
                if row == 0 || batch.partition[row] != batch.partition[row - 1] {
                    if row > 0 {
                        self.partitions[slot as usize].log_end = log_end;
                    }
                    slot = self.slot(batch.partition[row]);
                    log_end = self.partitions[slot as usize].log_end;
                    make_room(&mut cut.log_ends, 1)?;
                    cut.log_ends.push((slot, log_end));
                }
                make_room(&mut cut.spans, 1)?;
                cut.spans.push(Span { start: (from + row) as u32, slot, before: NO_SPAN });
            }
            let (offset, last_offset) = (batch.offset[row], batch.last_offset(row));
            let is_without_epoch = batch.epoch[row] < 0 && batch.pid[row] != -1;
            if offset < log_end || last_offset < offset || last_offset == i64::MAX || is_without_epoch {
                return Err(batch.problem(row, log_end));
            }
            log_end = last_offset + 1;
        }
        if !batch.pid.is_empty() {
            self.partitions[slot as usize].log_end = log_end;
        }
        Ok(())
    }

    fn slot(&mut self, number: i32) -> u32 {
        let partitions = &mut self.partitions;
        *self.slots.entry(number).or_insert_with(|| {
            partitions.push(Partition::new(number));
            (partitions.len() - 1) as u32
        })
    }
}

impl LogRows<'_> {
    #[inline]
    pub(super) fn last_offset(&self, row: usize) -> i64 {
        self.last_offset.map_or(self.offset[row], |last_offsets| last_offsets[row])
    }

    /// Whether data is part of a transaction.
    #[inline]
    pub(super) fn is_transactional(&self, row: usize) -> bool {
        self.transactional.map_or(self.pid[row] != -1, |flags| flags[row] != 0)
    }

    /// Whether a row belongs to the span of the previous row.
    #[inline]
    fn is_continuation(&self, row: usize) -> bool {
        self.pid[row] == self.pid[row - 1]
            && self.partition[row] == self.partition[row - 1]
            && self.control[row] == self.control[row - 1]
            && self.transactional.is_none_or(|flags| flags[row] == flags[row - 1])
    }

    /// Checks the values that all rows of a span share.
    #[inline]
    fn check_span(&self, row: usize) -> Result<()> {
        let is_odd = self.pid[row] < -1 || self.partition[row] < -1 || self.control[row] > Control::Other as u8;
        let is_without_pid = self.pid[row] == -1 && (self.is_marker(row) || self.is_flagged(row));
        if is_odd || is_without_pid { Err(self.problem(row, 0)) } else { Ok(()) }
    }

    #[inline]
    fn is_marker(&self, row: usize) -> bool {
        self.control[row] == Control::Commit as u8 || self.control[row] == Control::Abort as u8
    }

    /// Whether data is marked as part of a transaction.
    #[inline]
    fn is_flagged(&self, row: usize) -> bool {
        self.control[row] == Control::Data as u8 && self.transactional.is_some_and(|flags| flags[row] != 0)
    }

    /// The error of a row that is known to be invalid.
    #[cold]
    fn problem(&self, row: usize, log_end: i64) -> Error {
        let (pid, partition) = (self.pid[row], self.partition[row]);
        let (offset, last_offset) = (self.offset[row], self.last_offset(row));
        let (column, problem) = if pid < -1 {
            (Column::Pid, format!("value {pid} is outside 0..={} (-1: no producer)", i64::MAX))
        } else if partition < -1 {
            (Column::Partition, format!("value {partition} is outside 0..={} (-1: not known)", i32::MAX))
        } else if self.control[row] > Control::Other as u8 {
            (Column::Control, format!("value {} is outside 0..={}", self.control[row], Control::Other as u8))
        } else if pid == -1 && self.is_marker(row) {
            (Column::Control, "a marker needs a producer id".to_string())
        } else if pid == -1 && self.is_flagged(row) {
            (Column::Transactional, "true, but the row has no producer id".to_string())
        } else if pid != -1 && self.epoch[row] < 0 {
            (Column::Epoch, format!("value {} is outside 0..={}", self.epoch[row], i16::MAX))
        } else if offset < 0 || offset == i64::MAX {
            (Column::Offset, format!("value {offset} is outside 0..={}", i64::MAX - 1))
        } else if offset < log_end {
            let problem = format!(
                "value {offset} is below {log_end}, where the earlier rows of its partition end. Pass the rows of a \
                 partition in the order of their offsets, each once"
            );
            (Column::Offset, problem)
        } else {
            let max = i64::MAX - 1;
            (Column::LastOffset, format!("value {last_offset} is outside {offset}..={max}, from the row's offset on"))
        };
        Error::Batch { column, row: Some(row), problem }
    }
}
